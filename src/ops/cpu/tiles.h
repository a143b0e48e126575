/* tiles.h: AMX tiles with full rows: eight registers of 16 rows of 64 bytes each.
 *
 * The registers belong to the calling thread: tiles_begin, work, tiles_end. The intrinsics of gcc
 * 12 do not tell the compiler what they read, so these macros replace them. The linear kernels have
 * their own macros with the exact memory operand. */
#ifndef SAC_OPS_CPU_TILES_H
#define SAC_OPS_CPU_TILES_H

#include "ops/cpu/tile_config.h"

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TILE_ROWS  16u
#define TILE_BYTES 1024u

/* clang-format off */
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
/* Rows at `p`, `stride` bytes apart. */
#define TILE_LOAD(t, p, stride)                                                                    \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((size_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride)                                                                   \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)"                                           \
                     ::"r"(p), "r"((size_t)(stride)) : "memory")
/* c += a b, in bf16. */
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
/* c += a b, in integers: unsigned bytes times signed ones. */
#define TILE_DOT_U8(c, a, b) __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
/* The same with the signs on the other side. */
#define TILE_DOT_S8U(c, a, b) __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
/* The same with signed bytes on both sides. */
#define TILE_DOT_S8(c, a, b) __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
/* clang-format on */

static inline void tiles_begin(void)
{
    struct tile_config config = {.palette = 1};
    for (uint32_t i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE_BYTES / TILE_ROWS;
        config.rows[i] = TILE_ROWS;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

static inline void tiles_end(void)
{
    __asm__ volatile("tilerelease" ::);
}

/* Dword j of row i becomes dword i of row j. */
static inline void tiles_transpose(__m512i x[16])
{
    __m512i y[16];
    for (uint32_t i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    for (uint32_t i = 0; i < 16; i += 4) {
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    /* x[4i + c] holds in its four lanes column c of each quarter, for rows 4i .. 4i + 3. */
    for (uint32_t c = 0; c < 4; c++) {
        const __m512i lo01 = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
        const __m512i hi01 = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);
        const __m512i lo23 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
        const __m512i hi23 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
        y[c] = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
        y[8 + c] = _mm512_shuffle_i32x4(lo01, lo23, 0xdd);
        y[4 + c] = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
        y[12 + c] = _mm512_shuffle_i32x4(hi01, hi23, 0xdd);
    }
    memcpy(x, y, sizeof y);
}

#endif
