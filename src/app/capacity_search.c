/* capacity_search.c: see the header. Rates are doubled or halved until one meets the limits and
 * another does not; then their geometric mean is tried. */
#include "app/capacity.h"

#include <assert.h>
#include <math.h>

sac_status capacity_search_run(struct capacity_found *out, const struct capacity_search *s,
                               sac_error *err)
{
    double low = 0, high = INFINITY, rate = s->start;
    *out = (struct capacity_found){.fails = INFINITY};
    assert(s->start > 0 && s->factor > 1 && s->n_most > 0);
    for (uint32_t i = 0; i < s->n_most && !(low > 0 && high <= low * s->factor); i++) {
        enum capacity_verdict verdict = CAPACITY_OPEN;
        TRY(s->judge(s->user, rate, &verdict, err));
        out->is_late = verdict == CAPACITY_OPEN;
        if (out->is_late) break;
        *(verdict == CAPACITY_KEPT ? &low : &high) = rate;
        rate = low > 0 && isfinite(high) ? sqrt(low * high) : low > 0 ? 2 * low : high / 2;
    }
    out->keeps = low;
    out->fails = high;
    return SAC_OK;
}
