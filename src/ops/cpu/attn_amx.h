/* attn_amx.h: declarations shared by attn_amx.c (many rows) and attn_narrow_amx.c (one row)
 * (private). */
#ifndef SAC_OPS_CPU_ATTN_AMX_H
#define SAC_OPS_CPU_ATTN_AMX_H

#include "ops/cpu/attn.h"

/* Gather the keys or values of a gathered page in their 16-bit format, f16 for q8: [PAGE_TOK,
 * head_dim], zeros in invisible slots. They prefetch what is read next. */
void attn_amx_gather_keys(uint16_t *dst, const struct page_geom *g, const struct attn_page *page);
void attn_amx_gather_values(uint16_t *dst, const struct page_geom *g, const struct attn_page *page);

/* The narrow slots of struct attn_kernel, for every CPU with AMX. */
size_t attn_narrow_amx_bytes(const struct page_geom *g, uint32_t group);
void attn_narrow_amx(const struct attn_chunk *c);

#endif
