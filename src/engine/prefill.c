/* prefill.c: runs the prefill methods, run by run and KV head by KV head, and turns their masks
 * into the lists that the attention operation reads.
 *
 * Invariants:
 *  1. A plan depends on the sequence alone. Chunks of a planned prompt end at multiples of
 *     chunk_tok or at the end of the prompt: sched.c lets a run wait rather than make it shorter.
 *  2. Lanes of a run write their own plan; lists are built from the plans afterwards, in lane
 *     order. Each list has its own memory, so an overflow does not depend on other runs. If there
 *     are more threads than lanes and the method plans each tile independently of the rest of the
 *     chunk (any_chunk), tiles are planned separately and concatenated in order: the plan is the
 *     same. Methods that plan all lanes at once (plan_lanes) divide their work themselves.
 *  3. A run that reads everything has no plan, and one whose lists name all pages gives the same
 *     bits (attn_wide.c).
 *  4. The lists of all runs of a batch stay valid until the next layer's are made: attention runs
 *     once for all. */
#include "engine/prefill.h"

#include "base/input.h"
#include "base/minmax.h"
#include "engine/engine.h"
#include "engine/lane.h"

#include <assert.h>
#include <string.h>

#define TILE_TOK 64u /* rows of a tile, if a method does not set it */

/* ---- Memory ---- */

/* The largest tile of the methods. A multiple of it consists of whole tiles of every method: the
 * sizes are powers of two. */
static uint32_t largest_tile(const struct method_spec_list *specs)
{
    uint32_t most = TILE_TOK;
    for (uint32_t i = 0; i < specs->n; i++) {
        const struct method_prefill *hooks = specs->spec[i].method->prefill;
        if (hooks) most = max_u32(most, hooks->tile_tok);
    }
    assert((most & (most - 1)) == 0);
    return most;
}

uint32_t prefill_init(sac_engine *e)
{
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_PREFILL].specs;
    const uint32_t n = e->params.n_batch, tile = largest_tile(specs);
    if (specs->is_dense) return n;
    const uint32_t whole = n >= tile ? tile : TILE_TOK;
    e->prefill.chunk_tok = n > whole ? n / whole * whole : n;
    return n + e->params.n_seq_max - 1;
}

/* Sets the methods' sizes and tables; returns the maximum number of lists of a batch's runs. */
static size_t plan_methods(sac_engine *e, struct arena *a)
{
    struct prefill *f = &e->prefill;
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_PREFILL].specs;
    const size_t n_kv_head = e->pool.geom.n_kv_head, n_row = e->batch.n_row_max;
    size_t list_max = 0;
    f->lane_bytes = 0;
    f->lane_list_max = 0;
    f->tile_max = 0;
    f->weighs = false;
    f->device.list_max = f->device.run_list_max = f->device.fused_bytes = 0;
    f->device.room_bytes = f->device.pool_bytes = f->device.trace_rows = 0;
    for (uint32_t i = 0; i < specs->n; i++) {
        struct prefill_method *m = &f->method[i];
        const struct method_prefill *hooks = specs->spec[i].method->prefill;
        if (!hooks) continue;
        m->tile_tok = hooks->tile_tok ? hooks->tile_tok : TILE_TOK;
        m->n_part = hooks->by_head ? e->shape.group : 1;
        assert(m->tile_tok % PAGE_TOK == 0);
        const bool has_table = hooks->table && (specs->spec[i].file[0] || e->params.learn);
        m->table = has_table ? arena_take(a, 1, hooks->table->bytes(&e->shape)) : NULL;
        /* A run of r rows spans at most r / tile_tok + 2 tiles. */
        const size_t lane = (size_t)(f->chunk_tok / m->tile_tok + 2) * m->n_part;
        const size_t all = (n_row / m->tile_tok + 2 * (size_t)e->params.n_seq_max) * m->n_part;
        if (prefill_may_be_on_device(e, hooks)) {
            prefill_device_size(e, &specs->spec[i], lane * n_kv_head, all * n_kv_head);
            if (!place_has_host(e)) continue;
        }
        f->weighs = f->weighs || specs->spec[i].method->weighs;
        f->lane_list_max = mem_larger(f->lane_list_max, lane);
        f->lane_bytes = mem_larger(
            f->lane_bytes, method_hook_bytes(hooks->lane_bytes, &e->shape, specs->spec[i].param));
        f->tile_max = (uint32_t)mem_larger(f->tile_max, f->chunk_tok / m->tile_tok + 2);
        list_max = mem_larger(list_max, all * n_kv_head);
    }
    return list_max;
}

