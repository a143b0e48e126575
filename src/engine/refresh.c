/* refresh.c: recomputes tokens of joined documents, each up to the last layer in which the
 * composer's masks name it.
 *
 * In layer l the tokens that continue to deeper layers are computed like rows of a prompt: queries,
 * keys and values, attention, output. For tokens whose last layer it is, keys and values suffice.
 * The new keys and values replace the old ones where the layer's mask says so; a row attends to
 * what is stored there, new or old, up to itself.
 *
 * Positions. Keys of a document were rotated at positions counted from its start, and recomputed
 * keys are rotated the same way, so all keys of a page have one origin. A row's query is rotated
 * the same way, and is rotated further by the difference of the two origins to meet documents
 * before its own (segment.h).
 *
 * Invariants:
 *  1. Rows are computed in the order of their positions, chunks end at page boundaries, and the new
 *     pages of a chunk are sealed before its attention: a row never sees an old page where a new
 *     one belongs, nor anything after itself.
 *  2. The result of a row does not depend on its chunk.
 *  3. Keys and values of layer 0 depend on the tokens alone, so they do not change, and their pages
 *     remain those of the documents.
 *  4. On a device, hidden states and open pages are in its memory. The host copies rows and open
 *     pages only if a composer measures changes or mixes new data with old. */
#include "engine/refresh.h"

#include "base/mem.h"
#include "engine/attend.h"
#include "engine/evict.h"
#include "engine/layer.h"
#include "kv/mirror.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The work of a sweep over a layer's rows. */
enum sweep { SWEEP_WRITE = 1, SWEEP_ATTEND = 2 };

struct refresh {
    sac_engine *e;
    const struct refresh_job *job;
    uint32_t n_tok, n_slot;
    uint32_t layer;
    uint16_t *depth; /* [n_tok] number of layers in which the token is recomputed */
    uint32_t *slot;  /* [n_tok] slot of its hidden state */
    uint32_t *row;   /* [n_tok] tokens of the current sweep, ascending */
    float *x;        /* [n_slot, n_embd] hidden states, in the backend's memory */
    float *change_k, *change_v;
    float *old, *line; /* of each worker: a page's keys and values; those of one token */
    /* One chunk: its runs, its pages in 16-bit form, and their ids. */
    struct attn_run *run;   /* [n_row_max] */
    struct attn_run *write; /* runs that the layer's mask names */
    uint32_t n_run, n_write;
    uint32_t *page; /* [n_page] */
    uint32_t n_page;
    uint8_t *own;      /* [n_row_max][n_kv_head][tail_bytes] memory of the backend */
    uint8_t *own_seen; /* the same memory as the host sees it: a copy if a device computes */
    const uint8_t **seal_from; /* [n_row_max * n_kv_head] */
    uint8_t **seal_to;         /* the same */
    page_id *seal_id;          /* the same */
    struct segment_view *view;
    float *turn; /* [n_doc + 1][SEGMENT_MAX] */
    struct attn_range *range;
    uint32_t *range_ptr; /* of a layer with gaps */
    struct attn_plan gaps;
    bool has_gaps, watched;
    uint8_t lost; /* set by threads that could not read a page: its status */
    struct refresh_done done;
};

static bool has_bit(const struct refresh *r, uint32_t layer, uint32_t tok)
{
    return context_refresh(r->job->view, r->job->plan, layer)[tok / PAGE_TOK] >> tok % PAGE_TOK & 1;
}

/* ---- Memory ---- */

