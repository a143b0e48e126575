/* check_score.c: the score slots of every instruction set that this CPU has against `ref`, and
 * `ref` against page_read where the two mean the same.
 *
 * Tolerances. score_pages: the order of an f32 sum, 2^-20 of the sum of magnitudes. share_planes:
 * six standard deviations of a logit of keys rounded to bytes, 203 to the range of all pages (254
 * with room for a quarter more; AVX2 has 7 bits, 101 to it), and of weights rounded to int8; a
 * rough 2^x is up to 6.2 % too large, bf16 and exponents of 16 bits are 2 % off. vote: 1e-5 of a
 * share (2^x has 3e-6, its argument the rest), and shares below e^-24 of the largest may be none. A
 * NaN or infinity must reach the scores of its page. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "base/mem.h"
#include "ops/ops.h"
#include "random_rows.h"

#include <math.h>
#include <string.h>

static const char *const isa_names[] = {"avx2", "avx512", "amx", "neon"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

enum { N_PAGE = 37, GROUP_MAX = 17, DIM_MAX = 256 };

struct data {
    struct page_geom geom;
    uint8_t *pages; /* [N_PAGE][geom.bytes] */
    float q[GROUP_MAX * DIM_MAX], q2[GROUP_MAX * DIM_MAX];
    page_id list[N_PAGE];
};

static void make_data(struct data *d, uint32_t head_dim, uint64_t *seed)
{
    d->geom = (struct page_geom){.n_layer = 1,
                                 .n_kv_head = 1,
                                 .head_dim = head_dim,
                                 .type_k = SAC_KV_Q8,
                                 .type_v = SAC_KV_Q8};
    page_geom_init(&d->geom);
    d->pages = mem_alloc(N_PAGE * d->geom.bytes);
    assert_non_null(d->pages);
    for (size_t i = 0; i < N_PAGE * d->geom.bytes; i++) d->pages[i] = (uint8_t)random_next(seed);
    for (uint32_t p = 0; p < N_PAGE; p++)
        for (uint32_t c = 0; c < head_dim; c++) {
            uint8_t *page = d->pages + p * d->geom.bytes;
            random_put_f16(page + d->geom.k_min + 2 * c, 4 * random_unit(seed));
            random_put_f16(page + d->geom.k_step + 2 * c, 0.01f * fabsf(random_unit(seed)));
        }
    for (uint32_t i = 0; i < GROUP_MAX * DIM_MAX; i++) {
        d->q[i] = random_unit(seed);
        d->q2[i] = random_unit(seed);
    }
    for (uint32_t i = 0; i < N_PAGE; i++) d->list[i] = (i * 3 + 1) % N_PAGE;
}

static struct op_score_pages pages_op(const struct data *d, uint32_t group, float *out)
{
    return (struct op_score_pages){.base = d->pages,
                                   .stride = d->geom.bytes,
                                   .a_at = d->geom.k_min,
                                   .b_at = d->geom.k_step,
                                   .page = d->list,
                                   .n_page = N_PAGE,
                                   .head_dim = d->geom.head_dim,
                                   .group = group,
                                   .qa = d->q,
                                   .qb = d->q2,
                                   .out = out,
                                   .out_stride = N_PAGE};
}

static struct op_share_planes planes_op(const struct data *d, uint32_t group, float *share)
{
    static float e[GROUP_MAX * N_PAGE * PAGE_TOK];
    return (struct op_share_planes){.base = d->pages,
                                    .stride = d->geom.bytes,
                                    .min_at = d->geom.k_min,
                                    .step_at = d->geom.k_step,
                                    .hi2_at = d->geom.k_hi2,
                                    .page = d->list,
                                    .n_page = N_PAGE,
                                    .head_dim = d->geom.head_dim,
                                    .group = group,
                                    .q = d->q,
                                    .scale = 0.125f,
                                    .share = share,
                                    .e = e};
}

static float half(const struct data *d, uint32_t page, size_t at, uint32_t c)
{
    uint16_t h;
    memcpy(&h, d->pages + page * d->geom.bytes + at + 2 * c, sizeof h);
    return f16_to_f32(h);
}

/* The plane's key lies in the middle of the 64 codes that it stands for: shares of `ref` are the
 * softmax of those keys, worked out from the codes of the keys themselves. Where a step is too
 * small to tell the code again its whole range is allowed for. */
