/* infllm.c: blocks represented by the mean of their most attended keys, InfLLM (Xiao et al.,
 * NeurIPS 2024).
 *
 * Before a local window the context is cut into blocks. A block is represented by the mean key of
 * the `repr` tokens that had the most attention; the blocks with the highest product with the query
 * are read, with the first tokens and the window. Decided here: one set per KV head, by the sum
 * over its query heads (the code has one per layer). Attention received is that of the last
 * `window` rows when a block leaves the local window, not of all rows that saw it, whose queries
 * are no longer stored. Not here: the paper's second half, positions that do not grow (far keys
 * without rotation, all at one distance), by which it reads beyond the trained length: keys here
 * stay as they were rotated. */
#include "methods/meter.h"
#include "methods/observe.h"
#include "methods/pick.h"
#include "methods/rule.h"

#include "base/mem.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "2048", 1, "tokens selected, in addition to those always read")              \
    P(TOKENS, sink, "128", 0, 4096, "first tokens, always read")                                   \
    P(TOKENS, recent, "512", 0, 65536, "most recent tokens, always read")                          \
    P(TOKENS, block, "128", 32, 4096, "tokens per block, rounded up to whole pages")               \
    P(COUNT, repr, "4", 1, 32, "tokens that represent a block")                                    \
    P(COUNT, window, "32", 1, 1024, "rows whose attention is counted")
METHOD_PARAMS(infllm, PARAMS)

/* Followed, at byte 64, by the representatives [blocks of a context, head_dim]. */
struct infllm_state {
    uint32_t n_block; /* first blocks that have a representative */
};

static uint32_t block_pages(const void *param)
{
    const struct infllm_param *set = param;
    return (set->block + PAGE_TOK - 1) / PAGE_TOK;
}

static uint32_t block_max(const struct method_shape *s, const void *param)
{
    return (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK / block_pages(param) + 1;
}

static size_t infllm_state_bytes(const struct method_shape *s, const void *param)
{
    return 64 + block_max(s, param) * (size_t)s->geom->head_dim * sizeof(float);
}

static float *representatives(void *state)
{
    return (float *)(void *)((uint8_t *)state + 64);
}

static size_t infllm_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct observe o;
    (void)param;
    return observe_make(&o, s, NULL);
}

static uint32_t infllm_past_rows(const struct method_shape *s, const void *param)
{
    const struct infllm_param *set = param;
    (void)s;
    return set->window;
}

/* The mean key of the `repr` tokens of a block with the most attention in o->sum. */
static void make_representative(float *out, const struct method_lane *l, const struct observe *o,
                                uint32_t block)
{
    const struct infllm_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, n_page = block_pages(l->param);
    const uint32_t first = block * n_page, n_tok = n_page * PAGE_TOK;
    const uint32_t repr = min_u32(set->repr, n_tok);
    assert(first + n_page <= pick_page_count(l));
    struct pick_cut cut = pick_best(o->sum + (size_t)first * PAGE_TOK, n_tok, repr);
    memset(out, 0, d * sizeof *out);
    for (uint32_t p = first; p < first + n_page; p++) {
        pick_keys(o->k, l, p);
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            if (!pick_takes(&cut, o->sum[(size_t)p * PAGE_TOK + t])) continue;
            for (uint32_t c = 0; c < d; c++) out[c] += o->k[(size_t)t * d + c] / (float)repr;
        }
    }
}

/* Makes the representatives of blocks that have left the local window. False: not finite. */
static bool represent_blocks(const struct method_lane *l, const struct observe *o)
{
    const struct infllm_param *set = l->param;
    struct infllm_state *s = l->state;
    const uint32_t n = l->pos + 1, local = set->recent, d = l->shape->geom->head_dim;
    const uint32_t n_far = min_u32(n > local ? n - local : 0, pick_page_count(l) * PAGE_TOK);
    const uint32_t n_block = n_far / (block_pages(l->param) * PAGE_TOK);
    const uint32_t window = set->window;
    if (s->n_block >= n_block) return true;
    assert(n_block <= block_max(l->shape, l->param));
    const uint32_t begin = max_u32(l->past.begin, n > window ? n - window : 0);
    meter_build(l);
    const bool finite = observe_rows(o, l, begin, n);
    for (; finite && s->n_block < n_block; s->n_block++)
        make_representative(representatives(s) + (size_t)s->n_block * d, l, o, s->n_block);
    meter_choose(l);
    return finite;
}

