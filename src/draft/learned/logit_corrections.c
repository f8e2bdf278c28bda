/* logit_corrections.c - token info, its gate, live info and the confidence head: four corrections of what a drafter
 * estimates, each with its own essay. */
#include "draft/learned/logit_corrections.h"

#include "base/math_functions.h"
#include "base/mem.h"
#include "draft/feedback.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- token info ------------------------------------------------------------------------------------ */

/* The token-info embedding of Lyanna (sections 5.1 and 6.1).
 *
 * The problem. Lyanna's hidden states are drafted without the tokens between them, so that they stay valid when a
 * token turns out wrong. Their logits thus depend on the position but not on the token before it, on which a text
 * depends most. A map from tokens to logits has V x V numbers: too many to train, and for large V too many to store.
 *
 * The idea. The map is a product of three factors. The first is the target's embedding, which is fixed; the other two
 * are trained:
 *
 *     E'(t) = g * RMSNorm(E[t] W1 W2)      W1 [H][d], W2 [d][V]; g a gain for each token, as in any norm
 *     l'    = l + E'(t)                    the norm keeps the sum in the range of logits, whatever t is
 *
 * The file has the factors. At open, all rows are computed once (W_collapsed of the paper). They have V^2 numbers; a
 * draft reads one row for each token that it continues from.
 *
 *     V = 4096     F16  34 MB, Q8  18 MB
 *     V = 32000    F16 2.0 GB, Q8 1.1 GB
 *
 * `eagle` and `redrafter` do know the token before, through their state. Their files may have the factors too, and
 * the info is then added to their logits (docs/methods/README.md).
 *
 * Hot tokens. A small part of the vocabulary makes up most texts. With <method>.hot_tokens, only these tokens have
 * rows and columns, the norm is over these columns, and other tokens have no info: a quarter of the vocabulary is a
 * sixteenth of the table.
 *
 *     hot 3 7 9:  table [3][3];  E'(7) is added to the logits of 3, 7 and 9;  E'(8) = 0
 *
 * If even that does not fit into memory, the factors are multiplied on demand: all tokens of one level of a tree in
 * one product. All three forms give the same numbers, up to the rounding of the table.
 *
 * Cost: n d (H + n) multiplications at open, by all threads (docs/methods/README.md has times); for each token, a row
 * of n numbers is read and added. Proof: tests/draft/test_token_info.c, against the formula in double precision. */
/* Reads the rank; it stays 0 if the file has no such key. */
static int read_rank(const TokenInfo *t, const DrafterFile *f, int32_t *rank, fr_error *err) {
    char key[128];
    LearnedName name = learned_name(t->method, TOKEN_INFO_KEY_RANK);
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name.text);
    if (gguf_find_key(f->gguf, key) < 0) return FR_OK;
    return drafter_file_int(f, name.text, 0, TOKEN_INFO_MAX_RANK, rank, err);
}

/* Reads which tokens have info: those of the file's list, or all. */
static int read_hot(TokenInfo *t, const DrafterFile *f, fr_error *err) {
    int32_t n_vocab = t->learned->target->hparams.n_vocab;
    t->n = n_vocab;
    int status = drafter_file_tokens(f, learned_name(t->method, TOKEN_INFO_KEY_HOT_TOKENS).text, n_vocab, &t->hot,
                                     &t->n, err);
    if (status || !t->hot) return status;
    t->index_of = mem_alloc((size_t)n_vocab * sizeof *t->index_of);
    if (!t->index_of) return error_memory(err, "token info", (size_t)n_vocab * sizeof *t->index_of);
    for (int32_t i = 0; i < n_vocab; i++) t->index_of[i] = -1;
    for (int32_t i = 0; i < t->n; i++) t->index_of[t->hot[i]] = i;
    return FR_OK;
}

static int read_factors(TokenInfo *t, int32_t rank, fr_error *err) {
    LearnedDrafter *l = t->learned;
    int64_t batch = TOKEN_INFO_BATCH;
    int status = learned_linear_open(l, learned_name(t->method, TOKEN_INFO_DOWN).text, l->n_embd, rank, false, batch,
                                     &t->down, err);
    if (!status)
        status = learned_linear_open(l, learned_name(t->method, TOKEN_INFO_UP).text, rank, t->n, false, batch, &t->up,
                                     err);
    if (!status)
        status = drafter_file_vector(&l->file, learned_name(t->method, TOKEN_INFO_GAIN).text, t->n, &t->gain, err);
    const LearnedBuffer buffers[] = {{&t->embeddings, batch * l->n_embd},
                                     {&t->narrow, batch * rank},
                                     {&t->wide, batch * t->n}};
    return status ? status : learned_open_buffers(l, buffers, ARENA_COUNT(buffers), err);
}

