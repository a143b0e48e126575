/* device.c: see the header. The weights of a device's layers are uploaded in the form that the
 * CPU's kernels read, as one piece of the model's block. The layers therefore need only a copy of
 * the model's pointers, shifted by the distance between the two blocks. */
#include "engine/device.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define SHARE 0.9f /* of a device's free memory: the driver and other programs need some, too */

/* An error that `what` ("a recorder") is not supported if a device attends. */
static sac_status refuse(const sac_engine *e, const char *what, sac_error *err)
{
    if (!place_has_device(e)) return SAC_OK;
    return error_set(err, SAC_ERR_UNSUPPORTED,
                     "%s does not run on a GPU: use --kv-device host, or --device cpu", what);
}

/* The same for what is supported by one GPU with all layers, but not by several devices. */
static sac_status refuse_in_part(const sac_engine *e, const char *what, sac_error *err)
{
    if (e->n_place == 1 || !place_has_device(e)) return SAC_OK;
    if (!place_has_host(e))
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "%s does not run with layers on %u GPUs: name one (--device cuda:0)", what,
                         e->n_place);
    return error_set(err, SAC_ERR_UNSUPPORTED,
                     "%s does not run with %u of %u layers on a GPU: use all (-ngl 99) or none "
                     "(-ngl 0)",
                     what, e->params.n_device_layer, e->model->config.n_layer);
}

/* Refuses settings of a method for which a device has no slots. */
static sac_status refuse_setting(const sac_engine *e, const struct method_spec *spec,
                                 sac_error *err)
{
    char what[96];
    const struct method *m = spec->method;
    const char *(*refuses)(const void *param) = m->prefill  ? m->prefill->refuses
                                                : m->decode ? m->decode->refuses
                                                            : NULL;
    const char *setting = refuses ? refuses(spec->param) : NULL;
    if (!setting) return SAC_OK;
    snprintf(what, sizeof what, "the %s method '%s' with %s", m->kind, m->name, setting);
    return refuse(e, what, err);
}

/* Whether a method passes sums from layer to layer, or has learned which layers to use. */
static bool crosses_places(const struct method *m)
{
    return (m->prefill && m->prefill->blocks) ||
           (m->decode && (m->decode->device || m->decode->past_rows));
}

/* Whether a method frees pages of some heads only, or has parameters for single heads. */
static bool counts_heads(const struct method *m)
{
    return m->evicts || (m->prefill && m->prefill->table);
}

static sac_status refuse_methods(const sac_engine *e, sac_error *err)
{
    static const char *const kind_name[METHOD_SET_KINDS] = {"decode", "prefill"};
    char what[96];
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++) {
        const struct method_spec_list *specs = &e->method_set[kind].specs;
        for (uint32_t i = 0; i < specs->n; i++) {
            const struct method *m = specs->spec[i].method;
            snprintf(what, sizeof what, "the %s method '%s'", kind_name[kind], m->name);
            if (!method_on_any_backend(m)) TRY(refuse(e, what, err));
            TRY(refuse_setting(e, &specs->spec[i], err));
            if (crosses_places(m)) TRY(refuse_in_part(e, what, err));
            if (counts_heads(m)) TRY(tensor_parallel_refuse(e, what, err));
        }
    }
    return SAC_OK;
}

sac_status device_check_model(const sac_model *m, sac_error *err)
{
    const struct config *c = &m->config;
    if (c->experts.n == 0) return SAC_OK;
    return error_set(err, SAC_ERR_UNSUPPORTED,
                     "%s: layers of %u experts (%s) do not run on a GPU: use --device cpu", m->name,
                     c->experts.n, c->arch->name);
}

static sac_status check_device(const sac_engine_params *p, sac_error *err)
{
    if (p->device && strcmp(p->device, "cpu") != 0) return SAC_OK;
    if (p->n_device_layer > 0)
        return error_set(err, SAC_ERR_ARG, "%u layers of a GPU and no GPU: --device cuda names it",
                         p->n_device_layer);
    if (p->kv_on_host)
        return error_set(err, SAC_ERR_ARG,
                         "keys and values in the machine's memory (--kv-device host) beside no "
                         "GPU: --device cuda names it");
    return SAC_OK;
}

/* Opens a place on the device of this name, which must differ from those of the places from `first`
 * on. */
