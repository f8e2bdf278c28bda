/* bench_methods.c - what is measured against plain decoding: drafters, unions of them, chains of a length. */
#include "cli/bench.h"

#include "spec/drafter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Does the name of a method begin here, and end at ':', ',' or '+' or with the text? */
static bool method_begins(const char *text) {
    for (const DrafterClass *const *c = drafter_classes(); *c; c++) {
        size_t n = strlen((*c)->name);
        if (strncmp(text, (*c)->name, n) == 0 && (!text[n] || text[n] == ':' || text[n] == '+')) return true;
    }
    return false;
}

int bench_method_init(BenchMethod *m, const char *spec, int tree_budget, fr_error *err) {
    *m = (BenchMethod){.tree_budget = tree_budget, .storage = strdup(spec)};
    if (!m->storage) return error_memory(err, "a method", strlen(spec));
    snprintf(m->name, sizeof m->name, "%s", spec);
    m->drafts[m->n_drafts++] = m->storage;
    for (char *p = m->storage; *p; p++) {
        if (*p != '+' || !method_begins(p + 1)) continue;
        if (m->n_drafts == GENERATE_MAX_DRAFTS)
            return error_set(err, FR_ERR_ARGUMENT, "'%.100s' unites more than %d drafters", spec, GENERATE_MAX_DRAFTS);
        *p = '\0';
        m->drafts[m->n_drafts++] = p + 1;
    }
    return FR_OK;
}

int bench_method_init_chain(BenchMethod *m, const char *spec, int length, fr_error *err) {
    *m = (BenchMethod){0};
    DraftSpec parsed;
    int status = draft_spec_parse(spec, &parsed, err);
    if (status) return status;
    const DrafterClass *class = drafter_find(parsed.method);
    bool has_length = false;
    for (const DrafterOption *o = class ? class->options : NULL; o && o->key; o++)
        has_length = has_length || strcmp(o->key, "length") == 0;
    for (int i = 0; i < parsed.n_options; i++)
        if (strcmp(parsed.options[i].key, "length") == 0)
            return error_set(err, FR_ERR_ARGUMENT, "--chain '%.100s': its length is what is tuned; leave it out", spec);
    char text[512];
    snprintf(text, sizeof text, "%.440s", spec);
    if (has_length)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%clength=%d", parsed.n_options ? ',' : ':', length);
    status = bench_method_init(m, text, length, err);
    if (!has_length) snprintf(m->name, sizeof m->name, "%.100s, budget %d", spec, length);
    return status;
}

void bench_method_free(BenchMethod *m) {
    free(m->storage);
    *m = (BenchMethod){0};
}
