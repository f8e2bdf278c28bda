/* test_draft_mtp_assistant_files.c - files of assistants of Gemma 4 in the engine: the text is that of plain decoding;
 * an assistant made by hand that knows its target's rule is always right; and files and targets that do not fit are
 * refused. */
#include "assistant_rig.h"
#include "model_patch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BROKEN "build/assistant-broken.gguf"

enum { T = ASSISTANT_WIDTH, V = ASSISTANT_VOCAB, DIM = ASSISTANT_DIM, WINDOW = ASSISTANT_WINDOW };

/* ---- in the engine ------------------------------------------------------------------------------------ */

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    learned_rig_check_lossless(assistant_targets[0].path, "mtp:file=build/assistant-0.gguf,depth=3,top=8");
    learned_rig_check_lossless(assistant_targets[1].path, "mtp:file=build/assistant-1.gguf");
    learned_rig_check_lossless(assistant_targets[0].path, "mtp:file=build/assistant-3.gguf,depth=3,top=8");
}

static void generate(const fr_model *m, const fr_engine_options *options, const char *spec, float temperature,
                     Stream *out) {
    int32_t prompt[ASSISTANT_TEXT];
    rig_tokens(9, V, prompt, ASSISTANT_TEXT);
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = ASSISTANT_TEXT,
                            .max_tokens = 30,
                            .sampling = fr_sampling_default(),
                            .drafts = &spec,
                            .n_drafts = spec ? 1 : 0,
                            .tree_budget = 8,
                            .ignore_eos = 1};
    o.sampling.temperature = temperature, o.sampling.seed = 4;
    fr_engine *e = rig_open_engine(m, options);
    rig_run_request(e, &o, out);
    rig_run_request(e, &o, out); /* it takes over the prompt of the first one */
    fr_engine_close(e);
    assert_string_equal(out->draft_error, "");
}

/* With a cache of bytes and in the reference backend, where layers with a window have pages of their own. */
static void no_cache_changes_the_text(void **state) {
    (void)state;
    static Stream plain, drafted;
    for (int i = 0; i < ASSISTANT_TARGETS; i++)
        for (int k = 0; k < 2; k++) {
            fr_model *m = rig_open_model_in(assistant_targets[i].path, k ? "reference" : "cpu");
            const fr_engine_options o = {.struct_size = sizeof o,
                                         .n_ctx = 1024,
                                         .kv_page_size = 4,
                                         .kv_type = k ? FR_KV_F16 : FR_KV_Q8,
                                         .prefill_chunk = 7};
            const char *spec = i ? "mtp:file=build/assistant-1.gguf" : "mtp:file=build/assistant-2.gguf";
            generate(m, &o, NULL, (float)k, &plain);
            generate(m, &o, spec, (float)k, &drafted);
            rig_assert_same(&plain, &drafted, spec);
            assert_true(drafted.stats.drafted > 100);
            fr_model_close(m);
        }
}

/* ---- a rule that the assistant knows ---------------------------------------------------------------------- */

#define RULE_TARGET "build/assistant-rule-target.gguf"
#define RULE_FILE "build/assistant-rule.gguf"
enum { RULE_FIRST = 3, RULE_TOKENS = 60, RULE_PROMPT = 12 };

/* The target continues x with rule(x). The embedding of x is 1 in place x, for RULE_TOKENS tokens. */
static int32_t rule(int32_t x) { return RULE_FIRST + (x - RULE_FIRST + 7) % RULE_TOKENS; }

/* Sets all numbers of a tensor that the file has. */
static float *set_all(ModelPatch *p, const char *name, float value) {
    const GgufTensor *t = gguf_find_tensor(p->gguf, name);
    float *x = t ? model_patch_tensor(p, name) : NULL;
    for (int64_t i = 0; t && i < t->dims[0] * t->dims[1]; i++) x[i] = value;
    return x;
}

