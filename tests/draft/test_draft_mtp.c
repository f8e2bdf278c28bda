/* test_draft_mtp.c - unit tests of the drafter mtp: compares its trees with the layer for multi-token prediction in
 * double precision, each node by itself over its own path, and with the reference backend; compares steps with prompts;
 * tests the text in the engine; layers made by hand that predict a target's rule, but would not if tokens or hidden
 * states were one place off; and files that are refused. */
#include "learned_rig.h"

#include "gguf/gguf_write.h"
#include "gguf/tensor_type.h"
#include "compute/backend.h"
#include "model_patch.h"
#include "plain_mtp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { H = MTP_EMBD, V = MTP_VOCAB, N_LAYER = MTP_LAYERS, N_TEXT = 14 };

#define BLOCK "blk.4."
#define TARGET "build/mtp-target.gguf"

static const RandomModel models[] = {
    {MTP_SHAPE("qwen35"), .n_nextn = 1, .seed = 1},
    {MTP_SHAPE("qwen35"), .n_nextn = 1, .nextn_head = true, .types = {TYPE_Q8_0, TYPE_F16}, .n_types = 2, .seed = 2},
    {MTP_SHAPE("qwen35"), .n_nextn = 1, .tied = true, .types = {TYPE_F16}, .n_types = 1, .seed = 3},
};
static const RandomModel experts[] = {
    {MTP_SHAPE("qwen35moe"), .n_nextn = 1, .n_expert = 6, .n_expert_used = 2, .n_ff_expert = 32, .n_ff_shared = 40,
     .seed = 4},
    {MTP_SHAPE("qwen3next"), .n_nextn = 1, .n_expert = 5, .n_expert_used = 3, .n_ff_expert = 24, .n_ff_shared = 32,
     .seed = 5},
};

static void write_model(const RandomModel *m, const char *path) {
    fr_error err;
    if (random_model_write(m, path, &err)) fail_msg("%s", err.message);
}

static void follow(const void *plain, const void *before, int32_t token, void *place) {
    plain_mtp_run(plain, before, token, ((const PlainMtpRow *)before)->feature, place);
}

/* Compares proposals for three sequences together with the search over the layer above, and with those for each
 * sequence by itself. */
static void check_trees(const LearnedReader *reader, const PlainMtp *plain, int32_t depth, int32_t top) {
    static const int32_t budgets[] = {60, 2, 17};
    static PlainMtpRow entries[3][N_TEXT];
    static Tree want[3];
    LearnedReader r = *reader;
    char spec[64];
    snprintf(spec, sizeof spec, "mtp:depth=%d,top=%d", depth, top);
    Drafter *d = learned_rig_open_drafter(&r, spec, 4);
    for (int32_t i = 0; i < 3; i++) {
        int32_t text[N_TEXT], n = N_TEXT - 2 * i;
        rig_tokens(50 + (uint64_t)i, V, text, n);
        learned_rig_feed(&r, d, i + 1, text, n, 3 + i);
        for (int32_t t = 0; t < n - 1; t++) {
            double hidden[H];
            for (int32_t c = 0; c < H; c++) hidden[c] = (double)executor_hidden(r.executor, t)[c];
            plain_mtp_run(plain, t ? &entries[i][t - 1] : NULL, text[t + 1], hidden, &entries[i][t]);
        }
        const PlainMtpRow *root = &entries[i][n - 2];
        learned_rig_search(&(LearnedSearch){V, depth, top, budgets[i], follow, sizeof *root, plain, root}, text[n - 1],
                           &want[i]);
    }
    learned_rig_check_proposals(d, want, budgets, V, spec);
    drafter_close(d);
}

static void trees_are_those_of_the_plain_layer(void **state) {
    (void)state;
    static const int32_t shapes[][2] = {{1, 4}, {4, 1}, {3, 3}, {5, 8}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        Gguf *g = rig_random_gguf(&models[m]);
        Weights *target = rig_weights(g, NULL);
        PlainMtp plain = plain_mtp_read(g, target->model, 0);
        LearnedReader reader;
        learned_rig_open_reader(&reader, target);
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            check_trees(&reader, &plain, shapes[k][0], shapes[k][1]);
        learned_rig_close_reader(&reader);
        plain_mtp_free(&plain);
        rig_weights_close(target);
        gguf_close(g);
    }
}

