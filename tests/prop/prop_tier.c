/* prop_tier.c: random writes, reads, drops and read-ahead on a tier whose disk fails, is slow and
 * moves less than it was asked to, under both policies. After each operation what a page holds is
 * what was written to it or a failure was told, and when nothing is under way the invariants of
 * tier.c hold. Two threads read at the same time. */
#include "tier_world.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include <cmocka.h>

enum { N_STEP = 700 };

/* What the disk does, one of so many times; 0: never. */
static _Atomic uint32_t fail_reads, fail_writes, flip_reads, short_moves, slow_moves;
static _Atomic uint64_t n_call;

static bool strikes(uint32_t one_of)
{
    const uint64_t n = atomic_fetch_add(&n_call, 1);
    return one_of && (n * 2654435761u >> 7) % one_of == 0;
}

static ssize_t bad_read(int fd, void *to, size_t n, off_t at)
{
    if (strikes(slow_moves)) usleep(300);
    if (strikes(fail_reads)) return errno = EIO, -1;
    if (strikes(short_moves)) n = n > 4096 ? 4096 : n;
    const ssize_t done = pread(fd, to, n, at);
    if (done > 0 && strikes(flip_reads)) ((uint8_t *)to)[7] ^= 16;
    return done;
}

static ssize_t bad_write(int fd, const void *from, size_t n, off_t at)
{
    if (strikes(slow_moves)) usleep(300);
    if (strikes(fail_writes)) return errno = ENOSPC, -1;
    if (strikes(short_moves)) n = n > 4096 ? 4096 : n;
    return pwrite(fd, from, n, at);
}

static uint32_t draw(struct world *w, uint32_t n)
{
    w->rng = w->rng * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(w->rng >> 33) % n;
}

/* Up to `most` different pages that are alive, or are not, in rising order. */
static uint32_t choose(struct world *w, page_id *id, uint32_t most, bool alive)
{
    uint32_t n = 0;
    const uint32_t want = 1 + draw(w, most), from = draw(w, N_PAGE);
    for (uint32_t i = 0; i < N_PAGE && n < want; i++) {
        const page_id at = (from + i) % N_PAGE;
        if ((w->content[at] != 0) == alive && draw(w, 3)) id[n++] = at;
    }
    return n;
}

static void write_pages(struct world *w)
{
    page_id id[6];
    const uint32_t n = choose(w, id, 6, false);
    for (uint32_t i = 0; i < n; i++) tier_born(&w->tier, id[i], id[i] % N_LAYER);
    const sac_status status = tier_open(&w->tier, id, n);
    if (status != SAC_OK) {
        assert_int_equal(status, SAC_ERR_BUSY); /* every write has failed */
        assert_true(fail_writes > 0);
        for (uint32_t i = 0; i < n; i++) tier_drop(&w->tier, id[i]);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        w->content[id[i]] = 1 + draw(w, 1u << 30);
        put(w->frames + w->frame_of[id[i]] * w->tier.geom.bytes, w->tier.geom.bytes,
            w->content[id[i]]);
    }
    tier_close(&w->tier, id, n);
}

static void read_pages(struct world *w)
{
    page_id id[10];
    const uint32_t n = choose(w, id, 10, true);
    const sac_status status = tier_acquire(&w->tier, id, n);
    if (!tier_holds(status)) {
        assert_int_equal(status, SAC_ERR_BUSY);
        assert_true(fail_writes > 0);
        return;
    }
    check_read(w, id, n, status);
    if (status == SAC_ERR_IO) assert_true(fail_reads + flip_reads > 0);
    tier_release(&w->tier, id, n);
}

static void drop_pages(struct world *w)
{
    page_id id[8];
    const uint32_t n = choose(w, id, 8, true);
    for (uint32_t i = 0; i < n; i++) {
        tier_drop(&w->tier, id[i]);
        w->content[id[i]] = 0;
    }
}

/* Tables of two lanes, as they come; no page stands twice in one. */
static void follow(struct world *w)
{
    enum { N = 8 };
    page_id here[N], next[N], scratch[N];
    for (uint32_t i = 0; i < N; i++) here[i] = next[i] = PAGE_NONE;
    choose(w, here, N, true);
    choose(w, next, N, true);
    tier_follow(&w->tier, &(struct tier_follow){.layer = draw(w, N_LAYER),
                                                .here = here,
                                                .next = next,
                                                .stride = N / 2,
                                                .n_lane = 2,
                                                .n = N / 2,
                                                .scratch = scratch,
                                                .room = draw(w, N + 1)});
}

