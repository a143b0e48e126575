/* test_psa.c: every reading of progressive attention against a slow one that is written down here:
 * votes from every key, one sort, coverages in double, and closed forms for who stops when. Both KV
 * heads of a row are asked together. */
#include "logit_bench.h"

static struct lane_bench b;
static struct op_lane_result result[LB_HEADS]; /* of the last choice */

/* ---- The row's heads in one batch ---- */

static void choose_row(uint32_t pos)
{
    const struct method_decode *hooks = b.spec.method->decode;
    uint8_t *scratch = mem_map(LB_HEADS * b.scratch_bytes);
    union op_lane list[LB_HEADS];
    uint32_t target[LB_HEADS];
    memset(result, 0, sizeof result);
    lb_point(&b, pos, false);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        b.lane[h].scratch = scratch + h * b.scratch_bytes;
        memset(b.mask[h], 0, sizeof b.mask[h]);
        b.pick[h] = (struct method_pick){
            .mask = b.mask[h], .rest_log = b.rest_log[h], .rest_value = b.rest_value[h]};
    }
    batch_choose(hooks, &(struct method_batch){.ops = &b.ops,
                                               .n = LB_HEADS,
                                               .lane = b.lane,
                                               .pick = b.pick,
                                               .result = result,
                                               .target = target,
                                               .list = list});
    mem_unmap(scratch, LB_HEADS * b.scratch_bytes);
}

/* ---- The slow reading ---- */

struct reading {
    bool by_mean, by_layer, by_plane;
    enum op_rest rest;
    uint32_t step;
    double mass;
};

static double half(double x)
{
    return (double)f16_to_f32(f32_to_f16((float)x));
}

/* What a page promises a query head: the score of its digest. */
static double digest_score(const float *q, const float (*k)[LB_DIM])
{
    double score = 0;
    for (uint32_t c = 0; c < LB_DIM; c++) {
        float lo = k[0][c], hi = k[0][c], off = 0;
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            lo = fminf(lo, k[t][c]);
            hi = fmaxf(hi, k[t][c]);
        }
        for (uint32_t t = 0; t < PAGE_TOK; t++) off += fabsf(k[t][c] - (lo + hi) / 2);
        score += (double)q[c] * half((double)(lo + hi) / 2) +
                 fabs((double)q[c]) * half((double)off / PAGE_TOK);
    }
    return 0.125 * score;
}

/* The same of a token by two bits of each channel. */
static double plane_score(const float *q, const float (*k)[LB_DIM], uint32_t t)
{
    double score = 0;
    for (uint32_t c = 0; c < LB_DIM; c++) {
        float lo = k[0][c], hi = k[0][c];
        for (uint32_t i = 0; i < PAGE_TOK; i++) {
            lo = fminf(lo, k[i][c]);
            hi = fmaxf(hi, k[i][c]);
        }
        const double step = half((double)(hi - lo) / 255);
        const double from = (double)k[t][c] - half((double)lo);
        const double code = step > 0 ? fmin(fmax(floor(from / (64 * step)), 0), 3) : 0;
        score += (double)q[c] * (half((double)lo) + step * (64 * code + 31.5));
    }
    return 0.125 * score;
}

/* Shares of the pages in a softmax, mean over the query heads of a KV head. */
static void vote_pages(double *vote, uint32_t h, uint32_t n_page, bool by_plane)
{
    static double e[LB_TOK];
    const uint32_t n = by_plane ? n_page * PAGE_TOK : n_page, each = by_plane ? PAGE_TOK : 1;
    memset(vote, 0, n_page * sizeof *vote);
    for (uint32_t g = 0; g < LB_GROUP; g++) {
        const float *q = b.q[h] + g * LB_DIM;
        double sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            const float(*k)[LB_DIM] = (const float(*)[LB_DIM])b.k[h][i / each * PAGE_TOK];
            sum += e[i] = exp(by_plane ? plane_score(q, k, i % PAGE_TOK) : digest_score(q, k));
        }
        for (uint32_t i = 0; i < n; i++) vote[i / each] += e[i] / sum / LB_GROUP;
    }
}

static double mass_of(uint32_t h, uint32_t g, uint32_t begin, uint32_t end)
{
    double sum = 0;
    for (uint32_t t = begin; t < end; t++) sum += exp(lb_logit(&b, b.q[h] + g * LB_DIM, h, t));
    return sum;
}

/* What the pages that are not read have by their votes, all that are read having `seen`. */
static double rest_by_votes(double seen, const double *vote, const bool *read, uint32_t n_page)
{
    double told = 0, left = 0;
    for (uint32_t p = 0; p < n_page; p++) *(read[p] ? &told : &left) += vote[p];
    return seen * left / told;
}

