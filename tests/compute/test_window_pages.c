/* test_window_pages.c - layers with a window, on pages of their own, in the executor: rows of trees have the bits of
 * plain decoding on pages that are never released, whatever was forked, cut, marked, shared and freed in between, for
 * windows smaller and larger than pages; no more pages are kept than windows need; and a page that is released too
 * early is detected. */
#include "testing.h"

#include "compute/sequences.h"
#include "compute/backend.h"
#include "model_rig.h"

#include <stdlib.h>
#include <string.h>

enum { N_VOCAB = 61, N_CTX = 120, MAX_ROWS = 14, N_LIVES = 4, N_ROUNDS = 60 };

#define SHAPE(a, layers, heads, kv) \
    .arch = a, .n_layer = layers, .n_embd = 32, .n_head = heads, .n_head_kv = kv, .n_ff = 40, .n_vocab = N_VOCAB

static const RandomModel shapes[] = {
    {SHAPE("gemma2", 2, 4, 2), .head_dim = 8, .seed = 1},
    {SHAPE("gemma3", 6, 2, 1), .head_dim = 16, .rope_base = 1e6, .seed = 2},
    {SHAPE("gpt-oss", 2, 4, 2), .head_dim = 8, .n_expert = 4, .n_expert_used = 2, .n_ff_expert = 40, .seed = 3},
    {SHAPE("phi3", 2, 4, 2), .seed = 4}, /* every layer has a window */
    {SHAPE("llama4", 4, 2, 1), .n_expert = 2, .n_expert_used = 1, .n_ff_expert = 40, .n_ff_shared = 40,
     .expert_interval = 4, .temperature_length = 7, .seed = 5}, /* chunks */
    {SHAPE("gemma4", 4, 2, 1), .head_dim = 16, .local_head_dim = 8, .attention_interval = 2, .n_shared_kv = 2,
     .n_ple = 8, .seed = 6},
};
static const int32_t windows[] = {1, 2, 5, 9, 30}, page_sizes[] = {1, 2, 3, 8, 16};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, N_WINDOWS = 5, N_SIZES = 5 };

typedef struct Life {
    int32_t sequence, n;
    int32_t tokens[N_CTX];
} Life;

typedef struct World {
    const Weights *weights;
    Executor *e, *plain; /* plain: one token per forward, with pages that are kept */
    int32_t plain_sequence, window, size;
    Life lives[N_LIVES];
    uint64_t seed, n_draws;
    int n_cut_to_marks;
} World;

static int32_t draw(World *w, int32_t n) { return rig_token(w->seed, w->n_draws++, n); }

/* Returns the pages that the sequences may need for windows, the rows of a forward, and marks. */
static int64_t enough_pages(int32_t window, int32_t size) { return (3 * N_LIVES) * ((window + MAX_ROWS) / size + 3); }

static Executor *open_executor(const Weights *weights, int32_t size, int64_t n_window_pages) {
    const ExecutorOptions options = {.kv_type = KV_F16,
                                     .page_size = size,
                                     .n_ctx = N_CTX,
                                     .max_sequences = N_LIVES,
                                     .n_window_pages = n_window_pages,
                                     .max_rows = MAX_ROWS};
    Executor *e = NULL;
    fr_error err;
    if (executor_open(&e, rig_device(weights, 1), weights, &options, &err)) fail_msg("%s", err.message);
    return e;
}

/* The logits of `token` after these tokens, by plain decoding. */
static void expect_plain(World *w, const int32_t *tokens, int32_t n, int32_t token, const float *logits) {
    float plain[N_VOCAB];
    executor_sequence_truncate(w->plain, w->plain_sequence, 0);
    rig_append(w->plain, w->plain_sequence, tokens, n, MAX_ROWS, N_VOCAB, NULL);
    rig_append(w->plain, w->plain_sequence, &token, 1, 1, N_VOCAB, plain);
    if (memcmp(plain, logits, sizeof plain) != 0)
        fail_msg("%s, window %d, pages of %d, seed %d: a row after %d tokens differs from plain decoding",
                 arch_name(w->weights->model->hparams.arch), w->window, w->size, (int)w->seed, n);
}

/* Tokens that a cut or a shared prefix has lost are read again. */
static void read_again(World *w, const Life *l) {
    int32_t n = executor_sequence_length(w->e, l->sequence);
    assert_true(n <= l->n);
    w->n_cut_to_marks += n > 0 && n < l->n;
    rig_append(w->e, l->sequence, l->tokens + n, l->n - n, 1 + draw(w, MAX_ROWS), N_VOCAB, NULL);
}

