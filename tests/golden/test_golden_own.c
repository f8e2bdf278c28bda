/* test_golden_own.c - compares logits and greedy texts with values that other programs computed, all of them in this
 * repository.
 *
 * The models are small and random, of every architecture, kind of rope and tensor type that forerun runs;
 * random_model.c makes them again from their seeds. For each, tests/golden/data/NAME.json (whose README explains how it
 * was made) has
 *
 *   exact       whole rows of logits by a forward in double precision, written in Python for this purpose alone, of the
 *               dequantised weights and of inputs that are not rounded
 *   llama_cpp   the most probable tokens of some positions with their log-probabilities, by llama.cpp
 *   greedy      the most probable continuation, by the exact logits; llama.cpp chooses it too where it rounds little
 *
 * Tolerances. Exact rows, relative rms: 1e-5 for F32 and F16 (single precision alone; 1e-6 is measured), 5e-4 for
 * blocks (their inputs are rounded to 16 bits; 7e-5 is measured), 2e-2 for BF16 (both factors have 8 bits; 5e-3 is
 * measured), and for blocks with 8-bit activations 4e-2 (1.7e-2 is measured). llama.cpp's log-probabilities, rms:
 * `peer_tolerance`, for what llama.cpp rounds.
 *
 * Everything goes through `forerun logits` and the public API. `test_golden_own --write FOLDER` writes the models, for
 * make_golden.py. */
#include "testing.h"

#include "cli_rig.h"
#include "engine_rig.h"
#include "golden_cases.h"
#include "model_patch.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/golden/data/"

enum { MAX_TOKENS = 128 };

/* ---- the stored values --------------------------------------------------------------------------------- */

typedef struct Golden {
    json_t *file;
    int32_t tokens[MAX_TOKENS]; /* the prompt, then the greedy continuation */
    int32_t n_prompt, n;
} Golden;

static void append_tokens(Golden *g, const char *key) {
    const json_t *list = json_object_get(g->file, key);
    size_t i;
    json_t *token;
    json_array_foreach(list, i, token) {
        assert_true(g->n < MAX_TOKENS);
        g->tokens[g->n++] = (int32_t)json_integer_value(token);
    }
}

static Golden read_golden(const char *name) {
    char path[256];
    json_error_t error;
    Golden g = {0};
    snprintf(path, sizeof path, DATA "%s.json", name);
    g.file = json_load_file(path, 0, &error);
    if (!g.file) fail_msg("%s: %s", path, error.text);
    append_tokens(&g, "prompt");
    g.n_prompt = g.n;
    append_tokens(&g, "greedy");
    assert_true(g.n_prompt >= 8 && g.n - g.n_prompt >= 8);
    return g;
}

static void model_path(const struct Case *c, char *path, size_t n) {
    fr_error err = {0};
    snprintf(path, n, "%s/%s.gguf", cli_rig_folder(), c->name);
    if (random_model_write(&c->m, path, &err)) fail_msg("%s", err.message);
}

/* ---- logits --------------------------------------------------------------------------------------------- */

static float logits[MAX_TOKENS][N_VOCAB];