static sac_status open_one(sac_engine *e, const char *name, uint32_t first, sac_error *err)
{
    if (e->n_place == first + DEVICES_MAX)
        return error_set(err, SAC_ERR_UNSUPPORTED, "more than %u GPUs: name fewer",
                         (unsigned)DEVICES_MAX);
    const struct backend *b = &e->place[e->n_place].backend;
    TRY(backend_open(&e->place[e->n_place].backend, name, err));
    e->n_place++;
    if (b->is_host && strcmp(name, e->params.device ? e->params.device : "cpu") != 0)
        return error_set(err, SAC_ERR_ARG,
                         "'%.80s': the CPU is no GPU among others; -ngl N gives it layers",
                         e->params.device);
    for (uint32_t i = first; i + 1 < e->n_place; i++)
        if (e->place[i].backend.index == b->index)
            return error_set(err, SAC_ERR_ARG, "'%.80s' names GPU %u twice", e->params.device,
                             b->index);
    return SAC_OK;
}

/* Opens the devices named by params.device, in order. */
static sac_status open_named(sac_engine *e, sac_error *err)
{
    const char *at = e->params.device ? e->params.device : "cpu";
    const uint32_t first = e->n_place;
    do {
        char name[48];
        const size_t n = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : (int)sizeof name - 1, at);
        TRY(open_one(e, name, first, err));
        at += n;
    } while (*at++ == ',');
    return SAC_OK;
}

/* The share of the layers that device i gets: as specified, or in proportion to its free memory. */
static double share_of(const sac_engine *e, uint32_t i)
{
    const sac_engine_params *p = &e->params;
    return p->n_device_split > 0 ? (double)p->device_split[i]
                                 : (double)e->place[place_first_device(e) + i].backend.bytes_free;
}

static sac_status check_shares(const sac_engine *e, sac_error *err)
{
    const sac_engine_params *p = &e->params;
    const uint32_t n = place_n_device(e);
    if (p->n_device_split == 0) return SAC_OK;
    if (p->n_device_split != n)
        return error_set(err, SAC_ERR_ARG, "%u shares of the layers for %u GPU%s (%s)",
                         p->n_device_split, n, n == 1 ? "" : "s", p->device ? p->device : "cpu");
    for (uint32_t i = 0; i < n; i++)
        if (!(p->device_split[i] > 0 && p->device_split[i] < INFINITY))
            return error_set(err, SAC_ERR_ARG,
                             "a share of %g for GPU %u: must be above 0, as a GPU that is named "
                             "gets layers; leave it out of --device",
                             (double)p->device_split[i],
                             e->place[place_first_device(e) + i].backend.index);
    return SAC_OK;
}

/* Distributes the layers from `begin` on over the devices in order, at least one to each. */
static sac_status divide_layers(sac_engine *e, uint32_t begin, sac_error *err)
{
    const uint32_t first = place_first_device(e), n = place_n_device(e);
    const uint32_t n_layer = e->model->config.n_layer, n_all = n_layer - begin;
    uint32_t layer0 = begin;
    double all = 0, upto = 0;
    TRY(check_shares(e, err));
    if (n > n_all)
        return error_set(err, SAC_ERR_ARG, "%u GPUs for %u layers: name fewer", n, n_all);
    for (uint32_t i = 0; i < n; i++) all += share_of(e, i);
    for (uint32_t i = 0; i < n; i++) {
        struct place *p = &e->place[first + i];
        upto += share_of(e, i);
        const uint32_t end = begin + (uint32_t)(n_all * (upto / all) + 0.5);
        const uint32_t least = layer0 + 1, most = n_layer - (n - 1 - i);
        p->layer0 = layer0;
        p->end = end < least ? least : end > most ? most : end;
        layer0 = p->end;
    }
    return SAC_OK;
}

/* Names the engine's ISA: "cuda"; "avx512+12:cuda" if a CPU computes the first layers;
 * "avx512+kv+24:cuda" if it holds keys and values; "16:cuda:0+16:cuda:1" for several GPUs. */
static void name_places(sac_engine *e)
{
    size_t n = 0;
    const bool many = place_n_device(e) > 1;
    for (uint32_t i = 0; i < e->n_place; i++) {
        const struct place *p = &e->place[i];
        char *to = e->isa + n;
        const size_t room = sizeof e->isa - n;
        if (many && !p->backend.is_host)
            snprintf(to, room, "%s%u:%s:%u", i ? "+" : "", p->end - p->layer0, p->backend.ops.isa,
                     p->backend.index);
        else if (i > 0)
            snprintf(to, room, "+%u:%s", p->end - p->layer0, p->backend.ops.isa);
        else
            snprintf(to, room, "%s%s", p->backend.ops.isa, e->params.kv_on_host ? "+kv" : "");
        n += strlen(to);
    }
}

