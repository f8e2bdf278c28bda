/* gguf_recipes.h - malformed GGUF files, one line each: their contents, and the error that must result.
 */
#ifndef TESTS_GGUF_RECIPES_H
#define TESTS_GGUF_RECIPES_H

#include "base/error.h"
#include "base/mem.h"

/* bytes: words separated by blanks.
 *     u8:N u32:N u64:N   a number            b:TEXT   the letters themselves
 *     s:TEXT             a string: its length as u64, then its letters; "%XX" in TEXT is one byte
 *     z:N                N zero bytes         pad:N    zeros up to a multiple of N
 *     a:N                a string of N times 'a'
 */
typedef struct Recipe {
    const char *name;
    const char *bytes;
    fr_code code;
    const char *says; /* part of the error message */
} Recipe;

extern const Recipe gguf_recipes[];
extern const int n_gguf_recipes;

void recipe_cook(const Recipe *r, Buf *out);

#endif
