/* meter.h: counts what the selection for a decode row reads, in bytes of whole cache lines, as
 * docs/fairness.md defines them.
 *
 * Every pass over data counts each line that it touches once, and two passes over the same data
 * count twice, whatever a cache holds. The functions that give keys, values and side data to a
 * method do the counting (pick.h, box.h); what a method reads of its own state it counts here. Not
 * counted: what has the size of a query or of one word per page. */
#ifndef SAC_METHODS_METER_H
#define SAC_METHODS_METER_H

#include "methods/method.h"

/* Bytes of the cache lines touched by n bytes that start `at` bytes after the start of a line. */
static inline size_t meter_lines(size_t at, size_t n)
{
    return n ? ((at + n + 63) & ~(size_t)63) - (at & ~(size_t)63) : 0;
}

static inline void meter_bytes(const struct method_lane *l, uint64_t n)
{
    if (l->meter) l->meter->bytes[l->meter->kind] += n;
}

static inline void meter_read(const struct method_lane *l, const void *p, size_t n)
{
    meter_bytes(l, meter_lines((uintptr_t)p, n));
}

/* Entries visited in ascending order: a line is counted when it is reached. `line` is that of the
 * previous entry, initially 0; returns this one's. */
static inline uintptr_t meter_entry(const struct method_lane *l, const void *p, uintptr_t line)
{
    const uintptr_t here = (uintptr_t)p / 64;
    if (here != line) meter_bytes(l, 64);
    return here;
}

/* What is read until meter_choose serves more rows than the current one. */
static inline void meter_build(const struct method_lane *l)
{
    if (l->meter) l->meter->kind = METER_BUILD;
}

/* What is read until meter_choose is data from which attention would be computed. */
static inline void meter_attend(const struct method_lane *l)
{
    if (l->meter) l->meter->kind = METER_ATTEND;
}

static inline void meter_choose(const struct method_lane *l)
{
    if (l->meter) l->meter->kind = METER_CHOOSE;
}

#endif
