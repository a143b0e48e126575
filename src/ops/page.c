/* page.c: offsets of the parts of a KV page. Every part starts on a 64-byte line. */
#include "ops/page.h"

#include <assert.h>

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
