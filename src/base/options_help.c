/* options_help.c - a table of options as text for people: descriptions with range and default, wrapped and aligned. */
#include "base/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static bool put(Buf *out, const char *text) { return buf_append(out, text, strlen(text)); }

static bool put_spaces(Buf *out, int n) {
    bool fits = true;
    for (int i = 0; i < n && fits; i++) fits = buf_append(out, " ", 1);
    return fits;
}

/* Characters, not bytes: UTF-8 continuation bytes take no column. */
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
