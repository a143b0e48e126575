/* align.h: sizes in whole cache lines, and layouts of parts that each begin a line. Always inlined,
 * so that kernels fold layouts of constant sizes. */
#ifndef SAC_BASE_ALIGN_H
#define SAC_BASE_ALIGN_H

#include <stddef.h>
#include <stdint.h>

#define ALIGN_INLINE static inline __attribute__((always_inline))

/* n bytes rounded up to whole lines of 64. */
ALIGN_INLINE size_t align_line(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* The next `bytes` of a layout, at base + *at, which then moves past them in whole lines. A base of
 * NULL computes sizes only, and gives NULL: C has no NULL + n. */
ALIGN_INLINE void *align_take(void *base, size_t *at, size_t bytes)
{
    void *p = base ? (uint8_t *)base + *at : NULL;
    *at += align_line(bytes);
    return p;
}

#endif
