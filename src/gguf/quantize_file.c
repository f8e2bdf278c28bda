/* quantize_file.c - streams the tensors of a model through the quantisers into a new file.
 *
 * Shapes and types are decided first, so that what is impossible is refused before anything is written. Then the writer
 * asks for rows (GgufFill), and the threads share the rows of each piece: a row depends on nothing but itself, so the
 * file is the same for any number of threads. Memory of rows that have been read is given back to the system, so
 * that only a piece of one tensor is in memory. */
#include "gguf/quantize.h"

#include "base/mem.h"
#include "base/threads.h"
#include "gguf/gguf_write.h"
#include "base/error.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

typedef struct Job Job;

/* A matrix to be converted. */
typedef struct Item {
    Job *job;
    const GgufTensor *from;
    TensorType to;
    float *scales; /* [dims[2]] for NVFP4: the scale of the matrix, or of the matrix of each expert; else NULL */
} Item;

struct Job {
    const Gguf *in;
    const QuantizeOptions *o;
    QuantizeResult *result;
    GgufWriter *w;
    ThreadPool *pool;
    Item *items; /* [gguf_n_tensors], those in use first */
    int64_t n_items;
    float *rows; /* [n_threads][widest] */
    int64_t widest;
    float *importance; /* [largest] of the matrix that is being written */
    const Item *importance_is_of;
    bool has_importance;
    size_t done, total; /* bytes read */
};

/* ---- the scale of a matrix in NVFP4 ------------------------------------------------------------------- */

/* NVFP4 has a scale for each matrix in addition to those of its blocks: tensor NAME.scale [experts] for NAME.weight.
 * The scales of its blocks are floats of 7 bits, from 2^-9 to 448, so that the weights of most models, some hundredths,
 * would fall below the smallest of them. So a matrix is divided by the number that makes its largest element the
 * largest product of a code and a scale, 6 times 448, as NVIDIA's tools do it; a product with the matrix is multiplied
 * by that number afterwards. */

enum { NVFP4_SCALE_NAME = 160 };
static const float nvfp4_largest = 6 * 448;

/* Writes the name of the tensor for the scales of a matrix "NAME.weight". */
static void nvfp4_scale_name(const char *matrix, char out[NVFP4_SCALE_NAME]) {
    int n = (int)(strlen(matrix) - strlen(".weight"));
    snprintf(out, NVFP4_SCALE_NAME, "%.*s.scale", n, matrix);
}

static bool nvfp4_scale_is_beside(const Gguf *g, const GgufTensor *matrix) {
    char name[NVFP4_SCALE_NAME];
    nvfp4_scale_name(matrix->name, name);
    return gguf_find_tensor(g, name) != NULL;
}

/* The search for the largest element of the matrix of one expert. */
typedef struct Search {
    const GgufTensor *t;
    int64_t expert;
    float *rows;
    int64_t width;
    float most[THREADS_MAX]; /* the greatest magnitude of each part */
} Search;

static void search_part(void *ctx, int i_part, int n_parts, int i_thread) {
    Search *s = ctx;
    const GgufTensor *t = s->t;
    int64_t n = t->dims[0], begin, end;
    size_t bytes = t->bytes / (size_t)(t->dims[1] * t->dims[2]);
    const char *matrix = (const char *)t->data + (size_t)(s->expert * t->dims[1]) * bytes;
    float *row = s->rows + i_thread * s->width, most = 0;
    threads_split(t->dims[1], 1, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        blocks_dequantize(t->type, matrix + (size_t)i * bytes, n, row);
        for (int64_t k = 0; k < n; k++)
            if (isfinite(row[k]) && fabsf(row[k]) > most) most = fabsf(row[k]);
    }
    s->most[i_part] = most;
}

/* Computes the scales of a matrix, or of the matrices of all its experts, out [dims[2]]; 1 where all elements are zero.
 * Elements that are not finite are passed over. rows: [threads of the pool][width] scratch memory, width at least
 * dims[0]. */
