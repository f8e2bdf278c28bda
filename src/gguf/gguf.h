/* gguf.h - GGUF v2/v3 files: typed key-values, which are copied, and tensors, which are memory-mapped. No input file is
 * trusted.
 *
 * gguf_open checks every count, length, offset, type, shape and string of the file before it
 * returns, so that the accessors cannot fail on a damaged file: they only report that a key is missing or of another
 * type. All pointers that they return belong to the Gguf and live until gguf_close.
 */
#ifndef FORMAT_GGUF_H
#define FORMAT_GGUF_H

#include "base/error.h"
#include "gguf/tensor_type.h"

typedef struct Gguf Gguf;

/* The value types of the format, with the numbers of the format. */
typedef enum GgufType {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
} GgufType;

/* Bytes of a string in the file: not necessarily UTF-8 (token pieces may be raw bytes), and without a '\0' at the
 * end. */
typedef struct GgufString {
    const char *data;
    size_t n;
} GgufString;

enum { GGUF_MAX_DIMS = 4 };

/* Lists of tokens: the map of a drafter's own vocabulary, with the target's token for each of its own; and the tokens
 * of all clusters of an LM head, cluster by cluster. Only these tensors may hold integers. */
#define GGUF_MAP "d2t"
#define GGUF_CLUSTERS "masked_embd_ordering"

typedef struct GgufTensor {
    const char *name; /* '\0'-terminated, unique in the file */
    TensorType type;
    int n_dims;
    int64_t dims[GGUF_MAX_DIMS]; /* dims[0] is the contiguous one (row length); unused ones are 1 */
    const void *data;            /* aligned to the file's alignment (8 bytes to a page) */
    size_t bytes;
    bool is_i32, is_i64; /* integers of 32 or 64 bits, and `type` has no meaning: only lists of tokens may be that */
    size_t step;         /* in a view, bytes from one of its dims[2] matrices to the next; 0: they are contiguous */
} GgufTensor;

static inline bool gguf_is_list(const GgufTensor *t) { return t->is_i32 || t->is_i64; }

/* Maps the file. For a model in several files (NAME-00001-of-00003.gguf), maps all of them, which are found beside the
 * first, and joins their tensors and keys in one Gguf. On failure *out is NULL and err says why, starting with the
 * path. Only the data of tensors is read from the mapping later; gguf_check checks that the file is still the one that
 * was opened (base/files.h). */
int gguf_open(Gguf **out, const char *path, fr_error *err);
/* FR_ERR_IO if the file has been written to or cut since it was opened. Call it after tensors have been
 * read. NULL is fine. */
int gguf_check(const Gguf *g, fr_error *err);
/* Gives the memory of n bytes of tensors, which have been read and will not be needed soon, back to the system; it
 * reads them again when they are needed. */
void gguf_release(const Gguf *g, const void *begin, size_t n);
/* Does the same as gguf_open with bytes in memory, which must outlive the Gguf; tensor data is aligned no better
 * than the bytes. `name` is used in messages. */
int gguf_open_memory(Gguf **out, const void *bytes, size_t n, const char *name, fr_error *err);
void gguf_close(Gguf *g); /* NULL is fine */

const char *gguf_path(const Gguf *g);
uint32_t gguf_version(const Gguf *g);
int gguf_n_files(const Gguf *g);
size_t gguf_file_bytes(const Gguf *g); /* all files together */

/* The names of the files of a model in several: how many files the name of the first promises (1 for any other
 * name), and the path of file i (from 0) beside the first, or false where it is too long. */
enum { GGUF_MAX_PARTS = 1000, GGUF_MAX_PATH = 4096 };
int gguf_split_count(const char *path);
bool gguf_split_path(const char *first, int i, char out[GGUF_MAX_PATH]);

/* Tensors. */
int64_t gguf_n_tensors(const Gguf *g);
const GgufTensor *gguf_tensor(const Gguf *g, int64_t i);
const GgufTensor *gguf_find_tensor(const Gguf *g, const char *name); /* NULL: there is none; O(1) */

/* What tells weights apart: a hash of the name, shape and first bytes of a tensor, or of all its bytes; and
 * a hash of the names, shapes and first bytes of all tensors. */
uint64_t gguf_tensor_mark(const GgufTensor *t, bool whole);
uint64_t gguf_weights_mark(const Gguf *g);

/* Key-values, for listing. */
int64_t gguf_n_kv(const Gguf *g);
const char *gguf_key(const Gguf *g, int64_t i); /* '\0'-terminated, unique */
GgufType gguf_kv_type(const Gguf *g, int64_t i);
GgufType gguf_kv_element_type(const Gguf *g,
                              int64_t i);              /* the type of the elements of an array; else the type itself */
int64_t gguf_kv_count(const Gguf *g, int64_t i);       /* the number of elements of an array; else 1 */
int64_t gguf_find_key(const Gguf *g, const char *key); /* index or -1; O(1) */

/* Values by key. They return true if the key is there with a suitable type: an integer of any type if the value
 * fits, or a float of type F32 or F64. Otherwise *out is unchanged. */
bool gguf_get_u32(const Gguf *g, const char *key, uint32_t *out);
bool gguf_get_i64(const Gguf *g, const char *key, int64_t *out);
bool gguf_get_f32(const Gguf *g, const char *key, float *out);
bool gguf_get_bool(const Gguf *g, const char *key, bool *out);
bool gguf_get_string(const Gguf *g, const char *key, GgufString *out);

/* Elements of an array key-value; i must be below gguf_kv_count and the element type must fit. O(1). */
bool gguf_array_string(const Gguf *g, int64_t kv, int64_t i, GgufString *out);
bool gguf_array_f32(const Gguf *g, int64_t kv, int64_t i, float *out);
bool gguf_array_i64(const Gguf *g, int64_t kv, int64_t i, int64_t *out);
bool gguf_array_bool(const Gguf *g, int64_t kv, int64_t i, bool *out);

#endif
