/* engine.c: creates an engine, plans its memory, runs steps and counts them. Policy is in sched.c,
 * tensors are in layer.c, sequences in seq.c.
 *
 * Memory: `plan_memory` is called twice, first to measure and then to lay out one block, so sizes
 * and layout cannot disagree. Unused parts of the pool take no resident memory until tokens fill
 * them. */
#include "engine/engine.h"

#include "base/mem.h"
#include "engine/device.h"
#include "engine/layer.h"
#include "engine/request.h"
#include "engine/resident.h"
#include "engine/sched.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define N_CTX_MAX      (1u << 24)
#define SPARSE_MIN_CTX 2048u /* below it, selecting costs more than it saves */

#define BATCH_OF_THREAD 128u
#define BATCH_STEP      OP_SAMPLE_TILE /* the largest tile of a method with any_chunk */
#define BATCH_LEAST     512u
#define BATCH_MOST      2048u /* fills the multiprocessors of a GPU */

sac_engine_params sac_engine_params_default(void)
{
    return (sac_engine_params){.n_seq_max = 1, .sparse_min_ctx = SPARSE_MIN_CTX};
}

static bool names_device(const sac_engine *e)
{
    return e->params.device && strcmp(e->params.device, "cpu") != 0;
}

static sac_status check_tier(sac_engine *e, sac_error *err)
{
    struct sac_tier_params *t = &e->tier_params;
    if (!e->params.tier) return SAC_OK;
    *t = *e->params.tier;
    e->params.tier = t;
    if (names_device(e) && !e->params.kv_on_host) return device_check_tier(e, err);
    if (!t->file || !*t->file)
        return error_set(err, SAC_ERR_ARG,
                         "memory for %llu bytes of pages and no file for the others: name one",
                         (unsigned long long)t->fast_bytes);
    if (!t->fast_bytes)
        return error_set(err, SAC_ERR_ARG, "%s is to hold pages: say how much memory is above it",
                         t->file);
    if (t->policy > SAC_TIER_LRU)
        return error_set(err, SAC_ERR_ARG, "unknown policy %d of pages", (int)t->policy);
    if (t->admit > SAC_TIER_ADMIT_ALL)
        return error_set(err, SAC_ERR_ARG, "unknown admission %d of requests", (int)t->admit);
    return SAC_OK;
}

static sac_status check_target(float ms, sac_error *err)
{
    if (ms >= 0 && ms < INFINITY) return SAC_OK;
    return error_set(err, SAC_ERR_ARG, "a time between tokens of %g ms: must be 0 or more",
                     (double)ms);
}

/* The rows of a step are divided among all threads; with too few rows, threads wait for the last
 * one. The size must not depend on the number of threads if a method's plan depends on where chunks
 * end. */
static uint32_t usual_batch(const sac_engine *e)
{
    const sac_engine_params *p = &e->params;
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_PREFILL].specs;
    const uint32_t n_thread = p->n_threads ? p->n_threads : workers_default_count();
    const uint32_t n_step = (n_thread * BATCH_OF_THREAD + BATCH_STEP / 2) / BATCH_STEP;
    const uint32_t n = n_step * BATCH_STEP;
    const bool plans_on_device = names_device(e) && !p->kv_on_host;
    for (uint32_t i = 0; i < specs->n; i++) {
        const struct method_prefill *hooks = specs->spec[i].method->prefill;
        if (!hooks || hooks->any_chunk) continue;
        /* On a GPU these methods score all keys for some rows of the chunk, at a cost that hardly
         * depends on the number of rows. */
        if (plans_on_device && (hooks->trace || hooks->antidiag)) return BATCH_MOST;
        /* Both sizes consist of whole segments. */
        if (!plans_on_device || !hooks->blocks) return BATCH_LEAST;
    }
    if (names_device(e)) return BATCH_MOST;
    return n < BATCH_LEAST ? BATCH_LEAST : n > BATCH_MOST ? BATCH_MOST : n;
}

