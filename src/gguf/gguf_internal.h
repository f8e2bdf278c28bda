/* gguf_internal.h - the fields of a Gguf, which reading, parsing and writing share. */
#ifndef FORMAT_GGUF_INTERNAL_H
#define FORMAT_GGUF_INTERNAL_H

#include "base/hash.h"
#include "base/files.h"
#include "gguf/gguf.h"

/* Limits far above every real file. Because of them, and because each entry takes bytes of the file, the memory of
 * an opened file is proportional to the size of its header. */
enum {
    GGUF_MAX_ENTRIES = 1 << 20, /* key-values, and tensors */
    GGUF_MAX_KEY_BYTES = 1024,
    GGUF_MAX_TENSOR_NAME_BYTES = 255,
    GGUF_MIN_ALIGNMENT = 8,
    GGUF_DEFAULT_ALIGNMENT = 32,
    GGUF_MAX_ALIGNMENT = 65536,
    GGUF_TENSOR_I32 = 26, /* the types of lists of tokens in tensor infos */
    GGUF_TENSOR_I64 = 27,
};

typedef struct KeyValue {
    const char *key;
    GgufType type;
    GgufType element;       /* the type of an array's elements; else the type itself */
    int64_t count;          /* the number of an array's elements; else 1 */
    const uint8_t *payload; /* a copy of the value, for arrays from the first element on; unaligned */
    size_t payload_bytes;
    const size_t *strings; /* [count + 1] for arrays of strings, the offset of each element from payload, and the end */
} KeyValue;

/* Parse-time memory comes in chunks that are freed together. */
typedef struct Chunk Chunk;

struct Gguf {
    char *path;
    const uint8_t *bytes;
    size_t n_bytes;
    MappedFile *file; /* NULL: bytes in memory that are the caller's */
    Gguf **parts;     /* [n_parts - 1] the other files of a model in several, owned; NULL: there are none */
    int n_parts;
    uint32_t version;
    size_t alignment;
    KeyValue *kvs;
    int64_t n_kv;
    GgufTensor *tensors;
    int64_t n_tensors;
    HashTable keys, names; /* index of a key-value, of a tensor */
    Chunk *chunks;
};

/* Fills everything after `file`; what it allocated before a failure is freed by gguf_close. */
int gguf_parse(Gguf *g, fr_error *err);

/* Returns bytes of a scalar of the type in the file; 0 for strings, arrays and unknown types. */
size_t gguf_scalar_bytes(uint32_t type);

/* Memory that lives until gguf_close, aligned for any object; NULL: no memory. */
void *gguf_allocate(Gguf *g, size_t bytes);

#endif
