/* admit.c: one queue of the sequences whose next row is a decode row. The sequences at its front
 * decode, as many as have working sets that fit into the frames together. No sequence overtakes
 * another, and a sequence that has decoded for a whole turn goes to the back if others wait, so
 * each gets its turn.
 *
 * The working set of a sequence is the pages that its last WINDOW steps used; a page shared by
 * several sequences counts once. The working set of a sequence that has decoded for fewer steps is
 * predicted: its size before the sequence had to wait or, if there is none, the average share of
 * their pages that sequences of the same method have in their sets (at first, all pages). A
 * sequence that joins must leave an eighth of the frames free, so that sets can grow.
 *
 * The weights are read once for all rows of a step. Where they are most of the work, decoding more
 * sequences than fit is worth the extra page fetches. Whether it is worth it is found by trial:
 * while a sequence waits, one more is admitted, or one fewer, for 32 steps, and the change is kept
 * if it yields more rows per second. The limit never falls below the number of frames.
 *
 * With a target for the time between tokens, if more than one of a hundred steps exceeds it, the
 * number of decoding sequences is limited to one fewer than now; it rises again when the steps
 * leave time for another row. pace.c decides how many prompt rows run beside them.
 *
 * Invariants: the first sequence of the queue is never held; if one is held, so are all behind it;
 * a sequence outside the queue is not held. Nothing here allocates. */
#include "engine/admit.h"

#include "engine/engine.h"

#include <assert.h>

#define WINDOW      16u   /* steps that determine a working set, as in the paper */
#define TURN        256u  /* decode rows of a turn */
#define COUNT_EVERY 8u    /* steps between two counts while the queue stays as it is */
#define TIMED       100u  /* steps over which the target is judged */
#define LATE_MOST   1u    /* of these steps may be late */
#define WEIGHT      0.25F /* weight of a new working set in the average share of its method */
#define TRIED       32u   /* steps for which a limit is tried */
#define LOSS        0.98  /* a lower rate than this, relative to the previous limit's, is worse */
#define REST        8u    /* trials to skip after one that was worse */

void admit_plan(sac_engine *e, struct arena *a)
{
    const size_t n_method = e->params.n_decode ? e->params.n_decode : 1;
    e->admit.order = arena_take(a, e->pool.tier ? e->params.n_seq_max : 0, sizeof(uint32_t));
    e->admit.share = arena_take(a, e->pool.tier ? n_method : 0, sizeof(float));
    for (size_t i = 0; a->base && e->pool.tier && i < n_method; i++) e->admit.share[i] = 1;
    e->admit.room = e->pool.n_frame;
    e->admit.direction = 1;
}

void admit_join(sac_engine *e, sac_seq id)
{
    struct seq *s = engine_seq(e, id, NULL);
    if (s) s->admit = (struct admit_seq){.joined = true};
}

bool admit_has_joined(const sac_engine *e, sac_seq id)
{
    const struct seq *s = engine_seq(e, id, NULL);
    return s && s->admit.joined;
}

static void set_held(sac_engine *e, struct admit_seq *s, bool held)
{
    if (s->held == held) return;
    s->held = held;
    if (held)
        s->held_since = engine_now(e);
    else
        s->held_us += engine_now(e) - s->held_since;
    e->admit.n_hold += held;
}

uint64_t admit_leave(sac_engine *e, sac_seq id)
{
    struct seq *s = engine_seq(e, id, NULL);
    if (!s) return 0;
    set_held(e, &s->admit, false);
    const uint64_t us = s->admit.held_us;
    s->admit = (struct admit_seq){0};
    e->admit.changed = true;
    return us;
}

/* ---- Working sets ---- */

struct demand {
    uint32_t n_entry;         /* pages of the sequence */
    uint32_t n_used;          /* of these, used recently */
    uint32_t n_new, n_shared; /* of those, not counted before; counted for another sequence */
};

