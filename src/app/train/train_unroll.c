#include "app/train/train_unroll.h"

#include "train/nets/start_values.h"

#include <string.h>

enum { KEY_FF = 1300, KEY_REGRESSION };

static const struct argp_option option_table[] = {
    {"ff", KEY_FF, "N", 0, "width of the layer's feed-forward (default: the target's)", 6},
    {"regression", KEY_REGRESSION, "smooth-l1|mse", 0, "how hidden states are compared (default smooth-l1)", 6},
    {0},
};

static const char *const regressions[] = {[REGRESSION_MSE] = "mse", [REGRESSION_SMOOTH_L1] = "smooth-l1"};

static error_t parse(int key, char *arg, struct argp_state *state) {
    UnrollSettings *s = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &s->drafter; return 0;
    case KEY_FF: s->n_ff = (int32_t)train_parse_int(state, "--ff", arg, 1, 1 << 18); return 0;
    case KEY_REGRESSION:
        s->drafter.loss.regression = strcmp(arg, "mse") == 0 ? REGRESSION_MSE : REGRESSION_SMOOTH_L1;
        if (strcmp(arg, regressions[s->drafter.loss.regression]) != 0)
            argp_error(state, "--regression: '%s' is neither smooth-l1 nor mse", arg);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = {{&train_drafter_argp, 0, NULL, 0}, {0}};
const struct argp train_unroll_argp = {.options = option_table, .parser = parse, .children = children};

UnrollShape train_unroll_shape(const char *method, const FrozenTarget *target, const UnrollSettings *s) {
    const Model *m = target->model;
    const Hparams *h = &m->hparams;
    return (UnrollShape){.method = method, .C = h->n_embd, .n_ff = s->n_ff ? s->n_ff : h->n_ff, .n_head = h->n_head,
                         .n_head_kv = h->n_head_kv, .head_dim = h->head_dim, .rms_eps = h->rms_eps, .rope = &m->ropes[0],
                         .n_steps = s->drafter.loss.n_steps, .fuses_token = true,
                         .fc_std = start_token_std(target->embd, h->n_vocab, h->n_embd),
                         .qk_start_anew = m->layers[h->n_layer - 1].q_norm != NULL};
}

int train_unroll_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net, const UnrollSettings *s,
                      const UnrollShape *shape, const TrainArgs *a, char *signature, size_t n_signature, fr_error *err) {
    size_t n = strlen(signature);
    snprintf(signature + n, n_signature - n, " ff=%d regression=%s", shape->n_ff, regressions[s->drafter.loss.regression]);
    return train_drafter_open(out, target, class, net, &s->drafter, a, signature, n_signature, err);
}
