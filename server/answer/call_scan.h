/* call_scan.h - the name and the arguments of a tool call in JSON, as they are written. */
#ifndef SERVE_CALL_SCAN_H
#define SERVE_CALL_SCAN_H

#include "base/mem.h"

#include <stdbool.h>

enum { CALL_NAME_MAX = 128, CALL_KEY_MAX = 16 };

typedef enum CallValue { CALL_OTHER, CALL_NAME, CALL_ARGUMENTS } CallValue;

typedef struct CallScan {
    int depth; /* of brackets; 0: not begun, or ended */
    bool in_string, is_escaped, is_key;
    CallValue value;         /* which value of the object is being read */
    bool arguments_are_text; /* "arguments": "{\"a\": 1}" */
    char key[CALL_KEY_MAX], name[CALL_NAME_MAX];
    size_t n_key, n_name;
    bool has_name, has_arguments;
    Buf arguments; /* fresh ones, which the caller takes away */
} CallScan;

/* whole: the object is the arguments, and the name is known. */
void call_scan_begin(CallScan *s, const char *name);
void call_scan_free(CallScan *s);
/* The next byte of the object. False: memory ran out. The object is complete when depth is 0 again. */
bool call_scan_byte(CallScan *s, char c);

#endif
