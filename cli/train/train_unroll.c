/* train_unroll.c - the options that eagle and lyanna share, and the shape of their layer. */
#include "cli/train/train_unroll.h"

#include "train/nets/start_values.h"

#include <string.h>

static const char *const regressions[] = {[REGRESSION_MSE] = "mse", [REGRESSION_SMOOTH_L1] = "smooth-l1"};

const Option train_unroll_options[] = {
    {.key = "ff",
     OPT_INT(UnrollSettings, n_ff, 1, 1 << 18),
     .section = "The drafter",
     .default_help = "the target's",
     .help = "width of the layer's feed-forward"},
    {.key = "hidden-loss-weight",
     OPT_REAL(UnrollSettings, drafter.loss.hidden_weight, 0, 1e6),
     .default_value = "1",
     .help = "weight of the loss of the hidden states against the target's"},
    {.key = "regression",
     OPT_CHOICE(UnrollSettings, drafter.loss.regression, "smooth-l1", "mse"),
     .values = (const int32_t[]){REGRESSION_SMOOTH_L1, REGRESSION_MSE},
     .default_value = "smooth-l1",
     .help = "loss between hidden states"},
    {.key = "confidence",
     OPT_FLAG(UnrollSettings, has_confidence),
     .help = "also train a head that predicts from each state whether the best token will be accepted; drafts are then "
             "shorter where it is unsure"},
    {.key = NULL},
};

UnrollShape train_unroll_shape(const char *method, const FrozenTarget *target, const UnrollSettings *s) {
    const Model *m = target->model;
    const Hparams *h = &m->hparams;
    return (UnrollShape){.method = method,
                         .C = h->n_embd,
                         .n_ff = s->n_ff ? s->n_ff : h->n_ff,
                         .n_head = h->n_head,
                         .n_head_kv = h->n_head_kv,
                         .head_dim = h->head_dim,
                         .rms_eps = h->rms_eps,
                         .rope = &m->ropes[0],
                         .n_steps = s->drafter.loss.n_steps,
                         .fuses_token = true,
                         .fc_std = start_token_std(target->embd, h->n_vocab, h->n_embd),
                         .qk_start_anew = m->layers[h->n_layer - 1].q_norm != NULL};
}

void train_unroll_set_confidence(UnrollNet *net, const UnrollSettings *s) {
    net->confidence = (ConfidenceShape){.method = net->layer.method, .C = net->layer.C, .exists = s->has_confidence};
    net->loss.has_margins = s->has_confidence;
}

int train_unroll_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net,
                      const UnrollSettings *s, const UnrollShape *shape, const TrainArgs *a, char *signature,
                      size_t n_signature, fr_error *err) {
    size_t n = strlen(signature);
    snprintf(signature + n, n_signature - n, " ff=%d regression=%s%s", shape->n_ff,
             regressions[s->drafter.loss.regression], s->has_confidence ? " confidence=on" : "");
    return train_drafter_open(out, target, class, net, &s->drafter, a, signature, n_signature, err);
}
