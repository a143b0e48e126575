/* reads.h: counters of what rows have read. Each run of a batch counts for itself while its layers
 * are computed; at the end of the step sched_commit adds that to the counters of its sequence and
 * of the engine, so that the two agree. */
#ifndef SAC_ENGINE_READS_H
#define SAC_ENGINE_READS_H

#include "saccade.h"

void reads_add(sac_reads *to, const sac_reads *from);

#endif
