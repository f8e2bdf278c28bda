/* drafter_registry.c - the list of drafting methods, and from "method:key=value,..." to an open drafter.
 *
 * The method's table of options (base/options.h) says all about its options, so parsing, range checks and error messages are
 * the same for every method. The parsed struct lives only while the drafter is opened. */
#include "spec/drafter/drafter.h"

#include "base/mem.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each method defines draft_<method>_class in src/spec/drafters/<family>/draft_<method>.c. */
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

/* ---- methods that are not converted to option tables yet ----------------------------------------- */

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
        return error_set(err, FR_ERR_ARGUMENT, "%s: has more than %d options", out->method,
                         MAX_OPTIONS);
    char *key = out->options[out->n_options].key, *value = out->options[out->n_options].value;
    const char *equals = memchr(text, '=', n);
    size_t n_key = equals ? (size_t)(equals - text) : 0;
    if (!equals || !copy_field(key, sizeof out->options[0].key, text, n_key) ||
        !copy_field(value, sizeof out->options[0].value, equals + 1, n - n_key - 1))
        return error_set(err, FR_ERR_ARGUMENT, "%s: '%.*s' must be written key=value",
                         out->method, n > 80 ? 80 : (int)n, text);
    for (int i = 0; i < out->n_options; i++)
        if (strcmp(out->options[i].key, key) == 0)
            return error_set(err, FR_ERR_ARGUMENT, "%s: '%s' is set twice; keep one of them", out->method,
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
    fr_assert(o); /* a method reads only the keys that it lists */
    return o->default_value;
}

int draft_spec_get_int(const DraftSpec *spec, const DrafterClass *class, const char *key, int64_t min,
                       int64_t max, int64_t *out, fr_error *err) {
    const char *text = draft_spec_get(spec, class, key);
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < min || v > max)
        return error_set(err, FR_ERR_ARGUMENT, "%s: '%s=%.40s' must be an integer from %lld to %lld",
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
        return error_set(err, FR_ERR_ARGUMENT, "%s: '%s=%.40s' must be a number from %g to %g", class->name,
                         key, text, min, max);
    *out = v;
    return FR_OK;
}

static int refuse_key(const DrafterClass *class, const char *key, fr_error *err) {
    char names[256] = "none";
    size_t n = 0;
    for (const DrafterOption *o = class->options; o->key && n < sizeof names; o++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", o->key);
    return error_set(err, FR_ERR_ARGUMENT, "%s: unknown option '%s': Options: %s", class->name, key, names);
}

static int open_with_spec(Drafter **out, const DrafterClass *class, const char *text, const DrafterEnv *env,
                          fr_error *err) {
    DraftSpec spec;
    int status = draft_spec_parse(text, &spec, err);
    for (int i = 0; i < spec.n_options && !status; i++)
        if (!find_option(class, spec.options[i].key)) status = refuse_key(class, spec.options[i].key, err);
    return status ? status : class->open(out, &spec, env, err);
}

/* ---- from a spec to an open drafter -------------------------------------------------------------- */

static int refuse_method(const char *method, int n_method, fr_error *err) {
    NearestWord nearest = {.word = NULL};
    char names[256] = "none, auto", word[32], hint[64] = "";
    size_t n = strlen(names);
    snprintf(word, sizeof word, "%.*s", n_method, method);
    for (int i = 0; classes[i]; i++) {
        nearest_word_try(&nearest, word, classes[i]->name);
        if (n < sizeof names) n += (size_t)snprintf(names + n, sizeof names - n, ", %s", classes[i]->name);
    }
    if (nearest.word) snprintf(hint, sizeof hint, "did you mean '%s'? ", nearest.word);
    return error_set(err, FR_ERR_ARGUMENT, "there is no drafting method '%.*s': %sMethods: %s", n_method, method, hint,
                     names);
}

/* Parses the options behind the method's name and opens the drafter with them. */
static int open_with_options(Drafter **out, const DrafterClass *class, const char *text, const DrafterEnv *env,
                             fr_error *err) {
    size_t n_text = strlen(text) + 1;
    char *copy = mem_alloc(n_text); /* options_parse cuts it into strings */
    void *options = mem_calloc(1, class->options_size);
    int status = FR_OK;
    if (!copy || !options) status = error_memory(err, class->name, class->options_size + n_text);
    if (!status) {
        memcpy(copy, text, n_text);
        status = options_parse(class->option_table, class->name, copy, options, err);
    }
    if (!status) status = class->open_with(out, options, env, err);
    mem_free(options);
    mem_free(copy);
    return status;
}

int drafter_open(Drafter **out, const char *text, const DrafterEnv *env, int32_t source, fr_error *err) {
    *out = NULL;
    size_t n_method = strcspn(text, ":");
    const char *options = text[n_method] ? text + n_method + 1 : NULL;
    if (n_method == 0)
        return error_set(err, FR_ERR_ARGUMENT,
                         "'%.80s' is not a draft: write method or method:key=value,key=value", text);
    if (options && !*options)
        return error_set(err, FR_ERR_ARGUMENT, "'%.80s': write key=value after the colon, or leave the colon out", text);
    char name[32];
    snprintf(name, sizeof name, "%.*s", n_method < sizeof name ? (int)n_method : 0, text);
    if (strcmp(name, "none") == 0) {
        if (!options) return FR_OK;
        return error_set(err, FR_ERR_ARGUMENT, "the draft 'none' has no options; write it alone");
    }
    const DrafterClass *class = drafter_find(name);
    if (!class) return refuse_method(text, (int)(n_method < 40 ? n_method : 40), err);
    int status = class->open_with ? open_with_options(out, class, options ? options : "", env, err)
                                  : open_with_spec(out, class, text, env, err);
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

bool drafter_has_option(const DrafterClass *class, const char *key) {
    return class->option_table ? options_find(class->option_table, key) != NULL : find_option(class, key) != NULL;
}

bool drafter_options_help(Buf *out, const DrafterClass *class, int indent, int width) {
    if (class->option_table) return options_help(out, class->option_table, indent, width);
    Option rows[17] = {{.key = NULL}};
    for (int i = 0; i < 16 && class->options[i].key; i++) {
        const DrafterOption *o = &class->options[i];
        rows[i] = (Option){.key = o->key, .kind = OPTION_TEXT, .default_value = o->default_value, .help = o->help};
    }
    return options_help(out, rows, indent, width);
}