/* Opens the places: one backend or several GPUs for all layers, after the CPU if it has the first
 * layers or the pages. */
static sac_status open_places(sac_engine *e, sac_error *err)
{
    const sac_engine_params *p = &e->params;
    const uint32_t n_layer = e->model->config.n_layer, n = p->n_device_layer;
    const bool in_part = n > 0 && n <= n_layer;
    TRY(check_device(p, err));
    if (in_part || p->kv_on_host) {
        e->n_place = 1;
        TRY(backend_open(&e->place[0].backend, "cpu", err));
        e->place[0].end = in_part ? n_layer - n : 0;
    }
    TRY(open_named(e, err));
    if (place_n_device(e) > 0) {
        TRY(divide_layers(e, in_part ? n_layer - n : 0, err));
    } else {
        TRY(check_shares(e, err));
        e->place[0].end = n_layer;
    }
    place_begin(e);
    name_places(e);
    return SAC_OK;
}

sac_status device_open(sac_engine *e, sac_error *err)
{
    sac_engine_params *p = &e->params;
    TRY(open_places(e, err));
    snprintf(e->device_name, sizeof e->device_name, "%s", p->device ? p->device : "cpu");
    p->device = e->device_name;
    p->device_split = NULL;
    p->n_device_split = 0;
    if (p->device_share == 0) p->device_share = SHARE;
    if (!(p->device_share > 0 && p->device_share <= 1))
        return error_set(err, SAC_ERR_ARG, "a share of %g of the GPU's memory: must be 0 to 1",
                         (double)p->device_share);
    if (place_n_device(e) > 0) TRY(device_check_model(e->model, err));
    TRY(refuse_methods(e, err));
    if (p->compose && p->tier)
        TRY(refuse(e, "joining of documents with pages in the machine's memory", err));
    if (p->compose) TRY(refuse_in_part(e, "joining of documents", err));
    if (p->tier) TRY(refuse_in_part(e, "memory above pages that lie elsewhere (--kv-fast)", err));
    if (p->compose) TRY(tensor_parallel_refuse(e, "joining of documents", err));
    if (p->record) TRY(refuse(e, "a recorder", err));
    if (p->learn) TRY(refuse(e, "learning of a method's table", err));
    return SAC_OK;
}

/* ---- Weights ---- */

/* The address in the copy `to` that corresponds to p, where `from` is the start of the copied
 * piece; NULL stays NULL. */
static void *moved(const uint8_t *from, uint8_t *to, const void *p)
{
    return p ? to + ((const uint8_t *)p - from) : NULL;
}

#define N_MATRIX 7

/* The matrices in the order in which they are used. */
static void list_matrices(struct weight *out[N_MATRIX], struct layer_weights *w)
{
    struct weight *const all[N_MATRIX] = {&w->wq,   &w->wk, &w->wv,  &w->wo,
                                          &w->gate, &w->up, &w->down};
    memcpy(out, all, sizeof all);
}

static void move_layer(const uint8_t *from, uint8_t *to, struct layer_weights *w)
{
    struct weight *matrix[N_MATRIX];
    const float **vector[] = {&w->attn_norm,      &w->bq,           &w->bk, &w->bv,
                              &w->q_norm,         &w->k_norm,       &w->bo, &w->ffn_norm,
                              &w->post_attn_norm, &w->post_ffn_norm};
    list_matrices(matrix, w);
    for (size_t i = 0; i < N_MATRIX; i++) matrix[i]->data = moved(from, to, matrix[i]->data);
    for (size_t i = 0; i < sizeof vector / sizeof vector[0]; i++)
        *vector[i] = moved(from, to, *vector[i]);
}

/* Copies a place's weights to its device: its layers and, if it computes the output, the output
 * matrix, which comes after the last layer. */
