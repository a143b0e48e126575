/* admit.h: which requests decode when pages are on disk (decode.md 3.8.4). A sequence mostly reads
 * the pages that it has read before, its working set; sequences whose sets do not fit into memory
 * together evict each other's pages in every step. So only as many decode as fit, or as increase
 * throughput, and the others wait: their pages stay on disk, and nothing is recomputed.
 *
 * Waiting does not affect the answer of a request. Sequences that no request drives never wait. */
#ifndef SAC_ENGINE_ADMIT_H
#define SAC_ENGINE_ADMIT_H

#include "base/mem.h"

#include "saccade.h"

/* The admission state of a sequence. Steps are the tier's. */
struct admit_seq {
    bool joined, held;            /* a request drives it; its decode rows wait */
    uint64_t place;               /* place in the queue, smaller ones first; 0: not queued */
    uint32_t n_turn;              /* decode rows since the start of its turn */
    uint32_t n_seen;              /* consecutive steps, up to its last one, with a decode row */
    uint32_t first, last;         /* the first and the last of these steps */
    uint32_t n_set;               /* pages of its working set; 0: unknown */
    uint64_t held_since, held_us; /* microseconds */
};

struct admit {
    uint32_t *order; /* [n_seq_max] sequences whose next row is a decode row, in order */
    /* [n_decode methods] average share of a sequence's pages that is in its working set, initially
     * 1 */
    float *share;
    uint64_t n_place;         /* places given so far */
    uint32_t round;           /* number of the current count of working sets */
    uint32_t counted;         /* the step of the last count */
    uint32_t n_member;        /* length of the queue at that count */
    bool changed;             /* the queue has changed since then */
    uint32_t limit;           /* rows that meet the target time between tokens; 0: any number */
    uint32_t n_timed, n_late; /* steps of the current period, and those over that target */
    double timed_us;          /* duration of these steps */
    bool limit_binds;         /* a sequence waits because of `limit` */
    uint64_t n_set;           /* pages of all decoding sequences' working sets, at the last count */
    uint64_t room, wanted; /* frames available to working sets; needed with the next sequence's */
    bool room_binds;       /* a sequence waits for lack of frames */
    int direction;         /* direction of the next change: 1 or -1 */
    uint32_t n_rest, n_tried; /* trials still to skip; steps with the current room */
    /* Rows and time of these steps; rows per microsecond with the previous room */
    double tried_rows, tried_us, rate;
    uint64_t n_hold; /* times that a sequence began to wait */
};

/* Part of the engine's plan_memory. */
void admit_plan(sac_engine *e, struct arena *a);
/* A request begins to drive the sequence, or no longer does; the latter returns the microseconds
 * that it has waited. */
void admit_join(sac_engine *e, sac_seq id);
uint64_t admit_leave(sac_engine *e, sac_seq id);
bool admit_has_joined(const sac_engine *e, sac_seq id);

/* Determines who waits in the next step. At least one does not. */
void admit_pick(sac_engine *e);
/* The number of sequences that wait. */
uint32_t admit_held(const sac_engine *e);
/* The batch's rows were computed in this many microseconds. */
void admit_note(sac_engine *e, double us);

#endif
