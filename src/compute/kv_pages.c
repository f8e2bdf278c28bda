/* kv_pages.c - the page tables of sequences: which sequence holds which page, and when a shared page must be copied. */
#include "compute/kv_pages.h"

#include <string.h>

int kv_open(KvPages *kv, const KvShape *shape, const KvMemory *data, fr_error *err) {
    *kv = (KvPages){.shape = *shape, .data = *data};
    fr_assert(shape->page_size >= 1 && shape->n_pages >= 1 && shape->max_sequences >= 1);
    int32_t *pages, *slots, *of_marks, ctx_pages = shape->n_ctx / shape->page_size + 1;
    int32_t window_pages = shape->window / shape->page_size + 2, n_marks = shape->window ? shape->n_marks : 0;
    int64_t n_slots = (int64_t)ctx_pages * shape->page_size;
    const ArenaItem items[] = {ARENA_ITEM(&kv->ref_counts, shape->n_pages),
                               ARENA_ITEM(&kv->free_pages, shape->n_pages),
                               ARENA_ITEM(&kv->is_counted, shape->n_pages),
                               ARENA_ITEM(&kv->sequences, shape->max_sequences),
                               ARENA_ITEM(&kv->marks, n_marks),
                               ARENA_ITEM(&of_marks, (int64_t)n_marks * window_pages),
                               ARENA_ITEM(&pages, (int64_t)shape->max_sequences * ctx_pages),
                               ARENA_ITEM(&slots, shape->max_sequences * n_slots)};
    int status = arena_take(&kv->arena, items, ARENA_COUNT(items), "the page tables of the KV cache", err);
    if (status) return status;
    for (int32_t i = 0; i < shape->max_sequences; i++) {
        kv->sequences[i].pages = pages + (int64_t)i * ctx_pages;
        kv->sequences[i].slots = slots + i * n_slots;
    }
    for (int32_t i = 0; i < n_marks; i++) kv->marks[i].pages = of_marks + (int64_t)i * window_pages;
    for (int32_t p = 0; p < shape->n_pages; p++) kv->free_pages[p] = shape->n_pages - 1 - p;
    kv->n_free = shape->n_pages;
    return FR_OK;
}

void kv_close(KvPages *kv) {
    arena_free(&kv->arena);
    *kv = (KvPages){0};
}

static void copy_slots(KvPages *kv, int32_t from, int32_t to, int32_t n) {
    kv->data.copy_slots(kv->data.memory, from, to, n);
}

static void set_page(KvPages *kv, KvSequence *s, int32_t i, int32_t page) {
    int32_t size = kv->shape.page_size;
    s->pages[i] = page;
    for (int32_t k = 0; k < size; k++) s->slots[i * size + k] = page * size + k;
}

static int32_t take_page(KvPages *kv) {
    int32_t page = kv->free_pages[--kv->n_free];
    kv->ref_counts[page] = 1;
    return page;
}

static void drop_page(KvPages *kv, int32_t page) {
    fr_assert(kv->ref_counts[page] > 0);
    if (--kv->ref_counts[page] == 0) kv->free_pages[kv->n_free++] = page;
}

static void drop_pages_from(KvPages *kv, KvSequence *s, int32_t n_kept) {
    while (s->n_pages > n_kept)
        if (s->pages[--s->n_pages] >= 0) drop_page(kv, s->pages[s->n_pages]);
    if (s->n_passed > n_kept) s->n_passed = n_kept;
}

static int32_t pages_for(const KvPages *kv, int32_t n_tokens) {
    return (n_tokens + kv->shape.page_size - 1) / kv->shape.page_size;
}

/* Returns the number of pages that no row after n tokens sees: the next row is at position n, and sees positions from n
 * + 1 - window on. */
static int32_t passed_pages(const KvPages *kv, int32_t n) {
    int32_t window = kv->shape.window;
    return window == 0 || n < window ? 0 : (n + 1 - window) / kv->shape.page_size;
}

/* Notes that the first n pages of a sequence are given back. */
static void pass_pages(KvPages *kv, KvSequence *s, int32_t n) {
    int32_t size = kv->shape.page_size;
    for (int32_t i = s->n_passed; i < n; i++) {
        s->pages[i] = -1;
        for (int32_t k = 0; k < size; k++) s->slots[i * size + k] = -1;
    }
    s->n_passed = n;
}

static void give_back_passed(KvPages *kv, KvSequence *s) {
    int32_t n = passed_pages(kv, s->length);
    for (int32_t i = s->n_passed; i < n; i++) drop_page(kv, s->pages[i]);
    if (n > s->n_passed) pass_pages(kv, s, n);
}