static sac_status copy_weights(sac_engine *e, uint32_t place_i, sac_error *err)
{
    const struct weights *from = &e->model->weights;
    struct place *p = &e->place[place_i];
    struct weights *to = &p->copy;
    const uint32_t n_layer = e->model->config.n_layer;
    const bool has_output = place_i == place_of_output(e);
    const size_t begin = p->layer0 > 0 ? from->layer[p->layer0].begin : 0;
    const size_t end = has_output ? from->block_bytes : from->layer[p->end - 1].end;
    *to = (struct weights){.embed = from->embed,
                           .output_norm = from->output_norm,
                           .output = from->output,
                           .block_bytes = end - begin,
                           .layer = mem_calloc(n_layer, sizeof *to->layer)};
    if (!to->layer) return error_set(err, SAC_ERR_MEMORY, "out of memory for %u layers", n_layer);
    to->block = backend_take(&p->backend, to->block_bytes);
    if (!to->block)
        return error_set(err, SAC_ERR_MEMORY,
                         "the weights of %u layers take %zu MiB and %s has %zu MiB free: use fewer "
                         "of them (-ngl N), a smaller model or file type, or --device cpu",
                         p->end - p->layer0, to->block_bytes >> 20, p->backend.name,
                         p->backend.bytes_free >> 20);
    const uint8_t *piece = from->block + begin;
    backend_up(&p->backend, to->block, piece, to->block_bytes);
    memcpy(to->layer, from->layer, n_layer * sizeof *to->layer);
    for (uint32_t i = p->layer0; i < p->end; i++) move_layer(piece, to->block, &to->layer[i]);
    if (has_output) {
        to->output_norm = moved(piece, to->block, from->output_norm);
        to->output.data = moved(piece, to->block, from->output.data);
    }
    return backend_wait(&p->backend, err);
}

sac_status device_load_weights(sac_engine *e, sac_error *err)
{
    for (uint32_t i = 0; i < e->n_place; i++) {
        struct place *p = &e->place[i];
        p->weights = p->backend.is_host ? &e->model->weights : &p->copy;
        if (!p->backend.is_host) TRY(copy_weights(e, i, err));
    }
    place_begin(e);
    return SAC_OK;
}

/* ---- Pages in host memory ---- */

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
    const uint64_t n_frame = e->tier_params.fast_bytes / geom->bytes;
    const uint64_t n_most = (uint64_t)n_page + n_new;
    const uint32_t n_least = offload_least(geom, n_new);
    const struct offload_size size = {.n_page = n_page,
                                      .n_frame = (uint32_t)(n_frame < n_most ? n_frame : n_most),
                                      .n_new_max = n_new,
                                      .n_seen_max = max_page};
    if (!place_has_device(e) || !e->params.tier) return SAC_OK;
    if (n_most > OFFLOAD_PAGES_MAX)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "%u pages in the machine's memory: a GPU reads at most %u there", n_page,
                         OFFLOAD_PAGES_MAX);
    if (offload_divide(&e->offload, geom, &size)) return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "%llu KiB of %s hold %llu pages: %u layers of %u KV heads and steps of %u "
                     "rows need %u (%llu KiB) at least",
                     (unsigned long long)e->tier_params.fast_bytes >> 10, e->params.device,
                     (unsigned long long)n_frame, geom->n_layer, geom->n_kv_head,
                     e->batch.n_row_max, n_least,
                     ((unsigned long long)n_least * geom->bytes + 1023) >> 10);
}

sac_status device_take_offload_pages(sac_engine *e, sac_error *err)
{
    const size_t bytes = (size_t)e->offload.n_page * e->offload.page_bytes;
    if (!e->pool.offload) return SAC_OK;
    e->offload.pages = backend_take_shared(&place_last(e)->backend, bytes);
    if (e->offload.pages) return SAC_OK;
    return error_set(err, SAC_ERR_MEMORY,
                     "no %zu MiB of the machine's memory for the KV pages of %llu tokens: a GPU "
                     "reads them there, so they cannot be swapped out; use a smaller -c, or "
                     "-ctk q8 -ctv q8",
                     bytes >> 20, (unsigned long long)e->params.n_kv_tok);
}

static void add_offload(sac_tier_stats *s, const struct offload *o)
{
    s->fast_bytes += o->map.n_frame * o->page_bytes;
    s->card_bytes += o->n_page * o->map.card_bytes;
    s->file_bytes += o->n_page * o->page_bytes;
    s->bytes_written += o->n_stored * o->page_bytes;
    for (uint32_t i = 0; i < o->n_lane; i++) {
        s->n_hit += o->lane[i].n_hit;
        s->n_fetch += o->lane[i].n_miss;
        s->bytes_fetched += o->lane[i].n_tok * (o->page_bytes / PAGE_TOK);
    }
}

sac_tier_stats device_tier_stats(const sac_engine *e)
{
    sac_tier_stats s = {.n_layer = e->pool.geom.n_layer, .backend = "machine"};
    for (uint32_t i = 0; i < e->tp.n; i++) add_offload(&s, &e->tp.of[i]->offload);
    return s;
}

void device_tier_layer(const sac_engine *e, uint32_t layer, uint64_t *out_hit, uint64_t *out_fetch)
{
    const uint32_t n_head = e->pool.geom.n_kv_head;
    for (uint32_t h = 0; h < n_head; h++) {
        *out_hit += e->offload.lane[layer * n_head + h].n_hit;
        *out_fetch += e->offload.lane[layer * n_head + h].n_miss;
    }
}

