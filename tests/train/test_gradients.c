/* test_gradients.c - the sum over the sequences of a step: it has the bits of the tree for any number of threads, any
 * division into batches, and any number of ranks, which are threads here. */
#include "testing.h"

#include "compute/ranks/ranks.h"
#include "train/gradients.h"
#include "train/train_ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* A little more than a block, and than a rank sends in one exchange. */
enum { N_WEIGHTS = 2048 + 21, N_MANY = TRANSPORT_BYTES / 4 + 21, MOST_SEQUENCES = 13, MOST_RANKS = 5 };

/* Numbers of very different size, so that every order of adding gives other bits. */
static float value(int64_t sequence, int64_t k) {
    uint32_t bits = (uint32_t)(sequence * 7919 + k + 1) * 2654435761u;
    return (float)(int32_t)bits * (bits % 5 ? 0x1p-31f : 0x1p-12f);
}

static double loss_of(int64_t sequence) { return (double)value(sequence, 5) * 1.1; }

typedef struct Task {
    int64_t first; /* sequence of the batch's first one */
    int64_t n_weights;
} Task;

static void learn(void *ctx, int i_run, int32_t i, float *grads, TrainSums *sums) {
    const Task *task = ctx;
    (void)i_run;
    for (int64_t k = 0; k < task->n_weights && grads; k++) grads[k] += value(task->first + i, k);
    sums->loss += loss_of(task->first + i);
    sums->n += 2;
    sums->n_heads = 1;
    sums->right[0] += task->first + i;
    sums->at_rank[0][3]++;
}

/* What the tree of gradients.h says: node of level l that begins at sequence `first`. */
static double sum_of(int64_t first, int level, int64_t n, int64_t k, bool is_loss) {
    int64_t half = level ? first + (INT64_C(1) << (level - 1)) : 0;
    if (level == 0) return is_loss ? loss_of(first) : (double)value(first, k);
    double left = sum_of(first, level - 1, n, k, is_loss);
    if (half >= n) return left;
    double right = sum_of(half, level - 1, n, k, is_loss);
    return is_loss ? left + right : (double)((float)left + (float)right);
}

/* *n_other: weights for which adding in the order of the sequences would give other bits. */
static bool is_sum(const float *total, int64_t n_weights, const TrainSums *sums, int64_t n, int *n_other) {
    bool fits = sums->loss == sum_of(0, 5, n, 0, true) && sums->n == 2 * n && sums->n_heads == 1 &&
                sums->right[0] == n * (n - 1) / 2 && sums->at_rank[0][3] == n;
    *n_other = 0;
    for (int64_t k = 0; k < n_weights; k++) {
        float wanted = (float)sum_of(0, 5, n, k, false), in_order = 0;
        for (int64_t i = 0; i < n; i++) in_order += value(i, k);
        fits = fits && total[k] == wanted;
        *n_other += in_order != wanted;
    }
    return fits;
}

static void sums_are_those_of_the_tree(void **state) {
    (void)state;
    int n_other;
    float *total = calloc(N_WEIGHTS, sizeof *total);
    for (int n_threads = 1; n_threads <= 6; n_threads += n_threads == 3 ? 3 : 1) {
        Gradients g;
        assert_int_equal(gradients_open(&g, total, N_WEIGHTS, n_threads, NULL), FR_OK);
        for (int32_t n = 1; n <= MOST_SEQUENCES; n++) {
            for (int32_t batch = 1; batch <= n; batch += 3) { /* buffers are used again */
                TrainSums sums = {0};
                memset(total, 0, N_WEIGHTS * sizeof *total);
                gradients_begin(&g, 0);
                for (int32_t i = 0; i < n; i += batch)
                    assert_int_equal(gradients_run(&g, n - i < batch ? n - i : batch, learn, &(Task){i, N_WEIGHTS},
                                                   true, &sums, NULL),
                                     FR_OK);
                gradients_end(&g, &sums);
                assert_true(is_sum(total, N_WEIGHTS, &sums, n, &n_other));
                assert_true(n < 4 || n_other > 10);
            }
            assert_true(g.n_buffers <= n_threads + 4); /* log2 of 13 sequences */
        }
        gradients_close(&g);
    }
    free(total);
}

