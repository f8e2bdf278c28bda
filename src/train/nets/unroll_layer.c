/* unroll_layer.c - a drafter that reads its own guesses must learn from its own guesses.
 *
 * One transformer layer guesses the target's next hidden state. Where it drafts, only its first input is the target's; then
 * it goes on from what it guessed itself, whose errors it never saw if it was only taught with true states. So a lesson runs
 * chains: from each place t, n_steps steps, each on the output of the last (HASS, Zhang et al. 2025, arXiv 2408.15766;
 * Lyanna, section 4). All chains make a step together, as the rows of one batch:
 *
 *     step 1   row t: input fc [E(x_{t+1}) ; h_t], position t,     sees rows 0 .. t of step 1: true keys and values
 *     step 2   row t: input from f^1_t,            position t + 1, sees rows 0 .. t of step 1, and itself
 *     step 3   row t: input from f^2_t,            position t + 2, sees rows 0 .. t of step 1, row t of step 2, and itself
 *
 * which is what the drafter's cache holds when it drafts: true entries of what the target has read, then its own rows. The
 * output of step s, f^s_t, guesses h_{t+s}, and through the target's head the token x_{t+s+1} (head_loss.c).
 *
 *     input of step s >= 2:   f^{s-1}_t                          fuses_each_step false
 *                             fc [E(x_{t+s}) ; f^{s-1}_t]        fuses_each_step true
 *     layer                   x += Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = norm(x), or x where it has no norm there
 *                             x += Wdown (silu(Wgate m) * (Wup m)),             m = norm(x)
 *
 * Which rows are made. Step 1 has one for each place, for its keys are context. A chain goes on only where one of its later
 * steps is judged at a place that counts, and as long as the sequence has a place for it, so that a prompt costs one row a
 * token and an answer n_steps. Chains are in order of t, so those of a step are the first ones of the step before.
 *
 * Way back: from the last step to the first. A step's df is complete once the step after it is undone; keys and values of
 * step 1 gather gradient from all steps. Nothing is cut off: the gradient flows through every guess.
 *
 * The first values are the target's last layer, and an fc that lets the state through and adds the token's embedding in random
 * directions. Embeddings are small numbers; columns of the usual deviation 0.02 would make the token a whisper that takes long
 * to be heard, so theirs is start_token_std.
 *
 * Cost: a row of the layer for each token, n_steps of them where an answer is, and n_steps + 1 products with the vocabulary.
 * Proof: test_train_drafters.c by finite differences in double, test_train_unroll.c against the drafters that run the files. */
#include "train/nets/unroll_layer.h"

#include "base/mem.h"
#include "train/ops/op_linear.h"
#include "train/ops/op_rmsnorm.h"
#include "train/ops/op_rope.h"
#include "train/ops/op_silu.h"
#include "train/ops/op_unroll_attention.h"

#include <stdio.h>
#include <string.h>

static int64_t q_dim(const UnrollShape *s) { return (int64_t)s->n_head * s->head_dim; }
static int64_t kv_dim(const UnrollShape *s) { return (int64_t)s->n_head_kv * s->head_dim; }
static int64_t fc_in(const UnrollShape *s) { return s->fuses_token ? 2 * s->C : s->C; }
static bool is_fused(const UnrollShape *s, int32_t step) { return step == 0 || s->fuses_each_step; }

/* ---- tensors ------------------------------------------------------------------------------------ */

int32_t unroll_n_tensors(const UnrollShape *s) { return UNROLL_ATTN_NORM + s->has_attn_norm; }

