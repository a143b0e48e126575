/* plain_mass.h: what op_mass says, in plain C: for tests, and for a device that has no GPU. */
#ifndef SAC_TESTS_PLAIN_MASS_H
#define SAC_TESTS_PLAIN_MASS_H

#include "base/half.h"
#include "base/mem.h"
#include "ops/mass.h"

#include <math.h>

/* Keys of a page [PAGE_TOK, head_dim], of q8 those of the first plane. */
static inline void plain_keys(float *key, const struct page_geom *g, const uint8_t *page)
{
    const uint32_t d = g->head_dim;
    const uint16_t *min = (const uint16_t *)(const void *)(page + g->k_min);
    const uint16_t *step = (const uint16_t *)(const void *)(page + g->k_step);
    if (g->type_k != SAC_KV_Q8) {
        page_read(key, NULL, g, page, PAGE_SEALED, PAGE_TOK);
        return;
    }
    for (uint32_t i = 0; i < PAGE_TOK * d; i++) {
        const uint32_t t = i / d, c = i % d;
        const uint32_t four = page[g->k_hi2 + t * d / 4 + c % (d / 4)],
                       code = four >> 2 * (c / (d / 4)) & 3u;
        key[i] = f16_to_f32(min[c]) + f16_to_f32(step[c]) * (64.0f * (float)code + 31.5f);
    }
}

/* One head of one row; score [n_page * PAGE_TOK] is scratch. */
static inline void plain_mass_row(const struct op_mass *op, uint32_t row, uint32_t head,
                                  double *score)
{
    const uint32_t d = op->geom->head_dim, n_tok = op->n_page * PAGE_TOK;
    const uint32_t h = head / (op->n_head / op->geom->n_kv_head);
    const float *q = op->q + ((size_t)row * op->n_head + head) * d;
    float key[PAGE_TOK * 512], turned[512];
    double most = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < n_tok; t++) {
        const uint32_t p = t / PAGE_TOK;
        const uint32_t s = segment_of(op->segment, op->n_segment, p, 0);
        if (t % PAGE_TOK == 0)
            plain_keys(key, op->geom,
                       op->frames.base + op->frame[h * op->table_stride + p] * op->geom->bytes);
        for (uint32_t c = 0; c < d; c++) turned[c] = q[c];
        if (s < op->n_segment) segment_turn(turned, q, d, &op->segment[s], op->rope, 1);
        double dot = 0;
        for (uint32_t c = 0; c < d; c++) dot += (double)turned[c] * key[t % PAGE_TOK * d + c];
        dot *= op->scale;
        score[t] = op->softcap > 0 ? op->softcap * tanh(dot / op->softcap) : dot;
        most = score[t] > most ? score[t] : most;
    }
    for (uint32_t t = 0; t < n_tok; t++) sum += exp(score[t] - most);
    for (uint32_t t = 0; t < n_tok; t++)
        op->mass[t] += (float)(exp(score[t] - most) / sum / (op->n_row - row));
}

static inline void plain_mass(const struct op_mass *op)
{
    const size_t n_tok = (size_t)op->n_page * PAGE_TOK;
    double *score = mem_alloc(n_tok * sizeof *score);
    for (size_t t = 0; t < n_tok; t++) op->mass[t] = 0;
    for (uint32_t row = 0; row < op->n_row; row++)
        for (uint32_t head = 0; head < op->n_head; head++) plain_mass_row(op, row, head, score);
    mem_free(score);
}

#endif
