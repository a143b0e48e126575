/* draw_avx2.c: `draw` with vectors of 8 lanes; draw_tmpl.h has the algorithm. */
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#include "ops/cpu/draw_tmpl.h"

void ops_fill_avx2_draw(struct ops *o)
{
    o->draw = (struct ops_draw){open_vec, cut_vec, add_vec, take_vec};
}
