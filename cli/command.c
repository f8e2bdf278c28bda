/* command.c - parses argv into the structs of a command, by its tables of options; prints its help; checks the files.
 *
 * Options are written in GNU style: --key=VALUE, --key VALUE, -x VALUE, -xVALUE, flags joined as in -jt, "--" before
 * arguments that begin with '-'. Options of other programs are understood (synonyms.c). Keys are written in full; for a
 * misspelt or shortened key the error suggests the nearest one. If an option is given twice, the last value counts,
 * except for lists, which grow. */
#include "base/files.h"
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/model_name.h"
#include "draft/drafter.h"
#include "draft/drafter_file.h"
#include "gguf/gguf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* Find the row of "--key" (n characters) or of a letter. */
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

/* ---- --help-all and --help --------------------------------------------------------------------------------------- */

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

/* Appends the short help: examples, and the options that most users need. */
static bool command_short_help(const Command *c, Buf *out) {
    bool fits = put_usage(out, c) && put_first_sentence(out, c->about);
    if (c->examples) fits = fits && buf_puts(out, "\nExamples:\n") && buf_puts(out, c->examples);
    if (c->method) return fits && put_methods(out, c);
    fits = fits && buf_puts(out, "\nOptions:\n");
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);)
        if (at.row->is_argument || at.row->letter || at.row->required || at.row->is_basic)
            fits = put_basic_row(out, at.row);
    return fits && buf_printf(out, "      --help-all              print all options, with their ranges and defaults\n");
}

static bool command_help(const Command *c, Buf *out) {
    bool fits = put_usage(out, c) && put_paragraph(out, c->about);
    fits = fits && (c->method ? put_methods(out, c) : put_options(out, c));
    if (c->list) fits = fits && buf_puts(out, "\n") && c->list(out);
    if (c->notes) fits = fits && buf_puts(out, "\n") && put_paragraph(out, c->notes);
    if (c->examples) fits = fits && buf_puts(out, "\nExamples:\n") && buf_puts(out, c->examples);
    return fits;
}

/* ---- the files of a command line ----------------------------------------------------------------------
 *
 * Outputs are replaced by renaming (base/files.h). So an output that is also an input would not disturb the run, but
 * the user's input file would be lost at its end. */

typedef struct CommandFile {
    char *option, *path;
    bool is_output, may_be_stdout;
    bool is_of_drafter, is_implied;
} CommandFile;

struct CommandFiles {
    CommandFile *items;
    size_t n, capacity;
};

bool command_files_add(CommandFiles *files, const char *option, const char *path, bool is_output) {
    if (files->n == files->capacity) {
        size_t capacity = 2 * files->capacity + 16;
        CommandFile *items = realloc(files->items, capacity * sizeof *items);
        if (!items) return false;
        files->items = items;
        files->capacity = capacity;
    }
    CommandFile *file = &files->items[files->n++];
    *file = (CommandFile){.option = strdup(option), .path = strdup(path), .is_output = is_output};
    return file->option && file->path;
}

static void free_files(CommandFiles *files) {
    for (size_t i = 0; i < files->n; i++) {
        free(files->items[i].option);
        free(files->items[i].path);
    }
    free(files->items);
}

/* ---- gathering -------------------------------------------------------------------------------------- */

/* Returns the i-th value of a row of texts; NULL after the last. */
static const char *value_of(const CommandRow *at, int i) {
    const Option *row = at->row;
    const char *base = at->to;
    if (row->kind == OPTION_TEXTS)
        return i < *(const int *)(const void *)(base + row->n_offset)
                   ? ((const char *const *)(const void *)(base + row->offset))[i]
                   : NULL;
    if (i > 0 || !option_is_given(row, at->to)) return NULL;
    if (row->kind == OPTION_TEXT) return *(const char *const *)(const void *)(base + row->offset);
    return row->kind == OPTION_BUFFER ? base + row->offset : NULL;
}

/* Adds the other parts of a model that is split into several files. */
static bool add_parts(CommandFiles *files, const char *option, const char *first) {
    char path[GGUF_MAX_PATH];
    bool fits = true;
    for (int i = 1; i < gguf_split_count(first) && fits; i++)
        if (gguf_split_path(first, i, path)) fits = command_files_add(files, option, path, false);
    return fits;
}

