/* layer.c: the transformer layers, for a flat batch of rows, in the order of the papers. Everything
 * between queries, keys and values and the attention output is attend.c's.
 *
 * Rows [0, n_decode) are decode rows and use narrow kernels; the others are prompt rows and use
 * wide ones. The arithmetic of a row never depends on the rest of the batch (design D7). */
#include "engine/layer.h"

#include "engine/attend.h"
#include "engine/doc_stats.h"
#include "engine/moe.h"
#include "kv/mirror.h"

#include <assert.h>

static uint64_t bytes_read(const struct op_linear *op)
{
    uint64_t bytes = 0;
    if (op->group) return op->n_group * op->part[0].w->group_bytes;
    for (uint32_t i = 0; i < op->n_part; i++) bytes += weight_bytes(op->part[i].w);
    return bytes;
}

void layer_linear(sac_engine *e, struct op_linear *op)
{
    assert(op->n_row > 0 && op->n_part > 0);
    op->scratch = e->scratch.linear;
    op->scratch_bytes = e->scratch.linear_bytes;
    e->stats.weight_bytes_read += bytes_read(op);
    e->ops.linear(e->workers, op);
}

/* Runs a linear operation over the whole batch: decode rows narrow, prompt rows wide. */
void layer_linear_batch(sac_engine *e, struct op_linear op)
{
    const uint32_t n_decode = e->batch.n_decode, n_prompt = e->batch.n_row - n_decode;
    assert(n_decode <= e->batch.n_row && e->batch.n_row <= e->batch.n_row_max);
    const uint64_t start = clock_us();
    if (n_decode) {
        op.kind = ROW_DECODE;
        op.n_row = n_decode;
        layer_linear(e, &op);
    }
    if (n_prompt) {
        op.kind = ROW_PROMPT;
        op.n_row = n_prompt;
        op.x += n_decode * op.x_stride;
        for (uint32_t i = 0; i < op.n_part; i++)
            if (op.part[i].y) op.part[i].y += n_decode * op.part[i].y_stride;
        layer_linear(e, &op);
    }
    e->stats.linear_us += clock_us() - start;
}

void layer_rmsnorm_batch(sac_engine *e, struct op_rmsnorm op)
{
    op.n_row = e->batch.n_row;
    op.eps = e->model->config.norm_eps;
    e->ops.rmsnorm(e->workers, &op);
}

static void project_qkv(sac_engine *e, const struct layer_weights *w)
{
    const struct config *c = &e->model->config;
    float *qkv = e->scratch.qkv;
    const size_t stride = config_qkv_width(c);
    layer_linear_batch(
        e, (struct op_linear){
               .x = e->scratch.x,
               .x_stride = c->n_embd,
               .n_in = c->n_embd,
               .norm = w->attn_norm,
               .norm_eps = c->norm_eps,
               .epilogue = LINEAR_STORE,
               .n_part = 3,
               .part = {{&w->wq, w->bq, qkv, stride},
                        {&w->wk, w->bk, qkv + config_q_width(c), stride},
                        {&w->wv, w->bv, qkv + config_q_width(c) + config_kv_width(c), stride}},
           });
}

/* Normalises each head of q and k, if the model does, and rotates them. */
static void rotate_heads(sac_engine *e, const struct layer_weights *w, uint32_t layer)
{
    const struct config *c = &e->model->config;
    const uint32_t local = config_layer_is_local(c, layer);
    const struct {
        float *x;
        const float *norm;
        uint32_t n_head;
    } side[2] = {{e->scratch.qkv, w->q_norm, c->n_head},
                 {e->scratch.qkv + config_q_width(c), w->k_norm, c->n_kv_head}};
    for (int i = 0; i < 2; i++)
        if (side[i].norm)
            layer_rmsnorm_batch(e, (struct op_rmsnorm){.x = side[i].x,
                                                       .y = side[i].x,
                                                       .x_stride = config_qkv_width(c),
                                                       .y_stride = config_qkv_width(c),
                                                       .n_group = side[i].n_head,
                                                       .width = c->head_dim,
                                                       .w = side[i].norm});
    /* The keys come after the queries. */
    e->ops.rope(e->workers, &(struct op_rope){.x = e->scratch.qkv,
                                              .x_stride = config_qkv_width(c),
                                              .n_row = e->batch.n_row,
                                              .n_head = c->n_head + c->n_kv_head,
                                              .head_dim = c->head_dim,
                                              .n_rot = c->rope.n_rot,
                                              .interleaved = c->arch->rope_interleaved,
                                              .cos = e->scratch.cos[local],
                                              .sin = e->scratch.sin[local]});
}

/* What a branch of a layer adds to the residual stream: W in + bias, or norm(W in + bias) for
 * models that normalise a branch's output; with several shares, the sum of their W in takes the
 * place of W in. */
struct branch {
    const struct weight *w;
    const float *bias, *in;
    bool kept; /* `in` has the layout that multiply_ffn's GLU has written */
    const float *post_norm;
};

