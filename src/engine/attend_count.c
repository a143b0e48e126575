/* attend_count.c: the counters of a layer: how much each run reads, and the outcome of each
 * selection. */
#include "engine/attend.h"

#include "engine/engine.h"
#include "engine/proof.h"

#include <assert.h>

/* Tokens whose keys and values the attention of a run reads, counted once for each tile of 32
 * rows. */
static uint64_t tokens_seen(const struct attn_run *run, uint32_t window)
{
    uint64_t n = 0;
    const uint32_t end = run->pos0 + run->n_row;
    for (uint32_t p = run->pos0; p < end; p = (p / PAGE_TOK + 1) * PAGE_TOK) {
        const uint32_t last =
            (p / PAGE_TOK + 1) * PAGE_TOK < end ? (p / PAGE_TOK + 1) * PAGE_TOK : end;
        const uint32_t first = window && p >= window ? p - window + 1 : 0;
        n += last - first / PAGE_TOK * PAGE_TOK;
    }
    return n;
}

/* The same for a plan: tokens of one KV head, once for each list. */
static uint64_t tokens_planned(const struct attn_run *run, uint32_t n_lane)
{
    const struct attn_plan *p = run->plan;
    const uint32_t end = run->pos0 + run->n_row;
    const uint32_t n_list = ((end - 1) / p->tile_tok - run->pos0 / p->tile_tok + 1) * n_lane;
    uint64_t n = p->tok ? p->tok_ptr[n_list] : 0;
    for (uint32_t i = 0; i < p->range_ptr[n_list]; i++)
        n += (uint64_t)(p->range[i].end - p->range[i].begin) * PAGE_TOK;
    return n;
}

/* The same summed over all KV heads. */
static uint64_t tokens_read(const sac_engine *e, const struct attn_run *run, uint32_t window)
{
    assert(!run->plan || !run->select); /* a run is either prompt or decode */
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    if (run->plan && run->plan->made) return 0; /* prefill_device.c counts it after the step */
    if (run->plan)
        return tokens_planned(run, run->plan->by_head ? e->model->config.n_head : n_kv_head);
    if (!run->select) return tokens_seen(run, window) * n_kv_head;
    return (uint64_t)run->select_ptr[n_kv_head] * PAGE_TOK +
           (run->select_tok ? run->select_tok_ptr[n_kv_head] : 0) +
           (uint64_t)(run->pos0 % PAGE_TOK + 1) * n_kv_head;
}

/* Bytes of a KV head that dense attention reads for a decode row: whole pages, and the own page up
 * to the row. */
static uint64_t bytes_seen(const struct page_geom *g, const struct attn_run *run, uint32_t window)
{
    const uint32_t first = window && run->pos0 >= window ? run->pos0 - window + 1 : 0;
    const uint64_t n_page = run->pos0 / PAGE_TOK - first / PAGE_TOK;
    return n_page * g->bytes + (run->pos0 % PAGE_TOK + 1) * (uint64_t)g->head_dim * 4;
}

static void count_bytes(sac_engine *e, const struct reading *r)
{
    const struct page_geom *g = &e->pool.geom;
    for (uint32_t i = 0; i < r->n_decode && !r->on_device; i++) {
        const struct attn_run *run = &r->run[i];
        sac_reads *t = &e->batch.run[i].reads;
        assert(!run->select || r->lane);
        const uint64_t seen = bytes_seen(g, run, r->window);
        const uint64_t own = (run->pos0 % PAGE_TOK + 1) * (uint64_t)g->head_dim * 4;
        for (uint32_t h = 0; h < g->n_kv_head; h++) {
            const uint64_t read = run->select ? r->lane[i * g->n_kv_head + h].kv_bytes + own : seen;
            t->dense_bytes += seen;
            t->attend_bytes_read += read;
            t->kv_bytes_read += read;
        }
    }
}

static void count_reads(sac_engine *e, const struct reading *r)
{
    const struct page_geom *g = &e->pool.geom;
    for (uint32_t i = r->on_device ? r->n_decode : 0; i < r->n_run; i++) {
        const struct attn_run *run = &r->run[i];
        const uint64_t n_read = tokens_read(e, run, r->window);
        sac_reads *t = &e->batch.run[i].reads;
        if (run->kind != ROW_DECODE) t->kv_bytes_read += n_read * (g->bytes / PAGE_TOK);
        if (run->kind != ROW_DECODE || r->window > 0) continue;
        assert(n_read >= (uint64_t)(run->pos0 % PAGE_TOK + 1) * g->n_kv_head);
        t->n_tok_seen += (uint64_t)(run->pos0 / PAGE_TOK) * PAGE_TOK * g->n_kv_head;
        t->n_tok_read += n_read - (uint64_t)(run->pos0 % PAGE_TOK + 1) * g->n_kv_head;
    }
}

static void count_choices(sac_engine *e, const struct reading *r)
{
    const uint32_t n_lane = r->lane && !r->on_device ? r->n_decode * e->pool.geom.n_kv_head : 0;
    for (uint32_t i = 0; i < n_lane; i++) {
        const struct reading_lane *lane = &r->lane[i];
        sac_reads *t = &e->batch.run[i / e->pool.geom.n_kv_head].reads;
        assert(lane->asked || (lane->dense && lane->n_chosen == 0)); /* no method was called */
        t->n_select += lane->asked;
        t->n_bypass += lane->n_bypass;
        t->n_tok_chosen += lane->n_chosen;
        t->n_select_dense += lane->asked && lane->dense;
        t->n_select_proved += lane->mass_proved > 0;
        t->mass_proved += (double)lane->mass_proved;
        t->n_select_nan += lane->not_finite;
        t->choose_bytes_read += lane->meter.bytes[METER_CHOOSE];
        if (!lane->attended)
            t->choose_bytes_read +=
                lane->meter
                    .bytes[METER_ATTEND]; /* a method has attended, but its result is not used */
        t->build_bytes_read += lane->meter.bytes[METER_BUILD];
    }
}

void attend_count(sac_engine *e, const struct reading *r)
{
    count_reads(e, r);
    count_bytes(e, r);
    count_choices(e, r);
    if (!r->on_device) proof_count(e, r);
}
