/* inspect.h - the summary of a file for `forerun inspect`, and its two forms of output. */
#ifndef INSPECT_INSPECT_H
#define INSPECT_INSPECT_H

#include "gguf/gguf.h"

enum {
    INSPECT_ARRAY_MAX = 6,   /* elements shown of an array */
    INSPECT_STRING_MAX = 72, /* bytes shown of a string, in text */
};

/* Missing strings are empty, missing numbers are -1. */
typedef struct Summary {
    GgufString name, architecture;
    int64_t n_parameters, n_context, n_layers, width, feed_forward, n_heads, n_kv_heads, head_dim;
    GgufString vocab_model, vocab_pre;
    int64_t n_vocab;
    GgufString chat_template; /* empty: none */
    const char *chat_family;  /* static; NULL: no template */
    char chat_error[256];     /* why the template cannot be run; "": it can */
    struct {                  /* of a learned drafter's file (spec/drafter/drafter_file.h); no method: it is not one */
        GgufString method, target, fingerprint, command, data, precision;
    } drafter;
    struct {
        int64_t n_tensors;
        size_t bytes;
    } types[TYPE_COUNT];
} Summary;

const char *inspect_type_name(GgufType type); /* "u8" ... "string", "array" */

/* The double with the same shortest decimal as the float: 0.1, not 0.10000000149. */
double inspect_decimal(float f);

/* False: memory ran out, and something is missing. */
int inspect_print_json(const Gguf *g, const Summary *s, bool with_tensors, fr_error *err);

#endif
