/* doc_stats.c: see the header.
 *
 * While a document is computed, the queries of its last two blocks are summed, and those of at most
 * N_SAMPLE evenly spaced rows are kept. When its pages are complete, the keys are read from them;
 * the attention of the kept rows tells to which tokens later rows attend.
 *
 * Invariant: statistics depend on the document alone, not on chunks or threads. */
#include "engine/doc_stats.h"

#include "base/mem.h"
#include "engine/layer.h"
#include "engine/mass.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define N_SAMPLE 256u

static size_t query_width(const sac_engine *e)
{
    return config_q_width(&e->model->config);
}

static size_t key_width(const sac_engine *e)
{
    return config_kv_width(&e->model->config);
}

static uint32_t block_count(uint32_t n_tok)
{
    return (n_tok + CONTEXT_BLOCK - 1) / CONTEXT_BLOCK;
}

static size_t layer_floats(const sac_engine *e, uint32_t n_tok)
{
    const size_t n_block = block_count(n_tok);
    return query_width(e) + (n_block + 1) * key_width(e) + 3 * n_block;
}

size_t doc_stats_floats(const sac_engine *e, uint32_t n_tok)
{
    return layer_floats(e, n_tok) * e->pool.geom.n_layer;
}

struct context_stats doc_stats_layer(const sac_engine *e, const struct doc_stats *n, uint32_t layer)
{
    const float *at = n->value + layer_floats(e, n->n_tok) * layer;
    const float *key = at + query_width(e), *anchor = key + n->n_block * key_width(e);
    const float *mass = anchor + key_width(e);
    return (struct context_stats){.query = at,
                                  .key = key,
                                  .anchor = anchor,
                                  .mass = mass,
                                  .slope = mass + n->n_block,
                                  .token = mass + 2 * n->n_block};
}

/* ---- While the document is computed ---- */

/* Undoes the rotation of the heads of x [n_head, d], and the factor of cosines and sines. */
static void unturn(const sac_engine *e, float *x, uint32_t n_head, const float *cosine,
                   const float *sine)
{
    const uint32_t d = e->pool.geom.head_dim, half = e->shape.rope.n_rot / 2;
    const uint32_t step = e->shape.rope.interleaved ? 2 : 1;
    const uint32_t other = e->shape.rope.interleaved ? 1 : half;
    for (uint32_t h = 0; h < n_head; h++, x += d)
        for (uint32_t i = 0; i < half; i++) {
            const float a = x[i * step], b = x[i * step + other];
            const float size = cosine[i] * cosine[i] + sine[i] * sine[i];
            x[i * step] = (a * cosine[i] + b * sine[i]) / size;
            x[i * step + other] = (b * cosine[i] - a * sine[i]) / size;
        }
}

static void add_query(const sac_engine *e, uint32_t row, uint32_t layer)
{
    const size_t n = query_width(e), n_angle = e->shape.rope.n_rot / 2;
    const bool local = config_layer_is_local(&e->model->config, layer);
    float *sum = e->watch->query + layer * n, query[HEAD_DIM_MAX];
    const float *q = e->scratch.qkv_seen + row * config_qkv_width(&e->model->config);
    const uint32_t d = e->pool.geom.head_dim;
    for (uint32_t h = 0; h < n / d; h++) {
        memcpy(query, q + h * d, d * sizeof *query);
        unturn(e, query, 1, e->scratch.cos_in[local] + row * n_angle,
               e->scratch.sin_in[local] + row * n_angle);
        for (uint32_t i = 0; i < d; i++) sum[h * d + i] += query[i];
    }
}

