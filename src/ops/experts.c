/* experts.c: see the header. Products are calls of the table's linear layers, without a pool: an
 * item is one worker's, a tile of an expert's rows times a piece of its outputs. All experts of all
 * rows are one list of items, so that a row waits for the other workers twice, behind the hidden
 * layer and behind the output, and not twice for each of its experts.
 *
 * Invariant: how rows are cut into tiles and outputs into pieces changes no bits, as a linear
 * layer's row and output depend on nothing else in a call. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "ops/experts.h"

#include "base/align.h"
#include "base/minmax.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define TILE_ROWS        64u /* maximum rows of an item: what a worker has room for */
#define ITEMS_PER_WORKER 4u  /* enough items that nobody waits long for the last one */
#define PIECE_GROUPS     4u  /* minimum groups of an item: every item packs its rows again */

/* ---- Routes ---- */

/* Whether expert a ranks before b. */
static bool is_before(const float *logit, uint32_t a, uint32_t b)
{
    const float x = logit[a], y = logit[b];
    if (x > y || (!isnan(x) && isnan(y))) return true;
    if (x < y || (isnan(x) && !isnan(y))) return false;
    return a < b;
}

/* The best expert among those that rank after `last`, or among all. */
static uint32_t find_next(const float *logit, uint32_t n, const uint32_t *last)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++)
        if ((!last || is_before(logit, *last, i)) && (best == n || is_before(logit, i, best)))
            best = i;
    assert(best < n);
    return best;
}

static void insert_ascending(uint32_t *list, uint32_t n, uint32_t value)
{
    for (; n > 0 && list[n - 1] > value; n--) list[n] = list[n - 1];
    list[n] = value;
}

static void route_row(void *arg, uint32_t r, uint32_t worker_i)
{
    const struct experts_route *op = arg;
    const float *logit = op->logit + r * op->logit_stride;
    uint32_t *expert = op->expert + (size_t)r * op->n_used, last = 0;
    float *share = op->share + (size_t)r * op->n_used, all = 0, chosen = 0;
    (void)worker_i;
    for (uint32_t k = 0; k < op->n_used; k++) {
        last = find_next(logit, op->n_expert, k ? &last : NULL);
        insert_ascending(expert, k, last);
    }
    float most = -INFINITY;
    for (uint32_t i = 0; i < op->n_expert; i++) most = fmaxf(most, logit[i]);
    for (uint32_t i = 0; i < op->n_expert; i++) all += expf(logit[i] - most);
    for (uint32_t k = 0; k < op->n_used; k++) {
        share[k] = expf(logit[expert[k]] - most) / all;
        chosen += share[k];
    }
    for (uint32_t k = 0; k < op->n_used; k++)
        share[k] = (op->norm ? share[k] / chosen : share[k]) * op->scale;
}

/* Sorts the pairs by expert, then by row (counting sort). */
static void number_pairs(const struct experts_route *op)
{
    const uint32_t n_pair = op->n_row * op->n_used;
    uint32_t *first = op->first;
    memset(first, 0, (op->n_expert + 1) * sizeof *first);
    for (uint32_t i = 0; i < n_pair; i++) first[op->expert[i] + 1]++;
    for (uint32_t i = 0; i < op->n_expert; i++) first[i + 1] += first[i];
    for (uint32_t i = 0; i < n_pair; i++) {
        const uint32_t to = first[op->expert[i]]++;
        op->pair[i] = to;
        op->row[to] = i / op->n_used;
    }
    /* Each entry has advanced to the beginning of the next expert. */
    memmove(first + 1, first, op->n_expert * sizeof *first);
    first[0] = 0;
}

void experts_route(struct workers *pool, const struct experts_route *op)
{
    assert(op->n_used >= 1 && op->n_used <= op->n_expert);
    workers_for(pool, op->n_row, route_row, (void *)op);
    number_pairs(op);
}

/* ---- Products ---- */

/* At most TILE_ROWS pairs of an expert. */
struct tile {
    uint32_t expert, pair0, n;
};

