/* test_convert_deepseek.c - models of DeepSeek's and GLM's architectures are the same after they were taken apart as
 * published (hub_deepseek.c) and converted: each tensor, logits bit for bit, and the drafts of their layer for
 * multi-token prediction. Configurations that the architecture cannot express are refused. */
#define DIR "build/test-convert-deepseek"

#include "convert_rig.h"
#include "hub_build.h"
#include "model_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SHAPE(a, layers, kv) \
    .arch = a, .n_layer = layers, .n_embd = 32, .n_head = 4, .n_head_kv = kv, .n_ff = 64, .n_vocab = 600, \
    .n_expert_used = 2, .n_ff_expert = 24
#define LATENT(q, kv, plain, rot, value) \
    .q_rank = q, .kv_rank = kv, .plain_dim = plain, .n_rot = rot, .value_dim = value
#define LATENT_CONFIG(q, kv, plain, rot, value) \
    ", \"q_lora_rank\": " #q ", \"kv_lora_rank\": " #kv ", \"qk_nope_head_dim\": " #plain \
    ", \"qk_rope_head_dim\": " #rot ", \"v_head_dim\": " #value
#define EXPERTS_CONFIG(n, shared, dense) \
    ", \"n_routed_experts\": " #n ", \"n_shared_experts\": " #shared ", \"first_k_dense_replace\": " #dense \
    ", \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24"
#define ARCH(name) ", \"architectures\": [\"" name "\"]"
#define YARN \
    ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"original_max_position_embeddings\": 64, " \
    "\"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 0.707, \"mscale_all_dim\": 0.707}"
#define LITE ARCH("DeepseekV2ForCausalLM") LATENT_CONFIG(null, 28, 10, 6, 14) EXPERTS_CONFIG(5, 2, 1)
#define V3 LATENT_CONFIG(18, 28, 8, 8, 12) EXPERTS_CONFIG(6, 1, 1) ", \"routed_scaling_factor\": 2.5"
#define GLM EXPERTS_CONFIG(6, 1, 1) ", \"routed_scaling_factor\": 1.5, \"partial_rotary_factor\": 0.5"

typedef struct Case {
    RandomModel model;
    const char *config;
    struct {
        const char *config, *why;
    } wrong[6]; /* used instead of `config` */
} Case;

