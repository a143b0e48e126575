/* tensor_parallel.c: see the header.
 *
 * Invariants:
 *  1. Between public calls all engines have the same sequences, with the same lengths and settings,
 *     and the same number of free pages: each call is made on all engines, in their order, and no
 *     method runs that frees pages of some heads only.
 *  2. The leader's step ends when all engines have ended theirs (logits.c waits for all). */
#include "engine/tensor_parallel.h"

#include "base/mem.h"
#include "engine/device.h"
#include "engine/engine.h"
#include "engine/sched.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Sums of up to so many rows are exchanged by the GPUs within the operation, during which nothing
 * else runs: eight bytes per value, so 4 MiB for 128 rows of 4096 channels, which takes 10 us at
 * NVLink's 450 GB/s (H200's data sheet). Parts of more rows are copied first, at four bytes per
 * value; the longer step hides the host's work for this. */
#define SUM_ROWS 128u

void tensor_parallel_begin(sac_engine *e)
{
    e->tp.of[0] = e;
    e->tp.n = e->tp.n_all = 1;
}

sac_status tensor_parallel_refuse(const sac_engine *e, const char *what, sac_error *err)
{
    if (e->tp.n_all == 1) return SAC_OK;
    return error_set(err, SAC_ERR_UNSUPPORTED,
                     "%s does not run with every layer on %u GPUs (-sm row): use -sm layer, or "
                     "name one GPU",
                     what, e->tp.n_all);
}

/* ---- Creating ---- */

static sac_status check_params(const sac_engine_params *p, sac_error *err)
{
    const char *what = p->n_device_split > 0   ? "-ts"
                       : p->n_device_layer > 0 ? "-ngl"
                       : p->kv_on_host         ? "--kv-device host"
                                               : NULL;
    if (!p->device || !strchr(p->device, ','))
        return error_set(err, SAC_ERR_ARG,
                         "shares of every layer (-sm row) on '%.80s': name several GPUs "
                         "(--device cuda:0,cuda:1)",
                         p->device ? p->device : "cpu");
    if (!what) return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "%s says which layers, or which part of them, a GPU has: with -sm row each "
                     "has its share of all",
                     what);
}

static uint32_t count_names(const char *list)
{
    uint32_t n = 1;
    while ((list = strchr(list, ','))) list++, n++;
    return n;
}

/* Copies name number i of a list. */
static void take_name(char *out, size_t n_out, const char *list, uint32_t i)
{
    while (i-- > 0) list = strchr(list, ',') + 1;
    snprintf(out, n_out, "%.*s", (int)strcspn(list, ","), list);
}

/* Creates the engine of a share: its parameters are the whole engine's, reduced to its share of the
 * heads. */
static sac_status create_one(sac_engine *e, const sac_engine_params *whole, const sac_model *model,
                             sac_error *err)
{
    struct tensor_parallel *own = &e->tp;
    struct weights *w = &own->model.weights;
    struct weights_shard s;
    struct sac_tier_params tier;
    char name[48];
    TRY(weights_shard_of(&s, &model->weights, &model->config, own->i, own->n_all, err));
    own->model = *model;
    own->model.config = weights_shard_config(&model->config, &s);
    *w = (struct weights){0};
    TRY(weights_shard_copy(w, &model->weights, &model->config, &s, err));
    e->model = &own->model;
    e->params = *whole;
    take_name(name, sizeof name, whole->device, own->i);
    e->params.device = name;
    if (whole->tier) {
        tier = *whole->tier;
        tier.fast_bytes = tier.fast_bytes / model->config.n_kv_head * s.n_kv;
        e->params.tier = &tier;
    }
    TRY(engine_create(e, err));
    if (e->backend.is_host)
        return error_set(err, SAC_ERR_ARG, "'%.80s': the CPU has no share of a layer beside GPUs",
                         whole->device);
    const struct gguf_tensor *embed = w->embed;
    /* They are on the device; embedding rows, which the model owns, are read in each step */
    weights_deinit(w);
    w->embed = embed;
    return SAC_OK;
}

