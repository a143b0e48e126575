/* plan_make.h: one lane of made-up queries and keys, and the plan that a prefill method makes of
 * it, without an engine. */
#ifndef SAC_TESTS_PLAN_MAKE_H
#define SAC_TESTS_PLAN_MAKE_H

#include "base/half.h"
#include "methods/method_spec.h"
#include "methods/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAKE_DIM = 64, MAKE_GROUP = 2 };

struct make {
    uint32_t n_tok; /* of the sequence */
    float *q;       /* [n_tok, MAKE_GROUP, MAKE_DIM] */
    float *k;       /* [n_tok, MAKE_DIM] as attention reads them */
    struct page_geom geom;
    struct method_shape shape;
    struct ops ops;
    struct method_spec spec;
    const void *table; /* of the method, the test's; or NULL */
    uint8_t *pool, *own, *side, *scratch, *lane_room, *state;
    page_id *page;
    uint32_t *mask;
    uint8_t *list_dense, *weight;
    struct plan plan;
};

static inline void *make_zeros(size_t bytes)
{
    const size_t round = (bytes + 127) & ~(size_t)63;
    return memset(aligned_alloc(64, round), 0, round);
}

static inline float make_unit(uint64_t *seed) /* -1 to 1 */
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(uint32_t)(*seed >> 33) / 1073741824.0f - 1.0f;
}

/* Seals all full pages of k, the last one first; k becomes what they hold. */
static inline void make_pages(struct make *m)
{
    struct workers *workers;
    const uint32_t n_page = m->n_tok / PAGE_TOK, left = m->n_tok % PAGE_TOK;
    const size_t page_floats = (size_t)PAGE_TOK * MAKE_DIM;
    const struct method_prefill *hooks = m->spec.method->prefill;
    const size_t side = hooks->side_bytes ? hooks->side_bytes(&m->shape, m->spec.param) : 0;
    uint16_t *tail = (uint16_t *)(void *)m->own;
    const uint8_t *from = m->own;
    assert_int_equal(workers_create(&workers, 1, NULL), SAC_OK);
    for (uint32_t p = 0; p <= n_page; p++) {
        float *k = m->k + p * page_floats;
        const size_t n = p < n_page ? page_floats : (size_t)left * MAKE_DIM;
        memset(m->own, 0, m->geom.tail_bytes);
        for (size_t i = 0; i < n; i++)
            tail[i] = m->geom.type_k == SAC_KV_BF16 ? f32_to_bf16(k[i]) : f32_to_f16(k[i]);
        if (p == n_page) {
            page_read(k, NULL, &m->geom, m->own, PAGE_TAIL, left);
            continue;
        }
        m->page[p] = n_page - 1 - p;
        uint8_t *sealed = m->pool + m->page[p] * m->geom.bytes;
        m->ops.seal(workers, &(struct op_seal){
                                 .geom = &m->geom, .n_page = 1, .tail = &from, .sealed = &sealed});
        page_read(k, NULL, &m->geom, sealed, PAGE_SEALED, PAGE_TOK);
        if (side) hooks->seal(m->side + m->page[p] * side, &m->shape, m->spec.param, k);
    }
    workers_destroy(workers);
}

/* Random queries and keys for n_tok tokens; the test may change q and k before make_method. */
static inline void make_open(struct make *m, sac_kv_type type, uint32_t n_tok, uint64_t seed)
{
    memset(m, 0, sizeof *m);
    m->n_tok = n_tok;
    m->geom = (struct page_geom){
        .n_layer = 4, .n_kv_head = 1, .head_dim = MAKE_DIM, .type_k = type, .type_v = type};
    page_geom_init(&m->geom);
    assert_int_equal(ops_init(&m->ops, NULL), SAC_OK);
    m->q = calloc((size_t)n_tok * MAKE_GROUP * MAKE_DIM, sizeof(float));
    m->k = calloc((size_t)(n_tok + PAGE_TOK) * MAKE_DIM, sizeof(float));
    for (size_t i = 0; i < (size_t)n_tok * MAKE_GROUP * MAKE_DIM; i++)
        m->q[i] = 2 * make_unit(&seed);
    for (size_t i = 0; i < (size_t)n_tok * MAKE_DIM; i++) m->k[i] = make_unit(&seed);
}

