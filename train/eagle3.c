/* eagle3.c - `forerun train eagle3`: layers that read several layers of the target and their own outputs or, as
 * P-EAGLE, masks in the place of these.
 *
 * A new drafter has the target's width, heads and rope base. Its layers begin with the target's last one, its LM head
 * with the target's rows for its tokens. With --init it has the shape of the file, which may be one that others have
 * published: it then learns what this target, quantised as it is, computes.
 *
 * The file is laid out as llama.cpp's converter writes EAGLE-3, with the target's vocabulary. llama.cpp does not read
 * more than one layer, nor P-EAGLE. */
#include "base/hash.h"
#include "draft/learned/eagle_layer.h"
#include "draft/learned/learned_files.h"
#include "train/dataset.h"
#include "train/methods.h"

#include <stdio.h>
#include <string.h>

/* ---- training --------------------------------------------------------------------------------------------- */

/* The drafter of a target with more than MANY_TOKENS tokens has the HOT_TOKENS most frequent ones. */
enum { MANY_TOKENS = 40960, HOT_TOKENS = 32768 };
enum { NOT_GIVEN = -1, USUAL_STEPS = 3, USUAL_ANCHORS = 32 };

typedef struct Eagle3Settings {
    DrafterSettings drafter;
    StreamSettings streams;
    int32_t n_ff;             /* 0: the target's */
    int stream_norm, lm_head; /* indices of their choices, or NOT_GIVEN */
    int32_t n_hot;            /* 0: all; NOT_GIVEN */
    int32_t n_layer;          /* 0: not given */
    int chain;                /* the index of its choice, or NOT_GIVEN */
    int32_t mask;             /* or NOT_GIVEN */
    int32_t n_anchors;        /* 0: not given */
} Eagle3Settings;

enum { STREAM_NORM_OFF, STREAM_NORM_ALL, STREAM_NORM_EACH };
enum { LM_HEAD_TARGET, LM_HEAD_OWN };
enum { CHAIN_SERIAL, CHAIN_PARALLEL };

static Eagle3Settings settings = {
    .stream_norm = NOT_GIVEN, .lm_head = NOT_GIVEN, .n_hot = NOT_GIVEN, .chain = NOT_GIVEN, .mask = NOT_GIVEN};

/* What the trainer uses; its shape follows the target or the file of --init. */
static Eagle3Net net;
static Eagle3Keys keys;
static Hparams shape;
static Rope rope;
static Arena arena; /* the memory of its vocabulary, embedding and rope factors */

static const Option option_table[] = {
    {.key = "ff",
     OPT_INT(Eagle3Settings, n_ff, 1, 1 << 18),
     .section = "The drafter",
     .default_help = "that of --init; else the target's",
     .help = "width of the feed-forward of each layer"},
    {.key = "depth",
     OPT_INT(Eagle3Settings, n_layer, 1, EAGLE3_MAX_LAYERS),
     .default_help = "that of --init; else 1",
     .help = "number of layers; llama.cpp reads files with one"},
    {.key = "chain",
     OPT_CHOICE(Eagle3Settings, chain, "serial", "parallel"),
     .default_help = "that of --init; else serial",
     .help = "serial: each token is predicted in a forward that reads the output of the one before, as in EAGLE-3; "
             "parallel: all of them in one forward that reads masks, as in P-EAGLE, which llama.cpp does not read"},
    {.key = "mask-token",
     OPT_INT(Eagle3Settings, mask, 0, 1 << 24),
     .metavar = "ID",
     .default_help = "that of --init; else the last of the vocabulary",
     .help = "--chain parallel: token whose embedding all rows of a forward but the first read"},
    {.key = "anchors",
     OPT_INT(Eagle3Settings, n_anchors, 1, 1 << 20),
     .default_help = "32",
     .help = "--chain parallel: places of a sequence, drawn at random each time, from which the steps after the first "
             "are learned"},
    {.key = "stream-norm",
     OPT_CHOICE(Eagle3Settings, stream_norm, "off", "all", "each"),
     .default_help = "that of --init; else all",
     .help =
         "normalise these hidden states before they are joined: all together, as in EAGLE-3.1, each by itself, which "
         "llama.cpp does not read, or not, as in EAGLE-3"},
    {.key = "lm-head",
     OPT_CHOICE(Eagle3Settings, lm_head, "target", "own"),
     .default_help = "that of --init; else own",
     .help = "matrix for the logits: its own, which begins as the target's, or the target's"},
    {.key = "hot-tokens",
     OPT_INT(Eagle3Settings, n_hot, 0, 1 << 24),
     .default_help = "that of --init; else all, for a vocabulary of at most 40960 or the target's LM head; else 32768",
     .help = "draft only the N most frequent tokens of the data, which makes the LM head smaller; 0: all"},
    {.key = NULL},
};

