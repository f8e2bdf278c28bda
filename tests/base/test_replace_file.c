/* test_replace_file.c - replacing a file (base/files.c): at any moment either the old file or the whole new one exists,
 * only regular files are replaced, their permissions are kept, and links that others put into the folder are not
 * followed. */
#include "testing.h"

#include "base/files.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static char folder[] = "build/replace-XXXXXX", path[64], other[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); /* fails unless the folder is empty */
}

static int remove_files(void **state) {
    (void)state;
    remove(path);
    remove(other);
    return 0;
}

static int count_files(void) {
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2; /* without . and .. */
}

static int write_text(const char *text, int failure, fr_error *err) {
    ReplaceFile r;
    int status = replace_file_begin(&r, path, err);
    if (status) return status;
    fputs(text, r.file);
    return replace_file_end(&r, failure, err);
}

static void put(const char *to, const char *text, mode_t mode) {
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(chmod(to, mode), 0);
}

static void expect_in(const char *from, const char *text) {
    char got[64] = "";
    FILE *f = fopen(from, "r");
    assert_non_null(f);
    assert_true(fgets(got, sizeof got, f) || !*text);
    fclose(f);
    assert_string_equal(got, text);
}

static void expect(const char *text) { expect_in(path, text); }

static mode_t mode_of(const char *of) {
    struct stat st;
    assert_int_equal(stat(of, &st), 0);
    return st.st_mode & 07777;
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
    assert_int_equal(count_files(), 1);
}

static void what_is_no_file_stays(void **state) {
    (void)state;
    fr_error err;
    struct stat st;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(write_text("x", FR_OK, &err), FR_ERR_IO);
    assert_non_null(strstr(err.message, "not a regular file; choose another path"));
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
}

/* An attacker could prepare every name that ends with a process number, so such a name must not be used. */
static void a_planted_link_is_not_followed(void **state) {
    (void)state;
    char planted[128];
    fr_error err;
    snprintf(planted, sizeof planted, "%s.%ld.tmp", path, (long)getpid());
    put(other, "precious", 0644);
    assert_int_equal(symlink("other", planted), 0);
    assert_int_equal(write_text("new", FR_OK, &err), FR_OK);
    expect("new");
    expect_in(other, "precious");
    assert_int_equal(remove(planted), 0);
}

static void permissions_stay(void **state) {
    (void)state;
    fr_error err;
    mode_t before = umask(027);
    assert_int_equal(write_text("new", FR_OK, &err), FR_OK);
    assert_int_equal(mode_of(path), 0640); /* 0666 without the bits of the umask */
    static const mode_t modes[] = {0600, 0644, 0666, 0711};
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(path, modes[i]), 0);
        assert_int_equal(write_text("newer", FR_OK, &err), FR_OK);
        assert_int_equal(mode_of(path), modes[i]);
    }
    umask(before);
    struct stat st;
    if (geteuid() != 0) return;
    assert_int_equal(chown(path, NOBODY, NOBODY), 0);
    assert_int_equal(write_text("newest", FR_OK, &err), FR_OK);
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_uid == NOBODY && st.st_gid == NOBODY);
}

/* While a private file is being written, nobody else may read it. */
static void a_private_file_is_private_from_the_start(void **state) {
    (void)state;
    ReplaceFile r;
    put(path, "old", 0600);
    assert_int_equal(replace_file_begin(&r, path, NULL), FR_OK);
    assert_int_equal(mode_of(r.temporary), 0600);
    assert_int_equal(replace_file_end(&r, FR_OK, NULL), FR_OK);
}

static void the_file_behind_a_link_is_replaced(void **state) {
    (void)state;
    struct stat st;
    fr_error err;
    put(other, "old", 0600);
    assert_int_equal(symlink("other", path), 0);
    assert_int_equal(write_text("new", FR_OK, &err), FR_OK);
    assert_true(lstat(path, &st) == 0 && S_ISLNK(st.st_mode));
    expect_in(other, "new");
    assert_int_equal(mode_of(other), 0600);
    assert_int_equal(remove(other), 0);
    assert_int_equal(write_text("new", FR_OK, &err), FR_ERR_IO);
    assert_non_null(strstr(err.message, "a symbolic link to a file that does not exist; remove the link"));
    assert_int_equal(count_files(), 1);
}

