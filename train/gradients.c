/* gradients.c - runs the sequences of a batch on the threads, and adds their gradients in a tree (gradients.h).
 *
 * A round takes one sequence for each thread. The sums that a round makes possible are then listed, and each thread
 * does all of them for its range of the weights, in blocks that stay in its cache. A buffer that was added to another
 * one is zeroed in the same pass, so that the next sequence can take it. */
#include "train/gradients.h"

#include "base/math_functions.h"
#include "base/rng.h"
#include "train/drafter_trainer.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 2048, LANES = 16 }; /* a thread adds BLOCK weights at a time */

/* ---- the tree ------------------------------------------------------------------------------------- */

static void merge_last(GradientTree *t) {
    GradientNode *left = &t->nodes[t->n - 2], *right = &t->nodes[t->n - 1];
    if (left->buffer >= 0) t->merges[t->n_merges++] = (GradientMerge){left->buffer, right->buffer};
    left->loss += right->loss;
    left->level++;
    t->n--;
}

static bool are_halves(const GradientNode *left, const GradientNode *right) {
    return left->level == right->level && (left->first >> left->level) % 2 == 0;
}

void gradient_tree_push(GradientTree *t, GradientNode x) {
    fr_assert(t->n < GRADIENT_MAX_NODES);
    t->nodes[t->n++] = x;
    while (t->n > 1 && are_halves(&t->nodes[t->n - 2], &t->nodes[t->n - 1])) merge_last(t);
}

void gradient_tree_finish(GradientTree *t) {
    while (t->n > 1) merge_last(t);
}

int gradient_nodes(int64_t first, int64_t n, GradientNode *out) {
    int n_nodes = 0;
    for (int64_t end = first + n; first < end; first += INT64_C(1) << out[n_nodes++].level) {
        int level = 0;
        while (first % (INT64_C(2) << level) == 0 && first + (INT64_C(2) << level) <= end) level++;
        out[n_nodes] = (GradientNode){.first = first, .level = level};
    }
    return n_nodes;
}

static void add_block(float *restrict into, float *restrict from, int64_t n) {
    int64_t k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int j = 0; j < LANES; j++) into[k + j] += from[k + j], from[k + j] = 0;
    for (; k < n; k++) into[k] += from[k], from[k] = 0;
}

void gradient_merge(const GradientMerge *merges, int n_merges, float *const *buffers, int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; at += BLOCK)
        for (int i = 0; i < n_merges; i++)
            add_block(buffers[merges[i].into] + at, buffers[merges[i].from] + at, min_i64(BLOCK, end - at));
}

void train_sums_add_counts(TrainSums *sums, const TrainSums *more) {
    sums->n += more->n;
    if (more->n_heads > sums->n_heads) sums->n_heads = more->n_heads;
    for (int i = 0; i < more->n_heads; i++) {
        sums->right[i] += more->right[i], sums->of[i] += more->of[i];
        for (int k = 0; k < TRAIN_RANKS; k++) sums->at_rank[i][k] += more->at_rank[i][k];
    }
}

/* ---- buffers -------------------------------------------------------------------------------------- */

int gradients_open(Gradients *g, float *total, int64_t n_weights, int n_threads, fr_error *err) {
    *g = (Gradients){.n_threads = n_threads, .n_weights = n_weights};
    int n_most = n_threads + GRADIENT_MAX_NODES;
    const ArenaItem lists[] = {ARENA_ITEM(&g->buffers, n_most + 1), ARENA_ITEM(&g->free_buffers, n_most),
                               ARENA_ITEM(&g->tree.merges, n_most), ARENA_ITEM(&g->sums, n_threads)};
    int status = arena_take(&g->arena, lists, ARENA_COUNT(lists), "gradients", err);
    if (status) return status;
    g->buffers[g->n_buffers++] = total;
    return threads_open(&g->pool, n_threads, err);
}

void gradients_close(Gradients *g) {
    threads_close(g->pool);
    for (int i = 1; i < g->n_buffers; i++) mem_free(g->buffers[i]);
    arena_free(&g->arena);
    *g = (Gradients){0};
}

/* Makes n buffers free. */
static int provide(Gradients *g, int n, fr_error *err) {
    while (g->n_free < n) {
        float *more = mem_calloc((size_t)g->n_weights, sizeof *more);
        if (!more)
            return error_memory(err, "the gradients of sequences; use fewer threads (-t)",
                                (size_t)g->n_weights * sizeof *more);
        g->buffers[g->n_buffers] = more;
        g->free_buffers[g->n_free++] = g->n_buffers++;
    }
    return FR_OK;
}

static void add_share(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Gradients *g = ctx;
    int64_t begin, end;
    threads_split(g->n_weights, 16, i_part, n_parts, &begin, &end);
    gradient_merge(g->tree.merges, g->tree.n_merges, g->buffers, begin, end);
}

/* Does the sums that the tree lists. */
static void add_up(Gradients *g) {
    GradientTree *t = &g->tree;
    if (t->n_merges > 0) threads_run(g->pool, g->n_threads, add_share, g);
    for (int i = 0; i < t->n_merges; i++) g->free_buffers[g->n_free++] = t->merges[i].from;
    t->n_merges = 0;
}

