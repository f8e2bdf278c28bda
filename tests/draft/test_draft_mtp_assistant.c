/* test_draft_mtp_assistant.c - unit tests of the drafter mtp with an assistant of Gemma 4: compares its trees and its
 * numbers with its layers in double precision, which read the keys and values of the target from its cache, with each
 * type of cache; steps with prompts; and executors that read another one. */
#include "assistant_rig.h"

#include "compute/sequences.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The sizes of assistant_rig.h. */
enum {
    T = ASSISTANT_WIDTH,
    V = ASSISTANT_VOCAB,
    DIM = ASSISTANT_DIM,
    LOCAL_DIM = ASSISTANT_LOCAL_DIM,
    WINDOW = ASSISTANT_WINDOW,
    FULL = ASSISTANT_FULL,
    LOCAL = ASSISTANT_LOCAL,
    MAX_H = 64,
    MAX_Q = 4 * DIM,
    MAX_FF = PLAIN_MAX_FF
};

static Drafter *open_assistant(const Executor *e, const AssistantFile *f, int32_t depth, int32_t top) {
    const DrafterEnv env = assistant_rig_env(e);
    Drafter *d;
    fr_error err;
    char spec[96];
    snprintf(spec, sizeof spec, "mtp:file=%s,depth=%d,top=%d", f->path, depth, top);
    if (drafter_open(&d, spec, &env, 0, &err)) fail_msg("%s", err.message);
    assert_string_equal(d->class->name, "mtp");
    return d;
}

/* Lets the target read a text of n tokens except the last, which is the pending one, and shows it to the drafter.
 * *hidden [T] becomes the hidden state before that token. */
static void feed(Executor *e, Drafter *d, int32_t sequence, const int32_t *text, int32_t n, double *hidden) {
    const float *states[ASSISTANT_TEXT];
    Row rows[ASSISTANT_TEXT];
    int32_t ids[ASSISTANT_TEXT];
    fr_error err;
    assert_true(n > 1 && n <= ASSISTANT_TEXT);
    executor_sequence_truncate(e, sequence, 0);
    for (int32_t i = 0; i < n - 1; i++) {
        rows[i] = (Row){.token = text[i], .sequence = sequence, .parent = i - 1, .want_hidden = true};
        ids[i] = i;
    }
    if (executor_reserve(e, sequence, n - 1, &err) || executor_forward(e, rows, n - 1, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < n - 1; i++) states[i] = executor_hidden(e, i);
    for (int32_t k = 0; k < T && hidden; k++) hidden[k] = (double)states[n - 2][k];
    executor_commit(e, sequence, ids, n - 1);
    if (d &&
        (d->class->begin(d, sequence, text, n, &err) || d->class->observe_prompt(d, sequence, 0, states, n - 1, &err)))
        fail_msg("%s", err.message);
}

/* ---- the layers in double precision ---------------------------------------------------------------------- */

/* A file with the keys and values of a text of n tokens, [n][numbers of a slot], that its layers of a kind read. */
typedef struct Plain {
    const AssistantRig *w;
    int32_t n;
    double keys[2][ASSISTANT_TEXT][2 * DIM], values[2][ASSISTANT_TEXT][2 * DIM];
} Plain;

/* The state of the assistant after a token. */
typedef struct Place {
    double log_p[V], state[T];
} Place;

/* Converts n numbers of a slot of that type, or of doubles in the reference backend. */
static void decode(const char *data, bool is_exact, KvType type, int32_t n, double *out) {
    float block[KV_BLOCK] = {0};
    assert_true(n <= KV_BLOCK);
    if (is_exact) memcpy(out, data, (size_t)n * sizeof *out);
    else if (type == KV_Q8) blocks_dequantize(TYPE_Q8_0, data, KV_BLOCK, block);
    else if (type == KV_F16) blocks_dequantize(TYPE_F16, data, n, block);
    else memcpy(block, data, (size_t)n * sizeof *block);
    for (int32_t i = 0; i < n && !is_exact; i++) out[i] = (double)block[i];
}

/* Reads what the layers of each kind see of a sequence. A slot has, for each layer with keys of its own, first the keys
 * of its heads and then the values. In the reference backend the slots of all layers are equally long. */
static void read_cache(Plain *p, Executor *e, int32_t sequence) {
    static char slot[1 << 14];
    const AssistantTarget *t = &assistant_targets[p->w->file->target];
    Context *c = executor_context(e);
    const Backend *backend = c->weights->backend;
    bool is_exact = backend == &backend_reference;
    const int32_t *slots = sequence_slots(executor_sequences(e), sequence, 0);
    p->n = executor_sequence_length(e, sequence);
    for (int kind = 0; kind < 2; kind++) {
        KvGroup group = kind == LOCAL ? KV_WINDOW : KV_ALL;
        int32_t dim = kind == LOCAL ? LOCAL_DIM : DIM, n_layer = t->place[kind] + 1, n_kv = t->n_kv[kind];
        size_t bytes = backend->slot_bytes(c, group), each = bytes / (size_t)(2 * n_layer);
        assert_true(bytes <= sizeof slot);
        for (int32_t i = 0; i < p->n; i++)
            for (int32_t h = 0; h < n_kv; h++) {
                backend->read_slot(c, group, slots[i], slot);
                const char *keys = slot + (size_t)(2 * t->place[kind]) * each, *values = keys + each;
                size_t at = (size_t)h * (is_exact ? sizeof(double) * (size_t)dim : each / (size_t)n_kv);
                decode(keys + at, is_exact, executor_options(e)->kv_type, dim, p->keys[kind][i] + h * dim);
                decode(values + at, is_exact, executor_options(e)->kv_type, dim, p->values[kind][i] + h * dim);
            }
    }
}

static void attend(const Plain *p, int kind, const double *q, double *out) {
    const AssistantFile *f = p->w->file;
    int32_t dim = kind == LOCAL ? LOCAL_DIM : DIM;
    int32_t first = kind == LOCAL && p->n >= f->window ? p->n + 1 - f->window : 0;
    for (int32_t h = 0; h < f->n_head; h++) {
        int32_t at = h / (f->n_head / assistant_targets[f->target].n_kv[kind]) * dim;
        double sum = 0;
        for (int32_t k = 0; k < dim; k++) out[h * dim + k] = 0;
        for (int32_t i = first; i < p->n; i++) {
            double score = 0;
            for (int32_t k = 0; k < dim; k++) score += q[h * dim + k] * p->keys[kind][i][at + k];
            sum += exp(score);
            for (int32_t k = 0; k < dim; k++) out[h * dim + k] += exp(score) * p->values[kind][i][at + k];
        }
        for (int32_t k = 0; k < dim; k++) out[h * dim + k] /= sum;
    }
}

/* x += norm(delta) */
static void add_normed(const float *gain, double *delta, int32_t n, double *x) {
    plain_norm(gain, delta, n, 1e-6, delta);
    for (int32_t k = 0; k < n; k++) x[k] += delta[k];
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x))); }

