/* draft_prediction.c - the drafter `prediction`: a text that the caller expects the answer to follow.
 *
 * The problem: if a request is to edit code, replace a name or correct a typing error, most of the answer is known
 * beforehand. OpenAI's API has a field for it ("Predicted Outputs"): the predicted text is sent with the request, and
 * the parts of the answer that it predicts correctly are generated faster. The prompt need not contain the text.
 *
 * The idea: the prediction is indexed once, and each step finds the place in it that the answer has reached, and copies
 * what follows. The place is the longest match of the answer's last tokens, at most 16. Ties go to the place nearest to
 * the one that is expected from the last match. So if an answer inserts, leaves out or replaces something, drafts
 * resume as soon as it returns to the prediction, and repeated lines are distinguished by their order.
 *
 *     prediction   int  a  =  1  ;  int  b  =  2  ;          positions 0..9
 *     answer       int  x  =|                                last match: "int" at 0, so "=" is expected at 2
 *     places of "=": 2 and 7, one token of match each        2 is nearer
 *     draft        1  ;  int  b ...                          a chain, to the budget or the end of the prediction
 *
 * A match below 3 tokens counts only within 32 tokens of the expected place. Before the first token the whole
 * prediction is proposed from its beginning. `p_accept` is that of pld (draft_pld_llma.c) as if 8 more tokens matched:
 * predictions are mostly right, and calibration corrects p_accept where they are not.
 *
 * Layout: the text of the sequence (text_index.h) holds the prediction, indexed, and after it the answer, which is only
 * stored. Invariants: a draft is a chain of tokens from the prediction; sequences share nothing; without a prediction
 * nothing is proposed. Memory: 8 bytes for each token of the two texts. Cost: one walk over the places of the last
 * token. When it loses: where the prediction is wrong; the automatic budget then gives it no rows. Proof:
 * tests/draft/test_draft_prediction.c compares it with a naive search. */
#include "base/mem.h"
#include "draft/text/text_drafter.h"

#include <stdlib.h>

enum { LONGEST = 16, SURE = 3, NEAR = 32, TRUST = 8 };

typedef struct Prediction {
    TextDrafter text;
    /* [max_sequences] Two places of the answer's last token in the prediction: where it is expected, counted from the
     * last match, and where the latest proposal found it. A proposal changes only `found`, so that the next proposal is
     * the same if the step is given up in between. */
    int32_t *expected, *found;
} Prediction;

typedef struct PredictionOptions {
    bool unused;
} PredictionOptions;

static const Option option_table[] = {{.key = NULL}};

static void close_prediction(Drafter *drafter) {
    Prediction *d = (Prediction *)drafter;
    text_drafter_release(&d->text);
    mem_free(d->expected);
    mem_free(d->found);
    mem_free(d);
}

static int open_prediction(Drafter **out, const void *options, const DrafterEnv *env, fr_error *err) {
    (void)options;
    Prediction *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "prediction", sizeof *d);
    *out = &d->text.base;
    int status = text_drafter_init(&d->text, env, err);
    size_t n = (size_t)env->max_sequences;
    if (!status &&
        (!(d->expected = mem_calloc(n, sizeof *d->expected)) || !(d->found = mem_calloc(n, sizeof *d->found))))
        status = error_memory(err, "prediction", n * sizeof *d->expected);
    if (status) close_prediction(*out);
    return status;
}

static int set_reference(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const Prediction *d = (Prediction *)drafter;
    NgramText *t = text_drafter_text(&d->text, sequence);
    ngram_text_free(t);
    int status = ngram_text_reserve(t, n + d->text.n_ctx, d->text.n_vocab, err);
    if (!status) status = ngram_text_append(t, tokens, n, d->text.n_vocab, true, err);
    if (status) ngram_text_free(t);
    t->n_prompt = t->n;
    return status;
}

static int check_tokens(const Prediction *d, const int32_t *tokens, int64_t n, fr_error *err) {
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= d->text.n_vocab)
            return error_set(err, FR_ERR_ARGUMENT, "prediction: token %d is outside the vocabulary of %d tokens",
                             tokens[i], d->text.n_vocab);
    return FR_OK;
}

static int begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const Prediction *d = (Prediction *)drafter;
    d->expected[sequence] = d->found[sequence] = -1;
    return check_tokens(d, tokens, n, err);
}

static int observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const Prediction *d = (Prediction *)drafter;
    NgramText *t = text_drafter_text(&d->text, sequence);
    if (t->n_prompt == 0) return check_tokens(d, tokens, n, err); /* there is no prediction to follow */
    d->expected[sequence] = d->found[sequence] += (int32_t)n;
    return ngram_text_append(t, tokens, n, d->text.n_vocab, false, err);
}

/* Finds the place of the answer's last token in the prediction, and how many tokens match there. Returns -1 if there is
 * no match. */
static int32_t find_place(const NgramText *t, int32_t expected, int32_t *n_match) {
    int32_t n_answer = t->n - t->n_prompt, longest = n_answer < LONGEST ? n_answer : LONGEST, best = -1;
    *n_match = 0;
    for (int32_t p = ngram_text_last(t, t->tokens[t->n - 1]); p >= 0; p = t->previous[p]) {
        int32_t match = ngram_text_match(t, p, longest);
        if (match < SURE && abs(p - expected) > NEAR) continue;
        if (match < *n_match || (match == *n_match && abs(p - expected) >= abs(best - expected))) continue;
        best = p;
        *n_match = match;
    }
    return best;
}

static void propose_one(Prediction *d, int32_t sequence, int32_t budget, Tree *tree) {
    const NgramText *t = text_drafter_text(&d->text, sequence);
    int32_t place = -1, match = 0, node = 0;
    if (t->n_prompt == 0) return;
    if (t->n > t->n_prompt) {
        place = find_place(t, d->expected[sequence], &match);
        if (place < 0) return;
        d->found[sequence] = place;
    }
    double p_accept = 1;
    for (int32_t i = 1; i <= budget && place + i < t->n_prompt && node >= 0; i++) {
        p_accept *= text_drafter_share(1, 1, match + TRUST + i - 1, TEXT_SMOOTHING);
        node = tree_add(tree, node, t->tokens[place + i], (float)p_accept, d->text.base.source);
    }
}

static int propose(Drafter *drafter, const int32_t *sequences, const int32_t *budgets, Tree *const *trees, int n,
                   fr_error *err) {
    (void)err;
    for (int i = 0; i < n; i++) propose_one((Prediction *)drafter, sequences[i], budgets[i], trees[i]);
    return FR_OK;
}

extern const DrafterClass draft_prediction_class;
const DrafterClass draft_prediction_class = {
    .name = "prediction",
    .summary =
        "copies a text that the caller expects as the answer (fr_request_options.prediction, and the field of that "
        "name in `serve`)",
    .option_table = option_table,
    .options_size = sizeof(PredictionOptions),
    .open = open_prediction,
    .close = close_prediction,
    .set_reference = set_reference,
    .begin = begin,
    .observe = observe,
    .propose = propose,
    .end = text_drafter_end,
};