static void set_layer(const Hparams *h, int32_t n_ff) {
    net.layer = (UnrollShape){.method = "eagle3",
                              .C = h->n_embd,
                              .n_ff = n_ff,
                              .n_head = h->n_head,
                              .n_head_kv = h->n_head_kv,
                              .head_dim = h->head_dim,
                              .rms_eps = h->rms_eps,
                              .rope = &rope,
                              .n_steps = net.loss.n_steps,
                              .reads_pairs = true,
                              .state_gradient = 1,
                              .n_anchors = net.block ? settings.n_anchors ? settings.n_anchors : USUAL_ANCHORS : 0};
    net.n_ctx = h->n_ctx_train;
}

/* Refuses options that need --chain parallel. */
static int check_chain(fr_error *err) {
    const char *other = settings.mask != NOT_GIVEN ? "mask-token" : settings.n_anchors ? "anchors" : NULL;
    if (settings.mask != NOT_GIVEN && settings.mask >= net.V)
        return error_set(err, FR_ERR_ARGUMENT, "--mask-token=%d: the target has %d tokens, counted from 0",
                         settings.mask, net.V);
    if (net.block || !other) return FR_OK;
    return error_set(err, FR_ERR_ARGUMENT, "--%s has no effect without --chain parallel: leave it out", other);
}

/* ---- a new drafter ---- */

static int choose_vocabulary(const TrainArgs *a, fr_error *err) {
    int32_t n = settings.n_hot, *tokens;
    if (!net.has_own_output && n > 0)
        return error_set(err, FR_ERR_ARGUMENT,
                         "--hot-tokens has no effect with --lm-head target: leave one of them out");
    if (n == NOT_GIVEN) n = net.has_own_output && net.V > MANY_TOKENS ? HOT_TOKENS : 0;
    if (n == 0) return FR_OK;
    if (n >= net.V)
        return error_set(err, FR_ERR_ARGUMENT, "--hot-tokens=%d must be less than the %d tokens of the target; 0: all",
                         n, net.V);
    int status = hot_tokens_choose(&a->dataset->train, net.V, n, &tokens, err);
    if (status) return status;
    status = own_vocabulary_set(&net.own, &net.loss, tokens, n, net.V, &arena, err);
    mem_free(tokens);
    return status;
}

static int plan_new(const TrainArgs *a, const FrozenTarget *target, fr_error *err) {
    const Model *m = target->model;
    const Hparams *h = &m->hparams;
    const RopeParams params = {.style = ROPE_PAIRS, .n_rot = h->head_dim, .base = h->rope.base, .factor = 1};
    if (h->head_dim % 2)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: has heads of %d components; eagle3 needs an even number",
                         gguf_path(m->gguf), h->head_dim);
    if (settings.chain == CHAIN_PARALLEL) {
        net.block = net.loss.n_steps;
        net.mask = settings.mask == NOT_GIVEN ? net.V - 1 : settings.mask;
    }
    int status = check_chain(err);
    if (!status) status = train_streams_choose(&settings.streams, m, &keys.streams, err);
    if (!status) status = rope_init(&rope, &params, NULL, err);
    if (status) return status;
    net.n_later = settings.n_layer ? settings.n_layer - 1 : 0;
    set_layer(h, settings.n_ff ? settings.n_ff : h->n_ff);
    net.layer.qk_start_anew = h->rope.style != ROPE_PAIRS || m->layers[h->n_layer - 1].q_norm;
    net.has_own_output = settings.lm_head != LM_HEAD_TARGET;
    net.norms_streams = settings.stream_norm == NOT_GIVEN || settings.stream_norm == STREAM_NORM_ALL;
    net.norms_each = settings.stream_norm == STREAM_NORM_EACH;
    return choose_vocabulary(a, err);
}

