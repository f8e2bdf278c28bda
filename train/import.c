/* import.c - converts a published checkpoint into a drafter file.
 *
 * A method's plan lists the tensors of the drafter file, and for each the tensor of the checkpoint that it comes from
 * and how its rows and columns are reordered. All numbers are checked before anything is written; then rows are
 * converted one by one while the file is written, so memory holds one row of each tensor. Test: test_import.c. */
#include "base/files.h"
#include "base/mem.h"
#include "gguf/tensor_type.h"
#include "base/error.h"
#include "train/import.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const ImportMethod methods[] = {
    {"eagle", "EAGLE-1 and EAGLE-2 (SafeAILab; yuhuili/EAGLE-*)", import_plan_eagle},
    {"medusa", "Medusa heads (FasterDecoding/medusa-*, vLLM)", import_plan_medusa},
    {"hydra", "Hydra heads and Hydra++ (zankner/Hydra, ankner/hydra-vicuna-*)", import_plan_hydra},
    {"eagle3", "EAGLE-3, 3.1 and P-EAGLE (SafeAILab, SpecForge, speculators, DeepSpec)", import_plan_eagle3},
    {"dflash", "DFlash and DSpark (z-lab, speculators, DeepSpec)", import_plan_dflash},
    {"redrafter", "Recurrent Drafter (apple/ml-recurrent-drafter)", import_plan_redrafter},
    {NULL, NULL, NULL},
};

const ImportMethod *import_methods(void) { return methods; }

const ImportMethod *import_find(const char *name) {
    for (const ImportMethod *m = methods; m->name; m++)
        if (strcmp(m->name, name) == 0) return m;
    return NULL;
}

/* The tensors of a checkpoint's files are found by name, and those that were taken are marked. */

/* ---- opening --------------------------------------------------------------------------------------- */

enum { MAX_CONFIG = 1 << 20 }; /* bytes of a JSON file; published ones have some thousand */

typedef struct ConfigReader {
    FILE *file;
    size_t n_left;
} ConfigReader;

/* For json_load_callback: a file that is too long ends early, and then is no JSON. */
static size_t read_config(void *buffer, size_t n, void *user) {
    ConfigReader *r = user;
    n = fread(buffer, 1, n < r->n_left ? n : r->n_left, r->file);
    r->n_left -= n;
    return n;
}

/* Reads a JSON file; NULL: there is none, or it is damaged. */
static json_t *read_json(const char *path) {
    ConfigReader reader = {.file = input_text_open(path, NULL), .n_left = MAX_CONFIG};
    json_t *config = reader.file ? json_load_callback(read_config, &reader, 0, NULL) : NULL;
    if (reader.file) fclose(reader.file);
    return config;
}

static int add_file(Published *c, const char *path, fr_error *err) {
    if (c->n_files == PUBLISHED_MAX_FILES)
        return error_set(err, FR_ERR_ARGUMENT, "%s: the checkpoint has more than %d files, which is not supported",
                         path, PUBLISHED_MAX_FILES);
    int status = safetensors_open(&c->files[c->n_files], path, err);
    if (status) return status;
    size_t n = (size_t)safetensors_count(c->files[c->n_files]);
    c->taken[c->n_files] = mem_calloc(n + 1, sizeof **c->taken);
    if (!c->taken[c->n_files++]) return error_memory(err, "a checkpoint", n);
    return FR_OK;
}

static int is_safetensors(const struct dirent *d) {
    size_t n = strlen(d->d_name), n_end = strlen(".safetensors");
    return n > n_end && strcmp(d->d_name + n - n_end, ".safetensors") == 0;
}

static bool has_file(const Published *c, const char *folder, const char *name) {
    char path[4096 + 300];
    snprintf(path, sizeof path, "%.4095s/%.255s", folder, name);
    for (int i = 0; i < c->n_files; i++)
        if (strcmp(safetensors_path(c->files[i]), path) == 0) return true;
    return false;
}