/* Adds the file named by the n bytes at `path`, or each of several names that are joined by row->joined_by. */
static bool add_value(CommandFiles *files, const Option *row, const char *option, const char *path, size_t n) {
    char *copy = strndup(path, n), *at = copy;
    bool fits = copy != NULL;
    while (fits && at) {
        char *end = row->joined_by ? strchr(at, row->joined_by) : NULL;
        if (end) *end = '\0';
        fits = command_files_add(files, option, at, row->is_output);
        if (fits) files->items[files->n - 1].may_be_stdout = row->may_be_stdout;
        if (fits && !row->is_output) fits = add_parts(files, option, at);
        at = end ? end + 1 : NULL;
    }
    free(copy);
    return fits;
}

bool command_files_add_drafter(CommandFiles *files, const char *option, const char *spec) {
    char method[64], key[64], name[256];
    size_t n = strcspn(spec, ":");
    snprintf(method, sizeof method, "%.*s", n < sizeof method ? (int)n : 0, spec);
    const Option *options = drafter_option_table(method);
    bool fits = true;
    for (const char *pair = spec + n; options && *pair && fits; pair += strcspn(pair, ",")) {
        pair++; /* the colon or the comma before it */
        size_t n_key = strcspn(pair, "=,"), n_pair = strcspn(pair, ","), n_before = files->n;
        snprintf(key, sizeof key, "%.*s", n_key < sizeof key ? (int)n_key : 0, pair);
        const Option *row = n_key < n_pair ? options_find(options, key) : NULL;
        if (!row || !row->is_file) continue;
        snprintf(name, sizeof name, "%s=%s:%s", option, method, key);
        fits = add_value(files, row, name, pair + n_key + 1, n_pair - n_key - 1);
        for (size_t i = n_before; i < files->n; i++) files->items[i].is_of_drafter = true;
    }
    return fits;
}

static bool gather(const Command *c, CommandFiles *files) {
    bool fits = true;
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);) {
        char option[96];
        const char *value;
        if (!at.row->is_file) continue;
        snprintf(option, sizeof option, "%s%s", at.row->is_argument ? "" : "--", at.row->key);
        for (int i = 0; fits && (value = value_of(&at, i)); i++)
            fits = add_value(files, at.row, option, value, strlen(value));
    }
    size_t n_named = files->n;
    fits = fits && (!c->files || c->files(files));
    for (size_t i = n_named; i < files->n; i++) files->items[i].is_implied = true;
    return fits;
}

/* ---- checks ------------------------------------------------------------------------------------------- */

static bool is_stdout(const CommandFile *f) { return f->may_be_stdout && strcmp(f->path, "-") == 0; }

static int check_distinct(const CommandFiles *files, size_t i_output, fr_error *err) {
    const CommandFile *output = &files->items[i_output];
    for (size_t i = 0; i < files->n; i++) {
        const CommandFile *other = &files->items[i];
        bool is_done = other->is_output && i <= i_output;                          /* compared before */
        bool is_own = other->is_output && other->is_implied && output->is_implied; /* the command chose both names */
        bool is_stdin = !other->is_output && strcmp(other->path, "-") == 0;
        if (is_done || is_own || is_stdin || is_stdout(other) || !replace_file_same(output->path, other->path))
            continue;
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s and %s are the same file, %.200s, which would be lost: choose another path for %s",
                         output->option, other->option, output->path, output->option);
    }
    return FR_OK;
}

/* Returns whether the output is a symbolic link at a name that the user did not write: somebody else may have guessed
 * the name. */
static bool is_foreign_link(const CommandFile *f) {
    struct stat st;
    return f->is_implied && lstat(f->path, &st) == 0 && S_ISLNK(st.st_mode);
}

static int check_writable(const CommandFile *output, fr_error *err) {
    fr_error why;
    if (is_foreign_link(output))
        return error_set(err, FR_ERR_IO, "%s: %.200s: is a symbolic link, which is not followed: remove it",
                         output->option, output->path);
    if (strcmp(output->path, "-") == 0)
        return error_set(err, FR_ERR_ARGUMENT, "%s cannot be written to standard output: name a file", output->option);
    int status = replace_file_check(output->path, &why);
    return status ? error_set(err, (fr_code)status, "%s: %s", output->option, why.message) : FR_OK;
}

static int check_output(const CommandFiles *files, size_t i, fr_error *err) {
    const CommandFile *output = &files->items[i];
    if (is_stdout(output)) return FR_OK;
    int status = check_distinct(files, i, err);
    return status ? status : check_writable(output, err);
}

static int check_readable(const CommandFile *input, fr_error *err) {
    if (!input->is_of_drafter || access(input->path, R_OK) == 0) return FR_OK;
    return error_set(err, FR_ERR_IO, "%s: %.300s: cannot be opened: %s", input->option, input->path, strerror(errno));
}

