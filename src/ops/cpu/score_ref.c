/* score_ref.c: the definitions of the score slots in plain C, sums in order. */
#include "base/half.h"
#include "ops/ops.h"

#include <math.h>

static const uint16_t *half_at(const uint8_t *page, size_t at)
{
    return (const uint16_t *)(const void *)(page + at);
}

static void score_pages_ref(const struct op_score_pages *op)
{
    const uint32_t d = op->head_dim;
    for (uint32_t i = 0; i < op->n_page; i++) {
        const uint8_t *page = op->base + page_frame_of(op->frame_of, op->page[i]) * op->stride;
        const uint16_t *a = half_at(page, op->a_at), *b = half_at(page, op->b_at);
        for (uint32_t g = 0; g < op->group; g++) {
            const float *qa = op->qa + (size_t)g * d, *qb = op->qb + (size_t)g * d;
            float sum = 0;
            for (uint32_t c = 0; c < d; c++)
                sum += qa[c] * f16_to_f32(a[c]) + qb[c] * f16_to_f32(b[c]);
            op->out[g * op->out_stride + i] = sum;
        }
    }
}

static bool vote_ref(const struct op_vote *op)
{
    float wrong = 0; /* stays 0 while all scores are finite */
    for (uint32_t i = 0; i < op->n; i++) op->vote[i] = 0;
    for (uint32_t g = 0; g < op->group; g++) {
        const float *s = op->score + g * op->score_stride;
        float max = -INFINITY, sum = 0;
        for (uint32_t i = 0; i < op->n; i++) {
            max = fmaxf(max, s[i]);
            wrong += s[i] - s[i];
        }
        for (uint32_t i = 0; i < op->n; i++) sum += expf(s[i] - max);
        op->lse[g] = max + logf(sum);
        const float share = 1.0f / (sum * (float)op->group);
        for (uint32_t i = 0; i < op->n; i++) op->vote[i] += expf(s[i] - max) * share;
    }
    return wrong == 0;
}

/* Logits of the tokens of some pages for one head. */
static void plane_logits(const struct op_share_planes *op, struct attn_range pages, const float *q,
                         float *out)
{
    const uint32_t d = op->head_dim, quarter = d / 4;
    for (uint32_t i = pages.begin; i < pages.end; i++) {
        const uint8_t *page = op->base + page_frame_of(op->frame_of, op->page[i]) * op->stride;
        const uint16_t *min = half_at(page, op->min_at), *step = half_at(page, op->step_at);
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const uint8_t *hi2 = page + op->hi2_at + (size_t)t * quarter;
            float sum = 0;
            for (uint32_t c = 0; c < d; c++) {
                const uint32_t codes = hi2[c % quarter];
                const float code = (float)(codes >> 2 * (c / quarter) & 3u);
                sum += q[c] * (f16_to_f32(min[c]) + f16_to_f32(step[c]) * (64 * code + 31.5f));
            }
            out[i * PAGE_TOK + t] = op->scale * sum;
        }
    }
}

static bool share_planes_ref(const struct op_share_planes *op)
{
    float lse[64];
    for (uint32_t g = 0; g < op->group; g++)
        plane_logits(op, (struct attn_range){0, op->n_page}, op->q + (size_t)g * op->head_dim,
                     op->e + (size_t)g * op->n_page * PAGE_TOK);
    return vote_ref(&(struct op_vote){.score = op->e,
                                      .score_stride = (size_t)op->n_page * PAGE_TOK,
                                      .n = op->n_page * PAGE_TOK,
                                      .group = op->group,
                                      .vote = op->share,
                                      .lse = op->lse ? op->lse : lse});
}

/* Exponentials relative to the largest logit of the first page, which is in op->frame, and at most
 * 2^100. */
static bool share_raise_ref(const struct op_share_planes *op, struct attn_range pages, float *sum)
{
    const float *most = op->frame;
    const size_t n = (size_t)op->n_page * PAGE_TOK;
    float wrong = 0;
    for (uint32_t g = 0; g < op->group; g++) {
        float *e = op->e + g * n;
        plane_logits(op, pages, op->q + (size_t)g * op->head_dim, e);
        sum[g] = 0;
        for (size_t i = (size_t)pages.begin * PAGE_TOK; i < (size_t)pages.end * PAGE_TOK; i++) {
            wrong += e[i] - e[i];
            e[i] = fminf(expf(e[i] - most[g]), 0x1p100f);
            sum[g] += e[i];
        }
    }
    return wrong == 0;
}

static bool share_begin_ref(const struct op_share_planes *op, float *sum)
{
    float *most = op->frame;
    for (uint32_t g = 0; g < op->group; g++) {
        float *e = op->e + (size_t)g * op->n_page * PAGE_TOK;
        plane_logits(op, (struct attn_range){0, 1}, op->q + (size_t)g * op->head_dim, e);
        most[g] = -INFINITY;
        for (uint32_t t = 0; t < PAGE_TOK; t++) most[g] = fmaxf(most[g], e[t]);
    }
    return share_raise_ref(op, (struct attn_range){0, 1}, sum);
}

static void share_spread_ref(const struct op_share_planes *op, struct attn_range pages,
                             const float *sum)
{
    const size_t n = (size_t)op->n_page * PAGE_TOK;
    for (size_t i = (size_t)pages.begin * PAGE_TOK; i < (size_t)pages.end * PAGE_TOK; i++) {
        op->share[i] = 0;
        for (uint32_t g = 0; g < op->group; g++)
            op->share[i] += op->e[g * n + i] / (sum[g] * (float)op->group);
    }
}

void ops_fill_ref_score(struct ops *o)
{
    o->score_pages = score_pages_ref;
    o->share_planes = share_planes_ref;
    o->share_begin = share_begin_ref;
    o->share_raise = share_raise_ref;
    o->share_spread = share_spread_ref;
    o->vote = vote_ref;
}
