/* kvzip.c: the prompt is reduced once, to the tokens that the model attends to when it repeats the
 * prompt, KVzip (Kim et al., NeurIPS 2025).
 *
 * As in the paper and its code: the model is instructed to repeat the context, in pieces of
 * `repeat` tokens, and is given the answer, so that one pass of prompt rows yields its queries. A
 * token's score is the largest softmax share that a row of its piece's pass gives it, over all
 * query heads of the KV head; the softmax is over the first tokens, the piece, and the pass's own
 * rows. All layers and heads share one threshold, so some keep much and some almost nothing. What
 * follows the prompt is kept. No question is used, so one selection serves all.
 *
 * Decided here: the instruction has no chat markup; the first `sink` tokens take the place of the
 * system prompt, the last `window` that of the question after the context: both are kept. The
 * engine inserts the rows (engine/repeat.h). */
#include "base/mem.h"
#include "methods/compress.h"
#include "methods/meter.h"
#include "methods/observe.h"
#include "methods/pick.h"

#include <float.h>
#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "30%", 1, "prompt tokens kept per head, averaged over the model")            \
    P(COUNT, window, "32", 0, 1024, "most recent prompt tokens, always kept")                      \
    P(TOKENS, repeat, "2000", 32, 65536, "prompt tokens repeated at a time")                       \
    P(TOKENS, sink, "4", 0, 4096, "first prompt tokens, always kept")
PARAM_TABLE(kvzip, struct compress_param, PARAMS)

#define ROWS OBSERVE_ROWS /* scored at a time */
/* Pages of a pass beyond those of the sinks and of twice the piece: for the instruction, and for
 * ranges that begin and end within a page. */
#define EDGE_PAGES 12u

/* ---- Scores of a piece ---- */

/* Scratch of one pass. Its keys are columns: the pages of the sinks, of the piece and of the pass's
 * own rows; column c is token page[c / PAGE_TOK] * PAGE_TOK + c % PAGE_TOK. */
struct piece {
    uint32_t n_page_max, n_page;
    size_t stride;  /* columns, at most */
    uint32_t *page; /* [n_page_max] ascending */
    float *k;       /* [stride, head_dim] */
    float *q;       /* [ROWS * group, head_dim] */
    float *score;   /* [ROWS * group, stride] */
    float *vote;    /* [stride] */
    float *best;    /* [stride] logs of the largest softmax shares */
    float *lse;     /* [ROWS * group] */
    bool *is_seen;  /* [stride] in the softmax, causality aside */
};

static size_t cut_scratch(struct piece *h, const struct method_shape *s, const void *param,
                          void *scratch)
{
    const struct compress_param *set = param;
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t d = s->geom->head_dim, n_q = ROWS * (size_t)s->group;
    const uint32_t n_sink = min_u32(set->sink, s->n_ctx);
    const uint32_t n_piece = min_u32(set->repeat, s->n_ctx);
    h->n_page_max = pick_whole_pages(n_sink) + 2 * pick_whole_pages(n_piece) + EDGE_PAGES;
    h->n_page = 0;
    h->stride = h->n_page_max * (size_t)PAGE_TOK;
    h->page = arena_take(&a, h->n_page_max, sizeof *h->page);
    h->k = arena_take(&a, h->stride * d, sizeof *h->k);
    h->q = arena_take(&a, n_q * d, sizeof *h->q);
    h->score = arena_take(&a, n_q * h->stride, sizeof *h->score);
    h->vote = arena_take(&a, h->stride, sizeof *h->vote);
    h->best = arena_take(&a, h->stride, sizeof *h->best);
    h->lse = arena_take(&a, n_q, sizeof *h->lse);
    h->is_seen = arena_take(&a, h->stride, sizeof *h->is_seen);
    return a.used;
}

static size_t kvzip_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct piece h;
    return cut_scratch(&h, s, param, NULL);
}

