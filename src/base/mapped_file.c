/* mapped_file.c - maps files, notices changes, and keeps the list in which a signal handler looks addresses up.
 *
 * The list is a table of fixed size, the only variable state that the library shares between its users: a handler can
 * take no lock, and an entry must not be freed under it. A writer takes an entry with a compare-and-swap, and its address
 * is published last and removed first. */
#include "base/mapped_file.h"

#include "base/input_file.h"
#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_ENTRIES = 64, PATH_BYTES = 200 };

typedef struct Entry {
    atomic_bool taken;
    _Atomic uintptr_t begin; /* 0: nothing is mapped here */
    _Atomic uintptr_t end;
    char path[PATH_BYTES];
} Entry;

static Entry entries[N_ENTRIES];

struct MappedFile {
    const void *bytes;
    size_t n_bytes;
    int fd; /* kept open: fstat then needs no path, which may lead to another file by now */
    struct stat opened;
    Entry *entry; /* NULL: the table was full */
    char path[];
};

/* ---- the list ------------------------------------------------------------------------------------ */

static void enter(MappedFile *f) {
    for (int i = 0; i < N_ENTRIES; i++) {
        bool is_taken = false;
        if (!atomic_compare_exchange_strong(&entries[i].taken, &is_taken, true)) continue;
        f->entry = &entries[i];
        snprintf(f->entry->path, sizeof f->entry->path, "%s", f->path);
        atomic_store(&f->entry->end, (uintptr_t)f->bytes + f->n_bytes);
        atomic_store(&f->entry->begin, (uintptr_t)f->bytes);
        return;
    }
}

static void leave(const MappedFile *f) {
    if (!f->entry) return;
    atomic_store(&f->entry->begin, 0);
    atomic_store(&f->entry->taken, false);
}

const char *mapped_file_at(const void *address) {
    for (int i = 0; i < N_ENTRIES; i++) {
        uintptr_t begin = atomic_load(&entries[i].begin), at = (uintptr_t)address;
        if (begin && at >= begin && at < atomic_load(&entries[i].end)) return entries[i].path;
    }
    return NULL;
}

/* ---- opening ------------------------------------------------------------------------------------- */

static int map(MappedFile *f, fr_error *err) {
    f->n_bytes = (size_t)f->opened.st_size;
    if (f->n_bytes == 0) return FR_OK;
    void *bytes = mmap(NULL, f->n_bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (bytes == MAP_FAILED) return error_set(err, FR_ERR_IO, "%s: cannot be mapped: %s", f->path, strerror(errno));
    f->bytes = bytes;
    enter(f);
    return FR_OK;
}

int mapped_file_open(MappedFile **out, const char *path, fr_error *err) {
    *out = NULL;
    size_t n_path = strlen(path) + 1;
    MappedFile *f = mem_calloc(1, sizeof *f + n_path);
    if (!f) return error_memory(err, "an open file", sizeof *f + n_path);
    memcpy(f->path, path, n_path);
    f->fd = -1;
    int status = input_file_open(path, &f->fd, &f->opened, err);
    if (status) f->fd = -1;
    else status = map(f, err);
    if (status) mapped_file_close(f);
    else *out = f;
    return status;
}

void mapped_file_close(MappedFile *f) {
    if (!f) return;
    leave(f);
    if (f->bytes) munmap((void *)(uintptr_t)f->bytes, f->n_bytes);
    if (f->fd >= 0) close(f->fd);
    mem_free(f);
}

const void *mapped_file_bytes(const MappedFile *f, size_t *n) {
    *n = f->n_bytes;
    return f->bytes;
}

void mapped_file_release(const void *at, size_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)at, end = begin + n;
    if (!mapped_file_at(at) || n == 0) return; /* other memory would lose what it holds */
    begin = (begin + page - 1) / page * page;  /* whole pages: their neighbours may be in use */
    end = end / page * page;
    if (begin < end) (void)madvise((void *)begin, end - begin, MADV_DONTNEED);
}

/* ---- changes ------------------------------------------------------------------------------------- */

static bool same_time(struct timespec a, struct timespec b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

/* Whether something else than a write explains a new change time (st_ctime): new owners, modes and links, or a new
 * name, after which the path leads elsewhere. A write whose modification time was set back has no such explanation. */
static bool is_explained(const MappedFile *f, const struct stat *now) {
    const struct stat *then = &f->opened;
    struct stat named;
    return now->st_nlink != then->st_nlink || now->st_mode != then->st_mode || now->st_uid != then->st_uid ||
           now->st_gid != then->st_gid || stat(f->path, &named) != 0 || named.st_dev != now->st_dev ||
           named.st_ino != now->st_ino;
}

int mapped_file_check(const MappedFile *f, fr_error *err) {
    struct stat now;
    if (!f) return FR_OK;
    if (fstat(f->fd, &now) != 0)
        return error_set(err, FR_ERR_IO, "%s: cannot be examined: %s", f->path, strerror(errno));
    if (now.st_size == f->opened.st_size && same_time(now.st_mtim, f->opened.st_mtim) &&
        (same_time(now.st_ctim, f->opened.st_ctim) || is_explained(f, &now)))
        return FR_OK;
    return error_set(
        err, FR_ERR_IO,
        "%s: changed while it was being read; write a new version beside it and rename it, and start again", f->path);
}
