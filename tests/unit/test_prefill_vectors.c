/* test_prefill_vectors.c: what prefill methods read of small cases, token for token, against their
 * specification written out here cell by cell in double. Queries and keys are made so that every
 * logit is known and no choice is close: hot columns and slashes, each of a strength of its own. */
#include "plan_make.h"

#include <stdio.h>

enum { N = 1024, POS = 512, G = MAKE_GROUP, D = MAKE_DIM, TILE_MAX = 256 };

static struct make m;

static const uint32_t hot_column[] = {300, 77, 411, 130, 205, 350, 61, 489, 97, 160};
static const uint32_t hot_slash[] = {260, 150, 401, 333};
enum { N_COLUMN = 10, N_SLASH = 4, FIRST_CODE = 8, N_CODE = 48 };

/* 1 or -1: keys near one another have nothing in common, but each is found again at a distance. */
static float code(uint32_t tok, uint32_t channel)
{
    uint64_t z = (uint64_t)tok * 0x9e3779b97f4a7c15u + channel * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 31) * 0x94d049bb133111ebu;
    return z >> 63 ? 1 : -1;
}

/* Head 0 looks at columns first, head 1 at slashes. */
static void plant(const char *spec, float column, float slash)
{
    make_open(&m, SAC_KV_F16, N, 1);
    memset(m.q, 0, (size_t)N * G * D * sizeof *m.q);
    memset(m.k, 0, (size_t)N * D * sizeof *m.k);
    for (uint32_t t = 0; t < N; t++) {
        float *key = m.k + (size_t)t * D;
        for (uint32_t i = 0; i < N_COLUMN; i++)
            if (t == hot_column[i]) key[0] = 1 - (float)i / 16;
        for (uint32_t c = 0; c < N_CODE; c++) key[FIRST_CODE + c] = code(t, c);
        for (uint32_t h = 0; h < G; h++) {
            float *q = m.q + ((size_t)t * G + h) * D;
            q[0] = 8 * (h == 0 ? column : column / 2);
            for (uint32_t i = 0; i < N_SLASH; i++)
                for (uint32_t c = 0; c < N_CODE && t >= hot_slash[i]; c++)
                    q[FIRST_CODE + c] += (h == 1 ? slash : slash / 2) * (1 - (float)i / 8) / 6 *
                                         code(t - hot_slash[i], c);
        }
    }
    make_method(&m, spec, N);
}

static uint32_t tile_end(uint32_t tile)
{
    return plan_tile_tok(&m.plan, tile) + m.plan.tile_tok;
}

/* Every token before every tile: read as `want` says, or not at all. */
typedef bool (*want_fn)(uint32_t part, uint32_t row, uint32_t tok);

/* A tile reads what one of its rows asks for. */
static void expect(const char *what, want_fn want)
{
    for (uint32_t i = 0; i < m.plan.n_tile; i++)
        for (uint32_t part = 0; part < m.plan.n_part; part++)
            for (uint32_t c = 0; c < plan_tile_tok(&m.plan, i); c++) {
                bool any = false;
                for (uint32_t r = plan_tile_tok(&m.plan, i); r < tile_end(i) && !any; r++)
                    any = want(part, r, c);
                if (plan_has(&m.plan, i, part, c) != any)
                    fail_msg("%s: head %u, tile at %u, token %u is %sread", what, part,
                             plan_tile_tok(&m.plan, i), c, any ? "not " : "");
            }
}

/* Softmax of head h's row r over the tokens before and itself. */
static void attend(double *out, uint32_t h, uint32_t r)
{
    double sum = 0;
    for (uint32_t c = 0; c <= r; c++) sum += out[c] = exp(make_logit(&m, h, r, c));
    for (uint32_t c = 0; c <= r; c++) out[c] /= sum;
}

/* Sums along the lines of the last n_row rows, divided by their number. */
static double column_sum[G][N], slash_sum[G][N];

static void sum_lines(uint32_t n_row)
{
    static double p[N];
    memset(column_sum, 0, sizeof column_sum);
    memset(slash_sum, 0, sizeof slash_sum);
    for (uint32_t h = 0; h < G; h++)
        for (uint32_t r = N - n_row; r < N; r++) {
            attend(p, h, r);
            for (uint32_t c = 0; c <= r; c++) {
                column_sum[h][c] += p[c] / n_row;
                slash_sum[h][r - c] += p[c] / n_row;
            }
        }
}

