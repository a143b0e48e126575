/* blend_tmpl.h: weights of a page's tokens from given logits, and the weighted sums of its values,
 * one source for AVX2 and AVX-512 (private).
 *
 * Included once by a file of one instruction set after its vec_*.h and after it has defined HEADS:
 * the number of query heads whose sums (PARTS vectors of channels each) stay in registers while the
 * tokens stream past. The scale of q8 values is multiplied into the weights, of which there are
 * fewer. */
#ifndef SAC_OPS_CPU_BLEND_TMPL_H
#define SAC_OPS_CPU_BLEND_TMPL_H

#include "base/half.h"
#include "ops/ops.h"

#include <assert.h>
#include <math.h>

#define PARTS 2u

_Static_assert(PAGE_VBLOCK % (PARTS * VEC) == 0, "sums at hand have one scale");

/* Weights of a query head, relative to its largest logit. */
static void raise_head(const struct op_raise *op, uint32_t g)
{
    const float *logit = op->logit + (size_t)g * PAGE_TOK, log2_e = (float)M_LOG2E;
    float *weight = op->weight + (size_t)g * PAGE_TOK;
    const vec none = v_set1(-INFINITY);
    vec x[PAGE_TOK / VEC], top = none, sum = v_zero();
    for (uint32_t i = 0; i < PAGE_TOK / VEC; i++) {
        const uint32_t n = op->n_tok > i * VEC ? op->n_tok - i * VEC : 0;
        x[i] = v_choose(m_first(n), v_load(logit + i * VEC), none);
        top = v_max(x[i], top); /* ignores NaN */
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

static void raise_vec(const struct op_raise *op)
{
    for (uint32_t g = 0; g < op->group; g++) raise_head(op, g);
}

VEC_PART vec load_value(const uint8_t *v, sac_kv_type type, size_t i)
{
    if (type == SAC_KV_Q8) return v_load_i8((const int8_t *)v + i);
    return type == SAC_KV_BF16 ? v_load_bf16(v + 2 * i) : v_load_f16(v + 2 * i);
}

/* Weights of HEADS heads, from head g on, for a block of channels that share a scale; 0 for missing
 * heads. */
struct block {
    uint32_t g, c; /* c: the first channel */
    float weight[HEADS][PAGE_TOK];
};

static void find_weights(struct block *b, const struct op_blend *op, const float *scale)
{
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < PAGE_TOK; i += VEC) {
            vec x = v_zero();
            if (b->g + h < op->group) {
                x = v_load(op->weight + (size_t)(b->g + h) * PAGE_TOK + i);
                x = v_mul(x, v_set1(op->by[b->g + h]));
                if (scale) x = v_mul(x, v_load(scale + i));
            }
            v_store(b->weight[h] + i, x);
        }
}

/* Adds the weighted values of PARTS vectors of channels. */
VEC_PART void blend_block(const struct op_blend *op, const struct block *b, sac_kv_type type)
{
    const size_t d = op->geom->head_dim;
    const uint8_t *v = op->page + op->geom->v;
    float *value = op->value + b->g * d + b->c;
    vec sum[HEADS][PARTS];
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t i = 0; i < PARTS; i++)
            sum[h][i] = b->g + h < op->group ? v_load(value + h * d + i * VEC) : v_zero();
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        vec x[PARTS];
        for (uint32_t i = 0; i < PARTS; i++) x[i] = load_value(v, type, t * d + b->c + i * VEC);
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t i = 0; i < PARTS; i++)
                sum[h][i] = v_fma(v_set1(b->weight[h][t]), x[i], sum[h][i]);
    }
    for (uint32_t h = 0; h < HEADS && b->g + h < op->group; h++)
        for (uint32_t i = 0; i < PARTS; i++) v_store(value + h * d + i * VEC, sum[h][i]);
}

/* Scales of a q8 page, transposed to [head_dim / PAGE_VBLOCK][PAGE_TOK]. */
static void find_scales(float *scale, const struct op_blend *op)
{
    const uint32_t n_block = op->geom->head_dim / PAGE_VBLOCK;
    const uint8_t *from = op->page + op->geom->v_scale;
    float by_token[PAGE_TOK * HEAD_DIM_MAX / PAGE_VBLOCK];
    for (size_t i = 0; i < PAGE_TOK * (size_t)n_block; i += VEC)
        v_store(by_token + i, v_load_f16(from + 2 * i));
    for (uint32_t b = 0; b < n_block; b++)
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            scale[b * PAGE_TOK + t] = by_token[t * (size_t)n_block + b];
}

static void blend_vec(const struct op_blend *op)
{
    const bool codes = op->geom->type_v == SAC_KV_Q8;
    float scale[PAGE_TOK * HEAD_DIM_MAX / PAGE_VBLOCK];
    struct block b;
    assert(op->geom->head_dim <= HEAD_DIM_MAX);
    if (codes) find_scales(scale, op);
    for (b.g = 0; b.g < op->group; b.g += HEADS)
        for (b.c = 0; b.c < op->geom->head_dim; b.c += PARTS * VEC) {
            if (b.c == 0 || (codes && b.c % PAGE_VBLOCK == 0))
                find_weights(&b, op, codes ? scale + b.c / PAGE_VBLOCK * PAGE_TOK : NULL);
            switch (op->geom->type_v) {
            case SAC_KV_Q8: blend_block(op, &b, SAC_KV_Q8); break;
            case SAC_KV_BF16: blend_block(op, &b, SAC_KV_BF16); break;
            case SAC_KV_F16: blend_block(op, &b, SAC_KV_F16);
            }
        }
}

#endif
