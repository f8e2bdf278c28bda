/* mutators.c - mutators that do not use the format of a file, and those of JSON, safetensors headers, zstd and cost
 * files. */
#include "mutators.h"

#include "base/error.h"
#include "base/hash.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

void splice(Buf *file, size_t at, size_t n, const void *bytes, size_t n_new) {
    Buf made = {.max_bytes = 1 << 28};
    fr_assert(at <= file->n && n <= file->n - at);
    fr_assert(buf_append(&made, file->data, at) && buf_append(&made, n_new ? bytes : "", n_new));
    fr_assert(buf_append(&made, file->data + at + n, file->n - at - n));
    buf_free(file);
    *file = made;
}

uint64_t nasty_integer(Torture *t, uint64_t is) {
    static const uint64_t values[] = {0,
                                      1,
                                      2,
                                      3,
                                      127,
                                      128,
                                      255,
                                      256,
                                      32767,
                                      65535,
                                      65536,
                                      1u << 20,
                                      INT32_MAX,
                                      (uint64_t)INT32_MAX + 1,
                                      UINT32_MAX,
                                      (uint64_t)UINT32_MAX + 1,
                                      1ull << 40,
                                      INT64_MAX,
                                      1ull << 63,
                                      UINT64_MAX,
                                      UINT64_MAX - 31,
                                      1ull << 61,
                                      1ull << 62};
    enum { N = sizeof values / sizeof *values };
    switch (torture_below(t, 6)) {
    case 0: return is + 1;
    case 1: return is - 1;
    case 2: return is * 2;
    case 3: return torture_random(t) >> torture_below(t, 64);
    default: return values[torture_below(t, N)];
    }
}

const char *nasty_text(Torture *t, size_t *n) {
    static const char *const texts[] = {"",
                                        "\033[31m\033]0;title\a",
                                        "a\r\nb\b\b\177",
                                        "\xff\xfe\xc0\x80\xed\xa0\x80",
                                        "%s%s%n%1000000d",
                                        "{{ {% for m in messages %} <|im_start|> [INST] <start_of_turn>",
                                        "../../../../etc/passwd",
                                        "\xc2\x9b"
                                        "31m",
                                        "\xe2\x80\xae"
                                        "txt.exe",
                                        "(a+)+$(((((((((((((((",
                                        "llama\nforerun: everything is fine",
                                        "<0x00>",
                                        " \xe2\x96\x81 \xef\xbb\xbf"};
    static char longest[70000];
    size_t i = torture_below(t, sizeof texts / sizeof *texts + 2);
    if (i < sizeof texts / sizeof *texts) {
        *n = strlen(texts[i]);
        return texts[i];
    }
    *n = torture_below(t, 2) ? 300 : sizeof longest;
    memset(longest, (int)(32 + torture_below(t, 200)), sizeof longest);
    if (torture_below(t, 4) == 0) memset(longest, '\0', *n / 2);
    return longest;
}

/* ---- without structure ------------------------------------------------------------------------------------ */

static void flip_bits(Torture *t, Buf *f) {
    for (uint64_t n = 1 + torture_below(t, 8); n > 0; n--)
        f->data[torture_below(t, f->n)] ^= (char)(1u << torture_below(t, 8));
}

static void set_range(Torture *t, Buf *f, size_t at, size_t n) {
    static const char values[] = {0, -1, 127, ' ', '"', '\n'};
    memset(f->data + at, values[torture_below(t, sizeof values)], n);
}

void mutate_blind(Torture *t, Buf *f) {
    char rubbish[256];
    if (f->n == 0) return;
    size_t at = torture_below(t, f->n), most = f->n - at, n = 1 + torture_below(t, most < 64 ? most : 64);
    for (size_t i = 0; i < sizeof rubbish; i++) rubbish[i] = (char)torture_random(t);
    /* The most important bytes of a format are at its beginning. */
    if (torture_below(t, 2)) at = torture_below(t, f->n < 512 ? f->n : 512), n = n > f->n - at ? f->n - at : n;
    switch (torture_below(t, 9)) {
    case 0: splice(f, at, f->n - at, "", 0); break;
    case 1: splice(f, f->n, 0, rubbish, 1 + torture_below(t, sizeof rubbish)); break;
    case 2: splice(f, at, n, "", 0); break;
    case 3: splice(f, at, 0, f->data + at, n); break;
    case 4: splice(f, at, n, rubbish, n); break;
    case 5: set_range(t, f, at, n); break;
    case 6: splice(f, torture_below(t, f->n), 0, f->data + at, n); break;
    default: flip_bits(t, f); break;
    }
}

