/* alloc_sweep.c - makes allocations of every command fail, with fail_malloc.so: only the k-th, all from the k-th on, or
 * each with some probability.
 *
 * Each run must end with 0 and the same output as without a failure, or with another status, an error message, the old
 * output files and no temporary file. In round i a command gets the i-th of all its k in an order that follows from the
 * seed, so that enough time covers every k once in each mode. */
#include "jobs.h"

#include "base/error.h"
#include "train/dataset.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const modes[] = {"once", "from", "random"};

typedef struct Sweep {
    bool is_sound;
    uint64_t n_allocations;
    JobResult result;
} Sweep;

/* Adds the variables of fail_malloc.c; k 0: nothing fails. */
static void arm(const Torture *t, Child *c, uint64_t k, const char *how, uint64_t how_seed, const char *counter) {
    static char preload[TORTURE_PATH + 64], at[64], mode[64], seed[64], count[2 * TORTURE_PATH];
    int n = 0;
    while (c->env[n]) n++;
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s/torture/fail_malloc.so", t->tools);
    snprintf(at, sizeof at, "FAIL_MALLOC_AT=%llu", (unsigned long long)k);
    snprintf(mode, sizeof mode, "FAIL_MALLOC_MODE=%s", how);
    snprintf(seed, sizeof seed, "FAIL_MALLOC_SEED=%llu", (unsigned long long)how_seed);
    snprintf(count, sizeof count, "FAIL_MALLOC_COUNT=%s", counter ? counter : "");
    c->env[n++] = preload, c->env[n++] = at, c->env[n++] = mode, c->env[n++] = seed;
    c->env[n++] = counter ? count : NULL;
    c->env[n] = NULL;
}

/* Returns the number of allocations in an undisturbed run. */
static uint64_t count_allocations(const Torture *t, const Job *j) {
    char line[4096], path[TORTURE_PATH + 32];
    uint64_t n = 0;
    Child c;
    Buf got;
    snprintf(path, sizeof path, "%s/count", t->folder);
    file_write(path, &n, sizeof n);
    job_prepare(t, j);
    job_child(t, j, line, sizeof line, &c);
    arm(t, &c, 0, "once", 0, path);
    child_run(&c);
    fr_assert(file_read(path, &got) && got.n == sizeof n);
    memcpy(&n, got.data, sizeof n);
    buf_free(&got);
    child_free(&c);
    return n;
}

static void attack(Torture *t, const Job *j, const Sweep *s, uint64_t k, const char *how) {
    char line[4096];
    Child c;
    job_prepare(t, j);
    job_child(t, j, line, sizeof line, &c);
    arm(t, &c, k, how, torture_below(t, 1000000), NULL);
    child_run(&c);
    t->n_runs++;
    const char *fault = child_fault(&c);
    if (!fault) fault = job_fault(t, j, &s->result, &c);
    if (fault) torture_fault(t, j->name, fault, &c);
    child_free(&c);
}

static void sweep_round(Torture *t, Sweep *sweeps, uint64_t round) {
    const char *how = modes[round % 3];
    for (int i = 0; i < jobs_count() && torture_goes_on(t); i++) {
        const Job *j = jobs_get(i);
        Sweep *s = &sweeps[i];
        if (t->only && !strstr(j->name, t->only)) continue;
        if (j->is_slow && (t->is_smoke || round % 16 != 1)) continue;
        if (!s->result.out.data) {
            s->is_sound = job_reference(t, j, &s->result);
            s->n_allocations = count_allocations(t, j);
        }
        if (!s->is_sound || s->n_allocations == 0) continue;
        uint64_t n = s->n_allocations;
        uint64_t k = (uint64_t)permutation_at(t->seed + (uint64_t)i, (uint32_t)(round / 3 / n), (int64_t)n,
                                              (int64_t)(round / 3 % n)) +
                     1;
        /* Random failures: from every second allocation to about one per run. */
        if (round % 3 == 2) k = 2 + (n >> torture_below(t, 64 - (uint64_t)__builtin_clzll(n)));
        attack(t, j, s, k, how);
    }
}

int main(int argc, char **argv) {
    Torture t;
    torture_begin(&t, "alloc_sweep", argc, argv);
    torture_make_kit(&t);
    t.memory_mib = 0;
    Sweep *sweeps = calloc((size_t)jobs_count(), sizeof *sweeps);
    fr_assert(sweeps);
    for (uint64_t round = 0; torture_goes_on(&t); round++) sweep_round(&t, sweeps, round);
    uint64_t n_all = 0;
    for (int i = 0; i < jobs_count(); i++) {
        n_all += sweeps[i].n_allocations;
        job_result_free(&sweeps[i].result);
    }
    free(sweeps);
    printf("alloc_sweep: %llu allocations in an undisturbed run of each command\n", (unsigned long long)n_all);
    return torture_end(&t);
}
