/* recall.h: the slots of a method that remembers what earlier steps attended to (LFPS), for
 * backends other than the host. The contract is that of lanes.h. There is no host slot, because on
 * the host the method's own code gives its tables to the workers; test_cuda_host checks that both
 * make the same selections.
 *
 * A lane's memory is tables: one pair per query head, or one pair for all. `ver` has an entry per
 * token, `sla` one per distance from the row; both are stored divided by `unit`, so a step changes
 * only the entries that it has read. */
#ifndef SAC_OPS_RECALL_H
#define SAC_OPS_RECALL_H

#include "ops/observe.h"
#include "ops/page_lines.h"

#define OP_RECALL_LEAST  0x1.8p-5f /* a table with a smaller unit is renormalized */
#define OP_RECALL_TABLES 64u       /* maximum tables, and query heads, of a lane */

struct op_moments { /* sums of the first four powers of a table's entries */
    double s[4];
};

struct op_pair { /* of tables: of a head, or of all heads that share keys */
    struct op_moments ver, sla;
    float unit; /* of the stored entries; NaN: they are not finite */
};

struct op_memory {
    struct op_pair *pair; /* [n_table] */
    double *key_sum;      /* [head_dim] sum over the tokens after the sinks */
    double *value_sum;    /* [head_dim] */
    float *spread;        /* [group] variance of the scores over |q|^2 */
    /* By position, and by distance: entry x of a row of `sla` is that of the distance n_tok - 1 -
     * x. Entries after the query's own token are 0. */
    float *ver, *sla; /* [n_table, n_tok], [n_table, n_tok + PAGE_TOK] */
    size_t n_tok;     /* tokens of a context, rounded up to pages */
    uint32_t n_table;
};

/* What a step has computed about a table, and about a lane, for its later launches. */
struct op_recall_table {
    float hot[2], mean[2]; /* thresholds of ver and sla */
    bool flat;             /* all entries of each are equal: nothing can be selected by them */
    bool widened;          /* the candidates held too little mass: now all tokens are candidates */
    uint32_t n_voter;      /* heads that contribute; 0: the table is not updated */
    uint32_t n_tok;        /* candidates */
};

struct op_recall_made {
    float rest[OP_RECALL_TABLES]; /* for each head: estimated log mass of the rest */
    bool bypass[OP_RECALL_TABLES];
    struct op_recall_table table[OP_RECALL_TABLES];
};

struct op_recall_room {
    struct op_recall_made *made;
    uint32_t *cand; /* [n_table, n_word] */
    uint32_t *tok;  /* [n_table, stride] */
    float *score;   /* [group, stride] */
    float *weight;  /* [n_table, stride] */
    size_t stride;  /* tokens of a context, the own page whole */
    uint32_t n_word;
};

/* A step: hot entries and their neighbours -1, 1, 2, if they are above the mean, are candidates,
 * and so are the most recent tokens. They are scored, the best of each table are marked, and what
 * the contributing heads attended to goes back into the table. A head whose mass lies on the sinks
 * does not contribute. */
struct op_lane_recall {
    struct op_memory of;
    struct op_seen keys;
    const struct page_lines *lines; /* the same for all lanes */
    const float *q;                 /* [group, head_dim] */
    uint32_t pos, group;
    float scale, softcap;
    uint32_t sink;   /* number of first tokens that are in no table */
    uint32_t local;  /* tokens from it on are always candidates */
    uint32_t from;   /* the sums include the tokens before it; the others are added now */
    uint32_t budget; /* maximum tokens that a table selects */
    float bypass;    /* attention mass of the sinks above which a head does not contribute */
    double a, decay;
    bool all;   /* everything is a candidate */
    bool guard; /* everything is a candidate if the candidates hold less than the estimate of the
                   rest */
    struct op_recall_room room;
    uint32_t *mask;    /* [pos / PAGE_TOK] */
    float *rest_log;   /* [group] -INFINITY unless all heads are bypassed; NULL: not reported */
    float *rest_value; /* [group, head_dim] */
    struct op_lane_result *result; /* n_chosen: bits that are new */
};

/* After op_lane_observe has put the shares of a prompt's last rows into the tables: sums of keys
 * and values over the sealed pages, the spread of one row's scores, and renormalized tables. */
#define OP_SETTLE_PAGES 16u /* pages of a piece of the context */
struct op_lane_settle {
    struct op_memory to;
    struct op_seen keys;
    const float *q; /* [group, head_dim] of row `row` */
    uint32_t row;   /* sees the tokens up to its own */
    uint32_t pos, group, sink;
    float scale, softcap;
    float unit;  /* unit of the tables' entries */
    double *sum; /* scratch: [op_settle_room] */
    const struct op_lane_result
        *made; /* result of the observation; if it is not finite, no table is usable */
};

static inline size_t op_settle_room(uint32_t n_page, uint32_t head_dim, uint32_t group)
{
    return (size_t)(n_page / OP_SETTLE_PAGES + 1) * 2 * (head_dim + group);
}

/* Adds the estimate of the tokens that a row does not read to the output of its attention. */
struct op_lane_rest {
    float *out;         /* [group, head_dim] */
    const float *lse;   /* [group] logs of attention's softmax sums */
    const float *log;   /* [group] log weight of the estimate; -INFINITY: none */
    const float *value; /* [group, head_dim] */
    uint32_t group, head_dim;
    const struct op_lane_result *result; /* if everything has been read, nothing is added */
};

#endif
