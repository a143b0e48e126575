/* dots_avx2.c: keys of pages in f32, and dot products of rows with rows in vectors of 8 lanes; the
 * algorithm of the latter is in dots_tmpl.h. */
#include "ops/cpu/attn_q8_avx2.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#define ROWS 4u

#include "ops/cpu/dots_tmpl.h"

/* Keys of tokens of a q8 page. Adjacent tokens are converted together. */
static void keys_q8(float *out, const struct page_geom *g, const uint8_t *page, uint32_t tok)
{
    for (uint32_t n; tok; out += (size_t)n * g->head_dim) {
        const uint32_t first = (uint32_t)__builtin_ctz(tok), run = ~(tok >> first);
        n = run ? (uint32_t)__builtin_ctz(run) : PAGE_TOK;
        attn_q8_by_eights(out, g, page, (struct attn_tokens){first, n});
        tok &= ~(UINT32_MAX >> (PAGE_TOK - n) << first);
    }
}

static void keys_avx2(const struct op_keys *op)
{
    const struct page_geom *g = op->geom;
    float *out = op->out;
    for (uint32_t i = 0; i < op->n_page; i++) {
        const uint8_t *page = page_frame(g, op->frames, op->page[i]);
        const uint32_t tok = op_keys_tok(op, i);
        if (g->type_k == SAC_KV_Q8)
            keys_q8(out, g, page, tok);
        else
            keys_half(out, g, page, tok);
        out += (size_t)__builtin_popcount(tok) * g->head_dim;
    }
}

/* Rows stay in their order: dots_of transposes them. */
static bool pack_avx2(const struct op_pack *op)
{
    vec wrong = v_zero();
    for (uint32_t j = 0; j < op->n_b; j++)
        for (uint32_t c = 0; c < op->width; c += VEC) {
            vec x = v_load(op->b + j * op->b_stride + c);
            if (op->less) x = v_sub(x, v_load(op->less + c));
            v_store_bf16(op->out + (size_t)j * op->width + c, x);
            wrong = v_fma(x, v_zero(), wrong);
        }
    return !v_any_nan(wrong);
}

static void dots_bf16_avx2(const struct op_dots_bf16 *op)
{
    dots_of(&(struct sides){.a_bf16 = op->a,
                            .b_bf16 = op->b,
                            .a_stride = op->a_stride,
                            .b_stride = op->width,
                            .n_a = op->n_a,
                            .n_b = op->n_b,
                            .width = op->width,
                            .out = op->out,
                            .out_stride = op->out_stride});
}

void ops_fill_avx2_dots(struct ops *o)
{
    o->keys = keys_avx2;
    o->dots = dots_vec;
    o->dots_few = dots_vec;
    o->pack = pack_avx2;
    o->dots_bf16 = dots_bf16_avx2;
}
