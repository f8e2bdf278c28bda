/* nvfp4_scale.c - the greatest element of each matrix, which all threads look for. Proof: tests/cli/test_quantize_cli.c. */
#include "gguf/nvfp4_scale.h"

#include "gguf/blocks.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const float most_of_type = 6 * 448;

void nvfp4_scale_name(const char *matrix, char out[NVFP4_SCALE_NAME]) {
    int n = (int)(strlen(matrix) - strlen(".weight"));
    snprintf(out, NVFP4_SCALE_NAME, "%.*s.scale", n, matrix);
}

bool nvfp4_scale_is_beside(const Gguf *g, const GgufTensor *matrix) {
    char name[NVFP4_SCALE_NAME];
    nvfp4_scale_name(matrix->name, name);
    return gguf_find_tensor(g, name) != NULL;
}

/* The matrix of one expert. */
typedef struct Search {
    const GgufTensor *t;
    int64_t expert;
    float *rows;
    int64_t width;
    float most[THREADS_MAX]; /* of each part */
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

void nvfp4_scale_measure(ThreadPool *pool, const GgufTensor *t, float *rows, int64_t width, float *out) {
    int n_parts = threads_count(pool);
    for (int64_t e = 0; e < t->dims[2]; e++) {
        Search s = {.t = t, .expert = e, .rows = rows, .width = width};
        float most = 0;
        threads_run(pool, n_parts, search_part, &s);
        for (int i = 0; i < n_parts; i++) most = s.most[i] > most ? s.most[i] : most;
        out[e] = most > 0 ? most / most_of_type : 1;
    }
}

void nvfp4_scale_divide(float *row, int64_t n, float scale) {
    for (int64_t i = 0; i < n; i++) row[i] /= scale;
}
