/* random_model.c - writes small models with random weights as GGUF files; the same description gives the same file. */
#include "random_model.h"

#include "base/math_functions.h"
#include "base/mem.h"
#include "base/rng.h"
#include "gguf/tensor_type.h"
#include "gguf/gguf_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Tensor data is borrowed by the writer until the end, so all data is kept in a list. */
typedef struct Maker {
    const RandomModel *m;
    GgufWriter *w;
    void *kept[4096];
    int n_kept, n_matrices;
    uint32_t n_tensors;
} Maker;

static void *keep(Maker *k, void *p) {
    fr_assert(p && k->n_kept < (int)(sizeof k->kept / sizeof *k->kept));
    k->kept[k->n_kept++] = p;
    return p;
}

/* Box and Muller's method, using one number of each pair: speed does not matter here. */
static double gauss(uint64_t seed, uint32_t tensor, uint64_t i) {
    double u = rng_uniform(seed, RNG_TEST, ((uint64_t)tensor << 40) + i, 0);
    double v = rng_uniform(seed, RNG_TEST, ((uint64_t)tensor << 40) + i, 1);
    double sine, cosine;
    math_sin_cos(2 * M_PI * v, &sine, &cosine);
    return sqrt(-2 * math_log(u)) * cosine;
}

static float *gaussians(Maker *k, int64_t n, double mean, double std) {
    float *x = keep(k, malloc((size_t)n * sizeof *x));
    uint32_t tensor = k->n_tensors++;
    for (int64_t i = 0; i < n; i++) x[i] = (float)(mean + std * gauss(k->m->seed, tensor, (uint64_t)i));
    return x;
}

static void add_vector(Maker *k, const char *name, int64_t n, double mean, double std) {
    gguf_add_tensor(k->w, name, TYPE_F32, 1, &n, gaussians(k, n, mean, std));
}

/* n vectors, one after the other. */
static void add_vectors(Maker *k, const char *name, int64_t n_in, int64_t n, double mean, double std) {
    gguf_add_tensor(k->w, name, TYPE_F32, 2, (int64_t[]){n_in, n}, gaussians(k, n_in * n, mean, std));
}

/* Adds a factor of about 1 for each of n matrices, and a factor of their inputs that would change the results. */
static void add_scales(Maker *k, const char *name, int64_t n) {
    char full[64];
    int base = (int)(strlen(name) - strlen(".weight"));
    snprintf(full, sizeof full, "%.*s.scale", base, name);
    add_vector(k, full, n, 0.9, 0.2);
    snprintf(full, sizeof full, "%.*s.input_scale", base, name);
    add_vector(k, full, n, 3, 0.2);
}

/* n matrices, one after the other. */
static void add_matrices(Maker *k, const char *name, int64_t n_in, int64_t n_out, int64_t n, double std) {
    TensorType type = k->m->n_types ? k->m->types[k->n_matrices++ % k->m->n_types] : TYPE_F32;
    size_t row_bytes;
    bool whole = tensor_type_row_bytes(type, n_in, &row_bytes);
    fr_assert(whole);
    const float *x = gaussians(k, n_in * n_out * n, 0, std);
    char *data = keep(k, malloc(row_bytes * (size_t)(n_out * n)));
    for (int64_t o = 0; o < n_out * n; o++) blocks_quantize(type, x + o * n_in, n_in, data + (size_t)o * row_bytes);
    gguf_add_tensor(k->w, name, type, n > 1 ? 3 : 2, (int64_t[]){n_in, n_out, n}, data);
    bool may_scale = strncmp(name, "blk.", 4) == 0 &&
                     !strstr(name, "ffn_gate_inp"); /* llama.cpp has no factor for a router */
    if (k->m->has_scales && type == TYPE_NVFP4 && may_scale) add_scales(k, name, n);
}

static void add_matrix(Maker *k, const char *name, int64_t n_in, int64_t n_out, double std) {
    add_matrices(k, name, n_in, n_out, 1, std);
}

static int32_t head_dim_of(const RandomModel *m) {
    return m->head_dim || !m->n_head ? m->head_dim : m->n_embd / m->n_head;
}

/* Returns whether a name is among those of a list with spaces between them. */
static bool is_one_of(const char *name, const char *list) {
    size_t n = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += n)
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) return true;
    return false;
}

