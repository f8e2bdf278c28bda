/* import_dflash.c - published weights of DFlash (`forerun import-drafter dflash`), in the layouts of z-lab and
 * speculators:
 *
 *     layers.<i>.*                   self_attn.{q,k,v,o}_proj with an optional .bias, self_attn.{q,k}_norm,
 *                                    self_attn.attention_sink_bias (optional), mlp.{gate,up,down}_proj,
 *                                    input_layernorm and post_attention_layernorm
 *     fc.weight [H][S T]             S streams of the target
 *     hidden_norm.weight, norm.weight
 *     embed_tokens.weight [V][H]     left out if it is the target's
 *     lm_head.weight, d2t, t2d       optional
 *     markov_head.markov_w1.weight [V][r], markov_head.markov_w2.weight [D][r],
 *     markov_head.gate_proj.weight [r][H + r] and .bias [r], where config.json's markov_head_type is gated, or
 *     markov_head.joint_proj.weight [3r][2r + H] and .bias [3r], where it is rnn,
 *     confidence_head.proj.weight [1][H + r] or [1][H], and .bias [1]      DSpark, optional
 *     layers.<i>.{attention,mlp}_conv.kernel_projection.weight [2 taps H / group][H], and .base_kernel [2][taps][H],
 *     candidate_selector.{predecessor,successor}_codebook [V][r], .hidden_projection.weight [r][H]   DFlash 2, optional
 *
 * DeepSpec's drafters for Gemma 4 have layers of that form (model_type): pre_ and post_feedforward_layernorm and
 * layer_scalar in addition, no v_proj where attention_k_eq_v is set, and embeddings that are multiplied by sqrt(H).
 *
 * config.json has the shape of the layers (import_config.c), block_size, mask_token_id and the list of layers, and for
 * DFlash 2 conv_kernel_size, conv_group_size, selector_rank and selector_top_k. z-lab's files have these in
 * dflash_config or at the top, and their target_layer_ids name outputs as a rule. speculators'
 * aux_hidden_state_layer_ids name inputs. layer_types says which layers have a window of sliding_window, set_causality
 * which slots see each other. In DSpark's blocks the first slot predicts as well, unless sample_from_anchor is false,
 * or missing in speculators' layout. */
#include "draft/feedback.h"
#include "draft/learned/learned_files.h"
#include "train/import.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_STREAMS = 16, MOST_LAYERS = 32, USUAL_BLOCK = 16 };

#define MARKOV_BEFORE "markov_head.markov_w1.weight"
#define MARKOV_OUTPUT "markov_head.markov_w2.weight"
#define MARKOV_GATE "markov_head.gate_proj" /* .weight and .bias, as the next two */
#define MARKOV_JOINT "markov_head.joint_proj"
#define CONFIDENCE_HEAD "confidence_head.proj"
#define SELECTOR "candidate_selector."

static const char *const list_names[] = {"target_layer_ids", "aux_hidden_state_layer_ids"};

/* Returns a value of dflash_config or, if that lacks it, of the top of config.json; NULL: neither has it. */
static const json_t *value_of(const json_t *config, const char *key) {
    const json_t *value = json_object_get(json_object_get(config, "dflash_config"), key);
    return value ? value : json_object_get(config, key);
}

bool import_names_outputs(const Published *from) {
    json_t *config = published_read_config(from);
    bool is_named = json_is_array(value_of(config, list_names[0]));
    json_decref(config);
    return is_named;
}

/* ---- config.json ------------------------------------------------------------------------------------------ */

static int set_streams(Import *x, const json_t *config, int32_t *n_streams, fr_error *err) {
    int32_t streams[MOST_STREAMS], n_layer = x->target->hparams.n_layer;
    const json_t *list = value_of(config, list_names[0]);
    if (!list) list = value_of(config, list_names[1]);
    size_t n = json_array_size(list);
    if (n < 1 || n > MOST_STREAMS) return import_refuse_config(x, list_names[0], err);
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_array_get(list, i);
        int64_t after = json_is_integer(value) ? (int64_t)json_integer_value(value) + x->reading.counts_outputs : -1;
        if (after < 0 || after > n_layer)
            return error_set(err, FR_ERR_MISMATCH,
                             "%s: %s in its config.json names a layer that the target, with %d layers, does not have",
                             published_path(x->from), list_names[0], n_layer);
        streams[i] = (int32_t)after;
    }
    *n_streams = (int32_t)n;
    gguf_set_i32s(x->w, DRAFTER_KEY(DFLASH DFLASH_KEY_LAYERS), streams, *n_streams);
    return FR_OK;
}

