/* test_forward.c - the numeric contract of the forward, checked by memcmp: the result of a row depends only on its own
 * tokens. Tree rows equal chain rows; batch size, chunking, threads, page size, neighbours, forks, commits and
 * truncation change no bit; kernel tables agree.
 *
 * The baseline is always `plain`: the tokens of one path run one per forward, on one thread, in a fresh executor with
 * pages of 16, with the same kernel table and KV type. */
#include "testing.h"

#include "base/rng.h"
#include "compute/cpu/cpu.h"
#include "compute/backend.h"
#include "forward_shapes.h"
#include "model_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_CTX = 160 };

/* ---- the baseline ------------------------------------------------------------------------------------ */

/* The labels with which a mismatch is reported. */
typedef struct Where {
    const char *model, *what;
    const char *table;
    uint64_t seed;
    int a, b; /* the two values that the test varies */
} Where;

static void expect_bits(const Where *w, const char *kind, const float *ours, const float *theirs, int32_t n) {
    if (memcmp(ours, theirs, (size_t)n * sizeof *ours) == 0) return;
    int32_t i = 0;
    while (memcmp(&ours[i], &theirs[i], sizeof *ours) == 0) i++;
    fail_msg("%s, %s, table %s, seed %llu, %d %d: %s %d is %.9g (%a), in the baseline %.9g (%a)", w->model, w->what,
             w->table, (unsigned long long)w->seed, w->a, w->b, kind, i, (double)ours[i], (double)ours[i],
             (double)theirs[i], (double)theirs[i]);
}

static float *new_logits(const Weights *m, int32_t n) {
    float *p = calloc((size_t)n * (size_t)m->model->hparams.n_vocab, sizeof *p);
    assert_non_null(p);
    return p;
}

static const float *row_of(const Weights *m, const float *logits, int32_t i) {
    return logits + (size_t)i * (size_t)m->model->hparams.n_vocab;
}

/* Logits after each token of the chain. */
static float *plain(const Weights *m, KvType kv_type, const int32_t *tokens, int32_t n) {
    RigOptions o = rig_options(n, 1);
    o.kv_type = kv_type;
    Executor *e = rig_executor(m, &o);
    float *logits = new_logits(m, n);
    rig_append(e, rig_sequence(e), tokens, n, 1, m->model->hparams.n_vocab, logits);
    rig_executor_close(e);
    return logits;
}

typedef void (*ModelTest)(const Weights *m, Where w);

static void with_each_shape(const Kernels *kernels, ActPrecision activations, ModelTest test) {
    for (int i = 0; i < N_SHAPES; i++) {
        Gguf *g = rig_random_gguf(&shapes[i].m);
        Weights *m = rig_weights_with(g, kernels, activations);
        test(m, (Where){.model = shapes[i].name, .table = ((const CpuWeights *)m)->kernels->name});
        rig_weights_close(m);
        gguf_close(g);
    }
}

static void with_each_shape_in_reference(ModelTest test) {
    for (int i = 0; i < N_SHAPES; i++) {
        if (shapes[i].m.n_embd > 100) continue; /* it is slow */
        Gguf *g = rig_random_gguf(&shapes[i].m);
        Weights *m = rig_weights_in(&backend_reference, g);
        test(m, (Where){.model = shapes[i].name, .table = "reference backend"});
        rig_weights_close(m);
        gguf_close(g);
    }
}

static void with_the_target(ModelTest test) {
    Gguf *g = rig_gguf(RIG_TARGET);
    Weights *m = rig_weights(g, NULL);
    test(m, (Where){.model = RIG_TARGET, .table = ((const CpuWeights *)m)->kernels->name});
    rig_weights_close(m);
    gguf_close(g);
}

/* ---- one thing varied at a time ------------------------------------------------------------------- */

enum { N_CHAIN = 64, N_SOME = 7 };

/* All numbers of rows, but only some for the reference backend, which is slow and has no blocks of rows. */
static int32_t one_to_64[64];
static const int32_t some_to_64[N_SOME] = {1, 2, 3, 7, 16, 63, 64};

static int fill_one_to_64(void **state) {
    (void)state;
    for (int32_t i = 0; i < 64; i++) one_to_64[i] = i + 1;
    return 0;
}

