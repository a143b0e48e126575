/* tier.c: the states of frames, and the transfers between memory and disk.
 *
 * Invariants, checked by tier_check while nothing is in flight:
 *  1. frame_of[id] = f if and only if frame[f].page = id.
 *  2. A frame is on the free stack if and only if it is FREE; it has no page and no pins then.
 *  3. A CLEAN frame's page is on the disk or in a source; a DIRTY or STUCK frame's is not.
 *  4. n_ready counts CLEAN frames without pins, n_pinned those with pins.
 *  5. A frame with a page is in the list of the page's layer, the others are in none.
 *  6. LOST frames are pinned: the last release frees them, and the next request tries again.
 *  7. BOUND and DIRTY frames are in a queue (enum tier_line_i), the others in none. A BOUND frame
 *     that nobody has pinned is in KNOWN or GUESSED, and is taken when a frame is needed.
 *
 * A slot of the disk is part of at most one transfer (is_moving). A page that is freed during its
 * transfer leaves its frame as an orphan, which is freed when the transfer ends; a page that gets
 * the same id waits for that end before it writes to the slot.
 *
 * Checksums are XXH3 over the bytes of a page on disk. Arrays are laid out by the pool's plan, and
 * a step allocates nothing. Not here: which pages are evicted (tier_evict.c), the order of reads
 * (tier_read.c), prefetching (tier_prefetch.c), moving bytes (disk.c). */
#include "kv/tier.h"

#include "base/workers.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define WRITES_MAX (DISK_DEPTH / 2) /* transfers used for writes: the others are left to reads */

/* ---- Lists and counts ---- */

static void unlink_frame(struct tier *t, uint32_t f)
{
    struct tier_frame *frame = &t->frame[f];
    struct tier_layer *layer = &t->layer[t->page[frame->page].layer];
    *(frame->prev == PAGE_NONE ? &layer->first : &t->frame[frame->prev].next) = frame->next;
    *(frame->next == PAGE_NONE ? &layer->last : &t->frame[frame->next].prev) = frame->prev;
}

/* Appends a frame as the most recently used one. */
static void link_frame(struct tier *t, uint32_t f)
{
    struct tier_frame *frame = &t->frame[f];
    struct tier_layer *layer = &t->layer[t->page[frame->page].layer];
    frame->prev = layer->last;
    frame->next = PAGE_NONE;
    *(layer->last == PAGE_NONE ? &layer->first : &t->frame[layer->last].next) = f;
    layer->last = f;
}

void tier_set_state(struct tier *t, uint32_t f, enum tier_state state)
{
    t->n_ready -= tier_is_ready(&t->frame[f]);
    t->n_missed -= tier_is_missed(&t->frame[f]);
    t->frame[f].state = (uint8_t)state;
    t->n_ready += tier_is_ready(&t->frame[f]);
    t->n_missed += tier_is_missed(&t->frame[f]);
}

static void set_pins(struct tier *t, uint32_t f, uint32_t pins)
{
    struct tier_frame *frame = &t->frame[f];
    t->n_ready -= tier_is_ready(frame);
    t->n_missed -= tier_is_missed(frame);
    t->n_pinned -= frame->pins > 0;
    frame->pins = pins;
    t->n_pinned += frame->pins > 0;
    t->n_missed += tier_is_missed(frame);
    t->n_ready += tier_is_ready(frame);
}

void tier_pin(struct tier *t, uint32_t f)
{
    set_pins(t, f, t->frame[f].pins + 1);
}

void tier_join(struct tier *t, uint32_t f, enum tier_line_i line)
{
    struct tier_line *list = &t->line[line];
    assert(t->frame[f].line == TIER_LINES);
    t->frame[f].line = (uint8_t)line;
    t->frame[f].before = list->last;
    t->frame[f].behind = PAGE_NONE;
    *(list->last == PAGE_NONE ? &list->first : &t->frame[list->last].behind) = f;
    list->last = f;
}

void tier_leave(struct tier *t, uint32_t f)
{
    struct tier_frame *frame = &t->frame[f];
    assert(frame->line < TIER_LINES);
    struct tier_line *list = &t->line[frame->line];
    *(frame->before == PAGE_NONE ? &list->first : &t->frame[frame->before].behind) = frame->behind;
    *(frame->behind == PAGE_NONE ? &list->last : &t->frame[frame->behind].before) = frame->before;
    frame->line = TIER_LINES;
}