void gradients_drop(Gradients *g, bool are_zero) {
    for (int i = 0; i < g->tree.n; i++) {
        int buffer = g->tree.nodes[i].buffer;
        if (buffer <= 0) continue;
        if (!are_zero) memset(g->buffers[buffer], 0, (size_t)g->n_weights * sizeof **g->buffers);
        g->free_buffers[g->n_free++] = buffer;
    }
    g->tree.n = 0;
    g->is_begun = false;
}

/* ---- a step --------------------------------------------------------------------------------------- */

void gradients_begin(Gradients *g, int64_t first) {
    gradients_drop(g, false);
    g->next = first;
    g->is_begun = true;
}

void gradients_end(Gradients *g, TrainSums *sums) {
    gradient_tree_finish(&g->tree);
    add_up(g);
    if (g->tree.n) sums->loss += g->tree.nodes[0].loss;
    fr_assert(!g->tree.n || g->tree.nodes[0].buffer <= 0);
    gradients_drop(g, true);
}

/* Sequences of a batch that are processed at the same time. */
typedef struct Round {
    const Gradients *g;
    LearnSequence fn;
    void *ctx;
    int32_t i; /* the first one, of the batch */
    GradientNode *nodes;
} Round;

static void run_sequence(void *ctx, int i_run, int n_runs, int i_thread) {
    (void)n_runs, (void)i_thread;
    const Round *round = ctx;
    int buffer = round->nodes[i_run].buffer;
    TrainSums *sums = &round->g->sums[i_run];
    *sums = (TrainSums){0};
    round->fn(round->ctx, i_run, round->i + i_run, buffer >= 0 ? round->g->buffers[buffer] : NULL, sums);
    round->nodes[i_run].loss = sums->loss;
}

/* The buffer of a sequence. The first one of a step, or of a rank's part of it, works where the sum will be. */
static int take_buffer(Gradients *g, bool has_gradient, bool takes_total) {
    if (!has_gradient) return -1;
    return takes_total ? 0 : g->free_buffers[--g->n_free];
}

static int run_round(Gradients *g, Round *round, int n, bool has_gradient, TrainSums *sums, fr_error *err) {
    bool takes_total = g->tree.n == 0;
    int status = has_gradient ? provide(g, n - takes_total, err) : FR_OK;
    if (status) return status;
    for (int i = 0; i < n; i++) {
        int buffer = take_buffer(g, has_gradient, takes_total && i == 0);
        round->nodes[i] = (GradientNode){.first = g->next++, .buffer = buffer};
    }
    threads_run(g->pool, n, run_sequence, round);
    for (int i = 0; i < n; i++) {
        gradient_tree_push(&g->tree, round->nodes[i]);
        train_sums_add_counts(sums, &g->sums[i]);
    }
    add_up(g);
    return FR_OK;
}

int gradients_run(Gradients *g, int32_t n, LearnSequence fn, void *ctx, bool has_gradient, TrainSums *sums,
                  fr_error *err) {
    GradientNode nodes[THREADS_MAX];
    bool is_whole = !g->is_begun;
    int status = FR_OK;
    if (is_whole) gradients_begin(g, 0);
    for (int32_t i = 0; i < n && !status; i += g->n_threads) {
        Round round = {.g = g, .fn = fn, .ctx = ctx, .i = i, .nodes = nodes};
        status = run_round(g, &round, (int)min_i64(n - i, g->n_threads), has_gradient, sums, err);
    }
    if (is_whole) gradients_end(g, sums);
    return status;
}

/* ---- initial values ------------------------------------------------------------------------------- */

/* Random initial values from the counter-based generator (base/rng.h), so that they are the same on
 * every machine and for every number of threads. */

/* Four normally distributed numbers, by the method of Box and Muller. */
static void four_normals(uint64_t seed, uint64_t tensor, uint32_t block, double out[4]) {
    uint32_t words[4];
    rng_words(seed, RNG_INIT, tensor, block, words);
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2 * math_log(((double)words[i] + 0.5) * 0x1p-32));
        double angle = 2 * M_PI * ((double)words[i + 1] + 0.5) * 0x1p-32;
        double sine, cosine;
        math_sin_cos(angle, &sine, &cosine);
        out[i] = radius * cosine;
        out[i + 1] = radius * sine;
    }
}

void start_normal(float *out, int64_t n, double std, uint64_t seed, uint64_t tensor) {
    double normal[4] = {0};
    for (int64_t k = 0; k < n; k++) {
        if (k % 4 == 0) four_normals(seed, tensor, (uint32_t)(k / 4), normal);
        out[k] = (float)(std * normal[k % 4]);
    }
}

double start_token_std(const float *embd, int64_t V, int64_t C) {
    double squares = 0;
    for (int64_t i = 0; i < V * C; i++) squares += (double)embd[i] * (double)embd[i];
    return squares > 0 ? sqrt((double)V / squares) : 1; /* a row's squares sum to squares / V */
}

double start_norm(const Model *target) {
    double squares = 0;
    int32_t n = target->hparams.n_embd;
    for (int32_t i = 0; i < n && target->output_norm; i++)
        squares += (double)target->output_norm[i] * (double)target->output_norm[i];
    return squares > 0 ? sqrt(squares / n) : 1;
}
