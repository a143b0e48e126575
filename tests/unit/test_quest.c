/* test_quest.c: Quest's pages of 16 tokens and its choice for each query head, against boxes that
 * are made here from the keys in double. */
#include "logit_bench.h"
#include "methods/box.h"

static struct lane_bench b;

enum { POS = 40 * 31 + 9, N_PAGE_BEFORE = POS / 32, N_HALF = 2 * N_PAGE_BEFORE };

/* The bound of the half page `i`, in the order of positions, for a query head. */
static double bound(uint32_t h, uint32_t g, uint32_t i)
{
    double sum = 0;
    for (uint32_t c = 0; c < LB_DIM; c++) {
        const double q = (double)b.q[h][g * LB_DIM + c];
        double best = -INFINITY;
        for (uint32_t t = 16 * i; t < 16 * (i + 1); t++)
            best = fmax(best, q * (double)b.k[h][t][c]);
        sum += best;
    }
    return sum * 0.125;
}

static bool reads_half(uint32_t h, uint32_t i)
{
    const uint32_t bits = b.mask[h][i / 2] >> 16 * (i % 2) & 0xffffu;
    assert_true(bits == 0 || bits == 0xffffu);
    return bits != 0;
}

static void open_random(const char *spec, sac_kv_type type, uint64_t seed)
{
    lb_open(&b, type, spec, seed);
    lb_random_keys(&b, 1);
    lb_seal(&b);
    lb_random_query(&b, 2);
    lb_row(&b, POS, false);
}

static void each_head_reads_what_any_has_chosen(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        open_random("quest:budget=80,dense=0,sink=0,recent=0,heads=query",
                    type ? SAC_KV_Q8 : SAC_KV_F16, 3);
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            uint32_t n = 0, n_wanted = 0;
            for (uint32_t i = 0; i < N_HALF; i++) {
                bool wanted = false;
                for (uint32_t g = 0; g < LB_GROUP; g++) {
                    uint32_t n_better = 0;
                    for (uint32_t k = 0; k < N_HALF; k++)
                        n_better += bound(h, g, k) > bound(h, g, i);
                    wanted = wanted || n_better < 80 / 16;
                }
                assert_int_equal(reads_half(h, i), wanted);
                n += reads_half(h, i);
                n_wanted += wanted;
            }
            assert_int_equal(b.pick[h].n_chosen, 16 * n);
            assert_true(n_wanted > 5 && n_wanted <= 5 * LB_GROUP); /* heads differ on random keys */
        }
        lb_close(&b);
    }
}

static void heads_together_choose_by_shares(void **state)
{
    (void)state;
    open_random("quest:budget=80,dense=0,sink=0,recent=0", SAC_KV_Q8, 4);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        double share[N_HALF] = {0}, least_in = 1, most_out = 0;
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            double sum = 0;
            for (uint32_t i = 0; i < N_HALF; i++) sum += exp(bound(h, g, i));
            for (uint32_t i = 0; i < N_HALF; i++) share[i] += exp(bound(h, g, i)) / sum;
        }
        for (uint32_t i = 0; i < N_HALF; i++)
            if (reads_half(h, i))
                least_in = fmin(least_in, share[i]);
            else
                most_out = fmax(most_out, share[i]);
        assert_int_equal(b.pick[h].n_chosen, 80);
        assert_true(least_in >= most_out * (1 - 1e-2)); /* boxes are rounded outwards */
    }
    lb_close(&b);
}

/* Half a page that is wanted brings nothing of the other half. */
static void halves_are_apart(void **state)
{
    (void)state;
    logit_open(&b, "quest:budget=16,dense=0,sink=0,recent=0");
    for (uint32_t t = 48; t < 64; t++) logit_both(&b, t, 3); /* the second half of page 1 */
    lb_seal(&b);
    lb_row(&b, 4 * PAGE_TOK, false);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t p = 0; p < 4; p++) assert_int_equal(b.mask[h][p], p == 1 ? 0xffff0000u : 0);
    lb_close(&b);
}

static void both_boxes_bound_their_keys(void **state)
{
    (void)state;
    struct select_scratch r;
    open_random("quest:dense=0", SAC_KV_Q8, 5);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        double slack = INFINITY;
        select_scratch_make(&r, &b.shape, true, b.scratch);
        b.meter[h] = (struct meter){0};
        box_score(&r, &b.lane[h], BOX_HALVES);
        assert_int_equal(b.meter[h].bytes[METER_CHOOSE], N_HALF * LB_DIM * 4);
        for (uint32_t g = 0; g < LB_GROUP; g++)
            for (uint32_t i = 0; i < N_HALF; i++) {
                const double is = (double)r.score[g * r.stride + i % 2 * N_PAGE_BEFORE + i / 2];
                assert_true(is >= bound(h, g, i) - 1e-4);
                slack = fmin(slack, is - bound(h, g, i));
            }
        assert_true(slack < 0.05); /* and not by much: the box is that of the half */
    }
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_head_reads_what_any_has_chosen),
        cmocka_unit_test(heads_together_choose_by_shares),
        cmocka_unit_test(halves_are_apart),
        cmocka_unit_test(both_boxes_bound_their_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
