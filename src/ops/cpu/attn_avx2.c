/* attn_avx2.c: attention in f32 with vectors of eight lanes.
 *
 * WIDE works on blocks of 16 queries, one per lane: scores S^T [key, query] and outputs O^T
 * [channel, query] are sums of a broadcast key (value) element times a vector of queries (weights).
 * Keys and values thus stay in their rows, and the softmax has no horizontal step. NARROW computes
 * the scores of eight tokens as dot products and keeps all scores of its chunk, so the maximum is
 * known before the first weight.
 *
 * 2^x: degree 5 on the fraction, relative error 8.3e-8, exact at 0. Maxima are exact, accumulators
 * are rescaled when a maximum rises. Invalid numbers as attn_wide_tmpl.h describes. */
#include "ops/cpu/attn.h"
#include "ops/cpu/attn_q8_avx2.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#include <assert.h>
#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define INLINE      static inline __attribute__((always_inline))
#define QUERY_BLOCK (2 * VEC)
#define SIDE        4u   /* keys (channels) whose scores (outputs) are in registers at a time */
#define TILE_Q      256u /* queries */

/* 2^y for y <= 0. Below the smallest normal number, and for -inf, it is 0; NaN stays NaN. */
INLINE vec exp2_vec(vec y)
{
    y = v_max(v_set1(-200.0f), y); /* returns its second operand for a NaN */
    const vec n = _mm256_floor_ps(y), r = v_sub(y, n);
    vec p = v_set1(0.00186713019f);
    p = v_fma(p, r, v_set1(0.00901703006f));
    p = v_fma(p, r, v_set1(0.0557999133f));
    p = v_fma(p, r, v_set1(0.24016445f));
    p = v_fma(p, r, v_set1(0.693151312f));
    p = v_fma(p, r,
              v_set1(1.0f)); /* exactly 1 at 0, so that a maximum that stays rescales nothing */
    const vec power = v_bits(i_sll(i_add(i_of_v(n), i_set1(127)), 23));
    /* there is no such power below -126 */
    return v_mul(p, m_less(power, m_lt(n, v_set1(-126.0f))));
}

/* cap * tanh(x / cap), tanh z = 1 - 2 / (1 + e^2z); saturates without overflow. */
INLINE vec softcap_vec(vec x, float cap)
{
    const vec y = v_mul(x, v_set1(2.0f * (float)M_LOG2E / cap));
    const vec e = exp2_vec(v_max(v_set1(-64.0f), v_min(v_set1(64.0f), y)));
    const vec q = v_div(v_set1(2.0f), v_add(e, v_set1(1.0f)));
    return v_mul(v_set1(cap), v_sub(v_set1(1.0f), q));
}

static void f32_from_half(float *dst, const uint8_t *src, size_t n, bool bf16)
{
    for (size_t i = 0; i < n; i += VEC)
        v_store(dst + i, bf16 ? v_load_bf16(src + 2 * i) : v_load_f16(src + 2 * i));
}

