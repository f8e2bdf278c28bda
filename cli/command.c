/* command.c - from argv into the structs of a command, as its tables of options describe them.
 *
 * GNU style: --key=VALUE, --key VALUE, -x VALUE, -xVALUE, flags joined as in -jt, "--" before arguments that begin
 * with '-'. A key is written in full; for a misspelt or shortened one the error names the nearest. Of an option that
 * is given twice the last value counts, except for lists, which grow.
 */
#include "cli/command_files.h"
#include "cli/model_cache.h"

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

/* ---- the rows of a command -------------------------------------------------------------------------- */

bool command_next_row(const Command *c, CommandRow *at) {
    if (at->row) at->row++;
    else at->row = c->sets[0].rows;
    while (at->row && !at->row->key) {
        at->row = c->sets[++at->i_set].rows;
        at->section = NULL;
    }
    if (!at->row) return false;
    at->to = c->sets[at->i_set].to;
    if (at->row->section) at->section = at->row->section;
    if (!at->section) at->section = "Options";
    return true;
}

bool command_begins_section(const Command *c, const CommandRow *wanted) {
    for (CommandRow at = {.row = NULL}; command_next_row(c, &at);)
        if (strcmp(at.section, wanted->section) == 0) return at.row == wanted->row;
    return false;
}

bool command_row_is_flag(const Option *row) { return row->kind == OPTION_BOOL || row->kind == OPTION_INT_FLAG; }
bool command_row_takes_value(const Option *row) { return !command_row_is_flag(row) && !row->implied; }

/* The row of "--key" (n characters) or of a letter. */
static bool find_key(const Command *c, const char *key, size_t n, CommandRow *at) {
    *at = (CommandRow){.row = NULL};
    while (command_next_row(c, at))
        if (!at->row->is_argument && strlen(at->row->key) == n && memcmp(at->row->key, key, n) == 0) return true;
    return false;
}

static bool find_letter(const Command *c, char letter, CommandRow *at) {
    *at = (CommandRow){.row = NULL};
    while (command_next_row(c, at))
        if (at->row->letter == letter) return true;
    return false;
}

/* ---- parsing ---------------------------------------------------------------------------------------- */

typedef struct Parser {
    const Command *command;
    int argc, i; /* argv[i] is read next */
    char **argv;
    bool wants_help;
    int n_arguments;
} Parser;

static int store(const CommandRow *at, const char *value, fr_error *err) {
    char written[160];
    snprintf(written, sizeof written, "%s%s%s%s", at->row->is_argument ? "" : "--",
             at->row->is_argument ? "" : at->row->key, at->row->is_argument ? "" : "=", value);
    return option_store(at->row, written, value, at->to, err);
}

static int store_next(Parser *p, const CommandRow *at, fr_error *err) {
    char room[64];
    if (p->i == p->argc)
        return error_set(err, FR_ERR_ARGUMENT, "--%s needs a value: --%s=%s", at->row->key, at->row->key,
                         option_metavar(at->row, room));
    return store(at, p->argv[p->i++], err);
}

static int refuse_key(const Command *c, const char *key, size_t n, fr_error *err) {
    NearestWord nearest = {.word = NULL};
    char wanted[64] = "", hint[128] = "";
    snprintf(wanted, sizeof wanted, "%.*s", (int)n, key);
    for (CommandRow at = {.row = NULL}; command_next_row(c, &at);)
        if (!at.row->is_argument) nearest_word_try(&nearest, wanted, at.row->key);
    if (nearest.word) snprintf(hint, sizeof hint, "; did you mean --%s?", nearest.word);
    return error_set(err, FR_ERR_ARGUMENT, "unknown option '--%s'%s", wanted, hint);
}

static int parse_key(Parser *p, const char *key, fr_error *err) {
    size_t n = strcspn(key, "=");
    CommandRow at;
    if (!find_key(p->command, key, n, &at)) return refuse_key(p->command, key, n, err);
    if (key[n]) return store(&at, key + n + 1, err);
    if (command_row_takes_value(at.row)) return store_next(p, &at, err);
    return store(&at, at.row->implied ? at.row->implied : "1", err);
}

static int parse_letters(Parser *p, const char *letters, fr_error *err) {
    for (; *letters; letters++) {
        CommandRow at;
        if (!find_letter(p->command, *letters, &at))
            return error_set(err, FR_ERR_ARGUMENT, "unknown option '-%c'", *letters);
        if (command_row_takes_value(at.row)) return letters[1] ? store(&at, letters + 1, err) : store_next(p, &at, err);
        int status = store(&at, at.row->implied ? at.row->implied : "1", err);
        if (status) return status;
    }
    return FR_OK;
}

static int refuse_argument(const Command *c, const char *text, fr_error *err) {
    CommandRow at;
    const char *dot = strrchr(text, '.');
    bool is_model = dot && strcmp(dot, ".gguf") == 0 && find_key(c, "model", 5, &at) && at.row->letter == 'm';
    return error_set(err, FR_ERR_ARGUMENT, "unexpected argument '%.80s'%s", text,
                     is_model ? "; a model is given by -m FILE" : "");
}

