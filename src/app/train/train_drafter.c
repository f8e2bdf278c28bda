#include "app/train/train_drafter.h"

#include <string.h>

enum { KEY_STEPS_AHEAD = 1100, KEY_LABELS, KEY_WORDS, KEY_STATE, KEY_DRAFTER_TYPE };

static const struct argp_option option_table[] = {
    {NULL, 0, NULL, 0, "The drafter:", 6},
    {"steps-ahead", KEY_STEPS_AHEAD, "N", 0, "tokens it learns to guess one after the other, 1 to 8 (default: lyanna and eagle 3, medusa and "
     "hydra 4, redrafter 5)", 6},
    {"labels", KEY_LABELS, "soft|hard", 0, "what it learns: the target's distribution of each token (soft, the default), or the tokens of the "
     "data (hard)", 6},
    {"token-loss-weight", KEY_WORDS, "X", 0, "weight of the loss of its tokens (default 1)", 6},
    {"hidden-loss-weight", KEY_STATE, "X", 0, "weight of the loss of its hidden states against the target's: lyanna and eagle (default 1)", 6},
    {"type", KEY_DRAFTER_TYPE, "TYPE", 0, "of the matrices in the file: f16 (default), f32 or q8_0", 6},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    DrafterSettings *s = state->input;
    switch (key) {
    case KEY_STEPS_AHEAD: s->loss.n_steps = (int32_t)train_parse_int(state, "--steps-ahead", arg, 1, 8); return 0;
    case KEY_LABELS:
        s->loss.hard_labels = strcmp(arg, "hard") == 0;
        if (!s->loss.hard_labels && strcmp(arg, "soft") != 0) argp_error(state, "--labels: '%s' is neither soft nor hard", arg);
        return 0;
    case KEY_WORDS: s->loss.token_weight = train_parse_real(state, "--token-loss-weight", arg, 0, 1e6); return 0;
    case KEY_STATE: s->loss.hidden_weight = train_parse_real(state, "--hidden-loss-weight", arg, 0, 1e6); return 0;
    case KEY_DRAFTER_TYPE: s->type = train_parse_type(state, arg); return 0;
    case ARGP_KEY_END:
        if (!(s->loss.token_weight > 0 || s->loss.hidden_weight > 0)) argp_error(state, "with --token-loss-weight 0 and --hidden-loss-weight 0 there is nothing to learn");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp train_drafter_argp = {.options = option_table, .parser = parse};

int train_drafter_open(Trainer **out, FrozenTarget *target, const NetClass *class, const void *net, const DrafterSettings *s,
                       const TrainArgs *a, char *signature, size_t n_signature, fr_error *err) {
    size_t n = strlen(signature);
    snprintf(signature + n, n_signature - n, " target=%016llx steps-ahead=%d labels=%s token-loss-weight=%.17g hidden-loss-weight=%.17g threads=%d",
             (unsigned long long)drafter_target_fingerprint(target->model), s->loss.n_steps,
             s->loss.hard_labels ? "hard" : "soft", s->loss.token_weight, s->loss.hidden_weight, a->n_threads);
    n = strlen(signature);
    if (s->noise > 0) snprintf(signature + n, n_signature - n, " noise=%.17g", s->noise);
    const DrafterTrainerOptions o = {.class = class, .net = net, .max_length = a->data.length, .type = s->type,
                                     .seed = a->loop.seed, .noise = s->noise, .n_threads = a->n_threads};
    return drafter_trainer_open(out, target, &o, err);
}
