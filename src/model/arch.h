/* arch.h - the description of an architecture, and the functions with which it reads a model file.
 *
 * An Architecture is defined in the file of its family, arch_FAMILY.c, and is listed in the table of arch.c. Its
 * function `layer` takes the tensors of one layer from the file and describes the layer. Names and shapes of tensors
 * are in tensor_table.h, and hparams.c reads the keys that are named alike in all architectures. Every tensor of a file
 * must be taken, and every key of its architecture must be read (or be in the table of model_keys.c): one that is not
 * known would be ignored silently, and the model would be run wrongly.
 */
#ifndef MODEL_ARCH_H
#define MODEL_ARCH_H

#include "model/tensor_table.h"

typedef struct ArchReader ArchReader; /* a model file being read */

typedef struct Architecture {
    const char *name; /* as in general.architecture */
    RopeStyle rope;
    bool has_embd_norm;     /* the final norm is called token_embd_norm, not output_norm */
    bool kv_heads_by_layer; /* a list in attention.head_count_kv may have 0 for layers with a recurrent state */
    bool has_no_attention;  /* no layer has attention, and keys that describe attention are ignored */
    bool has_no_ffn;        /* no layer has a feed-forward part, and feed_forward_length is ignored */
    /* Reads the keys that only some architectures have, after those that all have; NULL: there are none. */
    void (*keys)(KeyReader *r, Hparams *h);
    /* Fills in a zeroed spec. Returns a negative number after an error. */
    int (*layer)(ArchReader *r, int32_t i_layer, LayerSpec *out);
} Architecture;

/* arch_find returns the architecture with a number (hparams.h); arch_from_name finds the number of a name, and returns
 * false if the name is unknown. */
const Architecture *arch_find(Arch arch);
bool arch_from_name(const char *name, size_t n, Arch *out);
/* Writes all names for a message, "llama, qwen2, ... and qwen3". Returns out->text. */
typedef struct ArchNames {
    char text[400];
} ArchNames;
const char *arch_names(ArchNames *out);

extern const Architecture arch_llama, arch_mistral3, arch_smollm3, arch_phi3, arch_llama4; /* arch_llama.c */
extern const Architecture arch_qwen2, arch_qwen3, arch_qwen2moe, arch_qwen3moe;            /* arch_qwen.c */
extern const Architecture arch_qwen35, arch_qwen35moe, arch_qwen3next;                     /* arch_qwen.c */
extern const Architecture arch_gemma2, arch_gemma3, arch_gemma4;                           /* arch_gemma.c */
extern const Architecture arch_granite, arch_granitehybrid, arch_mamba2;                   /* arch_granite.c */
extern const Architecture arch_deepseek2, arch_glm4moe;                                    /* arch_deepseek.c */
extern const Architecture arch_lfm2, arch_lfm2moe;                                         /* arch_lfm2.c */
extern const Architecture arch_gpt_oss;                                                    /* arch_gpt_oss.c */

/* ---- keys ------------------------------------------------------------------------------------------- */

/* These return the key "<architecture>.<what>", a number from min to max. If the key is missing, they return
 * `fallback`; an integer with a negative fallback and a float with the fallback NAN may not be missing. After an error,
 * which the reader remembers, they return min. */
int32_t key_int(KeyReader *r, const char *what, int64_t fallback, int64_t min, int64_t max);
double key_float(KeyReader *r, const char *what, double fallback, double min, double max);
bool key_bool(KeyReader *r, const char *what, bool fallback);
bool key_string(KeyReader *r, const char *what, GgufString *out); /* false: it is missing, or no string */
int64_t key_index(KeyReader *r, const char *what);                /* -1: the file lacks it */
/* A key may hold a list with a number or a flag (0 or 1) for each layer. key_check_list requires n elements from min to
 * max. */
bool key_is_list(KeyReader *r, const char *what);
void key_check_list(KeyReader *r, const char *what, int32_t n, int64_t min, int64_t max);
/* Both return the number of a layer if the key holds a list, otherwise `fallback`. */
int64_t key_number_of_layer(const KeyReader *r, const char *what, int32_t i_layer, int64_t fallback);
int64_t number_of_layer(const Gguf *g, const char *arch, const char *what, int32_t i_layer, int64_t fallback);
/* Notes that keys with this prefix have no meaning in this file, so that they are not refused although nothing reads
 * them. */
void keys_without_meaning(KeyReader *r, const char *prefix);
/* Remembers an error; the path of the file is put before the text. */
__attribute__((format(printf, 3, 4))) void key_fail(KeyReader *r, fr_code code, const char *fmt, ...);

/* key_reader_check returns the first error, or refuses a key of the architecture that was not read. Close *out after an
 * error, too. */
int key_reader_open(KeyReader **out, const Gguf *g, const char *arch, fr_error *err);
int key_reader_check(KeyReader *r);
void key_reader_close(KeyReader *r); /* NULL is fine */

/* Reads the keys of experts. The caller has set router_gate and keeps_probabilities to what a file without these keys
 * means. */
