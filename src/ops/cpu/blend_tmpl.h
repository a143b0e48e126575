/* blend_tmpl.h: attention over one page under given logits, the same text for AVX2 and AVX-512
 * (private).
 *
 * Included once by a file of one instruction set after its vec_*.h and after it has defined HEADS:
 * query heads whose sums of PAGE_VBLOCK channels stay in registers while the tokens pass by. */
#ifndef SAC_OPS_CPU_BLEND_TMPL_H
#define SAC_OPS_CPU_BLEND_TMPL_H

#include "base/half.h"
#include "ops/ops.h"

#include <assert.h>
#include <math.h>

#define PARTS   (PAGE_VBLOCK / VEC) /* vectors of a block of channels */
#define DIM_MAX 512u

/* Weights of a query head, relative to its largest logit. */
static void find_weights(const struct op_blend *op, uint32_t g, float weight[PAGE_TOK])
{
    const float *logit = op->logit + (size_t)g * PAGE_TOK, log2_e = (float)M_LOG2E;
    const vec none = v_set1(-INFINITY);
    vec x[PAGE_TOK / VEC], top = none, sum = v_zero();
    for (uint32_t i = 0; i < PAGE_TOK / VEC; i++) {
        const uint32_t n = op->n_tok > i * VEC ? op->n_tok - i * VEC : 0;
        x[i] = v_choose(m_first(n), v_load(logit + i * VEC), none);
        top = v_max(x[i], top); /* a NaN is not the largest */
    }
    const float most = v_most(top);
    const vec base = v_set1(most == -INFINITY ? 0 : most);
    for (uint32_t i = 0; i < PAGE_TOK / VEC; i++) {
        x[i] = math_exp2_quartic(v_mul(v_sub(x[i], base), v_set1(log2_e)));
        sum = v_add(sum, x[i]);
        v_store(weight + i * VEC, x[i]);
    }
    float lane[VEC], all = 0;
    v_store(lane, sum);
    for (uint32_t i = 0; i < VEC; i++) all += lane[i];
    op->most[g] = most;
    op->sum[g] = all;
}

VEC_PART vec load_value(const uint8_t *v, sac_kv_type type, size_t i)
{
    if (type == SAC_KV_Q8) return v_load_i8((const int8_t *)v + i);
    return type == SAC_KV_BF16 ? v_load_bf16(v + 2 * i) : v_load_f16(v + 2 * i);
}

struct block {
    uint32_t g, c;                                 /* the first head and channel */
    float weight[HEADS][PAGE_TOK];                 /* of heads behind the last one: any */
    float scale[PAGE_TOK * DIM_MAX / PAGE_VBLOCK]; /* of codes, as in a page */
};

VEC_PART void blend_block(const struct op_blend *op, const struct block *b, sac_kv_type type)
{
    const uint32_t d = op->geom->head_dim;
    const uint32_t n_block = d / PAGE_VBLOCK;
    const float *scale = b->scale + b->c / PAGE_VBLOCK;
    const uint8_t *v = op->page + op->geom->v;
    vec sum[HEADS][PARTS];
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < PARTS; i++) sum[h][i] = v_zero();
    for (uint32_t t = 0; t < PAGE_TOK; t++)
        for (uint32_t i = 0; i < PARTS; i++) {
            vec x = load_value(v, type, (size_t)t * d + b->c + i * VEC);
            if (type == SAC_KV_Q8) x = v_mul(x, v_set1(scale[t * n_block]));
            for (uint32_t h = 0; h < HEADS; h++)
                sum[h][i] = v_fma(v_set1(b->weight[h][t]), x, sum[h][i]);
        }
    for (uint32_t h = 0; h < HEADS && b->g + h < op->group; h++)
        for (uint32_t i = 0; i < PARTS; i++)
            v_store(op->value + (size_t)(b->g + h) * d + b->c + i * VEC, sum[h][i]);
}

static void blend_vec(const struct op_blend *op)
{
    const bool codes = op->page && op->geom->type_v == SAC_KV_Q8;
    const size_t n_scale = codes ? PAGE_TOK * op->geom->head_dim / PAGE_VBLOCK : 0;
    struct block b;
    memset(b.weight, 0, sizeof b.weight);
    assert(op->geom->head_dim <= DIM_MAX && (!op->page || op->n_tok == PAGE_TOK));
    for (size_t i = 0; i < n_scale; i += VEC)
        v_store(b.scale + i, v_load_f16(op->page + op->geom->v_scale + 2 * i));
    for (b.g = 0; b.g < op->group; b.g += HEADS) {
        for (uint32_t h = 0; h < HEADS && b.g + h < op->group; h++)
            find_weights(op, b.g + h, b.weight[h]);
        for (b.c = 0; b.c < op->geom->head_dim && op->page; b.c += PAGE_VBLOCK) {
            switch (op->geom->type_v) {
            case SAC_KV_Q8: blend_block(op, &b, SAC_KV_Q8); break;
            case SAC_KV_BF16: blend_block(op, &b, SAC_KV_BF16); break;
            case SAC_KV_F16: blend_block(op, &b, SAC_KV_F16);
            }
        }
    }
}

#endif
