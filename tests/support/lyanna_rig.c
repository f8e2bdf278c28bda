/* lyanna_rig.c - writes files of the drafter lyanna with random weights, and computes the drafter's results in double
 * precision, one row at a time. */
#include "lyanna_rig.h"

#include "gguf/tensor_type.h"
#include "draft/learned/learned.h"
#include "draft/learned/learned_files.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { H = LYANNA_H, V = LYANNA_V, DIM = LYANNA_DIM, KV = LYANNA_KV, FF = LYANNA_FF };

LyannaTarget lyanna_target;

static float *all_rows(const char *name) {
    const GgufTensor *t = gguf_find_tensor(lyanna_target.gguf, name);
    float *x = malloc(sizeof *x * V * H);
    assert_non_null(x);
    blocks_dequantize(t->type, t->data, V * H, x);
    return x;
}

int lyanna_rig_open_target(void **state) {
    (void)state;
    learned_rig_write_target(LYANNA_TARGET, 9);
    lyanna_target.gguf = rig_gguf(LYANNA_TARGET);
    lyanna_target.model = rig_weights(lyanna_target.gguf, NULL);
    lyanna_target.embeddings = all_rows("token_embd.weight");
    lyanna_target.output = all_rows("output.weight");
    return 0;
}

int lyanna_rig_close_target(void **state) {
    (void)state;
    free(lyanna_target.embeddings);
    free(lyanna_target.output);
    rig_weights_close(lyanna_target.model);
    gguf_close(lyanna_target.gguf);
    return 0;
}

/* ---- files --------------------------------------------------------------------------------------- */

static void write_info(LyannaWeights *w) {
    LearnedRig *r = &w->rig;
    const LyannaShape *s = &w->shape;
    int32_t n = s->n_hot ? s->n_hot : V;
    for (int32_t i = 0; i < n; i++)
        w->hot[i] = n < V ? 1 + i * (V - 1) / n : i; /* ascending, spread over the vocabulary */
    if (s->bad_hot == 1) w->hot[1] = w->hot[0];
    if (s->bad_hot == 2) w->hot[n - 1] = V;
    if (s->n_hot) gguf_set_i32s(r->w, DRAFTER_KEY("lyanna.hot_tokens"), w->hot, n);
    w->info = learned_rig_info(r, "lyanna", s->rank % 32 ? TYPE_F16 : s->type, H, s->rank, n);
}

static void write_gate(LyannaWeights *w) {
    LearnedRig *r = &w->rig;
    const LyannaShape *s = &w->shape;
    int32_t n = s->gate_rank, bad = s->bad_gate;
    gguf_set_u32(r->w, DRAFTER_KEY(LYANNA GATE_KEY_RANK), (uint32_t)n);
    w->gate_state = learned_rig_tensor(r, LYANNA GATE_STATE_FACTOR ".weight", s->type, H, n + (bad == 1), 0.1);
    w->gate_token = learned_rig_tensor(r, LYANNA GATE_TOKEN_FACTOR ".weight", s->type, H, n + (bad == 2), 0.3);
    w->gate_up = learned_rig_tensor(r, LYANNA GATE_OUTPUT ".weight", n % 32 ? TYPE_F16 : s->type, n, V + (bad == 3),
                                    0.3);
}

static void write_chain(LyannaWeights *w) {
    LearnedRig *r = &w->rig;
    const LyannaShape *s = &w->shape;
    const char *chain = s->chain ? s->chain : "parallel";
    gguf_set_string(r->w, DRAFTER_KEY(LYANNA_KEY_CHAIN), chain, strlen(chain));
    gguf_set_u32(r->w, DRAFTER_KEY(LYANNA_KEY_CHAIN_INPUTS), (uint32_t)s->n_inputs);
    if (s->n_inputs) w->chain_inputs = learned_rig_tensor(r, LYANNA_CHAIN_INPUTS, s->type, H, s->n_inputs, 0.5);
}

static LyannaRigLayer write_layer(LyannaWeights *w, const char *method, int32_t n_ff) {
    LearnedRig *r = &w->rig;
    TensorType type = w->shape.type;
    LyannaRigLayer l = {.n_ff = n_ff};
    l.attn_norm = learned_rig_tensor(r, learned_name(method, LAYER_ATTN_NORM).text, TYPE_F32, H, 0, 1);
    l.q = learned_rig_tensor(r, learned_name(method, LAYER_ATTN_Q).text, type, H, H, 0.12);
    l.k = learned_rig_tensor(r, learned_name(method, LAYER_ATTN_K).text, type, H, KV, 0.12);
    l.v = learned_rig_tensor(r, learned_name(method, LAYER_ATTN_V).text, type, H, KV, 0.2);
    l.o = learned_rig_tensor(r, learned_name(method, LAYER_ATTN_OUTPUT).text, type, H, H, 0.2);
    l.ffn_norm = learned_rig_tensor(r, learned_name(method, LAYER_FFN_NORM).text, TYPE_F32, H, 0, 1);
    l.gate = learned_rig_tensor(r, learned_name(method, LAYER_FFN_GATE).text, type, H, n_ff, 0.1);
    l.up = learned_rig_tensor(r, learned_name(method, LAYER_FFN_UP).text, type, H, n_ff, 0.1);
    l.down = learned_rig_tensor(r, learned_name(method, LAYER_FFN_DOWN).text, TYPE_F32, n_ff, H, 0.2);
    return l;
}

