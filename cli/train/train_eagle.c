/* train_eagle.c - `forerun train eagle`: one layer that predicts hidden states from states and tokens. */
#include "cli/train/train_info.h"
#include "cli/train/train_unroll.h"
#include "train/nets/net_eagle.h"

typedef struct EagleSettings {
    UnrollSettings unroll;
    InfoSettings info;
} EagleSettings;

static EagleSettings settings = {.unroll.drafter.loss.n_steps = 3};
static UnrollNet net; /* used by the trainer; its shape follows the target */

static const Option option_table[] = {
    {.key = "noise",
     OPT_REAL(EagleSettings, unroll.drafter.noise, 0, 100),
     .section = "The drafter",
     .default_value = "0",
     .help = "while training, add uniform noise from -X to X to the target's hidden states that it reads; the paper "
             "uses 0.1"},
    {.key = NULL},
};

static int open_eagle(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                      fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (!status) {
        net = (UnrollNet){.layer = train_unroll_shape("eagle", &target, &settings.unroll),
                          .info = train_info_shape("eagle", &target, settings.info.rank),
                          .loss = settings.unroll.drafter.loss};
        net.layer.fuses_each_step = true;
        train_unroll_set_confidence(&net, &settings.unroll);
        status = train_info_check(&net.info, err);
    }
    if (status) {
        frozen_close(&target);
        return status;
    }
    snprintf(signature, n_signature, "eagle");
    train_info_signature(&net.info, signature, n_signature);
    return train_unroll_open(out, &target, &eagle_net_class, &net, &settings.unroll, &net.layer, a, signature,
                             n_signature, err);
}

static int check(fr_error *err) { return train_drafter_check(&settings.unroll.drafter, err); }

const TrainMethod train_eagle = {
    .name = "eagle",
    .summary = "one layer that predicts the target's next hidden states, given each token",
    .about = "Train EAGLE's layer for a target: from the hidden state of a token and the token after it, it predicts "
             "the next hidden state, and "
             "continues from its own prediction.",
    .notes = "--steps-ahead is the number of steps for which it learns to do that (by default 3, as in HASS); with 1 "
             "it only ever sees the target's own "
             "states: EAGLE as published, with --noise 0.1. Best trained on the target's own answers (forerun "
             "distill-data). --rank adds Lyanna's "
             "token info to the logits, which costs memory for a table and a row of it for each token of a draft (see "
             "train lyanna).",
    .examples = "  forerun train eagle -m target.gguf --data answers.jsonl -o eagle.gguf\n"
                "  forerun run -m target.gguf -p \"Once upon a time\" --draft eagle:file=eagle.gguf\n",
    .sets = (const OptionSet[]){{train_drafter_options, &settings.unroll.drafter},
                                {train_unroll_options, &settings.unroll},
                                {train_info_options, &settings.info},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_eagle,
};
