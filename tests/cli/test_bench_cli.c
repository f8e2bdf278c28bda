/* test_bench_cli.c - `forerun bench` as a program: its table, its JSON, its figure, and its errors. No test depends on
 * times, only on whether the figures agree with each other. */
#include "cli_rig.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TARGET "bench -m models/target.gguf -t 1 "
#define DRAFT "bench -m models/draft.gguf -t 1 "

static char folder[64], questions[128], json[128], svg[128];

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void ask(const char *lines) { write_file(questions, lines); }

/* Runs bench on the questions with --json, and reads that. */
static json_t *measured(const char *args) {
    char command[2048], text[65536];
    snprintf(command, sizeof command, "%s --json %s %s 2>&1", args, json, questions);
    int status = cli_run(command, text, sizeof text);
    if (status) fail_msg("forerun %s: %d, '%s'", command, status, text);
    json_error_t error;
    json_t *j = json_load_file(json, 0, &error);
    if (!j) fail_msg("%s", error.text);
    return j;
}

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("there is no number '%s'", key);
    return json_number_value(value);
}

static const char *string(const json_t *object, const char *key) {
    const char *value = json_string_value(json_object_get(object, key));
    if (!value) fail_msg("there is no string '%s'", key);
    return value;
}

static void near(double got, double want, const char *what) {
    if (!(fabs(got - want) <= 1e-6 * fabs(want))) fail_msg("%s: want %.9g, got %.9g", what, want, got);
}

static const char two_categories[] =
    "{\"question_id\": 81, \"category\": \"writing\", \"turns\": [\"Tell me of a fox.\", \"And of its friend?\"]}\n"
    "\n"
    "{\"question_id\": 82, \"category\": \"roleplay\", \"turns\": [\"You are a king. Speak.\"]}\n"
    "{\"prompt\": \"What is seven times eight?\", \"category\": \"sums\"}\n"
    "{\"prompt\": \"What is seven times nine?\", \"category\": \"sums\"}\n";

/* ---- refusals --------------------------------------------------------------------------------------- */

static void wrong_usage_is_refused(void **state) {
    (void)state;
    char args[512];
    ask(two_categories);
    cli_expect(TARGET, 2, "missing file of questions: pass QUESTIONS.jsonl");
    cli_expect(TARGET "a b", 2, "unexpected argument 'b'");
    cli_expect(TARGET "--chain none a", 2, "nothing to compare with plain decoding");
    cli_expect(TARGET "--runs 0 a", 2, "'--runs=0' must be an integer from 1 to 100");
    cli_expect(TARGET "/nowhere.jsonl", 1, "/nowhere.jsonl");
    static const struct {
        const char *options;
        int status;
        const char *fragment;
    } cases[] = {
        {"--draft teleport", 2, "teleport"},
        {"--draft pld --draft pld+teleport", 2, "pld+teleport"},
        {"--chain pld:length=3", 2, "must not set the length"},
        {"--chain teleport", 2, "teleport"},
        {"--draft sps:model=/no/a+suffixes.gguf", 1, "/no/a+suffixes.gguf"},
        {"--parallel 1,0", 2, "'1,0' must be a list of integers"},
        {"--json /no/where.json", 1, "/no/where.json"},
        {"-c 20", 1, "no question fits"},
        {"--raw --system 'be kind'", 2, "--system needs a chat format"},
        {"--runs 1 --plot build/one.svg", 2, "--plot: one run shows no difference"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(args, sizeof args, TARGET "%s %s", cases[i].options, questions);
        cli_expect(args, cases[i].status, cases[i].fragment);
    }
}

static void bad_lines_are_named(void **state) {
    (void)state;
    static const struct {
        const char *line, *fragment;
    } cases[] = {
        {"{\"prompt\": ", "line 3: must be JSON"},
        {"[1, 2]", "line 3: must be a JSON object"},
        {"{\"category\": \"x\"}", "line 3: a question must have either"},
        {"{\"prompt\": \"x\", \"turns\": [\"y\"]}", "line 3: a question must have either"},
        {"{\"turns\": []}", "line 3: \"turns\""},
        {"{\"turns\": \"x\"}", "line 3: \"turns\""},
        {"{\"turns\": [\"x\", 3]}", "line 3: turn 2"},
        {"{\"prompt\": \"\"}", "line 3: prompt"},
        {"{\"prompt\": \"x\", \"question_id\": [1]}", "line 3: \"question_id\""},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"x\"}]}", "line 3: turn 1"},
        {"{\"turns\": [\"FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE\"], \"source\": \"x\"}",
         "line 3: turn 1 has no text yet"},
        {"{\"prompt\": \"x\", \"category\": 5}", "line 3: \"category\""},
        {"{\"prompt\": \"x\", \"category\": \"all\"}", "line 3: the name 'all'"},
    };
    char text[512], args[512];
    snprintf(args, sizeof args, TARGET "%s", questions);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "{\"prompt\": \"fine\"}\n\n%s\n", cases[i].line);
        ask(text);
        cli_expect(args, 1, cases[i].fragment);
    }
    ask("\n\n");
    cli_expect(args, 1, "has no questions");
}