/* Fills `logits`: one row for each token of g. `options`: of forerun logits. */
static void compute_logits(const char *model, const Golden *g, const char *options) {
    char out[600], args[4000];
    int n_args = snprintf(args, sizeof args, "logits -m %s --kv f32 %s --tokens ", model, options);
    for (int32_t i = 0; i < g->n; i++)
        n_args += snprintf(args + n_args, sizeof args - (size_t)n_args, i ? ",%d" : "%d", g->tokens[i]);
    snprintf(out, sizeof out, "%s/golden.f32", cli_rig_folder());
    snprintf(args + n_args, sizeof args - (size_t)n_args, " -o %s", out);
    cli_expect(args, 0, "");
    FILE *f = fopen(out, "rb");
    assert_non_null(f);
    assert_int_equal(fread(logits, sizeof logits[0], (size_t)g->n, f), g->n);
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

/* Returns the relative rms error of all rows that are stored exactly. */
static double exact_error(const Golden *g) {
    const json_t *rows = json_object_get(g->file, "exact");
    json_t *row;
    size_t k;
    double error = 0, norm = 0;
    assert_true(json_array_size(rows) >= 2);
    json_array_foreach(rows, k, row) {
        json_int_t position = json_integer_value(json_object_get(row, "position"));
        const json_t *values = json_object_get(row, "logits");
        assert_true(position >= 0 && position < g->n && json_array_size(values) == N_VOCAB);
        for (size_t i = 0; i < N_VOCAB; i++) {
            double exact = json_number_value(json_array_get(values, i)), d = (double)logits[position][i] - exact;
            error += d * d, norm += exact * exact;
        }
    }
    return sqrt(error / norm);
}

static double log_sum_exp(const float *x) {
    double max = (double)x[0], sum = 0;
    for (int i = 1; i < N_VOCAB; i++) max = fmax(max, (double)x[i]);
    for (int i = 0; i < N_VOCAB; i++) sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* Returns the rms difference from the log-probabilities of llama.cpp. */
static double peer_error(const Golden *g) {
    const json_t *rows = json_object_get(g->file, "llama_cpp");
    json_t *row;
    size_t k;
    double error = 0;
    int n = 0;
    assert_true(json_array_size(rows) >= 4);
    json_array_foreach(rows, k, row) {
        json_int_t position = json_integer_value(json_object_get(row, "position"));
        const json_t *tokens = json_object_get(row, "tokens"), *values = json_object_get(row, "logprobs");
        assert_true(position >= 0 && position < g->n && json_array_size(values) == json_array_size(tokens));
        double total = log_sum_exp(logits[position]);
        for (size_t i = 0; i < json_array_size(tokens); i++, n++) {
            json_int_t token = json_integer_value(json_array_get(tokens, i));
            assert_true(token >= 0 && token < N_VOCAB);
            double d = (double)logits[position][token] - total - json_number_value(json_array_get(values, i));
            error += d * d;
        }
    }
    assert_true(n >= 32);
    return sqrt(error / n);
}

static void logits_are_the_stored_ones(void **state) {
    (void)state;
    static const struct {
        const char *options;
        double blocks; /* tolerance of models in blocks */
    } runs[] = {{"", BLOCKS}, {"--kernels ref -t 1", BLOCKS}, {"--act q8", 4e-2}, {"--backend reference", 1e-5}};
    for (int i = 0; i < N_CASES; i++) {
        Golden g = read_golden(cases[i].name);
        char model[600];
        model_path(&cases[i], model, sizeof model);
        for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
            compute_logits(model, &g, runs[k].options);
            double exact = exact_error(&g), peer = peer_error(&g);
            double tolerance = cases[i].tolerance == BLOCKS ? runs[k].blocks : cases[i].tolerance;
            print_message("%-20s %-18s exact %.2e  llama.cpp %.2e\n", cases[i].name, runs[k].options, exact, peer);
            if (!(exact <= tolerance))
                fail_msg("%s %s: relative rms error of the logits %.3e, at most %.3e", cases[i].name, runs[k].options,
                         exact, tolerance);
            if (!(peer <= cases[i].peer_tolerance))
                fail_msg("%s %s: log-probabilities differ from llama.cpp's by %.3e (rms), at most %.3e", cases[i].name,
                         runs[k].options, peer, cases[i].peer_tolerance);
        }
        json_decref(g.file);
    }
}

/* ---- negative controls: errors that the values above must detect ------------------------------------------------- */

static const struct Case *case_named(const char *name) {
    int i = 0;
    while (strcmp(cases[i].name, name) != 0) i++;
    return &cases[i];
}

static void expect_caught(const char *model, const Golden *g, const char *what) {
    compute_logits(model, g, "");
    double error = exact_error(g);
    print_message("%-32s error %.2e\n", what, error);
    if (!(error > 10 * TIGHT)) fail_msg("%s: not detected; the error is %.3e", what, error);
}

static void swap_halves(char *at, const GgufTensor *t) {
    char kept[4];
    size_t half = t->bytes / 2 / sizeof kept * sizeof kept;
    for (size_t k = 0; k < half; k += sizeof kept) {
        memcpy(kept, at + k, sizeof kept);
        memcpy(at + k, at + half + k, sizeof kept);
        memcpy(at + half + k, kept, sizeof kept);
    }
}

/* A convolution that is off by one position: each tap moves to the place of the next. */
static void shift_taps(char *at, const GgufTensor *t) {
    size_t row = (size_t)t->dims[0] * sizeof(float);
    for (int64_t i = 0; i < t->dims[1]; i++, at += row) {
        memmove(at + sizeof(float), at, row - sizeof(float));
        memset(at, 0, sizeof(float));
    }
}

static void change_is_caught(const struct Case *c, const Golden *g, const char *tensor,
                             void (*change)(char *at, const GgufTensor *t)) {
    char path[600], bad[600], name[64];
    ModelPatch p;
    model_path(c, path, sizeof path);
    snprintf(bad, sizeof bad, "%s/changed.gguf", cli_rig_folder());
    snprintf(name, sizeof name, "blk.1.%s", tensor);
    model_patch_open(&p, path);
    change(model_patch_tensor(&p, name), gguf_find_tensor(p.gguf, name));
    model_patch_write(&p, bad);
    model_patch_close(&p);
    expect_caught(bad, g, name);
}

/* Exchanges the halves of each tensor that only such layers have. */
static void a_wrong_recurrent_layer_is_detected(void **state) {
    (void)state;
    static const struct {
        const char *name, *taps, *others[8];
    } models[] = {
        {"lfm2-f32", "shortconv.conv.weight", {"shortconv.in_proj.weight", "shortconv.out_proj.weight"}},
        {"granitehybrid-f32",
         "ssm_conv1d.weight",
         {"ssm_in.weight", "ssm_conv1d.bias", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_norm.weight", "ssm_out.weight"}}};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        const struct Case *c = case_named(models[m].name);
        Golden g = read_golden(c->name);
        change_is_caught(c, &g, models[m].taps, shift_taps);
        for (int i = 0; models[m].others[i]; i++) change_is_caught(c, &g, models[m].others[i], swap_halves);
        json_decref(g.file);
    }
}

/* The same, and one of the experts' matrices. */
static void a_wrong_gpt_oss_is_detected(void **state) {
    (void)state;
    static const char *const tensors[] = {"attn_q.bias",        "attn_output.bias",   "attn_sinks.weight",
                                          "ffn_gate_inp.bias",  "ffn_gate_exps.bias", "ffn_up_exps.bias",
                                          "ffn_down_exps.bias", "ffn_up_exps.weight", "ffn_down_exps.weight"};
    struct Case c = *case_named("gpt-oss-f32");
    Golden g = read_golden(c.name);
    char path[600];
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) change_is_caught(&c, &g, tensors[i], swap_halves);
    for (int by = -1; by <= 1; by += 2) {
        c.m.window = case_named("gpt-oss-f32")->m.window + by;
        model_path(&c, path, sizeof path);
        expect_caught(path, &g, by < 0 ? "a window of one token less" : "a window of one token more");
    }
    json_decref(g.file);
}

/* The last rows of a matrix are the rotated part of the keys: shifts its components by one. */
static void rotate_rows(char *at, const GgufTensor *t) {
    enum { N_ROT = 10 };
    char kept[64 * sizeof(float)];
    size_t row = (size_t)t->dims[0] * sizeof(float);
    assert_int_equal(row, sizeof kept);
    at += (size_t)(t->dims[1] - N_ROT) * row;
    memcpy(kept, at, row);
    memmove(at, at + row, (N_ROT - 1) * row);
    memcpy(at + (N_ROT - 1) * row, kept, row);
}

static void a_wrong_deepseek2_is_detected(void **state) {
    (void)state;
    static const char *const tensors[] = {"attn_q_a_norm.weight",  "attn_q_b.weight",    "attn_kv_a_mqa.weight",
                                          "attn_kv_a_norm.weight", "attn_k_b.weight",    "attn_v_b.weight",
                                          "exp_probs_b.bias",      "ffn_up_shexp.weight"};
    const struct Case *c = case_named("deepseek2-groups-f32"), *joined = case_named("deepseek2-joined-f32");
    Golden g = read_golden(c->name), of_joined = read_golden(joined->name);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) change_is_caught(c, &g, tensors[i], swap_halves);
    change_is_caught(c, &g, "attn_kv_a_mqa.weight", rotate_rows);
    change_is_caught(joined, &of_joined, "attn_kv_b.weight", swap_halves);
    struct Case wrong[] = {*c, *c, *c, *c};
    wrong[0].m.n_groups = 0, wrong[1].m.n_groups_used++, wrong[2].m.yarn_log_multiplier = 0.0707;
    wrong[3].m.divides_by_chosen = false;
    for (int i = 0; i < 4; i++) {
        char path[600];
        model_path(&wrong[i], path, sizeof path);
        expect_caught(path, &g, "other groups, YaRN or weights");
    }
    json_decref(g.file), json_decref(of_joined.file);
}

static void a_wrong_glm4moe_is_detected(void **state) {
    (void)state;
    static const char *const tensors[] = {"attn_q.bias",        "attn_k.bias",        "attn_v.bias",
                                          "attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight",
                                          "exp_probs_b.bias",   "ffn_up_shexp.weight"};
    const struct Case *c = case_named("glm4moe-f32");
    Golden g = read_golden(c->name);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) change_is_caught(c, &g, tensors[i], swap_halves);
    struct Case wrong[] = {*c, *c, *c};
    wrong[0].m.n_rot -= 2, wrong[1].m.expert_scale = 1, wrong[2].m.divides_by_chosen = false;
    for (int i = 0; i < 3; i++) {
        char path[600];
        model_path(&wrong[i], path, sizeof path);
        expect_caught(path, &g, "another rotation, or other weights of experts");
    }
    json_decref(g.file);
}

