/* test_head.c - the parts of the target that drafters use: its LM head outside a forward gives the bits of the forward,
 * hidden states can be requested without logits, and embeddings are the rows of the file. */
#include "model_rig.h"
#include "testing.h"

#include "gguf/tensor_type.h"

#include <stdlib.h>
#include <string.h>

enum { V = 270, N = 23 };

static RandomModel model_of(TensorType type, bool tied) {
    return (RandomModel){.arch = "llama",
                         .n_layer = 1,
                         .n_embd = type == TYPE_Q4_K ? 256 : 96,
                         .n_head = 4,
                         .n_head_kv = 2,
                         .n_ff = type == TYPE_Q4_K ? 256 : 96,
                         .n_vocab = V,
                         .tied = tied,
                         .types = {type},
                         .n_types = 1,
                         .seed = 3};
}

static const TensorType types[] = {TYPE_F32, TYPE_F16, TYPE_BF16, TYPE_Q8_0, TYPE_Q4_0, TYPE_Q4_K};

/* Runs N tokens; row i wants its logits if i % 3 == 0, and its hidden state if i % 3 == 1. */
static void run_rows(Executor *e, const int32_t *tokens) {
    int32_t s = rig_sequence(e);
    Row rows[N];
    fr_error err;
    for (int32_t i = 0; i < N; i++)
        rows[i] = (Row){.token = tokens[i],
                        .sequence = s,
                        .parent = i - 1,
                        .want_logits = i % 3 == 0,
                        .want_hidden = i % 3 == 1};
    if (executor_reserve(e, s, N, &err) || executor_forward(e, rows, N, &err)) fail_msg("%s", err.message);
}

static void the_head_gives_the_executors_bits(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int n_threads = 1; n_threads <= 3; n_threads++) {
            RandomModel r = model_of(types[t], n_threads == 2);
            Gguf *g = rig_random_gguf(&r);
            Weights *m = rig_weights(g, NULL);
            RigOptions options = rig_options(64, 64);
            Executor *e = rig_executor(m, &options);
            int32_t tokens[N], n_rows = 0, width = m->model->hparams.n_embd;
            fr_error err;
            Device *device = rig_device(m, n_threads);
            if (m->backend->head_reserve(device, m, N, &err)) fail_msg("%s", err.message);
            rig_tokens(7, V, tokens, N);
            run_rows(e, tokens);
            Buffer *x = rig_buffer(device, (int64_t)N * width), *y = rig_buffer(device, (int64_t)N * V);
            for (int32_t i = 0; i < N; i += 3, n_rows++)
                memcpy(x->floats + n_rows * width, executor_hidden(e, i), sizeof(float) * (size_t)width);
            buffer_push(x, 0, x->n);
            for (int32_t n = 1; n <= n_rows; n += 3) { /* any number of rows at once */
                m->backend->head(device, m, (Slice){x, 0}, n, (Slice){y, 0});
                buffer_pull(y, 0, (int64_t)n * V);
                for (int32_t i = 0; i < n; i++)
                    assert_memory_equal(y->floats + i * V, executor_logits(e, 3 * i), sizeof(float) * V);
            }
            x->floats[0] = x->floats[0] * 1.5f + 1; /* and other inputs give others */
            buffer_push(x, 0, 1);
            m->backend->head(device, m, (Slice){x, 0}, 1, (Slice){y, 0});
            buffer_pull(y, 0, V);
            assert_memory_not_equal(y->floats, executor_logits(e, 0), sizeof(float) * V);
            buffer_close(x);
            buffer_close(y);
            device_close(device);
            rig_executor_close(e);
            rig_weights_close(m);
            gguf_close(g);
        }
}

static void hidden_states_come_with_and_without_logits(void **state) {
    (void)state;
    RandomModel r = model_of(TYPE_Q8_0, false);
    Gguf *g = rig_random_gguf(&r);
    Weights *m = rig_weights(g, NULL);
    RigOptions options = rig_options(64, 64);
    Executor *some = rig_executor(m, &options), *all = rig_executor(m, &options);
    int32_t tokens[N], s = rig_sequence(all);
    fr_error err;
    Row rows[N];
    rig_tokens(8, V, tokens, N);
    run_rows(some, tokens);
    for (int32_t i = 0; i < N; i++)
        rows[i] = (Row){.token = tokens[i], .sequence = s, .parent = i - 1, .want_logits = true};
    if (executor_reserve(all, s, N, &err) || executor_forward(all, rows, N, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < N; i++) {
        const float *hidden = executor_hidden(some, i), *logits = executor_logits(some, i);
        assert_int_equal(hidden != NULL, i % 3 != 2);
        assert_int_equal(logits != NULL, i % 3 == 0);
        if (hidden)
            assert_memory_equal(hidden, executor_hidden(all, i), sizeof(float) * (size_t)m->model->hparams.n_embd);
        if (logits) assert_memory_equal(logits, executor_logits(all, i), sizeof(float) * V);
    }
    rig_executor_close(some);
    rig_executor_close(all);
    rig_weights_close(m);
    gguf_close(g);
}

static void embeddings_are_the_rows_of_the_file(void **state) {
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        RandomModel r = model_of(types[t], false);
        Gguf *g = rig_random_gguf(&r);
        Weights *m = rig_weights(g, NULL);
        const GgufTensor *e = gguf_find_tensor(g, "token_embd.weight");
        int64_t n = e->dims[0];
        float *all = malloc(sizeof *all * (size_t)(n * V));
        Device *device = rig_device(m, 1);
        Buffer *row = rig_buffer(device, 2 * n);
        blocks_dequantize(e->type, e->data, n * V, all);
        for (int32_t v = 0; v < V; v++) {
            m->backend->embed(device, m, &v, 1, (Slice){row, n});
            buffer_pull(row, n, n);
            assert_memory_equal(row->floats + n, all + v * n, sizeof(float) * (size_t)n);
        }
        buffer_close(row);
        device_close(device);
        free(all);
        rig_weights_close(m);
        gguf_close(g);
    }
}

/* The reference backend keeps a device's floats apart from those of the CPU, as an accelerator does; the CPU backend
 * has no copy. */
static void buffers_move_only_when_they_are_asked_to(void **state) {
    (void)state;
    for (const Backend *const *b = backends(); *b; b++) {
        bool has_copy = *b == &backend_reference;
        Device *device;
        Buffer *x;
        fr_error err;
        static const float gain[3] = {1, 1, 1};
        assert_int_equal((*b)->device_open(&device, &(DeviceOptions){.n_threads = 1}, &err), 0);
        x = rig_buffer(device, 6);
        for (int i = 0; i < 6; i++) assert_true(x->floats[i] == 0);
        for (int i = 0; i < 6; i++) x->floats[i] = 2;
        buffer_push(x, 3, 3);
        (*b)->rmsnorm(device, (Slice){x, 0}, 2, 3, gain, 0.0625f); /* 2 / sqrt(4 + 1/16); of zeros 0 */
        buffer_pull(x, 2, 4);
        assert_true(x->floats[1] == (has_copy ? 2.0f : x->floats[3]));
        assert_true(x->floats[2] == (has_copy ? 0.0f : x->floats[3]));
        for (int i = 3; i < 6; i++) assert_true(x->floats[i] > 0.992f && x->floats[i] < 0.9925f);
        buffer_close(x);
        device_close(device);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_head_gives_the_executors_bits),
        cmocka_unit_test(hidden_states_come_with_and_without_logits),
        cmocka_unit_test(embeddings_are_the_rows_of_the_file),
        cmocka_unit_test(buffers_move_only_when_they_are_asked_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
