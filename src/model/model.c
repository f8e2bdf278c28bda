/* model.c - reads a model file into its description: tensors are found by name, their shapes are checked, and every
 * tensor of the file must be used. The architecture describes the layers (arch.h). */
#include "model/model.h"

#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "base/error.h"
#include "model/arch.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The memory that a model owns if it was read from a file. */
struct ModelMemory {
    LayerSpec *layers;
    GgufTensor *views; /* [n_views] matrices that are rows of another; there is room for MAX_VIEWS of each layer */
    int64_t n_views;
    float **vectors; /* [n_vectors], with room for two for each tensor of the file */
    int64_t n_vectors;
};

enum { MAX_VIEWS = 5 }; /* in a layer: queries, keys and values of one matrix, gate and up of another */

struct ArchReader {
    Model *m;
    Hparams of_layer; /* the shape of the layer that is being read */
    bool *taken;      /* [gguf_n_tensors] */
    int64_t n_taken;
    fr_error *err;
};

const Hparams *arch_hparams(const ArchReader *r) { return &r->of_layer; }

int64_t arch_number_of_layer(const ArchReader *r, const char *what, int32_t i_layer, int64_t fallback) {
    return number_of_layer(r->m->gguf, arch_name(r->m->hparams.arch), what, i_layer, fallback);
}

bool arch_has_no_keys(const ArchReader *r, int32_t i_layer) {
    return arch_number_of_layer(r, "attention.head_count_kv", i_layer, 1) == 0;
}

/* Takes a tensor, which must have exactly this shape: a vector if n_out is 0, one matrix if n is 0. It may be missing
 * only if it is optional. */
static int take_shaped(ArchReader *r, const char *name, int64_t n_in, int64_t n_out, int64_t n, bool optional,
                       const GgufTensor **out) {
    const GgufTensor *t = gguf_find_tensor(r->m->gguf, name);
    const char *path = gguf_path(r->m->gguf);
    int n_dims = n ? 3 : n_out ? 2 : 1;
    *out = t;
    if (!t) return optional ? FR_OK : error_set(r->err, FR_ERR_FORMAT, "%s: tensor %s is missing", path, name);
    if ((int)t->n_dims > n_dims || t->dims[0] != n_in || (n_out && t->dims[1] != n_out) || (n && t->dims[2] != n))
        return error_set(r->err, FR_ERR_FORMAT,
                         "%s: tensor %s has the wrong shape: %lld x %lld%s where %lld x %lld%s fits", path, name,
                         (long long)t->dims[0], (long long)t->dims[1], t->n_dims > 2 ? " x ..." : "", (long long)n_in,
                         (long long)(n_out ? n_out : 1), n ? " of each expert" : "");
    bool *taken = &r->taken[t - gguf_tensor(r->m->gguf, 0)];
    r->n_taken += !*taken;
    *taken = true;
    return FR_OK;
}

static int take(ArchReader *r, const char *name, int64_t n_in, int64_t n_out, bool optional, const GgufTensor **out) {
    return take_shaped(r, name, n_in, n_out, 0, optional, out);
}

int model_refuse_not_finite(const Model *m, const GgufTensor *t, fr_error *err) {
    return error_set(
        err, FR_ERR_FORMAT,
        "%s: tensor %s holds NaN or infinity; the file is damaged, or its training or conversion went wrong",
        gguf_path(m->gguf), t->name);
}

/* Takes a vector [n_in] or a matrix [n_out][n_in] as floats. */
static int take_floats(ArchReader *r, const char *name, int64_t n_in, int64_t n_out, bool optional, const float **out) {
    const GgufTensor *t;
    int status = take(r, name, n_in, n_out, optional, &t);
    if (status || !t) return status;
    size_t row_bytes;
    int64_t n = n_in * (n_out ? n_out : 1);
    if (!tensor_type_row_bytes(t->type, n_in, &row_bytes))
        return error_set(r->err, FR_ERR_FORMAT, "%s: tensor %s is not whole blocks", gguf_path(r->m->gguf), name);
    if (!finite_weights(t->type, t->data, n)) return model_refuse_not_finite(r->m, t, r->err);
    float *v = mem_calloc((size_t)n, sizeof *v);
    if (!v) return error_memory(r->err, name, (size_t)n * sizeof *v);
    r->m->memory->vectors[r->m->memory->n_vectors++] = v;
    blocks_dequantize(t->type, t->data, n, v);
    *out = v;
    return FR_OK;
}

