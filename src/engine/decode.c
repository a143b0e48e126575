/* decode.c: asks the decode methods, lane by lane, and turns their masks into the lists that the
 * attention op reads. All memory of methods is planned here.
 *
 * Invariants:
 *  1. A lane's choice depends on the sequence alone: lanes write their own state, mask and answer,
 *     and what they have in common (lists, counters) is made from those in lane order afterwards.
 *  2. Where everything is to be read, the run has no list at all, or one of all pages: the bits of
 *     dense attention either way (attn.c).
 *  3. The queries of a sequence's last rows are kept once they have been asked about: lanes see the
 *     rows before their own, and how a prompt was cut into chunks shows nowhere.
 *  4. Pages are given back behind all choices of a layer and before its attention, which reads none
 *     of them: an evicting method marks what it will ever read again. From then on "everything" is
 *     what is left (bridge_gaps, list_lane). While reads are recorded nothing is given back: the
 *     shadow reads it all. */
#include "engine/decode.h"

#include "engine/engine.h"
#include "engine/lane.h"

#include <assert.h>
#include <math.h>
#include <string.h>

struct decode_lane {
    uint64_t side_bytes;
    uint32_t n_bypass, n_chosen;
    float mass_proved, rest_norm;
    bool asked, dense, not_finite;
    uint32_t n_page, n_tok; /* in its lists */
};

struct decode_list { /* of one run, while it is made */
    uint32_t *page, *tok;
    float *logw; /* NULL: tokens have no weights */
    uint32_t n_page, n_tok;
};

/* ---- Memory ---- */

sac_status decode_init(sac_engine *e, sac_error *err)
{
    static const char *const full = "full";
    struct decode *d = &e->decode;
    sac_engine_params *p = &e->params;
    const char *const *text = p->n_decode ? p->decode : &full;
    TRY(spec_list_parse(&d->specs, "decode", text, p->n_decode ? p->n_decode : 1, err));
    for (uint32_t i = 0; i < d->specs.n; i++) d->method[i].spec = &d->specs.spec[i];
    p->decode = d->specs.text;
    p->n_decode = d->specs.n;
    return SAC_OK;
}

static size_t lane_count(const sac_engine *e)
{
    return (size_t)e->pool.geom.n_layer * e->pool.geom.n_kv_head;
}

/* What some method is capable of. */
struct abilities {
    bool token_grain, weighs, has_rest;
};

static struct abilities abilities_of(const struct decode *d)
{
    struct abilities all = {0};
    for (uint32_t i = 0; i < d->specs.n; i++) {
        const struct method *m = d->method[i].spec->method;
        all.token_grain = all.token_grain || m->token_grain;
        all.weighs = all.weighs || m->weighs;
        all.has_rest = all.has_rest || m->has_rest;
    }
    return all;
}

static void plan_rest(sac_engine *e, struct arena *a, size_t n_lane, bool is_wanted)
{
    struct decode *d = &e->decode;
    const size_t n_row = e->params.n_batch, n_head = e->model->config.n_head;
    if (!is_wanted) return;
    d->rest_log = arena_take(a, n_lane * d->shape.group, sizeof *d->rest_log);
    d->rest_value = arena_take(a, n_lane * e->pool.geom.head_dim, sizeof *d->rest_value);
    d->lse = arena_take(a, n_row * n_head, sizeof *d->lse);
}

