/* convert_rig.c - compares a model with the result of `convert` on its parts. */
#include "convert_rig.h"

#include "cli/convert/convert.h"
#include "gguf/tensor_type.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the folder ---------------------------------------------------------------------------------------- */

static const char *dir;
static char folder[200], out[200];

static int run(const char *what, const char *path) {
    char line[500];
    snprintf(line, sizeof line, "%s %s", what, path);
    return system(line);
}

void convert_rig_begin(const char *argv0, const char *program_dir) {
    cli_rig_begin(argv0);
    dir = program_dir;
    snprintf(folder, sizeof folder, "%s/hub", dir);
    snprintf(out, sizeof out, "%s/out.gguf", dir);
}

int convert_rig_make_dir(void **state) {
    (void)state;
    mkdir(dir, 0777);
    return 0;
}

int convert_rig_drop_dir(void **state) {
    (void)state;
    return run("rm -rf", dir);
}

void convert_rig_clear(void) {
    assert_int_equal(run("rm -rf", folder), 0);
    assert_int_equal(run("rm -f", out), 0);
}

void convert_rig_convert(TensorType type) {
    fr_error err;
    if (convert_folder(folder, out, &(ConvertOptions){.type = type}, &err)) fail_msg("%s", err.message);
}

void convert_rig_expect_refused(const char *why) {
    fr_error err;
    assert_true(convert_folder(folder, out, &(ConvertOptions){.type = TYPE_F32}, &err) != 0);
    if (!strstr(err.message, why)) fail_msg("'%s' is not in '%s'", why, err.message);
    assert_true(access(out, F_OK) != 0);
}

/* ---- comparisons --------------------------------------------------------------------------------------- */

/* Checks that each tensor has the bytes that its numbers have in the wanted type. */
void convert_rig_compare_tensors(const Gguf *a, const Gguf *b, TensorType type, TensorType between) {
    assert_int_equal(gguf_n_tensors(a), gguf_n_tensors(b));
    for (int64_t i = 0; i < gguf_n_tensors(a); i++) {
        const GgufTensor *t = gguf_tensor(a, i), *u = gguf_find_tensor(b, t->name);
        int64_t n = t->dims[0] * t->dims[1] * t->dims[2];
        size_t bytes;
        if (!u) fail_msg("%s is missing", t->name);
        TensorType wanted = t->n_dims == 1 ? TYPE_F32 : type;
        assert_int_equal(u->type, wanted);
        assert_memory_equal(t->dims, u->dims, sizeof t->dims);
        assert_true(tensor_type_row_bytes(wanted, n, &bytes));
        char *expected = malloc(bytes), *stored = malloc((size_t)n * 4);
        float *x = malloc((size_t)n * sizeof *x);
        blocks_quantize(between, t->data, n, stored); /* as the safetensors have them */
        blocks_dequantize(between, stored, n, x);
        blocks_quantize(wanted, x, n, expected);
        if (memcmp(expected, u->data, bytes) != 0) fail_msg("%s differs", t->name);
        free(expected);
        free(stored);
        free(x);
    }
}

/* A key must be the same in both, except that scores only need the same order. */
void convert_rig_compare_vocabularies(const Gguf *a, const Gguf *b, bool same_scores) {
    static const char *const ids[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                      "tokenizer.ggml.unknown_token_id"};
    int64_t tokens[2] = {gguf_find_key(a, "tokenizer.ggml.tokens"), gguf_find_key(b, "tokenizer.ggml.tokens")},
            types[2] = {gguf_find_key(a, "tokenizer.ggml.token_type"), gguf_find_key(b, "tokenizer.ggml.token_type")},
            scores[2] = {gguf_find_key(a, "tokenizer.ggml.scores"), gguf_find_key(b, "tokenizer.ggml.scores")};
    assert_int_equal(gguf_kv_count(a, tokens[0]), gguf_kv_count(b, tokens[1]));
    for (int64_t i = 0; i < gguf_kv_count(a, tokens[0]); i++) {
        GgufString x, y;
        int64_t type_x = 0, type_y = 0;
        float score_x, score_y;
        assert_true(gguf_array_string(a, tokens[0], i, &x) && gguf_array_string(b, tokens[1], i, &y));
        assert_true(gguf_array_i64(a, types[0], i, &type_x) && gguf_array_i64(b, types[1], i, &type_y));
        assert_true(gguf_array_f32(a, scores[0], i, &score_x) && gguf_array_f32(b, scores[1], i, &score_y));
        assert_int_equal(x.n, y.n);
        assert_memory_equal(x.data, y.data, x.n);
        assert_int_equal(type_x, type_y);
        if (same_scores) assert_true(score_x == score_y);
    }
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        int64_t x = -1, y = -2;
        assert_true(gguf_get_i64(a, ids[i], &x) && gguf_get_i64(b, ids[i], &y));
        assert_int_equal(x, y);
    }
    GgufString template;
    bool adds_bos;
    assert_true(gguf_get_bool(b, "tokenizer.ggml.add_bos_token", &adds_bos) && adds_bos);
    assert_true(gguf_get_string(b, "tokenizer.chat_template", &template));
    assert_memory_equal(template.data, "{{ messages }}", template.n);
}

void convert_rig_same_output(const char *command, const char *model, const char *converted) {
    char line[400], a[20000], b[20000];
    snprintf(line, sizeof line, command, model);
    assert_int_equal(cli_run(line, a, sizeof a), 0);
    snprintf(line, sizeof line, command, converted);
    assert_int_equal(cli_run(line, b, sizeof b), 0);
    assert_string_equal(a, b);
    assert_null(strstr(a, "4294967295 0\n")); /* this is the sum of no output, when the program failed on both */
}
