/* test_draft_mtp_layers.c - the drafter mtp with several layers: compares its trees with a plain computation in double
 * precision, which runs all layers over the whole context and one path at a time; and proposals after contexts that
 * arrived in different ways: at once, in pieces, in steps, from another request, and from a saved prefix. */
#include "learned_rig.h"

#include "compute/backend.h"
#include "plain_mtp.h"

#include <stdlib.h>
#include <string.h>

enum { H = MTP_EMBD, V = MTP_VOCAB, MAX_TEXT = 16, MAX_DEPTH = 6, MAX_LAYERS = 4 };

#define TARGET "build/mtp-layers.gguf"
#define ROUTED \
    .n_layer = 2, .n_embd = H, .n_head = 4, .n_ff = 96, .n_vocab = V, .n_dense = 1, .n_expert = 6, .n_expert_used = 2, \
    .n_ff_expert = 24, .n_ff_shared = 24, .has_sigmoid_router = true, .divides_by_chosen = true

static const RandomModel models[] = {
    {MTP_SHAPE("qwen35"), .n_nextn = 2, .seed = 41},
    {MTP_SHAPE("qwen35"), .n_nextn = 3, .nextn_head = true, .types = {TYPE_Q8_0, TYPE_F16}, .n_types = 2, .seed = 42},
    {MTP_SHAPE("qwen35"), .n_nextn = 4, .seed = 43},
};
/* These have only attention, so that a request can take over any number of tokens. */
static const RandomModel latent = {.arch = "deepseek2",
                                   ROUTED,
                                   .n_head_kv = 1,
                                   .q_rank = 20,
                                   .kv_rank = 36,
                                   .plain_dim = 10,
                                   .n_rot = 6,
                                   .value_dim = 14,
                                   .n_nextn = 3,
                                   .seed = 44};
static const RandomModel routed = {.arch = "glm4moe",
                                   ROUTED,
                                   .n_head_kv = 2,
                                   .head_dim = 16,
                                   .n_rot = 8,
                                   .n_nextn = 3,
                                   .nextn_head = true,
                                   .seed = 45};

static Weights *open_target(const RandomModel *m) { return rig_weights(rig_random_gguf(m), NULL); }

static void close_target(Weights *target) {
    Gguf *g = (Gguf *)(uintptr_t)target->model->gguf;
    rig_weights_close(target);
    gguf_close(g);
}

/* ---- against double precision ------------------------------------------------------------------------ */

typedef struct PlainText {
    const PlainMtp *layers;
    int32_t n_layers, n;
    int32_t text[MAX_TEXT];
    double hidden[MAX_TEXT][H]; /* of all tokens but the last, which is pending */
} PlainText;

/* The state of the search after a path. */
typedef struct Path {
    double log_p[V];
    int32_t n, tokens[MAX_DEPTH];
} Path;

/* Computes the distribution after a path from the definition: layer k makes an entry of what layer k - 1 made at each
 * position and of the token k places later, as far as that token is known. */
static void run_path(const PlainText *c, Path *path) {
    static PlainMtpRow rows[MAX_LAYERS][MAX_TEXT + MAX_DEPTH];
    int32_t tokens[MAX_TEXT + MAX_DEPTH], n_tokens = c->n + path->n, n_read = c->n - 1;
    memcpy(tokens, c->text, (size_t)c->n * sizeof *tokens);
    memcpy(tokens + c->n, path->tokens, (size_t)path->n * sizeof *tokens);
    int32_t last = path->n + 1 < c->n_layers ? path->n + 1 : c->n_layers;
    for (int32_t k = 1; k <= last; k++) {
        PlainMtpRow *row = rows[k - 1];
        for (int32_t i = 0; i + k < n_tokens && (i < n_read || k == last); i++) {
            const double *of_before = k > 1 ? rows[k - 2][i].feature : c->hidden[i];
            plain_mtp_run(&c->layers[k - 1], i ? &row[i - 1] : NULL, tokens[i + k],
                          i < n_read ? of_before : row[i - 1].feature, &row[i]);
        }
    }
    memcpy(path->log_p, rows[last - 1][n_tokens - last - 1].log_p, sizeof path->log_p);
}

static void extend_path(const void *context, const void *before, int32_t token, void *after) {
    Path *path = after;
    *path = *(const Path *)before;
    path->tokens[path->n++] = token;
    run_path(context, path);
}

