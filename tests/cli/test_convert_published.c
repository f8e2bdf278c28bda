/* test_convert_published.c - models whose published tensors are not those of a GGUF file (hybrids of Qwen, gpt-oss,
 * LFM2, Granite 4.0 H) are the same after they were taken apart as published (hub_forms.c) and converted: each tensor,
 * and logits bit for bit. */
#define DIR "build/test-convert-published"

#include "convert_rig.h"
#include "hub_build.h"
#include "model_patch.h"
#include "model_rig.h"

#include "gguf/tensor_type.h"
#include "gguf/gguf_write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHAPE(a, layers) \
    .arch = a, .n_layer = layers, .n_embd = 32, .n_head = 4, .n_head_kv = 2, .head_dim = 16, .n_ff = 64, .n_vocab = 600
#define HYBRID(keys, values, dim, conv) \
    .n_key_heads = keys, .n_value_heads = values, .delta_dim = dim, .n_conv = conv, .attention_interval = 2, .n_rot = 8
#define DELTA_CONFIG(keys, values, dim, conv) \
    ", \"linear_num_key_heads\": " #keys ", \"linear_num_value_heads\": " #values ", \"linear_key_head_dim\": " #dim \
    ", \"linear_value_head_dim\": " #dim ", \"linear_conv_kernel_dim\": " #conv
#define PARTIAL \
    ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.5"
#define TYPES ", \"layer_types\": [\"linear_attention\", \"full_attention\", \"linear_attention\", \"full_attention\"]"
#define EXPERTS_CONFIG \
    ", \"num_experts\": 5, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, " \
    "\"shared_expert_intermediate_size\": 40"
#define OSS_CONFIG \
    ", \"num_local_experts\": 5, \"num_experts_per_tok\": 2, \"sliding_window\": 3, \"swiglu_limit\": 7.0"
#define OSS_TYPES ", \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"]"
#define YARN_WITH(more) \
    ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 512, " \
    "\"beta_fast\": 32.0, \"beta_slow\": 1.0, \"truncate\": false" more "}"
#define YARN YARN_WITH("")
#define OSS_MODEL \
    SHAPE("gpt-oss", 3), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 64, .window = 3, .rope_scaling = "yarn", \
                         .rope_factor = 4, .rope_n_ctx_orig = 512

#define LFM2_TYPES ", \"norm_eps\": 1e-6, \"layer_types\": [\"conv\", \"conv\", \"full_attention\", \"conv\"]"
#define MAMBA(groups, heads, dim, conv) .n_key_heads = groups, .n_value_heads = heads, .delta_dim = dim, .n_conv = conv
#define MAMBA_CONFIG(groups, heads, dim, conv) \
    ", \"mamba_n_groups\": " #groups ", \"mamba_n_heads\": " #heads ", \"mamba_d_head\": " #dim \
    ", \"mamba_d_conv\": " #conv \
    ", \"mamba_d_state\": 20, \"mamba_expand\": 2, \"embedding_multiplier\": 3, \"residual_multiplier\": 0.4, " \
    "\"logits_scaling\": 1.2, \"attention_multiplier\": 0.2"
#define GRANITE_TYPES ", \"layer_types\": [\"mamba\", \"attention\", \"mamba\", \"attention\"]"

#define MISTRAL3(mscale) \
    ", \"rope_parameters\": {\"rope_type\": \"yarn\", \"rope_theta\": 1e6, \"factor\": 16.0, " \
    "\"llama_4_scaling_beta\": 0.1, " \
    "\"original_max_position_embeddings\": 9, \"beta_fast\": 32.0, \"beta_slow\": 1.0, \"mscale_all_dim\": 1.0, " \
    "\"mscale\": " #mscale "}"
#define LLAMA4 \
    ", \"num_local_experts\": 5, \"num_experts_per_tok\": 1, \"intermediate_size\": 24, \"intermediate_size_mlp\": " \
    "64, " \
    "\"interleave_moe_layer_step\": 2, \"use_qk_norm\": true, \"no_rope_layers\": [1, 1, 1, 0], " \
    "\"attn_temperature_tuning\": 4, \"floor_scale\": 8192, \"attn_scale\": 0.1"
#define LFM2MOE \
    ", \"num_experts\": 5, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"num_dense_layers\": 1, " \
    "\"norm_topk_prob\": true, \"conv_L_cache\": 3"

typedef struct Case {
    RandomModel model;
    const char *config;
    bool text_part, packs_experts;
    const char *wrong, *why; /* used instead of `config`; NULL: not tested */
} Case;

