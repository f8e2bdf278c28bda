/* test_batch_rows.c - invalid batches: each impossible row is refused with its reason before anything is computed, and
 * leaves the executor usable. */
#include "testing.h"

#include "model_rig.h"

#include <string.h>

#define LOGITS_ROW(t, s, p) \
    { .token = (t), .sequence = (s), .parent = (p), .want_logits = true }

static void impossible_batches_are_refused(void **state) {
    (void)state;
    const RandomModel shape = {.arch = "llama",
                               .n_layer = 2,
                               .n_embd = 40,
                               .n_head = 5,
                               .n_head_kv = 1,
                               .n_ff = 50,
                               .n_vocab = 61,
                               .seed = 1};
    Gguf *g = rig_random_gguf(&shape);
    Weights *m = rig_weights(g, NULL);
    RigOptions o = rig_options(16, 4);
    o.max_sequences = 3;
    Executor *e = rig_executor(m, &o);
    int32_t s = rig_sequence(e), t = rig_sequence(e);
    fr_error err = {0};
    assert_int_equal(executor_reserve(e, s, 2, &err), FR_OK);
    assert_int_equal(executor_reserve(e, t, 2, &err), FR_OK);
    const struct {
        Row rows[5];
        int32_t n;
        const char *why;
    } cases[] = {
        {{LOGITS_ROW(1, s, -1)}, 0, "a batch of 0 rows"},
        {{LOGITS_ROW(1, s, -1)}, 5, "a batch of 5 rows"},
        {{LOGITS_ROW(-1, s, -1)}, 1, "token -1"},
        {{LOGITS_ROW(61, s, -1)}, 1, "token 61"},
        {{LOGITS_ROW(1, -1, -1)}, 1, "sequence -1"},
        {{LOGITS_ROW(1, 2, -1)}, 1, "sequence 2"}, /* not open */
        {{LOGITS_ROW(1, 3, -1)}, 1, "sequence 3"},
        {{LOGITS_ROW(1, s, 0)}, 1, "parent 0"},
        {{LOGITS_ROW(1, s, -2)}, 1, "parent -2"},
        {{LOGITS_ROW(1, s, -1), LOGITS_ROW(1, t, 0)}, 2, "row 1 of a batch of 2"},
        {{LOGITS_ROW(1, s, -1), LOGITS_ROW(1, s, 0), LOGITS_ROW(1, s, 1)},
         3,
         "more rows in the batch than the 2 reserved"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        err = (fr_error){0};
        int status = executor_forward(e, cases[i].rows, cases[i].n, &err);
        if (status != FR_ERR_ARGUMENT || !strstr(err.message, cases[i].why))
            fail_msg("the error should contain '%s', status %d: '%s'", cases[i].why, status, err.message);
    }
    assert_int_equal(executor_reserve(e, s, 17, &err), FR_ERR_CONTEXT);
    assert_int_equal(executor_sequence_length(e, s), 0);
    Row good[2] = {LOGITS_ROW(1, s, -1), LOGITS_ROW(2, t, -1)};
    assert_int_equal(executor_forward(e, good, 2, &err), FR_OK); /* refusals left everything usable */
    Row below[3] = {LOGITS_ROW(1, t, 0), LOGITS_ROW(1, s, 0), LOGITS_ROW(1, t, 1)};
    assert_int_equal(executor_extend(e, below, 1, &err), FR_ERR_ARGUMENT); /* a parent of another sequence */
    assert_int_equal(executor_forward(e, good, 2, &err), FR_OK);
    assert_int_equal(executor_extend(e, below, 3, &err), FR_ERR_ARGUMENT); /* more rows than fit */
    assert_int_equal(executor_extend(e, below + 1, 2, &err), FR_OK);
    assert_int_equal(executor_extend(e, below + 1, 1, &err), FR_ERR_ARGUMENT); /* no room is left */
    rig_executor_close(e);
    rig_weights_close(m);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(impossible_batches_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