/* Lays out one block, which is measured first. */
static void plan_refresh(struct refresh *r, struct arena *a)
{
    const sac_engine *e = r->e;
    const struct page_geom *g = &e->pool.geom;
    const size_t n_row = e->batch.n_row_max, n_doc = r->job->view->n_doc + 1;
    r->depth = arena_take(a, r->n_tok, sizeof *r->depth);
    r->slot = arena_take(a, r->n_tok, sizeof *r->slot);
    r->row = arena_take(a, r->n_tok, sizeof *r->row);
    r->x = arena_take_tensor(a, (size_t)r->n_slot * e->model->config.n_embd, sizeof *r->x);
    r->change_k = arena_take(a, r->n_tok, sizeof *r->change_k);
    r->change_v = arena_take(a, r->n_tok, sizeof *r->change_v);
    const size_t n_worker = workers_count(e->workers), n_kv = config_kv_width(&e->model->config);
    r->old = arena_take(a, n_worker * 2 * PAGE_TOK * n_kv, sizeof *r->old);
    r->line = arena_take(a, n_worker * n_kv, sizeof *r->line);
    r->run = arena_take(a, n_row, sizeof *r->run);
    r->write = arena_take(a, n_row, sizeof *r->write);
    r->page = arena_take(a, n_row, sizeof *r->page);
    r->own = arena_take_tensor(a, n_row * g->n_kv_head, g->tail_bytes);
    r->own_seen = e->backend.is_host ? r->own : arena_take(a, n_row * g->n_kv_head, g->tail_bytes);
    r->seal_from = arena_take(a, n_row * g->n_kv_head, sizeof *r->seal_from);
    r->seal_to = arena_take(a, n_row * g->n_kv_head, sizeof *r->seal_to);
    r->seal_id = arena_take(a, n_row * g->n_kv_head, sizeof *r->seal_id);
    r->view = arena_take(a, n_doc * SEGMENT_MAX, sizeof *r->view);
    r->turn = arena_take(a, n_doc * SEGMENT_MAX * e->model->config.rope.n_rot, sizeof *r->turn);
    r->range = arena_take(a, g->n_kv_head * (e->pool.max_page / 2 + 1), sizeof *r->range);
    r->range_ptr = arena_take(a, g->n_kv_head + 1, sizeof *r->range_ptr);
}

static uint16_t depth_of(const struct refresh *r, uint32_t tok)
{
    uint32_t layer = r->job->view->n_layer;
    while (layer > 0 && !has_bit(r, layer - 1, tok)) layer--;
    return (uint16_t)layer;
}

static uint32_t count_tokens(const struct refresh *r)
{
    uint32_t n = 0;
    for (uint32_t t = 0; t < r->n_tok; t++) n += depth_of(r, t) > 0;
    return n;
}

/* ---- One chunk of rows ---- */

static bool is_local(const struct refresh *r)
{
    return config_layer_is_local(&r->e->model->config, r->layer);
}

/* The index of the document that contains a page, from 1; 0: the head. */
static uint32_t doc_of(const struct refresh *r, uint32_t page)
{
    const struct context_view *v = r->job->view;
    uint32_t i = 0;
    while (i < v->n_doc && v->doc[i].begin <= page) i++;
    return i;
}

/* Makes rows [n] the batch. Adjacent rows of one page become a run if all of them are written, or
 * none. */
static void begin_chunk(struct refresh *r, const uint32_t *row, uint32_t n)
{
    sac_engine *e = r->e;
    const struct page_geom *g = &e->pool.geom;
    struct batch *b = &e->batch;
    assert(n <= b->n_row_max);
    b->n_row = n;
    b->n_decode = b->n_run = r->n_run = r->n_page = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t tok = row[i], page = tok / PAGE_TOK;
        b->tok[i] = e->seqs[r->job->seq_i].tok[tok];
        b->pos[i] = (uint32_t)((int32_t)tok - segment_offset(e, r->job->seq_i, page));
        b->seq_i[i] = r->job->seq_i;
        if (r->n_page == 0 || r->page[r->n_page - 1] != page) r->page[r->n_page++] = page;
        struct attn_run *last = r->n_run ? &r->run[r->n_run - 1] : NULL;
        if (last && last->pos0 + last->n_row == tok && last->pos0 / PAGE_TOK == page &&
            has_bit(r, r->layer, tok) == has_bit(r, r->layer, tok - 1)) {
            last->n_row++;
            continue;
        }
        const size_t doc = doc_of(r, page);
        const struct segment_view *view = r->view + doc * SEGMENT_MAX;
        uint32_t n_segment = 0;
        while (n_segment < e->segments.n[r->job->seq_i] && view[n_segment].end &&
               view[n_segment].end <= page)
            n_segment++;
        r->run[r->n_run] = (struct attn_run){.row0 = i,
                                             .n_row = 1,
                                             .pos0 = tok,
                                             .kind = ROW_PROMPT,
                                             .joins = last != NULL,
                                             .table = pool_table(&e->pool, r->job->seq_i, r->layer),
                                             .table_stride = e->pool.max_page,
                                             .frame = mirror_of(&e->pool, r->job->seq_i, r->layer),
                                             .own0 = r->own + (size_t)(r->n_page - 1) *
                                                                  g->n_kv_head * g->tail_bytes,
                                             .plan = r->has_gaps ? &r->gaps : NULL,
                                             .segment = n_segment ? view : NULL,
                                             .n_segment = n_segment};
        r->n_run++;
    }
}

