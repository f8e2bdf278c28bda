/* cpu_backend.c - the table of the CPU backend. */
#include "compute/cpu/cpu_backend.h"

#include "compute/cpu/cpu.h"

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
    .embed = cpu_embed,
    .device_open = cpu_device_open,
    .device_close = cpu_device_close,
    .run_parts = cpu_run_parts,
    .context_open = cpu_context_open,
    .context_close = cpu_context_close,
    .forward = cpu_forward,
    .read = cpu_read,
    .reserve_logits = cpu_reserve_logits,
    .advance_states = cpu_advance_states,
    .copy_slots = cpu_copy_slots,
    .fill_slot = cpu_fill_slot,
    .linear_open = cpu_linear_open,
    .linear_close = cpu_linear_close,
    .linear = cpu_linear,
    .head_reserve = cpu_head_reserve,
    .head = cpu_head,
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
