/* drafter_pool.c - the open drafters of an engine: a fixed number of places, searched by spec. */
#include "engine/drafter_pool.h"

#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

static void close_place(EngineDrafter *d) {
    drafter_close(d->drafter);
    free(d->spec);
    *d = (EngineDrafter){0};
}

void drafter_pool_close(fr_engine *e) {
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++)
        if (e->drafters[i].spec) close_place(&e->drafters[i]);
}

/* Finds a place for one more drafter: a free one, or that of a drafter without users, which is closed. NULL: all
 * drafters are in use. */
static EngineDrafter *find_place(fr_engine *e) {
    EngineDrafter *unused = NULL;
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++) {
        EngineDrafter *d = &e->drafters[i];
        if (!d->spec) return d;
        if (d->n_users == 0 && !unused) unused = d;
    }
    if (unused) close_place(unused);
    return unused;
}

/* Returns the place of the open drafter of a spec; -1: it is not open. */
static int find(const fr_engine *e, const char *spec) {
    for (int i = 0; i < ENGINE_MAX_DRAFTERS; i++)
        if (e->drafters[i].spec && strcmp(e->drafters[i].spec, spec) == 0) return i;
    return -1;
}

/* Returns the environment of a drafter for all requests of the engine and its prefix cache or, if is_own, for a single
 * request. */
static DrafterEnv env_of(fr_engine *e, bool is_own) {
    return (DrafterEnv){.n_vocab = e->model->model->hparams.n_vocab,
                        .max_sequences = is_own ? 1 : e->options.max_requests,
                        .vocab = e->model->gguf,
                        .target = e->model->gguf,
                        .weights = e->model->weights,
                        .device = e->device,
                        .n_ctx = e->options.n_ctx,
                        .page_size = e->options.kv_page_size,
                        .n_cached = is_own ? 0 : e->prefixes.n,
                        .cached_tokens = (int64_t)executor_n_pages(e->executor) * e->options.kv_page_size,
                        .kept = &e->kept,
                        .executor = is_own ? NULL : e->executor};
}

/* Opens a drafter, and lets the target keep the residual streams that it reads. */
static int open_drafter(Drafter **out, fr_engine *e, const char *spec, bool is_own, fr_error *err) {
    const DrafterEnv env = env_of(e, is_own);
    const KeptLayers before = e->kept;
    int status = drafter_open(out, spec, &env, 0, err);
    if (!status && e->kept.n > before.n) status = executor_keep_layers(e->executor, &e->kept, err);
    if (!status) return FR_OK;
    e->kept = before;
    drafter_close(*out);
    *out = NULL;
    return status;
}

int drafter_pool_open_draft(fr_engine *e, const char *spec, fr_error *err) {
    if (find(e, spec) >= 0) return FR_OK;
    Drafter *drafter;
    int status = open_drafter(&drafter, e, spec, false, err);
    if (status || !drafter) return status; /* "none" is no drafter */
    EngineDrafter *place = find_place(e);
    char *copy = place ? strdup(spec) : NULL;
    if (!copy) {
        drafter_close(drafter);
        if (place) return error_memory(err, "a drafter", strlen(spec));
        return error_set(err, FR_ERR_MEMORY, "%d drafters are in use, which is the limit; close a request first",
                         ENGINE_MAX_DRAFTERS);
    }
    *place = (EngineDrafter){.spec = copy, .drafter = drafter};
    calibration_init(&place->calibration, NULL);
    return FR_OK;
}

const char *drafter_pool_notice(const fr_engine *e, const char *spec) {
    int i = find(e, spec);
    const Drafter *d = i < 0 ? NULL : e->drafters[i].drafter;
    return d && d->class->notice ? d->class->notice(d) : "";
}

int drafter_pool_open_own(EngineDrafter *own, const EngineDrafter *pooled, fr_engine *e, fr_error *err) {
    *own = (EngineDrafter){.n_users = 1, .spec = strdup(pooled->spec)};
    if (!own->spec) return error_memory(err, "a drafter", strlen(pooled->spec));
    int status = open_drafter(&own->drafter, e, own->spec, true, err);
    if (!status) calibration_init(&own->calibration, NULL);
    else drafter_pool_close_own(own);
    return status;
}

void drafter_pool_close_own(EngineDrafter *own) {
    if (own->spec) close_place(own);
}

void drafter_pool_forget(fr_engine *e, int32_t sequence) {
    for (EngineDrafter *d = e->drafters; d < e->drafters + ENGINE_MAX_DRAFTERS; d++)
        if (d->spec && d->drafter->class->n_held) d->drafter->class->take_over(d->drafter, sequence, sequence, 0);
}

EngineDrafter *drafter_pool_acquire(fr_engine *e, const char *spec) {
    int i = find(e, spec);
    if (i < 0) return NULL;
    e->drafters[i].n_users++;
    return &e->drafters[i];
}

void drafter_pool_release(EngineDrafter *d) {
    if (d) d->n_users--;
}
