/* test_kv_pressure.c - many requests in a KV cache that is too small for them: each generates the text that it
 * generates by itself, by plain decoding, with enough memory.
 *
 * The requests are made once: prompts that share beginnings of random lengths or are equal, every kind of sampling,
 * budgets, stop strings, mixed drafters. In each trial some of them start and end at random, with few pages; a request
 * that loses pages reads its context again, which must be visible only in its statistics. */
#include "engine_rig.h"

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "random_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_CTX = 96, N_CAST = 40, N_STEMS = 4, STEM = 50, N_PLACES = 6, N_VOCAB = 300 };
#if defined(__SANITIZE_THREAD__)
enum { N_SEEDS = 1 };
#else
enum { N_SEEDS = 8 };
#endif

static const char *const path = "build/kv-pressure.gguf";
static fr_model *model;

/* One of the requests, and the text that it generates by itself. */
typedef struct Role {
    int32_t prompt[N_CTX];
    fr_request_options options;
    const char *drafts[4];
    char stop[8];
    const char *stops[1];
    int32_t stream[2 * N_CTX]; /* prompt and output, for devils that use them */
    Stream alone;
} Role;
static Role cast[N_CAST];

/* ---- dice -------------------------------------------------------------------------------------------- */

static uint64_t dice_seed, n_dice;

static int32_t draw(int32_t n) { return (int32_t)(rng_uniform(dice_seed, RNG_TEST, n_dice++, 0) * n); }

/* ---- the requests ---------------------------------------------------------------------------------------- */

static void make_prompt(Role *r, int32_t stems[N_STEMS][STEM], int i) {
    const Role *earlier = &cast[draw(i + 1)];
    r->options.struct_size = sizeof r->options;
    r->options.prompt = r->prompt;
    if (i > 4 && draw(4) == 0) { /* the same prompt, or the next turn of its conversation */
        int64_t said = draw(2) ? earlier->alone.n : 0, n = earlier->options.n_prompt + said;
        if (earlier != r && n + 4 < N_CTX) {
            memcpy(r->prompt, earlier->stream, (size_t)n * sizeof *r->prompt);
            for (r->options.n_prompt = n; said && r->options.n_prompt < n + 4; r->options.n_prompt++)
                r->prompt[r->options.n_prompt] = 3 + draw(N_VOCAB - 3);
            return;
        }
    }
    int32_t n_stem = draw(STEM + 1), n_own = draw(20);
    memcpy(r->prompt, stems[draw(N_STEMS)], (size_t)n_stem * sizeof *r->prompt);
    for (int32_t k = 0; k < n_own; k++) r->prompt[n_stem + k] = 3 + draw(k % 3 ? 9 : N_VOCAB - 3);
    r->options.n_prompt = n_stem + n_own;
    if (r->options.n_prompt == 0) r->prompt[r->options.n_prompt++] = 3 + draw(N_VOCAB - 3);
}

static fr_sampling make_sampling(void) {
    fr_sampling s = fr_sampling_default();
    s.seed = (uint64_t)draw(1000);
    switch (draw(4)) {
    case 0: break;
    case 1: s.temperature = 0.8f; break;
    case 2: s.temperature = 1, s.top_p = 0.9f, s.min_p = 0.02f; break;
    default: s.temperature = 1.2f, s.top_k = 20, s.repeat_penalty = 1.3f, s.penalty_last_n = 16; break;
    }
    return s;
}

/* Runs it by itself, by plain decoding, in an engine with enough memory that shares nothing. */
static void run_alone(Role *r) {
    fr_request_options o = r->options;
    fr_engine_options options = {.struct_size = sizeof options, .n_threads = 1, .n_ctx = N_CTX, .prefix_cache = -1};
    fr_engine *e = rig_open_engine(model, &options);
    o.n_drafts = 0;
    rig_run_request(e, &o, &r->alone);
    assert_int_equal(r->alone.stats.n_prompt_shared + r->alone.stats.n_preempted + r->alone.stats.n_recomputed, 0);
    memcpy(r->stream, r->prompt, (size_t)o.n_prompt * sizeof *r->stream);
    memcpy(r->stream + o.n_prompt, r->alone.tokens, (size_t)r->alone.n * sizeof *r->stream);
    fr_engine_close(e);
}

/* Some requests stop at a string that their plain text contains. */
static void add_stop(Role *r) {
    size_t n = strlen(r->alone.text);
    if (n < 6 || draw(3)) return;
    memcpy(r->stop, r->alone.text + n / 2, 3);
    r->stops[0] = r->stop;
    r->options.stops = r->stops, r->options.n_stops = 1;
    run_alone(r);
}