struct job {
    const struct experts_multiply *op;
    struct tile *tile; /* [n_tile] */
    uint32_t n_tile, n_piece;
    uint8_t *worker; /* [n_worker][worker_bytes] */
    size_t worker_bytes, gather_bytes;
};

static size_t gather_bytes(const struct experts_multiply *op)
{
    return align_line((size_t)min_u32(op->n_row, TILE_ROWS) * op->n_embd * sizeof(float));
}

static size_t worker_bytes(const struct ops *ops, const struct experts_multiply *op)
{
    const uint32_t n_row = min_u32(op->n_row, TILE_ROWS);
    const size_t in = ops->linear_scratch(1, n_row, op->n_embd, 2 * op->n_ff);
    const size_t out = ops->linear_scratch(1, n_row, op->n_ff, op->n_embd);
    return gather_bytes(op) + align_line(in > out ? in : out);
}

/* Maximum number of tiles: full ones, and one partial tile for every expert. */
static size_t tile_max(const struct experts_multiply *op)
{
    return (size_t)op->n_row * op->n_used / TILE_ROWS + op->n_expert;
}

size_t experts_scratch(const struct ops *ops, uint32_t n_worker, const struct experts_multiply *op)
{
    return align_line(tile_max(op) * sizeof(struct tile)) + n_worker * worker_bytes(ops, op);
}

static void list_tiles(struct job *job)
{
    const struct experts_multiply *op = job->op;
    for (uint32_t i = 0; i < op->n_expert; i++)
        for (uint32_t at = op->first[i]; at < op->first[i + 1]; at += TILE_ROWS)
            job->tile[job->n_tile++] =
                (struct tile){i, at, min_u32(TILE_ROWS, op->first[i + 1] - at)};
    assert(job->n_tile <= tile_max(op));
}

/* Piece i of an expert's outputs, in whole groups of `w` [n_expert * n_out, ...]; *out_first: its
 * first output. */
static struct weight piece_of(const struct job *job, const struct weight *w, uint32_t expert,
                              uint32_t n_out, uint32_t i, uint32_t *out_first)
{
    const uint32_t n = n_out / WEIGHT_GROUP;
    const uint32_t begin = n * i / job->n_piece, end = n * (i + 1) / job->n_piece;
    *out_first = begin * WEIGHT_GROUP;
    return weight_piece(w, expert * n + begin, end - begin);
}

/* The rows of a tile: in place if there is one, otherwise copied to `to`. */
static const float *gather(const struct job *job, const struct tile *t, float *to)
{
    const struct experts_multiply *op = job->op;
    if (t->n == 1) return op->x + (size_t)op->row[t->pair0] * op->n_embd;
    for (uint32_t i = 0; i < t->n; i++)
        memcpy(to + (size_t)i * op->n_embd, op->x + (size_t)op->row[t->pair0 + i] * op->n_embd,
               op->n_embd * sizeof *to);
    return to;
}

static void run_linear(const struct job *job, struct op_linear *linear, uint32_t worker_i)
{
    uint8_t *room = job->worker + worker_i * job->worker_bytes;
    linear->kind = job->op->kind;
    linear->scratch = room + job->gather_bytes;
    linear->scratch_bytes = job->worker_bytes - job->gather_bytes;
    job->op->ops->linear(NULL, linear);
}

static void hidden_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct job *job = arg;
    const struct experts_multiply *op = job->op;
    const struct tile *t = &job->tile[item_i / job->n_piece];
    const uint32_t piece_i = item_i % job->n_piece;
    uint32_t first;
    const struct weight gate = piece_of(job, op->gate, t->expert, op->n_ff, piece_i, &first);
    const struct weight up = piece_of(job, op->up, t->expert, op->n_ff, piece_i, &first);
    float *room = (float *)(void *)(job->worker + worker_i * job->worker_bytes);
    float *y = op->hidden + (size_t)t->pair0 * op->n_ff + first;
    run_linear(job,
               &(struct op_linear){.x = gather(job, t, room),
                                   .x_stride = op->n_embd,
                                   .n_row = t->n,
                                   .n_in = op->n_embd,
                                   .epilogue = op->glu,
                                   .n_part = 2,
                                   .part = {{&gate, NULL, y, op->n_ff}, {&up, NULL, NULL, 0}}},
               worker_i);
}