void decode_plan(sac_engine *e, struct arena *a)
{
    struct decode *d = &e->decode;
    const struct page_geom *g = &e->pool.geom;
    const size_t n_seq = e->params.n_seq_max, n_lane = n_seq * g->n_kv_head, before = a->used;
    if (d->specs.is_dense) return;
    d->shape = (struct method_shape){.geom = g,
                                     .group = e->model->config.n_head / g->n_kv_head,
                                     .n_ctx = e->params.n_ctx,
                                     .sparse_min_ctx = e->params.sparse_min_ctx};
    assert(d->shape.group <= METHOD_GROUP_MAX);
    d->lane_bytes = d->worker_bytes = d->n_past = 0;
    for (uint32_t i = 0; i < d->specs.n; i++) {
        struct decode_method *m = &d->method[i];
        const struct method_decode *hooks = m->spec->method->decode;
        if (!hooks) continue;
        const double *param = m->spec->param;
        const size_t scratch = method_hook_bytes(hooks->scratch_bytes, &d->shape, param);
        m->state_bytes = method_hook_bytes(hooks->state_bytes, &d->shape, param);
        m->side = side_add(e, &(struct side_user){
                                  .seal = hooks->seal,
                                  .seal_value = hooks->seal_value,
                                  .shape = &d->shape,
                                  .param = param,
                                  .bytes = method_hook_bytes(hooks->side_bytes, &d->shape, param)});
        assert(!m->state_bytes || hooks->sound);
        d->has_see = d->has_see || hooks->see;
        d->evicts = d->evicts || m->spec->method->evicts;
        const uint32_t n_past = hooks->past_rows ? hooks->past_rows(&d->shape, param) : 0;
        if (n_past > d->n_past) d->n_past = n_past;
        if (m->state_bytes > d->lane_bytes) d->lane_bytes = m->state_bytes;
        if (scratch > d->worker_bytes) d->worker_bytes = scratch;
    }
    d->state = arena_take(a, n_seq * lane_count(e), d->lane_bytes);
    d->past_floats = (size_t)d->shape.group * g->head_dim;
    d->past = arena_take(a, n_seq * lane_count(e) * d->n_past, d->past_floats * sizeof *d->past);
    d->past_begin = arena_take(a, n_seq, sizeof *d->past_begin);
    e->stats.side_bytes += a->used - before;
    d->worker = arena_take(a, workers_count(e->workers), d->worker_bytes);
    d->mask = arena_take(a, n_lane * e->pool.max_page, sizeof *d->mask);
    d->page = arena_take(a, n_lane * e->pool.max_page, sizeof *d->page);
    d->page_ptr = arena_take(a, n_seq * (g->n_kv_head + 1), sizeof *d->page_ptr);
    const struct abilities some = abilities_of(d);
    const size_t n_tok = n_lane * e->pool.max_page * PAGE_TOK;
    d->tok = some.token_grain ? arena_take(a, n_tok, sizeof *d->tok) : NULL;
    d->tok_ptr = arena_take(a, n_seq * (g->n_kv_head + 1), sizeof *d->tok_ptr);
    d->logw = some.weighs ? arena_take(a, n_tok, sizeof *d->logw) : NULL;
    plan_rest(e, a, n_lane, some.has_rest);
    d->lane = arena_take(a, n_lane, sizeof *d->lane);
    const size_t n_plan = d->evicts ? n_seq : 0, n_range = e->pool.max_page / 2 + 1;
    d->plan = arena_take(a, n_plan, sizeof *d->plan);
    d->range = arena_take(a, n_plan * g->n_kv_head * n_range, sizeof *d->range);
    d->range_ptr = arena_take(a, n_plan * (g->n_kv_head + 1), sizeof *d->range_ptr);
}

uint8_t *decode_state(const sac_engine *e, uint32_t seq_i, size_t lane_i)
{
    return e->decode.state + (seq_i * lane_count(e) + lane_i) * e->decode.lane_bytes;
}

float *decode_past(const sac_engine *e, uint32_t seq_i, size_t lane_i)
{
    const struct decode *d = &e->decode;
    return d->past + (seq_i * lane_count(e) + lane_i) * d->n_past * d->past_floats;
}

uint32_t decode_past_begin(const sac_engine *e, uint32_t seq_i, uint32_t n_tok)
{
    const struct decode *d = &e->decode;
    if (d->n_past == 0) return n_tok;
    const uint32_t oldest = n_tok > d->n_past ? n_tok - d->n_past : 0;
    return oldest > d->past_begin[seq_i] ? oldest : d->past_begin[seq_i];
}

void decode_set_past_begin(sac_engine *e, uint32_t seq_i, uint32_t begin)
{
    if (e->decode.n_past) e->decode.past_begin[seq_i] = begin;
}

static void forget_state(sac_engine *e, uint32_t seq_i)
{
    if (e->decode.lane_bytes)
        memset(decode_state(e, seq_i, 0), 0, lane_count(e) * e->decode.lane_bytes);
}