/* The n-th positional argument goes to the n-th such row; a list takes all that are left. */
static int parse_argument(Parser *p, const char *text, fr_error *err) {
    int i = 0;
    for (CommandRow at = {.row = NULL}; command_next_row(p->command, &at);) {
        if (!at.row->is_argument) continue;
        if (i++ < p->n_arguments && at.row->kind != OPTION_TEXTS) continue;
        p->n_arguments++;
        return store(&at, text, err);
    }
    return refuse_argument(p->command, text, err);
}

static int parse_all(Parser *p, fr_error *err) {
    int status = FR_OK;
    bool only_arguments = false;
    while (p->i < p->argc && !status) {
        const char *word = p->argv[p->i++];
        if (only_arguments || word[0] != '-' || !word[1]) status = parse_argument(p, word, err);
        else if (strcmp(word, "--") == 0) only_arguments = true;
        else if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0) {
            p->wants_help = true;
            return FR_OK;
        } else status = word[1] == '-' ? parse_key(p, word + 2, err) : parse_letters(p, word + 1, err);
    }
    return status;
}

static int check_required(const Command *c, fr_error *err) {
    for (CommandRow at = {.row = NULL}; command_next_row(c, &at);) {
        const Option *row = at.row;
        char room[64];
        if (!row->required || option_is_given(row, at.to)) continue;
        if (row->is_argument) return error_set(err, FR_ERR_ARGUMENT, "missing %s: pass %s", row->required, row->key);
        if (row->letter)
            return error_set(err, FR_ERR_ARGUMENT, "missing %s: pass -%c %s", row->required, row->letter,
                             option_metavar(row, room));
        return error_set(err, FR_ERR_ARGUMENT, "missing %s: pass --%s=%s", row->required, row->key,
                         option_metavar(row, room));
    }
    return FR_OK;
}

static int parse(Parser *p, fr_error *err) {
    const Command *c = p->command;
    if (c->defaults) c->defaults();
    for (const OptionSet *set = c->sets; set->rows; set++) options_defaults(set->rows, set->to);
    int status = parse_all(p, err);
    if (status || p->wants_help) return status;
    status = check_required(c, err);
    if (!status) status = model_cache_resolve(c, err);
    if (!status && c->check) status = c->check(err);
    return status ? status : command_check_files(c, err);
}

/* Wrong usage points to --help; anything else does not depend on how the command was written. */
static int refuse(const Command *c, const fr_error *err) {
    if (err->code == FR_ERR_ARGUMENT)
        fprintf(stderr, "forerun %s: %s\nTry 'forerun %s --help'.\n", c->name, err->message, c->name);
    else fprintf(stderr, "forerun: %s\n", err->message);
    return err->code == FR_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED;
}

static int print_help(const Command *c) {
    Buf text = {.max_bytes = 1 << 20};
    bool fits = command_help(c, &text);
    if (fits) fwrite(text.data, 1, text.n, stdout);
    else fprintf(stderr, "forerun: out of memory: the help of '%s' cannot be printed\n", c->name);
    buf_free(&text);
    return fits ? CLI_OK : CLI_FAILED;
}

bool command_parse(const Command *c, int argc, char **argv, int *status) {
    Parser p = {.command = c, .argc = argc, .i = 1, .argv = argv};
    fr_error err;
    if (parse(&p, &err)) *status = refuse(c, &err);
    else if (p.wants_help) *status = print_help(c);
    else return true;
    return false;
}

/* ---- methods: `forerun train METHOD` ---------------------------------------------------------------- */

static int refuse_method(const Command *c, const char *name) {
    NearestWord nearest = {.word = NULL};
    size_t n_own = strlen(c->name) + 1;
    if (!name) {
        fprintf(stderr, "forerun %s: missing method\nTry 'forerun %s --help'.\n", c->name, c->name);
        return CLI_USAGE;
    }
    for (int i = 0; c->method(i); i++) nearest_word_try(&nearest, name, c->method(i)->name + n_own);
    fprintf(stderr, "forerun %s: unknown method '%s'%s%s%s\nTry 'forerun %s --help'.\n", c->name, name,
            nearest.word ? "; did you mean " : "", nearest.word ? nearest.word : "", nearest.word ? "?" : "", c->name);
    return CLI_USAGE;
}

static int run_method(const Command *c, int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : NULL;
    if (name && (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "-?") == 0))
        return print_help(c);
    size_t n_own = strlen(c->name) + 1;
    for (int i = 0; name && c->method(i); i++)
        if (strcmp(c->method(i)->name + n_own, name) == 0) return command_main(c->method(i), argc - 1, argv + 1);
    return refuse_method(c, name);
}

int command_main(const Command *c, int argc, char **argv) {
    int status;
    if (c->method) return run_method(c, argc, argv);
    return command_parse(c, argc, argv, &status) ? c->run(argc, argv) : status;
}
