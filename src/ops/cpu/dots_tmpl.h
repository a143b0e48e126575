/* dots_tmpl.h: 16-bit keys in f32, and dot products of rows with rows, one source for AVX2 and
 * AVX-512 (private).
 *
 * Included once by a file of one instruction set after its vec_*.h and after it has defined ROWS:
 * the rows of `a` that are processed at a time, enough for their sums, two vectors each, to hide
 * the latency of an addition.
 *
 * Some rows of `b` are packed, one row per lane, and stay in L1 while the rows of `a` stream past,
 * one element broadcast for each vector. No sum is therefore taken across lanes. Wide rows are
 * processed in steps, with the sums kept in `out` between them. Every element is summed in the
 * order of the channels, whatever its place. Blocks at the edge are computed in full, and only the
 * valid part is stored. */
#ifndef SAC_OPS_CPU_DOTS_TMPL_H
#define SAC_OPS_CPU_DOTS_TMPL_H

#include "ops/ops.h"

#include <assert.h>

#define SIDE (2 * VEC) /* rows of `b` in a panel */
#define KEPT 64u       /* rows of `b` that are packed at a time */
#define STEP 128u      /* channels that are packed at a time */

static void keys_half(float *out, const struct page_geom *g, const uint8_t *page, uint32_t tok)
{
    const bool bf16 = g->type_k == SAC_KV_BF16;
    for (uint32_t left = tok; left; left &= left - 1, out += g->head_dim) {
        const uint8_t *k = page + g->k + (size_t)__builtin_ctz(left) * g->head_dim * 2;
        for (size_t i = 0; i < g->head_dim; i += VEC)
            v_store(out + i, bf16 ? v_load_bf16(k + 2 * i) : v_load_f16(k + 2 * i));
    }
}

/* Both matrices, either of them in f32 or in bf16. */
struct sides {
    const float *a, *b;
    const uint16_t *a_bf16, *b_bf16; /* instead of a and b, or NULL */
    size_t a_stride, b_stride;
    uint32_t n_a, n_b, width;
    float *out;
    size_t out_stride;
};

VEC_PART vec load_b(const struct sides *op, size_t at)
{
    return op->b_bf16 ? v_load_bf16((const uint8_t *)(op->b_bf16 + at)) : v_load(op->b + at);
}

/* Packs channels c .. c + n - 1 of the SIDE rows of `b` from row j on: [n][SIDE]. Missing rows
 * repeat the last one. */
static void pack_panel(float *out, const struct sides *op, uint32_t j, uint32_t c, uint32_t n)
{
    for (uint32_t half = 0; half < SIDE; half += VEC)
        for (uint32_t i = 0; i < n; i += VEC) {
            vec x[VEC];
            for (uint32_t k = 0; k < VEC; k++) {
                const uint32_t row = j + half + k < op->n_b ? j + half + k : op->n_b - 1;
                x[k] = load_b(op, row * op->b_stride + c + i);
            }
            v_transpose(x);
            for (uint32_t k = 0; k < VEC; k++) v_store(out + (i + k) * SIDE + half, x[k]);
        }
}

/* ROWS rows of `a` and a panel of `b`, of which n_a and n_b are valid. */
struct block {
    const float *a; /* [ROWS, n], stride a_stride; only the first n_a are read */
    size_t a_stride;
    const float *b; /* [n][SIDE] */
    uint32_t n, n_a, n_b;
    bool begins; /* otherwise the sums continue those in `out` */
};

VEC_PART void multiply(float *out, size_t out_stride, const struct block *block)
{
    const uint32_t left = block->n_b > VEC ? block->n_b - VEC : 0;
    const float *row[ROWS];
    vec lo[ROWS], hi[ROWS];
    for (uint32_t r = 0; r < ROWS; r++) {
        row[r] = block->a + (r < block->n_a ? r : block->n_a - 1) * block->a_stride;
        lo[r] = hi[r] = v_zero();
        if (block->begins || r >= block->n_a) continue;
        lo[r] = v_first(out + r * out_stride, block->n_b);
        if (left) hi[r] = v_first(out + r * out_stride + VEC, left);
    }
    for (uint32_t c = 0; c < block->n; c++) {
        const vec x = v_load(block->b + c * SIDE), y = v_load(block->b + c * SIDE + VEC);
        for (uint32_t r = 0; r < ROWS; r++) {
            const vec each = v_set1(row[r][c]);
            lo[r] = v_fma(each, x, lo[r]);
            hi[r] = v_fma(each, y, hi[r]);
        }
    }
    for (uint32_t r = 0; r < ROWS && r < block->n_a; r++) {
        v_store_first(out + r * out_stride, block->n_b, lo[r]);
        if (left) v_store_first(out + r * out_stride + VEC, left, hi[r]);
    }
}

struct pack {
    _Alignas(64) float b[KEPT * STEP]; /* [panel][channels][SIDE] */
    _Alignas(64) float a[ROWS * STEP]; /* rows of `a`, converted from bf16 */
};

/* Sets block->a: channels c .. c + n - 1 of the ROWS rows of `a` from row i on. */
static void find_rows(struct block *block, struct pack *p, const struct sides *op, uint32_t i,
                      uint32_t c)
{
    block->n_a = op->n_a - i < ROWS ? op->n_a - i : ROWS;
    if (!op->a_bf16) {
        block->a = op->a + i * op->a_stride + c;
        block->a_stride = op->a_stride;
        return;
    }
    for (uint32_t r = 0; r < block->n_a; r++) {
        const uint16_t *from = op->a_bf16 + (i + r) * op->a_stride + c;
        for (uint32_t k = 0; k < block->n; k += VEC)
            v_store(p->a + r * STEP + k, v_load_bf16((const uint8_t *)(from + k)));
    }
    block->a = p->a;
    block->a_stride = STEP;
}

VEC_PART void dots_of(const struct sides *op)
{
    struct pack p;
    assert(op->width % 16 == 0);
    for (uint32_t first = 0; first < op->n_b; first += KEPT) {
        const uint32_t end = op->n_b - first < KEPT ? op->n_b : first + KEPT;
        for (uint32_t c = 0; c < op->width; c += STEP) {
            struct block block = {.begins = c == 0};
            block.n = op->width - c < STEP ? op->width - c : STEP;
            for (uint32_t j = first; j < end; j += SIDE)
                pack_panel(p.b + (j - first) * block.n, op, j, c, block.n);
            for (uint32_t i = 0; i < op->n_a; i += ROWS) {
                find_rows(&block, &p, op, i, c);
                for (uint32_t j = first; j < end; j += SIDE) {
                    block.b = p.b + (j - first) * block.n;
                    block.n_b = end - j < SIDE ? end - j : SIDE;
                    multiply(op->out + i * op->out_stride + j, op->out_stride, &block);
                }
            }
        }
    }
}

static void dots_vec(const struct op_dots *op)
{
    dots_of(&(struct sides){.a = op->a,
                            .b = op->b,
                            .a_stride = op->a_stride,
                            .b_stride = op->b_stride,
                            .n_a = op->n_a,
                            .n_b = op->n_b,
                            .width = op->width,
                            .out = op->out,
                            .out_stride = op->out_stride});
}

#endif
