/* test_grammar_text.c - texts that a grammar constrains: the same tokens and logits without drafts, with every drafter,
 * in batches and at every temperature; matching texts also under ratio rules; the end of a grammar; and grammars that a
 * request refuses. */
#include "engine_rig.h"
#include "grammar_rig.h"

#include "base/rng.h"
#include "engine/engine.h"
#include "engine/request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 120 };

static const struct {
    fr_grammar_kind kind;
    const char *text, *after, *opening;
    bool opens; /* the model is made to begin with the opening */
} grammars[] = {
    {FR_GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":"
     "\"integer\",\"minimum\":0,"
     "\"maximum\":130},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",\"grey\"]},\"maxItems\":3},"
     "\"ok\":{\"type\":"
     "\"boolean\"}},\"required\":[\"name\",\"age\",\"tags\"]}",
     .after = NULL},
    {FR_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}", .after = NULL},
    {FR_GRAMMAR_GBNF, "root ::= (\"move \" [a-h] [1-8] (\" takes \" [a-h] [1-8])? \"\\n\"){2,4} \"done\"",
     .after = NULL},
    {FR_GRAMMAR_REGEX, "(yes|no|maybe), [0-9]{2}(\\.[0-9]+)? because [a-z ]{5,40}\\.", .after = NULL},
    {FR_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"maxItems\":3}", .after = "a"},
    /* free text in which the grammar constrains the text after each "the" */
    {FR_GRAMMAR_GBNF,
     "root ::= %text \" the\" (%mark \" the\" [a-z]{0,3} %json {\"enum\": [\"red one\", \"green one\", 17]} %text \" "
     "the\")*",
     .after = NULL},
    /* `<s>` is a control token of this vocabulary */
    {FR_GRAMMAR_REGEX, "Q[0-9]{2,5} (is|was) [a-z]{3,9}\\.", .after = "a", .opening = "<s>", .opens = true},
    {FR_GRAMMAR_REGEX, "Q[0-9]{2,5} (is|was) [a-z]{3,9}\\.", .after = "a", .opening = "<s>"},
};
enum { N_GRAMMARS = sizeof grammars / sizeof *grammars };