NetTensor unroll_tensor(const UnrollShape *s, int32_t i) {
    static const char *const suffixes[] = {"fc.weight", "fc.bias", "attn_q.weight", "attn_k.weight", "attn_v.weight",
                                           "attn_output.weight", "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight",
                                           "ffn_down.weight", "attn_norm.weight"};
    int64_t C = s->C, F = s->n_ff, Q = q_dim(s), K = kv_dim(s);
    const int64_t n_rows[] = {C, 0, Q, K, K, C, 0, F, F, C, 0}, n[] = {fc_in(s), C, C, C, C, Q, C, C, C, F, C};
    NetTensor t = {.n_rows = n_rows[i], .n = n[i], .start = NET_LAYER, .std = 0.02, .suffix = suffixes[i]};
    if (i == UNROLL_FC) t.start = NET_FUSE, t.std = s->fc_std;
    if (i == UNROLL_FC_BIAS) t.start = NET_ZEROS;
    if ((i == UNROLL_Q || i == UNROLL_K) && s->qk_start_anew) t.start = NET_NORMAL;
    snprintf(t.name, sizeof t.name, "%s.%s", s->method, suffixes[i]);
    return t;
}

/* ---- room --------------------------------------------------------------------------------------- */

/* Hands out the parts of an arena, each at the next multiple of 64 bytes; with no memory it only counts. */
typedef struct Arena {
    real *memory;
    int64_t n;
} Arena;

static void part(Arena *a, real **out, int64_t n) {
    if (a->memory) *out = a->memory + a->n;
    a->n += (n + 15) / 16 * 16;
}

static void place_acts(UnrollActs *a, const UnrollShape *s, Arena *m) {
    int64_t T = a->max_length, C = s->C, F = s->n_ff, Q = q_dim(s), K = kv_dim(s), R = s->rope->params.n_rot;
    for (int32_t i = 0; i < s->n_steps; i++) {
        UnrollStep *p = &a->steps[i];
        part(m, &p->pair, T * 2 * C), part(m, &p->x, T * C);
        part(m, &p->attn_normed, T * C), part(m, &p->attn_rms, T);
        part(m, &p->q, T * Q), part(m, &p->k, T * K), part(m, &p->v, T * K);
        part(m, &p->probs, s->n_head * T * (T + i)), part(m, &p->attended, T * Q);
        part(m, &p->x_mid, T * C), part(m, &p->ffn_normed, T * C), part(m, &p->ffn_rms, T);
        part(m, &p->gate, T * F), part(m, &p->up, T * F), part(m, &p->hidden, T * F);
        part(m, &p->f, T * C), part(m, &p->df, T * C), part(m, &p->dk, T * K), part(m, &p->dv, T * K);
    }
    part(m, &a->cos_sin, T * R), part(m, &a->angles, T * R), part(m, &a->delta, T * C);
    part(m, &a->dx, T * C), part(m, &a->dnormed, T * C), part(m, &a->dattended, T * Q), part(m, &a->dq, T * Q);
    part(m, &a->dgate, T * F), part(m, &a->dup, T * F), part(m, &a->dhidden, T * F);
    part(m, &a->dpair, T * 2 * C), part(m, &a->dscores, UNROLL_BLOCK * (T + s->n_steps));
}

/* The very angles of the executor, rounded to float as there. */
static bool fill_angles(UnrollActs *a, const UnrollShape *s) {
    int32_t n = s->rope->params.n_rot;
    float *row = mem_alloc((size_t)n * sizeof *row);
    for (int32_t t = 0; row && t < a->max_length; t++) {
        rope_angles(s->rope, t, row);
        for (int32_t i = 0; i < n; i++) a->cos_sin[(int64_t)t * n + i] = (real)row[i];
    }
    bool is_filled = row != NULL;
    mem_free(row);
    return is_filled;
}

bool unroll_open(UnrollActs *a, const UnrollShape *s, int32_t max_length, size_t *bytes) {
    *a = (UnrollActs){.max_length = max_length};
    Arena arena = {0};
    place_acts(a, s, &arena);
    *bytes = (size_t)arena.n * sizeof(real);
    arena = (Arena){.memory = a->memory = mem_alloc(*bytes)};
    a->entries = mem_calloc((size_t)max_length, sizeof *a->entries);
    a->chains = mem_calloc((size_t)max_length, sizeof *a->chains);
    if (a->memory && a->entries && a->chains) {
        place_acts(a, s, &arena);
        for (int32_t t = 0; t < max_length; t++) a->entries[t] = t;
        if (fill_angles(a, s)) return true;
    }
    unroll_close(a);
    return false;
}

