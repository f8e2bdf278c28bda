/* cost_cache.c - a measured cost curve as a small text file, checked by a hash in its last line. */
#include "compute/cost_cache.h"

#include "base/hash.h"
#include "base/files.h"
#include "base/system.h"

#include <inttypes.h>
#include <string.h>

enum { PATH_BYTES = 4096, FILE_BYTES = 2048 };

/* Names, types and dimensions of all tensors. */
static uint64_t shape_hash(const Gguf *g) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        uint32_t type = (uint32_t)t->type;
        hash = hash64(t->name, strlen(t->name), hash);
        hash = hash64(t->dims, sizeof t->dims, hash64(&type, sizeof type, hash));
    }
    return hash;
}

void cost_cache_key(const Executor *e, int n_threads, char out[COST_KEY_BYTES]) {
    const Weights *w = executor_weights(e);
    const ExecutorOptions *o = executor_options(e);
    char cpu[MACHINE_NAME_BYTES];
    machine_cpu_name(cpu);
    snprintf(out, COST_KEY_BYTES,
             "cpu %s; backend %s; %d threads; kernels %s; act %s; kv %s; context %d; model %016" PRIx64, cpu,
             w->backend->name, n_threads, w->options.kernels, act_precision_name(w->options.activations),
             kv_type_name(o->kv_type), o->n_ctx, shape_hash(w->model->gguf));
}

static bool path_of(const char *folder, const char *key, char out[PATH_BYTES]) {
    int n = snprintf(out, PATH_BYTES, "%s/cost-%016" PRIx64, folder, hash64(key, strlen(key), 0));
    return n > 0 && n < PATH_BYTES;
}

/* Writes the text of the file except its last line, which is a hash of everything before it. Returns the number of
 * bytes. */
static size_t write_text(const char *key, const CostCurve *c, char out[FILE_BYTES]) {
    int n = snprintf(out, FILE_BYTES, "forerun cost 1\n%s\n%.9g %.9g\n%d\n", key, c->key_s, c->key_read_s, c->n);
    for (int k = 0; k < c->n; k++)
        n += snprintf(out + n, FILE_BYTES - (size_t)n, "%d %.9g\n", c->rows[k], c->seconds[k]);
    return (size_t)n;
}

/* No forward of any model takes less or more; between these limits no sum, product or quotient of costs overflows. */
static const double MIN_S = 1e-9, MAX_S = 1e5;
enum { MAX_ROWS = 1 << 16 };

static bool is_sound(const CostCurve *c) {
    bool ok = c->rows[0] == 1 && c->seconds[0] >= MIN_S;
    for (int k = 1; k < c->n; k++) ok = ok && c->rows[k] > c->rows[k - 1] && c->seconds[k] >= c->seconds[k - 1];
    return ok && c->rows[c->n - 1] <= MAX_ROWS && c->seconds[c->n - 1] <= MAX_S && c->key_s >= 0 && c->key_s <= MAX_S &&
           c->key_read_s >= 0 && c->key_read_s <= MAX_S;
}

/* Reads the numbers from `at` on, which is where the key ends. */
static bool read_numbers(const char *at, CostCurve *c) {
    int used;
    if (sscanf(at, "%lf %lf %d%n", &c->key_s, &c->key_read_s, &c->n, &used) != 3 || c->n < 1 || c->n > COST_CURVE_MAX)
        return false;
    for (int k = 0; k < c->n; k++) {
        at += used;
        if (sscanf(at, "%d %lf%n", &c->rows[k], &c->seconds[k], &used) != 2) return false;
    }
    return is_sound(c);
}

/* The file is parsed and formatted again: if the two texts differ, hash included, the file is damaged. */
bool cost_cache_load(const char *folder, const char *key, CostCurve *out) {
    char path[PATH_BYTES], got[FILE_BYTES], want[FILE_BYTES];
    FILE *f = path_of(folder, key, path) ? input_text_open(path, NULL) : NULL;
    if (!f) return false;
    size_t n = fread(got, 1, sizeof got - 1, f), begin = strlen("forerun cost 1\n") + strlen(key);
    fclose(f);
    got[n] = '\0';
    CostCurve c = {0};
    if (n <= begin || !read_numbers(got + begin, &c)) return false;
    size_t n_want = write_text(key, &c, want);
    n_want += (size_t)snprintf(want + n_want, FILE_BYTES - n_want, "%016" PRIx64 "\n", hash64(want, n_want, 0));
    if (n != n_want || memcmp(got, want, n) != 0) return false;
    *out = c;
    return true;
}

int cost_cache_store(const char *folder, const char *key, const CostCurve *c, fr_error *err) {
    char path[PATH_BYTES], text[FILE_BYTES];
    if (!path_of(folder, key, path))
        return error_set(err, FR_ERR_ARGUMENT, "the name of the cache folder is too long; name another");
    size_t n = write_text(key, c, text);
    ReplaceFile r;
    int status = replace_file_begin(&r, path, err);
    if (status) return status;
    fprintf(r.file, "%s%016" PRIx64 "\n", text, hash64(text, n, 0));
    return replace_file_end(&r, FR_OK, err);
}
