/* arch_qwen.c - the models of Qwen. All rotate the halves of a head against each other.
 *
 *   qwen2        as llama, with biases of queries, keys and values
 *   qwen3        as qwen2, with a norm of each query and key head in the place of the biases
 *   qwen2moe     attention as in qwen2; experts, whose weights are their probabilities among all, and a shared expert
 *   qwen3moe     attention as in qwen3; experts, whose weights sum to 1
 *   qwen35, qwen35moe (Qwen 3.5 and 3.6) and qwen3next (Qwen3-Next)
 *                one layer in full_attention_interval has attention, with norms of heads and gates of what they read,
 *                unless a list in the file says which layers have none. The others are layers of Gated DeltaNet. The
 *                norm before the feed-forward part is called post_attention_norm. qwen35 is dense; the other two have
 *                experts, and a shared expert.
 *
 * Value heads. In files of qwen35 and qwen35moe, value head h goes with key head h % n_key_heads. In files of qwen3next
 * the value heads of a key head are side by side, and one matrix makes both beta and alpha.
 *
 * Positions. Qwen 3.5 rotates parts of a head by the time, height and width of a position. For text these are one
 * number, and the rotation is the ordinary one. */
#include "model/arch.h"

enum { MAX_HEADS = 1024 };
static const char recurrent_list[] = "attention.recurrent_layers";

static void dense_keys(KeyReader *r, Hparams *h) {
    arch_no_expert_keys(r, h);
    arch_nextn_keys(r, h);
}

static int qwen2_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, OPTIONAL(TENSOR_ATTN_Q_NORM), OPTIONAL(TENSOR_ATTN_K_NORM));
    return status ? status : arch_dense(r, i_layer, out);
}

static int qwen3_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_Q_NORM, TENSOR_ATTN_K_NORM);
    return status ? status : arch_dense(r, i_layer, out);
}

static void qwen2moe_keys(KeyReader *r, Hparams *h) {
    h->keeps_probabilities = true;
    arch_expert_keys(r, h);
    if (h->n_expert && h->n_ff_shared == 0)
        h->n_ff_shared = h->n_ff; /* older files lack expert_shared_feed_forward_length */
}

static int qwen2moe_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    return status ? status : arch_experts(r, i_layer, out);
}

static int qwen3moe_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = arch_attention(r, i_layer, out);
    if (!status) status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_Q_NORM, TENSOR_ATTN_K_NORM);
    return status ? status : arch_experts(r, i_layer, out);
}

const Architecture arch_qwen2 = {.name = "qwen2", .rope = ROPE_HALVES, .keys = dense_keys, .layer = qwen2_layer};
const Architecture arch_qwen3 = {.name = "qwen3", .rope = ROPE_HALVES, .keys = dense_keys, .layer = qwen3_layer};
const Architecture arch_qwen2moe = {
    .name = "qwen2moe", .rope = ROPE_HALVES, .keys = qwen2moe_keys, .layer = qwen2moe_layer};
const Architecture arch_qwen3moe = {
    .name = "qwen3moe", .rope = ROPE_HALVES, .keys = arch_expert_keys, .layer = qwen3moe_layer};

/* ---- with Gated DeltaNet ------------------------------------------------------------------------------ */

static void delta_keys(KeyReader *r, Hparams *h) {
    DeltaNetShape *d = &h->delta;
    int32_t n_conv = key_int(r, "ssm.conv_kernel", -1, 2, MODEL_MAX_CONV);
    d->dim = key_int(r, "ssm.state_size", -1, 2, MODEL_MAX_STATE_DIM);
    d->n_key_heads = key_int(r, "ssm.group_count", -1, 1, MAX_HEADS);
    d->n_value_heads = key_int(r, "ssm.time_step_rank", -1, d->n_key_heads, MAX_HEADS);
    int32_t whole = d->n_value_heads / d->n_key_heads * d->n_key_heads;
    (void)key_int(r, "ssm.time_step_rank", -1, whole,
                  whole); /* all key heads must have the same number of value heads */
    int64_t n_values = (int64_t)d->n_value_heads * d->dim;
    (void)key_int(r, "ssm.inner_size", n_values, n_values, n_values); /* value heads must be as wide as key heads */
    h->state = delta_net_state(d, n_conv);
    h->attention_interval = key_int(r, "full_attention_interval", 4, 1, 1024);
    if (key_is_list(r, recurrent_list)) key_check_list(r, recurrent_list, h->n_layer, 0, 1);
    arch_nextn_keys(r, h);
    arch_expert_keys(r, h);
}

static int gated_attention(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    out->mixer = MIXER_ATTENTION, out->gates_output = true;
    return ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_NORM, TENSOR_ATTN_Q_GATED, TENSOR_ATTN_K, TENSOR_ATTN_V,
                     TENSOR_ATTN_OUTPUT, TENSOR_ATTN_Q_NORM, TENSOR_ATTN_K_NORM);
}

static int delta_net(ArchReader *r, int32_t i_layer, bool joins_gates, LayerSpec *out) {
    out->mixer = MIXER_DELTA_NET;
    out->delta.shape = arch_hparams(r)->delta, out->delta.joins_gates = joins_gates;
    int status = ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_NORM, TENSOR_DELTA_QKV, TENSOR_DELTA_Z);
    if (!status)
        status = joins_gates ? ARCH_TAKE(r, i_layer, out, TENSOR_DELTA_BETA_ALPHA)
                             : ARCH_TAKE(r, i_layer, out, TENSOR_DELTA_BETA, TENSOR_DELTA_ALPHA);
    if (status) return status;
    return ARCH_TAKE(r, i_layer, out, TENSOR_STATE_CONV, TENSOR_DELTA_DT, TENSOR_DELTA_A, TENSOR_DELTA_NORM,
                     TENSOR_STATE_OUT);
}

/* Layers for multi-token prediction have attention. */
static int delta_mixer(ArchReader *r, int32_t i_layer, bool joins_gates, LayerSpec *out) {
    const Hparams *h = arch_hparams(r);
    bool is_due = (i_layer + 1) % h->attention_interval != 0;
    bool is_attention = i_layer >= h->n_layer || !arch_number_of_layer(r, recurrent_list, i_layer, is_due);
    int status = is_attention ? gated_attention(r, i_layer, out) : delta_net(r, i_layer, joins_gates, out);
    return status ? status : ARCH_TAKE(r, i_layer, out, TENSOR_FFN_NORM_POST_ATTN);
}

static int qwen35_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = delta_mixer(r, i_layer, false, out);
    return status ? status : arch_dense(r, i_layer, out);
}

static int qwen35moe_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = delta_mixer(r, i_layer, false, out);
    return status ? status : arch_experts(r, i_layer, out);
}

static int qwen3next_layer(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    int status = delta_mixer(r, i_layer, true, out);
    out->delta.shares_adjacent = true;
    return status ? status : arch_experts(r, i_layer, out);
}

const Architecture arch_qwen35 = {.name = "qwen35", .rope = ROPE_HALVES, .keys = delta_keys, .layer = qwen35_layer};
const Architecture arch_qwen35moe = {
    .name = "qwen35moe", .rope = ROPE_HALVES, .keys = delta_keys, .layer = qwen35moe_layer};
const Architecture arch_qwen3next = {
    .name = "qwen3next", .rope = ROPE_HALVES, .keys = delta_keys, .layer = qwen3next_layer};
