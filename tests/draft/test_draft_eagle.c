/* test_draft_eagle.c - unit tests of the drafter eagle with random weights: compares its trees with its layer in double
 * precision, each node by itself over its own path, and steps with prompts; and tests the text in the engine. */
#include "learned_rig.h"
#include "plain_layer.h"

#include "gguf/tensor_type.h"
#include "draft/learned/eagle_layer.h"
#include "tree/tree_shapes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/eagle-target.gguf"

enum { H = 64, V = 300, N_HEAD = 4, N_KV = 2, DIM = 16, KV = N_KV * DIM, FF = 80, N_TEXT = 14 };

static Gguf *target_gguf;
static Weights *target;
static float *embeddings, *output; /* [V][H] */

static const struct {
    const char *path;
    TensorType type;
    int32_t rank; /* rank of its token info; 0: none */
} files[] = {
    {"build/eagle-0.gguf", TYPE_F32, 0}, {"build/eagle-1.gguf", TYPE_F16, 0}, {"build/eagle-2.gguf", TYPE_F32, 24}};
enum { N_FILES = sizeof files / sizeof *files };

typedef struct FileWeights {
    LearnedRig rig;
    float *fc, *fc_bias, *q, *k, *v, *o, *norm, *gate, *up, *down;
    LearnedRigInfo info;
} FileWeights;
static FileWeights weights[N_FILES];

static void write_drafter(int i) {
    FileWeights *w = &weights[i];
    LearnedRig *r = &w->rig;
    TensorType type = files[i].type;
    learned_rig_begin(r, "eagle", target, 30 + (uint64_t)i);
    gguf_set_u32(r->w, DRAFTER_KEY("eagle.feed_forward_length"), FF);
    w->fc = learned_rig_tensor(r, "eagle.fc.weight", type, 2 * H, H, 0.07);
    w->fc_bias = learned_rig_tensor(r, "eagle.fc.bias", TYPE_F32, H, 0, 0.1);
    w->q = learned_rig_tensor(r, "eagle.attn_q.weight", type, H, H, 0.12);
    w->k = learned_rig_tensor(r, "eagle.attn_k.weight", type, H, KV, 0.12);
    w->v = learned_rig_tensor(r, "eagle.attn_v.weight", type, H, KV, 0.12);
    w->o = learned_rig_tensor(r, "eagle.attn_output.weight", type, H, H, 0.12);
    w->norm = learned_rig_tensor(r, "eagle.ffn_norm.weight", TYPE_F32, H, 0, 1);
    w->gate = learned_rig_tensor(r, "eagle.ffn_gate.weight", type, H, FF, 0.1);
    w->up = learned_rig_tensor(r, "eagle.ffn_up.weight", type, H, FF, 0.1);
    w->down = learned_rig_tensor(r, "eagle.ffn_down.weight", TYPE_F32, FF, H, 0.1);
    if (files[i].rank) w->info = learned_rig_info(r, "eagle", type, H, files[i].rank, V);
    learned_rig_write(r, files[i].path);
}

static float *all_rows(const GgufTensor *t) {
    float *x = malloc(sizeof *x * V * H);
    blocks_dequantize(t->type, t->data, V * H, x);
    return x;
}

static int open_all(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 7);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    embeddings = all_rows(gguf_find_tensor(target_gguf, "token_embd.weight"));
    output = all_rows(gguf_find_tensor(target_gguf, "output.weight"));
    for (int i = 0; i < N_FILES; i++) write_drafter(i);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < N_FILES; i++) learned_rig_free(&weights[i].rig);
    free(embeddings);
    free(output);
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* ---- the layer in double precision ------------------------------------------------------------------ */

/* An entry, or a node of the tree. */
typedef struct Place {
    double log_p[V], feature[H];
    PlainKv kv; /* after the entry before, or the parent */
} Place;

static const PlainHeads heads = {.n_head = N_HEAD, .n_kv = N_KV, .dim = DIM};

static void make_place(const FileWeights *w, const Place *before, int32_t token, const double *feature, Place *out) {
    double pair[2 * H], x[H], q[H], attended[H], y[H];
    const Rope *rope = &target->model->ropes[0];
    plain_kv_begin(&out->kv, before ? &before->kv : NULL);
    for (int32_t i = 0; i < H; i++) pair[i] = (double)embeddings[token * H + i], pair[H + i] = feature[i];
    learned_rig_linear(w->fc, w->fc_bias, pair, 2 * H, H, x);
    learned_rig_linear(w->q, NULL, x, H, H, q);
    learned_rig_linear(w->k, NULL, x, H, KV, out->kv.k);
    learned_rig_linear(w->v, NULL, x, H, KV, out->kv.v);
    plain_rotate_pairs(rope, q, N_HEAD, DIM, out->kv.position);
    plain_rotate_pairs(rope, out->kv.k, N_KV, DIM, out->kv.position);
    plain_kv_round(&out->kv, heads);
    plain_attend(heads, &out->kv, q, attended);
    learned_rig_linear(w->o, NULL, attended, H, H, y);
    for (int32_t i = 0; i < H; i++) x[i] += y[i];
    plain_norm(w->norm, x, H, 1e-5, y);
    plain_feed_forward((PlainFeedForward){.gate = w->gate, .up = w->up, .down = w->down, .n_embd = H, .n_ff = FF}, y,
                       y);
    for (int32_t i = 0; i < H; i++) out->feature[i] = x[i] + y[i];
    learned_rig_linear(output, NULL, out->feature, H, V, out->log_p);
    if (w->info.rank) {
        double info[V];
        learned_rig_run_info(&w->info, embeddings + token * H, info);
        for (int32_t v = 0; v < V; v++) out->log_p[v] += info[v];
    }
    learned_rig_log_softmax(out->log_p, V);
}