static int take_vector(ArchReader *r, const char *name, int64_t n, bool optional, const float **out) {
    return take_floats(r, name, n, 0, optional, out);
}

typedef struct TensorName {
    char text[64];
} TensorName;

/* i_layer is ignored where the tensor is not one of a layer. */
static TensorName full_name(int32_t i_layer, TensorId id) {
    TensorName out;
    if (tensor_is_of_layer(id)) snprintf(out.text, sizeof out.text, "blk.%d.%s", i_layer, tensor_table[id].name);
    else snprintf(out.text, sizeof out.text, "%s", tensor_table[id].name);
    return out;
}

bool arch_has(const ArchReader *r, int32_t i_layer, TensorId id) {
    return gguf_find_tensor(r->m->gguf, full_name(i_layer, id).text) != NULL;
}

int arch_tensor(ArchReader *r, int32_t i_layer, TensorId id, bool optional, const GgufTensor **out) {
    const Hparams *h = &r->of_layer;
    const TensorInfo *info = &tensor_table[id];
    MatrixCount count = info->matrix < LAYER_MATRICES ? layer_matrix_info[info->matrix].count : ONE_MATRIX;
    int64_t n = count == MATRIX_OF_HEADS ? h->n_head : count == MATRIX_OF_EXPERTS ? h->n_expert : 0;
    return take_shaped(r, full_name(i_layer, id).text, tensor_size(h, info->n_in), tensor_size(h, info->n_out), n,
                       optional, out);
}

int arch_vector(ArchReader *r, int32_t i_layer, TensorId id, bool optional, const float **out) {
    const Hparams *h = &r->of_layer;
    const TensorInfo *info = &tensor_table[id];
    return take_floats(r, full_name(i_layer, id).text, tensor_size(h, info->n_in), tensor_size(h, info->n_out),
                       optional, out);
}

int arch_take(ArchReader *r, int32_t i_layer, LayerSpec *out, const int *tensors) {
    int status = FR_OK;
    for (; *tensors != TENSOR_COUNT && !status; tensors++) {
        bool optional = *tensors & TENSOR_IS_OPTIONAL;
        TensorId id = (TensorId)(*tensors & ~TENSOR_IS_OPTIONAL);
        const TensorInfo *info = &tensor_table[id];
        const float *floats = NULL;
        if (info->matrix < LAYER_MATRICES) {
            status = arch_tensor(r, i_layer, id, optional, &out->matrices[info->matrix]);
            continue;
        }
        fr_assert(info->floats != SIZE_MAX);
        status = arch_vector(r, i_layer, id, optional, &floats);
        if (floats) memcpy((char *)out + info->floats, &floats, sizeof floats);
    }
    return status;
}

const LayerSpec *arch_earlier_layer(const ArchReader *r, int32_t i) { return &r->m->layers[i]; }

void arch_set_head_dim(ArchReader *r, int32_t head_dim, LayerSpec *out) {
    if (head_dim != r->m->hparams.head_dim) out->head_dim = head_dim;
    r->of_layer.head_dim = head_dim;
}

int arch_fail(const ArchReader *r, fr_code code, const char *fmt, ...) {
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return error_set(r->err, code, "%s: %s", gguf_path(r->m->gguf), text);
}

/* Returns NULL if there is no memory. */
static GgufTensor *new_view(ArchReader *r) {
    struct ModelMemory *memory = r->m->memory;
    fr_assert(memory->n_views < (int64_t)r->m->hparams.n_layer * MAX_VIEWS);
    if (!memory->views) memory->views = mem_calloc((size_t)r->m->hparams.n_layer * MAX_VIEWS, sizeof *memory->views);
    return memory->views ? &memory->views[memory->n_views++] : NULL;
}