/* Compares a chain of 64 tokens that is appended in some way with the baseline. */
static void expect_chain(const Weights *m, Where w, const RigOptions *o, int32_t chunk, const float *baseline) {
    int32_t tokens[N_CHAIN], n_vocab = m->model->hparams.n_vocab;
    rig_tokens(5, n_vocab, tokens, N_CHAIN);
    Executor *e = rig_executor(m, o);
    float *logits = new_logits(m, N_CHAIN);
    rig_append(e, rig_sequence(e), tokens, N_CHAIN, chunk, n_vocab, logits);
    for (int32_t i = 0; i < N_CHAIN; i++)
        expect_bits(&w, "logit", row_of(m, logits, i), row_of(m, baseline, i), n_vocab);
    free(logits);
    rig_executor_close(e);
}

static float *baseline_of_chain(const Weights *m, KvType kv_type) {
    int32_t tokens[N_CHAIN];
    rig_tokens(5, m->model->hparams.n_vocab, tokens, N_CHAIN);
    return plain(m, kv_type, tokens, N_CHAIN);
}

static void vary_chunk_among(const Weights *m, Where w, const int32_t *chunks, int n_chunks) {
    w.what = "chunk of a prefill, KV type";
    for (int kv = 0; kv < KV_TYPE_COUNT; kv++) {
        float *baseline = baseline_of_chain(m, (KvType)kv);
        RigOptions o = rig_options(N_CHAIN, N_CHAIN);
        o.kv_type = (KvType)kv;
        w.b = kv;
        for (int i = 0; i < n_chunks; i++) expect_chain(m, w, &o, w.a = chunks[i], baseline);
        free(baseline);
    }
}

static void vary_chunk(const Weights *m, Where w) { vary_chunk_among(m, w, one_to_64, 64); }
static void vary_chunk_a_little(const Weights *m, Where w) { vary_chunk_among(m, w, some_to_64, N_SOME); }

static void vary_threads(const Weights *m, Where w) {
    w.what = "threads, chunk";
    float *baseline = baseline_of_chain(m, KV_F32);
    RigOptions o = rig_options(N_CHAIN, N_CHAIN);
    for (w.a = 1; w.a <= 8; w.a++) {
        o.n_threads = w.a;
        w.b = w.a % 2 ? 23 : N_CHAIN; /* few forwards, because barriers are slow if there are more threads than cores */
        expect_chain(m, w, &o, w.b, baseline);
    }
    free(baseline);
}

static void vary_page_size(const Weights *m, Where w) {
    w.what = "page size, chunk";
    static const int32_t sizes[] = {1, 2, 3, 16};
    float *baseline = baseline_of_chain(m, KV_F32);
    for (int i = 0; i < 4; i++) {
        RigOptions o = rig_options(N_CHAIN, N_CHAIN);
        o.page_size = w.a = sizes[i];
        for (w.b = 1; w.b <= N_CHAIN; w.b *= 4) expect_chain(m, w, &o, w.b, baseline);
    }
    free(baseline);
}

/* One row among 0..63 siblings, as the first, in the middle and as the last. */
static void vary_siblings_among(const Weights *m, Where w, const int32_t *counts, int n_counts) {
    enum { N_PREFIX = 9 };
    w.what = "rows, place of the row among its siblings";
    int32_t tokens[N_PREFIX + 1], n_vocab = m->model->hparams.n_vocab;
    rig_tokens(6, n_vocab, tokens, N_PREFIX + 1);
    float *baseline = plain(m, KV_F16, tokens, N_PREFIX + 1);
    RigOptions o = rig_options(N_PREFIX + 64, 64);
    o.kv_type = KV_F16;
    Executor *e = rig_executor(m, &o);
    int32_t s = rig_sequence(e);
    rig_append(e, s, tokens, N_PREFIX, 64, n_vocab, NULL);
    for (int j = 0; j < n_counts; j++)
        for (int k = 0; k < 3; k++) {
            w.a = counts[j];
            Row rows[64];
            w.b = k == 0 ? 0 : k == 1 ? w.a / 2 : w.a - 1;
            for (int i = 0; i < w.a; i++)
                rows[i] = (Row){.token = i == w.b ? tokens[N_PREFIX] : rig_token(7, (uint64_t)i, n_vocab),
                                .sequence = s,
                                .parent = -1,
                                .want_logits = i == w.b};
            fr_error err = {0};
            if (executor_reserve(e, s, w.a, &err) || executor_forward(e, rows, w.a, &err)) fail_msg("%s", err.message);
            expect_bits(&w, "logit", executor_logits(e, w.b), row_of(m, baseline, N_PREFIX), n_vocab);
            for (int i = 0; i < w.a; i++)
                if (i != w.b) assert_null(executor_logits(e, i));
        }
    rig_executor_close(e);
    free(baseline);
}

