/* lanes.h: the slots that choose what decode rows read, for all lanes of a layer at once.
 *
 * A lane is one KV head of one decode row. A method's choice is a row of these slots, each called
 * once for a list of lanes, so a backend needs one launch for it. Contract, beside that of ops.h:
 *  - Descriptors are host memory and are read before a call returns; what they point to is memory
 *    of the backend. A call may return before its work is done, and later calls come behind it.
 *  - What a later slot or the caller needs of a result is in memory (struct op_lane_result), never
 *    in the return value: a choice is put together without waiting for numbers. Slots take what
 *    scores that are not finite have left behind, whatever it is.
 *  - Operations of one list write apart from each other.
 *  - `pool` NULL: the caller is one worker of many and does it all. Work is cut into fixed pieces
 *    of the context, so results are the same bits either way.
 *  - `ops` is the table that holds the slot. */
#ifndef SAC_OPS_LANES_H
#define SAC_OPS_LANES_H

#include "ops/observe.h"
#include "ops/ops.h"
#include "ops/page_lines.h"
#include "ops/recall.h"

/* What came of a lane's choice. Zero before its first slot; slots add to it. */
struct op_lane_result {
    uint32_t n_bad;         /* > 0: a score is NaN or infinite */
    uint32_t n_over;        /* > 0: more is wanted than the method reads in part */
    uint32_t n_chosen;      /* tokens marked or listed by score */
    uint32_t n_tok;         /* tokens listed */
    bool attended;          /* what attention would make of the marked pages is in visits' values */
    uint32_t n_visit;       /* pages that were visited for that, */
    uint32_t n_beside;      /* those whose keys were read like theirs, for nothing, */
    uint32_t n_value;       /* and those whose values were read */
    uint32_t n_line;        /* cache lines that were read to choose and follow from the choice */
    uint32_t n_line_scored; /* the same, of what is told as a choice's reads */
    uint32_t n_bypass;      /* query heads that read little on purpose */
    float mass_proved, rest_norm; /* of proofs: as in struct method_pick */
};

/* What the mass of a page can be at most, by what is known of its keys beside them: out[g *
 * out_stride + page] is ln of it. Sound: lengths are rounded outwards where they are made, and
 * products in f32 get an allowance for their rounding. */
enum op_bound {
    OP_BOUND_SHADOW8, /* keys rounded to 8 bits a channel, and how long what that took is */
    OP_BOUND_SHADOW4,
    OP_BOUND_BOX,
    OP_BOUND_SPHERE
};

/* Side data of a page, all f16 but the codes. */
struct op_bound_side {
    uint16_t *value;  /* length of the longest value */
    uint16_t *a, *b;  /* [d] box: lowest value and width; sphere: middle, none; shadow: lowest value
                         and step */
    uint16_t *length; /* shadow: [PAGE_TOK] of what rounding took; sphere: the radius */
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
    float *qa; /* room: [group, head_dim] */
    float scale, softcap;
    float *out;
    size_t out_stride;
};

/* Scores of pages by two f16 vectors of each, met by queries as rows have them. The score of box b
 * of page i is out[g * out_stride + b * box_out + i]. */
struct op_lane_boxes {
    struct op_score_pages at;        /* of the first box; qa, qb: rooms that this slot fills */
    uint32_t n_box;                  /* of a page: */
    size_t box_at, box_out;          /* what lies between two of them */
    const float *q;                  /* [group, head_dim] */
    const struct segment_view *turn; /* of queries that meet these pages; NULL: none */
    struct segment_rope rope;
    float scale;
    /* qa = scale q; qb = |scale q| of means, else unit * max(scale q, 0) */
    bool mean;
    float unit;
};

/* Exact logits of all tokens of pages: out[g * out_stride + token]. */
struct op_lane_logits {
    struct op_keys keys; /* `out` is not looked at */
    uint32_t group;
    const float *q;                     /* [group, head_dim] */
    const struct segment_view *segment; /* [n_segment] of these pages, whose keys are turned */
    uint32_t n_segment;
    struct segment_rope rope;
    float scale, softcap;
    float *out;
    size_t out_stride;
};

/* Shares of all tokens by the first planes of their keys. */
#define OP_LANE_PIECES(n_page) ((n_page) / 8 + 2)
struct op_lane_shares {
    struct op_share_planes at;
    const struct segment_view *segment; /* [n_segment] of these pages, for which queries turn */
    uint32_t n_segment;
    struct segment_rope rope;
    float *turned, *lse; /* rooms: [group, head_dim], [group] */
    float *sum;          /* room: [OP_LANE_PIECES(n_page)][group] */
    struct op_lane_result *result;
    /* On the host the draw behind it makes the shares, piece by piece, when it opens them: of pages
     * that it draws from, and of no others. */
    bool later;
};

