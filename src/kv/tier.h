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
    TIER_DIRTY,   /* waits for its write */
    TIER_WRITING, /* is being written to the disk */
    TIER_STUCK,   /* the write has failed */
    TIER_CLEAN,   /* the disk has the same */
    TIER_BOUND,   /* waits to be read from disk */
    TIER_LOADING, /* is being read from the disk */
    TIER_LOST,    /* could not be read: zeros, until it is released */
};

/* Why a page is fetched. */
enum tier_why {
    TIER_ASKED,  /* somebody waits for it */
    TIER_CHOSEN, /* the current layer certainly reads it, and will request it when everything is
                    selected */
    TIER_PART,   /* attention will take it in a later part of this layer */
    TIER_VISIT,  /* a method will visit it, unless it has seen enough before */
    TIER_LAST,   /* a guess: the next layer read it in the last step */
    TIER_BESIDE, /* a guess: this layer has begun to read nearby pages */
    TIER_WHYS,
};

/* Frames in the order in which they are served: DIRTY ones, and three kinds of BOUND ones, of which
 * a line is served when those before it are empty. */
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
    page_id page; /* PAGE_NONE: none, or one that was freed while its transfer is in progress */
    uint32_t pins;
    uint32_t prev, next;     /* of the pages of its layer, the least recently used one first */
    uint32_t before, behind; /* in its line */
    uint32_t used;           /* the step of its last use */
    uint32_t history;        /* bit i: used in the step i steps before that */
    uint8_t state;           /* enum tier_state */
    uint8_t line;            /* enum tier_line_i; TIER_LINES: it is in none */
    uint8_t why;             /* enum tier_why; ASKED, once somebody has */
    bool alone;              /* moved with neighbours, it has failed */
};

/* Whether it may give way. */
static inline bool tier_is_ready(const struct tier_frame *frame)
{
    return frame->state == TIER_CLEAN && frame->pins == 0;
}

/* Somebody waits for its bytes. */
static inline bool tier_is_missed(const struct tier_frame *frame)
{
    return (frame->state == TIER_BOUND || frame->state == TIER_LOADING) && frame->pins > 0;
}

struct tier_layer {
    uint32_t first, last; /* frames of its pages */
    page_id gone;         /* pages that were evicted in the step of their last use or the next
                             one, unless looked at since; PAGE_NONE: none */
    uint64_t n_hit, n_fetch;
};

/* Recent counts of how much was useful. For a reason: what was fetched for it ahead of time, and
 * was then requested. */
struct tier_worth {
    uint32_t n, n_used;
};

struct tier_page {
    uint64_t sum;          /* checksum of what is on the disk or in the source */
    struct source *source; /* the page is there, at `place`, and nowhere else; or NULL */
    uint32_t place;
    uint32_t used;  /* the step of its last use, with or without a frame */
    uint32_t round; /* of working_count, in which it was counted last */
    page_id gone;   /* the next in its layer's list */
    uint16_t layer;
    bool is_gone;   /* stands in that list */
    bool on_disk;   /* what was written is there */
    bool is_moving; /* its slot is part of a transfer */
};

struct tier {
    struct page_geom geom;
    uint32_t n_page, n_frame;
    size_t card_bytes;  /* the first bytes of a page; the disk has the rest */
    uint8_t *frames;    /* [n_frame][geom.bytes] the pool's */
    uint32_t *frame_of; /* [n_page] the pool's */
    uint8_t *cards;     /* [n_page][card_bytes] */
    struct tier_frame *frame;
    struct tier_page *page;
    struct tier_layer *layer;  /* [geom.n_layer] */
    uint32_t *free;            /* [n_frame] a stack of frames */
    uint32_t n_free, n_ready;  /* ready: clean and not pinned */
    uint32_t n_pinned, n_busy; /* frames with pins; transfers under way */
    uint32_t n_missed;         /* frames for whose bytes somebody waits */
    uint32_t n_waiting;        /* threads that wait for bytes of pages, or read them */
    uint32_t n_waiting_else;   /* threads that wait for anything else */
    uint32_t n_early;          /* slots of transfers in progress that nobody has requested */
    struct tier_line line[TIER_LINES];
    struct tier_worth worth[TIER_WHYS];
    struct tier_worth at_once; /* of reads that somebody waited for, those that needed no waiting */
    uint32_t n_untried;        /* since one was tried */
    uint32_t guessed;          /* the layer of the last guess; PAGE_NONE: it is over */
    uint32_t n_guess, guess_most; /* pages guessed of it, and the maximum */
    uint32_t step, now;           /* now: the layer being computed */
    uint32_t spared; /* a layer whose pages of this step and the last are kept; PAGE_NONE: none */
    sac_tier_policy policy;
    bool no_ahead; /* no prefetching */
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool is_on;        /* tier_start has been called */
    struct disk *disk; /* owned */
    sac_tier_stats stats;
    int error; /* of the last transfer that failed: errno, 0: a short or damaged one */
    const char *what;
    page_id lost;
    char lost_in[256]; /* the file that it was moved to or from */
};

