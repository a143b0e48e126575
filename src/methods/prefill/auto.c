/* auto.c: a sample of the keys that stands for all of them. Of each tile of rows a few are scored
 * against every key; each query head reads for the whole tile the keys that matter to them, and of
 * the others a few that are weighed to stand for the rest.
 *
 * `rows` rows of each tile, at equal distances, stand for the tile, for each query head. They are
 * scored exactly against the tile's own keys, which are read anyway, and by the survey slot against
 * all keys before it. A key that holds a share m of the softmax mass of these rows (root of the
 * mean square) is taken with probability min(1, m / least) and counts max(1, least / m) times. So
 * the output is the right one in the mean, and the variance of a softmax sum is at most least times
 * the m that are not read for certain. `mass` sets least = (1 - mass)^2: a standard deviation of
 * 1 - mass where these add up to 1. A key that one row of 64 looks at counts by an eighth of its
 * share; by means, a sixty-fourth, such keys were lost. No head reads more than about 4 / least
 * keys, however flat its attention and however long the context; one that looks at ten keys reads
 * those.
 *
 * What is lost is lost by rows that were not sampled, each of which misses keys that only it looks
 * for: most of the error is theirs, so `rows` and `mass` decide together what a cell is worth.
 * They look at other keys of the pages that the sampled ones look at, so `spread` of a page's mass
 * counts as if all its keys had it alike. The first page and the `recent` ones before the tile are
 * read whole. A head that would read more than `most` of the keys reads all: it costs less. So do
 * the last `last` rows of the prompt, most often its question, and the first `dense` layers.
 *
 * The mass that is told is an audit: the exact softmax of a row that had no part in the choice,
 * one of every AUDIT tiles in a layer. */
#include "methods/pick.h"
#include "methods/plan.h"

#include "base/mem.h"

#define TILE        256u
#define AUDIT       32u /* one row of every so many tiles of a layer is audited */
#define AUDIT_PAGES 8u  /* keys at a time */

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.97", "softmax sums are known to this share, by a standard deviation")        \
    P(COUNT, rows, "64", 16, 256, "rows of each 256 that are scored, by sixteens")                 \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "tokens before a tile of rows that are always read, up to whole pages")                      \
    P(SHARE, most, "0.5", "a larger share than this is read whole")                                \
    P(COUNT, last, "128", 0, 65536, "last rows of a prompt that read everything")                  \
    P(COUNT, dense, "0", 0, 1024, "first layers that read everything")                             \
    P(SHARE, spread, "0.5", "share of a page's mass that all its keys have")
METHOD_PARAMS(auto_prefill, PARAMS)

struct work {
    uint32_t n_row, n_query; /* sampled rows of a tile; times the query heads */
    size_t stride;           /* of a row of logits: all keys */
    uint32_t *n_page;        /* [tiles] pages before each tile */
    uint32_t *n_taken;       /* [tiles, group] */
    float *q;                /* [tiles, group, n_row, head_dim] scaled */
    float *lse;              /* [tiles, group, n_row] of the tile's own keys */
    float *k;     /* [AUDIT_PAGES * PAGE_TOK, head_dim], at least the TILE own keys of a tile */
    float *logit; /* [n_query, TILE] */
    float *row;   /* [group, stride] logits of an audited row */
    float *vote;  /* [stride] */
    void *op;
};

_Static_assert(AUDIT_PAGES *PAGE_TOK >= TILE, "a tile's keys have room");

/* Measures with NULL, else hands out `scratch`; the result is its bytes. */
static size_t lay_out(struct work *w, const struct method_shape *s, const void *param,
                      void *scratch)
{
    const struct auto_prefill_param *set = param;
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const uint32_t d = s->geom->head_dim, n_tile = s->n_row_max / TILE + 2;
    w->n_row = (set->rows + OP_SURVEY_ROWS - 1) / OP_SURVEY_ROWS * OP_SURVEY_ROWS;
    w->n_query = w->n_row * s->group;
    w->stride = ((size_t)s->n_ctx + TILE - 1) / TILE * TILE;
    w->n_page = arena_take(&a, n_tile, sizeof *w->n_page);
    w->n_taken = arena_take(&a, (size_t)n_tile * s->group, sizeof *w->n_taken);
    w->q = arena_take(&a, (size_t)n_tile * w->n_query * d, sizeof(float));
    w->lse = arena_take(&a, (size_t)n_tile * w->n_query, sizeof(float));
    w->k = arena_take(&a, AUDIT_PAGES * PAGE_TOK * (size_t)d, sizeof(float));
    w->logit = arena_take(&a, (size_t)w->n_query * TILE, sizeof(float));
    w->row = arena_take(&a, s->group * w->stride, sizeof(float));
    w->vote = arena_take(&a, w->stride, sizeof(float));
    w->op = arena_take(&a, 1, ops_survey_scratch(n_tile, s->group, w->n_row, d));
    return a.used;
}

