/* test_draft_hydra.c - unit tests of the drafter hydra with random weights: compares its trees with its heads, and with
 * the layer of Hydra++, in double precision, each node by itself over its own path; compares steps with prompts; and
 * tests the text in the engine. */
#include "learned_rig.h"
#include "plain_layer.h"

#include "gguf/tensor_type.h"
#include "tree/tree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/hydra-target.gguf"

enum { H = 64, V = 300, MAX_HEADS = 4, MAX_BLOCKS = 3, N_TEXT = 14, N_TOGETHER = 3 };
enum { N_HEAD = 4, N_KV = 2, DIM = 16, KV = N_KV * DIM, FF = 80 }; /* of the layer */

static Gguf *target_gguf;
static Weights *target;
static float *embeddings, *head_of_target; /* [V][H] */

static const struct Shape {
    const char *path;
    int32_t n_heads, n_blocks;
    bool own, biases; /* biases: also of `skip` and `output`, as in imported files */
    bool has_layer;   /* Hydra++ */
    TensorType type;
} shapes[] = {
    {"build/hydra-0.gguf", 4, 1, true, false, false, TYPE_F32},
    {"build/hydra-1.gguf", 2, 3, false, false, false, TYPE_F16},
    {"build/hydra-2.gguf", 2, 2, true, true, false, TYPE_Q8_0},
    {"build/hydra-3.gguf", 3, 2, true, true, true, TYPE_F32},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* The weights in the file of a shape. */
typedef struct FileWeights {
    LearnedRig rig;
    float *in[MAX_HEADS], *in_bias[MAX_HEADS], *skip[MAX_HEADS], *output[MAX_HEADS];
    float *skip_bias[MAX_HEADS], *output_bias[MAX_HEADS];              /* or NULL */
    float *block[MAX_HEADS][MAX_BLOCKS], *bias[MAX_HEADS][MAX_BLOCKS]; /* from 1 on */
    float *attn_norm, *q, *k, *v, *o, *ffn_norm, *gate, *up, *down, *output_norm;
} FileWeights;
static FileWeights weights[N_SHAPES];

static float *add_tensor(LearnedRig *r, int32_t head, const char *name, TensorType type, int64_t n_in, int64_t n_out,
                         double std) {
    char full[64];
    snprintf(full, sizeof full, "hydra.%d.%s", head, name);
    return learned_rig_tensor(r, full, type, n_in, n_out, std);
}

static void add_layer(FileWeights *w, TensorType type) {
    LearnedRig *r = &w->rig;
    gguf_set_u32(r->w, DRAFTER_KEY("hydra.prefix.feed_forward_length"), FF);
    w->attn_norm = learned_rig_tensor(r, "hydra.prefix.attn_norm.weight", TYPE_F32, H, 0, 1);
    w->q = learned_rig_tensor(r, "hydra.prefix.attn_q.weight", type, H, H, 0.12);
    w->k = learned_rig_tensor(r, "hydra.prefix.attn_k.weight", type, H, KV, 0.12);
    w->v = learned_rig_tensor(r, "hydra.prefix.attn_v.weight", type, H, KV, 0.12);
    w->o = learned_rig_tensor(r, "hydra.prefix.attn_output.weight", type, H, H, 0.12);
    w->ffn_norm = learned_rig_tensor(r, "hydra.prefix.ffn_norm.weight", TYPE_F32, H, 0, 1);
    w->gate = learned_rig_tensor(r, "hydra.prefix.ffn_gate.weight", type, H, FF, 0.1);
    w->up = learned_rig_tensor(r, "hydra.prefix.ffn_up.weight", type, H, FF, 0.1);
    w->down = learned_rig_tensor(r, "hydra.prefix.ffn_down.weight", TYPE_F32, FF, H, 0.1);
    w->output_norm = learned_rig_tensor(r, "hydra.prefix.output_norm.weight", TYPE_F32, H, 0, 1);
}

static void write_drafter(const struct Shape *s, FileWeights *w, uint64_t seed) {
    LearnedRig *r = &w->rig;
    char name[32];
    learned_rig_begin(r, "hydra", target, seed);
    gguf_set_u32(r->w, DRAFTER_KEY("hydra.head_count"), (uint32_t)s->n_heads);
    gguf_set_u32(r->w, DRAFTER_KEY("hydra.block_count"), (uint32_t)s->n_blocks);
    gguf_set_string(r->w, DRAFTER_KEY("hydra.output"), s->own ? "own" : "target", s->own ? 3 : 6);
    for (int32_t i = 0; i < s->n_heads; i++) {
        w->in[i] = add_tensor(r, i, "in.weight", s->type, (i + 2) * H, H, 0.12);
        w->in_bias[i] = add_tensor(r, i, "in.bias", TYPE_F32, H, 0, 0.1);
        w->skip[i] = add_tensor(r, i, "skip.weight", s->type, (i + 2) * H, H, 0.1);
        for (int32_t k = 1; k < s->n_blocks; k++) {
            snprintf(name, sizeof name, "block.%d.weight", k);
            w->block[i][k] = add_tensor(r, i, name, s->type, H, H, 0.15);
            snprintf(name, sizeof name, "block.%d.bias", k);
            w->bias[i][k] = add_tensor(r, i, name, TYPE_F32, H, 0, 0.1);
        }
        if (s->own) w->output[i] = add_tensor(r, i, "output.weight", s->type, H, V, 0.3);
        if (s->biases) w->skip_bias[i] = add_tensor(r, i, "skip.bias", TYPE_F32, H, 0, 0.3);
        if (s->biases) w->output_bias[i] = add_tensor(r, i, "output.bias", TYPE_F32, V, 0, 1);
    }
    if (s->has_layer) add_layer(w, s->type);
    learned_rig_write(r, s->path);
}

static float *all_rows(const char *name) {
    const GgufTensor *t = gguf_find_tensor(target_gguf, name);
    float *x = malloc(sizeof *x * V * H);
    blocks_dequantize(t->type, t->data, V * H, x);
    return x;
}

static int open_all(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 11);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    embeddings = all_rows("token_embd.weight");
    head_of_target = all_rows("output.weight");
    for (size_t i = 0; i < N_SHAPES; i++) write_drafter(&shapes[i], &weights[i], 70 + i);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) learned_rig_free(&weights[i].rig);
    free(embeddings);
    free(head_of_target);
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* ---- the heads, and the layer, in double precision ------------------------------------------------ */

