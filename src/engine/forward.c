/* forward.c: the layers of a transformer for a flat batch of rows, in the order of the papers.
 *
 * Rows [0, n_decode) are decode rows and use narrow kernels, the rest are prompt rows and use wide
 * ones: a row's arithmetic never depends on what else is in the batch (design D7).
 * Keys and values of a layer take this way: kv_write puts them, 16 bit, into the tail of the
 * sequence and into `scratch.own` for the pages that a chunk begins; full pages are sealed into the
 * pool; attention reads sealed pages and, for a row's own page, the 16-bit form; then the last
 * unfilled page becomes the tail. */
#include "engine/forward.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static size_t q_width(const struct config *c)
{
    return (size_t)c->n_head * c->head_dim;
}

static size_t kv_width(const struct config *c)
{
    return (size_t)c->n_kv_head * c->head_dim;
}

static size_t qkv_width(const struct config *c)
{
    return q_width(c) + 2 * kv_width(c);
}

static uint64_t bytes_read(const struct op_linear *op)
{
    uint64_t bytes = 0;
    if (op->group) return op->n_group * op->part[0].w->group_bytes;
    for (uint32_t i = 0; i < op->n_part; i++) bytes += weight_bytes(op->part[i].w);
    return bytes;
}

void forward_linear(sac_engine *e, struct op_linear *op)
{
    op->scratch = e->scratch.linear;
    op->scratch_bytes = e->scratch.linear_bytes;
    e->stats.weight_bytes_read += bytes_read(op);
    e->ops.linear(e->workers, op);
}

/* `op` as for the whole batch; runs its decode rows narrow and its prompt rows wide. */
static void linear_batch(sac_engine *e, struct op_linear op)
{
    const uint32_t n_decode = e->batch.n_decode, n_prompt = e->batch.n_row - n_decode;
    const uint64_t start = clock_us();
    if (n_decode) {
        op.mode = LINEAR_NARROW;
        op.n_row = n_decode;
        forward_linear(e, &op);
    }
    if (n_prompt) {
        op.mode = LINEAR_WIDE;
        op.n_row = n_prompt;
        op.x += n_decode * op.x_stride;
        for (uint32_t i = 0; i < op.n_part; i++)
            if (op.part[i].y) op.part[i].y += n_decode * op.part[i].y_stride;
        forward_linear(e, &op);
    }
    e->stats.linear_us += clock_us() - start;
}

static void rmsnorm_batch(sac_engine *e, struct op_rmsnorm op)
{
    op.n_row = e->batch.n_row;
    op.eps = e->model->config.norm_eps;
    e->ops.rmsnorm(e->workers, &op);
}

static void project_qkv(sac_engine *e, const struct layer_weights *w)
{
    const struct config *c = &e->model->config;
    float *qkv = e->scratch.qkv;
    const size_t stride = qkv_width(c);
    linear_batch(e, (struct op_linear){
                        .x = e->scratch.x,
                        .x_stride = c->n_embd,
                        .n_in = c->n_embd,
                        .norm = w->attn_norm,
                        .norm_eps = c->norm_eps,
                        .epilogue = LINEAR_STORE,
                        .n_part = 3,
                        .part = {{&w->wq, w->bq, qkv, stride},
                                 {&w->wk, w->bk, qkv + q_width(c), stride},
                                 {&w->wv, w->bv, qkv + q_width(c) + kv_width(c), stride}},
                    });
}

/* Norm of each head (where the model has it) and rotation of q and k. */
static void rotate_heads(sac_engine *e, const struct layer_weights *w, uint32_t layer)
{
    const struct config *c = &e->model->config;
    const uint32_t local = config_layer_is_local(c, layer);
    const struct {
        float *x;
        const float *norm;
        uint32_t n_head;
    } side[2] = {{e->scratch.qkv, w->q_norm, c->n_head},
                 {e->scratch.qkv + q_width(c), w->k_norm, c->n_kv_head}};
    for (int i = 0; i < 2; i++) {
        if (side[i].norm)
            rmsnorm_batch(e, (struct op_rmsnorm){.x = side[i].x,
                                                 .y = side[i].x,
                                                 .x_stride = qkv_width(c),
                                                 .y_stride = qkv_width(c),
                                                 .n_group = side[i].n_head,
                                                 .width = c->head_dim,
                                                 .w = side[i].norm});
        e->ops.rope(e->workers, &(struct op_rope){.x = side[i].x,
                                                  .x_stride = qkv_width(c),
                                                  .n_row = e->batch.n_row,
                                                  .n_head = side[i].n_head,
                                                  .head_dim = c->head_dim,
                                                  .n_rot = c->rope.n_rot,
                                                  .interleaved = c->arch->rope_interleaved,
                                                  .cos = e->scratch.cos[local],
                                                  .sin = e->scratch.sin[local]});
    }
}

