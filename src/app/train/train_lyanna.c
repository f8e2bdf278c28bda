/* train_lyanna.c - `forerun train lyanna`. */
#include "base/hash.h"
#include "app/train/train_info.h"
#include "app/train/train_unroll.h"
#include "train/data/hot_tokens.h"
#include "train/nets/net_lyanna.h"

#include <string.h>

/* The paper's: with more tokens than the first number only the second number of them are hot. */
enum { MANY_TOKENS = 40960, HOT_TOKENS = 32768, HOT_BY_SIZE = -1 };

enum { KEY_RANK = 1400, KEY_FIRST_TOKEN, KEY_HOT, KEY_FREQUENCIES };

typedef struct LyannaSettings {
    UnrollSettings unroll;
    int32_t rank, n_hot; /* n_hot 0: all */
    bool fuses_token;
    char *frequencies;   /* file of texts that tell how frequent tokens are; NULL: the training data tells */
} LyannaSettings;

static LyannaSettings settings = {
    .unroll.drafter = {.type = TYPE_F16,
                       .loss = {.token_weight = 1, .hidden_weight = 1, .regression = REGRESSION_SMOOTH_L1, .n_steps = 3}},
    .rank = 64, .n_hot = HOT_BY_SIZE, .fuses_token = true};
static UnrollNet net; /* the trainer's, whose shape follows the target */

static const struct argp_option option_table[] = {
    {"rank", KEY_RANK, "N", 0, "rank of the token info, what a token by itself says of the next one (default 64; 0: none)", 6},
    {"first-token", KEY_FIRST_TOKEN, "fused|none", 0, "what begins a draft: the target's state and the token that it chose (fused, "
     "the default), or the state alone (none)", 6},
    {"hot-tokens", KEY_HOT, "N", 0, "only the N most frequent tokens of the data give and get token info (0: all; the default, up to "
     "a vocabulary of 40960; beyond, 32768)", 6},
    {"frequencies", KEY_FREQUENCIES, "FILE", 0, "texts, as --data takes them, in which the most frequent tokens are counted: what the "
     "drafter will be used for (default: the data)", 6},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    LyannaSettings *s = state->input;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &s->unroll; return 0;
    case KEY_RANK: s->rank = (int32_t)train_parse_int(state, "--rank", arg, 0, TRAIN_MAX_RANK); return 0;
    case KEY_FIRST_TOKEN:
        s->fuses_token = strcmp(arg, "fused") == 0;
        if (!s->fuses_token && strcmp(arg, "none") != 0) argp_error(state, "--first-token: '%s' is neither fused nor none", arg);
        return 0;
    case KEY_HOT: s->n_hot = (int32_t)train_parse_int(state, "--hot-tokens", arg, 0, 1 << 24); return 0;
    case KEY_FREQUENCIES: s->frequencies = arg; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The n most frequent tokens of the file that was given, else of the data. */
static int count_hot(const TrainArgs *a, const Gguf *source, int32_t n, int32_t **hot, fr_error *err) {
    if (!settings.frequencies) return hot_tokens_choose(&a->dataset->train, net.info.V, n, hot, err);
    Dataset texts;
    DatasetOptions o = a->data;
    o.files = &settings.frequencies, o.n_files = 1;
    o.valid_file = NULL, o.valid_share = 0;
    int status = dataset_open(&texts, &o, source, err);
    if (!status) status = hot_tokens_choose(&texts.train, net.info.V, n, hot, err);
    dataset_close(&texts);
    return status;
}

/* Which tokens are hot; the list is the net's as long as the program runs. */
static int choose_hot(const TrainArgs *a, const Gguf *source, fr_error *err) {
    static int32_t *hot;
    InfoShape *info = &net.info;
    int32_t n = settings.n_hot != HOT_BY_SIZE ? settings.n_hot : info->V > MANY_TOKENS ? HOT_TOKENS : 0;
    if (info->rank == 0) n = 0;
    if (n == 0 && settings.frequencies)
        return error_set(err, FR_ERR_ARGUMENT, "--frequencies: there is nothing to choose %s; %s or leave it out",
                         info->rank ? "where all tokens are hot" : "without token info",
                         info->rank ? "give --hot-tokens N" : "give --rank N");
    if (n == 0) return FR_OK;
    if (n >= info->V)
        return error_set(err, FR_ERR_ARGUMENT, "--hot-tokens %d: the target has %d tokens; 0 takes them all", n, info->V);
    int status = count_hot(a, source, n, &hot, err);
    info->n_hot = n;
    info->hot = hot;
    return status;
}

/* The words of LoopOptions.method: a run with other hot tokens is another run. */
static void write_signature(char *signature, size_t n_signature) {
    int n = snprintf(signature, n_signature, "lyanna rank=%d first-token=%s hot-tokens=%d", settings.rank,
                     settings.fuses_token ? "fused" : "none", net.info.n_hot);
    if (settings.frequencies)
        snprintf(signature + n, n_signature - (size_t)n, " frequencies=%016llx",
                 (unsigned long long)hash64(net.info.hot, (size_t)net.info.n_hot * sizeof *net.info.hot, 0));
}

static int open_lyanna(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature, fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (!status) {
        net = (UnrollNet){train_unroll_shape("lyanna", &target, &settings.unroll),
                          train_info_shape("lyanna", &target, settings.rank), settings.unroll.drafter.loss};
        net.layer.has_attn_norm = true;
        net.layer.fuses_token = settings.fuses_token;
        status = choose_hot(a, source, err);
    }
    if (status) {
        frozen_close(&target);
        return status;
    }
    write_signature(signature, n_signature);
    return train_unroll_open(out, &target, &lyanna_net_class, &net, &settings.unroll, &net.layer, a, signature, n_signature, err);
}

static const struct argp_child children[] = {{&train_unroll_argp, 0, NULL, 0}, {0}};
static const struct argp lyanna_argp = {.options = option_table, .parser = parse, .children = children};

const TrainMethod train_lyanna = {
    .name = "lyanna",
    .summary = "one layer that guesses a chain of hidden states, and what each token says of the next",
    .help = "Train Lyanna's drafter for a target: a layer that guesses a chain of hidden states, each from the last one alone, and the "
            "token info that is added to their logits.\v"
            "--steps-ahead is how long a chain it learns from its own guesses (default 3). --token-loss-weight and --hidden-loss-weight are "
            "both 1 unless told. Best trained on what the target says itself (forerun distill-data). --rank 0 and "
            "--first-token none leave out a part, to see what it is worth.\n\n"
            "  forerun train lyanna -m target.gguf --data answers.jsonl -o lyanna.gguf\n"
            "  forerun train lyanna -m target.gguf --data answers.jsonl -o lyanna.gguf --hot-tokens 1024 --frequencies mails.jsonl\n"
            "  forerun run -m target.gguf -p \"Once upon a time\" --draft lyanna:file=lyanna.gguf\n",
    .argp = &lyanna_argp,
    .settings = &settings,
    .needs_model = true,
    .open = open_lyanna,
};
