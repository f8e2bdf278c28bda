/* command_docs.c - man pages in roff and shell completions, from the tables of options.
 *
 * `forerun --man` prints the section OPTIONS of man/forerun.1. man/update.sh puts it between the marks in that file,
 * and test_help_cli.c fails if the two differ. The rest of the page is written by hand. A table that several commands
 * share is printed with the first of them; the others refer to it.
 *
 * `forerun --man-pages FOLDER`, which `make install` runs, writes forerun-run.1, forerun-train-lyanna.1, and so on.
 * Each page has everything that --help-all prints, except for the lists of drafters and rules, which forerun(1)
 * describes.
 *
 * The completions for bash, zsh and fish know commands, methods of `train`, options, the names that a choice can have,
 * drafters for --draft, and which values are files. `make install` puts the scripts where the shells look for them. */
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

/* Appends a text, escaping what roff would read as a command or a hyphen. */
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

/* Appends "-n, --tokens=N" with bold names and an italic value. */
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

/* Appends "As for forerun run: --model, --tokens, ...". */
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
             "alias or a script can be overridden. An option that makes a list, such as \\fB\\-\\-draft\\fR, may be "
             "given several times.\n");
    for (const Command *const *c = commands; *c && fits; c++) fits = put_command(out, *c, &printed);
    return fits && buf_puts(out, ".\\\" END OPTIONS\n");
}

/* ---- a page for each command ------------------------------------------------------------------------- */

/* Writes "forerun-train-lyanna" for "train lyanna". */
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

/* Appends the paragraphs of a text, which are separated by blank lines. */
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

/* Appends the man page of a command. */
static bool command_man_page(const Command *c, Buf *out) {
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

/* ---- completions ------------------------------------------------------------------------------------- */

/* Writes the words that can be the value of a row, separated by spaces. False: none are known. */
static bool value_words(const Option *row, char *words, size_t size) {
    size_t n = 0;
    words[0] = '\0';
    for (int i = 0; row->names && row->names[i] && n < size; i++)
        n += (size_t)snprintf(words + n, size - n, "%s%s", i ? " " : "", row->names[i]);
    for (int i = 0; row->suggest && row->suggest(i) && n < size; i++)
        n += (size_t)snprintf(words + n, size - n, "%s%s", n ? " " : "", row->suggest(i));
    if (row->word && n < size) snprintf(words + n, size - n, "%s%s", n ? " " : "", row->word);
    return words[0] != '\0';
}

/* Calls `put` for every command and every method of `train`. */
typedef bool (*PutCommand)(Buf *out, const Command *c);
static bool put_each(Buf *out, const Command *const *commands, PutCommand put) {
    bool fits = true;
    for (const Command *const *c = commands; *c && fits; c++) {
        if (!(*c)->method) fits = put(out, *c);
        for (int i = 0; (*c)->method && fits && (*c)->method(i); i++) fits = put(out, (*c)->method(i));
    }
    return fits;
}

static const char *method_name(const Command *c) {
    const char *space = strchr(c->name, ' ');
    return space ? space + 1 : c->name;
}

static bool put_names(Buf *out, const Command *const *commands) {
    bool fits = true;
    for (const Command *const *c = commands; *c && fits; c++)
        fits = buf_printf(out, "%s%s", c == commands ? "" : " ", (*c)->name);
    return fits;
}

static bool put_method_names(Buf *out, const Command *c) {
    bool fits = true;
    for (int i = 0; fits && c->method(i); i++) fits = buf_printf(out, "%s%s", i ? " " : "", method_name(c->method(i)));
    return fits;
}

/* ---- bash ------------------------------------------------------------------------------------------ */

static bool bash_value(Buf *out, const Option *row) {
    char words[1024];
    bool fits = buf_puts(out, "        ");
    if (row->letter) fits = fits && buf_printf(out, "-%c|", row->letter);
    fits = fits && buf_printf(out, "--%s) ", row->key);
    if (value_words(row, words, sizeof words)) return fits && buf_printf(out, "_forerun_words '%s' ;;\n", words);
    return fits && buf_puts(out, row->is_file ? "_forerun_files ;;\n" : ":;;\n");
}

static bool bash_command(Buf *out, const Command *c) {
    bool fits = buf_printf(out, "    '%s')\n        options='--help --help-all", c->name);
    char words[1024], arguments[1024] = "";
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);) {
        if (!at.row->is_argument) fits = buf_printf(out, " --%s", at.row->key);
        else if (!arguments[0] && value_words(at.row, words, sizeof words))
            snprintf(arguments, sizeof arguments, "%s", words);
    }
    fits = fits && buf_printf(out, "'\n        arguments='%s'\n        case \"$previous\" in\n", arguments);
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);)
        if (!at.row->is_argument && command_row_takes_value(at.row)) fits = bash_value(out, at.row);
    return fits && buf_puts(out, "        *) _forerun_rest ;;\n        esac ;;\n");
}

