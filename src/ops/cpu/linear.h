/* linear.h: how a linear layer is cut into items, the same for every ISA.
 *
 * The unit is a group of 16 outputs of one part; for a GLU a unit is a group of part 0 together
 * with the same group of part 1. Units are numbered through the parts in order; where the caller
 * lists groups, they are the units. All functions are pure. */
#ifndef SAC_OPS_CPU_LINEAR_H
#define SAC_OPS_CPU_LINEAR_H

#include "base/align.h"
#include "ops/gelu.h"
#include "ops/ops.h"
#include "ops/weight_layout.h"

#include <assert.h>

static inline bool linear_is_glu(const struct op_linear *op)
{
    return op->epilogue == LINEAR_GLU_SILU || op->epilogue == LINEAR_GLU_GELU;
}

static inline uint32_t linear_n_unit(const struct op_linear *op)
{
    if (op->group) return op->n_group;
    if (linear_is_glu(op)) return op->part[0].w->n_group;
    uint32_t n = 0;
    for (uint32_t p = 0; p < op->n_part; p++) n += op->part[p].w->n_group;
    return n;
}

struct linear_unit {
    uint32_t part_i, group_i;
};

static inline struct linear_unit linear_find_unit(const struct op_linear *op, uint32_t unit_i)
{
    if (op->group) return (struct linear_unit){0, op->group[unit_i]};
    if (linear_is_glu(op)) return (struct linear_unit){0, unit_i};
    uint32_t p = 0;
    while (unit_i >= op->part[p].w->n_group) unit_i -= op->part[p++].w->n_group;
    assert(p < op->n_part);
    return (struct linear_unit){p, unit_i};
}

/* Number of outputs of a group: 16, or the remainder in the last one. */
static inline uint32_t linear_group_width(const struct weight *w, uint32_t group_i)
{
    const uint32_t left = w->n_out - group_i * WEIGHT_GROUP;
    return left < WEIGHT_GROUP ? left : WEIGHT_GROUP;
}

static inline void linear_check(const struct op_linear *op)
{
    assert(op->n_part >= 1 && op->n_part <= LINEAR_PARTS_MAX && op->n_in > 0);
    for (uint32_t p = 0; p < op->n_part; p++) assert(op->part[p].w->n_in == op->n_in);
    assert(!op->group || (op->n_part == 1 && op->kind == ROW_DECODE));
    if (linear_is_glu(op)) assert(op->n_part == 2 && op->part[0].w->n_out == op->part[1].w->n_out);
}

/* The two variants between which ops_fill_amx_linear chooses, exported for tests. */
void linear_amx_f16(struct workers *pool, const struct op_linear *op);
void linear_amx_bf16(struct workers *pool, const struct op_linear *op);
/* The two variants between which ops_fill_avx512_linear chooses, exported for tests. */
void linear_avx512_int8(struct workers *pool, const struct op_linear *op);
void linear_avx512_bf16(struct workers *pool, const struct op_linear *op);

#endif