/* How many of n values are larger than the i-th. */
static uint32_t rank_of(const double *value, uint32_t n, uint32_t i)
{
    uint32_t rank = 0;
    for (uint32_t j = 0; j < n; j++) rank += value[j] > value[i];
    return rank;
}

/* ---- A-shape, Tri-shape, TriangleMix ---- */

static uint32_t n_sink, n_window, n_last;

static bool ends(uint32_t part, uint32_t row, uint32_t tok)
{
    (void)part;
    return row - tok < n_window || tok < n_sink;
}

static void windows_and_sinks_are_exact(void **state)
{
    (void)state;
    static const uint32_t size[][2] = {{1, 1}, {1, 2}, {4, 63}, {33, 64}, {7, 65}, {128, 300}};
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        char spec[64];
        n_sink = size[i][0];
        n_window = size[i][1];
        snprintf(spec, sizeof spec, "a-shape:sink=%u,window=%u", n_sink, n_window);
        make_open(&m, SAC_KV_F16, N, 1);
        make_method(&m, spec, N);
        make_plan(&m, 0, POS, N);
        expect(spec, ends);
        make_close(&m);
    }
}

/* Tiles with one of the prompt's last rows are dense, whichever chunk they are in. */
static void check_last_rows(const char *spec, uint32_t layer, uint32_t pos, uint32_t end)
{
    make_plan(&m, layer, pos, end);
    for (uint32_t i = 0; i < m.plan.n_tile; i++) {
        const uint32_t last_row = pos + plan_row_end(&m.plan, i) - 1;
        if ((m.plan.list_dense[i] == PLAN_LAYER) != (last_row + n_last >= N))
            fail_msg("%s: the tile up to row %u", spec, last_row);
    }
    assert_int_equal(m.plan.dense, PLAN_SPARSE);
    for (uint32_t i = 0; i < m.plan.n_tile; i++) m.plan.list_dense[i] = 0;
    expect(spec, ends);
}

static void last_rows_read_everything(void **state)
{
    (void)state;
    static const uint32_t last[] = {1, 64, 65, 128, 500};
    n_sink = 4;
    n_window = 65;
    for (size_t i = 0; i < sizeof last / sizeof last[0]; i++) {
        char spec[64];
        n_last = last[i];
        snprintf(spec, sizeof spec, "tri-shape:sink=4,window=65,last=%u", n_last);
        make_open(&m, SAC_KV_F16, N, 1);
        make_method(&m, spec, N);
        for (uint32_t pos = 0; pos < N; pos += 256) {
            make_plan(&m, 0, pos, pos + 256);
            for (uint32_t t = 0; t < m.plan.n_tile; t++) {
                const bool dense = pos + plan_row_end(&m.plan, t) + n_last > N;
                assert_int_equal(m.plan.list_dense[t], dense ? PLAN_LAYER : PLAN_SPARSE);
                if (dense) m.plan.mask[t * m.plan.n_word] = 0;
            }
        }
        if (n_last <= 128) {
            make_plan(&m, 0, 0, 768); /* no last row is in it */
            expect(spec, ends);
        }
        check_last_rows("tri-shape", 0, 0, 512);
        make_close(&m);
    }
}

static void the_first_layers_are_dense(void **state)
{
    (void)state;
    static const struct {
        const char *share;
        uint32_t n_dense;
    } cases[] = {{"0", 0}, {"0.25", 1}, {"0.3", 2}, {"0.5", 2}, {"0.76", 4}, {"1", 4}};
    n_sink = 4;
    n_window = 65;
    n_last = 128;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char spec[80];
        snprintf(spec, sizeof spec, "trianglemix:sink=4,window=65,last=128,layer=%s",
                 cases[i].share);
        make_open(&m, SAC_KV_F16, N, 1);
        make_method(&m, spec, N);
        for (uint32_t layer = 0; layer < 4; layer++) {
            make_plan(&m, layer, 0, 512);
            assert_int_equal(m.plan.dense, layer < cases[i].n_dense ? PLAN_LAYER : PLAN_SPARSE);
            if (!m.plan.dense) check_last_rows(spec, layer, 0, 512);
        }
        make_close(&m);
    }
}

