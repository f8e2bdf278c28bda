/* test_gguf_bad.c - the GGUF reader on malformed files: each is refused with its own message, whatever sizes and
 * offsets it claims.
 *
 * The table in gguf_recipes.c is the source. tests/data/gguf holds the same files for other programs (and the fuzzer),
 * with expected.txt: one line "FILE<tab>CODE<tab>WORDS OF THE MESSAGE" each. After a change of the table,
 * `build/release/tests/test_gguf_bad --write` writes them again. */
#include "testing.h"

#include "gguf_build.h"
#include "gguf_recipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER "tests/data/gguf"

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
    for (int i = 0; i < n_gguf_recipes; i++) {
        const Recipe *r = &gguf_recipes[i];
        Buf b = {.max_bytes = 1 << 16};
        recipe_cook(r, &b);
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
    assert_int_equal(n, n_gguf_recipes);
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
    for (int i = 0; i < n_gguf_recipes; i++) {
        const Recipe *r = &gguf_recipes[i];
        Buf b = {.max_bytes = 1 << 16};
        recipe_cook(r, &b);
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
