/* test_prefill_choice.c: what single prefill methods choose on made-up queries and keys, against
 * definitions written down here. prop_methods.c asks the engine for what all methods promise. */
#include "plan_make.h"

enum { N = 2048, G = MAKE_GROUP, D = MAKE_DIM };

static struct make m;

static bool is_dense(uint32_t part)
{
    bool dense = true;
    for (uint32_t i = 0; i < m.plan.n_tile; i++)
        dense = dense && m.plan.list_dense[i * m.plan.n_part + part];
    return m.plan.dense || dense;
}

static double density(void)
{
    double n = 0, all = 0;
    for (uint32_t i = 0; i < m.plan.n_tile; i++)
        for (uint32_t part = 0; part < m.plan.n_part; part++)
            for (uint32_t c = 0; c < plan_tile_tok(&m.plan, i); c++, all++)
                n += plan_has(&m.plan, i, part, c);
    return all > 0 ? n / all : 1;
}

static void open_random(const char *spec, uint32_t n_row_max)
{
    make_open(&m, SAC_KV_F16, N, 1);
    make_method(&m, spec, n_row_max);
}

/* ---- All of them ---- */

static const char *const all[] = {"minference:columns=60,slashes=60",
                                  "flexprefill:least=128,mass=0.1",
                                  "xattention:mass=0.5",
                                  "sparge:top=0.2,like=-2",
                                  "critiprefill:budget=128,dense=128,segment=128",
                                  "loopserve:mass=0.4,slashes=8,columns=4"};
#define N_ALL (sizeof all / sizeof all[0])

/* A plan is the same whatever the scratch held and the plan before it was, and it is sparse. */
static void plans_come_out_the_same_again(void **state)
{
    (void)state;
    static const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    for (size_t k = 0; k < N_ALL * 3; k++) {
        make_open(&m, types[k % 3], N - 7, 1 + k);
        for (uint32_t t = 0; t < N - 7; t++) { /* eight columns have half of the attention */
            m.q[t * G * D] = m.q[(t * G + 1) * D] = 6;
            m.k[t * D] = t % 256 == 40 ? 7 : 0;
        }
        make_method(&m, all[k / 3], 1024);
        const size_t bytes =
            (size_t)(1024 / m.plan.tile_tok + 2) * m.plan.n_part * m.plan.n_word * sizeof *m.mask;
        uint32_t *first = malloc(bytes);
        make_plan(&m, 1, 1024, N - 7);
        memcpy(first, m.mask, bytes);
        if (density() > 0.9) fail_msg("%s reads everything", all[k / 3]);
        make_plan(&m, 1, 0, 1000);
        make_plan(&m, 1, 1024, N - 7);
        assert_memory_equal(first, m.mask, bytes);
        free(first);
        make_close(&m);
    }
}

static void short_chunks_and_odd_starts_are_planned(void **state)
{
    (void)state;
    static const uint32_t chunk[][2] = {{0, 1},       {0, 63},      {0, 65},      {700, 701},
                                        {1000, 1063}, {1024, 1025}, {1030, 1500}, {1999, 2048}};
    for (size_t k = 0; k < N_ALL; k++) {
        open_random(all[k], 512);
        for (size_t j = 0; j < sizeof chunk / sizeof chunk[0]; j++) {
            make_plan(&m, 2, chunk[j][0], chunk[j][1]);
            if (m.plan.n_mass)
                assert_true(m.plan.mass >= 0 && m.plan.mass <= 1.0001 * m.plan.n_mass);
        }
        make_close(&m);
    }
}

static void a_nan_among_the_keys_makes_the_lane_dense(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_ALL; k++) {
        make_open(&m, SAC_KV_F16, N, 3);
        m.k[300 * D + 5] = NAN;
        make_method(&m, all[k], 1024);
        make_plan(&m, 2, 1024, N);
        assert_int_equal(m.plan.dense, PLAN_NAN);
        make_close(&m);
    }
}

