/* ahead.c: see the header.
 *
 * Invariant: describing a step changes nothing in the engine except its timers and data that every
 * step writes before reading (the reading, the logits copied from the device). */
#include "engine/ahead.h"

#include "engine/engine.h"
#include "engine/layer.h"
#include "kv/mirror.h"

#include <assert.h>
#include <string.h>

void ahead_plan(sac_engine *e, struct arena *a)
{
    struct batch *b;
    const size_t n = e->batch.n_row_max < LOGITS_ROWS ? e->batch.n_row_max : LOGITS_ROWS;
    b = e->ahead.batch = arena_take(a, 1, sizeof *b);
    struct batch next = {.n_row_max = e->batch.n_row_max,
                         .tok = arena_take(a, n, sizeof *next.tok),
                         .pos = arena_take(a, n, sizeof *next.pos),
                         .seq_i = arena_take(a, n, sizeof *next.seq_i),
                         .want = arena_take(a, n, sizeof *next.want),
                         .run = arena_take(a, n, sizeof *next.run)};
    e->ahead.page = arena_take(a, n * pool_pages_per_index(&e->pool), sizeof *e->ahead.page);
    if (a->base) *b = next;
}

/* ---- What can be described ---- */

/* Whether a method keeps state from step to step. Where a device selects, one that selects by slots
 * alone keeps none, even if it has state on the host. */
static bool keeps(const struct method_decode *hooks)
{
    const bool has_state = hooks->state_bytes && (hooks->device || !hooks->choose);
    return has_state || hooks->past_rows || hooks->see;
}

static bool methods_can(const sac_engine *e)
{
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_DECODE].specs;
    for (uint32_t i = 0; i < specs->n; i++) {
        const struct method *m = specs->spec[i].method;
        if (m->evicts || (m->decode && keeps(m->decode))) return false;
    }
    return true;
}

/* Whether one GPU computes all layers, or several GPUs a share of every layer whose sums are within
 * the step. */
static bool engine_can(const sac_engine *e)
{
    const size_t n_sum = (size_t)e->batch.n_row * e->model->config.n_embd;
    const bool is_whole = e->tp.n == 1 || (e->tp.joined && n_sum <= tensor_parallel_inbox_words(e));
    return !e->backend.is_host && e->n_place == 1 && is_whole && !e->params.tier &&
           !e->params.compose && methods_can(e);
}

/* Whether nothing observes the step or its duration. */
static bool is_unwatched(const sac_engine *e)
{
    return !e->watch && !e->record.job && e->params.tbt_target_ms <= 0 && e->only == SAC_SEQ_NONE;
}

/* Whether all rows are decode rows whose logits are wanted. */
static bool rows_can(const struct batch *b)
{
    bool wanted = b->n_row > 0 && b->n_row <= LOGITS_ROWS && b->n_row == b->n_decode;
    for (uint32_t r = 0; r < b->n_row && wanted; r++) wanted = b->want[r];
    return wanted;
}

static bool completes_page(uint32_t pos)
{
    return (pos + 1) % PAGE_TOK == 0;
}

/* Whether no other sequence waits for a step, and each sequence has room for one more row. */
static bool seqs_can(const sac_engine *e)
{
    uint32_t n_page = 0;
    for (uint32_t i = 0; i < e->params.n_seq_max; i++)
        if (e->seqs[i].alive && e->seqs[i].n_done < e->seqs[i].n_all) return false;
    for (uint32_t r = 0; r < e->batch.n_row; r++) {
        const struct seq *s = &e->seqs[e->batch.seq_i[r]];
        if (s->broken || s->has_gaps || s->n_done >= e->params.n_ctx) return false;
        n_page += completes_page(s->n_done);
    }
    return n_page <= pool_free_indices(&e->pool);
}

/* ---- Describing a step, for each share ---- */

static void fill_batch(sac_engine *e)
{
    const struct batch *b = &e->batch;
    struct batch *next = e->ahead.batch;
    next->n_row = next->n_decode = next->n_run = b->n_row;
    for (uint32_t r = 0; r < b->n_row; r++) {
        const uint32_t seq_i = b->seq_i[r], pos = e->seqs[seq_i].n_done;
        next->pos[r] = pos;
        next->seq_i[r] = seq_i;
        next->want[r] = TOK_WANT;
        next->run[r] = (struct batch_run){
            .row0 = r, .n_row = 1, .pos0 = pos, .seq_i = seq_i, .kind = ROW_DECODE};
    }
}

/* The table's entry for page index i of lane 0; other lanes' entries are max_page apart. */
static const page_id *entry_of(const sac_engine *e, uint32_t seq_i, uint32_t i)
{
    return pool_table(&e->pool, seq_i, 0) + i;
}

/* Takes the pages that the next step would get; nothing else takes pages until they are
 * returned. */
static void take_pages(sac_engine *e)
{
    const struct batch *next = e->ahead.batch;
    const size_t n_lane = pool_pages_per_index(&e->pool);
    for (uint32_t r = 0; r < next->n_row; r++) {
        const uint32_t i = next->pos[r] / PAGE_TOK;
        if (!completes_page(next->pos[r])) continue;
        if (!pool_reserve(&e->pool, next->seq_i[r], i, 1)) assert(!"n_free was checked");
        const page_id *id = entry_of(e, next->seq_i[r], i);
        for (size_t lane = 0; lane < n_lane; lane++)
            e->ahead.page[r * n_lane + lane] = id[lane * e->pool.max_page];
    }
}

