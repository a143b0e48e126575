/* decode.c: runs the decode methods and turns their masks into the lists that the attention
 * operation reads.
 *
 * Work is divided in one of three ways:
 *  - With at least as many lanes as workers, each worker takes whole lanes, from the selection to
 *    the list, and prefetches the tokens it has listed. If a method joins the heads of a row, the
 *    unit is a row.
 *  - With fewer lanes, all lanes of a method are selected together, and the slots of the selection
 *    cut the context into pieces for all workers. Nothing is prefetched, because the data would
 *    land in one worker's cache and be read by others. The same is done for the lanes left over
 *    when every worker has had the same number, if they are few and long: otherwise most workers
 *    would wait for the last lanes.
 *  - If pages come from a disk and each worker would have one lane, all lists would be finished at
 *    the same time, and the disk would be idle until then. Long lanes are therefore selected a few
 *    at a time.
 *
 * Invariants:
 *  1. A lane's selection depends only on its sequence: lanes write their own state, mask and
 *     result, and what they share (lists, counters) is built from those afterwards, in lane order.
 *  2. If everything is to be read, the run has no list, or one list of all pages: either gives the
 *     bits of dense attention (attn.c).
 *  3. If pages were freed (evict.c, compact.c), "everything" means what is left: list_lane. */
#include "engine/decode.h"

#include "base/minmax.h"
#include "engine/engine.h"
#include "engine/lane.h"
#include "engine/past_queries.h"
#include "methods/batch.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define COUNT_PIECES  8u     /* parts of a lane's context, if there are fewer lanes than workers */
#define FETCH_AT_ONCE 256u   /* pages that are prefetched at a time */
#define LONE_PAGES    64u    /* one worker processes them in the time of a barrier of all workers */
#define GROUP_PAGES   32768u /* selected from before the selected pages are read from a disk */

/* The list of one run, while it is built. */
struct decode_list {
    uint32_t *page, *tok;
    float *logw; /* NULL: tokens have no weights */
    uint32_t n_page, n_tok;
};

/* ---- Memory ---- */

static void plan_lanes(struct decode *d, struct arena *a, size_t n)
{
    d->lane = arena_take(a, n, sizeof *d->lane);
    d->pick = arena_take(a, n, sizeof *d->pick);
    d->target = arena_take(a, n, sizeof *d->target);
    d->list = arena_take(a, n, sizeof *d->list);
    d->item = arena_take(a, n, sizeof *d->item);
}

uint32_t decode_joined(const sac_engine *e)
{
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_DECODE].specs;
    for (uint32_t i = 0; i < specs->n; i++) {
        const struct method_decode *hooks = specs->spec[i].method->decode;
        if (hooks && hooks->joins_heads && hooks->joins_heads(specs->spec[i].param))
            return e->pool.geom.n_kv_head;
    }
    return 1;
}

void decode_plan(sac_engine *e, struct arena *a)
{
    struct decode *d = &e->decode;
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_DECODE].specs;
    const size_t n_kv_head = e->pool.geom.n_kv_head, n_seq = e->params.n_seq_max;
    const size_t before = a->used;
    uint32_t n_past = 0;
    d->n_joined = decode_joined(e);
    d->group_pages = GROUP_PAGES;
    for (uint32_t i = 0; i < specs->n; i++) {
        const struct method *m = specs->spec[i].method;
        if (!m->decode) continue;
        const uint32_t n_row =
            m->decode->past_rows ? m->decode->past_rows(&e->shape, specs->spec[i].param) : 0;
        n_past = n_row > n_past ? n_row : n_past;
        d->has_see = d->has_see || m->decode->see;
        d->evicts = d->evicts || m->evicts;
        d->has_rest = d->has_rest || m->has_rest;
        d->token_grain = d->token_grain || m->token_grain;
        d->weighs = d->weighs || m->weighs;
    }
    past_queries_plan(e, a, n_past);
    e->stats.side_bytes += a->used - before;
    d->page_ptr = arena_take(a, n_seq * (n_kv_head + 1), sizeof *d->page_ptr);
    d->tok_ptr = arena_take(a, n_seq * (n_kv_head + 1), sizeof *d->tok_ptr);
    d->attended = d->has_rest ? arena_take(a, n_seq * n_kv_head, sizeof *d->attended) : NULL;
    plan_lanes(d, a, method_set_rooms(e));
    if (place_has_device(e)) decode_device_plan(e, a);
}

