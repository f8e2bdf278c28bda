/* test_golden.c - the golden files of ../shared/data/golden: logits by llama.cpp and exact logits of models of every
 * type. test_golden_own.c needs no ../shared.
 *
 * The rule for each case: the relative rms error of forerun's logits against the exact ones (float64, nothing rounded)
 * is at most 1.5 times that of llama.cpp plus 1e-5. The latter is computed again from the files, over prompt and
 * continuation together; if the manifest states it, both must agree. llama.cpp rounds activations to 8 bits, which is 2
 * % of noise; forerun rounds them to 16 and stays below 2e-4, so 5e-4 is an additional limit, except for BF16, which
 * both round alike.
 *
 * The greedy continuation must be the stored one, token for token.
 *
 * With 8-bit activations (--act q8) the error is like that of llama.cpp: Q8_LIMIT is the bound, and 2.8e-2 the worst
 * measured. A continuation that differs because two tokens are nearly equal is printed and is not a failure. */
#include "testing.h"

#include "model_rig.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN "../shared/data/golden/"

#define Q8_LIMIT 4e-2

typedef struct Golden {
    char name[64], model[256];
    int32_t n_prompt, n_gen, n_vocab;
    int32_t *tokens;       /* [n_prompt + n_gen] prompt, then the greedy continuation */
    float *peer, *exact;   /* [n_prompt + n_gen][n_vocab] */
    double stated_rel_rms; /* the peer's error; negative: not stated */
} Golden;

static json_t *read_json(const char *path) {
    json_error_t error;
    json_t *j = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!j) fail_msg("%s: %s", path, error.text);
    return j;
}

static void read_floats(const char *file, float *out, size_t n) {
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s", file);
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s cannot be read", path);
    size_t got = fread(out, sizeof *out, n, f);
    bool longer = fgetc(f) != EOF;
    fclose(f);
    if (got != n || longer) fail_msg("%s: %zu floats where %zu should be", path, got, n);
}

static int32_t int_of(const json_t *j, const char *key) { return (int32_t)json_integer_value(json_object_get(j, key)); }
static const char *text_of(const json_t *j, const char *key) { return json_string_value(json_object_get(j, key)); }

/* `entry`: one of the manifest's cases. */
static Golden read_golden(const json_t *entry) {
    Golden c = {.n_prompt = int_of(entry, "n_prompt"),
                .n_gen = int_of(entry, "n_gen"),
                .n_vocab = int_of(entry, "n_vocab"),
                .stated_rel_rms = -1};
    snprintf(c.name, sizeof c.name, "%s", text_of(entry, "case"));
    snprintf(c.model, sizeof c.model, GOLDEN "%s", text_of(entry, "model"));
    json_t *stated = json_object_get(entry, "peer_vs_exact_rel_rms"), *files = json_object_get(entry, "files");
    if (json_is_number(stated)) c.stated_rel_rms = json_number_value(stated);
    char path[512];
    snprintf(path, sizeof path, GOLDEN "%s.json", c.name);
    json_t *own = read_json(path);
    json_t *prompt = json_object_get(own, "prompt_tokens"), *greedy = json_object_get(own, "greedy_tokens");
    if ((int32_t)json_array_size(prompt) != c.n_prompt || (int32_t)json_array_size(greedy) != c.n_gen)
        fail_msg("%s: %zu and %zu tokens where %d and %d should be", path, json_array_size(prompt),
                 json_array_size(greedy), c.n_prompt, c.n_gen);
    int32_t n = c.n_prompt + c.n_gen;
    c.tokens = calloc((size_t)n, sizeof *c.tokens);
    for (int32_t i = 0; i < n; i++)
        c.tokens[i] = (int32_t)json_integer_value(i < c.n_prompt ? json_array_get(prompt, (size_t)i)
                                                                 : json_array_get(greedy, (size_t)(i - c.n_prompt)));
    size_t n_first = (size_t)c.n_prompt * (size_t)c.n_vocab, n_rest = (size_t)c.n_gen * (size_t)c.n_vocab;
    c.peer = calloc(n_first + n_rest, sizeof *c.peer);
    c.exact = calloc(n_first + n_rest, sizeof *c.exact);
    read_floats(text_of(files, "logits"), c.peer, n_first);
    read_floats(text_of(files, "gen"), c.peer + n_first, n_rest);
    read_floats(text_of(files, "exact_logits"), c.exact, n_first);
    read_floats(text_of(files, "exact_gen"), c.exact + n_first, n_rest);
    json_decref(own);
    return c;
}

static void free_golden(Golden *c) {
    free(c->tokens);
    free(c->peer);
    free(c->exact);
}

static double rel_rms(const float *a, const float *b, size_t n) {
    double d = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        double x = (double)a[i] - (double)b[i];
        d += x * x, s += (double)b[i] * (double)b[i];
    }
    return sqrt(d / s);
}

