/* cuda_ops.h: the operations of libsaccade_cuda.so as one more instruction set of the checks: a
 * table whose slots carry a call's memory to the GPU, run it there and bring the results back.
 *
 * It is there when SAC_CHECK_CUDA names the library (`make check-cuda`). Outputs and scratch are
 * poisoned before a call, and what a call has not been asked to write must be so after it. Shapes
 * that have no kernel are computed by the reference and counted; the count is printed at the end.
 */
#ifndef SAC_TESTS_CUDA_OPS_H
#define SAC_TESTS_CUDA_OPS_H

#include "base/mem.h"
#include "ops/cuda/api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum cuda_piece { CUDA_FRAMES, CUDA_TAILS, CUDA_FRAME, CUDA_Q, CUDA_OUT, CUDA_LSE, CUDA_SCRATCH };
#define N_CUDA_PIECE 7

static struct cuda_ops { /* C tests run one at a time */
    const struct cuda_api *api;
    struct cuda_device *device;
    struct ops ref;
    void *memory[N_CUDA_PIECE]; /* of the device, grown as needed */
    size_t bytes[N_CUDA_PIECE];
    uint8_t *host; /* what comes back */
    size_t host_bytes, n_call, n_ref;
} cuda_ops;

static inline void cuda_ops_must(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "cuda: %s\n", what);
    abort();
}

static inline void cuda_ops_wait(void)
{
    sac_error err;
    if (cuda_ops.api->wait(cuda_ops.device, &err) != SAC_OK) cuda_ops_must(false, err.msg);
}

/* Room on the device. */
static inline uint8_t *cuda_ops_room(enum cuda_piece piece, size_t bytes)
{
    struct cuda_ops *c = &cuda_ops;
    if (c->bytes[piece] < bytes) {
        c->api->give(c->device, c->memory[piece]);
        c->memory[piece] = c->api->take(c->device, bytes);
        c->bytes[piece] = bytes;
        cuda_ops_must(c->memory[piece] != NULL, "there is not enough memory");
    }
    return c->memory[piece];
}

static inline uint8_t *cuda_ops_host(size_t bytes)
{
    struct cuda_ops *c = &cuda_ops;
    if (c->host_bytes < bytes) {
        free(c->host);
        c->host = malloc(bytes);
        c->host_bytes = bytes;
        cuda_ops_must(c->host != NULL, "there is not enough memory");
    }
    return c->host;
}

static inline uint8_t *cuda_ops_poisoned(enum cuda_piece piece, size_t bytes)
{
    uint8_t *room = cuda_ops_room(piece, bytes);
    memset(cuda_ops_host(bytes), 0xff, bytes);
    cuda_ops.api->up(cuda_ops.device, room, cuda_ops.host, bytes);
    return room;
}

static inline uint32_t cuda_ops_own_pages(const struct attn_run *run)
{
    return (run->pos0 + run->n_row - 1) / PAGE_TOK - run->pos0 / PAGE_TOK + 1;
}

/* A run's own pages behind each other from `at` on; returns how many bytes. */
static inline size_t cuda_ops_tails(struct attn_run *run, const struct page_geom *g, uint8_t *at)
{
    const size_t lane = g->n_kv_head * g->tail_bytes, n = cuda_ops_own_pages(run);
    cuda_ops.api->up(cuda_ops.device, at, run->own0, lane);
    if (n > 1) cuda_ops.api->up(cuda_ops.device, at + lane, run->own, (n - 1) * lane);
    run->own0 = at;
    run->own = at + lane;
    return n * lane;
}

static inline size_t cuda_ops_tail_bytes(const struct attn_run *run, uint32_t n_run,
                                         const struct page_geom *g)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < n_run; i++)
        bytes += cuda_ops_own_pages(&run[i]) * g->n_kv_head * g->tail_bytes;
    return bytes;
}

/* ---- Attention ---- */

static inline bool cuda_ops_serves(const struct op_attn *op)
{
    sac_error err;
    return cuda_ops.api->check(op->geom, op->n_head, &err) == SAC_OK;
}

struct cuda_ops_extent { /* of a call */
    uint32_t n_row, n_tok, n_frame;
    size_t frame_bytes;
};

static inline struct cuda_ops_extent cuda_ops_extent(const struct op_attn *op)
{
    struct cuda_ops_extent x = {0};
    for (uint32_t i = 0; i < op->n_run; i++) {
        const struct attn_run *run = &op->run[i];
        const uint32_t end = run->pos0 + run->n_row, n_page = (end - 1) / PAGE_TOK;
        if (run->row0 + run->n_row > x.n_row) x.n_row = run->row0 + run->n_row;
        if (end > x.n_tok) x.n_tok = end;
        for (uint32_t h = 0; h < op->geom->n_kv_head; h++)
            for (uint32_t p = 0; p < n_page; p++) {
                const page_id id = run->table[h * run->table_stride + p];
                const uint32_t frame = (uint32_t)page_frame_of(op->frames.of, id);
                if (frame + 1 > x.n_frame) x.n_frame = frame + 1;
            }
        x.frame_bytes += op->geom->n_kv_head * run->table_stride * sizeof(uint32_t);
    }
    return x;
}