/* Of KV heads [h0, h1), pages visited together: marks of them. */
static void read_slowly(const struct reading *r, uint32_t pos, uint32_t h0, uint32_t h1, bool *read)
{
    const uint32_t n_page = pos / PAGE_TOK;
    double vote[LB_PAGES] = {0}, one[LB_PAGES], seen[LB_HEADS][LB_GROUP], own[LB_HEADS][LB_GROUP];
    double least[LB_HEADS][LB_GROUP], last[LB_HEADS][LB_GROUP];
    uint32_t n_left = n_page, n_step = 0;
    memset(read, 0, LB_PAGES * sizeof *read);
    for (uint32_t h = h0; h < h1; h++) {
        vote_pages(one, h, n_page, r->by_plane);
        for (uint32_t p = 0; p < n_page; p++) vote[p] += one[p];
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            seen[h][g] = own[h][g] = mass_of(h, g, n_page * PAGE_TOK, pos + 1);
            least[h][g] = INFINITY;
        }
    }
    for (uint32_t p = 0; p < n_page; p++) {
        if (p > 0 && p + 2 < n_page) continue;
        read[p] = true;
        n_left--;
        for (uint32_t h = h0; h < h1; h++)
            for (uint32_t g = 0; g < LB_GROUP; g++)
                seen[h][g] += mass_of(h, g, p * PAGE_TOK, (p + 1) * PAGE_TOK);
    }
    while (n_left > 0) {
        double sum = 0, lowest = 1;
        for (uint32_t h = h0; h < h1; h++)
            for (uint32_t g = 0; g < LB_GROUP; g++) {
                const double guess =
                    r->rest == OP_REST_LAST && n_step ? last[h][g] / n_step : least[h][g];
                const double rest = r->rest == OP_REST_VOTE
                                        ? rest_by_votes(seen[h][g] - own[h][g], vote, read, n_page)
                                        : n_left * guess;
                const double share = seen[h][g] / (seen[h][g] + rest);
                sum += share;
                lowest = fmin(lowest, share);
            }
        if ((r->by_mean ? sum / ((h1 - h0) * LB_GROUP) : lowest) > r->mass) return;
        memset(last, 0, sizeof last);
        n_step = min_u32(r->step, n_left);
        for (uint32_t i = 0; i < n_step; i++, n_left--) {
            uint32_t best = LB_PAGES;
            for (uint32_t p = 0; p < n_page; p++)
                if (!read[p] && (best == LB_PAGES || vote[p] > vote[best])) best = p;
            read[best] = true;
            for (uint32_t h = h0; h < h1; h++)
                for (uint32_t g = 0; g < LB_GROUP; g++) {
                    const double mass = mass_of(h, g, best * PAGE_TOK, (best + 1) * PAGE_TOK);
                    seen[h][g] += mass;
                    last[h][g] += mass;
                    least[h][g] = fmin(least[h][g], mass);
                }
        }
    }
}

static uint32_t expect_reading(const struct reading *r, uint32_t pos)
{
    bool read[LB_PAGES];
    uint32_t n_read = 0;
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        if (h == 0 || !r->by_layer) {
            const uint32_t h1 = r->by_layer ? LB_HEADS : h + 1;
            read_slowly(r, pos, r->by_layer ? 0 : h, h1, read);
        }
        assert_true(b.pick[h].attended && !b.pick[h].dense);
        for (uint32_t p = 0; p < pos / PAGE_TOK; p++) {
            if (b.mask[h][p] != (read[p] ? UINT32_MAX : 0))
                fail_msg("head %u: page %u is %sread", h, p, read[p] ? "not " : "");
            n_read += read[p];
        }
    }
    return n_read;
}

/* All readings of random keys; some pages are far better than others, for other heads other ones.
 */
static void all_readings_are_those_of_the_slow_one(void **state)
{
    (void)state;
    enum { POS = 24 * PAGE_TOK + 5 };
    uint32_t n_read[2] = {0};
    static const char *const rest[] = {"min", "last", "vote"};
    for (uint32_t way = 0; way < 96; way++) {
        const struct reading r = {.by_mean = way & 1,
                                  .by_layer = way & 2,
                                  .by_plane = way & 4,
                                  .step = way & 8 ? 3 : 1,
                                  .mass = way & 16 ? 0.9 : 0.6,
                                  .rest = (enum op_rest)(way / 32)};
        char spec[128];
        snprintf(spec, sizeof spec, "psa:mass=%g,stop=%s,scope=%s,order=%s,rest=%s,step=%u", r.mass,
                 r.by_mean ? "mean" : "min", r.by_layer ? "layer" : "head",
                 r.by_plane ? "plane" : "box", rest[r.rest], r.step);
        lb_open(&b, SAC_KV_F16, spec, 5);
        sac_error err;
        assert_int_equal(ops_init_isa(&b.ops, "ref", &err),
                         SAC_OK); /* shares of planes are rough */
        lb_random_keys(&b, 1);
        for (uint32_t h = 0; h < LB_HEADS; h++)
            for (uint32_t i = 0; i < 12; i++)
                for (uint32_t c = 0; c < LB_DIM; c++)
                    b.k[h][(5 + i * 97 + h * 331) % LB_TOK][c] *= 1.5f;
        lb_seal(&b);
        lb_random_query(&b, 2.5f);
        choose_row(POS);
        n_read[way % 2] += expect_reading(&r, POS);
        lb_close(&b);
    }
    assert_true(n_read[1] < n_read[0]); /* the mean is reached before the least */
}