/* Returns whether the file is one of DSpark, which may have no Markov head: then its markov_rank is 0. */
static bool is_dspark(const Published *from, const json_t *config) {
    return published_find(from, MARKOV_BEFORE) || json_is_integer(value_of(config, "markov_rank"));
}

/* Returns the flag that says whether the first slot of a block predicts; NULL: there is none. */
static const json_t *anchor_of(const json_t *config) {
    const json_t *value = value_of(config, "sample_from_anchor");
    return value ? value : value_of(config, "shift_label"); /* its name in some files of speculators */
}

bool import_lacks_anchor(const Published *from) {
    json_t *config = published_read_config(from);
    bool lacks = is_dspark(from, config) && !anchor_of(config);
    json_decref(config);
    return lacks;
}

/* Sets which slots of a block see each other. Where config.json does not say, slots of z-lab's and speculators' layers
 * with a window do not see later ones, but those of DSpark in z-lab's layout and of DFlash 2 in speculators' do. */
static void set_causality(Import *x, const json_t *config, bool has_windows) {
    const json_t *all = json_object_get(config, "is_causal"),
                 *open = json_object_get(config, "sliding_window_non_causal");
    bool is_speculators = json_object_get(config, "transformer_layer_config") != NULL;
    bool is_open = is_speculators ? value_of(config, DFLASH_KEY_CONV_TAPS) != NULL : is_dspark(x->from, config);
    if (!all) all = json_object_get(json_object_get(config, "dflash_config"), "causal");
    if (open) is_open = json_is_true(open);
    if (all) gguf_set_bool(x->w, DRAFTER_KEY(DFLASH DFLASH_KEY_CAUSAL), json_is_true(all));
    else if (has_windows) gguf_set_bool(x->w, DRAFTER_KEY(DFLASH DFLASH_KEY_CAUSAL_WINDOW), !is_open);
}

/* Returns a value of the part of config.json that describes the layers or, if that lacks it, of its top. */
static const json_t *of_layers(const json_t *config, const ImportShape *s, const char *key) {
    const json_t *value = json_object_get(s->layer, key);
    return value ? value : json_object_get(config, key);
}

/* Sets which layers have a window: those that layer_types names or, with use_swa, all if it names none. */
static int set_windows(Import *x, const json_t *config, const ImportShape *s, int64_t n_layer, fr_error *err) {
    const json_t *types = of_layers(config, s, "layer_types"), *sliding = of_layers(config, s, "sliding_window"),
                 *inner = json_object_get(config, "dflash_config");
    int32_t has_window[MOST_LAYERS] = {0}, n_windows = 0;
    int64_t window, outer = 0;
    if (types && json_array_size(types) != (size_t)n_layer) return import_refuse_config(x, "layer_types", err);
    for (int64_t i = 0; types && i < n_layer; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type) return import_refuse_config(x, "layer_types", err);
        has_window[i] = strcmp(type, "sliding_attention") == 0;
        if (!has_window[i] && strcmp(type, "full_attention") != 0) return import_refuse_config(x, "layer_types", err);
        n_windows += has_window[i];
    }
    if (n_windows == 0 && json_is_true(json_object_get(inner, "use_swa")))
        for (; n_windows < n_layer; n_windows++) has_window[n_windows] = 1;
    set_causality(x, config, n_windows > 0);
    if (n_windows == 0) return FR_OK;
    if (json_is_integer(sliding)) outer = (int64_t)json_integer_value(sliding);
    int status = import_config_int(x, inner, "swa_window_size", outer, &window, err);
    if (status) return import_refuse_config(x, "sliding_window", err);
    import_set_int(x, DFLASH DFLASH_KEY_WINDOW, window);
    gguf_set_i32s(x->w, DRAFTER_KEY(DFLASH DFLASH_KEY_WINDOW_PATTERN), has_window, (int32_t)n_layer);
    return FR_OK;
}

