/* auto.c: a weighted sample of the keys represents all of them. A few rows of each tile are scored
 * against every key. For the whole tile, each query head then reads the keys with large attention
 * probabilities in these rows, and a reweighted sample of the others.
 *
 * Scores. For each query head, `rows` evenly spaced rows represent a tile. They are scored exactly
 * against the tile's own keys, which are read anyway, and by the survey slot against all keys
 * before it. The mass m of a key is the root mean square, over these rows, of its share of the
 * softmax.
 *
 * Sampling. A key is taken with probability min(1, m / least), with weight max(1, least / m). The
 * output is therefore unbiased, and the variance of a softmax sum is at most `least` times the sum
 * of m over the keys that are not always read. `mass` sets least = (1 - mass)^2: a standard
 * deviation of 1 - mass where these m add up to 1. The mean square keeps keys that matter to single
 * rows: a key with full attention from one row of 64 has an eighth as its mass. With the plain mean
 * it had a sixty-fourth, and such keys were lost. No head reads more than about 4 / least keys,
 * however flat its attention and however long the context; a head that attends to ten keys reads
 * those ten.
 *
 * Errors. Most of the error is in rows that were not sampled: each of them misses keys to which
 * only it attends. `rows` and `mass` together therefore set the accuracy. Such rows attend to other
 * keys of the same pages as the sampled rows, so the fraction `spread` of a page's mass is treated
 * as if it were spread evenly over the page's keys.
 *
 * Tiles. Scoring costs as much for a tile of any size. With 512 rows in place of 256 it takes half
 * the time; the loss of accuracy costs less to make up for, by a higher `mass` (tried.csv).
 *
 * Always read: the first page and the `recent` pages before the tile; everything in the last `last`
 * rows of the prompt, which are most often its question, in the first `dense` layers, and in heads
 * that would read more than `most` of the keys, for which a dense read is cheaper.
 *
 * The reported mass is an audit: the exact softmax of a row that had no part in the selection, in
 * one of every AUDIT tiles of a layer. */
#include "methods/pick.h"
#include "methods/plan.h"

#include "base/mem.h"

#include <math.h>

#define TILE        OP_SAMPLE_TILE
#define AUDIT       32u /* one row is audited in one of so many tiles of a layer */
#define AUDIT_PAGES 16u /* pages whose keys are scored at a time */
#define AUDIT_ROW   37u /* the audited row's index in its tile advances by so many rows per layer */

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.975", "accuracy of softmax sums: 1 less their relative standard deviation")  \
    P(COUNT, rows, "64", 16, 256, "rows scored of each 512, in multiples of 16")                   \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "tokens before a tile of rows, always read; rounded up to whole pages")                      \
    P(SHARE, most, "0.5", "above this share of the keys, everything is read")                      \
    P(COUNT, last, "128", 0, 65536, "last prompt tokens, which use dense attention")               \
    P(COUNT, dense, "0", 0, 1024, "first layers, which use dense attention")                       \
    P(SHARE, spread, "0.5", "share of a page's mass that counts as spread evenly over its keys")
METHOD_PARAMS(auto, PARAMS)

/* Scratch of a lane. */
struct lane_work {
    uint32_t n_row, n_query; /* sampled rows of a tile; times the query heads */
    uint32_t *n_page;        /* [tiles] pages before each tile */
    uint32_t *n_taken;       /* [tiles, group] keys of the sample */
    float *q;                /* [tiles, group, n_row, head_dim] scaled */
    float *lse;   /* [tiles, group, n_row] log of the softmax sum over the tile's own keys */
    double *mass; /* [tiles, group] of audited rows; negative: not audited, NaN: not finite */
    void *op;     /* scratch of the survey slot */
};

/* Scratch of a worker. */
struct worker_room {
    size_t stride; /* of a row of logits, which covers all keys */
    float *q;      /* [group, head_dim] of an audited row, scaled */
    float *k;      /* [AUDIT_PAGES * PAGE_TOK, head_dim], at least the TILE keys of a tile */
    float *logit;  /* [n_row, TILE] */
    float *row;    /* [group, stride] logits of an audited row */
    float *vote;   /* [stride] */
    void *op;
};

_Static_assert(AUDIT_PAGES *PAGE_TOK >= TILE, "a tile's keys have room");

static uint32_t row_count(const void *param)
{
    const struct auto_param *set = param;
    return (set->rows + OP_SURVEY_ROWS - 1) / OP_SURVEY_ROWS * OP_SURVEY_ROWS;
}