static void equal_heads_get_equal_plans(void **state)
{
    (void)state;
    for (size_t k = 0; k < N_ALL; k++) {
        make_open(&m, SAC_KV_F16, N, 4);
        for (uint32_t r = 0; r < N; r++)
            memcpy(m.q + (r * G + 1) * D, m.q + r * G * D, D * sizeof(float));
        make_method(&m, all[k], 1024);
        make_plan(&m, 2, 1024, N);
        for (uint32_t i = 0; i < m.plan.n_tile && m.plan.n_part > 1; i++)
            assert_memory_equal(plan_mask(&m.plan, i, 0), plan_mask(&m.plan, i, 1),
                                plan_tile_tok(&m.plan, i) / 8);
        make_close(&m);
    }
}

static void a_full_budget_is_dense(void **state)
{
    (void)state;
    static const char *const full[] = {
        "minference:columns=4096", "flexprefill:mass=1",       "xattention:mass=1", "sparge:top=1",
        "sparge:like=2",           "critiprefill:budget=4096", "loopserve:mass=1"};
    for (size_t k = 0; k < sizeof full / sizeof full[0]; k++) {
        open_random(full[k], 1024);
        make_plan(&m, 3, 1024, N);
        for (uint32_t part = 0; part < m.plan.n_part; part++) assert_true(is_dense(part));
        make_close(&m);
    }
}

/* ---- MInference ---- */

/* Late rows look at a few columns and at a few distances. */
static void minference_finds_lines(void **state)
{
    (void)state;
    static const uint32_t column[] = {40, 333, 1029}, slash[] = {150, 777};
    make_open(&m, SAC_KV_F16, N, 5);
    /* Keys of the columns have a channel of their own; for a slash, keys and queries have a random
     * sign pattern of 16 channels that depends on the position, as if turned. */
    for (uint32_t t = 0; t < N; t++) {
        for (int i = 0; i < 3; i++) m.k[t * D] = t == column[i] ? 12 : m.k[t * D];
        for (uint32_t h = 0; h < G; h++) m.q[(t * G + h) * D] = 8;
    }
    for (int i = 0; i < 2; i++)
        for (uint32_t t = 0; t + slash[i] < N; t++)
            for (uint32_t c = 0; c < 24; c++) {
                const uint32_t at = 8 + 24 * (uint32_t)i + c;
                for (uint32_t h = 0; h < G; h++)
                    m.q[((t + slash[i]) * G + h) * D + at] = 10 * m.k[t * D + at];
            }
    make_method(&m, "minference:columns=36,slashes=106", 1024);
    make_plan(&m, 0, 1024, N);
    for (uint32_t i = 0; i < m.plan.n_tile; i++)
        for (uint32_t h = 0; h < G; h++) {
            const uint32_t t0 = plan_tile_tok(&m.plan, i);
            for (uint32_t c = 0; c < 30; c++) assert_true(plan_has(&m.plan, i, h, c));
            for (uint32_t o = 0; o < 100; o++) assert_true(plan_has(&m.plan, i, h, t0 - o));
            for (int j = 0; j < 3; j++) assert_true(plan_has(&m.plan, i, h, column[j]));
            for (int j = 0; j < 2; j++) assert_true(plan_has(&m.plan, i, h, t0 - slash[j]));
        }
    assert_true(density() < 0.6);
    make_close(&m);
}

/* Half of the heads look at many columns and half at one distance: no size fits both. */
static void minference_searches_a_size_for_each_head(void **state)
{
    (void)state;
    enum { LONG = 4096 };
    make_open(&m, SAC_KV_F16, LONG, 11);
    for (uint32_t t = 0; t < LONG; t++)
        for (uint32_t c = 0; c < D; c++) {
            /* Head 0 likes each third key. Head 1 looks 600 to 1,300 behind: what it asks for goes
             * round once in 8,192 tokens, and it is turned back by 950. */
            const double angle = 2 * M_PI * t / 8192, back = 2 * M_PI * (t - 950.0) / 8192;
            const float turn[2] = {(float)cos(angle), (float)sin(angle)};
            const float want[2] = {(float)cos(back), (float)sin(back)};
            m.k[t * D + c] = c < 2 ? 10 * turn[c] : c == 2 ? (t % 3 == 0 ? 4.0f : 0) : 0;
            m.q[(t * G + 0) * D + c] = c == 2 ? 30.0f : 0;
            m.q[(t * G + 1) * D + c] = c < 2 ? 400 * want[c] : 0;
        }
    make_method(&m, "minference:sizes=search", 512);
    make_plan(&m, 1, LONG - 512, LONG);
    assert_true(m.plan.dense == PLAN_SPARSE && m.plan.n_mass == G);
    uint32_t n_column[G] = {0};
    for (uint32_t c = 0; c < LONG - 2048; c++)
        for (uint32_t h = 0; h < G; h++) n_column[h] += plan_has(&m.plan, 7, h, c);
    assert_true(n_column[0] >= (LONG - 2048) / 3); /* 3,500 columns */
    assert_true(n_column[1] < (LONG - 2048) / 3);
    make_close(&m);
}

