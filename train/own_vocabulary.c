/* own_vocabulary.c - the vocabulary and the embedding of a drafter that has its own: chosen, or read from the file that
 * a training goes on from, and written to the new file. The drafter has only some of the target's tokens; its embedding
 * has rows for all of them and is not trained. */
#include "draft/learned/learned_files.h"
#include "train/nets.h"

#include <string.h>

#define EMBEDDING EAGLE3_EMBEDDING /* DFLASH_EMBEDDING is the same */

int own_vocabulary_set(OwnVocabulary *v, HeadLossOptions *loss, const int32_t *tokens, int32_t n, int32_t V,
                       Arena *arena, fr_error *err) {
    int32_t *own_of, *copy;
    int64_t *map;
    const ArenaItem items[] = {ARENA_ITEM(&own_of, V), ARENA_ITEM(&copy, n), ARENA_ITEM(&map, n)};
    int status = arena_take(arena, items, ARENA_COUNT(items), "a drafter's vocabulary", err);
    if (status) return status;
    for (int32_t i = 0; i < V; i++) own_of[i] = -1;
    for (int32_t i = 0; i < n; i++) own_of[tokens[i]] = i, copy[i] = tokens[i], map[i] = tokens[i];
    v->tokens = copy;
    v->map = map;
    loss->own_of = own_of;
    loss->n_own = n;
    return FR_OK;
}

/* Copies the embedding: as it is for the new file, and as floats for the net. */
static int read_embedding(OwnVocabulary *v, DrafterFile *f, int32_t V, int64_t C, Arena *arena, fr_error *err) {
    const GgufTensor *t;
    if (!drafter_file_has(f, EMBEDDING)) return FR_OK;
    int status = drafter_file_matrix(f, EMBEDDING, C, V, &t, err);
    if (status) return status;
    int64_t n = t->dims[0] * t->dims[1];
    float *floats;
    char *copy;
    GgufTensor *tensor;
    const ArenaItem items[] = {ARENA_ITEM(&floats, n), ARENA_ITEM(&copy, t->bytes), ARENA_ITEM(&tensor, 1)};
    status = arena_take(arena, items, ARENA_COUNT(items), EMBEDDING, err);
    if (status) return status;
    blocks_dequantize(t->type, t->data, n, floats);
    memcpy(copy, t->data, t->bytes);
    *tensor = *t;
    tensor->data = copy;
    v->embd = floats;
    v->embedding = tensor;
    return FR_OK;
}

int own_vocabulary_read(OwnVocabulary *v, HeadLossOptions *loss, DrafterFile *f, int32_t V, int64_t C, Arena *arena,
                        fr_error *err) {
    int32_t n = V, *tokens = NULL;
    int status = drafter_file_map(f, V, &tokens, &n, err);
    if (!status && tokens) status = own_vocabulary_set(v, loss, tokens, n, V, arena, err);
    mem_free(tokens);
    return status ? status : read_embedding(v, f, V, C, arena, err);
}

void own_vocabulary_write(GgufWriter *w, const OwnVocabulary *v, int32_t n) {
    if (v->map) gguf_add_map(w, v->map, n);
    if (v->embedding) gguf_add_tensor(w, EMBEDDING, v->embedding->type, 2, v->embedding->dims, v->embedding->data);
}

bool own_vocabulary_keeps(const OwnVocabulary *v, const char *name) {
    return (v->map && strcmp(name, GGUF_MAP) == 0) || (v->embedding && strcmp(name, EMBEDDING) == 0);
}
