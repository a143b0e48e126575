/* method.h: what an attention method is, and the list of built-in ones.
 *
 * A method is one `const struct method` in its own file and one line in methods.def. It selects
 * what to read and never reads it: for each decode row, layer and KV head (a "lane") `select` marks
 * tokens in a bit mask, and the engine attends to these tokens and the row's own page, and to
 * nothing else. A prefill method makes a `plan` for a whole chunk of prompt rows (plan.h).
 *
 * Contract of the hooks of struct method_decode:
 *  - They allocate nothing, keep no state of their own, and write only to memory that the lane
 *    provides, so lanes of one step run on any thread in any order with the same results (design
 *    D7).
 *  - A lane's `state` is one block without pointers, zeroed for a new sequence, copied by a fork,
 *    saved to a file and loaded from it.
 *  - For each row of a sequence `see` is called first, then, for decode rows, perhaps `select`: the
 *    engine omits it where a dense read is requested, which a method must tolerate. Within a layer
 *    `see` has returned for all lanes before any `select`, so `select` may read what `see` has left
 *    in the states of the layer's other heads; it must not modify that part of its own.
 *  - The layers of a row come in ascending order, without those that have a window. So `select` may
 *    read what `select` left in states of lower layers for this row, and of higher ones for the
 *    previous row (method_layer_state).
 *  - A method learns from a prompt at the first decode row (the prompt's last token, or the first
 *    of those that the caller wants served so), from the cached keys and from the queries of the
 *    last rows (`past`), which the engine keeps for all sequences. It therefore makes no difference
 *    which method a sequence used while its prompt was computed.
 *  - Side data of a page depends on its keys and values alone. It is written once, when the page is
 *    sealed or loaded, and shared by all its sequences.
 *
 * The same holds for struct method_prefill, with the exceptions given there. */
#ifndef SAC_METHODS_METHOD_H
#define SAC_METHODS_METHOD_H

#include "base/strbuf.h"
#include "kv/tier.h"
#include "methods/param.h"
#include "ops/lanes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define METHOD_GROUP_MAX 64u /* query heads of a KV head */

_Static_assert(PAGE_TOK == 32, "a mask word holds the tokens of one page");

/* What a method is told about model and engine. */
struct method_shape {
    const char *model; /* its name, for messages and tables of heads */
    const struct page_geom *geom;
    uint32_t group; /* query heads of a KV head */
    struct segment_rope rope;
    const double *inv_freq; /* [rope.n_rot / 2] radians per position, of layers without a window */
    uint32_t n_ctx;
    uint32_t n_row_max; /* maximum rows of a prompt chunk */
};

/* Queries of the rows before a run that the engine keeps: of positions begin <= p < end. */
struct method_past {
    const float *q; /* [n_slot][group * head_dim] after RoPE */
    uint32_t n_slot, begin, end;
    uint32_t shift; /* position p is in slot (p + shift) % n_slot */
};

static inline const float *method_past_query(const struct method_past *past, uint32_t pos,
                                             size_t width)
{
    return past->q + (pos + past->shift) % past->n_slot * width;
}

/* What the hooks of a decode row have read (meter.h). CHOOSE: for its own selection. BUILD: for
 * data that serves several rows, such as tables, votes and coordinates. ATTEND: keys and values, by
 * a method that computes attention itself, instead of what attention would have read of the marked
 * tokens. */
enum meter_kind { METER_CHOOSE, METER_BUILD, METER_ATTEND, METER_KINDS };
struct meter {
    _Alignas(64) uint64_t bytes[METER_KINDS]; /* other threads' meters are adjacent to it */
    enum meter_kind kind;                     /* of what is read next */
};

/* Tokens of a sequence of n_tok that are passed through the model once more (struct method_decode's
 * `repeat`): rows from position n_tok on are an instruction followed by the tokens begin .. end -
 * 1. */
struct method_repeated {
    uint32_t n_tok, begin, end;
};

