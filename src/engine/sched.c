/* sched.c: the policy of a step, in one place.
 *
 * Decode rows go first, one for each sequence whose next pending token is of that kind: they share
 * one pass over the weights, and the time between tokens stays short. Prompt chunks fill the rest
 * of the batch, by priority and then by age, as far as the target of the time between tokens allows
 * (pace.c). Chunks of a method that plans are never cut (prefill.c), so its plan does not depend on
 * the rest of the batch. A row that completes a page needs a page for every layer and KV head. Rows
 * for which there are none wait, so running out of pages stalls sequences and loses nothing. With a
 * disk below the pool, decode rows also wait if their pages do not fit into memory beside those of
 * other sequences (admit.c).
 *
 * Invariant: after sched_pick, every page index that the batch completes is in its sequence's
 * table, with reference count 1. */
#include "engine/sched.h"

#include "engine/pace.h"

#include <assert.h>

static void add_run(sac_engine *e, uint32_t seq_i, uint32_t n, enum row_kind kind)
{
    struct batch *b = &e->batch;
    struct seq *s = &e->seqs[seq_i];
    assert(n > 0 && n <= b->n_row_max - b->n_row && n <= s->n_all - s->n_done);
    assert(kind != ROW_DECODE || n == 1);
    b->run[b->n_run++] = (struct batch_run){
        .row0 = b->n_row, .n_row = n, .pos0 = s->n_done, .seq_i = seq_i, .kind = kind};
    for (uint32_t i = 0; i < n; i++, b->n_row++) {
        b->tok[b->n_row] = s->tok[s->n_done + i];
        b->pos[b->n_row] = s->n_done + i;
        b->seq_i[b->n_row] = seq_i;
        b->want[b->n_row] = s->flags[s->n_done + i] & (TOK_WANT | TOK_STATE);
    }
}

/* Whether there are pages for all of the rows [n_done, n_done + n). */
static bool has_pages(sac_engine *e, uint32_t seq_i, uint32_t n)
{
    const uint32_t pos = e->seqs[seq_i].n_done, n_page = (pos + n) / PAGE_TOK - pos / PAGE_TOK;
    reuse_make_room(e, n_page);
    return n_page <= pool_free_indices(&e->pool);
}

/* Takes the pages that rows [n_done, n_done + n) complete; returns the number of rows, fewer if
 * there are not enough pages. */
static uint32_t reserve_rows(sac_engine *e, uint32_t seq_i, uint32_t n)
{
    const uint32_t pos = e->seqs[seq_i].n_done, first = pos / PAGE_TOK;
    uint32_t n_page = (pos + n) / PAGE_TOK - first;
    reuse_make_room(e, n_page);
    const uint32_t n_can = pool_free_indices(&e->pool);
    if (n_page > n_can) {
        n_page = n_can;
        n = (first + n_page + 1) * PAGE_TOK - 1 - pos; /* up to the last token before a new page */
    }
    if (n_page && !pool_reserve(&e->pool, seq_i, first, n_page)) assert(!"n_free was checked");
    return n;
}

/* Whether the sequence's rows may be in this step. */
static bool may_run(const sac_engine *e, uint32_t seq_i)
{
    if (e->only != SAC_SEQ_NONE) return e->only == seq_i;
    return !e->only_free || !admit_has_joined(e, seq_i);
}

static bool next_is_decode(const struct seq *s)
{
    return s->alive && !s->admit.held && s->n_done < s->n_all && (s->flags[s->n_done] & TOK_DECODE);
}

static uint32_t prompt_rows(const struct seq *s)
{
    uint32_t n = 0;
    while (s->alive && s->n_done + n < s->n_all && !(s->flags[s->n_done + n] & TOK_DECODE)) n++;
    return n;
}

/* The order of prompts; no two tickets are equal. */
static bool is_before(const struct seq *a, const struct seq *b)
{
    return a->priority > b->priority || (a->priority == b->priority && a->ticket < b->ticket);
}

/* The first sequence with pending prompt rows after `last`, or of all. */
static uint32_t next_prompt(const sac_engine *e, uint32_t last)
{
    uint32_t best = SAC_SEQ_NONE;
    for (uint32_t i = 0; i < e->params.n_seq_max; i++) {
        const struct seq *s = &e->seqs[i];
        if (!may_run(e, i) || prompt_rows(s) == 0 ||
            (last != SAC_SEQ_NONE && !is_before(&e->seqs[last], s)))
            continue;
        if (best == SAC_SEQ_NONE || is_before(s, &e->seqs[best])) best = i;
    }
    return best;
}

/* Whether clients of other sequences wait for the end of the step. */
static bool is_timed(const sac_engine *e)
{
    return e->params.tbt_target_ms > 0 && e->batch.n_decode > 0;
}

