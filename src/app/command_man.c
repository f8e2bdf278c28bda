/* command_man.c - the section OPTIONS of man/forerun.1, in roff, from the tables of options.
 *
 * `forerun --man` prints it, man/update.sh puts it between the marks in man/forerun.1, and test_help_cli.c fails if
 * the two differ. The rest of the page is written by hand. A table that several commands share is printed with the
 * first of them; the others refer to it.
 */
#include "app/command.h"

#include <string.h>

enum { MAX_SETS = 64, WIDTH = 110 };

typedef struct Printed {
    const Option *rows[MAX_SETS];
    const char *command[MAX_SETS];
    int n;
} Printed;

static const char *printed_with(const Printed *p, const Option *rows) {
    for (int i = 0; i < p->n; i++)
        if (p->rows[i] == rows) return p->command[i];
    return NULL;
}

/* Escapes what roff would read as a command or a hyphen. */
static bool put_escaped(Buf *out, const char *text) {
    bool fits = true, begins = true;
    for (; *text && fits; text++) {
        if (begins && (*text == '.' || *text == '\'')) fits = buf_puts(out, "\\&");
        if (*text == '-') fits = fits && buf_puts(out, "\\-");
        else if (*text == '\\') fits = fits && buf_puts(out, "\\e");
        else fits = fits && buf_append(out, text, 1);
        begins = *text == '\n';
    }
    return fits;
}

static bool put_text(Buf *out, const char *text) {
    Buf wrapped = {.max_bytes = 16 << 10};
    bool fits = text_wrap(&wrapped, text, 0, 0, WIDTH) && put_escaped(out, wrapped.data) && buf_puts(out, "\n");
    buf_free(&wrapped);
    return fits;
}

/* "-n, --tokens=N" with bold names and an italic value. */
static bool put_name(Buf *out, const Option *row) {
    char room[64];
    bool fits = buf_puts(out, ".TP\n");
    if (row->is_argument)
        return fits && buf_puts(out, "\\fI") && put_escaped(out, row->key) &&
               buf_puts(out, row->kind == OPTION_TEXTS ? "\\fR...\n" : "\\fR\n");
    if (row->letter) fits = fits && buf_printf(out, "\\fB\\-%c\\fR, ", row->letter);
    fits = fits && buf_puts(out, "\\fB\\-\\-") && put_escaped(out, row->key) && buf_puts(out, "\\fR");
    if (!command_row_is_flag(row)) {
        fits = fits && buf_puts(out, row->implied ? "[=\\fI" : "=\\fI") && put_escaped(out, option_metavar(row, room));
        fits = fits && buf_puts(out, row->implied ? "\\fR]" : "\\fR");
    }
    return fits && buf_puts(out, "\n");
}

static bool put_row(Buf *out, const Option *row) {
    Buf text = {.max_bytes = 8192};
    bool fits = put_name(out, row) && option_describe(&text, row, true) && put_text(out, text.data);
    buf_free(&text);
    return fits;
}

/* "The options --model, --tokens, ... are those of forerun run." */
static bool put_reference(Buf *out, const Option *rows, const char *command) {
    Buf text = {.max_bytes = 8192};
    bool fits = buf_puts(&text, "As for forerun ") && buf_puts(&text, command) && buf_puts(&text, ":");
    for (const Option *row = rows; row->key && fits; row++) {
        if (row->letter && !row->is_argument) fits = buf_printf(&text, " -%c,", row->letter);
        fits = fits && buf_printf(&text, " --%s%s", row->key, row[1].key ? "," : ".");
    }
    fits = fits && buf_puts(out, ".PP\n") && put_text(out, text.data);
    buf_free(&text);
    return fits;
}

static bool put_section(Buf *out, const char *title) {
    return buf_puts(out, ".PP\n\\fI") && put_escaped(out, title) && buf_puts(out, "\\fR\n");
}

static bool put_sets(Buf *out, const Command *c, Printed *printed) {
    const char *section = NULL;
    bool fits = true;
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);) {
        const Option *rows = c->sets[at.i_set].rows;
        const char *earlier = printed_with(printed, rows);
        if (earlier && strcmp(earlier, c->name) != 0) continue;
        if (!earlier && printed->n < MAX_SETS) {
            printed->rows[printed->n] = rows;
            printed->command[printed->n++] = c->name;
        }
        if (!section || strcmp(section, at.section) != 0) fits = put_section(out, section = at.section);
        fits = fits && put_row(out, at.row);
    }
    for (const OptionSet *set = c->sets; set->rows && fits; set++) {
        const char *earlier = printed_with(printed, set->rows);
        if (earlier && strcmp(earlier, c->name) != 0) fits = put_reference(out, set->rows, earlier);
    }
    return fits;
}

static bool put_command(Buf *out, const Command *c, Printed *printed) {
    if (!c->method)
        return buf_puts(out, ".SS forerun ") && put_escaped(out, c->name) && buf_puts(out, "\n") &&
               put_sets(out, c, printed);
    bool fits = true;
    for (int i = 0; fits && c->method(i); i++) fits = put_command(out, c->method(i), printed);
    return fits;
}

bool command_man(const Command *const *commands, Buf *out) {
    Printed printed = {.n = 0};
    bool fits = buf_puts(out, ".\\\" BEGIN OPTIONS (generated: man/update.sh)\n.SH OPTIONS\n");
    for (const Command *const *c = commands; *c && fits; c++) fits = put_command(out, *c, &printed);
    return fits && buf_puts(out, ".\\\" END OPTIONS\n");
}
