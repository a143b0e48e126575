/* attn_q8.h: codes of q8 keys from their bit planes, for files compiled with AVX512-VBMI (private).
 */
#ifndef SAC_OPS_CPU_ATTN_Q8_H
#define SAC_OPS_CPU_ATTN_Q8_H

#include <immintrin.h>
#include <stdint.h>

/* Multishift controls that bring the bits of the three planes to their places in a code. `n` = 16:
 * 16-byte lanes are the four quarters of the channels; n = 8: 8-byte lanes. */
struct attn_q8_shift {
    __m512i hi, mid, lo;
};

static inline struct attn_q8_shift attn_q8_shift(uint32_t n)
{
    _Alignas(64) uint8_t hi[64], mid[64], lo[64];
    for (uint32_t i = 0; i < 64; i++) {
        const uint32_t quarter = i / n % 4, byte = 8 * (i % 8);
        hi[i] = (uint8_t)((byte + 2 * quarter - 6) & 63);
        mid[i] = (uint8_t)((byte + 2 * quarter - 4) & 63);
        lo[i] = (uint8_t)((byte + 4 * (quarter / 2)) & 63);
    }
    return (struct attn_q8_shift){_mm512_load_si512(hi), _mm512_load_si512(mid),
                                  _mm512_load_si512(lo)};
}

/* Combines bytes whose bits are in place into codes: 2 bits of `hi`, 2 of `mid`, 4 of `lo`; other
 * bits are ignored. */
static inline __m512i attn_q8_merge(__m512i hi, __m512i mid, __m512i lo)
{
    /* 0xd8 selects: the second operand where the third is 1, otherwise the first */
    const __m512i low = _mm512_ternarylogic_epi32(lo, mid, _mm512_set1_epi8(0x30), 0xd8);
    return _mm512_ternarylogic_epi32(low, hi, _mm512_set1_epi8((char)0xc0), 0xd8);
}

static inline __m512i attn_q8_join(const struct attn_q8_shift *s, __m512i hi, __m512i mid,
                                   __m512i lo)
{
    hi = _mm512_multishift_epi64_epi8(s->hi, hi);
    mid = _mm512_multishift_epi64_epi8(s->mid, mid);
    lo = _mm512_multishift_epi64_epi8(s->lo, lo);
    return attn_q8_merge(hi, mid, lo);
}

#endif