void decode_plan_rooms(sac_engine *e, struct arena *a)
{
    struct decode *d = &e->decode;
    const size_t n_page = (size_t)e->params.n_seq_max * e->pool.geom.n_kv_head * e->pool.max_page;
    d->mask = arena_take_tensor(a, n_page, sizeof *d->mask);
    d->page = arena_take_tensor(a, n_page, sizeof *d->page);
    d->tok = d->token_grain ? arena_take_tensor(a, n_page * PAGE_TOK, sizeof *d->tok) : NULL;
    d->logw = d->weighs ? arena_take_tensor(a, n_page * PAGE_TOK, sizeof *d->logw) : NULL;
    d->result = arena_take_tensor(a, method_set_rooms(e), sizeof *d->result);
    d->made = NULL;
    if (!e->backend.is_host) decode_device_plan_rooms(e, a);
}

/* ---- Selection ---- */

struct choose_call {
    sac_engine *e;
    struct reading *r;
    uint32_t lane0, n_lane; /* lanes that are selected together */
    uint32_t n_all;         /* lanes of the layer, which share the frames of a tier */
    /* The worker that lists a lane's tokens will probably attend to them, so it prefetches and
     * counts them */
    bool fetches;
};

const struct method *decode_method(const sac_engine *e, uint32_t run_i)
{
    return method_set_entry(e, METHOD_SET_DECODE, e->batch.run[run_i].seq_i)->spec->method;
}

static void see_lane(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct choose_call *c = arg;
    const uint32_t n_kv_head = c->e->pool.geom.n_kv_head, run_i = item_i / n_kv_head;
    const struct method_decode *hooks = decode_method(c->e, run_i)->decode;
    if (!hooks || !hooks->see) return;
    const struct method_lane lane = lane_make(
        c->e, c->r, (struct lane_at){METHOD_SET_DECODE, run_i, item_i % n_kv_head, worker_i});
    hooks->see(&lane);
}

/* Where a lane's list is built, before all lists of the run are joined. */
static struct decode_list lane_list(const struct decode *d, size_t lane_i, size_t max_page,
                                    bool weighs)
{
    return (struct decode_list){
        .page = d->page + lane_i * max_page,
        .tok = d->tok ? d->tok + lane_i * max_page * PAGE_TOK : NULL,
        .logw = weighs ? d->logw + lane_i * max_page * PAGE_TOK : NULL,
    };
}

/* Where a lane's selection is written. */
static struct method_pick make_pick(const struct choose_call *c, const struct method_lane *lane,
                                    uint32_t item_i, const struct method *method)
{
    const struct decode *d = &c->e->decode;
    const size_t n_page = lane->pos / PAGE_TOK, max_page = c->e->pool.max_page;
    struct method_pick pick = {.mask = d->mask + item_i * max_page};
    memset(pick.mask, 0, n_page * sizeof *pick.mask);
    if (method->weighs) {
        const struct decode_list list = lane_list(d, item_i, max_page, true);
        pick.tok = list.tok;
        pick.logw = list.logw;
    }
    if (method->has_rest) {
        pick.rest_log = c->r->rest.log + (size_t)item_i * c->e->shape.group;
        pick.rest_value =
            c->r->rest.value + (size_t)item_i * c->e->shape.group * c->e->shape.geom->head_dim;
    }
    return pick;
}

/* Whether a decode row's method is called for this lane; otherwise the lane is dense. */
static bool is_asked(const struct choose_call *c, const struct method_lane *lane, uint32_t item_i,
                     const struct method *method)
{
    struct reading_lane *answer = &c->r->lane[item_i];
    answer->dense = true;
    for (uint32_t g = 0; g < c->e->shape.group && c->r->rest.log; g++)
        c->r->rest.log[(size_t)item_i * c->e->shape.group + g] = -INFINITY;
    if (!method->decode || lane->pos < PAGE_TOK || lane->pos + 1 < lane->sparse_min_ctx)
        return false;
    answer->asked = true;
    answer->not_finite = !method_queries_finite(lane);
    return !answer->not_finite;
}

