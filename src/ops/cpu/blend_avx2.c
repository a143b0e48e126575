/* blend_avx2.c: weighted sums of a page's values, 8 channels at a time; the algorithm is in
 * blend_tmpl.h. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#define HEADS 4u

#include "ops/cpu/blend_tmpl.h"

void ops_fill_avx2_blend(struct ops *o)
{
    o->raise = raise_vec;
    o->blend = blend_vec;
}
