/* tier_stats.c: what a tier reports about itself: why pages could not be fetched, its counters, and
 * whether the invariants of tier.c hold. */
#include "kv/tier.h"

#include <string.h>

sac_status tier_explain(struct tier *t, sac_status status, sac_error *err)
{
    if (status == SAC_OK) return SAC_OK;
    pthread_mutex_lock(&t->lock);
    if (status == SAC_ERR_CONTEXT)
        error_set(err, status,
                  "more pages are needed at once than the %u that fit into %llu KiB of memory "
                  "above %s: give more, or let a sparse method read fewer",
                  t->n_frame, (unsigned long long)((uint64_t)t->n_frame * t->geom.bytes >> 10),
                  disk_path(t->disk));
    else
        error_set(err, status, "page %u of layer %u could not be %s %s: %s", t->lost,
                  t->page[t->lost].layer, t->what, t->lost_in,
                  t->error ? strerror(t->error) : "its bytes are missing or not those written");
    pthread_mutex_unlock(&t->lock);
    return status;
}

sac_tier_stats tier_get_stats(struct tier *t)
{
    if (!t) return (sac_tier_stats){0};
    pthread_mutex_lock(&t->lock);
    sac_tier_stats s = t->stats;
    pthread_mutex_unlock(&t->lock);
    s.fast_bytes = (uint64_t)t->n_frame * t->geom.bytes;
    s.card_bytes = (uint64_t)t->n_page * t->card_bytes;
    s.file_bytes = (uint64_t)t->n_page * disk_slot_bytes(t->disk);
    s.backend = disk_backend_name(t->disk);
    s.n_layer = t->geom.n_layer;
    for (uint32_t i = 0; i < t->geom.n_layer; i++) {
        s.n_hit += t->layer[i].n_hit;
        s.n_fetch += t->layer[i].n_fetch;
    }
    return s;
}

void tier_settle(struct tier *t)
{
    pthread_mutex_lock(&t->lock);
    t->n_waiting_else++;
    while (t->n_busy || !tier_read_is_empty(t)) pthread_cond_wait(&t->change, &t->lock);
    t->n_waiting_else--;
    pthread_mutex_unlock(&t->lock);
}

static bool frame_is_right(const struct tier *t, uint32_t f)
{
    const struct tier_frame *frame = &t->frame[f];
    if (frame->state == TIER_FREE) return frame->page == PAGE_NONE && frame->pins == 0;
    if (frame->page >= t->n_page || t->frame_of[frame->page] != f) return false;
    switch ((enum tier_state)frame->state) {
    case TIER_CLEAN: return tier_has_copy(t, frame->page);
    case TIER_OPEN:
    case TIER_DIRTY:
    case TIER_STUCK: return !tier_has_copy(t, frame->page);
    case TIER_LOST: return frame->pins > 0;
    default: return false; /* only while transfers are in flight */
    }
}

static uint32_t count_listed(const struct tier *t)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->geom.n_layer; i++)
        for (uint32_t f = t->layer[i].first; f != PAGE_NONE; f = t->frame[f].next)
            n += t->page[t->frame[f].page].layer == i;
    return n;
}

bool tier_check(struct tier *t)
{
    uint32_t n_ready = 0, n_pinned = 0, n_bound = 0, n_framed = 0;
    pthread_mutex_lock(&t->lock);
    bool is_right = t->n_busy == 0;
    for (uint32_t f = 0; f < t->n_frame; f++) {
        is_right = is_right && frame_is_right(t, f);
        n_ready += tier_is_ready(&t->frame[f]);
        n_pinned += t->frame[f].pins > 0;
        n_bound += t->frame[f].state != TIER_FREE;
    }
    for (page_id id = 0; id < t->n_page; id++) {
        n_framed += t->frame_of[id] != PAGE_NONE;
        is_right = is_right && !t->page[id].is_moving;
    }
    is_right = is_right && n_ready == t->n_ready && n_pinned == t->n_pinned &&
               n_bound + t->n_free == t->n_frame && n_framed == n_bound &&
               count_listed(t) == n_bound;
    pthread_mutex_unlock(&t->lock);
    return is_right;
}
