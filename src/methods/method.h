/* method.h: what an attention method is, and the list of those that are built in.
 *
 * A method is one `const struct method` in a file of its own and one line in methods.def. It is
 * asked what to read and never reads it: for each decode row, layer and KV head (a "lane") `select`
 * marks tokens in a bit mask, and the engine attends to them, to the row's own page and to nothing
 * else.
 *
 * Contract of the hooks of struct method_decode:
 *  - They allocate nothing, keep no state of their own, and write only what the lane hands them, so
 *    lanes of one step run on any thread in any order with the same results (design D7).
 *  - A lane's `state` is one block without pointers, zeroed for a new sequence, copied by a fork.
 *  - For each row of a sequence `see` comes first, then, for decode rows, perhaps `select`: the
 * engine leaves it out where a dense read is asked for. A method must live with that.
 *  - Side data of a page is written once, when the page is sealed, and shared by all its sequences.
 */
#ifndef SAC_METHODS_METHOD_H
#define SAC_METHODS_METHOD_H

#include "ops/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define METHOD_PARAM_MAX 12u
#define METHOD_GROUP_MAX 64u /* query heads of a KV head */

_Static_assert(PAGE_TOK == 32, "a mask word holds the tokens of one page");

/* What a method may know of model and engine. */
struct method_shape {
    const struct page_geom *geom;
    uint32_t group; /* query heads of a KV head */
    uint32_t n_ctx;
};

/* One layer and KV head for one run of rows; a decode run has one. */
struct method_lane {
    const struct method_shape *shape;
    const double *param; /* in the order of the method's table; choices are indices, shares of the
                            context are negative */
    const struct ops *ops;
    uint32_t layer, kv_head;
    uint32_t pos, n_row; /* position of the first row; rows */
    bool is_prompt;
    const float *q; /* row r: [group, head_dim] at q + r * q_stride, after RoPE */
    size_t q_stride;
    float scale, softcap; /* of scores, as in struct op_attn */
    /* Token i is in page i / PAGE_TOK: sealed ones by id (those that this run fills included), then
     * the unsealed one in tail form. A decode row sees tokens 0 .. pos. */
    const uint8_t *pool;
    const page_id *page; /* [n_sealed] */
    uint32_t n_sealed;
    const uint8_t *own;  /* the page of the last row in tail form */
    const uint8_t *side; /* page id's side data at side + id * side_stride */
    size_t side_stride;
    void *state;   /* [state_bytes] */
    void *scratch; /* [scratch_bytes], of this thread, holds anything */
};

/* What to read besides the own page. */
struct method_pick {
    uint32_t *mask;  /* [pos / PAGE_TOK] bit t of word p: token p * PAGE_TOK + t; zeroed before */
    bool dense;      /* everything; the mask does not count */
    bool not_finite; /* set with `dense` when NaN or infinity forced it */
    uint64_t side_bytes; /* that the choice itself has read */
};

struct method_decode {
    size_t (*state_bytes)(const struct method_shape *s, const double *param);   /* NULL: 0 */
    size_t (*side_bytes)(const struct method_shape *s, const double *param);    /* NULL: 0 */
    size_t (*scratch_bytes)(const struct method_shape *s, const double *param); /* NULL: 0 */
    /* Side data of a page from its keys [PAGE_TOK, head_dim] as attention will read them. */
    void (*seal)(uint8_t *side, const struct method_shape *s, const double *param, const float *k);
    void (*see)(const struct method_lane *lane); /* or NULL */
    void (*select)(const struct method_lane *lane, struct method_pick *out);
    /* The sequence is cut to n_tok tokens. NULL: the state is zeroed. */
    void (*cut)(void *state, const struct method_shape *s, const double *param, uint32_t n_tok);
};

struct method {
    const char *kind;              /* "prefill" or "decode" */
    const char *name;              /* unique within its kind */
    const char *summary;           /* one line, no full stop */
    const char *paper;             /* or NULL */
    const char *about;             /* a paragraph */
    const sac_method_param *param; /* [n_param] */
    uint32_t n_param;
    bool token_grain;                   /* marks single tokens, not whole pages */
    const struct method_decode *decode; /* NULL: dense attention */
};

#define METHOD(symbol) extern const struct method symbol;
#include "methods/methods.def"
#undef METHOD

/* NULL behind the last. */
const struct method *method_at(size_t i);
/* NULL: there is no such method. */
const struct method *method_find(const char *kind, const char *name);

#endif
