/* learned.h - what learned drafters share: their file, the target they rest on, the target's last hidden state of each sequence, and the
 * loop of a proposal. A method puts a LearnedDrafter first in its own struct and names these functions in its class.
 *
 * Before a proposal the target has read all of the context but the pending token. The drafter knows the target's hidden state at
 * the token before, whose logits chose the pending one. The hidden state of the pending token itself is not computed yet.
 *
 * Everything is computed by the backend of the target (backend/backend.h), on the engine's device.
 */
#ifndef LEARNED_LEARNED_H
#define LEARNED_LEARNED_H

#include "base/arena.h"
#include "spec/drafter/drafter.h"
#include "spec/drafter/drafter_file.h"

#define LEARNED_OPTION_FILE {"file", "", "the drafter's weights, a GGUF file trained for this target"}

/* The option `tree`: "dynamic" or "static" (static_tree.h). */
int learned_tree_option(const DraftSpec *spec, const DrafterClass *class, bool *is_static, fr_error *err);

typedef struct LearnedSequence {
    int64_t n_tokens, n_hidden; /* of the context, and how many of their hidden states the drafter has seen */
    float *hidden;              /* [n_embd] the latest of them */
    float temperature;          /* at which the target draws */
} LearnedSequence;

/* A sequence in a proposal. */
typedef struct LearnedMember {
    Tree *tree;          /* the pending token alone */
    int32_t sequence, budget;
    const float *hidden; /* [n_embd] the target's hidden state before the pending token */
} LearnedMember;

typedef struct LearnedDrafter {
    Drafter base;
    const Model *target;    /* its shape */
    const Weights *weights; /* its embedding and its LM head are the drafter's too */
    const Backend *backend;
    Device *device;
    DrafterFile file;
    int32_t n_embd, n_vocab, max_sequences;
    LearnedSequence *sequences; /* [max_sequences] */
    LearnedMember *members;     /* [max_group] those that draft together */
    int32_t max_group;
    Arena arena;                /* of this struct; a method may take its own arrays from it */
} LearnedDrafter;

/* Opens the file of the option `file` for that class, on a zeroed struct. After a failure learned_release is safe. */
int learned_open(LearnedDrafter *d, const DraftSpec *spec, const DrafterClass *class, const DrafterEnv *env, fr_error *err);
void learned_release(LearnedDrafter *d); /* everything but the struct */

/* The hidden state to draft from, [n_embd]; NULL where the target has not read the token before the pending one (a context of
 * one token). */
const float *learned_hidden(const LearnedDrafter *d, int32_t sequence);

/* For `propose`: calls `draft` with the sequences that have a budget and a hidden state, at most max_group of them at a time. */
typedef int LearnedDraftFn(LearnedDrafter *d, const LearnedMember *members, int32_t n, fr_error *err);
int learned_reserve_group(LearnedDrafter *d, int32_t max_group, fr_error *err); /* when the method knows how many fit */
int learned_propose(LearnedDrafter *d, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n, LearnedDraftFn *draft,
                    fr_error *err);

/* ---- what is computed ------------------------------------------------------------------------------- */

/* A linear layer of the file: "<name>.weight" [n_out][n_in] and, where has_bias, "<name>.bias" [n_out]; for at most max_rows rows. */
int learned_linear_open(LearnedDrafter *d, const char *name, int64_t n_in, int64_t n_out, bool has_bias, int64_t max_rows, Linear **out,
                        fr_error *err);
void learned_linear_close(LearnedDrafter *d, Linear *l); /* NULL is fine */
/* Applies it to x [n_rows][n_in]; y: [n_rows][n_out]. */
void learned_linear(LearnedDrafter *d, const Linear *l, LinearOp op, const float *x, int32_t n_rows, float *y);
/* The target's LM head: logits [n_rows][n_vocab] of rows [n_rows][n_embd]; memory for max_rows rows first. */
int learned_head_reserve(LearnedDrafter *d, int64_t max_rows, fr_error *err);
void learned_head(LearnedDrafter *d, const float *x, int32_t n_rows, float *logits);
/* The target's embedding of a token, out [n_embd]. */
void learned_embed(const LearnedDrafter *d, int32_t token, float *out);

/* The k most probable tokens by a drafter's logits for a sequence, best first, and log p of each; logits are overwritten. Returns how
 * many there are: none where the logits are not finite numbers. k <= TOP_K_MAX.
 *
 * Drafters learn the target's distribution, but what counts is the token that the target will choose: drawn at the sequence's
 * temperature T, or the most probable one. So p = softmax(logits / T), no sharper than LEARNED_SHARPEST, which leaves the drafter its own
 * doubt where the target has none. The acceptance probability of a token is then its p, and joint probabilities rank the nodes: with
 * the distribution itself (T = 1) a greedy text gets trees too wide and too short (docs/METHODS.md has the figures). */
#define LEARNED_SHARPEST 0.3f
int32_t learned_top(const LearnedDrafter *d, int32_t sequence, float *logits, int32_t k, int32_t *tokens, double *log_p);

/* nodes[0..k): of the nodes [first, end) of a tree the k with the greatest log_p, best first, of equals the earlier. Returns how many
 * there are. */
int32_t learned_best_nodes(const double *log_p, int32_t first, int32_t end, int32_t k, int32_t *nodes);

/* ---- for a DrafterClass ----------------------------------------------------------------------------- */

void learned_set_sampling(Drafter *d, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
int learned_begin(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int learned_observe_prompt(Drafter *d, int32_t sequence, int64_t first, const float *const *hidden, int32_t n, fr_error *err);
int learned_observe_tree(Drafter *d, int32_t sequence, const VerifiedTree *v, fr_error *err);
int learned_observe(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
void learned_end(Drafter *d, int32_t sequence);

#endif
