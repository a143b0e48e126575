/* test_tier_frames.c: which pages of a layer give their frames first, what a frame holds whose page
 * was never written, how many transfers writes leave to reads, and how many frames guesses take. */
#include "../prop/tier_use.h"

#include <stdatomic.h>
#include <string.h>

/* Pages so far from each other that no two go with one transfer. */
enum {
    N_FRAME = 4,
    N_CYCLE = 6,
    APART = 4,
    N_GUESS = 2 * DISK_DEPTH + 6,
    N_PAGE = N_GUESS * APART
};

struct world {
    struct tier tier;
    uint8_t *block, *frames;
    size_t block_bytes, frame_bytes;
    uint32_t frame_of[N_PAGE];
};

static void world_init(struct world *w, sac_tier_policy policy, uint32_t n_frame,
                       const struct disk_calls *calls)
{
    struct page_geom g = {.n_layer = 2, .n_kv_head = 1, .head_dim = 32};
    page_geom_init(&g);
    w->frame_bytes = n_frame * g.bytes;
    w->frames = mem_map(w->frame_bytes);
    for (page_id id = 0; id < N_PAGE; id++) w->frame_of[id] = PAGE_NONE;
    w->tier = (struct tier){.geom = g,
                            .n_page = N_PAGE,
                            .n_frame = n_frame,
                            .frames = w->frames,
                            .frame_of = w->frame_of,
                            .policy = policy};
    w->block = tier_make(&w->tier, &w->block_bytes, calls);
}

static void world_free(struct world *w)
{
    tier_settle(&w->tier);
    assert_true(tier_check(&w->tier));
    tier_stop(&w->tier);
    mem_unmap(w->block, w->block_bytes);
    mem_unmap(w->frames, w->frame_bytes);
}

static void write_page(struct world *w, page_id id, uint32_t layer)
{
    tier_born(&w->tier, id, layer);
    assert_int_equal(tier_open(&w->tier, &id, 1), SAC_OK);
    tier_close(&w->tier, &id, 1);
    tier_settle(&w->tier);
}

/* Pages [0, n) but `gone` are in memory. */
static void expect_gone(const struct world *w, page_id n, page_id gone)
{
    for (page_id id = 0; id < n; id++) assert_int_equal(w->frame_of[id] == PAGE_NONE, id == gone);
}

/* The page that came first but was used again stays. */
static void the_longest_unused_goes_first(void **state)
{
    static const sac_tier_policy policy[] = {SAC_TIER_STALE, SAC_TIER_LRU};
    static const page_id first = 0;
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct world w = {0};
        world_init(&w, policy[i], N_FRAME, NULL);
        for (page_id id = 0; id < N_FRAME; id++) write_page(&w, id, 0);
        tier_begin(&w.tier);
        tier_use(&w.tier, 0, &first, 1);
        tier_begin(&w.tier);
        tier_begin(&w.tier);
        write_page(&w, N_FRAME, 0);
        expect_gone(&w, N_FRAME + 1, 1);
        world_free(&w);
    }
}

/* Of pages that were used in the same step, those of the layer that came first in it, whatever
 * layer asks for their frames. */
static void layers_of_one_step_go_in_its_order(void **state)
{
    static const sac_tier_policy policy[] = {SAC_TIER_STALE, SAC_TIER_LRU};
    static const page_id of[] = {0, 1};
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct world w = {0};
        world_init(&w, policy[i / 2], N_FRAME, NULL);
        for (uint32_t layer = 0; layer < 2; layer++) write_page(&w, of[layer], layer);
        tier_begin(&w.tier);
        for (uint32_t layer = 0; layer < 2; layer++) tier_use(&w.tier, layer, &of[layer], 1);
        tier_begin(&w.tier);
        tier_begin(&w.tier);
        tier_enter(&w.tier, i % 2);
        tier_evict_frames(&w.tier, 1);
        expect_gone(&w, 2, of[0]);
        world_free(&w);
    }
}

/* Page 2 is used in the last step alone, page 1 in every second one, the others in all: the other
 * layer, which has read nothing yet, takes their frames in that order. */
static void seldom_chosen_pages_go_first(void **state)
{
    static const uint32_t every[N_FRAME] = {1, 2, N_CYCLE, 1};
    static const page_id other[] = {N_FRAME, N_FRAME + 1};
    struct world w = {0};
    (void)state;
    world_init(&w, SAC_TIER_STALE, N_FRAME, NULL);
    for (page_id id = 0; id < N_FRAME + 2; id++) write_page(&w, id, id >= N_FRAME);
    tier_evict_frames(&w.tier, N_FRAME);
    for (uint32_t step = 1; step <= N_CYCLE; step++) {
        tier_begin(&w.tier);
        for (page_id id = 0; id < N_FRAME; id++)
            if (step % every[id] == 0) tier_use(&w.tier, 0, &id, 1);
    }
    tier_begin(&w.tier);
    tier_use(&w.tier, 1, other, 1);
    expect_gone(&w, N_FRAME, 2);
    tier_use(&w.tier, 1, other, 2);
    assert_int_equal(w.frame_of[1], PAGE_NONE);
    assert_true(w.frame_of[0] != PAGE_NONE && w.frame_of[3] != PAGE_NONE);
    world_free(&w);
}

