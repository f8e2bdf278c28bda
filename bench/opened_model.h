/* opened_model.h - a model, its weights in the CPU backend, and a device: the beginning of every measurement below the
 * public API. */
#ifndef BENCH_OPENED_MODEL_H
#define BENCH_OPENED_MODEL_H

#include "compute/executor.h"

typedef struct OpenedModel {
    Model *model;
    Weights *weights;
    Device *device;
} OpenedModel;

static inline int opened_model_open(OpenedModel *m, const Gguf *g, ActPrecision activations, int n_threads,
                                    fr_error *err) {
    const Backend *backend;
    *m = (OpenedModel){0};
    int status = backend_find(NULL, &backend, err);
    if (!status) status = model_open(&m->model, g, err);
    if (!status)
        status = backend->weights_open(&m->weights, m->model,
                                       &(WeightsOptions){.activations = activations, .n_threads = n_threads}, err);
    return status ? status : backend->device_open(&m->device, &(DeviceOptions){.n_threads = n_threads}, err);
}

static inline void opened_model_close(OpenedModel *m) {
    device_close(m->device);
    weights_close(m->weights);
    model_close(m->model);
}

#endif
