/* test_sketch.c: decode methods that score or draw tokens by something smaller than their keys: the
 * bases of loki and infinigen, rabitq's bits, magicpig's draws. */
#include "lane_bench.h"
#include "methods/decode/magicpig.c"
#include "methods/observe.h"
#include "methods/project.h"

static struct lane_bench b;
static double share[LB_TOK];

/* ---- Bases ---- */

static void axes_are_orthonormal_and_sorted(void **state)
{
    (void)state;
    enum { D = 64, N = 200 };
    static float x[N * D], axis[D * D];
    static double square[D * D];
    b.seed = 1;
    for (uint32_t i = 0; i < N * D; i++) x[i] = lb_unit(&b) * (float)(1 + i % D);
    assert_true(project_axes(axis, x, N, D, true, square));
    for (uint32_t i = 0; i < D; i++)
        for (uint32_t j = 0; j < D; j++) {
            double dot = 0;
            for (uint32_t c = 0; c < D; c++)
                dot += (double)axis[i * D + c] * (double)axis[j * D + c];
            assert_true(fabs(dot - (i == j)) < 1e-5);
        }
    double before = INFINITY;
    for (uint32_t i = 0; i < D; i++) { /* the spread along each axis falls */
        double sum = 0, sum2 = 0;
        for (uint32_t r = 0; r < N; r++) {
            double dot = 0;
            for (uint32_t c = 0; c < D; c++) dot += (double)axis[i * D + c] * (double)x[r * D + c];
            sum += dot / N;
            sum2 += dot * dot / N;
        }
        assert_true(sum2 - sum * sum <= before * (1 + 1e-5));
        before = sum2 - sum * sum;
    }
    x[77] = NAN;
    assert_false(project_axes(axis, x, N, D, true, square));
}

static uint32_t n_common(const char *spec, const char *other)
{
    static uint32_t mask[LB_PAGES];
    uint32_t n = 0;
    for (int i = 0; i < 2; i++) {
        lb_open(&b, SAC_KV_F16, i ? other : spec, 40);
        b.layer = 2;
        lb_random_keys(&b, 2);
        lb_seal(&b);
        for (uint32_t pos = 1100 - LB_PAST; pos <= 1100; pos++) {
            lb_random_query(&b, 2);
            lb_row(&b, pos, pos < 1100);
        }
        if (i == 0) memcpy(mask, b.mask[0], sizeof mask);
        for (uint32_t p = 0; p < LB_PAGES && i; p++)
            n += (uint32_t)__builtin_popcount(mask[p] & b.mask[0][p]);
        lb_close(&b);
    }
    return n;
}

/* With all axes the choice is the exact one, but for the rounding of coordinates. */
static void all_axes_choose_as_whole_keys_do(void **state)
{
    (void)state;
    const uint32_t n_all = 150 - (1100 % 32 + 1);
    assert_true(n_common("loki:budget=150,rank=1,recent=0", "topk:budget=150,sink=0,recent=0") +
                    3 >=
                n_all);
    assert_true(n_common("infinigen:budget=150,rank=1,alpha=100,dense=0",
                         "topk:budget=150,sink=0,recent=0") +
                    3 >=
                n_all);
    assert_true(n_common("loki:budget=150,recent=0", "topk:budget=150,sink=0,recent=0") >
                n_all / 4);
}

