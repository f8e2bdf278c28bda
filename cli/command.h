/* command.h - what a subcommand of `forerun` is, and what follows from its tables of options.
 *
 * A command names its tables (base/options.h) and the structs they fill. Parsing argv, --help, the OPTIONS section of
 * the man page and the shell completions all read those tables, so that an option is one row in one place.
 */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "base/options.h"

#include <stdio.h>

enum { CLI_WIDTH = 80 }; /* columns of --help */

/* Exit statuses of the program. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2, CLI_BUS_ERROR = 3 };

typedef struct CommandFiles CommandFiles; /* app/command_files.h */
typedef struct Command Command;
struct Command {
    const char *name;    /* "run"; of a method, "train lyanna" */
    const char *summary; /* one line for `forerun --help` */
    const char *about;   /* what it does: a paragraph or several */
    const OptionSet *sets;
    const Command *(*method)(
        int i); /* `forerun train METHOD`: each method is a command with options of its own; NULL after the last */
    bool (*list)(
        Buf *out);        /* optional: appends lists for --help after the options (drafters, rules); false: no memory */
    const char *notes;    /* optional: further paragraphs, after the lists */
    const char *examples; /* whole lines, each as it would be typed */
    void (*defaults)(void);           /* optional: fills what no row has a default for, before parsing */
    int (*check)(fr_error *err);      /* optional: checks that involve several options, after parsing */
    bool (*files)(CommandFiles *out); /* optional: adds files that no row names, such as OUTPUT.log; false: no memory */
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; returns an exit status */
};

/* Parses and runs, also with a method: argv[0] is "run", "train", ... */
int command_main(const Command *c, int argc, char **argv);

/* All rows of all sets, in order: begin with a zeroed cursor. `section` is never NULL. */
typedef struct CommandRow {
    const Option *row;
    void *to;
    const char *section;
    int i_set;
} CommandRow;
bool command_next_row(const Command *c, CommandRow *at);
/* Whether no row before this one has its section. */
bool command_begins_section(const Command *c, const CommandRow *row);
/* Whether the option stands without a value: -c, --color. */
bool command_row_is_flag(const Option *row);
/* Whether --key needs a value: --key=VALUE or --key VALUE. */
bool command_row_takes_value(const Option *row);

/* A line of the list of commands, broken so that it fits. */
bool command_put_summary(Buf *out, const char *name, const char *summary);

/* The generated section OPTIONS of man/forerun.1, and the completions of a shell (bash, zsh or fish). */
bool command_man(const Command *const *commands, Buf *out);
/* A man page of its own for a command, and those of all commands and methods as FOLDER/forerun-NAME.1. */
bool command_man_page(const Command *c, Buf *out);
int command_man_pages(const Command *const *commands, const char *folder, fr_error *err);
bool command_completions(const Command *const *commands, const char *shell, Buf *out);

/* printf into a buffer, and a string into it. False: no memory. */
__attribute__((format(printf, 2, 3))) bool buf_printf(Buf *out, const char *format, ...);
bool buf_puts(Buf *out, const char *text);

/* The files that a command line names: what is checked before a command begins.
 *
 * Every output can be written, and none is also an input or a second output, under whatever name. Inputs are the values
 * of OPT_FILE rows, outputs those of OPT_OUTPUT rows; Command.files adds what no row names: the files of drafters, and
 * outputs such as OUTPUT.log. */

/* Adds a file to the list; `option` is how errors name it: "--output", "IN.jsonl". Both texts are copied. False: no
 * memory. */
bool command_files_add(CommandFiles *files, const char *option, const char *path, bool is_output);

/* Adds the files that a drafter reads: the values of its OPT_FILE rows in "method:key=value,...". They must exist,
 * because a drafter is opened only after the model, which may take minutes to load. What is not written in this form is
 * left to drafter_check. */
bool command_files_add_drafter(CommandFiles *files, const char *option, const char *spec);

#endif
