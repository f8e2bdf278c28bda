/* train_ranks.c - the processes of a training, and how their gradients become one (train_ranks.h).
 *
 * Adding up. Every rank knows the nodes of every other one, because they follow from the number of sequences. The ranks
 * send their nodes in pieces of CHUNK weights, one exchange each, and rank 0 does the sums for these weights before it
 * receives the next ones. So it needs a chunk of memory for each node and not another gradient. */
#include "train/train_ranks.h"

#include "base/hash.h"
#include "compute/ranks/ranks.h"
#include "train/gemm.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = TRANSPORT_BYTES / sizeof(float) };

/* ---- processes ------------------------------------------------------------------------------------ */

int train_ranks_open(Ranks **out, int n_ranks, fr_error *err) {
    *out = NULL;
    int n = n_ranks == FR_RANKS_NUMA ? threads_n_nodes() : n_ranks;
    int status = n == FR_RANKS_MPI ? ranks_join_mpi(out, err) : n > 1 ? ranks_start(out, n, err) : (int)FR_OK;
    if (status || train_ranks_rank(*out) == 0) return status;
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    return FR_OK;
}

void train_ranks_close(Ranks *r) {
    bool was_started = r && comm_rank(r->comm) > 0 && !comm_transport(r->comm)->is_own_process;
    if (!was_started) {
        ranks_close(r);
        return;
    }
    int status = comm_check(r->comm, NULL);
    comm_close(r->comm);
    _exit(status ? 1 : 0);
}

int train_ranks_rank(const Ranks *r) { return r ? comm_rank(r->comm) : 0; }
int train_ranks_size(const Ranks *r) { return r ? comm_size(r->comm) : 1; }

int train_ranks_agree(Ranks *r, int status, fr_error *err) { return r ? ranks_agree(r, status, err) : status; }

int train_ranks_check(const Ranks *r, fr_error *err) { return r ? comm_check(r->comm, err) : FR_OK; }

void train_ranks_share(const Ranks *r, void *value, size_t bytes) {
    if (r) comm_broadcast(r->comm, value, bytes);
}

/* ---- what ranks have in common --------------------------------------------------------------------- */

typedef struct Common {
    uint64_t options, data, product;
} Common;

/* Returns a hash of the product of two matrices with odd shapes. */
static uint64_t test_product(void) {
    enum { M = 19, N = 37, K = 67 };
    float a[M * K], b[K * N], c[M * N];
    for (uint32_t i = 0; i < M * K; i++) a[i] = (float)(int32_t)(i * 2654435761u) * 0x1p-31f;
    for (uint32_t i = 0; i < K * N; i++) b[i] = (float)(int32_t)((i + 7) * 2246822519u) * 0x1p-31f;
    gemm(false, false, M, N, K, 1, a, K, b, N, false, c, N);
    return hash64(c, sizeof c, 0);
}

static int compare(const Common *own, const Common *first, fr_error *err) {
    const char *what = own->options != first->options ? "target, or other options," : NULL;
    if (!what && own->data != first->data) what = "set of training data";
    return what || own->product != first->product ? rank_refuse(what, err) : (int)FR_OK;
}

int train_ranks_compare(Ranks *r, int status, const char *run_signature, uint64_t data, fr_error *err) {
    if (!r) return status;
    Common own = {.data = data, .product = test_product()}, first;
    own.options = hash64(run_signature, strlen(run_signature), 0);
    first = own;
    comm_broadcast(r->comm, &first, sizeof first);
    if (!status) status = compare(&own, &first, err);
    return ranks_agree(r, status, err);
}

/* ---- orders ----------------------------------------------------------------------------------------- */

TrainOrder train_ranks_order(const Ranks *r, TrainOrder order, int64_t *step) {
    int64_t words[2] = {order, step ? *step : 0};
    if (!r) return order;
    comm_broadcast(r->comm, words, sizeof words);
    if (comm_check(r->comm, NULL)) return TRAIN_END;
    if (step) *step = words[1];
    return (TrainOrder)words[0];
}