/* Adds the pages of tokens begin .. end - 1 that are not there yet. */
static void add_pages(struct piece *h, uint32_t begin, uint32_t end)
{
    for (uint32_t p = begin / PAGE_TOK; p * PAGE_TOK < end; p++) {
        if (h->n_page > 0 && p <= h->page[h->n_page - 1]) continue;
        assert(h->n_page < h->n_page_max);
        h->page[h->n_page++] = p;
    }
}

static uint32_t token_of(const struct piece *h, size_t column)
{
    return h->page[column / PAGE_TOK] * PAGE_TOK + (uint32_t)(column % PAGE_TOK);
}

/* Reads the keys of all columns and finds which of them are in the softmax. Keys of freed pages are
 * zeros. */
static void read_columns(const struct piece *h, const struct method_lane *l)
{
    const struct compress_param *set = l->param;
    const struct method_repeated *of = l->repeated;
    const uint32_t d = l->shape->geom->head_dim, end = l->pos + l->n_row;
    for (uint32_t i = 0; i < h->n_page; i++) {
        float *k = h->k + (size_t)i * PAGE_TOK * d;
        const uint32_t p = h->page[i];
        const bool gone = p < l->n_sealed && l->page[p] == PAGE_NONE;
        memset(k, 0, (size_t)PAGE_TOK * d * sizeof *k);
        if (p < l->n_sealed && !gone)
            pick_keys(k, l, p);
        else if (!gone)
            page_read(k, NULL, l->shape->geom, l->own, PAGE_TAIL, end % PAGE_TOK);
        for (uint32_t t = p * PAGE_TOK; t < (p + 1) * PAGE_TOK; t++) {
            const bool is_old = t < set->sink || (t >= of->begin && t < of->end);
            h->is_seen[(size_t)i * PAGE_TOK + t % PAGE_TOK] =
                !gone && t < end && (t >= of->n_tok || (is_old && compress_lives(l, t)));
        }
    }
}

/* The number of columns of tokens up to `pos`, a row of the pass: only later rows of it come after
 * them. */
static size_t columns_until(const struct piece *h, uint32_t pos)
{
    const size_t n = (size_t)h->n_page * PAGE_TOK;
    return n - (token_of(h, n - 1) - pos);
}

/* Logits of n_row rows from `row` on, for all their query heads; OBSERVE_NEVER where a row does not
 * see a column. Returns the number of columns that the last of them sees. */
static uint32_t score_rows(const struct piece *h, const struct method_lane *l, uint32_t row,
                           uint32_t n_row)
{
    const uint32_t group = l->shape->group, d = l->shape->geom->head_dim;
    const size_t width = (size_t)group * d, n = columns_until(h, l->pos + row + n_row - 1);
    for (uint32_t r = 0; r < n_row; r++)
        for (size_t i = 0; i < width; i++)
            h->q[r * width + i] = l->q[(row + r) * l->q_stride + i] * l->scale;
    l->ops->dots(&(struct op_dots){.a = h->q,
                                   .b = h->k,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = n_row * group,
                                   .n_b = (uint32_t)n,
                                   .width = d,
                                   .out = h->score,
                                   .out_stride = h->stride});
    for (uint32_t i = 0; i < n_row * group; i++) {
        float *score = h->score + i * h->stride;
        for (size_t c = 0; c < n && l->softcap > 0; c++)
            score[c] = l->softcap * tanhf(score[c] / l->softcap);
        for (size_t c = 0; c < n; c++) score[c] = h->is_seen[c] ? score[c] : OBSERVE_NEVER;
        for (size_t c = columns_until(h, l->pos + row + i / group); c < n; c++)
            score[c] = OBSERVE_NEVER;
    }
    return (uint32_t)n;
}

/* Puts into h->best the log of each column's largest softmax share over all rows and query heads.
 * False: something is not finite. */
