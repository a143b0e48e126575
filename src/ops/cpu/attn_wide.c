/* attn_wide.c: attention of many rows: tiles of rows, the panels of keys that they meet, and the
 * distribution of this work.
 *
 * Invariants (attn.h says why they matter):
 *  1. Panel boundaries are multiples of panel_tok in the sequence (in the list of pages), stretch
 *     boundaries are multiples of the longest panel. For a dense list both are positions, so a
 *     selection of all pages gives the bits of dense attention.
 *  2. The number of subs of a tile divides the pages of a panel and tiles are aligned, so the own
 *     pages of all subs lie in one panel, the tile's last. Otherwise the number is free, because
 *     results do not depend on it: it is lowered until there are enough items for the workers.
 *  3. Stretches are summed separately and added in order, whether one worker computes a whole tile
 *     or each stretch is a unit of work, as it is when tiles are too few for the workers. A unit
 *     writes only its own outputs, or its own sums.
 *  4. Segments do not split items: a run without segments takes the same path as if segments did
 *     not exist.
 *  5. With a pager, pages are acquired for one panel at a time and read only until they are
 *     released. The computation and its order are the same as without one. */
#include "ops/cpu/attn_call.h"

#include <assert.h>
#include <string.h>

#define ITEMS_PER_WORKER 4u  /* with fewer, waiting for the last item takes noticeable time */
#define SLOTS_PER_WORKER 16u /* for the sums of stretches that are separate units */
/* Minimum length of a stretch; a longer one is a quarter to an eighth of the pages before it.
 * Adding the sums costs a hundredth of the shortest stretch, and a row of a million tokens has 32
 * stretches. */
#define STRETCH_PAGES 64u
#define STRETCH_PARTS 8u

/* Rows of a tile that belong to one run and share an own page. */
struct sub {
    const struct attn_run *run;
    uint32_t row, n_row; /* first row in the tile, number of rows */
};

struct tile {
    struct attn_tile t;
    uint32_t n_sub;
    struct sub sub[ATTN_ROW_MAX];
};

static uint32_t sub_pos(const struct tile *tile, uint32_t s)
{
    return tile->t.pos[tile->sub[s].row];
}

static bool has_rotation(const struct attn_run *run, uint32_t segment)
{
    return segment < run->n_segment && run->segment[segment].cos;
}

/* Makes the tile's queries those for segment `i`. If runs with different segments share a tile, the
 * rows of runs without a rotation for segment `i` are copied unchanged. */
static void tile_rotate(const struct attn_call *c, struct tile *tile, uint32_t i)
{
    struct attn_tile *t = &tile->t;
    const struct op_attn *op = t->op;
    const size_t d = op->geom->head_dim, width = t->group * d;
    const float *q = op->q + t->row0 * op->q_stride + t->head0 * d;
    float *rotated = (float *)(void *)((uint8_t *)t->mem + c->rotated_at);
    if (t->segment == i) return;
    t->segment = i;
    t->q = q;
    t->q_stride = op->q_stride;
    for (uint32_t s = 0; s < tile->n_sub; s++) {
        const struct sub *sub = &tile->sub[s];
        if (!has_rotation(sub->run, i)) continue;
        for (uint32_t r = sub->row; r < sub->row + sub->n_row; r++)
            for (uint32_t h = 0; h < t->group; h++)
                segment_turn(rotated + r * width + h * d, q + r * op->q_stride + h * d, (uint32_t)d,
                             &sub->run->segment[i], op->rope, 1);
        t->q = rotated;
        t->q_stride = width;
    }
    for (uint32_t s = 0; s < tile->n_sub && t->q == rotated; s++) {
        const struct sub *sub = &tile->sub[s];
        for (uint32_t r = sub->row; r < sub->row + sub->n_row && !has_rotation(sub->run, i); r++)
            memcpy(rotated + r * width, q + r * op->q_stride, width * sizeof *rotated);
    }
    c->k->wide_query(t);
}

static uint32_t tile_sub_max(const struct attn_kernel *k, uint32_t head_dim, uint32_t group)
{
    const uint32_t panel_pages = k->panel_tok(head_dim) / PAGE_TOK;
    uint32_t n = 1;
    while (n * 2 <= min_u32(panel_pages, ATTN_SUB_MAX) && n * 2 * PAGE_TOK * group <= k->tile_q)
        n *= 2;
    return n;
}