static int command_check_files(const Command *c, fr_error *err) {
    CommandFiles files = {.n = 0};
    int status = gather(c, &files) ? FR_OK : (int)error_memory(err, "the names of files", files.n);
    for (size_t i = 0; i < files.n && !status; i++)
        status = files.items[i].is_output ? check_output(&files, i, err) : check_readable(&files.items[i], err);
    free_files(&files);
    return status;
}

/* ---- parsing ---------------------------------------------------------------------------------------- */

typedef struct Parser {
    const Command *command;
    int argc, i; /* argv[i] is read next */
    char **argv;
    bool wants_help, wants_all_help;
    bool is_later_rank; /* rank 0 checks the files */
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
    nearest_word_try(&nearest, wanted, "help");
    if (nearest.word) snprintf(hint, sizeof hint, "; did you mean --%s?", nearest.word);
    return error_set(err, FR_ERR_ARGUMENT, "unknown option '--%s'%s", wanted, hint);
}

/* Returns the drafter that the file of -md is for: that of a learned drafter, or a draft model. */
static const char *prefix_of_draft(const char *path) {
    static char prefix[64];
    Gguf *g = NULL;
    fr_error ignored; /* opening the drafter reports it */
    GgufString own = {"", 0};
    const char *method = NULL;
    if (gguf_open(&g, path, &ignored) == FR_OK) method = drafter_file_published_method(g);
    if (g) gguf_get_string(g, DRAFTER_KEY("method"), &own);
    if (method) own = (GgufString){method, strlen(method)};
    if (own.n > 0 && own.n < 32) snprintf(prefix, sizeof prefix, "%.*s:file=", (int)own.n, own.data);
    else snprintf(prefix, sizeof prefix, "%s", COMMAND_DRAFT_MODEL);
    gguf_close(g);
    return prefix;
}

/* Parses an option of another program, `dashes` and n bytes of `word`, after which "=VALUE" may follow. A joined value
 * is kept until the program ends. */
static int parse_synonym(Parser *p, const Synonym *s, const char *dashes, const char *word, fr_error *err) {
    CommandRow at;
    size_t n = strlen(s->word);
    const char *value = word[n] == '=' ? word + n + 1 : NULL;
    char *joined = NULL;
    if (!s->key) return error_set(err, FR_ERR_ARGUMENT, "%s%s: %s", dashes, s->word, s->answer);
    if (!find_key(p->command, s->key, strlen(s->key), &at))
        return error_set(err, FR_ERR_ARGUMENT, "unknown option '%s%s'", dashes, s->word);
    if (!value && p->i < p->argc) value = p->argv[p->i++];
    if (!value) return store_next(p, &at, err); /* which reports that the value is missing */
    const char *prefix = s->prefix && strcmp(s->prefix, COMMAND_DRAFT_MODEL) == 0 ? prefix_of_draft(value) : s->prefix;
    if (prefix && asprintf(&joined, "%s%s", prefix, value) < 0) return error_memory(err, "an option", strlen(value));
    return store(&at, joined ? joined : value, err);
}

static int parse_key(Parser *p, const char *key, fr_error *err) {
    size_t n = strcspn(key, "=");
    CommandRow at;
    if (!find_key(p->command, key, n, &at)) {
        const Synonym *s = command_synonym(key, n);
        return s && n > 1 ? parse_synonym(p, s, "--", key, err) : refuse_key(p->command, key, n, err);
    }
    if (key[n]) return store(&at, key + n + 1, err);
    if (command_row_takes_value(at.row)) return store_next(p, &at, err);
    return store(&at, at.row->implied ? at.row->implied : "1", err);
}

/* Returns the row if the letters are a word of another program, such as -ngl, and not a letter that is joined with a
 * file. */
static const Synonym *find_short_synonym(const Command *c, const char *letters) {
    CommandRow at;
    const Synonym *s = command_synonym(letters, strlen(letters));
    if (!s || !find_letter(c, letters[0], &at)) return s;
    return letters[1] && !(at.row->is_file && access(letters + 1, F_OK) == 0) ? s : NULL;
}