/* A share of the axes is rounded down to whole ones, whatever the kernels' widths are. */
static void ranks_are_what_they_say(void **state)
{
    (void)state;
    static const struct {
        double share;
        uint32_t width, rank;
    } want[] = {{0.2, 64, 12},   {0.2, 128, 25}, {0.25, 64, 16}, {0.25, 80, 20},
                {0.29, 100, 29}, {1, 96, 96},    {0, 64, 1},     {0.1, 256, 25}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_int_equal(project_rank(want[i].share, want[i].width), want[i].rank);
}

/* Twelve of 64 coordinates choose, and nothing else does. */
static void coordinates_behind_the_rank_have_no_say(void **state)
{
    (void)state;
    static const char *const specs[] = {"infinigen:budget=50,rank=0.2,alpha=100,dense=0",
                                        "loki:budget=50,rank=0.2,recent=0"};
    enum { N = 20 * 32 };
    for (size_t i = 0; i < 2; i++) {
        struct project p;
        double part[N] = {0}, least_in = 1, most_out = 0;
        lb_open(&b, SAC_KV_F16, specs[i], 45);
        lb_random_keys(&b, 1);
        lb_seal(&b);
        for (uint32_t pos = N - LB_PAST; pos <= N; pos++) {
            lb_random_query(&b, 2);
            lb_row(&b, pos, pos < N);
        }
        project_make(&p, &b.shape, lb_state(&b, b.layer, 0));
        assert_int_equal(p.state->n_axis, 12);
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            double e[N], sum = 0;
            for (uint32_t t = 0; t < N; t++) {
                double x = 0;
                for (uint32_t a = 0; a < 12; a++) {
                    double q = 0;
                    for (uint32_t c = 0; c < LB_DIM; c++)
                        q += (double)b.q[0][g * LB_DIM + c] * (double)p.axis[a * LB_DIM + c];
                    x += q * (double)f16_to_f32(p.coord[(size_t)t * LB_DIM + a]);
                }
                sum += e[t] = exp(0.125 * x);
            }
            for (uint32_t t = 0; t < N; t++) part[t] += e[t] / sum;
        }
        for (uint32_t t = 0; t < N; t++)
            if (lb_reads(&b, 0, t))
                least_in = fmin(least_in, part[t]);
            else
                most_out = fmax(most_out, part[t]);
        assert_int_equal(b.pick[0].n_chosen, 50);
        assert_true(least_in >= most_out * (1 - 1e-4));
        lb_close(&b);
    }
}

/* ---- Bits ---- */

static int falling(const void *a, const void *c)
{
    const double x = *(const double *)a, y = *(const double *)c;
    return (x < y) - (x > y);
}

/* One bit a channel finds most of the mass that as many tokens can hold, on keys without structure,
 * whose logits it tells with an error nearly as large as they are. */
static void bits_find_most_of_the_mass(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        double mass = 0, best = 0;
        lb_open(&b, type ? SAC_KV_Q8 : SAC_KV_F16, "rabitq:mass=0.6,most=1", 41);
        lb_random_keys(&b, 2);
        lb_seal(&b);
        lb_random_query(&b, 3);
        lb_row(&b, 1100, false);
        assert_false(b.pick[0].dense);
        lb_shares(&b, b.q[0], 0, 1100, share);
        for (uint32_t t = 0; t <= 1100; t++) mass += lb_reads(&b, 0, t) ? share[t] : 0;
        const uint32_t n = lb_count(&b, 0);
        qsort(share, 1101, sizeof *share, falling);
        for (uint32_t t = 0; t < n; t++) best += share[t];
        print_message("rabitq: %u of 1101 tokens hold %.3f of the mass, the best would %.3f\n", n,
                      mass, best);
        assert_true(n < 800 && mass > 0.3 && mass > 0.5 * best);
        lb_close(&b);
    }
}

/* ---- Draws ---- */

