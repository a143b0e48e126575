/* engine_loop.h: the thread that owns the engine, and the only access to it.
 *
 * HTTP threads queue answers (engine_loop_submit) and take their pieces (engine_loop_take). The
 * engine's thread (engine_loop_run) starts answers, runs steps, and cancels answers whose clients
 * have disconnected. One lock protects the queue and the pieces of all answers; it is held briefly,
 * never during a step. All functions except engine_loop_run may be called from any thread. */
#ifndef SAC_SERVE_ENGINE_LOOP_H
#define SAC_SERVE_ENGINE_LOOP_H

#include "serve/answer.h"
#include "serve/metrics.h"

#include "saccade_cache.h"
#include "saccade_tier.h"

struct engine_loop_limits {
    uint32_t n_running;      /* choices computed at once */
    uint32_t n_queue;        /* choices that may wait in addition */
    size_t unread_bytes_max; /* unread bytes of an answer */
};

struct engine_loop;
struct doc_library;
struct kv_events;
struct slots;

/* Borrows `metrics` and reports tokens and ends of answers to it. */
sac_status engine_loop_create(struct engine_loop **out, const struct engine_loop_limits *limits,
                              struct metrics *metrics, sac_error *err);
void engine_loop_destroy(struct engine_loop *loop);

/* Queues the answer and takes a reference, or refuses it: the queue is full, or the server shuts
 * down. */
sac_status engine_loop_submit(struct engine_loop *loop, struct answer *a, struct api_error *error);
/* Returns the pieces since the last call; the caller frees them. NULL and `*out_done`: the answer
 * has ended and all pieces were taken. NULL otherwise: a->sleep was called, and a->wake will
 * follow. */
struct answer_piece *engine_loop_take(struct engine_loop *loop, struct answer *a, bool *out_done);
/* Releases the HTTP side's reference and cancels the answer if it has not ended. */
void engine_loop_leave(struct engine_loop *loop, struct answer *a);

/* Optional parts that the engine's thread uses; borrowed, each may be NULL. */
struct engine_loop_parts {
    struct doc_library *documents;
    struct slots *slots;
    struct kv_events *events; /* needs an engine with prefix_cache */
};
/* Serves answers until engine_loop_drain; the calling thread becomes the engine's. If the engine
 * fails, all answers end with its error, which is returned. */
sac_status engine_loop_run(struct engine_loop *loop, sac_engine *engine,
                           const struct engine_loop_parts *parts, sac_error *err);
/* Refuses new answers. Those in progress are completed or, with `now`, cancelled. */
void engine_loop_drain(struct engine_loop *loop, bool now);
/* Sends a ping on streams that were silent for `ping_us`. */
void engine_loop_tick(struct engine_loop *loop, uint64_t ping_us);
/* Callback of the cache on disk: it can store another entry. `loop` is a struct engine_loop. */
void engine_loop_stored(void *loop);

struct engine_loop_view {
    uint32_t n_running, n_waiting; /* counted in choices */
    bool has_stats;
    sac_engine_stats stats; /* as of the last step */
    sac_tier_stats tier;    /* zeros: no KV tiers */
    sac_cache_stats cache;  /* zeros: no cache on disk */
};
struct engine_loop_view engine_loop_view(struct engine_loop *loop);

/* Page requests of a layer, as of the last step. */
struct loop_layer {
    uint64_t n_hit, n_fetch;
};
/* Copies the first n layers; returns the number of layers, 0: no KV tiers. */
uint32_t loop_layers(struct engine_loop *loop, struct loop_layer *out, uint32_t n);

#endif
