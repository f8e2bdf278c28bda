/* test_limits_cli.c - the program with few resources: a limit on its address space, no further threads, no OpenBLAS;
 * and small files that need much memory. The program does its work or ends with an error message; it neither hangs nor
 * crashes. */
#define DIR "build/test-limits"
#include "train_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zstd.h>

#define RUN "run -m models/target.gguf -p Once -n 8 --threads 2"
#define TRAIN \
    "train target --vocab " VOCAB " --data " DATA \
    " --valid 0 --layers 1 --width 16 --heads 2 --length 16 --batch 4 --steps 2 --threads 2 --force -o " OUT \
    " --precision "

static char got[1 << 18];

/* Runs "BEFORE exec timeout 20 forerun ARGS" in a shell; its output is in `got`. */
static int run_after(const char *before, const char *args) {
    char command[2000];
    snprintf(command, sizeof command, "ulimit -c 0; %s exec timeout 20 %s/../forerun %s 2>&1", before, cli_rig_folder(),
             args);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void it_works_or_ends_with_a_sentence(const char *before, const char *args) {
    int status = run_after(before, args);
    if (status != 0 && !(status == 1 && strncmp(got, "forerun: ", 9) == 0))
        fail_msg("%s %s: status %d, '%s'", before, args, status, got);
}

static int make_files(void **state) {
    (void)state;
    return train_rig_make_files(DIR);
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

/* The next file that is opened gets the number of a standard stream that the caller closed, so the model could be read
 * as the prompt. */
static void closed_standard_files_stay_closed(void **state) {
    (void)state;
    static const struct {
        const char *args, *why;
    } cases[] = {
        {"run -m models/target.gguf -n 4 <&-", "cannot be read"},
        {"run -m models/target.gguf -n 4 -f - <&-", "cannot be read"},
        {"chat -m models/target.gguf -n 4 <&-", "standard input cannot be read"},
        {"tokenize -m models/target.gguf <&-", "cannot be read"},
        {"tokenize -m models/target.gguf -p x 2>&1 >&- #", "standard output cannot be written"},
        {"logits -m models/target.gguf --tokens 1 -o - 2>&1 >&- #", "standard output: cannot be written"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int status = run_after("", cases[i].args);
        if (status != 1 || !strstr(got, cases[i].why)) fail_msg("%s: status %d, '%s'", cases[i].args, status, got);
    }
    assert_int_equal(run_after("", RUN " 2>&-"), 0);
}

static void only_training_in_float_needs_openblas(void **state) {
    (void)state;
    char command[600];
    snprintf(command, sizeof command, "ldd %s/../forerun > " DIR "/libraries", cli_rig_folder());
    train_rig_shell(command);
    train_rig_shell("grep -q libjansson " DIR "/libraries && ! grep -qE 'blas|gfortran' " DIR "/libraries");
    train_rig_shell("mkdir -p " DIR "/lib && echo no library > " DIR "/lib/libopenblas.so.0");
    const char *broken = "LD_LIBRARY_PATH=" DIR "/lib";
    assert_int_equal(run_after(broken, RUN), 0);
    assert_int_equal(run_after(broken, TRAIN "bf16"), 0);
    assert_int_equal(run_after(broken, TRAIN "f32"), 1);
    assert_non_null(strstr(got, "needs OpenBLAS, which cannot be loaded"));
    assert_non_null(strstr(got, "install libopenblas0-pthread, or pass --precision bf16"));
    assert_int_equal(run_after("", TRAIN "f32"), 0);
}

static void any_limit_on_the_address_space_is_handled(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizers reserve terabytes */
#endif
    const char *small = "ulimit -v 60000;";
    assert_int_equal(run_after(small, "--help"), 0);
    assert_int_equal(run_after(small, "inspect models/target.gguf"), 0);
    assert_int_equal(run_after("ulimit -v 200000;", RUN), 0);
    for (int kib = 16000; kib <= 160000; kib += 9000) {
        char before[80];
        snprintf(before, sizeof before, "ulimit -v %d;", kib);
        it_works_or_ends_with_a_sentence(before, RUN);
        it_works_or_ends_with_a_sentence(before, "inspect --json models/target.gguf");
        it_works_or_ends_with_a_sentence(before, "index --vocab models/target.gguf " DATA " -o " DIR "/index");
        it_works_or_ends_with_a_sentence(before, TRAIN "f32");
    }
    assert_int_equal(run_after("ulimit -v 160000;", TRAIN "f32"), 1);
    assert_non_null(strstr(got, "address space for OpenBLAS with 2 threads"));
    assert_int_equal(run_after("ulimit -v 160000;", TRAIN "bf16"), 0);
}

/* The limit does not apply to root, so root runs the program as another user. */
static void a_refused_thread_gives_an_error(void **state) {
    (void)state;
    const char *become = geteuid() == 0 ? "setpriv --reuid=54321 --clear-groups" : "";
    char command[1200];
    snprintf(command, sizeof command, "%s test -x %s/../forerun -a -r models/target.gguf", become, cli_rig_folder());
    if (system(command) != 0) skip(); /* the other user may not read this folder */
    snprintf(command, sizeof command, "exec prlimit --nproc=1 --core=0 %s %s/../forerun " RUN " 2>&1", become,
             cli_rig_folder());
    FILE *f = popen(command, "r");
    assert_non_null(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    if (WEXITSTATUS(pclose(f)) != 1 || !strstr(got, "the system does not grant 2 threads; use fewer (-t)"))
        fail_msg("got '%s'", got);
}

/* ---- small files that need much memory --------------------------------------------------------------- */

#define INDEX "index --vocab " VOCAB " -o " DIR "/index "
#define TEXT DIR "/text.txt"

static void spill(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Writes `head`, then `unit` repeated until there are n bytes, and `tail`, compressed if the path ends in .zst. */
static void spill_repeated(const char *path, const char *head, const char *unit, size_t n, const char *tail) {
    char *text = malloc(n + 100), *packed = malloc(ZSTD_compressBound(n + 100));
    assert_true(text && packed);
    size_t at = (size_t)sprintf(text, "%s", head);
    while (at < n) at += (size_t)sprintf(text + at, "%s", unit);
    at += (size_t)sprintf(text + at, "%s", tail);
    size_t n_packed = ZSTD_compress(packed, ZSTD_compressBound(n + 100), text, at, 3);
    if (strstr(path, ".zst")) spill(path, packed, n_packed);
    else spill(path, text, at);
    free(text), free(packed);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LITTLE_MEMORY "" /* the sanitizers reserve terabytes */
#else
#define LITTLE_MEMORY "ulimit -v 160000;"
#endif

static void little_zstd_does_not_become_gigabytes(void **state) {
    (void)state;
    const char *words =
        "decompresses to more than 100 times its size; if that is meant, say how much text there may be "
        "with --max-text=SIZE";
    spill_repeated(TEXT ".zst", "", "a", 30 << 20, "");
    assert_int_equal(run_after(LITTLE_MEMORY, INDEX TEXT ".zst"), 1);
    assert_non_null(strstr(got, words));
    spill_repeated(DIR "/big.jsonl.zst", "", "{\"text\": \"one of a million equal texts\"}\n", 20 << 20, "");
    cli_expect(INDEX DIR "/big.jsonl.zst", 1, words);
    cli_expect(TRAIN "bf16 --data " DIR "/big.jsonl.zst", 1, words);
    cli_expect(INDEX DIR "/big.jsonl.zst --max-text 19M", 1, "exceeds the limit of 19922944 bytes");
    spill_repeated(TEXT ".zst", "", "a", 900 << 10, "");
    cli_expect(INDEX TEXT ".zst", 0, " in 1 document, "); /* a small text may be compressed by any factor */
    spill_repeated(TEXT ".zst", "", "a", 1100 << 10, "");
    cli_expect(INDEX TEXT ".zst", 1, words);
    cli_expect(INDEX TEXT ".zst --max-text 2M", 0, " in 1 document, ");
}

static void the_limit_on_text_is_for_all_files_together(void **state) {
    (void)state;
    spill_repeated(TEXT, "", "text ", 600, "");
    cli_expect(INDEX TEXT " --max-text 600", 0, " in 1 document, ");
    cli_expect(INDEX TEXT " " TEXT " --max-text 1K", 1, "the limit of 1024 bytes; pass a larger --max-text=SIZE");
    cli_expect(TRAIN "bf16 --max-text 5K", 1, "the limit of 5120 bytes; pass a larger --max-text=SIZE");
    cli_expect(INDEX TEXT " --max-text 1T", 2, "must be a number of bytes, such as 500M or 4G");
    cli_expect(INDEX TEXT " --max-text 0", 2, "must be a number of bytes");
    cli_expect(INDEX TEXT " --max-text nan", 2, "must be a number of bytes");
}

static void json_that_grows_in_memory_is_refused(void **state) {
    (void)state;
    spill_repeated(DIR "/wide.jsonl", "{\"text\": \"a\", \"x\": [", "{},", 17 << 20, "0]}\n");
    cli_expect(INDEX DIR "/wide.jsonl", 1, "line 1 has more than 16777216 bytes, the limit of one record");
    cli_expect("replay --vocab " VOCAB " " DIR "/wide.jsonl --draft pld", 1, "the limit of one record");
    cli_expect("bench -m " VOCAB " " DIR "/wide.jsonl", 1, "larger than the limit of 16777216 bytes");
    spill_repeated(DIR "/deep.jsonl", "{\"text\": \"a\", \"x\": ", "[", 5 << 20, "\n");
    cli_expect(INDEX DIR "/deep.jsonl", 1, "maximum parsing depth reached");
}

/* jansson is the only library that does not notice when memory runs out: it crashes, or leaves out values. */
static void memory_that_runs_out_within_json_is_reported(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizers reserve terabytes */
#endif
    int n_noticed = 0;
    spill_repeated(DIR "/wide.jsonl", "{\"text\": \"a\", \"x\": [", "{\"a\":1},", 1 << 20, "0]}\n");
    cli_expect(INDEX DIR "/wide.jsonl", 0, " in 1 document, ");
    train_rig_shell("cp " DIR "/index " DIR "/whole");
    for (int kib = 16000; kib < 80000; kib += 3000) {
        char before[80];
        snprintf(before, sizeof before, "ulimit -v %d;", kib);
        int status = run_after(before, INDEX DIR "/wide.jsonl");
        if (status == 0) train_rig_shell("cmp " DIR "/index " DIR "/whole");
        else if (status != 1 || strncmp(got, "forerun: ", 9) != 0) fail_msg("%s status %d, '%s'", before, status, got);
        n_noticed += strstr(got, "memory ran out while JSON was read or written") != NULL;
    }
    assert_true(n_noticed > 2);
}

/* A frame with one byte of text that claims a window of 2 GiB. */
static void a_window_of_zstd_is_bounded(void **state) {
    (void)state;
    static const unsigned char frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0, 21 << 3, 1 << 3 | 1, 0, 0, 'a'};
    spill(TEXT ".zst", frame, sizeof frame);
    cli_expect(INDEX TEXT ".zst", 1,
               "needs a window of more than 128 MiB to decompress; compress it again with --long=27");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(closed_standard_files_stay_closed),
        cmocka_unit_test(only_training_in_float_needs_openblas),
        cmocka_unit_test(any_limit_on_the_address_space_is_handled),
        cmocka_unit_test(a_refused_thread_gives_an_error),
        cmocka_unit_test(little_zstd_does_not_become_gigabytes),
        cmocka_unit_test(the_limit_on_text_is_for_all_files_together),
        cmocka_unit_test(json_that_grows_in_memory_is_refused),
        cmocka_unit_test(memory_that_runs_out_within_json_is_reported),
        cmocka_unit_test(a_window_of_zstd_is_bounded),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