/* Latent attention; the names are those of model.h. */
static void add_latent(Maker *k, int32_t i) {
    const RandomModel *m = k->m;
    const int64_t key_dim = m->plain_dim + m->n_rot, values = (int64_t)m->n_head * m->value_dim;
    const double gain = m->tied ? 1.6 : 1.0, in = gain / sqrt(m->n_embd), of_latent = gain / sqrt(m->kv_rank);
    const struct {
        const char *name;
        int64_t n_in, n_out, n; /* n_out 0: a vector */
        double std;
        bool wanted;
    } tensors[] = {
        {"attn_q_a.weight", m->n_embd, m->q_rank, 1, in, m->q_rank > 0},
        {"attn_q_a_norm.weight", m->q_rank, 0, 1, 0.1, m->q_rank > 0},
        {"attn_q_b.weight", m->q_rank, m->n_head * key_dim, 1, 2 * gain / sqrt(m->q_rank), m->q_rank > 0},
        {"attn_q.weight", m->n_embd, m->n_head * key_dim, 1, 2 * in, m->q_rank == 0},
        {"attn_kv_a_mqa.weight", m->n_embd, m->kv_rank + m->n_rot, 1, in, true},
        {"attn_kv_a_norm.weight", m->kv_rank, 0, 1, 0.1, true},
        {"attn_k_b.weight", m->plain_dim, m->kv_rank, m->n_head, of_latent, !m->joins_kv_b},
        {"attn_v_b.weight", m->kv_rank, m->value_dim, m->n_head, of_latent, !m->joins_kv_b},
        {"attn_kv_b.weight", m->kv_rank, (int64_t)m->n_head * (m->plain_dim + m->value_dim), 1, of_latent,
         m->joins_kv_b},
        {"attn_output.weight", values, m->n_embd, 1, 2 * gain / sqrt((double)values), true},
    };
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", i, tensors[t].name);
        if (!tensors[t].wanted) continue;
        if (tensors[t].n_out) add_matrices(k, name, tensors[t].n_in, tensors[t].n_out, tensors[t].n, tensors[t].std);
        else add_vector(k, name, tensors[t].n_in, 1, tensors[t].std);
    }
}

/* Returns the number of a layer in a list; all layers of a model without a list have `fallback`. */
static int32_t listed(const int32_t list[MOST_LISTED], int32_t i, int32_t fallback) {
    return i < MOST_LISTED && list[i] ? list[i] : fallback;
}

static bool has_attention(const RandomModel *m, int32_t i_layer) {
    return m->n_conv == 0 || (m->attention_interval && (i_layer + 1) % m->attention_interval == 0);
}

/* Returns whether a layer of gemma4 has a window. */
static bool has_local_heads(const RandomModel *m, int32_t i_layer) {
    return is_one_of(m->arch, "gemma4") && m->window && (i_layer + 1) % m->attention_interval != 0;
}

/* A product of n_in terms keeps the rms of its input at std 1/sqrt(n_in). A tied model gets more, so that
 * its blocks outweigh the embedding: otherwise each token would predict itself. */
