/* kept.c: see the header. What choosing reads is counted as the host's code counts it (observe.c),
 * which goes over the keys once for every OBSERVE_ROWS rows. */
#include "methods/kept.h"

#include "methods/meter.h"
#include "methods/observe.h"
#include "methods/pick.h"

struct kept_room {
    float *sum;   /* [tokens of a context, the own page counted whole] */
    float *spare; /* of votes */
    struct op_lane_result *made;
};

static size_t make_room(struct kept_room *r, const struct method_shape *s, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const uint32_t n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    r->sum = arena_take(&a, (size_t)n_page * PAGE_TOK, sizeof *r->sum);
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

/* The next lane from i on that chooses now. */
static uint32_t next(const struct method_batch *b, const uint32_t *due, uint32_t i)
{
    while ((i = batch_next(b, i)) < b->n && !due[i]) i++;
    return i;
}

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

static void begin(const struct method_batch *b, const uint32_t *due,
                  struct kept (*want)(const struct method_lane *l))
{
    struct op_lane_begin *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next(b, due, 0); i < b->n; i = next(b, due, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct kept k = want(l);
        list[n++] = (struct op_lane_begin){
            .mask = k.mask, .n_page = l->pos / PAGE_TOK + 1, .result = room_of(l).made};
        count_reads(l, k.row0);
    }
    if (n > 0) b->ops->lanes.begin(b->workers, list, n);
}

/* Lets OP_OBSERVE_ROWS rows of each lane vote, from the first + `from` on; how many did. */
static uint32_t vote(const struct method_batch *b, const uint32_t *due,
                     struct kept (*want)(const struct method_lane *l), uint32_t from)
{
    struct op_lane_observe *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next(b, due, 0); i < b->n; i = next(b, due, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct kept_room r = room_of(l);
        const uint32_t row0 = want(l).row0 + from;
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
            .result = r.made};
    }
    if (n > 0) b->ops->lanes.observe(b->workers, list, n);
    return n;
}

static void take(const struct method_batch *b, const uint32_t *due,
                 struct kept (*want)(const struct method_lane *l))
{
    struct op_lane_take *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next(b, due, 0); i < b->n; i = next(b, due, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct kept_room r = room_of(l);
        const struct kept k = want(l);
        list[n++] = (struct op_lane_take){.value = r.sum,
                                          .n_page = l->pos / PAGE_TOK + 1,
                                          .item_tok = 1,
                                          .begin = k.sink,
                                          .end = k.row0,
                                          .target = k.budget,
                                          .mask = k.mask,
                                          .result = r.made};
    }
    if (n > 0) b->ops->lanes.take(b->workers, b->ops, list, n);
}

static void mark_ends(const struct method_batch *b, const uint32_t *due,
                      struct kept (*want)(const struct method_lane *l))
{
    struct op_lane_ends *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next(b, due, 0); i < b->n; i = next(b, due, i + 1)) {
        const struct kept k = want(&b->lane[i]);
        list[n++] = (struct op_lane_ends){.mask = k.mask,
                                          .n_page = b->lane[i].pos / PAGE_TOK + 1,
                                          .begin = k.sink,
                                          .end = k.row0};
    }
    if (n > 0) b->ops->lanes.ends(b->workers, b->ops, list, n);
}

void kept_choose(const struct method_batch *b, const uint32_t *due,
                 struct kept (*want)(const struct method_lane *l))
{
    uint32_t from = 0;
    begin(b, due, want);
    while (vote(b, due, want, from) > 0) from += OP_OBSERVE_ROWS;
    take(b, due, want);
    mark_ends(b, due, want);
}

void kept_read(const struct method_batch *b, const uint32_t *due,
               struct kept_made (*made)(const struct method_lane *l))
{
    struct op_lane_keep *list = b->list;
    struct op_lane_ends *ends = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct kept_made m = made(&b->lane[i]);
        list[n++] = (struct op_lane_keep){.kept = m.mask,
                                          .n_kept = (m.n_tok + PAGE_TOK - 1) / PAGE_TOK,
                                          .begin = m.begin,
                                          .end = m.end,
                                          .made = due[i] ? room_of(&b->lane[i]).made : NULL,
                                          .mask = b->pick[i].mask,
                                          .n_page = pick_page_count(&b->lane[i]),
                                          .result = &b->result[i]};
    }
    if (n > 0) b->ops->lanes.keep(b->workers, list, n);
    n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1))
        ends[n++] = (struct op_lane_ends){.mask = b->pick[i].mask,
                                          .n_page = pick_page_count(&b->lane[i]),
                                          .end = made(&b->lane[i]).n_tok};
    if (n > 0) b->ops->lanes.ends(b->workers, b->ops, ends, n);
}
