/* test_block_rows.c - rows of a block, which see each other in both directions, after a context that was only stored: a
 * block has the same bits whatever the threads, pages, chunks of the context and neighbours are; the two backends
 * agree; a row sees the rows after it; and only rows that are marked do. */
#include "model_rig.h"
#include "testing.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

/* More keys than a tile of attention.c. */
enum { H = 64, V = 100, N_CONTEXT = 600, BLOCK = 5, MAX_ROWS = 700 };

static float inputs[N_CONTEXT + BLOCK][H];

static void make_inputs(void) {
    for (uint64_t i = 0; i < N_CONTEXT + BLOCK; i++)
        for (uint32_t k = 0; k < H; k++) inputs[i][k] = (float)rng_uniform(3, RNG_TEST, i, k) - 0.5f;
}

/* A model with a layer that has a window, and one that has none. */
static Gguf *open_model(void) {
    return rig_random_gguf(&(RandomModel){.arch = "gemma3",
                                          .n_layer = 6,
                                          .n_embd = H,
                                          .n_head = 4,
                                          .n_head_kv = 1,
                                          .n_ff = 96,
                                          .n_vocab = V,
                                          .window = 40,
                                          .seed = 9});
}

/* Stores a context of n inputs, `chunk` at a time. */
static void store(Executor *e, int32_t s, int32_t n, int32_t chunk) {
    static Row rows[N_CONTEXT];
    static int32_t ids[N_CONTEXT];
    fr_error err;
    for (int32_t first = 0; first < n; first += chunk) {
        int32_t now = chunk < n - first ? chunk : n - first;
        for (int32_t i = 0; i < now; i++) {
            rows[i] = (Row){.sequence = s, .parent = i - 1, .input = inputs[first + i]};
            ids[i] = i;
        }
        if (executor_reserve(e, s, now, &err) || executor_store(e, rows, now, &err)) fail_msg("%s", err.message);
        executor_commit(e, s, ids, now);
    }
}

/* Runs a block in each of the sequences, and copies the hidden states of the first one. `last` is the input of its last
 * slot. */
static void run_block(Executor *e, const int32_t *sequences, int32_t n, bool in_block, const float *last,
                      float out[BLOCK][H]) {
    Row rows[2 * BLOCK];
    fr_error err;
    for (int32_t i = 0; i < n * BLOCK; i++)
        rows[i] = (Row){.sequence = sequences[i / BLOCK],
                        .parent = i % BLOCK ? i - 1 : -1,
                        .in_block = in_block,
                        .want_hidden = true,
                        .input = i == BLOCK - 1 ? last : inputs[N_CONTEXT + i % BLOCK]};
    for (int32_t i = 0; i < n; i++)
        if (executor_reserve(e, sequences[i], BLOCK, &err)) fail_msg("%s", err.message);
    if (executor_forward(e, rows, n * BLOCK, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < BLOCK; i++) memcpy(out[i], executor_hidden(e, i), sizeof out[i]);
    for (int32_t i = 0; i < n; i++) executor_commit(e, sequences[i], NULL, 0);
}

static void a_block_has_the_same_bits_everywhere(void **state) {
    (void)state;
    static const struct {
        int32_t n_threads, page_size, chunk;
    } ways[] = {{1, 16, N_CONTEXT}, {3, 7, 64}, {8, 64, 599}};
    float first[BLOCK][H], out[BLOCK][H];
    Gguf *g = open_model();
    Weights *w = rig_weights(g, NULL);
    for (size_t k = 0; k < sizeof ways / sizeof *ways; k++) {
        RigOptions o = rig_options(MAX_ROWS, MAX_ROWS);
        o.n_threads = ways[k].n_threads, o.page_size = ways[k].page_size, o.max_sequences = 2;
        Executor *e = rig_executor(w, &o);
        int32_t sequences[] = {rig_sequence(e), rig_sequence(e)};
        store(e, sequences[0], N_CONTEXT, ways[k].chunk);
        store(e, sequences[1], 30, 11);
        for (int32_t n = 1; n <= 2; n++) {
            run_block(e, sequences, n, true, inputs[N_CONTEXT + BLOCK - 1], k || n > 1 ? out : first);
            if (k || n > 1) assert_memory_equal(first, out, sizeof out);
        }
        rig_executor_close(e);
    }
    rig_weights_close(w);
    gguf_close(g);
}

static void both_backends_agree_and_rows_see_later_ones(void **state) {
    (void)state;
    static float out[2][2][2][BLOCK][H]; /* backend, in_block, another last slot */
    const Backend *const both[] = {&backend_cpu, &backend_reference};
    Gguf *g = open_model();
    for (int b = 0; b < 2; b++) {
        Weights *w = rig_weights_in(both[b], g);
        RigOptions o = rig_options(MAX_ROWS, MAX_ROWS);
        Executor *e = rig_executor(w, &o);
        int32_t s = rig_sequence(e);
        store(e, s, N_CONTEXT, 100);
        for (int in_block = 0; in_block < 2; in_block++)
            for (int other = 0; other < 2; other++)
                run_block(e, &s, 1, in_block, inputs[other ? 0 : N_CONTEXT + BLOCK - 1], out[b][in_block][other]);
        rig_executor_close(e);
        rig_weights_close(w);
        assert_memory_equal(out[b][0][0], out[b][0][1], (BLOCK - 1) * sizeof out[b][0][0][0]);
        for (int i = 0; i < BLOCK; i++) assert_true(rig_rel_rms(out[b][1][1][i], out[b][1][0][i], H) > 1e-3);
    }
    for (int in_block = 0; in_block < 2; in_block++)
        assert_true(rig_rel_rms(out[0][in_block][0][0], out[1][in_block][0][0], BLOCK * H) < 2e-3);
    gguf_close(g);
}

int main(void) {
    make_inputs();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_has_the_same_bits_everywhere),
        cmocka_unit_test(both_backends_agree_and_rows_see_later_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
