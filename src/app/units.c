/* units.c: see the header. */
#include "app/units.h"

#include <stdio.h>

const char *units_size(uint64_t bytes, char buf[UNITS_BYTES])
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double size = (double)bytes / 1024;
    size_t i = 0;
    for (; size >= 1024 && i < 3; i++) size /= 1024;
    snprintf(buf, UNITS_BYTES, "%.1f %s", size, units[i]);
    return buf;
}
