/* box.c: see the header. Boxes are f16, rounded outwards, so that bounds stay bounds. They are
 * addressed by page id, so they follow a page through forks and cuts. */
#include "methods/box.h"

#include "base/half.h"
#include "methods/meter.h"
#include "methods/pick.h"

#include <assert.h>
#include <math.h>

/* A q8 page contains its own box, so side data is needed only for pages without codes. */
static bool in_page(const struct method_shape *s, enum box kind)
{
    return kind == BOX_BOUND && s->geom->type_k == SAC_KV_Q8;
}

size_t box_bytes(const struct method_shape *s, enum box kind)
{
    const size_t one = (size_t)s->geom->head_dim * 4;
    if (kind == BOX_VECTOR) return one / 2;
    return in_page(s, kind) ? 0 : kind == BOX_HALVES ? 2 * one : one;
}

size_t box_vector_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return box_bytes(s, BOX_VECTOR);
}

void box_put(uint8_t *side, const struct method_shape *s, const float *vector)
{
    uint16_t *to = (uint16_t *)(void *)side;
    for (uint32_t c = 0; c < s->geom->head_dim; c++) to[c] = f32_to_f16(vector[c]);
}

uint16_t box_half(float x, bool up)
{
    const uint16_t h = f32_to_f16_canonical(x);
    const float rounded = f16_to_f32(h);
    if (!(up ? rounded < x : rounded > x)) return h;
    /* One step of the bit pattern: magnitudes grow with the bits, and the smallest number of the
     * other sign follows zero. */
    const bool grows = up == (x > 0);
    if ((h & 0x7fffu) == 0) return up ? 1 : 0x8001u;
    return (uint16_t)(grows ? h + 1 : h - 1);
}

/* The box of n_tok keys: a [d] minimum and b [d] width, or for BOX_MEAN centre and mean
 * distance. */
static void seal_box(uint16_t *a, uint32_t d, enum box kind, const float *k, uint32_t n_tok)
{
    uint16_t *b = a + d;
    for (uint32_t c = 0; c < d; c++) {
        float lo = k[c], hi = k[c], off = 0;
        for (uint32_t t = 1; t < n_tok; t++) {
            const float x = k[(size_t)t * d + c];
            lo = x < lo ? x : lo; /* comparisons miss a NaN after the first key: see box_seal */
            hi = x > hi ? x : hi;
        }
        if (kind != BOX_MEAN) {
            a[c] = box_half(lo, false);
            b[c] = box_half(hi - f16_to_f32(a[c]), true);
            continue;
        }
        const float mid = (lo + hi) / 2;
        for (uint32_t t = 0; t < n_tok; t++) off += fabsf(k[(size_t)t * d + c] - mid);
        a[c] = f32_to_f16_canonical(mid);
        b[c] = f32_to_f16_canonical(off / (float)n_tok);
    }
}

void box_seal(uint8_t *side, const struct method_shape *s, enum box kind, const float *k)
{
    const uint32_t d = s->geom->head_dim, n_tok = kind == BOX_HALVES ? BOX_HALF_TOK : PAGE_TOK;
    uint16_t *a = (uint16_t *)(void *)side;
    for (uint32_t t = 0; t < PAGE_TOK; t += n_tok)
        seal_box(a + (size_t)t / n_tok * 2 * d, d, kind, k + (size_t)t * d, n_tok);
    /* A key that is not finite makes the page's scores NaN, so that the error is detected. */
    for (uint32_t i = 0; i < PAGE_TOK * d; i++)
        if (!isfinite(k[i])) a[0] = 0x7e00u;
}

enum op_note_kind box_note(enum box kind)
{
    assert(kind != BOX_VECTOR);
    return kind == BOX_MEAN ? OP_NOTE_MEAN : kind == BOX_HALVES ? OP_NOTE_HALVES : OP_NOTE_BOX;
}

/* ---- Scores ---- */

/* The scores of the pages of segment segment_i, or after the last one, with the query that meets
 * their keys (ops/segment.h). */
