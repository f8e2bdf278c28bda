/* test_draft_space.c - unit tests of the drafter space with random weights: compares its plan of masks with all plans,
 * its rows with a chain that ends with the masks, and its trees with the products of the masks' distributions in double
 * precision; and tests the text in the engine, also with drafters that add impossible rows. */
#include "learned_rig.h"

#include "gguf/tensor_type.h"
#include "draft/learned/learned.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/space-target.gguf"

enum { H = 64, V = 300, MAX_MASKS = 3, N_TEXT = 20, BUDGET = 14 };

static Gguf *target_gguf;
static Weights *target;

static const struct Shape {
    const char *path;
    int32_t n_masks, n_blocks;
    TensorType type;
    int32_t n_ranks; /* ranks of space.accuracy; 0: none */
} shapes[] = {
    {"build/space-0.gguf", 3, 1, TYPE_F32, 3},
    {"build/space-1.gguf", 2, 0, TYPE_Q8_0, 0},
    {"build/space-2.gguf", 1, 2, TYPE_F16, 1},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

typedef struct FileWeights {
    LearnedRig rig;
    float accuracy[9], *masks, *block[MAX_MASKS][2], *bias[MAX_MASKS][2];
} FileWeights;
static FileWeights weights[N_SHAPES];

static void write_drafter(const struct Shape *s, FileWeights *w, uint64_t seed) {
    char name[64];
    learned_rig_begin(&w->rig, "space", target, seed);
    gguf_set_u32(w->rig.w, DRAFTER_KEY("space.mask_count"), (uint32_t)s->n_masks);
    gguf_set_u32(w->rig.w, DRAFTER_KEY("space.block_count"), (uint32_t)s->n_blocks);
    w->masks = learned_rig_tensor(&w->rig, "space.masks", s->type, H, s->n_masks, 0.5);
    for (int32_t i = 0; i < s->n_masks; i++)
        for (int32_t k = 0; k < s->n_blocks; k++) {
            snprintf(name, sizeof name, "space.%d.block.%d.weight", i, k);
            w->block[i][k] = learned_rig_tensor(&w->rig, name, s->type, H, H, 0.15);
            snprintf(name, sizeof name, "space.%d.block.%d.bias", i, k);
            w->bias[i][k] = learned_rig_tensor(&w->rig, name, TYPE_F32, H, 0, 0.1);
        }
    for (int i = 0; i < 9; i++) w->accuracy[i] = 0.7f / (float)(1 + i % 3);
    if (s->n_ranks)
        gguf_add_tensor(w->rig.w, "space.accuracy", TYPE_F32, 2, (int64_t[]){s->n_ranks, s->n_masks}, w->accuracy);
    learned_rig_write(&w->rig, s->path);
}

static int open_all(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 6);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    for (size_t i = 0; i < N_SHAPES; i++) write_drafter(&shapes[i], &weights[i], 80 + i);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) learned_rig_free(&weights[i].rig);
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* ---- the plan ------------------------------------------------------------------------------------ */

/* Returns the greatest gain of `room` masks after the first n_nodes nodes, over all ways to give each node a number of
 * masks. */
static double best_of_all(const Tree *t, int32_t n_nodes, const double *gain, int32_t n_masks, int32_t room,
                          int32_t node) {
    if (node == n_nodes || room == 0) return 0;
    double last = (double)t->nodes[node].p_accept, best = 0, sum = 0;
    for (int32_t i = node + 1; i < n_nodes; i++)
        if (t->nodes[i].parent == node) last -= (double)t->nodes[i].p_accept;
    for (int32_t k = 0; k <= n_masks && k <= room; k++) {
        if (k > 0) sum += last > 0 ? last * gain[k - 1] : 0;
        double with_rest = sum + best_of_all(t, n_nodes, gain, n_masks, room - k, node + 1);
        if (with_rest > best) best = with_rest;
    }
    return best;
}

