/* import_config.c - what the plans of drafters with layers share: the shape of the layers in config.json with the rope,
 * the LM head and embedding that a checkpoint may have, and a layer that has the target's heads.
 *
 * The keys of config.json are those of Hugging Face. They are at its top (SafeAILab, SpecForge, z-lab) or in its
 * transformer_layer_config (speculators). A checkpoint has an LM head over some of the target's tokens as
 * lm_head.weight [D][H], d2t [D] and t2d [V]: the drafter's token i is the target's token i + d2t[i]. */
#include "train/import.h"

#include "base/math_functions.h"
#include "draft/learned/learned_files.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the shape -------------------------------------------------------------------------------------------- */

int import_refuse_config(const Import *x, const char *key, fr_error *err) {
    return error_set(err, FR_ERR_FORMAT, "%s: the %s in its config.json is missing or out of range",
                     published_path(x->from), key);
}

int import_config_int(const Import *x, const json_t *from, const char *key, int64_t fallback, int64_t *out,
                      fr_error *err) {
    const json_t *value = json_object_get(from, key);
    *out = value ? (json_is_integer(value) ? (int64_t)json_integer_value(value) : 0) : fallback;
    return *out >= 1 && *out <= 1 << 28 ? FR_OK : import_refuse_config(x, key, err);
}

static double real_of(const json_t *from, const char *key, double fallback) {
    const json_t *value = json_object_get(from, key);
    return json_is_number(value) ? json_number_value(value) : fallback;
}

static bool is_text(const json_t *value, const char *text) {
    return json_is_string(value) && strcmp(json_string_value(value), text) == 0;
}

/* Returns the type of the rope: default, linear, llama3, yarn or proportional. Qwen's mrope has a position for each of
 * three dimensions of an image, which are the same in text. */
static const char *type_of_rope(const json_t *rope) {
    const json_t *type = json_object_get(rope, "rope_type");
    if (!type) type = json_object_get(rope, "type");
    return !json_is_string(type) || is_text(type, "mrope") ? "default" : json_string_value(type);
}

/* If rope_parameters has a rope for each kind of layer, s->rope becomes that of the drafter's layers. */
static int choose_rope(const Import *x, ImportShape *s, const json_t *config, fr_error *err) {
    const json_t *types = json_object_get(s->layer, "layer_types"), *full = json_object_get(s->rope, "full_attention"),
                 *sliding = json_object_get(s->rope, "sliding_attention");
    if (!full && !sliding) return FR_OK;
    if (!types) types = json_object_get(config, "layer_types");
    size_t n = json_array_size(types), n_sliding = 0;
    for (size_t i = 0; i < n; i++) n_sliding += is_text(json_array_get(types, i), "sliding_attention");
    s->rope = n_sliding == 0 || (n_sliding < n && json_equal(full, sliding)) ? full : sliding;
    if (s->rope && (n_sliding == 0 || n_sliding == n || json_equal(full, sliding))) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: the rope_parameters in its config.json give its layers different ropes, which is not "
                     "supported",
                     published_path(x->from));
}

/* Refuses another activation of the feed-forward part than that of the layers' form. Sets how many components of a head
 * rotate: all of them where the frequencies of the others are 0. */
static int read_forms(const Import *x, ImportShape *s, fr_error *err) {
    const char *key = s->is_gemma ? "hidden_activation" : "hidden_act",
               *known = s->is_gemma ? "gelu_pytorch_tanh" : "silu";
    const json_t *activation = json_object_get(s->layer, key);
    double part = real_of(s->layer, "partial_rotary_factor", real_of(s->rope, "partial_rotary_factor", 1));
    if (strcmp(type_of_rope(s->rope), "proportional") == 0) part = 1;
    s->n_rot = part > 0 && part <= 1 ? (int64_t)((double)s->head_dim * part) : 0;
    if (s->n_rot < 2 || s->n_rot % 2) return import_refuse_config(x, "partial_rotary_factor", err);
    if (!json_is_string(activation) || is_text(activation, known)) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED, "%s: the %s in its config.json is not supported; %s is",
                     published_path(x->from), key, known);
}

