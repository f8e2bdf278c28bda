/* drafter_file.c - opens the GGUF files of learned drafters, and refuses those of another method or target.
 *
 * Everything in the file is checked before it is used: here its method and its target, and in drafter_tensors.c its
 * numbers and weights. */
#include "draft/drafter_file.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

void drafter_file_text(const Gguf *g, const char *key, char out[DRAFTER_TEXT_BYTES]) {
    GgufString s = {"", 0};
    gguf_get_string(g, key, &s);
    size_t n = s.n < DRAFTER_TEXT_BYTES - 1 ? s.n : DRAFTER_TEXT_BYTES - 1;
    for (size_t i = 0; i < n; i++) out[i] = s.data[i] >= ' ' && s.data[i] <= '~' ? s.data[i] : '?';
    out[n] = '\0';
}

/* Returns the method that reads files of that architecture, which others publish; NULL: there is none. */
static const char *find_published(const char *name) {
    static const struct {
        const char *architecture, *method;
    } published[] = {{"eagle3", "eagle3"},
                     {"dflash", "dflash"},
                     {"dflash-draft", "dflash"},
                     {"qwen35-dflash-draft", "dflash"},
                     {ASSISTANT_ARCHITECTURE, "mtp"}};
    for (size_t i = 0; i < sizeof published / sizeof *published; i++)
        if (strcmp(published[i].architecture, name) == 0) return published[i].method;
    return NULL;
}

const char *drafter_file_published_method(const Gguf *g) {
    char is[DRAFTER_TEXT_BYTES];
    drafter_file_text(g, "general.architecture", is);
    return find_published(is);
}

static int refuse_method(const Gguf *g, const char *is, const char *method, fr_error *err) {
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: is a drafter for the method '%s', not for %s; pass a file of %s, or use this one as "
                     "%s:file=...",
                     gguf_path(g), is, method, method, is);
}

static int check_method(const Gguf *g, const char *method, fr_error *err) {
    char is[DRAFTER_TEXT_BYTES];
    const char *published = drafter_file_published_method(g);
    if (published) return strcmp(published, method) == 0 ? FR_OK : refuse_method(g, published, method, err);
    drafter_file_text(g, "general.architecture", is);
    if (strcmp(is, DRAFTER_ARCHITECTURE) != 0 && find_published(method))
        return error_set(
            err, FR_ERR_MISMATCH,
            "%s: is not a learned drafter but of architecture '%s'; %s needs a file of the architecture %s, "
            "or one made by forerun import-drafter %s",
            gguf_path(g), is, method, method, method);
    if (strcmp(is, DRAFTER_ARCHITECTURE) != 0)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: is not a learned drafter but of architecture '%s'; %s needs a file "
                         "made by forerun train %s",
                         gguf_path(g), is, method, method);
    drafter_file_text(g, DRAFTER_KEY("method"), is);
    return strcmp(is, method) == 0 ? FR_OK : refuse_method(g, is, method, err);
}

/* Checks that a published file has the target's vocabulary, if it has one. Tokens that were added to one of the two may
 * differ, but few do. */
static int check_vocabulary(const Gguf *g, const Model *target, fr_error *err) {
    enum { TOLERATED = 100 }; /* one token in so many may differ */
    int64_t ours = gguf_find_key(target->gguf, "tokenizer.ggml.tokens"),
            theirs = gguf_find_key(g, "tokenizer.ggml.tokens");
    if (ours < 0 || theirs < 0) return FR_OK;
    int64_t n = gguf_kv_count(target->gguf, ours), n_theirs = gguf_kv_count(g, theirs), n_other = 0;
    for (int64_t i = 0; i < n && n == n_theirs; i++) {
        GgufString a, b;
        bool are_texts = gguf_array_string(target->gguf, ours, i, &a) && gguf_array_string(g, theirs, i, &b);
        n_other += !are_texts || a.n != b.n || memcmp(a.data, b.data, a.n) != 0;
    }
    if (n == n_theirs && n_other * TOLERATED <= n) return FR_OK;
    char name[DRAFTER_TEXT_BYTES];
    drafter_target_name(target, name);
    if (n != n_theirs)
        return error_set(err, FR_ERR_MISMATCH,
                         "%s: was trained for a target with %lld tokens, and '%s' has %lld; run the target that it was "
                         "trained for",
                         gguf_path(g), (long long)n_theirs, name, (long long)n);
    return error_set(
        err, FR_ERR_MISMATCH,
        "%s: was trained for a target with another vocabulary: %lld of the %lld tokens differ from those of "
        "'%s'; run the target that it was trained for",
        gguf_path(g), (long long)n_other, (long long)n, name);
}