/* Both backends draft the same trees, with experts as well. */
static void both_backends_draft_the_same(void **state) {
    (void)state;
    for (size_t m = 0; m < 2 + sizeof experts / sizeof *experts; m++) {
        static Tree trees[2];
        for (int b = 0; b < 2; b++) {
            Gguf *g = rig_random_gguf(m < 2 ? &models[m] : &experts[m - 2]);
            Weights *target = rig_weights_in(b ? &backend_reference : &backend_cpu, g);
            LearnedReader reader;
            int32_t text[N_TEXT];
            learned_rig_open_reader(&reader, target);
            Drafter *d = learned_rig_open_drafter(&reader, "mtp:depth=3,top=3", 1);
            rig_tokens(5 + m, V, text, N_TEXT);
            learned_rig_feed(&reader, d, 0, text, N_TEXT, 4);
            rig_propose(d, 0, text[N_TEXT - 1], 8, V, &trees[b]);
            drafter_close(d);
            learned_rig_close_reader(&reader);
            rig_weights_close(target);
            gguf_close(g);
        }
        learned_rig_assert_alike(&trees[1], &trees[0], 2e-2, m < 2 ? "dense" : "experts");
    }
}

/* ---- sequences ------------------------------------------------------------------------------------ */

static void steps_lead_where_prompts_lead(void **state) {
    (void)state;
    for (int m = 0; m < 2; m++) {
        Gguf *g = rig_random_gguf(m ? &experts[0] : &models[0]);
        Weights *target = rig_weights(g, NULL);
        learned_rig_check_step(target, "mtp");
        learned_rig_check_together(target, "mtp:depth=3,top=4");
        rig_weights_close(target);
        gguf_close(g);
    }
}

static void the_text_is_the_plain_one(void **state) {
    (void)state;
    write_model(&models[0], TARGET);
    learned_rig_check_lossless(TARGET, "mtp:depth=4,top=8");
    write_model(&models[1], TARGET);
    learned_rig_check_lossless(TARGET, "mtp");
    write_model(&experts[0], TARGET);
    learned_rig_check_lossless(TARGET, "mtp:depth=2,top=8");
}

/* ---- a rule that the layer knows ---------------------------------------------------------------------- */

enum { RULE_H = 320, RULE_V = 320, N_ROW = 320, RULE_TOKENS = 60, RULE_PROMPT = 12 };

/* The target continues x with rule(x). */
static int32_t rule(int32_t x) { return x < 3 ? 3 : 3 + (x - 3 + 7) % (RULE_V - 3); }

/* The input that the layer uses: E(x_{t+1}) or h_t, with which it is right; or h_t as if it were h_{t+1}, with which it
 * would be right if states were passed one place late. */
typedef enum Source { BY_TOKEN, BY_HIDDEN, BY_HIDDEN_LATE } Source;

static void damp(ModelPatch *p, const char *name, float factor) {
    if (!gguf_find_tensor(p->gguf, name)) return;
    const GgufTensor *t = gguf_find_tensor(p->gguf, name);
    float *x = model_patch_tensor(p, name);
    for (int64_t i = 0; i < t->dims[0] * t->dims[1]; i++) x[i] *= factor;
}

/* A random model whose layers add little to one-hot embeddings, so that the LM head, a permutation, continues each
 * token by the rule; its layer for multi-token prediction applies the rule to the one-hot vector if it starts from
 * x_t. */
