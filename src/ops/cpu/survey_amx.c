/* survey_amx.c: the survey slot in AMX tiles of bf16: 16 queries are the rows of A tiles, 16 keys
 * the columns of B tiles (pairs of channels in a row), and the sums begin with the queries' biases.
 * survey_tmpl.h processes the scores. */
#include "ops/cpu/fill.h"
#include "ops/cpu/survey_bf16.h"

/* Computes the scores of 16 keys in tile t, with the queries in tiles 4 and 5; b: the keys' tile of
 * the first 32 channels. */
#define SCORE_TILE(t, q, b, d)                                                                     \
    do {                                                                                           \
        TILE_LOAD(t, s->start, 64);                                                                \
        for (size_t c_ = 0; c_ < (d) / 32 * (size_t)TILE_BYTES; c_ += 2 * TILE_BYTES) {            \
            if ((d) > 64) TILE_LOAD(4, (q) + c_, 64);                                              \
            TILE_LOAD(6, (b) + 2 * c_, 64);                                                        \
            TILE_DOT(t, 4, 6);                                                                     \
            if (c_ + TILE_BYTES == (d) / 32 * (size_t)TILE_BYTES) break;                           \
            if ((d) > 64) TILE_LOAD(5, (q) + c_ + TILE_BYTES, 64);                                 \
            TILE_LOAD(7, (b) + 2 * c_ + 2 * TILE_BYTES, 64);                                       \
            TILE_DOT(t, 5, 7);                                                                     \
        }                                                                                          \
    } while (0)

/* Tile products and vector work alternate tile by tile, and a tile is stored two tiles after it was
 * computed. Computing all tiles first took half as long again, because stores of whole tiles hold
 * up the loads behind them. */
static inline __attribute__((always_inline)) void score_of(float *out, const struct survey_step *s,
                                                           uint32_t d)
{
    const uint8_t *page = s->page, *other = page + PAGE_TOK * (size_t)d * QUERY_BYTES;
    const float *last = s->last;
    if (d <= 64) {
        TILE_LOAD(4, s->q, 64);
        if (d > 32) TILE_LOAD(5, s->q + TILE_BYTES, 64);
    }
    SCORE_TILE(0, s->q, page, d);
    SCORE_TILE(1, s->q, page + TILE_BYTES, d);
    if (last) survey_sum(&s->square[0], last);
    if (last) survey_sum(&s->square[1], last + 256);
    SCORE_TILE(2, s->q, other, d);
    TILE_STORE(0, out, 64);
    if (last) survey_sum(&s->square[2], last + 512);
    SCORE_TILE(3, s->q, other + TILE_BYTES, d);
    TILE_STORE(1, out + 256, 64);
    if (last) survey_sum(&s->square[3], last + 768);
    TILE_STORE(2, out + 512, 64);
    TILE_STORE(3, out + 768, 64);
}

/* Instantiates the usual head size as a constant. */
static inline void score(float *out, const struct survey_step *s, uint32_t d)
{
    if (d == 64)
        score_of(out, s, 64);
    else
        score_of(out, s, d);
}

#include "ops/cpu/survey_tmpl.h"

static bool sums_amx(const struct op_survey *op, struct attn_range lists, void *room)
{
    tiles_begin();
    const bool finite = survey_sums(op, lists, room);
    tiles_end();
    return finite;
}

static bool takes_amx(const struct op_survey *op, struct attn_range pages, void *room)
{
    tiles_begin();
    const bool finite = survey_takes(op, pages, room);
    tiles_end();
    return finite;
}

static bool survey_amx(struct workers *pool, const struct op_survey *op)
{
    return survey_execute(pool, op, &(struct survey_kernel){survey_begin, sums_amx, takes_amx});
}

void ops_fill_amx_survey(struct ops *o)
{
    o->survey = survey_amx;
}
