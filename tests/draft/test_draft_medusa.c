/* test_draft_medusa.c - unit tests of the drafter medusa with random weights: compares its trees with all products of
 * its heads' distributions in double precision, and tests the text in the engine. */
#include "learned_rig.h"

#include "gguf/tensor_type.h"
#include "tree/tree_shapes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/medusa-target.gguf"

enum { H = 64, V = 300, MAX_HEADS = 3, MAX_RANKS = 12, N_TEXT = 20 };

static Gguf *target_gguf;
static Weights *target;

static const struct Shape {
    const char *path;
    int32_t n_heads, n_blocks;
    bool own;
    TensorType type;
    int32_t n_ranks; /* ranks of medusa.accuracy; 0: none */
} shapes[] = {
    {"build/medusa-0.gguf", 3, 1, true, TYPE_F32, 12},
    {"build/medusa-1.gguf", 2, 2, false, TYPE_F16, 0},
    {"build/medusa-2.gguf", 1, 0, true, TYPE_Q8_0, 2},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* The weights in the file of a shape. */
typedef struct FileWeights {
    LearnedRig rig;
    float accuracy[MAX_HEADS * MAX_RANKS];
    float *block[MAX_HEADS][2], *bias[MAX_HEADS][2], *output[MAX_HEADS];
} FileWeights;
static FileWeights weights[N_SHAPES];

/* Accuracies that decrease with the rank, differently for each head. */
static void add_accuracy(const struct Shape *s, FileWeights *w) {
    for (int32_t i = 0; i < s->n_heads; i++)
        for (int32_t r = 0; r < s->n_ranks; r++)
            w->accuracy[i * s->n_ranks + r] = (0.5f - 0.1f * (float)i) / (1 + (0.7f + 0.9f * (float)i) * (float)r);
    if (s->n_ranks)
        gguf_add_tensor(w->rig.w, "medusa.accuracy", TYPE_F32, 2, (int64_t[]){s->n_ranks, s->n_heads}, w->accuracy);
}

static void write_drafter(const struct Shape *s, FileWeights *w, uint64_t seed) {
    char name[64];
    learned_rig_begin(&w->rig, "medusa", target, seed);
    gguf_set_u32(w->rig.w, DRAFTER_KEY("medusa.head_count"), (uint32_t)s->n_heads);
    gguf_set_u32(w->rig.w, DRAFTER_KEY("medusa.block_count"), (uint32_t)s->n_blocks);
    gguf_set_string(w->rig.w, DRAFTER_KEY("medusa.output"), s->own ? "own" : "target", s->own ? 3 : 6);
    for (int32_t i = 0; i < s->n_heads; i++) {
        for (int32_t k = 0; k < s->n_blocks; k++) {
            snprintf(name, sizeof name, "medusa.%d.block.%d.weight", i, k);
            w->block[i][k] = learned_rig_tensor(&w->rig, name, s->type, H, H, 0.15);
            snprintf(name, sizeof name, "medusa.%d.block.%d.bias", i, k);
            w->bias[i][k] = learned_rig_tensor(&w->rig, name, TYPE_F32, H, 0, 0.1);
        }
        snprintf(name, sizeof name, "medusa.%d.output.weight", i);
        if (s->own) w->output[i] = learned_rig_tensor(&w->rig, name, s->type, H, V, 0.3);
    }
    add_accuracy(s, w);
    learned_rig_write(&w->rig, s->path);
}

static int open_all(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 5);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    for (size_t i = 0; i < N_SHAPES; i++) write_drafter(&shapes[i], &weights[i], 40 + i);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) learned_rig_free(&weights[i].rig);
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* ---- the tree in double precision --------------------------------------------------------------- */

static double dist[MAX_HEADS][V]; /* log p of each head */

