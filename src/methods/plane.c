/* plane.c: see the header. */
#include "methods/plane.h"

#include "base/half.h"

#include <assert.h>
#include <math.h>

struct op_share_planes plane_of(const struct method_lane *l)
{
    const struct page_geom *g = l->shape->geom;
    const size_t d = g->head_dim;
    if (g->type_k == SAC_KV_Q8)
        return (struct op_share_planes){.base = l->cards.base,
                                        .frame_of = l->cards.of,
                                        .stride = l->cards.stride,
                                        .min_at = g->k_min,
                                        .step_at = g->k_step,
                                        .hi2_at = g->k_hi2};
    return (struct op_share_planes){
        .base = l->side, .stride = l->side_stride, .min_at = 0, .step_at = 2 * d, .hi2_at = 4 * d};
}

size_t plane_side_bytes(const struct method_shape *s, const void *param)
{
    const size_t d = s->geom->head_dim;
    (void)param;
    return s->geom->type_k == SAC_KV_Q8 ? 0 : 4 * d + PAGE_TOK * d / 4;
}

/* Two bits of a code: `x` is a key less its channel's minimum, `cut` a quarter of the range. */
static inline int32_t two_bits(float x, float cut)
{
    return (x >= cut) + (x >= 2 * cut) + (x >= 3 * cut);
}

/* Row by row, so that the loops are vectorised. A byte of the plane has two bits of one channel
 * from each quarter of the channels. */
void plane_seal(uint8_t *side, const struct method_shape *s, const void *param, const float *k)
{
    const uint32_t d = s->geom->head_dim, n = d / 4;
    uint16_t *min = (uint16_t *)(void *)side, *step = min + d;
    uint8_t *hi2 = side + 4 * (size_t)d;
    float lo[HEAD_DIM_MAX], hi[HEAD_DIM_MAX],
        bad[HEAD_DIM_MAX]; /* NaN as soon as a key is not finite, otherwise 0 */
    (void)param;
    assert(d <= HEAD_DIM_MAX);
    for (uint32_t c = 0; c < d; c++) {
        lo[c] = hi[c] = k[c];
        bad[c] = 0;
    }
    for (const float *row = k; row < k + PAGE_TOK * (size_t)d; row += d)
        for (uint32_t c = 0; c < d; c++) {
            lo[c] = row[c] < lo[c] ? row[c] : lo[c];
            hi[c] = row[c] > hi[c] ? row[c] : hi[c];
            bad[c] += row[c] - row[c];
        }
    for (uint32_t c = 0; c < d; c++) {
        min[c] = f32_to_f16_canonical(lo[c] + bad[c]);
        step[c] = f32_to_f16_canonical((hi[c] - lo[c]) / 255);
        const float by = f16_to_f32(step[c]);
        lo[c] = f16_to_f32(min[c]);
        hi[c] = by > 0 ? 64 * by : INFINITY;
    }
    for (const float *row = k; row < k + PAGE_TOK * (size_t)d; row += d, hi2 += n)
        for (uint32_t c = 0; c < n; c++)
            hi2[c] = (uint8_t)(two_bits(row[c] - lo[c], hi[c]) |
                               two_bits(row[n + c] - lo[n + c], hi[n + c]) << 2 |
                               two_bits(row[2 * n + c] - lo[2 * n + c], hi[2 * n + c]) << 4 |
                               two_bits(row[3 * n + c] - lo[3 * n + c], hi[3 * n + c]) << 6);
}

enum op_note_kind plane_note(const struct method_shape *s, const void *param)
{
    (void)s, (void)param;
    return OP_NOTE_PLANE;
}
