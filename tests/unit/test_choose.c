/* test_choose.c: single choices of the decode methods on made-up keys, against definitions written
 * down here: sorted lists for cuts, every key for bounds and masses. prop_methods.c asks the
 * engine. */
#include "base/half.h"
#include "choose_one.h"
#include "methods/box.h"
#include "methods/method_spec.h"
#include "methods/pick.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { DIM = 64, GROUP = 3, N_PAGE = 40, POS = N_PAGE * 32 + 9, N_TOK = N_PAGE * 32 };

static uint64_t seed;

static float unit(void) /* -1 to 1 */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(uint32_t)(seed >> 33) / 1073741824.0f - 1.0f;
}

/* A lane over random keys with sealed pages in shuffled places. */
struct bench {
    struct page_geom geom;
    struct method_shape shape;
    struct ops ops;
    struct method_spec spec;
    uint8_t *pool, *own, *side, *scratch, *state;
    page_id page[N_PAGE];
    uint32_t mask[N_PAGE];
    uint32_t tok[N_TOK]; /* that a method which weighs has listed */
    float tok_logw[N_TOK], logw[N_TOK];
    float rest_log[GROUP], rest_value[GROUP * DIM];
    float q[GROUP * DIM];
    float k[N_TOK * DIM]; /* as attention reads them */
    struct workers *workers;
    struct method_lane lane;
    struct meter meter; /* of the last choice */
};

static void bench_open(struct bench *b, sac_kv_type type, const char *spec)
{
    sac_error err;
    memset(b, 0, sizeof *b);
    b->geom = (struct page_geom){
        .n_layer = 1, .n_kv_head = 1, .head_dim = DIM, .type_k = type, .type_v = type};
    page_geom_init(&b->geom);
    b->shape = (struct method_shape){.geom = &b->geom, .group = GROUP, .n_ctx = POS + 1};
    assert_int_equal(ops_init(&b->ops, &err), SAC_OK);
    assert_int_equal(workers_create(&b->workers, 1, &err), SAC_OK);
    if (method_spec_parse(&b->spec, "decode", spec, &err) != SAC_OK) fail_msg("%s", err.msg);
    const struct method_decode *hooks = b->spec.method->decode;
    const size_t side = hooks->side_bytes ? hooks->side_bytes(&b->shape, b->spec.param) : 0;
    b->pool = mem_map(N_PAGE * b->geom.bytes);
    b->own = mem_map(b->geom.tail_bytes);
    b->side = mem_map(N_PAGE * side + 64);
    b->scratch =
        mem_map((hooks->scratch_bytes ? hooks->scratch_bytes(&b->shape, b->spec.param) : 0) + 64);
    b->state =
        mem_map((hooks->state_bytes ? hooks->state_bytes(&b->shape, b->spec.param) : 0) + 64);
    for (uint32_t p = 0; p < N_PAGE; p++) {
        const uint8_t *tail = b->own;
        b->page[p] = (p * 7 + 3) % N_PAGE;
        uint8_t *sealed = b->pool + b->page[p] * b->geom.bytes;
        for (uint32_t i = 0; i < 2 * PAGE_TOK * DIM; i++)
            ((uint16_t *)(void *)b->own)[i] = f32_to_f16(unit() + 0.4f * (float)(i % 5));
        b->ops.seal(
            b->workers,
            &(struct op_seal){.geom = &b->geom, .n_page = 1, .tail = &tail, .sealed = &sealed});
        page_read(b->k + (size_t)p * PAGE_TOK * DIM, NULL, &b->geom, sealed, PAGE_SEALED, PAGE_TOK);
        if (side)
            hooks->seal(b->side + b->page[p] * side, &b->shape, b->spec.param,
                        b->k + (size_t)p * PAGE_TOK * DIM);
    }
    for (uint32_t i = 0; i < GROUP * DIM; i++) b->q[i] = 2 * unit();
    b->lane = (struct method_lane){.shape = &b->shape,
                                   .param = b->spec.param,
                                   .ops = &b->ops,
                                   .layer = 5,
                                   .pos = POS,
                                   .n_row = 1,
                                   .q = b->q,
                                   .q_stride = GROUP * DIM,
                                   .scale = 0.125f,
                                   .frames = {.base = b->pool},
                                   .cards = {.base = b->pool, .stride = b->geom.bytes},
                                   .page = b->page,
                                   .n_sealed = N_PAGE,
                                   .own = b->own,
                                   .side = b->side,
                                   .side_stride = side,
                                   .state = b->state,
                                   .scratch = b->scratch,
                                   .meter = &b->meter};
}