static void add_layer(Maker *k, int32_t i) {
    const RandomModel *m = k->m;
    int64_t head_dim = has_local_heads(m, i) ? m->local_head_dim : head_dim_of(m);
    int64_t q_dim = (int64_t)listed(m->head_counts, i, m->n_head) * head_dim,
            kv_dim = (int64_t)listed(m->kv_head_counts, i, m->n_head_kv) * head_dim,
            n_ff = listed(m->ff_widths, i, m->n_ff);
    double gain = m->tied ? 1.6 : 1.0;
    bool nextn = i >= m->n_layer;
    bool oss = is_one_of(m->arch, "gpt-oss");
    bool biases = m->biases || oss || is_one_of(m->arch, "qwen2 qwen2moe glm4moe"), glm = is_one_of(m->arch, "glm4moe"),
         norms = m->head_norms ||
                 is_one_of(m->arch, "qwen3 qwen3moe gemma3 gemma4 qwen35 qwen35moe qwen3next lfm2 lfm2moe");
    bool more = m->more_biases;
    bool gemma4 = is_one_of(m->arch, "gemma4"), ple = m->n_ple > 0, own_keys = i < m->n_layer - m->n_shared_kv || nextn,
         own_values = own_keys && (!m->values_of_keys || has_local_heads(m, i));
    bool post_norms = is_one_of(m->arch, "gemma2 gemma3 gemma4"), fused = is_one_of(m->arch, "phi3");
    bool latent = m->kv_rank > 0, no_gate = latent || is_one_of(m->arch, "granitehybrid llama4 glm4moe"),
         experts = m->n_expert > 0 && i >= m->n_dense && (!m->expert_interval || (i + 1) % m->expert_interval == 0);
    bool shared = (m->n_expert == 0 || experts) && m->n_ff_shared > 0 && !gemma4;
    bool hybrid = is_one_of(m->arch, "qwen35 qwen35moe qwen3next"), attention = nextn || has_attention(m, i);
    bool delta = hybrid && !attention, fused_gates = is_one_of(m->arch, "qwen3next"),
         mamba = !attention && is_one_of(m->arch, "granitehybrid mamba2"),
         conv = !attention && is_one_of(m->arch, "lfm2 lfm2moe"), ffn = !is_one_of(m->arch, "mamba2");
    int64_t n_bc = 2 * (int64_t)m->n_key_heads * m->n_ssm_state;
    int64_t n_values = (int64_t)m->n_value_heads * m->delta_dim,
            n_channels = n_values + 2 * (int64_t)m->n_key_heads * m->delta_dim;
    double in = gain / sqrt(m->n_embd);
    const struct {
        const char *name;
        int64_t n_in, n_out; /* n_out 0: a vector */
        double mean, std;
        bool wanted;
        int64_t n; /* matrices; 0: one; -1: a table, always F32 */
    } tensors[] = {
        {"attn_norm.weight", m->n_embd, 0, 1, 0.1, true, 0},
        {"attn_q.weight", m->n_embd, hybrid ? 2 * q_dim : q_dim, 0, in, !fused && attention && !latent, 0},
        {"attn_k.weight", m->n_embd, kv_dim, 0, in, !fused && attention && !latent && own_keys, 0},
        {"attn_v.weight", m->n_embd, kv_dim, 0, in, !fused && attention && !latent && own_values, 0},
        {"attn_qkv.weight", m->n_embd, q_dim + 2 * kv_dim, 0, in, fused, 0},
        {"attn_q.bias", q_dim, 0, 0, 0.3, biases, 0},
        {"attn_k.bias", kv_dim, 0, 0, 0.3, biases, 0},
        {"attn_v.bias", kv_dim, 0, 0, 0.3, biases, 0},
        {"attn_q_norm.weight", head_dim, 0, gemma4 ? 0.16 : 1, gemma4 ? 0.03 : 0.1, norms && attention, 0},
        {"attn_k_norm.weight", head_dim, 0, 1, 0.1, norms && attention && own_keys, 0},
        {"attn_output.weight", q_dim, m->n_embd, 0, (hybrid ? 2 : 1) * gain / sqrt((double)q_dim), attention && !latent,
         0},
        {"attn_qkv.weight", m->n_embd, n_channels, 0, in, delta, 0},
        {"attn_gate.weight", m->n_embd, n_values, 0, in, delta, 0},
        {"ssm_beta.weight", m->n_embd, m->n_value_heads, 0, in, delta && !fused_gates, 0},
        {"ssm_alpha.weight", m->n_embd, m->n_value_heads, 0, in, delta && !fused_gates, 0},
        {"ssm_ba.weight", m->n_embd, 2 * m->n_value_heads, 0, in, delta && fused_gates, 0},
        {"ssm_conv1d.weight", m->n_conv, n_channels, 0, 0.7, delta, -1},
        {"ssm_dt.bias", m->n_value_heads, 0, 0, 0.5, delta, 0},
        {"ssm_a", m->n_value_heads, 0, -0.2, 0.04, delta, 0},
        {"ssm_norm.weight", m->delta_dim, 0, 1, 0.1, delta, 0},
        {"ssm_out.weight", n_values, m->n_embd, 0, 2 * gain / sqrt((double)n_values), delta, 0},
        {"ssm_in.weight", m->n_embd, 2 * n_values + n_bc + m->n_value_heads, 0, in, mamba, 0},
        {"ssm_conv1d.weight", m->n_conv, n_values + n_bc, 0, 0.7, mamba, -1},
        {"ssm_conv1d.bias", n_values + n_bc, 0, 0, 0.3, mamba, 0},
        {"ssm_dt.bias", m->n_value_heads, 0, 0, 0.5, mamba, 0},
        {"ssm_a", 1, m->n_value_heads, -0.2, 0.04, mamba, -1},
        {"ssm_d", 1, m->n_value_heads, 1, 0.3, mamba, -1},
        {"ssm_norm.weight", m->n_key_heads ? n_values / m->n_key_heads : 0, m->n_key_heads, 1, 0.1, mamba, -1},
        {"ssm_out.weight", n_values, m->n_embd, 0, 2 * gain / sqrt((double)n_values), mamba, 0},
        {"shortconv.in_proj.weight", m->n_embd, 3 * m->n_embd, 0, in, conv, 0},
        {"shortconv.conv.weight", m->n_conv, m->n_embd, 0, 0.7, conv, -1},
        {"shortconv.out_proj.weight", m->n_embd, m->n_embd, 0, in, conv, 0},
        {"attn_output.bias", m->n_embd, 0, 0, 0.2, oss || (more && attention && !latent), 0},
        {"attn_sinks.weight", m->n_head, 0, 1, 1, oss, 0},
        {"post_attention_norm.weight", m->n_embd, 0, !post_norms ? 1 : 6, !post_norms ? 0.1 : 0.3,
         post_norms || hybrid || oss || glm, 0},
        {"ffn_norm.weight", m->n_embd, 0, 1, 0.1, !hybrid && !oss && !glm && ffn, 0},
        {"ffn_gate.weight", m->n_embd, n_ff, 0, in, (!experts || gemma4) && !fused && ffn, 0},
        {"ffn_up.weight", m->n_embd, fused ? 2 * n_ff : n_ff, 0, in, (!experts || gemma4) && ffn, 0},
        {"ffn_down.weight", n_ff, m->n_embd, 0, ffn ? gain / sqrt((double)n_ff) : 0, (!experts || gemma4) && ffn, 0},
        {"ffn_gate.bias", n_ff, 0, 0, 0.5, more && !experts && ffn, 0},
        {"ffn_up.bias", n_ff, 0, 0, 0.5, more && !experts && ffn, 0},
        {"ffn_down.bias", m->n_embd, 0, 0, 0.3, more && !experts && ffn, 0},
        {"post_ffw_norm.weight", m->n_embd, 0, 6, 0.3, post_norms, 0},
        {"ffn_gate_inp.weight", m->n_embd, m->n_expert, 0, gemma4 ? 3 : 3 * in, experts, 0},
        {"ffn_gate_inp.bias", m->n_expert, 0, 0, 1, oss, 0},
        {"ffn_gate_exps.weight", m->n_embd, m->n_ff_expert, 0, oss ? 4 * in : in, experts, m->n_expert}, /* beyond 7 */
        {"ffn_up_exps.weight", m->n_embd, m->n_ff_expert, 0, oss ? 4 * in : in, experts, m->n_expert},
        {"ffn_down_exps.weight", m->n_ff_expert, m->n_embd, 0, (oss ? 0.3 : 2) * gain / sqrt(m->n_ff_expert), experts,
         m->n_expert},
        {"ffn_gate_exps.bias", m->n_ff_expert, 0, 0, 0.5, oss, m->n_expert},
        {"ffn_up_exps.bias", m->n_ff_expert, 0, 0, 0.5, oss, m->n_expert},
        {"ffn_down_exps.bias", m->n_embd, 0, 0, 0.5, oss, m->n_expert},
        {"ffn_gate_shexp.weight", m->n_embd, m->n_ff_shared, 0, in, shared, 0},
        {"ffn_up_shexp.weight", m->n_embd, m->n_ff_shared, 0, in, shared, 0},
        {"ffn_down_shexp.weight", m->n_ff_shared, m->n_embd, 0, gain / sqrt(m->n_ff_shared), shared, 0},
        {"ffn_gate_inp_shexp.weight", m->n_embd, 0, 0, in, shared && !no_gate, 0},
        {"nextn.eh_proj.weight", 2 * (int64_t)m->n_embd, m->n_embd, 0, 0.7 * in, nextn, 0},
        {"nextn.enorm.weight", m->n_embd, 0, 1, 0.2, nextn, 0},
        {"nextn.hnorm.weight", m->n_embd, 0, 1, 0.2, nextn, 0},
        {"nextn.shared_head_norm.weight", m->n_embd, 0, 1, 0.2, nextn, 0},
        {"nextn.embed_tokens.weight", m->n_embd, m->n_vocab, 0, 0.5, nextn && m->nextn_head, 0},
        {"nextn.shared_head_head.weight", m->n_embd, m->n_vocab, 0, 2.8 / sqrt(m->n_embd), nextn && m->nextn_head, 0},
        {"exp_probs_b.bias", m->n_expert, 0, 0, 0.2, experts && m->has_sigmoid_router, 0},
        {"inp_gate.weight", m->n_embd, m->n_ple, 0, 0.3 * in, ple, 0},
        {"proj.weight", m->n_ple, m->n_embd, 0, ple ? gain / sqrt(m->n_ple) : 0, ple, 0},
        {"post_norm.weight", m->n_embd, 0, 6, 0.3, ple, 0},
        {"layer_output_scale.weight", 1, 0, 0.8, 0.1, gemma4, 0},
        {"ffn_gate_inp.scale", m->n_embd, 0, 1.5, 0.5, gemma4 && experts, 0},
        {"pre_ffw_norm_2.weight", m->n_embd, 0, 1, 0.2, gemma4 && experts, 0},
        {"post_ffw_norm_1.weight", m->n_embd, 0, 1, 0.2, gemma4 && experts, 0},
        {"post_ffw_norm_2.weight", m->n_embd, 0, 1, 0.2, gemma4 && experts, 0},
        {"ffn_down_exps.scale", m->n_expert, 0, 1, 0.3, gemma4 && experts, 0},
    };
    if (latent) add_latent(k, i);
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", i, tensors[t].name);
        if (!tensors[t].wanted) continue;
        if (tensors[t].n < 0) add_vectors(k, name, tensors[t].n_in, tensors[t].n_out, tensors[t].mean, tensors[t].std);
        else if (tensors[t].n && !tensors[t].n_out)
            add_vectors(k, name, tensors[t].n_in, tensors[t].n, tensors[t].mean, tensors[t].std);
        else if (tensors[t].n) add_matrices(k, name, tensors[t].n_in, tensors[t].n_out, tensors[t].n, tensors[t].std);
        else if (tensors[t].n_out) add_matrix(k, name, tensors[t].n_in, tensors[t].n_out, tensors[t].std);
        else add_vector(k, name, tensors[t].n_in, tensors[t].mean, tensors[t].std);
    }
}

