/* dots_avx2.c: keys of pages in f32, and dot products of rows with rows in vectors of 8 lanes;
 * dots_vec.h has the algorithm of these. */
#include "ops/cpu/attn_q8_avx2.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#define ROWS 4u

#include "ops/cpu/dots_vec.h"

static void keys_avx2(const struct op_keys *op)
{
    const struct page_geom *g = op->geom;
    for (uint32_t i = 0; i < op->n_page; i++) {
        const uint8_t *page = op->pool + (size_t)op->page[i] * g->bytes;
        float *out = op->out + (size_t)i * PAGE_TOK * g->head_dim;
        if (g->type_k == SAC_KV_Q8)
            attn_q8_by_eights(out, g, page, (struct attn_tokens){0, PAGE_TOK});
        else
            keys_half(out, g, page);
    }
}

void ops_fill_avx2_dots(struct ops *o)
{
    o->keys = keys_avx2;
    o->dots = dots_vec;
}
