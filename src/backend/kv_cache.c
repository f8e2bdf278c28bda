#include "backend/kv_cache.h"

#include "base/mem.h"

#include <string.h>

int kv_open(KvCache *kv, const KvShape *shape, fr_error *err) {
    *kv = (KvCache){.shape = *shape};
    fr_assert(shape->page_size >= 1 && shape->n_pages >= 1 && shape->max_sequences >= 1);
    size_t bytes = kv_slot_bytes(kv), ctx_pages = (size_t)(shape->n_ctx / shape->page_size + 1);
    bool fits = size_mul(bytes, (size_t)kv_n_slots(kv), &bytes) &&
                size_mul(bytes, 2 * (size_t)shape->n_head_kv * (size_t)shape->n_layer, &bytes);
    if (fits) kv->data = mem_alloc(bytes);
    kv->ref_counts = mem_calloc((size_t)shape->n_pages, sizeof *kv->ref_counts);
    kv->free_pages = mem_calloc((size_t)shape->n_pages, sizeof *kv->free_pages);
    kv->sequences = mem_calloc((size_t)shape->max_sequences, sizeof *kv->sequences);
    bool complete = kv->data && kv->ref_counts && kv->free_pages && kv->sequences;
    for (int32_t i = 0; complete && i < shape->max_sequences; i++) {
        KvSequence *s = &kv->sequences[i];
        s->pages = mem_calloc(ctx_pages, sizeof *s->pages);
        s->slots = mem_calloc(ctx_pages * (size_t)shape->page_size, sizeof *s->slots);
        complete = s->pages && s->slots;
    }
    if (!complete) {
        kv_close(kv);
        return error_set(err, FR_ERR_MEMORY,
                         "out of memory: the KV cache of %d pages of %d tokens wants %zu bytes; ask for a smaller "
                         "context or fewer sequences", shape->n_pages, shape->page_size, fits ? bytes : SIZE_MAX);
    }
    for (int32_t p = 0; p < shape->n_pages; p++) kv->free_pages[p] = shape->n_pages - 1 - p;
    kv->n_free = shape->n_pages;
    return FR_OK;
}

void kv_close(KvCache *kv) {
    for (int32_t i = 0; kv->sequences && i < kv->shape.max_sequences; i++) {
        mem_free(kv->sequences[i].pages);
        mem_free(kv->sequences[i].slots);
    }
    mem_free(kv->sequences);
    mem_free(kv->free_pages);
    mem_free(kv->ref_counts);
    mem_free(kv->data);
    *kv = (KvCache){0};
}

static char *plane(const KvCache *kv, int64_t i_plane) {
    return kv->data + (size_t)i_plane * (size_t)kv_n_slots(kv) * kv_slot_bytes(kv);
}

char *kv_keys(const KvCache *kv, int32_t layer, int32_t head) {
    return plane(kv, (int64_t)layer * 2 * kv->shape.n_head_kv + head);
}

char *kv_values(const KvCache *kv, int32_t layer, int32_t head) {
    return plane(kv, ((int64_t)layer * 2 + 1) * kv->shape.n_head_kv + head);
}

/* Copies n slots in every plane. */
static void copy_slots(KvCache *kv, int32_t from, int32_t to, int32_t n) {
    size_t bytes = kv_slot_bytes(kv);
    for (int64_t i = 0; i < 2 * (int64_t)kv->shape.n_layer * kv->shape.n_head_kv; i++) {
        char *p = plane(kv, i);
        memmove(p + (size_t)to * bytes, p + (size_t)from * bytes, (size_t)n * bytes);
    }
}

static void set_page(KvCache *kv, KvSequence *s, int32_t i, int32_t page) {
    int32_t size = kv->shape.page_size;
    s->pages[i] = page;
    for (int32_t k = 0; k < size; k++) s->slots[i * size + k] = page * size + k;
}

static int32_t take_page(KvCache *kv) {
    int32_t page = kv->free_pages[--kv->n_free];
    kv->ref_counts[page] = 1;
    return page;
}

static void drop_page(KvCache *kv, int32_t page) {
    fr_assert(kv->ref_counts[page] > 0);
    if (--kv->ref_counts[page] == 0) kv->free_pages[kv->n_free++] = page;
}

static void drop_pages_from(KvCache *kv, KvSequence *s, int32_t n_kept) {
    while (s->n_pages > n_kept) drop_page(kv, s->pages[--s->n_pages]);
}

static int32_t pages_for(const KvCache *kv, int32_t n_tokens) {
    return (n_tokens + kv->shape.page_size - 1) / kv->shape.page_size;
}

static KvSequence *sequence_of(KvCache *kv, int32_t id) {
    fr_assert(id >= 0 && id < kv->shape.max_sequences && kv->sequences[id].open);
    return &kv->sequences[id];
}

int kv_sequence_open(KvCache *kv, int32_t *out, fr_error *err) {
    for (int32_t i = 0; i < kv->shape.max_sequences; i++)
        if (!kv->sequences[i].open) {
            KvSequence *s = &kv->sequences[i];
            s->open = true;
            s->length = s->n_reserved = s->n_pages = 0;
            *out = i;
            return FR_OK;
        }
    return error_set(err, FR_ERR_MEMORY, "all %d sequences of the KV cache are in use", kv->shape.max_sequences);
}

