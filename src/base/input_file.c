/* input_file.c - opens regular files without waiting, and says of others what they are. */
#include "base/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *kind_of(mode_t mode) {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a named pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return S_ISCHR(mode) || S_ISBLK(mode) ? "a device" : "something else";
}

static int refuse(const char *path, mode_t mode, const char *remedy, fr_error *err) {
    if (S_ISDIR(mode)) remedy = "give a file that is in it";
    return error_set(err, FR_ERR_IO, "%s: is not a regular file but %s; %s", path, kind_of(mode), remedy);
}

static int open_regular(const char *path, const char *remedy, int *fd, struct stat *st, fr_error *err) {
    bool found = stat(path, st) == 0; /* a device is not even opened */
    if (found && !S_ISREG(st->st_mode)) return refuse(path, st->st_mode, remedy, err);
    *fd = found ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY) : -1;
    if (*fd < 0 || fstat(*fd, st) != 0) {
        int status = error_set(err, FR_ERR_IO, "%s: cannot be opened: %s", path, strerror(errno));
        if (*fd >= 0) close(*fd);
        return status;
    }
    if (S_ISREG(st->st_mode)) return FR_OK; /* for a regular file O_NONBLOCK changes nothing */
    close(*fd);
    return refuse(path, st->st_mode, remedy, err);
}

int input_file_open(const char *path, int *fd, struct stat *st, fr_error *err) {
    return open_regular(path, "write its contents to a file and give that", fd, st, err);
}

/* The number of the descriptor that the path names, or -1. */
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
