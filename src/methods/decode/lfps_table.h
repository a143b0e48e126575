/* lfps_table.h: the score tables of LFPS (private to lfps.h): the state of a lane, the scratch of a
 * step, and filling the tables from a prompt (Eq. 4). The tables of a lane are independent of each
 * other, so any worker can process any of them. */
#ifndef SAC_METHODS_DECODE_LFPS_TABLE_H
#define SAC_METHODS_DECODE_LFPS_TABLE_H

#include "methods/observe.h"
#include "methods/pick.h"

#define LFPS_PIECES 16u            /* parts of a context that workers score, for Eq. 4 */
#define LFPS_KEPT   (2 * PAGE_TOK) /* keys that are converted to f32 before they are scored */

/* The parameters that concern the tables. */
struct lfps_rule {
    uint32_t n_table; /* pairs of tables of a lane: one for each query head, or one */
    uint32_t sink;
    uint32_t past; /* s of Eq. 4 */
    double decay;  /* r */
};

struct lfps_state {
    uint32_t n_learnt; /* 0: the tables are empty; else the position of the last step, plus 1 */
    uint32_t n_mean;   /* first tokens that key_sum and value_sum include; the sinks never are */
};

struct parts {
    struct lfps_state *state;
    struct op_memory memory;
};

/* Of each query head: the logs of w_sink and w_global (Eq. 5), and whether it is bypassed. */
struct sparsity {
    float sink[METHOD_GROUP_MAX], rest[METHOD_GROUP_MAX];
    bool bypass[METHOD_GROUP_MAX];
};

/* A lane's step: what its tables have in common. */
struct step {
    uint32_t n_left;     /* tables that are not finished; atomic */
    uint32_t n_bad;      /* > 0: something is not finite; atomic */
    uint32_t begin, end; /* prompt rows that fill the tables; none: 0, 0 */
    bool dense;
    struct sparsity sparsity;
};

/* Scratch of a lane. A decode step keeps the scores of candidates in o.score, one row for each
 * head, and the lists of tokens in its rows after these, which only filling the tables uses. */
struct lfps_scratch {
    struct observe o;
    struct step *step;
    uint32_t n_word;              /* of a mask, the query's own page included */
    uint32_t *cand, *hot, *above; /* [n_table, n_word] candidates; tokens above the threshold, and
                                     above the mean, of either table */
    float *weight;                /* [n_table, stride] */
    float *q;                     /* [group, head_dim] scaled queries of a table's heads */
    float *k;                     /* [n_table or LFPS_PIECES, LFPS_KEPT, head_dim] */
    double *sum;                  /* [LFPS_PIECES, 2, head_dim] of keys and values */
};
_Static_assert(OBSERVE_ROWS >= 3, "scores, a list and scratch of each head");

/* One pair of tables of a lane, for the worker that processes it in a step. */
struct lfps_table {
    struct method_lane lane; /* the lane's copy, with a meter of its own */
    struct meter meter;
    struct lfps_rule rule;
    struct parts p;
    struct lfps_scratch w;
    uint32_t table, head0, n_head;
    uint32_t n_tok, n_voter; /* candidates in `tok`; heads that are not bypassed, in `score` */
    uint32_t *cand, *hot, *above, *tok, *spare;
    float *weight, *score, *k;
};

/* Lay out a lane's state and the scratch of its step in `state` and `scratch`, and return their
 * bytes; with NULL they only measure. lfps_table_open lays out both, for one table. */
size_t lfps_table_state(struct parts *p, const struct method_shape *s, uint32_t n_table,
                        void *state);
size_t lfps_table_scratch(struct lfps_scratch *w, const struct method_shape *s, uint32_t n_table,
                          void *scratch);
void lfps_table_open(struct lfps_table *t, const struct method_lane *l,
                     const struct lfps_rule *rule, uint32_t table);
/* Something is not finite. */
static inline void lfps_table_bad(const struct lfps_table *t)
{
    __atomic_store_n(&t->w.step->n_bad, 1, __ATOMIC_RELAXED);
}
/* Adds what was read to the lane's count. */
void lfps_table_count(const struct lfps_table *t, const struct method_lane *l);

/* A table's entries of tokens 0, 1, .. for the query at `pos`. `sla` is stored by distance from the
 * query, the greatest first, so for the next query the same entries begin one place earlier, and
 * the paper's shift from i - 1 to i (Eq. 10) moves nothing. */
static inline float *lfps_table_row(const struct parts *p, uint32_t table, bool sla, uint32_t pos)
{
    const struct op_memory *m = &p->memory;
    assert(table < m->n_table && pos < m->n_tok);
    if (!sla) return m->ver + table * m->n_tok;
    return m->sla + table * (m->n_tok + PAGE_TOK) + m->n_tok - 1 - pos;
}

/* Adds `by` to an entry, and the change of its first four powers to the power sums. */
static inline void lfps_table_change(float *entry, struct op_moments *m, double by)
{
    const double old = (double)*entry;
    *entry = (float)(old + by);
    const double new = (double)*entry;
    double x = 1, y = 1;
    for (int i = 0; i < 4; i++) m->s[i] += (y *= new) - (x *= old);
}

static inline double lfps_table_norm2(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Multiplies the entries of tokens 0 .. pos by `unit`, which becomes 1, and computes the power sums
 * anew, which clears the rounding errors that they have accumulated. */
void lfps_table_plain(const struct lfps_table *t);
/* The prompt rows that fill a lane's tables: the last `past` ones whose queries are kept. */
struct attn_range lfps_table_past(const struct method_lane *l, const struct lfps_rule *rule);
/* Has the lane's tables filled by the next lfps_table_learn. */
void lfps_table_begin(const struct lfps_table *t);
/* Fills the tables of these lanes by Eq. 4, and computes the spread (sigma^2 / |q|^2) and the sums
 * of keys and values before the own page. Sets n_bad of a step if something is not finite. */
void lfps_table_learn(const struct method_batch *b, const struct lfps_rule *rule);
/* Adds the tokens from n_mean to the query's own to the sums of keys and values. */
void lfps_table_means(const struct lfps_table *t);

#endif
