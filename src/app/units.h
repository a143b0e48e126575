/* units.h: numbers as people read them. */
#ifndef SAC_APP_UNITS_H
#define SAC_APP_UNITS_H

#include <stdint.h>

/* "1.4 MiB" in a buffer of the caller. */
#define UNITS_BYTES 24u
const char *units_size(uint64_t bytes, char buf[UNITS_BYTES]);

#endif
