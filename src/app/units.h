/* units.h: numbers in readable units. */
#ifndef SAC_APP_UNITS_H
#define SAC_APP_UNITS_H

#include <stdbool.h>
#include <stdint.h>

/* "1.4 MiB", in the caller's buffer. */
#define UNITS_BYTES 24u
const char *units_size(uint64_t bytes, char buf[UNITS_BYTES]);

/* "4096", "4k" or "1m" (1,024 and 1,048,576); false: not a number of tokens. */
bool units_tokens(const char *text, uint64_t *out);

/* "40M" in bytes, with K, M, G or T (powers of 1024); false: not a size. */
bool units_bytes(const char *text, uint64_t *out);

#endif
