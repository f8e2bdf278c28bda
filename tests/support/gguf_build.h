/* gguf_build.h - builds the bytes of a GGUF file piece by piece, so that each piece may be wrong. */
#ifndef TESTS_GGUF_BUILD_H
#define TESTS_GGUF_BUILD_H

#include "base/mem.h"
#include "gguf/gguf.h"

/* These append to a Buf, which must have room. */
void put_u8(Buf *b, uint8_t v);
void put_u32(Buf *b, uint32_t v);
void put_u64(Buf *b, uint64_t v);
void put_string(Buf *b, const char *s);
void put_header(Buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv);
void put_kv_u32(Buf *b, const char *key, uint32_t v);
void put_kv_string(Buf *b, const char *key, const char *v);
void put_tensor(Buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset);
void put_padding(Buf *b, size_t alignment); /* zeros up to a multiple of the alignment */
void put_zeros(Buf *b, size_t n);

/* Writes a valid small file with a key-value of every type and three tensors (F32, Q8_0, F16). */
void put_sound_file(Buf *b);

/* Reads every accessor of an open file: each key, each element, first and last bytes of each tensor, and some
 * dequantised values. Returns a checksum, so that nothing is optimised away. */
uint64_t touch_everything(const Gguf *g);

#endif
