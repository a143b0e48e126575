/* state_page.c: the pages of a saved sequence. A state splits each page into its card (tier.h),
 * which is stored with everything that is always read, and its body, which is stored after that
 * with a checksum of its own. A tier can therefore use the file itself as the bodies' storage and
 * fetch those that are read. */
#include "engine/state_walk.h"

#include "kv/mirror.h"

#include <string.h>

sac_status state_transfer_pool(struct stream *s, const struct pool *p, uint8_t *at, size_t n)
{
    uint8_t *bytes = mirror_room(p, at);
    if (n == 0) return SAC_OK;
    if (s->direction == WRITE) TRY(mirror_fetch(p, &bytes, at, n, s->err));
    TRY(state_transfer(s, bytes, n));
    if (s->direction == READ) mirror_store(p, at, n);
    return SAC_OK;
}

sac_status state_transfer_device(struct stream *s, const sac_engine *e, uint8_t *at, size_t n)
{
    const struct pool *p = &e->pool;
    const size_t most = p->geom.tail_bytes;
    if (!at || e->backend.is_host) return state_transfer(s, at, n);
    for (size_t i = 0; i < n; i += most)
        TRY(state_transfer_pool(s, p, at + i, n - i < most ? n - i : most));
    return SAC_OK;
}

size_t state_lane_count(const struct image *im)
{
    return (size_t)im->head.n_layer * im->head.n_kv_head;
}

static sac_status reserve(struct stream *s, const struct image *im, uint32_t first, uint32_t n)
{
    struct pool *p = &im->e->pool;
    if (s->direction == READ) reuse_make_room(im->e, n);
    if (s->direction != READ || n == 0 || pool_reserve(p, im->seq_i, first, n)) return SAC_OK;
    return error_set(s->err, SAC_ERR_CONTEXT,
                     "%s: no room for %u tokens: %u of the KV pool's %u pages are free", s->name,
                     im->head.n_tok, p->n_free, p->n_page);
}

/* Passes the entry of a page, which says whether it is present. */
static sac_status walk_entry(struct stream *s, struct image *im, size_t lane, uint32_t page_i)
{
    struct pool *p = &im->e->pool;
    const uint32_t layer = (uint32_t)(lane / im->head.n_kv_head),
                   h = (uint32_t)(lane % im->head.n_kv_head);
    const page_id id = pool_table(p, im->seq_i, layer)[(size_t)h * p->max_page + page_i];
    uint8_t is_there = id != PAGE_NONE;
    if (im->head.has_gaps) TRY(state_transfer(s, &is_there, 1));
    if (is_there > 1) return state_damaged(s, "a page is neither there nor not");
    im->n_page += is_there;
    if (!is_there && s->direction == READ) pool_drop(p, im->seq_i, layer, h, page_i);
    return SAC_OK;
}

sac_status state_walk_table(struct stream *s, struct image *im)
{
    const uint32_t n_page = im->head.n_tok / PAGE_TOK;
    /* Reserved together, so that the pages of a lane are adjacent; if some are missing, one by one,
     * with those returned at once, so that no more are taken than are kept. */
    if (!im->head.has_gaps) TRY(reserve(s, im, 0, n_page));
    for (uint32_t i = 0; i < n_page; i++) {
        if (im->head.has_gaps) TRY(reserve(s, im, i, 1));
        for (size_t lane = 0; lane < state_lane_count(im); lane++) TRY(walk_entry(s, im, lane, i));
    }
    if (s->direction == READ && im->n_page != im->head.n_page)
        return state_damaged(s, "it has other pages than it says");
    return SAC_OK;
}

/* Some of the present pages; `first` is the number of the first one among all of them. */
struct some {
    page_id id[MIRROR_PAGES];
    uint32_t n;
    uint64_t first;
};
typedef sac_status (*some_fn)(struct stream *s, struct image *im, const struct some *some);

/* Calls `fn` for all present pages in order, until an error. With a tier, which has few frames, one
 * page at a time. */
static sac_status each_some(struct stream *s, struct image *im, some_fn fn)
{
    const struct pool *p = &im->e->pool;
    const uint32_t n_most = p->tier ? 1 : MIRROR_PAGES;
    struct some some = {.n = 0};
    for (size_t lane = 0; lane < state_lane_count(im); lane++)
        for (uint32_t i = 0; i < im->head.n_tok / PAGE_TOK; i++) {
            const page_id id = pool_table(p, im->seq_i, 0)[lane * p->max_page + i];
            if (id == PAGE_NONE) continue;
            some.id[some.n++] = id;
            if (some.n < n_most) continue;
            TRY(fn(s, im, &some));
            some.first += some.n;
            some.n = 0;
        }
    return some.n ? fn(s, im, &some) : SAC_OK;
}

static size_t card_bytes(const struct image *im)
{
    return tier_card_bytes(&im->e->pool.geom);
}

static size_t body_bytes(const struct image *im)
{
    return im->e->pool.geom.bytes - card_bytes(im);
}

static struct mirror_part cards_of(const struct image *im, const struct some *some)
{
    return (struct mirror_part){.id = some->id, .n = some->n, .width = card_bytes(im)};
}

static struct mirror_part bodies_of(const struct image *im, const struct some *some)
{
    return (struct mirror_part){
        .id = some->id, .n = some->n, .at = card_bytes(im), .width = body_bytes(im)};
}

