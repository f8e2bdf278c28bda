/* arch_gemma2.c - architecture "gemma2": embeddings times sqrt(n_embd), norms also behind attention and feed-forward part,
 * GELU, capped scores and logits, and a window in every other layer, beginning with the first. */
#include "model/arch.h"

#include <math.h>

enum { LAYERS_OF_27B = 46 }; /* which scales by the width of a head as if it were n_embd / n_head */

static void keys(KeyReader *r, Hparams *h) {
    h->embedding_scale = sqrtf((float)h->n_embd);
    h->window = key_int(r, "attention.sliding_window", 0, 0, 1 << 28);
    h->logit_cap = (float)key_float(r, "final_logit_softcapping", 30, 0, 1e6);
    h->attn_cap = (float)key_float(r, "attn_logit_softcapping", 50, 0, 1e6);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, "post_attention_norm.weight", h->n_embd, false, &out->post_attn_norm);
    if (!status) status = arch_dense(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, "post_ffw_norm.weight", h->n_embd, false, &out->post_ffn_norm);
    out->activation = ACTIVATION_GELU;
    out->soft_cap = h->attn_cap;
    if (h->n_layer == LAYERS_OF_27B) out->attn_scale = sqrtf((float)h->n_head / (float)h->n_embd);
    if (i_layer % 2 == 0) arch_window(r, out);
    return status;
}

const Architecture arch_gemma2 = {.name = "gemma2", .rope = ROPE_HALVES, .keys = keys, .layer = layer};
