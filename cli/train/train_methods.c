/* train_methods.c - the list of what `forerun train` can train. */
#include "cli/train/train_methods.h"

#include <string.h>

static const TrainMethod *const methods[] = {&train_target, &train_lyanna, &train_eagle, &train_redrafter,
                                             &train_medusa, &train_hydra,  &train_space, NULL};

const TrainMethod *const *train_methods(void) { return methods; }

const TrainMethod *train_method_find(const char *name) {
    for (const TrainMethod *const *m = methods; *m; m++)
        if (strcmp((*m)->name, name) == 0) return *m;
    return NULL;
}