/* Factors between 1 (fast pairs) and 8 (slow pairs), as Llama 3.1 has them. */
static void add_rope_factors(Maker *k) {
    int64_t n = (k->m->n_rot ? k->m->n_rot : head_dim_of(k->m)) / 2;
    float *f = keep(k, malloc((size_t)n * sizeof *f));
    for (int64_t i = 0; i < n; i++) f[i] = (float)(1 + 7.0 * (double)i / (double)n);
    for (int64_t i = n / 4; i < n && is_one_of(k->m->arch, "gemma4"); i++) f[i] = 1e30f; /* these do not turn */
    gguf_add_tensor(k->w, "rope_freqs.weight", TYPE_F32, 1, &n, f);
}

static void add_long_rope(Maker *k) {
    int64_t n = (k->m->n_rot ? k->m->n_rot : head_dim_of(k->m)) / 2;
    for (int is_long = 0; is_long < 2; is_long++) {
        float *f = keep(k, malloc((size_t)n * sizeof *f));
        for (int64_t i = 0; i < n; i++) f[i] = (float)(1 + (is_long ? 9.0 : 0.3) * (double)(i + 1) / (double)n);
        gguf_add_tensor(k->w, is_long ? "rope_factors_long.weight" : "rope_factors_short.weight", TYPE_F32, 1, &n, f);
    }
}