/* Refuses a folder that lacks a file that its list of tensors names. */
static int check_index(const Published *c, const char *folder, fr_error *err) {
    char path[4096 + 40];
    const char *tensor;
    json_t *file;
    int status = FR_OK;
    Printable p;
    snprintf(path, sizeof path, "%.4095s/model.safetensors.index.json", folder);
    json_t *index = read_json(path);
    json_object_foreach(json_object_get(index, "weight_map"), tensor, file) {
        const char *name = json_string_value(file);
        if (!name || has_file(c, folder, name)) continue;
        status = error_set(err, FR_ERR_FORMAT, "%s: names the file %s, which is not in the folder", path,
                           printable(&p, name, strlen(name)));
        break;
    }
    json_decref(index);
    return status;
}

static int add_folder(Published *c, const char *path, fr_error *err) {
    struct dirent **names = NULL;
    int n = scandir(path, &names, is_safetensors, alphasort), status = FR_OK;
    if (n < 1)
        status = error_set(err, FR_ERR_IO,
                           "%s: there is no *.safetensors in this folder; if there is a *.bin or *.pt, pass that file "
                           "to see how to convert it",
                           path);
    for (int i = 0; i < n; i++) {
        char file[4096 + 300];
        snprintf(file, sizeof file, "%.4095s/%s", path, names[i]->d_name);
        if (!status) status = add_file(c, file, err);
        free(names[i]);
    }
    free(names);
    return status ? status : check_index(c, path, err);
}

int published_open(Published *c, const char *const *paths, int n, fr_error *err) {
    *c = (Published){.n_files = 0};
    int status = FR_OK;
    for (int i = 0; i < n && !status; i++) {
        struct stat st;
        bool is_folder = stat(paths[i], &st) == 0 && S_ISDIR(st.st_mode);
        if (i == 0) {
            const char *slash = strrchr(paths[0], '/');
            if (is_folder) snprintf(c->folder, sizeof c->folder, "%s", paths[0]);
            else
                snprintf(c->folder, sizeof c->folder, "%.*s", slash ? (int)(slash - paths[0]) + 1 : 1,
                         slash ? paths[0] : ".");
        }
        status = (is_folder ? add_folder : add_file)(c, paths[i], err);
    }
    return status;
}

void published_close(Published *c) {
    for (int i = 0; i < c->n_files; i++) {
        safetensors_close(c->files[i]);
        mem_free(c->taken[i]);
    }
    c->n_files = 0;
}

/* FR_ERR_IO: one of the files has been written to or cut short since it was opened. */
static int published_check(const Published *c, fr_error *err) {
    int status = FR_OK;
    for (int i = 0; i < c->n_files && !status; i++) status = safetensors_check(c->files[i], err);
    return status;
}

const char *published_path(const Published *c) { return safetensors_path(c->files[0]); }

/* ---- tensors -------------------------------------------------------------------------------------- */

#define MODEL "model." /* before all names of some checkpoints */

static const SafeTensor *find(const Published *c, const char *name, bool **taken) {
    char longer[160];
    snprintf(longer, sizeof longer, MODEL "%s", name);
    for (int i = 0; i < c->n_files; i++) {
        const SafeTensor *t = safetensors_find(c->files[i], name);
        if (!t) t = safetensors_find(c->files[i], longer);
        if (!t) continue;
        *taken = &c->taken[i][t - safetensors_tensor(c->files[i], 0)];
        return t;
    }
    return NULL;
}

const SafeTensor *published_find(const Published *c, const char *name) {
    bool *taken;
    return find(c, name, &taken);
}

static void write_shape(char text[96], const int64_t *dims, int n_dims) {
    int n = snprintf(text, 96, "%lld x %lld", (long long)dims[0], (long long)(n_dims > 1 ? dims[1] : 1));
    if (n_dims > 2) snprintf(text + n, 96 - (size_t)n, " x %lld", (long long)dims[2]);
}

