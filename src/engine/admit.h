/* admit.h: which requests decode, where pages lie above a disk (decode.md 3.8.4). A sequence reads
 * mostly the pages that it has read before, its working set; sequences whose sets do not fit into
 * memory together throw each other's pages out in every step. So only as many decode as fit,
 * or as the machine gains by, and the others wait: their pages stay on the disk, and nothing is
 * computed again.
 *
 * Who waits has no part in what a request is answered. Sequences that no request drives are never
 * made to wait. */
#ifndef SAC_ENGINE_ADMIT_H
#define SAC_ENGINE_ADMIT_H

#include "base/mem.h"

#include "saccade.h"

/* Of a sequence. Steps are the tier's. */
struct admit_seq {
    bool joined, held;    /* a request drives it; its decode rows wait */
    uint64_t place;       /* in the queue: smaller ones are before it; 0: in none */
    uint32_t n_turn;      /* decode rows since the begin of its turn */
    uint32_t n_seen;      /* decode rows in the steps first to last, which are all of these */
    uint32_t first, last; /* steps */
    uint32_t n_set;       /* pages of its working set; 0: not known yet */
    uint64_t held_since, held_us; /* microseconds */
};

struct admit {
    uint32_t *order;   /* [n_seq_max] sequences that have a decode row next, as they stand */
    float *share;      /* [n_decode methods] of a sequence's pages that its set has, or 1 */
    uint64_t n_place;  /* given so far */
    uint32_t round;    /* of counting */
    uint32_t counted;  /* the step of the last one */
    uint32_t n_member; /* of the queue then */
    bool changed;      /* the queue has, since then */
    uint32_t limit;    /* rows that keep the target of the time between tokens; 0: any number */
    uint32_t n_timed, n_late;          /* steps, and those beyond that target */
    double timed_us;                   /* that the former have taken */
    bool limit_binds;                  /* for its sake somebody waits */
    uint64_t n_set;                    /* pages of all sets that decode, as counted last */
    uint64_t room, wanted;             /* frames that sets may ask for; with the next one's */
    bool room_binds;                   /* for want of room somebody waits */
    int direction;                     /* in which the next room is tried: 1 or -1 */
    uint32_t n_rest, n_tried;          /* times to rest; steps with the room at hand */
    double tried_rows, tried_us, rate; /* of these; rows in a microsecond with the room before */
    uint64_t n_hold;                   /* times that a sequence began to wait */
};

/* Part of the engine's plan_memory. */
void admit_plan(sac_engine *e, struct arena *a);
/* A request drives the sequence, and no more: then, microseconds that it has waited. */
void admit_join(sac_engine *e, sac_seq id);
uint64_t admit_leave(sac_engine *e, sac_seq id);
bool admit_has_joined(const sac_engine *e, sac_seq id);

/* Says who waits in the next step. At least one does not. */
void admit_pick(sac_engine *e);
/* Sequences that do. */
uint32_t admit_held(const sac_engine *e);
/* The batch's rows are done, in so many microseconds. */
void admit_note(sac_engine *e, double us);

#endif
