/* test_gguf_bad.c - the GGUF reader on malformed files: each is refused with its own message, whatever sizes and
 * offsets it claims.
 *
 * The table below is the source. tests/data/gguf holds the same files for other programs (and the fuzzer),
 * with expected.txt: one line "FILE<tab>CODE<tab>WORDS OF THE MESSAGE" each. After a change of the table,
 * `build/release/tests/test_gguf_bad --write` writes them again. */
#include "testing.h"

#include "gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER "tests/data/gguf"

/* bytes: words that are separated by blanks.
 *     u8:N u32:N u64:N   a number            b:TEXT   the letters themselves
 *     s:TEXT             a string: its length as u64, then its letters; "%XX" in TEXT is one byte
 *     z:N                N zero bytes         pad:N    zeros up to a multiple of N
 *     a:N                a string of N times 'a'
 */
typedef struct Recipe {
    const char *name;
    const char *bytes;
    fr_code code;
    const char *says; /* part of the error message */
} Recipe;

/* A header that claims these numbers of tensors and key-values. */
#define HEAD(n_tensors, n_kv) "b:GGUF u32:3 u64:" #n_tensors " u64:" #n_kv " "
/* A tensor info with one dimension, and a valid tensor with its data. */
#define INFO(name, dim, type, offset) "s:" name " u32:1 u64:" #dim " u32:" #type " u64:" #offset " "
#define DATA "pad:32 z:256"

#define DAMAGED FR_ERR_FORMAT
#define FOREIGN FR_ERR_UNSUPPORTED