static void operate(struct world *w)
{
    page_id id[20];
    switch (draw(w, 9)) {
    case 0:
    case 1: write_pages(w); break;
    case 2: drop_pages(w); break;
    case 3: tier_prefetch(&w->tier, TIER_CHOSEN + draw(w, 3), id, choose(w, id, 20, true)); break;
    case 4: tier_begin(&w->tier); break;
    case 5: tier_enter(&w->tier, draw(w, N_LAYER)); break;
    case 6: follow(w); break;
    default: read_pages(w); break;
    }
    if (draw(w, 20) == 0) settle_and_check(w);
}

static void live(uint64_t seed)
{
    static const struct disk_calls calls = {.read = bad_read, .write = bad_write};
    struct world w;
    world_init(&w, seed, &calls);
    for (int i = 0; i < N_STEP; i++) operate(&w);
    fail_reads = fail_writes = flip_reads = 0;
    settle_and_check(&w);
    read_pages(&w);
    world_free(&w);
}

static void pages_come_back_or_a_failure_is_told(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        fail_reads = seed % 3 == 1 ? 30 : 0;
        flip_reads = seed % 3 == 2 ? 30 : 0;
        fail_writes = seed % 4 == 3 ? 8 : 0;
        short_moves = 5;
        slow_moves = seed % 2 ? 40 : 0;
        live(seed);
    }
    slow_moves = short_moves = 0;
}

/* When no write succeeds and all is new, whoever wants room is told; later writes are tried
 * again. */
static void a_full_disk_is_told(void **state)
{
    (void)state;
    static const struct disk_calls calls = {.read = bad_read, .write = bad_write};
    struct world w;
    page_id id[N_FRAME + 1];
    world_init(&w, 4, &calls);
    for (uint32_t i = 0; i <= N_FRAME; i++) {
        id[i] = i;
        tier_born(&w.tier, i, 0);
    }
    fail_writes = 1;
    assert_int_equal(tier_open(&w.tier, id, N_FRAME + 1), SAC_ERR_CONTEXT);
    assert_int_equal(tier_open(&w.tier, id, N_FRAME), SAC_OK);
    for (uint32_t i = 0; i < N_FRAME; i++)
        put(w.frames + w.frame_of[i] * w.tier.geom.bytes, w.tier.geom.bytes, w.content[i] = i + 1);
    tier_close(&w.tier, id, N_FRAME);
    assert_int_equal(tier_open(&w.tier, id + N_FRAME, 1), SAC_ERR_BUSY);
    sac_error err;
    assert_int_equal(tier_explain(&w.tier, SAC_ERR_BUSY, &err), SAC_ERR_BUSY);
    assert_non_null(strstr(err.msg, "could not be written to"));
    assert_non_null(strstr(err.msg, "No space left"));
    fail_writes = 0;
    assert_int_equal(tier_open(&w.tier, id + N_FRAME, 1), SAC_OK);
    put(w.frames + w.frame_of[N_FRAME] * w.tier.geom.bytes, w.tier.geom.bytes,
        w.content[N_FRAME] = N_FRAME + 1);
    tier_close(&w.tier, id + N_FRAME, 1);
    for (uint32_t i = 0; i < N_FRAME; i++) {
        assert_int_equal(tier_acquire(&w.tier, &id[i], 1), SAC_OK);
        check_read(&w, &id[i], 1, SAC_OK);
        tier_release(&w.tier, &id[i], 1);
    }
    settle_and_check(&w);
    world_free(&w);
}

/* ---- Threads ---- */

struct reader {
    struct world *w;
    uint64_t seed;
    uint32_t n_wrong;
};

