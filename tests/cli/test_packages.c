/* test_packages.c - the basis of packages: `make install` and `make uninstall`, the same version everywhere, and the
 * same dependencies in debian/control as in the Makefile. */
#include "cli_rig.h"
#include "forerun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char text[1 << 18];

static const char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s: cannot be opened", path);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return text;
}

static void expect_in(const char *path, const char *wanted) {
    if (!strstr(read_file(path), wanted)) fail_msg("%s does not contain '%s'", path, wanted);
}

static void one_version_everywhere(void **state) {
    (void)state;
    char version[32] = "", wanted[128];
    const char *line = strstr(read_file("Makefile"), "\nVERSION := ");
    assert_non_null(line);
    assert_int_equal(sscanf(line, "\nVERSION := %31s", version), 1);
    snprintf(wanted, sizeof wanted, "%d.%d.%d", FR_VERSION_MAJOR, FR_VERSION_MINOR, FR_VERSION_PATCH);
    assert_string_equal(wanted, version);
    static const struct {
        const char *path, *format;
    } places[] = {{"debian/changelog", "forerun (%s-"},
                  {"man/forerun.1", "\"forerun %s\""},
                  {"bindings/python/forerun.py", "__version__ = \"%s\""},
                  {"bindings/node/package.json", "\"version\": \"%s\""}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(wanted, sizeof wanted, places[i].format, version);
        expect_in(places[i].path, wanted);
    }
}

/* Each library of the Makefile's list is a build dependency of the Debian package. */
static void debian_control_has_every_library(void **state) {
    (void)state;
    static char list[4096];
    const char *begin = strstr(read_file("Makefile"), "\nDEB_PACKAGES := ");
    assert_non_null(begin);
    const char *end = strstr(begin, "\nDEB_CLANG");
    assert_non_null(end);
    snprintf(list, sizeof list, "%.*s", (int)(end - begin), begin);
    read_file("debian/control");
    int n = 0;
    for (char *word = strtok(list, " \\\n\t"); word; word = strtok(NULL, " \\\n\t")) {
        size_t length = strlen(word);
        if (length < 5 || strcmp(word + length - 4, "-dev") != 0 || strcmp(word, "libc6-dev") == 0) continue;
        if (!strstr(text, word))
            fail_msg("debian/control: Build-Depends lacks %s, which DEB_PACKAGES of the Makefile has", word);
        n++;
    }
    assert_true(n > 5);
}

static void shell(const char *command) {
    FILE *out = popen(command, "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    if (pclose(out) != 0) fail_msg("%s\n%s", command, text);
}

/* On a bare machine, the first file that make compiles gives an error that names the missing package and the remedy. */
static void make_points_to_deps(void **state) {
    (void)state;
    shell("! env -u MAKEFLAGS PKG_CONFIG_LIBDIR=/nonexistent make -s MODE=none build/none/src/base/mem.o 2>&1");
    if (!strstr(text, "libpcre2-8") || !strstr(text, "run 'make deps'")) fail_msg("%s", text);
    shell("! env -u MAKEFLAGS make -s CC=no-such-compiler MODE=none build/none/src/base/mem.o 2>&1");
    if (!strstr(text, "the compiler no-such-compiler") || !strstr(text, "run 'make deps'")) fail_msg("%s", text);
}

/* The names of folders may contain spaces. */
static void install_and_uninstall(void **state) {
    (void)state;
    if (!strstr(cli_rig_folder(), "build/release")) skip(); /* the only mode that is installed */
    static const char *const files[] = {"bin/forerun",
                                        "include/forerun.h",
                                        "lib/x/libforerun.a",
                                        "lib/x/libforerun.so",
                                        "lib/x/libforerun.so.0",
                                        "lib/x/pkgconfig/forerun.pc",
                                        "share/man/man1/forerun.1",
                                        "share/man/man1/forerun-run.1",
                                        "share/man/man1/forerun-train-lyanna.1",
                                        "share/bash-completion/completions/forerun",
                                        "share/zsh/site-functions/_forerun",
                                        "share/fish/vendor_completions.d/forerun.fish",
                                        "lib/forerun/python/forerun.py",
                                        "share/forerun/forerun-node.tgz"};
    char command[2048], path[1024];
    char *folder = realpath(cli_rig_folder(), NULL);
    static const char make[] =
        "env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s PREFIX='/opt/f g' LIBDIR='/opt/f g/lib/x'";
    snprintf(command, sizeof command, "rm -rf '%s/pack' && %s DESTDIR='%s/pack' install 2>&1", folder, make, folder);
    shell(command);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/pack/opt/f g/%s", folder, files[i]);
        if (access(path, R_OK) != 0) fail_msg("make install did not write %s", files[i]);
    }
    snprintf(command, sizeof command,
             "objdump -p '%s/pack/opt/f g/lib/x/libforerun.so' | grep -q 'SONAME *libforerun.so.0$' && "
             "eval \"set -- $(PKG_CONFIG_PATH='%s/pack/opt/f g/lib/x/pkgconfig' pkg-config --libs forerun)\" && "
             "[ \"$1\" = '-L/opt/f g/lib/x' ] && [ \"$2\" = -lforerun ]",
             folder, folder);
    shell(command);
    snprintf(command, sizeof command, "%s DESTDIR='%s/pack' uninstall 2>&1 && find '%s/pack' ! -type d", make, folder,
             folder);
    shell(command);
    assert_null(strstr(text, "/pack/opt/f g/bin"));
    snprintf(command, sizeof command, "find '%s/pack' ! -type d; rm -rf '%s/pack'", folder, folder);
    shell(command);
    assert_string_equal(text, "");
    free(folder);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_version_everywhere),
        cmocka_unit_test(debian_control_has_every_library),
        cmocka_unit_test(make_points_to_deps),
        cmocka_unit_test(install_and_uninstall),
    };
    (void)argc;
    cli_rig_begin(argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