/* ---- Memory ---- */

sac_status device_check(sac_engine *e, sac_error *err)
{
    if (!place_has_device(e)) return SAC_OK;
    return backend_check(&place_last(e)->backend, &e->pool.geom, e->model->config.n_head, err);
}

void device_measure(sac_engine *e)
{
    for (uint32_t i = 0; i < e->n_place; i++) e->place[i].arena = (struct arena){0};
}

/* Bytes that may be allocated on a device. */
static size_t most_of(const sac_engine *e, const struct place *p)
{
    return (size_t)((double)p->backend.bytes_free * (double)e->params.device_share);
}

static sac_status take_block(const sac_engine *e, struct place *p, sac_error *err)
{
    const size_t bytes = p->arena.used, weights = p->copy.block_bytes, free = p->backend.bytes_free;
    const size_t most = most_of(e, p);
    const bool has_pages = place_has_device(e);
    if (weights + bytes <= most) p->block = backend_take(&p->backend, bytes);
    p->block_bytes = bytes;
    p->arena = (struct arena){.base = p->block, .capacity = bytes};
    if (p->block) return SAC_OK;
    return error_set(
        err, SAC_ERR_MEMORY,
        "%s has %zu MiB free, of which %.0f %% may be taken; weights take %zu MiB, and "
        "%ssteps of %u rows %zu MiB: use a smaller %s-b%s, or fewer layers (-ngl N)",
        p->backend.name, free >> 20, 100 * (double)e->params.device_share, weights >> 20,
        has_pages ? "KV pages and " : "", e->batch.n_row_max, bytes >> 20,
        has_pages ? "-c or " : "", has_pages ? ", -ctk q8 -ctv q8, --kv-device host" : "");
}

sac_status device_take_blocks(sac_engine *e, sac_error *err)
{
    for (uint32_t i = place_first_device(e); i < e->n_place; i++)
        TRY(take_block(e, &e->place[i], err));
    return SAC_OK;
}

static size_t plain_bytes(struct layer_weights *w)
{
    struct weight *matrix[N_MATRIX];
    size_t bytes = 0;
    list_matrices(matrix, w);
    for (size_t i = 0; i < N_MATRIX; i++) bytes += weight_plain_bytes(matrix[i]);
    return bytes;
}

/* Unpacks a layer's matrices; those that are multiplied together are adjacent. */
static void unpack_layer(const struct backend *b, struct layer_weights *w, uint8_t *to)
{
    struct weight *matrix[N_MATRIX];
    list_matrices(matrix, w);
    for (size_t i = 0; i < N_MATRIX; i++) {
        matrix[i]->plain = to;
        backend_unpack(b, matrix[i]);
        to += weight_plain_bytes(matrix[i]);
    }
}

static void unpack_place(const sac_engine *e, struct place *p)
{
    const size_t taken = p->copy.block_bytes + p->block_bytes, most = most_of(e, p);
    size_t bytes = 0;
    uint32_t end = p->layer0;
    for (; end < p->end; end++) {
        const size_t more = plain_bytes(&p->copy.layer[end]);
        if (bytes + more > most - taken) break;
        bytes += more;
    }
    p->plain = bytes ? backend_take(&p->backend, bytes) : NULL;
    p->plain_bytes = bytes;
    uint8_t *to = p->plain;
    for (uint32_t i = p->layer0; i < end && to; i++) {
        unpack_layer(&p->backend, &p->copy.layer[i], to);
        to += plain_bytes(&p->copy.layer[i]);
    }
}

void device_unpack_weights(sac_engine *e)
{
    for (uint32_t i = place_first_device(e); i < e->n_place; i++) unpack_place(e, &e->place[i]);
}

size_t device_planned(const sac_engine *e)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < e->n_place; i++) bytes += e->place[i].arena.used;
    return bytes;
}

void device_deinit(sac_engine *e)
{
    if (e->n_place == 0) return;
    backend_give_shared(&place_last(e)->backend, e->offload.pages);
    for (uint32_t i = e->n_place; i-- > 0;) {
        struct place *p = &e->place[i];
        backend_unpin(&p->backend);
        backend_give(&p->backend, p->plain, p->plain_bytes);
        backend_give(&p->backend, p->copy.block, p->copy.block_bytes);
        backend_give(&p->backend, p->block, p->block_bytes);
        mem_free(p->copy.layer);
    }
    for (uint32_t i = 0; i < e->n_place; i++) backend_close(&e->place[i].backend);
}
