/* expected.c: the prompt is reduced once, to the tokens that future queries are expected to attend
 * to, Expected Attention (Devoto et al., 2025).
 *
 * Queries are assumed to be normally distributed: mean and covariance of those of the prompt's last
 * rows, each moved to a position among the next `future` ones by the mean rotation. The expected
 * weight of key k is then exp(m + s / 2), with m and s the mean and variance of the logits of these
 * queries, and a token's score is its share of the sum of weights times the norm of its value. As
 * in the authors' code the first tokens are kept and heads of a group are averaged. Decided here:
 * mean and variance are those of the logits themselves, which is the same number and needs no
 * matrix. */
#include "methods/compress.h"
#include "methods/method_spec.h"
#include "methods/pick.h"

#include "base/mem.h"

#include <float.h>
#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "prompt tokens kept per head, window included")                   \
    P(COUNT, window, "0", 0, 1024, "most recent prompt tokens, always kept")                       \
    P(COUNT, rows, "256", 2, 1024, "last prompt tokens whose queries stand for later ones")        \
    P(COUNT, future, "512", 1, 65536, "future positions to which these queries are projected")     \
    P(TOKENS, sink, "4", 0, 4096, "first tokens, always kept")                                     \
    P(NUMBER, floor, "0", 0, 1,                                                                    \
      "added to every share before it is multiplied by the norm of the value")
PARAM_TABLE(expected, struct compress_param, PARAMS)

struct room {
    size_t stride;
    float *score; /* [group, stride] logarithms of expected weights */
    float *share; /* [stride] */
    float *size;  /* [stride] norms of the values */
    float *q;     /* [rows, group, head_dim] at future positions, scaled */
    float *logit; /* [rows, group, PAGE_TOK] */
    float *k, *v; /* [PAGE_TOK, head_dim] */
    float *cos, *sin, *mean_cos, *mean_sin; /* [n_rot / 2] */
    float *lse;                             /* [group] */
};

static size_t room_make(struct room *r, const struct method_shape *s, const void *param,
                        void *scratch)
{
    const struct compress_param *set = param;
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t d = s->geom->head_dim, n_q = (size_t)set->rows * s->group;
    const size_t half = s->rope.n_rot / 2 + 1;
    r->stride = ((size_t)s->n_ctx + 2 * PAGE_TOK) / PAGE_TOK * PAGE_TOK;
    r->score = arena_take(&a, s->group * r->stride, sizeof(float));
    r->share = arena_take(&a, r->stride, sizeof(float));
    r->size = arena_take(&a, r->stride, sizeof(float));
    r->q = arena_take(&a, n_q * d, sizeof(float));
    r->logit = arena_take(&a, n_q * PAGE_TOK, sizeof(float));
    r->k = arena_take(&a, PAGE_TOK * d, sizeof(float));
    r->v = arena_take(&a, PAGE_TOK * d, sizeof(float));
    r->cos = arena_take(&a, half, sizeof(float));
    r->sin = arena_take(&a, half, sizeof(float));
    r->mean_cos = arena_take(&a, half, sizeof(float));
    r->mean_sin = arena_take(&a, half, sizeof(float));
    r->lse = arena_take(&a, s->group, sizeof(float));
    return a.used;
}

static size_t expected_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct room r;
    const size_t own = room_make(&r, s, param, NULL), common = compress_scratch_bytes(s, param);
    return own > common ? own : common;
}

static uint32_t expected_past_rows(const struct method_shape *s, const void *param)
{
    const struct compress_param *set = param;
    (void)s;
    return set->rows;
}

/* The mean over the distances 0 .. future - 1 of the rotation of each RoPE pair. */
static void mean_rotation(const struct room *r, const struct method_shape *s, uint32_t future)
{
    for (uint32_t i = 0; i < s->rope.n_rot / 2; i++) {
        double c = 0, sine = 0;
        for (uint32_t j = 0; j < future; j++) {
            c += cos(j * s->inv_freq[i]);
            sine += sin(j * s->inv_freq[i]);
        }
        r->mean_cos[i] = (float)(c / future);
        r->mean_sin[i] = (float)(sine / future);
    }
}

/* Rotates the queries of rows begin .. pos - 1 from their own positions to pos, and then by the
 * mean rotation. */
static void move_queries(const struct room *r, const struct method_lane *l, uint32_t begin)
{
    const struct method_shape *s = l->shape;
    const uint32_t d = s->geom->head_dim;
    const size_t width = (size_t)s->group * d;
    for (uint32_t p = begin; p < l->pos; p++) {
        const float *q = method_past_query(&l->past, p, width);
        for (uint32_t i = 0; i < s->rope.n_rot / 2; i++) {
            const double angle = (l->pos - p) * s->inv_freq[i], c = cos(angle), sine = sin(angle);
            r->cos[i] = (float)(c * (double)r->mean_cos[i] - sine * (double)r->mean_sin[i]);
            r->sin[i] = (float)(sine * (double)r->mean_cos[i] + c * (double)r->mean_sin[i]);
        }
        const struct segment_view turn = {.cos = r->cos, .sin = r->sin};
        for (uint32_t g = 0; g < s->group; g++) {
            float *out = r->q + (p - begin) * width + g * d;
            segment_turn(out, q + g * d, d, &turn, s->rope, 1);
            for (uint32_t c = 0; c < d; c++) out[c] *= l->scale;
        }
    }
}

