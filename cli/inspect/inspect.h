/* inspect.h - what `forerun inspect` shows of a file: cmd_inspect.c reads it, inspect_text.c and inspect_json.c print
 * it. */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H

#include "gguf/gguf.h"

enum { MAX_ELEMENTS = 6 }; /* elements shown of an array */

/* What the file holds. Missing strings are empty, missing numbers are -1. */
typedef struct Summary {
    GgufString name, architecture;
    int64_t n_parameters, n_context, n_layers, width, feed_forward, n_heads, n_kv_heads, head_dim;
    GgufString vocab_model, vocab_pre;
    int64_t n_vocab;
    GgufString chat_template; /* empty: none */
    const char *chat_family;  /* static; NULL: no template */
    char chat_error[256];     /* why the template cannot be run; "": it can */
    struct { /* what a learned drafter's file has (draft/drafter_file.h); without a method, it is not one */
        GgufString method, target, fingerprint, command, data, precision;
    } drafter;
    struct {
        int64_t n_tensors;
        size_t bytes;
    } types[TYPE_COUNT];
    const char *target; /* NULL: not given */
    int64_t n_target_vocab;
    int32_t n_shared; /* tokens of the target that the vocabulary contains */
    bool same_ids;
} Summary;

/* Returns the name of a type of key-values; a static string. */
const char *inspect_type_name(GgufType type);
/* Returns the name of a tensor's type; a static string. */
const char *inspect_tensor_type(const GgufTensor *t);
/* Returns a number of which the shortest decimal form is that of the float. */
double inspect_shortest_decimal(float f);

/* These print a file to standard output. inspect_print_text returns false if memory ran out, so that something is
 * missing. */
bool inspect_print_text(const Gguf *g, const Summary *s, bool with_tensors, bool colour);
int inspect_print_json(const Gguf *g, const Summary *s, bool with_tensors, fr_error *err);

#endif
