/* test_convert_arch.c - the parts that only some architectures have (experts, factors, windows, caps, fused matrices)
 * are the same after a model was taken apart and converted; a config.json that a GGUF file cannot express is
 * refused. */
#define DIR "build/test-convert-arch"

#include "convert_rig.h"
#include "hub_build.h"
#include "model_rig.h"

#include <stdio.h>
#include <string.h>

static const RandomModel small = {
    .n_layer = 2, .n_embd = 32, .n_head = 4, .n_head_kv = 2, .head_dim = 16, .n_ff = 64, .n_vocab = 600, .seed = 3};

/* Checks that a folder with this config.json is refused with a message that contains `why`, and that no file is
 * written. */
static void expect_refused(const Gguf *model, const char *config, const char *why) {
    hub_build_write(model, FOLDER, &(HubBuild){.type = TYPE_F32, .n_parts = 1, .vocab = HUB_SPM, .config = config});
    convert_rig_expect_refused(why);
}

/* Additions to the config.json of the other tests. */
static void experts_and_factors_are_converted(void **state) {
    (void)state;
    static const struct {
        const char *arch, *config;
        int32_t n_expert, n_ff_expert, n_ff_shared;
        const char *wrong; /* used instead of `config`; NULL: there is none */
        const char *why;
    } cases[] = {
        {"llama", ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2", 4, 64, 0,
         ", \"num_local_experts\": 4, \"num_experts_per_tok\": 5",
         "num_experts_per_tok must be an integer from 1 to 4"},
        {"qwen3moe",
         ", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"norm_topk_prob\": true", 4,
         32, 0, ", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32",
         "norm_topk_prob must be true"},
        {"qwen2moe",
         ", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "
         "\"shared_expert_intermediate_size\": 48",
         4, 32, 48, ", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"mlp_only_layers\": [0]",
         "leave layers without experts"},
        {"qwen3moe", NULL, 4, 32, 0,
         ", \"num_experts\": 5, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, \"norm_topk_prob\": true",
         "tensor model.layers.0.mlp.gate.weight is 4 x 32"},
        {"smollm3", ", \"no_rope_layers\": [1, 1]", 0, 0, 0, ", \"no_rope_layers\": [1, 0]", "no_rope_layers"},
        {"granite", "", 0, 0, 0, "", "embedding_multiplier must be a number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RandomModel m = small;
        fr_error err = {0};
        float scale[4] = {0};
        char config[300];
        convert_rig_clear();
        m.arch = cases[i].arch, m.n_expert = cases[i].n_expert, m.n_expert_used = cases[i].n_expert ? 2 : 0;
        m.n_ff_expert = cases[i].n_ff_expert, m.n_ff_shared = cases[i].n_ff_shared;
        if (random_model_write(&m, MODEL, &err)) fail_msg("%s", err.message);
        Gguf *model = rig_gguf(MODEL);
        snprintf(config, sizeof config, "%s", cases[i].config ? cases[i].config : "");
        if (gguf_get_f32(model, "granite.embedding_scale", &scale[0])) {
            gguf_get_f32(model, "granite.residual_scale", &scale[1]);
            gguf_get_f32(model, "granite.logit_scale", &scale[2]);
            gguf_get_f32(model, "granite.attention.scale", &scale[3]);
            snprintf(config, sizeof config,
                     ", \"embedding_multiplier\": %.9g, \"residual_multiplier\": %.9g, \"logits_scaling\": %.9g, "
                     "\"attention_multiplier\": %.9g",
                     (double)scale[0], (double)scale[1], (double)scale[2], (double)scale[3]);
        }
        if (cases[i].config) {
            hub_build_write(model, FOLDER,
                            &(HubBuild){.type = TYPE_F32, .n_parts = 2, .vocab = HUB_SPM, .config = config});
            convert_rig_convert(TYPE_F32);
            Gguf *out = rig_gguf(OUT);
            convert_rig_compare_tensors(model, out, TYPE_F32, TYPE_F32);
            convert_rig_same_output("logits -m %s --tokens 1,30,40,500,7 -o - | cksum", MODEL, OUT);
            gguf_close(out);
            convert_rig_clear();
        }
        expect_refused(model, cases[i].wrong, cases[i].why);
        gguf_close(model);
    }
}

/* Windows, caps, bases and fused matrices; a config.json that GGUF files of the architecture cannot express is
 * refused. */
static void windows_and_caps_are_converted(void **state) {
    (void)state;
    static const struct {
        const char *arch, *config, *wrong, *why;
    } cases[] = {
        {"gemma2",
         ", \"sliding_window\": 3, \"attn_logit_softcapping\": 2.5, \"final_logit_softcapping\": 7.0, "
         "\"query_pre_attn_scalar\": 16",
         ", \"query_pre_attn_scalar\": 16, \"attn_logit_softcapping\": null",
         "attn_logit_softcapping must be a number"},
        {"gemma2",
         ", \"sliding_window\": 3, \"attn_logit_softcapping\": 2.5, \"final_logit_softcapping\": 7.0, "
         "\"query_pre_attn_scalar\": 16, \"hidden_activation\": \"gelu_pytorch_tanh\", \"layer_types\": "
         "[\"sliding_attention\", \"full_attention\"]",
         ", \"query_pre_attn_scalar\": 16, \"layer_types\": [\"full_attention\", \"full_attention\"]",
         "layer_types differ"},
        {"gemma2", NULL, "", "query_pre_attn_scalar is 256, but GGUF files of this architecture mean 16"},
        {"gemma3",
         ", \"sliding_window\": 3, \"rope_local_base_freq\": 10000, \"query_pre_attn_scalar\": 16, \"rope_scaling\": "
         "{\"rope_type\": \"linear\", \"factor\": 8.0}, \"sliding_window_pattern\": 6",
         ", \"query_pre_attn_scalar\": 16, \"sliding_window_pattern\": 3", "sliding_window_pattern differs"},
        {"gemma3",
         ", \"sliding_window\": 3, \"query_pre_attn_scalar\": 16, \"rope_parameters\": {\"full_attention\": "
         "{\"rope_type\": \"linear\", \"factor\": 8.0, \"rope_theta\": 5e4}, \"sliding_attention\": "
         "{\"rope_type\": \"default\", \"rope_theta\": 10000}}",
         ", \"query_pre_attn_scalar\": 16, \"use_bidirectional_attention\": true", "makes an embedding model"},
        {"gemma3", NULL, ", \"hidden_activation\": \"silu\"", "hidden_activation is 'silu'; only gelu_pytorch_tanh"},
        {"phi3", ", \"sliding_window\": 3", ", \"rope_scaling\": {\"type\": \"dynamic\"}",
         "rope scaling 'dynamic' is not supported"},
        {"phi3", NULL, ", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.75}",
         "partial_rotary_factor below 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        RandomModel m = small;
        fr_error err = {0};
        bool is_gemma3 = strcmp(cases[i].arch, "gemma3") == 0, is_phi3 = strcmp(cases[i].arch, "phi3") == 0;
        convert_rig_clear();
        m.arch = cases[i].arch, m.window = 3, m.tied = !is_phi3, m.rope_base = 5e4;
        if (is_gemma3) m.n_layer = 7, m.rope_scaling = "linear", m.rope_factor = 8;
        if (random_model_write(&m, MODEL, &err)) fail_msg("%s", err.message);
        Gguf *model = rig_gguf(MODEL);
        if (cases[i].config) {
            hub_build_write(model, FOLDER,
                            &(HubBuild){.type = TYPE_F32, .n_parts = 2, .vocab = HUB_SPM, .config = cases[i].config});
            convert_rig_convert(TYPE_F32);
            Gguf *out = rig_gguf(OUT);
            float base = 0;
            convert_rig_compare_tensors(model, out, TYPE_F32, TYPE_F32);
            convert_rig_compare_vocabularies(model, out, true);
            convert_rig_same_output("logits -m %s --tokens 1,30,40,500,7,8,9 -o - | cksum", MODEL, OUT);
            if (is_gemma3) assert_true(gguf_get_f32(out, "gemma3.rope.freq_base_swa", &base) && base == 10000);
            gguf_close(out);
            convert_rig_clear();
        }
        expect_refused(model, cases[i].wrong, cases[i].why);
        gguf_close(model);
    }
}

/* Returns the factors of a file as a list of config.json, whose numbers come back exactly. */
static size_t append_factors(const Gguf *g, const char *tensor, const char *key, char *out, size_t n) {
    const GgufTensor *t = gguf_find_tensor(g, tensor);
    int used = snprintf(out, n, ", \"%s\": [", key);
    for (int64_t i = 0; i < t->dims[0]; i++)
        used += snprintf(out + used, n - (size_t)used, "%s%.9g", i ? ", " : "", (double)((const float *)t->data)[i]);
    return (size_t)(used + snprintf(out + used, n - (size_t)used, "]"));
}

/* LongRoPE as published for Phi-3, under both names of its type: the two sets of factors and the original context; the
 * factor of cos and sin as given, or as llama.cpp's converter computes it. */
static void long_rope_is_converted(void **state) {
    (void)state;
    static const struct {
        const char *before, *after; /* the text around the factors */
        double magnitude;
    } cases[] = {
        {", \"original_max_position_embeddings\": 4, \"rope_scaling\": {\"type\": \"longrope\", \"attention_factor\": "
         "1.19",
         "}", 1.19},
        {", \"rope_parameters\": {\"rope_type\": \"longrope\", \"rope_theta\": 50000.0, \"attention_factor\": 1.19, "
         "\"original_max_position_embeddings\": 4",
         "}", 1.19},
        {", \"original_max_position_embeddings\": 4, \"rope_scaling\": {\"type\": \"su\"", "}", 2.3452078799117149},
        {", \"original_max_position_embeddings\": 2048, \"rope_scaling\": {\"type\": \"su\"", "}", 1},
    };
    RandomModel m = small;
    fr_error err = {0};
    char config[1200];
    m.arch = "phi3", m.window = 3, m.rope_base = 5e4, m.long_rope = true, m.rope_n_ctx_orig = 4;
    if (random_model_write(&m, MODEL, &err)) fail_msg("%s", err.message);
    Gguf *model = rig_gguf(MODEL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float magnitude = 0;
        GgufString type;
        size_t n = (size_t)snprintf(config, sizeof config, ", \"sliding_window\": 3%s", cases[i].before);
        n += append_factors(model, "rope_factors_long.weight", "long_factor", config + n, sizeof config - n);
        n += append_factors(model, "rope_factors_short.weight", "short_factor", config + n, sizeof config - n);
        snprintf(config + n, sizeof config - n, "%s", cases[i].after);
        convert_rig_clear();
        hub_build_write(model, FOLDER, &(HubBuild){.type = TYPE_F32, .n_parts = 1, .vocab = HUB_SPM, .config = config});
        convert_rig_convert(TYPE_F32);
        Gguf *out = rig_gguf(OUT);
        convert_rig_compare_tensors(model, out, TYPE_F32, TYPE_F32);
        assert_true(gguf_get_f32(out, "phi3.rope.scaling.attn_factor", &magnitude));
        assert_true(magnitude == (float)cases[i].magnitude);
        assert_true(gguf_get_string(out, "phi3.rope.scaling.type", &type) && type.n == strlen("longrope"));
        if (cases[i].magnitude == 1.19) { /* both sets are used */
            convert_rig_same_output("logits -m %s --tokens 1,30,40,500,7,8,9 -o - | cksum", MODEL, OUT);
            convert_rig_same_output("logits -m %s --tokens 1,30,40 -o - | cksum", MODEL, OUT);
        }
        gguf_close(out);
    }
    convert_rig_clear();
    expect_refused(model,
                   ", \"original_max_position_embeddings\": 4, \"rope_scaling\": {\"type\": \"longrope\", "
                   "\"short_factor\": [1.0]}",
                   "short_factor must be a list of 8 positive numbers");
    expect_refused(model, ", \"rope_scaling\": {\"type\": \"longrope\"}",
                   "original_max_position_embeddings must be an integer");
    gguf_close(model);
}

int main(int argc, char **argv) {
    (void)argc;
    convert_rig_begin(argv[0], DIR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_and_factors_are_converted),
        cmocka_unit_test(windows_and_caps_are_converted),
        cmocka_unit_test(long_rope_is_converted),
    };
    return cmocka_run_group_tests(tests, convert_rig_make_dir, convert_rig_drop_dir);
}