static void a_full_disk_leaves_the_old_file(void **state) {
    (void)state;
    struct rlimit before, small;
    ReplaceFile r;
    fr_error err;
    put(path, "old", 0644);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 4096, .rlim_max = before.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t n = 5000; n < 100000; n += 90000) { /* 5000 bytes stay in the buffer until it is flushed; 95000 are
                                                     * written before */
        assert_int_equal(replace_file_begin(&r, path, &err), FR_OK);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        for (size_t i = 0; i < n; i++) fputc('x', r.file); /* a writer that does not check for errors */
        int status = replace_file_end(&r, FR_OK, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_int_equal(status, FR_ERR_IO);
        assert_non_null(strstr(err.message, "cannot be written: File too large"));
        expect("old");
        assert_int_equal(count_files(), 1);
    }
    signal(SIGXFSZ, handler);
}

static void a_closed_folder_is_refused(void **state) {
    (void)state;
    fr_error err;
    put(path, "old", 0666);
    assert_int_equal(chmod(folder, 0555), 0);
    bool was_root = geteuid() == 0;
    if (was_root) assert_int_equal(seteuid(NOBODY), 0);
    int checked = replace_file_check(path, &err), status = write_text("new", FR_OK, NULL);
    if (was_root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(checked, FR_ERR_IO);
    assert_non_null(strstr(err.message, "its folder may not be written"));
    assert_int_equal(status, FR_ERR_IO);
    expect("old");
}

static void a_check_creates_nothing(void **state) {
    (void)state;
    static const struct {
        const char *path, *why;
    } cases[] = {
        {"/nowhere/x", "/nowhere/x: cannot be written: its folder does not exist; create it"},
        {"build", "build: cannot be written: it is a folder; name a file in it"},
        {"build/nothing/", "the path ends without the name of a file"},
        {"", "the path ends without the name of a file"},
        {"/dev/null", "/dev/null: exists and is not a regular file"},
        {"README.md/x", "README.md/x: cannot be written: Not a directory"},
    };
    fr_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(replace_file_check(cases[i].path, &err), FR_ERR_IO);
        if (!strstr(err.message, cases[i].why)) fail_msg("'%s': %s", cases[i].path, err.message);
        ReplaceFile r;
        assert_int_equal(replace_file_begin(&r, cases[i].path, &err), FR_ERR_IO);
    }
    assert_int_equal(replace_file_check(path, &err), FR_OK);
    assert_int_equal(count_files(), 0);
}

/* A name of the greatest length leaves no room for an ending. */
static void the_longest_name_can_be_written(void **state) {
    (void)state;
    char longest[300];
    ReplaceFile r;
    snprintf(longest, sizeof longest, "%s/%0255d", folder, 7);
    assert_int_equal(replace_file_begin(&r, longest, NULL), FR_OK);
    assert_int_equal(replace_file_end(&r, FR_OK, NULL), FR_OK);
    assert_int_equal(remove(longest), 0);
}

static void unfinished_files_can_be_removed_at_once(void **state) {
    (void)state;
    ReplaceFile r[3];
    put(path, "old", 0644);
    for (int i = 0; i < 3; i++) assert_int_equal(replace_file_begin(&r[i], path, NULL), FR_OK);
    assert_int_equal(replace_file_end(&r[1], FR_OK, NULL), FR_OK);
    assert_int_equal(count_files(), 3);
    put(path, "kept", 0644);
    replace_file_abandon_all();
    assert_int_equal(count_files(), 1);
    assert_int_equal(replace_file_end(&r[0], FR_OK, NULL), FR_ERR_IO); /* if the program goes on after
                                                                        * replace_file_abandon_all */
    assert_int_equal(replace_file_end(&r[2], FR_ERR_FORMAT, NULL), FR_ERR_FORMAT);
    expect("kept");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(all_of_it_or_as_it_was, remove_files),
        cmocka_unit_test_teardown(what_is_no_file_stays, remove_files),
        cmocka_unit_test_teardown(a_planted_link_is_not_followed, remove_files),
        cmocka_unit_test_teardown(permissions_stay, remove_files),
        cmocka_unit_test_teardown(a_private_file_is_private_from_the_start, remove_files),
        cmocka_unit_test_teardown(the_file_behind_a_link_is_replaced, remove_files),
        cmocka_unit_test_teardown(a_full_disk_leaves_the_old_file, remove_files),
        cmocka_unit_test_teardown(a_closed_folder_is_refused, remove_files),
        cmocka_unit_test_teardown(a_check_creates_nothing, remove_files),
        cmocka_unit_test_teardown(the_longest_name_can_be_written, remove_files),
        cmocka_unit_test_teardown(unfinished_files_can_be_removed_at_once, remove_files),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
