/* test_kv_pages.c - compares the page tables of the KV cache, over the memory of the CPU backend, with the simplest
 * model of them: one plain array for each sequence.
 *
 * Every write uses a tag of its own. A committed position must hold its tag in every plane (layer, keys or values,
 * head), whatever was forked, committed, truncated or refused in between. */
#include "testing.h"

#include "base/rng.h"
#include "compute/cpu/cpu.h"
#include "compute/kv_pages.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { N_LAYER = 2, N_HEAD = 3, HEAD_DIM = 6, MAX_SEQUENCES = 6, N_CTX = 37 };

typedef struct Shadow {
    bool open;
    int32_t length, n_reserved;
    uint64_t tags[N_CTX]; /* [position] committed ones, then reserved ones */
} Shadow;

typedef struct World {
    KvPages kv;
    CpuContext memory; /* only its keys and values are used */
    Shadow shadows[MAX_SEQUENCES];
    uint64_t seed, n_draws, n_tags;
    int step;
    int n_refused_context, n_refused_pages, n_copied;
} World;

static int32_t draw(World *w, int32_t n) { return (int32_t)(rng_uniform(w->seed, RNG_TEST, w->n_draws++, 0) * n); }

#define expect(w, cond, fmt, ...) \
    do { \
        if (!(cond)) \
            fail_msg("page size %d, seed %llu, step %d: %s: " fmt, (w)->kv.shape.page_size, \
                     (unsigned long long)(w)->seed, (w)->step, #cond, __VA_ARGS__); \
    } while (0)

/* ---- the slots that the forward uses --------------------------------------------------------------- */

static void fill_slot(uint64_t tag, int plane, char *slot, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) slot[i] = (char)(tag >> (8 * (i % 4)) ^ (uint64_t)plane * 37 ^ i * 11);
}

static void write_slot(World *w, int32_t slot, uint64_t tag) {
    size_t bytes = w->memory.kv[KV_ALL].slot_bytes;
    for (int p = 0; p < N_LAYER * N_HEAD; p++) {
        fill_slot(tag, 2 * p, cpu_kv_keys(w->memory.kv, p / N_HEAD, p % N_HEAD) + (size_t)slot * bytes, bytes);
        fill_slot(tag, 2 * p + 1, cpu_kv_values(w->memory.kv, p / N_HEAD, p % N_HEAD) + (size_t)slot * bytes, bytes);
    }
}

static bool slot_holds(const World *w, int32_t slot, uint64_t tag) {
    char wanted[64];
    size_t bytes = w->memory.kv[KV_ALL].slot_bytes;
    for (int p = 0; p < N_LAYER * N_HEAD; p++)
        for (int is_value = 0; is_value < 2; is_value++) {
            const char *plane = (is_value ? cpu_kv_values : cpu_kv_keys)(w->memory.kv, p / N_HEAD, p % N_HEAD);
            fill_slot(tag, 2 * p + is_value, wanted, bytes);
            if (memcmp(plane + (size_t)slot * bytes, wanted, bytes) != 0) return false;
        }
    return true;
}

/* ---- invariants ----------------------------------------------------------------------- */

static void check(World *w) {
    int32_t size = w->kv.shape.page_size, n_pages = w->kv.shape.n_pages, n_used = 0;
    int32_t *uses = calloc((size_t)n_pages, sizeof *uses);
    for (int i = 0; i < MAX_SEQUENCES; i++) {
        const KvSequence *s = &w->kv.sequences[i];
        const Shadow *m = &w->shadows[i];
        expect(w, s->open == m->open, "sequence %d", i);
        if (!m->open) continue;
        expect(w, s->length == m->length, "sequence %d: %d, should be %d", i, s->length, m->length);
        expect(w, s->n_reserved == m->n_reserved, "sequence %d: %d, should be %d", i, s->n_reserved, m->n_reserved);
        expect(w, s->n_pages * size >= m->length + m->n_reserved, "sequence %d: %d pages", i, s->n_pages);
        for (int32_t p = 0; p < s->n_pages; p++) {
            expect(w, s->pages[p] >= 0 && s->pages[p] < n_pages, "page %d", s->pages[p]);
            uses[s->pages[p]]++;
        }
        for (int32_t t = 0; t < m->length + m->n_reserved; t++) {
            int32_t slot = s->pages[t / size] * size + t % size;
            expect(w, s->slots[t] == slot, "sequence %d, position %d: %d, should be %d", i, t, s->slots[t], slot);
            expect(w, slot_holds(w, slot, m->tags[t]), "sequence %d, position %d, tag %llu", i, t,
                   (unsigned long long)m->tags[t]);
        }
    }
    for (int32_t p = 0; p < n_pages; p++) {
        expect(w, w->kv.ref_counts[p] == uses[p], "page %d: %d, should be %d", p, w->kv.ref_counts[p], uses[p]);
        n_used += uses[p] > 0;
    }
    expect(w, w->kv.n_free == n_pages - n_used, "%d, should be %d", w->kv.n_free, n_pages - n_used);
    for (int32_t i = 0; i < w->kv.n_free; i++) {
        expect(w, uses[w->kv.free_pages[i]]++ == 0, "page %d is free and used, or free twice", w->kv.free_pages[i]);
    }
    free(uses);
}