static bool run_by_head(const struct attn_run *run)
{
    return run->plan && run->plan->by_head;
}

/* Number of tiles per block of rows: groups of query heads that read the same lists. */
static uint32_t run_lane_count(const struct op_attn *op, const struct attn_run *run)
{
    return run_by_head(run) ? op->n_head : op->geom->n_kv_head;
}

/* Subs of a full tile of this run. A tile of a plan must consist of whole tiles of this file. */
static uint32_t run_sub(const struct attn_call *c, const struct attn_run *run)
{
    uint32_t n_sub = run_by_head(run) ? c->n_head_sub : c->n_sub;
    while (run->plan && run->plan->tile_tok / PAGE_TOK % n_sub != 0) n_sub /= 2;
    return n_sub;
}

static uint32_t run_tile_count(const struct attn_run *run, uint32_t n_sub)
{
    const uint32_t rows = n_sub * PAGE_TOK;
    return (run->pos0 + run->n_row - 1) / rows - run->pos0 / rows + 1;
}

/* Index after the last run that shares tiles with run `i`. */
static uint32_t joined_end(const struct op_attn *op, uint32_t i)
{
    for (i++; i < op->n_run && op->run[i].joins; i++) {
    }
    return i;
}

/* Number of tiles of joined runs [i, end): full tiles, whatever the positions of their rows. */
static uint32_t joined_tile_count(const struct attn_call *c, uint32_t i, uint32_t end)
{
    const struct attn_run *run = c->op->run;
    const uint32_t n_row = run[end - 1].row0 + run[end - 1].n_row - run[i].row0;
    const uint32_t size = run_sub(c, &run[i]) * PAGE_TOK;
    return (n_row + size - 1) / size;
}

static uint32_t run_item_count(const struct attn_call *c, uint32_t i, uint32_t end)
{
    const struct attn_run *run = &c->op->run[i];
    if (run->kind != ROW_PROMPT) return 0;
    const uint32_t n =
        end > i + 1 ? joined_tile_count(c, i, end) : run_tile_count(run, run_sub(c, run));
    return n * run_lane_count(c->op, run);
}

static uint32_t wide_item_count(const struct attn_call *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0, end; i < c->op->n_run; i = end) {
        end = joined_end(c->op, i);
        n += run_item_count(c, i, end);
    }
    return n;
}

/* Adds rows [first, end) of the batch, all of one run, to a tile. */
static void tile_add_rows(struct tile *tile, const struct attn_run *run, uint32_t first,
                          uint32_t end)
{
    struct attn_tile *t = &tile->t;
    if (t->n_row == 0) t->row0 = first;
    for (uint32_t row = first; row < end; row++) {
        const uint32_t pos = run->pos0 + row - run->row0;
        if (row == first || pos % PAGE_TOK == 0)
            tile->sub[tile->n_sub++] = (struct sub){.run = run, .row = t->n_row};
        tile->sub[tile->n_sub - 1].n_row++;
        assert(t->n_row < ATTN_ROW_MAX);
        t->pos[t->n_row++] = pos;
    }
}

/* Adds the run's rows in the aligned tile `tile_i` of the sequence. */
static void tile_set_rows(struct tile *tile, const struct attn_run *run, uint32_t tile_i,
                          uint32_t n_sub)
{
    const uint32_t first = max_u32(run->pos0, tile_i * n_sub * PAGE_TOK);
    const uint32_t end = min_u32(run->pos0 + run->n_row, (tile_i + 1) * n_sub * PAGE_TOK);
    tile_add_rows(tile, run, run->row0 + first - run->pos0, run->row0 + end - run->pos0);
}

/* Adds the rows of tile `tile_i` of joined runs [run, end). */
static void tile_set_joined(struct tile *tile, const struct attn_run *run,
                            const struct attn_run *end, uint32_t tile_i, uint32_t n_sub)
{
    const uint32_t first = run->row0 + tile_i * n_sub * PAGE_TOK, last = first + n_sub * PAGE_TOK;
    for (; run < end && run->row0 < last; run++) {
        assert(tile->n_sub == 0 || run->row0 == tile->t.row0 + tile->t.n_row);
        const uint32_t from = max_u32(first, run->row0);
        tile_add_rows(tile, run, from, max_u32(from, min_u32(last, run->row0 + run->n_row)));
    }
}

