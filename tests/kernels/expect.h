/* expect.h: ck_assert_msg for inner loops. Check's own macros write a record to a file at every assertion that holds,
 * which costs more than the kernels under test. */
#ifndef TESTS_KERNELS_EXPECT_H
#define TESTS_KERNELS_EXPECT_H

#include <check.h>

#define expect(condition) expect_msg(condition, "%s", #condition)
#define expect_msg(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ck_abort_msg(__VA_ARGS__);                                                             \
    } while (0)

#endif
