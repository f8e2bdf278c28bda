/* test_prefix_cache.c - requests that begin with the same tokens: which tokens are shared, and from which sequence.
 * Each case also checks that sharing changes no token; test_kv_pressure.c does so at random. */
#include "engine_rig.h"

#include "engine/engine.h"
#include "engine/request.h"
#include "random_model.h"

#include <string.h>

enum { N_CTX = 200, N_VOCAB = 300, N_PROMPT = 40 };

static const char *const path = "build/prefix-cache.gguf";
static fr_model *model;
static int32_t prompts[4][N_CTX]; /* they differ from their first token on */

static int open_model(void **state) {
    (void)state;
    static const RandomModel random = {.arch = "llama",
                                       .n_layer = 2,
                                       .n_embd = 64,
                                       .n_head = 4,
                                       .n_head_kv = 2,
                                       .n_ff = 96,
                                       .n_vocab = N_VOCAB,
                                       .seed = 43};
    fr_error err;
    if (random_model_write(&random, path, &err)) fail_msg("%s", err.message);
    model = rig_open_model(path, NULL);
    for (int p = 0; p < 4; p++)
        for (int i = 0; i < N_CTX; i++) prompts[p][i] = 3 + (p * 71 + i * i * 37 + i) % (N_VOCAB - 3);
    return 0;
}

static int close_model(void **state) {
    (void)state;
    fr_model_close(model);
    return 0;
}

static fr_engine *open_engine(int page_size, int prefix_cache) {
    fr_engine_options options = {.struct_size = sizeof options,
                                 .n_threads = 1,
                                 .n_ctx = N_CTX,
                                 .max_requests = 5,
                                 .kv_page_size = page_size,
                                 .prefill_chunk = 16,
                                 .prefix_cache = prefix_cache};
    return rig_open_engine(model, &options);
}

static fr_request_options ask(const int32_t *prompt, int64_t n) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = n,
                            .max_tokens = 12,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1};
    o.sampling.temperature = 1, o.sampling.seed = 5;
    return o;
}

/* Runs the request in `e` and in an engine that shares nothing, and compares the two. Returns the number of tokens of
 * the prompt that were shared. */
static int64_t check_shared(fr_engine *e, const fr_request_options *o, Stream *got) {
    static Stream alone;
    fr_engine *apart = open_engine(16, -1);
    rig_run_request(apart, o, &alone);
    assert_int_equal(alone.stats.n_prompt_shared, 0);
    rig_run_request(e, o, got);
    rig_assert_same(&alone, got, "with a shared beginning");
    fr_engine_close(apart);
    return got->stats.n_prompt_shared;
}

static void a_prompt_takes_over_the_longest_beginning(void **state) {
    (void)state;
    static Stream s;
    static const int page_sizes[] = {1, 3, 16};
    for (int k = 0; k < 3; k++) {
        fr_engine *e = open_engine(page_sizes[k], 0);
        fr_request_options o = ask(prompts[0], N_PROMPT);
        assert_int_equal(check_shared(e, &o, &s), 0);
        assert_int_equal(check_shared(e, &o, &s), N_PROMPT - 1); /* all but the pending token */
        o.n_prompt = 25;
        assert_int_equal(check_shared(e, &o, &s), 24);
        for (int same = 0; same < N_PROMPT; same += 7) {
            int32_t prompt[N_CTX];
            memcpy(prompt, prompts[1], sizeof prompt);
            memcpy(prompt, prompts[0], (size_t)same * sizeof *prompt);
            fr_engine *fresh = open_engine(page_sizes[k], 0);
            o = ask(prompts[0], N_PROMPT);
            assert_int_equal(check_shared(fresh, &o, &s), 0);
            o = ask(prompt, N_PROMPT);
            assert_int_equal(check_shared(fresh, &o, &s), same);
            fr_engine_close(fresh);
        }
        fr_engine_close(e);
    }
}

static void the_next_turn_takes_over_the_answer_too(void **state) {
    (void)state;
    static Stream s;
    fr_engine *e = open_engine(16, 1);
    int32_t talk[N_CTX];
    int64_t n = 20;
    memcpy(talk, prompts[0], (size_t)n * sizeof *talk);
    for (int turn = 0; turn < 4; turn++) {
        fr_request_options o = ask(talk, n);
        int64_t shared = check_shared(e, &o, &s);
        assert_int_equal(shared, turn ? n - 6 : 0); /* the last token of an answer was generated, but not read */
        memcpy(talk + n, s.tokens, (size_t)s.n * sizeof *talk);
        n += s.n;
        for (int i = 0; i < 5; i++) talk[n++] = 30 + turn + i;
    }
    fr_engine_close(e);
}

