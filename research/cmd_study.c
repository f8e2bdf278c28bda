/* cmd_study.c - `forerun study`: the experiments of Recursive Speculative Decoding, each run by one command. */
#include "cli/command.h"
#include "cli/json_memory.h"
#include "cli/plot.h"
#include "research/study.h"

#include "base/threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct StudyCommandArgs {
    const char *experiment;
    StudyArgs study;
    double target;
} StudyCommandArgs;

static StudyCommandArgs args;

static const Option option_table[] = {
    {.key = "EXPERIMENT",
     OPT_CHOICE(StudyCommandArgs, experiment, "toy", "length", "budget"),
     .is_argument = true,
     .required = "experiment (toy, length or budget)",
     .section = "Experiment",
     .help = "toy, length or budget"},
    {.key = "model",
     .letter = 'm',
     OPT_MODEL(StudyCommandArgs, study.model),
     .default_value = "models/target.gguf",
     .help = "length, budget: target model"},
    {.key = "draft-model",
     OPT_MODEL(StudyCommandArgs, study.draft_model),
     .default_value = "models/draft.gguf",
     .help = "length, budget: draft model"},
    {.key = "prompts",
     .letter = 'f',
     OPT_FILE(StudyCommandArgs, study.prompts),
     .default_value = "bench/prompts/study.jsonl",
     .help = "JSON lines of {\"prompt\": TEXT}"},
    {.key = "tokens",
     .letter = 'n',
     OPT_INT(StudyCommandArgs, study.n_tokens, 1, 1 << 20),
     .default_value = "128",
     .help = "generate at most N tokens per answer"},
    {.key = "runs",
     OPT_INT(StudyCommandArgs, study.n_runs, 1, STUDY_MAX_RUNS),
     .default_value = "5",
     .help = "use the seeds 1 to N, each for all prompts"},
    {.key = "temp",
     OPT_REAL(StudyCommandArgs, study.temperature, 0, 1),
     .metavar = "T",
     .default_value = "0",
     .default_help = "all",
     .help = "length, budget: only the temperature 0.3, 0.7 or 1"},
    CLI_ROW_THREADS(StudyCommandArgs, study.n_threads),
    {.key = "target",
     OPT_REAL(StudyCommandArgs, target, 0, 1),
     .metavar = "Q",
     .default_value = "0.3",
     .help = "toy: the target's probability of a one"},
    {.key = "json", OPT_OUTPUT(StudyCommandArgs, study.json), .section = "Output", .help = "write every run to FILE"},
    {.key = "plot",
     OPT_TEXT(StudyCommandArgs, study.plot),
     .metavar = "PREFIX",
     .help = "write plots to PREFIX-....svg; needs gnuplot"},
    {.key = NULL},
};

static const struct { double temperature, top_p; } settings[] = {{0.3, 1}, {0.7, 1}, {1, 0.95}};
enum { N_SETTINGS = sizeof settings / sizeof *settings };

/* Returns whether the setting is to be run. */
static bool is_chosen(int i) {
    double t = args.study.temperature;
    return !(t > 0) || fabs(t - settings[i].temperature) < 1e-9;
}

static bool is_toy(void) { return strcmp(args.experiment, "toy") == 0; }

static int check(fr_error *err) {
    if (args.study.plot && strlen(args.study.plot) > STUDY_MAX_PREFIX)
        return error_set(err, FR_ERR_ARGUMENT, "--plot: the path is too long");
    bool any = false;
    for (int i = 0; i < N_SETTINGS; i++) any = any || is_chosen(i);
    if (!any) return error_set(err, FR_ERR_ARGUMENT, "--temp must be 0.3, 0.7 or 1");
    if (args.target > 0 && args.target < 1) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "--target must be greater than 0 and less than 1");
}

static bool files(CommandFiles *out) {
    char path[STUDY_MAX_PATH];
    bool fits = true;
    if (!args.study.plot) return true;
    snprintf(path, sizeof path, "%.*s.svg", STUDY_MAX_PREFIX, args.study.plot);
    if (is_toy()) return command_files_add(out, "--plot", path, true);
    for (int i = 0; i < N_SETTINGS; i++)
        for (StudyMetric m = 0; m < STUDY_N_METRICS && fits && is_chosen(i); m++) {
            study_plot_path(args.study.plot, settings[i].temperature, m, path);
            fits = command_files_add(out, "--plot", path, true);
        }
    return fits;
}

static int run_trees(const StudyArgs *a, const StudyPlan *plan, fr_error *err) {
    StudyResult *r = mem_calloc(1, sizeof *r);
    json_t *all = json_array();
    int status = !r ? error_memory(err, "a study", sizeof *r) : a->plot ? plot_check(err) : FR_OK;
    for (int i = 0; i < N_SETTINGS && !status; i++) {
        if (!is_chosen(i)) continue;
        status = study_run(a, plan, settings[i].temperature, settings[i].top_p, r, err);
        if (status) break;
        study_print(r);
        json_array_append_new(all, study_json(r));
        if (a->plot) status = study_plot(r, a->plot, err);
    }
    if (!status && a->json) status = json_file_write(all, a->json, JSON_INDENT(1) | JSON_REAL_PRECISION(9), err);
    json_decref(all);
    mem_free(r);
    return status;
}

static int run(int argc, char **argv) {
    (void)argc, (void)argv;
    fr_error err;
    int status;
    if (is_toy()) status = study_toy(args.target, args.study.json, args.study.plot, &err);
    else
        status = run_trees(&args.study, strcmp(args.experiment, "length") == 0 ? &study_by_length : &study_by_budget,
                           &err);
    return status ? cli_fail(&err) : CLI_OK;
}

const Command command_study = {
    .name = "study",
    .summary = "the experiments of Recursive Speculative Decoding, with plots",
    .about = "Run the experiments of Recursive Speculative Decoding (Jeon et al. 2024): SD, SpecTr, RSD-C and RSD-S, "
             "each under its own rule of verification, "
             "and RSD-S also under the rule transport.",
    .sets = (const OptionSet[]){{option_table, &args}, {NULL, NULL}},
    .notes = "toy: Fig. 1, how often one of two draws from one Bernoulli distribution is accepted by another.\n"
             "length: Fig. 4, draft lengths 2 to 5, the trees of appendix D.3.1.\n"
             "budget: Fig. 5, 6 to 30 nodes per step, the trees of appendix D.3.2.\n"
             "length and budget run at the temperatures 0.3 and 0.7, and at 1 with top-p 0.95, and "
             "print block efficiency (tokens per "
             "step), MBSU (efficiency / (length * size of draft / size of target + 1)) and token rate.",
    .examples = "  forerun study toy --plot research/plots/rsd-toy\n"
                "  forerun study length --plot research/plots/rsd-length\n",
    .check = check,
    .files = files,
    .run = run,
};