/* These are refused before anything is measured: the model need not even exist. */
static void missing_gnuplot_is_reported_at_the_start(void **state) {
    (void)state;
    char args[512], *path = strdup(getenv("PATH"));
    ask(two_categories);
    snprintf(args, sizeof args, "bench -m /nowhere.gguf --plot %s %s", svg, questions);
    setenv("PATH", "/nowhere", 1);
    cli_expect(args, 1, "apt install gnuplot-nox");
    setenv("PATH", path, 1);
    free(path);
}

/* ---- measurements ------------------------------------------------------------------------------------ */

/* Returns the sum of a field over the records of a category, method and run ("all", any method; -1: any run). */
static double sum_of(const json_t *j, const char *category, const char *method, int i_run, const char *field) {
    double sum = 0;
    size_t i;
    const json_t *record;
    json_array_foreach(json_object_get(j, "records"), i, record) {
        if (strcmp(category, "all") != 0 && strcmp(string(record, "category"), category) != 0) continue;
        if (strcmp(string(record, "method"), method) != 0) continue;
        if (i_run >= 0 && number(record, "run") != i_run) continue;
        sum += number(record, field);
    }
    return sum;
}

static double run_value(const json_t *row, const char *key, size_t i_run) {
    return json_number_value(json_array_get(json_object_get(json_object_get(row, key), "runs"), i_run));
}

static void check_row(const json_t *j, const json_t *row) {
    static const char *const counts[] = {"n_turns",   "n_prompt", "n_generated", "n_steps",   "drafted", "accepted",
                                         "prefill_s", "decode_s", "draft_s",     "forward_s", "verify_s"};
    const char *category = string(row, "category"), *method = string(row, "method");
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        double want = sum_of(j, category, method, -1, counts[i]);
        if (want != 0 || number(row, counts[i]) != 0) near(number(row, counts[i]), want, counts[i]);
    }
    double mean[3] = {0}, rates[2];
    for (size_t r = 0; r < 2; r++) {
        int i_run = (int)r;
        double rate = sum_of(j, category, method, i_run, "n_generated") /
                      sum_of(j, category, method, i_run, "decode_s");
        double plain = sum_of(j, category, "plain", i_run, "n_generated") /
                       sum_of(j, category, "plain", i_run, "decode_s");
        double prefill = sum_of(j, category, method, i_run, "n_prompt") /
                         sum_of(j, category, method, i_run, "prefill_s");
        near(run_value(row, "tokens_per_s", r), rate, "tokens_per_s");
        near(run_value(row, "speed_up", r), rate / plain, "speed_up");
        near(run_value(row, "prefill_tokens_per_s", r), prefill, "prefill_tokens_per_s");
        rates[r] = rate;
        mean[0] += rate / 2;
        mean[1] += rate / plain / 2;
    }
    near(number(json_object_get(row, "tokens_per_s"), "mean"), mean[0], "mean of tokens_per_s");
    /* The difference of two rates, each of which is made of numbers of nine digits. */
    double deviation = fabs(rates[0] - rates[1]) / sqrt(2), sd = number(json_object_get(row, "tokens_per_s"), "sd");
    if (!(fabs(sd - deviation) <= 1e-6 * deviation + 1e-8 * mean[0])) fail_msg("deviation: %.9g, %.9g", sd, deviation);
    near(number(json_object_get(row, "speed_up"), "mean"), mean[1], "mean of speed_up");
    near(number(row, "acceptance_length"), number(row, "n_generated") / number(row, "n_steps"), "acceptance_length");
    if (strcmp(method, "plain") == 0) assert_true(number(row, "acceptance_length") == 1 && number(row, "drafted") == 0);
    assert_true(json_is_true(json_object_get(row, "identical")));
}

