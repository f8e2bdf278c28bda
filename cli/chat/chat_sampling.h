/* chat_sampling.h - the sampling of a conversation, where the user does not give it. */
#ifndef CHAT_CHAT_SAMPLING_H
#define CHAT_CHAT_SAMPLING_H

#include "forerun.h"

/* Marks everything but the seed as not given. Before the command line is read. */
void chat_sampling_begin(fr_sampling *s);
/* Replaces what is still marked by what the model recommends, or else by the defaults. */
void chat_sampling_complete(fr_sampling *s, const fr_model *model);

#endif
