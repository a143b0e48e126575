/* lines.c: sums of attention along lines, and lines as words. See the header. */
#include "methods/lines.h"

#include <assert.h>
#include <string.h>

void lines_add(float *col, float *slash_down, uint32_t n, const float *p, uint32_t row)
{
    float *restrict slash = slash_down + (n - 1 - row), *restrict sum = col;
    assert(row < n);
    for (uint32_t c = 0; c <= row; c++) {
        sum[c] += p[c];
        slash[c] += p[c];
    }
}

static uint32_t band_words(const struct lines *l)
{
    return l->n_word + l->tile_tok / PAGE_TOK;
}

void lines_make(struct lines *l, uint32_t n, uint32_t tile_tok, struct arena *a)
{
    assert(tile_tok % PAGE_TOK == 0);
    l->n_word = (n + 31) / 32;
    l->tile_tok = tile_tok;
    l->col = arena_take(a, l->n_word, sizeof *l->col);
    l->band = arena_take(a, band_words(l), sizeof *l->band);
    if (a->base) lines_clear(l);
}

void lines_clear(struct lines *l)
{
    assert(l->col && l->band);
    memset(l->col, 0, l->n_word * sizeof *l->col);
    memset(l->band, 0, band_words(l) * sizeof *l->band);
}

void lines_take_slash(struct lines *l, uint32_t o)
{
    uint32_t bit = 32 * l->n_word - o;
    assert(o < 32 * l->n_word);
    for (const uint32_t end = bit + l->tile_tok; bit < end;) {
        const uint32_t first = bit % 32, left = end - bit;
        const uint32_t below = first + left >= 32 ? UINT32_MAX : (1u << (first + left)) - 1;
        l->band[bit / 32] |= below & ~((1u << first) - 1);
        bit += 32 - first;
    }
}

void lines_mark(uint32_t *mask, const struct lines *l, uint32_t t0)
{
    const uint32_t *band = l->band + (l->n_word - t0 / 32);
    assert(t0 % l->tile_tok == 0 && t0 / 32 <= l->n_word);
    for (uint32_t w = 0; w < t0 / 32; w++) mask[w] |= l->col[w] | band[w];
}