static void stir(World *w, Life *l) {
    const Life *from = &w->lives[draw(w, N_LIVES)];
    int32_t what = draw(w, 10);
    if (what < 2 && from != l && from->n > 0) {
        int32_t sequence = l->sequence, n = draw(w, from->n + 1);
        executor_sequence_share(w->e, from->sequence, sequence, n);
        *l = *from;
        l->sequence = sequence, l->n = n;
        read_again(w, l);
    } else if (what == 2) {
        if (from == l) return;
        executor_sequence_close(w->e, l->sequence);
        *l = *from;
        l->sequence = rig_fork(w->e, from->sequence);
    } else if (what < 5) {
        l->n = draw(w, l->n + 1);
        executor_sequence_truncate(w->e, l->sequence, l->n);
        read_again(w, l);
    } else if (what < 7) {
        executor_sequence_mark(w->e, l->sequence, l->n - draw(w, l->n < 3 ? l->n + 1 : 3));
    } else if (what == 7 || l->n > N_CTX - MAX_ROWS) {
        executor_sequence_truncate(w->e, l->sequence, 0);
        l->n = draw(w, N_CTX - MAX_ROWS);
        for (int32_t i = 0; i < l->n; i++) l->tokens[i] = draw(w, N_VOCAB);
        read_again(w, l);
    }
}

/* A random tree of one sequence: one of its rows is compared, and the path to it is kept. */
static void run_tree(World *w, Life *l) {
    Row rows[MAX_ROWS];
    int32_t n = 1 + draw(w, MAX_ROWS), path[MAX_ROWS], n_path = 0, row = draw(w, n);
    fr_error err;
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = draw(w, N_VOCAB),
                        .sequence = l->sequence,
                        .parent = i ? draw(w, i + 1) - 1 : -1,
                        .want_logits = true};
    if (executor_reserve(w->e, l->sequence, n, &err) || executor_forward(w->e, rows, n, &err))
        fail_msg("%s", err.message);
    for (int32_t i = row; i >= 0; i = rows[i].parent) n_path++;
    for (int32_t i = row, k = n_path; i >= 0; i = rows[i].parent) path[--k] = i;
    for (int32_t k = 0; k < n_path - 1; k++) l->tokens[l->n + k] = rows[path[k]].token;
    expect_plain(w, l->tokens, l->n + n_path - 1, rows[row].token, executor_logits(w->e, row));
    l->tokens[l->n + n_path - 1] = rows[row].token;
    executor_commit(w->e, l->sequence, path, n_path);
    l->n += n_path;
}

static void live(World *w, int64_t n_window_pages) {
    w->e = open_executor(w->weights, w->size, n_window_pages);
    w->plain = open_executor(w->weights, 16, 0);
    w->plain_sequence = rig_sequence(w->plain);
    for (int i = 0; i < N_LIVES; i++) w->lives[i] = (Life){.sequence = rig_sequence(w->e)};
    for (int round = 0; round < N_ROUNDS; round++) {
        Life *l = &w->lives[draw(w, N_LIVES)];
        stir(w, l);
        if (l->n <= N_CTX - MAX_ROWS) run_tree(w, l);
    }
    for (int i = 0; i < N_LIVES; i++) executor_sequence_close(w->e, w->lives[i].sequence);
    assert_int_equal(executor_n_free_window_pages(w->e), n_window_pages);
    assert_int_equal(executor_n_free_pages(w->e), executor_n_pages(w->e));
    rig_executor_close(w->e);
    rig_executor_close(w->plain);
}

static void live_in(const Backend *backend, int32_t n_sizes) {
    int n_cut_to_marks = 0;
    for (int i = 0; i < N_SHAPES; i++)
        for (int k = 0; k < N_WINDOWS; k++) {
            RandomModel m = shapes[i];
            m.window = windows[k];
            Gguf *g = rig_random_gguf(&m);
            World w = {.weights = rig_weights_in(backend, g), .window = m.window};
            for (int j = 0; j < n_sizes; j++) {
                w.seed = (uint64_t)(100 * i + 10 * k + j + 1);
                w.size = page_sizes[(j + k) % N_SIZES];
                live(&w, enough_pages(w.window, w.size));
            }
            n_cut_to_marks += w.n_cut_to_marks;
            Weights *weights;
            memcpy(&weights, &w.weights, sizeof weights);
            rig_weights_close(weights);
            gguf_close(g);
        }
    assert_true(n_cut_to_marks > 0);
}

static void nothing_changes_a_bit(void **state) {
    (void)state;
    live_in(backends()[0], N_SIZES);
}

static void nor_in_the_reference_backend(void **state) {
    (void)state;
    live_in(&backend_reference, 1);
}

/* ---- pages ----------------------------------------------------------------------------------------- */

static int32_t n_held(const Executor *e) { return executor_n_window_pages(e) - executor_n_free_window_pages(e); }

