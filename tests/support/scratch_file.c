/* scratch_file.c - a folder of this process, made at the first call and removed at exit, whose files are links to
 * anonymous files (memfd); and one anonymous file without a link. Both are fast enough for a fuzzer. */
#include "scratch_file.h"

#include "base/error.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_FILES = 8 };

static char folder[] = "build/scratch-XXXXXX";
static struct {
    char path[256];
    int fd;
} files[MAX_FILES];
static int n_files;

static void remove_folder(void) {
    char path[512];
    DIR *dir = opendir(folder);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path);
    }
    if (dir) closedir(dir);
    rmdir(folder);
}

const char *scratch_folder(void) {
    static int is_made;
    if (!is_made) fr_assert(mkdtemp(folder));
    if (!is_made) atexit(remove_folder);
    is_made = 1;
    return folder;
}

/* Returns the number of the file, which is made if there is none of that name. */
static int find_file(const char *path) {
    char target[64];
    for (int i = 0; i < n_files; i++)
        if (strcmp(files[i].path, path) == 0) return i;
    fr_assert(n_files < MAX_FILES && strlen(path) < sizeof files[0].path);
    strcpy(files[n_files].path, path);
    files[n_files].fd = memfd_create("forerun-test", MFD_CLOEXEC);
    snprintf(target, sizeof target, "/proc/self/fd/%d", files[n_files].fd);
    fr_assert(files[n_files].fd >= 0 && symlink(target, path) == 0);
    return n_files++;
}

const char *scratch_file(const char *name, const uint8_t *bytes, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", scratch_folder(), name);
    int i = find_file(path);
    fr_assert(ftruncate(files[i].fd, 0) == 0);
    for (size_t done = 0; done < n;) {
        ssize_t got = pwrite(files[i].fd, bytes + done, n - done, (off_t)done);
        fr_assert(got > 0);
        done += (size_t)got;
    }
    return files[i].path;
}

const char *memory_file(const uint8_t *bytes, size_t n) {
    static int fd = -1;
    static char path[32];
    if (fd >= 0) close(fd); /* a mapping of the last one keeps its bytes */
    fd = memfd_create("forerun-test", MFD_CLOEXEC);
    fr_assert(fd >= 0);
    for (size_t done = 0; done < n;) {
        ssize_t got = write(fd, bytes + done, n - done);
        fr_assert(got > 0);
        done += (size_t)got;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return path;
}

const char *memory_file_of(const char *path, size_t skip) {
    static uint8_t bytes[1 << 18];
    FILE *f = fopen(path, "rb");
    fr_assert(f);
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    fr_assert(n > skip && n < sizeof bytes);
    return memory_file(bytes + skip, n - skip);
}
