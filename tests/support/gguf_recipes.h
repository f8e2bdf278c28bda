/* gguf_recipes.h - malformed GGUF files as one line each: what stands in them, and what must be said of them.
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
    const char *says; /* stands in the message */
} Recipe;

extern const Recipe gguf_recipes[];
extern const int n_gguf_recipes;

void recipe_cook(const Recipe *r, Buf *out);

#endif