static void infllm_select(const struct method_lane *l, struct method_pick *out)
{
    const struct infllm_param *set = l->param;
    const uint32_t budget = rule_budget(out, l, set->budget, 0), d = l->shape->geom->head_dim;
    const uint32_t n_page = block_pages(l->param), group = l->shape->group;
    struct infllm_state *s = l->state;
    struct observe o;
    if (budget == 0) return;
    observe_make(&o, l->shape, l->scratch);
    if (!represent_blocks(l, &o)) {
        pick_not_finite(out);
        return;
    }
    /* The window extends to the last block with a representative. */
    pick_ends(out, l, set->sink, l->pos + 1 - s->n_block * n_page * PAGE_TOK);
    assert(s->n_block * n_page <= pick_page_count(l));
    l->ops->dots(&(struct op_dots){.a = l->q,
                                   .b = representatives(s),
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = group,
                                   .n_b = s->n_block,
                                   .width = d,
                                   .out = o.score,
                                   .out_stride = o.stride});
    meter_read(l, representatives(s), s->n_block * (size_t)d * sizeof(float));
    for (uint32_t b = 0; b < s->n_block; b++) {
        o.sum[b] = 0;
        for (uint32_t g = 0; g < group; g++) o.sum[b] += o.score[g * o.stride + b];
        if ((b + 1) * n_page * PAGE_TOK <= set->sink) o.sum[b] = -INFINITY;
    }
    struct pick_cut cut = pick_best(o.sum, s->n_block, pick_units(budget, n_page * PAGE_TOK));
    for (uint32_t b = 0; b < s->n_block; b++) {
        if (!pick_takes(&cut, o.sum[b])) continue;
        for (uint32_t p = b * n_page; p < (b + 1) * n_page; p++) pick_page(out, p);
    }
}

static void infllm_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    struct infllm_state *x = state;
    (void)s;
    x->n_block = min_u32(x->n_block, n_tok / (block_pages(param) * PAGE_TOK));
}

static bool infllm_sound(const struct method_loaded *l)
{
    const struct infllm_state *x = l->state;
    return x->n_block <= l->n_tok / (block_pages(l->param) * PAGE_TOK);
}

static const struct method_decode hooks = {
    .state_bytes = infllm_state_bytes,
    .scratch_bytes = infllm_scratch_bytes,
    .past_rows = infllm_past_rows,
    .select = infllm_select,
    .cut = infllm_cut,
    .sound = infllm_sound,
};

static const sac_method_deviation deviations[] = {
    {"distant keys are not rotated and all lie at one distance, which extends the context beyond "
     "the trained length",
     "keys keep their rotation", "the cache holds rotated keys",
     "no use beyond the trained length"},
    {"a block is represented by the tokens that received most attention from all rows while it was "
     "in the local window",
     "from the last 32 rows, when it leaves the window",
     "queries of earlier rows are no longer stored", NULL},
    {"one set of blocks for all heads of a layer, with a representative for each query head",
     "one per KV head, with one representative", "keys are stored by KV head", NULL},
    {"a window of 4,096 tokens", "512 by default (recent=)",
     "contexts here are often shorter than the paper's window", NULL},
};

const struct method infllm_method = {
    METHOD_DECODE(infllm, "blocks, each represented by the mean of its most attended keys"),
    .paper =
        "Xiao et al., InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient "
        "Context Memory, arXiv 2402.04617",
    .about = "Represents each block by one vector, the mean of its most attended keys, and reads "
             "the blocks that match the query. Selection is cheap. What a late question asks for "
             "is found only if it is among the most attended tokens of its block. Blocks of 128 "
             "tokens spend the budget on neighbouring tokens too.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.part = "sink=16,recent=16,block=32", .n_forced = 16 + 32, .keeps_found = true},
    .meets_segments = true,
    .decode = &hooks,
};
