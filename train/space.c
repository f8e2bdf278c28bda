/* space.c - `forerun train space`: mask tokens for a target that stays as it is. */
#include "train/methods.h"
#include "draft/learned/learned_files.h"
#include "train/nets.h"
#include "train/drafter_trainer.h"

#include <math.h>
#include <stdio.h>

typedef struct SpaceSettings {
    DrafterSettings drafter;
    int32_t n_blocks;
} SpaceSettings;

static SpaceSettings settings = {.drafter.loss.n_steps = 3};
static SpaceNet net; /* used by the trainer; its shape follows the target */

static const Option option_table[] = {
    {.key = "blocks",
     OPT_INT(SpaceSettings, n_blocks, 0, SPACE_MAX_BLOCKS),
     .section = "The drafter",
     .default_value = "1",
     .help = "residual blocks after the target's hidden state at each mask; 0: only the masks are trained"},
    {.key = NULL},
};

static int open_space(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                      fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    net = (SpaceNet){.n_blocks = settings.n_blocks};
    if (!status) net.loss = train_drafter_loss(&settings.drafter, &target, true);
    if (!status) status = frozen_load_layers(&target, &net.target, err);
    if (status) {
        frozen_close(&target);
        return status;
    }
    const Hparams *h = &target.model->hparams;
    net.V = h->n_vocab;
    net.mask_std = 1 / (start_token_std(target.embd, h->n_vocab, h->n_embd) * sqrt((double)h->n_embd));
    snprintf(signature, n_signature, "space blocks=%d", net.n_blocks);
    return train_drafter_open(out, &target, &space_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) { return train_drafter_check(&settings.drafter, err); }

const TrainMethod train_space = {
    .name = "space",
    .summary = "mask tokens that the target itself reads, each of which predicts one place ahead",
    .about = "Train SPACE's mask tokens for a target, whose weights stay as they are: it reads a group of masks after "
             "a token and predicts the token at one place ahead at each.",
    .notes = "Best trained on the target's own answers (forerun distill-data). Derivatives run through the whole "
             "target, so a step costs several forwards of it: a batch of 4 is enough. Targets of the architectures "
             "llama and qwen2.",
    .examples = "  forerun train space -m t.gguf --data answers.jsonl -o space.gguf --batch 4\n"
                "  forerun run -m t.gguf -p Once --draft space:file=space.gguf --tree-budget 16\n",
    .sets = (const OptionSet[]){{train_steps_options, &settings.drafter},
                                {train_drafter_options, &settings.drafter},
                                {train_head_tokens_options, &settings.drafter},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_space,
};