/* After a commit or a truncation a sequence has only the pages of its tokens. */
static void check_pages(World *w, int32_t id) {
    const KvSequence *s = &w->kv.sequences[id];
    int32_t wanted = (s->length + w->kv.shape.page_size - 1) / w->kv.shape.page_size;
    expect(w, s->n_pages == wanted, "sequence %d: %d pages, should be %d", id, s->n_pages, wanted);
}

/* ---- the operations ---------------------------------------------------------------------------------- */

static void open_one(World *w) {
    int32_t id = -1, n_open = 0;
    fr_error err = {0};
    for (int i = 0; i < MAX_SEQUENCES; i++) n_open += w->shadows[i].open;
    int status = kv_sequence_open(&w->kv, &id, &err);
    if (n_open == MAX_SEQUENCES) {
        expect(w, status == FR_ERR_MEMORY && strstr(err.message, "all 6 sequences"), "%s", err.message);
        return;
    }
    expect(w, status == FR_OK && !w->shadows[id].open, "sequence %d", id);
    w->shadows[id] = (Shadow){.open = true};
}

static void fork_one(World *w, int32_t from) {
    int32_t id = -1, n_open = 0, n_free = w->kv.n_free;
    fr_error err = {0};
    for (int i = 0; i < MAX_SEQUENCES; i++) n_open += w->shadows[i].open;
    int status = kv_sequence_open(&w->kv, &id, &err);
    if (!status) kv_sequence_share(&w->kv, from, id, w->kv.sequences[from].length);
    if (n_open == MAX_SEQUENCES) {
        expect(w, status == FR_ERR_MEMORY, "%d", status);
        return;
    }
    expect(w, status == FR_OK && !w->shadows[id].open, "sequence %d", id);
    expect(w, w->kv.n_free == n_free, "a fork takes no page: %d, before %d", w->kv.n_free, n_free);
    w->shadows[id] = w->shadows[from];
    w->shadows[id].n_reserved = w->shadows[from].n_reserved = 0; /* a fork ends reservations */
}

static void share_some(World *w, int32_t from, int32_t to) {
    if (from == to || !w->shadows[from].open || !w->shadows[to].open) return;
    int32_t n = draw(w, w->shadows[from].length + 1), n_free = w->kv.n_free;
    kv_sequence_share(&w->kv, from, to, n);
    expect(w, w->kv.n_free >= n_free, "sharing takes no page: %d, before %d", w->kv.n_free, n_free);
    w->shadows[to] = w->shadows[from];
    w->shadows[to].length = n;
    w->shadows[to].n_reserved = w->shadows[from].n_reserved = 0;
    check_pages(w, to);
}

static bool shares_its_tail(const World *w, int32_t id) {
    const KvSequence *s = &w->kv.sequences[id];
    int32_t size = w->kv.shape.page_size;
    return s->length % size && w->kv.ref_counts[s->pages[s->length / size]] > 1;
}

