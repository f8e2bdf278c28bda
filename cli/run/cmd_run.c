/* cmd_run.c - `forerun run`: generates text, and reports or records how. */
#include "cli/json_memory.h"
#include "cli/run/generate.h"
#include "cli/stats_json.h"

#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef struct RunArgs {
    GenerateArgs generate;
    const char *stats_json, *record;
    int stats, logprobs;
    int32_t top_logprobs;
} RunArgs;

static RunArgs args;

static const Option option_table[] = {
    {.key = "stats-json",
     OPT_OUTPUT(RunArgs, stats_json),
     .section = "Output",
     .help = "write tokens, text, acceptance and times to FILE, as JSON"},
    {.key = "logprobs", OPT_FLAG(RunArgs, logprobs), .help = "add the log-probability of each token to --stats-json"},
    {.key = "top-logprobs",
     OPT_INT(RunArgs, top_logprobs, 0, FR_MAX_TOP_LOGPROBS),
     .default_value = "0",
     .help = "add the N most probable tokens at each position to --stats-json, with their log-probabilities"},
    {.key = "stats", OPT_FLAG(RunArgs, stats), .help = "print a summary on standard error"},
    {.key = "record",
     OPT_OUTPUT(RunArgs, record),
     .metavar = "FILE.jsonl",
     .help =
         "append the tokens of the prompt and of the answer to FILE, for 'forerun train --from-traffic'; your texts "
         "stay there until you delete the file"},
    {.key = NULL},
};

static void set_defaults(void) { generate_defaults_interactive(&args.generate); }

static int check(fr_error *err) {
    generate_complete_interactive(&args.generate);
    if (args.logprobs && !args.stats_json)
        return error_set(err, FR_ERR_ARGUMENT, "--logprobs are written to the statistics: pass --stats-json=FILE, too");
    if (args.top_logprobs && !args.stats_json)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--top-logprobs are written to the statistics: pass --stats-json=FILE, too");
    int status = generate_check_union(args.generate.drafts, args.generate.n_drafts, err);
    return status ? status : generate_check_prompt(&args.generate, err);
}

static bool files(CommandFiles *out) { return generate_add_files(out, args.generate.drafts, args.generate.n_drafts); }

/* What the callback for each token needs. */
typedef struct Output {
    AnswerOutput answer;
    json_t *logprobs; /* NULL: not wanted */
    json_t *top_logprobs;
} Output;

/* Makes [{"token": 12, "logprob": -0.5}, ...]. */
static json_t *top_json(const fr_token_event *event) {
    json_t *array = json_array();
    for (int i = 0; i < event->n_top_logprobs; i++)
        json_array_append_new(array, json_pack("{s:i, s:o}", "token", (int)event->top_logprobs[i].token, "logprob",
                                               json_real_or_null(event->top_logprobs[i].logprob)));
    return array;
}

static int print_token(void *user, const fr_token_event *event) {
    Output *out = user;
    if (out->logprobs) json_array_append_new(out->logprobs, json_real_or_null(event->logprob));
    if (out->top_logprobs) json_array_append_new(out->top_logprobs, top_json(event));
    return answer_output_write(&out->answer, event);
}

/* Prints where the drafter's model that was opened last runs, and what was measured for that. */
static void print_draft_times(const fr_engine_stats *e) {
    double whole_ms = 1e3 * e->draft_whole_s, divided_ms = 1e3 * e->draft_divided_s;
    if (e->draft_divided_is_measured)
        fprintf(stderr, "the drafter's model is %s: a forward takes %.2f ms whole and %.2f ms divided\n",
                divided_ms < whole_ms ? "divided among the ranks" : "whole in rank 0", whole_ms, divided_ms);
    else if (divided_ms > 0)
        fprintf(stderr,
                "the drafter's model is whole in rank 0: a forward takes %.2f ms; its exchanges and a rank's share of "
                "the work would take %.2f ms, so the divided one was not measured\n",
                whole_ms, divided_ms);
    else
        fprintf(stderr,
                "the drafter's model is whole in rank 0, because a rank could not open its part: a forward takes %.2f "
                "ms\n",
                whole_ms);
}

