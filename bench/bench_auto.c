/* bench_auto.c - whether `--draft auto` is ever slower than plain decoding, by category of a file of prompts.
 *
 *   bench_auto MODEL.gguf PROMPTS.jsonl [DRAFT [ROUNDS [PROMPTS [TEMP [BUDGET [THREADS]]]]]]
 *
 * PROMPTS.jsonl has one object per line with "category" and "turns", of which the first is the prompt. For the first
 * PROMPTS (6) prompts of each category it generates once with plain decoding and once with DRAFT (auto), one right
 * after the other, in alternating order. Each of ROUNDS (5) rounds has fresh engines, so that no drafter has seen an
 * answer before. Prompts that leave no room for an answer are cut.
 *
 * A virtual machine runs at half its speed for seconds at a time. So a prompt's ratio is the median over its rounds of
 * (plain time / drafted time) of two successive runs, and its plain time the median over the rounds. A category's ratio
 * is its plain time over the drafted time that follows from these ratios. */
#include <forerun.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TOKENS = 128, MAX_PROMPTS = 1024, MAX_ROUNDS = 21, MAX_CATEGORIES = 32 };

typedef struct Prompt {
    char category[64];
    int32_t *tokens;
    int64_t n;
    double seconds[2][MAX_ROUNDS]; /* plain, drafted */
    fr_stats stats;                /* drafted */
    int64_t n_undrafted_steps;
} Prompt;

static Prompt prompts[MAX_PROMPTS];
static int n_prompts, n_rounds = 5, n_each = 6, tree_budget, n_threads;
static const char *draft = "auto";
static float temperature;

static void die(const char *what) {
    fprintf(stderr, "bench_auto: %s\n", what);
    exit(1);
}

static int n_of(const char *category) {
    int n = 0;
    for (int i = 0; i < n_prompts; i++) n += strcmp(prompts[i].category, category) == 0;
    return n;
}

static void read_prompts(const fr_model *model, const char *path) {
    fr_model_info info = {.struct_size = sizeof info};
    fr_model_get_info(model, &info);
    int32_t n_ctx = info.n_ctx_train < 4096 ? info.n_ctx_train : 4096;
    FILE *f = fopen(path, "r");
    if (!f) die("the prompts cannot be read");
    json_t *record;
    fr_error err;
    while (n_prompts < MAX_PROMPTS && (record = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *category = json_string_value(json_object_get(record, "category"));
        const char *text = json_string_value(json_array_get(json_object_get(record, "turns"), 0));
        if (category && text && n_of(category) < n_each) {
            Prompt *p = &prompts[n_prompts++];
            snprintf(p->category, sizeof p->category, "%s", category);
            if (fr_tokenize(model, text, strlen(text), FR_TOKENIZE_PROMPT, &p->tokens, &p->n, &err)) die(err.message);
            if (p->n > n_ctx - N_TOKENS) p->n = n_ctx - N_TOKENS;
        }
        json_decref(record);
    }
    fclose(f);
}

static void generate(fr_engine *e, Prompt *p, int drafted, int round) {
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = p->tokens,
                            .n_prompt = p->n,
                            .max_tokens = N_TOKENS,
                            .sampling = fr_sampling_default(),
                            .drafts = &draft,
                            .n_drafts = drafted,
                            .tree_budget = tree_budget,
                            .ignore_eos = 1};
    o.sampling.temperature = temperature;
    /* One seed for all would give all texts the same noise, and at a high temperature nearly the same words. */
    o.sampling.seed = (uint64_t)(p - prompts) + 1;
    fr_error err;
    fr_request *r;
    if (fr_request_open(&r, e, &o, &err)) die(err.message);
    while (fr_engine_step(e, &err) > 0) {}
    fr_stats s = {.struct_size = sizeof s};
    fr_request_get_stats(r, &s);
    p->seconds[drafted][round] = s.decode_s;
    if (drafted) {
        fr_draft_stats of_drafts = {.struct_size = sizeof of_drafts};
        fr_request_get_draft_stats(r, &of_drafts);
        p->stats = s;
        p->n_undrafted_steps = of_drafts.n_undrafted_steps;
    }
    fr_request_close(r);
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values) {
    qsort(values, (size_t)n_rounds, sizeof *values, compare_doubles);
    return n_rounds % 2 ? values[n_rounds / 2] : (values[n_rounds / 2 - 1] + values[n_rounds / 2]) / 2;
}

