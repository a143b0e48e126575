/* survey_tmpl.h: the survey slot in vectors, one source for AMX, AVX-512 and AVX2 (private).
 *
 * Included once by a file of one instruction set after its vec_*.h and after it has defined
 * QUERY_BYTES (per channel of a packed query) and
 *     pack_query (dst, i, q, d): row i of a block of 16 queries
 *     pack_page (dst, keys, centre, d, nonfinite): PAGE_TOK keys less the centre, checked into
 * `nonfinite` score (out, step, d): out [4][16][16] = start + queries times keys, rows being
 * queries, for both halves of both pages, and what struct survey_step says of another step's scores
 *
 * There are two passes over the pages: the first sums each list's shares over some of the pages;
 * the second computes the masses of all keys, page by page, and selects from them immediately.
 * Nothing of the size of the context is kept except the result. In the second pass a page is packed
 * once for all lists. Scores come out as the bit patterns of their own exponentials: queries are
 * scaled so that an octave is 2^23, `start` holds the exponent's bias less the query's sum, and an
 * integer between two powers of two is a float whose mantissa is linear where 2^x is convex (BIAS
 * makes the mean right, the error is 4 %). A share thus costs a conversion, a maximum with 0 and an
 * addition. The second pass doubles the queries and biases, so that it adds squares at the same
 * cost.
 *
 * Keys are taken relative to one key of the first page, which changes no softmax: what is constant
 * in all keys would hide their differences in 8-bit mantissas. */
#ifndef SAC_OPS_CPU_SURVEY_TMPL_H
#define SAC_OPS_CPU_SURVEY_TMPL_H

#include "base/align.h"
#include "ops/cpu/attn.h"
#include "ops/cpu/survey.h"
#include "ops/cpu/survey_share_tmpl.h"

#include <assert.h>
#include <string.h>

#define LANES  16u           /* keys, and queries, of a block of scores */
#define PARTS  (LANES / VEC) /* vectors of a row of a block */
#define HALVES (PAGE_TOK / LANES)
#define SCORES (2 * LANES * LANES) /* scores of a page and a block of queries */
#define OCTAVE 8388608.0f
#define UNIT   (1.44269504089f * OCTAVE)
#define BIAS   ((127.0f - 0.0575f) * OCTAVE)
#define GROUP  8u /* pages that stay in L1 while all queries are multiplied with them */

_Static_assert(GROUP <= ATTN_PANEL_MAX, "they can be fetched ahead");

struct work {
    const struct op_survey *op;
    uint32_t d, n_block;      /* blocks of 16 queries of a list */
    uint32_t list0, list_end; /* lists to process; a list is a part of a set */
    float least;              /* survey_least */
    size_t block_bytes, page_bytes;
    uint32_t *seed; /* [n_list] */
    uint8_t *q;     /* [n_list][n_block] packed blocks */
    float *start;   /* [n_list][n_block][16][16] */
    float *sum;     /* a query's sum in its row, one partial sum per lane */
    float *k;       /* [PAGE_TOK, d] */
    uint8_t *page;  /* [GROUP] packed pages */
    float *s;       /* scores of two steps: [2][2 pages][SCORES] */
    float *centre;  /* [d] */
    int32_t *limit; /* [SURVEY_PERIOD + PAGE_TOK] */
};

struct group {
    uint32_t n, page[GROUP];
};

static struct work lay_out(const struct op_survey *op, struct attn_range lists, void *room)
{
    const uint32_t d = op->geom->head_dim, n_list = op->n_set * op->n_part;
    struct work w = {.op = op,
                     .d = d,
                     .n_block = op->n_query / LANES,
                     .list0 = lists.begin,
                     .list_end = lists.end,
                     .least = survey_least(op),
                     .block_bytes = LANES * (size_t)d * QUERY_BYTES,
                     .page_bytes = PAGE_TOK * (size_t)d * QUERY_BYTES};
    const size_t n = (size_t)n_list * w.n_block;
    size_t at = 0;
    assert(d % 32 == 0 && d <= HEAD_DIM_MAX && op->n_query % LANES == 0);
    w.seed = align_take(op->scratch, &at, n_list * sizeof *w.seed);
    w.q = align_take(op->scratch, &at, n * w.block_bytes);
    w.start = align_take(op->scratch, &at, n * LANES * LANES * sizeof(float));
    w.sum = align_take(op->scratch, &at, n * LANES * LANES * sizeof(float));
    w.centre = align_take(op->scratch, &at, d * sizeof(float));
    w.limit = align_take(op->scratch, &at, (SURVEY_PERIOD + PAGE_TOK) * sizeof(int32_t));
    assert(at <= ops_survey_scratch(op->n_set, op->n_part, op->n_query, d));
    at = 0;
    w.k = align_take(room, &at, PAGE_TOK * (size_t)d * sizeof(float));
    w.page = align_take(room, &at, GROUP * w.page_bytes);
    w.s = align_take(room, &at, 4 * SCORES * sizeof(float));
    assert(at <= ops_survey_room(op->n_query, d));
    return w;
}