static sac_status fill_params(sac_engine *e, sac_error *err)
{
    sac_engine_params *p = &e->params;
    if (p->n_ctx == 0) p->n_ctx = e->model->config.n_ctx_train;
    if (p->n_ctx > N_CTX_MAX)
        return error_set(err, SAC_ERR_ARG, "context of %u tokens: at most %u are possible",
                         p->n_ctx, N_CTX_MAX);
    if (p->n_seq_max == 0 || p->n_seq_max > 4096)
        return error_set(err, SAC_ERR_ARG, "%u sequences: must be 1 to 4096", p->n_seq_max);
    if (p->n_batch > 1u << 16)
        return error_set(err, SAC_ERR_ARG, "batch of %u rows: must be 1 to 65536", p->n_batch);
    if (p->n_kv_tok == 0) p->n_kv_tok = (uint64_t)p->n_ctx * p->n_seq_max;
    TRY(check_target(p->tbt_target_ms, err));
    if (p->type_k > SAC_KV_Q8 || p->type_v > SAC_KV_Q8)
        return error_set(err, SAC_ERR_ARG, "unknown KV type %d or %d", (int)p->type_k,
                         (int)p->type_v);
    if ((p->type_k == SAC_KV_Q8) != (p->type_v == SAC_KV_Q8))
        return error_set(
            err, SAC_ERR_ARG,
            "KV type q8 is for keys and values together; the 16-bit types may be mixed");
    return check_tier(e, err);
}

static sac_status count_pages(const sac_engine *e, uint32_t *out, sac_error *err)
{
    const struct config *c = &e->model->config;
    const uint64_t n_index = (e->params.n_kv_tok + PAGE_TOK - 1) / PAGE_TOK;
    const uint64_t per_index = (uint64_t)c->n_layer * c->n_kv_head;
    if (n_index > (UINT32_MAX - 1) / per_index)
        return error_set(err, SAC_ERR_ARG, "a KV pool of %llu tokens has too many pages",
                         (unsigned long long)e->params.n_kv_tok);
    *out = (uint32_t)(n_index * per_index);
    return SAC_OK;
}

static void plan_batch(sac_engine *e, struct arena *a)
{
    struct batch *b = &e->batch;
    const size_t n = e->batch.n_row_max;
    b->tok = arena_take(a, n, sizeof *b->tok);
    b->pos = arena_take(a, n, sizeof *b->pos);
    b->seq_i = arena_take(a, n, sizeof *b->seq_i);
    b->want = arena_take(a, n, sizeof *b->want);
    b->run = arena_take(a, n, sizeof *b->run);
}

static void plan_seqs(sac_engine *e, struct arena *a)
{
    const size_t n = e->params.n_seq_max;
    e->seqs = arena_take(a, n, sizeof *e->seqs);
    int32_t *tok = arena_take(a, n * e->params.n_ctx, sizeof *tok);
    uint8_t *flags = arena_take(a, n * e->params.n_ctx, sizeof *flags);
    for (size_t i = 0; a->base && i < n; i++)
        e->seqs[i] =
            (struct seq){.tok = tok + i * e->params.n_ctx, .flags = flags + i * e->params.n_ctx};
}

static struct page_geom geom_of(const sac_engine *e)
{
    const struct config *c = &e->model->config;
    struct page_geom geom = {.n_layer = c->n_layer,
                             .n_kv_head = c->n_kv_head,
                             .head_dim = c->head_dim,
                             .type_k = e->params.type_k,
                             .type_v = e->params.type_v};
    page_geom_init(&geom);
    return geom;
}

/* Divides the layers' pages among the places; returns the number of parts. */
static uint32_t divide_pages(sac_engine *e, struct pool_span span[PLACES_MAX])
{
    span[0] = (struct pool_span){.n_layer = e->model->config.n_layer};
    if (!place_has_device(e)) return 1;
    for (uint32_t i = 0; i < e->n_place; i++) {
        struct place *p = &e->place[i];
        span[i] = (struct pool_span){.n_layer = p->end - p->layer0,
                                     .device = p->backend.is_host ? NULL : &p->backend,
                                     .arena = &p->arena};
    }
    return e->n_place;
}

