/* test_draft_lookahead.c - the drafter lookahead: a plain implementation of the Jacobi iteration and the pool gives the
 * same trees, with a simulated target. */
#include "feedback_rig.h"

#include "tree/tree.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* ---- the plain version ------------------------------------------------------------------------------ */

enum { MAX_W = 8, MAX_N = 7, MAX_GRAMS = 40000, POOL = 4096, MAX_VISITS = 128 };
typedef struct Gram {
    int32_t n, tokens[MAX_N]; /* the first one is the key */
} Gram;
typedef struct Plain {
    int32_t w, n, g, chain, rows[MAX_N][MAX_W];
    int32_t n_grams;
    Gram grams[MAX_GRAMS]; /* all n-grams since the beginning */
} Plain;

static void plain_begin(Plain *p, const int32_t *tokens, int32_t n_tokens, bool prompt) {
    for (int32_t j = 0; j < p->w; j++)
        for (int32_t r = 0; r < p->n - 1; r++)
            p->rows[r][j] = tokens[n_tokens * (j * (p->n - 1) + r) / (p->w * (p->n - 1))];
    p->n_grams = 0;
    for (int32_t i = 0; prompt && i + p->n <= n_tokens; i++) {
        Gram *g = &p->grams[p->n_grams++];
        g->n = p->n;
        memcpy(g->tokens, tokens + i, (size_t)p->n * sizeof *tokens);
    }
}

/* Counts over all sequences. */
typedef struct Count {
    int32_t n, right;
} Count;
static Count guess[MAX_N][16], spine, column[MAX_N];

static void count(Count *c, bool right) {
    c->n++;
    c->right += right;
    if (c->n == 4096) c->n /= 2, c->right /= 2;
}

static double share(Count c, double prior) { return (c.right + 8 * prior) / (c.n + 8); }

/* Returns the path from the pending token through row 1 to column j and down it. */
static int32_t column_path(const Plain *p, int32_t j, int32_t *path, double *shares) {
    int32_t n = 0;
    for (int32_t i = 1; i <= j; i++) shares[n] = share(spine, 0.1), path[n++] = p->rows[0][i];
    for (int32_t r = 1; r <= p->chain; r++) shares[n] = share(column[r], 0.1), path[n++] = p->rows[r][j];
    return n;
}

static int32_t walk(const Tree *t, const int32_t *path, int32_t n) {
    int32_t node = 0;
    for (int32_t i = 0; i < n && node >= 0; i++) node = tree_child(t, node, path[i]);
    return node;
}

/* Adds as much of a path as fits; its first `old` tokens were added before. */
static void enter(Tree *t, const int32_t *path, const double *shares, int32_t old, int32_t n, int32_t budget) {
    for (int32_t i = 0, node = 0; i < n; i++) {
        int32_t child = tree_child(t, node, path[i]);
        if (child < 0 && t->n > budget) return;
        double p_accept = (double)t->nodes[node].p_accept * shares[i];
        node = i < old ? child : tree_add(t, node, path[i], (float)(p_accept < 1e-6 ? 1e-6 : p_accept), 0);
    }
}

static int32_t find(const Plain *p, int32_t pending, Gram *taken) {
    int32_t n_taken = 0, n_visits = 0;
    for (int32_t i = p->n_grams - 1; i >= 0 && i >= p->n_grams - POOL && n_taken < p->g; i--) {
        const Gram *g = &p->grams[i];
        if (g->tokens[0] != pending) continue;
        if (n_visits++ == MAX_VISITS) break;
        bool known = false;
        for (int32_t k = 0; k < n_taken; k++)
            known |= taken[k].n >= g->n && memcmp(taken[k].tokens, g->tokens, (size_t)g->n * sizeof(int32_t)) == 0;
        if (!known) taken[n_taken++] = *g;
    }
    return n_taken;
}

/* Returns the place of token k of guess i among the different tokens that follow its first k - 1 tokens in the
 * guesses. */
static int32_t place_of(const Gram *taken, int32_t i, int32_t k) {
    bool seen[FEEDBACK_V] = {false};
    int32_t place = 0;
    for (int32_t e = 0; e < i; e++) {
        const int32_t *other = taken[e].tokens;
        if (taken[e].n < k + 2 || memcmp(other, taken[i].tokens, (size_t)(k + 1) * sizeof *other) != 0) continue;
        if (other[k + 1] == taken[i].tokens[k + 1]) break;
        place += !seen[other[k + 1]];
        seen[other[k + 1]] = true;
    }
    return place;
}

static double guess_prior(int32_t k, int32_t place) { return place > 0 ? 0.1 : k > 0 ? 0.6 : 0.3; }

