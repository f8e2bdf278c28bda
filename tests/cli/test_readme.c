/* test_readme.c - everything in README.md and bindings/README.md runs as it is printed.
 *
 * Each block is extracted and run in the order of the file: `sh` by a shell that stops at the first failure, `c` is
 * app.c for the shell block after it, `python` by python3. The lines of a `text` block after a shell block are in that
 * one's output, in this order; "..." in them stands for anything, and white space for any other. Without a shell block
 * before it, it shows what `make demo` printed. The reader's environment is set up like this:
 *
 *     FOLDER/readme/root DESTDIR of `make install`: the installed program and library, which PATH, pkg-config and the
 *                            linker are pointed to
 *     FOLDER/readme/bin      sudo, which here only runs its command, and does not install packages with apt-get
 *     FOLDER/readme where the blocks run, with links to what is in the checkout; but blocks with make run in the root
 *
 * Every command that is named exists, and so does every file that is linked. Only a release build installs itself. */
#include "cli_rig.h"

#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_LINES = 132, MAX_BYTES = 1 << 16 };

static char readme[MAX_BYTES], home[600];
static char output[1 << 16]; /* of the last shell block; "": there was none */

static int load_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) return 1;
    readme[fread(readme, 1, sizeof readme - 1, f)] = '\0';
    return fclose(f);
}

static int load(void **state) {
    (void)state;
    if (load_file("README.md")) return 1;
    char *folder = realpath(cli_rig_folder(), NULL);
    snprintf(home, sizeof home, "%s/readme", folder);
    free(folder);
    return 0;
}