static void read_keys(const struct work *w, uint32_t i)
{
    w->op->ops->keys(&(struct op_keys){.geom = w->op->geom,
                                       .frames = w->op->frames,
                                       .page = w->op->page + i,
                                       .n_page = 1,
                                       .out = w->k});
}

static float dot(const float *a, const float *b, uint32_t d)
{
    vec sum = v_zero();
    for (uint32_t c = 0; c < d; c += VEC) sum = v_fma(v_load(a + c), v_load(b + c), sum);
    return v_sum(sum);
}

/* Packs query i times `unit`, and stores it unpacked in `row`. */
static void pack_scaled(const struct work *w, size_t i, float unit, float *row)
{
    const float *q = w->op->q + i * w->d;
    for (uint32_t c = 0; c < w->d; c += VEC) v_store(row + c, v_mul(v_load(q + c), v_set1(unit)));
    pack_query(w->q + i / LANES * w->block_bytes, (uint32_t)(i % LANES), row, w->d);
}

static void pack_queries(const struct work *w)
{
    const struct op_survey *op = w->op;
    const size_t end = (size_t)w->list_end * op->n_query;
    float row[HEAD_DIM_MAX];
    for (size_t i = (size_t)w->list0 * op->n_query; i < end; i++) {
        pack_scaled(w, i, UNIT, row);
        const float start = BIAS + dot(row, w->centre, w->d) - op->lse[i] * UNIT;
        for (uint32_t l = 0; l < LANES; l += VEC) {
            v_store(w->start + i * LANES + l, v_set1(start));
            v_store(w->sum + i * LANES + l, v_zero());
        }
    }
}

/* The keys of the pages of the next group, to be prefetched little by little while this group is
 * computed: all loads at once would fill the buffers of the core. */
static struct attn_ahead keys_ahead(const struct op_survey *op, uint32_t i, uint32_t n_page)
{
    const struct page_geom *g = op->geom;
    const bool q8 = g->type_k == SAC_KV_Q8;
    const size_t at = q8 ? g->k_min : g->k, bytes = PAGE_TOK * (size_t)g->head_dim * (q8 ? 1 : 2);
    struct attn_ahead a = {.page_lines = (uint32_t)(bytes + 63) / 64};
    for (; a.n_page < GROUP && i < n_page; i++)
        a.page[a.n_page++] = page_frame(g, op->frames, op->page[i]) + at;
    return a;
}

static void pack_keys(const struct work *w, uint32_t page, uint8_t *dst, vec nonfinite[2])
{
    const struct page_geom *g = w->op->geom;
    const uint8_t *k = page_frame(g, w->op->frames, w->op->page[page]) + g->k;
    switch (g->type_k) {
    case SAC_KV_F16:
        pack_page(dst, (struct survey_keys){k, SAC_KV_F16}, w->centre, w->d, nonfinite);
        break;
    case SAC_KV_BF16:
        pack_page(dst, (struct survey_keys){k, SAC_KV_BF16}, w->centre, w->d, nonfinite);
        break;
    case SAC_KV_Q8:
        read_keys(w, page);
        pack_page(dst, (struct survey_keys){(const uint8_t *)w->k, SAC_KV_Q8}, w->centre, w->d,
                  nonfinite);
        break;
    }
}

/* Packs the pages of a group; false: a key is not finite. */
static bool pack_group(const struct work *w, const struct group *g)
{
    vec nonfinite[2] = {v_zero(), v_zero()};
    for (uint32_t i = 0; i < g->n; i++)
        pack_keys(w, g->page[i], w->page + i * w->page_bytes, nonfinite);
    return !v_any_nan(v_add(nonfinite[0], nonfinite[1]));
}

