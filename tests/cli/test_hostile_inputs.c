/* test_hostile_inputs.c - the program with files from strangers: names with escape sequences, paths that are not
 * regular files, and files that change; the output in the sandbox equals that without it. */
#include "cli_rig.h"

#include "base/mem.h"
#include "gguf/gguf_write.h"
#include "gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ESC "\033]0;owned\007\033[31m"
#define HOSTILE \
    ESC "\n\xff\xc2\x9b" \
        "0m"
#define HOSTILE_JSON "\\u001b]0;owned\\u0007\\n"
#define TARGET "-m models/target.gguf "
#define DRAFT "-m models/draft.gguf "

static char file[600], got[1 << 20], args[3000];

static const char *path_of(const char *name) {
    snprintf(file, sizeof file, "%s/%s", cli_rig_folder(), name);
    return file;
}

static void write_text(const char *name, const char *text) {
    FILE *f = fopen(path_of(name), "wb");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Checks that no byte of the output is a control byte for a terminal. %s in `format` is the folder. */
static int run_safely(const char *format) {
    const char *d = cli_rig_folder();
    snprintf(args, sizeof args, format, d, d, d);
    strcat(args, " 2>&1");
    int status = cli_run(args, got, sizeof got);
    for (const unsigned char *p = (const unsigned char *)got; *p; p++)
        if ((*p < 0x20 && *p != '\n' && *p != '\t') || *p == 0x7f || *p == 0xff || (*p == 0xc2 && p[1] < 0xa0))
            fail_msg("forerun %s printed byte %02x in:\n%s", args, *p, got);
    return status;
}

static void expect_safe(const char *format, int status, const char *fragment) {
    int is = run_safely(format);
    if (is != status || !strstr(got, fragment))
        fail_msg("forerun %s: want status %d and '%s', got %d and:\n%s", args, status, fragment, is, got);
}

/* ---- names in files ------------------------------------------------------------------------------------ */

/* Writes a GGUF file whose names are hostile; `architecture` and `model`, if not NULL, are valid ones. */
static void write_model(const char *name, const char *architecture, const char *model) {
    GgufWriter *w = gguf_writer_new();
    assert_non_null(w);
    const char *a = architecture ? architecture : HOSTILE, *m = model ? model : HOSTILE;
    gguf_set_string(w, "general.architecture", a, strlen(a));
    gguf_set_string(w, "general.name", HOSTILE, strlen(HOSTILE));
    gguf_set_string(w, "tokenizer.ggml.model", m, strlen(m));
    gguf_set_string(w, "tokenizer.ggml.pre", HOSTILE, strlen(HOSTILE));
    gguf_set_string(w, "forerun-drafter.method", HOSTILE, strlen(HOSTILE));
    gguf_set_string(w, "forerun-drafter.target.name", HOSTILE, strlen(HOSTILE));
    gguf_set_string(w, "llama.rope.scaling.type", HOSTILE, strlen(HOSTILE));
    gguf_set_string(w, "key " HOSTILE, HOSTILE, strlen(HOSTILE));
    static const float numbers[4] = {0};
    gguf_add_tensor(w, "tensor " HOSTILE, TYPE_F32, 1, (int64_t[]){4}, numbers);
    fr_error err = {.message = ""};
    gguf_writer_finish(w, path_of(name), &err);
    assert_string_equal(err.message, "");
    gguf_writer_free(w);
}

static void names_in_models_are_escaped(void **state) {
    (void)state;
    write_model("hostile.gguf", NULL, NULL);
    write_model("scaled.gguf", "llama", NULL);
    write_model("bpe.gguf", "llama", "gpt2");
    write_model("drafter.gguf", "forerun-drafter", NULL);
    expect_safe("inspect %s/hostile.gguf", 0, "\\x1b]0;owned");
    expect_safe("inspect --tensors %s/hostile.gguf", 0, "tensor \\x1b]0;owned");
    expect_safe("inspect --tensors --json %s/hostile.gguf", 0, "\\u001B]0;owned");
    expect_safe("inspect %s/drafter.gguf", 0, "\\x1b]0;owned");
    expect_safe("tokenize -m %s/hostile.gguf -p x", 1, "the tokenizer model '\\x1b]0;owned");
    expect_safe("logits -m %s/hostile.gguf --tokens 1 -o -", 1, "architecture '\\x1b]0;owned");
    expect_safe("logits -m %s/scaled.gguf --tokens 1 -o -", 1, "");
    expect_safe("tokenize -m %s/bpe.gguf -p x", 1, "");
    expect_safe("run -m %s/hostile.gguf -p x", 1, "\\x1b]0;owned");
    expect_safe("run " DRAFT "-p x -n 4 --draft medusa:file=%s/hostile.gguf", 1, "is not a learned drafter");
    expect_safe("run " DRAFT "-p x -n 4 --draft medusa:file=%s/drafter.gguf", 1, "is a drafter for the method");
    expect_safe("run " DRAFT "-p x -n 4 --draft sps:model=%s/hostile.gguf", 1, "\\x1b]0;owned");
}

static void texts_of_json_files_are_escaped(void **state) {
    (void)state;
    write_text("questions.jsonl",
               "{\"question_id\": 1, \"category\": \"" HOSTILE_JSON "\", \"prompt\": \"Once upon\"}\n");
    expect_safe("bench " DRAFT "%s/questions.jsonl -n 4 --runs 1 --draft pld", 0, "\\x1b]0;owned\\x07\\n: 1 question");
    write_text("traces.jsonl",
               "{\"category\": \"" HOSTILE_JSON "\", \"prompt\": \"Once upon\", \"response\": \" a time\"}\n");
    expect_safe("replay --vocab models/draft.gguf %s/traces.jsonl --draft pld", 0, "\\x1b]0;owned\\x07\\n");
    write_text("damaged.jsonl", "{\"text\": " ESC "}\n");
    expect_safe("bench " DRAFT "%s/damaged.jsonl -n 4 --draft pld", 1, "\\x1b");
    expect_safe("replay --vocab models/draft.gguf %s/damaged.jsonl --draft pld", 1, "\\x1b");
    expect_safe("index --vocab models/draft.gguf %s/damaged.jsonl -o %s/none.idx", 1, "\\x1b");
    expect_safe("distill-data " DRAFT "%s/damaged.jsonl -o %s/none.jsonl", 1, "\\x1b");
    expect_safe("train medusa " DRAFT "--data %s/damaged.jsonl -o %s/none.gguf --steps 1", 1, "\\x1b");
    write_text("weights.safetensors", "\x40\1\1\1\1\1\1\1{\"" ESC);
    expect_safe("import-drafter medusa " DRAFT "%s/weights.safetensors -o %s/none.gguf", 1, "");
}

/* ---- paths that are not regular files --------------------------------------------------------------------- */

static void pipes_and_devices_are_refused_at_once(void **state) {
    (void)state;
    unlink(path_of("pipe"));
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    mkdir(path_of("weights"), 0700);
    unlink(path_of("weights/pipe.safetensors"));
    assert_int_equal(mkfifo(path_of("weights/pipe.safetensors"), 0600), 0);
    static const char *const commands[] = {
        "inspect %s",
        "tokenize -m %s -p x",
        "tokenize " DRAFT "-f %s",
        "run -m %s -p x",
        "run " DRAFT "-f %s",
        "run " DRAFT "-p x --draft sps:model=%s",
        "run " DRAFT "-p x --draft medusa:file=%s",
        "run " DRAFT "-p x --draft rest:index=%s",
        "logits -m %s --tokens 1 -o -",
        "perf -m %s",
        "bench " DRAFT "%s --draft pld",
        "replay --vocab models/draft.gguf %s --draft pld",
        "replay --vocab %s models/README.md --draft pld",
        "study length " DRAFT "--draft-model models/draft.gguf -f %s",
        "index --vocab models/draft.gguf %s -o build/none.idx",
        "index --vocab %s models/README.md -o build/none.idx",
        "distill-data " DRAFT "%s -o build/none.jsonl",
        "distill-data -m %s %s/prompts.jsonl -o build/none.jsonl",
        "train medusa " DRAFT "--data %s -o build/none.gguf --steps 1",
        "train medusa -m %s --data models/README.md -o build/none.gguf --steps 1",
        "import-drafter medusa " DRAFT "%s -o build/none.gguf",
        "serve --port 0 -m %s",
        "serve --port 0 " DRAFT "--draft sps:model=%s",
        "serve --port 0 " DRAFT "--api-key-file %s",
        "serve --port 0 " DRAFT "--tls-cert %s --tls-key models/README.md",
        "serve --port 0 " DRAFT "--tls-cert models/README.md --tls-key %s",
    };
    write_text("prompts.jsonl", "{\"prompt\": \"Once\", \"response\": \" upon\"}\n");
    char pipe[600];
    snprintf(pipe, sizeof pipe, "%s", path_of("pipe"));
    const char *const inputs[] = {pipe, "/dev/zero"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        for (int k = 0; k < 2; k++) {
            char command[1200], whole[1300];
            snprintf(command, sizeof command, commands[i], inputs[k], cli_rig_folder());
            snprintf(whole, sizeof whole, "%s < /dev/null", command);
            alarm(60);
            cli_expect(whole, 1, k ? "is not a regular file but a device" : "is not a regular file but a named pipe");
        }
    snprintf(args, sizeof args, "import-drafter medusa " DRAFT "%s/weights -o build/none.gguf", cli_rig_folder());
    cli_expect(args, 1, "is not a regular file but a named pipe");
    cli_expect("inspect models", 1, "is not a regular file but a folder");
    alarm(0);
}

static void a_pipe_that_is_open_is_a_text(void **state) {
    (void)state;
    static char want[1000];
    assert_int_equal(cli_run("tokenize " DRAFT "-p 'Once upon a time'", want, sizeof want), 0);
    cli_expect("tokenize " DRAFT "-f /dev/stdin <<.\nOnce upon a time\n.\n#", 0, "");
    snprintf(args, sizeof args, "tokenize " DRAFT "-f /dev/fd/7 7<<.\nOnce upon a time\n.\n#");
    cli_expect(args, 0, "");
    want[strcspn(want, "\n")] = '\0';
    assert_int_equal(cli_run("tokenize " DRAFT "-f /dev/fd/7 7<<.\nOnce upon a time\n.\n", got, sizeof got), 0);
    assert_int_equal(strncmp(got, want, strlen(want)), 0); /* with a line end added */
}

/* ---- the sandbox ----------------------------------------------------------------------------------------- */

static void the_sandbox_changes_nothing(void **state) {
    (void)state;
    static char free_text[1 << 20];
    static const char *const commands[][2] = {
        {"inspect", "models/target.gguf"},
        {"inspect", "--json --tensors models/lyanna.gguf"},
        {"inspect", "models/README.md"},
        {"inspect", "models/absent.gguf"},
        {"tokenize", TARGET "-p 'Once upon a time' --pieces"},
        {"tokenize", TARGET "-f models/README.md --json"},
        {"tokenize", TARGET "-f models/absent.txt"},
        {"tokenize", TARGET "-d '1 300 301'"},
    };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        snprintf(args, sizeof args, "%s %s 2>&1", commands[i][0], commands[i][1]);
        int status = cli_run(args, got, sizeof got);
        snprintf(args, sizeof args, "%s --no-sandbox %s 2>&1", commands[i][0], commands[i][1]);
        assert_int_equal(cli_run(args, free_text, sizeof free_text), status);
        assert_string_equal(got, free_text);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_in_models_are_escaped),           cmocka_unit_test(texts_of_json_files_are_escaped),
        cmocka_unit_test(pipes_and_devices_are_refused_at_once), cmocka_unit_test(a_pipe_that_is_open_is_a_text),
        cmocka_unit_test(the_sandbox_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
