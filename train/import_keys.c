/* import_keys.c - what values the keys of a published config.json may have (import.h).
 *
 * A program that ignores a value it does not understand computes with another one: "rope_theta": "500000" would become
 * 10000, and the drafter would draft badly without a word. So the keys with a default have a row here, with the ranges
 * of drafter files (src/model/hparams.c); widths, counts and tokens are checked where they are read. A key without a
 * value (null) is a missing key. */
#include "train/import.h"

#include <jansson.h>
#include <string.h>

typedef enum Kind { FLAG, TEXT, LIST, OBJECT, INTEGER, NUMBER } Kind;

typedef struct Key {
    const char *name;
    Kind kind;
    double min, max; /* of INTEGER and NUMBER */
} Key;

static const Key keys[] = {
    {"transformer_layer_config", OBJECT, 0, 0},
    {"dflash_config", OBJECT, 0, 0},
    {"eagle_config", OBJECT, 0, 0},
    {"speculators_config", OBJECT, 0, 0},
    {"rope_parameters", OBJECT, 0, 0},
    {"rope_scaling", OBJECT, 0, 0},
    {"full_attention", OBJECT, 0, 0}, /* within rope_parameters, as the next one */
    {"sliding_attention", OBJECT, 0, 0},
    {"eagle_aux_hidden_state_layer_ids", LIST, 0, 0},
    {"aux_hidden_state_layer_ids", LIST, 0, 0},
    {"target_layer_ids", LIST, 0, 0},
    {"layer_types", LIST, 0, 0},
    {"model_type", TEXT, 0, 0},
    {"rope_type", TEXT, 0, 0},
    {"type", TEXT, 0, 0}, /* an older name of rope_type */
    {"hidden_act", TEXT, 0, 0},
    {"hidden_activation", TEXT, 0, 0},
    {"markov_head_type", TEXT, 0, 0},
    {"projector_type", TEXT, 0, 0},
    {"norm_before_residual", FLAG, 0, 0},
    {"norm_before_fc", FLAG, 0, 0},
    {"norm_output", FLAG, 0, 0},
    {"fc_norm", FLAG, 0, 0},
    {"is_causal", FLAG, 0, 0},
    {"causal", FLAG, 0, 0},
    {"sliding_window_non_causal", FLAG, 0, 0},
    {"use_swa", FLAG, 0, 0},
    {"sample_from_anchor", FLAG, 0, 0},
    {"shift_label", FLAG, 0, 0},
    {"has_embed_tokens", FLAG, 0, 0},
    {"attention_k_eq_v", FLAG, 0, 0},
    {"rope_is_neox_style", FLAG, 0, 0},
    {"is_neox_style", FLAG, 0, 0},
    {"truncate", FLAG, 0, 0}, /* of YaRN */
    {"max_position_embeddings", INTEGER, 1, 1 << 28},
    {"num_hidden_layers", INTEGER, 1, 1 << 16},
    {"markov_rank", INTEGER, 0, 1 << 16},
    {"rms_norm_eps", NUMBER, 0, 1},
    {"rope_theta", NUMBER, 1, 1e12},
    {"partial_rotary_factor", NUMBER, 0, 1},
    {"factor", NUMBER, 1e-3, 1e6},
    {"low_freq_factor", NUMBER, 1e-3, 1e6},
    {"high_freq_factor", NUMBER, 1e-3, 1e6},
    {"original_max_position_embeddings", NUMBER, 1, 1 << 28},
    {"beta_fast", NUMBER, 1e-3, 1e6},
    {"beta_slow", NUMBER, 1e-3, 1e6},
    {"attention_factor", NUMBER, 1e-3, 1e3},
    {"mscale", NUMBER, 0, 1e3},
    {"mscale_all_dim", NUMBER, 0, 1e3},
    {"input_embedding_scale", NUMBER, 0, 1e6},
    {"output_multiplier", NUMBER, 0, 1e6},
    {"final_logit_softcapping", NUMBER, 0, 1e6},
};

static bool is_of_kind(const json_t *value, Kind kind) {
    switch (kind) {
    case FLAG: return json_is_boolean(value);
    case TEXT: return json_is_string(value);
    case LIST: return json_is_array(value);
    case OBJECT: return json_is_object(value);
    case INTEGER: return json_is_integer(value);
    default: return json_is_number(value);
    }
}

static const char *const kinds[] = {"true or false", "a text", "a list", "an object", "an integer", "a number"};

static int check_value(const Import *x, const json_t *value, const Key *key, fr_error *err) {
    bool has_range = key->kind >= INTEGER;
    double number = json_number_value(value);
    if (is_of_kind(value, key->kind) && (!has_range || (number >= key->min && number <= key->max))) return FR_OK;
    if (has_range)
        return error_set(err, FR_ERR_FORMAT, "%s: the %s in its config.json must be %s from %.9g to %.9g",
                         published_path(x->from), key->name, kinds[key->kind], key->min, key->max);
    return error_set(err, FR_ERR_FORMAT, "%s: the %s in its config.json must be %s", published_path(x->from), key->name,
                     kinds[key->kind]);
}

/* Checks the keys of an object, and of the objects that the table names in it. depth: how many levels may follow. */
static int check_object(const Import *x, const json_t *object, int depth, fr_error *err) {
    int status = FR_OK;
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !status; i++) {
        const json_t *value = json_object_get(object, keys[i].name);
        if (!value) continue;
        status = check_value(x, value, &keys[i], err);
        if (!status && keys[i].kind == OBJECT && depth > 0) status = check_object(x, value, depth - 1, err);
    }
    return status;
}

int import_check_keys(const Import *x, const json_t *config, fr_error *err) { return check_object(x, config, 3, err); }
