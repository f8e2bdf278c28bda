/* request_embedding.h - the mean of the final hidden states over a prompt (fr_request_options.want_embedding). */
#ifndef ENGINE_REQUEST_EMBEDDING_H
#define ENGINE_REQUEST_EMBEDDING_H

#include "forerun.h"

#include <stdbool.h>

typedef struct RequestEmbedding {
    double *sum; /* [n_embd] over the first n positions of the prompt, in their order; NULL: not wanted */
    int64_t n;
} RequestEmbedding;

int request_embedding_begin(fr_request *r, const fr_request_options *o, fr_error *err);
void request_embedding_end(fr_request *r);
/* The hidden state [n_embd] of the prompt's next position. What comes behind the prompt is left out. */
void request_embedding_add(fr_request *r, const float *hidden);

#endif
