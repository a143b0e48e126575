/* test_dropped.c: what methods that drop tokens for good keep, against the definitions of their
 * papers written down here: KNorm, KeyDiff, ChunkKV, Expected Attention, TOVA. SnapKV and its
 * nearest are in test_past.c. */
#include "lane_bench.h"

static struct lane_bench b;
static double votes[LB_TOK], shares[LB_TOK];

enum { N = 900, FULL = N / 32 * 32, N_KEEP = 200 }; /* tokens of the prompt, in whole pages, kept */

static void open_bench(const char *spec, uint64_t seed)
{
    lb_open(&b, SAC_KV_F16, spec, seed);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    b.layer = 2;
    for (uint32_t pos = N - LB_PAST; pos < N; pos++) {
        lb_random_query(&b, 3);
        lb_row(&b, pos, true);
    }
}

/* Of tokens 0 .. n - 1 head h reads those with the best votes; how many. */
static uint32_t reads_the_best(uint32_t h, uint32_t n, double rounding)
{
    double worst_in = INFINITY, best_out = -INFINITY;
    uint32_t n_kept = 0;
    for (uint32_t t = 0; t < n; t++) {
        n_kept += lb_reads(&b, h, t);
        if (lb_reads(&b, h, t))
            worst_in = fmin(worst_in, votes[t]);
        else
            best_out = fmax(best_out, votes[t]);
    }
    assert_true(worst_in >= best_out - rounding);
    return n_kept;
}

/* Tokens of the prompt's last, unsealed page that the method keeps are not to be told from others
 * of the row's own page: votes say how many there are. */
static uint32_t best_behind(uint32_t n)
{
    uint32_t n_behind = 0;
    for (uint32_t t = n; t < N; t++) {
        uint32_t n_better = 0;
        for (uint32_t i = 0; i < N; i++) n_better += votes[i] > votes[t];
        n_behind += n_better < N_KEEP;
    }
    return n_behind;
}

static void nothing_is_chosen_again(uint32_t h)
{
    uint32_t first[LB_PAGES];
    memcpy(first, b.mask[h], sizeof first);
    for (uint32_t pos = N + 1; pos < N + 70; pos++) {
        lb_random_query(&b, 6);
        lb_row(&b, pos, false);
        for (uint32_t p = 0; p < N / 32; p++) assert_int_equal(b.mask[h][p], first[p]);
        for (uint32_t t = FULL + 32; t <= pos; t++) assert_true(lb_reads(&b, h, t));
    }
}

static double length(const float *k)
{
    double sum = 0;
    for (uint32_t c = 0; c < LB_DIM; c++) sum += (double)k[c] * (double)k[c];
    return sqrt(sum);
}

static void knorm_keeps_the_shortest_keys(void **state)
{
    (void)state;
    open_bench("knorm:budget=200,dense=2", 3);
    lb_row(&b, N, false);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        for (uint32_t t = 0; t < N; t++) votes[t] = -length(b.k[h][t]);
        assert_int_equal(reads_the_best(h, FULL, 1e-4), N_KEEP - best_behind(FULL));
    }
    nothing_is_chosen_again(1);
    lb_close(&b);
    open_bench("knorm:budget=200,dense=3", 3); /* the layer at hand is the third */
    lb_row(&b, N, false);
    assert_true(b.pick[0].dense);
    lb_close(&b);
}

static void keydiff_keeps_the_keys_unlike_the_others(void **state)
{
    (void)state;
    open_bench("keydiff:budget=200", 4);
    lb_row(&b, N, false);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        double anchor[LB_DIM] = {0}, size = 0;
        for (uint32_t t = 0; t < N; t++)
            for (uint32_t c = 0; c < LB_DIM; c++)
                anchor[c] += (double)b.k[h][t][c] / length(b.k[h][t]);
        for (uint32_t c = 0; c < LB_DIM; c++) size += anchor[c] * anchor[c];
        for (uint32_t t = 0; t < N; t++) {
            votes[t] = 0;
            for (uint32_t c = 0; c < LB_DIM; c++)
                votes[t] -= anchor[c] / sqrt(size) * (double)b.k[h][t][c] / length(b.k[h][t]);
        }
        assert_int_equal(reads_the_best(h, FULL, 1e-5), N_KEEP - best_behind(FULL));
    }
    nothing_is_chosen_again(0);
    lb_close(&b);
}