/* Both lay out `scratch`, or only measure it (NULL), and return its bytes. */
static size_t lay_lane_work(struct lane_work *w, const struct method_shape *s, const void *param,
                            void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const uint32_t d = s->geom->head_dim, n_tile = s->n_row_max / TILE + 2;
    w->n_row = row_count(param);
    w->n_query = w->n_row * s->group;
    w->n_page = arena_take(&a, n_tile, sizeof *w->n_page);
    w->n_taken = arena_take(&a, (size_t)n_tile * s->group, sizeof *w->n_taken);
    w->q = arena_take(&a, (size_t)n_tile * w->n_query * d, sizeof(float));
    w->lse = arena_take(&a, (size_t)n_tile * w->n_query, sizeof(float));
    w->mass = arena_take(&a, (size_t)n_tile * s->group, sizeof *w->mass);
    w->op = arena_take(&a, 1, ops_survey_scratch(n_tile, s->group, w->n_row, d));
    return a.used;
}

static size_t lay_worker_room(struct worker_room *t, const struct method_shape *s,
                              const void *param, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const uint32_t d = s->geom->head_dim, n_row = row_count(param);
    t->stride = ((size_t)s->n_ctx + TILE - 1) / TILE * TILE;
    t->op = arena_take(&a, 1, ops_survey_room(n_row, d));
    t->q = arena_take(&a, (size_t)s->group * d, sizeof(float));
    t->k = arena_take(&a, AUDIT_PAGES * PAGE_TOK * (size_t)d, sizeof(float));
    t->logit = arena_take(&a, (size_t)n_row * TILE, sizeof(float));
    t->row = arena_take(&a, s->group * t->stride, sizeof(float));
    t->vote = arena_take(&a, t->stride, sizeof(float));
    return a.used;
}

static size_t auto_lane_bytes(const struct method_shape *s, const void *param)
{
    struct lane_work w;
    return lay_lane_work(&w, s, param, NULL);
}

static size_t auto_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct worker_room t;
    return lay_worker_room(&t, s, param, NULL);
}

/* A lane and its plan, with the lane's scratch and that of one worker. */
struct task {
    const struct method_lane *l;
    struct plan *p;
    struct lane_work w;
    struct worker_room t;
};

static struct task task_of(const struct plan_batch *b, uint32_t lane_i, uint32_t worker_i)
{
    struct task s = {.l = &b->lane[lane_i], .p = &b->plan[lane_i]};
    lay_lane_work(&s.w, s.l->shape, s.l->param, s.l->scratch);
    lay_worker_room(&s.t, s.l->shape, s.l->param, b->room + worker_i * b->room_stride);
    return s;
}

/* Makes a plan dense; any worker may do so at any time. */
static void set_not_finite(struct plan *p)
{
    __atomic_store_n(&p->dense, PLAN_NAN, __ATOMIC_RELAXED);
}

static bool is_dense(const struct plan *p)
{
    return __atomic_load_n(&p->dense, __ATOMIC_RELAXED) != PLAN_SPARSE;
}

static void scale_query(float *out, const struct method_lane *l, uint32_t row, uint32_t head)
{
    const uint32_t d = l->shape->geom->head_dim;
    const float *q = l->q + row * l->q_stride + (size_t)head * d;
    for (uint32_t c = 0; c < d; c++) out[c] = l->scale * q[c];
}

/* The softmax of a row's n logits, and the log of its denominator. False: a score is not finite. */
static bool softmax(float *vote, float *lse, const struct method_lane *l, const float *logit,
                    uint32_t n)
{
    return l->ops->vote(
        &(struct op_vote){.score = logit, .n = n, .group = 1, .vote = vote, .lse = lse});
}

/* Sampled row i of a tile, counted from the chunk's first row: the last row of each of n_row equal
 * parts. */
static uint32_t sampled_row(const struct lane_work *w, const struct plan *p, uint32_t tile,
                            uint32_t i)
{
    const uint32_t row0 = plan_row0(p, tile), n_row = plan_row_end(p, tile) - row0;
    assert(i < w->n_row && n_row > 0);
    const uint32_t end = n_row * (i + 1) / w->n_row;
    return row0 + (end ? end - 1 : 0);
}

/* Scales a query head's sampled queries of a tile, and sums their softmax over the tile's own
 * keys. */
