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
    const float cut = find_cut(op);
    float chances = 0.5f;
    uint32_t n = 0;
    for (uint32_t i = 0; i < op->n; i++) {
        const float value = op->value[i];
        if (value < cut) {
            chances += value / cut;
            if (chances < 1) continue;
            chances -= 1;
        }
        op->item[n] = i;
        op->logw[n++] = value < cut ? logf(cut / value) : 0;
    }
    return n;
}

void ops_fill_ref_draw(struct ops *o)
{
    o->draw = draw_ref;
}
