/* model_name.c - models on a command line: in place of a command, by their name on a hub, or among the fetched ones.
 *
 * A word in place of a command is a model if the file begins like a GGUF file.
 *
 * A repository on a hub holds one model in several types, in files whose names contain the type:
 *
 *     tiny.Q4_K_M.gguf    Q8_0/tiny-q8_0-00001-of-00002.gguf    Q8_0/tiny-q8_0-00002-of-00002.gguf
 *
 * There is no list of types. A type is a word of the path: it begins after one of the separators - . _ / and ends
 * before - . or / (not _, because names of types contain it). A file that is split counts once, as its first part. The
 * same choice is made among the files of a repository, when one is fetched, and among the fetched files, when one is
 * opened.
 *
 * `forerun pull` puts files into a folder, so that -m OWNER/NAME:TYPE works in every command. The folder itself is the
 * index: there is no other file that could disagree with it. A file gets its name only when it is complete and its hash
 * was checked; until then it is FILE.gguf.HASH.part. A name that exists as a path is never looked up in the folder. */
#include "base/error.h"
#include "base/files.h"
#include "base/mem.h"
#include "cli/cli.h"
#include "cli/model_name.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_gguf(const char *path) {
    int fd;
    struct stat st;
    char magic[4] = "";
    if (input_file_open(path, &fd, &st, NULL)) return false;
    bool is_read = pread(fd, magic, sizeof magic, 0) == sizeof magic;
    close(fd);
    return is_read && memcmp(magic, "GGUF", sizeof magic) == 0;
}

static bool names_model(const char *word) { return strncmp(word, "-m", 2) == 0 || strncmp(word, "--model", 7) == 0; }

static bool gives_prompt(const char *word) {
    static const char *const options[] = {"-p", "-f", "--prompt", "--file"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (strncmp(word, options[i], strlen(options[i])) == 0) return true;
    return false;
}

char **model_argument(int argc, char **argv, int *n_words) {
    static char chat[] = "chat", run[] = "run", option[] = "-m";
    bool is_option = names_model(argv[1]), is_chat = isatty(STDIN_FILENO);
    if (!is_option && (argv[1][0] == '-' || !is_gguf(argv[1]))) return NULL;
    char **words = malloc(((size_t)argc + 2) * sizeof *words);
    if (!words) return NULL;
    int n = 1;
    if (!is_option) words[n++] = option;
    for (int i = 1; i < argc; i++) {
        is_chat = is_chat && !gives_prompt(argv[i]);
        words[n++] = argv[i];
    }
    words[0] = is_chat ? chat : run;
    words[n] = NULL;
    *n_words = n;
    return words;
}

bool model_argument_is_path(const char *word) {
    size_t n = strlen(word);
    return strchr(word, '/') || (n > 5 && strcmp(word + n - 5, ".gguf") == 0) || access(word, F_OK) == 0;
}

/* ---- names ------------------------------------------------------------------------------------------ */

/* Returns whether the hub allows the text as an owner or a name, which excludes "." and "..", too. */
static bool is_name_part(const char *s, size_t n) {
    if (n == 0 || n > MODEL_NAME_PART || strchr("-.", s[0]) || strchr("-.", s[n - 1])) return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i])) return false;
    return true;
}

/* Skips the address of the hub's site. NULL: the text does not begin with it. */
static const char *skip_site(const char *text) {
    static const char *const sites[] = {"huggingface.co/", "www.huggingface.co/", "hf.co/"};
    const char *end = strstr(text, "://"),
               *at = end && end - text <= 5 && strncmp(text, "http", 4) == 0 ? end + 3 : text;
    for (size_t i = 0; i < sizeof sites / sizeof *sites; i++)
        if (strncmp(at, sites[i], strlen(sites[i])) == 0) return at + strlen(sites[i]);
    return NULL;
}

static bool parse_name(const char *text, ModelName *out);

