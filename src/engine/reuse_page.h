/* reuse_page.h: reads and writes the bytes of pages in the index of prefixes. */
#ifndef SAC_ENGINE_REUSE_PAGE_H
#define SAC_ENGINE_REUSE_PAGE_H

#include "saccade.h"

/* Copies the bytes of a node's pages, lane by lane. */
sac_status reuse_page_fetch(sac_engine *e, uint32_t node, uint8_t *to);
/* Makes such bytes of n_page page indices new pages of the sequence, after those it has in the
 * index, as if they had been computed. False, with nothing changed: there is no room. */
bool reuse_page_place(sac_engine *e, uint32_t seq_i, uint32_t n_page, const uint8_t *bytes);

#endif