static void enter_guesses(const Plain *p, int32_t budget, Tree *t) {
    Gram taken[16];
    static Tree all; /* the tree of the guesses: their p_accept is that of their own path, whatever the window
                      * contains */
    int32_t n = find(p, t->nodes[0].token, taken);
    tree_reset(&all, t->nodes[0].token);
    for (int32_t i = 0; i < n; i++) {
        double shares[MAX_N];
        for (int32_t k = 0; k < taken[i].n - 1; k++) {
            int32_t place = place_of(taken, i, k);
            shares[k] = share(guess[k][place], guess_prior(k, place));
        }
        enter(&all, taken[i].tokens + 1, shares, 0, taken[i].n - 1, TREE_MAX_NODES - 1);
        for (int32_t k = 0, node = 0, own = 0; k < taken[i].n - 1; k++) {
            own = tree_child(&all, own, taken[i].tokens[k + 1]);
            if (tree_child(t, node, taken[i].tokens[k + 1]) < 0 && t->n > budget) break;
            node = tree_add(t, node, taken[i].tokens[k + 1], all.nodes[own].p_accept, 0);
        }
    }
}

/* Returns whether token i of the step's text was this one; -1: not known. */
static int was_right(const FeedbackSequence *s, int32_t i, int32_t token) {
    return i > s->verdict.n_path ? -1 : feedback_rig_after(s, i) == token;
}

static void plain_count(const Plain *p, const FeedbackSequence *s) {
    Gram taken[16];
    int32_t n = find(p, s->tree.nodes[0].token, taken);
    bool counted[MAX_N][FEEDBACK_V] = {{false}};
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < taken[i].n - 1; k++) {
            int32_t token = taken[i].tokens[k + 1], right = was_right(s, k, token);
            if (right < 0) break;
            if (!counted[k][token]) count(&guess[k][place_of(taken, i, k)], right == 1);
            counted[k][token] = true; /* only nodes below the one right node of this depth are counted */
            if (right == 0) break;
        }
    bool right = true;
    for (int32_t j = 0; j < p->w && right && j <= s->verdict.n_path; j++) {
        if (j > 0) count(&spine, right = was_right(s, j - 1, p->rows[0][j]) == 1);
        bool here = right;
        for (int32_t r = 1; r < p->n - 1 && here && was_right(s, j + r - 1, 0) >= 0; r++)
            count(&column[r], here = was_right(s, j + r - 1, p->rows[r][j]) == 1);
    }
}

static void plain_propose(Plain *p, int32_t pending, int32_t budget, Tree *t) {
    double shares[2 * MAX_W + MAX_N];
    int32_t path[2 * MAX_W + MAX_N], columns = (budget + 1) / 2 / (p->n - 1), j = 0;
    if (columns > p->w) columns = p->w;
    if (columns < 1) columns = 1;
    tree_reset(t, pending);
    p->chain = budget < p->n - 2 ? budget : p->n - 2;
    for (int pass = 0; pass < 2; pass++) {
        for (; j < (pass ? p->w : columns); j++) {
            if (j > 0 && budget - t->n + 1 < p->chain + 1) break;
            enter(t, path, shares, j > 0 ? j - 1 : 0, column_path(p, j, path, shares), budget);
        }
        if (pass == 0) enter_guesses(p, budget, t);
    }
}

static int32_t argmax(const float *row) {
    int32_t best = 0;
    for (int32_t v = 1; v < FEEDBACK_V; v++)
        if (row[v] > row[best]) best = v;
    return best;
}

static int32_t plain_observe(Plain *p, const FeedbackSequence *s) {
    double shares[2 * MAX_W + MAX_N];
    int32_t next[MAX_W], path[2 * MAX_W + MAX_N], rotated[MAX_N][MAX_W], n_missing = 0;
    plain_count(p, s);
    p->rows[0][0] = s->tree.nodes[0].token;
    for (int32_t j = 0; j < p->w; j++) {
        int32_t last = walk(&s->tree, path, column_path(p, j, path, shares));
        next[j] = last < 0 ? -1 : argmax(s->rows[last]);
        n_missing += last < 0;
    }
    for (int32_t j = 0; j < p->w; j++) {
        if (next[j] < 0) continue;
        Gram *g = &p->grams[p->n_grams++];
        assert_true(p->n_grams < MAX_GRAMS);
        g->n = p->chain + 2;
        for (int32_t r = 0; r <= p->chain; r++) g->tokens[r] = p->rows[r][j];
        g->tokens[p->chain + 1] = next[j];
        for (int32_t r = 0; r <= p->chain; r++) p->rows[r][j] = g->tokens[r + 1];
    }
    memcpy(rotated, p->rows, sizeof rotated);
    for (int32_t j = 0; j < p->w && s->verdict.n_path < p->w; j++)
        for (int32_t r = 0; r < p->n - 1; r++) p->rows[r][j] = rotated[r][(j + s->verdict.n_path) % p->w];
    return n_missing;
}

