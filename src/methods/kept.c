/* kept.c: see the header. What choosing reads is counted as the host's code counts it (observe.c),
 * which goes over the keys once for every OBSERVE_ROWS rows. */
#include "methods/kept.h"

#include "methods/meter.h"
#include "methods/observe.h"
#include "methods/pick.h"

struct kept_room {
    float *sum;      /* [tokens of a context, the own page whole] twice: by distance behind them */
    uint32_t *taken; /* the same of pages: lines that a choice has taken */
    float *spare;    /* of votes */
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
    return b->target[i] >= KEPT_READ_LINES;
}

static bool chooses(const struct method_batch *b, uint32_t i)
{
    return b->target[i] == KEPT_CHOOSE || b->target[i] == KEPT_CHOOSE_LINES;
}

/* The next lane from i on that chooses now. */
static uint32_t next(const struct method_batch *b, uint32_t i)
{
    while ((i = batch_next(b, i)) < b->n && !chooses(b, i)) i++;
    return i;
}

/* The next that reads, by lines or not. */
static uint32_t next_read(const struct method_batch *b, uint32_t i, bool by_lines)
{
    while ((i = batch_next(b, i)) < b->n && has_lines(b, i) != by_lines) i++;
    return i;
}

static const struct op_lane_result *made_now(const struct method_batch *b, uint32_t i)
{
    return chooses(b, i) ? room_of(&b->lane[i]).made : NULL;
}

/* Pages of a choice: the own one, too. */
static uint32_t page_count(const struct method_lane *l)
{
    return l->pos / PAGE_TOK + 1;
}

/* ---- Choices ---- */

static void count_reads(const struct method_lane *l, uint32_t row0)
{
    const struct page_geom *g = l->shape->geom;
    const uint32_t n_page = pick_page_count(l), n_own = l->pos % PAGE_TOK + 1;
    meter_build(l);
    for (uint32_t row = row0, n_row; row <= l->pos; row += n_row) {
        n_row = pick_min(OBSERVE_ROWS, l->pos + 1 - row);
        const uint32_t n = pick_min(n_page, (row + n_row + PAGE_TOK - 1) / PAGE_TOK);
        meter_bytes(l, n * page_all_keys(g));
        if (n_page * PAGE_TOK < row + n_row) meter_read(l, l->own, (size_t)n_own * g->head_dim * 2);
    }
    meter_choose(l);
}

static void begin(const struct method_batch *b, struct kept (*want)(const struct method_lane *l))
{
    struct op_lane_begin *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next(b, 0); i < b->n; i = next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct kept_room r = room_of(l);
        const struct kept k = want(l);
        const bool lines = has_lines(b, i);
        list[n++] = (struct op_lane_begin){.mask = lines ? r.taken : k.mask,
                                           .n_page = (lines ? 2 : 1) * page_count(l),
                                           .result = r.made};
        count_reads(l, k.row0);
    }
    if (n > 0) b->ops->lanes.begin(b->workers, list, n);
}

/* Lets OP_OBSERVE_ROWS rows of each lane vote, from the first + `from` on; how many lanes did. */
static uint32_t vote(const struct method_batch *b, struct kept (*want)(const struct method_lane *l),
                     uint32_t from)
{
    struct op_lane_observe *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next(b, 0); i < b->n; i = next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct kept_room r = room_of(l);
        const struct kept k = want(l);
        const uint32_t row0 = k.row0 + from;
        if (row0 > l->pos) continue;
        list[n++] = (struct op_lane_observe){
            .keys = {l->shape->geom, l->frames, l->page, l->own},
            .rows = {l->q, l->past.q, l->past.n_slot, l->pos, l->shape->group},
            .row0 = row0,
            .n_row = pick_min(OP_OBSERVE_ROWS, l->pos + 1 - row0),
            .scale = l->scale,
            .softcap = l->softcap,
            .adds = from > 0,
            .spare = r.spare,
            .sum = r.sum,
            .slash = has_lines(b, i) ? r.sum + (size_t)page_count(l) * PAGE_TOK : NULL,
            .begin = k.sink,
            .end = k.row0,
            .result = r.made};
    }
    if (n > 0) b->ops->lanes.observe(b->workers, list, n);
    return n;
}

/* What is left out is -INFINITY and comes last; of tokens it is read in any case. */
static void take(const struct method_batch *b, struct kept (*want)(const struct method_lane *l))
{
    struct op_lane_take *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next(b, 0); i < b->n; i = next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct kept_room r = room_of(l);
        const struct kept k = want(l);
        const bool lines = has_lines(b, i);
        const uint32_t n_page = (lines ? 2 : 1) * page_count(l);
        list[n++] = (struct op_lane_take){.value = r.sum,
                                          .n_page = n_page,
                                          .item_tok = 1,
                                          .begin = k.sink,
                                          .end = lines ? n_page * PAGE_TOK : k.row0,
                                          .target = k.budget,
                                          .mask = lines ? r.taken : k.mask,
                                          .result = r.made};
    }
    if (n > 0) b->ops->lanes.take(b->workers, b->ops, list, n);
}

static void keep_ends(const struct method_batch *b,
                      struct kept (*want)(const struct method_lane *l))
{
    struct op_lane_ends *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next(b, 0); i < b->n; i = next(b, i + 1)) {
        const struct kept k = want(&b->lane[i]);
        if (has_lines(b, i)) continue;
        list[n++] = (struct op_lane_ends){
            .mask = k.mask, .n_page = page_count(&b->lane[i]), .begin = k.sink, .end = k.row0};
    }
    if (n > 0) b->ops->lanes.ends(b->workers, b->ops, list, n);
}

void kept_choose(const struct method_batch *b, struct kept (*want)(const struct method_lane *l))
{
    uint32_t from = 0;
    begin(b, want);
    while (vote(b, want, from) > 0) from += OP_OBSERVE_ROWS;
    take(b, want);
    keep_ends(b, want);
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
                                          .end = n_tok - pick_min(m.recent, n_tok)};
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
