/* arch_gemma.c - architectures "gemma2" and "gemma3" (text). Embeddings are multiplied by sqrt(n_embd), what attention
 * and the feed-forward part add has a norm, and the activation is GELU.
 *
 * gemma2 caps attention scores and logits, and every other layer sees a window, beginning with the first. gemma3 has
 * norms of query and key heads in the place of the caps. Of six layers, five see a window and rotate with a base of
 * their own; the context is extended only for the sixth. */
#include "model/arch.h"

#include <math.h>

/* The models of 27 billion parameters scale scores as if a head were n_embd / n_head wide. They are recognised by their
 * number of layers. */
enum { GEMMA2_LAYERS_OF_27B = 46, GEMMA3_LAYERS_OF_27B = 62 };
/* One layer in a period sees everything. A file that names no window has the default of the transformers library. */
enum { GEMMA2_PERIOD = 2, GEMMA3_PERIOD = 6, USUAL_WINDOW = 4096 };

static void common_keys(KeyReader *r, Hparams *h, int32_t period) {
    h->embedding_scale = sqrtf((float)h->n_embd);
    arch_window_keys(r, h, USUAL_WINDOW, period);
}

static int common_layer(ArchReader *r, int32_t i_layer, int32_t layers_of_27b, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_POST_ATTN_NORM);
    if (!status) status = arch_dense(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_POST_FFN_NORM);
    out->activation = ACTIVATION_GELU;
    if (h->n_layer == layers_of_27b) out->attn_scale = sqrtf((float)h->n_head / (float)h->n_embd);
    return status;
}

static void gemma2_keys(KeyReader *r, Hparams *h) {
    common_keys(r, h, GEMMA2_PERIOD);
    h->logit_cap = (float)key_float(r, "final_logit_softcapping", 30, 0, 1e6);
    h->attn_cap = (float)key_float(r, "attn_logit_softcapping", 50, 0, 1e6);
}

static int gemma2_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = common_layer(r, i_layer, GEMMA2_LAYERS_OF_27B, out);
    out->soft_cap = arch_hparams(r)->attn_cap;
    arch_window(r, i_layer, out);
    return status;
}

static void gemma3_keys(KeyReader *r, Hparams *h) {
    common_keys(r, h, GEMMA3_PERIOD);
    h->rope.base = key_float(r, "rope.global.freq_base", h->rope.base, 1, 1e12); /* Ollama writes these names */
    h->local_rope_base = key_float(r, "rope.local.freq_base", 10000, 1, 1e12);
    h->local_rope_base = key_float(r, "rope.freq_base_swa", h->local_rope_base, 1, 1e12);
    h->logit_cap = (float)key_float(r, "final_logit_softcapping", 0, 0, 1e6);
}

static int gemma3_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_Q_NORM, TENSOR_ATTN_K_NORM);
    if (!status) status = common_layer(r, i_layer, GEMMA3_LAYERS_OF_27B, out);
    arch_window(r, i_layer, out);
    return status;
}

const Architecture arch_gemma2 = {.name = "gemma2", .rope = ROPE_HALVES, .keys = gemma2_keys, .layer = gemma2_layer};
const Architecture arch_gemma3 = {.name = "gemma3", .rope = ROPE_HALVES, .keys = gemma3_keys, .layer = gemma3_layer};
