/* redrafter.c - `forerun train redrafter`: a recurrent head on the target's hidden state. */
#include "train/methods.h"
#include "draft/learned/learned_files.h"
#include "train/import.h"
#include "train/nets.h"
#include "train/drafter_trainer.h"

#include <stdio.h>
#include <string.h>

typedef struct RedrafterSettings {
    DrafterSettings drafter;
    InfoSettings info;
    int32_t n_blocks; /* NOT_GIVEN */
    int start;        /* the index of the choice of --start, or NOT_GIVEN */
} RedrafterSettings;

enum { NOT_GIVEN = -1, USUAL_BLOCKS = 2 };

static RedrafterSettings settings = {.drafter.loss.n_steps = 5, .n_blocks = NOT_GIVEN, .start = NOT_GIVEN};
static RedrafterNet net; /* used by the trainer; its shape follows the target */

static const Option option_table[] = {
    {.key = "blocks",
     OPT_INT(RedrafterSettings, n_blocks, 0, REDRAFTER_MAX_BLOCKS),
     .section = "The drafter",
     .default_help = "those of --init; else 2",
     .help = "residual blocks of its head"},
    {.key = "start",
     OPT_CHOICE(RedrafterSettings, start, "zero", "embedding"),
     .default_help = "that of --init; else zero",
     .help = "initial state: one step of the recurrence from zeros and the pending token, as in the released code "
             "(zero); or that token's embedding, as "
             "in the paper (embedding)"},
    {.key = NULL},
};

/* Sets the shape of the network: that of the file of --init, which options must not contradict, or what was given. */
static int choose_shape(const char *init, const Model *target, fr_error *err) {
    static const char *const starts[] = {"zero", "embedding", NULL};
    int start = settings.start == NOT_GIVEN ? 0 : settings.start, status = FR_OK;
    net.n_blocks = settings.n_blocks == NOT_GIVEN ? USUAL_BLOCKS : settings.n_blocks;
    if (init) {
        DrafterFile f;
        status = drafter_file_open(&f, init, "redrafter", target, err);
        if (!status)
            status = drafter_file_int(&f, REDRAFTER_KEY_BLOCK_COUNT, 0, REDRAFTER_MAX_BLOCKS, &net.n_blocks, err);
        if (!status) status = drafter_file_choice(&f, REDRAFTER_KEY_START, starts, &start, err);
        drafter_file_close(&f);
    }
    net.starts_at_embedding = start == 1;
    const char *other = settings.n_blocks != NOT_GIVEN && settings.n_blocks != net.n_blocks ? "blocks"
                        : settings.start != NOT_GIVEN && settings.start != start            ? "start"
                                                                                            : NULL;
    if (status || !other) return status;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be continued with these options: its --%s is another; leave that option out", init,
                     other);
}

static int open_redrafter(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                          fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (!status) {
        const Hparams *h = &target.model->hparams;
        net = (RedrafterNet){.C = h->n_embd,
                             .V = h->n_vocab,
                             .info = train_info_shape("redrafter", &target, settings.info.rank),
                             .token_std = start_token_std(target.embd, h->n_vocab, h->n_embd),
                             .loss = train_drafter_loss(&settings.drafter, &target, false)};
        status = choose_shape(a->init, target.model, err);
        if (!status) status = train_info_check(&net.info, err);
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
    .sets = (const OptionSet[]){{train_steps_options, &settings.drafter},
                                {train_drafter_options, &settings.drafter},
                                {train_head_tokens_options, &settings.drafter},
                                {train_info_options, &settings.info},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_redrafter,
};

/* Recurrent Drafter as Apple's code writes it (recurrent_drafting/modeling_drafter.py).
 *
 *     rnn_w.weight [H][H], rnn_u.weight [H][H], rnn_u.bias [H]     s_t = SiLU(W E(x_t) + U s_{t-1} + b), s_0 = 0
 *     lm_head.<k>.linear.weight [2H][2H], .bias [2H]               the blocks
 *     lm_head.<n>.weight [V][2H]                                   the output
 *
 * Their blocks read [h ; s], ours [s ; h]. With P the exchange of the halves, f(P x) = P f'(x) holds for the blocks P A
 * P and P a and the output O P. Two kinds of checkpoints are refused: those with a projection before the blocks
 * (input_proj), which our drafter does not have, and those without a recurrence (rnn = false), which have no rnn_u. */

static int add_block(Import *x, int32_t k, int64_t n, fr_error *err) {
    char name[64], from[64];
    ImportTensor *t;
    snprintf(name, sizeof name, REDRAFTER_BLOCK ".weight", k);
    snprintf(from, sizeof from, "lm_head.%d.linear.weight", k);
    int status = import_add(x, name, from, n, n, &t, err);
    if (status) return status;
    t->rows = IMPORT_ROWS_SWAPPED;
    t->swaps_columns = true;
    snprintf(name, sizeof name, REDRAFTER_BLOCK ".bias", k);
    snprintf(from, sizeof from, "lm_head.%d.linear.bias", k);
    status = import_add(x, name, from, n, 0, &t, err);
    if (!status) t->swaps_columns = true;
    return status;
}

int import_plan_redrafter(Import *x, fr_error *err) {
    char from[64];
    int64_t h = x->target->hparams.n_embd;
    int32_t n_blocks = 0;
    for (; n_blocks < REDRAFTER_MAX_BLOCKS; n_blocks++) {
        snprintf(from, sizeof from, "lm_head.%d.linear.weight", n_blocks);
        if (!published_find(x->from, from)) break;
    }
    import_set_int(x, REDRAFTER_KEY_BLOCK_COUNT, n_blocks);
    import_set_text(x, REDRAFTER_KEY_START, "zero");
    int status = import_add(x, REDRAFTER_W ".weight", "rnn_w.weight", h, h, NULL, err);
    if (!status) status = import_add(x, REDRAFTER_U ".weight", "rnn_u.weight", h, h, NULL, err);
    if (!status) status = import_add(x, REDRAFTER_U ".bias", "rnn_u.bias", h, 0, NULL, err);
    for (int32_t k = 0; k < n_blocks && !status; k++) status = add_block(x, k, 2 * h, err);
    ImportTensor *output;
    snprintf(from, sizeof from, "lm_head.%d.weight", n_blocks);
    if (!status)
        status = import_add(x, REDRAFTER_OUTPUT ".weight", from, 2 * h, x->target->hparams.n_vocab, &output, err);
    if (!status) output->swaps_columns = true;
    return status;
}
