/* loop.h: the thread that owns the engine, and the only access to it.
 *
 * HTTP threads queue answers (loop_submit) and take their pieces (loop_take). The engine's thread
 * (loop_run) starts answers, runs steps, and cancels answers whose clients have disconnected. One
 * lock protects the queue and the pieces of all answers; it is held briefly, never during a step.
 * All functions except loop_run may be called from any thread. */
#ifndef SAC_SERVE_LOOP_H
#define SAC_SERVE_LOOP_H

#include "serve/answer.h"
#include "serve/metrics.h"

#include "saccade_cache.h"
#include "saccade_tier.h"

struct loop_limits {
    uint32_t n_running;      /* sequences that the engine computes at once */
    uint32_t n_queue;        /* answers that may wait beside those */
    size_t unread_bytes_max; /* of one answer that its client does not read */
};

struct loop;
struct library;
struct kv_events;
struct slots;

/* `metrics` is borrowed and is told of tokens and ends. */
sac_status loop_create(struct loop **out, const struct loop_limits *limits, struct metrics *metrics,
                       sac_error *err);
void loop_destroy(struct loop *loop);

/* Queues the answer, or says why not: a full queue, a server that is going down. Takes a reference
 * of its own on SAC_OK. */
sac_status loop_submit(struct loop *loop, struct answer *a, struct refusal *ref);
/* The pieces that came since the last call; the caller frees them. NULL with `*out_done` when the
 * answer has ended and all was taken. NULL without it: a->sleep was called, and a->wake will be. */
struct answer_piece *loop_take(struct loop *loop, struct answer *a, bool *out_done);
/* The HTTP side lets go of its reference; an answer that has not ended is cancelled. */
void loop_leave(struct loop *loop, struct answer *a);

/* What the engine's thread uses beside the engine; borrowed, NULL: there is none. */
struct loop_parts {
    struct library *documents;
    struct slots *slots;
    struct kv_events *events; /* told of what the cache has; it must be on */
};
/* Serves until loop_drain, documents of the library too; the calling thread becomes the engine's.
 * An error is the engine's own and ends all answers. */
sac_status loop_run(struct loop *loop, sac_engine *engine, const struct loop_parts *parts,
                    sac_error *err);
/* No more answers are taken; those there are end first or, with `now`, are cancelled. */
void loop_drain(struct loop *loop, bool now);
/* Sends a ping to streams to which nothing has gone for `ping_us`. */
void loop_tick(struct loop *loop, uint64_t ping_us);
/* A cache on disk (saccade_cache.h) takes another piece; `loop` is a struct loop. */
void loop_stored(void *loop);

struct loop_view {
    uint32_t n_running, n_waiting; /* answers; a request for n counts n times */
    bool has_stats;
    sac_engine_stats stats; /* as of the last step */
    sac_tier_stats tier;    /* all zero: all pages are in memory */
    sac_cache_stats cache;  /* all zero: there is none on disk */
};
struct loop_view loop_view(struct loop *loop);

/* Pages of a layer that were asked for, as of the last step. */
struct loop_layer {
    uint64_t n_hit, n_fetch;
};
/* Those of the first n layers; returns how many there are, 0: all pages are in memory. */
uint32_t loop_layers(struct loop *loop, struct loop_layer *out, uint32_t n);

#endif
