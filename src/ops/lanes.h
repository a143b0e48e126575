/* lanes.h: the slots that select what decode rows read, for all lanes of a layer at once.
 *
 * A lane is one KV head of one decode row. A method's selection is a sequence of these slots, each
 * called once for a list of lanes, so a backend needs one launch per slot. Contract, in addition to
 * that of ops.h:
 *  - Descriptors are host memory and are read before a call returns; what they point to is memory
 *    of the backend. A call may return before its work is done; later calls are queued after it.
 *  - Results for a later slot or the caller are in memory (struct op_lane_result), never in the
 *    return value: a selection is put together without waiting for numbers. Slots accept whatever
 *    scores that are not finite have left behind.
 *  - Operations of one list write to separate memory.
 *  - `pool` NULL: the caller is one worker of many and does all the work. Work is cut into fixed
 *    pieces of the context, so results have the same bits either way.
 *  - `ops` is the table that contains the slot. */
#ifndef SAC_OPS_LANES_H
#define SAC_OPS_LANES_H

#include "ops/observe.h"
#include "ops/ops.h"
#include "ops/page_lines.h"
#include "ops/recall.h"

/* The result of a lane's selection. Zero before its first slot; slots add to it. */
struct op_lane_result {
    uint32_t n_bad;    /* > 0: a score is NaN or infinite */
    uint32_t n_over;   /* > 0: more would be read than the method reads sparsely */
    uint32_t n_chosen; /* tokens marked or listed by score */
    uint32_t n_tok;    /* tokens listed */
    bool attended;     /* the attention output of the marked pages is in the values of the visits */
    uint32_t n_visit;  /* pages visited for that */
    uint32_t n_beside; /* pages whose keys were read with these unnecessarily */
    uint32_t n_value;  /* pages whose values were read */
    uint32_t n_line;   /* cache lines read for the selection and because of it */
    uint32_t n_line_scored;       /* the same, of the reads that count as the selection's */
    uint32_t n_bypass;            /* query heads that were bypassed: they read little on purpose */
    float mass_proved, rest_norm; /* of proofs: as in struct method_pick */
};

/* Upper bound of a page's mass, from side data about its keys: out[g * out_stride + page] is its
 * natural log. Sound: lengths are rounded outwards where they are computed, and products in f32 get
 * an allowance for their rounding. */
enum op_bound {
    OP_BOUND_SHADOW8, /* keys rounded to 8 bits per channel, and the norm of the rounding error */
    OP_BOUND_SHADOW4,
    OP_BOUND_BOX,
    OP_BOUND_SPHERE
};

/* Side data of a page, all f16 except the codes. */
struct op_bound_side {
    uint16_t *value;  /* largest norm of a value */
    uint16_t *a, *b;  /* [d] box: lowest value and width; sphere: middle, none; shadow: lowest value
                         and step */
    uint16_t *length; /* shadow: [PAGE_TOK] norms of the rounding errors; sphere: the radius */
    uint8_t *code;    /* [PAGE_TOK][d], or 4 bits: channel c in the low half of byte c, c + d / 2 in
                         the high one */
};
size_t op_bound_bytes(enum op_bound by, uint32_t d);
struct op_bound_side op_bound_side(const uint8_t *side, enum op_bound by, uint32_t d);

struct op_lane_bounds {
    enum op_bound by;
    const uint8_t *side; /* of page id at side + id * stride */
    size_t stride;
    const page_id *page; /* [n_page] */
    uint32_t n_page, head_dim, group;
    const float *q;
    float *qa; /* scratch: [group, head_dim] */
    float scale, softcap;
    float *out;
    size_t out_stride;
};

/* Scores of pages by two f16 vectors each, with queries as rows have them. The score of box b of
 * page i is out[g * out_stride + b * box_out + i]. */