/* ---- XAttention ---- */

/* Mass of block j for the block row at t0 by the definition, in double. */
static void antidiagonal_mass(uint32_t h, uint32_t t0, double *mass, uint32_t stride)
{
    for (uint32_t j = 0; j <= t0 / 128; j++) mass[j] = 0;
    for (uint32_t row = t0 / stride; row < (t0 + 128) / stride; row++) {
        static double z[N];
        double sum = 0;
        for (uint32_t col = 0; col <= row; col++) {
            z[col] = 0;
            for (uint32_t i = 0; i < stride; i++)
                z[col] += make_logit(&m, h, row * stride + stride - 1 - i, col * stride + i);
            z[col] = exp(z[col] / stride);
            sum += z[col];
        }
        for (uint32_t col = 0; col <= row; col++) mass[col * stride / 128] += z[col] / sum;
    }
}

static void xattention_reads_the_fewest_blocks_that_suffice(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t stride = k ? 16 : 8;
        open_random(k ? "xattention:mass=0.7" : "xattention:mass=0.7,stride=8", 512);
        make_plan(&m, 0, 1536, N);
        for (uint32_t i = 0; i < 4; i++)
            for (uint32_t h = 0; h < G; h++) {
                double mass[N / 128], kept = 0, least = 1e9;
                const uint32_t own = 12 + i, total = 128 / stride;
                antidiagonal_mass(h, own * 128, mass, stride);
                for (uint32_t j = 0; j <= own; j++) {
                    if (!plan_has(&m.plan, i, h, j * 128)) continue;
                    kept += mass[j];
                    if (j > 0 && j < own) least = fmin(least, mass[j]);
                    for (uint32_t c = 0; c < 128; c++)
                        assert_true(plan_has(&m.plan, i, h, j * 128 + c));
                }
                assert_true(plan_has(&m.plan, i, h, 0) && kept >= 0.7 * total - 1e-3);
                assert_true(kept - least < 0.7 * total + 1e-3);
                for (uint32_t j = 1; j < own; j++) /* the best ones */
                    assert_true(plan_has(&m.plan, i, h, j * 128) || mass[j] <= least + 1e-4);
            }
        make_close(&m);
    }
}

/* ---- SpargeAttention ---- */

static void sparge_reads_blocks_that_are_not_alike(void **state)
{
    (void)state;
    make_open(&m, SAC_KV_F16, N, 6);
    for (uint32_t t = 0; t < N; t++)
        for (uint32_t c = 0; c < D; c++) {
            m.q[t * G * D + c] = m.q[(t * G + 1) * D + c] = 1 + 0.1f * m.q[t * G * D + c];
            /* Only keys 640 .. 703 point everywhere. */
            if (t / 64 != 10) m.k[t * D + c] = (t / 64 == 3 ? 2.0f : 1.0f) + 0.1f * m.k[t * D + c];
        }
    make_method(&m, "sparge:top=0.1,like=0.5", 1024);
    make_plan(&m, 0, 1024, N);
    for (uint32_t i = 0; i < m.plan.n_tile; i++)
        for (uint32_t h = 0; h < G; h++)
            for (uint32_t c = 0; c < 64; c++) {
                assert_true(plan_has(&m.plan, i, h, c));
                assert_true(plan_has(&m.plan, i, h, 640 + c));
                assert_true(plan_has(&m.plan, i, h, 3 * 64 + c)); /* the best mean */
            }
    assert_true(density() < 0.3);
    make_close(&m);
    make_open(&m, SAC_KV_F16, N, 6); /* queries that point everywhere */
    make_method(&m, "sparge:top=0.1,like=0.5", 1024);
    make_plan(&m, 0, 1024, N);
    assert_true(is_dense(0) && is_dense(1));
    make_close(&m);
}

