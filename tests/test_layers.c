/* test_layers.c - checks the order of the layers in the sources: a room includes only rooms below it.
 *
 *     base <- gguf, text/template <- text <- grammar; gguf <- model <- compute <- draft <- engine; gguf <-
 *     compute/cpu/kernels
 *     tree <- verify <- draft <- draft/{text, models, learned}
 *     The library, src/, includes none of train, cli, server and research.
 *     train <- cli <- server
 *
 * Only src/compute/cpu includes kernel headers, so that nothing bypasses a backend. The test also checks that the
 * library needs no library but its own three, that file names are unique, that no file is too long, that the shared
 * library exports nothing but fr_*, and that nothing calls those functions of the C library that round as they like. */
#include "testing.h"

#include <ftw.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define METHODS_SEE " base gguf text grammar model compute tree verify draft "
#define PROGRAM_SEES METHODS_SEE "research cli " /* it may include only forerun.h of the engine */
static const struct {
    const char *name;
    const char *sees; /* other rooms that it may include, each between blanks */
} rooms[] = {
    {"src/base", " "},
    {"src/gguf", " base "},
    {"src/text/template", " base "},
    {"src/text", " base gguf text/template "},
    {"src/grammar", " base gguf text text/template "},
    {"src/model", " base gguf "},
    {"src/compute", " base gguf model compute/cpu compute/reference "},
    {"src/compute/cpu", " base gguf compute/cpu/kernels compute/ranks model compute "},
    {"src/compute/cpu/kernels", " base gguf "},
    {"src/compute/ranks", " base gguf model compute "},
    {"src/compute/ranks/mpi", " compute/ranks "},
    {"src/compute/reference", " base gguf model compute "},
    {"src/tree", " base gguf "},
    {"src/verify", " base gguf grammar tree "},
    {"src/draft", " base gguf text grammar model compute tree verify "},
    {"src/draft/text", METHODS_SEE},
    {"src/draft/models", METHODS_SEE},
    {"src/draft/learned", METHODS_SEE},
    {"src/engine", METHODS_SEE "compute/ranks "},
    {"train", METHODS_SEE "compute/ranks draft/learned "},
    {"cli", PROGRAM_SEES},
    {"cli/convert", " base gguf text model train "},
    {"cli/run", PROGRAM_SEES},
    {"cli/chat", PROGRAM_SEES "cli/run "},
    {"cli/bench", PROGRAM_SEES "cli/run "},
    {"cli/train", PROGRAM_SEES "cli/run cli/bench draft/text draft/learned train "},
    {"cli/inspect", PROGRAM_SEES "draft/text draft/learned "},
    {"cli/perf", PROGRAM_SEES "cli/run "},
    {"cli/model", PROGRAM_SEES "cli/convert train "},
    {"server/engine", " base gguf cli "},
    {"server/http", " base text cli "},
    {"server/api", " base gguf cli server/engine server/http "},
    {"server", METHODS_SEE "cli server/engine server/http server/api "},
    {"research", PROGRAM_SEES "cli/run cli/bench draft/text train "},
};
enum { N_ROOMS = sizeof rooms / sizeof *rooms, MAX_FILES = 1500, MAX_LINES = 1000 };

/* The path of `to` in an #include: without src/. */
static bool may_include(const char *from, const char *to) {
    char wanted[40];
    snprintf(wanted, sizeof wanted, " %.30s ", to);
    const char *own = strncmp(from, "src/", 4) == 0 ? from + 4 : from;
    for (int i = 0; i < N_ROOMS; i++)
        if (strcmp(rooms[i].name, from) == 0) return strcmp(own, to) == 0 || strstr(rooms[i].sees, wanted);
    return false;
}

/* ---- the files --------------------------------------------------------------------------------------- */

static char *files[MAX_FILES];
static int n_files;

static bool ends_with(const char *s, const char *end) {
    return strlen(s) >= strlen(end) && strcmp(s + strlen(s) - strlen(end), end) == 0;
}

static int note_file(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)at;
    if (strncmp(path, "tests/api_0/", 12) == 0) return 0; /* a copy of an old forerun.h */
    if (kind != FTW_F || !(ends_with(path, ".c") || ends_with(path, ".h") || ends_with(path, ".cu"))) return 0;
    assert_true(n_files < MAX_FILES);
    files[n_files++] = strdup(path);
    return 0;
}

