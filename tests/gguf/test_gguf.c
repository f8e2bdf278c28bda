/* test_gguf.c - the GGUF reader on valid files: every accessor returns the file's contents. */
#include "testing.h"

#include "gguf_build.h"

#include <string.h>

static Gguf *open_buf(const Buf *b) {
    Gguf *g;
    fr_error err = {0};
    if (gguf_open_memory(&g, b->data, b->n, "memory", &err)) fail_msg("%s", err.message);
    return g;
}

static void scalars_are_read_by_any_fitting_getter(void **state) {
    (void)state;
    static const struct {
        const char *key;
        bool is_int, is_u32;
        int64_t i;
        bool is_float;
        float f;
    } cases[] = {
        {"test.u8", true, true, 200, false, 0},
        {"test.i8", true, false, -2, false, 0},
        {"test.u16", true, true, 60000, false, 0},
        {"test.i16", true, false, -3, false, 0},
        {"test.u32", true, true, 4000000000, false, 0},
        {"test.i32", true, false, -4, false, 0},
        {"test.i64", true, false, -5, false, 0},
        {"test.u64", false, false, 0, false, 0}, /* 2^64-1 fits into no type that a getter returns */
        {"test.f32", false, false, 0, true, 0.5f},
        {"test.f64", false, false, 0, true, 0.25f},
        {"test.bool", false, false, 0, false, 0},
        {"test.i32s", false, false, 0, false, 0},
        {"test.strings", false, false, 0, false, 0},
        {"general.architecture", false, false, 0, false, 0},
        {"no.such.key", false, false, 0, false, 0},
    };
    Buf b = {.max_bytes = 1 << 16};
    put_sound_file(&b);
    Gguf *g = open_buf(&b);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int64_t i = -77;
        uint32_t u = 77;
        float f = -77;
        const char *key = cases[c].key;
        if (gguf_get_i64(g, key, &i) != cases[c].is_int || i != (cases[c].is_int ? cases[c].i : -77))
            fail_msg("%s: read %lld as an integer, wanted %lld", key, (long long)i, (long long)cases[c].i);
        if (gguf_get_u32(g, key, &u) != cases[c].is_u32 || u != (cases[c].is_u32 ? cases[c].i : 77))
            fail_msg("%s: read %u as u32, wanted %lld", key, u, (long long)cases[c].i);
        if (gguf_get_f32(g, key, &f) != cases[c].is_float || f != (cases[c].is_float ? cases[c].f : -77))
            fail_msg("%s: read %g as a float, wanted %g", key, (double)f, (double)cases[c].f);
    }
    bool truth = false;
    assert_true(gguf_get_bool(g, "test.bool", &truth) && truth);
    assert_false(gguf_get_bool(g, "test.u8", &truth));
    GgufString s;
    assert_true(gguf_get_string(g, "general.architecture", &s) && s.n == 4 && memcmp(s.data, "test", 4) == 0);
    assert_false(gguf_get_string(g, "test.strings", &s));
    gguf_close(g);
    buf_free(&b);
}

static void arrays_are_read_by_index(void **state) {
    (void)state;
    Buf b = {.max_bytes = 1 << 16};
    put_sound_file(&b);
    Gguf *g = open_buf(&b);
    int64_t strings = gguf_find_key(g, "test.strings"), ints = gguf_find_key(g, "test.i32s");
    int64_t floats = gguf_find_key(g, "test.f32s"), empty = gguf_find_key(g, "test.empty");
    assert_int_equal(gguf_kv_type(g, strings), GGUF_ARRAY);
    assert_int_equal(gguf_kv_element_type(g, strings), GGUF_STRING);
    assert_int_equal(gguf_kv_count(g, strings), 3);
    assert_int_equal(gguf_kv_count(g, empty), 0);
    static const char *wanted[] = {"one", "", "three"};
    GgufString s;
    for (int i = 0; i < 3; i++) {
        assert_true(gguf_array_string(g, strings, i, &s));
        assert_int_equal(s.n, strlen(wanted[i]));
        assert_memory_equal(s.data, wanted[i], s.n);
    }
    int64_t v;
    float f;
    assert_true(gguf_array_i64(g, ints, 1, &v) && v == -9);
    assert_true(gguf_array_f32(g, floats, 1, &f) && f == -2.0f);
    assert_false(gguf_array_f32(g, ints, 1, &f));
    assert_false(gguf_array_i64(g, strings, 1, &v));
    assert_false(gguf_array_string(g, ints, 1, &s));
    gguf_close(g);
    buf_free(&b);
}

