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
} Toy;

static int32_t n_params(const Trainer *t) { return (void)t, 1; }
static Param *param(Trainer *t, int32_t i) { return (void)i, &((Toy *)t)->table; }

static void learn_pair(Toy *toy, int32_t token, int32_t next, double weight, TrainSums *sums) {
    int32_t n = toy->n_vocab, best = 0;
    const float *logits = toy->table.value + (int64_t)token * n;
    float *grad = toy->table.grad + (int64_t)token * n;
    double sum = 0;
    for (int32_t v = 0; v < n; v++) {
        sum += exp((double)logits[v]);
        if (logits[v] > logits[best]) best = v;
    }
    for (int32_t v = 0; v < n && weight != 0; v++)
        grad[v] += (float)(weight * (exp((double)logits[v]) / sum - (v == next)));
    sums->loss += log(sum) - (double)logits[next];
    sums->n++;
    sums->right[0] += best == next;
    sums->of[0]++;
}

static int learn(Trainer *t, const TrainBatch *b, double weight, TrainSums *sums, fr_error *err) {
    (void)err;
    Toy *toy = (Toy *)t;
    sums->n_heads = 1;
    if (weight != 0) {
        if (toy->next_sequence >= 0) assert_int_equal(b->i_sequence, toy->next_sequence);
        toy->next_sequence = b->i_sequence + b->n_sequences;
    }
    for (int32_t s = 0; s < b->n_sequences; s++)
        for (int32_t i = 0; i < b->length; i++) {
            const int32_t *at = b->tokens + (int64_t)s * (b->length + 1) + i;
            if (b->loss_mask[(int64_t)s * b->length + i]) learn_pair(toy, at[0], at[1], weight, sums);
        }
    return FR_OK;
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
    free(toy->table.value);
    free(toy->table.grad);
    free(toy);
}

Trainer *toy_trainer_open(int32_t n_vocab) {
    static const TrainerClass class = {"toy", n_params, param, learn, write_table, close_toy};
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
    return &toy->base;
}