void doc_stats_see(sac_engine *e, uint32_t layer)
{
    struct doc_stats_watch *w = e->watch;
    const size_t n = query_width(e), stride = config_qkv_width(&e->model->config);
    if (w->status == SAC_OK) w->status = layer_look(e, &w->why);
    for (uint32_t r = 0; r < e->batch.n_row; r++) {
        const uint32_t pos = e->batch.pos[r];
        if (e->batch.seq_i[r] != w->seq_i) continue;
        if (pos >= w->begin && pos < w->end) add_query(e, r, layer);
        if (!w->every || pos < w->first || (pos - w->first) % w->every) continue;
        const size_t i = (pos - w->first) / w->every;
        if (i < w->n_sample)
            memcpy(w->sample + ((size_t)layer * w->n_sample + i) * n,
                   e->scratch.qkv_seen + r * stride, n * sizeof(float));
    }
}

sac_status doc_stats_check(const struct doc_stats_watch *w, sac_error *err)
{
    return w->status == SAC_OK ? SAC_OK : error_set(err, w->status, "%s", w->why.msg);
}

sac_status doc_stats_begin(struct doc_stats_watch *w, sac_engine *e, uint32_t seq_i,
                           uint32_t n_head, uint32_t n_tok, sac_error *err)
{
    const size_t n_layer = e->pool.geom.n_layer, n = query_width(e);
    const uint32_t n_last = 2 * CONTEXT_BLOCK - block_count(n_tok) * CONTEXT_BLOCK + n_tok;
    *w = (struct doc_stats_watch){.seq_i = seq_i,
                                  .begin = n_head + (n_tok > n_last ? n_tok - n_last : 0),
                                  .end = n_head + n_tok,
                                  .first = n_head,
                                  .every = (n_tok + N_SAMPLE - 1) / N_SAMPLE};
    w->n_sample = (n_tok + w->every - 1) / w->every;
    w->query = mem_calloc(n_layer * n, sizeof *w->query);
    w->sample = mem_calloc(n_layer * w->n_sample * n, sizeof *w->sample);
    if (!w->query || !w->sample)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the statistics of %u tokens",
                         n_tok);
    e->watch = w;
    return SAC_OK;
}

void doc_stats_end(struct doc_stats_watch *w, sac_engine *e)
{
    e->watch = NULL;
    mem_free(w->query);
    mem_free(w->sample);
}

/* ---- When its pages are complete ---- */

/* Scratch and arguments for one layer's statistics. */
struct making {
    sac_engine *e;
    const struct doc_stats_watch *w;
    uint32_t layer, kv_head, n_tok, n_block;
    struct context_stats stats;
    /* [2, n_tok, n_rot / 2] of the text's positions, for layers with full attention and for layers
     * with a window; computed once, because libm is slow. */
    float *cosine, *sine;
    float *key;  /* [n_pos, d] of one KV head, all positions of the sequence */
    float *look; /* [n_sample, n_tok] attention probabilities, mean over heads */
    float *row;  /* [n_worker][group, n_pos] */
};

static sac_status read_keys(const struct making *m, uint32_t kv_head, sac_error *err)
{
    const struct pool *p = &m->e->pool;
    const page_id *table = pool_table(p, m->w->seq_i, m->layer) + (size_t)kv_head * p->max_page;
    return pool_read(p, table, m->w->end / PAGE_TOK, m->key, NULL, err);
}

/* Adds the attention of a kept row's query heads to the keys of their KV head to `look`. */
static void look_row(void *arg, uint32_t s, uint32_t worker_i)
{
    const struct making *m = arg;
    const struct config *c = &m->e->model->config;
    const uint32_t d = c->head_dim, group = c->n_head / c->n_kv_head, first = m->w->first;
    const uint32_t n = first + s * m->w->every + 1;
    const uint32_t n_whole =
        (n + PAGE_TOK - 1) / PAGE_TOK * PAGE_TOK; /* keys of the sequence, in whole pages */
    const float *q = m->w->sample + ((size_t)m->layer * m->w->n_sample + s) * query_width(m->e);
    float *row = m->row + (size_t)worker_i * group * m->w->end;
    float *look = m->look + (size_t)s * m->n_tok;
    m->e->ops.dots(&(struct op_dots){.a = q + (size_t)m->kv_head * group * d,
                                     .b = m->key,
                                     .a_stride = d,
                                     .b_stride = d,
                                     .n_a = group,
                                     .n_b = n,
                                     .width = d,
                                     .out = row,
                                     .out_stride = m->w->end});
    for (uint32_t g = 0; g < group; g++, row += m->w->end) {
        for (uint32_t j = n; j < n_whole; j++) row[j] = -INFINITY;
        const double sum = mass_raise(row, n_whole, mass_largest(row, n_whole), c->attn_scale);
        const float by = (float)(1 / (sum * c->n_head));
        for (uint32_t j = first; j < n; j++) look[j - first] += row[j] * by;
    }
}

