/* segment.h: pages whose keys were rotated at positions of their own (docs/design.md, D12).
 *
 * A sequence's pages may come from elsewhere: a document's keys were rotated at positions counted
 * from the document's start, wherever a sequence holds it. Rotations compose, so the query is
 * rotated instead of all the keys: rotated at its own position p, it is rotated back by the
 * segment's offset and then equals what it would be at position p - offset. One rotation serves all
 * rows and heads of a layer. */
#ifndef SAC_OPS_SEGMENT_H
#define SAC_OPS_SEGMENT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct segment_view {
    uint32_t end;           /* page after its last; its first follows the previous segment */
    const float *cos, *sin; /* [n_rot/2] rotation without a magnitude factor; NULL: none */
};

/* Rotary embedding of a model's heads, as in struct op_rope. */
struct segment_rope {
    uint32_t n_rot;
    bool interleaved;
};

/* The segment that contains a page, searched from segment i on; n: the page is after all segments,
 * where nothing is rotated. */
static inline uint32_t segment_of(const struct segment_view *s, uint32_t n, uint32_t page,
                                  uint32_t i)
{
    while (i < n && s[i].end <= page) i++;
    return i;
}

/* Rotates one head's query for the keys of a segment; or, with `sign` -1, a key of the segment for
 * unrotated queries. out may be x. */
static inline void segment_turn(float *out, const float *x, uint32_t head_dim,
                                const struct segment_view *s, struct segment_rope rope, float sign)
{
    const uint32_t half = rope.n_rot / 2, step = rope.interleaved ? 2 : 1;
    const uint32_t other = rope.interleaved ? 1 : half;
    if (out != x) memcpy(out, x, head_dim * sizeof *out);
    for (uint32_t i = 0; s->cos && i < half; i++) {
        const float a = x[i * step], b = x[i * step + other], sine = sign * s->sin[i];
        out[i * step] = a * s->cos[i] - b * sine;
        out[i * step + other] = a * sine + b * s->cos[i];
    }
}

#endif
