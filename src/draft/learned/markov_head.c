/* markov_head.c - DSpark's heads (arXiv 2607.05147): what the token before a position adds to its logits, and the
 * chance that the best token there is accepted.
 *
 * The problem. The positions of a block are predicted at once, so none of them knows which tokens the others get: after
 * "New" and "San", the next position gives "York" and "Francisco" the same probabilities.
 *
 * The idea. A vector of the token before, of a low rank, makes a bias on all logits: logits + W2 w1(token). A node of a
 * tree is the token before its children, so every node has a distribution of its own. A gated head weighs the numbers
 * of the vector by the hidden state of the position, so that the bias can be small where the position itself is sure:
 *
 *     logits + W2 (g * w1(token)),     g = 1 / (1 + exp(-(G [hidden ; w1(token)] + b)))
 *
 * A recurrent head has a state s of the tokens before in the block as well, which is 0 before the first one:
 *
 *     [g ; c ; o] = J [s ; w1(token) ; hidden] + b
 *     logits + W2 tanh(o),     s' = a s + (1 - a) tanh(c),     a = 1 / (1 + exp(-g))
 *
 * s' does not depend on the next token, so all children of a node have the same one, and it is kept for each node.
 *
 * The confidence head reads the hidden state and the vector, which is not gated:
 *
 *     c = 1 / (1 + exp(-(w [hidden ; w1(token)] + b)))    the chance of the best child; the others are scaled to match
 *
 * Heads that were trained with confidence_head_with_markov false, and those of files without a Markov head, read only
 * the hidden state. Their weights are shorter, so that files need no key for them.
 *
 * Cost: a product with D x r weights for each node that is expanded, against D x H for the LM head of each position.
 * Proof: tests/draft/test_draft_dflash.c. */
#include "base/math_functions.h"
#include "draft/learned/logit_corrections.h"

#include <string.h>

/* Reads the confidence head, if the file has one. It is a Confidence that does not use the drafter's own estimate. */
static int read_confidence(MarkovHead *m, fr_error *err) {
    LearnedDrafter *d = m->learned;
    float *weights = NULL, *bias = NULL;
    const GgufTensor *t = gguf_find_tensor(d->file.gguf, DFLASH_CONFIDENCE ".weight");
    if (!t) return FR_OK;
    int64_t n = t->dims[0] == m->n_embd ? m->n_embd : m->n_embd + m->rank, n_in = n;
    int status = t->n_dims == 1 ? drafter_file_vector(&d->file, DFLASH_CONFIDENCE ".weight", n, &weights, err)
                                : drafter_file_table(&d->file, DFLASH_CONFIDENCE ".weight", 1, &n_in, &weights, err);
    if (!status && n_in != n)
        status = error_set(err, FR_ERR_FORMAT, "%s: tensor %s.weight reads %lld numbers instead of %lld",
                           gguf_path(d->file.gguf), DFLASH_CONFIDENCE, (long long)n_in, (long long)n);
    if (!status && drafter_file_has(&d->file, DFLASH_CONFIDENCE ".bias"))
        status = drafter_file_vector(&d->file, DFLASH_CONFIDENCE ".bias", 1, &bias, err);
    if (!status && !(m->confidence.weights = mem_calloc((size_t)(n + CONFIDENCE_SCALARS), sizeof(float))))
        status = error_memory(err, DFLASH_CONFIDENCE, (size_t)n * sizeof(float));
    if (!status) {
        m->confidence.n_embd = (int32_t)n;
        memcpy(m->confidence.weights, weights, (size_t)n * sizeof *weights);
        m->confidence.weights[n + CONFIDENCE_BIAS] = bias ? bias[0] : 0;
        m->confidence.weights[n + CONFIDENCE_SLOPE] = -1;
    }
    mem_free(weights);
    mem_free(bias);
    return status;
}

/* Opens the gate or the recurrence, if the file has one. */
static int open_gate(MarkovHead *m, fr_error *err) {
    bool is_gated = drafter_file_has(&m->learned->file, DFLASH_MARKOV_GATE ".weight"),
         is_recurrent = drafter_file_has(&m->learned->file, DFLASH_MARKOV_JOINT ".weight");
    int64_t n = m->n_embd + (is_recurrent ? 2 : 1) * m->rank, n_out = (is_recurrent ? 3 : 1) * m->rank;
    const LearnedBuffer buffers[] = {{&m->inputs, n}, {&m->gates, n_out}};
    const ArenaItem items[] = {ARENA_ITEM(&m->states, (int64_t)TREE_MAX_NODES * m->rank)};
    if (!is_gated && !is_recurrent) return FR_OK;
    if (is_gated && is_recurrent)
        return error_set(err, FR_ERR_FORMAT, "%s: has both %s and %s, but a Markov head is gated or recurrent",
                         gguf_path(m->learned->file.gguf), DFLASH_MARKOV_GATE, DFLASH_MARKOV_JOINT);
    int status = learned_linear_open(m->learned, is_gated ? DFLASH_MARKOV_GATE : DFLASH_MARKOV_JOINT, n, n_out, true, 1,
                                     is_gated ? &m->gate : &m->joint, err);
    if (!status) status = learned_open_buffers(m->learned, buffers, ARENA_COUNT(buffers), err);
    return status || is_gated ? status
                              : arena_take(&m->learned->arena, items, ARENA_COUNT(items), "a Markov head", err);
}

