/* page.c: offsets of the parts of a KV page, each of which begins a 64-byte line, and unsealing of
 * a page, which only a truncation needs: plain C is fast enough. */
#include "ops/page.h"

#include "base/align.h"
#include "base/half.h"

#include <assert.h>
#include <string.h>

const char *sac_kv_type_name(sac_kv_type type)
{
    static const char *const names[] = {
        [SAC_KV_F16] = "f16", [SAC_KV_BF16] = "bf16", [SAC_KV_Q8] = "q8"};
    assert((size_t)type < sizeof names / sizeof names[0]);
    return names[type];
}

static size_t take(size_t *at, size_t bytes)
{
    const size_t start = *at;
    *at = align_line(start + bytes);
    return start;
}

void page_geom_init(struct page_geom *g)
{
    const size_t d = g->head_dim, half = PAGE_TOK * d * 2;
    assert(d % 32 == 0 && d <= HEAD_DIM_MAX && g->n_layer && g->n_kv_head);
    assert((g->type_k == SAC_KV_Q8) == (g->type_v == SAC_KV_Q8));
    g->tail_bytes = 2 * half;
    g->tail_v = half;
    size_t at = 0;
    if (g->type_k != SAC_KV_Q8) {
        g->k = take(&at, half);
        g->v = take(&at, half);
    } else {
        g->k_min = take(&at, d * 2);
        g->k_step = take(&at, d * 2);
        g->k_hi2 = take(&at, PAGE_TOK * d / 4);
        g->k_low = take(&at, PAGE_TOK * d * 3 / 4);
        g->v_scale = take(&at, PAGE_TOK * (d / PAGE_VBLOCK) * 2);
        g->v = take(&at, PAGE_TOK * d);
    }
    g->bytes = at;
}

static void read_half(float *out, sac_kv_type type, const uint8_t *src, size_t n)
{
    const uint16_t *half = (const uint16_t *)(const void *)src;
    if (type == SAC_KV_BF16)
        for (size_t i = 0; i < n; i++) out[i] = bf16_to_f32(half[i]);
    else
        for (size_t i = 0; i < n; i++) out[i] = f16_to_f32(half[i]);
}

static void read_q8_k(float *out, const struct page_geom *g, const uint8_t *page, uint32_t n_tok)
{
    const uint32_t d = g->head_dim, quarter = d / 4, half = d / 2;
    const uint16_t *min = (const uint16_t *)(const void *)(page + g->k_min);
    const uint16_t *step = (const uint16_t *)(const void *)(page + g->k_step);
    for (uint32_t c = 0; c < d; c++) {
        const uint32_t j2 = c % quarter, shift2 = 2 * (c / quarter);
        const uint32_t j4 = quarter + c % half, shift4 = 4 * (c / half);
        const float lo = f16_to_f32(min[c]), by = f16_to_f32(step[c]);
        for (size_t t = 0; t < n_tok; t++) {
            const uint8_t *hi2 = page + g->k_hi2 + t * (d / 4);
            const uint8_t *low = page + g->k_low + t * (d * 3 / 4);
            const uint32_t code = (hi2[j2] >> shift2 & 3u) << 6 | (low[j2] >> shift2 & 3u) << 4 |
                                  (low[j4] >> shift4 & 15u);
            /* by * code has at most 19 bits, so only the sum rounds, fused or not. */
            out[t * d + c] = lo + by * (float)code;
        }
    }
}

static void read_q8_v(float *out, const struct page_geom *g, const uint8_t *page, uint32_t n_tok)
{
    const uint16_t *scale = (const uint16_t *)(const void *)(page + g->v_scale);
    const int8_t *code = (const int8_t *)(page + g->v);
    const size_t n_block = (size_t)n_tok * g->head_dim / PAGE_VBLOCK;
    for (size_t b = 0; b < n_block; b++) {
        const float by = f16_to_f32(scale[b]);
        for (size_t i = b * PAGE_VBLOCK; i < (b + 1) * PAGE_VBLOCK; i++) out[i] = by * code[i];
    }
}

void page_read(float *k, float *v, const struct page_geom *g, const uint8_t *page,
               enum page_form form, uint32_t n_tok)
{
    assert(n_tok <= PAGE_TOK);
    const size_t n = (size_t)n_tok * g->head_dim;
    if (form == PAGE_SEALED && g->type_k == SAC_KV_Q8) {
        if (k) read_q8_k(k, g, page, n_tok);
        if (v) read_q8_v(v, g, page, n_tok);
        return;
    }
    if (k) read_half(k, g->type_k, page + (form == PAGE_TAIL ? 0 : g->k), n);
    if (v) read_half(v, g->type_v, page + (form == PAGE_TAIL ? g->tail_v : g->v), n);
}

void page_unseal(const struct page_geom *g, uint8_t *tail, const uint8_t *sealed, uint32_t n_tok)
{
    assert(n_tok <= PAGE_TOK);
    const size_t n = (size_t)n_tok * g->head_dim;
    if (g->type_k != SAC_KV_Q8) {
        memcpy(tail, sealed + g->k, n * 2);
        memcpy(tail + g->tail_v, sealed + g->v, n * 2);
        return;
    }
    float value[PAGE_TOK * HEAD_DIM_MAX];
    uint16_t *k = (uint16_t *)(void *)tail, *v = (uint16_t *)(void *)(tail + g->tail_v);
    read_q8_k(value, g, sealed, n_tok);
    for (size_t i = 0; i < n; i++) k[i] = f32_to_f16(value[i]);
    read_q8_v(value, g, sealed, n_tok);
    for (size_t i = 0; i < n; i++) v[i] = f32_to_f16(value[i]);
}
