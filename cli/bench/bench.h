/* bench.h - the parts of `forerun bench`: questions, methods, measuring, summary, report.
 *
 *     questions ─► bench_round: every question, methods in turn ─► BenchRecord ─► bench_row ─► table, JSON, figure
 *                  bench_pass:  one method, n at a time   ─┘
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "cli/run/generate.h"
#include "cli/stats_json.h"

#include <stdbool.h>

enum { BENCH_MAX_RUNS = 100, BENCH_MAX_METHODS = 16, BENCH_MAX_CATEGORIES = 64, BENCH_MAX_BATCHES = 16 };

/* ---- bench_questions.c ---------------------------------------------------------------------------- */

typedef struct BenchQuestion {
    int64_t id; /* question_id, or the number of its line */
    int i_category;
    json_t *object;     /* the line; owned */
    const char **turns; /* [n_turns] messages of the user; the strings belong to object */
    int n_turns;
} BenchQuestion;

typedef struct BenchQuestions {
    BenchQuestion *items;
    int n;
    char *categories[BENCH_MAX_CATEGORIES]; /* in order of appearance */
    int n_categories;
} BenchQuestions;

/* Reads lines of Spec-Bench's form, {"question_id", "category", "turns"}, or {"prompt", "category"}. Refuses a bad
 * line by its number. The eight categories of MT-bench (questions 81 to 160) become mt_bench, as Spec-Bench counts
 * them. Call bench_questions_free also after a failure. */
int bench_questions_read(BenchQuestions *q, const char *path, fr_error *err);
/* Keeps the first `limit` questions (0: all) of each category for which fits returns 1 and not 0. Returns how many of
 * those looked at do not fit, or the negative code that fits returned. */
int bench_questions_choose(BenchQuestions *q, int limit, int (*fits)(void *user, const BenchQuestion *, fr_error *),
                           void *user, fr_error *err);
void bench_questions_free(BenchQuestions *q);

/* ---- bench_methods.c ------------------------------------------------------------------------------ */

/* Plain decoding (no drafts), or what one --draft names. */
typedef struct BenchMethod {
    char *name;    /* as the report calls it; owned */
    char *storage; /* what drafts point into; owned */
    const char *drafts[1];
    int n_drafts;    /* 0 or 1 */
    int tree_budget; /* 0: the engine's default */
} BenchMethod;

/* All of these: call bench_method_free also after a failure. */
int bench_method_init(BenchMethod *m, const char *spec, int tree_budget, fr_error *err);
int bench_method_init_plain(BenchMethod *m, fr_error *err);
/* The chain `spec` cut to `length` tokens: by the budget, and by its own option `length` where it has one. */
int bench_method_init_chain(BenchMethod *m, const char *spec, int length, fr_error *err);
void bench_method_free(BenchMethod *m);

/* ---- bench_run.c ---------------------------------------------------------------------------------- */

/* One question answered by one method: the sum over its turns. */
typedef struct BenchRecord {
    int n_turns;          /* answered turns: fewer than the question has if the context was full */
    RequestStats stats;   /* sum over the turns */
    uint64_t fingerprint; /* of all tokens, and of the logits they were sampled from */
} BenchRecord;

/* The setting of a measurement. */
typedef struct BenchRig {
    const GenerateArgs *args;
    const fr_model *model;
    bool chat;                /* turns are put into the model's chat format; else they are raw text */
    const volatile int *stop; /* not 0: stop with FR_ERR_CANCELLED */
    char draft_error[256];    /* the first reason why a drafter was switched off; "" usually */
} BenchRig;

/* A new engine, which remembers no earlier answers, with the method's drafters loaded. */
int bench_engine_open(fr_engine **out, BenchRig *rig, const BenchMethod *m, int n_parallel, fr_error *err);

/* Answers questions [0, n), n_parallel at a time. Fills records[0..n) and the wall time of all of them. */
int bench_pass(BenchRig *rig, fr_engine *engine, const BenchMethod *m, const BenchQuestion *questions, int n,
               int n_parallel, BenchRecord *records, double *wall_s, fr_error *err);

/* Answers all questions with every method, one at a time: for each question all methods in turn, each time beginning
 * with another one. Fills records[question * n_methods + method]; *n_done counts whole questions, also on failure.
 * on_done is called after each answer. */
int bench_round(BenchRig *rig, const BenchMethod *methods, int n_methods, const BenchQuestion *questions, int n,
                int i_run, BenchRecord *records, int *n_done, void (*on_done)(void *user), void *user, fr_error *err);

/* The prompt of turn i_turn, after answers[0..i_turn); *tokens is malloc'ed. */
int bench_prompt(const BenchRig *rig, const BenchQuestion *q, int i_turn, char *const *answers, int32_t **tokens,
                 int64_t *n_tokens, fr_error *err);

/* ---- bench_summary.c ------------------------------------------------------------------------------ */

typedef struct BenchResults {
    const BenchQuestions *questions;
    const BenchMethod *methods;         /* [n_methods], plain decoding first */
    int n_methods, n_questions, n_runs; /* what was measured as a whole */
    int n_parallel;
    bool texts_must_agree;        /* every text must be plain decoding's */
    bool is_lossy;                /* the verification rule changes the output distribution */
    BenchRecord *records;         /* [run][question][method], with room for all runs that are wanted */
    double *wall_s;               /* [run][method] for the throughput; NULL: decode_s is used */
    const BenchRecord *reference; /* [question * n_methods] the first answers of plain decoding */
} BenchResults;

BenchRecord *bench_record(const BenchResults *r, int i_run, int i_question, int i_method);

typedef struct BenchSpread {
    double runs[BENCH_MAX_RUNS];
    double mean, sd; /* sd NaN for a single run */
} BenchSpread;

typedef enum BenchVerdict { BENCH_UNKNOWN, BENCH_EVEN, BENCH_FASTER, BENCH_SLOWER } BenchVerdict;

/* One method in one category (-1: all). */
typedef struct BenchRow {
    int n_questions;
    BenchRecord sum;                    /* over questions and runs */
    BenchSpread rate;                   /* generated tokens a second */
    BenchSpread prefill_rate, speed_up; /* speed-up: ratio of the rates, run by run */
    BenchVerdict verdict; /* whether the speed-up differs from 1 by more than its deviation; unknown after one run */
    bool same;            /* every answer is plain decoding's, bit for bit */
} BenchRow;

void bench_row(const BenchResults *r, int i_category, int i_method, BenchRow *out);

/* ---- bench_report.c, bench_json.c ----------------------------------------------------------------- */

typedef struct BenchTuning {
    const char *chain;                /* NULL: no chain was tuned */
    int n_questions, n_lengths, best; /* best: index */
    const int *lengths;
    double tokens_per_s[BENCH_MAX_METHODS];
} BenchTuning;

typedef struct BenchReport {
    const BenchRig *rig;
    const char *path; /* of the questions */
    int n_runs_wanted, n_left_out;
    BenchTuning tuning;
    const BenchResults *results; /* [n_results]: one, or one for each batch size */
    int n_results;
    bool is_parallel;
} BenchReport;

void bench_print(const BenchReport *r);
int bench_write_json(const BenchReport *r, const char *path, fr_error *err);
int bench_write_plot(const BenchReport *r, const char *path, fr_error *err);
/* Whether all texts that must be plain decoding's are. */
bool bench_texts_agree(const BenchReport *r);

#endif