/* Returns whether the rope rotates neighbours, which config.json says by rope_is_neox_style false. In forerun's and
 * llama.cpp's files it rotates halves, so that the rows of q and k change their places. */
static bool rotates_pairs(const json_t *config, const ImportShape *s) {
    static const char *const names[] = {"rope_is_neox_style", "is_neox_style"};
    for (int i = 0; i < 2; i++)
        if (json_is_false(json_object_get(s->layer, names[i])) || json_is_false(json_object_get(config, names[i])))
            return true;
    return false;
}

/* Sets the factors around the layers. */
static void set_scales(Import *x, const json_t *config, const ImportShape *s) {
    const json_t *embedding = value_of(config, "input_embedding_scale"),
                 *logits = value_of(config, "output_multiplier"), *cap = value_of(config, "final_logit_softcapping");
    import_set_float(x, DFLASH DFLASH_KEY_EMBEDDING_SCALE,
                     embedding     ? json_number_value(embedding)
                     : s->is_gemma ? sqrt((double)s->n_embd)
                                   : 1);
    if (logits) import_set_float(x, DFLASH DFLASH_KEY_LOGIT_SCALE, json_number_value(logits));
    if (cap) import_set_float(x, DFLASH DFLASH_KEY_LOGIT_CAP, json_number_value(cap));
}

static int set_block(Import *x, const json_t *config, fr_error *err) {
    const json_t *block = value_of(config, "block_size"), *mask = value_of(config, "mask_token_id");
    json_int_t n = block ? json_integer_value(block) : USUAL_BLOCK;
    if (n < 2 || n > 64) return import_refuse_config(x, "block_size", err);
    if (!json_is_integer(mask) || json_integer_value(mask) < 0 ||
        json_integer_value(mask) >= x->target->hparams.n_vocab)
        return import_refuse_config(x, "mask_token_id", err);
    import_set_int(x, DFLASH DFLASH_KEY_BLOCK, (int64_t)n);
    import_set_int(x, DFLASH DFLASH_KEY_MASK, (int64_t)json_integer_value(mask));
    const json_t *from_anchor = anchor_of(config);
    bool is_set = is_dspark(x->from, config) && value_of(config, list_names[1]) == NULL;
    if (from_anchor) is_set = json_is_true(from_anchor);
    else if (x->reading.is_other_anchor) is_set = !is_set;
    gguf_set_bool(x->w, DRAFTER_KEY(DFLASH DFLASH_KEY_FROM_ANCHOR), is_set);
    return FR_OK;
}

/* ---- tensors ---------------------------------------------------------------------------------------------- */

