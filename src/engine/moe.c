/* moe.c: see the header. The router is computed with narrow kernels for all rows: its matrix is
 * small, and a rounding of inputs to 16 bits would send rows to other experts.
 *
 * Rows of the two kinds are routed and computed apart, as in all linear layers. */
#include "engine/moe.h"

#include "engine/layer.h"

#include <assert.h>

static size_t logit_stride(const struct config *c)
{
    return c->experts.n + c->arch->shared_expert;
}

/* The fields that do not depend on layer and batch. */
static struct experts_multiply shape_of(const sac_engine *e, uint32_t n_row)
{
    const struct config *c = &e->model->config;
    const bool gelu = c->arch->glu == CONFIG_GLU_GELU;
    return (struct experts_multiply){.ops = &e->ops,
                                     .n_row = n_row,
                                     .n_embd = c->n_embd,
                                     .n_ff = c->experts.n_ff,
                                     .n_expert = c->experts.n,
                                     .n_used = c->experts.n_used,
                                     .glu = gelu ? LINEAR_GLU_GELU : LINEAR_GLU_SILU};
}

void moe_plan(sac_engine *e, struct arena *a)
{
    const struct config *c = &e->model->config;
    const struct expert_config *x = &c->experts;
    struct moe *m = &e->scratch.moe;
    const size_t n = e->batch.n_row_max, n_pair = n * x->n_used;
    const struct experts_multiply shape = shape_of(e, e->batch.n_row_max);
    m->x = arena_take(a, n * c->n_embd, sizeof *m->x);
    m->logit = arena_take(a, n * logit_stride(c), sizeof *m->logit);
    m->share = arena_take(a, n_pair, sizeof *m->share);
    m->expert = arena_take(a, n_pair, sizeof *m->expert);
    m->pair = arena_take(a, n_pair, sizeof *m->pair);
    m->row = arena_take(a, n_pair, sizeof *m->row);
    m->first = arena_take(a, (size_t)x->n + 1, sizeof *m->first);
    m->hidden = arena_take(a, n_pair * x->n_ff, sizeof *m->hidden);
    m->out = arena_take(a, n_pair * c->n_embd, sizeof *m->out);
    m->shared = arena_take(a, c->arch->shared_expert ? n * c->n_embd : 0, sizeof *m->shared);
    m->ops_bytes = experts_scratch(&e->ops, workers_count(e->workers), &shape);
    m->ops = arena_take(a, 1, m->ops_bytes);
}

static void normalise(sac_engine *e, const struct layer_weights *w)
{
    const uint32_t n_embd = e->model->config.n_embd;
    layer_rmsnorm_batch(e, (struct op_rmsnorm){.x = e->scratch.x,
                                               .y = e->scratch.moe.x,
                                               .x_stride = n_embd,
                                               .y_stride = n_embd,
                                               .n_group = 1,
                                               .width = n_embd,
                                               .w = w->ffn_norm});
}

/* The router's logits of all experts, followed by that of the shared expert's gate. */
static void find_logits(sac_engine *e, const struct layer_weights *w)
{
    const struct config *c = &e->model->config;
    float *logit = e->scratch.moe.logit;
    const size_t stride = logit_stride(c);
    layer_linear(e, &(struct op_linear){
                        .x = e->scratch.moe.x,
                        .x_stride = c->n_embd,
                        .n_row = e->batch.n_row,
                        .n_in = c->n_embd,
                        .kind = ROW_DECODE,
                        .epilogue = LINEAR_STORE,
                        .n_part = c->arch->shared_expert ? 2 : 1,
                        .part = {{&w->expert.router, NULL, logit, stride},
                                 {&w->expert.shared, NULL, logit + c->experts.n, stride}},
                    });
}

