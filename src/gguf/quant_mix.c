/* quant_mix.c - which tensor of a model gets which type.
 *
 * Not all matrices tolerate the same error. The values (attn_v) and the last matrix of the feed-forward part (ffn_down)
 * tolerate less than the others, the first and the last layers less than those between, and the LM head least of all. A
 * mixture gives these more bits. The rules are those of the mixtures that llama.cpp publishes under the same names,
 * so that a file is as large and as good as its name makes users expect. */
#include "gguf/quantize.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const QuantMix mixes[] = {
    {"F32", NULL, TYPE_F32, 0, "32 bits, exact"},
    {"F16", NULL, TYPE_F16, 1, "16 bits"},
    {"BF16", NULL, TYPE_BF16, 32, "16 bits, the range of F32"},
    {"Q8_0", NULL, TYPE_Q8_0, 7, "8.5 bits, hardly different from F16"},
    {"Q6_K", NULL, TYPE_Q6_K, 18, "6.6 bits"},
    {"Q5_K_M", "Q5_K", TYPE_Q5_K, 17, "5.7 bits; sensitive matrices in Q6_K"},
    {"Q5_K_S", NULL, TYPE_Q5_K, 16, "5.5 bits"},
    {"Q5_1", NULL, TYPE_Q5_1, 9, "6 bits"},
    {"Q5_0", NULL, TYPE_Q5_0, 8, "5.5 bits"},
    {"Q4_K_M", "Q4_K", TYPE_Q4_K, 15, "4.8 bits; sensitive matrices in Q6_K; the usual choice"},
    {"Q4_K_S", NULL, TYPE_Q4_K, 14, "4.6 bits; some sensitive matrices in Q5_K"},
    {"Q4_1", NULL, TYPE_Q4_1, 3, "5 bits"},
    {"Q4_0", NULL, TYPE_Q4_0, 2, "4.5 bits"},
    {"IQ4_NL", NULL, TYPE_IQ4_NL, 25, "4.5 bits, levels closer around zero"},
    {"IQ4_XS", NULL, TYPE_IQ4_XS, 30, "4.25 bits, the same levels; better than Q4_0 and smaller"},
    {"MXFP4", NULL, TYPE_MXFP4, 38, "4.25 bits, the OCP format of gpt-oss; for models trained for it"},
    {"MXFP4_MOE", NULL, TYPE_Q8_0, 38, "experts in MXFP4, the rest in Q8_0"},
    {"NVFP4", NULL, TYPE_NVFP4, 39, "4.5 bits, small floats as NVIDIA's; embedding and head in Q8_0"},
    {"Q3_K_L", NULL, TYPE_Q3_K, 13, "4.3 bits; sensitive matrices in Q5_K"},
    {"Q3_K_M", "Q3_K", TYPE_Q3_K, 12, "3.9 bits; sensitive matrices in Q4_K and Q5_K"},
    {"Q3_K_S", NULL, TYPE_Q3_K, 11, "3.4 bits"},
    {"IQ3_M", NULL, TYPE_IQ3_S, 27, "3.7 bits; sensitive matrices in Q4_K"},
    {"IQ3_S", NULL, TYPE_IQ3_S, 26, "3.4 bits; better than Q3_K_S at its size"},
    {"IQ3_XS", NULL, TYPE_IQ3_S, 22, "3.3 bits; some matrices in IQ3_XXS"},
    {"IQ3_XXS", NULL, TYPE_IQ3_XXS, 23, "3.1 bits; some matrices in IQ2_S"},
    {"Q2_K", NULL, TYPE_Q2_K, 10, "3 bits; sensitive matrices in Q3_K; the text suffers"},
    {"IQ2_M", NULL, TYPE_IQ2_S, 29, "2.7 bits; sensitive matrices in IQ3_S"},
    {"IQ2_S", NULL, TYPE_IQ2_XS, 28, "2.5 bits, only with --imatrix"},
    {"IQ2_XS", NULL, TYPE_IQ2_XS, 20, "2.3 bits, only with --imatrix"},
    {"IQ2_XXS", NULL, TYPE_IQ2_XXS, 19, "2.1 bits, only with --imatrix"},
    {"IQ1_M", NULL, TYPE_IQ1_M, 31, "1.8 bits, only with --imatrix"},
    {"IQ1_S", NULL, TYPE_IQ1_S, 24, "1.6 bits, only with --imatrix; for very large models"},
    {NULL, NULL, TYPE_F32, 0, NULL},
};