uint32_t tier_bind(struct tier *t, page_id id, enum tier_state state)
{
    assert(t->n_free > 0 && t->frame_of[id] == PAGE_NONE);
    const uint32_t f = t->free[--t->n_free];
    assert(t->frame[f].state == TIER_FREE && t->frame[f].pins == 0);
    t->frame[f] = (struct tier_frame){
        .page = id, .used = t->page[id].used, .state = (uint8_t)state, .line = TIER_LINES};
    t->frame_of[id] = f;
    link_frame(t, f);
    return f;
}

static void set_free(struct tier *t, uint32_t f)
{
    assert(t->frame[f].page == PAGE_NONE && t->frame[f].pins == 0);
    tier_set_state(t, f, TIER_FREE);
    t->free[t->n_free++] = f;
}

/* Separates a page from its frame. */
static void unbind(struct tier *t, uint32_t f)
{
    unlink_frame(t, f);
    t->frame_of[t->frame[f].page] = PAGE_NONE;
    t->frame[f].page = PAGE_NONE;
}

void tier_unbind(struct tier *t, uint32_t f)
{
    unbind(t, f);
    set_free(t, f);
}

void tier_unpin(struct tier *t, uint32_t f)
{
    assert(t->frame[f].pins > 0);
    set_pins(t, f, t->frame[f].pins - 1);
    if (t->frame[f].pins == 0 && t->frame[f].state == TIER_LOST) tier_unbind(t, f);
}

void tier_evict(struct tier *t, uint32_t f)
{
    assert(tier_is_ready(&t->frame[f]));
    tier_prefetch_used(t, f, false);
    tier_prefetch_note_gone(t, t->frame[f].page);
    tier_unbind(t, f);
}

uint8_t *tier_frame_bytes(const struct tier *t, uint32_t f)
{
    return t->frames + (size_t)f * t->geom.bytes;
}

uint8_t *tier_card(const struct tier *t, page_id id)
{
    return t->cards + (size_t)id * t->card_bytes;
}

/* ---- Writing to disk in the background ---- */

static void queue_write(struct tier *t, uint32_t f)
{
    tier_set_state(t, f, TIER_DIRTY);
    tier_join(t, f, TIER_WRITES);
}

static void add_write(struct tier *t, struct disk_io *io, uint32_t f)
{
    const page_id id = t->frame[f].page;
    const size_t bytes = t->geom.bytes - t->card_bytes, slot = disk_slot_bytes(t->disk);
    uint8_t *to = io->buffer + io->n_slot * slot;
    tier_leave(t, f);
    tier_set_state(t, f, TIER_WRITING);
    memcpy(to, tier_frame_bytes(t, f) + t->card_bytes, bytes);
    memset(to + bytes, 0, slot - bytes);
    t->page[id].sum = XXH3_64bits(to, bytes);
    t->page[id].is_moving = true;
    io->tag[io->n_slot].page = id;
    io->tag[io->n_slot++].frame = f;
}

/* Whether a page waits to be written and can be written together with others. */
static bool may_join_write(const struct tier *t, page_id id)
{
    const uint32_t f = id < t->n_page ? t->frame_of[id] : PAGE_NONE;
    return f != PAGE_NONE && t->frame[f].line == TIER_WRITES && !t->frame[f].alone &&
           !t->page[id].is_moving;
}

/* Begins to write a frame's page and its neighbours: pages of a chunk are closed head by head, and
 * the pages of a head are adjacent. */
static void begin_write(struct tier *t, struct disk_io *io, uint32_t f)
{
    page_id first = t->frame[f].page, end = first + 1;
    const bool alone = t->frame[f].alone;
    while (!alone && end - first < DISK_RUN && first > 0 && may_join_write(t, first - 1)) first--;
    while (!alone && end - first < DISK_RUN && may_join_write(t, end)) end++;
    io->writes = true;
    io->is_early = false;
    io->source = NULL;
    io->slot = first;
    io->n_slot = 0;
    for (page_id id = first; id < end; id++) add_write(t, io, t->frame_of[id]);
    t->n_busy++;
    t->stats.n_write++;
    disk_submit(t->disk, io);
}