/* Blocks of the specification for one query head, the same mass in all pages for the other: behind
 * the third of four it has seen 98/131. */
static void open_worked(const char *spec, uint32_t flat_heads)
{
    static const float block[4][2] = {{3, 2}, {2.5f, 0}, {0, 0}, {-1, -1}};
    logit_open(&b, spec);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t t = 0; t < 2; t++) logit_both(&b, (1 + i) * PAGE_TOK + t, block[i][t]);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t g = 0; g < LB_GROUP; g++)
            for (uint32_t t = PAGE_TOK; t < 5 * PAGE_TOK && flat_heads >> (2 * h + g) & 1; t++)
                b.k[h][t][g] = 0;
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t g = 0; g < LB_GROUP; g++) b.k[h][5 * PAGE_TOK][g] = 1;
    lb_seal(&b);
    choose_row(5 * PAGE_TOK);
}

static void expect_counts(uint32_t n0, uint32_t n1)
{
    const uint32_t want[LB_HEADS] = {n0, n1};
    static const uint32_t order[] = {0, 1, 2, 3, 4};
    for (uint32_t h = 0; h < LB_HEADS; h++) expect_pages(&b, h, order, 1 + want[h]);
    lb_close(&b);
}

/* Coverages behind the third page are 0.957784 and (e + 96) / (e + 128) = 0.755189. */
static void the_mean_or_the_least_stops(void **state)
{
    (void)state;
    open_worked("psa:order=box,rest=min,stop=min,mass=0.7551,recent=0", 1);
    expect_counts(3, 3);
    open_worked("psa:order=box,rest=min,stop=min,mass=0.7553,recent=0", 1);
    expect_counts(4, 3);
    open_worked("psa:order=box,rest=min,mass=0.8564,stop=mean,recent=0",
                1); /* (0.957784 + 0.755189) / 2 = 0.856486 */
    expect_counts(3, 3);
    open_worked("psa:order=box,rest=min,mass=0.8566,stop=mean,recent=0", 1);
    expect_counts(4, 3);
}

/* One flat query head of four: all heads of the layer wait for it, or count it by a quarter:
 * (3 * 0.957784 + 0.755189) / 4 = 0.907135. */
static void heads_of_a_layer_stop_together(void **state)
{
    (void)state;
    for (uint32_t flat = 1; flat < 16; flat *= 2) {
        open_worked("psa:order=box,rest=min,stop=min,mass=0.9,scope=layer,recent=0", flat);
        expect_counts(4, 4);
        open_worked("psa:order=box,rest=min,mass=0.9071,scope=layer,stop=mean,recent=0", flat);
        expect_counts(3, 3);
        open_worked("psa:order=box,rest=min,mass=0.9072,scope=layer,stop=mean,recent=0", flat);
        expect_counts(4, 4);
        open_worked("psa:order=box,rest=min,mass=0.9",
                    flat); /* apart: the newest two pages are read as well */
        lb_close(&b);
    }
}

/* A head whose keys are not finite is dense, and the others of its layer go on without it. */
static void a_bad_head_leaves_its_team(void **state)
{
    (void)state;
    for (uint32_t bad = 0; bad < LB_HEADS; bad++) {
        logit_open(&b, "psa:mass=0.9,rest=min,scope=layer,recent=0");
        for (uint32_t p = 1; p < 5; p++) logit_page(&b, p, 2, (float)(4 - p), LOGIT_NONE);
        b.k[bad][3 * PAGE_TOK][7] = NAN;
        lb_seal(&b);
        choose_row(5 * PAGE_TOK);
        assert_true(b.pick[bad].dense && b.pick[bad].not_finite);
        assert_true(!b.pick[1 - bad].dense && b.pick[1 - bad].attended);
        assert_int_equal(b.mask[1 - bad][4], 0); /* it has enough before */
        lb_close(&b);
    }
}

/* Many pages alike promise that most of them are needed, and the row's own page, of which votes say
 * nothing, has nearly all of the attention: that many pages are read beside, and no more. */
