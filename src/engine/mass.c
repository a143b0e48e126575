/* mass.c: see the header.
 *
 * A layer is one item of work, whatever the number of threads, and sums its heads and rows in
 * order. Each key is rotated once, to meet the queries as they are. Of keys in q8 pages only the
 * first two bits per channel are used: they are contiguous and predict the key's share nearly as
 * well. A device computes one layer after the other with a slot of its own (ops/mass.h). */
#include "engine/mass.h"

#include "base/exp.h"
#include "base/half.h"
#include "base/mem.h"
#include "kv/mirror.h"
#include "ops/mass.h"

#include <math.h>
#include <string.h>

struct mass {
    const sac_engine *e;
    const struct mass_job *job;
    struct segment_view view[SEGMENT_MAX];
    uint32_t n_view;
    float *turn;   /* [SEGMENT_MAX, n_rot] */
    float *worker; /* [n_worker][worker_floats] */
    size_t worker_floats;
    float *out; /* [n_layer, n_tok] */
    bool *lost; /* set by threads that could not read a page */
};

static size_t n_tok_of(const struct mass *m)
{
    return (size_t)m->job->n_page * PAGE_TOK;
}

/* Keys [PAGE_TOK, d] of a q8 page, approximated by their first plane. */
static void read_plane(float *k, const struct page_geom *g, const uint8_t *page)
{
    const uint32_t d = g->head_dim, n = d / 4;
    const uint16_t *min = (const uint16_t *)(const void *)(page + g->k_min);
    const uint16_t *step = (const uint16_t *)(const void *)(page + g->k_step);
    const uint8_t *plane = page + g->k_hi2;
    for (uint32_t t = 0; t < PAGE_TOK; t++)
        for (uint32_t c = 0; c < d; c++) {
            const uint32_t code = plane[t * n + c % n] >> 2 * (c / n) & 3;
            k[t * d + c] = f16_to_f32(min[c]) + f16_to_f32(step[c]) * (64.0f * (float)code + 31.5f);
        }
}

static void read_keys(const struct mass *m, uint32_t layer, uint32_t kv_head, float *key)
{
    const struct pool *p = &m->e->pool;
    const struct page_geom *g = &p->geom;
    const struct page_cards cards = pool_cards(p, layer);
    const page_id *table =
        pool_table(p, m->job->watch->seq_i, layer) + (size_t)kv_head * p->max_page;
    for (uint32_t page = 0, i = 0; page < m->job->n_page; page++) {
        if (g->type_k == SAC_KV_Q8)
            read_plane(key, g, cards.base + page_frame_of(cards.of, table[page]) * cards.stride);
        else if (pool_read(p, &table[page], 1, key, NULL, NULL) != SAC_OK)
            __atomic_store_n(m->lost, true, __ATOMIC_RELAXED);
        i = segment_of(m->view, m->n_view, page, i);
        for (uint32_t t = 0; t < PAGE_TOK; t++, key += g->head_dim)
            if (i < m->n_view)
                segment_turn(key, key, g->head_dim, &m->view[i], m->e->shape.rope, -1);
    }
}

/* Loops over whole pages, which the compiler turns into vectors. */
float mass_largest(const float *score, size_t n)
{
    float lane[PAGE_TOK], most = -INFINITY;
    for (uint32_t k = 0; k < PAGE_TOK; k++) lane[k] = -INFINITY;
    for (size_t t = 0; t < n; t += PAGE_TOK)
        for (uint32_t k = 0; k < PAGE_TOK; k++)
            lane[k] = score[t + k] > lane[k] ? score[t + k] : lane[k];
    for (uint32_t k = 0; k < PAGE_TOK; k++) most = lane[k] > most ? lane[k] : most;
    return most;
}

double mass_raise(float *score, size_t n, float most, float scale)
{
    double lane[PAGE_TOK] = {0}, sum = 0;
    for (size_t t = 0; t < n; t += PAGE_TOK) {
        float *e = score + t;
        for (uint32_t k = 0; k < PAGE_TOK; k++) e[k] = exp_fast((e[k] - most) * scale);
        for (uint32_t k = 0; k < PAGE_TOK; k++) lane[k] += (double)e[k];
    }
    for (uint32_t k = 0; k < PAGE_TOK; k++) sum += lane[k];
    return sum;
}

/* Adds the softmax shares of one query head of a row, which sum to `weight`. */
static void add_shares(const struct mass *m, float *out, float *score, double weight)
{
    const float scale = m->e->model->config.attn_scale;
    const float cap = m->e->model->config.attn_softcap;
    const size_t n = n_tok_of(m);
    for (size_t t = 0; t < n && cap > 0; t++)
        score[t] = cap * tanhf(score[t] * scale / cap) / scale;
    const double sum = mass_raise(score, n, mass_largest(score, n), scale);
    const float by = (float)(weight / sum);
    for (size_t t = 0; t < n; t++) out[t] += score[t] * by;
}

