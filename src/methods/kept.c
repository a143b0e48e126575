/* kept.c: see the header. What a selection reads is counted as for the host's code (observe.c),
 * which reads the keys once for every OBSERVE_ROWS rows. */
#include "methods/kept.h"

#include "methods/meter.h"
#include "methods/observe.h"
#include "methods/pick.h"

struct kept_room {
    float *sum;      /* [2, tokens of a context, whole pages] attention by token; by distance */
    uint32_t *taken; /* [2, pages] lines that are selected: columns; slashes */
    float *spare;    /* of op_lane_observe */
    struct op_lane_result *made;
};

static size_t make_room(struct kept_room *r, const struct method_shape *s, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const uint32_t n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    r->sum = arena_take(&a, 2 * (size_t)n_page * PAGE_TOK, sizeof *r->sum);
    r->taken = arena_take(&a, 2 * (size_t)n_page, sizeof *r->taken);
    r->spare = arena_take(&a, op_observe_spare(n_page, s->group), sizeof *r->spare);
    r->made = arena_take(&a, 1, sizeof *r->made);
    return a.used;
}

static struct kept_room room_of(const struct method_lane *l)
{
    struct kept_room r;
    make_room(&r, l->shape, l->scratch);
    return r;
}

size_t kept_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct kept_room r;
    (void)param;
    return make_room(&r, s, NULL);
}

static bool has_lines(const struct method_batch *b, uint32_t i)
{
    return b->target[i] == KEPT_READ_LINES || b->target[i] == KEPT_CHOOSE_LINES;
}

static bool selects(const struct method_batch *b, uint32_t i)
{
    return b->target[i] == KEPT_CHOOSE || b->target[i] == KEPT_CHOOSE_LINES;
}

/* The next lane that reads a selection, of lines or not. */
static uint32_t next_read(const struct method_batch *b, uint32_t i, bool by_lines)
{
    while ((i = batch_next(b, i)) < b->n && has_lines(b, i) != by_lines) i++;
    return i;
}

static const struct op_lane_result *made_now(const struct method_batch *b, uint32_t i)
{
    return selects(b, i) ? room_of(&b->lane[i]).made : NULL;
}

/* Pages of the context, the query's own included. */
static uint32_t page_count(const struct method_lane *l)
{
    return l->pos / PAGE_TOK + 1;
}

/* ---- Selection ---- */

/* A lane whose rows vote in this step. */
struct voter {
    const struct method_lane *lane;
    struct kept_room room;
    struct kept want;
    bool selects, lines;
    uint32_t *mask;  /* [n_page] the selection */
    uint32_t n_page; /* pages of the context; twice as many for lines of two kinds */
};

/* A selection calls several slots of ops/lanes.h, each for all voters at once. A put_fn writes one
 * voter's descriptor for a slot to list[at], for its rows from number `from` on; false: it has
 * none. */
typedef bool (*put_fn)(void *list, uint32_t at, const struct voter *v, uint32_t from);

static struct voter voter_of(const struct method_batch *b, uint32_t i,
                             struct kept (*want)(const struct method_lane *l))
{
    struct voter v = {.lane = &b->lane[i], .selects = selects(b, i), .lines = has_lines(b, i)};
    v.room = room_of(v.lane);
    v.want = want(v.lane);
    v.mask = v.lines ? v.room.taken : v.want.mask;
    v.n_page = (v.lines ? 2 : 1) * page_count(v.lane);
    return v;
}

/* Writes the descriptors of all voters; returns their number. */
static uint32_t put_voters(const struct method_batch *b,
                           struct kept (*want)(const struct method_lane *l), put_fn put,
                           uint32_t from)
{
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        if (!selects(b, i) && b->target[i] != KEPT_SUM) continue;
        const struct voter v = voter_of(b, i, want);
        n += put(b->list, n, &v, from);
    }
    return n;
}

static bool put_begin(void *list, uint32_t at, const struct voter *v, uint32_t from)
{
    struct op_lane_begin *to = list;
    (void)from;
    to[at] = (struct op_lane_begin){
        .mask = v->mask, .n_page = v->selects ? v->n_page : 0, .result = v->room.made};
    return true;
}

/* The attention of OP_OBSERVE_ROWS rows, from number `from` on. */
static bool put_rows(void *list, uint32_t at, const struct voter *v, uint32_t from)
{
    const struct method_lane *l = v->lane;
    const uint32_t row0 = v->want.row0 + from;
    struct op_lane_observe *to = list;
    if (row0 >= v->want.end) return false;
    to[at] = (struct op_lane_observe){
        .keys = {l->shape->geom, l->frames, l->page, l->own},
        .rows = {l->q, l->past.q, l->past.n_slot, l->pos, l->shape->group,
                 (size_t)l->shape->group * l->shape->geom->head_dim},
        .row0 = row0,
        .n_row = min_u32(OP_OBSERVE_ROWS, v->want.end - row0),
        .scale = l->scale,
        .softcap = l->softcap,
        .adds = from > 0,
        .spare = v->room.spare,
        .sum = v->room.sum,
        .slash = v->lines ? v->room.sum + (size_t)page_count(l) * PAGE_TOK : NULL,
        .begin = v->want.sink,
        .end = v->selects ? v->want.row0 : UINT32_MAX,
        .result = v->room.made};
    return true;
}