/* ---- MInference ---- */

/* The first lines win, then those with the largest sums. */
static bool is_best(const double *sum, uint32_t n, uint32_t first, uint32_t best, uint32_t i)
{
    uint32_t rank = 0;
    if (i < first) return i < best;
    for (uint32_t j = first; j < n; j++) rank += sum[j] > sum[i];
    return first + rank < best;
}

static bool by_lines[G][2][N]; /* columns, slashes */

static bool lines(uint32_t part, uint32_t row, uint32_t tok)
{
    return by_lines[part][0][tok] || (row < N && row >= tok && by_lines[part][1][row - tok]);
}

static void minference_reads_its_number_of_lines(void **state)
{
    (void)state;
    static const uint32_t size[][4] = {
        {36, 103, 30, 100}, {5, 3, 0, 0}, {9, 4, 4, 2}, {2, 3, 4, 5}};
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        char spec[96];
        snprintf(spec, sizeof spec, "minference:columns=%u,slashes=%u,sink=%u,band=%u", size[i][0],
                 size[i][1], size[i][2], size[i][3]);
        plant(spec, 9, 9);
        sum_lines(64);
        for (uint32_t h = 0; h < G; h++)
            for (uint32_t x = 0; x < N; x++) {
                by_lines[h][0][x] = is_best(column_sum[h], N, size[i][2], size[i][0], x);
                by_lines[h][1][x] = is_best(slash_sum[h], N, size[i][3], size[i][1], x);
            }
        make_plan(&m, 1, POS, N);
        expect(spec, lines);
        make_close(&m);
    }
}

/* ---- FlexPrefill ---- */

enum { BLOCK = 128, N_BLOCK = N / BLOCK };

