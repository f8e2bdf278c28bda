/* comm.c - exchanges between ranks, over any transport (transport.h), and the end of the group if one of them fails.
 *
 * Parts that are larger than a message of the transport take several exchanges.
 *
 * Failures. A thread of each rank counts beats, and looks at the beats of the others. A rank that does not beat for
 * SILENT_TICKS ticks has died, was stopped, or is cut off. Time is counted in ticks of the thread that watches, so that
 * nobody is suspected after the whole group was stopped and continued.
 *
 * Proof: tests/compute/test_comm.c. */
#include "compute/ranks/comm.h"

#include "base/mem.h"
#include "base/os.h"
#include "base/system.h"
#include "base/threads.h"

#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TICK_MS = 100, SILENT_TICKS = 10, MOST_BEGUN = 2 };
#define WAITING_S 5e-6 /* whoever receives for longer has waited */

struct Comm {
    Transport *transport;
    CommCounts counts;
    CommPrice price;
    CommNetwork network;
    double is_free_s;           /* when the imitated network has carried what was sent so far */
    double begun_s[MOST_BEGUN]; /* when this rank has sent its parts of the gathers that have not ended */
    int n_begun;
    pthread_t watcher;
    pthread_mutex_t lock; /* of is_closing */
    pthread_cond_t closing;
    bool is_closing, has_watcher;
};

/* ---- the end ---------------------------------------------------------------------------------------------- */

static bool has_ended(const Transport *t) { return atomic_load(&t->end->state) != GROUP_IS_ALIVE; }

static void end_group(Transport *t, const char *reason) {
    int alive = GROUP_IS_ALIVE;
    if (!atomic_compare_exchange_strong(&t->end->state, &alive, GROUP_IS_ENDING)) return;
    snprintf(t->end->reason, sizeof t->end->reason, "%s", reason);
    atomic_store(&t->end->state, GROUP_HAS_ENDED);
    t->table->announce_end(t);
}

void comm_end_because_of(Transport *t, int rank, const char *what) {
    char reason[sizeof t->end->reason];
    snprintf(reason, sizeof reason, "rank %d of %d %s; the other ranks have ended, too", rank, t->n_ranks, what);
    end_group(t, reason);
}

void comm_abort(Comm *c, const char *reason) { end_group(c->transport, reason); }

int comm_check(const Comm *c, fr_error *err) {
    const GroupEnd *end = c->transport->end;
    int state;
    while ((state = atomic_load(&end->state)) == GROUP_IS_ENDING) sched_yield();
    return state == GROUP_IS_ALIVE ? FR_OK : (int)error_set(err, FR_ERR_IO, "%s", end->reason);
}

/* ---- watching --------------------------------------------------------------------------------------------- */

/* Waits for a tick. Returns false if the rank closes. */
static bool wait_for_tick(Comm *c) {
    pthread_mutex_lock(&c->lock);
    while (!c->is_closing && os_condition_wait(&c->closing, &c->lock, TICK_MS)) {}
    bool goes_on = !c->is_closing;
    pthread_mutex_unlock(&c->lock);
    return goes_on;
}

static void *watch(void *comm) {
    Comm *c = comm;
    Transport *t = c->transport;
    unsigned beats[COMM_MAX_RANKS] = {0};
    int n_silent[COMM_MAX_RANKS] = {0};
    while (wait_for_tick(c) && !has_ended(t)) {
        t->table->beat(t);
        for (int i = 0; i < t->n_ranks; i++) {
            unsigned n = t->table->beats_of(t, i);
            n_silent[i] = i != t->rank && n > 0 && n == beats[i] ? n_silent[i] + 1 : 0;
            beats[i] = n;
            if (n_silent[i] == SILENT_TICKS) comm_end_because_of(t, i, "has died or does not respond");
        }
    }
    return NULL;
}

/* ---- opening ---------------------------------------------------------------------------------------------- */

