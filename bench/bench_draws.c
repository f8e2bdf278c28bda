/* bench_draws.c - measures how long drafters take to find the children of the nodes of a tree in their distributions.
 *
 *   bench_draws [KERNELS]
 *
 * Times are microseconds of one core for a tree of 16 nodes, by vocabulary size and kind of distribution; the fastest
 * of 25, since other programs may run. KERNELS is the table of kernels, by default the best of this CPU. A "text"
 * distribution has most of its mass on few tokens, as those of trained models do (the logits are three times Gumbel
 * noise); a "flat" one is that of logits which are nearly normal with deviation 1, as models with random weights
 * produce it. All nodes have the same distribution, so that it is in the cache, as it is when a drafter has just
 * computed it. That computation is not counted.
 */
#include "base/system.h"
#include "compute/cpu/kernels/kernels.h"
#include "draft/feedback.h"
#include "verify/gumbel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_VOCAB = 152000, N_NODES = 16, N_TIMES = 25, N_COUPLED = 16, N_OWN = 4 };

typedef enum Task { RANKED, SILENT, COUPLED_TREE, COUPLED_CHAIN, OWN_NOISE } Task;

static const struct {
    const char *name;
    Task work;
} cases[] = {
    {"greedy: the 4 most probable", RANKED},
    {"greedy draft model: 4 without noise", SILENT},
    {"temperature 1: 16, 5 depths", COUPLED_TREE},
    {"temperature 1: 16, a chain", COUPLED_CHAIN},
    {"temperature 1: 4, noise of their own", OWN_NOISE},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static float dists[2][MAX_VOCAB];
static volatile int64_t sink;

static void fill_dists(int32_t n_vocab) {
    for (int kind = 0; kind < 2; kind++) {
        float *q = dists[kind];
        double sum = 0;
        for (int32_t t = 0; t < n_vocab; t++) {
            double x = 0;
            if (kind == 0) x = 3 * gumbel_noise(1, RNG_TEST, 0, t);
            else
                for (uint64_t k = 0; k < 12; k++) x += rng_uniform(2, RNG_TEST, k, (uint32_t)t) - 0.5;
            sum += (double)(q[t] = (float)exp(x));
        }
        for (int32_t t = 0; t < n_vocab; t++) q[t] = (float)((double)q[t] / sum);
    }
}

/* Returns the depth of a node: of a root, three levels of four nodes and one of three. */
static uint64_t depth_of(int node) { return (uint64_t)(node + 3) / 4; }

static void do_work(Task work, DrawCache *c, int kind, int32_t n_vocab, uint64_t round) {
    const float *q = dists[kind];
    DrawChild children[N_COUPLED];
    int32_t ids[N_OWN];
    for (int i = 0; i < N_NODES; i++) {
        DrawParent p = {.noise = {.silent = work == SILENT, .stream = RNG_TARGET, .seed = 1, .position = 16 * round}};
        if (work == OWN_NOISE) p.noise.stream = RNG_DRAFT, p.noise.seed = 16 * round + (uint64_t)i;
        else p.noise.position += work == COUPLED_CHAIN ? (uint64_t)i : depth_of(i);
        if (work == RANKED) sink += logits_top_k(q, n_vocab, N_OWN, ids);
        else
            sink += draw_children(c, q, &p, 0, work >= COUPLED_TREE && work != OWN_NOISE ? N_COUPLED : N_OWN, children);
    }
}

static double fastest_s(Task work, DrawCache *c, int kind, int32_t n_vocab) {
    double best = INFINITY;
    for (int t = 0; t < N_TIMES; t++) {
        double start_s = clock_s();
        do_work(work, c, kind, n_vocab, (uint64_t)t);
        best = fmin(best, clock_s() - start_s);
    }
    return best;
}

int main(int argc, char **argv) {
    static const int32_t sizes[] = {4096, 32000, MAX_VOCAB};
    enum { N_SIZES = sizeof sizes / sizeof *sizes };
    double times[N_CASES][2 * N_SIZES];
    fr_error err;
    const Kernels *kernels;
    if (kernels_find(argc > 1 ? argv[1] : NULL, &kernels, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int k = 0; k < 2 * N_SIZES; k++) {
        int32_t n_vocab = sizes[k / 2];
        DrawCache *c = draw_cache_new(n_vocab, kernels->rows);
        if (!c) return 1;
        if (k % 2 == 0) fill_dists(n_vocab);
        for (int i = 0; i < N_CASES; i++) times[i][k] = 1e6 * fastest_s(cases[i].work, c, k % 2, n_vocab);
        draw_cache_free(c);
    }
    printf("kernels %s; microseconds for %d nodes\n%-36s", kernels->name, N_NODES, "");
    for (int k = 0; k < N_SIZES; k++) printf(" %8s%-9d", "V=", sizes[k]);
    printf("\n%-36s", "");
    for (int k = 0; k < N_SIZES; k++) printf(" %8s %8s", "text", "flat");
    for (int i = 0; i < N_CASES; i++) {
        printf("\n%-36s", cases[i].name);
        for (int k = 0; k < 2 * N_SIZES; k++) printf(" %8.0f", times[i][k]);
    }
    printf("\n");
    return 0;
}