/* The log of the expected weight of a page's tokens, m + s / 2, for each query head. */
static void score_page(const struct room *r, const struct method_lane *l, uint32_t page,
                       uint32_t n_tok, uint32_t n_row)
{
    const uint32_t group = l->shape->group, d = l->shape->geom->head_dim;
    l->ops->dots(&(struct op_dots){.a = r->q,
                                   .b = r->k,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = n_row * group,
                                   .n_b = n_tok,
                                   .width = d,
                                   .out = r->logit,
                                   .out_stride = PAGE_TOK});
    for (uint32_t g = 0; g < group; g++)
        for (uint32_t t = 0; t < n_tok; t++) {
            double sum = 0, square = 0;
            for (uint32_t i = 0; i < n_row; i++) {
                const double x = (double)r->logit[((size_t)i * group + g) * PAGE_TOK + t];
                sum += x;
                square += x * x;
            }
            const double mean = sum / n_row, spread = square / n_row - mean * mean;
            r->score[g * r->stride + page * PAGE_TOK + t] = (float)(mean + spread / 2);
        }
}

static float length(const float *x, uint32_t d)
{
    float square = 0;
    for (uint32_t c = 0; c < d; c++) square += x[c] * x[c];
    return sqrtf(square);
}

/* Fills score and size of tokens 0 .. n - 1. Freed pages get no weight. */
static void score_tokens(const struct room *r, const struct method_lane *l, uint32_t n,
                         uint32_t n_row)
{
    const uint32_t d = l->shape->geom->head_dim;
    for (uint32_t p = 0; p * PAGE_TOK < n; p++) {
        const uint32_t n_there = compress_page(r->k, r->v, l, p);
        if (n_there > 0) score_page(r, l, p, n_there, n_row);
        for (uint32_t t = n_there; t < PAGE_TOK; t++)
            for (uint32_t g = 0; g < l->shape->group; g++)
                r->score[g * r->stride + p * PAGE_TOK + t] = -FLT_MAX;
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            r->size[p * PAGE_TOK + t] = t < n_there ? length(r->v + t * d, d) : 0;
    }
}

static bool vote_by_expectation(const struct method_lane *l, float *vote, uint32_t n)
{
    const struct compress_param *set = l->param;
    const uint32_t begin = max_u32(l->past.begin, l->pos > set->rows ? l->pos - set->rows : 0);
    struct room r;
    room_make(&r, l->shape, set, l->scratch);
    mean_rotation(&r, l->shape, set->future);
    move_queries(&r, l, begin);
    score_tokens(&r, l, n, l->pos - begin);
    if (!l->ops->vote(&(struct op_vote){.score = r.score,
                                        .score_stride = r.stride,
                                        .n = n,
                                        .group = l->shape->group,
                                        .vote = r.share,
                                        .lse = r.lse}))
        return false;
    for (uint32_t t = 0; t < n; t++) {
        vote[t] = t < set->sink ? FLT_MAX : (r.share[t] + (float)set->floor) * r.size[t];
        if (!isfinite(vote[t])) return false;
    }
    return true;
}

static const struct compress_policy policy = {.mute = true, .vote = vote_by_expectation};

static void expected_see(const struct method_lane *l)
{
    /* Without the query of an earlier row there is no estimate. */
    if (l->is_prompt || l->past.begin < l->pos) compress_see(l);
}

static const struct method_decode hooks = {
    .family = &policy,
    .state_bytes = compress_state_bytes,
    .scratch_bytes = expected_scratch_bytes,
    .past_rows = expected_past_rows,
    .see = expected_see,
    .select = compress_select,
    .cut = compress_cut,
    .sound = compress_sound,
};

static const sac_method_deviation deviations[] = {
    {"queries of the whole prompt", "of its last `rows` tokens", "older queries are not stored",
     NULL},
    {"norms of the values after their head's part of the output projection", "norms of the values",
     "as in the authors' code", NULL},
    {"heads get budgets by their scores in some of the authors' runs",
     "each head keeps the same number", "adakv does that, as a method of its own", NULL},
    {"one prompt", "after a further prompt, tokens are selected again among those still kept",
     "conversations have several", NULL},
};

const struct method expected_method = {
    METHOD_DECODE(
        expected,
        "prompt tokens that future queries are expected to attend to; the rest is evicted"),
    .paper = "Devoto et al., Expected Attention: KV Cache Compression by Estimating Attention from "
             "Future Queries Distribution, arXiv 2510.00636",
    .about =
        "Looks ahead where SnapKV looks back: the queries of the last prompt tokens are taken as a "
        "sample of all later queries and projected to future positions. The selection therefore "
        "depends less on the one question, and costs as much as a vote of `rows` rows.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .evicts = true,
    .needs_question = true,
    .facts = {.part = "sink=0", .budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .meets_segments = true,
    .decode = &hooks,
};
