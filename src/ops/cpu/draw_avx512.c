/* draw_avx512.c: `draw` with vectors of 16 lanes; draw_tmpl.h has the algorithm. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx512.h"

#include "ops/cpu/draw_tmpl.h"

void ops_fill_avx512_draw(struct ops *o)
{
    o->draw = (struct ops_draw){open_vec, cut_vec, add_vec, take_vec};
}