static void sums_agree_with_single_answers(void **state) {
    (void)state;
    ask(two_categories);
    json_t *j = measured(TARGET "-n 12 --runs 2 --draft ngram-trie --draft pld+suffix:history=0"),
           *rows = json_object_get(j, "summary");
    size_t i;
    const json_t *row;
    /* The categories are mt_bench, sums and all; the methods are plain, two drafts and the chain. */
    assert_int_equal(json_array_size(rows), 3 * 4);
    json_array_foreach(rows, i, row) check_row(j, row);
    assert_int_equal(json_array_size(json_object_get(j, "records")), 2 * 4 * 4);
    assert_string_equal(string(json_array_get(rows, 4), "category"), "mt_bench");
    const json_t *methods = json_object_get(j, "methods"),
                 *both = json_object_get(json_array_get(methods, 2), "drafts");
    assert_int_equal(json_array_size(both), 2);
    assert_string_equal(json_string_value(json_array_get(both, 0)), "pld");
    assert_string_equal(json_string_value(json_array_get(both, 1)), "suffix:history=0");
    const json_t *tuning = json_object_get(j, "tuning"), *tried = json_object_get(tuning, "tried");
    assert_int_equal(json_array_size(tried), 7);
    double best = 0, length = 0;
    json_array_foreach(tried, i, row) if (number(row, "tokens_per_s") > best) {
        best = number(row, "tokens_per_s");
        length = number(row, "length");
    }
    assert_true(number(tuning, "best_length") == length);
    char chain[64];
    snprintf(chain, sizeof chain, "tuned chain pld:length=%g", length);
    assert_string_equal(string(json_array_get(methods, 3), "name"), chain);
    json_decref(j);
}

/* The memory of a method is what it takes beside plain decoding. Token info has a table of 33.6 MB; the figures vary by
 * some MB, because large blocks are aligned. */
static void memory_is_that_of_the_drafter(void **state) {
    (void)state;
    ask("{\"prompt\": \"One\"}\n");
    json_t *j = measured(TARGET "-n 4 --runs 1 --chain none --draft eagle:file=models/eagle.gguf --draft "
                                "lyanna:file=models/lyanna-paper.gguf"),
           *methods = json_object_get(j, "methods");
    const json_t *plain = json_array_get(methods, 0), *eagle = json_array_get(methods, 1),
                 *lyanna = json_array_get(methods, 2);
    if (json_is_null(json_object_get(eagle, "memory_bytes"))) skip(); /* a C library that does not count */
    assert_true(number(plain, "memory_bytes") == 0);
    assert_true(number(eagle, "memory_bytes") < 20e6);
    assert_true(number(lyanna, "memory_bytes") > 33e6 && number(lyanna, "memory_bytes") < 100e6);
    json_decref(j);
}

static void table_names_methods_and_verdicts(void **state) {
    (void)state;
    char args[512], text[65536];
    ask(two_categories);
    snprintf(args, sizeof args, DRAFT "-n 8 --runs 1 --draft ngram-trie --limit 1 --temp 0.8 --seed 4 %s", questions);
    strcat(args, " 2>&1");
    assert_int_equal(cli_run(args, text, sizeof text), 0);
    static const char *const wanted[] = {"2 questions",
                                         "temperature 0.8, seed 4",
                                         "mt_bench: 1 question",
                                         "sums: 1 question",
                                         "all: 2 questions",
                                         "  plain ",
                                         "  ngram-trie ",
                                         "  tuned chain pld:length=",
                                         "identical",
                                         "100.0 % of the texts (2 of 2) are plain decoding's",
                                         "  sums ",
                                         " ms of a step: draft ",
                                         "commit ",
                                         "--temp 0.8 --seed 4",
                                         "chain pld tuned on 2 questions"};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
        if (!strstr(text, wanted[i])) fail_msg("no '%s' in '%s'", wanted[i], text);
}

