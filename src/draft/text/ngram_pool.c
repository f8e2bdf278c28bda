/* ngram_pool.c - a fixed-size pool of the latest n-grams, looked up by their first token; ngram_pool.h describes it. */
#include "draft/text/ngram_pool.h"

#include "base/mem.h"

#include <stdbool.h>
#include <string.h>

int ngram_pool_open(NgramPool *p, int32_t capacity, int32_t longest, fr_error *err) {
    fr_assert(capacity > 0 && (capacity & (capacity - 1)) == 0 && longest > 0);
    *p = (NgramPool){.capacity = capacity, .longest = longest};
    size_t n = (size_t)capacity, n_tokens = n * (size_t)longest;
    p->tokens = mem_calloc(n_tokens, sizeof *p->tokens);
    p->keys = mem_calloc(n, sizeof *p->keys);
    p->lengths = mem_calloc(n, sizeof *p->lengths);
    p->before = mem_calloc(n, sizeof *p->before);
    p->heads = mem_calloc(n, sizeof *p->heads);
    if (!p->tokens || !p->keys || !p->lengths || !p->before || !p->heads)
        return error_memory(err, "a pool of n-grams", n_tokens * sizeof *p->tokens);
    ngram_pool_clear(p);
    return FR_OK;
}

void ngram_pool_close(NgramPool *p) {
    mem_free(p->tokens);
    mem_free(p->keys);
    mem_free(p->lengths);
    mem_free(p->before);
    mem_free(p->heads);
    *p = (NgramPool){0};
}

void ngram_pool_clear(NgramPool *p) {
    p->n_added = 0;
    memset(p->heads, -1, (size_t)p->capacity * sizeof *p->heads);
}

static int64_t *head_of(const NgramPool *p, int32_t key) {
    return &p->heads[((uint32_t)key * 2654435761u >> 7) & (uint32_t)(p->capacity - 1)];
}

static size_t place_of(const NgramPool *p, int64_t number) { return (size_t)(number & (p->capacity - 1)); }

void ngram_pool_add(NgramPool *p, int32_t key, const int32_t *tokens, int32_t n) {
    fr_assert(n >= 1 && n <= p->longest);
    int64_t *head = head_of(p, key);
    size_t place = place_of(p, p->n_added);
    memcpy(p->tokens + place * (size_t)p->longest, tokens, (size_t)n * sizeof *tokens);
    p->keys[place] = key;
    p->lengths[place] = n;
    p->before[place] = *head;
    *head = p->n_added++;
}

/* Whether `gram` is a prefix of one of the known n-grams. */
static bool is_known(const PoolGram *known, int32_t n_known, const PoolGram *gram) {
    for (int32_t i = 0; i < n_known; i++)
        if (known[i].n >= gram->n && memcmp(known[i].tokens, gram->tokens, (size_t)gram->n * sizeof *gram->tokens) == 0)
            return true;
    return false;
}

int32_t ngram_pool_find(const NgramPool *p, int32_t key, int32_t max, PoolGram *out) {
    int64_t number = *head_of(p, key), oldest = p->n_added - p->capacity;
    int32_t n = 0;
    for (int32_t visit = 0; visit < POOL_MAX_VISITS && n < max && number >= 0 && number >= oldest; visit++) {
        size_t place = place_of(p, number);
        out[n] = (PoolGram){p->keys[place], p->lengths[place], p->tokens + place * (size_t)p->longest};
        if (out[n].key == key && !is_known(out, n, &out[n])) n++;
        number = p->before[place];
    }
    return n;
}
