/* grow.h - the parts of grow_model: the requested shape, and the tensors of the grown model. */
#ifndef GROW_MODEL_H
#define GROW_MODEL_H

#include "gguf/gguf_write.h"
#include "model/hparams.h"

typedef struct GrowPlan {
    const char *source, *type, *out;                              /* type NULL: the source's, tensor by tensor */
    int64_t n_layers, dim, n_heads, n_kv_heads, ffn_dim, n_vocab; /* 0: as in the source */
} GrowPlan;

/* Adds every tensor of the grown model, whose data are computed while the file is written, and sets the epsilon that
 * the model needs. The Grown and the source must live until the file is written. Refuses shapes that are smaller than
 * the source's. */
typedef struct Grown Grown;
int grown_add(Grown **out, GgufWriter *w, const GrowPlan *plan, const Gguf *source, const Hparams *h, float *epsilon,
              fr_error *err);
void grown_free(Grown *g); /* NULL is fine */

#endif