/* Begins as many writes as there are transfers. While threads wait for pages to be read, the disk
 * is left to reads, unless other threads wait for frames, which writes may free. */
static void pump_writes(struct tier *t)
{
    if (t->n_missed > 0 && t->n_waiting_else == 0) return;
    while (t->n_busy < WRITES_MAX && t->line[TIER_WRITES].first != PAGE_NONE) {
        const uint32_t f = t->line[TIER_WRITES].first;
        if (t->page[t->frame[f].page].is_moving)
            return; /* the end of that transfer calls this again */
        struct disk_io *io = disk_take(t->disk);
        if (!io) return;
        begin_write(t, io, f);
    }
}

/* ---- The end of a transfer ---- */

void tier_note_failure(struct tier *t, page_id id, const struct disk_io *io, const char *what)
{
    t->stats.n_failed++;
    t->error = io->result < 0 ? (int)-io->result : 0;
    t->what = what;
    t->lost = id;
    snprintf(t->lost_in, sizeof t->lost_in, "%s",
             io->source ? io->source->name : disk_path(t->disk));
}

bool tier_is_orphan(struct tier *t, uint32_t f)
{
    if (t->frame[f].page != PAGE_NONE) return false;
    set_free(t, f);
    return true;
}

static void end_write(struct tier *t, const struct disk_io *io)
{
    const size_t slot = disk_slot_bytes(t->disk);
    for (uint32_t i = 0; i < io->n_slot; i++) {
        const uint32_t f = io->tag[i].frame;
        const page_id id = io->tag[i].page;
        t->page[id].is_moving = false;
        if (tier_is_orphan(t, f)) continue;
        const bool is_there = io->result >= (ssize_t)((i + 1) * slot);
        t->page[id].on_disk = is_there;
        tier_set_state(t, f, is_there ? TIER_CLEAN : TIER_STUCK);
        t->stats.bytes_written += is_there ? slot : 0;
        t->frame[f].alone = !is_there;
        if (!is_there) tier_note_failure(t, id, io, "written to");
    }
}

/* A single thread that waits for more pages than have arrived need not be woken yet. */
static void tell_change(struct tier *t)
{
    if (t->n_waiting == 1 && t->n_waiting_else == 0 && t->n_missed > 0) return;
    pthread_cond_broadcast(&t->change);
}

void tier_end_transfer(struct tier *t, struct disk_io *io)
{
    if (io->writes)
        end_write(t, io);
    else
        tier_read_end(t, io);
    disk_give(t->disk, io);
    t->n_busy--;
    tell_change(t);
}

static void end_transfer(void *user, struct disk_io *io)
{
    struct tier *t = user;
    if (!io->writes) tier_read_fill(t, io);
    pthread_mutex_lock(&t->lock);
    tier_end_transfer(t, io);
    tier_read_pump(t);
    pump_writes(t);
    pthread_mutex_unlock(&t->lock);
}

static void begin_reads(void *user)
{
    struct tier *t = user;
    pthread_mutex_lock(&t->lock);
    tier_read_pump(t);
    pthread_mutex_unlock(&t->lock);
}

/* ---- Making room ---- */

/* `waiting`: the number of threads that wait for the same. */
static void wait_for_change(struct tier *t, uint32_t *waiting)
{
    const uint64_t start = clock_us();
    ++*waiting;
    pthread_cond_wait(&t->change, &t->lock);
    --*waiting;
    t->stats.wait_us += clock_us() - start;
}

/* Tries failed writes again. */
static bool retry_writes(struct tier *t)
{
    bool any = false;
    for (uint32_t f = 0; f < t->n_frame; f++) {
        if (t->frame[f].state != TIER_STUCK) continue;
        queue_write(t, f);
        any = true;
    }
    pump_writes(t);
    return any;
}

/* Cancels prefetches, or waits for something that may free frames; false: nothing will. All pins
 * may be the caller's own. */
static bool wait_for_room(struct tier *t, bool holds, bool *retried)
{
    if (tier_prefetch_cancel(t, TIER_GUESSED) || tier_prefetch_cancel(t, TIER_KNOWN)) return true;
    if (t->n_busy == 0 && (holds || t->n_pinned == 0)) {
        if (*retried || !retry_writes(t)) return false;
        *retried = true;
    }
    t->n_waiting_else++; /* writes now go first */
    pump_writes(t);
    t->n_waiting_else--;
    wait_for_change(t, &t->n_waiting_else);
    return true;
}

