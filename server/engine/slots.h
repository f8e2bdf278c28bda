/* slots.h - the places in which requests of a model run, as llama.cpp's server has them, and what is saved of them.
 *
 * All slots of all models are counted through. A slot remembers the tokens of the request that ran there last, by which
 * its keys and values are found in the prefix cache of the engine. Only the engine thread calls these functions, and,
 * before it starts and after it has ended, the thread that opens and closes the models. */
#ifndef SERVER_ENGINE_SLOTS_H
#define SERVER_ENGINE_SLOTS_H

#include "server/engine/generation.h"

/* Chooses a free slot for a request that begins to run, and returns its number: the one that the client asks for; else
 * the one whose tokens have the longest beginning in common with the prompt, if that is half of the prompt; else the
 * one that was used least recently. */
int slot_begin(ServedModel *m, const Generation *g);
/* Frees the slot of a request that has ended, before the request is closed. */
void slot_end(ServedModel *m, const Generation *g);

typedef enum SlotActionKind { SLOT_SAVE, SLOT_RESTORE, SLOT_ERASE } SlotActionKind;

/* What is to be done with a slot, and how it went. */
typedef struct SlotAction {
    SlotActionKind kind;
    ServedModel *model;
    int slot;         /* its number */
    void *data;       /* what was saved, malloc'ed, or what is restored */
    size_t n_bytes;   /* of data */
    int64_t n_tokens; /* that were saved, restored or erased */
    bool is_busy;     /* a request runs in the slot, and nothing was done */
    int status;
    fr_error error;
} SlotAction;

/* Runs an action, for engine_thread_run. */
void slot_action_run(void *action);

/* ---- files -------------------------------------------------------------------------------------------------- */

/* Replaces a file by n bytes; and reads one, which is malloc'ed. */
int slot_file_write(const char *path, const void *data, size_t n, fr_error *err);
int slot_file_read(const char *path, void **data, size_t *n, fr_error *err);

/* Restores what prefix_folder_save left in a folder for this model. What cannot be used is reported on standard error
 * and passed over. */
void prefix_folder_restore(ServedModel *m, const char *folder);
/* Writes the whole prefix cache of the model to the folder, in files named by its fingerprint. */
void prefix_folder_save(ServedModel *m, const char *folder);

#endif
