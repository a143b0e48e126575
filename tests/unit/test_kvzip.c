/* test_kvzip.c: what a token's vote is when the model repeats the text, and which tokens all heads
 * of a model keep together. That the engine puts the rows is in test_repeat.c. */
#include "lane_bench.h"
#include "methods/decode/kvzip.c"

static struct lane_bench b;

enum { N_TOK = 700, SINK = 8, ROWS_HEARD = 6, ROW_FLOATS = LB_HEADS * LB_GROUP * LB_DIM };

static void open_random(const char *spec, sac_kv_type type)
{
    lb_open(&b, type, spec, 31);
    lb_random_keys(&b, 1.5f);
    lb_seal(&b);
}

static const float *votes(uint32_t layer, uint32_t h)
{
    lb_point(&b, N_TOK, false);
    return compress_heard_votes(&b.lane[0], layer, h);
}

/* The largest share that token t of [begin, end) has in any row and head: of a softmax over the
 * first tokens, these, and the rows before and at the row. */
static void expect_votes(uint32_t h, uint32_t begin, uint32_t end, const float *q, uint32_t n_row)
{
    static double want[LB_TOK];
    memset(want, 0, sizeof want);
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            const float *of = q + r * ROW_FLOATS + (h * LB_GROUP + g) * LB_DIM;
            double sum = 0;
            for (uint32_t t = 0; t <= N_TOK + r; t++)
                if (t < SINK || (t >= begin && t < end) || t >= N_TOK)
                    sum += exp(lb_logit(&b, of, h, t));
            for (uint32_t t = begin; t < end; t++)
                want[t] = fmax(want[t], exp(lb_logit(&b, of, h, t)) / sum);
        }
    for (uint32_t t = begin; t < end; t++)
        if (fabs((double)votes(0, h)[t] - want[t]) > 1e-4 * (want[t] + 0.01))
            fail_msg("token %u has %g, not %g", t, (double)votes(0, h)[t], want[t]);
}

/* A run of rows, from row r of the repetition on. */
static void hear_rows_of(struct method_repeated of, float *q, uint32_t r, uint32_t n_row)
{
    for (uint32_t i = 0; i < n_row; i++) {
        lb_random_query(&b, 3);
        memcpy(q + i * ROW_FLOATS, b.q, sizeof b.q);
    }
    lb_point(&b, N_TOK + r + n_row - 1, true); /* own page and sealed ones are the last row's */
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        struct method_lane *l = &b.lane[h];
        l->repeated = &of;
        l->pos = N_TOK + r;
        l->n_row = n_row;
        l->q = q + h * LB_GROUP * LB_DIM;
        l->q_stride = ROW_FLOATS;
        kvzip_see(l);
    }
}

static void votes_are_the_largest_shares_of_a_piece(void **state)
{
    (void)state;
    static float q[ROWS_HEARD * ROW_FLOATS];
    static const struct {
        uint32_t begin, end;
    } piece[] = {{SINK, 200}, {200, 391}, {391, N_TOK}};
    static const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_Q8};
    for (size_t k = 0; k < 2; k++) {
        open_random("kvzip:sink=8,repeat=192", types[k]);
        for (size_t i = 0; i < sizeof piece / sizeof piece[0]; i++) {
            const struct method_repeated of = {N_TOK, piece[i].begin, piece[i].end};
            for (uint32_t r = 0, n_row; r < ROWS_HEARD; r += n_row) { /* runs of five and of one */
                n_row = min_u32(ROWS_HEARD - r, 5);
                hear_rows_of(of, q + r * ROW_FLOATS, r, n_row);
            }
            /* The tail is 16 bits wide, whatever pages are: the bench's keys are those of pages. */
            for (uint32_t h = 0; h < LB_HEADS && types[k] == SAC_KV_F16; h++)
                expect_votes(h, of.begin, of.end, q, ROWS_HEARD);
        }
        assert_int_equal(compress_heard(&b.lane[0], 0, 1), N_TOK);
        lb_close(&b);
    }
}

/* Head 1's softmax is sharper in layer 0, head 0's in layer 3, so few tokens have their votes: what
 * all four layers keep together is the best of all votes, of some heads more than of others. */
