/* dflash.c - `forerun train dflash`: layers that predict a block of tokens at once from several layers of the target.
 *
 * A new drafter has the target's width, heads and rope base, and predicts from its first slot on. With --init it has
 * the shape of the file, which may be one that others have published, if it uses the target's embedding and LM head.
 * The parts of DFlash 2, convolutions and a selector, and the heads of DSpark can be added to such a file.
 *
 * The file is laid out as llama.cpp's converter writes DFlash, with the target's vocabulary. */
#include "base/hash.h"
#include "base/math_functions.h"
#include "draft/feedback.h"
#include "draft/learned/logit_corrections.h"
#include "train/dflash_net.h"
#include "train/methods.h"

#include <stdio.h>
#include <string.h>

enum { NOT_GIVEN = -1 };

typedef struct DflashSettings {
    DrafterSettings drafter;
    StreamSettings streams;
    int32_t n_layer, block, n_ff; /* 0: not given */
    int32_t n_anchors;
    int32_t mask;                        /* or NOT_GIVEN */
    double slot_decay;                   /* 0: not given */
    int32_t conv_taps, conv_group;       /* 0: not given */
    int32_t selector_rank, selector_top; /* 0: not given */
    double selector_weight;
    MarkovKind markov;   /* MARKOV_NONE: not given */
    int32_t markov_rank; /* 0: not given */
    bool has_confidence;
} DflashSettings;

static DflashSettings settings = {.mask = NOT_GIVEN};

/* What the trainer uses; its shape follows the target or the file of --init. */
static DflashNet net;
static DflashKeys keys;
static Rope rope;
static Arena arena; /* the memory of its rope factors */
static double step_weights[TRAIN_MAX_STEPS];

static const Option option_table[] = {
    {.key = "depth",
     OPT_INT(DflashSettings, n_layer, 1, 16),
     .section = "The drafter",
     .default_help = "that of --init; else 2",
     .help = "number of layers"},
    {.key = "block",
     OPT_INT(DflashSettings, block, 2, DFLASH_MAX_BLOCK),
     .default_help = "that of --init; else 8",
     .help = "number of slots that run at once; each of a new drafter predicts a token"},
    {.key = "ff",
     OPT_INT(DflashSettings, n_ff, 1, 1 << 18),
     .default_help = "that of --init; else the target's",
     .help = "width of the feed-forward of each layer"},
    {.key = "mask-token",
     OPT_INT(DflashSettings, mask, 0, 1 << 24),
     .metavar = "ID",
     .default_help = "that of --init; else the last of the vocabulary",
     .help = "token whose embedding the slots after the first one read"},
    {.key = "conv-taps",
     OPT_INT(DflashSettings, conv_taps, 2, DFLASH_MAX_BLOCK),
     .default_help = "those of --init; else no convolutions",
     .help = "DFlash 2: convolutions around attention and feed-forward, in which a slot reads itself and the slots "
             "before it, N in all (2 in published files)"},
    {.key = "conv-group",
     OPT_INT(DflashSettings, conv_group, 1, 1 << 16),
     .default_help = "that of --init; else 16",
     .help = "channels that have a kernel of the convolutions in common; a divisor of the width"},
    {.key = "selector-rank",
     OPT_INT(DflashSettings, selector_rank, 1, DFLASH_MAX_SELECTOR_RANK),
     .default_help = "that of --init; else no selector",
     .help = "DFlash 2: a selector, which scores the best tokens of a position by the token before them, with vectors "
             "of N numbers (256 in published files)"},
    {.key = "selector-top",
     OPT_INT(DflashSettings, selector_top, 2, TOP_K_MAX),
     .default_help = "that of --init; else 16",
     .help = "number of these tokens"},
    {.key = "selector-loss-weight",
     OPT_REAL(DflashSettings, selector_weight, 0, 1e6),
     .default_value = "1",
     .help = "weight of the selector's loss relative to that of the logits"},
    {.key = "markov",
     OPT_CHOICE(DflashSettings, markov, "vanilla", "gated", "rnn"),
     .values = (const int32_t[]){MARKOV_VANILLA, MARKOV_GATED, MARKOV_RECURRENT},
     .default_help = "that of --init; else no Markov head",
     .help = "DSpark: a Markov head, which adds a bias to the logits of a position that depends on the token before it "
             "(vanilla), also on the position's state (gated), and also on the earlier tokens of the block (rnn)"},
    {.key = "markov-rank",
     OPT_INT(DflashSettings, markov_rank, 1, MARKOV_MAX_RANK),
     .default_help = "that of --init; else 256",
     .help = "rank of this bias"},
    {.key = "confidence",
     OPT_FLAG(DflashSettings, has_confidence),
     .help =
         "DSpark: also train a head that predicts from a position's state and the token before it whether a draft "
         "is accepted there; drafts are then shorter where that is unlikely. Without a Markov head it reads only the "
         "state"},
    {.key = "anchors",
     OPT_INT(DflashSettings, n_anchors, 1, 1 << 20),
     .default_value = "32",
     .help = "blocks that are learned from a sequence each time, at places drawn at random"},
    {.key = "slot-decay",
     OPT_REAL(DflashSettings, slot_decay, 1e-3, 1e6),
     .default_help = "half of --block",
     .help = "the weight of a prediction in the loss falls by the factor e for every N places in the block"},
    {.key = NULL},
};