/* Reserves and writes; the expected result follows from the shadow and the number of free pages. */
static void reserve_and_write(World *w, int32_t id, int32_t n) {
    Shadow *m = &w->shadows[id];
    KvSequence *s = &w->kv.sequences[id], before = *s;
    int32_t size = w->kv.shape.page_size, n_free = w->kv.n_free, pages[N_CTX + 1];
    memcpy(pages, s->pages, (size_t)s->n_pages * sizeof *pages);
    int32_t wanted = (m->length + n + size - 1) / size - s->n_pages;
    bool copies = n > 0 && shares_its_tail(w, id);
    wanted = (wanted > 0 ? wanted : 0) + copies;
    int expected_status = m->length + n > N_CTX ? FR_ERR_CONTEXT : wanted > n_free ? FR_ERR_MEMORY : FR_OK;
    fr_error err = {0};
    int32_t room = kv_room(&w->kv, id);
    if (n > 0 && expected_status != FR_ERR_CONTEXT)
        expect(w, (n <= room) == (expected_status == FR_OK), "room for %d rows, and %d are %s", room, n,
               expected_status ? "refused" : "taken");
    int status = kv_reserve(&w->kv, id, n, &err);
    expect(w, status == expected_status, "%d, should be %d: reserving %d: %s", status, expected_status, n, err.message);
    if (status) {
        const char *why = status == FR_ERR_CONTEXT ? "the context of 37 tokens is full" : "the KV cache is full";
        expect(w, strstr(err.message, why), "'%s'", err.message);
        expect(w,
               s->length == before.length && s->n_reserved == before.n_reserved && s->n_pages == before.n_pages &&
                   memcmp(pages, s->pages, (size_t)s->n_pages * sizeof *pages) == 0 && w->kv.n_free == n_free,
               "a refused reservation changed sequence %d", id);
        *(status == FR_ERR_CONTEXT ? &w->n_refused_context : &w->n_refused_pages) += 1;
        return;
    }
    expect(w, w->kv.n_free == n_free - wanted, "%d, should be %d", w->kv.n_free, n_free - wanted);
    w->n_copied += copies;
    m->n_reserved = n;
    for (int32_t i = 0; i < n; i++) {
        m->tags[m->length + i] = ++w->n_tags;
        write_slot(w, s->slots[m->length + i], w->n_tags);
    }
}

static void commit_some(World *w, int32_t id) {
    Shadow *m = &w->shadows[id];
    int32_t offsets[N_CTX], n = 0, one_in = 1 + draw(w, 3);
    for (int32_t i = 0; i < m->n_reserved; i++)
        if (draw(w, one_in) == 0) offsets[n++] = i;
    kv_commit(&w->kv, id, offsets, n);
    for (int32_t i = 0; i < n; i++) m->tags[m->length + i] = m->tags[m->length + offsets[i]];
    m->length += n;
    m->n_reserved = 0;
    check_pages(w, id);
}

static void truncate_one(World *w, int32_t id) {
    Shadow *m = &w->shadows[id];
    m->length = draw(w, m->length + 1);
    m->n_reserved = 0;
    kv_truncate(&w->kv, id, m->length);
    check_pages(w, id);
}

static void do_something(World *w) {
    int32_t id = draw(w, MAX_SEQUENCES), what = draw(w, 17);
    if (what == 0 || !w->shadows[id].open) open_one(w);
    else if (what == 1) fork_one(w, id);
    else if (what == 2) kv_sequence_close(&w->kv, id), w->shadows[id].open = false;
    else if (what == 3) truncate_one(w, id);
    else if (what == 4) share_some(w, draw(w, MAX_SEQUENCES), id);
    else if (what < 11) reserve_and_write(w, id, draw(w, draw(w, 4) ? 8 : N_CTX + 2));
    else commit_some(w, id);
}

static void copy_slots(void *memory, int32_t from, int32_t to, int32_t n) {
    cpu_copy_slots(memory, KV_ALL, from, to, n);
}

enum { PADDING = 0x3c };

static void pad_slot(void *memory, int32_t slot) {
    const CpuKv *kv = &((CpuContext *)memory)->kv[KV_ALL];
    for (int64_t i = 0; i < cpu_kv_n_planes(kv); i++)
        memset(cpu_kv_plane(kv, i) + (size_t)slot * kv->slot_bytes, PADDING, kv->slot_bytes);
}

static void open_world(World *w, int32_t page_size, int32_t n_pages, KvType type) {
    const KvShape shape = {.page_size = page_size, .n_pages = n_pages, .max_sequences = MAX_SEQUENCES, .n_ctx = N_CTX};
    CpuKv *kv = &w->memory.kv[KV_ALL];
    *kv = (CpuKv){.type = type,
                  .n_layer = N_LAYER,
                  .n_head_kv = N_HEAD,
                  .n_slots = page_size * n_pages,
                  .slot_bytes = kv_row_bytes(type, HEAD_DIM)};
    kv->data = mem_alloc(2 * N_LAYER * N_HEAD * (size_t)kv->n_slots * kv->slot_bytes);
    assert_non_null(kv->data);
    const KvMemory memory = {.memory = &w->memory, .copy_slots = copy_slots, .fill_slot = pad_slot};
    assert_int_equal(kv_open(&w->kv, &shape, &memory, NULL), FR_OK);
}

static void close_world(World *w) {
    kv_close(&w->kv);
    mem_free(w->memory.kv[KV_ALL].data);
}