static void write_rule_model(const char *path, Source source) {
    const RandomModel m = {MTP_SHAPE("qwen35"), .n_nextn = 1, .seed = 8};
    RandomModel wide = m;
    ModelPatch p;
    wide.n_embd = RULE_H, wide.n_vocab = RULE_V;
    write_model(&wide, path);
    model_patch_open(&p, path);
    for (int32_t i = 0; i <= N_LAYER; i++) {
        static const char *const adding[] = {"attn_output.weight", "ssm_out.weight", "ffn_down.weight"};
        for (int k = 0; k < 3; k++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s", i, adding[k]);
            damp(&p, name, 0.02f);
        }
    }
    float *embedding = model_patch_tensor(&p, "token_embd.weight"), *head = model_patch_tensor(&p, "output.weight"),
          *eh = model_patch_tensor(&p, BLOCK "nextn.eh_proj.weight");
    memset(embedding, 0, sizeof(float) * RULE_V * RULE_H);
    memset(head, 0, sizeof(float) * RULE_V * RULE_H);
    memset(eh, 0, sizeof(float) * 2 * RULE_H * RULE_H);
    for (int32_t x = 0; x < RULE_V; x++) {
        embedding[x * RULE_H + x] = 1;
        head[rule(x) * RULE_H + x] += 0.5f;
        eh[(source == BY_HIDDEN ? rule(x) : x) * 2 * RULE_H + (source == BY_TOKEN ? 0 : RULE_H) + x] = 1;
    }
    model_patch_write(&p, path);
    model_patch_close(&p);
}

static double accepted_share(const char *path, float temperature, Stream *got) {
    const char *spec = "mtp:depth=3,top=1";
    int32_t prompt[RULE_PROMPT] = {20};
    for (int i = 1; i < RULE_PROMPT; i++) prompt[i] = rule(prompt[i - 1]);
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = RULE_PROMPT,
                            .max_tokens = RULE_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = &spec,
                            .n_drafts = 1,
                            .tree_budget = 3,
                            .ignore_eos = 1};
    o.sampling.temperature = temperature, o.sampling.seed = 3;
    fr_model *model = rig_open_model(path, NULL);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                               .n_ctx = 128,
                                                               .n_threads = 1,
                                                               .prefill_chunk = 5});
    rig_run_request(e, &o, got);
    fr_engine_close(e);
    fr_model_close(model);
    assert_string_equal(got->draft_error, "");
    assert_true(got->stats.drafted > 30);
    return (double)got->stats.accepted / (double)got->stats.drafted;
}

static void a_layer_that_knows_the_rule_is_right(void **state) {
    (void)state;
    static const struct {
        Source source;
        double least, most; /* the share of drafted nodes that are accepted */
    } cases[] = {{BY_TOKEN, 0.95, 1}, {BY_HIDDEN, 0.95, 1}, {BY_HIDDEN_LATE, 0, 0.05}};
    static Stream got;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_rule_model(TARGET, cases[i].source);
        for (int k = 0; k < 2; k++) {
            double share = accepted_share(TARGET, k ? 0.7f : 0, &got);
            print_message("case %zu, temperature %g: %d of %d drafts accepted, %d tokens in %d steps\n", i,
                          k ? 0.7 : 0.0, (int)got.stats.accepted, (int)got.stats.drafted, (int)got.n,
                          (int)got.stats.n_steps);
            if (share < cases[i].least - 0.2 * k || share > cases[i].most) fail_msg("case %zu: %g", i, share);
        }
        if (i < 2) assert_true(got.stats.n_steps < RULE_TOKENS / 2);
    }
}

/* ---- a companion file ------------------------------------------------------------------------------------ */

#define COMPANION "build/mtp-companion.gguf"
#define BARE "build/mtp-bare.gguf" /* the target without the layers */

/* Divides TARGET into a model and its companion, as published files are. */
static void divide_target(void) {
    fr_error err;
    Gguf *g = rig_gguf(TARGET);
    for (int is_companion = 0; is_companion < 2; is_companion++) {
        GgufWriter *w = gguf_writer_new();
        if (!is_companion) {
            gguf_set_u32(w, "qwen35.block_count", N_LAYER);
            gguf_set_u32(w, "qwen35.nextn_predict_layers", 0);
        }
        gguf_copy_kvs(w, g, NULL);
        for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
            const GgufTensor *t = gguf_tensor(g, i);
            int layer = -1;
            bool of_nextn = sscanf(t->name, "blk.%d.", &layer) == 1 && layer >= N_LAYER;
            if (is_companion ? of_nextn || layer < 0 : !of_nextn)
                gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
        }
        if (gguf_writer_finish(w, is_companion ? COMPANION : BARE, &err)) fail_msg("%s", err.message);
        gguf_writer_free(w);
    }
    gguf_close(g);
}

