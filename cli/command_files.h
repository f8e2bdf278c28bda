/* command_files.h - the files that a command line names: what is checked before a command begins.
 *
 * Every output can be written, and none is also an input or a second output, under whatever name. Inputs are the values
 * of OPT_FILE rows, outputs those of OPT_OUTPUT rows; Command.files adds what no row names: the files of drafters, and
 * outputs such as OUTPUT.log. */
#ifndef APP_COMMAND_FILES_H
#define APP_COMMAND_FILES_H

#include "cli/command.h"

/* Adds a file to the list; `option` is how errors name it: "--output", "IN.jsonl". Both texts are copied. False: no
 * memory. */
bool command_files_add(CommandFiles *files, const char *option, const char *path, bool is_output);

/* Adds the files that a drafter reads: the values of its OPT_FILE rows in "method:key=value,...". They must exist,
 * because a drafter is opened only after the model, which may take minutes to load. What is not written in this form is
 * left to drafter_check. */
bool command_files_add_drafter(CommandFiles *files, const char *option, const char *spec);

/* For a parsed command line. FR_ERR_ARGUMENT: an output is also an input or another output. */
int command_check_files(const Command *c, fr_error *err);

#endif