int arch_own_matrices(ArchReader *r, const char *name, TensorType type, int64_t n_in, int64_t n_out, int64_t n,
                      const GgufTensor **out, void **data) {
    struct ModelMemory *memory = r->m->memory;
    GgufTensor *view = new_view(r);
    size_t row_bytes;
    if (!tensor_type_row_bytes(type, n_in, &row_bytes))
        return error_set(r->err, FR_ERR_FORMAT, "%s: tensor %s is not whole blocks", gguf_path(r->m->gguf), name);
    fr_assert(memory->n_vectors < 2 * gguf_n_tensors(r->m->gguf));
    float *own = view ? mem_calloc((size_t)(n_out * n), row_bytes) : NULL;
    if (!own) return error_memory(r->err, name, (size_t)(n_out * n) * row_bytes);
    memory->vectors[memory->n_vectors++] = own;
    *view = (GgufTensor){.name = name, .type = type, .n_dims = 3, .dims = {n_in, n_out, n, 1}, .data = own};
    view->bytes = (size_t)(n_out * n) * row_bytes;
    *out = view, *data = own;
    return FR_OK;
}

int arch_scaled(ArchReader *r, const float *v, int64_t n, float factor, const float **out) {
    struct ModelMemory *memory = r->m->memory;
    fr_assert(memory->n_vectors < 2 * gguf_n_tensors(r->m->gguf));
    float *own = mem_calloc((size_t)n, sizeof *own);
    if (!own) return error_memory(r->err, "a vector", (size_t)n * sizeof *own);
    memory->vectors[memory->n_vectors++] = own;
    for (int64_t i = 0; i < n; i++) own[i] = v ? v[i] * factor : factor;
    *out = own;
    return FR_OK;
}

int arch_ones(ArchReader *r, int64_t n, const float **out) { return arch_scaled(r, NULL, n, 1, out); }

/* Makes *out rows [first, first + n) of a matrix. */
static int view_rows(ArchReader *r, const GgufTensor *t, int64_t first, int64_t n, const GgufTensor **out) {
    size_t row_bytes = t->bytes / (size_t)t->dims[1];
    GgufTensor *view = new_view(r);
    if (!view) return error_memory(r->err, "parts of matrices", sizeof *view);
    *view = *t;
    view->dims[1] = n, view->bytes = (size_t)n * row_bytes;
    view->data = (const char *)t->data + (size_t)first * row_bytes;
    *out = view;
    return FR_OK;
}

int arch_split(ArchReader *r, int32_t i_layer, TensorId id, LayerSpec *out, const RowSplit *parts, int n_parts) {
    const GgufTensor *t;
    int64_t first = 0;
    int status = arch_tensor(r, i_layer, id, false, &t);
    for (int i = 0; i < n_parts && !status; i++) {
        status = view_rows(r, t, first, parts[i].n_rows, &out->matrices[parts[i].matrix]);
        first += parts[i].n_rows;
    }
    fr_assert(status || first == t->dims[1]);
    return status;
}

int arch_rows(ArchReader *r, TensorId id, int64_t first, int64_t n, const GgufTensor **out) {
    const GgufTensor *t;
    int status = arch_tensor(r, 0, id, false, &t);
    return status ? status : view_rows(r, t, first, n, out);
}

int arch_split_experts(ArchReader *r, int32_t i_layer, LayerSpec *out) {
    static const LayerMatrix matrices[] = {MATRIX_EXPERT_GATE, MATRIX_EXPERT_UP};
    const Hparams *h = &r->of_layer;
    const GgufTensor *t;
    int status = take_shaped(r, full_name(i_layer, TENSOR_EXPERT_GATE_UP).text, h->n_embd,
                             tensor_size(h, SIZE_EXPERT_GATE_UP), h->n_expert, false, &t);
    if (status) return status;
    size_t step = t->bytes / (size_t)t->dims[2];
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        GgufTensor *view = new_view(r);
        if (!view) return error_memory(r->err, "parts of matrices", sizeof *view);
        *view = *t;
        view->dims[1] = h->n_ff_expert, view->bytes = t->bytes / 2, view->step = step;
        view->data = (const char *)t->data + i * (step / 2);
        out->matrices[matrices[i]] = view;
    }
    return FR_OK;
}

/* Makes the rope of the layers with a window, if they have one of their own. */
static int load_local_rope(ArchReader *r) {
    const Hparams *h = &r->m->hparams;
    if (h->local_rope_base <= 0) return FR_OK;
    const RopeParams p = {.style = h->rope.style,
                          .n_rot = h->local_n_rot ? h->local_n_rot : h->rope.n_rot,
                          .base = h->local_rope_base,
                          .factor = 1};
    int status = rope_init(&r->m->ropes[1], &p, NULL, r->err);
    if (!status) r->m->n_ropes = 2;
    return status;
}