static void take_answer(const struct choose_call *c, uint32_t item_i, const struct method *method,
                        const struct method_pick *pick)
{
    struct reading_lane *answer = &c->r->lane[item_i];
    assert(pick->dense || !pick->not_finite);
    assert(!method->fixed || pick->n_chosen == 0);
    assert(method->weighs || pick->n_tok == 0);
    assert(method->has_rest || !pick->attended);
    assert(pick->n_bypass <= c->e->shape.group);
    answer->dense = pick->dense;
    answer->not_finite = pick->not_finite;
    answer->attended = pick->attended && !pick->dense;
    answer->n_bypass = pick->n_bypass;
    answer->n_chosen = pick->dense ? 0 : pick->n_chosen;
    answer->mass_proved = pick->mass_proved;
    answer->rest_norm = pick->rest_norm;
    answer->n_tok = pick->dense ? 0 : pick->n_tok;
}

/* Calls a method for n lanes, with scratch from number room_i on. */
static void ask(const struct choose_call *c, const struct method *method, uint32_t room_i,
                uint32_t n, struct workers *workers)
{
    const struct decode *d = &c->e->decode;
    const struct method_batch b = {.ops = &c->e->ops,
                                   .workers = workers,
                                   .n = n,
                                   .lane = d->lane + room_i,
                                   .pick = d->pick + room_i,
                                   .result = d->result + room_i,
                                   .target = d->target + room_i,
                                   .list = d->list + room_i};
    for (uint32_t i = 0; i < n; i++) {
        b.pick[i] = make_pick(c, &b.lane[i], d->item[room_i + i], method);
        b.result[i] = (struct op_lane_result){0};
    }
    batch_choose(method->decode, &b);
    for (uint32_t i = 0; i < n; i++) take_answer(c, d->item[room_i + i], method, &b.pick[i]);
}

/* Prefetches the key and the value of a token that will be read soon. */
static inline __attribute__((always_inline)) void fetch_token(const struct page_geom *g,
                                                              const uint8_t *page, size_t t)
{
    const size_t d = g->head_dim;
    const bool q8 = g->type_k == SAC_KV_Q8;
    const size_t n_k = q8 ? d * 3 / 4 : d * 2, n_v = q8 ? d : d * 2;
    const uint8_t *k = page + (q8 ? g->k_low : g->k) + t * n_k, *v = page + g->v + t * n_v;
    for (size_t i = 0; i < n_k; i += 64) __builtin_prefetch(k + i, 0, 2);
    for (size_t i = 0; i < n_v; i += 64) __builtin_prefetch(v + i, 0, 2);
}

/* Bytes that attention reads for the tokens of a page in `mask`. */
static size_t page_token_bytes(const struct page_lines *l, uint32_t mask)
{
    return page_lines_keys(l, mask) + page_lines_values(l, mask);
}

/* The same for ascending tokens of a lane. */
static uint64_t token_bytes(const struct page_lines *l, const uint32_t *tok, uint32_t n_tok)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0, mask; i < n_tok; bytes += page_token_bytes(l, mask)) {
        const uint32_t page = tok[i] / PAGE_TOK;
        for (mask = 0; i < n_tok && tok[i] / PAGE_TOK == page; i++) mask |= 1u << tok[i] % PAGE_TOK;
    }
    return bytes;
}