struct op_lane_boxes {
    struct op_score_pages at;        /* of the first box; qa, qb: scratch that this slot fills */
    uint32_t n_box;                  /* boxes of a page */
    size_t box_at, box_out;          /* distance between two boxes */
    const float *q;                  /* [group, head_dim] */
    const struct segment_view *turn; /* rotation of the queries for these pages; NULL: none */
    struct segment_rope rope;
    float scale;
    /* qa = scale q; qb = |scale q| of means, else unit * max(scale q, 0) */
    bool mean;
    float unit;
};

/* Exact logits of all tokens of pages: out[g * out_stride + token]. */
struct op_lane_logits {
    struct op_keys keys; /* `out` is ignored */
    uint32_t group;
    const float *q;                     /* [group, head_dim] */
    const struct segment_view *segment; /* [n_segment] of these pages, for which keys are rotated */
    uint32_t n_segment;
    struct segment_rope rope;
    float scale, softcap;
    float *out;
    size_t out_stride;
};

/* Softmax shares of all tokens by the first bit planes of their keys. */
#define OP_LANE_PIECES(n_page) ((n_page) / 8 + 2)
struct op_lane_shares {
    struct op_share_planes at;
    const struct segment_view *segment; /* [n_segment] of these pages, for which queries are
                                           rotated */
    uint32_t n_segment;
    struct segment_rope rope;
    float *turned, *lse; /* scratch: [group, head_dim], [group] */
    float *sum;          /* scratch: [OP_LANE_PIECES(n_page)][group] */
    struct op_lane_result *result;
    /* On the host the shares are not computed here but by the draw that follows, piece by piece,
     * and only for the pages from which it draws. */
    bool later;
};

struct op_lane_vote {
    struct op_vote at;
    struct op_lane_result *result;
};

/* out[i] = sum of in[i * step + j * part_step] over parts j, in their order. Sums of pages that are
 * requested directly after the shares of their tokens may be computed without these, where the
 * device has them less rounded; then those shares are not stored. */
struct op_lane_fold {
    const float *in;
    uint32_t n, n_part;
    size_t step, part_step;
    float *out;
};

/* Marks tokens [0, begin) and [end, n_page * PAGE_TOK): those that are always read. */
struct op_lane_ends {
    uint32_t *mask;
    uint32_t n_page, begin, end;
};

/* Marks the best items among tokens [begin, end): higher values rank first, then lower indices. An
 * item is 1 token, or PAGE_TOK tokens, or half a page: then item i is half i / n_page of page i %
 * n_page. */
struct op_lane_take {
    float *value; /* [items] of all pages; items outside are overwritten */
    uint32_t n_page, item_tok, begin, end;
    uint32_t target; /* items, at most */
    uint32_t *spare; /* [items] scratch */
    uint32_t *mask;  /* [n_page] */
    struct op_lane_result *result;
};

/* Lists the result of a draw. n_over is set when this, with n_more tokens that are read in
 * addition, exceeds `most`. */
#define OP_DRAW_ITEMS     4096u /* items of a piece: the tokens of a piece of shares */
#define OP_DRAW_PIECES(n) ((n) / OP_DRAW_ITEMS + 1)
struct op_draw_state {
    uint32_t n_left; /* pieces of a round that are not finished; atomic */
    float cut;
};
struct op_lane_draw {
    struct op_draw at;
    uint32_t n_more;
    double most;
    const struct op_lane_shares *shares; /* on the host, deferred: pieces from token PAGE_TOK on
                                            belong to the draw */
    struct op_draw_piece *piece;         /* scratch: [OP_DRAW_PIECES(at.n)] */
    struct op_draw_state *state;
    struct op_lane_result *result;
};

