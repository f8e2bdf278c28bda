/* fetch.c - fetches a file in as many attempts as it takes, and checks its hash.
 *
 * The bytes are written to FILE.HASH.part (12 digits of the expected hash), which is renamed to FILE once its size and
 * hash are those of the hub's list. So FILE is always complete, and a part is only continued with the same content,
 * even if the repository has changed.
 *
 * Continuing. The header Range asks for the missing bytes. If-Range, with the ETag of the first answer (stored in
 * FILE.HASH.part.etag), makes a server whose file has changed send all of it. An answer 206 must begin where the part
 * ends. An answer 200 is the whole file, from a server that does not support ranges or has another version, and
 * replaces the part. The hash of the complete file decides.
 *
 * * At most six attempts in a row (hub_wait) may add less than MIN_PROGRESS bytes, and there are at most MAX_TRANSFERS,
 * so that a server which sends only a little each time is not asked for ever. */
#include "base/mem.h"
#include "base/os.h"
#include "base/progress.h"
#include "base/system.h"
#include "cli/model/fetch.h"
#include "cli/model_name.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { HASH_DIGITS = 12, READ_BYTES = 1 << 20, MIN_PROGRESS = 1 << 20, MAX_TRANSFERS = 1000 };
enum { FILE_HASH_TEXT = 65 }; /* a SHA-256 in hexadecimal digits, and '\0' */

typedef struct FileHash FileHash;

/* A file that is being fetched. */
typedef struct Part {
    const HubFile *file;
    char target[MODEL_CACHE_PATH], path[MODEL_CACHE_PATH], etag_path[MODEL_CACHE_PATH];
    char etag[200];
    int fd;
    int64_t n;      /* bytes in the part */
    FileHash *hash; /* the hash of these bytes */
    Progress bar;
    double begin_s; /* when this transfer began, with n_begin bytes in the part */
    int64_t n_begin;
    int write_errno; /* 0: no write has failed */
    bool is_too_long, is_out_of_place;
    fr_error *err;
} Part;

static int refuse(const char *path, const char *what, fr_error *err) {
    return error_set(err, FR_ERR_IO, "%.300s: %s: %s", path, what, strerror(errno));
}

int fetch_make_folder(const char *path, fr_error *err) {
    char part[MODEL_CACHE_PATH];
    for (size_t n = 1;; n++) {
        if (path[n] && path[n] != '/') continue;
        snprintf(part, sizeof part, "%.*s", (int)n, path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST) return refuse(part, "the folder cannot be created", err);
        if (!path[n]) return FR_OK;
    }
}

/* ---- hashes: SHA-256 and git's SHA-1 by libcrypto, which is loaded when needed, as libcurl in http.c ------- */

enum { SHA1_DIGITS = 40, SHA256_DIGITS = 64 };

struct FileHash {
    EVP_MD_CTX *context;
};

#define CRYPTO_FUNCTIONS(X) \
    X(EVP_MD_CTX_new) \
    X(EVP_MD_CTX_free) \
    X(EVP_sha1) \
    X(EVP_sha256) \
    X(EVP_DigestInit_ex) \
    X(EVP_DigestUpdate) \
    X(EVP_DigestFinal_ex)
static struct {
#define DECLARE(name) __typeof__(&(name)) name;
    CRYPTO_FUNCTIONS(DECLARE)
} lib;

static int load_library(fr_error *err) {
    static bool is_loaded;
    if (is_loaded) return FR_OK;
    void *library = os_library_open("crypto", 3);
    is_loaded = library != NULL;
#define LOAD(name) is_loaded = is_loaded && (*(void **)(void *)&lib.name = dlsym(library, #name)) != NULL;
    CRYPTO_FUNCTIONS(LOAD)
    if (is_loaded) return FR_OK;
    return error_set(
        err, FR_ERR_UNSUPPORTED,
        "checking the hash of a file needs OpenSSL 3, which cannot be loaded (%.200s); install the package "
        "libssl3",
        os_library_error());
}

bool file_hash_is_valid(const char *text) {
    size_t n = strlen(text);
    return (n == SHA1_DIGITS || n == SHA256_DIGITS) && strspn(text, "0123456789abcdef") == n;
}

static void file_hash_add(FileHash *h, const void *bytes, size_t n) {
    fr_assert(lib.EVP_DigestUpdate(h->context, bytes, n));
}