static void random_operations_do_what_plain_arrays_do(void **state) {
    (void)state;
    static const int32_t sizes[] = {1, 2, 3, 16};
    for (int i = 0; i < 4; i++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            World w = {.seed = seed};
            open_world(&w, sizes[i], 70 / sizes[i] + 2, (KvType)(seed % KV_TYPE_COUNT));
            for (w.step = 0; w.step < 1500; w.step++) {
                do_something(&w);
                check(&w);
            }
            expect(&w, w.n_refused_context > 0 && w.n_refused_pages > 0, "%d and %d refusals were seen",
                   w.n_refused_context, w.n_refused_pages);
            expect(&w, sizes[i] == 1 || w.n_copied > 0, "%d copies on write were seen", w.n_copied);
            for (int32_t s = 0; s < MAX_SEQUENCES; s++)
                if (w.shadows[s].open) kv_sequence_close(&w.kv, s), w.shadows[s].open = false;
            check(&w);
            assert_int_equal(w.kv.n_free, w.kv.shape.n_pages);
            close_world(&w);
        }
}

/* Two sequences forked in the middle of a page write different tokens; neither sees the other's. */
static void a_fork_keeps_its_own_tail(void **state) {
    (void)state;
    World w = {.seed = 1};
    open_world(&w, 4, 20, KV_F32);
    open_one(&w);
    reserve_and_write(&w, 0, 6);
    kv_commit(&w.kv, 0, (int32_t[]){0, 1, 2, 3, 4, 5}, 6);
    w.shadows[0].length = 6, w.shadows[0].n_reserved = 0;
    fork_one(&w, 0);
    assert_int_equal(w.kv.sequences[0].pages[1], w.kv.sequences[1].pages[1]);
    reserve_and_write(&w, 1, 2);
    assert_int_not_equal(w.kv.sequences[0].pages[1], w.kv.sequences[1].pages[1]);
    assert_int_equal(w.kv.sequences[0].pages[0], w.kv.sequences[1].pages[0]);
    reserve_and_write(&w, 0, 2);
    check(&w);
    assert_int_equal(w.kv.n_free, 20 - 3);
    close_world(&w);
}

/* Fills all bytes of a slot in every plane with the pattern. */
static bool slot_is_padding(const World *w, int32_t slot) {
    size_t bytes = w->memory.kv[KV_ALL].slot_bytes;
    for (int p = 0; p < N_LAYER * N_HEAD; p++)
        for (size_t i = 0; i < bytes; i++)
            if (cpu_kv_keys(w->memory.kv, p / N_HEAD, p % N_HEAD)[(size_t)slot * bytes + i] != PADDING ||
                cpu_kv_values(w->memory.kv, p / N_HEAD, p % N_HEAD)[(size_t)slot * bytes + i] != PADDING)
                return false;
    return true;
}

/* Padding is committed after the existing tokens and never in pages of other sequences; if it does not fit, nothing
 * changes. */
static void padding_lengthens_only_one_sequence(void **state) {
    (void)state;
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        World w = {.seed = 1};
        open_world(&w, 4, 12, (KvType)type);
        open_one(&w);
        reserve_and_write(&w, 0, 6);
        kv_commit(&w.kv, 0, (int32_t[]){0, 1, 2, 3, 4, 5}, 6);
        w.shadows[0].length = 6, w.shadows[0].n_reserved = 0;
        fork_one(&w, 0);
        assert_int_equal(kv_pad(&w.kv, 1, 15, NULL), FR_OK);
        const KvSequence *padded = &w.kv.sequences[1];
        assert_int_equal(padded->length, 21);
        assert_int_equal(padded->n_reserved, 0);
        for (int32_t i = 6; i < 21; i++) assert_true(slot_is_padding(&w, padded->slots[i]));
        w.shadows[1].length = 6; /* check() then compares the six tokens that both had */
        w.kv.sequences[1].length = 6;
        check(&w);
        w.kv.sequences[1].length = 21;
        int32_t n_free = w.kv.n_free;
        fr_error err;
        assert_int_equal(kv_pad(&w.kv, 1, N_CTX - 20, &err), FR_ERR_CONTEXT);
        assert_int_equal(kv_pad(&w.kv, 0, 31, &err), FR_ERR_MEMORY);
        assert_int_equal(padded->length, 21);
        assert_int_equal(w.kv.sequences[0].length, 6);
        assert_int_equal(w.kv.n_free, n_free);
        assert_int_equal(kv_pad(&w.kv, 1, 0, NULL), FR_OK);
        assert_int_equal(padded->length, 21);
        kv_truncate(&w.kv, 1, 6);
        check(&w);
        close_world(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations_do_what_plain_arrays_do),
        cmocka_unit_test(a_fork_keeps_its_own_tail),
        cmocka_unit_test(padding_lengthens_only_one_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