/* Points the runs at this layer's tables, tails and fresh 16-bit pages. */
static void bind_runs(sac_engine *e, uint32_t layer)
{
    struct batch *b = &e->batch;
    const struct page_geom *g = &e->pool.geom;
    uint8_t *own = e->scratch.own;
    for (uint32_t i = 0; i < b->n_run; i++) {
        struct attn_run *run = &b->run[i];
        const uint32_t seq_i = b->seq_i[run->row0];
        run->table = pool_table(&e->pool, seq_i, layer);
        run->own0 = pool_tail(&e->pool, seq_i, layer);
        run->own = own;
        const uint32_t n_page = (run->pos0 + run->n_row - 1) / PAGE_TOK - run->pos0 / PAGE_TOK;
        own += (size_t)n_page * g->n_kv_head * g->tail_bytes;
    }
}

static void seal_full_pages(sac_engine *e)
{
    struct batch *b = &e->batch;
    const struct page_geom *g = &e->pool.geom;
    uint32_t n = 0;
    for (uint32_t i = 0; i < b->n_run; i++) {
        const struct attn_run *run = &b->run[i];
        const uint32_t first = run->pos0 / PAGE_TOK;
        const uint32_t n_full = (run->pos0 + run->n_row) / PAGE_TOK - first;
        for (uint32_t j = 0; j < n_full; j++)
            for (uint32_t h = 0; h < g->n_kv_head; h++, n++) {
                const page_id id = run->table[h * run->table_stride + first + j];
                b->seal_from[n] = attn_own_page(run, g, (first + j) * PAGE_TOK, h);
                b->seal_to[n] = pool_page(&e->pool, id);
            }
    }
    assert(n <= (size_t)b->n_new_page_max * g->n_kv_head);
    if (n == 0) return;
    e->ops.seal(
        e->workers,
        &(struct op_seal){.geom = g, .n_page = n, .tail = b->seal_from, .sealed = b->seal_to});
    side_seal(e, b->seal_to, n);
}

/* The page that a chunk leaves unfilled becomes the sequence's tail. */
static void keep_tails(sac_engine *e)
{
    const struct page_geom *g = &e->pool.geom;
    for (uint32_t i = 0; i < e->batch.n_run; i++) {
        const struct attn_run *run = &e->batch.run[i];
        const uint32_t end = run->pos0 + run->n_row;
        if (end / PAGE_TOK == run->pos0 / PAGE_TOK || end % PAGE_TOK == 0) continue;
        for (uint32_t h = 0; h < g->n_kv_head; h++)
            memcpy(attn_own_page(run, g, run->pos0, h), attn_own_page(run, g, end, h),
                   g->tail_bytes);
    }
}

/* Tokens whose K and V a run's attention reads, once for each 32-row tile. */
static uint64_t tokens_read(const struct attn_run *run, uint32_t window)
{
    uint64_t n = 0;
    const uint32_t end = run->pos0 + run->n_row;
    for (uint32_t p = run->pos0; p < end; p = (p / PAGE_TOK + 1) * PAGE_TOK) {
        const uint32_t last =
            (p / PAGE_TOK + 1) * PAGE_TOK < end ? (p / PAGE_TOK + 1) * PAGE_TOK : end;
        const uint32_t first = window && p >= window ? p - window + 1 : 0;
        n += last - first / PAGE_TOK * PAGE_TOK;
    }
    return n;
}

