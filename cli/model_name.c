/* model_name.c - names of models on a hub, and which of a repository's files is meant.
 *
 * A repository holds one model in several types, in files whose names contain the type:
 *
 *     tiny.Q4_K_M.gguf    Q8_0/tiny-q8_0-00001-of-00002.gguf    Q8_0/tiny-q8_0-00002-of-00002.gguf
 *
 * There is no list of types: a type is what stands between two of the separators - . / (and _ before it, because names
 * of types contain '_' themselves). A file that is split counts once, as its first part. The same choice is made among
 * the files of a repository, when one is fetched, and among those that have been fetched, when one is opened. */
#include "cli/model_name.h"

#include "base/mem.h"
#include "base/error.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- names ------------------------------------------------------------------------------------------ */

/* The hub's own rule; it also keeps "." and ".." out. */
static bool is_name_part(const char *s, size_t n) {
    if (n == 0 || n > MODEL_NAME_PART || strchr("-.", s[0]) || strchr("-.", s[n - 1])) return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i])) return false;
    return true;
}

bool model_name_parse(const char *text, ModelName *out) {
    size_t n = strcspn(text, ":"), n_owner = strcspn(text, "/:");
    if (text[n_owner] != '/' || !is_name_part(text, n_owner) || !is_name_part(text + n_owner + 1, n - n_owner - 1))
        return false;
    snprintf(out->repo, sizeof out->repo, "%.*s", (int)n, text);
    out->type = text[n] ? text + n + 1 : NULL;
    return !out->type || *out->type;
}

bool model_path_is_safe(const char *path) {
    if (strlen(path) > 1000) return false;
    for (const char *at = path;; at++) {
        size_t n = strcspn(at, "/");
        if (n == 0 || n > 200 || (n == 1 && at[0] == '.') || (n == 2 && at[0] == '.' && at[1] == '.')) return false;
        for (size_t i = 0; i < n; i++)
            if (at[i] < 0x20 || at[i] > 0x7e || at[i] == '\\') return false;
        at += n;
        if (!*at) return true;
    }
}

/* ---- files ------------------------------------------------------------------------------------------- */

static const char suffix[] = ".gguf";
enum { N_SUFFIX = sizeof suffix - 1, N_PART = sizeof "-00001-of-00002" - 1 };

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether the path is a model: projectors of images and importance matrices are GGUF files, too. */
static bool is_model(const char *path) {
    size_t n = strlen(path);
    return n > N_SUFFIX && strcasecmp(path + n - N_SUFFIX, suffix) == 0 && !strcasestr(base_name(path), "mmproj") &&
           !strcasestr(base_name(path), "imatrix");
}

/* "-00001-of-00002.gguf" at the end: the bytes before it, the number of this part and how many there are. */
static bool is_part(const char *path, size_t *n_stem, int *number, int *count) {
    size_t n = strlen(path);
    int n_read = 0;
    if (n < N_SUFFIX + N_PART) return false;
    *n_stem = n - N_SUFFIX - N_PART;
    if (sscanf(path + *n_stem, "-%5d-of-%5d%n", number, count, &n_read) != 2 || n_read != N_PART) return false;
    return *number >= 1 && *number <= *count;
}

/* Whether the file is one to choose: it is whole, or the first part. */
static bool is_candidate(const char *path) {
    size_t n_stem;
    int number, count;
    return is_model(path) && (!is_part(path, &n_stem, &number, &count) || number == 1);
}

static bool has_word(const char *path, const char *word) {
    size_t n = strlen(word);
    for (const char *at = path; (at = strcasestr(at, word)); at++) {
        bool begins = at == path || strchr("-._/", at[-1]);
        if (begins && (!at[n] || strchr("-./", at[n]))) return true;
    }
    return false;
}

static bool is_named(const char *path, const char *name) {
    return strcmp(path, name) == 0 || strcmp(base_name(path), name) == 0;
}

/* The number of candidates of a type, or of a name where there is one; NULL: of all. *found: the first of them. */
static int count_matches(const char *const *paths, int n_paths, const char *type, int *found) {
    int n_named = 0, n_typed = 0, named = -1, typed = -1;
    for (int i = 0; i < n_paths; i++) {
        if (!is_candidate(paths[i])) continue;
        if (type && is_named(paths[i], type) && n_named++ == 0) named = i;
        if ((!type || has_word(paths[i], type)) && n_typed++ == 0) typed = i;
    }
    *found = n_named ? named : typed;
    return n_named ? n_named : n_typed;
}

