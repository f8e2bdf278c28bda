/* bench.h - the parts of `forerun bench`: questions, methods, measuring, summary, report.
 *
 *     questions ─► bench_round: every question, methods in turn ─► BenchRecord ─► bench_row ─► table, JSON, figure
 *                   *                  bench_pass:  one method, n at a time   ─┘ */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include "cli/run/generate.h"
#include "cli/speed.h"
#include "cli/stats_json.h"

#include <signal.h>
#include <stdbool.h>

enum { BENCH_MAX_METHODS = 16, BENCH_MAX_CATEGORIES = 64, BENCH_MAX_BATCHES = 16 };

/* ---- questions (bench_questions.c) ----------------------------------------------------------------- */

typedef struct BenchQuestion {
    int64_t id;       /* question_id, or the line number */
    const char *name; /* a question_id that is a string, or NULL; it belongs to object */
    int i_category;
    int thinking;       /* whether the chat template is asked to let the model reason first; -1: it decides itself */
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

/* Reads lines in any of the layouts of bench_questions.c. An error names the bad line. The eight categories of MT-bench
 * (questions 81 to 160 of Spec-Bench) become mt_bench, as in Spec-Bench. Call bench_questions_free even after a
 * failure. */
int bench_questions_read(BenchQuestions *q, const char *path, fr_error *err);
/* Keeps the first `limit` questions (0: all) of each category that fit: `fits` returns 1, 0 or a negative code. Returns
 * the number of questions that were left out because they do not fit, or the negative code. */
int bench_questions_choose(BenchQuestions *q, int limit, int (*fits)(void *user, const BenchQuestion *, fr_error *),
                           void *user, fr_error *err);
typedef enum BenchThinking {
    BENCH_THINKING_DEFAULT, /* as the chat template does without being asked */
    BENCH_THINKING_OFF,
    BENCH_THINKING_ON,
    BENCH_THINKING_BOTH, /* each question twice; its category with reasoning is "NAME, thinking" */
} BenchThinking;
int bench_questions_think(BenchQuestions *q, BenchThinking thinking, fr_error *err);
void bench_questions_free(BenchQuestions *q);

/* ---- methods (bench_run.c) ------------------------------------------------------------------------- */

/* Plain decoding (no drafts), or one --draft. */
typedef struct BenchMethod {
    char *name;    /* in the report; owned */
    char *storage; /* the text that `drafts` points to; owned */
    const char *drafts[1];
    int n_drafts;         /* 0 or 1 */
    int tree_budget;      /* 0: the engine's default */
    int64_t memory_bytes; /* that an engine takes when it is opened for one request; -1: unknown */
} BenchMethod;

/* Call bench_method_free even after one of these fails. */
int bench_method_init(BenchMethod *m, const char *spec, int tree_budget, fr_error *err);
int bench_method_init_plain(BenchMethod *m, fr_error *err);
/* Makes a method of the chain `spec` limited to `length` tokens: by the budget, and by the drafter's option `length` if
 * it has one. */
int bench_method_init_chain(BenchMethod *m, const char *spec, int length, fr_error *err);
void bench_method_free(BenchMethod *m);

/* ---- measuring (bench_run.c) ------------------------------------------------------------------------ */

/* The statistics of one question answered by one method. */
typedef struct BenchRecord {
    int n_turns;          /* answered turns: fewer than the question has if the context was full */
    RequestStats stats;   /* sum over the turns */
    uint64_t fingerprint; /* hash of all tokens and the logits that they were sampled from */
} BenchRecord;

/* The setup of a measurement. */
typedef struct BenchRig {
    const GenerateArgs *args;
    const fr_model *model;
    bool chat;              /* turns use the model's chat format; otherwise they are raw text */
    BenchQuestions warm_up; /* answered before each measurement, for drafters that remember answers; may be empty */
    const volatile sig_atomic_t *stop; /* not 0: stop with FR_ERR_CANCELLED */
    char draft_error[256];             /* why a drafter was first switched off; "": none was */
} BenchRig;

/* Opens a new engine with the method's drafters. It remembers no earlier answers. */
int bench_engine_open(fr_engine **out, BenchRig *rig, const BenchMethod *m, int n_parallel, fr_error *err);

/* Answers the questions of rig->warm_up, n_parallel at a time, and drops the measurements. */
int bench_warm_up(BenchRig *rig, fr_engine *engine, const BenchMethod *m, int n_parallel, fr_error *err);

/* Answers questions [0, n), n_parallel at a time. Fills records[0..n) and the total wall time. */
int bench_pass(BenchRig *rig, fr_engine *engine, const BenchMethod *m, const BenchQuestion *questions, int n,
               int n_parallel, BenchRecord *records, double *wall_s, fr_error *err);

/* Answers all questions with every method, one at a time: for each question all methods in turn, starting with a
 * different method each time. Fills records[question * n_methods + method]. *n_done counts the questions that all
 * methods answered, even on failure. on_done is called after each answer. */
int bench_round(BenchRig *rig, const BenchMethod *methods, int n_methods, const BenchQuestion *questions, int n,
                int i_run, BenchRecord *records, int *n_done, void (*on_done)(void *user), void *user, fr_error *err);

/* Makes the prompt of turn i_turn, after answers[0..i_turn); *tokens is malloc'ed. */
int bench_prompt(const BenchRig *rig, const BenchQuestion *q, int i_turn, char *const *answers, int32_t **tokens,
                 int64_t *n_tokens, fr_error *err);

/* ---- summary (bench_report.c) ----------------------------------------------------------------------- */

typedef struct BenchResults {
    const BenchQuestions *questions;
    const BenchMethod *methods;         /* [n_methods], plain decoding first */
    int n_methods, n_questions, n_runs; /* complete runs */
    int n_parallel;
    bool texts_must_agree;        /* every text must equal that of plain decoding */
    bool is_lossy;                /* the verification rule changes the output distribution */
    BenchRecord *records;         /* [run][question][method], with room for all requested runs */
    double *wall_s;               /* [run][method] for the throughput; NULL: rates use decode_s */
    const BenchRecord *reference; /* [question * n_methods] the first answers of plain decoding */
} BenchResults;

BenchRecord *bench_record(const BenchResults *r, int i_run, int i_question, int i_method);

typedef struct BenchSpread {
    double runs[SPEED_MAX_RUNS];
    double mean, sd; /* sd NaN for a single run */
} BenchSpread;

/* One method in one category (-1: all). */
typedef struct BenchRow {
    int n_questions;
    BenchRecord sum;                    /* over questions and runs */
    BenchSpread rate;                   /* generated tokens per second */
    BenchSpread prefill_rate, speed_up; /* speed_up: ratio of the rates, run by run */
    SpeedVerdict verdict;               /* whether the speed-up is certain */
    int n_answers, n_same;              /* over all runs; those that equal plain decoding's bit for bit */
    bool same;                          /* all of them do */
} BenchRow;

void bench_row(const BenchResults *r, int i_category, int i_method, BenchRow *out);
/* Returns how many bytes of memory the method takes in addition to plain decoding; -1: unknown. */
int64_t bench_memory(const BenchResults *r, int i_method);

/* ---- report (bench_report.c, bench_json.c) ---------------------------------------------------------- */

typedef struct BenchTuning {
    const char *chain;                /* NULL: no chain was tuned */
    int n_questions, n_lengths, best; /* best: index */
    const int *lengths;
    double tokens_per_s[BENCH_MAX_METHODS];
} BenchTuning;

typedef struct BenchReport {
    const BenchRig *rig;
    const char *command;      /* the words of the command line */
    char model_hash[20];      /* a fingerprint of the model's tensors */
    const char *path;         /* the file of questions */
    const char *warm_up_path; /* NULL: none */
    int n_runs_wanted, n_left_out;
    BenchTuning tuning;
    const BenchResults *results; /* [n_results] one, or one for each batch size */
    int n_results;
    bool is_parallel;
} BenchReport;

const char *bench_commit(void); /* of the source that the program was built from */
void bench_print(const BenchReport *r);
int bench_write_json(const BenchReport *r, const char *path, fr_error *err);
int bench_write_plot(const BenchReport *r, const char *path, fr_error *err);
/* Returns whether all texts that must equal those of plain decoding do. */
bool bench_texts_agree(const BenchReport *r);

#endif
