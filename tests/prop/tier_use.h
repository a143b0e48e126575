/* tier_use.h: what every test of tiers does to one: it starts it with a file of its own, and reads
 * pages as a layer of a step does. A test that fails here fails as a whole. */
#ifndef SAC_TESTS_PROP_TIER_USE_H
#define SAC_TESTS_PROP_TIER_USE_H

#include "kv/tier.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

static inline void name_file(char path[80], pid_t pid)
{
    snprintf(path, 80, P_tmpdir "/saccade-prop-%d", (int)pid);
}

/* Of t the caller has set geom, n_page, n_frame, frames, frame_of and policy. Returns the block of
 * *out_bytes that t's tables lie in, which the caller gives back with mem_unmap when t has stopped.
 * The file has no name any more. */
static inline uint8_t *tier_make(struct tier *t, size_t *out_bytes, const struct disk_calls *calls)
{
    char path[80];
    sac_error err;
    struct arena a = {0};
    tier_plan(t, &a);
    *out_bytes = a.used;
    uint8_t *const block = mem_map(a.used);
    a = (struct arena){.base = block, .capacity = a.used};
    tier_plan(t, &a);
    name_file(path, getpid());
    if (tier_start(t, path, 1u << 24, calls, &err) != SAC_OK) fail_msg("%s", err.msg);
    assert_int_equal(access(path, F_OK), -1);
    return block;
}

/* Layer `layer` of the step reads n pages and is done with them. */
static inline void tier_use(struct tier *t, uint32_t layer, const page_id *id, uint32_t n)
{
    tier_enter(t, layer);
    assert_int_equal(tier_acquire(t, id, n), SAC_OK);
    tier_release(t, id, n);
}

#endif
