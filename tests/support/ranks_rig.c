/* ranks_rig.c - see ranks_rig.h. */
#include "ranks_rig.h"

#include "testing.h"

#include "compute/cpu/cpu.h"

#include <stdio.h>
#include <unistd.h>

GroupLoading group_loading;
_Thread_local int group_rank_of_thread;

/* ---- a group of threads ---------------------------------------------------------------------------------- */

static void load(Rank *r) {
    group_rank_of_thread = comm_rank(r->ranks->comm);
    Model *m = NULL;
    const WeightsOptions options = {.n_threads = 1,
                                    .kernels = group_loading.table_name,
                                    .packed_file = group_loading.packed_files[comm_rank(r->ranks->comm)],
                                    .ranks = r->ranks};
    const Backend *backend = comm_rank(r->ranks->comm) == 0 ? ranks_backend() : &backend_cpu;
    r->status = model_open(&m, r->gguf, &r->err);
    if (!r->status) r->status = backend->weights_open(&r->weights, m, &options, &r->err);
    r->status = ranks_compare(r->ranks, r->weights, r->status, r->fingerprint, &r->err);
}

static void *work(void *rank) {
    Rank *r = rank;
    load(r);
    if (!r->status) ranks_work(r->ranks);
    ranks_close(r->ranks);
    rig_weights_close(r->weights);
    return NULL;
}

int group_open(Group *g, const Gguf *gguf, int n, int other) {
    fr_error err;
    *g = (Group){.n = n};
    if (comm_memory_open(&g->memory, n, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < n; i++) {
        g->ranks[i] = (Rank){.gguf = gguf, .fingerprint = i == other ? 2 : 1};
        if (ranks_join(&g->ranks[i].ranks, g->memory, i, &err)) fail_msg("%s", err.message);
        if (i > 0) assert_int_equal(pthread_create(&g->ranks[i].thread, NULL, work, &g->ranks[i]), 0);
    }
    load(&g->ranks[0]);
    return g->ranks[0].status;
}

void group_close(Group *g) {
    ranks_close(g->ranks[0].ranks);
    rig_weights_close(g->ranks[0].weights);
    for (int i = 1; i < g->n; i++) pthread_join(g->ranks[i].thread, NULL);
    comm_memory_close(g->memory);
}

void group_send_halves(Group *g) {
    for (int i = 0; i < g->n; i++) comm_set_price(g->ranks[i].ranks->comm, (CommPrice){1e-3, 1e-3});
}

/* ---- draft models ------------------------------------------------------------------------------------------ */

Draft draft_open_from(Group *g, const char *path, const Gguf *gguf, DraftPlace place) {
    const Weights *target = g->ranks[0].weights;
    Draft d = {.device = rig_device(target, 1)};
    Model *m;
    fr_error err;
    snprintf(d.path, sizeof d.path, "%s", path);
    g->ranks[0].ranks->draft_place = place;
    if (model_open(&m, gguf, &err) || weights_open_draft(&d.weights, d.device, target, m, 2, &err))
        fail_msg("%s", err.message);
    return d;
}

Draft draft_open(Group *g, const RandomModel *m, DraftPlace place) {
    char path[] = "build/test_draft.XXXXXX";
    rig_write_random(m, path);
    Gguf *gguf = rig_gguf(path);
    Draft d = draft_open_from(g, path, gguf, place);
    d.gguf = gguf;
    return d;
}

void draft_close(Draft *d) {
    rig_weights_close(d->weights);
    device_close(d->device);
    gguf_close(d->gguf);
    unlink(d->path);
}
