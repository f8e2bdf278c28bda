/* tokens_spm.c - tokenizer.model: a SentencePiece model, which is a protocol buffer.
 *
 *     ModelProto       1: SentencePiece, one for each token    2: TrainerSpec    3: NormalizerSpec
 *     SentencePiece    1: piece (bytes)   2: score (float)   3: type, numbered as in GGUF files
 *     TrainerSpec      3: model_type (1 unigram, 2 BPE)   40, 41, 42, 43: ids of <unk>, <s>, </s>, <pad>
 *     NormalizerSpec   3: add_dummy_prefix
 *
 * (sentencepiece_model.proto of google/sentencepiece.) Only BPE becomes a GGUF vocabulary of the model "llama".
 *
 * The wire format of protocol buffers (protobuf.dev describes it): a message is a list of fields. Each has a key, a
 * varint that holds the field's number and kind, and a value. A varint has seven bits in each byte, the lowest bits
 * first. */
#include "cli/convert/convert_vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILE = 64 << 20 };

/* ---- the wire format ---------------------------------------------------------------------------------- */

Wire wire_begin(const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    return (Wire){.at = at, .end = at + n};
}

static bool stop(Wire *w) {
    w->broken = true;
    w->at = w->end;
    return false;
}

static bool take_varint(Wire *w, uint64_t *out) {
    *out = 0;
    for (unsigned shift = 0; w->at < w->end && shift < 64; shift += 7) {
        unsigned char byte = *w->at++;
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return stop(w);
}

static bool take_bytes(Wire *w, uint64_t n, const char **out) {
    if (n > (size_t)(w->end - w->at)) return stop(w);
    *out = (const char *)w->at;
    w->at += n;
    return true;
}

bool wire_next(Wire *w, WireField *out) {
    uint64_t key, n;
    const char *bytes;
    *out = (WireField){.number = 0};
    if (w->at >= w->end || !take_varint(w, &key)) return false;
    if (key >> 3 == 0 || key >> 3 > UINT32_MAX) return stop(w);
    out->number = (uint32_t)(key >> 3);
    out->kind = (int)(key & 7);
    if (out->kind == 0) return take_varint(w, &out->value);
    if (out->kind == 2) {
        if (!take_varint(w, &n) || !take_bytes(w, n, &out->bytes)) return false;
        out->n = (size_t)n;
        return true;
    }
    if (out->kind != 1 && out->kind != 5) return stop(w); /* groups are obsolete */
    n = out->kind == 1 ? 8 : 4;
    if (!take_bytes(w, n, &bytes)) return false;
    memcpy(&out->value, bytes, (size_t)n);
    return true;
}

float wire_float(const WireField *f) {
    uint32_t bits = (uint32_t)f->value;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* ---- the vocabulary ----------------------------------------------------------------------------------- */

static int refuse(const HubFolder *c, const char *what, fr_error *err) {
    return error_set(err, FR_ERR_FORMAT, "%s/tokenizer.model: %s", c->folder, what);
}

/* Returns a piece with its marks replaced by spaces: user-defined symbols are looked for in the text itself, which has
 * spaces where pieces have the mark. NULL: out of memory. */
static const char *unescaped(ConvertVocab *v, const char *piece, size_t *n) {
    static const char mark[] = "\xe2\x96\x81";
    char *text = convert_vocab_memory(v, *n + 1);
    size_t to = 0;
    if (!text) return NULL;
    for (size_t at = 0; at < *n; to++) {
        bool is_mark = *n - at >= 3 && memcmp(piece + at, mark, 3) == 0;
        text[to] = is_mark ? ' ' : piece[at];
        at += is_mark ? 3 : 1;
    }
    text[to] = '\0';
    *n = to;
    return text;
}

static int read_piece(ConvertVocab *v, const HubFolder *c, const WireField *message, int64_t id, fr_error *err) {
    Wire w = wire_begin(message->bytes, message->n);
    GgufString piece = {"", 0};
    float score_of = 0;
    uint64_t type = TOKEN_NORMAL;
    for (WireField f; wire_next(&w, &f);) {
        if (f.number == 1 && f.kind == 2) piece = (GgufString){f.bytes, f.n};
        else if (f.number == 2 && f.kind == 5) score_of = wire_float(&f);
        else if (f.number == 3 && f.kind == 0) type = f.value;
    }
    if (w.broken || piece.n == 0 || type < TOKEN_NORMAL || type > TOKEN_BYTE || isnan(score_of))
        return refuse(c, "a piece is damaged", err);
    if (type == TOKEN_USER_DEFINED) piece.data = unescaped(v, piece.data, &piece.n);
    if (!piece.data) return error_memory(err, "a vocabulary", piece.n);
    int status = convert_vocab_set(v, c, id, piece.data, piece.n, (TokenType)type, err);
    if (!status) v->scores[id] = score_of;
    return status;
}

/* Returns the value of a field as an id; -1: it is not one. */
static int32_t id_of(const ConvertVocab *v, const WireField *f) {
    return f->value < (uint64_t)v->n ? (int32_t)f->value : -1;
}

static int read_trainer(ConvertVocab *v, const HubFolder *c, const WireField *message, fr_error *err) {
    Wire w = wire_begin(message->bytes, message->n);
    uint64_t type = 1;
    for (WireField f; wire_next(&w, &f);) {
        if (f.kind != 0) continue;
        if (f.number == 3) type = f.value;
        else if (f.number == 40) v->unknown = id_of(v, &f);
        else if (f.number == 41) v->bos = id_of(v, &f);
        else if (f.number == 42) v->eos = id_of(v, &f);
        else if (f.number == 43) v->pad = id_of(v, &f);
    }
    if (w.broken) return refuse(c, "its settings are damaged", err);
    if (type == 2) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s/tokenizer.model: is a SentencePiece model of type %llu; only BPE (2) is "
                     "supported",
                     c->folder, (unsigned long long)type);
}

static void read_normalizer(ConvertVocab *v, const WireField *message) {
    Wire w = wire_begin(message->bytes, message->n);
    for (WireField f; wire_next(&w, &f);)
        if (f.number == 3 && f.kind == 0) v->adds_space_prefix = f.value != 0;
}

/* Reads the tokens that were added after training: added_tokens_decoder of tokenizer_config.json. */
static int read_added(ConvertVocab *v, const HubFolder *c, fr_error *err) {
    json_t *decoder = json_object_get(c->tokenizer_config, "added_tokens_decoder"), *token;
    const char *key;
    int status = FR_OK;
    json_object_foreach(decoder, key, token) {
        const char *content = json_string_value(json_object_get(token, "content"));
        char *end;
        long long id = strtoll(key, &end, 10);
        if (!content || *end || end == key) return refuse(c, "an added token must have an id and a content", err);
        size_t n = strlen(content);
        const char *text = unescaped(v, content, &n);
        if (!text) return error_memory(err, "a vocabulary", n);
        bool is_special = json_is_true(json_object_get(token, "special")),
             is_piece = convert_vocab_find(v, content, strlen(content)) == id || convert_vocab_find(v, text, n) == id;
        if (is_piece && is_special && v->types[id] == TOKEN_USER_DEFINED) v->types[id] = TOKEN_CONTROL;
        if (is_piece) continue;
        status = convert_vocab_set(v, c, id, is_special ? content : text, is_special ? strlen(content) : n,
                                   is_special ? TOKEN_CONTROL : TOKEN_USER_DEFINED, err);
        if (status) break;
    }
    return status;
}

int tokens_spm_read(ConvertVocab *v, const HubFolder *c, fr_error *err) {
    size_t n;
    int64_t n_pieces = 0;
    int status = hub_read(c, "tokenizer.model", MAX_FILE, &v->file, &n, err);
    if (status) return status;
    v->kind = VOCAB_SPM;
    v->unknown = 0, v->bos = 1, v->eos = 2; /* SentencePiece's defaults */
    v->adds_space_prefix = v->adds_bos = v->says_bos = true;
    Wire w = wire_begin(v->file, n);
    for (WireField f; !status && wire_next(&w, &f);) {
        if (f.kind != 2) continue;
        if (f.number == 1) status = read_piece(v, c, &f, n_pieces++, err);
        else if (f.number == 2) status = read_trainer(v, c, &f, err);
        else if (f.number == 3) read_normalizer(v, &f);
    }
    if (!status && (w.broken || n_pieces == 0))
        status = refuse(c, "is not a SentencePiece model, or is cut short", err);
    return status ? status : read_added(v, c, err);
}