static void vary_siblings(const Weights *m, Where w) { vary_siblings_among(m, w, one_to_64, 64); }
static void vary_siblings_a_little(const Weights *m, Where w) { vary_siblings_among(m, w, some_to_64, N_SOME); }

static void chunks_do_not_matter(void **state) {
    (void)state;
    with_each_shape(NULL, ACT_PRECISION_Q16, vary_chunk);
    with_each_shape(NULL, ACT_PRECISION_Q8, vary_chunk);
}
static void threads_do_not_matter(void **state) {
    (void)state;
    with_each_shape(NULL, ACT_PRECISION_Q16, vary_threads);
    with_the_target(vary_threads);
}
static void page_sizes_do_not_matter(void **state) {
    (void)state;
    with_each_shape(NULL, ACT_PRECISION_Q16, vary_page_size);
}
static void siblings_do_not_matter(void **state) {
    (void)state;
    with_each_shape(NULL, ACT_PRECISION_Q16, vary_siblings);
}

/* ---- random operations on several sequences -------------------------------------------------------- */

enum { MAX_LIVES = 4, MAX_ROWS = 24, N_ROUNDS = 6 };

/* A sequence of the executor, and the tokens that it must contain. */
typedef struct Life {
    bool alive;
    int32_t sequence, n;
    int32_t tokens[N_CTX];
} Life;

typedef struct World {
    const Weights *m;
    Executor *e;
    KvType kv_type;
    Where where;
    Life lives[MAX_LIVES];
    uint64_t n_draws;
    Row rows[MAX_ROWS];
    int32_t life_of_row[MAX_ROWS];
    int32_t n_rows;
    int32_t first, end; /* rows to be compared: the batch runs in pieces, each of which extends the one before */
} World;

static int32_t draw(World *w, int32_t n) { return rig_token(w->where.seed, w->n_draws++, n); }

static void start_life(World *w, Life *l) {
    *l = (Life){.alive = true, .sequence = rig_sequence(w->e), .n = draw(w, 20)};
    for (int32_t i = 0; i < l->n; i++) l->tokens[i] = draw(w, w->m->model->hparams.n_vocab);
    rig_append(w->e, l->sequence, l->tokens, l->n, 1 + draw(w, MAX_ROWS), w->m->model->hparams.n_vocab, NULL);
}

/* Cuts a sequence to its first n tokens. A model with a recurrent state may lose more of them, which are read again. */
static void cut(const Weights *m, Executor *e, int32_t sequence, const int32_t *tokens, int32_t n) {
    executor_sequence_truncate(e, sequence, n);
    int32_t left = executor_sequence_length(e, sequence);
    assert_true(left == n || (left < n && model_n_states(m->model) > 0));
    rig_append(e, sequence, tokens + left, n - left, 1, m->model->hparams.n_vocab, NULL);
}

/* Opens, closes, forks and truncates sequences, so that pages are shared, freed and half full in every way. */
static void stir(World *w) {
    for (int i = 0; i < MAX_LIVES; i++) {
        Life *l = &w->lives[i], *other = &w->lives[draw(w, MAX_LIVES)];
        int32_t what = draw(w, 8);
        if (!l->alive && other->alive && what < 4) {
            *l = *other;
            l->sequence = rig_fork(w->e, other->sequence);
        } else if (!l->alive) {
            start_life(w, l);
        } else if (what == 0 || l->n > N_CTX - MAX_ROWS) {
            executor_sequence_close(w->e, l->sequence);
            l->alive = false;
        } else if (what == 1) {
            l->n -= draw(w, l->n + 1 < 6 ? l->n + 1 : 6);
            cut(w->m, w->e, l->sequence, l->tokens, l->n);
        }
        if (l->alive) assert_int_equal(executor_sequence_length(w->e, l->sequence), l->n);
    }
}

