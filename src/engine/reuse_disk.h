/* reuse_disk.h: the disk below the index of pages by content (kv/prefix_store.h): prompts of
 * requests are stored there when the requests have ended, and are read where the index has no
 * pages. The public calls are in saccade_cache.h. Without such a store, none of these functions
 * does anything. */
#ifndef SAC_ENGINE_REUSE_DISK_H
#define SAC_ENGINE_REUSE_DISK_H

#include "saccade_cache.h"

struct reuse_disk;

void reuse_disk_close(struct reuse_disk *d);
/* How many pages, at most n_max, an entry on the disk has after those that the sequence has in the
 * index. */
uint32_t reuse_disk_find(const sac_engine *e, uint32_t seq_i, uint32_t n_max);
/* Reads these pages into the sequence's table, after those it has. False: this failed. */
bool reuse_disk_take(sac_engine *e, uint32_t seq_i, uint32_t n_page);
/* A request's sequence ends: its prompt is to be stored. */
void reuse_disk_want(sac_engine *e, uint32_t seq_i);

#endif
