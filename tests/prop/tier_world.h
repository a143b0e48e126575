/* tier_world.h: a tier of a few pages whose disk tests may break: what a page holds is told by one
 * number, and whoever has written it knows what must be read. */
#ifndef SAC_TESTS_PROP_TIER_WORLD_H
#define SAC_TESTS_PROP_TIER_WORLD_H

#include "tier_use.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { N_LAYER = 3, N_PAGE = 60, N_FRAME = 14 };

/* More pages than there are transfers, so far from each other that no two go with one. */
enum { N_WAIT = DISK_DEPTH + 8, APART = 4, N_ID = N_WAIT * APART };

struct world {
    struct tier tier;
    uint8_t *block;
    size_t block_bytes;
    uint8_t *frames;
    uint32_t frame_of[N_ID];
    uint32_t content[N_ID]; /* 0: not alive, or lost for good */
    uint64_t rng;
};

static inline void world_init_frames(struct world *w, uint64_t seed, const struct disk_calls *calls,
                                     uint32_t n_frame)
{
    struct page_geom g = {.n_layer = N_LAYER,
                          .n_kv_head = 1,
                          .head_dim = 32,
                          .type_k = seed & 1 ? SAC_KV_Q8 : SAC_KV_F16,
                          .type_v = seed & 1 ? SAC_KV_Q8 : SAC_KV_F16};
    page_geom_init(&g);
    memset(w, 0, sizeof *w);
    w->rng = seed;
    w->frames = malloc(n_frame * g.bytes);
    for (int i = 0; i < N_ID; i++) w->frame_of[i] = PAGE_NONE;
    w->tier = (struct tier){.geom = g,
                            .n_page = N_ID,
                            .n_frame = n_frame,
                            .frames = w->frames,
                            .frame_of = w->frame_of,
                            .policy = seed & 2 ? SAC_TIER_LRU : SAC_TIER_STALE};
    w->block = tier_make(&w->tier, &w->block_bytes, calls);
}

static inline void world_init(struct world *w, uint64_t seed, const struct disk_calls *calls)
{
    world_init_frames(w, seed, calls, N_FRAME);
}

static inline void world_free(struct world *w)
{
    tier_stop(&w->tier);
    mem_unmap(w->block, w->block_bytes);
    free(w->frames);
}

static inline void put(uint8_t *page, size_t n, uint32_t content)
{
    for (size_t i = 0; i < n; i += 4) {
        const uint32_t word = content * 2654435761u + (uint32_t)i;
        memcpy(page + i, &word, 4);
    }
}

static inline bool has(const uint8_t *page, size_t n, uint32_t content)
{
    for (size_t i = 0; i < n; i += 4) {
        const uint32_t word = content * 2654435761u + (uint32_t)i;
        if (memcmp(page + i, &word, 4) != 0) return false;
    }
    return true;
}

static inline void check_read(struct world *w, const page_id *id, uint32_t n, sac_status status)
{
    uint32_t n_lost = 0;
    const size_t bytes = w->tier.geom.bytes;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *page = w->frames + w->frame_of[id[i]] * bytes;
        if (has(page, bytes, w->content[id[i]])) continue;
        for (size_t j = 0; j < bytes; j++) assert_int_equal(page[j], 0);
        n_lost++;
    }
    assert_int_equal(status, n_lost ? SAC_ERR_IO : SAC_OK);
}

static inline void settle_and_check(struct world *w)
{
    tier_settle(&w->tier);
    assert_true(tier_check(&w->tier));
    assert_int_equal(w->tier.n_pinned, 0);
    for (uint32_t i = 0; i < N_PAGE; i++)
        if (w->frame_of[i] != PAGE_NONE) assert_true(w->content[i] != 0);
}

static _Atomic bool gate_is_shut;

static inline ssize_t gated_read(int fd, void *to, size_t n, off_t at)
{
    while (gate_is_shut) usleep(100);
    return pread(fd, to, n, at);
}

struct waiter {
    struct world *w;
    page_id id[N_WAIT];
    sac_status status;
};

#endif