static struct demand count(const sac_engine *e, uint32_t seq_i, uint32_t since)
{
    struct demand d = {0};
    const uint32_t n_page = e->seqs[seq_i].n_done / PAGE_TOK;
    for (uint32_t layer = 0; layer < e->pool.geom.n_layer; layer++)
        for (uint32_t h = 0; h < e->pool.geom.n_kv_head; h++) {
            const page_id *id = pool_table(&e->pool, seq_i, layer) + (size_t)h * e->pool.max_page;
            const struct tier_use use =
                tier_working_set(e->pool.tier, id, n_page, since, e->admit.round);
            d.n_entry += use.n_page;
            d.n_used += use.n_used;
            d.n_new += use.n_new;
            d.n_shared += use.n_known;
        }
    return d;
}

/* Frames that the sequence needs in addition to those of the sequences counted before it. */
static uint32_t demand_of(sac_engine *e, uint32_t seq_i)
{
    struct admit_seq *s = &e->seqs[seq_i].admit;
    float *share = &e->admit.share[e->seqs[seq_i].method_i[METHOD_SET_DECODE]];
    const uint32_t window = s->last >= WINDOW ? s->last - WINDOW + 1 : 0;
    const bool is_seen = s->n_seen > 0;
    const struct demand d = count(e, seq_i,
                                  !is_seen            ? UINT32_MAX
                                  : s->first > window ? s->first
                                                      : window);
    if (s->n_seen >= WINDOW) {
        s->n_set = d.n_used;
        if (d.n_entry) *share += ((float)d.n_used / (float)d.n_entry - *share) * WEIGHT;
        return d.n_new;
    }
    const uint32_t foretold = s->n_set ? s->n_set : (uint32_t)(*share * (float)d.n_entry);
    const uint32_t rest = foretold > d.n_shared ? foretold - d.n_shared : 0;
    return rest > d.n_new ? rest : d.n_new;
}

/* ---- The queue ---- */

static bool is_before(const sac_engine *e, uint32_t a, uint32_t b)
{
    const struct seq *x = &e->seqs[a], *y = &e->seqs[b];
    return x->priority > y->priority ||
           (x->priority == y->priority && x->admit.place < y->admit.place);
}

/* Lists the sequences whose next row is a decode row, in queue order; returns their number. */
static uint32_t line_up(sac_engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->params.n_seq_max; i++) {
        struct seq *s = &e->seqs[i];
        const bool is_in = s->alive && s->admit.joined && s->n_done < s->n_all &&
                           (s->flags[s->n_done] & TOK_DECODE);
        if (!is_in) continue;
        if (!s->admit.place) {
            s->admit.place = ++e->admit.n_place;
            e->admit.changed = true;
        }
        uint32_t at = n++;
        for (; at > 0 && is_before(e, i, e->admit.order[at - 1]); at--)
            e->admit.order[at] = e->admit.order[at - 1];
        e->admit.order[at] = i;
    }
    return n;
}

uint32_t admit_held(const sac_engine *e)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < e->params.n_seq_max; i++)
        n += e->seqs[i].alive && e->seqs[i].admit.held;
    return n;
}

/* Moves sequences that have had a turn to the back, if others wait. */
static bool end_turns(sac_engine *e, uint32_t n)
{
    bool any = false;
    const bool waits = admit_held(e) > 0;
    for (uint32_t i = 0; i < n && waits; i++) {
        struct admit_seq *s = &e->seqs[e->admit.order[i]].admit;
        if (s->held || s->n_turn < TURN) continue;
        s->place = ++e->admit.n_place;
        s->n_turn = 0;
        any = true;
    }
    return any;
}

static bool fits(sac_engine *e, uint32_t seq_i, uint32_t n_in, uint64_t need)
{
    const struct admit_seq *s = &e->seqs[seq_i].admit;
    struct admit *a = &e->admit;
    const bool is_in = !s->held && s->n_turn, is_late = !is_in && a->limit && n_in >= a->limit;
    const bool is_full = need > (is_in ? a->room : a->room - e->pool.n_frame / 8);
    if (n_in == 0) return true;
    a->limit_binds |= is_late;
    a->room_binds |= is_full && !is_late;
    a->wanted = need + e->pool.n_frame / 8;
    return !is_late && !is_full;
}

