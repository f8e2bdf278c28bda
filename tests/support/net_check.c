/* net_check.c - a random network on a random sequence, compared with finite differences tensor by tensor. */
#define TRAIN_DOUBLE
#include "net_check.h"

#include "base/rng.h"
#include "gradient_check.h"
#include "testing.h"
#include "train/net.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TENSORS = 64 };

/* A network with random weights, and a sequence of a random target. */
typedef struct Rig {
    const NetCase *c;
    int32_t n_tensors;
    NetTensor tensors[MAX_TENSORS];
    double *w[MAX_TENSORS], *dw[MAX_TENSORS];
    void *acts;
    int32_t *tokens;
    uint8_t *loss_mask;
    double *hidden, *embd, *head, *streams;
    TrainSequence seq;
    double weight;
} Rig;

static void *room(int64_t n, size_t each) {
    void *p = calloc((size_t)n, each);
    assert_non_null(p);
    return p;
}

static double *random_numbers(uint64_t seed, int64_t n, double size) {
    double *x = room(n, sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = size * (2 * rng_uniform(seed, RNG_TEST, (uint64_t)i, 0) - 1);
    return x;
}

static void open_rig(Rig *r, const NetCase *c, int32_t T, double weight) {
    *r = (Rig){.c = c, .n_tensors = c->class->n_tensors(c->net), .weight = weight};
    assert_true(r->n_tensors <= MAX_TENSORS);
    for (int32_t i = 0; i < r->n_tensors; i++) {
        r->tensors[i] = c->class->tensor(c->net, i);
        int64_t n = net_tensor_count(&r->tensors[i]);
        r->w[i] = random_numbers(100 + (uint64_t)i, n, 0.5);
        r->dw[i] = room(n, sizeof(double));
    }
    assert_non_null(r->acts = c->class->acts_open(c->net, T, NULL));
    r->tokens = room(T + 1, sizeof *r->tokens);
    r->loss_mask = room(T, sizeof *r->loss_mask);
    for (int32_t t = 0; t <= T; t++) r->tokens[t] = (t * t + t / 5) % c->V;
    for (int32_t t = 0; t < T; t++)
        r->loss_mask[t] = t % 7 != 1 && t % 7 != 2; /* two adjacent gaps: some chains stop early */
    r->hidden = random_numbers(1, (int64_t)T * c->C, 1);
    r->embd = random_numbers(2, (int64_t)c->V * c->C, 1);
    r->head = random_numbers(3, (int64_t)c->V * c->C, 1);
    r->streams = random_numbers(4, (int64_t)T * NET_CHECK_STREAMS * c->C, 1);
    r->seq = (TrainSequence){T, r->tokens, r->loss_mask, r->hidden, r->embd, r->head, r->streams, NULL, 0, 0};
}

static void close_rig(Rig *r) {
    for (int32_t i = 0; i < r->n_tensors; i++) free(r->w[i]), free(r->dw[i]);
    r->c->class->acts_close(r->acts);
    free(r->tokens), free(r->loss_mask), free(r->hidden), free(r->embd), free(r->head), free(r->streams);
}

static double loss(void *ctx) {
    Rig *r = ctx;
    TrainSums sums = {0};
    r->c->class->learn(r->c->net, r->w, NULL, r->acts, &r->seq, 0, &sums);
    return r->weight * sums.loss;
}

static TrainSums learn(Rig *r) {
    TrainSums sums = {0};
    r->c->class->learn(r->c->net, r->w, r->dw, r->acts, &r->seq, r->weight, &sums);
    return sums;
}

/* Returns the error of one tensor, tried at up to max_tried elements. */
static double error_of(Rig *r, int32_t i, int max_tried) {
    GradientVar var = {r->tensors[i].name, r->w[i], r->dw[i], net_tensor_count(&r->tensors[i])};
    return gradient_error(&var, loss, r, max_tried);
}

/* Returns the worst error over all tensors; *name becomes the name of the worst tensor. */
static double worst_error(Rig *r, int max_tried, const char **name) {
    double worst = -1;
    for (int32_t i = 0; i < r->n_tensors; i++) {
        double error = error_of(r, i, max_tried);
        if (error <= worst) continue;
        worst = error;
        *name = r->tensors[i].name;
    }
    return worst;
}

static void check_at(const NetCase *c, int32_t T, double weight, int max_tried) {
    Rig r;
    const char *name = "";
    open_rig(&r, c, T, weight);
    TrainSums sums = learn(&r);
    assert_true(sums.n > 0 && sums.loss > 0);
    double error = worst_error(&r, max_tried, &name);
    if (!(error < 1e-6)) fail_msg("%s, %d tokens: %s is wrong by %g", c->what, T, name, error);
    close_rig(&r);
}

void net_check_gradients(const NetCase *c) {
    check_at(c, 13, 0.7, 24);
    check_at(c, 190, 0.01, 2);
}

void net_check_wrong_signs(const NetCase *c) {
    Rig r;
    const char *name = "";
    open_rig(&r, c, 13, 0.7);
    learn(&r);
    double right = worst_error(&r, 3, &name); /* an error depends only on the gradient of its own tensor */
    for (int32_t i = 0; i < r.n_tensors; i++) {
        int64_t n = net_tensor_count(&r.tensors[i]);
        for (int64_t k = 0; k < n; k++) r.dw[i][k] = -r.dw[i][k];
        double error = error_of(&r, i, 3);
        if (!(error > 1) || !(right < error))
            fail_msg("%s: the sign of %s is flipped, but its error is %g, and that of %s was %g", c->what,
                     r.tensors[i].name, error, name, right);
        for (int64_t k = 0; k < n; k++) r.dw[i][k] = -r.dw[i][k];
    }
    close_rig(&r);
}

/* No step predicts at position 0, and none starts at the last one. So noise at the first position must act like another
 * hidden state there, and noise at the last position must have no effect. With noise everywhere the derivatives must be
 * right, too. */
void net_check_noise(const NetCase *c) {
    enum { T = 13 };
    Rig r;
    open_rig(&r, c, T, 0.7);
    double *noise = random_numbers(9, T * c->C, 0.3), *some = room(T * c->C, sizeof *some);
    double clean = loss(&r);
    r.seq.noise = some;
    assert_true(loss(&r) == clean);
    memcpy(some + (T - 1) * c->C, noise, (size_t)c->C * sizeof *some);
    assert_true(loss(&r) == clean);
    memset(some, 0, (size_t)(T * c->C) * sizeof *some);
    memcpy(some, noise, (size_t)c->C * sizeof *some);
    double noisy = loss(&r);
    for (int32_t k = 0; k < c->C; k++) r.hidden[k] += noise[k];
    r.seq.noise = NULL;
    assert_true(noisy != clean && loss(&r) == noisy);
    r.seq.noise = noise;
    learn(&r);
    const char *name = "";
    double error = worst_error(&r, 10, &name);
    if (!(error < 1e-6)) fail_msg("%s, with noise: %s is wrong by %g", c->what, name, error);
    free(noise), free(some);
    close_rig(&r);
}

void net_check_addition(const NetCase *c, const NetCase *without, int32_t n_added) {
    Rig r, other;
    open_rig(&r, c, 40, 0.7);
    open_rig(&other, without, 40, 0.7);
    assert_int_equal(other.n_tensors, r.n_tensors - n_added);
    double loss_without = learn(&other).loss;
    assert_true(learn(&r).loss > loss_without);
    for (int32_t i = 0; i < other.n_tensors; i++)
        assert_memory_equal(r.dw[i], other.dw[i], (size_t)net_tensor_count(&r.tensors[i]) * sizeof *r.dw[i]);
    for (int32_t i = other.n_tensors; i < r.n_tensors; i++) {
        double error = error_of(&r, i, 100);
        if (!(error < 1e-6)) fail_msg("%s: %s is wrong by %g", c->what, r.tensors[i].name, error);
    }
    close_rig(&r), close_rig(&other);
}

void net_check_mask(const NetCase *c) {
    Rig r;
    open_rig(&r, c, 13, 1);
    memset(r.loss_mask, 0, 13);
    TrainSums sums = learn(&r);
    assert_int_equal(sums.n, 0);
    assert_true(sums.loss == 0);
    for (int32_t i = 0; i < r.n_tensors; i++)
        for (int64_t k = 0; k < net_tensor_count(&r.tensors[i]); k++) assert_true(r.dw[i][k] == 0);
    r.loss_mask[9] = 1;
    double one = learn(&r).loss;
    r.tokens[11] = (r.tokens[11] + 1) % c->V; /* this token comes after everything that the position and its chains
                                               * read */
    for (int32_t k = 0; k < c->C; k++) r.hidden[10 * c->C + k] = r.streams[10 * NET_CHECK_STREAMS * c->C + k] = 5;
    double again = learn(&r).loss;
    if (one != again)
        fail_msg("%s: the loss at a position depends on what follows it: %.17g, %.17g", c->what, one, again);
    close_rig(&r);
}