void decode_reset(sac_engine *e, uint32_t seq_i)
{
    forget_state(e, seq_i);
    decode_set_past_begin(e, seq_i, 0);
}

void decode_fork(sac_engine *e, uint32_t dst, uint32_t src)
{
    const struct decode *d = &e->decode;
    if (d->lane_bytes)
        memcpy(decode_state(e, dst, 0), decode_state(e, src, 0), lane_count(e) * d->lane_bytes);
    if (d->n_past == 0) return;
    d->past_begin[dst] = d->past_begin[src];
    memcpy(decode_past(e, dst, 0), decode_past(e, src, 0),
           lane_count(e) * d->n_past * d->past_floats * sizeof *d->past);
}

/* Rows behind the cut have overwritten the oldest ones. */
static void cut_past(sac_engine *e, uint32_t seq_i, uint32_t n_tok)
{
    const uint32_t begin = decode_past_begin(e, seq_i, e->seqs[seq_i].n_done);
    decode_set_past_begin(e, seq_i, begin < n_tok ? begin : n_tok);
}

void decode_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok)
{
    const struct decode *d = &e->decode;
    cut_past(e, seq_i, n_tok);
    const struct decode_method *m = &d->method[e->seqs[seq_i].decode_i];
    const struct method_decode *hooks = m->spec->method->decode;
    if (m->state_bytes == 0) return;
    if (!hooks->cut) {
        forget_state(e, seq_i);
        return;
    }
    for (size_t i = 0; i < lane_count(e); i++)
        hooks->cut(decode_state(e, seq_i, i), &d->shape, m->spec->param, n_tok);
}

sac_status sac_seq_use_decode(sac_engine *e, sac_seq id, uint32_t decode_i, sac_error *err)
{
    struct seq *s = engine_seq(e, id, err);
    if (!s) return SAC_ERR_NOT_FOUND;
    if (decode_i >= e->decode.specs.n)
        return error_set(err, SAC_ERR_ARG, "there is no decode method %u: the engine has %u",
                         decode_i, e->decode.specs.n);
    if (s->decode_i == decode_i) return SAC_OK;
    if (s->has_gaps)
        return error_set(err, SAC_ERR_ARG,
                         "sequence %u cannot change to decode method %s: %s has dropped tokens", id,
                         e->decode.specs.text[decode_i], e->decode.specs.text[s->decode_i]);
    s->decode_i = decode_i;
    forget_state(e, id);
    return SAC_OK;
}

/* ---- Choices ---- */

struct select_call {
    sac_engine *e;
    uint32_t layer;
};

static struct method_past lane_past(const sac_engine *e, uint32_t seq_i, size_t lane_i,
                                    uint32_t end)
{
    const struct decode *d = &e->decode;
    return (struct method_past){
        .q = d->n_past ? decode_past(e, seq_i, lane_i) : NULL,
        .n_slot = d->n_past,
        .begin = decode_past_begin(e, seq_i, end),
        .end = end,
    };
}

static struct method_lane make_lane(const struct select_call *c, uint32_t run_i, uint32_t kv_head,
                                    uint32_t worker_i)
{
    const sac_engine *e = c->e;
    const struct decode *d = &e->decode;
    const struct attn_run *run = &e->batch.run[run_i];
    const uint32_t seq_i = e->batch.seq_i[run->row0];
    const struct decode_method *m = &d->method[e->seqs[seq_i].decode_i];
    const size_t lane_i = (size_t)c->layer * e->pool.geom.n_kv_head + kv_head;
    uint8_t *layer_state = decode_state(e, seq_i, lane_i - kv_head);
    struct method_lane lane = lane_view(e, run, c->layer, kv_head);
    lane.shape = &d->shape;
    lane.param = m->spec->param;
    lane.side = side_base(&e->side, m->side);
    lane.side_stride = m->side.bytes;
    lane.past = lane_past(e, seq_i, lane_i, run->pos0);
    lane.state = layer_state + kv_head * d->lane_bytes;
    lane.layer_state = layer_state;
    lane.state_stride = d->lane_bytes;
    lane.scratch = d->worker + worker_i * d->worker_bytes;
    return lane;
}

