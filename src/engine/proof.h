/* proof.h: what is proved about decode rows: an upper bound of the distance between their outputs
 * and dense attention's, from the mass and the norms of what was not read. */
#ifndef SAC_ENGINE_PROOF_H
#define SAC_ENGINE_PROOF_H

#include "engine/attend.h"

/* How far an output is from another relative to itself, sqrt(off / norm), of squares. One of zeros
 * lacks the other whole: 1, or 0 if nothing is off. */
double proof_relative(double off, double norm);

/* At most the square of the distance from an output, the square of whose length is `norm`, to dense
 * attention's. */
double proof_part(const struct reading_lane *lane, double norm);

/* Adds the bounds of a layer to the counters of each run; behind attention. */
void proof_count(sac_engine *e, const struct reading *r);

#endif
