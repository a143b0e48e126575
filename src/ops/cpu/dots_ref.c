/* dots_ref.c: keys of pages and dot products of rows with rows, in plain C: eight sums a product,
 * added in order. */
#include "base/half.h"
#include "ops/ops.h"

static void keys_ref(const struct op_keys *op)
{
    const struct page_geom *g = op->geom;
    for (uint32_t i = 0; i < op->n_page; i++)
        page_read(op->out + (size_t)i * PAGE_TOK * g->head_dim, NULL, g,
                  op->pool + (size_t)op->page[i] * g->bytes, PAGE_SEALED, PAGE_TOK);
}

static float channel(const struct op_dots *op, uint32_t i, uint32_t c)
{
    const size_t at = i * op->a_stride + c;
    return op->a_bf16 ? bf16_to_f32(op->a_bf16[at]) : op->a[at];
}

static float dot(const struct op_dots *op, uint32_t i, uint32_t j)
{
    const float *b = op->b + j * op->b_stride;
    float part[8] = {0}, sum = 0;
    for (uint32_t c = 0; c < op->width; c++) part[c % 8] += channel(op, i, c) * b[c];
    for (uint32_t k = 0; k < 8; k++) sum += part[k];
    return sum;
}

static void dots_ref(const struct op_dots *op)
{
    for (uint32_t i = 0; i < op->n_a; i++)
        for (uint32_t j = 0; j < op->n_b; j++) op->out[i * op->out_stride + j] = dot(op, i, j);
}

void ops_fill_ref_dots(struct ops *o)
{
    o->keys = keys_ref;
    o->dots = dots_ref;
}