/* ---- FlexPrefill ---- */

static void flexprefill_switches_by_the_distance(void **state)
{
    (void)state;
    /* With tau 0 every head has lines: what a tile reads is the same for all, column by column or
     * by distance. With tau 2 blocks come from pooled scores: a block that every mean query likes
     * is read by all, though the observed rows, which are turned away from it, do not. */
    for (int k = 0; k < 2; k++) {
        make_open(&m, SAC_KV_F16, N, 7);
        for (uint32_t t = 0; t < N; t++)
            for (uint32_t h = 0; h < G; h++) {
                m.k[t * D] = t / 128 == 5 ? 20 : 0;
                m.q[(t * G + h) * D] = t < N - 128 ? 10 : -10;
            }
        make_method(&m, k ? "flexprefill:tau=2,mass=0.95,least=128" : "flexprefill:tau=0,least=128",
                    1024);
        make_plan(&m, 0, 1024, N);
        for (uint32_t i = 0; i + 1 < m.plan.n_tile; i++)
            for (uint32_t h = 0; h < G; h++) {
                assert_true(plan_has(&m.plan, i, h, 0));
                if (k) assert_true(plan_has(&m.plan, i, h, 5 * 128 + 64));
            }
        if (!k)
            assert_false(plan_has(&m.plan, 0, 0, 5 * 128) && plan_has(&m.plan, 1, 0, 5 * 128) &&
                         plan_has(&m.plan, 2, 0, 5 * 128) && plan_has(&m.plan, 6, 0, 5 * 128));
        make_close(&m);
    }
}

/* ---- CritiPrefill ---- */

/* Scores of all 32-token blocks before segment s by the code's formula, in double. */
static void criticality(uint32_t seg, uint32_t s, double *share)
{
    double sum = 0, top = -1e300;
    for (uint32_t b = 0; b < s * seg / 32; b++) {
        double mean = 0;
        for (uint32_t h = 0; h < G; h++) {
            double a = 0, z = 0;
            for (uint32_t c = 0; c < D; c++) {
                double qmax = -1e9, qmin = 1e9, kmax = -1e9, kmin = 1e9;
                for (uint32_t r = s * seg; r < (s + 1) * seg; r++) {
                    qmax = fmax(qmax, (double)m.q[(r * G + h) * D + c]);
                    qmin = fmin(qmin, (double)m.q[(r * G + h) * D + c]);
                }
                for (uint32_t t = b * 32; t < b * 32 + 32; t++) {
                    kmax = fmax(kmax, (double)m.k[t * D + c]);
                    kmin = fmin(kmin, (double)m.k[t * D + c]);
                }
                a += (qmax + qmin) / 2 * kmax;
                z += (qmax + qmin) / 2 * kmin;
            }
            mean += fmax(a, z) / G;
        }
        share[b] = mean;
        top = fmax(top, mean);
    }
    for (uint32_t b = 0; b < s * seg / 32; b++) sum += exp(share[b] - top);
    for (uint32_t b = 0; b < s * seg / 32; b++) share[b] = exp(share[b] - top) / sum;
}

/* Whether each row of segment s reads the 8 best blocks, its own segment, and nothing else. */
static void check_choice(uint32_t seg, uint32_t s, const double *share)
{
    const uint32_t n_block = s * seg / 32;
    for (uint32_t i = 0; i < m.plan.n_tile; i++) {
        const uint32_t t0 = plan_tile_tok(&m.plan, i);
        if (t0 / seg != s) continue;
        uint32_t n_read = 0;
        for (uint32_t b = 0; b < n_block; b++) {
            uint32_t better = 0;
            for (uint32_t j = 0; j < n_block; j++) better += share[j] > share[b];
            const bool read = plan_has(&m.plan, i, 0, b * 32);
            n_read += read;
            for (uint32_t c = 0; c < 32; c++)
                assert_int_equal(plan_has(&m.plan, i, 0, b * 32 + c), read);
            /* Scores that are nearly equal may come in either order. */
            if (better < 7) assert_true(read);
            if (better > 8) assert_false(read);
        }
        assert_int_equal(n_read, 8);
        for (uint32_t c = s * seg; c < t0; c++) assert_true(plan_has(&m.plan, i, 0, c));
    }
}