void unroll_close(UnrollActs *a) {
    mem_free(a->memory);
    mem_free(a->entries);
    mem_free(a->chains);
    *a = (UnrollActs){0};
}

/* ---- which rows --------------------------------------------------------------------------------- */

/* Is one of the steps 2 .. n_steps from t judged? */
static bool goes_on(const UnrollShape *s, const TrainSequence *l, int32_t t) {
    for (int32_t place = t + 2; place <= t + s->n_steps && place < l->T; place++)
        if (l->loss_mask[place]) return true;
    return false;
}

/* Step i + 1 from t is judged at place t + i + 1, which must be one. */
static void choose_rows(const UnrollShape *s, UnrollActs *a, const TrainSequence *l) {
    int32_t n = 0;
    for (int32_t t = 0; t < l->T; t++)
        if (goes_on(s, l, t)) a->chains[n++] = t;
    for (int32_t i = 0; i < s->n_steps; i++) {
        UnrollStep *p = &a->steps[i];
        p->chains = i ? a->chains : a->entries;
        p->n = i ? n : l->T;
        while (p->n > 0 && p->chains[p->n - 1] + i + 1 >= l->T) p->n--;
    }
}

/* ---- forward ------------------------------------------------------------------------------------ */

/* out: [n][width], row i that of index[i] + shift */
static void take_rows(real *out, const real *rows, const int32_t *index, int32_t shift, int32_t n, int64_t width) {
    for (int32_t i = 0; i < n; i++) memcpy(out + i * width, rows + (index[i] + shift) * width, (size_t)width * sizeof *out);
}

/* out = a + b, all [n]; out may be a */
static void add_to(real *out, const real *a, const real *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) out[i] = a[i] + b[i];
}

static void make_input(const UnrollShape *s, real *const *w, UnrollActs *a, const TrainSequence *l, int32_t step) {
    UnrollStep *p = &a->steps[step];
    const real *state = step ? a->steps[step - 1].f : l->hidden;
    int64_t C = s->C, width = fc_in(s);
    if (!is_fused(s, step)) {
        take_rows(p->x, state, p->chains, 0, p->n, C);
        return;
    }
    for (int32_t i = 0; i < p->n; i++) {
        int32_t t = p->chains[i];
        real *pair = p->pair + i * width;
        if (s->fuses_token) memcpy(pair, l->embd + l->tokens[t + step + 1] * C, (size_t)C * sizeof *pair);
        memcpy(pair + width - C, state + t * C, (size_t)C * sizeof *pair);
        if (l->noise && step == 0) add_to(pair + width - C, pair + width - C, l->noise + t * C, C);
    }
    linear_forward(p->x, p->pair, w[UNROLL_FC], w[UNROLL_FC_BIAS], p->n, width, C);
}

/* Keys and values that the rows of a step see. own_k, own_v: [step], written and borrowed. */
static UnrollAttention attention_of(const UnrollShape *s, const UnrollActs *a, int32_t step, real **own_k, real **own_v) {
    for (int32_t i = 1; i <= step; i++) own_k[i - 1] = a->steps[i].k, own_v[i - 1] = a->steps[i].v;
    return (UnrollAttention){a->steps[step].n, a->steps[0].n, step, s->n_head, s->n_head_kv, s->head_dim, a->steps[step].chains,
                             a->steps[0].k, a->steps[0].v, own_k, own_v};
}

/* What attention is made from: the norm of x, or x itself. */
static real *attention_input(const UnrollShape *s, const UnrollStep *p) { return s->has_attn_norm ? p->attn_normed : p->x; }

