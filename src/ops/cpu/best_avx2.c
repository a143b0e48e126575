/* best_avx2.c: the best of many values with vectors of 8 lanes; the algorithm is in best_tmpl.h. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#include "ops/cpu/best_tmpl.h"

void ops_fill_avx2_best(struct ops *o)
{
    o->best = best_vec;
    o->mark = mark_vec;
}