/* The index of the first of n ascending tokens that is not before `page`. */
static uint32_t first_from(const uint32_t *tok, uint32_t n, uint32_t page)
{
    uint32_t lo = 0, hi = n;
    while (lo < hi) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (tok[mid] / PAGE_TOK < page)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Prefetches up to n_most pages of what a lane will read, while other lanes are selected. */
static void fetch_listed(const sac_engine *e, const struct method_lane *lane,
                         const struct decode_list *list, uint32_t n_most)
{
    page_id id[FETCH_AT_ONCE];
    const uint32_t n_list = list->n_page + list->n_tok;
    uint32_t n = 0, last = PAGE_NONE;
    for (uint32_t i = 0; i < n_list && n_most > 0; i++) {
        const uint32_t page =
            i < list->n_page ? list->page[i] : list->tok[i - list->n_page] / PAGE_TOK;
        if (page == last) continue;
        last = page;
        id[n++] = lane->page[page];
        n_most--;
        if (n < FETCH_AT_ONCE) continue;
        tier_prefetch(e->pool.tier, TIER_CHOSEN, id, n);
        n = 0;
    }
    tier_prefetch(e->pool.tier, TIER_CHOSEN, id, n);
}

/* Turns a lane's marks into a list: whole pages and, after tokens that are listed already, single
 * tokens. */
static void list_lane(const struct choose_call *c, const struct method_lane *lane, uint32_t item_i,
                      bool weighs)
{
    const sac_engine *e = c->e;
    const struct decode *d = &e->decode;
    struct reading_lane *answer = &c->r->lane[item_i];
    const size_t max_page = e->pool.max_page;
    const uint32_t *mask = d->mask + item_i * max_page;
    struct decode_list list = lane_list(d, item_i, max_page, weighs);
    uint64_t bytes = 0;
    list.n_tok = answer->n_tok;
    if (c->fetches) bytes = token_bytes(&e->attend.lines, list.tok, list.n_tok);
    for (uint32_t p = 0; p < lane->pos / PAGE_TOK; p++) {
        const uint32_t word = answer->dense ? UINT32_MAX : mask[p];
        if (word == 0 || lane->page[p] == PAGE_NONE) continue;
        bytes += page_token_bytes(&e->attend.lines, word);
        if (word == UINT32_MAX) {
            list.page[list.n_page++] = p;
            continue;
        }
        assert(!weighs && list.tok);
        for (uint32_t left = word; left; left &= left - 1)
            list.tok[list.n_tok++] = p * PAGE_TOK + (uint32_t)__builtin_ctz(left);
    }
    const uint64_t n_attended = answer->meter.bytes[METER_ATTEND];
    if (answer->attended && n_attended > 0) bytes = n_attended;
    assert(list.tok || list.n_tok == 0);
    for (uint32_t i = 0; i < list.n_tok && c->fetches && !e->pool.tier; i++)
        fetch_token(&e->pool.geom,
                    page_frame(&e->pool.geom, lane->frames, lane->page[list.tok[i] / PAGE_TOK]),
                    list.tok[i] % PAGE_TOK);
    __atomic_fetch_add(&answer->kv_bytes, bytes, __ATOMIC_RELAXED);
    answer->n_page = list.n_page;
    if (!weighs) answer->n_tok = list.n_tok;
    if (e->pool.tier && !answer->dense && !answer->attended)
        fetch_listed(e, lane, &list, e->pool.n_frame / c->n_all);
}

static struct method_lane decode_lane(const struct choose_call *c, uint32_t item_i, uint32_t room_i)
{
    const uint32_t n_kv_head = c->e->pool.geom.n_kv_head;
    return lane_make(
        c->e, c->r,
        (struct lane_at){METHOD_SET_DECODE, item_i / n_kv_head, item_i % n_kv_head, room_i});
}

static void list_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct choose_call *c = arg;
    const struct method *method = decode_method(c->e, item_i / c->e->pool.geom.n_kv_head);
    const struct method_lane lane = decode_lane(c, item_i, worker_i);
    list_lane(c, &lane, item_i, method->weighs);
}

/* Counts what one of COUNT_PIECES parts of a lane's context makes attention read, from the tokens
 * that its selection has listed. */
static void count_piece(const struct choose_call *c, uint32_t item_i, uint32_t piece)
{
    const sac_engine *e = c->e;
    const uint32_t run_i = item_i / e->pool.geom.n_kv_head;
    const uint32_t n_page = e->batch.run[run_i].pos0 / PAGE_TOK;
    struct reading_lane *answer = &c->r->lane[item_i];
    if (!decode_method(e, run_i)->weighs || answer->n_tok == 0) return;
    const uint32_t *tok = lane_list(&e->decode, item_i, e->pool.max_page, true).tok;
    const uint32_t first = first_from(tok, answer->n_tok, n_page * piece / COUNT_PIECES);
    const uint32_t end = first_from(tok, answer->n_tok, n_page * (piece + 1) / COUNT_PIECES);
    __atomic_fetch_add(&answer->kv_bytes, token_bytes(&e->attend.lines, tok + first, end - first),
                       __ATOMIC_RELAXED);
}