static void the_least_recently_used_makes_room(void **state) {
    (void)state;
    static Stream s;
    fr_engine *e = open_engine(16, 2);
    static const struct {
        int prompt;
        bool is_shared;
    } asked[] = {{0, 0}, {1, 0}, {0, 1}, {2, 0}, {0, 1}, {1, 0}, {2, 0}, {1, 1}, {2, 1}, {0, 0}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        fr_request_options o = ask(prompts[asked[i].prompt], N_PROMPT);
        assert_int_equal(check_shared(e, &o, &s), asked[i].is_shared ? N_PROMPT - 1 : 0);
    }
    fr_engine_close(e);
}

static void expect_shared(fr_engine *e, const int32_t *prompt, int64_t n, int64_t n_shared) {
    static Stream s;
    fr_request_options o = ask(prompt, n);
    assert_int_equal(check_shared(e, &o, &s), n_shared);
}

/* An entry also counts as used by a request that shares only its beginning. */
static void sharing_a_beginning_counts_as_use(void **state) {
    (void)state;
    int32_t own[N_CTX];
    memcpy(own, prompts[2], sizeof own);
    memcpy(own, prompts[0], 20 * sizeof *own);
    fr_engine *e = open_engine(16, 2);
    expect_shared(e, prompts[0], N_PROMPT, 0);
    expect_shared(e, prompts[1], N_PROMPT, 0);
    expect_shared(e, own, N_PROMPT, 20); /* replaces prompts[1] */
    expect_shared(e, prompts[0], N_PROMPT, N_PROMPT - 1);
    expect_shared(e, prompts[1], N_PROMPT, 0);
    fr_engine_close(e);
}

/* An entry that another one contains takes no place, and the next turn replaces the previous turn. */
static void one_conversation_takes_one_place(void **state) {
    (void)state;
    static Stream s;
    int32_t talk[N_CTX];
    fr_engine *e = open_engine(16, 2);
    expect_shared(e, prompts[1], N_PROMPT, 0);
    fr_request_options o = ask(prompts[0], 20);
    assert_int_equal(check_shared(e, &o, &s), 0);
    memcpy(talk, prompts[0], 20 * sizeof *talk);
    memcpy(talk + 20, s.tokens, (size_t)s.n * sizeof *talk);
    talk[20 + s.n] = 30;
    expect_shared(e, talk, 21 + s.n, 19 + s.n); /* the next turn */
    o = ask(prompts[0], 10);
    o.max_tokens = 1;
    assert_int_equal(check_shared(e, &o, &s), 9); /* its beginning */
    expect_shared(e, prompts[1], N_PROMPT, N_PROMPT - 1);
    fr_engine_close(e);
}

/* When pages are needed, the entry that was used last is dropped last. */
static void the_least_recently_used_is_dropped_first(void **state) {
    (void)state;
    fr_engine *e = open_engine(16, 3);
    for (int i = 0; i < 3; i++) expect_shared(e, prompts[i], N_PROMPT, 0);
    expect_shared(e, prompts[0], N_PROMPT, N_PROMPT - 1);
    assert_true(prefix_cache_drop(e));
    expect_shared(e, prompts[2], N_PROMPT, N_PROMPT - 1);
    expect_shared(e, prompts[0], N_PROMPT, N_PROMPT - 1);
    expect_shared(e, prompts[1], N_PROMPT, 0);
    fr_engine_close(e);
}

static void sharing_can_be_switched_off(void **state) {
    (void)state;
    static Stream s;
    fr_engine *e = open_engine(16, -1);
    fr_request_options o = ask(prompts[0], N_PROMPT);
    fr_request *r[2];
    fr_error err;
    for (int i = 0; i < 2; i++) assert_int_equal(check_shared(e, &o, &s), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(rig_open_request(&r[i], e, &o, &err), FR_OK);
    while (fr_engine_step(e, &err) > 0) {}
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i]->stats.n_prompt_shared, 0);
        fr_request_close(r[i]);
    }
    fr_engine_close(e);
}

