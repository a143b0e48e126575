/* lfps_turn.h: the memory of LFPS, one pair of tables at a time (private to lfps.h): the state of a
 * lane, the scratch of a step, learning from a prompt. The tables of a lane are independent of each
 * other, so any worker can process any of them. */
#ifndef SAC_METHODS_DECODE_LFPS_TURN_H
#define SAC_METHODS_DECODE_LFPS_TURN_H

#include "methods/observe.h"
#include "methods/pick.h"

#define LFPS_PIECES 16u            /* of a context, while a prompt is learnt from */
#define LFPS_KEPT   (2 * PAGE_TOK) /* keys that are made f32 before they are scored */

/* Of the parameters. */
struct lfps_rule {
    uint32_t n_table; /* pairs of tables of a lane: of each query head, or one */
    uint32_t sink, past;
    double decay;
};

struct lfps_state {
    uint32_t n_learnt; /* 0: nothing is known yet; else the position of the last step, plus 1 */
    uint32_t n_mean;   /* tokens in key_sum, the sinks counted */
};

struct parts {
    struct lfps_state *state;
    struct op_memory memory;
};

/* What heads keep for themselves: log masses of the sinks and of the rest as far as it is
 * guessed. */
struct sparsity {
    float sink[METHOD_GROUP_MAX], rest[METHOD_GROUP_MAX];
    bool bypass[METHOD_GROUP_MAX];
};

/* A lane's step: what its tables have in common. */
struct step {
    uint32_t n_left;     /* tables that nobody has ended; atomic */
    uint32_t n_bad;      /* > 0: something is not finite; atomic */
    uint32_t begin, end; /* past rows that are learnt from; none: 0, 0 */
    bool dense;
    struct sparsity sparsity;
};

/* Scratch of a lane, by tables. Scores of candidates lie in the observation's, rows of the same
 * heads, and lists in the rows behind those, which no step uses. */
struct lfps_room {
    struct observe o;
    struct step *step;
    uint32_t n_word;              /* of a mask that holds the own page too */
    uint32_t *cand, *hot, *above; /* [n_table, n_word] candidates, entries over the threshold of one
                                     of the two tables, over its mean */
    float *weight;                /* [n_table, stride] */
    float *q;                     /* [group, head_dim] of a table's heads that have a say */
    float *k;                     /* [n_table or LFPS_PIECES, LFPS_KEPT, head_dim] */
    double *sum;                  /* [LFPS_PIECES, 2, head_dim] of keys and values */
};
_Static_assert(OBSERVE_ROWS >= 3, "scores, a list and scratch of each head");

/* A pair of tables as the worker has it who does the table's part of a step. */
struct turn {
    struct method_lane lane; /* the lane, but that what is read is counted apart */
    struct meter meter;
    struct lfps_rule rule;
    struct parts p;
    struct lfps_room w;
    uint32_t table, head0, n_head;
    uint32_t n_tok, n_voter; /* candidates in `tok`; heads whose scores of them are in `score` */
    uint32_t *cand, *hot, *above, *tok, *spare;
    float *weight, *score, *k;
};

/* Where a lane's state and the scratch of its step have their parts, in `state` and `scratch`;
 * returns how many bytes. NULL: to measure. lfps_turn_open: both of a lane, for one table. */
size_t lfps_turn_state(struct parts *p, const struct method_shape *s, uint32_t n_table,
                       void *state);
size_t lfps_turn_room(struct lfps_room *w, const struct method_shape *s, uint32_t n_table,
                      void *scratch);
void lfps_turn_open(struct turn *t, const struct method_lane *l, const struct lfps_rule *rule,
                    uint32_t table);
/* Something is not finite. */
static inline void lfps_turn_bad(const struct turn *t)
{
    __atomic_store_n(&t->w.step->n_bad, 1, __ATOMIC_RELAXED);
}
/* Adds what was read to the lane's count. */
void lfps_turn_count(const struct turn *t, const struct method_lane *l);

/* Entries of tokens 0, 1, .. in a table, for the query at `pos`: of `sla` from the right place
 * on. */
static inline float *lfps_turn_row(const struct parts *p, uint32_t table, bool sla, uint32_t pos)
{
    const struct op_memory *m = &p->memory;
    assert(table < m->n_table && pos < m->n_tok);
    if (!sla) return m->ver + table * m->n_tok;
    return m->sla + table * (m->n_tok + PAGE_TOK) + m->n_tok - 1 - pos;
}

/* Adds to an entry. */
static inline void lfps_turn_change(float *entry, struct op_moments *m, double by)
{
    const double old = (double)*entry;
    *entry = (float)(old + by);
    const double new = (double)*entry;
    double x = 1, y = 1;
    for (int i = 0; i < 4; i++) m->s[i] += (y *= new) - (x *= old);
}

static inline double lfps_turn_norm2(const float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* Entries of tokens 0 .. pos in units of 1 again, power sums anew. */
void lfps_turn_plain(const struct turn *t);
/* The rows of a lane's prompt that it learns from. */
struct attn_range lfps_turn_past(const struct method_lane *l, const struct lfps_rule *rule);
/* Before learning: these, in its step. */
void lfps_turn_begin(const struct turn *t);
/* All lanes whose steps say so learn from their prompts: tables, spreads and the means of what lies
 * before the own page. n_bad of a step tells of what is not finite. */
void lfps_turn_learn(const struct method_batch *b, const struct lfps_rule *rule);
/* The means take in the tokens that have come since. */
void lfps_turn_means(const struct turn *t);

#endif