/* Lets the layers of a file add nothing, and makes a permutation by the rule of the matrix [V][T] `head`. */
static void begin_rule(ModelPatch *p, const char *path, const char *head) {
    model_patch_open(p, path);
    for (int32_t i = 0; i < 2 * ASSISTANT_LAYERS; i++) {
        static const char *const names[] = {"post_attention_norm", "post_ffw_norm", "layer_output_scale"};
        for (int k = 0; k < 3; k++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, names[k]);
            set_all(p, name, k == 2);
        }
    }
    set_all(p, "output_norm.weight", 1);
    float *w = set_all(p, head, 0);
    for (int32_t x = RULE_FIRST; x < RULE_FIRST + RULE_TOKENS; x++) w[rule(x) * T + x] = 1;
}

static void end_rule(ModelPatch *p, const char *path) {
    model_patch_write(p, path);
    model_patch_close(p);
}

/* What the assistant follows the rule from: the token; the hidden state before it; or that state as if it were the
 * token's own. */
typedef enum Source { BY_TOKEN, BY_STATE, BY_STATE_LATE } Source;

static void write_rule(Source source) {
    static const AssistantFile f = {RULE_FILE, TYPE_F32, 0, T, 4, 2, WINDOW, {80, 80}, {true, false}, false, 0, 0};
    static AssistantRig w;
    ModelPatch p;
    begin_rule(&p, assistant_targets[0].path, "output.weight");
    float *embedding = set_all(&p, "token_embd.weight", 0);
    for (int32_t x = RULE_FIRST; x < RULE_FIRST + RULE_TOKENS; x++) embedding[x * T + x] = 1;
    end_rule(&p, RULE_TARGET);
    assistant_rig_write(&f, &w, 90);
    assistant_rig_free(&w);
    begin_rule(&p, RULE_FILE, "token_embd.weight");
    float *before = set_all(&p, "nextn.pre_projection.weight", 0);
    float *after = set_all(&p, "nextn.post_projection.weight", 0);
    for (int32_t x = RULE_FIRST; x < RULE_FIRST + RULE_TOKENS; x++) {
        before[(source == BY_STATE ? rule(x) : x) * 2 * T + (source == BY_TOKEN ? 0 : T) + x] = 1;
        after[x * T + x] = 1;
    }
    end_rule(&p, RULE_FILE);
}

static void an_assistant_that_knows_the_rule_is_right(void **state) {
    (void)state;
    static const char *const spec = "mtp:depth=3,top=1,file=" RULE_FILE;
    static Stream got;
    for (int source = BY_TOKEN; source <= BY_STATE_LATE; source++) {
        int32_t prompt[RULE_PROMPT] = {20};
        for (int i = 1; i < RULE_PROMPT; i++) prompt[i] = rule(prompt[i - 1]);
        write_rule((Source)source);
        fr_model *m = rig_open_model(RULE_TARGET, NULL);
        fr_engine *e = rig_open_engine(m, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 64});
        rig_run_request(e,
                        &(fr_request_options){.struct_size = sizeof(fr_request_options),
                                              .prompt = prompt,
                                              .n_prompt = RULE_PROMPT,
                                              .max_tokens = 40,
                                              .sampling = fr_sampling_default(),
                                              .drafts = &spec,
                                              .n_drafts = 1,
                                              .tree_budget = 3,
                                              .ignore_eos = 1},
                        &got);
        fr_engine_close(e);
        fr_model_close(m);
        for (int64_t i = 0; i < got.n; i++)
            assert_int_equal(got.tokens[i], rule(i ? got.tokens[i - 1] : prompt[RULE_PROMPT - 1]));
        assert_string_equal(got.draft_error, "");
        assert_true(got.stats.drafted >= 27);
        assert_int_equal(got.stats.accepted, source == BY_STATE_LATE ? 0 : got.stats.drafted);
    }
}

/* ---- what does not fit -------------------------------------------------------------------------------- */

