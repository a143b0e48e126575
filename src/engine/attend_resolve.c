/* attend_resolve.c: a reading names pages by id; this step finds the frames that hold their bytes.
 * Kernels look a page's frame up in the pool's table and never compute an address from an id.
 *
 * Without a tier below the pool, all pages are in memory. With one, the pages that runs read are
 * fetched and held while attention reads them. Runs are taken in groups that fit together, which
 * does not change results because a run's result does not depend on the other runs. A run that does
 * not fit alone is streamed (attend_read.c). If a run's pages cannot be fetched, only its own
 * sequence fails. While attention computes, pages that the next layer will probably need are
 * prefetched: those that it read in the previous step, and those that correspond to this layer's
 * selection. */
#include "engine/attend.h"

#include "engine/engine.h"

#include <assert.h>
#include <string.h>

/* ---- What a run reads ---- */

/* The pages of a run, as far as there is room; further ones are only counted. */
struct found {
    page_id *id;
    uint32_t n, room;
};

static void find(struct found *f, page_id id)
{
    if (id == PAGE_NONE) return;
    if (f->n < f->room) f->id[f->n] = id;
    f->n++;
}

/* Adds the pages of single tokens, which are ascending and in no listed page. */
static void find_tokens(struct found *f, const page_id *table, const uint32_t *tok, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || tok[i] / PAGE_TOK != tok[i - 1] / PAGE_TOK) find(f, table[tok[i] / PAGE_TOK]);
}

static void find_selected(struct found *f, const struct attn_run *run, uint32_t n_kv_head)
{
    for (uint32_t h = 0; h < n_kv_head; h++) {
        const page_id *table = run->table + h * run->table_stride;
        if (run->attended && run->attended[h]) continue;
        for (uint32_t i = run->select_ptr[h]; i < run->select_ptr[h + 1]; i++)
            find(f, table[run->select[i]]);
        if (run->select_tok)
            find_tokens(f, table, run->select_tok + run->select_tok_ptr[h],
                        run->select_tok_ptr[h + 1] - run->select_tok_ptr[h]);
    }
}

/* Adds all sealed pages that the rows see. */
static void find_seen(struct found *f, const struct attn_run *run, uint32_t n_kv_head,
                      uint32_t window)
{
    const uint32_t end = (run->pos0 + run->n_row - 1) / PAGE_TOK;
    const uint32_t seen = window && run->pos0 >= window ? run->pos0 - window + 1 : 0;
    for (uint32_t h = 0; h < n_kv_head; h++)
        for (uint32_t i = seen / PAGE_TOK; i < end; i++)
            find(f, run->table[h * run->table_stride + i]);
}

/* Adds the pages that any list of a plan names. */
static void find_planned(struct found *f, const sac_engine *e, const struct attn_run *run)
{
    const struct attn_plan *p = run->plan;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, n_word = (e->pool.max_page + 31) / 32;
    const uint32_t n_lane = p->by_head ? e->model->config.n_head : n_kv_head;
    const uint32_t last = run->pos0 + run->n_row - 1;
    const uint32_t n_list = (last / p->tile_tok - run->pos0 / p->tile_tok + 1) * n_lane;
    uint32_t *mark = e->attend.mark;
    memset(mark, 0, (size_t)n_kv_head * n_word * sizeof *mark);
    for (uint32_t i = 0; i < n_list; i++) {
        uint32_t *head_mark = mark + (size_t)(i % n_lane / (n_lane / n_kv_head)) * n_word;
        for (uint32_t j = p->range_ptr[i]; j < p->range_ptr[i + 1]; j++)
            for (uint32_t page = p->range[j].begin; page < p->range[j].end; page++)
                head_mark[page / 32] |= 1u << page % 32;
        for (uint32_t j = p->tok ? p->tok_ptr[i] : 0; p->tok && j < p->tok_ptr[i + 1]; j++)
            head_mark[p->tok[j] / PAGE_TOK / 32] |= 1u << p->tok[j] / PAGE_TOK % 32;
    }
    for (uint32_t h = 0; h < n_kv_head; h++)
        for (uint32_t page = 0; page < last / PAGE_TOK; page++)
            if (mark[(size_t)h * n_word + page / 32] >> page % 32 & 1)
                find(f, run->table[h * run->table_stride + page]);
}

static void find_pages(struct found *f, const sac_engine *e, const struct reading *r,
                       const struct attn_run *run)
{
    if (run->plan && !run->plan->made) /* a device's lists are not known to the host */
        find_planned(f, e, run);
    else if (run->select)
        find_selected(f, run, e->pool.geom.n_kv_head);
    else
        find_seen(f, run, e->pool.geom.n_kv_head, r->window);
}

