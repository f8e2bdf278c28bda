/* packed_file.h - packed weights in a file, which is mapped in place of packing them at each start (`forerun
 * repack`). */
#ifndef CPU_PACKED_FILE_H
#define CPU_PACKED_FILE_H

#include "base/files.h"
#include "gguf/gguf.h"

/* The version of the layout of matrices (kernels/pack.c) and of their order (cpu_weights.c). A change of either one
 * raises this number; tests/compute/test_packed_file.c fails otherwise. */
enum { PACKED_FILE_VERSION = 1 };

/* Writes the matrices [matrix_bytes] and the embedding [embedding_bytes, may be 0] of the model in `source`. */
int packed_file_write(const char *path, const Gguf *source, const void *matrices, size_t matrix_bytes,
                      const void *embedding, size_t embedding_bytes, int n_threads, fr_error *err);

/* Maps a file that was written for the same source, of the same sizes, and is whole; both pointers are aligned to a
 * cache line and live as long as *out. keeps_pages: the pages that were checked stay in the memory of the process. */
int packed_file_open(MappedFile **out, const char *path, const Gguf *source, size_t matrix_bytes,
                     size_t embedding_bytes, bool keeps_pages, int n_threads, const void **matrices,
                     const void **embedding, fr_error *err);

#endif
