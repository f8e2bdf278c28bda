/* ratio.c - what all ratio rules share: the random choices, the two distributions at a node, the residual, and the walk
 * down the tree.
 *
 * At each node the rule decides among the drafts of the sibling group. If it accepts one, the walk goes on at that
 * node. Otherwise the next token is drawn from the distribution that the rule left in p, and the walk ends. All
 * groups are checked before the first decision, so that a tree is refused before any randomness is used. */
#include "verify/ratio.h"

#include "base/rng.h"

#include <string.h>

/* ---- random choices ------------------------------------------------------------------------------------- */

/* Keyed and scripted random choices.
 *
 * A script is a path in the tree of all choices. A run replays the path and, after its end, takes the first possible
 * outcome of each new choice, noting how many there are. The next path ends at the last choice that had another
 * outcome left. Example: a flip of chance 1/2 and, if it is true, one of chance 1/3. The runs are (true, true) 1/6,
 * (true, false) 1/3, (false) 1/2. The code under test must make the same choices after the same outcomes, or the sum
 * means nothing. */
/* A uniform number in [0,1) with 53 bits. With 32 bits a chance of 1e-10 would come out as either 0 or 2e-10. */
static double uniform(KeyedRandom *k) {
    uint32_t w[4];
    rng_words(k->seed, RNG_VERIFY, k->position, k->n_used++, w);
    return (double)(((uint64_t)w[0] << 32 | w[1]) >> 11) * 0x1p-53;
}

static bool keyed_flip(RandomSource *r, double chance) {
    if (chance >= 1) return true;
    return chance > 0 && uniform((KeyedRandom *)r) < chance;
}

static int32_t keyed_pick(RandomSource *r, const double *weights, int32_t n) {
    double sum = 0;
    int32_t last = 0; /* the result if u does not reach 0 because of rounding */
    for (int32_t i = 0; i < n; i++) sum += weights[i];
    double u = uniform((KeyedRandom *)r) * sum;
    for (int32_t i = 0; i < n; i++) {
        if (!(weights[i] > 0)) continue;
        if (u < weights[i]) return i;
        u -= weights[i];
        last = i;
    }
    return last;
}

void random_keyed(KeyedRandom *k, uint64_t seed, uint64_t position) {
    *k = (KeyedRandom){.random_source = {keyed_flip, keyed_pick}, .seed = seed, .position = position};
}

/* Returns the script's outcome for the next choice, which has n possible outcomes. */
static int32_t play(RandomScript *s, int32_t n) {
    int32_t i = s->n_played++;
    fr_assert(i < RANDOM_SCRIPT_MAX);
    if (i == s->n) {
        s->choice[i] = 0;
        s->n_choices[i] = n;
        s->n++;
    }
    fr_assert(s->n_choices[i] == n); /* otherwise the code made other choices after the same outcomes */
    return s->choice[i];
}

static bool script_flip(RandomSource *r, double chance) {
    RandomScript *s = (RandomScript *)r;
    if (chance >= 1) return true;
    if (!(chance > 0)) return false;
    bool heads = play(s, 2) == 0;
    s->chance *= heads ? chance : 1 - chance;
    return heads;
}

static int32_t script_pick(RandomSource *r, const double *weights, int32_t n) {
    RandomScript *s = (RandomScript *)r;
    double sum = 0;
    int32_t n_possible = 0, picked = 0;
    for (int32_t i = 0; i < n; i++) {
        sum += weights[i];
        n_possible += weights[i] > 0;
    }
    if (n_possible == 0) return 0;
    int32_t left = play(s, n_possible);
    for (picked = 0; !(weights[picked] > 0) || left-- > 0;) picked++;
    s->chance *= weights[picked] / sum;
    return picked;
}

void random_script_begin(RandomScript *s) {
    s->random_source = (RandomSource){script_flip, script_pick};
    s->chance = 1;
    s->n = s->n_played = 0;
}

bool random_script_next(RandomScript *s) {
    fr_assert(s->n_played == s->n);
    while (s->n > 0 && s->choice[s->n - 1] == s->n_choices[s->n - 1] - 1) s->n--;
    if (s->n == 0) return false;
    s->choice[s->n - 1]++;
    s->chance = 1;
    s->n_played = 0;
    return true;
}

/* ---- nodes and trees ------------------------------------------------------------------------------------ */

int ratio_check(const RatioRule *rule, const VerifyInput *in, VerifyScratch *s, fr_error *err) {
    for (int32_t node = 0; node < in->tree->n; node++) {
        sibling_group(in->tree, node, &s->group);
        const char *fault = s->group.n && rule->fault ? rule->fault(&s->group) : NULL;
        if (fault)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "--verify %s is for %s and cannot handle node %d of the drafter's tree "
                             "with its %d drafts; use --verify recursive or transport, which handle every tree",
                             rule->name, fault, node, s->group.n);
    }
    return FR_OK;
}

const char *ratio_fault_of_chain(const SiblingGroup *g) { return g->n > 1 ? "one draft at each node" : NULL; }

static double sum_of(const double *w, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += w[i];
    return sum;
}

static void normalise(double *w, int32_t n) {
    double sum = sum_of(w, n);
    for (int32_t i = 0; i < n; i++) w[i] /= sum;
}

void ratio_target_dist(const VerifyInput *in, VerifyScratch *s, int32_t node, double *p) {
    sampler_dist(s->sampler, in->sampling, verify_logits(in, s, node), in->context,
                 in->n_context + in->tree->nodes[node].depth, s->dist);
    for (int32_t i = 0; i < s->n_vocab; i++) p[i] = (double)s->dist[i];
    normalise(p, s->n_vocab);
}

void ratio_draft_dist(const DistDraw *d, int32_t token, int32_t n_vocab, double *q) {
    if (!d->q) {
        memset(q, 0, (size_t)n_vocab * sizeof *q);
        q[token] = 1;
        return;
    }
    for (int32_t i = 0; i < n_vocab; i++) q[i] = (double)d->q[i];
    normalise(q, n_vocab);
}

double ratio_residual(double a, const double *p, const double *q, int32_t n_vocab, double *w) {
    double sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) sum += a * p[i] > q[i] ? a * p[i] - q[i] : 0;
    if (!(sum > 0)) {
        memmove(w, p, (size_t)n_vocab * sizeof *w);
        return sum_of(w, n_vocab);
    }
    for (int32_t i = 0; i < n_vocab; i++) w[i] = a * p[i] > q[i] ? a * p[i] - q[i] : 0;
    return sum;
}

int ratio_walk(const RatioRule *rule, const VerifyInput *in, VerifyScratch *s, VerifyResult *out, fr_error *err) {
    int status = ratio_check(rule, in, s, err);
    if (status) return status;
    RatioNode n = {.tree = in->tree,
                   .group = &s->group,
                   .n_vocab = s->n_vocab,
                   .p = s->p,
                   .q = s->q,
                   .m = s->m,
                   .ids = s->ids,
                   .gamma = in->options.gamma,
                   .random_source = in->random_source};
    out->n_path = 0;
    for (int32_t node = 0;;) {
        ratio_target_dist(in, s, node, n.p);
        n.p_mass = 1;
        sibling_group(in->tree, node, &s->group);
        int32_t accepted = s->group.n ? rule->decide(&n) : -1;
        if (accepted < 0) {
            out->next_token = in->random_source->pick(in->random_source, n.p, n.n_vocab);
            return FR_OK;
        }
        node = s->group.draws[accepted].child;
        in->context[in->n_context + out->n_path] =
            in->tree->nodes[node].token; /* deeper distributions depend on the path */
        out->path[out->n_path++] = node;
    }
}
