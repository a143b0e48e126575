/* lines.h: attention as lines. A vertical is a column c, what all rows read of one key; a slash is
 * an offset o = row - c, a diagonal. MInference, FlexPrefill and LoopServe sum the attention of a
 * few rows along both kinds of line, select the best and read those for every row.
 *
 * No function allocates or fails. */
#ifndef SAC_METHODS_LINES_H
#define SAC_METHODS_LINES_H

#include "base/mem.h"
#include "ops/page.h"

#include <stdint.h>

/* Adds the attention of the row at position `row`, p [row + 1], to the sums of n columns, col[c],
 * and slashes, slash_down[n - 1 - o]: downwards, so that neighbours in a row remain neighbours. */
void lines_add(float *col, float *slash_down, uint32_t n, const float *p, uint32_t row);

/* A selection of lines among the first n positions, laid out so that marking what a tile of rows
 * reads is an OR of two rows of words, for any number of lines. */
struct lines {
    uint32_t n_word, tile_tok; /* words of a mask; rows of a tile, a multiple of PAGE_TOK */
    uint32_t *col;             /* [n_word] bit c: vertical c */
    /* [n_word + tile_tok / PAGE_TOK] Slash o is read by a tile at t0 in columns t0 - o .. t0 - o +
     * tile_tok - 1. With all columns moved by 32 n_word - t0 that run is at the same place for
     * every tile: bits 32 n_word - o and on. */
    uint32_t *band;
};

/* Takes the words from `a` and clears them, unless it only measures. */
void lines_make(struct lines *l, uint32_t n, uint32_t tile_tok, struct arena *a);
void lines_clear(struct lines *l);

static inline void lines_take_col(struct lines *l, uint32_t c)
{
    l->col[c / 32] |= 1u << c % 32;
}

void lines_take_slash(struct lines *l, uint32_t o);
/* Marks in mask [t0 / 32] what the tile with first row t0, a multiple of tile_tok, reads of the
 * tokens before it: every column that one of its rows asks for. */
void lines_mark(uint32_t *mask, const struct lines *l, uint32_t t0);

#endif