static void close_factors(TokenInfo *t) {
    learned_linear_close(t->learned, t->down);
    learned_linear_close(t->learned, t->up);
    t->down = t->up = NULL;
}

static int open_table(TokenInfo *t, fr_error *err) {
    TensorType type = t->form == TOKEN_INFO_Q8 ? TYPE_Q8_0 : TYPE_F16;
    enum { BLOCK = 32 };
    size_t row_bytes = 0;
    (void)tensor_type_row_bytes(type, (t->n + BLOCK - 1) / BLOCK * BLOCK, &row_bytes);
    size_t bytes = (size_t)t->n * row_bytes;
    if (bytes > TOKEN_INFO_MAX_BYTES)
        return error_set(err, FR_ERR_MEMORY,
                         "%s: a table of token info for %d tokens takes %.1f GB; draft with lyanna and "
                         "table=factors, or train with fewer hot tokens or without --rank",
                         t->method, t->n, (double)bytes / 1e9);
    return t->learned->backend->lookup_open(&t->table, t->learned->device, type, t->n, t->n, err);
}

/* Computes the info of n <= TOKEN_INFO_BATCH tokens that have one, into t->wide. */
static void compute(TokenInfo *t, const int32_t *tokens, int32_t n) {
    LearnedDrafter *l = t->learned;
    learned_embed(l, tokens, n, (Slice){t->embeddings, 0});
    learned_linear(l, t->down, LINEAR_SET, t->embeddings, n, t->narrow);
    learned_linear(l, t->up, LINEAR_SET, t->narrow, n, t->wide);
    l->backend->rmsnorm(l->device, (Slice){t->wide, 0}, n, t->n, t->gain, l->target->hparams.rms_eps);
    buffer_pull(t->wide, 0, (int64_t)n * t->n);
}

/* Computes all rows of the table from the factors. */
static void collapse(TokenInfo *t) {
    int32_t tokens[TOKEN_INFO_BATCH];
    for (int32_t first = 0; first < t->n; first += TOKEN_INFO_BATCH) {
        int32_t n = t->n - first < TOKEN_INFO_BATCH ? t->n - first : TOKEN_INFO_BATCH;
        for (int32_t i = 0; i < n; i++) tokens[i] = t->hot ? t->hot[first + i] : first + i;
        compute(t, tokens, n);
        t->learned->backend->lookup_store(t->learned->device, t->table, first, n, t->wide->floats);
    }
    close_factors(t);
}

int token_info_open(TokenInfo *t, LearnedDrafter *learned, const char *method, TokenInfoForm form, fr_error *err) {
    int32_t rank = 0;
    *t = (TokenInfo){.learned = learned, .method = method, .form = form};
    int status = read_rank(t, &learned->file, &rank, err);
    if (status || rank == 0) return status;
    status = read_hot(t, &learned->file, err);
    if (!status) status = read_factors(t, rank, err);
    if (status || form == TOKEN_INFO_FACTORS) return status;
    status = open_table(t, err);
    if (!status) collapse(t);
    return status;
}

void token_info_close(TokenInfo *t) {
    if (!t->learned) return; /* token_info_open was not called */
    close_factors(t);
    if (t->table) t->learned->backend->lookup_close(t->table);
    mem_free(t->hot);
    mem_free(t->index_of);
    mem_free(t->gain);
}

/* Reads a row of the table into t->wide->floats [n]. */
static void load(TokenInfo *t, int32_t row) {
    memset(t->wide->floats, 0, (size_t)t->n * sizeof *t->wide->floats);
    t->learned->backend->lookup_add(t->learned->device, t->table, row, t->wide->floats);
}

static void add_info(const TokenInfo *t, const float *info, float *logits) {
    for (int32_t i = 0; i < t->n; i++) logits[t->hot ? t->hot[i] : i] += info[i];
}

