/* test_lines.c: sums along lines and the columns that a tile reads, against their definitions cell
 * by cell. */
#include "methods/lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { N = 333, WORDS = (N + 31) / 32 };

static uint64_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % n;
}

static void sums_are_those_of_the_cells(void **state)
{
    (void)state;
    static float p[5][N], col[N], down[N];
    static const uint32_t row[5] = {0, 31, 100, N - 2, N - 1};
    for (int i = 0; i < 5; i++) {
        for (uint32_t c = 0; c <= row[i]; c++) p[i][c] = (float)draw(64); /* sums are exact */
        lines_add(col, down, N, p[i], row[i]);
    }
    for (uint32_t x = 0; x < N; x++) {
        float vertical = 0, slash = 0;
        for (int i = 0; i < 5; i++) {
            if (x <= row[i]) vertical += p[i][x];
            if (x <= row[i]) slash += p[i][row[i] - x];
        }
        assert_true(col[x] == vertical && down[N - 1 - x] == slash);
    }
}

static void a_tile_reads_what_its_rows_ask_for(void **state)
{
    (void)state;
    static const uint32_t tiles[] = {32, 64, 128};
    for (int k = 0; k < 60; k++) {
        static uint8_t memory[4096];
        _Bool is_col[N] = {0}, is_slash[N] = {0};
        struct arena a = {.base = memory, .capacity = sizeof memory};
        struct lines l;
        lines_make(&l, N, tiles[k % 3], &a);
        assert_int_equal(l.n_word, WORDS);
        for (uint32_t i = draw(12); i > 0; i--) {
            const uint32_t c = draw(N), o = draw(4) ? draw(N) : draw(40);
            is_col[c] = is_slash[o] = 1;
            lines_take_col(&l, c);
            lines_take_slash(&l, o);
        }
        for (uint32_t t0 = 0; t0 < N; t0 += l.tile_tok) {
            uint32_t mask[WORDS] = {0};
            lines_mark(mask, &l, t0);
            for (uint32_t c = 0; c < t0; c++) {
                _Bool want = is_col[c];
                for (uint32_t r = t0; r < t0 + l.tile_tok; r++)
                    want = want || (r >= c && r - c < N && is_slash[r - c]);
                assert_int_equal(mask[c / 32] >> c % 32 & 1, want);
            }
            for (uint32_t w = t0 / 32; w < WORDS; w++) assert_int_equal(mask[w], 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_cells),
        cmocka_unit_test(a_tile_reads_what_its_rows_ask_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