static const struct method *run_method(const sac_engine *e, const struct attn_run *run)
{
    const uint32_t seq_i = e->batch.seq_i[run->row0];
    return e->decode.method[e->seqs[seq_i].decode_i].spec->method;
}

static void see_lane(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct select_call *c = arg;
    const uint32_t n_kv_head = c->e->pool.geom.n_kv_head, run_i = item_i / n_kv_head;
    const struct method_decode *hooks = run_method(c->e, &c->e->batch.run[run_i])->decode;
    if (!hooks || !hooks->see) return;
    const struct method_lane lane = make_lane(c, run_i, item_i % n_kv_head, worker_i);
    hooks->see(&lane);
}

/* Where a lane's list begins before all lists of the run are moved together. */
static struct decode_list lane_list(const struct decode *d, size_t lane_i, size_t max_page,
                                    bool weighs)
{
    return (struct decode_list){
        .page = d->page + lane_i * max_page,
        .tok = d->tok ? d->tok + lane_i * max_page * PAGE_TOK : NULL,
        .logw = weighs ? d->logw + lane_i * max_page * PAGE_TOK : NULL,
    };
}

/* Where a lane's choice writes. */
static struct method_pick make_pick(const sac_engine *e, const struct method_lane *lane,
                                    uint32_t item_i, const struct method *method)
{
    const struct decode *d = &e->decode;
    const size_t n_page = lane->pos / PAGE_TOK, max_page = e->pool.max_page;
    struct method_pick pick = {.mask = d->mask + item_i * max_page};
    memset(pick.mask, 0, n_page * sizeof *pick.mask);
    if (method->weighs) {
        const struct decode_list list = lane_list(d, item_i, max_page, true);
        pick.tok = list.tok;
        pick.logw = list.logw;
    }
    if (method->has_rest) {
        pick.rest_log = d->rest_log + (size_t)item_i * d->shape.group;
        pick.rest_value = d->rest_value + (size_t)item_i * d->shape.geom->head_dim;
    }
    return pick;
}

/* A decode row's choice. */
static void ask(const sac_engine *e, const struct method_lane *lane, uint32_t item_i,
                const struct method *method)
{
    const struct method_decode *hooks = method->decode;
    const struct decode *d = &e->decode;
    struct decode_lane *answer = &d->lane[item_i];
    *answer = (struct decode_lane){.dense = true};
    for (uint32_t g = 0; g < d->shape.group && d->rest_log; g++)
        d->rest_log[(size_t)item_i * d->shape.group + g] = -INFINITY;
    if (!hooks || lane->pos < PAGE_TOK || lane->pos + 1 < d->shape.sparse_min_ctx) return;
    answer->asked = true;
    answer->not_finite = !method_queries_finite(lane);
    if (answer->not_finite) return;
    struct method_pick pick = make_pick(e, lane, item_i, method);
    hooks->select(lane, &pick);
    assert(pick.dense || !pick.not_finite);
    assert(method->chooses || pick.n_chosen == 0);
    answer->dense = pick.dense;
    answer->not_finite = pick.not_finite;
    answer->side_bytes = pick.side_bytes;
    answer->n_bypass = pick.n_bypass;
    answer->n_chosen = pick.dense ? 0 : pick.n_chosen;
    answer->mass_proved = pick.mass_proved;
    answer->rest_norm = pick.rest_norm;
    answer->n_tok = pick.dense ? 0 : pick.n_tok;
}

/* The run's last rows become past. */
static void keep_queries(const struct decode *d, const struct method_lane *lane)
{
    if (d->n_past == 0) return;
    float *past = d->past + (lane->past.q - d->past);
    const uint32_t n = lane->n_row < d->n_past ? lane->n_row : d->n_past;
    for (uint32_t r = lane->n_row - n; r < lane->n_row; r++)
        memcpy(past + (lane->pos + r) % d->n_past * d->past_floats, lane->q + r * lane->q_stride,
               d->past_floats * sizeof *past);
}

