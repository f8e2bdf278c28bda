/* lyanna.c - `forerun train lyanna`: a layer that predicts hidden states only from hidden states, and token info.
 *
 * --form chooses how the steps share what is learned:
 *
 *     paper      one layer computes all steps, and all have token info
 *     separate   the steps after the first have a layer of their own, of whose gradient only a share reaches the state
 *                before it, and token info begins with them
 *
 * The first step reads a token and the later ones do not. In the paper's form the later steps, which are more numerous,
 * take accuracy from the first one. --init takes what is not given from the file, so that the same options continue
 * any drafter.
 *
 * --init also takes an EAGLE drafter, whose layer becomes that of the first step. Then this layer has no norm before
 * its attention, so that the first step begins with exactly what EAGLE predicts. */
#include "base/hash.h"
#include "draft/learned/learned_files.h"
#include "train/methods.h"
#include "train/dataset.h"
#include "train/nets.h"

#include <string.h>

/* As in the paper: of a vocabulary of more than MANY_TOKENS, HOT_TOKENS are hot. */
enum { MANY_TOKENS = 40960, HOT_TOKENS = 32768, HOT_BY_SIZE = -1 };

/* The values of settings that were not given. */
enum { NOT_GIVEN = -1, DEFAULT_RANK = 512 };
#define DEFAULT_STATE_GRADIENT 0.2 /* of the separate form; the paper's form has 1 */

typedef enum Form { FORM_PAPER, FORM_SEPARATE } Form;
typedef enum LaterInput { LATER_STATE, LATER_TOKEN } LaterInput;

typedef struct LyannaSettings {
    UnrollSettings unroll;
    int32_t rank, n_hot; /* n_hot 0: all */
    int32_t gate_rank;
    int form, later_input; /* values of the enums above, or NOT_GIVEN */
    int32_t n_ff_later;    /* 0: that of the first layer */
    double state_gradient; /* NOT_GIVEN: by the form */
    bool fuses_token, is_parallel;
    bool lacks_attn_norm;    /* not an option: as in the file of --init */
    const char *frequencies; /* file of texts in which tokens are counted; NULL: the training data */
} LyannaSettings;

static LyannaSettings settings = {.unroll.drafter.loss.n_steps = 3,
                                  .rank = NOT_GIVEN,
                                  .n_hot = HOT_BY_SIZE,
                                  .form = NOT_GIVEN,
                                  .later_input = NOT_GIVEN,
                                  .state_gradient = NOT_GIVEN};
static UnrollNet net; /* used by the trainer; its shape follows the target */

static const Option option_table[] = {
    {.key = "form",
     OPT_CHOICE(LyannaSettings, form, "paper", "separate"),
     .section = "The drafter",
     .default_help = "that of --init; else separate",
     .help = "paper: one layer computes all steps, and all have token info; separate: the steps after the first have a "
             "layer of their own, and token info begins with them"},
    {.key = "later-input",
     OPT_CHOICE(LyannaSettings, later_input, "state", "token"),
     .default_help = "that of --init; else token",
     .help = "what the later layer of --form separate reads: the state before (state), or that state and the token "
             "that the draft begins from (token)"},
    {.key = "later-ff",
     OPT_INT(LyannaSettings, n_ff_later, 1, 1 << 18),
     .default_help = "as --ff",
     .help = "width of the feed-forward of the later layer"},
    {.key = "state-gradient",
     OPT_REAL(LyannaSettings, state_gradient, 0, 1),
     .metavar = "SHARE",
     .default_help = "0.2 with --form separate, else 1",
     .help = "share of the gradient of a step's input that reaches the state from which it was made"},
    {.key = "rank",
     OPT_INT(LyannaSettings, rank, 0, TRAIN_MAX_RANK),
     .default_help = "that of --init; else 512",
     .help = "rank of the token info, which predicts the next token from nothing but the last one; 0: none"},
    {.key = "gate-rank",
     OPT_INT(LyannaSettings, gate_rank, 0, TRAIN_MAX_RANK),
     .default_value = "0",
     .help = "rank of a bias on the logits that depends on the last token and on the hidden state together; 0: none"},
    {.key = "chain",
     OPT_CHOICE(LyannaSettings, is_parallel, "serial", "parallel"),
     .default_value = "serial",
     .help = "serial: each hidden state is computed from the one before; parallel: all of them in one forward, from "
             "learned inputs"},
    {.key = "first-token",
     OPT_CHOICE(LyannaSettings, fuses_token, "none", "fused"),
     .default_value = "fused",
     .help = "what a draft begins from: the target's hidden state and the token sampled from it (fused), or the state "
             "alone (none)"},
    {.key = "hot-tokens",
     OPT_INT(LyannaSettings, n_hot, 0, 1 << 24),
     .default_help = "all, for a vocabulary of at most 40960; else 32768",
     .help = "restrict token info to the N most frequent tokens of the data; 0: all"},
    {.key = "frequencies",
     OPT_FILE(LyannaSettings, frequencies),
     .default_help = "the training data",
     .help = "texts, in the formats of --data, in which the most frequent tokens are counted: those that the drafter "
             "will be used for"},
    {.key = NULL},
};

