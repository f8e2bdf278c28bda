/* toy_trainer.h - the smallest thing that can be trained: a table of logits for each pair of neighbouring tokens. */
#ifndef TESTS_TOY_TRAINER_H
#define TESTS_TOY_TRAINER_H

#include "train/nets/trainer.h"

/* Opens with logits zero; write() puts the table as raw float32 into the file. Fails the test without memory. */
Trainer *toy_trainer_open(int32_t n_vocab);

#endif
