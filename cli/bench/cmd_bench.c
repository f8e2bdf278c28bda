/* cmd_bench.c - `forerun bench`: answers many questions plainly and with each method, and reports speed and acceptance.
 * This file sets up the measurement; bench.h shows the other parts. */
#include "cli/bench/bench.h"
#include "cli/plot.h"
#include "cli/signals.h"

#include "base/mem.h"
#include "base/progress.h"
#include "draft/drafter_file.h"
#include "gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
#define HAS_MALLINFO2
#include <malloc.h>
#endif

enum { MAX_BATCH = 1024 };

static const int chain_lengths[] = {1, 2, 3, 4, 6, 8, 12};
enum { N_LENGTHS = sizeof chain_lengths / sizeof *chain_lengths };

typedef struct BenchArgs {
    GenerateArgs generate;
    const char *questions, *warm_up, *json, *plot, *chain, *parallel;
    int n_runs, limit, raw;
    BenchThinking thinking;
} BenchArgs;

typedef struct Bench {
    BenchArgs args;
    BenchRig rig;
    fr_model *model;
    BenchQuestions questions;
    BenchMethod methods[BENCH_MAX_METHODS];
    int n_methods;
    BenchTuning tuning;
    BenchResults results[BENCH_MAX_BATCHES]; /* [n_results] one, or with --parallel one for each batch size */
    int n_results, n_left_out;
    Progress bar;
    const char *bar_what;
    char bar_text[96];
    Buf command; /* the words of the command line */
    char model_hash[20];
    int64_t n_done; /* answers or rounds since the progress bar began */
} Bench;

static volatile sig_atomic_t stop_requested;

/* ---- command line ---------------------------------------------------------------------------------- */

static Bench bench; /* large; a command runs once */

static const Option option_table[] = {
    {.key = "QUESTIONS.jsonl",
     OPT_FILE(BenchArgs, questions),
     .is_argument = true,
     .required = "file of questions",
     .section = "Measuring",
     .help = "questions, one JSON object per line"},
    {.key = "runs",
     OPT_INT(BenchArgs, n_runs, 1, SPEED_MAX_RUNS),
     .default_value = "3",
     .help = "measure everything N times, and report mean and deviation"},
    {.key = "limit",
     OPT_INT(BenchArgs, limit, 1, 1 << 30),
     .default_help = "all",
     .help = "use only the first N questions of each category"},
    {.key = "chain",
     OPT_TEXT(BenchArgs, chain),
     .metavar = "SPEC",
     .default_value = "pld",
     .suggest = cli_suggest_draft,
     .help =
         "also measure this drafter as a chain of the best length; none: no chain. To find that length, 1, 2, 3, 4, "
         "6, 8 and 12 are tried on the first question of each category, which takes time"},
    {.key = "raw", OPT_FLAG(BenchArgs, raw), .help = "use the turns as raw text even if the model has a chat format"},
    {.key = "thinking",
     OPT_CHOICE(BenchArgs, thinking, "default", "off", "on", "both"),
     .default_value = "default",
     .help = "ask the chat template for answers without reasoning, or with it, or measure each question both ways"},
    {.key = "parallel",
     OPT_TEXT(BenchArgs, parallel),
     .metavar = "N,N,...",
     .help = "instead, measure the throughput of N requests at once, for each N, such as 1,2,4,8,16"},
    {.key = "warm-up",
     OPT_FILE(BenchArgs, warm_up),
     .metavar = "FILE.jsonl",
     .help = "answer the questions of this file before each measurement, so that drafters that remember answers know "
             "these (default: they know none)"},
    {.key = "json",
     OPT_OUTPUT(BenchArgs, json),
     .help = "write all settings, sums and measurements of single answers to FILE"},
    {.key = "plot",
     OPT_OUTPUT(BenchArgs, plot),
     .metavar = "FILE.svg",
     .help = "draw a figure of the speed-ups or the throughput; needs gnuplot"},
    {.key = NULL},
};