/* Finds the n most frequent tokens of --frequencies, else of the data. */
static int count_hot(const TrainArgs *a, const Gguf *source, int32_t n, int32_t **hot, fr_error *err) {
    if (!settings.frequencies) return hot_tokens_choose(&a->dataset->train, net.info.V, n, hot, err);
    Dataset texts;
    DatasetOptions o = a->data;
    char *file = (char *)(uintptr_t)settings.frequencies; /* dataset_open only reads it */
    o.files = &file, o.n_files = 1;
    o.valid_file = NULL, o.valid_share = 0;
    int status = dataset_open(&texts, &o, source, err);
    if (!status) status = hot_tokens_choose(&texts.train, net.info.V, n, hot, err);
    dataset_close(&texts);
    return status;
}

/* Chooses the hot tokens; the net uses the list as long as the program runs. */
static int choose_hot(const TrainArgs *a, const Gguf *source, fr_error *err) {
    static int32_t *hot;
    InfoShape *info = &net.info;
    int32_t n = settings.n_hot != HOT_BY_SIZE ? settings.n_hot : info->V > MANY_TOKENS ? HOT_TOKENS : 0;
    if (info->rank == 0) n = 0;
    if (n == 0 && settings.frequencies)
        return error_set(err, FR_ERR_ARGUMENT, "--frequencies has no effect %s: %s or leave it out",
                         info->rank ? "because all tokens are hot" : "without token info",
                         info->rank ? "pass --hot-tokens=N" : "pass --rank=N");
    if (n == 0) return FR_OK;
    if (n >= info->V)
        return error_set(err, FR_ERR_ARGUMENT, "--hot-tokens=%d must be less than the %d tokens of the target; 0: all",
                         n, info->V);
    int status = count_hot(a, source, n, &hot, err);
    info->n_hot = n;
    info->hot = hot;
    return status;
}

static bool has_text(const Gguf *g, const char *key, const char *text) {
    GgufString is = {"", 0};
    gguf_get_string(g, key, &is);
    return is.n == strlen(text) && memcmp(is.data, text, is.n) == 0;
}

/* Token info at the first step would have to be learned again without it, which starts from less than EAGLE has. */
static int check_eagle(const Gguf *g, fr_error *err) {
    int64_t rank = 0;
    if (!gguf_get_i64(g, DRAFTER_KEY(EAGLE TOKEN_INFO_KEY_RANK), &rank) || rank == 0) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: has token info, so lyanna cannot begin from it: train eagle without --rank for that",
                     gguf_path(g));
}

/* Takes the settings that were not given from the file of --init, or their defaults. A file that cannot be opened is
 * reported later. */
static int fill_settings(const char *init, fr_error *err) {
    Gguf *g = NULL;
    fr_error ignored;
    int64_t rank = DEFAULT_RANK;
    bool is_paper = false, reads_state = false, is_eagle = init && init_file_is_of(init, "eagle");
    int status = FR_OK;
    settings.lacks_attn_norm = is_eagle;
    if (is_eagle && gguf_open(&g, init, &ignored) == FR_OK) {
        status = check_eagle(g, err);
        gguf_close(g);
    } else if (init && gguf_open(&g, init, &ignored) == FR_OK) {
        if (!gguf_get_i64(g, DRAFTER_KEY(LYANNA TOKEN_INFO_KEY_RANK), &rank)) rank = 0;
        is_paper = gguf_find_key(g, DRAFTER_KEY(LYANNA LAYER_LATER LAYER_KEY_FEED_FORWARD)) < 0;
        reads_state = has_text(g, DRAFTER_KEY(LYANNA_KEY_LATER_INPUT), "state");
        settings.lacks_attn_norm = has_text(g, DRAFTER_KEY(LYANNA_KEY_ATTN_NORM), "none");
        gguf_close(g);
    }
    if (settings.form == NOT_GIVEN) settings.form = is_paper ? FORM_PAPER : FORM_SEPARATE;
    if (settings.later_input == NOT_GIVEN) settings.later_input = reads_state ? LATER_STATE : LATER_TOKEN;
    if (settings.rank == NOT_GIVEN) settings.rank = rank >= 0 && rank <= TRAIN_MAX_RANK ? (int32_t)rank : DEFAULT_RANK;
    if (settings.state_gradient < 0)
        settings.state_gradient = settings.form == FORM_SEPARATE ? DEFAULT_STATE_GRADIENT : 1;
    return status;
}