static bool max_shares(const struct piece *h, const struct method_lane *l)
{
    for (uint32_t row = 0, n_row; row < l->n_row; row += n_row) {
        n_row = min_u32(ROWS, l->n_row - row);
        const uint32_t n_q = n_row * l->shape->group, n = score_rows(h, l, row, n_row);
        if (!l->ops->vote(&(struct op_vote){.score = h->score,
                                            .score_stride = h->stride,
                                            .n = n,
                                            .group = n_q,
                                            .vote = h->vote,
                                            .lse = h->lse}))
            return false;
        for (uint32_t i = 0; i < n_q; i++) {
            const float *score = h->score + i * h->stride, lse = h->lse[i];
            for (size_t c = 0; c < n; c++) {
                const float x = score[c] - lse;
                h->best[c] = x > h->best[c] ? x : h->best[c];
            }
        }
    }
    return true;
}

/* For rows that repeat a piece: the votes of its tokens become the largest softmax share that a row
 * gives them, over as many calls as the pass has; infinity if something is not finite. */
static void score_piece(const struct method_lane *l)
{
    const struct compress_param *set = l->param;
    const struct method_repeated *of = l->repeated;
    float *vote = compress_heard_votes(l, l->layer, l->kv_head);
    struct piece h;
    cut_scratch(&h, l->shape, l->param, l->scratch);
    add_pages(&h, 0, set->sink);
    add_pages(&h, of->begin, of->end);
    add_pages(&h, of->n_tok, l->pos + l->n_row);
    if (l->pos == of->n_tok) memset(vote + of->begin, 0, (of->end - of->begin) * sizeof *vote);
    for (size_t c = 0; c < (size_t)h.n_page * PAGE_TOK; c++) h.best[c] = OBSERVE_NEVER;
    read_columns(&h, l);
    const bool finite = method_queries_finite(l) && max_shares(&h, l);
    for (size_t c = 0; c < (size_t)h.n_page * PAGE_TOK; c++) {
        const uint32_t t = token_of(&h, c);
        if (t < of->begin || t >= of->end) continue;
        vote[t] = fmaxf(vote[t], finite ? expf(h.best[c]) : INFINITY);
    }
    compress_hear(l, of->n_tok);
}

static void kvzip_see(const struct method_lane *l)
{
    const struct compress_param *set = l->param;
    if (l->repeated)
        score_piece(l);
    else if (l->is_prompt || l->pos > set->sink) /* otherwise there is nothing to repeat */
        compress_see(l);
}

/* ---- Selection ---- */

static bool vote_by_repetition(const struct method_lane *l, float *vote, uint32_t n)
{
    const struct compress_param *set = l->param;
    /* In a state loaded from a file some lanes may have votes and others none. */
    if (compress_heard(l, l->layer, l->kv_head) != l->pos) return false;
    for (uint32_t t = 0; t < n; t++) {
        if (t < set->sink) vote[t] = FLT_MAX;
        if (!isfinite(vote[t])) return false;
    }
    return true;
}

#define N_BIN 2048u

/* A histogram of the votes of all layers and heads by `bits` bits of their sort keys (pick_key),
 * from bit `shift` on, over the keys that begin with `prefix`. Returns the number of lanes that
 * have votes. */
static uint32_t count_votes(uint64_t bin[N_BIN], const struct compress_votes *v, uint32_t prefix,
                            uint32_t shift, uint32_t bits)
{
    const struct method_lane *l = v->lane;
    const struct compress_param *set = l->param;
    const uint32_t n_lane = l->shape->geom->n_layer * l->shape->geom->n_kv_head;
    uint32_t n_heard = 0;
    memset(bin, 0, N_BIN * sizeof *bin);
    for (uint32_t i = 0; i < n_lane; i++) {
        const uint32_t layer = i / l->shape->geom->n_kv_head, h = i % l->shape->geom->n_kv_head;
        const float *vote = compress_heard_votes(l, layer, h);
        if (compress_heard(l, layer, h) != l->pos) continue; /* e.g. a layer with a window */
        n_heard++;
        meter_read(l, vote, v->n_tok * sizeof *vote);
        for (uint32_t t = set->sink; t < v->n_tok; t++) {
            const uint32_t key = pick_key(vote[t]);
            if (shift + bits < 32 && key >> (shift + bits) != prefix) continue;
            bin[key >> shift & ((1u << bits) - 1)]++;
        }
    }
    return n_heard;
}