/* Iterates over the steps of a group: for each list, each block of its queries, and each two of the
 * pages that it sees. The second page may be missing. */
struct place {
    uint32_t list, block, page;
    uint32_t n; /* pages of the group that the list sees */
};

static inline bool next_step(struct place *p, const struct work *w, const struct group *g)
{
    if ((p->page += 2) < p->n) return true;
    p->page = 0;
    if (++p->block < w->n_block) return true;
    p->block = 0;
    while (++p->list < w->list_end) {
        const uint32_t n_page = w->op->n_page[p->list / w->op->n_part];
        for (p->n = 0; p->n < g->n && g->page[p->n] < n_page;) p->n++;
        if (p->n) return true;
    }
    return false;
}

/* The place before the first step. */
static inline struct place step_begin(const struct work *w)
{
    return (struct place){.list = w->list0 - 1, .block = w->n_block - 1};
}

/* Computes the scores of a step and meanwhile sums the squares of another step's, unless `last` is
 * NULL. */
static inline void score_step(const struct work *w, const struct place *p, float *out,
                              const float *last, vec *square)
{
    const size_t block = (size_t)p->list * w->n_block + p->block;
    score(out,
          &(struct survey_step){.q = w->q + block * w->block_bytes,
                                .page = w->page + p->page * w->page_bytes,
                                .start = w->start + block * LANES * LANES,
                                .last = last,
                                .square = square},
          w->d);
}

/* ---- Sums ---- */

static inline void add_sums(const struct work *w, const struct place *p, const float *s,
                            const float weight[2])
{
    float *sum = w->sum + ((size_t)p->list * w->n_block + p->block) * LANES * LANES;
    for (uint32_t r = 0; r < LANES * PARTS; r++, s += VEC, sum += VEC) {
        vec all = v_load(sum);
        for (uint32_t i = 0; i < 2; i++) {
            const float *at = s + i * SCORES;
            const vec both = v_add(survey_share(at), survey_share(at + LANES * LANES));
            if (weight[i] > 0) all = v_fma(both, v_set1(weight[i]), all);
        }
        v_store(sum, all);
    }
}

/* Adds the logarithms of the sums to `start` and doubles the queries: from here on scores are
 * squares of shares. False: a sum is not finite. */
static bool end_sums(const struct work *w)
{
    const size_t end = (size_t)w->list_end * w->op->n_query;
    bool finite = true;
    float row[HEAD_DIM_MAX];
    for (size_t i = (size_t)w->list0 * w->op->n_query; i < end; i++) {
        float *start = w->start + i * LANES, sum = 1;
        for (uint32_t l = 0; l < LANES; l += VEC) sum += v_sum(v_load(w->sum + i * LANES + l));
        finite = finite && isfinite(sum) && isfinite(start[0]);
        const vec squared = v_set1(2 * (start[0] - log2f(sum) * OCTAVE) - BIAS);
        for (uint32_t l = 0; l < LANES; l += VEC) v_store(start + l, squared);
        pack_scaled(w, i, 2 * UNIT, row);
    }
    return finite;
}

/* ---- Selection ---- */

/* Selects keys of a page. Branch-free: the outcome is unpredictable, and a misprediction would cost
 * as much as the scores. */
static inline void choose(const struct work *w, uint32_t list, uint32_t page, const vec *square)
{
    const struct op_survey *op = w->op;
    const int32_t *limit = w->limit + survey_place(w->seed[list], page);
    const vec_i least = i_bits(v_set1(w->least));
    vec sum = v_add(square[0], square[1]);
    for (uint32_t i = 2; i < HALVES * PARTS; i++) sum = v_add(sum, square[i]);
    const vec common = v_set1(v_sum(sum) * op->spread / PAGE_TOK);
    const size_t at = (size_t)list * op->n_word + page;
    uint32_t word = 0;
    for (uint32_t i = 0; i < HALVES * PARTS; i++) {
        const vec_i bits = i_bits(v_fma(square[i], v_set1(1 - op->spread), common));
        const vec_i below = i_sra(i_sub(least, bits), SURVEY_SHIFT);
        const vec_i step = i_max(below, i_set1(0));
        word |= m_word(i_lt(step, i_load(limit + i * VEC))) << i * VEC;
        i_store_bytes(op->weight + at * PAGE_TOK + i * VEC, step);
    }
    op->mask[at] = word;
}

