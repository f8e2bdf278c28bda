/* train_hydra.c - `forerun train hydra`: heads that also read the tokens predicted before them. */
#include "cli/train/train_heads.h"
#include "train/nets/net_hydra.h"
#include "train/nets/start_values.h"

#include <stdio.h>

static HeadsSettings settings = HEADS_SETTINGS;
static HydraNet net; /* used by the trainer; its shape follows the target */

static int open_hydra(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                      fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    const Hparams *h = &target.model->hparams;
    net = (HydraNet){h->n_embd,
                     h->n_vocab,
                     settings.drafter.loss.n_steps,
                     settings.n_blocks,
                     settings.has_own_output,
                     start_token_std(target.embd, h->n_vocab, h->n_embd),
                     settings.drafter.loss};
    snprintf(signature, n_signature, "hydra blocks=%d lm-head=%s", net.n_blocks, net.has_own_output ? "own" : "target");
    return train_drafter_open(out, &target, &hydra_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) { return train_drafter_check(&settings.drafter, err); }

const TrainMethod train_hydra = {
    .name = "hydra",
    .summary = "heads on the target's hidden state and the tokens predicted so far, each for one place ahead",
    .about = "Train Hydra's heads for a target: each predicts the token at one place ahead, from the target's hidden "
             "state and the tokens that the "
             "heads before it predicted.",
    .notes = "Best trained on the target's own answers (forerun distill-data).",
    .examples = "  forerun train hydra -m t.gguf --data answers.jsonl -o hydra.gguf\n"
                "  forerun run -m t.gguf -p Once --draft hydra:file=hydra.gguf\n",
    .sets = (const OptionSet[]){{train_drafter_options, &settings.drafter},
                                {train_heads_options, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_hydra,
};
