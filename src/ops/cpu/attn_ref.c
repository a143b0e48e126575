/* attn_ref.c: attention over KV pages, writing and sealing of pages, in plain C.
 *
 * This file defines what the attention slots compute. The kernels of the ISA files are tested
 * against it: attention within a tolerance, kv_write and seal bit for bit.
 *  - Attention is the textbook form, in f32: all scores of a row, their maximum, exponentials in
 *    ascending position, sum, weighted sum of values, one division. Keys are read by page_read.
 *  - Sealing to q8. K, per channel over the page's tokens: min is the smallest value (an f16
 *    already), step the smallest f16 that is not below (max - min) * (1/255), code the nearest
 *    integer (ties to even) to (k - min) * (1/step), at most 255. V, per block of PAGE_VBLOCK
 *    channels of a token: scale is the smallest f16 not below amax * (1/127), code the nearest
 *    integer to v * (1/scale) within -127..127. A step or scale of 0 has codes 0. If a NaN or an
 *    infinity is among the values, min (scale) is NaN, step 0 and all codes 0: reads give NaN.
 *
 * It does not try to be fast, except that sums are kept in 16 lanes, which a compiler can hold in
 * vectors. */
#include "base/half.h"
#include "ops/cpu/attn.h"
#include "ops/cpu/fill.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define F16_NAN 0x7e00u

/* ---- Attention ---- */

struct ref_worker { /* one worker's part of the scratch */
    float *kv;      /* [PAGE_TOK, head_dim] */
    float *q;       /* [group, head_dim] rotated for a segment */
    float *score;   /* [group, n_tok]: scores, then exponentials */
};

struct ref_row { /* one row, and query heads that read the same tokens */
    const struct op_attn *op;
    const struct attn_run *run;
    uint32_t kv_head, pos;
    uint32_t lane, n_lane, group; /* query heads lane * group .. (lane + 1) * group - 1 */
    const float *q;               /* [group, head_dim] */
    float *out;                   /* [group, head_dim] */
    float *lse;                   /* [group] or NULL */
};

static float dot(const float *a, const float *b, uint32_t n)
{
    float lane[16] = {0};
    for (uint32_t i = 0; i < n; i += 16)
        for (uint32_t j = 0; j < 16; j++) lane[j] += a[i + j] * b[i + j];
    float sum = 0;
    for (uint32_t j = 0; j < 16; j++) sum += lane[j];
    return sum;
}

static uint32_t row_first_visible(const struct ref_row *r)
{
    const uint32_t window = r->op->window;
    return window > 0 && r->pos >= window ? r->pos - window + 1 : 0;
}

/* Iterates over what a row reads: pages, single tokens, and finally its own page. */
struct ref_walk {
    uint32_t i, n;       /* next entry of the page list, and the list's end */
    uint32_t page, end;  /* rest of the current entry */
    uint32_t tok, n_tok; /* next entry of the token list, and its end */
    const uint32_t *select, *select_tok;
    const struct attn_range *range;
    const float *logw;
    bool done;
};

/* Tokens begin .. end - 1 of a page, `logw` added to their scores. */
struct ref_span {
    uint32_t page, begin, end;
    float logw;
};

static struct ref_walk walk_begin(const struct ref_row *r)
{
    const struct attn_run *run = r->run;
    const struct attn_plan *plan = run->plan;
    const uint32_t h = r->kv_head;
    if (plan) {
        assert(plan->tile_tok % PAGE_TOK == 0 && r->op->window == 0);
        const uint32_t tile = r->pos / plan->tile_tok - run->pos0 / plan->tile_tok;
        const uint32_t list = tile * r->n_lane + r->lane;
        struct ref_walk w = {.i = plan->range_ptr[list], .n = plan->range_ptr[list + 1]};
        w.range = plan->range;
        w.select_tok = plan->tok;
        w.logw = plan->tok_logw;
        if (plan->tok) w.tok = plan->tok_ptr[list], w.n_tok = plan->tok_ptr[list + 1];
        return w;
    }
    struct ref_walk w = {.select = run->select, .select_tok = run->select_tok};
    if (run->attended && run->attended[h]) return w; /* only the own page */
    if (!run->select) {
        w.end = r->pos / PAGE_TOK;
        return w;
    }
    w.i = run->select_ptr[h];
    w.n = run->select_ptr[h + 1];
    w.logw = run->select_logw;
    if (run->select_tok) w.tok = run->select_tok_ptr[h], w.n_tok = run->select_tok_ptr[h + 1];
    return w;
}