/* One line of each layout, and SPEED-Bench's before and after its preparation. */
static void all_layouts_are_read(void **state) {
    (void)state;
    static const char lines[] =
        "{\"question_id\": 83, \"category\": \"writing\", \"turns\": [\"a\"]}\n"
        "{\"question_id\": \"5f0e\", \"category\": \"writing\", \"sub_category\": \"poem\", \"turns\": [\"a\", \"b\"], "
        "\"source\": \"s\", \"src_id\": \"7\", \"difficulty\": \"easy\", \"multiturn\": true}\n"
        "{\"question_id\": \"5f0f\", \"category\": \"low_entropy\", \"messages\": [{\"role\": \"user\", "
        "\"content\": \"a\"}, {\"role\": \"user\", \"content\": \"b\"}]}\n"
        "{\"question\": \"2+2?\", \"answer\": \"#### 4\"}\n"
        "{\"problem\": \"2+2?\", \"solution\": \"4\", \"answer\": \"4\", \"subject\": \"Algebra\"}\n"
        "{\"task_id\": \"HumanEval/0\", \"prompt\": \"def f():\", \"canonical_solution\": \"pass\"}\n"
        "{\"task_id\": 11, \"text\": \"Write f.\", \"code\": \"pass\", \"test_list\": []}\n"
        "{\"category\": \"writing\", \"prompt\": [\"a\", \"b\"], \"prompt_id\": 1}\n"
        "{\"prompt\": \"a\"}\n";
    static const struct {
        const char *category;
        int n_turns;
    } want[] = {{"mt_bench", 1},  {"writing", 2}, {"low_entropy", 2}, {"gsm8k", 1},    {"math500", 1},
                {"humaneval", 1}, {"mbpp", 1},    {"mtbench", 2},     {"questions", 1}};
    ask(lines);
    json_t *j = measured(DRAFT "-n 2 --runs 1 --chain none --draft pld"), *records = json_object_get(j, "records");
    assert_int_equal(json_array_size(records), 2 * sizeof want / sizeof *want);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const json_t *record = json_array_get(records, 2 * i);
        assert_string_equal(string(record, "category"), want[i].category);
        assert_true(number(record, "n_turns") == want[i].n_turns);
    }
    assert_string_equal(string(json_array_get(records, 2), "question_id"), "5f0e");
    assert_non_null(strstr(string(j, "command"), "forerun bench -m models/draft.gguf -t 1 -n 2 --runs 1"));
    assert_int_equal(strlen(string(j, "model_hash")), 16);
    assert_true(strlen(string(j, "cpu")) > 0 && strlen(string(j, "commit")) > 0);
    const json_t *all = json_array_get(json_object_get(j, "summary"), 1);
    assert_true(number(all, "n_answers") == 9 && number(all, "n_identical") == 9);
    json_decref(j);
}

/* A template that reads enable_thinking: with --thinking both each question is two. */
static void questions_are_asked_with_reasoning_and_without(void **state) {
    (void)state;
    static const char template[] =
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %} Think about it"
        " for a long time.{% endif %}";
    char file[128], args[256];
    snprintf(file, sizeof file, "%s/template.jinja", folder);
    write_file(file, template);
    ask("{\"prompt\": \"Speak.\", \"category\": \"c\"}\n");
    snprintf(args, sizeof args, DRAFT "-n 2 --runs 1 --chain none --draft pld --thinking both --chat-template %s",
             file);
    json_t *j = measured(args), *records = json_object_get(j, "records");
    assert_int_equal(json_array_size(records), 4);
    const json_t *off = json_array_get(records, 0), *on = json_array_get(records, 2);
    assert_string_equal(string(off, "category"), "c");
    assert_string_equal(string(on, "category"), "c, thinking");
    assert_true(json_is_false(json_object_get(off, "thinking")) && json_is_true(json_object_get(on, "thinking")));
    assert_true(number(on, "n_prompt") > number(off, "n_prompt") + 4);
    json_decref(j);
    cli_expect(TARGET "--raw --thinking on --draft pld a.jsonl", 1, "a.jsonl");
    unlink(file);
}

