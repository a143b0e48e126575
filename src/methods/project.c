/* project.c: see the header. The axes are eigenvectors of the sum of x x^T, computed by Jacobi
 * rotations in double: slow but reliable, and needed once per head and sequence. */
#include "methods/project.h"

#include "base/mem.h"
#include "methods/meter.h"
#include "methods/pick.h"

#include <string.h>

#define SWEEPS 12 /* of Jacobi: convergence is quadratic, 6 to 8 sweeps are usual */

uint32_t project_rank(double share, uint32_t width)
{
    return max_u32((uint32_t)(share * width + 1e-9), 1); /* 0.29 of 100 must be 29 */
}

size_t project_make(struct project *p, const struct method_shape *s, void *state)
{
    struct arena a = {.base = state, .capacity = SIZE_MAX};
    const size_t d = s->geom->head_dim, n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    p->state = arena_take(&a, 1, sizeof *p->state);
    p->axis = arena_take(&a, d * d, sizeof *p->axis);
    p->coord = arena_take(&a, n_page * PAGE_TOK * d, sizeof *p->coord);
    return a.used;
}

size_t project_work_make(struct project_work *w, const struct method_shape *s, size_t n_sample,
                         void *scratch)
{
    const size_t used = select_scratch_make(&w->r, s, true, scratch), d = s->geom->head_dim;
    struct arena a = {.base = scratch ? (uint8_t *)scratch + used : NULL, .capacity = SIZE_MAX};
    w->y = arena_take(&a, PAGE_TOK * d, sizeof *w->y);
    w->sample = arena_take(&a, n_sample, sizeof *w->sample);
    w->square = arena_take(&a, d * d, sizeof *w->square);
    return used + a.used;
}

/* One rotation that zeroes m[i][j]; the rows of `axis` are rotated, too. */
static void rotate(double *m, float *axis, uint32_t d, uint32_t i, uint32_t j)
{
    assert(i < j && j < d);
    const double off = m[i * d + j];
    if (off == 0) return;
    const double theta = (m[j * d + j] - m[i * d + i]) / (2 * off);
    const double t = (theta >= 0 ? 1 : -1) / (fabs(theta) + sqrt(theta * theta + 1));
    const double c = 1 / sqrt(t * t + 1), s = t * c;
    for (uint32_t k = 0; k < d; k++) {
        const double a = m[k * d + i], b = m[k * d + j];
        m[k * d + i] = c * a - s * b;
        m[k * d + j] = s * a + c * b;
    }
    for (uint32_t k = 0; k < d; k++) {
        const double a = m[i * d + k], b = m[j * d + k];
        m[i * d + k] = c * a - s * b;
        m[j * d + k] = s * a + c * b;
    }
    for (uint32_t k = 0; k < d; k++) {
        const double a = (double)axis[i * d + k], b = (double)axis[j * d + k];
        axis[i * d + k] = (float)(c * a - s * b);
        axis[j * d + k] = (float)(s * a + c * b);
    }
}

/* Sorts the axes by eigenvalue, the largest first. */
static void sort_axes(double *m, float *axis, uint32_t d)
{
    for (uint32_t i = 0; i < d; i++) {
        uint32_t best = i;
        for (uint32_t j = i + 1; j < d; j++)
            if (m[j * d + j] > m[best * d + best]) best = j;
        const double strength = m[i * d + i];
        m[i * d + i] = m[best * d + best];
        m[best * d + best] = strength;
        for (uint32_t k = 0; k < d && best != i; k++) {
            const float x = axis[i * d + k];
            axis[i * d + k] = axis[best * d + k];
            axis[best * d + k] = x;
        }
    }
}

bool project_axes(float *axis, const float *x, uint32_t n, uint32_t width, bool about_mean,
                  double *square)
{
    const uint32_t d = width;
    double mean[HEAD_DIM_MAX] = {0}, bad = 0;
    assert(d <= sizeof mean / sizeof mean[0]);
    memset(square, 0, (size_t)d * d * sizeof *square);
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < d; c++) {
            mean[c] += about_mean ? (double)x[(size_t)r * d + c] / n : 0;
            bad += (double)(x[(size_t)r * d + c] - x[(size_t)r * d + c]);
        }
    if (bad != 0) return false;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t i = 0; i < d; i++) {
            const double a = (double)x[(size_t)r * d + i] - mean[i];
            for (uint32_t j = 0; j < d; j++)
                square[i * d + j] += a * ((double)x[(size_t)r * d + j] - mean[j]);
        }
    memset(axis, 0, (size_t)d * d * sizeof *axis);
    for (uint32_t i = 0; i < d; i++) axis[i * d + i] = 1;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double off = 0, all = 0;
        for (uint32_t i = 0; i < d * d; i++) {
            all += square[i] * square[i];
            if (i / d != i % d) off += square[i] * square[i];
        }
        if (off <= 1e-20 * all) break;
        for (uint32_t i = 0; i < d; i++)
            for (uint32_t j = i + 1; j < d; j++) rotate(square, axis, d, i, j);
    }
    sort_axes(square, axis, d);
    return true;
}