/* Devices that hold no keys and values are planned by their places alone (place_plan). */
static void plan_memory(sac_engine *e, uint32_t n_page, struct arena *a)
{
    const struct page_geom geom = geom_of(e);
    struct pool_span span[PLACES_MAX];
    const uint32_t n_span = divide_pages(e, span);
    const bool is_on_device = place_has_device(e), has_tier = e->params.tier && !is_on_device;
    const uint32_t max_page = (e->params.n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    const uint64_t n_fast = e->tier_params.fast_bytes / geom.bytes;
    a->device = is_on_device ? &place_last(e)->arena : NULL;
    pool_init(&e->pool, &geom,
              &(struct pool_size){.n_page = n_page,
                                  .n_seq = e->params.n_seq_max,
                                  .max_page = max_page,
                                  .span = span,
                                  .n_span = n_span,
                                  .n_frame = n_fast < n_page ? (uint32_t)n_fast : n_page,
                                  .tier = has_tier ? &e->tier : NULL,
                                  .offload = e->params.tier && !has_tier ? &e->offload : NULL},
              a);
    e->stats.kv_bytes = a->used + device_planned(e);
    reuse_plan(e, a);
    plan_seqs(e, a);
    segment_plan(e, a);
    plan_batch(e, a);
    ahead_plan(e, a);
    e->stats.side_bytes = 0;
    side_begin(e);
    method_set_plan(e, a);
    place_plan(e, a);
    evict_plan(e, a);
    compact_plan(e, a);
    repeat_plan(e, a);
    attend_plan(e, a);
    admit_plan(e, a);
    record_plan(e, a);
    e->stats.scratch_bytes = a->used + device_planned(e) - e->stats.kv_bytes;
}

static void init_rope(sac_engine *e)
{
    const struct config *c = &e->model->config;
    const struct weights *w = &e->model->weights;
    const bool is_long = c->rope.kind == ROPE_LONG && repeat_context(e) > c->rope.orig_ctx;
    rope_table_init(&e->rope[0], &c->rope, is_long ? w->rope_factors_long : w->rope_factors);
    e->rope[1] = e->rope[0];
    if (c->rope_base_local <= 0) return;
    /* Layers with a sliding window and a RoPE base of their own keep their training frequencies:
     * scaling serves long distances only. */
    const struct rope_config local = {
        .n_rot = c->rope.n_rot, .base = c->rope_base_local, .factor = 1.0f, .attn_factor = 1.0f};
    rope_table_init(&e->rope[1], &local, NULL);
}

/* The frames must hold the pages that a step fills, one page per thread, and the part of a run that
 * attention processes at a time. */
static sac_status start_tier(sac_engine *e, sac_error *err)
{
    const size_t n_new = (size_t)e->attend.n_new_page_max * e->pool.geom.n_kv_head;
    const size_t n_part = e->pool.n_page < ATTN_TAKE_PAGES ? e->pool.n_page : ATTN_TAKE_PAGES;
    const size_t n_least = mem_larger(mem_larger(n_new, n_part), e->params.n_threads);
    if (!e->pool.tier) return SAC_OK;
    e->tier.policy = e->tier_params.policy;
    e->tier.no_ahead = e->tier_params.no_ahead;
    if (e->pool.n_frame < n_least)
        return error_set(err, SAC_ERR_ARG,
                         "%llu KiB of memory above %s hold %u pages: steps of %u rows need %zu "
                         "(%zu KiB) at least",
                         (unsigned long long)e->tier_params.fast_bytes >> 10, e->tier_params.file,
                         e->pool.n_frame, e->batch.n_row_max, n_least,
                         (n_least * e->pool.geom.bytes + 1023) >> 10);
    TRY(tier_start(&e->tier, e->tier_params.file, e->tier_params.file_bytes, NULL, err));
    e->tier_params.file = disk_path(e->tier.disk);
    return SAC_OK;
}

/* Pins the memory to which devices copy. The pages of the host's own layers, to which no device
 * copies, are not pinned: all of them would have to be resident. */
static void pin_behind_pages(sac_engine *e)
{
    uint8_t *end = pool_own_end(&e->pool);
    if (!end) end = e->block;
    for (uint32_t i = place_first_device(e); i < e->n_place; i++)
        backend_pin(&e->place[i].backend, end, e->block_bytes - (size_t)(end - e->block));
}

static sac_status take_memory(sac_engine *e, uint32_t n_page, sac_error *err)
{
    struct arena host = {0};
    const struct page_geom geom = geom_of(e);
    TRY(device_divide(e, &geom, n_page, err));
    device_measure(e);
    plan_memory(e, n_page, &host);
    e->block_bytes = host.used;
    const size_t device_bytes = device_planned(e);
    TRY(device_check(e, err));
    TRY(device_take_blocks(e, err));
    TRY(device_take_offload_pages(e, err));
    e->block = mem_map(e->block_bytes);
    if (!e->block)
        return error_set(
            err, SAC_ERR_MEMORY,
            "no memory for %zu MiB: %llu MiB of KV pages for %llu tokens, the rest for "
            "steps of %u rows",
            e->block_bytes >> 20, (unsigned long long)e->stats.kv_bytes >> 20,
            (unsigned long long)e->params.n_kv_tok, e->batch.n_row_max);
    host = (struct arena){.base = e->block, .capacity = e->block_bytes};
    plan_memory(e, n_page, &host);
    assert(host.used == e->block_bytes && device_planned(e) == device_bytes);
    (void)device_bytes;
    pin_behind_pages(e);
    return SAC_OK;
}

sac_status engine_create(sac_engine *e, sac_error *err)
{
    uint32_t n_page = 0;
    TRY(fill_params(e, err));
    TRY(method_set_init(e, err));
    TRY(repeat_init(e, err));
    if (e->params.n_batch == 0) e->params.n_batch = usual_batch(e);
    if (e->params.n_batch < e->params.n_seq_max) e->params.n_batch = e->params.n_seq_max;
    e->batch.n_row_max = prefill_init(e);
    TRY(reuse_init(e, err));
    TRY(device_open(e, err));
    TRY(workers_create(&e->workers, e->params.n_threads, err));
    workers_use_queue(e->workers, &e->backend);
    e->params.n_threads = workers_count(e->workers);
    TRY(device_load_weights(e, err));
    TRY(count_pages(e, &n_page, err));
    TRY(take_memory(e, n_page, err));
    device_unpack_weights(e);
    init_rope(e);
    TRY(start_tier(e, err));
    TRY(prefill_read_tables(e, err));
    return request_list_create(&e->requests, e, err);
}

sac_status sac_engine_create(sac_engine **out, const sac_model *model,
                             const sac_engine_params *params, sac_error *err)
{
    sac_engine *e = mem_calloc(1, sizeof *e);
    if (!e) return error_set(err, SAC_ERR_MEMORY, "out of memory for an engine");
    e->model = model;
    e->params = *params;
    e->only = SAC_SEQ_NONE;
    tensor_parallel_begin(e);
    const sac_status status =
        params->device_rows ? tensor_parallel_create(e, err) : engine_create(e, err);
    if (status != SAC_OK) {
        sac_engine_free(e);
        return status;
    }
    *out = e;
    return SAC_OK;
}

void sac_engine_free(sac_engine *e)
{
    if (!e) return;
    request_list_destroy(e->requests);
    for (uint32_t i = 0; e->seqs && i < e->params.n_seq_max && e->block; i++)
        mem_free(e->seqs[i].stats);
    sac_docs_forget(e);
    reuse_deinit(e);
    repeat_deinit(e);
    workers_destroy(e->workers);
    tier_stop(&e->tier);
    device_deinit(e);
    tensor_parallel_deinit(e);
    mem_unmap(e->block, e->block_bytes);
    mem_free(e);
}

sac_status sac_engine_set_tbt_target(sac_engine *e, float ms, sac_error *err)
{
    TRY(check_target(ms, err));
    e->params.tbt_target_ms = ms;
    return SAC_OK;
}

uint64_t engine_now(const sac_engine *e)
{
    return e->clock ? e->clock(e->clock_user) : clock_us();
}

void sac_engine_use_clock(sac_engine *e, sac_clock_fn now, void *user)
{
    e->clock = now;
    e->clock_user = user;
}

sac_engine_params sac_engine_get_params(const sac_engine *e)
{
    sac_engine_params p = e->params;
    p.n_ctx = repeat_context(e);
    p.n_kv_tok -= repeat_pool_tokens(e);
    return p;
}

sac_engine_stats sac_engine_get_stats(const sac_engine *e)
{
    sac_engine_stats s = e->stats;
    s.isa = e->isa;
    s.n_page = e->pool.n_page;
    /* Pages that only the index and resident documents reference */
    const uint64_t n_kept = e->pool.n_only_held;
    s.n_page_free = e->pool.n_free + n_kept;
    s.n_reuse_evicted = e->reuse.index.n_evicted;
    s.kv_bytes_kept = n_kept * e->pool.geom.bytes;
    s.page_bytes = e->pool.geom.bytes;
    request_list_count(e->requests, &s);
    s.kv_bytes_used = (s.n_page - s.n_page_free) * e->pool.geom.bytes;
    for (uint32_t i = 0; e->prefill.n_skip && i < workers_count(e->workers); i++)
        s.n_cell_skipped += e->prefill.n_skip[i];
    for (uint32_t i = 0; i < e->params.n_seq_max; i++)
        if (e->seqs[i].alive)
            s.kv_bytes_used += (uint64_t)pool_pages_per_index(&e->pool) * e->pool.geom.tail_bytes;
    tensor_parallel_add_stats(e, &s);
    return s;
}

sac_tier_stats sac_tier_get_stats(const sac_engine *e)
{
    if (e->pool.offload) return device_tier_stats(e);
    sac_tier_stats s = tier_get_stats(e->pool.tier);
    s.set_bytes = e->admit.n_set * (uint64_t)e->pool.geom.bytes;
    s.n_held = admit_held(e);
    s.n_hold = e->admit.n_hold;
    return s;
}

void sac_tier_get_layer(const sac_engine *e, uint32_t layer, uint64_t *out_hit, uint64_t *out_fetch)
{
    const bool is_there = e->pool.tier && layer < e->pool.geom.n_layer;
    *out_hit = is_there ? e->tier.layer[layer].n_hit : 0;
    *out_fetch = is_there ? e->tier.layer[layer].n_fetch : 0;
    const bool is_below = e->pool.offload && layer < e->pool.geom.n_layer;
    for (uint32_t i = 0; is_below && i < e->tp.n; i++)
        device_tier_layer(e->tp.of[i], layer, out_hit, out_fetch);
}

struct request_list *engine_requests(sac_engine *e)
{
    return e->requests;
}

const sac_model *engine_model(const sac_engine *e)
{
    return e->model;
}

sac_reads sac_seq_take_reads(sac_engine *e, sac_seq id)
{
    struct seq *s = engine_seq(e, id, NULL);
    if (!s) return (sac_reads){0};
    logits_settle(e);
    const sac_reads reads = s->reads;
    s->reads = (sac_reads){0};
    return reads;
}

void engine_use_mask(sac_engine *e, sac_seq id, const uint64_t *mask)
{
    struct seq *s = engine_seq(e, id, NULL);
    if (s) s->mask = mask;
}

sac_status engine_check_sparse(const sac_engine *e, uint32_t decode_i, uint32_t prefill_i,
                               const sac_sparse *sparse, sac_error *err)
{
    const uint32_t method_i[METHOD_SET_KINDS] = {
        [METHOD_SET_DECODE] = decode_i, [METHOD_SET_PREFILL] = prefill_i};
    return seq_params_check(e, method_i, sparse, err);
}

void engine_use_priority(sac_engine *e, sac_seq id, int32_t priority)
{
    struct seq *s = engine_seq(e, id, NULL);
    if (s) s->priority = priority;
}

void engine_use_reader(sac_engine *e, sac_seq id, sac_read_fn fn, void *user)
{
    struct seq *s = engine_seq(e, id, NULL);
    if (!s) return;
    s->on_read = fn;
    s->read_user = user;
}

sac_status engine_step_only(sac_engine *e, sac_seq id, sac_error *err)
{
    e->only = id;
    const sac_status status = engine_step(e, NULL, NULL, NULL, err);
    e->only = SAC_SEQ_NONE;
    return status;
}

sac_status engine_run_only(sac_engine *e, sac_seq id, sac_progress_fn progress, void *user,
                           sac_error *err)
{
    uint32_t pending = 1, done = 0;
    while (pending) {
        const uint32_t before = done, n_all = e->seqs[id].n_all;
        const uint64_t n_step = e->stats.n_step;
        if (progress && progress(user, (double)done / (double)n_all))
            return error_set(err, SAC_ERR_CANCELLED, "interrupted");
        /* The progress callback may have run steps that have computed rows of this sequence,
         * too. */
        done = sac_seq_length(e, id, &pending);
        if (done == before && !pace_shares(e, n_step)) TRY(engine_step_only(e, id, err));
        done = sac_seq_length(e, id, &pending);
    }
    return SAC_OK;
}

void engine_break(sac_engine *e, uint32_t run_i, sac_status status)
{
    struct batch_run *run = &e->batch.run[run_i];
    struct seq *s = &e->seqs[run->seq_i];
    if (s->broken) return;
    s->broken = true;
    tier_explain(e->pool.tier, status, &s->why);
    if (status == SAC_ERR_IO) reuse_lose(e, run->seq_i);
    memset(e->batch.want + run->row0, 0, run->n_row * sizeof *e->batch.want);
}

const char *engine_why_broken(const sac_engine *e, sac_seq id)
{
    const struct seq *s = engine_seq(e, id, NULL);
    return s && s->broken ? s->why.msg : NULL;
}

sac_status engine_check_whole(const struct seq *s, sac_seq id, sac_error *err)
{
    if (!s->broken) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "sequence %u has lost pages: %s", id, s->why.msg);
}

