/* page.c: offsets of the parts of a KV page, every part on a 64-byte line of its own, and the way
 * back from a sealed page, which only a truncation takes: plain C is fast enough. */
#include "ops/page.h"

#include "base/half.h"

#include <assert.h>
#include <string.h>

static size_t take(size_t *at, size_t bytes)
{
    const size_t start = *at;
    *at = (start + bytes + 63) & ~(size_t)63;
    return start;
}

void page_geom_init(struct page_geom *g)
{
    const size_t d = g->head_dim, half = PAGE_TOK * d * 2;
    assert(d % 32 == 0 && d <= 512 && g->n_layer && g->n_kv_head);
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

static uint16_t load_u16(const uint8_t *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static void store_f16(uint8_t *p, float v)
{
    const uint16_t h = f32_to_f16(v);
    memcpy(p, &h, sizeof h);
}

/* The 8-bit code of channel c of one token, from its three planes. */
static uint32_t k_code(const uint8_t *hi2, const uint8_t *low, size_t d, size_t c)
{
    const size_t j = c % (d / 4), shift = 2 * (c / (d / 4));
    const uint32_t hi = hi2[j] >> shift & 3u, mid = low[j] >> shift & 3u;
    const uint32_t lo = low[d / 4 + c % (d / 2)] >> (c < d / 2 ? 0 : 4) & 15u;
    return hi << 6 | mid << 4 | lo;
}

static void unseal_q8_token(const struct page_geom *g, uint8_t *tail, const uint8_t *sealed,
                            size_t t)
{
    const size_t d = g->head_dim, n_block = d / PAGE_VBLOCK;
    for (size_t c = 0; c < d; c++) {
        const float min = f16_to_f32(load_u16(sealed + g->k_min + 2 * c));
        const float step = f16_to_f32(load_u16(sealed + g->k_step + 2 * c));
        const uint32_t code =
            k_code(sealed + g->k_hi2 + t * d / 4, sealed + g->k_low + t * d * 3 / 4, d, c);
        store_f16(tail + 2 * (t * d + c), min + step * (float)code);
        const float scale =
            f16_to_f32(load_u16(sealed + g->v_scale + 2 * (t * n_block + c / PAGE_VBLOCK)));
        const int8_t v = (int8_t)sealed[g->v + t * d + c];
        store_f16(tail + g->tail_v + 2 * (t * d + c), scale * (float)v);
    }
}

void page_unseal(const struct page_geom *g, uint8_t *tail, const uint8_t *sealed, uint32_t n_tok)
{
    assert(n_tok <= PAGE_TOK);
    if (g->type_k != SAC_KV_Q8) {
        memcpy(tail, sealed + g->k, (size_t)n_tok * g->head_dim * 2);
        memcpy(tail + g->tail_v, sealed + g->v, (size_t)n_tok * g->head_dim * 2);
        return;
    }
    for (uint32_t t = 0; t < n_tok; t++) unseal_q8_token(g, tail, sealed, t);
}