static const Recipe recipes[] = {
    /* the header */
    {"not-gguf", "b:GGML u32:3 u64:0 u64:0", DAMAGED, "does not begin with the letters GGUF"},
    {"two-bytes", "b:GG", DAMAGED, "does not begin with the letters GGUF"},
    {"version-0", "b:GGUF u32:0 u64:0 u64:0", FOREIGN, "version 0 is not supported"},
    {"version-1", "b:GGUF u32:1 u32:0 u32:0", FOREIGN, "version 1, which is no longer read; convert"},
    {"version-4", "b:GGUF u32:4 u64:0 u64:0", FOREIGN, "version 4 is not supported"},
    {"big-endian", "b:GGUF u32:50331648 u64:0 u64:0", FOREIGN, "big-endian"},
    {"header-cut", "b:GGUF u32:3 u64:1", DAMAGED, "ends inside the header"},
    {"tensors-2-60", HEAD(1152921504606846976, 0) "z:64", DAMAGED, "claims 1152921504606846976 tensors"},
    {"tensors-max", HEAD(18446744073709551615, 0) "z:64", DAMAGED, "claims 18446744073709551615 tensors"},
    {"keys-2-60", HEAD(0, 1152921504606846976) "z:64", DAMAGED, "claims 1152921504606846976 key-values"},
    {"keys-one-too-many", HEAD(0, 2) "s:a u32:4 u32:1 z:11", DAMAGED, "a key at byte 41 is 0 bytes long"},

    /* keys and their values */
    {"key-empty", HEAD(0, 1) "s: u32:4 u32:1", DAMAGED, "a key at byte 24 is 0 bytes long"},
    {"key-too-long", HEAD(0, 1) "a:1025 u32:4 u32:1", DAMAGED, "is 1025 bytes long; 1 to 1024"},
    {"key-longest", HEAD(0, 2) "a:1024 u32:4 u32:1 s: u32:0 u8:1", DAMAGED, "a key at byte 1064"},
    {"key-zero-byte", HEAD(0, 1) "s:a%00b u32:4 u32:1", DAMAGED, "a key at byte 32 holds a zero byte"},
    {"key-past-end", HEAD(0, 1) "u64:100 b:abcdef", DAMAGED, "ends inside a key"},
    {"key-2-63", HEAD(0, 1) "u64:9223372036854775808 b:abcdef", DAMAGED, "is 9223372036854775808 bytes long"},
    {"key-twice", HEAD(0, 2) "s:a u32:4 u32:1 s:a u32:0 u8:1", DAMAGED, "there are two keys a"},
    {"key-escapes", HEAD(0, 2) "s:%1b[31m%0a%ff u32:4 u32:1 s:%1b[31m%0a%ff u32:0 u8:1", DAMAGED,
     "there are two keys \\x1b[31m\\n\\xff"},
    {"value-type-13", HEAD(0, 1) "s:a u32:13 u64:0", DAMAGED, "the key a has value type 13"},
    {"value-type-max", HEAD(0, 1) "s:a u32:4294967295 u64:0", DAMAGED, "value type 4294967295"},
    {"value-cut", HEAD(0, 1) "s:a u32:10 z:7", DAMAGED, "ends inside the key a: it has 44 bytes and needs 45"},
    {"string-past-end", HEAD(0, 1) "s:a u32:8 u64:5 b:text", DAMAGED, "claims 5 bytes where the file has 4"},
    {"string-max", HEAD(0, 1) "s:a u32:8 u64:18446744073709551615 b:text", DAMAGED,
     "claims 18446744073709551615 bytes"},
    {"bool-2", HEAD(0, 1) "s:a u32:7 u8:2", DAMAGED, "the byte 2 where only 0 and 1"},
    {"bools-3", HEAD(0, 1) "s:a u32:9 u32:7 u64:2 u8:1 u8:3", DAMAGED, "the byte 3 where only 0 and 1"},
    {"array-of-arrays", HEAD(0, 1) "s:a u32:9 u32:9 u64:1 u32:0 u64:1 u8:0", FOREIGN, "an array of arrays"},
    {"array-type-99", HEAD(0, 1) "s:a u32:9 u32:99 u64:1 u8:0", DAMAGED, "elements of type 99"},
    {"array-past-end", HEAD(0, 1) "s:a u32:9 u32:4 u64:3 z:11", DAMAGED, "claims 3 elements where the file has 11"},
    {"array-2-62", HEAD(0, 1) "s:a u32:9 u32:4 u64:4611686018427387904 z:8", DAMAGED, "claims 4611686018427387904"},
    {"array-cut", HEAD(0, 1) "s:a u32:9 u32:4", DAMAGED, "ends inside the key a"},
    {"strings-2-61", HEAD(0, 1) "s:a u32:9 u32:8 u64:2305843009213693952 z:8", DAMAGED, "2305843009213693952 strings"},
    {"strings-past-end", HEAD(0, 1) "s:a u32:9 u32:8 u64:2 s:ab u64:3 b:xy", DAMAGED, "claims 3 bytes where"},
    {"alignment-0", HEAD(0, 1) "s:general.alignment u32:4 u32:0", DAMAGED, "general.alignment is 0"},
    {"alignment-4", HEAD(0, 1) "s:general.alignment u32:4 u32:4", DAMAGED, "general.alignment is 4"},
    {"alignment-33", HEAD(0, 1) "s:general.alignment u32:4 u32:33", DAMAGED, "general.alignment is 33"},
    {"alignment-2-31", HEAD(0, 1) "s:general.alignment u32:4 u32:2147483648", DAMAGED, "alignment is 2147483648"},
    {"alignment-text", HEAD(0, 1) "s:general.alignment u32:8 s:32", DAMAGED,
     "general.alignment is not a 32-bit number"},

    /* tensors */
    {"name-empty", HEAD(1, 0) INFO("", 8, 0, 0) DATA, DAMAGED, "a tensor name at byte 24 is 0 bytes long"},
    {"name-too-long", HEAD(1, 0) "a:256 u32:1 u64:8 u32:0 u64:0 " DATA, DAMAGED, "is 256 bytes long; 1 to 255"},
    {"name-zero-byte", HEAD(1, 0) INFO("a%00", 8, 0, 0) DATA, DAMAGED, "a tensor name at byte 32 holds a zero byte"},
    {"name-escapes", HEAD(1, 0) INFO("%07%1b]0;x", 8, 99, 0) DATA, FOREIGN, "tensor \\x07\\x1b]0;x has type 99"},
    {"name-twice", HEAD(2, 0) INFO("a", 8, 0, 0) INFO("a", 8, 0, 32) DATA, DAMAGED, "two tensors named a"},
    {"info-cut", HEAD(2, 0) INFO("a", 8, 0, 0) "s:b.weight u32:1 u64:8 z:11", DAMAGED, "ends inside b.weight: it has"},
    {"info-missing", HEAD(2, 0) INFO("a", 8, 0, 0) "u64:1 b:b u32:4 u64:1 u64:1 u64:1", DAMAGED, "ends inside b"},
    {"dims-0", HEAD(1, 0) "s:a u32:0 u32:0 u64:0 " DATA, DAMAGED, "tensor a has 0 dimensions"},
    {"dims-5", HEAD(1, 0) "s:a u32:5 u64:1 u64:1 u64:1 u64:1 u64:1 u32:0 u64:0 " DATA, DAMAGED, "has 5 dimensions"},
    {"dim-zero", HEAD(1, 0) "s:a u32:2 u64:8 u64:0 u32:0 u64:0 " DATA, DAMAGED, "dimension 1 of tensor a is 0"},
    {"dim-2-63", HEAD(1, 0) INFO("a", 9223372036854775808, 0, 0) DATA, DAMAGED, "tensor a is 9223372036854775808"},
    {"dims-overflow", HEAD(1, 0) "s:a u32:2 u64:4294967296 u64:4294967296 u32:0 u64:0 " DATA, DAMAGED,
     "dimension 1 of tensor a is 4294967296"},
    {"bytes-overflow", HEAD(1, 0) "s:a u32:2 u64:2147483648 u64:4294967295 u32:0 u64:0 " DATA, DAMAGED, "is too large"},
    {"type-tq2-0", HEAD(1, 0) INFO("a", 256, 35, 0) DATA, FOREIGN,
     "tensor a has type 35 (TQ2_0), which is not supported"},
    {"type-i32", HEAD(1, 0) INFO("a", 8, 26, 0) DATA, FOREIGN, "type 26 (I32)"},
    {"type-removed", HEAD(1, 0) INFO("a", 256, 4, 0) DATA, FOREIGN, "supported are F32, F16, BF16, Q8_0"},
    {"type-max", HEAD(1, 0) INFO("a", 256, 4294967295, 0) DATA, FOREIGN, "type 4294967295 (an unknown type"},
    {"row-part-block", HEAD(1, 0) INFO("a", 33, 8, 0) DATA, DAMAGED, "rows of 33 elements, which are not whole Q8_0"},
    {"row-part-super", HEAD(1, 0) INFO("a", 128, 12, 0) DATA, DAMAGED, "not whole Q4_K blocks of 256"},
    {"row-part-q2-k", HEAD(1, 0) INFO("a", 384, 10, 0) DATA, DAMAGED, "not whole Q2_K blocks of 256"},
    {"row-part-mxfp4", HEAD(1, 0) INFO("a", 48, 39, 0) DATA, DAMAGED, "not whole MXFP4 blocks of 32"},
    {"row-part-iq2-xxs", HEAD(1, 0) INFO("a", 128, 16, 0) DATA, DAMAGED, "not whole IQ2_XXS blocks of 256"},
    {"row-part-nvfp4", HEAD(1, 0) INFO("a", 96, 40, 0) DATA, DAMAGED, "not whole NVFP4 blocks of 64"},
    {"data-cut-iq3-s", HEAD(1, 0) INFO("a", 768, 21, 0) DATA, DAMAGED,
     "tensor a (330 bytes at 0) reaches past the end"},
    {"data-cut-iq4-xs", HEAD(1, 0) INFO("a", 512, 23, 0) DATA, DAMAGED,
     "tensor a (272 bytes at 0) reaches past the end"},
    {"offset-crooked", HEAD(1, 0) INFO("a", 8, 0, 8) DATA, DAMAGED, "starts at 8, which is not a multiple"},
    {"offset-past-end", HEAD(1, 0) INFO("a", 8, 0, 320) DATA, DAMAGED, "reaches past the end of the file"},
    {"offset-max", HEAD(1, 0) INFO("a", 8, 0, 18446744073709551584) DATA, DAMAGED, "reaches past the end"},
    {"data-cut", HEAD(1, 0) INFO("a", 65, 0, 0) DATA, DAMAGED, "tensor a (260 bytes at 0) reaches past the end"},
    {"data-missing", HEAD(1, 0) INFO("a", 1, 0, 0), DAMAGED, "reaches past the end"},
    {"data-overlap", HEAD(2, 0) INFO("a", 9, 0, 0) INFO("b", 8, 0, 32) DATA, DAMAGED, "tensors a and b overlap"},
    {"data-shared", HEAD(2, 0) INFO("b", 8, 0, 32) INFO("a", 8, 0, 32) DATA, DAMAGED, "overlap"},
};
enum { N_RECIPES = sizeof recipes / sizeof *recipes };