/* Rows of random living sequences in any order, each below the committed tokens or a random earlier row. */
static void draw_rows(World *w) {
    int32_t n_of[MAX_LIVES] = {0};
    w->n_rows = 1 + draw(w, MAX_ROWS);
    for (int32_t i = 0; i < w->n_rows; i++) {
        int32_t life = draw(w, MAX_LIVES), parent = -1;
        while (!w->lives[life].alive) life = (life + 1) % MAX_LIVES;
        for (int32_t k = i - 1; k >= 0 && parent < 0; k--)
            if (w->life_of_row[k] == life && draw(w, 3) > 0) parent = k;
        w->life_of_row[i] = life;
        w->rows[i] = (Row){.token = draw(w, w->m->model->hparams.n_vocab),
                           .sequence = w->lives[life].sequence,
                           .parent = parent,
                           .want_logits = draw(w, 4) > 0};
        n_of[life]++;
    }
    fr_error err = {0};
    for (int i = 0; i < MAX_LIVES; i++)
        if (n_of[i] && executor_reserve(w->e, w->lives[i].sequence, n_of[i], &err)) fail_msg("%s", err.message);
}

/* Writes the rows on the path from the committed tokens to a row to `path`, and returns its length. */
static int32_t path_to(const World *w, int32_t row, int32_t *path) {
    int32_t n = 0;
    for (int32_t r = row; r >= 0; r = w->rows[r].parent) n++;
    for (int32_t r = row, i = n; r >= 0; r = w->rows[r].parent) path[--i] = r;
    return n;
}

/* Compares the rows of one sequence: the baseline runs its committed tokens once, and each path of the tree after
 * them. */
static void expect_rows_of(World *w, int life) {
    const Life *l = &w->lives[life];
    int32_t n_vocab = w->m->model->hparams.n_vocab, path[MAX_ROWS];
    RigOptions o = rig_options(l->n + MAX_ROWS, 1);
    o.kv_type = w->kv_type;
    Executor *baseline = rig_executor(w->m, &o);
    int32_t s = rig_sequence(baseline);
    float *logits = new_logits(w->m, 1);
    rig_append(baseline, s, l->tokens, l->n, 1, n_vocab, NULL);
    for (int32_t i = w->first; i < w->end; i++) {
        if (w->life_of_row[i] != life) continue;
        if (!w->rows[i].want_logits) {
            assert_null(executor_logits(w->e, i));
            continue;
        }
        int32_t n_path = path_to(w, i, path);
        for (int32_t k = 0; k < n_path; k++)
            rig_append(baseline, s, &w->rows[path[k]].token, 1, 1, n_vocab, k == n_path - 1 ? logits : NULL);
        w->where.b = i;
        expect_bits(&w->where, "logit", executor_logits(w->e, i), logits, n_vocab);
        expect_bits(&w->where, "hidden", executor_hidden(w->e, i), executor_hidden(baseline, 0),
                    w->m->model->hparams.n_embd);
        cut(w->m, baseline, s, l->tokens, l->n);
    }
    free(logits);
    rig_executor_close(baseline);
}

/* Each sequence keeps the path to one of its rows, or nothing. */
static void commit_paths(World *w) {
    for (int i = 0; i < MAX_LIVES; i++) {
        Life *l = &w->lives[i];
        int32_t path[MAX_ROWS], n = 0, row = draw(w, w->n_rows + 1);
        while (row < w->n_rows && w->life_of_row[row] != i) row++;
        if (!l->alive) continue;
        if (row < w->n_rows) n = path_to(w, row, path);
        executor_commit(w->e, l->sequence, path, n);
        for (int32_t k = 0; k < n; k++) l->tokens[l->n++] = w->rows[path[k]].token;
    }
}

static void run_piece(World *w) {
    fr_error err = {0};
    int32_t n = w->end - w->first;
    if (w->first == 0 ? executor_forward(w->e, w->rows, n, &err) : executor_extend(w->e, w->rows + w->first, n, &err))
        fail_msg("%s", err.message);
    for (int i = 0; i < MAX_LIVES; i++)
        if (w->lives[i].alive) expect_rows_of(w, i);
}

static void live(const Weights *m, Where where, const RigOptions *o) {
    World w = {.m = m, .e = rig_executor(m, o), .kv_type = o->kv_type, .where = where};
    for (int i = 0; i < MAX_LIVES; i++) start_life(&w, &w.lives[i]);
    for (w.where.a = 0; w.where.a < N_ROUNDS; w.where.a++) {
        bool any = false;
        while (!any) {
            stir(&w);
            for (int i = 0; i < MAX_LIVES; i++) any = any || w.lives[i].alive;
        }
        draw_rows(&w);
        for (w.first = 0; w.first < w.n_rows; w.first = w.end) {
            w.end = w.first + 1 + draw(&w, w.n_rows - w.first);
            run_piece(&w);
        }
        commit_paths(&w);
    }
    rig_executor_close(w.e);
}