/* Returns the pages, in the order in which sched_pick will take them again. */
static void give_pages(sac_engine *e)
{
    const struct batch *next = e->ahead.batch;
    for (uint32_t r = next->n_row; r-- > 0;)
        if (completes_page(next->pos[r]))
            pool_release(&e->pool, next->seq_i[r], next->pos[r] / PAGE_TOK, 1);
}

static void swap_choices(sac_engine *e)
{
    const struct decode_choices c = e->decode.device.now;
    e->decode.device.now = e->ahead.choices;
    e->ahead.choices = c;
}

/* Swaps the batches of the current step, which is still running, and of the next one. */
static void swap_steps(sac_engine *e)
{
    const struct batch b = e->batch;
    e->batch = *e->ahead.batch;
    *e->ahead.batch = b;
    swap_choices(e);
}

static struct ahead_counts counts_of(const sac_engine_stats *s)
{
    return (struct ahead_counts){s->weight_bytes_read, s->n_logit, s->n_logit_computed};
}

static void begin(sac_engine *e)
{
    fill_batch(e);
    take_pages(e);
    e->ahead.counts = counts_of(&e->stats);
    e->ahead.choices.pending = false;
    swap_steps(e);
    e->ahead.is_noted = true;
}

/* Sets aside what the described step has counted until the step is taken. */
static void end(sac_engine *e)
{
    sac_engine_stats *s = &e->stats;
    const struct ahead_counts was = e->ahead.counts, now = counts_of(s);
    e->ahead.is_noted = false;
    swap_steps(e);
    give_pages(e);
    e->ahead.counts =
        (struct ahead_counts){now.weight_bytes - was.weight_bytes, now.n_logit - was.n_logit,
                              now.n_logit_computed - was.n_logit_computed};
    s->weight_bytes_read = was.weight_bytes;
    s->n_logit = was.n_logit;
    s->n_logit_computed = was.n_logit_computed;
}

void ahead_describe(sac_engine *e)
{
    e->ahead.batch->n_row = 0;
    if (!engine_can(e) || !is_unwatched(e) || !rows_can(&e->batch) || !seqs_can(e)) return;
    if (!backend_ahead_begin(&e->backend)) return;
    for (uint32_t i = 0; i < e->tp.n; i++) begin(e->tp.of[i]);
    layer_run(e);
    logits_queue(e);
    for (uint32_t i = 0; i < e->tp.n; i++) end(e->tp.of[i]);
    if (!backend_ahead_end(&e->backend)) e->ahead.batch->n_row = 0;
}

void ahead_forget(sac_engine *e)
{
    e->ahead.batch->n_row = 0;
}

/* ---- Taking the described step ---- */

static bool has_same_page(const sac_engine *e, uint32_t r)
{
    const size_t n_lane = pool_pages_per_index(&e->pool);
    const uint32_t pos = e->batch.pos[r];
    const page_id *id = entry_of(e, e->batch.seq_i[r], pos / PAGE_TOK);
    for (size_t lane = 0; lane < n_lane && completes_page(pos); lane++)
        if (e->ahead.page[r * n_lane + lane] != id[lane * e->pool.max_page]) return false;
    return true;
}

static bool has_same_pages(const sac_engine *e)
{
    for (uint32_t r = 0; r < e->batch.n_row; r++)
        if (!has_same_page(e, r)) return false;
    return true;
}

/* Whether the batch is the described step: the same rows, pages, and way of copying logits. */
static bool is_same(const sac_engine *e)
{
    const struct batch *a = e->ahead.batch, *b = &e->batch;
    if (a->n_row == 0 || a->n_row != b->n_row || b->n_decode != b->n_row) return false;
    for (uint32_t r = 0; r < b->n_row; r++)
        if (a->pos[r] != b->pos[r] || a->seq_i[r] != b->seq_i[r] || !b->want[r] ||
            !logits_comes_so(e, r))
            return false;
    for (uint32_t i = 0; i < e->tp.n; i++)
        if (!has_same_pages(e->tp.of[i])) return false;
    return true;
}

/* Adds the counters of the described step, as if it had been described now. */
static void count(sac_engine *e)
{
    const struct ahead *n = &e->ahead;
    swap_choices(e);
    e->stats.weight_bytes_read += n->counts.weight_bytes;
    e->stats.n_logit += n->counts.n_logit;
    e->stats.n_logit_computed += n->counts.n_logit_computed;
    for (uint32_t r = 0; r < e->batch.n_row; r++) {
        e->batch.run[r].reads = n->batch->run[r].reads;
        mirror_is_right(&e->pool, e->batch.seq_i[r], (e->batch.pos[r] + 1) / PAGE_TOK);
    }
}

bool ahead_take(sac_engine *e, sac_row_fn on_row)
{
    struct ahead *n = &e->ahead;
    n->is_taken = on_row && is_same(e) && is_unwatched(e);
    for (uint32_t i = 0; i < e->tp.n && n->is_taken; i++)
        layer_embed_to(e->tp.of[i], e->tp.of[i]->ahead.embed);
    n->is_taken = n->is_taken && backend_ahead_go(&e->backend);
    for (uint32_t i = 0; i < e->tp.n && n->is_taken; i++) count(e->tp.of[i]);
    n->batch->n_row = 0;
    return n->is_taken;
}
