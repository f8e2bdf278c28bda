/* all_tables.c - the kernel tables that this CPU can run, and those that only tests have. */
#include "all_tables.h"
#include "plain_tiles.h"

#include "compute/cpu/kernels/layout.h"

#include <string.h>

void acts_for_table(const Kernels *t, ActForm form, int64_t n_in, const void *of_ref, void *out) {
    memcpy(out, of_ref, act_row_bytes(form, n_in));
    if (!t->acts_are_words || form != ACT_Q16) return;
    for (int64_t i = 0; i < n_in; i += ACT_BLOCK) {
        const ActBlock *from = (const void *)((const char *)of_ref + act_offset(form, i));
        ActBlock *to = (void *)((char *)out + act_offset(form, i));
        for (int k = 0; k < ACT_BLOCK; k++) {
            int place = k % 4 == 1 ? k + 1 : k % 4 == 2 ? k - 1 : k;
            int16_t q = (int16_t)(256 * from->plane[0][k] + from->plane[1][k]);
            memcpy((char *)to->plane + 2 * place, &q, sizeof q);
        }
    }
}

const Kernels *const *all_tables(int *n) {
    static const Kernels *all[16];
    const Kernels *const *available = kernels_available(n);
    memcpy(all, available, (size_t)*n * sizeof *all);
#if defined(__x86_64__)
    if (kernels_select("avx512")) {
        all[(*n)++] = &kernels_evex_vnni;
        all[(*n)++] = kernels_plain_tiles();
    }
#endif
    return all;
}