/* One entry of the layer: its keys and values, and what the heads read. */
static void make_entry(const FileWeights *w, const PlainKv *before, const float *hidden, PlainKv *kv, double *state) {
    static const PlainHeads heads = {.n_head = N_HEAD, .n_kv = N_KV, .dim = DIM};
    double x[H], normed[H], q[H], attended[H], y[H];
    const Rope *rope = &target->model->ropes[0];
    plain_kv_begin(kv, before);
    for (int32_t i = 0; i < H; i++) x[i] = (double)hidden[i];
    plain_norm(w->attn_norm, x, H, 1e-5, normed);
    learned_rig_linear(w->q, NULL, normed, H, H, q);
    learned_rig_linear(w->k, NULL, normed, H, KV, kv->k);
    learned_rig_linear(w->v, NULL, normed, H, KV, kv->v);
    plain_rotate_pairs(rope, q, N_HEAD, DIM, kv->position);
    plain_rotate_pairs(rope, kv->k, N_KV, DIM, kv->position);
    plain_kv_round(kv, heads);
    plain_attend(heads, kv, q, attended);
    learned_rig_linear(w->o, NULL, attended, H, H, y);
    for (int32_t i = 0; i < H; i++) x[i] += y[i];
    plain_norm(w->ffn_norm, x, H, 1e-5, y);
    plain_feed_forward((PlainFeedForward){.gate = w->gate, .up = w->up, .down = w->down, .n_embd = H, .n_ff = FF}, y,
                       y);
    for (int32_t i = 0; i < H; i++) x[i] += y[i];
    plain_norm(w->output_norm, x, H, 1e-5, state);
}

/* Computes what the heads read after a text of n tokens of which the target has read all but the last. */
static void find_state(const struct Shape *s, const FileWeights *w, const Executor *executor, int32_t n,
                       double state[H]) {
    static PlainKv kv[N_TEXT];
    const float *last = executor_hidden(executor, n - 2);
    for (int32_t i = 0; i < H; i++) state[i] = (double)last[i];
    for (int32_t t = 0; s->has_layer && t < n - 1; t++)
        make_entry(w, t ? &kv[t - 1] : NULL, executor_hidden(executor, t), &kv[t], state);
}

