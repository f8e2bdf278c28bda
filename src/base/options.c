/* options.c - parses text into the fields of a struct, as a table of options describes them (options.h), and formats
 * such a table as help.
 *
 * One function converts a value, option_store. Defaults go through it, too, so that an assertion finds a default which
 * its own row would refuse, and the default that --help shows is the one that is used.
 */
#include "base/options.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *field(void *out, size_t offset) { return (char *)out + offset; }

/* ---- one value ------------------------------------------------------------------------------------ */

static bool is_above(const char *value, int64_t max) {
    errno = 0;
    long long v = strtoll(value, NULL, 10);
    return v > max || (v > 0 && errno == ERANGE);
}

/* Describes what a value of this row must be, for an error about `value`: "an integer from 1 to 8", "f16, f32 or
 * q8". */
static void describe_values(const Option *row, const char *value, char *text, size_t size) {
    size_t n = 0;
    switch (row->kind) {
    case OPTION_BOOL:
    case OPTION_INT_FLAG: snprintf(text, size, "1 or 0"); return;
    case OPTION_I32:
    case OPTION_I64:
    case OPTION_U64:
        if (row->word) n = (size_t)snprintf(text, size, "%s or ", row->word);
        if (row->max >= INT32_MAX && !is_above(value, row->max))
            snprintf(text + n, size - n, "an integer of at least %lld", (long long)row->min);
        else snprintf(text + n, size - n, "an integer from %lld to %lld", (long long)row->min, (long long)row->max);
        return;
    case OPTION_F32:
    case OPTION_F64:
        if (isinf(row->min_real) && isinf(row->max_real)) snprintf(text, size, "a finite number");
        else if (isinf(row->max_real)) snprintf(text, size, "a number of at least %g", row->min_real);
        else snprintf(text, size, "a number from %g to %g", row->min_real, row->max_real);
        return;
    case OPTION_CHOICE_INDEX:
    case OPTION_CHOICE_BOOL:
    case OPTION_CHOICE_NAME:
        for (int i = 0; row->names[i] && n < size; i++)
            n += (size_t)snprintf(text + n, size - n, "%s%s",
                                  i == 0              ? ""
                                  : row->names[i + 1] ? ", "
                                                      : " or ",
                                  row->names[i]);
        return;
    case OPTION_BUFFER: snprintf(text, size, "shorter than %lld bytes", (long long)row->max); return;
    default: snprintf(text, size, "text"); return;
    }
}

static bool store_flag(const Option *row, const char *value, void *to) {
    bool on = strcmp(value, "1") == 0 || strcmp(value, "on") == 0;
    if (!on && strcmp(value, "0") != 0 && strcmp(value, "off") != 0) return false;
    if (row->kind == OPTION_BOOL) *(bool *)to = on;
    else *(int *)to = on;
    return true;
}

static bool store_int(const Option *row, const char *value, void *to) {
    char *end;
    errno = 0;
    long long v = strtoll(value, &end, 10);
    bool is_word = row->word && strcmp(value, row->word) == 0;
    if (is_word) v = row->word_value;
    else if (end == value || *end || errno || v < row->min || v > row->max) return false;
    if (row->kind == OPTION_I32) *(int32_t *)to = (int32_t)v;
    else if (row->kind == OPTION_I64) *(int64_t *)to = v;
    else *(uint64_t *)to = (uint64_t)v;
    return true;
}

static bool store_real(const Option *row, const char *value, void *to) {
    char *end;
    double v = strtod(value, &end);
    if (end == value || *end || !(v >= row->min_real && v <= row->max_real) || !isfinite(v))
        return false; /* a NaN compares false */
    if (row->kind == OPTION_F64) {
        *(double *)to = v;
        return true;
    }
    float narrow = strtof(value, NULL); /* rounded once, not twice */
    *(float *)to = narrow;
    return isfinite(narrow);
}

static bool store_choice(const Option *row, const char *value, void *to) {
    int i = 0;
    while (row->names[i] && strcmp(row->names[i], value) != 0) i++;
    if (!row->names[i]) return false;
    if (row->kind == OPTION_CHOICE_NAME) *(const char **)to = row->names[i];
    else if (row->kind == OPTION_CHOICE_BOOL) *(bool *)to = i > 0;
    else *(int *)to = row->values ? row->values[i] : i;
    return true;
}

