/* small_tmpl.h: the slots of the small operations, built from the kernels of the including file
 * (private): rmsnorm_row, rope_neox, rope_interleaved and add_span, of the types in small.h. */
#ifndef SAC_OPS_CPU_SMALL_TMPL_H
#define SAC_OPS_CPU_SMALL_TMPL_H

#include "ops/cpu/small.h"

static void rmsnorm(struct workers *pool, const struct op_rmsnorm *op)
{
    small_rmsnorm(pool, op, rmsnorm_row);
}

static void rope(struct workers *pool, const struct op_rope *op)
{
    small_rope(pool, op, op->interleaved ? rope_interleaved : rope_neox);
}

static void add(struct workers *pool, const struct op_add *op)
{
    small_add(pool, op, add_span);
}

static void fill(struct ops *o)
{
    o->rmsnorm = rmsnorm;
    o->rope = rope;
    o->add = add;
}

#endif
