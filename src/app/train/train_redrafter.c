/* train_redrafter.c - `forerun train redrafter`. */
#include "app/train/train_drafter.h"
#include "app/train/train_info.h"
#include "train/nets/net_redrafter.h"
#include "train/nets/start_values.h"

#include <string.h>

enum { KEY_BLOCKS = 1200, KEY_START };

typedef struct RedrafterSettings {
    DrafterSettings drafter;
    int32_t n_blocks, rank;
    bool starts_at_embedding;
} RedrafterSettings;

static RedrafterSettings settings = {
    .drafter = {.type = TYPE_F16, .loss = {.token_weight = 1, .n_steps = 5}}, .n_blocks = 2};
static RedrafterNet net; /* the trainer's, whose shape follows the target */

static const struct argp_option option_table[] = {
    {"blocks", KEY_BLOCKS, "N", 0, "residual blocks of its head, 0 to 16 (default 2)", 6},
    {"start", KEY_START, "zero|embedding", 0, "its first state: what one step of the recurrence makes of zeros and the pending token, "
     "as in the released code (zero, the default); or that token's embedding, as in the paper", 6},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    RedrafterSettings *s = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &s->drafter, state->child_inputs[1] = &s->rank; return 0;
    case KEY_BLOCKS: s->n_blocks = (int32_t)train_parse_int(state, "--blocks", arg, 0, 16); return 0;
    case KEY_START:
        s->starts_at_embedding = strcmp(arg, "embedding") == 0;
        if (!s->starts_at_embedding && strcmp(arg, "zero") != 0) argp_error(state, "--start: '%s' is neither zero nor embedding", arg);
        return 0;
    case ARGP_KEY_END:
        if (s->drafter.loss.hidden_weight > 0) argp_error(state, "--hidden-loss-weight: the states of redrafter are not the target's");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static int open_redrafter(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature, fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (!status) {
        const Hparams *h = &target.model->hparams;
        net = (RedrafterNet){.C = h->n_embd, .V = h->n_vocab, .n_blocks = settings.n_blocks,
                             .info = train_info_shape("redrafter", &target, settings.rank),
                             .starts_at_embedding = settings.starts_at_embedding,
                             .token_std = start_token_std(target.embd, h->n_vocab, h->n_embd), .loss = settings.drafter.loss};
        status = train_info_check(&net.info, err);
    }
    if (status) {
        frozen_close(&target);
        return status;
    }
    snprintf(signature, n_signature, "redrafter blocks=%d start=%s", net.n_blocks, net.starts_at_embedding ? "embedding" : "zero");
    train_info_signature(&net.info, signature, n_signature);
    return train_drafter_open(out, &target, &redrafter_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

static const struct argp_child children[] = {{&train_drafter_argp, 0, NULL, 0}, {&train_info_argp, 0, NULL, 0}, {0}};
static const struct argp redrafter_argp = {.options = option_table, .parser = parse, .children = children};

const TrainMethod train_redrafter = {
    .name = "redrafter",
    .summary = "a recurrent head on the target's hidden state, whose candidates a beam search finds",
    .help = "Train ReDrafter's recurrent head for a target: it guesses token after token, knowing what it guessed before.\v"
            "With --labels soft, the default, it learns the target's distribution of each token: on answers of the target itself "
            "(forerun distill-data) that is the paper's distillation. --labels hard learns the tokens of the data alone. --rank adds "
            "Lyanna's token info to the logits (see train lyanna).\n\n"
            "  forerun train redrafter -m t.gguf --data answers.jsonl -o redrafter.gguf\n"
            "  forerun train redrafter -m t.gguf --data answers.jsonl -o paper.gguf \\\n"
            "    --start embedding\n"
            "  forerun run -m t.gguf -p Once --draft redrafter:file=redrafter.gguf,width=4\n",
    .argp = &redrafter_argp,
    .settings = &settings,
    .needs_model = true,
    .open = open_redrafter,
};