/* Compares the proposals for three texts together, from the shortest possible one on. */
static void check_trees(LearnedReader *r, PlainText *c, int32_t depth, int32_t top) {
    static const int32_t budgets[] = {40, 9, 17}, lengths[] = {MAX_TEXT, 2, 4};
    static Tree want[3];
    char spec[64];
    snprintf(spec, sizeof spec, "mtp:depth=%d,top=%d", depth, top);
    Drafter *d = learned_rig_open_drafter(r, spec, 4);
    for (int32_t i = 0; i < 3; i++) {
        c->n = lengths[i];
        rig_tokens(80 + (uint64_t)i, V, c->text, c->n);
        learned_rig_feed(r, d, i + 1, c->text, c->n, 3 + i);
        for (int32_t t = 0; t < c->n - 1; t++)
            for (int32_t k = 0; k < H; k++) c->hidden[t][k] = (double)executor_hidden(r->executor, t)[k];
        Path root = {.n = 0};
        run_path(c, &root);
        const LearnedSearch search = {V, depth, top, budgets[i], extend_path, sizeof root, c, &root};
        learned_rig_search(&search, c->text[c->n - 1], &want[i]);
    }
    learned_rig_check_proposals(d, want, budgets, V, spec);
    drafter_close(d);
}

static void trees_are_those_of_the_plain_layers(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{1, 4}, {2, 3}, {3, 3}, {6, 2}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        PlainMtp layers[MAX_LAYERS];
        Weights *target = open_target(&models[m]);
        static PlainText c;
        LearnedReader reader;
        c.layers = layers, c.n_layers = models[m].n_nextn;
        for (int32_t k = 0; k < c.n_layers; k++) layers[k] = plain_mtp_read(target->model->gguf, target->model, k);
        learned_rig_open_reader(&reader, target);
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            check_trees(&reader, &c, shapes[k][0], shapes[k][1]);
        learned_rig_close_reader(&reader);
        for (int32_t k = 0; k < c.n_layers; k++) plain_mtp_free(&layers[k]);
        close_target(target);
    }
}

/* Both backends draft the same trees with latent attention, experts, and heads of the layers' own. */
static void both_backends_draft_the_same(void **state) {
    (void)state;
    const RandomModel *const shapes[] = {&latent, &routed};
    for (size_t m = 0; m < 2; m++) {
        static Tree trees[2];
        for (int b = 0; b < 2; b++) {
            Gguf *g = rig_random_gguf(shapes[m]);
            Weights *target = rig_weights_in(b ? &backend_reference : &backend_cpu, g);
            LearnedReader reader;
            int32_t text[MAX_TEXT];
            learned_rig_open_reader(&reader, target);
            Drafter *d = learned_rig_open_drafter(&reader, "mtp:depth=4,top=3", 1);
            rig_tokens(5 + m, V, text, MAX_TEXT);
            learned_rig_feed(&reader, d, 0, text, MAX_TEXT, 4);
            rig_propose(d, 0, text[MAX_TEXT - 1], 12, V, &trees[b]);
            drafter_close(d);
            learned_rig_close_reader(&reader);
            close_target(target);
        }
        learned_rig_assert_alike(&trees[1], &trees[0], 2e-2, shapes[m]->arch);
    }
}

/* ---- how the context arrives ---------------------------------------------------------------------------- */

static void steps_lead_where_prompts_lead(void **state) {
    (void)state;
    Weights *target = open_target(&models[1]);
    learned_rig_check_step(target, "mtp:depth=4,top=3");
    learned_rig_check_together(target, "mtp:depth=4,top=4");
    learned_rig_check_idle(target, "mtp:depth=4,top=4");
    close_target(target);
}

/* A proposal runs the last entries again. What it left of the proposals before has no effect on it. */
static void proposals_leave_no_trace(void **state) {
    (void)state;
    enum { N = 26, N_BEFORE = 3 };
    int32_t text[N];
    const float *hidden[N];
    static Tree tree, stepped, whole;
    fr_error err;
    Weights *target = open_target(&models[1]);
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    Drafter *d = learned_rig_open_drafter(&reader, "mtp:depth=4,top=3", 2);
    rig_tokens(61, V, text, N);
    learned_rig_feed(&reader, d, 0, text, N, 100);
    for (int32_t i = 0; i < N - 1; i++) hidden[i] = executor_hidden(reader.executor, i);
    if (d->class->begin(d, 1, text, N_BEFORE, &err) || d->class->observe_prompt(d, 1, 0, hidden, N_BEFORE - 1, &err))
        fail_msg("%s", err.message);
    for (int32_t i = N_BEFORE; i < N; i++) {
        const VerifyResult verdict = {.next_token = text[i]};
        const VerifiedTree step = {.tree = &tree, .hidden = hidden + i - 1, .verdict = &verdict};
        rig_propose(d, 1, text[i - 1], 20, V, &stepped);
        tree_reset(&tree, text[i - 1]);
        if (d->class->observe_tree(d, 1, &step, &err) || d->class->observe(d, 1, text + i, 1, &err))
            fail_msg("%s", err.message);
    }
    rig_propose(d, 1, text[N - 1], 20, V, &stepped);
    rig_propose(d, 0, text[N - 1], 20, V, &whole);
    assert_true(whole.n > 5);
    rig_assert_same_tree(&whole, &stepped, "after proposals");
    drafter_close(d);
    learned_rig_close_reader(&reader);
    close_target(target);
}

