/* eagle3.c - `forerun train eagle3`: one layer that reads several layers of the target and its own outputs.
 *
 * A new drafter has the target's width, heads and rope base. Its layer begins with the target's last one, its LM head
 * with the target's rows for its tokens. With --init it has the shape of the file, which may be one that others have
 * published: it then learns what this target, quantised as it is, computes.
 *
 * The file is laid out as llama.cpp's converter writes EAGLE-3, with the target's vocabulary. */
#include "base/hash.h"
#include "draft/learned/eagle_layer.h"
#include "draft/learned/learned_files.h"
#include "train/dataset.h"
#include "train/import.h"
#include "train/methods.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- training --------------------------------------------------------------------------------------------- */

/* The drafter of a target with more than MANY_TOKENS tokens has the HOT_TOKENS most frequent ones. */
enum { MANY_TOKENS = 40960, HOT_TOKENS = 32768 };
enum { NOT_GIVEN = -1, MOST_LAYERS = 8 };

typedef struct Eagle3Settings {
    DrafterSettings drafter;
    StreamSettings streams;
    int32_t n_ff;             /* 0: the target's */
    int stream_norm, lm_head; /* indices of their choices, or NOT_GIVEN */
    int32_t n_hot;            /* 0: all; NOT_GIVEN */
} Eagle3Settings;

enum { STREAM_NORM_OFF, STREAM_NORM_ALL, STREAM_NORM_EACH };
enum { LM_HEAD_TARGET, LM_HEAD_OWN };

static Eagle3Settings settings = {
    .drafter.loss.n_steps = 3, .stream_norm = NOT_GIVEN, .lm_head = NOT_GIVEN, .n_hot = NOT_GIVEN};

/* What the trainer uses; its shape follows the target or the file of --init. */
static Eagle3Net net;
static Eagle3Keys keys;
static Hparams shape;
static Rope rope;
static GgufTensor embedding;
static Arena arena; /* the memory of its vocabulary, embedding and rope factors */