/* The number of the plan's list that the row at `pos` reads. */
static uint32_t plan_list(const struct op_attn *op, const struct attn_run *run, uint32_t pos,
                          uint32_t head)
{
    const uint32_t tile_tok = run->plan->tile_tok, n_lane = run_lane_count(op, run);
    return (pos / tile_tok - run->pos0 / tile_tok) * n_lane + head / (op->n_head / n_lane);
}

/* The end of the stretch that contains page `index` of a walk. */
static uint32_t stretch_end(uint32_t index)
{
    uint32_t n = STRETCH_PAGES;
    while (n * STRETCH_PARTS <= index) n *= 2;
    return (index / n + 1) * n;
}

/* The number of stretches from page `first` to page `last` of a walk. */
static uint32_t stretch_count(uint32_t first, uint32_t last)
{
    uint32_t n = 1;
    while ((first = stretch_end(first)) <= last) n++;
    return n;
}

/* Iterates over the pages that a tile reads, in ascending order. `index` counts them; for a dense
 * list it is the page. */
struct page_walk {
    struct attn_range now;               /* rest of the current range */
    const struct attn_range *next, *end; /* following ranges */
    uint32_t index;
};

static struct page_walk walk_begin(const struct attn_tile *t, const struct attn_run *run)
{
    const uint32_t first = first_visible(t->op, t->pos[0]) / PAGE_TOK;
    if (!run->plan) return (struct page_walk){.now = {first, PAGE_NONE}, .index = first};
    assert(t->op->window == 0);
    const struct attn_plan *plan = run->plan;
    const uint32_t list = plan_list(t->op, run, t->pos[0], t->head0);
    struct page_walk w = {.now = {PAGE_NONE, PAGE_NONE},
                          .next = plan->range + plan->range_ptr[list],
                          .end = plan->range + plan->range_ptr[list + 1]};
    if (w.next < w.end) w.now = *w.next++;
    assert(w.now.begin < w.now.end || w.now.begin == PAGE_NONE);
    return w;
}

static void walk_step(struct page_walk *w)
{
    w->index++;
    if (++w->now.begin < w->now.end) return;
    w->now = w->next < w->end ? *w->next++ : (struct attn_range){PAGE_NONE, PAGE_NONE};
}

/* Names the next pages to the pager. */
static void page_ahead(const struct attn_tile *t, const struct attn_run *run, struct page_walk walk,
                       uint32_t end)
{
    const struct attn_pager *pager = t->op->pager;
    const page_id *table = run->table + t->kv_head * run->table_stride;
    page_id id[ATTN_TAKE_PAGES];
    uint32_t n = 0;
    for (; walk.now.begin < end && n < ATTN_TAKE_PAGES; walk_step(&walk))
        id[n++] = table[walk.now.begin];
    pager->ahead(pager->user, id, n);
}

/* Prefetches the next pages of the walk that are before page `end`. */
static void look_ahead(struct attn_tile *t, const struct attn_run *run, struct page_walk walk,
                       uint32_t end)
{
    struct attn_ahead *a = &t->ahead;
    if (t->op->pager) {
        page_ahead(t, run, walk, end);
        return;
    }
    *a = (struct attn_ahead){.page_lines = (uint32_t)(t->op->geom->bytes / 64)};
    for (; walk.now.begin < end && a->n_page < ATTN_PANEL_MAX; walk_step(&walk))
        a->page[a->n_page++] = sealed_page(t->op, run, t->kv_head, walk.now.begin).bytes;
}

/* Packs pages of the walk, up to page `end`, into a panel whose slot 0 has index `base` in the
 * walk; false: the pager cannot provide them. */
static bool pack_pages(const struct attn_call *c, struct attn_tile *t, const struct attn_run *run,
                       struct page_walk *walk, uint32_t base, uint32_t end)
{
    const struct op_attn *op = t->op;
    const uint32_t last = base + c->k->panel_tok(op->geom->head_dim) / PAGE_TOK;
    const page_id *table = run->table + t->kv_head * run->table_stride;
    page_id id[ATTN_PANEL_MAX];
    uint32_t n = 0;
    for (struct page_walk w = *walk; w.now.begin < end && w.index < last; walk_step(&w))
        id[n++] = table[w.now.begin];
    if (!take_pages(op, id, n)) return false;
    for (; walk->now.begin < end && walk->index < last; walk_step(walk)) {
        struct attn_page page = sealed_page(op, run, t->kv_head, walk->now.begin);
        page.hidden = walk->now.begin >= t->pos[0] / PAGE_TOK;
        c->k->wide_page(t, walk->index - base, &page);
    }
    give_pages(op, id, n);
    return true;
}