static size_t auto_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct work w;
    return lay_out(&w, s, param, NULL);
}

static void scale_query(float *out, const struct method_lane *l, uint32_t row, uint32_t head)
{
    const uint32_t d = l->shape->geom->head_dim;
    const float *q = l->q + row * l->q_stride + (size_t)head * d;
    for (uint32_t c = 0; c < d; c++) out[c] = l->scale * q[c];
}

/* Shares of a row's softmax, and the log of its sum. False: a score is not finite. */
static bool softmax(float *vote, float *lse, const struct method_lane *l, const float *logit,
                    uint32_t n)
{
    return l->ops->vote(
        &(struct op_vote){.score = logit, .n = n, .group = 1, .vote = vote, .lse = lse});
}

/* Sampled row i of a tile, counted from the chunk's first: the last one of each equal part. */
static uint32_t sampled_row(const struct work *w, const struct plan *p, uint32_t tile, uint32_t i)
{
    const uint32_t row0 = plan_row0(p, tile), n_row = plan_row_end(p, tile) - row0;
    assert(i < w->n_row && n_row > 0);
    const uint32_t end = n_row * (i + 1) / w->n_row;
    return row0 + (end ? end - 1 : 0);
}

/* The tile's queries, and what they see of the tile itself. */
static bool score_own(const struct work *w, const struct method_lane *l, const struct plan *p,
                      uint32_t tile)
{
    const uint32_t d = l->shape->geom->head_dim, first = plan_tile_tok(p, tile);
    const uint32_t n_own = p->pos + plan_row_end(p, tile) - first;
    assert(n_own > 0 && n_own <= TILE);
    float *q = w->q + (size_t)tile * w->n_query * d, *lse = w->lse + (size_t)tile * w->n_query;
    bool finite = true;
    for (uint32_t i = 0; i < w->n_query; i++)
        scale_query(q + (size_t)i * d, l, sampled_row(w, p, tile, i % w->n_row), i / w->n_row);
    pick_span(w->k, l, first, first + n_own);
    l->ops->dots(&(struct op_dots){.a = q,
                                   .b = w->k,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = w->n_query,
                                   .n_b = n_own,
                                   .width = d,
                                   .out = w->logit,
                                   .out_stride = n_own});
    for (uint32_t i = 0; i < w->n_query; i++) {
        const uint32_t n_seen = p->pos + sampled_row(w, p, tile, i % w->n_row) - first + 1;
        finite &= softmax(w->vote, &lse[i], l, w->logit + (size_t)i * n_own, n_seen);
    }
    return finite;
}

static bool survey(const struct work *w, const struct method_lane *l, struct plan *p)
{
    const struct auto_prefill_param *set = l->param;
    const double gap = 1 - set->mass;
    const uint32_t n_page = w->n_page[p->n_tile - 1];
    if (!pick_hold(l, 0, n_page)) return false;
    const bool finite = l->ops->survey(&(struct op_survey){.ops = l->ops,
                                                           .geom = l->shape->geom,
                                                           .frames = l->frames,
                                                           .page = l->page,
                                                           .n_page = w->n_page,
                                                           .n_set = p->n_tile,
                                                           .part0 = l->head0,
                                                           .n_part = p->n_part,
                                                           .n_query = w->n_row,
                                                           .q = w->q,
                                                           .lse = w->lse,
                                                           .least = (float)(gap * gap),
                                                           .spread = (float)set->spread,
                                                           .seed = l->layer * 64 + l->kv_head,
                                                           .mask = p->mask,
                                                           .n_word = p->n_word,
                                                           .weight = p->weight,
                                                           .n_taken = w->n_taken,
                                                           .scratch = w->op});
    pick_let(l, 0, n_page);
    return finite;
}