/* ---- Prefetching ---- */

static void fetch_ahead(const sac_engine *e, const struct reading *r, uint32_t run_i)
{
    const struct attend *t = &e->attend;
    const struct attn_run *run = &r->run[run_i];
    const uint32_t next = r->layer + 1;
    const bool is_chosen = run->select && !run->plan;
    if (next == e->pool.geom.n_layer) return;
    tier_follow(
        e->pool.tier,
        &(struct tier_follow){.layer = next,
                              .here = run->table,
                              .next = pool_table(&e->pool, e->batch.run[run_i].seq_i, next),
                              .n_lane = e->pool.geom.n_kv_head,
                              .stride = run->table_stride,
                              .n = run->pos0 / PAGE_TOK,
                              .page = run->select,
                              .page_ptr = is_chosen ? run->select_ptr : NULL,
                              .tok = run->select_tok,
                              .tok_ptr = is_chosen && run->select_tok ? run->select_tok_ptr : NULL,
                              .scratch = t->held + t->n_held,
                              .room = e->pool.n_frame - t->n_held});
}

/* ---- The step ---- */

void attend_lose(sac_engine *e, const struct reading *r)
{
    for (uint32_t i = 0; i < r->n_run; i++)
        if (e->attend.lost[i]) engine_break(e, i, (sac_status)e->attend.lost[i]);
}

static sac_status hold_run(sac_engine *e, const struct reading *r, uint32_t run_i)
{
    struct attend *t = &e->attend;
    struct found f = {.id = t->held + t->n_held, .room = e->pool.n_frame - t->n_held};
    find_pages(&f, e, r, &r->run[run_i]);
    if (f.n > f.room) return SAC_ERR_CONTEXT;
    const sac_status status = tier_acquire_more(e->pool.tier, e->workers, f.id, f.n);
    if (status == SAC_OK) t->n_held += f.n;
    if (status == SAC_ERR_IO) tier_release(e->pool.tier, f.id, f.n);
    return status;
}

sac_status attend_hold(sac_engine *e, struct reading *r, uint32_t first, uint32_t *end)
{
    const uint32_t last = *end;
    r->streams = false;
    assert(first < last && last <= r->n_run);
    if (!e->pool.tier) return SAC_OK;
    for (*end = first; *end < last; ++*end) {
        const sac_status status = hold_run(e, r, *end);
        if (status == SAC_OK) continue;
        r->streams = *end == first && status == SAC_ERR_CONTEXT;
        if (r->streams) ++*end;
        if (*end == first) return status;
        break; /* tried again as the first run: with all memory, or to report its error */
    }
    return SAC_OK;
}

/* Fetches the pages of all runs to a device at once. No run waits: pages for which there is no room
 * are read from the host's memory. */
static void fetch_on_device(const sac_engine *e, const struct reading *r, uint32_t first,
                            uint32_t end)
{
    const struct offload *o = e->pool.offload;
    if (!o || first == end) return;
    e->ops.offload.fetch(e->workers, &(struct op_offload_fetch){.map = &o->map,
                                                                .geom = &e->pool.geom,
                                                                .layer = r->layer,
                                                                .window = r->window,
                                                                .n_run = end - first,
                                                                .run = r->run + first});
}

void attend_bring(const sac_engine *e, const struct reading *r)
{
    fetch_on_device(e, r, r->n_decode, r->n_run);
}

uint32_t attend_resolve(sac_engine *e, struct reading *r, uint32_t first)
{
    uint32_t end = first;
    r->frames = pool_frames(&e->pool, r->layer);
    fetch_on_device(e, r, 0, r->n_decode);
    if (!e->pool.tier) return r->n_run;
    while (end < r->n_run && !engine_is_broken(e, end)) end++;
    if (end == first) return first + 1; /* the run's sequence has failed, and the run is skipped */
    const sac_status status = attend_hold(e, r, first, &end);
    if (status != SAC_OK) {
        engine_break(e, first, status);
        return first + 1;
    }
    for (uint32_t i = first; i < end && !r->streams; i++) fetch_ahead(e, r, i);
    return end;
}

sac_status attend_let(sac_engine *e)
{
    const sac_status status = (sac_status)e->attend.missed;
    tier_release(e->pool.tier, e->attend.held, e->attend.n_held);
    e->attend.n_held = 0;
    e->attend.missed = SAC_OK;
    return status;
}
