/* test_packages.c - the basis of packages: `make install` and `make uninstall`, the same version everywhere, the same
 * dependencies in debian/control, in the recipes and in the bill of materials as in the Makefile, and the syntax of the
 * recipes. */
#include "cli_rig.h"
#include "forerun.h"

#include <stdbool.h>
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

/* Calls `each` for every library of the Makefile's list. */
static void for_every_library(void (*each)(const char *package)) {
    static char list[4096];
    const char *begin = strstr(read_file("Makefile"), "\nDEB_PACKAGES := ");
    assert_non_null(begin);
    const char *end = strstr(begin, "\nDEB_CLANG");
    assert_non_null(end);
    snprintf(list, sizeof list, "%.*s", (int)(end - begin), begin);
    int n = 0;
    for (char *word = strtok(list, " \\\n\t"); word; word = strtok(NULL, " \\\n\t")) {
        size_t length = strlen(word);
        if (length < 5 || strcmp(word + length - 4, "-dev") != 0 || strcmp(word, "libc6-dev") == 0) continue;
        each(word);
        n++;
    }
    assert_true(n > 5);
}

static void is_in_control(const char *package) {
    if (!strstr(read_file("debian/control"), package))
        fail_msg("debian/control: Build-Depends lacks %s, which DEB_PACKAGES of the Makefile has", package);
}

/* Each library of the Makefile's list is a build dependency of the Debian package. */
static void debian_control_has_every_library(void **state) {
    (void)state;
    for_every_library(is_in_control);
}

static void shell(const char *command) {
    FILE *out = popen(command, "r");
    assert_non_null(out);
    text[fread(text, 1, sizeof text - 1, out)] = '\0';
    if (pclose(out) != 0) fail_msg("%s\n%s", command, text);
}

/* What Homebrew and Nix call the library of a Debian package. The bill of materials has the libraries that are linked,
 * which is all but those that the program loads. */
static void is_in_recipes(const char *package) {
    static const struct {
        const char *package, *homebrew, *nix;
        bool is_linked;
    } names[] = {{"libcurl4-openssl-dev", "\"curl\"", " curl ", false},
                 {"libdivsufsort-dev", "\"libdivsufsort\"", " libdivsufsort ", true},
                 {"libedit-dev", "\"libedit\"", " libedit ", true},
                 {"libevent-dev", "\"libevent\"", " libevent ", true},
                 {"libjansson-dev", "\"jansson\"", " jansson ", true},
                 {"libopenblas-dev", "\"openblas\"", " openblas ", false},
                 {"libpcre2-dev", "\"pcre2\"", " pcre2 ", true},
                 {"librandom123-dev", "\"random123\"", " random123 ", true},
                 {"libssl-dev", "\"openssl@3\"", " openssl ", true},
                 {"libutf8proc-dev", "\"utf8proc\"", " utf8proc ", true},
                 {"libxxhash-dev", "\"xxhash\"", " xxHash ", true},
                 {"libzstd-dev", "\"zstd\"", " zstd\n", true}};
    if (strcmp(package, "libcmocka-dev") == 0 || strcmp(package, "libopenmpi-dev") == 0) return; /* tests; an option */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].package, package) != 0) continue;
        expect_in("packaging/forerun.rb.in", names[i].homebrew);
        expect_in("packaging/forerun.nix.in", names[i].nix);
        if (names[i].is_linked) expect_in("packaging/sbom.py", package);
        return;
    }
    fail_msg("packaging/: no recipe has %s, which DEB_PACKAGES of the Makefile has; or this test does not know it",
             package);
}

static void recipes_have_every_library(void **state) {
    (void)state;
    for_every_library(is_in_recipes);
}

/* The bill of materials is JSON that has the hash of the archive, and the same bytes for the same time. */
static void the_bill_of_materials_is_json(void **state) {
    (void)state;
    shell("sum=$(sha256sum LICENSE | cut -d' ' -f1) && python3 packaging/sbom.py 1.2.3 86400 LICENSE > build/bill.json "
          "&& python3 packaging/sbom.py 1.2.3 86400 LICENSE | cmp - build/bill.json && "
          "python3 -c 'import json, sys; bill = json.load(open(\"build/bill.json\")); "
          "package = bill[\"packages\"][0]; "
          "assert package[\"checksums\"][0][\"checksumValue\"] == sys.argv[1], package; "
          "assert package[\"versionInfo\"] == \"1.2.3\", package; "
          "assert bill[\"creationInfo\"][\"created\"] == \"1970-01-02T00:00:00Z\"; "
          "ids = {p[\"SPDXID\"] for p in bill[\"packages\"]} | {\"SPDXRef-DOCUMENT\"}; "
          "assert all(r[\"relatedSpdxElement\"] in ids for r in bill[\"relationships\"])' $sum 2>&1");
}

/* Recipes are checked where their programs are installed. */
static void the_formula_is_ruby(void **state) {
    (void)state;
    if (system("command -v ruby >/dev/null 2>&1") != 0) skip();
    shell("ruby -c packaging/forerun.rb.in 2>&1");
}
static void the_nix_expression_is_one(void **state) {
    (void)state;
    if (system("command -v nix-instantiate >/dev/null 2>&1") != 0) skip();
    shell("nix-instantiate --parse packaging/forerun.nix.in 2>&1");
}

/* An archive of a commit has its hash, which the build uses in place of that of a repository around it. */
static void archives_name_their_commit(void **state) {
    (void)state;
    if (system("git cat-file -e HEAD:packaging/commit 2>/dev/null") != 0) skip();
    shell("top=$(git rev-parse --show-toplevel) && rm -rf build/archive && mkdir build/archive && "
          "git -C \"$top\" archive HEAD Makefile packaging/commit | tar -x -C build/archive && "
          "[ \"$(cat build/archive/packaging/commit)\" = \"$(git rev-parse HEAD)\" ] && "
          "echo 0123456789abcdef > build/archive/packaging/commit && "
          "env -u MAKEFLAGS make -s -C build/archive build/release/commit.h && "
          "(cd build/archive && grep -q '\"0123456789ab\"' build/release/commit.h) && rm -r build/archive");
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
        cmocka_unit_test(one_version_everywhere),     cmocka_unit_test(debian_control_has_every_library),
        cmocka_unit_test(recipes_have_every_library), cmocka_unit_test(the_bill_of_materials_is_json),
        cmocka_unit_test(the_formula_is_ruby),        cmocka_unit_test(the_nix_expression_is_one),
        cmocka_unit_test(archives_name_their_commit), cmocka_unit_test(make_points_to_deps),
        cmocka_unit_test(install_and_uninstall),
    };
    (void)argc;
    cli_rig_begin(argv[0]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
