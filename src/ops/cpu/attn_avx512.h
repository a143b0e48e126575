/* attn_avx512.h: what the kernels of attn_avx512.c (many rows) and attn_narrow_avx512.c (one) have
 * of each other (private). */
#ifndef SAC_OPS_CPU_ATTN_AVX512_H
#define SAC_OPS_CPU_ATTN_AVX512_H

#include "ops/cpu/attn.h"

/* The narrow slots of struct attn_kernel. */
size_t attn_narrow_avx512_bytes(const struct page_geom *g, uint32_t group);
void attn_narrow_avx512(const struct attn_chunk *c);

#endif