/* ---- a drafter that goes on from a file ---- */

/* A file that predicts blocks learns all of a block, unless --steps-ahead says otherwise. */
static int read_block(fr_error *err) {
    bool has_steps = settings.drafter.loss.n_steps || settings.drafter.n_step_weights;
    net.block = keys.block;
    net.mask = keys.mask;
    if (net.block && !has_steps) net.loss.n_steps = net.block < UNROLL_MAX_STEPS ? net.block : UNROLL_MAX_STEPS;
    if (net.block && net.block < net.loss.n_steps) net.block = net.loss.n_steps;
    return check_chain(err);
}

/* Returns whether the first layer has a tensor; all layers have the same ones. */
static bool first_layer_has(const DrafterFile *f, const char *what) {
    return drafter_file_has_printed(f, EAGLE3_LAYER, 0, what);
}

static int read_shape_of(DrafterFile *f, const Model *target, fr_error *err) {
    int status = eagle3_read_keys(&shape, &keys, f, target, err);
    if (!status) status = own_form_read(&net.form, f, &shape, err);
    if (!status) status = own_rope_read(&rope, &net.rope_factors, f, EAGLE3_ROPE_FACTORS, &shape.rope, &arena, err);
    if (!status) status = own_vocabulary_read(&net.own, &net.loss, f, net.V, shape.n_embd, &arena, err);
    if (!status) status = read_block(err);
    if (status) return status;
    net.n_later = shape.n_layer - 1;
    set_layer(&shape, shape.n_ff);
    net.layer.has_head_norms = first_layer_has(f, NEXTN_Q_NORM);
    net.layer.has_biases = first_layer_has(f, NEXTN_Q_BIAS);
    net.layer.has_output_bias = first_layer_has(f, EAGLE3_OUTPUT_BIAS);
    net.n_streams = keys.streams.n;
    net.has_own_output = drafter_file_has(f, EAGLE3_OUTPUT);
    net.has_fc_bias = drafter_file_has(f, EAGLE3_FC ".bias");
    net.norms_streams = keys.norms_before_fc && !keys.norms_each_stream;
    net.norms_each = keys.norms_each_stream;
    net.keeps_normed = keys.keeps_normed;
    net.continues_normed = keys.continues_normed;
    bool fits = shape.n_embd == net.n_target || (net.has_own_output && net.own.embd);
    if (fits && (net.has_own_output || !net.own.tokens)) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: uses the target's embedding or LM head, which do not fit it",
                     gguf_path(f->gguf));
}

static int stream_norm(void) {
    return net.norms_streams ? STREAM_NORM_ALL : net.norms_each ? STREAM_NORM_EACH : STREAM_NORM_OFF;
}

/* Returns the option that was given and differs from the file; NULL: there is none. */
static const char *find_difference(void) {
    if (!train_streams_fit(&settings.streams, &keys.streams)) return "layers";
    if (settings.n_ff && settings.n_ff != net.layer.n_ff) return "ff";
    if (settings.n_layer && settings.n_layer != 1 + net.n_later) return "depth";
    if (settings.chain != NOT_GIVEN && settings.chain != (net.block > 0)) return "chain";
    if (settings.mask != NOT_GIVEN && settings.mask != net.mask) return "mask-token";
    if (settings.stream_norm != NOT_GIVEN && settings.stream_norm != stream_norm()) return "stream-norm";
    if (settings.lm_head != NOT_GIVEN && settings.lm_head != net.has_own_output) return "lm-head";
    return settings.n_hot == NOT_GIVEN || settings.n_hot == net.loss.n_own ? NULL : "hot-tokens";
}

static int plan_init(const TrainArgs *a, const FrozenTarget *target, fr_error *err) {
    DrafterFile f;
    int status = drafter_file_open(&f, a->init, "eagle3", target->model, err);
    if (!status) status = read_shape_of(&f, target->model, err);
    if (!status) status = init_file_check(&f, &eagle3_net_class, &net, err);
    drafter_file_close(&f);
    const char *other = status ? NULL : find_difference();
    if (!other) return status;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: cannot be continued with these options: its --%s is another; leave that option out", a->init,
                     other);
}

