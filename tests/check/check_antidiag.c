/* check_antidiag.c: the slot that chooses blocks for prompt rows by their antidiagonals
 * (ops/plans.h) as the CUDA library has it. Masses are summed here in f64; a list must hold the
 * blocks of the most mass, enough of them and none too many, as far as rounding lets that be
 * known. */
#include "cuda_lib.h"

#include "methods/plan.h"

#include <math.h>
#include <string.h>

enum { N_KV = 2, GROUP = 3, N_HEAD = N_KV * GROUP };
enum { POS = 1093, END = 1510, TILE_TOK = OP_ANTIDIAG_TILE };
enum { N_RANGE_MAX = END / TILE_TOK + 1, N_TOK_MAX = 1 };
#include "prompt_rows.h"

static struct op_antidiag make_op(uint32_t stride, double mass)
{
    return (struct op_antidiag){
        .rows = make_rows(), .lists = make_lists(), .stride = stride, .mass = mass};
}

/* Runs it with memory of the device, which holds anything. */
static void run(const struct op_antidiag *op)
{
    struct op_antidiag there = *op;
    put_call(&there.rows, &there.lists);
    there.room = put_any(op_antidiag_bytes(N_HEAD, END - POS, END, op->stride));
    assert_int_equal(api->antidiag(device, &there), SAC_OK);
    get_lists(&there.lists);
}

/* ---- The same here ---- */

/* The score of the row group and the key group that begin at these positions. */
static double score(uint32_t head, uint32_t row, uint32_t tok, uint32_t stride)
{
    double sum = 0;
    for (uint32_t i = 0; i < stride; i++) {
        const uint32_t pos = row + stride - 1 - i;
        if (pos >= POS && pos < END && tok + i < END)
            sum += dot(query(pos - POS, head), key(head / GROUP, tok + i));
    }
    return sum / stride;
}

/* Masses of the blocks of a tile, and their sum. */
static double find_masses(double mass[N_BLOCK], uint32_t tile, uint32_t head, uint32_t stride)
{
    static double x[END];
    const uint32_t first = (TILE0 + tile) * TILE_TOK;
    double total = 0;
    memset(mass, 0, N_BLOCK * sizeof *mass);
    for (uint32_t row = first; row < first + TILE_TOK && row < END; row += stride) {
        double all = 0;
        if (row + stride <= POS) continue;
        for (uint32_t tok = 0; tok <= row; tok += stride)
            all += x[tok / stride] = exp(score(head, row, tok, stride));
        for (uint32_t tok = 0; tok <= row; tok += stride)
            mass[tok / TILE_TOK] += x[tok / stride] / all;
        total += 1;
    }
    return total;
}

/* Masses are known to so many parts of themselves. */
static void assert_best(const struct op_antidiag *op, uint32_t list, double within)
{
    double mass[N_BLOCK], kept = 0, least = INFINITY, most = 0;
    bool is_read[N_BLOCK];
    const uint32_t own = TILE0 + list / N_HEAD;
    const double total = find_masses(mass, list / N_HEAD, list % N_HEAD, op->stride);
    assert_int_equal(got.made[list].why, PLAN_SPARSE);
    read_blocks(is_read, list);
    for (uint32_t b = 0; b <= own; b++) {
        if (is_read[b]) kept += mass[b];
        if (is_read[b] && b > 0 && b < own) least = fmin(least, mass[b]);
        if (!is_read[b]) most = fmax(most, mass[b]);
    }
    assert_true(fabs((double)got.made[list].mass - kept / total) < within);
    assert_true(least > most * (1 - within));
    assert_true(kept > op->mass * total * (1 - within));
    assert_true(isinf(least) || kept - least < op->mass * total * (1 + within));
}

static void blocks_are_the_best(void **state)
{
    static const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_Q8, SAC_KV_F16, SAC_KV_Q8, SAC_KV_BF16};
    static const uint32_t dim[] = {64, 64, 128, 256, 64}, stride[] = {16, 8, 4, 16, 8};
    uint64_t seed = 5;
    uint32_t n_some = 0;
    (void)state;
    for (int i = 0; i < 5; i++) {
        make_sequence(type[i], dim[i], &seed);
        const struct op_antidiag op = make_op(stride[i], i % 2 ? 0.5 : 0.7);
        run(&op);
        for (uint32_t list = 0; list < N_LIST; list++) {
            assert_best(&op, list, type[i] == SAC_KV_BF16 ? 2e-2 : 3e-3);
            n_some += got.made[list].n_range > 2;
        }
        free_sequence();
    }
    assert_true(n_some > N_LIST); /* lists have gaps */
}

/* Where all keys are one, the first blocks go first. */
static void the_first_of_equal_blocks_go_first(void **state)
{
    uint64_t seed = 7;
    bool is_read[N_BLOCK];
    (void)state;
    make_sequence(SAC_KV_F16, 64, &seed);
    for (size_t i = 64; i < N_KV * STRIDE * p.geom.bytes / 2; i++)
        ((uint16_t *)(void *)p.frames)[i] = ((uint16_t *)(void *)p.frames)[i % 64];
    memset(p.own, 0, N_KV * p.geom.tail_bytes);
    for (uint32_t i = 0; i < N_KV * END * 64; i++)
        p.k[i] = i / 64 % END < END - N_OWN
                     ? f16_to_f32(((const uint16_t *)(const void *)p.frames)[i % 64])
                     : 0;
    const struct op_antidiag op = make_op(8, 0.5);
    run(&op);
    for (uint32_t list = 0; list < N_LIST; list++) {
        const uint32_t own = TILE0 + list / N_HEAD;
        uint32_t n = 0;
        assert_best(&op, list, 3e-3);
        read_blocks(is_read, list);
        while (is_read[n]) n++;
        assert_true(n > 2 && n < own);
        for (uint32_t b = n; b < own; b++) assert_false(is_read[b]);
    }
    free_sequence();
}

static void what_reads_everything_says_why(void **state)
{
    uint64_t seed = 4;
    uint32_t n_range[N_LIST];
    (void)state;
    make_sequence(SAC_KV_F16, 64, &seed);
    struct op_antidiag op = make_op(16, 0.7);
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) n_range[i] = got.made[i].n_range;
    op.lists.range_max = 2;
    op.rows.dense_to = (TILE0 + 1) * TILE_TOK;
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) {
        const struct attn_range *range = got.range[0] + (size_t)i * op.lists.range_max;
        const enum plan_reason want = i < N_HEAD       ? PLAN_SHORT
                                      : n_range[i] > 2 ? PLAN_OVERFLOW
                                                       : PLAN_SPARSE;
        assert_int_equal(got.made[i].why, want);
        if (want == PLAN_SPARSE) continue;
        assert_int_equal(got.made[i].n_range, 1);
        assert_int_equal(range->begin, 0);
        assert_int_equal(range->end, (TILE0 + i / N_HEAD + 1) * TILE_PAGES);
        assert_int_equal(got.made[i].n_before, (TILE0 + i / N_HEAD) * TILE_TOK);
    }
    op.dense = true;
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) {
        assert_int_equal(got.made[i].why, PLAN_LAYER);
        assert_true(got.made[i].mass < 0);
    }
    op = make_op(16, 0.7);
    break_key(0x7e00);
    run(&op);
    assert_broken_is_told();
    free_sequence();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_the_best),
        cmocka_unit_test(the_first_of_equal_blocks_go_first),
        cmocka_unit_test(what_reads_everything_says_why),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