/* Layers of Gemma 4 without a window have a head size, a number of KV heads and a rope of their own, and may make
 * values of their keys. All layers of a drafter must be of one kind. */
static int read_gemma(const Import *x, ImportShape *s, fr_error *err) {
    const json_t *types = json_object_get(s->layer, "layer_types");
    bool has_windows = is_text(json_array_get(types, 0), "sliding_attention"),
         shares = !has_windows && json_is_true(json_object_get(s->layer, "attention_k_eq_v"));
    const char *kind = has_windows ? "sliding_attention" : "full_attention";
    for (size_t i = 0; i < json_array_size(types); i++)
        if (!is_text(json_array_get(types, i), kind))
            return error_set(
                err, FR_ERR_UNSUPPORTED,
                "%s: some of its layers of Gemma 4's form have a window and others have none, which is not "
                "supported",
                published_path(x->from));
    s->rope = json_object_get(s->rope, kind);
    if (!json_is_object(s->rope)) return import_refuse_config(x, "rope_parameters", err);
    s->has_values = !shares;
    int status = has_windows ? FR_OK
                             : import_config_int(x, s->layer, "global_head_dim", s->head_dim, &s->head_dim, err);
    if (!status && shares)
        status = import_config_int(x, s->layer, "num_global_key_value_heads", s->n_head_kv, &s->n_head_kv, err);
    return status;
}

int import_read_shape(const Import *x, const json_t *config, ImportShape *s, fr_error *err) {
    int64_t width;
    const json_t *inner = json_object_get(config, "transformer_layer_config");
    *s = (ImportShape){.layer = json_is_object(inner) ? inner : config, .has_values = true};
    s->rope = json_object_get(s->layer, "rope_parameters");
    const char *model = json_string_value(json_object_get(s->layer, "model_type"));
    s->is_gemma = model && strncmp(model, "gemma4", strlen("gemma4")) == 0;
    int status = config ? FR_OK
                        : error_set(err, FR_ERR_FORMAT,
                                    "%s: there is no config.json beside it; pass the folder that has both",
                                    published_path(x->from));
    if (!status) status = import_check_keys(x, config, err);
    if (!status) status = import_config_int(x, s->layer, "hidden_size", 0, &s->n_embd, err);
    if (!status) status = import_config_int(x, s->layer, "intermediate_size", 0, &s->n_ff, err);
    if (!status) status = import_config_int(x, s->layer, "num_attention_heads", 0, &s->n_head, err);
    if (!status) status = import_config_int(x, s->layer, "num_key_value_heads", s->n_head, &s->n_head_kv, err);
    if (!status) status = import_config_int(x, s->layer, "head_dim", s->n_embd / s->n_head, &s->head_dim, err);
    if (!status) status = s->is_gemma ? read_gemma(x, s, err) : choose_rope(x, s, config, err);
    if (!status) status = import_config_int(x, config, "target_hidden_size", x->target->hparams.n_embd, &width, err);
    if (!status && width != x->target->hparams.n_embd)
        status = error_set(err, FR_ERR_MISMATCH,
                           "%s: was trained for a target with hidden states of %lld numbers, and those of this target "
                           "have %d",
                           published_path(x->from), (long long)width, x->target->hparams.n_embd);
    if (!status && s->n_head * s->head_dim > 1 << 20) status = import_refuse_config(x, "head_dim", err);
    return status ? status : read_forms(x, s, err);
}

/* ---- keys and rope ---------------------------------------------------------------------------------------- */

/* Returns "<method><what>". */
static const char *name_of(char out[96], const char *method, const char *what) {
    snprintf(out, 96, "%s%s", method, what);
    return out;
}

