/* test_draft_mtp_routed.c - the drafter mtp with the layers of DeepSeek's and GLM's files: latent attention with a
 * cache of its own, or attention with biases and partial rotation; experts chosen by sigmoids with a bias, and shared
 * ones. Compares its trees with these layers in double precision, where keys and values of all heads are computed from
 * the latents, and steps with prompts; tests texts in the engine, and damaged files. */
#include "learned_rig.h"

#include "gguf/tensor_type.h"
#include "compute/backend.h"
#include "model_patch.h"
#include "plain_layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { H = 64, V = 300, N_HEAD = 4, KEY = 16, VALUE = 16, FF = 96, EXPERT_FF = 24, MAX_EXPERTS = 8, N_TEXT = 14 };

static const double EPS = 1e-5;

#define TARGET "build/mtp-routed-target.gguf"
#define SHAPE(a, kv) \
    .arch = a, .n_layer = 2, .n_embd = H, .n_head = N_HEAD, .n_head_kv = kv, .n_ff = FF, .n_vocab = V, .n_nextn = 1
#define LATENT(q, kv, plain, rot, value) \
    .q_rank = q, .kv_rank = kv, .plain_dim = plain, .n_rot = rot, .value_dim = value
#define EXPERTS(n, used) .n_dense = 1, .n_expert = n, .n_expert_used = used, .n_ff_expert = EXPERT_FF
#define SIGMOID .has_sigmoid_router = true, .divides_by_chosen = true

static const RandomModel models[] = {
    {SHAPE("deepseek2", 1), LATENT(20, 36, 10, 6, 14), EXPERTS(7, 3), .n_ff_shared = 48, SIGMOID, .expert_scale = 1.8,
     .seed = 1},
    {SHAPE("deepseek2", 1), LATENT(0, 28, 8, 8, 12), .joins_kv_b = true, .seed = 2}, /* no experts at all */
    {SHAPE("glm4moe", 2), .head_dim = KEY, .n_rot = 8, EXPERTS(8, 2), .n_ff_shared = 24, SIGMOID, .nextn_head = true,
     .expert_scale = 2.5, .seed = 3},
    {SHAPE("glm4moe", 1), .head_dim = KEY, .n_rot = 10, EXPERTS(6, 3), .n_ff_shared = 24, SIGMOID, .head_norms = true,
     .seed = 4},
};
enum { N_MODELS = sizeof models / sizeof *models };

static void write_model(const RandomModel *m, const char *path) {
    fr_error err;
    if (random_model_write(m, path, &err)) fail_msg("%s", err.message);
}

/* ---- the layers in double precision ------------------------------------------------------------------- */

typedef struct Plain {
    const RandomModel *m;
    const Gguf *g;
    const Rope *rope;
} Plain;

/* An entry, or a node of the tree; keys and values of each head. */
typedef struct Place {
    double log_p[V], feature[H], k[N_HEAD * KEY], v[N_HEAD * VALUE];
    const struct Place *before; /* the entry before, or the parent; NULL: none */
    int32_t position;
} Place;

/* Returns a tensor, which is F32 in these files; NULL: there is none. */
static const float *find(const Plain *p, const char *name) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s", p->m->n_layer, name);
    const GgufTensor *t = gguf_find_tensor(p->g, full);
    if (!t) t = gguf_find_tensor(p->g, name);
    if (t) assert_int_equal(t->type, TYPE_F32);
    return t ? t->data : NULL;
}

static void rotate(const Plain *p, double *x, int32_t position) {
    float cos_sin[KEY];
    int32_t n = p->m->n_rot;
    bool halves = p->m->kv_rank == 0;
    rope_angles(p->rope, position, cos_sin);
    for (int32_t i = 0; i < n / 2; i++) {
        double c = (double)cos_sin[2 * i], s = (double)cos_sin[2 * i + 1];
        double *at = halves ? x + i : x + 2 * i, *other = halves ? x + i + n / 2 : x + 2 * i + 1, a = *at, b = *other;
        *at = a * c - b * s;
        *other = a * s + b * c;
    }
}

/* The cache holds 16-bit floats. */
static void round_halves(double *x, int32_t n) {
    for (int32_t i = 0; i < n; i++) x[i] = (double)half_to_float(float_to_half((float)x[i]));
}

