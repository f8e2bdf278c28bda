/* command_files.c - gathers the files that a command line names, and checks them before the command begins.
 *
 * Outputs are replaced by renaming (base/files.h). So an output that is also an input would not disturb the run, but
 * the user's input file would be lost at its end. */
#include "base/files.h"
#include "cli/command.h"
#include "draft/drafter.h"
#include "draft/drafter_file.h"
#include "gguf/gguf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct CommandFile {
    char *option, *path;
    bool is_output, may_be_stdout;
    bool is_of_drafter, is_implied;
} CommandFile;

struct CommandFiles {
    CommandFile *items;
    size_t n, capacity;
};

bool command_files_add(CommandFiles *files, const char *option, const char *path, bool is_output) {
    if (files->n == files->capacity) {
        size_t capacity = 2 * files->capacity + 16;
        CommandFile *items = realloc(files->items, capacity * sizeof *items);
        if (!items) return false;
        files->items = items;
        files->capacity = capacity;
    }
    CommandFile *file = &files->items[files->n++];
    *file = (CommandFile){.option = strdup(option), .path = strdup(path), .is_output = is_output};
    return file->option && file->path;
}

static void free_files(CommandFiles *files) {
    for (size_t i = 0; i < files->n; i++) {
        free(files->items[i].option);
        free(files->items[i].path);
    }
    free(files->items);
}

/* ---- gathering -------------------------------------------------------------------------------------- */

/* Returns the i-th value of a row of texts; NULL after the last. */
static const char *value_of(const CommandRow *at, int i) {
    const Option *row = at->row;
    const char *base = at->to;
    if (row->kind == OPTION_TEXTS)
        return i < *(const int *)(const void *)(base + row->n_offset)
                   ? ((const char *const *)(const void *)(base + row->offset))[i]
                   : NULL;
    if (i > 0 || !option_is_given(row, at->to)) return NULL;
    if (row->kind == OPTION_TEXT) return *(const char *const *)(const void *)(base + row->offset);
    return row->kind == OPTION_BUFFER ? base + row->offset : NULL;
}

/* Adds the other parts of a model that is split into several files. */
static bool add_parts(CommandFiles *files, const char *option, const char *first) {
    char path[GGUF_MAX_PATH];
    bool fits = true;
    for (int i = 1; i < gguf_split_count(first) && fits; i++)
        if (gguf_split_path(first, i, path)) fits = command_files_add(files, option, path, false);
    return fits;
}

/* Adds the file named by the n bytes at `path`, or each of several names that are joined by row->joined_by. */
static bool add_value(CommandFiles *files, const Option *row, const char *option, const char *path, size_t n) {
    char *copy = strndup(path, n), *at = copy;
    bool fits = copy != NULL;
    while (fits && at) {
        char *end = row->joined_by ? strchr(at, row->joined_by) : NULL;
        if (end) *end = '\0';
        fits = command_files_add(files, option, at, row->is_output);
        if (fits) files->items[files->n - 1].may_be_stdout = row->may_be_stdout;
        if (fits && !row->is_output) fits = add_parts(files, option, at);
        at = end ? end + 1 : NULL;
    }
    free(copy);
    return fits;
}

bool command_files_add_drafter(CommandFiles *files, const char *option, const char *spec) {
    char method[64], key[64], name[256];
    size_t n = strcspn(spec, ":");
    snprintf(method, sizeof method, "%.*s", n < sizeof method ? (int)n : 0, spec);
    const Option *options = drafter_option_table(method);
    bool fits = true;
    for (const char *pair = spec + n; options && *pair && fits; pair += strcspn(pair, ",")) {
        pair++; /* the colon or the comma before it */
        size_t n_key = strcspn(pair, "=,"), n_pair = strcspn(pair, ","), n_before = files->n;
        snprintf(key, sizeof key, "%.*s", n_key < sizeof key ? (int)n_key : 0, pair);
        const Option *row = n_key < n_pair ? options_find(options, key) : NULL;
        if (!row || !row->is_file) continue;
        snprintf(name, sizeof name, "%s=%s:%s", option, method, key);
        fits = add_value(files, row, name, pair + n_key + 1, n_pair - n_key - 1);
        for (size_t i = n_before; i < files->n; i++) files->items[i].is_of_drafter = true;
    }
    return fits;
}