static bool pack_tokens(const struct attn_call *c, struct attn_tile *t, uint32_t slot,
                        const struct attn_page *page)
{
    page_id id[PAGE_TOK];
    const uint32_t n = name_token_pages(page->table, page->tok, page->end, id);
    if (!take_pages(t->op, id, n)) return false;
    c->k->wide_page(t, slot, page);
    give_pages(t->op, id, n);
    return true;
}

/* Attends to the single tokens of a plan, which every row of the tile sees; false: the pager cannot
 * provide their pages. */
static bool tile_tokens(const struct attn_call *c, struct tile *tile, const struct attn_run *run)
{
    struct attn_tile *t = &tile->t;
    const struct op_attn *op = t->op;
    if (!run->plan || !run->plan->tok) return true;
    const uint32_t list = plan_list(t->op, run, t->pos[0], t->head0),
                   panel_tok = c->k->panel_tok(op->geom->head_dim);
    const uint32_t *tok = run->plan->tok + run->plan->tok_ptr[list];
    const uint32_t n = run->plan->tok_ptr[list + 1] - run->plan->tok_ptr[list];
    const float *logw = run->plan->tok_logw ? run->plan->tok_logw + run->plan->tok_ptr[list] : NULL;
    assert(n == 0 || tok[n - 1] / PAGE_TOK < t->pos[0] / PAGE_TOK);
    uint32_t segment = 0;
    for (uint32_t i = 0, end; i < n; i = end) {
        segment = segment_of(run->segment, run->n_segment, tok[i] / PAGE_TOK, segment);
        tile_rotate(c, tile, segment);
        end = min_u32(n, i + panel_tok);
        while (segment < run->n_segment && tok[end - 1] / PAGE_TOK >= run->segment[segment].end)
            end--;
        struct attn_panel p = {.row1 = t->n_row, .n_tok = end - i, .gathered = true};
        for (; p.end < p.n_tok; p.end += PAGE_TOK) {
            struct attn_page page =
                gathered_page(op, run, t->kv_head, tok + i + p.end, end - i - p.end);
            if (logw) page.logw = logw + i + p.end;
            if (!pack_tokens(c, t, p.end / PAGE_TOK, &page)) return false;
        }
        p.skip = p.end > p.n_tok ? 0 : run->plan->skip;
        c->k->wide_panel(t, &p);
    }
    return true;
}

/* The own page of sub *sub and of the following subs that share it; advances *sub past them. */
static struct attn_page next_own_page(const struct tile *tile, uint32_t *sub, uint32_t h)
{
    const struct attn_run *run = tile->sub[*sub].run;
    const uint32_t page = sub_pos(tile, *sub) / PAGE_TOK;
    uint32_t last = sub_pos(tile, *sub);
    for (; *sub < tile->n_sub && sub_pos(tile, *sub) / PAGE_TOK == page; ++*sub)
        last = tile->t.pos[tile->sub[*sub].row + tile->sub[*sub].n_row - 1];
    struct attn_page own = own_page(tile->t.op, run, h, page * PAGE_TOK);
    own.end = last % PAGE_TOK + 1;
    return own;
}

/* A panel whose pages `begin` to `slot` are packed and before the own page of the remaining rows,
 * from sub `s` on: all of these see all of it. */
static struct attn_panel full_panel(const struct tile *tile, uint32_t s, uint32_t base,
                                    uint32_t begin, uint32_t slot)
{
    const struct attn_tile *t = &tile->t;
    const struct attn_plan *plan = tile->sub[0].run->plan;
    const uint32_t end = slot * PAGE_TOK;
    return (struct attn_panel){.row0 = tile->sub[s].row,
                               .row1 = t->n_row,
                               .pos = base * PAGE_TOK,
                               .begin = begin * PAGE_TOK,
                               .end = end,
                               .n_tok = end,
                               .masked = first_visible(t->op, t->pos[t->n_row - 1]) >
                                         (base + begin) * PAGE_TOK,
                               .skip = plan ? plan->skip : 0};
}