static void follow(const void *plain, const void *before, int32_t token, void *place) {
    make_place(plain, before, token, ((const Place *)before)->feature, place);
}

static void plain_tree(const FileWeights *w, const Place *root, int32_t pending, int32_t depth, int32_t top,
                       int32_t budget, Tree *out) {
    learned_rig_search(&(LearnedSearch){V, depth, top, budget, follow, sizeof *root, w, root}, pending, out);
}

/* The tokens of the ranks in a shape that is fixed in advance. */
static void plain_static_tree(const FileWeights *w, const Place *root, int32_t pending, int32_t depth, int32_t top,
                              int32_t budget, Tree *out) {
    static StaticTree shape;
    static Place places[TREE_MAX_NODES];
    double chance[16 * 16], log_p[TREE_MAX_NODES] = {0};
    static_tree_prior(chance, depth, top);
    static_tree_build(&shape, chance, depth, top, top);
    tree_reset(out, pending);
    places[0] = *root;
    for (int32_t i = 1; i < shape.n && i <= budget; i++) {
        const StaticNode *x = &shape.nodes[i];
        const Place *above = &places[x->parent];
        int32_t tokens[16];
        learned_rig_best_tokens(above->log_p, V, top, tokens);
        log_p[i] = log_p[x->parent] + above->log_p[tokens[x->rank]];
        assert_int_equal(tree_add(out, x->parent, tokens[x->rank], (float)exp(log_p[i]), 0), i);
        make_place(w, above, tokens[x->rank], above->feature, &places[i]);
    }
}

static void trees_are_those_of_the_plain_layer(void **state) {
    (void)state;
    static const struct { int32_t depth, top; } shapes[] = {{1, 4}, {4, 1}, {3, 3}, {5, 8}, {3, 3}, {5, 8}};
    static const int32_t budgets[] = {60, 2, 17};
    static Place entries[3][N_TEXT];
    static Tree want[3];
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    for (int f = 0; f < N_FILES; f++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            char spec[128];
            bool is_static = k > 3;
            snprintf(spec, sizeof spec, "eagle:file=%s,tree=%s,depth=%d,top=%d", files[f].path,
                     is_static ? "static" : "dynamic", shapes[k].depth, shapes[k].top);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 4);
            for (int32_t i = 0; i < 3; i++) {
                int32_t text[N_TEXT], n = N_TEXT - 2 * i;
                rig_tokens(50 + (uint64_t)i, V, text, n);
                learned_rig_feed(&reader, d, i + 1, text, n, 3 + i);
                for (int32_t t = 0; t < n - 1; t++) {
                    double hidden[H];
                    for (int32_t c = 0; c < H; c++) hidden[c] = (double)executor_hidden(reader.executor, t)[c];
                    make_place(&weights[f], t ? &entries[i][t - 1] : NULL, text[t + 1], hidden, &entries[i][t]);
                }
                (is_static ? plain_static_tree : plain_tree)(&weights[f], &entries[i][n - 2], text[n - 1],
                                                             shapes[k].depth, shapes[k].top, budgets[i], &want[i]);
            }
            learned_rig_check_proposals(d, want, budgets, V, spec);
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

static void a_step_leads_where_the_prompt_leads(void **state) {
    (void)state;
    learned_rig_check_step(target, "eagle:file=build/eagle-0.gguf");
    learned_rig_check_step(target, "eagle:file=build/eagle-2.gguf");
}

static void sequences_draft_together_as_each_by_itself(void **state) {
    (void)state;
    learned_rig_check_together(target, "eagle:file=build/eagle-0.gguf,depth=3,top=4");
    learned_rig_check_together(target, "eagle:file=build/eagle-2.gguf");
}

/* Accepted tokens wait for the next proposal, which then runs those of all sequences. */
static void entries_wait_for_the_proposal(void **state) {
    (void)state;
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, "eagle:file=build/eagle-0.gguf", 2);
    const Eagle *e = (const Eagle *)d;
    int32_t text[N_TEXT];
    static Tree tree;
    rig_tokens(9, V, text, N_TEXT);
    learned_rig_feed(&reader, d, 1, text, N_TEXT, 5);
    const EntrySequence *s = &e->entries.sequences[1];
    assert_int_equal(s->n_queued, N_TEXT - 1);
    assert_int_equal(executor_sequence_length(e->layer.executor, s->kv), 0);
    rig_propose(d, 1, text[N_TEXT - 1], 9, V, &tree);
    assert_int_equal(s->n_queued, 0);
    assert_int_equal(executor_sequence_length(e->layer.executor, s->kv), N_TEXT - 1);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    learned_rig_check_lossless(TARGET, "eagle:file=build/eagle-0.gguf,depth=4,top=5");
    learned_rig_check_lossless(TARGET, "eagle:file=build/eagle-1.gguf,depth=2,top=8");
    learned_rig_check_lossless(TARGET, "eagle:file=build/eagle-2.gguf,depth=3,top=4");
    learned_rig_check_lossless(TARGET, "eagle:file=build/eagle-0.gguf,tree=static,depth=4,top=5");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_the_plain_layer),
        cmocka_unit_test(a_step_leads_where_the_prompt_leads),
        cmocka_unit_test(sequences_draft_together_as_each_by_itself),
        cmocka_unit_test(entries_wait_for_the_proposal),
        cmocka_unit_test(the_text_is_the_plain_one),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