INLINE vec load_i8(const uint8_t *p)
{
    return v_of_i(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}

static void f32_from_q8_v(float *dst, const struct page_geom *g, const uint8_t *page,
                          struct attn_tokens tok)
{
    const size_t n = (size_t)tok.n * g->head_dim, first = (size_t)tok.first * g->head_dim;
    const uint16_t *scale =
        (const uint16_t *)(const void *)(page + g->v_scale) + first / PAGE_VBLOCK;
    for (size_t i = 0; i < n; i += VEC)
        v_store(dst + i,
                v_mul(load_i8(page + g->v + first + i), v_set1(_cvtsh_ss(scale[i / PAGE_VBLOCK]))));
}

/* Converts keys or values of tokens `tok` of a page to f32 [tok.n, d]. */
static void tokens_to_f32(float *dst, const struct page_geom *g, const struct attn_page *page,
                          const uint8_t *bytes, struct attn_tokens tok, bool values)
{
    if (page->form == PAGE_SEALED && g->type_k == SAC_KV_Q8) {
        if (values)
            f32_from_q8_v(dst, g, bytes, tok);
        else
            attn_q8_by_eights(dst, g, bytes, tok);
        return;
    }
    const bool tail = page->form == PAGE_TAIL;
    const size_t at = values ? (tail ? g->tail_v : g->v) : (tail ? 0 : g->k);
    f32_from_half(dst, bytes + at + tok.first * (size_t)g->head_dim * 2,
                  tok.n * (size_t)g->head_dim, (values ? g->type_v : g->type_k) == SAC_KV_BF16);
}

/* Converts keys or values of a page to f32 [PAGE_TOK, d]; invisible slots of a gathered page get
 * zeros. */
static void page_to_f32(float *dst, const struct page_geom *g, const struct attn_page *page,
                        bool values)
{
    const size_t d = g->head_dim;
    if (!page->tok) {
        tokens_to_f32(dst, g, page, page->bytes, (struct attn_tokens){0, PAGE_TOK}, values);
        return;
    }
    memset(dst, 0, page->begin * d * sizeof *dst);
    for (uint32_t i = page->begin, n; i < page->end; i += n) {
        n = attn_neighbours(page, i);
        for (uint32_t j = i; j < i + n && !values; j++) attn_fetch_key(g, page, j + PAGE_TOK);
        for (uint32_t j = i; j < i + n && values; j++) attn_fetch_value(g, page, j + PAGE_TOK);
        tokens_to_f32(dst + i * d, g, page, attn_page_of(g, page, i),
                      (struct attn_tokens){page->tok[i] % PAGE_TOK, n}, values);
    }
    memset(dst + page->end * d, 0, (PAGE_TOK - page->end) * d * sizeof *dst);
}

static float *take_floats(uint8_t *base, size_t *at, size_t n)
{
    return align_take(base, at, n * sizeof(float));
}

/* ---- WIDE ---- */

static uint32_t wide_panel_tok(uint32_t head_dim)
{
    return head_dim <= 128 ? 128 : 64;
}

struct wide_mem {
    uint32_t d, panel_tok;
    float *q;     /* queries, scaled so that scores are in log 2 (with a softcap, in its units) */
    float *k, *v; /* [panel_tok, d] */
    float *s;     /* [panel_tok, QUERY_BLOCK] scores, then weights */
    float *o;     /* [n_q/QUERY_BLOCK, d, QUERY_BLOCK] of the current stretch */
    float *m, *l; /* [n_q] maximum and softmax denominator of the current stretch */
    int32_t *lo, *hi;  /* [QUERY_BLOCK] the tokens [lo, hi) of the panel are visible */
    float *logw;       /* [panel_tok] gathered panel: log weights, in log 2; -inf for padding */
    float *stretch[2]; /* o, m, l: stretch[n_fold > 0] is the current one; after a fold, stretch[0]
                          is the sum of all completed ones */
    size_t stretch_floats, bytes;
};

static struct wide_mem wide_layout(uint8_t *base, uint32_t d, uint32_t n_q)
{
    struct wide_mem w = {.d = d, .panel_tok = wide_panel_tok(d)};
    size_t at = 0;
    w.q = take_floats(base, &at, (size_t)n_q * d);
    w.k = take_floats(base, &at, (size_t)w.panel_tok * d);
    w.v = take_floats(base, &at, (size_t)w.panel_tok * d);
    w.s = take_floats(base, &at, (size_t)w.panel_tok * QUERY_BLOCK);
    w.lo = align_take(base, &at, QUERY_BLOCK * sizeof(int32_t));
    w.hi = align_take(base, &at, QUERY_BLOCK * sizeof(int32_t));
    w.logw = take_floats(base, &at, w.panel_tok);
    w.stretch_floats = (size_t)n_q * (d + 2);
    for (int i = 0; i < 2; i++) w.stretch[i] = take_floats(base, &at, w.stretch_floats);
    w.bytes = at;
    return w;
}

static size_t wide_bytes(const struct page_geom *g, uint32_t n_q)
{
    return wide_layout(NULL, g->head_dim, n_q).bytes;
}

static void use_stretch(struct wide_mem *w, uint32_t i, uint32_t n_q)
{
    w->o = w->stretch[i];
    w->m = w->o + (size_t)n_q * w->d;
    w->l = w->m + n_q;
}

static struct wide_mem wide_mem_of(const struct attn_tile *t)
{
    const uint32_t n_q = attn_tile_queries(t);
    struct wide_mem w = wide_layout(t->mem, t->op->geom->head_dim, n_q);
    use_stretch(&w, t->n_fold > 0, n_q);
    return w;
}

static size_t wide_sums(const struct page_geom *g, uint32_t n_q)
{
    return wide_layout(NULL, g->head_dim, n_q).stretch_floats * sizeof(float);
}

static void wide_save(struct attn_tile *t, void *to)
{
    const struct wide_mem w = wide_mem_of(t);
    memcpy(to, w.o, w.stretch_floats * sizeof(float));
}

static void wide_load(struct attn_tile *t, const void *from)
{
    const struct wide_mem w = wide_mem_of(t);
    memcpy(w.o, from, w.stretch_floats * sizeof(float));
}

static void clear_sums(const struct wide_mem *w, uint32_t n_q)
{
    memset(w->o, 0, (size_t)n_q * w->d * sizeof(float));
    for (uint32_t i = 0; i < n_q; i++) {
        w->m[i] = -INFINITY;
        w->l[i] = 0;
    }
}

static void wide_begin(struct attn_tile *t)
{
    const struct wide_mem w = wide_mem_of(t);
    const uint32_t n_q = attn_tile_queries(t);
    memset(w.q, 0, (size_t)n_q * w.d * sizeof(float));
    clear_sums(&w, n_q);
}

/* Merges a vector of queries, from q on, of the stretch `add` into the completed ones. A query
 * without visible keys in the stretch keeps its bits: 2^0 is 1. */
static void fold_queries(const struct wide_mem *all, const struct wide_mem *add, uint32_t q)
{
    const vec before = v_load(all->m + q), here = v_load(add->m + q), m = v_max(before, here);
    const vec base = v_max(m, v_set1(-3e38f)); /* no visible keys yet */
    const vec old = exp2_vec(v_sub(before, base)), new = exp2_vec(v_sub(here, base));
    const vec l = v_load(add->l + q);
    const vec_m unseen = m_lt(l, v_set1(FLT_MIN)); /* false for NaN */
    float *o = all->o + (size_t)(q / QUERY_BLOCK) * all->d * QUERY_BLOCK + q % QUERY_BLOCK;
    const float *o_here = add->o + (o - all->o);
    v_store(all->m + q, m);
    v_store(all->l + q, v_fma(l, new, v_mul(v_load(all->l + q), old)));
    for (uint32_t c = 0; c < all->d; c++, o += QUERY_BLOCK, o_here += QUERY_BLOCK) {
        const vec sum = v_fma(v_load(o_here), new, v_mul(v_load(o), old));
        v_store(o, v_choose(unseen, v_load(o), sum));
    }
}

static void wide_fold(struct attn_tile *t)
{
    const uint32_t n_q = attn_tile_queries(t);
    const bool is_first = t->n_fold++ == 0;
    const struct wide_mem add = wide_mem_of(t);
    struct wide_mem all = add;
    use_stretch(&all, 0, n_q);
    for (uint32_t q = 0; q < n_q && !is_first; q += VEC) fold_queries(&all, &add, q);
    clear_sums(&add, n_q);
}

static void wide_query(struct attn_tile *t)
{
    const struct wide_mem w = wide_mem_of(t);
    const struct op_attn *op = t->op;
    const uint32_t d = w.d;
    const float unit = op->softcap > 0 ? op->scale : op->scale * (float)M_LOG2E;
    for (uint32_t q = 0; q < t->n_row * t->group; q++) {
        const float *src = t->q + q / t->group * t->q_stride + (size_t)(q % t->group) * d;
        float *dst = w.q + (size_t)(q / QUERY_BLOCK) * d * QUERY_BLOCK + q % QUERY_BLOCK;
        for (uint32_t c = 0; c < d; c++) dst[c * QUERY_BLOCK] = src[c] * unit;
    }
}

/* Replaces value rows that are not finite by zeros and their keys by NaN, and zeros the values of
 * invisible tokens: a weight of 0 times a NaN or infinity would be NaN. */
static void quarantine(float *k, float *v, const struct attn_page *page, uint32_t d)
{
    for (uint32_t t = 0; t < PAGE_TOK; t++, k += d, v += d) {
        bool bad = false;
        for (uint32_t c = 0; c < d; c++) bad |= !(fabsf(v[c]) < INFINITY);
        if (t >= page->end || bad) memset(v, 0, d * sizeof *v);
        for (uint32_t c = 0; c < d && bad && t < page->end; c++) k[c] = NAN;
    }
}

static void wide_page(struct attn_tile *t, uint32_t slot, const struct attn_page *page)
{
    const struct wide_mem w = wide_mem_of(t);
    const size_t at = (size_t)slot * PAGE_TOK * w.d;
    page_to_f32(w.k + at, t->op->geom, page, false);
    page_to_f32(w.v + at, t->op->geom, page, true);
    if (attn_is_guarded(t->op, page)) quarantine(w.k + at, w.v + at, page, w.d);
    if (page->tok) attn_logw(w.logw + (size_t)slot * PAGE_TOK, page);
}

/* s [key, QUERY_BLOCK] = keys [begin, end) times a query block. */
INLINE void block_scores(float *s, const float *q, const float *k, uint32_t begin, uint32_t end,
                         uint32_t d)
{
    for (uint32_t key = begin; key < end; key += SIDE) {
        const float *row = k + (size_t)key * d;
        vec acc[SIDE][2];
        for (uint32_t i = 0; i < SIDE; i++) acc[i][0] = acc[i][1] = v_zero();
        for (uint32_t c = 0; c < d; c++) {
            const vec q0 = v_load(q + c * QUERY_BLOCK), q1 = v_load(q + c * QUERY_BLOCK + VEC);
#pragma GCC unroll 8
            for (uint32_t i = 0; i < SIDE; i++) {
                const vec x = v_set1(row[i * (size_t)d + c]);
                acc[i][0] = v_fma(x, q0, acc[i][0]);
                acc[i][1] = v_fma(x, q1, acc[i][1]);
            }
        }
        for (uint32_t i = 0; i < SIDE; i++) {
            v_store(s + (key + i) * (size_t)QUERY_BLOCK, acc[i][0]);
            v_store(s + (key + i) * (size_t)QUERY_BLOCK + VEC, acc[i][1]);
        }
    }
}

/* o [channel, QUERY_BLOCK] += values of [begin, end) times weights. */
INLINE void block_values(float *o, const float *p, const float *v, uint32_t begin, uint32_t end,
                         uint32_t d)
{
    for (uint32_t c = 0; c < d; c += SIDE) {
        vec acc[SIDE][2];
        for (uint32_t i = 0; i < SIDE; i++) {
            acc[i][0] = v_load(o + (c + i) * (size_t)QUERY_BLOCK);
            acc[i][1] = v_load(o + (c + i) * (size_t)QUERY_BLOCK + VEC);
        }
        for (uint32_t key = begin; key < end; key++) {
            const vec p0 = v_load(p + key * (size_t)QUERY_BLOCK);
            const vec p1 = v_load(p + key * (size_t)QUERY_BLOCK + VEC);
            const float *row = v + (size_t)key * d + c;
#pragma GCC unroll 8
            for (uint32_t i = 0; i < SIDE; i++) {
                const vec x = v_set1(row[i]);
                acc[i][0] = v_fma(x, p0, acc[i][0]);
                acc[i][1] = v_fma(x, p1, acc[i][1]);
            }
        }
        for (uint32_t i = 0; i < SIDE; i++) {
            v_store(o + (c + i) * (size_t)QUERY_BLOCK, acc[i][0]);
            v_store(o + (c + i) * (size_t)QUERY_BLOCK + VEC, acc[i][1]);
        }
    }
}

/* A vector of queries: from q on in the tile, from j on in their block. Lanes [first, end) see the
 * panel; first >= end: none. */
struct query_vec {
    uint32_t q, j, first, end;
};

/* Zeroes the panel's weights for queries to which it adds too little (attn_plan.skip). `sum`: the
 * sums of the weights. Returns the number of these queries. */
static uint32_t skip_queries(const struct wide_mem *w, const struct attn_panel *p,
                             struct query_vec x, vec *sum)
{
    const vec least = v_mul(v_load(w->l + x.q), v_set1(p->skip));
    const vec keep = m_less(v_set1(1), m_lt(*sum, least));
    float lane[VEC];
    uint32_t n = 0;
    memcpy(lane, &keep, sizeof lane);
    for (uint32_t i = x.first; i < VEC && i < x.end; i++) n += lane[i] < 1;
    if (n == 0) return 0;
    for (uint32_t key = p->begin; key < p->end; key++) {
        float *at = w->s + key * (size_t)QUERY_BLOCK + x.j;
        v_store(at, v_mul(v_load(at), keep));
    }
    *sum = v_mul(*sum, keep);
    return n;
}

/* y where lo <= at < hi, else -inf. */
INLINE vec mask_hidden(vec y, int32_t at, const int32_t *lo, const int32_t *hi)
{
    const vec_i x = i_set1(at);
    const vec_m below = i_lt(x, i_load(lo)), inside = i_lt(x, i_load(hi));
    return v_choose(m_less(inside, below), y, v_set1(-INFINITY));
}

/* Softmax of one vector of queries. Returns how many of them skip the panel. */
INLINE uint32_t vector_softmax(const struct wide_mem *w, const struct attn_panel *p,
                               struct query_vec x, float softcap)
{
    const uint32_t q = x.q, j = x.j;
    float *s = w->s + j, *o = w->o + (size_t)(q - j) * w->d + j; /* both at stride QUERY_BLOCK */
    const int32_t *lo = w->lo + j, *hi = w->hi + j;
    const vec m_old = v_load(w->m + q);
    vec m = m_old, sum = v_zero();
    for (uint32_t key = p->begin; key < p->end; key++) {
        float *at = s + key * (size_t)QUERY_BLOCK;
        vec y = v_load(at);
        if (softcap > 0) y = v_mul(softcap_vec(y, softcap), v_set1((float)M_LOG2E));
        if (p->masked) y = mask_hidden(y, (int32_t)key, lo, hi);
        if (p->gathered) y = v_add(y, v_set1(w->logw[key]));
        if (softcap > 0 || p->masked || p->gathered) v_store(at, y);
        m = v_max(y, m); /* returns its second operand if y is NaN */
    }
    /* If a query has no keys yet, any finite number may be subtracted. */
    const vec base = v_max(m, v_set1(-3e38f));
    for (uint32_t key = p->begin; key < p->end; key++) {
        float *at = s + key * (size_t)QUERY_BLOCK;
        const vec weight = exp2_vec(v_sub(v_load(at), base));
        sum = v_add(sum, weight);
        v_store(at, weight);
    }
    if (m_word(m_lt(m_old, m))) {
        const vec factor = exp2_vec(v_sub(m_old, base));
        v_store(w->l + q, v_mul(v_load(w->l + q), factor));
        for (uint32_t c = 0; c < w->d; c++) {
            float *at = o + c * (size_t)QUERY_BLOCK;
            v_store(at, v_mul(v_load(at), factor));
        }
        v_store(w->m + q, m);
    }
    const uint32_t n_out = p->skip > 0 ? skip_queries(w, p, x, &sum) : 0;
    v_store(w->l + q, v_add(v_load(w->l + q), sum));
    return n_out;
}

INLINE void wide_panel_d(struct attn_tile *t, const struct attn_panel *p, uint32_t d)
{
    const struct wide_mem w = wide_mem_of(t);
    const struct op_attn *op = t->op;
    const uint32_t fetch = attn_fetch_share(t, attn_tile_queries(t) / QUERY_BLOCK);
    const uint32_t q0 = p->row0 * t->group / QUERY_BLOCK * QUERY_BLOCK;
    for (uint32_t q = q0; q < p->row1 * t->group; q += QUERY_BLOCK) {
        const struct attn_block b = attn_block_of(t, p, q, QUERY_BLOCK);
        float *o = w.o + (size_t)q * d;
        uint32_t n_out = 0;
        struct attn_panel x = *p;
        x.masked = p->masked || b.first > 0 || b.end < b.n;
        attn_fetch(&t->ahead, fetch);
        for (uint32_t j = 0; j < QUERY_BLOCK && x.masked; j++) {
            uint32_t lo = 0, hi = 0;
            if (j >= b.first && j < b.end)
                attn_visible(op, p, t->pos[(q + j) / t->group], &lo, &hi);
            w.lo[j] = (int32_t)lo;
            w.hi[j] = (int32_t)hi;
        }
        block_scores(w.s, w.q + (size_t)q * d, w.k, p->begin, p->end, d);
        for (uint32_t j = 0; j < b.n; j += VEC) {
            const struct query_vec y = {q + j, j, b.first > j ? b.first - j : 0,
                                        b.end > j ? b.end - j : 0};
            n_out += vector_softmax(&w, &x, y, op->softcap);
        }
        t->n_skip += (uint64_t)n_out * (p->end - p->begin);
        if (n_out < b.end - b.first) block_values(o, w.s, w.v, p->begin, p->end, d);
    }
}

static void wide_panel(struct attn_tile *t, const struct attn_panel *p)
{
    /* constant sizes become displacements of loads */
    switch (t->op->geom->head_dim) {
    case 64: wide_panel_d(t, p, 64); break;
    case 128: wide_panel_d(t, p, 128); break;
    case 256: wide_panel_d(t, p, 256); break;
    default: wide_panel_d(t, p, t->op->geom->head_dim);
    }
}

static void wide_end(struct attn_tile *t)
{
    if (t->n_fold > 0) wide_fold(t);
    struct wide_mem w = wide_mem_of(t);
    use_stretch(&w, 0, attn_tile_queries(t));
    const struct op_attn *op = t->op;
    for (uint32_t q = 0; q < t->n_row * t->group; q++) {
        const uint32_t row = t->row0 + q / t->group, head = t->head0 + q % t->group;
        float *out = op->out + row * op->out_stride + (size_t)head * w.d;
        const float *o = w.o + (size_t)(q / QUERY_BLOCK) * w.d * QUERY_BLOCK + q % QUERY_BLOCK;
        const float inv = 1.0f / w.l[q];
        for (uint32_t c = 0; c < w.d; c++) out[c] = o[c * QUERY_BLOCK] * inv;
        if (op->lse)
            op->lse[(size_t)row * op->n_head + head] = (w.m[q] + log2f(w.l[q])) * (float)M_LN2;
    }
}

/* ---- NARROW ---- */

struct narrow_mem {
    float *q;    /* [group, d] scaled */
    float *page; /* [PAGE_TOK, d] keys or values of the current page */
    float *s;    /* [group, ATTN_CHUNK_MAX, PAGE_TOK] scores, then weights */
    size_t bytes;
};

static struct narrow_mem narrow_layout(uint8_t *base, uint32_t d, uint32_t group)
{
    struct narrow_mem w = {0};
    size_t at = 0;
    w.q = take_floats(base, &at, (size_t)group * d);
    w.page = take_floats(base, &at, (size_t)PAGE_TOK * d);
    w.s = take_floats(base, &at, (size_t)group * ATTN_CHUNK_MAX * PAGE_TOK);
    w.bytes = at;
    return w;
}

static size_t narrow_bytes(const struct page_geom *g, uint32_t group)
{
    return narrow_layout(NULL, g->head_dim, group).bytes;
}

/* Prefetches n bytes from offset `at` of page j + 2; gathered pages prefetch by token. */
ATTN_FETCH fetch_ahead(const struct attn_chunk *c, uint32_t j, size_t at, size_t n)
{
    if (j + 2 < c->n_page && !c->page[j + 2].tok) attn_fetch_bytes(c->page[j + 2].bytes + at, n);
}

/* Horizontal sums: lane i is the sum of the lanes of r[i]. Adds neighbours until each lane holds
 * one row's sum. */
INLINE vec row_sums(const vec r[VEC])
{
    vec a[4];
    for (int i = 0; i < 4; i++) a[i] = _mm256_hadd_ps(r[2 * i], r[2 * i + 1]);
    const vec b = _mm256_hadd_ps(a[0], a[1]), c = _mm256_hadd_ps(a[2], a[3]);
    return v_add(_mm256_permute2f128_ps(b, c, 0x20), _mm256_permute2f128_ps(b, c, 0x31));
}

/* Scores of all tokens of a page for one head. */
INLINE void narrow_scores(float *s, const float *q, const float *k, uint32_t d)
{
    for (uint32_t t = 0; t < PAGE_TOK; t += VEC) {
        vec acc[VEC];
        for (uint32_t i = 0; i < VEC; i++) acc[i] = v_zero();
        for (uint32_t c = 0; c < d; c += VEC) {
            const vec x = v_load(q + c);
#pragma GCC unroll 8
            for (uint32_t i = 0; i < VEC; i++)
                acc[i] = v_fma(x, v_load(k + (t + i) * (size_t)d + c), acc[i]);
        }
        v_store(s + t, row_sums(acc));
    }
}

/* Replaces the scores of one head by weights relative to their maximum; invisible tokens get 0. */
static void narrow_softmax(const struct attn_chunk *c, float *s, float *out_m, float *out_l)
{
    const float softcap = c->op->softcap;
    vec max = v_set1(-INFINITY), sum = v_zero();
    for (uint32_t j = 0; j < c->n_page; j++)
        for (uint32_t t = 0; t < PAGE_TOK; t += VEC) {
            float *at = s + j * PAGE_TOK + t;
            vec y = v_load(at);
            if (softcap > 0) y = v_mul(softcap_vec(y, softcap), v_set1((float)M_LOG2E));
            v_store(at, y);
            const struct attn_page *page = &c->page[j];
            for (uint32_t i = t; i < t + VEC && (page->begin > t || page->end < t + VEC); i++)
                if (i < page->begin || i >= page->end) at[i - t] = -INFINITY;
            for (uint32_t i = t; i < t + VEC && page->logw; i++)
                if (i >= page->begin && i < page->end) at[i - t] += page->logw[i] * (float)M_LOG2E;
            max = v_max(v_load(at), max);
        }
    float lane[VEC], m = -INFINITY, l = 0;
    memcpy(lane, &max, sizeof lane);
    for (uint32_t i = 0; i < VEC; i++) m = lane[i] > m ? lane[i] : m;
    const vec base = v_set1(m == -INFINITY ? 0 : m);
    for (uint32_t i = 0; i < c->n_page * PAGE_TOK; i += VEC) {
        const vec weight = exp2_vec(v_sub(v_load(s + i), base));
        sum = v_add(sum, weight);
        v_store(s + i, weight);
    }
    memcpy(lane, &sum, sizeof lane);
    for (uint32_t i = 0; i < VEC; i++) l += lane[i];
    *out_m = m;
    *out_l = l;
}

/* acc [d] += weights of tokens times values. Pairs of tokens have separate sums, to have enough
 * FMAs in flight. */
INLINE void narrow_values(float *acc, const float *p, const float *v, uint32_t begin, uint32_t end,
                          uint32_t d)
{
    enum { STEP = 4 };
    for (uint32_t c = 0; c < d; c += STEP * VEC) {
        vec even[STEP], odd[STEP];
        for (uint32_t i = 0; i < STEP; i++) {
            even[i] = v_load(acc + c + i * VEC);
            odd[i] = v_zero();
        }
        uint32_t t = begin;
        for (; t + 2 <= end; t += 2) {
            const vec x = v_set1(p[t]), y = v_set1(p[t + 1]);
            const float *row = v + t * (size_t)d + c;
            for (uint32_t i = 0; i < STEP; i++) {
                even[i] = v_fma(x, v_load(row + i * VEC), even[i]);
                odd[i] = v_fma(y, v_load(row + d + i * VEC), odd[i]);
            }
        }
        for (uint32_t i = 0; i < STEP && t < end; i++)
            even[i] = v_fma(v_set1(p[t]), v_load(v + t * (size_t)d + c + i * VEC), even[i]);
        for (uint32_t i = 0; i < STEP; i++) v_store(acc + c + i * VEC, v_add(even[i], odd[i]));
    }
}

INLINE void narrow_d(const struct attn_chunk *c, uint32_t d)
{
    const struct narrow_mem w = narrow_layout(c->mem, d, c->group);
    const struct page_geom *g = c->op->geom;
    const size_t stride = (size_t)ATTN_CHUNK_MAX * PAGE_TOK;
    const float unit = c->op->softcap > 0 ? c->op->scale : c->op->scale * (float)M_LOG2E;
    const size_t v_at = g->type_k == SAC_KV_Q8 ? g->v_scale : g->v;
    for (size_t i = 0; i < (size_t)c->group * d; i++) w.q[i] = c->q[i] * unit;
    for (uint32_t j = 0; j < c->n_page; j++) {
        fetch_ahead(c, j, 0, v_at);
        page_to_f32(w.page, g, &c->page[j], false);
        for (uint32_t h = 0; h < c->group; h++)
            narrow_scores(w.s + h * stride + j * PAGE_TOK, w.q + (size_t)h * d, w.page, d);
    }
    for (uint32_t h = 0; h < c->group; h++) narrow_softmax(c, w.s + h * stride, &c->m[h], &c->l[h]);
    memset(c->acc, 0, (size_t)c->group * d * sizeof(float));
    for (uint32_t j = 0; j < c->n_page; j++) {
        fetch_ahead(c, j, v_at, g->bytes - v_at);
        page_to_f32(w.page, g, &c->page[j], true);
        for (uint32_t h = 0; h < c->group; h++)
            narrow_values(c->acc + (size_t)h * d, w.s + h * stride + j * PAGE_TOK, w.page,
                          c->page[j].begin, c->page[j].end, d);
    }
}

static void narrow(const struct attn_chunk *c)
{
    switch (c->op->geom->head_dim) {
    case 64: narrow_d(c, 64); break;
    case 128: narrow_d(c, 128); break;
    default: narrow_d(c, c->op->geom->head_dim);
    }
}

static const struct attn_kernel kernel = {
    .tile_q = TILE_Q,
    .panel_tok = wide_panel_tok,
    .wide_bytes = wide_bytes,
    .wide_begin = wide_begin,
    .wide_query = wide_query,
    .wide_page = wide_page,
    .wide_panel = wide_panel,
    .wide_fold = wide_fold,
    .wide_sums = wide_sums,
    .wide_save = wide_save,
    .wide_load = wide_load,
    .wide_end = wide_end,
    .narrow_bytes = narrow_bytes,
    .narrow = narrow,
};

static void attn(struct workers *pool, const struct op_attn *op)
{
    attn_execute(pool, op, &kernel);
}

static size_t attn_scratch(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                           uint32_t n_row, uint32_t n_tok_max)
{
    return attn_execute_scratch(&kernel, n_worker, geom, n_head, n_row, n_tok_max);
}

void ops_fill_avx2_attn(struct ops *o)
{
    o->attn = attn;
    o->attn_scratch = attn_scratch;
    attn_fill_avx2_seal(o);
}
