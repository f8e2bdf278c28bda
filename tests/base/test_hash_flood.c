/* test_hash_flood.c - keys chosen to collide under public hashes do not collide in our tables. Probes are counted, not
 * seconds: the longest run of taken slots is the most that one look-up in a table with linear probing can visit. */
#include "testing.h"
#include "vocab_build.h"

#include "base/hash.h"
#include "gguf/gguf_internal.h"
#include "gguf_build.h"
#include "draft/text/text_index.h"
#include "text/encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Random keys in a half-full table give runs of up to some 50 slots. */
enum { N_KEYS = 40000, LONGEST = 600, PUBLIC_BITS = 20 };

typedef bool TakenFn(const void *table, size_t i);

static size_t longest_run(const void *table, size_t n_slots, TakenFn *taken) {
    size_t longest = 0, run = 0;
    for (size_t i = 0; i < 2 * n_slots && run < n_slots; i++) { /* two rounds, because a run may continue past the
                                                                 * end */
        run = taken(table, i % n_slots) ? run + 1 : 0;
        if (run > longest) longest = run;
    }
    return longest;
}

/* ---- XXH3 of eight bytes, backwards -------------------------------------------------------------------- */

static uint64_t rotated(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

/* Returns the input word, still mixed with a constant, that has this hash: each step of XXH3 for 8 bytes can be
 * undone. */
static uint64_t undone(uint64_t h) {
    const uint64_t factor = 0x9FB21C651E98DF25u;
    uint64_t inverse = factor;
    for (int i = 0; i < 5; i++) inverse *= 2 - factor * inverse;
    h ^= h >> 28 ^ h >> 56;
    h *= inverse;
    h ^= (h >> 35) + 8;
    h *= inverse;
    for (int i = 0; i < 63; i++) h ^= rotated(h, 49) ^ rotated(h, 24); /* 64 times is the identity */
    return h;
}

static void put_word(uint64_t word, char out[8]) {
    uint32_t halves[2] = {(uint32_t)(word >> 32), (uint32_t)word};
    memcpy(out, halves, 8);
}

/* N_KEYS keys without zero bytes whose XXH3 with seed 0 agrees in the low PUBLIC_BITS bits. */
static char (*colliding_keys(void))[9] {
    static char keys[N_KEYS][9];
    char zero[8] = {0};
    uint64_t constant = undone(hash64(zero, 8, 0));
    size_t n = 0;
    for (uint64_t i = 1; n < N_KEYS; i++) {
        put_word(undone(i << PUBLIC_BITS | 5) ^ constant, keys[n]);
        n += memchr(keys[n], '\0', 8) == NULL;
    }
    for (size_t i = 0; i < N_KEYS; i++) /* the attack works where the seed is known */
        assert_int_equal(hash64(keys[i], 8, 0) & ((1 << PUBLIC_BITS) - 1), 5);
    return keys;
}

/* ---- the tables ------------------------------------------------------------------------------------------ */

static bool hash_slot_taken(const void *table, size_t i) { return ((const HashTable *)table)->slots[i].key != NULL; }

static void a_hash_table_spreads_keys_that_collide_under_xxh3(void **state) {
    (void)state;
    char(*keys)[9] = colliding_keys();
    HashTable t = {0};
    int32_t got;
    for (int32_t i = 0; i < N_KEYS; i++) assert_true(hash_table_add(&t, keys[i], 8, i, &got) && got == i);
    assert_in_range(longest_run(&t, t.n_slots, hash_slot_taken), 1, LONGEST);
    hash_table_close(&t);
}

static void a_file_with_such_tensor_names_and_keys_opens_in_linear_time(void **state) {
    (void)state;
    char(*keys)[9] = colliding_keys();
    Buf b = {.max_bytes = 16 << 20};
    put_header(&b, 3, N_KEYS, N_KEYS);
    for (size_t i = 0; i < N_KEYS; i++) put_kv_u32(&b, keys[i], 1);
    for (size_t i = 0; i < N_KEYS; i++) put_tensor(&b, keys[i], 1, (const uint64_t[]){1}, TYPE_F32, 32 * i);
    put_padding(&b, 32);
    put_zeros(&b, (size_t)32 * N_KEYS);
    Gguf *g;
    fr_error err = {.code = FR_OK};
    int status = gguf_open_memory(&g, b.data, b.n, "flood", &err);
    assert_string_equal(err.message, "");
    assert_int_equal(status, FR_OK);
    assert_in_range(longest_run(&g->names, g->names.n_slots, hash_slot_taken), 1, LONGEST);
    assert_in_range(longest_run(&g->keys, g->keys.n_slots, hash_slot_taken), 1, LONGEST);
    gguf_close(g);
    buf_free(&b);
}

static bool trie_slot_taken(const void *table, size_t i) { return ((const CountTrie *)table)->slots[i] != 0; }

static void a_count_trie_spreads_tokens_that_collide_under_fibonacci_hashing(void **state) {
    (void)state;
    enum { N = 20000, SLOTS = 1 << 16 };
    CountTrie t;
    assert_int_equal(count_trie_open(&t, 4 * N, NULL), FR_OK);
    assert_true(count_trie_reserve(&t, N, NULL, 0));
    int32_t n = 0;
    for (int32_t token = 0; n < N; token++)
        if (((uint64_t)(uint32_t)token * 0x9E3779B97F4A7C15u >> 32) % SLOTS < 64) count_trie_touch(&t, 0, token), n++;
    assert_int_equal(t.n, N + 1);
    assert_in_range(longest_run(&t, (size_t)t.n_slots, trie_slot_taken), 1, LONGEST);
    count_trie_free(&t);
}

static bool entry_taken(const void *table, size_t i) { return ((const NgramText *)table)->table[i].token >= 0; }

static void an_ngram_text_spreads_tokens_that_collide_under_fibonacci_hashing(void **state) {
    (void)state;
    enum { N = 20000, SLOTS = 1 << 16 };
    NgramText t = {.n = 0};
    int32_t n = 0;
    for (int32_t token = 0; n < N; token++) {
        uint32_t h = (uint32_t)token * 2654435769u;
        if ((h ^ h >> 15) % SLOTS >= 64) continue;
        assert_int_equal(ngram_text_append(&t, &token, 1, INT32_MAX, true, NULL), FR_OK);
        n++;
    }
    assert_in_range(longest_run(&t, (size_t)t.n_slots, entry_taken), 1, LONGEST);
    ngram_text_free(&t);
}

static bool pair_taken(const void *table, size_t i) { return ((const Bpe *)table)->pairs[i].left >= 0; }

static void merges_whose_pairs_collide_are_spread(void **state) {
    (void)state;
    enum { N = 12000, SLOTS = 1 << 15, N_TOKENS = 256 + 26 * 26 };
    static const char *tokens[N_TOKENS], *merges[N];
    static char pieces[26 * 26][3], lines[N][6];
    vocab_build_alphabet(tokens);
    for (int i = 0; i < 26 * 26; i++) {
        snprintf(pieces[i], sizeof pieces[i], "%c%c", 'a' + i / 26, 'a' + i % 26);
        tokens[256 + i] = pieces[i];
    }
    int n = 0;
    for (uint64_t k = 0; n < N; k++) {
        uint64_t left = 256 + k / 676, right = 256 + k % 676, h = (left << 32 | right) * 0x9E3779B97F4A7C15u;
        if ((h ^ h >> 29) % SLOTS >= SLOTS / 32) continue;
        snprintf(lines[n], sizeof lines[n], "%s %s", tokens[left], tokens[right]);
        merges[n] = lines[n];
        n++;
    }
    const VocabSpec spec =
        {.model = "gpt2", .pre = "llama-bpe", .tokens = tokens, .n_tokens = N_TOKENS, .merges = merges, .n_merges = N};
    Buf b = {.max_bytes = 4 << 20};
    vocab_build(&b, &spec);
    Gguf *g;
    Vocab v = {0};
    Bpe bpe = {0};
    assert_int_equal(gguf_open_memory(&g, b.data, b.n, "merges", NULL), FR_OK);
    assert_int_equal(vocab_open(&v, g, NULL), FR_OK);
    assert_int_equal(bpe_open(&bpe, &v, g, NULL), FR_OK);
    assert_int_equal(bpe.n_slots, SLOTS);
    assert_in_range(longest_run(&bpe, bpe.n_slots, pair_taken), 1, LONGEST);
    vocab_close(&v);
    bpe_close(&bpe);
    gguf_close(g);
    buf_free(&b);
}

/* ---- the rest -------------------------------------------------------------------------------------------- */

static void special_tokens_that_are_spelled_alike_are_kept_once(void **state) {
    (void)state;
    enum { N = 40000 };
    static Piece spelling[N];
    static uint8_t type[N];
    for (int i = 0; i < N; i++) spelling[i] = (Piece){i == 17 ? "<b>" : "<a>", 3}, type[i] = TOKEN_CONTROL;
    const Vocab v = {.n = N, .spelling = spelling, .type = type};
    SpecialSet s = {0};
    assert_int_equal(special_set_open(&s, &v, true, NULL), FR_OK);
    assert_int_equal(s.n, 2);
    int32_t id;
    size_t n_bytes;
    assert_int_equal(special_set_find(&s, "x<a><b>", 7, 0, &id, &n_bytes), 1);
    assert_int_equal(id, 0);
    assert_int_equal(special_set_find(&s, "x<a><b>", 7, 4, &id, &n_bytes), 4);
    assert_int_equal(id, 17);
    special_set_close(&s);
}

/* Python 3.11 prints these: PYTHONHASHSEED=0 python3 -c 'print(hex(hash(b"a") & (2**64 - 1)))'. */
static void keyed_hash_is_siphash_1_3(void **state) {
    (void)state;
    const HashKey zero = {0, 0};
    assert_int_equal(keyed_hash(&zero, "a", 1), 0x407448d2b89b1813u);
    assert_int_equal(keyed_hash(&zero, "abcdefg", 7), 0x6db12aae9070f506u);
    assert_int_equal(keyed_hash(&zero, "abcdefgh", 8), 0x3f7b849c0b8e35eau);
    assert_int_equal(keyed_hash(&zero, "tokenizer.ggml.tokens", 21), 0xc4f0b378f3a5c9cbu);
    HashKey a = hash_key_new(), b = hash_key_new();
    assert_true(a.a != b.a && a.b != b.b && a.a != a.b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hash_table_spreads_keys_that_collide_under_xxh3),
        cmocka_unit_test(a_file_with_such_tensor_names_and_keys_opens_in_linear_time),
        cmocka_unit_test(a_count_trie_spreads_tokens_that_collide_under_fibonacci_hashing),
        cmocka_unit_test(an_ngram_text_spreads_tokens_that_collide_under_fibonacci_hashing),
        cmocka_unit_test(merges_whose_pairs_collide_are_spread),
        cmocka_unit_test(special_tokens_that_are_spelled_alike_are_kept_once),
        cmocka_unit_test(keyed_hash_is_siphash_1_3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