/* After a step: sequences that failed in it have no more pending tokens. */
static sac_status report_broken(sac_engine *e, sac_error *err)
{
    sac_status status = SAC_OK;
    for (uint32_t i = 0; i < e->batch.n_run && e->batch.n_row > 0; i++) {
        struct seq *s = &e->seqs[e->batch.run[i].seq_i];
        if (!s->broken) continue;
        s->n_all = s->n_done;
        if (status == SAC_OK) status = engine_check_whole(s, e->batch.run[i].seq_i, err);
    }
    return status;
}

sac_status engine_step(sac_engine *e, sac_row_fn on_row, void *user, uint32_t *out_n,
                       sac_error *err)
{
    TRY(repeat_run(e, err));
    TRY(tensor_parallel_pick(e, err));
    if (e->batch.n_row > 0) {
        const uint64_t start = engine_now(e);
        const bool ran_on = e->runs_on;
        tier_begin(e->pool.tier);
        if (!ahead_take(e, on_row)) layer_run(e);
        /* Before the logits are passed on, because a callback may append the token that it has
         * sampled. */
        for (uint32_t i = 0; i < e->tp.n; i++) {
            sched_commit(e->tp.of[i]);
            reuse_keep(e->tp.of[i]);
        }
        TRY(logits_run(e, on_row, user, err));
        const uint64_t end = engine_now(e);
        if (!ran_on && !e->runs_on) { /* otherwise this is not the time of this step alone */
            pace_note(e, start, end);
            admit_note(e, (double)(end - start));
        }
    }
    if (out_n) *out_n = e->batch.n_row;
    return report_broken(e, err);
}

sac_status sac_step(sac_engine *e, sac_row_fn on_row, void *user, uint32_t *out_n, sac_error *err)
{
    e->only_free = true;
    const sac_status status = engine_step(e, on_row, user, out_n, err);
    e->only_free = false;
    return status;
}
