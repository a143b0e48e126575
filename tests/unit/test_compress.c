/* test_compress.c: prompt compression by numbers worked out by hand: how votes are pooled, and how
 * SnapKV, AdaKV and PyramidKV share a budget. test_past.c follows whole prompts. */
#include "logit_bench.h"
#include "methods/compress.c"

/* Three methods in one file: what they name alike. */
#define hooks      adakv_hooks
#define policy     adakv_policy
#define deviations adakv_deviations
#include "methods/decode/adakv.c"
#undef PARAMS
#undef hooks
#undef policy
#undef deviations
#define hooks      pyramidkv_hooks
#define policy     pyramidkv_policy
#define deviations pyramidkv_deviations
#include "methods/decode/pyramidkv.c"
#undef PARAMS
#undef hooks
#undef policy
#undef deviations

#define hooks      chunkkv_hooks
#define policy     chunkkv_policy
#define deviations chunkkv_deviations
#include "methods/decode/chunkkv.c"
#undef PARAMS
#undef hooks
#undef policy
#undef deviations

static struct lane_bench b;

/* Averages divide by the whole kernel at the borders too. */
static void votes_are_pooled_as_worked_out(void **state)
{
    (void)state;
    static const float score[] = {0.1f, 0, 0.5f, 0, 0, 0.2f};
    static const float want[2][6] = {{.033333f, .2f, .166667f, .166667f, .066667f, .066667f},
                                     {.1f, .5f, .5f, .5f, .2f, .2f}};
    for (uint32_t i = 0; i < 2; i++) {
        struct evict_state v;
        logit_open(&b, i ? "snapkv:kernel=3,pool=max" : "snapkv:kernel=3");
        lb_point(&b, 100, false);
        cut_state(&v, &b.shape, lb_state(&b, b.layer, 0));
        pool_votes(v.value, b.lane[0].param, score, 6);
        for (uint32_t t = 0; t < 6; t++) assert_true(fabsf(v.value[t] - want[i][t]) < 1e-6f);
        lb_close(&b);
    }
}

/* Three heads that win 2, 6 and 1 of nine keep 2.2, 5.4 and 1.4: rounded each for itself eight; of
 * the two that are largest behind the point the first gets the ninth. */
static void adakv_shares_out_all_of_nine(void **state)
{
    (void)state;
    static const uint32_t win[3] = {2, 6, 1};
    struct page_geom geom = {.n_kv_head = 3};
    struct method_shape shape = {.geom = &geom, .group = 1};
    struct compress_param param = {.alpha = 0};
    float all[3 * 10];
    for (uint32_t h = 0; h < 3; h++)
        for (uint32_t t = 0; t < 10; t++) all[h * 10 + t] = t < win[h] ? 1 : 0.1f;
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t h = 0; h < 3; h++) {
            static const double alpha[] = {0.2, 1, 0};
            struct method_lane lane = {.shape = &shape, .param = &param, .kv_head = h};
            param.alpha = alpha[i];
            const uint32_t keep = share_budget(
                &(struct compress_votes){.lane = &lane, .n_tok = 10, .n_keep = 3, .all = all});
            assert_int_equal(keep, i == 1 ? 3 : win[h]);
        }
}

/* 32 layers, 1024 tokens of which 32 are the window: 1935 in the first layer, 49 in the last; all
 * together 32 times 992. */
static void pyramidkv_follows_its_line(void **state)
{
    (void)state;
    struct page_geom geom = {.n_layer = 32, .n_kv_head = 1};
    struct method_shape shape = {.geom = &geom, .group = 1};
    const struct compress_param param = {.beta = 20};
    uint32_t sum = 0;
    for (uint32_t l = 0; l < 32; l++) {
        struct method_lane lane = {.shape = &shape, .param = &param, .layer = l};
        struct compress_votes v = {.lane = &lane, .n_tok = 32768 - 32, .n_keep = 992};
        /* From 2 * 992 - 49 to 49, in steps of 1886 / 31. */
        const double line = 1935 - l * 1886.0 / 31;
        const uint32_t keep = linear_budget(&v);
        assert_true(fabs(keep - line) <= 1);
        sum += keep;
        v.n_tok = 1500; /* a shorter prompt turns the line about its middle: 1500 to 484 */
        assert_true(fabs(linear_budget(&v) - (1500 - l * 1016.0 / 31)) <= 1);
    }
    assert_int_equal(sum, 32 * 992);
}

/* Five tokens in chunks of two: the last is alone, and neighbours have the votes of both. */
static void chunkkv_votes_by_the_chunk(void **state)
{
    (void)state;
    static const float want[] = {.3f, .3f, .5f, .5f, .4f};
    float vote[] = {.1f, .2f, .5f, 0, .4f};
    sum_chunks(vote, 5, 2);
    for (uint32_t t = 0; t < 5; t++) assert_true(fabsf(vote[t] - want[t]) < 1e-6f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(votes_are_pooled_as_worked_out),
        cmocka_unit_test(adakv_shares_out_all_of_nine),
        cmocka_unit_test(pyramidkv_follows_its_line),
        cmocka_unit_test(chunkkv_votes_by_the_chunk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
