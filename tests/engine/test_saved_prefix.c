/* test_saved_prefix.c - prefixes that are saved in one engine and restored in another: the request that follows has the
 * same text, the same drafts and the same number of tokens read; and bytes that are damaged, made up, or those of
 * another engine are refused, and change nothing. */
#include "engine_rig.h"

#include "all_drafters.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { V = ALL_DRAFTERS_VOCAB, N_CTX = 160, N_PROMPT = 30, N_TOKENS = 20, PAGE = 4, HEAD_BYTES = 96 };

#define SHAPE(a, layers) \
    .arch = a, .n_layer = layers, .n_embd = ALL_DRAFTERS_EMBD, .n_head = 4, .n_head_kv = 2, .n_ff = 96, .n_vocab = V
#define HYBRID_SHAPE \
    SHAPE("qwen35", 4), .n_key_heads = 2, .n_value_heads = 4, .delta_dim = 16, .n_conv = 4, .attention_interval = 2, \
                        .n_rot = 8
#define HYBRID_DRAFT "build/saved-draft.gguf"
#define OTHER "build/saved-other.gguf"

static const RandomModel targets[] = {{SHAPE("llama", 2), .seed = 21},
                                      {HYBRID_SHAPE, .seed = 22},
                                      {SHAPE("gemma3", 3), .window = 9, .seed = 23},
                                      {SHAPE("gemma4", 4), .local_head_dim = 8, .window = 9, .attention_interval = 2,
                                       .n_shared_kv = 2, .n_ple = 8, .seed = 24}};
enum { N_TARGETS = sizeof targets / sizeof *targets };

static void write_model(const RandomModel *m, const char *path) {
    fr_error err;
    if (random_model_write(m, path, &err)) fail_msg("%s", err.message);
}

static fr_engine_options options_of(fr_kv_type kv_type) {
    return (fr_engine_options){.struct_size = sizeof(fr_engine_options),
                               .n_threads = 1,
                               .n_ctx = N_CTX,
                               .kv_type = kv_type,
                               .kv_page_size = PAGE,
                               .max_requests = 2,
                               .prefill_chunk = 16,
                               .prefix_cache = 3};
}

static fr_engine *open_engine(const fr_model *m, fr_kv_type kv_type) {
    const fr_engine_options o = options_of(kv_type);
    return rig_open_engine(m, &o);
}

static fr_request_options ask(const int32_t *prompt, int64_t n, const char *const *spec) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = n,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = spec,
                            .n_drafts = spec ? 1 : 0,
                            .tree_budget = 8,
                            .ignore_eos = 1};
    o.sampling.temperature = 0.7f, o.sampling.seed = 3;
    return o;
}

/* A conversation: a prompt, an answer, and the next message. */
typedef struct Talk {
    int32_t tokens[N_CTX];
    int64_t n_first, n_answered, n_next;
} Talk;

static void first_turn(fr_engine *e, Talk *t, const char *const *spec) {
    static Stream answer;
    t->n_first = N_PROMPT;
    for (int i = 0; i < N_PROMPT; i++) t->tokens[i] = ALL_DRAFTERS_TOKEN(i);
    fr_request_options o = ask(t->tokens, t->n_first, spec);
    rig_run_request(e, &o, &answer);
    memcpy(t->tokens + N_PROMPT, answer.tokens, (size_t)answer.n * sizeof *t->tokens);
    t->n_answered = N_PROMPT + answer.n;
    t->n_next = t->n_answered;
    for (int i = 0; i < 6; i++) t->tokens[t->n_next++] = ALL_DRAFTERS_TOKEN(i);
}

static void *save(fr_engine *e, const Talk *t, size_t *n) {
    void *data;
    fr_error err;
    if (fr_engine_save_prefix(e, t->tokens, t->n_answered, &data, n, &err)) fail_msg("%s", err.message);
    return data;
}

static void restore(fr_engine *e, const void *data, size_t n, const Talk *t) {
    const int32_t *tokens;
    int64_t n_tokens;
    fr_error err;
    if (fr_engine_restore_prefix(e, data, n, &tokens, &n_tokens, &err)) fail_msg("%s", err.message);
    assert_int_equal(n_tokens, t->n_answered);
    assert_memory_equal(tokens, t->tokens, (size_t)n_tokens * sizeof *tokens);
}

static void expect_same(const Stream *want, const Stream *got, const char *what) {
    rig_assert_same(want, got, what);
    assert_string_equal(got->draft_error, "");
    if (got->stats.drafted != want->stats.drafted || got->stats.accepted != want->stats.accepted ||
        got->stats.n_steps != want->stats.n_steps || got->stats.n_prompt_shared != want->stats.n_prompt_shared)
        fail_msg("%s: %d of %d drafted accepted, %d tokens shared; %d of %d, %d without restoring", what,
                 (int)got->stats.accepted, (int)got->stats.drafted, (int)got->stats.n_prompt_shared,
                 (int)want->stats.accepted, (int)want->stats.drafted, (int)want->stats.n_prompt_shared);
}