static void end_tile(const struct work *w, const struct method_lane *l, struct plan *p,
                     uint32_t tile)
{
    const struct auto_prefill_param *set = l->param;
    const uint32_t n = w->n_page[tile] * PAGE_TOK, total = p->end + p->n_after;
    const uint32_t last = set->last, recent = pick_whole_pages(set->recent) * PAGE_TOK;
    for (uint32_t part = 0; part < p->n_part; part++) {
        plan_range(p, tile, part, 0, PAGE_TOK);
        plan_range(p, tile, part, n > recent ? n - recent : 0, n);
        if (p->pos + plan_row_end(p, tile) + last > total)
            plan_tile_dense(p, tile, part, PLAN_LAYER);
        else if (w->n_taken[tile * p->n_part + part] + recent + PAGE_TOK > set->most * n)
            plan_tile_dense(p, tile, part, PLAN_NO_GAIN);
    }
}

/* Exact masses that the lists of one row of the tile keep, the row being none of the sample. */
static bool audit(const struct work *w, const struct method_lane *l, struct plan *p, uint32_t tile)
{
    const uint32_t d = l->shape->geom->head_dim;
    const uint32_t row0 = plan_row0(p, tile), n_row = plan_row_end(p, tile) - row0;
    const uint32_t row = row0 + l->layer * 37 % n_row, end = p->pos + row + 1;
    assert(end <= w->stride);
    bool finite = true;
    for (uint32_t h = 0; h < p->n_part; h++) scale_query(w->q + (size_t)h * d, l, row, h);
    for (uint32_t at = 0, n; at < end; at += n) {
        n = pick_min(AUDIT_PAGES * PAGE_TOK, end - at);
        pick_span(w->k, l, at, at + n);
        l->ops->dots(&(struct op_dots){.a = w->q,
                                       .b = w->k,
                                       .a_stride = d,
                                       .b_stride = d,
                                       .n_a = p->n_part,
                                       .n_b = n,
                                       .width = d,
                                       .out = w->row + at,
                                       .out_stride = w->stride});
    }
    for (uint32_t h = 0; h < p->n_part && finite; h++) {
        float lse;
        double kept = 0;
        finite = softmax(w->vote, &lse, l, w->row + h * w->stride, end);
        for (uint32_t t = 0; t < end; t++)
            if (plan_has(p, tile, h, t)) kept += (double)w->vote[t];
        plan_estimate(p, kept, 1);
    }
    return finite;
}

static void auto_plan(const struct method_lane *l, struct plan *p)
{
    const struct auto_prefill_param *set = l->param;
    struct work w;
    bool finite = true;
    lay_out(&w, l->shape, l->param, l->scratch);
    /* With a softcap a score is no product: the slot does not know it. */
    if (l->layer < set->dense || l->softcap > 0 || set->mass >= 1) {
        plan_dense(p, PLAN_LAYER);
        return;
    }
    for (uint32_t t = 0; t < p->n_tile && finite; t++) {
        w.n_page[t] = plan_tile_tok(p, t) / PAGE_TOK;
        finite = score_own(&w, l, p, t);
    }
    finite = finite && survey(&w, l, p);
    for (uint32_t t = 0; t < p->n_tile && finite; t++) end_tile(&w, l, p, t);
    for (uint32_t t = 0; t < p->n_tile && finite; t++)
        if ((l->layer + p->tile0 + t) % AUDIT == 0) finite = audit(&w, l, p, t);
    if (!finite) plan_dense(p, PLAN_NAN);
}

static const struct method_prefill hooks = {.tile_tok = TILE,
                                            .by_head = true,
                                            .heads_apart = true,
                                            .any_chunk = true,
                                            .scratch_bytes = auto_scratch_bytes,
                                            .plan = auto_plan};

const struct method auto_prefill_method = {
    .kind = "prefill",
    .name = "auto",
    .summary = "the keys that matter, and a weighed sample of the others",
    .about =
        "A few of each tile's rows are scored against every key. Keys that hold much of their "
        "attention are read by all rows of the tile; of the others a few are read, the likelier "
        "the more they hold, and weighed so that sums are right in the mean. How many follows from "
        "the text, the layer and the head, and has a bound that does not grow with the context. "
        "What no sampled row looks at may be missed: the mass that is told comes from exact rows "
        "outside the sample. Fewer rows (16) and a lower mass (0.95) are faster, and lose "
        "several times as much.",
    .params = &auto_prefill_params,
    .weighs = true,
    .token_grain = true,
    .facts = {.part = "mass=0.6,last=0,most=1", .whole = "mass=1"},
    .prefill = &hooks,
};