/* Adds the divisors of the frequencies of Llama 3.1 (rope.c), which config.json describes by four numbers. */
static int add_llama3_factors(Import *x, const json_t *scaling, double base, int64_t n_rot, const char *name,
                              fr_error *err) {
    double factor = real_of(scaling, "factor", 8), low = real_of(scaling, "low_freq_factor", 1),
           high = real_of(scaling, "high_freq_factor", 4),
           n_ctx = real_of(scaling, "original_max_position_embeddings", 8192);
    float *factors;
    if (!(factor >= 1 && low > 0 && high > low && n_ctx >= 1)) return import_refuse_config(x, "rope_scaling", err);
    int status = import_add_floats(x, name, n_rot / 2, &factors, err);
    for (int64_t i = 0; i < n_rot / 2 && !status; i++) {
        double turns = n_ctx * math_pow(base, -2.0 * (double)i / (double)n_rot) / (2 * M_PI);
        double fast = fmin(1, fmax(0, (turns - low) / (high - low)));
        factors[i] = (float)(1 / ((1 - fast) / factor + fast));
    }
    return status;
}

/* Adds the divisors of the frequencies of Gemma 4: only a part of the components rotates, at the frequencies that they
 * would have if all did. As in files of the architecture gemma4, the divisor of the others is so great that they
 * stay. */
static int add_proportional_factors(Import *x, const json_t *scaling, int64_t n_rot, const char *name, fr_error *err) {
    double part = real_of(scaling, "partial_rotary_factor", 1), factor = real_of(scaling, "factor", 1);
    float *factors;
    if (!(part > 0 && part <= 1 && factor >= 1)) return import_refuse_config(x, "rope_parameters", err);
    int status = import_add_floats(x, name, n_rot / 2, &factors, err);
    int64_t n = (int64_t)((double)n_rot * part / 2);
    for (int64_t i = 0; i < n_rot / 2 && !status; i++) factors[i] = i < n ? (float)factor : 1e30f;
    return status;
}

/* Returns what YaRN multiplies cos and sin by, if config.json names it; 0: it does not. mscale and mscale_all_dim are
 * DeepSeek's names for it. */
static double yarn_magnitude(const json_t *scaling) {
    double growth = 0.1 * math_log(fmax(1, real_of(scaling, "factor", 1))), of_scores = real_of(scaling, "mscale", 0),
           of_all = real_of(scaling, "mscale_all_dim", 0);
    double factor = of_scores > 0 && of_all > 0 ? (growth * of_scores + 1) / (growth * of_all + 1) : 0;
    return real_of(scaling, "attention_factor", factor);
}

/* Returns the pair of a head, counted from 0 as a real number, that turns so many times over the original context. */
static double pair_of_turns(double turns, double n_ctx, double base, int64_t n_rot) {
    return (double)n_rot * math_log(n_ctx / (turns * 2 * M_PI)) / (2 * math_log(base));
}

/* YaRN with "truncate": false, as gpt-oss has it, does not round the pairs between which frequencies are blended. A
 * file cannot say this (src/model/rope.c rounds them, as llama.cpp does), but its factors can: they are the divisors of
 * the frequencies. */
static int add_unrounded_yarn(Import *x, const char *method, const ImportShape *s, const json_t *scaling, double base,
                              const char *name, fr_error *err) {
    char key[96];
    float *factors;
    double factor = real_of(scaling, "factor", 1), magnitude = yarn_magnitude(scaling);
    double n_ctx = real_of(scaling, "original_max_position_embeddings",
                           real_of(s->layer, "max_position_embeddings", 2048));
    double low = fmax(0, pair_of_turns(real_of(scaling, "beta_fast", 32), n_ctx, base, s->n_rot)),
           high = fmin((double)(s->n_rot - 1), pair_of_turns(real_of(scaling, "beta_slow", 1), n_ctx, base, s->n_rot));
    if (high == low) high += 0.001;
    int status = import_add_floats(x, name, s->n_rot / 2, &factors, err);
    for (int64_t i = 0; i < s->n_rot / 2 && !status; i++) {
        double slow = fmin(1, fmax(0, ((double)i - low) / (high - low)));
        factors[i] = (float)(1 / (slow / factor + 1 - slow));
    }
    if (magnitude <= 0) magnitude = 1 + 0.1 * math_log(fmax(1, factor));
    import_set_float(x, name_of(key, method, "rope.scaling.attn_factor"), magnitude);
    return status;
}