static void out_item(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct job *job = arg;
    const struct experts_multiply *op = job->op;
    const struct tile *t = &job->tile[item_i / job->n_piece];
    uint32_t first;
    const struct weight down =
        piece_of(job, op->down, t->expert, op->n_embd, item_i % job->n_piece, &first);
    float *y = op->out + (size_t)t->pair0 * op->n_embd + first;
    run_linear(job,
               &(struct op_linear){.x = op->hidden + (size_t)t->pair0 * op->n_ff,
                                   .x_stride = op->n_ff,
                                   .n_row = t->n,
                                   .n_in = op->n_ff,
                                   .epilogue = LINEAR_STORE,
                                   .n_part = 1,
                                   .part = {{&down, NULL, y, op->n_embd}}},
               worker_i);
}

/* Cuts the outputs into enough pieces for all workers, of at least PIECE_GROUPS groups. */
static void run_items(struct workers *pool, struct job *job, uint32_t n_out, workers_item_fn fn)
{
    const uint32_t n_worker = workers_count(pool), n_group = n_out / WEIGHT_GROUP;
    const uint32_t wanted = n_worker > 1 ? n_worker * ITEMS_PER_WORKER : 1;
    const uint32_t most = n_group < PIECE_GROUPS ? 1 : n_group / PIECE_GROUPS;
    job->n_piece = min_u32(most, (wanted + job->n_tile - 1) / job->n_tile);
    workers_for(pool, job->n_tile * job->n_piece, fn, job);
}

void experts_multiply(struct workers *pool, const struct experts_multiply *op)
{
    const uint32_t n_worker = workers_count(pool);
    assert(op->n_row > 0 && op->n_ff % WEIGHT_GROUP == 0 && op->n_embd % WEIGHT_GROUP == 0);
    assert(op->gate->n_out == op->n_expert * op->n_ff);
    assert(op->down->n_out == op->n_expert * op->n_embd);
    assert(op->scratch_bytes >= experts_scratch(op->ops, n_worker, op));
    struct job job = {.op = op,
                      .tile = op->scratch,
                      .worker =
                          (uint8_t *)op->scratch + align_line(tile_max(op) * sizeof(struct tile)),
                      .worker_bytes = worker_bytes(op->ops, op),
                      .gather_bytes = gather_bytes(op)};
    list_tiles(&job);
    run_items(pool, &job, op->n_ff, hidden_item);
    run_items(pool, &job, op->n_embd, out_item);
}

/* ---- Sums ---- */

static void add_times(float *y, const float *x, float by, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) y[i] += x[i] * by;
}

#define MIX_WIDTH 256u /* outputs that are summed at a time */

static void mix_row(void *arg, uint32_t r, uint32_t worker_i)
{
    const struct experts_mix *op = arg;
    const float *share = op->share + (size_t)r * op->n_used;
    const uint32_t *pair = op->pair + (size_t)r * op->n_used;
    (void)worker_i;
    for (uint32_t i = 0; i < op->n_embd; i += MIX_WIDTH) {
        const uint32_t n = min_u32(MIX_WIDTH, op->n_embd - i);
        float sum[MIX_WIDTH] = {0};
        for (uint32_t k = 0; k < op->n_used; k++)
            add_times(sum, op->out + (size_t)pair[k] * op->n_embd + i, share[k], n);
        if (op->shared) {
            const float gate = 1 / (1 + expf(-op->gate[r * op->gate_stride]));
            add_times(sum, op->shared + (size_t)r * op->n_embd + i, gate, n);
        }
        add_times(op->y + (size_t)r * op->n_embd + i, sum, 1, n);
    }
}

void experts_mix(struct workers *pool, const struct experts_mix *op)
{
    workers_for(pool, op->n_row, mix_row, (void *)op);
}
