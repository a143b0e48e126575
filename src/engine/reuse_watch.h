/* reuse_watch.h: tells the watcher (sac_cache_watch, saccade_cache.h) which pages have entered the
 * index. The index itself tells which are no longer in it. */
#ifndef SAC_ENGINE_REUSE_WATCH_H
#define SAC_ENGINE_REUSE_WATCH_H

#include "saccade_cache.h"

/* A new node, from a sequence of this owner (struct reuse_seq). */
void reuse_watch_added(const sac_engine *e, uint32_t node, void *owner);

#endif