/* Sets the numbers of YaRN that config.json names. */
static void set_yarn(Import *x, const char *method, const json_t *scaling) {
    char key[96];
    const struct {
        const char *what;
        double value;
    } numbers[] = {{"yarn_beta_fast", real_of(scaling, "beta_fast", 0)},
                   {"yarn_beta_slow", real_of(scaling, "beta_slow", 0)},
                   {"yarn_attn_factor", yarn_magnitude(scaling)}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char what[64];
        snprintf(what, sizeof what, "rope.scaling.%s", numbers[i].what);
        if (numbers[i].value > 0) import_set_float(x, name_of(key, method, what), numbers[i].value);
    }
}

static int set_rope(Import *x, const char *method, const ImportShape *s, const char *factors, fr_error *err) {
    char key[96];
    const json_t *scaling = json_object_get(s->layer, "rope_scaling");
    if (!scaling || strcmp(type_of_rope(s->rope), "default") != 0) scaling = s->rope;
    double base = real_of(s->layer, "rope_theta", real_of(s->rope, "rope_theta", 10000));
    const char *name = type_of_rope(scaling);
    import_set_float(x, name_of(key, method, "rope.freq_base"), base);
    if (strcmp(name, "default") == 0) return FR_OK;
    if (strcmp(name, "proportional") == 0) return add_proportional_factors(x, scaling, s->n_rot, factors, err);
    if (strcmp(name, "llama3") == 0) return add_llama3_factors(x, scaling, base, s->n_rot, factors, err);
    if (strcmp(name, "yarn") == 0 && json_is_false(json_object_get(scaling, "truncate")))
        return add_unrounded_yarn(x, method, s, scaling, base, factors, err);
    if (strcmp(name, "linear") != 0 && strcmp(name, "yarn") != 0)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: the rope scaling in its config.json is not supported; default, linear, llama3, "
                         "proportional and yarn are",
                         published_path(x->from));
    import_set_text(x, name_of(key, method, "rope.scaling.type"), name);
    import_set_float(x, name_of(key, method, "rope.scaling.factor"), real_of(scaling, "factor", 1));
    if (strcmp(name, "yarn") == 0) set_yarn(x, method, scaling);
    double n_ctx = real_of(scaling, "original_max_position_embeddings", 0);
    if (n_ctx >= 1 && n_ctx < 1 << 28)
        import_set_int(x, name_of(key, method, "rope.scaling.original_context_length"), (int64_t)n_ctx);
    return FR_OK;
}

int import_add_shape(Import *x, const char *method, const ImportShape *s, int64_t n_layer, const char *factors,
                     fr_error *err) {
    const struct {
        const char *what;
        int64_t value;
    } numbers[] = {{"block_count", n_layer},
                   {"context_length", (int64_t)real_of(s->layer, "max_position_embeddings", 2048)},
                   {"embedding_length", s->n_embd},
                   {"feed_forward_length", s->n_ff},
                   {"attention.head_count", s->n_head},
                   {"attention.head_count_kv", s->n_head_kv},
                   {"attention.key_length", s->head_dim},
                   {"attention.value_length", s->head_dim},
                   {"rope.dimension_count", s->n_rot},
                   {"target_hidden_size", x->target->hparams.n_embd}};
    char key[96];
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        import_set_int(x, name_of(key, method, numbers[i].what), numbers[i].value);
    import_set_float(x, name_of(key, method, "attention.layer_norm_rms_epsilon"),
                     real_of(s->layer, "rms_norm_eps", 1e-6));
    if (s->is_gemma) import_set_float(x, name_of(key, method, "attention.scale"), 1);
    return set_rope(x, method, s, factors, err);
}

