/* tier_prefetch.c: prefetching: pages that are read from the disk before they are requested, and
 * whether this pays off.
 *
 * What will be requested is either known (parts of a row that streams, visits of a method) or
 * guessed from the previous step and from what this layer reads. Prefetches wait behind all reads
 * that someone waits for. Those that have not begun when their layer requests pages itself are
 * cancelled: from then on they would only delay what is needed.
 *
 * For each reason to prefetch, the share of the prefetched pages that was then requested is
 * counted. A reason with a low share gets few slots in flight, so that a read that someone waits
 * for finds the disk free; a reason with almost none is tried only now and then, to see whether
 * that has changed. No more is guessed for a layer than the disk has recently read before that
 * layer's requests, because a guess takes the frame of another page. Nothing is prefetched while
 * requested pages come from the system's cache (tier_read.c): then reading is a copy and not a
 * wait, and the requesting thread makes it. */
#include "kv/tier.h"

#include <assert.h>
#include <string.h>

#define PREFETCH_MOST (DISK_DEPTH * DISK_RUN) /* pages queued at once by one call */
#define GUESS_LEAST   8u
#define WORTH_N       512u /* pages after which the counts of a reason are halved */

/* ---- Usefulness ---- */

/* Whether the usefulness of a reason is counted: not for pages that a thread has requested, or will
 * request for certain and soon. */
static bool is_counted(enum tier_why why)
{
    return why > TIER_CHOSEN;
}

void tier_prefetch_count(struct tier_worth *worth, bool is_used)
{
    worth->n++;
    worth->n_used += is_used;
    if (worth->n < WORTH_N) return;
    worth->n /= 2;
    worth->n_used /= 2;
}

void tier_prefetch_used(struct tier *t, uint32_t f, bool is_used)
{
    struct tier_frame *frame = &t->frame[f];
    struct tier_worth *worth = &t->worth[frame->why];
    const bool is_ahead = is_counted(frame->why);
    frame->why = TIER_ASKED;
    if (!is_ahead) return;
    t->stats.n_ahead_used += is_used;
    tier_prefetch_count(worth, is_used);
}

/* The share of n that corresponds to the share of prefetched pages that were requested; half of n
 * before much is known. */
static uint32_t share_of(const struct tier *t, enum tier_why why, uint32_t n)
{
    const struct tier_worth *w = &t->worth[why];
    return n * (w->n_used + 4) / (w->n + 8);
}

uint32_t tier_prefetch_slots(const struct tier *t, enum tier_why why)
{
    if (why <= TIER_PART) return DISK_DEPTH * DISK_RUN;
    return 1 + share_of(t, why, DISK_DEPTH);
}

/* ---- Pages without a frame ---- */

uint32_t tier_prefetch_cancel(struct tier *t, enum tier_line_i line)
{
    uint32_t n = 0;
    for (uint32_t f; (f = t->line[line].first) != PAGE_NONE; n++) {
        t->stats.n_ahead -= is_counted(t->frame[f].why);
        t->stats.n_ahead_cancelled += is_counted(t->frame[f].why);
        tier_leave(t, f);
        tier_unbind(t, f);
    }
    return n;
}

static bool may_fetch(const struct tier *t, page_id id)
{
    return id != PAGE_NONE && t->frame_of[id] == PAGE_NONE && tier_has_copy(t, id) &&
           !t->page[id].is_moving;
}

/* Binds frames to the first pages for which there is room, at most n_most; returns their number. */
static uint32_t bind_ahead(struct tier *t, enum tier_why why, const page_id *id, uint32_t n,
                           uint32_t n_most)
{
    uint32_t n_bind = 0;
    for (uint32_t i = 0; i < n && n_bind < n_most; i++) n_bind += may_fetch(t, id[i]);
    if (n_bind > t->n_free) tier_evict_frames(t, n_bind - t->n_free);
    if (n_bind > t->n_free) n_bind = t->n_free;
    for (uint32_t i = 0, left = n_bind; i < n && left > 0; i++) {
        if (!may_fetch(t, id[i])) continue;
        const uint32_t f = tier_bind(t, id[i], TIER_BOUND);
        t->frame[f].why = (uint8_t)why;
        tier_join(t, f, why < TIER_LAST ? TIER_KNOWN : TIER_GUESSED);
        t->stats.n_ahead += is_counted(why);
        left--;
    }
    return n_bind;
}

void tier_prefetch(struct tier *t, enum tier_why why, const page_id *id, uint32_t n)
{
    assert(why >= TIER_CHOSEN && why <= TIER_VISIT);
    if (!t || t->no_ahead || n == 0) return;
    pthread_mutex_lock(&t->lock);
    if (tier_read_is_cached(t)) n = 0;
    /* Pages that are already in frames must not be evicted for the others. */
    for (uint32_t i = 0; i < n; i++)
        if (id[i] != PAGE_NONE && t->frame_of[id[i]] != PAGE_NONE) tier_pin(t, t->frame_of[id[i]]);
    bind_ahead(t, why, id, n, PREFETCH_MOST);
    for (uint32_t i = 0; i < n; i++)
        if (id[i] != PAGE_NONE && t->frame_of[id[i]] != PAGE_NONE &&
            t->frame[t->frame_of[id[i]]].pins > 0)
            tier_unpin(t, t->frame_of[id[i]]);
    if (n > 0) tier_read_pump_later(t);
    pthread_mutex_unlock(&t->lock);
}