/* Finds the next piece, which may be empty; false at the end. */
static bool walk_next(const struct ref_row *r, struct ref_walk *w, struct ref_span *out)
{
    const uint32_t own = r->pos / PAGE_TOK, first = row_first_visible(r);
    while (w->page >= w->end && w->i < w->n) {
        w->page = w->range ? w->range[w->i].begin : w->select[w->i];
        w->end = w->range ? w->range[w->i].end : w->page + 1;
        w->i++;
        if (w->end > own) w->end = own;
    }
    *out = (struct ref_span){.page = own, .end = r->pos % PAGE_TOK + 1};
    if (w->page < w->end) {
        *out = (struct ref_span){.page = w->page++, .end = PAGE_TOK};
    } else if (w->tok < w->n_tok) {
        const uint32_t tok = w->select_tok[w->tok];
        assert(tok / PAGE_TOK < own);
        *out = (struct ref_span){.page = tok / PAGE_TOK,
                                 .begin = tok % PAGE_TOK,
                                 .end = tok % PAGE_TOK + 1,
                                 .logw = w->logw ? w->logw[w->tok] : 0};
        w->tok++;
    } else {
        if (w->done) return false;
        w->done = true;
    }
    const uint32_t at = out->page * PAGE_TOK;
    const uint32_t hidden = first <= at ? 0 : first - at;
    if (hidden > out->begin) out->begin = hidden < out->end ? hidden : out->end;
    return true;
}

static void read_page(const struct ref_row *r, uint32_t page, float *k, float *v)
{
    const struct page_geom *g = r->op->geom;
    if (page == r->pos / PAGE_TOK) {
        page_read(k, v, g, attn_own_page(r->run, g, r->pos, r->kv_head), PAGE_TAIL,
                  r->pos % PAGE_TOK + 1);
        return;
    }
    const page_id id = r->run->table[r->kv_head * r->run->table_stride + page];
    const struct attn_pager *pager = r->op->pager;
    if (pager && !pager->take(pager->user, &id, 1)) {
        memset(k ? k : v, 0, (size_t)PAGE_TOK * g->head_dim * sizeof(float));
        return;
    }
    page_read(k, v, g, page_frame(g, r->op->frames, id), PAGE_SEALED, PAGE_TOK);
    if (pager) pager->give(pager->user, &id, 1);
}

static float attn_score(const struct op_attn *op, float dot_qk)
{
    const float score = dot_qk * op->scale;
    return op->softcap > 0 ? op->softcap * tanhf(score / op->softcap) : score;
}

/* The queries, rotated for the segment that contains a page. */
static const float *rotate_queries(const struct ref_row *r, const struct ref_worker *w,
                                   uint32_t page)
{
    const uint32_t d = r->op->geom->head_dim;
    const uint32_t i = segment_of(r->run->segment, r->run->n_segment, page, 0);
    if (i == r->run->n_segment) return r->q;
    for (uint32_t g = 0; g < r->group; g++)
        segment_turn(w->q + (size_t)g * d, r->q + (size_t)g * d, d, &r->run->segment[i],
                     r->op->rope, 1);
    return w->q;
}

/* Computes the scores of everything the row reads; returns their number. */
static uint32_t row_scores(const struct ref_row *r, const struct ref_worker *w, size_t stride)
{
    const uint32_t d = r->op->geom->head_dim, group = r->group;
    uint32_t n = 0, have = UINT32_MAX;
    const float *q = r->q;
    struct ref_walk walk = walk_begin(r);
    for (struct ref_span span; walk_next(r, &walk, &span);) {
        if (span.begin == span.end) continue;
        if (have != span.page) read_page(r, span.page, w->kv, NULL);
        if (have != span.page) q = rotate_queries(r, w, span.page);
        have = span.page;
        for (uint32_t t = span.begin; t < span.end; t++, n++)
            for (uint32_t g = 0; g < group; g++)
                w->score[g * stride + n] =
                    attn_score(r->op, dot(q + (size_t)g * d, w->kv + (size_t)t * d, d)) + span.logw;
    }
    return n;
}