/* log p of every token below a path, path[0] the pending token, path[depth] the last: the distribution of head
 * `depth`. */
static void dist_below(const struct Shape *s, const FileWeights *w, const double *state, const int32_t *path,
                       int32_t depth, double *log_p) {
    double c[(MAX_HEADS + 1) * H], x[H], y[H];
    int64_t wide = (depth + 2) * H;
    for (int32_t i = 0; i < H; i++) c[i] = state[i];
    for (int32_t k = 0; k <= depth; k++)
        for (int32_t i = 0; i < H; i++) c[(k + 1) * H + i] = (double)embeddings[path[k] * H + i];
    learned_rig_linear(w->skip[depth], w->skip_bias[depth], c, wide, H, x);
    learned_rig_linear(w->in[depth], w->in_bias[depth], c, wide, H, y);
    for (int32_t i = 0; i < H; i++) x[i] += learned_rig_silu(y[i]);
    for (int32_t k = 1; k < s->n_blocks; k++) {
        learned_rig_linear(w->block[depth][k], w->bias[depth][k], x, H, H, y);
        for (int32_t i = 0; i < H; i++) x[i] += learned_rig_silu(y[i]);
    }
    learned_rig_linear(s->own ? w->output[depth] : head_of_target, w->output_bias[depth], x, H, V, log_p);
    learned_rig_log_softmax(log_p, V);
}