static const Case cases[] = {
    {.model = {SHAPE("qwen3next", 4), HYBRID(2, 6, 12, 3), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 24,
               .n_ff_shared = 40, .n_nextn = 1, .seed = 3},
     .config = DELTA_CONFIG(2, 6, 12, 3) EXPERTS_CONFIG TYPES
     ", \"norm_topk_prob\": true, \"partial_rotary_factor\": 0.5, \"full_attention_interval\": 2",
     .wrong = DELTA_CONFIG(2, 6, 12, 3) EXPERTS_CONFIG
     ", \"norm_topk_prob\": true, \"layer_types\": [\"linear_attention\", "
     "\"full_attention\", \"full_attention\", \"full_attention\"]",
     .why = "layer_types must have full_attention at equal distances"},
    {.model = {SHAPE("qwen35", 4), HYBRID(3, 6, 10, 4), .n_nextn = 1, .seed = 4},
     .config = DELTA_CONFIG(3, 6, 10, 4) ", \"full_attention_interval\": null" TYPES PARTIAL
                                         ", \"mrope_section\": [2, 1, 1]}",
     .text_part = true,
     .wrong = DELTA_CONFIG(3, 7, 10, 4) TYPES PARTIAL "}",
     .why = "linear_num_value_heads must be a multiple of linear_num_key_heads"},
    {.model = {SHAPE("qwen35", 2), HYBRID(2, 2, 16, 2), .seed = 5},
     .config = DELTA_CONFIG(2, 2, 16, 2) ", \"full_attention_interval\": 2" PARTIAL "}",
     .wrong = ", \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 2, \"linear_key_head_dim\": 16, "
              "\"linear_value_head_dim\": 8, \"linear_conv_kernel_dim\": 2, \"full_attention_interval\": 2" PARTIAL "}",
     .why = "linear_value_head_dim must be linear_key_head_dim"},
    {.model = {SHAPE("qwen35moe", 4), HYBRID(2, 4, 14, 3), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 24,
               .n_ff_shared = 40, .n_nextn = 1, .seed = 6},
     .config = DELTA_CONFIG(2, 4, 14, 3) EXPERTS_CONFIG TYPES PARTIAL "}",
     .text_part = true,
     .wrong = DELTA_CONFIG(2, 4, 14, 3) EXPERTS_CONFIG TYPES PARTIAL "}, \"norm_topk_prob\": false",
     .why = "norm_topk_prob must be true"},
    {.model = {OSS_MODEL, .seed = 7},
     .config = OSS_CONFIG OSS_TYPES YARN,
     .wrong = OSS_CONFIG OSS_TYPES YARN ", \"quantization_config\": {\"quant_method\": \"fp8\"}",
     .why = "weights quantised by 'fp8' cannot be converted"},
    {.model = {OSS_MODEL, .yarn_attn_factor = 1.25, .seed = 8},
     .config = OSS_CONFIG OSS_TYPES YARN_WITH(
         ", \"attention_factor\": 1.25") ", \"quantization_config\": {\"quant_method\": \"mxfp4\"}",
     .packs_experts = true,
     .wrong = ", \"num_local_experts\": 5, \"num_experts_per_tok\": 2, \"sliding_window\": 3, \"swiglu_limit\": 5.0",
     .why = "swiglu_limit must be 7"},
    {.model = {SHAPE("lfm2", 4), .n_conv = 3, .attention_interval = 3, .rope_base = 1e6, .tied = true, .seed = 9},
     .config =
         ", \"intermediate_size\": 77, \"block_ff_dim\": 90, \"block_multiple_of\": 16, \"conv_L_cache\": 3" LFM2_TYPES,
     .wrong = ", \"block_ff_dim\": 90, \"block_multiple_of\": 16, \"conv_bias\": true" LFM2_TYPES,
     .why = "conv_bias is not supported"},
    {.model = {SHAPE("lfm2", 4), .n_conv = 4, .attention_interval = 2, .rope_base = 1e6, .tied = true, .seed = 10},
     .config =
         ", \"norm_eps\": 1e-6, \"block_auto_adjust_ff_dim\": false, \"conv_L_cache\": 4, \"full_attn_idxs\": [1, 3]",
     .wrong = ", \"block_auto_adjust_ff_dim\": false, \"full_attn_idxs\": [1, 4]",
     .why = "full_attn_idxs names a layer that the model does not have"},
    {.model = {SHAPE("granitehybrid", 4), MAMBA(1, 4, 16, 3), .n_ssm_state = 20, .attention_interval = 2, .seed = 11},
     .config = ", \"intermediate_size\": 77, \"shared_intermediate_size\": 64, \"num_local_experts\": 0, "
               "\"position_embedding_type\": \"nope\"" MAMBA_CONFIG(1, 4, 16, 3) GRANITE_TYPES,
     .wrong = ", \"shared_intermediate_size\": 64" MAMBA_CONFIG(1, 5, 16, 3) GRANITE_TYPES,
     .why = "mamba_n_heads must divide"},
    {.model = {SHAPE("granitehybrid", 4), MAMBA(2, 8, 8, 4), .n_ssm_state = 20, .attention_interval = 2,
               .rope_base = 1e4, .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 24, .n_ff_shared = 40, .seed = 12},
     .config = ", \"intermediate_size\": 24, \"shared_intermediate_size\": 40, \"num_local_experts\": 5, "
               "\"num_experts_per_tok\": 2, \"position_embedding_type\": \"rope\"" MAMBA_CONFIG(2, 8, 8, 4)
                   GRANITE_TYPES,
     .wrong = ", \"shared_intermediate_size\": 64, \"layer_types\": [\"mamba\"]" MAMBA_CONFIG(2, 8, 8, 4),
     .why = "layer_types must name the kind of each layer"},
    {.model = {SHAPE("mistral3", 3), .rope_base = 1e6, .rope_scaling = "yarn", .rope_factor = 16, .rope_n_ctx_orig = 9,
               .yarn_log_multiplier = 1, .temperature_scale = 0.1, .seed = 13},
     .config = MISTRAL3(1.0),
     .wrong = MISTRAL3(0.5),
     .why = "mscale must be 1 beside mscale_all_dim"},
    {.model = {SHAPE("llama4", 4), .n_expert = 5, .n_expert_used = 1, .n_ff_expert = 24, .n_ff_shared = 24,
               .expert_interval = 2, .rope_base = 5e5, .seed = 14},
     .config = LLAMA4 ", \"attention_chunk_size\": 8192, \"moe_layers\": [1, 3]",
     .text_part = true,
     .wrong = LLAMA4 ", \"moe_layers\": [0, 3]",
     .why = "moe_layers differ"},
    {.model = {SHAPE("llama4", 5), .n_expert = 4, .n_expert_used = 2, .n_ff_expert = 24, .n_ff_shared = 24,
               .expert_interval = 2, .rope_base = 5e5, .seed = 15},
     .config = ", \"num_local_experts\": 4, \"num_experts_per_tok\": 2, \"intermediate_size\": 24, "
               "\"intermediate_size_mlp\": 64, \"interleave_moe_layer_step\": 2",
     .wrong = LLAMA4 ", \"attention_chunk_size\": 4096",
     .why = "attention_chunk_size must be 8192"},
    {.model = {SHAPE("lfm2moe", 4), .n_conv = 3, .attention_interval = 3, .n_dense = 1, .n_expert = 5,
               .n_expert_used = 2, .n_ff_expert = 24, .has_sigmoid_router = true, .rope_base = 1e6, .tied = true,
               .seed = 16},
     .config = LFM2MOE ", \"routed_scaling_factor\": 1.0" LFM2_TYPES,
     .wrong = LFM2MOE ", \"use_expert_bias\": false" LFM2_TYPES,
     .why = "use_expert_bias must be true"},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* Decays are published as logarithms; these numbers are restored exactly. */
static void round_decays(const RandomModel *m) {
    ModelPatch p;
    model_patch_open(&p, MODEL);
    for (int i = 0; i < m->n_layer; i++) {
        char name[60];
        snprintf(name, sizeof name, "blk.%d.ssm_a", i);
        if (!gguf_find_tensor(p.gguf, name)) continue;
        float *a = model_patch_tensor(&p, name);
        for (int k = 0; k < m->n_value_heads; k++) a[k] = (float)-exp((double)(float)log(-(double)a[k]));
    }
    model_patch_write(&p, MODEL);
    model_patch_close(&p);
}

/* The same file with experts in MXFP4. */
static void pack_experts(void) {
    Gguf *g = rig_gguf(MODEL);
    GgufWriter *w = gguf_writer_new();
    void *packed[64] = {NULL};
    int n_packed = 0;
    fr_error err;
    gguf_copy_kvs(w, g, NULL);
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        int64_t rows = t->dims[1] * t->dims[2];
        size_t bytes;
        if (!strstr(t->name, "exps.weight")) {
            gguf_add_tensor(w, t->name, t->type, t->n_dims, t->dims, t->data);
            continue;
        }
        assert_true(tensor_type_row_bytes(TYPE_MXFP4, t->dims[0], &bytes) && n_packed < 64);
        char *out = packed[n_packed++] = malloc(bytes * (size_t)rows);
        for (int64_t o = 0; o < rows; o++)
            blocks_quantize(TYPE_MXFP4, (const float *)t->data + o * t->dims[0], t->dims[0], out + (size_t)o * bytes);
        gguf_add_tensor(w, t->name, TYPE_MXFP4, t->n_dims, t->dims, out);
    }
    if (gguf_writer_finish(w, MODEL ".packed", &err)) fail_msg("%s", err.message);
    gguf_writer_free(w);
    gguf_close(g);
    for (int i = 0; i < n_packed; i++) free(packed[i]);
    assert_int_equal(rename(MODEL ".packed", MODEL), 0);
}

