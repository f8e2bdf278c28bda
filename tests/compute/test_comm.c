/* test_comm.c - exchanges between ranks, which are threads here: every rank receives the pieces of all others, whatever
 * their size; only rank 0 does where that is asked for; and the group ends with the first reason. */
#include "testing.h"

#include "compute/ranks/comm.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N_RANKS = 3, N_ROUNDS = 60, MOST_PIECES = 40, PIECE_MOST = 100000 };

typedef struct Member {
    CommMemory *memory;
    Comm *comm;
    int rank, round;
    char *pieces[N_RANKS][MOST_PIECES]; /* of PIECE_MOST bytes */
    int n_wrong;
} Member;

/* What each rank sends in a round: sizes go from nothing to more than a buffer of comm.c. */
static CommPart part_of(int round, int rank) {
    int64_t n = (round * 7 + rank * 5) % MOST_PIECES;
    return (CommPart){n, 1 + (size_t)((round + 3 * rank) * 9973 % (round % 10 == 9 ? PIECE_MOST : 300))};
}

static char byte_of(int round, int rank, int64_t i) { return (char)(round * 31 + rank * 17 + i * 3 + 1); }

static char *piece_of(const void *member, int rank, int64_t i) {
    const Member *m = member;
    return m->pieces[rank][i];
}

static bool is_filled(const char *p, size_t n, char with) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != with) return false;
    return true;
}

static void exchange(Member *m, int round) {
    CommPart parts[N_RANKS];
    bool to_all = round % 3 > 0;
    for (int r = 0; r < N_RANKS; r++) {
        parts[r] = part_of(round, r);
        for (int64_t i = 0; i < parts[r].n; i++)
            memset(m->pieces[r][i], r == m->rank ? byte_of(round, r, i) : 0, parts[r].bytes);
    }
    comm_gather(m->comm, parts, piece_of, m, to_all);
    for (int r = 0; r < N_RANKS; r++)
        for (int64_t i = 0; i < parts[r].n; i++) {
            bool comes = to_all || m->rank == 0 || r == m->rank;
            m->n_wrong += !is_filled(m->pieces[r][i], parts[r].bytes, comes ? byte_of(round, r, i) : 0);
        }
}

static CommPart halved(int round, int rank, int half) {
    CommPart all = part_of(round, rank);
    return (CommPart){half ? all.n - all.n / 2 : all.n / 2, all.bytes};
}

static char *second_half(const void *member, int rank, int64_t i) {
    const Member *m = member;
    return m->pieces[rank][part_of(m->round, rank).n / 2 + i];
}

/* Two gathers at once, with the first and the second half of the pieces. */
static void exchange_halves(Member *m, int round) {
    CommPart first[N_RANKS], second[N_RANKS];
    m->round = round;
    for (int r = 0; r < N_RANKS; r++) {
        first[r] = halved(round, r, 0), second[r] = halved(round, r, 1);
        for (int64_t i = 0; i < first[r].n + second[r].n; i++)
            memset(m->pieces[r][i], r == m->rank ? byte_of(round, r, i) : 0, first[r].bytes);
    }
    comm_gather_begin(m->comm, first, piece_of, m);
    if (m->rank == round % N_RANKS) usleep(200); /* the others begin the second before this rank has */
    comm_gather_begin(m->comm, second, second_half, m);
    comm_gather_end(m->comm, first, piece_of, m);
    comm_gather_end(m->comm, second, second_half, m);
    for (int r = 0; r < N_RANKS; r++)
        for (int64_t i = 0; i < first[r].n + second[r].n; i++)
            m->n_wrong += !is_filled(m->pieces[r][i], first[r].bytes, byte_of(round, r, i));
}

static void open_member(Member *m) {
    fr_error err;
    if (comm_open(&m->comm, m->memory, m->rank, &err)) abort();
    for (int r = 0; r < N_RANKS; r++)
        for (int i = 0; i < MOST_PIECES; i++)
            if (!(m->pieces[r][i] = malloc(PIECE_MOST))) abort();
}

static void close_member(Member *m) {
    for (int r = 0; r < N_RANKS; r++)
        for (int i = 0; i < MOST_PIECES; i++) free(m->pieces[r][i]);
    comm_close(m->comm);
}

static void *exchange_often(void *member) {
    Member *m = member;
    int32_t number = 0;
    open_member(m);
    for (int round = 0; round < N_ROUNDS; round++) {
        exchange(m, round);
        number = m->rank == 0 ? 1000 + round : 0;
        comm_broadcast(m->comm, &number, sizeof number);
        m->n_wrong += number != 1000 + round;
        if (round % 10 < 9) exchange_halves(m, round);
    }
    m->n_wrong += comm_check(m->comm, NULL) != FR_OK;
    close_member(m);
    return NULL;
}

/* Runs a function as each of the ranks. */
static void run_group(Member members[N_RANKS], void *(*fn)(void *)) {
    fr_error err;
    CommMemory *memory;
    pthread_t threads[N_RANKS];
    if (comm_memory_open(&memory, N_RANKS, &err)) fail_msg("%s", err.message);
    for (int i = 0; i < N_RANKS; i++) {
        members[i] = (Member){.memory = memory, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, fn, &members[i]), 0);
    }
    for (int i = 0; i < N_RANKS; i++) pthread_join(threads[i], NULL);
    comm_memory_close(memory);
}

