/* eagle3.c - published weights of EAGLE-3 (`forerun import-drafter eagle3`), in the layouts of SafeAILab, SpecForge and
 * speculators:
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
#include "draft/learned/learned_files.h"
#include "train/import.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_STREAMS = 8 };

#define KEY(name) DRAFTER_KEY(EAGLE3) name

typedef struct Shape {
    const json_t *config, *layer; /* borrowed: all of config.json, and the part that describes the layer */
    int64_t n_embd, n_ff, n_head, n_head_kv, head_dim;
    int32_t n_streams, streams[MOST_STREAMS];
    bool norms_each;
} Shape;

/* ---- config.json ------------------------------------------------------------------------------------------ */

static int refuse_config(const Import *x, const char *key, fr_error *err) {
    return error_set(err, FR_ERR_FORMAT, "%s: the %s in its config.json is missing or out of range",
                     published_path(x->from), key);
}

/* Reads a number from 1 to 2^28; `fallback` if it is missing, where 0 means that it may not be. */
static int read_int(const Import *x, const json_t *from, const char *key, int64_t fallback, int64_t *out,
                    fr_error *err) {
    const json_t *value = json_object_get(from, key);
    *out = value ? (json_is_integer(value) ? (int64_t)json_integer_value(value) : 0) : fallback;
    return *out >= 1 && *out <= 1 << 28 ? FR_OK : refuse_config(x, key, err);
}

static double real_of(const json_t *from, const char *key, double fallback) {
    const json_t *value = json_object_get(from, key);
    return json_is_number(value) ? json_number_value(value) : fallback;
}

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
    if (n < 1 || n > MOST_STREAMS) return refuse_config(x, key, err);
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

static int read_shape(const Import *x, Shape *s, fr_error *err) {
    int64_t width;
    const json_t *inner = json_object_get(s->config, "transformer_layer_config");
    s->layer = json_is_object(inner) ? inner : s->config;
    int status = s->config ? FR_OK
                           : error_set(err, FR_ERR_FORMAT,
                                       "%s: there is no config.json beside it; pass the folder that has both",
                                       published_path(x->from));
    if (!status) status = read_int(x, s->layer, "hidden_size", 0, &s->n_embd, err);
    if (!status) status = read_int(x, s->layer, "intermediate_size", 0, &s->n_ff, err);
    if (!status) status = read_int(x, s->layer, "num_attention_heads", 0, &s->n_head, err);
    if (!status) status = read_int(x, s->layer, "num_key_value_heads", s->n_head, &s->n_head_kv, err);
    if (!status) status = read_int(x, s->layer, "head_dim", s->n_embd / s->n_head, &s->head_dim, err);
    if (!status) status = read_int(x, s->config, "target_hidden_size", x->target->hparams.n_embd, &width, err);
    if (!status && width != x->target->hparams.n_embd)
        status = error_set(err, FR_ERR_MISMATCH,
                           "%s: was trained for a target with hidden states of %lld numbers, and those of this target "
                           "have %d",
                           published_path(x->from), (long long)width, x->target->hparams.n_embd);
    if (!status && s->n_head * s->head_dim > 1 << 20) status = refuse_config(x, "head_dim", err);
    return status ? status : read_streams(x, s, err);
}

/* ---- the rope --------------------------------------------------------------------------------------------- */

/* Adds the divisors of the frequencies of Llama 3.1 (rope.c), which config.json describes by four numbers. */
static int add_llama3_factors(Import *x, const json_t *scaling, double base, int64_t head_dim, fr_error *err) {
    double factor = real_of(scaling, "factor", 8), low = real_of(scaling, "low_freq_factor", 1),
           high = real_of(scaling, "high_freq_factor", 4),
           n_ctx = real_of(scaling, "original_max_position_embeddings", 8192);
    float *factors;
    if (!(factor >= 1 && low > 0 && high > low && n_ctx >= 1)) return refuse_config(x, "rope_scaling", err);
    int status = import_add_floats(x, EAGLE3_ROPE_FACTORS, head_dim / 2, &factors, err);
    for (int64_t i = 0; i < head_dim / 2 && !status; i++) {
        double turns = n_ctx * pow(base, -2.0 * (double)i / (double)head_dim) / (2 * M_PI);
        double fast = fmin(1, fmax(0, (turns - low) / (high - low)));
        factors[i] = (float)(1 / ((1 - fast) / factor + fast));
    }
    return status;
}