/* Five equal prompts come together: the oldest request reads, and the others wait for it. */
static void twins_read_their_prompt_once(void **state) {
    (void)state;
    static Stream alone, got;
    fr_engine *apart = open_engine(16, -1), *e = open_engine(3, 0);
    fr_request *r[5];
    fr_error err;
    for (int i = 0; i < 5; i++) {
        fr_request_options o = ask(prompts[0], N_PROMPT);
        o.sampling.seed = (uint64_t)i;
        assert_int_equal(rig_open_request(&r[i], e, &o, &err), FR_OK);
    }
    while (fr_engine_step(e, &err) > 0) {}
    for (int i = 0; i < 5; i++) {
        fr_request_options o = ask(prompts[0], N_PROMPT);
        o.sampling.seed = (uint64_t)i;
        rig_run_request(apart, &o, &alone);
        rig_collect(r[i], &got);
        rig_assert_same(&alone, &got, "a twin");
        assert_int_equal(got.stats.n_prompt_shared, i ? N_PROMPT - 1 : 0);
        fr_request_close(r[i]);
    }
    fr_engine_close(e);
    fr_engine_close(apart);
}

/* Two requests that have little in common read at the same time. */
static void requests_without_a_common_beginning_do_not_wait(void **state) {
    (void)state;
    fr_engine *e = open_engine(16, 0);
    fr_request *r[2];
    fr_error err;
    for (int i = 0; i < 2; i++) {
        fr_request_options o = ask(prompts[i], 8);
        assert_int_equal(rig_open_request(&r[i], e, &o, &err), FR_OK);
    }
    fr_engine_step(e, &err);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(executor_sequence_length(e->executor, r[i]->sequence), 7);
        fr_request_close(r[i]);
    }
    fr_engine_close(e);
}

/* A request may end within an accepted path: rows after its last token are not part of its text. */
static void tokens_accepted_after_the_end_are_not_kept(void **state) {
    (void)state;
    static Stream plain, s;
    static Devil right;
    int32_t stream[N_CTX];
    fr_engine *e = open_engine(16, 4);
    fr_request_options o = ask(prompts[0], N_PROMPT);
    o.max_tokens = 60;
    rig_run_request(e, &o, &plain);
    memcpy(stream, prompts[0], N_PROMPT * sizeof *stream);
    memcpy(stream + N_PROMPT, plain.tokens, (size_t)plain.n * sizeof *stream);
    while (prefix_cache_drop(e)) {}
    right = devil_make(DEVIL_RIGHT, DEVIL_FAULT_NONE, N_VOCAB, 6);
    devil_oracle(&right, 0, stream, N_PROMPT + plain.n);
    rig_add_drafter(e, "right", &right.base);
    char stop[8] = {0};
    const char *draft = "right", *stops[] = {stop};
    for (const char *at = plain.text; strlen(stop) < 2; at++)
        if (at[0] > ' ' && at[1] > ' ') memcpy(stop, at, 2);
    o.stops = stops, o.n_stops = 1, o.drafts = &draft, o.n_drafts = 1, o.tree_budget = 40;
    rig_run_request(e, &o, &s);
    assert_int_equal(s.finish, FR_FINISH_STOP);
    assert_int_equal(s.stats.n_steps, 1); /* 40 tokens were accepted, and only a few of them are in the text */
    assert_int_equal(e->prefixes.entries[0].n_tokens, N_PROMPT + s.n);
    assert_memory_equal(e->prefixes.entries[0].tokens, stream, (size_t)(N_PROMPT + s.n) * sizeof *stream);
    int32_t n_kept = e->prefixes.entries[0].n_tokens; /* the next request changes it */
    o = ask(stream, N_PROMPT + s.n + 5);
    assert_int_equal(check_shared(e, &o, &s), n_kept);
    fr_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_takes_over_the_longest_beginning),
        cmocka_unit_test(the_next_turn_takes_over_the_answer_too),
        cmocka_unit_test(the_least_recently_used_makes_room),
        cmocka_unit_test(sharing_a_beginning_counts_as_use),
        cmocka_unit_test(one_conversation_takes_one_place),
        cmocka_unit_test(the_least_recently_used_is_dropped_first),
        cmocka_unit_test(requests_without_a_common_beginning_do_not_wait),
        cmocka_unit_test(sharing_can_be_switched_off),
        cmocka_unit_test(twins_read_their_prompt_once),
        cmocka_unit_test(tokens_accepted_after_the_end_are_not_kept),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