typedef struct Path {
    int32_t tokens[MAX_HEADS + 1]; /* the pending token first */
    double log_p;
} Path;
static int better_path(const void *a, const void *b) {
    double x = ((const Path *)a)->log_p, y = ((const Path *)b)->log_p;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The `top` best tokens below each of the `top` best paths of every length. */
static void plain_tree(const struct Shape *s, const FileWeights *w, const double *state, int32_t pending, int32_t top,
                       int32_t budget, Tree *out) {
    static Path found[TREE_MAX_NODES];
    Path level[16] = {{.tokens = {pending}}};
    int32_t n_level = 1;
    tree_reset(out, pending);
    for (int32_t depth = 0; depth < s->n_heads; depth++) {
        int32_t n = 0;
        for (int32_t p = 0; p < n_level; p++) {
            Path all[V];
            double log_p[V];
            dist_below(s, w, state, level[p].tokens, depth, log_p);
            for (int32_t v = 0; v < V; v++) {
                all[v] = level[p];
                all[v].tokens[depth + 1] = v;
                all[v].log_p += log_p[v];
            }
            qsort(all, V, sizeof *all, better_path);
            for (int32_t k = 0; k < top; k++) found[n++] = all[k];
        }
        qsort(found, (size_t)n, sizeof *found, better_path);
        for (int32_t i = 0; i < n; i++) {
            int32_t node = 0;
            for (int32_t k = 1; k <= depth; k++) assert_true((node = tree_child(out, node, found[i].tokens[k])) > 0);
            tree_add(out, node, found[i].tokens[depth + 1], (float)exp(found[i].log_p), 0);
        }
        for (n_level = 0; n_level < top && n_level < n; n_level++) level[n_level] = found[n_level];
    }
    union_prune(out, budget);
}

/* Three sequences in one call: each gets the reference tree, which is also the tree that it gets by itself. */
static void trees_are_those_of_the_plain_heads(void **state) {
    (void)state;
    static const int32_t tops[] = {1, 3, 8}, budgets[][N_TOGETHER] = {{60, 2, 17}, {1, 9, 4}};
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    static Tree want[N_TOGETHER], got[N_TOGETHER], alone;
    static int32_t text[N_TOGETHER][N_TEXT];
    for (size_t s = 0; s < N_SHAPES; s++)
        for (size_t k = 0; k < sizeof tops / sizeof *tops; k++) {
            const int32_t *budget = budgets[k % 2];
            char spec[128];
            fr_error err;
            snprintf(spec, sizeof spec, "hydra:file=%s,top=%d", shapes[s].path, tops[k]);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 4);
            for (int32_t i = 0; i < N_TOGETHER; i++) {
                int32_t n = N_TEXT - 2 * i;
                rig_tokens(80 + 10 * s + (uint64_t)i, V, text[i], n);
                double read[H];
                learned_rig_feed(&reader, d, i + 1, text[i], n, 3 + i);
                find_state(&shapes[s], &weights[s], reader.executor, n, read);
                plain_tree(&shapes[s], &weights[s], read, text[i][n - 1], tops[k], budget[i], &want[i]);
                tree_reset(&got[i], text[i][n - 1]);
            }
            Tree *trees[] = {&got[2], &got[0], &got[1]};
            if (d->class->propose(d, (int32_t[]){3, 1, 2}, (int32_t[]){budget[2], budget[0], budget[1]}, trees, 3,
                                  &err))
                fail_msg("%s", err.message);
            for (int32_t i = 0; i < N_TOGETHER; i++) {
                int32_t pending = want[i].nodes[0].token;
                if (tree_validate(&got[i], pending, V, budget[i] + 1, &err)) fail_msg("%s", err.message);
                learned_rig_assert_alike(&want[i], &got[i], 2e-3, spec);
                rig_propose(d, i + 1, pending, budget[i], V, &alone);
                rig_assert_same_tree(&got[i], &alone, spec);
                d->class->end(d, i + 1);
            }
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    const struct Bad {
        uint32_t n_heads, n_blocks;
        int64_t in_width;
        const char *options, *words;
    } bad[] = {
        {1, 0, 2 * H, "", "hydra.block_count is 0 but must be from 1 to 8"},
        {17, 1, 2 * H, "", "hydra.head_count is 17 but must be from 1 to 16"},
        {1, 1, 3 * H, "", "tensor hydra.0.in.weight has the wrong shape: 192 x 64 instead of 128 x 64"},
        {2, 1, 2 * H, "", "tensor hydra.1.in.weight is missing"},
        {1, 1, 2 * H, ",top=17", "'top=17' must be an integer from 1 to 16"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        LearnedRig r;
        char spec[128];
        learned_rig_begin(&r, "hydra", target, 5);
        gguf_set_u32(r.w, DRAFTER_KEY("hydra.head_count"), bad[i].n_heads);
        gguf_set_u32(r.w, DRAFTER_KEY("hydra.block_count"), bad[i].n_blocks);
        gguf_set_string(r.w, DRAFTER_KEY("hydra.output"), "target", 6);
        add_tensor(&r, 0, "in.weight", TYPE_F32, bad[i].in_width, H, 1);
        add_tensor(&r, 0, "in.bias", TYPE_F32, H, 0, 1);
        add_tensor(&r, 0, "skip.weight", TYPE_F32, 2 * H, H, 1);
        learned_rig_write(&r, "build/hydra-bad.gguf");
        snprintf(spec, sizeof spec, "hydra:file=build/hydra-bad.gguf%s", bad[i].options);
        learned_rig_check_refused(target, spec, *bad[i].options ? FR_ERR_ARGUMENT : FR_ERR_FORMAT, bad[i].words);
        learned_rig_free(&r);
    }
    /* 4 heads of 16 nodes with 16 children each */
    learned_rig_check_refused(target, "hydra:file=build/hydra-0.gguf,top=16", FR_ERR_ARGUMENT, "make top smaller");
}

static void a_step_leads_where_the_prompt_leads(void **state) {
    (void)state;
    learned_rig_check_step(target, "hydra:file=build/hydra-0.gguf");
    learned_rig_check_step(target, "hydra:file=build/hydra-3.gguf");
    learned_rig_check_idle(target, "hydra:file=build/hydra-3.gguf");
}

static void sequences_draft_together_as_each_by_itself(void **state) {
    (void)state;
    learned_rig_check_together(target, "hydra:file=build/hydra-3.gguf,top=4");
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    learned_rig_check_lossless(TARGET, "hydra:file=build/hydra-0.gguf,top=10");
    learned_rig_check_lossless(TARGET, "hydra:file=build/hydra-1.gguf,top=16");
    learned_rig_check_lossless(TARGET, "hydra:file=build/hydra-3.gguf,top=6");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_the_plain_heads),
        cmocka_unit_test(what_does_not_fit_is_refused),
        cmocka_unit_test(a_step_leads_where_the_prompt_leads),
        cmocka_unit_test(sequences_draft_together_as_each_by_itself),
        cmocka_unit_test(the_text_is_the_plain_one),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