const QuantMix *quant_mixes(void) { return mixes; }

const QuantMix *quant_mix_find(const char *name) {
    for (const QuantMix *m = mixes; m->name; m++)
        if (strcasecmp(m->name, name) == 0 || (m->alias && strcasecmp(m->alias, name) == 0)) return m;
    return NULL;
}

/* ---- sensitive matrices ------------------------------------------------------------------------------ */

typedef enum Layers {
    ALL,
    FIRST_TWO,
    FIRST_FOUR,
    FIRST_EIGHTH,
    FIRST_SIXTEENTH,
    MIDDLE,             /* all but the first and the last eighth */
    EIGHTHS_AND_THIRDS, /* the first and the last eighth, and every third layer between */
} Layers;

/* The models that a rule applies to. */
typedef enum Only {
    ANY,
    IMPORTANCE,    /* with an importance matrix */
    NO_IMPORTANCE, /* without */
    SHARED,        /* four or more query heads share their keys and values */
    SMALL_VALUES,  /* the same, or four or more experts: attn_v is small compared to the rest */
} Only;

/* The first rule that fits a matrix decides. */
static const struct {
    const char *mix, *matrix;
    Layers layers;
    TensorType type;
    Only only;
} rules[] = {
    {"Q4_K_S", "attn_v.weight", FIRST_FOUR, TYPE_Q5_K, ANY},
    {"Q4_K_S", "ffn_down.weight", FIRST_EIGHTH, TYPE_Q5_K, ANY},
    {"Q4_K_M", "attn_v.weight", EIGHTHS_AND_THIRDS, TYPE_Q6_K, ANY},
    {"Q4_K_M", "ffn_down.weight", EIGHTHS_AND_THIRDS, TYPE_Q6_K, ANY},
    {"Q5_K_M", "attn_v.weight", EIGHTHS_AND_THIRDS, TYPE_Q6_K, ANY},
    {"Q5_K_M", "ffn_down.weight", EIGHTHS_AND_THIRDS, TYPE_Q6_K, ANY},
    {"Q4_0", "ffn_down.weight", FIRST_EIGHTH, TYPE_Q4_1, IMPORTANCE},
    {"Q5_0", "ffn_down.weight", FIRST_EIGHTH, TYPE_Q5_1, IMPORTANCE},
    {"IQ4_NL", "attn_v.weight", ALL, TYPE_Q5_K, SHARED},
    {"IQ4_XS", "attn_v.weight", ALL, TYPE_Q5_K, SHARED},
    {"IQ4_NL", "ffn_down.weight", FIRST_EIGHTH, TYPE_Q5_K, NO_IMPORTANCE},
    {"IQ4_XS", "ffn_down.weight", FIRST_EIGHTH, TYPE_Q5_K, NO_IMPORTANCE},
    {"Q3_K_L", "attn_v.weight", ALL, TYPE_Q5_K, ANY},
    {"Q3_K_L", "attn_output.weight", ALL, TYPE_Q5_K, ANY},
    {"Q3_K_L", "ffn_down.weight", ALL, TYPE_Q5_K, ANY},
    {"Q3_K_M", "attn_v.weight", FIRST_TWO, TYPE_Q5_K, ANY},
    {"Q3_K_M", "attn_v.weight", ALL, TYPE_Q4_K, ANY},
    {"Q3_K_M", "attn_output.weight", ALL, TYPE_Q4_K, ANY},
    {"Q3_K_M", "ffn_down.weight", FIRST_SIXTEENTH, TYPE_Q5_K, ANY},
    {"Q3_K_M", "ffn_down.weight", ALL, TYPE_Q4_K, ANY},
    {"Q2_K", "attn_v.weight", ALL, TYPE_Q4_K, SHARED},
    {"Q2_K", "attn_v.weight", ALL, TYPE_Q3_K, ANY},
    {"Q2_K", "attn_output.weight", ALL, TYPE_Q3_K, ANY},
    {"Q2_K", "ffn_down.weight", ALL, TYPE_Q3_K, ANY},
    {"IQ3_M", "attn_v.weight", ALL, TYPE_Q4_K, ANY},
    {"IQ3_M", "attn_qkv.weight", ALL, TYPE_Q4_K, ANY},
    {"IQ3_M", "attn_output.weight", ALL, TYPE_Q4_K, ANY},
    {"IQ3_M", "ffn_down.weight", FIRST_EIGHTH, TYPE_Q4_K, ANY},
    {"IQ3_S", "attn_v.weight", ALL, TYPE_Q4_K, SHARED},
    {"IQ3_XS", "attn_v.weight", ALL, TYPE_Q4_K, SHARED},
    {"IQ3_XS", "attn_q.weight", ALL, TYPE_IQ3_XXS, ANY},
    {"IQ3_XS", "attn_k.weight", ALL, TYPE_IQ3_XXS, ANY},
    {"IQ3_XS", "ffn_gate.weight", MIDDLE, TYPE_IQ3_XXS, ANY},
    {"IQ3_XS", "ffn_up.weight", MIDDLE, TYPE_IQ3_XXS, ANY},
    {"IQ3_XXS", "token_embd.weight", ALL, TYPE_IQ3_S, ANY},
    {"IQ3_XXS", "attn_v.weight", ALL, TYPE_Q4_K, SHARED},
    {"IQ3_XXS", "attn_v.weight", ALL, TYPE_IQ3_S, NO_IMPORTANCE},
    {"IQ3_XXS", "attn_q.weight", ALL, TYPE_IQ2_S, ANY},
    {"IQ3_XXS", "attn_k.weight", ALL, TYPE_IQ2_S, ANY},
    {"IQ3_XXS", "attn_output.weight", ALL, TYPE_IQ3_S, ANY},
    {"IQ3_XXS", "ffn_down.weight", FIRST_EIGHTH, TYPE_Q4_K, NO_IMPORTANCE},
    {"IQ3_XXS", "ffn_down.weight", ALL, TYPE_Q3_K, NO_IMPORTANCE},
#define TWO_BITS(mix, sensitive) \
    {mix, "attn_v.weight", ALL, TYPE_Q4_K, SMALL_VALUES}, {mix, "attn_v.weight", ALL, sensitive, ANY}, \
        {mix, "ffn_down.weight", FIRST_EIGHTH, sensitive, ANY},
    TWO_BITS("IQ2_M", TYPE_IQ3_S) TWO_BITS("IQ2_S", TYPE_IQ3_S) TWO_BITS("IQ2_XS", TYPE_Q2_K)
        TWO_BITS("IQ2_XXS", TYPE_Q2_K) TWO_BITS("IQ1_M", TYPE_Q2_K)
            TWO_BITS("IQ1_S", TYPE_Q2_K){"IQ2_M", "attn_output.weight", ALL, TYPE_IQ3_S, ANY},
    {"IQ2_S", "attn_output.weight", ALL, TYPE_IQ3_S, ANY},
    {"IQ1_M", "attn_output.weight", ALL, TYPE_IQ2_XXS, ANY},
    {"IQ1_S", "attn_output.weight", ALL, TYPE_IQ2_XXS, ANY},
    {"IQ2_M", "token_embd.weight", ALL, TYPE_IQ3_S, ANY},
    {"IQ2_S", "token_embd.weight", ALL, TYPE_IQ3_S, ANY},
    {"IQ2_XS", "token_embd.weight", ALL, TYPE_Q2_K, ANY},
    {"IQ2_XXS", "token_embd.weight", ALL, TYPE_Q2_K, ANY},
    {"IQ1_M", "token_embd.weight", ALL, TYPE_Q2_K, ANY},
    {"IQ1_S", "token_embd.weight", ALL, TYPE_Q2_K, ANY},
};

