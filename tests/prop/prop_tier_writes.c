/* prop_tier_writes.c: what goes to a tier's disk with one write, when, and what a failure does. */
#include "tier_world.h"

#include <errno.h>
#include <pthread.h>

static void write_together(struct world *w, const page_id *id, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) tier_born(&w->tier, id[i], 0);
    assert_int_equal(tier_open(&w->tier, id, n), SAC_OK);
    for (uint32_t i = 0; i < n; i++)
        put(w->frames + w->frame_of[id[i]] * w->tier.geom.bytes, w->tier.geom.bytes,
            w->content[id[i]] = id[i] + 1);
    tier_close(&w->tier, id, n);
}

static void read_back(struct world *w, const page_id *id, uint32_t n)
{
    tier_evict_frames(&w->tier, w->tier.n_ready);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(w->frame_of[id[i]], PAGE_NONE);
    check_read(w, id, n, tier_acquire(&w->tier, id, n));
    tier_release(&w->tier, id, n);
    settle_and_check(w);
}

/* Pages that lie side by side go with one write, in whatever order they are closed: those of a
 * chunk come index by index and lie head by head. */
static void neighbours_go_together(void **state)
{
    (void)state;
    static const page_id by_index[] = {20, 40, 21, 41, 22, 42, 23, 43, 24, 44},
                         backwards[] = {9, 8, 7, 5, 4};
    for (uint64_t seed = 4; seed < 6; seed++) {
        struct world w;
        world_init(&w, seed, NULL);
        const size_t slot = disk_slot_bytes(w.tier.disk);
        write_together(&w, by_index, 10);
        settle_and_check(&w);
        assert_int_equal(tier_get_stats(&w.tier).n_write, 2);
        assert_int_equal(tier_get_stats(&w.tier).bytes_written, 10 * slot);
        read_back(&w, by_index, 10);
        write_together(&w, backwards, 5);
        settle_and_check(&w);
        assert_int_equal(tier_get_stats(&w.tier).n_write, 4);
        read_back(&w, backwards, 5);
        world_free(&w);
    }
}

/* No more go with one than its buffer holds. */
static void many_neighbours_go_with_several(void **state)
{
    (void)state;
    struct world w;
    page_id id[2 * DISK_RUN + 1];
    for (uint32_t i = 0; i < 2 * DISK_RUN + 1; i++) id[i] = (i + DISK_RUN) % (2 * DISK_RUN + 1);
    world_init_frames(&w, 4, NULL, 2 * DISK_RUN + 1);
    write_together(&w, id, 2 * DISK_RUN + 1);
    settle_and_check(&w);
    assert_int_equal(tier_get_stats(&w.tier).n_write, 3);
    read_back(&w, id, 2 * DISK_RUN + 1);
    world_free(&w);
}

/* Writes that touch these bytes fail. */
static _Atomic off_t no_room_from, no_room_end;

static ssize_t scratched_write(int fd, const void *from, size_t n, off_t at)
{
    if (at < no_room_end && at + (off_t)n > no_room_from) return errno = EIO, -1;
    return pwrite(fd, from, n, at);
}

/* A place that cannot be written keeps its own page in memory and no other. */
static void a_place_that_takes_nothing_is_its_pages_alone(void **state)
{
    (void)state;
    static const struct disk_calls calls = {.read = gated_read, .write = scratched_write};
    static const page_id id[] = {1, 2, 3, 4, 5}, more[] = {20, 21, 22, 23};
    struct world w;
    world_init_frames(&w, 4, &calls, 5);
    no_room_from = 3 * (off_t)disk_slot_bytes(w.tier.disk);
    no_room_end = no_room_from + 1;
    write_together(&w, id, 5);
    settle_and_check(&w);
    write_together(&w, more, 4); /* for which the others make room */
    settle_and_check(&w);
    for (uint32_t i = 0; i < 5; i++) assert_int_equal(w.frame_of[id[i]] != PAGE_NONE, id[i] == 3);
    no_room_end = 0;
    read_back(&w, more, 4);
    check_read(&w, id, 5, tier_acquire(&w.tier, id, 5));
    tier_release(&w.tier, id, 5);
    settle_and_check(&w);
    world_free(&w);
}

static void *acquire_one(void *arg)
{
    struct waiter *a = arg;
    a->status = tier_acquire(&a->w->tier, a->id, 1);
    return NULL;
}

/* Nothing is written while somebody waits for a page that is read, unless frames are wanted that
 * only a write can free. */
static void writes_give_way_to_reads(void **state)
{
    (void)state;
    static const struct disk_calls calls = {.read = gated_read, .write = scratched_write};
    static const page_id two[] = {30, 50}, three[] = {32, 34, 36};
    struct world w;
    struct waiter a = {.w = &w, .id = {4}};
    pthread_t thread;
    world_init_frames(&w, 4, &calls, 5);
    write_together(&w, a.id, 1);
    settle_and_check(&w);
    tier_evict_frames(&w.tier, 1);
    gate_is_shut = true;
    assert_int_equal(pthread_create(&thread, NULL, acquire_one, &a), 0);
    for (bool waits = false; !waits; usleep(100)) {
        pthread_mutex_lock(&w.tier.lock);
        waits = w.tier.n_missed == 1 && w.tier.n_busy == 1;
        pthread_mutex_unlock(&w.tier.lock);
    }
    write_together(&w, two, 2);
    assert_int_equal(tier_get_stats(&w.tier).n_write, 1);
    write_together(&w, three, 3); /* of five frames one is held, and two are new */
    assert_true(tier_get_stats(&w.tier).n_write > 1);
    gate_is_shut = false;
    pthread_join(thread, NULL);
    check_read(&w, a.id, 1, a.status);
    tier_release(&w.tier, a.id, 1);
    settle_and_check(&w);
    assert_int_equal(tier_get_stats(&w.tier).n_write, 1 + 5);
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_go_together),
        cmocka_unit_test(many_neighbours_go_with_several),
        cmocka_unit_test(a_place_that_takes_nothing_is_its_pages_alone),
        cmocka_unit_test(writes_give_way_to_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
