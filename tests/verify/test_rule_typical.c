/* test_rule_typical.c - typical acceptance (src/verify/rule_typical.c) equals an enumeration of all paths of the tree,
 * is refused unless lossy rules are allowed, and is reported as lossy wherever its results appear. */
#include "engine_rig.h"

#include "cli_rig.h"
#include "verify/verifier.h"

#include "base/rng.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { V = 12, MAX_NODES = 30 };

/* A random tree of random logits. */
typedef struct Case {
    Tree tree;
    float logits[MAX_NODES][V];
    const float *rows[MAX_NODES];
    SamplingOptions sampling;
    int32_t context[4 + TREE_MAX_NODES + 1];
    VerifyInput in;
} Case;

static void make_case(Case *c, uint64_t seed) {
    memset(c, 0, sizeof *c);
    tree_reset(&c->tree, 1);
    int32_t n = 1 + (int32_t)(seed % MAX_NODES);
    for (uint32_t i = 0; c->tree.n < n && i < 200; i++) {
        int32_t parent = (int32_t)(rng_uniform(seed, RNG_TEST, 1, i) * c->tree.n);
        tree_add(&c->tree, parent, (int32_t)(rng_uniform(seed, RNG_TEST, 2, i) * V), 0, 0);
    }
    double scale = seed % 3 == 0 ? 8 : seed % 3 == 1 ? 3 : 0.5;
    for (int32_t i = 0; i < c->tree.n; i++) {
        for (uint32_t v = 0; v < V; v++)
            c->logits[i][v] = (float)(scale * rng_uniform(seed, RNG_TEST, 3 + (uint64_t)i, v));
        c->rows[i] = c->logits[i];
    }
    c->sampling = (SamplingOptions){.temperature = seed % 5 == 4 ? 0 : 0.9f,
                                    .top_k = seed % 4 == 1 ? 5 : 0,
                                    .top_p = 1,
                                    .repeat_penalty = seed % 7 == 3 ? 1.4f : 1,
                                    .penalty_last_n = -1};
    int32_t context[] = {3, 2, 7, 1};
    memcpy(c->context, context, sizeof context);
    c->in = (VerifyInput){.tree = &c->tree,
                          .logits = c->rows,
                          .n_vocab = V,
                          .sampling = &c->sampling,
                          .context = c->context,
                          .n_context = 4};
    if (seed % 2)
        c->in.options = (VerifyOptions){.epsilon = 0.02 + 0.3 * rng_uniform(seed, RNG_TEST, 99, 0),
                                        .delta = seed % 3 ? 0.6 : 0};
}

/* Computes the target's distribution after a path, in double precision. */
static void dist_after(const Case *c, const int32_t *path, int32_t n_path, double *p) {
    int32_t context[4 + MAX_NODES] = {3, 2, 7, 1}, n_context = 4, node = n_path ? path[n_path - 1] : 0;
    for (int32_t i = 0; i < n_path; i++) context[n_context++] = c->tree.nodes[path[i]].token;
    Sampler *s = sampler_new(V);
    float dist[V];
    double sum = 0;
    sampler_dist(s, &c->sampling, c->rows[node], context, n_context, dist);
    sampler_free(s);
    for (int32_t v = 0; v < V; v++) sum += (double)dist[v];
    for (int32_t v = 0; v < V; v++) p[v] = (double)dist[v] / sum;
}

/* Returns the number of nodes of a path that are accepted from its start, and the sum of their log-probabilities. */
static int32_t count_accepted(const Case *c, const int32_t *path, int32_t n_path, double *log_p) {
    double epsilon = c->in.options.epsilon > 0 ? c->in.options.epsilon : 0.09;
    double delta = c->in.options.delta > 0 ? c->in.options.delta : sqrt(epsilon);
    *log_p = 0;
    for (int32_t i = 0; i < n_path; i++) {
        double p[V], entropy = 0;
        dist_after(c, path, i, p);
        for (int32_t v = 0; v < V; v++) entropy += p[v] > 0 ? -p[v] * log(p[v]) : 0;
        double chance = p[c->tree.nodes[path[i]].token], flat = delta * exp(-entropy);
        if (!(chance > (epsilon < flat ? epsilon : flat))) return i;
        *log_p += log(chance);
    }
    return n_path;
}