/* Two turns cost as much as their two prompts by themselves, the second of which contains the first answer. */
static void answers_become_part_of_the_conversation(void **state) {
    (void)state;
    char answer[4096], lines[16384];
    assert_int_equal(
        cli_run("run -m models/target.gguf -t 1 -n 12 -p 'Once upon a time' --ignore-eos", answer, sizeof answer), 0);
    answer[strlen(answer) - 1] = 0; /* the newline after the text */
    char joined[8192];
    snprintf(joined, sizeof joined, "Once upon a time%s\n\nThe end was", answer);
    json_t *texts[3] = {json_pack("{s:[s,s]}", "turns", "Once upon a time", "The end was"),
                        json_pack("{s:s}", "prompt", "Once upon a time"), json_pack("{s:s}", "prompt", joined)};
    lines[0] = 0;
    for (int i = 0; i < 3; i++) {
        char *line = json_dumps(texts[i], JSON_COMPACT);
        strcat(strcat(lines, line), "\n");
        free(line);
        json_decref(texts[i]);
    }
    ask(lines);
    json_t *j = measured(TARGET "--raw -n 12 --ignore-eos --runs 1 --chain none --draft ngram-trie"),
           *records = json_object_get(j, "records");
    assert_int_equal(json_array_size(records), 6);
    for (size_t m = 0; m < 2; m++) {
        const json_t *both = json_array_get(records, m), *first = json_array_get(records, 2 + m),
                     *second = json_array_get(records, 4 + m);
        assert_true(number(both, "n_turns") == 2 && number(first, "n_turns") == 1);
        near(number(both, "n_prompt"), number(first, "n_prompt") + number(second, "n_prompt"), "n_prompt");
        near(number(both, "n_steps"), number(first, "n_steps") + number(second, "n_steps"), "n_steps");
        near(number(both, "n_generated"), 24, "n_generated");
    }
    json_decref(j);
    /* In the model's chat format the same question is longer. */
    j = measured(TARGET "-n 12 --ignore-eos --runs 1 --chain none --draft ngram-trie");
    assert_string_equal(string(j, "chat_family"), "plain");
    assert_true(number(json_array_get(json_object_get(j, "records"), 2), "n_prompt") > 8);
    json_decref(j);
}

static void what_does_not_fit_is_left_out(void **state) {
    (void)state;
    char line[4096] = "{\"category\": \"long\", \"prompt\": \"", lines[8192];
    for (int i = 0; i < 60; i++) strcat(line, "once upon a time ");
    snprintf(lines, sizeof lines, "%s\"}\n{\"turns\": [\"a\", \"b\"]}\n", line);
    ask(lines);
    json_t *j = measured(DRAFT "-c 64 -n 40 --ignore-eos --runs 1 --chain none --draft pld");
    assert_true(number(j, "questions_left_out") == 1);
    assert_int_equal(json_array_size(json_object_get(j, "records")), 2);
    assert_true(number(json_array_get(json_object_get(j, "records"), 0), "n_turns") >= 1);
    json_decref(j);
}

/* A drafter that remembers answers accepts more after it has given them. */
static void warm_ups_teach_drafters(void **state) {
    (void)state;
    double tokens[2];
    ask("{\"prompt\": \"Tell me of a fox.\"}\n");
    for (int i = 0; i < 2; i++) {
        char args[256];
        snprintf(args, sizeof args, DRAFT "-n 24 --ignore-eos --runs 1 --chain none --draft suffix --warm-up %s",
                 questions);
        if (i == 0) *strstr(args, " --warm-up") = '\0';
        json_t *j = measured(args);
        const json_t *row = json_array_get(json_object_get(j, "summary"),
                                           3); /* plain and suffix: a category, then all */
        assert_string_equal(string(row, "method"), "suffix");
        tokens[i] = number(row, "acceptance_length");
        assert_true(json_is_true(json_object_get(row, "identical")));
        json_decref(j);
    }
    assert_true(tokens[1] > tokens[0] + 0.5);
    char args[256];
    snprintf(args, sizeof args, DRAFT "--draft suffix --warm-up /nowhere.jsonl %s", questions);
    cli_expect(args, 1, "/nowhere.jsonl");
}

