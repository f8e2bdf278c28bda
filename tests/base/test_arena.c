/* test_arena.c - arrays of an arena are zeroed, begin on cache lines and do not overlap; a failed call leaves
 * nothing. */
#include "testing.h"

#include "base/mem.h"

#include <stdint.h>
#include <string.h>

static void arrays_are_zeroed_aligned_and_apart(void **state) {
    (void)state;
    Arena a = {0};
    float *x = NULL;
    int32_t *ids = NULL;
    char *empty = NULL, *text = NULL;
    const ArenaItem items[] = {ARENA_ITEM(&x, 5), ARENA_ITEM(&ids, 33), ARENA_ITEM(&empty, 0), ARENA_ITEM(&text, 7)};
    assert_int_equal(arena_take(&a, items, ARENA_COUNT(items), "a test", NULL), FR_OK);
    for (int i = 0; i < 5; i++) assert_true(x[i] == 0);
    for (int i = 0; i < 33; i++) assert_int_equal(ids[i], 0);
    assert_int_equal((uintptr_t)x % MEM_ALIGN, 0);
    assert_int_equal((uintptr_t)ids % MEM_ALIGN, 0);
    assert_int_equal((uintptr_t)text % MEM_ALIGN, 0);
    assert_true((char *)ids >= (char *)(x + 5) && text >= (char *)(ids + 33));
    memset(x, 1, 5 * sizeof *x);
    memset(ids, 1, 33 * sizeof *ids);
    for (int i = 0; i < 7; i++) assert_int_equal(text[i], 0);
    arena_free(&a);
    arena_free(&a); /* freeing it once more is harmless */
}

static void it_can_be_taken_from_again(void **state) {
    (void)state;
    Arena a = {0};
    int32_t *first = NULL, *second = NULL;
    const ArenaItem one[] = {ARENA_ITEM(&first, 4)}, two[] = {ARENA_ITEM(&second, 4)};
    assert_int_equal(arena_take(&a, one, 1, "a test", NULL), FR_OK);
    first[3] = 7;
    assert_int_equal(arena_take(&a, two, 1, "a test", NULL), FR_OK);
    assert_int_equal(first[3], 7);
    assert_int_equal(second[3], 0);
    arena_free(&a);
}

static void sizes_that_overflow_are_refused(void **state) {
    (void)state;
    Arena a = {0};
    fr_error err;
    int32_t *x = NULL, *y = NULL;
    const ArenaItem product[] = {ARENA_ITEM(&x, SIZE_MAX / 2)};
    const ArenaItem sum[] = {ARENA_ITEM(&x, SIZE_MAX / 4 - 64), ARENA_ITEM(&y, SIZE_MAX / 4 - 64)};
    assert_int_equal(arena_take(&a, product, 1, "a test", &err), FR_ERR_MEMORY);
    assert_int_equal(arena_take(&a, sum, 2, "a test", &err), FR_ERR_MEMORY);
    assert_null(x);
    assert_null(a.first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_are_zeroed_aligned_and_apart),
        cmocka_unit_test(it_can_be_taken_from_again),
        cmocka_unit_test(sizes_that_overflow_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
