/* vocab_match.c - compares the vocabularies of two files: whether a model can draft for another one token for token,
 * and which tokens two vocabularies share. */
#include "text/vocab.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

static const char *kind_name(VocabKind kind) {
    return kind == VOCAB_SPM ? "SentencePiece BPE" : kind == VOCAB_BPE ? "byte-level BPE" : "BPE over characters";
}

/* Returns the first of n tokens that differs, or -1. Both vocabularies have at least n tokens. */
static int32_t first_difference(const Vocab *a, const Vocab *b, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
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
    int32_t i = first_difference(draft, target, draft->n);
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

static bool has_type(const Vocab *v, int32_t id, TokenType a, TokenType b) {
    return id >= 0 && (v->type[id] == a || v->type[id] == b);
}

/* Returns the token of `draft` with the text of token i of `target`, or -1. */
static int32_t find_same_text(const Vocab *draft, const Vocab *target, int32_t i) {
    Piece t = target->text[i];
    if (t.n == 0 || target->type[i] == TOKEN_UNKNOWN) return -1;
    if (target->type[i] == TOKEN_BYTE) return draft->byte_token[(unsigned char)t.data[0]];
    if (has_type(target, i, TOKEN_CONTROL, TOKEN_USER_DEFINED)) {
        int32_t id = hash_table_find(&draft->by_spelling, t.data, t.n);
        if (has_type(draft, id, TOKEN_CONTROL, TOKEN_USER_DEFINED)) return id;
        if (target->type[i] == TOKEN_CONTROL) return -1;
    }
    int32_t id = hash_table_find(&draft->by_text, t.data, t.n);
    if (id < 0 && t.n == 1) id = draft->byte_token[(unsigned char)t.data[0]];
    if (id >= 0) return id;
    id = hash_table_find(&draft->by_spelling, t.data, t.n);
    return has_type(draft, id, TOKEN_USER_DEFINED, TOKEN_USER_DEFINED) ? id : -1;
}

/* Enters a pair of tokens, unless one of the two has a partner already. */
static void share(int32_t *to_draft, bool *is_taken, int32_t i, int32_t id) {
    if (id < 0 || is_taken[id] || to_draft[i] >= 0) return;
    to_draft[i] = id;
    is_taken[id] = true;
}

/* A text may belong to a piece and to a byte token; pieces come first, because encoding prefers them. */
static int share_tokens(const Vocab *draft, const Vocab *target, int32_t *to_draft, int32_t n, fr_error *err) {
    bool *is_taken = mem_calloc((size_t)draft->n, sizeof *is_taken);
    if (!is_taken) return error_memory(err, "the tokens that two vocabularies share", (size_t)draft->n);
    for (int bytes = 0; bytes < 2; bytes++)
        for (int32_t i = 0; i < n; i++)
            if ((target->type[i] == TOKEN_BYTE) == (bytes == 1))
                share(to_draft, is_taken, i, find_same_text(draft, target, i));
    if (target->eos >= 0 && target->eos < n) share(to_draft, is_taken, target->eos, draft->eos);
    if (target->bos >= 0 && target->bos < n) share(to_draft, is_taken, target->bos, draft->bos);
    mem_free(is_taken);
    return FR_OK;
}

int vocab_shared(const Gguf *draft, const Gguf *target, int32_t *to_draft, int32_t n, int32_t *n_shared, bool *same_ids,
                 fr_error *err) {
    Vocab a = {0}, b = {0};
    int status = vocab_open(&a, draft, err);
    if (!status) status = vocab_open(&b, target, err);
    *n_shared = 0;
    *same_ids = false;
    for (int32_t i = 0; i < n; i++) to_draft[i] = -1;
    if (!status) {
        int32_t n_both = a.n < b.n ? a.n : b.n, n_target = n < b.n ? n : b.n;
        *same_ids = a.kind == b.kind && a.bos == b.bos && a.eos == b.eos && first_difference(&a, &b, n_both) < 0;
        if (*same_ids)
            for (int32_t i = 0; i < n_both && i < n; i++) to_draft[i] = i;
        else status = share_tokens(&a, &b, to_draft, n_target, err);
        for (int32_t i = 0; i < n_target; i++) *n_shared += to_draft[i] >= 0;
    }
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
