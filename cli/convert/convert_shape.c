/* convert_shape.c - reads config.json and writes "<architecture>.<name>" keys.
 *
 * The names are those of transformers' configurations for llama-like models, which the supported architectures share. Newer
 * files have the base and the scaling of rope in rope_parameters, older ones in rope_theta and rope_scaling. A value that
 * would change what the model computes and has no place in the GGUF file is refused. */
#include "cli/convert/convert_shape.h"

#include "cli/convert/convert_rope.h"
#include "base/error.h"
#include "model/tensor_table.h"

#include <stdio.h>
#include <string.h>

/* Gemma's files have the activation in hidden_activation, and perhaps an older one in hidden_act. */
static void check_rest(ConfigReader *r, const char *supported) {
    const char *key = config_text(r->object, "hidden_activation") ? "hidden_activation" : "hidden_act",
               *act = config_text(r->object, key);
    Printable p;
    if (!r->status && act && strcmp(act, supported) != 0)
        r->status = error_set(r->err, FR_ERR_UNSUPPORTED, "%s/config.json: %s is '%s'; only %s is supported",
                              r->c->folder, key, printable(&p, act, strlen(act)), supported);
}

int convert_shape_read(ConvertShape *s, const HubFolder *c, const ConvertUsual *usual, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    *s = (ConvertShape){.arch = s->arch, .tied = usual->is_tied ? 1 : -1};
    s->n_layer = config_int(&r, "num_hidden_layers", -1, 1, CONVERT_MAX_LAYER);
    s->n_embd = config_int(&r, "hidden_size", -1, 2, 1 << 18);
    int64_t of_experts = config_int(&r, "moe_intermediate_size", -1, -1, 1 << 20);
    const char *ff_key = usual->ff_key && config_has(&r, usual->ff_key) ? usual->ff_key : "intermediate_size";
    s->n_ff = config_int(&r, ff_key, of_experts, 1, 1 << 20); /* missing where all layers have experts */
    s->n_head = config_int(&r, "num_attention_heads", -1, 1, 1 << 12);
    s->n_head_kv = config_int(&r, "num_key_value_heads", s->n_head, 1, s->n_head);
    s->has_head_dim = config_has(&r, "head_dim") || usual->head_dim;
    s->head_dim = config_int(&r, "head_dim", usual->head_dim ? usual->head_dim : s->n_embd / s->n_head, 2, 1 << 12);
    s->n_vocab = config_int(&r, "vocab_size", -1, 1, 1 << 24);
    s->n_ctx = config_int(&r, "max_position_embeddings", -1, 1, 1 << 28);
    s->eps = config_real(&r, usual->eps_key ? usual->eps_key : "rms_norm_eps", usual->eps_key ? 1e-5 : 1e-6, 0, 1);
    if (config_has(&r, "tie_word_embeddings"))
        s->tied = json_is_true(json_object_get(c->config, "tie_word_embeddings"));
    convert_rope_read(s, &r, usual);
    check_rest(&r, usual->activation ? usual->activation : "silu");
    if (!r.status && s->head_dim % 2)
        r.status = error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: head_dim is %lld, but must be even", c->folder,
                             (long long)s->head_dim);
    if (!r.status && (s->n_rot % 2 || s->n_rot < 2))
        r.status = error_set(
            err, FR_ERR_UNSUPPORTED,
            "%s/config.json: %lld of the %lld components of a head are rotated, but the number must be "
            "even and not 0",
            c->folder, (long long)s->n_rot, (long long)s->head_dim);
    return r.status;
}

/* Mixtral has its own names, and its weights always sum to 1. Layers without experts among others have no place in the file. */
int convert_experts_read(ConvertShape *s, const HubFolder *c, ConvertExperts experts, fr_error *err) {
    ConfigReader r = {.c = c, .object = c->config, .err = err};
    bool is_mixtral = config_has(&r, "num_local_experts"), sums_to_1 = experts != EXPERTS_KEEP_PROBABILITIES;
    s->n_expert = config_int(&r, is_mixtral ? "num_local_experts" : "num_experts", -1, 1, 512);
    s->n_expert_used = config_int(&r, "num_experts_per_tok", -1, 1, s->n_expert);
    s->n_ff_expert = config_int(&r, "moe_intermediate_size", 0, 0, 1 << 20);
    s->n_ff_shared = config_int(&r, "shared_expert_intermediate_size", 0, 0, 1 << 20);
    bool has_dense = json_array_size(json_object_get(c->config, "mlp_only_layers")) > 0 ||
                     config_int(&r, "decoder_sparse_step", 1, 1, 1024) != 1;
    if (!r.status && has_dense)
        r.status = error_set(err, FR_ERR_UNSUPPORTED,
                             "%s/config.json: mlp_only_layers or decoder_sparse_step leave layers without experts, "
                             "which is not supported",
                             c->folder);
    bool is_said = !is_mixtral && (experts != EXPERTS_ALWAYS_SUM_TO_1 || config_has(&r, "norm_topk_prob"));
    if (!r.status && is_said && json_is_true(json_object_get(c->config, "norm_topk_prob")) != sums_to_1)
        r.status = error_set(err, FR_ERR_UNSUPPORTED, "%s/config.json: norm_topk_prob must be %s in this architecture",
                             c->folder, sums_to_1 ? "true" : "false");
    return r.status;
}

