/* test_golden_long.c - the logits of Llama 4 after more than 8192 tokens, where its second chunk begins and its scores
 * begin to grow. No key of its files changes these numbers for llama.cpp, so nothing shorter can be compared with it.
 *
 * tests/golden/data/llama4-long.json has the most probable tokens at positions before and after the border, by
 * llama.cpp. The text is not stored: it is drawn from the name. `test_golden_long --write FOLDER` writes the model, for
 * make_golden.py. */
#include "testing.h"

#include "model_rig.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME "llama4-long"

enum { N_VOCAB = 320, N_TOKENS = 8200, CHUNK_OF_PREFILL = 256, N_LAST = 16 };

static const RandomModel model = {.arch = "llama4",
                                  .n_layer = 4,
                                  .n_embd = 32,
                                  .n_head = 1,
                                  .n_head_kv = 1,
                                  .head_dim = 8,
                                  .n_ff = 48,
                                  .n_vocab = N_VOCAB,
                                  .n_expert = 4,
                                  .n_expert_used = 1,
                                  .n_ff_expert = 32,
                                  .n_ff_shared = 32,
                                  .expert_interval = 2,
                                  .rope_base = 5e5,
                                  .rope_factors = true,
                                  .seed = 180};

/* The same text as prompt_of in make_golden.py. */
static void draw_tokens(int32_t *out) {
    uint32_t state = 0, power = 1;
    for (const char *c = NAME; *c; c++, power *= 31) state += (uint32_t)(unsigned char)*c * power;
    for (int i = 0; i < N_TOKENS; i++) {
        state = 1664525 * state + 1013904223;
        out[i] = (int32_t)(3 + (state >> 8) % (N_VOCAB - 3));
    }
}

/* Returns the logits of the last N_LAST tokens. */
static float *last_logits(const RandomModel *m) {
    static int32_t tokens[N_TOKENS];
    float *out = calloc((size_t)N_LAST * N_VOCAB, sizeof *out);
    draw_tokens(tokens);
    Gguf *g = rig_random_gguf(m);
    Weights *w = rig_weights(g, NULL);
    RigOptions o = rig_options(N_TOKENS, CHUNK_OF_PREFILL);
    Executor *e = rig_executor(w, &o);
    int32_t s = rig_sequence(e);
    rig_append(e, s, tokens, N_TOKENS - N_LAST, CHUNK_OF_PREFILL, N_VOCAB, NULL);
    rig_append(e, s, tokens + N_TOKENS - N_LAST, N_LAST, N_LAST, N_VOCAB, out);
    rig_executor_close(e);
    rig_weights_close(w);
    gguf_close(g);
    return out;
}

static json_t *read_golden(void) {
    json_error_t error;
    json_t *file = json_load_file("tests/golden/data/" NAME ".json", 0, &error);
    if (!file) fail_msg("%s", error.text);
    return file;
}

static const float *row_of(const float *logits, const json_t *row) {
    json_int_t i = json_integer_value(json_object_get(row, "position")) - (N_TOKENS - N_LAST);
    assert_true(i >= 0 && i < N_LAST);
    return logits + i * N_VOCAB;
}

/* Returns the greatest difference from a log-probability by llama.cpp. */
static double peer_error(const json_t *file, const float *logits) {
    const json_t *row, *token;
    size_t k, i;
    double worst = 0;
    assert_true(json_array_size(json_object_get(file, "llama_cpp")) == 4);
    json_array_foreach(json_object_get(file, "llama_cpp"), k, row) {
        const float *ours = row_of(logits, row);
        double total = 0;
        for (int t = 0; t < N_VOCAB; t++) total += exp((double)ours[t]);
        json_array_foreach(json_object_get(row, "tokens"), i, token) {
            double theirs = json_number_value(json_array_get(json_object_get(row, "logprobs"), i));
            worst = fmax(worst, fabs((double)ours[json_integer_value(token)] - log(total) - theirs));
        }
    }
    return worst;
}

static void logits_after_the_border_are_the_stored_ones(void **state) {
    (void)state;
    json_t *file = read_golden();
    float *logits = last_logits(&model);
    double peer = peer_error(file, logits);
    print_message("llama.cpp %.2e\n", peer);
    if (!(peer < 5e-5)) fail_msg("a log-probability differs from llama.cpp's by %.3e", peer);
    free(logits);
    json_decref(file);
}

/* Controls: a chunk that ends one position earlier or later, and scores that grow one position earlier. */
static void a_border_off_by_one_is_detected(void **state) {
    (void)state;
    json_t *file = read_golden();
    RandomModel wrong[] = {model, model, model};
    wrong[0].window = 8191, wrong[1].window = 8193, wrong[2].temperature_length = 8191;
    for (int i = 0; i < 3; i++) {
        float *logits = last_logits(&wrong[i]);
        double error = peer_error(file, logits);
        print_message("window %d, temperature_length %d: error %.2e\n", wrong[i].window, wrong[i].temperature_length,
                      error);
        if (!(error > 1e-3)) fail_msg("not detected: %.3e", error);
        free(logits);
    }
    json_decref(file);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0) {
        char path[1024];
        fr_error err = {0};
        snprintf(path, sizeof path, "%s/" NAME ".gguf", argv[2]);
        if (!random_model_write(&model, path, &err)) return 0;
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_after_the_border_are_the_stored_ones),
                                       cmocka_unit_test(a_border_off_by_one_is_detected)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