static int make_cast(void **state) {
    (void)state;
    static const char *const drafts[] = {"ngram-trie", "pld",   "suffix:factor=2", "lookahead-trie",
                                         "random",     "right", "wrong",           "malformed"};
    static const RandomModel random = {.arch = "llama",
                                       .n_layer = 2,
                                       .n_embd = 64,
                                       .n_head = 8,
                                       .n_head_kv = 2,
                                       .n_ff = 96,
                                       .n_vocab = N_VOCAB,
                                       .seed = 41};
    fr_error err;
    if (random_model_write(&random, path, &err)) fail_msg("%s", err.message);
    model = rig_open_model(path, NULL);
    int32_t stems[N_STEMS][STEM];
    dice_seed = 17;
    for (int s = 0; s < N_STEMS; s++)
        for (int k = 0; k < STEM; k++) stems[s][k] = s && k < 12 ? stems[0][k] : 3 + draw(k % 4 ? 12 : N_VOCAB - 3);
    for (int i = 0; i < N_CAST; i++) {
        Role *r = &cast[i];
        make_prompt(r, stems, i);
        r->options.max_tokens = draw(8) ? 1 + draw(40) : 0;
        r->options.sampling = make_sampling();
        r->options.ignore_eos = draw(2);
        r->options.tree_budget = 1 + draw(40);
        r->options.n_drafts = draw(4);
        for (int d = 0; d < r->options.n_drafts; d++) r->drafts[d] = drafts[draw(8)];
        r->options.drafts = r->drafts;
        run_alone(r);
        add_stop(r);
    }
    return 0;
}