static const Option option_table[] = {
    {.key = "ff",
     OPT_INT(Eagle3Settings, n_ff, 1, 1 << 18),
     .section = "The drafter",
     .default_help = "that of --init; else the target's",
     .help = "width of the layer's feed-forward"},
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

/* Gives the net a vocabulary of n of the target's tokens. */
static int set_vocabulary(const int32_t *tokens, int32_t n, fr_error *err) {
    int32_t *own_of, *copy;
    int64_t *map;
    const ArenaItem items[] = {ARENA_ITEM(&own_of, net.V), ARENA_ITEM(&copy, n), ARENA_ITEM(&map, n)};
    int status = arena_take(&arena, items, ARENA_COUNT(items), "a drafter's vocabulary", err);
    if (status) return status;
    for (int32_t i = 0; i < net.V; i++) own_of[i] = -1;
    for (int32_t i = 0; i < n; i++) own_of[tokens[i]] = i, copy[i] = tokens[i], map[i] = tokens[i];
    net.tokens = copy;
    net.map = map;
    net.loss.own_of = own_of;
    net.loss.n_own = n;
    return FR_OK;
}

static void set_layer(const Hparams *h, int32_t n_ff) {
    net.layer = (UnrollShape){.method = "eagle3",
                              .C = h->n_embd,
                              .n_ff = n_ff,
                              .n_head = h->n_head,
                              .n_head_kv = h->n_head_kv,
                              .head_dim = h->head_dim,
                              .rms_eps = h->rms_eps,
                              .rope = &rope,
                              .n_steps = settings.drafter.loss.n_steps,
                              .reads_pairs = true,
                              .state_gradient = 1};
    net.n_ctx = h->n_ctx_train;
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
    status = set_vocabulary(tokens, n, err);
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
    int status = train_streams_choose(&settings.streams, m, &keys.streams, err);
    if (!status) status = rope_init(&rope, &params, NULL, err);
    if (status) return status;
    set_layer(h, settings.n_ff ? settings.n_ff : h->n_ff);
    net.layer.qk_start_anew = h->rope.style != ROPE_PAIRS || m->layers[h->n_layer - 1].q_norm;
    net.has_own_output = settings.lm_head != LM_HEAD_TARGET;
    net.norms_streams = settings.stream_norm == NOT_GIVEN || settings.stream_norm == STREAM_NORM_ALL;
    net.norms_each = settings.stream_norm == STREAM_NORM_EACH;
    return choose_vocabulary(a, err);
}

/* ---- a drafter that goes on from a file ---- */

static int read_rope_factors(DrafterFile *f, fr_error *err) {
    float *factors = NULL, *copy = NULL;
    int32_t n = shape.rope.n_rot / 2;
    if (!drafter_file_has(f, EAGLE3_ROPE_FACTORS)) return rope_init(&rope, &shape.rope, NULL, err);
    int status = drafter_file_vector(f, EAGLE3_ROPE_FACTORS, n, &factors, err);
    for (int32_t i = 0; !status && i < n; i++)
        if (!(factors[i] > 0))
            status = error_set(err, FR_ERR_FORMAT, "%s: tensor %s has a number that is not above 0", gguf_path(f->gguf),
                               EAGLE3_ROPE_FACTORS);
    if (!status) status = arena_take(&arena, (const ArenaItem[]){ARENA_ITEM(&copy, n)}, 1, EAGLE3_ROPE_FACTORS, err);
    if (!status) memcpy(copy, factors, (size_t)n * sizeof *copy);
    net.rope_factors = copy;
    if (!status) status = rope_init(&rope, &shape.rope, factors, err);
    mem_free(factors);
    return status;
}

/* Copies the embedding of a file that has one of its own: as it is for the new file, and as floats for the net. */
static int read_embedding(DrafterFile *f, fr_error *err) {
    const GgufTensor *t;
    if (!drafter_file_has(f, EAGLE3_EMBEDDING)) return FR_OK;
    int status = drafter_file_matrix(f, EAGLE3_EMBEDDING, shape.n_embd, net.V, &t, err);
    if (status) return status;
    int64_t n = t->dims[0] * t->dims[1];
    float *floats;
    char *copy;
    const ArenaItem items[] = {ARENA_ITEM(&floats, n), ARENA_ITEM(&copy, t->bytes)};
    status = arena_take(&arena, items, ARENA_COUNT(items), EAGLE3_EMBEDDING, err);
    if (status) return status;
    blocks_dequantize(t->type, t->data, n, floats);
    memcpy(copy, t->data, t->bytes);
    embedding = *t;
    embedding.data = copy;
    net.embd = floats;
    net.embedding = &embedding;
    return FR_OK;
}

static int read_shape_of(DrafterFile *f, const Model *target, fr_error *err) {
    int32_t n = target->hparams.n_vocab, *tokens = NULL;
    int status = eagle3_read_keys(&shape, &keys, f, target, err);
    if (!status) status = read_rope_factors(f, err);
    if (!status) status = drafter_file_map(f, net.V, &tokens, &n, err);
    if (!status && tokens) status = set_vocabulary(tokens, n, err);
    mem_free(tokens);
    if (status) return status;
    set_layer(&shape, shape.n_ff);
    net.n_streams = keys.streams.n;
    net.has_own_output = drafter_file_has(f, EAGLE3_OUTPUT);
    net.has_fc_bias = drafter_file_has(f, EAGLE3_FC ".bias");
    net.norms_streams = keys.norms_before_fc && !keys.norms_each_stream;
    net.norms_each = keys.norms_each_stream;
    net.keeps_normed = keys.keeps_normed;
    net.continues_normed = keys.continues_normed;
    status = read_embedding(f, err);
    bool fits = shape.n_embd == net.n_target || (net.has_own_output && net.embd);
    if (status || (fits && (net.has_own_output || !net.tokens))) return status;
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
    if (net.map) hash = hash64(net.map, (size_t)net.loss.n_own * sizeof *net.map, hash);
    snprintf(signature, n_signature, "eagle3 ff=%d stream-norm=%s lm-head=%s hot-tokens=%d layers=%016llx",
             net.layer.n_ff,
             norms[net.norms_streams ? STREAM_NORM_ALL
                   : net.norms_each  ? STREAM_NORM_EACH
                                     : 0],
             net.has_own_output ? "own" : "target", net.loss.n_own, (unsigned long long)hash);
}

static int open_eagle3(Trainer **out, const TrainArgs *a, const Gguf *source, char *signature, size_t n_signature,
                       fr_error *err) {
    FrozenTarget target = {0};
    int status = frozen_open(&target, source, a->data.length, a->n_threads, err);
    if (status) return status;
    const Hparams *h = &target.model->hparams;
    arena_free(&arena);
    rope_free(&rope);
    net = (Eagle3Net){.V = h->n_vocab, .n_target = h->n_embd, .loss = settings.drafter.loss};
    keys = (Eagle3Keys){0};
    status = a->init ? plan_init(a, &target, err) : plan_new(a, &target, err);
    net.n_streams = keys.streams.n;
    net.layers = keys.streams.layers;
    if (!status) status = train_streams_keep(&target, &keys.streams, err);
    if (status) {
        frozen_close(&target);
        return status;
    }
    write_words(signature, n_signature);
    return train_drafter_open(out, &target, &eagle3_net_class, &net, &settings.drafter, a, signature, n_signature, err);
}

static int check(fr_error *err) { return train_drafter_check(&settings.drafter, err); }

const TrainMethod train_eagle3 = {
    .name = "eagle3",
    .summary = "one layer that reads several layers of the target and its own outputs",
    .about = "Train EAGLE-3's layer for a target: from the target's hidden states after several layers and the tokens "
             "that follow, it predicts the next tokens, and continues from its own output.",
    .notes = "--steps-ahead is the number of steps for which it learns to do that. Best trained on the target's own "
             "answers (forerun distill-data). --init also takes a published drafter, as a GGUF file of llama.cpp or "
             "after forerun import-drafter eagle3, and adapts it to this target, quantised as it is. The file is in "
             "llama.cpp's layout.",
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

/* ---- published weights ------------------------------------------------------------------------------------ */

/* EAGLE-3 and 3.1 as SafeAILab, SpecForge and speculators publish them (`forerun import-drafter eagle3`):
 *
 *     midlayer.* or layers.0.*                  the layer: self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj,
 *                                               input_layernorm of the embedding, hidden_norm and
 *                                               post_attention_layernorm; q and k rotate halves, and their rows are
 *                                               made into pairs
 *     fc.weight [H][S T]                        S streams of the target
 *     input_norm.weight [S T]                   a norm of all streams together (norm_before_fc)
 *     fc_norm.<i>.weight [T]                    a norm of each (fc_norm)
 *     norm.weight, lm_head.weight [D][H]
 *     embed_tokens.weight [V][H]                left out if it is the target's
 *     d2t [D], t2d [V]                          the drafter's token i is the target's token i + d2t[i]
 *
 * config.json has the shape of the layer, at its top (SafeAILab, SpecForge) or in transformer_layer_config
 * (speculators), and the list of layers, at its top or in eagle_config. A missing list means that the inputs of the
 * layers 2, n / 2 and n - 3 of n are read. What a list counts, inputs or outputs, is not written anywhere
 * (ImportOptions.counts_outputs). */

#define KEY(name) DRAFTER_KEY(EAGLE3) name

typedef struct Shape {
    const json_t *config; /* borrowed */
    int64_t n_embd, n_ff, n_head, n_head_kv, head_dim;
    int32_t n_streams, streams[MOST_LAYERS];
    bool norms_each;
} Shape;

/* ---- config.json ------------------------------------------------------------------------------------------ */

static int read_streams(const Import *x, Shape *s, fr_error *err) {
    static const char *const key = "eagle_aux_hidden_state_layer_ids";
    int32_t n_layer = x->target->hparams.n_layer;
    const json_t *list = json_object_get(s->config, key);
    if (!json_is_array(list)) list = json_object_get(json_object_get(s->config, "eagle_config"), key);
    if (!json_is_array(list)) {
        const int32_t shift = x->counts_outputs, usual[] = {2 + shift, n_layer / 2 + shift, n_layer - 3 + shift};
        if (n_layer < 6)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "%s: its config.json has no %s, and the target has too few layers for the usual list",
                             published_path(x->from), key);
        memcpy(s->streams, usual, sizeof usual);
        s->n_streams = 3;
        return FR_OK;
    }
    size_t n = json_array_size(list);
    if (n < 1 || n > MOST_LAYERS) return import_refuse_config(x, key, err);
    s->n_streams = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        int64_t after = json_is_integer(value) ? (int64_t)json_integer_value(value) + x->counts_outputs : -1;
        if (after < 0 || after > n_layer)
            return error_set(err, FR_ERR_MISMATCH,
                             "%s: %s in its config.json names a layer that the target, with %d layers, does not have",
                             published_path(x->from), key, n_layer);
        s->streams[i] = (int32_t)after;
    }
    return FR_OK;
}

