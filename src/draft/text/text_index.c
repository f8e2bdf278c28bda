/* text_index.c - how drafters store text so that parts of it are found again. text_index.h describes the layouts. */
#include "draft/text/text_index.h"

#include "base/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_CAPACITY = 1024, MAX_TOKENS = 1 << 28 };

/* ---- the text of a sequence ------------------------------------------------------------------------------ */

/* The hash table maps a token to its latest position and its number of contexts. It only grows, by doubling, and is
 * at most half full. Memory is taken with malloc, because texts grow to sizes that are not known in advance. */

static int32_t slot_of(const NgramText *t, int32_t token) {
    uint32_t mask = (uint32_t)t->n_slots - 1;
    for (uint32_t i = (uint32_t)(keyed_hash_u64(&t->key, (uint32_t)token) >> 32);; i++) {
        const NgramEntry *e = &t->table[i & mask];
        if (e->token == token || e->token < 0) return (int32_t)(i & mask);
    }
}

static const NgramEntry *find(const NgramText *t, int32_t token) {
    if (t->n_slots == 0) return NULL;
    const NgramEntry *e = &t->table[slot_of(t, token)];
    return e->token < 0 ? NULL : e;
}

/* Makes room in the table for n distinct tokens. */
static bool grow_table(NgramText *t, int64_t n) {
    if (2 * n <= t->n_slots) return true;
    NgramText wider = *t;
    if (t->n_slots == 0) wider.key = hash_key_new();
    wider.n_slots = t->n_slots ? t->n_slots : MIN_CAPACITY / 2;
    while (wider.n_slots < 2 * n) wider.n_slots *= 2;
    wider.table = malloc((size_t)wider.n_slots * sizeof *wider.table);
    if (!wider.table) return false;
    for (int32_t i = 0; i < wider.n_slots; i++) wider.table[i].token = -1;
    for (int32_t i = 0; i < t->n_slots; i++)
        if (t->table[i].token >= 0) wider.table[slot_of(&wider, t->table[i].token)] = t->table[i];
    free(t->table);
    t->table = wider.table;
    t->n_slots = wider.n_slots;
    t->key = wider.key;
    return true;
}

static bool grow_arrays(NgramText *t, int64_t n) {
    if (n <= t->capacity) return true;
    int64_t capacity = t->capacity ? t->capacity : MIN_CAPACITY;
    while (capacity < n) capacity += capacity / 2;
    int32_t *tokens = realloc(t->tokens, (size_t)capacity * sizeof *tokens);
    if (!tokens) return false;
    t->tokens = tokens;
    int32_t *previous = realloc(t->previous, (size_t)capacity * sizeof *previous);
    if (!previous) return false;
    t->previous = previous;
    t->capacity = (int32_t)capacity;
    return true;
}

/* Keeps `top` sorted after e has gained one context. Counts rise by one at a time, so a token outside the list can only
 * overtake the last one in it. Among equal counts, the token that was counted last comes first. */
static void update_top(NgramText *t, const NgramEntry *e) {
    NgramEntry *top = t->top;
    int32_t i = 0;
    while (i < t->n_top && top[i].token != e->token) i++;
    if (i == t->n_top) {
        if (t->n_top < NGRAM_N_TOP) t->n_top++;
        else if (top[--i].n_contexts > e->n_contexts) return;
    }
    for (; i > 0 && top[i - 1].n_contexts <= e->n_contexts; i--) top[i] = top[i - 1];
    top[i] = *e;
}

/* Enters the next position, t->n_indexed, into the chains. */
static bool index_next(NgramText *t) {
    if (!grow_table(t, t->n_entries + 1)) return false;
    int32_t place = t->n_indexed, token = t->tokens[place];
    NgramEntry *e = &t->table[slot_of(t, token)];
    if (e->token < 0) {
        *e = (NgramEntry){.token = token, .last = -1};
        t->n_entries++;
    }
    int32_t before = e->last;
    bool known = before > 0 && t->tokens[before - 1] == t->tokens[place - 1];
    t->previous[place] = before;
    e->last = place;
    t->n_indexed++;
    if (known) return true;
    e->n_contexts++;
    t->n_contexts++;
    update_top(t, e);
    return true;
}

