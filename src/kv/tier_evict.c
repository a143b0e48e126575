/* tier_evict.c: which pages are evicted from memory when others need their frames.
 *
 * `lru`, the policy of the paper, evicts the least recently used pages. A step goes through the
 * layers in turn, so once their pages do not fit together, this evicts exactly what the next layer
 * will request. `stale` therefore evicts the least recently used page only if it was used neither
 * in this step nor in the previous one. After those it evicts from the layer that was executed most
 * recently, which is the last to come again: first the pages that were selected least often in the
 * last 16 steps.
 *
 * Only clean frames without pins are considered, so pages that the current layer has acquired are
 * safe. The order depends on use alone. */
#include "kv/tier.h"

#define HISTORY 16u

static bool is_ready(const struct tier *t, uint32_t frame)
{
    return tier_is_ready(&t->frame[frame]);
}

/* Used in this step or the previous one. */
static bool is_wanted(const struct tier *t, uint32_t frame)
{
    return t->frame[frame].used + 1 >= t->step;
}

/* The least recently used ready frame of a layer that may be evicted. */
static uint32_t first_ready(const struct tier *t, uint32_t layer)
{
    uint32_t frame = t->layer[layer].first;
    while (frame != PAGE_NONE && !is_ready(t, frame)) frame = t->frame[frame].next;
    const bool is_spared = frame != PAGE_NONE && layer == t->spared && is_wanted(t, frame);
    return is_spared ? PAGE_NONE : frame;
}

/* The same over all layers. The pages of a layer are used together, so layers are compared by
 * steps; within a step, earlier layers were used first. */
static uint32_t oldest(const struct tier *t)
{
    uint32_t best = PAGE_NONE;
    for (uint32_t layer = 0; layer < t->geom.n_layer; layer++) {
        const uint32_t frame = first_ready(t, layer);
        if (frame == PAGE_NONE) continue;
        if (best == PAGE_NONE || t->frame[frame].used < t->frame[best].used) best = frame;
    }
    return best;
}

/* Number of uses in the last 16 steps. */
static uint32_t uses(const struct tier *t, uint32_t frame)
{
    const uint32_t age = t->step - t->frame[frame].used;
    const uint32_t seen = age < HISTORY ? t->frame[frame].history << age : 0;
    return (uint32_t)__builtin_popcount(seen & ((1u << HISTORY) - 1));
}

/* Evicts up to n pages of a layer, the least frequently used ones first; returns their number. */
static uint32_t take_seldom(struct tier *t, uint32_t layer, uint32_t n)
{
    uint32_t count[HISTORY + 1] = {0}, taken = 0, most = 0, below = 0;
    for (uint32_t f = t->layer[layer].first; f != PAGE_NONE; f = t->frame[f].next)
        if (is_ready(t, f)) count[uses(t, f)]++;
    while (most < HISTORY && below + count[most] < n) below += count[most++];
    uint32_t ties = n - below; /* how many of the pages used `most` times */
    for (uint32_t f = t->layer[layer].first, next; f != PAGE_NONE && taken < n; f = next) {
        next = t->frame[f].next;
        if (!is_ready(t, f)) continue;
        const uint32_t n_use = uses(t, f);
        if (n_use > most || (n_use == most && ties == 0)) continue;
        if (n_use == most) ties--;
        tier_evict(t, f);
        taken++;
    }
    return taken;
}

/* Evicts up to n pages of a layer that were last used in the same step as `frame`. It is the oldest
 * step of all layers, and no earlier layer has pages of it, so they are the least recently used.
 * Returns their number. */
static uint32_t take_oldest(struct tier *t, uint32_t frame, uint32_t n)
{
    const uint32_t used = t->frame[frame].used;
    uint32_t taken = 0;
    for (uint32_t next; frame != PAGE_NONE && taken < n && t->frame[frame].used == used;
         frame = next) {
        next = t->frame[frame].next;
        if (!is_ready(t, frame)) continue;
        tier_evict(t, frame);
        taken++;
    }
    return taken;
}

void tier_evict_frames(struct tier *t, uint32_t n)
{
    while (n > 0) {
        const uint32_t frame = oldest(t);
        if (frame == PAGE_NONE) return;
        if (t->policy == SAC_TIER_STALE && is_wanted(t, frame)) break;
        n -= take_oldest(t, frame, n);
    }
    /* The current layer comes last. */
    for (uint32_t i = 1; n > 0 && i <= t->geom.n_layer; i++) {
        const uint32_t layer = (t->now + t->geom.n_layer - i) % t->geom.n_layer;
        if (layer != t->spared) n -= take_seldom(t, layer, n);
    }
}
