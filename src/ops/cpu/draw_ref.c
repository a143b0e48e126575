/* draw_ref.c: the definition of `draw` in plain C. */
#include "base/half.h"
#include "ops/steady.h"

#include <math.h>
#include <string.h>

/* Nothing to prepare: cut_ref reads all values. */
static void open_ref(const struct op_draw *op, struct op_draw_piece *p)
{
    (void)op;
    p->n_open = 0;
    p->below = 0;
}

static double sum_below(const struct op_draw *op, float cut)
{
    double sum = 0;
    for (uint32_t i = 0; i < op->n; i++) sum += op->value[i] < cut ? (double)op->value[i] : 0;
    return sum;
}

static float cut_ref(const struct op_draw *op, const struct op_draw_piece *p, uint32_t n_piece)
{
    uint32_t lo = float_bits(OP_DRAW_LEAST), hi = float_bits(2.0f);
    (void)p, (void)n_piece;
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

/* Probability in units of 2^-32; 0 for items that are always taken. */
static uint32_t chance_of(float value, float cut)
{
    const float bits = value * (0x1p32f / cut);
    if (value >= cut) return 0;
    return bits < 0x1p32f ? (uint32_t)bits : UINT32_MAX;
}

static void add_ref(const struct op_draw *op, struct op_draw_piece *p, float cut)
{
    memset(p->chance, 0, sizeof p->chance);
    for (uint32_t i = p->begin; i < p->end; i++)
        p->chance[i % OP_DRAW_LANES] += chance_of(op->value[i], cut);
}

static float most_of(const float *value, uint32_t n)
{
    float most = 0;
    for (uint32_t i = 0; i < n; i++) most = value[i] > most ? value[i] : most;
    return most;
}

/* Takes items of one page, [begin, end), for a steady draw; returns their number. */
static uint32_t take_page(const struct op_draw *op, uint32_t begin, uint32_t end, float cut,
                          uint32_t at)
{
    const struct steady_number number = steady_number(op, (op->first + begin) / PAGE_TOK);
    const float most = most_of(op->value + begin, end - begin), top = most < cut ? most : cut;
    const uint32_t at0 = at;
    if (!steady_draws(number, most, cut)) return 0;
    for (uint32_t i = begin; i < end; i++) {
        const float value = op->value[i], bits = value * (STEADY_MORE * 0x1p32f / top);
        const uint32_t token = number.token + steady_turns[i - begin];
        const float reach = fminf(STEADY_MORE * value, top);
        if (bits < 0x1p32f && token >= (uint32_t)bits) continue;
        op->item[at] = op->first + i;
        op->logw[at++] = logf(cut / reach);
    }
    return at - at0;
}

static void take_ref(const struct op_draw *op, struct op_draw_piece *p, float cut,
                     uint32_t sum[OP_DRAW_LANES], uint32_t at)
{
    const uint32_t at0 = at;
    if (op->steady) {
        steady_take(op, p, cut, at, take_page);
        return;
    }
    for (uint32_t i = p->begin; i < p->end; i++) {
        const float value = op->value[i];
        if (value < cut) {
            const uint32_t chance = chance_of(value, cut);
            sum[i % OP_DRAW_LANES] += chance;
            if (sum[i % OP_DRAW_LANES] >= chance) continue;
        }
        op->item[at] = op->first + i;
        op->logw[at++] = value < cut ? logf(cut / value) : 0;
    }
    p->n_taken = at - at0;
}

void ops_fill_ref_draw(struct ops *o)
{
    o->draw = (struct ops_draw){open_ref, cut_ref, add_ref, take_ref};
}