/* Runs the first turn, then the second one in the same engine and, after a restore, in a new one. Returns the number
 * of tokens that the second turn did not read. */
static int64_t check_turns(const fr_model *m, fr_kv_type kv_type, const char *const *spec) {
    static Stream want, got, again;
    Talk talk;
    size_t n, n_again;
    fr_engine *e = open_engine(m, kv_type), *other;
    first_turn(e, &talk, spec);
    void *data = save(e, &talk, &n);
    const fr_request_options next = ask(talk.tokens, talk.n_next, spec), same = ask(talk.tokens, talk.n_first, spec);
    rig_run_request(e, &next, &want);
    rig_run_request(e, &same, &again);
    fr_engine_close(e);
    other = open_engine(m, kv_type);
    if (spec) assert_int_equal(fr_engine_open_draft(other, *spec, NULL), FR_OK);
    restore(other, data, n, &talk);
    void *saved_again = save(other, &talk, &n_again);
    assert_int_equal(n_again, n);
    assert_memory_equal(saved_again, data, n);
    rig_run_request(other, &next, &got);
    expect_same(&want, &got, spec ? *spec : "plain");
    int64_t n_shared = got.stats.n_prompt_shared;
    rig_run_request(other, &same, &got); /* it begins at a mark, where the model needs one */
    expect_same(&again, &got, spec ? *spec : "plain");
    fr_engine_close(other);
    free(saved_again);
    free(data);
    return n_shared;
}

static void every_drafter_goes_on(void **state) {
    (void)state;
    static const char *const hybrid_draft[] = {"sps:length=3,model=" HYBRID_DRAFT};
    static const char *const assistant[] = {ALL_DRAFTERS_ASSISTANT};
    write_model(&(RandomModel){HYBRID_SHAPE, .seed = 24}, HYBRID_DRAFT);
    for (int i = 0; i < N_TARGETS; i++) {
        write_model(&targets[i], ALL_DRAFTERS_TARGET);
        all_drafters_write_for(ALL_DRAFTERS_TARGET);
        fr_model *m = rig_open_model(ALL_DRAFTERS_TARGET, NULL);
        for (int k = 0; all_drafters[k]; k++) assert_true(check_turns(m, FR_KV_F16, &all_drafters[k]) >= N_PROMPT);
        assert_true(check_turns(m, FR_KV_F16, hybrid_draft) >= N_PROMPT);
        fr_model_close(m);
    }
    all_drafters_write_files();
    fr_model *gemma = rig_open_model(ALL_DRAFTERS_GEMMA, NULL);
    assert_true(check_turns(gemma, FR_KV_F16, assistant) >= N_PROMPT);
    assert_true(check_turns(gemma, FR_KV_Q8, assistant) >= N_PROMPT);
    fr_model_close(gemma);
}

static void all_kv_types_and_the_reference_backend(void **state) {
    (void)state;
    for (int i = 0; i < N_TARGETS; i++) {
        write_model(&targets[i], OTHER);
        fr_model *m = rig_open_model(OTHER, NULL);
        for (int k = 0; k < 3; k++) assert_true(check_turns(m, (fr_kv_type)k, NULL) >= N_PROMPT + N_TOKENS - 1);
        fr_model_close(m);
        m = rig_open_model_in(OTHER, "reference");
        assert_true(check_turns(m, FR_KV_F32, NULL) >= N_PROMPT + N_TOKENS - 1);
        fr_model_close(m);
    }
}

/* ---- refusals ---------------------------------------------------------------------------------------- */

static int n_prefixes(const fr_engine *e) {
    int n = 0;
    while (fr_engine_get_prefix(e, n, NULL, NULL)) n++;
    return n;
}

/* The restore fails with that code, and the engine keeps the one prefix that it had. */
static void expect_refused(fr_engine *e, const void *data, size_t n, int code, const char *words) {
    fr_error err;
    const int32_t *tokens;
    int64_t n_tokens;
    int status = fr_engine_restore_prefix(e, data, n, &tokens, &n_tokens, &err);
    if (status != code || (words && !strstr(err.message, words)))
        fail_msg("status %d, expected %d with '%s': %s", status, code, words ? words : "", status ? err.message : "");
    assert_null(tokens);
    assert_int_equal(n_tokens, 0);
    assert_int_equal(n_prefixes(e), 1);
}