/* Makes a factor larger by a hundredth. */
static void grow(char *at, const GgufTensor *t) {
    float x;
    (void)t;
    memcpy(&x, at, sizeof x);
    x *= 1.01f;
    memcpy(at, &x, sizeof x);
}

static void a_wrong_gemma4_is_detected(void **state) {
    (void)state;
    static const char *const tensors[] = {"attn_q_norm.weight", "attn_k_norm.weight", "post_attention_norm.weight",
                                          "inp_gate.weight",    "proj.weight",        "post_norm.weight"};
    const struct Case *c = case_named("gemma4-shared-f32");
    Golden g = read_golden(c->name);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) change_is_caught(c, &g, tensors[i], swap_halves);
    change_is_caught(c, &g, "layer_output_scale.weight", grow);
    static const char *const of_experts[] = {"ffn_gate_inp.scale",     "pre_ffw_norm_2.weight",
                                             "post_ffw_norm_1.weight", "post_ffw_norm_2.weight",
                                             "ffn_down_exps.scale",    "ffn_up.weight"};
    Golden with_experts = read_golden("gemma4-experts-f32");
    for (size_t i = 0; i < sizeof of_experts / sizeof *of_experts; i++)
        change_is_caught(case_named("gemma4-experts-f32"), &with_experts, of_experts[i], swap_halves);
    json_decref(with_experts.file);
    struct Case wrong[] = {*c, *c, *c};
    wrong[0].m.window--, wrong[1].m.rope_factors = false, wrong[2].m.rope_base *= 1.01;
    for (int i = 0; i < 3; i++) {
        char path[600];
        model_path(&wrong[i], path, sizeof path);
        expect_caught(path, &g, i ? "another rotation" : "another window");
    }
    json_decref(g.file);
}

