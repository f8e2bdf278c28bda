/* convert_arch.h - the architectures that can be converted: which published tensor becomes which tensor of a GGUF file,
 * in which layout, and which keys an architecture reads and writes beyond the common ones. */
#ifndef CONVERT_CONVERT_ARCH_H
#define CONVERT_CONVERT_ARCH_H

#include "cli/convert/convert_shape.h"
#include "model/tensor_table.h"

/* ---- layouts (convert_tensors.c) ---------------------------------------------------------------------- */

/* How a published tensor stores the rows of the tensor [n_out][n_in] that the GGUF file gets. E is the number of
 * experts, d the width of a value head. In the forms with value heads, published tensors have the value heads of one
 * key head side by side; a GGUF file has the first value heads of all key heads, then the second ones, and so on. */
typedef enum ConvertForm {
    FORM_SAME,       /* [n_out][n_in] */
    FORM_ROTATED,    /* queries and keys: rows are interleaved into pairs if the architecture rotates neighbours */
    FORM_CONV,       /* [n_out][1][n_in] */
    FORM_ONE_ROW,    /* [1][n_in], which becomes a vector */
    FORM_TABLE,      /* as FORM_SAME; the tensor stays F32 */
    FORM_CUT,        /* a vector [n_out n_in]; the tensor stays F32 */
    FORM_CUT_DECAY,  /* as FORM_CUT, holding log(-a) as FORM_DECAY does */
    FORM_FIRST_ROWS, /* the first half of [2 n_out][n_in] */
    FORM_SECOND_ROWS,
    FORM_DECAY,       /* log(-a) of each element a of a vector */
    FORM_QKV_OF_QKVZ, /* for each key head: its queries [d], keys [d], the values and then the z of its value heads */
    FORM_Z_OF_QKVZ,
    FORM_HEADS,          /* one number (a row or an element) for each value head */
    FORM_HEADS_DECAY,    /* as FORM_HEADS, holding log(-a) */
    FORM_VALUES,         /* d rows for each value head */
    FORM_QKV,            /* queries and keys, then d rows for each value head */
    FORM_QKV_CONV,       /* as FORM_QKV, with the dimensions of FORM_CONV */
    FORM_VALUE_INPUTS,   /* d columns for each value head */
    FORM_KEYS_OF_LATENT, /* for each head, the transpose of its first rows; FORM_VALUES_OF_LATENT has the other rows */
    FORM_VALUES_OF_LATENT, /* for each head, its other rows */
    FORM_STACKED,          /* [E][n_out][n_in] */
    FORM_FIRST_HALF,       /* the first rows of each expert in [E][2 n_out][n_in] */
    FORM_SECOND_HALF,
    FORM_TRANSPOSED,    /* [E][n_in][n_out] */
    FORM_FIRST_COLUMNS, /* the first columns of [E][n_in][2 n_out] */
    FORM_SECOND_COLUMNS,
    FORM_EVEN_COLUMNS, /* every other column of [E][n_in][2 n_out] */
    FORM_ODD_COLUMNS,
    FORM_EVEN, /* every other column of [n_out][2 n_in] */
    FORM_ODD,
    FORM_PACKED,      /* MXFP4: NAME_blocks [E][n_out][n_in / 32][16] and NAME_scales [E][n_out][n_in / 32] */
    FORM_PACKED_EVEN, /* every other row of such tensors with [E][2 n_out] rows */
    FORM_PACKED_ODD,
} ConvertForm;

/* Element i of a row is at first + stride * i. If width > 0, i is an index into heads of that width and is first mapped
 * to its published index. */
typedef struct RowPlaces {
    int64_t first, stride, width; /* width 0: no heads */
} RowPlaces;

/* Returns the places of row o of [n_experts * n_out] rows. convert.c reads FORM_ROTATED itself. */
RowPlaces convert_row_places(const ConvertShape *s, ConvertForm form, int64_t n_in, int64_t n_out, int64_t o);
/* Returns the index of element i of such a row in the published tensor. */
int64_t convert_place(const ConvertShape *s, const RowPlaces *p, int64_t i);
/* Writes the published dimensions; returns their number. */
int convert_form_dims(const ConvertShape *s, ConvertForm form, int64_t n_in, int64_t n_out, int64_t dims[4]);

