/* test_draft_dflash.c - unit tests of the drafter dflash with random weights: compares its trees and its numbers with
 * its layers in double precision, for files in the published layouts and in ours; steps with prompts; and the text in
 * the engine. */
#include "dflash_rig.h"
#include "plain_layer.h"

#include "gguf/tensor_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "build/dflash-target.gguf"

enum { N_TEXT = 14, N_KEPT = 3 };

static Gguf *target_gguf;
static Weights *target;
static float *embeddings, *output; /* [V][T] */
static DflashWeights weights[N_DFLASH_FILES];

static float *all_rows(const GgufTensor *t) {
    float *x = malloc(sizeof *x * V * T);
    blocks_dequantize(t->type, t->data, V * T, x);
    return x;
}

static int open_all(void **state) {
    (void)state;
    learned_rig_write_target(TARGET, 7);
    target_gguf = rig_gguf(TARGET);
    target = rig_weights(target_gguf, NULL);
    embeddings = all_rows(gguf_find_tensor(target_gguf, "token_embd.weight"));
    output = all_rows(gguf_find_tensor(target_gguf, "output.weight"));
    for (int i = 0; i < N_DFLASH_FILES; i++) dflash_rig_write(&weights[i], i, target);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < N_DFLASH_FILES; i++) {
        dflash_rig_free(&weights[i]);
    }
    free(embeddings);
    free(output);
    rig_weights_close(target);
    gguf_close(target_gguf);
    return 0;
}

/* ---- the layers in double precision ------------------------------------------------------------------ */

enum { MAX_KEYS = N_TEXT + MAX_BLOCK };

static const float ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};

/* Makes the key and value of a state at a position. */
static void make_key(const DflashWeights *w, const DflashLayerWeights *l, const double *state, int32_t position,
                     PlainKv *out) {
    const DflashFile *f = w->file;
    const PlainHeads heads = {.n_head = f->n_head, .n_kv = f->n_kv, .dim = f->dim};
    learned_rig_linear(l->k, l->k_bias, state, f->H, f->n_kv * f->dim, out->k);
    learned_rig_linear(l->v, l->v_bias, state, f->H, f->n_kv * f->dim, out->v);
    for (int32_t h = 0; l->k_norm && h < f->n_kv; h++)
        plain_norm(l->k_norm, out->k + h * f->dim, f->dim, 1e-6, out->k + h * f->dim);
    for (int32_t h = 0; f->is_gemma && h < f->n_kv; h++)
        plain_norm(ones, out->v + h * f->dim, f->dim, 1e-6, out->v + h * f->dim);
    plain_rotate_halves(&w->rope, out->k, f->n_kv, f->dim, position);
    plain_kv_round(out, heads);
    out->position = position;
}

/* Attention of one head of a row over keys [n]. */
static void attend(const DflashWeights *w, const DflashLayerWeights *l, int32_t head, const double *q, int32_t position,
                   const PlainKv *keys, int32_t n, bool has_window, double *out) {
    const DflashFile *f = w->file;
    int32_t at = head / (f->n_head / f->n_kv) * f->dim;
    double total = l->sinks ? exp((double)l->sinks[head]) : 0;
    memset(out, 0, (size_t)f->dim * sizeof *out);
    for (int32_t t = 0; t < n; t++) {
        double score = 0;
        bool is_causal = f->is_causal || (f->windows_are_causal && has_window);
        if (is_causal && keys[t].position > position) continue;
        if (has_window && keys[t].position <= position - f->window) continue;
        for (int32_t i = 0; i < f->dim; i++) score += q[i] * keys[t].k[at + i] / (f->is_gemma ? 1 : sqrt(f->dim));
        total += exp(score);
        for (int32_t i = 0; i < f->dim; i++) out[i] += exp(score) * keys[t].v[at + i];
    }
    for (int32_t i = 0; i < f->dim; i++) out[i] /= total;
}