/* The last panel of sub *s and of those that share its own page, which is packed into `slot`; later
 * rows see that page in sealed form, if they read it. Advances *s past these subs. `pos` fits the
 * own page; the pages before it are consecutive with it (windows) or fully visible. */
static struct attn_panel own_panel(const struct attn_call *c, struct tile *tile, uint32_t *s,
                                   uint32_t begin, uint32_t slot)
{
    struct attn_tile *t = &tile->t;
    const uint32_t own = sub_pos(tile, *s) / PAGE_TOK, row0 = tile->sub[*s].row;
    const uint32_t end = (slot + 1) * PAGE_TOK;
    const struct attn_page page = next_own_page(tile, s, t->kv_head);
    c->k->wide_page(t, slot, &page);
    t->ahead.n_page = 0;
    return (struct attn_panel){.row0 = row0,
                               .row1 = *s < tile->n_sub ? tile->sub[*s].row : t->n_row,
                               .pos = (own - slot) * PAGE_TOK,
                               .begin = begin * PAGE_TOK,
                               .end = end,
                               .n_tok = end,
                               .masked = true};
}

/* Attends to the pages of a walk. Panels end at multiples of their length in the walk, at the end
 * of a segment, and with the own page of the first remaining rows, which are then finished. `only`:
 * just the first stretch of the walk. */
static void wide_panels(const struct attn_call *c, struct tile *tile, struct page_walk walk,
                        bool only)
{
    struct attn_tile *t = &tile->t;
    const struct op_attn *op = t->op;
    const struct attn_run *run = tile->sub[0].run, *last = tile->sub[tile->n_sub - 1].run;
    const uint32_t panel_pages = c->k->panel_tok(op->geom->head_dim) / PAGE_TOK;
    const bool folds = !run->plan || run->plan->skip <= 0;
    uint32_t base = walk.index / panel_pages * panel_pages, begin = walk.index - base;
    uint32_t stretch = folds ? stretch_end(walk.index) : PAGE_NONE;
    uint32_t segment = segment_of(last->segment, last->n_segment, walk.now.begin, 0);
    tile_rotate(c, tile, segment);
    for (uint32_t s = 0; s < tile->n_sub;) {
        const uint32_t own = sub_pos(tile, s) / PAGE_TOK;
        const uint32_t border =
            segment < last->n_segment ? min_u32(own, last->segment[segment].end) : own;
        if (!pack_pages(c, t, run, &walk, base, border)) return;
        const uint32_t slot = walk.index - base;
        const bool crosses =
            slot < panel_pages && segment < last->n_segment && border == last->segment[segment].end;
        struct attn_panel p;
        if (slot == panel_pages || crosses) {
            look_ahead(t, run, walk, own);
            p = full_panel(tile, s, base, begin, slot);
            begin = slot % panel_pages;
            base += slot - begin;
        } else {
            p = own_panel(c, tile, &s, begin, slot);
        }
        if (p.begin < p.end) c->k->wide_panel(t, &p);
        if (base == stretch) {
            if (only) return;
            c->k->wide_fold(t);
            stretch = stretch_end(base);
        }
        if (!crosses) continue;
        segment = segment_of(last->segment, last->n_segment, walk.now.begin, segment);
        tile_rotate(c, tile, segment);
    }
}

static void wide_tile(const struct attn_call *c, struct tile *tile)
{
    const struct attn_run *run = tile->sub[0].run;
    c->k->wide_begin(&tile->t);
    if (tile_tokens(c, tile, run)) wide_panels(c, tile, walk_begin(&tile->t, run), false);
    c->k->wide_end(&tile->t);
}

/* ---- Units ---- */

/* Rows of runs [run, end) of the batch times some query heads. */
struct item {
    uint32_t run, end;
    uint32_t tile_i, n_sub;
    uint32_t head0, group;
};

/* Finds an item. The last tile of a run comes first, because it reads most; all heads of a tile are
 * consecutive. */