void prefill_plan(sac_engine *e, struct arena *a)
{
    struct prefill *f = &e->prefill;
    const struct page_geom *g = &e->pool.geom;
    const size_t n_seq = e->params.n_seq_max, before = a->used;
    const size_t list_max = plan_methods(e, a);
    e->stats.side_bytes += a->used - before;
    f->mask_words = f->lane_list_max * e->pool.max_page;
    f->mask = arena_take(a, g->n_kv_head * f->mask_words, sizeof *f->mask);
    f->weight = arena_take(a, f->weighs ? g->n_kv_head * f->mask_words : 0, PAGE_TOK);
    f->list_dense = arena_take(a, g->n_kv_head, f->lane_list_max);
    f->plan = arena_take(a, g->n_kv_head, sizeof *f->plan);
    f->part = arena_take(a, (size_t)g->n_kv_head * f->tile_max, sizeof *f->part);
    f->lane = arena_take(a, g->n_kv_head, sizeof *f->lane);
    f->lane_room = arena_take(a, g->n_kv_head, f->lane_bytes);
    f->lists = arena_take(a, n_seq, sizeof *f->lists);
    /* Reading a quarter of the context as single tokens costs more than reading all of it in
     * pages. */
    f->tok_max = e->params.n_ctx / 4 + 1024;
    f->range_max = e->pool.max_page / 4 + 16;
    f->range = arena_take(a, list_max * f->range_max, sizeof *f->range);
    f->tok = arena_take(a, list_max * f->tok_max, sizeof *f->tok);
    f->tok_logw = arena_take(a, f->weighs ? list_max * f->tok_max : 0, sizeof *f->tok_logw);
    f->range_ptr = arena_take(a, list_max + n_seq, sizeof *f->range_ptr);
    f->tok_ptr = arena_take(a, list_max + n_seq, sizeof *f->tok_ptr);
    f->n_skip = arena_take(a, workers_count(e->workers), sizeof *f->n_skip);
    prefill_device_plan(e, a);
}

const void *prefill_table(const sac_engine *e, uint32_t seq_i)
{
    return e->prefill.method[e->seqs[seq_i].method_i[METHOD_SET_PREFILL]].table;
}

sac_status prefill_read_tables(sac_engine *e, sac_error *err)
{
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_PREFILL].specs;
    for (uint32_t i = 0; i < specs->n; i++) {
        const struct method_spec *spec = &specs->spec[i];
        void *table = e->prefill.method[i].table;
        struct strbuf text = {0};
        sac_status status;
        if (!table || !spec->file[0]) continue;
        status = input_read(&text, spec->file, err);
        if (status == SAC_OK) {
            status = spec->method->prefill->table->read(table, &e->shape, text.data, err);
            if (status != SAC_OK) status = error_prefix(err, status, "%s", spec->file);
        }
        strbuf_deinit(&text);
        TRY(status);
    }
    return SAC_OK;
}

