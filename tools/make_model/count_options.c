/* count_options.c - see count_options.h. */
#include "count_options.h"

#include "base/files.h"

#include <stdlib.h>
#include <string.h>

void count_options_list(struct argp_option *out, const CountOption *table, size_t n, const struct argp_option *others,
                        size_t n_other) {
    for (size_t i = 0; i < n; i++)
        out[i] = (struct argp_option){table[i].name, COUNT_OPTION_KEY + (int)i, "N", 0, table[i].help, 0};
    memcpy(out + n, others, n_other * sizeof *others);
}

int64_t count_parse(struct argp_state *state, const char *arg, int64_t most) {
    char *end;
    long long v = strtoll(arg, &end, 10);
    if (end == arg || *end || v < 1 || v > most)
        argp_error(state, "'%s' must be an integer from 1 to %lld", arg, (long long)most);
    return v;
}

bool count_option_parse(const CountOption *table, size_t n, int key, const char *arg, struct argp_state *state,
                        void *plan) {
    if (key < COUNT_OPTION_KEY || (size_t)(key - COUNT_OPTION_KEY) >= n) return false;
    const CountOption *o = &table[key - COUNT_OPTION_KEY];
    int64_t v = count_parse(state, arg, o->most);
    memcpy((char *)plan + o->field, &v, sizeof v);
    return true;
}

void output_option_check(struct argp_state *state, const char *out, const char *source, const char *name) {
    fr_error err;
    if (source && replace_file_same(out, source))
        argp_error(state, "-o and %s are the same file, '%s', which would be lost: choose another path", name, out);
    if (replace_file_check(out, &err)) argp_failure(state, 1, 0, "-o: %s", err.message);
}
