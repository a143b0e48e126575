/* draw_ref.c: the definition of `draw` in plain C. */
#include "base/half.h"
#include "ops/ops.h"

#include <math.h>

static double sum_below(const struct op_draw *op, float cut)
{
    double sum = 0;
    for (uint32_t i = 0; i < op->n; i++) sum += op->value[i] < cut ? (double)op->value[i] : 0;
    return sum;
}

static float find_cut(const struct op_draw *op)
{
    uint32_t lo = float_bits(OP_DRAW_LEAST), hi = float_bits(2.0f);
    while (hi - lo > OP_DRAW_STEP) {
        const uint32_t mid = lo + (hi - lo) / 2;
        const float cut = bits_float(mid);
        if (op_draw_may_rise(op, cut, sum_below(op, cut)))
            lo = mid;
        else
            hi = mid;
    }
    return bits_float(lo);
}

static uint32_t draw_ref(const struct op_draw *op)
{
    const float cut = find_cut(op), by = 0x1p32f / cut;
    uint32_t sum[OP_DRAW_LANES], n = 0;
    for (uint32_t i = 0; i < OP_DRAW_LANES; i++) sum[i] = op_draw_begin(i);
    for (uint32_t i = 0; i < op->n; i++) {
        const float value = op->value[i];
        if (value < cut) {
            const float bits = value * by;
            const uint32_t chance = bits < 0x1p32f ? (uint32_t)bits : UINT32_MAX;
            sum[i % OP_DRAW_LANES] += chance;
            if (sum[i % OP_DRAW_LANES] >= chance) continue;
        }
        op->item[n] = op->first + i;
        op->logw[n++] = value < cut ? logf(cut / value) : 0;
    }
    return n;
}

void ops_fill_ref_draw(struct ops *o)
{
    o->draw = draw_ref;
}
