/* train_eagle.c - `forerun train eagle`. */
#include "app/train/train_info.h"
#include "app/train/train_unroll.h"
#include "train/nets/net_eagle.h"

typedef struct EagleSettings {
    UnrollSettings unroll;
    int32_t rank;
} EagleSettings;

static EagleSettings settings = {
    .unroll.drafter = {.type = TYPE_F16,
                       .loss = {.token_weight = 1, .hidden_weight = 1, .regression = REGRESSION_SMOOTH_L1, .n_steps = 3}}};
static UnrollNet net; /* the trainer's, whose shape follows the target */

enum { KEY_NOISE = 1600 };

static const struct argp_option option_table[] = {
    {"noise", KEY_NOISE, "X", 0, "while it learns, uniform noise from -X to X is added to the target's states that it reads (default 0; the "
     "paper: 0.1)", 6},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    EagleSettings *s = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &s->unroll;
        state->child_inputs[1] = &s->rank;
        return 0;
    case KEY_NOISE: s->unroll.drafter.noise = train_parse_real(state, "--noise", arg, 0, 100); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int open_eagle(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature, fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (!status) {
        net = (UnrollNet){train_unroll_shape("eagle", &target, &settings.unroll), train_info_shape("eagle", &target, settings.rank),
                          settings.unroll.drafter.loss};
        net.layer.fuses_each_step = true;
        status = train_info_check(&net.info, err);
    }
    if (status) {
        frozen_close(&target);
        return status;
    }
    snprintf(signature, n_signature, "eagle");
    train_info_signature(&net.info, signature, n_signature);
    return train_unroll_open(out, &target, &eagle_net_class, &net, &settings.unroll, &net.layer, a, signature, n_signature, err);
}

static const struct argp_child children[] = {{&train_unroll_argp, 0, NULL, 0}, {&train_info_argp, 0, NULL, 0}, {0}};
static const struct argp eagle_argp = {.options = option_table, .parser = parse, .children = children};

const TrainMethod train_eagle = {
    .name = "eagle",
    .summary = "one layer that guesses the target's next hidden states, told of each token",
    .help = "Train EAGLE's layer for a target: from the hidden state of a token and the token after it, it guesses the next hidden "
            "state, and goes on from its own guess.\v"
            "--steps-ahead is for how many steps it learns to do that (default 3, as in HASS); with 1 it only ever sees the "
            "target's own states: EAGLE as published, with --noise 0.1. --token-loss-weight and --hidden-loss-weight are both 1 unless told. Best trained on what the "
            "target says itself (forerun distill-data). --rank adds Lyanna's token info to the logits, which costs a draft a row of a "
            "table for each token it goes on from, and memory for the table (see train lyanna).\n\n"
            "  forerun train eagle -m target.gguf --data answers.jsonl -o eagle.gguf\n"
            "  forerun run -m target.gguf -p \"Once upon a time\" --draft eagle:file=eagle.gguf\n",
    .argp = &eagle_argp,
    .settings = &settings,
    .needs_model = true,
    .open = open_eagle,
};
