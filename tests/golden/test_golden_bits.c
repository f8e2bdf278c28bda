/* test_golden_bits.c - golden hashes of functions, tokens and logits, which every build must produce: any processor,
 * any kernel table, any C library. `make cross-aarch64` and `make check-musl` run this program for 64-bit ARM and with
 * another C library.
 *
 * The hashes change with everything that changes a bit of a logit. Such a change is a new version of the numeric
 * contract (docs/ARCHITECTURE.md): it needs a line in CHANGELOG.md, and here what the failing tests print. */
#include "testing.h"

#include "base/hash.h"
#include "base/math_functions.h"
#include "base/rng.h"
#include "engine_rig.h"
#include "model_rig.h"

#include <math.h>
#include <string.h>

typedef struct Case {
    const char *activations;
    fr_kv_type kv_type;
    float temperature, top_p;
    const char *draft;
    uint64_t hash;
} Case;

/* Arguments of all sizes and signs for the functions of base/math_functions.h. */
static void the_functions_have_their_bits(void **state) {
    (void)state;
    static double results[40000][7];
    for (uint32_t i = 0; i < 40000; i++) {
        uint32_t w[4];
        rng_words(5, RNG_TEST, 1, i, w);
        double u = (w[0] + 0.5) * 0x1p-32, sign = w[1] % 2 ? -1 : 1, *r = results[i];
        double x = sign * ldexp(u, (int)(w[2] % 40) - 20), y = sign * ldexp(u, (int)(w[3] % 2000) - 1000);
        r[0] = math_exp(x), r[1] = math_log(fabs(y)), r[2] = math_log1p(fabs(x)), r[3] = math_tanh(x);
        r[4] = math_pow(fabs(y), x / 1000);
        math_sin_cos(i % 2 ? x : y, &r[5], &r[6]);
    }
    uint64_t hash = hash64(results, sizeof results, 0);
    if (hash != 0xfc4d0cdd06ba58b0) fail_msg("0x%016llx", (unsigned long long)hash);
}

/* Returns a hash of a text's tokens and of their logits. */
static uint64_t hash_of(const Stream *s) {
    return hash64(s->tokens, (size_t)s->n * sizeof *s->tokens, s->stats.logits_hash);
}

static void the_shipped_model_has_its_bits(void **state) {
    (void)state;
    static const Case cases[] = {
        {NULL, FR_KV_F16, 0, 1, "none", 0x7faf51ebc86bc57d},
        {NULL, FR_KV_F16, 0, 1, "eagle:file=models/eagle.gguf", 0x7faf51ebc86bc57d},
        {NULL, FR_KV_F16, 0.8f, 0.95f, "ngram-trie", 0x917fcb0d524a745b},
        {"q8", FR_KV_Q8, 1, 1, "sps:model=models/draft.gguf", 0x6557d4ac675607e1},
    };
    static const char text[] = "Once upon a time";
    static Stream got;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        fr_model *model = rig_open_model_with("models/target.gguf", NULL, c->activations);
        fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                   .n_ctx = 128,
                                                                   .n_threads = 1,
                                                                   .kv_type = c->kv_type});
        int32_t *prompt;
        int64_t n;
        fr_error err;
        if (fr_tokenize(model, text, strlen(text), FR_TOKENIZE_PROMPT, &prompt, &n, &err)) fail_msg("%s", err.message);
        fr_request_options o = {.struct_size = sizeof o,
                                .prompt = prompt,
                                .n_prompt = n,
                                .max_tokens = 16,
                                .sampling = fr_sampling_default(),
                                .drafts = &c->draft,
                                .n_drafts = 1,
                                .tree_budget = 8};
        o.sampling.temperature = c->temperature, o.sampling.top_p = c->top_p, o.sampling.seed = 3;
        rig_run_request(e, &o, &got);
        fr_free(prompt);
        fr_engine_close(e);
        fr_model_close(model);
        if (hash_of(&got) != c->hash) fail_msg("case %d: 0x%016llx", (int)i, (unsigned long long)hash_of(&got));
    }
}

