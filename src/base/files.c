/* files.c - opens regular files without waiting and names the kind of other files in errors, maps files and notices
 * when they change, and replaces files in one moment. Proof: tests/base/test_mapped_file.c,
 * tests/base/test_replace_file.c. */
#include "base/files.h"

#include "base/mem.h"
#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- input files --------------------------------------------------------------------------------------------- */

static const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a named pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

static int refuse_kind(const char *path, mode_t mode, const char *remedy, fr_error *err) {
    if (S_ISDIR(mode)) remedy = "give a file that is in it";
    return error_set(err, FR_ERR_IO, "%s: is not a regular file but %s; %s", path, kind_of(mode), remedy);
}

static int open_regular(const char *path, const char *remedy, int *fd, struct stat *st, fr_error *err) {
    bool found = stat(path, st) == 0; /* a device is not even opened */
    if (found && !S_ISREG(st->st_mode)) return refuse_kind(path, st->st_mode, remedy, err);
    *fd = found ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    if (*fd < 0 || fstat(*fd, st) != 0) {
        int status = error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
        if (*fd >= 0) close(*fd);
        return status;
    }
    if (S_ISREG(st->st_mode)) return FR_OK; /* for a regular file O_NONBLOCK changes nothing */
    close(*fd);
    return refuse_kind(path, st->st_mode, remedy, err);
}

int input_file_open(const char *path, int *fd, struct stat *st, fr_error *err) {
    return open_regular(path, "write its contents to a file and give that", fd, st, err);
}

/* Returns the number of the descriptor that the path names, or -1. */
static int named_descriptor(const char *path) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (strcmp(path, "/dev/stdin") == 0) return STDIN_FILENO;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(folders[i]);
        const char *digits = path + n;
        if (strncmp(path, folders[i], n) != 0 || *digits < '0' || *digits > '9') continue;
        char *end;
        long number = strtol(digits, &end, 10);
        return *end || number > INT_MAX ? -1 : (int)number;
    }
    return -1;
}

FILE *input_text_open(const char *path, fr_error *err) {
    int known = named_descriptor(path), fd = -1;
    struct stat st;
    if (known >= 0) fd = fcntl(known, F_DUPFD_CLOEXEC, 0);
    else if (strcmp(path, "/dev/null") == 0) fd = open(path, O_RDONLY | O_CLOEXEC);
    else if (open_regular(path, "give a regular file, or pass it as standard input: /dev/stdin", &fd, &st, err))
        return NULL;
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    if (f) return f;
    error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    return NULL;
}

/* ---- mapped files: the list in which a signal handler looks addresses up -------------------------------------- */

/* The list is a table of fixed size, because a handler can take no lock, and an entry must not be freed while a handler
 * reads it. A writer takes an entry with a compare-and-swap; its address is published last and removed first. */

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

/* ---- mapped files: opening ----------------------------------------------------------------------------------- */

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

/* ---- mapped files: changes ----------------------------------------------------------------------------------- */

static bool same_time(struct timespec a, struct timespec b) { return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec; }

/* Returns whether something other than a write explains a new change time (st_ctime): new owners, modes and links, or a
 * new name, after which the path leads elsewhere. A write whose modification time was set back has no such
 * explanation. */
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
    if (now.st_size == f->opened.st_size && same_time(os_modified(&now), os_modified(&f->opened)) &&
        (same_time(os_changed(&now), os_changed(&f->opened)) || is_explained(f, &now)))
        return FR_OK;
    return error_set(
        err, FR_ERR_IO,
        "%s: changed while it was being read; write a new version beside it and rename it, and start again", f->path);
}

/* ---- replaced files: the list of unfinished ones -------------------------------------------------------------- */

/* A new file is written to PATH.RANDOM.tmp (16 hexadecimal digits), synced and renamed, which replaces PATH in one
 * moment: a crash leaves the old file or the new one, never half of one.
 *
 * Others may be able to write to the folder, as to /tmp. So the temporary name is random and the file is created by
 * O_EXCL: what somebody has put there, a link above all, is never followed or written. (This is mkostemp, except that
 * the kernel applies the umask, which a library cannot read without a race with other threads.)
 *
 * A file that is replaced keeps its permissions and, where the system allows that, its owner. The folder is synced too;
 * without that the new name could be lost in a crash after the caller has removed what the file was made from. */

