/* best_avx512.c: the best of many values with vectors of 16 lanes; the algorithm is in
 * best_tmpl.h. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#include "ops/cpu/best_tmpl.h"

void ops_fill_avx512_best(struct ops *o)
{
    o->best = best_vec;
    o->mark = mark_vec;
}
