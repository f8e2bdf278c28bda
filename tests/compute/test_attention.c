/* test_attention.c - contexts of several tiles of keys (attention.c) give the same bits for whole pairs or tiles, any
 * number of threads, chunks, pages, KV types, other rows in the batch, paths that cross the edge of a tile, and every
 * kernel table; and their values are compared with double precision. The baseline runs the same tokens one per forward,
 * on one thread, in pages of 16.
 *
 * The models have one or two KV heads, so that a few rows are fewer pairs than threads: then keys are split. */
#include "testing.h"

#include "model_rig.h"
#include "compute/backend.h"

#include <stdlib.h>
#include <string.h>

#define SHAPE(a, layers, embd, heads, kv, ff, vocab) \
    .arch = a, .n_layer = layers, .n_embd = embd, .n_head = heads, .n_head_kv = kv, .n_ff = ff, .n_vocab = vocab

static const RandomModel one_head = {SHAPE("llama", 2, 40, 5, 1, 24, 31), .seed = 1};
static const RandomModel two_heads = {SHAPE("qwen3", 1, 64, 4, 2, 32, 31), .types = {TYPE_Q8_0}, .n_types = 1,
                                      .seed = 2};
/* There are enough heads for the values of a Q8 cache to be converted once for all of them. */
static const RandomModel eight_of_one = {SHAPE("llama", 1, 128, 8, 1, 32, 31), .types = {TYPE_Q8_0}, .n_types = 1,
                                         .seed = 4};

/* The keys in a tile, as in docs/ARCHITECTURE.md; contexts end in the third tile. */
enum { TILE = 512, N_TOKENS = 2 * TILE + 76 };

typedef struct Text {
    Gguf *g;
    Weights *m;
    int32_t n_vocab, tokens[N_TOKENS];
} Text;

static Text text_open(const RandomModel *shape, const Kernels *kernels) {
    Text t = {.g = rig_random_gguf(shape)};
    t.m = rig_weights(t.g, kernels);
    t.n_vocab = t.m->model->hparams.n_vocab;
    rig_tokens(3, t.n_vocab, t.tokens, N_TOKENS);
    return t;
}

static void text_close(Text *t) {
    rig_weights_close(t->m);
    gguf_close(t->g);
}

static float *new_logits(const Text *t) {
    float *p = calloc((size_t)(N_TOKENS * t->n_vocab), sizeof *p);
    assert_non_null(p);
    return p;
}

static RigOptions options(int n_threads, KvType kv_type, int32_t page_size) {
    RigOptions o = rig_options(N_TOKENS + 16, 64);
    o.n_threads = n_threads, o.kv_type = kv_type, o.page_size = page_size, o.max_sequences = 3;
    return o;
}

static float *baseline(const Text *t, KvType kv_type) {
    RigOptions o = options(1, kv_type, 16);
    Executor *e = rig_executor(t->m, &o);
    float *logits = new_logits(t);
    rig_append(e, rig_sequence(e), t->tokens, N_TOKENS, 1, t->n_vocab, logits);
    rig_executor_close(e);
    return logits;
}

static void expect_row(const char *what, int n_threads, KvType kv_type, int32_t i, const float *ours,
                       const float *theirs, int32_t n) {
    if (memcmp(ours, theirs, (size_t)n * sizeof *ours))
        fail_msg("%s, %d threads, KV %s: logits after token %d differ: the first is %.9g, in the baseline %.9g", what,
                 n_threads, kv_type_name(kv_type), i, (double)ours[0], (double)theirs[0]);
}

/* Reads the text in chunks of many rows (whole pairs) and, around the edges of tiles and at the end, of few rows
 * (tiles). */