/* Copies rows [n] of the residual stream from their slots (`load`) or to them; rows with contiguous
 * slots are copied together. */
static void move_hidden(struct refresh *r, const uint32_t *row, uint32_t n, bool load)
{
    const size_t width = r->e->model->config.n_embd;
    for (uint32_t i = 0, end; i < n; i = end) {
        float *kept = r->x + r->slot[row[i]] * width, *x = r->e->scratch.x + i * width;
        for (end = i + 1; end < n && r->slot[row[end]] == r->slot[row[end - 1]] + 1;) end++;
        backend_copy(&r->e->backend, load ? x : kept, load ? kept : x,
                     (end - i) * width * sizeof *x);
    }
}

static void load_hidden(struct refresh *r, const uint32_t *row, uint32_t n)
{
    layer_angles(r->e);
    if (r->layer == 0)
        layer_embed(r->e);
    else
        move_hidden(r, row, n, true);
}

/* Copies a page of the chunk, in its current state, into 16-bit form. */
static void open_page(void *arg, uint32_t item_i, uint32_t worker_i)
{
    struct refresh *r = arg;
    const struct pool *p = &r->e->pool;
    const uint32_t n_kv_head = p->geom.n_kv_head, h = item_i % n_kv_head;
    const page_id *id = pool_table(p, r->job->seq_i, r->layer) + (size_t)h * p->max_page +
                        r->page[item_i / n_kv_head];
    (void)worker_i;
    const sac_status status = tier_acquire(p->tier, id, 1);
    if (status != SAC_OK) __atomic_store_n(&r->lost, (uint8_t)status, __ATOMIC_RELAXED);
    if (!tier_holds(status)) return;
    page_unseal(&p->geom, r->own + item_i * p->geom.tail_bytes, pool_page(p, *id), PAGE_TOK);
    tier_release(p->tier, id, 1);
}

static void open_on_device(struct refresh *r)
{
    const struct pool *p = &r->e->pool;
    const uint32_t n_kv_head = p->geom.n_kv_head, n = r->n_page * n_kv_head;
    const page_id *table = pool_table(p, r->job->seq_i, r->layer);
    for (uint32_t i = 0; i < n; i++) {
        r->seal_from[i] =
            pool_page(p, table[(i % n_kv_head) * (size_t)p->max_page + r->page[i / n_kv_head]]);
        r->seal_to[i] = r->own + i * p->geom.tail_bytes;
    }
    r->e->ops.docs.unseal(r->e->workers, &(struct op_unseal){.geom = &p->geom,
                                                             .n_page = n,
                                                             .sealed = r->seal_from,
                                                             .tail = r->seal_to});
}

static sac_status open_pages(struct refresh *r, sac_error *err)
{
    r->lost = SAC_OK;
    if (!r->e->backend.is_host)
        open_on_device(r);
    else
        workers_for(r->e->workers, r->n_page * r->e->pool.geom.n_kv_head, open_page, r);
    return r->lost == SAC_OK ? SAC_OK : tier_explain(r->e->pool.tier, (sac_status)r->lost, err);
}

/* A run's open page, in memory that the host can read. */
static const uint8_t *seen_page(const struct refresh *r, const struct attn_run *run, uint32_t h)
{
    return r->own_seen + (run->own0 - r->own) + h * r->e->pool.geom.tail_bytes;
}

static float distance(const float *a, const float *b, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
}

