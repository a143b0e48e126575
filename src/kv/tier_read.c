/* tier_read.c: pages on their way from the disk, or from a source, into their frames.
 *
 * To request a page, a thread binds a frame for it and appends the frame to a queue. Any thread
 * that comes by, a requesting one or the end of a transfer, starts as many reads as there are
 * transfers. The disk is therefore busy as long as pages are queued, whether or not the requesting
 * thread is awake. Pages that a thread waits for go first. Prefetched pages have a limited number
 * of slots in flight, according to their usefulness (tier_prefetch.c), because a read that has
 * begun cannot be cancelled.
 *
 * One read brings all pages of its queue that lie near the first one in the file, in either
 * direction and for any requester. Slots between them are read too, and discarded, where their
 * bytes cost less than another read.
 *
 * Pages of a source may be in the system's cache; then a read is a copy. The waiting threads make
 * these copies themselves, so no other thread has to wake up. Whether a page is cached is found out
 * by trying.
 *
 * If a read of several pages fails, the pages that are missing are read once more, one by one, so
 * that only a page that cannot be read itself is lost. */
#include "kv/tier.h"

#include <assert.h>
#include <string.h>
#include <xxhash.h>

/* The largest gap of slots that a read bridges: one page of 4 or 8 KiB. Disks with 42,000 to 79,000
 * reads of 4 KiB per second and 0.33 to 1 GB/s of larger ones move 8 to 24 KB in the time of a
 * read, but bridging a gap of that size would gain nothing over a second read. */
#define OVER_MAX 8192u

#define FRAME_NONE UINT32_MAX

/* The slot of a page in its file. */
static uint32_t place_of(const struct tier *t, page_id id)
{
    return t->page[id].source ? t->page[id].place : id;
}

/* ---- Extent of a read ---- */

/* The page `at` slots from that of frame f, if it waits in the same queue; otherwise PAGE_NONE. */
static page_id neighbour(const struct tier *t, uint32_t f, int32_t at)
{
    const page_id id = t->frame[f].page, other = id + (uint32_t)at;
    if (at == 0) return id;
    if (other >= t->n_page || t->frame_of[other] == PAGE_NONE) return PAGE_NONE;
    const struct tier_frame *frame = &t->frame[t->frame_of[other]];
    const bool is_near = t->page[other].source == t->page[id].source &&
                         place_of(t, other) == place_of(t, id) + (uint32_t)at;
    const bool is_free =
        frame->line == t->frame[f].line && !frame->alone && !t->page[other].is_moving;
    return is_near && is_free ? other : PAGE_NONE;
}

/* How many slots beside a frame's page a read covers in the direction `way`, 1 or -1. */
static uint32_t reach(const struct tier *t, uint32_t f, int32_t way, uint32_t n_most)
{
    const struct source *source = t->page[t->frame[f].page].source;
    const size_t stride = source ? source->stride : disk_slot_bytes(t->disk);
    const uint32_t n_over = stride <= OVER_MAX;
    uint32_t n = 0;
    if (t->frame[f].alone) return 0;
    for (uint32_t i = 1; i <= n_most && i <= n + 1 + n_over; i++)
        if (neighbour(t, f, way * (int32_t)i) != PAGE_NONE) n = i;
    return n;
}

static void add_read(struct tier *t, struct disk_io *io, page_id id)
{
    const uint32_t f = t->frame_of[id], i = io->n_slot;
    assert(tier_has_copy(t, id));
    assert(!io->source || io->source->stride == t->geom.bytes - t->card_bytes);
    io->tag[i].page = id;
    io->tag[i].frame = f;
    io->tag[i].sum = t->page[id].sum;
    io->tag[i].into = io->source ? tier_frame_bytes(t, f) + t->card_bytes : NULL;
    tier_leave(t, f);
    tier_set_state(t, f, TIER_LOADING);
    t->page[id].is_moving = true;
}

