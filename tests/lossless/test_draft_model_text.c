/* test_draft_model_text.c - the drafters that are a second model, in the engine: the text is that of plain decoding,
 * whatever the other requests are, and whatever the vocabulary of the draft model is. */
#include "engine_rig.h"

#include "gguf/gguf_write.h"
#include "model_rig.h"
#include "other_vocab.h"

#include <stdio.h>
#include <string.h>

#define DRAFT "models/draft.gguf"
#define M ":model=" DRAFT
#define OTHER "build/draft-other.gguf" /* another vocabulary */

enum { N_TOKENS = 40, MAX_PROMPT = 64, N_VOCAB = 4096 };

static const char *const specs[] = {"sps" M,    "sps" M ",length=9,coupled=0",
                                    "rsd-c" M,  "rsd-c" M ",branch=2x2x2,coupled=0",
                                    "rsd-s" M,  "rsd-s" M ",width=3,depth=6,coupled=0",
                                    "spectr" M, "specinfer:models=" DRAFT "+" DRAFT ",length=3,coupled=0"};
enum { N_SPECS = sizeof specs / sizeof *specs };

static const char *const prompts[] = {
    "Once upon a time there was a little girl who",
    "USER: Why is the sky blue?\nASSISTANT:", "The king looked at the dragon. The dragon looked at the king. Then"};
enum { N_PROMPTS = sizeof prompts / sizeof *prompts };

typedef struct Prompt {
    int32_t tokens[MAX_PROMPT];
    int64_t n;
} Prompt;

static Prompt prompt_of(const fr_model *model, int i) {
    fr_error err;
    Prompt p;
    int32_t *tokens;
    if (fr_tokenize(model, prompts[i], strlen(prompts[i]), FR_TOKENIZE_PROMPT, &tokens, &p.n, &err))
        fail_msg("%s", err.message);
    assert_true(p.n <= MAX_PROMPT);
    memcpy(p.tokens, tokens, (size_t)p.n * sizeof *tokens);
    fr_free(tokens);
    return p;
}

static fr_request_options request_of(const Prompt *p, int i_sampling) {
    return (fr_request_options){.struct_size = sizeof(fr_request_options),
                                .prompt = p->tokens,
                                .n_prompt = p->n,
                                .max_tokens = N_TOKENS,
                                .sampling = rig_sampling(i_sampling),
                                .ignore_eos = 1};
}

/* Runs with one drafter and compares with plain decoding; the drafter must not have been switched off. */
static fr_stats check(fr_engine *e, fr_request_options o, const char *draft, int budget, const Stream *plain) {
    static Stream got;
    o.drafts = &draft;
    o.n_drafts = 1;
    o.tree_budget = budget;
    rig_run_request(e, &o, &got);
    rig_assert_same(plain, &got, draft);
    if (got.draft_error[0]) fail_msg("%s, budget %d: switched off: %s", draft, budget, got.draft_error);
    bool has_other_vocab = strstr(draft, OTHER) != NULL;
    if (got.drafts.shared_vocab > 1 || (got.drafts.shared_vocab > 0) != has_other_vocab)
        fail_msg("%s: shares %g of the vocabulary", draft, got.drafts.shared_vocab);
    return got.stats;
}

/* ---- the text ------------------------------------------------------------------------------------ */

static void nothing_changes_the_text(void **state) {
    (void)state;
    static const int budgets[] = {1, 7, 24};
    static Stream plain;
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    for (int i = 0; i < RIG_N_SAMPLINGS; i++) {
        Prompt p = prompt_of(model, i % N_PROMPTS);
        fr_request_options o = request_of(&p, i);
        fr_engine_options eo = {.struct_size = sizeof eo,
                                .n_threads = 1 + i % 3,
                                .n_ctx = (int)p.n + N_TOKENS,
                                .kv_page_size = 1 + 5 * i};
        fr_engine *e = rig_open_engine(model, &eo);
        rig_run_request(e, &o, &plain);
        for (int k = 0; k < N_SPECS; k++) {
            int64_t accepted = 0;
            for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++)
                accepted += check(e, o, specs[k], budgets[b], &plain).accepted;
            if (accepted < 10) fail_msg("%s, sampling %d: only %d drafts accepted", specs[k], i, (int)accepted);
        }
        fr_engine_close(e);
    }
    fr_model_close(model);
}

