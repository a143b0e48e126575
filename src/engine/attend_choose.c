/* attend_choose.c: determines what each row reads. Decode methods select for decode rows, prefill
 * methods for prompt rows; for sequences that have dropped pages, eviction lists the pages that are
 * left.
 *
 * A layer with a sliding window reads little already: no method is called there, and its pages are
 * never dropped. */
#include "engine/attend.h"

#include "engine/engine.h"
#include "engine/evict.h"

void attend_choose(sac_engine *e, struct reading *r)
{
    const uint64_t start = clock_us();
    if (r->window > 0) return;
    if (!e->method_set[METHOD_SET_DECODE].specs.is_dense) {
        decode_choose(e, r);
        evict_pages(e, r);
        r->choose_us = clock_us() - start;
        e->stats.select_us += r->choose_us;
    }
    prefill_choose(e, r);
    e->stats.plan_us += clock_us() - start - r->choose_us;
}
