/* test_distill_cli.c - `forerun distill-data` from the command line: its answers are those of `forerun run`, and
 * after kill -9 it continues to the same file. */
#define DIR "build/test-distill"
#include "train_rig.h"

#include "engine_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUESTIONS DIR "/questions.jsonl"
#define ANSWERS DIR "/answers.jsonl"

static int make_files(void **state) {
    (void)state;
    int status = train_rig_make_files(DIR);
    train_rig_write(
        QUESTIONS,
        "{\"prompt\": \"Once upon a time\", \"id\": 3}\n"
        "{\"prompt\": \"The little dog\", \"response\": \"to be replaced\"}\n\n"
        "{\"prompt\": \"Who was the king?\"}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Who are you?\"}, {\"role\": \"assistant\", \"content\": "
        "\"x\"}, {\"role\": \"user\", \"content\": \"Why?\"}]}\n"
        "{\"prompt\": \"Lily and Tom\"}");
    return status;
}

static int drop_files(void **state) {
    (void)state;
    return train_rig_drop_files(DIR);
}

static void it_refuses_with_a_reason(void **state) {
    (void)state;
    static const struct {
        const char *args;
        int status;
        const char *words;
    } cases[] = {
        {"distill-data -m models/target.gguf -o " ANSWERS, 2, "missing file of questions"},
        {"distill-data -m models/target.gguf " QUESTIONS, 2, "missing output file: pass -o FILE"},
        {"distill-data -m models/target.gguf " DATA " -o " ANSWERS, 1, "line 1 has a \"text\", not a question"},
        {"distill-data -m models/target.gguf /dev/null -o " ANSWERS, 1, "nothing to answer"},
        {"distill-data -m models/target.gguf " QUESTIONS " -o " DIR "/x.zst", 2, "remove .zst from the name"},
        {"distill-data -m models/target.gguf " QUESTIONS " -o " DATA, 1,
         "line 1 answers a question that the input does not have"},
    };
    char args[2000];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(args, sizeof args, "%s 2>&1", cases[i].args);
        cli_expect(args, cases[i].status, cases[i].words);
    }
    assert_false(train_rig_exists(ANSWERS)); /* no file remains after a refusal */
}

/* The answers to the four prompts are those that `run` prints; record 3 is a conversation. */
static void answers_are_those_of_run(const char *options, bool chat) {
    static const char *const prompts[] = {"Once upon a time", "The little dog", "Who was the king?", NULL,
                                          "Lily and Tom"};
    static char args[2000], said[8000];
    unlink(ANSWERS);
    snprintf(args, sizeof args,
             "distill-data -m models/target.gguf " QUESTIONS " -o " ANSWERS " --parallel 3 -n 12 %s --seed 5 %s",
             options, chat ? "--chat" : "");
    cli_expect(args, 0, "5 of 5 records are answered");
    for (int i = 0; i < 5; i++) {
        json_t *object = train_rig_line(ANSWERS, i);
        if (prompts[i]) {
            assert_string_equal(json_string_value(json_object_get(object, "prompt")), prompts[i]);
            snprintf(args, sizeof args, "run -m models/target.gguf -p '%s' -n 12 %s --seed %d %s", prompts[i], options,
                     5 + i, chat ? "--chat" : "");
            assert_int_equal(cli_run(args, said, sizeof said), 0);
            said[strlen(said) - 1] = '\0'; /* the newline that run prints after the text */
            assert_string_equal(json_string_value(json_object_get(object, "response")), said + (chat && *said == ' '));
        }
        if (i == 0) assert_int_equal(json_integer_value(json_object_get(object, "id")), 3);
        json_decref(object);
    }
}

static void distilled_answers_are_those_of_run(void **state) {
    (void)state;
    answers_are_those_of_run("", false);
    answers_are_those_of_run("--draft ngram-trie", true);
    answers_are_those_of_run("--temp 0.9 --top-k 50", true);
}

/* Checks that the answer is the one that the library generates after these turns. */
static void expect_answer(const fr_chat_message *turns, int n_turns, const char *answer) {
    fr_model *model = rig_open_model("models/target.gguf", NULL);
    fr_engine *engine = rig_open_engine(model, NULL);
    fr_request_options o = {.struct_size = sizeof o, .max_tokens = 12, .sampling = fr_sampling_default()};
    Stream *said = calloc(1, sizeof *said);
    fr_chat_result prompt = {.struct_size = sizeof prompt};
    assert_non_null(said);
    assert_int_equal(fr_chat_apply(model, turns, n_turns, NULL, &prompt, NULL), 0);
    o.prompt = prompt.tokens;
    o.n_prompt = prompt.n_tokens;
    rig_run_request(engine, &o, said);
    assert_string_equal(answer, said->text + (*said->text == ' '));
    free(said), fr_chat_result_free(&prompt);
    fr_engine_close(engine);
    fr_model_close(model);
}