/* Shares by the paper's formula for K = 10 and L = 150, and what the hashing does. */
static void draws_come_as_often_as_they_say(void **state)
{
    (void)state;
    static const double table[][2] = {{-0.2, 0.00067}, {0, 0.00968},  {0.1, 0.0307}, {0.2, 0.0867},
                                      {0.3, 0.2137},   {0.4, 0.4433}, {0.6, 0.9434}, {0.8, 1}};
    enum { N_TRY = 300 };
    const struct magicpig_param set = {.bits = 10, .tables = 150};
    b.seed = 42;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        const double cosine = table[i][0], want = draw_probability(cosine, 10, 150);
        assert_true(fabs(want - table[i][1]) < 1e-4);
        uint32_t n_drawn = 0;
        for (uint32_t n = 0; n < N_TRY; n++) {
            static float x[LB_DIM], y[LB_DIM], z[LB_DIM], room[LB_DIM];
            uint16_t cx[150], cz[150];
            double xx = 0, yy = 0, xy = 0;
            for (uint32_t c = 0; c < LB_DIM; c++) {
                x[c] = lb_unit(&b) + lb_unit(&b) + lb_unit(&b);
                y[c] = lb_unit(&b) + lb_unit(&b) + lb_unit(&b);
                xx += (double)x[c] * (double)x[c];
                xy += (double)x[c] * (double)y[c];
            }
            for (uint32_t c = 0; c < LB_DIM; c++) {
                y[c] -= (float)(xy / xx) * x[c];
                yy += (double)y[c] * (double)y[c];
            }
            for (uint32_t c = 0; c < LB_DIM; c++)
                z[c] = (float)(cosine / sqrt(xx)) * x[c] +
                       (float)(sqrt(1 - cosine * cosine) / sqrt(yy)) * y[c];
            hash(cx, x, room, LB_DIM, &set);
            hash(cz, z, room, LB_DIM, &set);
            uint32_t n_same = 0;
            for (uint32_t t = 0; t < 150; t++) n_same += cx[t] == cz[t];
            n_drawn += n_same >= 2;
        }
        const double got = (double)n_drawn / N_TRY;
        const double sigma = sqrt(want * (1 - want) / N_TRY) + 1e-3;
        print_message("cosine %4.1f: drawn in %5.1f %%, said %5.1f %%\n", cosine, 100 * got,
                      100 * want);
        assert_true(fabs(got - want) < 4 * sigma + 0.01);
    }
}

/* Tokens drawn weigh more than they are, those read for certain as they are. */
static void weights_undo_the_draw(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "magicpig", 43);
    b.layer = 2;
    lb_random_keys(&b, 1);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++)
            for (uint32_t c = 0; c < LB_DIM; c++) b.k[h][t][c] += 1; /* a cone of keys */
    lb_seal(&b);
    double sum = 0;
    uint32_t n_drawn = 0;
    for (uint32_t i = 0; i < 30; i++) { /* the mean over queries is near the number of tokens */
        lb_random_query(&b, 2);
        lb_row(&b, 1100, false);
        assert_false(b.pick[0].dense);
        for (uint32_t t = 0; t < 1088; t++) {
            if (t < 4 || t + 64 > 1100) {
                assert_true(lb_reads(&b, 0, t) && b.logw[0][t] == 0);
                continue;
            }
            if (!lb_reads(&b, 0, t)) continue;
            assert_true(b.logw[0][t] > -1e-3f);
            sum += exp((double)b.logw[0][t]) / 30;
            n_drawn++;
        }
    }
    print_message("magicpig: %.0f tokens drawn, they stand for %.0f of %d\n", n_drawn / 30.0, sum,
                  1037 - 4);
    assert_true(n_drawn / 30 < 400 && sum > 700 && sum < 1500);
    lb_close(&b);
}

/* Of sixteen layers the first reads everything, as in the paper's models. */
static void some_layers_draw_nothing(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "magicpig", 44);
    lb_random_keys(&b, 1);
    lb_seal(&b);
    for (b.layer = 0; b.layer < 40; b.layer++) {
        lb_random_query(&b, 2);
        lb_row(&b, 1100, false);
        assert_int_equal(b.pick[0].dense, b.layer % 16 == 0);
    }
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(axes_are_orthonormal_and_sorted),
        cmocka_unit_test(all_axes_choose_as_whole_keys_do),
        cmocka_unit_test(ranks_are_what_they_say),
        cmocka_unit_test(coordinates_behind_the_rank_have_no_say),
        cmocka_unit_test(some_layers_draw_nothing),
        cmocka_unit_test(bits_find_most_of_the_mass),
        cmocka_unit_test(draws_come_as_often_as_they_say),
        cmocka_unit_test(weights_undo_the_draw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