/* Takes divisors of the frequencies; *out is NULL if the file has none. */
static int take_rope_factors(ArchReader *r, const char *name, const float **out) {
    int32_t n = r->m->hparams.rope.n_rot / 2;
    int status = take_vector(r, name, n, true, out);
    for (int32_t i = 0; !status && *out && i < n; i++)
        if (!((*out)[i] > 0))
            status = error_set(r->err, FR_ERR_FORMAT, "%s: %s holds %g where only positive factors make sense",
                               gguf_path(r->m->gguf), name, (double)(*out)[i]);
    return status;
}

/* There may be one set of factors, or the two of LongRoPE. */
static int load_rope(ArchReader *r) {
    Model *m = r->m;
    const RopeParams *p = &m->hparams.rope;
    const float *factors = NULL, *short_factors = NULL, *long_factors = NULL;
    int status = take_rope_factors(r, "rope_freqs.weight", &factors);
    if (!status) status = take_rope_factors(r, "rope_factors_short.weight", &short_factors);
    if (!status) status = take_rope_factors(r, "rope_factors_long.weight", &long_factors);
    if (!status && (!short_factors != !long_factors || (factors && short_factors)))
        status = error_set(
            r->err, FR_ERR_FORMAT,
            "%s: LongRoPE has the tensors rope_factors_short.weight and rope_factors_long.weight, and no "
            "other factors",
            gguf_path(m->gguf));
    if (!status) status = rope_init(&m->ropes[0], p, short_factors ? short_factors : factors, r->err);
    if (!status) m->n_ropes = 1;
    if (!status && long_factors) status = rope_init(&m->long_rope, p, long_factors, r->err);
    return status ? status : load_local_rope(r);
}

/* Returns whether the tensor belongs to a layer after those that are run. */
static bool is_of_nextn(const ArchReader *r, const char *name) {
    const Hparams *h = &r->m->hparams;
    int layer;
    return h->n_nextn && sscanf(name, "blk.%d.", &layer) == 1 && layer >= h->n_layer && layer < h->n_layer + h->n_nextn;
}

static int refuse_tensor(const ArchReader *r, const GgufTensor *t) {
    Printable safe;
    return error_set(r->err, FR_ERR_UNSUPPORTED,
                     "%s: tensor %s is not part of architecture %s as forerun knows it; the model would be run wrongly",
                     gguf_path(r->m->gguf), printable(&safe, t->name, strlen(t->name)), arch_name(r->m->hparams.arch));
}

static int refuse_unknown_tensors(const ArchReader *r) {
    const Gguf *g = r->m->gguf;
    for (int64_t i = 0; r->n_taken < gguf_n_tensors(g) && i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        if (!r->taken[i] && !is_of_nextn(r, t->name)) return refuse_tensor(r, t);
    }
    return FR_OK;
}

/* Returns the name "NAME.scale" or "NAME.input_scale" that belongs to a tensor "NAME.weight". */
static TensorName name_beside(const GgufTensor *t, const char *suffix) {
    TensorName out;
    const char *dot = strrchr(t->name, '.');
    snprintf(out.text, sizeof out.text, "%.*s.%s", dot ? (int)(dot - t->name) : 0, t->name, suffix);
    return out;
}

/* Takes the factors of the matrices of a layer. attn_kv_b is not used as it is in the file, so its factors are
 * refused. */
static int take_scales(ArchReader *r, LayerSpec *l) {
    for (int m = 0; m < LAYER_MATRICES; m++) {
        const GgufTensor *t = l->matrices[m], *any;
        if (!t || t->type != TYPE_NVFP4 || strstr(t->name, "attn_kv_b")) continue;
        TensorName scale = name_beside(t, "scale"), of_inputs = name_beside(t, "input_scale");
        int status = take_vector(r, scale.text, t->dims[2], true, &l->scales[m]);
        if (!status) status = take(r, of_inputs.text, t->dims[2], 0, true, &any);
        if (status) return status;
    }
    return FR_OK;
}