static void write_later(LyannaWeights *w) {
    LearnedRig *r = &w->rig;
    const char *input = w->shape.later;
    gguf_set_u32(r->w, DRAFTER_KEY(LYANNA LAYER_LATER LAYER_KEY_FEED_FORWARD), LYANNA_LATER_FF);
    gguf_set_string(r->w, DRAFTER_KEY(LYANNA_KEY_LATER_INPUT), input, strlen(input));
    w->later = write_layer(w, LYANNA_LATER, LYANNA_LATER_FF);
    if (strcmp(input, "token") != 0) return;
    w->later_fc = learned_rig_tensor(r, LYANNA LAYER_LATER LAYER_FC_WEIGHT, w->shape.type, 2 * H, H, 0.1);
    w->later_fc_bias = learned_rig_tensor(r, LYANNA LAYER_LATER LAYER_FC_BIAS, TYPE_F32, H, 0, 0.1);
}

void lyanna_rig_write(LyannaWeights *w, const LyannaShape *s, uint64_t seed) {
    *w = (LyannaWeights){.shape = *s};
    LearnedRig *r = &w->rig;
    TensorType type = s->type;
    learned_rig_begin(r, "lyanna", lyanna_target.model, seed);
    gguf_set_u32(r->w, DRAFTER_KEY(LYANNA LAYER_KEY_FEED_FORWARD), FF);
    const char *first = s->first_token ? s->first_token : "fused";
    gguf_set_string(r->w, DRAFTER_KEY(LYANNA_KEY_FIRST_TOKEN), first, strlen(first));
    w->fc = learned_rig_tensor(r, LYANNA LAYER_FC ".weight", type, strcmp(first, "none") == 0 ? H : 2 * H, H, 0.1);
    w->fc_bias = learned_rig_tensor(r, LYANNA LAYER_FC ".bias", TYPE_F32, H, 0, 0.1);
    w->layer = write_layer(w, "lyanna", FF);
    if (s->rank) write_info(w);
    if (s->gate_rank) write_gate(w);
    if (s->n_inputs || s->chain) write_chain(w);
    if (s->later) write_later(w);
    if (s->info_step) gguf_set_u32(r->w, DRAFTER_KEY(LYANNA_KEY_INFO_STEP), (uint32_t)s->info_step);
    learned_rig_write(r, s->path);
}

/* ---- the layer ------------------------------------------------------------------------------------- */

static const PlainHeads heads = {.n_head = LYANNA_HEADS, .n_kv = LYANNA_KV_HEADS, .dim = DIM};

/* Runs a layer on input x, in the row after `before`. */
static void run_layer(const LyannaRigLayer *w, const LyannaRow *before, double *x, LyannaRow *out) {
    double n[H], q[H], attended[H], y[H];
    const Rope *rope = &lyanna_target.model->model->ropes[0];
    memcpy(out->input, x, sizeof out->input);
    plain_kv_begin(&out->kv, before ? &before->kv : NULL);
    plain_norm(w->attn_norm, x, H, 1e-5, n);
    learned_rig_linear(w->q, NULL, n, H, H, q);
    learned_rig_linear(w->k, NULL, n, H, KV, out->kv.k);
    learned_rig_linear(w->v, NULL, n, H, KV, out->kv.v);
    plain_rotate_pairs(rope, q, LYANNA_HEADS, DIM, out->kv.position);
    plain_rotate_pairs(rope, out->kv.k, LYANNA_KV_HEADS, DIM, out->kv.position);
    plain_kv_round(&out->kv, heads);
    plain_attend(heads, &out->kv, q, attended);
    learned_rig_linear(w->o, NULL, attended, H, H, y);
    for (int32_t i = 0; i < H; i++) x[i] += y[i];
    plain_norm(w->ffn_norm, x, H, 1e-5, n);
    plain_feed_forward((PlainFeedForward){.gate = w->gate, .up = w->up, .down = w->down, .n_embd = H, .n_ff = w->n_ff},
                       n, y);
    for (int32_t i = 0; i < H; i++) out->feature[i] = x[i] + y[i];
}

void lyanna_rig_entry(const LyannaWeights *w, const LyannaRow *before, int32_t token, const float *hidden,
                      LyannaRow *out) {
    double pair[2 * H], x[H];
    int32_t at = w->shape.first_token ? 0 : H;
    out->token = token;
    for (int32_t i = 0; i < H; i++) {
        pair[i] = (double)lyanna_target.embeddings[token * H + i];
        pair[at + i] = (double)hidden[i];
    }
    learned_rig_linear(w->fc, w->fc_bias, pair, at + H, H, x);
    run_layer(&w->layer, before, x, out);
}

