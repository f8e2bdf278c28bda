/* tokens_json.c - tokenizer.json: its vocabulary, merges, added tokens and pre-tokenizer.
 *
 * This format holds two kinds of BPE. Byte-level BPE (GPT-2, Llama 3, Qwen) becomes tokenizer.ggml.model "gpt2": pieces
 * and merges stay the same, and the pre-tokenizer is recognised by its patterns. BPE over characters with byte tokens
 * (Llama 2, Mistral) was a SentencePiece model before it was converted to this format, in which merges replace the
 * scores; it becomes "llama". That model first merges the pair whose result has the highest score, so the score of a
 * piece is minus the rank of the first merge that makes it. This is exact for converted SentencePiece vocabularies,
 * whose merges are in the order of the scores. If the folder has tokenizer.model, that is read instead. */
#include "cli/convert/convert_vocab.h"

#include "base/error.h"
#include "text/encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(const HubFolder *c, const char *what, fr_error *err) {
    return error_set(err, FR_ERR_FORMAT, "%s/tokenizer.json: %s", c->folder, what);
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* ---- pre-tokenizers ---------------------------------------------------------------------------------- */

/* GPT-2's pattern, which a ByteLevel step with use_regex implies. pretokenizer.c leaves out the last alternative and
 * explains why. */
#define GPT2_PATTERN "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define GPT2_REST "|\\s+"

typedef struct Patterns {
    const char *items[PRE_MAX_PATTERNS];
    int n;
    bool is_known; /* a pattern is known for each step */
} Patterns;

static void add_pattern(Patterns *p, const char *pattern) {
    if (p->n == PRE_MAX_PATTERNS || !pattern) p->is_known = false;
    else p->items[p->n++] = pattern;
}

/* Adds the pattern of one step of the pre-tokenizer. */
static void add_step(Patterns *p, const json_t *step) {
    const char *type = text_of(step, "type");
    if (strcmp(type, "Split") == 0)
        add_pattern(p, json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex")));
    else if (strcmp(type, "Digits") == 0 && json_is_true(json_object_get(step, "individual_digits")))
        add_pattern(p, "\\p{N}");
    else if (strcmp(type, "ByteLevel") == 0) {
        if (!json_is_false(json_object_get(step, "use_regex"))) add_pattern(p, GPT2_PATTERN);
    } else p->is_known = false;
}

/* Returns the number of steps: 1, or those of a Sequence. */
static size_t n_steps(const json_t *pre) {
    const json_t *list = json_object_get(pre, "pretokenizers");
    return list ? json_array_size(list) : json_is_object(pre);
}

static const json_t *step_at(const json_t *pre, size_t i) {
    const json_t *list = json_object_get(pre, "pretokenizers");
    return list ? json_array_get(list, i) : pre;
}

static bool same_pattern(const char *a, const char *b) {
    size_t n = strlen(b);
    return strncmp(a, b, n) == 0 && (a[n] == '\0' || (strcmp(b, GPT2_PATTERN) == 0 && strcmp(a + n, GPT2_REST) == 0));
}

static bool is_family(const PreFamily *f, const Patterns *p, bool ignores_merges) {
    if (((f->flags & PRE_IGNORES_MERGES) != 0) != ignores_merges) return false;
    if (f->published) return p->n == 1 && same_pattern(p->items[0], f->published);
    for (int i = 0; i < PRE_MAX_PATTERNS; i++) {
        const char *theirs = i < p->n ? p->items[i] : NULL;
        if (!theirs != !f->patterns[i] || (theirs && !same_pattern(theirs, f->patterns[i]))) return false;
    }
    return true;
}

static int find_pre(ConvertVocab *v, const HubFolder *c, fr_error *err) {
    const json_t *pre = json_object_get(c->tokenizer, "pre_tokenizer");
    bool ignores = json_is_true(json_object_get(json_object_get(c->tokenizer, "model"), "ignore_merges"));
    Patterns p = {.is_known = true};
    for (size_t i = 0; i < n_steps(pre); i++) add_step(&p, step_at(pre, i));
    /* The second pass accepts a family that differs in ignore_merges, which affects only words that no merge
     * produces. */
    for (int pass = 0; pass < 2 && p.is_known; pass++)
        for (size_t i = 0; i < pre_n_families; i++) {
            if (!is_family(&pre_families[i], &p, pass == 0 ? ignores : !ignores)) continue;
            snprintf(v->pre, sizeof v->pre, "%.*s", (int)strcspn(pre_families[i].names, " "), pre_families[i].names);
            return FR_OK;
        }
    Printable safe;
    const char *first = p.n ? p.items[0] : "none";
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s/tokenizer.json: forerun does not know this pre-tokenizer, whose first pattern is %s",
                     c->folder, printable(&safe, first, strlen(first)));
}

