/* reference_linear.c - what drafters compute outside a forward, in double precision: linear layers, the LM head, norms,
 * softmax, and tables of rows. Matrices stay in the file. Buffers are kept twice, as an accelerator keeps them: a
 * drafter that forgets to push or to pull computes with old numbers here, and the tests that compare backends see
 * it. */
#include "compute/reference/reference.h"

#include "base/math_functions.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"

#include <math.h>
#include <string.h>

typedef struct RefBuffer {
    Buffer base;
    float *device; /* [n] */
} RefBuffer;

int reference_buffer_open(Buffer **out, Device *d, int64_t n, fr_error *err) {
    *out = NULL;
    RefBuffer *b = mem_calloc(1, sizeof *b);
    if (!b) return error_memory(err, "a buffer of a drafter", sizeof *b);
    b->base = (Buffer){.device = d, .n = n, .floats = mem_calloc((size_t)n, sizeof(float))};
    b->device = mem_calloc((size_t)n, sizeof *b->device);
    if (!b->base.floats || !b->device) {
        reference_buffer_close(&b->base);
        return error_memory(err, "a buffer of a drafter", (size_t)n * sizeof(float));
    }
    *out = &b->base;
    return FR_OK;
}

void reference_buffer_close(Buffer *buffer) {
    RefBuffer *b = (RefBuffer *)buffer;
    if (!b) return;
    mem_free(b->base.floats);
    mem_free(b->device);
    mem_free(b);
}

void reference_buffer_push(Buffer *b, int64_t first, int64_t n) {
    memcpy(((RefBuffer *)b)->device + first, b->floats + first, (size_t)n * sizeof(float));
}

void reference_buffer_pull(Buffer *b, int64_t first, int64_t n) {
    memcpy(b->floats + first, ((RefBuffer *)b)->device + first, (size_t)n * sizeof(float));
}

static float *slice_floats(Slice s) { return ((RefBuffer *)s.buffer)->device + s.first; }

void reference_embed(Device *d, const Weights *w, const int32_t *tokens, int32_t n, Slice out) {
    (void)d;
    int64_t n_embd = w->model->hparams.n_embd;
    for (int32_t i = 0; i < n; i++) model_embedding(w->model, tokens[i], slice_floats(out) + i * n_embd);
}

typedef struct RefLinear {
    Linear base;
    const GgufTensor *w;
    float *bias;   /* [n_out]; NULL: none */
    double *x, *y; /* [max_rows][n_in], [max_rows][n_out] */
    float *row;    /* [n_in] */
} RefLinear;

static double *doubles(int64_t n) { return mem_alloc((size_t)(n > 0 ? n : 1) * sizeof(double)); }

int reference_linear_open(Linear **out, Device *d, const Weights *target, const GgufTensor *w, const float *bias,
                          int32_t max_rows, fr_error *err) {
    (void)d, (void)target;
    *out = NULL;
    RefLinear *l = mem_calloc(1, sizeof *l);
    if (!l) return error_memory(err, w->name, sizeof *l);
    l->base = (Linear){.n_in = w->dims[0], .n_out = w->dims[1]};
    l->w = w;
    l->x = doubles(max_rows * l->base.n_in);
    l->y = doubles(max_rows * l->base.n_out);
    l->row = mem_alloc((size_t)l->base.n_in * sizeof *l->row);
    if (bias) l->bias = mem_alloc((size_t)l->base.n_out * sizeof *bias);
    if (!l->x || !l->y || !l->row || (bias && !l->bias)) {
        reference_linear_close(&l->base);
        return error_memory(err, w->name, (size_t)(max_rows * l->base.n_out) * sizeof(double));
    }
    if (bias) memcpy(l->bias, bias, (size_t)l->base.n_out * sizeof *bias);
    *out = &l->base;
    return FR_OK;
}

void reference_linear_close(Linear *linear) {
    RefLinear *l = (RefLinear *)linear;
    if (!l) return;
    mem_free(l->bias);
    mem_free(l->x);
    mem_free(l->y);
    mem_free(l->row);
    mem_free(l);
}

void reference_linear(Device *d, const Linear *linear, LinearOp op, Slice in, int32_t n_rows, Slice out) {
    (void)d;
    const float *x = slice_floats(in);
    float *y = slice_floats(out);
    const RefLinear *l = (const RefLinear *)linear;
    for (int64_t i = 0; i < n_rows * l->base.n_in; i++) l->x[i] = (double)x[i];
    reference_product(l->w, l->w->data, l->x, n_rows, false, l->y, l->row);
    for (int64_t i = 0; i < n_rows * l->base.n_out; i++) {
        double p = l->y[i] + (l->bias ? (double)l->bias[i % l->base.n_out] : 0), before = (double)y[i];
        y[i] = (float)(op == LINEAR_SET        ? p
                       : op == LINEAR_ADD_SILU ? before + reference_silu(p)
                                               : reference_silu(before + p));
    }
}