/* Averages a block's keys before rotation. */
static void note_key(void *arg, uint32_t block, uint32_t worker_i)
{
    const struct making *m = arg;
    const sac_engine *e = m->e;
    const uint32_t d = e->pool.geom.head_dim, half = e->shape.rope.n_rot / 2;
    const uint32_t begin = block * CONTEXT_BLOCK;
    const uint32_t end = begin + CONTEXT_BLOCK < m->n_tok ? begin + CONTEXT_BLOCK : m->n_tok;
    const size_t table = config_layer_is_local(&e->model->config, m->layer) ? m->n_tok : 0;
    float *mean = (float *)m->stats.key + block * key_width(e) + m->kv_head * d;
    (void)worker_i;
    for (uint32_t t = begin; t < end; t++) {
        const float *cosine = m->cosine + (table + t) * half, *sine = m->sine + (table + t) * half;
        float *k = m->key + (size_t)(m->w->first + t) * d;
        unturn(e, k, 1, cosine, sine);
        for (uint32_t i = 0; i < d; i++) mean[i] += k[i];
    }
    for (uint32_t i = 0; i < d; i++) mean[i] /= (float)(end - begin);
}

/* The mean of the keys of the first and the last two blocks, computed by note_key. */
static void note_anchor(const struct making *m)
{
    const uint32_t d = m->e->pool.geom.head_dim;
    float *anchor = (float *)m->stats.anchor + m->kv_head * d;
    uint32_t n = 0;
    for (uint32_t t = 0; t < m->n_tok; t++) {
        const uint32_t b = t / CONTEXT_BLOCK;
        if (b > 0 && b + 2 < m->n_block) continue;
        const float *k = m->key + (size_t)(m->w->first + t) * d;
        for (uint32_t i = 0; i < d; i++) anchor[i] += k[i];
        n++;
    }
    for (uint32_t i = 0; i < d; i++) anchor[i] /= (float)n;
}

/* The exponent a of the power law c x^-a: the slope of log y = c - a log x, fitted by least squares
 * over the kept rows from `from` on. */
static double slope_of(const struct making *m, uint32_t from, uint32_t tok)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    for (uint32_t s = from; s < m->w->n_sample; s++) {
        const double log_x = log((double)(s * m->w->every - tok));
        const double log_y = log(fmax((double)m->look[(size_t)s * m->n_tok + tok], 1e-12));
        n++;
        x += log_x;
        y += log_y;
        xx += log_x * log_x;
        xy += log_x * log_y;
    }
    const double spread = n * xx - x * x;
    return spread > 0 ? -(n * xy - x * y) / spread : 0;
}

/* Finds a block's representative: the token to which later rows attend most. */
static void note_block(void *arg, uint32_t block, uint32_t worker_i)
{
    const struct making *m = arg;
    const uint32_t begin = block * CONTEXT_BLOCK;
    const uint32_t end = begin + CONTEXT_BLOCK < m->n_tok ? begin + CONTEXT_BLOCK : m->n_tok;
    const uint32_t from = (end + m->w->every - 1) / m->w->every, n_row = m->w->n_sample;
    double sum[CONTEXT_BLOCK] = {0}, best = -1;
    uint32_t token = begin;
    (void)worker_i;
    for (uint32_t s = from; s < n_row; s++)
        for (uint32_t t = begin; t < end; t++)
            sum[t - begin] += (double)m->look[(size_t)s * m->n_tok + t];
    for (uint32_t t = begin; t < end && from < n_row; t++) {
        if (!(sum[t - begin] > best)) continue;
        best = sum[t - begin];
        token = t;
    }
    ((float *)m->stats.mass)[block] = best > 0 ? (float)(best / (n_row - from)) : 0;
    ((float *)m->stats.slope)[block] = (float)slope_of(m, from, token);
    ((float *)m->stats.token)[block] = (float)token;
}