static void print_ranks(const fr_engine_stats *e) {
    fprintf(stderr, "%d ranks: %lld exchanges, %.1f MB, %.3f s with waiting; an exchange takes %.1f us and %.2f GB/s\n",
            e->n_ranks, (long long)e->n_exchanges, (double)e->exchanged_bytes * 1e-6, e->exchange_s,
            e->exchange_latency_s * 1e6, e->exchange_bytes_per_s * 1e-9);
    if (e->draft_whole_s > 0) print_draft_times(e);
}

static void print_summary(const Generator *g, const fr_request *r) {
    fr_stats s = {.struct_size = sizeof s};
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(g->model, &info);
    fr_request_get_stats(r, &s);
    fprintf(stderr, "seed %llu; ", (unsigned long long)args.generate.sampling.seed);
    fprintf(
        stderr, "%lld token%s in %lld step%s, %.2f per step (%lld of %lld drafted tokens accepted); finished by %s\n",
        (long long)s.n_generated, cli_plural(s.n_generated), (long long)s.n_steps, cli_plural(s.n_steps),
        s.acceptance_length, (long long)s.accepted, (long long)s.drafted, fr_finish_name(fr_request_finish_reason(r)));
    fr_draft_stats drafts = {.struct_size = sizeof drafts};
    fr_request_get_draft_stats(r, &drafts);
    if (drafts.shared_vocab > 0)
        fprintf(stderr, "the draft model has another vocabulary, with %.1f %% of the target's tokens\n",
                100 * drafts.shared_vocab);
    fprintf(
        stderr,
        "prefill %lld tokens (%lld shared) in %.3f s; decoding %.3f s = %.1f tokens/s (drafts %.1f %%, target %.1f %%, "
        "verification %.1f %%); backend %s, kernels %s, activations %s; logits %016llx\n",
        (long long)s.n_prompt, (long long)s.n_prompt_shared, s.prefill_s, s.decode_s, s.tokens_per_s,
        100 * s.draft_s / s.decode_s, 100 * s.forward_s / s.decode_s, 100 * s.verify_s / s.decode_s, info.backend,
        info.kernels, info.activations, (unsigned long long)s.logits_hash);
    fr_engine_stats e = {.struct_size = sizeof e};
    fr_engine_get_stats(g->engine, &e);
    if (e.n_ranks) print_ranks(&e);
    if (s.is_lossy)
        fputs("LOSSY: the verification rule changed the output distribution, so it is no longer the target's\n",
              stderr);
    if (s.n_preempted)
        fprintf(stderr, "the KV cache ran out of pages %lld times; %lld tokens were computed again\n",
                (long long)s.n_preempted, (long long)s.n_recomputed);
}

/* Makes a list of the texts of reasoning. */
static json_t *reasoning_json(const AnswerReader *reader) {
    json_t *texts = json_array();
    for (int i = 0; i < reader->n_items; i++) {
        const AnswerItem *item = &reader->items[i];
        if (item->kind == ANSWER_REASONING) json_array_append_new(texts, json_stringn(item->text.data, item->text.n));
    }
    return texts;
}

static json_t *request_json(const Generator *g, const fr_request *r, const AnswerOutput *answer,
                            const GenerateArgs *a) {
    RequestStats s;
    fr_model_info info = {.struct_size = sizeof info};
    int64_t n;
    size_t n_bytes;
    char hash[20];
    stats_read(&s, r);
    fr_model_get_info(g->model, &info);
    const int32_t *tokens = fr_request_tokens(r, &n);
    const char *text = a->chat ? answer_output_text(answer, r, &n_bytes) : fr_request_text(r, &n_bytes);
    json_t *j = stats_json(&s), *ids = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(ids, json_integer(tokens[i]));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s.counts.logits_hash);
    json_object_update_new(
        j,
        json_pack("{s:o, s:o, s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:b, s:I}", "tokens", ids, "text",
                  json_stringn(text, n_bytes), "finish", fr_finish_name(fr_request_finish_reason(r)), "logits_hash",
                  hash, "backend", info.backend, "kernel_table", info.kernels, "activations", info.activations,
                  "threads", a->engine.n_threads ? a->engine.n_threads : threads_n_physical_cores(), "verify",
                  a->verify ? a->verify : "sampled", "lossy", s.counts.is_lossy, "seed", (json_int_t)a->sampling.seed));
    if (s.counts.plain_s > 0) json_object_set_new(j, "plain_s", json_real_or_null(s.counts.plain_s));
    fr_engine_stats e = {.struct_size = sizeof e};
    fr_engine_get_stats(g->engine, &e);
    if (e.n_ranks)
        json_object_set_new(j, "ranks",
                            json_pack("{s:i, s:I, s:I, s:f, s:f, s:f, s:i, s:f, s:f, s:b}", "n", e.n_ranks, "exchanges",
                                      (json_int_t)e.n_exchanges, "bytes", (json_int_t)e.exchanged_bytes, "seconds",
                                      e.exchange_s, "latency_s", e.exchange_latency_s, "bytes_per_s",
                                      e.exchange_bytes_per_s, "divided_drafts", e.n_divided_drafts, "draft_whole_s",
                                      e.draft_whole_s, "draft_divided_s", e.draft_divided_s,
                                      "draft_divided_is_measured", e.draft_divided_is_measured));
    if (answer->marks) json_object_set_new(j, "reasoning", reasoning_json(&answer->reader));
    if (s.draft_error[0]) json_object_set_new(j, "draft_error", json_string_or_null(s.draft_error));
    return j;
}