static void attention_block(const UnrollShape *s, real *const *w, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    int64_t n = p->n, C = s->C, Q = q_dim(s), K = kv_dim(s), D = s->head_dim, R = s->rope->params.n_rot;
    RopeStyle style = s->rope->params.style;
    real *own_k[UNROLL_MAX_STEPS], *own_v[UNROLL_MAX_STEPS], *in = attention_input(s, p);
    if (s->has_attn_norm) rmsnorm_forward(in, p->attn_rms, p->x, w[UNROLL_ATTN_NORM], n, C, (real)s->rms_eps);
    linear_forward(p->q, in, w[UNROLL_Q], NULL, n, C, Q);
    linear_forward(p->k, in, w[UNROLL_K], NULL, n, C, K);
    linear_forward(p->v, in, w[UNROLL_V], NULL, n, C, K);
    take_rows(a->angles, a->cos_sin, p->chains, step, p->n, R);
    rope_forward(style, p->q, a->angles, n, s->n_head, D, R);
    rope_forward(style, p->k, a->angles, n, s->n_head_kv, D, R);
    UnrollAttention attention = attention_of(s, a, step, own_k, own_v);
    unroll_attention_forward(p->attended, p->probs, p->q, &attention);
    linear_forward(a->delta, p->attended, w[UNROLL_O], NULL, n, Q, C);
    add_to(p->x_mid, p->x, a->delta, n * C);
}

static void feed_forward_block(const UnrollShape *s, real *const *w, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    int64_t n = p->n, C = s->C, F = s->n_ff;
    rmsnorm_forward(p->ffn_normed, p->ffn_rms, p->x_mid, w[UNROLL_FFN_NORM], n, C, (real)s->rms_eps);
    linear_forward(p->gate, p->ffn_normed, w[UNROLL_GATE], NULL, n, C, F);
    linear_forward(p->up, p->ffn_normed, w[UNROLL_UP], NULL, n, C, F);
    swiglu_forward(p->hidden, p->gate, p->up, n * F);
    linear_forward(a->delta, p->hidden, w[UNROLL_DOWN], NULL, n, F, C);
    for (int32_t i = 0; i < p->n; i++) add_to(p->f + p->chains[i] * C, p->x_mid + i * C, a->delta + i * C, C);
}

void unroll_forward(const UnrollShape *s, real *const *w, UnrollActs *a, const TrainSequence *l) {
    choose_rows(s, a, l);
    for (int32_t step = 0; step < s->n_steps && a->steps[step].n; step++) {
        make_input(s, w, a, l, step);
        attention_block(s, w, a, step);
        feed_forward_block(s, w, a, step);
    }
}

/* ---- way back ----------------------------------------------------------------------------------- */

static void zero(real *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

void unroll_zero(const UnrollShape *s, UnrollActs *a, const TrainSequence *l) {
    for (int32_t i = 0; i < s->n_steps; i++) zero(a->steps[i].df, (int64_t)l->T * s->C);
}

/* a->dx, the derivative by the layer's output, becomes that by the stream between attention and feed-forward. */
static void feed_forward_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, const UnrollStep *p) {
    int64_t n = p->n, C = s->C, F = s->n_ff;
    zero(a->dhidden, n * F), zero(a->dgate, n * F), zero(a->dup, n * F), zero(a->dnormed, n * C);
    linear_backward(a->dhidden, dw[UNROLL_DOWN], NULL, a->dx, p->hidden, w[UNROLL_DOWN], n, F, C);
    swiglu_backward(a->dgate, a->dup, a->dhidden, p->gate, p->up, n * F);
    linear_backward(a->dnormed, dw[UNROLL_GATE], NULL, a->dgate, p->ffn_normed, w[UNROLL_GATE], n, C, F);
    linear_backward(a->dnormed, dw[UNROLL_UP], NULL, a->dup, p->ffn_normed, w[UNROLL_UP], n, C, F);
    rmsnorm_backward(a->dx, dw[UNROLL_FFN_NORM], a->dnormed, p->x_mid, w[UNROLL_FFN_NORM], p->ffn_rms, n, C);
}