/* Takes the tensor, which must have exactly this shape, the innermost dimension last. */
static int published_take(Published *c, const char *name, const int64_t *dims, int n_dims, const SafeTensor **out,
                          fr_error *err) {
    bool *taken;
    const SafeTensor *t = *out = find(c, name, &taken);
    if (!t) return error_set(err, FR_ERR_FORMAT, "%s: tensor %s is missing", published_path(c), name);
    if (!t->has_type)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: tensor %s has the type %s; only F32, F16 and BF16 can be imported", published_path(c),
                         name, t->dtype);
    char is[96], needed[96];
    write_shape(is, t->dims, t->n_dims);
    write_shape(needed, dims, n_dims);
    if (t->n_dims != n_dims || memcmp(t->dims, dims, (size_t)n_dims * sizeof *dims) != 0)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: tensor %s is %s, but the target needs %s; the drafter was trained for another target",
                         published_path(c), name, is, needed);
    *taken = true;
    return FR_OK;
}

void published_pass_over(Published *c, const char *prefix) {
    for (int i = 0; i < c->n_files; i++)
        for (int64_t k = 0; k < safetensors_count(c->files[i]); k++) {
            const char *name = safetensors_tensor(c->files[i], k)->name;
            bool is_longer = strncmp(name, MODEL, strlen(MODEL)) == 0;
            if (strncmp(name, prefix, strlen(prefix)) == 0 ||
                (is_longer && strncmp(name + strlen(MODEL), prefix, strlen(prefix)) == 0))
                c->taken[i][k] = true;
        }
}

/* Refuses a checkpoint with a tensor that was not taken. */
static int published_finish(const Published *c, const char *method, fr_error *err) {
    for (int i = 0; i < c->n_files; i++)
        for (int64_t k = 0; k < safetensors_count(c->files[i]); k++) {
            if (c->taken[i][k]) continue;
            const char *name = safetensors_tensor(c->files[i], k)->name;
            Printable p;
            return error_set(
                err, FR_ERR_UNSUPPORTED,
                "%s: holds the tensor %s, which the method %s does not have; the drafter would not compute "
                "the same without it",
                safetensors_path(c->files[i]), printable(&p, name, strlen(name)), method);
        }
    return FR_OK;
}

/* Removes the keys whose value is null, which mean the same as keys that are missing. */
static void drop_nulls(json_t *object) {
    const char *key;
    json_t *value;
    void *next;
    json_object_foreach_safe(object, next, key, value) {
        if (json_is_null(value)) json_object_del(object, key);
        else drop_nulls(value);
    }
}

json_t *published_read_config(const Published *c) {
    char path[sizeof c->folder + 16];
    snprintf(path, sizeof path, "%s/config.json", c->folder);
    json_t *config = read_json(path);
    drop_nulls(config);
    return config;
}

bool published_config(const Published *c, const char *key, int64_t *out) {
    json_t *config = published_read_config(c);
    const json_t *value = json_object_get(config, key);
    bool is_there = json_is_integer(value);
    if (is_there) *out = (int64_t)json_integer_value(value);
    json_decref(config);
    return is_there;
}

/* ---- the plan -------------------------------------------------------------------------------------- */

static int add(Import *x, const char *name, int64_t n_in, int64_t n_out, ImportTensor **out, fr_error *err) {
    size_t row_bytes;
    if (x->n_tensors == IMPORT_MAX_TENSORS)
        return error_set(err, FR_ERR_UNSUPPORTED, "%s: needs more than %d tensors", published_path(x->from),
                         IMPORT_MAX_TENSORS);
    ImportTensor *t = *out = &x->tensors[x->n_tensors++];
    *t = (ImportTensor){.type = n_out ? x->type : TYPE_F32, .n_in = n_in, .n_out = n_out ? n_out : 1, .import = x};
    snprintf(t->name, sizeof t->name, "%s", name);
    if (tensor_type_row_bytes(t->type, n_in, &row_bytes)) return FR_OK;
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: rows of %lld numbers cannot be divided into blocks of %s; choose --type F16", name,
                     (long long)n_in, tensor_type_info(t->type)->name);
}

int import_add(Import *x, const char *name, const char *from, int64_t n_in, int64_t n_out, ImportTensor **out,
               fr_error *err) {
    const SafeTensor *source;
    ImportTensor *t = NULL;
    const int64_t dims[] = {n_out ? n_out : n_in, n_in};
    int status = published_take(x->from, from, dims, n_out ? 2 : 1, &source, err);
    if (!status) status = add(x, name, n_in, n_out, &t, err);
    if (status) return status;
    t->from = source;
    if (out) *out = t;
    return FR_OK;
}

