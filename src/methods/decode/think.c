/* think.c: keys lose the channels to which the prompt's last queries give the least weight, ThinK
 * (Xu et al., ICLR 2025).
 *
 * As in the authors' code: a channel's weight is the mean square of the last `window` queries in it
 * times that of the prompt's keys, which orders channels as the paper's norm of the outer product
 * does; the share `ratio` of the channels with the least weight is pruned, from all keys except the
 * most recent `recent` ones and those of the answer. Their scores are sums over the remaining
 * channels. This is no selection of tokens: attention's own arithmetic changes, so the method
 * attends itself, and its result takes the place of all tokens before the row's own page.
 *
 * Decided here: one set of channels per KV head, by the queries of all its query heads (the code
 * expands keys to query heads); only whole pages lose channels. The remaining channels are stored
 * once more, packed, in 16 bits, in the sequence's state: a step reads that copy and the values, as
 * with the paper's cache, but the whole keys also stay in memory. */
#include "base/mem.h"
#include "methods/meter.h"
#include "methods/pick.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(SHARE, ratio, "0.4", "share of the key channels to prune, rounded down to whole ones")       \
    P(TOKENS, recent, "32", 0, 65536, "most recent prompt tokens whose keys stay whole")           \
    P(COUNT, window, "32", 1, 1024, "last prompt tokens whose queries rank the channels")
METHOD_PARAMS(think, PARAMS)

struct think_state {
    uint32_t n_seen;      /* context length when the channels were selected; 0: they are not */
    uint32_t n_cut;       /* first tokens whose keys are pruned: whole pages */
    uint32_t prompt_done; /* 0: prompt rows have come since, whose keys are to be pruned */
    /* Pages up to the first one with a key that is not finite, so that attention is dense; 0: all
     * keys are finite. */
    uint32_t not_finite;
};

/* The parts of a lane's state. */
struct think {
    struct think_state *own;
    uint32_t *channel; /* [n_kept] ascending */
    uint16_t *key;     /* [tokens of a context, n_kept] f16 */
    uint32_t n_kept;
};

static uint32_t count_kept(const struct method_shape *s, const struct think_param *set)
{
    const uint32_t d = s->geom->head_dim;
    return max_u32(d - (uint32_t)(set->ratio * d + 1e-9), 1); /* 0.29 of 100 is 29 */
}

static size_t cut_state(struct think *x, const struct method_shape *s, const void *param,
                        void *state)
{
    struct arena a = {.base = state, .capacity = SIZE_MAX};
    x->n_kept = count_kept(s, param);
    x->own = arena_take(&a, 1, sizeof *x->own);
    x->channel = arena_take(&a, x->n_kept, sizeof *x->channel);
    x->key =
        arena_take(&a, (size_t)pick_whole_pages(s->n_ctx) * PAGE_TOK * x->n_kept, sizeof *x->key);
    return a.used;
}

static size_t think_state_bytes(const struct method_shape *s, const void *param)
{
    struct think x;
    return cut_state(&x, s, param, NULL);
}

/* Scratch. */
struct work {
    uint32_t width; /* n_kept, padded with zeros to a multiple of 16 for the products */
    float *q;       /* [group, head_dim] scaled */
    float *q_cut;   /* [group, width] their kept channels */
    float *k, *v;   /* [PAGE_TOK, head_dim]; a pruned page's `k` is [PAGE_TOK, width] */
    float *score;   /* [group, PAGE_TOK] */
    float *best;    /* [group] running maximum of the scores */
    double *sum;    /* [group] softmax denominator, relative to `best` */
    /* [head_dim] sums of squares of the keys, then the channels' weights; of the queries */
    double *weight, *query_square;
};

static size_t cut_work(struct work *w, const struct method_shape *s, const void *param,
                       void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t d = s->geom->head_dim, group = s->group;
    w->width = (count_kept(s, param) + 15) / 16 * 16;
    const size_t wide = mem_larger(d, w->width);
    w->q = arena_take(&a, group * d, sizeof *w->q);
    w->q_cut = arena_take(&a, group * w->width, sizeof *w->q_cut);
    w->k = arena_take(&a, PAGE_TOK * wide, sizeof *w->k);
    w->v = arena_take(&a, PAGE_TOK * d, sizeof *w->v);
    w->score = arena_take(&a, group * PAGE_TOK, sizeof *w->score);
    w->best = arena_take(&a, group, sizeof *w->best);
    w->sum = arena_take(&a, group, sizeof *w->sum);
    w->weight = arena_take(&a, d, sizeof *w->weight);
    w->query_square = arena_take(&a, d, sizeof *w->query_square);
    return a.used;
}