/* Proposes for a text that takes over n tokens from sequence 0 and reads the others. `hidden` is of the whole text. */
static void propose_after_taking(Drafter *d, const int32_t *text, int32_t n_text, const float *const *hidden, int32_t n,
                                 Tree *out) {
    fr_error err;
    if (d->class->begin(d, 1, text, n_text, &err)) fail_msg("%s", err.message);
    d->class->take_over(d, 0, 1, n);
    assert_int_equal(d->class->n_held(d, 1), n);
    if (d->class->observe_prompt(d, 1, n, hidden + n, n_text - 1 - n, &err)) fail_msg("%s", err.message);
    rig_propose(d, 1, text[n_text - 1], 20, V, out);
    d->class->end(d, 1);
}

/* A text takes over from another one as many tokens as `usable` returns, and would draft something else with one more
 * token, unless they are all but the last of the tokens that the two have in common. */
static void texts_take_over_what_they_can_use(void **state) {
    (void)state;
    enum { N = 30, N_FIRST = 20, N_LAYERS = 3 };
    Weights *target = open_target(&models[1]);
    LearnedReader reader;
    learned_rig_open_reader(&reader, target);
    for (int32_t n_common = 6; n_common <= N_FIRST + 4; n_common++) {
        Drafter *d = learned_rig_open_drafter(&reader, "mtp:depth=4,top=3", 3);
        int32_t first[N], text[N];
        const float *hidden[N];
        static Tree want, got;
        rig_tokens(60, V, first, N);
        for (int32_t i = 0; i < N; i++) text[i] = i < n_common ? first[i] : (first[i] + 7) % V;
        learned_rig_feed(&reader, d, 0, first, N_FIRST, 6);
        rig_propose(d, 0, first[N_FIRST - 1], 20, V, &got);
        learned_rig_feed(&reader, d, 2, text, N, 100);
        rig_propose(d, 2, text[N - 1], 20, V, &want);
        for (int32_t i = 0; i < N - 1; i++) hidden[i] = executor_hidden(reader.executor, i);
        int32_t n = d->class->usable(d, 0, n_common), n_held = d->class->n_held(d, 0);
        assert_int_equal(d->class->usable(d, 1, n_common), n_common - N_LAYERS); /* that sequence has not begun */
        assert_int_equal(n, n_common > N_FIRST - 1 ? n_common - 1 : n_common - N_LAYERS);
        propose_after_taking(d, text, N, hidden, n < n_held ? n : n_held, &got);
        rig_assert_same_tree(&want, &got, "taken over");
        if (n < n_common - 1) {
            propose_after_taking(d, text, N, hidden, n + 1, &got);
            assert_memory_not_equal(want.nodes, got.nodes, (size_t)want.n * sizeof *want.nodes);
        }
        drafter_close(d);
    }
    learned_rig_close_reader(&reader);
    close_target(target);
}

enum { N_PROMPT = 40, N_ANSWER = 12, PAGE = 4 };

static void ask(fr_engine *e, const int32_t *prompt, int64_t n, Stream *got) {
    static const char *const spec = "mtp:depth=5,top=2";
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = n,
                            .max_tokens = N_ANSWER,
                            .sampling = fr_sampling_default(),
                            .drafts = &spec,
                            .n_drafts = 1,
                            .tree_budget = 9,
                            .ignore_eos = 1};
    rig_run_request(e, &o, got);
    assert_string_equal(got->draft_error, "");
}

static fr_engine *open_engine(const fr_model *model, int prefix_cache) {
    return rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                       .n_ctx = 128,
                                                       .kv_page_size = PAGE,
                                                       .prefill_chunk = 7,
                                                       .prefix_cache = prefix_cache});
}

/* Texts and proposals are those of an engine that shares nothing. */
static void assert_as_alone(const fr_model *model, const int32_t *prompt, int64_t n, const Stream *got,
                            const char *what) {
    static Stream alone;
    fr_engine *apart = open_engine(model, -1);
    ask(apart, prompt, n, &alone);
    fr_engine_close(apart);
    rig_assert_same(&alone, got, what);
    assert_true(got->stats.drafted > 20);
    if (alone.stats.drafted != got->stats.drafted || alone.stats.accepted != got->stats.accepted)
        fail_msg("%s: %d of %d drafts accepted, but %d of %d without sharing", what, (int)got->stats.accepted,
                 (int)got->stats.drafted, (int)alone.stats.accepted, (int)alone.stats.drafted);
}

