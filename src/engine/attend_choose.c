/* attend_choose.c: asks who chooses what the rows read: decode methods for decode rows, prefill
 * methods for prompt rows, and eviction for what is left of sequences that have dropped pages.
 *
 * A layer with a window of its own reads little already: nobody is asked there, and its pages are
 * never dropped. */
#include "engine/attend.h"

#include "engine/engine.h"
#include "engine/evict.h"

void attend_choose(sac_engine *e, struct reading *r)
{
    const uint64_t start = clock_us();
    if (r->window > 0) return;
    if (!e->chooser[CHOOSER_DECODE].specs.is_dense) {
        decode_choose(e, r);
        evict_pages(e, r);
        r->choose_us = clock_us() - start;
        e->stats.select_us += r->choose_us;
    }
    prefill_choose(e, r);
    e->stats.plan_us += clock_us() - start - r->choose_us;
}
