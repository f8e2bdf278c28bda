/* options.h - one table for whatever a user can set: command lines, `--draft method:key=value,...`, `--verify
 * rule:key=value`.
 *
 * A table is an array of rows at file scope that ends with {.key = NULL}; a row names one option and the field of a
 * plain struct that it fills. Parsing, range checks, error messages, --help, the man page and shell completions are
 * all derived from the rows.
 *
 *     typedef struct SuffixOptions {
 *         double factor;
 *         int64_t history;
 *         bool live;
 *         int match;
 *         char index[256];
 *     } SuffixOptions;
 *
 *     static const Option rows[] = {
 *         {.key = "index", OPT_FILE(SuffixOptions, index), .required = "index file", .help = "index of the corpus"},
 *         {.key = "factor", OPT_REAL(SuffixOptions, factor, 0, 64), .default_value = "1", .help = "nodes per match"},
 *         {.key = "history", OPT_INT(SuffixOptions, history, 0, 9999), .default_value = "99", .help = "tokens kept"},
 *         {.key = "live", OPT_FLAG(SuffixOptions, live), .default_value = "1", .help = "also use generated tokens"},
 *         {.key = "match", OPT_CHOICE(SuffixOptions, match, "first", "last"), .default_value = "first", .help = "..."},
 *         {.key = NULL},
 *     };
 *
 *     SuffixOptions o = {0};                           options_parse sets defaults, and leaves other fields alone
 *     char text[] = "index=a.bin,history=0";           cut into strings in place
 *     status = options_parse(rows, "suffix", text, &o, err);
 *
 * Its errors look like these: "suffix: 'history=-1' must be an integer from 0 to 9999", "suffix: unknown option
 * 'hist'; did you mean 'history'? (the options are index, factor, ...)", "suffix: missing index file: write
 * suffix:index=FILE", "suffix: 'live' is set twice".
 *
 * Fields are typed, and the macros check the type at compile time (_Generic without a default): OPT_INT takes
 * int32_t, int64_t and uint64_t; OPT_REAL float and double; OPT_FLAG bool and int; OPT_CHOICE enums, int, bool (two
 * names) and const char *; OPT_TEXT, OPT_FILE (a file that is read) and OPT_OUTPUT (a file that is written) const char
 * * and char[N]; OPT_MODEL (a model that is read) const char *; OPT_TEXTS and OPT_FILES an array of const char * or
 * char * with its int counter. A field may be nested ("loop.seed"). A const char * field borrows the text it was parsed
 * from: argv, or the caller's copy of "key=value,...". A char[N] field copies it and refuses what does not fit.
 *
 * The caller checks after parsing what a table cannot say, such as min_match <= max_match. cli/command.h has the
 * driver for argv.
 */
#ifndef BASE_OPTIONS_H
#define BASE_OPTIONS_H

#include "base/error.h"
#include "base/mem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum OptionKind {
    OPTION_BOOL,
    OPTION_INT_FLAG, /* 1 or 0; on the command line it takes no value */
    OPTION_I32,
    OPTION_I64,
    OPTION_U64, /* an integer from min to max */
    OPTION_F32,
    OPTION_F64, /* a number from min_real to max_real */
    OPTION_CHOICE_INDEX,
    OPTION_CHOICE_BOOL,
    OPTION_CHOICE_NAME, /* one of names, which is stored as its value, as false or true, or as the name */
    OPTION_TEXT,
    OPTION_BUFFER, /* text, borrowed or copied into a char[max] */
    OPTION_TEXTS,  /* given several times, at most `max` times; borrowed */
    OPTION_CUSTOM, /* `parse` reads it */
} OptionKind;

typedef struct Option {
    const char *key; /* NULL ends the table. "tree-budget" is --tree-budget on a command line, key=value elsewhere */
    char letter;     /* the x of -x; 0: none. For command lines only, as are section, implied and is_argument */
    OptionKind kind; /* from here to n_offset: set by the OPT_ macros below */
    bool is_file, is_output; /* the value names a file; the file is written */
    bool is_model;           /* the file is a model, which the program also knows by a name */
    size_t offset, n_offset;
    int64_t min, max;
    double min_real, max_real;
    const char *const *names;
    int (*parse)(void *out, const char *text, fr_error *err);

    const int32_t *values;     /* OPT_CHOICE: the number of each name; NULL: 0, 1, 2, ... */
    const char *word;          /* OPT_INT: a word that is accepted too, such as "auto" */
    int64_t word_value;        /* ... and the integer that it means */
    const char *default_value; /* as the user would write it; NULL: the field stays as the caller left it */
    const char *default_help;  /* how --help describes the default where default_value cannot ("one per core") */
    const char *required; /* what an error calls missing, as in "missing output file: pass -o FILE"; NULL: optional */
    bool is_basic;        /* also in the short --help, which has the options with a letter and the required ones */
    const char *implied;  /* the value of --key without =VALUE (the value is then never a word of its own) */
    bool may_be_stdout;   /* OPT_OUTPUT: "-" is standard output */
    char joined_by;       /* OPT_FILE: the value names several files, joined by this character; '\0': one file */
    bool is_argument;     /* a positional argument; key is its name in the usage line: FILE */
    const char *metavar;  /* FILE, N; NULL: chosen by the type */
    const char *section;  /* title in --help and the man page for this row and those after it; NULL: no new title */
    const char *(*suggest)(int); /* words for completions, by index, then NULL; the value need not be among them */
    const char *help;            /* one or two sentences; range and default are added to them */
} Option;