/* Measures how much the keys and values of a run's rows have changed. */
static void measure_run(void *arg, uint32_t run_i, uint32_t worker_i)
{
    const struct refresh *r = arg;
    const sac_engine *e = r->e;
    const struct page_geom *g = &e->pool.geom;
    const struct config *c = &e->model->config;
    const struct attn_run *run = &r->run[run_i];
    float k[PAGE_TOK * HEAD_DIM_MAX], v[PAGE_TOK * HEAD_DIM_MAX];
    assert(g->head_dim <= HEAD_DIM_MAX && run->n_row <= PAGE_TOK);
    (void)worker_i;
    for (uint32_t i = 0; i < run->n_row; i++)
        r->change_k[run->pos0 + i] = r->change_v[run->pos0 + i] = 0;
    for (uint32_t h = 0; h < g->n_kv_head; h++) {
        page_read(k, v, g, seen_page(r, run, h), PAGE_TAIL, PAGE_TOK);
        for (uint32_t i = 0; i < run->n_row; i++) {
            const uint32_t tok = run->pos0 + i;
            const size_t at = (size_t)(tok % PAGE_TOK) * g->head_dim;
            const float *new_k = e->scratch.qkv_seen + (run->row0 + i) * config_qkv_width(c) +
                                 config_q_width(c) + h * g->head_dim;
            r->change_k[tok] += distance(new_k, k + at, g->head_dim);
            r->change_v[tok] += distance(new_k + config_kv_width(c), v + at, g->head_dim);
        }
    }
}

/* Each of n_head vectors x of d channels becomes theta x + (1 - theta) old, where theta is their
 * cosine, at least 0. */
static void mix(float *x, const float *old, size_t n)
{
    double xy = 0, xx = 0, yy = 0;
    for (size_t i = 0; i < n; i++) {
        xy += (double)x[i] * (double)old[i];
        xx += (double)x[i] * (double)x[i];
        yy += (double)old[i] * (double)old[i];
    }
    const double cosine = xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : 1;
    const float theta = cosine < 0 ? 0 : cosine > 1 ? 1 : (float)cosine;
    for (size_t i = 0; i < n; i++) x[i] = theta * x[i] + (1 - theta) * old[i];
}

/* Mixes the new keys and values of a run's rows with those of the document. */
static void fuse_run(void *arg, uint32_t run_i, uint32_t worker_i)
{
    const struct refresh *r = arg;
    const sac_engine *e = r->e;
    const struct page_geom *g = &e->pool.geom;
    const struct config *c = &e->model->config;
    const struct attn_run *run = &r->run[run_i];
    const size_t n = config_kv_width(c);
    float *old = r->old + (size_t)worker_i * 2 * PAGE_TOK * n, *k = old, *v = old + PAGE_TOK * n;
    const size_t part_n = r->job->fusion == CONTEXT_FUSION_HEAD ? g->head_dim : n;
    if (!has_bit(r, r->layer, run->pos0)) return;
    for (uint32_t h = 0; h < g->n_kv_head; h++)
        page_read(k + (size_t)h * PAGE_TOK * g->head_dim, v + (size_t)h * PAGE_TOK * g->head_dim, g,
                  seen_page(r, run, h), PAGE_TAIL, PAGE_TOK);
    for (uint32_t i = 0; i < run->n_row; i++) {
        float *row =
            e->scratch.qkv_seen + (run->row0 + i) * config_qkv_width(c) + config_q_width(c);
        const size_t at = (size_t)((run->pos0 + i) % PAGE_TOK) * g->head_dim;
        float *line = r->line + (size_t)worker_i * n;
        for (int part = 0; part < 2; part++, row += n) {
            for (uint32_t h = 0; h < g->n_kv_head; h++)
                memcpy(line + h * g->head_dim,
                       (part ? v : k) + (size_t)h * PAGE_TOK * g->head_dim + at,
                       g->head_dim * sizeof *line);
            for (size_t c0 = 0; c0 < n; c0 += part_n) mix(row + c0, line + c0, part_n);
        }
    }
}