static void *read_always(void *arg)
{
    struct reader *r = arg;
    struct world mine = {.rng = r->seed};
    for (int i = 0; i < 300; i++) {
        page_id id[7];
        memcpy(mine.content, r->w->content, sizeof mine.content);
        const uint32_t n = choose(&mine, id, 7, true);
        if (i % 3 == 0) tier_prefetch(&r->w->tier, i % 2 ? TIER_VISIT : TIER_CHOSEN, id, n);
        r->n_wrong += tier_acquire(&r->w->tier, id, n) != SAC_OK;
        for (uint32_t j = 0; j < n; j++)
            r->n_wrong += !has(r->w->frames + r->w->frame_of[id[j]] * r->w->tier.geom.bytes,
                               r->w->tier.geom.bytes, r->w->content[id[j]]);
        tier_release(&r->w->tier, id, n);
    }
    return NULL;
}

static void threads_read_together(void **state)
{
    (void)state;
    for (uint64_t seed = 4; seed < 8; seed++) {
        struct world w;
        struct reader reader[2];
        pthread_t thread[2];
        world_init(&w, seed, NULL);
        while (w.content[N_PAGE / 2] == 0 || w.content[5] == 0) write_pages(&w);
        for (int i = 0; i < 2; i++) {
            reader[i] = (struct reader){.w = &w, .seed = seed * 10 + (uint64_t)i};
            assert_int_equal(pthread_create(&thread[i], NULL, read_always, &reader[i]), 0);
        }
        for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
        for (int i = 0; i < 2; i++) assert_int_equal(reader[i].n_wrong, 0);
        settle_and_check(&w);
        world_free(&w);
    }
}

static void *acquire_all(void *arg)
{
    struct waiter *a = arg;
    a->status = tier_acquire(&a->w->tier, a->id, N_WAIT);
    return NULL;
}

/* Pages that a thread has asked for, and for which no transfer is left yet, stay its own when
 * somebody wants to fetch them ahead. */
static void ahead_leaves_what_others_wait_for(void **state)
{
    (void)state;
    static const struct disk_calls calls = {.read = gated_read, .write = bad_write};
    struct world w;
    struct waiter a = {.w = &w};
    pthread_t thread;
    world_init_frames(&w, 4, &calls, N_WAIT);
    for (uint32_t i = 0; i < N_WAIT; i++) {
        const page_id id = a.id[i] = i * APART;
        tier_born(&w.tier, id, 0);
        assert_int_equal(tier_open(&w.tier, &id, 1), SAC_OK);
        put(w.frames + w.frame_of[id] * w.tier.geom.bytes, w.tier.geom.bytes,
            w.content[id] = id + 1);
        tier_close(&w.tier, &id, 1);
    }
    settle_and_check(&w);
    tier_evict_frames(&w.tier, N_WAIT);
    gate_is_shut = true;
    assert_int_equal(pthread_create(&thread, NULL, acquire_all, &a), 0);
    for (bool all = false; !all;) {
        pthread_mutex_lock(&w.tier.lock);
        all = w.tier.n_busy == DISK_DEPTH;
        pthread_mutex_unlock(&w.tier.lock);
    }
    tier_prefetch(&w.tier, TIER_PART, a.id, N_WAIT);
    tier_enter(&w.tier, 1);
    gate_is_shut = false;
    pthread_join(thread, NULL);
    check_read(&w, a.id, N_WAIT, a.status);
    tier_release(&w.tier, a.id, N_WAIT);
    settle_and_check(&w);
    world_free(&w);
}

static void write_one(struct world *w, page_id id, uint32_t layer)
{
    tier_born(&w->tier, id, layer);
    assert_int_equal(tier_open(&w->tier, &id, 1), SAC_OK);
    put(w->frames + w->frame_of[id] * w->tier.geom.bytes, w->tier.geom.bytes,
        w->content[id] = id + 1);
    tier_close(&w->tier, &id, 1);
    tier_settle(&w->tier);
}

/* While layer 0 reads page 4, which it has not read in the last step, of layer 1 page 12 is
 * fetched, which was read in the last step, and then 14, beside 4, as far as there is room without
 * the other pages that layer 1 read in the last step; 15 is not, for 5 is nothing new. */
