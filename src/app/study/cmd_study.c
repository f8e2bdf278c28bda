/* cmd_study.c - `forerun study`: the experiments of Recursive Speculative Decoding, each by one command. */
#include "app/study/study.h"

#include "base/threads.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_DRAFT_MODEL = 512, KEY_RUNS, KEY_JSON, KEY_PLOT, KEY_TARGET };

typedef struct Args {
    const char *experiment;
    StudyArgs study;
    double target;
} Args;

static const struct argp_option option_table[] = {
    {"model", 'm', "FILE", 0, "target model (length, budget; default models/target.gguf)", 1},
    {"draft-model", KEY_DRAFT_MODEL, "FILE", 0, "draft model (default models/draft.gguf)", 1},
    {"prompts", 'f', "FILE", 0, "JSONL of {\"prompt\": TEXT} (default bench/prompts/study.jsonl)", 1},
    {"tokens", 'n', "N", 0, "tokens of an answer at most (default 128)", 1},
    {"runs", KEY_RUNS, "N", 0, "seeds 1 to N over all prompts (default 5)", 1},
    {"threads", 't', "N", 0, "threads (default: all cores)", 1},
    {"target", KEY_TARGET, "Q", 0, "toy: the target's probability of a one (default 0.3)", 1},
    {"json", KEY_JSON, "FILE", 0, "write every run to FILE", 2},
    {"plot", KEY_PLOT, "PREFIX", 0, "write plots to PREFIX-....svg (needs gnuplot)", 2},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    Args *a = state->input;
    char *end;
    switch (key) {
    case 'm': a->study.model = arg; return 0;
    case 'f': a->study.prompts = arg; return 0;
    case 'n': a->study.n_tokens = cli_parse_int(state, arg, 1, 1 << 20, "--tokens"); return 0;
    case 't': a->study.n_threads = (int)cli_parse_int(state, arg, 1, THREADS_MAX, "--threads"); return 0;
    case KEY_DRAFT_MODEL: a->study.draft_model = arg; return 0;
    case KEY_RUNS: a->study.n_runs = (int)cli_parse_int(state, arg, 1, STUDY_MAX_RUNS, "--runs"); return 0;
    case KEY_JSON: a->study.json = arg; return 0;
    case KEY_PLOT: a->study.plot = arg; return 0;
    case KEY_TARGET:
        a->target = strtod(arg, &end);
        if (end == arg || *end || !(a->target > 0 && a->target < 1)) argp_error(state, "--target: '%s' is not between 0 and 1", arg);
        return 0;
    case ARGP_KEY_ARG:
        if (a->experiment) argp_error(state, "one experiment at a time; '%s' is the second", arg);
        a->experiment = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->experiment) argp_error(state, "which experiment? toy, length or budget");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp argp = {
    .options = option_table, .parser = parse, .args_doc = "toy|length|budget",
    .doc = "The experiments of Recursive Speculative Decoding (Jeon et al. 2024): SD, SpecTr, RSD-C and RSD-S, each under its own "
           "rule of acceptance.\v"
           "toy     Fig. 1: how often two draws from one Bernoulli distribution are accepted by another\n"
           "length  Fig. 4: draft lengths 2 to 5, the trees of appendix D.3.1\n"
           "budget  Fig. 5: 6 to 30 nodes a step, the trees of appendix D.3.2\n\n"
           "length and budget run at temperature 0.3 and at temperature 1 with top-p 0.95, as in the paper, and print block "
           "efficiency (tokens a step), MBSU (efficiency / (length * size of draft / size of target + 1)) and token rate.\n\n"
           "  forerun study toy --plot docs/plots/rsd-toy\n"
           "  forerun study length --plot docs/plots/rsd-length",
};

static int write_json(json_t *j, const char *path, fr_error *err) {
    int failed = json_dump_file(j, path, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    return failed ? error_set(err, FR_ERR_IO, "%s: cannot be written: %s", path, strerror(errno)) : FR_OK;
}

static int run_trees(const StudyArgs *a, const StudyPlan *plan, fr_error *err) {
    static const struct { double temperature, top_p; } settings[] = {{0.3, 1}, {1, 0.95}};
    static StudyResult r; /* large */
    json_t *all = json_array();
    int status = a->plot ? study_plot_check(a->plot, err) : FR_OK;
    if (!status && a->json) status = write_json(all, a->json, err); /* can it be? before minutes are spent */
    for (size_t i = 0; i < sizeof settings / sizeof *settings && !status; i++) {
        status = study_run(a, plan, settings[i].temperature, settings[i].top_p, &r, err);
        if (status) break;
        study_print(&r);
        json_array_append_new(all, study_json(&r));
        if (a->plot) status = study_plot(&r, a->plot, err);
    }
    if (!status && a->json) status = write_json(all, a->json, err);
    json_decref(all);
    return status;
}

static int run(const Args *a, fr_error *err) {
    if (strcmp(a->experiment, "toy") == 0) return study_toy(a->target, a->study.json, a->study.plot, err);
    if (strcmp(a->experiment, "length") == 0) return run_trees(&a->study, &study_by_length, err);
    if (strcmp(a->experiment, "budget") == 0) return run_trees(&a->study, &study_by_budget, err);
    return error_set(err, FR_ERR_ARGUMENT, "there is no experiment '%.40s'; there are toy, length and budget", a->experiment);
}

int cmd_study(int argc, char **argv) {
    Args a = {.target = 0.3, .study = {.model = "models/target.gguf", .draft_model = "models/draft.gguf",
                                       .prompts = "bench/prompts/study.jsonl", .n_runs = 5, .n_tokens = 128}};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a)) return CLI_USAGE;
    fr_error err;
    return run(&a, &err) ? cli_fail(&err) : CLI_OK;
}
