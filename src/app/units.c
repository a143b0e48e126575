/* units.c: see the header. */
#include "app/units.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *units_size(uint64_t bytes, char buf[UNITS_BYTES])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes / 1024;
    size_t i = 0;
    for (; size >= 1024 && i < 3; i++) size /= 1024;
    snprintf(buf, UNITS_BYTES, "%.1f %s", size, units[i]);
    return buf;
}

bool units_tokens(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    const unsigned long long n = strtoull(text, &end, 10);
    const int unit = tolower((unsigned char)*end);
    const int shift = unit == 'k' ? 10 : unit == 'm' ? 20 : 0;
    if (!isdigit((unsigned char)*text) || errno || end[shift != 0] || n > UINT64_MAX >> 20)
        return false;
    *out = n << shift;
    return true;
}

bool units_bytes(const char *text, uint64_t *out)
{
    static const char units[] = "KMGT";
    char *end;
    errno = 0;
    const double n = strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    const int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (end == text || errno || !(n > 0) || (unit ? end[1] : *end)) return false;
    const double bytes = ldexp(n, shift);
    if (!(bytes >= 1 && bytes < 0x1p60)) return false;
    *out = (uint64_t)bytes;
    return true;
}
