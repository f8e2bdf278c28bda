/* toy_trainer.h - the smallest model that can be trained: a table of logits for each pair of neighbouring tokens. */
#ifndef TESTS_TOY_TRAINER_H
#define TESTS_TOY_TRAINER_H

#include "train/drafter_trainer.h"

/* All logits begin as zero; write() puts the table into the file as raw float32. Fails the test if memory runs out. */
Trainer *toy_trainer_open(int32_t n_vocab);

#endif
