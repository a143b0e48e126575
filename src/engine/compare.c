/* compare.c: how far the values of a sequence are from those of another that holds the same tokens:
 * what it cost that documents were computed apart. Values alone: keys of joined documents are
 * rotated at other positions, and their distance would say nothing. Reads pages, changes none. */
#include "base/mem.h"
#include "engine/engine.h"

#include <math.h>
#include <string.h>

struct compare {
    const sac_engine *e;
    sac_seq seq, exact;
    float *a, *b; /* [PAGE_TOK, head_dim] */
};

/* Squares of the distance and of what it is a part of, over a layer's pages that both hold. */
static sac_status add_layer(const struct compare *c, uint32_t layer, uint32_t n_page, double *out,
                            sac_error *err)
{
    const struct pool *p = &c->e->pool;
    const size_t n = (size_t)PAGE_TOK * p->geom.head_dim;
    const page_id *seq = pool_table(p, c->seq, layer), *exact = pool_table(p, c->exact, layer);
    double apart = 0, all = 0;
    for (uint32_t h = 0; h < p->geom.n_kv_head; h++)
        for (uint32_t page = 0; page < n_page; page++) {
            const page_id ia = seq[(size_t)h * p->max_page + page],
                          ib = exact[(size_t)h * p->max_page + page];
            if (ia == PAGE_NONE || ib == PAGE_NONE) continue;
            TRY(pool_read(p, ia, NULL, c->a, err));
            TRY(pool_read(p, ib, NULL, c->b, err));
            for (size_t i = 0; i < n; i++) {
                const double d = (double)c->a[i] - (double)c->b[i];
                apart += d * d;
                all += (double)c->b[i] * (double)c->b[i];
            }
        }
    *out = all > 0 ? sqrt(apart / all) : (double)NAN;
    return SAC_OK;
}

sac_status sac_seq_compare(const sac_engine *e, sac_seq id, sac_seq exact, uint32_t n_tok,
                           double *out, sac_error *err)
{
    const struct seq *s = engine_seq(e, id, err), *x = engine_seq(e, exact, err);
    if (!s || !x) return SAC_ERR_NOT_FOUND;
    if (n_tok % PAGE_TOK || n_tok > s->n_done || n_tok > x->n_done)
        return error_set(err, SAC_ERR_ARG,
                         "sequences %u and %u have %u and %u tokens: the first %u are no whole "
                         "pages of %u of both",
                         id, exact, s->n_done, x->n_done, n_tok, PAGE_TOK);
    if (memcmp(s->tok, x->tok, n_tok * sizeof *s->tok) != 0)
        return error_set(err, SAC_ERR_ARG, "sequences %u and %u hold different tokens", id, exact);
    struct compare c = {.e = e, .seq = id, .exact = exact};
    c.a = mem_alloc((size_t)PAGE_TOK * e->pool.geom.head_dim * sizeof *c.a);
    c.b = mem_alloc((size_t)PAGE_TOK * e->pool.geom.head_dim * sizeof *c.b);
    sac_status status = SAC_OK;
    if (!c.a || !c.b) status = error_set(err, SAC_ERR_MEMORY, "out of memory to compare sequences");
    for (uint32_t layer = 0; status == SAC_OK && layer < e->pool.geom.n_layer; layer++)
        status = add_layer(&c, layer, n_tok / PAGE_TOK, &out[layer], err);
    mem_free(c.a);
    mem_free(c.b);
    return status;
}
