/* proof.h: certificates of decode rows: an upper bound of the distance between their outputs and
 * those of dense attention, from the mass and the norms of what was not read. */
#ifndef SAC_ENGINE_PROOF_H
#define SAC_ENGINE_PROOF_H

#include "engine/attend.h"

/* The distance of an output from another, relative to the other: sqrt(off / norm), both being
 * squares. If the other is zero: 1, or 0 if the distance is 0. */
double proof_relative(double off, double norm);

/* An upper bound of the squared distance of an output from dense attention's; `norm` is the squared
 * norm of the output. */
double proof_part(const struct reading_lane *lane, double norm);

/* Adds a layer's bounds to the counters of each run; after attention. */
void proof_count(sac_engine *e, const struct reading *r);

#endif
