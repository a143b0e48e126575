/* dots_avx2.c: keys of pages in f32, and dot products of rows with rows in vectors of 8 lanes;
 * dots_vec.h has the algorithm of these. */
#include "ops/cpu/attn_q8_avx2.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#define ROWS 4u

#include "ops/cpu/dots_vec.h"

#include <math.h>

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

/* Eight numbers as bf16 in the lower halves of dwords; NaN stays one. */
static __m256i round_bf16(vec x)
{
    const __m256i bits = _mm256_castps_si256(x), one = _mm256_set1_epi32(1);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const vec ordered = _mm256_cmp_ps(x, x, _CMP_ORD_Q);
    const vec y = _mm256_blendv_ps(_mm256_set1_ps(NAN), _mm256_castsi256_ps(up), ordered);
    return _mm256_srli_epi32(_mm256_castps_si256(y), 16);
}

/* Rows as they lie: products turn them. */
static void pack_avx2(const struct op_pack *op)
{
    for (uint32_t j = 0; j < op->n_b; j++)
        for (uint32_t c = 0; c < op->width; c += 16) {
            vec x[2];
            for (uint32_t i = 0; i < 2; i++) {
                x[i] = v_load(op->b + j * op->b_stride + c + i * VEC);
                if (op->less) x[i] = v_sub(x[i], v_load(op->less + c + i * VEC));
            }
            const __m256i both = _mm256_packus_epi32(round_bf16(x[0]), round_bf16(x[1]));
            _mm256_storeu_si256((__m256i *)(void *)(op->out + (size_t)j * op->width + c),
                                _mm256_permute4x64_epi64(both, 0xd8));
        }
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
    o->pack = pack_avx2;
    o->dots_bf16 = dots_bf16_avx2;
}
