/* test_answer_output.c - what `chat` and `run --chat` show of answers whose reasoning is marked by special tokens, and
 * what they keep as the answer. */
#include "cli_rig.h"
#include "random_model.h"

#include "cli/run/generate.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DIR "build/test-answer-output"
enum { N_VOCAB = 300 };

/* The special tokens of a family. */
typedef struct Family {
    const char *path;
    const char *controls[6];
    int n_controls;
} Family;

static const Family harmony = {
    DIR "/harmony.gguf", {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|other|>"}, 5};
static const Family mistral = {DIR "/mistral.gguf", {"[THINK]", "[/THINK]"}, 2};
static const Family gemma = {DIR "/gemma.gguf", {"<|channel>", "<channel|>"}, 2};
static const Family llama = {DIR "/llama.gguf", {"<|other|>"}, 1}; /* <think> is text */

static int write_model(const Family *f) {
    fr_error err;
    return random_model_write(&(RandomModel){SMALL_LLAMA, .n_vocab = N_VOCAB, .controls = f->controls,
                                             .n_controls = f->n_controls, .chat_template = "{{ messages[0].content }}"},
                              f->path, &err);
}

static int begin(void **state) {
    (void)state;
    if (system("rm -rf " DIR " && mkdir -p " DIR)) return -1;
    return write_model(&harmony) || write_model(&mistral) || write_model(&gemma) || write_model(&llama);
}

static int end(void **state) {
    (void)state;
    return system("rm -r " DIR);
}

static void tokenize(const fr_model *model, const char *text, int32_t **tokens, int64_t *n) {
    fr_error err;
    if (fr_tokenize(model, text, strlen(text), FR_TOKENIZE_SPECIAL, tokens, n, &err)) fail_msg("%s", err.message);
}

static void write_tokens(AnswerOutput *o, const fr_model *model, const int32_t *tokens, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        size_t n_bytes;
        const char *text = fr_token_piece(model, tokens[i], false, &n_bytes);
        const fr_token_event event = {.token = tokens[i], .source = -1, .text = text, .n_bytes = n_bytes};
        assert_int_equal(answer_output_write(o, &event), 0);
    }
    assert_int_equal(answer_output_end(o), 0);
}

/* Shows `answer`, in which the names of special tokens become these, after a prompt. Checks what is written, and what
 * is kept if the answer is not just its text. */
static void check(const Family *family, const char *prompt, const char *answer, const char *shown, const char *kept) {
    static const char path[] = DIR "/shown";
    static char got[4000];
    int32_t *before, *tokens;
    int64_t n_before, n;
    fr_model *model;
    fr_error err;
    if (fr_model_open(&model, family->path, NULL, &err)) fail_msg("%s", err.message);
    tokenize(model, prompt, &before, &n_before);
    tokenize(model, answer, &tokens, &n);
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    assert_non_null(freopen(path, "w", stdout));
    AnswerOutput o = answer_output_open(model, before, n_before, false);
    write_tokens(&o, model, tokens, n);
    fflush(stdout);
    assert_true(dup2(saved, STDOUT_FILENO) >= 0);
    close(saved);
    FILE *f = fopen(path, "rb");
    got[fread(got, 1, sizeof got - 1, f)] = '\0';
    fclose(f);
    assert_string_equal(got, shown);
    assert_int_equal(o.marks != NULL, kept != NULL);
    if (kept) {
        assert_int_equal(o.answer.n, strlen(kept));
        assert_memory_equal(o.answer.n ? o.answer.data : "", kept, strlen(kept));
    }
    answer_output_close(&o);
    fr_free(before);
    fr_free(tokens);
    fr_model_close(model);
}

#define THOUGHT "<|channel|>analysis<|message|>so<|end|><|start|>assistant"

static void messages_of_gpt_oss(void **state) {
    (void)state;
    const char *prompt = "hi<|start|>assistant";
    check(&harmony, prompt, THOUGHT "<|channel|>final<|message|>yes", "<think>\nso\n</think>\n\nyes", "yes");
    check(&harmony, prompt, "<|channel|>final<|message|>yes", "yes", "yes");
    check(&harmony, prompt,
          THOUGHT "<|channel|>commentary<|message|>look<|end|><|start|>assistant<|channel|>final<|message|>a",
          "<think>\nso\n</think>\n\nlook\n\na", "look\n\na");
    check(&harmony, prompt, "<|channel|>analysis<|message|>so", "<think>\nso", ""); /* cut off */
    check(&harmony, prompt, "<|channel|>ana", "<|channel|>ana", "<|channel|>ana");
    check(&harmony, prompt, " plain<|other|> text", "plain text", " plain text");
    check(&harmony, "hi<|start|>assistant<|channel|>final<|message|>", "yes", "yes", "yes");
}

static void marks_around_reasoning(void **state) {
    (void)state;
    check(&mistral, "hi", "[THINK]so[/THINK]yes", "<think>\nso\n</think>\n\nyes", "yes");
    check(&mistral, "hi", "yes", "yes", "yes");
    check(&mistral, "hi[THINK]", "so[/THINK]yes", "<think>\nso\n</think>\n\nyes", "yes");
    check(&gemma, "hi", "<|channel>thought\nso<channel|>yes", "<think>\nso\n</think>\n\nyes", "yes");
    check(&gemma, "hi<|channel>thought\n<channel|>", "yes", "yes", "yes");
}

/* Marks that are text are shown and kept as they are. */
static void other_models(void **state) {
    (void)state;
    check(&llama, "hi", "<think>so</think>yes<|other|>", "<think>so</think>yes", NULL);
}

/* The commands: a model whose prompt has begun the reasoning, which never ends. */
static void the_commands(void **state) {
    static char out[4000];
    (void)state;
    const char *run = "run --chat -m " DIR "/mistral.gguf --temp 0 -n 8 --draft suffix --ignore-eos -p 'hi[THINK]' ";
    char command[400];
    snprintf(command, sizeof command, "%s --stats-json " DIR "/stats.json", run);
    assert_int_equal(cli_run(command, out, sizeof out), 0);
    json_t *stats = json_load_file(DIR "/stats.json", 0, NULL);
    assert_true(json_is_array(json_object_get(stats, "reasoning")));
    json_decref(stats);
    if (system("echo hi > " DIR "/script")) fail();
    cli_expect("chat -m " DIR "/harmony.gguf --temp 0 -n 8 --ctx 64 < " DIR "/script", 0, "");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_gpt_oss),
        cmocka_unit_test(marks_around_reasoning),
        cmocka_unit_test(other_models),
        cmocka_unit_test(the_commands),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
