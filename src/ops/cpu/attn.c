/* attn.c: who attends what: the split of attention into items, their order, and the merge.
 *
 * Invariants (attn.h says why they matter):
 *  1. Borders of panels are multiples of panel_tok in the sequence, borders of chunks multiples of
 *     chunk_pages in the list of pages. For a dense list both are positions, so a selection of all
 *     pages gives the bits of dense attention. Lists with single tokens have shorter chunks, as
 *     their own length says.
 *  2. The number of subs of a tile divides the pages of a panel and tiles are aligned, so the own
 *     pages of all subs lie in one panel, the tile's last. It is free otherwise: results do not
 *     depend on it, and it is lowered until there are items enough for the workers.
 *  3. An item writes only its own outputs (WIDE) or its own partial results (NARROW).
 *  4. Segments cut no item: a run without any takes the way it would if there were none at all.
 *  5. With a pager, pages are taken for one chunk or one panel at a time and looked at only until
 *     they are given back. What is computed, and in which order, is the same without.
 * It holds no arithmetic on keys or values but the final merge. */
#include "ops/cpu/attn.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define ITEMS_PER_WORKER 4u /* fewer make the last item's end visible */
#define CHUNK_CHANNELS                                                                             \
    65536u                   /* keys * head_dim of a chunk: 7 us of f16 at one core's bandwidth    \
                              */
#define LIST_CHUNKS      16u /* of a list with single tokens, which is short: for as many workers */
#define LIST_CHUNK_LEAST 4u  /* pages of such a chunk */
#define CHUNKS_AHEAD     2u  /* chunks of pages that come and go, behind the one at hand */
#define CHUNK_SLOTS_MIN  256u /* partial results for a batch of many short rows */

struct call {
    const struct op_attn *op;
    const struct attn_kernel *k;
    uint8_t *worker_mem;
    size_t worker_bytes, turn_at; /* of each, where its turned queries lie */
    uint32_t group;
    /* WIDE */
    uint32_t n_sub;      /* of a full tile */
    uint32_t n_head_sub; /* of one of a single query head */
    /* NARROW; a lane is one KV head of one run */
    uint32_t *lane_item; /* [n_run * n_kv_head + 1] first chunk of each lane, over all runs */
    uint32_t *lane_left; /* [n_run * n_kv_head] chunks that nobody has ended; atomic */
    float *partial;      /* [n_slot, partial_floats] */
    size_t partial_floats;
    uint32_t lane0, lane1; /* of this wave */
};

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* First position that a row sees. */
static uint32_t first_visible(const struct op_attn *op, uint32_t pos)
{
    return op->window > 0 && pos >= op->window ? pos - op->window + 1 : 0;
}

static struct attn_page own_page(const struct op_attn *op, const struct attn_run *run, uint32_t h,
                                 uint32_t pos)
{
    return (struct attn_page){.bytes = attn_own_page(run, op->geom, pos, h),
                              .form = PAGE_TAIL,
                              .end = pos % PAGE_TOK + 1};
}

static struct attn_page sealed_page(const struct op_attn *op, const struct attn_run *run,
                                    uint32_t h, uint32_t page)
{
    const page_id id = run->table[h * run->table_stride + page];
    return (struct attn_page){
        .bytes = page_frame(op->geom, op->frames, id), .form = PAGE_SEALED, .end = PAGE_TOK};
}

/* The first PAGE_TOK of n tokens. */
static struct attn_page gathered_page(const struct op_attn *op, const struct attn_run *run,
                                      uint32_t h, const uint32_t *tok, uint32_t n)
{
    return (struct attn_page){.bytes = op->frames.base,
                              .frames = &op->frames,
                              .form = PAGE_SEALED,
                              .end = min_u32(PAGE_TOK, n),
                              .tok = tok,
                              .n_tok = n,
                              .table = run->table + h * run->table_stride};
}

/* ---- Pages that come and go ---- */

static bool take_pages(const struct op_attn *op, const page_id *id, uint32_t n)
{
    return !op->pager || n == 0 || op->pager->take(op->pager->user, id, n);
}

static void give_pages(const struct op_attn *op, const page_id *id, uint32_t n)
{
    if (op->pager && n > 0) op->pager->give(op->pager->user, id, n);
}

/* Names the pages of n ascending tokens, none twice; returns how many. */
static uint32_t name_token_pages(const page_id *table, const uint32_t *tok, uint32_t n, page_id *id)
{
    uint32_t n_id = 0;
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || tok[i] / PAGE_TOK != tok[i - 1] / PAGE_TOK)
            id[n_id++] = table[tok[i] / PAGE_TOK];
    return n_id;
}

/* ---- WIDE ---- */

