/* device.c: see the header. The weights go to a device in the form that the CPU's kernels read, as
 * one block, so a copy of the model's pointers, moved by the distance of the two blocks, is all
 * that the layers need. */
#include "engine/device.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define SHARE 0.9f /* of a device's free memory: the driver and others want some */

sac_status device_refuse(const sac_engine *e, const char *what, sac_error *err)
{
    if (e->backend.is_host) return SAC_OK;
    return error_set(err, SAC_ERR_UNSUPPORTED, "%s does not run on a GPU: use --device cpu", what);
}

/* A method may lack slots for some of its settings. */
static sac_status refuse_setting(const sac_engine *e, const struct spec *spec, sac_error *err)
{
    char what[96];
    const struct method_decode *d = spec->method->decode;
    const char *setting = d && d->away && d->away->refuses ? d->away->refuses(spec->param) : NULL;
    if (!setting) return SAC_OK;
    snprintf(what, sizeof what, "the decode method '%s' with %s", spec->method->name, setting);
    return device_refuse(e, what, err);
}

static sac_status refuse_methods(const sac_engine *e, sac_error *err)
{
    static const char *const kind_name[CHOOSER_KINDS] = {"decode", "prefill"};
    char what[96];
    for (int kind = 0; kind < CHOOSER_KINDS; kind++) {
        const struct spec_list *specs = &e->chooser[kind].specs;
        for (uint32_t i = 0; i < specs->n; i++) {
            const struct method *m = specs->spec[i].method;
            if (method_on_any_backend(m)) {
                TRY(refuse_setting(e, &specs->spec[i], err));
                continue;
            }
            snprintf(what, sizeof what, "the %s method '%s'", kind_name[kind], m->name);
            TRY(device_refuse(e, what, err));
        }
    }
    return SAC_OK;
}

sac_status device_open(sac_engine *e, sac_error *err)
{
    sac_engine_params *p = &e->params;
    TRY(backend_open(&e->backend, p->device, err));
    e->ops = e->backend.ops;
    snprintf(e->device_name, sizeof e->device_name, "%s", p->device ? p->device : "cpu");
    p->device = e->device_name;
    if (p->device_share == 0) p->device_share = SHARE;
    if (!(p->device_share > 0 && p->device_share <= 1))
        return error_set(err, SAC_ERR_ARG, "a share of %g of the GPU's memory: must be 0 to 1",
                         (double)p->device_share);
    TRY(refuse_methods(e, err));
    if (p->compose && p->tier)
        TRY(device_refuse(e, "joining of documents with pages in the machine's memory", err));
    if (p->record) TRY(device_refuse(e, "a recorder", err));
    if (p->learn) TRY(device_refuse(e, "learning of a method's table", err));
    return SAC_OK;
}

/* ---- Weights ---- */

/* The place in the copy of what lies at p in the model's block; NULL stays. */
static void *moved(const struct weights *from, const struct weights *to, const void *p)
{
    return p ? to->block + ((const uint8_t *)p - from->block) : NULL;
}

static void move_layer(const struct weights *from, const struct weights *to,
                       struct layer_weights *w)
{
    struct weight *matrix[] = {&w->wq, &w->wk, &w->wv, &w->wo, &w->gate, &w->up, &w->down};
    const float **vector[] = {&w->attn_norm,      &w->bq,           &w->bk, &w->bv,
                              &w->q_norm,         &w->k_norm,       &w->bo, &w->ffn_norm,
                              &w->post_attn_norm, &w->post_ffn_norm};
    for (size_t i = 0; i < sizeof matrix / sizeof matrix[0]; i++)
        matrix[i]->data = moved(from, to, matrix[i]->data);
    for (size_t i = 0; i < sizeof vector / sizeof vector[0]; i++)
        *vector[i] = moved(from, to, *vector[i]);
}

sac_status device_load_weights(sac_engine *e, sac_error *err)
{
    const struct weights *from = &e->model->weights;
    struct weights *to = &e->on_device;
    const uint32_t n_layer = e->model->config.n_layer;
    e->weights = from;
    if (e->backend.is_host) return SAC_OK;
    *to = (struct weights){.embed = from->embed,
                           .output_norm = from->output_norm,
                           .output = from->output,
                           .block_bytes = from->block_bytes,
                           .layer = mem_calloc(n_layer, sizeof *to->layer)};
    if (!to->layer) return error_set(err, SAC_ERR_MEMORY, "out of memory for %u layers", n_layer);
    to->block = backend_take(&e->backend, to->block_bytes);
    if (!to->block)
        return error_set(err, SAC_ERR_MEMORY,
                         "the model's weights take %zu MiB and %s has %zu MiB free: use a smaller "
                         "model or file type, or --device cpu",
                         to->block_bytes >> 20, e->backend.name, e->backend.bytes_free >> 20);
    backend_up(&e->backend, to->block, from->block, to->block_bytes);
    memcpy(to->layer, from->layer, n_layer * sizeof *to->layer);
    for (uint32_t i = 0; i < n_layer; i++) move_layer(from, to, &to->layer[i]);
    to->output_norm = moved(from, to, from->output_norm);
    to->output.data = moved(from, to, from->output.data);
    e->weights = to;
    return backend_wait(&e->backend, err);
}

