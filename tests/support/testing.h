/* testing.h - included by every test: cmocka, and access to ../shared. */
#ifndef TESTS_TESTING_H
#define TESTS_TESTING_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"

/* Tests run in the root of the project, or in a folder that looks like it (run_tests.c), and write below build/.
 * testing_has_shared: whether ../shared exists. If it does not, a test that needs it prints that and counts as
 * skipped. */
int testing_has_shared(void);
#define need_shared() \
    do { \
        if (!testing_has_shared()) { \
            print_message("skipped: no ../shared\n"); \
            skip(); \
        } \
    } while (0)

#endif