/* Returns the number of pages that give_back_passed would free. */
static int32_t n_to_give_back(const KvPages *kv, const KvSequence *s) {
    int32_t n = 0, end = passed_pages(kv, s->length);
    for (int32_t i = s->n_passed; i < end; i++) n += kv->ref_counts[s->pages[i]] == 1;
    return n;
}

static KvSequence *sequence_of(KvPages *kv, int32_t id) {
    fr_assert(id >= 0 && id < kv->shape.max_sequences && kv->sequences[id].open);
    return &kv->sequences[id];
}

int kv_sequence_open(KvPages *kv, int32_t *out, fr_error *err) {
    for (int32_t i = 0; i < kv->shape.max_sequences; i++)
        if (!kv->sequences[i].open) {
            KvSequence *s = &kv->sequences[i];
            s->open = true;
            s->length = s->n_reserved = s->n_pages = s->n_passed = 0;
            *out = i;
            return FR_OK;
        }
    return error_set(err, FR_ERR_MEMORY, "all %d sequences of the KV cache are in use", kv->shape.max_sequences);
}

bool kv_can_cut(const KvPages *kv, int32_t sequence, int32_t n) {
    return n == 0 || passed_pages(kv, n) >= kv->sequences[sequence].n_passed;
}

/* The empty sequence gets n tokens and shares their pages, of which only those that a later row sees are given. */
static void take_over(KvPages *kv, KvSequence *s, int32_t n, const int32_t *pages) {
    int32_t first = passed_pages(kv, n);
    s->length = n;
    s->n_pages = pages_for(kv, n);
    pass_pages(kv, s, first);
    for (int32_t i = first; i < s->n_pages; i++) {
        set_page(kv, s, i, pages[i - first]);
        kv->ref_counts[pages[i - first]]++;
    }
}

void kv_sequence_share(KvPages *kv, int32_t from, int32_t to, int32_t n) {
    KvSequence *parent = sequence_of(kv, from), *s = sequence_of(kv, to);
    fr_assert(from != to && n >= 0 && n <= parent->length && kv_can_cut(kv, from, n));
    kv_truncate(kv, to, 0);
    take_over(kv, s, n, parent->pages + passed_pages(kv, n));
    parent->n_reserved = 0; /* the last page may be shared now; the next kv_reserve copies it then */
}

void kv_sequence_close(KvPages *kv, int32_t sequence) {
    KvSequence *s = sequence_of(kv, sequence);
    drop_pages_from(kv, s, 0);
    s->open = false;
}

/* Returns the place of a shared page that must be copied, or -1. Only the page of the first new slot can be both shared
 * and partly filled. */
static int32_t shared_tail(const KvPages *kv, const KvSequence *s) {
    int32_t tail = s->length / kv->shape.page_size;
    return s->length % kv->shape.page_size && kv->ref_counts[s->pages[tail]] > 1 ? tail : -1;
}

int32_t kv_count_pages(const KvPages *kv, int32_t n) {
    int32_t n_counted = 0;
    memset(kv->is_counted, 0, (size_t)kv->shape.n_pages * sizeof *kv->is_counted);
    for (const KvSequence *s = kv->sequences; s < kv->sequences + n; s++)
        for (int32_t i = s->n_passed; s->open && i < s->n_pages; i++) {
            n_counted += !kv->is_counted[s->pages[i]];
            kv->is_counted[s->pages[i]] = true;
        }
    return n_counted;
}

int32_t kv_room(const KvPages *kv, int32_t sequence) {
    const KvSequence *s = &kv->sequences[sequence];
    int32_t n_free = kv->n_free + n_to_give_back(kv, s) - (shared_tail(kv, s) >= 0);
    return n_free < 0 ? 0 : (s->n_pages + n_free) * kv->shape.page_size - s->length;
}

