/* cmd_run.c - `forerun run`: generate text. */
#include "cli/json_file.h"
#include "cli/json_values.h"
#include "cli/run/closing_line.h"
#include "cli/run/generate.h"
#include "cli/run/record_file.h"
#include "cli/run/text_output.h"
#include "cli/stats_json.h"

#include "base/threads.h"

#include <stdio.h>
#include <string.h>
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
         "append the tokens of the prompt and of the answer to FILE, for 'forerun train --from-traffic': your texts "
         "are kept there until you delete it"},
    {.key = NULL},
};

static void set_defaults(void) { generate_defaults_interactive(&args.generate); }

static int check(fr_error *err) {
    generate_complete_interactive(&args.generate);
    if (args.logprobs && !args.stats_json)
        return error_set(err, FR_ERR_ARGUMENT, "--logprobs are written to the statistics: pass --stats-json=FILE too");
    if (args.top_logprobs && !args.stats_json)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--top-logprobs are written to the statistics: pass --stats-json=FILE too");
    int status = generate_check_union(args.generate.drafts, args.generate.n_drafts, err);
    return status ? status : generate_check_prompt(&args.generate, err);
}

static bool files(CommandFiles *out) { return generate_add_files(out, args.generate.drafts, args.generate.n_drafts); }

/* What the callback of a token needs. */
typedef struct Output {
    TextOutput text;
    json_t *logprobs; /* NULL: not wanted */
    json_t *top_logprobs;
} Output;

/* [{"token": 12, "logprob": -0.5}, ...] */
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
    return text_output_write(&out->text, event);
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
    fprintf(
        stderr,
        "prefill %lld tokens (%lld shared) in %.3f s; decoding %.3f s = %.1f tokens/s (drafts %.1f %%, target %.1f %%, "
        "verification %.1f %%); backend %s, kernels %s, activations %s; logits %016llx\n",
        (long long)s.n_prompt, (long long)s.n_prompt_shared, s.prefill_s, s.decode_s, s.tokens_per_s,
        100 * s.draft_s / s.decode_s, 100 * s.forward_s / s.decode_s, 100 * s.verify_s / s.decode_s, info.backend,
        info.kernels, info.activations, (unsigned long long)s.logits_hash);
    if (s.is_lossy)
        fputs("LOSSY: the verification rule changed the output distribution, which is no longer the target's\n",
              stderr);
    if (s.n_preempted)
        fprintf(stderr, "the KV cache ran out of pages %lld times; %lld tokens were computed again\n",
                (long long)s.n_preempted, (long long)s.n_recomputed);
}

static json_t *request_json(const Generator *g, const fr_request *r, const GenerateArgs *a) {
    RequestStats s;
    fr_model_info info = {.struct_size = sizeof info};
    int64_t n;
    size_t n_bytes;
    char hash[20];
    stats_read(&s, r);
    fr_model_get_info(g->model, &info);
    const int32_t *tokens = fr_request_tokens(r, &n);
    const char *text = fr_request_text(r, &n_bytes);
    if (a->chat) text = text_output_trimmed(text, &n_bytes);
    json_t *j = stats_json(&s), *ids = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(ids, json_integer(tokens[i]));
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)s.counts.logits_hash);
    json_object_update_new(j, json_pack("{s:o, s:o, s:s, s:s, s:s, s:s, s:s, s:i, s:s, s:b, s:I}", "tokens", ids,
                                        "text", json_stringn(text, n_bytes), "finish",
                                        fr_finish_name(fr_request_finish_reason(r)), "logits_hash", hash, "backend",
                                        info.backend, "kernel_table", info.kernels, "activations", info.activations,
                                        "threads", a->engine.n_threads ? a->engine.n_threads : threads_n_cores(),
                                        "verify", a->verify ? a->verify : "sampled", "lossy", s.counts.is_lossy, "seed",
                                        (json_int_t)a->sampling.seed));
    if (s.draft_error[0]) json_object_set_new(j, "draft_error", json_string_or_null(s.draft_error));
    return j;
}

static int write_stats(const Generator *g, const fr_request *r, const Output *out, fr_error *err) {
    json_t *j = request_json(g, r, &args.generate);
    if (j && out->logprobs) json_object_set(j, "logprobs", out->logprobs);
    if (j && out->top_logprobs) json_object_set(j, "top_logprobs", out->top_logprobs);
    int status = json_file_write(j, args.stats_json, JSON_INDENT(2) | JSON_REAL_PRECISION(9), err);
    json_decref(j);
    return status;
}

/* The text is printed by now, so a failure is a warning. */
static void record(const RecordFile *file, const Generator *g, const fr_request *r) {
    fr_request_options options = generate_request_options(&args.generate, NULL, 0);
    options.prompt = g->prompt;
    options.n_prompt = g->n_prompt;
    fr_error err;
    if (file->fd >= 0 && record_file_append(file, g->model, r, &options, &err))
        fprintf(stderr, "forerun: warning: the generation is not recorded: %s\n", err.message);
}

/* What follows the text, on standard error. */
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
    if (args.stats) print_summary(g, r);
    else if (isatty(STDOUT_FILENO) && isatty(STDERR_FILENO)) closing_line_print(&s, 0);
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
    Output out = {.text = text_output_open(generate_use_color(args.generate.color, 1), args.generate.chat),
                  .logprobs = args.logprobs ? json_array() : NULL,
                  .top_logprobs = args.top_logprobs ? json_array() : NULL};
    args.generate.want_logprobs = args.logprobs;
    args.generate.n_top_logprobs = args.top_logprobs;
    fr_request *r;
    int status = generator_run(&g, &args.generate, args.generate.drafts, args.generate.n_drafts, print_token, &out, &r,
                               &err);
    if (!status) {
        putchar('\n');
        fflush(stdout);
        report(&g, r);
        if (args.stats_json) status = write_stats(&g, r, &out, &err);
        record(&file, &g, r);
        fr_request_close(r);
    }
    json_decref(out.logprobs);
    json_decref(out.top_logprobs);
    text_output_close(&out.text);
    record_file_close(&file);
    generator_close(&g);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_run = {
    .name = "run",
    .summary = "generate text, with drafters or without",
    .about = "Generate text from a prompt. Drafters propose tokens that the model verifies several at a time; the text "
             "is the same as without them (--draft none). Rules of --verify other than sampled give "
             "another text of the same "
             "distribution; with --lossy, a text of another distribution.",
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
