/* score_avx512.c: scores of pages and softmax votes with vectors of 16 lanes; the algorithm is in
 * score_tmpl.h. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#include "ops/cpu/score_tmpl.h"

void ops_fill_avx512_score(struct ops *o)
{
    o->score_pages = score_pages_vec;
    o->vote = vote_vec;
}