/* Sets what depends on the block. */
static void set_block(int32_t block, bool from_anchor) {
    double decay = settings.slot_decay > 0 ? settings.slot_decay : block / 2.0;
    net.block = block;
    net.from_anchor = from_anchor;
    net.loss.n_steps = from_anchor ? block : block - 1;
    net.loss.step_weights = step_weights;
    for (int32_t i = 0; i < TRAIN_MAX_STEPS; i++) step_weights[i] = math_exp(-i / decay);
}

/* Refuses options of parts that the drafter does not have, and shapes that do not fit. */
static int check_parts(fr_error *err) {
    const char *needed = settings.conv_group && !net.conv_taps         ? "--conv-group: pass --conv-taps as well"
                         : settings.selector_top && !net.selector_rank ? "--selector-top: pass --selector-rank as well"
                         : settings.markov_rank && !net.markov         ? "--markov-rank: pass --markov as well"
                                                                       : NULL;
    if (needed) return error_set(err, FR_ERR_ARGUMENT, "%s, or leave it out", needed);
    if (net.conv_taps && net.C % net.conv_group)
        return error_set(err, FR_ERR_ARGUMENT, "--conv-group=%d: groups must divide the width of %d evenly",
                         net.conv_group, net.C);
    if (net.conv_taps > net.block)
        return error_set(err, FR_ERR_ARGUMENT, "--conv-taps=%d: a block has only %d slots", net.conv_taps, net.block);
    if (net.markov && net.selector_rank)
        return error_set(err, FR_ERR_ARGUMENT,
                         "a drafter has either a Markov head or a selector: leave out --markov or --selector-rank");
    if (net.has_confidence && net.selector_rank)
        return error_set(err, FR_ERR_ARGUMENT,
                         "a drafter with a selector has no confidence head: leave out --confidence or --selector-rank");
    return FR_OK;
}

/* Gives the network the parts of DFlash 2 and the heads of DSpark that the file of --init has, or else those that the
 * options add. */
static int set_parts(fr_error *err) {
    net.adds_conv = keys.conv_taps == 0;
    net.adds_selector = keys.selector_top == 0;
    net.conv_taps = net.adds_conv ? settings.conv_taps : keys.conv_taps;
    net.conv_group = !net.adds_conv ? keys.conv_group : settings.conv_group ? settings.conv_group : 16;
    if (net.adds_selector) {
        net.selector_rank = settings.selector_rank;
        net.selector_top = settings.selector_top ? settings.selector_top : 16;
    }
    if (net.selector_top > dflash_n_own(&net)) net.selector_top = dflash_n_own(&net);
    net.selector_weight = settings.selector_weight;
    net.adds_markov = net.markov == MARKOV_NONE;
    if (net.adds_markov) {
        net.markov = settings.markov;
        net.markov_rank = settings.markov_rank ? settings.markov_rank : 256;
    }
    if (settings.has_confidence) net.has_confidence = true;
    return check_parts(err);
}