static int set_rope(Import *x, const Shape *s, fr_error *err) {
    const json_t *scaling = json_object_get(s->layer, "rope_scaling"),
                 *newer = json_object_get(s->layer, "rope_parameters");
    if (json_is_object(newer)) scaling = newer;
    double base = real_of(s->layer, "rope_theta", real_of(newer, "rope_theta", 10000));
    const json_t *type = json_object_get(scaling, "rope_type");
    if (!type) type = json_object_get(scaling, "type");
    const char *name = json_is_string(type) ? json_string_value(type) : "default";
    gguf_set_f32(x->w, KEY("rope.freq_base"), (float)base);
    if (strcmp(name, "default") == 0) return FR_OK;
    if (strcmp(name, "llama3") == 0) return add_llama3_factors(x, scaling, base, s->head_dim, err);
    if (strcmp(name, "linear") != 0 && strcmp(name, "yarn") != 0)
        return error_set(
            err, FR_ERR_UNSUPPORTED,
            "%s: the rope scaling in its config.json is not supported; default, linear, llama3 and yarn are",
            published_path(x->from));
    gguf_set_string(x->w, KEY("rope.scaling.type"), name, strlen(name));
    gguf_set_f32(x->w, KEY("rope.scaling.factor"), (float)real_of(scaling, "factor", 1));
    double n_ctx = real_of(scaling, "original_max_position_embeddings", 0);
    if (n_ctx >= 1 && n_ctx < 1 << 28) gguf_set_u32(x->w, KEY("rope.scaling.original_context_length"), (uint32_t)n_ctx);
    return FR_OK;
}

static void set_keys(Import *x, const Shape *s) {
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {{EAGLE3 "block_count", 1},
                   {EAGLE3 "context_length", (int64_t)real_of(s->layer, "max_position_embeddings", 2048)},
                   {EAGLE3 "embedding_length", s->n_embd},
                   {EAGLE3 "feed_forward_length", s->n_ff},
                   {EAGLE3 "attention.head_count", s->n_head},
                   {EAGLE3 "attention.head_count_kv", s->n_head_kv},
                   {EAGLE3 "attention.key_length", s->head_dim},
                   {EAGLE3 "attention.value_length", s->head_dim},
                   {EAGLE3 EAGLE3_KEY_TARGET_WIDTH, x->target->hparams.n_embd}};
    const struct {
        const char *key, *from;
    } flags[] = {{KEY(EAGLE3_KEY_NORM_BEFORE_RESIDUAL), "norm_before_residual"},
                 {KEY(EAGLE3_KEY_NORM_OUTPUT), "norm_output"}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) import_set_int(x, numbers[i].key, numbers[i].value);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool is_set = json_is_true(json_object_get(s->config, flags[i].from)) ||
                      json_is_true(json_object_get(json_object_get(s->config, "eagle_config"), flags[i].from));
        if (is_set) gguf_set_bool(x->w, flags[i].key, true);
    }
    gguf_set_i32s(x->w, KEY(EAGLE3_KEY_LAYERS), s->streams, s->n_streams);
    gguf_set_f32(x->w, KEY("attention.layer_norm_rms_epsilon"), (float)real_of(s->layer, "rms_norm_eps", 1e-6));
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

/* Adds the LM head and its map of tokens. */
static int add_head(Import *x, const Shape *s, fr_error *err) {
    const SafeTensor *d2t = published_find(x->from, "d2t");
    int64_t n_vocab = x->target->hparams.n_vocab, n = d2t ? d2t->dims[0] : n_vocab, offset;
    published_pass_over(x->from, "d2t");
    published_pass_over(x->from, "t2d");
    if (!published_find(x->from, "lm_head.weight") && !d2t) return FR_OK;
    int status = import_add(x, EAGLE3_OUTPUT, "lm_head.weight", s->n_embd, n, NULL, err);
    if (status || !d2t) return status;
    if (strcmp(d2t->dtype, "I64") != 0 || d2t->n_dims != 1 || n > n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor d2t is not a list of at most %lld numbers of type I64",
                         published_path(x->from), (long long)n_vocab);
    int64_t *tokens;
    status = import_add_map(x, n, &tokens, err);
    for (int64_t i = 0; i < n && !status; i++) {
        memcpy(&offset, (const char *)d2t->data + (size_t)i * sizeof offset, sizeof offset);
        if (offset < -i || offset >= n_vocab - i)
            status = error_set(
                err, FR_ERR_MISMATCH,
                "%s: item %lld of tensor d2t leads to a token that the target does not have; the drafter "
                "was trained for another target",
                published_path(x->from), (long long)i);
        else tokens[i] = i + offset;
    }
    return status;
}

/* The embedding is left out if it is the target's, which may be quantised. */
static int add_embedding(Import *x, const Shape *s, fr_error *err) {
    const SafeTensor *t = published_find(x->from, "embed_tokens.weight");
    if (!t) return FR_OK;
    fr_error differs;
    int status = s->n_embd == x->target->hparams.n_embd ? import_check_embedding(x, "embed_tokens.weight", &differs)
                                                        : FR_ERR_MISMATCH;
    if (!status) return FR_OK;
    return import_add(x, EAGLE3_EMBEDDING, "embed_tokens.weight", s->n_embd, x->target->hparams.n_vocab, NULL, err);
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
    if (!status) status = set_rope(x, &s, err);
    if (!status) status = add_stream_norms(x, &s, err);
    if (!status) status = add_layer(x, &s, err);
    if (!status) status = import_add(x, EAGLE3_OUTPUT_NORM, "norm.weight", s.n_embd, 0, NULL, err);
    if (!status) status = add_head(x, &s, err);
    if (!status) status = add_embedding(x, &s, err);
    json_decref(config);
    return status;
}
