/* cmd_run.c - `forerun run`: generate text. */
#include "app/run/generate.h"

#include <stdio.h>
#include <string.h>

enum { KEY_STATS_JSON = 512, KEY_STATS, KEY_LOGPROBS };

typedef struct RunArgs {
    GenerateArgs generate;
    const char *stats_json;
    int stats, logprobs;
} RunArgs;

static const struct argp_option option_table[] = {
    {"stats-json", KEY_STATS_JSON, "FILE", 0, "write tokens, text, acceptance and times to FILE", 5},
    {"logprobs", KEY_LOGPROBS, NULL, 0, "put the log-probability of each token into the statistics", 5},
    {"stats", KEY_STATS, NULL, 0, "print a summary on standard error", 5},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    RunArgs *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = state->child_inputs[1] = &a->generate; return 0;
    case KEY_STATS_JSON: a->stats_json = arg; return 0;
    case KEY_STATS: a->stats = 1; return 0;
    case KEY_LOGPROBS: a->logprobs = 1; return 0;
    case ARGP_KEY_END:
        if (a->logprobs && !a->stats_json) argp_error(state, "--logprobs go into --stats-json FILE");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What the callback of a run writes to. */
typedef struct Output {
    int use_color;
    json_t *logprobs; /* NULL: not wanted */
} Output;

static int print_token(void *user, const fr_token_event *event) {
    const Output *out = user;
    if (out->logprobs) json_array_append_new(out->logprobs, json_real(event->logprob));
    if (out->use_color && event->source >= 0 && event->n_bytes)
        printf("%s%s" GENERATE_COLOR_OFF, generate_source_color(event->source), event->text);
    else
        fwrite(event->text, 1, event->n_bytes, stdout);
    /* A reader that is gone (a closed pipe) ends the generation. */
    return fflush(stdout) != 0;
}

static void print_summary(const Generator *g, const fr_request *r) {
    fr_stats s;
    fr_model_info info;
    fr_model_get_info(g->model, &info);
    fr_request_get_stats(r, &s);
    fprintf(stderr, "%lld tokens in %lld steps, %.2f a step (%lld of %lld drafted tokens accepted); ended by %s\n",
            (long long)s.n_generated, (long long)s.n_steps, s.acceptance_length, (long long)s.accepted,
            (long long)s.drafted, fr_finish_name(fr_request_finish(r)));
    fprintf(stderr, "prefill %lld tokens (%lld shared) in %.3f s; decoding %.3f s = %.1f tokens/s (drafts %.1f %%, target %.1f %%, "
            "verification %.1f %%); kernels %s, activations %s; logits %016llx\n", (long long)s.n_prompt, (long long)s.n_prompt_shared,
            s.prefill_s, s.decode_s, s.tokens_per_s,
            100 * s.draft_s / s.decode_s, 100 * s.forward_s / s.decode_s, 100 * s.verify_s / s.decode_s,
            info.kernels, info.activations, (unsigned long long)s.logits_hash);
    if (s.is_lossy) fputs("LOSSY: the rule of acceptance changed the output distribution; it is not the target's\n", stderr);
    if (s.n_preempted)
        fprintf(stderr, "KV pages ran out %lld times; %lld tokens were computed again\n", (long long)s.n_preempted,
                (long long)s.n_recomputed);
}

static int write_stats(const RunArgs *a, const Generator *g, const fr_request *r, json_t *logprobs, fr_error *err) {
    const char *path = a->stats_json;
    json_t *j = generate_stats_json(g, r, &a->generate);
    if (j && logprobs) json_object_set(j, "logprobs", logprobs);
    int failed = !j || json_dump_file(j, path, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    json_decref(j);
    return failed ? error_set(err, FR_ERR_IO, "%s: the statistics cannot be written there", path) : FR_OK;
}

int cmd_run(int argc, char **argv) {
    static const struct argp_child children[] = {{&generate_argp, 0, NULL, 0}, {&generate_prompt_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        .options = option_table, .parser = parse, .children = children,
        .doc = "Generate text from a prompt, with drafters running ahead. The text is the same with and without "
               "them (under --verify rules other than sampled: another text of the same distribution; with --lossy: of another distribution). Several --draft are united under "
               "one budget.\v"
               "Examples:\n"
               "  forerun run -m models/target.gguf -p \"Once upon a time\" --draft ngram-trie --color\n"
               "  forerun run -m chat.gguf --chat -p \"Why is the sky blue?\" --temp 0.7 --top-p 0.95 --seed 1\n"
               "  forerun run -m model.gguf -p \"Once\" --temp 0.7 --draft rsd-s:model=small.gguf --verify recursive\n"
               "  forerun run -m model.gguf -f prompt.txt -n 100 --draft ngram-trie --stats-json stats.json"};
    RunArgs a = {0};
    generate_defaults(&a.generate);
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    fr_error err;
    Generator g;
    if (generator_open(&g, &a.generate, &err)) return cli_fail(&err);
    Output out = {.use_color = generate_use_color(a.generate.color, 1), .logprobs = a.logprobs ? json_array() : NULL};
    a.generate.want_logprobs = a.logprobs;
    fr_request *r;
    int status = generator_run(&g, &a.generate, a.generate.drafts, a.generate.n_drafts, print_token, &out, &r, &err);
    if (!status) {
        putchar('\n');
        fr_stats s;
        fr_request_get_stats(r, &s);
        if (s.draft_error[0]) fprintf(stderr, "forerun: a drafter was switched off (the text is unaffected): %s\n", s.draft_error);
        if (a.stats) print_summary(&g, r);
        if (a.stats_json) status = write_stats(&a, &g, r, out.logprobs, &err);
        fr_request_close(r);
    }
    json_decref(out.logprobs);
    generator_close(&g);
    return status ? cli_fail(&err) : CLI_OK;
}
