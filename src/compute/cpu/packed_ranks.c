/* packed_ranks.c - ranks check files of packed weights together, so that each of them reads only its own part.
 *
 * The problem. A file is used only if the hash of all its bytes is the one in its header (packed_file.c). A rank copies
 * only its tiles, but to compute that hash it had to read the tiles of all others, too: N machines read N times what
 * they need.
 *
 * The idea. The hash is one of the hashes of chunks of 1 MiB. A rank hashes the chunks that contain its tiles, in its
 * own file, and gets the hashes of the other chunks from ranks that have hashed them, in theirs.
 *
 *     chunk       0  1  2  3  4
 *     rank 0      x  x  .  .  .     x: contains tiles of the rank
 *     rank 1      .  x  x  .  x     chunk 3 (an embedding that ranks read elsewhere) is hashed by rank 3 % 2 = 1
 *
 * Rank 0 takes chunks 2 to 4 from rank 1, and rank 1 takes chunk 0 from rank 0. Of chunk 1 each has a hash of its own.
 *
 * Why that is as strong. Files of ranks may be the same file or copies on several machines. Every byte that a rank uses
 * is in a chunk that it has hashed in its own file. If one of these is not what `forerun repack` has written, its hash
 * is another one, and then so is the hash of all, whatever the other ranks have sent. A rank does not learn whether
 * tiles that it never reads are damaged in its own copy. All copies must have the same hash in their headers, which
 * belong to the ranks' models; otherwise, and if a rank has no file, each rank checks the whole of its own.
 *
 * A damaged chunk makes the hash wrong for all ranks that take it from another rank, so usually all of them pack the
 * model's file then. That costs time and changes no bit.
 *
 * Cost: three exchanges, of 9 bytes for each MiB and rank. Proof: packed_files_are_checked_by_parts in
 * tests/compute/test_ranks.c. */
#include "compute/cpu/packed_file.h"

#include "base/mem.h"

#include <string.h>

/* What a rank says of its file. */
typedef struct Offer {
    int64_t n_chunks; /* 0: it has no file that could be used */
    uint64_t content_hash;
} Offer;

/* Rows of equal size, of which each rank has one. */
typedef struct RankRow {
    char *rows;
    size_t bytes;
} RankRow;

static char *row_of(const void *ctx, int rank, int64_t i) {
    (void)i;
    const RankRow *r = ctx;
    return r->rows + (size_t)rank * r->bytes;
}

/* Completes rows [n_ranks], of which each rank has filled its own. */
static void gather_rows(Comm *comm, void *rows, size_t bytes) {
    CommPart parts[COMM_MAX_RANKS];
    const RankRow r = {rows, bytes};
    for (int i = 0; i < comm_size(comm); i++) parts[i] = (CommPart){1, bytes};
    comm_gather(comm, parts, row_of, &r, true);
}

/* Returns whether all ranks have files of the same content, according to their headers. */
static bool have_same(Comm *comm, Offer own) {
    Offer all[COMM_MAX_RANKS] = {{0}};
    bool same = own.n_chunks > 0;
    all[comm_rank(comm)] = own;
    gather_rows(comm, all, sizeof *all);
    for (int i = 0; i < comm_size(comm); i++)
        same = same && all[i].n_chunks == own.n_chunks && all[i].content_hash == own.content_hash;
    return same && !comm_check(comm, NULL);
}

void packed_ranks_abstain(Comm *comm) { have_same(comm, (Offer){.n_chunks = 0}); }

/* The first rank that reads chunk i, or one of all if none does. */
static int rank_of_chunk(const bool *reads, int n_ranks, int64_t n_chunks, int64_t i) {
    for (int rank = 0; rank < n_ranks; rank++)
        if (reads[rank * n_chunks + i]) return rank;
    return (int)(i % n_ranks);
}

static void mark_chunks(const PackedReader *reader, bool *out) {
    for (int64_t k = 0; k < reader->n_ranges; k++) {
        const PackedRange *r = &reader->ranges[k];
        if (r->bytes == 0) continue;
        size_t first = r->at / PACKED_CHUNK_BYTES, last = (r->at + r->bytes - 1) / PACKED_CHUNK_BYTES;
        memset(out + first, true, last - first + 1);
    }
}

/* Computes the hashes of all chunks. reads, hashes: [n_ranks][n_chunks]; wanted: [n_chunks]. They are in `out` then. */
static void hash_together(const PackedReader *reader, const PackedContent *c, bool *reads, bool *wanted,
                          uint64_t *hashes, uint64_t *out) {
    int n_ranks = comm_size(reader->comm), own = comm_rank(reader->comm);
    int64_t n = packed_n_chunks(c);
    mark_chunks(reader, reads + own * n);
    gather_rows(reader->comm, reads, (size_t)n * sizeof *reads);
    for (int64_t i = 0; i < n; i++) wanted[i] = reads[own * n + i] || rank_of_chunk(reads, n_ranks, n, i) == own;
    packed_hash_chunks(c, wanted, hashes + own * n);
    gather_rows(reader->comm, hashes, (size_t)n * sizeof *hashes);
    for (int64_t i = 0; i < n; i++) out[i] = hashes[(wanted[i] ? own : rank_of_chunk(reads, n_ranks, n, i)) * n + i];
}

bool packed_ranks_hash(const PackedReader *reader, const PackedContent *c, uint64_t content_hash, uint64_t *hash) {
    size_t n = (size_t)packed_n_chunks(c), n_ranks = (size_t)comm_size(reader->comm);
    bool same = have_same(reader->comm, (Offer){(int64_t)n, content_hash});
    uint64_t *hashes = mem_calloc((n_ranks + 1) * n, sizeof *hashes);
    bool *reads = mem_calloc((n_ranks + 1) * n, sizeof *reads);
    bool has_memory = hashes && reads;
    if (has_memory && same) {
        hash_together(reader, c, reads, reads + n_ranks * n, hashes, hashes + n_ranks * n);
        *hash = packed_hash_of_chunks(c, hashes + n_ranks * n);
    } else if (has_memory) {
        packed_hash_chunks(c, NULL, hashes);
        *hash = packed_hash_of_chunks(c, hashes);
    } else if (same) comm_abort(reader->comm, "out of memory: the packed weights cannot be checked");
    mem_free(hashes);
    mem_free(reads);
    return has_memory;
}