/* State of the visits of a lane, in memory of the backend. Initially zero. */
#define OP_GROUP_MAX 64u
struct op_visited {
    /* Sums of exp(logit - most) of pages on the host; on a device their logs, and that of the own
     * page in `seen`: */
    double seen[OP_GROUP_MAX];  /* of all visited pages */
    double guess[OP_GROUP_MAX]; /* estimated mass of a page that was not visited */
    double step[OP_GROUP_MAX];  /* mass of the pages of the current step */
    double sum[OP_GROUP_MAX];   /* like `seen`, of the weights with which values are added */
    double own[OP_GROUP_MAX], own_log[OP_GROUP_MAX]; /* of the own page, and its log */
    float most[OP_GROUP_MAX];                        /* the largest logit of pages */
    /* Of a team, in its first lane: */
    double vote;        /* sum of the votes of all pages */
    double promise;     /* sum of the votes of the ordered pages */
    uint32_t n_order;   /* number of ordered pages */
    uint32_t n_enough;  /* pages that suffice if votes are masses; 0: not known yet */
    uint32_t at, look;  /* number of visited pages, and the number at which to check next */
    uint32_t plan;      /* end of the next round; on a device, of the first one */
    uint32_t from, end; /* the current round */
    uint32_t n_last;    /* pages of the previous step */
    uint32_t n_left;    /* unfinished pieces of the round (on a device: begun ones); atomic */
    bool begun, done;
    /* Of each lane of the host: */
    uint32_t n_value;      /* pages whose values have been added */
    uint32_t n_value_left; /* unfinished blocks of this call; atomic */
    /* On a device: number of visited pages after which a lane met a value that is not finite;
     * blocks that are done. */
    uint32_t bad_from, tally;
};

/* Assumption about the mass of the pages not visited. */
enum op_rest {
    OP_REST_LEAST, /* each has the mass of the visited page with the least */
    OP_REST_LAST,  /* each has the mean mass of the pages of the last step */
    OP_REST_VOTE,  /* together they have the mass that their votes predict relative to the votes of
                      the visited pages */
};

/* Visits pages in descending order of votes until enough of the attention is covered: the share A /
 * (A + R) exceeds `mass`, A being the mass seen and R the assumed mass of the rest. The attention
 * output of these pages is kept: a lane's value and value_log are attention over its marked pages.
 *
 * Keys are read in rounds, each by all workers together, and evaluated in order afterwards, so the
 * visited pages are the same as if they had been read one after another. Keys after the last page
 * were read unnecessarily: n_beside. Values are read once it is known whose, block by block of the
 * pages in order.
 *
 * Lanes of a team visit the same pages, by the sum of their votes, and stop together. They are
 * adjacent in the list; n_member says how many from this one on. */
#define OP_VISIT_ROUND 256u /* pages of a round, at most */
#define OP_VISIT_BLOCK 8u   /* pages of a block of values */
struct op_visit_proof {
    const float *bound; /* [group, n_page] from op_lane_bounds */
    size_t bound_stride;
    double *left; /* scratch: [group][n_page + 1] */
    enum op_bound by;
    const uint8_t *side;
    size_t side_stride;
    bool reports; /* the estimate decides; the proof is only reported */
};