static int read_tree(void **state) {
    (void)state;
    static const char *const roots[] = {"src",      "include", "train", "cli",  "server",
                                        "research", "tests",   "tools", "bench"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++) nftw(roots[i], note_file, 16, 0);
    return n_files > 20 ? 0 : -1; /* with fewer files, the program was not started in the root of the project */
}

static int free_tree(void **state) {
    (void)state;
    while (n_files > 0) free(files[--n_files]);
    return 0;
}

/* Finds the folder of a path; false if the path has none. */
static bool folder_of(const char *path, char *out, size_t n) {
    const char *slash = strrchr(path, '/');
    if (!slash) return false;
    snprintf(out, n, "%.*s", (int)(slash - path), path);
    return true;
}

static bool outside_the_rooms(const char *file) {
    static const char *const roots[] = {"include/", "tests/", "tools/", "bench/"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots; i++)
        if (strncmp(file, roots[i], strlen(roots[i])) == 0) return true;
    return false;
}

/* ---- checks ------------------------------------------------------------------------------------------- */

static const char *complaint(const char *file, const char *line, char *out, size_t n) {
    char room[64], to[64], target[256];
    if (outside_the_rooms(file) || !folder_of(file, room, sizeof room)) return NULL;
    if (sscanf(line, " # include \"%255[^\"]", target) != 1 || strcmp(target, "forerun.h") == 0) return NULL;
    if (!folder_of(target, to, sizeof to)) {
        snprintf(out, n, "%s: \"%s\" should name its room, as \"room/file.h\"", file, target);
        return out;
    }
    if (may_include(room, to)) return NULL;
    snprintf(out, n, "%s: room %s may not include \"%s\"", file, room, target);
    return out;
}

static void a_layer_includes_only_lower_layers(void **state) {
    (void)state;
    int n_bad = 0, n_includes = 0;
    char line[1024], text[600];
    for (int i = 0; i < n_files; i++) {
        FILE *f = fopen(files[i], "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f)) {
            n_includes += strncmp(line, "#include \"", 10) == 0;
            const char *bad = complaint(files[i], line, text, sizeof text);
            if (bad) print_message("%s\n", bad), n_bad++;
        }
        fclose(f);
    }
    assert_true(n_includes > 50);
    if (n_bad) fail_msg("%d includes against the order of the layers", n_bad);
}

/* Tests the check itself: it must report wrong includes and accept right ones. */
static void the_check_can_fail(void **state) {
    (void)state;
    static const struct {
        const char *file, *line;
        bool fine;
    } cases[] = {
        {"src/model/model.c", "#include \"gguf/gguf.h\"\n", true},
        {"src/model/model.c", "#include \"model/rope.h\"\n", true},
        {"src/model/model.c", "#include \"forerun.h\"\n", true},
        {"src/model/model.c", "#include <stdio.h>\n", true},
        {"src/compute/cpu/forward.c", "#include \"compute/cpu/kernels/kernels.h\"\n", true},
        {"src/draft/text/x.c", "#include \"tree/tree.h\"\n", true},
        {"cli/train/cmd_train.c", "#include \"train/loop.h\"\n", true},
        {"tests/model/test_model.c", "#include \"cli/cli.h\"\n", true},
        {"src/model/model.c", "#include \"tree/tree.h\"\n", false},
        {"src/model/model.c", "  #  include \"engine/engine.h\"\n", false},
        {"src/base/mem.c", "#include \"gguf/gguf.h\"\n", false},
        {"src/text/bpe.c", "#include \"compute/cpu/kernels/kernels.h\"\n", false},
        {"src/compute/cpu/kernels/ref.c", "#include \"text/tokenizer.h\"\n", false},
        {"src/engine/step.c", "#include \"compute/cpu/kernels/kernels.h\"\n", false},
        {"src/compute/reference/x.c", "#include \"compute/cpu/kernels/kernels.h\"\n", false},
        {"src/draft/learned/x.c", "#include \"compute/cpu/cpu.h\"\n", false},
        {"src/draft/learned/x.c", "#include \"draft/text/count_trie.h\"\n", false},
        {"src/verify/x.c", "#include \"draft/drafter.h\"\n", false},
        {"src/engine/engine.c", "#include \"train/optimizer.h\"\n", false},
        {"src/engine/engine.c", "#include \"cli/cli.h\"\n", false},
        {"cli/run/cmd_run.c", "#include \"engine/engine.h\"\n", false},
        {"server/engine/engine_thread.c", "#include \"engine/step.h\"\n", false},
        {"train/optimizer.c", "#include \"engine/engine.h\"\n", false},
        {"src/model/model.c", "#include \"rope.h\"\n", false},
        {"src/model/model.c", "#include \"../compute/cpu/cpu.h\"\n", false},
        {"src/mystery/x.c", "#include \"base/mem.h\"\n", false},
        {"mystery/x.c", "#include \"base/mem.h\"\n", false},
    };
    char text[600];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if ((complaint(cases[i].file, cases[i].line, text, sizeof text) == NULL) != cases[i].fine)
            fail_msg("%s in %s should %s", cases[i].line, cases[i].file, cases[i].fine ? "pass" : "be refused");
}

