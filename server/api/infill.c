/* infill.c - the prompt of llama.cpp's POST /infill: text between a prefix and a suffix, for models with tokens for it.
 *
 *     BOS, REPO name, FILE name text, FILE name text, FILE name, PRE prefix, SUF suffix, MID begin
 *
 * Other files (`input_extra`) come first, each with its name after the mark for files of a repository. For a vocabulary
 * without that mark they are separated by a line that says so. If they do not fit into the context, the first of them
 * are cut off: clients put first what matters least. */
#include "server/api/plan.h"

#include <stdlib.h>
#include <string.h>

enum { N_MARKS = 3 };

/* The marks before the prefix, the suffix and the middle, as families of models spell them. */
static const char *const fill_marks[][N_MARKS] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},
    {"<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "begin\xEF\xBD\x9C>",
     "<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "hole\xEF\xBD\x9C>",
     "<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "end\xEF\xBD\x9C>"},
    {"\xE2\x96\x81<PRE>", "\xE2\x96\x81<SUF>", "\xE2\x96\x81<MID>"},
};
/* The marks before the name of the repository, and before each file. */
static const char *const repo_marks[] = {"<|repo_name|>", "<|fim_repo|>", "<repo_name>", "<reponame>", "<fim-repo>"},
                         *const file_marks[] = {"<|file_sep|>", "<file_sep>"};

/* Returns the token of a mark; -1: the vocabulary has none. */
static int32_t find_mark(const ServedModel *m, const char *mark) {
    int32_t *ids = NULL, token = -1;
    int64_t n = 0;
    if (!fr_tokenize(m->model, mark, strlen(mark), FR_TOKENIZE_SPECIAL, &ids, &n, NULL) && n == 1 &&
        fr_token_is_special(m->model, ids[0]))
        token = ids[0];
    fr_free(ids);
    return token;
}

static int32_t find_any(const ServedModel *m, const char *const *marks, size_t n) {
    int32_t token = -1;
    for (size_t i = 0; i < n && token < 0; i++) token = find_mark(m, marks[i]);
    return token;
}

/* False: the vocabulary has no marks. */
static bool find_fill_marks(const ServedModel *m, int32_t marks[N_MARKS]) {
    for (size_t i = 0; i < sizeof fill_marks / sizeof *fill_marks; i++) {
        int n_found = 0;
        for (int k = 0; k < N_MARKS; k++) n_found += (marks[k] = find_mark(m, fill_marks[i][k])) >= 0;
        if (n_found == N_MARKS) return true;
    }
    return false;
}

/* Adds the tokens of a text, after a mark unless that is below 0. */
static int add_part(const ServedModel *m, int32_t mark, const char *text, unsigned flags, Prompt *to, ApiError *error) {
    int32_t *ids = NULL;
    int64_t n = 0;
    fr_error why;
    if (text && *text && fr_tokenize(m->model, text, strlen(text), flags, &ids, &n, &why))
        return api_refuse_error(error, "prompt", &why);
    int32_t *all = realloc(to->tokens, (size_t)(to->n + n + 1) * sizeof *all);
    if (all) {
        to->tokens = all;
        if (mark >= 0) all[to->n++] = mark;
        for (int64_t i = 0; i < n; i++) all[to->n++] = ids[i];
    }
    fr_free(ids);
    return all ? 0 : api_refuse(error, 500, NULL, NULL, "memory ran out");
}

static int check_extra(const json_t *extra, ApiError *error) {
    bool fits = !extra || json_is_array(extra);
    for (size_t i = 0; i < json_array_size(extra) && fits; i++) {
        const json_t *file = json_array_get(extra, i), *name = json_object_get(file, "filename");
        fits = json_is_string(json_object_get(file, "text")) && (!name || json_is_string(name));
    }
    return fits ? 0
                : api_refuse(error, 400, "invalid_type", "input_extra",
                             "'input_extra' must be a list of {\"filename\": TEXT, \"text\": TEXT}; 'text' is needed");
}