/* For a hash that is written as `expected`: 64 digits are a SHA-256 of the contents, 40 digits the id that git gives a
 * file of `bytes` bytes, the SHA-1 of "blob BYTES\0" and the contents. libcrypto is loaded for it. */
static int file_hash_open(FileHash **out, const char *expected, int64_t bytes, fr_error *err) {
    *out = NULL;
    int status = load_library(err);
    if (status) return status;
    bool is_git = strlen(expected) == SHA1_DIGITS;
    FileHash *h = mem_calloc(1, sizeof *h);
    if (h) h->context = lib.EVP_MD_CTX_new();
    if (!h || !h->context || !lib.EVP_DigestInit_ex(h->context, is_git ? lib.EVP_sha1() : lib.EVP_sha256(), NULL)) {
        if (h && h->context) lib.EVP_MD_CTX_free(h->context);
        mem_free(h);
        return error_memory(err, "a hash", sizeof *h);
    }
    char head[40];
    int n = snprintf(head, sizeof head, "blob %" PRId64, bytes) + 1; /* including the '\0' */
    if (is_git) file_hash_add(h, head, (size_t)n);
    *out = h;
    return FR_OK;
}

/* Writes the hash of what was added, in digits; frees h. */
static void file_hash_end(FileHash *h, char text[FILE_HASH_TEXT]) {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    text[0] = '\0';
    if (!h) return;
    fr_assert(lib.EVP_DigestFinal_ex(h->context, bytes, &n));
    for (unsigned i = 0; i < n && 2 * i + 3 <= FILE_HASH_TEXT; i++) snprintf(text + 2 * (size_t)i, 3, "%02x", bytes[i]);
    lib.EVP_MD_CTX_free(h->context);
    mem_free(h);
}

/* ---- hashes ------------------------------------------------------------------------------------------- */

/* Adds the first n bytes of a file to the hash. */
static int add_bytes(int fd, int64_t n, FileHash *hash, const char *path, Progress *bar, fr_error *err) {
    char *bytes = malloc(READ_BYTES);
    if (!bytes) return error_memory(err, "a hash", READ_BYTES);
    int status = FR_OK;
    for (int64_t at = 0; at < n && !status;) {
        int64_t want = n - at < READ_BYTES ? n - at : READ_BYTES;
        ssize_t got = pread(fd, bytes, (size_t)want, at);
        if (got <= 0) {
            if (got == 0) errno = EIO;
            status = refuse(path, "cannot be read", err);
            break;
        }
        file_hash_add(hash, bytes, (size_t)got);
        progress_update(bar, at += got);
    }
    free(bytes);
    return status;
}