sac_status sac_engine_get_table(const sac_engine *e, uint32_t prefill_i, char **out_text,
                                sac_error *err)
{
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_PREFILL].specs;
    struct strbuf text = {0};
    if (prefill_i >= specs->n)
        return error_set(err, SAC_ERR_ARG, "there is no prefill method %u: the engine has %u",
                         prefill_i, specs->n);
    const struct method_spec *spec = &specs->spec[prefill_i];
    const void *table = e->prefill.method[prefill_i].table;
    if (!e->params.learn)
        return error_set(err, SAC_ERR_ARG, "the engine was created without `learn`");
    if (!table)
        return error_set(err, SAC_ERR_ARG, "prefill method '%s' has no table of heads", spec->text);
    sac_status status = spec->method->prefill->table->write(table, &e->shape, &text, err);
    if (status == SAC_OK && text.failed)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a table of heads");
    if (status == SAC_OK) *out_text = strbuf_detach(&text, NULL);
    strbuf_deinit(&text);
    return status;
}

static const struct method *seq_method(const sac_engine *e, uint32_t seq_i)
{
    return method_set_entry(e, METHOD_SET_PREFILL, seq_i)->spec->method;
}

uint32_t prefill_chunk(const sac_engine *e, uint32_t seq_i, uint32_t n)
{
    if (!seq_method(e, seq_i)->prefill) return 0;
    const uint32_t size = e->prefill.chunk_tok, to_border = size - e->seqs[seq_i].n_done % size;
    return n < to_border ? n : to_border;
}

/* ---- Plans ---- */

struct plan_call {
    sac_engine *e;
    const struct reading *r;
    uint32_t run_i;
    uint32_t n_cut; /* tiles of a lane that are planned separately; 1: all together */
};

static const struct method_prefill *run_hooks(const struct plan_call *c)
{
    return seq_method(c->e, c->e->batch.run[c->run_i].seq_i)->prefill;
}

struct plan prefill_shape(const sac_engine *e, uint32_t run_i)
{
    const struct batch_run *run = &e->batch.run[run_i];
    const struct seq *s = &e->seqs[run->seq_i];
    const struct prefill_method *m = &e->prefill.method[s->method_i[METHOD_SET_PREFILL]];
    const uint32_t end = run->pos0 + run->n_row, tile0 = run->pos0 / m->tile_tok;
    const uint32_t last = (end - 1) / m->tile_tok;
    return (struct plan){.pos = run->pos0,
                         .end = end,
                         .n_after = s->n_queued - run->n_row,
                         .tile_tok = m->tile_tok,
                         .tile0 = tile0,
                         .n_tile = last - tile0 + 1,
                         .n_part = m->n_part,
                         .n_word = last * m->tile_tok / PAGE_TOK};
}

static struct plan make_plan(const struct plan_call *c, uint32_t kv_head)
{
    const struct prefill *f = &c->e->prefill;
    struct plan p = prefill_shape(c->e, c->run_i);
    const size_t n_list = (size_t)p.n_tile * p.n_part;
    assert(n_list <= f->lane_list_max && n_list * p.n_word <= f->mask_words);
    p.mask = f->mask + kv_head * f->mask_words;
    p.list_dense = f->list_dense + kv_head * f->lane_list_max;
    if (seq_method(c->e, c->e->batch.run[c->run_i].seq_i)->weighs)
        p.weight = f->weight + kv_head * f->mask_words * PAGE_TOK;
    return p;
}

/* The plan of one tile, as if the chunk ended with it; masks keep the length of the chunk's. */
static struct plan cut_plan(const struct plan *all, uint32_t tile)
{
    struct plan p = *all;
    const size_t list0 = (size_t)tile * p.n_part;
    p.pos = all->pos + plan_row0(all, tile);
    p.end = all->pos + plan_row_end(all, tile);
    p.n_after = all->n_after + all->end - p.end;
    p.tile0 = all->tile0 + tile;
    p.n_tile = 1;
    p.mask += list0 * p.n_word;
    if (p.weight) p.weight += list0 * p.n_word * PAGE_TOK;
    p.list_dense += list0;
    return p;
}

