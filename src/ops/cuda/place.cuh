/* place.cuh: where the bytes of a sealed page are: in a frame on the GPU, or offloaded to host
 * memory (ops/offload.h).
 *
 * A place is a 32-bit number: that of a frame, or, with PLACE_BELOW set, that of a page in host
 * memory. Kernels look a place up once and then compute addresses from it; both memories are read
 * with the same instructions. */
#ifndef SAC_OPS_CUDA_PLACE_CUH
#define SAC_OPS_CUDA_PLACE_CUH

#include "ops/page.h"

#include <cuda_runtime.h>

#define PLACE_BELOW 0x80000000u

/* The place of a page, by its number in attn_run.frame. Without offloading the page's number is
 * that of its frame. */
static __device__ __forceinline__ uint32_t place_find(const struct page_frames &f, uint32_t page)
{
    if (!f.held) return page;
    const uint32_t at = f.held[page];
    return at ? at - 1 : page | PLACE_BELOW;
}

static __device__ __forceinline__ const uint8_t *place_bytes(const struct page_frames &f,
                                                             uint32_t place, size_t page_bytes)
{
    const uint8_t *base = place & PLACE_BELOW ? f.below : f.base;
    return base + (place & ~PLACE_BELOW) * page_bytes;
}

static __device__ __forceinline__ const uint8_t *place_page(const struct page_frames &f,
                                                            uint32_t page, size_t page_bytes)
{
    return place_bytes(f, place_find(f, page), page_bytes);
}

#endif
