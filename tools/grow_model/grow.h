/* grow.h - the parts of grow_model: the shape that is asked for, and the tensors of the grown model. */
#ifndef GROW_MODEL_H
#define GROW_MODEL_H

#include "gguf/gguf_write.h"
#include "model/hparams.h"

typedef struct GrowPlan {
    const char *source, *type, *out;                              /* type NULL: the source's, tensor by tensor */
    int64_t n_layers, dim, n_heads, n_kv_heads, ffn_dim, n_vocab; /* 0: as in the source */
} GrowPlan;

/* Every tensor of the grown model, made while the file is written; also the epsilon it needs. The Grown must live until
 * then, and so must the source. Refuses shapes that are no growth of the source's. */
typedef struct Grown Grown;
int grown_add(Grown **out, GgufWriter *w, const GrowPlan *plan, const Gguf *source, const Hparams *h, float *epsilon,
              fr_error *err);
void grown_free(Grown *g); /* NULL is fine */

#endif