/* One table and the struct it fills; {NULL, NULL} ends the list of a command. */
typedef struct OptionSet {
    const Option *rows;
    void *to;
} OptionSet;

#define OPT_FIELD(S, field) (((S *)0)->field)
#define OPT_FLAG(S, field) \
    .kind = _Generic(OPT_FIELD(S, field), bool : OPTION_BOOL, int : OPTION_INT_FLAG), .offset = offsetof(S, field)
#define OPT_INT(S, field, lo, hi) \
    .kind = _Generic(OPT_FIELD(S, field), int32_t \
                     : OPTION_I32, int64_t \
                     : OPTION_I64, uint64_t \
                     : OPTION_U64), \
    .offset = offsetof(S, field), .min = (lo), .max = (hi)
#define OPT_REAL(S, field, lo, hi) \
    .kind = _Generic(OPT_FIELD(S, field), float \
                     : OPTION_F32, double \
                     : OPTION_F64), \
    .offset = offsetof(S, field), .min_real = (lo), .max_real = (hi)
#define OPT_CHOICE(S, field, ...) \
    .kind = _Generic(OPT_FIELD(S, field), int: OPTION_CHOICE_INDEX, unsigned: OPTION_CHOICE_INDEX, \
                     bool: OPTION_CHOICE_BOOL, const char *: OPTION_CHOICE_NAME), \
    .offset = offsetof(S, field), .names = (const char *const[]){ \
        __VA_ARGS__, NULL \
    }
/* A const char * field that is one of the names of a list, which ends with NULL. */
#define OPT_NAME(S, field, list) .kind = OPTION_CHOICE_NAME, .offset = offsetof(S, field), .names = (list)
#define OPT_TEXT(S, field) \
    .kind = _Generic(&OPT_FIELD(S, field), const char **: OPTION_TEXT, \
                     char (*)[sizeof OPT_FIELD(S, field)]: OPTION_BUFFER), \
    .offset = offsetof(S, field), .max = (int64_t)sizeof OPT_FIELD(S, field)
#define OPT_FILE(S, field) OPT_TEXT(S, field), .is_file = true
#define OPT_MODEL(S, field) OPT_FILE(S, field), .is_model = _Generic(OPT_FIELD(S, field), const char * : true)
#define OPT_OUTPUT(S, field) OPT_FILE(S, field), .is_output = true
#define OPT_TEXTS(S, field, counter) \
    .kind = _Generic(*OPT_FIELD(S, field), const char *: OPTION_TEXTS, char *: OPTION_TEXTS), \
    .offset = offsetof(S, field), \
    .n_offset = _Generic(OPT_FIELD(S, counter), int: offsetof(S, counter)), \
    .max = (int64_t)(sizeof OPT_FIELD(S, field) / sizeof *OPT_FIELD(S, field))
#define OPT_FILES(S, field, counter) OPT_TEXTS(S, field, counter), .is_file = true
/* int function(void *out, const char *text, fr_error *err): `out` is the whole struct of the table. An error that
 * begins with "must" continues the sentence "name: 'key=text' must ...", as "must be 1 to 8 integers joined by '-'";
 * others follow a colon. */
#define OPT_CUSTOM(function) .kind = OPTION_CUSTOM, .parse = (function)

/* Sets the fields that have a default_value, and the counters of lists to 0; leaves all others. */
void options_defaults(const Option *rows, void *out);
/* Sets the defaults, then parses "key=value,key=value" (NULL or "": nothing), then checks that nothing required is
 * missing. `owner` names the table in errors. `text` is cut into strings in place and must live as long as the const
 * char * fields of
 * *out. */
int options_parse(const Option *rows, const char *owner, char *text, void *out, fr_error *err);
/* Stores the value of one key; both are whole strings. */
int options_set(const Option *rows, const char *owner, const char *key, const char *value, void *out, fr_error *err);
/* Returns the row of a key; NULL: there is none. */
const Option *options_find(const Option *rows, const char *key);

/* Stores one value in the row's field; `written` is what the user wrote, for the error: "--depth=99". */
int option_store(const Option *row, const char *written, const char *value, void *out, fr_error *err);
/* Returns whether the row's field holds something: for a text or a list, whether it is not empty; for other types,
 * always. */
bool option_is_given(const Option *row, const void *out);

/* Appends lines "key=default  help (range)", wrapped at `width` columns, the key indented by `indent`. False: no
 * memory. */
bool options_help(Buf *out, const Option *rows, int indent, int width);
/* Appends the sentence of one row: its help, then range and default in parentheses. The default is part of it on a
 * command line (with_default); in "key=default" lists it is already at the left. */
bool option_describe(Buf *out, const Option *row, bool with_default);
/* Returns the row's metavar, or one chosen by its type if it has none: N, X, FILE, TEXT, a|b. `room` is memory for
 * it. */
const char *option_metavar(const Option *row, char room[64]);
/* Appends `text` broken at spaces: the current column is `column`, further lines begin at `indent`. "\n" in text
 * begins a new line. */
bool text_wrap(Buf *out, const char *text, int column, int indent, int width);

/* Finds the candidate that is nearest to a misspelt word, by letters inserted, left out, changed or swapped. */
typedef struct NearestWord {
    const char *word; /* NULL: none is near */
    int distance;
} NearestWord;
void nearest_word_try(NearestWord *nearest, const char *misspelt, const char *candidate);

#endif