/* A window of the newest tokens is kept whatever their keys are, and is part of the budget. */
static void windows_are_kept(void **state)
{
    (void)state;
    static const char *const specs[] = {"knorm:budget=200,window=100,dense=0",
                                        "keydiff:budget=200,window=100"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        uint32_t n_kept = 0;
        open_bench(specs[i], 5);
        lb_row(&b, N, false);
        for (uint32_t t = 0; t < N - 100; t++) n_kept += lb_reads(&b, 0, t);
        assert_int_equal(n_kept, 100);
        for (uint32_t t = N - 100; t <= N; t++) assert_true(lb_reads(&b, 0, t));
        lb_close(&b);
    }
}

static void chunkkv_keeps_whole_chunks(void **state)
{
    (void)state;
    enum { WINDOW = 36, CHUNK = 8, N_OLD = N - WINDOW };
    open_bench("chunkkv:budget=200,window=36,chunk=8", 6);
    memset(votes, 0, sizeof votes);
    for (uint32_t pos = N_OLD; pos < N; pos++) {
        lb_shares(&b, b.past[0][pos % LB_PAST], 0, pos, shares);
        for (uint32_t t = 0; t < N_OLD; t++) votes[t / CHUNK * CHUNK] += shares[t];
    }
    for (uint32_t t = 0; t < N_OLD; t++) votes[t] = votes[t / CHUNK * CHUNK];
    lb_row(&b, N, false);
    assert_int_equal(reads_the_best(0, N_OLD, 1e-5), N_KEEP - WINDOW);
    uint32_t n_parted = 0; /* the one on the cut */
    for (uint32_t t = 0; t < N_OLD; t += CHUNK) {
        uint32_t n = 0;
        for (uint32_t i = t; i < t + CHUNK; i++) n += lb_reads(&b, 0, i);
        n_parted += n % CHUNK != 0;
    }
    assert_int_equal(n_parted, (N_KEEP - WINDOW) % CHUNK != 0);
    lb_close(&b);
}

/* ---- Expected Attention: with the matrices that the method does without ---- */

enum { ROWS = 48, FUTURE = 20, HALF = LB_DIM / 2 };
static double mean_q[LB_DIM], covariance[LB_DIM][LB_DIM];

/* Row p's query before rotation, of the pairs (i, i + HALF). */
static void turn_back(double *out, const float *q, uint32_t pos)
{
    for (uint32_t i = 0; i < HALF; i++) {
        const double c = cos(pos * b.inv_freq[i]), s = sin(pos * b.inv_freq[i]);
        out[i] = (double)q[i] * c + (double)q[i + HALF] * s;
        out[i + HALF] = (double)q[i + HALF] * c - (double)q[i] * s;
    }
}

/* The mean of the rotations of positions N .. N + FUTURE - 1 of a vector. */
static void turn_on(double *x)
{
    for (uint32_t i = 0; i < HALF; i++) {
        double c = 0, s = 0;
        for (uint32_t p = N; p < N + FUTURE; p++) {
            c += cos(p * b.inv_freq[i]) / FUTURE;
            s += sin(p * b.inv_freq[i]) / FUTURE;
        }
        const double left = x[i], right = x[i + HALF];
        x[i] = left * c - right * s;
        x[i + HALF] = left * s + right * c;
    }
}

/* Mean and covariance of the plain queries of head g, carried on: R mean, R covariance R'. */
static void learn(uint32_t h, uint32_t g)
{
    double q[ROWS][LB_DIM];
    memset(mean_q, 0, sizeof mean_q);
    memset(covariance, 0, sizeof covariance);
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint32_t pos = N - ROWS + r;
        turn_back(q[r], b.past[h][pos % LB_PAST] + g * LB_DIM, pos);
        for (uint32_t c = 0; c < LB_DIM; c++) mean_q[c] += q[r][c] / ROWS;
    }
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < LB_DIM; i++)
            for (uint32_t k = 0; k < LB_DIM; k++)
                covariance[i][k] += (q[r][i] - mean_q[i]) * (q[r][k] - mean_q[k]) / ROWS;
    turn_on(mean_q);
    for (uint32_t i = 0; i < LB_DIM; i++) turn_on(covariance[i]);
    for (uint32_t k = 0; k < LB_DIM; k++) {
        double column[LB_DIM];
        for (uint32_t i = 0; i < LB_DIM; i++) column[i] = covariance[i][k];
        turn_on(column);
        for (uint32_t i = 0; i < LB_DIM; i++) covariance[i][k] = column[i];
    }
}

