/* command.h - describes a subcommand of `forerun`, from which its parsing, help, man page and completions follow.
 *
 * A command names its tables of options (base/options.h) and the structs that they fill. Parsing argv, --help, the man
 * pages and the shell completions all read these tables, so that an option is defined in one place. --help is one
 * screen that begins with examples; --help-all prints everything. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "base/options.h"

#include <stdio.h>

enum { CLI_WIDTH = 80 }; /* columns of --help and --help-all */

/* Exit statuses of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_BUS_ERROR = 3 };

typedef struct CommandFiles CommandFiles;
typedef struct Command Command;
struct Command {
    const char *name;    /* "run"; a method's name is like "train lyanna" */
    const char *summary; /* one line for `forerun --help` */
    const char *about;   /* one or more paragraphs about what it does; --help prints the first sentence */
    const OptionSet *sets;
    /* Optional, for `forerun train METHOD`: each method is a command with options of its own; NULL after the last. */
    const Command *(*method)(int i);
    /* Optional: appends lists to --help-all after the options, such as drafters and rules. False: memory ran out. */
    bool (*list)(Buf *out);
    const char *notes;           /* optional: further paragraphs, after the lists */
    const char *examples;        /* whole lines, as they would be typed */
    void (*defaults)(void);      /* optional: sets values that no row has a default for, before parsing */
    int (*check)(fr_error *err); /* optional: checks combinations of options, after parsing */
    /* Optional: adds files that no row names, such as OUTPUT.log. False: memory ran out. */
    bool (*files)(CommandFiles *out);
    /* Every process that mpirun has started runs it. Without this, those after rank 0 only do what rank 0 asks for. */
    bool runs_on_all_ranks;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit status */
};

/* Parses and runs a command or one of its methods; argv[0] is "run", "train", ... */
int command_main(const Command *c, int argc, char **argv);

/* A cursor over all rows of all sets. Begin with a zeroed one; command_next_row returns false after the last row.
 * `section` is never NULL. */
typedef struct CommandRow {
    const Option *row;
    void *to;
    const char *section;
    int i_set;
} CommandRow;
bool command_next_row(const Command *c, CommandRow *at);
/* Returns whether no row before this one has its section. */
bool command_begins_section(const Command *c, const CommandRow *row);
/* Returns whether the option never takes a value. */
bool command_row_is_flag(const Option *row);
/* Returns whether the option always takes a value: --key=VALUE or --key VALUE. */
bool command_row_takes_value(const Option *row);

/* Appends the text of --help: examples, and the options that most users need. */
bool command_short_help(const Command *c, Buf *out);
/* Appends the text of --help-all. */
bool command_help(const Command *c, Buf *out);
/* Appends a line for each method of a command that has methods. */
bool command_put_methods(Buf *out, const Command *c);
/* Appends a line of the list of commands, wrapped to CLI_WIDTH. */
bool command_put_summary(Buf *out, const char *name, const char *summary);
/* Appends the section OPTIONS of man/forerun.1. */
bool command_man(const Command *const *commands, Buf *out);
/* Writes the man pages of all commands and methods as FOLDER/forerun-NAME.1. */
int command_man_pages(const Command *const *commands, const char *folder, fr_error *err);
/* Appends the completions for a shell: bash, zsh or fish. */
bool command_completions(const Command *const *commands, const char *shell, Buf *out);

/* What goes before the file of a draft model, unless it is a learned drafter. */
#define COMMAND_DRAFT_MODEL "sps:model="

/* An option of another program (synonyms.c). */
typedef struct Synonym {
    const char *word;   /* without its dashes */
    const char *key;    /* the option here; NULL: there is none */
    const char *prefix; /* what goes before its value; NULL: nothing */
    const char *answer; /* what to do instead, if key is NULL */
} Synonym;
/* Returns the entry of a word of n bytes; NULL: there is none. */
const Synonym *command_synonym(const char *word, size_t n);

/* Append to a buffer, like printf and fputs. False: memory ran out. */
__attribute__((format(printf, 2, 3))) bool buf_printf(Buf *out, const char *format, ...);
bool buf_puts(Buf *out, const char *text);

/* ---- the files that a command line names --------------------------------------------------------------
 *
 * Before a command begins, they are checked: every output must be writable, and must not also be an input or another
 * output, by any name. Inputs are the values of OPT_FILE rows, outputs those of OPT_OUTPUT rows; Command.files adds
 * files that no row names: those of drafters, and outputs such as OUTPUT.log. */

/* Adds a file. `option` is its name in errors, such as "--output" or "IN.jsonl". Both texts are copied. False: memory
 * ran out. */
bool command_files_add(CommandFiles *files, const char *option, const char *path, bool is_output);

/* Adds the files that a drafter reads: the values of its OPT_FILE rows in "method:key=value,...". It is checked early
 * that they exist, because the drafter is opened only after the model, which may take minutes to load. A spec in any
 * other form is left to drafter_check. */
bool command_files_add_drafter(CommandFiles *files, const char *option, const char *spec);

/* Gathers and checks the files of a command, whose options have been parsed. */
int command_check_files(const Command *c, fr_error *err);

#endif
