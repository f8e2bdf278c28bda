/* test_train_archs.c - `forerun train` for targets of other architectures than llama: each method trains, its drafter
 * runs and changes no text; methods that cannot be trained for a target are refused with the reason. */
#define DIR "build/test-train-archs"
#include "train_rig.h"

#include "all_drafters.h"
#include "random_model.h"

#include <stdio.h>
#include <string.h>

#define TARGET DIR "/target.gguf"
#define SHAPE(a, layers) \
    .arch = a, .n_layer = layers, .n_embd = 64, .n_head = 4, .n_head_kv = 2, .n_ff = 96, .n_vocab = 300
#define HYBRID(keys, values, dim, interval) \
    .n_key_heads = keys, .n_value_heads = values, .delta_dim = dim, .n_conv = 3, .attention_interval = interval

static const RandomModel targets[] = {
    {SHAPE("qwen35", 4), HYBRID(2, 4, 16, 2), .n_rot = 8, .seed = 1},
    {SHAPE("qwen3next", 3), HYBRID(1, 3, 20, 3), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 24,
     .n_ff_shared = 40, .seed = 2},
    {SHAPE("lfm2", 4), .n_conv = 3, .attention_interval = 3, .seed = 7},
    {SHAPE("granitehybrid", 3), HYBRID(1, 6, 16, 3), .n_ssm_state = 12, .seed = 8},
    {.arch = "mamba2", .n_layer = 3, .n_embd = 64, .n_vocab = 300, HYBRID(2, 6, 16, 0), .n_ssm_state = 12, .seed = 9},
    {SHAPE("qwen3", 2), .seed = 3},
    {SHAPE("gemma3", 3), .window = 9, .tied = true, .seed = 4},
    {SHAPE("gemma4", 4), .head_dim = 32, .local_head_dim = 16, .window = 9, .attention_interval = 2, .n_shared_kv = 2,
     .n_ple = 16, .tied = true, .seed = 10},
    {SHAPE("granite", 2), .tied = true, .seed = 5},
    {SHAPE("gpt-oss", 3), .n_expert = 5, .n_expert_used = 2, .n_ff_expert = 32, .window = 7, .seed = 6},
};
enum { N_TARGETS = sizeof targets / sizeof *targets };

/* Masks are trained through the target's layers, which these targets do not allow. */
static bool has_masks(const char *method) { return strcmp(method, "space") == 0; }
/* The drafter has a layer with a KV cache of its own, in the form of the target's. */
static bool has_layer(const char *method) {
    return strncmp(method, "eagle", 5) == 0 || strcmp(method, "lyanna") == 0 || strcmp(method, "dflash") == 0 ||
           strcmp(method, "mtp") == 0;
}
/* Returns why a method cannot be trained for that target; NULL: it can. */
static const char *reason_of(const char *method, const char *arch) {
    if (strcmp(method, "mtp") != 0 || strcmp(arch, "qwen35") == 0 || strcmp(arch, "qwen3") == 0) return NULL;
    if (strcmp(arch, "qwen3next") == 0) return "has experts, which forerun train mtp does not support";
    return "reads no layers for multi-token prediction for the architecture";
}

static void train(const char *method, const char *steps, int status, const char *words) {
    char args[500];
    snprintf(args, sizeof args,
             "train %s -m " TARGET " --data " DATA
             " --valid 0 --length 24 --batch 4 --steps %s --threads 2 --force -o " OUT " 2>&1",
             method, steps);
    cli_expect(args, status, words);
}

static void each_method_trains_for_each_target(void **state) {
    (void)state;
    char args[300];
    for (int t = 0; t < N_TARGETS; t++) {
        fr_error err;
        if (random_model_write(&targets[t], TARGET, &err)) fail_msg("%s", err.message);
        for (const char *const *m = trained_methods(); *m; m++) {
            if (has_masks(*m)) continue;
            const char *reason = reason_of(*m, targets[t].arch);
            train_rig_shell("rm -f " OUT "*");
            train(*m, "3", reason ? 1 : 0, reason ? reason : "");
            if (reason) continue;
            assert_true(train_rig_exists(OUT));
            snprintf(args, sizeof args,
                     "compare -m " TARGET " -p 'the cat read' -n 24 --temp 0.8 --draft %s:file=" OUT " 2>&1", *m);
            cli_expect(args, 0, *m); /* the status is 1 if a text differs */
        }
    }
}

static void masks_are_refused_by_name(void **state) {
    (void)state;
    for (int t = 0; t < N_TARGETS; t++) {
        fr_error err;
        if (random_model_write(&targets[t], TARGET, &err)) fail_msg("%s", err.message);
        train("space", "1", 1, "masks can be trained for targets of the architectures llama and qwen2 only");
    }
}

/* Only heads can be trained for a model with latent attention; its cache fits no drafter's layer. */
static void layers_are_refused_for_latents(void **state) {
    (void)state;
    static const RandomModel latent = {SHAPE("deepseek2", 2), .kv_rank = 24, .plain_dim = 10, .n_rot = 6,
                                       .value_dim = 12,       .seed = 10};
    fr_error err;
    if (random_model_write(&latent, TARGET, &err)) fail_msg("%s", err.message);
    for (const char *const *m = trained_methods(); *m; m++)
        if (!has_masks(*m))
            train(*m, "2", has_layer(*m),
                  has_layer(*m) ? "cannot be trained for a model with latent attention (MLA)" : "");
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    train_rig_make_files(DIR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_method_trains_for_each_target),
        cmocka_unit_test(masks_are_refused_by_name),
        cmocka_unit_test(layers_are_refused_for_latents),
    };
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    train_rig_drop_files(DIR);
    return status;
}
