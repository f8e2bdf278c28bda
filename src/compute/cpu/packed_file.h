/* packed_file.h - packed weights in a file, which is mapped in place of packing them at each start (`forerun
 * repack`). */
#ifndef CPU_PACKED_FILE_H
#define CPU_PACKED_FILE_H

#include "base/files.h"
#include "compute/ranks/comm.h"
#include "gguf/gguf.h"

/* The version of the layout of matrices (kernels/pack.c) and of their order (cpu_weights.c). A change of either one
 * raises this number; tests/compute/test_packed_file.c fails otherwise. */
enum { PACKED_FILE_VERSION = 1 };

/* Writes the matrices [matrix_bytes] and the embedding [embedding_bytes, may be 0] of the model in `source`. */
int packed_file_write(const char *path, const Gguf *source, const void *matrices, size_t matrix_bytes,
                      const void *embedding, size_t embedding_bytes, int n_threads, fr_error *err);

/* What one of several ranks reads: bytes of the matrices. */
typedef struct PackedRange {
    size_t at, bytes;
} PackedRange;
typedef struct PackedReader {
    Comm *comm;
    const PackedRange *ranges; /* [n_ranges] */
    int64_t n_ranges;
} PackedReader;

/* Maps a file that was written for the same source, of the same sizes, and is whole; both pointers are aligned to a
 * cache line and live as long as *out. reader NULL: all of it is read, and the pages that were checked stay in the
 * memory of the process. Otherwise what the rank reads is right; every rank calls this or packed_ranks_abstain. */
int packed_file_open(MappedFile **out, const char *path, const Gguf *source, size_t matrix_bytes,
                     size_t embedding_bytes, const PackedReader *reader, int n_threads, const void **matrices,
                     const void **embedding, fr_error *err);

/* ---- the check of the content ----------------------------------------------------------------------------------- */

enum { PACKED_CHUNK_BYTES = 1 << 20 };

/* Everything after the header. */
typedef struct PackedContent {
    const char *bytes;
    size_t n;
    bool is_last_use; /* the bytes are mapped, and their pages are given back after hashing */
    int n_threads;
} PackedContent;

int64_t packed_n_chunks(const PackedContent *c);
/* Computes the hashes of the chunks i for which wanted[i], or of all of them if it is NULL. */
void packed_hash_chunks(const PackedContent *c, const bool *wanted, uint64_t *hashes);
uint64_t packed_hash_of_chunks(const PackedContent *c, const uint64_t *hashes);

/* ---- ranks (packed_ranks.c) ------------------------------------------------------------------------------------- */

/* Computes the hash of the content, which the header has as content_hash, together with the other ranks. Returns false
 * if there is no memory. */
bool packed_ranks_hash(const PackedReader *reader, const PackedContent *c, uint64_t content_hash, uint64_t *hash);
/* Tells the other ranks that this one uses no file. */
void packed_ranks_abstain(Comm *comm);

#endif
