/* test_round_robin.c: whose turn it was, of few keys and of more than are remembered. */
#include "serve/round_robin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static void keys_take_turns(void **state)
{
    (void)state;
    struct round_robin *t = calloc(1, sizeof *t);
    assert_int_equal(round_robin_last(t, 0), 0);
    round_robin_take(t, 0); /* no key is one, too */
    round_robin_take(t, 7);
    assert_true(round_robin_last(t, 0) > 0 && round_robin_last(t, 0) < round_robin_last(t, 7));
    round_robin_take(t, 0);
    assert_true(round_robin_last(t, 7) < round_robin_last(t, 0));
    assert_int_equal(round_robin_last(t, 8), 0);
    free(t);
}

static void the_longest_ago_is_forgotten(void **state)
{
    (void)state;
    struct round_robin *t = calloc(1, sizeof *t);
    for (uint64_t key = 1; key <= ROUND_ROBIN_MAX; key++) round_robin_take(t, key);
    round_robin_take(t, 1);
    round_robin_take(t, ROUND_ROBIN_MAX + 1);
    assert_int_equal(round_robin_last(t, 2), 0);
    for (uint64_t key = 3; key <= ROUND_ROBIN_MAX + 1; key++)
        assert_true(round_robin_last(t, key) > 0);
    assert_true(round_robin_last(t, 1) > 0);
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_take_turns),
        cmocka_unit_test(the_longest_ago_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