/* How many of `room` prompt rows there is time for, if they are the sequence's; 0: they wait. */
static uint32_t rows_in_time(sac_engine *e, uint32_t seq_i, uint32_t room)
{
    if (!is_timed(e)) return room;
    pace_begin(e);
    const uint32_t n = pace_rows(e, seq_i);
    return n < room ? n : room;
}

struct picked {
    bool starved;  /* a sequence has no page for its next row */
    bool is_ready; /* all pages of a prompt were found: a decode row is next */
};

static void pick_decode(sac_engine *e, struct picked *out)
{
    struct batch *b = &e->batch;
    for (uint32_t i = 0; i < e->params.n_seq_max && b->n_row < b->n_row_max; i++) {
        if (!may_run(e, i) || !next_is_decode(&e->seqs[i])) continue;
        if (!repeat_is_due(e, i) && reserve_rows(e, i, 1) == 1)
            add_run(e, i, 1, ROW_DECODE);
        else
            out->starved = true;
    }
    b->n_decode = b->n_row;
}

/* Where prompt rows are cut short so that other sequences' tokens come in time: they end at a page
 * boundary, if they reach one and are more than the fewest, because a part of a page costs as much
 * as all of it, in this step and again in the next. */
static uint32_t cut_rows(const sac_engine *e, uint32_t seq_i, uint32_t room)
{
    const uint32_t pos = e->seqs[seq_i].n_done, end = (pos + room) / PAGE_TOK * PAGE_TOK;
    return e->batch.n_decode > 0 && end >= pos + PACE_LEAST_ROWS ? end - pos : room;
}

/* Takes rows of a prompt into the batch, as far as there are pages and room. */
static void pick_prompt(sac_engine *e, uint32_t i, uint32_t *room, struct picked *out)
{
    const struct batch *b = &e->batch;
    uint32_t n = e->seqs[i].n_queued;
    const uint32_t chunk = prefill_chunk(e, i, n);
    const bool is_first = b->n_row == b->n_decode;
    /* A chunk is not cut short: it waits until it is the first. */
    if (chunk > (is_first ? b->n_row_max - b->n_row : *room)) return;
    if (!chunk && n > *room) *room = n = cut_rows(e, i, *room);
    n = reserve_rows(e, i, chunk ? (has_pages(e, i, chunk) ? chunk : 0) : n);
    if (n)
        add_run(e, i, n, ROW_PROMPT);
    else
        out->starved = true;
    *room -= n < *room ? n : *room;
}

static void pick_prompts(sac_engine *e, struct picked *out)
{
    const struct batch *b = &e->batch;
    uint32_t room = is_timed(e) && pace_waits(e) ? 0 : b->n_row_max - b->n_row;
    bool is_known = false; /* whether the number of rows in time is known */
    for (uint32_t i = next_prompt(e, SAC_SEQ_NONE); room && i != SAC_SEQ_NONE;
         i = next_prompt(e, i)) {
        const bool is_found = repeat_of(&e->repeat, i) || reuse_take(e, i);
        e->seqs[i].n_queued = prompt_rows(&e->seqs[i]);
        const bool has_rows = is_found && e->seqs[i].n_queued > 0;
        out->is_ready = out->is_ready || (is_found && !has_rows);
        /* After the lookup of pages, because it takes time, and the rows that remain are deeper. */
        if (!is_found || (has_rows && !is_known)) room = rows_in_time(e, i, room);
        is_known = is_known || has_rows;
        if (has_rows && room) pick_prompt(e, i, &room, out);
    }
}

sac_status sched_pick(sac_engine *e, sac_error *err)
{
    struct batch *b = &e->batch;
    struct picked picked;
    do {
        picked = (struct picked){0};
        b->n_row = b->n_decode = b->n_run = 0;
        admit_pick(e);
        pick_decode(e, &picked);
        pick_prompts(e, &picked);
    } while (b->n_row == 0 && picked.is_ready);
    if (b->n_row == 0 && picked.starved)
        return error_set(err, SAC_ERR_CONTEXT,
                         "the KV pool is full: %u of %u pages are free, one more page of tokens "
                         "needs %u",
                         e->pool.n_free, e->pool.n_page, pool_pages_per_index(&e->pool));
    return SAC_OK;
}

/* Adds a run's counters to its sequence and to the engine. */
static void count_run(sac_engine *e, struct batch_run *run)
{
    *(run->kind == ROW_DECODE ? &run->reads.n_decode_tok : &run->reads.n_prompt_tok) = run->n_row;
    reads_add(&e->seqs[run->seq_i].reads, &run->reads);
    reads_add(&e->stats.reads, &run->reads);
}

void sched_commit(sac_engine *e)
{
    struct batch *b = &e->batch;
    for (uint32_t i = 0; i < b->n_run; i++) {
        struct seq *s = &e->seqs[b->run[i].seq_i];
        s->n_done += b->run[i].n_row;
        assert(s->n_done <= s->n_all);
        count_run(e, &b->run[i]);
    }
    e->stats.n_step++;
}