static Gguf *make_model(const Case *c) {
    fr_error err;
    if (random_model_write(&c->model, MODEL, &err)) fail_msg("%s", err.message);
    if (c->model.n_conv) round_decays(&c->model);
    if (c->packs_experts) pack_experts();
    return rig_gguf(MODEL);
}

static void take_apart(const Gguf *g, const Case *c, const char *config) {
    hub_build_write(
        g, FOLDER,
        &(HubBuild){.type = TYPE_F32, .n_parts = 1, .vocab = HUB_SPM, .text_part = c->text_part, .config = config});
}

static void compare_tensors(const Gguf *a, const Gguf *b) {
    assert_int_equal(gguf_n_tensors(a), gguf_n_tensors(b));
    for (int64_t i = 0; i < gguf_n_tensors(a); i++) {
        const GgufTensor *t = gguf_tensor(a, i), *u = gguf_find_tensor(b, t->name);
        if (!u) fail_msg("%s is missing", t->name);
        assert_int_equal(t->type, u->type);
        assert_int_equal(t->n_dims, u->n_dims);
        assert_memory_equal(t->dims, u->dims, sizeof t->dims);
        if (memcmp(t->data, u->data, t->bytes) != 0) fail_msg("%s differs", t->name);
    }
}

static void published_forms_are_converted(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        print_message("%s\n", cases[i].model.arch);
        convert_rig_clear();
        Gguf *model = make_model(&cases[i]);
        take_apart(model, &cases[i], cases[i].config);
        convert_rig_convert(TYPE_F32);
        Gguf *out = rig_gguf(OUT);
        compare_tensors(model, out);
        convert_rig_same_output("logits -m %s --tokens 1,30,40,500,7,8,9,10,11 -o - | cksum", MODEL, OUT);
        if (cases[i].model.n_nextn)
            convert_rig_same_output("run -m %s --draft mtp -p 'a b c' -n 12 --ignore-eos --stats-json " DIR
                                    "/stats.json && tr ',{' '\\n\\n' <" DIR "/stats.json | grep 'drafted\\|accepted'",
                                    MODEL, OUT);
        gguf_close(out);
        convert_rig_clear();
        take_apart(model, &cases[i], cases[i].wrong);
        convert_rig_expect_refused(cases[i].why);
        gguf_close(model);
    }
}