int ngram_text_reserve(NgramText *t, int64_t n, int32_t n_vocab, fr_error *err) {
    if (n <= MAX_TOKENS && grow_arrays(t, n) && grow_table(t, n < n_vocab ? n : n_vocab)) return FR_OK;
    return error_memory(err, "the n-gram text", (size_t)n * 2 * sizeof(int32_t));
}

int ngram_text_append(NgramText *t, const int32_t *tokens, int64_t n, int32_t n_vocab, bool indexed, fr_error *err) {
    fr_assert(!indexed || t->n_indexed == t->n);
    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= n_vocab)
            return error_set(err, FR_ERR_ARGUMENT, "a drafter: token %d is outside the vocabulary of %d tokens",
                             tokens[i], n_vocab);
    if (n > MAX_TOKENS - t->n)
        return error_set(err, FR_ERR_CONTEXT, "a drafter: a text is limited to %d tokens", MAX_TOKENS);
    if (!grow_arrays(t, t->n + n))
        return error_memory(err, "the n-gram text", (size_t)(t->n + n) * 2 * sizeof(int32_t));
    if (n > 0) memcpy(t->tokens + t->n, tokens, (size_t)n * sizeof *tokens);
    t->n += (int32_t)n;
    while (indexed && t->n_indexed < t->n)
        if (!index_next(t)) return error_memory(err, "the n-gram table", 2 * (size_t)t->n_slots * sizeof(NgramEntry));
    return FR_OK;
}

void ngram_text_touch(NgramText *t) {
    size_t n_free = (size_t)(t->capacity - t->n) * sizeof(int32_t);
    if (n_free == 0) return;
    memset(t->tokens + t->n, 0, n_free);
    memset(t->previous + t->n, 0, n_free);
}

void ngram_text_keep_last(NgramText *t, int32_t keep) {
    fr_assert(keep >= 0 && keep <= t->n && t->n_indexed == t->n);
    if (t->n == 0) return;
    memmove(t->tokens, t->tokens + (t->n - keep), (size_t)keep * sizeof *t->tokens);
    for (int32_t i = 0; i < t->n_slots; i++) t->table[i].token = -1;
    t->n = keep;
    t->n_indexed = t->n_entries = t->n_top = 0;
    t->n_contexts = 0;
    while (t->n_indexed < t->n) (void)index_next(t); /* the table had room for these tokens before */
}

void ngram_text_free(NgramText *t) {
    free(t->tokens);
    free(t->previous);
    free(t->table);
    *t = (NgramText){.n = 0};
}

size_t ngram_text_bytes(const NgramText *t) {
    return sizeof *t + (size_t)t->capacity * 2 * sizeof(int32_t) + (size_t)t->n_slots * sizeof(NgramEntry);
}

int32_t ngram_text_last(const NgramText *t, int32_t token) {
    const NgramEntry *e = find(t, token);
    return e ? e->last : -1;
}

double ngram_text_share(const NgramText *t, int32_t token) {
    const NgramEntry *e = find(t, token);
    return e ? (double)e->n_contexts / (double)t->n_contexts : 0;
}

int32_t ngram_text_match(const NgramText *t, int32_t place, int32_t max) {
    int32_t m = 0, end = t->n - 1;
    while (m < max && m <= place && t->tokens[place - m] == t->tokens[end - m]) m++;
    return m;
}

/* ---- a trie with counts ---------------------------------------------------------------------------------- */

/* Forgetting (decay) compacts the array in place. It needs no memory, so a full trie can always make room. The hash
 * table and the lists of children are rebuilt afterwards. */

/* Returns the slot of (parent, token), or the free slot where it belongs. */
static int32_t trie_slot(const CountTrie *t, int32_t parent, int32_t token) {
    uint32_t mask = (uint32_t)t->n_slots - 1;
    for (uint32_t i = (uint32_t)(keyed_hash_pair(&t->key, parent, token) >> 32);; i++) {
        int32_t node = t->slots[i & mask];
        if (node == 0 || (t->nodes[node].parent == parent && t->nodes[node].token == token)) return (int32_t)(i & mask);
    }
}

/* Enters the nodes into a cleared table and links them as children. */
static void link_all(CountTrie *t) {
    memset(t->slots, 0, (size_t)t->n_slots * sizeof *t->slots);
    for (int32_t i = 0; i < t->n; i++) t->nodes[i].first_child = 0;
    for (int32_t i = 1; i < t->n; i++) {
        CountNode *node = &t->nodes[i];
        t->slots[trie_slot(t, node->parent, node->token)] = i;
        node->next_sibling = t->nodes[node->parent].first_child;
        t->nodes[node->parent].first_child = i;
    }
}