static bool store_buffer(const Option *row, const char *value, char *to) {
    size_t n = strlen(value);
    if (n >= (size_t)row->max) return false;
    memcpy(to, value, n + 1);
    return true;
}

static int store_custom(const Option *row, const char *written, const char *value, void *out, fr_error *err) {
    fr_error why = {.code = FR_OK};
    int status = row->parse(out, value, &why);
    if (!status) return FR_OK;
    bool goes_on = strncmp(why.message, "must", 4) == 0;
    return error_set(err, (fr_code)status, "'%.120s'%s %s", written, goes_on ? "" : ":", why.message);
}

static int store_text(const Option *row, const char *written, const char *value, void *out, fr_error *err) {
    int *n = field(out, row->n_offset);
    if (*n >= row->max)
        return error_set(err, FR_ERR_ARGUMENT, "'%.120s': at most %lld of these can be given", written,
                         (long long)row->max);
    ((const char **)field(out, row->offset))[(*n)++] = value;
    return FR_OK;
}

int option_store(const Option *row, const char *written, const char *value, void *out, fr_error *err) {
    void *to = field(out, row->offset);
    bool fits = true;
    if (row->is_file && !*value && !row->default_value)
        return error_set(err, FR_ERR_ARGUMENT, "'%.120s' must name a file, but is empty", written);
    switch (row->kind) {
    case OPTION_BOOL:
    case OPTION_INT_FLAG: fits = store_flag(row, value, to); break;
    case OPTION_I32:
    case OPTION_I64:
    case OPTION_U64: fits = store_int(row, value, to); break;
    case OPTION_F32:
    case OPTION_F64: fits = store_real(row, value, to); break;
    case OPTION_CHOICE_INDEX:
    case OPTION_CHOICE_BOOL:
    case OPTION_CHOICE_NAME: fits = store_choice(row, value, to); break;
    case OPTION_BUFFER: fits = store_buffer(row, value, to); break;
    case OPTION_TEXT: *(const char **)to = value; break;
    case OPTION_TEXTS: return store_text(row, written, value, out, err);
    case OPTION_CUSTOM: return store_custom(row, written, value, out, err);
    }
    if (fits) return FR_OK;
    char wanted[256] = "";
    describe_values(row, value, wanted, sizeof wanted);
    return error_set(err, FR_ERR_ARGUMENT, "'%.120s' must be %s", written, wanted);
}

bool option_is_given(const Option *row, const void *out) {
    const char *base = out;
    if (row->kind == OPTION_TEXT || row->kind == OPTION_CHOICE_NAME)
        return *(const char *const *)(const void *)(base + row->offset) != NULL;
    if (row->kind == OPTION_BUFFER) return base[row->offset] != '\0';
    if (row->kind == OPTION_TEXTS) return *(const int *)(const void *)(base + row->n_offset) > 0;
    return true;
}

void options_defaults(const Option *rows, void *out) {
    for (const Option *row = rows; row->key; row++) {
        if (row->kind == OPTION_TEXTS) *(int *)field(out, row->n_offset) = 0;
        fr_error err;
        if (row->default_value) fr_assert(option_store(row, row->key, row->default_value, out, &err) == FR_OK);
    }
}

/* ---- "key=value,key=value" -------------------------------------------------------------------------- */

const Option *options_find(const Option *rows, const char *key) {
    for (const Option *row = rows; row->key; row++)
        if (strcmp(row->key, key) == 0) return row;
    return NULL;
}

static int refuse_key(const Option *rows, const char *owner, const char *key, fr_error *err) {
    if (!rows->key)
        return error_set(err, FR_ERR_ARGUMENT, "%s: unknown option '%.40s': %s has no options", owner, key, owner);
    NearestWord nearest = {.word = NULL};
    char names[256] = "", hint[80] = "";
    const char *are = rows[1].key ? "the options are" : "the only option is";
    size_t n = 0;
    for (const Option *row = rows; row->key; row++) {
        nearest_word_try(&nearest, key, row->key);
        if (n < sizeof names) n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", row->key);
    }
    if (nearest.word) snprintf(hint, sizeof hint, "; did you mean '%s'?", nearest.word);
    return error_set(err, FR_ERR_ARGUMENT, "%s: unknown option '%.40s'%s (%s %s)", owner, key, hint, are, names);
}