/* ---- JSON ---------------------------------------------------------------------------------------------------- */

/* Returns the place of the i-th byte that is `what` ('0': any digit), counted around the end; f->n: there is none. */
static size_t find_some(Torture *t, const Buf *f, char what) {
    size_t n = 0, found = f->n;
    for (size_t i = 0; i < f->n; i++) {
        bool fits = what == '0' ? isdigit((unsigned char)f->data[i]) != 0 : f->data[i] == what;
        if (fits && torture_below(t, ++n) == 0) found = i;
    }
    return found;
}

static void change_number(Torture *t, Buf *f) {
    static const char *const numbers[] = {"-1",
                                          "0",
                                          "1e999",
                                          "-1e308",
                                          "99999999999999999999",
                                          "9223372036854775807",
                                          "-9223372036854775808",
                                          "0.5",
                                          "NaN",
                                          "Infinity",
                                          "1e-400",
                                          "00",
                                          "true",
                                          "null",
                                          "\"7\"",
                                          "[]",
                                          "18446744073709551616",
                                          "4294967296",
                                          "2147483648"};
    size_t at = find_some(t, f, '0'), n = 0;
    while (at + n < f->n && isdigit((unsigned char)f->data[at + n])) n++;
    const char *number = numbers[torture_below(t, sizeof numbers / sizeof *numbers)];
    splice(f, at, n, number, strlen(number));
}

/* Inserts text after a quotation mark, which is at the beginning or the end of a string. */
static void change_string(Torture *t, Buf *f) {
    static const char *const escapes[] = {"\\u0000", "\\ud800",   "\\udfff\\ud800", "\\u001b[31m",
                                          "\\x41",   "\\",        "\\u12",          "\\\"",
                                          "\"",      "\\n\\r\\t", "\\uffff",        "\\u202e"};
    size_t at = find_some(t, f, '"'), n;
    if (at == f->n) return;
    const char *text = nasty_text(t, &n);
    if (torture_below(t, 2)) text = escapes[torture_below(t, sizeof escapes / sizeof *escapes)], n = strlen(text);
    splice(f, at + 1, 0, text, n);
}

static void nest(Torture *t, Buf *f) {
    static const char *const openings[] = {"[", "{\"a\":", "[[],", "{\"text\":["};
    const char *opening = openings[torture_below(t, 4)];
    Buf deep = {.max_bytes = 1 << 24};
    uint64_t depth = 1u << torture_below(t, 17);
    for (uint64_t i = 0; i < depth; i++) fr_assert(buf_append(&deep, opening, strlen(opening)));
    size_t at = find_some(t, f, ':');
    splice(f, at == f->n ? 0 : at + 1, 0, deep.data, deep.n);
    buf_free(&deep);
}

/* Repeats the text between two commas or braces. */
static void repeat_part(Torture *t, Buf *f) {
    static const char marks[] = {',', '{', '\n', '['};
    size_t at = find_some(t, f, marks[torture_below(t, 4)]), n = 1;
    if (at == f->n) return;
    while (at + n < f->n && !strchr(",}]\n", f->data[at + n])) n++;
    Buf many = {.max_bytes = 1 << 26};
    for (uint64_t i = 1u << torture_below(t, 12); i > 0 && many.n < 1 << 22; i--)
        fr_assert(buf_append(&many, f->data + at, n));
    splice(f, at, 0, many.data, many.n);
    buf_free(&many);
}

static void change_line_ends(Torture *t, Buf *f) {
    static const char *const ends[] = {"\r\n",           "\n\n\n", "",          "\n \t\n",
                                       "\n\xef\xbb\xbf", "\n[]\n", "\n\"a\"\n", "\n{}\n"};
    const char *end = ends[torture_below(t, sizeof ends / sizeof *ends)];
    size_t at = find_some(t, f, '\n');
    if (at < f->n) splice(f, at, 1, end, strlen(end));
}

static void rename_key(Torture *t, Buf *f) {
    static const char *const keys[] = {"text",         "prompt",       "response", "messages", "role",
                                       "content",      "turns",        "finish",   "shape",    "dtype",
                                       "data_offsets", "__metadata__", "category", "lossy"};
    const char *key = keys[torture_below(t, sizeof keys / sizeof *keys)];
    size_t at = find_some(t, f, '"'), n = 1;
    while (at + n < f->n && f->data[at + n] != '"') n++;
    if (at + n < f->n) splice(f, at + 1, n - 1, key, strlen(key));
}

