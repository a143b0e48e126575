/* lane_bench.h: a sequence of made-up keys and queries for one layer of two KV heads, walked row by
 * row as the engine walks it: see of all lanes, select of all lanes, then the queries become past.
 */
#ifndef SAC_TESTS_LANE_BENCH_H
#define SAC_TESTS_LANE_BENCH_H

#include "base/half.h"
#include "base/mem.h"
#include "choose_one.h"
#include "methods/method_spec.h"
#include "methods/pick.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    LB_DIM = 64,
    LB_GROUP = 2,
    LB_HEADS = 2,
    LB_PAGES = 40,
    LB_TOK = LB_PAGES * 32,
    LB_PAST = 64
};

struct lane_bench {
    struct page_geom geom;
    struct method_shape shape;
    double inv_freq[LB_DIM / 2];
    struct ops ops;
    struct method_spec spec;
    struct workers *workers;
    float k[LB_HEADS][LB_TOK][LB_DIM]; /* as attention reads them once their page is sealed */
    float v[LB_HEADS][LB_TOK][LB_DIM]; /* the same; random */
    float long_value; /* every 97th value is so many times as long; 0: like the others */
    float mean_value; /* of the values of sealed pages, set before lb_seal */
    float q[LB_HEADS][LB_GROUP * LB_DIM];
    float past[LB_HEADS][LB_PAST][LB_GROUP * LB_DIM];
    uint8_t *pool, *tail, *side, *scratch, *state;
    size_t pool_bytes, tail_bytes, side_stride, side_bytes, scratch_bytes, state_stride;
    page_id page[LB_HEADS][LB_PAGES];
    uint32_t mask[LB_HEADS][LB_PAGES];
    uint32_t past_begin;
    uint32_t layer, n_layer;
    uint32_t tok[LB_HEADS][LB_TOK]; /* that a method which weighs has listed */
    float tok_logw[LB_HEADS][LB_TOK], logw[LB_HEADS][LB_TOK];
    float rest_log[LB_HEADS][LB_GROUP], rest_value[LB_HEADS][LB_GROUP * LB_DIM];
    struct method_pick pick[LB_HEADS];
    struct method_lane lane[LB_HEADS];
    struct meter meter[LB_HEADS]; /* of the last row */
    uint64_t seed;
};

static inline float lb_unit(struct lane_bench *b) /* -1 to 1 */
{
    b->seed = b->seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(uint32_t)(b->seed >> 33) / 1073741824.0f - 1.0f;
}

static inline void lb_random_keys(struct lane_bench *b, float size)
{
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++)
            for (uint32_t c = 0; c < LB_DIM; c++) b->k[h][t][c] = size * lb_unit(b);
}

static inline void lb_random_query(struct lane_bench *b, float size)
{
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t i = 0; i < LB_GROUP * LB_DIM; i++) b->q[h][i] = size * lb_unit(b);
}

/* Writes the keys into pages; b->k becomes what a reader gets. */
static inline void lb_seal(struct lane_bench *b)
{
    const struct method_decode *hooks = b->spec.method->decode;
    const size_t d = LB_DIM;
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t p = 0; p < LB_PAGES; p++) {
            uint8_t *tail = b->tail + (h * LB_PAGES + p) * b->geom.tail_bytes;
            const uint8_t *from = tail;
            b->page[h][p] = (p * 7 + 3) % LB_PAGES + h * LB_PAGES;
            uint8_t *sealed = b->pool + b->page[h][p] * b->geom.bytes;
            for (uint32_t i = 0; i < PAGE_TOK * d; i++) {
                const bool is_long = b->long_value > 0 && (p * PAGE_TOK + i / d) % 97 == 0;
                const float v = lb_unit(b) * (is_long ? b->long_value : 1) + b->mean_value;
                ((uint16_t *)(void *)tail)[i] = f32_to_f16(b->k[h][p * PAGE_TOK + i / d][i % d]);
                ((uint16_t *)(void *)(tail + b->geom.tail_v))[i] = f32_to_f16(v);
            }
            b->ops.seal(
                b->workers,
                &(struct op_seal){.geom = &b->geom, .n_page = 1, .tail = &from, .sealed = &sealed});
            page_read(b->k[h][p * PAGE_TOK], b->v[h][p * PAGE_TOK], &b->geom, sealed, PAGE_SEALED,
                      PAGE_TOK);
            uint8_t *side = b->side + b->page[h][p] * b->side_stride;
            if (b->side_stride) hooks->seal(side, &b->shape, b->spec.param, b->k[h][p * PAGE_TOK]);
            if (hooks->seal_value)
                hooks->seal_value(side, &b->shape, b->spec.param, b->v[h][p * PAGE_TOK]);
        }
}

