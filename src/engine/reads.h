/* reads.h: counters of what rows have read. Each run of a batch counts for itself while its layers
 * are computed; a step's border adds that to its sequence and to the engine (sched_commit), so the
 * two can not disagree. */
#ifndef SAC_ENGINE_READS_H
#define SAC_ENGINE_READS_H

#include "saccade.h"

void reads_add(sac_reads *to, const sac_reads *from);

#endif