struct op_lane_vote {
    struct op_vote at;
    struct op_lane_result *result;
};

/* out[i] = sum of in[i * step + j * part_step] over parts j, in their order. Sums of pages that are
 * asked for right behind the shares of their tokens may be made without these, where the device has
 * them rounded less: then nobody finds those shares. */
struct op_lane_fold {
    const float *in;
    uint32_t n, n_part;
    size_t step, part_step;
    float *out;
};

/* Marks tokens [0, begin) and [end, n_page * PAGE_TOK): those that are read in any case. */
struct op_lane_ends {
    uint32_t *mask;
    uint32_t n_page, begin, end;
};

/* Marks the best items among tokens [begin, end), the higher value first, then the lower index. An
 * item is 1 token, or PAGE_TOK ones, or one of the halves of a page: then item i is half i / n_page
 * of page i % n_page. */
struct op_lane_take {
    float *value; /* [items] of all pages; loses what lies outside */
    uint32_t n_page, item_tok, begin, end;
    uint32_t target; /* items, at most */
    uint32_t *spare; /* [items] scratch */
    uint32_t *mask;  /* [n_page] */
    struct op_lane_result *result;
};

/* Lists a draw. n_over when, with n_more tokens that are read beside them, there are more than
 * `most`. */
#define OP_DRAW_ITEMS     4096u /* of a piece: the tokens of a piece of shares */
#define OP_DRAW_PIECES(n) ((n) / OP_DRAW_ITEMS + 1)
struct op_draw_state {
    uint32_t n_left; /* pieces of a round that nobody has ended; atomic */
    float cut;
};
struct op_lane_draw {
    struct op_draw at;
    uint32_t n_more;
    double most;
    const struct op_lane_shares *shares; /* of the host, left for later: pieces from token PAGE_TOK
                                            on are the draw's */
    struct op_draw_piece *piece;         /* rooms: [OP_DRAW_PIECES(at.n)] */
    struct op_draw_state *state;
    struct op_lane_result *result;
};

/* What visits of pages have seen: a lane's, in memory of the backend. Zeroed, nothing is. */
#define OP_GROUP_MAX 64u
struct op_visited {
    /* Sums of exp(logit - most) of pages on the host; on a device their logs, and that of the own
     * page in `seen`: */
    double seen[OP_GROUP_MAX];  /* of all that was visited */
    double guess[OP_GROUP_MAX]; /* the mass expected of a page that was not */
    double step[OP_GROUP_MAX];  /* the mass of the step's pages */
    double sum[OP_GROUP_MAX];   /* as `seen`, but of weights that values have */
    double own[OP_GROUP_MAX], own_log[OP_GROUP_MAX]; /* of the own page, and its log */
    float most[OP_GROUP_MAX];                        /* the largest logit of pages */
    /* Of a team, in its first lane: */
    double vote;        /* of all pages */
    double promise;     /* votes of the pages in order */
    uint32_t n_order;   /* pages in order */
    uint32_t n_enough;  /* so many would do if pages held what they promise; 0: not known yet */
    uint32_t at, look;  /* visited; as many as are visited before the next look */
    uint32_t plan;      /* where the next round ends; on a device the first one */
    uint32_t from, end; /* the round that is read */
    uint32_t n_last;    /* pages of the step before it */
    uint32_t n_left;    /* pieces of the round that nobody has ended, of a device begun; atomic */
    bool begun, done;
    /* Of each lane of the host: */
    uint32_t n_value;      /* pages whose values have been added */
    uint32_t n_value_left; /* blocks of this call that nobody has ended; atomic */
    /* Of a device: a lane has met what is not finite with so many pages visited; blocks that have
     * done their part. */
    uint32_t bad_from, tally;
};

/* What the pages that are not visited are taken for. */
enum op_rest {
    OP_REST_LEAST, /* each for the least of those that were, */
    OP_REST_LAST,  /* or for the mean of the last step's; */
    OP_REST_VOTE,  /* all for what their votes are beside the votes of those that were */
};

/* Visits pages, those of the highest votes first, until enough of the attention has been seen: the
 * share A / (A + R) is more than `mass`, A being the mass seen and R what is taken for the rest.
 * What attention would make of these pages is kept: a lane's value and value_log are attention over
 * its marked pages.
 *
 * Keys are read in rounds, all workers reading one together, and looked at in their order
 * afterwards: what is visited is the same as if they were read one after another. Those behind the
 * last one were read for nothing: n_beside. Values are read when it is known whose, block by block
 * of the pages in their order.
 *
 * Lanes of a team visit the same pages, by the sum of their votes, and stop together. They stand
 * behind each other in the list, n_member says how many from this one on. */