static int parse_letters(Parser *p, const char *letters, fr_error *err) {
    const Synonym *s = find_short_synonym(p->command, letters);
    if (s) return parse_synonym(p, s, "-", letters, err);
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
    ModelName name;
    bool is_model = ((dot && strcmp(dot, ".gguf") == 0) || model_name_parse(text, &name)) &&
                    find_key(c, "model", 5, &at) && at.row->letter == 'm';
    return error_set(err, FR_ERR_ARGUMENT, "unexpected argument '%.80s'%s", text,
                     is_model ? "; pass a model as -m FILE" : "");
}

/* Stores the n-th positional argument in the n-th such row; a list takes all remaining ones. */
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

/* *all: whether the word asks for everything. */
static bool asks_for_help(const char *word, bool *all) {
    *all = strcmp(word, "--help-all") == 0;
    return *all || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "-?") == 0;
}

static int parse_all(Parser *p, fr_error *err) {
    int status = FR_OK;
    bool only_arguments = false;
    while (p->i < p->argc && !status) {
        const char *word = p->argv[p->i++];
        if (only_arguments || word[0] != '-' || !word[1]) status = parse_argument(p, word, err);
        else if (strcmp(word, "--") == 0) only_arguments = true;
        else if (asks_for_help(word, &p->wants_all_help)) {
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
    return status || p->is_later_rank ? status : command_check_files(c, err);
}

/* Prints the error, and refers to --help if the command line is wrong. */
static int refuse(const Command *c, const fr_error *err) {
    if (err->code == FR_ERR_ARGUMENT)
        fprintf(stderr, "forerun %s: %s\nTry 'forerun %s --help'.\n", c->name, err->message, c->name);
    else fprintf(stderr, "forerun: %s\n", err->message);
    return err->code == FR_ERR_ARGUMENT ? CLI_USAGE : CLI_FAILED;
}

static int print_help(const Command *c, bool all) {
    Buf text = {.max_bytes = 1 << 20};
    bool fits = all ? command_help(c, &text) : command_short_help(c, &text);
    if (fits) fwrite(text.data, 1, text.n, stdout);
    else fprintf(stderr, "forerun: out of memory: the help of '%s' cannot be printed\n", c->name);
    buf_free(&text);
    return fits ? CLI_OK : CLI_FAILED;
}

/* Parses argv into the command's structs. False: it printed help or an error, and *status is the exit status. */
static bool command_parse(const Command *c, int argc, char **argv, bool is_later_rank, int *status) {
    Parser p = {.command = c, .argc = argc, .i = 1, .argv = argv, .is_later_rank = is_later_rank};
    fr_error err;
    int failure = parse(&p, &err);
    if (failure && is_later_rank) mpi_rank_wait_for_first();
    if (failure) *status = refuse(c, &err);
    else if (p.wants_help) *status = print_help(c, p.wants_all_help);
    else return true;
    return false;
}

/* ---- methods: `forerun train METHOD` ---------------------------------------------------------------- */

static int refuse_method(const Command *c, const char *name) {
    NearestWord nearest = {.word = NULL};
    size_t n_own = strlen(c->name) + 1;
    if (!name) {
        Buf methods = {.max_bytes = 1 << 16};
        bool fits = put_methods(&methods, c) && buf_append(&methods, "", 1);
        fprintf(stderr, "forerun %s: missing method\n%s", c->name, fits ? methods.data : "");
        buf_free(&methods);
        return CLI_USAGE;
    }
    for (int i = 0; c->method(i); i++) nearest_word_try(&nearest, name, c->method(i)->name + n_own);
    fprintf(stderr, "forerun %s: unknown method '%s'%s%s%s\nTry 'forerun %s --help'.\n", c->name, name,
            nearest.word ? "; did you mean " : "", nearest.word ? nearest.word : "", nearest.word ? "?" : "", c->name);
    return CLI_USAGE;
}

static int run_method(const Command *c, int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : NULL;
    bool all;
    if (name && asks_for_help(name, &all)) return print_help(c, all);
    size_t n_own = strlen(c->name) + 1;
    for (int i = 0; name && c->method(i); i++)
        if (strcmp(c->method(i)->name + n_own, name) == 0) return command_main(c->method(i), argc - 1, argv + 1);
    return refuse_method(c, name);
}

int command_main(const Command *c, int argc, char **argv) {
    int status;
    CommandRow ranks;
    if (c->method) return run_method(c, argc, argv);
    bool is_later_rank = find_key(c, "ranks", strlen("ranks"), &ranks) && mpi_rank_serves(argc, argv);
    if (is_later_rank && !c->runs_on_all_ranks) return mpi_rank_serve();
    return command_parse(c, argc, argv, is_later_rank, &status) ? c->run(argc, argv) : status;
}