static bool put_bash(Buf *out, const Command *const *commands) {
    bool fits = buf_puts(
        out, "# bash completion for forerun; generated by 'forerun --completions bash'\n"
             "_forerun_words() { COMPREPLY=($(compgen -W \"$1\" -- \"$current\")); }\n"
             "_forerun_files() { compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$current\")); }\n"
             "_forerun_rest() {\n"
             "    if [[ $current == -* ]]; then _forerun_words \"$options\"\n"
             "    elif [[ $arguments && $COMP_CWORD -eq 2 ]]; then _forerun_words \"$arguments\"\n"
             "    else _forerun_files; fi\n"
             "}\n"
             "_forerun() {\n"
             "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} "
             "command=${COMP_WORDS[1]} options arguments\n"
             "    COMPREPLY=()\n"
             "    # '=' is a word of its own: --kv=f16 is --kv, = and f16.\n"
             "    if [[ $current == '=' ]]; then current=; elif [[ $previous == '=' ]]; then "
             "previous=${COMP_WORDS[COMP_CWORD-2]}; fi\n"
             "    if [[ $COMP_CWORD -eq 1 ]]; then _forerun_words '");
    fits = fits && put_names(out, commands) && buf_puts(out, " help --help --version --completions'; return; fi\n");
    fits = fits && buf_puts(out, "    if [[ $command == help && $COMP_CWORD -eq 2 ]]; then _forerun_words '") &&
           put_names(out, commands) && buf_puts(out, "'; return; fi\n");
    for (const Command *const *c = commands; *c && fits; c++) {
        if (!(*c)->method) continue;
        fits = buf_printf(
            out, "    if [[ $command == help && ${COMP_WORDS[2]} == %s && $COMP_CWORD -eq 3 ]]; then _forerun_words '",
            (*c)->name);
        fits = fits && put_method_names(out, *c) && buf_puts(out, "'; return; fi\n");
        fits = fits &&
               buf_printf(
                   out, "    if [[ $command == %s ]]; then\n        if [[ $COMP_CWORD -eq 2 ]]; then _forerun_words '",
                   (*c)->name);
        fits = fits && put_method_names(out, *c) &&
               buf_puts(out,
                        " --help --help-all'; return; fi\n        command=\"$command ${COMP_WORDS[2]}\"\n    fi\n");
    }
    return fits && buf_puts(out, "    case \"$command\" in\n") && put_each(out, commands, bash_command) &&
           buf_puts(
               out,
               "    --completions) _forerun_words 'bash zsh fish' ;;\n    esac\n}\ncomplete -F _forerun forerun\n");
}

/* ---- zsh ------------------------------------------------------------------------------------------- */

/* Appends a help text for '...[help]' of _arguments, up to the first "; ", and escapes brackets, colons and quotes. */
static bool zsh_help(Buf *out, const char *text) {
    bool fits = true;
    for (; *text && fits; text++) {
        if (text[0] == ';' && text[1] == ' ') break;
        if (*text == '\'') fits = buf_puts(out, "'\\''");
        else if (strchr("[]:\\", *text)) fits = buf_printf(out, "\\%c", *text);
        else fits = buf_append(out, text, 1);
    }
    return fits;
}

static bool zsh_action(Buf *out, const Option *row) {
    char words[1024], room[64];
    bool fits = buf_puts(out, ":") && zsh_help(out, option_metavar(row, room));
    if (value_words(row, words, sizeof words)) return fits && buf_printf(out, ":(%s)", words);
    return fits && buf_puts(out, row->is_file ? ":_files" : ":");
}

static bool zsh_row(Buf *out, const Option *row) {
    const char *star = row->kind == OPTION_TEXTS ? "*" : "";
    bool fits;
    if (row->is_argument) {
        fits = buf_printf(out, " \\\n            '%s", row->kind == OPTION_TEXTS ? "*" : "");
        return fits && zsh_action(out, row) && buf_puts(out, "'");
    }
    bool takes = command_row_takes_value(row);
    fits = !row->letter ||
           (buf_printf(out, " \\\n            '%s-%c%s[", star, row->letter, takes ? "+" : "") &&
            zsh_help(out, row->help) && buf_puts(out, "]") && (!takes || zsh_action(out, row)) && buf_puts(out, "'"));
    fits = fits && buf_printf(out, " \\\n            '%s--%s%s[", star, row->key,
                              takes          ? "="
                              : row->implied ? "=-"
                                             : "");
    fits = fits && zsh_help(out, row->help) && buf_puts(out, "]");
    if (row->implied) fits = fits && buf_puts(out, ":");
    return fits && ((!takes && !row->implied) || zsh_action(out, row)) && buf_puts(out, "'");
}

static bool zsh_command(Buf *out, const Command *c) {
    bool fits = buf_printf(
        out,
        "    ('%s')\n        _arguments -s '--help[print the most common options]' '--help-all[print all options]'",
        c->name);
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);) fits = zsh_row(out, at.row);
    return fits && buf_puts(out, " ;;\n");
}

