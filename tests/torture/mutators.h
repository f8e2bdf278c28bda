/* mutators.h - ways to damage a file: without regard to its format, or by its structure, so that the damage passes
 * the first checks. All choices come from torture_random. */
#ifndef TORTURE_MUTATORS_H
#define TORTURE_MUTATORS_H

#include "torture.h"

typedef void Mutator(Torture *t, Buf *file);

/* Flips bits; sets, removes, doubles and exchanges ranges; cuts the file or appends to it. */
Mutator mutate_blind;
/* GGUF: counts, lengths, types, offsets, values, strings, key-values twice or not at all, NaN and infinity in
 * tensors. */
Mutator mutate_gguf;
/* A GGUF file with a hash that is corrected afterwards, as an attacker would do: a checkpoint of forerun. */
Mutator mutate_checkpoint;
/* The header of an index, or its places and tokens. */
Mutator mutate_index;
/* A curve of costs with its hash corrected. */
Mutator mutate_cost;
/* JSON or JSON lines: numbers, strings, nesting, keys, line ends. */
Mutator mutate_json;
/* A safetensors file: its JSON header, with or without the right length. */
Mutator mutate_safetensors;
/* JSON lines in zstd: damaged before compression, or a few bytes that decompress to very many. */
Mutator mutate_zstd;

/* Replaces `n` bytes at `at` by `n_new` others. */
void splice(Buf *file, size_t at, size_t n, const void *bytes, size_t n_new);
/* One of the integers at which checks often fail: around 0, powers of two, and the old value. */
uint64_t nasty_integer(Torture *t, uint64_t is);
/* Returns a text with control characters, escapes, format directives, or no valid UTF-8; *n may be large. */
const char *nasty_text(Torture *t, size_t *n);

#endif