/* Shows the changes to the composer, and mixes in the old keys and values if it wants that. */
static sac_status look(struct refresh *r, unsigned what, sac_error *err)
{
    sac_engine *e = r->e;
    const struct page_geom *g = &e->pool.geom;
    const size_t row_bytes = config_qkv_width(&e->model->config) * sizeof(float);
    const bool watches = r->watched && what & SWEEP_WRITE;
    const bool fuses = r->job->fusion != CONTEXT_FUSION_NONE;
    if (!watches && !fuses) return SAC_OK;
    backend_down(&e->backend, r->own_seen, r->own, r->n_page * g->n_kv_head * g->tail_bytes);
    TRY(layer_look(e, err));
    if (watches) workers_for(e->workers, r->n_run, measure_run, r);
    if (!fuses) return SAC_OK;
    workers_for(e->workers, r->n_run, fuse_run, r);
    backend_up(&e->backend, e->scratch.qkv, e->scratch.qkv_seen, e->batch.n_row * row_bytes);
    return SAC_OK;
}

static void write_runs(const struct refresh *r, struct workers *workers, const struct attn_run *run,
                       uint32_t n_run)
{
    const sac_engine *e = r->e;
    const struct config *c = &e->model->config;
    const float *k = e->scratch.qkv + config_q_width(c);
    e->ops.kv_write(workers, &(struct op_kv_write){.geom = &e->pool.geom,
                                                   .run = run,
                                                   .n_run = n_run,
                                                   .k = k,
                                                   .v = k + config_kv_width(c),
                                                   .kv_stride = config_qkv_width(c)});
}

/* Runs are short, so one thread writes a whole run. */
static void write_run(void *arg, uint32_t run_i, uint32_t worker_i)
{
    const struct refresh *r = arg;
    (void)worker_i;
    write_runs(r, NULL, &r->write[run_i], 1);
}

/* Writes the new keys and values of the runs that the layer's mask names into the chunk's pages. As
 * in a prompt, what rows see of their own page is not rounded. */
static void write_chunk(struct refresh *r)
{
    r->n_write = 0;
    for (uint32_t i = 0; i < r->n_run; i++)
        if (has_bit(r, r->layer, r->run[i].pos0)) r->write[r->n_write++] = r->run[i];
    if (r->e->backend.is_host)
        workers_for(r->e->workers, r->n_write, write_run, r);
    else if (r->n_write > 0)
        write_runs(r, r->e->workers, r->write, r->n_write);
}

/* Seals as many pages as a step could. */
static sac_status seal_part(struct refresh *r, uint32_t first, uint32_t n, sac_error *err)
{
    sac_engine *e = r->e;
    page_id *id = r->seal_id + first;
    const sac_status status = tier_open(e->pool.tier, id, n);
    if (status != SAC_OK) return tier_explain(e->pool.tier, status, err);
    for (uint32_t i = 0; i < n; i++) r->seal_to[i] = pool_page(&e->pool, id[i]);
    e->ops.seal(e->workers, &(struct op_seal){.geom = &e->pool.geom,
                                              .n_page = n,
                                              .tail = r->seal_from + first,
                                              .sealed = r->seal_to});
    side_seal(e, id, n);
    tier_close(e->pool.tier, id, n);
    return SAC_OK;
}

/* Makes the written pages the sequence's own, in place of the previous ones. */
static sac_status seal_pages(struct refresh *r, sac_error *err)
{
    sac_engine *e = r->e;
    struct pool *p = &e->pool;
    const struct page_geom *g = &p->geom;
    uint32_t n = 0, last = UINT32_MAX;
    for (uint32_t i = 0; i < r->n_run; i++) {
        const struct attn_run *run = &r->run[i];
        const uint32_t page = run->pos0 / PAGE_TOK;
        if (page == last || !has_bit(r, r->layer, run->pos0)) continue;
        last = page;
        for (uint32_t h = 0; h < g->n_kv_head; h++, n++) {
            const page_id *id =
                pool_table(p, r->job->seq_i, r->layer) + (size_t)h * p->max_page + page;
            const page_id before = *id;
            if (p->n_free == 0) reuse_make_room(e, 1);
            if (!pool_renew(p, r->job->seq_i, r->layer, h, page))
                return error_set(err, SAC_ERR_CONTEXT,
                                 "the KV pool is full: none of its %u pages is free for what is "
                                 "computed again",
                                 p->n_page);
            r->done.n_page_own += *id != before;
            r->seal_from[n] = run->own0 + h * g->tail_bytes;
            r->seal_id[n] = *id;
        }
    }
    const uint32_t n_most = e->attend.n_new_page_max * g->n_kv_head;
    for (uint32_t i = 0; i < n; i += n_most)
        TRY(seal_part(r, i, n - i < n_most ? n - i : n_most, err));
    return SAC_OK;
}