static void nvfp4_scale_measure(ThreadPool *pool, const GgufTensor *t, float *rows, int64_t width, float *out) {
    int n_parts = threads_count(pool);
    for (int64_t e = 0; e < t->dims[2]; e++) {
        Search s = {.t = t, .expert = e, .rows = rows, .width = width};
        float most = 0;
        threads_run(pool, n_parts, search_part, &s);
        for (int i = 0; i < n_parts; i++) most = s.most[i] > most ? s.most[i] : most;
        out[e] = most > 0 ? most / nvfp4_largest : 1;
    }
}

static bool is_float(TensorType type) { return type == TYPE_F32 || type == TYPE_F16 || type == TYPE_BF16; }

/* ---- rows -------------------------------------------------------------------------------------------- */

/* A piece of a matrix that the threads share. */
typedef struct Piece {
    const Item *item;
    int64_t first_row, n_rows;
    char *dst;
    atomic_bool is_not_finite, is_too_large;
} Piece;

static size_t row_bytes_of(TensorType type, int64_t n) {
    size_t bytes = 0;
    (void)tensor_type_row_bytes(type, n, &bytes);
    return bytes;
}

static void convert_part(void *ctx, int i_part, int n_parts, int i_thread) {
    Piece *p = ctx;
    const Item *item = p->item;
    const GgufTensor *t = item->from;
    int64_t n = t->dims[0], begin, end;
    float *row = item->job->rows + (int64_t)i_thread * item->job->widest;
    size_t from_bytes = row_bytes_of(t->type, n), to_bytes = row_bytes_of(item->to, n);
    threads_split(p->n_rows, 1, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        int64_t at = p->first_row + i;
        const float *importance = item->job->has_importance ? item->job->importance + at / t->dims[1] * n : NULL;
        char *dst = p->dst + (size_t)i * to_bytes;
        blocks_dequantize(t->type, (const char *)t->data + (size_t)at * from_bytes, n, row);
        if (!finite_floats(row, n)) {
            atomic_store_explicit(&p->is_not_finite, true, memory_order_relaxed);
            return;
        }
        for (int64_t k = 0; item->scales && k < n; k++) row[k] /= item->scales[at / t->dims[1]];
        quant_row(item->to, row, importance, n, dst);
        if (!finite_weights(item->to, dst, n)) atomic_store_explicit(&p->is_too_large, true, memory_order_relaxed);
    }
}

static void refuse(const Item *item, const char *why) {
    Printable safe;
    char sentence[500];
    snprintf(sentence, sizeof sentence, "tensor %s %s", printable(&safe, item->from->name, strlen(item->from->name)),
             why);
    gguf_writer_refuse(item->job->w, FR_ERR_FORMAT, sentence);
}

/* Reads the importances of the matrix; those of experts follow one another. */
static void take_importance(Job *job, const Item *item) {
    const GgufTensor *t = item->from;
    fr_error err;
    if (job->importance_is_of == item) return;
    job->importance_is_of = item;
    job->has_importance = false;
    if (!job->o->importance || is_float(item->to)) return;
    int64_t n_unread = 0;
    int found = importance_of(job->o->importance, t->name, t->dims[0], t->dims[2], job->importance, &n_unread, &err);
    if (found < 0) gguf_writer_refuse(job->w, err.code, err.message);
    job->has_importance = found > 0;
    job->result->n_importances += found > 0;
    job->result->n_unread += n_unread;
}

static void fill(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    const Item *item = ctx;
    Job *job = item->job;
    const GgufTensor *t = item->from;
    Piece piece = {.item = item, .first_row = first_row, .n_rows = n_rows, .dst = dst};
    size_t bytes = row_bytes_of(t->type, t->dims[0]) * (size_t)n_rows;
    enum { ROWS_PER_PART = 8 };
    int64_t n_parts = (n_rows + ROWS_PER_PART - 1) / ROWS_PER_PART;
    take_importance(job, item);
    threads_run(job->pool, n_parts < THREADS_MAX_PARTS ? (int)n_parts : THREADS_MAX_PARTS, convert_part, &piece);
    if (piece.is_not_finite) refuse(item, "holds NaN or infinity; the file is damaged, or its training went wrong");
    else if (piece.is_too_large) refuse(item, "holds numbers that are too large for this type; choose BF16 or F32");
    gguf_release(job->in, (const char *)t->data + row_bytes_of(t->type, t->dims[0]) * (size_t)first_row, bytes);
    job->done += bytes;
    if (job->o->progress) job->o->progress(job->o->user, (double)job->done / (double)job->total);
}