/* One layer and KV head for one run of rows: the rows of a sequence in a batch, one of a decode. */
struct method_lane {
    const struct method_shape *shape;
    const void *param;  /* the method's parameter struct (param.h) */
    const void *family; /* its struct method_decode's */
    const struct ops *ops;
    uint32_t layer, kv_head;
    uint32_t row;        /* of decode rows: the same for all lanes of one row */
    uint32_t pos, n_row; /* position of the first row; rows */
    bool is_prompt;
    const struct method_repeated *repeated; /* NULL: rows of the sequence itself */
    uint32_t sparse_min_ctx; /* decode rows of shorter contexts are dense, the method is not
                                called */
    const float *q;          /* row r: [group, head_dim] at q + r * q_stride, after RoPE */
    size_t q_stride;
    struct method_past past;
    float scale, softcap; /* of scores, as in struct op_attn */
    /* Keys of some pages need a rotated query (ops/segment.h). Those from pick.h are already
     * rotated to meet queries unchanged; pick_query rotates queries for everything else. */
    const struct segment_view *segment; /* [n_segment] of pages before the own one; NULL: none */
    uint32_t n_segment;
    /* Token i is in page i / PAGE_TOK: sealed ones by id (including those that this run fills),
     * then the unsealed one in tail form. A decode row sees tokens 0 .. pos. */
    struct page_frames frames;
    const page_id *page; /* [n_sealed] */
    const page_id *id;   /* [n_sealed] for the host to read, if `page` is a device's memory */
    /* A page's bytes are in its frame while it is held (pick_hold): NULL: always. The start of its
     * q8 form, min, step and first plane, is in its card at any time. */
    struct tier *tier;
    struct page_cards cards;
    uint8_t *lost; /* set, atomically, if a page could not be read: the row will fail */
    uint32_t n_sealed;
    const uint8_t *own;  /* the page of the last row in tail form */
    const uint8_t *side; /* page id's side data at side + id * side_stride */
    size_t side_stride;
    const void *table;              /* of method_prefill.table, or NULL */
    void *state;                    /* [state_bytes]; where a device selects, only its head */
    void *device_state;             /* on the device: struct method_device; or NULL */
    const struct page_lines *lines; /* of the pages, for a device to count what selection reads */
    const float *looked; /* where a device has accumulated attention (struct method_votes): [pos
                            + 1] sums */
    const uint8_t *layer_state; /* head h's state of this layer at layer_state + h * state_stride */
    size_t state_stride;
    void *scratch;       /* [scratch_bytes], of this lane during the call, with any content */
    struct meter *meter; /* a decode row's; NULL: a prompt row's, whose reads are not counted */
};

/* The state of a head of another layer of the same sequence. */
static inline const void *method_layer_state(const struct method_lane *l, uint32_t layer,
                                             uint32_t head)
{
    const size_t n_kv_head = l->shape->geom->n_kv_head;
    return l->layer_state - l->layer * n_kv_head * l->state_stride +
           (layer * n_kv_head + head) * l->state_stride;
}

/* A lane's selection: what its row reads in addition to its own page. */
struct method_pick {
    uint32_t *mask; /* [pos / PAGE_TOK] bit t of word p: token p * PAGE_TOK + t; zeroed before */
    /* For methods that weight tokens, else NULL: single tokens, ascending, and what is added to
     * their scores. Such methods mark only whole pages, and list no token of those. */
    uint32_t *tok; /* [pos / PAGE_TOK * PAGE_TOK] */
    float *logw;   /* the same */
    uint32_t n_tok;
    /* For methods that add to the result of attention, else NULL: one more entry for each query
     * head, the log of its softmax weight [group] (initially -INFINITY: none) and its value [group,
     * head_dim]. It stands for unread tokens, as an estimate, or (attended) for all marked ones, to
     * which the method has attended itself: then attention reads only the own page. */
    float *rest_log, *rest_value;
    bool attended;
    bool dense;        /* read everything; the mask is ignored */
    bool not_finite;   /* set with `dense` when NaN or infinity forced it */
    uint32_t n_chosen; /* tokens selected by score, without those always read: pick.h */
    uint32_t n_bypass; /* query heads that read little on purpose, the rest being estimated */
    float mass_proved; /* share of every head's softmax mass that is certainly read; 0: unknown */
    float rest_norm;   /* with it: no unread value is longer */
};

