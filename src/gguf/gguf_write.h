/* gguf_write.h - writes GGUF v3 files. Key-values and tensor infos are collected in memory; tensor data is borrowed
 * until gguf_writer_finish, which writes a temporary file beside the path and renames it. */
#ifndef FORMAT_GGUF_WRITE_H
#define FORMAT_GGUF_WRITE_H

#include "gguf/gguf.h"

typedef struct GgufWriter GgufWriter;

GgufWriter *gguf_writer_new(void); /* NULL: no memory */
void gguf_writer_free(GgufWriter *w);

/* Setters keep the first failure (no memory, a key set twice, an impossible shape), which gguf_writer_finish reports.
 * The key general.alignment sets the alignment of the file, whether it is set as u32 or copied. */
void gguf_set_u32(GgufWriter *w, const char *key, uint32_t v);
void gguf_set_u64(GgufWriter *w, const char *key, uint64_t v);
void gguf_set_f32(GgufWriter *w, const char *key, float v);
void gguf_set_bool(GgufWriter *w, const char *key, bool v);
void gguf_set_string(GgufWriter *w, const char *key, const char *v, size_t n);
void gguf_set_strings(GgufWriter *w, const char *key, const GgufString *v, int64_t n);
void gguf_set_f32s(GgufWriter *w, const char *key, const float *v, int64_t n);
void gguf_set_i32s(GgufWriter *w, const char *key, const int32_t *v, int64_t n);
/* Copies every key-value of `g` whose key does not start with `except_prefix` (NULL: all) and is not set yet. */
void gguf_copy_kvs(GgufWriter *w, const Gguf *g, const char *except_prefix);
void gguf_copy_kv(GgufWriter *w, const Gguf *g, int64_t i); /* one of them; its key must not be set yet */

/* Finds a key that begins with `prefix` and is set in only one of the two, or set to different values. Returns the
 * string of the writer or of the file; NULL if there is no such key, and "" if memory ran out. */
const char *gguf_writer_differs(const GgufWriter *w, const Gguf *g, const char *prefix);

/* `data` holds the rows in the encoding of `type` and is borrowed until finish. */
void gguf_add_tensor(GgufWriter *w, const char *name, TensorType type, int n_dims, const int64_t *dims,
                     const void *data);

/* Adds the map of a drafter's vocabulary (GGUF_MAP): the target's token for each of its n tokens; borrowed until
 * finish. */
void gguf_add_map(GgufWriter *w, const int64_t *tokens, int64_t n);
/* The same for the tokens of clusters (GGUF_CLUSTERS). */
void gguf_add_clusters(GgufWriter *w, const int32_t *tokens, int64_t n);

/* gguf_add_tensor with rows that are made while the file is written, for tensors too large to be in memory at once:
 * fill is called with consecutive ranges of rows (of dims[0] elements); dst has room for n_rows of them. */
typedef void (*GgufFill)(void *ctx, int64_t first_row, int64_t n_rows, void *dst);
void gguf_add_tensor_filled(GgufWriter *w, const char *name, TensorType type, int n_dims, const int64_t *dims,
                            GgufFill fill, void *ctx);
/* A fill calls this if its numbers are wrong: nothing more is written, and gguf_writer_finish fails with this sentence
 * after the path. */
void gguf_writer_refuse(GgufWriter *w, fr_code code, const char *sentence);

/* May be called once. A file at path is replaced in one moment; after a failure it is unchanged. */
int gguf_writer_finish(GgufWriter *w, const char *path, fr_error *err);

#endif