/* A worker's item: first the lists of all lanes, then the parts of all. */
static void list_or_count(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct choose_call *c = arg;
    if (i < c->n_lane)
        list_item(arg, c->lane0 + i, worker_i);
    else
        count_piece(c, c->lane0 + (i - c->n_lane) / COUNT_PIECES, (i - c->n_lane) % COUNT_PIECES);
}

/* Selects and lists, by one worker, for the lanes that are called together. */
static void choose_joined(void *arg, uint32_t joined_i, uint32_t worker_i)
{
    const struct choose_call *c = arg;
    const struct decode *d = &c->e->decode;
    const uint32_t n_joined = d->n_joined, room0 = worker_i * n_joined;
    const uint32_t item0 = joined_i * n_joined;
    const struct method *method = decode_method(c->e, item0 / c->e->pool.geom.n_kv_head);
    uint32_t n = 0;
    for (uint32_t i = item0; i < item0 + n_joined; i++) {
        d->lane[room0 + n] = decode_lane(c, i, room0 + n);
        d->item[room0 + n] = i;
        n += is_asked(c, &d->lane[room0 + n], i, method);
    }
    if (n > 0) ask(c, method, room0, n, NULL);
    for (uint32_t i = item0; i < item0 + n_joined; i++) list_item(arg, i, room0);
}

/* Selects for those of the lanes whose sequences use specification spec_i, all together. */
static void choose_spec(const struct choose_call *c, uint32_t spec_i)
{
    const struct decode *d = &c->e->decode;
    const uint32_t n_kv_head = c->e->pool.geom.n_kv_head;
    const struct method *method = NULL;
    uint32_t n = 0;
    for (uint32_t i = c->lane0; i < c->lane0 + c->n_lane; i++) {
        const uint32_t run_i = i / n_kv_head, seq_i = c->e->batch.run[run_i].seq_i;
        if (c->e->seqs[seq_i].method_i[METHOD_SET_DECODE] != spec_i) continue;
        method = decode_method(c->e, run_i);
        d->lane[n] = decode_lane(c, i, n);
        d->item[n] = i;
        n += is_asked(c, &d->lane[n], i, method);
    }
    if (n > 0) ask(c, method, 0, n, c->e->workers);
}

static void append_list(struct decode_list *all, const struct decode_list *one,
                        const struct reading_lane *n)
{
    memmove(all->page + all->n_page, one->page, n->n_page * sizeof *all->page);
    all->n_page += n->n_page;
    assert(all->tok || n->n_tok == 0);
    if (n->n_tok) memmove(all->tok + all->n_tok, one->tok, n->n_tok * sizeof *all->tok);
    if (n->n_tok && all->logw)
        memmove(all->logw + all->n_tok, one->logw, n->n_tok * sizeof *all->logw);
    all->n_tok += n->n_tok;
}

/* Joins the lists of a run's lanes. */
static void list_run(const struct choose_call *c, uint32_t run_i)
{
    const sac_engine *e = c->e;
    const struct decode *d = &e->decode;
    const size_t n_kv_head = e->pool.geom.n_kv_head, lane0 = run_i * n_kv_head;
    const size_t max_page = e->pool.max_page, ptr0 = run_i * (n_kv_head + 1);
    struct attn_run *run = &c->r->run[run_i];
    const bool weighs = decode_method(e, run_i)->weighs;
    struct decode_list list = lane_list(d, lane0, max_page, weighs);
    bool is_dense = !e->seqs[e->batch.run[run_i].seq_i].has_gaps;
    for (size_t h = 0; h < n_kv_head; h++) is_dense = is_dense && c->r->lane[lane0 + h].dense;
    if (is_dense) return;
    for (size_t h = 0; h < n_kv_head; h++) {
        const struct decode_list one = lane_list(d, lane0 + h, max_page, weighs);
        const struct reading_lane *n = &c->r->lane[lane0 + h];
        compact_back(e, e->batch.run[run_i].seq_i, one.page, n->n_page, one.tok, n->n_tok);
        d->page_ptr[ptr0 + h] = list.n_page;
        d->tok_ptr[ptr0 + h] = list.n_tok;
        append_list(&list, &one, n);
    }
    d->page_ptr[ptr0 + n_kv_head] = list.n_page;
    assert(list.n_page <= n_kv_head * max_page);
    d->tok_ptr[ptr0 + n_kv_head] = list.n_tok;
    run->select = list.page;
    run->select_ptr = d->page_ptr + ptr0;
    bool *attended = d->attended ? d->attended + lane0 : NULL;
    for (size_t h = 0; h < n_kv_head && attended; h++) attended[h] = c->r->lane[lane0 + h].attended;
    run->attended = attended;
    if (list.n_tok == 0) return;
    run->select_tok = list.tok;
    run->select_tok_ptr = d->tok_ptr + ptr0;
    run->select_logw = list.logw;
}