/* A tree whose nodes are in the order of falling p_accept. */
static void make_tree(Tree *t, uint64_t seed) {
    tree_reset(t, 1);
    for (int32_t i = 1; i < 6; i++) {
        int32_t parent = rig_token(seed, (uint64_t)i, i);
        float most = t->nodes[i - 1].p_accept < t->nodes[parent].p_accept ? t->nodes[i - 1].p_accept
                                                                          : t->nodes[parent].p_accept;
        tree_add(t, parent, 10 + i, most * (float)(40 + rig_token(seed + 1, (uint64_t)i, 50)) / 100, 0);
    }
}

static void the_plan_is_the_best_of_all(void **state) {
    (void)state;
    static const double gain[] = {0.7, 0.4, 0.4};
    static Tree t;
    PlannedMask plan[6 * 3], scratch[6 * 3];
    for (uint64_t seed = 0; seed < 60; seed += 2) {
        make_tree(&t, seed);
        for (int32_t room = 0; room <= 9; room++) {
            double sum = 0;
            int32_t n_of[6] = {0};
            assert_int_equal(mask_plan(&t, 6, gain, 3, plan), 18);
            for (int32_t i = 0; i < room; i++) {
                sum += plan[i].value;
                assert_int_equal(plan[i].mask, n_of[plan[i].node]++); /* the masks of a node come in order */
            }
            double want = best_of_all(&t, 6, gain, 3, room, 0);
            if (!(fabs(sum - want) < 1e-9)) fail_msg("%d masks bring %g instead of %g", room, sum, want);
        }
        for (int32_t budget = 1; budget <= 9; budget++) {
            double best = -1, accepted = 0;
            int32_t want = 0;
            for (int32_t c = 1; c < t.n && c <= budget; c++) {
                accepted += (double)t.nodes[c].p_accept;
                double sum = accepted + best_of_all(&t, c + 1, gain, 3, budget - c, 0);
                if (sum > best + 1e-12) best = sum, want = c;
            }
            assert_int_equal(mask_plan_candidates(&t, gain, 3, budget, scratch), want);
        }
    }
}

/* ---- masks are rows of the target ---------------------------------------------------------------- */