static bool gather(const Command *c, CommandFiles *files) {
    bool fits = true;
    for (CommandRow at = {.row = NULL}; fits && command_next_row(c, &at);) {
        char option[96];
        const char *value;
        if (!at.row->is_file) continue;
        snprintf(option, sizeof option, "%s%s", at.row->is_argument ? "" : "--", at.row->key);
        for (int i = 0; fits && (value = value_of(&at, i)); i++)
            fits = add_value(files, at.row, option, value, strlen(value));
    }
    size_t n_named = files->n;
    fits = fits && (!c->files || c->files(files));
    for (size_t i = n_named; i < files->n; i++) files->items[i].is_implied = true;
    return fits;
}

/* ---- checks ------------------------------------------------------------------------------------------- */

static bool is_stdout(const CommandFile *f) { return f->may_be_stdout && strcmp(f->path, "-") == 0; }

static int check_distinct(const CommandFiles *files, size_t i_output, fr_error *err) {
    const CommandFile *output = &files->items[i_output];
    for (size_t i = 0; i < files->n; i++) {
        const CommandFile *other = &files->items[i];
        bool is_done = other->is_output && i <= i_output;                          /* compared before */
        bool is_own = other->is_output && other->is_implied && output->is_implied; /* the command chose both names */
        bool is_stdin = !other->is_output && strcmp(other->path, "-") == 0;
        if (is_done || is_own || is_stdin || is_stdout(other) || !replace_file_same(output->path, other->path))
            continue;
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s and %s are the same file, %.200s, which would be lost: choose another path for %s",
                         output->option, other->option, output->path, output->option);
    }
    return FR_OK;
}

/* Returns whether the output is a symbolic link at a name that the user did not write: somebody else may have guessed
 * the name. */
static bool is_foreign_link(const CommandFile *f) {
    struct stat st;
    return f->is_implied && lstat(f->path, &st) == 0 && S_ISLNK(st.st_mode);
}

static int check_writable(const CommandFile *output, fr_error *err) {
    fr_error why;
    if (is_foreign_link(output))
        return error_set(err, FR_ERR_IO, "%s: %.200s: is a symbolic link, which is not followed: remove it",
                         output->option, output->path);
    if (strcmp(output->path, "-") == 0)
        return error_set(err, FR_ERR_ARGUMENT, "%s cannot be written to standard output: name a file", output->option);
    int status = replace_file_check(output->path, &why);
    return status ? error_set(err, (fr_code)status, "%s: %s", output->option, why.message) : FR_OK;
}

static int check_output(const CommandFiles *files, size_t i, fr_error *err) {
    const CommandFile *output = &files->items[i];
    if (is_stdout(output)) return FR_OK;
    int status = check_distinct(files, i, err);
    return status ? status : check_writable(output, err);
}

static int check_readable(const CommandFile *input, fr_error *err) {
    if (!input->is_of_drafter || access(input->path, R_OK) == 0) return FR_OK;
    return error_set(err, FR_ERR_IO, "%s: %.300s: cannot be opened: %s", input->option, input->path, strerror(errno));
}

int command_check_files(const Command *c, fr_error *err) {
    CommandFiles files = {.n = 0};
    int status = gather(c, &files) ? FR_OK : (int)error_memory(err, "the names of files", files.n);
    for (size_t i = 0; i < files.n && !status; i++)
        status = files.items[i].is_output ? check_output(&files, i, err) : check_readable(&files.items[i], err);
    free_files(&files);
    return status;
}