/* A lane's state as stored in a file. */
struct method_loaded {
    const struct method_shape *shape;
    const void *param;
    const void *state;
    uint32_t n_tok;      /* of the sequence */
    const page_id *page; /* [n_tok / PAGE_TOK] PAGE_NONE: freed; NULL for prefill methods */
};

/* Decode lanes of one layer whose sequences use one method, with the same parameters except mass
 * and budget; each has its own scratch. batch.h has the parts of selections. */
struct method_batch {
    const struct ops *ops;
    struct workers *workers; /* NULL: the caller is one worker of many */
    uint32_t n;
    const struct method_lane *lane; /* [n] */
    struct method_pick *pick;       /* [n] those that are set to dense are left alone */
    struct op_lane_result *result;  /* [n] zeroed; the host does not read them if `away` */
    bool on_device;                 /* masks, lists, scratch and results are in a device's memory */
    uint32_t *target;               /* [n] what each takes: batch.h */
    void *list;                     /* [n] union op_lane: room for descriptors */
};

/* How a prompt is repeated (KVzip): tokens before `first` are not, the others in pieces of at most
 * n_chunk. */
struct method_repeat {
    uint32_t first, n_chunk;
};

/* A selection that a state keeps: of the tokens before n_tok those whose bits are set in word
 * [pages of n_tok]. */
struct method_marks {
    const uint32_t *word;
    uint32_t n_tok;
};

/* For methods that evict tokens by the attention of some rows. The device sums it up; the host,
 * which has the whole state, waits for the sums and decides. The device has only a copy of the
 * marks. */
struct method_votes {
    /* Whether `see` of this decode row needs sums; they are then in the lane's `looked`. */
    bool (*due)(const struct method_lane *l);
    /* Lanes of a row that are all due: puts sums [pos / PAGE_TOK + 1 pages] at the start of each
     * lane's scratch, NaN if a score is not finite. */
    void (*look)(const struct method_batch *b);
    /* `see` has returned for all heads of the layer: selects, if a selection is due, and says
     * whether marks have changed. Both use scratch of the host. */
    bool (*settle)(const struct method_lane *l);
    struct method_marks (*marks)(const struct method_shape *s, const void *param, void *state);
};

/* What a device does instead of `select`. The first bytes of a state, its head, belong to the host,
 * which counts there by positions alone; the rest is written and read by slots on the device, where
 * nothing is zeroed. A saved state has both. For `device_state` of a lane there are as many bytes
 * as in the state, with the head unused; or, with votes, the words of its marks. */
struct method_device {
    size_t (*head_bytes)(const struct method_shape *s, const void *param);    /* NULL: 0 */
    size_t (*scratch_bytes)(const struct method_shape *s, const void *param); /* NULL: 0 */
    const struct method_votes *votes; /* then the head is the whole state; or NULL */
    void (*choose)(const struct method_batch *b);
};