/* Starts to read a frame's page and its neighbours. */
static void begin_read(struct tier *t, struct disk_io *io, uint32_t f)
{
    const page_id id = t->frame[f].page;
    const uint32_t n_back = reach(t, f, -1, DISK_RUN - 1);
    const uint32_t n_on = reach(t, f, 1, DISK_RUN - 1 - n_back);
    page_id found[DISK_RUN];
    for (uint32_t i = 0; i <= n_back + n_on; i++)
        found[i] = neighbour(t, f, (int32_t)i - (int32_t)n_back);
    io->writes = false;
    io->is_early = t->frame[f].line != TIER_WANTED;
    io->source = t->page[id].source;
    io->slot = place_of(t, id) - n_back;
    if (io->source) source_hold(io->source);
    for (io->n_slot = 0; io->n_slot <= n_back + n_on; io->n_slot++)
        if (found[io->n_slot] != PAGE_NONE)
            add_read(t, io, found[io->n_slot]);
        else
            io->tag[io->n_slot].frame = FRAME_NONE, io->tag[io->n_slot].into = NULL;
    t->n_early += io->is_early ? io->n_slot : 0;
    t->n_busy++;
    t->stats.n_read++;
}

/* ---- The order of reads ---- */

/* The first frame of a queue that can be read now. If a page's slot is still part of a transfer of
 * the page that previously had this id, the page must wait for its end. */
static uint32_t first_of(const struct tier *t, enum tier_line_i line)
{
    uint32_t f = t->line[line].first;
    while (f != FRAME_NONE && t->page[t->frame[f].page].is_moving) f = t->frame[f].behind;
    return f;
}

static uint32_t next_read(const struct tier *t)
{
    for (enum tier_line_i line = TIER_WANTED; line < TIER_LINES; line++) {
        const uint32_t f = first_of(t, line);
        if (f == FRAME_NONE) continue;
        const bool may =
            line == TIER_WANTED || t->n_early < tier_prefetch_slots(t, t->frame[f].why);
        return may ? f : FRAME_NONE;
    }
    return FRAME_NONE;
}

void tier_read_pump(struct tier *t)
{
    struct disk_io *first = NULL, **end = &first;
    for (uint32_t f; (f = next_read(t)) != FRAME_NONE; end = &(*end)->next) {
        *end = disk_take(t->disk);
        if (!*end) break;
        begin_read(t, *end, f);
        if (!(*end)->is_early && !(*end)->source) tier_prefetch_count(&t->at_once, false);
    }
    if (!first) return;
    /* Data in the system's cache is copied by the submitting thread. */
    pthread_mutex_unlock(&t->lock);
    disk_submit(t->disk, first);
    pthread_mutex_lock(&t->lock);
}

static bool is_waited_for(const struct tier *t)
{
    return t->line[TIER_WANTED].first != FRAME_NONE;
}

void tier_read_pump_later(struct tier *t)
{
    if (t->n_busy == 0 && !is_waited_for(t)) disk_wake(t->disk);
}

bool tier_read_is_empty(const struct tier *t)
{
    return !is_waited_for(t) && t->line[TIER_KNOWN].first == FRAME_NONE &&
           t->line[TIER_GUESSED].first == FRAME_NONE;
}

/* ---- The end of a read ---- */

static bool has_come(const struct tier *t, const struct disk_io *io, uint32_t i)
{
    return io->result >= (ssize_t)((i + 1) * disk_stride(t->disk, io));
}

/* The page's first bytes are its card, which stays in memory. */
static void put_card(const struct tier *t, uint32_t f, page_id id)
{
    memcpy(tier_frame_bytes(t, f), tier_card(t, id), t->card_bytes);
}

/* No other thread reads the frame yet. A page that a thread waits for is pinned; another may be
 * freed meanwhile and its card reused, so that case is handled under the lock. */