static void check_follow(uint64_t seed, uint32_t n_frame, bool has_room_for_both)
{
    static const page_id here[] = {0, 1, 2, 3, 4, 5}, next[] = {10, 11, 12, 13, 14, 15};
    static const page_id first[] = {0, 1, 5}, second[] = {10, 11, 12, 13}, third[] = {20},
                         now[] = {0, 1, 4, 5};
    struct world w;
    page_id scratch[8];
    world_init_frames(&w, seed, NULL, n_frame);
    for (uint32_t i = 0; i < 6; i++) {
        write_one(&w, here[i], 0);
        write_one(&w, next[i], 1);
    }
    write_one(&w, 20, 2);
    tier_evict_frames(&w.tier, w.tier.n_ready);
    tier_begin(&w.tier);
    tier_begin(&w.tier);
    tier_use(&w.tier, 0, first, 3);
    tier_use(&w.tier, 1, second, 4);
    tier_use(&w.tier, 2, third, 1);
    tier_evict(&w.tier, w.frame_of[12]);
    tier_begin(&w.tier);
    tier_enter(&w.tier, 0);
    assert_int_equal(tier_acquire(&w.tier, now, 4), SAC_OK);
    tier_follow(&w.tier, &(struct tier_follow){.layer = 1,
                                               .here = here,
                                               .next = next,
                                               .stride = 3,
                                               .n_lane = 2,
                                               .n = 3,
                                               .scratch = scratch,
                                               .room = 8});
    tier_settle(&w.tier);
    assert_int_equal(tier_get_stats(&w.tier).n_ahead, has_room_for_both ? 2 : 1);
    for (uint32_t i = 0; i < 4; i++) assert_int_not_equal(w.frame_of[second[i]], PAGE_NONE);
    assert_int_equal(w.frame_of[14] != PAGE_NONE, has_room_for_both);
    assert_int_equal(w.frame_of[15], PAGE_NONE);
    if (n_frame < 10) assert_int_equal(w.frame_of[20], PAGE_NONE);
    tier_release(&w.tier, now, 4);
    settle_and_check(&w);
    world_free(&w);
}

static void the_next_layer_is_followed(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed < 5; seed++) { /* both policies, both kinds of pages */
        check_follow(seed, 8, false);
        check_follow(seed, 9, true);
        check_follow(seed, 10, true);
    }
}

/* ---- What one read brings ---- */

/* Reads that touch these bytes fail. */
static _Atomic off_t bad_from, bad_end;

static ssize_t scratched_read(int fd, void *to, size_t n, off_t at)
{
    while (gate_is_shut) usleep(100);
    if (at < bad_end && at + (off_t)n > bad_from) return errno = EIO, -1;
    return pread(fd, to, n, at);
}

/* A world whose pages [0, n) are written and not in memory. */
static void world_of_disk(struct world *w, uint64_t seed, uint32_t n, uint32_t n_frame)
{
    static const struct disk_calls calls = {.read = scratched_read, .write = bad_write};
    world_init_frames(w, seed, &calls, n_frame);
    for (page_id id = 0; id < n; id++) {
        write_one(w, id, 0);
        tier_evict_frames(&w->tier, 1);
    }
    tier_begin(&w->tier);
    tier_begin(&w->tier);
}

/* Pages that lie side by side come with one read, in whatever order they are asked for, and so do
 * those with one page between them, which is thrown away; with two between, they do not. */
static void neighbours_come_together(void **state)
{
    (void)state;
    static const page_id id[] = {5, 3, 4, 7, 10, 12};
    for (uint64_t seed = 4; seed < 6; seed++) {
        struct world w;
        world_of_disk(&w, seed, 16, N_FRAME);
        const sac_tier_stats before = tier_get_stats(&w.tier);
        const sac_status status = tier_acquire(&w.tier, id, 6);
        check_read(&w, id, 6, status);
        const sac_tier_stats after = tier_get_stats(&w.tier);
        const size_t slot = disk_slot_bytes(w.tier.disk);
        assert_int_equal(after.n_read - before.n_read, 2);
        assert_int_equal(after.bytes_fetched - before.bytes_fetched, 8 * slot);
        assert_int_equal(after.bytes_between, 2 * slot);
        assert_int_equal(w.frame_of[6], PAGE_NONE);
        tier_release(&w.tier, id, 6);
        settle_and_check(&w);
        world_free(&w);
    }
}