int import_add_optional(Import *x, const char *name, const char *from, int64_t n_in, int64_t n_out, ImportRows rows,
                        fr_error *err) {
    ImportTensor *t;
    if (!published_find(x->from, from)) return FR_OK;
    int status = import_add(x, name, from, n_in, n_out, &t, err);
    if (!status) t->rows = rows;
    return status;
}

/* ---- layers of Gemma 4's form ------------------------------------------------------------------------------- */

const char *import_ffn_norm(const ImportShape *s) {
    return s->is_gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm";
}

int import_add_gemma_parts(Import *x, const ImportShape *s, int32_t i, const char *from, fr_error *err) {
    static const struct {
        const char *name, *from;
        bool is_scale;
    } parts[] = {{GEMMA_POST_ATTN_NORM, "post_attention_layernorm.weight", false},
                 {GEMMA_POST_FFN_NORM, "post_feedforward_layernorm.weight", false},
                 {GEMMA_OUT_SCALE, "layer_scalar", true}};
    int status = FR_OK;
    for (size_t k = 0; k < sizeof parts / sizeof *parts && s->is_gemma && !status; k++) {
        char name[64], published[96];
        snprintf(name, sizeof name, parts[k].name, (int)i);
        snprintf(published, sizeof published, "%s%s", from, parts[k].from);
        status = parts[k].is_scale ? import_add_optional(x, name, published, 1, 0, IMPORT_ROWS_SAME, err)
                                   : import_add(x, name, published, s->n_embd, 0, NULL, err);
    }
    return status;
}

/* ---- LM head and embedding -------------------------------------------------------------------------------- */

/* Reads d2t, whose n numbers lead to n different tokens of the target. */
static int read_map(const Import *x, const SafeTensor *d2t, int64_t n, int64_t *tokens, fr_error *err) {
    int64_t n_vocab = x->target->hparams.n_vocab, offset;
    bool *taken = mem_calloc((size_t)n_vocab, sizeof *taken);
    int status = taken ? FR_OK : error_memory(err, "d2t", (size_t)n_vocab);
    for (int64_t i = 0; i < n && !status; i++) {
        memcpy(&offset, (const char *)d2t->data + (size_t)i * sizeof offset, sizeof offset);
        bool fits = offset >= -i && offset < n_vocab - i && !taken[i + offset];
        if (fits) taken[tokens[i] = i + offset] = true;
        else
            status = error_set(err, FR_ERR_MISMATCH,
                               "%s: item %lld of tensor d2t leads to a token that the target does not have, or that is "
                               "there twice; the drafter was trained for another target",
                               published_path(x->from), (long long)i);
    }
    mem_free(taken);
    return status;
}

int import_add_head(Import *x, const char *name, int64_t n_embd, fr_error *err) {
    const SafeTensor *d2t = published_find(x->from, "d2t");
    int64_t n_vocab = x->target->hparams.n_vocab, n = d2t ? d2t->dims[0] : n_vocab;
    published_pass_over(x->from, "d2t");
    published_pass_over(x->from, "t2d");
    if (!published_find(x->from, "lm_head.weight") && !d2t) return FR_OK;
    bool is_targets = false;
    int status = d2t || n_embd != x->target->hparams.n_embd
                     ? FR_OK
                     : import_take_targets_head(x, "lm_head.weight", &is_targets, err);
    if (status || is_targets) return status;
    status = import_add(x, name, "lm_head.weight", n_embd, n, NULL, err);
    if (status || !d2t) return status;
    if (strcmp(d2t->dtype, "I64") != 0 || d2t->n_dims != 1 || n > n_vocab)
        return error_set(err, FR_ERR_FORMAT, "%s: tensor d2t is not a list of at most %lld numbers of type I64",
                         published_path(x->from), (long long)n_vocab);
    int64_t *tokens;
    status = import_add_map(x, n, &tokens, err);
    return status ? status : read_map(x, d2t, n, tokens, err);
}