int options_set(const Option *rows, const char *owner, const char *key, const char *value, void *out, fr_error *err) {
    const Option *row = options_find(rows, key);
    if (!row) return refuse_key(rows, owner, key, err);
    char written[160];
    snprintf(written, sizeof written, "%s=%s", key, value);
    fr_error why;
    int status = option_store(row, written, value, out, &why);
    return status ? error_set(err, (fr_code)status, "%s: %s", owner, why.message) : FR_OK;
}

static bool was_set(const char *begin, const char *pair, const char *key) {
    for (const char *p = begin; p < pair; p += strlen(p) + 1 + strlen(p + strlen(p) + 1) + 1)
        if (strcmp(p, key) == 0) return true;
    return false;
}

/* Each pair "key=value," becomes two strings, one after the other. */
static int parse_pairs(const Option *rows, const char *owner, char *text, void *out, fr_error *err) {
    for (char *p = text;;) {
        size_t n = strcspn(p, ",");
        bool is_last = p[n] == '\0';
        p[n] = '\0';
        char *equals = strchr(p, '=');
        if (!equals || equals == p || !equals[1])
            return error_set(err, FR_ERR_ARGUMENT, "%s: '%.80s' must be written key=value", owner, p);
        *equals = '\0';
        if (was_set(text, p, p))
            return error_set(err, FR_ERR_ARGUMENT, "%s: '%.40s' is set twice; keep one of them", owner, p);
        int status = options_set(rows, owner, p, equals + 1, out, err);
        if (status || is_last) return status;
        p += n + 1;
    }
}

int options_parse(const Option *rows, const char *owner, char *text, void *out, fr_error *err) {
    options_defaults(rows, out);
    int status = text && *text ? parse_pairs(rows, owner, text, out, err) : FR_OK;
    if (status) return status;
    for (const Option *row = rows; row->key; row++)
        if (row->required && !option_is_given(row, out)) {
            char room[64];
            return error_set(err, FR_ERR_ARGUMENT, "%s: missing %s: write %s:%s=%s", owner, row->required, owner,
                             row->key, option_metavar(row, room));
        }
    return FR_OK;
}

/* ---- misspelt words ---------------------------------------------------------------------------------- */

enum { MAX_WORD = 40 };

/* Returns the number of insertions, deletions, changes and swaps of neighbours that turn a into b (optimal string
 * alignment). */