/* The target's hidden states at a group of masks after a text, read as a plain chain. */
static void read_masks(LearnedReader *r, const int32_t *text, int32_t n, const FileWeights *w, int32_t n_masks,
                       float *hidden) {
    Row rows[N_TEXT + 16 + MAX_MASKS];
    fr_error err;
    executor_sequence_truncate(r->executor, r->sequence, 0);
    for (int32_t i = 0; i < n + n_masks; i++)
        rows[i] = (Row){.token = i < n ? text[i] : 0,
                        .sequence = r->sequence,
                        .parent = i - 1,
                        .input = i < n ? NULL : w->masks + (i - n) * H,
                        .want_hidden = true};
    if (executor_reserve(r->executor, r->sequence, n + n_masks, &err) ||
        executor_forward(r->executor, rows, n + n_masks, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < n_masks; i++)
        memcpy(hidden + i * H, executor_hidden(r->executor, n + i), H * sizeof *hidden);
}

/* Runs a step as the engine does: the drafter's masks follow a tree, of which a path of n_path nodes is accepted. The
 * text is committed except for its last token, the root. Returns the number of masks after the last accepted node. */
static int32_t run_step(LearnedReader *r, Drafter *d, const Tree *tree, const VerifyResult *verdict,
                        const int32_t *text, int32_t n, int32_t room) {
    Row rows[N_TEXT + BUDGET + 40];
    ExtraRow extra[BUDGET + 40];
    const float *hidden[BUDGET + 40];
    int32_t last = verdict->n_path ? verdict->path[verdict->n_path - 1] : 0, n_behind = 0;
    fr_error err;
    int32_t n_extra = d->class->add_rows(d, 0, tree, room, extra), n_before = n - 1;
    assert_int_equal(n_extra, room);
    executor_sequence_truncate(r->executor, r->sequence, 0);
    for (int32_t i = 0; i < n_before; i++) rows[i] = (Row){.token = text[i], .sequence = r->sequence, .parent = i - 1};
    for (int32_t i = 0; i < tree->n; i++) {
        const TreeNode *node = &tree->nodes[i];
        rows[n_before + i] = (Row){.token = node->token,
                                   .sequence = r->sequence,
                                   .parent = n_before + node->parent,
                                   .want_logits = true};
    }
    for (int32_t i = 0; i < n_extra; i++) {
        assert_in_range(extra[i].parent, 0, tree->n + i - 1);
        int32_t above = extra[i].parent;
        while (above >= tree->n) above = extra[above - tree->n].parent;
        n_behind += above == last;
        rows[n_before + tree->n + i] = (Row){.sequence = r->sequence,
                                             .parent = n_before + extra[i].parent,
                                             .input = extra[i].input,
                                             .want_hidden = true};
    }
    int32_t n_rows = n_before + tree->n + n_extra;
    if (executor_reserve(r->executor, r->sequence, n_rows, &err) || executor_forward(r->executor, rows, n_rows, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < n_extra; i++) hidden[i] = executor_hidden(r->executor, n_before + tree->n + i);
    const VerifiedTree verified = {.tree = tree, .verdict = verdict, .n_extra = n_extra, .extra_hidden = hidden};
    if (d->class->observe_tree(d, 0, &verified, &err)) fail_msg("%s", err.message);
    return n_behind;
}

/* The distribution at each mask, in double precision, without the target's noise. */
static double dist[MAX_MASKS][V];

static void find_dists(const struct Shape *s, const FileWeights *w, const float *hidden, int32_t n) {
    float *head = malloc(sizeof(float) * H * V);
    const GgufTensor *t = gguf_find_tensor(target_gguf, "output.weight");
    assert_non_null(head);
    blocks_dequantize(t->type, t->data, (int64_t)H * V, head);
    for (int32_t i = 0; i < n; i++) {
        double x[H], y[H];
        for (int32_t k = 0; k < H; k++) x[k] = (double)hidden[i * H + k];
        for (int32_t b = 0; b < s->n_blocks; b++) {
            learned_rig_linear(w->block[i][b], w->bias[i][b], x, H, H, y);
            for (int32_t k = 0; k < H; k++) x[k] += learned_rig_silu(y[k]);
        }
        learned_rig_linear(head, NULL, x, H, V, dist[i]);
        learned_rig_log_softmax(dist[i], V);
    }
    free(head);
}

/* The probability of each node is the product of its tokens' probabilities, and no token that is not a child of a node
 * is better than one of its children. Nodes are not deeper than the masks. */
static void check_tree(const Tree *t, int32_t n_masks, const char *what) {
    for (int32_t i = 1; i < t->n; i++) {
        const TreeNode *node = &t->nodes[i];
        double p = 0;
        for (int32_t k = i; k > 0; k = t->nodes[k].parent) p += dist[t->nodes[k].depth - 1][t->nodes[k].token];
        assert_true(node->depth <= n_masks);
        if (!(fabs(log((double)node->p_accept) - p) < 2e-3))
            fail_msg("%s: node %d has p_accept %g instead of %g", what, i, (double)node->p_accept, exp(p));
        for (int32_t v = 0; v < V; v++)
            if (dist[node->depth - 1][v] > dist[node->depth - 1][node->token] + 1e-3 &&
                tree_child(t, node->parent, v) < 0)
                fail_msg("%s: token %d is missing beside node %d", what, v, i);
    }
}

static void masks_of_the_last_accepted_node_draft(void **state) {
    (void)state;
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    int32_t text[N_TEXT + 3];
    float hidden[MAX_MASKS * H];
    static Tree tree, got;
    fr_error err;
    rig_tokens(70, V, text, N_TEXT + 3);
    for (size_t s = 0; s < N_SHAPES; s++)
        for (int32_t n_path = 0; n_path <= 2; n_path++)
            for (int32_t room = 1; room <= 9; room += 4) {
                char spec[128];
                snprintf(spec, sizeof spec, "space:file=%s,top=20", shapes[s].path);
                Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
                if (d->class->begin(d, 0, text, N_TEXT, &err)) fail_msg("%s", err.message);
                rig_propose(d, 0, text[N_TEXT - 1], BUDGET, V, &got);
                assert_int_equal(got.n, 1);          /* nothing is known yet */
                tree_reset(&tree, text[N_TEXT - 1]); /* nodes 2 and 3 are the next tokens, node 1 is wrong */
                tree_add(&tree, 0, (text[N_TEXT] + 1) % V, 0.2f, 0);
                tree_add(&tree, tree_add(&tree, 0, text[N_TEXT], 0.6f, 0), text[N_TEXT + 1], 0.4f, 0);
                const VerifyResult verdict = {.n_path = n_path, .path = {2, 3}, .next_token = text[N_TEXT + n_path]};
                int32_t most = tree.n * shapes[s].n_masks, n_rows = room < most ? room : most;
                int32_t n = run_step(&reader, d, &tree, &verdict, text, N_TEXT, n_rows);
                if (d->class->observe(d, 0, text + N_TEXT, n_path + 1, &err)) fail_msg("%s", err.message);
                rig_propose(d, 0, text[N_TEXT + n_path], BUDGET, V, &got);
                if (n == 0) assert_int_equal(got.n, 1);
                else assert_true(got.n > 1);
                read_masks(&reader, text, N_TEXT + n_path, &weights[s], n, hidden);
                find_dists(&shapes[s], &weights[s], hidden, n);
                check_tree(&got, n, spec);
                d->class->end(d, 0);
                drafter_close(d);
            }
    learned_rig_close_reader(&reader);
}

/* ---- in the engine ------------------------------------------------------------------------------- */

static void texts_are_those_of_plain_decoding(void **state) {
    (void)state;
    learned_rig_check_lossless(TARGET, "space:file=build/space-0.gguf");
    learned_rig_check_lossless(TARGET, "space:file=build/space-1.gguf,top=2,coupled=0");
}

/* The budget of rows counts masks: nodes and masks together are at most --tree-budget. */
static void masks_share_the_budget(void **state) {
    (void)state;
    static const char *const specs[] = {"space:file=build/space-0.gguf", "ngram-trie"};
    static Stream got;
    fr_model *model = rig_open_model(TARGET, NULL);
    int32_t prompt[24];
    for (int32_t i = 0; i < 24; i++) prompt[i] = 3 + i % 5;
    for (int budget = 1; budget <= 12; budget += 3)
        for (int n_drafts = 1; n_drafts <= 2; n_drafts++) {
            fr_engine *e = rig_open_engine(model, NULL);
            fr_request_options o = {.struct_size = sizeof o,
                                    .prompt = prompt,
                                    .n_prompt = 24,
                                    .max_tokens = 30,
                                    .sampling = fr_sampling_default(),
                                    .ignore_eos = 1,
                                    .drafts = specs,
                                    .n_drafts = n_drafts,
                                    .tree_budget = budget};
            rig_run_request(e, &o, &got);
            assert_string_equal(got.draft_error, "");
            assert_int_equal(got.drafts.n_counters, 1);
            assert_string_equal(got.drafts.counters[0].name, "space.masks");
            int64_t n_masks = got.drafts.counters[0].drafted;
            assert_true(n_drafts == 2 || n_masks > 0);
            assert_true(n_masks + got.stats.drafted <= budget * got.stats.n_steps);
            assert_int_equal(got.drafts.counters[0].accepted, 0);
            fr_error err; /* an automatic budget cannot count masks, so none is chosen */
            assert_int_equal(fr_engine_measure_costs(e, &err), FR_OK);
            o.tree_budget = 0;
            rig_run_request(e, &o, &got);
            assert_true(n_drafts == 2 || got.drafts.counters[0].drafted > 0);
            fr_engine_close(e);
        }
    fr_model_close(model);
}

/* A drafter that adds impossible rows. */
typedef enum RowFault {
    ROWS_TOO_MANY,
    ROWS_NEGATIVE,
    ROW_PARENT_HIGH,
    ROW_PARENT_NEGATIVE,
    ROW_NO_INPUT,
    N_ROW_FAULTS
} RowFault;
static RowFault fault;

static int32_t add_bad_rows(Drafter *d, int32_t sequence, const Tree *tree, int32_t room, ExtraRow *rows) {
    static const float input[H] = {1};
    (void)d, (void)sequence;
    for (int32_t i = 0; i < room; i++) rows[i] = (ExtraRow){i == 0 ? 0 : tree->n + i - 1, input};
    if (fault == ROWS_TOO_MANY) return room + 1;
    if (fault == ROWS_NEGATIVE) return -1;
    if (fault == ROW_PARENT_HIGH) rows[room - 1].parent = tree->n + room - 1;
    if (fault == ROW_PARENT_NEGATIVE) rows[0].parent = -1;
    if (fault == ROW_NO_INPUT) rows[room - 1].input = NULL;
    return room;
}

static void impossible_rows_cost_the_drafter_and_not_the_text(void **state) {
    (void)state;
    static const char *const spec = "bad-rows";
    static Stream plain, got;
    fr_model *model = rig_open_model(TARGET, NULL);
    int32_t prompt[12];
    rig_tokens(8, V, prompt, 12);
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = 12,
                            .max_tokens = 20,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1,
                            .tree_budget = 5};
    for (fault = 0; fault <= N_ROW_FAULTS; fault++) { /* the last value is no fault */
        fr_engine *e = rig_open_engine(model, NULL);
        Devil devil = devil_make(DEVIL_RANDOM, DEVIL_FAULT_NONE, V, 3);
        DrafterClass class = *devil.base.class;
        class.add_rows = add_bad_rows;
        class.extra_name = "rows";
        devil.base.class = &class;
        rig_add_drafter(e, spec, &devil.base);
        o.n_drafts = 0;
        rig_run_request(e, &o, &plain);
        o.drafts = &spec, o.n_drafts = 1;
        rig_run_request(e, &o, &got);
        rig_assert_same(&plain, &got, "bad rows");
        assert_int_equal(got.draft_error[0] != 0, fault < N_ROW_FAULTS);
        fr_engine_close(e);
    }
    fr_model_close(model);
}

static void a_file_of_another_width_is_refused(void **state) {
    (void)state;
    LearnedRig r;
    learned_rig_begin(&r, "space", target, 1);
    gguf_set_u32(r.w, DRAFTER_KEY("space.mask_count"), 2);
    gguf_set_u32(r.w, DRAFTER_KEY("space.block_count"), 0);
    learned_rig_tensor(&r, "space.masks", TYPE_F32, H / 2, 2, 0.5);
    learned_rig_write(&r, "build/space-narrow.gguf");
    learned_rig_free(&r);
    learned_rig_check_refused(target, "space:file=build/space-narrow.gguf", FR_ERR_FORMAT,
                              "has rows of 32 numbers instead of 64");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_is_the_best_of_all),
        cmocka_unit_test(masks_of_the_last_accepted_node_draft),
        cmocka_unit_test(texts_are_those_of_plain_decoding),
        cmocka_unit_test(masks_share_the_budget),
        cmocka_unit_test(impossible_rows_cost_the_drafter_and_not_the_text),
        cmocka_unit_test(a_file_of_another_width_is_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