/* ---- the headers that the library needs ----------------------------------------------------------------- */

/* Returns whether a header of the system may be included in src/ and include/: the headers of C, POSIX, Linux and the
 * compiler, of the three libraries that libforerun is linked with, and of Random123. `make lib` needs no others. */
static bool is_for_library(const char *header) {
    static const char *const allowed[] = {
        "pcre2.h",     "xxhash.h",   "utf8proc.h",  "Random123/philox.h", /* libraries */
        "ctype.h",     "errno.h",    "fenv.h",      "float.h",
        "inttypes.h",  "limits.h",   "locale.h", /* C */
        "math.h",      "setjmp.h",   "signal.h",    "stdarg.h",
        "stdatomic.h", "stdbool.h",  "stddef.h",    "stdint.h",
        "stdio.h",     "stdlib.h",   "string.h",    "time.h",
        "dirent.h",    "dlfcn.h",    "fcntl.h",     "pthread.h",
        "sched.h",     "strings.h",  "unistd.h", /* the system */
        "sys/mman.h",  "sys/stat.h", "sys/types.h", "sys/wait.h",
        "arm_neon.h",  "cpuid.h",    "emmintrin.h", "immintrin.h",
        "xmmintrin.h", /* the compiler */
    };
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (strcmp(allowed[i], header) == 0) return true;
    return false;
}

/* Returns whether a file may use what only one operating system has: it implements src/base/os.h. */
static bool is_of_system(const char *file, const char *header) {
    return strncmp(file, "src/base/os_", 12) == 0 &&
           (strncmp(header, "sys/", 4) == 0 || strncmp(header, "linux/", 6) == 0 ||
            strcmp(header, "pthread_np.h") == 0 || strcmp(header, "dlfcn.h") == 0);
}

/* Returns whether a header is that of sockets and addresses in POSIX, which one file uses. */
static bool is_of_network(const char *file, const char *header) {
    static const char *const of_sockets[] = {"netdb.h", "netinet/in.h", "netinet/tcp.h", "poll.h", "sys/socket.h"};
    bool is_one = false;
    for (size_t i = 0; i < sizeof of_sockets / sizeof *of_sockets; i++)
        is_one = is_one || strcmp(of_sockets[i], header) == 0;
    return is_one && strncmp(file, "src/draft/models/remote_host.", 29) == 0;
}

/* The shared object for MPI is not linked into the library. */
static bool is_of_library(const char *file) {
    if (strncmp(file, "src/compute/ranks/mpi/", 22) == 0) return false;
    return strncmp(file, "src/", 4) == 0 || strncmp(file, "include/", 8) == 0;
}