/* Returns the number of matrices in a tensor that has one for each expert or head; 0: it is a single matrix or a
 * vector. */
int64_t convert_form_count(const ConvertShape *s, ConvertForm form);
bool convert_form_is_packed(ConvertForm form);
bool convert_form_is_decay(ConvertForm form);
/* Returns whether the tensor stays F32, whatever type the matrices get. */
bool convert_form_is_table(ConvertForm form);

/* Writes row o of a packed tensor as blocks of MXFP4. */
void convert_packed_row(ConvertForm form, const void *blocks, const void *scales, int64_t n_in, int64_t o, void *out);

/* ---- tensors and their names (convert_tensors.c) ------------------------------------------------------ */

enum { CONVERT_MAX_NAME = 160 };

typedef struct ConvertTensor {
    /* The published name. A first "%d" is the number of the layer, and each layer has the tensor. A second "%d" is the
     * number of the expert, and the matrices of all experts become one tensor. */
    const char *from;
    TensorId to; /* gives the name in the GGUF file, and the shape */
    bool optional;
    ConvertForm form;
} ConvertTensor;

/* The rows that many tables of tensors share. The LM head is optional: where it is missing, it is the embedding. */
#define LAYER(name) "model.layers.%d." name
#define ROW(from, to, form) \
    { LAYER(from), to, false, form }
#define SAME(from, to) ROW(from, to, FORM_SAME)
#define OPTIONAL(from, to) \
    { LAYER(from), to, true, FORM_SAME }
#define END_OF_TENSORS \
    { .from = NULL }

#define MODEL_TENSORS \
    {"model.embed_tokens.weight", TENSOR_TOKEN_EMBD, false, FORM_SAME}, \
        {"model.norm.weight", TENSOR_OUTPUT_NORM, false, FORM_SAME}, \
        {"lm_head.weight", TENSOR_OUTPUT, true, FORM_SAME}, SAME("input_layernorm.weight", TENSOR_ATTN_NORM)
#define SELF_ATTENTION \
    ROW("self_attn.q_proj.weight", TENSOR_ATTN_Q, FORM_ROTATED), \
        ROW("self_attn.k_proj.weight", TENSOR_ATTN_K, FORM_ROTATED), SAME("self_attn.v_proj.weight", TENSOR_ATTN_V), \
        SAME("self_attn.o_proj.weight", TENSOR_ATTN_OUTPUT)
#define BIASES \
    ROW("self_attn.q_proj.bias", TENSOR_ATTN_Q_BIAS, FORM_ROTATED), \
        ROW("self_attn.k_proj.bias", TENSOR_ATTN_K_BIAS, FORM_ROTATED), \
        SAME("self_attn.v_proj.bias", TENSOR_ATTN_V_BIAS)
#define OPTIONAL_BIASES \
    {LAYER("self_attn.q_proj.bias"), TENSOR_ATTN_Q_BIAS, true, FORM_ROTATED}, \
        {LAYER("self_attn.k_proj.bias"), TENSOR_ATTN_K_BIAS, true, FORM_ROTATED}, \
        OPTIONAL("self_attn.v_proj.bias", TENSOR_ATTN_V_BIAS)
#define HEAD_NORMS \
    SAME("self_attn.q_norm.weight", TENSOR_ATTN_Q_NORM), SAME("self_attn.k_norm.weight", TENSOR_ATTN_K_NORM)
#define ATTENTION_TENSORS MODEL_TENSORS, SELF_ATTENTION, SAME("post_attention_layernorm.weight", TENSOR_FFN_NORM)
#define DENSE_TENSORS \
    SAME("mlp.gate_proj.weight", TENSOR_FFN_GATE), SAME("mlp.up_proj.weight", TENSOR_FFN_UP), \
        SAME("mlp.down_proj.weight", TENSOR_FFN_DOWN)
