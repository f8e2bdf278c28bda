/* test_replace_file.c - Replacing a file (base/replace_file.c): the whole new file or the old one is there at any
 * moment, and only regular files are replaced. */
#include "testing.h"

#include "base/replace_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "build/replace-XXXXXX", path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    remove(path);
    return rmdir(folder); /* and nothing is left in it */
}

static int write_text(const char *text, int failure, fr_error *err) {
    ReplaceFile r;
    int status = replace_file_begin(&r, path, err);
    if (status) return status;
    fputs(text, r.file);
    return replace_file_end(&r, failure, err);
}

static void expect(const char *text) {
    char got[64] = "";
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fgets(got, sizeof got, f) || !*text);
    fclose(f);
    assert_string_equal(got, text);
}

static void all_of_it_or_as_it_was(void **state) {
    (void)state;
    fr_error err;
    assert_int_equal(write_text("first", FR_OK, &err), FR_OK);
    expect("first");
    assert_int_equal(write_text("second", FR_ERR_FORMAT, &err), FR_ERR_FORMAT);
    expect("first");
    assert_int_equal(write_text("third", FR_OK, &err), FR_OK);
    expect("third");
}

static void what_is_no_file_stays(void **state) {
    (void)state;
    fr_error err;
    struct stat st;
    remove(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(write_text("x", FR_OK, &err), FR_ERR_IO);
    assert_non_null(strstr(err.message, "not a regular file; choose another path"));
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_of_it_or_as_it_was),
        cmocka_unit_test(what_is_no_file_stays),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