static void check_same_nodes(const Tree *want, const Tree *got, const char *what) {
    if (want->n != got->n) fail_msg("%s: %d nodes, want %d", what, got->n, want->n);
    for (int32_t i = 0; i < want->n; i++) {
        const TreeNode *w = &want->nodes[i], *g = &got->nodes[i];
        if (w->token != g->token || w->parent != g->parent)
            fail_msg("%s: node %d is token %d below %d, want %d below %d", what, i, g->token, g->parent, w->token,
                     w->parent);
        if (!(fabsf(g->p_accept - w->p_accept) < 1e-5f && g->p_accept > 0))
            fail_msg("%s: node %d has p_accept %g, want %g", what, i, (double)g->p_accept, (double)w->p_accept);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------ */

enum { N_SEQUENCES = 3 };
static FeedbackSequence sequences[N_SEQUENCES];
static Plain plains[N_SEQUENCES];

/* Nodes of another drafter come first; sometimes the union is then pruned, and some nodes of this drafter are
 * dropped. */
static void unite(Tree *t, bool prune) {
    static Tree all;
    tree_reset(&all, t->nodes[0].token);
    for (int i = 0; i < 6; i++) {
        int32_t parent = rig_below(all.n);
        tree_add(&all, parent, rig_below(6), all.nodes[parent].p_accept * 0.4f, 1);
    }
    union_merge(&all, t);
    if (prune) union_prune(&all, all.n - 1 - rig_below(all.n / 2));
    *t = all;
}

/* Several sequences in turn begin and end, under every budget, both by themselves and in a union. */
static void windows_pools_and_trees_equal_those_of_a_plain_version(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        int32_t w, n, g;
        bool prompt;
    } cases[] = {{"lookahead", 5, 4, 5, true},
                 {"lookahead:prompt=0", 5, 4, 5, false},
                 {"lookahead:window=8,level=5,guesses=2", 8, 5, 2, true},
                 {"lookahead:window=1,level=3,guesses=9", 1, 3, 9, true},
                 {"lookahead:window=3,level=7,guesses=1,prompt=0", 3, 7, 1, false}};
    static Tree want;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        Drafter *d = feedback_rig_open(cases[c].spec, FEEDBACK_V, N_SEQUENCES);
        int32_t n_accepted = 0, n_missing = 0;
        memset(guess, 0, sizeof guess), memset(column, 0, sizeof column), spine = (Count){0};
        for (int step = 0; step < 900; step++) {
            int q = step % N_SEQUENCES;
            FeedbackSequence *s = &sequences[q];
            Plain *p = &plains[q];
            if (step < N_SEQUENCES || rig_below(90) == 0) {
                if (step >= N_SEQUENCES) d->class->end(d, s->id);
                feedback_rig_begin(d, s, q, 1 + (uint64_t)(step % 4), 2 + rig_below(30));
                if (step % 5 == 0) s->sampling.temperature = 1, s->sampling.seed = (uint64_t)step;
                p->w = cases[c].w, p->n = cases[c].n, p->g = cases[c].g;
                plain_begin(p, s->context, s->n, cases[c].prompt);
            }
            int32_t budget = step % 65;
            char what[96];
            snprintf(what, sizeof what, "%s, step %d", cases[c].spec, step);
            feedback_rig_propose(d, s, budget);
            plain_propose(p, s->context[s->n - 1], budget, &want);
            check_same_nodes(&want, &s->tree, what);
            if (step % 4 == 1) unite(&s->tree, step % 8 == 1);
            feedback_rig_verify(s);
            feedback_rig_observe(d, s);
            n_missing += plain_observe(p, s);
            n_accepted += s->verdict.n_path;
        }
        if (n_accepted < 100 || (cases[c].w > 1 && n_missing < 10))
            fail_msg("%s: %d accepted, %d missing", cases[c].spec, n_accepted, n_missing);
        drafter_close(d);
    }
}

