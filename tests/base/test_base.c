/* test_base.c - Unit tests of src/base. */
#include "testing.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/os.h"
#include "base/rng.h"
#include "base/threads.h"

#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static void error_is_filled_and_optional(void **state) {
    (void)state;
    fr_error err = {0};
    assert_int_equal(error_set(&err, FR_ERR_IO, "%s: gone", "x.gguf"), FR_ERR_IO);
    assert_int_equal(err.code, FR_ERR_IO);
    assert_string_equal(err.message, "x.gguf: gone");
    assert_int_equal(error_set(NULL, FR_ERR_MEMORY, "no error is wanted"), FR_ERR_MEMORY);
}

static void sizes_do_not_wrap(void **state) {
    (void)state;
    size_t out;
    assert_true(size_mul(3, 5, &out) && out == 15);
    assert_false(size_mul(SIZE_MAX / 2, 3, &out));
    assert_false(size_add(SIZE_MAX, 1, &out));
    assert_null(mem_calloc(SIZE_MAX / 2, 4));
}

static void buffers_grow_to_their_maximum_and_no_further(void **state) {
    (void)state;
    Buf b = {.max_bytes = 200};
    for (int i = 0; i < 20; i++) assert_true(buf_append(&b, "0123456789", 10));
    assert_int_equal(b.n, 200);
    assert_false(buf_append(&b, "x", 1));
    assert_int_equal(b.data[200], '\0');
    buf_clear(&b);
    assert_true(buf_append(&b, "x", 1));
    assert_string_equal(b.data, "x");
    buf_free(&b);
}

static void random_words_follow_the_published_vectors(void **state) {
    (void)state;
    /* philox4x32-10 known answer: counter 0, key 0. */
    uint32_t w[4];
    rng_words(0, 0, 0, 0, w);
    assert_int_equal(w[0], 0x6627e8d5u);
    assert_int_equal(w[1], 0xe169c58du);
    assert_int_equal(w[2], 0xbc57ac4cu);
    assert_int_equal(w[3], 0x9b00dbd8u);
}

static void hashes_chain(void **state) {
    (void)state;
    assert_true(hash64("ab", 2, 0) != hash64("ba", 2, 0));
    assert_true(hash64("b", 1, hash64("a", 1, 0)) != hash64("a", 1, hash64("b", 1, 0)));
}

static const char *next_piece;
static size_t longest_piece;

static void take_piece(const void *piece, size_t n) {
    assert_ptr_equal(piece, next_piece);
    next_piece += n;
    if (n > longest_piece) longest_piece = n;
}

static void a_hash_in_pieces_is_the_same(void **state) {
    (void)state;
    enum { MIB = 1 << 20, MOST = 3 * MIB + 77 };
    static const size_t sizes[] = {0, 1, 240, 5000, MIB, MIB + 1, 2 * MIB, MOST};
    char *bytes = malloc(MOST);
    assert_non_null(bytes);
    for (size_t i = 0; i < MOST; i++) bytes[i] = (char)(i * i >> 5);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        next_piece = bytes;
        assert_int_equal(hash64_in_pieces(bytes, sizes[i], i, take_piece), hash64(bytes, sizes[i], i));
        assert_ptr_equal(next_piece, bytes + sizes[i]);
    }
    assert_int_equal(longest_piece, MIB);
    free(bytes);
}

enum { N_ITEMS = 1000 };
typedef struct Parts {
    int n_threads;
    atomic_int counts[N_ITEMS];
    atomic_int busy[THREADS_MAX]; /* the threads in each part: one at a time */
} Parts;

static void count_part(void *ctx, int i_part, int n_parts, int i_thread) {
    Parts *p = ctx;
    assert_true(i_thread >= 0 && i_thread < p->n_threads);
    assert_int_equal(atomic_fetch_add(&p->busy[i_thread], 1), 0);
    int64_t begin, end;
    threads_split(N_ITEMS, 16, i_part, n_parts, &begin, &end);
    for (int64_t i = begin; i < end; i++) p->counts[i]++;
    atomic_fetch_sub(&p->busy[i_thread], 1);
}

static void every_part_is_done_once(void **state) {
    (void)state;
    static Parts p;
    for (int n = 1; n <= 9; n++) {
        ThreadPool *pool;
        assert_int_equal(threads_open(&pool, n, NULL), FR_OK);
        assert_int_equal(threads_count(pool), n);
        for (int n_parts = 1; n_parts <= 200; n_parts++) { /* in quick succession, no part is left out or done twice */
            memset(&p, 0, sizeof p);
            p.n_threads = n;
            threads_run(pool, n_parts, count_part, &p);
            for (int i = 0; i < N_ITEMS; i++) assert_int_equal(p.counts[i], 1);
        }
        threads_close(pool);
        memset(&p, 0, sizeof p);
        p.n_threads = n;
        threads_run_once(n, count_part, &p);
        for (int i = 0; i < N_ITEMS; i++) assert_int_equal(p.counts[i], 1);
    }
}