static struct op_lane_boxes lane_boxes(const struct select_scratch *r, const struct method_lane *l,
                                       enum box kind, uint32_t segment_i)
{
    const struct page_geom *g = l->shape->geom;
    const uint32_t n = pick_page_count(l), i = segment_i;
    const size_t one = (size_t)g->head_dim * 4;
    const bool vector = kind == BOX_VECTOR; /* qb is 0 */
    const bool own = in_page(l->shape, kind), turns = i < l->n_segment && l->segment[i].cos;
    const uint32_t begin = i > 0 ? min_u32(l->segment[i - 1].end, n) : 0;
    const uint32_t end = i < l->n_segment ? min_u32(l->segment[i].end, n) : n;
    assert(begin <= end && i <= l->n_segment);
    return (struct op_lane_boxes){.at = {.base = own ? l->cards.base : l->side,
                                         .frame_of = own ? l->cards.of : NULL,
                                         .stride = own ? l->cards.stride : l->side_stride,
                                         .a_at = own ? g->k_min : 0,
                                         .b_at = own      ? g->k_step
                                                 : vector ? 0
                                                          : one / 2,
                                         .page = l->page + begin,
                                         .n_page = end - begin,
                                         .head_dim = g->head_dim,
                                         .group = l->shape->group,
                                         .qa = r->qa,
                                         .qb = r->qb,
                                         .out = r->score + begin,
                                         .out_stride = r->stride},
                                  .n_box = kind == BOX_HALVES ? 2 : 1,
                                  .box_at = one,
                                  .box_out = n,
                                  .q = l->q,
                                  .turn = turns ? &l->segment[i] : NULL,
                                  .rope = l->shape->rope,
                                  .scale = l->scale,
                                  .mean = kind == BOX_MEAN,
                                  .unit = own      ? 255.0f
                                          : vector ? 0
                                                   : 1.0f};
}

/* Counts what the scores of all pages read. */
static void count_boxes(const struct method_lane *l, enum box kind)
{
    const uint32_t n = pick_page_count(l), n_box = kind == BOX_HALVES ? 2 : 1;
    const size_t one = (size_t)l->shape->geom->head_dim * (kind == BOX_VECTOR ? 2 : 4);
    meter_bytes(l, (uint64_t)n * n_box * meter_lines(0, one));
}

void box_score(const struct select_scratch *r, const struct method_lane *l, enum box kind)
{
    count_boxes(l, kind);
    for (uint32_t i = 0; i <= l->n_segment; i++) {
        const struct op_lane_boxes op = lane_boxes(r, l, kind, i);
        l->ops->lanes.boxes(NULL, l->ops, &op, 1);
    }
}

bool box_vote(const struct select_scratch *r, const struct method_lane *l)
{
    return select_scratch_vote(r, l, l->pos / PAGE_TOK);
}

/* ---- Many lanes ---- */

/* Segment by segment, because a lane has memory for one rotated query. */
static void score_lanes(const struct method_batch *b, enum box kind)
{
    struct op_lane_boxes *list = b->list;
    uint32_t n = 1;
    for (uint32_t segment_i = 0; n > 0; segment_i++) {
        n = 0;
        for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
            const struct method_lane *l = &b->lane[i];
            struct select_scratch r;
            if (segment_i > l->n_segment) continue;
            if (segment_i == 0) count_boxes(l, kind);
            select_scratch_make(&r, l->shape, kind == BOX_HALVES, l->scratch);
            list[n++] = lane_boxes(&r, l, kind, segment_i);
        }
        if (n > 0) b->ops->lanes.boxes(b->workers, b->ops, list, n);
    }
}

static enum batch_item item_of(enum box kind)
{
    return kind == BOX_HALVES ? BATCH_HALF : BATCH_PAGE;
}

void box_votes(const struct method_batch *b, enum box kind)
{
    score_lanes(b, kind);
    batch_vote(b, item_of(kind));
}

void box_choose(const struct method_batch *b, enum box kind)
{
    const struct box_param *set = b->lane[0].param;
    const enum batch_item item = item_of(kind);
    const struct batch_ends ends = {set->sink, set->recent, item};
    batch_budgets(b, set->dense);
    box_votes(b, kind);
    if (set->reduce > 0) batch_sum_heads(b, item);
    batch_take(b, &ends, set->heads > 0 ? BATCH_BY_HEAD : BATCH_BY_VOTE);
}

void box_choose_vectors(const struct method_batch *b)
{
    box_choose(b, BOX_VECTOR);
}