static void find_dists(const struct Shape *s, const FileWeights *w, const float *hidden) {
    float *head_of_target = malloc(sizeof(float) * H * V);
    const GgufTensor *t = gguf_find_tensor(target_gguf, "output.weight");
    for (int64_t o = 0; o < V; o++)
        blocks_dequantize(t->type, (const char *)t->data + (size_t)o * (t->bytes / V), H, head_of_target + o * H);
    for (int32_t i = 0; i < s->n_heads; i++) {
        double x[H], y[H];
        for (int32_t k = 0; k < H; k++) x[k] = (double)hidden[k];
        for (int32_t b = 0; b < s->n_blocks; b++) {
            learned_rig_linear(w->block[i][b], w->bias[i][b], x, H, H, y);
            for (int32_t k = 0; k < H; k++) x[k] += learned_rig_silu(y[k]);
        }
        learned_rig_linear(s->own ? w->output[i] : head_of_target, NULL, x, H, V, dist[i]);
        learned_rig_log_softmax(dist[i], V);
    }
    free(head_of_target);
}

typedef struct Ranked {
    double log_p;
    int32_t token;
} Ranked;
static int greater_first(const void *a, const void *b) {
    double x = ((const Ranked *)a)->log_p, y = ((const Ranked *)b)->log_p;
    return x < y ? 1 : x > y ? -1 : 0;
}

static Ranked ranked[MAX_HEADS][V];