/* The run's table as frames, from `at` on. */
static inline size_t cuda_ops_frame(struct attn_run *run, const struct op_attn *op, uint8_t *at)
{
    const uint32_t n_page = (run->pos0 + run->n_row - 1) / PAGE_TOK;
    const size_t n = op->geom->n_kv_head * run->table_stride, bytes = n * sizeof(uint32_t);
    uint32_t *frame = malloc(bytes + 1);
    memset(frame, 0xff, bytes);
    for (uint32_t h = 0; h < op->geom->n_kv_head; h++)
        for (uint32_t p = 0; p < n_page; p++) {
            const size_t i = h * run->table_stride + p;
            frame[i] = (uint32_t)page_frame_of(op->frames.of, run->table[i]);
        }
    cuda_ops.api->up(cuda_ops.device, at, frame, bytes);
    run->frame = (const uint32_t *)(const void *)at;
    free(frame);
    return bytes;
}

static inline bool cuda_ops_has_row(const struct op_attn *op, uint32_t row)
{
    for (uint32_t i = 0; i < op->n_run; i++)
        if (row >= op->run[i].row0 && row - op->run[i].row0 < op->run[i].n_row) return true;
    return false;
}

/* Rows of the call's runs from the device's `from` to `to`; others must still be poison. */
static inline void cuda_ops_take_rows(const struct op_attn *op, uint32_t n_row, float *to,
                                      size_t stride, size_t width, const uint8_t *from)
{
    const size_t bytes = n_row * stride * sizeof(float);
    uint8_t *host = cuda_ops_host(bytes);
    cuda_ops.api->down(cuda_ops.device, host, from, bytes);
    cuda_ops_wait();
    for (uint32_t r = 0; r < n_row; r++) {
        const uint8_t *row = host + r * stride * sizeof(float);
        if (cuda_ops_has_row(op, r)) {
            memcpy(to + r * stride, row, width * sizeof(float));
            continue;
        }
        for (size_t i = 0; i < width * sizeof(float); i++)
            cuda_ops_must(row[i] == 0xff, "attention has written a row of no run");
    }
}

static inline void cuda_ops_attn(struct workers *pool, const struct op_attn *op)
{
    struct cuda_ops *c = &cuda_ops;
    c->n_call++;
    if (!cuda_ops_serves(op)) {
        c->n_ref++;
        c->ref.attn(pool, op);
        return;
    }
    const struct page_geom *g = op->geom;
    const struct cuda_ops_extent x = cuda_ops_extent(op);
    struct op_attn dev = *op;
    struct attn_run *run = malloc(op->n_run * sizeof *run);
    memcpy(run, op->run, op->n_run * sizeof *run);
    uint8_t *tail = cuda_ops_room(CUDA_TAILS, cuda_ops_tail_bytes(run, op->n_run, g));
    uint8_t *frame = cuda_ops_room(CUDA_FRAME, x.frame_bytes + 1);
    for (uint32_t i = 0; i < op->n_run; i++) {
        tail += cuda_ops_tails(&run[i], g, tail);
        frame += cuda_ops_frame(&run[i], op, frame);
    }
    dev.run = run;
    dev.frames.of = NULL;
    dev.frames.base = cuda_ops_room(CUDA_FRAMES, x.n_frame * g->bytes + 1);
    c->api->up(c->device, c->memory[CUDA_FRAMES], op->frames.base, x.n_frame * g->bytes);
    const size_t q_bytes = x.n_row * op->q_stride * sizeof(float);
    const size_t out_bytes = x.n_row * op->out_stride * sizeof(float);
    const size_t lse_bytes = (size_t)x.n_row * op->n_head * sizeof(float);
    dev.q = (const float *)(const void *)cuda_ops_room(CUDA_Q, q_bytes);
    c->api->up(c->device, c->memory[CUDA_Q], op->q, q_bytes);
    dev.out = (float *)(void *)cuda_ops_poisoned(CUDA_OUT, out_bytes);
    if (op->lse) dev.lse = (float *)(void *)cuda_ops_poisoned(CUDA_LSE, lse_bytes);
    dev.scratch_bytes = c->api->attn_scratch(1, g, op->n_head, x.n_row, x.n_tok);
    dev.scratch = cuda_ops_poisoned(CUDA_SCRATCH, dev.scratch_bytes);
    c->api->attn(c->device, &dev);
    const size_t width = (size_t)op->n_head * g->head_dim;
    cuda_ops_take_rows(op, x.n_row, op->out, op->out_stride, width, c->memory[CUDA_OUT]);
    if (op->lse)
        cuda_ops_take_rows(op, x.n_row, op->lse, op->n_head, op->n_head, c->memory[CUDA_LSE]);
    free(run);
}