/* Fetches the key and the value of a token that will be read soon. */
static inline __attribute__((always_inline)) void fetch_token(const struct page_geom *g,
                                                              const uint8_t *page, size_t t)
{
    const size_t d = g->head_dim;
    const bool q8 = g->type_k == SAC_KV_Q8;
    const uint8_t *k = page + (q8 ? g->k_low + t * d * 3 / 4 : g->k + t * d * 2);
    const uint8_t *v = page + g->v + t * d * (q8 ? 1 : 2);
    for (size_t i = 0; i < d * (q8 ? 1 : 2); i += 64) {
        __builtin_prefetch(k + i, 0, 2);
        __builtin_prefetch(v + i, 0, 2);
    }
}

/* A lane's marks as whole pages and, behind tokens that are listed already, single tokens. */
static void list_lane(const sac_engine *e, const struct method_lane *lane, uint32_t lane_i,
                      bool weighs)
{
    const struct decode *d = &e->decode;
    const size_t max_page = e->pool.max_page;
    const bool all = d->lane[lane_i].dense;
    const uint32_t *mask = d->mask + lane_i * max_page;
    struct decode_list list = lane_list(d, lane_i, max_page, weighs);
    list.n_tok = d->lane[lane_i].n_tok;
    for (uint32_t p = 0; p < lane->pos / PAGE_TOK; p++) {
        const uint32_t word = all ? UINT32_MAX : mask[p];
        if (word == 0 || lane->page[p] == PAGE_NONE) continue;
        if (word == UINT32_MAX) {
            list.page[list.n_page++] = p;
            continue;
        }
        assert(!weighs && list.tok);
        for (uint32_t left = word; left; left &= left - 1)
            list.tok[list.n_tok++] = p * PAGE_TOK + (uint32_t)__builtin_ctz(left);
    }
    assert(list.tok || list.n_tok == 0);
    for (uint32_t i = 0; i < list.n_tok; i++)
        fetch_token(&e->pool.geom,
                    lane->pool + lane->page[list.tok[i] / PAGE_TOK] * e->pool.geom.bytes,
                    list.tok[i] % PAGE_TOK);
    d->lane[lane_i].n_page = list.n_page;
    d->lane[lane_i].n_tok = list.n_tok;
}

static void select_lane(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct select_call *c = arg;
    const sac_engine *e = c->e;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, run_i = item_i / n_kv_head;
    const struct method_lane lane = make_lane(c, run_i, item_i % n_kv_head, worker_i);
    if (run_i < e->batch.n_decode) {
        const struct method *method = run_method(e, &e->batch.run[run_i]);
        ask(e, &lane, item_i, method);
        list_lane(e, &lane, item_i, method->weighs);
    }
    keep_queries(&e->decode, &lane);
}

static void append_list(struct decode_list *all, const struct decode_list *one,
                        const struct decode_lane *n)
{
    memmove(all->page + all->n_page, one->page, n->n_page * sizeof *all->page);
    all->n_page += n->n_page;
    assert(all->tok || n->n_tok == 0);
    if (n->n_tok) memmove(all->tok + all->n_tok, one->tok, n->n_tok * sizeof *all->tok);
    if (n->n_tok && all->logw)
        memmove(all->logw + all->n_tok, one->logw, n->n_tok * sizeof *all->logw);
    all->n_tok += n->n_tok;
}

/* Moves the lists of a run's lanes together. */
static void list_run(sac_engine *e, uint32_t run_i)
{
    const struct decode *d = &e->decode;
    const size_t n_kv_head = e->pool.geom.n_kv_head, lane0 = run_i * n_kv_head;
    const size_t max_page = e->pool.max_page, ptr0 = run_i * (n_kv_head + 1);
    struct attn_run *run = &e->batch.run[run_i];
    const bool weighs = run_method(e, run)->weighs;
    struct decode_list list = lane_list(d, lane0, max_page, weighs);
    bool is_dense = !e->seqs[e->batch.seq_i[run->row0]].has_gaps;
    for (size_t h = 0; h < n_kv_head; h++) is_dense = is_dense && d->lane[lane0 + h].dense;
    if (is_dense) return;
    for (size_t h = 0; h < n_kv_head; h++) {
        const struct decode_list one = lane_list(d, lane0 + h, max_page, weighs);
        d->page_ptr[ptr0 + h] = list.n_page;
        d->tok_ptr[ptr0 + h] = list.n_tok;
        append_list(&list, &one, &d->lane[lane0 + h]);
    }
    d->page_ptr[ptr0 + n_kv_head] = list.n_page;
    d->tok_ptr[ptr0 + n_kv_head] = list.n_tok;
    run->select = list.page;
    run->select_ptr = d->page_ptr + ptr0;
    if (list.n_tok == 0) return;
    run->select_tok = list.tok;
    run->select_tok_ptr = d->tok_ptr + ptr0;
    run->select_logw = list.logw;
}