/* The tokens or lines with the largest sums. Sinks and the voting rows, which are read anyway, are
 * out of its range or have the sum -INFINITY. */
static bool put_take(void *list, uint32_t at, const struct voter *v, uint32_t from)
{
    struct op_lane_take *to = list;
    (void)from;
    if (!v->selects) return false;
    to[at] = (struct op_lane_take){.value = v->room.sum,
                                   .n_page = v->n_page,
                                   .item_tok = 1,
                                   .begin = v->want.sink,
                                   .end = v->lines ? v->n_page * PAGE_TOK : v->want.row0,
                                   .target = v->want.budget,
                                   .mask = v->mask,
                                   .result = v->room.made};
    return true;
}

static bool put_ends(void *list, uint32_t at, const struct voter *v, uint32_t from)
{
    struct op_lane_ends *to = list;
    (void)from;
    if (!v->selects || v->lines) return false;
    to[at] = (struct op_lane_ends){
        .mask = v->mask, .n_page = v->n_page, .begin = v->want.sink, .end = v->want.row0};
    return true;
}

/* Counts what the selections of this step read; for KEPT_SUM the host counts it, where it
 * selects. */
static void count_reads(const struct method_batch *b,
                        struct kept (*want)(const struct method_lane *l))
{
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        if (!selects(b, i)) continue;
        meter_build(l);
        observe_count(l, want(l).row0, want(l).end);
        meter_choose(l);
    }
}

void kept_choose(const struct method_batch *b, struct kept (*want)(const struct method_lane *l))
{
    const struct ops_lanes *slots = &b->ops->lanes;
    uint32_t n = put_voters(b, want, put_begin, 0);
    if (n == 0) return;
    count_reads(b, want);
    slots->begin(b->workers, b->list, n);
    for (uint32_t from = 0; (n = put_voters(b, want, put_rows, from)) > 0; from += OP_OBSERVE_ROWS)
        slots->observe(b->workers, b->list, n);
    n = put_voters(b, want, put_take, 0);
    if (n > 0) slots->take(b->workers, b->ops, b->list, n);
    n = put_voters(b, want, put_ends, 0);
    if (n > 0) slots->ends(b->workers, b->ops, b->list, n);
}

/* ---- Reading ---- */

void kept_read(const struct method_batch *b, struct kept_made (*made)(const struct method_lane *l))
{
    struct op_lane_keep *list = b->list;
    struct op_lane_ends *ends = b->list;
    uint32_t n = 0, n_end = 0;
    for (uint32_t i = next_read(b, 0, false); i < b->n; i = next_read(b, i + 1, false)) {
        const struct kept_made m = made(&b->lane[i]);
        list[n++] = (struct op_lane_keep){.kept = m.mask,
                                          .n_kept = (m.n_tok + PAGE_TOK - 1) / PAGE_TOK,
                                          .begin = m.begin,
                                          .end = m.end,
                                          .made = made_now(b, i),
                                          .mask = b->pick[i].mask,
                                          .n_page = pick_page_count(&b->lane[i]),
                                          .result = &b->result[i]};
    }
    if (n == 0) return;
    b->ops->lanes.keep(b->workers, list, n);
    for (uint32_t i = next_read(b, 0, false); i < b->n; i = next_read(b, i + 1, false))
        ends[n_end++] = (struct op_lane_ends){.mask = b->pick[i].mask,
                                              .n_page = pick_page_count(&b->lane[i]),
                                              .end = made(&b->lane[i]).n_tok};
    b->ops->lanes.ends(b->workers, b->ops, ends, n_end);
}

void kept_read_lines(const struct method_batch *b,
                     struct kept_lines (*made)(const struct method_lane *l))
{
    struct op_lane_ends *ends = b->list;
    struct op_lane_lines *list = b->list;
    uint32_t n = 0, n_line = 0;
    for (uint32_t i = next_read(b, 0, true); i < b->n; i = next_read(b, i + 1, true)) {
        const struct kept_lines m = made(&b->lane[i]);
        const uint32_t n_tok = b->lane[i].pos + 1;
        ends[n++] = (struct op_lane_ends){.mask = b->pick[i].mask,
                                          .n_page = pick_page_count(&b->lane[i]),
                                          .begin = m.sink,
                                          .end = n_tok - min_u32(m.recent, n_tok)};
    }
    if (n == 0) return;
    b->ops->lanes.ends(b->workers, b->ops, ends, n);
    for (uint32_t i = next_read(b, 0, true); i < b->n; i = next_read(b, i + 1, true)) {
        const struct kept_lines m = made(&b->lane[i]);
        list[n_line++] = (struct op_lane_lines){.column = m.column,
                                                .slash = m.slash,
                                                .taken = room_of(&b->lane[i]).taken,
                                                .made = made_now(b, i),
                                                .n_line = (m.n_tok + PAGE_TOK - 1) / PAGE_TOK,
                                                .by = b->lane[i].pos + 1 - m.n_tok,
                                                .mask = b->pick[i].mask,
                                                .n_page = pick_page_count(&b->lane[i]),
                                                .result = &b->result[i]};
    }
    b->ops->lanes.lines(b->workers, list, n_line);
}