static int edit_distance(const char *a, const char *b) {
    int d[MAX_WORD + 1][MAX_WORD + 1];
    int n_a = (int)strlen(a), n_b = (int)strlen(b);
    for (int i = 0; i <= n_a; i++) d[i][0] = i;
    for (int j = 0; j <= n_b; j++) d[0][j] = j;
    for (int i = 1; i <= n_a; i++)
        for (int j = 1; j <= n_b; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[n_a][n_b];
}

void nearest_word_try(NearestWord *nearest, const char *misspelt, const char *candidate) {
    size_t n = strlen(misspelt), m = strlen(candidate);
    if (n == 0 || n > MAX_WORD || m > MAX_WORD) return;
    bool is_begin = n >= 3 && strncmp(misspelt, candidate, n) == 0;
    int distance = is_begin ? 1 : edit_distance(misspelt, candidate);
    if (distance > (n <= 3 ? 1 : 2) || (nearest->word && nearest->distance <= distance)) return;
    *nearest = (NearestWord){candidate, distance};
}

/* ---- help: descriptions with range and default, wrapped and aligned ------------------------------------------- */

static bool put(Buf *out, const char *text) { return buf_append(out, text, strlen(text)); }

static bool put_spaces(Buf *out, int n) {
    bool fits = true;
    for (int i = 0; i < n && fits; i++) fits = buf_append(out, " ", 1);
    return fits;
}

/* Counts characters, not bytes: UTF-8 continuation bytes take no column. */
static int columns(const char *text, size_t n) {
    int count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

bool text_wrap(Buf *out, const char *text, int column, int indent, int width) {
    bool fits = true, begins = true; /* a line begins: no space before the next word */
    while (*text && fits) {
        if (*text == '\n') {
            fits = put(out, "\n") && put_spaces(out, text[1] ? indent : 0);
            column = indent;
            begins = true;
            text++;
            continue;
        }
        if (*text == ' ') {
            text++;
            continue;
        }
        size_t n = strcspn(text, " \n");
        int wide = columns(text, n);
        if (!begins && column + 1 + wide > width) {
            fits = put(out, "\n") && put_spaces(out, indent);
            column = indent;
            begins = true;
        }
        if (!begins) fits = fits && put(out, " ");
        fits = fits && buf_append(out, text, n);
        column += wide + !begins;
        begins = false;
        text += n;
    }
    return fits;
}

const char *option_metavar(const Option *row, char room[64]) {
    if (row->metavar) return row->metavar;
    if (row->is_file) return "FILE";
    size_t n = 0;
    switch (row->kind) {
    case OPTION_BOOL:
    case OPTION_INT_FLAG: return "0|1";
    case OPTION_I32:
    case OPTION_I64:
    case OPTION_U64: return "N";
    case OPTION_F32:
    case OPTION_F64: return "X";
    case OPTION_CHOICE_INDEX:
    case OPTION_CHOICE_BOOL:
    case OPTION_CHOICE_NAME:
        for (int i = 0; row->names[i] && n < 64; i++)
            n += (size_t)snprintf(room + n, 64 - n, "%s%s", i ? "|" : "", row->names[i]);
        return room;
    default: return "TEXT";
    }
}

/* "1 to 8", "at least 1", or nothing where the range tells a reader nothing new. */
static void describe_range(const Option *row, char *text, size_t size) {
    text[0] = '\0';
    bool is_int = row->kind == OPTION_I32 || row->kind == OPTION_I64 || row->kind == OPTION_U64;
    bool is_real = row->kind == OPTION_F32 || row->kind == OPTION_F64;
    if (is_int) {
        const char *word = row->word ? row->word : "", *comma = row->word ? ", or " : "";
        if (row->max < 1 << 20)
            snprintf(text, size, "%s%s%lld to %lld", word, comma, (long long)row->min, (long long)row->max);
        else if (row->word) snprintf(text, size, "%s%sat least %lld", word, comma, (long long)row->min);
        else if (row->min > 1) snprintf(text, size, "at least %lld", (long long)row->min);
    }
    if (is_real && !isinf(row->min_real) && row->max_real <= 1000)
        snprintf(text, size, "%g to %g", row->min_real, row->max_real);
}

bool option_describe(Buf *out, const Option *row, bool with_default) {
    char range[96];
    describe_range(row, range, sizeof range);
    bool is_flag = row->kind == OPTION_BOOL || row->kind == OPTION_INT_FLAG;
    const char *preset = row->default_help ? row->default_help : with_default && !is_flag ? row->default_value : NULL;
    const char *repeated = row->kind == OPTION_TEXTS && !row->is_argument ? "may be repeated" : NULL;
    const char *required = row->required && !row->is_argument ? "required" : NULL;
    const char *const notes[][2] = {{"", range[0] ? range : NULL},
                                    {"default: ", preset},
                                    {"", required},
                                    {"", repeated}};
    bool fits = put(out, row->help), any = false;
    for (size_t i = 0; i < sizeof notes / sizeof *notes && fits; i++) {
        if (!notes[i][1]) continue;
        fits = put(out, any ? "; " : " (") && put(out, notes[i][0]) && put(out, notes[i][1]);
        any = true;
    }
    return fits && (!any || put(out, ")"));
}

static int key_columns(const Option *rows) {
    int widest = 0;
    for (const Option *row = rows; row->key; row++) {
        char room[64];
        const char *value = row->default_value ? row->default_value : option_metavar(row, room);
        int wide = (int)(strlen(row->key) + 1 + strlen(value));
        if (wide > widest && wide <= 24) widest = wide;
    }
    return widest;
}

bool options_help(Buf *out, const Option *rows, int indent, int width) {
    int wide = key_columns(rows);
    bool fits = true;
    for (const Option *row = rows; row->key && fits; row++) {
        char room[64], name[128];
        const char *value = row->default_value ? row->default_value : option_metavar(row, room);
        int n = snprintf(name, sizeof name, "%s=%s", row->key, value);
        int column = indent + wide + 2;
        Buf text = {.max_bytes = 4096};
        fits = option_describe(&text, row, false) && put_spaces(out, indent) && put(out, name);
        fits = fits && (n <= wide ? put_spaces(out, wide + 2 - n) : put(out, "\n") && put_spaces(out, column));
        fits = fits && text_wrap(out, text.data, column, column, width) && put(out, "\n");
        buf_free(&text);
    }
    return fits;
}
