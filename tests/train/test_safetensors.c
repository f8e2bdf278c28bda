/* test_safetensors.c - the safetensors reader: the content of a valid file, and the errors of malformed and hostile
 * ones. */
#include "safetensors_build.h"

#include "train/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T(dtype, shape, from, to) \
    "{\"dtype\": \"" dtype "\", \"shape\": [" shape "], \"data_offsets\": [" #from ", " #to "]}"

static void a_valid_file_is_read(void **state) {
    (void)state;
    size_t n;
    void *bytes = safetensors_build_raw(
        "{\"b\": " T("F16", "2, 3", 4, 16) ", \"__metadata__\": {\"a\": \"b\"}, \"a\": " T(
            "F32", "", 0, 4) ", \"d2t\": " T("I64", "1", 16, 24) "}  ",
        24, &n);
    SafeTensors *s;
    fr_error err;
    if (safetensors_open_memory(&s, bytes, n, "valid", &err)) fail_msg("%s", err.message);
    assert_int_equal(safetensors_count(s), 3);
    assert_string_equal(safetensors_path(s), "valid");
    assert_string_equal(safetensors_tensor(s, 0)->name, "a");
    assert_int_equal(safetensors_tensor(s, 0)->n_dims, 0);
    const SafeTensor *b = safetensors_find(s, "b");
    assert_true(b && b->has_type && b->type == TYPE_F16 && b->n_dims == 2 && b->dims[0] == 2 && b->dims[1] == 3 &&
                b->dims[2] == 1);
    assert_true(b->bytes == 12 && *(const unsigned char *)b->data == 4);
    assert_false(safetensors_find(s, "d2t")->has_type);
    assert_null(safetensors_find(s, "c"));
    safetensors_close(s);
    free(bytes);
}

static void expect(const void *bytes, size_t n, const char *message) {
    SafeTensors *s = (SafeTensors *)&n;
    fr_error err = {0};
    void *exact = malloc(n ? n : 1); /* an exact allocation, so that a sanitizer detects reads beyond the end */
    memcpy(exact, bytes, n);
    int status = safetensors_open_memory(&s, exact, n, "bad", &err);
    free(exact);
    if (status == FR_OK || s || strncmp(err.message, "bad: ", 5) != 0 || !strstr(err.message, message))
        fail_msg("%d '%s', want '%s'", status, err.message, message);
    for (const char *p = err.message; *p; p++) assert_true(*p >= ' ' && *p <= '~');
}

static void malformed_headers_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *header, *message;
    } bad[] = {
        {"[]", "its header is not a JSON object"},
        {"{\"a\": ", "its header is not JSON"},
        {"{\"a\": " T("F32", "1", 0, 4) ", \"a\": " T("F32", "1", 4, 8) "}", "its header is not JSON: duplicate"},
        {"{\"a\\u0000b\": 1}", "its header is not JSON"},
        {"{\"a\": 7}", "tensor a must be described by a JSON object"},
        {"{\"a\": {}}", "tensor a has an unknown dtype"},
        {"{\"a\": " T("Q4_0", "8", 0, 8) "}", "tensor a has an unknown dtype"},
        {"{\"a\": {\"dtype\": \"F32\"}}", "tensor a must have a shape of 0 to 4 numbers"},
        {"{\"a\": " T("F32", "1,1,1,1,2", 0, 8) "}", "tensor a must have a shape of 0 to 4 numbers"},
        {"{\"a\": " T("F32", "2.0", 0, 8) "}", "tensor a must have a shape of integers"},
        {"{\"a\": " T("F32", "-2", 0, 8) "}", "tensor a must have a shape of integers"},
        {"{\"a\": " T("F32", "0", 0, 0) "}", "tensor a must have a shape of integers"},
        {"{\"a\": " T("F32", "4611686018427387904, 4", 0, 8) "}", "tensor a has a shape that is larger than any file"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0]}}",
         "tensor a must have data_offsets of two integers"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": {\"0\": 1}}}",
         "tensor a must have data_offsets of two integers"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, \"8\"]}}",
         "tensor a must have data_offsets of two integers"},
        {"{\"a\": " T("F32", "2", -8, 0) "}", "tensor a lies outside the file"},
        {"{\"a\": " T("F32", "2", 8, 0) "}", "tensor a lies outside the file"},
        {"{\"a\": " T("F32", "2", 8, 16) "}", "tensor a lies outside the file"},
        {"{\"a\": " T("F32", "2", 0, 9223372036854775807) "}", "tensor a lies outside the file"},
        {"{\"a\": " T("F32", "1", 0, 8) "}", "tensor a has a size that does not match"},
        {"{\"a\": " T("F32", "1", 0, 4) ", \"b\": " T("F32", "1", 0, 4) "}", " overlaps with another"},
        {"{\"a\": " T("F32", "1", 0, 4) ", \"b\": " T("F32", "1", 2, 6) "}", "tensor b overlaps with another"},
        {"{\"b\": " T("F32", "1", 4, 8) "}", "tensor b leaves a gap before it"},
        {"{\"a\": " T("F32", "1", 0, 4) "}", "holds 4 bytes after its last tensor"},
        {"{\"\\n\\u001b[31m\": 1}", "tensor \\n\\x1b[31m must be described by a JSON object"},
        {"{\"a\": 99999999999999999999}", "its header is not JSON"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        size_t n;
        void *bytes = safetensors_build_raw(bad[i].header, 8, &n);
        expect(bytes, n, bad[i].message);
        free(bytes);
    }
    expect("{}", 2, "it ends after 2 bytes");
    expect("\x10\0\0\0\0\0\0\0{}", 10, "claim a header of 16 bytes in a file of 10");
    static char long_header[8 + (17 << 20)]; /* claims 16 MiB and a byte */
    long_header[0] = 1, long_header[3] = 1;
    expect(long_header, sizeof long_header, "has a header of 16777217 bytes; at most 16777216 are read");
    expect("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, "claim a header of 18446744073709551615 bytes");
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    size_t n;
    void *bytes = safetensors_build_raw("{\"a\": " T("F32", "2", 0, 8) "}", 8, &n);
    for (size_t cut = 0; cut < n; cut++) expect(bytes, cut, "");
    free(bytes);
}

static void pickles_are_refused_with_the_remedy(void **state) {
    (void)state;
    expect("PK\x03\x04\x14\0\0\0\0\0\0\0", 12, "is a pickle of PyTorch");
    expect("\x80\x02}q\0X\x01\0\0\0", 10, "save_file");
    SafeTensors *s;
    fr_error err = {0};
    assert_int_equal(safetensors_open(&s, "/nowhere.safetensors", &err), FR_ERR_IO);
    assert_int_equal(safetensors_open(&s, "/dev/null", &err), FR_ERR_IO);
    assert_int_equal(safetensors_open(&s, "README.md", &err), FR_ERR_FORMAT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_valid_file_is_read),
        cmocka_unit_test(malformed_headers_are_refused),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(pickles_are_refused_with_the_remedy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