/* Whether a page can be read back. */
static inline bool tier_has_copy(const struct tier *t, page_id id)
{
    return t->page[id].on_disk || t->page[id].source;
}

/* A card's bytes for pages of this shape: what a q8 page's first plane needs; 0: none. */
size_t tier_card_bytes(const struct page_geom *g);

/* Arrays from `a`, as in pool_init. `frames` and `frame_of` are the pool's. */
void tier_plan(struct tier *t, struct arena *a);
/* After planning: everything is free. The limit is of the file's bytes. */
sac_status tier_start(struct tier *t, const char *path, uint64_t limit,
                      const struct disk_calls *calls, sac_error *err);
void tier_stop(struct tier *t);

/* A step begins; its layers follow. */
void tier_begin(struct tier *t);
void tier_enter(struct tier *t, uint32_t layer);

/* A page is created, without a frame, and ends. */
void tier_born(struct tier *t, page_id id, uint32_t layer);
void tier_drop(struct tier *t, page_id id);
/* A page that was born is in a source, except for its card: it is read from there, and not written
 * to disk. `sum`: the checksum of what is there. */
void tier_adopt(struct tier *t, page_id id, struct source *source, uint32_t place, uint64_t sum);
/* Ends the opener's reference to a source. */
void tier_let_source(struct tier *t, struct source *source);
/* The bytes of a page's card. */
uint8_t *tier_card(const struct tier *t, page_id id);

/* Frames for pages that will be written, while no other thread holds any: SAC_OK, or nothing was
 * done. Once closed, they go to the disk. */
sac_status tier_open(struct tier *t, const page_id *id, uint32_t n);
void tier_close(struct tier *t, const page_id *id, uint32_t n);

/* Brings pages into frames and keeps them there; none is listed twice, PAGE_NONE is skipped. Waits
 * for all or takes none: a thread that already holds some must not ask for more. SAC_ERR_IO: some
 * are lost and read as zeros, but all are held. Otherwise none is: SAC_ERR_CONTEXT, more than there
 * are frames, or SAC_ERR_BUSY, the writes that would free some have failed. */
sac_status tier_acquire(struct tier *t, const page_id *id, uint32_t n);
/* The same for a thread that holds pages, maybe all that are held: if these leave no room it does
 * not wait for their release, SAC_ERR_CONTEXT. The workers help with reading. */
sac_status tier_acquire_more(struct tier *t, struct workers *workers, const page_id *id,
                             uint32_t n);
void tier_release(struct tier *t, const page_id *id, uint32_t n);

/* ---- ahead.c ---- */

/* Prefetches some of these pages, the first ones, as far as there is room without waiting; returns
 * before they arrive. `why`: CHOSEN, PART or VISIT. CHOSEN ones count as fetched when they are
 * requested, the others as found. */
void tier_ahead(struct tier *t, enum tier_why why, const page_id *id, uint32_t n);

/* Predicted requests of the next layer, while this one computes. */
struct tier_follow {
    uint32_t layer;             /* the next one */
    const page_id *here, *next; /* [n_lane][stride] tables of this layer and of the next */
    size_t stride;
    uint32_t n_lane, n; /* n: entries of each */
    /* The entries that this layer reads, lane h's from ptr[h] to ptr[h + 1], of whole pages and of
     * single tokens. No page_ptr: all n; no tok_ptr: no tokens. */
    const uint32_t *page, *page_ptr, *tok, *tok_ptr;
    page_id *scratch; /* [room] maximum pages considered */
    uint32_t room;
};

/* Prefetches pages of the next layer like tier_ahead: those used in the last step, then those whose
 * neighbours here are used in this step and were not in the last. Recently used pages of the next
 * layer do not give way to them. */