static bool grow_trie(CountTrie *t, int32_t capacity) {
    int32_t n_slots = t->n_slots ? t->n_slots : 2 * MIN_CAPACITY;
    while (n_slots < 2 * capacity) n_slots *= 2;
    CountNode *nodes = realloc(t->nodes, (size_t)capacity * sizeof *nodes);
    if (nodes) t->nodes = nodes;
    if (!nodes) return false;
    if (n_slots > t->n_slots) {
        int32_t *slots = malloc((size_t)n_slots * sizeof *slots);
        if (!slots) return false;
        free(t->slots);
        t->slots = slots;
        t->n_slots = n_slots;
        link_all(t);
    }
    t->capacity = capacity;
    return true;
}

int count_trie_open(CountTrie *t, int32_t max, fr_error *err) {
    fr_assert(max > 0 && max <= INT32_MAX / 8);
    *t = (CountTrie){.max = max, .key = hash_key_new()};
    if (!grow_trie(t, max < MIN_CAPACITY ? max : MIN_CAPACITY)) {
        count_trie_free(t);
        return error_memory(err, "a trie", MIN_CAPACITY * sizeof *t->nodes);
    }
    count_trie_clear(t);
    return FR_OK;
}

int count_trie_take_all(CountTrie *t, fr_error *err) {
    if (t->capacity < t->max && !grow_trie(t, t->max))
        return error_memory(err, "a trie", (size_t)t->max * sizeof *t->nodes);
    memset(t->nodes + t->n, 0, (size_t)(t->max - t->n) * sizeof *t->nodes);
    return FR_OK;
}

void count_trie_free(CountTrie *t) {
    free(t->nodes);
    free(t->slots);
    *t = (CountTrie){.n = 0};
}

void count_trie_clear(CountTrie *t) {
    t->n = 1;
    t->nodes[0] = (CountNode){.token = -1, .parent = -1};
    link_all(t);
}

int32_t count_trie_child(const CountTrie *t, int32_t parent, int32_t token) {
    return t->slots[trie_slot(t, parent, token)];
}

int32_t count_trie_touch(CountTrie *t, int32_t parent, int32_t token) {
    int32_t slot = trie_slot(t, parent, token), i = t->slots[slot];
    if (i == 0) {
        fr_assert(t->n < t->capacity);
        i = t->slots[slot] = t->n++;
        t->nodes[i] = (CountNode){.token = token, .parent = parent, .next_sibling = t->nodes[parent].first_child};
        t->nodes[parent].first_child = i;
    }
    if (t->nodes[i].count < INT32_MAX) t->nodes[i].count++;
    return i;
}

/* Drops the nodes counted once and halves the other counts. A child is never counted more often than its parent, so
 * what remains is a trie; parents come first, so the parent's new index is known when a child moves. Meanwhile the
 * new index of a node is kept in first_child of its old slot, since the links are rebuilt afterwards: no memory is
 * needed. */
static void decay(CountTrie *t, int32_t *cursors, int64_t n_cursors) {
    int32_t n = 1;
    CountNode *nodes = t->nodes;
    nodes[0].first_child = 0;
    for (int32_t i = 1; i < t->n; i++) {
        CountNode node = nodes[i];
        nodes[i].first_child = node.count > 1 ? n : -1;
        if (node.count <= 1) continue;
        nodes[n].token = node.token;
        nodes[n].parent = nodes[node.parent].first_child;
        nodes[n++].count = node.count / 2;
    }
    for (int64_t i = 0; i < n_cursors; i++)
        if (cursors[i] >= 0) cursors[i] = nodes[cursors[i]].first_child;
    t->n = n;
}

bool count_trie_reserve(CountTrie *t, int32_t n, int32_t *cursors, int64_t n_cursors) {
    if (t->n + n <= t->capacity) return true;
    if (t->n + n <= t->max) {
        int32_t capacity = t->capacity < t->max / 2 ? 2 * t->capacity : t->max;
        return grow_trie(t, capacity < t->n + n ? t->n + n : capacity);
    }
    while (t->n > t->max - t->max / 4) decay(t, cursors, n_cursors);
    link_all(t);
    return true;
}