static int write_stats(const Generator *g, const fr_request *r, const Output *out, fr_error *err) {
    json_t *j = request_json(g, r, &out->answer, &args.generate);
    if (j && out->logprobs) json_object_set(j, "logprobs", out->logprobs);
    if (j && out->top_logprobs) json_object_set(j, "top_logprobs", out->top_logprobs);
    int status = json_file_write(j, args.stats_json, JSON_INDENT(2) | JSON_REAL_PRECISION(9), err);
    json_decref(j);
    return status;
}

/* ---- the record of generations ---------------------------------------------------------------------------- */

/* --record appends each generation to a file of JSON lines, as data to train a drafter on (`forerun train
 * --from-traffic`):
 *
 *     {"tokens": [...], "prompt_tokens": 12, "finish": "eos", "target": "16 hexadecimal digits", "model": ...,
 *      "temperature": 0.7, "seed": 3, "date": "2026-11-22T09:40:01Z"}
 *
 * The first prompt_tokens of the tokens are the prompt. "lossy": true marks tokens that do not follow the model's
 * distribution. Token ids are stored, not text: they are what the model read and generated, so training needs no chat
 * format, and nothing is lost if a text is not UTF-8 or contains the spelling of a special token.
 *
 * Several processes share a file without a lock. Each line is one write to a file opened with O_APPEND, which the
 * system does not mix with other writes. A kill or a full disk can cut a line short. No one can tell whether such a
 * piece is still being written, so it stays: the next writer ends it with a newline, and the reader skips it. */

typedef struct RecordFile {
    const char *path; /* borrowed */
    int fd;           /* -1: closed */
} RecordFile;

enum {
    MAX_FILE_BYTES = 256 << 20, /* about 45 million tokens: more than a night of training reads */
    MAX_LINE_BYTES = 16 << 20,  /* readers of JSON lines refuse longer ones */
};

static int cannot_write(const RecordFile *f, const char *why, fr_error *err) {
    return error_set(err, FR_ERR_IO, "%s: cannot be written: %s", f->path, why);
}

/* Refuses a file that does not begin like one of records: with a brace, or with the newline that ends a cut line. */
static int check_content(const RecordFile *f, fr_error *err) {
    struct stat st;
    char first = '{';
    if (fstat(f->fd, &st) != 0 || pread(f->fd, &first, 1, 0) < 0) return cannot_write(f, strerror(errno), err);
    if (!S_ISREG(st.st_mode)) return error_set(err, FR_ERR_IO, "%s: is not a regular file", f->path);
    if (first == '{' || first == '\n') return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: is not a file of records: choose another path for --record", f->path);
}

/* A closed file is fine. */
static void record_file_close(RecordFile *f) {
    if (f->fd >= 0) close(f->fd);
    f->fd = -1;
}

/* Opens the file for appending; only its owner can read a new one. Refuses a file that holds something else. After a
 * failure the file is closed. */
static int record_file_open(RecordFile *f, const char *path, fr_error *err) {
    *f = (RecordFile){path, open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600)};
    int status = f->fd < 0 ? cannot_write(f, strerror(errno), err) : check_content(f, err);
    if (status) record_file_close(f);
    return status;
}