/* Multiplies, and adds the result to the residual stream unless more is to be done before. */
static void multiply(sac_engine *e, const struct branch *b)
{
    const struct config *c = &e->model->config;
    const bool is_all = !b->post_norm && e->tp.n_all == 1;
    float *y = is_all ? e->scratch.x : tensor_parallel_part(e, e->tp.i);
    layer_linear_batch(e, (struct op_linear){
                              .x = b->in,
                              .x_stride = b->w->n_in,
                              .n_in = b->w->n_in,
                              .kept_x = b->kept,
                              .epilogue = is_all ? LINEAR_ADD : LINEAR_STORE,
                              .n_part = 1,
                              .part = {{b->w, b->bias, y, c->n_embd}},
                          });
}

/* Completes a branch: adds up the products of all shares. */
static void add_branch(sac_engine *e, const float *post_norm)
{
    const uint32_t n_embd = e->model->config.n_embd;
    float *sum = tensor_parallel_part(e, 0);
    if (!post_norm) return;
    layer_rmsnorm_batch(e, (struct op_rmsnorm){.x = sum,
                                               .y = sum,
                                               .x_stride = n_embd,
                                               .y_stride = n_embd,
                                               .n_group = 1,
                                               .width = n_embd,
                                               .w = post_norm});
    const size_t n = (size_t)e->batch.n_row * n_embd;
    e->ops.add(e->workers, &(struct op_add){.x = sum, .y = e->scratch.x, .n = n});
}

static void multiply_attn(sac_engine *e, uint32_t layer)
{
    place_from_pages(e, layer);
    const struct layer_weights *w = &e->weights->layer[layer];
    multiply(
        e, &(struct branch){
               .w = &w->wo, .bias = w->bo, .in = e->scratch.attn, .post_norm = w->post_attn_norm});
}

static void add_attn(sac_engine *e, uint32_t layer)
{
    add_branch(e, e->weights->layer[layer].post_attn_norm);
}

static void multiply_ffn(sac_engine *e, uint32_t layer)
{
    const struct config *c = &e->model->config;
    const struct layer_weights *w = &e->weights->layer[layer];
    const bool gelu = c->arch->glu == CONFIG_GLU_GELU;
    if (c->experts.n) {
        moe_run(e, layer);
        return;
    }
    layer_linear_batch(
        e, (struct op_linear){
               .x = e->scratch.x,
               .x_stride = c->n_embd,
               .n_in = c->n_embd,
               .norm = w->ffn_norm,
               .norm_eps = c->norm_eps,
               .epilogue = gelu ? LINEAR_GLU_GELU : LINEAR_GLU_SILU,
               .keep_y = true,
               .n_part = 2,
               .part = {{&w->gate, NULL, e->scratch.ffn, c->n_ff}, {&w->up, NULL, NULL, 0}},
           });
    multiply(e,
             &(struct branch){
                 .w = &w->down, .in = e->scratch.ffn, .kept = true, .post_norm = w->post_ffn_norm});
}

static void add_ffn(sac_engine *e, uint32_t layer)
{
    add_branch(e, e->weights->layer[layer].post_ffn_norm);
}

struct embed_call {
    const sac_engine *e;
    float *to;
};

static void embed_row(void *arg, uint32_t r, uint32_t worker_i)
{
    const struct embed_call *call = arg;
    const sac_engine *e = call->e;
    const struct config *c = &e->model->config;
    (void)worker_i;
    weights_embed(call->to + (size_t)r * c->n_embd, &e->model->weights, c, e->batch.tok[r]);
}

void layer_embed_to(const sac_engine *e, float *to)
{
    workers_for(e->workers, e->batch.n_row, embed_row, &(struct embed_call){e, to});
}

void layer_embed(sac_engine *e)
{
    const size_t bytes = (size_t)e->batch.n_row * e->model->config.n_embd * sizeof *e->scratch.x;
    if (e->ahead.is_noted) {
        e->ahead.embed = backend_up_later(&e->backend, e->scratch.x, bytes);
        return;
    }
    layer_embed_to(e, e->scratch.x_in);
    backend_up(&e->backend, e->scratch.x, e->scratch.x_in, bytes);
}

/* The rotation angles of one row. */
static void turn_row(void *arg, uint32_t r, uint32_t worker_i)
{
    sac_engine *e = arg;
    const struct config *c = &e->model->config;
    const size_t n_angle = c->rope.n_rot / 2;
    (void)worker_i;
    for (int i = 0; i < (c->window ? 2 : 1); i++)
        rope_table_fill(&e->rope[i], e->scratch.cos_in[i] + r * n_angle,
                        e->scratch.sin_in[i] + r * n_angle, &e->batch.pos[r], 1);
}