/* Keys that other programs need, and forerun does not read. */
static void keys_for_other_programs(void **state) {
    (void)state;
    convert_rig_clear();
    Gguf *model = make_model(&cases[1]);
    take_apart(model, &cases[1], cases[1].config);
    convert_rig_convert(TYPE_BF16);
    Gguf *out = rig_gguf(OUT);
    int64_t at = gguf_find_key(out, "qwen35.rope.dimension_sections"), v = 0, rotated = 0;
    assert_true(at >= 0);
    assert_int_equal(gguf_kv_count(out, at), 4);
    assert_true(gguf_array_i64(out, at, 0, &v) && v == 2);
    assert_true(gguf_get_i64(out, "qwen35.rope.dimension_count", &rotated) && rotated == 8);
    assert_int_equal(gguf_find_tensor(out, "blk.0.ssm_conv1d.weight")->type, TYPE_F32);
    assert_int_equal(gguf_find_tensor(out, "blk.0.ssm_out.weight")->type, TYPE_BF16);
    gguf_close(out);
    gguf_close(model);
}

/* The program names the parts that are left out, and the type that experts keep. */
static void parts_that_are_left_out_are_named(void **state) {
    (void)state;
    static const struct {
        int i;
        const char *words;
    } said[] = {{1, "the vision part of the model is left out"}, {5, "the experts stay in MXFP4"}};
    for (size_t k = 0; k < sizeof said / sizeof *said; k++) {
        convert_rig_clear();
        Gguf *model = make_model(&cases[said[k].i]);
        take_apart(model, &cases[said[k].i], cases[said[k].i].config);
        cli_expect("convert " FOLDER " " OUT " --type F16 2>&1", 0, said[k].words);
        gguf_close(model);
    }
}

int main(int argc, char **argv) {
    (void)argc;
    convert_rig_begin(argv[0], DIR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_forms_are_converted),
        cmocka_unit_test(keys_for_other_programs),
        cmocka_unit_test(parts_that_are_left_out_are_named),
    };
    return cmocka_run_group_tests(tests, convert_rig_make_dir, convert_rig_drop_dir);
}