struct method_decode {
    const void *family; /* what distinguishes methods that share hooks, for these; or NULL */
    size_t (*state_bytes)(const struct method_shape *s, const void *param);   /* NULL: 0 */
    size_t (*side_bytes)(const struct method_shape *s, const void *param);    /* NULL: 0 */
    size_t (*scratch_bytes)(const struct method_shape *s, const void *param); /* NULL: 0 */
    uint32_t (*past_rows)(const struct method_shape *s, const void *param);   /* NULL: 0 */
    /* Side data of a page from its keys [PAGE_TOK, head_dim] as attention will read them; then, if
     * there is such a hook, from its values. */
    void (*seal)(uint8_t *side, const struct method_shape *s, const void *param, const float *k);
    void (*seal_value)(uint8_t *side, const struct method_shape *s, const void *param,
                       const float *v);
    /* The same side data, as notes that any backend can make (ops/lanes.h); NULL: seal only. */
    enum op_note_kind (*note)(const struct method_shape *s, const void *param);
    void (*see)(const struct method_lane *lane); /* or NULL */
    /* For a method that has the model repeat what it has read (engine/repeat.h): before a decode
     * row of a sequence of n_tok tokens, if the state of a lane says that it is due, `see` is
     * called for these rows (lane->repeated), which are discarded afterwards. NULL, both: none. */
    struct method_repeat (*repeat)(const void *param);
    bool (*repeat_due)(const struct method_shape *s, const void *param, const void *state,
                       uint32_t n_tok);
    /* One of these three. `choose` selects for all lanes of a batch by slots of ops/lanes.h, and
     * reads no key, score or result itself, nor a state where a device selects, so any backend with
     * these slots can run it. `select` is host code, called for each lane; methods with other needs
     * have it, and perhaps `device` in addition. `select_lanes` is the same for all lanes of a
     * batch, with all workers if there are more workers than lanes; it reports in n_chosen of the
     * lanes' results what it has selected. */
    const struct method_device *device;
    const char *(*refuses)(const void *param); /* on a device: the parameter setting that it
                                                  cannot run; NULL: none */
    void (*choose)(const struct method_batch *b);
    /* Whether a row's lanes are adjacent in a batch, in the order of their KV heads. NULL: no;
     * `choose` may get them one by one. */
    bool (*joins_heads)(const void *param);
    void (*select)(const struct method_lane *lane, struct method_pick *out);
    void (*select_lanes)(const struct method_batch *b);
    /* The sequence is cut to n_tok tokens. NULL: the state is zeroed. */
    void (*cut)(void *state, const struct method_shape *s, const void *param, uint32_t n_tok);
    /* Whether a state from a file is valid: counts, indices and flags must be in range; numbers
     * with which the other hooks only calculate may be anything. Required if there is state. */
    bool (*sound)(const struct method_loaded *l);
};

struct plan;
struct plan_batch;
struct op_sample;
struct op_blocks;
struct op_trace;
struct op_antidiag;
struct method_context;

/* What a prefill method knows in advance about each head of a model: read from a file, or learned
 * from prompts and written as such a file. One per engine, initially zeroed. */
struct method_table {
    size_t (*bytes)(const struct method_shape *s);
    sac_status (*read)(void *table, const struct method_shape *s, const char *text, sac_error *err);
    /* Observes a lane as `plan` would; lanes of different heads learn at the same time. */
    void (*learn)(const struct method_lane *lane, void *table);
    /* SAC_ERR_CONTEXT: nothing has been learned. */
    sac_status (*write)(const void *table, const struct method_shape *s, struct strbuf *out,
                        sac_error *err);
};

/* Prompt rows. Chunks of a prompt end at fixed positions of the sequence or at the end of the
 * prompt, whatever else is in the batch, so a plan may depend on all rows of its chunk. Layers of a
 * chunk come in ascending order. The method is not called for layers that have a window of their
 * own, nor for chunks that end before sparse_min_ctx (in others, tiles that end before it are
 * dense). */
