/* SPDX-License-Identifier: Apache-2.0 */
/* main() of a Check program: `return ps_check_main(suite);`. Output as CK_TAP_LOG_FILE_NAME and CK_VERBOSITY say. */
#ifndef PS_TESTS_CHECK_MAIN_H
#define PS_TESTS_CHECK_MAIN_H

#include <check.h>
#include <stdlib.h>

static inline int ps_check_main(Suite *s)
{
    SRunner *runner = srunner_create(s);

    srunner_run_all(runner, CK_ENV);
    const int n_failed = srunner_ntests_failed(runner);

    srunner_free(runner);
    return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