/* Transforms x [n, head_dim] to the basis of the axes. */
static void to_axes(float *out, const struct project *p, const struct method_lane *l,
                    const float *x, uint32_t n)
{
    const uint32_t d = l->shape->geom->head_dim;
    l->ops->dots(&(struct op_dots){.a = x,
                                   .b = p->axis,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = n,
                                   .n_b = d,
                                   .width = d,
                                   .out = out,
                                   .out_stride = d});
}

/* Computes the missing coordinates of the tokens before the own page. */
static void add_coordinates(const struct project *p, const struct method_lane *l, float *k,
                            float *y)
{
    const uint32_t d = l->shape->geom->head_dim, n_axis = p->state->n_axis;
    assert(p->state->n_tok % PAGE_TOK == 0 && n_axis <= d);
    for (uint32_t page = p->state->n_tok / PAGE_TOK; page < pick_page_count(l); page++) {
        pick_keys(k, l, page);
        to_axes(y, p, l, k, PAGE_TOK);
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            for (uint32_t c = 0; c < n_axis; c++)
                p->coord[((size_t)page * PAGE_TOK + t) * d + c] = f32_to_f16(y[t * d + c]);
    }
    p->state->n_tok = pick_page_count(l) * PAGE_TOK;
}

/* Scores by n_axis coordinates, for the scaled queries q [group, head_dim] in the basis of the
 * axes. The kernel's widths are multiples of 16, padded with zeros. */
static void score_tokens(const struct project *p, const struct method_lane *l, const float *q,
                         float *y, float *score, size_t stride)
{
    const uint32_t d = l->shape->geom->head_dim, n_axis = p->state->n_axis;
    const uint32_t group = l->shape->group, width = (n_axis + 15) / 16 * 16;
    assert(width <= d && p->state->n_tok == pick_page_count(l) * PAGE_TOK);
    memset(y, 0, PAGE_TOK * (size_t)width * sizeof *y);
    for (uint32_t page = 0; page < pick_page_count(l); page++) {
        float *out = score + (size_t)page * PAGE_TOK;
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            for (uint32_t c = 0; c < n_axis; c++)
                y[t * width + c] = f16_to_f32(p->coord[((size_t)page * PAGE_TOK + t) * d + c]);
        /* A token's row begins a cache line. */
        meter_bytes(l, PAGE_TOK * meter_lines(0, n_axis * sizeof *p->coord));
        l->ops->dots(&(struct op_dots){.a = q,
                                       .b = y,
                                       .a_stride = d,
                                       .b_stride = width,
                                       .n_a = group,
                                       .n_b = PAGE_TOK,
                                       .width = width,
                                       .out = out,
                                       .out_stride = stride});
        for (uint32_t g = 0; g < group && l->softcap > 0; g++)
            for (uint32_t t = 0; t < PAGE_TOK; t++)
                out[g * stride + t] = l->softcap * tanhf(out[g * stride + t] / l->softcap);
    }
}

static bool vote(const struct project *p, const struct method_lane *l, const struct project_work *w)
{
    const struct select_scratch *r = &w->r;
    const uint32_t d = l->shape->geom->head_dim, group = l->shape->group;
    meter_build(l);
    add_coordinates(p, l, r->k, w->y);
    meter_choose(l);
    meter_read(l, p->axis, (size_t)d * d * sizeof *p->axis);
    for (size_t i = 0; i < (size_t)group * d; i++) r->qb[i] = l->q[i] * l->scale;
    to_axes(r->qa, p, l, r->qb, group);
    score_tokens(p, l, r->qa, w->y, r->score, r->stride);
    return select_scratch_vote(r, l, pick_page_count(l) * PAGE_TOK);
}

bool project_ask(struct project *p, struct project_work *w, const struct method_lane *l,
                 size_t n_sample, project_learn_fn learn, struct method_pick *out)
{
    project_make(p, l->shape, l->state);
    project_work_make(w, l->shape, n_sample, l->scratch);
    meter_build(l);
    const bool has_axes = p->state->n_axis > 0 || learn(p, l, w);
    meter_choose(l);
    if (has_axes && vote(p, l, w)) return true;
    if (!has_axes) p->state->n_axis = 0;
    pick_not_finite(out);
    return false;
}

void project_cut(void *state, const struct method_shape *s, uint32_t n_tok)
{
    struct project p;
    project_make(&p, s, state);
    p.state->n_tok = min_u32(p.state->n_tok, n_tok / PAGE_TOK * PAGE_TOK);
}

bool project_sound(const struct method_loaded *l)
{
    const struct project_state *x = l->state;
    return x->n_axis <= l->shape->geom->head_dim && x->n_tok <= l->n_tok &&
           x->n_tok % PAGE_TOK == 0;
}