struct method_prefill {
    uint32_t tile_tok;    /* rows that share a list, a multiple of PAGE_TOK; 0: 64 */
    bool by_head;         /* a list for each query head, not one for all heads of a KV head */
    bool needs_past_zero; /* only the first chunk of a sequence, else dense: PLAN_PAST */
    bool any_chunk;       /* plans do not depend on where chunks end, as long as tiles end there,
                             so tiles may be planned separately, on any thread; tests check this */
    bool by_place;        /* plans depend on positions alone: no query, key or score is read, so
                             the host makes them whichever device attends */
    const struct method_table *table; /* or NULL; requires one SAC_PARAM_FILE parameter */
    /* For one sequence and KV head, for all layers together (lane->layer is the current one): data
     * that passes from layer to layer, or from chunk to chunk. */
    size_t (*state_bytes)(const struct method_shape *s, const void *param);   /* NULL: 0 */
    size_t (*side_bytes)(const struct method_shape *s, const void *param);    /* NULL: 0 */
    size_t (*scratch_bytes)(const struct method_shape *s, const void *param); /* NULL: 0 */
    void (*seal)(uint8_t *side, const struct method_shape *s, const void *param, const float *k);
    enum op_note_kind (*note)(const struct method_shape *s, const void *param); /* as for decode */
    size_t (*lane_bytes)(const struct method_shape *s, const void *param);      /* NULL: 0 */
    /* Marks what each tile reads. Queries have been checked to be finite; keys and scores may not
     * be: then plan_dense(out, PLAN_NAN). lane->is_prompt is true. A method has one of these two.
     * `plan` is called lane by lane (or tile by tile, any_chunk), each call by one worker.
     * `plan_lanes` has all lanes of a run and all workers (plan.h), for any number of KV heads:
     * there the lanes' scratch has lane_bytes, and a worker's room scratch_bytes. */
    void (*plan)(const struct method_lane *lane, struct plan *out);
    void (*plan_lanes)(const struct plan_batch *b);
    /* The same on backends other than the host, by a slot of ops/plans.h, or NULL, all: for a run
     * of a prompt of n_tok tokens, writes the method's decisions to `op`, which already says where
     * its rows are. Of the lane only its place and parameters are used. What `blocks` passes from
     * layer to layer is in a device's memory, not in the lane's state. */
    void (*sample)(const struct method_lane *lane, uint32_t n_tok, struct op_sample *op);
    void (*blocks)(const struct method_lane *lane, uint32_t n_tok, struct op_blocks *op);
    void (*trace)(const struct method_lane *lane, uint32_t n_tok, struct op_trace *op);
    uint32_t (*trace_rows)(const struct method_shape *s, const void *param); /* of it, the most */
    bool trace_pools; /* its rule is the pooled one, which has a different scratch size */
    void (*antidiag)(const struct method_lane *lane, uint32_t n_tok, struct op_antidiag *op);
    uint32_t (*antidiag_stride)(const void *param); /* of it */
    const char *(*refuses)(const void *param);      /* the setting without a slot; NULL: none */
    /* The sequence is cut to n_tok tokens. NULL: the state is zeroed. */
    void (*cut)(void *state, const struct method_shape *s, const void *param, uint32_t n_tok);
    /* As for decode methods. */
    bool (*sound)(const struct method_loaded *l);
};

/* The unit of a parameter `budget` (pick.h). */
enum method_budget {
    METHOD_BUDGET_CHOSEN, /* tokens selected by score, per KV head */
    METHOD_BUDGET_QUERY,  /* tokens selected by score, per query head */
    METHOD_BUDGET_LIVES,  /* all that a KV head keeps of the prompt, or of everything */
    METHOD_BUDGET_LAYER,  /* the same, averaged over a layer's heads */
    METHOD_BUDGET_MODEL,  /* the same, averaged over the layers */
};
#define METHOD_NEVER UINT32_MAX

/* What tests must know about a method and cannot measure. Zeroes are right for a method that has a
 * budget, scores all tokens at every step and reads nothing else. */
struct method_facts {
    const char *part;  /* parameters in addition to a budget with which a part of some hundred
                          tokens is read, "key=value,..."; NULL: the defaults */
    const char *whole; /* those with which everything is read; NULL: budget=100%. For a context
                          method those with which everything that it may touch is recomputed; NULL:
                          none */
    enum method_budget budget;
    uint32_t n_forced; /* decode, with `part`: maximum tokens before the own page that are always
                          read; says whether the budget counts them */
    uint32_t n_late;   /* decode: a token to which no query has attended is read at most this
                          many steps after one does, or METHOD_NEVER */
    bool blind;        /* reads no key, so an invalid one is not detected */
    bool reads_all;    /* decode: every token is read, in part */
    bool keeps_found;  /* what it has learned about remaining tokens (axes, representatives)
                          survives a cut */
};