static sac_status make_layer(struct making *m, struct doc_stats *stats, uint32_t layer,
                             sac_error *err)
{
    const sac_engine *e = m->e;
    const size_t n = query_width(e);
    m->layer = layer;
    m->stats = doc_stats_layer(e, stats, layer);
    memset(m->look, 0, (size_t)m->w->n_sample * m->n_tok * sizeof *m->look);
    for (size_t i = 0; i < n; i++)
        ((float *)m->stats.query)[i] =
            m->w->query[layer * n + i] / (float)(m->w->end - m->w->begin);
    for (uint32_t h = 0; h < e->pool.geom.n_kv_head; h++) {
        m->kv_head = h;
        TRY(read_keys(m, h, err));
        workers_for(e->workers, m->w->n_sample, look_row, m);
        workers_for(e->workers, m->n_block, note_key, m);
        note_anchor(m);
    }
    workers_for(e->workers, m->n_block, note_block, m);
    return SAC_OK;
}

static void fill_angles(const struct making *m)
{
    const sac_engine *e = m->e;
    const size_t half = e->shape.rope.n_rot / 2;
    for (int local = 0; local < (e->model->config.window ? 2 : 1); local++)
        for (uint32_t t = 0; t < m->n_tok; t++) {
            const uint32_t pos = m->w->first + t;
            const size_t at = ((size_t)local * m->n_tok + t) * half;
            rope_table_fill(&e->rope[local], m->cosine + at, m->sine + at, &pos, 1);
        }
}

/* Allocates the scratch of a document, one block of floats. */
static float *take_scratch(struct making *m)
{
    const sac_engine *e = m->e;
    const size_t n_pos = m->w->end, n_angle = (size_t)m->n_tok * e->shape.rope.n_rot;
    const size_t n_key = n_pos * e->pool.geom.head_dim, n_look = (size_t)m->w->n_sample * m->n_tok;
    const size_t n_row = (size_t)e->model->config.n_head / e->pool.geom.n_kv_head * n_pos;
    float *all =
        mem_alloc((2 * n_angle + n_key + n_look + workers_count(e->workers) * n_row) * sizeof *all);
    if (!all) return NULL;
    m->cosine = all;
    m->sine = all + n_angle;
    m->key = m->sine + n_angle;
    m->look = m->key + n_key;
    m->row = m->look + n_look;
    return all;
}

sac_status doc_stats_make(struct doc_stats_watch *w, sac_engine *e, sac_error *err)
{
    struct making m = {.e = e, .w = w, .n_tok = w->end - w->first};
    TRY(doc_stats_check(w, err));
    const size_t n_float = doc_stats_floats(e, m.n_tok);
    struct doc_stats *stats = mem_calloc(1, sizeof *stats + n_float * sizeof(float));
    float *scratch = take_scratch(&m);
    m.n_block = block_count(m.n_tok);
    sac_status status = SAC_OK;
    if (!stats || !scratch) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for the statistics of %u tokens",
                           m.n_tok);
    } else {
        *stats = (struct doc_stats){.n_tok = m.n_tok, .n_block = m.n_block, .n_float = n_float};
        fill_angles(&m);
    }
    for (uint32_t l = 0; l < e->pool.geom.n_layer && status == SAC_OK; l++)
        status = make_layer(&m, stats, l, err);
    if (status == SAC_OK)
        e->seqs[w->seq_i].stats = stats;
    else
        mem_free(stats);
    mem_free(scratch);
    return status;
}