static void make_room(struct tier *t, uint32_t n)
{
    if (n > t->n_free) tier_evict_frames(t, n - t->n_free);
    assert(n <= t->n_free); /* there are enough ready pages, and none is spared */
}

/* Pins pages that have a frame; returns the number of others. */
static uint32_t pin_present(struct tier *t, const page_id *id, uint32_t n)
{
    uint32_t n_absent = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (id[i] == PAGE_NONE) continue;
        if (t->frame_of[id[i]] == PAGE_NONE)
            n_absent++;
        else
            tier_pin(t, t->frame_of[id[i]]);
    }
    return n_absent;
}

static void unpin_present(struct tier *t, const page_id *id, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (id[i] != PAGE_NONE && t->frame_of[id[i]] != PAGE_NONE)
            tier_unpin(t, t->frame_of[id[i]]);
}

/* The reason for a lack of frames. */
static sac_status no_room(const struct tier *t)
{
    for (uint32_t f = 0; f < t->n_frame; f++)
        if (t->frame[f].state == TIER_STUCK) return SAC_ERR_BUSY;
    return SAC_ERR_CONTEXT;
}

/* ---- Writing pages ---- */

sac_status tier_open(struct tier *t, const page_id *id, uint32_t n)
{
    bool retried = false;
    if (!t) return SAC_OK;
    if (n > t->n_frame) return SAC_ERR_CONTEXT;
    pthread_mutex_lock(&t->lock);
    while (n > t->n_free + t->n_ready && wait_for_room(t, true, &retried)) {
    }
    const bool has_room = n <= t->n_free + t->n_ready;
    const sac_status status = has_room ? SAC_OK : no_room(t);
    if (has_room) make_room(t, n);
    for (uint32_t i = 0; i < n && has_room; i++) tier_pin(t, tier_bind(t, id[i], TIER_OPEN));
    pthread_mutex_unlock(&t->lock);
    return status;
}

void tier_close(struct tier *t, const page_id *id, uint32_t n)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t f = t->frame_of[id[i]];
        assert(t->frame[f].state == TIER_OPEN);
        memcpy(tier_card(t, id[i]), tier_frame_bytes(t, f), t->card_bytes);
        t->frame[f].used = t->page[id[i]].used = t->step;
        t->frame[f].history = 1;
        queue_write(t, f);
        tier_unpin(t, f);
    }
    pump_writes(t);
    pthread_mutex_unlock(&t->lock);
}

/* ---- Reading pages ---- */

static void touch(struct tier *t, uint32_t f)
{
    struct tier_frame *frame = &t->frame[f];
    const uint32_t age = t->step - frame->used;
    frame->history = (age < 32 ? frame->history << age : 0) | 1;
    frame->used = t->page[frame->page].used = t->step;
    unlink_frame(t, f);
    link_frame(t, f);
}

static void bind_page(struct tier *t, page_id id)
{
    const bool is_there = tier_has_copy(t, id);
    const uint32_t f = tier_bind(t, id, is_there ? TIER_BOUND : TIER_LOST);
    tier_pin(t, f);
    if (is_there) {
        tier_join(t, f, TIER_WANTED);
        return;
    }
    memset(tier_frame_bytes(t, f), 0, t->geom.bytes);
    tier_note_failure(t, id, &(struct disk_io){0}, "read, for it was never written, from");
}

/* Counts a request for a page that is present, or being prefetched. */
static void request_present(struct tier *t, uint32_t f)
{
    const uint8_t line = t->frame[f].line;
    tier_prefetch_used(t, f, true);
    if (line != TIER_KNOWN && line != TIER_GUESSED) return;
    tier_leave(t, f);
    tier_join(t, f, TIER_WANTED);
}

/* Pins absent pages into frames, for which there is room, and queues their reads. A page that was
 * never written has nothing to read. */
