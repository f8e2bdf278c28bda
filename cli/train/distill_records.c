/* distill_records.c - the records of `forerun distill-data`: the questions that it reads, and the file of answers, to
 * which it appends and which it compares with the questions when it continues after an interruption. */
#include "cli/train/training.h"

#include "base/hash.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static bool is_answer(const ChatMessage *m) { return m->role && strcmp(m->role, "assistant") == 0; }

/* Returns a hash of the questions of a record, which is the same before and after the record is answered. */
static uint64_t key_of(const Record *r) {
    if (r->kind == RECORD_PAIR) return hash64(r->prompt, strlen(r->prompt), 1);
    uint64_t h = 2;
    for (int i = 0; i < r->n_messages; i++) {
        const ChatMessage *m = &r->messages[i];
        if (m->role && !is_answer(m)) h = hash64(m->content, strlen(m->content), hash64(m->role, strlen(m->role), h));
    }
    return h;
}

int distill_next_answer(const Record *r, int from) {
    for (int i = from; i < r->n_messages; i++)
        if (is_answer(&r->messages[i])) return i;
    return from <= r->n_messages && !is_answer(&r->messages[r->n_messages - 1]) ? r->n_messages : -1;
}

/* Returns the text as a JSON string, without zero bytes, which readers of JSON lines refuse. NULL: memory ran out. */
static json_t *string_of(const char *text, size_t n) {
    Buf out = {.max_bytes = LINE_MAX_BYTES};
    bool fits = buf_append(&out, "", 0);
    for (size_t i = 0; i < n && fits; i++) fits = text[i] == '\0' || buf_append(&out, text + i, 1);
    json_t *string = fits ? json_stringn(out.data, out.n) : NULL;
    buf_free(&out);
    return string;
}

int distill_set_answer(Record *r, int i, const char *text, size_t n, const char *finish, bool is_lossy, fr_error *err) {
    json_t *answer = string_of(text, n), *object = r->object;
    const char *key = r->kind == RECORD_PAIR ? "response" : "content";
    if (r->kind == RECORD_CHAT) {
        json_t *list = json_object_get(r->object, "messages");
        if (i == r->n_messages) json_array_append_new(list, json_pack("{s:s}", "role", "assistant"));
        object = json_array_get(list, (size_t)i);
    }
    if (!answer || json_object_set_new(object, key, answer) ||
        json_object_set_new(object, "finish", json_string(finish)))
        return error_memory(err, "an answer", n);
    json_object_del(object, "lossy"); /* it belongs to the old answer */
    if (is_lossy && json_object_set_new(object, "lossy", json_true())) return error_memory(err, "an answer", n);
    if (i < r->n_messages) r->messages[i].content = json_string_value(answer);
    return FR_OK;
}

/* ---- the input ---------------------------------------------------------------------------------- */

/* Returns the length of the beginning of the text that becomes the prompt. */
static size_t beginning(const char *text, int n_words) {
    static const char answer[] = "\nASSISTANT:";
    const char *found = strstr(text, answer);
    if (found) return (size_t)(found - text) + sizeof answer - 1;
    size_t at = 0;
    for (int i = 0; i < n_words; i++) {
        at += strspn(text + at, " \n\t");
        at += strcspn(text + at, " \n\t");
    }
    return at;
}

int distill_next(LineReader *in, int n_words, Record *out, fr_error *err) {
    int got = record_next_question(in, out, err);
    if (got != 1 || n_words == 0 || out->kind != RECORD_TEXT) return got;
    json_t *prompt = json_stringn(out->text, beginning(out->text, n_words));
    if (!prompt || json_object_set_new(out->object, "prompt", prompt)) {
        record_free(out);
        return error_memory(err, "a prompt", 0);
    }
    json_object_del(out->object, "text");
    out->kind = RECORD_PAIR;
    out->text = NULL;
    out->prompt = json_string_value(prompt);
    return 1;
}

static int check_record(const Record *r, fr_error *err) {
    if (r->kind == RECORD_TEXT)
        return error_set(err, FR_ERR_FORMAT,
                         "has a \"text\", not a question: pass --begin-texts=N to let the model continue its first N "
                         "words, or use \"prompt\" or \"messages\"");
    if (r->kind == RECORD_TOKENS)
        return error_set(err, FR_ERR_FORMAT,
                         "has \"tokens\", which are not a question: use \"prompt\" or \"messages\"");
    for (int i = 0; i < r->n_messages; i++)
        if (!r->messages[i].role) return error_set(err, FR_ERR_FORMAT, "has a message without a string \"role\"");
    if (r->kind == RECORD_CHAT && is_answer(&r->messages[0]))
        return error_set(err, FR_ERR_FORMAT, "begins with a message of the assistant, which answers nothing");
    return FR_OK;
}