static void cut_lane(const struct plan_call *c, struct method_lane *lane, const struct plan *p)
{
    lane->q += (p->pos - lane->pos) * lane->q_stride;
    lane->pos = p->pos;
    lane->n_row = p->end - p->pos;
    lane->n_sealed = p->end / PAGE_TOK;
    lane->own = attn_own_page(&c->r->run[c->run_i], &c->e->pool.geom, p->end - 1, lane->kv_head);
}

/* Engines that learn read densely, so that heads of later layers see exact inputs. */
static void learn_lane(const struct method_lane *lane, const struct method_prefill *hooks,
                       void *table, struct plan *p)
{
    if (table) hooks->table->learn(lane, table);
    plan_dense(p, PLAN_LAYER);
}

static void open_plan(const struct plan_call *c, const struct method_lane *lane, struct plan *p)
{
    const size_t n_list = (size_t)p->n_tile * p->n_part;
    memset(p->mask, 0, n_list * p->n_word * sizeof *p->mask);
    memset(p->list_dense, PLAN_SPARSE, n_list);
    if (run_hooks(c)->needs_past_zero && p->pos > 0)
        plan_dense(p, PLAN_PAST);
    else if (c->e->backend.is_host && !method_queries_finite(lane))
        plan_dense(p, PLAN_NAN); /* on a device queries are not checked: such rows become NaN */
}

/* Makes tiles dense that end before the shortest sparse context. */
static void close_plan(struct plan *p, uint32_t min_ctx)
{
    for (uint32_t i = 0; i < p->n_tile; i++)
        for (uint32_t part = 0; part < p->n_part; part++)
            if (plan_tile_tok(p, i + 1) <= min_ctx) plan_tile_dense(p, i, part, PLAN_SHORT);
}

/* Plans a lane, or one tile of it. */
static void plan_part(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct plan_call *c = arg;
    const uint32_t kv_head = item_i / c->n_cut;
    const sac_engine *e = c->e;
    const uint32_t seq_i = e->batch.run[c->run_i].seq_i;
    const struct method_prefill *hooks = run_hooks(c);
    struct plan *p = &e->prefill.part[item_i];
    struct method_lane lane =
        lane_make(e, c->r, (struct lane_at){METHOD_SET_PREFILL, c->run_i, kv_head, worker_i});
    *p = make_plan(c, kv_head);
    if (c->n_cut > 1) {
        *p = cut_plan(p, item_i % c->n_cut);
        cut_lane(c, &lane, p);
    }
    open_plan(c, &lane, p);
    if (p->dense == PLAN_SPARSE && e->params.learn)
        learn_lane(&lane, hooks,
                   e->prefill.method[e->seqs[seq_i].method_i[METHOD_SET_PREFILL]].table, p);
    else if (p->dense == PLAN_SPARSE)
        hooks->plan(&lane, p);
    close_plan(p, lane.sparse_min_ctx);
}

/* A lane that is dense in one of its tiles is dense in all; nothing is estimated then. */
static struct plan join_parts(const struct plan_call *c, uint32_t kv_head)
{
    const struct plan *part = &c->e->prefill.part[kv_head * c->n_cut];
    struct plan p = make_plan(c, kv_head);
    p.skip = part->skip;
    for (uint32_t i = 0; i < c->n_cut; i++) {
        if (p.dense == PLAN_SPARSE) p.dense = part[i].dense;
        p.mass += part[i].mass;
        p.n_mass += part[i].n_mass;
    }
    if (p.dense == PLAN_SPARSE) return p;
    p.mass = 0;
    p.n_mass = 0;
    return p;
}