static void latent_heads(const Plain *p, const double *n, double *q, Place *out) {
    const RandomModel *m = p->m;
    const int32_t rank = m->kv_rank, plain = m->plain_dim, key = plain + m->n_rot, value = m->value_dim;
    double latent[64], low[64];
    const float *k_b = find(p, "attn_k_b.weight"), *v_b = find(p, "attn_v_b.weight"),
                *both = find(p, "attn_kv_b.weight");
    learned_rig_linear(find(p, "attn_kv_a_mqa.weight"), NULL, n, H, rank + m->n_rot, latent);
    plain_norm(find(p, "attn_kv_a_norm.weight"), latent, rank, EPS, latent);
    rotate(p, latent + rank, out->position);
    round_halves(latent, rank + m->n_rot);
    if (m->q_rank) {
        learned_rig_linear(find(p, "attn_q_a.weight"), NULL, n, H, m->q_rank, low);
        plain_norm(find(p, "attn_q_a_norm.weight"), low, m->q_rank, EPS, low);
        learned_rig_linear(find(p, "attn_q_b.weight"), NULL, low, m->q_rank, N_HEAD * key, q);
    } else {
        learned_rig_linear(find(p, "attn_q.weight"), NULL, n, H, N_HEAD * key, q);
    }
    for (int32_t h = 0; h < N_HEAD; h++) {
        rotate(p, q + h * key + plain, out->position);
        for (int32_t d = 0; d < key; d++) out->k[h * key + d] = d < plain ? 0 : latent[rank + d - plain];
        memset(out->v + h * value, 0, (size_t)value * sizeof *out->v);
        const float *of_head = both ? both + (int64_t)h * (plain + value) * rank : NULL;
        for (int32_t r = 0; r < rank; r++) {
            for (int32_t d = 0; d < plain; d++)
                out->k[h * key + d] += latent[r] *
                                       (double)(both ? of_head[d * rank + r] : k_b[(h * rank + r) * plain + d]);
            for (int32_t d = 0; d < value; d++)
                out->v[h * value + d] += latent[r] * (double)(both ? of_head[(plain + d) * rank + r]
                                                                   : v_b[(h * value + d) * rank + r]);
        }
    }
}

static void finish_heads(const Plain *p, const char *norm, double *x, int32_t n_heads, int32_t position) {
    for (int32_t h = 0; h < n_heads; h++) {
        if (p->m->head_norms) plain_norm(find(p, norm), x + h * KEY, KEY, EPS, x + h * KEY);
        rotate(p, x + h * KEY, position);
    }
}

static void ordinary_heads(const Plain *p, const double *n, double *q, Place *out) {
    int32_t n_kv = p->m->n_head_kv;
    double k[N_HEAD * KEY], v[N_HEAD * KEY];
    learned_rig_linear(find(p, "attn_q.weight"), find(p, "attn_q.bias"), n, H, N_HEAD * KEY, q);
    learned_rig_linear(find(p, "attn_k.weight"), find(p, "attn_k.bias"), n, H, n_kv * KEY, k);
    learned_rig_linear(find(p, "attn_v.weight"), find(p, "attn_v.bias"), n, H, n_kv * KEY, v);
    finish_heads(p, "attn_q_norm.weight", q, N_HEAD, out->position);
    finish_heads(p, "attn_k_norm.weight", k, n_kv, out->position);
    round_halves(k, n_kv * KEY);
    round_halves(v, n_kv * KEY);
    for (int32_t h = 0; h < N_HEAD; h++) {
        memcpy(out->k + h * KEY, k + h * n_kv / N_HEAD * KEY, KEY * sizeof *k);
        memcpy(out->v + h * KEY, v + h * n_kv / N_HEAD * KEY, KEY * sizeof *v);
    }
}

static void attend(const Place *p, const double *q, int32_t key, int32_t value, double *out) {
    memset(out, 0, N_HEAD * VALUE * sizeof *out);
    for (int32_t h = 0; h < N_HEAD; h++) {
        double sum = 0;
        for (const Place *at = p; at; at = at->before) {
            double score = 0;
            for (int32_t i = 0; i < key; i++) score += q[h * key + i] * at->k[h * key + i] / sqrt(key);
            sum += exp(score);
            for (int32_t i = 0; i < value; i++) out[h * value + i] += exp(score) * at->v[h * value + i];
        }
        for (int32_t i = 0; i < value; i++) out[h * value + i] /= sum;
    }
}

