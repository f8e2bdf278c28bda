/* feedback_rig.c - runs drafters that learn from logits against a simulated target, one step at a time. */
#include "feedback_rig.h"
#include "engine_rig.h"

#include "base/rng.h"

#include <math.h>
#include <string.h>

Drafter *feedback_rig_open(const char *spec, int32_t n_vocab, int32_t n_sequences) {
    static const char no_target;
    Drafter *d;
    fr_error err = {0};
    const DrafterEnv env = {.n_vocab = n_vocab,
                            .max_sequences = n_sequences,
                            .target = (const Gguf *)(const void *)&no_target};
    if (drafter_open(&d, spec, &env, 0, &err)) fail_msg("%s", err.message);
    return d;
}

void feedback_rig_begin(Drafter *d, FeedbackSequence *s, int32_t id, uint64_t seed, int32_t n_prompt) {
    s->id = id;
    s->seed = seed;
    s->sampling = SAMPLING_DEFAULT;
    s->n = n_prompt;
    rig_fill_text(s->context, n_prompt, 6);
    assert_int_equal(d->class->begin(d, id, s->context, n_prompt, NULL), FR_OK);
}

void feedback_rig_propose(Drafter *d, FeedbackSequence *s, int32_t budget) {
    rig_propose(d, s->id, s->context[s->n - 1], budget, FEEDBACK_V, &s->tree);
}

/* Six tokens are likely after any two tokens. Their probabilities depend on the pair, but half of the weight depends
 * only on the last token, so that one token of context gives some information. */
static void make_row(uint64_t seed, int32_t before, int32_t token, float *row) {
    for (int32_t v = 0; v < FEEDBACK_V; v++) {
        uint32_t words[4];
        rng_words(seed, RNG_TEST, (uint64_t)token << 20 | (uint64_t)before << 10 | (uint64_t)v, 1, words);
        float pair = (float)(words[0] % 1000) / 250;
        rng_words(seed, RNG_TEST, (uint64_t)token << 20 | (uint64_t)v, 2, words);
        row[v] = pair + (float)(words[0] % 1000) / 125 - (v < 6 ? 0 : 12);
    }
}

void feedback_rig_verify(FeedbackSequence *s) {
    static int32_t scratch[FEEDBACK_MAX_TEXT + TREE_MAX_NODES + 1];
    VerifyScratch *scratch_memory = verify_scratch_new(FEEDBACK_V);
    for (int32_t i = 0; i < s->tree.n; i++) {
        int32_t parent = s->tree.nodes[i].parent;
        make_row(s->seed, parent < 0 ? s->context[s->n - 2] : s->tree.nodes[parent].token, s->tree.nodes[i].token,
                 s->rows[i]);
        s->logits[i] = s->rows[i];
    }
    memcpy(scratch, s->context, (size_t)s->n * sizeof *scratch);
    VerifyInput in = {.tree = &s->tree,
                      .logits = s->logits,
                      .n_vocab = FEEDBACK_V,
                      .sampling = &s->sampling,
                      .position = (uint64_t)s->n,
                      .context = scratch,
                      .n_context = s->n};
    assert_int_equal(verify_sampled(&in, scratch_memory, &s->verdict, NULL), FR_OK);
    verify_scratch_free(scratch_memory);
    assert_true(s->n + s->verdict.n_path + 1 <= FEEDBACK_MAX_TEXT);
    for (int32_t depth = 0; depth <= s->verdict.n_path; depth++)
        s->context[s->n + depth] = feedback_rig_after(s, depth);
    s->n += s->verdict.n_path + 1;
}

void feedback_rig_observe(Drafter *d, const FeedbackSequence *s) {
    const VerifiedTree v = {.tree = &s->tree, .logits = s->logits, .verdict = &s->verdict};
    int32_t n = s->verdict.n_path + 1;
    assert_int_equal(d->class->observe_tree(d, s->id, &v, NULL), FR_OK);
    assert_int_equal(d->class->observe(d, s->id, s->context + s->n - n, n, NULL), FR_OK);
}

int32_t feedback_rig_after(const FeedbackSequence *s, int32_t depth) {
    return depth == s->verdict.n_path ? s->verdict.next_token : s->tree.nodes[s->verdict.path[depth]].token;
}

void feedback_rig_count(FeedbackBands *b, const FeedbackSequence *s) {
    for (int32_t i = 1; i < s->tree.n; i++) {
        const TreeNode *node = &s->tree.nodes[i];
        int32_t band = (int32_t)(node->p_accept * 10);
        if (band > 9) band = 9;
        b->n[band]++;
        b->p_accept[band] += (double)node->p_accept;
        b->right[band] += node->depth <= s->verdict.n_path && s->verdict.path[node->depth - 1] == i;
    }
}

void feedback_rig_check_bands(const FeedbackBands *b, double tolerance) {
    int32_t n_checked = 0;
    for (int32_t i = 0; i < 10; i++) {
        double n = (double)b->n[i];
        if (b->n[i] < 300) continue;
        n_checked++;
        if (fabs(b->p_accept[i] - b->right[i]) > tolerance * n)
            fail_msg("band %d: p_accept %g, frequency %g, of %g nodes", i, b->p_accept[i] / n, b->right[i] / n, n);
    }
    assert_true(n_checked >= 2);
}

void feedback_rig_check_engine(const char *draft, const char *other) {
    static Stream plain, got;
    const char *const drafts[] = {draft, other};
    static const int32_t prompt[] = {1, 300, 301, 302, 303, 300, 301, 302, 303, 300};
    fr_model *model = rig_open_model("models/target.gguf", NULL);
    fr_engine *e = rig_open_engine(model, NULL);
    fr_request_options o = {.struct_size = sizeof o,
                            .prompt = prompt,
                            .n_prompt = 10,
                            .max_tokens = 60,
                            .sampling = fr_sampling_default(),
                            .ignore_eos = 1};
    rig_run_request(e, &o, &plain);
    o.drafts = drafts;
    o.tree_budget = 24;
    for (o.n_drafts = 1; o.n_drafts <= 2; o.n_drafts++) {
        rig_run_request(e, &o, &got);
        rig_assert_same(&plain, &got, drafts[o.n_drafts - 1]);
        assert_string_equal(got.draft_error, "");
        assert_true(got.stats.accepted > 10);
    }
    fr_engine_close(e);
    fr_model_close(model);
}