static const Case cases[] = {
    {.model = {SHAPE("deepseek2", 3, 1), LATENT(0, 28, 10, 6, 14), .n_dense = 1, .n_expert = 5, .n_ff_shared = 48,
               .rope_scaling = "yarn", .rope_factor = 40, .rope_n_ctx_orig = 64, .yarn_log_multiplier = 0.0707,
               .expert_scale = 1, .seed = 1},
     .config = LITE YARN ", \"topk_method\": \"greedy\", \"n_group\": 1, \"norm_topk_prob\": false",
     .wrong = {{LITE ", \"topk_method\": \"best\"", "topk_method must be greedy"},
               {LITE ", \"scoring_func\": \"tanh\"", "scoring_func must be softmax or sigmoid"},
               {LITE ", \"moe_layer_freq\": 2", "moe_layer_freq leaves layers without experts"},
               {LITE ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"mscale\": 1, \"mscale_all_dim\": 0.7}",
                "mscale must be mscale_all_dim"},
               {LITE ", \"quantization_config\": {\"quant_method\": \"fp8\"}",
                "weights quantised by 'fp8' cannot be converted; choose the model in BF16 or F16, or cast it"}}},
    {.model = {SHAPE("deepseek2", 3, 1), LATENT(18, 28, 8, 8, 12), .n_dense = 1, .n_expert = 6, .n_ff_shared = 24,
               .n_groups = 3, .n_groups_used = 2, .has_sigmoid_router = true, .divides_by_chosen = true,
               .expert_scale = 2.5, .n_nextn = 2, .nextn_head = true, .seed = 2},
     .config = V3 ", \"n_group\": 3, \"topk_group\": 2, \"norm_topk_prob\": true, \"num_nextn_predict_layers\": 2",
     .wrong = {{V3 ", \"n_group\": 3, \"topk_group\": 4", "topk_group must be an integer from 1 to 3"},
               {V3 ", \"n_group\": 3, \"topk_group\": 2, \"topk_method\": \"group_limited_greedy\"",
                "groups of experts must be chosen by noaux_tc with sigmoids"},
               {V3 ", \"rope_interleave\": false", "rope_interleave must be true"},
               {V3 ", \"attention_bias\": true", "attention_bias is not supported"},
               {LATENT_CONFIG(18, 28, 8, 7, 12) EXPERTS_CONFIG(6, 1, 1), "qk_rope_head_dim must be even"},
               {LATENT_CONFIG(18, 28, 8, 8, 13) EXPERTS_CONFIG(6, 1, 1), "self_attn.kv_b_proj.weight"}}},
    /* The config.json of GLM-4.7-Flash has neither the gate nor the method. */
    {.model = {SHAPE("deepseek2", 2, 1), LATENT(18, 28, 8, 8, 12), .n_dense = 1, .n_expert = 6, .n_ff_shared = 24,
               .has_sigmoid_router = true, .divides_by_chosen = true, .expert_scale = 2.5, .n_nextn = 1, .seed = 3},
     .config = V3 ARCH("Glm4MoeLiteForCausalLM") ", \"n_group\": 1, \"topk_group\": 1, \"norm_topk_prob\": true",
     .wrong = {{V3 ", \"n_shared_experts\": 2", "mlp.shared_experts"}}},
    {.model = {SHAPE("glm4moe", 3, 2), .head_dim = 16, .n_rot = 8, .n_dense = 1, .n_expert = 6, .n_ff_shared = 24,
               .has_sigmoid_router = true, .divides_by_chosen = true, .expert_scale = 1.5, .head_norms = true,
               .n_nextn = 1, .seed = 4},
     .config = GLM ", \"norm_topk_prob\": true, \"attention_bias\": true, \"use_qk_norm\": true",
     .wrong = {{GLM ", \"first_k_dense_replace\": 2", "mlp.gate_proj.weight is missing"},
               {EXPERTS_CONFIG(6, 1, 1) ", \"partial_rotary_factor\": 0.2", "3 of the 16 components"},
               {EXPERTS_CONFIG(6, 1, 1) ", \"head_dim\": 24", "self_attn.q_proj.weight"}}},
    {.model = {SHAPE("glm4moe", 2, 1), .head_dim = 16, .n_rot = 8, .n_dense = 1, .n_expert = 4, .n_ff_shared = 24,
               .has_sigmoid_router = true, .divides_by_chosen = true, .seed = 5},
     .config = EXPERTS_CONFIG(4, 1, 1)},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static Gguf *make_model(const Case *c) {
    fr_error err;
    if (random_model_write(&c->model, MODEL, &err)) fail_msg("%s", err.message);
    return rig_gguf(MODEL);
}

static void take_apart(const Gguf *g, const char *config) {
    convert_rig_clear();
    hub_build_write(g, FOLDER, &(HubBuild){.type = TYPE_F32, .n_parts = 1, .vocab = HUB_SPM, .config = config});
}

static void published_forms_are_converted(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        Gguf *model = make_model(&cases[i]);
        take_apart(model, cases[i].config);
        convert_rig_convert(TYPE_F32);
        Gguf *out = rig_gguf(OUT);
        convert_rig_compare_tensors(model, out, TYPE_F32, TYPE_F32);
        convert_rig_same_output("logits -m %s --tokens 1,30,40,500,7,8,9,10,11 -o - | cksum", MODEL, OUT);
        if (cases[i].model.n_nextn)
            convert_rig_same_output("run -m %s --draft mtp -p 'a b c' -n 12 --ignore-eos --stats-json " DIR
                                    "/stats.json && tr ',{' '\\n\\n' <" DIR "/stats.json | grep 'drafted\\|accepted'",
                                    MODEL, OUT);
        gguf_close(out);
        for (int k = 0; k < 6 && cases[i].wrong[k].config; k++) {
            take_apart(model, cases[i].wrong[k].config);
            convert_rig_expect_refused(cases[i].wrong[k].why);
        }
        gguf_close(model);
    }
}

/* Checkpoints that transformers wrote lack the layer for multi-token prediction, even if config.json has it. */
static void a_layer_that_was_left_out_is_not_missed(void **state) {
    (void)state;
    Case without = cases[1];
    int64_t n = 0;
    without.model.n_nextn = 0;
    Gguf *model = make_model(&without);
    take_apart(model, without.config);
    convert_rig_convert(TYPE_BF16);
    Gguf *out = rig_gguf(OUT);
    assert_true(gguf_get_i64(out, "deepseek2.block_count", &n) && n == 3);
    assert_true(gguf_find_key(out, "deepseek2.nextn_predict_layers") < 0);
    assert_int_equal(gguf_find_tensor(out, "blk.1.attn_k_b.weight")->type, TYPE_BF16);
    assert_int_equal(gguf_find_tensor(out, "blk.1.exp_probs_b.bias")->type, TYPE_F32);
    gguf_close(out);
    gguf_close(model);
}

int main(int argc, char **argv) {
    (void)argc;
    convert_rig_begin(argv[0], DIR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_forms_are_converted),
                                       cmocka_unit_test(a_layer_that_was_left_out_is_not_missed)};
    return cmocka_run_group_tests(tests, convert_rig_make_dir, convert_rig_drop_dir);
}