/* Replaces the slots x of a block by their convolution `side`. The kernels are made of `normed`. */
static void convolve(const DflashWeights *w, const DflashLayerWeights *l, int part, int side, double normed[][MAX_H],
                     double x[][MAX_H]) {
    const DflashFile *f = w->file;
    int32_t n_groups = f->group ? f->H / f->group : 0;
    double kernels[2 * 3 * MAX_H], out[MAX_BLOCK][MAX_H] = {{0}};
    if (f->taps == 0) return;
    for (int32_t i = 0; i < f->block; i++) {
        learned_rig_linear(l->kernels[part], NULL, normed[i], f->H, 2 * f->taps * n_groups, kernels);
        for (int32_t t = 0; t < f->taps && t <= i; t++)
            for (int32_t c = 0; c < f->H; c++) {
                int32_t tap = side * f->taps + t;
                out[i][c] += ((double)l->base[part][tap * f->H + c] + kernels[tap * n_groups + c / f->group]) *
                             x[i - t][c];
            }
    }
    memcpy(x, out, (size_t)f->block * sizeof *out);
}

static void run_layer(const DflashWeights *w, const DflashLayerWeights *l, double g[][MAX_H], int32_t n,
                      bool has_window, double x[][MAX_H]) {
    const DflashFile *f = w->file;
    static PlainKv keys[MAX_KEYS];
    int32_t H = f->H, n_q = f->n_head * f->dim;
    double normed[MAX_BLOCK][MAX_H], in[MAX_BLOCK][MAX_H], y[MAX_BLOCK][MAX_H], q[MAX_H], attended[MAX_H];
    for (int32_t t = 0; t < n; t++) make_key(w, l, g[t], t, &keys[t]);
    for (int32_t i = 0; i < f->block; i++) plain_norm(l->norm, x[i], H, 1e-6, normed[i]);
    memcpy(in, normed, sizeof in);
    convolve(w, l, 0, 0, normed, in);
    for (int32_t i = 0; i < f->block; i++) make_key(w, l, in[i], n + i, &keys[n + i]);
    for (int32_t i = 0; i < f->block; i++) {
        learned_rig_linear(l->q, l->q_bias, in[i], H, n_q, q);
        for (int32_t h = 0; l->q_norm && h < f->n_head; h++)
            plain_norm(l->q_norm, q + h * f->dim, f->dim, 1e-6, q + h * f->dim);
        plain_rotate_halves(&w->rope, q, f->n_head, f->dim, n + i);
        for (int32_t h = 0; h < f->n_head; h++)
            attend(w, l, h, q + h * f->dim, n + i, keys, n + f->block, has_window, attended + h * f->dim);
        learned_rig_linear(l->o, l->o_bias, attended, n_q, H, y[i]);
    }
    convolve(w, l, 0, 1, normed, y);
    for (int32_t i = 0; i < f->block; i++) {
        if (l->post_attn_norm) plain_norm(l->post_attn_norm, y[i], H, 1e-6, y[i]);
        for (int32_t c = 0; c < H; c++) x[i][c] += y[i][c];
        plain_norm(l->ffn_norm, x[i], H, 1e-6, normed[i]);
    }
    memcpy(in, normed, sizeof in);
    convolve(w, l, 1, 0, normed, in);
    for (int32_t i = 0; i < f->block; i++)
        plain_feed_forward((PlainFeedForward){l->gate, l->up, l->down, H, f->ff, f->is_gemma}, in[i], y[i]);
    convolve(w, l, 1, 1, normed, y);
    for (int32_t i = 0; i < f->block; i++) {
        if (l->post_ffn_norm) plain_norm(l->post_ffn_norm, y[i], H, 1e-6, y[i]);
        for (int32_t c = 0; c < H; c++) x[i][c] = (x[i][c] + y[i][c]) * (l->out_scale ? (double)*l->out_scale : 1);
    }
}

/* What the layers give for a position: the state after the final norm, and the logits of the drafter's head. */
typedef struct Position {
    double hidden[MAX_H], logits[V];
} Position;

