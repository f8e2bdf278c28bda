/* vocab_match.c - a draft model must have the target's vocabulary; this names the first difference, and computes its
 * hash. */
#include "text/vocab_match.h"

#include "base/hash.h"
#include "base/error.h"
#include "text/vocab.h"

#include <string.h>

static const char *kind_name(VocabKind kind) {
    return kind == VOCAB_SPM ? "SentencePiece BPE" : kind == VOCAB_BPE ? "byte-level BPE" : "BPE over characters";
}

/* The first token that differs, or -1. Both have the same number. */
static int32_t first_difference(const Vocab *a, const Vocab *b) {
    for (int32_t i = 0; i < a->n; i++) {
        Piece x = a->spelling[i], y = b->spelling[i];
        if (x.n != y.n || memcmp(x.data, y.data, x.n) != 0 || a->type[i] != b->type[i] || a->is_eog[i] != b->is_eog[i])
            return i;
    }
    return -1;
}

static int compare(const Vocab *draft, const Vocab *target, const char *path, const char *target_path, fr_error *err) {
    const char *remedy = "a draft model needs the target's vocabulary, token for token";
    if (draft->kind != target->kind)
        return error_set(err, FR_ERR_MISMATCH, "%s: the vocabulary is %s, but %s in the target %s; %s", path,
                         kind_name(draft->kind), kind_name(target->kind), target_path, remedy);
    if (draft->n != target->n)
        return error_set(err, FR_ERR_MISMATCH, "%s: the vocabulary has %d tokens, but %d in the target %s; %s", path,
                         draft->n, target->n, target_path, remedy);
    int32_t i = first_difference(draft, target);
    if (i >= 0) {
        Printable p, q;
        return error_set(
            err, FR_ERR_MISMATCH, "%s: token %d is '%s' (type %d%s), but '%s' (type %d%s) in the target %s; %s", path,
            i, printable(&p, draft->spelling[i].data, draft->spelling[i].n), draft->type[i],
            draft->is_eog[i] ? ", ends a text" : "", printable(&q, target->spelling[i].data, target->spelling[i].n),
            target->type[i], target->is_eog[i] ? ", ends a text" : "", target_path, remedy);
    }
    if (draft->bos != target->bos || draft->eos != target->eos)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: BOS and EOS are tokens %d and %d, but %d and %d in the target %s; %s", path, draft->bos,
                         draft->eos, target->bos, target->eos, target_path, remedy);
    return FR_OK;
}

int vocab_match(const Gguf *draft, const Gguf *target, fr_error *err) {
    Vocab a = {0}, b = {0};
    int status = vocab_open(&a, draft, err);
    if (!status) status = vocab_open(&b, target, err);
    if (!status) status = compare(&a, &b, gguf_path(draft), gguf_path(target), err);
    vocab_close(&a);
    vocab_close(&b);
    return status;
}

int vocab_fingerprint(const Gguf *g, uint64_t *out, fr_error *err) {
    Vocab v = {0};
    int status = vocab_open(&v, g, err);
    if (!status) {
        const int32_t numbers[] = {(int32_t)v.kind, v.n, v.bos, v.eos};
        *out = hash64(numbers, sizeof numbers, 0);
        for (int32_t i = 0; i < v.n; i++) {
            const uint32_t shape[] = {v.spelling[i].n, v.type[i], v.is_eog[i]};
            *out = hash64(shape, sizeof shape, *out);
            *out = hash64(v.spelling[i].data, v.spelling[i].n, *out);
        }
    }
    vocab_close(&v);
    return status;
}
