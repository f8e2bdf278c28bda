/* retokenizer.c - reads the text of the target's tokens as tokens of a draft model with another vocabulary.
 *
 * The problem: a draft model predicts well only if it reads a text in the tokens of its own tokenizer. These depend on
 * what follows: "hel" may be one token until "lo" is appended. Encoding the whole text in every step would take time
 * that grows with it, and most tokens do not change. The idea: the text is cut into segments, which are encoded by
 * themselves. Only the last one is open and is encoded again when text is appended:
 *
 *   Once| upon| a| ti    + "me the"   ->   Once| upon| a| time| the
 *   \_ closed _/ \_ open                  \____ closed _____/ \_ open
 *
 * A segment ends before a space that follows another character. No pre-tokenizer joins the two sides of such a place,
 * and hardly any piece of SentencePiece has a space there, so the tokens are those of the whole text. A segment also
 * ends at a control token, which becomes the draft model's token of the same spelling or else its spelling, and after
 * max_open bytes, at the end of a character. There the tokens may differ from those of the whole text, which costs some
 * acceptance and nothing else.
 *
 * Invariant: the tokens, closed or not, depend only on the target's tokens so far, not on how they arrived. ends[i] is
 * therefore the same for all sequences that begin with the same i tokens, and keys and values of the closed tokens can
 * be shared between them. Proof: tests/draft/test_retokenizer.c. */
#include "draft/models/retokenizer.h"

#include "text/vocab.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int retokenizer_open(Retokenizer *r, const Gguf *draft, int32_t n_draft, const Gguf *target, int32_t n_target,
                     int32_t max_open, fr_error *err) {
    fr_assert(max_open <= RETOKENIZER_MAX_OPEN);
    r->n_target = n_target, r->n_draft = n_draft, r->max_open = max_open;
    r->to_draft = mem_calloc((size_t)n_target, sizeof *r->to_draft);
    if (!r->to_draft) return error_memory(err, "a map of tokens", (size_t)n_target * sizeof *r->to_draft);
    int status = vocab_shared(draft, target, r->to_draft, n_target, &r->n_shared, &r->same_ids, err);
    for (int32_t i = 0; i < n_target && !status; i++)
        if (r->to_draft[i] >= n_draft) r->to_draft[i] = -1, r->n_shared--;
    if (!status && r->n_shared == 0)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: its vocabulary shares no token with that of the target %s, so it cannot draft for it",
                         gguf_path(draft), gguf_path(target));
    if (status || r->same_ids) return status;
    status = tokenizer_open(&r->draft, draft, err);
    return status ? status : tokenizer_open(&r->target, target, err);
}

void retokenizer_close(Retokenizer *r) {
    tokenizer_close(r->draft);
    tokenizer_close(r->target);
    mem_free(r->to_draft);
    *r = (Retokenizer){0};
}

int32_t retokenizer_to_draft(const Retokenizer *r, int32_t token) {
    return token >= 0 && token < r->n_target ? r->to_draft[token] : -1;
}

void retokenizer_restrict(const Retokenizer *r, const float *draft_logits, float *logits) {
    for (int32_t i = 0; i < r->n_target; i++)
        logits[i] = r->to_draft[i] >= 0 ? draft_logits[r->to_draft[i]] : -INFINITY;
}

/* ---- one sequence ------------------------------------------------------------------------------------ */

int retokenized_text_open(RetokenizedText *t, int32_t n_max, int32_t capacity, fr_error *err) {
    t->capacity = capacity, t->n_ends_max = n_max;
    t->tokens = mem_calloc((size_t)capacity, sizeof *t->tokens);
    t->ends = mem_calloc((size_t)n_max + 1, sizeof *t->ends);
    retokenized_text_clear(t);
    if (t->tokens && t->ends) return FR_OK;
    return error_memory(err, "a draft model's context", ((size_t)capacity + (size_t)n_max) * sizeof *t->tokens);
}

void retokenized_text_close(RetokenizedText *t) {
    mem_free(t->tokens);
    mem_free(t->ends);
    *t = (RetokenizedText){0};
}