int kv_sequence_fork(KvCache *kv, int32_t from, int32_t *out, fr_error *err) {
    int status = kv_sequence_open(kv, out, err);
    if (!status) kv_sequence_share(kv, from, *out, sequence_of(kv, from)->length);
    return status;
}

void kv_sequence_share(KvCache *kv, int32_t from, int32_t to, int32_t n) {
    KvSequence *parent = sequence_of(kv, from), *s = sequence_of(kv, to);
    fr_assert(from != to && n >= 0 && n <= parent->length);
    kv_truncate(kv, to, 0);
    s->length = n;
    s->n_pages = pages_for(kv, n);
    for (int32_t i = 0; i < s->n_pages; i++) {
        set_page(kv, s, i, parent->pages[i]);
        kv->ref_counts[parent->pages[i]]++;
    }
    parent->n_reserved = 0; /* its tail page may be shared now: reserving again copies it */
}

void kv_sequence_close(KvCache *kv, int32_t sequence) {
    KvSequence *s = sequence_of(kv, sequence);
    drop_pages_from(kv, s, 0);
    s->open = false;
}

/* Only the page that holds the first new slot can be both half full and shared: its place, or -1. */
static int32_t shared_tail(const KvCache *kv, const KvSequence *s) {
    int32_t tail = s->length / kv->shape.page_size;
    return s->length % kv->shape.page_size && kv->ref_counts[s->pages[tail]] > 1 ? tail : -1;
}

int32_t kv_room(const KvCache *kv, int32_t sequence) {
    const KvSequence *s = &kv->sequences[sequence];
    int32_t n_free = kv->n_free - (shared_tail(kv, s) >= 0);
    return n_free < 0 ? 0 : (s->n_pages + n_free) * kv->shape.page_size - s->length;
}

int kv_reserve(KvCache *kv, int32_t sequence, int32_t n, fr_error *err) {
    KvSequence *s = sequence_of(kv, sequence);
    if (n > kv->shape.n_ctx - s->length)
        return error_set(err, FR_ERR_CONTEXT, "the context of %d tokens is full: %d are in it and %d more do not fit",
                         kv->shape.n_ctx, s->length, n);
    int32_t size = kv->shape.page_size;
    int32_t tail = shared_tail(kv, s);
    bool copy_tail = n > 0 && tail >= 0;
    int32_t n_pages = pages_for(kv, s->length + n), n_new = n_pages > s->n_pages ? n_pages - s->n_pages : 0;
    if (n_new + copy_tail > kv->n_free)
        return error_set(err, FR_ERR_MEMORY,
                         "the KV cache is full: %d pages of %d tokens are free and %d are needed; run fewer requests "
                         "at a time or give the cache more memory", kv->n_free, size, n_new + copy_tail);
    if (copy_tail) {
        int32_t old = s->pages[tail], page = take_page(kv);
        copy_slots(kv, old * size, page * size, s->length % size);
        set_page(kv, s, tail, page);
        drop_page(kv, old);
    }
    for (; n_new > 0; n_new--) {
        set_page(kv, s, s->n_pages, take_page(kv));
        s->n_pages++;
    }
    s->n_reserved = n;
    return FR_OK;
}

void kv_commit(KvCache *kv, int32_t sequence, const int32_t *offsets, int32_t n) {
    KvSequence *s = sequence_of(kv, sequence);
    for (int32_t i = 0; i < n; i++) {
        fr_assert(offsets[i] >= i && offsets[i] < s->n_reserved && (i == 0 || offsets[i] > offsets[i - 1]));
        if (offsets[i] != i) copy_slots(kv, s->slots[s->length + offsets[i]], s->slots[s->length + i], 1);
    }
    s->length += n;
    s->n_reserved = 0;
    drop_pages_from(kv, s, pages_for(kv, s->length));
}

int kv_pad(KvCache *kv, int32_t sequence, int32_t n, fr_error *err) {
    enum { PATTERN = 0x3c }; /* 0x3c3c is 1.06 in half precision, 0x3c3c3c3c is 0.011 in single; 60 times 1.06 as Q8 */
    int status = kv_reserve(kv, sequence, n, err);
    if (status) return status;
    KvSequence *s = sequence_of(kv, sequence);
    size_t bytes = kv_slot_bytes(kv);
    for (int32_t i = s->length; i < s->length + n; i++)
        for (int32_t layer = 0; layer < kv->shape.n_layer; layer++)
            for (int32_t head = 0; head < kv->shape.n_head_kv; head++) {
                memset(kv_keys(kv, layer, head) + (size_t)s->slots[i] * bytes, PATTERN, bytes);
                memset(kv_values(kv, layer, head) + (size_t)s->slots[i] * bytes, PATTERN, bytes);
            }
    s->length += n;
    s->n_reserved = 0;
    return FR_OK;
}

void kv_truncate(KvCache *kv, int32_t sequence, int32_t length) {
    KvSequence *s = sequence_of(kv, sequence);
    fr_assert(length >= 0 && length <= s->length);
    s->length = length;
    s->n_reserved = 0;
    drop_pages_from(kv, s, pages_for(kv, length));
}