static void sum_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)n_parts, (void)i_thread;
    atomic_fetch_add((atomic_int *)ctx, i_part);
}

/* Pauses are longer than the workers spin, so they sleep and must wake up. */
static void sleepers_wake(void **state) {
    (void)state;
    ThreadPool *pool;
    assert_int_equal(threads_open(&pool, 4, NULL), FR_OK);
    for (int i = 0; i < 20; i++) {
        atomic_int sum = 0;
        usleep(2000);
        threads_run(pool, 100, sum_part, &sum);
        assert_int_equal(sum, 4950);
    }
    threads_close(pool);
}

/* A region in which each stage needs the whole result of the one before: stage i adds 1 to the items that stage i - 1
 * left at i. */
enum { N_STAGES = 40 };
typedef struct Ladder {
    int rung[N_ITEMS];
    atomic_int n_wrong;
} Ladder;
typedef struct Rung {
    Ladder *ladder;
    int i;
} Rung;

static void climb_part(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_thread;
    const Rung *r = ctx;
    int64_t begin, end;
    /* every other stage begins at the other end, so that parts read what others wrote */
    threads_split(N_ITEMS, 1, r->i % 2 ? n_parts - 1 - i_part : i_part, n_parts, &begin, &end);
    for (int64_t k = begin; k < end; k++)
        if (r->ladder->rung[k]++ != r->i) atomic_fetch_add(&r->ladder->n_wrong, 1);
    if ((r->i + i_part) % 7 == 0) sched_yield(); /* some parts are slow */
}

static void stages_follow_each_other(void **state) {
    (void)state;
    static Ladder ladder;
    Rung rungs[N_STAGES];
    Stage stages[2 * N_STAGES];
    int n_parts_of[] = {1, 7, 2, 64, 3, 200};
    for (int i = 0; i < N_STAGES; i++) {
        rungs[i] = (Rung){&ladder, i};
        stages[2 * i] = (Stage){.fn = climb_part,
                                .ctx = &rungs[i],
                                .n_parts = n_parts_of[i % 6],
                                .later = &ladder,
                                .later_bytes = sizeof ladder};
        stages[2 * i + 1] = (Stage){0}; /* nothing to do */
    }
    for (int n = 1; n <= 9; n++) {
        ThreadPool *pool;
        assert_int_equal(threads_open(&pool, n, NULL), FR_OK);
        for (int round = 0; round < 6; round++) {
            memset(&ladder, 0, sizeof ladder);
            threads_run_stages(pool, stages, 2 * N_STAGES);
            assert_int_equal(ladder.n_wrong, 0);
            for (int k = 0; k < N_ITEMS; k++) assert_int_equal(ladder.rung[k], N_STAGES);
            if (round % 2) usleep(2000); /* asleep when the next region begins */
        }
        threads_run_stages(pool, stages + 1, 1);
        threads_run_stages(pool, stages, 0);
        threads_close(pool);
    }
}

typedef struct Places {
    atomic_int n_met; /* the threads that are in a part: each waits for the others, so that each gets one part */
    cpu_set_t allowed[THREADS_MAX];
} Places;

static void note_place(void *ctx, int i_part, int n_parts, int i_thread) {
    (void)i_part;
    Places *p = ctx;
    assert_int_equal(sched_getaffinity(0, sizeof p->allowed[i_thread], &p->allowed[i_thread]), 0);
    for (atomic_fetch_add(&p->n_met, 1); atomic_load(&p->n_met) < n_parts;) sched_yield();
}

/* Each thread of a pinned pool has a core of its own; threads of another pool may run anywhere, and so may the caller
 * afterwards. More threads than cores are refused, and then no thread is pinned. */
static void pinned_threads_have_a_core_each(void **state) {
    (void)state;
    static Places places;
    ThreadPool *pool, *other;
    fr_error err;
    cpu_set_t before, after, all;
    int n = threads_n_cores();
    sched_getaffinity(0, sizeof before, &before);
    assert_int_equal(threads_open(&pool, n, NULL), FR_OK);
    assert_int_equal(threads_pin(pool, &err), FR_OK);
    threads_run(pool, n, note_place, &places);
    CPU_ZERO(&all);
    for (int i = 0; i < n; i++) {
        if (n > 1) assert_int_equal(CPU_COUNT(&places.allowed[i]), 1);
        CPU_OR(&all, &all, &places.allowed[i]);
    }
    assert_true(CPU_EQUAL(&all, &before));
    if (n > 1) {
        assert_int_equal(threads_open(&other, n, NULL), FR_OK);
        atomic_store(&places.n_met, 0);
        threads_run(other, n, note_place, &places);
        for (int i = 1; i < n; i++) assert_int_equal(CPU_COUNT(&places.allowed[i]), n);
        threads_close(other);
    }
    threads_close(pool);
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
    assert_int_equal(threads_open(&pool, n + 1, NULL), FR_OK);
    assert_int_equal(threads_pin(pool, &err), FR_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "do not pin"));
    sched_getaffinity(0, sizeof after, &after);
    assert_true(CPU_EQUAL(&before, &after));
    threads_close(pool);
}

