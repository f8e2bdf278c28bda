/* arch_gemma.c - architectures "gemma2", "gemma3" and "gemma4" (text). Embeddings are multiplied by sqrt(n_embd), what
 * attention and the feed-forward part add has a norm, and the activation is GELU.
 *
 * gemma2 caps attention scores and logits, and every other layer sees a window, beginning with the first. gemma3 has
 * norms of query and key heads in the place of the caps. Of six layers, five see a window and rotate with a base of
 * their own; the context is extended only for the sixth.
 *
 * In gemma4 the layers without a window also have a head size, a number of KV heads and a number of rotated components
 * of their own (the file divides the frequencies of the others by 1e30). Scores are not scaled, and values have a norm
 * without a weight. A layer without a value projection makes values of its keys, before their norm. The small models
 * have per-layer embeddings, and their last layers read the keys and values of the last layer of their kind that has
 * its own. One has experts beside the dense part, each with norms of its own; its router reads the normed input times a
 * vector and 1 / sqrt(n_embd). */
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

static int common_layer(ArchReader *r, int32_t i_layer, int32_t layers_of_27b,
                        int (*feed_forward)(ArchReader *, int32_t, LayerSpec *), LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_POST_ATTN_NORM);
    if (!status) status = feed_forward(r, i_layer, out);
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
    if (!status) status = common_layer(r, i_layer, GEMMA2_LAYERS_OF_27B, arch_dense, out);
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
    if (!status) status = common_layer(r, i_layer, GEMMA3_LAYERS_OF_27B, arch_dense, out);
    arch_window(r, i_layer, out);
    return status;
}

static void gemma4_keys(KeyReader *r, Hparams *h) {
    static const char pattern[] = "attention.sliding_window_pattern";
    common_keys(r, h, 0);
    if (h->window > 0 && !key_is_list(r, pattern))
        key_fail(r, FR_ERR_FORMAT, "key gemma4.%s is missing or no list with a flag for each layer", pattern);
    h->local_rope_base = key_float(r, "rope.freq_base_swa", 10000, 1, 1e12);
    h->local_head_dim = key_int(r, "attention.key_length_swa", h->head_dim, 2, h->head_dim);
    int32_t value_dim = key_int(r, "attention.value_length_swa", h->local_head_dim, 2, 1 << 12);
    if (value_dim != h->local_head_dim)
        key_fail(r, FR_ERR_UNSUPPORTED, "value heads of %d beside key heads of %d are not supported", value_dim,
                 h->local_head_dim);
    h->local_n_rot = key_int(r, "rope.dimension_count_swa", h->local_head_dim, 2, h->local_head_dim);
    if (h->local_n_rot % 2)
        key_fail(r, FR_ERR_FORMAT, "rope.dimension_count_swa is %d, but must be even", h->local_n_rot);
    h->n_shared_kv = key_int(r, "attention.shared_kv_layers", 0, 0, h->n_layer - 1);
    h->n_ple = key_int(r, "embedding_length_per_layer_input", 0, 0, 1 << 16);
    h->logit_cap = (float)key_float(r, "final_logit_softcapping", 0, 0, 1e6);
    arch_expert_keys(r, h);
    if (h->n_expert) h->n_ff_shared = h->n_ff;
    if (h->n_expert && h->n_ple)
        key_fail(r, FR_ERR_UNSUPPORTED, "experts beside per-layer embeddings are not supported");
}

/* Lets a layer read the keys and values of the last layer of its kind that has its own. */
static int share_keys(const ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int32_t i = h->n_layer - h->n_shared_kv - 1;
    while (i >= 0 && arch_earlier_layer(r, i)->mixer != out->mixer) i--;
    if (i < 0)
        return arch_fail(r, FR_ERR_FORMAT, "layer %d reads the keys of an earlier layer of its kind, but there is none",
                         i_layer);
    if (arch_number_of_layer(r, "attention.head_count_kv", i, h->n_head_kv) != h->n_head_kv)
        return arch_fail(r, FR_ERR_FORMAT, "layer %d reads the keys of layer %d, which has another number of KV heads",
                         i_layer, i);
    out->shares_kv = i + 1;
    return FR_OK;
}

