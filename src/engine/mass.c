/* mass.c: see the header. Queries are as they were rotated, at their positions; for each segment
 * they are turned to meet its keys. */
#include "engine/mass.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

struct mass {
    const sac_engine *e;
    const struct notes_watch *w;
    uint32_t n_page, layer;
    struct segment_view view[SEGMENT_MAX];
    uint32_t n_view;
    float *turn;  /* [SEGMENT_MAX, n_rot] */
    float *query; /* [n_sample * group, d] turned */
    float *key;   /* [PAGE_TOK, d] */
    float *score; /* [n_sample * group, n_page * PAGE_TOK] */
    float *out;   /* [n_page * PAGE_TOK] */
};

static uint32_t group_of(const struct mass *m)
{
    return m->e->model->config.n_head / m->e->model->config.n_kv_head;
}

/* Queries of one KV head as they meet segment i; n_view: as they are. */
static void turn_queries(const struct mass *m, uint32_t kv_head, uint32_t i)
{
    static const struct segment_view as_it_is = {0};
    const struct config *c = &m->e->model->config;
    const struct segment_view *view = i < m->n_view ? &m->view[i] : &as_it_is;
    const uint32_t group = group_of(m), d = c->head_dim;
    const size_t width = config_q_width(c);
    for (uint32_t s = 0; s < m->w->n_sample; s++)
        for (uint32_t g = 0; g < group; g++)
            segment_turn(m->query + (size_t)(s * group + g) * d,
                         m->w->sample + ((size_t)m->layer * m->w->n_sample + s) * width +
                             (kv_head * group + g) * d,
                         d, view, m->e->shape.rope, 1);
}

static void score_pages(const struct mass *m, uint32_t kv_head)
{
    const struct pool *p = &m->e->pool;
    const uint32_t d = p->geom.head_dim, n_tok = m->n_page * PAGE_TOK;
    const page_id *table = pool_table(p, m->w->seq_i, m->layer) + (size_t)kv_head * p->max_page;
    uint32_t at = UINT32_MAX;
    for (uint32_t page = 0; page < m->n_page; page++) {
        const uint32_t i = segment_of(m->view, m->n_view, page, 0);
        if (i != at) turn_queries(m, kv_head, i);
        at = i;
        page_read(m->key, NULL, &p->geom, pool_page(p, table[page]), PAGE_SEALED, PAGE_TOK);
        m->e->ops.dots(&(struct op_dots){.a = m->query,
                                         .b = m->key,
                                         .a_stride = d,
                                         .b_stride = d,
                                         .n_a = m->w->n_sample * group_of(m),
                                         .n_b = PAGE_TOK,
                                         .width = d,
                                         .out = m->score + (size_t)page * PAGE_TOK,
                                         .out_stride = n_tok});
    }
}

static void add_shares(const struct mass *m)
{
    const uint32_t n_tok = m->n_page * PAGE_TOK;
    const float scale = m->e->model->config.attn_scale;
    for (uint32_t r = 0; r < m->w->n_sample * group_of(m); r++) {
        float *score = m->score + (size_t)r * n_tok, most = -INFINITY;
        double sum = 0;
        for (uint32_t t = 0; t < n_tok; t++) most = fmaxf(most, score[t]);
        for (uint32_t t = 0; t < n_tok; t++)
            sum += (double)(score[t] = expf((score[t] - most) * scale));
        for (uint32_t t = 0; t < n_tok; t++) m->out[t] += (float)((double)score[t] / sum);
    }
}

sac_status mass_read(sac_engine *e, const struct notes_watch *w, uint32_t n_page, float *mass,
                     sac_error *err)
{
    const struct config *c = &e->model->config;
    struct mass m = {.e = e, .w = w, .n_page = n_page, .out = mass};
    const size_t n_row = (size_t)w->n_sample * group_of(&m), n_tok = (size_t)n_page * PAGE_TOK;
    memset(mass, 0, n_tok * sizeof *mass);
    m.turn = mem_alloc((size_t)SEGMENT_MAX * c->rope.n_rot * sizeof *m.turn);
    m.query = mem_alloc(n_row * c->head_dim * sizeof *m.query);
    m.key = mem_alloc((size_t)PAGE_TOK * c->head_dim * sizeof *m.key);
    m.score = mem_alloc(n_row * n_tok * sizeof *m.score);
    const bool ok = m.turn && m.query && m.key && m.score;
    for (m.layer = 0; ok && m.layer < c->n_layer; m.layer++) {
        const bool local = config_layer_is_local(c, m.layer);
        if (local) continue;
        m.n_view = segment_views_from(e, w->seq_i, n_page, local, m.view, m.turn);
        for (uint32_t h = 0; h < c->n_kv_head; h++) {
            score_pages(&m, h);
            add_shares(&m);
        }
    }
    mem_free(m.turn);
    mem_free(m.query);
    mem_free(m.key);
    mem_free(m.score);
    return ok ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "out of memory for what a question reads");
}
