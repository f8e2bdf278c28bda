/* convert_rig.h - a folder in which models are taken apart and converted, and compared with the result of `convert`. A
 * program defines DIR, its own folder, before it includes this. */
#ifndef TESTS_CONVERT_RIG_H
#define TESTS_CONVERT_RIG_H

#include "testing.h"

#include "cli_rig.h"
#include "gguf/gguf.h"

#define MODEL DIR "/model.gguf"
#define FOLDER DIR "/hub"
#define OUT DIR "/out.gguf"

/* Call convert_rig_begin before the tests of main. The other two are group setup and teardown, which make the folder
 * and remove it. */
void convert_rig_begin(const char *argv0, const char *dir);
int convert_rig_make_dir(void **state);
int convert_rig_drop_dir(void **state);

/* Removes FOLDER and OUT; converts the one into the other, or fails the test. */
void convert_rig_clear(void);
void convert_rig_convert(TensorType type);
/* Checks that FOLDER is refused with a message that contains `why`, and that OUT is not written. */
void convert_rig_expect_refused(const char *why);

/* Whether b, in `type`, has the tensors of a, which were stored as `between`. */
void convert_rig_compare_tensors(const Gguf *a, const Gguf *b, TensorType type, TensorType between);
void convert_rig_compare_vocabularies(const Gguf *a, const Gguf *b, bool same_scores);
/* Checks that a command of forerun, with "%s" for the model, writes the same for both. */
void convert_rig_same_output(const char *command, const char *model, const char *converted);

#endif
