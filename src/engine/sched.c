/* sched.c: the policy of a step, in one place.
 *
 * Decode rows go first, one for each sequence whose next pending token is of that kind: they cost
 * one pass of the weights together and keep the time between tokens short. The rest of the batch is
 * filled with prompt chunks, those of higher priority and then older ones first, as far as the
 * target of the time between tokens allows (below); those of a method that plans are never cut
 * (prefill.c), so it plans the same whatever else is in the batch. A row that completes a page
 * needs a page for every layer and KV head; what does not fit waits, so running out of pages stalls
 * sequences and loses nothing. Above a disk, decode rows wait whose pages do not fit into memory
 * beside those of others (admit.c).
 *
 * Invariant: after sched_pick, every page index that the batch completes is in its sequence's
 * table, with reference count 1. */
#include "engine/sched.h"

#include <assert.h>

#define FIRST_ROWS  32u  /* of prompts in a step as long as nothing is known of their time */
#define LEAST_ROWS  16u  /* of prompts in a step: a tile; fewer take as long */
#define PACE_WEIGHT 0.25 /* of a step in the means of those before it */
#define PACE_STEPS  4    /* that means remember */
/* Of the target that steps with prompt rows aim at. They scatter around their aim: at the target
 * itself half of them would be late. */
#define AIM 0.9
/* A row's work is the tokens before it and this many, which stand for linear layers. */
#define ROW_WORK 4096.0
/* From a step to the next: what is known holds for steps of about its size. Twice as many rows end
 * at the end of a page, too. */
#define WORK_RISE 2.5
#define WAIT_MOST 8u /* steps without prompt rows behind late ones: prompts must go on */

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
        b->want[b->n_row] = (s->flags[s->n_done + i] & TOK_WANT) != 0;
    }
}

/* Whether pages are free for all of the rows [n_done, n_done + n). */
static bool has_pages(sac_engine *e, uint32_t seq_i, uint32_t n)
{
    const uint32_t pos = e->seqs[seq_i].n_done, n_page = (pos + n) / PAGE_TOK - pos / PAGE_TOK;
    reuse_make_room(e, n_page);
    return n_page <= pool_free_indices(&e->pool);
}

/* Takes the pages that rows [n_done, n_done + n) complete; fewer rows if the pool is short. */
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
    return e->only == SAC_SEQ_NONE || e->only == seq_i;
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

/* Whose prompt comes first; no two tickets are the same. */
static bool is_before(const struct seq *a, const struct seq *b)
{
    return a->priority > b->priority || (a->priority == b->priority && a->ticket < b->ticket);
}

/* The first sequence with pending prompt rows behind `last`, or of all. */
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

/* ---- The time between tokens ----
 *
 * What prompt rows add to a step is fixed_us + n row_us: all weights are read once more for them,
 * however few they are, and each row's attention takes as long as the context is. Both come from
 * the last few steps, by least squares, so they follow a prompt into its depth; where these had
 * equally many rows, fixed_us is what it was. Rows are taken as the target leaves time, and no
 * more than WORK_RISE times the work of the last step, so that a guess about other sizes or other
 * depths costs little where it is wrong. If the fewest take too long, the time is caught up with by
 * steps without any: then the mean time between tokens keeps the target where single ones can not.
 */

/* Tokens that prompt rows of the batch look at, and what stands for linear layers. */
static double batch_work(const struct batch *b)
{
    double work = 0;
    for (uint32_t i = 0; i < b->n_run; i++)
        if (b->run[i].kind == ROW_PROMPT)
            work += b->run[i].n_row * (ROW_WORK + (double)b->run[i].pos0);
    return work;
}

/* Prompt rows behind so many tokens for which a step with the batch's decode rows has time. */
static uint32_t rows_in_time(const sac_engine *e, uint32_t depth)
{
    const struct pace *p = &e->pace;
    const double left_us = AIM * 1e3 * (double)e->params.tbt_target_ms - p->decode_us;
    const double most = WORK_RISE * p->work / (ROW_WORK + depth);
    if (p->row_us <= 0) return FIRST_ROWS;
    double n = (left_us / (1 + p->over) - p->fixed_us) / p->row_us;
    if (p->work > 0 && n > most) n = most;
    return n >= e->batch.n_row_max ? e->batch.n_row_max : n > LEAST_ROWS ? (uint32_t)n : LEAST_ROWS;
}

/* The same of all prompt rows that there is room for; 0: they wait. */
static uint32_t prompt_room(const sac_engine *e, uint32_t depth)
{
    const uint32_t room = e->batch.n_row_max - e->batch.n_row;
    if (e->params.tbt_target_ms <= 0 || e->batch.n_decode == 0) return room;
    if (e->pace.debt_us > 0 && e->pace.n_wait < WAIT_MOST) return 0;
    const uint32_t n = rows_in_time(e, depth);
    return n < room ? n : room;
}