static void the_longest_typical_path_is_taken(void **state) {
    (void)state;
    static Case c;
    VerifyScratch *s = verify_scratch_new(V);
    int32_t lengths[MAX_NODES] = {0};
    for (uint64_t seed = 0; seed < 600; seed++) {
        make_case(&c, seed);
        int32_t best[MAX_NODES], n_best = 0;
        double best_log_p = 0;
        for (int32_t leaf = 0; leaf < c.tree.n; leaf++) {
            int32_t path[MAX_NODES], n = c.tree.nodes[leaf].depth;
            double log_p;
            for (int32_t node = leaf; node > 0; node = c.tree.nodes[node].parent)
                path[c.tree.nodes[node].depth - 1] = node;
            int32_t n_accepted = count_accepted(&c, path, n, &log_p);
            if (n_accepted < n || n < n_best || (n == n_best && (n == 0 || log_p <= best_log_p))) continue;
            memcpy(best, path, sizeof path);
            n_best = n, best_log_p = log_p;
        }
        VerifyResult out;
        assert_int_equal(verify_rule_find("typical")->verify(&c.in, s, &out, NULL), FR_OK);
        assert_int_equal(out.n_path, n_best);
        assert_memory_equal(out.path, best, (size_t)n_best * sizeof *best);
        double p[V];
        dist_after(&c, best, n_best, p);
        for (int32_t v = 0; v < V; v++)
            assert_true(p[v] < p[out.next_token] || (p[v] == p[out.next_token] && v >= out.next_token));
        lengths[n_best]++;
        if (c.sampling.temperature > 0) continue;
        VerifyResult greedy; /* at temperature 0 it must equal the rule `sampled` */
        verify_rule_find("sampled")->verify(&c.in, s, &greedy, NULL);
        assert_int_equal(greedy.n_path, out.n_path);
        assert_int_equal(greedy.next_token, out.next_token);
    }
    verify_scratch_free(s);
    assert_true(lengths[0] > 20 && lengths[1] > 20 && lengths[2] > 20 && lengths[3] > 5);
}

static void it_is_refused_unless_allowed(void **state) {
    (void)state;
    static const char sentence[] = "the rule 'typical' is lossy";
    fr_model *model = rig_open_model("models/draft.gguf", NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    const int32_t prompt[] = {1, 5, 9};
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = 3,
                            .max_tokens = 8,
                            .sampling = fr_sampling_default(),
                            .verify = "typical:epsilon=0.2"};
    fr_request *r;
    fr_error err = {0};
    assert_int_equal(rig_open_request(&r, e, &o, &err), FR_ERR_ARGUMENT);
    if (!strstr(err.message, sentence) || !strstr(err.message, "--lossy")) fail_msg("%s", err.message);
    static Stream got;
    o.allow_lossy = 1;
    rig_run_request(e, &o, &got);
    assert_true(got.stats.is_lossy);
    o.verify = "recursive"; /* allow_lossy does not require a lossy rule */
    rig_run_request(e, &o, &got);
    assert_false(got.stats.is_lossy);
    fr_engine_close(e);
    fr_model_close(model);
}

#define RUN "-m models/draft.gguf -p 'Once upon a time' -n 60 --temp 1 --seed 4 --draft ngram-trie --verify typical"

static json_t *load_stats(void) {
    char path[800];
    snprintf(path, sizeof path, "%s/stats.json", cli_rig_folder());
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

static void lossy_outputs_are_marked(void **state) {
    (void)state;
    char text[65536], command[1200];
    cli_expect("run " RUN, 2, "the rule 'typical' is lossy");
    cli_expect("compare " RUN, 2, "allow it with --lossy");
    cli_expect("run " RUN " --lossy --stats", 0, "LOSSY: the verification rule changed the output distribution");
    cli_expect("compare " RUN " --lossy --runs 2 --no-text", 0, "LOSSY");
    cli_expect("run -m models/draft.gguf -p a -n 4 --lossy --verify typical:delta=7", 2,
               "typical: 'delta=7' must be a number from 1e-06 to 1");
    snprintf(command, sizeof command, "run " RUN " --lossy --stats-json %s/stats.json", cli_rig_folder());
    assert_int_equal(cli_run(command, text, sizeof text), 0);
    json_t *j = load_stats();
    assert_true(json_is_true(json_object_get(j, "lossy")));
    assert_string_equal(json_string_value(json_object_get(j, "verify")), "typical");
    json_decref(j);
    assert_int_equal(cli_run("compare " RUN " --lossy --runs 2 --json", text, sizeof text), 0);
    json_t *rows = json_loads(text, 0, NULL), *plain = json_array_get(rows, 0), *drafted = json_array_get(rows, 1);
    assert_true(json_is_true(json_object_get(plain, "identical")) && json_is_false(json_object_get(plain, "lossy")));
    assert_true(json_is_false(json_object_get(drafted, "identical")) &&
                json_is_false(json_object_get(drafted, "same_distribution")));
    assert_true(json_is_true(json_object_get(drafted, "lossy")));
    json_decref(rows);
}

int main(int argc, char **argv) {
    (void)argc;
    cli_rig_begin(argv[0]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_typical_path_is_taken),
        cmocka_unit_test(it_is_refused_unless_allowed),
        cmocka_unit_test(lossy_outputs_are_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