static void the_library_includes_no_header_of_a_fourth_library(void **state) {
    (void)state;
    int n_bad = 0, n_includes = 0;
    char line[1024], header[256];
    for (int i = 0; i < n_files; i++) {
        if (!is_of_library(files[i])) continue;
        FILE *f = fopen(files[i], "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f)) {
            if (sscanf(line, " # include <%255[^>]", header) != 1) continue;
            n_includes++;
            if (!is_for_library(header) && !is_of_system(files[i], header) && !is_of_network(files[i], header))
                print_message("%s includes <%s>\n", files[i], header), n_bad++;
        }
        fclose(f);
    }
    assert_true(n_includes > 50);
    assert_true(is_for_library("pcre2.h"));
    assert_false(is_for_library("jansson.h"));
    assert_false(is_for_library("event2/event.h"));
    assert_false(is_of_system("src/base/files.c", "sys/eventfd.h"));
    assert_false(is_of_system("src/base/os_linux.c", "jansson.h"));
    assert_false(is_of_network("src/draft/models/draft_remote.c", "sys/socket.h"));
    assert_false(is_of_network("src/draft/models/remote_host.c", "curl/curl.h"));
    if (n_bad) fail_msg("%d headers that the library must build without", n_bad);
}

static int by_base_name(const void *a, const void *b) {
    const char *x = strrchr(*(char *const *)a, '/'), *y = strrchr(*(char *const *)b, '/');
    return strcmp(x, y);
}

static void file_names_are_unique(void **state) {
    (void)state;
    qsort(files, (size_t)n_files, sizeof *files, by_base_name);
    int n_same = 0;
    for (int i = 1; i < n_files; i++)
        if (by_base_name(&files[i - 1], &files[i]) == 0)
            print_message("%s and %s have the same name\n", files[i - 1], files[i]), n_same++;
    assert_int_equal(n_same, 0);
}

static void no_file_is_longer_than_1000_lines(void **state) {
    (void)state;
    int n_long = 0;
    for (int i = 0; i < n_files; i++) {
        FILE *f = fopen(files[i], "r");
        assert_non_null(f);
        int n_lines = 0;
        for (int c; (c = fgetc(f)) != EOF;) n_lines += c == '\n';
        fclose(f);
        if (n_lines > MAX_LINES) print_message("%s has %d lines, at most %d\n", files[i], n_lines, MAX_LINES), n_long++;
    }
    assert_int_equal(n_long, 0);
}

