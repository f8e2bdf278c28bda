/* learned_checks.c - checks of learned drafters: their trees without an engine, and the text of requests that draft
 * with them, which is that of plain decoding. */
#include "learned_rig.h"

#include "base/rng.h"
#include "tree/tree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- without an engine ----------------------------------------------------------------------------- */

enum { READER_CTX = 256, MAX_VOCAB = 300 };

void learned_rig_open_reader(LearnedReader *r, const Weights *model) {
    RigOptions options = rig_options(READER_CTX, READER_CTX);
    options.n_threads = 2;
    *r = (LearnedReader){.model = model, .executor = rig_executor(model, &options)};
    r->sequence = rig_sequence(r->executor);
}

void learned_rig_close_reader(LearnedReader *r) { rig_executor_close(r->executor); }

int learned_rig_try_drafter(LearnedReader *r, const char *spec, int32_t max_sequences, Drafter **out, fr_error *err) {
    const DrafterEnv env = {.n_vocab = r->model->model->hparams.n_vocab,
                            .max_sequences = max_sequences,
                            .target = r->model->model->gguf,
                            .weights = r->model,
                            .device = executor_context(r->executor)->device,
                            .n_ctx = READER_CTX,
                            .kept = &r->kept};
    return drafter_open(out, spec, &env, 0, err);
}

Drafter *learned_rig_open_drafter(LearnedReader *r, const char *spec, int32_t max_sequences) {
    Drafter *d;
    fr_error err;
    if (learned_rig_try_drafter(r, spec, max_sequences, &d, &err)) fail_msg("%s", err.message);
    if (r->kept.n && executor_keep_layers(r->executor, &r->kept, &err)) fail_msg("%s", err.message);
    return d;
}

void learned_rig_check_refused(const Weights *target, const char *spec, fr_code code, const char *words) {
    LearnedReader reader;
    Drafter *d = NULL;
    fr_error err = {0};
    learned_rig_open_reader(&reader, target);
    int status = learned_rig_try_drafter(&reader, spec, 1, &d, &err);
    assert_null(d);
    if (status != (int)code || !strstr(err.message, words))
        fail_msg("%s: status %d instead of %d, and '%s' should contain '%s'", spec, status, (int)code, err.message,
                 words);
    learned_rig_close_reader(&reader);
}