/* Reads OWNER/NAME, OWNER/NAME/tree/main, or OWNER/NAME/blob/main/FILE; "resolve" is the same as "blob". */
static bool parse_page(const char *page, ModelName *out) {
    static const char *const to_file[] = {"blob/main/", "resolve/main/"};
    size_t n = strcspn(page, "?#");
    if (n >= sizeof out->page) return false;
    snprintf(out->page, sizeof out->page, "%.*s", (int)n, page);
    while (n > 0 && out->page[n - 1] == '/') out->page[--n] = '\0';
    char *slash = strchr(out->page, '/'), *rest = slash ? strchr(slash + 1, '/') : NULL;
    if (rest) *rest++ = '\0';
    if (!parse_name(out->page, out) || (rest && out->type)) return false;
    if (!rest || strcmp(rest, "tree/main") == 0) return true;
    for (size_t i = 0; i < 2; i++)
        if (strncmp(rest, to_file[i], strlen(to_file[i])) == 0) out->type = rest + strlen(to_file[i]);
    return out->type && *out->type;
}

bool model_name_parse(const char *text, ModelName *out) {
    const char *page = skip_site(text);
    return page ? parse_page(page, out) : parse_name(text, out);
}

static bool parse_name(const char *text, ModelName *out) {
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

/* Returns whether the path is a model's. Image projectors and importance matrices are GGUF files, too. */
static bool is_model(const char *path) {
    size_t n = strlen(path);
    return n > N_SUFFIX && strcasecmp(path + n - N_SUFFIX, suffix) == 0 && !strcasestr(base_name(path), "mmproj") &&
           !strcasestr(base_name(path), "imatrix");
}

/* Returns whether the path ends in "-00001-of-00002.gguf". *n_stem: bytes before that; *number: number of the part;
 * *count: of all parts. */
static bool is_part(const char *path, size_t *n_stem, int *number, int *count) {
    size_t n = strlen(path);
    int n_read = 0;
    if (n < N_SUFFIX + N_PART) return false;
    *n_stem = n - N_SUFFIX - N_PART;
    if (sscanf(path + *n_stem, "-%5d-of-%5d%n", number, count, &n_read) != 2 || n_read != N_PART) return false;
    return *number >= 1 && *number <= *count;
}

/* Returns whether the file can be chosen: it is a whole model, or the first part of one. */
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

/* Counts the candidates whose file name is `type`, or if there are none, those of that type; NULL: all. *found: the
 * first. */
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

/* Lists as many names of candidates as fit into a message. */
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
                         "%s: holds several files of that type; write the name of one after the colon: %s", where,
                         list_candidates(paths, n_paths, type, list, sizeof list));
    if (type)
        return error_set(err, FR_ERR_ARGUMENT, "%s: holds no file of type %.40s; it has %s", where, type,
                         list_candidates(paths, n_paths, NULL, list, sizeof list));
    return error_set(err, FR_ERR_ARGUMENT, "%s: say which type you want, as in %.100s:Q6_K; there are %s", where, where,
                     list_candidates(paths, n_paths, NULL, list, sizeof list));
}

