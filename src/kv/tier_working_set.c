/* tier_working_set.c: how many pages of a list were used recently, and which of them were counted
 * before: a page shared by several sequences occupies one frame. Uses are recorded in tier.c. */
#include "kv/tier.h"

struct tier_use tier_working_set(struct tier *t, const page_id *id, uint32_t n, uint32_t since,
                                 uint32_t round)
{
    struct tier_use use = {0};
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < n; i++) {
        if (id[i] == PAGE_NONE) continue;
        struct tier_page *page = &t->page[id[i]];
        const bool is_used = page->used >= since, is_known = page->round == round;
        use.n_page++;
        use.n_used += is_used;
        use.n_known += is_known;
        use.n_new += is_used && !is_known;
        if (is_used) page->round = round;
    }
    pthread_mutex_unlock(&t->lock);
    return use;
}