static void expect_text(const Text *t, const char *what, int n_threads, KvType kv_type, int32_t page_size,
                        const float *theirs) {
    static const struct {
        int32_t end, chunk;
    } pieces[] = {
        {TILE - 5, 61}, {TILE + 5, 1}, {2 * TILE - 6, 64}, {2 * TILE + 6, 2}, {N_TOKENS - 30, 7}, {N_TOKENS, 3},
    };
    RigOptions o = options(n_threads, kv_type, page_size);
    Executor *e = rig_executor(t->m, &o);
    int32_t s = rig_sequence(e), from = 0;
    float *ours = new_logits(t);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; from = pieces[i++].end)
        rig_append(e, s, t->tokens + from, pieces[i].end - from, pieces[i].chunk, t->n_vocab, ours + from * t->n_vocab);
    for (int32_t i = 0; i < N_TOKENS; i++)
        expect_row(what, n_threads, kv_type, i, ours + i * t->n_vocab, theirs + i * t->n_vocab, t->n_vocab);
    free(ours);
    rig_executor_close(e);
}

static void threads_chunks_pages_and_types_do_not_matter(void **state) {
    (void)state;
    static const int32_t pages[] = {16, 3, 1, 32};
    const RandomModel *shapes[] = {&one_head, &two_heads};
    for (int k = 0; k < 2; k++) {
        Text t = text_open(shapes[k], NULL);
        for (int kv = 0; kv < KV_TYPE_COUNT; kv++) {
            float *theirs = baseline(&t, (KvType)kv);
            for (int n = k ? 3 : 1; n <= 4; n++)
                expect_text(&t, k ? "two heads" : "one head", n, (KvType)kv, pages[n - 1], theirs);
            free(theirs);
        }
        text_close(&t);
    }
}

static void many_heads_of_one_key_over_q8(void **state) {
    (void)state;
    Text t = text_open(&eight_of_one, NULL), plain = text_open(&eight_of_one, kernels_select("ref"));
    float *theirs = baseline(&plain, KV_Q8);
    for (int n = 1; n <= 4; n += 3) expect_text(&t, "eight heads of one", n, KV_Q8, 3, theirs);
    free(theirs);
    text_close(&t), text_close(&plain);
}

static void every_table_agrees_with_ref(void **state) {
    (void)state;
    int n;
    const Kernels *const *tables = kernels_available(&n);
    const RandomModel *shapes[] = {&one_head, &two_heads};
    for (int i = 0; i < 2; i++) {
        Text ref = text_open(shapes[i], kernels_select("ref"));
        static const KvType types[] = {KV_F16, KV_Q8}; /* their scores are computed by different operations */
        for (size_t type = 0; type < sizeof types / sizeof *types; type++) {
            float *theirs = baseline(&ref, types[type]);
            for (int k = 0; k < n; k++) {
                Text t = text_open(shapes[i], tables[k]);
                expect_text(&t, tables[k]->name, i ? 2 : 4, types[type], 16, theirs);
                text_close(&t);
            }
            free(theirs);
        }
        text_close(&ref);
    }
}