static void bind_absent(struct tier *t, const page_id *id, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (id[i] == PAGE_NONE) continue;
        struct tier_layer *layer = &t->layer[t->page[id[i]].layer];
        const bool is_absent = t->frame_of[id[i]] == PAGE_NONE;
        /* A page that was selected a moment ago and is being prefetched for that counts as absent,
         * too. */
        const bool is_early = !is_absent && t->frame[t->frame_of[id[i]]].why == TIER_CHOSEN;
        const bool is_found = !is_absent && !is_early;
        if (is_absent)
            bind_page(t, id[i]);
        else
            request_present(t, t->frame_of[id[i]]);
        layer->n_fetch += !is_found;
        t->stats.n_fetch_early += is_early;
        layer->n_hit += is_found;
        touch(t, t->frame_of[id[i]]);
    }
}

static bool is_state(const struct tier *t, page_id id, enum tier_state state)
{
    return id != PAGE_NONE && t->frame_of[id] != PAGE_NONE &&
           t->frame[t->frame_of[id]].state == state;
}

/* Worker of read_now: reads pages until none is left. */
static void help_reading(void *arg, uint32_t worker_i)
{
    struct tier *t = arg;
    (void)worker_i;
    pthread_mutex_lock(&t->lock);
    while (tier_read_now(t)) {
    }
    pthread_mutex_unlock(&t->lock);
}

/* Pages in the system's cache are read by the waiting thread and the workers. */
static void read_now(struct tier *t, struct workers *workers)
{
    const uint64_t start = clock_us();
    if (!tier_read_now(t)) return;
    t->n_waiting++;
    if (workers && t->n_missed > DISK_RUN) {
        pthread_mutex_unlock(&t->lock);
        workers_share(workers, help_reading, t);
        pthread_mutex_lock(&t->lock);
    }
    while (tier_read_now(t)) {
    }
    t->n_waiting--;
    t->stats.wait_us += clock_us() - start;
}

/* Reads the bound pages, and waits until all pages of the list have their bytes. */
static void load(struct tier *t, struct workers *workers, const page_id *id, uint32_t n)
{
    tier_prefetch_end_guess(t);
    read_now(t, workers);
    tier_read_pump(t);
    pump_writes(t); /* if all pages were cached, no transfer ends and calls this */
    for (uint32_t i = 0; i < n;)
        if (is_state(t, id[i], TIER_BOUND) || is_state(t, id[i], TIER_LOADING))
            wait_for_change(t, &t->n_waiting);
        else
            i++;
}

struct ask {
    const page_id *id;
    uint32_t n;
    bool holds; /* the caller holds pages */
    struct workers *workers;
};

static sac_status acquire(struct tier *t, const struct ask *ask)
{
    const page_id *id = ask->id;
    const uint32_t n = ask->n;
    bool retried = false;
    sac_status status = SAC_OK;
    uint32_t n_absent;
    while ((n_absent = pin_present(t, id, n)) > t->n_free + t->n_ready) {
        unpin_present(t, id, n);
        if (n > t->n_frame || !wait_for_room(t, ask->holds, &retried)) return no_room(t);
    }
    make_room(t, n_absent);
    bind_absent(t, id, n);
    load(t, ask->workers, id, n);
    for (uint32_t i = 0; i < n; i++)
        if (is_state(t, id[i], TIER_LOST)) status = SAC_ERR_IO;
    return status;
}

sac_status tier_acquire(struct tier *t, const page_id *id, uint32_t n)
{
    if (!t) return SAC_OK;
    pthread_mutex_lock(&t->lock);
    const sac_status status = acquire(t, &(struct ask){id, n, false, NULL});
    pthread_mutex_unlock(&t->lock);
    return status;
}

sac_status tier_acquire_more(struct tier *t, struct workers *workers, const page_id *id, uint32_t n)
{
    if (!t) return SAC_OK;
    pthread_mutex_lock(&t->lock);
    const sac_status status = acquire(t, &(struct ask){id, n, true, workers});
    pthread_mutex_unlock(&t->lock);
    return status;
}

void tier_release(struct tier *t, const page_id *id, uint32_t n)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    unpin_present(t, id, n);
    pthread_cond_broadcast(&t->change);
    pthread_mutex_unlock(&t->lock);
}

/* ---- Pages, steps, start and stop ---- */

void tier_born(struct tier *t, page_id id, uint32_t layer)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    assert(t->frame_of[id] == PAGE_NONE && !tier_has_copy(t, id));
    t->page[id].layer = (uint16_t)layer;
    t->page[id].used = 0;
    pthread_mutex_unlock(&t->lock);
}