static int check_form(fr_error *err) {
    if (settings.form == FORM_SEPARATE && settings.unroll.drafter.loss.n_steps < 2)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--steps-ahead=1 would not train the later layer: pass --steps-ahead=2 or more, or "
                         "--form=paper");
    if (settings.lacks_attn_norm && settings.is_parallel)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--chain=parallel cannot continue an EAGLE drafter, whose layer has no norm before its "
                         "attention: leave out --chain or --init");
    if (settings.form == FORM_PAPER && settings.n_ff_later)
        return error_set(err, FR_ERR_ARGUMENT, "--later-ff needs --form=separate: the paper's form has no later layer");
    return FR_OK;
}

/* The parts of the shape that follow from the form. Without a first token no later step reads one, and token info is
 * useful at the first step as well. */
static void set_form(void) {
    UnrollShape *layer = &net.layer;
    bool is_separate = settings.form == FORM_SEPARATE;
    layer->fuses_token = settings.fuses_token;
    layer->is_parallel = settings.is_parallel;
    layer->state_gradient = settings.state_gradient;
    layer->n_ff_later = !is_separate ? 0 : settings.n_ff_later ? settings.n_ff_later : layer->n_ff;
    layer->later_fuses = is_separate && settings.later_input == LATER_TOKEN && layer->fuses_token &&
                         !layer->is_parallel;
    net.info_skips_first = is_separate && layer->fuses_token;
}

/* Writes the words of LoopOptions.method. A run with other hot tokens is another run. */
static void write_signature(char *signature, size_t n_signature) {
    int n = snprintf(signature, n_signature, "lyanna rank=%d first-token=%s hot-tokens=%d", settings.rank,
                     settings.fuses_token ? "fused" : "none", net.info.n_hot);
    if (settings.gate_rank) n += snprintf(signature + n, n_signature - (size_t)n, " gate-rank=%d", settings.gate_rank);
    if (settings.is_parallel) n += snprintf(signature + n, n_signature - (size_t)n, " chain=parallel");
    if (settings.form == FORM_SEPARATE)
        n += snprintf(signature + n, n_signature - (size_t)n, " form=separate later-input=%s later-ff=%d",
                      net.layer.later_fuses ? "token" : "state", net.layer.n_ff_later);
    if (settings.state_gradient < 1)
        n += snprintf(signature + n, n_signature - (size_t)n, " state-gradient=%.17g", settings.state_gradient);
    if (settings.frequencies)
        snprintf(signature + n, n_signature - (size_t)n, " frequencies=%016llx",
                 (unsigned long long)hash64(net.info.hot, (size_t)net.info.n_hot * sizeof *net.info.hot, 0));
}

static int open_lyanna(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                       fr_error *err) {
    FrozenTarget target = {0};
    int status = fill_settings(a->init, err);
    if (!status) status = check_form(err);
    if (!status) status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (!status) {
        net = (UnrollNet){.layer = train_unroll_shape("lyanna", &target, &settings.unroll),
                          .info = train_info_shape("lyanna", &target, settings.rank),
                          .loss = train_drafter_loss(&settings.unroll.drafter, &target, true)};
        net.gate = (GateShape){.method = "lyanna",
                               .C = net.info.C,
                               .V = net.info.V,
                               .rank = settings.gate_rank,
                               .token_std = net.layer.fc_std};
        net.layer.has_attn_norm = !settings.lacks_attn_norm;
        set_form();
        train_unroll_set_confidence(&net, &settings.unroll);
        status = choose_hot(a, source, err);
    }
    if (status) {
        frozen_close(&target);
        return status;
    }
    write_signature(signature, n_signature);
    return train_unroll_open(out, &target, &lyanna_net_class, &net, &settings.unroll, &net.layer, a, signature,
                             n_signature, err);
}

static int check(fr_error *err) { return train_drafter_check(&settings.unroll.drafter, err); }

const TrainMethod train_lyanna = {
    .name = "lyanna",
    .summary = "one layer that predicts a chain of hidden states, and token info",
    .about = "Train Lyanna's drafter for a target: a layer that predicts a chain of hidden states without reading the "
             "tokens that are drafted, and the token info "
             "that is added to their logits.",
    .notes = "--steps-ahead is the length of the chain for which it learns from its own predictions (by default 3). "
             "Best trained on the target's own "
             "answers (forerun distill-data). --form paper is the form of the publication; --rank 0 and --first-token "
             "none leave out one part, to measure what it "
             "contributes.",
    .examples = "  forerun train lyanna -m target.gguf --data answers.jsonl -o lyanna.gguf\n"
                "  forerun train lyanna -m target.gguf --data answers.jsonl -o lyanna.gguf --hot-tokens 1024 "
                "--frequencies mails.jsonl\n"
                "  forerun run -m target.gguf -p \"Once upon a time\" --draft lyanna:file=lyanna.gguf\n",
    .sets = (const OptionSet[]){{train_steps_options, &settings.unroll.drafter},
                                {train_drafter_options, &settings.unroll.drafter},
                                {train_head_tokens_options, &settings.unroll.drafter},
                                {train_unroll_options, &settings.unroll},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_lyanna,
};