/* Rows of a tile that have one own page, of one run. */
struct sub {
    const struct attn_run *run;
    uint32_t row, n_row; /* of the tile's rows */
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

static bool turns(const struct attn_run *run, uint32_t segment)
{
    return segment < run->n_segment && run->segment[segment].cos;
}

/* Gives the tile the queries that meet segment `i`. Where rows of several segments share a tile,
 * one that stands in it or before it has no turn for it. */
static void tile_meet(const struct call *c, struct tile *tile, uint32_t i)
{
    struct attn_tile *t = &tile->t;
    const struct op_attn *op = t->op;
    const size_t d = op->geom->head_dim, width = t->group * d;
    const float *q = op->q + t->row0 * op->q_stride + t->head0 * d;
    float *turned = (float *)(void *)((uint8_t *)t->mem + c->turn_at);
    if (t->segment == i) return;
    t->segment = i;
    t->q = q;
    t->q_stride = op->q_stride;
    for (uint32_t s = 0; s < tile->n_sub; s++) {
        const struct sub *sub = &tile->sub[s];
        if (!turns(sub->run, i)) continue;
        for (uint32_t r = sub->row; r < sub->row + sub->n_row; r++)
            for (uint32_t h = 0; h < t->group; h++)
                segment_turn(turned + r * width + h * d, q + r * op->q_stride + h * d, (uint32_t)d,
                             &sub->run->segment[i], op->rope, 1);
        t->q = turned;
        t->q_stride = width;
    }
    for (uint32_t s = 0; s < tile->n_sub && t->q == turned; s++) {
        const struct sub *sub = &tile->sub[s];
        for (uint32_t r = sub->row; r < sub->row + sub->n_row && !turns(sub->run, i); r++)
            memcpy(turned + r * width, q + r * op->q_stride, width * sizeof *turned);
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

/* Tiles of the same rows that are computed apart. */
static uint32_t run_lane_count(const struct op_attn *op, const struct attn_run *run)
{
    return run_by_head(run) ? op->n_head : op->geom->n_kv_head;
}

/* Subs of a full tile of this run: tiles of a plan are whole tiles of ours. */
static uint32_t run_sub(const struct call *c, const struct attn_run *run)
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

/* Behind the runs that share tiles with run `i` and those before it. */
static uint32_t joined_end(const struct op_attn *op, uint32_t i)
{
    for (i++; i < op->n_run && op->run[i].joins; i++) {
    }
    return i;
}

/* Tiles of runs [i, end): as long as they may be, wherever their rows stand. */
static uint32_t joined_tile_count(const struct call *c, uint32_t i, uint32_t end)
{
    const struct attn_run *run = c->op->run;
    const uint32_t n_row = run[end - 1].row0 + run[end - 1].n_row - run[i].row0;
    const uint32_t size = run_sub(c, &run[i]) * PAGE_TOK;
    return (n_row + size - 1) / size;
}

static uint32_t run_item_count(const struct call *c, uint32_t i, uint32_t end)
{
    const struct attn_run *run = &c->op->run[i];
    if (run->kind != ROW_PROMPT) return 0;
    const uint32_t n =
        end > i + 1 ? joined_tile_count(c, i, end) : run_tile_count(run, run_sub(c, run));
    return n * run_lane_count(c->op, run);
}

static uint32_t wide_item_count(const struct call *c)
{
    uint32_t n = 0;
    for (uint32_t i = 0, end; i < c->op->n_run; i = end) {
        end = joined_end(c->op, i);
        n += run_item_count(c, i, end);
    }
    return n;
}

/* Adds rows [first, end) of a run, counted in the batch, page by page. */
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

/* The rows of the aligned tile `tile_i` of the sequence that belong to the run. */
static void tile_set_rows(struct tile *tile, const struct attn_run *run, uint32_t tile_i,
                          uint32_t n_sub)
{
    const uint32_t first = max_u32(run->pos0, tile_i * n_sub * PAGE_TOK);
    const uint32_t end = min_u32(run->pos0 + run->n_row, (tile_i + 1) * n_sub * PAGE_TOK);
    tile_add_rows(tile, run, run->row0 + first - run->pos0, run->row0 + end - run->pos0);
}

/* Tile `tile_i` of the rows of runs [run, end). */
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

/* Number of the list of a plan that a tile reads. */
static uint32_t plan_list(const struct attn_tile *t, const struct attn_run *run)
{
    const uint32_t tile_tok = run->plan->tile_tok;
    const uint32_t tile = t->pos[0] / tile_tok - run->pos0 / tile_tok;
    return tile * run_lane_count(t->op, run) + (run_by_head(run) ? t->head0 : t->kv_head);
}

/* The pages that a tile reads, ascending. `index` counts them; for a dense list it is the page. */
struct page_walk {
    struct attn_range now;               /* still to come of the current range */
    const struct attn_range *next, *end; /* ranges after it */
    uint32_t index;
};

static struct page_walk walk_begin(const struct attn_tile *t, const struct attn_run *run)
{
    const uint32_t first = first_visible(t->op, t->pos[0]) / PAGE_TOK;
    if (!run->plan) return (struct page_walk){.now = {first, PAGE_NONE}, .index = first};
    assert(t->op->window == 0);
    const struct attn_plan *plan = run->plan;
    const uint32_t list = plan_list(t, run);
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

/* The same to the pager. */
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

/* Names the next pages of the walk, those before page `end`, to the prefetcher. */
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

/* Packs pages of the walk, those before page `end`, into a panel whose slot 0 is the walk's index
 * `base`; false: they cannot be had. */
static bool pack_pages(const struct call *c, struct attn_tile *t, const struct attn_run *run,
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

static bool pack_tokens(const struct call *c, struct attn_tile *t, uint32_t slot,
                        const struct attn_page *page)
{
    page_id id[PAGE_TOK];
    const uint32_t n = name_token_pages(page->table, page->tok, page->end, id);
    if (!take_pages(t->op, id, n)) return false;
    c->k->wide_page(t, slot, page);
    give_pages(t->op, id, n);
    return true;
}

/* The single tokens of a plan, which every row of the tile sees; false: their pages cannot be had.
 */
static bool tile_tokens(const struct call *c, struct tile *tile, const struct attn_run *run)
{
    struct attn_tile *t = &tile->t;
    const struct op_attn *op = t->op;
    if (!run->plan || !run->plan->tok) return true;
    const uint32_t list = plan_list(t, run), panel_tok = c->k->panel_tok(op->geom->head_dim);
    const uint32_t *tok = run->plan->tok + run->plan->tok_ptr[list];
    const uint32_t n = run->plan->tok_ptr[list + 1] - run->plan->tok_ptr[list];
    const float *logw = run->plan->tok_logw ? run->plan->tok_logw + run->plan->tok_ptr[list] : NULL;
    assert(n == 0 || tok[n - 1] / PAGE_TOK < t->pos[0] / PAGE_TOK);
    uint32_t segment = 0;
    for (uint32_t i = 0, end; i < n; i = end) {
        segment = segment_of(run->segment, run->n_segment, tok[i] / PAGE_TOK, segment);
        tile_meet(c, tile, segment);
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

/* The own page of rows [first, *end) of a tile, the next ones: those that have the same. */
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

/* Panels are cut at multiples of their length in the walk, and where a segment ends. One that is
 * full before the own page of the first rows left is seen by all of those whole; else those rows
 * end in it, with their own page, and are computed alone, and the next ones see that page sealed,
 * if they read it. */
static void wide_tile(const struct call *c, struct tile *tile)
{
    struct attn_tile *t = &tile->t;
    const struct op_attn *op = t->op;
    const struct attn_run *run = tile->sub[0].run, *last = tile->sub[tile->n_sub - 1].run;
    const uint32_t panel_pages = c->k->panel_tok(op->geom->head_dim) / PAGE_TOK;
    const uint32_t unmasked_from = first_visible(op, t->pos[t->n_row - 1]);
    struct page_walk walk = walk_begin(t, run);
    uint32_t base = walk.index / panel_pages * panel_pages, begin = walk.index - base;
    uint32_t segment = segment_of(last->segment, last->n_segment, walk.now.begin, 0);
    c->k->wide_begin(t);
    bool is_there = tile_tokens(c, tile, run);
    tile_meet(c, tile, segment);
    for (uint32_t s = 0; s < tile->n_sub && is_there;) {
        const uint32_t own = sub_pos(tile, s) / PAGE_TOK;
        const uint32_t border =
            segment < last->n_segment ? min_u32(own, last->segment[segment].end) : own;
        is_there = pack_pages(c, t, run, &walk, base, border);
        if (!is_there) continue;
        const uint32_t slot = walk.index - base;
        const bool crosses =
            slot < panel_pages && segment < last->n_segment && border == last->segment[segment].end;
        struct attn_panel p = {.row0 = tile->sub[s].row, .begin = begin * PAGE_TOK};
        if (slot == panel_pages || crosses) {
            look_ahead(t, run, walk, own);
            p.row1 = t->n_row;
            p.pos = base * PAGE_TOK;
            p.end = p.n_tok = slot * PAGE_TOK;
            p.masked = unmasked_from > (base + begin) * PAGE_TOK;
            p.skip = run->plan ? run->plan->skip : 0;
            begin = slot % panel_pages;
            base += slot - begin;
        } else {
            const struct attn_page page = next_own_page(tile, &s, t->kv_head);
            c->k->wide_page(t, slot, &page);
            t->ahead.n_page = 0;
            p.row1 = s < tile->n_sub ? tile->sub[s].row : t->n_row;
            p.pos = (own - slot) * PAGE_TOK; /* right for the own page, before it all is seen */
            p.end = p.n_tok = (slot + 1) * PAGE_TOK;
            p.masked = true;
        }
        if (p.begin < p.end) c->k->wide_panel(t, &p);
        if (!crosses) continue;
        segment = segment_of(last->segment, last->n_segment, walk.now.begin, segment);
        tile_meet(c, tile, segment);
    }
    c->k->wide_end(t);
}

/* Items of a run: its last tile first (it reads most), all heads of a tile behind each other. */
static void wide_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_attn *op = c->op;
    uint32_t left = item_i, i = 0, end = joined_end(op, 0);
    for (uint32_t n; left >= (n = run_item_count(c, i, end)); i = end, end = joined_end(op, i))
        left -= n;
    const struct attn_run *run = &op->run[i];
    const uint32_t n_sub = run_sub(c, run), n_lane = run_lane_count(op, run);
    const uint32_t group = op->n_head / n_lane, head0 = left % n_lane * group;
    struct tile tile = {.t = {.op = op,
                              .kv_head = head0 / c->group,
                              .head0 = head0,
                              .group = group,
                              .segment = UINT32_MAX,
                              .mem = c->worker_mem + worker_i * c->worker_bytes}};
    if (end > i + 1)
        tile_set_joined(&tile, run, op->run + end, joined_tile_count(c, i, end) - 1 - left / n_lane,
                        n_sub);
    else
        tile_set_rows(&tile, run, (run->pos0 + run->n_row - 1) / (n_sub * PAGE_TOK) - left / n_lane,
                      n_sub);
    wide_tile(c, &tile);
    if (op->n_skip) op->n_skip[worker_i] += tile.t.n_skip;
}

static void wide_runs(struct workers *pool, struct call *c)
{
    const uint32_t enough = ITEMS_PER_WORKER * workers_count(pool);
    c->n_sub = tile_sub_max(c->k, c->op->geom->head_dim, c->group);
    /* Of one head, a tile may have more rows in the same memory. */
    c->n_head_sub = tile_sub_max(c->k, c->op->geom->head_dim, 1);
    while (c->n_head_sub > c->n_sub * c->group) c->n_head_sub /= 2;
    while (c->n_sub > 1 && wide_item_count(c) < enough) c->n_sub /= 2;
    workers_for(pool, wide_item_count(c), wide_item, c);
}

/* ---- NARROW ---- */

static uint32_t chunk_pages(uint32_t head_dim)
{
    uint32_t n = 1;
    while (n * 2 < ATTN_CHUNK_MAX && n * 2 * PAGE_TOK * head_dim <= CHUNK_CHANNELS) n *= 2;
    return n;
}

static uint32_t lane_page_count(const struct attn_run *run, uint32_t h)
{
    if (run->attended && run->attended[h]) return 0;
    return run->select ? run->select_ptr[h + 1] - run->select_ptr[h] : run->pos0 / PAGE_TOK;
}

static uint32_t lane_tok_count(const struct attn_run *run, uint32_t h)
{
    assert(!run->select_tok || run->select);
    if (run->attended && run->attended[h]) return 0;
    return run->select_tok ? run->select_tok_ptr[h + 1] - run->select_tok_ptr[h] : 0;
}

/* A lane's list: pages, then single tokens by PAGE_TOK. */
static uint32_t lane_list_count(const struct attn_run *run, uint32_t h)
{
    return lane_page_count(run, h) + (lane_tok_count(run, h) + PAGE_TOK - 1) / PAGE_TOK;
}

/* Pages of a chunk: follows from the list alone. Of one without single tokens it is the same as of
 * all pages. */
static uint32_t lane_chunk_pages(const struct op_attn *op, const struct attn_run *run, uint32_t h)
{
    const uint32_t most = chunk_pages(op->geom->head_dim);
    uint32_t n = LIST_CHUNK_LEAST;
    if (lane_tok_count(run, h) == 0) return most;
    while (n < most && n * LIST_CHUNKS < lane_list_count(run, h)) n *= 2;
    return min_u32(n, most);
}

static uint32_t lane_list_page(const struct attn_run *run, uint32_t h, uint32_t i)
{
    return run->select ? run->select[run->select_ptr[h] + i] : i;
}

/* First page of the list that has a visible token. */
static uint32_t lane_list_first(const struct op_attn *op, const struct attn_run *run, uint32_t h)
{
    const uint32_t page = first_visible(op, run->pos0) / PAGE_TOK;
    uint32_t lo = 0, hi = lane_page_count(run, h);
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (lane_list_page(run, h, mid) < page)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static uint32_t lane_chunk_count(const struct op_attn *op, const struct attn_run *run, uint32_t h)
{
    const uint32_t per_chunk = lane_chunk_pages(op, run, h);
    const uint32_t first = lane_list_first(op, run, h) / per_chunk;
    return lane_list_count(run, h) / per_chunk - first + 1; /* the own page is the list's end */
}

static size_t partial_floats(uint32_t head_dim, uint32_t group)
{
    return align64((size_t)group * (head_dim + 2) * sizeof(float)) / sizeof(float);
}

static uint32_t slot_count(uint32_t head_dim, uint32_t n_kv_head, uint32_t n_tok_max)
{
    const uint32_t lane_max = max_u32(n_tok_max / PAGE_TOK / chunk_pages(head_dim), LIST_CHUNKS);
    return (lane_max + 2) * n_kv_head + CHUNK_SLOTS_MIN;
}

/* Page i of a lane's list, of which tokens from `visible` on are to be seen. */
static inline struct attn_page lane_page(const struct op_attn *op, const struct attn_run *run,
                                         uint32_t h, uint32_t i, uint32_t visible)
{
    const uint32_t page = lane_list_page(run, h, i), at = page * PAGE_TOK;
    assert(page < run->pos0 / PAGE_TOK);
    struct attn_page p = sealed_page(op, run, h, page);
    p.begin = visible > at ? visible - at : 0;
    return p;
}

/* Single tokens of a lane's list from number `from` on. */
static struct attn_page lane_tokens(const struct op_attn *op, const struct attn_run *run,
                                    uint32_t h, uint32_t from, uint32_t visible)
{
    const uint32_t first = run->select_tok_ptr[h] + from;
    struct attn_page p =
        gathered_page(op, run, h, run->select_tok + first, lane_tok_count(run, h) - from);
    assert(p.tok[p.end - 1] / PAGE_TOK < run->pos0 / PAGE_TOK);
    if (run->select_logw) p.logw = run->select_logw + first;
    while (p.begin < p.end && p.tok[p.begin] < visible) p.begin++;
    return p;
}

/* Entries of a lane's list: those of a chunk, behind which the own page comes if it is the last. */
struct chunk_span {
    uint32_t begin, end;
};

static struct chunk_span chunk_span(const struct op_attn *op, const struct attn_run *run,
                                    uint32_t h, uint32_t chunk_i)
{
    const uint32_t per_chunk = lane_chunk_pages(op, run, h);
    const uint32_t first = lane_list_first(op, run, h);
    const uint32_t begin = (first / per_chunk + chunk_i) * per_chunk;
    return (struct chunk_span){max_u32(begin, first), begin + per_chunk};
}

/* Names the sealed pages that a chunk reads, none twice; returns how many. */
static uint32_t chunk_ids(const struct op_attn *op, const struct attn_run *run, uint32_t h,
                          uint32_t chunk_i, page_id id[ATTN_TAKE_TOKENS])
{
    const struct chunk_span span = chunk_span(op, run, h, chunk_i);
    const uint32_t n_page = lane_page_count(run, h), n_tok = lane_tok_count(run, h);
    const page_id *table = run->table + h * run->table_stride;
    uint32_t n = 0, i = span.begin;
    for (; i < min_u32(span.end, n_page); i++) id[n++] = table[lane_list_page(run, h, i)];
    if (i >= span.end || n_tok == 0) return n;
    const uint32_t first = (i - n_page) * PAGE_TOK;
    const uint32_t end = min_u32((span.end - n_page) * PAGE_TOK, n_tok);
    return n + name_token_pages(table, run->select_tok + run->select_tok_ptr[h] + first,
                                end > first ? end - first : 0, id + n);
}

/* Chunks behind this one, which the worker will most likely reduce next. */
static void chunk_ahead(const struct call *c, uint32_t lane, uint32_t chunk_i)
{
    const struct attn_pager *pager = c->op->pager;
    const uint32_t n_kv_head = c->op->geom->n_kv_head;
    const uint32_t n_chunk = c->lane_item[lane + 1] - c->lane_item[lane];
    page_id id[ATTN_TAKE_TOKENS];
    for (uint32_t i = chunk_i + 1; i <= chunk_i + CHUNKS_AHEAD && i < n_chunk; i++) {
        const struct attn_run *run = &c->op->run[lane / n_kv_head];
        pager->ahead(pager->user, id, chunk_ids(c->op, run, lane % n_kv_head, i, id));
    }
}

/* `at` [ATTN_CHUNK_MAX]: the pages, but for those that are gathered. */
static void chunk_set_pages(struct attn_chunk *chunk, const struct attn_run *run, uint32_t h,
                            uint32_t chunk_i, uint32_t *at)
{
    const struct op_attn *op = chunk->op;
    const uint32_t n_list = lane_list_count(run, h), n_page = lane_page_count(run, h);
    const struct chunk_span span = chunk_span(op, run, h, chunk_i);
    const uint32_t visible = first_visible(op, run->pos0), end = span.end;
    uint32_t i = span.begin;
    for (; i < min_u32(end, n_page); i++) {
        at[chunk->n_page] = lane_list_page(run, h, i);
        chunk->page[chunk->n_page++] = lane_page(op, run, h, i, visible);
    }
    for (; i < min_u32(end, n_list); i++)
        chunk->page[chunk->n_page++] = lane_tokens(op, run, h, (i - n_page) * PAGE_TOK, visible);
    for (i = end; i < min_u32(end + ATTN_AHEAD, n_page) && !op->pager; i++)
        chunk->ahead[i - end] = lane_page(op, run, h, i, visible).bytes;
    if (end <= n_list) return;
    struct attn_page own = own_page(op, run, h, run->pos0);
    const uint32_t page = run->pos0 / PAGE_TOK, tok = page * PAGE_TOK;
    own.begin = visible > tok ? visible - tok : 0;
    at[chunk->n_page] = page;
    chunk->page[chunk->n_page++] = own;
}

/* Adds the partial result of other keys. */
static void merge_part(struct attn_chunk *sum, const struct attn_chunk *part, uint32_t d)
{
    for (uint32_t g = 0; g < sum->group; g++) {
        const float m = fmaxf(sum->m[g], part->m[g]);
        if (m == -INFINITY && part->l[g] == 0) continue; /* nothing seen in either */
        const float old = exp2f(sum->m[g] - m), new = exp2f(part->m[g] - m);
        float *acc = sum->acc + (size_t)g * d;
        const float *add = part->acc + (size_t)g * d;
        for (uint32_t x = 0; x < d; x++) acc[x] = old * acc[x] + new *add[x];
        sum->l[g] = old * sum->l[g] + new * part->l[g];
        sum->m[g] = m;
    }
}

/* The part of a page of a chunk that lies in pages [first, end); false: nothing. `at` is the page,
 * unless the page is gathered. */
static bool clip_page(struct attn_page *p, uint32_t at, uint32_t first, uint32_t end)
{
    if (!p->tok) return at >= first && at < end;
    while (p->begin < p->end && p->tok[p->begin] / PAGE_TOK < first) p->begin++;
    while (p->begin < p->end && p->tok[p->end - 1] / PAGE_TOK >= end) p->end--;
    return p->begin < p->end;
}

/* Reduces a chunk of a run with segments, each with the queries that meet it. `at` are the pages
 * of the chunk; the worker's memory for turned queries holds a partial result, too. */
static void narrow_segments(const struct call *c, const struct attn_run *run,
                            const struct attn_chunk *chunk, const uint32_t *at)
{
    const uint32_t d = chunk->op->geom->head_dim, group = chunk->group;
    float *turned = (float *)(void *)((uint8_t *)chunk->mem + c->turn_at);
    float *partial = turned + align64(group * (size_t)d * sizeof(float)) / sizeof(float);
    struct attn_chunk sum = *chunk;
    memset(sum.acc, 0, group * (size_t)d * sizeof *sum.acc);
    for (uint32_t g = 0; g < group; g++) sum.m[g] = -INFINITY, sum.l[g] = 0;
    for (uint32_t i = 0, first = 0, end; i <= run->n_segment; i++, first = end) {
        struct attn_chunk part = {.op = chunk->op,
                                  .q = turned,
                                  .group = group,
                                  .m = partial + group * (size_t)d,
                                  .l = partial + group * ((size_t)d + 1),
                                  .acc = partial,
                                  .mem = chunk->mem};
        end = i < run->n_segment ? run->segment[i].end : PAGE_NONE;
        for (uint32_t j = 0; j < chunk->n_page; j++) {
            part.page[part.n_page] = chunk->page[j];
            part.n_page += clip_page(&part.page[part.n_page], at[j], first, end);
        }
        if (part.n_page == 0) continue;
        const bool turns = i < run->n_segment && run->segment[i].cos;
        for (uint32_t g = 0; g < group && turns; g++)
            segment_turn(turned + (size_t)g * d, chunk->q + (size_t)g * d, d, &run->segment[i],
                         chunk->op->rope, 1);
        if (!turns) part.q = chunk->q;
        c->k->narrow(&part);
        merge_part(&sum, &part, d);
    }
}

/* Reduces a chunk whose pages are there. */
static void narrow_chunk(const struct call *c, struct attn_chunk *chunk, uint32_t lane,
                         uint32_t chunk_i)
{
    const uint32_t n_kv_head = c->op->geom->n_kv_head;
    const struct attn_run *run = &c->op->run[lane / n_kv_head];
    uint32_t at[ATTN_CHUNK_MAX];
    chunk_set_pages(chunk, run, lane % n_kv_head, chunk_i, at);
    if (run->n_segment)
        narrow_segments(c, run, chunk, at);
    else
        c->k->narrow(chunk);
}

/* The same of one whose pages come and go; of one whose pages cannot be had nothing is seen. */
static void narrow_paged(const struct call *c, struct attn_chunk *chunk, uint32_t lane,
                         uint32_t chunk_i)
{
    const struct op_attn *op = c->op;
    const uint32_t n_kv_head = op->geom->n_kv_head;
    page_id id[ATTN_TAKE_TOKENS];
    const uint32_t n = chunk_ids(op, &op->run[lane / n_kv_head], lane % n_kv_head, chunk_i, id);
    chunk_ahead(c, lane, chunk_i);
    if (take_pages(op, id, n)) {
        narrow_chunk(c, chunk, lane, chunk_i);
        give_pages(op, id, n);
        return;
    }
    memset(chunk->acc, 0, chunk->group * (size_t)op->geom->head_dim * sizeof *chunk->acc);
    for (uint32_t g = 0; g < chunk->group; g++) chunk->m[g] = -INFINITY, chunk->l[g] = 0;
}

/* Returns the lane of the chunk. */
static uint32_t narrow_item(const struct call *c, uint32_t item_i, uint32_t worker_i)
{
    const struct op_attn *op = c->op;
    const uint32_t n_kv_head = op->geom->n_kv_head;
    const uint32_t item = c->lane_item[c->lane0] + item_i;
    uint32_t lo = c->lane0, hi = c->lane1; /* lane_item[lo] <= item < lane_item[hi] */
    while (hi - lo > 1) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (c->lane_item[mid] <= item)
            lo = mid;
        else
            hi = mid;
    }
    const struct attn_run *run = &op->run[lo / n_kv_head];
    const uint32_t h = lo % n_kv_head;
    float *partial = c->partial + item_i * c->partial_floats;
    struct attn_chunk chunk = {.op = op,
                               .q = op->q + run->row0 * op->q_stride +
                                    (size_t)h * c->group * op->geom->head_dim,
                               .group = c->group,
                               .m = partial + c->group * (size_t)op->geom->head_dim,
                               .l = partial + c->group * ((size_t)op->geom->head_dim + 1),
                               .acc = partial,
                               .mem = c->worker_mem + worker_i * c->worker_bytes};
    (op->pager ? narrow_paged : narrow_chunk)(c, &chunk, lo, item - c->lane_item[lo]);
    return lo;
}

/* Merges the chunks of one lane, in order. */
static void narrow_merge(const struct call *c, uint32_t lane)
{
    const struct op_attn *op = c->op;
    const uint32_t n_kv_head = op->geom->n_kv_head, d = op->geom->head_dim;
    const uint32_t n = c->lane_item[lane + 1] - c->lane_item[lane];
    const float *first =
        c->partial + (c->lane_item[lane] - c->lane_item[c->lane0]) * c->partial_floats;
    const struct attn_run *run = &op->run[lane / n_kv_head];
    const size_t head0 = (size_t)(lane % n_kv_head) * c->group;
    for (uint32_t g = 0; g < c->group; g++) {
        float *out = op->out + run->row0 * op->out_stride + (head0 + g) * d;
        float m = -INFINITY, l = 0;
        const size_t m_at = (size_t)c->group * d + g, l_at = m_at + c->group;
        for (uint32_t j = 0; j < n; j++) m = fmaxf(m, first[j * c->partial_floats + m_at]);
        memset(out, 0, d * sizeof *out);
        for (uint32_t j = 0; j < n; j++) {
            const float *p = first + j * c->partial_floats;
            const float *acc = p + (size_t)g * d;
            const float weight = exp2f(p[m_at] - m);
            l += weight * p[l_at];
            for (uint32_t x = 0; x < d; x++) out[x] += weight * acc[x];
        }
        const float inv = 1.0f / l;
        for (uint32_t x = 0; x < d; x++) out[x] *= inv;
        if (op->lse) op->lse[run->row0 * op->n_head + head0 + g] = (m + log2f(l)) * (float)M_LN2;
    }
}

/* Chunks behind each other go to one worker, which fetches the next one's pages. Who ends the last
 * chunk of a lane, whoever that is, has its partial results in order before it. */
static void narrow_items(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct call *c = arg;
    for (uint32_t i = begin; i < end; i++) {
        const uint32_t lane = narrow_item(c, i, worker_i);
        if (__atomic_sub_fetch(&c->lane_left[lane], 1, __ATOMIC_ACQ_REL) == 0)
            narrow_merge(c, lane);
    }
}

/* As many lanes at a time as there is room for partial results. */
static void narrow_runs(struct workers *pool, struct call *c, uint32_t n_slot)
{
    const struct op_attn *op = c->op;
    const uint32_t n_kv_head = op->geom->n_kv_head, n_lane = op->n_run * n_kv_head;
    c->lane_item[0] = 0;
    for (uint32_t i = 0; i < n_lane; i++) {
        const struct attn_run *run = &op->run[i / n_kv_head];
        assert(run->kind != ROW_DECODE || run->n_row == 1);
        const uint32_t n = run->kind == ROW_DECODE ? lane_chunk_count(op, run, i % n_kv_head) : 0;
        c->lane_left[i] = n;
        c->lane_item[i + 1] = c->lane_item[i] + n;
    }
    for (c->lane0 = 0; c->lane0 < n_lane; c->lane0 = c->lane1) {
        const uint32_t item0 = c->lane_item[c->lane0];
        c->lane1 = c->lane0 + 1;
        assert(c->lane_item[c->lane1] - item0 <= n_slot);
        while (c->lane1 < n_lane && c->lane_item[c->lane1 + 1] - item0 <= n_slot) c->lane1++;
        workers_for_span(pool, c->lane_item[c->lane1] - item0, 1, narrow_items, c);
    }
}

/* ---- The slots ---- */

/* Of the whole, and where turned queries begin: a tile's, or a row's with a partial result. */
static size_t worker_bytes(const struct attn_kernel *k, const struct page_geom *g, uint32_t group,
                           size_t *out_turn_at)
{
    const uint32_t n_q = tile_sub_max(k, g->head_dim, group) * PAGE_TOK * group;
    const size_t wide = k->wide_bytes(g, n_q), narrow = k->narrow_bytes(g, group);
    *out_turn_at = align64(wide > narrow ? wide : narrow);
    return *out_turn_at + align64((size_t)n_q * g->head_dim * sizeof(float));
}

/* Scratch: first item of each lane, items left of each, partial results, then one block for each
 * worker. */
size_t attn_execute_scratch(const struct attn_kernel *k, uint32_t n_worker,
                            const struct page_geom *geom, uint32_t n_head, uint32_t n_row,
                            uint32_t n_tok_max)
{
    const uint32_t group = n_head / geom->n_kv_head, d = geom->head_dim;
    const size_t lanes = (2 * (size_t)n_row * geom->n_kv_head + 1) * sizeof(uint32_t);
    const size_t partial =
        partial_floats(d, group) * sizeof(float) * slot_count(d, geom->n_kv_head, n_tok_max);
    size_t turn_at;
    return align64(lanes) + partial + n_worker * worker_bytes(k, geom, group, &turn_at);
}

void attn_execute(struct workers *pool, const struct op_attn *op, const struct attn_kernel *k)
{
    const struct page_geom *g = op->geom;
    assert(op->n_head % g->n_kv_head == 0 && (uintptr_t)op->scratch % 64 == 0);
    uint8_t *mem = op->scratch;
    struct call c = {.op = op, .k = k, .group = op->n_head / g->n_kv_head};
    c.worker_bytes = worker_bytes(k, g, c.group, &c.turn_at);
    c.partial_floats = partial_floats(g->head_dim, c.group);
    const size_t n_lane = (size_t)op->n_run * g->n_kv_head;
    c.lane_item = (uint32_t *)(void *)mem;
    c.lane_left = c.lane_item + n_lane + 1;
    const size_t lanes = align64((2 * n_lane + 1) * sizeof(uint32_t));
    const size_t workers = workers_count(pool) * c.worker_bytes;
    assert(lanes + workers < op->scratch_bytes);
    c.worker_mem = mem + lanes;
    c.partial = (float *)(void *)(mem + lanes + workers);
    const size_t slots = (op->scratch_bytes - lanes - workers) / (c.partial_floats * sizeof(float));
    narrow_runs(pool, &c, slots < UINT32_MAX ? (uint32_t)slots : UINT32_MAX);
    wide_runs(pool, &c);
}

struct seal_call {
    const struct op_seal *op;
    attn_seal_fn seal_q8;
};

static void seal_page(void *arg, uint32_t i, uint32_t worker_i)
{
    (void)worker_i;
    const struct seal_call *c = arg;
    const struct page_geom *g = c->op->geom;
    if (g->type_k == SAC_KV_Q8) {
        c->seal_q8(g, c->op->tail[i], c->op->sealed[i]);
        return;
    }
    const size_t half = (size_t)PAGE_TOK * g->head_dim * 2;
    memcpy(c->op->sealed[i] + g->k, c->op->tail[i], half);
    memcpy(c->op->sealed[i] + g->v, c->op->tail[i] + g->tail_v, half);
}

void attn_seal(struct workers *pool, const struct op_seal *op, attn_seal_fn seal_q8)
{
    struct seal_call c = {.op = op, .seal_q8 = seal_q8};
    workers_for(pool, op->n_page, seal_page, &c);
}