/* The same for a plan, once for each of its lists, in tokens of one KV head. */
static uint64_t tokens_planned(const struct attn_run *run, uint32_t n_lane)
{
    const struct attn_plan *p = run->plan;
    const uint32_t end = run->pos0 + run->n_row;
    const uint32_t n_list = ((end - 1) / p->tile_tok - run->pos0 / p->tile_tok + 1) * n_lane;
    uint64_t n = p->tok ? p->tok_ptr[n_list] : 0;
    for (uint32_t i = 0; i < p->range_ptr[n_list]; i++)
        n += (uint64_t)(p->range[i].end - p->range[i].begin) * PAGE_TOK;
    return n;
}

/* Counts what the runs' attention reads. */
static void count_reads(sac_engine *e, uint32_t window)
{
    const struct page_geom *g = &e->pool.geom;
    const uint32_t n_head = e->model->config.n_head;
    for (uint32_t i = 0; i < e->batch.n_run; i++) {
        const struct attn_run *run = &e->batch.run[i];
        const uint64_t n_seen = (uint64_t)(run->pos0 / PAGE_TOK) * PAGE_TOK * g->n_kv_head;
        uint64_t n_read = run->plan
                              ? tokens_planned(run, run->plan->by_head ? n_head : g->n_kv_head)
                              : tokens_read(run, window) * g->n_kv_head;
        if (run->select)
            n_read = (uint64_t)run->select_ptr[g->n_kv_head] * PAGE_TOK +
                     (run->select_tok ? run->select_tok_ptr[g->n_kv_head] : 0) +
                     (uint64_t)(run->pos0 % PAGE_TOK + 1) * g->n_kv_head;
        e->stats.kv_bytes_read += n_read * (g->bytes / PAGE_TOK);
        if (run->mode != LINEAR_NARROW || window > 0) continue;
        e->stats.n_tok_seen += n_seen;
        e->stats.n_tok_read += n_read - (uint64_t)(run->pos0 % PAGE_TOK + 1) * g->n_kv_head;
    }
}

static void attend(sac_engine *e, uint32_t layer)
{
    const struct config *c = &e->model->config;
    const struct page_geom *g = &e->pool.geom;
    float *qkv = e->scratch.qkv;
    const uint64_t start = clock_us();
    const uint32_t window = config_layer_is_local(c, layer) ? c->window : 0;
    bind_runs(e, layer);
    for (uint32_t i = 0; i < e->batch.n_run; i++) {
        const struct op_kv_write write = {.geom = g,
                                          .run = &e->batch.run[i],
                                          .k = qkv + q_width(c),
                                          .v = qkv + q_width(c) + kv_width(c),
                                          .kv_stride = qkv_width(c)};
        e->ops.kv_write(e->workers, &write);
    }
    seal_full_pages(e);
    decode_select(e, layer, window);
    prefill_select(e, layer, window);
    count_reads(e, window);
    e->ops.attn(e->workers, &(struct op_attn){.geom = g,
                                              .pool = e->pool.pages,
                                              .n_head = c->n_head,
                                              .q = qkv,
                                              .q_stride = qkv_width(c),
                                              .out = e->scratch.attn,
                                              .out_stride = q_width(c),
                                              .lse = e->decode.lse,
                                              .scale = c->attn_scale,
                                              .softcap = c->attn_softcap,
                                              .window = window,
                                              .n_run = e->batch.n_run,
                                              .run = e->batch.run,
                                              .n_skip = e->prefill.n_skip,
                                              .scratch = e->scratch.attn_ops,
                                              .scratch_bytes = e->scratch.attn_bytes});
    decode_add_rest(e, window);
    decode_certify(e, window);
    const uint64_t attend_us = clock_us() - start;
    e->stats.attn_us += attend_us;
    if (e->record.fn)
        record_run(e, &(struct record_layer){.layer = layer,
                                             .window = window,
                                             .side_bytes = e->decode.layer_side_bytes,
                                             .select_us = e->decode.layer_us,
                                             .attend_us = attend_us - e->decode.layer_us});
    keep_tails(e);
}

/* What a branch of a layer adds to the residual stream: W in + bias, or norm(W in + bias) for
 * models that normalise a branch's output. */
struct branch {
    const struct weight *w;
    const float *bias, *in;
    bool kept; /* `in` is as feed_forward's GLU left it */
    const float *post_norm;
};