static void planes_are_the_middles_of_their_codes(void **state)
{
    (void)state;
    static struct data d;
    static float share[N_PAGE * PAGE_TOK], k[PAGE_TOK * DIM_MAX];
    static double logit[N_PAGE * PAGE_TOK];
    uint64_t seed = 1;
    double sum = 0, slack = 1e-4;
    struct ops ref;
    assert_int_equal(ops_init_isa(&ref, "ref", NULL), SAC_OK);
    make_data(&d, 64, &seed);
    const struct op_share_planes op = planes_op(&d, 1, share);
    assert_true(ref.share_planes(&op));
    for (uint32_t i = 0; i < N_PAGE; i++) {
        page_read(k, NULL, &d.geom, d.pages + d.list[i] * d.geom.bytes, PAGE_SEALED, PAGE_TOK);
        for (uint32_t c = 0; c < 64; c++) {
            const double min = (double)half(&d, d.list[i], d.geom.k_min, c),
                         step = (double)half(&d, d.list[i], d.geom.k_step, c);
            const double q = 0.125 * (double)d.q[c];
            const bool tells = step > 1e-5;
            if (!tells) slack += fabs(q) * 255 * step;
            for (uint32_t t = 0; t < PAGE_TOK; t++) {
                const double code = tells ? round(((double)k[t * 64 + c] - min) / step) : 0;
                logit[i * PAGE_TOK + t] += q * (min + step * (64 * floor(code / 64) + 31.5));
            }
        }
        for (uint32_t t = 0; t < PAGE_TOK; t++) sum += exp(logit[i * PAGE_TOK + t]);
    }
    assert_true(slack < 0.01);
    for (uint32_t t = 0; t < N_PAGE * PAGE_TOK; t++)
        assert_true(fabs(log((double)share[t]) - (logit[t] - log(sum))) <= slack);
    mem_free(d.pages);
}

static double pages_tolerance(const struct data *d, uint32_t g, uint32_t page)
{
    double sum = 0;
    for (uint32_t c = 0; c < d->geom.head_dim; c++) {
        const size_t at = (size_t)g * d->geom.head_dim + c;
        sum += fabs((double)d->q[at] * (double)half(d, page, d->geom.k_min, c)) +
               fabs((double)d->q2[at] * (double)half(d, page, d->geom.k_step, c));
    }
    return sum * 0x1p-20;
}

/* The standard deviation of a logit: roundings of half a step at most, of keys and of weights, each
 * channel for itself, have a variance of a twelfth of their steps' squares. */
static double planes_sigma(const struct data *d, uint32_t g, const char *isa)
{
    const int steps = strcmp(isa, "avx2") == 0 ? 101 : 203;
    double squares = 0, most = 0;
    for (uint32_t c = 0; c < d->geom.head_dim; c++) {
        const double q = fabs((double)d->q[(size_t)g * d->geom.head_dim + c]);
        double lo = INFINITY, hi = -INFINITY;
        for (uint32_t page = 0; page < N_PAGE; page++) {
            const double min = (double)half(d, page, d->geom.k_min, c);
            lo = fmin(lo, min);
            hi = fmax(hi, min + 255 * (double)half(d, page, d->geom.k_step, c));
        }
        squares += pow(q * (hi - lo) / steps, 2);
        most = fmax(most, q * (hi - lo) / 203);
    }
    return 0.125 * sqrt((squares + d->geom.head_dim * most * most) / 12);
}

static void compare(const struct ops *o, const struct ops *ref, const struct data *d,
                    uint32_t group)
{
    static float a[GROUP_MAX * N_PAGE * PAGE_TOK], b[GROUP_MAX * N_PAGE * PAGE_TOK];
    struct op_score_pages pages = pages_op(d, group, a);
    o->score_pages(&pages);
    pages.out = b;
    ref->score_pages(&pages);
    for (uint32_t g = 0; g < group; g++)
        for (uint32_t i = 0; i < N_PAGE; i++)
            assert_true(fabs((double)a[g * N_PAGE + i] - (double)b[g * N_PAGE + i]) <=
                        pages_tolerance(d, g, d->list[i]));
    struct op_share_planes planes = planes_op(d, group, a);
    float lse[2][GROUP_MAX];
    planes.n_page = 1 + group * 5 % N_PAGE;
    planes.lse = lse[0];
    assert_true(o->share_planes(&planes));
    planes.share = b;
    planes.lse = lse[1];
    assert_true(ref->share_planes(&planes));
    double sigma = 0, sum = 0;
    for (uint32_t g = 0; g < group; g++) sigma = fmax(sigma, planes_sigma(d, g, o->isa));
    for (uint32_t g = 0; g < group; g++)
        assert_true(fabs((double)lse[0][g] - (double)lse[1][g]) <= 6 * sigma + 0.09);
    for (uint32_t i = 0; i < planes.n_page * PAGE_TOK; i++) {
        sum += (double)a[i];
        assert_true(fabs(log((double)a[i] / (double)b[i])) <= 6 * sigma + 0.09);
    }
    assert_true(fabs(sum - 1) < 0.01);
}

