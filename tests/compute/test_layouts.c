/* test_layouts.c - files that hold the same numbers in other tensors or keys have the same logits, bit for bit:
 * matrices that are fused into one, with their biases; and lists that have one number for all layers. */
#include "testing.h"

#include "compute/backend.h"
#include "gguf/gguf_write.h"
#include "model_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHAPE(a, layers, embd, heads, kv, ff) \
    .arch = a, .n_layer = layers, .n_embd = embd, .n_head = heads, .n_head_kv = kv, .n_ff = ff, .n_vocab = 300
#define TYPE(t) .types = {t}, .n_types = 1
#define EXPERTS(n, used, ff) .n_expert = n, .n_expert_used = used, .n_ff_expert = ff

static const RandomModel models[] = {
    {SHAPE("llama", 2, 48, 4, 2, 70), .seed = 1},
    {SHAPE("qwen2", 2, 72, 6, 2, 70), .seed = 2}, /* with biases */
    {SHAPE("llama", 2, 64, 4, 1, 64), EXPERTS(5, 2, 40), .seed = 3},
    {SHAPE("qwen3moe", 2, 64, 4, 2, 64), EXPERTS(6, 3, 64), TYPE(TYPE_Q8_0), .seed = 4},
    {SHAPE("qwen2moe", 2, 64, 4, 2, 96), EXPERTS(7, 2, 33), .n_ff_shared = 64, TYPE(TYPE_BF16), .seed = 5},
    {SHAPE("llama4", 4, 64, 4, 2, 64), EXPERTS(5, 1, 32), .n_ff_shared = 32, .expert_interval = 2, .window = 9,
     .seed = 6},
    {SHAPE("glm4moe", 2, 64, 4, 2, 64), .n_rot = 8, .n_dense = 1, EXPERTS(5, 2, 24), .n_ff_shared = 24,
     .has_sigmoid_router = true, TYPE(TYPE_F16), .seed = 7},
    {SHAPE("granitehybrid", 3, 64, 4, 2, 96), .n_key_heads = 2, .n_value_heads = 4, .delta_dim = 32, .n_conv = 3,
     .attention_interval = 2, .n_ssm_state = 16, EXPERTS(6, 2, 32), .n_ff_shared = 64, .seed = 8},
    {SHAPE("qwen3moe", 1, 128, 2, 1, 64), EXPERTS(4, 2, 64), TYPE(TYPE_NVFP4), .has_scales = false, .seed = 9},
};
enum { N_MODELS = sizeof models / sizeof *models, N_TOKENS = 20 };

/* ---- files -------------------------------------------------------------------------------------------- */

typedef struct Fused {
    const char *whole, *parts[3];
    bool of_experts;
} Fused;
static const Fused fused[] = {
    {"attn_qkv.weight", {"attn_q.weight", "attn_k.weight", "attn_v.weight"}, false},
    {"attn_qkv.bias", {"attn_q.bias", "attn_k.bias", "attn_v.bias"}, false},
    {"ffn_gate_up_exps.weight", {"ffn_gate_exps.weight", "ffn_up_exps.weight", NULL}, true},
};
enum { N_FUSED = sizeof fused / sizeof *fused, MOST_TENSORS = 200 };