/* Adds the other files, and the mark that the file with the gap begins. */
static int add_extra(const ServedModel *m, const json_t *extra, Prompt *to, ApiError *error) {
    int32_t repo = find_any(m, repo_marks, sizeof repo_marks / sizeof *repo_marks),
            file = find_any(m, file_marks, sizeof file_marks / sizeof *file_marks);
    int status = repo >= 0 ? add_part(m, repo, "project\n", 0, to, error) : 0;
    for (size_t i = 0; i < json_array_size(extra) && !status; i++) {
        const json_t *item = json_array_get(extra, i);
        const char *name = json_string_value(json_object_get(item, "filename"));
        if (file < 0) status = add_part(m, -1, "\n\n--- another file ---\n\n", 0, to, error);
        if (file >= 0) status = add_part(m, file, name ? name : "file", 0, to, error);
        if (file >= 0 && !status) status = add_part(m, -1, "\n", 0, to, error);
        if (!status) status = add_part(m, -1, json_string_value(json_object_get(item, "text")), 0, to, error);
    }
    if (!status && file >= 0) status = add_part(m, file, "this file\n", 0, to, error);
    return status;
}

/* Puts what fits of the end of `extra` into *to, at the token `at`. A quarter of the context is left for the answer. */
static int insert(const ServedModel *m, const Prompt *extra, int64_t at, Prompt *to, ApiError *error) {
    int64_t room = m->n_ctx - m->n_ctx / 4 - to->n, n = room < 0 ? 0 : extra->n < room ? extra->n : room;
    if (n == 0) return 0;
    int32_t *all = realloc(to->tokens, (size_t)(to->n + n) * sizeof *all);
    if (!all) return api_refuse(error, 500, NULL, NULL, "memory ran out");
    memmove(all + at + n, all + at, (size_t)(to->n - at) * sizeof *all);
    memcpy(all + at, extra->tokens + extra->n - n, (size_t)n * sizeof *all);
    to->tokens = all;
    to->n += n;
    return 0;
}

/* Adds BOS, if the prompts of the model begin with it, and the parts of the file with the gap. */
static int add_file(const ServedModel *m, const FillText *f, const int32_t marks[N_MARKS], int64_t *n_bos, Prompt *to,
                    ApiError *error) {
    int32_t *bos = NULL;
    (void)fr_tokenize(m->model, "", 0, FR_TOKENIZE_PROMPT, &bos, n_bos, NULL);
    int status = *n_bos > 0 ? add_part(m, bos[0], NULL, 0, to, error) : 0;
    fr_free(bos);
    *n_bos = to->n;
    if (!status) status = add_part(m, marks[0], f->prefix, 0, to, error);
    if (!status) status = add_part(m, marks[1], f->suffix, 0, to, error);
    return status ? status : add_part(m, marks[2], f->begin, FR_TOKENIZE_SPECIAL, to, error);
}

int infill_add_prompt(ApiCall *call, const FillText *f) {
    const ServedModel *m = call->plan.model;
    int32_t marks[N_MARKS];
    int64_t n_bos = 0;
    Prompt extra = {.n = 0}, prompt = {.text = strdup(f->begin ? f->begin : "")};
    int status = prompt.text ? check_extra(f->extra, &call->error)
                             : api_refuse(&call->error, 500, NULL, NULL, "memory ran out");
    if (!status && !find_fill_marks(m, marks))
        status = api_refuse(&call->error, 400, "unsupported_parameter", "input_suffix",
                            "this model has no tokens for text between a prefix and a suffix");
    if (!status) status = add_file(m, f, marks, &n_bos, &prompt, &call->error);
    if (!status && json_array_size(f->extra) > 0) status = add_extra(m, f->extra, &extra, &call->error);
    if (!status) status = insert(m, &extra, n_bos, &prompt, &call->error);
    free(extra.tokens);
    if (!status) return plan_add_prompt(&call->plan, &prompt, &call->error);
    free(prompt.tokens);
    free(prompt.text);
    return status;
}