static void set_defaults(void) { generate_defaults(&bench.args.generate); }

static int check(fr_error *err) {
    BenchArgs *a = &bench.args;
    if (strcmp(a->chain, "none") == 0) a->chain = NULL;
    if (a->generate.n_drafts == 0 && !a->chain)
        return error_set(err, FR_ERR_ARGUMENT, "nothing to compare with plain decoding: pass --draft=SPEC");
    if (a->plot && a->n_runs == 1 && !a->parallel)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--plot: one run shows no difference that could be drawn; pass --runs 2 or more");
    int status = generate_check(&a->generate, err);
    for (int i = 0; i < a->generate.n_drafts && !status; i++) {
        BenchMethod m;
        status = bench_method_init(&m, a->generate.drafts[i], 1, err);
        if (!status) status = generate_check_drafts(m.drafts, m.n_drafts, err);
        bench_method_free(&m);
    }
    return status;
}

static bool files(CommandFiles *out) {
    bool fits = true;
    for (int i = 0; i < bench.args.generate.n_drafts && fits; i++) {
        BenchMethod m;
        fits = !bench_method_init(&m, bench.args.generate.drafts[i], 1, NULL) &&
               generate_add_files(out, m.drafts, m.n_drafts);
        bench_method_free(&m);
    }
    return fits && (!bench.args.chain || generate_add_files(out, &bench.args.chain, 1));
}

/* ---- measuring ------------------------------------------------------------------------------------- */

static void begin_bar(Bench *b, const char *what, int64_t n_total) {
    b->bar_what = what;
    b->n_done = 0;
    progress_begin(&b->bar, stderr, b->bar_text, n_total);
}

static void count_one(void *user) {
    Bench *b = user;
    snprintf(b->bar_text, sizeof b->bar_text, "%s %lld of %lld", b->bar_what, (long long)++b->n_done,
             (long long)b->bar.n_total);
    progress_update(&b->bar, b->n_done);
}

/* Takes the first question of each category; `out` borrows them. */
static int tuning_questions(const BenchQuestions *q, BenchQuestion *out) {
    bool taken[BENCH_MAX_CATEGORIES] = {false};
    int n = 0;
    for (int i = 0; i < q->n; i++)
        if (!taken[q->items[i].i_category]) {
            out[n++] = q->items[i];
            taken[q->items[i].i_category] = true;
        }
    return n;
}

/* Measures tokens_per_s of each length over these questions, and the best length. */
static int measure_chains(Bench *b, const BenchMethod *chains, fr_error *err) {
    BenchQuestion questions[BENCH_MAX_CATEGORIES];
    BenchRecord records[BENCH_MAX_CATEGORIES * N_LENGTHS] = {0};
    BenchTuning *t = &b->tuning;
    int n = tuning_questions(&b->questions, questions), n_done;
    *t = (BenchTuning){.chain = b->args.chain, .n_questions = n, .n_lengths = N_LENGTHS, .lengths = chain_lengths};
    begin_bar(b, "tuning the chain: answer", (int64_t)n * N_LENGTHS);
    int status = bench_round(&b->rig, chains, N_LENGTHS, questions, n, 0, records, &n_done, count_one, b, err);
    progress_end(&b->bar);
    for (int i = 0; i < N_LENGTHS; i++) {
        double tokens = 0, seconds = 0;
        for (int q = 0; q < n; q++) {
            tokens += (double)records[q * N_LENGTHS + i].stats.counts.n_generated;
            seconds += records[q * N_LENGTHS + i].stats.counts.decode_s;
        }
        t->tokens_per_s[i] = seconds > 0 ? tokens / seconds : 0;
        if (t->tokens_per_s[i] > t->tokens_per_s[t->best]) t->best = i;
    }
    return status;
}