static size_t think_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct work w;
    return cut_work(&w, s, param, NULL);
}

static uint32_t think_past_rows(const struct method_shape *s, const void *param)
{
    const struct think_param *set = param;
    (void)s;
    return set->window;
}

/* ---- Channels ---- */

static void add_squares(double *sum, const float *x, uint32_t n_row, uint32_t d)
{
    for (size_t i = 0; i < (size_t)n_row * d; i++) sum[i % d] += (double)x[i] * (double)x[i];
}

/* The weight of channel c is |Q_c|^2 |K_c|^2, the squared Frobenius norm of the outer product of
 * its queries and keys, with Q_c over the observation window and K_c over the prompt. False: a key
 * is not finite. */
static bool weigh_channels(const struct work *w, const struct method_lane *l)
{
    const struct think_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, group = l->shape->group;
    const uint32_t end = l->pos + 1, first = end - min_u32(end, set->window);
    double all = 0;
    memset(w->weight, 0, d * sizeof *w->weight);
    memset(w->query_square, 0, d * sizeof *w->query_square);
    for (uint32_t p = 0; p < pick_page_count(l); p++) {
        pick_keys(w->k, l, p);
        add_squares(w->weight, w->k, PAGE_TOK, d);
    }
    add_squares(w->weight, w->k, pick_own(w->k, NULL, l), d);
    for (uint32_t row = max_u32(first, l->past.begin); row < l->pos; row++)
        add_squares(w->query_square, method_past_query(&l->past, row, (size_t)group * d), group, d);
    add_squares(w->query_square, l->q, group, d);
    for (uint32_t c = 0; c < d; c++) all += w->weight[c] *= w->query_square[c];
    return all - all == 0;
}

/* Keeps the n_kept channels with the largest weights; of equal ones, the first. */
static void choose_channels(const struct think *x, const double *weight, uint32_t d)
{
    uint32_t n = 0;
    for (uint32_t c = 0; c < d; c++) {
        uint32_t n_before = 0;
        for (uint32_t i = 0; i < d; i++)
            n_before += weight[i] > weight[c] || (weight[i] == weight[c] && i < c);
        if (n_before < x->n_kept) x->channel[n++] = c;
    }
    assert(n == x->n_kept);
}

/* Packs the kept channels of the keys from the first page that is not pruned up to token `end`, and
 * records the first page with a key that is not finite in 16 bits. */
static void cut_keys(const struct think *x, const struct work *w, const struct method_lane *l,
                     uint32_t end)
{
    const uint32_t d = l->shape->geom->head_dim;
    for (uint32_t p = x->own->n_cut / PAGE_TOK; p < end / PAGE_TOK; p++) {
        float bad = 0;
        uint16_t *to = x->key + (size_t)p * PAGE_TOK * x->n_kept;
        pick_keys(w->k, l, p);
        for (uint32_t i = 0; i < PAGE_TOK * d; i++) bad += w->k[i] - w->k[i];
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            for (uint32_t i = 0; i < x->n_kept; i++, to++) {
                *to = f32_to_f16(w->k[t * d + x->channel[i]]);
                bad += f16_to_f32(*to) - f16_to_f32(*to);
            }
        if (bad != 0 && !x->own->not_finite) x->own->not_finite = p + 1;
    }
    x->own->n_cut = end;
}

/* After a prompt: selects the channels, unless an earlier prompt has, and prunes all keys but the
 * most recent ones. */