int import_add_cube(Import *x, const char *name, const char *from, const int64_t dims[3], fr_error *err) {
    const SafeTensor *source;
    ImportTensor *t = NULL;
    int status = published_take(x->from, from, dims, 3, &source, err);
    if (!status) status = add(x, name, dims[2], dims[0] * dims[1], &t, err);
    if (status) return status;
    t->type = TYPE_F32;
    t->from = source;
    t->n_outer = dims[0];
    return FR_OK;
}

int import_add_zeros(Import *x, const char *name, int64_t n, fr_error *err) {
    ImportTensor *t = NULL;
    return add(x, name, n, 0, &t, err);
}

/* Keeps memory of a plan until the file is written. */
static void *keep(Import *x, int64_t n, size_t each, const char *name, fr_error *err) {
    fr_assert(x->n_kept < (int)(sizeof x->kept / sizeof *x->kept));
    void *p = x->kept[x->n_kept++] = mem_calloc((size_t)n, each);
    if (!p) (void)error_memory(err, name, (size_t)n * each);
    return p;
}

int import_add_floats(Import *x, const char *name, int64_t n, float **out, fr_error *err) {
    if (!(*out = keep(x, n, sizeof **out, name, err))) return FR_ERR_MEMORY;
    gguf_add_tensor(x->w, name, TYPE_F32, 1, &n, *out);
    return FR_OK;
}

int import_add_map(Import *x, int64_t n, int64_t **out, fr_error *err) {
    if (!(*out = keep(x, n, sizeof **out, GGUF_MAP, err))) return FR_ERR_MEMORY;
    gguf_add_map(x->w, *out, n);
    return FR_OK;
}

void import_set_int(Import *x, const char *name, int64_t v) {
    char key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    gguf_set_u32(x->w, key, (uint32_t)v);
}

void import_set_float(Import *x, const char *name, double v) {
    char key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    gguf_set_f32(x->w, key, (float)v);
}

void import_set_text(Import *x, const char *name, const char *text) {
    char key[128];
    snprintf(key, sizeof key, DRAFTER_KEY("%s"), name);
    gguf_set_string(x->w, key, text, strlen(text));
}

/* ---- rows ------------------------------------------------------------------------------------------ */

static void read_row(const SafeTensor *s, int64_t row, int64_t n, float *out) {
    size_t n_rows = s->n_dims == 3 ? (size_t)(s->dims[0] * s->dims[1]) : s->n_dims == 2 ? (size_t)s->dims[0] : 1;
    size_t row_bytes = s->bytes / n_rows;
    blocks_dequantize(s->type, (const char *)s->data + (size_t)row * row_bytes, n, out);
}

int import_read_vector(Import *x, const char *name, int64_t n, float *out, fr_error *err) {
    const SafeTensor *s = published_find(x->from, name);
    const int64_t dims[] = {1, 1, n};
    int n_dims = s && s->n_dims > 1 && s->n_dims <= 3 ? s->n_dims : 1;
    int status = published_take(x->from, name, dims + 3 - n_dims, n_dims, &s, err);
    if (status) return status;
    read_row(s, 0, n, out);
    if (finite_floats(out, n)) return FR_OK;
    return error_set(err, FR_ERR_FORMAT, "%s: tensor %s holds NaN or infinity", published_path(x->from), name);
}

/* Returns the component of the checkpoint's heads that becomes component o, where halves become pairs or pairs
 * halves. */
static int64_t source_of_heads(const ImportTensor *t, int64_t o) {
    const Import *x = t->import;
    int64_t dim = x->head_dim ? x->head_dim : x->target->hparams.head_dim, n_rot = x->n_rot ? x->n_rot : dim;
    int64_t head = o / dim, i = o % dim, half = n_rot / 2;
    if (i >= n_rot) return o;
    return head * dim + (t->rows == IMPORT_ROWS_PAIRED ? i % 2 * half + i / 2 : i % half * 2 + i / half);
}

static bool reorders_heads(const ImportTensor *t) {
    return t->rows == IMPORT_ROWS_PAIRED || t->rows == IMPORT_ROWS_HALVED;
}

