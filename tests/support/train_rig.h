/* train_rig.h - runs `forerun train` and `forerun distill-data` in tests, in a folder of small files, and kills and
 * resumes runs. A program defines DIR, its own folder, before it includes this. */
#ifndef TESTS_TRAIN_RIG_H
#define TESTS_TRAIN_RIG_H

#include "cli_rig.h"

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#define VOCAB DIR "/vocab.gguf" /* a random model with 300 tokens */
#define DATA DIR "/data.jsonl"  /* 200 short texts */
#define OUT DIR "/out.gguf"

/* Empties the folder and writes VOCAB and DATA. */
int train_rig_make_files(const char *dir);
int train_rig_drop_files(const char *dir);

void train_rig_write(const char *path, const char *text);
bool train_rig_exists(const char *path);
/* Runs a command, which must succeed. */
void train_rig_shell(const char *command);
/* Line i of a JSONL file; the caller releases it. */
json_t *train_rig_line(const char *path, int i);

/* Starts "forerun ARGS" as a child that signals reach; its stderr goes to <dir>/stderr. */
pid_t train_rig_start(const char *dir, const char *args);
/* Interrupts it (Ctrl-C) as soon as the file exists, and waits for its end. */
void train_rig_interrupt(pid_t child, const char *file);
/* Kills "forerun ARGS" after longer and longer times and starts it again, with `again` if the file `left` exists,
 * until it finishes. Returns the number of kills. */
int train_rig_run_with_kills(const char *dir, const char *args, const char *left, const char *again);

#endif