static inline size_t lb_state_bytes(const struct lane_bench *b)
{
    return b->n_layer * LB_HEADS * b->state_stride + 64;
}

/* Of a layer and head: layers behind each other, as the engine has them; a test that sets more
 * layers than there are has them share states. */
static inline uint8_t *lb_state(const struct lane_bench *b, uint32_t layer, uint32_t h)
{
    return b->state + (layer % b->n_layer * LB_HEADS + h) * b->state_stride;
}

static inline void lb_open(struct lane_bench *b, sac_kv_type type, const char *spec, uint64_t seed)
{
    sac_error err;
    memset(b, 0, sizeof *b);
    b->seed = seed;
    b->n_layer = 4;
    b->geom = (struct page_geom){.n_layer = b->n_layer,
                                 .n_kv_head = LB_HEADS,
                                 .head_dim = LB_DIM,
                                 .type_k = type,
                                 .type_v = type};
    page_geom_init(&b->geom);
    for (uint32_t i = 0; i < LB_DIM / 2; i++) b->inv_freq[i] = pow(10000, -2.0 * i / LB_DIM);
    b->shape = (struct method_shape){.geom = &b->geom,
                                     .group = LB_GROUP,
                                     .rope = {.n_rot = LB_DIM},
                                     .inv_freq = b->inv_freq,
                                     .n_ctx = LB_TOK};
    assert_int_equal(ops_init(&b->ops, &err), SAC_OK);
    assert_int_equal(workers_create(&b->workers, 1, &err), SAC_OK);
    if (method_spec_parse(&b->spec, "decode", spec, &err) != SAC_OK) fail_msg("%s", err.msg);
    const struct method_decode *h = b->spec.method->decode;
    b->side_stride = h->side_bytes ? (h->side_bytes(&b->shape, b->spec.param) + 63) / 64 * 64 : 0;
    b->state_stride =
        h->state_bytes ? (h->state_bytes(&b->shape, b->spec.param) + 63) / 64 * 64 : 0;
    b->scratch_bytes = (h->scratch_bytes ? h->scratch_bytes(&b->shape, b->spec.param) : 0) + 64;
    b->pool_bytes = LB_HEADS * LB_PAGES * b->geom.bytes;
    b->tail_bytes = LB_HEADS * LB_PAGES * b->geom.tail_bytes;
    b->side_bytes = LB_HEADS * LB_PAGES * b->side_stride + 64;
    b->pool = mem_map(b->pool_bytes);
    b->tail = mem_map(b->tail_bytes);
    b->side = mem_map(b->side_bytes);
    b->scratch = mem_map(b->scratch_bytes);
    b->state = mem_map(lb_state_bytes(b));
}

static inline void lb_close(struct lane_bench *b)
{
    mem_unmap(b->pool, b->pool_bytes);
    mem_unmap(b->tail, b->tail_bytes);
    mem_unmap(b->side, b->side_bytes);
    mem_unmap(b->scratch, b->scratch_bytes);
    mem_unmap(b->state, lb_state_bytes(b));
    workers_destroy(b->workers);
}

/* Another sequence over the same keys. */
static inline void lb_restart(struct lane_bench *b)
{
    memset(b->state, 0, lb_state_bytes(b));
    b->past_begin = 0;
}

static inline void lb_point(struct lane_bench *b, uint32_t pos, bool is_prompt)
{
    memset(b->meter, 0, sizeof b->meter);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        b->lane[h] = (struct method_lane){
            .shape = &b->shape,
            .param = b->spec.param,
            .family = b->spec.method->decode ? b->spec.method->decode->family : NULL,
            .ops = &b->ops,
            .layer = b->layer,
            .kv_head = h,
            .pos = pos,
            .n_row = 1,
            .is_prompt = is_prompt,
            .q = b->q[h],
            .q_stride = LB_GROUP * LB_DIM,
            .past = {.q = b->past[h][0],
                     .n_slot = LB_PAST,
                     .begin = max_u32(b->past_begin, pos > LB_PAST ? pos - LB_PAST : 0),
                     .end = pos},
            .scale = 0.125f,
            .frames = {.base = b->pool},
            .cards = {.base = b->pool, .stride = b->geom.bytes},
            .page = b->page[h],
            .n_sealed = (pos + 1) / PAGE_TOK,
            .own = b->tail + (h * LB_PAGES + pos / PAGE_TOK) * b->geom.tail_bytes,
            .side = b->side,
            .side_stride = b->side_stride,
            .state = lb_state(b, b->layer, h),
            .layer_state = lb_state(b, b->layer, 0),
            .state_stride = b->state_stride,
            .scratch = b->scratch,
            .meter = &b->meter[h]};
}

