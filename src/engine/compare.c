/* compare.c: the distance between the values of two sequences that hold the same tokens: what
 * computing documents separately has changed. Only values are compared, because the keys of joined
 * documents are rotated at other positions, so their distance would be meaningless. Pages are read
 * and never changed. */
#include "base/mem.h"
#include "engine/engine.h"

#include <math.h>
#include <string.h>

enum { PAGES = 64 }; /* pages that are read at a time */

struct compare {
    const sac_engine *e;
    sac_seq seq, exact;
    float *a, *b; /* [PAGES, PAGE_TOK, head_dim] */
    /* Sums of squares over a layer: of the differences, and of the exact values */
    double apart, all;
};

/* Compares pages [n] of one KV head that both sequences hold. */
static sac_status add_pages(struct compare *c, const page_id *seq, const page_id *exact, uint32_t n,
                            sac_error *err)
{
    const struct pool *p = &c->e->pool;
    page_id ours[PAGES], theirs[PAGES];
    uint32_t n_both = 0;
    for (uint32_t page = 0; page < n; page++) {
        if (seq[page] == PAGE_NONE || exact[page] == PAGE_NONE) continue;
        ours[n_both] = seq[page];
        theirs[n_both++] = exact[page];
    }
    TRY(pool_read(p, ours, n_both, NULL, c->a, err));
    TRY(pool_read(p, theirs, n_both, NULL, c->b, err));
    for (size_t i = 0; i < (size_t)n_both * PAGE_TOK * p->geom.head_dim; i++) {
        const double d = (double)c->a[i] - (double)c->b[i];
        c->apart += d * d;
        c->all += (double)c->b[i] * (double)c->b[i];
    }
    return SAC_OK;
}

static sac_status compare_layer(struct compare *c, uint32_t layer, uint32_t n_page, double *out,
                                sac_error *err)
{
    const struct pool *p = &c->e->pool;
    const page_id *seq = pool_table(p, c->seq, layer), *exact = pool_table(p, c->exact, layer);
    c->apart = c->all = 0;
    for (uint32_t h = 0; h < p->geom.n_kv_head; h++, seq += p->max_page, exact += p->max_page)
        for (uint32_t i = 0; i < n_page; i += PAGES)
            TRY(add_pages(c, seq + i, exact + i, n_page - i < PAGES ? n_page - i : PAGES, err));
    *out = c->all > 0 ? sqrt(c->apart / c->all) : (double)NAN;
    return SAC_OK;
}

sac_status sac_seq_compare(const sac_engine *e, sac_seq id, sac_seq exact, uint32_t n_tok,
                           double *out, sac_error *err)
{
    const struct seq *s = engine_seq(e, id, err), *x = engine_seq(e, exact, err);
    if (!s || !x) return SAC_ERR_NOT_FOUND;
    TRY(tensor_parallel_refuse(e, "comparing of sequences", err));
    if (n_tok % PAGE_TOK || n_tok > s->n_done || n_tok > x->n_done)
        return error_set(err, SAC_ERR_ARG,
                         "sequences %u and %u have %u and %u tokens: the first %u are no whole "
                         "pages of %u of both",
                         id, exact, s->n_done, x->n_done, n_tok, PAGE_TOK);
    if (memcmp(s->tok, x->tok, n_tok * sizeof *s->tok) != 0)
        return error_set(err, SAC_ERR_ARG, "sequences %u and %u hold different tokens", id, exact);
    struct compare c = {.e = e, .seq = id, .exact = exact};
    c.a = mem_alloc((size_t)PAGES * PAGE_TOK * e->pool.geom.head_dim * sizeof *c.a);
    c.b = mem_alloc((size_t)PAGES * PAGE_TOK * e->pool.geom.head_dim * sizeof *c.b);
    sac_status status = SAC_OK;
    if (!c.a || !c.b) status = error_set(err, SAC_ERR_MEMORY, "out of memory to compare sequences");
    for (uint32_t layer = 0; status == SAC_OK && layer < e->pool.geom.n_layer; layer++)
        status = compare_layer(&c, layer, n_tok / PAGE_TOK, &out[layer], err);
    mem_free(c.a);
    mem_free(c.b);
    return status;
}