static void critiprefill_reads_the_best_blocks_of_its_segment(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        static double now[3][64], before[3][64];
        make_open(&m, SAC_KV_F16, N, 8);
        for (size_t i = 0; i < (size_t)N * G * D; i++) m.q[i] *= 0.05f; /* shares of a like size */
        make_method(&m, "critiprefill:budget=256,segment=256,dense=512,fuse=0.25", 768);
        make_plan(&m, 1, 768, 1536);
        for (uint32_t s = 3; s < 6; s++) {
            criticality(256, s, before[s - 3]);
            check_choice(256, s, before[s - 3]);
        }
        /* The next layer: other queries, and a part of the scores of the one before; none of it if
         * there was another chunk between. */
        for (size_t i = 0; i < (size_t)N * G * D; i++) m.q[i] = -0.7f * m.q[i];
        if (k) make_plan(&m, 1, 0, 768);
        make_plan(&m, 2, 768, 1536);
        for (uint32_t s = 3; s < 6; s++) {
            criticality(256, s, now[s - 3]);
            for (uint32_t b = 0; b < s * 8 && !k; b++)
                now[s - 3][b] = 0.25 * before[s - 3][b] + 0.75 * now[s - 3][b];
            check_choice(256, s, now[s - 3]);
        }
        make_close(&m);
    }
}

static void critiprefill_leaves_ends_dense(void **state)
{
    (void)state;
    make_open(&m, SAC_KV_F16, 1000, 1);
    make_method(&m, "critiprefill:budget=256,segment=256,dense=512", 1024);
    make_plan(&m, 0, 0, 1000);
    assert_int_equal(m.plan.dense, PLAN_LAYER);
    make_plan(&m, 1, 0, 1000);
    for (uint32_t i = 0; i < m.plan.n_tile; i++) {
        const uint32_t s = plan_tile_tok(&m.plan, i) / 256;
        assert_int_equal(m.plan.list_dense[i], s < 2    ? PLAN_SHORT
                                               : s == 3 ? PLAN_LAYER
                                                        : PLAN_SPARSE);
    }
    make_close(&m);
}

/* The same segments in chunks of one, of several, and by the boxes that q8 pages hold. */
static void critiprefill_does_not_care_about_chunks(void **state)
{
    (void)state;
    for (int k = 0; k < 3; k++) {
        static uint32_t whole[N / 64][N / 32];
        static const char *const spec[] = {
            "critiprefill:budget=256,segment=256,dense=256",
            "critiprefill:budget=256,segment=256,dense=256,scores=paper",
            "critiprefill:budget=256,segment=256,dense=256,block=128"};
        make_open(&m, k == 0 ? SAC_KV_Q8 : SAC_KV_F16, N, 9);
        make_method(&m, spec[k], N);
        make_plan(&m, 1, 0, N);
        for (uint32_t i = 0; i < N / 64; i++)
            memcpy(whole[i], plan_mask(&m.plan, i, 0), i * 64 / 8);
        for (uint32_t pos = 512; pos < N; pos += 512) {
            make_plan(&m, 1, pos, pos + 512);
            for (uint32_t i = 0; i < m.plan.n_tile; i++)
                assert_memory_equal(plan_mask(&m.plan, i, 0), whole[pos / 64 + i],
                                    (pos + i * 64) / 8);
        }
        make_close(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_come_out_the_same_again),
        cmocka_unit_test(short_chunks_and_odd_starts_are_planned),
        cmocka_unit_test(a_nan_among_the_keys_makes_the_lane_dense),
        cmocka_unit_test(equal_heads_get_equal_plans),
        cmocka_unit_test(a_full_budget_is_dense),
        cmocka_unit_test(minference_finds_lines),
        cmocka_unit_test(minference_searches_a_size_for_each_head),
        cmocka_unit_test(xattention_reads_the_fewest_blocks_that_suffice),
        cmocka_unit_test(sparge_reads_blocks_that_are_not_alike),
        cmocka_unit_test(flexprefill_switches_by_the_distance),
        cmocka_unit_test(critiprefill_reads_the_best_blocks_of_its_segment),
        cmocka_unit_test(critiprefill_leaves_ends_dense),
        cmocka_unit_test(critiprefill_does_not_care_about_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