static const fr_sampling samplings[] = {
    {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
    {.temperature = 0.8f, .top_p = 0.9f, .repeat_penalty = 1.1f, .penalty_last_n = 30, .seed = 3},
    {.temperature = 1.3f, .top_k = 20, .top_p = 1, .min_p = 0.02f, .repeat_penalty = 1, .seed = 4},
};
enum { N_SAMPLINGS = sizeof samplings / sizeof *samplings };

static const char *const none[] = {"none"};

static fr_model *model;
static fr_grammar *opened[N_GRAMMARS];
static int32_t *prompt;
enum { MAX_BIAS = 100 };
static fr_logit_bias for_q[MAX_BIAS], against_q[MAX_BIAS]; /* biases of the tokens that begin with Q */
static int n_bias;
static int64_t n_prompt;

static int open_all(void **state) {
    (void)state;
    static const char text[] = "Once upon a time there was an answer:";
    fr_error err;
    fr_model_info info = {.struct_size = sizeof info};
    model = rig_open_model("models/draft.gguf", NULL);
    fr_model_get_info(model, &info);
    if (fr_tokenize(model, text, sizeof text - 1, FR_TOKENIZE_PROMPT, &prompt, &n_prompt, &err)) return -1;
    for (int32_t token = 0; token < info.n_vocab && n_bias < MAX_BIAS; token++) {
        char *piece;
        size_t n;
        if (fr_detokenize(model, &token, 1, &piece, &n, &err)) return -1;
        if (piece[0] == 'Q') {
            for_q[n_bias] = (fr_logit_bias){token, 100};
            against_q[n_bias++] = (fr_logit_bias){token, -100};
        }
        fr_free(piece);
    }
    for (int i = 0; i < N_GRAMMARS; i++)
        if (fr_grammar_open(&opened[i], model, grammars[i].kind, grammars[i].text, strlen(grammars[i].text), &err))
            return -1;
    return 0;
}

static int close_all(void **state) {
    (void)state;
    for (int i = 0; i < N_GRAMMARS; i++) fr_grammar_close(opened[i]);
    fr_free(prompt);
    fr_model_close(model);
    return 0;
}

static fr_request_options request_of(int grammar, int sampling, const char *const *drafts, int n_drafts) {
    return (fr_request_options){.struct_size = sizeof(fr_request_options),
                                .prompt = prompt,
                                .n_prompt = n_prompt,
                                .max_tokens = N_TOKENS,
                                .sampling = samplings[sampling],
                                .drafts = drafts,
                                .n_drafts = n_drafts,
                                .grammar = opened[grammar],
                                .grammar_after = grammars[grammar].after,
                                .grammar_opening = grammars[grammar].opening,
                                .logit_bias = grammars[grammar].opens ? against_q : for_q,
                                .n_logit_bias = grammars[grammar].opening ? n_bias : 0};
}

/* Checks that a finished text matches, and that a text that was cut can be continued. */
static void check_text(int grammar, const Stream *s) {
    GrammarRig r;
    const char *text = s->text;
    if (grammars[grammar].after && (!grammars[grammar].opening || grammars[grammar].opens)) {
        text = strstr(text, grammars[grammar].after);
        if (!text) return;
        text += strlen(grammars[grammar].after);
    }
    if (!grammar_rig_open(&r, (GrammarKind)grammars[grammar].kind, grammars[grammar].text))
        fail_msg("%s", r.err.message);
    const GrammarState *end = grammar_rig_read(&r, text, strlen(text));
    if (s->finish == FR_FINISH_EOS ? !end->accepts : end->n == 0) fail_msg("'%s' does not match", s->text);
    grammar_rig_close(&r);
}

static void every_drafter_gives_the_same_text(void **state) {
    (void)state;
    static const char *const drafts[] = {"ngram-trie",
                                         "pld",
                                         "suffix",
                                         "lookahead-trie",
                                         "recycling",
                                         "lookahead",
                                         "auto",
                                         "random",
                                         "sps:model=models/draft.gguf",
                                         "rsd-s:width=3,depth=3,model=models/draft.gguf"};
    static Stream plain, got;
    int n_finished = 0, n_accepted = 0;
    fr_engine *e = rig_open_engine(model, NULL);
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    Devil random = devil_make(DEVIL_RANDOM, DEVIL_FAULT_NONE, info.n_vocab, 5);
    rig_add_drafter(e, "random", &random.base);
    for (int g = 0; g < N_GRAMMARS; g++)
        for (int s = 0; s < N_SAMPLINGS; s++) {
            fr_request_options o = request_of(g, s, none, 1);
            char what[100];
            rig_run_request(e, &o, &plain);
            assert_int_equal(plain.stats.drafted, 0);
            check_text(g, &plain);
            n_finished += plain.finish == FR_FINISH_EOS;
            o = request_of(g, s, NULL, 0); /* only the drafter of the grammar */
            o.tree_budget = 8;             /* once "auto" has measured costs, 0 would depend on them */
            rig_run_request(e, &o, &got);
            snprintf(what, sizeof what, "grammar %d, sampling %d", g, s);
            rig_assert_same(&plain, &got, what);
            n_accepted += (int)got.stats.accepted;
            for (size_t d = 0; d < sizeof drafts / sizeof *drafts; d++) {
                o = request_of(g, s, &drafts[d], 1);
                o.tree_budget = strcmp(drafts[d], "auto") == 0 ? 0 : 3 + 5 * s;
                rig_run_request(e, &o, &got);
                snprintf(what, sizeof what, "grammar %d, sampling %d, %s", g, s, drafts[d]);
                rig_assert_same(&plain, &got, what);
                assert_string_equal(got.draft_error, "");
            }
        }
    fr_engine_close(e);
    print_message("%d of %d texts finished, %d tokens drafted with only the grammar's drafter\n", n_finished,
                  N_GRAMMARS * N_SAMPLINGS, n_accepted);
    assert_true(n_finished >= N_SAMPLINGS && n_accepted > 50);
}

static void neighbours_change_nothing(void **state) {
    (void)state;
    enum { N = 8 };
    static const char *const drafts[] = {"ngram-trie", "recycling"};
    static Stream plain[N], got;
    fr_engine_options eo = {.struct_size = sizeof eo, .max_requests = N, .kv_page_size = 3, .prefill_chunk = 7};
    fr_engine *e = rig_open_engine(model, &eo);
    fr_request *requests[N];
    fr_error err;
    for (int i = 0; i < N; i++) {
        fr_request_options o = request_of(i % N_GRAMMARS, i % N_SAMPLINGS, none, 1);
        rig_run_request(e, &o, &plain[i]);
    }
    for (int i = 0; i < N; i++) {
        fr_request_options o = request_of(i % N_GRAMMARS, i % N_SAMPLINGS, drafts, i % 3);
        if (i % 3 == 0) o.drafts = NULL;
        if (rig_open_request(&requests[i], e, &o, &err)) fail_msg("%s", err.message);
    }
    while (fr_engine_step(e, &err) > 0) {}
    for (int i = 0; i < N; i++) {
        rig_collect(requests[i], &got);
        rig_assert_same(&plain[i], &got, "in a batch");
        fr_request_close(requests[i]);
    }
    fr_engine_close(e);
}

static void ratio_rules_keep_to_the_grammar(void **state) {
    (void)state;
    static const struct {
        const char *rule, *draft;
    } cases[] = {
        {"chain", "sps:model=models/draft.gguf"},
        {"block", "sps:model=models/draft.gguf"},
        {"recursive", "rsd-s:width=3,depth=3,model=models/draft.gguf"},
        {"transport", "rsd-s:width=3,depth=3,model=models/draft.gguf"},
        {"recursive", "ngram-trie"},
        {"typical", "ngram-trie"},
        {"recursive", NULL},
    };
    static Stream got, again;
    fr_engine *e = rig_open_engine(model, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int g = 0; g < N_GRAMMARS; g++) {
            fr_request_options o = request_of(g, 1 + (int)i % 2, cases[i].draft ? &cases[i].draft : NULL,
                                              cases[i].draft != NULL);
            o.verify = cases[i].rule;
            o.allow_lossy = 1;
            rig_run_request(e, &o, &got);
            rig_run_request(e, &o, &again);
            rig_assert_same(&got, &again, "a seed gives one text");
            assert_string_equal(got.draft_error, "");
            check_text(g, &got);
        }
    fr_engine_close(e);
}

/* ---- the quota of a step --------------------------------------------------------------------------------- */

/* Runs a request with a fresh grammar, whose masks are not known, and a limit on the work of grammars in a step.
 * Returns the most work of any step. */
static int64_t run_with_quota(int64_t quota, int grammar, fr_request_options o, Stream *out, int *n_waits) {
    fr_error err;
    fr_grammar *g;
    fr_request *r;
    int64_t most = 0;
    fr_engine *e = rig_open_engine(model, NULL);
    e->grammar_work = quota;
    if (fr_grammar_open(&g, model, grammars[grammar].kind, grammars[grammar].text, strlen(grammars[grammar].text),
                        &err))
        fail_msg("%s", err.message);
    o.grammar = g;
    if (rig_open_request(&r, e, &o, &err)) fail_msg("%s", err.message);
    while (fr_engine_step(e, &err) > 0) {
        int64_t spent = quota + 1 - r->grammar.quota.left;
        if (r->decode_started_s > 0 && spent > most) most = spent;
        *n_waits += r->grammar.is_behind;
    }
    rig_collect(r, out);
    if (out->finish == FR_FINISH_ERROR) fail_msg("%s", fr_request_error(r)->message);
    fr_request_close(r);
    fr_grammar_close(g);
    fr_engine_close(e);
    return most;
}

static void the_quota_of_a_step_bounds_it_and_changes_no_text(void **state) {
    (void)state;
    enum { QUOTA = 400, LARGEST_PIECE = 1500 }; /* such as the bits of a whole vocabulary */
    static const struct {
        const char *rule, *draft;
    } cases[] = {
        {"sampled", "none"}, {"sampled", "rsd-s:width=3,depth=3,model=models/draft.gguf"},
        {"sampled", NULL},   {"recursive", "rsd-s:width=3,depth=3,model=models/draft.gguf"},
        {"recursive", NULL}, {"typical", "ngram-trie"},
    };
    static Stream plain, got;
    int n_waits = 0, n_plain_waits = 0;
    int64_t most = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int g = 0; g < N_GRAMMARS; g++) {
            fr_request_options o = request_of(g, 1 + (int)i % 2, cases[i].draft ? &cases[i].draft : NULL,
                                              cases[i].draft != NULL);
            char what[100];
            o.verify = cases[i].rule;
            o.allow_lossy = 1;
            o.tree_budget = 8;
            o.max_tokens = 50;
            run_with_quota(INT64_MAX / 2, g, o, &plain, &n_plain_waits);
            int64_t spent = run_with_quota(QUOTA, g, o, &got, &n_waits);
            snprintf(what, sizeof what, "grammar %d, %s, %s", g, cases[i].rule, cases[i].draft ? cases[i].draft : "");
            rig_assert_same(&plain, &got, what);
            if (spent > QUOTA + LARGEST_PIECE) fail_msg("%s: a step did %lld units of work", what, (long long)spent);
            if (spent > most) most = spent;
        }
    print_message("at most %lld units in a step, %d steps waited\n", (long long)most, n_waits);
    assert_int_equal(n_plain_waits, 0);
    assert_true(n_waits > 100);
}