static void score_own(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct plan_batch *b = arg;
    const uint32_t n_part = b->plan->n_part, tile = i / n_part % b->plan->n_tile, head = i % n_part;
    const struct task s = task_of(b, i / n_part / b->plan->n_tile, worker_i);
    if (is_dense(s.p)) return;
    const uint32_t d = s.l->shape->geom->head_dim, first = plan_tile_tok(s.p, tile);
    const uint32_t n_own = s.p->pos + plan_row_end(s.p, tile) - first;
    const size_t at = (size_t)tile * s.w.n_query + head * s.w.n_row;
    float *q = s.w.q + at * d;
    bool finite = true;
    assert(n_own > 0 && n_own <= TILE);
    for (uint32_t r = 0; r < s.w.n_row; r++)
        scale_query(q + (size_t)r * d, s.l, sampled_row(&s.w, s.p, tile, r), head);
    pick_span(s.t.k, s.l, first, first + n_own);
    s.l->ops->dots(&(struct op_dots){.a = q,
                                     .b = s.t.k,
                                     .a_stride = d,
                                     .b_stride = d,
                                     .n_a = s.w.n_row,
                                     .n_b = n_own,
                                     .width = d,
                                     .out = s.t.logit,
                                     .out_stride = n_own});
    for (uint32_t r = 0; r < s.w.n_row; r++) {
        const uint32_t n_seen = s.p->pos + sampled_row(&s.w, s.p, tile, r) - first + 1;
        finite &= softmax(s.t.vote, &s.w.lse[at + r], s.l, s.t.logit + (size_t)r * n_own, n_seen);
    }
    if (!finite) set_not_finite(s.p);
}

/* The seed of a KV head's sample; a layer's are consecutive, as the sample slot requires. */
static uint32_t seed_of(uint32_t layer, uint32_t kv_head)
{
    return layer * 64 + kv_head;
}

/* Surveys the pages before the tiles of one lane, by all workers. */
static void survey(const struct plan_batch *b, uint32_t lane_i)
{
    const struct task s = task_of(b, lane_i, 0);
    const struct auto_param *set = s.l->param;
    const double gap = 1 - set->mass;
    const uint32_t n_page = plan_tile_tok(s.p, s.p->n_tile - 1) / PAGE_TOK;
    for (uint32_t i = 0; i < s.p->n_tile; i++) s.w.n_page[i] = plan_tile_tok(s.p, i) / PAGE_TOK;
    if (!pick_hold(s.l, 0, n_page)) {
        set_not_finite(s.p);
        return;
    }
    const bool finite =
        s.l->ops->survey(b->workers, &(struct op_survey){.ops = s.l->ops,
                                                         .geom = s.l->shape->geom,
                                                         .frames = s.l->frames,
                                                         .page = s.l->page,
                                                         .n_page = s.w.n_page,
                                                         .n_set = s.p->n_tile,
                                                         .n_part = s.p->n_part,
                                                         .n_query = s.w.n_row,
                                                         .q = s.w.q,
                                                         .lse = s.w.lse,
                                                         .least = (float)(gap * gap),
                                                         .spread = (float)set->spread,
                                                         .seed = seed_of(s.l->layer, s.l->kv_head),
                                                         .mask = s.p->mask,
                                                         .n_word = s.p->n_word,
                                                         .weight = s.p->weight,
                                                         .n_taken = s.w.n_taken,
                                                         .scratch = s.w.op,
                                                         .room = s.t.op,
                                                         .room_stride = b->room_stride});
    pick_let(s.l, 0, n_page);
    if (!finite) set_not_finite(s.p);
}