bool quant_needs_importance(TensorType type) {
    return type == TYPE_IQ2_XXS || type == TYPE_IQ2_XS || type == TYPE_IQ1_S || type == TYPE_IQ1_M;
}

static bool is_of_two_bits(TensorType type) { return type == TYPE_IQ2_S || quant_needs_importance(type); }

/* In mixtures of about three bits or less, the LM head has fewer bits than in the others. */
static TensorType type_of_head(TensorType type) {
    return type == TYPE_IQ3_XXS || is_of_two_bits(type) ? TYPE_Q5_K : TYPE_Q6_K;
}

/* Where eight heads share their values, attn_v is an eighth of attn_q, so that more bits for it cost nearly nothing. */
static TensorType type_of_shared_values(const QuantShape *shape, const char *name, TensorType type) {
    bool is_low = type == TYPE_Q4_K || type == TYPE_Q3_K;
    return shape->shares_values && strcmp(name, "attn_v.weight") == 0 && is_low ? TYPE_Q5_K : type;
}

static bool layer_is_in(Layers layers, int32_t i, int32_t n) {
    if (layers == ALL) return true;
    if (layers == FIRST_TWO) return i < 2;
    if (layers == FIRST_FOUR) return i < 4;
    if (layers == FIRST_SIXTEENTH) return i < n / 16;
    if (layers == FIRST_EIGHTH) return i < n / 8;
    if (layers == MIDDLE) return i >= n / 8 && i < 7 * n / 8;
    return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

/* Splits "blk.N.NAME" into the layer N and NAME; false if the tensor belongs to no layer. */
static bool split_name(const char *tensor, int32_t *layer, const char **name) {
    char *end;
    if (strncmp(tensor, "blk.", 4) != 0) return false;
    long i = strtol(tensor + 4, &end, 10);
    if (end == tensor + 4 || *end != '.' || i < 0 || i > 1 << 20) return false;
    *layer = (int32_t)i;
    *name = end + 1;
    return true;
}

/* Returns the number under "ARCHITECTURE.what", or 0. */
static uint32_t number_of(const Gguf *g, GgufString arch, const char *what) {
    char key[160];
    uint32_t v = 0;
    snprintf(key, sizeof key, "%.*s.%s", arch.n < 100 ? (int)arch.n : 0, arch.data, what);
    gguf_get_u32(g, key, &v);
    return v;
}

QuantShape quant_shape(const Gguf *g, bool has_importance) {
    GgufString arch = {"", 0};
    gguf_get_string(g, "general.architecture", &arch);
    uint32_t n_layer = number_of(g, arch, "block_count"), n_head = number_of(g, arch, "attention.head_count"),
             n_head_kv = number_of(g, arch, "attention.head_count_kv"), n_expert = number_of(g, arch, "expert_count");
    uint32_t n_nextn = number_of(g, arch, "nextn_predict_layers");
    return (QuantShape){.n_layer = n_layer < 1 << 20 ? (int32_t)n_layer : 0,
                        .n_nextn = n_nextn < 1 << 20 ? (int32_t)n_nextn : 0,
                        .shares_values = n_layer == 80 && n_head_kv > 0 && n_head_kv != n_head,
                        .shares_by_four = n_head_kv > 0 && n_head / n_head_kv >= 4,
                        .has_experts = n_expert >= 4,
                        .is_tied = !gguf_find_tensor(g, "output.weight"),
                        .has_importance = has_importance};
}

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

bool quant_is_matrix(const GgufTensor *t) {
    return t->n_dims >= 2 && t->dims[1] > 1 && ends_with(t->name, ".weight") && !ends_with(t->name, "_norm.weight") &&
           !ends_with(t->name, "ffn_gate_inp.weight") && !ends_with(t->name, "ssm_conv1d.weight") &&
           !ends_with(t->name, "shortconv.conv.weight");
}

static bool is_head(const QuantShape *shape, const GgufTensor *t) {
    return strcmp(t->name, shape->is_tied ? "token_embd.weight" : "output.weight") == 0;
}

/* Returns whether the name is that of the matrix, or of the same matrix of experts: "ffn_down_exps.weight" for
 * "ffn_down.weight". */
static bool is_matrix(const char *name, const char *matrix) {
    size_t n = strcspn(matrix, ".");
    if (strncmp(name, matrix, n) != 0) return false;
    return strcmp(name + n, ".weight") == 0 || strcmp(name + n, "_exps.weight") == 0 ||
           strcmp(name + n, "_shexp.weight") == 0;
}

static bool is_for(Only only, const QuantShape *shape) {
    switch (only) {
    case ANY: return true;
    case SHARED: return shape->shares_by_four;
    case SMALL_VALUES: return shape->shares_by_four || shape->has_experts;
    default: return shape->has_importance == (only == IMPORTANCE);
    }
}

/* Returns whether the matrix may be of type NVFP4, which has a scale of its own in another tensor. The scale is applied
 * only to matrices that the layers multiply with as they are (model/model.c): not to the embedding and the head, to
 * matrices that latent attention splits, or to layers that a drafter runs. */
static bool takes_scale(const QuantShape *shape, const char *tensor) {
    int32_t layer;
    const char *name;
    if (!split_name(tensor, &layer, &name) || layer >= shape->n_layer - shape->n_nextn) return false;
    return strncmp(name, "attn_k_b.", 9) != 0 && strncmp(name, "attn_v_b.", 9) != 0 &&
           strncmp(name, "attn_kv_b.", 10) != 0;
}

TensorType quant_mix_type(const QuantMix *mix, const QuantShape *shape, const GgufTensor *t) {
    bool is_small = mix->type != TYPE_F32 && mix->type != TYPE_F16 && mix->type != TYPE_BF16 && mix->type != TYPE_Q8_0;
    int32_t layer;
    const char *name;
    if (mix->type == TYPE_NVFP4) return takes_scale(shape, t->name) ? TYPE_NVFP4 : TYPE_Q8_0;
    if (is_small && is_head(shape, t)) return type_of_head(mix->type);
    if (!split_name(t->name, &layer, &name)) layer = 0, name = t->name;
    if (strcmp(mix->name, "MXFP4_MOE") == 0) return strstr(t->name, "_exps.") ? TYPE_MXFP4 : mix->type;
    TensorType type = mix->type;
    for (size_t i = 0; i < sizeof rules / sizeof *rules && type == mix->type; i++)
        if (strcmp(rules[i].mix, mix->name) == 0 && is_matrix(name, rules[i].matrix) && is_for(rules[i].only, shape) &&
            layer_is_in(rules[i].layers, layer, shape->n_layer))
            type = rules[i].type;
    return is_of_two_bits(mix->type) ? type : type_of_shared_values(shape, name, type);
}

TensorType quant_fallback(TensorType type, int64_t n) {
    size_t bytes;
    if (tensor_type_row_bytes(type, n, &bytes)) return type;
    TensorType instead = type == TYPE_Q4_K                        ? TYPE_Q5_0
                         : type == TYPE_Q5_K                      ? TYPE_Q5_1
                         : type == TYPE_Q6_K                      ? TYPE_Q8_0
                         : tensor_type_info(type)->block_n == 256 ? TYPE_IQ4_NL
                                                                  : TYPE_F16;
    return quant_fallback(instead, n);
}