/* Leaves only the candidates of the selector among the logits of all tokens, with their scores after a token. */
static void select_after(const DflashWeights *w, const double *hidden, int32_t before, double *all) {
    const DflashFile *f = w->file;
    int32_t tokens[16], n = f->selector;
    double gate[16], scores[16];
    learned_rig_best_tokens(all, V, f->selector_top, tokens);
    learned_rig_linear(w->selector_hidden, NULL, hidden, f->H, n, gate);
    for (int32_t i = 0; i < f->selector_top; i++) {
        scores[i] = all[tokens[i]];
        for (int32_t r = 0; r < n; r++)
            scores[i] += (double)w->predecessor[before * n + r] * gate[r] * (double)w->successor[tokens[i] * n + r];
    }
    for (int32_t i = 0; i < V; i++) all[i] = -1e9;
    for (int32_t i = 0; i < f->selector_top; i++) all[tokens[i]] = scores[i];
    learned_rig_log_softmax(all, V);
}

enum { MAX_RANK = 8 };

/* Replaces the vector of a token by what a recurrent head makes of it, and its state [rank] by the next one. */
static void run_recurrence(const DflashWeights *w, const double *hidden, double *vector, double *state) {
    int32_t r = w->file->rank;
    double in[2 * MAX_RANK + MAX_H], out[3 * MAX_RANK];
    memcpy(in, state, (size_t)r * sizeof *in);
    memcpy(in + r, vector, (size_t)r * sizeof *in);
    memcpy(in + 2 * r, hidden, (size_t)w->file->H * sizeof *in);
    learned_rig_linear(w->joint, w->joint_bias, in, 2 * r + w->file->H, 3 * r, out);
    for (int32_t i = 0; i < r; i++) {
        double kept = 1 / (1 + exp(-out[i]));
        state[i] = kept * state[i] + (1 - kept) * tanh(out[r + i]);
        vector[i] = tanh(out[2 * r + i]);
    }
}

/* Finds log p of the `top` most probable tokens of a position after a token, best first. The state of a recurrent head
 * becomes the one after the token. */
static void find_children(const DflashWeights *w, const Position *p, int32_t before, int32_t top, int32_t *tokens,
                          double *log_p, double *recurrent_state) {
    const DflashFile *f = w->file;
    int32_t D = f->n_tokens ? f->n_tokens : V;
    double own[V], all[V], bias[V] = {0}, vector[32], gates[32], gated[32], state[MAX_H + 32];
    for (int32_t i = 0; i < f->rank; i++) gated[i] = vector[i] = (double)w->before[before * f->rank + i];
    if (f->is_gated) {
        memcpy(state, p->hidden, (size_t)f->H * sizeof *state);
        memcpy(state + f->H, vector, (size_t)f->rank * sizeof *state);
        learned_rig_linear(w->gate, w->gate_bias, state, f->H + f->rank, f->rank, gates);
        for (int32_t i = 0; i < f->rank; i++) gated[i] /= 1 + exp(-gates[i]);
    }
    if (f->is_recurrent) run_recurrence(w, p->hidden, gated, recurrent_state);
    if (f->rank) learned_rig_linear(w->markov, NULL, gated, f->rank, D, bias);
    for (int32_t i = 0; i < D; i++) own[i] = p->logits[i] + bias[i];
    learned_rig_log_softmax(own, D);
    for (int32_t i = 0; i < V; i++) all[i] = -1e9;
    for (int32_t i = 0; i < D; i++) all[f->n_tokens ? w->map[i] : i] = own[i];
    if (f->selector) select_after(w, p->hidden, before, all);
    learned_rig_best_tokens(all, V, top, tokens);
    for (int32_t i = 0; i < top; i++) log_p[i] = all[tokens[i]];
    if (!dflash_has_confidence(f)) return;
    double z = (double)w->confidence_bias[0], first = exp(log_p[0]);
    for (int32_t i = 0; i < f->H; i++) z += (double)w->confidence[i] * p->hidden[i];
    for (int32_t i = f->H; i < dflash_n_confident(f); i++) z += (double)w->confidence[i] * vector[i - f->H];
    double chance = 1 / (1 + exp(-z)), factor = chance < first ? chance / first : (1 - chance) / (1 - first);
    log_p[0] = log(chance);
    for (int32_t i = 1; i < top; i++) log_p[i] += log(factor);
}

