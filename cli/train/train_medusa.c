/* train_medusa.c - `forerun train medusa`: heads that each predict one place ahead. */
#include "cli/train/train_heads.h"
#include "train/nets/net_medusa.h"

#include <stdio.h>

static HeadsSettings settings = HEADS_SETTINGS;
static MedusaNet net; /* used by the trainer; its shape follows the target */

static int open_medusa(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                       fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    const Hparams *h = &target.model->hparams;
    net = (MedusaNet){h->n_embd,
                      h->n_vocab,
                      settings.drafter.loss.n_steps,
                      settings.n_blocks,
                      settings.has_own_output,
                      settings.drafter.loss};
    snprintf(signature, n_signature, "medusa blocks=%d lm-head=%s", net.n_blocks,
             net.has_own_output ? "own" : "target");
    return train_drafter_open(out, &target, &medusa_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) { return train_drafter_check(&settings.drafter, err); }

const TrainMethod train_medusa = {
    .name = "medusa",
    .summary = "heads on the target's hidden state, each for one place ahead",
    .about =
        "Train Medusa's heads for a target: each predicts the token at one place ahead from the target's hidden state.",
    .notes = "Best trained on the target's own answers (forerun distill-data). The file records how often the token of "
             "each rank is right on the "
             "held-out texts; the tree of --draft medusa:tree=static is built from that.",
    .examples = "  forerun train medusa -m target.gguf --data answers.jsonl -o medusa.gguf\n"
                "  forerun run -m target.gguf -p \"Once upon a time\" --draft medusa:file=medusa.gguf\n",
    .sets = (const OptionSet[]){{train_drafter_options, &settings.drafter},
                                {train_heads_options, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_medusa,
};