void arch_expert_keys(KeyReader *r, Hparams *h);
/* Refuses a model with experts, where the architecture has none. */
void arch_no_expert_keys(KeyReader *r, const Hparams *h);
/* Reads attention.sliding_window and attention.sliding_window_pattern. A file without them has this window and this
 * period. */
void arch_window_keys(KeyReader *r, Hparams *h, int32_t window, int32_t period);
/* Reads attention.temperature_scale and temperature_length. `length` replaces a missing length; if it is 0, a file with
 * a scale must have a length. */
void arch_temperature_keys(KeyReader *r, Hparams *h, int32_t length);
/* Reads the number of layers for multi-token prediction (Nextn in model.h), which are the last layers of the file, and
 * subtracts it from hparams.n_layer. Architecture.layer describes these layers as well. */
void arch_nextn_keys(KeyReader *r, Hparams *h);
/* Divides the factor by which YaRN multiplies cos and sin, 1 + 0.1 ln factor, by 1 + 0.1 m ln factor, as transformers
 * does if mscale_all_dim is m. */
void arch_divide_yarn(Hparams *h, double m);

/* ---- tensors of a layer ------------------------------------------------------------------------------- */

/* Returns the shape of the layer that is being read: n_head, n_head_kv and n_ff are those of the layer. A function
 * `layer` may give it a head_dim. */
const Hparams *arch_hparams(const ArchReader *r);
/* Returns the number of a layer if the key holds a list, otherwise `fallback`. */
int64_t arch_number_of_layer(const ArchReader *r, const char *what, int32_t i_layer, int64_t fallback);
/* Returns whether the list of key-value heads has a 0 for a layer (kv_heads_by_layer). */
bool arch_has_no_keys(const ArchReader *r, int32_t i_layer);
bool arch_has(const ArchReader *r, int32_t i_layer, TensorId id);
/* Returns the description of layer i, which has been read before. */
const LayerSpec *arch_earlier_layer(const ArchReader *r, int32_t i);
/* Gives the layer that is being read a head size of its own. */
void arch_set_head_dim(ArchReader *r, int32_t head_dim, LayerSpec *out);
/* Reports that the model file is damaged or not supported. Returns the code. */
int arch_fail(const ArchReader *r, fr_code code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Takes tensors from the file and puts them where the table says: ARCH_TAKE(r, i_layer, out, TENSOR_ATTN_Q, ...). A
 * missing one is an error, unless it is written as OPTIONAL(TENSOR_...). */
#define OPTIONAL(id) ((int)(id) | TENSOR_IS_OPTIONAL)
#define ARCH_TAKE(r, i_layer, out, ...) arch_take(r, i_layer, out, (const int[]){__VA_ARGS__, TENSOR_COUNT})
enum { TENSOR_IS_OPTIONAL = 1 << 16 };
int arch_take(ArchReader *r, int32_t i_layer, LayerSpec *out, const int *tensors);
/* Each takes one tensor that has no place in a LayerSpec. *out is NULL if the tensor is optional and missing. */
int arch_tensor(ArchReader *r, int32_t i_layer, TensorId id, bool optional, const GgufTensor **out);
int arch_vector(ArchReader *r, int32_t i_layer, TensorId id, bool optional, const float **out);
/* Takes a matrix whose rows are those of several matrices of the layer, in the order of `parts`. */
typedef struct RowSplit {
    LayerMatrix matrix;
    int64_t n_rows;
} RowSplit;
int arch_split(ArchReader *r, int32_t i_layer, TensorId id, LayerSpec *out, const RowSplit *parts, int n_parts);
/* Takes rows [first, first + n) of a matrix of the model, which several layers share. */
int arch_rows(ArchReader *r, TensorId id, int64_t first, int64_t n, const GgufTensor **out);
/* Allocates matrices [n][n_out][n_in] that the model owns and the caller fills; `name` is for messages. */
int arch_own_matrices(ArchReader *r, const char *name, TensorType type, int64_t n_in, int64_t n_out, int64_t n,
                      const GgufTensor **out, void **data);
/* Each makes a vector that the model owns: of ones, or v [n] times a factor (v NULL:
 * ones). */
int arch_ones(ArchReader *r, int64_t n, const float **out);
int arch_scaled(ArchReader *r, const float *v, int64_t n, float factor, const float **out);

/* Takes a tensor that holds the rows of gate and then those of up for each expert. */
int arch_split_experts(ArchReader *r, int32_t i_layer, LayerSpec *out);

/* Each reads a part of a layer that most architectures share, with the biases that the file has. */
int arch_attention(ArchReader *r, int32_t i_layer,
                   LayerSpec *out); /* the norm, queries, keys, values and the output projection */
int arch_dense(ArchReader *r, int32_t i_layer, LayerSpec *out);
/* Reads the router, the experts and the shared expert, if the model has one; arch_routed all but the latter. */
int arch_experts(ArchReader *r, int32_t i_layer, LayerSpec *out);
int arch_routed(ArchReader *r, int32_t i_layer, LayerSpec *out);
/* Makes a layer with attention one with a window, if the file says so, and gives it the rope of such layers. */
void arch_window(const ArchReader *r, int32_t i_layer, LayerSpec *out);

#endif