static void batches_change_no_text(void **state) {
    (void)state;
    ask(two_categories);
    json_t *j = measured(DRAFT "-n 10 --runs 2 --draft ngram-trie --chain none --parallel 1,3"),
           *rows = json_object_get(j, "summary");
    const json_t *records = json_object_get(j, "records"), *row, *record;
    assert_int_equal(json_array_size(rows), 2 * 3 * 2); /* in all, and in each of two categories */
    assert_int_equal(json_array_size(records), 2 * 2 * 2 * 4);
    size_t i;
    json_array_foreach(rows, i, row) {
        assert_true(number(row, "n_parallel") == (i < 6 ? 1 : 3));
        assert_int_equal(json_is_null(json_object_get(row, "speed_up")), i % 6 >= 2);
        if (i % 6 >= 2) continue;
        assert_true(json_is_true(json_object_get(row, "identical")));
        assert_true(number(row, "n_generated") == number(json_array_get(rows, 0), "n_generated"));
        double plain = run_value(json_array_get(rows, i & ~(size_t)1), "tokens_per_s", 1);
        near(run_value(row, "speed_up", 1), run_value(row, "tokens_per_s", 1) / plain, "speed_up");
    }
    json_array_foreach(records, i, record) {
        const json_t *first = json_array_get(records, i % 8 / 2 * 2);
        assert_string_equal(string(record, "fingerprint"), string(first, "fingerprint"));
        assert_true(number(record, "question_id") == number(first, "question_id"));
    }
    json_decref(j);
}

/* gnuplot gets names as text: no quote ends them, and no backquote starts a command. */
static void figure_shows_names_as_they_are(void **state) {
    (void)state;
    if (system("gnuplot --version >/dev/null 2>&1") != 0) {
        print_message("skipped: no gnuplot\n");
        skip();
    }
    char lines[512], args[512], text[65536], trap[128];
    snprintf(trap, sizeof trap, "%s/trap", folder);
    snprintf(
        lines, sizeof lines,
        "{\"prompt\": \"a\", \"category\": \"it's_`touch %s`\\\"\"}\n{\"prompt\": \"b\", \"category\": \"second\"}\n",
        trap);
    ask(lines);
    for (int parallel = 0; parallel < 2; parallel++) {
        snprintf(args, sizeof args, DRAFT "-n 4 --runs 2 --chain none --draft ngram-trie --plot %s %s %s", svg,
                 parallel ? "--parallel 1,2" : "", questions);
        if (cli_run(args, text, sizeof text)) fail_msg("%s", text);
        FILE *f = fopen(svg, "rb");
        assert_non_null(f);
        size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = 0;
        fclose(f);
        if (!strstr(text, "<svg") || !strstr(text, "</svg>")) fail_msg("no figure: '%.200s'", text);
        assert_non_null(strstr(text, "ngram-trie"));
        assert_non_null(strstr(text, parallel ? "requests at once" : "s_`touch"));
        if (access(trap, F_OK) == 0) fail_msg("a category's name was run as a command");
    }
}

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/forerun-bench-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(questions, sizeof questions, "%s/questions.jsonl", folder);
    snprintf(json, sizeof json, "%s/bench.json", folder);
    snprintf(svg, sizeof svg, "%s/bench.svg", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(questions);
    unlink(json);
    unlink(svg);
    return rmdir(folder);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_usage_is_refused),
        cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(missing_gnuplot_is_reported_at_the_start),
        cmocka_unit_test(sums_agree_with_single_answers),
        cmocka_unit_test(memory_is_that_of_the_drafter),
        cmocka_unit_test(table_names_methods_and_verdicts),
        cmocka_unit_test(all_layouts_are_read),
        cmocka_unit_test(questions_are_asked_with_reasoning_and_without),
        cmocka_unit_test(answers_become_part_of_the_conversation),
        cmocka_unit_test(what_does_not_fit_is_left_out),
        cmocka_unit_test(warm_ups_teach_drafters),
        cmocka_unit_test(batches_change_no_text),
        cmocka_unit_test(figure_shows_names_as_they_are),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
