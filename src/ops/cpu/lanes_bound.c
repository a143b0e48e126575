/* lanes_bound.c: upper bounds of the mass of pages. Pieces of pages are distributed to the workers.
 * Sums that a proof depends on are f64; products are f32, eight sums at a time, and a bound of
 * their rounding error is added. */
#include "ops/cpu/lanes_bound.h"

#include "base/half.h"

#include <assert.h>
#include <float.h>
#include <math.h>

#define PIECE 64u /* pages of a piece */

size_t op_bound_bytes(enum op_bound by, uint32_t d)
{
    switch (by) {
    case OP_BOUND_BOX: return 2 + 4 * (size_t)d;
    case OP_BOUND_SPHERE: return 2 + 2 * (size_t)d + 2;
    case OP_BOUND_SHADOW4: return 2 + 4 * (size_t)d + PAGE_TOK * (2 + (size_t)d / 2);
    case OP_BOUND_SHADOW8: break;
    }
    return 2 + 4 * (size_t)d + PAGE_TOK * (2 + (size_t)d);
}

struct op_bound_side op_bound_side(const uint8_t *side, enum op_bound by, uint32_t d)
{
    struct op_bound_side s;
    s.value = (uint16_t *)(uintptr_t)side;
    s.a = s.value + 1;
    s.b = s.a + d;
    s.length = by == OP_BOUND_SPHERE ? s.b : s.b + d;
    s.code = (uint8_t *)(s.length + PAGE_TOK);
    return s;
}

static double cap_score(const struct op_lane_bounds *op, double score)
{
    const double cap = (double)op->softcap;
    return cap > 0 ? cap * tanh(score / cap) : score;
}

/* Norm of a scaled query, rounded up: scaling has rounded the query. */
static double query_norm(const float *q, uint32_t d)
{
    double norm = 0;
    for (uint32_t c = 0; c < d; c++) norm += (double)q[c] * (double)q[c];
    return sqrt(norm) * (1 + 1e-6);
}

/* Reads the rounded keys [PAGE_TOK, d]. */
static void read_shadow(float *k, const struct op_bound_side *s, uint32_t d, bool by_byte)
{
    const uint32_t half = d / 2;
    float from[HEAD_DIM_MAX], step[HEAD_DIM_MAX];
    for (uint32_t c = 0; c < d; c++) {
        from[c] = f16_to_f32(s->a[c]);
        step[c] = f16_to_f32(s->b[c]);
    }
    for (uint32_t t = 0; t < PAGE_TOK; t++, k += d) {
        const uint8_t *code = s->code + (size_t)t * (by_byte ? d : half);
        for (uint32_t c = 0; c < d && by_byte; c++) k[c] = from[c] + step[c] * (float)code[c];
        for (uint32_t c = 0; c < half && !by_byte; c++) {
            k[c] = from[c] + step[c] * (float)(code[c] & 15u);
            k[c + half] = from[c + half] + step[c + half] * (float)(code[c] >> 4);
        }
    }
}

/* Dot product in f32 with eight sums. Not the slot `dots`, because the bound needs a known rounding
 * error. */
static float dot(const float *a, const float *b, uint32_t d)
{
    float part[8] = {0}, sum = 0;
    for (uint32_t c = 0; c < d; c += 8)
        for (uint32_t i = 0; i < 8; i++) part[i] += a[c + i] * b[c + i];
    for (uint32_t i = 0; i < 8; i++) sum += part[i];
    return sum;
}

/* Bounds a page by the sum of bounds of its tokens. */
static void bound_shadow(const struct op_lane_bounds *op, const struct op_bound_side *s,
                         uint32_t page)
{
    const uint32_t d = op->head_dim;
    double reach[PAGE_TOK], slack[PAGE_TOK];
    _Alignas(64) float k[PAGE_TOK * HEAD_DIM_MAX];
    read_shadow(k, s, d, op->by == OP_BOUND_SHADOW8);
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        double norm = 0;
        for (uint32_t c = 0; c < d; c++) {
            const double x = (double)k[(size_t)t * d + c];
            norm += x * x;
        }
        reach[t] = (double)f16_to_f32(s->length[t]);
        slack[t] =
            d * (double)FLT_EPSILON * sqrt(norm); /* rounding of d products and sums in f32 */
    }
    for (uint32_t g = 0; g < op->group; g++) {
        const float *q = op->qa + (size_t)g * d;
        const double q_norm = query_norm(q, d);
        double sum = -INFINITY;
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const double most =
                (double)dot(q, k + (size_t)t * d, d) + q_norm * (reach[t] + slack[t]);
            sum = lanes_log_add(sum, cap_score(op, most));
        }
        op->out[g * op->out_stride + page] = (float)sum;
    }
}

/* Bounds a page by one bound for all of its tokens. */
static void bound_whole(const struct op_lane_bounds *op, const struct op_bound_side *s,
                        uint32_t page)
{
    const uint32_t d = op->head_dim;
    const bool box = op->by == OP_BOUND_BOX;
    for (uint32_t g = 0; g < op->group; g++) {
        const float *q = op->qa + (size_t)g * d;
        double most = box ? 0 : query_norm(q, d) * (double)f16_to_f32(s->length[0]);
        for (uint32_t c = 0; c < d; c++) {
            const float width = box ? f16_to_f32(s->b[c]) : 0;
            most +=
                (double)q[c] * (double)f16_to_f32(s->a[c]) + (double)fmaxf(q[c], 0) * (double)width;
        }
        op->out[g * op->out_stride + page] = (float)(log(PAGE_TOK) + cap_score(op, most));
    }
}

struct call {
    const struct op_lane_bounds *op;
    uint32_t n_piece; /* of the longest operation */
};

static void bound_piece(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_lane_bounds *op = c->op + i / c->n_piece;
    const uint32_t begin = i % c->n_piece * PIECE;
    (void)worker_i;
    for (uint32_t p = begin; p < op->n_page && p < begin + PIECE; p++) {
        const struct op_bound_side s =
            op_bound_side(op->side + op->page[p] * op->stride, op->by, op->head_dim);
        if (op->by == OP_BOUND_BOX || op->by == OP_BOUND_SPHERE)
            bound_whole(op, &s, p);
        else
            bound_shadow(op, &s, p);
    }
}

void lanes_bounds(struct workers *pool, const struct ops *ops, const struct op_lane_bounds *op,
                  uint32_t n)
{
    struct call c = {.op = op, .n_piece = 1};
    (void)ops;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t n_piece = (op[i].n_page + PIECE - 1) / PIECE;
        assert(op[i].head_dim <= HEAD_DIM_MAX && op[i].head_dim % 8 == 0);
        if (n_piece > c.n_piece) c.n_piece = n_piece;
        for (size_t k = 0; k < (size_t)op[i].group * op[i].head_dim; k++)
            op[i].qa[k] = op[i].q[k] * op[i].scale;
    }
    workers_for(pool, n * c.n_piece, bound_piece, &c);
}