int distill_count(const char *path, int n_words, int64_t *n_records, fr_error *err) {
    LineReader *r;
    Record record;
    *n_records = 0;
    int status = line_reader_open(&r, path, false, LINE_MAX_BYTES, err);
    if (status) return status;
    while ((status = distill_next(r, n_words, &record, err)) == 1) {
        fr_error why;
        status = check_record(&record, &why);
        record_free(&record);
        if (status) {
            status = line_reader_refuse(r, &why, err);
            break;
        }
        ++*n_records;
    }
    line_reader_close(r);
    if (!status && *n_records == 0) status = error_set(err, FR_ERR_FORMAT, "%s: the file has nothing to answer", path);
    return status;
}

/* ---- earlier answers ------------------------------------------------------------------------------ */

/* Skips records of `in` up to and including the next one with that key. */
static int pass(LineReader *in, int n_words, uint64_t key, int64_t *n_passed, fr_error *err) {
    Record record;
    int status;
    while ((status = distill_next(in, n_words, &record, err)) == 1) {
        bool found = key_of(&record) == key;
        record_free(&record);
        ++*n_passed;
        if (found) return FR_OK;
    }
    return status ? status
                  : error_set(err, FR_ERR_MISMATCH,
                              "answers a question that the input does not have there, so the file belongs to another "
                              "input: pass another -o, or delete it");
}

/* Compares the answers with the input, record by record. *n_bytes counts only complete lines. */
static int compare(LineReader *old, LineReader *in, int n_words, int64_t *n_passed, int64_t *n_answered, off_t *n_bytes,
                   fr_error *err) {
    const char *line;
    size_t n;
    int got;
    while ((got = line_reader_next(old, &line, &n, err)) == 1) {
        Record record;
        fr_error why;
        bool is_whole = *n_bytes + (off_t)n < line_reader_n_read(old); /* whether a newline follows the line */
        int status = is_whole ? record_parse(&record, line, n, &why) : FR_OK;
        if (!is_whole && n > 0 && line[0] != '{' &&
            line[0] != '\0') /* '\0': some file systems leave zeros after a crash */
            status = error_set(&why, FR_ERR_FORMAT,
                               "is not the beginning of an answer, so the file belongs to "
                               "something else: pass another -o, or delete it");
        else if (!is_whole) break;
        uint64_t key = status ? 0 : key_of(&record);
        if (!status) record_free(&record);
        if (!status) status = pass(in, n_words, key, n_passed, &why);
        if (status) return line_reader_refuse(old, &why, err);
        *n_bytes += (off_t)n + 1;
        ++*n_answered;
    }
    return got < 0 ? got : FR_OK;
}

int distill_close(AnswerFile *f, int status, fr_error *err) {
    bool fine = f->fd < 0 || (fsync(f->fd) == 0) + (close(f->fd) == 0) == 2;
    f->fd = -1;
    if (fine || status) return status;
    return error_set(err, FR_ERR_IO, "%s: cannot be written: %s", f->path, strerror(errno));
}

int distill_continue(const char *path, LineReader *in, int n_words, int64_t *n_passed, int64_t *n_answered,
                     AnswerFile *out, fr_error *err) {
    *n_passed = *n_answered = 0;
    *out = (AnswerFile){.path = path, .fd = -1};
    if (access(path, F_OK) == 0) {
        LineReader *old;
        int status = line_reader_open(&old, path, false, LINE_MAX_BYTES, err);
        if (!status) status = compare(old, in, n_words, n_passed, n_answered, &out->n_bytes, err);
        line_reader_close(old);
        if (status) return status;
    }
    out->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (out->fd >= 0 && ftruncate(out->fd, out->n_bytes) == 0) return FR_OK;
    return distill_close(out, error_set(err, FR_ERR_IO, "%s: cannot be written: %s", path, strerror(errno)), err);
}

/* ---- the output --------------------------------------------------------------------------------- */

static bool write_all(int fd, const char *text, size_t n) {
    while (n > 0) {
        ssize_t n_written = write(fd, text, n);
        if (n_written < 0 && errno == EINTR) continue;
        if (n_written <= 0) return false;
        text += n_written;
        n -= (size_t)n_written;
    }
    return true;
}

int distill_append(AnswerFile *f, const Record *r, fr_error *err) {
    char *text = json_dumps(r->object, JSON_COMPACT);
    if (!text) return error_memory(err, "an answer", 1);
    size_t n = strlen(text);
    text[n] = '\n'; /* replaces the '\0', so that the line is one write */
    bool fine = write_all(f->fd, text, n + 1);
    int why = errno;
    free(text);
    if (fine) f->n_bytes += (off_t)n + 1;
    else if (ftruncate(f->fd, f->n_bytes) != 0) why = errno;
    return fine ? FR_OK : (int)error_set(err, FR_ERR_IO, "%s: cannot be written: %s", f->path, strerror(why));
}