/* ---- Guesses ---- */

void tier_prefetch_note_gone(struct tier *t, page_id id)
{
    struct tier_page *page = &t->page[id];
    if (t->no_ahead || page->is_gone || page->used + 1 < t->step) return;
    page->is_gone = true;
    page->gone = t->layer[page->layer].gone;
    t->layer[page->layer].gone = id;
}

/* Pages that the layer has read in the previous step and that were evicted since. */
static uint32_t find_last(struct tier *t, const struct tier_follow *f)
{
    struct tier_layer *layer = &t->layer[f->layer];
    uint32_t n = 0;
    for (page_id id; (id = layer->gone) != PAGE_NONE;) {
        layer->gone = t->page[id].gone;
        t->page[id].is_gone = false;
        const bool is_of_late = t->page[id].layer == f->layer && t->page[id].used + 1 >= t->step;
        if (is_of_late && may_fetch(t, id) && n < f->room) f->scratch[n++] = id;
    }
    return n;
}

/* Used in this step and not in the previous one. */
static bool begins(const struct tier *t, page_id id)
{
    const uint32_t f = id == PAGE_NONE ? PAGE_NONE : t->frame_of[id];
    return f != PAGE_NONE && t->frame[f].used == t->step && !(t->frame[f].history & 2);
}

struct guesses {
    struct tier *t;
    const struct tier_follow *f;
    uint32_t n;
};

static void guess_entry(struct guesses *g, size_t lane, uint32_t entry)
{
    const struct tier_follow *f = g->f;
    const page_id id = f->next[lane * f->stride + entry];
    if (g->n == f->room || !may_fetch(g->t, id)) return;
    if (begins(g->t, f->here[lane * f->stride + entry])) f->scratch[g->n++] = id;
}

/* Pages next to those that this layer has begun to read. */
static uint32_t find_beside(struct tier *t, const struct tier_follow *f)
{
    struct guesses g = {t, f, 0};
    for (size_t h = 0; h < f->n_lane; h++) {
        for (uint32_t i = 0; i < f->n && !f->page_ptr; i++) guess_entry(&g, h, i);
        for (uint32_t i = f->page_ptr ? f->page_ptr[h] : 0; f->page_ptr && i < f->page_ptr[h + 1];
             i++)
            guess_entry(&g, h, f->page[i]);
        for (uint32_t i = f->tok_ptr ? f->tok_ptr[h] : 0; f->tok_ptr && i < f->tok_ptr[h + 1]; i++)
            if (i == f->tok_ptr[h] || f->tok[i] / PAGE_TOK != f->tok[i - 1] / PAGE_TOK)
                guess_entry(&g, h, f->tok[i] / PAGE_TOK);
    }
    return g.n;
}

/* Prefetches fewer pages for a reason of whose pages less than half are used. */
static void guess(struct tier *t, const struct tier_follow *f, enum tier_why why, uint32_t n)
{
    const uint32_t left = t->guess_most - t->n_guess;
    const uint32_t most = 1 + 2 * share_of(t, why, t->guess_most);
    t->n_guess += bind_ahead(t, why, f->scratch, n, most < left ? most : left);
}

/* Limits the next guess to the number of pages that were read in time; raises the limit if all
 * were. */
void tier_prefetch_end_guess(struct tier *t)
{
    if (t->guessed != t->now) return;
    t->guessed = PAGE_NONE;
    const uint32_t n_late = tier_prefetch_cancel(t, TIER_GUESSED);
    if (n_late == 0 && t->n_guess < t->guess_most) return; /* there were no further candidates */
    const uint32_t most = n_late ? t->n_guess - n_late : 2 * t->guess_most;
    t->guess_most = most < GUESS_LEAST ? GUESS_LEAST : most > PREFETCH_MOST ? PREFETCH_MOST : most;
}

void tier_follow(struct tier *t, const struct tier_follow *f)
{
    if (!t || t->no_ahead) return;
    pthread_mutex_lock(&t->lock);
    if (t->guessed != f->layer) {
        tier_prefetch_cancel(t, TIER_GUESSED);
        t->guessed = f->layer;
        t->n_guess = 0;
    }
    t->spared = f->layer;
    if (!tier_read_is_cached(t)) {
        guess(t, f, TIER_LAST, find_last(t, f));
        guess(t, f, TIER_BESIDE, find_beside(t, f));
    }
    t->spared = PAGE_NONE;
    if (t->n_guess > 0) tier_read_pump_later(t);
    pthread_mutex_unlock(&t->lock);
}