const float *learned_rig_feed(LearnedReader *r, Drafter *d, int32_t sequence, const int32_t *text, int32_t n,
                              int32_t chunk) {
    fr_error err;
    Row rows[READER_CTX];
    const float *hidden[READER_CTX];
    assert_true(n <= READER_CTX && n > 1);
    executor_sequence_truncate(r->executor, r->sequence, 0);
    for (int32_t i = 0; i < n - 1; i++)
        rows[i] = (Row){.token = text[i], .sequence = r->sequence, .parent = i - 1, .want_hidden = true};
    if (executor_reserve(r->executor, r->sequence, n - 1, &err) || executor_forward(r->executor, rows, n - 1, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < n - 1; i++) hidden[i] = executor_hidden(r->executor, i);
    if (d->class->begin(d, sequence, text, n, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < n - 1; i += chunk)
        if (d->class->observe_prompt(d, sequence, i, hidden + i, n - 1 - i < chunk ? n - 1 - i : chunk, &err))
            fail_msg("%s", err.message);
    return hidden[n - 2];
}

void learned_rig_read_streams(const Weights *target, const int32_t *text, int32_t n, double *out) {
    RigOptions options = rig_options(n, n);
    Executor *e = rig_executor(target, &options);
    int32_t s = rig_sequence(e), n_embd = target->model->hparams.n_embd, n_kept = target->model->hparams.n_layer + 1;
    Row *rows = calloc((size_t)n, sizeof *rows);
    KeptLayers kept = {0};
    fr_error err;
    assert_non_null(rows);
    for (int32_t k = 0; k < n_kept; k++) assert_int_equal(kept_layers_add(&kept, k), k);
    if (executor_keep_layers(e, &kept, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < n; i++)
        rows[i] = (Row){.token = text[i], .sequence = s, .parent = i - 1, .want_hidden = true};
    if (executor_reserve(e, s, n, &err) || executor_forward(e, rows, n, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = 0; c < n_kept * n_embd; c++)
            out[i * n_kept * n_embd + c] = (double)executor_hidden(e, i)[n_embd + c];
    rig_executor_close(e);
    free(rows);
}

void learned_rig_assert_alike(const Tree *want, const Tree *got, double tolerance, const char *what) {
    int32_t place[TREE_MAX_NODES] = {0};
    if (want->n != got->n) fail_msg("%s: %d nodes instead of %d", what, got->n, want->n);
    for (int32_t i = 1; i < want->n; i++) {
        const TreeNode *w = &want->nodes[i];
        place[i] = tree_child(got, place[w->parent], w->token);
        if (place[i] < 0)
            fail_msg("%s: node %d (token %d, depth %d, p_accept %g) is missing", what, i, w->token, w->depth,
                     (double)w->p_accept);
        double p_accept = (double)got->nodes[place[i]].p_accept;
        if (!(fabs(p_accept - (double)w->p_accept) <= tolerance * (double)w->p_accept))
            fail_msg("%s: node %d has p_accept %.9g instead of %.9g", what, i, p_accept, (double)w->p_accept);
    }
}

void learned_rig_check_proposals(Drafter *d, const Tree want[3], const int32_t budgets[3], int32_t n_vocab,
                                 const char *what) {
    static Tree got[3], alone;
    Tree *trees[] = {&got[2], &got[0], &got[1]};
    fr_error err;
    for (int32_t i = 0; i < 3; i++) tree_reset(&got[i], want[i].nodes[0].token);
    if (d->class->propose(d, (int32_t[]){3, 1, 2}, (int32_t[]){budgets[2], budgets[0], budgets[1]}, trees, 3, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < 3; i++) {
        int32_t pending = want[i].nodes[0].token;
        if (tree_validate(&got[i], pending, n_vocab, budgets[i] + 1, &err)) fail_msg("%s", err.message);
        learned_rig_assert_alike(&want[i], &got[i], 5e-3, what);
        rig_propose(d, i + 1, pending, budgets[i], n_vocab, &alone); /* again, and now without the others */
        rig_assert_same_tree(&got[i], &alone, what);
        d->class->end(d, i + 1);
    }
}

void learned_rig_best_tokens(const double *dist, int32_t n_vocab, int32_t k, int32_t *tokens) {
    bool taken[MAX_VOCAB] = {false};
    for (int32_t i = 0; i < k; i++) {
        int32_t best = -1;
        for (int32_t v = 0; v < n_vocab; v++)
            if (!taken[v] && (best < 0 || dist[v] > dist[best])) best = v;
        taken[tokens[i] = best] = true;
    }
}

void learned_rig_search(const LearnedSearch *s, int32_t pending, Tree *out) {
    double log_p[TREE_MAX_NODES] = {0};
    char *places = calloc(TREE_MAX_NODES, s->place_bytes);
    int32_t front[16] = {0}, n_front = 1, tokens[16];
    assert_true(places && s->n_vocab <= MAX_VOCAB && s->top <= 16);
    tree_reset(out, pending);
    memcpy(places, s->root, s->place_bytes);
    for (int32_t level = 0; level < s->depth && level < s->budget; level++) {
        int32_t first = out->n;
        for (int32_t f = 0; f < n_front; f++) {
            const TreeNode *x = &out->nodes[front[f]];
            char *place = places + (size_t)front[f] * s->place_bytes;
            if (front[f]) s->make(s->model, places + (size_t)x->parent * s->place_bytes, x->token, place);
            const double *after = (const double *)(const void *)place;
            learned_rig_best_tokens(after, s->n_vocab, s->top, tokens);
            for (int32_t k = 0; k < s->top; k++) {
                double sum = log_p[front[f]] + after[tokens[k]];
                log_p[tree_add(out, front[f], tokens[k], (float)exp(sum), 0)] = sum;
            }
        }
        bool taken[TREE_MAX_NODES] = {false};
        for (n_front = 0; n_front < s->top && n_front < out->n - first; n_front++) {
            int32_t best = -1;
            for (int32_t i = first; i < out->n; i++)
                if (!taken[i] && (best < 0 || log_p[i] > log_p[best])) best = i;
            taken[front[n_front] = best] = true;
        }
    }
    union_prune(out, s->budget);
    free(places);
}

void learned_rig_check_step(const Weights *target, const char *spec) {
    enum { N_BEFORE = 12, N_ROWS = 4 };
    LearnedReader reader;
    int32_t n_vocab = target->model->hparams.n_vocab;
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 2);
    int32_t text[N_BEFORE + 3];
    fr_error err;
    rig_tokens(3, n_vocab, text, N_BEFORE + 3);
    learned_rig_feed(&reader, d, 0, text, N_BEFORE, 5);
    static Tree tree, stepped, whole;
    tree_reset(&tree, text[N_BEFORE - 1]); /* the next two tokens of the text are nodes 2 and 3; node 1 is wrong */
    tree_add(&tree, 0, (text[N_BEFORE] + 1) % n_vocab, 0.5f, 0);
    tree_add(&tree, tree_add(&tree, 0, text[N_BEFORE], 0.5f, 0), text[N_BEFORE + 1], 0.5f, 0);
    Row rows[N_ROWS];
    const float *hidden[N_ROWS], *logits[N_ROWS];
    int32_t prompt_rows[N_BEFORE];
    for (int32_t i = 0; i < N_BEFORE - 1; i++) prompt_rows[i] = i;
    executor_commit(reader.executor, reader.sequence, prompt_rows, N_BEFORE - 1);
    for (int32_t i = 0; i < N_ROWS; i++)
        rows[i] = (Row){.token = tree.nodes[i].token,
                        .sequence = reader.sequence,
                        .parent = tree.nodes[i].parent,
                        .want_logits = true};
    if (executor_reserve(reader.executor, reader.sequence, N_ROWS, &err) ||
        executor_forward(reader.executor, rows, N_ROWS, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < N_ROWS; i++) hidden[i] = executor_hidden(reader.executor, i);
    for (int32_t i = 0; i < N_ROWS; i++) logits[i] = executor_logits(reader.executor, i);
    const VerifyResult verdict = {.n_path = 2, .path = {2, 3}, .next_token = text[N_BEFORE + 2]};
    const VerifiedTree verified = {.tree = &tree, .logits = logits, .hidden = hidden, .verdict = &verdict};
    if (d->class->observe_tree(d, 0, &verified, &err) || d->class->observe(d, 0, text + N_BEFORE, 3, &err))
        fail_msg("%s", err.message);
    rig_propose(d, 0, text[N_BEFORE + 2], 20, n_vocab, &stepped);
    learned_rig_feed(&reader, d, 1, text, N_BEFORE + 3, 100);
    rig_propose(d, 1, text[N_BEFORE + 2], 20, n_vocab, &whole);
    assert_true(whole.n > 5);
    rig_assert_same_tree(&whole, &stepped, "after a step");
    assert_int_equal(d->class->observe_prompt(d, 1, 3, hidden, 1, &err), FR_ERR_INTERNAL); /* it was observed before */
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

void learned_rig_check_idle(const Weights *target, const char *spec) {
    /* The queue of 32 entries is full after 24 idle steps, and the next one drops its older half. */
    enum { N_BEFORE = 9, N_IDLE = 30, N = N_BEFORE + N_IDLE, N_DROPPED = 16 };
    LearnedReader reader;
    int32_t n_vocab = target->model->hparams.n_vocab, text[N];
    static Tree tree, idle, shown;
    Row rows[N];
    const float *hidden[N];
    fr_error err;
    rig_tokens(4, n_vocab, text, N);
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 2);
    for (int32_t i = 0; i < N; i++)
        rows[i] = (Row){.token = text[i], .sequence = reader.sequence, .parent = i - 1, .want_hidden = true};
    if (executor_reserve(reader.executor, reader.sequence, N, &err) || executor_forward(reader.executor, rows, N, &err))
        fail_msg("%s", err.message);
    for (int32_t i = 0; i < N; i++) hidden[i] = executor_hidden(reader.executor, i);
    if (d->class->begin(d, 0, text, N_BEFORE, &err) || d->class->begin(d, 1, text, N, &err) ||
        d->class->observe_prompt(d, 0, 0, hidden, N_BEFORE - 1, &err) ||
        d->class->observe_prompt(d, 1, N_DROPPED, hidden + N_DROPPED, N - 1 - N_DROPPED, &err))
        fail_msg("%s", err.message);
    for (int32_t i = N_BEFORE; i < N; i++) {
        const VerifyResult verdict = {.next_token = text[i]};
        const VerifiedTree step = {.tree = &tree, .hidden = hidden + i - 1, .verdict = &verdict, .is_idle = true};
        tree_reset(&tree, text[i - 1]);
        if (d->class->observe_tree(d, 0, &step, &err) || d->class->observe(d, 0, text + i, 1, &err))
            fail_msg("%s", err.message);
    }
    rig_propose(d, 0, text[N - 1], 20, n_vocab, &idle);
    rig_propose(d, 1, text[N - 1], 20, n_vocab, &shown);
    assert_true(shown.n > 5);
    rig_assert_same_tree(&shown, &idle, "after idle steps");
    assert_int_equal(d->class->n_held(d, 0), 0); /* the dropped entries were the first ones */
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* ---- entries of several sequences -------------------------------------------------------------------- */

enum { N_TOGETHER = 3, N_LONG = 230, N_LONG_PROMPT = 90, N_ROUNDS = 12, MAX_EMBD = 64, MAX_STREAMS = 3 };

typedef struct LongText {
    int32_t tokens[N_LONG], n; /* n: tokens that the drafters have seen */
    float hidden[N_LONG][(1 + MAX_STREAMS) * MAX_EMBD], logits[N_LONG][MAX_VOCAB];
} LongText;

static void read_long_text(LearnedReader *r, uint64_t seed, LongText *t) {
    Row rows[N_LONG];
    fr_error err;
    rig_tokens(seed, r->model->model->hparams.n_vocab, t->tokens, N_LONG);
    for (int32_t i = 0; i < N_LONG; i++)
        rows[i] = (Row){.token = t->tokens[i], .sequence = r->sequence, .parent = i - 1, .want_logits = true};
    executor_sequence_truncate(r->executor, r->sequence, 0);
    if (executor_reserve(r->executor, r->sequence, N_LONG, &err) || executor_forward(r->executor, rows, N_LONG, &err))
        fail_msg("%s", err.message);
    size_t width = (size_t)context_hidden_width(executor_context(r->executor));
    assert_true(width <= sizeof t->hidden[0] / sizeof t->hidden[0][0]);
    for (int32_t i = 0; i < N_LONG; i++) {
        memcpy(t->hidden[i], executor_hidden(r->executor, i), width * sizeof t->hidden[i][0]);
        memcpy(t->logits[i], executor_logits(r->executor, i), sizeof t->logits[i]);
    }
}

static void begin_long_text(Drafter *d, int32_t sequence, const LongText *t, int32_t chunk) {
    const float *hidden[N_LONG];
    fr_error err;
    for (int32_t i = 0; i < N_LONG; i++) hidden[i] = t->hidden[i];
    if (d->class->begin(d, sequence, t->tokens, t->n, &err)) fail_msg("%s", err.message);
    for (int32_t i = 0; i < t->n - 1; i += chunk)
        if (d->class->observe_prompt(d, sequence, i, hidden + i, t->n - 1 - i < chunk ? t->n - 1 - i : chunk, &err))
            fail_msg("%s", err.message);
}

/* Makes a step that commits the next m tokens of the text. */
static void step_long_text(Drafter *d, int32_t sequence, const LongText *t, int32_t m) {
    static Tree tree;
    const float *hidden[N_LONG], *logits[N_LONG];
    VerifyResult verdict = {.n_path = m - 1, .next_token = t->tokens[t->n + m - 1]};
    fr_error err;
    tree_reset(&tree, t->tokens[t->n - 1]);
    for (int32_t i = 0; i < m; i++) {
        hidden[i] = t->hidden[t->n - 1 + i];
        logits[i] = t->logits[t->n - 1 + i];
        if (i > 0) verdict.path[i - 1] = tree_add(&tree, i - 1, t->tokens[t->n - 1 + i], 0.5f, 0);
    }
    const VerifiedTree verified = {.tree = &tree, .logits = logits, .hidden = hidden, .verdict = &verdict};
    if (d->class->observe_tree(d, sequence, &verified, &err) ||
        d->class->observe(d, sequence, t->tokens + t->n, m, &err))
        fail_msg("%s", err.message);
}

void learned_rig_check_together(const Weights *target, const char *spec) {
    static LongText texts[N_TOGETHER];
    static Tree together[N_TOGETHER], alone;
    LearnedReader reader;
    fr_error err;
    learned_rig_open_reader(&reader, target);
    assert_int_equal(target->model->hparams.n_embd, MAX_EMBD);
    assert_int_equal(target->model->hparams.n_vocab, MAX_VOCAB);
    Drafter *a = learned_rig_open_drafter(&reader, spec, N_TOGETHER),
            *b = learned_rig_open_drafter(&reader, spec, N_TOGETHER);
    for (int32_t i = 0; i < N_TOGETHER; i++) {
        read_long_text(&reader, 70 + (uint64_t)i, &texts[i]);
        texts[i].n = N_LONG_PROMPT - 30 * i;
        begin_long_text(a, i, &texts[i], N_LONG);
        begin_long_text(b, i, &texts[i], 1 + 6 * i);
    }
    for (int32_t round = 0; round < N_ROUNDS; round++) {
        int32_t ids[N_TOGETHER], budgets[N_TOGETHER], n = 0;
        Tree *trees[N_TOGETHER];
        for (int32_t i = 0; i < N_TOGETHER; i++) {
            if (i == 1 && round > 0 && round < N_ROUNDS - 1)
                continue; /* this sequence does not draft until its queue
                                                                        * is too short */
            ids[n] = i, budgets[n] = 9 + i, trees[n] = &together[i];
            tree_reset(trees[n++], texts[i].tokens[texts[i].n - 1]);
        }
        if (a->class->propose(a, ids, budgets, trees, n, &err)) fail_msg("%s", err.message);
        for (int32_t k = n - 1; k >= 0; k--) {
            const LongText *t = &texts[ids[k]];
            rig_propose(b, ids[k], t->tokens[t->n - 1], budgets[k], target->model->hparams.n_vocab, &alone);
            assert_true(alone.n > 5);
            rig_assert_same_tree(&alone, &together[ids[k]], spec);
        }
        for (int32_t i = 0; i < N_TOGETHER; i++) {
            int32_t m = 1 + (round + 2 * i) % 6;
            step_long_text(a, i, &texts[i], m);
            step_long_text(b, i, &texts[i], m);
            texts[i].n += m;
        }
    }
    drafter_close(a);
    drafter_close(b);
    learned_rig_close_reader(&reader);
}

/* ---- files that a training begins with --------------------------------------------------------------- */

/* Lets a drafter propose a tree after a text of n tokens. */
static void propose_after(const Weights *target, const char *spec, const int32_t *text, int32_t n, Tree *tree) {
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, spec, 1);
    learned_rig_feed(&reader, d, 0, text, n, 4);
    rig_propose(d, 0, text[n - 1], 20, target->model->hparams.n_vocab, tree);
    drafter_close(d);
    learned_rig_close_reader(&reader);
}

/* Opens the trainer that begins with a file. */
static int open_with_init(Trainer **out, const Weights *target, const TrainMethod *method, const char *path,
                          fr_error *err) {
    char signature[1000];
    TrainArgs args;
    train_args_defaults(&args);
    args.init = path;
    args.data.length = 8;
    args.n_threads = 1;
    return method->open(out, &args, target->model->gguf, signature, sizeof signature, err);
}

void learned_rig_check_init_refused(const Weights *target, const TrainMethod *method, const char *path,
                                    const char *words) {
    Trainer *t;
    fr_error err;
    assert_int_equal(open_with_init(&t, target, method, path, &err), FR_ERR_UNSUPPORTED);
    if (!strstr(err.message, words)) fail_msg("%s, not %s", err.message, words);
}

void learned_rig_check_init(const Weights *target, const TrainMethod *method, const char *path, const char *options) {
    enum { N_TEXT = 14 };
    static Tree trees[2];
    char written[64], spec[256];
    int32_t text[N_TEXT];
    Trainer *t = NULL;
    fr_error err;
    rig_tokens(9, target->model->hparams.n_vocab, text, N_TEXT);
    snprintf(written, sizeof written, "build/init-%s.gguf", method->name);
    if (open_with_init(&t, target, method, path, &err) || t->class->write(t, written, NULL, &err))
        fail_msg("%s: %s", path, err.message);
    t->class->close(t);
    for (int i = 0; i < 2; i++) {
        snprintf(spec, sizeof spec, "%s:file=%s,%s", method->name, i ? written : path, options);
        propose_after(target, spec, text, N_TEXT, &trees[i]);
    }
    learned_rig_assert_alike(&trees[0], &trees[1], 1e-3, path);
}

/* ---- in the engine ------------------------------------------------------------------------------- */

enum { N_PROMPT = 24, N_TOKENS = 40, N_SAMPLINGS = 4, N_REQUESTS = 8, N_PLACES = 4 };

typedef struct Case {
    int32_t prompt[N_PROMPT];
    fr_request_options options; /* without drafters */
    Stream plain, drafted;      /* drafted: with only this request */
} Case;

static Case cases[N_REQUESTS];

/* Prompts of several lengths; every third has a prefix of the first. */
static void make_case(int i, int32_t n_vocab) {
    Case *c = &cases[i];
    memset(c, 0, sizeof *c);
    for (int k = 0; k < N_PROMPT; k++)
        c->prompt[k] = 3 + rig_token(i % 3 == 0 && k < 18 ? 90 : 91 + (uint64_t)i, (uint64_t)k, n_vocab - 3);
    c->options = (fr_request_options){.struct_size = sizeof(fr_request_options),
                                      .prompt = c->prompt,
                                      .n_prompt = i == 4 ? 1 : N_PROMPT - i % 3,
                                      .max_tokens = N_TOKENS - 3 * (i % 4),
                                      .sampling = fr_sampling_default(),
                                      .ignore_eos = 1};
    fr_sampling *s = &c->options.sampling;
    if (i % N_SAMPLINGS == 1) s->temperature = 0.8f, s->seed = 11;
    if (i % N_SAMPLINGS == 2) s->temperature = 1, s->top_p = 0.9f, s->seed = 12;
    if (i % N_SAMPLINGS == 3) s->temperature = 1.2f, s->top_k = 30, s->repeat_penalty = 1.2f, s->seed = 13;
}

static void assert_drafts(const Stream *got, const char *what) {
    if (got->draft_error[0]) fail_msg("%s: %s", what, got->draft_error);
    if (got->stats.drafted == 0) fail_msg("%s: nothing was drafted", what);
}

/* Each request by itself: the text is that of plain decoding for every budget and chunk size, and the drafts depend
 * only on the budget. */
static int64_t check_alone(const fr_model *model, const char *spec) {
    static const int budgets[] = {1, 3, 8, 24, 64}, chunks[] = {1, 5, 256};
    static Stream got;
    int64_t accepted = 0;
    for (int i = 0; i < N_REQUESTS; i++) {
        Case *c = &cases[i];
        fr_request_options o = c->options;
        o.drafts = &spec, o.n_drafts = 1;
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++) {
            fr_engine_options eo = {.struct_size = sizeof eo,
                                    .n_threads = 1 + (int)b % 3,
                                    .prefill_chunk = chunks[((size_t)i + b) % 3],
                                    .kv_page_size = 3};
            fr_engine *e = rig_open_engine(model, &eo);
            if (b == 0) rig_run_request(e, &c->options, &c->plain);
            o.tree_budget = budgets[b];
            rig_run_request(e, &o, &got);
            rig_assert_same(&c->plain, &got, spec);
            assert_drafts(&got, spec);
            accepted += got.stats.accepted;
            if (budgets[b] == 8) c->drafted = got;
            fr_engine_close(e);
        }
    }
    return accepted;
}

/* Several requests at once, with and without enough KV pages for all: the text is the same, and with enough pages so
 * are the drafts. Returns the number of pages taken from requests. */
static int64_t check_together(const fr_model *model, const char *spec, int64_t kv_tokens) {
    static Stream got;
    fr_engine_options eo = {.struct_size = sizeof eo,
                            .max_requests = N_PLACES,
                            .prefill_chunk = 7,
                            .kv_page_size = 4,
                            .n_ctx = 80,
                            .kv_tokens = kv_tokens};
    fr_engine *e = rig_open_engine(model, &eo);
    fr_request *running[N_PLACES] = {NULL};
    int which[N_PLACES] = {0}, n_started = 0, n_done = 0;
    int64_t n_preempted = 0;
    fr_error err;
    for (int step = 0; n_done < N_REQUESTS; step++) {
        for (int p = 0; p < N_PLACES; p++) {
            if (running[p] && fr_request_finish_reason(running[p])) {
                const Case *c = &cases[which[p]];
                rig_collect(running[p], &got);
                rig_assert_same(&c->plain, &got, "beside others");
                assert_drafts(&got, "beside others");
                if (!kv_tokens) assert_int_equal(got.stats.drafted, c->drafted.stats.drafted);
                if (!kv_tokens) assert_int_equal(got.stats.accepted, c->drafted.stats.accepted);
                n_preempted += got.stats.n_preempted;
                fr_request_close(running[p]);
                running[p] = NULL;
                n_done++;
            }
            if (running[p] || n_started == N_REQUESTS || step % 2) continue;
            which[p] = n_started;
            fr_request_options o = cases[n_started++].options;
            o.drafts = &spec, o.n_drafts = 1, o.tree_budget = 8;
            if (rig_open_request(&running[p], e, &o, &err)) fail_msg("%s", err.message);
        }
        if (fr_engine_step(e, &err) < 0) fail_msg("%s", err.message);
        assert_true(step < 10000);
    }
    fr_engine_close(e);
    return n_preempted;
}

/* Ratio rules treat the groups as points; greedy requests have the plain text under these rules too. */
static void check_ratio_rules(const fr_model *model, const char *spec) {
    static const char *const rules[] = {"multi-round", "recursive"};
    static Stream got;
    fr_engine *e = rig_open_engine(model, NULL);
    for (int i = 0; i < N_SAMPLINGS; i++)
        for (size_t k = 0; k < sizeof rules / sizeof *rules; k++) {
            fr_request_options o = cases[i].options;
            o.drafts = &spec, o.n_drafts = 1, o.tree_budget = 8, o.verify = rules[k];
            rig_run_request(e, &o, &got);
            assert_drafts(&got, rules[k]);
            if (o.sampling.temperature == 0) rig_assert_same(&cases[i].plain, &got, rules[k]);
        }
    fr_engine_close(e);
}

void learned_rig_check_lossless(const char *target, const char *spec) {
    fr_model *model = rig_open_model(target, NULL);
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    for (int i = 0; i < N_REQUESTS; i++) make_case(i, info.n_vocab);
    if (check_alone(model, spec) == 0) fail_msg("%s: no draft was accepted", spec);
    check_together(model, spec, 0);
    if (check_together(model, spec, 84) == 0) fail_msg("%s: no pages were taken from requests", spec);
    check_ratio_rules(model, spec);
    fr_model_close(model);
}
