/* auto.c: a sample of the keys that stands for all of them. Of each tile of rows a few are scored
 * against every key; each query head reads for the whole tile the keys that matter to them, and of
 * the others a few that are weighed to stand for the rest.
 *
 * `rows` rows of each tile, at equal distances, stand for the tile, for each query head. They are
 * scored against the tile's own keys, which are read anyway, exactly, and by the survey slot
 * against all keys before it. A key that holds a share m of the softmax mass of these rows (root of
 * the mean square) is taken with probability min(1, m / least) and counts max(1, least / m) times.
 * So the output is the right one in the mean, and the variance of a softmax sum is at most least
 * times the m that are not read for certain. `mass` sets least = SLACK (1 - mass)^2. A key that one
 * row of 16 looks at counts by a quarter of its share; by means, a sixteenth, such keys were lost.
 * No head takes more than sqrt(rows) / least keys, but for `spread`, however flat its attention and
 * however long the context; one that looks at ten keys reads those.
 *
 * What is lost is lost by rows that are not scored, in the few heads whose rows look for keys of
 * their own: each takes other keys then, so such a head shows by the number that it takes. One that
 * takes more than `apart` / least is chosen for again, by MORE times the rows. So are tiles within
 * the last `near` rows, with half the deviation: what follows a prompt looks most at its end.
 *
 * Rows that were not sampled look at other keys of the pages that the sampled ones look at, so
 * `spread` of a page's mass counts as if all its keys had it alike. The first page and the `recent`
 * ones before the tile are read whole. A head that would read more than `most` of the keys reads
 * all: it costs less. So do the last `last` rows of the prompt, most often its question, and the
 * first `dense` layers.
 *
 * The mass that is told is an audit: the exact softmax of a row that had no part in the choice,
 * one of every AUDIT chunks in a layer. */
#include "methods/pick.h"
#include "methods/plan.h"

#include "base/mem.h"

#define TILE  256u
#define MORE  4u  /* times the rows are scored where few do not do */
#define SLACK 1.4 /* the tile's own keys hold part of the mass, so `least` may be more */
#define AUDIT 16u /* every so many chunks a layer has one row audited */

enum { MASS, ROWS, RECENT, MOST, LAST, NEAR, APART, DENSE, SPREAD };

static const sac_method_param params[] = {
    {"mass", SAC_PARAM_FLOAT, "0.95", 0, 1, NULL,
     "softmax sums are known to this share, by a standard deviation"},
    {"rows", SAC_PARAM_INT, "16", 16, 256, NULL, "rows of each 256 that are scored, by sixteens"},
    {"recent", SAC_PARAM_INT, "2", 0, 128, NULL,
     "pages before a tile of rows that are always read"},
    {"most", SAC_PARAM_FLOAT, "0.5", 0, 1, NULL, "a larger share than this is read whole"},
    {"last", SAC_PARAM_INT, "128", 0, 65536, NULL, "last rows of a prompt that read everything"},
    {"near", SAC_PARAM_INT, "1024", 0, 1048576, NULL,
     "last rows of a prompt that are read with half the deviation, by four times the rows"},
    {"apart", SAC_PARAM_FLOAT, "5", 0, 1e6, NULL,
     "heads whose rows look apart by more than this are judged by four times the rows"},
    {"dense", SAC_PARAM_INT, "0", 0, 1024, NULL, "first layers that read everything"},
    {"spread", SAC_PARAM_FLOAT, "0.5", 0, 1, NULL, "share of a page's mass that all its keys have"},
};

struct work {
    uint32_t n_row; /* sampled rows of a tile */
    size_t stride;  /* of a row of logits: all keys */
    /* The lists that a survey makes, and whose they are: tile * group + query head. */
    struct op_survey_list *list; /* [tiles * group] */
    uint32_t *place;
    uint32_t n_list;
    uint32_t *n_taken; /* [tiles, group] */
    float *q;          /* [list, n_row, head_dim] scaled */
    float *lse;        /* [list, n_row] of the tile's own keys */
    float *k;          /* [PICK_PANEL, head_dim] */
    float *logit;      /* [group, n_row, TILE] */
    float *row;        /* [group, stride] logits of an audited row */
    float *vote;       /* [stride] */
    void *op;
};