/* TEXT up to the next blank, with its escapes, into text; returns its length. */
static size_t unescape(const char *from, size_t n, char *text) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        if (from[i] == '%') {
            char hex[3] = {from[i + 1], from[i + 2], '\0'};
            text[at++] = (char)strtoul(hex, NULL, 16);
            i += 2;
        } else text[at++] = from[i];
    return at;
}

static void put_letters(Buf *out, const char *from, size_t n, bool with_length) {
    char text[256];
    fr_assert(n < sizeof text);
    n = unescape(from, n, text);
    if (with_length) put_u64(out, n);
    for (size_t i = 0; i < n; i++) put_u8(out, (uint8_t)text[i]);
}

static void put_word(Buf *out, const char *word, size_t n) {
    const char *colon = memchr(word, ':', n);
    fr_assert(colon);
    const char *argument = colon + 1;
    size_t argument_n = n - (size_t)(argument - word);
    unsigned long long v = strtoull(argument, NULL, 10);
    switch (word[0]) {
    case 'b': put_letters(out, argument, argument_n, false); return;
    case 's': put_letters(out, argument, argument_n, true); return;
    case 'z': put_zeros(out, (size_t)v); return;
    case 'p': put_padding(out, (size_t)v); return;
    case 'a':
        put_u64(out, v);
        for (unsigned long long i = 0; i < v; i++) put_u8(out, 'a');
        return;
    default: break;
    }
    if (strncmp(word, "u8:", 3) == 0) put_u8(out, (uint8_t)v);
    else if (strncmp(word, "u32:", 4) == 0) put_u32(out, (uint32_t)v);
    else {
        fr_assert(strncmp(word, "u64:", 4) == 0);
        put_u64(out, v);
    }
}

