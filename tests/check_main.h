/* check_main.h: how a Check program runs its suite, and the main function of one with one list of tests; header only.
 *
 *     CHECK_MAIN("bpe", test_one, test_two) */
#ifndef TESTS_CHECK_MAIN_H
#define TESTS_CHECK_MAIN_H

#include <check.h>

/* Runs and frees the suite; the exit status. */
static inline int check_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#define CHECK_MAIN(name, ...)                                                                      \
    int main(void)                                                                                 \
    {                                                                                              \
        const TTest *tests[] = {__VA_ARGS__};                                                      \
        Suite *suite = suite_create(name);                                                         \
        TCase *cases = tcase_create(name);                                                         \
        tcase_set_timeout(cases, 60);                                                              \
        for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)                              \
            tcase_add_test(cases, tests[i]);                                                       \
        suite_add_tcase(suite, cases);                                                             \
        return check_run(suite);                                                                   \
    }

#endif