/* Returns the row of the checkpoint's tensor that becomes row o. */
static int64_t source_row(const ImportTensor *t, int64_t o) {
    if (t->rows == IMPORT_ROWS_SWAPPED) return (o + t->n_out / 2) % t->n_out;
    return reorders_heads(t) ? source_of_heads(t, o) : o;
}

static void swap_halves(float *x, int64_t n) {
    for (int64_t i = 0; i < n / 2; i++) {
        float y = x[i];
        x[i] = x[i + n / 2];
        x[i + n / 2] = y;
    }
}

/* The bias or the norm of heads, whose components are in the place of rows. */
static bool is_vector_of_heads(const ImportTensor *t) { return reorders_heads(t) && t->n_out == 1; }

static void make_row(const ImportTensor *t, int64_t o) {
    if (!t->from) {
        memset(t->row, 0, (size_t)t->n_in * sizeof *t->row);
        return;
    }
    if (is_vector_of_heads(t)) {
        float *from = t->row + t->n_in;
        read_row(t->from, 0, t->n_in, from);
        for (int64_t i = 0; i < t->n_in; i++) t->row[i] = from[source_of_heads(t, i)];
        return;
    }
    read_row(t->from, source_row(t, o), t->n_in, t->row);
    if (t->swaps_columns) swap_halves(t->row, t->n_in);
}

static void fill(void *ctx, int64_t first_row, int64_t n_rows, void *dst) {
    const ImportTensor *t = ctx;
    Import *x = (Import *)(uintptr_t)t->import;
    size_t row_bytes = 0;
    tensor_type_row_bytes(t->type, t->n_in, &row_bytes);
    for (int64_t i = 0; i < n_rows; i++) {
        make_row(t, first_row + i);
        blocks_quantize(t->type, t->row, t->n_in, (char *)dst + (size_t)i * row_bytes);
    }
    x->n_done += n_rows;
    if (x->progress) x->progress(x->progress_user, (double)x->n_done / (double)x->n_rows);
}

/* Before anything is written: are all numbers finite, and within the range of the tensor's type? */
static int check_numbers(const ImportTensor *t, fr_error *err) {
    float limit = t->type == TYPE_F16 || t->type == TYPE_Q8_0 ? 65504.0f : INFINITY;
    for (int64_t o = 0; o < t->n_out; o++) {
        make_row(t, o);
        for (int64_t i = 0; i < t->n_in; i++) {
            if (!isfinite(t->row[i]))
                return error_set(err, FR_ERR_FORMAT, "%s: tensor %s holds NaN or infinity",
                                 published_path(t->import->from), t->from->name);
            if (fabsf(t->row[i]) > limit)
                return error_set(
                    err, FR_ERR_UNSUPPORTED, "%s: tensor %s holds %g, which is too large for %s; choose --type F32",
                    published_path(t->import->from), t->from->name, (double)t->row[i], tensor_type_info(t->type)->name);
        }
    }
    return FR_OK;
}

/* ---- the target ------------------------------------------------------------------------------------ */

/* Measures how far a matrix is from one of the target with a row for each token: the norm of the difference, relative
 * to that of the target's. */
static int measure_distance(const Import *x, const SafeTensor *s, const GgufTensor *of_target, double *distance,
                            fr_error *err) {
    int64_t n = x->target->hparams.n_embd;
    double apart = 0, whole = 0;
    float *row = mem_calloc((size_t)n * 2, sizeof *row);
    if (!row) return error_memory(err, s->name, (size_t)n * sizeof *row);
    for (int32_t v = 0; v < x->target->hparams.n_vocab; v++) {
        read_row(s, v, n, row);
        embedding_row(of_target, v, row + n);
        for (int64_t i = 0; i < n; i++) {
            double d = (double)row[i] - (double)row[n + i];
            apart += d * d;
            whole += (double)row[n + i] * (double)row[n + i];
        }
    }
    mem_free(row);
    *distance = sqrt(apart / whole);
    return FR_OK;
}

/* A head that was trained on from the target's is another one, unless it differs by no more than the target's type of
 * numbers explains. */