static struct method_pick bench_select(struct bench *b)
{
    struct method_pick out = {.mask = b->mask,
                              .tok = b->tok,
                              .logw = b->tok_logw,
                              .rest_log = b->rest_log,
                              .rest_value = b->rest_value};
    b->meter = (struct meter){0};
    memset(b->mask, 0, sizeof b->mask);
    memset(b->logw, 0, sizeof b->logw);
    choose_one(b->spec.method->decode, &b->lane, &out);
    for (uint32_t i = 0; i < out.n_tok; i++) {
        b->mask[b->tok[i] / PAGE_TOK] |= 1u << b->tok[i] % PAGE_TOK;
        b->logw[b->tok[i]] = b->tok_logw[i];
    }
    return out;
}

static double logit(const struct bench *b, uint32_t g, uint32_t tok)
{
    double sum = 0;
    for (uint32_t c = 0; c < DIM; c++)
        sum += (double)b->q[g * DIM + c] * (double)b->k[(size_t)tok * DIM + c];
    return sum * 0.125;
}

/* Softmax shares of all tokens before the own page, mean over the heads. */
static void exact_shares(const struct bench *b, double share[N_TOK])
{
    memset(share, 0, N_TOK * sizeof *share);
    for (uint32_t g = 0; g < GROUP; g++) {
        double sum = 0;
        for (uint32_t t = 0; t < N_TOK; t++) sum += exp(logit(b, g, t));
        for (uint32_t t = 0; t < N_TOK; t++) share[t] += exp(logit(b, g, t)) / sum / GROUP;
    }
}

static uint32_t count(const struct bench *b)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < N_PAGE; p++) n += (uint32_t)__builtin_popcount(b->mask[p]);
    return n;
}

static void bench_close(struct bench *b)
{
    mem_unmap(b->pool, N_PAGE * b->geom.bytes);
    mem_unmap(b->own, b->geom.tail_bytes);
    workers_destroy(b->workers);
    const struct method_decode *h = b->spec.method->decode;
    mem_unmap(b->side, N_PAGE * (h->side_bytes ? h->side_bytes(&b->shape, b->spec.param) : 0) + 64);
    mem_unmap(b->scratch, (h->scratch_bytes ? h->scratch_bytes(&b->shape, b->spec.param) : 0) + 64);
}

/* ---- Cuts ---- */

static int falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void cuts_agree_with_sorting(void **state)
{
    (void)state;
    static float value[500], sorted[500];
    seed = 1;
    for (int round = 0; round < 300; round++) {
        const uint32_t n = 1 + (uint32_t)(round * 37) % 500, k = (uint32_t)round % (n + 3);
        for (uint32_t i = 0; i < n; i++) {
            value[i] = round % 3 ? unit() : (float)(int)(4 * unit()); /* many equal ones */
            if (round % 5 == 0 && i % 11 == 3) value[i] = NAN;
            sorted[i] = isnan(value[i]) ? -INFINITY : value[i];
        }
        qsort(sorted, n, sizeof *sorted, falling);
        struct pick_cut cut = pick_best(value, n, k);
        const float last = k ? sorted[min_u32(k, n) - 1] : INFINITY;
        uint32_t n_taken = 0;
        bool left_one = false; /* of those that lie on the cut the first are taken */
        for (uint32_t i = 0; i < n; i++) {
            const float v = isnan(value[i]) ? -INFINITY : value[i];
            const bool takes = pick_takes(&cut, value[i]);
            n_taken += takes;
            if (v > last) assert_true(takes);
            if (v < last) assert_false(takes);
            if (v == last && takes) assert_false(left_one);
            left_one = left_one || (v == last && !takes);
        }
        assert_int_equal(n_taken, min_u32(k, n));
    }
}

