/* repeat.c: see the header.
 *
 * Invariants:
 *  1. Afterwards pages, tail, tokens and pending tokens are what they were before. The tail is
 *     saved and restored, because sealing and unsealing a page rounds its keys. The queries of the
 *     last rows and what a prefill method has stored about the prompt are discarded, as by any cut.
 *     The rows remain only if the sequence fails meanwhile, or the device and with it all
 *     sequences.
 *  2. The room behind the context belongs to no sequence: sequences end before it (repeat_context).
 *  3. The rows are always computed, never taken from another prompt, because a method must see
 *     them; and no other prompt reuses them (reuse.c). */
#include "engine/repeat.h"

#include "engine/engine.h"

#include <assert.h>
#include <string.h>

/* The instructions of the paper's code: before the first piece, and before the others, where they
 * are followed by the tokens before the piece. */
static const char *const instruction[2] = {
    "\n\nRepeat the previous context exactly.\n\n",
    "\n\nRepeat the part of the previous context exactly, starting with "};

#define N_LEAD 8u

static const struct method_decode *hooks_of(const sac_engine *e, uint32_t seq_i)
{
    return method_set_entry(e, METHOD_SET_DECODE, seq_i)->spec->method->decode;
}

/* ---- Memory ---- */

sac_status repeat_init(sac_engine *e, sac_error *err)
{
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_DECODE].specs;
    struct repeat *r = &e->repeat;
    uint32_t n_chunk = 0;
    for (uint32_t i = 0; i < specs->n; i++) {
        const struct method_decode *hooks = specs->spec[i].method->decode;
        if (!hooks || !hooks->repeat) continue;
        const uint32_t n = hooks->repeat(specs->spec[i].param).n_chunk;
        n_chunk = n > n_chunk ? n : n_chunk;
    }
    if (n_chunk == 0) return SAC_OK;
    for (int i = 0; i < 2; i++)
        TRY(sac_tokenize(e->model, instruction[i], strlen(instruction[i]), 0, &r->text[i],
                         &r->n_text[i], err));
    const size_t n_text = r->n_text[0] > r->n_text[1] ? r->n_text[0] : r->n_text[1];
    const uint32_t n_most = n_chunk < e->params.n_ctx ? n_chunk : e->params.n_ctx;
    r->n_room = n_most + (uint32_t)n_text + N_LEAD;
    e->params.n_ctx += r->n_room;
    e->params.n_kv_tok += repeat_pool_tokens(e);
    return SAC_OK;
}

void repeat_deinit(sac_engine *e)
{
    for (int i = 0; i < 2; i++) sac_free(e->repeat.text[i]);
}

void repeat_plan(sac_engine *e, struct arena *a)
{
    const size_t n_lane = e->repeat.n_room ? pool_pages_per_index(&e->pool) : 0;
    e->repeat.tails = arena_take(a, n_lane, e->pool.geom.tail_bytes);
}

uint32_t repeat_context(const sac_engine *e)
{
    return e->params.n_ctx - e->repeat.n_room;
}

uint64_t repeat_pool_tokens(const sac_engine *e)
{
    return e->repeat.n_room ? (uint64_t)e->repeat.n_room + PAGE_TOK : 0;
}

/* ---- Rows ---- */

bool repeat_is_due(const sac_engine *e, uint32_t seq_i)
{
    const struct seq *s = &e->seqs[seq_i];
    const struct config *c = &e->model->config;
    uint32_t layer = 0;
    if (e->repeat.n_room == 0 || e->repeat.now.n_tok > 0) return false;
    if (!s->alive || s->broken || s->n_done == s->n_all || !(s->flags[s->n_done] & TOK_DECODE))
        return false;
    const struct method_decode *hooks = hooks_of(e, seq_i);
    if (!hooks || !hooks->repeat || s->n_done + 1 < seq_params_min_ctx(e, seq_i)) return false;
    while (layer < c->n_layer && config_layer_is_local(c, layer)) layer++;
    if (layer == c->n_layer) return false;
    const void *param = seq_params_spec(e, METHOD_SET_DECODE, seq_i)->param;
    return s->n_done > hooks->repeat(param).first &&
           hooks->repeat_due(&e->shape, param,
                             method_set_state(e, METHOD_SET_DECODE, seq_i,
                                              (size_t)layer * e->pool.geom.n_kv_head),
                             s->n_done);
}