/* ---- the plan ---------------------------------------------------------------------------------------- */

static int refuse_quantised(const Job *job, const GgufTensor *t, fr_error *err) {
    Printable safe;
    return error_set(err, FR_ERR_ARGUMENT,
                     "%s: tensor %s is of type %s already, and quantising it again makes it worse: start from the F16 "
                     "or BF16 file, or pass --requantize",
                     gguf_path(job->in), printable(&safe, t->name, strlen(t->name)), tensor_type_info(t->type)->name);
}

static int refuse_unimportant(const Job *job, const GgufTensor *t, TensorType type, fr_error *err) {
    const char *type_name = tensor_type_info(type)->name;
    Printable safe;
    if (!job->o->importance)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s needs an importance matrix: make one with 'forerun imatrix', and pass --imatrix=FILE",
                         type_name);
    return error_set(
        err, FR_ERR_MISMATCH,
        "%s: has no entry for %s, which cannot be of type %s without; make it for this model with 'forerun "
        "imatrix'",
        job->o->importance_path, printable(&safe, t->name, strlen(t->name)), type_name);
}

/* If the matrix has a scale in another tensor, its blocks are not the whole of its numbers. */
static int refuse_scaled(const Job *job, const GgufTensor *t, fr_error *err) {
    Printable safe;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: tensor %s has a scale of its own, which is not applied here: start from the F16 or BF16 file",
                     gguf_path(job->in), printable(&safe, t->name, strlen(t->name)));
}

/* Adds the tensor for the scales of a matrix, which are known only when all matrices have been measured. */
static int add_scales(Item *item, fr_error *err) {
    const GgufTensor *t = item->from;
    char name[NVFP4_SCALE_NAME];
    nvfp4_scale_name(t->name, name);
    if (!(item->scales = mem_calloc((size_t)t->dims[2], sizeof *item->scales)))
        return error_memory(err, "scales", (size_t)t->dims[2] * sizeof *item->scales);
    gguf_add_tensor(item->job->w, name, TYPE_F32, 1, (int64_t[]){t->dims[2]}, item->scales);
    item->job->result->n_tensors[TYPE_F32]++;
    item->job->result->bytes_out += (size_t)t->dims[2] * sizeof *item->scales;
    return FR_OK;
}

static void note_fallback(const Job *job, const GgufTensor *t, TensorType wanted, TensorType type) {
    char sentence[500];
    Printable safe;
    if (wanted == type || !job->o->note) return;
    snprintf(sentence, sizeof sentence, "%s has rows of %lld numbers, which are not whole blocks of %s: %s instead",
             printable(&safe, t->name, strlen(t->name)), (long long)t->dims[0], tensor_type_info(wanted)->name,
             tensor_type_info(type)->name);
    job->o->note(job->o->user, sentence);
}

/* Decides the type of a tensor and adds it to the new file. */
static int plan_tensor(Job *job, const QuantShape *shape, const GgufTensor *t, fr_error *err) {
    TensorType type = t->type;
    int64_t n_rows = t->dims[1] * t->dims[2] * t->dims[3];
    if (quant_is_matrix(t)) {
        TensorType wanted = quant_mix_type(job->o->mix, shape, t);
        type = quant_fallback(wanted, t->dims[0]);
        if (type != t->type && !is_float(t->type) && !job->o->requantize) return refuse_quantised(job, t, err);
        if (quant_needs_importance(type) && type != t->type &&
            !(job->o->importance && importance_has(job->o->importance, t->name)))
            return refuse_unimportant(job, t, type, err);
        note_fallback(job, t, wanted, type);
        job->result->n_matrices++;
    }
    job->result->n_weights += t->dims[0] * n_rows;
    job->result->n_tensors[type]++;
    job->result->bytes_in += t->bytes;
    job->result->bytes_out += row_bytes_of(type, t->dims[0]) * (size_t)n_rows;
    if (type == t->type) {
        gguf_add_tensor(job->w, t->name, type, t->n_dims, t->dims, t->data);
        return FR_OK;
    }
    if (nvfp4_scale_is_beside(job->in, t)) return refuse_scaled(job, t, err);
    Item *item = &job->items[job->n_items++];
    *item = (Item){.job = job, .from = t, .to = type};
    job->total += t->bytes;
    if (t->dims[0] > job->widest) job->widest = t->dims[0];
    gguf_add_tensor_filled(job->w, t->name, type, t->n_dims, t->dims, fill, item);
    return type == TYPE_NVFP4 ? add_scales(item, err) : FR_OK;
}