static void shares_are_reached_by_the_fewest(void **state)
{
    (void)state;
    static float value[400], sorted[400];
    seed = 2;
    for (int round = 0; round < 200; round++) {
        const uint32_t n = 1 + (uint32_t)(round * 31) % 400;
        double sum = 0, taken = 0, best = 0, share = 0.005 * (round + 1);
        for (uint32_t i = 0; i < n; i++) {
            value[i] = sorted[i] = expf(6 * unit());
            sum += (double)value[i];
        }
        qsort(sorted, n, sizeof *sorted, falling);
        struct pick_cut cut = pick_share(value, n, share);
        uint32_t n_taken = 0, n_need = 0;
        for (uint32_t i = 0; i < n; i++)
            if (pick_takes(&cut, value[i])) {
                taken += (double)value[i];
                n_taken++;
            }
        while (n_need < n && best < share * sum * (1 - 1e-9)) best += (double)sorted[n_need++];
        assert_int_equal(n_taken, n_need);
        assert_true(taken >= share * sum * (1 - 1e-9));
    }
}

/* ---- Methods ---- */

static void topk_takes_the_best(void **state)
{
    (void)state;
    static struct bench b;
    static double share[N_TOK];
    seed = 3;
    bench_open(&b, SAC_KV_F16, "topk:budget=100,sink=4,recent=16");
    const struct method_pick out = bench_select(&b);
    assert_false(out.dense);
    exact_shares(&b, share);
    assert_int_equal(out.n_chosen, 100);
    assert_int_equal(count(&b), 100 + 4 + 16 - (POS % PAGE_TOK + 1));
    double worst_in = 1, best_out = 0;
    for (uint32_t t = 0; t < N_TOK; t++) {
        if (t < 4 || t > POS - 16) {
            assert_true(pick_has(&out, t));
            continue;
        }
        if (pick_has(&out, t))
            worst_in = fmin(worst_in, share[t]);
        else
            best_out = fmax(best_out, share[t]);
    }
    assert_true(worst_in >= best_out * (1 - 1e-5));
    bench_close(&b);
}

/* With all channels sparq is the exact choice, whatever the order of a sum may change. */
static void sparq_with_all_channels_is_topk(void **state)
{
    (void)state;
    static struct bench a, b;
    uint32_t n_same = 0;
    seed = 10;
    bench_open(&a, SAC_KV_Q8, "sparq:budget=150,rank=64,recent=0");
    seed = 10;
    bench_open(&b, SAC_KV_Q8, "topk:budget=150,sink=0,recent=0");
    bench_select(&a);
    bench_select(&b);
    for (uint32_t p = 0; p < N_PAGE; p++)
        n_same += (uint32_t)__builtin_popcount(a.mask[p] & b.mask[p]);
    assert_int_equal(count(&a), count(&b));
    assert_true(n_same + 2 >= count(&b));
    bench_close(&a);
    bench_close(&b);
}

/* The choice stands while the query does, moves when it turns, and never looks past a page. */
static void tokenselect_keeps_its_choice(void **state)
{
    (void)state;
    static struct bench b;
    uint32_t first[N_PAGE];
    seed = 11;
    bench_open(&b, SAC_KV_F16, "tokenselect:budget=200,sink=4,recent=32");
    bench_select(&b);
    assert_true(b.meter.bytes[METER_CHOOSE] > 0);
    memcpy(first, b.mask, sizeof first);
    b.lane.pos++;
    for (uint32_t i = 0; i < GROUP * DIM; i++) b.q[i] *= 1.5f;
    bench_select(&b);
    assert_int_equal(b.meter.bytes[METER_CHOOSE], 0);
    assert_memory_equal(first, b.mask, sizeof first);
    for (uint32_t i = 0; i < GROUP * DIM; i += 2) b.q[i] = -b.q[i];
    bench_select(&b);
    assert_true(b.meter.bytes[METER_CHOOSE] > 0);
    assert_true(memcmp(first, b.mask, sizeof first) != 0);
    bench_close(&b);
}

