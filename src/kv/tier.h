/* tier.h: pages in two tiers (design D3, D12): frames in memory for some of a pool's pages, and a
 * disk below with room for all of them. To read a page's bytes, acquire it first; it stays in its
 * frame until it is released.
 *
 * A page is written once, between open and close, and then goes to the disk in the background.
 * Frames whose page is also on disk are clean. Only these give way to other pages, so making room
 * never waits for a write unless everything is new. A page's card, the data by which methods
 * select, stays in memory as long as the page exists.
 *
 * Pages that somebody has saved need not be written at all: they are adopted and read from where
 * they were saved (source.h).
 *
 * Threads: any may acquire, release and prefetch; the rest is the engine's alone. Results never
 * depend on where a page was. NULL is a tier that holds everything: nothing is done. */
#ifndef SAC_KV_TIER_H
#define SAC_KV_TIER_H

#include "base/mem.h"
#include "base/workers.h"
#include "kv/disk.h"
#include "ops/page.h"

#include "saccade_tier.h"

#include <pthread.h>

enum tier_state {
    TIER_FREE,
    TIER_OPEN,    /* being written by the engine */
    TIER_DIRTY,   /* waits to be written */
    TIER_WRITING, /* is being written to the disk */
    TIER_STUCK,   /* its write has failed */
    TIER_CLEAN,   /* the disk has the same bytes */
    TIER_BOUND,   /* waits to be read from disk */
    TIER_LOADING, /* is being read from the disk */
    TIER_LOST,    /* could not be read: zeros until it is released */
};

/* Why a page is fetched. */
enum tier_why {
    TIER_ASKED,  /* a thread waits for it */
    TIER_CHOSEN, /* selected by the current layer, which requests it at the end of its selection */
    TIER_PART,   /* attention reads it in a later part of this layer */
    TIER_VISIT,  /* a method will visit it unless it stops earlier */
    TIER_LAST,   /* guess: the next layer read it in the last step */
    TIER_BESIDE, /* guess: this layer has begun to read nearby pages */
    TIER_WHYS,
};

/* Queues of frames: DIRTY ones, and three priorities of BOUND ones. A queue is served when those
 * before it are empty. */
enum tier_line_i {
    TIER_WRITES,
    TIER_WANTED,  /* ASKED */
    TIER_KNOWN,   /* CHOSEN, PART, VISIT */
    TIER_GUESSED, /* LAST, BESIDE, of one layer */
    TIER_LINES,
};

struct tier_line {
    uint32_t first, last;
};

struct tier_frame {
    page_id page; /* PAGE_NONE: none, or freed while its transfer is in progress */
    uint32_t pins;
    uint32_t prev, next;     /* in the layer's list, least recently used first */
    uint32_t before, behind; /* in its queue */
    uint32_t used;           /* the step of its last use */
    uint32_t history;        /* bit i: used in the step i steps before that */
    uint8_t state;           /* enum tier_state */
    uint8_t line;            /* enum tier_line_i; TIER_LINES: in no queue */
    uint8_t why;             /* enum tier_why; ASKED once a thread has requested it */
    bool alone;              /* moved together with neighbours, it failed: move it alone */
};

/* Whether the frame may be evicted. */
static inline bool tier_is_ready(const struct tier_frame *frame)
{
    return frame->state == TIER_CLEAN && frame->pins == 0;
}

/* Whether a thread waits for the frame's bytes. */
static inline bool tier_is_missed(const struct tier_frame *frame)
{
    return (frame->state == TIER_BOUND || frame->state == TIER_LOADING) && frame->pins > 0;
}

struct tier_layer {
    uint32_t first, last; /* list of frames */
    page_id gone; /* pages evicted in the step of their last use or the next one, and not looked at
                     since; PAGE_NONE: none */
    uint64_t n_hit, n_fetch;
};

/* Recent usefulness of prefetching for a reason: pages prefetched, and those of them that were then
 * requested. */
struct tier_worth {
    uint32_t n, n_used;
};

struct tier_page {
    uint64_t sum;          /* checksum of the bytes on disk or in the source */
    struct source *source; /* only copy of the page, at `place`; or NULL */
    uint32_t place;
    uint32_t used;  /* the step of its last use, with or without a frame */
    uint32_t round; /* the round of tier_working_set in which it was counted last */
    page_id gone;   /* the next in its layer's list */
    uint16_t layer;
    bool is_gone;   /* is in that list */
    bool on_disk;   /* the disk has a copy */
    bool is_moving; /* its slot is part of a transfer */
};