/* clang-format breaks a declaration whose comment is too long for its line between the type and the name. */
static bool is_half_a_declaration(const char *line) {
    size_t n = strcspn(line, "\n"), n_blanks = strspn(line, " ");
    return n_blanks > 0 && n > n_blanks + 1 &&
           strspn(line + n_blanks, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789 ") ==
               n - n_blanks - 1 &&
           line[n - 1] == '*';
}

static void no_declaration_is_broken_after_its_type(void **state) {
    (void)state;
    int n_broken = 0;
    char line[1024];
    assert_true(is_half_a_declaration("    const float *\n"));
    assert_false(is_half_a_declaration("    const float *x;\n") || is_half_a_declaration(" *\n"));
    for (int i = 0; i < n_files; i++) {
        FILE *f = fopen(files[i], "r");
        assert_non_null(f);
        while (fgets(line, sizeof line, f))
            if (is_half_a_declaration(line))
                print_message("%s: put the comment before: %s", files[i], line), n_broken++;
        fclose(f);
    }
    assert_int_equal(n_broken, 0);
}

/* A sanitizer's own symbols are not ours. */
static bool is_public(const char *symbol) {
    return strncmp(symbol, "fr_", 3) == 0 || strncmp(symbol, "__", 2) == 0 || strcmp(symbol, "_init") == 0 ||
           strcmp(symbol, "_fini") == 0;
}

/* Runs "TOOL OPTIONS build/<mode>/BUILT" and returns its output; skips the test if that is impossible. */
static FILE *ask_about(const char *built, const char *tool, const char *options) {
    char self[4096] = "", path[4200], command[4400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(n > 0);
    snprintf(path, sizeof path, "%s/%s", dirname(dirname(self)), built); /* build/<mode>/tests/test_layers */
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", tool);
    if (access(path, R_OK) != 0 || system(command) != 0) {
        print_message("skipped: no %s, or %s is not built\n", tool, path);
        skip();
    }
    snprintf(command, sizeof command, "%s %s '%s'", tool, options, path);
    FILE *output = popen(command, "r");
    assert_non_null(output);
    return output;
}

static void the_library_shows_nothing_but_fr_names(void **state) {
    (void)state;
    char line[1024], symbol[1000];
    FILE *nm = ask_about("libforerun.so", "nm", "-D --defined-only");
    int n_others = 0;
    while (fgets(line, sizeof line, nm))
        if (sscanf(line, "%*s %*c %999s", symbol) == 1 && !is_public(symbol))
            print_message("the library exports %s\n", symbol), n_others++;
    assert_int_equal(pclose(nm), 0);
    assert_int_equal(n_others, 0);
    assert_false(is_public("model_open"));
}

/* Sanitizers add libraries of their own. */
static bool is_own_library(const char *name) {
    static const char *const allowed[] = {"libpcre2-8.", "libxxhash.",  "libutf8proc.", "libc.",
                                          "libm.",       "libpthread.", "libgcc_s.",    "ld-linux",
                                          "libasan.",    "libubsan.",   "libtsan."};
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
        if (strncmp(name, allowed[i], strlen(allowed[i])) == 0) return true;
    return false;
}

static void the_library_is_linked_with_no_fourth_library(void **state) {
    (void)state;
    char line[1024], name[1000];
    FILE *objdump = ask_about("libforerun.so", "objdump", "-p");
    int n_needed = 0, n_others = 0;
    while (fgets(line, sizeof line, objdump))
        if (sscanf(line, " NEEDED %999s", name) == 1 && ++n_needed && !is_own_library(name))
            print_message("the library needs %s\n", name), n_others++;
    assert_int_equal(pclose(objdump), 0);
    assert_true(n_needed > 2);
    assert_int_equal(n_others, 0);
    assert_false(is_own_library("libjansson.so.4"));
}

/* Whether the result of a function of the C library may depend on the library: those that only round or take apart may
 * not, and neither may sqrt and fma. */
static bool is_rounded_freely(const char *symbol) {
    static const char *const names[] = {"exp",   "exp2", "exp10", "expm1", "log",    "log2",   "log10", "log1p",
                                        "pow",   "cbrt", "hypot", "sin",   "cos",    "sincos", "tan",   "asin",
                                        "acos",  "atan", "atan2", "sinh",  "cosh",   "tanh",   "asinh", "acosh",
                                        "atanh", "erf",  "erfc",  "gamma", "lgamma", "tgamma"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t n = strlen(names[i]);
        if (strncmp(symbol, names[i], n) != 0) continue;
        n += symbol[n] == 'f' || symbol[n] == 'l';
        if (symbol[n] == '\0' || symbol[n] == '@') return true; /* exp@GLIBC_2.29 */
    }
    return false;
}

/* The program contains the library, and the code that trains and converts. */
static void no_result_depends_on_the_c_library(void **state) {
    (void)state;
    char line[1024], symbol[1000];
    FILE *nm = ask_about("forerun", "nm", "-D --undefined-only");
    int n_symbols = 0, n_free = 0;
    while (fgets(line, sizeof line, nm))
        if (sscanf(line, " %*c %999s", symbol) == 1 && ++n_symbols && is_rounded_freely(symbol))
            print_message("the program calls %s; base/math_functions.h has it\n", symbol), n_free++;
    assert_int_equal(pclose(nm), 0);
    assert_true(n_symbols > 100);
    assert_int_equal(n_free, 0);
    assert_true(is_rounded_freely("expf@GLIBC_2.27") && is_rounded_freely("log1p") &&
                !is_rounded_freely("explicit_bzero"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_includes_only_lower_layers),
        cmocka_unit_test(the_check_can_fail),
        cmocka_unit_test(the_library_includes_no_header_of_a_fourth_library),
        cmocka_unit_test(file_names_are_unique),
        cmocka_unit_test(no_file_is_longer_than_1000_lines),
        cmocka_unit_test(no_declaration_is_broken_after_its_type),
        cmocka_unit_test(the_library_shows_nothing_but_fr_names),
        cmocka_unit_test(the_library_is_linked_with_no_fourth_library),
        cmocka_unit_test(no_result_depends_on_the_c_library),
    };
    return cmocka_run_group_tests(tests, read_tree, free_tree);
}