static void prune_keys(const struct think *x, const struct work *w, const struct method_lane *l)
{
    const struct think_param *set = l->param;
    const uint32_t end = l->pos + 1, n_old = end - min_u32(end, set->recent);
    const uint32_t n_cut = min_u32(n_old / PAGE_TOK, pick_page_count(l)) * PAGE_TOK;
    if (n_cut <= x->own->n_cut) return;
    if (x->own->n_seen == 0) {
        x->own->n_seen = end;
        x->own->not_finite = weigh_channels(w, l) ? 0 : 1;
        if (x->own->not_finite) return;
        choose_channels(x, w->weight, l->shape->geom->head_dim);
    }
    cut_keys(x, w, l, n_cut);
}

/* ---- Attention ---- */

/* Scores a page's tokens for all query heads, over the kept channels if it is pruned, and reads its
 * values. */
static void score_page(const struct think *x, const struct work *w, const struct method_lane *l,
                       uint32_t page)
{
    const uint32_t group = l->shape->group, d = l->shape->geom->head_dim;
    const bool is_cut = page * PAGE_TOK < x->own->n_cut;
    const uint32_t width = is_cut ? w->width : d;
    const uint16_t *from = x->key + (size_t)page * PAGE_TOK * x->n_kept;
    if (is_cut) {
        meter_read(l, from, PAGE_TOK * x->n_kept * sizeof *from);
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            for (uint32_t i = 0; i < width; i++)
                w->k[t * width + i] = i < x->n_kept ? f16_to_f32(*from++) : 0;
        pick_values(w->v, l, page);
    } else {
        pick_keys_values(w->k, w->v, l, page);
    }
    l->ops->dots(&(struct op_dots){.a = is_cut ? w->q_cut : w->q,
                                   .b = w->k,
                                   .a_stride = width,
                                   .b_stride = width,
                                   .n_a = group,
                                   .n_b = PAGE_TOK,
                                   .width = width,
                                   .out = w->score,
                                   .out_stride = PAGE_TOK});
    for (uint32_t i = 0; i < group * PAGE_TOK && l->softcap > 0; i++)
        w->score[i] = l->softcap * tanhf(w->score[i] / l->softcap);
}

/* Online softmax: adds a page's weighted values to a query head's sum, which is rescaled when the
 * maximum rises. */
static void add_values(const struct work *w, uint32_t g, float *value, uint32_t d)
{
    const float *score = w->score + (size_t)g * PAGE_TOK;
    float best = w->best[g];
    for (uint32_t t = 0; t < PAGE_TOK; t++) best = fmaxf(best, score[t]);
    const float keep = expf(w->best[g] - best);
    w->best[g] = best;
    w->sum[g] *= (double)keep;
    for (uint32_t c = 0; c < d; c++) value[c] *= keep;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        const float share = expf(score[t] - best), *v = w->v + (size_t)t * d;
        w->sum[g] += (double)share;
        for (uint32_t c = 0; c < d; c++) value[c] += share * v[c];
    }
}

/* Attention over all tokens before the query's own page: out->rest_value and its log mass. False: a
 * score is not finite. */
static bool attend(const struct think *x, const struct work *w, const struct method_lane *l,
                   struct method_pick *out)
{
    const uint32_t group = l->shape->group, d = l->shape->geom->head_dim;
    bool finite = true;
    for (size_t i = 0; i < (size_t)group * d; i++) w->q[i] = l->q[i] * l->scale;
    for (uint32_t g = 0; g < group; g++) {
        for (uint32_t i = 0; i < w->width; i++)
            w->q_cut[g * w->width + i] = i < x->n_kept ? w->q[g * d + x->channel[i]] : 0;
        w->best[g] = -INFINITY;
        w->sum[g] = 0;
        memset(out->rest_value + (size_t)g * d, 0, d * sizeof *out->rest_value);
    }
    for (uint32_t p = 0; p < pick_page_count(l); p++) {
        score_page(x, w, l, p);
        for (uint32_t i = 0; i < group * PAGE_TOK; i++)
            finite = finite && w->score[i] - w->score[i] == 0;
        for (uint32_t g = 0; g < group && finite; g++)
            add_values(w, g, out->rest_value + (size_t)g * d, d);
    }
    for (uint32_t g = 0; g < group && finite; g++) {
        out->rest_log[g] = w->best[g] + (float)log(w->sum[g]);
        for (uint32_t c = 0; c < d; c++) out->rest_value[(size_t)g * d + c] /= (float)w->sum[g];
    }
    return finite;
}

