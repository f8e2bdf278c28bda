/* test_cli.c - `forerun run`, `compare`, `logits` and `perf` as programs: output, files and exit statuses. */
#include "cli_rig.h"

#include <glob.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TARGET "-m models/target.gguf "
#define DRAFT "-m models/draft.gguf "

static void wrong_usage_and_failures_have_different_statuses(void **state) {
    (void)state;
    cli_expect("", 2, "Usage: forerun COMMAND");
    cli_expect("--help", 0, "compare");
    cli_expect("--version", 0, "forerun ");
    cli_expect("fly", 2, "unknown command 'fly'");
    cli_expect("rum", 2, "did you mean run?");
    cli_expect("--verison", 2, "unknown option '--verison'; did you mean --version?");
    cli_expect("run --halp", 2, "unknown option '--halp'; did you mean --help?");
    cli_expect("run " TARGET "-p a --logit-bias 5", 2, "--logit-bias: '5' must be TOKEN=X");
    cli_expect("run " TARGET "-p a --logit-bias 5=nan", 2, "'5=nan' must be TOKEN=X");
    cli_expect("run " TARGET "-p a --draft none+pld", 2, "none is plain decoding and cannot be combined");
    cli_expect("run " TARGET "-p a --draft none --draft pld", 2, "none is plain decoding and cannot be combined");
    cli_expect("chat " TARGET "--draft pld --draft none", 2, "none is plain decoding and cannot be combined");
    cli_expect("run " TARGET "--chat -p 'a\377b'", 2, "--prompt: byte 1 is not UTF-8");
    cli_expect("chat " TARGET "--system 'a\377b'", 2, "--system: byte 1 is not UTF-8");
    cli_expect("run -m '' -p a", 2, "'--model=' must name a file, but is empty");
    cli_expect("inspect ''", 2, "must name a file, but is empty");
    cli_expect("bench " TARGET "bench/prompts/study.jsonl --draft pld --parallel 0", 2,
               "--parallel: '0' must be a list");
    cli_expect("perf " TARGET "--rows 0", 2, "forerun: --rows: '0' must be a list");
    cli_expect("run " TARGET "-p a -n 2 --logit-bias 999999=1", 2, "logit bias 0 is of token 999999");
    cli_expect("run " TARGET "-p a --top-logprobs 3", 2, "pass --stats-json=FILE, too");
    cli_expect("run " TARGET "-p a --top-logprobs 21 --stats-json x", 2, "0 to 20");
    cli_expect("run --help-all", 0, "\n  ngram-trie");
    cli_expect("run", 2, "missing model: pass -m FILE");
    cli_expect("run " TARGET " </dev/null", 2, "missing prompt: standard input is empty; pass -p TEXT or -f FILE");
    cli_expect("run -m models/eagle.gguf -p x", 1, "is a drafter, not a model; give its target");
    cli_expect("perf -m models/eagle.gguf", 1, "is a drafter, not a model; give its target");
    cli_expect("run " TARGET " -p x --temp 1 --top-p 0", 2, "'--top-p=0' must be a number from 1e-06 to 1");
    cli_expect("help nothing", 2, "unknown command 'nothing'");
    cli_expect("help train lyanna", 0, "Usage: forerun train lyanna");
    cli_expect("help run", 0, "Usage: forerun run");
    cli_expect("run " TARGET "-p a -f b", 2, "-p and -f both give a prompt");
    cli_expect("run " TARGET "-p a stray", 2, "unexpected argument 'stray'");
    cli_expect("run " TARGET "-p a --temp hot", 2, "'--temp=hot' must be a number of at least 0");
    cli_expect("run " TARGET "-p a --temp -1", 2, "'--temp=-1' must be a number of at least 0");
    cli_expect("run " TARGET "-p a --draft teleport", 2, "teleport");
    cli_expect("run " TARGET "-p a --draft sps:file=x", 2,
               "sps: unknown option 'file' (the options are model, coupled, length)");
    cli_expect("run " TARGET "-p a --stop b --stop ''", 2, "--stop: an empty text would end every answer at once");
    cli_expect("run " TARGET "-p a --verify hope", 2, "hope");
    cli_expect("run " TARGET "-p a --kernels abacus", 2, "abacus");
    cli_expect("run " TARGET "-p a --kernels abacus", 2, "choose from ref");
    cli_expect("run -m /nowhere.gguf -p a", 1, "/nowhere.gguf");
    cli_expect("run -m README.md -p a", 1, "README.md");
    cli_expect("run " TARGET "-f /nowhere.txt", 1, "/nowhere.txt");
    cli_expect("run " TARGET "--ctx 4 -p 'a longer prompt than that'", 1, "longer than the context of 4");
    cli_expect("run " TARGET "-p a --stats-json /no/where.json -n 1", 1, "/no/where.json");
    cli_expect("compare " TARGET "-p a", 2, "missing drafter to compare with plain decoding");
    cli_expect("logits " TARGET "--tokens 1,x -o -", 2, "'1,x' must be a list of integers");
    cli_expect("logits " TARGET "--tokens 99999 -o -", 2, "from 0 to 4095");
    cli_expect("logits " TARGET "--tokens 1 -o /no/where.f32", 1, "/no/where.f32");
    cli_expect("perf " TARGET "--rows 0", 2, "from 1 to");
    cli_expect("run " TARGET "-p a --kv q5", 2, "'--kv=q5' must be f16, f32 or q8");
    cli_expect("logits " TARGET "--tokens 1 --kv q5 -o -", 2, "'--kv=q5' must be f16, f32 or q8");
    cli_expect("run " TARGET "-p a -n 2 --kv q8", 0, "");
    cli_expect("run " TARGET "-p a --pin -t 256", 2, "cannot be pinned"); /* no test machine has that many cores */
}