static void sum_group(const struct work *w, const struct group *g)
{
    for (struct place p = step_begin(w); next_step(&p, w, g);) {
        const uint32_t n_page = w->op->n_page[p.list / w->op->n_part];
        float weight[2] = {0};
        for (uint32_t i = 0; i < 2 && p.page + i < p.n; i++)
            weight[i] = survey_page_weight(n_page, g->page[p.page + i]);
        score_step(w, &p, w->s, NULL, NULL);
        add_sums(w, &p, w->s, weight);
    }
}

/* Selects keys of a group for all lists. The products of a step overlap with the vector work on the
 * previous step's scores. */
static void survey_group(const struct work *w, const struct group *g, struct attn_ahead *ahead)
{
    const uint32_t n_fetch = ahead->n_page * ahead->page_lines / (w->list_end * w->n_block) + 1;
    struct place next = step_begin(w);
    vec square[GROUP / 2][2 * HALVES * PARTS]; /* both halves of two pages */
    float *s = w->s;
    bool more = next_step(&next, w, g);
    if (more) score_step(w, &next, s, NULL, NULL);
    while (more) {
        const struct place now = next;
        const float *last = s;
        vec *sum = square[now.page / 2];
        s = s == w->s ? w->s + 2 * SCORES : w->s;
        for (uint32_t i = 0; i < 2 * HALVES * PARTS && now.block == 0; i++) sum[i] = v_zero();
        attn_fetch(ahead, n_fetch);
        more = next_step(&next, w, g);
        if (more)
            score_step(w, &next, s, last, sum);
        else
            for (uint32_t i = 0; i < 2 * HALVES; i++)
                survey_sum(sum + i * PARTS, last + i * LANES * LANES);
        for (uint32_t i = 0; i < 2 && now.page + i < now.n && now.block + 1 == w->n_block; i++)
            choose(w, now.list, g->page[now.page + i], sum + i * HALVES * PARTS);
    }
}

/* Whether the sums of any of the lists include the page. */
static bool is_summed(const struct work *w, uint32_t page)
{
    const struct op_survey *op = w->op;
    for (uint32_t s = w->list0 / op->n_part; s <= (w->list_end - 1) / op->n_part; s++)
        if (page < op->n_page[s] && survey_page_weight(op->n_page[s], page) > 0) return true;
    return false;
}

static struct attn_range all_lists(const struct op_survey *op)
{
    return (struct attn_range){0, op->n_set * op->n_part};
}

static void survey_begin(const struct op_survey *op, void *room)
{
    const struct work w = lay_out(op, all_lists(op), room);
    read_keys(&w, 0);
    memcpy(w.centre, w.k + (PAGE_TOK - 1) * (size_t)w.d, w.d * sizeof *w.centre);
    survey_limits(w.limit);
    for (uint32_t i = 0; i < w.list_end; i++)
        w.seed[i] = survey_seed(op, i / op->n_part, i % op->n_part);
}

static bool survey_sums(const struct op_survey *op, struct attn_range lists, void *room)
{
    const struct work w = lay_out(op, lists, room);
    const uint32_t n_page = op->n_page[(lists.end - 1) / op->n_part];
    struct group g = {0};
    bool finite = true;
    pack_queries(&w);
    for (uint32_t i = 0; i < n_page && finite; i++) {
        if (is_summed(&w, i)) g.page[g.n++] = i;
        if (g.n == 0 || (g.n < GROUP && i + 1 < n_page)) continue;
        finite = pack_group(&w, &g);
        sum_group(&w, &g);
        g.n = 0;
    }
    return end_sums(&w) && finite;
}

static bool survey_takes(const struct op_survey *op, struct attn_range pages, void *room)
{
    const struct work w = lay_out(op, all_lists(op), room);
    bool finite = true;
    for (uint32_t i = pages.begin; i < pages.end && finite;) {
        struct group g = {0};
        while (g.n < GROUP && i < pages.end) g.page[g.n++] = i++;
        struct attn_ahead ahead = keys_ahead(op, i, pages.end);
        finite = pack_group(&w, &g);
        survey_group(&w, &g, &ahead);
    }
    return finite;
}

#endif
