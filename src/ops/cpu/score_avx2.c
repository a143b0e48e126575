/* score_avx2.c: softmax votes with vectors of 8 lanes; vote_vec.h has the text. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#include "ops/cpu/vote_vec.h"

void ops_fill_avx2_score(struct ops *o)
{
    o->vote = vote_vec;
}