static CommNetwork network_of_environment(void) {
    double delay_us, mbit_s;
    const char *text = getenv("FORERUN_RANKS_NETWORK");
    if (!text || sscanf(text, "%lf,%lf", &delay_us, &mbit_s) != 2) return (CommNetwork){0};
    return (CommNetwork){delay_us * 1e-6, mbit_s * 1e6 / 8};
}

/* Takes over the transport, also if it fails. */
static int open_over(Comm **out, Transport *t, fr_error *err) {
    Comm *c = mem_calloc(1, sizeof *c);
    if (!c) {
        t->table->close(t);
        return error_memory(err, "a rank", sizeof *c);
    }
    c->transport = t;
    c->network = network_of_environment();
    os_condition_open(&c->closing);
    pthread_mutex_init(&c->lock, NULL);
    c->has_watcher = pthread_create(&c->watcher, NULL, watch, c) == 0;
    if (!c->has_watcher) {
        comm_close(c);
        return error_set(err, FR_ERR_MEMORY, "no thread could be started that watches the other ranks");
    }
    *out = c;
    return FR_OK;
}

int comm_open(Comm **out, CommMemory *memory, int rank, fr_error *err) {
    Transport *t;
    *out = NULL;
    int status = transport_memory_open(&t, memory, rank, err);
    return status ? status : open_over(out, t, err);
}

/* Loads the shared object from the folder of a file. */
static void *load_beside(const char *file) {
    char path[PATH_MAX];
    if (!file || !realpath(file, path)) return NULL;
    char *name = strrchr(path, '/') + 1;
    if ((size_t)(name - path) + sizeof "libforerun-mpi.so" > sizeof path) return NULL;
    strcpy(name, "libforerun-mpi.so");
    return dlopen(path, RTLD_NOW | RTLD_GLOBAL);
}

/* Looks in the folder of this program or library, where a build has the shared object, and then where the system looks
 * for libraries. Open MPI loads parts of itself later, which need its symbols: RTLD_GLOBAL. */
static void *load_mpi(void) {
    Dl_info self;
    void *library = load_beside("/proc/self/exe");
    if (!library && dladdr((void *)(uintptr_t)load_mpi, &self)) library = load_beside(self.dli_fname);
    return library ? library : dlopen("libforerun-mpi.so.0", RTLD_NOW | RTLD_GLOBAL);
}

int comm_open_mpi(Comm **out, double limit_s, fr_error *err) {
    Transport *t;
    TransportMpiOpen open = NULL;
    *out = NULL;
    void *library = load_mpi();
    if (library) *(void **)&open = dlsym(library, "transport_mpi_open");
    if (!open)
        return error_set(err, FR_ERR_UNSUPPORTED,
                         "ranks over MPI need libforerun-mpi.so and Open MPI, which cannot be loaded (%.200s); install "
                         "the packages forerun-mpi and openmpi-bin, or build forerun where libopenmpi-dev is installed",
                         dlerror());
    int status = open(&t, COMM_MAX_RANKS, limit_s, err);
    return status ? status : open_over(out, t, err);
}

static void stop_watching(Comm *c) {
    pthread_mutex_lock(&c->lock);
    c->is_closing = true;
    pthread_cond_signal(&c->closing);
    pthread_mutex_unlock(&c->lock);
    if (c->has_watcher) pthread_join(c->watcher, NULL);
}

void comm_close(Comm *c) {
    if (!c) return;
    if (c->has_watcher) c->transport->table->leave(c->transport);
    stop_watching(c);
    pthread_cond_destroy(&c->closing);
    pthread_mutex_destroy(&c->lock);
    c->transport->table->close(c->transport);
    mem_free(c);
}

int comm_rank(const Comm *c) { return c->transport->rank; }
int comm_size(const Comm *c) { return c->transport->n_ranks; }
const Transport *comm_transport(const Comm *c) { return c->transport; }
CommCounts comm_counts(const Comm *c) { return c->counts; }
CommPrice comm_price(const Comm *c) { return c->price; }
void comm_set_price(Comm *c, CommPrice price) { c->price = price; }
void comm_slow_down(Comm *c, CommNetwork network) { c->network = network; }