/* out += weight * down (silu(gate n) * (up n)), of expert e of tensors with that ending. */
static void add_gated(const Plain *p, const char *ending, int32_t e, int32_t n_ff, double weight, const double *n,
                      double *out) {
    char name[3][40];
    double y[H];
    snprintf(name[0], sizeof name[0], "ffn_gate%s.weight", ending);
    snprintf(name[1], sizeof name[1], "ffn_up%s.weight", ending);
    snprintf(name[2], sizeof name[2], "ffn_down%s.weight", ending);
    int64_t at = (int64_t)e * n_ff * H;
    plain_feed_forward((PlainFeedForward){.gate = find(p, name[0]) + at,
                                          .up = find(p, name[1]) + at,
                                          .down = find(p, name[2]) + at,
                                          .n_embd = H,
                                          .n_ff = n_ff},
                       n, y);
    for (int32_t i = 0; i < H; i++) out[i] += weight * y[i];
}

static void add_feed_forward(const Plain *p, const double *n, double *out) {
    const RandomModel *m = p->m;
    double probability[MAX_EXPERTS], sum = 0;
    int32_t chosen[MAX_EXPERTS];
    bool taken[MAX_EXPERTS] = {false};
    if (m->n_expert == 0) {
        add_gated(p, "", 0, FF, 1, n, out);
        return;
    }
    learned_rig_linear(find(p, "ffn_gate_inp.weight"), NULL, n, H, m->n_expert, probability);
    for (int32_t e = 0; e < m->n_expert; e++) probability[e] = 1 / (1 + exp(-probability[e]));
    for (int32_t i = 0; i < m->n_expert_used; i++) {
        int32_t best = -1;
        const float *bias = find(p, "exp_probs_b.bias");
        for (int32_t e = 0; e < m->n_expert; e++)
            if (!taken[e] && (best < 0 || probability[e] + (double)bias[e] > probability[best] + (double)bias[best]))
                best = e;
        chosen[i] = best, taken[best] = true, sum += probability[best];
    }
    double scale = m->expert_scale > 0 ? m->expert_scale : 1;
    for (int32_t i = 0; i < m->n_expert_used; i++)
        add_gated(p, "_exps", chosen[i], EXPERT_FF, scale * probability[chosen[i]] / sum, n, out);
    add_gated(p, "_shexp", 0, m->n_ff_shared, 1, n, out);
}

static void make_place(const Plain *p, const Place *before, int32_t token, const double *hidden, Place *out) {
    const RandomModel *m = p->m;
    const float *embedding = find(p, "nextn.embed_tokens.weight"), *head = find(p, "nextn.shared_head_head.weight"),
                *ffn_norm = find(p, m->kv_rank ? "ffn_norm.weight" : "post_attention_norm.weight");
    double pair[2 * H], x[H], n[H], y[H], q[N_HEAD * KEY], attended[N_HEAD * VALUE];
    int32_t key = m->kv_rank ? m->plain_dim + m->n_rot : KEY, value = m->kv_rank ? m->value_dim : KEY;
    if (!embedding) embedding = find(p, "token_embd.weight");
    if (!head) head = find(p, "output.weight");
    out->before = before;
    out->position = before ? before->position + 1 : 0;
    for (int32_t i = 0; i < H; i++) pair[i] = (double)embedding[token * H + i];
    plain_norm(find(p, "nextn.enorm.weight"), pair, H, EPS, pair);
    plain_norm(find(p, "nextn.hnorm.weight"), hidden, H, EPS, pair + H);
    learned_rig_linear(find(p, "nextn.eh_proj.weight"), NULL, pair, 2 * H, H, x);
    plain_norm(find(p, "attn_norm.weight"), x, H, EPS, n);
    if (m->kv_rank) latent_heads(p, n, q, out);
    else ordinary_heads(p, n, q, out);
    attend(out, q, key, value, attended);
    learned_rig_linear(find(p, "attn_output.weight"), NULL, attended, N_HEAD * value, H, y);
    for (int32_t i = 0; i < H; i++) x[i] += y[i];
    plain_norm(ffn_norm, x, H, EPS, n);
    add_feed_forward(p, n, x);
    plain_norm(find(p, "nextn.shared_head_norm.weight"), x, H, EPS, out->feature);
    learned_rig_linear(head, NULL, out->feature, H, V, out->log_p);
    learned_rig_log_softmax(out->log_p, V);
}

/* ---- trees -------------------------------------------------------------------------------------------- */

static void follow(const void *plain, const void *before, int32_t token, void *place) {
    make_place(plain, before, token, ((const Place *)before)->feature, place);
}

