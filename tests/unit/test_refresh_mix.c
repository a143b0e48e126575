/* test_refresh_mix.c: how what is computed again of a token is mixed with what its document had. */
#include "engine/refresh.c"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* By the share that their cosine says; what has no direction stays as it was computed. */
static void what_is_mixed_by_hand(void **state)
{
    static const struct {
        float x[2], old[2], want[2];
    } of[] = {
        {{3, 4}, {6, 8}, {3, 4}},       {{3, 4}, {-3, -4}, {-3, -4}}, {{2, 0}, {0, 2}, {0, 2}},
        {{5, 0}, {6, 8}, {5.4f, 3.2f}}, {{0, 0}, {3, 4}, {0, 0}},     {{3, 4}, {0, 0}, {3, 4}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) {
        float x[2] = {of[i].x[0], of[i].x[1]};
        mix(x, of[i].old, 2);
        for (int k = 0; k < 2; k++)
            if (!(fabsf(x[k] - of[i].want[k]) <= 1e-6f))
                fail_msg("case %zu: %g, not %g", i, (double)x[k], (double)of[i].want[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_mixed_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