/* ---- exchanges -------------------------------------------------------------------------------------------- */

/* Copies bytes [from, to) of the pieces of a rank, which are counted one piece after another, to or from a buffer. */
static void copy_pieces(CommPart part, CommPieceFn piece, const void *ctx, int rank, size_t from, size_t to,
                        char *buffer, bool to_buffer) {
    while (from < to) {
        size_t at = from % part.bytes, n = part.bytes - at < to - from ? part.bytes - at : to - from;
        char *p = piece(ctx, rank, (int64_t)(from / part.bytes)) + at;
        memcpy(to_buffer ? buffer : p, to_buffer ? p : buffer, n);
        from += n, buffer += n;
    }
}

static size_t bytes_of(CommPart part) { return (size_t)part.n * part.bytes; }

/* Returns how many bytes of a part are in the exchange that begins at byte `from`. */
static size_t bytes_from(CommPart part, size_t from) {
    size_t n = bytes_of(part);
    return n <= from ? 0 : n - from < TRANSPORT_BYTES ? n - from : TRANSPORT_BYTES;
}

/* Imitates the network: n bytes that were sent at sent_s arrive after its delay, and after what was sent before. */
static void slow_down(Comm *c, double sent_s, size_t n) {
    const CommNetwork *net = &c->network;
    if (n == 0 || (net->delay_s <= 0 && net->bytes_per_s <= 0)) return;
    double begin_s = fmax(sent_s, c->is_free_s);
    c->is_free_s = begin_s + (net->bytes_per_s > 0 ? (double)n / net->bytes_per_s : 0);
    while (clock_s() < c->is_free_s + net->delay_s) threads_relax();
}

/* Sends bytes [from, from + TRANSPORT_BYTES) of the own part. Returns false if the group has ended. */
static bool send_part(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, size_t from, bool to_all) {
    Transport *t = c->transport;
    size_t n = bytes_from(parts[t->rank], from);
    char *own = t->table->part(t);
    if (!own) return false;
    copy_pieces(parts[t->rank], piece, ctx, t->rank, from, from + n, own, true);
    t->table->send(t, n, to_all);
    return true;
}

/* Receives what the others send in the exchange that is next. sent_s: when this rank has sent its own part; the others
 * have, too, unless it has to wait for them. */
static void receive_parts(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, size_t from, bool to_all,
                          double sent_s) {
    Transport *t = c->transport;
    bool receives = to_all || t->rank == 0;
    size_t n_received = 0;
    for (int k = 1; k < t->n_ranks; k++) {
        int rank = (t->rank + k) % t->n_ranks;
        size_t n = receives ? bytes_from(parts[rank], from) : 0;
        double start_s = clock_s();
        /* The buffer is written by another rank; copy_pieces only reads it. */
        char *theirs = (char *)(uintptr_t)t->table->receive(t, rank, n);
        if (!theirs) return;
        double end_s = clock_s();
        if (end_s - start_s > WAITING_S) sent_s = end_s;
        copy_pieces(parts[rank], piece, ctx, rank, from, from + n, theirs, false);
        n_received += n;
    }
    slow_down(c, sent_s, n_received);
}

static size_t longest_of(const Comm *c, const CommPart *parts) {
    size_t longest = 0;
    for (int i = 0; i < c->transport->n_ranks; i++) longest = max_size(longest, bytes_of(parts[i]));
    return longest;
}

static void count(const Comm *c, const CommPart *parts, int64_t *n_calls, int64_t *n_bytes) {
    for (int i = 0; i < c->transport->n_ranks; i++) *n_bytes += (int64_t)bytes_of(parts[i]);
    *n_calls += longest_of(c, parts) > 0;
}

