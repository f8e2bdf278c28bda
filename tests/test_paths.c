/* test_paths.c - the files that documents, scripts and comments name exist. Three things count as names: a path that
 * begins with a folder of the project ("src/", "docs/", ...) and has an extension; a path of a .c or .h file as in an
 * #include ("base/mem.h"); and the target of a link in Markdown. CHANGELOG.md and research/DIARY.md describe earlier
 * states of the tree, and are left out. */
#include "testing.h"

#include <ctype.h>
#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const folders[] = {"bench/",  "bindings/", "cli/",   "debian/", "deploy/",
                                      "docs/",   "include/",  "man/",   "models/", "research/",
                                      "server/", "src/",      "tests/", "tools/",  "train/"};
enum { N_FOLDERS = sizeof folders / sizeof *folders, MAX_PATH = 300 };

static int n_missing, n_checked;

static bool is_path_char(char c) { return isalnum((unsigned char)c) || strchr("_-./", c); }

/* Only a name with an extension of letters and digits is a file; a full stop at the end belongs to the sentence. */
static bool names_a_file(char *path) {
    size_t n = strlen(path);
    while (n && strchr(".-/", path[n - 1])) path[--n] = '\0';
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');
    return dot && (!slash || dot > slash + 1) && strlen(dot) >= 2 && strlen(dot) <= 6;
}

/* `ends_in_pattern`: the path continues with a character of a pattern, such as '*', and names no single file. NAME is a
 * placeholder, and object files are not in the tree. */
static void check(const char *from, int line, char *path, bool ends_in_pattern) {
    if (ends_in_pattern || !names_a_file(path) || strstr(path, "NAME") || strcmp(strrchr(path, '.'), ".o") == 0) return;
    if (strncmp(from, "tests/", 6) == 0 && strncmp(path, "models/", 7) == 0)
        return; /* tests name absent models on purpose */
    n_checked++;
    if (access(path, F_OK) == 0) return;
    print_message("%s:%d names %s, which does not exist\n", from, line, path);
    n_missing++;
}

/* A path that begins at the root of the project, anywhere in a line. */
static void check_paths(const char *from, int line, const char *text) {
    for (const char *p = text; *p; p++) {
        if (p > text && (is_path_char(p[-1]) || strchr("{}*<>$\"~:", p[-1])) && p[-1] != ':' && p[-1] != '"') continue;
        for (int i = 0; i < N_FOLDERS; i++) {
            if (strncmp(p, folders[i], strlen(folders[i])) != 0) continue;
            char path[MAX_PATH];
            size_t n = 0;
            while (n + 1 < sizeof path && is_path_char(p[n])) path[n] = p[n], n++;
            path[n] = '\0';
            check(from, line, path, p[n] && strchr("*{<$[(%", p[n]));
        }
    }
}

static bool exists_under(const char *folder, int n_folder, const char *path) {
    char full[2 * MAX_PATH];
    snprintf(full, sizeof full, "%.*s%s", n_folder, folder, path);
    return access(full, F_OK) == 0;
}

/* A path of a .c or .h file as in an #include: relative to src/, to the root or to the folder of the file itself. */
static void check_includes(const char *from, int line, const char *text) {
    const char *slash = strrchr(from, '/');
    for (const char *p = text; *p; p++) {
        if (!isalpha((unsigned char)*p) || (p > text && (is_path_char(p[-1]) || strchr("%*}>$~", p[-1])))) continue;
        char path[MAX_PATH];
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789_/");
        if (n + 3 > sizeof path || !memchr(p, '/', n) || strncmp(p, "sys/", 4) == 0) continue;
        if (p[n] != '.' || !p[n + 1] || !strchr("ch", p[n + 1]) || isalnum((unsigned char)p[n + 2])) continue;
        snprintf(path, sizeof path, "%.*s", (int)n + 2, p);
        n_checked++;
        if (exists_under("", 0, path) || exists_under("src/", 4, path) ||
            (slash && exists_under(from, (int)(slash - from) + 1, path)))
            continue;
        print_message("%s:%d names %s, which does not exist\n", from, line, path);
        n_missing++;
    }
}

