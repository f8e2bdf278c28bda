/* train_hydra.c - `forerun train hydra`. */
#include "app/train/train_heads.h"
#include "train/nets/net_hydra.h"
#include "train/nets/start_values.h"

#include <stdio.h>

static HeadsSettings settings = HEADS_SETTINGS;
static HydraNet net; /* the trainer's, whose shape follows the target */

static int open_hydra(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature, fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    const Hparams *h = &target.model->hparams;
    net = (HydraNet){h->n_embd, h->n_vocab, settings.drafter.loss.n_steps, settings.n_blocks, settings.has_own_output,
                     start_token_std(target.embd, h->n_vocab, h->n_embd), settings.drafter.loss};
    snprintf(signature, n_signature, "hydra blocks=%d lm-head=%s", net.n_blocks, net.has_own_output ? "own" : "target");
    return train_drafter_open(out, &target, &hydra_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

const TrainMethod train_hydra = {
    .name = "hydra",
    .summary = "heads on the target's hidden state and the tokens guessed since, each for one place ahead",
    .help = "Train Hydra's heads for a target: each guesses the token at one place ahead, from the target's hidden state and the tokens "
            "that the heads before it guessed.\v"
            "Best trained on what the target says itself (forerun distill-data).\n\n"
            "  forerun train hydra -m t.gguf --data answers.jsonl -o hydra.gguf\n"
            "  forerun run -m t.gguf -p Once --draft hydra:file=hydra.gguf\n",
    .argp = &train_heads_argp,
    .settings = &settings,
    .needs_model = true,
    .open = open_hydra,
};
