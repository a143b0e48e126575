/* ahead.c: see the header.
 *
 * Invariant: what is described changes nothing of the engine but its counters of time, and what is
 * made anew in each step before it is read (the reading, rows' logits as they come down). */
#include "engine/ahead.h"

#include "engine/engine.h"
#include "engine/layer.h"

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
    if (a->base) *b = next;
}

/* ---- What can be described ---- */

/* Methods of other decode rows keep what they know from step to step. */
static bool engine_can(const sac_engine *e)
{
    return !e->backend.is_host && e->n_place == 1 && e->share.n_all == 1 && !e->params.tier &&
           !e->params.compose && e->chooser[CHOOSER_DECODE].specs.is_dense;
}

/* Nobody looks into the step or at how long it takes. */
static bool is_unwatched(const sac_engine *e)
{
    return !e->watch && !e->record.job && e->params.tbt_target_ms <= 0 && e->only == SAC_SEQ_NONE;
}

/* All rows are decode rows of which somebody hears. */
static bool rows_can(const struct batch *b)
{
    bool wanted = b->n_row > 0 && b->n_row <= LOGITS_ROWS && b->n_row == b->n_decode;
    for (uint32_t r = 0; r < b->n_row && wanted; r++) wanted = b->want[r];
    return wanted;
}

/* Whether a row more of a sequence needs no page. */
static bool has_room(const sac_engine *e, uint32_t seq_i)
{
    const struct seq *s = &e->seqs[seq_i];
    return !s->broken && !s->has_gaps && (s->n_done + 1) % PAGE_TOK != 0 &&
           s->n_done + 1 < e->params.n_ctx;
}

/* Nobody else waits for a step. */
static bool seqs_can(const sac_engine *e)
{
    for (uint32_t i = 0; i < e->params.n_seq_max; i++)
        if (e->seqs[i].alive && e->seqs[i].n_done < e->seqs[i].n_all) return false;
    for (uint32_t r = 0; r < e->batch.n_row; r++)
        if (!has_room(e, e->batch.seq_i[r])) return false;
    return true;
}

/* ---- Describing ---- */

static void fill_batch(sac_engine *e)
{
    const struct batch *b = &e->batch;
    struct batch *next = e->ahead.batch;
    next->n_row = next->n_decode = next->n_run = b->n_row;
    for (uint32_t r = 0; r < b->n_row; r++) {
        next->pos[r] = e->seqs[b->seq_i[r]].n_done;
        next->seq_i[r] = b->seq_i[r];
        next->want[r] = true;
        next->run[r] = (struct batch_run){
            .row0 = r, .n_row = 1, .pos0 = next->pos[r], .seq_i = b->seq_i[r], .kind = ROW_DECODE};
    }
}

static void swap_batches(sac_engine *e)
{
    const struct batch b = e->batch;
    e->batch = *e->ahead.batch;
    *e->ahead.batch = b;
}

/* What the step counts is kept until it is taken. */
static void describe(sac_engine *e)
{
    struct ahead *n = &e->ahead;
    sac_engine_stats *s = &e->stats;
    const sac_engine_stats was = *s;
    swap_batches(e);
    n->is_noted = true;
    layer_run(e);
    logits_queue(e);
    n->is_noted = false;
    swap_batches(e);
    n->weight_bytes = s->weight_bytes_read - was.weight_bytes_read;
    n->n_logit = s->n_logit - was.n_logit;
    n->n_logit_computed = s->n_logit_computed - was.n_logit_computed;
    s->weight_bytes_read = was.weight_bytes_read;
    s->n_logit = was.n_logit;
    s->n_logit_computed = was.n_logit_computed;
}

void ahead_describe(sac_engine *e)
{
    e->ahead.batch->n_row = 0;
    if (!engine_can(e) || !is_unwatched(e) || !rows_can(&e->batch) || !seqs_can(e)) return;
    if (!backend_ahead_begin(&e->backend)) return;
    fill_batch(e);
    describe(e);
    if (!backend_ahead_end(&e->backend)) e->ahead.batch->n_row = 0;
}

/* ---- Taking ---- */

/* Logits come down as they were asked for when it was described. */
static bool is_same(const sac_engine *e)
{
    const struct batch *a = e->ahead.batch, *b = &e->batch;
    if (a->n_row == 0 || a->n_row != b->n_row || b->n_decode != b->n_row) return false;
    for (uint32_t r = 0; r < b->n_row; r++)
        if (a->pos[r] != b->pos[r] || a->seq_i[r] != b->seq_i[r] || !b->want[r] ||
            !logits_comes_so(e, r))
            return false;
    return true;
}

static void embed_row(void *arg, uint32_t r, uint32_t worker_i)
{
    const sac_engine *e = arg;
    const struct config *c = &e->model->config;
    (void)worker_i;
    weights_embed(e->ahead.embed + (size_t)r * c->n_embd, &e->model->weights, c, e->batch.tok[r]);
}

bool ahead_take(sac_engine *e, sac_row_fn on_row)
{
    struct ahead *n = &e->ahead;
    n->is_taken = on_row && is_same(e) && is_unwatched(e);
    if (n->is_taken) workers_for(e->workers, e->batch.n_row, embed_row, e);
    n->is_taken = n->is_taken && backend_ahead_go(&e->backend);
    for (uint32_t r = 0; r < e->batch.n_run && n->is_taken; r++)
        e->batch.run[r].reads = n->batch->run[r].reads;
    if (n->is_taken) {
        e->stats.weight_bytes_read += n->weight_bytes;
        e->stats.n_logit += n->n_logit;
        e->stats.n_logit_computed += n->n_logit_computed;
    }
    n->batch->n_row = 0;
    return n->is_taken;
}
