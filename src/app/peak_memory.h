/* peak_memory.h: the process's peak memory. */
#ifndef SAC_APP_PEAK_MEMORY_H
#define SAC_APP_PEAK_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

/* Resets the peak; false: not permitted by the system, so there is no peak to report. */
bool peak_memory_reset(void);
/* Peak resident memory of the process since then, in bytes. */
uint64_t peak_memory_bytes(void);

#endif
