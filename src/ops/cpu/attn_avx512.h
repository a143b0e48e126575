/* attn_avx512.h: declarations shared by attn_avx512.c (many rows) and attn_narrow_avx512.c (one
 * row) (private). */
#ifndef SAC_OPS_CPU_ATTN_AVX512_H
#define SAC_OPS_CPU_ATTN_AVX512_H

#include "ops/cpu/attn.h"

/* Gather the keys or values of a gathered page in their 16-bit format, f16 for q8: [PAGE_TOK,
 * head_dim], zeros in invisible slots. They prefetch what is read next. */
void attn_avx512_gather_keys(uint16_t *dst, const struct page_geom *g,
                             const struct attn_page *page);
void attn_avx512_gather_values(uint16_t *dst, const struct page_geom *g,
                               const struct attn_page *page);

/* The narrow slots of struct attn_kernel. */
size_t attn_narrow_avx512_bytes(const struct page_geom *g, uint32_t group);
void attn_narrow_avx512(const struct attn_chunk *c);

#endif