bool tokens_json_is_byte_level(const json_t *tokenizer) {
    const json_t *pre = json_object_get(tokenizer, "pre_tokenizer");
    for (size_t i = 0; i < n_steps(pre); i++)
        if (strcmp(text_of(step_at(pre, i), "type"), "ByteLevel") == 0) return true;
    return false;
}

/* ---- pieces ------------------------------------------------------------------------------------------ */

static bool is_byte(const char *piece) { return strlen(piece) == 6 && memcmp(piece, "<0x", 3) == 0 && piece[5] == '>'; }

static int read_pieces(ConvertVocab *v, const HubFolder *c, const json_t *model, fr_error *err) {
    json_t *vocab = json_object_get(model, "vocab"), *id;
    const char *piece, *unknown = json_string_value(json_object_get(model, "unk_token"));
    int status = FR_OK;
    if (!json_is_object(vocab)) return refuse(c, "model.vocab must be an object", err);
    json_object_foreach(vocab, piece, id) {
        TokenType type = v->kind == VOCAB_SPM && is_byte(piece)   ? TOKEN_BYTE
                         : unknown && strcmp(piece, unknown) == 0 ? TOKEN_UNKNOWN
                                                                  : TOKEN_NORMAL;
        if (!json_is_integer(id)) status = refuse(c, "an id in model.vocab is not an integer", err);
        if (!status) status = convert_vocab_set(v, c, json_integer_value(id), piece, strlen(piece), type, err);
        if (status) break;
    }
    if (!status && unknown) v->unknown = convert_vocab_find(v, unknown, strlen(unknown));
    return status;
}

static int read_added(ConvertVocab *v, const HubFolder *c, fr_error *err) {
    const json_t *list = json_object_get(c->tokenizer, "added_tokens");
    int status = FR_OK;
    for (size_t i = 0; i < json_array_size(list) && !status; i++) {
        const json_t *t = json_array_get(list, i), *id = json_object_get(t, "id");
        const char *content = json_string_value(json_object_get(t, "content"));
        if (!json_is_integer(id) || !content) return refuse(c, "an added token must have an id and a content", err);
        TokenType type = json_is_true(json_object_get(t, "special")) ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
        bool is_unknown = v->unknown >= 0 && json_integer_value(id) == v->unknown;
        status = convert_vocab_set(v, c, json_integer_value(id), content, strlen(content),
                                   is_unknown ? TOKEN_UNKNOWN : type, err);
    }
    return status;
}

/* ---- merges ------------------------------------------------------------------------------------------ */

/* A merge is "left right", or [left, right] in newer files. */
static bool read_merge(ConvertVocab *v, const json_t *merge, GgufString *out) {
    const char *joined = json_string_value(merge), *left = json_string_value(json_array_get(merge, 0)),
               *right = json_string_value(json_array_get(merge, 1));
    if (joined) {
        *out = (GgufString){joined, strlen(joined)};
        return strchr(joined, ' ') != NULL;
    }
    if (!left || !right || strchr(left, ' ') || strchr(right, ' ')) return false;
    size_t n = strlen(left) + 1 + strlen(right);
    char *text = convert_vocab_memory(v, n + 1);
    if (!text) return false;
    snprintf(text, n + 1, "%s %s", left, right);
    *out = (GgufString){text, n};
    return true;
}