/* Gives back the pages of which an evicting method has marked nothing. */
static void drop_pages(sac_engine *e, uint32_t layer)
{
    struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    for (uint32_t i = 0; i < e->batch.n_decode * n_kv_head; i++) {
        const struct attn_run *run = &e->batch.run[i / n_kv_head];
        const uint32_t seq_i = e->batch.seq_i[run->row0], h = i % n_kv_head;
        struct seq *s = &e->seqs[seq_i];
        const uint32_t *mask = d->mask + (size_t)i * e->pool.max_page;
        if (!d->method[s->decode_i].spec->method->evicts || d->lane[i].dense) continue;
        for (uint32_t p = 0; p < run->pos0 / PAGE_TOK; p++) {
            if (mask[p] || run->table[h * run->table_stride + p] == PAGE_NONE) continue;
            pool_drop(&e->pool, seq_i, layer, h, p);
            e->stats.n_page_dropped++;
            s->has_gaps = true;
        }
    }
}

/* Prompt rows of a sequence with gaps read all pages that are there: one tile, a list a head. */
static void bridge_gaps(sac_engine *e, struct attn_run *run, uint32_t plan_i)
{
    struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, max_page = e->pool.max_page;
    const uint32_t n_page = (run->pos0 + run->n_row) / PAGE_TOK;
    struct attn_range *range = d->range + (size_t)plan_i * n_kv_head * (max_page / 2 + 1);
    uint32_t *ptr = d->range_ptr + (size_t)plan_i * (n_kv_head + 1), n = 0;
    for (uint32_t h = 0; h < n_kv_head; h++) {
        const page_id *table = run->table + h * run->table_stride;
        ptr[h] = n;
        for (uint32_t p = 0; p < n_page; p++) {
            if (table[p] == PAGE_NONE) continue;
            if (n > ptr[h] && range[n - 1].end == p)
                range[n - 1].end++;
            else
                range[n++] = (struct attn_range){p, p + 1};
        }
    }
    ptr[n_kv_head] = n;
    /* No border of a tile may lie in the context, and tiles are whole numbers of the kernels'. */
    d->plan[plan_i] = (struct attn_plan){
        .tile_tok = (max_page + 63) / 64 * 64 * PAGE_TOK, .range = range, .range_ptr = ptr};
    run->plan = &d->plan[plan_i];
}

static void bridge_all_gaps(sac_engine *e)
{
    uint32_t n_plan = 0;
    for (uint32_t i = e->batch.n_decode; i < e->batch.n_run; i++)
        if (e->seqs[e->batch.seq_i[e->batch.run[i].row0]].has_gaps)
            bridge_gaps(e, &e->batch.run[i], n_plan++);
}

static void count_choices(sac_engine *e)
{
    struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    d->layer_side_bytes = 0;
    for (uint32_t i = 0; i < e->batch.n_decode * n_kv_head; i++) {
        d->layer_side_bytes += d->lane[i].side_bytes;
        e->stats.n_select += d->lane[i].asked;
        e->stats.n_bypass += d->lane[i].n_bypass;
        e->stats.n_tok_chosen += d->lane[i].n_chosen;
        e->stats.n_select_dense += d->lane[i].asked && d->lane[i].dense;
        e->stats.n_select_proved += d->lane[i].mass_proved > 0;
        e->stats.mass_proved += (double)d->lane[i].mass_proved;
        e->stats.n_select_nan += d->lane[i].not_finite;
    }
    e->stats.side_bytes_read += d->layer_side_bytes;
}