/* Computes each position after a text of n tokens, whose last one is pending. */
static void predict(const DflashWeights *w, const int32_t *text, int32_t n, Position out[MAX_BLOCK]) {
    const DflashFile *f = w->file;
    static double streams[N_TEXT][N_KEPT][T], g[N_TEXT][MAX_H], x[MAX_BLOCK][MAX_H];
    learned_rig_read_streams(target, text, n, streams[0][0]);
    for (int32_t t = 0; t < n - 1; t++) {
        double all[MAX_STREAMS * T];
        for (int32_t k = 0; k < f->n_streams; k++) memcpy(all + k * T, streams[t][f->streams[k]], sizeof streams[t][0]);
        learned_rig_linear(w->fc, NULL, all, f->n_streams * T, f->H, g[t]);
        plain_norm(w->context_norm, g[t], f->H, 1e-6, g[t]);
    }
    double scale = f->layout == OWN ? (double)target->model->hparams.embedding_scale : 1,
           logit_scale = f->logit_scale > 0 ? (double)f->logit_scale : 1,
           cap = f->n_tokens ? 0 : (double)target->model->hparams.logit_cap;
    if (f->embedding_scale > 0) scale = (double)f->embedding_scale;
    if (f->cap > 0) cap = (double)f->cap;
    for (int32_t i = 0; i < f->block; i++)
        for (int32_t c = 0; c < f->H; c++)
            x[i][c] = scale *
                      (double)(f->has_embedding ? w->embedding : embeddings)[(i ? f->mask : text[n - 1]) * f->H + c];
    for (int32_t i = 0; i < f->n_layer; i++) run_layer(w, &w->layers[i], g, n - 1, f->window && i == 0, x);
    for (int32_t i = 0; i < dflash_n_predicted(f); i++) {
        plain_norm(w->output_norm, x[i + !f->from_anchor], f->H, 1e-6, out[i].hidden);
        learned_rig_linear(f->n_tokens ? w->output : output, NULL, out[i].hidden, f->H, f->n_tokens ? f->n_tokens : V,
                           out[i].logits);
        for (int32_t k = 0; k < V; k++) out[i].logits[k] *= logit_scale;
        for (int32_t k = 0; cap > 0 && k < V; k++) out[i].logits[k] = cap * tanh(out[i].logits[k] / cap);
    }
}

/* ---- trees -------------------------------------------------------------------------------------------- */

enum { MAX_TOP = 16, MAX_TREE = 256 };

/* The `budget` paths of greatest product among the first `top` tokens of each node, with a place for the tokens of
 * every node. */
static void plain_tree(const DflashWeights *w, const Position *positions, int32_t depth, int32_t top, int32_t budget,
                       int32_t pending, Tree *out) {
    static int32_t tokens[MAX_TREE][MAX_TOP];
    static double log_p[MAX_TREE][MAX_TOP], states[MAX_TREE][MAX_RANK];
    int32_t n_children[MAX_TREE] = {0};
    double sums[MAX_TREE] = {0};
    assert_true(budget < MAX_TREE && top <= MAX_TOP);
    if (w->file->selector && w->file->selector_top < top) top = w->file->selector_top;
    tree_reset(out, pending);
    memset(states[0], 0, sizeof states[0]);
    find_children(w, &positions[0], pending, top, tokens[0], log_p[0], states[0]);
    while (out->n <= budget) {
        int32_t best = -1;
        double best_sum = -INFINITY;
        for (int32_t i = 0; i < out->n; i++) {
            if (out->nodes[i].depth == depth || n_children[i] == top) continue;
            double sum = sums[i] + log_p[i][n_children[i]];
            if (sum > best_sum) best = i, best_sum = sum;
        }
        if (best < 0) return;
        int32_t child = tree_add(out, best, tokens[best][n_children[best]++], (float)exp(best_sum), 0);
        sums[child] = best_sum;
        int32_t at = out->nodes[child].depth;
        memcpy(states[child], states[best], sizeof states[0]);
        if (at < depth)
            find_children(w, &positions[at], out->nodes[child].token, top, tokens[child], log_p[child], states[child]);
    }
}