/* The number of parts of a lane that are planned separately. */
static uint32_t count_cuts(const struct plan_call *c)
{
    const sac_engine *e = c->e;
    const struct method_prefill *hooks = run_hooks(c);
    const struct plan p = make_plan(c, 0);
    const uint32_t seq_i = e->batch.run[c->run_i].seq_i;
    const bool apart = hooks->any_chunk && !hooks->needs_past_zero && !e->params.learn &&
                       method_set_entry(e, METHOD_SET_PREFILL, seq_i)->state_bytes == 0 &&
                       workers_count(e->workers) > e->pool.geom.n_kv_head;
    assert(p.n_tile <= e->prefill.tile_max);
    return apart ? p.n_tile : 1;
}

static void plan_apart(struct plan_call *c)
{
    struct prefill *f = &c->e->prefill;
    const uint32_t n_head = c->e->pool.geom.n_kv_head;
    c->n_cut = count_cuts(c);
    workers_for(c->e->workers, n_head * c->n_cut, plan_part, c);
    for (uint32_t h = 0; h < n_head; h++) f->plan[h] = join_parts(c, h);
}

/* Sets up a lane and its plan, except for what open_list does. */
static void open_lane(const struct plan_call *c, uint32_t kv_head)
{
    struct prefill *f = &c->e->prefill;
    struct plan *p = &f->plan[kv_head];
    f->lane[kv_head] =
        lane_make(c->e, c->r, (struct lane_at){METHOD_SET_PREFILL, c->run_i, kv_head, 0});
    f->lane[kv_head].scratch = f->lane_room + kv_head * f->lane_bytes;
    *p = make_plan(c, kv_head);
    memset(p->list_dense, PLAN_SPARSE, (size_t)p->n_tile * p->n_part);
    if (c->e->params.learn)
        plan_dense(p, PLAN_LAYER);
    else if (run_hooks(c)->needs_past_zero && p->pos > 0)
        plan_dense(p, PLAN_PAST);
}

/* Clears a list of a lane, and checks a part of the lane's queries, because checking all of them
 * would take one worker long. */
static void open_list(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct plan_call *c = arg;
    const struct prefill *f = &c->e->prefill;
    const uint32_t n_list = f->plan->n_tile * f->plan->n_part, i = item_i % n_list;
    struct plan *p = &f->plan[item_i / n_list];
    struct method_lane part = f->lane[item_i / n_list];
    const uint32_t row0 = (uint32_t)((uint64_t)part.n_row * i / n_list);
    (void)worker_i;
    memset(p->mask + (size_t)i * p->n_word, 0, p->n_word * sizeof *p->mask);
    part.q += row0 * part.q_stride;
    part.n_row = (uint32_t)((uint64_t)part.n_row * (i + 1) / n_list) - row0;
    if (!c->e->backend.is_host || method_queries_finite(&part)) return;
    enum plan_reason sparse = PLAN_SPARSE; /* a dense lane already has its reason */
    __atomic_compare_exchange_n(&p->dense, &sparse, PLAN_NAN, false, __ATOMIC_RELAXED,
                                __ATOMIC_RELAXED);
}

static void plan_together(struct plan_call *c)
{
    sac_engine *e = c->e;
    struct prefill *f = &e->prefill;
    const struct method_set *room = &e->method_set[METHOD_SET_PREFILL];
    const uint32_t n_head = e->pool.geom.n_kv_head;
    assert(!run_hooks(c)->table);
    for (uint32_t h = 0; h < n_head; h++) open_lane(c, h);
    workers_for(e->workers, n_head * f->plan->n_tile * f->plan->n_part, open_list, c);
    run_hooks(c)->plan_lanes(&(struct plan_batch){.workers = e->workers,
                                                  .n = n_head,
                                                  .lane = f->lane,
                                                  .plan = f->plan,
                                                  .room = room->worker,
                                                  .room_stride = room->worker_bytes});
    for (uint32_t h = 0; h < n_head; h++) close_plan(&f->plan[h], f->lane[h].sparse_min_ctx);
}