static void write_file(const char *path, const char *text, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f) fail_msg("%s: cannot be written", path);
    assert_true(fwrite(text, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

static void run(const char *what, const char *command) {
    char line[4096], *text = output;
    snprintf(line, sizeof line, "( %s ) 2>&1 </dev/null", command);
    FILE *out = popen(line, "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof output - 1, out)] = '\0';
    while (fgetc(out) != EOF) {}
    if (pclose(out) != 0) fail_msg("%s\n---- fails:\n%s", what, text);
    if (!text[0]) printf("(no output)\n");
}

static void arrange(void) {
    char path[4096], value[4096];
    static const char sudo[] = "#!/bin/sh\n[ \"$1\" != apt-get ] || exit 0\nexec \"$@\"\n";
    snprintf(path, sizeof path,
             "rm -rf '%s'; mkdir -p '%s/bin' '%s/root'; for f in *; do ln -s \"$PWD/$f\" '%s/'; done; "
             "ln -s models/target.gguf '%s/model.gguf'",
             home, home, home, home, home);
    assert_int_equal(system(path), 0);
    snprintf(path, sizeof path, "%s/bin/sudo", home);
    write_file(path, sudo, sizeof sudo - 1);
    assert_int_equal(chmod(path, 0755), 0);
    const struct {
        const char *name, *format;
    } variables[] = {{"DESTDIR", "%s/root"},
                     /* relative to the home, because README.md's $(pkg-config ...) cannot have a path with spaces */
                     {"PKG_CONFIG_SYSROOT_DIR", "root"},
                     {"PKG_CONFIG_PATH", "root/usr/local/lib/pkgconfig"},
                     {"LD_LIBRARY_PATH", "%s/root/usr/local/lib"},
                     {"FORERUN_LIBRARY", "%s/root/usr/local/lib/libforerun.so.0"},
                     {"PYTHONDONTWRITEBYTECODE", "1"}};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        snprintf(value, sizeof value, variables[i].format, home);
        assert_int_equal(setenv(variables[i].name, value, 1), 0);
    }
    snprintf(value, sizeof value, "%s/bin:%s/root/usr/local/bin:%s", home, home, getenv("PATH"));
    assert_int_equal(setenv("PATH", value, 1), 0);
    unsetenv("MAKEFLAGS"), unsetenv("MFLAGS"), unsetenv("MAKELEVEL"); /* these are set by the make that runs the
                                                                       * tests */
}

/* Whether a line of the output is the one that README.md shows. */
static bool matches(const char *shown, const char *printed) {
    for (; *shown && *shown != '\n'; shown++, printed++) {
        if (strncmp(shown, "...", 3) == 0) {
            for (; *printed && *printed != '\n'; printed++)
                if (matches(shown + 3, printed)) return true;
            return matches(shown + 3, printed);
        }
        if (*shown == ' ' && *printed == ' ') {
            while (shown[1] == ' ') shown++;
            while (printed[1] == ' ') printed++;
        } else if (*shown != *printed) return false;
    }
    return !*printed || *printed == '\n';
}

static void check_output(const char *text) {
    const char *printed = output;
    if (!*output) return;
    for (const char *line = text; strncmp(line, "```", 3) != 0; line = strchr(line, '\n') + 1) {
        while (*printed && !matches(line, printed)) {
            const char *end = strchr(printed, '\n');
            printed = end ? end + 1 : "";
        }
        if (!*printed)
            fail_msg("README.md shows\n%.*s\nbut this was printed:\n%s", (int)strcspn(line, "\n"), line, output);
    }
}

/* Runs the block of n bytes; false: its language cannot be run. */
static bool run_block(const char *language, const char *text, size_t n) {
    char path[1024], command[4096];
    snprintf(path, sizeof path, "%s/block", home);
    write_file(path, text, n);
    if (strcmp(language, "c") == 0) {
        snprintf(path, sizeof path, "%s/app.c", home);
        write_file(path, text, n);
        return true;
    }
    if (strcmp(language, "sh") == 0) {
        bool has_make = memmem(text, n, "make ", 5) || memmem(text, n, "make\n", 5);
        snprintf(command, sizeof command, "cd '%s' && sh -e '%s/block'", has_make ? "." : home, home);
        run(path, command);
        return true;
    }
    if (strcmp(language, "python") == 0) {
        snprintf(command, sizeof command,
                 "cd '%s' && { ! command -v python3 >/dev/null || "
                 "PYTHONPATH=\"$(dirname \"$(find root -name forerun.py)\")\" python3 block; }",
                 home);
        run(path, command);
        return true;
    }
    if (strcmp(language, "text") == 0) {
        check_output(text);
        return true;
    }
    return false;
}

static int run_blocks(void) {
    int n_blocks = 0;
    for (const char *at = readme, *end; (at = strstr(at, "\n```")); at = end + 4) {
        char language[16] = "";
        sscanf(at + 4, "%15[a-z]", language);
        const char *text = strchr(at + 1, '\n') + 1;
        assert_non_null(end = strstr(text - 1, "\n```"));
        size_t n = end >= text ? (size_t)(end + 1 - text) : 0;
        printf("---- %s\n%.*s", language, (int)n, text);
        if (!run_block(language, text, n))
            fail_msg("a block of the language '%s': name sh, c, python or text", language);
        n_blocks++;
    }
    return n_blocks;
}

static void every_block_runs(void **state) {
    (void)state;
    if (!strstr(cli_rig_folder(), "build/release/")) skip();
    arrange();
    assert_true(run_blocks() >= 5);
    *output = '\0';
    assert_int_equal(load_file("bindings/README.md"), 0);
    assert_int_equal(run_blocks(), 2);
    assert_int_equal(load_file("README.md"), 0);
}

/* Calls `check` with each match of the pattern's first group. */
static void each_match(const char *pattern, void (*check)(const char *)) {
    regex_t regex;
    regmatch_t m[2];
    int n = 0;
    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED), 0);
    for (const char *p = readme; regexec(&regex, p, 2, m, 0) == 0; p += m[0].rm_eo, n++) {
        char word[256];
        snprintf(word, sizeof word, "%.*s", (int)(m[1].rm_eo - m[1].rm_so), p + m[1].rm_so);
        check(word);
    }
    regfree(&regex);
    assert_true(n > 0);
}

static void check_command(const char *name) {
    char args[512];
    if (strcmp(name, "help") == 0) return;
    snprintf(args, sizeof args, "help %s", name);
    cli_expect(args, 0, "Usage: forerun");
}

static void check_link(const char *target) {
    char path[256];
    if (strstr(target, "://")) return;
    snprintf(path, sizeof path, "%.*s", (int)strcspn(target, "#"), target);
    if (access(path, F_OK) != 0) fail_msg("README.md links to %s, which does not exist", path);
}

static void what_it_names_exists(void **state) {
    (void)state;
    each_match("`forerun ([a-z-]+)", check_command);
    each_match("\nforerun ([a-z-]+) -", check_command);
    each_match("\\]\\(([^)]+)\\)", check_link);
}

/* README.md must be short enough for a newcomer to read. */
static void it_is_short(void **state) {
    (void)state;
    int n_lines = 0;
    for (const char *p = readme; *p; p++) n_lines += *p == '\n';
    assert_true(n_lines <= MAX_LINES);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_runs),
        cmocka_unit_test(what_it_names_exists),
        cmocka_unit_test(it_is_short),
    };
    (void)argc;
    cli_rig_begin(argv[0]);
    return cmocka_run_group_tests(tests, load, NULL);
}