enum { MAX_OPEN = 16, MAX_TRIES = 100, MAX_NAME = 200 /* bytes of the file's name that the temporary name keeps */ };

/* The names of temporary files. Only the function that takes a name out of the list may use or free it. */
static _Atomic(char *) unfinished[MAX_OPEN];

static int note_unfinished(char *temporary) {
    for (int i = 0; i < MAX_OPEN; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&unfinished[i], &none, temporary)) return i;
    }
    return -1;
}

/* Takes the name out of the list; false if replace_file_abandon_all is using it now. */
static bool forget_unfinished(ReplaceFile *r) {
    char *own = r->temporary;
    bool is_ours = r->i_open < 0 || atomic_compare_exchange_strong(&unfinished[r->i_open], &own, NULL);
    r->i_open = -1;
    return is_ours;
}

void replace_file_abandon_all(void) {
    for (int i = 0; i < MAX_OPEN; i++) {
        char *temporary = atomic_exchange(&unfinished[i], NULL), *none = NULL;
        if (!temporary) continue;
        unlink(temporary);
        atomic_compare_exchange_strong(&unfinished[i], &none, temporary); /* back to the owner, which frees it */
    }
}

/* ---- replaced files: where the file is put -------------------------------------------------------------------- */

static size_t folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

/* "." or everything up to the last slash, malloc'ed; NULL: no memory. */
static char *folder_of(const char *path) {
    size_t n = folder_length(path);
    return n ? strndup(path, n) : strdup(".");
}

static int refuse(const char *path, const char *why, fr_error *err) {
    return error_set(err, FR_ERR_IO, "%.200s: cannot be written: %s", path, why);
}

/* Finds the path that is replaced, malloc'ed, and whether there is a file. Links at the end of the path are
 * followed. */
static int resolve(const char *path, char **target, struct stat *st, bool *is_there, fr_error *err) {
    struct stat link;
    *is_there = stat(path, st) == 0;
    if (!*is_there && errno != ENOENT) return refuse(path, strerror(errno), err);
    if (*is_there && S_ISDIR(st->st_mode)) return refuse(path, "it is a folder; name a file in it", err);
    if (*is_there && !S_ISREG(st->st_mode))
        return error_set(err, FR_ERR_IO, "%.200s: exists and is not a regular file; choose another path", path);
    if (!path[folder_length(path)]) return refuse(path, "the path ends without the name of a file", err);
    bool is_link = lstat(path, &link) == 0 && S_ISLNK(link.st_mode);
    if (is_link && !*is_there)
        return refuse(path, "it is a symbolic link to a file that does not exist; remove the link", err);
    *target = is_link ? realpath(path, NULL) : strdup(path);
    return *target ? FR_OK : error_set(err, FR_ERR_IO, "%.200s: cannot be resolved: %s", path, strerror(errno));
}

/* ---- replaced files: which file a path names ------------------------------------------------------------------ */

typedef struct Identity {
    bool is_known;
    dev_t device;
    ino_t inode;      /* that of the file or, if there is none yet, of its folder */
    const char *name; /* the name of a file that is not there yet; else "" */
} Identity;

static Identity identify(const char *path) {
    struct stat st;
    if (stat(path, &st) == 0) return (Identity){true, st.st_dev, st.st_ino, ""};
    char *folder = folder_of(path);
    bool is_known = folder && stat(folder, &st) == 0;
    free(folder);
    if (!is_known) return (Identity){.is_known = false};
    return (Identity){true, st.st_dev, st.st_ino, path + folder_length(path)};
}

bool replace_file_same(const char *a, const char *b) {
    Identity x = identify(a), y = identify(b);
    return x.is_known && y.is_known && x.device == y.device && x.inode == y.inode && strcmp(x.name, y.name) == 0;
}

/* ---- replaced files: writing ---------------------------------------------------------------------------------- */

/* Writes the folder of the target, 200 bytes of its name, 16 random digits and ".tmp". */
static bool make_name(const char *target, char *out, size_t size) {
    uint64_t random;
    if (!os_random(&random, sizeof random, true)) return false;
    int n_folder = (int)folder_length(target);
    snprintf(out, size, "%.*s%.*s.%016" PRIx64 ".tmp", n_folder, target, MAX_NAME, target + n_folder, random);
    return true;
}

