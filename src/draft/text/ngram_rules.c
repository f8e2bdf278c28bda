/* ngram_rules.c - shared by both rules of ngram-trie: lists of places, their split by the next token, and a heap. */
#include "draft/text/ngram_rules.h"

#include <stdlib.h>
#include <string.h>

/* More than a draft of some dozen nodes needs; memory that is not touched costs nothing. */
enum { FIRST_PLACES = 1 << 14, FIRST_HEAP = 1 << 14 };

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