/* Requests come and go in one engine, several of them with the same drafter: each generates the text that it generates
 * by itself. */
static void neighbours_change_nothing(void **state) {
    (void)state;
    enum { N = 8, N_PLACES = 3 };
    static Stream alone[N], got;
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    Prompt p[N];
    fr_request_options o[N];
    const char *drafts[N][2];
    for (int i = 0; i < N; i++) {
        p[i] = prompt_of(model, i % N_PROMPTS);
        o[i] = request_of(&p[i], i % RIG_N_SAMPLINGS);
        o[i].max_tokens = N_TOKENS - 3 * i;
        drafts[i][0] = i % 3 == 2 ? specs[4] : specs[2];
        drafts[i][1] = "ngram-trie";
        fr_engine *e = rig_open_engine(model, NULL);
        o[i].drafts = drafts[i], o[i].n_drafts = 1 + i % 2, o[i].tree_budget = 4 + 4 * i;
        fr_request_options plain = o[i];
        plain.n_drafts = 0;
        rig_run_request(e, &plain, &alone[i]);
        rig_run_request(e, &o[i], &got);
        alone[i].stats.accepted = got.stats.accepted; /* the trees are the same, too */
        fr_engine_close(e);
    }
    fr_engine *e = rig_open_engine(
        model,
        &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .max_requests = N_PLACES, .prefill_chunk = 7});
    fr_request *running[N_PLACES] = {NULL};
    int which[N_PLACES] = {0}, n_started = 0, n_done = 0;
    for (int step = 0; n_done < N; step++) {
        fr_error err;
        for (int k = 0; k < N_PLACES; k++) {
            if (running[k] && fr_request_finish_reason(running[k])) {
                rig_collect(running[k], &got);
                rig_assert_same(&alone[which[k]], &got, "in a batch");
                assert_string_equal(got.draft_error, "");
                assert_int_equal(got.stats.accepted, alone[which[k]].stats.accepted);
                fr_request_close(running[k]);
                running[k] = NULL;
                n_done++;
            }
            if (running[k] || n_started == N || step % 2) continue;
            which[k] = n_started;
            if (rig_open_request(&running[k], e, &o[n_started++], &err)) fail_msg("%s", err.message);
        }
        if (fr_engine_step(e, &err) < 0) fail_msg("%s", err.message);
        assert_true(step < 1000);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

/* The target as its own draft model is always right, if requests are greedy or draws use the target's noise. With
 * independent noise it is not. */
static void a_draft_equal_to_the_target_is_always_accepted(void **state) {
    (void)state;
    static Stream plain;
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    for (int i = 0; i < RIG_N_SAMPLINGS; i++) {
        Prompt p = prompt_of(model, i % N_PROMPTS);
        fr_request_options o = request_of(&p, i);
        rig_run_request(e, &o, &plain);
        fr_stats s = check(e, o, "sps:model=" RIG_TARGET ",length=4", 24, &plain);
        if (s.accepted != s.drafted || s.n_steps != (N_TOKENS + 4) / 5)
            fail_msg("sampling %d: %d of %d accepted in %d steps", i, (int)s.accepted, (int)s.drafted, (int)s.n_steps);
        if (o.sampling.temperature == 0) continue;
        s = check(e, o, "rsd-s:model=" RIG_TARGET ",width=2,depth=4", 24, &plain);
        assert_in_range(s.n_steps, 1, (N_TOKENS + 4) / 5 + 1); /* the last tree is limited to the tokens left */
        s = check(e, o, "sps:model=" RIG_TARGET ",length=4,coupled=0", 24, &plain);
        assert_true(s.accepted < s.drafted);
    }
    fr_engine_close(e);
    fr_model_close(model);
}

static void coupling_raises_acceptance(void **state) {
    (void)state;
    static Stream plain;
    int64_t accepted[2] = {0};
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    for (int i = 0; i < 2 * N_PROMPTS; i++) {
        Prompt p = prompt_of(model, i % N_PROMPTS);
        fr_request_options o = request_of(&p, 1);
        o.sampling.seed = (uint64_t)(40 + i);
        rig_run_request(e, &o, &plain);
        accepted[0] += check(e, o, "sps" M ",coupled=0", 24, &plain).accepted;
        accepted[1] += check(e, o, "sps" M ",coupled=1", 24, &plain).accepted;
    }
    print_message("accepted in %d tokens: %d uncoupled, %d coupled\n", 2 * N_PROMPTS * N_TOKENS, (int)accepted[0],
                  (int)accepted[1]);
    assert_true(2 * accepted[1] > 3 * accepted[0]);
    fr_engine_close(e);
    fr_model_close(model);
}

/* ---- the vocabulary --------------------------------------------------------------------------------- */

/* draft.gguf with one property of its vocabulary changed. */
typedef enum Change {
    NO_CHANGE,
    ONE_TOKEN,
    ONE_TYPE,
    OTHER_EOS,
    OTHER_BOS,
    ONE_TOKEN_LESS,
    OTHER_KIND,
    N_CHANGES,
    NOTHING_SHARED = N_CHANGES
} Change;

static void write_changed(Change change, const char *path) {
    Gguf *g = rig_gguf(DRAFT);
    GgufWriter *w = gguf_writer_new();
    int64_t tokens = gguf_find_key(g, "tokenizer.ggml.tokens"), types = gguf_find_key(g, "tokenizer.ggml.token_type"),
            scores = gguf_find_key(g, "tokenizer.ggml.scores"), n = N_VOCAB - (change == ONE_TOKEN_LESS);
    static GgufString spellings[N_VOCAB];
    static int32_t type[N_VOCAB];
    static float score[N_VOCAB];
    for (int64_t i = 0; i < n; i++) {
        int64_t v = 0;
        assert_true(gguf_array_string(g, tokens, i, &spellings[i]) && gguf_array_i64(g, types, i, &v) &&
                    gguf_array_f32(g, scores, i, &score[i]));
        type[i] = (int32_t)v;
    }
    if (change == ONE_TOKEN) spellings[1234] = (GgufString){"abra\ncadabra", 12};
    if (change == ONE_TYPE) type[2345] = 5;
    if (change == NOTHING_SHARED) {
        static char own[N_VOCAB][16];
        for (int64_t i = 0; i < n; i++) {
            int length = snprintf(own[i], sizeof own[i], "\xC3\x98%d\xC3\x98", (int)i);
            spellings[i] = (GgufString){own[i], (size_t)length};
            type[i] = 1;
        }
        gguf_set_u32(w, "tokenizer.ggml.eos_token_id", UINT32_MAX);
        gguf_set_u32(w, "tokenizer.ggml.bos_token_id", UINT32_MAX);
        gguf_set_u32(w, "tokenizer.ggml.unknown_token_id", UINT32_MAX);
    }
    if (change == OTHER_EOS) gguf_set_u32(w, "tokenizer.ggml.eos_token_id", 300);
    if (change == OTHER_BOS) gguf_set_u32(w, "tokenizer.ggml.bos_token_id", 300);
    if (change == OTHER_KIND) {
        gguf_set_string(w, "tokenizer.ggml.model", "gpt2", 4);
        gguf_set_strings(w, "tokenizer.ggml.merges", NULL, 0);
    }
    gguf_set_strings(w, "tokenizer.ggml.tokens", spellings, n);
    gguf_set_i32s(w, "tokenizer.ggml.token_type", type, n);
    gguf_set_f32s(w, "tokenizer.ggml.scores", score, n);
    gguf_copy_kvs(w, g, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
    }
    fr_error err;
    if (gguf_writer_finish(w, path, &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    gguf_close(g);
}

/* A vocabulary with one difference, or of another kind, drafts what both have in common. */
static void any_difference_is_allowed(void **state) {
    (void)state;
    static const char path[] = OTHER, spec[] = "sps:model=" OTHER;
    static Stream plain;
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    for (int i = NO_CHANGE + 1; i < N_CHANGES; i++) {
        write_changed((Change)i, path);
        fr_engine *e = rig_open_engine(model, NULL);
        Prompt p = prompt_of(model, i % N_PROMPTS);
        fr_request_options o = request_of(&p, i % RIG_N_SAMPLINGS);
        rig_run_request(e, &o, &plain);
        fr_stats s = check(e, o, spec, 8, &plain);
        if (s.accepted < (i == OTHER_KIND ? 0 : 5)) fail_msg("change %d: %d accepted", i, (int)s.accepted);
        fr_engine_close(e);
    }
    fr_model_close(model);
    remove(path);
}

/* The draft model with its tokens in another order reads the same texts, so it drafts what it drafts with the target's
 * vocabulary. Where pieces are missing, it drafts less. */
static void the_order_of_tokens_does_not_matter(void **state) {
    (void)state;
    static Stream plain;
    static const char *const own[] = {"sps" M, "rsd-c" M ",coupled=0", "rsd-s" M, "spectr" M},
                             *const other[] = {"sps:model=" OTHER, "rsd-c:model=" OTHER ",coupled=0",
                                               "rsd-s:model=" OTHER, "spectr:model=" OTHER};
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    int64_t accepted[3] = {0};
    for (int missing = 0; missing < 2; missing++) {
        other_vocab_write(DRAFT, OTHER, missing ? 3 : 0);
        fr_engine *e = rig_open_engine(model, NULL);
        for (int i = 0; i < RIG_N_SAMPLINGS; i++) {
            Prompt p = prompt_of(model, i % N_PROMPTS);
            fr_request_options o = request_of(&p, i);
            rig_run_request(e, &o, &plain);
            for (int k = 0; k < 4; k++) {
                if (!missing) accepted[0] += check(e, o, own[k], 15, &plain).accepted;
                accepted[1 + missing] += check(e, o, other[k], 15, &plain).accepted;
            }
        }
        fr_engine_close(e);
    }
    print_message("accepted: %d with the target's vocabulary, %d in another order, %d without a third\n",
                  (int)accepted[0], (int)accepted[1], (int)accepted[2]);
    assert_true(100 * accepted[1] >= 97 * accepted[0]);
    assert_true(accepted[2] > 40 && 10 * accepted[2] < 9 * accepted[1]);
    fr_model_close(model);
    remove(OTHER);
}

static void nothing_in_common_is_refused(void **state) {
    (void)state;
    static const char path[] = "build/draft-changed.gguf", spec[] = "sps:model=build/draft-changed.gguf";
    fr_error err = {0};
    write_changed(NOTHING_SHARED, path);
    fr_model *model = rig_open_model(RIG_TARGET, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    Prompt p = prompt_of(model, 0);
    fr_request_options o = request_of(&p, 0);
    const char *draft = spec;
    o.drafts = &draft, o.n_drafts = 1;
    fr_request *r;
    assert_int_equal(rig_open_request(&r, e, &o, &err), FR_ERR_MISMATCH);
    if (!strstr(err.message, path) ||
        !strstr(err.message, "shares no token with that of the target models/target.gguf"))
        fail_msg("%s", err.message);
    fr_engine_close(e);
    fr_model_close(model);
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_changes_the_text),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(a_draft_equal_to_the_target_is_always_accepted),
        cmocka_unit_test(coupling_raises_acceptance),
        cmocka_unit_test(any_difference_is_allowed),
        cmocka_unit_test(the_order_of_tokens_does_not_matter),
        cmocka_unit_test(nothing_in_common_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