/* [text](target) in Markdown: relative to the folder of the document. */
static void check_links(const char *from, int line, const char *text) {
    for (const char *p = text; (p = strstr(p, "](")); p += 2) {
        size_t n = strcspn(p + 2, ")#");
        if (n == 0 || n >= 200 || strncmp(p + 2, "http", 4) == 0) continue;
        char path[MAX_PATH + 400];
        const char *slash = strrchr(from, '/');
        snprintf(path, sizeof path, "%.*s%.*s", slash ? (int)(slash - from + 1) : 0, from, (int)n, p + 2);
        n_checked++;
        if (access(path, F_OK) != 0)
            print_message("%s:%d links to %s, which does not exist\n", from, line, path), n_missing++;
    }
}

static bool is_read(const char *path) {
    static const char *const ends[] = {".md", ".c", ".h", ".sh", ".py", ".mjs", ".js", "Makefile", "Dockerfile", ".1"};
    if (strcmp(path, "CHANGELOG.md") == 0 || strcmp(path, "research/DIARY.md") == 0 || strstr(path, "test_layers.c") ||
        strstr(path, "test_paths.c"))
        return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (strlen(path) >= strlen(ends[i]) && strcmp(path + strlen(path) - strlen(ends[i]), ends[i]) == 0) return true;
    return false;
}

/* These folders contain no files written by hand, and other tests create and remove files in build/ at the same time,
 * which would end a walk through it. */
static bool is_skipped(const char *folder) {
    static const char *const skipped[] = {"build", ".git", "node_modules", "tests/fuzz/corpus"};
    for (size_t i = 0; i < sizeof skipped / sizeof *skipped; i++)
        if (strcmp(folder, skipped[i]) == 0) return true;
    const char *slash = strrchr(folder, '/');
    return slash && strcmp(slash + 1, "node_modules") == 0;
}

static int read_file(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)at;
    if (strncmp(path, "./", 2) == 0) path += 2;
    if (kind == FTW_D && is_skipped(path)) return FTW_SKIP_SUBTREE;
    if (kind != FTW_F || !is_read(path)) return FTW_CONTINUE;
    FILE *f = fopen(path, "r");
    if (!f) return FTW_CONTINUE;
    char *line = NULL;
    size_t room = 0;
    bool is_markdown = strlen(path) > 3 && strcmp(path + strlen(path) - 3, ".md") == 0;
    for (int n = 1; getline(&line, &room, f) > 0; n++) {
        if (!strstr(line, "#include")) check_paths(path, n, line), check_includes(path, n, line);
        if (is_markdown) check_links(path, n, line);
    }
    free(line), fclose(f);
    return FTW_CONTINUE;
}

static void every_file_that_is_named_exists(void **state) {
    (void)state;
    assert_int_equal(nftw(".", read_file, 16, FTW_ACTIONRETVAL), 0); /* the runner of tests links the folders */
    assert_true(n_checked > 200); /* with fewer paths, the program was not started in the root of the project */
    if (n_missing) fail_msg("%d paths lead nowhere", n_missing);
}

static void the_check_can_fail(void **state) {
    (void)state;
    n_missing = 0;
    check_paths("nowhere", 1,
                "See src/base/no_such_file.c. and `docs/NOTHING.md`, but tests/unit/test_*.c is a pattern and src/base "
                "a folder.");
    assert_int_equal(n_missing, 2);
    check_links("docs/x.md", 1, "[a](NO.md) [b](../README.md) [c](https://example.org/x.md)");
    assert_int_equal(n_missing, 3);
    check_includes("tests/test_paths.c", 1, "In base/mem.h and support/testing.h, not in kernels/scores.h.");
    assert_int_equal(n_missing, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_that_is_named_exists),
        cmocka_unit_test(the_check_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