static void check_tree(LearnedReader *r, const Plain *plain, int32_t depth, int32_t top) {
    enum { BUDGET = 40 };
    static Place entries[N_TEXT];
    static Tree want, got;
    int32_t text[N_TEXT];
    char spec[64];
    snprintf(spec, sizeof spec, "mtp:depth=%d,top=%d", depth, top);
    Drafter *d = learned_rig_open_drafter(r, spec, 1);
    rig_tokens(plain->m->seed + 70, V, text, N_TEXT);
    learned_rig_feed(r, d, 0, text, N_TEXT, 5);
    for (int32_t t = 0; t < N_TEXT - 1; t++) {
        double hidden[H];
        for (int32_t c = 0; c < H; c++) hidden[c] = (double)executor_hidden(r->executor, t)[c];
        make_place(plain, t ? &entries[t - 1] : NULL, text[t + 1], hidden, &entries[t]);
    }
    const Place *root = &entries[N_TEXT - 2];
    learned_rig_search(&(LearnedSearch){V, depth, top, BUDGET, follow, sizeof *root, plain, root}, text[N_TEXT - 1],
                       &want);
    rig_propose(d, 0, text[N_TEXT - 1], BUDGET, V, &got);
    learned_rig_assert_alike(&want, &got, 5e-3, plain->m->arch);
    d->class->end(d, 0);
    drafter_close(d);
}

static void trees_are_those_of_the_plain_layer(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++)
        for (int b = 0; b < 2; b++) {
            Gguf *g = rig_random_gguf(&models[m]);
            Weights *target = b ? rig_weights_in(&backend_reference, g) : rig_weights(g, NULL);
            const Plain plain = {.m = &models[m], .g = g, .rope = &target->model->ropes[0]};
            LearnedReader reader;
            learned_rig_open_reader(&reader, target);
            check_tree(&reader, &plain, 1, 5);
            check_tree(&reader, &plain, 4, 3);
            learned_rig_close_reader(&reader);
            rig_weights_close(target);
            gguf_close(g);
        }
}

/* ---- sequences, texts, files ---------------------------------------------------------------------------- */

static void steps_lead_where_prompts_lead(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m += 2) {
        Gguf *g = rig_random_gguf(&models[m]);
        Weights *target = rig_weights(g, NULL);
        learned_rig_check_step(target, "mtp");
        learned_rig_check_together(target, "mtp:depth=3,top=4");
        rig_weights_close(target);
        gguf_close(g);
    }
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m += 2) {
        write_model(&models[m], TARGET);
        learned_rig_check_lossless(TARGET, "mtp:depth=3,top=6");
    }
}

/* The model itself runs; the tensor `name` gets another name of the same length. */
static void expect_refusal(const RandomModel *m, const char *name, const char *new_name, const char *says) {
    ModelPatch p;
    size_t n = strlen(name), at = 0;
    write_model(m, TARGET);
    model_patch_open(&p, TARGET);
    while (at + n < p.n && memcmp(p.bytes + at, name, n) != 0) at++;
    assert_true(at + n < p.n && strlen(new_name) == n);
    memcpy(p.bytes + at, new_name, n);
    model_patch_write(&p, TARGET);
    model_patch_close(&p);
    Gguf *g = rig_gguf(TARGET);
    Weights *target = rig_weights(g, NULL);
    learned_rig_check_refused(target, "mtp", FR_ERR_FORMAT, says);
    rig_weights_close(target);
    gguf_close(g);
}

static void damaged_layers_are_refused(void **state) {
    (void)state;
    expect_refusal(&models[0], "blk.2.attn_k_b.weight", "blk.2.attn_k_x.weight", "blk.2.attn_k_b.weight is missing");
    expect_refusal(&models[0], "blk.2.attn_kv_a_norm.weight", "blk.2.attn_kv_a_nurm.weight",
                   "blk.2.attn_kv_a_norm.weight is missing");
    expect_refusal(&models[0], "blk.2.ffn_up_shexp.weight", "blk.2.ffn_up_shexq.weight",
                   "blk.2.ffn_up_shexp.weight is missing");
    expect_refusal(&models[1], "blk.2.attn_kv_b.weight", "blk.2.attn_kv_c.weight", "blk.2.attn_k_b.weight is missing");
    expect_refusal(&models[2], "blk.2.ffn_gate_inp.weight", "blk.2.ffn_gate_inq.weight",
                   "blk.2.ffn_gate_inp.weight is missing");
    expect_refusal(&models[2], "blk.2.post_attention_norm.weight", "blk.2.post_attention_nurm.weight",
                   "blk.2.post_attention_norm.weight is missing");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_the_plain_layer),
        cmocka_unit_test(steps_lead_where_prompts_lead),
        cmocka_unit_test(damaged_layers_are_refused),
        cmocka_unit_test(the_text_is_the_plain_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