static int tune_chain(Bench *b, BenchMethod *out, fr_error *err) {
    BenchMethod chains[N_LENGTHS] = {0};
    int status = FR_OK;
    for (int i = 0; i < N_LENGTHS && !status; i++)
        status = bench_method_init_chain(&chains[i], b->args.chain, chain_lengths[i], err);
    if (!status) status = measure_chains(b, chains, err);
    if (!status) {
        *out = chains[b->tuning.best];
        chains[b->tuning.best] = (BenchMethod){0};
    }
    for (int i = 0; i < N_LENGTHS; i++) bench_method_free(&chains[i]);
    return status;
}

static int measure(Bench *b, BenchResults *r, fr_error *err) {
    size_t each = (size_t)r->n_questions * (size_t)r->n_methods;
    int status = FR_OK, n_done = 0;
    begin_bar(b, "measuring: answer", (int64_t)each * b->args.n_runs);
    for (int run = 0; run < b->args.n_runs && !status; run++) {
        status = bench_round(&b->rig, b->methods, b->n_methods, b->questions.items, r->n_questions, run,
                             r->records + (size_t)run * each, &n_done, count_one, b, err);
        if (!status) r->n_runs = run + 1;
    }
    progress_end(&b->bar);
    if (status == FR_ERR_CANCELLED && r->n_runs == 0 && n_done > 0) {
        r->n_questions = n_done; /* stopped in the first run: the questions that all methods answered count */
        r->n_runs = 1;
    }
    return status == FR_ERR_CANCELLED && r->n_runs > 0 ? FR_OK : status;
}

/* Measures one run of all methods at one batch size. */
static int measure_batch(Bench *b, BenchResults *r, int i_run, fr_error *err) {
    int n = r->n_questions, status = FR_OK;
    BenchRecord *records = calloc((size_t)n, sizeof *records);
    if (!records) return error_memory(err, "records", (size_t)n * sizeof *records);
    for (int k = 0; k < r->n_methods && !status; k++) {
        int m = (i_run + k) % r->n_methods;
        fr_engine *engine = NULL;
        status = bench_engine_open(&engine, &b->rig, &b->methods[m], r->n_parallel, err);
        if (!status) status = bench_warm_up(&b->rig, engine, &b->methods[m], r->n_parallel, err);
        if (!status)
            status = bench_pass(&b->rig, engine, &b->methods[m], b->questions.items, n, r->n_parallel, records,
                                &r->wall_s[i_run * r->n_methods + m], err);
        fr_engine_close(engine);
        for (int q = 0; q < n && !status; q++) *bench_record(r, i_run, q, m) = records[q];
        count_one(b);
    }
    free(records);
    if (!status) r->n_runs = i_run + 1;
    return status;
}

static int measure_parallel(Bench *b, fr_error *err) {
    int status = FR_OK;
    begin_bar(b, "measuring: round", (int64_t)b->args.n_runs * b->n_results * b->n_methods);
    for (int run = 0; run < b->args.n_runs; run++)
        for (int i = 0; i < b->n_results && !status; i++) status = measure_batch(b, &b->results[i], run, err);
    progress_end(&b->bar);
    return status == FR_ERR_CANCELLED && b->results[0].n_runs > 0 ? FR_OK : status;
}

/* ---- setting up ------------------------------------------------------------------------------------ */

/* Returns 1 if the first prompt and its answer fit into the context, else 0. */
static int question_fits(void *user, const BenchQuestion *question, fr_error *err) {
    Bench *b = user;
    const GenerateArgs *a = &b->args.generate;
    fr_model_info info = {.struct_size = sizeof info};
    int32_t *tokens;
    int64_t n;
    fr_model_get_info(b->model, &info);
    int n_ctx = a->engine.n_ctx ? a->engine.n_ctx : info.n_ctx_train < 4096 ? info.n_ctx_train : 4096;
    int status = bench_prompt(&b->rig, question, 0, NULL, &tokens, &n, err);
    if (status) return status;
    fr_free(tokens);
    return n > 0 && n + (a->n_tokens ? a->n_tokens : 1) <= n_ctx;
}