static void cook(const Recipe *r, Buf *out) {
    for (const char *p = r->bytes; *p;) {
        size_t n = strcspn(p, " ");
        if (n) put_word(out, p, n);
        p += n + (p[n] == ' ');
    }
}

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static bool is_printable(const char *s) {
    for (; *s; s++)
        if (*s < 0x20 || *s > 0x7e) return false;
    return true;
}

/* The file must be refused with that code, and with one printable line that starts with its name and contains these
 * words.
 */
static void assert_refused(const Gguf *g, int status, const fr_error *err, const char *name, int code,
                           const char *says) {
    if (g || status != code || err->code != code || !strstr(err->message, says) || !is_printable(err->message) ||
        strncmp(err->message, name, strlen(name)) != 0)
        fail_msg("%s: code %d \"%s\", wanted %d \"%s\"", name, status, err->message, code, says);
}

/* Copies the bytes into a block of exactly their size, so that a sanitizer finds any access past the end. */
static void *exact_copy(const void *bytes, size_t n) {
    void *p = malloc(n ? n : 1);
    assert_non_null(p);
    if (n) memcpy(p, bytes, n);
    return p;
}

static void each_recipe_is_refused_with_its_sentence(void **state) {
    (void)state;
    for (int i = 0; i < N_RECIPES; i++) {
        const Recipe *r = &recipes[i];
        Buf b = {.max_bytes = 1 << 16};
        cook(r, &b);
        void *bytes = exact_copy(b.data, b.n);
        Gguf *g;
        fr_error err = {0};
        int status = gguf_open_memory(&g, bytes, b.n, r->name, &err);
        assert_refused(g, status, &err, r->name, r->code, r->says);
        free(bytes);
        buf_free(&b);
    }
}

