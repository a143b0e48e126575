/* decode.c: asks the decode methods, lane by lane, and turns their masks into the lists that the
 * attention op reads. All memory of methods is planned here.
 *
 * Invariants:
 *  1. A lane's choice depends on the sequence alone: lanes write their own state, mask and answer,
 *     and what they have in common (lists, counters) is made from those in lane order afterwards.
 *  2. Where everything is to be read, the run has no list at all, or one of all pages: the bits of
 *     dense attention either way (attn.c).
 *  3. Side data of a page is complete before any lane can ask for it: decode_seal runs between the
 *     seal of a layer's pages and its choices. */
#include "engine/decode.h"

#include "engine/engine.h"

#include <assert.h>
#include <math.h>
#include <string.h>

struct decode_lane {
    uint64_t side_bytes;
    bool asked, dense, not_finite;
};

struct decode_list { /* of one run, while it is made */
    uint32_t *page, *tok;
    uint32_t n_page, n_tok;
};

/* ---- Memory ---- */

static size_t hook_bytes(size_t (*hook)(const struct method_shape *, const double *),
                         const struct decode *d, const struct spec *spec)
{
    return hook ? (hook(&d->shape, spec->param) + 63) & ~(size_t)63 : 0;
}

sac_status decode_init(sac_engine *e, sac_error *err)
{
    static const char *const full = "full";
    struct decode *d = &e->decode;
    const char *const *text = e->params.n_decode ? e->params.decode : &full;
    const uint32_t n = e->params.n_decode ? e->params.n_decode : 1;
    if (n > DECODE_METHODS_MAX)
        return error_set(err, SAC_ERR_ARG, "%u decode methods: at most %u", n, DECODE_METHODS_MAX);
    d->is_dense = true;
    for (uint32_t i = 0; i < n; i++) {
        TRY(spec_parse(&d->method[i].spec, "decode", text[i], err));
        d->text[i] = d->method[i].spec.text;
        d->is_dense = d->is_dense && !d->method[i].spec.method->decode;
    }
    d->n_method = n;
    e->params.decode = d->text;
    e->params.n_decode = n;
    return SAC_OK;
}

static size_t lane_count(const sac_engine *e)
{
    return (size_t)e->pool.geom.n_layer * e->pool.geom.n_kv_head;
}

static bool has_token_grain(const struct decode *d)
{
    for (uint32_t i = 0; i < d->n_method; i++)
        if (d->method[i].spec.method->token_grain) return true;
    return false;
}

void decode_plan(sac_engine *e, struct arena *a)
{
    struct decode *d = &e->decode;
    const struct page_geom *g = &e->pool.geom;
    const size_t n_seq = e->params.n_seq_max, n_lane = n_seq * g->n_kv_head, before = a->used;
    if (d->is_dense) return;
    d->shape = (struct method_shape){
        .geom = g, .group = e->model->config.n_head / g->n_kv_head, .n_ctx = e->params.n_ctx};
    assert(d->shape.group <= METHOD_GROUP_MAX);
    d->lane_bytes = d->side_stride = 0;
    d->worker_bytes = PAGE_TOK * (size_t)g->head_dim * sizeof(float);
    for (uint32_t i = 0; i < d->n_method; i++) {
        struct decode_method *m = &d->method[i];
        const struct method_decode *hooks = m->spec.method->decode;
        if (!hooks) continue;
        const size_t scratch = hook_bytes(hooks->scratch_bytes, d, &m->spec);
        m->state_bytes = hook_bytes(hooks->state_bytes, d, &m->spec);
        m->side_bytes = hook_bytes(hooks->side_bytes, d, &m->spec);
        m->side_at = d->side_stride;
        d->side_stride += m->side_bytes;
        if (m->state_bytes > d->lane_bytes) d->lane_bytes = m->state_bytes;
        if (scratch > d->worker_bytes) d->worker_bytes = scratch;
    }
    d->state = arena_take(a, n_seq * lane_count(e), d->lane_bytes);
    d->side = arena_take(a, e->pool.n_page, d->side_stride);
    e->stats.side_bytes = a->used - before;
    d->worker = arena_take(a, workers_count(e->workers), d->worker_bytes);
    d->mask = arena_take(a, n_lane * e->pool.max_page, sizeof *d->mask);
    d->page = arena_take(a, n_lane * e->pool.max_page, sizeof *d->page);
    d->page_ptr = arena_take(a, n_seq * (g->n_kv_head + 1), sizeof *d->page_ptr);
    d->tok = has_token_grain(d)
                 ? arena_take(a, n_lane * e->pool.max_page * PAGE_TOK, sizeof *d->tok)
                 : NULL;
    d->tok_ptr = arena_take(a, n_seq * (g->n_kv_head + 1), sizeof *d->tok_ptr);
    d->lane = arena_take(a, n_lane, sizeof *d->lane);
}