/* The hashes of small_models, in their order. */
static const struct {
    const char *arch;
    uint64_t greedy, drawn;
} golden[] = {
    {"llama", 0x39ba3225706a20a2, 0xd0e9599b190d7810},
    {"qwen2", 0x2a9f685bee352cd9, 0xafdc05e03d9ddf83},
    {"qwen3", 0xd2bf477585483e6c, 0x28890a0f71b90988},
    {"llama", 0x2110bbc89b6643b1, 0x128034bf1d75b6b5},
    {"qwen2moe", 0xd20da644ae63f768, 0x2ac182d1b2dbfd98},
    {"qwen3moe", 0x6c4e25509e304bc3, 0xb86f4e1173f92a44},
    {"gemma2", 0xd2a9e41920ba8ff8, 0x62d765f295609aac},
    {"gemma3", 0xa61a72b47a1fadb1, 0xb0e297086bc2afa5},
    {"phi3", 0xf8cdcf70efbb542e, 0x1dc6813dcd27fad5},
    {"smollm3", 0xb876847356c875aa, 0x6084af769591baad},
    {"granite", 0x08a3022654218acb, 0xf8279729985ccfa2},
    {"qwen35", 0x7fe3bcc77919d9f3, 0xc42474c4c3fdaba3},
    {"qwen35moe", 0xc2b0dea1ec4123fb, 0x613187bdb70fc5a0},
    {"qwen3next", 0xc8b2c86bb303b84e, 0x56dc864d48c27f75},
    {"lfm2", 0xdc4fbc27ce2f8228, 0x44bb210583c799bf},
    {"granitehybrid", 0xae565bc66c87ff4c, 0xc99dda65f98961d5},
    {"granitehybrid", 0xee2a997042af1563, 0x91ddab5a08bd3028},
    {"mamba2", 0xc76fc6c8a3323024, 0x03b9c21ddca4cbdb},
    {"gpt-oss", 0xc65981322e196200, 0x7f0fdeceb8a61379},
    {"deepseek2", 0x9921e43774c86588, 0x41f1f745e370c765},
    {"deepseek2", 0x6e5af84e690af989, 0x84fed0bec370b2c2},
    {"deepseek2", 0xac34b273cf834810, 0xe9f03ce5a007edae},
    {"glm4moe", 0x1d417a5af4a0e99b, 0xed7115132a551400},
    {"mistral3", 0x401ab7f29fe53672, 0x61b8eeb7793d27dd},
    {"deepseek2", 0xb64b98733e8f22d8, 0x34810fd84a43ab5e},
    {"llama4", 0x2ed33b9b69c743f3, 0x43fe0908bf5c88e9},
    {"llama", 0x6aa347033b6f171a, 0x7cd6b91b2072f8fa},
    {"llama", 0x4efc7bdda1661900, 0xf23a2bf405839f9d},
    {"lfm2moe", 0xb4b28adb2b2176ba, 0x02cdc52c10f79715},
};

static void every_architecture_has_its_bits(void **state) {
    (void)state;
    enum { N_PROMPT = 12, N_TOKENS = 10 };
    static Stream got;
    int n_wrong = 0;
    for (int m = 0; m < n_small_models; m++) {
        fr_model *model = rig_open_random(&small_models[m]);
        fr_engine *e = rig_open_engine(
            model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options), .n_ctx = 32, .n_threads = 1});
        uint64_t hashes[2];
        for (int is_drawn = 0; is_drawn < 2; is_drawn++) {
            int32_t prompt[N_PROMPT];
            rig_tokens((uint64_t)m, SMALL_MODELS_VOCAB, prompt, N_PROMPT);
            fr_request_options o = {.struct_size = sizeof o,
                                    .prompt = prompt,
                                    .n_prompt = N_PROMPT,
                                    .max_tokens = N_TOKENS,
                                    .sampling = fr_sampling_default(),
                                    .ignore_eos = 1};
            if (is_drawn) o.sampling.temperature = 0.9f, o.sampling.top_p = 0.9f, o.sampling.seed = 7;
            rig_run_request(e, &o, &got);
            hashes[is_drawn] = hash_of(&got);
        }
        fr_engine_close(e);
        fr_model_close(model);
        bool is_known = m < (int)(sizeof golden / sizeof *golden) && strcmp(golden[m].arch, small_models[m].arch) == 0;
        if (is_known && hashes[0] == golden[m].greedy && hashes[1] == golden[m].drawn) continue;
        n_wrong++;
        print_message("{\"%s\", 0x%016llx, 0x%016llx},\n", small_models[m].arch, (unsigned long long)hashes[0],
                      (unsigned long long)hashes[1]);
    }
    assert_int_equal(n_wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_functions_have_their_bits),
        cmocka_unit_test(the_shipped_model_has_its_bits),
        cmocka_unit_test(every_architecture_has_its_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