static sac_status attend(const struct refresh *r, sac_error *err)
{
    mirror_update(&r->e->pool, r->job->seq_i, r->job->view->n_page);
    struct reading reading = {.layer = r->layer,
                              .window = is_local(r) ? r->e->model->config.window : 0,
                              .n_run = r->n_run,
                              .run = r->run,
                              .frames = pool_frames(&r->e->pool, r->layer)};
    for (uint32_t first = 0, end; first < r->n_run; first = end) {
        end = r->n_run;
        sac_status status = attend_hold(r->e, &reading, first, &end);
        if (status == SAC_OK) {
            attend_read(r->e, &reading, first, end);
            status = attend_let(r->e);
        }
        if (status != SAC_OK) return tier_explain(r->e->pool.tier, status, err);
    }
    return SAC_OK;
}

/* Returns to the place where the rows' hidden states are. */
static sac_status come_back(sac_engine *e, sac_error *err)
{
    if (e->at == 0) return SAC_OK;
    place_cross(e, 0);
    return place_wait(e, err);
}

static sac_status run_chunk(struct refresh *r, const uint32_t *row, uint32_t n, unsigned what,
                            sac_error *err)
{
    sac_engine *e = r->e;
    begin_chunk(r, row, n);
    load_hidden(r, row, n);
    place_cross(e, place_linear(e, r->layer));
    layer_qkv(e, r->layer);
    TRY(open_pages(r, err));
    TRY(look(r, what, err));
    write_chunk(r);
    if (what & SWEEP_WRITE && r->layer > 0) TRY(seal_pages(r, err));
    if (!(what & SWEEP_ATTEND)) return SAC_OK;
    TRY(attend(r, err));
    layer_out(e, r->layer);
    TRY(come_back(e, err));
    move_hidden(r, row, n, false);
    return SAC_OK;
}

/* ---- Layers ---- */

/* Computes the tokens that are recomputed in at least `least` and at most `most` layers, in chunks
 * of whole pages. */
static sac_status sweep(struct refresh *r, uint32_t least, uint32_t most, unsigned what,
                        sac_error *err)
{
    const uint32_t n_max = r->e->batch.n_row_max;
    uint32_t n = 0;
    for (uint32_t t = 0; t < r->n_tok; t++) {
        if (t % PAGE_TOK == 0 && n + PAGE_TOK > n_max) {
            TRY(run_chunk(r, r->row, n, what, err));
            n = 0;
        }
        if (r->depth[t] >= least && r->depth[t] <= most) r->row[n++] = t;
    }
    return n > 0 ? run_chunk(r, r->row, n, what, err) : SAC_OK;
}

static void begin_layer(struct refresh *r, uint32_t layer)
{
    const sac_engine *e = r->e;
    const struct context_view *v = r->job->view;
    const size_t n_rot = e->model->config.rope.n_rot;
    r->layer = layer;
    for (size_t i = 0; i <= v->n_doc; i++) {
        struct segment_view *view = r->view + i * SEGMENT_MAX;
        memset(view, 0, SEGMENT_MAX * sizeof *view);
        segment_views_from(e, r->job->seq_i, i ? v->doc[i - 1].begin : 0, is_local(r), view,
                           r->turn + i * SEGMENT_MAX * n_rot);
    }
    const struct attn_run all = {.table = pool_table(&e->pool, r->job->seq_i, layer),
                                 .table_stride = e->pool.max_page,
                                 .n_row = r->n_tok};
    r->gaps = evict_bridge(e, &all, r->range, r->range_ptr);
    r->has_gaps = false;
    for (uint32_t p = 0; p < v->n_page; p++) r->has_gaps = r->has_gaps || all.table[p] == PAGE_NONE;
}