void retokenized_text_clear(RetokenizedText *t) {
    t->n = t->n_closed = t->n_target = t->n_open = t->n_same = 0;
    t->is_full = false;
    t->is_whole = t->at_start = true;
}

/* Sets token i, and notes whether it differs from the one that was there. */
static void set_token(RetokenizedText *t, int32_t i, int32_t token) {
    if (i < t->n_same && t->tokens[i] != token) t->n_same = i;
    t->tokens[i] = token;
}

static void close_token(RetokenizedText *t, int32_t token) {
    if (t->n_closed < t->capacity) set_token(t, t->n_closed++, token);
    else t->is_full = true;
}

/* Encodes the first n_bytes of the open segment after the closed tokens. *n is the number of their tokens, or -1 if
 * they do not fit. A space that only the target's tokenizer puts before the first word is no part of the text. */
static int encode_open(const Retokenizer *r, RetokenizedText *t, int32_t n_bytes, int32_t *n, fr_error *err) {
    const char *text = t->open;
    bool continued = !t->at_start;
    if (t->at_start && n_bytes > 0 && tokenizer_adds_space_prefix(r->target)) {
        continued = text[0] != ' ';
        if (!continued) text++, n_bytes--;
    }
    int32_t *tokens;
    int64_t n_tokens;
    int status = tokenizer_encode(r->draft, text, (size_t)n_bytes, continued ? TOKENIZE_CONTINUED : 0, &tokens,
                                  &n_tokens, err);
    if (status) return status;
    *n = n_tokens > t->capacity - t->n_closed ? -1 : (int32_t)n_tokens;
    for (int32_t i = 0; i < *n; i++) set_token(t, t->n_closed + i, tokens[i] < r->n_draft ? tokens[i] : 0);
    free(tokens);
    return FR_OK;
}

static int close_segment(const Retokenizer *r, RetokenizedText *t, int32_t n_bytes, fr_error *err) {
    if (n_bytes == 0) return FR_OK;
    int32_t n = 0;
    int status = encode_open(r, t, n_bytes, &n, err);
    if (n < 0) t->is_full = true;
    else t->n_closed += n;
    t->n_open -= n_bytes;
    t->at_start = false;
    memmove(t->open, t->open + n_bytes, (size_t)t->n_open);
    return status;
}

static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Returns where a full segment is cut: after the last whole character. */
static int32_t end_of_characters(const RetokenizedText *t) {
    int32_t at = t->n_open - 1;
    while (at > 0 && ((unsigned char)t->open[at] & 0xC0) == 0x80) at--;
    return at > 0 && (unsigned char)t->open[at] >= 0x80 ? at : t->n_open;
}

static int append_byte(const Retokenizer *r, RetokenizedText *t, char c, fr_error *err) {
    int status = FR_OK;
    if (c == ' ' && t->n_open > 0 && !is_space(t->open[t->n_open - 1])) status = close_segment(r, t, t->n_open, err);
    else if (t->n_open == r->max_open) status = close_segment(r, t, end_of_characters(t), err);
    t->open[t->n_open++] = c;
    return status;
}

/* FR_ERR_MISMATCH: the draft model has no such token. */
static int append_control(const Retokenizer *r, RetokenizedText *t, int32_t token, fr_error *err) {
    int32_t id = r->to_draft[token];
    bool is_first_bos = t->n_target == 0 && token == tokenizer_bos(r->target);
    if (is_first_bos) id = -1; /* append_one has written what the draft model wants there */
    else if (id < 0) return FR_ERR_MISMATCH;
    int status = close_segment(r, t, t->n_open, err);
    if (id >= 0) close_token(t, id);
    t->at_start = true;
    return status;
}