/* ---- Pages below ---- */

sac_status device_check_tier(const sac_engine *e, sac_error *err)
{
    const struct sac_tier_params *t = &e->tier_params;
    if (t->file)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "%s is to hold pages below the memory of %s: pages that do not fit there "
                         "are in the machine's memory, so leave the file out",
                         t->file, e->params.device);
    if (!t->fast_bytes)
        return error_set(err, SAC_ERR_ARG, "0 bytes of %s for pages: say how much memory",
                         e->params.device);
    if (t->policy != SAC_TIER_STALE)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "policy lru of pages does not run on a GPU: stale does");
    return SAC_OK;
}

sac_status device_divide(sac_engine *e, const struct page_geom *geom, uint32_t n_page,
                         sac_error *err)
{
    const uint32_t max_page = (e->params.n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    const uint32_t n_new = attend_new_pages(e) * geom->n_kv_head;
    const uint32_t n_seen = max_page * geom->n_kv_head;
    const uint64_t n_frame = e->tier_params.fast_bytes / geom->bytes;
    const uint64_t n_most = (uint64_t)n_page + n_new + n_seen;
    const uint32_t n_least = depot_least(geom, n_new);
    const struct depot_size size = {.n_page = n_page,
                                    .n_frame = (uint32_t)(n_frame < n_most ? n_frame : n_most),
                                    .n_new_max = n_new,
                                    .n_seen_max = n_seen};
    if (e->backend.is_host || !e->params.tier) return SAC_OK;
    if (n_most > DEPOT_PAGES_MAX)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "%u pages in the machine's memory: a GPU reads at most %u there", n_page,
                         DEPOT_PAGES_MAX);
    if (depot_divide(&e->depot, geom, &size)) return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "%llu KiB of %s hold %llu pages: %u layers of %u KV heads and steps of %u "
                     "rows need %u (%llu KiB) at least",
                     (unsigned long long)e->tier_params.fast_bytes >> 10, e->params.device,
                     (unsigned long long)n_frame, geom->n_layer, geom->n_kv_head,
                     e->batch.n_row_max, n_least,
                     ((unsigned long long)n_least * geom->bytes + 1023) >> 10);
}

sac_status device_take_depot(sac_engine *e, sac_error *err)
{
    const size_t bytes = (size_t)e->depot.n_page * e->depot.page_bytes;
    if (!e->pool.depot) return SAC_OK;
    e->depot.pages = backend_take_shared(&e->backend, bytes);
    if (e->depot.pages) return SAC_OK;
    return error_set(err, SAC_ERR_MEMORY,
                     "no %zu MiB of the machine's memory for the KV pages of %llu tokens: a GPU "
                     "reads them there, so they cannot be swapped out; use a smaller -c, or "
                     "-ctk q8 -ctv q8",
                     bytes >> 20, (unsigned long long)e->params.n_kv_tok);
}

sac_tier_stats device_tier_stats(const sac_engine *e)
{
    const struct depot *d = &e->depot;
    const size_t page_bytes = d->page_bytes;
    sac_tier_stats s = {.fast_bytes = d->map.n_frame * page_bytes,
                        .card_bytes = d->n_page * d->map.card_bytes,
                        .file_bytes = d->n_page * page_bytes,
                        .bytes_written = d->n_stored * page_bytes,
                        .n_layer = e->pool.geom.n_layer,
                        .backend = "machine"};
    for (uint32_t i = 0; i < d->n_lane; i++) {
        s.n_hit += d->lane[i].n_hit;
        s.n_fetch += d->lane[i].n_miss;
        s.bytes_fetched += d->lane[i].n_tok * (page_bytes / PAGE_TOK);
    }
    return s;
}

/* ---- Memory ---- */

sac_status device_check(const sac_engine *e, sac_error *err)
{
    return backend_check(&e->backend, &e->pool.geom, e->model->config.n_head, err);
}

sac_status device_take_block(sac_engine *e, size_t bytes, sac_error *err)
{
    const size_t free = e->backend.bytes_free, weights = e->on_device.block_bytes;
    const size_t most = (size_t)((double)free * (double)e->params.device_share);
    e->device_bytes = bytes;
    if (e->backend.is_host) return SAC_OK;
    if (weights + bytes <= most) e->device_block = backend_take(&e->backend, bytes);
    if (e->device_block) return SAC_OK;
    return error_set(
        err, SAC_ERR_MEMORY,
        "%s has %zu MiB free, of which %.0f %% may be taken; weights take %zu MiB, and "
        "KV pages and steps of %u rows %zu MiB: use a smaller -c or -b, or -ctk q8 "
        "-ctv q8",
        e->backend.name, free >> 20, 100 * (double)e->params.device_share, weights >> 20,
        e->batch.n_row_max, bytes >> 20);
}

void device_deinit(sac_engine *e)
{
    backend_unpin(&e->backend);
    backend_give(&e->backend, e->on_device.block, e->on_device.block_bytes);
    backend_give(&e->backend, e->device_block, e->device_bytes);
    backend_give_shared(&e->backend, e->depot.pages);
    mem_free(e->on_device.layer);
    backend_close(&e->backend);
}