/* Both turns of the assistant are generated again, the second after the first. */
static void conversations_are_answered_turn_by_turn(void **state) {
    (void)state;
    unlink(ANSWERS);
    cli_expect("distill-data -m models/target.gguf " QUESTIONS " -o " ANSWERS " -n 12", 0, "5 of 5");
    json_t *object = train_rig_line(ANSWERS, 3), *list = json_object_get(object, "messages");
    assert_int_equal(json_array_size(list), 4);
    const char *first = json_string_value(json_object_get(json_array_get(list, 1), "content"));
    const fr_chat_message turns[] = {{"user", "Who are you?"}, {"assistant", first}, {"user", "Why?"}};
    assert_non_null(first);
    expect_answer(turns, 1, first);
    expect_answer(turns, 3, json_string_value(json_object_get(json_array_get(list, 3), "content")));
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 3), "role")), "assistant");
    json_decref(object);
}

/* The questions of Spec-Bench: each turn is answered after those before it, as in a conversation; a run that is
 * continued gives the same answers. */
static void turns_are_answered_one_after_the_other(void **state) {
    (void)state;
    static const char turns[] = DIR "/turns.jsonl";
    unlink(ANSWERS);
    train_rig_write(turns, "{\"question_id\": 7, \"turns\": [\"Who are you?\", \"Why?\"]}\n{\"turns\": [\"Once\"]}\n");
    cli_expect("distill-data -m models/target.gguf " DIR "/turns.jsonl -o " ANSWERS " -n 12", 0, "2 of 2");
    json_t *object = train_rig_line(ANSWERS, 0), *list = json_object_get(object, "messages");
    assert_int_equal(json_integer_value(json_object_get(object, "question_id")), 7);
    assert_null(json_object_get(object, "turns"));
    assert_int_equal(json_array_size(list), 4);
    const char *first = json_string_value(json_object_get(json_array_get(list, 1), "content"));
    const fr_chat_message before[] = {{"user", "Who are you?"}, {"assistant", first}, {"user", "Why?"}};
    expect_answer(before, 1, first);
    expect_answer(before, 3, json_string_value(json_object_get(json_array_get(list, 3), "content")));
    json_decref(object);
    train_rig_shell("cp " ANSWERS " " DIR "/before.jsonl && sed -i '$d' " ANSWERS);
    cli_expect("distill-data -m models/target.gguf " DIR "/turns.jsonl -o " ANSWERS " -n 12", 0, "2 of 2");
    train_rig_shell("cmp " ANSWERS " " DIR "/before.jsonl");
    cli_expect("train target --vocab models/target.gguf --data " DIR "/turns.jsonl -o " OUT, 1,
               "line 1 has \"turns\", which are questions without answers");
    train_rig_write(turns, "{\"turns\": [\"Who?\", 5]}\n");
    cli_expect("distill-data -m models/target.gguf " DIR "/turns.jsonl -o " DIR "/none.jsonl", 1,
               "item 2 is not a string");
}

static void expect_prompt(int i, const char *prompt) {
    json_t *object = train_rig_line(ANSWERS, i);
    assert_string_equal(json_string_value(json_object_get(object, "prompt")), prompt);
    assert_null(json_object_get(object, "text"));
    assert_non_null(json_object_get(object, "response"));
    json_decref(object);
}

/* The prompt is the first words of a text, or a conversation up to its first answer; a second run generates only the
 * missing answers. */
static void texts_are_continued(void **state) {
    (void)state;
    const char *command = "distill-data -m models/target.gguf " DIR "/texts.jsonl -o " ANSWERS " -n 3 --begin-texts 3";
    unlink(ANSWERS);
    train_rig_write(DIR "/texts.jsonl",
                    "{\"text\": \" One  day\\na cat sat.\"}\n{\"text\": \"Two words\"}\n"
                    "{\"text\": \"USER: Who is there?\\nASSISTANT: Me.\\nUSER: Who?\\nASSISTANT: I.\"}\n"
                    "{\"prompt\": \"A prompt stays as it is\"}\n");
    cli_expect(command, 0, "4 of 4");
    expect_prompt(0, " One  day\na");
    expect_prompt(1, "Two words");
    expect_prompt(2, "USER: Who is there?\nASSISTANT:");
    expect_prompt(3, "A prompt stays as it is");
    train_rig_shell("cp " ANSWERS " " DIR "/before.jsonl && sed -i '$d' " ANSWERS);
    cli_expect(command, 0, "4 of 4");
    train_rig_shell("cmp " ANSWERS " " DIR "/before.jsonl");
}

