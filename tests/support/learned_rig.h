/* learned_rig.h - learned drafters in tests: files with random weights, a target for them, and requests that draft
 * with them in all ways that the engine supports. */
#ifndef TESTS_LEARNED_RIG_H
#define TESTS_LEARNED_RIG_H

#include "draft_rig.h"
#include "engine_rig.h"
#include "model_rig.h"

#include "draft/drafter_file.h"
#include "train/methods.h"

/* Writes a small random target to `path`; each seed gives another target. */
void learned_rig_write_target(const char *path, uint64_t seed);

/* A drafter file that is being made. */
typedef struct LearnedRig {
    GgufWriter *w;
    uint64_t seed;
    void *kept[128];
    int n_kept;
} LearnedRig;
void learned_rig_begin(LearnedRig *r, const char *method, const Weights *target, uint64_t seed);
/* Adds random weights of standard deviation std and returns them with the rounding of the file's type, [n_out][n_in],
 * valid until learned_rig_free. n_out 0: a vector. */
float *learned_rig_tensor(LearnedRig *r, const char *name, TensorType type, int64_t n_in, int64_t n_out, double std);
/* The same for an F32 tensor [n2][n1][n0]. */
float *learned_rig_cube(LearnedRig *r, const char *name, int64_t n0, int64_t n1, int64_t n2, double std);
/* Token info of that rank for n tokens (logit_corrections.h): key and tensors, `up` of that type. */
typedef struct LearnedRigInfo {
    int32_t H, rank, n;
    float *down, *up, *gain;
} LearnedRigInfo;
LearnedRigInfo learned_rig_info(LearnedRig *r, const char *method, TensorType type, int32_t H, int32_t rank, int32_t n);
void learned_rig_write(LearnedRig *r, const char *path);
void learned_rig_free(LearnedRig *r);

/* y = W x (+ b, may be NULL) in double precision. */
void learned_rig_linear(const float *w, const float *b, const double *x, int64_t n_in, int64_t n_out, double *y);
double learned_rig_silu(double x);
/* gain * RMSNorm(embedding W1 W2), [n]; H and rank at most 64. */
void learned_rig_run_info(const LearnedRigInfo *info, const float *embedding, double *out);
/* log softmax, in place. */
void learned_rig_log_softmax(double *x, int64_t n);

/* ---- checks (learned_checks.c) ------------------------------------------------------------------------------- */

/* A target that reads texts, to test a drafter without an engine. */
typedef struct LearnedReader {
    const Weights *model;
    Executor *executor;
    int32_t sequence;
    KeptLayers kept; /* the streams that its drafters read */
} LearnedReader;
void learned_rig_open_reader(LearnedReader *r, const Weights *model);
void learned_rig_close_reader(LearnedReader *r);
/* Opens `spec` for the reader's target. */
Drafter *learned_rig_open_drafter(LearnedReader *r, const char *spec, int32_t max_sequences);
/* The same, but returns the status of drafter_open, and in r->kept the streams that the drafter asked for. */
int learned_rig_try_drafter(LearnedReader *r, const char *spec, int32_t max_sequences, Drafter **out, fr_error *err);
/* Fails unless `spec` is refused for the target with this status and a message that contains `words`. */
void learned_rig_check_refused(const Weights *target, const char *spec, fr_code code, const char *words);
/* Gives the drafter a text of n tokens with its hidden states, `chunk` at a time. Returns the last hidden state, from
 * which it drafts, valid until the next call. */
const float *learned_rig_feed(LearnedReader *r, Drafter *d, int32_t sequence, const int32_t *text, int32_t n,
                              int32_t chunk);
/* Reads the residual streams of a text of n tokens after each number of layers, out [n][n_layer + 1][n_embd]. */
void learned_rig_read_streams(const Weights *target, const int32_t *text, int32_t n, double *out);
/* Fails unless the trees have the same paths, with p_accept within `tolerance` (relative) of each other. */
void learned_rig_assert_alike(const Tree *want, const Tree *got, double tolerance, const char *what);

/* Checks proposals for the sequences 1 to 3 together, each with its budget, after the first token of its tree in
 * `want`: the trees are those, and bit for bit the trees that each sequence gets by itself. Ends the sequences. */
void learned_rig_check_proposals(Drafter *d, const Tree want[3], const int32_t budgets[3], int32_t n_vocab,
                                 const char *what);

/* EAGLE-2's tree by a plain search. A place is the state of a drafter after an entry or a node; it begins with log p
 * [n_vocab], and the search makes one from the parent's place when it expands a node. */
typedef struct LearnedSearch {
    int32_t n_vocab, depth, top, budget;
    void (*make)(const void *model, const void *before, int32_t token, void *place);
    size_t place_bytes;
    const void *model, *root; /* root: the place of the pending token */
} LearnedSearch;
void learned_rig_search(const LearnedSearch *s, int32_t pending, Tree *out);
/* Finds the k best tokens of a distribution, best first. */
void learned_rig_best_tokens(const double *dist, int32_t n_vocab, int32_t k, int32_t *tokens);

/* Checks that tokens committed by a step have the same effect as tokens of the prompt: after an accepted path, the
 * drafter proposes the tree that it proposes when the whole text is the prompt. */
void learned_rig_check_step(const Weights *target, const char *spec);

/* Checks that what a drafter with entries keeps of steps in which it was idle is what it keeps of a prompt whose
 * beginning it was not shown. */
void learned_rig_check_idle(const Weights *target, const char *spec);

/* Checks that sequences that draft together get, bit for bit, the trees of sequences that draft one by one, however
 * many tokens they committed since their last proposal and however their prompts were divided. The target is one of
 * learned_rig_write_target. */
void learned_rig_check_together(const Weights *target, const char *spec);

/* Checks that a drafter of `forerun train METHOD --init PATH`, written before it has learned anything, drafts as the
 * file at that path, with these options: its shape, its vocabulary and what is not trained are taken over. */
void learned_rig_check_init(const Weights *target, const TrainMethod *method, const char *path, const char *options);
/* Fails unless --init refuses that file as unsupported, with a message that contains `words`. */
void learned_rig_check_init_refused(const Weights *target, const TrainMethod *method, const char *path,
                                    const char *words);

/* Checks that requests that draft with `spec` generate the text of plain decoding: with each sampling, several budgets
 * and chunk sizes, together with other requests, with shared prompts, under ratio rules, and with too few pages. */
void learned_rig_check_lossless(const char *target, const char *spec);

#endif
