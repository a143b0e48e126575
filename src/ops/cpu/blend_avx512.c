/* blend_avx512.c: values of a page under weights of its tokens, 16 channels at a time; blend_tmpl.h
 * has the text. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#define HEADS 8u

#include "ops/cpu/blend_tmpl.h"

void ops_fill_avx512_blend(struct ops *o)
{
    o->raise = raise_vec;
    o->blend = blend_vec;
}