/* A place that cannot be read ends nobody who does not want what lies there. */
static void a_bad_place_is_its_pages_alone(void **state)
{
    (void)state;
    static const page_id around[] = {1, 2, 4, 5, 6}, all[] = {1, 2, 3, 4, 5};
    struct world w;
    world_of_disk(&w, 4, 8, N_FRAME);
    const off_t slot = (off_t)disk_slot_bytes(w.tier.disk);
    bad_from = 3 * slot;
    bad_end = 4 * slot;
    check_read(&w, around, 5, tier_acquire(&w.tier, around, 5));
    assert_int_equal(tier_get_stats(&w.tier).n_failed, 0);
    tier_release(&w.tier, around, 5);
    tier_evict_frames(&w.tier, w.tier.n_ready);
    assert_int_equal(tier_acquire(&w.tier, all, 5), SAC_ERR_IO);
    check_read(&w, all, 5, SAC_ERR_IO);
    assert_int_equal(tier_get_stats(&w.tier).n_failed, 1);
    for (uint32_t i = 0; i < 5; i++)
        assert_true((all[i] == 3) != has(w.frames + w.frame_of[all[i]] * w.tier.geom.bytes,
                                         w.tier.geom.bytes, w.content[all[i]]));
    bad_end = 0;
    tier_release(&w.tier, all, 5);
    settle_and_check(&w);
    world_free(&w);
}

/* ---- What looking ahead is worth ---- */

/* What is guessed has few reads under way when nothing of what was brought before was asked for,
 * and what waits is let go when its layer asks for other pages. */
static void guesses_know_their_worth(void **state)
{
    (void)state;
    enum { N_GUESS = 30 };
    for (int is_bad = 0; is_bad < 2; is_bad++) {
        struct world w;
        page_id id[N_GUESS];
        world_of_disk(&w, 4, N_ID, N_GUESS + 6);
        for (uint32_t i = 0; i < N_GUESS; i++) id[i] = (i + 2) * APART;
        w.tier.worth[TIER_VISIT] = (struct tier_worth){400, is_bad ? 0 : 400};
        gate_is_shut = true;
        tier_prefetch(&w.tier, TIER_VISIT, id, N_GUESS);
        assert_int_equal(tier_get_stats(&w.tier).n_ahead, N_GUESS);
        while (tier_get_stats(&w.tier).n_read == 0) usleep(100);
        assert_in_range(tier_get_stats(&w.tier).n_read, is_bad ? 1 : N_GUESS - 1,
                        is_bad ? 2 : N_GUESS);
        const uint64_t n_begun = tier_get_stats(&w.tier).n_read;
        tier_enter(&w.tier, 1);
        assert_int_equal(tier_get_stats(&w.tier).n_ahead, n_begun);
        assert_int_equal(tier_get_stats(&w.tier).n_ahead_cancelled, N_GUESS - n_begun);
        gate_is_shut = false;
        settle_and_check(&w);
        const struct tier_worth before = w.tier.worth[TIER_VISIT];
        if (!is_bad) {
            assert_int_equal(tier_acquire(&w.tier, id, 1), SAC_OK);
            tier_release(&w.tier, id, 1);
        }
        tier_evict_frames(&w.tier, w.tier.n_ready);
        const struct tier_worth after = w.tier.worth[TIER_VISIT];
        assert_int_equal(tier_get_stats(&w.tier).n_ahead_used, !is_bad);
        assert_int_equal(after.n - before.n, n_begun);
        assert_int_equal(after.n_used - before.n_used, !is_bad);
        settle_and_check(&w);
        world_free(&w);
    }
}