/* Asks for a prompt that has its first n_common tokens from earlier ones, which went on in another way. An entry of
 * three layers depends on three tokens after its own. */
static void ask_after_prefix(fr_engine *e, const fr_model *model, const int32_t *first, int32_t n_common) {
    int32_t prompt[N_PROMPT];
    Stream *got = malloc(sizeof *got);
    for (int32_t i = 0; i < N_PROMPT; i++) prompt[i] = i < n_common ? first[i] : (first[i] + 1 + n_common) % V;
    ask(e, prompt, N_PROMPT, got);
    assert_int_equal(got->stats.n_prompt_shared, n_common > 3 ? n_common - 3 : 0);
    assert_as_alone(model, prompt, N_PROMPT, got, "a shared prefix");
    free(got);
}

static void requests_share_prefixes(void **state) {
    (void)state;
    const RandomModel *const shapes[] = {&latent, &routed};
    static Stream got;
    int32_t prompt[N_PROMPT + N_ANSWER + 3];
    rig_tokens(7, V, prompt, N_PROMPT + N_ANSWER + 3);
    for (size_t m = 0; m < 2; m++) {
        fr_model *model = rig_open_random(shapes[m]);
        fr_engine *e = open_engine(model, 4);
        ask(e, prompt, N_PROMPT, &got);
        int32_t whole[N_PROMPT + N_ANSWER + 3]; /* the answer, and more text after it */
        memcpy(whole, prompt, sizeof whole);
        memcpy(whole + N_PROMPT, got.tokens, N_ANSWER * sizeof *whole);
        ask(e, whole, N_PROMPT + N_ANSWER + 3, &got);
        assert_int_equal(got.stats.n_prompt_shared, N_PROMPT + N_ANSWER - 1);
        assert_as_alone(model, whole, N_PROMPT + N_ANSWER + 3, &got, "a further turn");
        for (int32_t n_common = N_PROMPT; n_common > 0; n_common -= n_common > 34 ? 1 : 11)
            ask_after_prefix(e, model, prompt, n_common);
        fr_engine_close(e);
        fr_model_close(model);
    }
}

/* Another engine goes on from a saved prefix as if it had read the text itself. */
static void a_saved_prefix_keeps_all_layers(void **state) {
    (void)state;
    const RandomModel *const shapes[] = {&latent, &models[1]};
    static Stream got;
    int32_t text[N_PROMPT + N_ANSWER + 3];
    rig_tokens(8, V, text, N_PROMPT + N_ANSWER + 3);
    for (size_t m = 0; m < 2; m++) {
        fr_model *model = rig_open_random(shapes[m]);
        fr_engine *from = open_engine(model, 4), *to = open_engine(model, 4);
        void *data;
        size_t n_bytes;
        fr_error err;
        ask(from, text, N_PROMPT, &got);
        memcpy(text + N_PROMPT, got.tokens, N_ANSWER * sizeof *text);
        if (fr_engine_save_prefix(from, text, N_PROMPT + N_ANSWER, &data, &n_bytes, &err)) fail_msg("%s", err.message);
        ask(to, text + 1, 3, &got); /* opens the drafter */
        if (fr_engine_restore_prefix(to, data, n_bytes, NULL, NULL, &err)) fail_msg("%s", err.message);
        ask(to, text, N_PROMPT + N_ANSWER + 3, &got);
        assert_int_equal(got.stats.n_prompt_shared, N_PROMPT + N_ANSWER - 1);
        assert_as_alone(model, text, N_PROMPT + N_ANSWER + 3, &got, "a saved prefix");
        fr_free(data);
        fr_engine_close(from);
        fr_engine_close(to);
        fr_model_close(model);
    }
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    fr_error err;
    if (random_model_write(&models[1], TARGET, &err)) fail_msg("%s", err.message);
    learned_rig_check_lossless(TARGET, "mtp:depth=5,top=4");
    if (random_model_write(&latent, TARGET, &err)) fail_msg("%s", err.message);
    learned_rig_check_lossless(TARGET, "mtp");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_the_plain_layers), cmocka_unit_test(both_backends_draft_the_same),
        cmocka_unit_test(steps_lead_where_prompts_lead),       cmocka_unit_test(proposals_leave_no_trace),
        cmocka_unit_test(texts_take_over_what_they_can_use),   cmocka_unit_test(requests_share_prefixes),
        cmocka_unit_test(a_saved_prefix_keeps_all_layers),     cmocka_unit_test(the_text_is_the_plain_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