static void trees_are_those_of_the_plain_layers(void **state) {
    (void)state;
    static const struct { int32_t depth, top; } shapes[] = {{1, 4}, {0, 1}, {3, 3}, {0, 10}};
    static const int32_t budgets[] = {60, 2, 17};
    static Position positions[MAX_BLOCK];
    static Tree want[3];
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    for (int f = 0; f < N_DFLASH_FILES; f++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
            char spec[128];
            int32_t depth = shapes[k].depth ? shapes[k].depth : dflash_n_predicted(&dflash_files[f]);
            snprintf(spec, sizeof spec, "dflash:file=%s,depth=%d,top=%d", dflash_files[f].path, shapes[k].depth,
                     shapes[k].top);
            Drafter *d = learned_rig_open_drafter(&reader, spec, 4);
            for (int32_t i = 0; i < 3; i++) {
                int32_t text[N_TEXT], n = N_TEXT - 2 * i;
                rig_tokens(50 + (uint64_t)i, V, text, n);
                learned_rig_feed(&reader, d, i + 1, text, n, 3 + i);
                predict(&weights[f], text, n, positions);
                plain_tree(&weights[f], positions, depth, shapes[k].top, budgets[i], text[n - 1], &want[i]);
            }
            learned_rig_check_proposals(d, want, budgets, V, spec);
            drafter_close(d);
        }
    learned_rig_close_reader(&reader);
}

/* Compares a proposal with the plain layers, for a target in the backend that computes in double precision. All chances
 * are computed from all logits of all slots. */
static void check_numbers(const Weights *exact, int f, int32_t top) {
    static Position positions[MAX_BLOCK];
    static Tree want, got;
    int32_t text[N_TEXT];
    LearnedReader reader;
    char spec[128];
    rig_tokens(77, V, text, N_TEXT);
    learned_rig_open_reader(&reader, exact);
    snprintf(spec, sizeof spec, "dflash:file=%s,top=%d", dflash_files[f].path, top);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
    learned_rig_feed(&reader, d, 0, text, N_TEXT, 4);
    rig_propose(d, 0, text[N_TEXT - 1], 200, V, &got);
    predict(&weights[f], text, N_TEXT, positions);
    plain_tree(&weights[f], positions, dflash_n_predicted(&dflash_files[f]), top, 200, text[N_TEXT - 1], &want);
    assert_int_equal(got.n, 1 + (top == 1 ? dflash_n_predicted(&dflash_files[f]) : 200));
    learned_rig_assert_alike(&want, &got, 1e-5, spec);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

static void one_forward_has_the_numbers_of_the_plain_layers(void **state) {
    (void)state;
    Weights *exact = rig_weights_in(&backend_reference, target_gguf), *fast = target;
    target = exact;
    for (int f = 0; f < N_DFLASH_FILES; f++) {
        check_numbers(exact, f, 1);
        check_numbers(exact, f, MAX_TOP);
    }
    target = fast;
    rig_weights_close(exact);
}

/* Gemma multiplies its embeddings by a number and caps its logits. Published drafters read the rows of the target's
 * embedding as they are, unless their file has a scale. */
static void the_head_is_scaled_as_the_targets_and_the_embedding_as_the_file_says(void **state) {
    (void)state;
    Gguf *g = rig_random_gguf(&(RandomModel){.arch = "gemma2",
                                             .n_layer = 2,
                                             .n_embd = T,
                                             .n_head = 4,
                                             .n_head_kv = 2,
                                             .n_ff = 96,
                                             .n_vocab = V,
                                             .seed = 12});
    Weights *exact = rig_weights_in(&backend_reference, g), *fast = target;
    float *own_embeddings = embeddings, *own_output = output;
    target = exact;
    embeddings = all_rows(gguf_find_tensor(g, "token_embd.weight"));
    output = all_rows(gguf_find_tensor(g, "output.weight"));
    assert_true(exact->model->hparams.embedding_scale > 1 && exact->model->hparams.logit_cap > 0);
    check_numbers(exact, 0, 1);
    check_numbers(exact, 0, MAX_TOP);
    free(embeddings);
    free(output);
    target = fast, embeddings = own_embeddings, output = own_output;
    rig_weights_close(exact);
    gguf_close(g);
}

static void a_step_leads_where_the_prompt_leads(void **state) {
    (void)state;
    for (int i = 0; i < N_DFLASH_FILES; i++) {
        char spec[64];
        snprintf(spec, sizeof spec, "dflash:file=%s", dflash_files[i].path);
        learned_rig_check_step(target, spec);
    }
}

static void idle_steps_leave_whole_entries(void **state) {
    (void)state;
    learned_rig_check_idle(target, "dflash:file=build/dflash-0.gguf");
}

static void sequences_draft_together_as_each_by_itself(void **state) {
    (void)state;
    learned_rig_check_together(target, "dflash:file=build/dflash-0.gguf,top=4");
    learned_rig_check_together(target, "dflash:file=build/dflash-1.gguf,depth=2,top=3");
    learned_rig_check_together(target, "dflash:file=build/dflash-3.gguf,top=4");
    learned_rig_check_together(target, "dflash:file=build/dflash-6.gguf,top=4");
    learned_rig_check_together(target, "dflash:file=build/dflash-10.gguf,top=4");
    learned_rig_check_together(target, "dflash:file=build/dflash-12.gguf,top=4");
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-0.gguf,top=5");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-3.gguf,top=4");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-6.gguf");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-7.gguf");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-9.gguf");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-10.gguf");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-12.gguf");
    learned_rig_check_lossless(TARGET, "dflash:file=build/dflash-13.gguf");
}

