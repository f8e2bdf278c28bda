/* learned.h - what learned drafters share: their file, the target they lean on, and the target's last hidden state of
 * each sequence. A method puts a LearnedDrafter first in its own struct and names these functions in its class.
 *
 * Before a proposal the target has read all of the context but the pending token. `hidden` is what it knows: its hidden
 * state at the token before, whose logits chose the pending one. That of the pending token itself is not computed yet.
 */
#ifndef LEARNED_LEARNED_H
#define LEARNED_LEARNED_H

#include "backend/cpu/multiplier.h"
#include "spec/drafter/drafter.h"
#include "spec/drafter/drafter_file.h"

#define LEARNED_OPTION_FILE {"file", "", "the drafter's weights, a GGUF file trained for this target"}

/* The option `tree`: "dynamic" or "static" (static_tree.h). */
int learned_tree_option(const DraftSpec *spec, const DrafterClass *class, bool *is_static, fr_error *err);

typedef struct LearnedSequence {
    int64_t n_tokens, n_hidden; /* of the context, and how many of them the drafter was shown */
    float *hidden;              /* [n_embd] of the latest of them */
    float temperature;          /* of the distribution that the target draws from */
} LearnedSequence;

typedef struct LearnedDrafter {
    Drafter base;
    const Model *target; /* its embedding and its LM head are the drafter's too */
    DrafterFile file;
    Multiplier *multiplier;
    int32_t n_embd, n_vocab, max_sequences;
    LearnedSequence *sequences; /* [max_sequences] */
    float *ones;                /* [max_in]: what silu_mul multiplies by */
    int64_t max_in;
} LearnedDrafter;

/* Opens the file of the option `file` for that class, on a zeroed struct. After a failure learned_release is safe. */
int learned_open(LearnedDrafter *d, const DraftSpec *spec, const DrafterClass *class, const DrafterEnv *env, fr_error *err);
/* Then, once the method knows its widest input and the most rows it multiplies at once. */
int learned_open_products(LearnedDrafter *d, const DrafterEnv *env, int64_t max_in, int64_t max_rows, fr_error *err);
void learned_release(LearnedDrafter *d); /* all but the struct */

/* The hidden state to draft from, [n_embd]; NULL where the target has not read the token before the pending one (a
 * context of one token). */
const float *learned_hidden(const LearnedDrafter *d, int32_t sequence);

/* A linear layer of the file: "<name>.weight" [n_out][n_in] and, where it has one, "<name>.bias" [n_out]. */
typedef struct LearnedLinear {
    PackedMatrix weight;
    float *bias; /* NULL: none */
} LearnedLinear;
int learned_linear_read(LearnedDrafter *d, const char *name, int64_t n_in, int64_t n_out, bool has_bias, LearnedLinear *out,
                        fr_error *err);
void learned_linear_free(LearnedLinear *l);
/* y = W x + b for n_rows rows. */
void learned_linear_run(LearnedDrafter *d, const LearnedLinear *l, const float *x, int32_t n_rows, float *y);
/* x = SiLU(x), n floats, at most max_in. */
void learned_silu(const LearnedDrafter *d, float *x, int64_t n);
/* x += SiLU(W in + b) for n_rows rows; scratch as large as x, in and x may be one. */
void learned_add_silu(LearnedDrafter *d, const LearnedLinear *l, const float *in, int32_t n_rows, float *scratch, float *x);
/* x += SiLU(W x + b) for rows [n_rows][n], n = inputs = outputs; scratch as large as x. */
void learned_residual_block(LearnedDrafter *d, const LearnedLinear *l, float *x, int32_t n_rows, float *scratch);

/* The k most probable tokens of what the drafter's logits say of a sequence, best first, and log p of each; logits are
 * overwritten. Returns how many there are: none where the logits are not finite numbers. k <= TOP_K_MAX.
 *
 * Drafters learn the target's distribution, but what counts is the token that it will say: drawn at the sequence's temperature T, or
 * the most probable one. So p = softmax(logits / T), no sharper than LEARNED_SHARPEST, which is left of a drafter's own doubt where
 * the target has none. The chance of a token is then its p, and joint probabilities tell which nodes are worth a row: with the
 * distribution itself (T = 1) a greedy text gets trees too wide and too short (docs/METHODS.md has the figures). */
#define LEARNED_SHARPEST 0.3f
int32_t learned_top(const LearnedDrafter *d, int32_t sequence, float *logits, int32_t k, int32_t *tokens, double *log_p);

/* nodes[0..k): of the nodes [first, end) of a tree the k with the greatest log_p, best first, of equals the earlier. Returns
 * how many there are. */
int32_t learned_best_nodes(const double *log_p, int32_t first, int32_t end, int32_t k, int32_t *nodes);

/* For a DrafterClass. */
void learned_set_sampling(Drafter *d, int32_t sequence, const SamplingOptions *sampling, uint64_t position);
int learned_begin(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
int learned_observe_prompt(Drafter *d, int32_t sequence, int64_t first, const float *const *hidden, int32_t n, fr_error *err);
int learned_observe_tree(Drafter *d, int32_t sequence, const VerifiedTree *v, fr_error *err);
int learned_observe(Drafter *d, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err);
void learned_end(Drafter *d, int32_t sequence);

#endif
