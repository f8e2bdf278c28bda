/* line_history.c - a file of typed lines.
 *
 * Each line is appended when it is typed, in one write, so that several sessions share the file and a session that is
 * killed loses nothing. When a session finds more than twice LINE_HISTORY_MAX lines, it replaces the file by the last of
 * them. The file is what its user typed to a model, so nobody else may read it. */
#include "cli/chat/line_history.h"

#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILE_BYTES = 16 << 20 };

/* Creates each folder of the path that is missing, for the user alone. */
static bool make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool exists = mkdir(path, 0700) == 0 || errno == EEXIST;
        *slash = '/';
        if (!exists) return false;
    }
    return true;
}

const char *line_history_path(void) {
    static char path[4096];
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    bool given = state && state[0] == '/'; /* the XDG standard: a relative path is ignored */
    if (!given && (!home || home[0] != '/')) return NULL;
    int n = snprintf(path, sizeof path, "%s%s/forerun/chat_history", given ? state : home,
                     given ? "" : "/.local/state");
    return n > 0 && (size_t)n < sizeof path && make_folders(path) ? path : NULL;
}

/* The file where it is a regular one of this user; -1: it is not. */
static int open_file(const char *path, int flags, struct stat *st) {
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0600);
    if (fd < 0) return -1;
    if (fstat(fd, st) == 0 && S_ISREG(st->st_mode) && st->st_uid == geteuid()) return fd;
    close(fd);
    return -1;
}

/* The end of the file as a string, malloc'ed; NULL: there is none. */
static char *read_end(const char *path) {
    struct stat st;
    int fd = open_file(path, O_RDONLY, &st);
    if (fd < 0) return NULL;
    off_t skipped = st.st_size > MAX_FILE_BYTES ? st.st_size - MAX_FILE_BYTES : 0;
    size_t size = (size_t)(st.st_size - skipped), n = 0;
    char *text = malloc(size + 1);
    ssize_t got;
    while (text && n < size && (got = pread(fd, text + n, size - n, skipped + (off_t)n)) > 0) n += (size_t)got;
    close(fd);
    if (text) text[n] = '\0';
    return text;
}

/* The last LINE_HISTORY_MAX lines of the text; *n_lines: how many it has. */
static char *last_lines(char *text, int *n_lines) {
    size_t n = strlen(text);
    char *begin = text;
    *n_lines = 0;
    for (size_t i = n; i-- > 0;) {
        if (text[i] != '\n' || i + 1 == n) continue;
        if (++*n_lines == LINE_HISTORY_MAX) begin = text + i + 1;
    }
    *n_lines += n > 0;
    return begin;
}

static void replace(const char *path, const char *text) {
    ReplaceFile file;
    fr_error err;
    if (replace_file_begin(&file, path, &err)) return;
    fputs(text, file.file);
    (void)replace_file_end(&file, FR_OK, &err);
}

void line_history_read(const char *path, void (*add)(void *user, const char *line), void *user) {
    char *text = read_end(path);
    if (!text) return;
    int n_lines;
    char *line = last_lines(text, &n_lines);
    if (n_lines > 2 * LINE_HISTORY_MAX) replace(path, line);
    while (*line) {
        char *end = strchrnul(line, '\n'), ended = *end;
        *end = '\0';
        if (*line) add(user, line);
        line = ended ? end + 1 : end;
    }
    free(text);
}

void line_history_append(const char *path, const char *line) {
    struct stat st;
    char *text;
    int n = asprintf(&text, "%s\n", line);
    if (n < 0) return;
    int fd = open_file(path, O_WRONLY | O_APPEND | O_CREAT, &st);
    if (fd >= 0) {
        ssize_t written = write(fd, text, (size_t)n);
        (void)written; /* a full disk loses the line */
        close(fd);
    }
    free(text);
}