static void think_see(const struct method_lane *l)
{
    struct think_state *x = l->state;
    if (l->is_prompt) x->prompt_done = 0;
}

static void think_select(const struct method_lane *l, struct method_pick *out)
{
    struct think x;
    struct work w;
    cut_state(&x, l->shape, l->param, l->state);
    cut_work(&w, l->shape, l->param, l->scratch);
    if (x.n_kept == l->shape->geom->head_dim) {
        pick_dense(out);
        return;
    }
    meter_build(l);
    if (!x.own->prompt_done) prune_keys(&x, &w, l);
    x.own->prompt_done = 1;
    meter_attend(l);
    if (x.own->not_finite) {
        pick_not_finite(out);
    } else if (x.own->n_cut == 0) {
        pick_dense(out);
    } else if (attend(&x, &w, l, out)) {
        pick_range(out, l, 0, l->pos);
        out->attended = true;
    } else {
        pick_not_finite(out);
    }
    meter_choose(l);
}

static void think_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    struct think_state *x = state;
    (void)s;
    (void)param;
    if (n_tok < x->n_seen) /* the channels depend on tokens that are gone */
        *x = (struct think_state){0};
    x->n_cut = min_u32(x->n_cut, n_tok / PAGE_TOK * PAGE_TOK);
    if (x->not_finite > n_tok / PAGE_TOK) x->not_finite = 0; /* the page is gone */
}

static bool think_sound(const struct method_loaded *l)
{
    struct think x;
    cut_state(&x, l->shape, l->param, (void *)(uintptr_t)l->state);
    for (uint32_t i = 0; i < x.n_kept && x.own->n_seen > 0; i++)
        if (x.channel[i] >= l->shape->geom->head_dim) return false;
    return x.own->n_cut <= l->n_tok && x.own->n_cut % PAGE_TOK == 0 && x.own->n_seen <= l->n_tok &&
           (x.own->n_seen > 0 || x.own->n_cut == 0) && x.own->prompt_done <= 1 &&
           x.own->not_finite <= l->n_tok / PAGE_TOK;
}

static const struct method_decode hooks = {
    .state_bytes = think_state_bytes,
    .scratch_bytes = think_scratch_bytes,
    .past_rows = think_past_rows,
    .see = think_see,
    .select = think_select,
    .cut = think_cut,
    .sound = think_sound,
};

static const sac_method_deviation deviations[] = {
    {"it is combined with SnapKV or H2O, which evict tokens first", "no token is evicted",
     "the cost of pruning channels shows by itself", NULL},
    {"channels for each query head, with keys copied for all of them",
     "one set per KV head, by the queries of all its heads", "keys are stored once for the group",
     NULL},
    {"keys of the pruned channels leave memory",
     "the remaining channels are stored a second time, packed in 16 bits; a q8 cache gains nothing",
     "other sequences and methods read whole keys from the same pages",
     "memory for 60 % of another copy of the keys"},
    {"the most recent 32 tokens of the prompt keep all channels", "and those in a page with them",
     "pages are pruned as a whole", NULL},
    {"the first answer token sees whole keys", "it sees pruned ones",
     "the selection is made at the first decode row", NULL},
    {"one prompt", "keys of a further prompt lose the same channels", "conversations have several",
     NULL},
};

const struct method think_method = {
    METHOD_DECODE(think,
                  "all tokens, with the least important channels of the prompt's keys pruned"),
    .paper = "Xu et al., ThinK: Thinner Key Cache by Query-Driven Pruning, arXiv 2407.21018",
    .about = "After the prompt, keys lose the channels to which its last queries give least "
             "weight, and scores are sums over the others. Every token is still read, with its "
             "whole value, so at most half of the bytes can be saved, and here a fifth is. All "
             "tokens stay in the cache, so a question asked late can still be answered, as far as "
             "the remaining channels show it. Where the paper is silent, the authors' code was "
             "followed (github.com/SalesforceAIResearch/ThinK).",
    METHOD_DEVIATIONS(deviations),
    .fixed = true,
    .has_rest = true,
    .needs_question = true,
    .facts = {.whole = "ratio=0", .n_forced = UINT32_MAX, .reads_all = true},
    .decode = &hooks,
};