/* Replaces scores by exp(score - maximum); returns their sum. */
static float softmax_weights(float *score, uint32_t n, float *out_max)
{
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (score[i] > max) max = score[i];
    for (uint32_t i = 0; i < n; i++) {
        score[i] = expf(score[i] - max);
        sum += score[i];
    }
    *out_max = max;
    return sum;
}

/* Sets the scores of groups with too little weight to -infinity (struct attn_plan.skip). The last
 * n_own scores belong to the own page. Returns the number of scores it has set. */
static uint32_t skip_groups(float *score, uint32_t n, uint32_t n_own, float skip)
{
    double max = -INFINITY, sum = 0;
    uint32_t n_out = 0;
    for (uint32_t i = 0, end; i < n - n_own; i = end) {
        end = i + PAGE_TOK < n - n_own ? i + PAGE_TOK : n - n_own;
        double top = max, part = 0;
        for (uint32_t j = i; j < end; j++) top = fmax(top, (double)score[j]);
        for (uint32_t j = i; j < end; j++) part += exp((double)score[j] - top);
        sum *= exp(max - top);
        max = top;
        if (!(part < (double)skip * sum)) {
            sum += part;
            continue;
        }
        for (uint32_t j = i; j < end; j++) score[j] = -INFINITY;
        n_out += end - i;
    }
    return n_out;
}

static void row_values(const struct ref_row *r, const struct ref_worker *w, size_t stride)
{
    const uint32_t d = r->op->geom->head_dim, group = r->group;
    memset(r->out, 0, (size_t)group * d * sizeof(float));
    uint32_t n = 0, have = UINT32_MAX;
    struct ref_walk walk = walk_begin(r);
    for (struct ref_span span; walk_next(r, &walk, &span);) {
        if (span.begin == span.end) continue;
        if (have != span.page) read_page(r, span.page, NULL, w->kv);
        have = span.page;
        for (uint32_t t = span.begin; t < span.end; t++, n++)
            for (uint32_t g = 0; g < group; g++) {
                const float weight = w->score[g * stride + n], *v = w->kv + (size_t)t * d;
                float *out = r->out + (size_t)g * d;
                for (uint32_t c = 0; c < d; c++) out[c] += weight * v[c];
            }
    }
}

/* Returns the number of keys that were skipped, over all heads. */
static uint32_t attend_row(const struct ref_row *r, const struct ref_worker *w)
{
    const uint32_t d = r->op->geom->head_dim, group = r->group;
    const size_t stride = (size_t)r->pos + 1;
    const uint32_t n = row_scores(r, w, stride);
    assert(n > 0 && n <= stride);
    const float skip = r->run->plan ? r->run->plan->skip : 0;
    uint32_t n_out = 0;
    float sum[256];
    assert(group <= 256);
    for (uint32_t g = 0; g < group; g++) {
        float max;
        if (skip > 0) n_out += skip_groups(w->score + g * stride, n, r->pos % PAGE_TOK + 1, skip);
        sum[g] = softmax_weights(w->score + g * stride, n, &max);
        if (r->lse) r->lse[g] = max + logf(sum[g]);
    }
    row_values(r, w, stride);
    for (uint32_t g = 0; g < group; g++)
        for (uint32_t c = 0; c < d; c++) r->out[(size_t)g * d + c] /= sum[g];
    return n_out;
}

static size_t worker_floats(const struct page_geom *g, uint32_t n_head, size_t n_tok)
{
    const size_t page = (size_t)PAGE_TOK * g->head_dim, group = n_head / g->n_kv_head;
    return (page + group * g->head_dim + group * n_tok + 15) & ~(size_t)15;
}

static size_t ref_attn_scratch(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                               uint32_t n_row, uint32_t n_tok_max)
{
    (void)n_row; /* rows share the workers' scores */
    return n_worker * worker_floats(geom, n_head, n_tok_max) * sizeof(float);
}

/* Number of items per row: groups of query heads that read the same lists. */
static uint32_t lane_count(const struct op_attn *op, const struct attn_run *run)
{
    return run->plan && run->plan->by_head ? op->n_head : op->geom->n_kv_head;
}