static void little_is_read_beside(void **state)
{
    (void)state;
    enum { N = 120, MOST_BESIDE = 32 };
    static float vote[N], value[LB_GROUP * LB_DIM], value_log[LB_GROUP];
    static float weight[N * LB_GROUP * PAGE_TOK], most[N * LB_GROUP], sum[N * LB_GROUP];
    static float block[(N / OP_VISIT_BLOCK + 1) * LB_GROUP * (LB_DIM + 1)];
    static page_id page[N];
    static float told[N];
    uint32_t order[N], spare[N], mask[N] = {0};
    struct op_lane_result one = {0};
    struct op_visited seen = {0};
    logit_open(&b, "psa");
    logit_both(&b, PAGE_TOK, 0);
    lb_seal(&b);
    lb_point(&b, PAGE_TOK, false);
    for (uint32_t i = 0; i < N; i++) {
        vote[i] = 1.0F / N;
        page[i] = b.page[0][0];
    }
    const struct op_lane_visit visit = {.geom = b.lane[0].shape->geom,
                                        .frames = b.lane[0].frames,
                                        .page = page,
                                        .own = b.lane[0].own,
                                        .n_own = 1,
                                        .n_page = N,
                                        .group = LB_GROUP,
                                        .q = b.lane[0].q,
                                        .scale = b.lane[0].scale,
                                        .begin = 1,
                                        .end = N - 2,
                                        .vote = vote,
                                        .order = order,
                                        .spare = spare,
                                        .told = told,
                                        .weight = weight,
                                        .page_most = most,
                                        .page_sum = sum,
                                        .block = block,
                                        .value = value,
                                        .value_log = value_log,
                                        .mask = mask,
                                        .result = &one,
                                        .state = &seen,
                                        .n_member = 1,
                                        .mass = 0.95,
                                        .step = 1,
                                        .by_mean = true,
                                        .until = UINT32_MAX};
    b.ops.lanes.visit(b.workers, &b.ops, &visit, 1);
    assert_int_equal(one.n_visit, 4); /* the first, the newest two, and one to look at */
    assert_in_range(one.n_beside, 0, MOST_BESIDE);
    assert_int_equal(one.n_value, 4); /* of those beside, keys alone */
    lb_close(&b);
}

/* How many pages the row before has visited changes how long rounds are, and nothing else: not what
 * is visited, and no bit of what comes of it. Adds up what is read beside: in n_beside[1] where it
 * is known, in [0] where it says that all are visited. */
static void visit_behind_others(const char *spec, uint32_t *n_beside)
{
    enum { POS = 39 * PAGE_TOK + 9, WAYS = 5 };
    static const uint32_t before[WAYS] = {0, 1, 7, 39, UINT32_MAX};
    static float value[sizeof b.rest_value / sizeof(float)], lse[sizeof b.rest_log / sizeof(float)];
    static uint32_t mask[LB_HEADS][LB_PAGES];
    lb_open(&b, SAC_KV_F16, spec, 21);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    lb_random_query(&b, 2.5f);
    for (uint32_t way = 0; way < 2 * WAYS; way++) { /* each and, behind it, what it has left */
        lb_point(&b, POS, false);
        for (uint32_t h = 0; h < LB_HEADS && way % 2 == 0; h++)
            memcpy(b.lane[h].state, &before[way / 2], sizeof before[0]);
        choose_row(POS);
        if (way == 0) {
            memcpy(value, b.rest_value, sizeof value);
            memcpy(lse, b.rest_log, sizeof lse);
            memcpy(mask, b.mask, sizeof mask);
        }
        assert_memory_equal(value, b.rest_value, sizeof value);
        assert_memory_equal(lse, b.rest_log, sizeof lse);
        assert_memory_equal(mask, b.mask, sizeof mask);
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            assert_int_equal(*(const uint32_t *)b.lane[h].state, result[h].n_visit);
            assert_in_range(result[h].n_visit, 4, 38);
            if (way == 1 || before[way / 2] >= 39) n_beside[way % 2] += result[h].n_beside;
        }
    }
    lb_close(&b);
}

/* Who knows what the row before has visited reads less beside; votes tell as much. */
static void the_row_before_changes_nothing(void **state)
{
    (void)state;
    uint32_t n_least[2] = {0}, n_vote[2] = {0};
    visit_behind_others("psa:mass=0.5,order=box,rest=min", n_least);
    visit_behind_others("psa:mass=0.5,order=box,rest=vote", n_vote);
    assert_in_range(n_least[1], 0, n_least[0] / 2);
    assert_in_range(n_vote[0], 0, n_least[0] / 8);
    assert_in_range(n_vote[1], 0, n_least[0] / 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_readings_are_those_of_the_slow_one),
        cmocka_unit_test(the_mean_or_the_least_stops),
        cmocka_unit_test(heads_of_a_layer_stop_together),
        cmocka_unit_test(a_bad_head_leaves_its_team),
        cmocka_unit_test(little_is_read_beside),
        cmocka_unit_test(the_row_before_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
