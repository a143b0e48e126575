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

/* For a sequence. Steps are the tier's. */
struct admit_seq {
    bool joined, held;    /* a request drives it; its decode rows wait */
    uint64_t place;       /* place in the queue, smaller ones first; 0: not queued */
    uint32_t n_turn;      /* decode rows since the start of its turn */
    uint32_t n_seen;      /* decode rows in the steps first to last, which are all of these */
    uint32_t first, last; /* steps */
    uint32_t n_set;       /* pages of its working set; 0: not known yet */
    uint64_t held_since, held_us; /* microseconds */
};

struct admit {
    uint32_t *order;          /* [n_seq_max] sequences whose next row is a decode row, in order */
    float *share;             /* [n_decode methods] share of a sequence's pages in its set, or 1 */
    uint64_t n_place;         /* given so far */
    uint32_t round;           /* of counting */
    uint32_t counted;         /* the step of the last one */
    uint32_t n_member;        /* of the queue then */
    bool changed;             /* the queue has, since then */
    uint32_t limit;           /* rows that meet the target time between tokens; 0: any number */
    uint32_t n_timed, n_late; /* steps, and those over that target */
    double timed_us;          /* that the former have taken */
    bool limit_binds;         /* for its sake somebody waits */
    uint64_t n_set;           /* pages of all decoding sets, as last counted */
    uint64_t room, wanted;    /* frames available to sets; including the next one's */
    bool room_binds;          /* somebody waits for lack of room */
    int direction;            /* direction of the next change: 1 or -1 */
    uint32_t n_rest, n_tried; /* pauses; steps with the current room */
    double tried_rows, tried_us, rate; /* of these; rows per microsecond with the previous room */
    uint64_t n_hold;                   /* times that a sequence began to wait */
};

/* Part of the engine's plan_memory. */
void admit_plan(sac_engine *e, struct arena *a);
/* A request drives the sequence, and no longer does: then, microseconds that it has waited. */
void admit_join(sac_engine *e, sac_seq id);
uint64_t admit_leave(sac_engine *e, sac_seq id);
bool admit_has_joined(const sac_engine *e, sac_seq id);

/* Determines who waits in the next step. At least one does not. */
void admit_pick(sac_engine *e);
/* Sequences that do. */
uint32_t admit_held(const sac_engine *e);
/* The batch's rows are done, in this many microseconds. */
void admit_note(sac_engine *e, double us);

#endif