static int choose_questions(Bench *b, fr_error *err) {
    int n = bench_questions_choose(&b->questions, b->args.limit, question_fits, b, err);
    if (n < 0) return n;
    b->n_left_out = n;
    if (b->questions.n == 0)
        return error_set(err, FR_ERR_CONTEXT,
                         "%s: no question fits the context with an answer of %lld tokens; reduce -n or "
                         "increase -c",
                         b->args.questions, (long long)b->args.generate.n_tokens);
    return FR_OK;
}

/* Generates the beginning of the first answer, because a ratio rule may refuse the trees of a drafter. */
static int try_rule(Bench *b, fr_engine *engine, const BenchMethod *m, fr_error *err) {
    Generator g = {.model = b->model, .engine = engine};
    GenerateArgs few = b->args.generate;
    fr_request *r = NULL;
    if (!generate_rule(&few)->is_ratio) return FR_OK;
    if (few.n_tokens == 0 || few.n_tokens > GENERATE_TRIAL_TOKENS) few.n_tokens = GENERATE_TRIAL_TOKENS;
    few.tree_budget = m->tree_budget;
    int status = bench_prompt(&b->rig, &b->questions.items[0], 0, NULL, &g.prompt, &g.n_prompt, err);
    if (!status) status = generator_run(&g, &few, m->drafts, m->n_drafts, NULL, NULL, &r, err);
    fr_request_close(r);
    fr_free(g.prompt);
    return status;
}

/* Returns how many bytes of memory the program has taken and not freed; -1: the C library does not report it. */
static int64_t heap_bytes(void) {
#if defined(HAS_MALLINFO2)
    struct mallinfo2 m = mallinfo2();
    int64_t n = (int64_t)(m.uordblks + m.hblkhd);
    return n > 0 ? n : -1; /* the allocator of a sanitizer does not count */
#else
    return -1;
#endif
}

/* Opens a method's engine, so that a wrong method is refused before the tuning, and measures its memory. */
static int try_method(Bench *b, BenchMethod *m, fr_error *err) {
    fr_engine *engine = NULL;
    int64_t before = heap_bytes();
    int status = bench_engine_open(&engine, &b->rig, m, 1, err);
    m->memory_bytes = before < 0 ? -1 : heap_bytes() - before;
    if (!status && m->n_drafts) {
        generate_note_drafts(engine, m->drafts, m->n_drafts);
        status = try_rule(b, engine, m, err);
    }
    fr_engine_close(engine);
    return status;
}

/* Sets up plain decoding and every --draft. The first engine takes memory that the model keeps, so that the one of
 * plain decoding is opened twice. */
static int make_methods(Bench *b, fr_error *err) {
    const GenerateArgs *a = &b->args.generate;
    BenchMethod *plain = &b->methods[b->n_methods++];
    int status = bench_method_init_plain(plain, err);
    for (int i = 0; i < 2 && !status; i++) status = try_method(b, plain, err);
    for (int i = 0; i < a->n_drafts && !status; i++) {
        BenchMethod *m = &b->methods[b->n_methods++];
        status = bench_method_init(m, a->drafts[i], a->tree_budget, err);
        if (!status) status = try_method(b, m, err);
    }
    return status;
}

