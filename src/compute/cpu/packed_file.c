/* packed_file.c - the form of packed weights in a file, and the checks before one is used.
 *
 * The problem. Packing reads a whole model and writes it again, at every start and in every process. The packed form is
 * the same for all kernel tables and both precisions of activations (kernels/pack.c), and a function of the model file
 * alone: so it can be kept. A mapping of it costs no copy, and processes that use the same model share its pages.
 *
 *     0     "FRPACKED"  version  (Header, below)
 *     4096  the matrices, in the order in which a forward reads them, as one block
 *           the embedding in the layout of the model's file, aligned to a cache line; not where it is the output matrix
 *
 * The header names nothing but the source and the hashes. Where each matrix lies follows from the model, by the same
 * code that lays them out in memory, so there is no offset in the file that could be wrong.
 *
 * Checks. A file is used only if its version, the source's size, time of modification and fingerprint, its own size,
 * and the hash of all its bytes are right. The fingerprint covers name, type and shape of every tensor and three
 * samples of its content: it finds a model that was replaced by another with its size and time, without reading all of
 * it. The hash of all bytes is worth its time: it is computed by all threads at the speed of memory, and reads in the
 * pages that the first forward needs. Without it, a damaged file would mean another text.
 *
 * A file is replaced by renaming, and whoever maps it checks it again around every forward (MappedFile), as the
 * reference backend does with the model's file. Proof: tests/compute/test_packed_file.c damages it everywhere. */
#include "compute/cpu/packed_file.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/files.h"
#include "base/os.h"
#include "base/threads.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

enum { HEAD_BYTES = 4096, SAMPLE_BYTES = 256 };

typedef struct Header {
    char magic[8];
    uint32_t version, head_bytes;
    uint64_t file_bytes;
    int64_t source_bytes, source_s, source_ns; /* size and time of modification */
    uint64_t source_hash;
    uint64_t content_hash; /* the hash of everything after the header */
    uint64_t head_hash;    /* the hash of the fields before this one */
} Header;

static const char magic[8] = {'F', 'R', 'P', 'A', 'C', 'K', 'E', 'D'};

static size_t aligned(size_t n) { return (n + MEM_ALIGN - 1) / MEM_ALIGN * MEM_ALIGN; }

/* ---- hashes -------------------------------------------------------------------------------------------- */

typedef struct ContentJob {
    const PackedContent *content;
    const bool *wanted; /* [chunks] NULL: all */
    uint64_t *hashes;   /* [chunks] */
} ContentJob;

int64_t packed_n_chunks(const PackedContent *c) {
    return (int64_t)((c->n + PACKED_CHUNK_BYTES - 1) / PACKED_CHUNK_BYTES);
}

static void hash_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const ContentJob *j = ctx;
    const PackedContent *c = j->content;
    int64_t begin, end;
    threads_split(packed_n_chunks(c), 1, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        size_t at = (size_t)i * PACKED_CHUNK_BYTES, n = c->n - at < PACKED_CHUNK_BYTES ? c->n - at : PACKED_CHUNK_BYTES;
        if (j->wanted && !j->wanted[i]) continue;
        j->hashes[i] = hash64(c->bytes + at, n, (uint64_t)i);
        if (c->is_last_use) mapped_file_release(c->bytes + at, n);
    }
}

void packed_hash_chunks(const PackedContent *c, const bool *wanted, uint64_t *hashes) {
    ContentJob j = {.content = c, .wanted = wanted, .hashes = hashes};
    threads_run_once(c->n_threads, hash_part, &j);
}

uint64_t packed_hash_of_chunks(const PackedContent *c, const uint64_t *hashes) {
    return hash64(hashes, (size_t)packed_n_chunks(c) * sizeof *hashes, c->n);
}

/* Computes the hash of the hashes of all chunks. Returns false if there is no memory. */
static bool hash_content(const PackedContent *c, uint64_t *out) {
    uint64_t *hashes = mem_calloc((size_t)packed_n_chunks(c) + 1, sizeof *hashes);
    if (!hashes) return false;
    packed_hash_chunks(c, NULL, hashes);
    *out = packed_hash_of_chunks(c, hashes);
    mem_free(hashes);
    return true;
}