struct tier {
    struct page_geom geom;
    uint32_t n_page, n_frame;
    size_t card_bytes;  /* leading bytes of a page that stay in memory; the disk has the rest */
    uint8_t *frames;    /* [n_frame][geom.bytes], the pool's */
    uint32_t *frame_of; /* [n_page], the pool's */
    uint8_t *cards;     /* [n_page][card_bytes] */
    struct tier_frame *frame;
    struct tier_page *page;
    struct tier_layer *layer;  /* [geom.n_layer] */
    uint32_t *free;            /* [n_frame] stack */
    uint32_t n_free, n_ready;  /* ready: clean and not pinned */
    uint32_t n_pinned, n_busy; /* pinned frames; transfers in flight */
    uint32_t n_missed;         /* frames whose bytes a thread waits for */
    uint32_t n_waiting;        /* threads that wait for pages or read them */
    uint32_t n_waiting_else;   /* threads that wait for anything else */
    uint32_t n_early;          /* slots in flight that no thread has requested */
    struct tier_line line[TIER_LINES];
    struct tier_worth worth[TIER_WHYS];
    struct tier_worth at_once;    /* reads that a thread waited for; those that were cached */
    uint32_t n_untried;           /* reads since a cached one was tried */
    uint32_t guessed;             /* layer of the last guess; PAGE_NONE: it is over */
    uint32_t n_guess, guess_most; /* pages guessed for it, and the maximum */
    uint32_t step, now;           /* now: the layer being computed */
    uint32_t spared; /* a layer whose recently used pages are not evicted; PAGE_NONE: none */
    sac_tier_policy policy;
    bool no_ahead; /* no prefetching */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool is_on;        /* tier_start has been called */
    struct disk *disk; /* owned */
    sac_tier_stats stats;
    int error; /* errno of the last failed transfer; 0: short or damaged */
    const char *what;
    page_id lost;
    char lost_in[256]; /* file of that transfer */
};

/* Whether a page can be read back. */
static inline bool tier_has_copy(const struct tier *t, page_id id)
{
    return t->page[id].on_disk || t->page[id].source;
}

/* Bytes of a card: what the first plane of a q8 page needs; 0: no cards. */
size_t tier_card_bytes(const struct page_geom *g);

/* Allocates the arrays from `a`, as in pool_init. `frames` and `frame_of` are the pool's. */
void tier_plan(struct tier *t, struct arena *a);
/* Call after planning. `limit`: maximum bytes of the file. */
sac_status tier_start(struct tier *t, const char *path, uint64_t limit,
                      const struct disk_calls *calls, sac_error *err);
void tier_stop(struct tier *t);

/* Begins a step. */
void tier_begin(struct tier *t);
void tier_enter(struct tier *t, uint32_t layer);

/* A page is allocated, without a frame, and freed. */
void tier_born(struct tier *t, page_id id, uint32_t layer);
void tier_drop(struct tier *t, page_id id);
/* The page's bytes, except its card, are in a source: they are read from there and not written to
 * disk. `sum`: their checksum. */
void tier_adopt(struct tier *t, page_id id, struct source *source, uint32_t place, uint64_t sum);
/* Releases the opener's reference to a source. */
void tier_let_source(struct tier *t, struct source *source);
/* The page's card. */
uint8_t *tier_card(const struct tier *t, page_id id);

/* Binds frames to pages that will be written, while no other thread holds any. On failure nothing
 * has changed. Closed pages are written to the disk. */
sac_status tier_open(struct tier *t, const page_id *id, uint32_t n);
void tier_close(struct tier *t, const page_id *id, uint32_t n);

/* Brings pages into frames and pins them; none is listed twice, PAGE_NONE is skipped. Waits for all
 * or takes none, so a thread that already holds some must not ask for more. SAC_ERR_IO: some are
 * lost and read as zeros, but all are pinned. Otherwise none is: SAC_ERR_CONTEXT, more pages than
 * frames, or SAC_ERR_BUSY, the writes that would free frames have failed. */
sac_status tier_acquire(struct tier *t, const page_id *id, uint32_t n);
/* As tier_acquire, for a thread that holds pages, maybe all pinned ones: if they leave no room, the
 * result is SAC_ERR_CONTEXT instead of a wait for their release. The workers help with reading. */
sac_status tier_acquire_more(struct tier *t, struct workers *workers, const page_id *id,
                             uint32_t n);
void tier_release(struct tier *t, const page_id *id, uint32_t n);

/* ---- tier_prefetch.c ---- */

/* Prefetches the first of these pages, as many as there is room for without waiting; returns before
 * they arrive. `why`: CHOSEN, PART or VISIT. When requested, CHOSEN pages count as fetches, the
 * others as hits. */
void tier_prefetch(struct tier *t, enum tier_why why, const page_id *id, uint32_t n);

/* Predicted requests of the next layer, while this one computes. */
struct tier_follow {
    uint32_t layer;             /* the next layer */
    const page_id *here, *next; /* [n_lane][stride] tables of this layer and the next */
    size_t stride;
    uint32_t n_lane, n; /* n: entries of each table */
    /* The entries that this layer reads: those of lane h from ptr[h] to ptr[h + 1], of whole pages
     * and of single tokens. No page_ptr: all n; no tok_ptr: no tokens. */
    const uint32_t *page, *page_ptr, *tok, *tok_ptr;
    page_id *scratch; /* [room] maximum pages considered */
    uint32_t room;
};

