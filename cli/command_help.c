/* command_help.c - `forerun NAME --help`: usage, what it does, options by section, lists, notes and examples. */
#include "cli/command.h"

#include <string.h>

enum { COLUMN = 30 };

static bool put_spaces(Buf *out, int n) {
    bool fits = true;
    for (int i = 0; i < n && fits; i++) fits = buf_puts(out, " ");
    return fits;
}

static bool put_paragraph(Buf *out, const char *text) {
    return text_wrap(out, text, 0, 0, CLI_WIDTH) && buf_puts(out, "\n");
}

/* "  -n, --tokens=N", "      --color[=WHEN]"; returns its columns. */
static int write_name(const Option *row, char *name, size_t size) {
    char room[64];
    const char *value = option_metavar(row, room);
    int n;
    if (row->is_argument) n = snprintf(name, size, "  %s%s", row->key, row->kind == OPTION_TEXTS ? "..." : "");
    else {
        n = row->letter ? snprintf(name, size, "  -%c, --%s", row->letter, row->key)
                        : snprintf(name, size, "      --%s", row->key);
        if (row->implied) n += snprintf(name + n, size - (size_t)n, "[=%s]", value);
        else if (!command_row_is_flag(row)) n += snprintf(name + n, size - (size_t)n, "=%s", value);
    }
    return n;
}

static bool put_row(Buf *out, const Option *row) {
    char name[160];
    int n = write_name(row, name, sizeof name);
    Buf text = {.max_bytes = 8192};
    bool fits = option_describe(&text, row, true) && buf_puts(out, name);
    fits = fits && (n < COLUMN - 1 ? put_spaces(out, COLUMN - n) : buf_puts(out, "\n") && put_spaces(out, COLUMN));
    fits = fits && text_wrap(out, text.data, COLUMN, COLUMN, CLI_WIDTH) && buf_puts(out, "\n");
    buf_free(&text);
    return fits;
}

static bool put_options(Buf *out, const Command *c) {
    bool fits = true;
    for (CommandRow head = {.row = NULL}; fits && command_next_row(c, &head);) {
        if (!command_begins_section(c, &head)) continue;
        fits = buf_printf(out, "\n%s:\n", head.section);
        for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);)
            if (strcmp(at.section, head.section) == 0) fits = put_row(out, at.row);
    }
    return fits && buf_puts(out, "\nHelp:\n  -h, --help                  print this help\n");
}

bool command_put_summary(Buf *out, const char *name, const char *summary) {
    enum { NAME = 14, INDENT = NAME + 3 };
    return buf_printf(out, "  %-*s ", NAME, name) && text_wrap(out, summary, INDENT, INDENT, CLI_WIDTH) &&
           buf_puts(out, "\n");
}

static bool put_methods(Buf *out, const Command *c) {
    bool fits = buf_puts(out, "\nMethods:\n");
    size_t n_own = strlen(c->name) + 1;
    for (int i = 0; fits && c->method(i); i++)
        fits = command_put_summary(out, c->method(i)->name + n_own, c->method(i)->summary);
    return fits && buf_printf(out, "\n'forerun %s METHOD --help' lists the options of a method.\n", c->name);
}

static bool put_usage(Buf *out, const Command *c) {
    bool fits = buf_printf(out, "Usage: forerun %s%s [OPTION...]", c->name, c->method ? " METHOD" : "");
    for (CommandRow at = {.row = NULL}; fits && c->sets && command_next_row(c, &at);) {
        const Option *row = at.row;
        if (row->is_argument)
            fits = buf_printf(out, row->required ? " %s%s" : " [%s%s]", row->key,
                              row->kind == OPTION_TEXTS ? "..." : "");
    }
    return fits && buf_puts(out, "\n");
}

bool command_help(const Command *c, Buf *out) {
    bool fits = put_usage(out, c) && put_paragraph(out, c->about);
    fits = fits && (c->method ? put_methods(out, c) : put_options(out, c));
    if (c->list) fits = fits && buf_puts(out, "\n") && c->list(out);
    if (c->notes) fits = fits && buf_puts(out, "\n") && put_paragraph(out, c->notes);
    if (c->examples) fits = fits && buf_puts(out, "\nExamples:\n") && buf_puts(out, c->examples);
    return fits;
}