static void live_variously(const Weights *m, Where w, int n_lives) {
    static const int32_t sizes[] = {1, 2, 3, 16};
    w.what = "random lives: round, row";
    for (int i = 0; i < n_lives; i++) {
        RigOptions o = rig_options(N_CTX, MAX_ROWS);
        o.max_sequences = MAX_LIVES;
        o.page_size = sizes[i % 4];
        o.n_threads = i % 4 == 3 ? 2 + i / 4 % 2 : 1;
        o.kv_type = (KvType)(i % KV_TYPE_COUNT);
        w.seed = (uint64_t)(1000 + i);
        live(m, w, &o);
    }
}

static void live_once(const Weights *m, Where w) { live_variously(m, w, 1); }
static void live_twice(const Weights *m, Where w) { live_variously(m, w, 2); }
static void live_four_times(const Weights *m, Where w) { live_variously(m, w, 4); }
static void live_twelve_times(const Weights *m, Where w) { live_variously(m, w, 12); }

static void trees_neighbours_forks_and_commits_do_not_matter(void **state) {
    (void)state;
    with_each_shape(NULL, ACT_PRECISION_Q16, live_twelve_times);
}

static void nor_for_the_model_that_ships(void **state) {
    (void)state;
    with_the_target(live_four_times);
}

/* Compares every table with ref, the first and slowest of them, on the first half of the chain. */
static void expect_same_as_ref(const Kernels *const *tables, int n, ActPrecision form, int i_shape) {
    enum { N_HALF = N_CHAIN / 2 };
    Gguf *g = rig_random_gguf(&shapes[i_shape].m);
    int32_t tokens[N_HALF], n_vocab = shapes[i_shape].m.n_vocab;
    rig_tokens(5, n_vocab, tokens, N_HALF);
    float *theirs = NULL;
    for (int k = 0; k < n; k++) {
        Weights *m = rig_weights_with(g, tables[k], form);
        float *ours = plain(m, KV_F16, tokens, N_HALF);
        if (!theirs) theirs = ours;
        Where w = {.model = shapes[i_shape].name, .what = "against ref", .table = tables[k]->name, .b = (int32_t)form};
        for (w.a = 0; w.a < N_HALF; w.a++)
            expect_bits(&w, "logit", row_of(m, ours, w.a), row_of(m, theirs, w.a), n_vocab);
        if (ours != theirs) free(ours);
        rig_weights_close(m);
    }
    free(theirs);
    gguf_close(g);
}

static void every_table_keeps_the_contract_and_agrees_with_ref(void **state) {
    (void)state;
    int n;
    const Kernels *const *tables = kernels_available(&n);
    assert_ptr_equal(tables[0], kernels_select("ref"));
    for (int k = 0; k < n; k++) with_each_shape(tables[k], ACT_PRECISION_Q16, k ? live_twice : live_once);
    for (int i = 0; i < N_SHAPES; i++)
        for (int form = ACT_PRECISION_Q16; form <= ACT_PRECISION_Q8; form++)
            expect_same_as_ref(tables, n, (ActPrecision)form, i);
    with_each_shape(tables[n - 1], ACT_PRECISION_Q8, live_twice);
}

static void the_reference_backend_keeps_the_contract(void **state) {
    (void)state;
    with_each_shape_in_reference(vary_chunk_a_little);
    with_each_shape_in_reference(vary_page_size);
    with_each_shape_in_reference(vary_siblings_a_little);
    with_each_shape_in_reference(live_once);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_do_not_matter),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(page_sizes_do_not_matter),
        cmocka_unit_test(siblings_do_not_matter),
        cmocka_unit_test(trees_neighbours_forks_and_commits_do_not_matter),
        cmocka_unit_test(nor_for_the_model_that_ships),
        cmocka_unit_test(every_table_keeps_the_contract_and_agrees_with_ref),
        cmocka_unit_test(the_reference_backend_keeps_the_contract),
    };
    return cmocka_run_group_tests(tests, fill_one_to_64, NULL);
}
