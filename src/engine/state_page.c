/* state_page.c: the pages of a saved sequence. In a state a page is cut in two: its card (tier.h),
 * which stands with all that is always read, and its body, which stands behind that and has a
 * checksum of its own. So a file can stay the place of its bodies: a tier fetches those that
 * somebody reads. */
#include "engine/state_walk.h"

#include "kv/mirror.h"

#include <string.h>

sac_status state_transfer_pool(struct stream *s, const struct pool *p, uint8_t *at, size_t n)
{
    uint8_t *bytes = mirror_room(p, at);
    if (s->direction == WRITE) TRY(mirror_fetch(p, &bytes, at, n, s->err));
    TRY(state_transfer(s, bytes, n));
    if (s->direction == READ) mirror_store(p, at, n);
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

/* Says of a page whether it is there. */
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
    /* Together, so that pages of a lane lie behind each other; but one by one where some are given
     * back at once, so that no more are taken than are kept. */
    if (!im->head.has_gaps) TRY(reserve(s, im, 0, n_page));
    for (uint32_t i = 0; i < n_page; i++) {
        if (im->head.has_gaps) TRY(reserve(s, im, i, 1));
        for (size_t lane = 0; lane < state_lane_count(im); lane++) TRY(walk_entry(s, im, lane, i));
    }
    if (s->direction == READ && im->n_page != im->head.n_page)
        return state_damaged(s, "it has other pages than it says");
    return SAC_OK;
}

/* Calls `fn` for every page that is there, with its number, as long as all goes well. */
typedef sac_status (*page_fn)(struct stream *s, struct image *im, page_id id, uint64_t i);

static sac_status each_page(struct stream *s, struct image *im, page_fn fn)
{
    const struct pool *p = &im->e->pool;
    uint64_t n = 0;
    for (size_t lane = 0; lane < state_lane_count(im); lane++)
        for (uint32_t i = 0; i < im->head.n_tok / PAGE_TOK; i++) {
            const page_id id = pool_table(p, im->seq_i, 0)[lane * p->max_page + i];
            if (id != PAGE_NONE) TRY(fn(s, im, id, n++));
        }
    return SAC_OK;
}

static size_t card_bytes(const struct image *im)
{
    return tier_card_bytes(&im->e->pool.geom);
}

static size_t body_bytes(const struct image *im)
{
    return im->e->pool.geom.bytes - card_bytes(im);
}

/* Cards are in memory, with a tier beside the frames. */
static sac_status move_card(struct stream *s, struct image *im, page_id id, uint64_t i)
{
    const struct pool *p = &im->e->pool;
    (void)i;
    return state_transfer_pool(s, p, p->tier ? tier_card(p->tier, id) : pool_page(p, id),
                               card_bytes(im));
}

sac_status state_walk_cards(struct stream *s, struct image *im)
{
    if (s->direction == MEASURE) s->n += im->n_page * card_bytes(im);
    if (s->direction == MEASURE || !card_bytes(im)) return SAC_OK;
    return each_page(s, im, move_card);
}

/* Where the body of a page is that is in its frame, or on its way there. */
static uint8_t *body_of(const struct image *im, page_id id)
{
    return pool_page(&im->e->pool, id) + card_bytes(im);
}

static sac_status sum_page(struct stream *s, struct image *im, page_id id, uint64_t i)
{
    const struct pool *p = &im->e->pool;
    uint8_t *bytes;
    const sac_status held = tier_acquire(p->tier, &id, 1);
    sac_status status = held;
    if (held == SAC_OK) status = mirror_fetch(p, &bytes, body_of(im, id), body_bytes(im), s->err);
    if (status == SAC_OK) im->sum[i] = XXH3_64bits(bytes, body_bytes(im));
    if (tier_holds(held)) tier_release(p->tier, &id, 1);
    return held == SAC_OK ? status : tier_explain(p->tier, held, s->err);
}

sac_status state_walk_sums(struct stream *s, struct image *im)
{
    if (s->direction == WRITE) TRY(each_page(s, im, sum_page));
    return state_transfer(s, im->sum, im->n_page * sizeof *im->sum);
}

static sac_status write_page(struct stream *s, struct image *im, page_id id, uint64_t i)
{
    const struct pool *p = &im->e->pool;
    (void)i;
    const sac_status held = tier_acquire(p->tier, &id, 1);
    const sac_status status =
        held == SAC_OK ? state_transfer_pool(s, p, body_of(im, id), body_bytes(im)) : held;
    if (tier_holds(held)) tier_release(p->tier, &id, 1);
    return held == SAC_OK ? status : tier_explain(p->tier, held, s->err);
}

static sac_status read_page(struct stream *s, struct image *im, page_id id, uint64_t i)
{
    const struct pool *p = &im->e->pool;
    const sac_status held = tier_open(p->tier, &id, 1);
    if (held != SAC_OK) return tier_explain(p->tier, held, s->err);
    uint8_t *bytes = mirror_room(p, body_of(im, id));
    sac_status status = state_transfer(s, bytes, body_bytes(im));
    if (status == SAC_OK && XXH3_64bits(bytes, body_bytes(im)) != im->sum[i])
        status = state_damaged(s, "a page's checksum is another one");
    mirror_store(p, body_of(im, id), body_bytes(im));
    if (p->tier) memcpy(pool_page(p, id), tier_card(p->tier, id), card_bytes(im));
    tier_close(p->tier, &id, 1);
    return status;
}

/* The pages of an open file, from where they begin. */
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

/* The pages' bytes behind their cards. */
sac_status state_walk_bodies(struct stream *s, struct image *im)
{
    if (s->direction == MEASURE) s->n += im->n_page * body_bytes(im);
    if (s->direction == WRITE) return each_page(s, im, write_page);
    if (s->direction == READ && s->file && im->e->pool.tier) return adopt_pages(s, im);
    return s->direction == READ ? each_page(s, im, read_page) : SAC_OK;
}
