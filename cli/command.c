/* command.c - parses argv into the structs of a command, by its tables of options, and runs it.
 *
 * Options are written in GNU style: --key=VALUE, --key VALUE, -x VALUE, -xVALUE, flags joined as in -jt, "--" before
 * arguments that begin with '-'. Options of other programs are understood (synonyms.c). Keys are written in full; for a
 * misspelt or shortened key the error suggests the nearest one. If an option is given twice, the last value counts,
 * except for lists, which grow. */
#include "cli/cli.h"
#include "cli/command.h"
#include "cli/model_name.h"
#include "draft/drafter_file.h"
#include "gguf/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* Refuses --ranks where mpirun has started the processes that divide the model. */
static int check_ranks(const Command *c, fr_error *err) {
    CommandRow at;
    if (c->runs_on_all_ranks || !find_key(c, "ranks", strlen("ranks"), &at)) return FR_OK;
    int n = *(const int *)(const void *)((const char *)at.to + at.row->offset); /* 0: the option is missing */
    if (n == 0 || n == 1 || mpi_rank_option(0) == 1) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "--ranks: mpirun has started the processes that divide the model already: leave out --ranks, and "
                     "pass their number to mpirun");
}

static int parse(Parser *p, fr_error *err) {
    const Command *c = p->command;
    if (c->defaults) c->defaults();
    for (const OptionSet *set = c->sets; set->rows; set++) options_defaults(set->rows, set->to);
    int status = parse_all(p, err);
    if (status || p->wants_help) return status;
    status = check_required(c, err);
    if (!status) status = model_cache_resolve(c, err);
    if (!status) status = check_ranks(c, err);
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
        bool fits = command_put_methods(&methods, c) && buf_append(&methods, "", 1);
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