int import_add_embedding(Import *x, const char *name, int64_t n_embd, fr_error *err) {
    const SafeTensor *t = published_find(x->from, "embed_tokens.weight");
    if (!t) return FR_OK;
    fr_error differs;
    int status = n_embd == x->target->hparams.n_embd ? import_check_embedding(x, "embed_tokens.weight", &differs)
                                                     : FR_ERR_MISMATCH;
    if (!status) return FR_OK;
    return import_add(x, name, "embed_tokens.weight", n_embd, x->target->hparams.n_vocab, NULL, err);
}

/* ---- a layer with the target's heads ------------------------------------------------------------------------- */

/* The drafter takes its head counts and rope from the target; the shape of a matrix does not show how many heads it
 * has. */
static int check_heads(const Import *x, fr_error *err) {
    const Hparams *h = &x->target->hparams;
    const struct {
        const char *key;
        int32_t is;
    } counts[] = {{"num_attention_heads", h->n_head}, {"num_key_value_heads", h->n_head_kv}};
    for (int i = 0; i < 2; i++) {
        int64_t n = counts[i].is;
        if (published_config(x->from, counts[i].key, &n) && n != counts[i].is)
            return error_set(
                err, FR_ERR_MISMATCH,
                "%s: its config.json has %lld for %s, the target %d; the drafter was trained for another target",
                published_path(x->from), (long long)n, counts[i].key, counts[i].is);
    }
    if (h->rope.style != ROPE_PAIRS || h->rope.n_rot == h->head_dim) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: the target rotates only %d of the %d components of a head; importing a layer for such a "
                     "target is not supported",
                     published_path(x->from), h->rope.n_rot, h->head_dim);
}

int import_add_layer(Import *x, const char *to, const char *from, bool has_attn_norm, fr_error *err) {
    const Hparams *h = &x->target->hparams;
    char name[64], published[128];
    snprintf(published, sizeof published, "%smlp.gate_proj.weight", from);
    const SafeTensor *gate = published_find(x->from, published);
    int64_t embd = h->n_embd, q = hparams_q_dim(h), kv = hparams_kv_dim(h), ff = gate ? gate->dims[0] : 0;
    ImportRows paired = h->rope.style == ROPE_PAIRS ? IMPORT_ROWS_PAIRED : IMPORT_ROWS_SAME;
    const struct {
        const char *name, *from;
        int64_t n_in, n_out;
        ImportRows rows;
    } tensors[] = {
        {LAYER_ATTN_Q, "self_attn.q_proj.weight", embd, q, paired},
        {LAYER_ATTN_K, "self_attn.k_proj.weight", embd, kv, paired},
        {LAYER_ATTN_V, "self_attn.v_proj.weight", embd, kv, 0},
        {LAYER_ATTN_OUTPUT, "self_attn.o_proj.weight", q, embd, 0},
        {LAYER_FFN_NORM, "post_attention_layernorm.weight", embd, 0, 0},
        {LAYER_FFN_GATE, "mlp.gate_proj.weight", embd, ff, 0},
        {LAYER_FFN_UP, "mlp.up_proj.weight", embd, ff, 0},
        {LAYER_FFN_DOWN, "mlp.down_proj.weight", ff, embd, 0},
        {LAYER_ATTN_NORM, "input_layernorm.weight", embd, 0, 0},
    };
    int status = check_heads(x, err);
    snprintf(name, sizeof name, "%s" LAYER_KEY_FEED_FORWARD, to);
    import_set_int(x, name, ff);
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors - !has_attn_norm && !status; i++) {
        ImportTensor *t;
        snprintf(name, sizeof name, "%s%s", to, tensors[i].name);
        snprintf(published, sizeof published, "%s%s", from, tensors[i].from);
        status = import_add(x, name, published, tensors[i].n_in, tensors[i].n_out, &t, err);
        if (!status) t->rows = tensors[i].rows;
    }
    return status;
}