static void set_key_u32(Maker *k, const char *what, int64_t v) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", k->m->arch, what);
    gguf_set_u32(k->w, key, (uint32_t)v);
}

static void set_key_f32(Maker *k, const char *what, double v) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", k->m->arch, what);
    gguf_set_f32(k->w, key, (float)v);
}

static void set_key_list(Maker *k, const char *what, const int32_t list[MOST_LISTED]) {
    char key[128];
    fr_assert(k->m->n_layer <= MOST_LISTED);
    snprintf(key, sizeof key, "%s.%s", k->m->arch, what);
    gguf_set_i32s(k->w, key, list, k->m->n_layer);
}

/* A third of the pairs rotates by time, a third by height and a third by width. Only other programs read this key. */
static void set_sections(Maker *k, int32_t n_pairs) {
    char key[128];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", k->m->arch);
    const int32_t sections[4] = {(n_pairs + 2) / 3, (n_pairs + 1) / 3, n_pairs / 3, 0};
    gguf_set_i32s(k->w, key, sections, 4);
}

static void set_latent_keys(Maker *k) {
    const RandomModel *m = k->m;
    set_key_u32(k, "attention.q_lora_rank", m->q_rank);
    set_key_u32(k, "attention.kv_lora_rank", m->kv_rank);
    set_key_u32(k, "attention.key_length", m->joins_kv_b ? m->plain_dim + m->n_rot : m->kv_rank + m->n_rot);
    set_key_u32(k, "attention.value_length", m->joins_kv_b ? m->value_dim : m->kv_rank);
    if (!m->joins_kv_b) set_key_u32(k, "attention.key_length_mla", m->plain_dim + m->n_rot);
    if (!m->joins_kv_b) set_key_u32(k, "attention.value_length_mla", m->value_dim);
}