/* A router and experts, whose names differ between architectures. */
#define EXPERT_TENSORS(part, gate, up, down) \
    SAME(part ".gate.weight", TENSOR_ROUTER), SAME(part ".experts.%d." gate, TENSOR_EXPERT_GATE), \
        SAME(part ".experts.%d." up, TENSOR_EXPERT_UP), SAME(part ".experts.%d." down, TENSOR_EXPERT_DOWN)
#define QWEN_EXPERTS EXPERT_TENSORS("mlp", "gate_proj.weight", "up_proj.weight", "down_proj.weight")
#define QWEN_SHARED_EXPERT \
    ROW("mlp.shared_expert_gate.weight", TENSOR_SHARED_ROUTER, FORM_ONE_ROW), \
        SAME("mlp.shared_expert.gate_proj.weight", TENSOR_SHARED_GATE), \
        SAME("mlp.shared_expert.up_proj.weight", TENSOR_SHARED_UP), \
        SAME("mlp.shared_expert.down_proj.weight", TENSOR_SHARED_DOWN)

/* Writes the published name for a layer and an expert. A layer after the last one is the layer for multi-token
 * prediction. */
void convert_name_from(const ConvertTensor *t, const ConvertShape *s, int64_t layer, int64_t expert,
                       char out[CONVERT_MAX_NAME]);
/* Writes the name in the GGUF file. */
void convert_name_to(const ConvertTensor *t, int64_t layer, char out[CONVERT_MAX_NAME]);
/* Returns whether each expert has a published tensor of its own. */
bool convert_is_of_experts(const ConvertTensor *t);

/* The tensors that Qwen's layer for multi-token prediction has besides those of a layer with attention; from == NULL
 * ends the list. */
extern const ConvertTensor convert_nextn_tensors[];

/* ---- architectures ------------------------------------------------------------------------------------ */

typedef struct ConvertArch {
    const char *published; /* "architectures" in config.json; several names are separated by spaces */
    const char *text_type; /* NULL, or "model_type" of the text model's part of config.json */
    const char *name;      /* general.architecture */
    bool rotates_pairs;    /* rope rotates neighbouring components of a head, not component i and i + n_rot / 2 */
    const ConvertTensor *tensors; /* ends with from == NULL */
    const ConvertTensor *packed;  /* replaces `tensors` where the experts are in MXFP4; NULL: such models are refused */
    const ConvertTensor *dense;   /* replaces `tensors` where config.json has no experts; NULL: it must have them */
    ConvertExperts experts;
    /* NULL, or for architectures with recurrent layers: the part of their tensors' names that replaces ".self_attn.".
     * `read` finds out which layers are recurrent. */
    const char *recurrent;
    int (*read)(ConvertShape *s, const HubFolder *c, fr_error *err);
    /* Optional: refuses what the architecture cannot express, and writes its own keys. */
    int (*keys)(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);
    /* Optional: whether a layer has a tensor. */
    bool (*has)(const ConvertShape *s, const ConvertTensor *t, int64_t layer);
    bool has_window;      /* `keys` writes the sliding window */
    bool has_mtp;         /* files may have a layer for multi-token prediction */
    bool nextn_in_layers; /* files may have such layers as further ones of the model's layers */
    bool has_text_part;   /* "text_config" of config.json may hold the model, with names in [model.]language_model */
    bool adds_1_to_norms; /* the weight of a norm is 1 plus the published number */
    ConvertUsual usual;
} ConvertArch;

/* Architecture number i of all that can be converted; NULL: there are no more. */
const ConvertArch *convert_arch_at(int i);
/* Returns the architecture that config.json names. NULL with an error that lists the supported ones. */
const ConvertArch *convert_arch_find(const HubFolder *c, fr_error *err);

/* The architectures of a file, ending with published == NULL. */
extern const ConvertArch convert_window_archs[];   /* convert_windows.c */
extern const ConvertArch convert_hybrid_archs[];   /* convert_hybrid.c */
extern const ConvertArch convert_deepseek_archs[]; /* convert_deepseek.c */

/* Writes Granite's four factors. */
int convert_granite_keys(const ConvertShape *s, const HubFolder *c, GgufWriter *w, fr_error *err);

#endif
