/* test_reasoning_budget.c - reasoning that reaches its budget is closed by its mark, at the same place with any drafter
 * and rule; reasoning that ends earlier, and a text without reasoning, stay as they are. A caller that ends reasoning
 * while it is generated gets the text of that budget. */
#include "engine_rig.h"

#include <string.h>

enum { N_TOKENS = 40 };
static fr_model *model;
static fr_engine *engine;
static int32_t prompt[64];
static int64_t n_prompt;

static int open_engine(void **state) {
    (void)state;
    static const char *const drafts[] = {"ngram-trie", "suffix", "sps:model=models/draft.gguf"};
    int32_t *ids;
    model = rig_open_model("models/target.gguf", NULL);
    engine = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                         .n_threads = 1,
                                                         .n_ctx = 256,
                                                         .drafts = drafts,
                                                         .n_drafts = 3});
    assert_int_equal(fr_tokenize(model, "Once upon a time,", 17, FR_TOKENIZE_PROMPT, &ids, &n_prompt, NULL), 0);
    memcpy(prompt, ids, (size_t)n_prompt * sizeof *ids);
    fr_free(ids);
    return 0;
}

static int close_engine(void **state) {
    (void)state;
    fr_engine_close(engine);
    fr_model_close(model);
    return 0;
}

typedef struct Text {
    int32_t tokens[N_TOKENS];
    int64_t n, n_drafted;
} Text;

enum { NEVER = INT32_MAX };

/* ends_at: the caller ends the reasoning before the first step after which the text has so many tokens, and *ends_at
 * becomes their number. */
static Text run_and_end(const char *end, const char *opening, int64_t budget, const char *draft, float temperature,
                        const char *rule, int64_t *ends_at) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = n_prompt,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = &draft,
                            .n_drafts = 1,
                            .tree_budget = 12,
                            .ignore_eos = 1,
                            .verify = rule,
                            .reasoning_end = end,
                            .reasoning_opening = opening,
                            .max_reasoning = budget};
    o.sampling.temperature = temperature;
    o.sampling.seed = 3;
    fr_request *r;
    fr_error err;
    if (fr_request_open(&r, engine, &o, &err)) fail_msg("%s", err.message);
    for (bool is_ended = false; !fr_request_finish_reason(r);) {
        int64_t n = 0;
        (void)fr_request_tokens(r, &n);
        if (!is_ended && n >= *ends_at) {
            assert_int_equal(fr_request_end_reasoning(r, &err), end ? FR_OK : FR_ERR_ARGUMENT);
            *ends_at = n;
            is_ended = true;
        }
        if (fr_engine_step(engine, &err) < 0) fail_msg("%s", err.message);
    }
    if (fr_request_finish_reason(r) == FR_FINISH_ERROR) fail_msg("%s", fr_request_error(r)->message);
    Text t = {.n = 0};
    fr_stats s = {.struct_size = sizeof s};
    const int32_t *tokens = fr_request_tokens(r, &t.n);
    fr_request_get_stats(r, &s);
    t.n_drafted = s.accepted;
    memcpy(t.tokens, tokens, (size_t)t.n * sizeof *tokens);
    fr_request_close(r);
    return t;
}

static Text run(const char *end, const char *opening, int64_t budget, const char *draft, float temperature,
                const char *rule) {
    int64_t never = NEVER;
    return run_and_end(end, opening, budget, draft, temperature, rule, &never);
}

/* Returns the position of the first occurrence of the tokens that ends before position `before`, or -1. */
static int64_t find(const Text *t, const int32_t *tokens, int64_t n, int64_t before) {
    for (int64_t i = 0; i + n <= t->n && i + n <= before; i++)
        if (memcmp(t->tokens + i, tokens, (size_t)n * sizeof *tokens) == 0) return i;
    return -1;
}

