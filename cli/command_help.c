/* command_help.c - the texts of --help and --help-all, from the tables of options.
 *
 * --help is one screen: how the command is called, its first sentence, examples, and the options that most users need.
 * --help-all has all options by section, with ranges and defaults, and the lists and notes of the command. */
#include "cli/command.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool buf_puts(Buf *out, const char *text) { return buf_append(out, text, strlen(text)); }

bool buf_printf(Buf *out, const char *format, ...) {
    char text[8192];
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return n >= 0 && (size_t)n < sizeof text && buf_append(out, text, (size_t)n);
}

enum { COLUMN = 30 };

static bool put_spaces(Buf *out, int n) {
    bool fits = true;
    for (int i = 0; i < n && fits; i++) fits = buf_puts(out, " ");
    return fits;
}

static bool put_paragraph(Buf *out, const char *text) {
    return text_wrap(out, text, 0, 0, CLI_WIDTH) && buf_puts(out, "\n");
}

/* Writes "  -n, --tokens=N" or "      --color[=WHEN]"; returns the number of columns. */
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
    return fits && buf_puts(out, "\nHelp:\n  -h, --help                  print the most common options\n"
                                 "      --help-all              print this help\n");
}

bool command_put_summary(Buf *out, const char *name, const char *summary) {
    enum { NAME = 14, INDENT = NAME + 3 };
    return buf_printf(out, "  %-*s ", NAME, name) && text_wrap(out, summary, INDENT, INDENT, CLI_WIDTH) &&
           buf_puts(out, "\n");
}

bool command_put_methods(Buf *out, const Command *c) {
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

/* Appends the text up to the end of its first sentence. */
static bool put_first_sentence(Buf *out, const char *text) {
    char sentence[1024];
    size_t n = 0;
    while (text[n] && text[n] != '\n' && !(text[n] == '.' && strchr(" \n", text[n + 1]))) n++;
    snprintf(sentence, sizeof sentence, "%.*s", (int)(n + (text[n] == '.')), text);
    return put_paragraph(out, sentence);
}

/* Appends a row without its range and default, and its help up to the first semicolon. */
static bool put_basic_row(Buf *out, const Option *row) {
    char name[160], help[512];
    int n = write_name(row, name, sizeof name);
    snprintf(help, sizeof help, "%.*s", (int)strcspn(row->help, ";"), row->help);
    bool fits = buf_puts(out, name) &&
                (n < COLUMN - 1 ? put_spaces(out, COLUMN - n) : buf_puts(out, "\n") && put_spaces(out, COLUMN));
    return fits && text_wrap(out, help, COLUMN, COLUMN, CLI_WIDTH) && buf_puts(out, "\n");
}

bool command_short_help(const Command *c, Buf *out) {
    bool fits = put_usage(out, c) && put_first_sentence(out, c->about);
    if (c->examples) fits = fits && buf_puts(out, "\nExamples:\n") && buf_puts(out, c->examples);
    if (c->method) return fits && command_put_methods(out, c);
    fits = fits && buf_puts(out, "\nOptions:\n");
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);)
        if (at.row->is_argument || at.row->letter || at.row->required || at.row->is_basic)
            fits = put_basic_row(out, at.row);
    return fits && buf_printf(out, "      --help-all              print all options, with their ranges and defaults\n");
}

bool command_help(const Command *c, Buf *out) {
    bool fits = put_usage(out, c) && put_paragraph(out, c->about);
    fits = fits && (c->method ? command_put_methods(out, c) : put_options(out, c));
    if (c->list) fits = fits && buf_puts(out, "\n") && c->list(out);
    if (c->notes) fits = fits && buf_puts(out, "\n") && put_paragraph(out, c->notes);
    if (c->examples) fits = fits && buf_puts(out, "\nExamples:\n") && buf_puts(out, c->examples);
    return fits;
}