static int drop_cast(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

/* ---- trials ------------------------------------------------------------------------------------------------ */

typedef struct Actor {
    fr_request *request; /* NULL: the place is free */
    const Role *role;
    int n_until_cancel; /* the number of tokens after which the callback cancels */
    int step_of_close;  /* the step at which it is closed; 0: never */
    char seen[4096];    /* [n_seen] bytes of text that the callback received */
    size_t n_seen;
} Actor;

typedef struct World {
    fr_engine *engine;
    Devil random, right, wrong, malformed;
    Actor actors[N_PLACES];
    fr_request *oldest;
    int64_t oldest_progress;
    int step;
    const char *label;
    fr_stats sums; /* sums of the statistics about memory */
} World;

static void open_world(World *w, const fr_engine_options *options, const char *label) {
    *w = (World){.engine = rig_open_engine(model, options), .label = label};
    w->random = devil_make(DEVIL_RANDOM, DEVIL_FAULT_NONE, N_VOCAB, 1);
    w->right = devil_make(DEVIL_RIGHT, DEVIL_FAULT_NONE, N_VOCAB, 2);
    w->wrong = devil_make(DEVIL_WRONG, DEVIL_FAULT_NONE, N_VOCAB, 3);
    w->malformed = devil_make(DEVIL_MALFORMED, DEVIL_DUPLICATE, N_VOCAB, 4);
    rig_add_drafter(w->engine, "random", &w->random.base);
    rig_add_drafter(w->engine, "right", &w->right.base);
    rig_add_drafter(w->engine, "wrong", &w->wrong.base);
    rig_add_drafter(w->engine, "malformed", &w->malformed.base);
}

/* At the end every page is free except those of the prefix cache, which prefix_cache_drop frees. */
static void close_world(World *w) {
    while (prefix_cache_drop(w->engine)) {}
    assert_int_equal(executor_n_free_pages(w->engine->executor), executor_n_pages(w->engine->executor));
    fr_engine_close(w->engine);
}

static int hear(void *user, const fr_token_event *event) {
    Actor *a = user;
    memcpy(a->seen + a->n_seen, event->text, event->n_bytes);
    a->n_seen += event->n_bytes;
    return --a->n_until_cancel == 0;
}

static void arrive(World *w, Actor *a, const Role *role) {
    fr_error err;
    *a = (Actor){.role = role,
                 .n_until_cancel = draw(8) ? 0 : 1 + draw(10),
                 .step_of_close = draw(8) ? 0 : w->step + 1 + draw(20)};
    fr_request_options o = role->options;
    o.on_token = hear, o.user = a;
    if (rig_open_request(&a->request, w->engine, &o, &err)) fail_msg("%s: %s", w->label, err.message);
    int32_t sequence = a->request->sequence;
    devil_oracle(&w->right, sequence, role->stream, o.n_prompt + role->alone.n);
    devil_oracle(&w->wrong, sequence, role->stream, o.n_prompt + role->alone.n);
}

static void leave(World *w, Actor *a) {
    static Stream got;
    rig_collect(a->request, &got);
    w->sums.n_preempted += got.stats.n_preempted;
    w->sums.n_recomputed += got.stats.n_recomputed;
    w->sums.n_prompt_shared += got.stats.n_prompt_shared;
    char label[128];
    snprintf(label, sizeof label, "%s, request %d", w->label, (int)(a->role - cast));
    if (got.finish == FR_FINISH_ERROR) fail_msg("%s: %s", label, fr_request_error(a->request)->message);
    if (got.finish == FR_FINISH_CANCELLED || got.finish == FR_FINISH_NONE) { /* cut short: its text is a beginning */
        assert_true(got.n <= a->role->alone.n);
        assert_memory_equal(got.tokens, a->role->alone.tokens, (size_t)got.n * sizeof *got.tokens);
        assert_memory_equal(a->seen, a->role->alone.text, a->n_seen);
    } else {
        rig_assert_same(&a->role->alone, &got, label);
        size_t n_bytes;
        fr_request_text(a->request, &n_bytes);
        assert_int_equal(a->n_seen, n_bytes);
        assert_memory_equal(a->seen, got.text, n_bytes);
        assert_true(got.stats.n_steps <= got.n && got.n <= got.stats.n_steps + got.stats.accepted);
    }
    assert_true(got.stats.n_prompt_shared < got.stats.n_prompt);
    assert_true(!got.stats.n_recomputed || got.stats.n_preempted);
    fr_request_close(a->request);
    a->request = NULL;
}

/* Whatever the other requests do, the oldest one makes progress in each step. */
static void check_oldest(World *w) {
    fr_request *oldest = NULL;
    for (int p = 0; p < N_PLACES; p++) {
        fr_request *r = w->actors[p].request;
        if (r && !r->finish && (!oldest || r->arrival < oldest->arrival)) oldest = r;
    }
    int64_t progress = oldest ? 2 * oldest->n_context + executor_sequence_length(w->engine->executor, oldest->sequence)
                              : 0;
    if (oldest && oldest == w->oldest && progress <= w->oldest_progress)
        fail_msg("%s, step %d: the oldest request made no progress", w->label, w->step);
    w->oldest = oldest;
    w->oldest_progress = progress;
}

static void check_cache(const World *w) {
    for (int i = 0; i < w->engine->prefixes.n; i++) {
        const CachedPrefix *c = &w->engine->prefixes.entries[i];
        assert_int_equal(executor_sequence_length(w->engine->executor, c->sequence), c->n_tokens);
        for (int32_t k = 0; k < c->n_tokens; k++) assert_in_range(c->tokens[k], 0, N_VOCAB - 1);
    }
}

/* Each node of a tree has its row, also if the tree was cut. */
static void check_rows(const World *w) {
    for (int p = 0; p < N_PLACES; p++) {
        const fr_request *r = w->actors[p].request;
        if (r && !r->finish && !r->is_prefill_step && r->n_step_rows) assert_int_equal(r->tree.n, r->n_step_rows);
    }
}

/* Opens and closes n requests; few_steps: the most steps between two arrivals. */
static void play(World *w, int n, int few_steps) {
    int n_started = 0, n_here = 0;
    for (w->step = 1; n_started < n || n_here; w->step++) {
        fr_error err;
        for (int p = 0; p < N_PLACES; p++) {
            Actor *a = &w->actors[p];
            if (a->request && (fr_request_finish_reason(a->request) || w->step == a->step_of_close))
                leave(w, a), n_here--;
            if (!a->request && n_started < n && draw(few_steps) == 0)
                arrive(w, a, &cast[draw(N_CAST)]), n_started++, n_here++;
        }
        if (fr_engine_step(w->engine, &err) < 0) fail_msg("%s: %s", w->label, err.message);
        check_oldest(w);
        check_cache(w);
        check_rows(w);
        if (w->step > 5000) fail_msg("%s: no end", w->label);
    }
}

static void requests_short_of_pages_generate_the_same_texts(void **state) {
    (void)state;
    static const int page_sizes[] = {1, 3, 16}, chunks[] = {256, 5, 2, 16}, caches[] = {0, -1, 2},
                     tokens[] = {96, 120, 160};
    fr_stats sums = {.struct_size = sizeof sums};
    for (int seed = 0; seed < N_SEEDS; seed++)
        for (int i = 0; i < 9; i++) {
            fr_engine_options options = {.struct_size = sizeof options,
                                         .n_threads = 1 + (i == 4),
                                         .n_ctx = N_CTX,
                                         .max_requests = N_PLACES,
                                         .kv_page_size = page_sizes[i % 3],
                                         .prefill_chunk = chunks[(i + seed) % 4],
                                         .kv_tokens = tokens[i / 3],
                                         .prefix_cache = caches[(i + i / 3 + seed) % 3]};
            World w;
            char label[128];
            snprintf(label, sizeof label, "seed %d, pages of %d, %d tokens, chunks of %d, cache %d", seed,
                     options.kv_page_size, tokens[i / 3], options.prefill_chunk, options.prefix_cache);
            dice_seed = 100 + (uint64_t)(seed * 9 + i), n_dice = 0;
            open_world(&w, &options, label);
            play(&w, 24, 1 + 3 * (seed % 2));
            assert_true(options.prefix_cache < 0 ? !w.sums.n_prompt_shared : w.sums.n_prompt_shared > 0);
            sums.n_preempted += w.sums.n_preempted;
            sums.n_recomputed += w.sums.n_recomputed;
            sums.n_prompt_shared += w.sums.n_prompt_shared;
            close_world(&w);
        }
    print_message("%lld preemptions, %lld tokens read again, %lld shared\n", (long long)sums.n_preempted,
                  (long long)sums.n_recomputed, (long long)sums.n_prompt_shared);
    assert_true(sums.n_preempted > 9 * N_SEEDS * 3 && sums.n_recomputed > sums.n_preempted); /* otherwise the trials
                                                                                              * prove nothing */
}

static void with_room_for_all_no_request_gives_pages_back(void **state) {
    (void)state;
    for (int page = 1; page <= 5; page += 2) {
        fr_engine_options options = {.struct_size = sizeof options,
                                     .n_threads = 1,
                                     .n_ctx = N_CTX,
                                     .max_requests = N_PLACES,
                                     .kv_page_size = page};
        World w;
        dice_seed = 7, n_dice = 0;
        open_world(&w, &options, "with room");
        play(&w, 40, 2);
        assert_int_equal(w.sums.n_preempted + w.sums.n_recomputed, 0);
        assert_true(w.sums.n_prompt_shared > 0);
        close_world(&w);
    }
}

/* ---- trees that may not be cut ------------------------------------------------------------------------- */

/* The sizes of the trees by request (its seed) and length of its context: written when a request runs by itself, then
 * compared. */
static int32_t sizes[N_PLACES][N_CTX + 1];
static int n_other_sizes;

static uint64_t keys[N_PLACES];
static int n_keys;

static int verify_sizes(const VerifyInput *in, VerifyScratch *scratch, VerifyResult *out, fr_error *err) {
    int place = 0; /* the request's place: each has a noise key of its own */
    while (place < n_keys && keys[place] != in->sampling->seed) place++;
    assert_true(place < N_PLACES);
    if (place == n_keys) keys[n_keys++] = in->sampling->seed;
    int32_t *size = &sizes[place][in->n_context];
    if (*size == 0) *size = in->tree->n;
    n_other_sizes += *size != in->tree->n;
    return verify_sampled(in, scratch, out, err);
}

/* Runs N_PLACES requests in an engine with n_places places: one after the other with one place, or all at once. */
static int64_t run_with_rule(const VerifyRule *rule, int n_places, int64_t kv_tokens, const char *draft) {
    fr_engine_options options = {.struct_size = sizeof options,
                                 .n_threads = 1,
                                 .n_ctx = N_CTX,
                                 .max_requests = n_places,
                                 .kv_page_size = 1,
                                 .kv_tokens = kv_tokens,
                                 .prefix_cache = -1};
    World w;
    open_world(&w, &options, rule->name);
    int64_t n_preempted = 0;
    for (int i = 0; i < N_PLACES; i += n_places) {
        fr_request *r[N_PLACES];
        fr_error err;
        for (int k = 0; k < n_places; k++) {
            const Role *role = &cast[i + k];
            fr_request_options o = {.struct_size = sizeof o,
                                    .prompt = role->prompt,
                                    .n_prompt = 12,
                                    .max_tokens = 30,
                                    .drafts = &draft,
                                    .n_drafts = 1,
                                    .tree_budget = 10,
                                    .sampling = fr_sampling_default(),
                                    .ignore_eos = 1};
            o.sampling.temperature = 1, o.sampling.seed = (uint64_t)(i + k);
            assert_int_equal(rig_open_request(&r[k], w.engine, &o, &err), FR_OK);
            r[k]->rule = rule;
        }
        while (fr_engine_step(w.engine, &err) > 0) {}
        for (int k = 0; k < n_places; k++) {
            assert_int_equal(r[k]->finish, FR_FINISH_LENGTH);
            n_preempted += r[k]->stats.n_preempted;
            fr_request_close(r[k]);
        }
    }
    close_world(&w);
    return n_preempted;
}

static void the_tree_of_a_ratio_rule_is_not_cut(void **state) {
    (void)state;
    static const VerifyRule rules[] = {{.name = "may be cut", .verify = verify_sizes},
                                       {.name = "ratio", .is_ratio = true, .verify = verify_sizes}};
    for (int is_ratio = 0; is_ratio < 2; is_ratio++) {
        memset(sizes, 0, sizeof sizes);
        n_other_sizes = 0;
        assert_int_equal(run_with_rule(&rules[is_ratio], 1, 0, "pld:n=1"), 0);
        assert_int_equal(n_other_sizes, 0);
        assert_true(run_with_rule(&rules[is_ratio], N_PLACES, N_CTX, "pld:n=1") > 0);
        assert_true(is_ratio ? n_other_sizes == 0 : n_other_sizes > 0);
    }
}

/* ---- requests that cannot fit ---------------------------------------------------------------------------- */

static void a_cache_smaller_than_one_context_is_refused(void **state) {
    (void)state;
    fr_engine *e;
    fr_error err;
    fr_engine_options options = {.struct_size = sizeof options, .n_ctx = N_CTX, .kv_tokens = N_CTX - 1};
    assert_int_equal(fr_engine_open(&e, model, &options, &err), FR_ERR_ARGUMENT);
    assert_null(e);
    assert_non_null(strstr(err.message, "give it at least 96 tokens"));
    options.kv_tokens = -5;
    assert_int_equal(fr_engine_open(&e, model, &options, &err), FR_ERR_ARGUMENT);
    options = (fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                  .kv_tokens = 50}; /* no context is given: the largest that fits */
    e = rig_open_engine(model, &options);
    assert_int_equal(e->options.n_ctx, 50);
    fr_engine_close(e);
}

/* The test holds some pages for ever. A request that can never fit ends with an error; another one, which fits, is not
 * affected. */
static void a_request_that_can_never_fit_affects_no_other(void **state) {
    (void)state;
    static Stream alone, got;
    fr_engine_options options = {.struct_size = sizeof options,
                                 .n_threads = 1,
                                 .n_ctx = N_CTX,
                                 .kv_tokens = N_CTX,
                                 .kv_page_size = 1,
                                 .max_requests = 2};
    fr_engine *e = rig_open_engine(model, &options);
    fr_request_options small = {.struct_size = sizeof small,
                                .prompt = cast[0].stream,
                                .n_prompt = 10,
                                .max_tokens = 9,
                                .sampling = fr_sampling_default()};
    fr_request_options large = small;
    int32_t prompt[50];
    for (int i = 0; i < 50; i++) prompt[i] = 20 + i;
    large.prompt = prompt, large.n_prompt = 50;
    rig_run_request(e, &small, &alone);
    fr_request *fails, *stays;
    fr_error err;
    assert_int_equal(executor_reserve(e->executor, e->prefixes.entries[7].sequence, 60, &err), FR_OK);
    assert_int_equal(rig_open_request(&fails, e, &large, &err), FR_OK);
    assert_int_equal(rig_open_request(&stays, e, &small, &err), FR_OK);
    while (fr_engine_step(e, &err) > 0) {}
    assert_int_equal(fr_request_finish_reason(fails), FR_FINISH_ERROR);
    assert_int_equal(fr_request_error(fails)->code, FR_ERR_MEMORY);
    assert_non_null(strstr(fr_request_error(fails)->message, "36 pages of 1 tokens are free and 50 are needed"));
    rig_collect(stays, &got);
    rig_assert_same(&alone, &got, "beside one that cannot fit");
    fr_request_close(fails);
    fr_request_close(stays);
    fr_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_short_of_pages_generate_the_same_texts),
        cmocka_unit_test(with_room_for_all_no_request_gives_pages_back),
        cmocka_unit_test(the_tree_of_a_ratio_rule_is_not_cut),
        cmocka_unit_test(a_cache_smaller_than_one_context_is_refused),
        cmocka_unit_test(a_request_that_can_never_fit_affects_no_other),
    };
    return cmocka_run_group_tests(tests, make_cast, drop_cast);
}
