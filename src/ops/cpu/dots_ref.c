/* dots_ref.c: keys of pages and dot products of rows with rows, in plain C: eight sums a product,
 * added in order. */
#include "ops/ops.h"

static void keys_ref(const struct op_keys *op)
{
    const struct page_geom *g = op->geom;
    for (uint32_t i = 0; i < op->n_page; i++)
        page_read(op->out + (size_t)i * PAGE_TOK * g->head_dim, NULL, g,
                  op->pool + (size_t)op->page[i] * g->bytes, PAGE_SEALED, PAGE_TOK);
}

static float dot(const float *a, const float *b, uint32_t width)
{
    float part[8] = {0}, sum = 0;
    for (uint32_t c = 0; c < width; c += 8)
        for (uint32_t i = 0; i < 8; i++) part[i] += a[c + i] * b[c + i];
    for (uint32_t i = 0; i < 8; i++) sum += part[i];
    return sum;
}

static void dots_ref(const struct op_dots *op)
{
    for (uint32_t i = 0; i < op->n_a; i++)
        for (uint32_t j = 0; j < op->n_b; j++)
            op->out[i * op->out_stride + j] =
                dot(op->a + i * op->a_stride, op->b + j * op->b_stride, op->width);
}

void ops_fill_ref_dots(struct ops *o)
{
    o->keys = keys_ref;
    o->dots = dots_ref;
}