/* Processes that take shares of the cores have all cores together and none twice, and so have their threads. */
static void shares_of_cores_are_disjoint(void **state) {
    (void)state;
    cpu_set_t before, all;
    int n = threads_n_cores() < 3 ? threads_n_cores() : 3, n_all = 0;
    cpu_set_t *taken = mmap(NULL, 3 * sizeof *taken, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(taken, MAP_FAILED);
    sched_getaffinity(0, sizeof before, &before);
    assert_in_range(threads_n_nodes(), 1, threads_n_cores());
    assert_in_range(threads_n_physical_cores(), 1, threads_n_cores());
    CPU_ZERO(&all);
    for (int i = 0; i < n; i++) {
        pid_t child = fork();
        if (child == 0) {
            static Places places;
            ThreadPool *pool;
            threads_take_share(0, n);
            threads_take_share(i, n);
            if (threads_open(&pool, 2, NULL)) _exit(1);
            threads_run(pool, 2, note_place, &places);
            bool is_same = CPU_EQUAL(&places.allowed[0], &places.allowed[1]);
            taken[i] = places.allowed[0];
            _exit(is_same && threads_n_cores() == CPU_COUNT(&taken[i]) ? 0 : 1);
        }
        int status = 1;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
        n_all += CPU_COUNT(&taken[i]);
        CPU_OR(&all, &all, &taken[i]);
    }
    assert_true(CPU_EQUAL(&all, &before));
    assert_int_equal(n_all, CPU_COUNT(&before));
    munmap(taken, 3 * sizeof *taken);
}

#define QUOTA_ROOT "build/test-quota"
typedef struct QuotaFile {
    const char *path, *text;
} QuotaFile;

/* Writes these files below an empty root, with the folders that they need, and asks for the quota. */
static int quota_with(const QuotaFile *files) {
    char command[512];
    assert_int_equal(system("rm -rf " QUOTA_ROOT), 0);
    for (; files->path; files++) {
        snprintf(command, sizeof command, "mkdir -p $(dirname " QUOTA_ROOT "/%s) && printf -- '%s' > " QUOTA_ROOT "/%s",
                 files->path, files->text, files->path);
        assert_int_equal(system(command), 0);
    }
    return os_cpu_quota(QUOTA_ROOT);
}

/* The smallest quota of a group and of those above it holds, in both versions of control groups. */
static void quotas_of_processor_time_are_found(void **state) {
    (void)state;
    assert_int_equal(quota_with((QuotaFile[]){{0}}), INT_MAX);
    assert_int_equal(
        quota_with((QuotaFile[]){{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "max 100000\n"}, {0}}),
        INT_MAX);
    assert_int_equal(
        quota_with((QuotaFile[]){{"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/cpu.max", "250000 100000\n"}, {0}}),
        2);
    assert_int_equal(quota_with((QuotaFile[]){{"proc/self/cgroup", "0::/a/b\n"},
                                              {"sys/fs/cgroup/a/b/cpu.max", "max 100000\n"},
                                              {"sys/fs/cgroup/a/cpu.max", "300000 100000\n"},
                                              {"sys/fs/cgroup/cpu.max", "800000 100000\n"},
                                              {0}}),
                     3);
    assert_int_equal(
        quota_with((QuotaFile[]){{"proc/self/cgroup", "0::/gone\n"}, {"sys/fs/cgroup/cpu.max", "50000 100000\n"}, {0}}),
        1);
    assert_int_equal(quota_with((QuotaFile[]){{"proc/self/cgroup", "12:memory:/x\n3:cpu,cpuacct:/docker/x\n0::/\n"},
                                              {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n"},
                                              {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
                                              {0}}),
                     4);
    assert_int_equal(quota_with((QuotaFile[]){{"proc/self/cgroup", "1:cpu:/\n"},
                                              {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                                              {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"},
                                              {0}}),
                     INT_MAX);
    assert_int_equal(
        quota_with((QuotaFile[]){{"proc/self/cgroup", "no colons"}, {"sys/fs/cgroup/cpu.max", "0 0 x"}, {0}}), INT_MAX);
    assert_int_equal(system("rm -rf " QUOTA_ROOT), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(error_is_filled_and_optional),
        cmocka_unit_test(sizes_do_not_wrap),
        cmocka_unit_test(buffers_grow_to_their_maximum_and_no_further),
        cmocka_unit_test(random_words_follow_the_published_vectors),
        cmocka_unit_test(hashes_chain),
        cmocka_unit_test(a_hash_in_pieces_is_the_same),
        cmocka_unit_test(every_part_is_done_once),
        cmocka_unit_test(sleepers_wake),
        cmocka_unit_test(stages_follow_each_other),
        cmocka_unit_test(pinned_threads_have_a_core_each),
        cmocka_unit_test(shares_of_cores_are_disjoint),
        cmocka_unit_test(quotas_of_processor_time_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