static void companion_text(const char *model_path, const char *spec, float temperature, Stream *got) {
    int32_t prompt[N_TEXT];
    rig_tokens(5, V, prompt, N_TEXT);
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = N_TEXT,
                            .max_tokens = 20,
                            .sampling = fr_sampling_default(),
                            .drafts = &spec,
                            .n_drafts = 1,
                            .tree_budget = 6,
                            .ignore_eos = 1};
    o.sampling.temperature = temperature, o.sampling.seed = 3;
    fr_model *model = rig_open_model(model_path, NULL);
    fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 64});
    rig_run_request(e, &o, got);
    fr_engine_close(e);
    fr_model_close(model);
    assert_string_equal(got->draft_error, "");
}

/* The layer drafts from a file of its own what it drafts from the target's file. */
static void a_companion_drafts_the_same(void **state) {
    (void)state;
    static Stream whole, divided;
    for (size_t i = 0; i < 1 + sizeof models / sizeof *models; i++) {
        RandomModel m = models[i ? i - 1 : 1];
        if (i == 0) m.n_nextn = 3; /* each with an embedding and an LM head */
        write_model(&m, TARGET);
        divide_target();
        for (int k = 0; k < 2; k++) {
            companion_text(TARGET, "mtp", k ? 0.8f : 0, &whole);
            companion_text(BARE, "mtp:file=" COMPANION, k ? 0.8f : 0, &divided);
            rig_assert_same(&whole, &divided, "a companion");
            assert_true(whole.stats.drafted > 20);
            assert_int_equal(whole.stats.drafted, divided.stats.drafted);
            assert_int_equal(whole.stats.accepted, divided.stats.accepted);
        }
    }
    learned_rig_check_lossless(BARE, "mtp:file=" COMPANION);
}

static void companions_of_other_models_are_refused(void **state) {
    (void)state;
    static const struct {
        int32_t n_head_kv, n_layer;
        const char *arch, *says;
    } cases[] = {{1, N_LAYER, "qwen35", "has 1 KV heads, but the target " BARE " has 2"},
                 {2, 2, "qwen35", "has 2 layers before that for multi-token prediction"},
                 {2, N_LAYER, "llama", "has the architecture llama, but its target " BARE " has qwen35"}};
    fr_error err;
    write_model(&models[0], TARGET);
    divide_target();
    fr_model *model = rig_open_model(BARE, NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RandomModel m = models[0];
        m.arch = cases[i].arch, m.n_head_kv = cases[i].n_head_kv, m.n_layer = cases[i].n_layer;
        if (strcmp(m.arch, "llama") == 0) m.n_nextn = 0;
        write_model(&m, TARGET);
        assert_int_equal(fr_engine_open_draft(e, "mtp:file=" TARGET, &err), FR_ERR_MISMATCH);
        if (!strstr(err.message, cases[i].says)) fail_msg("'%s' is not in '%s'", cases[i].says, err.message);
    }
    assert_int_equal(fr_engine_open_draft(e, "mtp:file=" BARE, &err), FR_ERR_UNSUPPORTED);
    assert_int_equal(fr_engine_open_draft(e, "mtp:file=/nowhere.gguf", &err), FR_ERR_IO);
    fr_engine_close(e);
    fr_model_close(model);
    unlink(BARE);
    unlink(COMPANION);
}

/* ---- files that are refused ----------------------------------------------------------------------------- */

/* Returns the place of a tensor's name in its entry. After it come the number of dimensions (4 bytes), and each
 * dimension (8 bytes). */
static char *find_name(ModelPatch *p, const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i + n < p->n; i++)
        if (memcmp(p->bytes + i, name, n) == 0) return p->bytes + i;
    fail_msg("%s is not in the file", name);
    return NULL;
}

/* The model itself runs. */
static void expect_refusal(const char *path, fr_code code, const char *says) {
    Gguf *g = rig_gguf(path);
    Weights *target = rig_weights(g, NULL);
    learned_rig_check_refused(target, "mtp", code, says);
    learned_rig_check_refused(target, "mtp", code, "or another drafter");
    rig_weights_close(target);
    gguf_close(g);
}