/* Where what lay beside was never asked for, next to nothing of it is fetched. */
static void worthless_guesses_are_few(void **state)
{
    (void)state;
    enum { N_BEGUN = 8 };
    for (int is_bad = 0; is_bad < 2; is_bad++) {
        struct world w;
        page_id here[N_BEGUN], next[N_BEGUN], scratch[N_BEGUN];
        world_init_frames(&w, 4, NULL, 3 * N_BEGUN);
        for (uint32_t i = 0; i < N_BEGUN; i++) {
            write_one(&w, here[i] = i * APART, 0);
            write_one(&w, next[i] = i * APART + 1, 1);
        }
        tier_evict_frames(&w.tier, w.tier.n_ready);
        for (int i = 0; i < 3; i++) tier_begin(&w.tier);
        w.tier.worth[TIER_BESIDE] = (struct tier_worth){500, is_bad ? 0 : 500};
        tier_enter(&w.tier, 0);
        assert_int_equal(tier_acquire(&w.tier, here, N_BEGUN), SAC_OK);
        tier_follow(&w.tier, &(struct tier_follow){.layer = 1,
                                                   .here = here,
                                                   .next = next,
                                                   .stride = N_BEGUN,
                                                   .n_lane = 1,
                                                   .n = N_BEGUN,
                                                   .scratch = scratch,
                                                   .room = N_BEGUN});
        tier_settle(&w.tier);
        assert_int_equal(tier_get_stats(&w.tier).n_ahead, is_bad ? 1 : N_BEGUN);
        tier_release(&w.tier, here, N_BEGUN);
        settle_and_check(&w);
        world_free(&w);
    }
}

/* ---- What the system's cache has ---- */

static _Atomic bool is_cached;
static _Atomic uint32_t n_slow, n_now;

static ssize_t slow_read(int fd, void *to, size_t n, off_t at)
{
    n_slow++;
    return pread(fd, to, n, at);
}

static ssize_t read_now(int fd, const struct iovec *to, int n, off_t at)
{
    n_now++;
    return is_cached ? preadv(fd, to, n, at) : -1;
}

/* The pages [0, n) lie in a file that is saved. */
static void adopt_pages(struct world *w, uint32_t n)
{
    struct tier *t = &w->tier;
    const size_t bytes = t->geom.bytes - t->card_bytes;
    uint8_t page[4096];
    FILE *file = tmpfile();
    struct source *source;
    sac_error err;
    assert_int_equal(source_open(&source, file, "saved", &err), SAC_OK);
    source->stride = bytes;
    for (page_id id = 0; id < n; id++) {
        put(page, t->geom.bytes, w->content[id] = id + 1);
        assert_int_equal(fwrite(page + t->card_bytes, bytes, 1, file), 1);
        tier_born(t, id, 0);
        memcpy(tier_card(t, id), page, t->card_bytes);
        tier_adopt(t, id, source, id, XXH3_64bits(page + t->card_bytes, bytes));
    }
    tier_let_source(t, source);
    fclose(file);
}

/* It is read by who asks, and not before; what it has not is fetched ahead, and tried seldom. */
static void what_comes_at_once_is_not_fetched_ahead(void **state)
{
    (void)state;
    static const struct disk_calls calls = {slow_read, bad_write, read_now};
    static const page_id next[] = {50, 54};
    for (uint64_t seed = 4; seed < 6; seed++) {
        struct world w;
        world_init_frames(&w, seed, &calls, N_FRAME);
        adopt_pages(&w, N_PAGE);
        is_cached = true;
        n_slow = n_now = 0;
        for (page_id id = 0; id < 8; id++) tier_use(&w.tier, 0, &id, 1);
        assert_int_equal(n_slow, 0);
        assert_int_equal(n_now, 8);
        tier_prefetch(&w.tier, TIER_VISIT, next, 2);
        assert_int_equal(tier_get_stats(&w.tier).n_ahead, 0);
        is_cached = false;
        for (page_id id = 8; id < 48; id++) tier_use(&w.tier, 0, &id, 1);
        assert_int_equal(n_slow, 40);
        assert_in_range(n_now, 8 + 9, 8 + 10);
        const page_id some[] = {3, 9, 30};
        check_read(&w, some, 3, tier_acquire(&w.tier, some, 3));
        tier_release(&w.tier, some, 3);
        tier_prefetch(&w.tier, TIER_VISIT, next, 2);
        assert_int_equal(tier_get_stats(&w.tier).n_ahead, 2);
        settle_and_check(&w);
        world_free(&w);
    }
}

/* ---- The end of a process ---- */

/* Killed while writes are under way, a process leaves no file, and what it might leave in the
 * moment between making the file and taking its name away, an empty one, is no hindrance. */
