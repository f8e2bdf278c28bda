/* test_sequence_marks.c - unit tests of the marks of sequences: the mark that is found for a length, the mark that is
 * dropped when there are too many, and the owners of marks after sequences were cut and shared. The pages have no
 * window, so only marks matter. */
#include "testing.h"

#include "compute/sequences.h"

enum { N_SEQUENCES = 3 };

static KvPages pages;

static void open_marks(SequenceMarks *m, int32_t n_marks) {
    fr_error err;
    if (sequence_marks_open(m, &pages, N_SEQUENCES, n_marks, &err)) fail_msg("%s", err.message);
}

/* Checks that the longest mark of the sequence has this length; 0: it has none. */
static void expect_longest(const SequenceMarks *m, int32_t sequence, int32_t most, int32_t length) {
    int32_t mark = sequence_marks_find(m, sequence, most), got = mark < 0 ? 0 : m->marks[mark].length;
    if (got != length)
        fail_msg("sequence %d, at most %d tokens: a mark of %d, should be %d", sequence, most, got, length);
}

static void expect_list(const SequenceMarks *m, int32_t sequence, int32_t n, const int32_t *lengths) {
    assert_int_equal(m->lists[sequence].n, n);
    for (int32_t i = 0; i < n; i++) assert_int_equal(m->marks[m->lists[sequence].ids[i]].length, lengths[i]);
}

static void the_longest_that_fits_is_found(void **state) {
    (void)state;
    SequenceMarks m;
    open_marks(&m, 4);
    expect_longest(&m, 0, 100, 0);
    sequence_marks_add(&m, 0, 30);
    sequence_marks_add(&m, 0, 10);
    sequence_marks_add(&m, 0, 20);
    expect_list(&m, 0, 3, (int32_t[]){10, 20, 30}); /* whatever the order in which they were added */
    expect_longest(&m, 0, 9, 0);
    expect_longest(&m, 0, 10, 10);
    expect_longest(&m, 0, 29, 20);
    expect_longest(&m, 0, 100, 30);
    expect_longest(&m, 1, 100, 0);
    sequence_marks_close(&m);
}

static void the_least_recently_used_makes_room(void **state) {
    (void)state;
    SequenceMarks m;
    open_marks(&m, 3);
    int32_t a = sequence_marks_add(&m, 0, 10);
    sequence_marks_add(&m, 1, 20);
    sequence_marks_add(&m, 2, 30);
    sequence_marks_use(&m, a);
    sequence_marks_add(&m, 0, 40); /* replaces 20, the oldest mark that was not used since */
    expect_list(&m, 0, 2, (int32_t[]){10, 40});
    expect_list(&m, 1, 0, NULL);
    expect_list(&m, 2, 1, (int32_t[]){30});
    assert_true(sequence_marks_drop(&m));
    expect_list(&m, 2, 0, NULL);
    assert_true(sequence_marks_drop(&m));
    expect_list(&m, 0, 1, (int32_t[]){40});
    assert_true(sequence_marks_drop(&m));
    assert_false(sequence_marks_drop(&m));
    sequence_marks_close(&m);
}

static void a_full_list_loses_a_mark_of_its_own(void **state) {
    (void)state;
    SequenceMarks m;
    open_marks(&m, SEQUENCE_MARKS_MAX + 4);
    sequence_marks_add(&m, 1, 5); /* older than all of sequence 0 */
    for (int32_t i = 1; i <= SEQUENCE_MARKS_MAX; i++) sequence_marks_add(&m, 0, 10 * i);
    sequence_marks_use(&m, sequence_marks_find(&m, 0, 10));
    sequence_marks_add(&m, 0, 1000);
    assert_int_equal(m.lists[0].n, SEQUENCE_MARKS_MAX);
    expect_longest(&m, 0, 19, 10);
    expect_longest(&m, 0, 29, 10); /* 20 was dropped */
    expect_longest(&m, 0, 30, 30);
    expect_longest(&m, 0, 1000, 1000);
    expect_longest(&m, 1, 100, 5);
    sequence_marks_close(&m);
}

static void shared_marks_live_as_long_as_one_sequence_has_them(void **state) {
    (void)state;
    SequenceMarks m;
    open_marks(&m, 4);
    sequence_marks_add(&m, 0, 10);
    sequence_marks_add(&m, 0, 20);
    sequence_marks_add(&m, 0, 30);
    sequence_marks_add(&m, 1, 7);
    sequence_marks_share(&m, 0, 1, 25); /* the mark at 7 belonged to other tokens */
    expect_list(&m, 1, 2, (int32_t[]){10, 20});
    sequence_marks_cut(&m, 0, 10);
    expect_list(&m, 0, 1, (int32_t[]){10});
    expect_list(&m, 1, 2, (int32_t[]){10, 20});
    for (int i = 0; i < 2; i++) sequence_marks_add(&m, 2, 50 + i); /* 7 and 30 are free, so no sequence loses a mark */
    expect_list(&m, 0, 1, (int32_t[]){10});
    expect_list(&m, 1, 2, (int32_t[]){10, 20});
    sequence_marks_add(&m, 2, 60); /* 10 is dropped from both sequences that have it */
    expect_list(&m, 0, 0, NULL);
    expect_list(&m, 1, 1, (int32_t[]){20});
    sequence_marks_close(&m);
}

static void without_room_there_are_no_marks(void **state) {
    (void)state;
    SequenceMarks m;
    open_marks(&m, 0);
    assert_int_equal(sequence_marks_add(&m, 0, 10), -1);
    assert_int_equal(sequence_marks_find(&m, 0, 100), -1);
    assert_false(sequence_marks_drop(&m));
    sequence_marks_cut(&m, 0, 0);
    sequence_marks_share(&m, 0, 1, 10);
    sequence_marks_close(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_that_fits_is_found),
        cmocka_unit_test(the_least_recently_used_makes_room),
        cmocka_unit_test(a_full_list_loses_a_mark_of_its_own),
        cmocka_unit_test(shared_marks_live_as_long_as_one_sequence_has_them),
        cmocka_unit_test(without_room_there_are_no_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
