/* all_drafters.h - every drafting method with a small random target, for tests that check one promise for all
 * methods. */
#ifndef TESTS_ALL_DRAFTERS_H
#define TESTS_ALL_DRAFTERS_H

#define ALL_DRAFTERS_TARGET "build/all-target.gguf"
#define ALL_DRAFTERS_MODEL "build/all-model.gguf" /* the draft model of sps and its relatives */
#define ALL_DRAFTERS_OTHER "build/all-other.gguf" /* the same with another vocabulary */

enum { ALL_DRAFTERS_EMBD = 64, ALL_DRAFTERS_VOCAB = 300 };

/* Token i of a text that repeats itself and is in the index of rest. As a prompt it makes every method draft. */
#define ALL_DRAFTERS_TOKEN(i) (3 + (i) % 7 * 11)

/* A spec of each method, ending with NULL. all_drafters_write_files fails if a method of the program is missing. */
extern const char *const all_drafters[];

/* The methods whose weights are a file that `forerun train` makes, in the order of train_methods(); the list ends with
 * NULL. */
const char *const *trained_methods(void);

/* One more spec, which works only with this target: mtp drafts with a layer of the target's file. The method
 * `prediction` has no spec, because it proposes nothing unless the request has a prediction. */
#define ALL_DRAFTERS_NEXTN "build/all-nextn.gguf"
#define ALL_DRAFTERS_MTP "mtp"

/* Another one with a target of its own: mtp with an assistant, which reads the keys and values of a gemma4. */
#define ALL_DRAFTERS_GEMMA "build/all-gemma4.gguf"
#define ALL_DRAFTERS_ASSISTANT "mtp:file=build/all-assistant.gguf"

/* Writes the targets, and the files that the specs name. */
void all_drafters_write_files(void);
/* Writes only the drafter files, for another target of ALL_DRAFTERS_EMBD and ALL_DRAFTERS_VOCAB. */
void all_drafters_write_for(const char *target);

#endif