/* Reads a layer, which has its own numbers of heads and its own feed-forward width if the file lists them. */
static int read_layer(ArchReader *r, int32_t i, LayerSpec *out) {
    const Hparams *h = &r->m->hparams;
    Hparams *of = &r->of_layer;
    *of = *h;
    of->n_ff = (int32_t)arch_number_of_layer(r, "feed_forward_length", i, h->n_ff);
    if (!h->latent.rank && !arch_find(h->arch)->has_no_attention) {
        of->n_head = (int32_t)arch_number_of_layer(r, "attention.head_count", i, h->n_head);
        of->n_head_kv = (int32_t)arch_number_of_layer(r, "attention.head_count_kv", i, h->n_head_kv);
        if (of->n_head != h->n_head) out->n_head = of->n_head;
        if (of->n_head_kv != h->n_head_kv) out->n_head_kv = of->n_head_kv;
    }
    int status = arch_find(h->arch)->layer(r, i, out);
    return status ? status : take_scales(r, out);
}

static int load(ArchReader *r) {
    Model *m = r->m;
    int status = hparams_read(&m->hparams, m->gguf, r->err);
    if (status) return status;
    const Hparams *h = &m->hparams;
    r->of_layer = *h;
    if ((status = load_rope(r))) return status;
    const Architecture *arch = arch_find(h->arch);
    TensorId norm = arch->has_embd_norm ? TENSOR_EMBD_NORM : TENSOR_OUTPUT_NORM;
    if ((status = arch_tensor(r, 0, TENSOR_TOKEN_EMBD, false, &m->token_embd))) return status;
    if ((status = arch_vector(r, 0, norm, false, &m->output_norm))) return status;
    if ((status = arch_tensor(r, 0, TENSOR_OUTPUT, true, &m->output))) return status;
    if (!m->output) m->output = m->token_embd;
    if (h->n_ple && (status = arch_tensor(r, 0, TENSOR_PLE_TABLE, false, &m->ple_table))) return status;
    if ((status = arch_vector(r, 0, TENSOR_OUTPUT_BIAS, true, &m->output_bias))) return status;
    LayerSpec *layers = mem_calloc((size_t)h->n_layer, sizeof *layers);
    if (!layers) return error_memory(r->err, "layers", (size_t)h->n_layer * sizeof *layers);
    m->layers = m->memory->layers = layers;
    for (int32_t i = 0; i < h->n_layer; i++)
        if ((status = read_layer(r, i, &layers[i]))) return status;
    return refuse_unknown_tensors(r);
}

/* Allocates what a model of n tensors owns. After an error, the caller frees r->taken and closes the model. */
static int open_reader(ArchReader *r, size_t n) {
    r->taken = mem_calloc(n, sizeof *r->taken);
    r->m->memory = mem_calloc(1, sizeof *r->m->memory);
    if (r->m->memory) r->m->memory->vectors = mem_calloc(2 * n, sizeof *r->m->memory->vectors);
    bool has_memory = r->taken && r->m->memory && r->m->memory->vectors;
    return has_memory ? FR_OK : (int)error_memory(r->err, "a list of tensors", n * sizeof *r->taken);
}

int model_open(Model **out, const Gguf *g, fr_error *err) {
    *out = NULL;
    Model *m = mem_calloc(1, sizeof *m);
    if (!m) return error_memory(err, "a model", sizeof *m);
    m->gguf = g;
    ArchReader r = {.m = m, .err = err};
    int status = open_reader(&r, (size_t)gguf_n_tensors(g));
    if (!status) status = load(&r);
    mem_free(r.taken);
    if (status) {
        model_close(m);
        return status;
    }
    *out = m;
    return FR_OK;
}

static void free_memory(struct ModelMemory *memory) {
    if (!memory) return;
    for (int64_t i = 0; memory->vectors && i < memory->n_vectors; i++) mem_free(memory->vectors[i]);
    mem_free(memory->vectors);
    mem_free(memory->layers);
    mem_free(memory->views);
    mem_free(memory);
}

void model_close(Model *m) {
    if (!m) return;
    free_memory(m->memory);
    for (int i = 0; i < m->n_ropes; i++) rope_free(&m->ropes[i]);
    rope_free(&m->long_rope);
    mem_free(m);
}

/* ---- the layers for multi-token prediction ------------------------------------------------------------- */

/* A layer is read only when a drafter wants it, so that a model still runs if the layer is damaged, or is missing
 * although the file has its key. */