struct op_lane_visit {
    const struct page_geom *geom;
    struct page_frames frames;
    uint32_t layer, kv_head;            /* for offloading */
    const page_id *page;                /* [n_page] */
    const struct segment_view *segment; /* [n_segment] of these pages, for which keys are rotated */
    uint32_t n_segment;
    struct segment_rope rope;
    const uint8_t *own; /* the row's own page in tail form, [n_own] tokens: counted as seen first */
    uint32_t n_own, n_page, group;
    const float *q; /* [group, head_dim] */
    float scale, softcap;
    /* Pages before `begin` and from `end` on are visited first. Their mass counts, but not as a
     * step's: a page of little mass among them says nothing about the remaining ones. */
    uint32_t begin, end;
    float *vote;             /* [n_page]; ordered pages are overwritten */
    uint32_t *order, *spare; /* scratch: [n_page] each */
    float *told; /* scratch, [n_page]: share of all votes that the pages up to each place hold */
    /* Scratch of the host. For the page at each place of the order: the weights of its tokens
     * relative to its largest logit, that logit, the sum of the weights, and for proofs the log of
     * its mass, by place in a round. For each block: values under these weights, and the reference
     * of the weights. */
    float *weight;               /* [n_page, group, PAGE_TOK] */
    float *page_most, *page_sum; /* [n_page, group] */
    double *page_log;            /* [OP_VISIT_ROUND, group] */
    float *block;                /* [n_page / OP_VISIT_BLOCK + 1, group, head_dim + 1] */
    float *sum;                  /* scratch of a device: [n_page + 1, group] */
    float *value, *value_log;    /* [group, head_dim], [group] */
    uint32_t *mask;              /* [n_page] */
    struct op_lane_result *result;
    struct op_visited *state;
    /* If set, coverage is proved by bounds of the remaining pages, not estimated, and logits are
     * summed in f64. */
    const struct op_visit_proof *proof;
    uint32_t n_member; /* lanes of the team from this one on; 0: belongs to the team before */
    /* Of the team: */
    double mass;
    uint32_t step;  /* pages between two checks */
    uint32_t ahead; /* pages are ordered this far beyond the next check */
    enum op_rest rest;
    bool by_mean;   /* coverage is the mean over the query heads, otherwise the minimum */
    uint32_t until; /* pages are visited up to this number in this call */
    /* On the host: pages visited by the previous row, 0: not known; set to those of this row. Only
     * the length of rounds depends on it. NULL: not kept. */
    uint32_t *last;
};

/* ---- Slots of backends other than the host ----
 *
 * There nobody looks at masks and results before the step is over. The device clears them, and
 * turns them into the lists that attention reads. */

/* Before any other slot: clears the marks and the result. */
struct op_lane_begin {
    uint32_t *mask; /* [n_page] */
    uint32_t n_page;
    struct op_lane_result *result;
    struct attn_count *count; /* of the list that will be made from it; NULL: none */
};

/* After all others: lists whole pages, and single tokens after those that a weighting method has
 * listed. */
struct op_lane_list {
    const uint32_t *mask; /* [n_page] */
    uint32_t n_page;
    bool dense;  /* reads everything, whatever is marked */
    bool weighs; /* tok already holds result->n_tok tokens */
    const struct op_lane_result *result;
    const struct page_lines *lines; /* the same for all lanes */
    uint32_t *page, *tok;           /* [n_page], [n_page * PAGE_TOK] or NULL: pages only */
    struct attn_count *count;
};

/* What methods store about the keys of a page, as f16 [head_dim] each: box.h and plane.h. */
enum op_note_kind {
    OP_NOTE_BOX,    /* minimum and extent */
    OP_NOTE_HALVES, /* minimum and extent of each half of a page */
    OP_NOTE_MEAN,   /* centre of the box, and mean distance from it */
    OP_NOTE_PLANE,  /* minimum, step, and the first two bits of every code */
};
struct op_note {
    enum op_note_kind kind;
    const struct page_geom *geom;
    struct page_frames frames; /* `of` is ignored */
    const uint32_t *frame;     /* [n_page] of pages that are sealed */
    uint32_t n_page;
    uint8_t *side; /* of frame i at side + i * stride */
    size_t stride;
};

/* Room for one descriptor of any slot. */
union op_lane {
    struct op_lane_boxes boxes;
    struct op_lane_logits logits;
    struct op_lane_shares shares;
    struct op_lane_vote vote;
    struct op_lane_fold fold;
    struct op_lane_ends ends;
    struct op_lane_take take;
    struct op_lane_draw draw;
    struct op_lane_visit visit;
    struct op_lane_bounds bounds;
    struct op_lane_begin begin;
    struct op_lane_list list;
    struct op_lane_observe observe;
    struct op_lane_keep keep;
    struct op_lane_lines lines;
    struct op_past past;
    struct op_lane_recall recall;
    struct op_lane_settle settle;
    struct op_lane_rest rest;
};

#endif