void layer_send_angles(sac_engine *e)
{
    const struct scratch *s = &e->scratch;
    const size_t n_angle = e->model->config.rope.n_rot / 2;
    for (int i = 0; i < (e->model->config.window ? 2 : 1); i++) {
        const size_t bytes = e->batch.n_row * n_angle * sizeof(float);
        backend_up(&e->backend, s->cos[i], s->cos_in[i], bytes);
        backend_up(&e->backend, s->sin[i], s->sin_in[i], bytes);
    }
}

void layer_angles(sac_engine *e)
{
    workers_for(e->workers, e->batch.n_row, turn_row, e);
    layer_send_angles(e);
}

void layer_qkv(sac_engine *e, uint32_t layer)
{
    const struct layer_weights *w = &e->weights->layer[layer];
    project_qkv(e, w);
    rotate_heads(e, w, layer);
    place_to_pages(e, layer);
}

sac_status layer_look(const sac_engine *e, sac_error *err)
{
    const size_t width = config_qkv_width(&e->model->config);
    backend_down(&e->backend, e->scratch.qkv_seen, e->scratch.qkv,
                 e->batch.n_row * width * sizeof *e->scratch.qkv);
    return backend_wait(&e->backend, err);
}

/* Runs a stage of a layer on the engine of every share. */
static void each(sac_engine *e, void (*stage)(sac_engine *e, uint32_t layer), uint32_t layer)
{
    for (uint32_t i = 0; i < e->tp.n; i++) stage(e->tp.of[i], layer);
}

void layer_out(sac_engine *e, uint32_t layer)
{
    each(e, multiply_attn, layer);
    tensor_parallel_sum(e);
    each(e, add_attn, layer);
    each(e, multiply_ffn, layer);
    tensor_parallel_sum(e);
    each(e, add_ffn, layer);
}

static void attend(sac_engine *e, uint32_t layer)
{
    layer_qkv(e, layer);
    if (e->watch) doc_stats_see(e, layer);
    attend_layer(e, layer);
}

static void run_layers(sac_engine *e, const struct place *p)
{
    for (uint32_t l = p->layer0; l < p->end; l++) {
        each(e, attend, l);
        layer_out(e, l);
    }
}

static void begin_step(sac_engine *e)
{
    for (uint32_t i = 0; i < e->batch.n_run; i++) {
        const struct batch_run *run = &e->batch.run[i];
        mirror_update(&e->pool, run->seq_i, (run->pos0 + run->n_row) / PAGE_TOK);
    }
    offload_settle(e->pool.offload, &e->ops, e->workers, &e->pool.geom);
    layer_embed(e);
    layer_angles(e);
}

static void end_step(sac_engine *e)
{
    decode_device_fetch(e);
    offload_fetch_counts(e->pool.offload, &e->backend);
    prefill_device_fetch(e);
}

/* Time spent in stages that have counters of their own. */
static uint64_t counted_us(const sac_engine *e)
{
    uint64_t us = 0;
    for (uint32_t i = 0; i < e->tp.n; i++)
        us += e->tp.of[i]->stats.linear_us + e->tp.of[i]->stats.attn_us;
    return us;
}

void layer_run(sac_engine *e)
{
    const uint64_t start = clock_us(), shadow = e->record.spent_us, before = counted_us(e);
    for (uint32_t i = 0; i < e->tp.n; i++) begin_step(e->tp.of[i]);
    for (uint32_t i = 0; i < e->n_place; i++) {
        place_cross(e, i);
        run_layers(e, &e->place[i]);
    }
    for (uint32_t i = 0; i < e->tp.n; i++) end_step(e->tp.of[i]);
    place_cross(e, place_of_output(e));
    place_enter(e, 0);
    const uint64_t counted = counted_us(e) - before;
    e->stats.other_us += clock_us() - start - counted - (e->record.spent_us - shadow);
}

void layer_scratch_bytes(const sac_engine *e, size_t *out_linear, size_t *out_attn)
{
    const struct config *c = &e->model->config;
    const uint32_t n_row = e->batch.n_row_max, n_worker = workers_count(e->workers);
    const uint32_t n_logit = n_row < LOGITS_ROWS ? n_row : LOGITS_ROWS;
    const struct {
        uint32_t n_row, n_in, n_out;
    } shapes[] = {{n_row, c->n_embd, (uint32_t)config_qkv_width(c)},
                  {n_row, (uint32_t)config_q_width(c), c->n_embd},
                  {n_row, c->n_embd, 2 * c->n_ff},
                  {n_row, c->n_ff, c->n_embd},
                  {n_row, c->n_embd, c->experts.n},
                  {n_logit, c->n_embd, c->n_vocab}};
    *out_linear = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        if (shapes[i].n_in == 0 || shapes[i].n_out == 0) continue; /* no such matrix in the model */
        *out_linear =
            mem_larger(*out_linear, e->ops.linear_scratch(n_worker, shapes[i].n_row, shapes[i].n_in,
                                                          shapes[i].n_out));
    }
    *out_attn = e->ops.attn_scratch(n_worker, &e->pool.geom, c->n_head, n_row, e->params.n_ctx);
}