static sac_status check_twice(const sac_engine *e, sac_error *err)
{
    for (uint32_t i = 0; i < e->tp.n; i++)
        for (uint32_t j = 0; j < i; j++)
            if (e->tp.of[i]->backend.index == e->tp.of[j]->backend.index)
                return error_set(err, SAC_ERR_ARG, "'%.80s' names GPU %u twice", e->params.device,
                                 e->tp.of[i]->backend.index);
    return SAC_OK;
}

/* If a GPU cannot write to another's memory, all sums are of copied parts. */
static void join(sac_engine *e)
{
    const struct backend *backend[TENSOR_PARALLEL_MAX];
    uint64_t *inbox[TENSOR_PARALLEL_MAX];
    for (uint32_t i = 0; i < e->tp.n; i++) {
        backend[i] = &e->tp.of[i]->backend;
        inbox[i] = e->tp.of[i]->scratch.inbox;
    }
    e->tp.joined = backend_join(backend, inbox, e->tp.n, tensor_parallel_inbox_words(e));
}

/* Names the leader's ISA and devices after all engines, which it represents from here on. */
static void name_all(sac_engine *e, const char *device)
{
    size_t n = 0;
    snprintf(e->device_name, sizeof e->device_name, "%s", device);
    for (uint32_t i = 0; i < e->tp.n && n < sizeof e->isa; i++)
        n += (size_t)snprintf(e->isa + n, sizeof e->isa - n, "%s%s:%u", i ? "|" : "",
                              e->tp.of[i]->ops.isa, e->tp.of[i]->backend.index);
}

sac_status tensor_parallel_create(sac_engine *e, sac_error *err)
{
    const sac_engine_params whole = e->params;
    const sac_model *model = e->model;
    TRY(check_params(&whole, err));
    TRY(device_check_model(model, err));
    const uint32_t n = count_names(whole.device);
    if (n > TENSOR_PARALLEL_MAX)
        return error_set(err, SAC_ERR_UNSUPPORTED, "more than %u GPUs: name fewer",
                         TENSOR_PARALLEL_MAX);
    for (uint32_t i = 0; i < n; i++) {
        sac_engine *member = i == 0 ? e : mem_calloc(1, sizeof *member);
        if (!member) return error_set(err, SAC_ERR_MEMORY, "out of memory for an engine");
        member->only = SAC_SEQ_NONE;
        tensor_parallel_begin(member);
        e->tp.of[i] = member;
        e->tp.n = i + 1;
        member->tp.i = i;
        member->tp.n_all = n;
        TRY(create_one(member, &whole, model, err));
    }
    name_all(e, whole.device);
    TRY(check_twice(e, err));
    join(e);
    return SAC_OK;
}

void tensor_parallel_deinit(sac_engine *e)
{
    for (uint32_t i = 1; i < e->tp.n; i++) sac_engine_free(e->tp.of[i]);
    weights_deinit(&e->tp.model.weights);
}

/* ---- A step ---- */

/* Copies the state that determines the selection of rows and belongs to no sequence. */
static void follow(sac_engine *e, const sac_engine *leader)
{
    e->only = leader->only;
    e->only_free = leader->only_free;
    e->pace = leader->pace;
    e->params.tbt_target_ms = leader->params.tbt_target_ms;
    for (uint32_t i = 0; i < e->params.n_seq_max; i++) {
        e->seqs[i].priority = leader->seqs[i].priority;
        e->seqs[i].admit.joined = leader->seqs[i].admit.joined;
    }
}

static bool is_same(const struct batch *a, const struct batch *b)
{
    return a->n_row == b->n_row && a->n_decode == b->n_decode && a->n_run == b->n_run &&
           memcmp(a->pos, b->pos, a->n_row * sizeof *a->pos) == 0 &&
           memcmp(a->seq_i, b->seq_i, a->n_row * sizeof *a->seq_i) == 0;
}

sac_status tensor_parallel_pick(sac_engine *e, sac_error *err)
{
    sac_error same;
    const sac_status status = sched_pick(e, err);
    for (uint32_t i = 1; i < e->tp.n; i++) {
        sac_engine *member = e->tp.of[i];
        follow(member, e);
        const sac_status other = sched_pick(member, &same);
        assert(other == status && is_same(&member->batch, &e->batch));
        (void)other;
    }
    return status;
}