static void close_checksum(char *data, size_t n) {
    uint64_t sum = hash64(data, n - sizeof sum, 0);
    memcpy(data + n - sizeof sum, &sum, sizeof sum);
}

typedef struct Saved {
    fr_model *model;
    fr_engine *engine; /* with the prefix of another request */
    char *data;
    size_t n;
    Talk talk;
} Saved;

static const char *const drafts[] = {"eagle:file=build/all-eagle.gguf+recycling:k=3"};

static Saved open_saved(const RandomModel *target) {
    static Stream s;
    static const int32_t other[] = {5, 6, 7, 8, 9, 10, 11, 12};
    Saved p;
    write_model(target, ALL_DRAFTERS_TARGET);
    all_drafters_write_for(ALL_DRAFTERS_TARGET);
    p.model = rig_open_model(ALL_DRAFTERS_TARGET, NULL);
    fr_engine *e = open_engine(p.model, FR_KV_F16);
    first_turn(e, &p.talk, drafts);
    p.data = save(e, &p.talk, &p.n);
    fr_engine_close(e);
    p.engine = open_engine(p.model, FR_KV_F16);
    const fr_request_options o = ask(other, 8, drafts);
    rig_run_request(p.engine, &o, &s);
    return p;
}

static void close_saved(Saved *p) {
    fr_engine_close(p->engine);
    fr_model_close(p->model);
    free(p->data);
}

static void damage_is_refused(void **state) {
    (void)state;
    for (int i = 0; i < N_TARGETS; i++) {
        Saved p = open_saved(&targets[i]);
        for (size_t at = 0; at < p.n; at += at < 400 || at > p.n - 200 ? 1 : 211) {
            p.data[at] ^= 0x40;
            fr_error err;
            int status = fr_engine_restore_prefix(p.engine, p.data, p.n, NULL, NULL, &err);
            if (status != FR_ERR_FORMAT && status != FR_ERR_MISMATCH) fail_msg("byte %zu: status %d", at, status);
            p.data[at] ^= 0x40;
        }
        for (size_t n = 0; n < p.n; n += n < 400 ? 1 : 499) expect_refused(p.engine, p.data, n, FR_ERR_FORMAT, NULL);
        assert_int_equal(n_prefixes(p.engine), 1);
        restore(p.engine, p.data, p.n, &p.talk);
        assert_int_equal(n_prefixes(p.engine), 2);
        close_saved(&p);
    }
}

/* Bytes with a right checksum: every number that says how long a part is, with values that do not fit. What is
 * accepted must at least be usable. */
static void made_up_bytes_do_no_harm(void **state) {
    (void)state;
    static Stream s;
    static const int32_t values[] = {-1, 0, 1, 3, 9, 1 << 20, INT32_MAX, INT32_MIN};
    for (int i = 0; i < N_TARGETS; i++) {
        Saved p = open_saved(&targets[i]);
        char *copy = malloc(p.n);
        int n_refused = 0;
        for (size_t at = HEAD_BYTES - 24; at + 4 < p.n; at += at < 600 || at > p.n - 400 ? 4 : 4 * 271)
            for (size_t k = 0; k < sizeof values / sizeof *values; k++) {
                memcpy(copy, p.data, p.n);
                memcpy(copy + at, &values[k], sizeof values[k]);
                close_checksum(copy, p.n);
                n_refused += fr_engine_restore_prefix(p.engine, copy, p.n, NULL, NULL, NULL) != FR_OK;
            }
        assert_true(n_refused > 100);
        const fr_request_options o = ask(p.talk.tokens, p.talk.n_next, drafts);
        rig_run_request(p.engine, &o, &s); /* keys and values that somebody made up: any text, or an error */
        free(copy);
        close_saved(&p);
    }
}

/* ---- other engines ----------------------------------------------------------------------------------- */

