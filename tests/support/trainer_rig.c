/* trainer_rig.c - a short training on one batch of random tokens. */
#include "trainer_rig.h"

#include "testing.h"
#include "model_rig.h"

#include "train/optimizer.h"

#include <stdlib.h>

enum { UNSEEN = 10 }; /* the first places of each sequence, which are not in the loss */

void trainer_rig_run(Trainer *t, const TrainerRun *run) {
    int32_t n = run->n_sequences * run->length, n_tokens = run->n_sequences * (run->length + 1);
    int32_t *tokens = calloc((size_t)n_tokens, sizeof *tokens);
    uint8_t *loss_mask = calloc((size_t)n, 1);
    AdamW adamw;
    fr_error err;
    double first = 0, last = 0;
    assert_true(tokens && loss_mask);
    rig_tokens(5, run->n_vocab, tokens, n_tokens);
    for (int32_t i = 0; i < n; i++) loss_mask[i] = i % run->length >= UNSEEN;
    const AdamWOptions options = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const TrainBatch batch = {run->n_sequences, run->length, tokens, loss_mask, 0};
    if (adamw_open(&adamw, &options, t, &err)) fail_msg("%s", err.message);
    for (int step = 0; step < run->n_steps; step++) {
        TrainSums sums = {0};
        trainer_zero_gradients(t);
        if (t->class->learn(t, &batch, 1.0 / 120, &sums, &err)) fail_msg("%s", err.message);
        adamw_step(&adamw, t, run->rate, 1);
        last = sums.loss / (double)sums.n;
        if (step == 0) first = last;
    }
    if (!(last < 0.9 * first)) fail_msg("the loss went from %g to %g", first, last);
    if (t->class->write(t, run->path, NULL, &err)) fail_msg("%s", err.message);
    adamw_close(&adamw);
    free(tokens), free(loss_mask);
}

void trainer_rig_weights(Trainer *t, float **weights, int32_t max) {
    int32_t n = t->class->n_params(t);
    assert_true(n <= max);
    for (int32_t i = 0; i < n; i++) weights[i] = t->class->param(t, i)->value;
}