/* Changes only the factors of matrices: two experts exchange theirs. */
static void wrong_scales_are_detected(void **state) {
    (void)state;
    const struct Case *c = case_named("nvfp4-scales");
    Golden g = read_golden(c->name);
    struct Case without = *c;
    char path[600];
    change_is_caught(c, &g, "ffn_up_exps.scale", swap_halves);
    change_is_caught(c, &g, "ffn_down_exps.scale", swap_halves);
    without.m.has_scales = false;
    model_path(&without, path, sizeof path);
    expect_caught(path, &g, "no scales");
    json_decref(g.file);
}

/* Temperatures whose steps are off by one token, another factor of YaRN, and experts that are weighted or chosen
 * differently. */
static void wrong_keys_are_detected(void **state) {
    (void)state;
    const RandomModel mistral3 = case_named("mistral3-f32")->m, latent = case_named("deepseek2-temperature-f32")->m,
                      llama4 = case_named("llama4-f32")->m, lfm2moe = case_named("lfm2moe-f32")->m;
    struct {
        const char *name, *what;
        RandomModel m;
    } wrong[] = {{"mistral3-f32", "steps of one token less", mistral3},
                 {"mistral3-f32", "another temperature", mistral3},
                 {"mistral3-f32", "another YaRN", mistral3},
                 {"deepseek2-temperature-f32", "steps of one token more", latent},
                 {"llama4-f32", "chunks", llama4},
                 {"llama4-f32", "a temperature", llama4},
                 {"llama4-f32", "one expert", llama4},
                 {"lfm2moe-f32", "one expert less", lfm2moe}};
    wrong[0].m.rope_n_ctx_orig--, wrong[1].m.temperature_scale += 0.01, wrong[2].m.yarn_log_multiplier = 0.9;
    wrong[3].m.temperature_length++;
    wrong[4].m.window = 40, wrong[5].m.temperature_length = 40, wrong[6].m.n_expert_used--;
    wrong[7].m.n_expert_used--;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct Case c = {.name = wrong[i].name, .m = wrong[i].m};
        Golden g = read_golden(c.name);
        char path[600];
        model_path(&c, path, sizeof path);
        expect_caught(path, &g, wrong[i].what);
        json_decref(g.file);
    }
    Golden g = read_golden("lfm2moe-f32"), of_llama4 = read_golden("llama4-f32");
    change_is_caught(case_named("lfm2moe-f32"), &g, "exp_probs_b.bias", swap_halves);
    change_is_caught(case_named("llama4-f32"), &of_llama4, "ffn_up_shexp.weight", swap_halves);
    json_decref(g.file), json_decref(of_llama4.file);
}