static void read_layer(void *arg, uint32_t layer, uint32_t worker_i)
{
    const struct mass *m = arg;
    const struct config *c = &m->e->model->config;
    const struct doc_stats_watch *w = m->job->watch;
    const uint32_t d = c->head_dim, group = c->n_head / c->n_kv_head;
    const size_t n_tok = n_tok_of(m);
    float *key = m->worker + worker_i * m->worker_floats, *score = key + n_tok * d;
    if (layer < m->job->first || layer >= m->job->end || config_layer_is_local(c, layer)) return;
    for (uint32_t h = 0; h < c->n_kv_head; h++) {
        read_keys(m, layer, h, key);
        for (uint32_t s = 0; s < w->n_sample; s++) {
            const float *q = w->sample + ((size_t)layer * w->n_sample + s) * config_q_width(c);
            m->e->ops.dots(&(struct op_dots){.a = q + (size_t)h * group * d,
                                             .b = key,
                                             .a_stride = d,
                                             .b_stride = d,
                                             .n_a = group,
                                             .n_b = (uint32_t)n_tok,
                                             .width = d,
                                             .out = score,
                                             .out_stride = n_tok});
            for (uint32_t g = 0; g < group; g++)
                add_shares(m, m->out + layer * n_tok, score + g * n_tok, 1.0 / (w->n_sample - s));
        }
    }
}

/* ---- On a device ---- */

/* `room`: a layer's part of the scratch. */
static void read_layer_on_device(const struct mass *m, uint32_t layer, float *room)
{
    const sac_engine *e = m->e;
    const struct config *c = &e->model->config;
    const struct doc_stats_watch *w = m->job->watch;
    if (config_layer_is_local(c, layer)) return;
    e->ops.docs.mass(e->workers, &(struct op_mass){.geom = &e->pool.geom,
                                                   .frames = pool_frames(&e->pool, layer),
                                                   .frame = mirror_of(&e->pool, w->seq_i, layer),
                                                   .table_stride = e->pool.max_page,
                                                   .n_page = m->job->n_page,
                                                   .n_row = w->n_sample,
                                                   .n_head = c->n_head,
                                                   .q = w->sample + (size_t)layer * w->n_sample *
                                                                        config_q_width(c),
                                                   .segment = m->view,
                                                   .n_segment = m->n_view,
                                                   .rope = e->shape.rope,
                                                   .scale = c->attn_scale,
                                                   .softcap = c->attn_softcap,
                                                   .spare = room + n_tok_of(m),
                                                   .mass = room});
    backend_down(&e->backend, m->out + layer * n_tok_of(m), room, n_tok_of(m) * sizeof *room);
}

static sac_status read_on_device(sac_engine *e, struct mass *m, sac_error *err)
{
    const size_t n_spare =
        op_mass_spare(m->job->n_page, m->job->watch->n_sample, e->model->config.n_head);
    const size_t bytes = (n_tok_of(m) + n_spare) * sizeof(float);
    float *room = backend_take(&e->backend, bytes);
    if (!room)
        return error_set(err, SAC_ERR_MEMORY, "%s has no %zu MiB for what a question reads",
                         e->backend.name, bytes >> 20);
    mirror_update(&e->pool, m->job->watch->seq_i, m->job->n_page);
    for (uint32_t layer = m->job->first; layer < m->job->end; layer++)
        read_layer_on_device(m, layer, room);
    const sac_status status = backend_wait(&e->backend, err);
    backend_give(&e->backend, room, bytes);
    return status;
}

/* ---- On either ---- */

static sac_status read_here(struct mass *m, sac_error *err)
{
    const sac_engine *e = m->e;
    const struct config *c = &e->model->config;
    m->worker_floats = n_tok_of(m) * (c->head_dim + c->n_head / c->n_kv_head);
    m->worker = mem_alloc(workers_count(e->workers) * m->worker_floats * sizeof *m->worker);
    if (!m->worker)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for what a question reads");
    workers_for(e->workers, c->n_layer, read_layer, m);
    mem_free(m->worker);
    return *m->lost ? tier_explain(e->pool.tier, SAC_ERR_IO, err) : SAC_OK;
}

sac_status mass_read(sac_engine *e, const struct mass_job *job, float *mass, sac_error *err)
{
    const struct config *c = &e->model->config;
    bool lost = false;
    struct mass m = {.e = e, .job = job, .out = mass, .lost = &lost};
    m.turn = mem_alloc((size_t)SEGMENT_MAX * c->rope.n_rot * sizeof *m.turn);
    if (!m.turn) return error_set(err, SAC_ERR_MEMORY, "out of memory for what a question reads");
    memset(mass, 0, c->n_layer * n_tok_of(&m) * sizeof *mass);
    m.n_view = segment_views_from(e, job->watch->seq_i, job->n_page, false, m.view, m.turn);
    const sac_status status = e->backend.is_host ? read_here(&m, err) : read_on_device(e, &m, err);
    mem_free(m.turn);
    return status;
}