static void run_shared(sac_engine *e, const struct layer_weights *w)
{
    const struct config *c = &e->model->config;
    layer_linear_batch(
        e, (struct op_linear){
               .x = e->scratch.moe.x,
               .x_stride = c->n_embd,
               .n_in = c->n_embd,
               .epilogue = LINEAR_GLU_SILU,
               .keep_y = true,
               .n_part = 2,
               .part = {{&w->gate, NULL, e->scratch.ffn, c->n_ff}, {&w->up, NULL, NULL, 0}},
           });
    layer_linear_batch(e, (struct op_linear){
                              .x = e->scratch.ffn,
                              .x_stride = c->n_ff,
                              .n_in = c->n_ff,
                              .kept_x = true,
                              .epilogue = LINEAR_STORE,
                              .n_part = 1,
                              .part = {{&w->down, NULL, e->scratch.moe.shared, c->n_embd}},
                          });
}

/* Bytes of the weights of all experts that have a row. */
static uint64_t bytes_read(const struct expert_weights *w, const uint32_t *first, uint32_t n_expert)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_expert; i++) n += first[i] < first[i + 1];
    const uint64_t all = weight_bytes(&w->gate) + weight_bytes(&w->up) + weight_bytes(&w->down);
    return all / n_expert * n;
}

/* Computes rows row0 .. row0 + n - 1, which are of one kind. */
static void run_rows(sac_engine *e, const struct layer_weights *w, uint32_t row0, uint32_t n,
                     enum row_kind kind)
{
    const struct config *c = &e->model->config;
    const struct expert_config *x = &c->experts;
    const struct moe *m = &e->scratch.moe;
    const float *logit = m->logit + row0 * logit_stride(c);
    if (n == 0) return;
    experts_route(e->workers, &(struct experts_route){.logit = logit,
                                                      .logit_stride = logit_stride(c),
                                                      .n_row = n,
                                                      .n_expert = x->n,
                                                      .n_used = x->n_used,
                                                      .norm = x->norm,
                                                      .scale = x->scale,
                                                      .expert = m->expert,
                                                      .share = m->share,
                                                      .pair = m->pair,
                                                      .row = m->row,
                                                      .first = m->first});
    struct experts_multiply op = shape_of(e, n);
    op.x = m->x + (size_t)row0 * c->n_embd;
    op.kind = kind;
    op.gate = &w->expert.gate;
    op.up = &w->expert.up;
    op.down = &w->expert.down;
    op.row = m->row;
    op.first = m->first;
    op.hidden = m->hidden;
    op.out = m->out;
    op.scratch = m->ops;
    op.scratch_bytes = m->ops_bytes;
    experts_multiply(e->workers, &op);
    e->stats.weight_bytes_read += bytes_read(&w->expert, m->first, x->n);
    const bool shared = c->arch->shared_expert;
    experts_mix(e->workers, &(struct experts_mix){
                                .y = e->scratch.x + (size_t)row0 * c->n_embd,
                                .n_row = n,
                                .n_embd = c->n_embd,
                                .n_used = x->n_used,
                                .share = m->share,
                                .pair = m->pair,
                                .out = m->out,
                                .shared = shared ? m->shared + (size_t)row0 * c->n_embd : NULL,
                                .gate = logit + x->n,
                                .gate_stride = logit_stride(c)});
}

void moe_run(sac_engine *e, uint32_t layer)
{
    const struct layer_weights *w = &e->weights->layer[layer];
    const uint32_t n_decode = e->batch.n_decode, n_prompt = e->batch.n_row - n_decode;
    assert(e->backend.is_host && !w->post_ffn_norm && e->tp.n_all == 1);
    normalise(e, w);
    if (e->model->config.arch->shared_expert) run_shared(e, w);
    const uint64_t start = clock_us();
    find_logits(e, w);
    run_rows(e, w, 0, n_decode, ROW_DECODE);
    run_rows(e, w, n_decode, n_prompt, ROW_PROMPT);
    e->stats.linear_us += clock_us() - start;
}
