/* test_score_rows.c: rows that are scored in the middle of a prompt are spread over it, and over
 * the places of any chunk and tile, by whose borders methods choose. */
#include "../tools/score_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#define N_RUN 64u
#define N_ROW 4u

static void every_part_has_a_run(void **state)
{
    (void)state;
    static const uint32_t ends[] = {N_RUN * N_ROW + 100, 3840, 8192, 16384, 32768, 131072,
                                    UINT32_MAX};
    for (size_t e = 0; e < sizeof ends / sizeof ends[0]; e++)
        for (uint32_t begin = 0; begin <= 100; begin += 50)
            for (uint32_t i = 0; i < N_RUN; i++) {
                const uint64_t span = ends[e] - begin;
                const uint32_t at = score_run_begin(begin, ends[e], N_RUN, N_ROW, i);
                assert_true(at >= begin + span * i / N_RUN);
                assert_true((uint64_t)at + N_ROW <= begin + span * (i + 1) / N_RUN);
            }
}

static void a_full_span_is_scored_whole(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < N_RUN; i++)
        assert_int_equal(score_run_begin(64, 64 + N_RUN * N_ROW, N_RUN, N_ROW, i), 64 + i * N_ROW);
}

/* Each quarter of a chunk has at least half of its share of the runs. At equal distances a span
 * that the chunk divides has all of them in one quarter. */
static void no_place_of_a_chunk_is_spared(void **state)
{
    (void)state;
    for (uint32_t begin = 0; begin <= 2048; begin += 2048)
        for (uint32_t end = 8192; end <= 131072; end *= 2)
            for (uint32_t chunk = 64; chunk <= 2048; chunk *= 2) {
                uint32_t n[4] = {0};
                for (uint32_t i = 0; i < N_RUN; i++)
                    n[score_run_begin(begin, end, N_RUN, N_ROW, i) % chunk / (chunk / 4)]++;
                for (int q = 0; q < 4; q++) assert_true(n[q] >= N_RUN / 4 / 2);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_part_has_a_run),
        cmocka_unit_test(a_full_span_is_scored_whole),
        cmocka_unit_test(no_place_of_a_chunk_is_spared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
