/* pretokenizer.c - byte-level BPE never merges across words; a few patterns define the words.
 *
 * The first pattern cuts the text into its matches and what lies between them; each further pattern cuts the
 * pieces of the one before in the same way (a piece is all that a pattern sees, so look-ahead stops at its
 * edge).
 *
 * Patterns match Unicode; texts may be any bytes. They are matched against a copy in which each byte that is not UTF-8
 * is replaced by U+001A SUBSTITUTE, which is also one byte, so that positions stay the same and the cut applies to the
 * original text. U+180E, which is white space in PCRE2 but not in Unicode since 6.3, is replaced by U+200B, which has
 * the same length and category.
 *
 * Each pattern is tried once at each position, and no alternative backtracks more than it has matched, so the cost is
 * linear in the text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text/pretokenizer.h"

#include "base/error.h"
#include "text/pre_patterns.h"
#include "text/utf8.h"

#include <stdlib.h>
#include <string.h>

struct Pretokenizer {
    const PreFamily *family;
    pcre2_code *codes[PRE_MAX_PATTERNS];
    int n_codes;
    pcre2_match_context *limits;
};

/* Is `name` one of the words of `names`? */
static bool has_name(const char *names, const char *name, size_t n) {
    for (const char *at = names; *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (length == n && memcmp(at, name, n) == 0) return true;
        at += length;
    }
    return false;
}

static const PreFamily *find_family(const char *name, size_t n) {
    for (size_t i = 0; i < pre_n_families; i++)
        if (has_name(pre_families[i].names, name, n)) return &pre_families[i];
    return NULL;
}

static int refuse_name(const char *name, size_t n, const char *path, fr_error *err) {
    Printable p;
    Buf known = {.max_bytes = sizeof err->message / 2};
    for (size_t i = 0; i < pre_n_families; i++) {
        const char *first = pre_families[i].names;
        buf_append(&known, i ? ", " : "", i ? 2 : 0);
        buf_append(&known, first, strcspn(first, " "));
    }
    error_set(err, FR_ERR_UNSUPPORTED,
              "%s: the pre-tokenizer '%s' is not supported; supported are %s and variants of them", path,
              printable(&p, name, n), known.data ? known.data : "others");
    buf_free(&known);
    return FR_ERR_UNSUPPORTED;
}

static int compile(Pretokenizer *p, fr_error *err) {
    for (int i = 0; i < PRE_MAX_PATTERNS && p->family->patterns[i]; i++) {
        int code;
        PCRE2_SIZE where;
        p->codes[i] = pcre2_compile((PCRE2_SPTR)p->family->patterns[i], PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP,
                                    &code, &where, NULL);
        if (!p->codes[i])
            return error_set(err, FR_ERR_INTERNAL, "pattern %d of pre-tokenizer %s does not compile (PCRE2 error %d)",
                             i, p->family->names, code);
        p->n_codes = i + 1;
        pcre2_jit_compile(p->codes[i], PCRE2_JIT_COMPLETE); /* where there is no JIT, the pattern is interpreted */
    }
    return FR_OK;
}

int pretokenizer_open(Pretokenizer **out, const char *name, size_t n, const char *path, fr_error *err) {
    *out = NULL;
    const PreFamily *family = find_family(name, n);
    if (!family) return refuse_name(name, n, path, err);
    Pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return error_memory(err, "a pre-tokenizer", sizeof *p);
    p->family = family;
    p->limits = pcre2_match_context_create(NULL);
    int status = p->limits ? compile(p, err) : error_memory(err, "a pre-tokenizer", sizeof *p);
    if (status) {
        pretokenizer_close(p);
        return status;
    }
    /* The patterns are fixed and linear: the limits of PCRE2, which protect from untrusted patterns, would only
     * stop long texts. */
    pcre2_set_match_limit(p->limits, UINT32_MAX);
    *out = p;
    return FR_OK;
}

void pretokenizer_close(Pretokenizer *p) {
    if (!p) return;
    for (int i = 0; i < p->n_codes; i++) pcre2_code_free(p->codes[i]);
    pcre2_match_context_free(p->limits);
    free(p);
}

unsigned pretokenizer_flags(const Pretokenizer *p) { return p->family->flags; }

