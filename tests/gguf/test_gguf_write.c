/* test_gguf_write.c - the GGUF writer: everything that is written is read back unchanged, and a failure leaves no
 * file. */
#define _XOPEN_SOURCE 700
#include "testing.h"

#include "gguf/tensor_type.h"
#include "gguf/gguf_write.h"
#include "gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/forerun-test-XXXXXX";
static char path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/out.gguf", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder); /* fails if a temporary file is left */
}

static Gguf *written(GgufWriter *w) {
    fr_error err = {0};
    Gguf *g = NULL;
    if (gguf_writer_finish(w, path, &err) || gguf_open(&g, path, &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    return g;
}

static void assert_same_array(const Gguf *a, const Gguf *b, int64_t i, int64_t j) {
    for (int64_t e = 0; e < gguf_kv_count(a, i); e++) {
        GgufString s = {0}, t = {0};
        int64_t x = 0, y = 0;
        float p = 0, q = 0;
        assert_int_equal(gguf_array_string(a, i, e, &s), gguf_array_string(b, j, e, &t));
        assert_int_equal(gguf_array_i64(a, i, e, &x), gguf_array_i64(b, j, e, &y));
        assert_int_equal(gguf_array_f32(a, i, e, &p), gguf_array_f32(b, j, e, &q));
        if (s.n != t.n || (s.n && memcmp(s.data, t.data, s.n) != 0) || x != y || memcmp(&p, &q, sizeof p) != 0)
            fail_msg("%s[%lld] differs", gguf_key(a, i), (long long)e);
    }
}

static void assert_same_scalar(const Gguf *a, const Gguf *b, const char *key) {
    GgufString s = {0}, t = {0};
    int64_t x = 0, y = 0;
    float p = 0, q = 0;
    bool u = false, v = false;
    assert_int_equal(gguf_get_string(a, key, &s), gguf_get_string(b, key, &t));
    assert_int_equal(gguf_get_i64(a, key, &x), gguf_get_i64(b, key, &y));
    assert_int_equal(gguf_get_f32(a, key, &p), gguf_get_f32(b, key, &q));
    assert_int_equal(gguf_get_bool(a, key, &u), gguf_get_bool(b, key, &v));
    if (s.n != t.n || (s.n && memcmp(s.data, t.data, s.n) != 0) || x != y || memcmp(&p, &q, sizeof p) != 0 || u != v)
        fail_msg("%s differs", key);
}

/* Checks that b has exactly the key-values and tensors of a, with the same values. */
static void assert_same(const Gguf *a, const Gguf *b) {
    assert_int_equal(gguf_n_kv(a), gguf_n_kv(b));
    for (int64_t i = 0; i < gguf_n_kv(a); i++) {
        int64_t j = gguf_find_key(b, gguf_key(a, i));
        if (j < 0) fail_msg("the key %s is lost", gguf_key(a, i));
        assert_int_equal(gguf_kv_type(a, i), gguf_kv_type(b, j));
        assert_int_equal(gguf_kv_element_type(a, i), gguf_kv_element_type(b, j));
        assert_int_equal(gguf_kv_count(a, i), gguf_kv_count(b, j));
        if (gguf_kv_type(a, i) == GGUF_ARRAY) assert_same_array(a, b, i, j);
        else assert_same_scalar(a, b, gguf_key(a, i));
    }
    assert_int_equal(gguf_n_tensors(a), gguf_n_tensors(b));
    for (int64_t i = 0; i < gguf_n_tensors(a); i++) {
        const GgufTensor *s = gguf_tensor(a, i), *t = gguf_tensor(b, i);
        assert_string_equal(s->name, t->name);
        assert_int_equal(s->type, t->type);
        assert_int_equal(s->n_dims, t->n_dims);
        assert_memory_equal(s->dims, t->dims, sizeof s->dims);
        assert_int_equal(s->bytes, t->bytes);
        if (memcmp(s->data, t->data, s->bytes) != 0) fail_msg("the data of %s differs", s->name);
    }
}

static Gguf *rewritten(const Gguf *a) {
    GgufWriter *w = gguf_writer_new();
    gguf_copy_kvs(w, a, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(a); i++) {
        const GgufTensor *t = gguf_tensor(a, i);
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    return written(w);
}

static void rewriting_keeps_every_value_type(void **state) {
    (void)state;
    Buf bytes = {.max_bytes = 1 << 16};
    put_sound_file(&bytes);
    fr_error err = {0};
    Gguf *a;
    if (gguf_open_memory(&a, bytes.data, bytes.n, "sound", &err)) fail_msg("%s", err.message);
    Gguf *b = rewritten(a);
    assert_same(a, b);
    gguf_close(a);
    gguf_close(b);
    buf_free(&bytes);
}

static void rewriting_keeps_a_model(void **state) {
    (void)state;
    fr_error err = {0};
    Gguf *a;
    if (gguf_open(&a, "models/draft.gguf", &err)) fail_msg("%s", err.message);
    Gguf *b = rewritten(a);
    assert_same(a, b);
    gguf_close(a);
    gguf_close(b);
}

static void setters_are_read_back(void **state) {
    (void)state;
    GgufWriter *w = gguf_writer_new();
    static const GgufString words[] = {{"x\0y", 3}, {"", 0}, {"\xff", 1}};
    static const float floats[] = {1.5f, -0.0f};
    static const int32_t ints[] = {-1, INT32_MAX};
    gguf_set_u32(w, "u32", 4000000000u);
    gguf_set_u64(w, "u64", 1ull << 40);
    gguf_set_f32(w, "f32", 0.1f);
    gguf_set_bool(w, "bool", true);
    gguf_set_string(w, "string", "a\0b", 3);
    gguf_set_strings(w, "strings", words, 3);
    gguf_set_f32s(w, "f32s", floats, 2);
    gguf_set_i32s(w, "i32s", ints, 2);
    for (int i = 0; i < 200; i++) { /* more than the first allocation holds */
        char key[16];
        snprintf(key, sizeof key, "key.%d", i);
        gguf_set_u32(w, key, (uint32_t)i);
    }
    Gguf *g = written(w);
    uint32_t u;
    int64_t v;
    float f;
    bool b;
    GgufString s;
    assert_true(gguf_get_u32(g, "u32", &u) && u == 4000000000u);
    assert_true(gguf_get_i64(g, "u64", &v) && v == 1ll << 40);
    assert_true(gguf_get_f32(g, "f32", &f) && f == 0.1f);
    assert_true(gguf_get_bool(g, "bool", &b) && b);
    assert_true(gguf_get_string(g, "string", &s) && s.n == 3 && memcmp(s.data, "a\0b", 3) == 0);
    assert_true(gguf_array_string(g, gguf_find_key(g, "strings"), 0, &s) && s.n == 3 && memcmp(s.data, "x\0y", 3) == 0);
    assert_true(gguf_array_string(g, gguf_find_key(g, "strings"), 2, &s) && s.n == 1 && s.data[0] == '\xff');
    assert_true(gguf_array_f32(g, gguf_find_key(g, "f32s"), 0, &f) && f == 1.5f);
    assert_true(gguf_array_i64(g, gguf_find_key(g, "i32s"), 1, &v) && v == INT32_MAX);
    assert_true(gguf_get_u32(g, "key.199", &u) && u == 199);
    assert_int_equal(gguf_n_kv(g), 208);
    gguf_close(g);
}

/* All numbers of row r of a filled tensor are r. */
static void fill_rows(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    const int64_t *dims = ctx;
    float *x = dst;
    for (int64_t i = 0; i < n_rows * dims[0]; i++) x[i] = (float)(first_row + i / dims[0]);
}

static void tensors_of_every_type_are_read_back(void **state) {
    (void)state;
    GgufWriter *w = gguf_writer_new();
    static float x[512];
    static uint8_t bytes[TYPE_COUNT][2048];
    static int64_t filled_dims[] = {1000, 9000, 1}; /* 36 MB: written in more than one piece */
    for (int i = 0; i < 512; i++) x[i] = (float)(i % 37) - 18;
    gguf_set_u32(w, "general.alignment", 128);
    for (int t = 0; t < TYPE_COUNT; t++) {
        blocks_quantize((TensorType)t, x, 512, bytes[t]);
        gguf_add_tensor(w, tensor_type_info((TensorType)t)->name, (TensorType)t, 2, (int64_t[]){256, 2}, bytes[t]);
    }
    gguf_add_tensor_filled(w, "filled", TYPE_F32, 2, filled_dims, fill_rows, filled_dims);
    Gguf *g = written(w);
    for (int i = 0; i < TYPE_COUNT; i++) {
        const GgufTensor *t = gguf_find_tensor(g, tensor_type_info((TensorType)i)->name);
        assert_non_null(t);
        assert_int_equal(t->type, i);
        assert_int_equal((uintptr_t)t->data % 128, 0);
        assert_memory_equal(t->data, bytes[i], t->bytes);
    }
    const float *rows = gguf_find_tensor(g, "filled")->data;
    for (int64_t r = 0; r < filled_dims[1]; r++)
        if (rows[r * 1000] != (float)r || rows[r * 1000 + 999] != (float)r)
            fail_msg("row %lld holds %g", (long long)r, (double)rows[r * 1000]);
    gguf_close(g);
}

static void keys_are_copied_except_a_prefix_and_those_already_set(void **state) {
    (void)state;
    fr_error err = {0};
    Gguf *a;
    if (gguf_open(&a, "models/draft.gguf", &err)) fail_msg("%s", err.message);
    GgufWriter *w = gguf_writer_new();
    gguf_set_string(w, "general.architecture", "other", 5);
    gguf_copy_kvs(w, a, "tokenizer.");
    Gguf *b = written(w);
    GgufString s;
    assert_true(gguf_get_string(b, "general.architecture", &s) && s.n == 5);
    assert_true(gguf_find_key(a, "tokenizer.ggml.tokens") >= 0);
    assert_true(gguf_find_key(b, "tokenizer.ggml.tokens") < 0);
    assert_true(gguf_find_key(b, "llama.block_count") >= 0);
    gguf_close(a);
    gguf_close(b);
}

enum { SET_TWICE, NO_KEY, BAD_SHAPE, PART_OF_A_BLOCK, TENSOR_TWICE, BAD_ALIGNMENT, NO_FOLDER, N_WRONGS };

/* Keys with the prefix are compared in both directions: value, type, and whether they are set. */
static void a_key_that_differs_is_named(void **state) {
    (void)state;
    static const int32_t numbers[] = {1, 2, 3, 4};
    GgufWriter *w = gguf_writer_new();
    gguf_set_u32(w, "a.width", 7);
    gguf_set_i32s(w, "a.list", numbers, 3);
    gguf_set_string(w, "b.name", "one", 3);
    Gguf *g = written(w);
    static const struct {
        uint32_t width;
        int n;
        bool has_more;
        const char *name, *want;
    } cases[] = {{7, 3, false, "two", NULL},     {8, 3, false, "one", "a.width"}, {7, 4, false, "one", "a.list"},
                 {7, 2, false, "one", "a.list"}, {7, 0, false, "one", "a.list"},  {7, 3, true, "one", "a.more"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        w = gguf_writer_new();
        gguf_set_string(w, "b.name", cases[i].name, 3);
        if (cases[i].n) gguf_set_i32s(w, "a.list", numbers, cases[i].n);
        gguf_set_u32(w, "a.width", cases[i].width);
        if (cases[i].has_more) gguf_set_u32(w, "a.more", 1);
        const char *got = gguf_writer_differs(w, g, "a.");
        if (cases[i].want) assert_string_equal(got, cases[i].want);
        else assert_null(got);
        gguf_writer_free(w);
    }
    gguf_close(g);
}

static void failures_are_reported_at_the_end_and_leave_nothing(void **state) {
    (void)state;
    static const char *says[N_WRONGS] = {
        [SET_TWICE] = "a: the key is set twice",         [NO_KEY] = "is too long or empty for a key",
        [BAD_SHAPE] = "t: the shape is impossible",      [PART_OF_A_BLOCK] = "t: the shape is impossible",
        [TENSOR_TWICE] = "t: the tensor is added twice", [BAD_ALIGNMENT] = "power of two",
        [NO_FOLDER] = "cannot be created: No such",
    };
    static const float x[64];
    for (int wrong = 0; wrong < N_WRONGS; wrong++) {
        GgufWriter *w = gguf_writer_new();
        gguf_set_u32(w, "a", 1);
        gguf_add_tensor(w, "t", TYPE_F32, 1, (int64_t[]){wrong == BAD_SHAPE ? 0 : 64}, x);
        if (wrong == SET_TWICE) gguf_set_u32(w, "a", 1);
        if (wrong == NO_KEY) gguf_set_u32(w, "", 1);
        if (wrong == PART_OF_A_BLOCK) gguf_add_tensor(w, "t", TYPE_Q8_0, 1, (int64_t[]){63}, x);
        if (wrong == TENSOR_TWICE) gguf_add_tensor(w, "t", TYPE_F32, 1, (int64_t[]){64}, x);
        if (wrong == BAD_ALIGNMENT) gguf_set_u32(w, "general.alignment", 48);
        gguf_set_u32(w, "later", 2); /* the first failure is kept */
        fr_error err = {0};
        int status = gguf_writer_finish(w, wrong == NO_FOLDER ? "/nonexistent/x.gguf" : path, &err);
        if (status != (wrong == NO_FOLDER ? FR_ERR_IO : FR_ERR_ARGUMENT) || !strstr(err.message, says[wrong]))
            fail_msg("case %d: %d \"%s\", wanted \"%s\"", wrong, status, err.message, says[wrong]);
        gguf_writer_free(w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewriting_keeps_every_value_type),
        cmocka_unit_test(rewriting_keeps_a_model),
        cmocka_unit_test(setters_are_read_back),
        cmocka_unit_test(tensors_of_every_type_are_read_back),
        cmocka_unit_test(keys_are_copied_except_a_prefix_and_those_already_set),
        cmocka_unit_test(a_key_that_differs_is_named),
        cmocka_unit_test(failures_are_reported_at_the_end_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
