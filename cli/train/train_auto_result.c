/* train_auto_result.c - the last step of `forerun train auto`: reads the measurement and tells the user whether the
 * drafter pays. */
#include "cli/train/train_auto.h"

#include "train/records.h"

#include <stdio.h>
#include <string.h>

/* A row of the measurement. */
typedef struct MethodRow {
    const char *method, *verdict; /* they belong to the JSON object */
    double speed_up, acceptance;
} MethodRow;

/* Finds the fastest row over all prompts: with the drafter, or `auto`. */
static MethodRow fastest(const json_t *measured, bool with_drafter) {
    MethodRow best = {.method = NULL};
    size_t i;
    json_t *row;
    json_array_foreach(json_object_get(measured, "summary"), i, row) {
        const char *name = json_string_value(json_object_get(row, "method"));
        const char *category = json_string_value(json_object_get(row, "category"));
        if (!name || !category || strcmp(category, "all") != 0 || strcmp(name, "plain") == 0) continue;
        if ((strcmp(name, "auto") != 0) != with_drafter) continue;
        MethodRow r = {.method = name,
                       .verdict = json_string_value(json_object_get(row, "verdict")),
                       .speed_up = json_number_value(json_object_get(json_object_get(row, "speed_up"), "mean")),
                       .acceptance = json_number_value(json_object_get(row, "acceptance_length"))};
        if (!best.method || r.speed_up > best.speed_up) best = r;
    }
    return best;
}

/* Returns how often the drafter's best guess for the first token ahead was right in the last validation; 1 if there was
 * none. */
static double last_accuracy(const Auto *a) {
    LineReader *reader;
    const char *line;
    size_t n;
    double share = 1;
    if (line_reader_open(&reader, a->paths[AUTO_LOG], false, LINE_MAX_BYTES, NULL)) return share;
    while (line_reader_next(reader, &line, &n, NULL) == 1) {
        json_t *object = json_loadb(line, n, 0, NULL);
        json_t *first = json_array_get(json_object_get(object, "valid_accuracy"), 0);
        if (first) share = json_number_value(first);
        json_decref(object);
    }
    line_reader_close(reader);
    return share;
}

static bool is(const MethodRow *r, const char *verdict) { return r->verdict && strcmp(r->verdict, verdict) == 0; }

/* Prints the commands that use the drafter; with_auto: together with `auto`. */
static void print_use(const Auto *a, bool with_auto) {
    const char *model = a->args->model, *more = with_auto ? " --draft auto" : "";
    printf("  forerun chat  -m %s --draft %s%s --tree-budget auto\n  forerun serve -m %s --draft %s%s\n", model,
           a->spec, more, model, a->spec, more);
}

bool auto_is_disturbed(const Auto *a) {
    json_t *measured = json_load_file(a->paths[AUTO_MEASURED], 0, NULL);
    MethodRow own = fastest(measured, true);
    bool disturbed = is(&own, "disturbed");
    json_decref(measured);
    return disturbed;
}

int auto_print_result(const Auto *a, fr_error *err) {
    json_t *measured = json_load_file(a->paths[AUTO_MEASURED], 0, NULL);
    MethodRow own = fastest(measured, true), other = fastest(measured, false);
    if (!own.method) {
        json_decref(measured);
        return error_set(err, FR_ERR_FORMAT, "%s: has no measurement of %s", a->paths[AUTO_MEASURED], a->spec);
    }
    bool auto_is_better = is(&other, "faster") && other.speed_up >= own.speed_up;
    if (is(&own, "disturbed")) {
        printf("\nOther programs disturbed the measurement. Stop them, and run the same command again.\n");
    } else if (is(&own, "faster") && !auto_is_better) {
        printf("\nThe drafter pays: on held-out prompts, generation is %.2f times as fast as plain decoding, with\n"
               "%.2f tokens per step and the same texts. Use it like this:\n\n",
               own.speed_up, own.acceptance);
        print_use(a, strcmp(own.method, a->spec) != 0);
    } else {
        printf("\nThe drafter does not pay: on held-out prompts, generation with it is %.2f times as fast as plain\n"
               "decoding, with %.2f tokens per step.",
               own.speed_up, own.acceptance);
        if (auto_is_better)
            printf(" --draft auto, which needs no training, is %.2f times as fast:\n\n"
                   "  forerun chat -m %s --draft auto\n",
                   other.speed_up, a->args->model);
        else if (last_accuracy(a) < 0.5)
            printf(
                " Its best guess for the next token was right in only\n%.0f %% of the places in texts that it had not "
                "seen: collect more prompts, or pass a larger --epochs\nwith --force.\n",
                100 * last_accuracy(a));
        else
            printf(" Checking guesses is expensive on this machine:\nsee 'Drafting gains nothing' in "
                   "docs/TROUBLESHOOTING.md.\n");
    }
    json_decref(measured);
    return FR_OK;
}
