/* small_models.h - small random models of every architecture, with SMALL_MODELS_VOCAB tokens: for tests that run all of them
 * through the engine. */
#ifndef TESTS_SMALL_MODELS_H
#define TESTS_SMALL_MODELS_H

#include "random_model.h"

enum { SMALL_MODELS_VOCAB = 300 };

extern const RandomModel small_models[];
extern const int n_small_models;

#endif
