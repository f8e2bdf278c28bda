/* model_reader.c - takes tensors from a model file: they are found by name, and their shapes are checked. These are the
 * functions with which the architectures read their layers (arch.h), and the memory of what they make. */
#include "model/model_reader.h"

#include "base/error.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

int model_reader_open(ArchReader *r, size_t n) {
    r->taken = mem_calloc(n, sizeof *r->taken);
    r->m->memory = mem_calloc(1, sizeof *r->m->memory);
    if (r->m->memory) r->m->memory->vectors = mem_calloc(2 * n, sizeof *r->m->memory->vectors);
    bool has_memory = r->taken && r->m->memory && r->m->memory->vectors;
    return has_memory ? FR_OK : (int)error_memory(r->err, "a list of tensors", n * sizeof *r->taken);
}

void model_memory_free(struct ModelMemory *memory) {
    if (!memory) return;
    for (int64_t i = 0; memory->vectors && i < memory->n_vectors; i++) mem_free(memory->vectors[i]);
    mem_free(memory->vectors);
    mem_free(memory->layers);
    mem_free(memory->views);
    mem_free(memory);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

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

int model_reader_take(ArchReader *r, const char *name, int64_t n_in, int64_t n_out, bool optional,
                      const GgufTensor **out) {
    return take_shaped(r, name, n_in, n_out, 0, optional, out);
}

/* Takes a vector [n_in] or a matrix [n_out][n_in] as floats. */
static int take_floats(ArchReader *r, const char *name, int64_t n_in, int64_t n_out, bool optional, const float **out) {
    const GgufTensor *t;
    int status = model_reader_take(r, name, n_in, n_out, optional, &t);
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

int model_reader_take_vector(ArchReader *r, const char *name, int64_t n, bool optional, const float **out) {
    return take_floats(r, name, n, 0, optional, out);
}

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
    fr_assert(memory->n_views < (int64_t)r->m->hparams.n_layer * MODEL_MAX_VIEWS);
    if (!memory->views)
        memory->views = mem_calloc((size_t)r->m->hparams.n_layer * MODEL_MAX_VIEWS, sizeof *memory->views);
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

int model_reader_refuse(const ArchReader *r, const GgufTensor *t) {
    Printable safe;
    return error_set(r->err, FR_ERR_UNSUPPORTED,
                     "%s: tensor %s is not part of architecture %s as forerun knows it; the model would be run wrongly",
                     gguf_path(r->m->gguf), printable(&safe, t->name, strlen(t->name)), arch_name(r->m->hparams.arch));
}