int import_take_targets_head(Import *x, const char *name, bool *is_taken, fr_error *err) {
    const GgufTensor *of_target = x->target->output;
    const int64_t dims[] = {x->target->hparams.n_vocab, x->target->hparams.n_embd};
    TensorType type = of_target->type;
    double distance, tolerance = type == TYPE_F32 || type == TYPE_F16 || type == TYPE_BF16 ? 0.005 : 0.12;
    const SafeTensor *s = published_find(x->from, name);
    *is_taken = false;
    if (!s || s->n_dims != 2 || s->dims[0] != dims[0] || s->dims[1] != dims[1]) return FR_OK;
    int status = measure_distance(x, s, of_target, &distance, err);
    *is_taken = !status && distance <= tolerance;
    return *is_taken ? published_take(x->from, name, dims, 2, &s, err) : status;
}

int import_check_embedding(Import *x, const char *name, fr_error *err) {
    const double tolerance = 0.25; /* unrelated embeddings differ by 1.4, the target's own in 4 bits by less than 0.1 */
    const SafeTensor *s;
    double distance = 0;
    const int64_t dims[] = {x->target->hparams.n_vocab, x->target->hparams.n_embd};
    if (!published_find(x->from, name)) return FR_OK;
    int status = published_take(x->from, name, dims, 2, &s, err);
    if (!status) status = measure_distance(x, s, x->target->token_embd, &distance, err);
    if (status || distance <= tolerance) return status;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: tensor %s is not this target's embedding, from which it differs by %.0f %%: the drafter was "
                     "trained for another target",
                     published_path(x->from), name, 100 * distance);
}

/* ---- writing -------------------------------------------------------------------------------------- */

static int take_rows(Import *x, fr_error *err) {
    ArenaItem rows[IMPORT_MAX_TENSORS];
    for (int i = 0; i < x->n_tensors; i++) {
        ImportTensor *t = &x->tensors[i];
        rows[i] = (ArenaItem)ARENA_ITEM(&t->row, t->n_in * (is_vector_of_heads(t) ? 2 : 1));
        x->n_rows += x->tensors[i].n_out;
    }
    return arena_take(&x->arena, rows, (size_t)x->n_tensors, "a row of each tensor", err);
}

static int write_file(Import *x, const char *path, fr_error *err) {
    int status = take_rows(x, err);
    for (int i = 0; i < x->n_tensors && !status; i++) status = check_numbers(&x->tensors[i], err);
    if (!status) status = published_check(x->from, err);
    if (!status) status = gguf_check(x->target->gguf, err);
    for (int i = 0; i < x->n_tensors && !status; i++) {
        ImportTensor *t = &x->tensors[i];
        int64_t n_outer = t->n_outer ? t->n_outer : 1;
        int n_dims = t->n_outer ? 3 : t->n_out == 1 ? 1 : 2;
        gguf_add_tensor_filled(x->w, t->name, t->type, n_dims, (int64_t[]){t->n_in, t->n_out / n_outer, n_outer}, fill,
                               t);
    }
    return status ? status : gguf_writer_finish(x->w, path, err);
}

int import_drafter(const ImportMethod *method, const Model *target, Published *from, const ImportOptions *o,
                   const char *path, fr_error *err) {
    char command[4096];
    snprintf(command, sizeof command, "others: imported from %s", published_path(from));
    Import *x = mem_calloc(1, sizeof *x);
    if (!x) return error_memory(err, "an import", sizeof *x);
    *x = (Import){.target = target,
                  .from = from,
                  .type = o->type,
                  .reading = o->reading,
                  .progress = o->progress,
                  .progress_user = o->progress_user,
                  .w = drafter_file_writer(method->name, target, &(DrafterTraining){.command = command})};
    int status = x->w ? method->plan(x, err) : error_memory(err, "a writer of GGUF files", 0);
    if (!status) status = published_finish(from, method->name, err);
    if (!status) status = write_file(x, path, err);
    if (!status) status = published_check(from, err);
    arena_free(&x->arena);
    gguf_writer_free(x->w);
    for (int i = 0; i < x->n_kept; i++) mem_free(x->kept[i]);
    mem_free(x);
    return status;
}
