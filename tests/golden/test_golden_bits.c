/* test_golden_bits.c - golden hashes of functions, tokens and logits, which every build must produce: any processor,
 * any kernel table, any C library. `make check-bits` runs this program in builds with another C library and for 64-bit
 * ARM.
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
    int times; /* so often the prompt repeats its text; a long one is read in several tiles of keys */
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
    enum { LONG = 140 };
    static const char text[] = "Once upon a time";
    static const Case cases[] = {
        {NULL, FR_KV_F16, 0, 1, "none", 1, 0x70a6a8848f07e725},
        {NULL, FR_KV_F16, 0, 1, "eagle:file=models/eagle.gguf", 1, 0x70a6a8848f07e725},
        {NULL, FR_KV_F16, 0.8f, 0.95f, "ngram-trie", 1, 0x9e14e23095029fe4},
        {"q8", FR_KV_Q8, 1, 1, "sps:model=models/draft.gguf", 1, 0xeacd3b0e53f7c5c8},
        {NULL, FR_KV_F16, 0, 1, "ngram-trie", LONG, 0x70f85f833e50459f},
        {"q8", FR_KV_Q8, 0, 1, "none", LONG, 0x3c648e9cf22c3b62},
    };
    static char prompt_text[LONG * sizeof text];
    static Stream got;
    int n_wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        fr_model *model = rig_open_model_with("models/target.gguf", NULL, c->activations);
        fr_engine *e = rig_open_engine(model, &(fr_engine_options){.struct_size = sizeof(fr_engine_options),
                                                                   .n_ctx = 800,
                                                                   .n_threads = 1,
                                                                   .kv_type = c->kv_type});
        int32_t *prompt;
        int64_t n;
        fr_error err;
        for (int k = 0; k < c->times; k++) memcpy(prompt_text + (size_t)k * strlen(text), text, sizeof text);
        if (fr_tokenize(model, prompt_text, strlen(prompt_text), FR_TOKENIZE_PROMPT, &prompt, &n, &err))
            fail_msg("%s", err.message);
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
        if (c->times > 1) assert_true(n > 512);
        if (hash_of(&got) == c->hash) continue;
        n_wrong++;
        print_message("case %d: 0x%016llx\n", (int)i, (unsigned long long)hash_of(&got));
    }
    assert_int_equal(n_wrong, 0);
}

/* The hashes of small_models, in their order. */
static const struct {
    const char *arch;
    uint64_t greedy, drawn;
} golden[] = {
    {"llama", 0xae65f93c5a7e9598, 0x11b2274a26b55258},
    {"qwen2", 0x5efef4fa0091e6df, 0x50b73debe5cf15f1},
    {"qwen3", 0xd859fcd405188c43, 0x4bc5dba0eba6f9e2},
    {"llama", 0xc495491dfe6c333f, 0x507d177987e785e9},
    {"qwen2moe", 0xc62f0db340593ed2, 0x09c32dc017ca2ff1},
    {"qwen3moe", 0xa6aab3788ca069d2, 0x6932535e1a596ff5},
    {"gemma2", 0xadc5ce70c4d25249, 0x74912301483e1376},
    {"gemma3", 0xe2f637d5b66888c3, 0x7fed1558b51a03b6},
    {"phi3", 0xdd3b27de448c66db, 0x3bae77701709fb0b},
    {"smollm3", 0xdae3afabab2386e8, 0x8a023887ac03137b},
    {"granite", 0xdb77c5a45e4840f3, 0xf0493ea5e7041c31},
    {"qwen35", 0x1b9b9a4c2213e1ab, 0x2b3dd7cceea39420},
    {"qwen35moe", 0xc5a2098282ad2a05, 0xb642fc66a38d585c},
    {"qwen3next", 0xcbe68a850a83265b, 0x82355e67b7c5a0ea},
    {"lfm2", 0xf64d2755645cfae5, 0xb651dab71d2b2e96},
    {"granitehybrid", 0x074dbb2368912d0f, 0x928dfbfe86080788},
    {"granitehybrid", 0xa7eeb6fb11f4d05c, 0x91ddab5a08bd3028},
    {"mamba2", 0xc76fc6c8a3323024, 0x03b9c21ddca4cbdb},
    {"gpt-oss", 0xe9800d48c47811c9, 0x5da3378f8b02566f},
    {"deepseek2", 0xb867210efa3668e0, 0xf5f809d11296944b},
    {"deepseek2", 0x5a2e3ebd4e18a513, 0xb2d44972cdcb04fa},
    {"deepseek2", 0x29c14bd15a70ab53, 0x4bc749e1d12011d1},
    {"glm4moe", 0x296e2a41ccb1feef, 0x4e2d222fa4b3f9ff},
    {"mistral3", 0x3f0fb32fc44ce4d4, 0xa9e6985149d699ff},
    {"deepseek2", 0x82a9f3df94710513, 0x98ccba60ec1bac49},
    {"llama4", 0x80599913e340e9c0, 0x8fd781ad050129e0},
    {"llama", 0x36ecb027cddb6303, 0xf33b49809fc7cd2c},
    {"llama", 0x7f7de351e298e268, 0xafa1d8d5ba694e0f},
    {"lfm2moe", 0x81a85ccfd91efda1, 0x85bb988a1be0fe74},
    {"gemma4", 0x2dc0fe04c9d48867, 0x6db988837505762c},
    {"gemma4", 0x42872083d32595fb, 0x3e56c773669251fb},
    {"gemma4", 0x3cbe7521d1004295, 0x64465dc288845361},
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