static void every_set_scores_like_ref(void **state)
{
    (void)state;
    static struct data d;
    struct ops ref, o;
    uint64_t seed = 2;
    assert_int_equal(ops_init_isa(&ref, "ref", NULL), SAC_OK);
    for (size_t i = 0; i < N_ISA; i++) {
        if (ops_init_isa(&o, isa_names[i], NULL) != SAC_OK) continue;
        static const uint32_t dims[] = {32, 64, 96, 128, 256};
        for (size_t j = 0; j < sizeof dims / sizeof dims[0]; j++) {
            make_data(&d, dims[j], &seed);
            for (uint32_t group = 1; group <= GROUP_MAX; group++) compare(&o, &ref, &d, group);
            mem_free(d.pages);
        }
    }
}

static void a_nan_reaches_the_scores_of_its_page(void **state)
{
    (void)state;
    static struct data d;
    static float out[N_PAGE * PAGE_TOK];
    uint64_t seed = 3;
    static const float bad[] = {NAN, INFINITY};
    for (size_t i = 0; i <= N_ISA; i++) {
        struct ops o;
        if (ops_init_isa(&o, i < N_ISA ? isa_names[i] : "ref", NULL) != SAC_OK) continue;
        for (size_t w = 0; w < 4 * N_PAGE; w++) {
            make_data(&d, 64, &seed);
            const size_t at = w % 4 < 2 ? d.geom.k_min : d.geom.k_step;
            random_put_f16(d.pages + d.list[w / 4] * d.geom.bytes + at + 10, bad[w % 2]);
            const struct op_share_planes op = planes_op(&d, 1, out);
            assert_false(o.share_planes(&op));
            mem_free(d.pages);
        }
    }
}

static void votes_agree(void **state)
{
    (void)state;
    enum { N = 203 };
    static float score[GROUP_MAX * N], a[N], b[N], lse[GROUP_MAX], lse_ref[GROUP_MAX];
    struct ops ref, o;
    uint64_t seed = 4;
    assert_int_equal(ops_init_isa(&ref, "ref", NULL), SAC_OK);
    for (size_t i = 0; i < N_ISA; i++) {
        if (ops_init_isa(&o, isa_names[i], NULL) != SAC_OK) continue;
        for (uint32_t n = 1; n <= N; n += 1 + n / 7) {
            for (uint32_t j = 0; j < GROUP_MAX * N; j++) score[j] = 30 * random_unit(&seed);
            struct op_vote op = {
                .score = score, .score_stride = N, .n = n, .group = 7, .vote = a, .lse = lse};
            assert_true(o.vote(&op));
            op.vote = b;
            op.lse = lse_ref;
            assert_true(ref.vote(&op));
            double sum = 0;
            for (uint32_t j = 0; j < n; j++) {
                assert_true(fabs((double)a[j] - (double)b[j]) <= 1e-5 * (double)b[j] + 4e-11);
                sum += (double)a[j];
            }
            assert_true(fabs(sum - 1) < 2e-5);
            for (uint32_t g = 0; g < 7; g++)
                assert_true(fabs((double)lse[g] - (double)lse_ref[g]) < 1e-4);
            score[3 * N + n / 2] = n % 2 ? NAN : -INFINITY;
            assert_false(o.vote(&op));
            assert_false(ref.vote(&op));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planes_are_the_middles_of_their_codes),
        cmocka_unit_test(every_set_scores_like_ref),
        cmocka_unit_test(a_nan_reaches_the_scores_of_its_page),
        cmocka_unit_test(votes_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
