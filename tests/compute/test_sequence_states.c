/* test_sequence_states.c - recurrent states of sequences in the executor, for both backends: how far a sequence can be
 * cut and shared, and that the remaining state is that of plain decoding, bit for bit. Controls in which the state is
 * one token too far back or ahead must be detected. */
#include "testing.h"

#include "compute/backend.h"
#include "model_rig.h"

#include <stdlib.h>
#include <string.h>

enum { N_VOCAB = 61, N = 40 };

#define SHAPE(a, layers, ff) \
    .arch = a, .n_layer = layers, .n_embd = 40, .n_head = 5, .n_head_kv = 1, .n_ff = ff, .n_vocab = N_VOCAB

/* One kind of recurrent layer each. */
static const RandomModel hybrids[] = {
    {SHAPE("qwen35", 4, 50), .n_key_heads = 2, .n_value_heads = 4, .delta_dim = 18, .n_conv = 4,
     .attention_interval = 2, .seed = 7},
    {SHAPE("lfm2", 3, 50), .n_conv = 3, .attention_interval = 3, .seed = 8},
    {SHAPE("granitehybrid", 3, 50), .n_key_heads = 1, .n_value_heads = 5, .delta_dim = 14, .n_ssm_state = 18,
     .n_conv = 4, .attention_interval = 3, .seed = 9},
    {SHAPE("mamba2", 2, 0), .n_key_heads = 2, .n_value_heads = 4, .delta_dim = 20, .n_ssm_state = 10, .n_conv = 2,
     .seed = 10},
};

static const Weights *weights;
static int32_t tokens[N];
static float plain[N][N_VOCAB]; /* the logits after each token, with one token per forward */

static Executor *open_executor(void) {
    RigOptions o = rig_options(N, N);
    o.max_sequences = 4, o.page_size = 3;
    return rig_executor(weights, &o);
}

/* Compares the logits of token `at` after the sequence; nothing is committed. */
static void expect_next(Executor *e, int32_t sequence, int32_t at, bool same) {
    const Row row = {.token = tokens[at], .sequence = sequence, .parent = -1, .want_logits = true};
    fr_error err;
    if (executor_reserve(e, sequence, 1, &err) || executor_forward(e, &row, 1, &err)) fail_msg("%s", err.message);
    bool is_same = memcmp(executor_logits(e, 0), plain[at], sizeof plain[at]) == 0;
    if (is_same != same) fail_msg("token %d: the logits are %s those of plain decoding", at, same ? "not" : "still");
    executor_commit(e, sequence, NULL, 0);
}

static void append(Executor *e, int32_t sequence, int32_t from, int32_t to, int32_t chunk) {
    rig_append(e, sequence, tokens + from, to - from, chunk, N_VOCAB, NULL);
}

/* Runs a tree after the `first` tokens of the sequence: three chains, of which the second is the text. Keeps n tokens
 * of it. */
static void run_tree(Executor *e, int32_t sequence, int32_t first, int32_t n) {
    enum { LENGTH = 5 };
    Row rows[3 * LENGTH];
    int32_t kept[LENGTH];
    fr_error err;
    for (int i = 0; i < 3 * LENGTH; i++) {
        int depth = i / 3, chain = i % 3;
        rows[i] = (Row){.token = (tokens[first + depth] + (chain != 1) * (1 + chain)) % N_VOCAB,
                        .sequence = sequence,
                        .parent = depth ? i - 3 : -1,
                        .want_logits = true};
        if (chain == 1) kept[depth] = i;
    }
    if (executor_reserve(e, sequence, 3 * LENGTH, &err) || executor_forward(e, rows, 3 * LENGTH, &err))
        fail_msg("%s", err.message);
    for (int depth = 0; depth < LENGTH; depth++)
        assert_memory_equal(executor_logits(e, 3 * depth + 1), plain[first + depth], sizeof plain[0]);
    executor_commit(e, sequence, kept, n);
}

static void an_accepted_path_leaves_the_state_of_plain_decoding(void **state) {
    (void)state;
    for (int32_t n = 0; n <= 5; n++) {
        Executor *e = open_executor();
        int32_t s = rig_sequence(e);
        append(e, s, 0, 10, 4);
        run_tree(e, s, 10, n);
        expect_next(e, s, 10 + n, true);
        expect_next(e, s, 10 + n, true);
        rig_executor_close(e);
    }
}

static void tokens_of_the_last_forward_can_be_taken_back(void **state) {
    (void)state;
    for (int32_t cut = 9; cut <= 15; cut++) {
        Executor *e = open_executor();
        int32_t s = rig_sequence(e);
        append(e, s, 0, 10, 10);
        append(e, s, 10, 15, 5);
        assert_int_equal(executor_sequence_reach(e, s, cut), cut < 10 ? 0 : cut);
        executor_sequence_truncate(e, s, cut);
        int32_t left = executor_sequence_length(e, s);
        assert_int_equal(left, cut < 10 ? 0 : cut);
        expect_next(e, s, left, true);
        assert_int_equal(executor_sequence_reach(e, s, left), left);
        if (left) assert_int_equal(executor_sequence_reach(e, s, left - 1), 0); /* the forward has advanced the state */
        append(e, s, left, 20, 3);
        expect_next(e, s, 20, true);
        rig_executor_close(e);
    }
}