static void all_pieces_arrive(void **state) {
    (void)state;
    static Member members[N_RANKS];
    run_group(members, exchange_often);
    for (int i = 0; i < N_RANKS; i++) assert_int_equal(members[i].n_wrong, 0);
}

/* Rank 1 gives up after a few rounds, rank 2 leaves later; the others must return with the reason of rank 1. */
static void *give_up(void *member) {
    Member *m = member;
    fr_error err = {.message = ""};
    open_member(m);
    for (int round = 0; round < N_ROUNDS && !comm_check(m->comm, &err); round++) {
        if (m->rank == 1 && round == 4) comm_abort(m->comm, "rank 1 gives up");
        exchange(m, round);
    }
    m->n_wrong = comm_check(m->comm, &err) == FR_OK || strcmp(err.message, "rank 1 gives up") != 0;
    comm_abort(m->comm, "a later reason");
    close_member(m);
    return NULL;
}

static void *leave_early(void *member) {
    Member *m = member;
    fr_error err = {.message = ""};
    open_member(m);
    for (int round = 0; round < (m->rank == 2 ? 3 : N_ROUNDS) && !comm_check(m->comm, &err); round++)
        exchange(m, round);
    m->n_wrong = m->rank != 2 && strcmp(err.message, "rank 2 of 3 has left; the other ranks have ended, too") != 0;
    close_member(m);
    return NULL;
}

static void the_group_ends_with_the_first_reason(void **state) {
    (void)state;
    static Member members[N_RANKS];
    run_group(members, give_up);
    for (int i = 0; i < N_RANKS; i++) assert_int_equal(members[i].n_wrong, 0);
    run_group(members, leave_early);
    for (int i = 0; i < N_RANKS; i++) assert_int_equal(members[i].n_wrong, 0);
}

/* In a process whose parent, rank 0, has ended. Writes what it is told to the pipe. */
static void join_late(CommMemory *memory, int pipe) {
    Comm *c;
    fr_error err = {.message = ""};
    int32_t number = 0;
    alarm(20); /* seconds, for it might wait forever */
    if (comm_open(&c, memory, 1, &err) == FR_OK) {
        comm_broadcast(c, &number, sizeof number);
        comm_check(c, &err);
        comm_close(c);
    }
    (void)!write(pipe, err.message, strlen(err.message));
    _exit(0);
}

/* Rank 0 forks rank 1 and is killed before it joins, so that it has never beaten. */
static void the_first_rank_dies_before_it_joins(void **state) {
    (void)state;
    int ends[2];
    char text[sizeof((fr_error *)0)->message] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t first = fork();
    if (first == 0) {
        CommMemory *memory;
        if (comm_memory_open(&memory, 2, NULL) == FR_OK && fork() == 0) join_late(memory, ends[1]);
        _exit(0);
    }
    close(ends[1]);
    assert_int_equal(waitpid(first, NULL, 0), first);
    assert_true(read(ends[0], text, sizeof text - 1) > 0); /* its other end is closed when rank 1 ends */
    assert_string_equal(text, "rank 0 of 2 has died or does not respond; the other ranks have ended, too");
    close(ends[0]);
}

/* Over a network with a delay of 2 ms and 200 MB/s. */
static void *measure_price(void *member) {
    Member *m = member;
    open_member(m);
    comm_slow_down(m->comm, (CommNetwork){.delay_s = 2e-3, .bytes_per_s = 200e6});
    CommPrice price = comm_measure(m->comm);
    m->n_wrong = price.latency_s < 2e-3 || price.bytes_per_s > 220e6 || comm_counts(m->comm).n_gathers != 0;
    close_member(m);
    return NULL;
}

static void the_price_of_a_slow_network_is_measured(void **state) {
    (void)state;
    static Member members[N_RANKS];
    int n_wrong = 1;
    for (int i_try = 0; i_try < 5 && n_wrong; i_try++) { /* another program may have disturbed the measurement */
        run_group(members, measure_price);
        n_wrong = 0;
        for (int i = 0; i < N_RANKS; i++) n_wrong += members[i].n_wrong;
    }
    assert_int_equal(n_wrong, 0);
}

static void the_number_of_ranks_is_checked(void **state) {
    (void)state;
    fr_error err;
    CommMemory *m;
    assert_int_equal(comm_memory_open(&m, 0, &err), FR_ERR_ARGUMENT);
    assert_int_equal(comm_memory_open(&m, COMM_MAX_RANKS + 1, &err), FR_ERR_ARGUMENT);
    assert_null(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_pieces_arrive),
        cmocka_unit_test(the_group_ends_with_the_first_reason),
        cmocka_unit_test(the_first_rank_dies_before_it_joins),
        cmocka_unit_test(the_price_of_a_slow_network_is_measured),
        cmocka_unit_test(the_number_of_ranks_is_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