static void set_layers(const Hparams *h, int32_t n_layer, int32_t n_ff) {
    net.n_streams = keys.streams.n;
    net.n_layer = n_layer;
    net.n_ff = n_ff;
    net.n_head = h->n_head;
    net.n_head_kv = h->n_head_kv;
    net.head_dim = h->head_dim;
    net.rms_eps = h->rms_eps;
    net.n_ctx = h->n_ctx_train;
}

static int plan_new(const FrozenTarget *target, fr_error *err) {
    const Model *m = target->model;
    const Hparams *h = &m->hparams;
    const RopeParams params = {.style = ROPE_HALVES, .n_rot = h->head_dim, .base = h->rope.base, .factor = 1};
    if (h->head_dim % 2)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: has heads of %d components; dflash needs an even number",
                         gguf_path(m->gguf), h->head_dim);
    if (settings.mask >= net.V)
        return error_set(err, FR_ERR_ARGUMENT, "--mask-token=%d: the target has %d tokens, counted from 0",
                         settings.mask, net.V);
    int status = train_streams_choose(&settings.streams, m, &keys.streams, err);
    if (!status) status = rope_init(&rope, &params, NULL, err);
    if (status) return status;
    set_layers(h, settings.n_layer ? settings.n_layer : 2, settings.n_ff ? settings.n_ff : h->n_ff);
    set_block(settings.block ? settings.block : 8, true);
    net.mask = settings.mask == NOT_GIVEN ? net.V - 1 : settings.mask;
    net.has_head_norms = true;
    net.qk_start_anew = h->rope.style != ROPE_HALVES;
    return set_parts(err);
}

/* ---- a drafter that goes on from a file ---- */

/* Refuses what the network does not compute. Other tensors than its own are refused when they are read. */
static int check_form(const DrafterFile *f, const Hparams *h, fr_error *err) {
    const char *what = NULL;
    if (keys.window > 0 && keys.window <= keys.block) what = "a window that is not longer than a block";
    if (h->n_embd != net.C) what = "another width than its target";
    if (keys.conv_taps > keys.block) what = "convolutions that are longer than a block";
    if (keys.block > DFLASH_MAX_BLOCK) what = "more than 16 slots in a block";
    if (keys.selector_top && drafter_file_has(f, DFLASH_MARKOV_BEFORE)) what = "both a Markov head and a selector";
    if (drafter_file_has(f, "dflash_fc.weight") || drafter_file_has(f, "dflash.fc.weight"))
        what = "tensor names of an older layout";
    if (!what) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED, "%s: has %s, which forerun train dflash does not support",
                     gguf_path(f->gguf), what);
}

/* Returns the option that was given and differs from the file; NULL: there is none. */
static const char *find_difference(void) {
    if (!train_streams_fit(&settings.streams, &keys.streams)) return "layers";
    if (settings.n_layer && settings.n_layer != net.n_layer) return "depth";
    if (settings.block && settings.block != net.block) return "block";
    if (settings.n_ff && settings.n_ff != net.n_ff) return "ff";
    if (settings.conv_taps && settings.conv_taps != net.conv_taps) return "conv-taps";
    if (settings.conv_group && settings.conv_group != net.conv_group) return "conv-group";
    if (settings.selector_rank && settings.selector_rank != net.selector_rank) return "selector-rank";
    if (settings.selector_top && settings.selector_top != net.selector_top) return "selector-top";
    if (settings.markov && settings.markov != net.markov) return "markov";
    if (settings.markov_rank && settings.markov_rank != net.markov_rank) return "markov-rank";
    return settings.mask == NOT_GIVEN || settings.mask == net.mask ? NULL : "mask-token";
}

/* Reads the rank of a part, which is that of a tensor; 0 where the file has no such tensor. */
static int read_rank(const DrafterFile *f, const char *name, int32_t max, int32_t *rank, fr_error *err) {
    const GgufTensor *t = gguf_find_tensor(f->gguf, name);
    if (t && (t->dims[0] < 1 || t->dims[0] > max))
        return error_set(err, FR_ERR_FORMAT, "%s: tensor %s has a rank of %lld, but must have one from 1 to %d",
                         gguf_path(f->gguf), name, (long long)t->dims[0], max);
    *rank = t ? (int32_t)t->dims[0] : 0;
    return FR_OK;
}