static int add_layer(Import *x, const ImportShape *s, int64_t i, ImportRows rotated, fr_error *err) {
    int64_t n = s->n_embd, q = s->n_head * s->head_dim, kv = s->n_head_kv * s->head_dim;
    const ImportRows same = IMPORT_ROWS_SAME;
    const struct {
        const char *name, *from;
        int64_t n_in, n_out;
        bool is_optional;
        ImportRows rows;
    } tensors[] = {
        {DFLASH_ATTN_NORM, "input_layernorm", n, 0, false, same},
        {DFLASH_ATTN_Q, "self_attn.q_proj", n, q, false, rotated},
        {DFLASH_ATTN_K, "self_attn.k_proj", n, kv, false, rotated},
        {DFLASH_ATTN_V, "self_attn.v_proj", n, kv, !s->has_values, same},
        {DFLASH_ATTN_OUTPUT, "self_attn.o_proj", q, n, false, same},
        {DFLASH_Q_NORM, "self_attn.q_norm", s->head_dim, 0, true, rotated},
        {DFLASH_K_NORM, "self_attn.k_norm", s->head_dim, 0, true, rotated},
        {DFLASH_FFN_NORM, import_ffn_norm(s), n, 0, false, same},
        {DFLASH_FFN_GATE, "mlp.gate_proj", n, s->n_ff, false, same},
        {DFLASH_FFN_UP, "mlp.up_proj", n, s->n_ff, false, same},
        {DFLASH_FFN_DOWN, "mlp.down_proj", s->n_ff, n, false, same},
    };
    const struct {
        const char *name, *from;
        int64_t n;
        ImportRows rows;
    } vectors[] = {{DFLASH_BIAS(DFLASH_ATTN_Q), "q_proj.bias", q, rotated},
                   {DFLASH_BIAS(DFLASH_ATTN_K), "k_proj.bias", kv, rotated},
                   {DFLASH_BIAS(DFLASH_ATTN_V), "v_proj.bias", kv, same},
                   {DFLASH_BIAS(DFLASH_ATTN_OUTPUT), "o_proj.bias", n, same},
                   {DFLASH_WEIGHT(DFLASH_SINKS), "attention_sink_bias", s->n_head, same},
                   {DFLASH_WEIGHT(DFLASH_SINKS), "sinks", s->n_head, same}};
    int status = FR_OK;
    for (size_t k = 0; k < sizeof tensors / sizeof *tensors && !status; k++) {
        char name[64], from[96];
        snprintf(name, sizeof name, DFLASH_LAYER, (int)i, tensors[k].name);
        snprintf(from, sizeof from, "layers.%d.%s.weight", (int)i, tensors[k].from);
        ImportTensor *t = NULL;
        if (tensors[k].is_optional && !published_find(x->from, from)) continue;
        status = import_add(x, name, from, tensors[k].n_in, tensors[k].n_out, &t, err);
        if (t) t->rows = tensors[k].rows;
    }
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors && !status; k++) {
        char name[64], from[96];
        snprintf(name, sizeof name, vectors[k].name, (int)i);
        snprintf(from, sizeof from, "layers.%d.self_attn.%s", (int)i, vectors[k].from);
        status = import_add_optional(x, name, from, vectors[k].n, 0, vectors[k].rows, err);
    }
    char prefix[32];
    snprintf(prefix, sizeof prefix, "layers.%d.", (int)i);
    return status ? status : import_add_gemma_parts(x, s, (int32_t)i, prefix, err);
}

/* Returns the first of two names that the checkpoint has as a tensor, or the first name. */
static const char *tensor_named(const Import *x, const char *name, const char *other) {
    return !published_find(x->from, name) && published_find(x->from, other) ? other : name;
}

/* Adds the convolutions of a layer. */
static int add_convs(Import *x, int64_t i, int64_t n_embd, int64_t taps, int64_t group, fr_error *err) {
    static const struct {
        const char *from, *kernels, *part;
    } parts[] = {{"attention_conv", DFLASH_ATTN_CONV, "attn"}, {"mlp_conv", DFLASH_FFN_CONV, "ffn"}};
    const int64_t dims[] = {2, taps, n_embd};
    int status = FR_OK;
    for (int k = 0; k < 2 && !status; k++) {
        char name[64], from[96];
        snprintf(name, sizeof name, DFLASH_LAYER, (int)i, parts[k].kernels);
        snprintf(from, sizeof from, "layers.%d.%s.kernel_projection.weight", (int)i, parts[k].from);
        status = import_add(x, name, from, n_embd, 2 * taps * (n_embd / group), NULL, err);
        snprintf(name, sizeof name, DFLASH_CONV_BASE, (int)i, parts[k].part);
        snprintf(from, sizeof from, "layers.%d.%s.base_kernel", (int)i, parts[k].from);
        if (!status) status = import_add_cube(x, name, from, dims, err);
    }
    return status;
}

