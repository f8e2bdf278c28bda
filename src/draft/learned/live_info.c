/* live_info.c - token info that adapts to the text.
 *
 * The problem. Token info (token_info.h) is trained once and for all texts. But a text repeats itself: what follows a
 * token in it, names and turns of phrase above all, is not what follows the token on average.
 *
 * The idea. After a step the target's logits at the accepted tokens are at hand, and so are the logits that were drafted
 * there. Their difference is the drafter's error, and a part of it that depends on the token x before is corrected the next time x
 * occurs:
 *
 *     delta[x][v] += RATE (log p(v) - log q(v))       p, q = softmax(logits / tau) of the target and of the draft
 *     draft after x = softmax((l + E'(x) + delta[x]) / tau)
 *
 * for the TOP best tokens v of the target and of the draft: those that were missed and those that were wrong. log p is at
 * least MIN_LOG, because a token that is out of the question need not be excluded ever more firmly. As q contains the
 * correction so far, delta converges to the mean error over the last tau / RATE occurrences of x. tau is the temperature at
 * which drafters rank tokens, 0.5 for a greedy text, which repeats itself the most: then three occurrences count, at
 * temperature 1 seven.
 *
 *     tau 0.5:  after "Mr" the target was sure of "Brown" (log p -0.1), the draft of "Smith" (-0.1; "Brown" -20)
 *               delta[Mr]: Brown +3, Smith -3, a third of what was missing: 0.5 * 20
 *
 * Only the verifier chooses tokens, so no text changes. A sequence begins with nothing learned, so that drafts depend on
 * its request alone.
 *
 * Layout: a table of a fixed number of rows, by token, in sets of WAYS; a row has up to ENTRIES corrections. A new token takes the
 * least recently used row of its set, a new correction the place of the smallest of its row. 4096 corrections, 37 KB a
 * sequence.
 *
 * Cost: for each accepted token, two sums over V and two searches for the best; a look-up for each expanded node. When it
 * loses: never much; texts at temperature 1 repeat little, and it gains nothing there (docs/methods/lyanna.md). Proof:
 * tests/draft/test_live_info.c, against a full matrix in double precision. */
#include "draft/learned/live_info.h"

#include "draft/feedback.h"

#include <math.h>
#include <string.h>

#define RATE 0.15
#define MIN_LOG -30.0
enum { TOP = 4 };

void live_info_reset(LiveInfo *l) { memset(l, 0, sizeof *l); }

static const LiveInfoRow *set_of(const LiveInfo *l, int32_t token) {
    return l->rows[((uint32_t)token * 0x9E3779B1u >> 16) % LIVE_INFO_SETS]; /* neighbours in different sets */
}

/* The row of a token; NULL: it has none. */
static const LiveInfoRow *find(const LiveInfo *l, int32_t token) {
    const LiveInfoRow *set = set_of(l, token);
    for (int32_t i = 0; i < LIVE_INFO_WAYS; i++)
        if (set[i].last_used && set[i].token == token) return &set[i];
    return NULL;
}

static LiveInfoRow *find_or_replace(LiveInfo *l, int32_t token) {
    LiveInfoRow *row = (LiveInfoRow *)find(l, token), *set = (LiveInfoRow *)set_of(l, token);
    if (row) return row;
    row = set;
    for (int32_t i = 1; i < LIVE_INFO_WAYS; i++)
        if (set[i].last_used < row->last_used) row = &set[i];
    *row = (LiveInfoRow){.token = token};
    return row;
}

void live_info_add(const LiveInfo *l, int32_t token, float *logits) {
    const LiveInfoRow *row = find(l, token);
    for (int32_t i = 0; row && i < row->n; i++) logits[row->ids[i]] += row->deltas[i];
}

/* Adds to the correction of one logit; a new one takes the place of the smallest where the row is full. */
static void correct(LiveInfoRow *row, int32_t id, float change) {
    int32_t at = 0, smallest = 0;
    for (; at < row->n && row->ids[at] != id; at++)
        if (fabsf(row->deltas[at]) < fabsf(row->deltas[smallest])) smallest = at;
    if (at == LIVE_INFO_ENTRIES) at = smallest;
    else if (at == row->n) row->n++;
    if (row->ids[at] != id) row->deltas[at] = 0;
    row->ids[at] = id;
    row->deltas[at] += change;
}

/* log sum exp((x - max) / tau) */
static double log_sum(const float *x, int32_t n, float max, double tau) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += (double)expf((x[i] - max) / (float)tau);
    return log(sum);
}

void live_info_learn(LiveInfo *l, int32_t token, const float *target, const float *draft, int32_t n_vocab,
                     double temperature) {
    int32_t ids[2 * TOP], n_draft = logits_top_k(draft, n_vocab, TOP, ids),
                          n = n_draft + logits_top_k(target, n_vocab, TOP, ids + n_draft);
    if (n_draft == 0 || n == n_draft) return; /* not finite */
    double p_max = (double)target[ids[n_draft]], q_max = (double)draft[ids[0]],
           p_sum = log_sum(target, n_vocab, target[ids[n_draft]], temperature),
           q_sum = log_sum(draft, n_vocab, draft[ids[0]], temperature);
    if (!isfinite(p_max + p_sum) || !isfinite(q_max + q_sum)) return;
    LiveInfoRow *row = find_or_replace(l, token);
    row->last_used = ++l->n_learned;
    for (int32_t i = 0; i < n; i++) {
        double log_p = fmax(((double)target[ids[i]] - p_max) / temperature - p_sum, MIN_LOG),
               log_q = fmax(((double)draft[ids[i]] - q_max) / temperature - q_sum, MIN_LOG);
        bool comes_again = false;
        for (int32_t k = n_draft; k < n && i < n_draft; k++) comes_again |= ids[k] == ids[i];
        if (!comes_again) correct(row, ids[i], (float)(RATE * (log_p - log_q)));
    }
}