struct ref_call {
    const struct op_attn *op;
    const struct attn_run *run;
    size_t worker_floats;
};

static void ref_attn_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct ref_call *call = arg;
    const struct op_attn *op = call->op;
    const struct page_geom *g = op->geom;
    const uint32_t n_lane = lane_count(op, call->run), group = op->n_head / n_lane;
    const uint32_t row_i = item_i / n_lane, lane = item_i % n_lane;
    const uint32_t row = call->run->row0 + row_i;
    const size_t at = (size_t)lane * group * g->head_dim;
    float *base = (float *)op->scratch + worker_i * call->worker_floats;
    float *q = base + (size_t)PAGE_TOK * g->head_dim;
    const struct ref_worker w = {
        .kv = base, .q = q, .score = q + op->n_head / g->n_kv_head * (size_t)g->head_dim};
    const struct ref_row r = {
        .op = op,
        .run = call->run,
        .kv_head = lane * group / (op->n_head / g->n_kv_head),
        .lane = lane,
        .n_lane = n_lane,
        .group = group,
        .pos = call->run->pos0 + row_i,
        .q = op->q + row * op->q_stride + at,
        .out = op->out + row * op->out_stride + at,
        .lse = op->lse ? op->lse + (size_t)row * op->n_head + (size_t)lane * group : NULL,
    };
    const uint32_t n_out = attend_row(&r, &w);
    if (op->n_skip) op->n_skip[worker_i] += n_out;
}

static void ref_attn(struct workers *pool, const struct op_attn *op)
{
    assert(op->n_head % op->geom->n_kv_head == 0 && op->geom->head_dim % 32 == 0);
    for (uint32_t i = 0; i < op->n_run; i++) {
        const struct attn_run *run = &op->run[i];
        const size_t n_tok = (size_t)run->pos0 + run->n_row;
        struct ref_call call = {
            .op = op, .run = run, .worker_floats = worker_floats(op->geom, op->n_head, n_tok)};
        assert(workers_count(pool) * call.worker_floats * sizeof(float) <= op->scratch_bytes);
        workers_for(pool, run->n_row * lane_count(op, run), ref_attn_item, &call);
    }
}

/* ---- Writing ---- */

static void write_half(uint16_t *dst, sac_kv_type type, const float *src, uint32_t n)
{
    if (type == SAC_KV_BF16)
        for (uint32_t i = 0; i < n; i++) dst[i] = f32_to_bf16(src[i]);
    else
        for (uint32_t i = 0; i < n; i++) dst[i] = f32_to_f16(src[i]);
}

static void ref_kv_write_row(void *arg, uint32_t row_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct op_kv_write *op = arg;
    const struct page_geom *g = op->geom;
    const struct attn_run *run = op->run;
    const uint32_t d = g->head_dim, pos = run->pos0 + row_i;
    const size_t tok = pos % PAGE_TOK;
    const size_t src = (size_t)(run->row0 + row_i) * op->kv_stride;
    uint8_t *page = attn_own_page(run, g, pos, 0);
    for (uint32_t h = 0; h < g->n_kv_head; h++, page += g->tail_bytes) {
        uint16_t *k = (uint16_t *)(void *)page + tok * d;
        uint16_t *v = (uint16_t *)(void *)(page + g->tail_v) + tok * d;
        write_half(k, g->type_k, op->k + src + (size_t)h * d, d);
        write_half(v, g->type_v, op->v + src + (size_t)h * d, d);
    }
}

static void ref_kv_write(struct workers *pool, const struct op_kv_write *op)
{
    for (uint32_t i = 0; i < op->n_run; i++) {
        struct op_kv_write one = *op;
        one.run = &op->run[i];
        workers_for(pool, one.run->n_row, ref_kv_write_row, &one);
    }
}

/* ---- Sealing ---- */

/* The smallest f16 >= f, for finite f >= 0 within the range of f16. */
static uint16_t f16_not_below(float f)
{
    const uint16_t near = f32_to_f16(f);
    return f16_to_f32(near) < f ? (uint16_t)(near + 1) : near;
}

static bool f16_finite(uint16_t h)
{
    return (h & 0x7c00u) != 0x7c00u;
}

