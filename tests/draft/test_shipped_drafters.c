/* test_shipped_drafters.c - the drafters in models/, which this code trained for models/target.gguf: each opens,
 * changes no token (greedy and sampled), and reaches a minimum acceptance length. That length depends only on model,
 * files and prompts, so a test can require it. */
#include "engine_rig.h"

#include <string.h>

#define TARGET "models/target.gguf"

static const char *const prompts[] = {
    "Once upon a time there was a little girl who had a",
    "USER: What do bees make?\nASSISTANT:",
    "The king had three sons. The youngest of them",
};
enum { N_PROMPTS = sizeof prompts / sizeof *prompts, N_TOKENS = 80 };

static const struct {
    const char *spec;
    double least; /* the least number of tokens accepted per step on these prompts, with 16 nodes, greedy */
} drafters[] = {
    {"lyanna:file=models/lyanna.gguf", 3.0}, {"lyanna:file=models/lyanna-paper.gguf", 3.0},
    {"eagle:file=models/eagle.gguf", 3.0},   {"redrafter:file=models/redrafter.gguf", 2.1},
    {"medusa:file=models/medusa.gguf", 1.5}, {"hydra:file=models/hydra.gguf", 1.8},
    {"space:file=models/space.gguf", 1.3},
};
enum { N_DRAFTERS = sizeof drafters / sizeof *drafters };

static void generate(fr_engine *engine, const fr_model *model, const char *prompt, const char *spec, double temperature,
                     Stream *out) {
    fr_request_options o = {.struct_size = sizeof o,
                            .max_tokens = N_TOKENS,
                            .tree_budget = 16,
                            .ignore_eos = 1,
                            .sampling = fr_sampling_default()};
    int32_t *tokens;
    assert_int_equal(fr_tokenize(model, prompt, strlen(prompt), FR_TOKENIZE_PROMPT, &tokens, &o.n_prompt, NULL), 0);
    o.prompt = tokens;
    o.sampling.temperature = (float)temperature;
    o.drafts = &spec;
    o.n_drafts = spec != NULL;
    rig_run_request(engine, &o, out);
    fr_free(tokens);
}

static void each_leaves_the_text_of_the_target_unchanged(void **state) {
    (void)state;
    static Stream plain, drafted;
    fr_model *model = rig_open_model(TARGET, NULL);
    fr_engine *engine = rig_open_engine(model, NULL);
    for (int d = 0; d < N_DRAFTERS; d++) {
        int64_t n_tokens = 0, n_passes = 0;
        for (int i = 0; i < N_PROMPTS; i++) {
            for (double temperature = 0; temperature < 1; temperature += 0.7) {
                generate(engine, model, prompts[i], NULL, temperature, &plain);
                generate(engine, model, prompts[i], drafters[d].spec, temperature, &drafted);
                rig_assert_same(&plain, &drafted, drafters[d].spec);
                if (temperature > 0) continue;
                n_tokens += drafted.stats.n_generated, n_passes += drafted.stats.n_steps;
            }
        }
        double each = (double)n_tokens / (double)n_passes;
        print_message("%s: %.2f tokens per step\n", drafters[d].spec, each);
        if (each < drafters[d].least)
            fail_msg("%s: %.2f tokens per step, at least %.2f expected", drafters[d].spec, each, drafters[d].least);
    }
    fr_engine_close(engine);
    fr_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_leaves_the_text_of_the_target_unchanged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