static void files_without_the_layer_are_refused(void **state) {
    (void)state;
    RandomModel m = models[0];
    m.n_nextn = 0;
    write_model(&m, TARGET);
    expect_refusal(TARGET, FR_ERR_UNSUPPORTED, "no layer for multi-token prediction (qwen35.nextn_predict_layers)");
    learned_rig_write_target(TARGET, 1);
    expect_refusal(TARGET, FR_ERR_UNSUPPORTED, "no layer for multi-token prediction (llama.nextn_predict_layers)");
}

/* The file has two such layers. A tensor of the second is moved to the first, which is read before it, or is called
 * something else. */
static void missing_tensors_are_refused(void **state) {
    (void)state;
    static const char *const names[] = {
        "nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight",         "attn_norm.weight", "attn_q.weight",
        "attn_k_norm.weight",   "attn_output.weight", "post_attention_norm.weight", "ffn_down.weight"};
    RandomModel m = models[0];
    m.n_nextn = 2;
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        ModelPatch p;
        char name[64], second[64], says[128];
        snprintf(name, sizeof name, BLOCK "%s", names[i / 2]);
        snprintf(second, sizeof second, "blk.5.%s", names[i / 2]);
        snprintf(says, sizeof says, "tensor %s is missing", i % 2 ? second : name);
        write_model(&m, TARGET);
        model_patch_open(&p, TARGET);
        char *of_second = find_name(&p, second);
        if (i % 2 == 0) memcpy(find_name(&p, name), second, strlen(second));
        memcpy(of_second, "blk.5.x", 7); /* no name occurs twice */
        model_patch_write(&p, TARGET);
        model_patch_close(&p);
        expect_refusal(TARGET, FR_ERR_FORMAT, says);
    }
}

static void damaged_tensors_are_refused(void **state) {
    (void)state;
    const int64_t exchanged[] = {H, 2 * H};
    ModelPatch p;
    write_model(&models[0], TARGET);
    model_patch_open(&p, TARGET);
    const char *name = BLOCK "nextn.eh_proj.weight";
    memcpy(find_name(&p, name) + strlen(name) + 4, exchanged, sizeof exchanged);
    model_patch_write(&p, TARGET);
    model_patch_close(&p);
    expect_refusal(TARGET, FR_ERR_FORMAT, "nextn.eh_proj.weight has the wrong shape: 64 x 128 where 128 x 64 fits");

    model_patch_open(&p, TARGET);
    memcpy(find_name(&p, name) + strlen(name) + 4, (int64_t[]){2 * H, H}, sizeof exchanged);
    ((float *)model_patch_tensor(&p, BLOCK "ffn_up.weight"))[77] = NAN;
    model_patch_write(&p, TARGET);
    model_patch_close(&p);
    expect_refusal(TARGET, FR_ERR_FORMAT, "tensor " BLOCK "ffn_up.weight holds NaN or infinity");

    write_model(&models[0], TARGET);
    model_patch_open(&p, TARGET);
    name = BLOCK "nextn.shared_head_norm.weight"; /* the tensor is optional, and its new name is unknown */
    memcpy(find_name(&p, name), BLOCK "nextn.shared_tail", strlen(BLOCK "nextn.shared_tail"));
    model_patch_write(&p, TARGET);
    model_patch_close(&p);
    expect_refusal(TARGET, FR_ERR_UNSUPPORTED, "nextn.shared_tail_norm.weight is not part of architecture qwen35");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trees_are_those_of_the_plain_layer),  cmocka_unit_test(both_backends_draft_the_same),
        cmocka_unit_test(steps_lead_where_prompts_lead),       cmocka_unit_test(a_layer_that_knows_the_rule_is_right),
        cmocka_unit_test(files_without_the_layer_are_refused), cmocka_unit_test(missing_tensors_are_refused),
        cmocka_unit_test(damaged_tensors_are_refused),         cmocka_unit_test(the_text_is_the_plain_one),
        cmocka_unit_test(a_companion_drafts_the_same),         cmocka_unit_test(companions_of_other_models_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
