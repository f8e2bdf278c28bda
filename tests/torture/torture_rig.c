/* torture_rig.c - arguments, folders, random numbers and the report of a torture program. */
#include "torture.h"

#include "base/system.h"
#include "base/error.h"

#include <errno.h>
#include <ftw.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SMOKE_RUNS = 100 };

static const char usage[] = "Usage: %s [--seconds N] [--seed N] [--only TEXT] [--program FILE] [--memory MIB]\n"
                            "--only: cases whose names contain TEXT; --program: the forerun that is attacked;\n"
                            "--memory: limit of its address space, 0: none, as sanitizers need.\n"
                            "Without arguments: a hundred runs with seed 1.\n";

static void parse(Torture *t, int argc, char **argv) {
    t->seconds = 60, t->seed = 1, t->memory_mib = 4096, t->is_smoke = argc < 2;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--seconds") == 0) t->seconds = atof(value);
        else if (strcmp(argv[i], "--seed") == 0) t->seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--only") == 0) t->only = value;
        else if (strcmp(argv[i], "--program") == 0) snprintf(t->program, sizeof t->program, "%s", value);
        else if (strcmp(argv[i], "--memory") == 0) t->memory_mib = atoll(value);
        else {
            fprintf(stderr, usage, argv[0]);
            exit(2);
        }
    }
}

static void make_folder(const char *path) {
    if (mkdir(path, 0777) == 0 || errno == EEXIST) return;
    fprintf(stderr, "%s: cannot be created: %s\n", path, strerror(errno));
    exit(2);
}

static volatile sig_atomic_t is_ended;

static void end(int signal_number) {
    (void)signal_number;
    is_ended = 1;
}

void torture_begin(Torture *t, const char *name, int argc, char **argv) {
    char self[TORTURE_PATH];
    *t = (Torture){.name = name};
    parse(t, argc, argv);
    snprintf(self, sizeof self, "%s", argv[0]);
    snprintf(t->tools, sizeof t->tools, "%s", dirname(dirname(self))); /* build/MODE/torture/NAME */
    if (!t->program[0]) snprintf(t->program, sizeof t->program, "%.480s/forerun", t->tools);
    signal(SIGTERM, end);
    t->random = t->seed * 0x9e3779b97f4a7c15u + 1;
    make_folder("build"), make_folder("build/torture");
    char *root = getcwd(NULL, 0); /* a cache folder is ignored unless its path is absolute */
    fr_assert(root && strlen(root) < TORTURE_PATH / 2);
    snprintf(t->folder, sizeof t->folder, "%s/build/torture/%s", root, name);
    snprintf(t->kit, sizeof t->kit, "%s/build/torture/%s/kit", root, name);
    snprintf(t->out, sizeof t->out, "%s/build/torture/%s/out", root, name);
    free(root);
    make_folder(t->folder), make_folder(t->kit), make_folder(t->out);
    folder_empty(t->kit), folder_empty(t->out);
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s: seed %llu, %s\n", name, (unsigned long long)t->seed, t->program);
    t->begin_s = clock_s();
}

bool torture_goes_on(const Torture *t) {
    if (is_ended) return false;
    bool has_time = t->is_smoke ? t->n_runs < SMOKE_RUNS : clock_s() - t->begin_s < t->seconds;
    return has_time && t->n_seen < TORTURE_MAX_FAULTS;
}

static bool is_new(Torture *t, const char *what_case, const char *fault) {
    char both[256];
    snprintf(both, sizeof both, "%.120s: %.120s", what_case, fault);
    for (int i = 0; i < t->n_seen; i++)
        if (strcmp(t->seen[i], both) == 0) return false;
    if (t->n_seen < TORTURE_MAX_FAULTS) t->seen[t->n_seen++] = strdup(both);
    return true;
}

bool torture_fault(Torture *t, const char *what_case, const char *fault, const Child *c) {
    t->n_faults++;
    if (!is_new(t, what_case, fault)) return false;
    if (!c) {
        printf("FAULT %s: %s\n", what_case, fault);
        return true;
    }
    Buf command = {.max_bytes = 1 << 16};
    child_print(c, &command);
    printf("FAULT %s: %s\n  %s\n  signal %d, exit status %d, %.1f s, %lld MiB; standard error: %.300s\n", what_case,
           fault, command.data, c->signal, c->rc, c->seconds, (long long)c->peak_mib,
           has_control_bytes(c->err.data, c->err.n) ? "(with control bytes)" : c->err.data);
    buf_free(&command);
    return true;
}

int torture_end(Torture *t) {
    printf("%s: %lld runs in %.0f s, %lld faults, %d different\n", t->name, (long long)t->n_runs,
           clock_s() - t->begin_s, (long long)t->n_faults, t->n_seen);
    for (int i = 0; i < t->n_seen; i++) {
        printf("  %s\n", t->seen[i]);
        free(t->seen[i]);
    }
    bool passed = t->n_faults == 0 && t->n_runs > 0;
    printf("[  %s  ] 1 test(s).\n", passed ? "PASSED" : "FAILED");
    return passed ? 0 : 1;
}

/* splitmix64, because the program's own generator is part of the code that is attacked. */
uint64_t torture_random(Torture *t) {
    uint64_t z = t->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t torture_below(Torture *t, uint64_t n) { return torture_random(t) % n; }

void torture_expand(const Torture *t, const char *text, char *out, size_t size) {
    size_t n = 0;
    for (const char *s = text; *s; s++) {
        const char *folder = *s != '%'     ? NULL
                             : s[1] == 'k' ? t->kit
                             : s[1] == 'o' ? t->out
                             : s[1] == 'f' ? t->tools
                                           : NULL;
        fr_assert(n + TORTURE_PATH < size);
        if (!folder) out[n++] = *s;
        else {
            for (s++; *folder; folder++) out[n++] = *folder == ' ' ? SPACE_IN_WORD : *folder;
        }
    }
    out[n] = '\0';
}

void torture_child(const Torture *t, Child *c, char *line) {
    static char cache[TORTURE_PATH + 32], home[TORTURE_PATH + 32], temporary[TORTURE_PATH + 32];
    snprintf(cache, sizeof cache, "XDG_CACHE_HOME=%s/cache", t->kit);
    snprintf(home, sizeof home, "HOME=%s", t->kit);
    snprintf(temporary, sizeof temporary, "TMPDIR=%s", t->out);
    child_init(c);
    c->words[0] = t->program;
    c->env[0] = cache, c->env[1] = home, c->env[2] = temporary, c->env[3] = "OPENBLAS_NUM_THREADS=1";
    child_words(c, line);
}

/* ---- files ---------------------------------------------------------------------------------------------------- */

bool file_read(const char *path, Buf *out) {
    char chunk[1 << 16];
    FILE *f = fopen(path, "rb");
    *out = (Buf){.max_bytes = 1 << 28};
    if (!f) return false;
    fr_assert(buf_append(out, "", 0));
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) fr_assert(buf_append(out, chunk, n));
    fclose(f);
    return true;
}

void file_write(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    bool written = f && fwrite(bytes, 1, n, f) == n;
    if (f) written = fclose(f) == 0 && written;
    if (written) return;
    fprintf(stderr, "%s: cannot be written: %s\n", path, strerror(errno));
    exit(2);
}

bool file_exists(const char *path) { return access(path, F_OK) == 0; }

static int remove_below(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)kind;
    return at->level == 0 ? 0 : remove(path);
}

void folder_empty(const char *path) { nftw(path, remove_below, 16, FTW_DEPTH | FTW_PHYS); }