static uint32_t round_code(float x, uint32_t max)
{
    const float r = rintf(x);
    return r < (float)max ? (uint32_t)r : max;
}

static void put_code(uint8_t *hi2, uint8_t *low, uint32_t d, uint32_t c, uint32_t code)
{
    const uint32_t quarter = d / 4, half = d / 2;
    const uint32_t shift2 = 2 * (c / quarter), shift4 = 4 * (c / half);
    uint8_t *mid = &low[c % quarter], *lo = &low[quarter + c % half];
    hi2[c % quarter] = (uint8_t)(hi2[c % quarter] | code >> 6 << shift2);
    *mid = (uint8_t)(*mid | (code >> 4 & 3u) << shift2);
    *lo = (uint8_t)(*lo | (code & 15u) << shift4);
}

static void seal_k_channel(const struct page_geom *g, const uint16_t *k, uint8_t *page, uint32_t c)
{
    const uint32_t d = g->head_dim;
    uint16_t *out_min = (uint16_t *)(void *)(page + g->k_min) + c;
    uint16_t *out_step = (uint16_t *)(void *)(page + g->k_step) + c;
    float x[PAGE_TOK], min = INFINITY, max = -INFINITY;
    bool finite = true;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        finite &= f16_finite(k[t * d + c]);
        x[t] = f16_to_f32(k[t * d + c]);
        if (x[t] < min) min = x[t];
        if (x[t] > max) max = x[t];
    }
    /* Adding 0 turns -0 into +0, so that the result does not depend on which zero came first. */
    *out_min = finite ? f32_to_f16(min + 0.0f) : F16_NAN;
    *out_step = finite ? f16_not_below((max - min) * (1.0f / 255.0f)) : 0;
    const float step = f16_to_f32(*out_step), inv = step > 0 ? 1.0f / step : 0;
    if (!finite) return; /* codes stay 0 */
    for (uint32_t t = 0; t < PAGE_TOK; t++)
        put_code(page + g->k_hi2 + t * (d / 4), page + g->k_low + t * (d * 3 / 4), d, c,
                 round_code((x[t] - min) * inv, 255));
}

static void seal_v_block(const uint16_t *v, uint16_t *out_scale, int8_t *out)
{
    float x[PAGE_VBLOCK], amax = 0;
    bool finite = true;
    for (uint32_t i = 0; i < PAGE_VBLOCK; i++) {
        finite &= f16_finite(v[i]);
        x[i] = f16_to_f32(v[i]);
        if (fabsf(x[i]) > amax) amax = fabsf(x[i]);
    }
    *out_scale = finite ? f16_not_below(amax * (1.0f / 127.0f)) : F16_NAN;
    const float scale = f16_to_f32(*out_scale), inv = scale > 0 ? 1.0f / scale : 0;
    for (uint32_t i = 0; i < PAGE_VBLOCK; i++) {
        const int32_t mag = finite ? (int32_t)round_code(fabsf(x[i]) * inv, 127) : 0;
        out[i] = (int8_t)(x[i] < 0 ? -mag : mag);
    }
}

static void seal_q8(const struct page_geom *g, const uint8_t *tail, uint8_t *page)
{
    const uint32_t d = g->head_dim;
    const uint16_t *k = (const uint16_t *)(const void *)tail;
    const uint16_t *v = (const uint16_t *)(const void *)(tail + g->tail_v);
    memset(page, 0, g->bytes);
    for (uint32_t c = 0; c < d; c++) seal_k_channel(g, k, page, c);
    uint16_t *scale = (uint16_t *)(void *)(page + g->v_scale);
    int8_t *code = (int8_t *)(page + g->v);
    for (size_t i = 0; i < PAGE_TOK * d / PAGE_VBLOCK; i++)
        seal_v_block(v + i * PAGE_VBLOCK, scale + i, code + i * PAGE_VBLOCK);
}

static void ref_seal(struct workers *pool, const struct op_seal *op)
{
    attn_seal(pool, op, seal_q8);
}

void ops_fill_ref_attn(struct ops *o)
{
    o->attn = ref_attn;
    o->kv_write = ref_kv_write;
    o->seal = ref_seal;
    o->attn_scratch = ref_attn_scratch;
}