/* ---- greedy texts --------------------------------------------------------------------------------------- */

static void check_greedy(const char *name, fr_engine *e, const Golden *g, const char *draft) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = g->tokens,
                            .n_prompt = g->n_prompt,
                            .max_tokens = g->n - g->n_prompt,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1,
                            .drafts = &draft,
                            .n_drafts = draft ? 1 : 0};
    static Stream stream;
    rig_run_request(e, &o, &stream);
    for (int32_t i = 0; i < g->n - g->n_prompt; i++)
        if (i >= stream.n || stream.tokens[i] != g->tokens[g->n_prompt + i])
            fail_msg("%s with %s: token %d of the text is %d, not %d", name, draft ? draft : "no drafter", i,
                     i < stream.n ? stream.tokens[i] : -1, g->tokens[g->n_prompt + i]);
}

static void greedy_texts_are_the_stored_ones(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        Golden g = read_golden(cases[i].name);
        char path[600];
        model_path(&cases[i], path, sizeof path);
        fr_model *model = rig_open_model(path, NULL);
        fr_engine *e = rig_open_engine(
            model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .kv_type = FR_KV_F32});
        check_greedy(cases[i].name, e, &g, NULL);
        check_greedy(cases[i].name, e, &g, "ngram-trie");
        fr_engine_close(e);
        fr_model_close(model);
        json_decref(g.file);
    }
}

/* ---- the models as files, for make_golden.py -------------------------------------------------------------- */

static int write_models(const char *folder) {
    for (int i = 0; i < N_CASES; i++) {
        char path[1024];
        fr_error err = {0};
        snprintf(path, sizeof path, "%s/%s.gguf", folder, cases[i].name);
        if (random_model_write(&cases[i].m, path, &err)) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0) return write_models(argv[2]);
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_the_stored_ones),          cmocka_unit_test(greedy_texts_are_the_stored_ones),
        cmocka_unit_test(a_wrong_gpt_oss_is_detected),         cmocka_unit_test(a_wrong_deepseek2_is_detected),
        cmocka_unit_test(a_wrong_recurrent_layer_is_detected), cmocka_unit_test(a_wrong_gemma4_is_detected),
        cmocka_unit_test(a_wrong_glm4moe_is_detected),         cmocka_unit_test(wrong_keys_are_detected),
        cmocka_unit_test(wrong_scales_are_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