void convert_set_int(GgufWriter *w, const char *arch, const char *key, int64_t v) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    gguf_set_u32(w, full, (uint32_t)v);
}

void convert_set_real(GgufWriter *w, const char *arch, const char *key, double v) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", arch, key);
    gguf_set_f32(w, full, (float)v);
}

static void write_kv_heads(const ConvertShape *s, GgufWriter *w) {
    int32_t heads[CONVERT_MAX_LAYER];
    char full[128];
    if (!s->lists_kv_heads) {
        convert_set_int(w, s->arch, "attention.head_count_kv", s->n_head_kv);
        return;
    }
    for (int64_t i = 0; i < s->n_layer; i++) heads[i] = s->recurrent[i] ? 0 : (int32_t)s->n_head_kv;
    snprintf(full, sizeof full, "%s.attention.head_count_kv", s->arch);
    gguf_set_i32s(w, full, heads, (int32_t)s->n_layer);
}

void convert_shape_write(const ConvertShape *s, const char *arch, bool rotates_pairs, GgufWriter *w) {
    convert_set_int(w, arch, "block_count", s->n_layer + s->n_nextn);
    if (s->n_nextn) convert_set_int(w, arch, "nextn_predict_layers", s->n_nextn);
    convert_set_int(w, arch, "context_length", s->n_ctx);
    convert_set_int(w, arch, "embedding_length", s->n_embd);
    convert_set_int(w, arch, "feed_forward_length", s->n_ff);
    convert_set_int(w, arch, "attention.head_count", s->n_head);
    write_kv_heads(s, w);
    convert_set_real(w, arch, "attention.layer_norm_rms_epsilon", s->eps);
    convert_set_int(w, arch, "vocab_size", s->n_vocab);
    convert_set_real(w, arch, "rope.freq_base", s->rope_base);
    if (rotates_pairs || s->n_rot != s->head_dim) convert_set_int(w, arch, "rope.dimension_count", s->n_rot);
    if (s->has_head_dim || s->head_dim * s->n_head != s->n_embd) {
        convert_set_int(w, arch, "attention.key_length", s->head_dim);
        convert_set_int(w, arch, "attention.value_length", s->kv_rank ? s->kv_rank : s->head_dim);
    }
    convert_rope_write(s, w);
}

void convert_experts_write(const ConvertShape *s, const char *arch, GgufWriter *w) {
    convert_set_int(w, arch, "expert_count", s->n_expert);
    convert_set_int(w, arch, "expert_used_count", s->n_expert_used);
    if (s->n_ff_expert) convert_set_int(w, arch, "expert_feed_forward_length", s->n_ff_expert);
    if (s->n_ff_shared) convert_set_int(w, arch, "expert_shared_feed_forward_length", s->n_ff_shared);
}

/* Only what the sizes of tensors depend on. All numbers are within the limits of convert_shape_read and of the architectures. */
Hparams convert_hparams(const ConvertShape *s) {
    Hparams h = {.n_embd = (int32_t)s->n_embd,
                 .n_ff = (int32_t)s->n_ff,
                 .n_vocab = (int32_t)s->n_vocab,
                 .n_head = (int32_t)s->n_head,
                 .n_head_kv = (int32_t)s->n_head_kv,
                 .head_dim = (int32_t)s->head_dim,
                 .n_expert = (int32_t)s->n_expert,
                 .n_ff_expert = (int32_t)(s->n_ff_expert ? s->n_ff_expert : s->n_ff),
                 .n_ff_shared = (int32_t)s->n_ff_shared,
                 .rope = {.n_rot = (int32_t)s->n_rot},
                 .latent = {.rank = (int32_t)s->kv_rank,
                            .q_rank = (int32_t)s->q_rank,
                            .plain_dim = (int32_t)s->plain_dim,
                            .value_dim = (int32_t)s->value_dim}};
    int32_t n_conv = (int32_t)s->n_conv, groups = (int32_t)s->n_key_heads, heads = (int32_t)s->n_value_heads,
            dim = (int32_t)s->delta_dim;
    h.delta = (DeltaNetShape){.n_key_heads = groups, .n_value_heads = heads, .dim = dim};
    h.mamba = (Mamba2Shape){.n_heads = heads, .dim = dim, .n_groups = groups, .n_state = (int32_t)s->n_state};
    if (s->n_state) h.state = mamba2_state(&h.mamba, n_conv);
    else if (heads) h.state = delta_net_state(&h.delta, n_conv);
    else if (n_conv) h.state = short_conv_state(h.n_embd, n_conv);
    return h;
}
