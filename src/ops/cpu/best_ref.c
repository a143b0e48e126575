/* best_ref.c: the best of many values and the marks of those taken, in plain C: the definition.
 *
 * The threshold is found bit by bit: it is the highest key with enough values at or above it. */
#include "ops/ops.h"

#include <math.h>
#include <string.h>

static double weight_from(const struct op_best *op, uint32_t key, uint32_t *out_n)
{
    double sum = 0;
    *out_n = 0;
    for (uint32_t i = 0; i < op->n; i++) {
        if (op_best_key(op->value[i]) < key) continue;
        sum += op->by_sum ? (double)op->value[i] : 1;
        ++*out_n;
    }
    return sum;
}

static struct op_cut best_ref(const struct op_best *op)
{
    uint32_t key = 0, n_from, n_above;
    if (!(op->target > 0)) return (struct op_cut){.key = UINT32_MAX};
    for (uint32_t bit = 1u << 31; bit; bit >>= 1)
        if (weight_from(op, key | bit, &n_from) >= op->target) key |= bit;
    const double from = weight_from(op, key, &n_from);
    const double above = key < UINT32_MAX ? weight_from(op, key + 1, &n_above) : (n_above = 0);
    const uint32_t n_tie = n_from - n_above;
    const double each = n_tie ? (from - above) / n_tie : 0;
    const double need = each > 0 ? ceil((op->target - above) / each) : n_tie;
    return (struct op_cut){.key = key, .n_tie = need < n_tie ? (uint32_t)need : n_tie};
}

static void mark_ref(const struct op_mark *op)
{
    uint32_t n_tie = op->cut.n_tie;
    for (uint32_t i = 0; i < op->n_page * PAGE_TOK; i++) {
        const uint32_t key = op_best_key(op->value[i]), p = i / PAGE_TOK;
        const bool tie = key == op->cut.key && n_tie > 0;
        n_tie -= tie;
        if (key > op->cut.key || tie) op->mask[op->page ? op->page[p] : p] |= 1u << i % PAGE_TOK;
    }
}

static bool is_before(struct op_top_item a, struct op_top_item b)
{
    const uint32_t x = op_best_key(a.value), y = op_best_key(b.value);
    return x > y || (x == y && a.id < b.id);
}

static void top_ref(struct workers *pool, const struct op_top *op)
{
    (void)pool;
    for (uint32_t r = 0; r < op->n_row; r++) {
        struct op_top_item *out = op->out + (size_t)r * op->k;
        uint32_t n = 0;
        for (uint32_t i = 0; i < op->n; i++) {
            const struct op_top_item item = {i, op->x[r * op->stride + i]};
            uint32_t at = n < op->k ? n++ : op->k;
            for (; at > 0 && is_before(item, out[at - 1]); at--)
                if (at < op->k) out[at] = out[at - 1];
            if (at < op->k) out[at] = item;
        }
    }
}

void ops_fill_ref_best(struct ops *o)
{
    o->best = best_ref;
    o->top = top_ref;
    o->mark = mark_ref;
}