struct method {
    const char *kind;                      /* "prefill", "decode" or "context" */
    const char *name;                      /* unique within its kind */
    const char *summary;                   /* one line, no full stop */
    const char *paper;                     /* or NULL */
    const char *about;                     /* a paragraph, or NULL: the summary says all */
    const struct method_params *params;    /* NULL: none */
    const sac_method_deviation *deviation; /* [n_deviation] from its paper; none without a paper */
    uint32_t n_deviation;
    bool fixed;       /* decode: selects nothing by score, so n_chosen is always 0 */
    bool has_rest;    /* sets the additional entry of attention's result */
    bool weighs;      /* sets weights of tokens, struct method_pick's or struct plan's */
    bool token_grain; /* marks single tokens, not whole pages */
    bool evicts;      /* never marks again what it has not marked once: pages are freed */
    /* Of a decode method that takes the end of the prompt as the question: from the queries of the
     * prompt's last rows it learns what to keep or read, or it holds the whole prompt. The question
     * must then be among the prompt rows; only its last token is a decode row. */
    bool needs_question;
    struct method_facts facts;
    /* Of a decode method: it scores pages of other texts with the rotated queries. */
    bool meets_segments;
    const struct method_decode *decode;   /* NULL: dense attention */
    const struct method_prefill *prefill; /* the same for prompt rows */
    const struct method_context *context; /* of kind "context" (context.h) */
};

/* The first members of a method of each kind, for one named like its parameters (METHOD_PARAMS). A
 * method without parameters, or with a hyphen in its name, sets the members itself. */
#define METHOD_OF(a_kind, a_name, a_summary)                                                       \
    .kind = a_kind, .name = #a_name, .summary = a_summary, .params = &a_name##_params
#define METHOD_DECODE(name, summary)  METHOD_OF("decode", name, summary)
#define METHOD_PREFILL(name, summary) METHOD_OF("prefill", name, summary)
#define METHOD_CONTEXT(name, summary) METHOD_OF("context", name, summary)
#define METHOD_DEVIATIONS(list)       .deviation = list, .n_deviation = sizeof list / sizeof list[0]

#define METHOD(symbol) extern const struct method symbol;
#include "methods/methods.def"
#undef METHOD

/* NULL after the last. */
const struct method *method_at(size_t i);
/* NULL: there is no such method. */
const struct method *method_find(const char *kind, const char *name);

/* Whether a decode method can serve joined documents where a device attends. Those with `choose`
 * cannot. */
bool method_reads_joined_on_device(const struct method *m);
/* Whether a method stores side data and selects by operations that every backend has, and not by
 * host code. Of a context method: whether a device can read what it joins, with the decode method
 * that it requires. */
bool method_on_any_backend(const struct method *m);
/* The bytes that a hook asks for, rounded up to cache lines; 0 without a hook. */
size_t method_hook_bytes(size_t (*hook)(const struct method_shape *, const void *),
                         const struct method_shape *shape, const void *param);
/* Prefetches the queries of a row that is needed soon, if there is one: those of a chunk have
 * left the caches. Inlined into its caller, because gcc drops calls of a function that only
 * prefetches. */
static inline __attribute__((always_inline)) void method_fetch_row(const struct method_lane *lane,
                                                                   uint32_t row)
{
    const size_t n = (size_t)lane->shape->group * lane->shape->geom->head_dim;
    if (row >= lane->n_row) return;
    for (size_t i = 0; i < n; i += 16) __builtin_prefetch(lane->q + row * lane->q_stride + i);
}
/* Are the queries of all rows of a lane finite? */
bool method_queries_finite(const struct method_lane *lane);

#endif