/* Answers that do not follow the target's distribution are marked and training warns of them; answers that are
 * generated again are not marked. */
static void lossy_answers_are_marked(void **state) {
    (void)state;
    const char *train = "train target --vocab models/target.gguf --data " ANSWERS
                        " --chat --valid 0 --layers 1 --width 16 --heads 2 "
                        "--length 32 --steps 1 --force -o " OUT;
    static char said[20000];
    unlink(ANSWERS);
    cli_expect("distill-data -m models/target.gguf " QUESTIONS " -o " ANSWERS
               " -n 6 --draft ngram-trie --verify typical --lossy",
               0, "5 of 5");
    train_rig_shell("test $(grep -c '\"lossy\":true' " ANSWERS ") = 5");
    train_rig_shell("test $(grep -o '\"lossy\"' " ANSWERS " | wc -l) = 6"); /* both answers of the conversation */
    cli_expect(train, 0, "the answers of 5 documents were generated under a lossy rule");
    train_rig_shell("mv " ANSWERS " " DIR "/lossy.jsonl");
    cli_expect("distill-data -m models/target.gguf " DIR "/lossy.jsonl -o " ANSWERS " -n 6 --draft ngram-trie", 0,
               "5 of 5");
    train_rig_shell("! grep -q lossy " ANSWERS);
    assert_int_equal(cli_run(train, said, sizeof said), 0);
    assert_null(strstr(said, "warning"));
}

static void distilling_resumes_after_kills(void **state) {
    (void)state;
    train_rig_shell("for i in 1 2 3 4 5 6; do cat " QUESTIONS "; echo; done > " DIR "/many.jsonl");
    cli_expect("distill-data -m models/target.gguf " DIR "/many.jsonl -o " DIR "/whole.jsonl -n 40 --parallel 2", 0,
               "30 of 30");
    unlink(ANSWERS);
    int n_kills = train_rig_run_with_kills(
        DIR, "distill-data -m models/target.gguf " DIR "/many.jsonl -o " ANSWERS " -n 40 --parallel 2", ANSWERS, "");
    assert_true(n_kills > 0);
    train_rig_shell("cmp " ANSWERS " " DIR "/whole.jsonl");
    train_rig_shell("head -c 700 " DIR "/whole.jsonl > " ANSWERS); /* within a line */
    cli_expect("distill-data -m models/target.gguf " DIR "/many.jsonl -o " ANSWERS " -n 40 --parallel 5", 0,
               "30 of 30");
    train_rig_shell("cmp " ANSWERS " " DIR "/whole.jsonl");
    cli_expect("train target --vocab models/target.gguf --data " ANSWERS
               " --chat --valid 0 --layers 1 --width 16 --heads 2 "
               "--length 32 --steps 2 --force -o " OUT,
               0, "30 documents");
}

static void a_prompt_that_does_not_fit_is_left_out(void **state) {
    (void)state;
    unlink(ANSWERS);
    train_rig_write(DIR "/long.jsonl",
                    "{\"prompt\": \"Hi\"}\n{\"prompt\": \"one two three four five six seven eight nine ten eleven\"}\n"
                    "{\"prompt\": \"Ho\"}\n");
    cli_expect("distill-data -m models/target.gguf " DIR "/long.jsonl -o " ANSWERS " -n 2 --ctx 9 2>&1", 0,
               "record 2 is left out");
    cli_expect("distill-data -m models/target.gguf " DIR "/long.jsonl -o " ANSWERS " -n 2 --ctx 9", 0,
               "2 of 3 records");
    json_t *object = train_rig_line(ANSWERS, 1);
    assert_string_equal(json_string_value(json_object_get(object, "prompt")), "Ho");
    json_decref(object);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_refuses_with_a_reason),
        cmocka_unit_test(distilled_answers_are_those_of_run),
        cmocka_unit_test(conversations_are_answered_turn_by_turn),
        cmocka_unit_test(turns_are_answered_one_after_the_other),
        cmocka_unit_test(texts_are_continued),
        cmocka_unit_test(lossy_answers_are_marked),
        cmocka_unit_test(distilling_resumes_after_kills),
        cmocka_unit_test(a_prompt_that_does_not_fit_is_left_out),
    };
    return cmocka_run_group_tests(tests, make_files, drop_files);
}
