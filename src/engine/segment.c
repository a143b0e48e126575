/* segment.c: see the header.
 *
 * Invariants:
 *  1. Segment ends are ascending, neighbours have different offsets, and the last offset is not 0.
 *     An ordinary sequence therefore has no segments, and attention takes the plain path for a
 *     sequence whose segments are all gone.
 *  2. Views follow the list: they are made when a segment is added and never change. */
#include "engine/segment.h"

#include "engine/engine.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define OFFSET_MAX (1 << 24) /* the longest context */

void segment_plan(sac_engine *e, struct arena *a)
{
    struct segments *s = &e->segments;
    const size_t n = (size_t)e->params.n_seq_max * SEGMENT_MAX;
    s->n = arena_take(a, e->params.n_seq_max, sizeof *s->n);
    s->list = arena_take(a, n, sizeof *s->list);
    s->view = arena_take(a, 2 * n, sizeof *s->view);
    s->turn = arena_take(a, 2 * n * e->model->config.rope.n_rot, sizeof *s->turn);
}

static struct segment *list_of(const sac_engine *e, uint32_t seq_i)
{
    return e->segments.list + (size_t)seq_i * SEGMENT_MAX;
}

const struct segment *segment_list(const sac_engine *e, uint32_t seq_i)
{
    return list_of(e, seq_i);
}

const struct segment_view *segment_view_of(const sac_engine *e, uint32_t seq_i, bool local)
{
    return e->segments.view + ((size_t)seq_i * 2 + local) * SEGMENT_MAX;
}

/* A view that rotates queries back by `offset`, with cosines and sines in `turn` [n_rot]. Their
 * factor is 1, because the scaling factor is already in the query. */
static struct segment_view make_view(const struct rope_table *t, uint32_t end, int32_t offset,
                                     float *turn)
{
    const size_t half = t->n_rot / 2;
    if (offset == 0) return (struct segment_view){.end = end};
    for (size_t c = 0; c < half; c++) {
        const double angle = -(double)offset * t->inv_freq[c];
        turn[c] = (float)cos(angle);
        turn[half + c] = (float)sin(angle);
    }
    return (struct segment_view){.end = end, .cos = turn, .sin = turn + half};
}

/* Makes the views of segment i, for global and for local layers. */
static void make_views(sac_engine *e, uint32_t seq_i, uint32_t i)
{
    assert(i < e->segments.n[seq_i]);
    const struct segment *s = &list_of(e, seq_i)[i];
    for (size_t local = 0; local < 2; local++) {
        const struct rope_table *t = &e->rope[local];
        const size_t at = ((size_t)seq_i * 2 + local) * SEGMENT_MAX + i;
        e->segments.view[at] = make_view(t, s->end, s->offset, e->segments.turn + at * t->n_rot);
    }
}

uint32_t segment_views_from(const sac_engine *e, uint32_t seq_i, uint32_t page, bool local,
                            struct segment_view *out, float *turn)
{
    const struct segment *list = list_of(e, seq_i);
    const struct rope_table *t = &e->rope[local];
    const int32_t own = segment_offset(e, seq_i, page);
    uint32_t n = 0;
    for (; n < e->segments.n[seq_i] && list[n].end <= page; n++)
        out[n] = make_view(t, list[n].end, list[n].offset - own, turn + (size_t)n * t->n_rot);
    return n;
}

/* Appends a segment: pages up to `end` have this offset. */
static void push(sac_engine *e, uint32_t seq_i, uint32_t end, int32_t offset)
{
    struct segment *list = list_of(e, seq_i);
    uint32_t *n = &e->segments.n[seq_i];
    if (*n == 0 || list[*n - 1].offset != offset) ++*n;
    assert(*n <= SEGMENT_MAX);
    list[*n - 1] = (struct segment){.end = end, .offset = offset};
    make_views(e, seq_i, *n - 1);
}

static uint32_t end_of(const sac_engine *e, uint32_t seq_i)
{
    const uint32_t n = e->segments.n[seq_i];
    return n ? list_of(e, seq_i)[n - 1].end : 0;
}

void segment_restore(sac_engine *e, uint32_t seq_i, const struct segment *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) push(e, seq_i, list[i].end, list[i].offset);
}

bool segment_sound(const struct segment *list, uint32_t n, uint32_t n_page)
{
    if (n > SEGMENT_MAX || (n > 0 && list[n - 1].offset == 0)) return false;
    for (uint32_t i = 0; i < n; i++) {
        const bool rises =
            i == 0 || (list[i].end > list[i - 1].end && list[i].offset != list[i - 1].offset);
        if (!rises || list[i].end == 0 || list[i].end > n_page || list[i].offset > OFFSET_MAX ||
            list[i].offset < -OFFSET_MAX)
            return false;
    }
    return true;
}

void segment_reset(sac_engine *e, uint32_t seq_i)
{
    e->segments.n[seq_i] = 0;
}

void segment_fork(sac_engine *e, uint32_t dst, uint32_t src)
{
    segment_restore(e, dst, list_of(e, src), e->segments.n[src]);
}

void segment_cut(sac_engine *e, uint32_t seq_i, uint32_t n_page)
{
    struct segment *list = list_of(e, seq_i);
    uint32_t n = e->segments.n[seq_i];
    while (n > 0 && (n > 1 ? list[n - 2].end : 0) >= n_page) n--;
    if (n > 0 && list[n - 1].end > n_page) list[n - 1].end = n_page;
    while (n > 0 && list[n - 1].offset == 0) n--;
    e->segments.n[seq_i] = n;
    if (n > 0) make_views(e, seq_i, n - 1);
}

