/* test_step_memory.c - a decoding step neither allocates nor frees memory. Every allocation of the program is counted
 * (the linker replaces malloc and its relatives by the functions below; see the Makefile), over all steps of a request
 * except the first and the last: the first one finishes the prompt, and the last one passes the text to the prefix
 * cache and to histories, which outlive the request. */
#include "engine_rig.h"

#include "random_model.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MODEL "build/step-memory.gguf"
#define DRAFT_MODEL "build/step-memory-draft.gguf"

/* Longer than the initial capacity of growing arrays (1024). */
enum { N_PROMPT = 48, N_TOKENS = 1100, N_CONTEXT = 1280 };

static atomic_long n_calls; /* since the program began */

#define COUNTED(type, name, parameters, arguments) \
    type __real_##name parameters; \
    type __wrap_##name parameters; \
    type __wrap_##name parameters { \
        atomic_fetch_add(&n_calls, 1); \
        return __real_##name arguments; \
    }
COUNTED(void *, malloc, (size_t n), (n))
COUNTED(void *, calloc, (size_t n, size_t each), (n, each))
COUNTED(void *, realloc, (void *p, size_t n), (p, n))
COUNTED(void *, aligned_alloc, (size_t align, size_t n), (align, n))
COUNTED(char *, strdup, (const char *s), (s))

void __real_free(void *p);
void __wrap_free(void *p);
void __wrap_free(void *p) {
    if (p) atomic_fetch_add(&n_calls, 1);
    __real_free(p);
}

static int write_models(void **state) {
    (void)state;
    const RandomModel target = {.arch = "llama",
                                .n_layer = 2,
                                .n_embd = 64,
                                .n_head = 4,
                                .n_head_kv = 2,
                                .n_ff = 96,
                                .n_vocab = 300,
                                .seed = 1};
    RandomModel draft = target;
    draft.n_layer = 1, draft.seed = 2;
    fr_error err;
    if (random_model_write(&target, MODEL, &err) || random_model_write(&draft, DRAFT_MODEL, &err))
        fail_msg("%s", err.message);
    return 0;
}

/* A text that repeats itself, so that drafters that copy propose many tokens. */
static void make_prompt(int32_t *prompt) {
    for (int32_t i = 0; i < N_PROMPT; i++) prompt[i] = 3 + (i * i % 11 + i % 7) * 19 % 290;
}

typedef struct Case {
    const char *name;
    const char *drafts[2];
    int n_drafts;
    fr_sampling sampling;
    int allocate; /* the callback allocates and frees, which the test must detect */
} Case;

static int on_token(void *user, const fr_token_event *event) {
    const Case *c = user;
    if (!c->allocate) return 0;
    void *volatile p = malloc(event->n_bytes + 1); /* volatile, or the compiler removes both calls */
    free(p);
    return 0;
}

/* Returns the number of allocations and releases in all steps except the first and the last. */
static long count(fr_engine *engine, const Case *c) {
    int32_t prompt[N_PROMPT];
    make_prompt(prompt);
    static const fr_logit_bias bias[] = {{5, -2}, {9, 1}};
    const fr_request_options options = {.struct_size = sizeof options,
                                        .prompt = prompt,
                                        .n_prompt = N_PROMPT,
                                        .max_tokens = N_TOKENS,
                                        .sampling = c->sampling,
                                        .drafts = c->drafts,
                                        .n_drafts = c->n_drafts,
                                        .ignore_eos = 1,
                                        .on_token = on_token,
                                        .user = (void *)c,
                                        .logit_bias = bias,
                                        .n_logit_bias = 2,
                                        .n_top_logprobs = 3};
    fr_request *r;
    fr_error err;
    if (rig_open_request(&r, engine, &options, &err)) fail_msg("%s: %s", c->name, err.message);
    fr_stats s = {.struct_size = sizeof s};
    long total = 0, last = 0;
    int left = 1;
    while (left > 0) {
        long before = atomic_load(&n_calls);
        bool is_first = s.n_steps == 0;
        left = fr_engine_step(engine, &err);
        if (left < 0) fail_msg("%s: %s", c->name, err.message);
        last = is_first ? 0 : atomic_load(&n_calls) - before;
        total += last;
        fr_request_get_stats(r, &s);
    }
    assert_int_equal(fr_request_finish_reason(r), FR_FINISH_LENGTH);
    assert_string_equal(fr_request_draft_error(r), "");
    assert_true(s.n_steps > 3);
    fr_draft_stats d = {.struct_size = sizeof d};
    fr_request_get_draft_stats(r, &d);
    if (c->n_drafts > 0) assert_true(s.drafted > 0 || d.n_proposals > 0);
    fr_request_close(r);
    return total - last;
}

static void steps_allocate_nothing(void **state) {
    (void)state;
    fr_sampling greedy = fr_sampling_default(), sampled = greedy;
    sampled.temperature = 0.8f, sampled.top_p = 0.95f, sampled.repeat_penalty = 1.1f, sampled.seed = 7;
    const char *const specs[] = {NULL,
                                 "ngram-trie",
                                 "ngram-trie:rule=paper,live=1",
                                 "pld",
                                 "llma",
                                 "suffix",
                                 "lookahead-trie",
                                 "lookahead",
                                 "recycling",
                                 "auto",
                                 "sps:model=" DRAFT_MODEL,
                                 "rsd-s:model=" DRAFT_MODEL};
    fr_model *model = rig_open_model(MODEL, NULL);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        Case c = {.name = specs[i] ? specs[i] : "plain",
                  .drafts = {specs[i]},
                  .n_drafts = specs[i] != NULL,
                  .sampling = greedy};
        fr_engine *engine = rig_open_engine(
            model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 2, .n_ctx = N_CONTEXT});
        long first = count(engine, &c);
        c.sampling = sampled; /* and memory of the first request is used again */
        long second = count(engine, &c);
        if (first || second)
            fail_msg("%s: %ld and %ld allocations in the steps of two requests", c.name, first, second);
        fr_engine_close(engine);
    }
    fr_model_close(model);
}

static void an_allocating_step_is_detected(void **state) {
    (void)state;
    fr_model *model = rig_open_model(MODEL, NULL);
    fr_engine *engine = rig_open_engine(
        model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_threads = 2, .n_ctx = N_CONTEXT});
    const Case c = {.name = "a callback that allocates", .sampling = fr_sampling_default(), .allocate = 1};
    assert_int_equal(count(engine, &c), 2 * (N_TOKENS - 2));
    fr_engine_close(engine);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_allocate_nothing),
        cmocka_unit_test(an_allocating_step_is_detected),
    };
    return cmocka_run_group_tests(tests, write_models, NULL);
}