/* ---- Pages ---- */

static inline void cuda_ops_kv_write(struct workers *pool, const struct op_kv_write *op)
{
    (void)pool;
    struct cuda_ops *c = &cuda_ops;
    const struct page_geom *g = op->geom;
    struct attn_run run = *op->run;
    const size_t lane = g->n_kv_head * g->tail_bytes, n = cuda_ops_own_pages(&run);
    const size_t bytes = (run.row0 + run.n_row) * op->kv_stride * sizeof(float);
    struct op_kv_write dev = *op;
    cuda_ops_tails(&run, g, cuda_ops_room(CUDA_TAILS, n * lane));
    dev.run = &run;
    dev.k = (const float *)(const void *)cuda_ops_room(CUDA_Q, bytes);
    dev.v = (const float *)(const void *)cuda_ops_room(CUDA_OUT, bytes);
    c->api->up(c->device, c->memory[CUDA_Q], op->k, bytes);
    c->api->up(c->device, c->memory[CUDA_OUT], op->v, bytes);
    c->api->kv_write(c->device, &dev);
    c->api->down(c->device, op->run->own0, run.own0, lane);
    if (n > 1) c->api->down(c->device, op->run->own, run.own, (n - 1) * lane);
    cuda_ops_wait();
}

static inline void cuda_ops_seal(struct workers *pool, const struct op_seal *op)
{
    (void)pool;
    struct cuda_ops *c = &cuda_ops;
    const struct page_geom *g = op->geom;
    uint8_t *tail = cuda_ops_room(CUDA_TAILS, op->n_page * g->tail_bytes);
    uint8_t *sealed = cuda_ops_poisoned(CUDA_FRAMES, op->n_page * g->bytes);
    const uint8_t **from = malloc(op->n_page * sizeof *from);
    uint8_t **to = malloc(op->n_page * sizeof *to);
    for (uint32_t i = 0; i < op->n_page; i++) {
        from[i] = tail + i * g->tail_bytes;
        to[i] = sealed + i * g->bytes;
        c->api->up(c->device, tail + i * g->tail_bytes, op->tail[i], g->tail_bytes);
    }
    c->api->seal(c->device,
                 &(struct op_seal){.geom = g, .n_page = op->n_page, .tail = from, .sealed = to});
    for (uint32_t i = 0; i < op->n_page; i++)
        c->api->down(c->device, op->sealed[i], to[i], g->bytes);
    cuda_ops_wait();
    free(from);
    free(to);
}

/* ---- The table ---- */

static inline size_t cuda_ops_scratch(uint32_t n_worker, const struct page_geom *geom,
                                      uint32_t n_head, uint32_t n_row, uint32_t n_tok_max)
{
    return cuda_ops.ref.attn_scratch(n_worker, geom, n_head, n_row, n_tok_max);
}

/* False: SAC_CHECK_CUDA is not set. Whatever else is in the way ends the program. */
static inline bool cuda_ops_open(struct ops *out)
{
    struct cuda_ops *c = &cuda_ops;
    const char *path = getenv("SAC_CHECK_CUDA");
    sac_error err;
    if (!path) return false;
    cuda_ops_must(ops_init_isa(&c->ref, "ref", &err) == SAC_OK, "no reference");
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    cuda_ops_must(library != NULL, library ? "" : dlerror());
    cuda_api_fn get;
    *(void **)&get = dlsym(library, CUDA_API_SYMBOL);
    cuda_ops_must(get != NULL, "the library has no table");
    c->api = get();
    cuda_ops_must(c->api->abi == CUDA_ABI, "library and program are of different builds");
    if (c->api->open(&c->device, 0, &err) != SAC_OK) cuda_ops_must(false, err.msg);
    *out = c->ref;
    out->isa = "cuda";
    out->attn = cuda_ops_attn;
    out->kv_write = cuda_ops_kv_write;
    out->seal = cuda_ops_seal;
    out->attn_scratch = cuda_ops_scratch;
    return true;
}

static inline void cuda_ops_close(void)
{
    struct cuda_ops *c = &cuda_ops;
    if (!c->api) return;
    printf("cuda: %zu calls of attention, of which %zu by the reference, as there is no kernel\n",
           c->n_call, c->n_ref);
    for (int i = 0; i < N_CUDA_PIECE; i++) c->api->give(c->device, c->memory[i]);
    c->api->close(c->device);
    free(c->host);
    *c = (struct cuda_ops){0};
}

#endif
