/* weigh_ref.c: softmax weights of a panel, their sums along lines, and the mass that lines hold, in
 * plain C. */
#include "base/half.h"
#include "ops/ops.h"

#include <math.h>

static bool weigh_ref(const struct op_weigh *op)
{
    bool right = true;
    for (uint32_t i = 0; i < op->n_row; i++) {
        const float *score = op->score + i * op->score_stride;
        uint16_t *weight = op->weight + (size_t)i * op->width;
        float top = -INFINITY, sum = 0;
        for (uint32_t j = 0; j < op->n[i]; j++) {
            top = fmaxf(top, score[j]);
            right = right && score[j] < INFINITY;
        }
        for (uint32_t j = 0; j < op->width; j++) {
            const float x = j < op->n[i] ? expf(score[j] - top) : 0;
            weight[j] = f32_to_f16(x);
            sum += x;
        }
        op->top[i] = top;
        if (op->n[i] == 0) continue;
        const float max = fmaxf(op->max[i], top);
        op->sum[i] = op->sum[i] * expf(op->max[i] - max) + sum * expf(top - max);
        op->max[i] = max;
    }
    return right;
}

static void lines_ref(const struct op_lines *op)
{
    for (uint32_t i = 0; i < op->n_row; i++) {
        uint16_t *weight = op->weight + (size_t)i * op->width;
        const bool counts = op->top[i] > -INFINITY;
        const float scale = counts ? expf(op->top[i] - op->lse[i]) : 0;
        for (uint32_t j = 0; j < op->width; j++) {
            float share = scale * f16_to_f32(weight[j]);
            if (op->keep) {
                weight[j] = f32_to_bf16(share);
                share = bf16_to_f32(weight[j]);
            }
            if (!counts) continue;
            op->column[j] += share;
            op->down[op->first[i] + j] += share;
        }
    }
}

static void rate_ref(const struct op_rate *op)
{
    for (uint32_t i = 0; i < op->n; i++) {
        const uint32_t begin = i > op->pos0 ? i : op->pos0, last = op->n - begin + i;
        const uint32_t own = op->n - begin - (op->before[i] - op->before[last]);
        float *top = &op->top[i / OP_RATE_LINES];
        op->key[i] = op->left[i] / (float)(own + (own == 0));
        if (i % OP_RATE_LINES == 0) *top = 0;
        if (op->key[i] > *top) *top = op->key[i];
    }
}

void ops_fill_ref_weigh(struct ops *o)
{
    o->weigh = weigh_ref;
    o->lines = lines_ref;
    o->rate = rate_ref;
}