void token_info_add(TokenInfo *t, const int32_t *tokens, int32_t n, float *rows) {
    int32_t known[TOKEN_INFO_BATCH] = {0}, at[TOKEN_INFO_BATCH],
            n_known = 0; /* the tokens that have info, and the rows of logits that they belong to */
    fr_assert(n <= TOKEN_INFO_BATCH);
    if (t->n == 0) return;
    fr_assert(t->learned && (!t->hot || t->index_of));
    int64_t n_vocab = t->learned->n_vocab;
    for (int32_t i = 0; i < n; i++) {
        if (t->index_of && t->index_of[tokens[i]] < 0) continue;
        at[n_known] = i;
        known[n_known++] = tokens[i];
    }
    if (t->form == TOKEN_INFO_FACTORS) compute(t, known, n_known);
    for (int32_t i = 0; i < n_known; i++) {
        float *logits = rows + at[i] * n_vocab;
        if (t->form == TOKEN_INFO_FACTORS) {
            add_info(t, t->wide->floats + (int64_t)i * t->n, logits);
        } else if (t->hot) {
            load(t, t->index_of[known[i]]);
            add_info(t, t->wide->floats, logits);
        } else {
            t->learned->backend->lookup_add(t->learned->device, t->table, known[i], logits);
        }
    }
}

/* ---- the gate -------------------------------------------------------------------------------------- */

/* Token info gated by the state.
 *
 * The problem. Token info is the same wherever a token occurs, so what follows "New" does not depend on what the text
 * is about. The chain of hidden states knows that, but no token may enter the chain.
 *
 * The idea. The state and the token meet after the chain, in a bilinear form of low rank:
 *
 *     l' = l_s + E'(t) + U ((P h_s) * (Q E[t]))       P, Q [r][H]; U [V][r]; * is elementwise
 *
 * h_s depends on no token, so P h_s is computed once for each state of a chain and is as valid for re-sampling as l_s
 * is. Q E[t] depends on nothing but the token, so it is a table, computed when the file is opened.
 *
 *     P h_1 .. P h_5       one product for all chains of a proposal
 *     nodes of a level     r multiplications each, and one product with U for all of them: 4 x V x 32 for top=4, r = 32
 *
 * Proof: tests/draft/test_draft_lyanna.c, against the formula in double precision; test_train_unroll.c, against the
 * trained network. */
enum { GATE_BATCH = 64 };

/* Reads the rank; it stays 0 if the file has no such key. */
static int read_gate_rank(InfoGate *g, fr_error *err) {
    const DrafterFile *f = &g->learned->file;
    if (gguf_find_key(f->gguf, DRAFTER_KEY(LYANNA GATE_KEY_RANK)) < 0) return FR_OK;
    return drafter_file_int(f, LYANNA GATE_KEY_RANK, 0, INFO_GATE_MAX_RANK, &g->rank, err);
}

/* Computes g->of_token, which is Q E[t] for every token t. */
static int compute_table(InfoGate *g, fr_error *err) {
    LearnedDrafter *l = g->learned;
    Linear *token = NULL;
    Buffer *embeddings = NULL, *products = NULL;
    int32_t tokens[GATE_BATCH];
    int status = l->backend->buffer_open(&embeddings, l->device, (int64_t)GATE_BATCH * l->n_embd, err);
    if (!status) status = l->backend->buffer_open(&products, l->device, (int64_t)GATE_BATCH * g->rank, err);
    if (!status)
        status = learned_linear_open(l, LYANNA GATE_TOKEN_FACTOR, l->n_embd, g->rank, false, GATE_BATCH, &token, err);
    for (int32_t first = 0; first < l->n_vocab && !status; first += GATE_BATCH) {
        int32_t n = l->n_vocab - first < GATE_BATCH ? l->n_vocab - first : GATE_BATCH;
        for (int32_t i = 0; i < n; i++) tokens[i] = first + i;
        learned_embed(l, tokens, n, (Slice){embeddings, 0});
        learned_linear(l, token, LINEAR_SET, embeddings, n, products);
        buffer_pull(products, 0, (int64_t)n * g->rank);
        memcpy(g->of_token + (int64_t)first * g->rank, products->floats,
               (size_t)n * (size_t)g->rank * sizeof *g->of_token);
    }
    learned_linear_close(l, token);
    buffer_close(embeddings);
    buffer_close(products);
    return status;
}