static bool put_zsh(Buf *out, const Command *const *commands) {
    bool fits = buf_puts(
        out, "#compdef forerun\n# generated by 'forerun --completions zsh'\n_forerun() {\n    local command=$words[2]\n"
             "    if (( CURRENT == 2 )); then\n        local -a commands=(");
    for (const Command *const *c = commands; *c && fits; c++)
        fits = buf_printf(out, " '%s:", (*c)->name) && zsh_help(out, (*c)->summary) && buf_puts(out, "'");
    fits = fits &&
           buf_puts(out, " 'help:explain a command')\n        _describe command commands\n        return\n    fi\n"
                         "    if [[ $command == help ]]; then\n        (( CURRENT == 3 )) && compadd ");
    fits = fits && put_names(out, commands) && buf_puts(out, "\n        return\n    fi\n");
    for (const Command *const *c = commands; *c && fits; c++) {
        if (!(*c)->method) continue;
        fits = buf_printf(out, "    if [[ $command == %s ]]; then\n        if (( CURRENT == 3 )); then compadd ",
                          (*c)->name);
        fits =
            fits && put_method_names(out, *c) &&
            buf_puts(
                out,
                "; return; fi\n        command=\"$command $words[3]\"\n        shift words; (( CURRENT-- ))\n    fi\n");
    }
    return fits && buf_puts(out, "    shift words; (( CURRENT-- ))\n    case $command in\n") &&
           put_each(out, commands, zsh_command) && buf_puts(out, "    esac\n}\n_forerun \"$@\"\n");
}

/* ---- fish ------------------------------------------------------------------------------------------ */

/* Appends a help text for '...', up to the first "; ", and escapes quotes and backslashes. */
static bool fish_help(Buf *out, const char *text) {
    bool fits = true;
    for (; *text && fits; text++) {
        if (text[0] == ';' && text[1] == ' ') break;
        if (*text == '\'' || *text == '\\') fits = buf_puts(out, "\\");
        fits = fits && buf_append(out, text, 1);
    }
    return fits;
}

static bool fish_condition(Buf *out, const Command *c) {
    const char *space = strchr(c->name, ' ');
    if (!space) return buf_printf(out, "complete -c forerun -n '__fish_seen_subcommand_from %s'", c->name);
    return buf_printf(out,
                      "complete -c forerun -n '__fish_seen_subcommand_from %.*s; and __fish_seen_subcommand_from %s'",
                      (int)(space - c->name), c->name, space + 1);
}

static bool fish_command(Buf *out, const Command *c) {
    bool fits = true;
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);) {
        const Option *row = at.row;
        char words[1024];
        bool known = value_words(row, words, sizeof words);
        if (row->is_argument && !known) continue; /* fish completes files by itself */
        fits = fish_condition(out, c);
        if (!row->is_argument) fits = fits && buf_printf(out, " -l %s", row->key);
        if (row->letter) fits = fits && buf_printf(out, " -s %c", row->letter);
        if (known)
            fits = fits && buf_printf(out, " %s -a '%s'", row->is_argument ? "-f" : row->implied ? "-f" : "-x", words);
        else if (command_row_takes_value(row)) fits = fits && buf_puts(out, row->is_file ? " -r -F" : " -x");
        fits = fits && buf_puts(out, " -d '") && fish_help(out, row->help) && buf_puts(out, "'\n");
    }
    return fits;
}

static bool put_fish(Buf *out, const Command *const *commands) {
    bool fits = buf_puts(out, "# fish completion for forerun; generated by 'forerun --completions fish'\n"
                              "complete -c forerun -n __fish_use_subcommand -f\n");
    for (const Command *const *c = commands; *c && fits; c++) {
        fits = buf_printf(out, "complete -c forerun -n __fish_use_subcommand -f -a %s -d '", (*c)->name) &&
               fish_help(out, (*c)->summary) && buf_puts(out, "'\n");
        if (!(*c)->method) continue;
        fits = fits && buf_printf(out, "complete -c forerun -n '__fish_seen_subcommand_from %s' -f -a '", (*c)->name) &&
               put_method_names(out, *c) && buf_puts(out, "'\n");
    }
    fits = fits && buf_puts(out, "complete -c forerun -n __fish_use_subcommand -f -a help -d 'explain a command'\n"
                                 "complete -c forerun -n '__fish_seen_subcommand_from help' -f -a '");
    return fits && put_names(out, commands) && buf_puts(out, "'\n") && put_each(out, commands, fish_command);
}

bool command_completions(const Command *const *commands, const char *shell, Buf *out) {
    if (strcmp(shell, "bash") == 0) return put_bash(out, commands);
    return strcmp(shell, "zsh") == 0 ? put_zsh(out, commands) : put_fish(out, commands);
}
