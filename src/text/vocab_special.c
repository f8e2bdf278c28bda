/* vocab_special.c - finds the special tokens of a vocabulary: unknown, BOS and EOS by the ids in the file, and the
 * tokens that end a text also by their well-known spellings. */
#include "text/encoder.h"

#include <ctype.h>
#include <string.h>

/* Reads the id of a special token, which is `fallback` if the file has no such key. A file without such a
 * token lacks the key or has -1 there, which may be written as 2^32 - 1. */
static int read_id(const Vocab *v, const Gguf *g, const char *key, int32_t fallback, int32_t *out, fr_error *err) {
    int64_t id = fallback;
    gguf_get_i64(g, key, &id);
    if (id < 0 || id == UINT32_MAX) id = -1;
    if (id >= v->n)
        return error_set(err, FR_ERR_FORMAT, "%s: %s is %lld but there are %d tokens; the vocabulary is damaged",
                         gguf_path(g), key, (long long)id, v->n);
    *out = (int32_t)id;
    return FR_OK;
}

/* In SentencePiece models without these keys, <unk>, <s> and </s> are 0, 1 and 2. They are used if their types
 * agree. */
static int32_t spm_default(const Vocab *v, int32_t id, TokenType type, bool types_given) {
    if (v->kind != VOCAB_SPM || id >= v->n) return -1;
    return !types_given || v->type[id] == type ? id : -1;
}

static bool spelled(const Vocab *v, int32_t id, const char *spelling) {
    Piece p = v->spelling[id];
    return p.n == strlen(spelling) && memcmp(p.data, spelling, p.n) == 0;
}

/* The spellings of tokens that end generation. Many files mark them as ordinary pieces by mistake. A spelling that
 * no text contains by chance is therefore treated as a control token, whatever its type is. */
static const struct {
    const char *spelling;
    bool unmistakable;
} end_spellings[] = {
    {"<|eot_id|>", true},
    {"<|eom_id|>", true},
    {"<|im_end|>", true},
    {"<|end|>", true},
    {"<|endoftext|>", true},
    {"<|end_of_text|>", true},
    {"<|return|>", true},
    {"<|call|>", true},
    {"<|fim_pad|>", true},
    {"<|fim_repo|>", true},
    {"<|repo_name|>", true},
    {"<|file_sep|>", true},
    {"<end_of_turn>", true},
    {"<end_of_utterance>", true},
    {"<\xEF\xBD\x9C"
     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
     true}, /* DeepSeek, with its fullwidth bars */
    {"</s>", false},
    {"<eos>", false},
    {"<EOT>", false},
    {"[EOT]", false},
    {"[EOS]", false},
    {"_<EOT>", false},
};

static bool ends_by_spelling(const Vocab *v, int32_t id) {
    for (size_t k = 0; k < sizeof end_spellings / sizeof *end_spellings; k++)
        if (spelled(v, id, end_spellings[k].spelling))
            return end_spellings[k].unmistakable || (v->type[id] != TOKEN_NORMAL && v->type[id] != TOKEN_UNDEFINED);
    return false;
}

/* In the "harmony" format, <|end|> ends a message and not the whole answer, which <|return|> and <|call|> do. */
static void spare_harmony_end(Vocab *v) {
    int32_t end = -1;
    bool has_return = false, has_call = false;
    for (int32_t i = 0; i < v->n; i++) {
        if (!v->is_eog[i]) continue;
        if (spelled(v, i, "<|end|>")) end = i;
        has_return = has_return || spelled(v, i, "<|return|>");
        has_call = has_call || spelled(v, i, "<|call|>");
    }
    if (end >= 0 && has_return && has_call) {
        v->is_eog[end] = false;
        v->type[end] = TOKEN_USER_DEFINED;
    }
}

static bool contains_ignoring_case(GgufString s, const char *part) {
    size_t n = strlen(part);
    for (size_t i = 0; i + n <= s.n; i++) {
        size_t k = 0;
        while (k < n && tolower((unsigned char)s.data[i + k]) == part[k]) k++;
        if (k == n) return true;
    }
    return false;
}

/* The special tokens of Phi-3 include the white space after them ("<|user|>\n" is one token). Its files do not say
 * so; therefore the name of the model decides. */
static void mark_stripping(Vocab *v, const Gguf *g) {
    GgufString name;
    if (!gguf_get_string(g, "general.name", &name)) return;
    if (!contains_ignoring_case(name, "phi-3") && !contains_ignoring_case(name, "phi3")) return;
    for (int32_t i = 0; i < v->n; i++)
        v->strips_after[i] = !spelled(v, i, "<unk>") && !spelled(v, i, "<s>") && !spelled(v, i, "<|endoftext|>");
}

int vocab_read_special(Vocab *v, const Gguf *g, bool types_given, fr_error *err) {
    int32_t eot, eom;
    int status = read_id(v, g, "tokenizer.ggml.unknown_token_id", spm_default(v, 0, TOKEN_UNKNOWN, types_given),
                         &v->unknown, err);
    if (!status)
        status = read_id(v, g, "tokenizer.ggml.bos_token_id", spm_default(v, 1, TOKEN_CONTROL, types_given), &v->bos,
                         err);
    if (!status)
        status = read_id(v, g, "tokenizer.ggml.eos_token_id", spm_default(v, 2, TOKEN_CONTROL, types_given), &v->eos,
                         err);
    if (!status) status = read_id(v, g, "tokenizer.ggml.eot_token_id", -1, &eot, err);
    if (!status) status = read_id(v, g, "tokenizer.ggml.eom_token_id", -1, &eom, err);
    if (status) return status;
    if (!types_given) {
        if (v->unknown >= 0) v->type[v->unknown] = TOKEN_UNKNOWN;
        if (v->bos >= 0) v->type[v->bos] = TOKEN_CONTROL;
        if (v->eos >= 0) v->type[v->eos] = TOKEN_CONTROL;
    }
    for (int32_t i = 0; i < v->n; i++) {
        bool by_spelling = ends_by_spelling(v, i);
        v->is_eog[i] = by_spelling || i == v->eos || i == eot || i == eom;
        if (by_spelling) v->type[i] = TOKEN_CONTROL;
    }
    spare_harmony_end(v);
    mark_stripping(v, g);
    v->adds_bos = v->adds_space_prefix = v->kind == VOCAB_SPM;
    gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &v->adds_bos);
    gguf_get_bool(g, "tokenizer.ggml.add_eos_token", &v->adds_eos);
    if (v->kind == VOCAB_SPM) gguf_get_bool(g, "tokenizer.ggml.add_space_prefix", &v->adds_space_prefix);
    return FR_OK;
}