/* Adds the convolutions and the selector of DFlash 2, if config.json has them. */
static int add_selection(Import *x, const json_t *config, int64_t n_embd, int64_t n_layer, fr_error *err) {
    static const struct {
        const char *key, *name;
        json_int_t max;
    } keys[] = {{DFLASH_KEY_CONV_TAPS, DFLASH DFLASH_KEY_CONV_TAPS, 64},
                {DFLASH_KEY_CONV_GROUP, DFLASH DFLASH_KEY_CONV_GROUP, 1 << 16},
                {DFLASH_KEY_SELECTOR_RANK, DFLASH DFLASH_KEY_SELECTOR_RANK, 4096},
                {DFLASH_KEY_SELECTOR_TOP, DFLASH DFLASH_KEY_SELECTOR_TOP, TOP_K_MAX}};
    int64_t values[4] = {0};
    int status = FR_OK;
    for (int k = 0; k < 4; k++) {
        const json_t *value = value_of(config, keys[k].key);
        if (!value) continue;
        if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > keys[k].max)
            return import_refuse_config(x, keys[k].key, err);
        values[k] = (int64_t)json_integer_value(value);
        import_set_int(x, keys[k].name, values[k]);
    }
    int64_t taps = values[0], group = values[1], rank = values[2], n_vocab = x->target->hparams.n_vocab;
    if ((taps == 0) != (group == 0) || (group && n_embd % group))
        return import_refuse_config(x, DFLASH_KEY_CONV_GROUP, err);
    if ((rank == 0) != (values[3] == 0)) return import_refuse_config(x, DFLASH_KEY_SELECTOR_TOP, err);
    for (int64_t i = 0; i < n_layer && taps && !status; i++) status = add_convs(x, i, n_embd, taps, group, err);
    if (status || rank == 0) return status;
    const char *before = tensor_named(x, SELECTOR "predecessor_codebook", SELECTOR "predecessor_codebook.weight"),
               *after = tensor_named(x, SELECTOR "successor_codebook", SELECTOR "successor_codebook.weight");
    status = import_add(x, DFLASH_SELECTOR_BEFORE, before, rank, n_vocab, NULL, err);
    if (!status) status = import_add(x, DFLASH_SELECTOR_AFTER, after, rank, n_vocab, NULL, err);
    if (status) return status;
    return import_add(x, DFLASH_SELECTOR_HIDDEN ".weight", SELECTOR "hidden_projection.weight", n_embd, rank, NULL,
                      err);
}

/* Adds what a Markov head of that type has in addition. */
static int add_gate(Import *x, const ImportShape *s, const char *type, int64_t rank, fr_error *err) {
    bool is_recurrent = strcmp(type, "rnn") == 0;
    if (strcmp(type, "vanilla") == 0) return FR_OK;
    if (strcmp(type, "gated") != 0 && !is_recurrent)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: the markov_head_type in its config.json is not supported; vanilla, gated and rnn are",
                         published_path(x->from));
    int64_t n_in = s->n_embd + (is_recurrent ? 2 : 1) * rank, n_out = (is_recurrent ? 3 : 1) * rank;
    const char *const names[2][2] = {{DFLASH_MARKOV_GATE ".weight", MARKOV_GATE ".weight"},
                                     {DFLASH_MARKOV_JOINT ".weight", MARKOV_JOINT ".weight"}},
                      *const biases[2][2] = {{DFLASH_MARKOV_GATE ".bias", MARKOV_GATE ".bias"},
                                             {DFLASH_MARKOV_JOINT ".bias", MARKOV_JOINT ".bias"}};
    int status = import_add(x, names[is_recurrent][0], names[is_recurrent][1], n_in, n_out, NULL, err);
    return status ? status : import_add(x, biases[is_recurrent][0], biases[is_recurrent][1], n_out, 0, NULL, err);
}

/* Adds the confidence head, if the checkpoint has one. It reads the hidden state, and the vector of the token before
 * unless its own width says that it does not. */