/* Inserts instruction and piece after the sequence's computed tokens and before its pending ones.
 * Returns the number of rows. */
static uint32_t put_rows(sac_engine *e, struct seq *s, bool is_first)
{
    const struct repeat *r = &e->repeat;
    const uint32_t n = s->n_done, n_pending = s->n_all - n, which = !is_first;
    const uint32_t n_text = (uint32_t)r->n_text[which];
    const uint32_t n_lead = is_first ? 0 : r->now.begin < N_LEAD ? r->now.begin : N_LEAD;
    const uint32_t n_piece = r->now.end - r->now.begin, n_row = n_text + n_lead + n_piece;
    assert(n_row <= r->n_room && s->n_all + n_row <= e->params.n_ctx);
    memmove(s->tok + n + n_row, s->tok + n, n_pending * sizeof *s->tok);
    memmove(s->flags + n + n_row, s->flags + n, n_pending * sizeof *s->flags);
    memcpy(s->tok + n, r->text[which], n_text * sizeof *s->tok);
    memcpy(s->tok + n + n_text, s->tok + r->now.begin - n_lead,
           (n_lead + n_piece) * sizeof *s->tok);
    memset(s->flags + n, 0, n_row);
    s->n_all = n + n_row;
    return n_row;
}

/* Removes the rows. */
static sac_status take_rows(sac_engine *e, uint32_t n_row, uint32_t n_pending, sac_error *err)
{
    struct seq *s = &e->seqs[e->repeat.seq_i];
    const uint32_t n = e->repeat.now.n_tok;
    TRY(engine_truncate(e, e->repeat.seq_i, n, err));
    memmove(s->tok + n, s->tok + n + n_row, n_pending * sizeof *s->tok);
    memmove(s->flags + n, s->flags + n + n_row, n_pending * sizeof *s->flags);
    s->n_all = n + n_pending;
    return SAC_OK;
}

static sac_status run_rows(sac_engine *e, bool is_first, sac_error *err)
{
    struct seq *s = &e->seqs[e->repeat.seq_i];
    const uint32_t n_pending = s->n_all - s->n_done, n_row = put_rows(e, s, is_first);
    while (s->n_done < s->n_all) TRY(engine_step_only(e, e->repeat.seq_i, err));
    return take_rows(e, n_row, n_pending, err);
}

static sac_status run_pieces(sac_engine *e, sac_error *err)
{
    struct repeat *r = &e->repeat;
    const uint32_t n = r->now.n_tok;
    const struct method_repeat how =
        hooks_of(e, r->seq_i)->repeat(seq_params_spec(e, METHOD_SET_DECODE, r->seq_i)->param);
    for (uint32_t begin = how.first; begin < n; begin = r->now.end) {
        r->now.begin = begin;
        r->now.end = n - begin < how.n_chunk ? n : begin + how.n_chunk;
        TRY(run_rows(e, begin == how.first, err));
    }
    return SAC_OK;
}

static bool has_pages(sac_engine *e, uint32_t n_done)
{
    const uint32_t n_page = (n_done + e->repeat.n_room) / PAGE_TOK - n_done / PAGE_TOK;
    reuse_make_room(e, n_page);
    return n_page <= pool_free_indices(&e->pool);
}

sac_status repeat_run(sac_engine *e, sac_error *err)
{
    struct repeat *r = &e->repeat;
    const size_t n_tail = pool_pages_per_index(&e->pool) * e->pool.geom.tail_bytes;
    if (r->n_room == 0 || e->only != SAC_SEQ_NONE) return SAC_OK;
    for (uint32_t i = 0; i < e->params.n_seq_max; i++) {
        if (!repeat_is_due(e, i) || !has_pages(e, e->seqs[i].n_done)) continue;
        uint8_t *tail = pool_tail(&e->pool, i, 0);
        memcpy(r->tails, tail, n_tail);
        r->seq_i = i;
        r->now.n_tok = e->seqs[i].n_done;
        const sac_status status = run_pieces(e, err);
        r->now.n_tok = 0;
        TRY(status);
        memcpy(tail, r->tails, n_tail);
    }
    return SAC_OK;
}