/* The score of a page is its box's corner that the query points at, from the keys that it holds: no
 * key scores more, and it is no larger than rounding the box outwards makes it. */
static void boxes_bound_every_key(void **state)
{
    (void)state;
    static struct bench b;
    seed = 4;
    for (int i = 0; i < 16; i++) {
        struct select_scratch r;
        bench_open(&b, i % 2 ? SAC_KV_Q8 : SAC_KV_F16, "quest:dense=0,page=32");
        select_scratch_make(&r, &b.shape, false, b.scratch);
        box_score(&r, &b.lane, BOX_BOUND);
        for (uint32_t g = 0; g < GROUP; g++)
            for (uint32_t p = 0; p < N_PAGE; p++) {
                const float *k = b.k + (size_t)p * PAGE_TOK * DIM;
                const double score = (double)r.score[g * r.stride + p];
                double corner = 0, size = 0;
                for (uint32_t c = 0; c < DIM; c++) {
                    double q = 0.125 * (double)b.q[g * DIM + c], best = -INFINITY, most = 0;
                    for (uint32_t t = 0; t < PAGE_TOK; t++) {
                        best = fmax(best, q * (double)k[t * DIM + c]);
                        most = fmax(most, fabs(q * (double)k[t * DIM + c]));
                    }
                    corner += best;
                    size += most;
                }
                for (uint32_t t = 0; t < PAGE_TOK; t++)
                    assert_true(logit(&b, g, p * PAGE_TOK + t) <= score + 1e-4);
                assert_true(score >= corner - 1e-4);
                assert_true(score <= corner + size * 0x1p-8);
            }
        bench_close(&b);
    }
}

/* The example page of the Quest paper: bounds of 8 channels, score 39. */
static void the_bound_of_quests_example(void **state)
{
    (void)state;
    static struct bench b;
    static const float mx[] = {4, 3, 4, 3, 3, 2, 1, 3}, mn[] = {-3, -4, -1, -1, -1, -4, -4, -4};
    static const float q[] = {-1, 1, 3, 0, 1, 0, -3, 2};
    static float k[PAGE_TOK * DIM];
    struct select_scratch r;
    seed = 5;
    bench_open(&b, SAC_KV_F16, "quest:dense=0,page=32");
    for (uint32_t c = 0; c < 8; c++)
        for (uint32_t t = 0; t < PAGE_TOK; t++) k[t * DIM + c] = t % 2 ? mx[c] : mn[c];
    box_seal(b.side + b.page[6] * b.lane.side_stride, &b.shape, BOX_BOUND, k);
    memset(b.q, 0, sizeof b.q);
    memcpy(b.q, q, sizeof q);
    b.lane.scale = 1;
    select_scratch_make(&r, &b.shape, false, b.scratch);
    box_score(&r, &b.lane, BOX_BOUND);
    assert_true(r.score[6] == 39);
    bench_close(&b);
}

/* Whole pages that fit the budget, one at least, and never the first and the newest among them, for
 * those are read in any case. Which tokens are forced is test_forced.c's. */
static void page_methods_keep_their_budget(void **state)
{
    (void)state;
    static const char *const specs[] = {"quest:budget=%d,dense=0,page=32",
                                        "arkvale:budget=%d,dense=0", "topk:unit=page,budget=%d"};
    static const uint32_t n_forced[] = {2, 3, 0}; /* pages */
    static struct bench b;
    seed = 6;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++)
        for (int budget = 1; budget <= POS + 2; budget += 1 + budget / 3) {
            char spec[96];
            snprintf(spec, sizeof spec, specs[i], budget);
            bench_open(&b, SAC_KV_Q8, spec);
            const struct method_pick out = bench_select(&b);
            assert_int_equal(out.dense, budget > POS);
            const uint32_t n_page = max_u32((uint32_t)budget / PAGE_TOK, 1);
            const uint32_t n_most = N_PAGE - n_forced[i];
            if (!out.dense) {
                assert_int_equal(out.n_chosen, min_u32(n_page, n_most) * PAGE_TOK);
                assert_int_equal(count(&b), out.n_chosen + n_forced[i] * PAGE_TOK);
            }
            bench_close(&b);
        }
}

