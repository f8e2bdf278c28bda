/* draft_rig.c - feeds random texts over tiny alphabets to drafters in pieces, and checks their proposals. */
#include "draft_rig.h"

#include "base/rng.h"

#include <string.h>

int32_t rig_below(int32_t n) {
    static uint64_t n_drawn;
    uint32_t words[4];
    rng_words(53, RNG_TEST, n_drawn++, 0, words);
    return (int32_t)(words[0] % (uint32_t)n);
}

void rig_fill_text(int32_t *tokens, int32_t n, int32_t alphabet) {
    int32_t back = 7;
    for (int32_t i = 0; i < n; i++) {
        if (rig_below(8) == 0) back = 1 + rig_below(20);
        tokens[i] = i >= back && rig_below(3) ? tokens[i - back] : rig_below(alphabet);
    }
}

Drafter *rig_open_drafter(const char *spec, int32_t n_vocab, int32_t n_sequences) {
    Drafter *d;
    fr_error err = {0};
    const DrafterEnv env = {.n_vocab = n_vocab, .max_sequences = n_sequences};
    if (drafter_open(&d, spec, &env, 0, &err)) fail_msg("%s", err.message);
    return d;
}

void rig_feed(Drafter *d, int32_t sequence, const int32_t *text, int32_t n_prompt, int32_t n) {
    assert_int_equal(d->class->begin(d, sequence, text, n_prompt, NULL), FR_OK);
    for (int32_t i = n_prompt, step; i < n; i += step) {
        step = 1 + rig_below(4);
        if (step > n - i) step = n - i;
        assert_int_equal(d->class->observe(d, sequence, text + i, step, NULL), FR_OK);
    }
}

void rig_propose(Drafter *d, int32_t sequence, int32_t pending, int32_t budget, int32_t n_vocab, Tree *t) {
    fr_error err = {0};
    tree_reset(t, pending);
    if (d->class->propose(d, &sequence, &budget, &t, 1, &err)) fail_msg("%s", err.message);
    if (tree_validate(t, pending, n_vocab, budget + 1, &err)) fail_msg("%s", err.message);
}

void rig_assert_same_tree(const Tree *want, const Tree *got, const char *what) {
    if (want->n != got->n) fail_msg("%s: %d nodes, want %d", what, got->n, want->n);
    for (int32_t i = 0; i < want->n; i++)
        if (memcmp(&want->nodes[i], &got->nodes[i], sizeof want->nodes[i]) != 0)
            fail_msg("%s: node %d is token %d below %d, p_accept %g; want token %d below %d, p_accept %g", what, i,
                     got->nodes[i].token, got->nodes[i].parent, (double)got->nodes[i].p_accept, want->nodes[i].token,
                     want->nodes[i].parent, (double)want->nodes[i].p_accept);
}

void rig_check_sequences_are_independent(const char *spec) {
    enum { N = 3, N_TEXT = 60, N_PROMPT = 20, V = 64 };
    Drafter *many = rig_open_drafter(spec, V, N), *alone = rig_open_drafter(spec, V, 1);
    int32_t texts[N][N_TEXT];
    static Tree together[N], want;
    for (int32_t q = 0; q < N; q++) {
        rig_fill_text(texts[q], N_TEXT, 4);
        assert_int_equal(many->class->begin(many, q, texts[q], N_PROMPT, NULL), FR_OK);
        tree_reset(&together[q], texts[q][N_TEXT - 1]);
    }
    for (int32_t i = N_PROMPT; i < N_TEXT; i += 2)
        for (int32_t q = 0; q < N; q++) assert_int_equal(many->class->observe(many, q, texts[q] + i, 2, NULL), FR_OK);
    Tree *trees[N] = {&together[2], &together[0], &together[1]};
    const int32_t order[N] = {2, 0, 1}, budgets[N] = {9, 17, 30};
    assert_int_equal(many->class->propose(many, order, budgets, trees, N, NULL), FR_OK);
    for (int32_t i = 0; i < N; i++) {
        const int32_t *text = texts[order[i]];
        rig_feed(alone, 0, text, N_PROMPT, N_TEXT);
        rig_propose(alone, 0, text[N_TEXT - 1], budgets[i], V, &want);
        rig_assert_same_tree(&want, trees[i], spec);
        alone->class->end(alone, 0);
        many->class->end(many, order[i]);
    }
    drafter_close(many);
    drafter_close(alone);
}

void rig_check_refuses_unknown_tokens(const char *spec) {
    Drafter *d = rig_open_drafter(spec, 64, 1);
    fr_error err = {0};
    assert_int_equal(d->class->begin(d, 0, (int32_t[]){1, 64, 2}, 3, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "token 64 is outside the vocabulary of 64 tokens"));
    assert_int_equal(d->class->begin(d, 0, (int32_t[]){1, 2}, 2, &err), FR_OK);
    assert_int_equal(d->class->observe(d, 0, (int32_t[]){-1}, 1, &err), FR_ERR_ARGUMENT);
    drafter_close(d);
}
