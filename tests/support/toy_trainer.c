/* toy_trainer.c - a bigram model as a trainer: small enough that a test of the loop runs thousands of steps. It also
 * checks that the loop passes each sequence of a run once, in order. */
#include "toy_trainer.h"

#include "testing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Toy {
    Trainer base;
    int32_t n_vocab;
    int64_t next_sequence; /* number that the next batch must begin with; -1: any */
    Param table;           /* [n_vocab][n_vocab] logits of the next token */
    Gradients gradients;
} Toy;

typedef struct Task {
    const Toy *toy;
    const TrainBatch *batch;
    double weight;
} Task;

static int32_t n_params(const Trainer *t) { return (void)t, 1; }
static Param *param(Trainer *t, int32_t i) { return (void)i, &((Toy *)t)->table; }
static Gradients *gradients(Trainer *t) { return &((Toy *)t)->gradients; }

/* grads: NULL if there are none. */
static void learn_pair(const Toy *toy, int32_t token, int32_t next, double weight, float *grads, TrainSums *sums) {
    int32_t n = toy->n_vocab, best = 0;
    const float *logits = toy->table.value + (int64_t)token * n;
    double sum = 0;
    for (int32_t v = 0; v < n; v++) {
        sum += exp((double)logits[v]);
        if (logits[v] > logits[best]) best = v;
    }
    for (int32_t v = 0; v < n && grads; v++)
        grads[(int64_t)token * n + v] += (float)(weight * (exp((double)logits[v]) / sum - (v == next)));
    sums->loss += log(sum) - (double)logits[next];
    sums->n++;
    sums->right[0] += best == next;
    sums->of[0]++;
}

static void learn_sequence(void *ctx, int i_run, int32_t i, float *grads, TrainSums *sums) {
    (void)i_run;
    const Task *task = ctx;
    const TrainBatch *b = task->batch;
    sums->n_heads = 1;
    for (int32_t k = 0; k < b->length; k++) {
        const int32_t *at = b->tokens + (int64_t)i * (b->length + 1) + k;
        if (b->loss_mask[(int64_t)i * b->length + k]) learn_pair(task->toy, at[0], at[1], task->weight, grads, sums);
    }
}

static int learn(Trainer *t, const TrainBatch *b, double weight, TrainSums *sums, fr_error *err) {
    Toy *toy = (Toy *)t;
    if (weight != 0) {
        if (toy->next_sequence >= 0) assert_int_equal(b->i_sequence, toy->next_sequence);
        toy->next_sequence = b->i_sequence + b->n_sequences;
    }
    Task task = {toy, b, weight};
    return gradients_run(&toy->gradients, b->n_sequences, learn_sequence, &task, weight != 0, sums, err);
}

static int write_table(const Trainer *t, const char *path, const DrafterTraining *record, fr_error *err) {
    (void)record;
    const Toy *toy = (const Toy *)t;
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(toy->table.value, sizeof(float), (size_t)toy->table.n, f) != (size_t)toy->table.n || fclose(f))
        return error_set(err, FR_ERR_IO, "%s: cannot be written", path);
    return FR_OK;
}

static void close_toy(Trainer *t) {
    Toy *toy = (Toy *)t;
    gradients_close(&toy->gradients);
    free(toy->table.value);
    free(toy->table.grad);
    free(toy);
}

Trainer *toy_trainer_open(int32_t n_vocab) {
    static const TrainerClass class = {"toy", n_params, param, gradients, learn, write_table, close_toy};
    Toy *toy = calloc(1, sizeof *toy);
    assert_non_null(toy);
    int64_t n = (int64_t)n_vocab * n_vocab;
    *toy = (Toy){.base = {&class},
                 .n_vocab = n_vocab,
                 .next_sequence = -1,
                 .table = {"toy.table", n, NULL, NULL, true, 0}};
    toy->table.value = calloc((size_t)n, sizeof(float));
    toy->table.grad = calloc((size_t)n, sizeof(float));
    assert_true(toy->table.value && toy->table.grad);
    assert_int_equal(gradients_open(&toy->gradients, toy->table.grad, n, 1, NULL), FR_OK);
    return &toy->base;
}