static void run_layer(const Plain *p, int32_t i, double *x) {
    const AssistantFile *f = p->w->file;
    const AssistantLayer *l = &p->w->layers[i];
    int kind = f->is_local[i] ? LOCAL : FULL;
    int32_t dim = kind == LOCAL ? LOCAL_DIM : DIM, q_dim = f->n_head * dim;
    double n[MAX_H], q[MAX_Q], read[MAX_Q], delta[MAX_H], gate[MAX_FF], up[MAX_FF];
    plain_norm(l->attn_norm, x, f->H, 1e-6, n);
    learned_rig_linear(l->q, NULL, n, f->H, q_dim, q);
    for (int32_t h = 0; h < f->n_head; h++) plain_norm(l->q_norm, q + h * dim, dim, 1e-6, q + h * dim);
    plain_rotate_halves(&p->w->ropes[kind], q, f->n_head, dim, p->n);
    attend(p, kind, q, read);
    learned_rig_linear(l->o, NULL, read, q_dim, f->H, delta);
    add_normed(l->post_attn_norm, delta, f->H, x);
    plain_norm(l->ffn_norm, x, f->H, 1e-6, n);
    learned_rig_linear(l->gate, NULL, n, f->H, f->ff[i], gate);
    learned_rig_linear(l->up, NULL, n, f->H, f->ff[i], up);
    for (int32_t k = 0; k < f->ff[i]; k++) gate[k] = gelu(gate[k]) * up[k];
    learned_rig_linear(l->down, NULL, gate, f->ff[i], f->H, delta);
    add_normed(l->post_ffn_norm, delta, f->H, x);
    for (int32_t k = 0; k < f->H; k++) x[k] *= (double)l->scale[0];
}

/* Leaves only the tokens of the best clusters. */
static void leave_clusters(const Plain *p, const double *x, double *logits) {
    const AssistantFile *f = p->w->file;
    double scores[V], all[V];
    int32_t best[V], each = V / f->n_clusters, n_top = f->n_top ? f->n_top : 32;
    learned_rig_linear(p->w->centroids, NULL, x, f->H, f->n_clusters, scores);
    learned_rig_best_tokens(scores, f->n_clusters, n_top, best);
    memcpy(all, logits, sizeof all);
    for (int32_t i = 0; i < V; i++) logits[i] = -1e9;
    for (int32_t i = 0; i < n_top * each; i++) {
        int32_t token = p->w->clusters[best[i / each] * each + i % each];
        logits[token] = all[token];
    }
}

