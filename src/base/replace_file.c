/* replace_file.c - writes PATH.PID.tmp, syncs it and renames it, which replaces PATH in one moment: a crash leaves the
 * old file or the new one, never half of one. */
#include "base/replace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int replace_file_begin(ReplaceFile *r, const char *path, fr_error *err) {
    struct stat st;
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return error_set(err, FR_ERR_IO, "%.200s: exists and is not a regular file; choose another path", path);
    size_t room = strlen(path) + 32;
    *r = (ReplaceFile){.path = path, .temporary = malloc(room)};
    if (!r->temporary) return error_memory(err, "a path", room);
    snprintf(r->temporary, room, "%s.%ld.tmp", path, (long)getpid());
    int fd = open(r->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    r->file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (r->file) return FR_OK;
    int status = error_set(err, FR_ERR_IO, "%.200s: cannot be created: %s", path, strerror(errno));
    if (fd >= 0) close(fd);
    free(r->temporary);
    return status;
}

int replace_file_end(ReplaceFile *r, int status, fr_error *err) {
    bool kept = !status && fflush(r->file) == 0 && fsync(fileno(r->file)) == 0;
    kept = fclose(r->file) == 0 && kept && rename(r->temporary, r->path) == 0;
    if (!kept && !status) status = error_set(err, FR_ERR_IO, "%.200s: cannot be written: %s", r->path, strerror(errno));
    if (!kept) unlink(r->temporary);
    free(r->temporary);
    return status;
}
