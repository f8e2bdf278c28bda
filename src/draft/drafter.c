/* drafter.c - the list of drafting methods, the drafters that a text names, and opening a drafter from
 * "method:key=value,...".
 *
 * A method describes its options by a table (base/options.h), so parsing, range checks, error messages and --help are
 * the same for every method. The parsed struct lives only while the drafter is opened. */
#include "draft/drafter.h"

#include "base/mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each method defines draft_<method>_class in src/draft/<family>/draft_<method>.c. */
#define METHODS(X) \
    X(ngram_trie) \
    X(pld) \
    X(llma) \
    X(suffix) \
    X(lookahead_trie) \
    X(rest) \
    X(recycling) \
    X(lookahead) \
    X(grammar) \
    X(sps) \
    X(rsd_c) \
    X(rsd_s) \
    X(spectr) \
    X(specinfer) \
    X(redrafter) \
    X(medusa) \
    X(hydra) \
    X(eagle) \
    X(mtp) \
    X(lyanna) \
    X(space) \
    X(prediction) \
    X(eagle3) \
    X(dflash) \
    X(remote)

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

/* The specs of the drafters that `auto` means, ending with NULL. They are ordinary drafters; engine/draft_policy.c
 * decides in which steps each proposes, and how many of its nodes get a row. */
static const char *const *drafter_auto_members(void) {
    static const char *const members[] = {"ngram-trie", "lookahead-trie", NULL};
    return members;
}

/* ---- opening -------------------------------------------------------------- */

static int refuse_method(const char *text, size_t n_method, fr_error *err) {
    NearestWord nearest = {.word = NULL};
    char names[256] = "none, auto", word[40], hint[64] = "";
    size_t n = strlen(names);
    snprintf(word, sizeof word, "%.*s", n_method < sizeof word ? (int)n_method : (int)sizeof word - 1, text);
    for (int i = 0; classes[i]; i++) {
        nearest_word_try(&nearest, word, classes[i]->name);
        if (n < sizeof names) n += (size_t)snprintf(names + n, sizeof names - n, ", %s", classes[i]->name);
    }
    if (nearest.word) snprintf(hint, sizeof hint, "did you mean '%s'? Known", nearest.word);
    return error_set(err, FR_ERR_ARGUMENT, "unknown drafter '%s'; %s drafters: %s", word, nearest.word ? hint : "known",
                     names);
}

/* A parsed specification of a drafter. */
typedef struct Spec {
    const DrafterClass *class; /* NULL: "none" */
    char *text;                /* cut into the strings that the options refer to */
    void *options;
} Spec;

static void spec_free(Spec *s) {
    mem_free(s->options);
    mem_free(s->text);
}

/* Parses the options after the method's name. */
static int parse_options(Spec *s, const char *text, fr_error *err) {
    size_t n_text = strlen(text) + 1;
    s->text = mem_alloc(n_text);
    s->options = mem_calloc(1, s->class->options_size);
    if (!s->text || !s->options) return error_memory(err, s->class->name, s->class->options_size + n_text);
    memcpy(s->text, text, n_text);
    return options_parse(s->class->option_table, s->class->name, s->text, s->options, err);
}

/* The caller frees *s, whatever the result is. */
static int parse_spec(Spec *s, const char *text, fr_error *err) {
    *s = (Spec){.class = NULL};
    size_t n_method = strcspn(text, ":");
    const char *options = text[n_method] ? text + n_method + 1 : NULL;
    if (n_method == 0)
        return error_set(err, FR_ERR_ARGUMENT, "'%.80s' is not a drafter: write method or method:key=value,key=value",
                         text);
    if (options && !*options)
        return error_set(err, FR_ERR_ARGUMENT, "'%.80s': write key=value after the colon, or leave the colon out",
                         text);
    char name[32];
    snprintf(name, sizeof name, "%.*s", n_method < sizeof name ? (int)n_method : 0, text);
    if (strcmp(name, "none") == 0) {
        if (!options) return FR_OK;
        return error_set(err, FR_ERR_ARGUMENT, "the drafter 'none' has no options; write it alone");
    }
    s->class = drafter_find(name);
    return s->class ? parse_options(s, options ? options : "", err) : refuse_method(text, n_method, err);
}

int drafter_check(const char *text, fr_error *err) {
    Spec s;
    int status = parse_spec(&s, text, err);
    spec_free(&s);
    return status;
}

int drafter_open(Drafter **out, const char *text, const DrafterEnv *env, int32_t source, fr_error *err) {
    Spec s;
    *out = NULL;
    int status = parse_spec(&s, text, err);
    if (!status && s.class) {
        status = s.class->open(out, s.options, env, err);
        if (status) *out = NULL;
        else {
            if (!(*out)->class) (*out)->class = s.class;
            (*out)->source = source;
        }
    }
    spec_free(&s);
    return status;
}

void drafter_close(Drafter *d) {
    if (d) d->class->close(d);
}

const Option *drafter_option_table(const char *method) {
    const DrafterClass *class = drafter_find(method);
    return class ? class->option_table : NULL;
}

bool drafter_has_option(const DrafterClass *class, const char *key) {
    return options_find(class->option_table, key) != NULL;
}

bool drafter_options_help(Buf *out, const DrafterClass *class, int indent, int width) {
    return options_help(out, class->option_table, indent, width);
}

/* ---- the drafters that one text names -------------------------------------------------------------------
 *
 * "pld+suffix:history=0" names two drafters, whose proposals are united. A '+' may also be part of an option, as in
 * "specinfer:models=a.gguf+b.gguf" and "rest:index=c++.index". So the text is cut only where a '+' is followed by
 * the name of a method and then by a ':', a '+' or the end. */

static bool begins_with(const char *text, const char *name) {
    size_t n = strlen(name);
    return strncmp(text, name, n) == 0 && (!text[n] || text[n] == ':' || text[n] == '+');
}

static bool begins_with_method(const char *text) {
    if (begins_with(text, "auto") || begins_with(text, "none")) return true;
    for (const DrafterClass *const *c = drafter_classes(); *c; c++)
        if (begins_with(text, (*c)->name)) return true;
    return false;
}

/* Returns the length of the first drafter that the text names. It is followed by a '+' or by the end of the text. */
static size_t first_length(const char *text) {
    size_t n = 0;
    while (text[n] && !(text[n] == '+' && begins_with_method(text + n + 1))) n++;
    return n;
}

/* Visits one drafter, or those that "auto" means. */
static int visit_one(const char *spec, int (*visit)(void *user, const char *spec, fr_error *err), void *user,
                     fr_error *err) {
    if (strcmp(spec, "auto") != 0) return visit(user, spec, err);
    int status = FR_OK;
    for (const char *const *m = drafter_auto_members(); *m && !status; m++) status = visit(user, *m, err);
    return status;
}

int drafter_each(const char *text, int (*visit)(void *user, const char *spec, fr_error *err), void *user,
                 fr_error *err) {
    char *copy = strdup(text), *at = copy;
    if (!copy) return error_memory(err, "the names of drafters", strlen(text));
    int status = FR_OK;
    for (bool has_more = true; has_more && !status;) {
        size_t n = first_length(at);
        has_more = at[n] == '+';
        at[n] = '\0';
        status = visit_one(at, visit, user, err);
        at += n + 1;
    }
    free(copy);
    return status;
}

bool drafter_names_auto(const char *text) {
    for (;;) {
        size_t n = first_length(text);
        if (n == 4 && memcmp(text, "auto", 4) == 0) return true;
        if (!text[n]) return false;
        text += n + 1;
    }
}