/* Checks that there is room for the line; *last becomes the last byte of the file. */
static int check_room(const RecordFile *f, size_t n_line, char *last, fr_error *err) {
    struct stat st;
    if (fstat(f->fd, &st) != 0 || (st.st_size > 0 && pread(f->fd, last, 1, st.st_size - 1) < 0))
        return cannot_write(f, strerror(errno), err);
    if (st.st_size + (off_t)n_line <= MAX_FILE_BYTES) return FR_OK;
    return error_set(err, FR_ERR_IO, "%s: has reached %d MiB, and nothing more is recorded: move or delete it", f->path,
                     MAX_FILE_BYTES >> 20);
}

/* Appends text [n]. The byte before `text` must be free: a newline may go there. */
static int append_line(const RecordFile *f, char *text, size_t n, fr_error *err) {
    char last = '\n';
    int status = check_room(f, n, &last, err);
    if (status) return status;
    bool ends_piece = last != '\n';
    text[-1] = '\n';
    const char *begin = text - ends_piece;
    n += ends_piece;
    ssize_t n_written;
    do n_written = write(f->fd, begin, n);
    while (n_written < 0 && errno == EINTR);
    if (n_written == (ssize_t)n) return FR_OK;
    return cannot_write(f, n_written < 0 ? strerror(errno) : "the disk is full", err);
}

static int fingerprint_of(const fr_model *model, char out[17], fr_error *err) {
    uint64_t fingerprint;
    int status = fr_model_fingerprint(model, &fingerprint, err);
    snprintf(out, 17, "%016llx", (unsigned long long)fingerprint);
    return status;
}

static void append_ids(json_t *list, const int32_t *ids, int64_t n) {
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
}

/* Returns NULL if memory ran out. */
static json_t *make_record(const fr_model *model, const fr_request *request, const fr_request_options *o,
                           const char *fingerprint) {
    int64_t n;
    fr_stats stats = {.struct_size = sizeof stats};
    fr_model_info info = {.struct_size = sizeof info};
    char date[32] = "";
    time_t now = time(NULL);
    struct tm utc;
    const int32_t *tokens = fr_request_tokens(request, &n);
    fr_request_get_stats(request, &stats);
    fr_model_get_info(model, &info);
    json_t *ids = json_array();
    append_ids(ids, o->prompt, o->n_prompt);
    append_ids(ids, tokens, n);
    if (gmtime_r(&now, &utc)) strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_t *record = json_pack("{s:o, s:I, s:s, s:s, s:o, s:o, s:I, s:s}", "tokens", ids, "prompt_tokens",
                               (json_int_t)o->n_prompt, "finish", fr_finish_name(fr_request_finish_reason(request)),
                               "target", fingerprint, "model", json_string_or_null(info.name), "temperature",
                               json_real_or_null((double)o->sampling.temperature), "seed", (json_int_t)o->sampling.seed,
                               "date", date);
    if (record && stats.is_lossy && json_object_set_new(record, "lossy", json_true()) != 0) {
        json_decref(record);
        return NULL;
    }
    return record;
}

/* Appends a finished request; a cancelled one is left out. `options` are those that the request was opened with. */
static int record_file_append(const RecordFile *f, const fr_model *model, const fr_request *request,
                              const fr_request_options *options, fr_error *err) {
    fr_finish finish = fr_request_finish_reason(request);
    if (finish == FR_FINISH_CANCELLED || finish == FR_FINISH_ERROR) return FR_OK;
    char fingerprint[17];
    int status = fingerprint_of(model, fingerprint, err);
    if (status) return status;
    json_t *record = make_record(model, request, options, fingerprint);
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(6);
    size_t n = record ? json_dumpb(record, NULL, 0, flags) : 0;
    char *text = n > 0 ? malloc(n + 2) : NULL; /* room for a newline before and one after it */
    if (!text || json_dumpb(record, text + 1, n, flags) != n) status = error_memory(err, "a record", n);
    else if (n >= MAX_LINE_BYTES)
        status = error_set(err, FR_ERR_UNSUPPORTED, "%s: the generation is too long to be recorded", f->path);
    else {
        text[n + 1] = '\n';
        status = append_line(f, text + 1, n + 1, err);
    }
    free(text);
    json_decref(record);
    return status;
}