typedef struct Path {
    int32_t rank[MAX_HEADS], depth;
    double log_p;
} Path;
static int better_path(const void *a, const void *b) {
    double x = ((const Path *)a)->log_p, y = ((const Path *)b)->log_p;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The first `budget` of all products of the first `top` ranks, sorted. A parent is never less than its child. */
static void plain_tree(int32_t n_heads, int32_t top, int32_t budget, int32_t pending, Tree *out) {
    static Path paths[20000];
    int32_t n = 0;
    for (int32_t i = 0; i < n_heads; i++) {
        for (int32_t v = 0; v < V; v++) ranked[i][v] = (Ranked){dist[i][v], v};
        qsort(ranked[i], V, sizeof(Ranked), greater_first);
    }
    for (int32_t depth = 1, n_before = 0, n_level; depth <= n_heads; depth++, n_before = n - n_level)
        for (int32_t p = depth == 1 ? -1 : n_before, end = (n_level = 0, n); p < (depth == 1 ? 0 : end); p++)
            for (int32_t r = 0; r < top; r++, n_level++) {
                Path path = p < 0 ? (Path){.log_p = 0} : paths[p];
                path.rank[depth - 1] = r;
                path.depth = depth;
                path.log_p += ranked[depth - 1][r].log_p;
                assert_true(n < 20000);
                paths[n++] = path;
            }
    qsort(paths, (size_t)n, sizeof *paths, better_path);
    tree_reset(out, pending);
    for (int32_t i = 0; i < n && i < budget; i++) {
        int32_t node = 0;
        for (int32_t k = 0; k + 1 < paths[i].depth; k++) {
            node = tree_child(out, node, ranked[k][paths[i].rank[k]].token);
            assert_true(node > 0);
        }
        int32_t last = paths[i].depth - 1;
        tree_add(out, node, ranked[last][paths[i].rank[last]].token, (float)exp(paths[i].log_p), 0);
    }
}

static void trees_are_the_best_products(void **state) {
    (void)state;
    static const int32_t tops[] = {1, 3, 10, 20}, budgets[] = {1, 4, 9, 40};
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    int32_t text[N_TEXT];
    static Tree want, got;
    for (size_t s = 0; s < N_SHAPES; s++)
        for (int32_t k = 0; k < 4; k++) {
            char spec[128];
            fr_error err;
            snprintf(spec, sizeof spec, "medusa:file=%s,top=%d", shapes[s].path, tops[k]);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 2);
            rig_tokens(60 + s, V, text, N_TEXT);
            const float *hidden = learned_rig_feed(&reader, d, 1, text, N_TEXT, 1 + k);
            find_dists(&shapes[s], &weights[s], hidden);
            for (int32_t b = 0; b < 4; b++) {
                Tree *trees[] = {&got};
                tree_reset(&got, text[N_TEXT - 1]);
                if (d->class->propose(d, &(int32_t){1}, &budgets[b], trees, 1, &err)) fail_msg("%s", err.message);
                if (tree_validate(&got, text[N_TEXT - 1], V, budgets[b] + 1, &err)) fail_msg("%s", err.message);
                plain_tree(shapes[s].n_heads, tops[k], budgets[b], text[N_TEXT - 1], &want);
                learned_rig_assert_alike(&want, &got, 2e-3, spec);
            }
            d->class->end(d, 1);
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

/* The best paths of ranks of a shape, with the heads' tokens of these ranks. */
static void plain_static_tree(const struct Shape *s, const FileWeights *w, int32_t top, int32_t budget, int32_t pending,
                              Tree *out) {
    static StaticTree shape;
    double chance[MAX_HEADS * 64];
    int32_t n = s->n_ranks && s->n_ranks < top ? s->n_ranks : top, node[TREE_MAX_NODES] = {0};
    static_tree_prior(chance, s->n_heads, n);
    for (int32_t i = 0; i < s->n_heads * n && s->n_ranks; i++)
        chance[i] = (double)w->accuracy[i / n * s->n_ranks + i % n];
    static_tree_build(&shape, chance, s->n_heads, n, INT32_MAX);
    for (int32_t i = 0; i < s->n_heads; i++) {
        for (int32_t v = 0; v < V; v++) ranked[i][v] = (Ranked){dist[i][v], v};
        qsort(ranked[i], V, sizeof(Ranked), greater_first);
    }
    tree_reset(out, pending);
    for (int32_t i = 1; i < shape.n && i <= budget; i++) {
        const StaticNode *x = &shape.nodes[i];
        const Ranked *r = &ranked[x->depth - 1][x->rank];
        double p_accept = (double)out->nodes[node[x->parent]].p_accept * exp(r->log_p);
        node[i] = tree_add(out, node[x->parent], r->token, (float)p_accept, 0);
    }
}

static void static_trees_have_the_shape_of_the_accuracies(void **state) {
    (void)state;
    static const int32_t tops[] = {1, 4, 20}, budgets[] = {1, 6, 50};
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    int32_t text[N_TEXT];
    static Tree want, got;
    for (size_t s = 0; s < N_SHAPES; s++)
        for (int32_t k = 0; k < 3; k++) {
            char spec[128];
            snprintf(spec, sizeof spec, "medusa:tree=static,file=%s,top=%d", shapes[s].path, tops[k]);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 2);
            rig_tokens(90 + s, V, text, N_TEXT);
            find_dists(&shapes[s], &weights[s], learned_rig_feed(&reader, d, 1, text, N_TEXT, 5));
            for (int32_t b = 0; b < 3; b++) {
                rig_propose(d, 1, text[N_TEXT - 1], budgets[b], V, &got);
                plain_static_tree(&shapes[s], &weights[s], tops[k], budgets[b], text[N_TEXT - 1], &want);
                learned_rig_assert_alike(&want, &got, 2e-3, spec);
            }
            d->class->end(d, 1);
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

static void accuracies_must_be_probabilities(void **state) {
    (void)state;
    static const float bad[] = {1.5f, -0.25f};
    for (int i = 0; i < 2; i++) {
        LearnedRig r;
        learned_rig_begin(&r, "medusa", target, 5);
        gguf_set_u32(r.w, DRAFTER_KEY("medusa.head_count"), 1);
        gguf_set_u32(r.w, DRAFTER_KEY("medusa.block_count"), 0);
        gguf_set_string(r.w, DRAFTER_KEY("medusa.output"), "target", 6);
        gguf_add_tensor(r.w, "medusa.accuracy", TYPE_F32, 2, (int64_t[]){1, 1}, &bad[i]);
        learned_rig_write(&r, "build/medusa-bad.gguf");
        learned_rig_check_refused(target, "medusa:file=build/medusa-bad.gguf", FR_ERR_FORMAT,
                                  "but an accuracy must be from 0 to 1");
        learned_rig_free(&r);
    }
    learned_rig_check_refused(target, "medusa:tree=round,file=build/medusa-0.gguf", FR_ERR_ARGUMENT,
                              "medusa: 'tree=round' must be dynamic or static");
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    char spec[128];
    for (size_t s = 0; s < 2; s++) {
        snprintf(spec, sizeof spec, "medusa:file=%s,top=20", shapes[s].path);
        learned_rig_check_lossless(TARGET, spec);
    }
    learned_rig_check_lossless(TARGET, "medusa:tree=static,top=20,file=build/medusa-0.gguf");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_the_best_products),
        cmocka_unit_test(static_trees_have_the_shape_of_the_accuracies),
        cmocka_unit_test(accuracies_must_be_probabilities),
        cmocka_unit_test(the_text_is_the_plain_one),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