/* Prefetches pages of the next layer: those used in the last step, then those whose neighbours are
 * used by this layer in this step and were not in the last. Recently used pages of the next layer
 * are not evicted for them. */
void tier_follow(struct tier *t, const struct tier_follow *f);

/* For the rest of the tier, with its lock held: */

/* A prefetched page is requested, or evicted unused. */
void tier_prefetch_used(struct tier *t, uint32_t frame, bool is_used);
/* Cancels pages that wait in a prefetch queue; returns their number. */
uint32_t tier_prefetch_cancel(struct tier *t, enum tier_line_i line);
/* Pages of the current layer have been requested: cancels pending guesses for it. */
void tier_prefetch_end_guess(struct tier *t);
void tier_prefetch_count(struct tier_worth *worth, bool is_used);
/* Slots that may be in flight for this reason. */
uint32_t tier_prefetch_slots(const struct tier *t, enum tier_why why);
/* A page leaves its frame. */
void tier_prefetch_note_gone(struct tier *t, page_id id);

/* Whether pages are pinned after this result of tier_acquire. */
static inline bool tier_holds(sac_status status)
{
    return status == SAC_OK || status == SAC_ERR_IO;
}

/* Describes the cause of a status of the above functions. */
sac_status tier_explain(struct tier *t, sac_status status, sac_error *err);

sac_tier_stats tier_get_stats(struct tier *t);

/* Tests: every frame matches its state, no page has two, and the counts are right. Nothing may be
 * in flight. */
bool tier_check(struct tier *t);
/* Waits until nothing is in flight. */
void tier_settle(struct tier *t);

/* ---- tier_working_set.c ---- */

struct tier_use {
    uint32_t n_page, n_used; /* of a list; those used at `since` or later */
    uint32_t n_known, n_new; /* pages already counted in this round; used ones that were not */
};

/* Counts the pages of a list, skipping PAGE_NONE, and marks them as counted in this round. Rounds
 * begin with 1. Engine's thread only. */
struct tier_use tier_working_set(struct tier *t, const page_id *id, uint32_t n, uint32_t since,
                                 uint32_t round);

/* ---- tier_evict.c ---- */

/* Frees n clean frames, or as many as there are without the spared ones. */
void tier_evict_frames(struct tier *t, uint32_t n);

/* ---- tier_read.c ---- */

/* Starts reads while transfers are available, releasing the lock meanwhile. */
void tier_read_pump(struct tier *t);
/* Reads one requested page and its neighbours in the caller's thread if the operating system has
 * them cached: that is faster than waking another thread. Releases the lock meanwhile. False: none
 * is requested, or none is cached. */
bool tier_read_now(struct tier *t);
/* Whether most pages are cached, so that prefetching would only cost time. */
bool tier_read_is_cached(const struct tier *t);
/* Has a disk thread call tier_read_pump, unless the end of a transfer will: the caller's time
 * should not go to pages that no thread waits for. */
void tier_read_pump_later(struct tier *t);
/* Whether no thread waits for pages whose read has not started. */
bool tier_read_is_empty(const struct tier *t);
/* Completes a read: copies its bytes into their frames without the lock, then, with it, marks
 * frames CLEAN or LOST, or reads them again. */
void tier_read_fill(const struct tier *t, struct disk_io *io);
void tier_read_end(struct tier *t, const struct disk_io *io);

/* ---- Shared by the parts of a tier, with its lock held ---- */

void tier_set_state(struct tier *t, uint32_t frame, enum tier_state state);
/* Binds a free frame to a page. */
uint32_t tier_bind(struct tier *t, page_id id, enum tier_state state);
/* Separates an unpinned frame from its page and frees it. */
void tier_unbind(struct tier *t, uint32_t frame);
/* Evicts a clean page. */
void tier_evict(struct tier *t, uint32_t frame);
void tier_pin(struct tier *t, uint32_t frame);
/* Removes a pin; the last one of a LOST frame frees it. */
void tier_unpin(struct tier *t, uint32_t frame);
void tier_join(struct tier *t, uint32_t frame, enum tier_line_i line);
void tier_leave(struct tier *t, uint32_t frame);
/* Whether the page was freed during its transfer; then its frame is freed, too. */
bool tier_is_orphan(struct tier *t, uint32_t frame);
uint8_t *tier_frame_bytes(const struct tier *t, uint32_t frame);
/* Ends a transfer and updates its slots. */
void tier_end_transfer(struct tier *t, struct disk_io *io);
void tier_note_failure(struct tier *t, page_id id, const struct disk_io *io, const char *what);

#endif
