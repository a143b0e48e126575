/* compress.h: prompt compression like SnapKV: tokens of the prompt get votes once, the best are
 * kept with a window of the most recent ones, everything later is read, and nothing is selected
 * again. Methods of this kind differ in who votes and in how many tokens each head keeps.
 *
 * With most of them the rows of the window vote: the vote of a token is its softmax share, summed
 * over these rows, mean over the query heads. With others votes come from the keys alone. The first
 * decode row after a prompt makes the selection; while the context is too short for sparse methods
 * none is made, and the window advances with it. */
#ifndef SAC_METHODS_COMPRESS_H
#define SAC_METHODS_COMPRESS_H

#include "methods/method.h"

/* Parameters of such methods: all have the first two, and some of the others. */
struct compress_param {
    struct param_budget budget;
    uint32_t window;
    uint32_t kernel, pool; /* pooling of votes: its width; 0 mean, 1 max */
    double alpha;          /* adakv */
    uint32_t beta;         /* pyramidkv */
    uint32_t chunk;        /* chunkkv */
    uint32_t dense;        /* knorm */
    uint32_t rows, future; /* expected, and the next two */
    uint32_t sink;
    double floor;
    uint32_t repeat; /* kvzip */
};

/* The votes from which a lane's budget follows. */
struct compress_votes {
    const struct method_lane *lane;
    uint32_t n_tok;  /* candidates: tokens 0 .. n_tok - 1, before the window */
    uint32_t n_keep; /* of them, the mean over the heads that share a budget */
    float *all;      /* [n_kv_head, n_tok], if `every_head` was requested */
};

/* What distinguishes these methods: the `family` of their hooks. */
struct compress_policy {
    bool mute;       /* the window's rows do not vote, so their queries need not be kept */
    bool every_head; /* budgets depend on the votes of the layer's other heads */
    /* Votes of tokens 0 .. n - 1, the window being n .. pos - 1: none negative, tokens with the
     * highest are kept. Uses the lane's scratch. False: something is not finite. */
    bool (*vote)(const struct method_lane *l, float *vote, uint32_t n);
    /* Tokens that the lane's head keeps, at most n_tok; NULL: n_keep, the same for all. */
    uint32_t (*keep)(const struct compress_votes *v);
};

/* Common differences from the papers of all methods of this kind. */
#define COMPRESS_DEVIATIONS                                                                        \
    {"votes and tokens for each query head, with keys copied for all of them",                     \
     "one set per KV head, by the mean of its query heads' shares",                                \
     "keys are stored once for the group",                                                         \
     "others report a change of 0.3 points on average in six LongBench tasks"},                    \
        {"the first answer token sees the whole prompt", "it sees the compressed one",             \
         "the selection is made at the first decode row", NULL},                                   \
    {                                                                                              \
        "one prompt", "after a further prompt, its rows select again among the tokens still kept", \
            "conversations have several", NULL                                                     \
    }

size_t compress_state_bytes(const struct method_shape *s, const void *param);
size_t compress_scratch_bytes(const struct method_shape *s, const void *param);
uint32_t compress_past_rows(const struct method_shape *s, const void *param);
void compress_see(const struct method_lane *l);
void compress_select(const struct method_lane *l, struct method_pick *out);
void compress_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok);
bool compress_sound(const struct method_loaded *l);

/* For methods that have the model repeat the prompt (method_decode.repeat). A head's votes, which
 * `see` fills while the rows that repeat it are computed; compress_hear records that those of n_tok
 * tokens are filled, compress_heard returns that number. compress_hear_due: whether they must be
 * filled before a decode row of a sequence of n_tok tokens. */
float *compress_heard_votes(const struct method_lane *l, uint32_t layer, uint32_t kv_head);
void compress_hear(const struct method_lane *l, uint32_t n_tok);
uint32_t compress_heard(const struct method_lane *l, uint32_t layer, uint32_t kv_head);
bool compress_hear_due(const struct method_shape *s, const void *param, const void *state,
                       uint32_t n_tok);
/* Whether a token of the lane has not been evicted. */
bool compress_lives(const struct method_lane *l, uint32_t tok);

/* Selection on a device, for methods whose window votes (compress_shares). */
extern const struct method_device compress_device;

/* The shared hooks of methods of this kind; the family of each is its policy. */
#define COMPRESS_HOOKS                                                                             \
    .state_bytes = compress_state_bytes, .scratch_bytes = compress_scratch_bytes,                  \
    .see = compress_see, .select = compress_select, .cut = compress_cut, .sound = compress_sound

/* The same for those whose window votes, on a device, too. */
#define COMPRESS_WINDOW_HOOKS                                                                      \
    COMPRESS_HOOKS, .past_rows = compress_past_rows, .device = &compress_device

/* Fields of struct method that all of them share. */
#define COMPRESS_WINDOW_TRAITS                                                                     \
    .token_grain = true, .evicts = true, .needs_question = true, .meets_segments = true

/* Their parameters except the budget; with pooled votes, those of the pooling, too. */
#define COMPRESS_WINDOW_PARAMS(P)                                                                  \
    P(COUNT, window, "32", 1, 1024, "last prompt tokens, which vote and are kept")
#define COMPRESS_POOLED_PARAMS(P)                                                                  \
    COMPRESS_WINDOW_PARAMS(P)                                                                      \
    P(COUNT, kernel, "5", 1, 63, "neighbouring tokens that share their votes")                     \
    P(CHOICE, pool, "mean", "mean|max", "how neighbours share their votes")

/* ---- Votes ---- */

/* Softmax shares of the tokens, summed over the window's rows, mean over the query heads. */
bool compress_shares(const struct method_lane *l, float *vote, uint32_t n);
/* The same, pooled over neighbours: parameters `kernel` and `pool`. */
bool compress_pooled(const struct method_lane *l, float *vote, uint32_t n);
/* Keys [PAGE_TOK, head_dim] and, unless `v` is NULL, values of a page of the lane, its own
 * included, and their number: 0 for a freed page. */
uint32_t compress_page(float *k, float *v, const struct method_lane *l, uint32_t page);

#endif
