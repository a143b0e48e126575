/* reuse_page.h: the bytes of pages that the index of prefixes holds, out of it and into a sequence.
 */
#ifndef SAC_ENGINE_REUSE_PAGE_H
#define SAC_ENGINE_REUSE_PAGE_H

#include "saccade.h"

/* The bytes of a node's pages, those of all lanes behind each other. */
sac_status reuse_page_fetch(sac_engine *e, uint32_t node, uint8_t *to);
/* Such bytes of n_page page indices become fresh pages in the sequence's table, behind those it has
 * of the index, as if they had been computed. False, with nothing changed: there is no room. */
bool reuse_page_place(sac_engine *e, uint32_t seq_i, uint32_t n_page, const uint8_t *bytes);

#endif