/* Scores the piece that a merge makes by minus the rank, unless an earlier merge makes it, too. */
static void score(ConvertVocab *v, GgufString merge, int64_t rank) {
    char piece[2 * VOCAB_MAX_PIECE];
    if (!merge.data || merge.n >= sizeof piece) return;
    size_t n_left = strcspn(merge.data, " ");
    memcpy(piece, merge.data, n_left);
    memcpy(piece + n_left, merge.data + n_left + 1, merge.n - n_left - 1);
    int32_t id = convert_vocab_find(v, piece, merge.n - 1);
    if (id >= 0 && v->scores[id] == 0) v->scores[id] = -(float)(rank + 1);
}

/* Scores all pieces. A piece that no merge makes gets the lowest score. */
static void score_all(ConvertVocab *v) {
    for (int64_t i = 0; i < v->n_merges; i++) score(v, v->merges[i], i);
    for (int64_t i = 0; i < v->n; i++)
        if (v->types[i] == TOKEN_NORMAL && v->scores[i] == 0) v->scores[i] = -(float)(v->n_merges + 1);
    v->n_merges = 0;
}

static int read_merges(ConvertVocab *v, const HubFolder *c, const json_t *model, fr_error *err) {
    const json_t *merges = json_object_get(model, "merges");
    size_t n = json_array_size(merges);
    if (!json_is_array(merges)) return refuse(c, "model.merges must be a list", err);
    v->merges = calloc(n + 1, sizeof *v->merges);
    if (!v->merges) return error_memory(err, "the merges of a vocabulary", n * sizeof *v->merges);
    for (size_t i = 0; i < n; i++)
        if (!read_merge(v, json_array_get(merges, i), &v->merges[v->n_merges++]))
            return refuse(c, "a merge must be two pieces with a space between them", err);
    if (v->kind == VOCAB_SPM) score_all(v);
    return FR_OK;
}

/* ---- around the text --------------------------------------------------------------------------------- */

/* Looks for a special token at either end of the post-processor's template, which tells whether texts get BOS and
 * EOS. */
static void read_template(ConvertVocab *v, const json_t *processor) {
    const json_t *single = json_object_get(processor, "single"), *list = json_object_get(processor, "processors");
    size_t n = json_array_size(single);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *inner = json_array_get(list, i);
        if (!json_object_get(inner, "processors")) read_template(v, inner);
    }
    if (n == 0) return;
    v->says_bos = true;
    v->adds_bos = json_object_get(json_array_get(single, 0), "SpecialToken") != NULL;
    v->adds_eos = n > 1 && json_object_get(json_array_get(single, n - 1), "SpecialToken") != NULL;
}

/* Returns whether a space is put before a text, as SentencePiece does: by Metaspace, or by a normalizer that prepends
 * the mark. */
static bool prepends_space(const json_t *tokenizer) {
    const json_t *normalizer = json_object_get(tokenizer, "normalizer"),
                 *list = json_object_get(normalizer, "normalizers"), *pre = json_object_get(tokenizer, "pre_tokenizer");
    for (size_t i = 0; i < n_steps(pre); i++)
        if (strcmp(text_of(step_at(pre, i), "type"), "Metaspace") == 0)
            return strcmp(text_of(step_at(pre, i), "prepend_scheme"), "never") != 0;
    for (size_t i = 0; i < json_array_size(list); i++)
        if (strcmp(text_of(json_array_get(list, i), "type"), "Prepend") == 0) return true;
    return strcmp(text_of(normalizer, "type"), "Prepend") == 0;
}

int tokens_json_read(ConvertVocab *v, const HubFolder *c, fr_error *err) {
    const json_t *model = json_object_get(c->tokenizer, "model");
    const char *type = text_of(model, "type");
    Printable p;
    if (*type && strcmp(type, "BPE") != 0)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s/tokenizer.json: the model %s is not supported; BPE is", c->folder,
                         printable(&p, type, strlen(type)));
    v->kind = tokens_json_is_byte_level(c->tokenizer) ? VOCAB_BPE : VOCAB_SPM;
    int status = v->kind == VOCAB_BPE ? find_pre(v, c, err) : FR_OK;
    if (!status) status = read_pieces(v, c, model, err);
    if (!status) status = read_added(v, c, err);
    if (!status) status = read_merges(v, c, model, err);
    v->adds_space_prefix = prepends_space(c->tokenizer);
    read_template(v, json_object_get(c->tokenizer, "post_processor"));
    return status;
}
