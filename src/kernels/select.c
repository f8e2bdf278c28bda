/* select.c - which tables this CPU can run. */
#include "kernels/tables.h"

#include <string.h>

/* Each table needs what the one before it needs, and more. */
static const Kernels *const tables[] = {
    &kernels_ref,
};

const Kernels *const *kernels_available(int *n) {
    *n = 1;
    return tables;
}

const Kernels *kernels_select(const char *name) {
    int n;
    kernels_available(&n);
    if (!name || strcmp(name, "auto") == 0) return tables[n - 1];
    for (int i = 0; i < n; i++)
        if (strcmp(tables[i]->name, name) == 0) return tables[i];
    return NULL;
}