static int32_t argmax(const float *x, int32_t n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* Returns the error of llama.cpp: the scale for the error of an engine that rounds its inputs. */
static double peer_error(const Golden *c) {
    double error = rel_rms(c->peer, c->exact, (size_t)(c->n_prompt + c->n_gen) * (size_t)c->n_vocab);
    /* the exact logits are rounded to float in their files: 2^-24 / sqrt(3) more */
    if (c->stated_rel_rms >= 0 && fabs(error - c->stated_rel_rms) > 1e-3 * error + 4e-8)
        fail_msg("%s: the peer's error is %.4e by its files and %.4e by the manifest", c->name, error,
                 c->stated_rel_rms);
    return error;
}

static void check_values(const Golden *c, const Kernels *kernels, ActPrecision form) {
    Gguf *g = rig_gguf(c->model);
    Weights *m = rig_weights_with(g, kernels, form);
    int32_t n = c->n_prompt + c->n_gen;
    RigOptions o = rig_options(n, 32);
    Executor *e = rig_executor(m, &o);
    size_t n_all = (size_t)n * (size_t)c->n_vocab;
    float *logits = calloc(n_all, sizeof *logits);
    assert_int_equal(m->model->hparams.n_vocab, c->n_vocab);
    rig_append(e, rig_sequence(e), c->tokens, n, 32, c->n_vocab, logits);
    double ours = rel_rms(logits, c->exact, n_all), peer = peer_error(c), bound = 1.5 * peer + 1e-5;
    if (m->model->output->type != TYPE_BF16) bound = fmin(bound, 5e-4);
    const ActForm up = act_form(m->model->layers[0].matrices[MATRIX_UP]->type,
                                form == ACT_PRECISION_Q8 ? ACT_Q8 : ACT_Q16);
    if (up == ACT_Q8) bound = Q8_LIMIT;
    print_message("%-18s %-12s %s ours %.3e  peer %.3e\n", c->name, kernels->name, act_form_name(up), ours, peer);
    if (!(ours <= bound))
        fail_msg("%s with %s: relative rms error of logits %.3e, peer %.3e, at most %.3e", c->name, kernels->name, ours,
                 peer, bound);
    free(logits);
    rig_executor_close(e);
    rig_weights_close(m);
    gguf_close(g);
}

/* Returns the first token of the greedy continuation that is not the stored one, or -1. */
static int32_t greedy_parts_at(const Golden *c, const Kernels *kernels, ActPrecision form) {
    Gguf *g = rig_gguf(c->model);
    Weights *m = rig_weights_with(g, kernels, form);
    RigOptions o = rig_options(c->n_prompt + c->n_gen, 64);
    Executor *e = rig_executor(m, &o);
    int32_t sequence = rig_sequence(e);
    float *logits = calloc((size_t)c->n_prompt * (size_t)c->n_vocab, sizeof *logits);
    rig_append(e, sequence, c->tokens, c->n_prompt, 64, c->n_vocab, logits);
    const float *last = logits + (size_t)(c->n_prompt - 1) * (size_t)c->n_vocab;
    int32_t parts_at = -1;
    for (int32_t i = 0; i < c->n_gen && parts_at < 0; i++) {
        int32_t token = argmax(last, c->n_vocab), golden = c->tokens[c->n_prompt + i];
        if (token != golden) {
            print_message("%s with %s, %s: token %d of the continuation is %d (logit %g), not %d (logit %g)\n", c->name,
                          kernels->name, act_precision_name(form), i, token, (double)last[token], golden,
                          (double)last[golden]);
            parts_at = i;
        }
        rig_append(e, sequence, &token, 1, 1, c->n_vocab, logits);
        last = logits;
    }
    free(logits);
    rig_executor_close(e);
    rig_weights_close(m);
    gguf_close(g);
    return parts_at;
}

static void check_greedy(const Golden *c, const Kernels *kernels, ActPrecision form) {
    int32_t parts_at = greedy_parts_at(c, kernels, form);
    if (form == ACT_PRECISION_Q16 && parts_at >= 0)
        fail_msg("%s with %s: another text from token %d on", c->name, kernels->name, parts_at);
}

/* All tables with 16 bits, and the best one with 8: test_kernels_matmul proves that all tables agree. */
static void for_every_case_and_table(void (*check)(const Golden *, const Kernels *, ActPrecision)) {
    json_t *manifest = read_json(GOLDEN "manifest.json"), *all = json_object_get(manifest, "cases"), *entry;
    assert_true(json_array_size(all) > 0);
    int n_tables;
    const Kernels *const *tables = kernels_available(&n_tables);
    size_t i;
    json_array_foreach(all, i, entry) {
        Golden c = read_golden(entry);
        for (int k = 0; k < n_tables; k++) check(&c, tables[k], ACT_PRECISION_Q16);
        check(&c, tables[n_tables - 1], ACT_PRECISION_Q8);
        free_golden(&c);
    }
    json_decref(manifest);
}

static void logits_are_as_near_to_the_exact_ones_as_the_peer(void **state) {
    (void)state;
    need_shared();
    for_every_case_and_table(check_values);
}

static void greedy_continuations_are_the_stored_ones(void **state) {
    (void)state;
    need_shared();
    for_every_case_and_table(check_greedy);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_as_near_to_the_exact_ones_as_the_peer),
        cmocka_unit_test(greedy_continuations_are_the_stored_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
