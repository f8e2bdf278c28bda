/* drafter_registry.c - the list of drafting methods, and "method:key=value,..." from text to an open drafter.
 */
#include "spec/drafter/drafter.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every method defines draft_<method>_class in src/spec/draft_<method>.c; its line here makes it known. */
#define METHODS(X)                                                                                           \
    X(ngram_trie)                                                                                            \
    X(pld)                                                                                                   \
    X(llma)                                                                                                  \
    X(suffix)                                                                                                \
    X(lookahead_trie)                                                                                        \
    X(rest)                                                                                                  \
    X(recycling)                                                                                             \
    X(lookahead)                                                                                             \
    X(sps)                                                                                                   \
    X(rsd_c)                                                                                                 \
    X(rsd_s)                                                                                                 \
    X(spectr)                                                                                                \
    X(specinfer)                                                                                             \
    X(redrafter)                                                                                             \
    X(medusa)                                                                                                \
    X(hydra)                                                                                                 \
    X(eagle)                                                                                                 \
    X(lyanna)

#define DECLARE(method) extern const DrafterClass draft_##method##_class;
#define ADDRESS(method) &draft_##method##_class,
METHODS(DECLARE)
static const DrafterClass *const classes[] = {METHODS(ADDRESS) NULL};

const DrafterClass *const *drafter_classes(void) { return classes; }

const DrafterClass *drafter_find(const char *name) {
    for (int i = 0; classes[i]; i++)
        if (strcmp(classes[i]->name, name) == 0) return classes[i];
    return NULL;
}

const char *const *drafter_auto_members(void) {
    static const char *const members[] = {"ngram-trie", "lookahead-trie", NULL};
    return members;
}

/* Copies text[0..n) into a field of `capacity` bytes; false where it is empty or does not fit. */
static bool copy_field(char *out, size_t capacity, const char *text, size_t n) {
    if (n == 0 || n >= capacity) return false;
    memcpy(out, text, n);
    out[n] = '\0';
    return true;
}

static int parse_option(const char *text, size_t n, DraftSpec *out, fr_error *err) {
    enum { MAX_OPTIONS = sizeof out->options / sizeof out->options[0] };
    if (out->n_options == MAX_OPTIONS)
        return error_set(err, FR_ERR_ARGUMENT, "the draft '%s' has more than %d options", out->method,
                         MAX_OPTIONS);
    char *key = out->options[out->n_options].key, *value = out->options[out->n_options].value;
    const char *equals = memchr(text, '=', n);
    size_t n_key = equals ? (size_t)(equals - text) : 0;
    if (!equals || !copy_field(key, sizeof out->options[0].key, text, n_key) ||
        !copy_field(value, sizeof out->options[0].value, equals + 1, n - n_key - 1))
        return error_set(err, FR_ERR_ARGUMENT, "the draft '%s' has '%.*s' where key=value is wanted",
                         out->method, n > 80 ? 80 : (int)n, text);
    for (int i = 0; i < out->n_options; i++)
        if (strcmp(out->options[i].key, key) == 0)
            return error_set(err, FR_ERR_ARGUMENT, "the draft '%s' sets '%s' twice; keep one", out->method,
                             key);
    out->n_options++;
    return FR_OK;
}

int draft_spec_parse(const char *text, DraftSpec *out, fr_error *err) {
    *out = (DraftSpec){.n_options = 0};
    size_t n_method = strcspn(text, ":");
    if (!copy_field(out->method, sizeof out->method, text, n_method))
        return error_set(err, FR_ERR_ARGUMENT,
                         "'%.80s' is not a draft; write method or method:key=value,key=value", text);
    if (!text[n_method]) return FR_OK;
    for (const char *p = text + n_method + 1;;) {
        size_t n = strcspn(p, ",");
        int status = parse_option(p, n, out, err);
        if (status) return status;
        if (!p[n]) return FR_OK;
        p += n + 1;
    }
}

static const DrafterOption *find_option(const DrafterClass *class, const char *key) {
    for (const DrafterOption *o = class->options; o->key; o++)
        if (strcmp(o->key, key) == 0) return o;
    return NULL;
}

const char *draft_spec_get(const DraftSpec *spec, const DrafterClass *class, const char *key) {
    for (int i = 0; i < spec->n_options; i++)
        if (strcmp(spec->options[i].key, key) == 0) return spec->options[i].value;
    const DrafterOption *o = find_option(class, key);
    fr_assert(o); /* a method asks for the keys it lists */
    return o->default_value;
}

int draft_spec_get_int(const DraftSpec *spec, const DrafterClass *class, const char *key, int64_t min,
                       int64_t max, int64_t *out, fr_error *err) {
    const char *text = draft_spec_get(spec, class, key);
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < min || v > max)
        return error_set(err, FR_ERR_ARGUMENT, "%s: '%s=%.40s' wants a whole number from %lld to %lld",
                         class->name, key, text, (long long)min, (long long)max);
    *out = v;
    return FR_OK;
}

int draft_spec_get_real(const DraftSpec *spec, const DrafterClass *class, const char *key, double min,
                        double max, double *out, fr_error *err) {
    const char *text = draft_spec_get(spec, class, key);
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v >= min && v <= max)) /* a NaN compares false */
        return error_set(err, FR_ERR_ARGUMENT, "%s: '%s=%.40s' wants a number from %g to %g", class->name,
                         key, text, min, max);
    *out = v;
    return FR_OK;
}

static int refuse_method(const char *method, fr_error *err) {
    char names[256] = "none, auto";
    size_t n = strlen(names);
    for (int i = 0; classes[i] && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, ", %s", classes[i]->name);
    return error_set(err, FR_ERR_ARGUMENT, "there is no drafting method '%s'; there are: %s", method, names);
}

static int refuse_key(const DrafterClass *class, const char *key, fr_error *err) {
    char names[256] = "none";
    size_t n = 0;
    for (const DrafterOption *o = class->options; o->key && n < sizeof names; o++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", o->key);
    return error_set(err, FR_ERR_ARGUMENT, "%s has no option '%s'; it has: %s", class->name, key, names);
}

int drafter_open(Drafter **out, const char *text, const DrafterEnv *env, int32_t source, fr_error *err) {
    *out = NULL;
    DraftSpec spec;
    int status = draft_spec_parse(text, &spec, err);
    if (status) return status;
    if (strcmp(spec.method, "none") == 0) {
        if (spec.n_options == 0) return FR_OK;
        return error_set(err, FR_ERR_ARGUMENT, "the draft 'none' has no options; write it alone");
    }
    const DrafterClass *class = drafter_find(spec.method);
    if (!class) return refuse_method(spec.method, err);
    for (int i = 0; i < spec.n_options; i++)
        if (!find_option(class, spec.options[i].key)) return refuse_key(class, spec.options[i].key, err);
    status = class->open(out, &spec, env, err);
    if (status) {
        *out = NULL;
        return status;
    }
    (*out)->class = class;
    (*out)->source = source;
    return FR_OK;
}

void drafter_close(Drafter *d) {
    if (d) d->class->close(d);
}