/* A failure is only a warning, because the text is already printed. */
static void record(const RecordFile *file, const Generator *g, const fr_request *r) {
    fr_request_options options = generate_request_options(&args.generate, NULL, 0);
    options.prompt = g->prompt;
    options.n_prompt = g->n_prompt;
    fr_error err;
    if (file->fd >= 0 && record_file_append(file, g->model, r, &options, &err))
        fprintf(stderr, "forerun: warning: the generation is not recorded: %s\n", err.message);
}

/* Prints what follows the text, on standard error. */
static void report(const Generator *g, const fr_request *r) {
    RequestStats s;
    fr_engine_options in_force = {.struct_size = sizeof in_force};
    stats_read(&s, r);
    fr_engine_get_options(g->engine, &in_force);
    if (s.draft_error[0])
        fprintf(stderr, "forerun: a drafter was switched off, which does not change %s: %s\n",
                generate_rule(&args.generate)->is_ratio ? "the distribution of the text" : "the text", s.draft_error);
    if (fr_request_finish_reason(r) == FR_FINISH_CONTEXT)
        fprintf(stderr, "forerun: the text ends because the context of %d tokens is full: -c N makes it longer\n",
                in_force.n_ctx);
    if (s.n_repeating && (args.stats || isatty(STDERR_FILENO)))
        fputs("forerun: the text repeats itself: --repeat-penalty 1.1, --temp 0.7 or a larger model may help\n",
              stderr);
    if (args.stats) print_summary(g, r);
    else if (isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) closing_line_print(&s.counts);
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    Generator g;
    RecordFile file = {.fd = -1};
    if (generator_open(&g, &args.generate, &err)) return cli_fail(&err);
    if (args.record && record_file_open(&file, args.record, &err)) {
        generator_close(&g);
        return cli_fail(&err);
    }
    bool use_color = generate_use_color(args.generate.color, 1);
    Output out = {.answer = args.generate.chat ? answer_output_open(g.model, g.prompt, g.n_prompt, use_color)
                                               : (AnswerOutput){.text = text_output_open(use_color, false)},
                  .logprobs = args.logprobs ? json_array() : NULL,
                  .top_logprobs = args.top_logprobs ? json_array() : NULL};
    args.generate.want_logprobs = args.logprobs;
    args.generate.n_top_logprobs = args.top_logprobs;
    fr_request *r;
    int status = generator_run(&g, &args.generate, args.generate.drafts, args.generate.n_drafts, print_token, &out, &r,
                               &err);
    if (!status) {
        const TextOutput *text = &out.answer.text;
        (void)answer_output_end(&out.answer);
        putchar('\n');
        fflush(stdout);
        if (text->has_failed) status = error_memory(&err, "the text", text->shown.n);
        if (!status) report(&g, r);
        if (!status && args.stats_json) status = write_stats(&g, r, &out, &err);
        if (!text->has_failed) record(&file, &g, r);
        fr_request_close(r);
    }
    json_decref(out.logprobs);
    json_decref(out.top_logprobs);
    answer_output_close(&out.answer);
    record_file_close(&file);
    generator_close(&g);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_run = {
    .name = "run",
    .summary = "generate text, with or without drafters",
    .about =
        "Generate text from a prompt. Drafters propose tokens, and the model verifies several of them at a time; "
        "the text is the same as without drafters (--draft none). A --verify rule other than sampled gives another "
        "text from the same distribution; with --lossy, the rule may change the distribution.",
    .sets = (const OptionSet[]){{generate_options, &args.generate},
                                {generate_prompt_options, &args.generate},
                                {option_table, &args},
                                {NULL, NULL}},
    .list = generate_list_methods,
    .examples = "  forerun run -m models/target.gguf -p \"Once upon a time\" --draft ngram-trie --color\n"
                "  forerun run -m chat.gguf --chat -p \"Why is the sky blue?\" --temp 0.7 --top-p 0.95 --seed 1\n"
                "  forerun run -m model.gguf -p \"Once\" --temp 0.7 --draft rsd-s:model=small.gguf --verify recursive\n"
                "  forerun run -m model.gguf -f prompt.txt -n 100 --draft ngram-trie --stats-json stats.json\n",
    .defaults = set_defaults,
    .check = check,
    .files = files,
    .run = run,
};