int markov_head_open(MarkovHead *m, LearnedDrafter *learned, int32_t n_embd, int32_t n_vocab, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(learned->file.gguf, DFLASH_MARKOV_BEFORE), *output;
    *m = (MarkovHead){.learned = learned, .n_embd = n_embd, .n_vocab = n_vocab};
    if (!t) return read_confidence(m, err);
    if (t->dims[0] < 1 || t->dims[0] > MARKOV_MAX_RANK)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s has a rank of %lld, but must have one from 1 to %d",
                         gguf_path(learned->file.gguf), DFLASH_MARKOV_BEFORE, (long long)t->dims[0], MARKOV_MAX_RANK);
    m->rank = (int32_t)t->dims[0];
    const LearnedBuffer buffers[] = {{&m->narrow, m->rank}, {&m->wide, n_vocab}};
    const ArenaItem items[] = {ARENA_ITEM(&m->state, n_embd + m->rank)};
    int status = own_embedding_read(&m->before, learned, DFLASH_MARKOV_BEFORE, m->rank, err);
    if (!status) status = head_rows_read(learned, DFLASH_MARKOV_OUTPUT, m->rank, &output, err);
    if (!status)
        status = learned->backend->linear_open(&m->output, learned->device, learned->weights, output, NULL, 1, err);
    if (!status) status = learned_open_buffers(learned, buffers, ARENA_COUNT(buffers), err);
    if (!status) status = arena_take(&learned->arena, items, ARENA_COUNT(items), "a Markov head", err);
    if (!status) status = open_gate(m, err);
    return status ? status : read_confidence(m, err);
}

void markov_head_close(MarkovHead *m) {
    if (m->rank) {
        learned_linear_close(m->learned, m->output);
        learned_linear_close(m->learned, m->gate);
        learned_linear_close(m->learned, m->joint);
    }
    own_embedding_close(&m->before);
    confidence_close(&m->confidence);
}

/* Multiplies the vector of the token before by the gate. */
static void apply_gate(MarkovHead *m, const float *hidden) {
    float *vector = m->narrow->floats;
    learned_write(m->inputs, 0, hidden, m->n_embd);
    learned_write(m->inputs, m->n_embd, vector, m->rank);
    learned_linear(m->learned, m->gate, LINEAR_SET, m->inputs, 1, m->gates);
    buffer_pull(m->gates, 0, m->rank);
    for (int32_t i = 0; i < m->rank; i++) vector[i] /= 1 + (float)math_exp(-(double)m->gates->floats[i]);
}

/* Replaces the vector of the token of a node by what the recurrence makes of it, and keeps the state after that. */
static void apply_recurrence(MarkovHead *m, const Tree *t, int32_t node, const float *hidden) {
    float *vector = m->narrow->floats, *state = m->states + node * m->rank;
    int32_t r = m->rank;
    if (node) memcpy(state, m->states + t->nodes[node].parent * r, (size_t)r * sizeof *state);
    else memset(state, 0, (size_t)r * sizeof *state);
    learned_write(m->inputs, 0, state, r);
    learned_write(m->inputs, r, vector, r);
    learned_write(m->inputs, 2 * r, hidden, m->n_embd);
    learned_linear(m->learned, m->joint, LINEAR_SET, m->inputs, 1, m->gates);
    buffer_pull(m->gates, 0, 3 * r);
    const float *gate = m->gates->floats, *candidate = gate + r, *out = candidate + r;
    for (int32_t i = 0; i < r; i++) {
        float kept = 1 / (1 + (float)math_exp(-(double)gate[i]));
        state[i] = kept * state[i] + (1 - kept) * (float)math_tanh((double)candidate[i]);
        vector[i] = (float)math_tanh((double)out[i]);
    }
}

const float *markov_head_logits(MarkovHead *m, const Tree *t, int32_t node, const float *hidden, const float *logits) {
    embedding_row(&m->before.tensor, t->nodes[node].token, m->narrow->floats);
    if (m->gate) apply_gate(m, hidden);
    if (m->joint) apply_recurrence(m, t, node, hidden);
    buffer_push(m->narrow, 0, m->rank);
    learned_linear(m->learned, m->output, LINEAR_SET, m->narrow, 1, m->wide);
    buffer_pull(m->wide, 0, m->n_vocab);
    for (int32_t i = 0; i < m->n_vocab; i++) m->wide->floats[i] += logits[i];
    return m->wide->floats;
}

void markov_head_correct(MarkovHead *m, int32_t token, const float *hidden, double *log_p, int32_t n) {
    if (!m->confidence.weights) return;
    const float *state = m->rank ? m->state : hidden;
    if (m->rank) {
        memcpy(m->state, hidden, (size_t)m->n_embd * sizeof *hidden);
        embedding_row(&m->before.tensor, token, m->state + m->n_embd);
    }
    confidence_correct(&m->confidence, confidence_of_state(&m->confidence, state), log_p, n);
}
