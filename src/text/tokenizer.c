/* tokenizer.c - opens a vocabulary, finds special tokens in a text, and encodes the rest by the kind of BPE that the
 * vocabulary is for. */
#include "text/tokenizer.h"

#include "text/bpe.h"
#include "text/special_match.h"
#include "text/spm.h"

#include <ctype.h>
#include <stdlib.h>

struct Tokenizer {
    Vocab vocab;
    Bpe bpe; /* not for VOCAB_SPM */
    SpecialSet user_defined, all_special;
};

int tokenizer_open(Tokenizer **out, const Gguf *g, fr_error *err) {
    *out = NULL;
    Tokenizer *t = calloc(1, sizeof *t);
    if (!t) return error_memory(err, "a tokenizer", sizeof *t);
    int status = vocab_open(&t->vocab, g, err);
    if (!status && t->vocab.kind != VOCAB_SPM) status = bpe_open(&t->bpe, &t->vocab, g, err);
    if (!status) status = special_set_open(&t->user_defined, &t->vocab, false, err);
    if (!status) status = special_set_open(&t->all_special, &t->vocab, true, err);
    if (status) tokenizer_close(t);
    else *out = t;
    return status;
}

void tokenizer_close(Tokenizer *t) {
    if (!t) return;
    special_set_close(&t->user_defined);
    special_set_close(&t->all_special);
    vocab_close(&t->vocab);
    bpe_close(&t->bpe);
    free(t);
}

/* Encodes a part between special tokens. It follows the start of the text or a special token, so it gets the word-start
 * space where the vocabulary has one. */
static int encode_plain(const Tokenizer *t, const char *text, size_t n, Encoding *e, fr_error *err) {
    if (n == 0) return FR_OK;
    if (t->vocab.kind != VOCAB_SPM) return bpe_encode(&t->bpe, &t->vocab, text, n, e, err);
    return spm_encode(&t->vocab, text, n, t->vocab.adds_space_prefix, e, err);
}

/* The first special token of one set at or behind a place, kept until the place is past it. */
typedef struct Hit {
    size_t at, n_bytes; /* at == the length of the text: there is none */
    int32_t id;
    bool is_known;
} Hit;

static void look_for(Hit *h, const SpecialSet *set, const char *text, size_t n, size_t from) {
    if (h->is_known && h->at >= from) return;
    *h = (Hit){.id = -1, .is_known = true};
    h->at = special_set_find(set, text, n, from, &h->id, &h->n_bytes);
}

/* The same in the parts of the text that are not data. */
static void look_outside(Hit *h, const SpecialSet *set, const char *text, size_t n, size_t from, const TextSpan *data,
                         size_t n_data, size_t *i_data) {
    if (h->is_known && h->at >= from) return;
    *h = (Hit){.at = n, .id = -1, .is_known = true};
    while (from < n && h->id < 0) {
        while (*i_data < n_data && data[*i_data].end <= from) ++*i_data;
        bool inside = *i_data < n_data && data[*i_data].begin <= from;
        size_t end = inside ? data[*i_data].end : *i_data < n_data ? data[*i_data].begin : n;
        size_t at = inside ? end : special_set_find(set, text, end, from, &h->id, &h->n_bytes);
        if (h->id >= 0) h->at = at;
        from = end;
    }
}

static int encode_text(const Tokenizer *t, const char *text, size_t n, bool special, const TextSpan *data,
                       size_t n_data, Encoding *e, fr_error *err) {
    Hit anywhere = {0}, outside = {0};
    size_t i_data = 0;
    int status = FR_OK;
    for (size_t at = 0; at < n && !status;) {
        look_for(&anywhere, &t->user_defined, text, n, at);
        Hit first = anywhere;
        if (special) {
            look_outside(&outside, &t->all_special, text, n, at, data, n_data, &i_data);
            if (outside.at < first.at || (outside.at == first.at && outside.n_bytes > first.n_bytes)) first = outside;
        }
        int32_t id = first.id;
        size_t hit = first.at, n_bytes = first.n_bytes;
        status = encode_plain(t, text + at, hit - at, e, err);
        if (!status && id >= 0 && !encoding_add(e, id)) status = error_memory(err, "the tokens of a text", n);
        at = hit + n_bytes;
        if (id >= 0 && t->vocab.strips_after[id])
            while (at < n && isspace((unsigned char)text[at])) at++;
    }
    return status;
}

int tokenizer_encode(const Tokenizer *t, const char *text, size_t n, unsigned flags, int32_t **out_tokens,
                     int64_t *out_n, fr_error *err) {
    return tokenizer_encode_marked(t, text, n, NULL, 0, flags, out_tokens, out_n, err);
}

int tokenizer_encode_marked(const Tokenizer *t, const char *text, size_t n, const TextSpan *data, size_t n_data,
                            unsigned flags, int32_t **out_tokens, int64_t *out_n, fr_error *err) {
    *out_tokens = NULL;
    *out_n = 0;
    if (n > INT32_MAX - 1)
        return error_set(err, FR_ERR_ARGUMENT,
                         "a text of %zu bytes is too long to be tokenized at once; the limit is %d bytes", n,
                         INT32_MAX - 1);
    Encoding e = {0};
    bool fits = true;
    if ((flags & TOKENIZE_BOS) && t->vocab.bos >= 0) fits = encoding_add(&e, t->vocab.bos);
    int status = fits ? encode_text(t, text, n, (flags & TOKENIZE_SPECIAL) != 0, data, n_data, &e, err) : FR_OK;
    if (fits && !status && (flags & TOKENIZE_EOS) && t->vocab.eos >= 0) fits = encoding_add(&e, t->vocab.eos);
    if (!fits) status = error_memory(err, "the tokens of a text", n);
    encoding_close(&e);
    if (status) {
        free(e.ids);
        return status;
    }
    *out_tokens = e.ids;
    *out_n = e.n;
    return FR_OK;
}

int32_t tokenizer_n_vocab(const Tokenizer *t) { return t->vocab.n; }
int32_t tokenizer_bos(const Tokenizer *t) { return t->vocab.bos; }
int32_t tokenizer_eos(const Tokenizer *t) { return t->vocab.eos; }
bool tokenizer_adds_bos(const Tokenizer *t) { return t->vocab.adds_bos && t->vocab.bos >= 0; }
bool tokenizer_adds_eos(const Tokenizer *t) { return t->vocab.adds_eos && t->vocab.eos >= 0; }
bool tokenizer_adds_space_prefix(const Tokenizer *t) { return t->vocab.adds_space_prefix; }

static bool known(const Tokenizer *t, int32_t token) { return token >= 0 && token < t->vocab.n; }

bool tokenizer_is_eog(const Tokenizer *t, int32_t token) { return known(t, token) && t->vocab.is_eog[token]; }

bool tokenizer_is_special(const Tokenizer *t, int32_t token) {
    return known(t, token) && (t->vocab.type[token] == TOKEN_CONTROL || t->vocab.type[token] == TOKEN_UNKNOWN);
}

int32_t tokenizer_find(const Tokenizer *t, const char *piece, size_t n) {
    return hash_table_find(&t->vocab.by_spelling, piece, n);
}

const char *tokenizer_piece(const Tokenizer *t, int32_t token, bool with_special, size_t *n_bytes) {
    *n_bytes = 0;
    if (!known(t, token) || (!with_special && tokenizer_is_special(t, token))) return "";
    *n_bytes = t->vocab.text[token].n;
    return t->vocab.text[token].data;
}