static uint64_t hash_sample(const GgufTensor *t, size_t at, uint64_t hash) {
    size_t n = t->bytes - at < SAMPLE_BYTES ? t->bytes - at : SAMPLE_BYTES;
    return hash64((const char *)t->data + at, n, hash);
}

/* Returns a hash of the names, types, shapes and samples of all tensors. */
static uint64_t hash_source(const Gguf *g) {
    uint64_t hash = 0;
    for (int64_t i = 0; i < gguf_n_tensors(g); i++) {
        const GgufTensor *t = gguf_tensor(g, i);
        uint32_t type = (uint32_t)t->type;
        hash = hash64(t->name, strlen(t->name), hash);
        hash = hash64(t->dims, sizeof t->dims, hash64(&type, sizeof type, hash));
        hash = hash_sample(t, 0, hash);
        hash = hash_sample(t, t->bytes / 2, hash);
        hash = hash_sample(t, t->bytes > SAMPLE_BYTES ? t->bytes - SAMPLE_BYTES : 0, hash);
        mapped_file_release(t->data, t->bytes);
    }
    return hash;
}

/* ---- the header ------------------------------------------------------------------------------------------ */

static int describe_source(const Gguf *g, Header *h, fr_error *err) {
    struct stat st;
    memset(h, 0, sizeof *h);
    if (stat(gguf_path(g), &st) != 0)
        return error_set(err, FR_ERR_IO, "%.300s: cannot be examined: %s", gguf_path(g), strerror(errno));
    memcpy(h->magic, magic, sizeof magic);
    h->version = PACKED_FILE_VERSION;
    h->head_bytes = HEAD_BYTES;
    h->source_bytes = st.st_size;
    h->source_s = os_modified(&st).tv_sec;
    h->source_ns = os_modified(&st).tv_nsec;
    h->source_hash = hash_source(g);
    return FR_OK;
}

static uint64_t hash_head(const Header *h) { return hash64(h, offsetof(Header, head_hash), 0); }