static int falling(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Whole blocks for the fewest best entries that hold the share, and one more. */
static uint32_t budget_of(const double *value, double share, uint32_t least)
{
    double sorted[N], sum = 0;
    uint32_t n = 0;
    memcpy(sorted, value, sizeof sorted);
    qsort(sorted, N, sizeof *sorted, falling);
    while (n < N && sum < share) sum += sorted[n++];
    return n / BLOCK + 1 > least ? n / BLOCK + 1 : least;
}

static bool by_block[G][2][N_BLOCK];

static bool blocks(uint32_t part, uint32_t row, uint32_t tok)
{
    const uint32_t j = tok / BLOCK;
    return j == 0 || by_block[part][0][j] || by_block[part][1][row / BLOCK - j];
}

static void flex_expected(double share, uint32_t least)
{
    sum_lines(BLOCK);
    for (uint32_t h = 0; h < G; h++)
        for (int k = 0; k < 2; k++) {
            const double *value = k ? slash_sum[h] : column_sum[h];
            double sum[N_BLOCK] = {0};
            for (uint32_t i = 0; i < N; i++) sum[i / BLOCK] += value[i];
            const uint32_t budget = budget_of(value, share, least);
            for (uint32_t j = 0; j < N_BLOCK; j++)
                by_block[h][k][j] = rank_of(sum, N_BLOCK, j) < budget;
        }
}

static void flexprefill_reads_the_blocks_of_its_budgets(void **state)
{
    (void)state;
    static const struct {
        float column, slash;
        double mass;
        uint32_t least;
    } cases[] = {{4, 6, 0.6, 1}, {8, 9, 0.95, 1}, {4, 5, 0.8, 1}, {9, 9, 0.5, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char spec[96];
        snprintf(spec, sizeof spec, "flexprefill:tau=0,mass=%g,least=%u", cases[i].mass,
                 cases[i].least * BLOCK);
        plant(spec, cases[i].column, cases[i].slash);
        flex_expected(cases[i].mass, cases[i].least);
        make_plan(&m, 1, POS, N);
        expect(spec, blocks);
        make_close(&m);
    }
}

/* ---- SpargeAttention ---- */

static bool read_block[N / BLOCK][N / 64];

static bool by_means(uint32_t part, uint32_t row, uint32_t tok)
{
    (void)part;
    return read_block[row / BLOCK][tok / 64];
}

/* Blocks of equal keys, the best of them in no order of place; rows like all of them. */
static void plant_blocks(const char *spec, double *logit)
{
    make_open(&m, SAC_KV_F16, N, 1);
    memset(m.q, 0, (size_t)N * G * D * sizeof *m.q);
    memset(m.k, 0, (size_t)N * D * sizeof *m.k);
    for (uint32_t t = 0; t < N; t++) {
        logit[t / 64] = (double)(t / 64 * 7 % 16) / 4;
        m.k[(size_t)t * D] = (float)logit[t / 64];
        m.q[(size_t)t * G * D] = m.q[((size_t)t * G + 1) * D] = 8;
    }
    make_method(&m, spec, N);
}

static void sparge_reads_its_share_of_the_blocks(void **state)
{
    (void)state;
    static const double top[] = {0.1, 0.25, 0.3, 0.5, 0.8};
    for (size_t i = 0; i < sizeof top / sizeof top[0]; i++) {
        char spec[64];
        double logit[N / 64];
        snprintf(spec, sizeof spec, "sparge:top=%g,like=-2", top[i]);
        plant_blocks(spec, logit);
        for (uint32_t row = 0; row < N / BLOCK; row++) {
            const uint32_t n = (row + 1) * BLOCK / 64, n_best = (uint32_t)ceil(top[i] * n - 1e-9);
            for (uint32_t j = 0; j < n; j++)
                read_block[row][j] = j == 0 || rank_of(logit, n, j) < n_best;
        }
        make_plan(&m, 1, POS, N);
        expect(spec, by_means);
        make_close(&m);
    }
}

/* cdf: the fewest blocks whose softmax over the blocks passes the share. */
static void sparge_reads_its_share_of_the_mass(void **state)
{
    (void)state;
    static const double share[] = {0.3, 0.6, 0.9};
    for (size_t i = 0; i < sizeof share / sizeof share[0]; i++) {
        char spec[64];
        double logit[N / 64];
        snprintf(spec, sizeof spec, "sparge:cdf=%g,like=-2", share[i]);
        plant_blocks(spec, logit);
        for (uint32_t row = 0; row < N / BLOCK; row++) {
            const uint32_t n = (row + 1) * BLOCK / 64;
            double all = 0;
            for (uint32_t j = 0; j < n; j++) all += exp(logit[j]);
            for (uint32_t j = 0; j < n; j++) {
                double better = 0;
                for (uint32_t o = 0; o < n; o++)
                    if (logit[o] > logit[j]) better += exp(logit[o]);
                read_block[row][j] = j == 0 || better <= share[i] * all;
            }
        }
        make_plan(&m, 1, POS, N);
        expect(spec, by_means);
        make_close(&m);
    }
}

/* ---- LoopServe ---- */

/* Attention of the chunk's rows, all of them, that head h's lists hold: a mean. */
static double share_read(uint32_t h)
{
    static double p[N];
    double sum = 0;
    for (uint32_t i = 0; i < m.plan.n_tile; i++)
        for (uint32_t r = plan_tile_tok(&m.plan, i); r < tile_end(i); r += 4) {
            attend(p, h, r);
            for (uint32_t c = 0; c <= r; c++)
                if (c >= plan_tile_tok(&m.plan, i) || plan_has(&m.plan, i, h, c)) sum += p[c];
        }
    return sum / ((double)(N - POS) / 4);
}

/* Sums over tiles and heads of the tokens read before a tile. */
static uint32_t tokens_read(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m.plan.n_tile; i++)
        for (uint32_t part = 0; part < m.plan.n_part; part++)
            for (uint32_t c = 0; c < plan_tile_tok(&m.plan, i); c++)
                n += plan_has(&m.plan, i, part, c);
    return n;
}

/* Lines hold the share that is asked for of the sample, and what is told is what they hold. Of all
 * rows it is about as much: a tile reads more than lines, and what is between them adds up. */
static void loopserve_holds_its_share(void **state)
{
    (void)state;
    static const double mass[] = {0.7, 0.85, 0.95};
    uint32_t before = 0;
    for (size_t i = 0; i < sizeof mass / sizeof mass[0]; i++) {
        char spec[96];
        snprintf(spec, sizeof spec, "loopserve:mass=%g,slashes=1,columns=1,most=1", mass[i]);
        plant(spec, 7, 12);
        make_plan(&m, 1, POS, N);
        print_message("%s: %.3f of the sample, %.3f and %.3f of all rows, %u tokens\n", spec,
                      m.plan.mass / G, share_read(0), share_read(1), tokens_read());
        assert_int_equal(m.plan.n_mass, G);
        const double told = m.plan.mass / G;
        if (told < mass[i] || told > mass[i] + 0.15) fail_msg("%s: %.3f of the sample", spec, told);
        for (uint32_t h = 0; h < G; h++)
            if (share_read(h) < mass[i] - 0.03)
                fail_msg("%s: head %u keeps %.3f", spec, h, share_read(h));
        assert_true(tokens_read() >= before);
        before = tokens_read();
        make_close(&m);
    }
}

/* ---- auto ---- */

/* Softmax sum of row r before its tile as the list has it, weighed, over the exact one. */
static double sum_ratio(uint32_t tile, uint32_t h, uint32_t r)
{
    const uint32_t *mask = plan_mask(&m.plan, tile, h);
    const uint8_t *weight = m.plan.weight + (size_t)(mask - m.plan.mask) * PAGE_TOK;
    double read = 0, all = 0;
    for (uint32_t c = 0; c < plan_tile_tok(&m.plan, tile); c++) {
        const double e = exp(make_logit(&m, h, r, c));
        const bool whole = mask[c / PAGE_TOK] == UINT32_MAX;
        all += e;
        if (mask[c / PAGE_TOK] >> c % PAGE_TOK & 1)
            read += e * (whole ? 1 : exp2((double)weight[c] / PLAN_OCTAVE));
    }
    return read / all;
}

/* Weighed sums are right in the mean, and as near as `mass` says: the standard deviation of rows'
 * sums is at most 1 - mass. The first page and the recent ones are read, the last rows densely. */
static void autos_sums_are_right_in_the_mean(void **state)
{
    (void)state;
    static const double mass[] = {0.9, 0.95};
    double n_read[2] = {0};
    for (size_t i = 0; i < 2; i++) {
        char spec[96];
        double sum = 0, square = 0, n = 0;
        snprintf(spec, sizeof spec, "auto:mass=%g,most=1,last=100,recent=32,spread=0", mass[i]);
        plant(spec, 3, 3);
        make_plan(&m, 1, POS, N);
        for (uint32_t tile = 0; tile < m.plan.n_tile; tile++)
            for (uint32_t h = 0; h < G; h++) {
                const uint32_t t0 = plan_tile_tok(&m.plan, tile);
                const bool is_last = t0 + m.plan.tile_tok == N;
                assert_int_equal(m.plan.list_dense[tile * G + h], is_last ? PLAN_LAYER : 0);
                assert_int_equal(plan_mask(&m.plan, tile, h)[0], UINT32_MAX);
                assert_int_equal(plan_mask(&m.plan, tile, h)[t0 / PAGE_TOK - 1], UINT32_MAX);
                for (uint32_t w = 0; w < t0 / PAGE_TOK; w++)
                    n_read[i] += __builtin_popcount(plan_mask(&m.plan, tile, h)[w]);
                for (uint32_t r = t0 + 15; r < t0 + 256; r += 16, n++) {
                    const double off = sum_ratio(tile, h, r) - 1;
                    sum += off;
                    square += off * off;
                }
            }
        print_message("mass %g: sums off by %.4f in the mean, %.4f in the square, %g read\n",
                      mass[i], sum / n, sqrt(square / n), n_read[i]);
        assert_true(fabs(sum / n) < (1 - mass[i]) / 2);
        assert_true(sqrt(square / n) < 1 - mass[i]);
        make_close(&m);
    }
    assert_true(n_read[1] > 1.2 * n_read[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_and_sinks_are_exact),
        cmocka_unit_test(last_rows_read_everything),
        cmocka_unit_test(the_first_layers_are_dense),
        cmocka_unit_test(minference_reads_its_number_of_lines),
        cmocka_unit_test(flexprefill_reads_the_blocks_of_its_budgets),
        cmocka_unit_test(sparge_reads_its_share_of_the_blocks),
        cmocka_unit_test(sparge_reads_its_share_of_the_mass),
        cmocka_unit_test(loopserve_holds_its_share),
        cmocka_unit_test(autos_sums_are_right_in_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
