/* check_attn.h: random sequences in pages, for the check and the bench of attention. */
#ifndef SAC_TESTS_CHECK_ATTN_H
#define SAC_TESTS_CHECK_ATTN_H

#include "base/mem.h"
#include "ops/ops.h"

#include <math.h>
#include <string.h>

/* A sequence of one layer: f32 keys and values, their sealed pages and its 16-bit tail pages. */
struct sequence {
    struct page_geom geom;
    uint32_t n_tok, n_page; /* n_page: all pages, the last may not be full */
    float *k, *v;           /* [n_tok, n_kv_head, head_dim] */
    uint8_t *tail;          /* [n_page, n_kv_head] tail-form pages */
    uint8_t *pool;          /* [n_page * n_kv_head] sealed pages, mapped */
    size_t pool_bytes;
    page_id *table;                     /* [n_kv_head, n_page] */
    const struct segment_view *segment; /* [n_segment] of runs behind them */
    uint32_t n_segment;
    struct segment_rope rope;
};

static inline uint64_t rng_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Uniform in [-1, 1). */
static inline float rng_float(uint64_t *state)
{
    return (float)(rng_next(state) >> 40) * 0x1p-23f - 1.0f;
}

/* Roughly normal, variance 1. */
static inline float rng_normal(uint64_t *state)
{
    return (rng_float(state) + rng_float(state) + rng_float(state)) * 1.0f;
}

/* Pages of a sequence get scattered ids, as in a pool that has been in use. */
static inline void sequence_init(struct sequence *s, struct page_geom geom, uint32_t n_tok)
{
    *s = (struct sequence){.geom = geom, .n_tok = n_tok};
    page_geom_init(&s->geom);
    const uint32_t h = geom.n_kv_head;
    s->n_page = (n_tok + PAGE_TOK - 1) / PAGE_TOK;
    s->k = mem_calloc((size_t)n_tok * h * geom.head_dim, sizeof *s->k);
    s->v = mem_calloc((size_t)n_tok * h * geom.head_dim, sizeof *s->v);
    s->tail = mem_map(s->n_page * (size_t)h * s->geom.tail_bytes);
    s->pool_bytes = s->n_page * (size_t)h * s->geom.bytes;
    s->pool = mem_map(s->pool_bytes);
    s->table = mem_calloc((size_t)h * s->n_page, sizeof *s->table);
    const uint32_t n = h * s->n_page;
    uint32_t step = n * 5 / 13 + 1; /* coprime to n: a permutation of the ids */
    for (uint32_t a = step, b = n; b != 0 && n > 1;) {
        const uint32_t r = a % b;
        a = b;
        b = r;
        if (b == 0 && a != 1) a = ++step, b = n;
    }
    for (uint32_t i = 0; i < n; i++) s->table[i] = (page_id)((uint64_t)i * step % n);
}

static inline void sequence_deinit(struct sequence *s)
{
    mem_free(s->k);
    mem_free(s->v);
    mem_free(s->table);
    mem_unmap(s->tail, s->n_page * (size_t)s->geom.n_kv_head * s->geom.tail_bytes);
    mem_unmap(s->pool, s->pool_bytes);
}

/* A run over rows pos0 .. pos0 + n_row - 1 whose own pages are the sequence's. */
static inline struct attn_run sequence_run(const struct sequence *s, uint32_t row0, uint32_t pos0,
                                           uint32_t n_row, enum row_kind kind)
{
    const size_t lane = s->geom.n_kv_head * s->geom.tail_bytes;
    uint8_t *own0 = s->tail + pos0 / PAGE_TOK * lane;
    return (struct attn_run){.row0 = row0,
                             .n_row = n_row,
                             .pos0 = pos0,
                             .kind = kind,
                             .table = s->table,
                             .table_stride = s->n_page,
                             .own0 = own0,
                             .own = own0 + lane,
                             .segment = s->segment,
                             .n_segment = s->n_segment};
}

/* Writes k and v into the tail pages and seals the full ones. */
static inline void sequence_store(struct sequence *s, struct workers *pool, const struct ops *ops)
{
    const struct page_geom *g = &s->geom;
    const struct attn_run run = sequence_run(s, 0, 0, s->n_tok, ROW_PROMPT);
    const size_t stride = (size_t)g->n_kv_head * g->head_dim;
    ops->kv_write(
        pool, &(struct op_kv_write){
                  .geom = g, .n_run = 1, .run = &run, .k = s->k, .v = s->v, .kv_stride = stride});
    for (uint32_t i = 0; i < s->n_tok / PAGE_TOK; i++)
        for (uint32_t h = 0; h < g->n_kv_head; h++) {
            const uint8_t *from = s->tail + ((size_t)i * g->n_kv_head + h) * g->tail_bytes;
            uint8_t *to = s->pool + s->table[h * s->n_page + i] * g->bytes;
            ops->seal(pool,
                      &(struct op_seal){.geom = g, .n_page = 1, .tail = &from, .sealed = &to});
        }
}

/* Keys and values of a plausible model: channels with large means in K, as qwen2's first layers. */
static inline void sequence_fill(struct sequence *s, uint64_t seed)
{
    const size_t d = s->geom.head_dim, n = (size_t)s->n_tok * s->geom.n_kv_head * d;
    for (size_t i = 0; i < n; i++) {
        const float mean = i % d % 13 == 5 ? 12.0f : 0.0f;
        s->k[i] = mean + rng_normal(&seed);
        s->v[i] = rng_normal(&seed);
    }
}

#endif
