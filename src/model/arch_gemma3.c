/* arch_gemma3.c - architecture "gemma3" (text): as gemma2, with norms of query and key heads instead of caps. Of six
 * layers, five see a window and rotate with a base of their own; the context is extended for the sixth alone. */
#include "model/arch.h"

#include <math.h>

enum { LAYERS_OF_27B = 62, PATTERN = 6 };

static void keys(KeyReader *r, Hparams *h) {
    h->embedding_scale = sqrtf((float)h->n_embd);
    h->window = key_int(r, "attention.sliding_window", 0, 0, 1 << 28);
    h->local_rope_base = key_float(r, "rope.freq_base_swa", 10000, 1, 1e12);
    h->logit_cap = (float)key_float(r, "final_logit_softcapping", 0, 0, 1e6);
}

static int layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_attention(r, i_layer, out);
    if (!status) status = arch_head_norms(r, i_layer, false, out);
    if (!status) status = arch_vector(r, i_layer, "post_attention_norm.weight", h->n_embd, false, &out->post_attn_norm);
    if (!status) status = arch_dense(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, "post_ffw_norm.weight", h->n_embd, false, &out->post_ffn_norm);
    out->activation = ACTIVATION_GELU;
    if (h->n_layer == LAYERS_OF_27B) out->attn_scale = sqrtf((float)h->n_head / (float)h->n_embd);
    if (i_layer % PATTERN < PATTERN - 1) arch_window(r, out);
    return status;
}

const Architecture arch_gemma3 = {.name = "gemma3", .rope = ROPE_HALVES, .keys = keys, .layer = layer};
