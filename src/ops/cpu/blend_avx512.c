/* blend_avx512.c: weighted sums of a page's values, 16 channels at a time; the algorithm is in
 * blend_tmpl.h. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#define HEADS 8u

#include "ops/cpu/blend_tmpl.h"

void ops_fill_avx512_blend(struct ops *o)
{
    o->raise = raise_vec;
    o->blend = blend_vec;
}