void train_ranks_share_parameters(const Ranks *r, Trainer *t) {
    for (int32_t i = 0; r && i < t->class->n_params(t); i++) {
        Param *p = t->class->param(t, i);
        comm_broadcast(r->comm, p->value, (size_t)p->n * sizeof *p->value);
    }
}

/* ---- a step ------------------------------------------------------------------------------------------ */

static void part_of(int rank, int n_ranks, int64_t n, int64_t *begin, int64_t *end) {
    *begin = (n * rank + n_ranks - 1) / n_ranks;
    *end = (n * (rank + 1) + n_ranks - 1) / n_ranks;
}

void train_ranks_part(const Ranks *r, int64_t n, int64_t *begin, int64_t *end) {
    part_of(train_ranks_rank(r), train_ranks_size(r), n, begin, end);
}

/* The nodes of all ranks, from left to right. */
typedef struct Parts {
    const Gradients *g;
    int rank, n_ranks;
    int first[COMM_MAX_RANKS + 1]; /* the first node of each rank, and the number of all */
    GradientNode *nodes;           /* [nodes] the buffer of a node is its own number */
    TrainSums *sums;               /* [n_ranks] */
    GradientMerge *merges;         /* [nodes] those that rank 0 does */
    float **chunks;                /* [nodes] on rank 0: some weights of each node */
    float *received;               /* on rank 0: those of the nodes of other ranks */
    int64_t at;                    /* the first of these weights */
    Arena arena;
} Parts;

static int nodes_of(const Parts *p, int rank, int64_t n, GradientNode *out) {
    int64_t begin, end;
    part_of(rank, p->n_ranks, n, &begin, &end);
    return gradient_nodes(begin, end - begin, out);
}

/* Lists the nodes of all ranks for a step of n sequences. */
static void list_nodes(Parts *p, int64_t n, bool has_gradient) {
    for (int rank = 0; rank < p->n_ranks; rank++) nodes_of(p, rank, n, p->nodes + p->first[rank]);
    for (int k = 0; k < p->first[p->n_ranks]; k++) p->nodes[k].buffer = has_gradient ? k : -1;
    for (int i = 0; i < p->g->tree.n; i++) {
        GradientNode *listed = &p->nodes[p->first[p->rank] + i];
        const GradientNode *own = &p->g->tree.nodes[i];
        fr_assert(listed->first == own->first && listed->level == own->level);
        listed->loss = own->loss;
    }
}

static int parts_open(Parts *p, const Ranks *r, const Gradients *g, int64_t n, bool has_gradient, fr_error *err) {
    GradientNode nodes[GRADIENT_MAX_NODES];
    *p = (Parts){.g = g, .rank = train_ranks_rank(r), .n_ranks = train_ranks_size(r)};
    for (int i = 0; i < p->n_ranks; i++) p->first[i + 1] = p->first[i] + nodes_of(p, i, n, nodes);
    int n_nodes = p->first[p->n_ranks];
    bool receives = has_gradient && p->rank == 0;
    const ArenaItem items[] = {
        ARENA_ITEM(&p->nodes, n_nodes), ARENA_ITEM(&p->sums, p->n_ranks), ARENA_ITEM(&p->merges, n_nodes),
        ARENA_ITEM(&p->chunks, n_nodes),
        ARENA_ITEM(&p->received, receives ? (n_nodes - p->first[1]) * min_i64(CHUNK, g->n_weights) : 0)};
    int status = arena_take(&p->arena, items, ARENA_COUNT(items), "the gradients of other ranks", err);
    if (!status) list_nodes(p, n, has_gradient);
    return status;
}

/* Returns what each rank sends: so many bytes of each of its nodes. */
static void list_parts(const Parts *p, size_t bytes, CommPart parts[COMM_MAX_RANKS]) {
    for (int i = 0; i < p->n_ranks; i++) parts[i] = (CommPart){p->first[i + 1] - p->first[i], bytes};
}

static char *sums_of(const void *ctx, int rank, int64_t i) {
    (void)i;
    return (char *)&((const Parts *)ctx)->sums[rank];
}