static struct item find_item(const struct attn_call *c, uint32_t item_i)
{
    const struct op_attn *op = c->op;
    uint32_t left = item_i, i = 0, end = joined_end(op, 0);
    for (uint32_t n; left >= (n = run_item_count(c, i, end)); i = end, end = joined_end(op, i))
        left -= n;
    const struct attn_run *run = &op->run[i];
    const uint32_t n_lane = run_lane_count(op, run), n_sub = run_sub(c, run);
    const uint32_t last = end > i + 1 ? joined_tile_count(c, i, end) - 1
                                      : (run->pos0 + run->n_row - 1) / (n_sub * PAGE_TOK);
    return (struct item){.run = i,
                         .end = end,
                         .tile_i = last - left / n_lane,
                         .n_sub = n_sub,
                         .head0 = left % n_lane * (op->n_head / n_lane),
                         .group = op->n_head / n_lane};
}

static struct tile open_tile(const struct attn_call *c, const struct item *it, uint32_t worker_i)
{
    const struct attn_run *run = &c->op->run[it->run];
    struct tile tile = {.t = {.op = c->op,
                              .kv_head = it->head0 / c->group,
                              .head0 = it->head0,
                              .group = it->group,
                              .segment = UINT32_MAX,
                              .mem = c->worker_mem + worker_i * c->worker_bytes}};
    if (it->end > it->run + 1)
        tile_set_joined(&tile, run, c->op->run + it->end, it->tile_i, it->n_sub);
    else
        tile_set_rows(&tile, run, it->tile_i, it->n_sub);
    return tile;
}

/* Positions of the first and the last row of an item's tile; for joined runs, of all of their
 * rows. */
static struct attn_range item_rows(const struct attn_call *c, const struct item *it)
{
    const struct attn_run *run = &c->op->run[it->run], *last = &c->op->run[it->end - 1];
    const uint32_t size = it->n_sub * PAGE_TOK, end = last->pos0 + last->n_row;
    if (it->end > it->run + 1) return (struct attn_range){run->pos0, end - 1};
    return (struct attn_range){max_u32(run->pos0, it->tile_i * size),
                               min_u32(end, (it->tile_i + 1) * size) - 1};
}

/* Number of separate units of an item: its stretches, where splitting is supported, otherwise 1. */
static uint32_t item_parts(const struct attn_call *c, const struct item *it)
{
    const struct attn_run *run = &c->op->run[it->run];
    const struct attn_range row = item_rows(c, it);
    if (it->end > it->run + 1 || run->plan || run->n_segment || it->n_sub > 1) return 1;
    return stretch_count(first_visible(c->op, row.begin) / PAGE_TOK, row.end / PAGE_TOK);
}

/* Cost of an item: pages it reads times queries. */
static uint64_t item_length(const struct attn_call *c, const struct item *it)
{
    const struct attn_run *run = &c->op->run[it->run];
    const struct attn_range row = item_rows(c, it);
    const uint32_t own = row.end / PAGE_TOK + 1;
    uint64_t n = own - first_visible(c->op, row.begin) / PAGE_TOK;
    if (run->plan) {
        const struct attn_plan *plan = run->plan;
        const uint32_t list = plan_list(c->op, run, row.begin, it->head0);
        n = plan->tok ? (plan->tok_ptr[list + 1] - plan->tok_ptr[list]) / PAGE_TOK : 0;
        for (uint32_t i = plan->range_ptr[list]; i < plan->range_ptr[list + 1]; i++)
            n += min_u32(plan->range[i].end, own) - plan->range[i].begin;
    }
    return n * (row.end - row.begin + 1) * it->group;
}

static void *unit_sums(const struct attn_call *c, uint32_t unit_i)
{
    return c->sums + unit_i * c->sums_bytes;
}

/* Merges the stretches of a tile, the first of which is unit `unit_i`. */
static void join_parts(const struct attn_call *c, struct tile *tile, uint32_t unit_i)
{
    const uint32_t n = c->unit[unit_i].n_part;
    tile->t.segment = UINT32_MAX;
    c->k->wide_begin(&tile->t);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0) c->k->wide_fold(&tile->t);
        c->k->wide_load(&tile->t, unit_sums(c, unit_i + i));
    }
    c->k->wide_end(&tile->t);
}

/* Computes one stretch. The worker that finishes the last stretch of a tile merges the sums, all of
 * which are complete then. */
