/* scratch_file.c - a folder of this process's own, made at the first call and removed at exit. */
#include "scratch_file.h"

#include "base/error.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "build/scratch-XXXXXX";

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

const char *scratch_file(const char *name, const uint8_t *bytes, size_t n) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", scratch_folder(), name);
    FILE *f = fopen(path, "wb");
    fr_assert(f && fwrite(bytes, 1, n, f) == n);
    fr_assert(fclose(f) == 0);
    return path;
}
