/* test_hash_table.c - keys are any bytes; the first id of a key is kept; a table that grows loses nothing. */
#include "testing.h"

#include "base/hash.h"

#include <stdio.h>
#include <string.h>

static void keys_are_bytes_and_the_first_id_stays(void **state) {
    (void)state;
    HashTable t = {0};
    int32_t got;
    assert_int_equal(hash_table_find(&t, "a", 1), -1); /* an empty table has no slots */
    assert_true(hash_table_add(&t, "a\0b", 3, 7, &got) && got == 7);
    assert_true(hash_table_add(&t, "a\0c", 3, 8, &got) && got == 8);
    assert_true(hash_table_add(&t, "a\0b", 3, 9, &got) && got == 7);
    assert_true(hash_table_add(&t, "", 0, 10, &got) && got == 10);
    assert_int_equal(hash_table_find(&t, "a\0c", 3), 8);
    assert_int_equal(hash_table_find(&t, "a", 1), -1);
    assert_int_equal(hash_table_find(&t, "", 0), 10);
    assert_int_equal(t.n_taken, 3);
    hash_table_close(&t);
    assert_int_equal(hash_table_find(&t, "", 0), -1);
}

static void growing_loses_nothing(void **state) {
    (void)state;
    enum { N = 5000 };
    static char keys[N][12];
    HashTable t = {0};
    int32_t got;
    for (int32_t i = 0; i < N; i++) {
        snprintf(keys[i], sizeof keys[i], "%d", i);
        assert_true(hash_table_add(&t, keys[i], strlen(keys[i]), i, &got) && got == i);
        assert_true(2 * t.n_taken <= t.n_slots);
    }
    for (int32_t i = 0; i < N; i++) assert_int_equal(hash_table_find(&t, keys[i], strlen(keys[i])), i);
    assert_int_equal(hash_table_find(&t, "5000", 4), -1);
    hash_table_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_bytes_and_the_first_id_stays),
        cmocka_unit_test(growing_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
