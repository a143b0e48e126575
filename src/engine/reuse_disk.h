/* reuse_disk.h: the index of pages by content and the disk below it (kv/shelf.h): prompts of
 * requests go there when they have ended, and pages come back where the index has none. The public
 * calls are in saccade_cache.h. Without a shelf, all of these do nothing. */
#ifndef SAC_ENGINE_REUSE_DISK_H
#define SAC_ENGINE_REUSE_DISK_H

#include "saccade_cache.h"

struct reuse_disk;

void reuse_disk_close(struct reuse_disk *d);
/* Whether an entry goes on from the pages that the sequence has of the index, and how many pages of
 * it, `n_max` at most, can be taken. */
uint32_t reuse_disk_find(const sac_engine *e, uint32_t seq_i, uint32_t n_max);
/* Brings these pages into the sequence's table, behind those it has. False: that could not be. */
bool reuse_disk_take(sac_engine *e, uint32_t seq_i, uint32_t n_page);
/* A request's sequence ends: its prompt is to be stored. */
void reuse_disk_want(sac_engine *e, uint32_t seq_i);

#endif