static void a_state_is_shared_at_each_of_these_lengths(void **state) {
    (void)state;
    for (int32_t n = 9; n <= 15; n++) {
        Executor *e = open_executor();
        int32_t s = rig_sequence(e), other = rig_sequence(e), fork;
        append(e, other, 20, 27, 7);
        append(e, s, 0, 10, 10);
        append(e, s, 10, 15, 5);
        executor_sequence_share(e, s, other, n);
        fork = rig_fork(e, s);
        assert_int_equal(executor_sequence_length(e, other), n < 10 ? 0 : n);
        expect_next(e, other, n < 10 ? 0 : n, true);
        expect_next(e, s, 15, true);
        append(e, s, 15, 18, 1);
        expect_next(e, fork, 15, true);
        expect_next(e, s, 18, true);
        executor_sequence_close(e, fork);
        fork = rig_sequence(e);
        expect_next(e, fork, 0, true);
        rig_executor_close(e);
    }
}

/* A state that was marked at token 8 or 12 is kept over later forwards, is shared with the sequence, and is dropped
 * when it is cut off. */
static void a_sequence_goes_back_to_its_mark(void **state) {
    (void)state;
    for (int32_t mark = 8; mark <= 12; mark += 4) {
        Executor *e = open_executor();
        int32_t s = rig_sequence(e), other = rig_sequence(e), third = rig_sequence(e);
        append(e, s, 0, 8, 8);
        append(e, s, 8, 15, 7);
        executor_sequence_mark(e, s, 5); /* it is not known any more */
        executor_sequence_mark(e, s, mark);
        executor_sequence_share(e, s, other, 9); /* before a mark at 12, which belongs to other tokens */
        append(e, other, 20, 26, 6);
        append(e, other, 30, 31, 1);
        executor_sequence_truncate(e, other, 13);
        assert_int_equal(executor_sequence_length(e, other), mark < 9 ? mark : 0);
        append(e, s, 15, 22, 2);
        assert_int_equal(executor_sequence_reach(e, s, 19), mark);
        assert_int_equal(executor_sequence_reach(e, s, mark - 1), 0);
        executor_sequence_share(e, s, other, 18);
        executor_sequence_share(e, s, third, 22);
        assert_int_equal(executor_sequence_length(e, other), mark);
        expect_next(e, other, mark, true);
        append(e, other, mark, 17, 3);
        expect_next(e, third, 22, true);
        executor_sequence_truncate(e, other, mark);
        executor_sequence_truncate(e, third, 20);
        expect_next(e, other, mark, true);
        expect_next(e, third, mark, true);
        executor_sequence_truncate(e, third, mark - 1);
        assert_int_equal(executor_sequence_length(e, third), 0);
        append(e, third, 0, 20, 20);
        append(e, third, 20, 21, 1);
        assert_int_equal(executor_sequence_reach(e, third, 19), 0);
        executor_sequence_truncate(e, s, 13);
        append(e, s, mark, 22, 4);
        expect_next(e, s, 22, true);
        expect_next(e, third, 21, true);
        rig_executor_close(e);
    }
}

/* Control: with the state of another length, and everything else right, the logits differ. */
static void a_state_of_another_length_is_seen(void **state) {
    (void)state;
    for (int32_t wrong = 12; wrong <= 18; wrong++) {
        Executor *e = open_executor();
        int32_t s = rig_sequence(e), other = rig_sequence(e);
        append(e, s, 0, 15, 5);
        append(e, other, 0, wrong, 5);
        expect_next(e, s, 15, true);
        expect_next(e, other, wrong, true); /* no row is pending any more */
        Context *c = executor_context(e);
        const StateStep step = {.from = other, .to = s, .length = wrong};
        c->device->backend->advance_states(c, &step, 1);
        expect_next(e, s, 15, wrong == 15);
        rig_executor_close(e);
    }
}

static void with_model(const Backend *backend, const RandomModel *model) {
    Gguf *g = rig_random_gguf(model);
    Weights *w = rig_weights_in(backend, g);
    weights = w;
    rig_tokens(3, N_VOCAB, tokens, N);
    Executor *e = open_executor();
    rig_append(e, rig_sequence(e), tokens, N - 1, 1, N_VOCAB, plain[0]);
    rig_executor_close(e);
    an_accepted_path_leaves_the_state_of_plain_decoding(NULL);
    tokens_of_the_last_forward_can_be_taken_back(NULL);
    a_state_is_shared_at_each_of_these_lengths(NULL);
    a_sequence_goes_back_to_its_mark(NULL);
    a_state_of_another_length_is_seen(NULL);
    rig_weights_close(w);
    gguf_close(g);
}

static void with_backend(const Backend *backend) {
    for (size_t i = 0; i < sizeof hybrids / sizeof *hybrids; i++) with_model(backend, &hybrids[i]);
}

static void the_cpu_backend(void **state) {
    (void)state;
    with_backend(backends()[0]);
}

static void the_reference_backend(void **state) {
    (void)state;
    with_backend(&backend_reference);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_cpu_backend), cmocka_unit_test(the_reference_backend)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
