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

static sac_status refuse_methods(const sac_engine *e, sac_error *err)
{
    static const char *const kind_name[CHOOSER_KINDS] = {"decode", "prefill"};
    char what[96];
    for (int kind = 0; kind < CHOOSER_KINDS; kind++) {
        const struct spec_list *specs = &e->chooser[kind].specs;
        for (uint32_t i = 0; i < specs->n; i++) {
            const struct method *m = specs->spec[i].method;
            if (method_on_any_backend(m)) continue;
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
    if (p->compose) TRY(device_refuse(e, "joining of documents", err));
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
    mem_free(e->on_device.layer);
    backend_close(&e->backend);
}