static void p_accept_matches_the_observed_frequency(void **state) {
    (void)state;
    static const float temperatures[] = {1, 2};
    for (int i = 0; i < 2; i++) {
        Drafter *d = feedback_rig_open("lookahead", FEEDBACK_V, 1);
        FeedbackSequence *s = &sequences[0];
        FeedbackBands bands = {0};
        feedback_rig_begin(d, s, 0, 9, 10);
        s->sampling.temperature = temperatures[i];
        for (int step = 0; step < 1500 && s->n < FEEDBACK_MAX_TEXT - 100; step++) {
            feedback_rig_propose(d, s, 32);
            feedback_rig_verify(s);
            feedback_rig_observe(d, s);
            if (step > 100) feedback_rig_count(&bands, s);
        }
        feedback_rig_check_bands(&bands, 0.1);
        drafter_close(d);
    }
}

/* Without a useful prompt, the window by itself finds a text that the target repeats. */
static void the_window_by_itself_learns_a_repeated_text(void **state) {
    (void)state;
    Drafter *d = feedback_rig_open("lookahead:prompt=0", FEEDBACK_V, 1);
    FeedbackSequence *s = &sequences[0];
    feedback_rig_begin(d, s, 0, 3, 12);
    int32_t n_steps = 300, n_before = s->n;
    for (int step = 0; step < n_steps; step++) {
        feedback_rig_propose(d, s, 32);
        feedback_rig_verify(s);
        feedback_rig_observe(d, s);
    }
    assert_true(s->n - n_before > 2 * n_steps);
    drafter_close(d);
}

/* Two steps of the drawing in draft_lookahead.c by hand, with W = 3 and N = 4. */
static void the_drawing_of_the_source_file_holds(void **state) {
    (void)state;
    enum { P = 20, A1, A2, B0, B1, B2, C0, C1, C2, D0, D1, D2, NEXT, X };
    /* the first window is spread over the prompt: columns (x b0 c0), (a1 b1 c1), (a2 b2 c2) */
    const int32_t prompt[] = {X, B0, C0, A1, B1, C1, A2, B2, C2, P};
    const int32_t edges[][2] = {{A1, 0}, {B0, 0}, {A2, A1}, {B1, A1}, {B2, A2}, {C0, B0}, {C1, B1}, {C2, B2}};
    const int32_t next[][2] = {{P, NEXT}, {C0, D0}, {C1, D1}, {C2, D2}};
    FeedbackSequence *s = &sequences[0];
    Drafter *d = feedback_rig_open("lookahead:window=3,prompt=0", FEEDBACK_V, 1);
    memset(s, 0, sizeof *s);
    assert_int_equal(d->class->begin(d, 0, (int32_t[]){X, B0, C0, A1, B1, C1, A2, B2, C2}, 9, NULL), FR_OK);
    memcpy(s->context, prompt, sizeof prompt);
    s->n = 10;
    feedback_rig_propose(d, s, 32);
    assert_int_equal(s->tree.n, 9);
    for (int i = 0; i < 8; i++) {
        int32_t node = 1;
        while (s->tree.nodes[node].token != edges[i][0]) assert_true(++node < 9);
        int32_t parent = s->tree.nodes[s->tree.nodes[node].parent].token;
        assert_int_equal(parent, edges[i][1] ? edges[i][1] : P);
    }
    for (int32_t i = 0; i < 9; i++) {
        s->logits[i] = s->rows[i];
        for (int k = 0; k < 4; k++)
            if (s->tree.nodes[i].token == next[k][0]) s->rows[i][next[k][1]] = 1;
    }
    s->verdict.next_token = NEXT; /* nothing is accepted */
    s->context[s->n++] = NEXT;
    feedback_rig_observe(d, s);
    feedback_rig_propose(d, s, 32);
    int32_t chain = tree_child(&s->tree, 0, B1); /* row 1 is now b0 b1 b2, of which the pending token is the first */
    assert_true(chain > 0 && tree_child(&s->tree, chain, B2) > 0 && tree_child(&s->tree, chain, C1) > 0);
    assert_true(tree_child(&s->tree, tree_child(&s->tree, chain, C1), D1) > 0);
    s->context[s->n++] = A1; /* and (a1 b1 c1 d1) is in the pool */
    feedback_rig_propose(d, s, 32);
    const int32_t phrase[] = {B1, C1, D1};
    assert_true(walk(&s->tree, phrase, 3) > 0);
    drafter_close(d);
}

static void it_works_in_the_engine(void **state) {
    (void)state;
    feedback_rig_check_engine("lookahead", "recycling");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_pools_and_trees_equal_those_of_a_plain_version),
        cmocka_unit_test(p_accept_matches_the_observed_frequency),
        cmocka_unit_test(the_window_by_itself_learns_a_repeated_text),
        cmocka_unit_test(the_drawing_of_the_source_file_holds),
        cmocka_unit_test(it_works_in_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