static int check_target(const Gguf *g, const Model *target, fr_error *err) {
    char name[DRAFTER_TEXT_BYTES], print[DRAFTER_TEXT_BYTES], our_name[DRAFTER_TEXT_BYTES], our_print[17];
    drafter_file_text(g, DRAFTER_KEY("target.name"), name);
    drafter_file_text(g, DRAFTER_KEY("target.fingerprint"), print);
    drafter_target_name(target, our_name);
    drafter_target_digits(target, our_print);
    if (strcmp(print, our_print) == 0) return FR_OK;
    return error_set(err, FR_ERR_MISMATCH,
                     "%s: was trained for the target '%s' (fingerprint %s), and this is '%s' (%s); "
                     "train a drafter for it, or run the target it was trained for",
                     gguf_path(g), name, print, our_name, our_print);
}

int drafter_file_refuse_as_target(const Gguf *g, fr_error *err) {
    char is[DRAFTER_TEXT_BYTES], name[DRAFTER_TEXT_BYTES];
    const char *published = drafter_file_published_method(g);
    if (published)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "%s: is a drafter, not a model; give its target as the model, and the drafter as --draft "
                         "%s:file=%s",
                         gguf_path(g), published, gguf_path(g));
    drafter_file_text(g, "general.architecture", is);
    if (strcmp(is, DRAFTER_ARCHITECTURE) != 0) return FR_OK;
    drafter_file_text(g, DRAFTER_KEY("method"), is);
    drafter_file_text(g, DRAFTER_KEY("target.name"), name);
    return error_set(err, FR_ERR_UNSUPPORTED,
                     "%s: is a drafter, not a model; give its target ('%s') as the model, and the drafter as --draft "
                     "%s:file=%s",
                     gguf_path(g), name, is, gguf_path(g));
}

static int open_file(DrafterFile *f, const char *path, fr_error *err) {
    int status = gguf_open(&f->gguf, path, err);
    if (status) return status;
    size_t n = (size_t)gguf_n_tensors(f->gguf) + 1;
    f->taken = mem_calloc(n, sizeof *f->taken);
    return f->taken ? FR_OK : error_memory(err, path, n);
}

int drafter_file_open(DrafterFile *f, const char *path, const char *method, const Model *target, fr_error *err) {
    *f = (DrafterFile){0};
    if (!path[0])
        return error_set(err, FR_ERR_ARGUMENT, "%s: missing drafter file: write --draft %s:file=DRAFTER.gguf", method,
                         method);
    int status = open_file(f, path, err);
    if (!status) status = check_method(f->gguf, method, err);
    if (!status) status = gguf_check(target->gguf, err); /* the fingerprint reads the target's weights */
    if (!status) {
        f->is_published = drafter_file_published_method(f->gguf) != NULL;
        f->names_target = gguf_find_key(f->gguf, DRAFTER_KEY("target.fingerprint")) >= 0;
        if (f->is_published) status = check_vocabulary(f->gguf, target, err);
        if (!status && (f->names_target || !f->is_published)) status = check_target(f->gguf, target, err);
    }
    fr_error changed; /* if the target's file has changed meanwhile, that is the real cause of any failure */
    int check = status == FR_OK || status == FR_ERR_MISMATCH ? gguf_check(target->gguf, &changed) : FR_OK;
    return check ? (int)error_set(err, (fr_code)check, "%s", changed.message) : status;
}

int drafter_file_check_companion(const Gguf *g, const Model *target, fr_error *err) {
    return gguf_find_key(g, DRAFTER_KEY("target.fingerprint")) < 0 ? FR_OK : check_target(g, target, err);
}

int drafter_file_open_companion(DrafterFile *f, const char *path, const Model *target, fr_error *err) {
    *f = (DrafterFile){0};
    int status = open_file(f, path, err);
    return status ? status : drafter_file_check_companion(f->gguf, target, err);
}

void drafter_file_close(DrafterFile *f) {
    gguf_close(f->gguf);
    mem_free(f->taken);
    *f = (DrafterFile){0};
}
