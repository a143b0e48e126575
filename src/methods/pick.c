/* pick.c: marks of a selection. See the header. */
#include "methods/pick.h"

#include <assert.h>

void pick_range(struct method_pick *out, const struct method_lane *l, uint32_t begin, uint32_t end)
{
    end = pick_min(end, pick_page_count(l) * PAGE_TOK);
    while (begin < end) {
        const uint32_t page = begin / PAGE_TOK, first = begin % PAGE_TOK;
        const uint32_t last = pick_min(end - page * PAGE_TOK, PAGE_TOK);
        const uint32_t below_last = last == PAGE_TOK ? UINT32_MAX : (1u << last) - 1;
        out->mask[page] |= below_last & ~((1u << first) - 1);
        begin = (page + 1) * PAGE_TOK;
    }
}

void pick_ends(struct method_pick *out, const struct method_lane *l, uint32_t n_sink,
               uint32_t n_recent)
{
    pick_range(out, l, 0, n_sink);
    if (n_recent > 0)
        pick_range(out, l, l->pos + 1 > n_recent ? l->pos + 1 - n_recent : 0, l->pos + 1);
}