static void all_heads_share_a_threshold(void **state)
{
    (void)state;
    enum { BUDGET = 100, LAYERS = 4 };
    static float vote[LAYERS * LB_HEADS][N_TOK];
    uint32_t n_kept = 0, n_head[LAYERS * LB_HEADS] = {0};
    float least_in = 2, most_out = 0;
    open_random("kvzip:budget=100,sink=8,window=0", SAC_KV_F16);
    for (b.layer = 0; b.layer < LAYERS; b.layer++) { /* the engine repeats for all layers first */
        lb_random_query(&b, 1);
        for (uint32_t i = 0; i < LB_GROUP * LB_DIM; i++) {
            b.q[1][i] *= b.layer == 0 ? 8.0f : 1.0f;
            b.q[0][i] *= b.layer == 3 ? 8.0f : 1.0f;
        }
        lb_repeat_all(&b, N_TOK);
        for (uint32_t h = 0; h < LB_HEADS; h++)
            memcpy(vote[b.layer * LB_HEADS + h], votes(b.layer, h), sizeof vote[0]);
    }
    for (b.layer = 0; b.layer < LAYERS; b.layer++) {
        lb_row(&b, N_TOK, false);
        for (uint32_t h = 0; h < LB_HEADS; h++)
            for (uint32_t t = 0; t < N_TOK / 32 * 32; t++) {
                const float x = vote[b.layer * LB_HEADS + h][t];
                const bool is_read = lb_reads(&b, h, t);
                assert_true(t >= SINK || is_read);
                n_kept += is_read;
                n_head[b.layer * LB_HEADS + h] += is_read;
                if (t < SINK) continue;
                if (is_read) least_in = fminf(least_in, x);
                if (!is_read) most_out = fmaxf(most_out, x);
            }
    }
    assert_true(least_in > most_out);
    /* Tokens of the row's own page may be among the kept ones, and the last of all is not. */
    assert_true(n_kept <= LAYERS * LB_HEADS * BUDGET &&
                n_kept > LAYERS * LB_HEADS * BUDGET * 8 / 10);
    uint32_t fewest = N_TOK, most = 0;
    for (uint32_t i = 0; i < LAYERS * LB_HEADS; i++) {
        fewest = min_u32(fewest, n_head[i]);
        most = max_u32(most, n_head[i]);
    }
    assert_true(most > fewest + 20);
    lb_close(&b);
}

/* A layer that was not repeated (it has a window) has no part in the threshold. */
static void layers_without_votes_do_not_count(void **state)
{
    (void)state;
    open_random("kvzip:budget=100,sink=0,window=0", SAC_KV_F16);
    b.layer = 1;
    lb_random_query(&b, 2);
    lb_row(&b, N_TOK, false);
    uint32_t n = 0;
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < N_TOK; t++) n += b.pick[h].dense || lb_reads(&b, h, t);
    assert_true(n < 2 * LB_HEADS * 100);
    lb_close(&b);
}

/* What was dropped behind one prompt is no part of the next repetition. */
static void dropped_tokens_get_no_votes(void **state)
{
    (void)state;
    open_random("kvzip:budget=100,sink=0,window=0", SAC_KV_F16);
    lb_random_query(&b, 2);
    lb_row(&b, N_TOK, false);
    bool was_read[N_TOK];
    for (uint32_t t = 0; t < N_TOK / 32 * 32; t++) was_read[t] = lb_reads(&b, 0, t);
    lb_random_query(&b, 2);
    lb_row(&b, N_TOK + 1, true);
    lb_repeat_all(&b, N_TOK + 2);
    for (uint32_t t = 0; t < N_TOK / 32 * 32; t++)
        if (!was_read[t]) assert_true(votes(0, 0)[t] == 0);
    lb_row(&b, N_TOK + 2, false);
    uint32_t n_read = 0;
    for (uint32_t t = 0; t < N_TOK / 32 * 32; t++) {
        n_read += lb_reads(&b, 0, t);
        if (!was_read[t]) assert_false(lb_reads(&b, 0, t));
    }
    assert_true(n_read > 0);
    lb_close(&b);
}

/* A prompt that is no longer than what is kept in any case is read whole, and nobody repeats it. */
static void nothing_is_dropped_of_first_tokens(void **state)
{
    (void)state;
    open_random("kvzip:budget=10,sink=700", SAC_KV_F16);
    lb_random_query(&b, 2);
    lb_row(&b, N_TOK, false);
    assert_true(b.pick[0].dense && !b.pick[0].not_finite);
    lb_close(&b);
}

static void a_bad_key_makes_its_head_dense(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "kvzip:budget=100,sink=0,window=0", 31);
    lb_random_keys(&b, 1);
    b.k[1][333][7] = NAN;
    lb_seal(&b);
    lb_random_query(&b, 2);
    lb_row(&b, N_TOK, false);
    assert_true(b.pick[1].not_finite && b.pick[1].dense && !b.pick[0].not_finite);
    lb_close(&b);
}

/* A file may bring the votes of one lane and not those of another. */
static void a_lane_without_votes_is_read_whole(void **state)
{
    (void)state;
    open_random("kvzip:budget=100,sink=0,window=0", SAC_KV_F16);
    lb_random_query(&b, 2);
    lb_repeat_all(&b, N_TOK);
    memset(lb_state(&b, 0, 1), 0, b.state_stride);
    lb_row(&b, N_TOK, false);
    assert_true(b.pick[1].not_finite && b.pick[1].dense && !b.pick[0].dense);
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(votes_are_the_largest_shares_of_a_piece),
        cmocka_unit_test(all_heads_share_a_threshold),
        cmocka_unit_test(layers_without_votes_do_not_count),
        cmocka_unit_test(dropped_tokens_get_no_votes),
        cmocka_unit_test(nothing_is_dropped_of_first_tokens),
        cmocka_unit_test(a_bad_key_makes_its_head_dense),
        cmocka_unit_test(a_lane_without_votes_is_read_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