static int read_selector(const DrafterFile *f, fr_error *err) {
    net.selector_top = keys.selector_top;
    if (drafter_file_has(f, DFLASH_SELECTOR_BEFORE) != (keys.selector_top > 0))
        return error_set(err, FR_ERR_FORMAT, "%s: has only one of tensor %s and key %s", gguf_path(f->gguf),
                         DFLASH_SELECTOR_BEFORE, DFLASH DFLASH_KEY_SELECTOR_TOP);
    return read_rank(f, DFLASH_SELECTOR_BEFORE, DFLASH_MAX_SELECTOR_RANK, &net.selector_rank, err);
}

/* The tensors of a file say which Markov head it has, and whether it has a confidence head. */
static int read_markov(const DrafterFile *f, fr_error *err) {
    const GgufTensor *confidence = gguf_find_tensor(f->gguf, DFLASH_CONFIDENCE ".weight");
    int status = read_rank(f, DFLASH_MARKOV_BEFORE, MARKOV_MAX_RANK, &net.markov_rank, err);
    net.has_confidence = confidence != NULL;
    net.confidence_is_vector = confidence && confidence->n_dims == 1;
    net.confidence_is_narrow = confidence && confidence->dims[0] == net.C;
    if (status || net.markov_rank == 0) return status;
    net.markov = drafter_file_has(f, DFLASH_MARKOV_JOINT ".weight")  ? MARKOV_RECURRENT
                 : drafter_file_has(f, DFLASH_MARKOV_GATE ".weight") ? MARKOV_GATED
                                                                     : MARKOV_VANILLA;
    return FR_OK;
}

/* Reads the vocabulary, the embedding, and what belongs to the LM head. */
static int read_head(DrafterFile *f, const Hparams *target, fr_error *err) {
    int status = own_vocabulary_read(&net.own, &net.loss, f, net.V, net.C, &arena, err);
    if (status) return status;
    net.has_own_output = drafter_file_has(f, DFLASH_OUTPUT) || net.own.tokens;
    net.logit_scale = keys.logit_scale;
    net.logit_cap = keys.logit_cap;
    net.has_logit_cap = keys.logit_cap >= 0;
    if (net.has_own_output) net.loss.logit_cap = 0;
    if (keys.logit_scale > 0)
        net.loss.logit_factor = (double)keys.logit_scale / (net.has_own_output ? 1 : (double)target->logit_scale);
    if (net.has_logit_cap) net.loss.logit_cap = keys.logit_cap;
    if (!net.has_own_output || settings.drafter.n_head_tokens == 0) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT,
                     "--head-tokens: is for drafters that use the target's LM head, and %s has its own: leave it out",
                     gguf_path(f->gguf));
}

static int plan_init(const TrainArgs *a, const FrozenTarget *target, fr_error *err) {
    DrafterFile f;
    Hparams h;
    int status = drafter_file_open(&f, a->init, "dflash", target->model, err);
    if (!status) status = dflash_read_keys(&h, &keys, &f, target->model, err);
    if (!status) status = own_form_read(&net.form, &f, &h, err);
    if (!status) status = check_form(&f, &h, err);
    if (!status) status = own_rope_read(&rope, &net.rope_factors, &f, DFLASH_ROPE_FACTORS, &h.rope, &arena, err);
    if (!status) {
        set_layers(&h, h.n_layer, h.n_ff);
        set_block(keys.block, keys.from_anchor);
        net.mask = keys.mask;
        net.is_causal = keys.is_causal;
        net.window = keys.window;
        net.windows_are_causal = keys.windows_are_causal;
        memcpy(net.has_window, keys.has_window, sizeof net.has_window);
        net.embedding_scale = keys.embedding_scale;
        /* what the first layer has, all have */
        net.has_head_norms = drafter_file_has_printed(&f, DFLASH_WEIGHT(DFLASH_Q_NORM), 0);
        net.has_sinks = drafter_file_has_printed(&f, DFLASH_WEIGHT(DFLASH_SINKS), 0);
        net.has_biases = drafter_file_has_printed(&f, DFLASH_BIAS(DFLASH_ATTN_Q), 0);
        net.has_output_bias = drafter_file_has_printed(&f, DFLASH_BIAS(DFLASH_ATTN_OUTPUT), 0);
        status = read_head(&f, &target->model->hparams, err);
        if (!status) status = read_selector(&f, err);
        if (!status) status = read_markov(&f, err);
        if (!status) status = set_parts(err);
    }
    if (!status) status = init_file_check(&f, &dflash_net_class, &net, err);
    drafter_file_close(&f);
    const char *other = status ? NULL : find_difference();
    if (!other) return status;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be continued with these options: its --%s is another; leave that option out", a->init,
                     other);
}

