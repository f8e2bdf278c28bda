/* test_line_history.c - the file of typed lines: its place, its permissions, and its limited size. */
#include "testing.h"

#include "cli/chat/line_editor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR "build/test-line-history"
#define PATH DIR "/state/forerun/chat_history"

static int n_lines;
static char last_line[100], first_line[100];

static void note(void *user, const char *line) {
    (void)user;
    if (n_lines++ == 0) snprintf(first_line, sizeof first_line, "%s", line);
    snprintf(last_line, sizeof last_line, "%s", line);
}

static int read_lines(const char *path) {
    n_lines = 0;
    line_history_read(path, note, NULL);
    return n_lines;
}

static int begin(void **state) {
    (void)state;
    return system("rm -rf " DIR " && mkdir -p " DIR);
}

static void it_is_in_the_state_folder(void **state) {
    (void)state;
    char *folder = realpath(DIR, NULL), wanted[5000], value[5000];
    assert_non_null(folder);
    unsetenv("XDG_STATE_HOME");
    unsetenv("HOME");
    assert_null(line_history_path());
    setenv("XDG_STATE_HOME", "relative", 1);
    assert_null(line_history_path());
    setenv("HOME", folder, 1);
    snprintf(wanted, sizeof wanted, "%s/.local/state/forerun/chat_history", folder);
    assert_string_equal(line_history_path(), wanted);
    snprintf(value, sizeof value, "%s/state", folder);
    setenv("XDG_STATE_HOME", value, 1);
    snprintf(wanted, sizeof wanted, "%s/state/forerun/chat_history", folder);
    assert_string_equal(line_history_path(), wanted);
    free(folder);
}

static void lines_are_readable_only_by_their_user(void **state) {
    (void)state;
    struct stat st;
    assert_int_equal(read_lines(PATH), 0);
    line_history_append(PATH, "one");
    line_history_append(PATH, "two \xc3\xa4");
    assert_int_equal(stat(PATH, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(read_lines(PATH), 2);
    assert_string_equal(first_line, "one");
    assert_string_equal(last_line, "two \xc3\xa4");
}

static void only_the_last_lines_are_kept(void **state) {
    (void)state;
    struct stat st;
    FILE *f = fopen(PATH, "w");
    for (int i = 1; i <= 2 * LINE_HISTORY_MAX; i++) fprintf(f, "line %d\n", i);
    fclose(f);
    assert_int_equal(read_lines(PATH), LINE_HISTORY_MAX);
    assert_string_equal(first_line, "line 1001");
    stat(PATH, &st);
    off_t before = st.st_size;
    line_history_append(PATH, "line 2001");
    assert_int_equal(read_lines(PATH), LINE_HISTORY_MAX); /* and the file is replaced */
    assert_string_equal(last_line, "line 2001");
    stat(PATH, &st);
    assert_true(st.st_size < before);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(read_lines(PATH), LINE_HISTORY_MAX);
    assert_string_equal(first_line, "line 1002");
}

static void links_and_devices_do_not_change(void **state) {
    (void)state;
    struct stat st;
    assert_int_equal(system("printf 'keep\\n' > " DIR "/other && ln -s ../test-line-history/other " DIR "/link"), 0);
    line_history_append(DIR "/link", "lost");
    line_history_append("/dev/null", "lost");
    line_history_append(DIR "/nowhere/x", "lost");
    assert_int_equal(read_lines(DIR "/link"), 0);
    assert_int_equal(read_lines("/dev/zero"), 0);
    assert_int_equal(stat(DIR "/other", &st), 0);
    assert_int_equal(st.st_size, 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_in_the_state_folder),
        cmocka_unit_test(lines_are_readable_only_by_their_user),
        cmocka_unit_test(only_the_last_lines_are_kept),
        cmocka_unit_test(links_and_devices_do_not_change),
    };
    return cmocka_run_group_tests(tests, begin, NULL);
}
