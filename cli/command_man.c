/* command_man.c - man pages in roff, from the tables of options: the section OPTIONS of man/forerun.1, and a page for
 * each command.
 *
 * `forerun --man` prints the section, man/update.sh puts it between the marks in man/forerun.1, and test_help_cli.c
 * fails if the two differ. The rest of that page is written by hand. A table that several commands share is printed
 * with the first of them; the others refer to it.
 *
 * `forerun --man-pages FOLDER`, which `make install` runs, writes forerun-run.1, forerun-train-lyanna.1, ... They are
 * whole: each has all options of its command, and what --help says, but for the lists of drafters and rules, which
 * forerun(1) describes.
 */
#include "cli/command.h"

#include <errno.h>
#include <stdio.h>
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
    bool fits = buf_puts(
        out, ".\\\" BEGIN OPTIONS (generated: man/update.sh)\n.SH OPTIONS\n"
             "If an option that takes one value is given more than once, the last value counts, so that a value in an "
             "alias or a script can be overruled. An option that makes a list, such as \\fB\\-\\-draft\\fR, may be "
             "given several times.\n");
    for (const Command *const *c = commands; *c && fits; c++) fits = put_command(out, *c, &printed);
    return fits && buf_puts(out, ".\\\" END OPTIONS\n");
}

/* ---- a page for each command ------------------------------------------------------------------------- */

/* "forerun-train-lyanna" for "train lyanna". */
static void page_name(const Command *c, char out[80]) {
    snprintf(out, 80, "forerun-%s", c->name);
    for (char *p = out; *p; p++)
        if (*p == ' ') *p = '-';
}

static bool put_synopsis(Buf *out, const Command *c) {
    bool fits = buf_puts(out, ".SH SYNOPSIS\n.B forerun ") && put_escaped(out, c->name) &&
                buf_puts(out, c->method ? "\n.I METHOD\n.RI [ OPTION ...]\n" : "\n.RI [ OPTION ...]\n");
    for (CommandRow at = {.row = NULL}; fits && c->sets && command_next_row(c, &at);) {
        const Option *row = at.row;
        if (!row->is_argument) continue;
        fits = buf_puts(out, row->required ? "\\fI" : "[\\fI") && put_escaped(out, row->key) && buf_puts(out, "\\fR") &&
               buf_puts(out, row->kind == OPTION_TEXTS ? "..." : "") && buf_puts(out, row->required ? "\n" : "]\n");
    }
    return fits;
}

/* The paragraphs of a text are separated by blank lines. */
static bool put_paragraphs(Buf *out, const char *text) {
    bool fits = true;
    while (*text && fits) {
        const char *end = strstr(text, "\n\n");
        size_t n = end ? (size_t)(end - text) : strlen(text);
        Buf one = {.max_bytes = 16 << 10};
        fits = buf_append(&one, text, n) && buf_append(&one, "", 1) && put_text(out, one.data) &&
               buf_puts(out, end ? ".PP\n" : "");
        buf_free(&one);
        text += end ? n + 2 : n;
    }
    return fits;
}

static bool put_all_rows(Buf *out, const Command *c) {
    bool fits = buf_puts(out, ".SH OPTIONS\n");
    for (CommandRow head = {.row = NULL}; fits && command_next_row(c, &head);) {
        if (!command_begins_section(c, &head)) continue;
        fits = buf_puts(out, ".SS ") && put_escaped(out, head.section) && buf_puts(out, "\n");
        for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);)
            if (strcmp(at.section, head.section) == 0) fits = put_row(out, at.row);
    }
    return fits;
}

static bool put_methods(Buf *out, const Command *c) {
    bool fits = buf_puts(out, ".SH METHODS\n");
    for (int i = 0; fits && c->method(i); i++) {
        char name[80];
        page_name(c->method(i), name);
        fits = buf_puts(out, ".TP\n\\fB") && put_escaped(out, name) && buf_puts(out, "\\fR(1)\n") &&
               put_text(out, c->method(i)->summary);
    }
    return fits;
}

bool command_man_page(const Command *c, Buf *out) {
    char name[80];
    page_name(c, name);
    bool fits = buf_puts(out, ".\\\" generated by 'forerun --man-pages'\n.TH \"") && put_escaped(out, name) &&
                buf_puts(out, "\" 1 \"\" \"forerun " FORERUN_VERSION "\" \"User Commands\"\n.ad l\n.SH NAME\n") &&
                put_escaped(out, name) && buf_puts(out, " \\- ") && put_escaped(out, c->summary) && buf_puts(out, "\n");
    fits = fits && put_synopsis(out, c) && buf_puts(out, ".SH DESCRIPTION\n") && put_paragraphs(out, c->about);
    fits = fits && (c->method ? put_methods(out, c) : put_all_rows(out, c));
    if (c->notes) fits = fits && buf_puts(out, ".SH NOTES\n") && put_paragraphs(out, c->notes);
    if (c->examples)
        fits = fits && buf_puts(out, ".SH EXAMPLES\n.nf\n") && put_escaped(out, c->examples) && buf_puts(out, ".fi\n");
    return fits && buf_puts(out, ".SH SEE ALSO\n.BR forerun (1)");
}

static int write_page(const Command *c, const char *folder, fr_error *err) {
    char name[80], path[4096];
    Buf text = {.max_bytes = 1 << 20};
    page_name(c, name);
    snprintf(path, sizeof path, "%s/%s.1", folder, name);
    FILE *f = fopen(path, "w");
    bool fits = command_man_page(c, &text) && buf_puts(&text, "\n"), written = f && fits;
    if (written) written = fwrite(text.data, 1, text.n, f) == text.n;
    if (f) written = fclose(f) == 0 && written;
    buf_free(&text);
    if (!fits) return error_memory(err, "a man page", text.max_bytes);
    return written ? FR_OK : (int)error_set(err, FR_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
}

int command_man_pages(const Command *const *commands, const char *folder, fr_error *err) {
    int status = FR_OK;
    for (const Command *const *c = commands; *c && !status; c++) {
        status = write_page(*c, folder, err);
        for (int i = 0; !status && (*c)->method && (*c)->method(i); i++)
            status = write_page((*c)->method(i), folder, err);
    }
    return status;
}
