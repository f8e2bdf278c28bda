/* step_notes.h - for requests that want to see it: the tree that each step proposed, and what became of it. */
#ifndef SERVE_STEP_NOTES_H
#define SERVE_STEP_NOTES_H

#include "server/engine/generation.h"

/* Its request is open: notes the names of its drafts. The caller holds the lock of the mailbox. */
void step_notes_begin(Generation *g);
/* After a step of the engine: adds a StepRecord to `fresh` if the step added tokens. */
void step_notes_add(Generation *g);
/* Seconds of a token of plain decoding, by what its own forwards took, how much less T(n) says one row takes, and by what sampling took. */
double step_notes_plain_s(const Generation *g, const fr_stats *s);

#endif