void mutate_json(Torture *t, Buf *f) {
    if (f->n == 0) return;
    switch (torture_below(t, 8)) {
    case 0: mutate_blind(t, f); break;
    case 1: nest(t, f); break;
    case 2: repeat_part(t, f); break;
    case 3: change_line_ends(t, f); break;
    case 4: rename_key(t, f); break;
    case 5: change_string(t, f); break;
    default: find_some(t, f, '0') < f->n ? change_number(t, f) : change_string(t, f); break;
    }
}

void mutate_safetensors(Torture *t, Buf *f) {
    uint64_t length;
    if (f->n < sizeof length || torture_below(t, 4) == 0) {
        mutate_blind(t, f);
        return;
    }
    memcpy(&length, f->data, sizeof length);
    if (length > f->n - sizeof length) return;
    Buf header = {.max_bytes = 1 << 26};
    fr_assert(buf_append(&header, f->data + sizeof length, length));
    size_t n_old = header.n;
    mutate_json(t, &header);
    splice(f, sizeof length, n_old, header.data, header.n);
    length = torture_below(t, 8) == 0 ? nasty_integer(t, header.n) : header.n;
    memcpy(f->data, &length, sizeof length);
    if (torture_below(t, 6) == 0) { /* numbers of the tensors */
        static const uint32_t floats[] = {0x7f800000, 0xff800000, 0x7fc00000, 0x7f7fffff, 0x00000001};
        size_t at = sizeof length + header.n + 4 * torture_below(t, 1 + (f->n - sizeof length - header.n) / 4);
        if (at + 4 <= f->n) memcpy(f->data + at, &floats[torture_below(t, 5)], 4);
    }
    buf_free(&header);
}

/* ---- zstd and cost files ---------------------------------------------------------------------------------------- */

static void pack(Buf *f, const void *bytes, size_t n) {
    size_t room = ZSTD_compressBound(n);
    char *packed = malloc(room);
    size_t got = packed ? ZSTD_compress(packed, room, bytes, n, 1) : 0;
    fr_assert(got > 0 && !ZSTD_isError(got));
    splice(f, 0, f->n, packed, got);
    free(packed);
}

/* 256 MiB of one pattern: one line without end, or very many lines. */
static void make_bomb(Torture *t, Buf *f) {
    static const char *const patterns[] = {"a", "\n", "{\"text\":\"a\"}\n", "{\"text\":\"", "[", "{\"a\":[\"\\u0000\",",
                                           " "};
    const char *pattern = patterns[torture_below(t, sizeof patterns / sizeof *patterns)];
    size_t n = (size_t)1 << (20 + torture_below(t, 9)), n_pattern = strlen(pattern);
    char *bytes = malloc(n);
    fr_assert(bytes);
    for (size_t i = 0; i < n; i++) bytes[i] = pattern[i % n_pattern];
    pack(f, bytes, n);
    free(bytes);
}

void mutate_zstd(Torture *t, Buf *f) {
    uint64_t kind = torture_below(t, 12);
    if (kind == 0 && !t->is_smoke) make_bomb(t, f);
    else if (kind < 5) mutate_blind(t, f);
    else {
        size_t room = 1 << 20;
        char *plain = malloc(room);
        fr_assert(plain);
        size_t n = ZSTD_decompress(plain, room, f->data, f->n);
        Buf text = {.max_bytes = 1 << 28};
        if (!ZSTD_isError(n)) fr_assert(buf_append(&text, plain, n));
        if (text.n) mutate_json(t, &text);
        pack(f, text.data ? text.data : "", text.n);
        buf_free(&text);
        free(plain);
    }
}

/* The last line is the hash of all lines before it. */
static void correct_cost_hash(Buf *f) {
    size_t n = f->n;
    char hash[32];
    if (n > 0) n--;
    while (n > 0 && f->data[n - 1] != '\n') n--;
    snprintf(hash, sizeof hash, "%016" PRIx64 "\n", hash64(f->data, n, 0));
    splice(f, n, f->n - n, hash, strlen(hash));
}

void mutate_cost(Torture *t, Buf *f) {
    static const char *const numbers[] = {"1e308",      "-1",   "0", "nan", "inf", "1e-320", "99999999999999999999",
                                          "2147483647", "1e30", "5", "9"};
    size_t at = find_some(t, f, '0'), n = 0;
    if (at == f->n || torture_below(t, 4) == 0) mutate_blind(t, f);
    else {
        const char *number = numbers[torture_below(t, sizeof numbers / sizeof *numbers)];
        while (at > 0 && !isspace((unsigned char)f->data[at - 1])) at--;
        while (at + n < f->n && !isspace((unsigned char)f->data[at + n])) n++;
        splice(f, at, n, number, strlen(number));
    }
    if (torture_below(t, 4)) correct_cost_hash(f);
}