static fr_finish finish_of(const char *regex, const char *after, Stream *out, fr_error *why) {
    fr_error err;
    fr_grammar *g;
    fr_request *r;
    fr_engine *e = rig_open_engine(model, NULL);
    if (fr_grammar_open(&g, model, FR_GRAMMAR_REGEX, regex, strlen(regex), &err)) fail_msg("%s", err.message);
    fr_request_options o = request_of(0, 1, NULL, 0);
    o.grammar = g;
    o.grammar_after = after;
    o.max_tokens = 40;
    if (fr_request_open(&r, e, &o, &err)) fail_msg("%s", err.message);
    fr_grammar_close(g); /* the request goes on */
    while (fr_engine_step(e, &err) > 0) {}
    rig_collect(r, out);
    if (fr_request_finish_reason(r) == FR_FINISH_ERROR) *why = *fr_request_error(r);
    fr_finish finish = fr_request_finish_reason(r);
    fr_request_close(r);
    fr_engine_close(e);
    return finish;
}

static void a_text_ends_where_the_grammar_does(void **state) {
    (void)state;
    static Stream s;
    fr_error why;
    assert_int_equal(finish_of("abc", NULL, &s, &why), FR_FINISH_EOS);
    assert_string_equal(s.text, "abc"); /* without a token that ends the text */
    assert_int_equal(finish_of("abc", "e", &s, &why), FR_FINISH_EOS);
    const char *begin = strchr(s.text, 'e');
    assert_non_null(begin);
    assert_string_equal(begin + 1, "abc");
    assert_int_equal(finish_of("x*", NULL, &s, &why) == FR_FINISH_ERROR, 0);
    assert_int_equal(strspn(s.text, "x"), strlen(s.text));
    assert_int_equal(finish_of("[0-9]{100,}", NULL, &s, &why), FR_FINISH_LENGTH);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    fr_error err;
    fr_request *r;
    fr_grammar *g;
    fr_engine *e = rig_open_engine(model, NULL);
    fr_request_options o = request_of(0, 0, NULL, 0);
    o.ignore_eos = 1;
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "ignore_eos contradicts"));
    fr_model *other = rig_open_model("models/draft.gguf", NULL);
    assert_int_equal(fr_grammar_open(&g, other, FR_GRAMMAR_REGEX, "a", 1, &err), FR_OK);
    o = request_of(0, 0, NULL, 0);
    o.grammar = g;
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_ERR_MISMATCH);
    fr_grammar_close(g);
    fr_model_close(other);
    char long_text[300];
    memset(long_text, 'x', sizeof long_text);
    long_text[299] = '\0';
    o = request_of(0, 0, NULL, 0);
    o.grammar_after = long_text;
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_ERR_ARGUMENT);
    o = request_of(0, 0, NULL, 0);
    o.grammar_opening = "<think>";
    assert_int_equal(fr_request_open(&r, e, &o, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "grammar_after"));
    assert_int_equal(fr_grammar_open(&g, model, (fr_grammar_kind)7, "a", 1, &err), FR_ERR_ARGUMENT);
    assert_int_equal(fr_grammar_open(NULL, model, FR_GRAMMAR_REGEX, "a", 1, &err), FR_ERR_ARGUMENT);
    assert_int_equal(fr_grammar_open(&g, NULL, FR_GRAMMAR_REGEX, "a", 1, &err), FR_ERR_ARGUMENT);
    assert_int_equal(fr_grammar_open(&g, model, FR_GRAMMAR_REGEX, NULL, 1, &err), FR_ERR_ARGUMENT);
    assert_int_equal(fr_grammar_open(&g, model, FR_GRAMMAR_REGEX, "(", 1, &err), FR_ERR_ARGUMENT);
    assert_null(g);
    fr_grammar_close(NULL);
    assert_string_equal(fr_grammar_notice(NULL), "");
    assert_int_equal(fr_grammar_bytes(NULL), 0);
    fr_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_drafter_gives_the_same_text),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(ratio_rules_keep_to_the_grammar),
        cmocka_unit_test(a_text_ends_where_the_grammar_does),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(the_quota_of_a_step_bounds_it_and_changes_no_text),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