/* It is told, and what another page has left in the frame is not seen. */
static void a_page_that_was_never_written_is_empty(void **state)
{
    static const page_id written = 0, never = 1;
    struct world w = {0};
    (void)state;
    world_init(&w, SAC_TIER_STALE, 1, NULL);
    memset(w.frames, 0x5a, w.frame_bytes);
    write_page(&w, written, 0);
    tier_born(&w.tier, never, 0);
    assert_int_equal(tier_acquire(&w.tier, &never, 1), SAC_ERR_IO);
    for (size_t i = 0; i < w.frame_bytes; i++) assert_int_equal(w.frames[i], 0);
    tier_release(&w.tier, &never, 1);
    world_free(&w);
}

static _Atomic bool writes_are_shut, reads_are_shut;

static ssize_t gated_read(int fd, void *to, size_t n, off_t at)
{
    while (reads_are_shut) usleep(100);
    return pread(fd, to, n, at);
}

static ssize_t gated_write(int fd, const void *from, size_t n, off_t at)
{
    while (writes_are_shut) usleep(100);
    return pwrite(fd, from, n, at);
}

/* However many pages wait to be written, who asks for one of the disk has it meanwhile. */
static void reads_do_not_wait_for_writes(void **state)
{
    enum { N = DISK_DEPTH + 2 };
    static const struct disk_calls calls = {.read = gated_read, .write = gated_write};
    struct world w = {0};
    page_id id[N];
    const page_id old = APART * N;
    (void)state;
    world_init(&w, SAC_TIER_STALE, N + 1, &calls);
    write_page(&w, old, 0);
    tier_evict_frames(&w.tier, 1);
    assert_int_equal(w.frame_of[old], PAGE_NONE);
    writes_are_shut = true;
    for (uint32_t i = 0; i < N; i++) {
        id[i] = APART * i;
        tier_born(&w.tier, id[i], 0);
    }
    assert_int_equal(tier_open(&w.tier, id, N), SAC_OK);
    tier_close(&w.tier, id, N);
    pthread_mutex_lock(&w.tier.lock);
    const uint32_t n_busy = w.tier.n_busy;
    pthread_mutex_unlock(&w.tier.lock);
    assert_in_range(n_busy, 1, DISK_DEPTH - 1);
    tier_use(&w.tier, 0, &old, 1);
    writes_are_shut = false;
    world_free(&w);
}

/* While layer 0 reads what it has not read in the last step, the pages beside are guessed of layer
 * 1, n at most, which then asks for another one. Returns how many were guessed; if `late`, not all
 * have begun to come until then. */
static uint64_t guess_once(struct world *w, const page_id *here, const page_id *next, uint32_t n,
                           bool late)
{
    static const page_id other = 1;
    page_id scratch[N_GUESS];
    struct tier *t = &w->tier;
    tier_evict_frames(t, t->n_ready);
    tier_use(&w->tier, 1, &other, 1);
    for (int i = 0; i < 3; i++) tier_begin(t);
    t->worth[TIER_BESIDE] = (struct tier_worth){500, 500};
    tier_enter(t, 0);
    assert_int_equal(tier_acquire(t, here, n), SAC_OK);
    const sac_tier_stats before = tier_get_stats(t);
    reads_are_shut = late;
    tier_follow(t, &(struct tier_follow){.layer = 1,
                                         .here = here,
                                         .next = next,
                                         .stride = n,
                                         .n_lane = 1,
                                         .n = n,
                                         .scratch = scratch,
                                         .room = N_GUESS});
    const uint64_t n_guess = tier_get_stats(t).n_ahead - before.n_ahead;
    while (late && tier_get_stats(t).n_read - before.n_read < DISK_DEPTH) usleep(100);
    if (!late) tier_settle(t);
    tier_release(t, here, n);
    tier_use(&w->tier, 1, &other, 1);
    reads_are_shut = false;
    tier_settle(t);
    return n_guess;
}

/* As many as have come in time, twice as many where all have that were allowed. */
static void guesses_are_as_many_as_come_in_time(void **state)
{
    static const struct disk_calls calls = {.read = gated_read, .write = gated_write};
    static const struct {
        bool is_late;
        uint32_t n, want;
    } round[] = {{false, N_GUESS, DISK_DEPTH},
                 {true, N_GUESS, 2 * DISK_DEPTH},
                 {false, N_GUESS, DISK_DEPTH},
                 {false, 8, 8},
                 {false, N_GUESS, 2 * DISK_DEPTH}};
    struct world w = {0};
    page_id here[N_GUESS], next[N_GUESS];
    (void)state;
    world_init(&w, SAC_TIER_STALE, 2 * N_GUESS + 1, &calls);
    write_page(&w, 1, 1);
    for (uint32_t i = 0; i < N_GUESS; i++) {
        write_page(&w, here[i] = APART * i, 0);
        write_page(&w, next[i] = APART * i + 2, 1);
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(guess_once(&w, here, next, round[i].n, round[i].is_late), round[i].want);
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_longest_unused_goes_first),
        cmocka_unit_test(layers_of_one_step_go_in_its_order),
        cmocka_unit_test(seldom_chosen_pages_go_first),
        cmocka_unit_test(a_page_that_was_never_written_is_empty),
        cmocka_unit_test(reads_do_not_wait_for_writes),
        cmocka_unit_test(guesses_are_as_many_as_come_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
