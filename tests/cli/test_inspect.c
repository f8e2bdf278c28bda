/* test_inspect.c - `forerun inspect` as a program: its text, its JSON, and its exit statuses. */
#define _POSIX_C_SOURCE 200809L
#include "testing.h"

#include "base/mem.h"
#include "gguf_build.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char program[512]; /* the forerun of the same build as this test */

/* Runs `forerun inspect ARGUMENTS`; returns its exit status and its output, which the caller frees. */
static int run(const char *arguments, Buf *out) {
    char command[1024], chunk[4096];
    *out = (Buf){.max_bytes = 1 << 20};
    snprintf(command, sizeof command, "%s inspect 2>&1 %s", program, arguments);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_true(buf_append(out, "", 0));
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) assert_true(buf_append(out, chunk, n));
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void people_see_the_shape(void **state) {
    (void)state;
    static const char *wanted[] = {
        "models/target.gguf\n",
        "architecture    llama\n",
        "parameters      7.3 million (7344384)\n",
        "context         1024 tokens\n",
        "heads           4 of 64, 2 for keys and values\n",
        "vocabulary      4096 tokens, llama\n",
        "chat template   plain, shown below\n",
        "Q8_0    57 tensors, 7.4 MiB\n",
        "llama.attention.layer_norm_rms_epsilon  f32  1e-05\n",
        "tokenizer.ggml.tokens  string[4096]  [\"<unk>\", ",
    };
    Buf out;
    assert_int_equal(run("models/target.gguf", &out), 0);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(out.data, wanted[i])) fail_msg("\"%s\" is not in\n%s", wanted[i], out.data);
    assert_null(strstr(out.data, "blk.0")); /* tensors are listed only with --tensors */
    assert_null(strchr(out.data, '\033'));  /* no colours, because this is not a terminal */
    buf_free(&out);
    assert_int_equal(run("--tensors models/target.gguf", &out), 0);
    assert_non_null(strstr(out.data, "blk.7.ffn_down.weight             Q8_0  [768, 256]  204.0 KiB\n"));
    buf_free(&out);
}

static void programs_get_json(void **state) {
    (void)state;
    Buf out;
    assert_int_equal(run("--json --tensors models/target.gguf", &out), 0);
    json_t *root = json_loads(out.data, 0, NULL);
    assert_non_null(root);
    const char *architecture;
    int layers, vocab, chat, tokens, blocks;
    double epsilon;
    json_t *tensors;
    assert_int_equal(json_unpack(root, "{s:s, s:i, s:i, s:b, s:o, s:{s:{s:i}, s:i, s:f}}", "architecture",
                                 &architecture, "layers", &layers, "vocab_size", &vocab, "chat_template", &chat,
                                 "tensors", &tensors, "key_values", "tokenizer.ggml.tokens", "count", &tokens,
                                 "llama.block_count", &blocks, "llama.attention.layer_norm_rms_epsilon", &epsilon),
                     0);
    assert_string_equal(architecture, "llama");
    assert_int_equal(layers, 8);
    assert_int_equal(vocab, 4096);
    assert_int_equal(tokens, 4096);
    assert_int_equal(blocks, 8);
    assert_int_equal(chat, 1);
    assert_true(epsilon == 1e-5);
    assert_int_equal(json_array_size(tensors), 74);
    json_decref(root);
    buf_free(&out);
}

/* A file whose strings contain control sequences and invalid UTF-8. */
static void hostile_strings_are_shown_harmless(void **state) {
    (void)state;
    char path[] = "/tmp/forerun-inspect-XXXXXX", arguments[64];
    Buf b = {.max_bytes = 1 << 12}, out;
    put_header(&b, 3, 0, 3);
    put_kv_string(&b, "general.architecture", "\033[2J");
    put_kv_string(&b, "evil\a\n", "\xe2\x80\xae gnp.exe \xff\xfe");
    put_kv_string(&b, "general.name", "\xce\xbb\xce\xb1\xce\xbc");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, b.data, b.n) == (ssize_t)b.n && close(fd) == 0);
    assert_int_equal(run(path, &out), 0);
    for (size_t i = 0; i < out.n; i++)
        if ((unsigned char)out.data[i] < 0x20 && out.data[i] != '\n') fail_msg("byte %02x is shown", out.data[i]);
    assert_non_null(strstr(out.data, "architecture    \\x1b[2J\n"));
    assert_non_null(strstr(out.data, "evil\\x07\\n  string  \"\\xe2\\x80\\xae gnp.exe \\xff\\xfe\"\n"));
    assert_non_null(strstr(out.data, "name            \xce\xbb\xce\xb1\xce\xbc\n"));
    buf_free(&out);
    snprintf(arguments, sizeof arguments, "--json %s", path);
    assert_int_equal(run(arguments, &out), 0);
    json_t *root = json_loads(out.data, 0, NULL);
    assert_non_null(root);
    json_decref(root);
    buf_free(&out);
    buf_free(&b);
    unlink(path);
}

static void wrong_calls_and_wrong_files_have_different_statuses(void **state) {
    (void)state;
    static const struct {
        const char *arguments;
        int status;
        const char *says;
    } cases[] = {
        {"", 2, "missing file: pass FILE.gguf"},
        {"a b", 2, "unexpected argument 'b'"},
        {"--nonsense models/draft.gguf", 2, "unknown option '--nonsense'"},
        {"no-such.gguf", 1, "forerun: no-such.gguf: cannot be opened: No such file or directory\n"},
        {"Makefile", 1, "forerun: Makefile: this is not a GGUF file"},
        {"models/draft.gguf > /dev/full", 1, "standard output cannot be written"},
        {"--help", 0, "Examples:"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Buf out;
        int status = run(cases[i].arguments, &out);
        if (status != cases[i].status || !strstr(out.data, cases[i].says))
            fail_msg("inspect %s: status %d, wanted %d; said\n%s", cases[i].arguments, status, cases[i].status,
                     out.data);
        buf_free(&out);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    const char *tests_folder = strstr(argv[0], "tests/test_inspect");
    snprintf(program, sizeof program, "%.*sforerun", tests_folder ? (int)(tests_folder - argv[0]) : 0, argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(people_see_the_shape),
        cmocka_unit_test(programs_get_json),
        cmocka_unit_test(hostile_strings_are_shown_harmless),
        cmocka_unit_test(wrong_calls_and_wrong_files_have_different_statuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