/* Computes the median time of the prompt, plain and drafted. */
static void times_of(const Prompt *p, double *seconds) {
    double plain[MAX_ROUNDS], ratios[MAX_ROUNDS];
    for (int i = 0; i < n_rounds; i++) {
        plain[i] = p->seconds[0][i];
        ratios[i] = p->seconds[0][i] / p->seconds[1][i];
    }
    seconds[0] = median(plain);
    seconds[1] = seconds[0] / median(ratios);
}

static void print_category(const char *name) {
    double seconds[2] = {0, 0}, tokens = 0, steps = 0, undrafted = 0, drafted = 0, draft_s = 0, decode_s = 0;
    for (int i = 0; i < n_prompts; i++) {
        if (name && strcmp(prompts[i].category, name) != 0) continue;
        double of_prompt[2];
        times_of(&prompts[i], of_prompt);
        for (int k = 0; k < 2; k++) seconds[k] += of_prompt[k];
        tokens += (double)prompts[i].stats.n_generated;
        steps += (double)prompts[i].stats.n_steps;
        undrafted += (double)prompts[i].n_undrafted_steps;
        drafted += (double)prompts[i].stats.drafted;
        draft_s += prompts[i].stats.draft_s;
        decode_s += prompts[i].stats.decode_s;
    }
    printf("%-16s %10.0f %10.0f %8.3f %10.2f %10.2f %9.0f%% %9.1f%%\n", name ? name : "all", tokens / seconds[0],
           tokens / seconds[1], seconds[0] / seconds[1], tokens / steps, drafted / steps, 100 * undrafted / steps,
           100 * draft_s / decode_s);
}

int main(int argc, char **argv) {
    if (argc < 3)
        die("usage: bench_auto MODEL.gguf PROMPTS.jsonl [DRAFT [ROUNDS [PROMPTS [TEMP [BUDGET [THREADS]]]]]]");
    if (argc > 3) draft = argv[3];
    if (argc > 4) n_rounds = atoi(argv[4]);
    if (argc > 5) n_each = atoi(argv[5]);
    if (argc > 6) temperature = strtof(argv[6], NULL);
    if (argc > 7) tree_budget = atoi(argv[7]);
    if (argc > 8) n_threads = atoi(argv[8]);
    if (n_rounds < 1 || n_rounds > MAX_ROUNDS) die("ROUNDS must be from 1 to 21");
    fr_error err;
    fr_model *model;
    if (fr_model_open(&model, argv[1], NULL, &err)) die(err.message);
    read_prompts(model, argv[2]);
    const fr_engine_options options = {.struct_size = sizeof options, .n_threads = n_threads};
    for (int round = 0; round < n_rounds; round++) {
        fr_engine *engines[2];
        for (int k = 0; k < 2; k++)
            if (fr_engine_open(&engines[k], model, &options, &err)) die(err.message);
        if (fr_engine_open_draft(engines[1], draft, &err) || fr_engine_measure_costs(engines[1], &err))
            die(err.message);
        for (int i = 0; i < n_prompts; i++)
            for (int k = 0; k < 2; k++) generate(engines[(i + k + round) % 2], &prompts[i], (i + k + round) % 2, round);
        for (int k = 0; k < 2; k++) fr_engine_close(engines[k]);
    }
    printf("%-16s %10s %10s %8s %10s %10s %10s %10s\n", "category", "plain", draft, "ratio", "acceptance", "drafted/st",
           "undrafted", "drafting");
    for (int i = 0, n = 0; i < n_prompts; i += n) {
        print_category(prompts[i].category);
        for (n = 1; i + n < n_prompts && strcmp(prompts[i + n].category, prompts[i].category) == 0; n++) {}
    }
    print_category(NULL);
    for (int i = 0; i < n_prompts; i++) fr_free(prompts[i].tokens);
    fr_model_close(model);
    return 0;
}
