/* kv_events.h: tells routers which blocks of tokens this server's cache has, in the format of
 * vLLM's KV events (docs/server.md, "Several servers"). A block is a page of the engine.
 *
 * The engine's thread reports pages while it steps and closes a batch after each step; the
 * publisher's thread sends it. All functions but create and destroy are the engine's thread's. */
#ifndef SAC_SERVE_KV_EVENTS_H
#define SAC_SERVE_KV_EVENTS_H

#include "serve/publisher.h"

#include "saccade_cache.h"

struct kv_events;

/* The first batch is AllBlocksCleared. */
sac_status kv_events_create(struct kv_events **out, const struct publisher_options *options,
                            sac_error *err);
/* So is the last one. */
void kv_events_destroy(struct kv_events *k);
const struct publisher *kv_events_publisher(const struct kv_events *k);

/* `salt`: the client's cache salt of the text that begins with this page; NULL: none. */
void kv_events_page(struct kv_events *k, const sac_cache_page *page, const char *salt);
/* Sends the events since the last call as one batch. */
void kv_events_flush(struct kv_events *k);

#endif
