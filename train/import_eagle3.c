/* import_eagle3.c - published weights of EAGLE-3, 3.1 and P-EAGLE (`forerun import-drafter eagle3`), in the layouts of
 * SafeAILab, SpecForge, speculators and DeepSpec:
 *
 *     midlayer.* or layers.0.*                  the layer: self_attn.{q,k,v,o}_proj, mlp.{gate,up,down}_proj,
 *                                               input_layernorm of the embedding, hidden_norm and
 *                                               post_attention_layernorm; q and k rotate halves, and their rows are
 *                                               made into pairs
 *                                               optional: self_attn.{q,k,v,o}_proj.bias, self_attn.{q,k}_norm
 *     layers.<i>.*                              further layers: the same without hidden_norm; input_layernorm is that
 *                                               of their input, which is all that q, k and v read
 *     fc.weight [H][S T]                        S streams of the target
 *     input_norm.weight [S T]                   a norm of all streams together (norm_before_fc)
 *     fc_norm.<i>.weight [T]                    a norm of each (fc_norm)
 *     mask_hidden [1][1][S T]                   P-EAGLE: the streams of a block's rows after the first
 *     norm.weight, lm_head.weight [D][H]
 *     embed_tokens.weight [V][H]                left out if it is the target's
 *     d2t [D], t2d [V]                          the drafter's token i is the target's token i + d2t[i]
 *
 * config.json has the shape of the layer, at its top (SafeAILab, SpecForge) or in transformer_layer_config
 * (speculators), and the list of layers, at its top or in eagle_config; DeepSpec's, target_layer_ids, names outputs. A
 * missing list means that the inputs of the layers 2, n / 2 and n - 3 of n are read. DeepSpec's drafters for Gemma 4
 * have a layer of that form, as in import_dflash.c. What a list counts, inputs or outputs, is not written anywhere
 * (ImportReading.counts_outputs). For P-EAGLE it has the mask token as mask_token_id, pard_token or ptd_token_id; the
 * number of tokens that a forward predicts is num_depths, or else what the proposal method of speculators says. */
#include "draft/learned/eagle_layer.h"
#include "draft/learned/learned_files.h"
#include "train/import.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { MOST_STREAMS = 8, USUAL_BLOCK = 8 };

#define KEY(name) DRAFTER_KEY(EAGLE3) name

typedef struct Shape {
    const json_t *config; /* borrowed */
    ImportShape of;
    int32_t n_streams, streams[MOST_STREAMS], n_layer;
} Shape;

/* ---- config.json ------------------------------------------------------------------------------------------ */

static int read_streams(const Import *x, Shape *s, fr_error *err) {
    static const char *const usual_key = "eagle_aux_hidden_state_layer_ids", *const of_deepspec = "target_layer_ids";
    const char *key = json_is_array(json_object_get(s->config, of_deepspec)) ? of_deepspec : usual_key;
    int32_t n_layer = x->target->hparams.n_layer;
    const json_t *list = json_object_get(s->config, key);
    if (!json_is_array(list)) list = json_object_get(json_object_get(s->config, "eagle_config"), key);
    if (!json_is_array(list)) {
        const int32_t shift = x->reading.counts_outputs,
                      usual[] = {2 + shift, n_layer / 2 + shift, n_layer - 3 + shift};
        if (n_layer < 6)
            return error_set(err, FR_ERR_UNSUPPORTED,
                             "%s: its config.json has no %s, and the target has too few layers for the usual list",
                             published_path(x->from), key);
        memcpy(s->streams, usual, sizeof usual);
        s->n_streams = 3;
        return FR_OK;
    }
    size_t n = json_array_size(list);
    if (n < 1 || n > MOST_STREAMS) return import_refuse_config(x, key, err);
    s->n_streams = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        int64_t after = json_is_integer(value) ? (int64_t)json_integer_value(value) + x->reading.counts_outputs : -1;
        if (after < 0 || after > n_layer)
            return error_set(err, FR_ERR_MISMATCH,
                             "%s: %s in its config.json names a layer that the target, with %d layers, does not have",
                             published_path(x->from), key, n_layer);
        s->streams[i] = (int32_t)after;
    }
    return FR_OK;
}

/* A tensor of a layer in the checkpoint; kind: "weight" or "bias". */
static const char *layer_name(const Import *x, int32_t i, const char *what, const char *kind, char out[96]) {
    bool is_midlayer = i == 0 && published_find(x->from, "midlayer.self_attn.q_proj.weight");
    if (is_midlayer) snprintf(out, 96, "midlayer.%s.%s", what, kind);
    else snprintf(out, 96, "layers.%d.%s.%s", (int)i, what, kind);
    return out;
}

static int32_t count_layers(const Import *x) {
    char name[96];
    int32_t n = 1;
    while (n < EAGLE3_MAX_LAYERS && published_find(x->from, layer_name(x, n, "self_attn.q_proj", "weight", name))) n++;
    return n;
}

