/* replace_file.c - writes PATH.RANDOM.tmp (16 hexadecimal digits), syncs it and renames it, which replaces PATH in one
 * moment: a crash leaves the old file or the new one, never half of one.
 *
 * The folder may be writable for others, such as /tmp. So the temporary name is random and the file is created by
 * O_EXCL: what somebody has put there, a link above all, is never followed or written. (This is mkostemp, except that
 * the kernel applies the umask, which a library cannot read without a race with other threads.)
 *
 * A file that is replaced keeps its permissions and, where the system allows that, its owner. The folder is synced too;
 * without that the new name could be lost in a crash after the caller has removed what the file was made from. */
#include "base/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_OPEN = 16, MAX_TRIES = 100, MAX_NAME = 200 /* bytes of the file's name that the temporary name keeps */ };

/* ---- unfinished files ------------------------------------------------------------------------------- */

/* The names of temporary files. Only whoever takes a name out of the list may use or free it. */
static _Atomic(char *) unfinished[MAX_OPEN];

static int note_unfinished(char *temporary) {
    for (int i = 0; i < MAX_OPEN; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&unfinished[i], &none, temporary)) return i;
    }
    return -1;
}

/* Takes the name out of the list. False: replace_file_abandon_all is using it now. */
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

/* ---- where the file is put --------------------------------------------------------------------------- */

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

/* The path that is replaced, malloc'ed, and whether there is a file: links at the end of the path are followed. */
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

/* ---- which file a path names ------------------------------------------------------------------------- */

typedef struct Identity {
    bool is_known;
    dev_t device;
    ino_t inode;      /* of the file, or of the folder in which it will be */
    const char *name; /* of a file that is not there yet; else "" */
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

/* ---- writing ---------------------------------------------------------------------------------------- */

/* The folder of the target, 200 bytes of its name, 16 random digits and ".tmp". */
static bool make_name(const char *target, char *out, size_t size) {
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return false;
    int n_folder = (int)folder_length(target);
    snprintf(out, size, "%.*s%.*s.%016" PRIx64 ".tmp", n_folder, target, MAX_NAME, target + n_folder, random);
    return true;
}

/* A new file beside the target, which is in the list before it exists. */
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

/* Makes a temporary file and removes it: permissions do not tell that a file system takes no new files, such as /proc. */
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

/* Makes the renaming last. A file system without it, or a folder that cannot be read, is no failure. */
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