/* Adds head g's expected shares to `votes`. */
static void expect(uint32_t h, uint32_t g)
{
    const double scale = 0.125;
    double sum = 0;
    learn(h, g);
    for (uint32_t t = 0; t < N; t++) {
        double m = 0, s = 0;
        for (uint32_t i = 0; i < LB_DIM; i++) {
            const double k = (double)b.k[h][t][i];
            m += mean_q[i] * k * scale;
            for (uint32_t j = 0; j < LB_DIM; j++)
                s += k * covariance[i][j] * (double)b.k[h][t][j] * scale * scale;
        }
        sum += shares[t] = exp(m + s / 2);
    }
    for (uint32_t t = 0; t < N; t++) votes[t] += shares[t] / sum / LB_GROUP;
}

static void expected_keeps_what_later_queries_may_want(void **state)
{
    (void)state;
    open_bench("expected:budget=200,rows=48,future=20,sink=3", 9);
    lb_row(&b, N, false);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        memset(votes, 0, sizeof votes);
        for (uint32_t g = 0; g < LB_GROUP; g++) expect(h, g);
        for (uint32_t t = 0; t < N; t++) votes[t] *= t < 3 ? INFINITY : length(b.v[h][t]);
        assert_int_equal(reads_the_best(h, FULL, 1e-5), N_KEEP - best_behind(FULL));
    }
    lb_close(&b);
}

/* ---- TOVA: played beside it, with sets of tokens ---- */

static bool alive[LB_TOK];

/* The layer's mean softmax shares of row `pos` over what lives. */
static void vote_as_row(uint32_t pos)
{
    memset(votes, 0, sizeof votes);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            double score[LB_TOK], sum = 0;
            const float *q = b.past[h][pos % LB_PAST] + g * LB_DIM;
            for (uint32_t t = 0; t <= pos; t++) {
                score[t] = 0;
                for (uint32_t c = 0; c < LB_DIM; c++)
                    score[t] += (double)q[c] * (double)b.k[h][t][c] * (double)b.lane[h].scale;
                if (alive[t]) sum += exp(score[t]);
            }
            for (uint32_t t = 0; t <= pos; t++)
                if (alive[t]) votes[t] += exp(score[t]) / sum;
        }
}

/* The least of the living go until `budget` are left of tokens 0 .. pos. */
static void drop_least(uint32_t pos, uint32_t budget)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t <= pos; t++) n += alive[t];
    for (; n > budget; n--) {
        uint32_t least = UINT32_MAX;
        for (uint32_t t = 0; t <= pos; t++)
            if (alive[t] && (least == UINT32_MAX || votes[t] < votes[least])) least = t;
        alive[least] = false;
    }
}

static void tova_drops_what_was_looked_at_least(void **state)
{
    (void)state;
    open_bench("tova:budget=200", 8);
    memset(alive, true, sizeof alive);
    for (uint32_t pos = N; pos < N + 70; pos++) {
        vote_as_row(pos - 1);
        drop_least(pos - 1, N_KEEP);
        lb_random_query(&b, 3);
        lb_row(&b, pos, false);
        for (uint32_t h = 0; h < LB_HEADS; h++)
            for (uint32_t t = 0; t < pos / 32 * 32; t++)
                if (lb_reads(&b, h, t) != alive[t])
                    fail_msg("row %u, head %u: token %u, which %s", pos, h, t,
                             alive[t] ? "lives, is not read" : "was dropped, is read");
    }
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knorm_keeps_the_shortest_keys),
        cmocka_unit_test(keydiff_keeps_the_keys_unlike_the_others),
        cmocka_unit_test(windows_are_kept),
        cmocka_unit_test(chunkkv_keeps_whole_chunks),
        cmocka_unit_test(expected_keeps_what_later_queries_may_want),
        cmocka_unit_test(tova_drops_what_was_looked_at_least),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
