/* side.c: side data of pages, for decode and prefill methods together. See the header.
 *
 * Invariant: a page's data is complete before any lane can read it: side_seal runs after the
 * layer's pages are sealed and before its selections. The content is the methods' affair. */
#include "engine/side.h"

#include "engine/engine.h"

#include <assert.h>

#define NOTE_PAGES 512u /* pages per call of a device */

void side_begin(sac_engine *e)
{
    e->side.n_item = 0;
    e->side.page_bytes = 0;
    e->side.has_seal_value = false;
}

struct side_place side_add(sac_engine *e, const struct side_user *user)
{
    struct side *s = &e->side;
    const struct side_place place = {.bytes = user->bytes, .before = s->page_bytes};
    if (user->bytes == 0) return place;
    assert(user->seal && s->n_item < sizeof s->item / sizeof s->item[0]);
    s->item[s->n_item++] = *user;
    s->page_bytes += user->bytes;
    s->has_seal_value = s->has_seal_value || user->seal_value;
    return place;
}

void side_plan(sac_engine *e, struct arena *a)
{
    const struct page_geom *g = &e->pool.geom;
    struct side *s = &e->side;
    const size_t before = arena_used(a), n_worker = s->page_bytes ? workers_count(e->workers) : 0;
    s->n_page = e->pool.part[e->at].n_page;
    s->data = arena_take_tensor(a, s->n_page, s->page_bytes);
    e->stats.side_bytes += arena_used(a) - before;
    s->page = arena_take(a, n_worker * 2 * PAGE_TOK * g->head_dim, sizeof *s->page);
}

struct seal_call {
    sac_engine *e;
    const page_id *page;
};

static void seal_page(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct seal_call *c = arg;
    const struct side *s = &c->e->side;
    const struct pool *p = &c->e->pool;
    const size_t n = (size_t)PAGE_TOK * p->geom.head_dim;
    float *k = s->page + 2 * n * worker_i, *v = s->has_seal_value ? k + n : NULL;
    const size_t id = c->page[i];
    page_read(k, v, &p->geom, pool_page(p, c->page[i]), PAGE_SEALED, PAGE_TOK);
    uint8_t *array = s->data;
    for (uint32_t j = 0; j < s->n_item; array += s->n_page * s->item[j++].bytes) {
        const struct side_user *user = &s->item[j];
        uint8_t *side = array + id * user->bytes;
        user->seal(side, user->shape, user->param, k);
        if (user->seal_value) user->seal_value(side, user->shape, user->param, v);
    }
}

/* Computes the data on a device, where it is indexed by frames, which do not change there. */
static void note_pages(sac_engine *e, const page_id *page, uint32_t n)
{
    const struct side *s = &e->side;
    const uint32_t layer = pool_first_layer(&e->pool, *page);
    uint32_t frame[NOTE_PAGES];
    assert(n <= NOTE_PAGES);
    offload_settle(e->pool.offload, &e->ops, e->workers, &e->pool.geom);
    for (uint32_t i = 0; i < n; i++) frame[i] = e->pool.frame_of[page[i]];
    uint8_t *array = s->data;
    for (uint32_t j = 0; j < s->n_item; array += s->n_page * s->item[j++].bytes) {
        const struct side_user *user = &s->item[j];
        e->ops.lanes.note(e->workers,
                          &(struct op_note){.kind = user->note(user->shape, user->param),
                                            .geom = &e->pool.geom,
                                            .frames = pool_frames(&e->pool, layer),
                                            .frame = frame,
                                            .n_page = n,
                                            .side = array,
                                            .stride = user->bytes});
    }
}

/* Computes the data of pages of one place, which must be the current one. */
static void seal_pages(sac_engine *e, const page_id *page, uint32_t n)
{
    struct seal_call c = {.e = e, .page = page};
    for (uint32_t i = 0; i < n && !e->backend.is_host; i += NOTE_PAGES)
        note_pages(e, page + i, n - i < NOTE_PAGES ? n - i : NOTE_PAGES);
    if (e->backend.is_host) workers_for(e->workers, n, seal_page, &c);
}

void side_seal(sac_engine *e, const page_id *page, uint32_t n)
{
    const uint32_t at = e->at;
    for (uint32_t i = 0, end; i < n && e->side.page_bytes; i = end) {
        const uint32_t layer = pool_first_layer(&e->pool, page[i]);
        for (end = i + 1; end < n && pool_first_layer(&e->pool, page[end]) == layer;) end++;
        place_enter(e, place_of(e, layer));
        seal_pages(e, page + i, end - i);
    }
    place_enter(e, at);
}

const uint8_t *side_base(const struct side *s, struct side_place place)
{
    return place.bytes ? s->data + s->n_page * place.before : NULL;
}