static int read_shape(Import *x, Shape *s, fr_error *err) {
    ImportShape of;
    int status = import_read_shape(x, s->config, &of, err);
    if (status) return status;
    s->n_embd = of.n_embd, s->n_ff = of.n_ff;
    s->n_head = of.n_head, s->n_head_kv = of.n_head_kv, s->head_dim = of.head_dim;
    status = read_streams(x, s, err);
    return status ? status : import_add_shape(x, EAGLE3, &of, 1, EAGLE3_ROPE_FACTORS, err);
}

static void set_keys(Import *x, const Shape *s) {
    const struct {
        const char *key, *from;
    } flags[] = {{KEY(EAGLE3_KEY_NORM_BEFORE_RESIDUAL), "norm_before_residual"},
                 {KEY(EAGLE3_KEY_NORM_OUTPUT), "norm_output"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool is_set = json_is_true(json_object_get(s->config, flags[i].from)) ||
                      json_is_true(json_object_get(json_object_get(s->config, "eagle_config"), flags[i].from));
        if (is_set) gguf_set_bool(x->w, flags[i].key, true);
    }
    gguf_set_i32s(x->w, KEY(EAGLE3_KEY_LAYERS), s->streams, s->n_streams);
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */

/* Adds the norms before fc: one of all streams, or one of each, which become one tensor. */
static int add_stream_norms(Import *x, const Shape *s, fr_error *err) {
    int64_t n = x->target->hparams.n_embd;
    if (published_find(x->from, "input_norm.weight")) {
        gguf_set_bool(x->w, KEY(EAGLE3_KEY_NORM_BEFORE_FC), true);
        return import_add(x, EAGLE3_STREAM_NORM, "input_norm.weight", s->n_streams * n, 0, NULL, err);
    }
    float *all;
    if (!published_find(x->from, "fc_norm.0.weight")) return FR_OK;
    gguf_set_bool(x->w, KEY(EAGLE3_KEY_NORM_EACH_STREAM), true);
    int status = import_add_floats(x, EAGLE3_STREAM_NORM, s->n_streams * n, &all, err);
    for (int32_t i = 0; i < s->n_streams && !status; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%d.weight", i);
        status = import_read_vector(x, name, n, all + i * n, err);
    }
    return status;
}

static int add_layer(Import *x, const Shape *s, fr_error *err) {
    bool is_midlayer = published_find(x->from, "midlayer.self_attn.q_proj.weight") != NULL;
    int64_t n = s->n_embd, q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim;
    const struct {
        const char *name, *from;
        int64_t n_in, n_out;
        ImportRows rows;
    } tensors[] = {
        {EAGLE3_TOKEN_NORM, "input_layernorm", n, 0, 0},
        {EAGLE3_HIDDEN_NORM, "hidden_norm", n, 0, 0},
        {EAGLE3_ATTN_Q, "self_attn.q_proj", 2 * n, q, IMPORT_ROWS_PAIRED},
        {EAGLE3_ATTN_K, "self_attn.k_proj", 2 * n, kv, IMPORT_ROWS_PAIRED},
        {EAGLE3_ATTN_V, "self_attn.v_proj", 2 * n, kv, 0},
        {EAGLE3_ATTN_OUTPUT, "self_attn.o_proj", q, n, 0},
        {EAGLE3_FFN_NORM, "post_attention_layernorm", n, 0, 0},
        {EAGLE3_FFN_GATE, "mlp.gate_proj", n, s->n_ff, 0},
        {EAGLE3_FFN_UP, "mlp.up_proj", n, s->n_ff, 0},
        {EAGLE3_FFN_DOWN, "mlp.down_proj", s->n_ff, n, 0},
    };
    int status = FR_OK;
    x->head_dim = s->head_dim;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && !status; i++) {
        char from[96];
        ImportTensor *t;
        snprintf(from, sizeof from, "%s.%s.weight", is_midlayer ? "midlayer" : "layers.0", tensors[i].from);
        status = import_add(x, tensors[i].name, from, tensors[i].n_in, tensors[i].n_out, &t, err);
        if (!status) t->rows = tensors[i].rows;
    }
    return status;
}

int import_plan_eagle3(Import *x, fr_error *err) {
    json_t *config = published_read_config(x->from);
    Shape s = {.config = config};
    int64_t width = x->target->hparams.n_embd;
    int status = read_shape(x, &s, err);
    if (!status) set_keys(x, &s);
    if (!status) status = import_add(x, EAGLE3_FC ".weight", "fc.weight", s.n_streams * width, s.n_embd, NULL, err);
    if (!status && published_find(x->from, "fc.bias"))
        status = import_add(x, EAGLE3_FC ".bias", "fc.bias", s.n_embd, 0, NULL, err);
    if (!status) status = add_stream_norms(x, &s, err);
    if (!status) status = add_layer(x, &s, err);
    if (!status) status = import_add(x, EAGLE3_OUTPUT_NORM, "norm.weight", s.n_embd, 0, NULL, err);
    if (!status) status = import_add_head(x, EAGLE3_OUTPUT, s.n_embd, err);
    if (!status) status = import_add_embedding(x, EAGLE3_EMBEDDING, s.n_embd, err);
    json_decref(config);
    return status;
}
