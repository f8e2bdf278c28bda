/* test_token_info.c - unit tests of token info: compares every form of it with E'(t) = g * RMSNorm(E[t] W1 W2) in
 * double precision, with and without hot tokens. */
#include "lyanna_rig.h"

#include "base/rng.h"
#include "draft/learned/logit_corrections.h"

#include <math.h>

enum { V = LYANNA_V, N_TOKENS = 40 };

static const LyannaShape shapes[] = {
    {.path = "build/info-0.gguf", .type = TYPE_F32, .rank = 24},
    {.path = "build/info-1.gguf", .type = TYPE_F16, .rank = 32, .n_hot = 64},
    {.path = "build/info-2.gguf", .type = TYPE_Q8_0, .rank = 64, .n_hot = 75},
    {.path = "build/info-3.gguf", .type = TYPE_F16, .rank = 32, .n_hot = 7},
    {.path = "build/info-4.gguf", .type = TYPE_F16, .rank = 32, .n_hot = V},
};
enum { N_FILES = sizeof shapes / sizeof *shapes };
static LyannaWeights weights[N_FILES];

static int open_all(void **state) {
    lyanna_rig_open_target(state);
    for (int i = 0; i < N_FILES; i++) lyanna_rig_write(&weights[i], &shapes[i], 80 + (uint64_t)i);
    return 0;
}

static int close_all(void **state) {
    for (int i = 0; i < N_FILES; i++) learned_rig_free(&weights[i].rig);
    return lyanna_rig_close_target(state);
}

/* Opens token info as a drafter does. */
static void open_info(LearnedDrafter *l, TokenInfo *t, int i_file, TokenInfoForm form, int n_threads) {
    fr_error err;
    const DrafterEnv env = {.n_vocab = V,
                            .max_sequences = 1,
                            .target = lyanna_target.gguf,
                            .weights = lyanna_target.model,
                            .device = rig_device(lyanna_target.model, n_threads),
                            .n_ctx = 64};
    *l = (LearnedDrafter){0};
    if (learned_open(l, shapes[i_file].path, "lyanna", &env, &err) || token_info_open(t, l, "lyanna", form, &err))
        fail_msg("%s", err.message);
}

static void rows_are_the_formula(void **state) {
    (void)state;
    static const double tolerances[] = {[TOKEN_INFO_F16] = 5e-3, [TOKEN_INFO_Q8] = 5e-2, [TOKEN_INFO_FACTORS] = 1e-3};
    static float rows[N_TOKENS][V];
    static double info[V];
    for (int f = 0; f < N_FILES; f++)
        for (int form = TOKEN_INFO_F16; form <= TOKEN_INFO_FACTORS; form++) {
            LearnedDrafter l;
            TokenInfo t;
            double worst = 0;
            int n_with_info = 0;
            open_info(&l, &t, f, (TokenInfoForm)form, 1 + form);
            int32_t tokens[N_TOKENS];
            for (int32_t i = 0; i < N_TOKENS; i++) {
                tokens[i] = i < 4 ? weights[f].hot[i] : rig_token(3, (uint64_t)(i / 2), V); /* some twice, some cold */
                for (int32_t v = 0; v < V; v++) rows[i][v] = (float)(v % 7);
            }
            token_info_add(&t, tokens, 0, rows[0]);
            token_info_add(&t, tokens, N_TOKENS, rows[0]);
            for (int32_t i = 0; i < N_TOKENS; i++) {
                lyanna_rig_info(&weights[f], tokens[i], info);
                for (int32_t v = 0; v < V; v++) {
                    worst = fmax(worst, fabs((double)rows[i][v] - v % 7 - info[v]));
                    n_with_info += info[v] != 0;
                    if (info[v] == 0 && rows[i][v] != (float)(v % 7))
                        fail_msg("file %d: token %d changes the logit of the cold token %d", f, tokens[i], v);
                }
            }
            assert_true(n_with_info > 0);
            if (!(worst <= tolerances[form]))
                fail_msg("file %d, form %d: off by %g, at most %g", f, form, worst, tolerances[form]);
            token_info_close(&t);
            Device *device = l.device;
            learned_release(&l);
            device_close(device);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_the_formula)};
    return cmocka_run_group_tests(tests, open_all, close_all);
}