/* path NULL: without a file. */
static void refuse_open(const DrafterEnv *env, const char *path, fr_code code, const char *words) {
    Drafter *d;
    fr_error err = {0};
    char spec[96] = "mtp";
    if (path) snprintf(spec, sizeof spec, "mtp:file=%s", path);
    int status = drafter_open(&d, spec, env, 0, &err);
    drafter_close(d);
    if (status != (int)code || !strstr(err.message, words))
        fail_msg("status %d, '%s' does not contain '%s'", status, err.message, words);
}

/* A change of a file: other keys; and other numbers of a tensor, whose last dimension becomes n (0: it is missing). */
typedef struct Change {
    void (*set)(GgufWriter *w);
    const char *tensor;
    const float *numbers; /* NULL: the first ones of the tensor */
    int64_t n;
} Change;

/* Writes the first file with that change, and expects an error with these words for its target. */
static void refuse(Change c, fr_code code, const char *words) {
    Executor *e = assistant_rig_reader(assistant_targets[0].weights, KV_F16);
    const DrafterEnv env = assistant_rig_env(e);
    Gguf *g = rig_gguf(assistant_files[0].path);
    GgufWriter *w = gguf_writer_new();
    fr_error err;
    if (c.set) c.set(w);
    gguf_copy_kvs(w, g, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        int64_t dims[] = {t->dims[0], t->dims[1]};
        bool is_other = c.tensor && strcmp(t->name, c.tensor) == 0;
        if (is_other) dims[t->n_dims - 1] = c.n;
        if (!is_other || c.n)
            gguf_add_tensor(w, t->name, t->type, t->n_dims, dims,
                            is_other && c.numbers ? (const void *)c.numbers : t->data);
    }
    if (gguf_writer_finish(w, BROKEN, &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    gguf_close(g);
    refuse_open(&env, BROKEN, code, words);
    rig_executor_close(e);
}

static void set_width(GgufWriter *w) { assistant_set_int(w, "embedding_length_out", 96); }
static void set_window(GgufWriter *w) { assistant_set_int(w, "attention.sliding_window", WINDOW + 1); }
static void set_no_window(GgufWriter *w) { assistant_set_int(w, "attention.sliding_window", 1); }
static void set_pattern(GgufWriter *w) { assistant_set_int(w, "attention.sliding_window_pattern", 2); }
static void set_heads(GgufWriter *w) {
    assistant_set_int(w, "attention.key_length_swa", 8);
    assistant_set_int(w, "attention.value_length_swa", 8);
}
static void set_values(GgufWriter *w) { assistant_set_int(w, "attention.value_length_swa", 8); }
static void set_kv_heads(GgufWriter *w) { assistant_set_int(w, "attention.head_count_kv", 1); }
static void set_uneven_heads(GgufWriter *w) { assistant_set_list(w, "attention.head_count", (int32_t[]){3, 4, 4}, 3); }
static void set_base(GgufWriter *w) { assistant_set_float(w, "rope.freq_base_swa", 10000); }
static void set_rotation(GgufWriter *w) { assistant_set_int(w, "rope.dimension_count_swa", 8); }
static void set_ple(GgufWriter *w) { assistant_set_int(w, "embedding_length_per_layer_input", 8); }
static void set_experts(GgufWriter *w) { assistant_set_int(w, "expert_count", 4); }
static void set_layers(GgufWriter *w) {
    assistant_set_int(w, "block_count", 17);
    assistant_set_int(w, "attention.head_count_kv", 2);
}
static void add_keys(GgufWriter *w) {
    static const float keys[48 * 32] = {0};
    gguf_add_tensor(w, "blk.0.attn_k.weight", TYPE_F32, 2, (int64_t[]){48, 32}, keys);
}
/* Adds n clusters of an LM head; their tokens are all of them, but the last is listed as `last`. */
static void add_clusters(GgufWriter *w, int64_t n, int32_t last) {
    static const float centroids[48 * V] = {0};
    static int32_t tokens[V];
    for (int32_t i = 0; i < V; i++) tokens[i] = i;
    tokens[V - 1] = last;
    gguf_add_tensor(w, "masked_embd_centroids.weight", TYPE_F32, 2, (int64_t[]){48, n}, centroids);
    gguf_add_clusters(w, tokens, V);
}
static void add_uneven_clusters(GgufWriter *w) { add_clusters(w, 7, V - 1); }
static void add_few_clusters(GgufWriter *w) { add_clusters(w, 10, V - 1); }
static void add_twice(GgufWriter *w) { add_clusters(w, 50, 0); }
static void add_no_token(GgufWriter *w) { add_clusters(w, 50, V); }
static void add_other_clusters(GgufWriter *w) {
    assistant_set_int(w, "n_centroids", 60);
    add_clusters(w, 50, V - 1);
}
static void add_unused_clusters(GgufWriter *w) {
    gguf_set_bool(w, "gemma4-assistant.use_ordered_embeddings", false);
    add_clusters(w, 50, V - 1);
}
static void add_centroids(GgufWriter *w) {
    static const float centroids[48 * 50] = {0};
    gguf_add_tensor(w, "masked_embd_centroids.weight", TYPE_F32, 2, (int64_t[]){48, 50}, centroids);
}
static void add_half_tokens(GgufWriter *w) {
    static const float tokens[V / 2] = {0};
    add_centroids(w);
    gguf_add_tensor(w, "masked_embd_ordering", TYPE_F32, 1, (int64_t[]){V / 2}, tokens);
}
static void add_fractions(GgufWriter *w) {
    static const float tokens[V] = {0.5f};
    add_centroids(w);
    gguf_add_tensor(w, "masked_embd_ordering", TYPE_F32, 1, (int64_t[]){V}, tokens);
}
static void set_vocabulary(GgufWriter *w) {
    static const GgufString tokens[] = {{"a", 1}, {"b", 1}};
    gguf_set_strings(w, "tokenizer.ggml.tokens", tokens, 2);
}

static void files_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const struct {
        void (*set)(GgufWriter *w);
        fr_code code;
        const char *words;
    } cases[] = {
        {set_width, FR_ERR_MISMATCH, "hidden states of 96 numbers, and those of this target have 64"},
        {set_window, FR_ERR_MISMATCH, "its layer 0 sees 10 positions, but layer 4 of"},
        {set_no_window, FR_ERR_FORMAT, "attention.sliding_window is 1, but must be at least 2"},
        {set_pattern, FR_ERR_FORMAT, "sliding_window_pattern is missing, or is no list"},
        {set_heads, FR_ERR_MISMATCH, "with 8 numbers in a key, but layer 4 of"},
        {set_values, FR_ERR_UNSUPPORTED, "value_length_swa is not"},
        {set_kv_heads, FR_ERR_MISMATCH, "with 1 KV heads, but layer 4 of"},
        {set_uneven_heads, FR_ERR_FORMAT, "3 heads cannot share 2 key-value heads evenly in layer 0"},
        {set_base, FR_ERR_MISMATCH, "with 10000 as the base of rope"},
        {set_rotation, FR_ERR_MISMATCH, "with 8 rotated numbers in a key"},
        {set_ple, FR_ERR_UNSUPPORTED, "per-layer embeddings"},
        {set_experts, FR_ERR_UNSUPPORTED, "expert_count"},
        {set_layers, FR_ERR_FORMAT, "block_count is 17"},
        {add_keys, FR_ERR_UNSUPPORTED, "tensor blk.0.attn_k.weight, which its method does not read"},
        {set_vocabulary, FR_ERR_MISMATCH, "2 tokens"},
        {add_uneven_clusters, FR_ERR_FORMAT, "has 7 clusters, which do not divide 300 tokens evenly"},
        {add_few_clusters, FR_ERR_FORMAT, "centroid_top_k is 32, but there are only 10 clusters"},
        {add_twice, FR_ERR_FORMAT, "item 299 of tensor masked_embd_ordering is 0, which is not a token"},
        {add_no_token, FR_ERR_FORMAT, "item 299 of tensor masked_embd_ordering is 300, which is not a token"},
        {add_other_clusters, FR_ERR_FORMAT, "has 50 clusters, but its key gemma4-assistant.n_centroids is 60"},
        {add_unused_clusters, FR_ERR_UNSUPPORTED,
         "tensor masked_embd_centroids.weight, which its method does not read"},
        {add_centroids, FR_ERR_FORMAT, "tensor masked_embd_ordering is missing"},
        {add_half_tokens, FR_ERR_FORMAT, "tensor masked_embd_ordering is not a list of 300 tokens"},
        {add_fractions, FR_ERR_FORMAT, "item 0 of tensor masked_embd_ordering is -1, which is not a token"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse((Change){.set = cases[i].set}, cases[i].code, cases[i].words);
}

static void tensors_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const float zero[] = {0}, not_finite[48] = {INFINITY}, zeros[DIM / 2] = {1, 1};
    float others[DIM / 2];
    for (int i = 0; i < DIM / 2; i++) others[i] = 1 + (float)i;
    const struct {
        const char *name;
        const float *numbers;
        int64_t n;
        fr_code code;
        const char *words;
    } cases[] = {
        {"nextn.post_projection.weight", NULL, 0, FR_ERR_FORMAT, "post_projection.weight is missing"},
        {"blk.1.attn_q_norm.weight", NULL, 0, FR_ERR_FORMAT, "blk.1.attn_q_norm.weight is missing"},
        {"blk.2.attn_q.weight", NULL, 64, FR_ERR_FORMAT, "48 x 64 instead of 48 x 128"},
        {"token_embd.weight", NULL, 200, FR_ERR_MISMATCH, "a target with 200 tokens"},
        {"blk.0.layer_output_scale.weight", zero, 1, FR_ERR_FORMAT, "layer 0 is multiplied by 0"},
        {"output_norm.weight", not_finite, 48, FR_ERR_FORMAT, "holds NaN or infinity"},
        {"rope_freqs.weight", zeros, DIM / 2, FR_ERR_FORMAT, "a number that is not above 0"},
        {"rope_freqs.weight", others, DIM / 2, FR_ERR_MISMATCH, "turns queries at other angles"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse((Change){.tensor = cases[i].name, .numbers = cases[i].numbers, .n = cases[i].n}, cases[i].code,
               cases[i].words);
}

static void targets_that_do_not_fit_are_refused(void **state) {
    (void)state;
    learned_rig_write_target(BROKEN, 3);
    Gguf *g = rig_gguf(BROKEN);
    Weights *llama = rig_weights(g, NULL);
    Executor *e = assistant_rig_reader(llama, KV_F16),
             *own = assistant_rig_reader(assistant_targets[0].weights, KV_F16);
    DrafterEnv env = assistant_rig_env(e);
    refuse_open(&env, assistant_files[0].path, FR_ERR_MISMATCH,
                "a target of the architecture gemma4, and " BROKEN " has llama");
    env = assistant_rig_env(own);
    refuse_open(&env, assistant_files[1].path, FR_ERR_MISMATCH,
                "belongs to another target: its layer 1 reads a layer with 1 KV heads");
    refuse_open(&env, NULL, FR_ERR_UNSUPPORTED, "pass the model's assistant, mtp:file=FILE");
    env.executor = NULL;
    refuse_open(&env, assistant_files[0].path, FR_ERR_UNSUPPORTED, "which this command does not share");
    rig_executor_close(own);
    rig_executor_close(e);
    rig_weights_close(llama);
    gguf_close(g);
    fr_error err;
    fr_model *m;
    assert_int_equal(fr_model_open(&m, assistant_files[0].path, NULL, &err), FR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "is a drafter, not a model"));
    assert_non_null(strstr(err.message, "--draft mtp:file=build/assistant-0.gguf"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_is_the_plain_one),
        cmocka_unit_test(no_cache_changes_the_text),
        cmocka_unit_test(an_assistant_that_knows_the_rule_is_right),
        cmocka_unit_test(files_that_do_not_fit_are_refused),
        cmocka_unit_test(tensors_that_do_not_fit_are_refused),
        cmocka_unit_test(targets_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, assistant_rig_open, assistant_rig_close);
}
