/* bench_trees.c - the shape of a drafter's trees, and whether its estimates are right, while the target decodes.
 *
 *   bench_trees TARGET.gguf PROMPTS.jsonl DRAFT TEMPERATURE [PER_CATEGORY [TOKENS [BUDGET]]]
 *
 * PROMPTS.jsonl has one object per line with "category" and "prompt", such as the heldout.jsonl of `research/learned.sh
 * data`. The first PER_CATEGORY (9) of each category are continued by TOKENS (96) tokens, with at most BUDGET (16)
 * nodes a step. Prints two tables:
 *
 *   - by the estimate of the best child of the root: the children of the root, the depth of the tree, and the nodes
 *     accepted, as means over the steps;
 *   - by tenths of the estimate given the parent (p_accept of the node over that of its parent), over the children
 *     whose parent was accepted: how many were accepted, and their mean estimate.
 *
 * `forerun replay --calibration` has the second one for drafters that need no target. */
#include <forerun.h>

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SHAPES = 5, N_BINS = 10, MAX_CATEGORIES = 32 };

typedef struct Shape { /* sums over steps */
    double n, children, depth, accepted;
} Shape;

typedef struct Bin { /* sums over children */
    double n, accepted, estimate;
} Bin;

typedef struct Category {
    char name[64];
    int n;
} Category;

static Shape shapes[N_SHAPES];
static Bin bins[N_BINS];
static Category categories[MAX_CATEGORIES];

static void die(const char *what) {
    fprintf(stderr, "bench_trees: %s\n", what);
    exit(1);
}

/* Returns the index of the bin that contains p. */
static int part_of(double p, int n_parts) {
    int i = (int)(p * n_parts);
    return i < n_parts ? i : n_parts - 1;
}

/* The nodes whose tokens became part of the text are on one path; tokens [n] are what the step added. */
static void mark_accepted(const fr_tree_node *nodes, int n_nodes, const int32_t *tokens, int64_t n, bool *accepted) {
    int32_t at = 0;
    int64_t k = 0;
    accepted[0] = true;
    for (int i = 1; i < n_nodes; i++) {
        accepted[i] = k < n && nodes[i].parent == at && nodes[i].token == tokens[k];
        if (accepted[i]) at = i, k++;
    }
}

static void count_step(const fr_tree_node *nodes, int n_nodes, const bool *accepted) {
    int depth[FR_TREE_BUDGET_MAX + 1] = {0}, deepest = 0, n_accepted = 0, n_children = 0;
    double best = 0;
    for (int i = 1; i < n_nodes; i++) {
        int parent = nodes[i].parent;
        double p = (double)nodes[i].p_accept;
        depth[i] = depth[parent] + 1;
        if (depth[i] > deepest) deepest = depth[i];
        n_accepted += accepted[i];
        n_children += parent == 0;
        if (parent == 0 && p > best) best = p;
        if (parent > 0) p /= (double)nodes[parent].p_accept;
        if (!accepted[parent]) continue;
        Bin *b = &bins[part_of(p, N_BINS)];
        b->n++;
        b->accepted += accepted[i];
        b->estimate += p;
    }
    Shape *s = &shapes[part_of(best, N_SHAPES)];
    s->n++;
    s->children += n_children;
    s->depth += deepest;
    s->accepted += n_accepted;
}

static void decode(fr_engine *e, const fr_request_options *o) {
    fr_tree_node nodes[FR_TREE_BUDGET_MAX + 1];
    bool accepted[FR_TREE_BUDGET_MAX + 1];
    fr_error err;
    fr_request *r;
    int64_t n_before = 0, n = 0, n_steps = 0;
    int running;
    if (fr_request_open(&r, e, o, &err)) die(err.message);
    do {
        fr_stats stats = {.struct_size = sizeof stats};
        if ((running = fr_engine_step(e, &err)) < 0) die(err.message);
        fr_request_get_stats(r, &stats);
        const int32_t *tokens = fr_request_tokens(r, &n);
        int n_nodes = fr_request_tree(r, nodes, FR_TREE_BUDGET_MAX + 1);
        if (stats.n_steps > n_steps && n_nodes > 1) {
            mark_accepted(nodes, n_nodes, tokens + n_before, n - n_before, accepted);
            count_step(nodes, n_nodes, accepted);
        }
        n_steps = stats.n_steps;
        n_before = n;
    } while (running > 0);
    fr_request_close(r);
}