void decode_select(sac_engine *e, uint32_t layer, uint32_t window)
{
    struct decode *d = &e->decode;
    const uint64_t start = clock_us();
    struct select_call c = {.e = e, .layer = layer};
    d->layer_side_bytes = d->layer_us = 0;
    for (uint32_t i = 0; i < e->batch.n_decode; i++) {
        struct attn_run *run = &e->batch.run[i];
        run->select = run->select_ptr = run->select_tok = run->select_tok_ptr = NULL;
        run->select_logw = NULL;
    }
    /* A layer with a window of its own reads little already. */
    if (d->specs.is_dense || window > 0) return;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    if (d->has_see) workers_for(e->workers, e->batch.n_run * n_kv_head, see_lane, &c);
    workers_for(e->workers, (d->n_past ? e->batch.n_run : e->batch.n_decode) * n_kv_head,
                select_lane, &c);
    for (uint32_t i = 0; i < e->batch.n_decode; i++) list_run(e, i);
    count_choices(e);
    if (d->evicts && !e->params.record) drop_pages(e, layer);
    if (d->evicts) bridge_all_gaps(e);
    d->layer_us = clock_us() - start;
    e->stats.select_us += d->layer_us;
}

void decode_merge(float *out, float lse, const float *value, float value_log, uint32_t d)
{
    if (value_log == -INFINITY) return;
    const float share = 1 / (1 + expf(lse - value_log));
    for (uint32_t c = 0; c < d; c++) out[c] += share * (value[c] - out[c]);
}

void decode_add_rest(sac_engine *e, uint32_t window)
{
    const struct decode *d = &e->decode;
    const uint32_t group = d->shape.group, n_kv_head = e->pool.geom.n_kv_head;
    const size_t width = e->pool.geom.head_dim;
    if (!d->rest_log || window > 0) return;
    for (uint32_t i = 0; i < e->batch.n_decode * n_kv_head; i++) {
        const uint32_t row = e->batch.run[i / n_kv_head].row0;
        if (d->lane[i].dense) continue;
        for (uint32_t g = 0; g < group; g++) {
            const size_t head = ((size_t)row * n_kv_head + i % n_kv_head) * group + g;
            decode_merge(e->scratch.attn + head * width, d->lse[head], d->rest_value + i * width,
                         d->rest_log[(size_t)i * group + g], (uint32_t)width);
        }
    }
}

double decode_relative(double off, double norm)
{
    if (!(off > 0)) return 0;
    return norm > 0 ? sqrt(off / norm) : 1;
}

/* Output = p seen + (1 - p) rest, so it is (1 - p) |rest - seen| away from what was seen. */
void decode_certify(sac_engine *e, uint32_t window)
{
    const struct decode *d = &e->decode;
    const uint32_t group = d->shape.group, n_kv_head = e->pool.geom.n_kv_head;
    const size_t width = e->pool.geom.head_dim;
    if (d->specs.is_dense || window > 0) return;
    for (uint32_t i = 0; i < e->batch.n_decode * n_kv_head; i++) {
        const struct decode_lane *lane = &d->lane[i];
        const uint32_t row = e->batch.run[i / n_kv_head].row0;
        double off = 0, all = 0;
        if (!(lane->mass_proved > 0)) continue;
        for (uint32_t g = 0; g < group; g++) {
            const float *out =
                e->scratch.attn + (((size_t)row * n_kv_head + i % n_kv_head) * group + g) * width;
            double norm = 0;
            for (size_t c = 0; c < width; c++) norm += (double)out[c] * (double)out[c];
            const double part =
                (1 - (double)lane->mass_proved) * ((double)lane->rest_norm + sqrt(norm));
            off += part * part;
            all += norm;
        }
        const double bound = decode_relative(off, all);
        e->stats.out_bound += bound;
        if (bound > e->stats.out_bound_max) e->stats.out_bound_max = bound;
    }
}

struct decode_proof decode_proof(const sac_engine *e, uint32_t run_i, uint32_t kv_head)
{
    if (e->decode.specs.is_dense) return (struct decode_proof){0};
    const struct decode_lane *lane = &e->decode.lane[run_i * e->pool.geom.n_kv_head + kv_head];
    return (struct decode_proof){lane->mass_proved, lane->rest_norm};
}
