/* drafter_union.c - the drafters that one text names: "pld+suffix:history=0" is two, whose proposals are united.
 *
 * A '+' may also stand within an option: "specinfer:models=a.gguf+b.gguf", "rest:index=c++.index". So the text is cut
 * only where the name of a method follows, up to a ':', a '+' or the end. */
#include "draft/drafter.h"

#include <stdlib.h>
#include <string.h>

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

/* The length of the first drafter of the text; behind it is its end or a '+'. */
static size_t first_length(const char *text) {
    size_t n = 0;
    while (text[n] && !(text[n] == '+' && begins_with_method(text + n + 1))) n++;
    return n;
}

/* One drafter, or those that "auto" stands for. */
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
