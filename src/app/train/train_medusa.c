/* train_medusa.c - `forerun train medusa`. */
#include "app/train/train_heads.h"
#include "train/nets/net_medusa.h"

#include <stdio.h>

static HeadsSettings settings = HEADS_SETTINGS;
static MedusaNet net; /* the trainer's, whose shape follows the target */

static int open_medusa(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature, fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    const Hparams *h = &target.model->hparams;
    net = (MedusaNet){h->n_embd, h->n_vocab, settings.drafter.loss.n_steps, settings.n_blocks, settings.has_own_output,
                      settings.drafter.loss};
    snprintf(signature, n_signature, "medusa blocks=%d lm-head=%s", net.n_blocks, net.has_own_output ? "own" : "target");
    return train_drafter_open(out, &target, &medusa_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

const TrainMethod train_medusa = {
    .name = "medusa",
    .summary = "heads on the target's hidden state, each for one place ahead",
    .help = "Train Medusa's heads for a target: each guesses the token at one place ahead from the target's hidden state.\v"
            "Best trained on what the target says itself (forerun distill-data). How often the token of each rank is right on the texts "
            "that are held out is written into the file: the tree of --draft medusa:tree=static is made from it.\n\n"
            "  forerun train medusa -m target.gguf --data answers.jsonl -o medusa.gguf\n"
            "  forerun run -m target.gguf -p \"Once upon a time\" --draft medusa:file=medusa.gguf\n",
    .argp = &train_heads_argp,
    .settings = &settings,
    .needs_model = true,
    .open = open_medusa,
};