static void the_corpus_is_refused_with_its_message(void **state) {
    (void)state;
    FILE *list = fopen(FOLDER "/expected.txt", "r");
    assert_non_null(list);
    char line[512], name[64], says[256];
    int code, n = 0;
    while (fgets(line, sizeof line, list)) {
        char path[128];
        if (sscanf(line, "%63[^\t]\t%d\t%255[^\n]", name, &code, says) != 3) fail_msg("expected.txt: %s", line);
        snprintf(path, sizeof path, FOLDER "/%s", name);
        Gguf *g;
        fr_error err = {0};
        int status = gguf_open(&g, path, &err);
        assert_refused(g, status, &err, path, code, says);
        n++;
    }
    fclose(list);
    assert_int_equal(n, N_RECIPES);
}

static void every_prefix_of_a_sound_file_is_refused(void **state) {
    (void)state;
    Buf b = {.max_bytes = 1 << 16};
    put_sound_file(&b);
    for (size_t n = 0; n <= b.n; n++) {
        void *bytes = exact_copy(b.data, n);
        Gguf *g;
        fr_error err = {0};
        int status = gguf_open_memory(&g, bytes, n, "prefix", &err);
        if (n < b.n) {
            if (status != FR_ERR_FORMAT || g) fail_msg("the first %zu of %zu bytes open: %d", n, b.n, status);
        } else if (status) fail_msg("the whole file is refused: %s", err.message);
        gguf_close(g);
        free(bytes);
    }
    buf_free(&b);
}

/* Some mutations give another valid file; then every accessor must work. */
static void every_change_of_one_byte_is_survived(void **state) {
    (void)state;
    Buf b = {.max_bytes = 1 << 16};
    put_sound_file(&b);
    uint8_t *bytes = exact_copy(b.data, b.n);
    size_t header = b.n - 216;
    int n_opened = 0, n_refused = 0;
    for (size_t at = 0; at < header; at++)
        for (int change = 1; change < 256; change++) {
            Gguf *g;
            fr_error err = {0};
            bytes[at] = (uint8_t)(bytes[at] ^ change);
            if (gguf_open_memory(&g, bytes, b.n, "mutant", &err)) {
                if (strncmp(err.message, "mutant: ", 8) != 0 || !is_printable(err.message) || g)
                    fail_msg("byte %zu ^ %02x: \"%s\"", at, change, err.message);
                n_refused++;
            } else {
                touch_everything(g);
                n_opened++;
            }
            gguf_close(g);
            bytes[at] = (uint8_t)(bytes[at] ^ change);
        }
    assert_true(n_opened > 1000 && n_refused > 1000);
    free(bytes);
    buf_free(&b);
}

static void more_entries_than_make_sense_are_refused(void **state) {
    (void)state;
    size_t n = 40u << 20; /* enough bytes for the claim to be possible */
    uint8_t *bytes = calloc(n, 1);
    assert_non_null(bytes);
    for (int tensors = 0; tensors < 2; tensors++) {
        Buf b = {.max_bytes = 64};
        put_header(&b, 3, tensors ? (1 << 20) + 1 : 0, tensors ? 0 : (1 << 20) + 1);
        memcpy(bytes, b.data, b.n);
        Gguf *g;
        fr_error err = {0};
        int status = gguf_open_memory(&g, bytes, n, "claim", &err);
        assert_refused(g, status, &err, "claim", FR_ERR_FORMAT, "at most 1048576 are allowed");
        buf_free(&b);
    }
    free(bytes);
}

static int write_corpus(void) {
    FILE *list = fopen(FOLDER "/expected.txt", "w");
    if (!list) return 1;
    for (int i = 0; i < N_RECIPES; i++) {
        const Recipe *r = &recipes[i];
        Buf b = {.max_bytes = 1 << 16};
        cook(r, &b);
        char path[128];
        snprintf(path, sizeof path, FOLDER "/%s.gguf", r->name);
        FILE *f = fopen(path, "wb");
        if (!f || fwrite(b.data, 1, b.n, f) != b.n || fclose(f) != 0) return 1;
        fprintf(list, "%s.gguf\t%d\t%s\n", r->name, (int)r->code, r->says);
        buf_free(&b);
    }
    return fclose(list) != 0;
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--write") == 0) return write_corpus();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_recipe_is_refused_with_its_sentence),
        cmocka_unit_test(the_corpus_is_refused_with_its_message),
        cmocka_unit_test(every_prefix_of_a_sound_file_is_refused),
        cmocka_unit_test(every_change_of_one_byte_is_survived),
        cmocka_unit_test(more_entries_than_make_sense_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
