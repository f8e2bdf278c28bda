/* test_repack_cli.c - `forerun repack`: commands find the packed weights, generate the same text with them, and work
 * without them if they cannot be used. */
#include "cli_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUN "run -m '%s' -p \"Once upon a time\" -n 24 --seed 1 --stats-json '%s/stats.json' --draft "

static char cache[600], model[700], packed[900], got[1 << 16];

static void shell(const char *command) {
    if (system(command) != 0) fail_msg("%s", command);
}

static int begin(void **state) {
    (void)state;
    char command[2200];
    snprintf(cache, sizeof cache, "%s/repack-cache", cli_rig_folder());
    snprintf(command, sizeof command, "rm -rf '%s' && mkdir '%s'", cache, cache);
    shell(command);
    char *whole = realpath(cache, NULL);
    if (!whole) return -1;
    snprintf(cache, sizeof cache, "%s", whole);
    free(whole);
    snprintf(model, sizeof model, "%s/a model.gguf", cache);
    snprintf(command, sizeof command, "cp models/target.gguf '%s'", model);
    shell(command);
    return setenv("XDG_CACHE_HOME", cache, 1);
}

static const char *command_of(const char *format) {
    static char command[1000];
    snprintf(command, sizeof command, format, model);
    return command;
}

/* Writes the output of `run` with a drafter: the text, and the hash of its logits. */
static void generate(const char *drafter, char *text, size_t size) {
    char command[2400];
    snprintf(command, sizeof command, RUN "%s 2>&1 && grep logits_hash '%s/stats.json'", model, cache, drafter, cache);
    assert_int_equal(cli_run(command, text, size), 0);
}

static void repack(void) {
    assert_int_equal(cli_run(command_of("repack -m '%s'"), got, sizeof got), 0);
    size_t n = strcspn(got, ",");
    snprintf(packed, sizeof packed, "%.*s", (int)n, got);
    if (access(packed, R_OK) != 0) fail_msg("%s", got);
}

static char *hash_of(char *text) {
    char *hash = strstr(text, "logits_hash");
    if (!hash) fail_msg("no hash of logits in: %s", text);
    hash[strcspn(hash, "\n")] = '\0';
    return hash;
}

static void texts_are_the_same(void **state) {
    (void)state;
    static const char *const drafters[] = {"none", "lyanna:file=models/lyanna.gguf", "medusa:file=models/medusa.gguf",
                                           "sps:model=models/draft.gguf"};
    static char before[4][1 << 14], after[1 << 14];
    for (int i = 0; i < 4; i++) generate(drafters[i], before[i], sizeof before[i]);
    repack();
    for (int i = 0; i < 4; i++) {
        generate(drafters[i], after, sizeof after);
        if (strstr(after, "note")) fail_msg("%s", after);
        assert_string_equal(hash_of(before[i]), hash_of(after));
        assert_memory_equal(before[i], after, 20);
    }
    cli_expect(command_of("logits -m '%s' --tokens 1 --backend reference -o build/repack-logits.f32"), 0, "");
}

static void damaged_weights_are_named_and_not_used(void **state) {
    (void)state;
    char command[2000], whole[1 << 14], after[1 << 14];
    repack();
    generate("none", whole, sizeof whole);
    snprintf(command, sizeof command, "printf x | dd of='%s' bs=1 seek=100000 conv=notrunc 2>/dev/null", packed);
    shell(command);
    generate("none", after, sizeof after);
    assert_non_null(strstr(after, "note: the packed weights "));
    assert_non_null(strstr(after, "are damaged (the content), so they are not used; run 'forerun repack' again"));
    assert_string_equal(hash_of(whole), hash_of(after));
    cli_expect(command_of("logits -m '%s' --tokens 1 -o build/repack-logits.f32"), 0, "are damaged (the content)");
    repack();
    generate("none", after, sizeof after);
    assert_null(strstr(after, "note"));
}

static void weights_of_an_earlier_model_are_named_and_not_used(void **state) {
    (void)state;
    char command[2000];
    repack();
    snprintf(command, sizeof command, "cp models/draft.gguf '%s'", model);
    shell(command);
    generate("none", got, sizeof got);
    assert_non_null(strstr(got, "are those of another or an earlier model file"));
    repack();
    generate("none", got, sizeof got);
    assert_null(strstr(got, "note"));
}

static void wrong_usage_gives_an_error(void **state) {
    (void)state;
    char command[2000];
    cli_expect("repack", 2, "missing model: pass -m FILE");
    cli_expect("repack -m /nonexistent.gguf", 1, "/nonexistent.gguf: cannot be opened");
    cli_expect("repack -m models/lyanna.gguf", 1, "lyanna");
    snprintf(command, sizeof command, "-c 'ulimit -f 1000; %s/../forerun repack -m models/target.gguf 2>&1; echo $?'",
             cli_rig_folder());
    char line[2200];
    snprintf(line, sizeof line, "sh %s", command);
    FILE *f = popen(line, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = '\0';
    pclose(f);
    assert_non_null(strstr(got, "cannot be written: File too large\n1\n"));
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    cli_expect("repack -m models/draft.gguf", 1, "there is no folder for packed weights");
    setenv("XDG_CACHE_HOME", cache, 1);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_the_same),
        cmocka_unit_test(damaged_weights_are_named_and_not_used),
        cmocka_unit_test(weights_of_an_earlier_model_are_named_and_not_used),
        cmocka_unit_test(wrong_usage_gives_an_error),
    };
    int status = cmocka_run_group_tests(tests, begin, NULL);
    unlink("build/repack-logits.f32");
    return status;
}