/* Writes the words of the shape; what a file of --init has besides has a fingerprint of its own. */
static void write_words(char *signature, size_t n_signature) {
    static const char *const norms[] = {"off", "all", "each"};
    uint64_t hash = hash64(keys.streams.layers, (size_t)keys.streams.n * sizeof *keys.streams.layers, 0);
    if (net.own.map) hash = hash64(net.own.map, (size_t)net.loss.n_own * sizeof *net.own.map, hash);
    snprintf(signature, n_signature, "eagle3 ff=%d stream-norm=%s lm-head=%s hot-tokens=%d layers=%016llx",
             net.layer.n_ff,
             norms[net.norms_streams ? STREAM_NORM_ALL
                   : net.norms_each  ? STREAM_NORM_EACH
                                     : 0],
             net.has_own_output ? "own" : "target", net.loss.n_own, (unsigned long long)hash);
    size_t n = strlen(signature);
    if (net.n_later) snprintf(signature + n, n_signature - n, " depth=%d", 1 + net.n_later);
    n = strlen(signature);
    if (net.block)
        snprintf(signature + n, n_signature - n, " chain=parallel block=%d mask-token=%d anchors=%d", net.block,
                 net.mask, net.layer.n_anchors);
}

static int open_eagle3(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                       fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    const Hparams *h = &target.model->hparams;
    arena_free(&arena);
    rope_free(&rope);
    net = (Eagle3Net){.V = h->n_vocab,
                      .n_target = h->n_embd,
                      .loss = train_drafter_loss(&settings.drafter, &target, false)};
    if (net.loss.n_steps == 0) net.loss.n_steps = USUAL_STEPS;
    keys = (Eagle3Keys){0};
    status = a->init ? plan_init(a, &target, err) : plan_new(a, &target, err);
    net.n_streams = keys.streams.n;
    net.layers = keys.streams.layers;
    net.loss.logit_cap = net.has_own_output ? 0 : net.loss.target_cap;
    if (!status) status = train_streams_keep(&target, &keys.streams, err);
    if (status) {
        frozen_close(&target);
        return status;
    }
    write_words(signature, n_signature);
    DrafterSettings drafter = settings.drafter;
    drafter.loss = net.loss;
    return train_drafter_open(out, &target, &eagle3_net_class, &net, &drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) {
    HeadLossOptions *loss = &settings.drafter.loss;
    int32_t n_given = loss->n_steps;
    if (n_given == 0) loss->n_steps = USUAL_STEPS;
    int status = train_drafter_check(&settings.drafter, err);
    loss->n_steps = n_given;
    return status;
}

const TrainMethod train_eagle3 = {
    .name = "eagle3",
    .summary = "one layer that reads several layers of the target and its own outputs",
    .about = "Train EAGLE-3's layer for a target: from the target's hidden states after several layers and the tokens "
             "that follow, it predicts the next tokens, and continues from its own output.",
    .notes = "--steps-ahead is the number of steps for which it learns to do that; with --chain parallel, P-EAGLE, it "
             "is the number of tokens that one forward predicts, by default those of --init or else 3. Best trained on "
             "the target's own answers (forerun distill-data). --init also takes a published drafter, as a GGUF file "
             "of llama.cpp or after forerun import-drafter eagle3, and adapts it to this target, quantised as it is. "
             "The file is in llama.cpp's layout.",
    .examples = "  forerun train eagle3 -m target.gguf --data answers.jsonl -o eagle3.gguf\n"
                "  forerun run -m target.gguf -p \"Once upon a time\" --draft eagle3:file=eagle3.gguf\n",
    .sets = (const OptionSet[]){{train_steps_options, &settings.drafter},
                                {train_drafter_options, &settings.drafter},
                                {train_stream_options, &settings.streams},
                                {option_table, &settings},
                                {NULL, NULL}},
    .check = check,
    .needs_model = true,
    .open = open_eagle3,
};
