/* text_drafter.c - shared by the drafters that copy from text: keeps and indexes the text of each sequence.
 *
 * text_drafter_begin allocates memory for the longest context, so that the steps of a request allocate nothing. */
#include "draft/text/text_drafter.h"

#include "base/mem.h"

int text_drafter_init(TextDrafter *d, const DrafterEnv *env, fr_error *err) {
    fr_assert(env->n_vocab > 0 && env->max_sequences > 0);
    d->n_vocab = env->n_vocab;
    d->max_sequences = env->max_sequences;
    d->n_ctx = env->n_ctx;
    d->texts = mem_calloc((size_t)env->max_sequences, sizeof *d->texts);
    if (d->texts) return FR_OK;
    return error_memory(err, "a drafter", (size_t)env->max_sequences * sizeof *d->texts);
}

void text_drafter_release(TextDrafter *d) {
    if (d->texts)
        for (int32_t i = 0; i < d->max_sequences; i++) ngram_text_free(&d->texts[i]);
    mem_free(d->texts);
}

NgramText *text_drafter_text(const TextDrafter *d, int32_t sequence) {
    fr_assert(sequence >= 0 && sequence < d->max_sequences);
    return &d->texts[sequence];
}

int text_drafter_begin(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const TextDrafter *d = (TextDrafter *)drafter;
    NgramText *t = text_drafter_text(d, sequence);
    ngram_text_free(t);
    int status = ngram_text_reserve(t, d->n_ctx, d->n_vocab, err);
    if (!status) status = ngram_text_append(t, tokens, n, d->n_vocab, true, err);
    t->n_prompt = t->n;
    return status;
}

int text_drafter_observe(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n, fr_error *err) {
    const TextDrafter *d = (TextDrafter *)drafter;
    return ngram_text_append(text_drafter_text(d, sequence), tokens, n, d->n_vocab, true, err);
}

int text_drafter_observe_unindexed(Drafter *drafter, int32_t sequence, const int32_t *tokens, int64_t n,
                                   fr_error *err) {
    const TextDrafter *d = (TextDrafter *)drafter;
    return ngram_text_append(text_drafter_text(d, sequence), tokens, n, d->n_vocab, false, err);
}

void text_drafter_end(Drafter *drafter, int32_t sequence) {
    ngram_text_free(text_drafter_text((TextDrafter *)drafter, sequence));
}

double text_drafter_share(int64_t n_token, int64_t n_all, int32_t m, int32_t smoothing) {
    return (double)n_token / ((double)n_all + (double)smoothing / m);
}