static int refuse(const char *path, const char *why, fr_error *err) {
    return error_set(
        err, FR_ERR_FORMAT,
        "the packed weights %.280s %s, so they are not used; run 'forerun repack' again or delete the file", path, why);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

typedef struct Content {
    const void *matrices, *embedding;
    size_t matrix_bytes, embedding_bytes; /* every matrix fills whole cache lines */
} Content;

static bool write_content(FILE *f, const Content *c) {
    static const char zeros[MEM_ALIGN];
    size_t n_padding = aligned(c->embedding_bytes) - c->embedding_bytes;
    return fwrite(c->matrices, 1, c->matrix_bytes, f) == c->matrix_bytes &&
           (!c->embedding_bytes || fwrite(c->embedding, 1, c->embedding_bytes, f) == c->embedding_bytes) &&
           fwrite(zeros, 1, n_padding, f) == n_padding;
}

/* Reads back what was written, which is still in the system's cache, and writes the header before it. */
static int seal(ReplaceFile *r, Header *h, int n_threads, fr_error *err) {
    MappedFile *written;
    size_t n;
    int status = fflush(r->file) == 0
                     ? mapped_file_open(&written, r->temporary, err)
                     : error_set(err, FR_ERR_IO, "%.300s: cannot be written: %s", r->path, strerror(errno));
    if (status) return status;
    const char *bytes = mapped_file_bytes(written, &n);
    h->file_bytes = n;
    if (n <= HEAD_BYTES) status = error_set(err, FR_ERR_IO, "%.300s: cannot be written", r->path);
    else if (!hash_content(&(PackedContent){bytes + HEAD_BYTES, n - HEAD_BYTES, true, n_threads}, &h->content_hash))
        status = error_memory(err, "hashes", n / PACKED_CHUNK_BYTES);
    mapped_file_close(written);
    h->head_hash = hash_head(h);
    if (!status && (fseek(r->file, 0, SEEK_SET) != 0 || fwrite(h, sizeof *h, 1, r->file) != 1))
        status = error_set(err, FR_ERR_IO, "%.300s: cannot be written: %s", r->path, strerror(errno));
    return status;
}

int packed_file_write(const char *path, const Gguf *source, const void *matrices, size_t matrix_bytes,
                      const void *embedding, size_t embedding_bytes, int n_threads, fr_error *err) {
    static const char head[HEAD_BYTES];
    const Content content = {matrices, embedding, matrix_bytes, embedding_bytes};
    Header h;
    ReplaceFile r;
    int status = describe_source(source, &h, err);
    if (!status) status = gguf_check(source, err); /* this is the hash of what was packed */
    if (!status) status = replace_file_begin(&r, path, err);
    if (status) return status;
    if (fwrite(head, 1, HEAD_BYTES, r.file) != HEAD_BYTES || !write_content(r.file, &content))
        status = error_set(err, FR_ERR_IO, "%.300s: cannot be written: %s", path, strerror(errno));
    if (!status) status = seal(&r, &h, n_threads, err);
    return replace_file_end(&r, status, err);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static int check_head(const char *bytes, size_t n, const char *path, const Gguf *source, size_t expected, Header *h,
                      fr_error *err) {
    Header now;
    if (n < HEAD_BYTES) return refuse(path, "are damaged (too short)", err);
    memcpy(h, bytes, sizeof *h);
    if (memcmp(h->magic, magic, sizeof magic) != 0) return refuse(path, "are damaged (another kind of file)", err);
    if (h->version != PACKED_FILE_VERSION) return refuse(path, "were made by another version of forerun", err);
    if (h->head_hash != hash_head(h) || h->head_bytes != HEAD_BYTES) return refuse(path, "are damaged (the head)", err);
    int status = describe_source(source, &now, err);
    if (status) return status;
    if (h->source_bytes != now.source_bytes || h->source_s != now.source_s || h->source_ns != now.source_ns ||
        h->source_hash != now.source_hash)
        return refuse(path, "are those of another or an earlier model file", err);
    return h->file_bytes != n || n != expected ? refuse(path, "are damaged (the size)", err) : (int)FR_OK;
}

static int check(const char *bytes, size_t n, const char *path, const Gguf *source, size_t expected,
                 const PackedReader *reader, int n_threads, fr_error *err) {
    Header h;
    uint64_t content_hash;
    int status = check_head(bytes, n, path, source, expected, &h, err);
    if (status) {
        if (reader) packed_ranks_abstain(reader->comm);
        return status;
    }
    const PackedContent c = {bytes + HEAD_BYTES, n - HEAD_BYTES, reader != NULL, n_threads};
    if (!(reader ? packed_ranks_hash(reader, &c, h.content_hash, &content_hash) : hash_content(&c, &content_hash)))
        return error_memory(err, "hashes", n / PACKED_CHUNK_BYTES);
    if (reader && (status = comm_check(reader->comm, err))) return status;
    return content_hash == h.content_hash ? FR_OK : refuse(path, "are damaged (the content)", err);
}

int packed_file_open(MappedFile **out, const char *path, const Gguf *source, size_t matrix_bytes,
                     size_t embedding_bytes, const PackedReader *reader, int n_threads, const void **matrices,
                     const void **embedding, fr_error *err) {
    size_t n, expected;
    int status = mapped_file_open(out, path, err);
    if (status) {
        if (reader) packed_ranks_abstain(reader->comm);
        return status;
    }
    const char *bytes = mapped_file_bytes(*out, &n);
    if (!size_add(HEAD_BYTES + matrix_bytes, aligned(embedding_bytes), &expected)) expected = SIZE_MAX;
    status = check(bytes, n, path, source, expected, reader, n_threads, err);
    if (!status) status = mapped_file_check(*out, err);
    if (status) {
        mapped_file_close(*out);
        *out = NULL;
        return status;
    }
    *matrices = bytes + HEAD_BYTES;
    *embedding = bytes + HEAD_BYTES + matrix_bytes;
    return FR_OK;
}