unsigned pretokenizer_flags_of(const char *name, size_t n) {
    const PreFamily *family = find_family(name, n);
    return family ? family->flags : 0;
}

static bool add_end(Encoding *e, int list, size_t end) {
    if (e->n_ends[list] == e->ends_capacity[list]) {
        size_t wanted = e->ends_capacity[list] ? 2 * e->ends_capacity[list] : 64;
        size_t *bigger = realloc(e->ends[list], wanted * sizeof *bigger);
        if (!bigger) return false;
        e->ends[list] = bigger;
        e->ends_capacity[list] = wanted;
    }
    e->ends[list][e->n_ends[list]++] = end;
    return true;
}

/* Sets e->text to the copy that is matched, with every byte at the same position. */
static bool make_matchable(const char *text, size_t n, Encoding *e) {
    buf_clear(&e->text);
    e->text.max_bytes = SIZE_MAX;
    if (!buf_append(&e->text, text, n)) return false;
    for (size_t at = 0, need; at < n; at += need) {
        size_t got = utf8_scan(text + at, n - at, &need);
        if (need == 0 || got != need) {
            e->text.data[at] = 0x1A;
            need = 1;
        } else if (need == 3 && memcmp(text + at, "\xE1\xA0\x8E", 3) == 0) memcpy(e->text.data + at, "\xE2\x80\x8B", 3);
    }
    return true;
}

/* One match in piece[0..n) from `from` on: its start and end. 1: found, 0: none, negative: PCRE2's error. */
static int match(const Pretokenizer *p, int i, const char *piece, size_t n, size_t from, pcre2_match_data *data,
                 size_t *start, size_t *end) {
    int status = pcre2_match(p->codes[i], (PCRE2_SPTR)piece, n, from, PCRE2_NO_UTF_CHECK, data, p->limits);
    if (status == PCRE2_ERROR_JIT_STACKLIMIT)
        status = pcre2_match(p->codes[i], (PCRE2_SPTR)piece, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                             p->limits);
    if (status == PCRE2_ERROR_NOMATCH) return 0;
    if (status < 0) return status;
    *start = pcre2_get_ovector_pointer(data)[0];
    *end = pcre2_get_ovector_pointer(data)[1];
    return *end > *start; /* no pattern of ours matches the empty string */
}

/* Cuts the piece text[begin..end) by pattern i into `list`. */
static int cut(const Pretokenizer *p, int i, size_t begin, size_t end, pcre2_match_data *data, Encoding *e, int list) {
    const char *piece = e->text.data + begin;
    size_t n = end - begin, at = 0, from, to;
    int status;
    while (at < n && (status = match(p, i, piece, n, at, data, &from, &to)) != 0) {
        if (status < 0) return status;
        if (from > at && !add_end(e, list, begin + from)) return PCRE2_ERROR_NOMEMORY;
        if (!add_end(e, list, begin + to)) return PCRE2_ERROR_NOMEMORY;
        at = to;
    }
    return at < n && !add_end(e, list, end) ? PCRE2_ERROR_NOMEMORY : 0;
}

int pretokenizer_split(const Pretokenizer *p, const char *text, size_t n, Encoding *e, const size_t **ends,
                       size_t *n_ends, fr_error *err) {
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    e->n_ends[0] = e->n_ends[1] = 0;
    int list = 0, status = data && make_matchable(text, n, e) && add_end(e, 0, n) ? 0 : PCRE2_ERROR_NOMEMORY;
    for (int i = 0; i < p->n_codes && status == 0; i++, list = 1 - list) {
        e->n_ends[1 - list] = 0;
        for (size_t k = 0, begin = 0; k < e->n_ends[list] && status == 0; begin = e->ends[list][k++])
            status = cut(p, i, begin, e->ends[list][k], data, e, 1 - list);
    }
    pcre2_match_data_free(data);
    *ends = e->ends[list];
    *n_ends = e->n_ends[list];
    if (status == PCRE2_ERROR_NOMEMORY) return error_memory(err, "the words of a text", n);
    if (status) return error_set(err, FR_ERR_INTERNAL, "PCRE2 failed with error %d on a text of %zu bytes", status, n);
    return FR_OK;
}