static void add_branch(sac_engine *e, const struct branch *b)
{
    const struct config *c = &e->model->config;
    struct scratch *s = &e->scratch;
    linear_batch(e, (struct op_linear){
                        .x = b->in,
                        .x_stride = b->w->n_in,
                        .n_in = b->w->n_in,
                        .kept_x = b->kept,
                        .epilogue = b->post_norm ? LINEAR_STORE : LINEAR_ADD,
                        .n_part = 1,
                        .part = {{b->w, b->bias, b->post_norm ? s->tmp : s->x, c->n_embd}},
                    });
    if (!b->post_norm) return;
    rmsnorm_batch(e, (struct op_rmsnorm){.x = s->tmp,
                                         .y = s->tmp,
                                         .x_stride = c->n_embd,
                                         .y_stride = c->n_embd,
                                         .n_group = 1,
                                         .width = c->n_embd,
                                         .w = b->post_norm});
    e->ops.add(e->workers,
               &(struct op_add){.x = s->tmp, .y = s->x, .n = (size_t)e->batch.n_row * c->n_embd});
}

static void feed_forward(sac_engine *e, const struct layer_weights *w)
{
    const struct config *c = &e->model->config;
    const bool gelu = c->arch->glu == CONFIG_GLU_GELU;
    linear_batch(e,
                 (struct op_linear){
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
    add_branch(
        e, &(struct branch){
               .w = &w->down, .in = e->scratch.ffn, .kept = true, .post_norm = w->post_ffn_norm});
}

/* Embedding and rotation angles of one row. */
static void embed_row(void *arg, uint32_t r, uint32_t worker_i)
{
    sac_engine *e = arg;
    const struct config *c = &e->model->config;
    const size_t n_angle = c->rope.n_rot / 2;
    (void)worker_i;
    weights_embed(e->scratch.x + (size_t)r * c->n_embd, &e->model->weights, c, e->batch.tok[r]);
    for (int i = 0; i < (c->window ? 2 : 1); i++)
        rope_table_fill(&e->rope[i], e->scratch.cos[i] + r * n_angle,
                        e->scratch.sin[i] + r * n_angle, &e->batch.pos[r], 1);
}

void forward_run(sac_engine *e)
{
    const uint64_t start = clock_us(), shadow = e->record.spent_us;
    const uint64_t inside = e->stats.linear_us + e->stats.attn_us;
    workers_for(e->workers, e->batch.n_row, embed_row, e);
    for (uint32_t l = 0; l < e->model->config.n_layer; l++) {
        const struct layer_weights *w = &e->model->weights.layer[l];
        project_qkv(e, w);
        rotate_heads(e, w, l);
        attend(e, l);
        add_branch(e, &(struct branch){.w = &w->wo,
                                       .bias = w->bo,
                                       .in = e->scratch.attn,
                                       .post_norm = w->post_attn_norm});
        feed_forward(e, w);
    }
    const uint64_t counted = e->stats.linear_us + e->stats.attn_us - inside;
    e->stats.other_us += clock_us() - start - counted - (e->record.spent_us - shadow);
}

void forward_scratch_bytes(const sac_engine *e, size_t *out_linear, size_t *out_attn)
{
    const struct config *c = &e->model->config;
    const uint32_t n_row = e->params.n_batch, n_worker = workers_count(e->workers);
    const uint32_t n_logit = n_row < LOGITS_ROWS ? n_row : LOGITS_ROWS;
    const struct {
        uint32_t n_row, n_in, n_out;
    } shapes[] = {{n_row, c->n_embd, (uint32_t)qkv_width(c)},
                  {n_row, (uint32_t)q_width(c), c->n_embd},
                  {n_row, c->n_embd, 2 * c->n_ff},
                  {n_row, c->n_ff, c->n_embd},
                  {n_logit, c->n_embd, c->n_vocab}};
    *out_linear = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        *out_linear =
            mem_larger(*out_linear, e->ops.linear_scratch(n_worker, shapes[i].n_row, shapes[i].n_in,
                                                          shapes[i].n_out));
    *out_attn = e->ops.attn_scratch(n_worker, &e->pool.geom, c->n_head, n_row, e->params.n_ctx);
}