static void check(const struct tier *t, struct disk_io *io, bool is_in_place)
{
    const size_t bytes = t->geom.bytes - t->card_bytes, stride = disk_stride(t->disk, io);
    for (uint32_t i = 0; i < io->n_slot; i++) {
        const uint32_t f = io->tag[i].frame;
        if (f == FRAME_NONE) continue;
        uint8_t *to = tier_frame_bytes(t, f) + t->card_bytes;
        const uint8_t *from = is_in_place ? to : io->buffer + i * stride;
        io->tag[i].is_good = has_come(t, io, i) && XXH3_64bits(from, bytes) == io->tag[i].sum;
        if (io->tag[i].is_good && !is_in_place) memcpy(to, from, bytes);
        if (io->tag[i].is_good && !io->is_early) put_card(t, f, io->tag[i].page);
    }
}

void tier_read_fill(const struct tier *t, struct disk_io *io)
{
    check(t, io, false);
}

static void end_bad(struct tier *t, const struct disk_io *io, uint32_t i)
{
    const uint32_t f = io->tag[i].frame;
    if (io->n_slot > 1 && !has_come(t, io, i)) {
        tier_set_state(t, f, TIER_BOUND);
        tier_join(t, f, t->frame[f].why == TIER_ASKED ? TIER_WANTED : TIER_KNOWN);
        t->frame[f].alone = true;
        return;
    }
    tier_note_failure(t, io->tag[i].page, io,
                      has_come(t, io, i) ? "read back unchanged from" : "read back from");
    memset(tier_frame_bytes(t, f), 0, t->geom.bytes);
    tier_set_state(t, f, TIER_LOST);
    if (t->frame[f].pins == 0) tier_unbind(t, f); /* no thread has requested it */
}

void tier_read_end(struct tier *t, const struct disk_io *io)
{
    t->n_early -= io->is_early ? io->n_slot : 0;
    t->stats.bytes_fetched += disk_bytes(t->disk, io);
    for (uint32_t i = 0; i < io->n_slot; i++) {
        const uint32_t f = io->tag[i].frame;
        if (f == FRAME_NONE) {
            t->stats.bytes_between += disk_stride(t->disk, io);
            continue;
        }
        t->page[io->tag[i].page].is_moving = false;
        if (tier_is_orphan(t, f)) continue;
        if (!io->tag[i].is_good) {
            end_bad(t, io, i);
            continue;
        }
        if (io->is_early) put_card(t, f, io->tag[i].page);
        tier_set_state(t, f, TIER_CLEAN);
    }
    if (io->source) source_drop(io->source);
}

/* ---- Cached pages ---- */

#define TRY_LEAST 32u /* a cached read is tried at least once per so many reads */

bool tier_read_is_cached(const struct tier *t)
{
    return 2 * t->at_once.n_used > t->at_once.n;
}

/* Whether trying is worthwhile: most pages are cached, or it is time to check whether that has
 * changed. */
static bool may_try(struct tier *t)
{
    if (2 * t->at_once.n_used >= t->at_once.n) return true;
    if (++t->n_untried < TRY_LEAST) return false;
    t->n_untried = 0;
    return true;
}

/* The first frame that a thread waits for and whose page is in a source. */
static uint32_t first_of_source(const struct tier *t)
{
    uint32_t f = t->line[TIER_WANTED].first;
    while (f != FRAME_NONE &&
           (!t->page[t->frame[f].page].source || t->page[t->frame[f].page].is_moving))
        f = t->frame[f].behind;
    return f;
}

bool tier_read_now(struct tier *t)
{
    const uint32_t f = first_of_source(t);
    struct disk_io *io = f != FRAME_NONE && may_try(t) ? disk_take(t->disk) : NULL;
    if (!io) return false;
    begin_read(t, io, f);
    pthread_mutex_unlock(&t->lock);
    const bool is_there = disk_read_now(t->disk, io);
    if (is_there)
        check(t, io, true);
    else
        disk_submit(t->disk, io);
    pthread_mutex_lock(&t->lock);
    tier_prefetch_count(&t->at_once, is_there);
    if (is_there) tier_end_transfer(t, io);
    return is_there;
}