/* A step: reads a token and the state before it. */
static void run(const Plain *p, int32_t token, const double *state, Place *out) {
    const AssistantFile *f = p->w->file;
    double pair[2 * T], x[MAX_H];
    for (int32_t k = 0; k < T; k++) pair[k] = sqrt(T) * (double)assistant_targets[f->target].embedding[token * T + k];
    memcpy(pair + T, state, sizeof(double) * T);
    learned_rig_linear(p->w->before, NULL, pair, 2 * T, f->H, x);
    for (int32_t i = 0; i < f->n_layer; i++) run_layer(p, i, x);
    plain_norm(p->w->output_norm, x, f->H, 1e-6, x);
    learned_rig_linear(p->w->head, NULL, x, f->H, V, out->log_p);
    if (f->n_clusters) leave_clusters(p, x, out->log_p);
    learned_rig_log_softmax(out->log_p, V);
    learned_rig_linear(p->w->after, NULL, x, f->H, T, out->state);
}

static void follow(const void *plain, const void *before, int32_t token, void *place) {
    run(plain, token, ((const Place *)before)->state, place);
}

/* Lets the drafter follow a text, and makes the tree that it must propose by a plain search. */
static void expect_tree(const AssistantRig *w, Executor *e, Drafter *d, int32_t sequence, const int32_t *text,
                        int32_t n, const int32_t shape[3], Tree *out) {
    static Plain p;
    static Place root;
    double hidden[T];
    p.w = w;
    feed(e, d, sequence, text, n, hidden);
    read_cache(&p, e, sequence);
    run(&p, text[n - 1], hidden, &root);
    learned_rig_search(&(LearnedSearch){V, shape[0], shape[1], shape[2], follow, sizeof root, &p, &root}, text[n - 1],
                       out);
}

static const KvType kv_types[] = {KV_F16, KV_Q8, KV_F32};

/* In the backend that computes in double precision. The plain layers round the inputs of blocks, which it does not. */
static void one_forward_has_the_numbers_of_the_plain_layers(void **state) {
    (void)state;
    static const int32_t shapes[][3] = {{1, 16, 16}, {4, 1, 4}, {3, 4, 20}}; /* depth, top, budget */
    static Tree want, got;
    for (int f = 0; f < ASSISTANT_FILES; f++)
        for (int k = 0; k < 3 && assistant_files[f].type != TYPE_Q8_0; k++)
            for (int32_t n = ASSISTANT_TEXT; n > 1; n -= 11) { /* above the window, and below */
                int32_t text[ASSISTANT_TEXT];
                Executor *e = assistant_rig_reader(assistant_targets[assistant_files[f].target].exact, kv_types[k]);
                Drafter *d = open_assistant(e, &assistant_files[f], shapes[k][0], shapes[k][1]);
                rig_tokens(60 + (uint64_t)n, V, text, n);
                expect_tree(&assistants[f], e, d, 2, text, n, shapes[k], &want);
                rig_propose(d, 2, text[n - 1], shapes[k][2], V, &got);
                learned_rig_assert_alike(&want, &got, 1e-5, assistant_files[f].path);
                drafter_close(d);
                rig_executor_close(e);
            }
}

static void trees_are_those_of_the_plain_layers(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{1, 4}, {4, 1}, {3, 3}}, budgets[] = {40, 2, 17};
    static Tree want[3];
    for (int f = 0; f < ASSISTANT_FILES; f++)
        for (int k = 0; k < 9; k++) {
            const int32_t *s = shapes[k / 3];
            Executor *e = assistant_rig_reader(assistant_targets[assistant_files[f].target].weights, kv_types[k % 3]);
            Drafter *d = open_assistant(e, &assistant_files[f], s[0], s[1]);
            for (int32_t i = 0; i < 3; i++) {
                int32_t text[ASSISTANT_TEXT], n = ASSISTANT_TEXT - 8 * i;
                rig_tokens(50 + (uint64_t)i, V, text, n);
                expect_tree(&assistants[f], e, d, i + 1, text, n, (int32_t[]){s[0], s[1], budgets[i]}, &want[i]);
            }
            learned_rig_check_proposals(d, want, budgets, V, assistant_files[f].path);
            drafter_close(d);
            rig_executor_close(e);
        }
}

/* ---- sequences ---------------------------------------------------------------------------------------- */

