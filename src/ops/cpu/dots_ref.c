/* dots_ref.c: keys of pages and dot products of rows with rows, in plain C: eight partial sums per
 * product, added in order. */
#include "base/half.h"
#include "ops/ops.h"

static void keys_ref(const struct op_keys *op)
{
    const struct page_geom *g = op->geom;
    const size_t d = g->head_dim;
    float *out = op->out;
    for (uint32_t i = 0; i < op->n_page; i++) {
        const uint8_t *page = page_frame(g, op->frames, op->page[i]);
        float k[PAGE_TOK * HEAD_DIM_MAX];
        page_read(k, NULL, g, page, PAGE_SEALED, PAGE_TOK);
        for (uint32_t left = op_keys_tok(op, i); left; left &= left - 1, out += d)
            memcpy(out, k + (size_t)__builtin_ctz(left) * d, d * sizeof *out);
    }
}

static float dot(const struct op_dots *op, uint32_t i, uint32_t j)
{
    const float *a = op->a + i * op->a_stride, *b = op->b + j * op->b_stride;
    float part[8] = {0}, sum = 0;
    for (uint32_t c = 0; c < op->width; c++) part[c % 8] += a[c] * b[c];
    for (uint32_t k = 0; k < 8; k++) sum += part[k];
    return sum;
}

static void dots_ref(const struct op_dots *op)
{
    for (uint32_t i = 0; i < op->n_a; i++)
        for (uint32_t j = 0; j < op->n_b; j++) op->out[i * op->out_stride + j] = dot(op, i, j);
}

static bool pack_ref(const struct op_pack *op)
{
    float wrong = 0; /* stays 0 while all numbers are finite */
    for (uint32_t j = 0; j < op->n_b; j++)
        for (uint32_t c = 0; c < op->width; c++) {
            const float x = op->b[j * op->b_stride + c] - (op->less ? op->less[c] : 0);
            op->out[(size_t)j * op->width + c] = f32_to_bf16(x);
            wrong += x * 0;
        }
    return wrong == 0;
}

static float dot_bf16(const struct op_dots_bf16 *op, uint32_t i, uint32_t j)
{
    const uint16_t *a = op->a + i * op->a_stride, *b = op->b + (size_t)j * op->width;
    float part[8] = {0}, sum = 0;
    for (uint32_t c = 0; c < op->width; c++) part[c % 8] += bf16_to_f32(a[c]) * bf16_to_f32(b[c]);
    for (uint32_t k = 0; k < 8; k++) sum += part[k];
    return sum;
}

static void dots_bf16_ref(const struct op_dots_bf16 *op)
{
    for (uint32_t i = 0; i < op->n_a; i++)
        for (uint32_t j = 0; j < op->n_b; j++) op->out[i * op->out_stride + j] = dot_bf16(op, i, j);
}

void ops_fill_ref_dots(struct ops *o)
{
    o->keys = keys_ref;
    o->dots = dots_ref;
    o->dots_few = dots_ref;
    o->pack = pack_ref;
    o->dots_bf16 = dots_bf16_ref;
}