int kv_reserve(KvPages *kv, int32_t sequence, int32_t n, fr_error *err) {
    KvSequence *s = sequence_of(kv, sequence);
    if (n > kv->shape.n_ctx - s->length)
        return error_set(err, FR_ERR_CONTEXT, "the context of %d tokens is full: %d are in it and %d more do not fit",
                         kv->shape.n_ctx, s->length, n);
    int32_t size = kv->shape.page_size;
    int32_t tail = shared_tail(kv, s);
    bool copy_tail = n > 0 && tail >= 0;
    int32_t n_pages = pages_for(kv, s->length + n), n_new = n_pages > s->n_pages ? n_pages - s->n_pages : 0;
    int32_t n_free = kv->n_free + n_to_give_back(kv, s);
    if (n_new + copy_tail > n_free)
        return error_set(err, FR_ERR_MEMORY,
                         "the KV cache is full: %d pages of %d tokens are free and %d are needed; run fewer requests "
                         "at a time or give the cache more memory",
                         n_free, size, n_new + copy_tail);
    give_back_passed(kv, s);
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

void kv_commit(KvPages *kv, int32_t sequence, const int32_t *offsets, int32_t n) {
    KvSequence *s = sequence_of(kv, sequence);
    for (int32_t i = 0; i < n; i++) {
        fr_assert(offsets[i] >= i && offsets[i] < s->n_reserved && (i == 0 || offsets[i] > offsets[i - 1]));
        if (offsets[i] != i) copy_slots(kv, s->slots[s->length + offsets[i]], s->slots[s->length + i], 1);
    }
    s->length += n;
    s->n_reserved = 0;
    drop_pages_from(kv, s, pages_for(kv, s->length));
}

/* Appends n tokens at once. */
static int pad_some(KvPages *kv, int32_t sequence, int32_t n, fr_error *err) {
    int status = kv_reserve(kv, sequence, n, err);
    if (status) return status;
    KvSequence *s = sequence_of(kv, sequence);
    for (int32_t i = s->length; i < s->length + n; i++) kv->data.fill_slot(kv->data.memory, s->slots[i]);
    s->length += n;
    s->n_reserved = 0;
    return FR_OK;
}

/* With a window, pages that it has passed may be needed again for the next tokens: if there is not enough room for all
 * of them at once, they are appended a page at a time. */
int kv_pad(KvPages *kv, int32_t sequence, int32_t n, fr_error *err) {
    int32_t size = kv->shape.page_size, at_once = n, window = kv->shape.window + 2 * size;
    if (kv->shape.window && n > window && n <= kv->shape.n_ctx - kv->sequences[sequence].length &&
        kv_room(kv, sequence) >= window)
        at_once = size;
    for (int32_t done = 0; done < n; done += at_once) {
        int status = pad_some(kv, sequence, n - done < at_once ? n - done : at_once, err);
        if (status) return status;
    }
    return FR_OK;
}

int32_t kv_n_unseen(const KvPages *kv, int32_t n) { return passed_pages(kv, n) * kv->shape.page_size; }

int kv_load(KvPages *kv, int32_t sequence, int32_t n, fr_error *err) {
    KvSequence *s = sequence_of(kv, sequence);
    fr_assert(s->length == 0 && s->n_pages == 0 && n >= 0 && n <= kv->shape.n_ctx);
    int32_t first = passed_pages(kv, n), n_pages = pages_for(kv, n);
    if (n_pages - first > kv->n_free)
        return error_set(err, FR_ERR_MEMORY,
                         "the KV cache has no room: %d pages of %d tokens are free and %d are needed; try again when "
                         "other requests have ended, or give the cache more memory",
                         kv->n_free, kv->shape.page_size, n_pages - first);
    pass_pages(kv, s, first);
    for (s->n_pages = first; s->n_pages < n_pages; s->n_pages++) set_page(kv, s, s->n_pages, take_page(kv));
    s->length = n;
    s->n_reserved = 0;
    return FR_OK;
}

void kv_truncate(KvPages *kv, int32_t sequence, int32_t length) {
    KvSequence *s = sequence_of(kv, sequence);
    fr_assert(length >= 0 && length <= s->length && kv_can_cut(kv, sequence, length));
    s->length = length;
    s->n_reserved = 0;
    drop_pages_from(kv, s, pages_for(kv, length));
}

void kv_mark(KvPages *kv, int32_t mark, int32_t sequence, int32_t n) {
    if (kv->shape.window == 0) return;
    const KvSequence *s = sequence_of(kv, sequence);
    fr_assert(n > 0 && n <= s->length && kv_can_cut(kv, sequence, n));
    KvMark *m = &kv->marks[mark];
    int32_t first = passed_pages(kv, n);
    m->length = n;
    m->n_pages = pages_for(kv, n) - first;
    for (int32_t i = 0; i < m->n_pages; i++) {
        m->pages[i] = s->pages[first + i];
        kv->ref_counts[m->pages[i]]++;
    }
}

void kv_unmark(KvPages *kv, int32_t mark) {
    if (kv->shape.window == 0) return;
    KvMark *m = &kv->marks[mark];
    while (m->n_pages > 0) drop_page(kv, m->pages[--m->n_pages]);
}

void kv_restore(KvPages *kv, int32_t mark, int32_t sequence) {
    if (kv->shape.window == 0) return;
    KvSequence *s = sequence_of(kv, sequence);
    kv_truncate(kv, sequence, 0);
    take_over(kv, s, kv->marks[mark].length, kv->marks[mark].pages);
}
