/* score_rows.h: which rows of a prompt speak for all of them: runs of neighbouring rows, spread
 * evenly.
 *
 * Invariants: runs ascend, do not overlap and lie within [begin, end), one in each of n_run equal
 * parts. Where a run lies within its part goes on from part to part by the golden ratio, so that
 * runs do not fall again and again on the same place of a chunk or tile, whatever its size: there
 * some methods sample rows, and others begin to read what they have chosen. */
#ifndef SAC_TESTS_SCORE_ROWS_H
#define SAC_TESTS_SCORE_ROWS_H

#include <assert.h>
#include <math.h>
#include <stdint.h>

/* First row of run `i` of `n_run` runs of `n_row` rows. Each part has room for a run. */
static inline uint32_t score_run_begin(uint32_t begin, uint32_t end, uint32_t n_run, uint32_t n_row,
                                       uint32_t i)
{
    assert(i < n_run && begin <= end && (uint64_t)n_run * n_row <= end - begin);
    const uint64_t span = end - begin;
    const uint32_t part = (uint32_t)(span * i / n_run), next = (uint32_t)(span * (i + 1) / n_run);
    const double golden = 0.6180339887498949, whole = (i + 0.5) * golden;
    return begin + part + (uint32_t)((next - part - n_row + 1) * (whole - floor(whole)));
}

#endif
