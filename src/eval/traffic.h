/* traffic.h: bytes that decode rows moved between two readings of the counters, as docs/fairness.md
 * counts them: the same numbers under the same names in every output. */
#ifndef SAC_EVAL_TRAFFIC_H
#define SAC_EVAL_TRAFFIC_H

#include "saccade_tier.h"

struct cJSON;

/* NAN without a decode row. */
struct traffic {
    /* Bytes of attention, selection and building, relative to those of dense attention */
    double share;
    double per_token;     /* the same bytes per row */
    double choose, build; /* the parts of per_token for selection and for building */
    double rows; /* decode rows: those of a question, and of the answer's tokens after the first */
    /* With pages on disk, else NAN: share of the requested pages that were in memory; per row,
     * bytes from disk and microseconds of waiting for them. */
    double hit_share, fetched, wait_us;
};

/* The names of the fields in JSON, and their order in the struct. */
#define TRAFFIC_FIELDS 8u
extern const char *const traffic_name[TRAFFIC_FIELDS];
double *traffic_field(struct traffic *t, unsigned i);

struct traffic traffic_between(const sac_reads *before, const sac_reads *after);
/* The same between two readings of the tiers' counters, for as many rows. */
void traffic_add_tier(struct traffic *t, const sac_tier_stats *before, const sac_tier_stats *after);
/* Adds all fields; NAN becomes null, and those of tiers are left out. */
void traffic_json(struct cJSON *o, const struct traffic *t);

#endif
