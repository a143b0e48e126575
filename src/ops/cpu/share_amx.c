/* share_amx.c: share_planes with the products of weights and codes in int8 tiles: one product
 * covers 16 heads, 64 channels and 16 tokens. Its sums are integers, so they have the bits of
 * share_avx512.c. */
#include "ops/cpu/fill.h"
#include "ops/cpu/share.h"
#include "ops/cpu/tiles.h"

static void multiply(const struct share_product *p)
{
    const size_t width = (size_t)p->n_row * 4, half = (size_t)p->n_row * SHARE_ROW;
    for (uint32_t g = 0; g < p->group; g += TILE_ROWS)
        for (uint32_t i = 0; i < p->n_page; i++) {
            const uint8_t *code = p->code + i * 2 * half;
            int32_t *sum = p->sum + (i * (size_t)share_padded(p->group) + g) * 2 * TILE_ROWS;
            TILE_LOAD(0, p->start + (size_t)g * TILE_ROWS, SHARE_ROW);
            TILE_LOAD(1, p->start + (size_t)g * TILE_ROWS, SHARE_ROW);
            for (uint32_t r = 0; r < p->n_row; r += SHARE_STEP) {
                /* Weights of a single step stay in their tile. */
                if (i == 0 || p->n_row > SHARE_STEP) TILE_LOAD(2, p->w + g * width + r * 4, width);
                TILE_LOAD(4, code + r * SHARE_ROW, SHARE_ROW);
                TILE_LOAD(5, code + half + r * SHARE_ROW, SHARE_ROW);
                TILE_DOT_S8(0, 2, 4);
                TILE_DOT_S8(1, 2, 5);
            }
            TILE_STORE(0, sum, 2 * SHARE_ROW);
            TILE_STORE(1, sum + TILE_ROWS, 2 * SHARE_ROW);
        }
}

/* Tiles of sums and weights have as many rows as there are heads: fewer rows take less time. */
static void share_tiles(const struct op_share_planes *op)
{
    struct tile_config config = {.palette = 1};
    const uint32_t n_row = op->group < TILE_ROWS ? op->group : TILE_ROWS;
    for (uint32_t i = 0; i < 8; i++) {
        config.row_bytes[i] = TILE_BYTES / TILE_ROWS;
        config.rows[i] = (uint8_t)(i < 4 ? n_row : TILE_ROWS);
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

static bool share_planes_amx(const struct op_share_planes *op)
{
    share_tiles(op);
    const bool finite = share_planes_run(op, multiply);
    tiles_end();
    return finite;
}

static bool share_begin_amx(const struct op_share_planes *op, float *sum)
{
    share_tiles(op);
    const bool finite = share_begin_run(op, sum, multiply);
    tiles_end();
    return finite;
}

static bool share_raise_amx(const struct op_share_planes *op, struct attn_range pages, float *sum)
{
    share_tiles(op);
    const bool finite = share_raise_run(op, pages, sum, multiply);
    tiles_end();
    return finite;
}

void ops_fill_amx_share(struct ops *o)
{
    o->share_planes = share_planes_amx;
    o->share_begin = share_begin_amx;
    o->share_raise = share_raise_amx;
}