static int append_one(const Retokenizer *r, RetokenizedText *t, int32_t token, fr_error *err) {
    if (t->n_target == 0 && tokenizer_adds_bos(r->draft)) close_token(t, tokenizer_bos(r->draft));
    int status = FR_ERR_MISMATCH;
    if (token >= 0 && token < r->n_target && tokenizer_is_special(r->target, token))
        status = append_control(r, t, token, err);
    if (status != FR_ERR_MISMATCH) return status;
    size_t n;
    const char *bytes = tokenizer_piece(r->target, token, true, &n);
    status = FR_OK;
    for (size_t i = 0; i < n && !status; i++) status = append_byte(r, t, bytes[i], err);
    return status;
}

int retokenizer_append(const Retokenizer *r, RetokenizedText *t, const int32_t *tokens, int64_t n, fr_error *err) {
    fr_assert(n <= t->n_ends_max - t->n_target);
    t->n_same = t->n;
    int status = FR_OK;
    for (int64_t i = 0; i < n && !status; i++) {
        if (!t->is_full && r->same_ids) {
            int32_t id = retokenizer_to_draft(r, tokens[i]);
            if (id >= 0) close_token(t, id);
            else t->is_full = true;
        } else if (!t->is_full) status = append_one(r, t, tokens[i], err);
        t->ends[++t->n_target] = t->n_closed;
    }
    int32_t n_open = 0;
    if (!status && !t->is_full && !r->same_ids) status = encode_open(r, t, t->n_open, &n_open, err);
    t->is_whole = !t->is_full && n_open >= 0;
    t->n = t->n_closed + (n_open > 0 ? n_open : 0);
    if (t->n_same > t->n) t->n_same = t->n;
    return status;
}

int32_t retokenized_text_n_within(const RetokenizedText *t, int32_t n) {
    int32_t low = 0, high = t->n_target; /* ends[0] is 0 */
    while (low < high) {
        int32_t middle = high - (high - low) / 2;
        if (t->ends[middle] <= n) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* ---- the text of an ended request -------------------------------------------------------------------- */

void retokenized_text_copy(const RetokenizedText *from, RetokenizedText *to, int32_t n) {
    fr_assert(n <= from->n_target);
    retokenized_text_clear(to);
    if (n == 0) return; /* `from` may have no memory */
    to->n_target = n;
    to->n = to->n_closed = from->ends[n];
    memcpy(to->ends, from->ends, ((size_t)n + 1) * sizeof *to->ends);
    memcpy(to->tokens, from->tokens, (size_t)to->n * sizeof *to->tokens);
}

bool retokenized_text_save(const RetokenizedText *t, Buf *out) {
    return buf_append(out, &t->n_target, sizeof t->n_target) &&
           buf_append(out, t->ends, ((size_t)t->n_target + 1) * sizeof *t->ends) &&
           buf_append(out, t->tokens, (size_t)t->ends[t->n_target] * sizeof *t->tokens);
}

/* Reads int32_t numbers that rise from `least` on, or (is_rising false) lie in [least, most]. */
static bool read_numbers(ByteReader *in, int32_t n, int32_t least, int32_t most, bool is_rising, int32_t *out,
                         int32_t *last) {
    for (int32_t i = 0, v; i < n; i++) {
        if (!bytes_read(in, &v, sizeof v) || v < least || v > most) return false;
        if (is_rising) least = v;
        if (out) out[i] = v;
        *last = v;
    }
    return true;
}

int retokenized_text_load(const Retokenizer *r, RetokenizedText *t, int32_t n_max, int32_t capacity, ByteReader *in,
                          fr_error *err) {
    int32_t n = -1, n_tokens = 0, last;
    if (t) retokenized_text_clear(t);
    bool fits = bytes_read(in, &n, sizeof n) && n >= 0 && n <= n_max &&
                read_numbers(in, 1, 0, 0, false, t ? t->ends : NULL, &last) &&
                read_numbers(in, n, 0, capacity, true, t ? t->ends + 1 : NULL, &n_tokens) &&
                read_numbers(in, n_tokens, 0, r->n_draft - 1, false, t ? t->tokens : NULL, &last);
    if (!fits) return error_set(err, FR_ERR_FORMAT, "the text that the draft model has read is damaged");
    if (t) t->n_target = n, t->n = t->n_closed = n_tokens;
    return FR_OK;
}