/* Cells are counted for all query heads of the layer, even if heads share a list. */
void prefill_count(const sac_engine *e, sac_reads *t, const struct plan_stats *s, uint32_t n_part)
{
    assert(n_part > 0 && e->shape.group % n_part == 0 && s->n_cell_read <= s->n_cell);
    const uint32_t n_share = e->shape.group / n_part;
    t->n_cell += s->n_cell * n_share;
    t->n_cell_read += s->n_cell_read * n_share;
    t->n_plan += s->n_list;
    for (int i = PLAN_SPARSE + 1; i < PLAN_REASONS; i++) t->n_plan_dense += s->n_dense[i];
    t->n_plan_past += s->n_dense[PLAN_PAST];
    t->n_plan_nan += s->n_dense[PLAN_NAN];
    t->n_plan_overflow += s->n_dense[PLAN_OVERFLOW];
}

static void count_plan(sac_engine *e, uint32_t run_i, const struct plan_stats *s, uint32_t n_part)
{
    sac_reads *t = &e->batch.run[run_i].reads;
    prefill_count(e, t, s, n_part);
    for (uint32_t h = 0; h < e->pool.geom.n_kv_head; h++) {
        t->plan_mass += e->prefill.plan[h].mass;
        t->n_plan_mass += e->prefill.plan[h].n_mass;
    }
}

static void count_dense(const sac_engine *e, struct batch_run *run)
{
    const uint64_t n = run->n_row, cells = (2 * (uint64_t)run->pos0 + n + 1) * n / 2;
    run->reads.n_cell += cells * e->model->config.n_head;
    run->reads.n_cell_read += cells * e->model->config.n_head;
}

/* False after pages of other texts, or if pages are missing: prompt rows then read everything that
 * is left. */
static bool is_planned(const sac_engine *e, const struct batch_run *run)
{
    return seq_method(e, run->seq_i)->prefill && !e->seqs[run->seq_i].has_gaps &&
           e->segments.n[run->seq_i] == 0 &&
           run->pos0 + run->n_row > seq_params_min_ctx(e, run->seq_i);
}

/* `used` is the number of lists, `n` the number of planned runs before this one. */
static void plan_run(struct plan_call *c, struct plan_lists *out, uint32_t *used, uint32_t n)
{
    sac_engine *e = c->e;
    struct prefill *f = &e->prefill;
    const uint32_t n_head = e->pool.geom.n_kv_head;
    struct plan_stats stats = {0};
    assert(n < e->params.n_seq_max && e->segments.n[e->batch.run[c->run_i].seq_i] == 0);
    if (run_hooks(c)->plan_lanes)
        plan_together(c);
    else
        plan_apart(c);
    *out =
        (struct plan_lists){.tok_max = f->tok_max,
                            .range_max = f->range_max,
                            .range = f->range + (size_t)*used * f->range_max,
                            .tok = f->tok + (size_t)*used * f->tok_max,
                            .tok_logw = f->weighs ? f->tok_logw + (size_t)*used * f->tok_max : NULL,
                            .range_ptr = f->range_ptr + *used + n,
                            .tok_ptr = f->tok_ptr + *used + n};
    plan_compile(out, f->plan, n_head, &stats, e->workers);
    *used += (uint32_t)stats.n_list;
    count_plan(e, c->run_i, &stats, f->plan[0].n_part);
}

void prefill_choose(sac_engine *e, struct reading *r)
{
    struct prefill *f = &e->prefill;
    uint32_t used = 0, n = 0;
    prefill_device_begin(e);
    for (uint32_t i = r->n_decode; i < r->n_run; i++) {
        if (!is_planned(e, &e->batch.run[i])) {
            count_dense(e, &e->batch.run[i]);
            continue;
        }
        struct plan_call c = {.e = e, .r = r, .run_i = i};
        if (prefill_is_on_device(e, run_hooks(&c)))
            prefill_device_choose(e, r, i, &f->lists[n].plan);
        else
            plan_run(&c, &f->lists[n], &used, n);
        r->run[i].plan = &f->lists[n++].plan;
    }
}