#define OP_VISIT_ROUND 256u /* pages of a round, at most */
#define OP_VISIT_BLOCK 8u   /* of a block of values */
struct op_visit_proof {
    const float *bound; /* [group, n_page] as op_lane_bounds has made them */
    size_t bound_stride;
    double *left; /* room: [group][n_page + 1] */
    enum op_bound by;
    const uint8_t *side;
    size_t side_stride;
    bool reports; /* the guess decides, and the proof is told */
};

struct op_lane_visit {
    const struct page_geom *geom;
    struct page_frames frames;
    uint32_t layer, kv_head;            /* for their depot */
    const page_id *page;                /* [n_page] */
    const struct segment_view *segment; /* [n_segment] of these pages, whose keys are turned */
    uint32_t n_segment;
    struct segment_rope rope;
    const uint8_t *own; /* the row's own page in tail form, [n_own] tokens: seen before all */
    uint32_t n_own, n_page, group;
    const float *q; /* [group, head_dim] */
    float scale, softcap;
    /* Pages before `begin` and from `end` on are visited first. They count for what is seen, and
     * are no step: a page of little mass among them says nothing of those that are left. */
    uint32_t begin, end;
    float *vote;             /* [n_page]; loses those that are in order */
    uint32_t *order, *spare; /* rooms: [n_page] each */
    float *told; /* room, [n_page]: the share of all votes that pages up to each place have */
    /* Rooms of the host: of the page at each place of the order what its tokens weigh, relative to
     * its largest logit, that logit, the sum of the weights, and for proofs the log of its mass, by
     * place in a round; of each block values under these weights, and what they are relative to. */
    float *weight;               /* [n_page, group, PAGE_TOK] */
    float *page_most, *page_sum; /* [n_page, group] */
    double *page_log;            /* [OP_VISIT_ROUND, group] */
    float *block;                /* [n_page / OP_VISIT_BLOCK + 1, group, head_dim + 1] */
    float *sum;                  /* room of a device: [n_page + 1, group] */
    float *value, *value_log;    /* [group, head_dim], [group] */
    uint32_t *mask;              /* [n_page] */
    struct op_lane_result *result;
    struct op_visited *state;
    /* A share is proved, the pages that are left being bounded, and not guessed; logits are summed
     * in f64. NULL: no. */
    const struct op_visit_proof *proof;
    uint32_t n_member; /* 0: of the team before */
    /* Of the team: */
    double mass;
    uint32_t step;  /* pages between two looks */
    uint32_t ahead; /* the order is known for so many pages behind the next look */
    enum op_rest rest;
    bool by_mean;   /* the mean of the query heads' shares counts, else the least */
    uint32_t until; /* no more pages are visited in this call: with what is in memory of them */
    /* Of the host: pages that the row before has visited, 0: not known; becomes those of this one.
     * How long rounds are follows from it, and nothing else. NULL: nobody has kept it. */
    uint32_t *last;
};

/* ---- Of backends that are not the host ----
 * There nobody looks at masks and results before the step is over. So the device clears them, and
 * makes of them the lists that attention reads. */

/* Before any other slot: nothing is marked, and nothing has come of it. */
struct op_lane_begin {
    uint32_t *mask; /* [n_page] */
    uint32_t n_page;
    struct op_lane_result *result;
    struct attn_count *count; /* of the list that will be made of it; NULL: none */
};

/* Behind all others: whole pages, and single tokens behind those that a method which weighs has
 * listed. */
struct op_lane_list {
    const uint32_t *mask; /* [n_page] */
    uint32_t n_page;
    bool dense;  /* whatever is marked */
    bool weighs; /* tok holds result->n_tok already */
    const struct op_lane_result *result;
    const struct page_lines *lines; /* the same for all lanes */
    uint32_t *page, *tok;           /* [n_page], [n_page * PAGE_TOK] or NULL: pages alone */
    struct attn_count *count;
};

/* What methods note of the keys of a page, as f16 [head_dim] each: box.h and plane.h. */
enum op_note_kind {
    OP_NOTE_BOX,    /* minimum and extent */
    OP_NOTE_HALVES, /* the same of each half of a page */
    OP_NOTE_MEAN,   /* middle, and mean distance from it */
    OP_NOTE_PLANE,  /* minimum, step, and the first two bits of every code */
};
struct op_note {
    enum op_note_kind kind;
    const struct page_geom *geom;
    struct page_frames frames; /* `of` is not looked at */
    const uint32_t *frame;     /* [n_page] of pages that are sealed */
    uint32_t n_page;
    uint8_t *side; /* frame i's at side + i * stride */
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