static void tensors_are_at_the_places_in_the_file(void **state) {
    (void)state;
    Buf b = {.max_bytes = 1 << 16};
    put_sound_file(&b);
    Gguf *g = open_buf(&b);
    assert_int_equal(gguf_n_tensors(g), 3);
    assert_null(gguf_find_tensor(g, "d"));
    const GgufTensor *t = gguf_find_tensor(g, "b");
    assert_non_null(t);
    assert_int_equal(t->type, TYPE_Q8_0);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 64);
    assert_int_equal(t->dims[1], 2);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->bytes, 4 * 34);
    assert_ptr_equal(t->data, b.data + b.n - 216 + 32);
    t = gguf_tensor(g, 2);
    assert_string_equal(t->name, "c");
    assert_int_equal(t->bytes, 24);
    assert_ptr_equal(t->data, b.data + b.n - 24);
    touch_everything(g);
    gguf_close(g);
    buf_free(&b);
}

static void a_file_without_tensors_opens(void **state) {
    (void)state;
    Buf b = {.max_bytes = 1 << 16};
    put_header(&b, 2, 0, 1);
    put_kv_string(&b, "general.architecture", "llama");
    Gguf *g = open_buf(&b); /* ends before the padding, which may be missing */
    assert_int_equal(gguf_version(g), 2);
    assert_int_equal(gguf_n_tensors(g), 0);
    assert_int_equal(gguf_n_kv(g), 1);
    gguf_close(g);
    buf_free(&b);
}

static void check_model(const char *path, int64_t n_tensors_min) {
    Gguf *g;
    fr_error err = {0};
    if (gguf_open(&g, path, &err)) fail_msg("%s", err.message);
    assert_string_equal(gguf_path(g), path);
    if (gguf_n_tensors(g) < n_tensors_min) fail_msg("%s: %lld tensors", path, (long long)gguf_n_tensors(g));
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) assert_int_equal((uintptr_t)gguf_tensor(g, i)->data % 32, 0);
    touch_everything(g);
    gguf_close(g);
}

static void shipped_models_open(void **state) {
    (void)state;
    check_model("models/target.gguf", 20);
    check_model("models/draft.gguf", 10);
}

static void models_and_vocabularies_by_other_programs_open(void **state) {
    (void)state;
    need_shared();
    check_model("../shared/data/golden/models/llama-k-q5_k_m.gguf", 10);
    check_model("../shared/data/golden/models/llama-k-q4_0mix.gguf", 10);
    check_model("../shared/data/golden/models/qwen3-a-f32.gguf", 10);
    check_model("../shared/data/golden/models/llama-a-bf16.gguf", 10);
    check_model("../shared/data/models/stories260K.gguf", 10);
    check_model("../shared/data/tokenizers/ggml-vocab-llama-spm.gguf", 0);
    check_model("../shared/data/tokenizers/ggml-vocab-falcon.gguf", 0);
}

static void paths_that_are_not_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *says;
        int code;
    } cases[] = {
        {"models/no-such-file.gguf", "models/no-such-file.gguf: cannot be opened: No such file", FR_ERR_IO},
        {"models", "models: is not a regular file but a folder; give a file that is in it", FR_ERR_IO},
        {"/dev/null", "/dev/null: is not a regular file but a device; write its contents to a file and give that",
         FR_ERR_IO},
        {"Makefile", "Makefile: this is not a GGUF file", FR_ERR_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Gguf *g = (Gguf *)&g;
        fr_error err = {0};
        assert_int_equal(gguf_open(&g, cases[i].path, &err), cases[i].code);
        assert_null(g);
        if (strncmp(err.message, cases[i].says, strlen(cases[i].says)) != 0)
            fail_msg("the error is \"%s\", wanted \"%s...\"", err.message, cases[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars_are_read_by_any_fitting_getter),
        cmocka_unit_test(arrays_are_read_by_index),
        cmocka_unit_test(tensors_are_at_the_places_in_the_file),
        cmocka_unit_test(a_file_without_tensors_opens),
        cmocka_unit_test(shipped_models_open),
        cmocka_unit_test(models_and_vocabularies_by_other_programs_open),
        cmocka_unit_test(paths_that_are_not_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