/* Takes the keys and values of a layer that has its own. */
static int own_keys(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_K, OPTIONAL(TENSOR_ATTN_V), TENSOR_ATTN_K_NORM);
    if (!out->matrices[MATRIX_V]) out->matrices[MATRIX_V] = out->matrices[MATRIX_K];
    return status ? status : arch_ones(r, arch_hparams(r)->head_dim, &out->v_norm);
}

static int per_layer_embedding(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    int status = arch_rows(r, TENSOR_PLE_INPUT, (int64_t)i_layer * h->n_ple, h->n_ple,
                           &out->matrices[MATRIX_PLE_INPUT]);
    if (i_layer > 0) out->ple_input_norm = arch_earlier_layer(r, 0)->ple_input_norm;
    else if (!status) status = arch_vector(r, i_layer, TENSOR_PLE_INPUT_NORM, false, &out->ple_input_norm);
    return status ? status : ARCH_TAKE(r, i_layer, out, TENSOR_PLE_GATE, TENSOR_PLE_OUT, TENSOR_PLE_NORM);
}

/* Takes a feed-forward part of experts. What every row passes is the dense part of the other layers. */
static int gemma4_experts(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const float *scale = NULL;
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_JOINT_GATE, TENSOR_JOINT_UP, TENSOR_JOINT_DOWN, TENSOR_EXPERT_NORM,
                           TENSOR_POST_SHARED_NORM, TENSOR_POST_EXPERT_NORM);
    if (!status) status = arch_routed(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, TENSOR_EXPERT_DOWN_SCALE, true, &out->scales[MATRIX_EXPERT_DOWN]);
    if (!status) status = arch_vector(r, i_layer, TENSOR_ROUTER_SCALE, false, &scale);
    return status ? status : arch_scaled(r, scale, h->n_embd, 1 / sqrtf((float)h->n_embd), &out->router_norm);
}

static int gemma4_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    const float *scale = NULL;
    out->mixer = MIXER_ATTENTION, out->attn_scale = 1;
    arch_window(r, i_layer, out);
    if (out->mixer == MIXER_WINDOW) arch_set_head_dim(r, h->local_head_dim, out);
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_NORM, TENSOR_ATTN_Q, TENSOR_ATTN_Q_NORM, TENSOR_ATTN_OUTPUT);
    if (!status)
        status = i_layer >= h->n_layer - h->n_shared_kv ? share_keys(r, i_layer, out) : own_keys(r, i_layer, out);
    bool has_experts = arch_has(r, i_layer, TENSOR_ROUTER);
    if (has_experts && h->n_expert == 0)
        return arch_fail(r, FR_ERR_FORMAT, "layer %d has experts, but gemma4.expert_count is 0", i_layer);
    if (!status) status = common_layer(r, i_layer, -1, has_experts ? gemma4_experts : arch_dense, out);
    if (!status && h->n_ple) status = per_layer_embedding(r, i_layer, out);
    if (!status) status = arch_vector(r, i_layer, TENSOR_OUT_SCALE, true, &scale);
    if (scale && *scale == 0) return arch_fail(r, FR_ERR_FORMAT, "layer %d is multiplied by 0", i_layer);
    if (scale) out->out_scale = *scale;
    return status;
}

const Architecture arch_gemma2 = {.name = "gemma2", .rope = ROPE_HALVES, .keys = gemma2_keys, .layer = gemma2_layer};
const Architecture arch_gemma3 = {.name = "gemma3", .rope = ROPE_HALVES, .keys = gemma3_keys, .layer = gemma3_layer};
const Architecture arch_gemma4 = {.name = "gemma4", .rope = ROPE_HALVES, .keys = gemma4_keys, .layer = gemma4_layer};
