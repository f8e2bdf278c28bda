/* train_hydra.c - `forerun train hydra`. */
#include "cli/train_heads.h"
#include "train/net_hydra.h"
#include "train/start_values.h"

#include <stdio.h>

static HeadsSettings settings = HEADS_SETTINGS;
static HydraNet net; /* the trainer's, whose shape follows the target */

static int open_hydra(Trainer **out, const TrainArgs *a, const Gguf *source, char *words, size_t n_words, fr_error *err) {
    FrozenTarget target = {0};
    int rc = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (rc) return rc;
    const Hparams *h = &target.model->hparams;
    net = (HydraNet){h->n_embd, h->n_vocab, settings.drafter.loss.n_steps, settings.n_blocks, settings.has_own_output,
                     start_token_std(target.embd, h->n_vocab, h->n_embd), settings.drafter.loss};
    snprintf(words, n_words, "hydra blocks=%d lm-head=%s", net.n_blocks, net.has_own_output ? "own" : "target");
    return train_drafter_open(out, &target, &hydra_net_class, &net, &settings.drafter, a, words, n_words, err);
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