/* ---- the choice --------------------------------------------------------------------------------------- */

/* The names of the candidates, as many as fit into a message. */
static const char *list_candidates(const char *const *paths, int n_paths, const char *type, char *text, size_t size) {
    size_t n = 0;
    int n_left = 0;
    text[0] = '\0';
    for (int i = 0; i < n_paths; i++) {
        Printable safe;
        if (!is_candidate(paths[i]) || (type && !has_word(paths[i], type))) continue;
        const char *name = printable(&safe, paths[i], strlen(paths[i]));
        if (n + strlen(name) + 24 > size) n_left++;
        else n += (size_t)snprintf(text + n, size - n, "%s%s", n ? ", " : "", name);
    }
    if (n_left) snprintf(text + n, size - n, " and %d more", n_left);
    return text;
}

static int refuse(const char *where, const char *const *paths, int n_paths, const char *type, int n_found,
                  fr_error *err) {
    char list[280];
    int any;
    if (count_matches(paths, n_paths, NULL, &any) == 0)
        return error_set(err, FR_ERR_ARGUMENT, "%s: holds no GGUF file; look for a repository that does", where);
    if (n_found > 1)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: holds several files of that type; write one of them behind the colon: %s", where,
                         list_candidates(paths, n_paths, type, list, sizeof list));
    if (type)
        return error_set(err, FR_ERR_ARGUMENT, "%s: holds no file of type %.40s; it has %s", where, type,
                         list_candidates(paths, n_paths, NULL, list, sizeof list));
    return error_set(err, FR_ERR_ARGUMENT, "%s: say which type you want, as in %.100s:Q6_K; there are %s", where, where,
                     list_candidates(paths, n_paths, NULL, list, sizeof list));
}

/* The part `number` of the file that paths[first] is the first part of; -1: there is none. */
static int find_part(const char *const *paths, int n_paths, int first, int number) {
    size_t n_stem, n_other;
    int own, count, other, other_count;
    (void)is_part(paths[first], &n_stem, &own, &count);
    for (int i = 0; i < n_paths; i++)
        if (is_model(paths[i]) && is_part(paths[i], &n_other, &other, &other_count) && other == number &&
            other_count == count && n_other == n_stem && memcmp(paths[i], paths[first], n_stem) == 0)
            return i;
    return -1;
}

static int take_parts(const char *where, const char *const *paths, int n_paths, int first, int **chosen, int *n_chosen,
                      fr_error *err) {
    size_t n_stem;
    int number, count;
    if (!is_part(paths[first], &n_stem, &number, &count)) count = 1;
    int *parts = malloc((size_t)count * sizeof *parts);
    if (!parts) return error_memory(err, "a list of files", (size_t)count * sizeof *parts);
    parts[0] = first;
    for (int i = 1; i < count; i++) {
        Printable safe;
        if ((parts[i] = find_part(paths, n_paths, first, i + 1)) >= 0) continue;
        free(parts);
        return error_set(err, FR_ERR_IO, "%s: part %d of %d of %s is missing", where, i + 1, count,
                         printable(&safe, paths[first], strlen(paths[first])));
    }
    *chosen = parts;
    *n_chosen = count;
    return FR_OK;
}

int model_choose(const char *where, const char *const *paths, int n_paths, const char *type, int **chosen,
                 int *n_chosen, fr_error *err) {
    static const char *const preferred[] = {"Q4_K_M", "Q8_0"};
    int first, n_found = count_matches(paths, n_paths, type, &first);
    const char *meant = type;
    for (int i = 0; !type && n_found > 1 && i < 2; i++) {
        int other, n_other = count_matches(paths, n_paths, preferred[i], &other);
        if (n_other == 0) continue;
        n_found = n_other, first = other, meant = preferred[i];
        break;
    }
    if (n_found != 1) return refuse(where, paths, n_paths, meant, meant ? n_found : 0, err);
    return take_parts(where, paths, n_paths, first, chosen, n_chosen, err);
}
