/* importance.c - reads importance matrices (quantize.h has the format). */
#include "gguf/quantize.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

/* Every input has at least this fraction of the mean importance, because an input that was 0 in this text may be
 * larger in another. */
static const double FLOOR = 1e-3;

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcmp(name + n - n_end, end) == 0;
}

static bool is_sound(const GgufTensor *t) {
    const float *v = t->data;
    int64_t n = t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    if (t->type != TYPE_F32 || !finite_weights(TYPE_F32, v, n)) return false;
    for (int64_t i = 0; i < n; i++) {
        float x;
        memcpy(&x, v + i, sizeof x);
        if (x < 0) return false;
    }
    return true;
}

static int check(Importance *im, fr_error *err) {
    const char *path = gguf_path(im->gguf);
    for (int64_t i = 0; i < gguf_n_tensors(im->gguf); i++) {
        const GgufTensor *t = gguf_tensor(im->gguf, i);
        Printable p;
        if (!ends_with(t->name, IMPORTANCE_SUMS) && !ends_with(t->name, IMPORTANCE_COUNTS)) continue;
        if (!is_sound(t))
            return error_set(err, FR_ERR_FORMAT, "%s: tensor %s must be of type F32 and hold no negative number or NaN",
                             path, printable(&p, t->name, strlen(t->name)));
        im->n_entries += ends_with(t->name, IMPORTANCE_SUMS);
    }
    if (im->n_entries > 0) return FR_OK;
    return error_set(err, FR_ERR_FORMAT,
                     "%s: holds no importance matrix (no tensor NAME.in_sum2); make one with forerun imatrix", path);
}

int importance_open(Importance *im, const char *path, fr_error *err) {
    *im = (Importance){.n_entries = 0};
    int status = gguf_open(&im->gguf, path, err);
    if (!status) status = check(im, err);
    if (!status) status = gguf_check(im->gguf, err);
    if (status) importance_close(im);
    return status;
}

void importance_close(Importance *im) {
    gguf_close(im->gguf);
    *im = (Importance){.n_entries = 0};
}

/* Reads the mean squares of one matrix, raised where they are far below their mean; all are 1 if nothing was
 * counted. */
static void take_means(const float *sums, double count, int64_t n, float *out) {
    double mean = 0;
    memcpy(out, sums, (size_t)n * sizeof *out);
    for (int64_t i = 0; i < n; i++) mean += (double)out[i] / (double)n;
    if (!(count > 0) || !(mean > 0)) {
        for (int64_t i = 0; i < n; i++) out[i] = 1;
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        double v = (double)out[i] > FLOOR * mean ? (double)out[i] : FLOOR * mean;
        out[i] = (float)(v / count);
    }
}

static const GgufTensor *find(const Importance *im, const char *matrix, const char *end) {
    char name[300];
    snprintf(name, sizeof name, "%s%s", matrix, end);
    return gguf_find_tensor(im->gguf, name);
}

bool importance_has(const Importance *im, const char *matrix) { return find(im, matrix, IMPORTANCE_SUMS) != NULL; }

int importance_of(const Importance *im, const char *matrix, int64_t n_in, int64_t n_matrices, float *out,
                  int64_t *n_unread, fr_error *err) {
    const GgufTensor *sums = find(im, matrix, IMPORTANCE_SUMS), *counts = find(im, matrix, IMPORTANCE_COUNTS);
    if (!sums) return 0;
    if (sums->dims[0] != n_in || sums->dims[1] != n_matrices || !counts || counts->bytes < (size_t)n_matrices * 4)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: has %lld x %lld importances for %s, which is %lld x %lld: it was made for another model",
                         gguf_path(im->gguf), (long long)sums->dims[0], (long long)sums->dims[1], matrix,
                         (long long)n_in, (long long)n_matrices);
    *n_unread = 0;
    for (int64_t i = 0; i < n_matrices; i++) {
        float count;
        memcpy(&count, (const char *)counts->data + i * 4, sizeof count);
        *n_unread += !(count > 0);
        take_means((const float *)sums->data + i * n_in, (double)count, n_in, out + i * n_in);
    }
    return 1;
}