/* Memory for a method, in chunks of at most n_row_max rows. */
static inline void make_method(struct make *m, const char *spec, uint32_t n_row_max)
{
    sac_error err;
    const uint32_t n_word = (m->n_tok + PAGE_TOK - 1) / PAGE_TOK + 1;
    if (method_spec_parse(&m->spec, "prefill", spec, &err) != SAC_OK) fail_msg("%s", err.msg);
    const struct method_prefill *hooks = m->spec.method->prefill;
    const void *param = m->spec.param;
    m->shape = (struct method_shape){.model = "made up",
                                     .geom = &m->geom,
                                     .group = MAKE_GROUP,
                                     .n_ctx = m->n_tok,
                                     .n_row_max = n_row_max};
    const size_t side = hooks->side_bytes ? hooks->side_bytes(&m->shape, param) : 0;
    const size_t state = hooks->state_bytes ? hooks->state_bytes(&m->shape, param) : 0;
    const size_t scratch = hooks->scratch_bytes ? hooks->scratch_bytes(&m->shape, param) : 0;
    m->pool = make_zeros((n_word + 1) * m->geom.bytes);
    m->own = make_zeros(m->geom.tail_bytes);
    m->side = make_zeros((n_word + 1) * side);
    m->state = make_zeros(state);
    m->scratch = make_zeros(scratch);
    m->lane_room = make_zeros(hooks->lane_bytes ? hooks->lane_bytes(&m->shape, param) : 0);
    memset(m->scratch, 0x7f, scratch); /* it holds anything */
    m->page = calloc(n_word, sizeof *m->page);
    m->plan.tile_tok = hooks->tile_tok ? hooks->tile_tok : 2 * PAGE_TOK;
    m->plan.n_part = hooks->by_head ? MAKE_GROUP : 1;
    m->plan.n_word = n_word;
    const size_t n_list = (n_row_max / m->plan.tile_tok + 2) * m->plan.n_part;
    m->mask = calloc(n_list * n_word, sizeof *m->mask);
    m->list_dense = calloc(n_list, 1);
    if (m->spec.method->weighs) m->weight = calloc(n_list * n_word, PAGE_TOK);
    make_pages(m);
}

/* The rows [pos, end) of the lane; `own` [PAGE_TOK * MAKE_DIM] gets the keys of the last page. */
static inline struct method_lane make_lane(const struct make *m, uint32_t layer, uint32_t pos,
                                           uint32_t end, uint16_t *own)
{
    const struct method_prefill *hooks = m->spec.method->prefill;
    for (uint32_t i = 0; i < end % PAGE_TOK * MAKE_DIM; i++) {
        const float k = m->k[(size_t)end / PAGE_TOK * PAGE_TOK * MAKE_DIM + i];
        own[i] = m->geom.type_k == SAC_KV_BF16 ? f32_to_bf16(k) : f32_to_f16(k);
    }
    return (struct method_lane){
        .shape = &m->shape,
        .param = m->spec.param,
        .ops = &m->ops,
        .layer = layer,
        .pos = pos,
        .n_row = end - pos,
        .is_prompt = true,
        .q = m->q + (size_t)pos * MAKE_GROUP * MAKE_DIM,
        .q_stride = MAKE_GROUP * MAKE_DIM,
        .scale = 0.125f,
        .frames = {.base = m->pool},
        .cards = {.base = m->pool, .stride = m->geom.bytes},
        .page = m->page,
        .n_sealed = end / PAGE_TOK,
        .own = (const uint8_t *)own,
        .side = m->side,
        .side_stride = hooks->side_bytes ? hooks->side_bytes(&m->shape, m->spec.param) : 0,
        .table = m->table,
        .state = m->state,
        .scratch = hooks->plan_lanes ? m->lane_room : m->scratch};
}

static inline void make_plan(struct make *m, uint32_t layer, uint32_t pos, uint32_t end)
{
    struct plan *p = &m->plan;
    p->pos = pos;
    p->end = end;
    p->n_after = m->n_tok - end;
    p->tile0 = pos / p->tile_tok;
    p->n_tile = (end - 1) / p->tile_tok + 1 - p->tile0;
    p->mask = m->mask;
    p->list_dense = m->list_dense;
    p->weight = m->weight;
    p->dense = PLAN_SPARSE;
    p->mass = p->n_mass = 0;
    memset(m->mask, 0, (size_t)p->n_tile * p->n_part * p->n_word * sizeof *m->mask);
    memset(m->list_dense, 0, (size_t)p->n_tile * p->n_part);
    uint16_t own[PAGE_TOK * MAKE_DIM * 2];
    const struct method_lane lane = make_lane(m, layer, pos, end, own);
    const struct method_prefill *hooks = m->spec.method->prefill;
    if (hooks->plan)
        hooks->plan(&lane, p);
    else
        hooks->plan_lanes(
            &(struct plan_batch){.n = 1, .lane = &lane, .plan = p, .room = m->scratch});
}

static inline void make_close(struct make *m)
{
    void *const owned[] = {m->q,    m->k,     m->page,    m->mask, m->list_dense, m->own,
                           m->pool, m->state, m->scratch, m->side, m->weight,     m->lane_room};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) free(owned[i]);
}

/* Logit of row r of query head h with key c. */
static inline double make_logit(const struct make *m, uint32_t h, uint32_t r, uint32_t c)
{
    double sum = 0;
    for (uint32_t i = 0; i < MAKE_DIM; i++)
        sum += (double)m->q[((size_t)r * MAKE_GROUP + h) * MAKE_DIM + i] *
               (double)m->k[(size_t)c * MAKE_DIM + i];
    return sum * 0.125;
}

#endif