/* A text of 100 tokens with a window of 5 keeps the pages of that window, and of the rows of the last forward. */
static void pages_that_a_window_has_passed_are_free(void **state) {
    (void)state;
    enum { WINDOW = 5, N = 100 };
    RandomModel m = shapes[0];
    m.window = WINDOW;
    Gguf *g = rig_random_gguf(&m);
    Weights *weights = rig_weights_in(backends()[0], g);
    int32_t tokens[N];
    rig_tokens(1, N_VOCAB, tokens, N);
    for (int k = 0; k < N_SIZES; k++)
        for (int32_t chunk = 1; chunk <= 7; chunk += 3) {
            int32_t size = page_sizes[k], most = (WINDOW - 1 + chunk + size - 1) / size + 1;
            Executor *e = open_executor(weights, size, most); /* there is not one page more */
            int32_t s = rig_sequence(e), other = rig_sequence(e);
            rig_append(e, s, tokens, N, chunk, N_VOCAB, NULL);
            assert_in_range(n_held(e), 1, most);
            assert_int_equal(executor_n_pages(e) - executor_n_free_pages(e), (N + size - 1) / size);
            assert_int_equal(executor_sequence_reach(e, s, N - chunk - size - WINDOW), 0);
            executor_sequence_share(e, s, other, N);
            assert_in_range(n_held(e), 1, most); /* the two sequences share pages */
            executor_sequence_truncate(e, s, 0);
            executor_sequence_truncate(e, other, 0);
            assert_int_equal(n_held(e), 0);
            fr_error err;
            if (executor_room(e, s, 0) < WINDOW + 2 * size) executor_sequence_close(e, s);
            else if (executor_sequence_pad(e, s, N, &err)) fail_msg("%s", err.message);
            assert_in_range(n_held(e), 0, most);
            rig_executor_close(e);
        }
    rig_weights_close(weights);
    gguf_close(g);
}

static void what_does_not_fit_changes_nothing(void **state) {
    (void)state;
    RandomModel m = shapes[0];
    m.window = 6;
    Gguf *g = rig_random_gguf(&m);
    Weights *weights = rig_weights_in(backends()[0], g);
    Executor *e = open_executor(weights, 2, 9);
    int32_t s = rig_sequence(e), other = rig_sequence(e), tokens[40];
    fr_error err;
    rig_tokens(1, N_VOCAB, tokens, 40);
    rig_append(e, s, tokens, 10, 5, N_VOCAB, NULL);
    int32_t n_free = executor_n_free_pages(e), n_free_windows = executor_n_free_window_pages(e);
    int32_t room = executor_room(e, other, 0);
    assert_int_equal(room, 2 * n_free_windows);
    assert_int_equal(executor_reserve(e, other, room + 1, &err), FR_ERR_MEMORY);
    assert_int_equal(executor_n_free_pages(e), n_free);
    assert_int_equal(executor_n_free_window_pages(e), n_free_windows);
    assert_int_equal(executor_reserve_ahead(e, other, room, 60, &err),
                     FR_OK); /* tokens that are read later need no window yet */
    assert_int_equal(executor_n_free_window_pages(e), 0);
    executor_commit(e, other, NULL, 0);
    assert_int_equal(executor_n_free_pages(e), n_free);
    executor_sequence_mark(e, s, 10);
    rig_append(e, s, tokens + 10, 8, 2, N_VOCAB, NULL);
    assert_true(executor_room(e, other, 0) < 12); /* 6 pages would be enough */
    assert_false(executor_drop_mark(e, other, executor_room(e, other, 0)));
    int32_t before = executor_room(e, other, 0);
    assert_true(executor_drop_mark(e, other, 18));
    assert_true(executor_room(e, other, 0) > before);
    assert_false(executor_drop_mark(e, other, 18));
    rig_executor_close(e);
    rig_weights_close(weights);
    gguf_close(g);
}

/* Control: a table with too narrow a window releases a page too early, and another sequence writes into it. */
static void a_page_released_too_early_is_detected(void **state) {
    (void)state;
    enum { WINDOW = 9, SIZE = 4, N = 40 };
    RandomModel m = shapes[1];
    m.window = WINDOW;
    Gguf *g = rig_random_gguf(&m);
    Weights *weights = rig_weights_in(backends()[0], g);
    int32_t tokens[N + 1];
    float logits[2][N_VOCAB];
    rig_tokens(1, N_VOCAB, tokens, N + 1);
    for (int too_early = 0; too_early < 2; too_early++) {
        Executor *e = open_executor(weights, SIZE, 20);
        int32_t s = rig_sequence(e), other = rig_sequence(e);
        rig_append(e, s, tokens, N, 5, N_VOCAB, NULL);
        executor_sequences(e)->kv[KV_WINDOW].shape.window -= too_early * SIZE;
        fr_error err;
        if (executor_reserve(e, s, 1, &err)) fail_msg("%s", err.message);
        for (int32_t i = 0; i < N_CTX; i += SIZE) /* a place without a page is -1: point it to where its key was */
            if (executor_sequences(e)->kv[KV_WINDOW].sequences[s].slots[i] < 0)
                for (int k = 0; k < SIZE; k++) executor_sequences(e)->kv[KV_WINDOW].sequences[s].slots[i + k] = 0;
        rig_append(e, other, tokens + 1, 12, 12, N_VOCAB, NULL);
        rig_append(e, s, tokens + N, 1, 1, N_VOCAB, logits[too_early]);
        rig_executor_close(e);
    }
    assert_memory_not_equal(logits[0], logits[1], sizeof logits[0]);
    rig_weights_close(weights);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_that_a_window_has_passed_are_free),
        cmocka_unit_test(what_does_not_fit_changes_nothing),
        cmocka_unit_test(a_page_released_too_early_is_detected),
        cmocka_unit_test(nothing_changes_a_bit),
        cmocka_unit_test(nor_in_the_reference_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