/* The input of a parallel chain's step is that of the last entry plus a learned vector. */
static void learned_input(const LyannaWeights *w, const LyannaRow *last, int32_t step, double *x) {
    int32_t at = step < w->shape.n_inputs ? step : w->shape.n_inputs - 1;
    for (int32_t i = 0; i < H; i++) x[i] = last->input[i] + (double)w->chain_inputs[at * H + i];
}

/* The input of a later layer's step is its fc of the pending token, which the last entry has read, and the state. */
static void later_input(const LyannaWeights *w, const LyannaRow *last, const double *state, double *x) {
    double pair[2 * H];
    for (int32_t i = 0; i < H; i++) {
        pair[i] = (double)lyanna_target.embeddings[last->token * H + i];
        pair[H + i] = state[i];
    }
    learned_rig_linear(w->later_fc, w->later_fc_bias, pair, 2 * H, H, x);
}

void lyanna_rig_chain(const LyannaWeights *w, const LyannaRow *last, int32_t depth, LyannaStep *steps) {
    LyannaRow rows[32];
    const LyannaRow *at = last;
    for (int32_t step = 0; step < depth; step++) {
        double x[H];
        steps[step].number = step + 1;
        learned_rig_linear(lyanna_target.output, NULL, at->feature, H, V, steps[step].logits);
        if (w->gate_state)
            learned_rig_linear(w->gate_state, NULL, at->feature, H, w->shape.gate_rank, steps[step].gate);
        if (w->chain_inputs) learned_input(w, last, step, x);
        else if (w->later_fc) later_input(w, last, at->feature, x);
        else memcpy(x, at->feature, sizeof x);
        run_layer(w->shape.later ? &w->later : &w->layer, at, x, &rows[step]);
        at = &rows[step];
    }
}

/* ---- the trees ------------------------------------------------------------------------------------- */

void lyanna_rig_info(const LyannaWeights *w, int32_t token, double *info) {
    int32_t n = w->info.n;
    double of_hot[V];
    bool is_hot = false;
    memset(info, 0, V * sizeof *info);
    for (int32_t i = 0; i < n; i++) is_hot = is_hot || w->hot[i] == token;
    if (!is_hot) return;
    learned_rig_run_info(&w->info, lyanna_target.embeddings + token * H, of_hot);
    for (int32_t i = 0; i < n; i++) info[w->hot[i]] = of_hot[i];
}

void lyanna_rig_gate(const LyannaWeights *w, const LyannaStep *step, int32_t token, double *logits) {
    double embedding[H], of_token[LYANNA_RIG_GATE], bias[V];
    int32_t n = w->shape.gate_rank;
    if (n == 0) return;
    for (int32_t i = 0; i < H; i++) embedding[i] = (double)lyanna_target.embeddings[token * H + i];
    learned_rig_linear(w->gate_token, NULL, embedding, H, n, of_token);
    for (int32_t i = 0; i < n; i++) of_token[i] *= step->gate[i];
    learned_rig_linear(w->gate_up, NULL, of_token, n, V, bias);
    for (int32_t v = 0; v < V; v++) logits[v] += bias[v];
}

typedef struct Candidate {
    int32_t node;
    double joint;
} Candidate;

static int best_first(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    return x->joint != y->joint ? (x->joint < y->joint ? 1 : -1) : x->node - y->node;
}

void lyanna_rig_subtree(const LyannaWeights *w, const LyannaStep *steps, int32_t n_steps, int32_t top, int32_t root,
                        Tree *out) {
    Candidate queue[LYANNA_RIG_TOP] = {{0, 1}}, found[LYANNA_RIG_TOP * LYANNA_RIG_TOP];
    int32_t n_queue = 1;
    tree_reset(out, root);
    for (int32_t step = 0; step < n_steps; step++) {
        int32_t n_found = 0;
        for (int32_t i = 0; i < n_queue; i++) {
            double dist[V];
            Candidate all[V];
            int32_t token = out->nodes[queue[i].node].token;
            bool has_info = steps[step].number >= w->shape.info_step;
            memset(dist, 0, sizeof dist);
            if (has_info) lyanna_rig_info(w, token, dist);
            for (int32_t v = 0; v < V; v++) dist[v] += steps[step].logits[v];
            if (has_info) lyanna_rig_gate(w, &steps[step], token, dist);
            learned_rig_log_softmax(dist, V);
            for (int32_t v = 0; v < V; v++) all[v] = (Candidate){v, queue[i].joint * exp(dist[v])};
            qsort(all, V, sizeof *all, best_first);
            for (int32_t k = 0; k < top; k++) {
                int32_t node = tree_add(out, queue[i].node, all[k].node, (float)all[k].joint, 0);
                found[n_found++] = (Candidate){node, all[k].joint};
            }
        }
        qsort(found, (size_t)n_found, sizeof *found, best_first);
        n_queue = n_found < top ? n_found : top;
        memcpy(queue, found, (size_t)n_queue * sizeof *queue);
    }
}
