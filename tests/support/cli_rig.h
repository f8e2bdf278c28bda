/* cli_rig.h - runs the program in tests, as a user would. */
#ifndef TESTS_CLI_RIG_H
#define TESTS_CLI_RIG_H

#include "testing.h"

/* Sets the program and a folder for files, both beside the test program argv[0]. Call it first. */
void cli_rig_begin(const char *argv0);
const char *cli_rig_folder(void);
/* Runs "forerun ARGS" in a shell; `text` is what it printed on standard output. Returns its exit status. */
int cli_run(const char *args, char *text, size_t size);
/* Fails unless it exits with `status` and `fragment` is part of its standard output or standard error. */
void cli_expect(const char *args, int status, const char *fragment);

#endif