/* Creates the temporary file beside the target. It is in the list before it exists. */
static int create_temporary(ReplaceFile *r, size_t size, mode_t mode) {
    int fd = -1;
    for (int i = 0; i < MAX_TRIES && fd < 0; i++) {
        if (!make_name(r->target, r->temporary, size)) return -1;
        r->i_open = note_unfinished(r->temporary);
        fd = open(r->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 && (!forget_unfinished(r) || errno != EEXIST)) return -1;
    }
    return fd;
}

/* Gives the file the permissions and the owner of the old one. Where the group cannot be kept, another group must not
 * get its rights. */
static bool take_over_mode(int fd, const struct stat *old) {
    bool is_same_group = fchown(fd, old->st_uid, old->st_gid) == 0 || fchown(fd, (uid_t)-1, old->st_gid) == 0;
    return fchmod(fd, old->st_mode & (is_same_group ? 0777 : 0707)) == 0;
}

static void release(ReplaceFile *r) {
    if (forget_unfinished(r)) free(r->temporary); /* else the program ends */
    free(r->target);
}

static int open_temporary(ReplaceFile *r, const struct stat *old, fr_error *err) {
    size_t room = strlen(r->target) + MAX_NAME + 32;
    r->temporary = malloc(room);
    if (!r->temporary) return error_memory(err, "a path", room);
    int fd = create_temporary(r, room, old ? 0600 : 0666);
    bool fine = fd >= 0 && (!old || take_over_mode(fd, old));
    r->file = fine ? fdopen(fd, "w+b") : NULL;
    if (r->file) return FR_OK;
    int status = error_set(err, FR_ERR_IO, "%.200s: cannot be created: %s", r->path, strerror(errno));
    if (fd >= 0) {
        unlink(r->temporary);
        close(fd);
    }
    return status;
}

int replace_file_begin(ReplaceFile *r, const char *path, fr_error *err) {
    struct stat st;
    bool is_there;
    *r = (ReplaceFile){.path = path, .i_open = -1};
    int status = resolve(path, &r->target, &st, &is_there, err);
    if (status) return status;
    status = open_temporary(r, is_there ? &st : NULL, err);
    if (status) release(r);
    return status;
}

/* Creates a temporary file and removes it, because permissions do not show that a file system such as /proc takes no
 * new files. */
static int try_to_create(const char *path, fr_error *err) {
    ReplaceFile r;
    int status = replace_file_begin(&r, path, err);
    if (status) return status;
    unlink(r.temporary);
    fclose(r.file);
    release(&r);
    return FR_OK;
}

int replace_file_check(const char *path, fr_error *err) {
    char *target = NULL;
    struct stat st;
    bool is_there;
    int status = resolve(path, &target, &st, &is_there, err);
    if (status) return status;
    char *folder = folder_of(target);
    if (!folder) status = error_memory(err, "a path", strlen(target));
    else if (stat(folder, &st) != 0) status = refuse(path, "its folder does not exist; create it", err);
    else if (faccessat(AT_FDCWD, folder, W_OK | X_OK, AT_EACCESS) != 0)
        status = refuse(path, "its folder may not be written; choose another one", err);
    else if (is_there && faccessat(AT_FDCWD, target, W_OK, AT_EACCESS) != 0)
        status = refuse(path, "the file is protected against writing; choose another path", err);
    free(folder);
    free(target);
    return status ? status : try_to_create(path, err);
}

/* Makes the renaming permanent. It is no failure if the file system cannot do that, or the folder cannot be read. */
static bool sync_folder(const char *target) {
    char *folder = folder_of(target);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool fine = fd < 0 || fsync(fd) == 0 || errno != EIO;
    if (fd >= 0) close(fd);
    free(folder);
    return fine;
}

int replace_file_end(ReplaceFile *r, int status, fr_error *err) {
    bool is_whole = !status && !ferror(r->file) && fflush(r->file) == 0 && fsync(fileno(r->file)) == 0;
    int why = errno; /* of the first failure */
    if (fclose(r->file) != 0 && is_whole) is_whole = false, why = errno;
    if (is_whole && rename(r->temporary, r->target) != 0) is_whole = false, why = errno;
    if (!is_whole) unlink(r->temporary);
    if (!is_whole && !status) status = refuse(r->path, strerror(why ? why : EIO), err);
    if (is_whole && !sync_folder(r->target))
        status = error_set(err, FR_ERR_IO, "%.200s: is written, but its folder cannot be synced: %s", r->path,
                           strerror(errno));
    release(r);
    return status;
}