static void admit(sac_engine *e, uint32_t n)
{
    struct admit *a = &e->admit;
    uint64_t sum = 0;
    bool is_full = false;
    a->round++;
    a->limit_binds = a->room_binds = false;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t need = is_full ? 0 : sum + demand_of(e, a->order[i]);
        is_full = is_full || !fits(e, a->order[i], i, need);
        if (!is_full) sum = need;
        set_held(e, &e->seqs[a->order[i]].admit, is_full);
    }
    a->n_set = sum;
}

void admit_pick(sac_engine *e)
{
    struct admit *a = &e->admit;
    if (!e->pool.tier || e->tier_params.admit == SAC_TIER_ADMIT_ALL) return;
    uint32_t n = line_up(e);
    if (end_turns(e, n)) {
        n = line_up(e);
        a->changed = true;
    }
    if (!a->changed && n == a->n_member && e->tier.step - a->counted < COUNT_EVERY) return;
    admit(e, n);
    a->changed = false;
    a->n_member = n;
    a->counted = e->tier.step;
}

/* ---- After a step ---- */

static void note_row(sac_engine *e, struct admit_seq *s)
{
    if (s->n_seen == 0 || s->last + 1 != e->tier.step) {
        s->first = e->tier.step;
        s->n_seen = 0;
    }
    s->last = e->tier.step;
    s->n_seen++;
    s->n_turn++;
}

static void judge_time(sac_engine *e, double us)
{
    struct admit *a = &e->admit;
    const uint32_t n = e->batch.n_decode;
    if (e->params.tbt_target_ms <= 0 || n == 0 || n != e->batch.n_row) return;
    const double target_us = 1e3 * (double)e->params.tbt_target_ms;
    a->n_timed++;
    a->n_late += us > target_us;
    a->timed_us += us;
    if (a->n_late <= LATE_MOST && a->n_timed < TIMED) return;
    if (a->n_late > LATE_MOST)
        a->limit = n > 1 ? n - 1 : 1;
    else if (a->limit_binds && a->timed_us * (a->limit + 1) <= a->n_timed * target_us * a->limit)
        a->limit++; /* there is time for one more decode row */
    a->n_timed = a->n_late = 0;
    a->timed_us = 0;
    a->changed = true;
}

/* Sets the limit to one more or one fewer sequence than decode now, but not below the number of
 * frames. */
static void move_room(sac_engine *e)
{
    struct admit *a = &e->admit;
    const uint64_t least = e->pool.n_frame;
    if (a->direction < 0 && a->room == least) a->direction = 1;
    if (a->direction > 0)
        a->room = a->wanted > a->room ? a->wanted : a->room;
    else
        a->room = a->n_set > least ? a->n_set - 1 : least;
    a->changed = true;
}

/* Evaluates a limit that has been tried: if it yields less than the previous one, the direction is
 * reversed, and no limit is tried for a while. */
static void try_next(sac_engine *e, double rate)
{
    struct admit *a = &e->admit;
    const bool is_worse = rate < a->rate * LOSS;
    a->rate = rate;
    if (is_worse) {
        a->direction = -a->direction;
        a->n_rest = REST;
    } else if (a->n_rest > 0) {
        a->n_rest--;
        return;
    }
    move_room(e);
}

static void judge_room(sac_engine *e, double us)
{
    struct admit *a = &e->admit;
    const uint32_t n = e->batch.n_decode;
    if (n == 0 || n != e->batch.n_row) return;
    a->n_tried = a->room_binds ? a->n_tried + 1 : 0;
    a->tried_rows = a->n_tried > 1 ? a->tried_rows + n : n;
    a->tried_us = a->n_tried > 1 ? a->tried_us + us : us;
    if (a->n_tried < TRIED) return;
    if (a->tried_us > 0) try_next(e, a->tried_rows / a->tried_us);
    a->n_tried = 0;
}

void admit_note(sac_engine *e, double us)
{
    if (!e->pool.tier) return;
    for (uint32_t i = 0; i < e->batch.n_decode; i++)
        note_row(e, &e->seqs[e->batch.run[i].seq_i].admit);
    judge_time(e, us);
    judge_room(e, us);
}