static uint8_t *seq_state(const sac_engine *e, uint32_t seq_i)
{
    return e->decode.state + seq_i * lane_count(e) * e->decode.lane_bytes;
}

void decode_reset(sac_engine *e, uint32_t seq_i)
{
    if (e->decode.lane_bytes) memset(seq_state(e, seq_i), 0, lane_count(e) * e->decode.lane_bytes);
}

void decode_fork(sac_engine *e, uint32_t dst, uint32_t src)
{
    if (e->decode.lane_bytes)
        memcpy(seq_state(e, dst), seq_state(e, src), lane_count(e) * e->decode.lane_bytes);
}

void decode_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok)
{
    const struct decode *d = &e->decode;
    const struct decode_method *m = &d->method[e->seqs[seq_i].decode_i];
    const struct method_decode *hooks = m->spec.method->decode;
    if (m->state_bytes == 0) return;
    if (!hooks->cut) {
        decode_reset(e, seq_i);
        return;
    }
    for (size_t i = 0; i < lane_count(e); i++)
        hooks->cut(seq_state(e, seq_i) + i * d->lane_bytes, &d->shape, m->spec.param, n_tok);
}

sac_status sac_seq_use_decode(sac_engine *e, sac_seq id, uint32_t decode_i, sac_error *err)
{
    struct seq *s = engine_seq(e, id, err);
    if (!s) return SAC_ERR_NOT_FOUND;
    if (decode_i >= e->decode.n_method)
        return error_set(err, SAC_ERR_ARG, "there is no decode method %u: the engine has %u",
                         decode_i, e->decode.n_method);
    if (s->decode_i == decode_i) return SAC_OK;
    s->decode_i = decode_i;
    decode_reset(e, id);
    return SAC_OK;
}

/* ---- Side data ---- */

struct seal_call {
    sac_engine *e;
    uint8_t *const *sealed;
};

static void seal_page(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct seal_call *c = arg;
    const struct decode *d = &c->e->decode;
    const struct pool *p = &c->e->pool;
    float *k = (float *)(void *)(d->worker + worker_i * d->worker_bytes);
    const size_t id = (size_t)(c->sealed[i] - p->pages) / p->geom.bytes;
    page_read(k, NULL, &p->geom, c->sealed[i], PAGE_SEALED, PAGE_TOK);
    for (uint32_t m = 0; m < d->n_method; m++)
        if (d->method[m].side_bytes)
            d->method[m].spec.method->decode->seal(d->side + id * d->side_stride +
                                                       d->method[m].side_at,
                                                   &d->shape, d->method[m].spec.param, k);
}

void decode_seal(sac_engine *e, uint8_t *const *sealed, uint32_t n)
{
    struct seal_call c = {.e = e, .sealed = sealed};
    if (e->decode.side_stride) workers_for(e->workers, n, seal_page, &c);
}

/* ---- Choices ---- */

struct select_call {
    sac_engine *e;
    uint32_t layer;
};

static const float *run_q(const sac_engine *e, const struct attn_run *run, uint32_t kv_head)
{
    const struct config *c = &e->model->config;
    const size_t stride = ((size_t)c->n_head + 2 * c->n_kv_head) * c->head_dim;
    return e->scratch.qkv + run->row0 * stride +
           (size_t)kv_head * e->decode.shape.group * c->head_dim;
}

static bool all_finite(const float *x, size_t n)
{
    /* x - x is 0 for finite numbers and NaN for all others; the loop has no branch. */
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] - x[i];
    return sum == 0;
}

static struct method_lane make_lane(const struct select_call *c, uint32_t run_i, uint32_t kv_head,
                                    uint32_t worker_i)
{
    const sac_engine *e = c->e;
    const struct decode *d = &e->decode;
    const struct config *config = &e->model->config;
    const struct page_geom *g = &e->pool.geom;
    const struct attn_run *run = &e->batch.run[run_i];
    const uint32_t seq_i = e->batch.seq_i[run->row0], end = run->pos0 + run->n_row;
    const struct decode_method *m = &d->method[e->seqs[seq_i].decode_i];
    const uint32_t last = (end - 1) / PAGE_TOK - run->pos0 / PAGE_TOK;
    const size_t lane_i = (size_t)c->layer * g->n_kv_head + kv_head;
    return (struct method_lane){
        .shape = &d->shape,
        .param = m->spec.param,
        .ops = &e->ops,
        .layer = c->layer,
        .kv_head = kv_head,
        .pos = run->pos0,
        .n_row = run->n_row,
        .is_prompt = run->mode == LINEAR_WIDE,
        .q = run_q(e, run, kv_head),
        .q_stride = ((size_t)config->n_head + 2 * config->n_kv_head) * config->head_dim,
        .scale = config->attn_scale,
        .softcap = config->attn_softcap,
        .pool = e->pool.pages,
        .page = run->table + kv_head * run->table_stride,
        .n_sealed = end / PAGE_TOK,
        .own = last == 0 ? run->own0 + kv_head * g->tail_bytes
                         : run->own + ((size_t)(last - 1) * g->n_kv_head + kv_head) * g->tail_bytes,
        .side = d->side ? d->side + m->side_at : NULL,
        .side_stride = d->side_stride,
        .state = d->state + ((size_t)seq_i * lane_count(e) + lane_i) * d->lane_bytes,
        .scratch = d->worker + worker_i * d->worker_bytes,
    };
}

