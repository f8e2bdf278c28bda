/* bench_methods.c - the methods compared with plain decoding: drafters, unions of them, chains of a given length. */
#include "cli/bench/bench.h"

#include "draft/drafter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bench_method_init(BenchMethod *m, const char *spec, int tree_budget, fr_error *err) {
    *m = (BenchMethod){.tree_budget = tree_budget, .name = strdup(spec), .storage = strdup(spec)};
    if (!m->name || !m->storage) return error_memory(err, "a method", strlen(spec));
    m->drafts[m->n_drafts++] = m->storage;
    return FR_OK;
}

int bench_method_init_plain(BenchMethod *m, fr_error *err) {
    *m = (BenchMethod){.name = strdup("plain")};
    return m->name ? FR_OK : error_memory(err, "a method", 1);
}

/* Replaces the name. False: no memory. */
__attribute__((format(printf, 2, 3))) static bool rename_method(BenchMethod *m, const char *format, ...) {
    va_list args;
    char *name;
    va_start(args, format);
    int n = vasprintf(&name, format, args);
    va_end(args);
    if (n < 0) return false;
    free(m->name);
    m->name = name;
    return true;
}

int bench_method_init_chain(BenchMethod *m, const char *spec, int length, fr_error *err) {
    *m = (BenchMethod){0};
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(spec, ":"), spec);
    const DrafterClass *class = drafter_find(name);
    bool has_length = class && drafter_has_option(class, "length");
    if (strstr(spec, ":length=") || strstr(spec, ",length="))
        return error_set(err, FR_ERR_ARGUMENT, "--chain '%.100s' must not set the length, which is tuned", spec);
    char *text;
    int n = has_length ? asprintf(&text, "%s%clength=%d", spec, strchr(spec, ':') ? ',' : ':', length)
                       : asprintf(&text, "%s", spec);
    if (n < 0) return error_memory(err, "a method", strlen(spec));
    int status = bench_method_init(m, text, length, err);
    free(text);
    if (status) return status;
    bool renamed = has_length ? rename_method(m, "tuned chain %s", m->storage)
                              : rename_method(m, "tuned chain %s, budget %d", spec, length);
    return renamed ? FR_OK : error_memory(err, "a method", strlen(spec));
}

void bench_method_free(BenchMethod *m) {
    free(m->name);
    free(m->storage);
    *m = (BenchMethod){0};
}
