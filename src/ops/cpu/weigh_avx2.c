/* weigh_avx2.c: softmax weights of a panel and their sums along lines, 8 keys at a time; the
 * algorithm is in weigh_tmpl.h. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#define SUMS 8u

#include "ops/cpu/weigh_tmpl.h"

void ops_fill_avx2_weigh(struct ops *o)
{
    o->weigh = weigh_vec;
    o->lines = lines_vec;
    o->rate = rate_vec;
}