/* A tree of five rows after n tokens, and one row after 9 tokens: compares each row with the baseline of its path. */
static void expect_tree(const Text *t, KvType kv_type, int n_threads, int32_t n) {
    enum { N_ROWS = 6, N_SHORT = 9 };
    static const int32_t parents[] = {-1, -1, 1, 1, 3, -1}; /* the last is of the other sequence */
    RigOptions o = options(n_threads, kv_type, 3);
    Executor *e = rig_executor(t->m, &o);
    int32_t s = rig_sequence(e), other = rig_sequence(e), path[N_ROWS];
    rig_append(e, s, t->tokens, n, 64, t->n_vocab, NULL);
    rig_append(e, other, t->tokens, N_SHORT, 64, t->n_vocab, NULL);
    Row rows[N_ROWS];
    for (int i = 0; i < N_ROWS; i++)
        rows[i] = (Row){.token = rig_token(8, (uint64_t)i, t->n_vocab),
                        .sequence = i < N_ROWS - 1 ? s : other,
                        .parent = parents[i],
                        .want_logits = true};
    fr_error err = {0};
    if (executor_reserve(e, s, N_ROWS - 1, &err) || executor_reserve(e, other, 1, &err) ||
        executor_forward(e, rows, N_ROWS, &err))
        fail_msg("%s", err.message);
    float *ours = calloc((size_t)(N_ROWS * t->n_vocab), sizeof *ours),
          *theirs = calloc((size_t)t->n_vocab, sizeof *theirs);
    for (int i = 0; i < N_ROWS; i++)
        memcpy(ours + i * t->n_vocab, executor_logits(e, i), (size_t)t->n_vocab * sizeof *ours);
    o.n_threads = 1, o.page_size = 16;
    Executor *one = rig_executor(t->m, &o);
    int32_t plain = rig_sequence(one);
    for (int i = 0; i < N_ROWS; i++) {
        int32_t length = i < N_ROWS - 1 ? n : N_SHORT, n_path = 0;
        if (executor_sequence_length(one, plain) < length)
            rig_append(one, plain, t->tokens, length, 64, t->n_vocab, NULL);
        executor_sequence_truncate(one, plain, length);
        for (int32_t k = i; k >= 0; k = parents[k]) path[n_path++] = rows[k].token;
        while (n_path > 0) rig_append(one, plain, &path[--n_path], 1, 1, t->n_vocab, theirs);
        expect_row("a tree", n_threads, kv_type, n + i, ours + i * t->n_vocab, theirs, t->n_vocab);
    }
    free(ours), free(theirs);
    rig_executor_close(one), rig_executor_close(e);
}

static void trees_across_an_edge_and_company_do_not_matter(void **state) {
    (void)state;
    static const int32_t lengths[] = {TILE - 2, TILE - 1, TILE, 2 * TILE - 2, 2 * TILE + 50};
    const RandomModel *shapes[] = {&one_head, &two_heads}; /* the second one's rows share their keys */
    for (int k = 0; k < 2; k++) {
        Text t = text_open(shapes[k], NULL);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (int n = 1; n <= 7; n += 3) /* 7 is more than there are rows */
                expect_tree(&t, (KvType)(i % KV_TYPE_COUNT), n, lengths[i]);
        text_close(&t);
    }
}

/* The bound of test_reference.c for F32 weights: some hundred roundings of 2^-24. */
static void values_are_those_of_the_formulas(void **state) {
    (void)state;
    Text t = text_open(&one_head, NULL);
    RigOptions o = options(2, KV_F32, 16);
    Weights *r = rig_weights_in(&backend_reference, t.g);
    Executor *reference = rig_executor(r, &o);
    float *theirs = new_logits(&t);
    rig_append(reference, rig_sequence(reference), t.tokens, N_TOKENS, 64, t.n_vocab, theirs);
    rig_executor_close(reference);
    Executor *e = rig_executor(t.m, &o);
    int32_t s = rig_sequence(e), n_rows = N_TOKENS - 40, n_long = N_TOKENS - TILE;
    float *ours = new_logits(&t);
    rig_append(e, s, t.tokens, n_rows, 64, t.n_vocab, ours);
    rig_append(e, s, t.tokens + n_rows, N_TOKENS - n_rows, 1, t.n_vocab, ours + n_rows * t.n_vocab);
    double error = rig_rel_rms(ours + TILE * t.n_vocab, theirs + TILE * t.n_vocab, (int64_t)n_long * t.n_vocab);
    if (!(error <= 1e-5)) fail_msg("relative rms error of logits %.3e, at most 1e-5", error);
    free(ours), free(theirs);
    rig_executor_close(e);
    rig_weights_close(r);
    text_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_chunks_pages_and_types_do_not_matter),
        cmocka_unit_test(many_heads_of_one_key_over_q8),
        cmocka_unit_test(every_table_agrees_with_ref),
        cmocka_unit_test(trees_across_an_edge_and_company_do_not_matter),
        cmocka_unit_test(values_are_those_of_the_formulas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