/* Measures with NULL, else hands out `scratch`; the result is its bytes. */
static size_t lay_out(struct work *w, const struct method_shape *s, const double *param,
                      void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const uint32_t d = s->geom->head_dim, n_tile = s->n_row_max / TILE + 2;
    const uint32_t n_list = n_tile * s->group;
    w->n_row = ((uint32_t)param[ROWS] + OP_SURVEY_ROWS - 1) / OP_SURVEY_ROWS * OP_SURVEY_ROWS;
    const uint32_t n_most = pick_min(MORE * w->n_row, TILE);
    w->stride = ((size_t)s->n_ctx + TILE - 1) / TILE * TILE;
    w->list = arena_take(&a, n_list, sizeof *w->list);
    w->place = arena_take(&a, n_list, sizeof *w->place);
    w->n_taken = arena_take(&a, n_list, sizeof *w->n_taken);
    w->q = arena_take(&a, (size_t)n_list * n_most * d, sizeof(float));
    w->lse = arena_take(&a, (size_t)n_list * n_most, sizeof(float));
    w->k = arena_take(&a, PICK_PANEL * (size_t)d, sizeof(float));
    w->logit = arena_take(&a, (size_t)s->group * n_most * TILE, sizeof(float));
    w->row = arena_take(&a, s->group * w->stride, sizeof(float));
    w->vote = arena_take(&a, w->stride, sizeof(float));
    w->op = arena_take(&a, 1, ops_survey_scratch(n_list, n_most, d));
    return a.used;
}

static size_t auto_scratch_bytes(const struct method_shape *s, const double *param)
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
    const uint32_t end = n_row * (i + 1) / w->n_row;
    return row0 + (end ? end - 1 : 0);
}

/* Does the tile begin within the last NEAR rows of the prompt? */
static bool is_near(const struct method_lane *l, const struct plan *p, uint32_t tile)
{
    return plan_tile_tok(p, tile) + (uint32_t)l->param[NEAR] >= p->end + p->n_after;
}

/* Does it hold one of the last rows, which read everything? */
static bool is_last(const struct method_lane *l, const struct plan *p, uint32_t tile)
{
    return p->pos + plan_row_end(p, tile) + (uint32_t)l->param[LAST] > p->end + p->n_after;
}

static double least(const struct method_lane *l, const struct plan *p, uint32_t tile)
{
    const double gap = (is_near(l, p, tile) ? 0.5 : 1) * (1 - l->param[MASS]);
    return SLACK * gap * gap;
}

static void add_list(struct work *w, const struct method_lane *l, const struct plan *p,
                     uint32_t place)
{
    const uint32_t tile = place / p->n_part, part = place % p->n_part;
    uint32_t *mask = plan_mask(p, tile, part);
    w->place[w->n_list] = place;
    w->list[w->n_list++] =
        (struct op_survey_list){.n_page = plan_tile_tok(p, tile) / PAGE_TOK,
                                .seed = (l->layer * 64 + l->kv_head) * p->n_part + part,
                                .least = (float)least(l, p, tile),
                                .mask = mask,
                                .weight = p->weight + (size_t)(mask - p->mask) * PAGE_TOK};
}

/* Queries of the lists from `first` on that are of one tile, and what they see of the tile itself;
 * `*first` becomes the next tile's. */
static bool score_own(const struct work *w, const struct method_lane *l, const struct plan *p,
                      uint32_t *first)
{
    const uint32_t d = l->shape->geom->head_dim, list0 = *first;
    const uint32_t tile = w->place[list0] / p->n_part, tok = plan_tile_tok(p, tile);
    const uint32_t n_own = p->pos + plan_row_end(p, tile) - tok;
    float *q = w->q + (size_t)list0 * w->n_row * d, *lse = w->lse + (size_t)list0 * w->n_row;
    uint32_t n = 0;
    bool finite = true;
    for (; *first < w->n_list && w->place[*first] / p->n_part == tile; ++*first)
        for (uint32_t i = 0; i < w->n_row; i++, n++)
            scale_query(q + (size_t)n * d, l, sampled_row(w, p, tile, i),
                        w->place[*first] % p->n_part);
    pick_products(l, &(struct pick_products){.q = q,
                                             .n = n,
                                             .first = tok,
                                             .end = tok + n_own,
                                             .k = w->k,
                                             .out = w->logit,
                                             .stride = n_own});
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t n_seen = p->pos + sampled_row(w, p, tile, i % w->n_row) - tok + 1;
        finite &= softmax(w->vote, &lse[i], l, w->logit + (size_t)i * n_own, n_seen);
    }
    return finite;
}