float *tensor_parallel_part(const sac_engine *e, uint32_t i)
{
    return e->scratch.tmp + (size_t)i * e->batch.n_row_max * e->model->config.n_embd;
}

size_t tensor_parallel_inbox_words(const sac_engine *e)
{
    const uint32_t n_row = e->batch.n_row_max < SUM_ROWS ? e->batch.n_row_max : SUM_ROWS;
    return (size_t)n_row * e->model->config.n_embd;
}

/* Every engine sends to every other one, and the order of the sums is fixed. */
static void exchange(sac_engine *e, size_t n)
{
    for (uint32_t i = 0; i < e->tp.n; i++)
        for (uint32_t j = 0; j < e->tp.n; j++) {
            const sac_engine *from = e->tp.of[i], *to = e->tp.of[j];
            if (i != j)
                backend_send(&from->backend, &to->backend, tensor_parallel_part(to, i),
                             tensor_parallel_part(from, i), n * sizeof(float));
        }
}

/* All parts have arrived: adds them in the order of op_sum. */
static void add_parts(sac_engine *e, const struct op_sum *op)
{
    for (uint32_t i = op->adds ? 0 : 1; i < e->tp.n_all; i++)
        e->ops.add(e->workers,
                   &(struct op_add){.x = tensor_parallel_part(e, i), .y = op->y, .n = op->n});
}

void tensor_parallel_sum(sac_engine *e)
{
    const size_t n = (size_t)e->batch.n_row * e->model->config.n_embd;
    const bool adds = !e->model->config.arch->post_norm;
    const bool within = e->tp.joined && n <= tensor_parallel_inbox_words(e);
    struct op_sum op[TENSOR_PARALLEL_MAX];
    if (e->tp.n == 1) return;
    for (uint32_t i = 0; i < e->tp.n; i++) {
        const sac_engine *member = e->tp.of[i];
        op[i] = (struct op_sum){.part = tensor_parallel_part(member, i),
                                .y = adds ? member->scratch.x : tensor_parallel_part(member, 0),
                                .n = n,
                                .adds = adds};
    }
    if (within) {
        backend_sum(&e->backend, op);
        return;
    }
    exchange(e, n);
    for (uint32_t i = 0; i < e->tp.n; i++) add_parts(e->tp.of[i], &op[i]);
}

/* ---- Counters ---- */

/* Moves counters; rows are counted by the leader only. */
static void move_reads(sac_reads *to, sac_reads *from)
{
    from->n_prompt_tok = from->n_decode_tok = from->n_reused_tok = from->n_disk_tok = 0;
    reads_add(to, from);
    *from = (sac_reads){0};
}

void tensor_parallel_collect(sac_engine *e)
{
    for (uint32_t i = 1; i < e->tp.n; i++) {
        sac_engine *member = e->tp.of[i];
        move_reads(&e->stats.reads, &member->stats.reads);
        for (uint32_t s = 0; s < e->params.n_seq_max; s++)
            move_reads(&e->seqs[s].reads, &member->seqs[s].reads);
    }
}

void tensor_parallel_add_stats(const sac_engine *e, sac_engine_stats *stats)
{
    for (uint32_t i = 1; i < e->tp.n; i++) {
        const sac_engine_stats member = sac_engine_get_stats(e->tp.of[i]);
        stats->kv_bytes += member.kv_bytes;
        stats->kv_bytes_used += member.kv_bytes_used;
        stats->kv_bytes_kept += member.kv_bytes_kept;
        stats->scratch_bytes += member.scratch_bytes;
        stats->side_bytes += member.side_bytes;
        stats->n_page += member.n_page;
        stats->n_page_free += member.n_page_free;
        stats->weight_bytes_read += member.weight_bytes_read;
        stats->linear_us += member.linear_us;
        stats->attn_us += member.attn_us;
        stats->select_us += member.select_us;
        stats->plan_us += member.plan_us;
    }
}