/* For methods that have the model repeat: tokens [begin, end) of n, by n_row rows with the queries
 * in b->q. */
static inline void lb_repeat(struct lane_bench *b, struct method_repeated of, uint32_t n_row)
{
    for (uint32_t r = 0; r < n_row; r++) {
        lb_point(b, of.n_tok + r, true);
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            b->lane[h].repeated = &of;
            b->spec.method->decode->see(&b->lane[h]);
        }
    }
}

/* As the engine does before a decode row of n tokens. */
static inline void lb_repeat_all(struct lane_bench *b, uint32_t n)
{
    const struct method_decode *hooks = b->spec.method->decode;
    if (!hooks->repeat) return;
    const struct method_repeat of = hooks->repeat(b->spec.param);
    if (n <= of.first || !hooks->repeat_due(&b->shape, b->spec.param, lb_state(b, b->layer, 0), n))
        return;
    for (uint32_t at = of.first; at < n; at += of.n_chunk)
        lb_repeat(b, (struct method_repeated){n, at, min_u32(n, at + of.n_chunk)}, 4);
}

/* One row with the queries in b->q; choices of a decode row are in b->pick and b->mask. */
static inline void lb_row(struct lane_bench *b, uint32_t pos, bool is_prompt)
{
    const struct method_decode *hooks = b->spec.method->decode;
    if (!is_prompt) lb_repeat_all(b, pos);
    lb_point(b, pos, is_prompt);
    for (uint32_t h = 0; h < LB_HEADS && hooks->see; h++) hooks->see(&b->lane[h]);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        if (is_prompt) break;
        memset(b->mask[h], 0, sizeof b->mask[h]);
        memset(b->logw[h], 0, sizeof b->logw[h]);
        for (uint32_t g = 0; g < LB_GROUP; g++) b->rest_log[h][g] = -INFINITY;
        b->pick[h] = (struct method_pick){.mask = b->mask[h],
                                          .tok = b->tok[h],
                                          .logw = b->tok_logw[h],
                                          .rest_log = b->rest_log[h],
                                          .rest_value = b->rest_value[h]};
        choose_one(hooks, &b->lane[h], &b->pick[h]);
        for (uint32_t i = 0; i < b->pick[h].n_tok; i++) {
            b->mask[h][b->tok[h][i] / PAGE_TOK] |= 1u << b->tok[h][i] % PAGE_TOK;
            b->logw[h][b->tok[h][i]] = b->tok_logw[h][i];
        }
    }
    for (uint32_t h = 0; h < LB_HEADS; h++)
        memcpy(b->past[h][pos % LB_PAST], b->q[h], sizeof b->q[h]);
}

static inline bool lb_reads(const struct lane_bench *b, uint32_t h, uint32_t tok)
{
    return b->pick[h].dense || tok / PAGE_TOK == b->lane[h].pos / PAGE_TOK ||
           (b->mask[h][tok / PAGE_TOK] >> tok % PAGE_TOK & 1u);
}

static inline uint32_t lb_count(const struct lane_bench *b, uint32_t h)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t <= b->lane[h].pos; t++) n += lb_reads(b, h, t);
    return n;
}

static inline double lb_logit(const struct lane_bench *b, const float *q, uint32_t h, uint32_t tok)
{
    double sum = 0;
    for (uint32_t c = 0; c < LB_DIM; c++) sum += (double)q[c] * (double)b->k[h][tok][c];
    return sum * 0.125;
}

/* Softmax shares of tokens 0 .. pos, mean over the query heads. */
static inline void lb_shares(const struct lane_bench *b, const float *q, uint32_t h, uint32_t pos,
                             double *share)
{
    memset(share, 0, LB_TOK * sizeof *share);
    for (uint32_t g = 0; g < LB_GROUP; g++) {
        double e[LB_TOK], sum = 0, most = -INFINITY;
        for (uint32_t t = 0; t <= pos; t++) {
            e[t] = lb_logit(b, q + g * LB_DIM, h, t);
            most = fmax(most, e[t]);
        }
        for (uint32_t t = 0; t <= pos; t++) sum += e[t] = exp(e[t] - most);
        for (uint32_t t = 0; t <= pos; t++) share[t] += e[t] / sum / LB_GROUP;
    }
}

#endif
