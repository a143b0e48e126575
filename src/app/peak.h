/* peak.h: the process's peak memory. */
#ifndef SAC_APP_PEAK_H
#define SAC_APP_PEAK_H

#include <stdbool.h>
#include <stdint.h>

/* From now on the peak counts anew. The system may not allow it: then there is no peak to tell. */
bool peak_reset(void);
/* Bytes of the process's pages in memory, at most since then. */
uint64_t peak_bytes(void);

#endif
