/* cpu_backend.c - the table of the CPU backend, and its device: one pool of threads for an engine and its drafters,
 * with the memory that the products of drafters share. */
#include "compute/cpu/cpu.h"

#include "base/mem.h"

/* ---- the device ---------------------------------------------------------------------------------------------- */

static void cpu_device_close(Device *device) {
    CpuDevice *d = (CpuDevice *)device;
    threads_close(d->threads);
    mem_free(d->acts);
    mem_free(d->products);
    mem_free(d->ones);
    mem_free(d);
}

static int cpu_device_open(Device **out, const DeviceOptions *options, fr_error *err) {
    *out = NULL;
    CpuDevice *d = mem_calloc(1, sizeof *d);
    if (!d) return error_memory(err, "a device", sizeof *d);
    int status = kernels_find(options->kernels, &d->kernels, err);
    if (!status) status = threads_open(&d->threads, options->n_threads, err);
    if (!status && options->pin_threads) status = threads_pin(d->threads, err);
    if (status) {
        cpu_device_close(&d->base);
        return status;
    }
    d->base = (Device){.backend = &backend_cpu, .n_threads = options->n_threads, .rows = d->kernels->rows};
    *out = &d->base;
    return FR_OK;
}

static void cpu_run_parts(Device *device, int n_parts, PartFn fn, void *ctx) {
    threads_run(((CpuDevice *)device)->threads, n_parts, fn, ctx);
}

/* Returns bytes of an activation row in the widest form. */
static size_t widest_row(int64_t n_in) {
    size_t widest = 0;
    for (int form = 0; form < ACT_FORM_COUNT; form++) {
        size_t bytes = act_row_bytes((ActForm)form, n_in);
        if (bytes > widest) widest = bytes;
    }
    return widest;
}

int cpu_device_reserve(CpuDevice *d, int64_t n_in, int64_t n_out, int32_t n_rows, fr_error *err) {
    size_t acts, products, row = widest_row(n_in), n = (size_t)n_rows;
    if (!size_mul(row, n, &acts) || !size_mul((size_t)n_out, n, &products) || products > SIZE_MAX / sizeof(float))
        return error_memory(err, "products of a drafter", SIZE_MAX);
    if (acts > d->acts_bytes) {
        char *more = mem_calloc(1, acts);
        if (!more) return error_memory(err, "products of a drafter", acts);
        mem_free(d->acts);
        d->acts = more, d->acts_bytes = acts;
    }
    if (products > d->n_products) {
        float *more = mem_alloc(products * sizeof *more);
        if (!more) return error_memory(err, "products of a drafter", products * sizeof *more);
        mem_free(d->products);
        d->products = more, d->n_products = products;
    }
    if ((size_t)n_out > d->n_ones) {
        float *more = mem_alloc((size_t)n_out * sizeof *more);
        if (!more) return error_memory(err, "products of a drafter", (size_t)n_out * sizeof *more);
        for (int64_t i = 0; i < n_out; i++) more[i] = 1;
        mem_free(d->ones);
        d->ones = more, d->n_ones = (size_t)n_out;
    }
    return FR_OK;
}

/* ---- the table ----------------------------------------------------------------------------------------------- */

enum { MAX_TABLES = 16 };

static const char *const *kernel_names(void) {
    static const char *names[MAX_TABLES + 1];
    int n;
    const Kernels *const *tables = kernels_available(&n);
    fr_assert(n <= MAX_TABLES);
    for (int i = 0; i < n; i++) names[i] = tables[i]->name;
    return names;
}

const Backend backend_cpu = {
    .name = "cpu",
    .summary = "packed weights, SIMD kernels, threads (default)",
    .weights_open = cpu_weights_open,
    .submodel = cpu_submodel,
    .weights_close = cpu_weights_close,
    .weights_save = cpu_weights_save,
    .kernel_names = kernel_names,
    .device_open = cpu_device_open,
    .device_close = cpu_device_close,
    .run_parts = cpu_run_parts,
    .context_open = cpu_context_open,
    .context_close = cpu_context_close,
    .forward = cpu_forward,
    .read = cpu_read,
    .reserve_logits = cpu_reserve_logits,
    .keep_layers = cpu_keep_layers,
    .advance_states = cpu_advance_states,
    .copy_slots = cpu_copy_slots,
    .fill_slot = cpu_fill_slot,
    .slot_bytes = cpu_slot_bytes,
    .read_slot = cpu_read_slot,
    .write_slot = cpu_write_slot,
    .state_bytes = cpu_state_bytes,
    .read_state = cpu_read_state,
    .write_state = cpu_write_state,
    .buffer_open = cpu_buffer_open,
    .buffer_close = cpu_buffer_close,
    .linear_open = cpu_linear_open,
    .linear_close = cpu_linear_close,
    .linear = cpu_linear,
    .head_reserve = cpu_head_reserve,
    .head = cpu_head,
    .embed = cpu_embed,
    .softmax = cpu_softmax,
    .rmsnorm = cpu_rmsnorm,
    .lookup_open = cpu_lookup_open,
    .lookup_close = cpu_lookup_close,
    .lookup_store = cpu_lookup_store,
    .lookup_add = cpu_lookup_add,
    .work = cpu_work,
    .parts = cpu_parts,
    .time_parts = cpu_time_parts,
    .sum_inputs = cpu_sum_inputs,
    .speed = cpu_speed,
    .read_weights = cpu_read_weights,
};