int info_gate_open(InfoGate *g, LearnedDrafter *learned, int32_t max_states, int32_t max_tokens, fr_error *err) {
    *g = (InfoGate){.learned = learned};
    int status = read_gate_rank(g, err);
    if (status || g->rank == 0) return status;
    int64_t rank = g->rank;
    const ArenaItem items[] = {ARENA_ITEM(&g->of_token, learned->n_vocab * rank)};
    const LearnedBuffer buffers[] = {{&g->products, max_tokens * rank},
                                     {&g->rows, (int64_t)max_tokens * learned->n_vocab},
                                     {&g->states, max_states * rank}};
    status = arena_take(&learned->arena, items, ARENA_COUNT(items), "lyanna", err);
    if (!status) status = learned_open_buffers(learned, buffers, ARENA_COUNT(buffers), err);
    if (!status)
        status = learned_linear_open(learned, LYANNA GATE_STATE_FACTOR, learned->n_embd, rank, false, max_states,
                                     &g->state, err);
    if (!status)
        status = learned_linear_open(learned, LYANNA GATE_OUTPUT, rank, learned->n_vocab, false, max_tokens, &g->up,
                                     err);
    return status ? status : compute_table(g, err);
}

void info_gate_close(InfoGate *g) {
    if (!g->learned) return; /* info_gate_open was not called */
    learned_linear_close(g->learned, g->state);
    learned_linear_close(g->learned, g->up);
}

void info_gate_states(InfoGate *g, Buffer *hidden, int32_t n) {
    learned_linear(g->learned, g->state, LINEAR_SET, hidden, n, g->states);
    buffer_pull(g->states, 0, (int64_t)n * g->rank);
}

void info_gate_bias(InfoGate *g, const float *state, const int32_t *tokens, int32_t n, float *rows) {
    int64_t rank = g->rank, n_logits = (int64_t)n * g->learned->n_vocab;
    for (int32_t i = 0; i < n; i++)
        for (int64_t k = 0; k < rank; k++)
            g->products->floats[i * rank + k] = state[k] * g->of_token[tokens[i] * rank + k];
    buffer_push(g->products, 0, n * rank);
    learned_linear(g->learned, g->up, LINEAR_SET, g->products, n, g->rows);
    buffer_pull(g->rows, 0, n_logits);
    memcpy(rows, g->rows->floats, (size_t)n_logits * sizeof *rows);
}

/* ---- live info -------------------------------------------------------------------------------------- */

/* Token info that adapts to the text.
 *
 * The problem. Token info is trained once and for all texts. But a text repeats itself: what follows a token in it,
 * names and turns of phrase above all, is not what follows the token on average.
 *
 * The idea. After a step the target's logits at the accepted tokens are known, and so are the logits that were drafted
 * there. Their difference is the drafter's error. The part of the error that depends on the token x before is corrected
 * the next time x occurs:
 *
 *     delta[x][v] += RATE (log p(v) - log q(v))       p, q = softmax(logits / tau) of the target and of the draft
 *     draft after x = softmax((l + E'(x) + delta[x]) / tau)
 *
 * Here v runs over the TOP best tokens of the target, which the draft may have missed, and the TOP best of the draft,
 * which may be wrong. log p is at least MIN_LOG, because a token that is already ruled out need not be pushed down
 * further. As q contains the correction so far, delta converges to the mean error over the last tau / RATE occurrences
 * of x. tau is the temperature at which drafters rank tokens, 0.5 for a greedy text, which repeats itself the most:
 * then three occurrences count, and at temperature 1 seven.
 *
 *     tau 0.5:  after "Mr" the target was sure of "Brown" (log p -0.1), the draft of "Smith" (-0.1; "Brown" -20)
 *               delta[Mr]: Brown +3, Smith -3, a third of what was missing: 0.5 * 20
 *
 * Only the verifier chooses tokens, so no text changes. A sequence begins with nothing learned, so that drafts depend
 * only on its own request.
 *
 * Layout: a table of a fixed number of rows, by token, in sets of WAYS; a row has up to ENTRIES corrections. A new
 * token replaces the least recently used row of its set, and a new correction the smallest one of its row. A sequence
 * has 4096 corrections in 37 KB.
 *
 * Cost: for each accepted token, two sums over V and two searches for the best; for each expanded node, a look-up. When
 * it loses: never much; texts at temperature 1 repeat little, and it gains nothing there (docs/methods/lyanna.md).
 * Proof: tests/draft/test_live_info.c, against a full matrix in double precision. */
