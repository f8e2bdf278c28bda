/* test_hardening.c - the built program and the shared library have the defences that the Makefile requests: addresses
 * that are bound at start and then read-only, no executable stack, a position-independent program, stack protection,
 * checked string functions, and marks for the CPU's control-flow protection.
 *
 * Builds with sanitizers have other defences, so the test is skipped for them. */
#include "testing.h"

#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char folder[256]; /* build/MODE */

/* Returns the output of `readelf OPTIONS folder/FILE`, in static memory. */
static const char *readelf(const char *options, const char *file) {
    static char text[8 << 20];
    char command[512];
    snprintf(command, sizeof command, "readelf %s '%s/%s' 2>/dev/null", options, folder, file);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    size_t n = fread(text, 1, sizeof text - 1, out);
    text[n] = '\0';
    (void)pclose(out);
    return text;
}

static void skip_with_sanitizers(void) {
    static const char *const marks[] = {"__asan_", "__ubsan_", "__tsan_"};
    const char *symbols = readelf("-sW", "forerun");
    bool is_sanitized = false;
    for (int i = 0; i < 3; i++) is_sanitized = is_sanitized || strstr(symbols, marks[i]);
    if (!is_sanitized) return;
    print_message("skipped: built with a sanitizer\n");
    skip();
}

static void check_linking(const char *file) {
    const char *dynamic = readelf("-dW", file);
    assert_true(strstr(dynamic, "BIND_NOW") || strstr(dynamic, "Flags: NOW"));
    assert_null(strstr(dynamic, "TEXTREL"));
    const char *segments = readelf("-lW", file), *stack = strstr(segments, "GNU_STACK");
    assert_non_null(strstr(segments, "GNU_RELRO"));
    assert_non_null(stack);
    char line[200];
    snprintf(line, sizeof line, "%.*s", (int)strcspn(stack, "\n"), stack);
    assert_non_null(strstr(line, "RW "));
    assert_null(strstr(line, "RWE"));
}

static void addresses_are_read_only_and_the_stack_is_not_executable(void **state) {
    (void)state;
    skip_with_sanitizers();
    check_linking("forerun");
    check_linking("libforerun.so");
    assert_non_null(strstr(readelf("-hW", "forerun"), "DYN ")); /* a position-independent program */
}

static void stacks_and_string_functions_are_checked(void **state) {
    (void)state;
    skip_with_sanitizers();
    static const char *const files[] = {"forerun", "libforerun.so"};
    for (int i = 0; i < 2; i++) {
        const char *symbols = readelf("-sW --dyn-syms", files[i]);
        assert_non_null(strstr(symbols, "__stack_chk_fail"));
        assert_true(strstr(symbols, "__snprintf_chk") || strstr(symbols, "__vsnprintf_chk"));
    }
}

/* A whole program is marked only if the C library's start files are, which is not so on some systems. */
static void objects_are_marked_for_control_flow_protection(void **state) {
    (void)state;
#if defined(__x86_64__)
    skip_with_sanitizers();
    static const char *const files[] = {"cli/main.o", "src/compute/cpu/kernels/select.o"};
    for (int i = 0; i < 2; i++) assert_non_null(strstr(readelf("-nW", files[i]), "IBT, SHSTK"));
#else
    print_message("skipped: this protection is x86's\n");
    skip();
#endif
}

int main(int argc, char **argv) {
    (void)argc;
    char self[256];
    snprintf(self, sizeof self, "%s", argv[0]);
    snprintf(folder, sizeof folder, "%s", dirname(dirname(self))); /* build/MODE/tests/test_hardening */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_read_only_and_the_stack_is_not_executable),
        cmocka_unit_test(stacks_and_string_functions_are_checked),
        cmocka_unit_test(objects_are_marked_for_control_flow_protection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
