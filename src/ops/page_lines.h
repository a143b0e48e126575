/* page_lines.h: cache lines of 64 bytes that reading a sealed page touches, as docs/fairness.md
 * counts them: of all its tokens, and of some. Every part of a page begins a line (page.c). */
#ifndef SAC_OPS_PAGE_LINES_H
#define SAC_OPS_PAGE_LINES_H

#include "ops/page.h"

/* Bytes of all keys, or values, of a page. */
static inline size_t page_all_keys(const struct page_geom *g)
{
    /* Codes, and min and step of each channel. */
    return (size_t)g->head_dim * (g->type_k == SAC_KV_Q8 ? PAGE_TOK + 4 : 2 * PAGE_TOK);
}

static inline size_t page_all_values(const struct page_geom *g)
{
    return g->bytes - page_all_keys(g);
}

/* Bytes of the lines that the keys of some tokens touch; bit t of `tok`: token t. */
size_t page_some_keys(const struct page_geom *g, uint32_t tok);

/* Tables for page_lines_keys and page_lines_values: numbers of lines touched by the rows of eight
 * adjacent tokens, indexed by the bits of those that are read (k: keys; v: values without scales),
 * and the tokens whose scales are in line i of v_scale. */
struct page_lines {
    uint8_t k[256], v[256];
    uint32_t scale_tok[16], n_scale;
    size_t k_page; /* bytes of min and step */
};

void page_lines_init(struct page_lines *l, const struct page_geom *g);
/* The same as page_some_keys, and for values. */
size_t page_lines_keys(const struct page_lines *l, uint32_t tok);
size_t page_lines_values(const struct page_lines *l, uint32_t tok);

#endif