static void reasoning_is_closed_at_its_budget(void **state) {
    (void)state;
    static const char *const drafts[] = {"ngram-trie", "suffix", "sps:model=models/draft.gguf"};
    const char *marks[] = {"</think>", NULL, "the"};
    static const int64_t budgets[] = {0, 1, 5, 17, N_TOKENS - 2};
    int n_forced = 0, n_natural = 0;
    Text greedy = run(NULL, NULL, 0, "none", 0, NULL);
    char *written; /* a mark that the model writes by itself */
    size_t n_written;
    assert_int_equal(fr_detokenize(model, greedy.tokens + 3, 1, &written, &n_written, NULL), 0);
    marks[1] = written;
    int64_t n_accepted = 0;
    for (int m = 0; m < 3; m++) {
        int32_t *end;
        int64_t n_end;
        assert_int_equal(fr_tokenize(model, marks[m], strlen(marks[m]), FR_TOKENIZE_SPECIAL, &end, &n_end, NULL), 0);
        for (int b = 0; b < 5; b++)
            for (int hot = 0; hot < 2; hot++) {
                Text free_text = run(NULL, NULL, 0, "none", (float)hot, NULL),
                     plain = run(marks[m], NULL, budgets[b], "none", (float)hot, NULL);
                int64_t natural = find(&free_text, end, n_end, budgets[b]), room = N_TOKENS - budgets[b];
                if (natural >= 0) assert_memory_equal(plain.tokens, free_text.tokens, sizeof plain.tokens);
                else {
                    assert_memory_equal(plain.tokens, free_text.tokens, (size_t)budgets[b] * sizeof *plain.tokens);
                    assert_memory_equal(plain.tokens + budgets[b], end,
                                        (size_t)(n_end < room ? n_end : room) * sizeof *end);
                }
                *(natural >= 0 ? &n_natural : &n_forced) += 1;
                for (int d = 0; d < 3; d++) {
                    Text drafted = run(marks[m], NULL, budgets[b], drafts[d], (float)hot, NULL);
                    assert_int_equal(drafted.n, plain.n);
                    assert_memory_equal(drafted.tokens, plain.tokens, sizeof plain.tokens);
                    n_accepted += drafted.n_drafted;
                }
            }
        fr_free(end);
    }
    if (n_forced < 6 || n_natural < 2 || n_accepted < 50)
        fail_msg("mark \"%s\": %d forced, %d natural, %lld accepted", written, n_forced, n_natural,
                 (long long)n_accepted);
    fr_free(written);
}

static void the_opening_decides(void **state) {
    (void)state;
    Text free_text = run(NULL, NULL, 0, "none", 0, NULL);
    char *text;
    size_t n;
    assert_int_equal(fr_detokenize(model, free_text.tokens, 1, &text, &n, NULL), 0);
    Text other = run("</think>", "<think>", 4, "suffix", 0, NULL), same = run("</think>", text, 4, "suffix", 0, NULL);
    assert_memory_equal(other.tokens, free_text.tokens, sizeof other.tokens); /* it does not begin with <think> */
    assert_memory_equal(same.tokens, free_text.tokens, 5 * sizeof(int32_t));  /* its opening is not counted */
    assert_memory_not_equal(same.tokens, free_text.tokens, sizeof same.tokens);
    fr_free(text);
}

static void ratio_rules_obey(void **state) {
    (void)state;
    int32_t *end;
    int64_t n_end;
    assert_int_equal(fr_tokenize(model, "</think>", 8, FR_TOKENIZE_SPECIAL, &end, &n_end, NULL), 0);
    Text t = run("</think>", NULL, 7, "sps:model=models/draft.gguf", 1, "chain");
    assert_memory_equal(t.tokens + 7, end, (size_t)n_end * sizeof *end);
    fr_free(end);
}

/* The text is that of a budget of the tokens that there were, with any drafter, and the budget still counts. */
static void reasoning_is_ended_by_the_caller(void **state) {
    (void)state;
    static const char *const drafts[] = {"none", "ngram-trie", "sps:model=models/draft.gguf"};
    static const int64_t calls[] = {0, 1, 6, 15};
    int32_t *ids;
    int64_t n_mark;
    assert_int_equal(fr_tokenize(model, "</think>", 8, FR_TOKENIZE_SPECIAL, &ids, &n_mark, NULL), 0);
    for (int c = 0; c < 4; c++)
        for (int d = 0; d < 3; d++) {
            int64_t at = calls[c], late = 20, none = 3;
            Text ended = run_and_end("</think>", NULL, NEVER, drafts[d], 1, NULL, &at),
                 bounded = run("</think>", NULL, at, "none", 1, NULL),
                 both = run_and_end("</think>", NULL, 9, drafts[d], 1, NULL, &late),
                 only_bounded = run("</think>", NULL, 9, "none", 1, NULL),
                 without = run_and_end(NULL, NULL, 0, drafts[d], 1, NULL, &none);
            assert_memory_equal(ended.tokens + at, ids, (size_t)n_mark * sizeof *ids);
            assert_memory_equal(ended.tokens, bounded.tokens, sizeof ended.tokens);
            assert_memory_equal(both.tokens, only_bounded.tokens, sizeof both.tokens);
            assert_int_equal(without.n, N_TOKENS);
        }
    fr_free(ids);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_is_closed_at_its_budget),
        cmocka_unit_test(the_opening_decides),
        cmocka_unit_test(ratio_rules_obey),
        cmocka_unit_test(reasoning_is_ended_by_the_caller),
    };
    return cmocka_run_group_tests(tests, open_engine, close_engine);
}