/* After a step that accepts two of three nodes, the proposal is that after the whole text. A sequence whose keys were
 * given back gets no tree. */
static void a_step_leads_where_the_prompt_leads(void **state) {
    (void)state;
    enum { N = 14, N_ROWS = 4 };
    static Tree tree, stepped, whole;
    int32_t text[N + 3];
    const float *hidden[N_ROWS];
    Row rows[N_ROWS];
    fr_error err;
    Executor *e = assistant_rig_reader(assistant_targets[0].weights, KV_F16);
    Drafter *d = open_assistant(e, &assistant_files[0], 3, 4);
    rig_tokens(3, V, text, N + 3);
    feed(e, d, 0, text, N, NULL);
    tree_reset(&tree, text[N - 1]);
    tree_add(&tree, 0, (text[N] + 1) % V, 0.5f, 0);
    tree_add(&tree, tree_add(&tree, 0, text[N], 0.5f, 0), text[N + 1], 0.5f, 0);
    for (int32_t i = 0; i < N_ROWS; i++)
        rows[i] = (Row){.token = tree.nodes[i].token, .parent = tree.nodes[i].parent, .want_hidden = true};
    if (executor_reserve(e, 0, N_ROWS, &err) || executor_forward(e, rows, N_ROWS, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < N_ROWS; i++) hidden[i] = executor_hidden(e, i);
    const VerifyResult verdict = {.n_path = 2, .path = {2, 3}, .next_token = text[N + 2]};
    const VerifiedTree verified = {.tree = &tree, .hidden = hidden, .verdict = &verdict};
    if (d->class->observe_tree(d, 0, &verified, &err) || d->class->observe(d, 0, text + N, 3, &err))
        fail_msg("%s", err.message);
    executor_commit(e, 0, (int32_t[]){0, 2, 3}, 3);
    rig_propose(d, 0, text[N + 2], 20, V, &stepped);
    feed(e, d, 1, text, N + 3, NULL);
    rig_propose(d, 1, text[N + 2], 20, V, &whole);
    assert_int_equal(whole.n, 21);
    rig_assert_same_tree(&whole, &stepped, "after a step");
    executor_sequence_truncate(e, 1, 4);
    rig_propose(d, 1, text[N + 2], 20, V, &whole);
    assert_int_equal(whole.n, 1);
    drafter_close(d);
    rig_executor_close(e);
}

/* ---- rows of an executor that reads another one ----------------------------------------------------------- */

static void impossible_rows_are_refused(void **state) {
    (void)state;
    Executor *e = assistant_rig_reader(assistant_targets[0].weights, KV_F16), *reader;
    int32_t text[4];
    fr_error err;
    float input[T] = {1};
    /* A model without layers that reads the target's cache. */
    Model m = model_of_layers(assistant_targets[0].weights->model, NULL, 0, 1);
    Weights *w;
    m.kv_model = assistant_targets[0].weights->model;
    m.output_norm = m.kv_model->output_norm;
    if (assistant_targets[0].weights->backend->submodel(&w, assistant_targets[0].weights, &m, false, &err))
        fail_msg("%s", err.message);
    const ExecutorOptions o = {.max_rows = 2, .reads = e};
    if (executor_open(&reader, executor_context(e)->device, w, &o, &err)) fail_msg("%s", err.message);
    rig_tokens(8, V, text, 4);
    feed(e, NULL, 0, text, 4, NULL);
    const struct {
        Row row;
        int code;
    } cases[] = {{{.token = 5, .sequence = 0, .parent = -1, .input = input, .want_hidden = true}, FR_OK},
                 {{.token = 5, .sequence = 1, .parent = -1, .input = input}, FR_ERR_ARGUMENT}, /* it is empty */
                 {{.token = 5, .sequence = 0, .parent = 0, .input = input}, FR_ERR_ARGUMENT},
                 {{.token = 5, .sequence = 0, .parent = -1}, FR_ERR_ARGUMENT},
                 {{.token = V, .sequence = 0, .parent = -1, .input = input}, FR_ERR_ARGUMENT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(executor_forward(reader, &cases[i].row, 1, &err), cases[i].code);
    assert_int_equal(executor_sequence_length(e, 0), 3);
    executor_close(reader);
    weights_close(w);
    rig_executor_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_forward_has_the_numbers_of_the_plain_layers),
        cmocka_unit_test(trees_are_those_of_the_plain_layers),
        cmocka_unit_test(a_step_leads_where_the_prompt_leads),
        cmocka_unit_test(impossible_rows_are_refused),
    };
    return cmocka_run_group_tests(tests, assistant_rig_open, assistant_rig_close);
}