/* What psa says it saw: with a share of 0.9 wanted and the least page as the rest, the true share
 * lies near it on keys without structure, and a larger wish never reads less. */
static void psa_reaches_its_mass(void **state)
{
    (void)state;
    static struct bench b;
    static double share[N_TOK];
    uint32_t before = 0;
    for (int i = 1; i < 10; i++) {
        char spec[96];
        snprintf(spec, sizeof spec, "psa:stop=min,order=box,mass=%.2f", 0.1 * i);
        seed = 7;
        bench_open(&b, SAC_KV_F16, spec);
        const struct method_pick out = bench_select(&b);
        double mass = 0;
        exact_shares(&b, share);
        for (uint32_t t = 0; t < N_TOK; t++)
            if (pick_has(&out, t)) mass += share[t];
        assert_false(out.dense);
        assert_true(mass > 0.1 * i - 0.15);
        assert_true(count(&b) >= before);
        before = count(&b);
        bench_close(&b);
    }
}

/* Shares of what is read, times their weights. */
static double weighed(const struct bench *b, const struct method_pick *out, const double *share)
{
    double sum = 0;
    for (uint32_t t = 0; t < N_TOK; t++) {
        if (!pick_has(out, t)) continue;
        assert_true(b->logw[t] >= 0);
        sum += share[t] * exp((double)b->logw[t]);
    }
    return sum;
}

/* Exact shares of what is read, times their weights, are as much as all shares: 1. */
static void auto_reads_for_all(void **state)
{
    (void)state;
    static struct bench b;
    static double share[N_TOK];
    static const char *const specs[] = {"auto:mass=0.75,most=1", "auto:mass=0.5,most=1"};
    for (size_t i = 0; i < 4; i++) {
        seed = 8; /* both types hold nearly the same keys */
        bench_open(&b, i % 2 ? SAC_KV_Q8 : SAC_KV_F16, specs[i / 2]);
        const struct method_pick out = bench_select(&b);
        exact_shares(&b, share);
        const double sum = weighed(&b, &out, share);
        if (out.dense || count(&b) >= (i < 2 ? 600 : 300) || fabs(sum - 1) > 0.1)
            fail_msg("%s: %u tokens stand for %g", specs[i / 2], count(&b), sum);
        bench_close(&b);
    }
}

/* The same of steady draws in the mean over layers, each of which has numbers of its own. */
static void steady_auto_reads_for_all(void **state)
{
    (void)state;
    static struct bench b;
    static double share[N_TOK];
    enum { N_LAYER = 1000 };
    for (size_t i = 0; i < 2; i++) {
        double mean = 0;
        seed = 8;
        bench_open(&b, i ? SAC_KV_Q8 : SAC_KV_F16, "auto:mass=0.5,most=1,draw=steady");
        exact_shares(&b, share);
        for (b.lane.layer = 0; b.lane.layer < N_LAYER; b.lane.layer++) {
            const struct method_pick out = bench_select(&b);
            assert_true(!out.dense && count(&b) < 400);
            mean += weighed(&b, &out, share) / N_LAYER;
        }
        if (fabs(mean - 1) > 0.04) fail_msg("tokens stand for %g", mean);
        bench_close(&b);
    }
}

