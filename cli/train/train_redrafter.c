/* train_redrafter.c - `forerun train redrafter`: a recurrent head on the target's hidden state. */
#include "cli/train/train_drafter.h"
#include "cli/train/train_info.h"
#include "train/nets/net_redrafter.h"
#include "train/nets/start_values.h"

#include <string.h>

typedef struct RedrafterSettings {
    DrafterSettings drafter;
    InfoSettings info;
    int32_t n_blocks;
    bool starts_at_embedding;
} RedrafterSettings;

static RedrafterSettings settings = {.drafter.loss.n_steps = 5};
static RedrafterNet net; /* used by the trainer; its shape follows the target */

static const Option option_table[] = {
    {.key = "blocks",
     OPT_INT(RedrafterSettings, n_blocks, 0, 16),
     .section = "The drafter",
     .default_value = "2",
     .help = "residual blocks of its head"},
    {.key = "start",
     OPT_CHOICE(RedrafterSettings, starts_at_embedding, "zero", "embedding"),
     .default_value = "zero",
     .help = "initial state: one step of the recurrence from zeros and the pending token, as in the released code "
             "(zero); or that token's embedding, as "
             "in the paper (embedding)"},
    {.key = NULL},
};

static int open_redrafter(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                          fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (!status) {
        const Hparams *h = &target.model->hparams;
        net = (RedrafterNet){.C = h->n_embd,
                             .V = h->n_vocab,
                             .n_blocks = settings.n_blocks,
                             .info = train_info_shape("redrafter", &target, settings.info.rank),
                             .starts_at_embedding = settings.starts_at_embedding,
                             .token_std = start_token_std(target.embd, h->n_vocab, h->n_embd),
                             .loss = settings.drafter.loss};
        status = train_info_check(&net.info, err);
    }
    if (status) {
        frozen_close(&target);
        return status;
    }
    snprintf(signature, n_signature, "redrafter blocks=%d start=%s", net.n_blocks,
             net.starts_at_embedding ? "embedding" : "zero");
    train_info_signature(&net.info, signature, n_signature);
    return train_drafter_open(out, &target, &redrafter_net_class, &net, &settings.drafter, a, signature, n_signature,
                              err);
}

static int check(fr_error *err) { return train_drafter_check(&settings.drafter, err); }

const TrainMethod train_redrafter = {
    .name = "redrafter",
    .summary = "a recurrent head on the target's hidden state, whose candidates a beam search finds",
    .about = "Train ReDrafter's recurrent head for a target: it predicts token after token, each from those it "
             "predicted before.",
    .notes = "With --labels soft, the default, it learns the target's distribution of each token: on the target's own "
             "answers (forerun distill-data) "
             "that is the paper's distillation. --labels hard learns only the tokens of the data. --rank adds Lyanna's "
             "token info to the logits (see "
             "train lyanna).",
    .examples = "  forerun train redrafter -m t.gguf --data answers.jsonl -o redrafter.gguf\n"
                "  forerun train redrafter -m t.gguf --data answers.jsonl -o paper.gguf --start embedding\n"
                "  forerun run -m t.gguf -p Once --draft redrafter:file=redrafter.gguf,width=4\n",
    .sets = (const OptionSet[]){{train_drafter_options, &settings.drafter},
                                {train_info_options, &settings.info},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_redrafter,
};