static int read_nextn(ArchReader *r, int32_t i, Nextn *n) {
    const float *norm = NULL;
    const GgufTensor *head = NULL;
    int status = arch_tensor(r, i, TENSOR_NEXTN_EH_PROJ, false, &n->eh_proj);
    if (!status) status = arch_vector(r, i, TENSOR_NEXTN_ENORM, false, &n->enorm);
    if (!status) status = arch_vector(r, i, TENSOR_NEXTN_HNORM, false, &n->hnorm);
    if (!status) status = arch_vector(r, i, TENSOR_NEXTN_HEAD_NORM, true, &norm);
    if (!status) status = arch_tensor(r, i, TENSOR_NEXTN_HEAD, true, &head);
    if (!status) status = arch_tensor(r, i, TENSOR_NEXTN_EMBD, true, &n->embed_tokens);
    if (norm) n->model.output_norm = norm;
    if (head) n->model.output = head, n->model.output_bias = NULL;
    return status ? status : read_layer(r, i, &n->layer);
}

/* Refuses the layer if one of its tensors was not taken or is not finite. Nothing checks these tensors later. */
static int check_nextn(const ArchReader *r, int32_t i_layer) {
    TensorName prefix;
    snprintf(prefix.text, sizeof prefix.text, "blk.%d.", i_layer);
    for (int64_t i = 0; i < gguf_n_tensors(r->m->gguf); i++) {
        const GgufTensor *t = gguf_tensor(r->m->gguf, i);
        if (strncmp(t->name, prefix.text, strlen(prefix.text)) != 0) continue;
        if (!r->taken[i]) return refuse_tensor(r, t);
        int64_t n = t->dims[0] * t->dims[1] * t->dims[2];
        if (!finite_weights(t->type, t->data, n)) return model_refuse_not_finite(r->m, t, r->err);
    }
    return FR_OK;
}

/* Reads the shape from a companion file, and compares it with the model's. */
static int read_companion(const Model *model, const Gguf *companion, Hparams *out, fr_error *err) {
    int status = hparams_read(out, companion, err);
    if (status) return status;
    const Hparams *a = out, *b = &model->hparams;
    const struct {
        const char *name;
        double of_file, of_model;
    } numbers[] = {{"layers before that for multi-token prediction", a->n_layer, b->n_layer},
                   {"numbers in an embedding", a->n_embd, b->n_embd},
                   {"tokens", a->n_vocab, b->n_vocab},
                   {"heads", a->n_head, b->n_head},
                   {"KV heads", a->n_head_kv, b->n_head_kv},
                   {"numbers in a head", a->head_dim, b->head_dim},
                   {"rotated numbers in a head", a->rope.n_rot, b->rope.n_rot},
                   {"as the base of rope", a->rope.base, b->rope.base},
                   {"experts", a->n_expert, b->n_expert}};
    if (a->arch != b->arch)
        return error_set(err, FR_ERR_MISMATCH, "%s has the architecture %s, but its target %s has %s",
                         gguf_path(companion), arch_name(a->arch), gguf_path(model->gguf), arch_name(b->arch));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].of_file != numbers[i].of_model)
            return error_set(
                err, FR_ERR_MISMATCH, "%s belongs to another model: it has %g %s, but the target %s has %g",
                gguf_path(companion), numbers[i].of_file, numbers[i].name, gguf_path(model->gguf), numbers[i].of_model);
    return FR_OK;
}

/* The model of the layer is a copy of the whole model with other layers, and owns only what was read for it. */
int nextn_open(Nextn *out, const Model *model, const Gguf *companion, int32_t index, fr_error *err) {
    const Gguf *g = companion ? companion : model->gguf;
    *out = (Nextn){.model = *model};
    out->model.layers = NULL, out->model.memory = NULL;
    out->model.gguf = g;
    int status = companion ? read_companion(model, companion, &out->model.hparams, err) : FR_OK;
    if (status) return status;
    if (index >= out->model.hparams.n_nextn)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s has no layer for multi-token prediction (%s.nextn_predict_layers)", gguf_path(g),
                         arch_name(model->hparams.arch));
    ArchReader r = {.m = &out->model, .of_layer = out->model.hparams, .err = err};
    int32_t i_layer = out->model.hparams.n_layer + index;
    status = open_reader(&r, (size_t)gguf_n_tensors(g));
    if (!status) status = read_nextn(&r, i_layer, out);
    if (!status) status = check_nextn(&r, i_layer);
    mem_free(r.taken);
    if (status) {
        nextn_close(out);
        return status;
    }
    out->model.layers = &out->layer;
    out->model.hparams.n_layer = 1;
    return FR_OK;
}

void nextn_close(Nextn *n) {
    free_memory(n->model.memory);
    n->model.memory = NULL;
}
