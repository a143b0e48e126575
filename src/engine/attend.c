/* attend.c: the attention stage of a layer, a fixed sequence of steps over one reading.
 *
 * Keys and values pass through it as follows: `write` stores them in 16 bits in the tail of the
 * sequence and, for pages that a chunk begins, in `own`; `seal` encodes full pages into the pool;
 * `bring` copies to a device what prompt rows can see; `choose` determines what each row reads;
 * `resolve` finds the memory that holds it; `read` computes attention over sealed pages and over
 * the 16-bit form of each row's own page; `correct` adds a method's estimate of the unread pages;
 * `keep` makes the last unfilled page the tail.
 *
 * Invariants:
 *  1. A reading is created here for each layer and discarded after it. Its runs and lanes are set
 *     up before any step uses them, so nothing of another layer can be left in them.
 *  2. Everything that depends on what was read (attention, counters, proofs, recorder) takes it
 *     from the reading.
 *
 * Not here: which rows are computed (sched.c), and what a method selects (decode.c, prefill.c). */
#include "engine/attend.h"

#include "engine/engine.h"
#include "kv/mirror.h"

#include <assert.h>
#include <string.h>

/* A run of r rows fills at most r / PAGE_TOK pages, and one more that was the sequence's tail. */
uint32_t attend_new_pages(const sac_engine *e)
{
    return e->batch.n_row_max / PAGE_TOK + e->params.n_seq_max;
}

void attend_plan(sac_engine *e, struct arena *a)
{
    struct attend *t = &e->attend;
    const struct page_geom *g = &e->pool.geom;
    const size_t n_row = e->batch.n_row_max, n_seq = e->params.n_seq_max;
    const size_t n_lane =
        e->method_set[METHOD_SET_DECODE].specs.is_dense ? 0 : n_seq * g->n_kv_head;
    page_lines_init(&t->lines, g);
    t->run = arena_take(a, n_row, sizeof *t->run);
    t->lane = n_lane ? arena_take(a, n_lane, sizeof *t->lane) : NULL;
    t->rest = (struct reading_rest){0};
    if (e->decode.has_rest)
        t->rest = (struct reading_rest){
            .log = arena_take(a, n_lane * e->shape.group, sizeof(float)),
            .value = arena_take(a, n_lane * e->shape.group * g->head_dim, sizeof(float)),
            .lse = arena_take(a, n_row * e->model->config.n_head, sizeof(float))};
    t->n_new_page_max = attend_new_pages(e);
    const size_t n_page = (size_t)t->n_new_page_max * g->n_kv_head;
    t->seal_from = arena_take(a, n_page, sizeof *t->seal_from);
    t->seal_to = arena_take(a, n_page, sizeof *t->seal_to);
    t->seal_id = arena_take(a, n_page, sizeof *t->seal_id);
    t->seal_place = arena_take(a, e->pool.offload ? n_page : 0, sizeof *t->seal_place);
    t->held = arena_take(a, e->pool.tier ? e->pool.n_frame : 0, sizeof *t->held);
    t->mark = arena_take(a, (size_t)g->n_kv_head * ((e->pool.max_page + 31) / 32), sizeof *t->mark);
    t->lost = arena_take(a, n_row, sizeof *t->lost);
}

/* A reading of all runs of the batch with their pages in this layer; what they read is set
 * later. */
static struct reading begin(const sac_engine *e, uint32_t layer)
{
    const struct config *c = &e->model->config;
    const struct page_geom *g = &e->pool.geom;
    const struct batch *b = &e->batch;
    const struct attend *t = &e->attend;
    struct reading r = {.layer = layer,
                        .window = config_layer_is_local(c, layer) ? c->window : 0,
                        .n_run = b->n_run,
                        .n_decode = b->n_decode,
                        .run = t->run};
    memset(t->lost, 0, b->n_run * sizeof *t->lost);
    uint8_t *own = e->scratch.own;
    for (uint32_t i = 0; i < b->n_run; i++) {
        const struct batch_run *in = &b->run[i];
        assert(in->n_row > 0 && (in->kind != ROW_DECODE || in->n_row == 1));
        r.run[i] = (struct attn_run){.row0 = in->row0,
                                     .n_row = in->n_row,
                                     .pos0 = in->pos0,
                                     .kind = in->kind,
                                     .table = pool_table(&e->pool, in->seq_i, layer),
                                     .table_stride = e->pool.max_page,
                                     .frame = mirror_of(&e->pool, in->seq_i, layer),
                                     .own0 = pool_tail(&e->pool, in->seq_i, layer),
                                     .own = own};
        r.run[i].n_segment = e->segments.n[in->seq_i];
        if (r.run[i].n_segment)
            r.run[i].segment = segment_view_of(e, in->seq_i, config_layer_is_local(c, layer));
        const uint32_t n_page = (in->pos0 + in->n_row - 1) / PAGE_TOK - in->pos0 / PAGE_TOK;
        own += (size_t)n_page * g->n_kv_head * g->tail_bytes;
    }
    assert((size_t)(own - e->scratch.own) <=
           (size_t)t->n_new_page_max * g->n_kv_head * g->tail_bytes);
    return r;
}

void attend_store(sac_engine *e, uint32_t layer)
{
    struct reading r = begin(e, layer);
    tier_enter(e->pool.tier, layer);
    attend_write(e, &r);
    attend_seal(e, &r);
    attend_keep(e, &r);
}

void attend_layer(sac_engine *e, uint32_t layer)
{
    const uint64_t start = clock_us();
    struct reading r = begin(e, layer);
    tier_enter(e->pool.tier, layer);
    attend_write(e, &r);
    attend_seal(e, &r);
    attend_bring(e, &r);
    attend_choose(e, &r);
    attend_lose(e, &r);
    for (uint32_t first = 0, end; first < r.n_run; first = end) {
        end = attend_resolve(e, &r, first);
        if (!engine_is_broken(e, first)) attend_read(e, &r, first, end);
        const sac_status status = attend_let(e);
        if (status != SAC_OK) engine_break(e, first, status);
    }
    attend_correct(e, &r);
    attend_count(e, &r);
    const uint64_t us = clock_us() - start;
    e->stats.attn_us += us;
    if (e->repeat.now.n_tok == 0 && record_is_wanted(e, &r)) {
        record_layer(e, &r, us - r.choose_us);
        attend_lose(e, &r);
    }
    attend_keep(e, &r);
}