/* Marks what a tile always reads, and makes lists dense that would read too much. */
static void mark_tile(const struct lane_work *w, const struct method_lane *l, struct plan *p,
                      uint32_t tile)
{
    const struct auto_param *set = l->param;
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

/* The exact attention mass that the tile's lists hold for one of its rows, for each head. */
static void audit(double *mass, const struct worker_room *t, const struct method_lane *l,
                  const struct plan *p, uint32_t tile)
{
    const uint32_t d = l->shape->geom->head_dim;
    const uint32_t row0 = plan_row0(p, tile), n_row = plan_row_end(p, tile) - row0;
    const uint32_t row = row0 + l->layer * AUDIT_ROW % n_row, end = p->pos + row + 1;
    assert(end <= t->stride);
    for (uint32_t h = 0; h < p->n_part; h++) scale_query(t->q + (size_t)h * d, l, row, h);
    for (uint32_t at = 0, n; at < end; at += n) {
        n = min_u32(AUDIT_PAGES * PAGE_TOK, end - at);
        pick_span(t->k, l, at, at + n);
        l->ops->dots(&(struct op_dots){.a = t->q,
                                       .b = t->k,
                                       .a_stride = d,
                                       .b_stride = d,
                                       .n_a = p->n_part,
                                       .n_b = n,
                                       .width = d,
                                       .out = t->row + at,
                                       .out_stride = t->stride});
    }
    for (uint32_t h = 0; h < p->n_part; h++) {
        float lse;
        mass[h] = softmax(t->vote, &lse, l, t->row + h * t->stride, end) ? 0 : (double)NAN;
        for (uint32_t i = 0; i < end; i++)
            if (plan_has(p, tile, h, i)) mass[h] += (double)t->vote[i];
    }
}

/* A worker's item: completes a tile's lists and audits them if it is the tile's turn. */
static void end_tile(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct plan_batch *b = arg;
    const uint32_t tile = i % b->plan->n_tile;
    const struct task s = task_of(b, i / b->plan->n_tile, worker_i);
    double *mass = s.w.mass + (size_t)tile * s.p->n_part;
    if (is_dense(s.p)) return;
    mark_tile(&s.w, s.l, s.p, tile);
    for (uint32_t h = 0; h < s.p->n_part; h++) mass[h] = -1;
    if ((s.l->layer + s.p->tile0 + tile) % AUDIT == 0) audit(mass, &s.t, s.l, s.p, tile);
}

/* Reports the audited masses, or makes the plan dense if one is not finite. */
static void report_masses(const struct plan_batch *b, uint32_t lane_i)
{
    const struct task s = task_of(b, lane_i, 0);
    const uint32_t n = s.p->n_tile * s.p->n_part;
    for (uint32_t i = 0; i < n && s.p->dense == PLAN_SPARSE; i++)
        if (isnan(s.w.mass[i])) plan_dense(s.p, PLAN_NAN);
    for (uint32_t i = 0; i < n && s.p->dense == PLAN_SPARSE; i++)
        if (s.w.mass[i] >= 0) plan_estimate(s.p, s.w.mass[i], 1);
}

/* With a softcap a score is not a scaled dot product, and the slots do not support it. */
static bool reads_all(const struct method_lane *l)
{
    const struct auto_param *set = l->param;
    return l->layer < set->dense || l->softcap > 0 || set->mass >= 1;
}

static void auto_plan(const struct plan_batch *b)
{
    const struct method_lane *l = b->lane;
    const uint32_t n_tile = b->n * b->plan->n_tile;
    if (reads_all(l)) {
        for (uint32_t i = 0; i < b->n; i++)
            if (b->plan[i].dense == PLAN_SPARSE) plan_dense(&b->plan[i], PLAN_LAYER);
        return;
    }
    workers_for(b->workers, n_tile * b->plan->n_part, score_own, (void *)(uintptr_t)b);
    for (uint32_t i = 0; i < b->n; i++)
        if (b->plan[i].dense == PLAN_SPARSE) survey(b, i);
    workers_for(b->workers, n_tile, end_tile, (void *)(uintptr_t)b);
    for (uint32_t i = 0; i < b->n; i++) report_masses(b, i);
}

static void auto_sample(const struct method_lane *l, uint32_t n_tok, struct op_sample *op)
{
    const struct auto_param *set = l->param;
    const double gap = 1 - set->mass;
    op->n_query = row_count(set);
    op->least = (float)(gap * gap);
    op->spread = (float)set->spread;
    op->seed = seed_of(l->layer, 0);
    op->n_recent = pick_whole_pages(set->recent);
    op->most = set->most;
    op->dense_from = n_tok > set->last ? n_tok - set->last : 0;
    op->dense = reads_all(l);
    op->audit = (AUDIT - (l->layer + op->rows.tile0) % AUDIT) % AUDIT;
    op->audit_step = AUDIT;
    op->audit_row = l->layer * AUDIT_ROW;
}

static const struct method_prefill hooks = {.tile_tok = TILE,
                                            .by_head = true,
                                            .any_chunk = true,
                                            .lane_bytes = auto_lane_bytes,
                                            .scratch_bytes = auto_scratch_bytes,
                                            .plan_lanes = auto_plan,
                                            .sample = auto_sample};

const struct method auto_prefill_method = {
    METHOD_PREFILL(auto, "the keys that matter, and a reweighted sample of the others"),
    .about = "Scores a few rows of each tile against every key. Keys that hold much of their "
             "attention are read by all rows of the tile. Of the others a few are sampled, more "
             "likely the more they hold, and reweighted so that softmax sums are unbiased. Their "
             "number depends on the text, the layer and the head, and has a bound that does not "
             "grow with the context. Keys to which no sampled row attends may be missed; the "
             "reported mass is therefore that of exact rows outside the sample. Fewer rows (16) "
             "and a lower mass (0.95) are faster, and lose several times as much.",
    .weighs = true,
    .token_grain = true,
    .facts = {.part = "mass=0.6,last=0,most=1", .whole = "mass=1"},
    .prefill = &hooks,
};