/* Exchanges the parts and adds them to what is counted. */
static void exchange_all(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, bool to_all,
                         int64_t *n_calls, int64_t *n_bytes) {
    double start_s = clock_s();
    size_t longest = longest_of(c, parts);
    count(c, parts, n_calls, n_bytes);
    for (size_t from = 0; from < longest && !has_ended(c->transport); from += TRANSPORT_BYTES)
        if (send_part(c, parts, piece, ctx, from, to_all)) receive_parts(c, parts, piece, ctx, from, to_all, clock_s());
    c->counts.seconds += clock_s() - start_s;
}

void comm_gather(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx, bool to_all) {
    exchange_all(c, parts, piece, ctx, to_all, &c->counts.n_gathers, &c->counts.n_gather_bytes);
}

void comm_gather_begin(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx) {
    double start_s = clock_s();
    CommCounts *n = &c->counts;
    if (c->n_begun == 0) count(c, parts, &n->n_early_gathers, &n->n_early_bytes);
    count(c, parts, &n->n_gathers, &n->n_gather_bytes);
    size_t longest = longest_of(c, parts);
    fr_assert(longest <= TRANSPORT_BYTES && c->n_begun < MOST_BEGUN);
    if (longest > 0) send_part(c, parts, piece, ctx, 0, true);
    c->begun_s[c->n_begun++] = clock_s();
    c->counts.seconds += clock_s() - start_s;
}

void comm_gather_end(Comm *c, const CommPart *parts, CommPieceFn piece, const void *ctx) {
    double start_s = clock_s(), begun_s = c->begun_s[0];
    c->begun_s[0] = c->begun_s[1], c->n_begun--;
    if (longest_of(c, parts) > 0) receive_parts(c, parts, piece, ctx, 0, true, begun_s);
    c->counts.seconds += clock_s() - start_s;
}

static char *all_of(const void *ctx, int rank, int64_t i) {
    (void)rank, (void)i;
    char *p;
    memcpy(&p, ctx, sizeof p);
    return p;
}

void comm_broadcast(Comm *c, void *data, size_t bytes) {
    CommPart parts[COMM_MAX_RANKS] = {{1, bytes}};
    exchange_all(c, parts, all_of, &data, true, &c->counts.n_broadcasts, &c->counts.n_broadcast_bytes);
}

/* ---- the price --------------------------------------------------------------------------------------------- */

enum { N_BATCHES = 3, BATCH = 8 };

/* Returns the time of a gather of so many bytes from each rank: the mean of a batch, because a rank that is late finds
 * the parts of the others. */
static double time_gather(Comm *c, char *memory, size_t bytes) {
    CommPart parts[COMM_MAX_RANKS] = {{0}};
    for (int i = 0; i < c->transport->n_ranks; i++) parts[i] = (CommPart){1, bytes};
    double start_s = clock_s();
    for (int i = 0; i < BATCH; i++) comm_gather(c, parts, all_of, &memory, true);
    return (clock_s() - start_s) / BATCH;
}

/* LARGE is about what a rank has for a token tree of a large model in one exchange. Of several batches the shortest
 * counts, and both lengths take turns, so that a slow moment hurts both. Where noise hides the time of the bytes, it is
 * assumed to be at least a fiftieth of the exchange. */
CommPrice comm_measure(Comm *c) {
    enum { SMALL = 64, LARGE = 60 << 10 };
    char *memory = mem_calloc(1, LARGE); /* every rank writes zeros there */
    CommCounts before = c->counts;
    double latency_s = INFINITY, large_s = INFINITY;
    if (!memory) {
        comm_abort(c, "out of memory: the exchanges of ranks cannot be measured");
        return (CommPrice){0};
    }
    for (int k = 0; k < N_BATCHES; k++) {
        latency_s = fmin(latency_s, time_gather(c, memory, SMALL));
        large_s = fmin(large_s, time_gather(c, memory, LARGE));
    }
    mem_free(memory);
    double bytes_s = fmax(fmax(large_s - latency_s, large_s / 50), 1e-7);
    c->price = (CommPrice){latency_s, (c->transport->n_ranks - 1) * LARGE / bytes_s};
    comm_broadcast(c, &c->price, sizeof c->price);
    c->counts = before;
    return c->price;
}