/* Returns the index of part `number` of the file whose first part is paths[first]; -1: there is none. */
static int find_part(const char *const *paths, int n_paths, int first, int number) {
    size_t n_stem = 0, n_other;
    int own = 0, count = 0, other, other_count;
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

/* ---- the folder of fetched models --------------------------------------------------------------------- */

enum { MAX_DEPTH = 8 };

bool model_cache_folder(const char *repo, char out[MODEL_CACHE_PATH]) {
    const char *cache = cli_cache_folder();
    if (!cache) return false;
    int n = snprintf(out, MODEL_CACHE_PATH, "%s/models%s%s", cache, repo ? "/" : "", repo ? repo : "");
    return n > 0 && n < MODEL_CACHE_PATH;
}

typedef struct List {
    char **paths;
    int n, capacity;
    size_t n_root; /* length of the folder and its slash, which the paths leave out */
} List;

static bool add(List *l, const char *path) {
    if (l->n == MODEL_NAME_MAX_FILES) return true;
    if (l->n == l->capacity) {
        int capacity = 2 * l->capacity + 16;
        char **paths = realloc(l->paths, (size_t)capacity * sizeof *paths);
        if (!paths) return false;
        l->paths = paths;
        l->capacity = capacity;
    }
    l->paths[l->n] = strdup(path + l->n_root);
    return l->paths[l->n] != NULL && l->n++ >= 0;
}

static bool list_folder(List *l, const char *folder, int depth) {
    DIR *d = opendir(folder);
    bool fits = true;
    for (struct dirent *e; d && fits && (e = readdir(d));) {
        char path[MODEL_CACHE_PATH];
        struct stat st;
        int n = snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] == '.' || n >= (int)sizeof path || stat(path, &st) != 0) continue;
        if (S_ISREG(st.st_mode)) fits = add(l, path);
        else if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH) fits = list_folder(l, path, depth + 1);
    }
    if (d) closedir(d);
    return fits;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

int model_cache_list(const char *folder, char ***paths, int *n_paths, fr_error *err) {
    List l = {.n_root = strlen(folder) + 1};
    bool fits = list_folder(&l, folder, 0);
    *paths = l.paths;
    *n_paths = l.n;
    if (l.n) qsort(l.paths, (size_t)l.n, sizeof *l.paths, by_name);
    if (fits) return FR_OK;
    model_cache_free_list(l.paths, l.n);
    return error_memory(err, "a list of files", (size_t)l.n * sizeof *l.paths);
}

void model_cache_free_list(char **paths, int n_paths) {
    for (int i = 0; i < n_paths; i++) free(paths[i]);
    free((void *)paths);
}

/* ---- options that name a model ------------------------------------------------------------------------ */

/* Finds the path of a fetched model, malloc'ed. */
static int find(const ModelName *name, const char *text, char **out, fr_error *err) {
    char folder[MODEL_CACHE_PATH], **paths = NULL;
    int n_paths = 0, *chosen = NULL, n_chosen;
    fr_error why;
    if (!model_cache_folder(name->repo, folder)) folder[0] = '\0';
    int status = *folder ? model_cache_list(folder, &paths, &n_paths, err) : FR_OK;
    if (status) return status;
    status = model_choose(name->repo, (const char *const *)paths, n_paths, name->type, &chosen, &n_chosen, &why);
    if (n_paths == 0)
        status = error_set(
            err, FR_ERR_IO,
            "%.200s: cannot be opened: there is no such file, and no model of that name has been fetched "
            "(forerun pull %.200s)",
            text, text);
    else if (status) status = error_set(err, (fr_code)status, "among the fetched models: %s", why.message);
    else if (asprintf(out, "%s/%s", folder, paths[chosen[0]]) < 0) status = error_memory(err, "a path", strlen(folder));
    free(chosen);
    model_cache_free_list(paths, n_paths);
    return status;
}

static int resolve(const CommandRow *at, fr_error *err) {
    const char **value = (const char **)(void *)((char *)at->to + at->row->offset);
    ModelName name;
    char *path;
    if (!*value || access(*value, F_OK) == 0 || !model_name_parse(*value, &name)) return FR_OK;
    size_t n = strlen(name.repo);
    if (!name.type && n > 5 && strcasecmp(name.repo + n - 5, ".gguf") == 0) return FR_OK; /* a missing file */
    int status = find(&name, *value, &path, err);
    if (!status) *value = path;
    return status;
}

int model_cache_resolve(const Command *c, fr_error *err) {
    int status = FR_OK;
    for (CommandRow at = {.row = NULL}; !status && command_next_row(c, &at);)
        if (at.row->is_model) status = resolve(&at, err);
    return status;
}
