#include "backend/cpu/multiplier.h"

#include "base/mem.h"
#include "base/threads.h"

struct Multiplier {
    const Kernels *kernels;
    ThreadPool *threads;
    int64_t max_in;
    int32_t max_rows;
    char *acts; /* [max_rows] rows in the form that the matrix wants */
};

/* Bytes of an activation row in the widest form. */
static size_t widest_row(int64_t n_in) {
    size_t widest = 0;
    for (int form = 0; form < ACT_FORM_COUNT; form++) {
        size_t bytes = act_row_bytes((ActForm)form, n_in);
        if (bytes > widest) widest = bytes;
    }
    return widest;
}

int multiplier_open(Multiplier **out, const Kernels *kernels, int n_threads, int64_t max_in, int32_t max_rows,
                    fr_error *err) {
    *out = NULL;
    fr_assert(max_in >= 1 && max_rows >= 1);
    Multiplier *m = mem_calloc(1, sizeof *m);
    if (!m) return error_memory(err, "a multiplier", sizeof *m);
    m->kernels = kernels;
    m->max_in = max_in;
    m->max_rows = max_rows;
    m->acts = mem_calloc((size_t)max_rows, widest_row(max_in));
    int status = m->acts ? threads_open(&m->threads, n_threads, err) : error_memory(err, "activations", widest_row(max_in));
    if (status) {
        multiplier_close(m);
        return status;
    }
    *out = m;
    return FR_OK;
}

void multiplier_close(Multiplier *m) {
    if (!m) return;
    threads_close(m->threads);
    mem_free(m->acts);
    mem_free(m);
}

typedef struct Job {
    const Multiplier *m;
    const PackedMatrix *w;
    int64_t n_rows;
    float *y;
} Job;

static void multiply_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Job *j = ctx;
    int64_t begin, end;
    threads_split(packed_n_tiles(j->w), 1, i_part, n_parts, &begin, &end);
    if (begin < end) j->m->kernels->matmul(j->w, j->m->acts, j->n_rows, j->y, j->w->n_out, begin, end);
}

void multiplier_run(Multiplier *m, const PackedMatrix *w, const float *x, int32_t n_rows, float *y) {
    enum { PARTS_PER_THREAD = 2 };
    fr_assert(w->n_in <= m->max_in && n_rows <= m->max_rows);
    if (n_rows < 1) return;
    ActForm form = w->act;
    size_t row_bytes = act_row_bytes(form, w->n_in);
    for (int32_t i = 0; i < n_rows; i++)
        m->kernels->act_convert(form, x + (size_t)i * (size_t)w->n_in, w->n_in, m->acts + (size_t)i * row_bytes);
    Job job = {.m = m, .w = w, .n_rows = n_rows, .y = y};
    int64_t n_tiles = packed_n_tiles(w), n_parts = (int64_t)threads_count(m->threads) * PARTS_PER_THREAD;
    threads_run(m->threads, (int)(n_tiles < n_parts ? n_tiles : n_parts), multiply_part, &job);
}
