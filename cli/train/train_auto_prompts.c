/* train_auto_prompts.c - the first step of `forerun train auto`: reads the user's prompts, holds some of them out for
 * the measurement, checks the target, and writes the files that distill-data and bench read. */
#include "cli/train/train_auto.h"

#include "base/files.h"
#include "base/hash.h"
#include "cli/cli.h"
#include "train/drafter_trainer.h"
#include "train/records.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MIN_PROMPTS = 20, MAX_HELD_OUT = 20 };

/* Adds a prompt, unless there is an equal one already; takes ownership of both objects. A prompt is compared with all
 * others, because there are never many. */
static int add_prompt(Auto *a, json_t *question, json_t *test, fr_error *err) {
    char *text = test ? json_dumps(test, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    uint64_t hash = text ? hash64(text, strlen(text), 0) : 0;
    bool known = false;
    for (size_t i = 0; i < a->n_prompts && !known; i++) known = a->prompts[i].hash == hash;
    AutoPrompt *more = text && question && !known ? realloc(a->prompts, (a->n_prompts + 1) * sizeof *more) : NULL;
    free(text);
    if (more) {
        a->prompts = more;
        a->prompts[a->n_prompts++] = (AutoPrompt){.hash = hash, .question = question, .test = test};
        return FR_OK;
    }
    json_decref(question), json_decref(test);
    return known ? FR_OK : error_memory(err, "a prompt", 1);
}

/* Adds the question of a record. bench takes only the user's messages of a conversation. */
static int add_record(Auto *a, Record *r, fr_error *err) {
    if (r->kind == RECORD_PAIR)
        return add_prompt(a, json_pack("{s:s}", "prompt", r->prompt), json_pack("{s:s}", "prompt", r->prompt), err);
    if (r->kind != RECORD_CHAT)
        return error_set(err, FR_ERR_FORMAT, "has no prompt: write {\"prompt\": ...}, or {\"messages\": ...}");
    json_t *turns = json_array();
    for (int i = 0; i < r->n_messages; i++)
        if (r->messages[i].role && strcmp(r->messages[i].role, "user") == 0)
            json_array_append_new(turns, json_string(r->messages[i].content));
    json_t *test = json_pack("{s:o}", "turns", turns);
    if (json_array_size(turns) > 0) return add_prompt(a, json_incref(r->object), test, err);
    json_decref(test);
    return error_set(err, FR_ERR_FORMAT, "has no message of a user");
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static int read_file(Auto *a, const char *path, fr_error *err) {
    LineReader *reader;
    bool is_text = ends_with(path, ".txt");
    const char *line;
    size_t n;
    int got = line_reader_open(&reader, path, false, LINE_MAX_BYTES, err);
    if (got) return got;
    for (;;) {
        fr_error why;
        Record record = {0};
        got = is_text ? line_reader_next(reader, &line, &n, err) : record_next_question(reader, &record, err);
        if (got != 1) break;
        if (!is_text) got = add_record(a, &record, &why);
        else if (strspn(line, " \t\r") == n) continue;
        else got = add_prompt(a, json_pack("{s:s}", "prompt", line), json_pack("{s:s}", "prompt", line), &why);
        if (!is_text) record_free(&record);
        if (got) {
            got = line_reader_refuse(reader, &why, err);
            break;
        }
    }
    line_reader_close(reader);
    return got;
}

static int is_prompts(const struct dirent *entry) {
    return ends_with(entry->d_name, ".jsonl") || ends_with(entry->d_name, ".jsonl.zst") ||
           ends_with(entry->d_name, ".txt");
}

/* Reads a file, or the files of a folder in the order of their names. */
static int read_prompts(Auto *a, fr_error *err) {
    const char *path = a->args->prompts;
    struct stat st;
    struct dirent **entries;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode)) return read_file(a, path, err);
    int status = FR_OK, n = scandir(path, &entries, is_prompts, alphasort);
    if (n < 0) return error_set(err, FR_ERR_IO, "%s: the folder cannot be read", path);
    for (int i = 0; i < n; i++) {
        char file[AUTO_PATH_BYTES];
        snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
        if (!status) status = read_file(a, file, err);
        free(entries[i]);
    }
    free(entries);
    return status;
}

