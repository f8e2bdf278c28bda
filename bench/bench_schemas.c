/* bench_schemas.c - generates JSON answers under many schemas, with plain decoding and with drafts.
 *
 *   bench_schemas MODEL schemas.jsonl texts.jsonl [DRAFT]...
 *
 * For each schema (a line of JSON) and each of three samplings, a text is generated without drafts, with only
 * `grammar`, and with all given drafts as well. All three must be the same, bit for bit. Texts go to texts.jsonl, for
 * bench/schemas/check_schemas.mjs, which checks them with ajv. Prints the tokens per step with only `grammar`.
 */
#include "forerun.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 500, N_SAMPLINGS = 3 };

static fr_model *model;
static fr_engine *engine;
static int32_t *prompt;
static int64_t n_prompt;
static fr_stats sum;

static void die(const fr_error *err) {
    fprintf(stderr, "%s\n", err->message);
    exit(1);
}

static fr_request *generate(const fr_grammar *g, int i, const char *const *drafts, int n_drafts) {
    fr_error err;
    fr_request *r;
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = n_prompt,
                            .max_tokens = MAX_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = drafts,
                            .n_drafts = n_drafts,
                            .grammar = g};
    o.sampling.temperature = i == 0 ? 0 : i == 1 ? 0.7f : 1.1f;
    o.sampling.seed = (uint64_t)i;
    if (i == 2) o.sampling.top_p = 0.95f, o.sampling.repeat_penalty = 1.1f;
    if (fr_request_open(&r, engine, &o, &err)) die(&err);
    while (fr_engine_step(engine, &err) > 0) {}
    if (fr_request_finish_reason(r) == FR_FINISH_ERROR) die(fr_request_error(r));
    return r;
}

static int is_same(const fr_request *a, const fr_request *b) {
    int64_t n, m;
    const int32_t *x = fr_request_tokens(a, &n), *y = fr_request_tokens(b, &m);
    fr_stats s = {.struct_size = sizeof s}, t = {.struct_size = sizeof t};
    fr_request_get_stats(a, &s);
    fr_request_get_stats(b, &t);
    return n == m && memcmp(x, y, (size_t)n * sizeof *x) == 0 && s.logits_hash == t.logits_hash &&
           fr_request_finish_reason(a) == fr_request_finish_reason(b) && !*fr_request_draft_error(b);
}

static void count(const fr_request *r) {
    fr_stats s = {.struct_size = sizeof s};
    fr_request_get_stats(r, &s);
    sum.n_generated += s.n_generated;
    sum.n_steps += s.n_steps;
    sum.drafted += s.drafted;
    sum.accepted += s.accepted;
}

static void write_line(FILE *out, const char *schema, const fr_request *r, int same) {
    size_t n;
    const char *text = fr_request_text(r, &n);
    json_t *j = json_pack("{s:o, s:s, s:b}", "text", json_stringn(text, n), "finish",
                          fr_finish_name(fr_request_finish_reason(r)), "same", same);
    char *rest = json_dumps(j, 0);
    if (!rest) fprintf(stderr, "a text is not UTF-8\n"), exit(1);
    fprintf(out, "{\"schema\": %s, %s\n", schema, rest + 1);
    free(rest);
    json_decref(j);
}

static int run_schema(FILE *out, const char *schema, const char *const *drafts, int n_drafts) {
    static const char *const none[] = {"none"};
    fr_grammar *g;
    fr_error err;
    int all_same = 1;
    if (fr_grammar_open(&g, model, FR_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), &err)) {
        fprintf(stderr, "%s\n  %s\n", err.message, schema);
        return 0;
    }
    for (int i = 0; i < N_SAMPLINGS; i++) {
        fr_request *plain = generate(g, i, none, 1), *alone = generate(g, i, NULL, 0),
                   *all = generate(g, i, drafts, n_drafts);
        int same = is_same(plain, alone) && is_same(plain, all);
        count(alone);
        write_line(out, schema, plain, same);
        all_same &= same;
        fr_request_close(plain);
        fr_request_close(alone);
        fr_request_close(all);
    }
    fr_grammar_close(g);
    return all_same;
}

int main(int argc, char **argv) {
    static const char text[] = "{\"answer\":";
    char *line = NULL;
    size_t size = 0;
    int n = 0, n_same = 0;
    fr_error err;
    if (argc < 4) fprintf(stderr, "bench_schemas MODEL schemas.jsonl texts.jsonl [DRAFT]...\n"), exit(2);
    const char *const *drafts = (const char *const *)argv + 4;
    fr_engine_options o = {.struct_size = sizeof o,
                           .n_threads = 1,
                           .max_requests = 3,
                           .drafts = drafts,
                           .n_drafts = argc - 4};
    if (fr_model_open(&model, argv[1], NULL, &err) || fr_engine_open(&engine, model, &o, &err)) die(&err);
    if (fr_tokenize(model, text, sizeof text - 1, FR_TOKENIZE_PROMPT, &prompt, &n_prompt, &err)) die(&err);
    FILE *in = fopen(argv[2], "r"), *out = fopen(argv[3], "w");
    if (!in || !out) fprintf(stderr, "a file cannot be opened\n"), exit(1);
    while (getline(&line, &size, in) > 0) {
        line[strcspn(line, "\n")] = '\0';
        n_same += run_schema(out, line, drafts, argc - 4);
        n++;
    }
    printf("%d schemas, %d the same with drafts; grammar alone: %.3f tokens a step, %lld of %lld drafted tokens "
           "accepted\n",
           n, n_same, (double)sum.n_generated / (double)sum.n_steps, (long long)sum.accepted, (long long)sum.drafted);
    fclose(in);
    fclose(out);
    free(line);
    fr_free(prompt);
    fr_engine_close(engine);
    fr_model_close(model);
    return n_same == n ? 0 : 1;
}