int reference_head_reserve(Device *d, const Weights *w, int32_t max_rows, fr_error *err) {
    (void)d, (void)w, (void)max_rows, (void)err;
    return FR_OK;
}

/* Works row by row and output by output, so that no memory is needed. */
void reference_head(Device *d, const Weights *w, Slice in, int32_t n_rows, Slice out) {
    (void)d;
    const float *x = slice_floats(in);
    float *y = slice_floats(out);
    const GgufTensor *t = w->model->output;
    int64_t n_in = t->dims[0], n_out = t->dims[1];
    size_t row_bytes = t->bytes / (size_t)n_out;
    enum { PIECE = 256 }; /* whole blocks of every type */
    float piece[PIECE];
    for (int64_t o = 0; o < n_out; o++)
        for (int32_t r = 0; r < n_rows; r++) {
            double sum = 0;
            for (int64_t i = 0; i < n_in; i += PIECE) {
                int64_t n = n_in - i < PIECE ? n_in - i : PIECE;
                size_t at;
                (void)tensor_type_row_bytes(t->type, i, &at);
                blocks_dequantize(t->type, (const char *)t->data + (size_t)o * row_bytes + at, n, piece);
                for (int64_t k = 0; k < n; k++) sum += (double)piece[k] * (double)x[r * n_in + i + k];
            }
            y[r * n_out + o] = (float)reference_finish_logit(w->model, o, sum);
        }
}

void reference_softmax(Device *d, float *x, int32_t n_rows, int64_t n) {
    (void)d;
    for (; n_rows > 0; n_rows--, x += n) {
        double largest = -INFINITY, total = 0;
        for (int64_t i = 0; i < n; i++) largest = (double)x[i] > largest || isnan(x[i]) ? (double)x[i] : largest;
        for (int64_t i = 0; i < n; i++) total += math_exp((double)x[i] - largest);
        for (int64_t i = 0; i < n; i++) x[i] = (float)(math_exp((double)x[i] - largest) / total);
    }
}

void reference_rmsnorm_rows(Device *d, Slice rows, int32_t n_rows, int64_t n, const float *gain, float eps) {
    (void)d;
    for (float *x = slice_floats(rows); n_rows > 0; n_rows--, x += n) {
        double squares = 0;
        for (int64_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)((double)x[i] / sqrt(squares / (double)n + (double)eps) * (double)gain[i]);
    }
}

/* ---- tables of rows --------------------------------------------------------------------------------- */

typedef struct RefLookup {
    Lookup base;
    int64_t width; /* n, up to whole blocks */
    size_t row_bytes;
    char *rows; /* [n_rows][row_bytes] in the type of the table */
    float *row; /* [width] */
} RefLookup;

int reference_lookup_open(Lookup **out, Device *d, TensorType type, int64_t n_rows, int64_t n, fr_error *err) {
    (void)d;
    enum { BLOCK = 32 };
    *out = NULL;
    RefLookup *l = mem_calloc(1, sizeof *l);
    if (!l) return error_memory(err, "a table of rows", sizeof *l);
    l->base = (Lookup){.n_rows = n_rows, .n = n, .type = type};
    l->width = (n + BLOCK - 1) / BLOCK * BLOCK;
    size_t bytes = SIZE_MAX;
    if (tensor_type_row_bytes(type, l->width, &l->row_bytes) && size_mul((size_t)n_rows, l->row_bytes, &bytes))
        l->rows = mem_alloc(bytes);
    l->row = mem_calloc((size_t)l->width, sizeof *l->row);
    if (!l->rows || !l->row) {
        reference_lookup_close(&l->base);
        return error_memory(err, "a table of rows", bytes);
    }
    *out = &l->base;
    return FR_OK;
}

void reference_lookup_close(Lookup *lookup) {
    RefLookup *l = (RefLookup *)lookup;
    if (!l) return;
    mem_free(l->rows);
    mem_free(l->row);
    mem_free(l);
}

void reference_lookup_store(Device *d, Lookup *lookup, int64_t first, int32_t n_rows, const float *rows) {
    (void)d;
    RefLookup *l = (RefLookup *)lookup;
    for (int32_t i = 0; i < n_rows; i++) {
        memset(l->row, 0, (size_t)l->width * sizeof *l->row);
        memcpy(l->row, rows + i * l->base.n, (size_t)l->base.n * sizeof *l->row);
        blocks_quantize(l->base.type, l->row, l->width, l->rows + (size_t)(first + i) * l->row_bytes);
    }
}

void reference_lookup_add(Device *d, Lookup *lookup, int64_t i, float *x) {
    (void)d;
    RefLookup *l = (RefLookup *)lookup;
    blocks_dequantize(l->base.type, l->rows + (size_t)i * l->row_bytes, l->width, l->row);
    for (int64_t k = 0; k < l->base.n; k++) x[k] = (float)((double)x[k] + (double)l->row[k]);
}