static void wide_part(const struct attn_call *c, struct tile *tile, uint32_t unit_i)
{
    const struct attn_unit *unit = &c->unit[unit_i];
    const uint32_t first = unit_i - unit->part;
    struct page_walk walk = walk_begin(&tile->t, tile->sub[0].run);
    for (uint32_t i = 0; i < unit->part; i++) walk.now.begin = walk.index = stretch_end(walk.index);
    c->k->wide_begin(&tile->t);
    wide_panels(c, tile, walk, true);
    c->k->wide_save(&tile->t, unit_sums(c, unit_i));
    if (__atomic_sub_fetch(&c->unit[first].left, 1, __ATOMIC_ACQ_REL) == 0)
        join_parts(c, tile, first);
}

static void wide_unit(void *arg, uint32_t unit_i, uint32_t worker_i)
{
    const struct attn_call *c = arg;
    const struct attn_unit *unit = &c->unit[unit_i];
    const struct item it = find_item(c, unit->item);
    struct tile tile = open_tile(c, &it, worker_i);
    if (unit->n_part > 1)
        wide_part(c, &tile, unit_i);
    else
        wide_tile(c, &tile);
    if (c->op->n_skip) c->op->n_skip[worker_i] += tile.t.n_skip;
}

/* Lists the stretches of all tiles as separate units; returns their number, or 0 if there are not
 * enough slots. */
static uint32_t list_parts(struct attn_call *c, uint32_t n_item)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_item; i++) {
        const struct item it = find_item(c, i);
        const uint32_t n_part = item_parts(c, &it);
        if (n + n_part > c->n_slot) return 0;
        for (uint32_t p = 0; p < n_part; p++)
            c->unit[n++] = (struct attn_unit){
                .item = i, .part = (uint8_t)p, .n_part = (uint8_t)n_part, .left = (uint16_t)n_part};
    }
    return n;
}

/* Lists whole tiles, the longest octave first, because the last tile of a sparse plan could be
 * eight times as long as the others. Tiles of similar length stay in order: they read the same
 * pages. */
static uint32_t list_tiles(struct attn_call *c, uint32_t n_item)
{
    uint32_t begin[64 + 1] = {0}; /* first unit of each octave, longest first */
    for (uint32_t i = 0; i < n_item; i++) {
        const struct item it = find_item(c, i);
        c->octave[i] = (uint8_t)__builtin_clzll(item_length(c, &it) | 1);
        begin[c->octave[i] + 1]++;
    }
    for (uint32_t o = 0; o < 64; o++) begin[o + 1] += begin[o];
    for (uint32_t i = 0; i < n_item; i++)
        c->unit[begin[c->octave[i]]++] = (struct attn_unit){.item = i, .n_part = 1};
    return n_item;
}

void attn_wide_runs(struct workers *pool, struct attn_call *c)
{
    const uint32_t enough = ITEMS_PER_WORKER * workers_count(pool);
    c->n_sub = tile_sub_max(c->k, c->op->geom->head_dim, c->group);
    /* With a single head, a tile may have more rows in the same memory. */
    c->n_head_sub = tile_sub_max(c->k, c->op->geom->head_dim, 1);
    while (c->n_head_sub > c->n_sub * c->group) c->n_head_sub /= 2;
    while (c->n_sub > 1 && wide_item_count(c) < enough) c->n_sub /= 2;
    const uint32_t n_item = wide_item_count(c);
    uint32_t n = n_item < enough && workers_count(pool) > 1 ? list_parts(c, n_item) : 0;
    if (n == 0) n = list_tiles(c, n_item);
    workers_for(pool, n, wide_unit, c);
}

size_t attn_wide_bytes(const struct attn_kernel *k, const struct page_geom *g, uint32_t group,
                       uint32_t *out_n_q)
{
    *out_n_q = tile_sub_max(k, g->head_dim, group) * PAGE_TOK * group;
    return k->wide_bytes(g, *out_n_q);
}

uint32_t attn_unit_count(uint32_t n_worker, uint32_t n_row, uint32_t n_head)
{
    return max_u32(n_row * n_head, attn_slot_count(n_worker));
}

uint32_t attn_slot_count(uint32_t n_worker)
{
    return n_worker > 1 ? SLOTS_PER_WORKER * n_worker : 0;
}

size_t attn_sums_bytes(const struct attn_kernel *k, const struct page_geom *g, uint32_t group)
{
    return align_line(k->wide_sums(g, PAGE_TOK * group));
}