static int make_result(Bench *b, BenchResults *r, int n_parallel, fr_error *err) {
    size_t each = (size_t)b->questions.n * (size_t)b->n_methods;
    const VerifyRule *rule = generate_rule(&b->args.generate);
    *r = (BenchResults){.questions = &b->questions,
                        .methods = b->methods,
                        .n_methods = b->n_methods,
                        .n_questions = b->questions.n,
                        .n_parallel = n_parallel,
                        .is_lossy = rule->is_lossy,
                        .texts_must_agree = !rule->is_lossy &&
                                            (!rule->is_ratio || b->args.generate.sampling.temperature <= 0)};
    r->records = calloc(each * (size_t)b->args.n_runs, sizeof *r->records);
    if (!r->records) return error_memory(err, "records", each * sizeof *r->records);
    if (b->args.parallel && !(r->wall_s = calloc((size_t)(b->n_methods * b->args.n_runs), sizeof *r->wall_s)))
        return error_memory(err, "records", sizeof *r->wall_s);
    r->reference = b->results[0].records;
    return FR_OK;
}

static int make_results(Bench *b, fr_error *err) {
    int32_t one = 1, *batches = NULL;
    int64_t n = 1;
    int status = b->args.parallel ? cli_parse_ints("--parallel", b->args.parallel, 1, MAX_BATCH, &batches, &n, err)
                                  : FR_OK;
    if (!status && n > BENCH_MAX_BATCHES)
        status = error_set(err, FR_ERR_ARGUMENT, "--parallel: at most %d batch sizes", BENCH_MAX_BATCHES);
    for (int i = 0; i < n && !status; i++) {
        b->n_results = i + 1;
        status = make_result(b, &b->results[i], batches ? batches[i] : one, err);
    }
    free(batches);
    return status;
}

/* Questions that do not fit the context are left out. */
static int read_warm_up(Bench *b, fr_error *err) {
    int status = bench_questions_read(&b->rig.warm_up, b->args.warm_up, err);
    if (!status) status = bench_questions_choose(&b->rig.warm_up, 0, question_fits, b, err);
    return status < 0 ? status : FR_OK;
}

static int hash_model(Bench *b, fr_error *err) {
    Gguf *g;
    int status = gguf_open(&g, b->args.generate.model, err);
    if (status) return status;
    snprintf(b->model_hash, sizeof b->model_hash, "%016llx", (unsigned long long)gguf_weights_mark(g));
    gguf_close(g);
    return FR_OK;
}