static sac_status run_layer(struct refresh *r, uint32_t layer, sac_error *err)
{
    const struct refresh_job *job = r->job;
    const uint32_t n_layer = job->view->n_layer;
    begin_layer(r, layer);
    r->watched = job->hooks->watches && job->hooks->watches(job->view, layer);
    if (r->watched) {
        memset(r->change_k, 0, r->n_tok * sizeof *r->change_k);
        memset(r->change_v, 0, r->n_tok * sizeof *r->change_v);
        TRY(sweep(r, layer + 1, n_layer, SWEEP_WRITE, err));
        job->hooks->observe(job->view, job->plan, layer,
                            &(struct context_change){r->change_k, r->change_v});
        for (uint32_t t = 0; t < r->n_tok; t++)
            if (r->depth[t] > layer) r->depth[t] = depth_of(r, t);
        return sweep(r, layer + 2, n_layer, SWEEP_ATTEND, err);
    }
    TRY(sweep(r, layer + 1, layer + 1, SWEEP_WRITE, err));
    return sweep(r, layer + 2, n_layer, SWEEP_WRITE | SWEEP_ATTEND, err);
}

static void count_rows(struct refresh *r)
{
    const size_t n = (size_t)r->job->view->n_layer * r->job->view->n_page;
    for (size_t i = 0; i < n; i++)
        r->done.n_row += (uint64_t)__builtin_popcount(r->job->plan->refresh[i]);
}

static sac_status run_layers(struct refresh *r, sac_error *err)
{
    for (uint32_t t = 0, n = 0; t < r->n_tok; t++) {
        r->depth[t] = depth_of(r, t);
        r->slot[t] = n;
        n += r->depth[t] > 0;
    }
    for (uint32_t layer = 0; layer < r->job->view->n_layer; layer++) TRY(run_layer(r, layer, err));
    count_rows(r);
    return SAC_OK;
}

/* Two blocks of memory, one of them the backend's; NULL if that is the host. */
struct rooms {
    uint8_t *host, *device;
    size_t host_bytes, device_bytes;
};

static sac_status take_rooms(struct rooms *out, struct refresh *r, sac_error *err)
{
    sac_engine *e = r->e;
    struct arena device = {0}, host = {.device = e->backend.is_host ? NULL : &device};
    plan_refresh(r, &host);
    *out = (struct rooms){.host_bytes = host.used, .device_bytes = device.used};
    out->host = mem_map(out->host_bytes);
    if (host.device) out->device = backend_take(&e->backend, out->device_bytes);
    if (!out->host || (host.device && !out->device))
        return error_set(err, SAC_ERR_MEMORY, "no memory for %zu MiB to compute %u tokens again",
                         (out->host_bytes + out->device_bytes) >> 20, r->n_slot);
    device = (struct arena){.base = out->device, .capacity = out->device_bytes};
    host = (struct arena){.base = out->host, .capacity = out->host_bytes, .device = host.device};
    plan_refresh(r, &host);
    return SAC_OK;
}

sac_status refresh_run(sac_engine *e, const struct refresh_job *job, struct refresh_done *out,
                       sac_error *err)
{
    struct refresh r = {.e = e, .job = job, .n_tok = job->view->n_page * PAGE_TOK};
    struct rooms rooms;
    r.n_slot = count_tokens(&r);
    *out = (struct refresh_done){0};
    if (r.n_slot == 0) return SAC_OK;
    sac_status status = take_rooms(&rooms, &r, err);
    if (status == SAC_OK) status = run_layers(&r, err);
    *out = r.done;
    /* A device's memory is freed only when the device no longer uses it. */
    const sac_status done = place_wait(e, status == SAC_OK ? err : NULL);
    mem_unmap(rooms.host, rooms.host_bytes);
    if (rooms.device) backend_give(&e->backend, rooms.device, rooms.device_bytes);
    return status == SAC_OK ? done : status;
}