static char *loss_of(const void *ctx, int rank, int64_t i) {
    const Parts *p = ctx;
    return (char *)&p->nodes[p->first[rank] + i].loss;
}

/* The weights of a node from p->at on: its own are in the buffer of the node. */
static float *weights_of(const Parts *p, int rank, int64_t i, int64_t n) {
    if (rank == p->rank) return p->g->buffers[p->g->tree.nodes[i].buffer] + p->at;
    return p->received + (p->first[rank] - p->first[1] + i) * n;
}

static char *chunk_of(const void *ctx, int rank, int64_t i) {
    const Parts *p = ctx;
    return (char *)weights_of(p, rank, i, min_i64(CHUNK, p->g->n_weights));
}

/* Gathers the counts and the losses on rank 0. Returns how many sums are to be done there, in p->merges. */
static int gather_losses(const Ranks *r, const Parts *p, TrainSums *sums) {
    CommPart counts[COMM_MAX_RANKS], losses[COMM_MAX_RANKS];
    for (int i = 0; i < p->n_ranks; i++) counts[i] = (CommPart){1, sizeof *sums};
    list_parts(p, sizeof(double), losses);
    p->sums[p->rank] = *sums;
    comm_gather(r->comm, counts, sums_of, p, false);
    comm_gather(r->comm, losses, loss_of, p, false);
    if (p->rank > 0 || comm_check(r->comm, NULL)) return 0;
    GradientTree tree = {.merges = p->merges};
    for (int i = 1; i < p->n_ranks; i++) train_sums_add_counts(sums, &p->sums[i]);
    for (int k = 0; k < p->first[p->n_ranks]; k++) gradient_tree_push(&tree, p->nodes[k]);
    gradient_tree_finish(&tree);
    sums->loss += tree.n ? tree.nodes[0].loss : 0;
    return tree.n_merges;
}

/* Gathers the gradients on rank 0, which does the sums. */
static void gather_gradients(const Ranks *r, Parts *p, int n_merges) {
    CommPart parts[COMM_MAX_RANKS];
    int64_t n_weights = p->g->n_weights, n_chunk = min_i64(CHUNK, n_weights);
    for (p->at = 0; p->at < n_weights && comm_check(r->comm, NULL) == FR_OK; p->at += n_chunk) {
        int64_t n = min_i64(n_chunk, n_weights - p->at);
        list_parts(p, (size_t)n * sizeof(float), parts);
        comm_gather(r->comm, parts, chunk_of, p, false);
        for (int rank = 0; p->rank == 0 && rank < p->n_ranks; rank++)
            for (int k = p->first[rank]; k < p->first[rank + 1]; k++)
                p->chunks[k] = weights_of(p, rank, k - p->first[rank], n_chunk);
        if (p->rank == 0) gradient_merge(p->merges, n_merges, p->chunks, 0, n);
    }
}

/* Ends the group because of an error on this rank. */
static void end_group(const Ranks *r, const char *message) {
    char reason[sizeof((fr_error *)0)->message];
    int rank = comm_rank(r->comm);
    if (rank == 0) snprintf(reason, sizeof reason, "%s", message);
    else snprintf(reason, sizeof reason, "rank %d: %.480s", rank, message);
    comm_abort(r->comm, reason);
}

int train_ranks_add_up(const Ranks *r, Gradients *g, int64_t n, bool has_gradient, TrainSums *sums, int status,
                       fr_error *err) {
    fr_error why = {.code = FR_OK};
    Parts p;
    if (status || !r) {
        gradients_end(g, sums);
        if (status && r) end_group(r, err->message);
        return status;
    }
    status = parts_open(&p, r, g, n, has_gradient, &why);
    if (status) {
        end_group(r, why.message);
        return error_set(err, status, "%s", why.message);
    }
    int n_merges = gather_losses(r, &p, sums);
    if (has_gradient) gather_gradients(r, &p, n_merges);
    gradients_drop(g, p.rank == 0);
    arena_free(&p.arena);
    return comm_check(r->comm, err);
}
