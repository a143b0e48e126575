/* best_avx512.c: the best of many values with vectors of 16 lanes; best_tmpl.h has the text. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#include "ops/cpu/best_tmpl.h"

void ops_fill_avx512_best(struct ops *o)
{
    o->best = best_vec;
    o->mark = mark_vec;
}