/* Other heads and layers draw other tokens of the same keys; the same lane draws the same. */
static void steady_lanes_draw_apart(void **state)
{
    (void)state;
    static struct bench b;
    static uint32_t tok[4][N_TOK];
    static const uint32_t layer[] = {5, 5, 6, 5}, head[] = {0, 1, 0, 0};
    uint32_t n[4];
    seed = 9;
    bench_open(&b, SAC_KV_Q8, "auto:mass=0.5,most=1,draw=steady");
    for (int i = 0; i < 4; i++) {
        b.lane.layer = layer[i];
        b.lane.kv_head = head[i];
        n[i] = bench_select(&b).n_tok;
        memcpy(tok[i], b.tok, sizeof b.tok);
    }
    assert_int_equal(n[3], n[0]);
    assert_memory_equal(tok[3], tok[0], n[0] * sizeof *b.tok);
    for (int i = 1; i < 3; i++)
        assert_true(n[i] != n[0] || memcmp(tok[i], tok[0], n[0] * sizeof *b.tok) != 0);
    bench_close(&b);
}

/* A larger mass never reads less, and the whole mass is dense. */
static void autos_dial_is_monotone(void **state)
{
    (void)state;
    static struct bench b;
    uint32_t before = 0;
    for (int i = 0; i <= 20; i++) {
        char spec[96];
        snprintf(spec, sizeof spec, "auto:mass=%.2f,most=1", 0.05 * i);
        seed = 8;
        bench_open(&b, SAC_KV_F16, spec);
        const struct method_pick out = bench_select(&b);
        assert_int_equal(out.dense, i == 20);
        if (!out.dense) assert_true(count(&b) >= before);
        before = count(&b);
        bench_close(&b);
    }
}

static void first_layers_read_everything(void **state)
{
    (void)state;
    static const char *const specs[] = {"quest:budget=64,dense=2", "arkvale:budget=64,dense=2"};
    static struct bench b;
    seed = 10;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        bench_open(&b, SAC_KV_F16, specs[i]);
        for (b.lane.layer = 0; b.lane.layer < 4; b.lane.layer++)
            assert_int_equal(bench_select(&b).dense, b.lane.layer < 2);
        bench_close(&b);
    }
}

static void a_bad_key_makes_the_choice_dense(void **state)
{
    (void)state;
    static const char *const specs[] = {"topk:budget=64", "quest:budget=64,dense=0",
                                        "arkvale:budget=64,dense=0",
                                        "psa:stop=min,order=box,mass=0.5", "auto:mass=0.5"};
    static struct bench b;
    seed = 9;
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        bench_open(&b, SAC_KV_F16, specs[i]);
        const struct method_decode *hooks = b.spec.method->decode;
        uint8_t *sealed = b.pool + b.page[11] * b.geom.bytes;
        ((uint16_t *)(void *)(sealed + b.geom.k))[5 * DIM + 7] = 0x7e00;
        page_read(b.k, NULL, &b.geom, sealed, PAGE_SEALED, PAGE_TOK);
        if (hooks->seal)
            hooks->seal(b.side + b.page[11] * b.lane.side_stride, &b.shape, b.spec.param, b.k);
        const struct method_pick out = bench_select(&b);
        if (!out.dense || !out.not_finite) fail_msg("%s reads a NaN's scores", specs[i]);
        bench_close(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_agree_with_sorting),
        cmocka_unit_test(shares_are_reached_by_the_fewest),
        cmocka_unit_test(topk_takes_the_best),
        cmocka_unit_test(sparq_with_all_channels_is_topk),
        cmocka_unit_test(tokenselect_keeps_its_choice),
        cmocka_unit_test(boxes_bound_every_key),
        cmocka_unit_test(the_bound_of_quests_example),
        cmocka_unit_test(page_methods_keep_their_budget),
        cmocka_unit_test(psa_reaches_its_mass),
        cmocka_unit_test(auto_reads_for_all),
        cmocka_unit_test(steady_auto_reads_for_all),
        cmocka_unit_test(steady_lanes_draw_apart),
        cmocka_unit_test(autos_dial_is_monotone),
        cmocka_unit_test(first_layers_read_everything),
        cmocka_unit_test(a_bad_key_makes_the_choice_dense),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