/* The threshold that all layers and heads share: the sort key of the vote at rank n_keep times the
 * number of lanes, by radix selection. */
static uint32_t threshold(const struct compress_votes *v, uint32_t n_keep)
{
    static const uint32_t shift[] = {21, 10, 0}, bits[] = {11, 11, 10};
    uint64_t bin[N_BIN], n_left = 0;
    uint32_t prefix = 0;
    for (int pass = 0; pass < 3; pass++) {
        const uint32_t n_heard = count_votes(bin, v, prefix, shift[pass], bits[pass]);
        uint32_t at = (1u << bits[pass]) - 1;
        if (pass == 0) n_left = (uint64_t)n_heard * n_keep;
        for (; at > 0 && bin[at] < n_left; at--) n_left -= bin[at];
        prefix = prefix << bits[pass] | at;
    }
    return prefix;
}

/* The number of tokens that the lane keeps: the sinks, and those above the threshold. As in the
 * authors' code, the vote that equals it is not kept. */
static uint32_t count_above_threshold(const struct compress_votes *v)
{
    const struct method_lane *l = v->lane;
    const struct compress_param *set = l->param;
    const uint32_t n_sink = min_u32(set->sink, v->n_tok);
    if (v->n_keep <= n_sink) return v->n_keep;
    const uint32_t least = threshold(v, v->n_keep - n_sink);
    const float *vote = compress_heard_votes(l, l->layer, l->kv_head);
    uint32_t n = n_sink;
    for (uint32_t t = n_sink; t < v->n_tok; t++) n += pick_key(vote[t]) > least;
    return n;
}

static const struct compress_policy policy = {
    .mute = true, .vote = vote_by_repetition, .keep = count_above_threshold};

static struct method_repeat kvzip_repeat(const void *param)
{
    const struct compress_param *set = param;
    return (struct method_repeat){set->sink, set->repeat};
}

static const struct method_decode hooks = {
    .family = &policy,
    .state_bytes = compress_state_bytes,
    .scratch_bytes = kvzip_scratch_bytes,
    .see = kvzip_see,
    .repeat = kvzip_repeat,
    .repeat_due = compress_hear_due,
    .select = compress_select,
    .cut = compress_cut,
    .sound = compress_sound,
};

static const sac_method_deviation deviations[] = {
    {"instruction and answer are turns of a chat", "one follows the other, without chat markup",
     "a prompt need not be a chat", NULL},
    {"the system prompt and everything after the context are kept",
     "the first 4 and the most recent 32 tokens are", "a prompt has no separate parts here",
     "with window=0 the end of a prompt is evicted too, and with it the tokens from which the "
     "answer starts"},
    {"the context is compressed, and the question follows",
     "the same where the question's tokens are decode rows; otherwise it is compressed with the "
     "prompt",
     "a decode method starts with the first decode row", NULL},
    {"one context", "after a further prompt the tokens still kept are repeated, and selected again",
     "conversations have several", NULL},
};

const struct method kvzip_method = {
    METHOD_DECODE(
        kvzip, "prompt tokens that the model needs to reconstruct the prompt; the rest is evicted"),
    .paper = "Kim et al., KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction, "
             "arXiv 2505.23416",
    .about = "The model is instructed to repeat the prompt and is given the answer; tokens to "
             "which no row of the answer attends are evicted. The selection depends on no "
             "question, so every later one finds the same tokens. A head that is needed for "
             "copying keeps many, another almost none. It costs a second pass over the prompt, of "
             "as many rows (counted as prompt rows), and memory for a piece of it. Where the paper "
             "is silent, the authors' code was followed (github.com/snu-mllab/KVzip).",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .evicts = true,
    .facts = {.part = "sink=0,repeat=192", .budget = METHOD_BUDGET_MODEL, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
