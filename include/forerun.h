/* forerun.h - the public C API of libforerun: run language models from GGUF files faster than one
 * token at a time, with not one token changed.
 *
 * The library never exits, never prints and never reads the environment. Every fallible function
 * returns FR_OK (0) or a negative fr_code and, where the caller passes one, fills an fr_error with one
 * sentence that names what went wrong, where, and the remedy.
 */
#ifndef FORERUN_H
#define FORERUN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FR_API __attribute__((visibility("default")))

typedef enum fr_code {
    FR_OK = 0,
    FR_ERR_ARGUMENT = -1,    /* the caller asked for something that makes no sense */
    FR_ERR_IO = -2,          /* a file could not be opened, read or written */
    FR_ERR_FORMAT = -3,      /* a file is damaged or hostile */
    FR_ERR_UNSUPPORTED = -4, /* a file is sound but of a kind forerun does not run */
    FR_ERR_MEMORY = -5,      /* memory or KV pages ran out */
    FR_ERR_CONTEXT = -6,     /* the text is longer than the context */
    FR_ERR_MISMATCH = -7,    /* two files do not belong together (a drafter for another target) */
    FR_ERR_CANCELLED = -8,   /* the caller's callback asked to stop */
    FR_ERR_INTERNAL = -9,    /* a broken invariant: a bug in forerun */
} fr_code;

/* Filled by a failing call; untouched by a succeeding one. The caller owns it (usually on its stack). */
typedef struct fr_error {
    fr_code code;
    char message[508];
} fr_error;

#ifdef __cplusplus
}
#endif
#endif