static void options_of_other_programs_are_understood(void **state) {
    (void)state;
    char wanted[4096], got[4096];
    const char *const cases[][3] = {
        {"run " TARGET "-p Once -ngl 99", "forerun run: -ngl: forerun runs on the CPU only: leave it out\n"},
        {"run " TARGET "-p Once --n-gpu-layers=99", "--n-gpu-layers: forerun runs on the CPU only"},
        {"run -hf a/b -p Once", "-hf: fetch the model once with 'forerun pull OWNER/NAME'"},
        {"run " TARGET "-cnv", "-cnv: 'forerun chat -m MODEL' holds a conversation"},
        {"run " TARGET "-no-cnv", "-no-cnv: 'forerun run -m MODEL' continues a text"},
        {"run " TARGET "-v", "-v: there are no levels of logging"},
        {"serve " TARGET "--metrics", "--metrics: forerun serve always has it"},
        {"serve " TARGET "-to x", "'--request-timeout=x' must be a number"},
        {"run " TARGET "--n-predict", "--tokens needs a value"},
        {"run " TARGET "--n-predict many", "'--tokens=many' must be an integer"},
        {"inspect --n-predict 3 models/draft.gguf", "unknown option '--n-predict'"},
        {"run a/b", "unexpected argument 'a/b'; pass a model as -m FILE"},
        {"show models/draft.gguf", "unknown command 'show'; did you mean inspect?"},
        {"list", "did you mean pull --list?"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) cli_expect(cases[i][0], 2, cases[i][1]);
    assert_int_equal(cli_run("run " TARGET "-p Once -n 12 --temp 1 --seed 3 -c 64 --draft sps:model=models/draft.gguf "
                             "--stop xyz 2>/dev/null",
                             wanted, sizeof wanted),
                     0);
    assert_int_equal(cli_run("run " TARGET "-p Once --n-predict 12 --temperature=1 -s 3 --ctx-size 64 -md "
                             "models/draft.gguf -r xyz 2>/dev/null",
                             got, sizeof got),
                     0);
    assert_string_equal(got, wanted);
}

static void only_the_text_goes_to_standard_output(void **state) {
    (void)state;
    char plain[8192], drafted[8192], colored[16384], errors[1024];
    assert_int_equal(cli_run("run " DRAFT "-p 'Once upon a time' -n 40 --draft none 2>/dev/null", plain, sizeof plain),
                     0);
    assert_true(strlen(plain) > 40 && plain[strlen(plain) - 1] == '\n' && !strchr(plain, '\033'));
    assert_int_equal(cli_run("run " DRAFT "-p 'Once upon a time' -n 40 --draft ngram-trie --stats 2>/dev/null", drafted,
                             sizeof drafted),
                     0);
    assert_string_equal(plain, drafted);
    assert_int_equal(cli_run("run " DRAFT "-p 'Once upon a time' -n 40 --draft ngram-trie --color 2>/dev/null", colored,
                             sizeof colored),
                     0);
    assert_non_null(strstr(colored, "\033[32m"));
    assert_int_equal(cli_run("run " DRAFT "-p 'Once upon a time' -n 40 --draft ngram-trie --color=auto 2>/dev/null",
                             colored, sizeof colored),
                     0);
    assert_string_equal(plain, colored); /* a pipe is no terminal */
    assert_int_equal(
        cli_run("run " DRAFT "-p 'Once upon a time' -n 40 --stop ' was' 2>/dev/null", colored, sizeof colored), 0);
    assert_null(strstr(colored, " was"));
    cli_run("run " DRAFT "-p 'Once upon a time' -n 40 2>&1 >/dev/null", errors, sizeof errors);
    assert_string_equal(errors, ""); /* the closing line is for terminals */
}

static json_t *stats_of(const char *args) {
    char command[1024], text[65536];
    snprintf(command, sizeof command, "run %s --stats-json %s/stats.json", args, cli_rig_folder());
    assert_int_equal(cli_run(command, text, sizeof text), 0);
    snprintf(command, sizeof command, "%s/stats.json", cli_rig_folder());
    json_error_t error;
    json_t *j = json_load_file(command, 0, &error);
    if (!j) fail_msg("%s", error.text);
    text[strlen(text) - 1] = 0;
    assert_string_equal(json_string_value(json_object_get(j, "text")), text);
    return j;
}

static void statistics_have_every_documented_field(void **state) {
    (void)state;
    static const char *const fields[] = {"tokens",           "text",
                                         "n_prompt",         "n_generated",
                                         "n_steps",          "acceptance_length",
                                         "accept_histogram", "conditional_acceptance",
                                         "drafted",          "accepted",
                                         "prefill_s",        "decode_s",
                                         "tokens_per_s",     "draft_s",
                                         "forward_s",        "verify_s",
                                         "logits_hash",      "kernel_table",
                                         "threads",          "proposals",
                                         "undrafted_steps",  "acceptance_by_step",
                                         "verify",           "lossy",
                                         "finish",           "activations",
                                         "n_prompt_shared",  "n_preempted",
                                         "n_recomputed",     "seed",
                                         "shared_vocab"};
#define OPTIONS "-p 'Once upon a time' -n 60 --temp 0.7 --seed 3 --logprobs --top-logprobs 4 --logit-bias 300=-inf "
    json_t *plain = stats_of(DRAFT OPTIONS "--draft none");
    json_t *drafted = stats_of(DRAFT OPTIONS "--draft ngram-trie");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!json_object_get(drafted, fields[i])) fail_msg("there is no field '%s'", fields[i]);
    static const char *const same[] = {"tokens",       "text",        "logits_hash", "logprobs",
                                       "top_logprobs", "n_generated", "n_prompt"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (!json_equal(json_object_get(plain, same[i]), json_object_get(drafted, same[i])))
            fail_msg("'%s' differs with a drafter", same[i]);
    assert_true(json_number_value(json_object_get(plain, "acceptance_length")) == 1);
    assert_true(json_number_value(json_object_get(drafted, "acceptance_length")) > 1);
    assert_int_equal(json_array_size(json_object_get(drafted, "logprobs")), 60);
    json_t *top = json_array_get(json_object_get(drafted, "top_logprobs"), 59);
    assert_int_equal(json_array_size(top), 4);
    double best = json_number_value(json_object_get(json_array_get(top, 0), "logprob"));
    assert_true(best <= 0 && best >= json_number_value(json_object_get(json_array_get(top, 1), "logprob")));
    json_decref(plain);
    json_decref(drafted);
}

/* Writes the output of `shell`, run in a shell; %s in it is the program. */
static void output_of(const char *shell, char *text, size_t size) {
    char program[600], command[2048];
    snprintf(program, sizeof program, "%s/../forerun", cli_rig_folder());
    snprintf(command, sizeof command, shell, program);
    FILE *out = popen(command, "r");
    assert_non_null(out);
    text[fread(text, 1, size - 1, out)] = 0;
    pclose(out);
}

static void prompts_come_from_files_and_pipes(void **state) {
    (void)state;
    static char given[4096], piped[4096], text[4096];
    cli_run("run " TARGET "-p 'Once upon a time' -n 8", given, sizeof given);
    output_of("printf 'Once upon a time\\n' | %s run " TARGET "-n 8", piped, sizeof piped);
    assert_string_equal(piped, given);
    output_of("printf 'Once upon a time\\r\\n' | %s run " TARGET "-n 8 -f -", piped, sizeof piped);
    assert_string_equal(piped, given);
    output_of("printf 'a\\0b' | %s run " TARGET "--chat -n 8 2>&1", text, sizeof text);
    assert_non_null(strstr(text, "contains a zero byte"));
}

static void compare_checks_methods_against_plain_decoding(void **state) {
    (void)state;
    char text[65536];
    assert_int_equal(
        cli_run("compare " DRAFT
                "-p 'Once upon a time' -n 30 --runs 3 --json --draft ngram-trie --draft ngram-trie:rule=paper",
                text, sizeof text),
        0);
    json_t *rows = json_loads(text, 0, NULL);
    assert_int_equal(json_array_size(rows), 3);
    for (size_t i = 0; i < 3; i++) assert_true(json_is_true(json_object_get(json_array_get(rows, i), "identical")));
    assert_string_equal(json_string_value(json_object_get(json_array_get(rows, 0), "method")), "plain");
    const json_t *drafted = json_array_get(rows, 1), *by_step = json_object_get(drafted, "acceptance_by_step");
    json_int_t n_steps = json_integer_value(json_object_get(drafted, "n_steps")),
               n_accepted = json_integer_value(json_object_get(drafted, "accepted"));
    double share = 1, expected = 0; /* the nodes accepted per step, over the first eight depths */
    assert_true(json_array_size(by_step) >= 1 && json_is_object(json_object_get(drafted, "counters")));
    for (size_t d = 0; d < json_array_size(by_step); d++)
        expected += share *= json_real_value(json_array_get(by_step, d));
    assert_true(expected > 0 && expected * (double)n_steps <= (double)n_accepted + 8); /* the last step may be cut */
    assert_true(json_array_size(by_step) == 8 || expected * (double)n_steps > (double)n_accepted - 0.5);
    json_decref(rows);
    cli_expect("compare " DRAFT "-p 'Once upon a time' -n 30 --runs 1 --draft ngram-trie", 0, "identical");
    cli_expect("compare " DRAFT "-p 'Once upon a time' -n 30 --runs 1 --draft ngram-trie", 0,
               "% of the steps that accepted depth d - 1");
    cli_expect("compare " DRAFT "-p 'Once upon a time' -n 30 --runs 2 --draft ngram-trie --verify recursive", 0,
               "identical");
    cli_expect("compare " DRAFT "-p 'Once upon a time' -n 30 --runs 2 --draft ngram-trie --verify recursive --temp 1",
               0, "same distribution");
}

/* All figures of a row are those of one run, and the speed-up is the ratio of the rates of two rows. */
static void compare_does_not_contradict_itself(void **state) {
    (void)state;
    char text[65536];
    assert_int_equal(
        cli_run("compare " DRAFT "-p 'Once upon a time' -n 30 --runs 5 --json --draft pld", text, sizeof text), 0);
    json_t *rows = json_loads(text, 0, NULL), *plain = json_array_get(rows, 0), *row;
    size_t i;
    json_array_foreach(rows, i, row) {
        double rate = json_number_value(json_object_get(row, "tokens_per_s"));
        double want = json_number_value(json_object_get(row, "n_generated")) /
                      json_number_value(json_object_get(row, "decode_s"));
        double base = json_number_value(json_object_get(plain, "tokens_per_s"));
        assert_true(fabs(rate / want - 1) < 1e-6);
        assert_true(fabs(json_number_value(json_object_get(row, "speed_up")) * base / rate - 1) < 1e-6);
    }
    assert_string_equal(json_string_value(json_object_get(plain, "verdict")), "");
    json_decref(rows);
    cli_expect("compare " DRAFT "-p 'Once upon a time' -n 30 --runs 1 --draft pld", 0, "one run cannot tell faster");
}

static json_int_t compared_steps(const char *options, size_t method) {
    char command[400], text[65536];
    snprintf(command, sizeof command, "compare " DRAFT "-p 'Once upon a time' -n 60 --json %s", options);
    assert_int_equal(cli_run(command, text, sizeof text), 0);
    json_t *rows = json_loads(text, 0, NULL);
    json_int_t n_steps = json_integer_value(json_object_get(json_array_get(rows, method), "n_steps"));
    json_decref(rows);
    return n_steps;
}

/* All runs write the same text, which a drafter that remembers answers would know from the second run on, or from
 * another method. */
static void compare_lets_no_drafter_remember(void **state) {
    (void)state;
    json_int_t alone = compared_steps("--runs 1 --draft suffix", 1);
    assert_true(alone > 1);
    assert_int_equal(compared_steps("--runs 3 --draft suffix", 1), alone);
    assert_int_equal(compared_steps("--runs 1 --draft suffix+pld --draft suffix", 2), alone);
}

static void logits_are_rows_of_floats(void **state) {
    (void)state;
    char command[1024], path[700];
    snprintf(path, sizeof path, "%s/logits.f32", cli_rig_folder());
    float rows[3][4096], first[4096];
    for (int n = 3; n >= 1; n -= 2) {
        snprintf(command, sizeof command, "logits " DRAFT "--tokens %s --kv f32 -o %s", n == 3 ? "1,400,500" : "1",
                 path);
        cli_expect(command, 0, "");
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        assert_int_equal(fread(n == 3 ? rows[0] : first, sizeof(float), 4096 * (size_t)n, f), 4096 * n);
        assert_int_equal(fgetc(f), EOF);
        fclose(f);
    }
    assert_memory_equal(rows[0], first, sizeof first); /* later tokens change nothing */
    for (int i = 0; i < 4096; i++) assert_true(isfinite(rows[2][i]));
}

static void perf_prints_ratios(void **state) {
    (void)state;
    char text[65536];
    assert_int_equal(cli_run("perf " DRAFT "--rows 1,4 --parts 2 --seconds 0.1 --ctx 16 --json", text, sizeof text), 0);
    json_t *j = json_loads(text, 0, NULL), *rows = json_object_get(j, "forward");
    assert_int_equal(json_array_size(rows), 2);
    assert_true(json_number_value(json_object_get(json_array_get(rows, 0), "ratio")) == 1);
    assert_true(json_number_value(json_object_get(j, "read_gb_s")) > 0);
    for (size_t i = 0; i < 2; i++) /* no limit exceeds what was measured */
        assert_in_range(json_number_value(json_object_get(json_array_get(rows, i), "of_limit")) * 1e6, 1, 1000000);
    json_t *split = json_array_get(json_object_get(j, "split"), 0), *parts = json_object_get(split, "parts");
    assert_int_equal(json_integer_value(json_object_get(split, "rows")), 2);
    assert_int_equal(json_array_size(parts), 7); /* five kinds of products, attention, norms */
    double bytes = 0, seconds = 0;
    for (size_t i = 0; i < 7; i++) {
        const json_t *part = json_array_get(parts, i);
        if (i < 5) bytes += json_number_value(json_object_get(part, "bytes"));
        assert_true(json_number_value(json_object_get(part, "seconds")) > 0);
        seconds += json_number_value(json_object_get(part, "seconds"));
    }
    assert_true(fabs(bytes * 1e-9 / json_number_value(json_object_get(j, "weight_gb")) - 1) < 1e-3);
    assert_true(seconds <=
                json_number_value(json_object_get(split, "seconds"))); /* they are stages of the same forward */
    json_decref(j);
}

static void perf_prints_how_forwards_scale(void **state) {
    (void)state;
    char text[65536];
    assert_int_equal(cli_run("perf " DRAFT "--threads 1,2 --seconds 0 --ctx 16 --json", text, sizeof text), 0);
    json_t *j = json_loads(text, 0, NULL), *scaling = json_object_get(j, "scaling");
    assert_int_equal(json_array_size(scaling), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *count = json_array_get(scaling, i), *forwards = json_object_get(count, "forward");
        assert_int_equal(json_integer_value(json_object_get(count, "threads")), i + 1);
        assert_true(json_number_value(json_object_get(count, "read_gb_s")) > 0);
        assert_int_equal(json_array_size(forwards), 3);
        for (size_t k = 0; k < 3; k++) {
            const json_t *first = json_array_get(json_object_get(json_array_get(scaling, 0), "forward"), k),
                         *f = json_array_get(forwards, k);
            double ratio = json_number_value(json_object_get(first, "seconds")) /
                           json_number_value(json_object_get(f, "seconds"));
            assert_true(fabs(json_number_value(json_object_get(f, "speed_up")) / ratio - 1) < 1e-4);
        }
    }
    json_decref(j);
    cli_expect("perf " DRAFT "--threads 1,2 --seconds 0 --ctx 4 --backend reference", 0, "threads  reads GB/s");
    cli_expect("perf " DRAFT "--threads 1,0", 2, "--threads");
    cli_expect("perf " DRAFT "--threads 1,2 --figures", 2, "--figures: give one number of --threads");
}

static void figures_have_floors(void **state) {
    (void)state;
    char text[65536];
    assert_int_equal(cli_run("perf " DRAFT "--figures --seconds 0.05 --json", text, sizeof text), 0);
    json_t *j = json_loads(text, 0, NULL);
    assert_int_equal(json_array_size(j), 2);
    for (size_t c = 0; c < 2; c++) {
        const json_t *figures = json_object_get(json_array_get(j, c), "figures");
        assert_int_equal(json_array_size(figures), 5);
        for (size_t i = 0; i < 5; i++) {
            const json_t *f = json_array_get(figures, i);
            assert_true(json_number_value(json_object_get(f, "seconds")) > 0);
            assert_true(json_number_value(json_object_get(f, "limit")) >= 1); /* over the least time of one row */
            assert_null(json_object_get(f, "goal"));                          /* the user does not see the project's
                                                                               * goals */
        }
    }
    json_decref(j);
}

/* Costs that one program measured for an automatic budget are used by the next one. */
static void costs_are_kept(void **state) {
    (void)state;
    char path[700], command[1024];
    struct stat st;
    snprintf(command, sizeof command, "rm -f %s/forerun/cost-*", cli_rig_folder());
    assert_int_equal(system(command), 0);
    glob_t found;
    snprintf(path, sizeof path, "%s/forerun/cost-*", cli_rig_folder());
    cli_expect("run " DRAFT "-p a -n 2 --draft none", 0, "");
    assert_int_equal(glob(path, 0, NULL, &found), GLOB_NOMATCH); /* nothing is measured if no request needs it */
    for (int i = 0; i < 5 && glob(path, 0, NULL, &found); i++) cli_expect("run " DRAFT "-p a -n 2 --draft auto", 0, "");
    if (glob(path, 0, NULL, &found)) skip(); /* other programs disturb every measurement */
    assert_int_equal(found.gl_pathc, 1);
    assert_int_equal(stat(found.gl_pathv[0], &st), 0);
    cli_expect("run " DRAFT "-p a -n 2 --draft auto", 0, "");
    assert_int_equal(stat(found.gl_pathv[0], &st), 0); /* under the same name */
    globfree(&found);
}

/* run, logits, compare and perf in the reference backend: its values are near the CPU's, and its texts do not change
 * with drafts. */
static void the_reference_backend_serves_every_command(void **state) {
    (void)state;
    enum { V = 4096 };
    char text[8192], command[512];
    float logits[2][2 * V];
    static const char *const names[] = {"cpu", "reference"};
    for (int k = 0; k < 2; k++) {
        snprintf(command, sizeof command, "logits " DRAFT "--tokens 1,400 --kv f32 --backend %s -o %s/logits.f32",
                 names[k], cli_rig_folder());
        assert_int_equal(cli_run(command, text, sizeof text), 0);
        snprintf(command, sizeof command, "%s/logits.f32", cli_rig_folder());
        FILE *f = fopen(command, "rb");
        assert_non_null(f);
        assert_int_equal(fread(logits[k], sizeof(float), 2 * V, f), 2 * V);
        fclose(f);
    }
    double error = 0, size = 0;
    for (int i = 0; i < 2 * V; i++) {
        double x = (double)logits[0][i], y = (double)logits[1][i];
        error += (x - y) * (x - y), size += y * y;
    }
    assert_true(error > 0); /* the two backends compute differently */
    assert_true(error < 1e-6 * size);
    json_t *j = stats_of(DRAFT "-p 'Once upon a time' -n 8 --backend reference --draft ngram-trie");
    assert_string_equal(json_string_value(json_object_get(j, "backend")), "reference");
    assert_string_equal(json_string_value(json_object_get(j, "activations")), "exact");
    json_decref(j);
    cli_expect("compare " DRAFT "-p 'a b a b a b' -n 12 --no-text --backend reference --draft ngram-trie", 0,
               "identical");
    cli_expect("perf " DRAFT "--rows 1,2 --parts 1 --seconds 0.1 --ctx 4 --backend reference", 0,
               "does not know the limits");
    cli_expect("perf " DRAFT "--figures --backend reference", 1, "use --backend cpu");
    cli_expect("run " DRAFT "-p a --backend gpu", 2, "'--backend=gpu' must be cpu or reference");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_usage_and_failures_have_different_statuses),
        cmocka_unit_test(options_of_other_programs_are_understood),
        cmocka_unit_test(only_the_text_goes_to_standard_output),
        cmocka_unit_test(statistics_have_every_documented_field),
        cmocka_unit_test(prompts_come_from_files_and_pipes),
        cmocka_unit_test(compare_checks_methods_against_plain_decoding),
        cmocka_unit_test(compare_does_not_contradict_itself),
        cmocka_unit_test(compare_lets_no_drafter_remember),
        cmocka_unit_test(logits_are_rows_of_floats),
        cmocka_unit_test(perf_prints_ratios),
        cmocka_unit_test(perf_prints_how_forwards_scale),
        cmocka_unit_test(figures_have_floors),
        cmocka_unit_test(costs_are_kept),
        cmocka_unit_test(the_reference_backend_serves_every_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