static void select_lane(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct select_call *c = arg;
    const sac_engine *e = c->e;
    const struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    const uint32_t run_i = item_i / n_kv_head, kv_head = item_i % n_kv_head;
    const struct attn_run *run = &e->batch.run[run_i];
    const struct method_decode *hooks =
        d->method[e->seqs[e->batch.seq_i[run->row0]].decode_i].spec.method->decode;
    if (run_i < e->batch.n_decode) d->lane[item_i] = (struct decode_lane){.dense = true};
    if (!hooks) return;
    const struct method_lane lane = make_lane(c, run_i, kv_head, worker_i);
    if (hooks->see) hooks->see(&lane);
    if (lane.is_prompt || lane.pos < PAGE_TOK || lane.pos + 1 < e->params.sparse_min_ctx) return;
    struct decode_lane *answer = &d->lane[item_i];
    answer->asked = true;
    answer->not_finite = !all_finite(lane.q, (size_t)d->shape.group * d->shape.geom->head_dim);
    if (answer->not_finite) return;
    struct method_pick pick = {.mask = d->mask + (size_t)item_i * e->pool.max_page};
    memset(pick.mask, 0, run->pos0 / PAGE_TOK * sizeof *pick.mask);
    hooks->select(&lane, &pick);
    assert(pick.dense || !pick.not_finite);
    answer->dense = pick.dense;
    answer->not_finite = pick.not_finite;
    answer->side_bytes = pick.side_bytes;
}

/* A lane's mask as whole pages and single tokens. */
static void list_lane(struct decode_list *list, const uint32_t *mask, uint32_t n_page,
                      bool is_dense)
{
    for (uint32_t p = 0; p < n_page; p++) {
        const uint32_t word = is_dense ? UINT32_MAX : mask[p];
        if (word == UINT32_MAX) {
            list->page[list->n_page++] = p;
            continue;
        }
        for (uint32_t left = word; left; left &= left - 1)
            list->tok[list->n_tok++] = p * PAGE_TOK + (uint32_t)__builtin_ctz(left);
    }
}

/* The lists of one decode run from its lanes' masks. */
static void list_run(void *arg, uint32_t run_i, uint32_t worker_i)
{
    const struct select_call *c = arg;
    const sac_engine *e = c->e;
    const struct decode *d = &e->decode;
    const size_t n_kv_head = e->pool.geom.n_kv_head, lane0 = run_i * n_kv_head;
    const size_t max_page = e->pool.max_page, ptr0 = run_i * (n_kv_head + 1);
    struct attn_run *run = &e->batch.run[run_i];
    struct decode_list list = {
        .page = d->page + lane0 * max_page,
        .tok = d->tok ? d->tok + lane0 * max_page * PAGE_TOK : NULL,
    };
    bool is_dense = true;
    (void)worker_i;
    for (size_t h = 0; h < n_kv_head; h++) is_dense = is_dense && d->lane[lane0 + h].dense;
    if (is_dense) return;
    for (size_t h = 0; h < n_kv_head; h++) {
        d->page_ptr[ptr0 + h] = list.n_page;
        d->tok_ptr[ptr0 + h] = list.n_tok;
        list_lane(&list, d->mask + (lane0 + h) * max_page, run->pos0 / PAGE_TOK,
                  d->lane[lane0 + h].dense);
    }
    d->page_ptr[ptr0 + n_kv_head] = list.n_page;
    d->tok_ptr[ptr0 + n_kv_head] = list.n_tok;
    run->select = list.page;
    run->select_ptr = d->page_ptr + ptr0;
    if (list.n_tok == 0) return;
    run->select_tok = list.tok;
    run->select_tok_ptr = d->tok_ptr + ptr0;
}

static void count_choices(sac_engine *e)
{
    struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    d->layer_side_bytes = 0;
    for (uint32_t i = 0; i < e->batch.n_decode * n_kv_head; i++) {
        d->layer_side_bytes += d->lane[i].side_bytes;
        e->stats.n_select += d->lane[i].asked;
        e->stats.n_select_dense += d->lane[i].asked && d->lane[i].dense;
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
    }
    /* A layer with a window of its own reads little already. */
    if (d->is_dense || window > 0) return;
    workers_for(e->workers, e->batch.n_run * e->pool.geom.n_kv_head, select_lane, &c);
    workers_for(e->workers, e->batch.n_decode, list_run, &c);
    count_choices(e);
    d->layer_us = clock_us() - start;
    e->stats.select_us += d->layer_us;
}