/* What training says that it does not support; NULL: it supports the file. */
static const char *why_not_trained(const DflashFile *f) {
    if (f->layout == OLD || f->layout == LUCEBOX) return "tensor names of an older layout";
    return f->H != T ? "another width than its target" : NULL;
}

static void training_begins_with_what_the_file_predicts(void **state) {
    (void)state;
    for (int i = 0; i < N_DFLASH_FILES; i++)
        if (!why_not_trained(&dflash_files[i]))
            learned_rig_check_init(target, &train_dflash, dflash_files[i].path, "top=3");
        else
            learned_rig_check_init_refused(target, &train_dflash, dflash_files[i].path,
                                           why_not_trained(&dflash_files[i]));
}

/* Returns the streams that the drafter asks for. */
static KeptLayers kept_by(const char *spec) {
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    drafter_close(learned_rig_open_drafter(&reader, spec, 1));
    learned_rig_close_reader(&reader);
    return reader.kept;
}

/* layers=outputs reads the streams after the layers that the list names; the older layout counts in this way itself. */
static void lists_of_layers_are_read_as_they_count(void **state) {
    (void)state;
    KeptLayers kept = kept_by("dflash:file=build/dflash-0.gguf");
    assert_true(kept.n == 2 && kept.after[0] == 1 && kept.after[1] == 2);
    kept = kept_by("dflash:file=build/dflash-1.gguf");
    assert_true(kept.n == 1 && kept.after[0] == 2); /* the file has 1 */
    learned_rig_check_refused(target, "dflash:file=build/dflash-0.gguf,layers=outputs", FR_ERR_ARGUMENT,
                              "layers=outputs");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_the_plain_layers),
        cmocka_unit_test(one_forward_has_the_numbers_of_the_plain_layers),
        cmocka_unit_test(the_head_is_scaled_as_the_targets_and_the_embedding_as_the_file_says),
        cmocka_unit_test(lists_of_layers_are_read_as_they_count),
        cmocka_unit_test(a_step_leads_where_the_prompt_leads),
        cmocka_unit_test(idle_steps_leave_whole_entries),
        cmocka_unit_test(sequences_draft_together_as_each_by_itself),
        cmocka_unit_test(the_text_is_the_plain_one),
        cmocka_unit_test(training_begins_with_what_the_file_predicts),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
