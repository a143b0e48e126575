/* page_lines.c: see the header. Eight rows of any part but the scales fill whole lines: the
 * narrowest, of the first plane, have d / 4 bytes, d being a multiple of 32. */
#include "ops/page_lines.h"

#include <string.h>

/* Number of lines that the rows of some of eight tokens touch; the first row begins a line. */
static uint32_t row_lines(size_t row_bytes, uint32_t tok)
{
    size_t n = 0, next = 0; /* lines before `next` have been counted */
    for (size_t t = 0; t < 8; t++) {
        if (!(tok >> t & 1)) continue;
        const size_t first = t * row_bytes / 64, end = ((t + 1) * row_bytes + 63) / 64;
        n += end - (first > next ? first : next);
        next = end;
    }
    return (uint32_t)n;
}

void page_lines_init(struct page_lines *l, const struct page_geom *g)
{
    const size_t d = g->head_dim;
    const bool q8 = g->type_k == SAC_KV_Q8;
    const uint32_t n_block = g->head_dim / PAGE_VBLOCK;
    memset(l, 0, sizeof *l);
    for (uint32_t tok = 0; tok < 256; tok++) {
        l->k[tok] = (uint8_t)(q8 ? row_lines(d / 4, tok) + row_lines(d * 3 / 4, tok)
                                 : row_lines(d * 2, tok));
        l->v[tok] = (uint8_t)row_lines(q8 ? d : d * 2, tok);
    }
    if (!q8) return;
    l->k_page = 4 * d;
    l->n_scale = n_block;
    for (uint32_t i = 0; i < PAGE_TOK * n_block; i++) /* f16 */
        l->scale_tok[2 * i / 64] |= 1u << i / n_block;
}

size_t page_some_keys(const struct page_geom *g, uint32_t tok)
{
    const size_t d = g->head_dim;
    size_t n = 0;
    if (g->type_k != SAC_KV_Q8) return (size_t)__builtin_popcount(tok) * 2 * d; /* whole lines */
    for (uint32_t left = tok; left; left >>= 8)
        n += row_lines(d / 4, left & 255) + row_lines(d * 3 / 4, left & 255);
    return n > 0 ? 64 * n + 4 * d : 0;
}

static size_t count_lines(const uint8_t lines[256], uint32_t tok)
{
    return (size_t)lines[tok & 255] + lines[tok >> 8 & 255] + lines[tok >> 16 & 255] +
           lines[tok >> 24];
}

size_t page_lines_keys(const struct page_lines *l, uint32_t tok)
{
    const size_t n = 64 * count_lines(l->k, tok);
    return n > 0 ? n + l->k_page : 0;
}

size_t page_lines_values(const struct page_lines *l, uint32_t tok)
{
    size_t n = 64 * count_lines(l->v, tok);
    for (uint32_t i = 0; i < l->n_scale; i++) n += l->scale_tok[i] & tok ? 64 : 0;
    return n;
}