/* ... and then that by the layer's input. Steps after this one have left their gradients of its keys and values. */
static void attention_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    int64_t n = p->n, C = s->C, Q = q_dim(s), K = kv_dim(s), D = s->head_dim, R = s->rope->params.n_rot;
    RopeStyle style = s->rope->params.style;
    real *own_k[UNROLL_MAX_STEPS], *own_v[UNROLL_MAX_STEPS], *own_dk[UNROLL_MAX_STEPS], *own_dv[UNROLL_MAX_STEPS];
    const real *in = attention_input(s, p);
    UnrollAttention attention = attention_of(s, a, step, own_k, own_v);
    for (int32_t i = 1; i <= step; i++) own_dk[i - 1] = a->steps[i].dk, own_dv[i - 1] = a->steps[i].dv;
    zero(a->dattended, n * Q), zero(a->dq, n * Q), zero(a->dnormed, n * C);
    linear_backward(a->dattended, dw[UNROLL_O], NULL, a->dx, p->attended, w[UNROLL_O], n, Q, C);
    unroll_attention_backward(a->dq, a->steps[0].dk, a->steps[0].dv, own_dk, own_dv, a->dattended, p->probs, p->q, a->dscores,
                              &attention);
    take_rows(a->angles, a->cos_sin, p->chains, step, p->n, R);
    rope_backward(style, a->dq, a->angles, n, s->n_head, D, R);
    rope_backward(style, p->dk, a->angles, n, s->n_head_kv, D, R);
    real *din = s->has_attn_norm ? a->dnormed : a->dx;
    linear_backward(din, dw[UNROLL_Q], NULL, a->dq, in, w[UNROLL_Q], n, C, Q);
    linear_backward(din, dw[UNROLL_K], NULL, p->dk, in, w[UNROLL_K], n, C, K);
    linear_backward(din, dw[UNROLL_V], NULL, p->dv, in, w[UNROLL_V], n, C, K);
    if (s->has_attn_norm)
        rmsnorm_backward(a->dx, dw[UNROLL_ATTN_NORM], a->dnormed, p->x, w[UNROLL_ATTN_NORM], p->attn_rms, n, C);
}

/* a->dx goes into fc and into what the step before guessed; before the first is the target, which learns nothing. */
static void input_back(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a, int32_t step) {
    UnrollStep *p = &a->steps[step];
    const real *dstate = a->dx;
    int64_t C = s->C, width = C;
    if (is_fused(s, step)) {
        width = fc_in(s);
        zero(a->dpair, p->n * width);
        linear_backward(step ? a->dpair : NULL, dw[UNROLL_FC], dw[UNROLL_FC_BIAS], a->dx, p->pair, w[UNROLL_FC], p->n, width, C);
        dstate = a->dpair + width - C;
    }
    for (int32_t i = 0; step && i < p->n; i++) {
        real *df = a->steps[step - 1].df + p->chains[i] * C;
        add_to(df, df, dstate + i * width, C);
    }
}

void unroll_backward(const UnrollShape *s, real *const *w, real *const *dw, UnrollActs *a) {
    for (int32_t i = 0; i < s->n_steps; i++) {
        zero(a->steps[i].dk, a->steps[i].n * kv_dim(s));
        zero(a->steps[i].dv, a->steps[i].n * kv_dim(s));
    }
    for (int32_t step = s->n_steps - 1; step >= 0; step--) {
        UnrollStep *p = &a->steps[step];
        if (p->n == 0) continue;
        take_rows(a->dx, p->df, p->chains, 0, p->n, s->C);
        feed_forward_back(s, w, dw, a, p);
        attention_back(s, w, dw, a, step);
        input_back(s, w, dw, a, step);
    }
}