/* A word that a shell would divide or change is put between quotation marks. */
static bool keep_command(Buf *out, int argc, char *const *argv) {
    out->max_bytes = 64 << 10;
    bool fits = buf_puts(out, "forerun");
    for (int i = 0; i < argc && fits; i++) {
        bool is_plain = argv[i][0] && !argv[i][strspn(argv[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                               "0123456789-_=+,.:/@%")];
        fits = buf_puts(out, is_plain ? " " : " '") && buf_puts(out, argv[i]) && (is_plain || buf_puts(out, "'"));
    }
    return fits;
}

static int prepare(Bench *b, fr_error *err) {
    BenchArgs *a = &b->args;
    int status = a->plot ? plot_check(err) : FR_OK;
    if (!status) status = bench_questions_read(&b->questions, a->questions, err);
    if (!status) status = generate_open_model(&b->model, &a->generate, err);
    if (status) return status;
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(b->model, &info);
    b->rig = (BenchRig){.args = &a->generate,
                        .model = b->model,
                        .stop = &stop_requested,
                        .chat = !a->raw && (a->generate.chat_template || strcmp(info.chat_family, "none") != 0)};
    if (!b->rig.chat && a->thinking != BENCH_THINKING_DEFAULT)
        return error_set(err, FR_ERR_ARGUMENT, "--thinking needs a chat format, but the turns are used as raw text");
    if (!b->rig.chat && a->generate.system)
        return error_set(err, FR_ERR_ARGUMENT, "--system needs a chat format, but the turns are used as raw text");
    if (a->warm_up) status = read_warm_up(b, err);
    if (!status) status = bench_questions_think(&b->questions, a->thinking, err);
    if (!status) status = choose_questions(b, err);
    if (!status) status = hash_model(b, err);
    if (!status) status = make_methods(b, err);
    return status;
}

static int report(Bench *b, fr_error *err) {
    BenchReport r = {.rig = &b->rig,
                     .command = b->command.data,
                     .path = b->args.questions,
                     .n_runs_wanted = b->args.n_runs,
                     .n_left_out = b->n_left_out,
                     .tuning = b->tuning,
                     .results = b->results,
                     .n_results = b->n_results,
                     .is_parallel = b->args.parallel != NULL};
    memcpy(r.model_hash, b->model_hash, sizeof r.model_hash);
    bench_print(&r);
    int status = b->args.json ? bench_write_json(&r, b->args.json, err) : FR_OK;
    bool has_figure = b->args.parallel || b->results[0].n_runs > 1;
    if (!status && b->args.plot && has_figure) status = bench_write_plot(&r, b->args.plot, err);
    if (!status && !bench_texts_agree(&r))
        status = error_set(err, FR_ERR_INTERNAL, "a text differs from plain decoding: this is a bug in forerun");
    if (!status && stop_requested) status = error_set(err, FR_ERR_CANCELLED, "stopped before everything was measured");
    return status;
}

static void bench_close(Bench *b) {
    for (int i = 0; i < b->n_results; i++) {
        free(b->results[i].records);
        free(b->results[i].wall_s);
    }
    for (int i = 0; i < b->n_methods; i++) bench_method_free(&b->methods[i]);
    bench_questions_free(&b->questions);
    bench_questions_free(&b->rig.warm_up);
    buf_free(&b->command);
    fr_model_close(b->model);
}

static int run(int argc, char **argv) {
    Bench *b = &bench;
    fr_error err;
    int status = keep_command(&b->command, argc, argv) ? prepare(b, &err) : error_memory(&err, "the command line", 0);
    signals_request_stop(SIGINT, &stop_requested);
    if (!status) speed_warn_if_busy("bench");
    if (!status && b->args.chain) status = tune_chain(b, &b->methods[b->n_methods++], &err);
    if (!status && b->args.chain) status = try_method(b, &b->methods[b->n_methods - 1], &err);
    if (!status) status = make_results(b, &err);
    if (!status) status = b->args.parallel ? measure_parallel(b, &err) : measure(b, &b->results[0], &err);
    if (!status) status = report(b, &err);
    bench_close(b);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_bench = {
    .name = "bench",
    .summary = "answer many questions plainly and with each drafter, and compare the speed",
    .about = "Answer many questions plainly, with each --draft by itself, and with a chain of tuned length. Report "
             "speed, acceptance and equality of the texts by category. The exit status is 1 if a text differs from "
             "that of plain decoding.",
    .sets = (const OptionSet[]){{option_table, &bench.args}, {generate_options, &bench.args.generate}, {NULL, NULL}},
    .list = generate_list_methods,
    .notes =
        "QUESTIONS.jsonl holds one JSON object per line: either {\"question_id\": 81, \"category\": \"writing\", "
        "\"turns\": [\"...\", \"...\"]} as in Spec-Bench and SPEED-Bench, where the model's answer to one turn becomes "
        "part of the next prompt, or {\"prompt\": \"...\", \"category\": \"...\"}, or a row of GSM8K, MATH-500, "
        "HumanEval, MBPP or MT-bench as published. For each question the methods run in turn, "
        "starting with a different one each time. Questions that do not fit the context together with their "
        "answer are left out and counted. Ctrl-C ends the measurement early; the completed runs and questions "
        "are reported.",
    .examples = "  forerun bench -m model.gguf spec_bench.jsonl --limit 10 --draft ngram-trie --draft pld+suffix "
                "--plot speed.svg\n"
                "  forerun bench -m model.gguf spec_bench.jsonl --limit 4 --draft ngram-trie --parallel 1,2,4,8,16 "
                "--json batch.json\n",
    .defaults = set_defaults,
    .check = check,
    .files = files,
    .run = run,
};