static void other_engines_refuse_it(void **state) {
    (void)state;
    Saved p = open_saved(&targets[0]);
    static Stream s;
    fr_error err;
    struct {
        fr_engine *engine;
        int code;
        const char *words;
    } cases[4];
    fr_engine_options o = options_of(FR_KV_F16);
    write_model(&(RandomModel){SHAPE("llama", 2), .seed = 25}, OTHER);
    fr_model *other = rig_open_model(OTHER, NULL), *rounded = rig_open_model_with(ALL_DRAFTERS_TARGET, NULL, "q8");
    cases[0].engine = open_engine(other, FR_KV_F16), cases[0].code = FR_ERR_MISMATCH, cases[0].words = "another model";
    cases[1].engine = open_engine(p.model, FR_KV_Q8), cases[1].code = FR_ERR_MISMATCH, cases[1].words = "type f16";
    cases[2].engine = open_engine(rounded, FR_KV_F16), cases[2].code = FR_ERR_MISMATCH, cases[2].words = "activations";
    o.n_ctx = 24;
    cases[3].engine = rig_open_engine(p.model, &o), cases[3].code = FR_ERR_CONTEXT, cases[3].words = "50";
    for (int i = 0; i < 4; i++) {
        const fr_request_options first = ask(p.talk.tokens, 2, NULL);
        rig_run_request(cases[i].engine, &first, &s);
        expect_refused(cases[i].engine, p.data, p.n, cases[i].code, i == 3 ? NULL : cases[i].words);
        fr_engine_close(cases[i].engine);
    }
    o = options_of(FR_KV_F16), o.prefix_cache = -1;
    fr_engine *e = rig_open_engine(p.model, &o);
    assert_int_equal(fr_engine_restore_prefix(e, p.data, p.n, NULL, NULL, &err), FR_ERR_UNSUPPORTED);
    fr_engine_close(e);
    fr_model_close(other);
    fr_model_close(rounded);
    close_saved(&p);
}

/* Running requests keep their pages; what only the prefix cache holds makes room. */
static void room_is_made_of_other_prefixes(void **state) {
    (void)state;
    Saved p = open_saved(&targets[0]);
    fr_engine_options o = options_of(FR_KV_F16);
    o.kv_tokens = N_CTX;
    fr_engine *e = rig_open_engine(p.model, &o);
    fr_request *r;
    fr_error err;
    static Stream s;
    int32_t prompt[N_CTX];
    for (int i = 0; i < N_CTX; i++) prompt[i] = 30 + i;
    fr_request_options long_one = ask(prompt, N_CTX - N_TOKENS - 2, NULL);
    assert_int_equal(fr_request_open(&r, e, &long_one, &err), FR_OK);
    for (int i = 0; i < 12; i++) assert_true(fr_engine_step(e, &err) > 0);
    assert_int_equal(fr_engine_restore_prefix(e, p.data, p.n, NULL, NULL, &err), FR_ERR_MEMORY);
    while (fr_engine_step(e, &err) > 0) {}
    rig_collect(r, &s);
    fr_request_close(r);
    assert_int_equal(n_prefixes(e), 1);
    restore(e, p.data, p.n, &p.talk);
    assert_int_equal(n_prefixes(e), 1); /* the long one is gone */
    assert_int_equal(fr_engine_forget_prefix(e, p.talk.tokens, p.talk.n_answered, &err), FR_OK);
    assert_int_equal(n_prefixes(e), 0);
    void *data;
    size_t n;
    assert_int_equal(fr_engine_save_prefix(e, p.talk.tokens, p.talk.n_answered, &data, &n, &err), FR_ERR_ARGUMENT);
    assert_null(data);
    fr_engine_close(e);
    close_saved(&p);
}

/* A drafter with other weights under the same name gets nothing, and the text does not change. */
static void a_changed_drafter_begins_anew(void **state) {
    (void)state;
    static Stream want, got;
    Saved p = open_saved(&targets[0]);
    write_model(&(RandomModel){SHAPE("llama", 1), .seed = 26}, HYBRID_DRAFT);
    static const char *const spec[] = {"sps:length=3,model=" HYBRID_DRAFT};
    Talk talk;
    size_t n;
    fr_engine *e = open_engine(p.model, FR_KV_F16);
    first_turn(e, &talk, spec);
    void *data = save(e, &talk, &n);
    const fr_request_options next = ask(talk.tokens, talk.n_next, spec);
    rig_run_request(e, &next, &want);
    fr_engine_close(e);
    write_model(&(RandomModel){SHAPE("llama", 1), .seed = 27}, HYBRID_DRAFT);
    e = open_engine(p.model, FR_KV_F16);
    assert_int_equal(fr_engine_open_draft(e, *spec, NULL), FR_OK);
    restore(e, data, n, &talk);
    rig_run_request(e, &next, &got);
    rig_assert_same(&want, &got, "with another draft model");
    fr_engine_close(e);
    free(data);
    close_saved(&p);
}

static int remove_files(void **state) {
    (void)state;
    unlink(HYBRID_DRAFT);
    unlink(OTHER);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_drafter_goes_on),
        cmocka_unit_test(all_kv_types_and_the_reference_backend),
        cmocka_unit_test(damage_is_refused),
        cmocka_unit_test(made_up_bytes_do_no_harm),
        cmocka_unit_test(other_engines_refuse_it),
        cmocka_unit_test(room_is_made_of_other_prefixes),
        cmocka_unit_test(a_changed_drafter_begins_anew),
    };
    return cmocka_run_group_tests(tests, NULL, remove_files);
}