#define RATE 0.15
#define MIN_LOG -30.0
enum { TOP = 4 };

void live_info_reset(LiveInfo *l) { memset(l, 0, sizeof *l); }

static const LiveInfoRow *set_of(const LiveInfo *l, int32_t token) {
    return l->rows[((uint32_t)token * 0x9E3779B1u >> 16) % LIVE_INFO_SETS]; /* neighbouring ids get different sets */
}

/* Finds the row of a token; NULL if it has none. */
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

/* Adds to the correction of one logit. If the row is full, a new correction replaces the smallest one. */
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
    for (int32_t i = 0; i < n; i++) sum += math_exp((double)(x[i] - max) / tau);
    return math_log(sum);
}

void live_info_learn(LiveInfo *l, int32_t token, const float *target, const float *draft, int32_t n_vocab,
                     double temperature) {
    int32_t ids[2 * TOP], n_draft = logits_top_k(draft, n_vocab, TOP, ids),
                          n = n_draft + logits_top_k(target, n_vocab, TOP, ids + n_draft);
    if (n_draft == 0 || n == n_draft) return; /* no logit is finite */
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

/* ---- the confidence head ------------------------------------------------------------------------------ */

/* How sure a drafter should be of its own tokens.
 *
 * The problem. A tree gets its shape from the drafter's estimates: the probability that it gives to a token is taken
 * for the chance that the target chooses it. Deep in a chain the state has drifted from the target's, but the drafter
 * is as sure of itself as before.
 *
 * The idea (DSpark's confidence head). A linear head on the state predicts whether the best token there is
 * the target's, given the estimate p:
 *
 *     chance c = sigmoid(w state + b + (1 + a) logit(p))
 *
 * With all numbers 0 that is p itself, so training begins without a correction and learns one. The best child of a node
 * gets c in place of p. If c < p, the drafter is less sure than its estimates, and all children are scaled by c / p, so
 * that trees become shorter there. If c > p, the others share 1 - c in the same proportions as they shared 1 - p.
 *
 *     p = .6 .3 .05    c = .3   ->  .3 .15 .025        c = .8   ->  .8 .15 .025
 *
 * Cost: a dot product for each state. Training: train/unroll_net.c. Proof: tests/draft/test_confidence.c. */
int confidence_open(Confidence *c, LearnedDrafter *learned, const char *method, fr_error *err) {
    LearnedName name = learned_name(method, CONFIDENCE);
    *c = (Confidence){.n_embd = learned->n_embd};
    if (!drafter_file_has(&learned->file, name.text)) return FR_OK;
    return drafter_file_vector(&learned->file, name.text, c->n_embd + CONFIDENCE_SCALARS, &c->weights, err);
}

void confidence_close(Confidence *c) {
    mem_free(c->weights);
    c->weights = NULL;
}

float confidence_of_state(const Confidence *c, const float *state) {
    if (!c->weights) return 0;
    double sum = (double)c->weights[c->n_embd + CONFIDENCE_BIAS];
    for (int32_t i = 0; i < c->n_embd; i++) sum += (double)c->weights[i] * (double)state[i];
    return (float)sum;
}

static double clamp(double x, double limit) { return x < -limit ? -limit : x > limit ? limit : x; }

void confidence_correct(const Confidence *c, float of_state, double *log_p, int32_t n) {
    if (!c->weights || n == 0) return;
    double p = math_exp(log_p[0]), others = 1 - p;
    double logit = others > 0 ? clamp(log_p[0] - math_log(others), CONFIDENCE_MAX_MARGIN) : CONFIDENCE_MAX_MARGIN;
    double z = (double)of_state + (1 + (double)c->weights[c->n_embd + CONFIDENCE_SLOPE]) * logit;
    double log_c = -math_log1p(math_exp(-z)), log_not_c = log_c - z; /* log c and log (1 - c) */
    if (!isfinite(log_c)) return;
    double factor = log_c < log_p[0] || !(others > 0) ? log_c - log_p[0] : log_not_c - math_log(others);
    log_p[0] = log_c;
    for (int32_t i = 1; i < n; i++) log_p[i] += factor;
}