/* Pages of the longest context among decode rows from run0 on. */
static uint32_t longest(const sac_engine *e, uint32_t run0)
{
    uint32_t n_page = 0;
    for (uint32_t i = run0; i < e->batch.n_decode; i++)
        if (e->batch.run[i].pos0 / PAGE_TOK > n_page) n_page = e->batch.run[i].pos0 / PAGE_TOK;
    return n_page;
}

/* How many of n lanes, the last ones, all workers select together. Lanes that are called together
 * count as one. */
static uint32_t count_together(const sac_engine *e, uint32_t n)
{
    const uint32_t n_worker = workers_count(e->workers), left = n % n_worker;
    const uint32_t run0 = (n - left) * e->decode.n_joined / e->pool.geom.n_kv_head;
    if (n < n_worker || left == 0) return left;
    return longest(e, run0) * (n_worker - left) > LONE_PAGES * n_worker ? left : 0;
}

/* How many of n lanes are selected at a time if there are no more lanes than workers. Pages that a
 * method visits while it selects are fetched by the method itself. */
static uint32_t count_group(const sac_engine *e, uint32_t n)
{
    const struct tier *t = e->pool.tier;
    const uint32_t n_page = max_u32(longest(e, 0), 1);
    if (!t || t->no_ahead || e->decode.has_rest || n > workers_count(e->workers)) return n;
    return min_u32(n, (e->decode.group_pages + n_page - 1) / n_page);
}

/* Selects for n_lane lanes from lane0 on, by all workers together. */
static void choose_together(struct choose_call *c, uint32_t lane0, uint32_t n_lane)
{
    c->fetches = false;
    c->lane0 = lane0;
    c->n_lane = n_lane;
    for (uint32_t i = 0; i < c->e->method_set[METHOD_SET_DECODE].specs.n; i++) choose_spec(c, i);
    workers_for(c->e->workers, n_lane * (1 + (c->e->decode.logw ? COUNT_PIECES : 0)), list_or_count,
                c);
}

static void choose_lanes(struct choose_call *c, uint32_t n_lane)
{
    const uint32_t n_joined = c->e->decode.n_joined, n = n_lane / n_joined;
    const uint32_t n_group = count_group(c->e, n);
    const uint32_t n_together = n_group < n ? n : count_together(c->e, n);
    c->fetches = true;
    c->n_all = n_lane;
    workers_for(c->e->workers, n - n_together, choose_joined, c);
    for (uint32_t i = n - n_together; i < n; i += n_group)
        choose_together(c, i * n_joined, min_u32(n_group, n - i) * n_joined);
}

void decode_choose(sac_engine *e, struct reading *r)
{
    struct choose_call c = {.e = e, .r = r};
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    if (!e->backend.is_host) {
        decode_device_choose(e, r);
        return;
    }
    r->lane = e->attend.lane;
    r->rest = e->attend.rest;
    memset(r->lane, 0, r->n_decode * (size_t)n_kv_head * sizeof *r->lane);
    compact_layer(e, r);
    if (e->decode.has_see) workers_for(e->workers, r->n_run * n_kv_head, see_lane, &c);
    choose_lanes(&c, r->n_decode * n_kv_head);
    for (uint32_t i = 0; i < r->n_decode; i++) list_run(&c, i);
}