/* Leading dense layers, and a router like those of DeepSeek and GLM. */
static void set_routed_keys(Maker *k) {
    const RandomModel *m = k->m;
    char key[128];
    set_key_u32(k, "leading_dense_block_count", m->n_expert ? m->n_dense : m->n_layer);
    if (!m->n_expert) return;
    set_key_u32(k, "expert_shared_count", m->n_ff_shared / m->n_ff_expert);
    set_key_u32(k, "expert_gating_func", m->has_sigmoid_router ? 2 : 1);
    if (m->expert_scale > 0) set_key_f32(k, "expert_weights_scale", m->expert_scale);
    snprintf(key, sizeof key, "%s.expert_weights_norm", m->arch);
    gguf_set_bool(k->w, key, m->divides_by_chosen);
    if (m->n_groups) set_key_u32(k, "expert_group_count", m->n_groups);
    if (m->n_groups) set_key_u32(k, "expert_group_used_count", m->n_groups_used);
}

static void set_gemma4_keys(Maker *k) {
    const RandomModel *m = k->m;
    int32_t *windows = keep(k, calloc((size_t)m->n_layer, sizeof *windows));
    for (int32_t i = 0; i < m->n_layer; i++) windows[i] = has_local_heads(m, i);
    gguf_set_i32s(k->w, "gemma4.attention.sliding_window_pattern", windows, m->n_layer);
    set_key_u32(k, "attention.key_length_swa", m->local_head_dim);
    set_key_u32(k, "attention.value_length_swa", m->local_head_dim);
    set_key_u32(k, "rope.dimension_count", head_dim_of(m));
    set_key_u32(k, "rope.dimension_count_swa", m->local_head_dim);
    set_key_f32(k, "rope.freq_base_swa", 5000);
    set_key_u32(k, "attention.shared_kv_layers", m->n_shared_kv);
    set_key_u32(k, "embedding_length_per_layer_input", m->n_ple);
    set_key_f32(k, "final_logit_softcapping", 7);
}

/* Unusual values, so that a value that is not read changes the results. */
static void set_arch_keys(Maker *k) {
    const RandomModel *m = k->m;
    bool is_routed = is_one_of(m->arch, "deepseek2 glm4moe");
    if (m->n_expert) {
        set_key_u32(k, "expert_count", m->n_expert);
        set_key_u32(k, "expert_used_count", m->n_expert_used);
        set_key_u32(k, "expert_feed_forward_length", m->n_ff_expert);
    }
    if (m->n_expert && is_one_of(m->arch, "lfm2moe")) {
        set_key_u32(k, "leading_dense_block_count", m->n_dense);
        set_key_u32(k, "expert_gating_func", m->has_sigmoid_router ? 2 : 1);
    }
    if (m->yarn_log_multiplier > 0) set_key_f32(k, "rope.scaling.yarn_log_multiplier", m->yarn_log_multiplier);
    if (m->yarn_attn_factor > 0) set_key_f32(k, "rope.scaling.yarn_attn_factor", m->yarn_attn_factor);
    if (m->expert_interval) set_key_u32(k, "interleave_moe_layer_step", m->expert_interval);
    if (m->temperature_scale > 0) set_key_f32(k, "attention.temperature_scale", m->temperature_scale);
    if (m->temperature_length) set_key_u32(k, "attention.temperature_length", m->temperature_length);
    if (m->n_ff_shared && !is_routed) set_key_u32(k, "expert_shared_feed_forward_length", m->n_ff_shared);
    if (m->kv_rank) set_latent_keys(k);
    if (is_routed) set_routed_keys(k);
    if (m->window) set_key_u32(k, "attention.sliding_window", m->window);
    if (m->n_conv && is_one_of(m->arch, "lfm2 lfm2moe")) set_key_u32(k, "shortconv.l_cache", m->n_conv);
    if (m->n_conv && is_one_of(m->arch, "granitehybrid mamba2")) {
        set_key_u32(k, "ssm.conv_kernel", m->n_conv);
        set_key_u32(k, "ssm.state_size", m->n_ssm_state);
        set_key_u32(k, "ssm.group_count", m->n_key_heads);
        set_key_u32(k, "ssm.time_step_rank", m->n_value_heads);
        set_key_u32(k, "ssm.inner_size", (int64_t)m->n_value_heads * m->delta_dim);
    }
    if (m->n_conv && is_one_of(m->arch, "qwen35 qwen35moe qwen3next")) {
        const int64_t n_rot = m->n_rot ? m->n_rot : head_dim_of(m);
        set_key_u32(k, "ssm.conv_kernel", m->n_conv);
        set_key_u32(k, "ssm.state_size", m->delta_dim);
        set_key_u32(k, "ssm.group_count", m->n_key_heads);
        set_key_u32(k, "ssm.time_step_rank", m->n_value_heads);
        set_key_u32(k, "ssm.inner_size", (int64_t)m->n_value_heads * m->delta_dim);
        set_key_u32(k, "full_attention_interval", m->attention_interval);
        set_sections(k, (int32_t)n_rot / 2);
    }
    if (is_one_of(m->arch, "gemma4")) set_gemma4_keys(k);
    if (is_one_of(m->arch, "gemma2")) {
        set_key_f32(k, "attn_logit_softcapping", 2.5);
        set_key_f32(k, "final_logit_softcapping", 7);
    }
    if (is_one_of(m->arch, "granitehybrid")) {
        char key[64];
        snprintf(key, sizeof key, "%s.rope.scaling.finetuned", m->arch);
        gguf_set_bool(k->w, key, m->rope_base > 0);
    }
    if (is_one_of(m->arch, "granite granitehybrid")) {
        set_key_f32(k, "embedding_scale", 3);
        set_key_f32(k, "residual_scale", 0.4);
        set_key_f32(k, "logit_scale", 1.2);
        set_key_f32(k, "attention.scale", 0.2);
    }
}