/* Moves cards, which are in memory; with a tier, beside the frames. */
static sac_status move_cards(struct stream *s, struct image *im, const struct some *some)
{
    const struct pool *p = &im->e->pool;
    struct mirror_part m = cards_of(im, some);
    if (p->tier) return state_transfer(s, tier_card(p->tier, some->id[0]), m.width);
    if (s->direction == WRITE)
        TRY(mirror_get(p, &m, s->err));
    else
        mirror_begin(p, &m);
    for (uint32_t i = 0; i < m.n; i++) TRY(state_transfer(s, mirror_seen(p, &m, i), m.width));
    if (s->direction == READ) mirror_put(p, &m);
    return SAC_OK;
}

sac_status state_walk_cards(struct stream *s, struct image *im)
{
    if (s->direction == MEASURE) s->n += im->n_page * card_bytes(im);
    if (s->direction == MEASURE || !card_bytes(im)) return SAC_OK;
    return each_some(s, im, move_cards);
}

/* Calls `fn` with the bodies in memory that the host can access. */
static sac_status see_bodies(struct stream *s, struct image *im, const struct some *some,
                             sac_status (*fn)(struct stream *, struct image *, uint8_t *, uint64_t))
{
    const struct pool *p = &im->e->pool;
    struct mirror_part m = bodies_of(im, some);
    const sac_status held = tier_acquire(p->tier, some->id, some->n);
    sac_status status = held == SAC_OK ? mirror_get(p, &m, s->err) : SAC_OK;
    for (uint32_t i = 0; i < m.n && held == SAC_OK && status == SAC_OK; i++)
        status = fn(s, im, mirror_seen(p, &m, i), some->first + i);
    if (tier_holds(held)) tier_release(p->tier, some->id, some->n);
    return held == SAC_OK ? status : tier_explain(p->tier, held, s->err);
}

static sac_status sum_body(struct stream *s, struct image *im, uint8_t *body, uint64_t i)
{
    (void)s;
    im->sum[i] = XXH3_64bits(body, body_bytes(im));
    return SAC_OK;
}

static sac_status sum_pages(struct stream *s, struct image *im, const struct some *some)
{
    return see_bodies(s, im, some, sum_body);
}

sac_status state_walk_sums(struct stream *s, struct image *im)
{
    if (s->direction == WRITE) TRY(each_some(s, im, sum_pages));
    return state_transfer(s, im->sum, im->n_page * sizeof *im->sum);
}

static sac_status write_body(struct stream *s, struct image *im, uint8_t *body, uint64_t i)
{
    (void)i;
    return state_transfer(s, body, body_bytes(im));
}

static sac_status write_pages(struct stream *s, struct image *im, const struct some *some)
{
    return see_bodies(s, im, some, write_body);
}

/* Page bodies that threads read and check in parallel. */
struct reading_bodies {
    const struct stream *s;
    const struct image *im;
    const struct mirror_part *m;
    uint64_t at, first; /* offset in the stream; number among all pages */
    bool is_damaged;
    int why; /* not 0: one could not be read (state_read_at) */
};

static void read_body(void *arg, uint32_t i, uint32_t worker_i)
{
    struct reading_bodies *r = arg;
    const size_t n = body_bytes(r->im);
    uint8_t *body = mirror_seen(&r->im->e->pool, r->m, i);
    (void)worker_i;
    const int why = state_read_at(r->s, body, n, r->at + i * (uint64_t)n);
    if (why != 0) __atomic_store_n(&r->why, why, __ATOMIC_RELAXED);
    if (why == 0 && XXH3_64bits(body, n) != r->im->sum[r->first + i])
        __atomic_store_n(&r->is_damaged, true, __ATOMIC_RELAXED);
}

static sac_status read_pages(struct stream *s, struct image *im, const struct some *some)
{
    const struct pool *p = &im->e->pool;
    struct mirror_part m = bodies_of(im, some);
    struct reading_bodies r = {.s = s, .im = im, .m = &m, .at = s->n, .first = some->first};
    TRY(state_pass(s, m.n * (uint64_t)m.width));
    const sac_status held = tier_open(p->tier, some->id, some->n);
    if (held != SAC_OK) return tier_explain(p->tier, held, s->err);
    mirror_begin(p, &m);
    workers_for(im->e->workers, m.n, read_body, &r);
    mirror_put(p, &m);
    if (p->tier) memcpy(pool_page(p, some->id[0]), tier_card(p->tier, some->id[0]), card_bytes(im));
    tier_close(p->tier, some->id, some->n);
    if (r.why != 0) return state_unreadable(s, r.why);
    return r.is_damaged ? state_damaged(s, "a page's checksum is another one") : SAC_OK;
}

/* Leaves the pages in the open file, from which the tier reads them. */
static sac_status adopt_pages(struct stream *s, struct image *im)
{
    struct pool *p = &im->e->pool;
    struct source *source;
    uint64_t n = 0;
    TRY(source_open(&source, s->file, s->name, s->err));
    source->at = (off_t)im->head.page_at;
    source->stride = body_bytes(im);
    for (size_t lane = 0; lane < state_lane_count(im); lane++)
        for (uint32_t i = 0; i < im->head.n_tok / PAGE_TOK; i++) {
            const page_id id = pool_table(p, im->seq_i, 0)[lane * p->max_page + i];
            if (id == PAGE_NONE) continue;
            tier_adopt(p->tier, id, source, (uint32_t)n, im->sum[n]);
            n++;
        }
    tier_let_source(p->tier, source);
    s->n += n * body_bytes(im);
    return SAC_OK;
}

/* The bytes of the pages after their cards. */
sac_status state_walk_bodies(struct stream *s, struct image *im)
{
    if (s->direction == MEASURE) s->n += im->n_page * body_bytes(im);
    if (s->direction == WRITE) return each_some(s, im, write_pages);
    if (s->direction == READ && s->file && im->e->pool.tier) return adopt_pages(s, im);
    return s->direction == READ ? each_some(s, im, read_pages) : SAC_OK;
}