static int read_shape(Import *x, Shape *s, fr_error *err) {
    int status = import_read_shape(x, s->config, &s->of, err);
    if (status) return status;
    s->n_layer = count_layers(x);
    /* Some files have the number of the target's layers here. */
    int64_t named = json_integer_value(json_object_get(s->of.layer, "num_hidden_layers"));
    if (named > s->n_layer && named <= EAGLE3_MAX_LAYERS)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: has tensors of %d layers, and its config.json has %lld for num_hidden_layers",
                         published_path(x->from), s->n_layer, (long long)named);
    status = read_streams(x, s, err);
    return status ? status : import_add_shape(x, EAGLE3, &s->of, s->n_layer, EAGLE3_ROPE_FACTORS, err);
}

/* Returns a flag of config.json or of its eagle_config; `otherwise` if neither has it. */
static bool is_set(const Shape *s, const char *key, bool otherwise) {
    const json_t *value = json_object_get(s->config, key);
    if (!value) value = json_object_get(json_object_get(s->config, "eagle_config"), key);
    return value ? json_is_true(value) : otherwise;
}

/* speculators' files whose config.json lacks norm_before_residual have it set, as vLLM reads them. */
static void set_keys(Import *x, const Shape *s) {
    const struct {
        const char *key, *from;
        bool otherwise;
    } flags[] = {{KEY(EAGLE3_KEY_NORM_BEFORE_RESIDUAL), "norm_before_residual", s->of.layer != s->config},
                 {KEY(EAGLE3_KEY_NORM_OUTPUT), "norm_output", false}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (is_set(s, flags[i].from, flags[i].otherwise)) gguf_set_bool(x->w, flags[i].key, true);
    gguf_set_i32s(x->w, KEY(EAGLE3_KEY_LAYERS), s->streams, s->n_streams);
}

/* Adds what P-EAGLE has besides, if the checkpoint is one. */
static int add_block(Import *x, const Shape *s, fr_error *err) {
    static const char *const names[] = {"mask_token_id", "pard_token", "ptd_token_id"};
    const json_t *method = json_object_get(json_object_get(s->config, "speculators_config"), "proposal_methods"),
                 *depths = json_object_get(s->config, "num_depths"), *mask = NULL;
    int64_t n = s->n_streams * (int64_t)x->target->hparams.n_embd;
    float *streams;
    if (!published_find(x->from, "mask_hidden")) return FR_OK;
    if (!depths) depths = json_object_get(json_array_get(method, 0), "speculative_tokens");
    json_int_t block = depths ? json_integer_value(depths) : USUAL_BLOCK;
    if (block < 1 || block > EAGLE_MAX_DEPTH) return import_refuse_config(x, "num_depths", err);
    for (size_t i = 0; i < sizeof names / sizeof *names && !mask; i++) mask = json_object_get(s->config, names[i]);
    if (!json_is_integer(mask) || json_integer_value(mask) < 0 ||
        json_integer_value(mask) >= x->target->hparams.n_vocab)
        return import_refuse_config(x, names[0], err);
    import_set_int(x, EAGLE3 EAGLE3_KEY_BLOCK, (int64_t)block);
    import_set_int(x, EAGLE3 EAGLE3_KEY_MASK, (int64_t)json_integer_value(mask));
    int status = import_add_floats(x, EAGLE3_MASK_HIDDEN, n, &streams, err);
    return status ? status : import_read_vector(x, "mask_hidden", n, streams, err);
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */

static int refuse_promise(const Import *x, const char *key, const char *tensor, fr_error *err) {
    return error_set(err, FR_ERR_FORMAT, "%s: its config.json sets %s, but tensor %s is missing",
                     published_path(x->from), key, tensor);
}

/* Adds the norms before fc: one of all streams, or one of each, which become one tensor. */
static int add_stream_norms(Import *x, const Shape *s, fr_error *err) {
    int64_t n = x->target->hparams.n_embd;
    if (published_find(x->from, "input_norm.weight")) {
        gguf_set_bool(x->w, KEY(EAGLE3_KEY_NORM_BEFORE_FC), true);
        return import_add(x, EAGLE3_STREAM_NORM, "input_norm.weight", s->n_streams * n, 0, NULL, err);
    }
    float *all;
    if (!published_find(x->from, "fc_norm.0.weight")) {
        if (is_set(s, "norm_before_fc", false)) return refuse_promise(x, "norm_before_fc", "input_norm.weight", err);
        return is_set(s, "fc_norm", false) ? refuse_promise(x, "fc_norm", "fc_norm.0.weight", err) : FR_OK;
    }
    gguf_set_bool(x->w, KEY(EAGLE3_KEY_NORM_EACH_STREAM), true);
    int status = import_add_floats(x, EAGLE3_STREAM_NORM, s->n_streams * n, &all, err);
    for (int32_t i = 0; i < s->n_streams && !status; i++) {
        char name[32];
        snprintf(name, sizeof name, "fc_norm.%d.weight", i);
        status = import_read_vector(x, name, n, all + i * n, err);
    }
    return status;
}

/* Adds the biases and the norms of heads, if the checkpoint has them. */
static int add_head_vectors(Import *x, const Shape *s, int32_t layer, fr_error *err) {
    static const char *const names[EAGLE3_HEAD_VECTORS] = {EAGLE3_HEAD_VECTOR_NAMES};
    int64_t q = s->of.n_head * s->of.head_dim, kv = s->of.n_head_kv * s->of.head_dim;
    const struct {
        const char *from, *what;
        int64_t n;
        ImportRows rows;
    } vectors[] = {{"self_attn.q_proj", "bias", q, IMPORT_ROWS_PAIRED},
                   {"self_attn.k_proj", "bias", kv, IMPORT_ROWS_PAIRED},
                   {"self_attn.v_proj", "bias", kv, 0},
                   {"self_attn.o_proj", "bias", s->of.n_embd, 0},
                   {"self_attn.q_norm", "weight", s->of.head_dim, IMPORT_ROWS_PAIRED},
                   {"self_attn.k_norm", "weight", s->of.head_dim, IMPORT_ROWS_PAIRED}};
    int status = FR_OK;
    for (int i = 0; i < EAGLE3_HEAD_VECTORS && !status; i++) {
        char name[64], from[96];
        snprintf(name, sizeof name, EAGLE3_LAYER, (int)layer, names[i]);
        layer_name(x, layer, vectors[i].from, vectors[i].what, from);
        status = import_add_optional(x, name, from, vectors[i].n, 0, vectors[i].rows, err);
    }
    return status;
}

static int add_layer(Import *x, const Shape *s, int32_t layer, fr_error *err) {
    int64_t n = s->of.n_embd, n_qkv = layer ? n : 2 * n, q = s->of.n_head * s->of.head_dim,
            kv = s->of.n_head_kv * s->of.head_dim;
    const struct {
        const char *name, *from;
        int64_t n_in, n_out;
        ImportRows rows;
    } tensors[] = {
        {LAYER_ATTN_NORM, "input_layernorm", n, 0, 0},
        {LAYER_ATTN_Q, "self_attn.q_proj", n_qkv, q, IMPORT_ROWS_PAIRED},
        {LAYER_ATTN_K, "self_attn.k_proj", n_qkv, kv, IMPORT_ROWS_PAIRED},
        {LAYER_ATTN_V, s->of.has_values ? "self_attn.v_proj" : "self_attn.k_proj", n_qkv, kv, 0},
        {LAYER_ATTN_OUTPUT, "self_attn.o_proj", q, n, 0},
        {LAYER_FFN_NORM, import_ffn_norm(&s->of), n, 0, 0},
        {LAYER_FFN_GATE, "mlp.gate_proj", n, s->of.n_ff, 0},
        {LAYER_FFN_UP, "mlp.up_proj", n, s->of.n_ff, 0},
        {LAYER_FFN_DOWN, "mlp.down_proj", s->of.n_ff, n, 0},
    };
    int status = FR_OK;
    x->head_dim = s->of.head_dim, x->n_rot = s->of.n_rot;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && !status; i++) {
        char name[64], from[96];
        ImportTensor *t;
        snprintf(name, sizeof name, EAGLE3_LAYER, (int)layer, tensors[i].name);
        layer_name(x, layer, tensors[i].from, "weight", from);
        status = import_add(x, name, from, tensors[i].n_in, tensors[i].n_out, &t, err);
        if (!status) t->rows = tensors[i].rows;
    }
    if (!status) status = add_head_vectors(x, s, layer, err);
    char prefix[32];
    snprintf(prefix, sizeof prefix, "layers.%d.", (int)layer);
    return status ? status : import_add_gemma_parts(x, &s->of, layer, prefix, err);
}

int import_plan_eagle3(Import *x, fr_error *err) {
    json_t *config = published_read_config(x->from);
    Shape s = {.config = config};
    int64_t width = x->target->hparams.n_embd;
    int status = read_shape(x, &s, err);
    if (!status) set_keys(x, &s);
    if (!status) status = import_add(x, EAGLE3_FC ".weight", "fc.weight", s.n_streams * width, s.of.n_embd, NULL, err);
    if (!status && published_find(x->from, "fc.bias"))
        status = import_add(x, EAGLE3_FC ".bias", "fc.bias", s.of.n_embd, 0, NULL, err);
    if (!status) status = add_stream_norms(x, &s, err);
    char hidden_norm[96];
    if (!status)
        status = import_add(x, EAGLE3_HIDDEN_NORM, layer_name(x, 0, "hidden_norm", "weight", hidden_norm), s.of.n_embd,
                            0, NULL, err);
    for (int32_t i = 0; i < s.n_layer && !status; i++) status = add_layer(x, &s, i, err);
    if (!status) status = add_block(x, &s, err);
    if (!status) status = import_add(x, EAGLE3_OUTPUT_NORM, "norm.weight", s.of.n_embd, 0, NULL, err);
    if (!status) status = import_add_head(x, EAGLE3_OUTPUT, s.of.n_embd, err);
    if (!status) status = import_add_embedding(x, EAGLE3_EMBEDDING, s.of.n_embd, err);
    json_decref(config);
    return status;
}