/* Appends the parts of DFlash 2 and the heads of DSpark to the words of LoopOptions.method. */
static void add_parts(char *signature, size_t n_signature) {
    static const char *const kinds[] = {"", "vanilla", "gated", "rnn"};
    size_t n = strlen(signature);
    if (net.conv_taps)
        snprintf(signature + n, n_signature - n, " conv-taps=%d conv-group=%d", net.conv_taps, net.conv_group);
    n = strlen(signature);
    if (net.selector_rank)
        snprintf(signature + n, n_signature - n, " selector-rank=%d selector-top=%d selector-loss-weight=%.17g",
                 net.selector_rank, net.selector_top, net.selector_weight);
    n = strlen(signature);
    if (net.markov)
        snprintf(signature + n, n_signature - n, " markov=%s markov-rank=%d", kinds[net.markov], net.markov_rank);
    n = strlen(signature);
    if (net.has_confidence) snprintf(signature + n, n_signature - n, " confidence=on");
}

static int open_dflash(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                       fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    const Hparams *h = &target.model->hparams;
    rope_free(&rope);
    arena_free(&arena);
    net = (DflashNet){.V = h->n_vocab,
                      .C = h->n_embd,
                      .n_anchors = settings.n_anchors,
                      .embedding_scale = h->embedding_scale,
                      .rope = &rope,
                      .loss = train_drafter_loss(&settings.drafter, &target, true)};
    keys = (DflashKeys){0};
    status = a->init ? plan_init(a, &target, err) : plan_new(&target, err);
    net.layers = keys.streams.layers;
    if (!status) status = train_streams_keep(&target, &keys.streams, err);
    if (status) {
        frozen_close(&target);
        return status;
    }
    DrafterSettings drafter = settings.drafter;
    drafter.loss = net.loss;
    uint64_t layers = hash64(keys.streams.layers, (size_t)keys.streams.n * sizeof *keys.streams.layers, 0);
    if (net.own.map) layers = hash64(net.own.map, (size_t)net.loss.n_own * sizeof *net.own.map, layers);
    snprintf(signature, n_signature,
             "dflash depth=%d block=%d ff=%d mask-token=%d anchors=%d slot-decay=%.17g layers=%016llx", net.n_layer,
             net.block, net.n_ff, net.mask, net.n_anchors,
             settings.slot_decay > 0 ? settings.slot_decay : net.block / 2.0, (unsigned long long)layers);
    add_parts(signature, n_signature);
    return train_drafter_open(out, &target, &dflash_net_class, &net, &drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) { return train_drafter_check(&settings.drafter, err); }

const TrainMethod train_dflash = {
    .name = "dflash",
    .summary = "a few layers that predict a block of tokens at once from several layers of the target",
    .about = "Train DFlash's layers for a target: slots of a pending token and of mask tokens read the target's hidden "
             "states after several layers, and predict the next tokens in one forward.",
    .notes = "Best trained on the target's own answers (forerun distill-data). --init also takes a published drafter, "
             "as a GGUF file of llama.cpp or after forerun import-drafter dflash. --conv-taps and --selector-rank make "
             "the parts of DFlash 2, --markov and --confidence the heads of DSpark, also for a drafter of --init that "
             "has none. The file is in llama.cpp's layout.",
    .examples = "  forerun train dflash -m target.gguf --data answers.jsonl -o dflash.gguf\n"
                "  forerun run -m target.gguf -p \"Once upon a time\" --draft dflash:file=dflash.gguf\n",
    .sets = (const OptionSet[]){{train_drafter_options, &settings.drafter},
                                {train_stream_options, &settings.streams},
                                {train_head_tokens_options, &settings.drafter},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_dflash,
};