/* Finds out whether the file is already there, with the hash of the list. */
static int check_target(const Part *p, bool *is_whole, fr_error *err) {
    struct stat st;
    char hash[FILE_HASH_TEXT];
    Progress bar;
    FileHash *h;
    *is_whole = false;
    if (stat(p->target, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size != p->file->bytes) return FR_OK;
    int fd = open(p->target, O_RDONLY | O_CLOEXEC), status = file_hash_open(&h, p->file->hash, p->file->bytes, err);
    progress_begin(&bar, stderr, "checking", p->file->bytes);
    if (!status && fd >= 0) {
        status = add_bytes(fd, st.st_size, h, p->target, &bar, err);
        file_hash_end(h, hash);
        *is_whole = !status && strcmp(hash, p->file->hash) == 0;
    } else if (!status) file_hash_end(h, hash);
    progress_end(&bar);
    if (fd >= 0) close(fd);
    return status;
}

/* ---- the part ------------------------------------------------------------------------------------------ */

static void read_etag(Part *p) {
    FILE *f = fopen(p->etag_path, "re");
    p->etag[0] = '\0';
    if (!f) return;
    if (!fgets(p->etag, sizeof p->etag, f) || p->etag[0] != '"' || strpbrk(p->etag, "\r\n")) p->etag[0] = '\0';
    fclose(f);
}

/* Failures are ignored: without an ETag, a changed file is only noticed by its hash. */
static void write_etag(const Part *p) {
    FILE *f = p->etag[0] ? fopen(p->etag_path, "we") : NULL;
    if (!f) {
        (void)unlink(p->etag_path);
        return;
    }
    (void)fputs(p->etag, f);
    (void)fclose(f);
}

/* Empties the part. */
static int start_over(Part *p) {
    char unused[FILE_HASH_TEXT];
    file_hash_end(p->hash, unused);
    p->hash = NULL;
    p->n = p->n_begin = 0;
    if (ftruncate(p->fd, 0) != 0) return refuse(p->path, "cannot be written", p->err);
    return file_hash_open(&p->hash, p->file->hash, p->file->bytes, p->err);
}

/* Opens the part of an earlier attempt, or an empty one, and hashes what it holds. */
static int open_part(Part *p) {
    struct stat st;
    p->fd = open(p->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (p->fd < 0 || fstat(p->fd, &st) != 0) return refuse(p->path, "cannot be written", p->err);
    if (st.st_size > p->file->bytes) return start_over(p);
    int status = file_hash_open(&p->hash, p->file->hash, p->file->bytes, p->err);
    progress_begin(&p->bar, stderr, "checking", st.st_size);
    if (!status) status = add_bytes(p->fd, st.st_size, p->hash, p->path, &p->bar, p->err);
    progress_end(&p->bar);
    p->n = st.st_size;
    read_etag(p);
    return status;
}

static int check_room(const Part *p) {
    struct statvfs fs;
    int64_t missing = p->file->bytes - p->n;
    if (fstatvfs(p->fd, &fs) != 0 || (double)fs.f_bavail * (double)fs.f_frsize >= (double)missing) return FR_OK;
    return error_set(
        p->err, FR_ERR_IO,
        "%.300s: %.1f MB are missing, and there is room for only %.1f MB on the disk; make room and run the "
        "command again, or set XDG_CACHE_HOME to a folder on another disk",
        p->target, (double)missing / 1e6, (double)fs.f_bavail * (double)fs.f_frsize / 1e6);
}

/* ---- a transfer ---------------------------------------------------------------------------------------- */

/* Checks that an answer begins where the part ends; an answer with the whole file replaces the part. */
static bool on_begin(void *user, const HttpReply *reply) {
    Part *p = user;
    bool goes_on = reply->status == 206 && reply->from == p->n && (reply->total < 0 || reply->total == p->file->bytes);
    p->is_out_of_place = reply->status == 206 && !goes_on;
    if (p->is_out_of_place || (reply->status == 200 && p->n > 0 && start_over(p))) return false;
    strcpy(p->etag, reply->etag);
    write_etag(p);
    return true;
}

static void show(Part *p) {
    char rate[40];
    double s = clock_s() - p->begin_s;
    if (s > 0.1) {
        snprintf(rate, sizeof rate, "%.1f MB/s", (double)(p->n - p->n_begin) / s / 1e6);
        progress_note(&p->bar, rate);
    }
    progress_update(&p->bar, p->n);
}

static bool on_bytes(void *user, const void *bytes, size_t n) {
    Part *p = user;
    p->is_too_long = (int64_t)n > p->file->bytes - p->n;
    for (size_t done = 0; done < n && !p->is_too_long;) {
        ssize_t wrote = pwrite(p->fd, (const char *)bytes + done, n - done, p->n);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
            p->write_errno = wrote < 0 ? errno : ENOSPC;
            return false;
        }
        file_hash_add(p->hash, (const char *)bytes + done, (size_t)wrote);
        done += (size_t)wrote;
        p->n += wrote;
    }
    show(p);
    return !p->is_too_long;
}

/* Reports that a write failed, as on a full disk; the part stays for the next attempt. */
static int refuse_write(const Part *p) {
    return error_set(p->err, FR_ERR_IO,
                     "%.300s: cannot be written: %s; what has arrived is kept, so make room and run the command again",
                     p->target, strerror(p->write_errno));
}

/* Makes one attempt. reply->status is 0 if the part had to be emptied. */
static int transfer(const Fetch *f, Part *p, const char *url, HttpReply *reply) {
    const HttpRequest request =
        {.url = url, .from = p->n, .if_etag = p->etag, .begin = on_begin, .bytes = on_bytes, .user = p};
    p->is_out_of_place = p->is_too_long = false;
    p->err->code = FR_OK;
    progress_begin(&p->bar, stderr, "fetching", p->file->bytes);
    progress_resume(&p->bar, p->n);
    p->begin_s = clock_s();
    p->n_begin = p->n;
    int status = http_get(f->hub->http, &request, reply, p->err);
    progress_end(&p->bar);
    if (!status && p->write_errno) status = refuse_write(p);
    if (!status && p->err->code) status = p->err->code; /* on_begin could not empty the part */
    if (status || !(p->is_out_of_place || reply->status == 416)) return status;
    *reply = (HttpReply){.is_interrupted = true, .why = "the server answered with a different range than requested"};
    return start_over(p);
}

static int refuse_size(const Part *p) {
    return error_set(p->err, FR_ERR_FORMAT,
                     "%.300s: the server sent %s than the %" PRId64
                     " bytes that it announced; they were removed: run the command again",
                     p->target, p->is_too_long ? "more" : "fewer", p->file->bytes);
}

/* Makes attempts until all bytes have arrived. */
static int receive(const Fetch *f, Part *p, const char *url) {
    HttpReply reply = {.status = 0};
    int64_t n_reached = p->n; /* bytes in the part when n_failed was last reset */
    for (int n_failed = 0, n_transfers = 1; p->n < p->file->bytes; n_transfers++) {
        int status = transfer(f, p, url, &reply);
        if (status) return status;
        if (p->is_too_long ||
            (p->n < p->file->bytes && !http_may_retry(&reply) && reply.status / 100 == 2 && !reply.why[0])) {
            (void)unlink(p->path);
            (void)unlink(p->etag_path);
            return refuse_size(p);
        }
        if (p->n == p->file->bytes) return FR_OK;
        n_failed++;
        if (p->n - n_reached >= MIN_PROGRESS) n_failed = 1, n_reached = p->n;
        if (!http_may_retry(&reply) || n_transfers == MAX_TRANSFERS || !hub_wait(&reply, n_failed))
            return hub_refuse(f->hub, f->repo, p->file->path, &reply, p->err);
    }
    return FR_OK;
}

/* ---- the end ------------------------------------------------------------------------------------------- */

static int put_in_place(Part *p) {
    char hash[FILE_HASH_TEXT];
    file_hash_end(p->hash, hash);
    p->hash = NULL;
    if (strcmp(hash, p->file->hash) != 0) {
        struct stat st;
        bool has_earlier = stat(p->target, &st) == 0;
        (void)unlink(p->path);
        (void)unlink(p->etag_path);
        return error_set(
            p->err, FR_ERR_FORMAT,
            "%.250s: what arrived has the hash %.16s... and not %.16s..., which the server announced; it was "
            "removed%s; run the command again",
            p->target, hash, p->file->hash, has_earlier ? ", and the earlier file stays as it was" : "");
    }
    if (fsync(p->fd) != 0) {
        p->write_errno = errno;
        return refuse_write(p);
    }
    if (rename(p->path, p->target) != 0) return refuse(p->target, "cannot be put in its place", p->err);
    (void)unlink(p->etag_path);
    return FR_OK;
}

static int fetch_part(const Fetch *f, Part *p) {
    Buf url = {.max_bytes = 16384};
    int status = open_part(p);
    if (!status) status = check_room(p);
    if (!status && !hub_file_url(f->hub, f->repo, f->revision, p->file->path, &url))
        status = error_memory(p->err, "an address", url.n);
    if (!status) status = receive(f, p, url.data);
    if (!status) status = put_in_place(p);
    buf_free(&url);
    if (p->fd >= 0) close(p->fd);
    char unused[FILE_HASH_TEXT];
    file_hash_end(p->hash, unused);
    return status;
}

int fetch_file(const Fetch *f, const HubFile *file, bool *was_there, fr_error *err) {
    Part p = {.file = file, .fd = -1, .err = err};
    int n = snprintf(p.target, sizeof p.target, "%s/%s", f->folder, file->path);
    if (n < 0 || n + HASH_DIGITS + 32 > MODEL_CACHE_PATH)
        return error_set(err, FR_ERR_IO, "%.300s: its path in the cache would be too long", file->path);
    snprintf(p.path, sizeof p.path, "%.4000s.%.*s.part", p.target, HASH_DIGITS, file->hash);
    snprintf(p.etag_path, sizeof p.etag_path, "%.4080s.etag", p.path);
    char folder[MODEL_CACHE_PATH];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(p.target, '/') - p.target), p.target);
    int status = fetch_make_folder(folder, err);
    if (!status) status = check_target(&p, was_there, err);
    return status || *was_there ? status : fetch_part(f, &p);
}