/* Holds out the prompts with the smallest hashes, so that the choice does not depend on their order. */
static int hold_out(Auto *a, fr_error *err) {
    if (a->n_prompts < MIN_PROMPTS)
        return error_set(err, FR_ERR_FORMAT,
                         "%s: has %zu different prompt%s, too few to learn from: collect at least %d, better some "
                         "hundred",
                         a->args->prompts, a->n_prompts, cli_plural((int64_t)a->n_prompts), MIN_PROMPTS);
    a->n_held_out = a->n_prompts / 10 < MAX_HELD_OUT ? a->n_prompts / 10 : MAX_HELD_OUT;
    for (size_t k = 0; k < a->n_held_out; k++) {
        AutoPrompt *least = NULL;
        for (size_t i = 0; i < a->n_prompts; i++)
            if (!a->prompts[i].is_held_out && (!least || a->prompts[i].hash < least->hash)) least = &a->prompts[i];
        least->is_held_out = true;
    }
    return FR_OK;
}

/* Writes the held-out prompts for bench, or the others for distill-data. */
static int write_prompts(const Auto *a, bool held_out, fr_error *err) {
    ReplaceFile out;
    int status = replace_file_begin(&out, a->paths[held_out ? AUTO_HELD_OUT : AUTO_PROMPTS], err);
    if (status) return status;
    for (size_t i = 0; i < a->n_prompts && !status; i++) {
        const AutoPrompt *p = &a->prompts[i];
        if (p->is_held_out != held_out) continue;
        if (!held_out) json_object_set(p->question, "answered_by", a->settings);
        char *line = json_dumps(held_out ? p->test : p->question, JSON_COMPACT);
        if (line) fprintf(out.file, "%s\n", line);
        else status = error_memory(err, "a prompt", 1);
        free(line);
    }
    return replace_file_end(&out, status, err);
}

/* Refuses a target that cannot be trained for, which train would do after hours of answering, and makes the settings
 * that determine an answer. */
static int read_target(Auto *a, fr_error *err) {
    Gguf *g;
    GgufString text;
    FrozenTarget target;
    int status = gguf_open(&g, a->args->model, err);
    if (status) return status;
    a->chat = !a->args->raw && gguf_get_string(g, "tokenizer.chat_template", &text);
    status = frozen_open(&target, g, 1, a->args->n_threads ? a->args->n_threads : threads_n_physical_cores(), err);
    if (!status) {
        char fingerprint[20];
        int32_t n_ctx = target.model->hparams.n_ctx_train;
        snprintf(fingerprint, sizeof fingerprint, "%016llx",
                 (unsigned long long)drafter_target_fingerprint(target.model));
        a->length = n_ctx < 256 ? n_ctx : 256;
        a->settings = json_pack("{s:s, s:i, s:f, s:b}", "target", fingerprint, "tokens", a->args->n_tokens, "temp",
                                a->args->temperature, "chat", (int)a->chat);
        if (!a->settings) status = error_memory(err, "the settings", 1);
        frozen_close(&target);
    }
    gguf_close(g);
    return status;
}

/* Refuses answers that were generated with other settings, or with --force deletes them and what was learned from
 * them. */
static int check_answers(const Auto *a, fr_error *err) {
    LineReader *reader;
    const char *line;
    size_t n;
    if (access(a->paths[AUTO_ANSWERS], F_OK) != 0) return FR_OK;
    int got = line_reader_open(&reader, a->paths[AUTO_ANSWERS], false, LINE_MAX_BYTES, err);
    if (got) return got;
    got = line_reader_next(reader, &line, &n, err);
    json_t *first = got == 1 ? json_loadb(line, n, 0, NULL) : NULL;
    bool differs = first && !json_equal(json_object_get(first, "answered_by"), a->settings);
    json_decref(first);
    line_reader_close(reader);
    if (got < 0 || !differs) return got < 0 ? got : FR_OK;
    if (!a->args->replaces)
        return error_set(err, FR_ERR_ARGUMENT,
                         "%s: these answers are of another target, or were generated with another -n, --temp or --raw: "
                         "pass --force to delete them, or choose another path for -o",
                         a->paths[AUTO_ANSWERS]);
    unlink(a->paths[AUTO_ANSWERS]), unlink(a->paths[AUTO_CHECKPOINT]);
    return FR_OK;
}

int auto_prepare(Auto *a, fr_error *err) {
    int status = read_prompts(a, err);
    if (!status) status = hold_out(a, err);
    if (!status) status = read_target(a, err);
    if (!status) status = check_answers(a, err);
    if (!status) status = write_prompts(a, true, err);
    if (!status) status = write_prompts(a, false, err);
    return status;
}