void tier_follow(struct tier *t, const struct tier_follow *f);

/* For the rest of the tier, under its lock: */

/* A prefetched page is requested, or leaves without. */
void ahead_tell(struct tier *t, uint32_t frame, bool is_used);
/* Drops pages that wait in a line to be prefetched; returns their number. */
uint32_t ahead_cancel(struct tier *t, enum tier_line_i line);
/* Pages of the current layer have been requested: pending guesses for it are dropped. */
void ahead_end_guess(struct tier *t);
void ahead_count(struct tier_worth *worth, bool is_used);
/* Slots that may be in progress for this reason. */
uint32_t ahead_slots(const struct tier *t, enum tier_why why);
/* A page leaves its frame. */
void ahead_note_gone(struct tier *t, page_id id);

/* Whether pages are held after this result of tier_acquire. */
static inline bool tier_holds(sac_status status)
{
    return status == SAC_OK || status == SAC_ERR_IO;
}

/* What a status of the above means, in words. */
sac_status tier_explain(struct tier *t, sac_status status, sac_error *err);

sac_tier_stats tier_get_stats(struct tier *t);

/* Every frame is what its state says, none has two pages, and the counts match. Nothing is in
 * progress. */
bool tier_check(struct tier *t);
/* Waits until nothing is in progress. */
void tier_settle(struct tier *t);

/* ---- working.c ---- */

struct tier_use {
    uint32_t n_page, n_used; /* of a list, and of these used at `since` or later */
    uint32_t n_known, n_new; /* pages counted earlier in this round; used ones that were not */
};

/* Counts pages of a list, skipping PAGE_NONE, and marks those that were used. Rounds begin with 1.
 * The engine's alone. */
struct tier_use working_count(struct tier *t, const page_id *id, uint32_t n, uint32_t since,
                              uint32_t round);

/* ---- victim.c ---- */

/* Makes n clean frames free, or as many as there are without the spared ones. */
void victim_take(struct tier *t, uint32_t n);

/* ---- inbound.c ---- */

/* Starts as many reads as there are transfers for, releasing the lock meanwhile. */
void inbound_pump(struct tier *t);
/* Reads one of the pages that somebody waits for, and its neighbours, in the caller's thread, if
 * they are in the page cache of the operating system: that takes less time than waking another
 * thread. The lock is released meanwhile. False: there are none, or they are not cached. */
bool inbound_read_now(struct tier *t);
/* Most pages are cached: prefetching them would only take time from others. */
bool inbound_comes_at_once(const struct tier *t);
/* Lets a thread of the disk do the same as inbound_pump, unless the end of a transfer will: the
 * caller's time should not go to pages that nobody waits for. */
void inbound_pump_later(struct tier *t);
/* Nobody waits for anything that is not being read. */
bool inbound_is_empty(const struct tier *t);
/* A read has ended: without the lock its bytes go into their frames, and then, with it, frames
 * become CLEAN, or LOST, or are read once more. */
void inbound_fill(const struct tier *t, struct disk_io *io);
void inbound_end(struct tier *t, const struct disk_io *io);

/* ---- What the parts of a tier share, under its lock ---- */

void tier_set_state(struct tier *t, uint32_t frame, enum tier_state state);
/* Gives a free frame to a page. */
uint32_t tier_bind(struct tier *t, page_id id, enum tier_state state);
/* An unpinned frame gives up its page and becomes free. */
void tier_unbind(struct tier *t, uint32_t frame);
/* The same of a clean one. */
void tier_evict(struct tier *t, uint32_t frame);
void tier_pin(struct tier *t, uint32_t frame);
/* The last pin of a LOST frame frees it. */
void tier_unpin(struct tier *t, uint32_t frame);
void tier_join(struct tier *t, uint32_t frame, enum tier_line_i line);
void tier_leave(struct tier *t, uint32_t frame);
/* The page was freed during its transfer: now its frame is freed, too. */
bool tier_is_orphan(struct tier *t, uint32_t frame);
uint8_t *tier_frame_bytes(const struct tier *t, uint32_t frame);
/* A transfer is over; its slots take their new state. */
void tier_end_transfer(struct tier *t, struct disk_io *io);
void tier_note_failure(struct tier *t, page_id id, const struct disk_io *io, const char *what);

#endif