int32_t segment_offset(const sac_engine *e, uint32_t seq_i, uint32_t page)
{
    const struct segment *list = list_of(e, seq_i);
    for (uint32_t i = 0; i < e->segments.n[seq_i]; i++)
        if (page < list[i].end) return list[i].offset;
    return 0;
}

/* ---- Attaching pages ---- */

static sac_status check_joint(const sac_engine *e, sac_seq to, const struct segment_source *from,
                              sac_error *err)
{
    const struct seq *dst = &e->seqs[to], *src = &e->seqs[from->seq];
    if (dst->n_done != dst->n_all || dst->n_done % PAGE_TOK != 0)
        return error_set(err, SAC_ERR_ARG,
                         "sequence %u has %u tokens and %u pending ones: pages can be attached "
                         "behind a multiple of %u tokens, with none pending",
                         to, dst->n_done, dst->n_all - dst->n_done, PAGE_TOK);
    if (from->first % PAGE_TOK != 0 || from->n_tok % PAGE_TOK != 0 || from->first > src->n_done ||
        from->n_tok > src->n_done - from->first)
        return error_set(err, SAC_ERR_ARG,
                         "tokens %u to %u of sequence %u, which has %u, are not whole pages of %u",
                         from->first, from->first + from->n_tok, from->seq, src->n_done, PAGE_TOK);
    if (dst->n_all > repeat_context(e) || from->n_tok > repeat_context(e) - dst->n_all)
        return error_set(err, SAC_ERR_CONTEXT,
                         "%u tokens do not fit: the sequence holds %u and the context is %u",
                         from->n_tok, dst->n_all, repeat_context(e));
    if (src->has_gaps || dst->has_gaps)
        return error_set(err, SAC_ERR_ARG,
                         "nothing can be attached from sequence %u to %u: a decode method has "
                         "dropped tokens of one of them",
                         from->seq, to);
    return SAC_OK;
}

/* Calls `put` for the segments of the source's pages as they will be in the sequence; `put` NULL:
 * only counts them. */
static uint32_t walk_source(sac_engine *e, uint32_t to, const struct segment_source *from,
                            void (*put)(sac_engine *, uint32_t, uint32_t, int32_t))
{
    const uint32_t page0 = from->first / PAGE_TOK, end = page0 + from->n_tok / PAGE_TOK;
    const uint32_t at = e->seqs[to].n_done / PAGE_TOK;
    uint32_t n = 0;
    for (uint32_t p = page0, next; p < end; p = next, n++) {
        const int32_t offset = segment_offset(e, from->seq, p);
        for (next = p + 1; next < end && segment_offset(e, from->seq, next) == offset;) next++;
        if (put) put(e, to, at + next - page0, from->offset + offset);
    }
    return n;
}

/* Adds a segment of offset 0 for the pages after the last segment, if there are any. */
static void close_last(sac_engine *e, uint32_t seq_i)
{
    const uint32_t n_page = e->seqs[seq_i].n_done / PAGE_TOK;
    if (end_of(e, seq_i) < n_page) push(e, seq_i, n_page, 0);
}

static sac_status check_segments(sac_engine *e, sac_seq to, const struct segment_source *from,
                                 sac_error *err)
{
    const struct method *m = method_set_entry(e, METHOD_SET_DECODE, to)->spec->method;
    const int64_t limit = OFFSET_MAX / 2; /* the source's own offset may be added */
    if (from->offset > limit || from->offset < -limit)
        return error_set(err, SAC_ERR_ARG, "an offset of %d is not within %lld positions",
                         from->offset, (long long)limit);
    if (e->segments.n[to] + 1 + walk_source(e, to, from, NULL) > SEGMENT_MAX)
        return error_set(err, SAC_ERR_CONTEXT, "sequence %u would have more than %u segments", to,
                         SEGMENT_MAX);
    if (from->offset != 0 || e->segments.n[from->seq] > 0)
        return method_set_meets_segments(e, m, err);
    return SAC_OK;
}

sac_status segment_attach(sac_engine *e, sac_seq to, const struct segment_source *from,
                          sac_error *err)
{
    struct seq *dst = engine_seq(e, to, err);
    const struct seq *src = engine_seq(e, from->seq, err);
    if (!src || !dst) return SAC_ERR_NOT_FOUND;
    if (src == dst)
        return error_set(err, SAC_ERR_ARG, "sequence %u cannot be attached to itself", to);
    TRY(check_joint(e, to, from, err));
    TRY(check_segments(e, to, from, err));
    if (from->n_tok == 0) return SAC_OK;
    close_last(e, to);
    walk_source(e, to, from, push);
    pool_share(&e->pool, (struct pool_place){to, dst->n_done / PAGE_TOK},
               (struct pool_place){from->seq, from->first / PAGE_TOK}, from->n_tok / PAGE_TOK);
    memcpy(dst->tok + dst->n_done, src->tok + from->first, from->n_tok * sizeof *dst->tok);
    memset(dst->flags + dst->n_done, 0, from->n_tok);
    dst->n_done = dst->n_all = dst->n_done + from->n_tok;
    assert(dst->n_all <= e->params.n_ctx);
    segment_cut(e, to, dst->n_done / PAGE_TOK); /* a last segment with offset 0 is not stored */
    method_set_jump(e, to);
    return SAC_OK;
}