/* One number for all layers, or a list if some have a recurrent state. */
static void set_kv_heads(Maker *k) {
    const RandomModel *m = k->m;
    char key[64];
    int32_t *heads = keep(k, calloc((size_t)m->n_layer, sizeof *heads));
    if (m->kv_head_counts[0]) {
        set_key_list(k, "attention.head_count_kv", m->kv_head_counts);
        return;
    }
    if (!is_one_of(m->arch, "lfm2 lfm2moe granitehybrid")) {
        if (m->n_head) set_key_u32(k, "attention.head_count_kv", m->joins_kv_b ? m->n_head : m->n_head_kv);
        return;
    }
    for (int32_t i = 0; i < m->n_layer; i++) heads[i] = has_attention(m, i) ? m->n_head_kv : 0;
    snprintf(key, sizeof key, "%s.attention.head_count_kv", m->arch);
    gguf_set_i32s(k->w, key, heads, m->n_layer);
}

static void set_hparams(Maker *k) {
    const RandomModel *m = k->m;
    gguf_set_string(k->w, "general.architecture", m->arch, strlen(m->arch));
    set_key_u32(k, "block_count", m->n_layer + m->n_nextn);
    if (m->n_nextn) set_key_u32(k, "nextn_predict_layers", m->n_nextn);
    set_key_u32(k, "context_length", 2048);
    set_key_u32(k, "embedding_length", m->n_embd);
    if (m->ff_widths[0]) set_key_list(k, "feed_forward_length", m->ff_widths);
    else set_key_u32(k, "feed_forward_length", m->n_ff);
    if (m->head_counts[0]) set_key_list(k, "attention.head_count", m->head_counts);
    else set_key_u32(k, "attention.head_count", m->n_head);
    set_kv_heads(k);
    set_key_f32(k, "attention.layer_norm_rms_epsilon", m->n_conv ? 1e-6 : 1e-5);
    if (m->head_dim) {
        set_key_u32(k, "attention.key_length", m->head_dim);
        set_key_u32(k, "attention.value_length", m->head_dim);
    }
    if (m->n_rot) set_key_u32(k, "rope.dimension_count", m->n_rot);
    if (m->rope_base > 0) set_key_f32(k, "rope.freq_base", m->rope_base);
    if (m->rope_scaling) {
        char key[128];
        snprintf(key, sizeof key, "%s.rope.scaling.type", m->arch);
        gguf_set_string(k->w, key, m->rope_scaling, strlen(m->rope_scaling));
        set_key_f32(k, "rope.scaling.factor", m->rope_factor);
    }
    if (m->long_rope) set_key_f32(k, "rope.scaling.attn_factor", 1.19);
    if (m->rope_n_ctx_orig) set_key_u32(k, "rope.scaling.original_context_length", m->rope_n_ctx_orig);
    set_arch_keys(k);
}

enum { N_FIXED = 3 + 256 };

/* Pieces after the fixed ones: the space mark, letters, mark + letter, pairs, triples of letters. */
static void spell_piece(int32_t i, char *out, size_t n) {
    static const char letters[] = "etaoinshrdlcumwfgypbvkjxqz", mark[] = "\xe2\x96\x81";
    if (i == 0) snprintf(out, n, "%s", mark);
    else if ((i -= 1) < 26) snprintf(out, n, "%c", letters[i]);
    else if ((i -= 26) < 26) snprintf(out, n, "%s%c", mark, letters[i]);
    else if ((i -= 26) < 26 * 26) snprintf(out, n, "%c%c", letters[i % 26], letters[i / 26]);
    else {
        i -= 26 * 26;
        fr_assert(i < 26 * 26 * 26);
        snprintf(out, n, "%c%c%c", letters[i % 26], letters[i / 26 % 26], letters[i / 676]);
    }
}