/* Returns whether this prompt is one of the first n_each of its category. */
static bool is_wanted(const char *category, int n_each) {
    for (int i = 0; i < MAX_CATEGORIES; i++) {
        if (!categories[i].name[0]) snprintf(categories[i].name, sizeof categories[i].name, "%s", category);
        if (strcmp(categories[i].name, category) == 0) return categories[i].n++ < n_each;
    }
    return false;
}

static void run_prompts(fr_engine *e, const fr_model *model, const char *path, fr_request_options *o, int n_each) {
    fr_error err;
    json_t *record;
    FILE *f = fopen(path, "r");
    if (!f) die("the prompts cannot be read");
    while ((record = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL))) {
        const char *category = json_string_value(json_object_get(record, "category"));
        const char *text = json_string_value(json_object_get(record, "prompt"));
        if (category && text && is_wanted(category, n_each)) {
            int32_t *tokens;
            if (fr_tokenize(model, text, strlen(text), FR_TOKENIZE_PROMPT, &tokens, &o->n_prompt, &err))
                die(err.message);
            o->prompt = tokens;
            decode(e, o);
            fr_free(tokens);
        }
        json_decref(record);
    }
    fclose(f);
}

static void print_tables(void) {
    printf("best child of the root   steps  children of the root  depth  accepted\n");
    for (int i = 0; i < N_SHAPES; i++)
        if (shapes[i].n > 0)
            printf("%9.1f to %.1f %17.0f %21.1f %6.1f %9.1f\n", i / (double)N_SHAPES, (i + 1) / (double)N_SHAPES,
                   shapes[i].n, shapes[i].children / shapes[i].n, shapes[i].depth / shapes[i].n,
                   shapes[i].accepted / shapes[i].n);
    printf("\nestimate       children  accepted  mean estimate\n");
    for (int i = 0; i < N_BINS; i++)
        if (bins[i].n > 0)
            printf("%.1f to %.1f %12.0f %9.2f %14.2f\n", i / (double)N_BINS, (i + 1) / (double)N_BINS, bins[i].n,
                   bins[i].accepted / bins[i].n, bins[i].estimate / bins[i].n);
}

int main(int argc, char **argv) {
    if (argc < 5)
        die("usage: bench_trees TARGET.gguf PROMPTS.jsonl DRAFT TEMPERATURE [PER_CATEGORY [TOKENS [BUDGET]]]");
    const char *draft = argv[3];
    const int n_each = argc > 5 ? atoi(argv[5]) : 9;
    fr_request_options o = {.struct_size = sizeof o,
                            .max_tokens = argc > 6 ? atoi(argv[6]) : 96,
                            .sampling = fr_sampling_default(),
                            .drafts = &draft,
                            .n_drafts = 1,
                            .tree_budget = argc > 7 ? atoi(argv[7]) : 16};
    const fr_engine_options options = {.struct_size = sizeof options, .n_threads = 0};
    fr_error err;
    fr_model *model = NULL;
    fr_engine *e = NULL;
    o.sampling.temperature = strtof(argv[4], NULL);
    if (fr_model_open(&model, argv[1], NULL, &err) || fr_engine_open(&e, model, &options, &err) ||
        fr_engine_open_draft(e, draft, &err))
        die(err.message);
    run_prompts(e, model, argv[2], &o, n_each);
    print_tables();
    fr_engine_close(e);
    fr_model_close(model);
    return 0;
}
