/* train_auto.h - a run of `forerun train auto`: its options, its files, and its first and last step. */
#ifndef CLI_TRAIN_TRAIN_AUTO_H
#define CLI_TRAIN_TRAIN_AUTO_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct AutoArgs {
    const char *prompts, *model, *output, *method;
    int32_t n_tokens, n_threads;
    double temperature, epochs;
    bool raw, replaces;
} AutoArgs;

enum { AUTO_PATH_BYTES = 4096 };
/* The files beside OUTPUT. */
enum { AUTO_PROMPTS, AUTO_HELD_OUT, AUTO_ANSWERS, AUTO_MEASURED, AUTO_CHECKPOINT, AUTO_LOG, AUTO_N_BESIDE };

/* A prompt as a JSON line for distill-data, and the same for bench. */
typedef struct AutoPrompt {
    uint64_t hash;
    json_t *question, *test;
    bool is_held_out;
} AutoPrompt;

typedef struct Auto {
    const AutoArgs *args;
    char paths[AUTO_N_BESIDE][AUTO_PATH_BYTES];
    char spec[AUTO_PATH_BYTES + 64]; /* the drafter as a value of --draft */
    AutoPrompt *prompts;             /* [n_prompts], all different */
    size_t n_prompts, n_held_out;
    bool chat;
    int32_t length;   /* of the sequences that the drafter is trained with */
    json_t *settings; /* what determines an answer: its "answered_by" */
} Auto;

/* Reads the prompts and holds some of them out, refuses a target that cannot be trained for and answers that were
 * generated with other settings, and writes the prompts (train_auto_prompts.c). */
int auto_prepare(Auto *a, fr_error *err);
/* Returns whether other programs disturbed the measurement, so that it is repeated (train_auto_result.c). */
bool auto_is_disturbed(const Auto *a);
/* Prints whether the drafter pays according to the measurement, and what to do (train_auto_result.c). */
int auto_print_result(const Auto *a, fr_error *err);

#endif