static void set_vocabulary(Maker *k) {
    enum { PIECE = 16, NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6 };
    int32_t n = k->m->n_vocab;
    GgufString *pieces = keep(k, calloc((size_t)n, sizeof *pieces));
    float *scores = keep(k, calloc((size_t)n, sizeof *scores));
    int32_t *types = keep(k, calloc((size_t)n, sizeof *types));
    char *text = keep(k, calloc((size_t)n, PIECE));
    for (int32_t i = 0; i < n; i++) {
        static const char *const first[] = {"<unk>", "<s>", "</s>"}, *const marks[] = {"<fim_prefix>", "<fim_suffix>",
                                                                                       "<fim_middle>"};
        bool is_mark = k->m->fill_marks && i >= n - 3, is_control = i >= n - k->m->n_controls;
        char *piece = text + (size_t)i * PIECE;
        if (i < 3) snprintf(piece, PIECE, "%s", first[i]);
        else if (i < N_FIXED) snprintf(piece, PIECE, "<0x%02X>", (unsigned)(i - 3));
        else if (is_control) snprintf(piece, PIECE, "%s", k->m->controls[i - (n - k->m->n_controls)]);
        else if (is_mark) snprintf(piece, PIECE, "%s", marks[i - (n - 3)]);
        else spell_piece(i - N_FIXED, piece, PIECE);
        types[i] = i == 0 ? UNKNOWN : i < 3 || is_mark || is_control ? CONTROL : i < N_FIXED ? BYTE : NORMAL;
        scores[i] = i < N_FIXED ? 0 : (float)(N_FIXED - i);
        pieces[i] = (GgufString){piece, strlen(piece)};
    }
    gguf_set_string(k->w, "tokenizer.ggml.model", "llama", 5);
    gguf_set_strings(k->w, "tokenizer.ggml.tokens", pieces, n);
    gguf_set_f32s(k->w, "tokenizer.ggml.scores", scores, n);
    gguf_set_i32s(k->w, "tokenizer.ggml.token_type", types, n);
    if (k->m->n_controls) gguf_set_bool(k->w, "tokenizer.ggml.add_space_prefix", false);
    if (k->m->chat_template)
        gguf_set_string(k->w, "tokenizer.chat_template", k->m->chat_template, strlen(k->m->chat_template));
    if (k->m->n_suppressed) gguf_set_i32s(k->w, "tokenizer.ggml.suppress_tokens", k->m->suppressed, k->m->n_suppressed);
    gguf_set_u32(k->w, "tokenizer.ggml.unknown_token_id", 0);
    gguf_set_u32(k->w, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_u32(k->w, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_bool(k->w, "tokenizer.ggml.add_bos_token", true);
}

int random_model_write(const RandomModel *m, const char *path, fr_error *err) {
    Maker *k = calloc(1, sizeof *k);
    fr_assert(k);
    k->m = m;
    k->w = gguf_writer_new();
    fr_assert(k->w);
    set_hparams(k);
    if (m->n_vocab > N_FIXED) set_vocabulary(k);
    double output_std = 2.8 / sqrt(m->n_embd);
    add_matrix(k, "token_embd.weight", m->n_embd, m->n_vocab, m->tied ? output_std : 0.5);
    for (int32_t i = 0; i < m->n_layer; i++) add_layer(k, i);
    add_vector(k, is_one_of(m->arch, "lfm2 lfm2moe") ? "token_embd_norm.weight" : "output_norm.weight", m->n_embd, 1,
               0.1);
    if (!m->tied) add_matrix(k, "output.weight", m->n_embd, m->n_vocab, output_std);
    if (m->more_biases) add_vector(k, "output.bias", m->n_vocab, 0, 0.3);
    /* Without these layers, all others are the same. */
    for (int32_t i = 0; i < m->n_nextn; i++) add_layer(k, m->n_layer + i);
    if (m->rope_factors) add_rope_factors(k);
    if (m->long_rope) add_long_rope(k);
    if (m->n_ple) {
        int64_t n = (int64_t)m->n_layer * m->n_ple;
        add_matrix(k, "per_layer_token_embd.weight", n, m->n_vocab, 0.3);
        add_matrix(k, "per_layer_model_proj.weight", m->n_embd, n, 1 / sqrt(m->n_embd));
        add_vector(k, "per_layer_proj_norm.weight", m->n_ple, 1, 0.1);
    }
    int status = gguf_writer_finish(k->w, path, err);
    gguf_writer_free(k->w);
    for (int i = 0; i < k->n_kept; i++) free(k->kept[i]);
    free(k);
    return status;
}