/* A batch by itself is a step, and is added to what is there. */
static void a_batch_is_a_step(void **state) {
    (void)state;
    float *total = calloc(N_WEIGHTS, sizeof *total);
    Gradients g;
    TrainSums sums = {0};
    Task task = {0, N_WEIGHTS};
    int n_other;
    assert_int_equal(gradients_open(&g, total, N_WEIGHTS, 2, NULL), FR_OK);
    assert_int_equal(gradients_run(&g, 7, learn, &task, false, &sums, NULL), FR_OK);
    assert_true(total[0] == 0 && sums.loss == sum_of(0, 5, 7, 0, true) && g.n_buffers == 1);
    sums = (TrainSums){0};
    assert_int_equal(gradients_run(&g, 7, learn, &task, true, &sums, NULL), FR_OK);
    assert_true(is_sum(total, N_WEIGHTS, &sums, 7, &n_other));
    assert_int_equal(gradients_run(&g, 1, learn, &task, true, &sums, NULL), FR_OK);
    for (int64_t k = 0; k < N_WEIGHTS; k++) assert_true(total[k] == (float)sum_of(0, 5, 7, k, false) + value(0, k));
    gradients_close(&g);
    free(total);
}

/* ---- ranks ------------------------------------------------------------------------------------------- */

typedef struct Member {
    CommMemory *memory;
    int rank, n_ranks, fails; /* fails: the rank that reports an error; -1: none */
    int64_t n_weights;
    pthread_t thread;
    int status, n_wrong;
    fr_error err;
} Member;

/* Validates n sequences on this rank, and learns from them. */
static void step(Member *m, const Ranks *r, Gradients *g, float *total, int32_t n) {
    int64_t begin, end;
    int n_other;
    for (int has_gradient = 0; has_gradient < 2 && !m->status; has_gradient++) {
        TrainSums sums = {0};
        memset(total, 0, (size_t)m->n_weights * sizeof *total);
        train_ranks_part(r, n, &begin, &end);
        gradients_begin(g, begin);
        int own = m->fails == m->rank ? error_set(&m->err, FR_ERR_MEMORY, "no memory is left") : FR_OK;
        for (int64_t i = begin; i < end && !own; i += 2) {
            Task task = {i, m->n_weights};
            own = gradients_run(g, end - i < 2 ? 1 : 2, learn, &task, has_gradient, &sums, &m->err);
        }
        m->status = train_ranks_add_up(r, g, n, has_gradient, &sums, own, &m->err);
        if (m->rank > 0 || m->status) continue;
        m->n_wrong += !is_sum(total, has_gradient ? m->n_weights : 0, &sums, n, &n_other);
    }
}

static void *member(void *ctx) {
    Member *m = ctx;
    Ranks *r;
    Gradients g;
    float *total = calloc((size_t)m->n_weights, sizeof *total);
    if (!total || ranks_join(&r, m->memory, m->rank, NULL) ||
        gradients_open(&g, total, m->n_weights, 1 + m->rank % 2, NULL))
        abort();
    for (int32_t n = m->n_weights == N_MANY ? 10 : 1; n <= MOST_SEQUENCES && !m->status; n += n < 4 ? 1 : 3)
        step(m, r, &g, total, n);
    gradients_close(&g);
    free(total);
    comm_close(r->comm);
    mem_free(r);
    return NULL;
}

static void run_ranks(Member members[MOST_RANKS], int n_ranks, int64_t n_weights, int fails) {
    CommMemory *memory;
    assert_int_equal(comm_memory_open(&memory, n_ranks, NULL), FR_OK);
    for (int i = 0; i < n_ranks; i++) {
        members[i] = (Member){.memory = memory, .rank = i, .n_ranks = n_ranks, .fails = fails, .n_weights = n_weights};
        assert_int_equal(pthread_create(&members[i].thread, NULL, member, &members[i]), 0);
    }
    for (int i = 0; i < n_ranks; i++) pthread_join(members[i].thread, NULL);
    comm_memory_close(memory);
}

/* With fewer sequences than ranks, too. */
static void ranks_give_the_same_sum(void **state) {
    (void)state;
    Member members[MOST_RANKS];
    for (int n_ranks = 1; n_ranks <= MOST_RANKS; n_ranks++) {
        run_ranks(members, n_ranks, n_ranks == 2 ? N_MANY : n_ranks == 3 ? 1 : N_WEIGHTS, -1);
        for (int i = 0; i < n_ranks; i++)
            if (members[i].status || members[i].n_wrong)
                fail_msg("rank %d of %d: %d wrong, %s", i, n_ranks, members[i].n_wrong, members[i].err.message);
    }
}

static void a_rank_that_fails_ends_the_step(void **state) {
    (void)state;
    Member members[MOST_RANKS];
    for (int fails = 0; fails < 3; fails += 2) {
        run_ranks(members, 3, N_WEIGHTS, fails);
        for (int i = 0; i < 3; i++) {
            assert_true(members[i].status != FR_OK);
            bool is_named = strncmp(members[i].err.message, "rank 2: ", 8) == 0;
            assert_true(is_named == (fails == 2 && i != 2));
            assert_non_null(strstr(members[i].err.message, "no memory is left"));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_tree),
        cmocka_unit_test(a_batch_is_a_step),
        cmocka_unit_test(ranks_give_the_same_sum),
        cmocka_unit_test(a_rank_that_fails_ends_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