static int add_confidence(Import *x, int64_t n_embd, int64_t rank, fr_error *err) {
    const SafeTensor *head = published_find(x->from, CONFIDENCE_HEAD ".weight");
    if (!head) return FR_OK;
    int64_t n_in = head->n_dims == 2 && head->dims[1] == n_embd ? n_embd : n_embd + rank;
    int status = import_add(x, DFLASH_CONFIDENCE ".weight", CONFIDENCE_HEAD ".weight", n_in, 1, NULL, err);
    if (status || !published_find(x->from, CONFIDENCE_HEAD ".bias")) return status;
    return import_add(x, DFLASH_CONFIDENCE ".bias", CONFIDENCE_HEAD ".bias", 1, 0, NULL, err);
}

/* Adds the heads of DSpark, if the checkpoint has them. Without a Markov head the positions of a block do not depend on
 * each other, and the confidence head reads only their hidden states. */
static int add_markov(Import *x, const json_t *config, const ImportShape *s, fr_error *err) {
    const char *type = json_string_value(value_of(config, "markov_head_type"));
    const SafeTensor *before = published_find(x->from, MARKOV_BEFORE), *d2t = published_find(x->from, "d2t");
    int64_t n_vocab = x->target->hparams.n_vocab, rank = before && before->n_dims == 2 ? before->dims[1] : 0;
    bool has_rank = json_integer_value(value_of(config, "markov_rank")) > 0;
    if (!before && !has_rank) return add_confidence(x, s->n_embd, 0, err);
    int status = import_add(x, DFLASH_MARKOV_BEFORE, MARKOV_BEFORE, rank, n_vocab, NULL, err);
    if (!status)
        status = import_add(x, DFLASH_MARKOV_OUTPUT, MARKOV_OUTPUT, rank, d2t ? d2t->dims[0] : n_vocab, NULL, err);
    if (!status) status = add_gate(x, s, type ? type : "vanilla", rank, err);
    return status ? status : add_confidence(x, s->n_embd, rank, err);
}

static int add_all(Import *x, const json_t *config, fr_error *err) {
    ImportShape s;
    int64_t n_layer = 0, width = x->target->hparams.n_embd;
    int32_t n_streams = 0;
    int status = import_read_shape(x, config, &s, err);
    if (!status) status = import_config_int(x, s.layer, "num_hidden_layers", 0, &n_layer, err);
    if (!status && n_layer > MOST_LAYERS) status = import_refuse_config(x, "num_hidden_layers", err);
    if (!status) status = import_add_shape(x, DFLASH, &s, n_layer, DFLASH_ROPE_FACTORS, err);
    if (!status) status = set_streams(x, config, &n_streams, err);
    if (!status) status = set_block(x, config, err);
    if (!status) status = set_windows(x, config, &s, n_layer, err);
    if (!status) set_scales(x, config, &s);
    x->head_dim = s.head_dim, x->n_rot = s.n_rot;
    ImportRows rotated = rotates_pairs(config, &s) ? IMPORT_ROWS_HALVED : IMPORT_ROWS_SAME;
    const char *fc = tensor_named(x, "fc.weight", "encoder.fc.weight"),
               *norm = tensor_named(x, "hidden_norm.weight", "encoder.output_norm_enc.weight");
    if (!status) status = import_add(x, DFLASH_FC, fc, n_streams * width, s.n_embd, NULL, err);
    if (!status) status = import_add(x, DFLASH_CONTEXT_NORM, norm, s.n_embd, 0, NULL, err);
    for (int64_t i = 0; i < n_layer && !status; i++) status = add_layer(x, &s, i, rotated, err);
    if (!status) status = import_add(x, DFLASH_OUTPUT_NORM, "norm.weight", s.n_embd, 0, NULL, err);
    if (!status) status = add_markov(x, config, &s, err);
    if (!status) status = add_selection(x, config, s.n_embd, n_layer, err);
    if (!status) status = import_add_head(x, DFLASH_OUTPUT, s.n_embd, err);
    if (json_is_false(json_object_get(config, "has_embed_tokens"))) published_pass_over(x->from, "embed_tokens.weight");
    else if (!status) status = import_add_embedding(x, DFLASH_EMBEDDING, s.n_embd, err);
    return status;
}

int import_plan_dflash(Import *x, fr_error *err) {
    json_t *config = published_read_config(x->from);
    int status = add_all(x, config, err);
    json_decref(config);
    return status;
}