static bool begins_with(const char *key, const char *prefix) { return strncmp(key, prefix, strlen(prefix)) == 0; }

/* Copies all keys but those that are no longer true. */
static void copy_keys(const Job *job) {
    const QuantizeOptions *o = job->o;
    for (int64_t i = 0; i < gguf_n_kv(job->in); i++) {
        const char *key = gguf_key(job->in, i);
        if (!begins_with(key, "split.") && !begins_with(key, "quantize.imatrix.") &&
            strcmp(key, "general.file_type") != 0 && strcmp(key, "general.quantization_version") != 0)
            gguf_copy_kv(job->w, job->in, i);
    }
    gguf_set_u32(job->w, "general.file_type", o->mix->file_type);
    if (!is_float(o->mix->type)) gguf_set_u32(job->w, "general.quantization_version", 2);
    if (!o->importance) return;
    gguf_set_string(job->w, "quantize.imatrix.file", o->importance_path, strlen(o->importance_path));
    gguf_set_u32(job->w, "quantize.imatrix.entries_count", (uint32_t)o->importance->n_entries);
}

static int take_memory(Job *job, fr_error *err) {
    size_t largest = 1, widest = (size_t)job->widest, bytes;
    for (int64_t i = 0; i < job->n_items; i++) {
        size_t n = (size_t)job->items[i].from->dims[0] * (size_t)job->items[i].from->dims[2];
        largest = n > largest ? n : largest;
    }
    if (!size_mul(widest + 1, (size_t)job->o->n_threads * sizeof(float), &bytes) || !(job->rows = mem_alloc(bytes)) ||
        !(job->importance = mem_alloc(largest * sizeof(float))))
        return error_memory(err, "rows of a tensor", widest * sizeof(float));
    return threads_open(&job->pool, job->o->n_threads, err);
}

static void measure_scales(const Job *job) {
    for (int64_t i = 0; i < job->n_items; i++)
        if (job->items[i].scales)
            nvfp4_scale_measure(job->pool, job->items[i].from, job->rows, job->widest, job->items[i].scales);
}

int quantize_file(const Gguf *in, const char *path, const QuantizeOptions *options, QuantizeResult *result,
                  fr_error *err) {
    int64_t n = gguf_n_tensors(in);
    QuantShape shape = quant_shape(in, options->importance != NULL);
    Job job = {.in = in, .o = options, .result = result, .w = gguf_writer_new()};
    *result = (QuantizeResult){.n_weights = 0};
    job.items = mem_calloc((size_t)n + 1, sizeof *job.items);
    int status = job.w && job.items ? FR_OK : (int)error_memory(err, "a list of tensors", (size_t)n);
    if (!status) copy_keys(&job);
    for (int64_t i = 0; i < n && !status; i++) status = plan_tensor(&job, &shape, gguf_tensor(in, i), err);
    if (!status) status = take_memory(&job, err);
    if (!status) measure_scales(&job);
    if (!status) status = gguf_check(in, err);
    if (!status) status = gguf_writer_finish(job.w, path, err);
    threads_close(job.pool);
    mem_free(job.rows);
    mem_free(job.importance);
    for (int64_t i = 0; i < job.n_items; i++) mem_free(job.items[i].scales);
    mem_free(job.items);
    gguf_writer_free(job.w);
    return status;
}