static void a_killed_process_leaves_nothing(void **state)
{
    (void)state;
    static const struct disk_calls calls = {.read = bad_read, .write = bad_write};
    struct world w;
    char path[80];
    int status;
    slow_moves = 1;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        world_init(&w, 3, &calls);
        write_pages(&w);
        while (w.tier.n_busy == 0) write_pages(&w);
        raise(SIGKILL);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    slow_moves = 0;
    name_file(path, child);
    assert_int_equal(access(path, F_OK), -1);
    name_file(path, getpid());
    close(open(path, O_CREAT | O_WRONLY, 0600));
    world_init(&w, 3, NULL);
    write_pages(&w);
    settle_and_check(&w);
    world_free(&w);
}

/* ---- Policies ---- */

/* Hits of all but the first cycle through layers of equal sets, with room for half of them. */
static uint64_t cycle(sac_tier_policy policy)
{
    enum { SET = 9, N_CYCLE = 12 };
    struct world w;
    page_id id[N_LAYER * SET];
    world_init(&w, policy == SAC_TIER_LRU ? 2 : 4, NULL);
    for (uint32_t i = 0; i < N_LAYER * SET; i++) {
        id[i] = i;
        tier_born(&w.tier, i, i / SET);
        assert_int_equal(tier_open(&w.tier, &id[i], 1), SAC_OK);
        put(w.frames + w.frame_of[i] * w.tier.geom.bytes, w.tier.geom.bytes, w.content[i] = i + 1);
        tier_close(&w.tier, &id[i], 1);
        tier_settle(&w.tier);
    }
    uint64_t n_hit = 0;
    for (uint32_t c = 0; c < N_CYCLE; c++) {
        const uint64_t before = tier_get_stats(&w.tier).n_hit;
        tier_begin(&w.tier);
        for (uint32_t l = 0; l < N_LAYER; l++) {
            tier_enter(&w.tier, l);
            assert_int_equal(tier_acquire(&w.tier, id + (size_t)l * SET, SET), SAC_OK);
            tier_release(&w.tier, id + (size_t)l * SET, SET);
        }
        if (c > 0) n_hit += tier_get_stats(&w.tier).n_hit - before;
    }
    world_free(&w);
    return n_hit * 100 / ((N_CYCLE - 1) * N_LAYER * SET);
}

/* Layers take turns: what was used longest ago is what comes next. */
static void stale_pages_go_first(void **state)
{
    (void)state;
    assert_int_equal(cycle(SAC_TIER_LRU), 0);
    assert_true(cycle(SAC_TIER_STALE) >= 25);
}

/* Of all layers the pages used longest ago go first, however many of one layer. */
static void older_pages_of_other_layers_go_first(void **state)
{
    static const page_id id[] = {0, 1, 10};
    (void)state;
    for (uint64_t seed = 4; seed < 8; seed++) { /* both policies, both kinds of pages */
        struct world w;
        world_init(&w, seed, NULL);
        for (uint32_t i = 0; i < 3; i++) write_one(&w, id[i], id[i] / 10);
        tier_begin(&w.tier);
        tier_use(&w.tier, 0, id, 1);
        tier_use(&w.tier, 1, id + 2, 1);
        tier_begin(&w.tier);
        tier_use(&w.tier, 0, id + 1, 1);
        for (int i = 0; i < 2; i++) tier_begin(&w.tier);
        tier_enter(&w.tier, N_LAYER - 1); /* of equal steps, layer 0 was used first */
        tier_evict_frames(&w.tier, 2);
        assert_int_equal(w.frame_of[0], PAGE_NONE);
        assert_int_equal(w.frame_of[10], PAGE_NONE);
        assert_int_not_equal(w.frame_of[1], PAGE_NONE);
        world_free(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_back_or_a_failure_is_told),
        cmocka_unit_test(a_full_disk_is_told),
        cmocka_unit_test(threads_read_together),
        cmocka_unit_test(ahead_leaves_what_others_wait_for),
        cmocka_unit_test(the_next_layer_is_followed),
        cmocka_unit_test(neighbours_come_together),
        cmocka_unit_test(a_bad_place_is_its_pages_alone),
        cmocka_unit_test(guesses_know_their_worth),
        cmocka_unit_test(worthless_guesses_are_few),
        cmocka_unit_test(what_comes_at_once_is_not_fetched_ahead),
        cmocka_unit_test(a_killed_process_leaves_nothing),
        cmocka_unit_test(stale_pages_go_first),
        cmocka_unit_test(older_pages_of_other_layers_go_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