static void move_to(double *mean, double x, double weight)
{
    *mean += (x - *mean) * weight;
}

/* A line through the last steps' times. */
static void fit_line(struct pace *p, double n, double us)
{
    p->n_seen = p->n_seen < PACE_STEPS ? p->n_seen + 1 : PACE_STEPS;
    const double weight = 1 / p->n_seen;
    move_to(&p->n, n, weight);
    move_to(&p->us, us, weight);
    move_to(&p->nn, n * n, weight);
    move_to(&p->nus, n * us, weight);
    const double spread = p->nn - p->n * p->n;
    if (spread > 0.01 * p->n * p->n) {
        const double slope = (p->nus - p->n * p->us) / spread;
        p->fixed_us = p->us - slope * p->n;
    }
    /* Neither is less than nothing. */
    p->fixed_us = p->fixed_us > 0 ? p->fixed_us < p->us ? p->fixed_us : 0.99 * p->us : 0;
    p->row_us = (p->us - p->fixed_us) / p->n;
}

/* A step with prompt rows took `us` longer than decode rows do. At once upwards: with the mean for
 * a measure, every second step would take longer than its target. */
static void note_prompt(struct pace *p, double n, double us)
{
    fit_line(p, n, us);
    const double over = us / (p->fixed_us + n * p->row_us) - 1;
    if (over > p->over)
        p->over = over;
    else
        move_to(&p->over, over > 0 ? over : 0, PACE_WEIGHT);
}

/* What a step took less than the target is time to catch up; more than prompt rows wait for in one
 * go is forgotten. */
static void note_debt(struct pace *p, bool has_prompt, double us, double target_us)
{
    const double most = WAIT_MOST * target_us, debt = p->debt_us + us - target_us;
    p->n_wait = has_prompt ? 0 : p->n_wait + 1;
    p->debt_us = debt > most ? most : debt > 0 ? debt : 0;
}

void sched_note(sac_engine *e, double us)
{
    struct pace *p = &e->pace;
    const uint32_t n_decode = e->batch.n_decode, n_prompt = e->batch.n_row - n_decode;
    if (n_decode == 0) return; /* nobody waits for tokens, and steps are of other sizes */
    note_debt(p, n_prompt > 0, us, 1e3 * (double)e->params.tbt_target_ms);
    if (n_prompt == 0) {
        move_to(&p->decode_us, us, p->decode_us > 0 ? PACE_WEIGHT : 1);
        return;
    }
    p->work = batch_work(&e->batch);
    if (us > p->decode_us) note_prompt(p, n_prompt, us - p->decode_us);
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

/* Rows of a prompt that time for tokens of others cuts short: up to the end of a page, if they come
 * so far and are not the fewest. A part of a page costs as much as all of it, here and again in the
 * next step. */
static uint32_t cut_rows(const sac_engine *e, uint32_t seq_i, uint32_t room)
{
    const uint32_t pos = e->seqs[seq_i].n_done, end = (pos + room) / PAGE_TOK * PAGE_TOK;
    return e->batch.n_decode > 0 && end >= pos + LEAST_ROWS ? end - pos : room;
}

static void pick_prompts(sac_engine *e, struct picked *out)
{
    struct batch *b = &e->batch;
    uint32_t i = next_prompt(e, SAC_SEQ_NONE);
    uint32_t room = i == SAC_SEQ_NONE ? 0 : prompt_room(e, e->seqs[i].n_done);
    for (; room && i != SAC_SEQ_NONE; i = next_prompt(e, i)) {
        if (!repeat_of(&e->repeat, i) && !reuse_take(e, i)) continue;
        uint32_t n = prompt_rows(&e->seqs[i]);
        e->seqs[i].n_queued = n;
        out->is_ready = out->is_ready || n == 0;
        if (n == 0) continue;
        const uint32_t chunk = prefill_chunk(e, i, n);
        const bool is_first = b->n_row == b->n_decode;
        /* Not cut short: it waits until it comes first. */
        if (chunk > (is_first ? b->n_row_max - b->n_row : room)) continue;
        if (!chunk && n > room) room = n = cut_rows(e, i, room);
        n = reserve_rows(e, i, chunk ? (has_pages(e, i, chunk) ? chunk : 0) : n);
        if (n)
            add_run(e, i, n, ROW_PROMPT);
        else
            out->starved = true;
        room -= n < room ? n : room;
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

/* A run's counters go to its sequence and to the engine. */
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
