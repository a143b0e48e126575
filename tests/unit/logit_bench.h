/* logit_bench.h: a lane_bench whose logits are what a test says: query head g points along channel
 * g, so that channel g of a key is the token's logit for it. Numbers must be halves. */
#ifndef SAC_TESTS_LOGIT_BENCH_H
#define SAC_TESTS_LOGIT_BENCH_H

#include "lane_bench.h"

#define LOGIT_NONE (-60.0f) /* of tokens that do not count */

static inline void logit_open(struct lane_bench *b, const char *spec)
{
    lb_open(b, SAC_KV_F16, spec, 1);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        for (uint32_t t = 0; t < LB_TOK; t++)
            for (uint32_t g = 0; g < LB_GROUP; g++) b->k[h][t][g] = LOGIT_NONE;
        for (uint32_t g = 0; g < LB_GROUP; g++) b->q[h][g * LB_DIM + g] = 8; /* the scale is 1/8 */
    }
}

/* The logit of a token for a query head, in all KV heads. */
static inline void logit_set(struct lane_bench *b, uint32_t g, uint32_t tok, float x)
{
    for (uint32_t h = 0; h < LB_HEADS; h++) b->k[h][tok][g] = x;
}

/* The same for both query heads. */
static inline void logit_both(struct lane_bench *b, uint32_t tok, float x)
{
    for (uint32_t g = 0; g < LB_GROUP; g++) logit_set(b, g, tok, x);
}

/* A page of `n` tokens of a logit; the others have `rest`. */
static inline void logit_page(struct lane_bench *b, uint32_t page, uint32_t n, float x, float rest)
{
    for (uint32_t t = 0; t < PAGE_TOK; t++) logit_both(b, page * PAGE_TOK + t, t < n ? x : rest);
}

/* What a decode row reads of pages or tokens before its own page: as many as `want` lists, and
 * those. */
static inline void expect_pages(const struct lane_bench *b, uint32_t h, const uint32_t *want,
                                uint32_t n)
{
    uint32_t n_read = 0;
    assert_false(b->pick[h].dense);
    for (uint32_t p = 0; p < b->lane[h].pos / PAGE_TOK; p++) {
        assert_true(b->mask[h][p] == 0 || b->mask[h][p] == UINT32_MAX);
        n_read += b->mask[h][p] != 0;
    }
    for (uint32_t i = 0; i < n; i++)
        if (!b->mask[h][want[i]]) fail_msg("page %u is not read", want[i]);
    if (n_read != n) fail_msg("%u pages are read, not %u", n_read, n);
}

static inline void expect_tokens(const struct lane_bench *b, uint32_t h, const uint32_t *want,
                                 uint32_t n)
{
    uint32_t n_read = 0;
    assert_false(b->pick[h].dense);
    for (uint32_t t = 0; t < b->lane[h].pos / PAGE_TOK * PAGE_TOK; t++) n_read += lb_reads(b, h, t);
    for (uint32_t i = 0; i < n; i++)
        if (!lb_reads(b, h, want[i])) fail_msg("token %u is not read", want[i]);
    if (n_read != n) fail_msg("%u tokens are read, not %u", n_read, n);
}

#define EXPECT_PAGES(b, h, ...)                                                                    \
    expect_pages(b, h, (const uint32_t[]){__VA_ARGS__},                                            \
                 sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))
#define EXPECT_TOKENS(b, h, ...)                                                                   \
    expect_tokens(b, h, (const uint32_t[]){__VA_ARGS__},                                           \
                  sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t))

#endif