void tier_drop(struct tier *t, page_id id)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    const uint32_t f = t->frame_of[id];
    t->page[id].on_disk = false;
    if (t->page[id].source) source_drop(t->page[id].source);
    t->page[id].source = NULL;
    if (f != PAGE_NONE) {
        const enum tier_state state = t->frame[f].state;
        assert(t->frame[f].pins == 0 && state != TIER_FREE);
        if (t->frame[f].line < TIER_LINES) tier_leave(t, f);
        unbind(t, f);
        if (state != TIER_WRITING && state != TIER_LOADING) set_free(t, f);
    }
    pthread_cond_broadcast(&t->change);
    pthread_mutex_unlock(&t->lock);
}

void tier_adopt(struct tier *t, page_id id, struct source *source, uint32_t place, uint64_t sum)
{
    pthread_mutex_lock(&t->lock);
    assert(t->frame_of[id] == PAGE_NONE && !tier_has_copy(t, id));
    source_hold(source);
    t->page[id].source = source;
    t->page[id].place = place;
    t->page[id].sum = sum;
    pthread_mutex_unlock(&t->lock);
}

void tier_let_source(struct tier *t, struct source *source)
{
    pthread_mutex_lock(&t->lock);
    source_drop(source);
    pthread_mutex_unlock(&t->lock);
}

void tier_begin(struct tier *t)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->step++;
    pthread_mutex_unlock(&t->lock);
}

void tier_enter(struct tier *t, uint32_t layer)
{
    if (!t) return;
    pthread_mutex_lock(&t->lock);
    t->now = layer;
    tier_prefetch_cancel(t, TIER_KNOWN); /* of the previous layer */
    pthread_mutex_unlock(&t->lock);
}

size_t tier_card_bytes(const struct page_geom *g)
{
    return g->type_k == SAC_KV_Q8 ? g->k_low : 0;
}

void tier_plan(struct tier *t, struct arena *a)
{
    t->card_bytes = tier_card_bytes(&t->geom);
    t->cards = arena_take(a, t->n_page, t->card_bytes);
    t->frame = arena_take(a, t->n_frame, sizeof *t->frame);
    t->page = arena_take(a, t->n_page, sizeof *t->page);
    t->layer = arena_take(a, t->geom.n_layer, sizeof *t->layer);
    t->free = arena_take(a, t->n_frame, sizeof *t->free);
}

sac_status tier_start(struct tier *t, const char *path, uint64_t limit,
                      const struct disk_calls *calls, sac_error *err)
{
    t->step = 2; /* so that no page counts as recently used */
    t->spared = t->guessed = PAGE_NONE;
    t->guess_most = DISK_DEPTH;
    for (uint32_t i = 0; i < TIER_LINES; i++)
        t->line[i] = (struct tier_line){.first = PAGE_NONE, .last = PAGE_NONE};
    for (uint32_t i = 0; i < t->geom.n_layer; i++)
        t->layer[i] = (struct tier_layer){.first = PAGE_NONE, .last = PAGE_NONE, .gone = PAGE_NONE};
    for (uint32_t f = 0; f < t->n_frame; f++) {
        t->frame[f] = (struct tier_frame){.page = PAGE_NONE, .line = TIER_LINES};
        t->free[t->n_free++] = t->n_frame - 1 - f;
    }
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->change, NULL);
    t->is_on = true;
    return disk_create(&t->disk,
                       &(struct disk_params){.path = path,
                                             .limit = limit,
                                             .n_slot = t->n_page,
                                             .slot_bytes = t->geom.bytes - t->card_bytes,
                                             .calls = calls,
                                             .done = end_transfer,
                                             .woken = begin_reads,
                                             .user = t},
                       err);
}

void tier_stop(struct tier *t)
{
    if (!t || !t->is_on) return;
    pthread_mutex_lock(&t->lock);
    tier_prefetch_cancel(t, TIER_GUESSED);
    tier_prefetch_cancel(t, TIER_KNOWN);
    pthread_mutex_unlock(&t->lock);
    disk_destroy(t->disk);
    for (page_id id = 0; id < t->n_page; id++)
        if (t->page[id].source) source_drop(t->page[id].source);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->change);
}