/* ---- a pool of n-grams ----------------------------------------------------------------------------------- */

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

/* Returns whether `gram` is a prefix of one of the known n-grams. */
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

/* ---- lists of places --------------------------------------------------------------------------------- */

/* A draft of a few dozen nodes needs less than this; memory that is never written to costs nothing. */
enum { FIRST_PLACES = 1 << 14, FIRST_HEAP = 1 << 14 };

void ngram_scratch_close(NgramScratch *s) {
    free(s->group_of);
    free(s->places);
    free(s->sorted);
    free(s->groups);
    free(s->heap);
    *s = (NgramScratch){.n_vocab = 0};
}

bool ngram_scratch_reserve(NgramScratch *s, int64_t n) {
    int64_t want = s->n_places + n;
    if (want <= s->places_capacity) return true;
    if (want > INT32_MAX / 2) return false;
    size_t capacity = (size_t)want + (size_t)want / 2;
    NgramPlace *places = realloc(s->places, capacity * sizeof *places);
    if (places) s->places = places;
    NgramPlace *sorted = realloc(s->sorted, capacity * sizeof *sorted);
    if (sorted) s->sorted = sorted;
    NgramGroup *groups = realloc(s->groups, capacity * sizeof *groups);
    if (groups) s->groups = groups;
    if (!places || !sorted || !groups) return false;
    s->places_capacity = (int32_t)capacity;
    return true;
}

int ngram_scratch_open(NgramScratch *s, int32_t n_vocab, fr_error *err) {
    *s = (NgramScratch){.n_vocab = n_vocab};
    s->group_of = malloc((size_t)n_vocab * sizeof *s->group_of);
    s->heap_capacity = FIRST_HEAP;
    s->heap = malloc(FIRST_HEAP * sizeof *s->heap);
    if (!s->group_of || !s->heap || !ngram_scratch_reserve(s, FIRST_PLACES)) {
        ngram_scratch_close(s);
        return error_memory(err, "ngram-trie", (size_t)n_vocab * sizeof *s->group_of);
    }
    for (int32_t i = 0; i < n_vocab; i++) s->group_of[i] = -1;
    return FR_OK;
}

int32_t ngram_split(NgramScratch *s, const NgramText *t, int32_t begin, int32_t n, int32_t max_match) {
    NgramPlace *list = s->places + begin;
    int32_t n_groups = 0, n_kept = 0, at = 0;
    for (int32_t i = 0; i < n; i++) {
        NgramPlace p = list[i];
        p.at++;
        if (p.match < max_match) p.match++;
        if (p.at >= t->n_indexed) continue;
        list[n_kept++] = p;
        int32_t *group = &s->group_of[t->tokens[p.at]];
        if (*group < 0) s->groups[ *group = n_groups++] = (NgramGroup){.token = t->tokens[p.at]};
        s->groups[*group].n++;
    }
    for (int32_t g = 0; g < n_groups; g++) {
        s->groups[g].begin = begin + at;
        at += s->groups[g].n;
        s->groups[g].n = 0;
    }
    for (int32_t i = 0; i < n_kept; i++) {
        NgramGroup *g = &s->groups[s->group_of[t->tokens[list[i].at]]];
        s->sorted[g->begin - begin + g->n++] = list[i];
    }
    memcpy(list, s->sorted, (size_t)n_kept * sizeof *list);
    for (int32_t g = 0; g < n_groups; g++) s->group_of[s->groups[g].token] = -1;
    return n_groups;
}

static bool before(const NgramCandidate *a, const NgramCandidate *b) {
    return a->score > b->score || (a->score == b->score && a->tie < b->tie);
}

bool ngram_heap_push(NgramScratch *s, NgramCandidate c) {
    if (s->n_heap == s->heap_capacity) {
        int32_t capacity = 2 * s->heap_capacity;
        NgramCandidate *heap = realloc(s->heap, (size_t)capacity * sizeof *heap);
        if (!heap) return false;
        s->heap = heap;
        s->heap_capacity = capacity;
    }
    int32_t i = s->n_heap++;
    for (; i > 0 && before(&c, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
    return true;
}

NgramCandidate ngram_heap_pop(NgramScratch *s) {
    NgramCandidate top = s->heap[0], last = s->heap[--s->n_heap];
    int32_t i = 0;
    for (int32_t child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!before(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}