static Gguf *finish(GgufWriter *w) {
    char path[] = "build/layout-XXXXXX";
    int fd = mkstemp(path);
    fr_error err = {0};
    assert_true(fd >= 0);
    close(fd);
    if (gguf_writer_finish(w, path, &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    Gguf *g = rig_gguf(path);
    unlink(path);
    return g;
}

/* Returns the parts of a fused tensor of a layer one after the other; those of experts expert by expert. The memory is
 * the caller's. */
static void *add_fused(GgufWriter *w, const Gguf *g, const Fused *f, const char *name, const GgufTensor *first) {
    const GgufTensor *parts[3] = {first};
    size_t n = f->parts[2] ? 3 : 2, bytes = 0, at = 0;
    int64_t rows = 0, n_matrices = first->dims[2];
    char part[64];
    int prefix = (int)(strlen(name) - strlen(f->parts[0]));
    for (size_t i = 0; i < n; i++) {
        snprintf(part, sizeof part, "%.*s%s", prefix, name, f->parts[i]);
        parts[i] = gguf_find_tensor(g, part);
        assert_non_null(parts[i]);
        assert_int_equal(parts[i]->type, first->type);
        rows += first->n_dims > 1 ? parts[i]->dims[1] : parts[i]->dims[0];
        bytes += parts[i]->bytes;
    }
    char *data = malloc(bytes);
    for (int64_t m = 0; m < n_matrices; m++)
        for (size_t i = 0; i < n; i++) {
            size_t one = parts[i]->bytes / (size_t)n_matrices;
            memcpy(data + at, (const char *)parts[i]->data + (size_t)m * one, one);
            at += one;
        }
    snprintf(part, sizeof part, "%.*s%s", prefix, name, f->whole);
    const int64_t matrix[] = {first->dims[0], rows, n_matrices};
    gguf_add_tensor(w, part, first->type, first->n_dims, first->n_dims > 1 ? matrix : &rows, data);
    return data;
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return end[0] && n > m && strcmp(name + n - m, end) == 0 && name[n - m - 1] == '.';
}

/* The same model with these tensors fused; *n counts them. */
static Gguf *fuse(const Gguf *g, int *n) {
    GgufWriter *w = gguf_writer_new();
    void *kept[MOST_TENSORS];
    *n = 0;
    gguf_copy_kvs(w, g, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        int is_part = 0;
        for (int k = 0; k < N_FUSED; k++)
            for (int p = 0; p < 3 && fused[k].parts[p]; p++) {
                if (!ends_with(t->name, fused[k].parts[p])) continue;
                is_part = 1;
                if (p == 0 && *n < MOST_TENSORS) kept[(*n)++] = add_fused(w, g, &fused[k], t->name, t);
            }
        if (!is_part) gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    Gguf *out = finish(w);
    for (int i = 0; i < *n; i++) free(kept[i]);
    return out;
}

/* The same model with lists in place of numbers. */
static Gguf *with_lists(const Gguf *g, const RandomModel *m) {
    const struct {
        const char *what;
        int32_t n;
    } keys[] = {{"attention.head_count", m->n_head},
                {"attention.head_count_kv", m->n_head_kv},
                {"feed_forward_length", m->n_ff}};
    int32_t list[16];
    char key[64];
    GgufWriter *w = gguf_writer_new();
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
        for (int32_t i = 0; i < m->n_layer; i++) list[i] = keys[k].n;
        snprintf(key, sizeof key, "%s.%s", m->arch, keys[k].what);
        gguf_set_i32s(w, key, list, m->n_layer);
    }
    gguf_copy_kvs(w, g, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    return finish(w);
}

/* ---- comparisons --------------------------------------------------------------------------------------- */

static float *logits_of(const Backend *backend, const Gguf *g) {
    Weights *w = rig_weights_in(backend, g);
    int32_t tokens[N_TOKENS], n_vocab = w->model->hparams.n_vocab;
    rig_tokens(5, n_vocab, tokens, N_TOKENS);
    RigOptions o = rig_options(N_TOKENS, 16);
    Executor *e = rig_executor(w, &o);
    float *logits = calloc((size_t)N_TOKENS * (size_t)n_vocab, sizeof *logits);
    rig_append(e, rig_sequence(e), tokens, N_TOKENS, 8, n_vocab, logits);
    rig_executor_close(e);
    rig_weights_close(w);
    return logits;
}

/* Returns whether both files have the same logits in both backends. */
static bool are_equal(const Gguf *a, const Gguf *b) {
    bool equal = true;
    for (int i = 0; backends()[i]; i++) {
        float *ours = logits_of(backends()[i], a), *theirs = logits_of(backends()[i], b);
        equal = equal && memcmp(ours, theirs, (size_t)N_TOKENS * 300 * sizeof *ours) == 0;
        free(ours), free(theirs);
    }
    return equal;
}

static void fused_tensors_are_those_of_the_split_file(void **state) {
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        int n;
        Gguf *split = rig_random_gguf(&models[m]), *whole = fuse(split, &n);
        print_message("%s: %d fused tensors\n", models[m].arch, n);
        assert_true(n >= models[m].n_layer / 2);
        if (!are_equal(split, whole)) fail_msg("%s (%d): a fused file has other logits", models[m].arch, m);
        gguf_close(split), gguf_close(whole);
    }
}

static void lists_of_one_number_are_that_number(void **state) {
    (void)state;
    for (int m = 0; m < 3; m++) {
        Gguf *g = rig_random_gguf(&models[m]), *lists = with_lists(g, &models[m]);
        if (!are_equal(g, lists)) fail_msg("%s (%d): a file with lists has other logits", models[m].arch, m);
        gguf_close(g), gguf_close(lists);
    }
}

/* The test above would notice: other numbers, or parts in another order, have other logits. */
static void another_bias_is_seen(void **state) {
    (void)state;
    RandomModel with = models[0], without = models[0];
    with.more_biases = true;
    Gguf *a = rig_random_gguf(&with), *b = rig_random_gguf(&without);
    assert_false(are_equal(a, b));
    gguf_close(a), gguf_close(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fused_tensors_are_those_of_the_split_file),
        cmocka_unit_test(lists_of_one_number_are_that_number),
        cmocka_unit_test(another_bias_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