/* Makes the lists. False: something is not finite. */
static bool survey(const struct work *w, const struct method_lane *l, const struct plan *p)
{
    bool finite = true;
    for (uint32_t i = 0; i < w->n_list && finite;) finite = score_own(w, l, p, &i);
    if (!finite || w->n_list == 0) return finite;
    finite = l->ops->survey(&(struct op_survey){.ops = l->ops,
                                                .geom = l->shape->geom,
                                                .pool = l->pool,
                                                .page = l->page,
                                                .list = w->list,
                                                .n_list = w->n_list,
                                                .n_query = w->n_row,
                                                .q = w->q,
                                                .lse = w->lse,
                                                .spread = (float)l->param[SPREAD],
                                                .scratch = w->op});
    for (uint32_t i = 0; i < w->n_list; i++) w->n_taken[w->place[i]] = w->list[i].n_taken;
    return finite;
}

/* Lists of all tiles but the last ones, by a few rows where these do. */
static bool survey_all(struct work *w, const struct method_lane *l, const struct plan *p)
{
    w->n_list = 0;
    for (uint32_t i = 0; i < p->n_tile * p->n_part; i++) {
        const uint32_t tile = i / p->n_part;
        if (!is_last(l, p, tile) && !is_near(l, p, tile)) add_list(w, l, p, i);
    }
    if (!survey(w, l, p)) return false;
    w->n_list = 0;
    w->n_row = pick_min(MORE * w->n_row, TILE);
    for (uint32_t i = 0; i < p->n_tile * p->n_part; i++) {
        const uint32_t tile = i / p->n_part;
        if (!is_last(l, p, tile) &&
            (is_near(l, p, tile) || w->n_taken[i] * least(l, p, tile) > l->param[APART]))
            add_list(w, l, p, i);
    }
    return survey(w, l, p);
}

static void end_tile(const struct work *w, const struct method_lane *l, struct plan *p,
                     uint32_t tile)
{
    const uint32_t n = plan_tile_tok(p, tile), recent = (uint32_t)l->param[RECENT] * PAGE_TOK;
    for (uint32_t part = 0; part < p->n_part; part++) {
        plan_range(p, tile, part, 0, PAGE_TOK);
        plan_range(p, tile, part, n > recent ? n - recent : 0, n);
        if (is_last(l, p, tile))
            plan_tile_dense(p, tile, part, PLAN_LAYER);
        else if (w->n_taken[tile * p->n_part + part] + recent + PAGE_TOK > l->param[MOST] * n)
            plan_tile_dense(p, tile, part, PLAN_NO_GAIN);
    }
}

/* Exact masses that the lists of one row of the chunk keep, the row being none of the sample. */
static bool audit(const struct work *w, const struct method_lane *l, struct plan *p)
{
    const uint32_t d = l->shape->geom->head_dim, tile = (l->layer + p->tile0) % p->n_tile;
    const uint32_t row0 = plan_row0(p, tile), n_row = plan_row_end(p, tile) - row0;
    const uint32_t row = row0 + l->layer * 37 % n_row, end = p->pos + row + 1;
    bool finite = true;
    for (uint32_t h = 0; h < p->n_part; h++) scale_query(w->q + (size_t)h * d, l, row, h);
    pick_products(
        l,
        &(struct pick_products){
            .q = w->q, .n = p->n_part, .end = end, .k = w->k, .out = w->row, .stride = w->stride});
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
    struct work w;
    lay_out(&w, l->shape, l->param, l->scratch);
    /* With a softcap a score is no product: the slot does not know it. */
    if (l->layer < (uint32_t)l->param[DENSE] || l->softcap > 0 || l->param[MASS] >= 1) {
        plan_dense(p, PLAN_LAYER);
        return;
    }
    bool finite = survey_all(&w, l, p);
    for (uint32_t t = 0; t < p->n_tile && finite; t++) end_tile(&w, l, p, t);
    if (finite && (l->layer + p->pos / l->shape->n_row_max) % AUDIT == 0) finite = audit(&w, l, p);
    if (!finite) plan_dense(p, PLAN_NAN);
}

static const struct method_prefill hooks = {.tile_tok = TILE,
                                            .by_head = true,
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
        "Heads whose rows look at different keys are chosen for by more rows, and so is the end of "
        "the prompt. What no sampled row looks at may be missed: the mass that is told comes from "
        "exact rows outside the sample.",
    .param = params,
    .n_param = sizeof params / sizeof params[0],
    .weighs = true,
    .token_grain = true,
    .prefill = &hooks,
};
