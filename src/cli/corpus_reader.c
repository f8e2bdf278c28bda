#include "cli/corpus_reader.h"

#include "base/mem.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <zstd.h>

enum { MAX_DOCUMENT = 1 << 30, CHUNK = 1 << 16 };

typedef struct Reader {
    const char *path;
    const CorpusSink *sink;
    FILE *file;
    ZSTD_DStream *zstd; /* NULL: not compressed */
    bool is_jsonl;
    Buf text;       /* read and not handed on */
    int64_t n_read; /* of the file */
    int64_t n_lines;
} Reader;

static bool ends_with(const char *s, size_t n, const char *end) {
    size_t n_end = strlen(end);
    return n >= n_end && memcmp(s + n - n_end, end, n_end) == 0;
}

/* ---- documents ---------------------------------------------------------------------------------- */

static int piece(const Reader *r, const json_t *text, fr_error *err) {
    return r->sink->piece(r->sink->ctx, json_string_value(text), json_string_length(text), err);
}

static int end(const Reader *r, fr_error *err) { return r->sink->end(r->sink->ctx, r->n_read, err); }

static int messages(const Reader *r, const json_t *list, fr_error *err) {
    int rc = FR_OK;
    for (size_t i = 0; i < json_array_size(list) && !rc; i++) {
        const json_t *content = json_object_get(json_array_get(list, i), "content");
        if (!json_is_string(content))
            return error_set(err, FR_ERR_FORMAT, "has a message without a string \"content\"");
        rc = piece(r, content, err);
        if (!rc) rc = end(r, err);
    }
    return rc;
}

static int record(const Reader *r, const json_t *object, fr_error *err) {
    const json_t *text = json_object_get(object, "text"), *list = json_object_get(object, "messages");
    const json_t *prompt = json_object_get(object, "prompt"), *response = json_object_get(object, "response");
    if (json_is_array(list)) return messages(r, list, err);
    int rc;
    if (json_is_string(text))
        rc = piece(r, text, err);
    else if (json_is_string(prompt) && json_is_string(response)) {
        rc = piece(r, prompt, err);
        if (!rc) rc = piece(r, response, err);
    } else
        return error_set(err, FR_ERR_FORMAT,
                         "wants a string \"text\", or strings \"prompt\" and \"response\", or a list \"messages\"");
    return rc ? rc : end(r, err);
}

static int line(Reader *r, const char *text, size_t n, fr_error *err) {
    r->n_lines++;
    if (n == 0 || strspn(text, " \t\r") >= n) return FR_OK; /* followed by a newline or '\0' */
    json_error_t where;
    fr_error why;
    json_t *object = json_loadb(text, n, 0, &where);
    int rc = object ? record(r, object, &why) : error_set(&why, FR_ERR_FORMAT, "is not JSON: %s", where.text);
    json_decref(object);
    if (rc) error_set(err, rc, "%s: line %lld %s", r->path, (long long)r->n_lines, why.message);
    return rc;
}

/* Hands on the lines that are whole; at the end of the file, all. */
static int take(Reader *r, bool at_end, fr_error *err) {
    int rc = FR_OK;
    if (!r->is_jsonl) {
        if (!at_end) return FR_OK;
        rc = r->sink->piece(r->sink->ctx, r->text.n ? r->text.data : "", r->text.n, err);
        return rc ? rc : end(r, err);
    }
    size_t begin = 0;
    for (const char *newline; !rc && (newline = memchr(r->text.data + begin, '\n', r->text.n - begin));) {
        size_t next = (size_t)(newline - r->text.data) + 1;
        rc = line(r, r->text.data + begin, next - 1 - begin, err);
        begin = next;
    }
    if (at_end && !rc && begin < r->text.n) rc = line(r, r->text.data + begin, r->text.n - begin, err);
    memmove(r->text.data, r->text.data + begin, r->text.n - begin + 1);
    r->text.n -= begin;
    return rc;
}

/* ---- bytes -------------------------------------------------------------------------------------- */

static int keep(Reader *r, const char *bytes, size_t n, fr_error *err) {
    if (!buf_append(&r->text, bytes, n))
        return error_set(err, FR_ERR_MEMORY, "%s: a document has more than %d bytes, or memory ran out", r->path,
                         MAX_DOCUMENT);
    bool any_line = memchr(r->text.data + r->text.n - n, '\n', n);
    return r->is_jsonl && any_line ? take(r, false, err) : FR_OK;
}

/* Decompresses a chunk; *left is 0 where a frame of zstd is complete. */
static int decompress(Reader *r, const char *bytes, size_t n, size_t *left, fr_error *err) {
    char text[CHUNK];
    ZSTD_inBuffer in = {bytes, n, 0};
    int rc = FR_OK;
    for (bool full = false; !rc && (in.pos < in.size || full);) {
        ZSTD_outBuffer out = {text, sizeof text, 0};
        *left = ZSTD_decompressStream(r->zstd, &out, &in);
        if (ZSTD_isError(*left))
            return error_set(err, FR_ERR_FORMAT, "%s: is damaged: zstd says: %s", r->path, ZSTD_getErrorName(*left));
        full = out.pos == out.size;
        rc = keep(r, text, out.pos, err);
    }
    return rc;
}

static int read_all(Reader *r, fr_error *err) {
    static char chunk[CHUNK];
    size_t n, left = 0;
    int rc = buf_append(&r->text, "", 0) ? FR_OK : error_memory(err, "a document", 1);
    while (!rc && (n = fread(chunk, 1, sizeof chunk, r->file)) > 0) {
        r->n_read += (int64_t)n;
        rc = r->zstd ? decompress(r, chunk, n, &left, err) : keep(r, chunk, n, err);
    }
    if (rc) return rc;
    if (ferror(r->file)) return error_set(err, FR_ERR_IO, "%s: cannot be read: %s", r->path, strerror(errno));
    if (left) return error_set(err, FR_ERR_FORMAT, "%s: is cut off: zstd wants more", r->path);
    return take(r, true, err);
}

int corpus_read(const char *path, const CorpusSink *sink, fr_error *err) {
    size_t n = strlen(path);
    bool is_zstd = ends_with(path, n, ".zst");
    Reader r = {.path = path, .sink = sink, .text = {.max_bytes = MAX_DOCUMENT},
                .is_jsonl = ends_with(path, is_zstd ? n - 4 : n, ".jsonl")};
    r.file = fopen(path, "rb");
    if (!r.file) return error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    r.zstd = is_zstd ? ZSTD_createDStream() : NULL;
    int rc = is_zstd && !r.zstd ? error_memory(err, "zstd", 1) : read_all(&r, err);
    ZSTD_freeDStream(r.zstd);
    fclose(r.file);
    buf_free(&r.text);
    return rc;
}
