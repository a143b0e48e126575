/* samkv.c: a small part of each document is kept, selected by the question, and everything kept is
 * recomputed: after SamKV (AAAI 2026).
 *
 * The first block (64 tokens) and the last two of each document are kept, and of all blocks in
 * between, over all documents, those to which the question attends most in a probe over the stored
 * documents.
 *
 * With choose=asked, as in the paper, only those ends are read to select: the question's queries,
 * computed over them alone, are turned towards what the other documents' ends ask about (a bias by
 * cosine) and are compared with the mean keys of the blocks in between. Their number depends on
 * where the anchor, the mean of what is kept, lies between the block that is asked for most and the
 * one that is asked for least. Of all candidates the share 1 / documents is kept.
 *
 * The paper leaves much open. Parameters are the possible interpretations, their defaults those
 * that find an answer's block (docs/performance/stored_documents.md says how they were found).
 * Without parameters: queries and keys are compared before rotation, and middle blocks without
 * selection are not kept. */
#include "methods/context.h"

#include <math.h>

enum { UPDATE_FUSION, UPDATE_OVERWRITE };
enum { FUSE_TOKEN, FUSE_HEAD };
enum { BIAS_LAYER, BIAS_HEAD };
enum { ANCHOR_TOKENS, ANCHOR_BLOCKS };
enum { BETWEEN_ASKED, BETWEEN_NOTED };
enum { COMPARE_LENGTH, COMPARE_SPREAD, COMPARE_RANGE, COMPARE_SOFTMAX };
enum { HOT_TOKEN, HOT_BLOCK, HOT_ALL };
enum { CHOOSE_READ, CHOOSE_ASKED };
enum { SCOPE_ALL, SCOPE_LAYER };
enum { N_INI = 1, N_LOC = 2, PAGES = CONTEXT_BLOCK / PAGE_TOK };

#define PARAMS(P)                                                                                  \
    P(CHOICE, update, "fusion", "fusion|overwrite",                                                \
      "fusion: recomputed keys and values are blended with the stored ones, by their cosine")      \
    P(FLAG, select, "on", "select middle blocks; off: none is kept")                               \
    P(CHOICE, choose, "read", "read|asked",                                                        \
      "read: the question reads all documents, and the blocks to which it attends most are kept; " \
      "asked: those whose mean keys match its query, as in the paper")                             \
    P(SHARE, blocks, "0.02", "share of all middle blocks that is kept with choose=read")           \
    P(FLAG, bias, "on", "bias the question's query by the other documents' last queries")          \
    P(FLAG, recompute, "on", "recompute what is kept")                                             \
    P(CHOICE, fuse_by, "token", "token|head",                                                      \
      "one cosine for all KV heads of a token, or one for each")                                   \
    P(CHOICE, bias_by, "layer", "layer|head",                                                      \
      "one cosine of queries for all heads of a layer, or one for each")                           \
    P(COUNT, asks, "1", 0, 1 << 18,                                                                \
      "last tokens of the question that read, or whose mean query is the question's; 0: all of "   \
      "them")                                                                                      \
    P(FLAG, centre, "on",                                                                          \
      "subtract the mean of all documents' last queries from each of them and from the "           \
      "question's")                                                                                \
    P(CHOICE, anchor, "tokens", "tokens|blocks",                                                   \
      "the anchor is the mean key of the kept tokens, or of their blocks' means")                  \
    P(CHOICE, between, "asked", "asked|noted",                                                     \
      "the anchor is compared with the blocks that the question asks for most and least, or with " \
      "those that received most and least attention when the document was computed")               \
    P(SHARE, layers, "0.14",                                                                       \
      "share of the layers, the last ones, that determine how many blocks are candidates; at "     \
      "least one layer")                                                                           \
    P(FLAG, all_above, "off",                                                                      \
      "where every block beats the anchor, all are candidates; off: none, as in the paper's "      \
      "formula")                                                                                   \
    P(COUNT, least, "0", 0, 1 << 18, "minimum number of candidates per document")                  \
    P(FLAG, guard, "off",                                                                          \
      "blocks that get less attention than half of the others are neither the most important one " \
      "nor hot")                                                                                   \
    P(CHOICE, compare, "length", "length|spread|range|softmax",                                    \
      "how scores of documents are made comparable: divided by the query's norm, by their own "    \
      "spread or range, or as shares of a softmax")                                                \
    P(CHOICE, scope, "all", "all|layer",                                                           \
      "all layers keep the same blocks, by the sums of their scores, or each its own")             \
    P(FLAG, divide_all, "off",                                                                     \
      "as many blocks are kept as there are middle blocks, divided by the documents; off: as "     \
      "there are candidates")                                                                      \
    P(CHOICE, hot, "all", "token|block|all",                                                       \
      "what is recomputed in middle blocks: the token of a block that stands out, or all of that " \
      "block; all: every kept block whole")
METHOD_PARAMS(samkv, PARAMS)

static uint32_t n_block(const struct context_view *v, uint32_t doc)
{
    return (v->doc[doc].end - v->doc[doc].begin + PAGES - 1) / PAGES;
}

/* The number of middle blocks, between INI (the first) and LOC (the last two). */
static uint32_t n_middle(const struct context_view *v, uint32_t doc)
{
    const uint32_t n = n_block(v, doc);
    return n > N_INI + N_LOC ? n - N_INI - N_LOC : 0;
}

static bool is_end(const struct context_view *v, uint32_t doc, uint32_t block)
{
    return block < N_INI || block >= N_INI + n_middle(v, doc);
}

static void set_block(const struct context_view *v, bool *resident, uint32_t doc, uint32_t block)
{
    const uint32_t begin = v->doc[doc].begin + block * PAGES;
    for (uint32_t p = begin; p < begin + PAGES && p < v->doc[doc].end; p++) resident[p] = true;
}

/* Keeps INI and LOC of each document, and no other block, in all layers. */
static void keep_ends(const struct context_view *v, struct context_plan *p)
{
    memset(p->resident, 0, (size_t)v->n_layer * v->n_page * sizeof *p->resident);
    for (uint32_t layer = 0; layer < v->n_layer; layer++)
        for (uint32_t d = 0; d < v->n_doc; d++)
            for (uint32_t b = 0; b < n_block(v, d); b++)
                if (is_end(v, d, b)) set_block(v, p->resident + (size_t)layer * v->n_page, d, b);
}

static bool samkv_probe(const struct context_view *v, struct context_plan *p)
{
    const struct samkv_param *set = v->param;
    keep_ends(v, p);
    return set->choose == CHOOSE_ASKED;
}

/* ---- Vectors ---- */

static size_t width(const struct context_view *v)
{
    return (size_t)v->n_head * v->shape->geom->head_dim;
}

static double dot(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* The sum over all heads of the products of their query with their KV head's key. */
static double score(const struct context_view *v, const float *query, const float *key)
{
    const size_t d = v->shape->geom->head_dim;
    double sum = 0;
    for (uint32_t h = 0; h < v->n_head; h++)
        sum += dot(query + h * d, key + h / v->shape->group * d, d);
    return sum;
}

static const struct context_stats *stats_of(const struct context_view *v, uint32_t doc,
                                            uint32_t layer)
{
    return &v->stats[(size_t)doc * v->n_layer + layer];
}

static const float *block_key(const struct context_view *v, uint32_t doc, uint32_t layer,
                              uint32_t block)
{
    const struct page_geom *g = v->shape->geom;
    return stats_of(v, doc, layer)->key + (size_t)block * g->n_kv_head * g->head_dim;
}

/* centre=on: the component that all queries share, the mean of the documents' local queries. It
 * says nothing about the question, and dominates in models whose queries have biases. */
static void shared_query(const struct context_view *v, float *out, uint32_t layer)
{
    const struct samkv_param *set = v->param;
    const size_t n = width(v);
    memset(out, 0, n * sizeof *out);
    for (uint32_t d = 0; d < v->n_doc && set->centre; d++)
        for (size_t i = 0; i < n; i++) out[i] += stats_of(v, d, layer)->query[i] / (float)v->n_doc;
}

static void subtract(float *out, const float *query, const float *shared, size_t n)
{
    for (size_t i = 0; i < n; i++) out[i] = query[i] - shared[i];
}

/* Eq. 1: the question's query for a document, biased towards the local queries of the other
 * documents. `out` [4 * width], of which the first quarter is the result and the rest scratch. */
static void query_for(const struct context_view *v, float *out, uint32_t doc, uint32_t layer)
{
    const struct samkv_param *set = v->param;
    const size_t n = width(v), part = set->bias_by == BIAS_HEAD ? v->shape->geom->head_dim : n;
    float *other = out + n, *query = other + n, *shared = query + n;
    shared_query(v, shared, layer);
    subtract(query, v->query + (size_t)layer * n, shared, n);
    memcpy(out, query, n * sizeof *out);
    for (uint32_t j = 0; j < v->n_doc && set->bias; j++) {
        if (j == doc) continue;
        subtract(other, stats_of(v, j, layer)->query, shared, n);
        for (size_t at = 0; at < n; at += part) {
            const double far =
                sqrt(dot(query + at, query + at, part)) * sqrt(dot(other + at, other + at, part));
            if (!(far > 0)) continue;
            const double weight = fabs(dot(query + at, other + at, part)) / far / (v->n_doc - 1);
            for (size_t i = at; i < at + part; i++) out[i] += (float)(weight * (double)other[i]);
        }
    }
}

/* ---- The number of blocks (Eq. 2 and 3) ---- */

/* guard=on: whether a middle block has at least the median attention of its document's. */
static bool passes_guard(const struct context_view *v, uint32_t doc, uint32_t layer, uint32_t block)
{
    const struct samkv_param *set = v->param;
    const float *mass = stats_of(v, doc, layer)->mass;
    uint32_t n_above = 0;
    for (uint32_t b = N_INI; b < N_INI + n_middle(v, doc); b++) n_above += mass[b] > mass[block];
    return !set->guard || 2 * n_above <= n_middle(v, doc);
}

/* s_anc: the query's score of the mean key of INI and LOC. */
static double anchor_score(const struct context_view *v, const float *query, uint32_t doc,
                           uint32_t layer)
{
    const struct samkv_param *set = v->param;
    const uint32_t n = n_block(v, doc);
    double sum = 0;
    if (set->anchor == ANCHOR_TOKENS) return score(v, query, stats_of(v, doc, layer)->anchor);
    for (uint32_t b = 0; b < n; b++)
        sum += is_end(v, doc, b) ? score(v, query, block_key(v, doc, layer, b)) : 0;
    return sum / (N_INI + N_LOC);
}

/* b_max, the middle block whose attention decays slowest with distance, and b_min, the one with the
 * least attention. */
static void find_bounds(const struct context_view *v, uint32_t doc, uint32_t layer, uint32_t *most,
                        uint32_t *least)
{
    const struct context_stats *stats = stats_of(v, doc, layer);
    *most = UINT32_MAX;
    *least = N_INI;
    for (uint32_t b = N_INI; b < N_INI + n_middle(v, doc); b++) {
        const bool is_better = *most == UINT32_MAX || stats->slope[b] < stats->slope[*most];
        if (is_better && passes_guard(v, doc, layer, b)) *most = b;
        if (stats->mass[b] < stats->mass[*least]) *least = b;
    }
}

/* Eq. 2: the ratio P of middle blocks in a layer. With between=asked s_max and s_min are the
 * largest and smallest scores of all middle blocks, not those of b_max and b_min. */
static double ratio_in_layer(const struct context_view *v, const float *query, uint32_t doc,
                             uint32_t layer)
{
    const struct samkv_param *set = v->param;
    uint32_t most, least;
    find_bounds(v, doc, layer, &most, &least);
    double high = score(v, query, block_key(v, doc, layer, most));
    double low = score(v, query, block_key(v, doc, layer, least));
    const double anchor = anchor_score(v, query, doc, layer);
    for (uint32_t b = N_INI; b < N_INI + n_middle(v, doc) && set->between == BETWEEN_ASKED; b++) {
        const double asked = score(v, query, block_key(v, doc, layer, b));
        high = fmax(high, asked);
        low = fmin(low, asked);
    }
    if (set->all_above && anchor <= low) return 1;
    return low < anchor && anchor <= high ? (high - anchor) / (high - low) : 0;
}

/* Eq. 3: the number of candidate blocks of a document, by the mean ratio over the last layers. */
static uint32_t candidate_count(const struct context_view *v, float *query, uint32_t doc)
{
    const struct samkv_param *set = v->param;
    const uint32_t n_middle_blocks = n_middle(v, doc);
    const uint32_t n_most = (uint32_t)(v->n_layer * set->layers + 0.5);
    const uint32_t n_last = n_most > 0 ? n_most : 1;
    double sum = 0;
    if (n_middle_blocks == 0) return 0;
    for (uint32_t layer = v->n_layer - n_last; layer < v->n_layer; layer++) {
        query_for(v, query, doc, layer);
        sum += ratio_in_layer(v, query, doc, layer);
    }
    const uint32_t n = (uint32_t)ceil(sum / n_last * n_middle_blocks);
    const uint32_t least = set->least < n_middle_blocks ? set->least : n_middle_blocks;
    return n > least ? n : least;
}

/* ---- The selection of blocks ---- */

/* The index in `score` [n_block of all] of a document's first block. */
static uint32_t first_score(const struct context_view *v, uint32_t doc)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < doc; d++) n += n_block(v, d);
    return n;
}

struct span {
    uint32_t begin, end;
};

/* Keeps the n largest values of [begin, end), the first of equal ones, and makes the others
 * -INFINITY; returns how many are kept. */
static uint32_t keep_best(float *value, uint32_t begin, uint32_t end, uint32_t n)
{
    uint32_t n_kept = 0;
    for (uint32_t i = begin; i < end; i++) n_kept += value[i] > -INFINITY;
    for (; n_kept > n; n_kept--) {
        uint32_t worst = end;
        for (uint32_t i = begin; i < end; i++)
            if (value[i] > -INFINITY && (worst == end || value[i] <= value[worst])) worst = i;
        value[worst] = -INFINITY;
    }
    return n_kept;
}

/* The PauTa rule: whether the exponent of a block's representative token is below the mean over the
 * middle blocks by more than three standard deviations. */
static bool is_hot(const struct context_view *v, uint32_t doc, uint32_t layer, uint32_t block)
{
    const struct context_stats *stats = stats_of(v, doc, layer);
    const uint32_t n = n_middle(v, doc);
    double sum = 0, squares = 0;
    for (uint32_t b = N_INI; b < N_INI + n; b++) {
        sum += (double)stats->slope[b];
        squares += (double)stats->slope[b] * (double)stats->slope[b];
    }
    const double mean = sum / n, variance = squares / n - mean * mean;
    return (double)stats->slope[block] < mean - 3 * sqrt(variance > 0 ? variance : 0) &&
           passes_guard(v, doc, layer, block);
}

/* Recomputes a hot block, or only its representative token (hot=token). */
static void mark_hot(const struct context_view *v, struct context_plan *p, uint32_t layer,
                     uint32_t doc, uint32_t block)
{
    const struct samkv_param *set = v->param;
    const uint32_t begin = v->doc[doc].begin * PAGE_TOK, end = v->doc[doc].end * PAGE_TOK;
    const uint32_t token = begin + (uint32_t)stats_of(v, doc, layer)->token[block];
    const uint32_t first = begin + block * CONTEXT_BLOCK, last = first + CONTEXT_BLOCK;
    if (set->hot != HOT_TOKEN)
        context_mark(v, p, layer, first, last < end ? last : end);
    else
        context_mark(v, p, layer, token, token + 1);
}

/* Makes the scores of a document's candidate blocks [n] comparable with those of other
 * documents. */
static void normalize(const struct context_view *v, float *value, uint32_t n, double length)
{
    const struct samkv_param *set = v->param;
    double low = INFINITY, high = -INFINITY, sum = 0, squares = 0, all = 0, n_there = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double x = (double)value[i];
        if (!(value[i] > -INFINITY)) continue;
        low = fmin(low, x);
        high = fmax(high, x);
        sum += x;
        squares += x * x;
        n_there++;
    }
    for (uint32_t i = 0; i < n; i++)
        all +=
            value[i] > -INFINITY ? exp(((double)value[i] - high) / (length > 0 ? length : 1)) : 0;
    const double mean = sum / n_there, variance = squares / n_there - mean * mean;
    const double spread = variance > 0 ? sqrt(variance) : 1, range = high > low ? high - low : 1;
    for (uint32_t i = 0; i < n; i++) {
        const double x = (double)value[i];
        if (!(value[i] > -INFINITY)) continue;
        switch (set->compare) {
        case COMPARE_SPREAD: value[i] = (float)((x - mean) / spread); break;
        case COMPARE_RANGE: value[i] = (float)((x - low) / range); break;
        case COMPARE_SOFTMAX: value[i] = (float)(exp((x - high) / length) / all); break;
        default: value[i] = (float)(x / (length > 0 ? length : 1)); break;
        }
    }
}

/* Scores the blocks of a document in a layer; returns the query's norm. */
static double score_blocks(const struct context_view *v, float *value, float *query, uint32_t doc,
                           uint32_t layer)
{
    query_for(v, query, doc, layer);
    for (uint32_t b = 0; b < n_block(v, doc); b++)
        value[b] =
            is_end(v, doc, b) ? -INFINITY : (float)score(v, query, block_key(v, doc, layer, b));
    return sqrt(dot(query, query, width(v)));
}

/* Sums a document's scores over the layers that it uses. The softmax of a single layer is over the
 * candidates, otherwise over all middle blocks. */
static uint32_t sum_scores(const struct context_view *v, struct context_plan *p, uint32_t doc,
                           struct span layers, uint32_t n_wanted)
{
    const struct samkv_param *set = v->param;
    const uint32_t n = n_block(v, doc), first = first_score(v, doc);
    float *value = p->spare + first, *one = p->spare + first_score(v, v->n_doc);
    float *query = p->spare + (size_t)v->n_page * PAGE_TOK;
    const bool of_candidates = set->compare == COMPARE_SOFTMAX && layers.end - layers.begin == 1;
    double length = 0;
    memset(value, 0, n * sizeof *value);
    for (uint32_t layer = layers.begin; layer < layers.end; layer++) {
        length = score_blocks(v, one, query, doc, layer);
        if (!of_candidates) normalize(v, one, n, length);
        for (uint32_t b = 0; b < n; b++) value[b] += one[b];
    }
    const uint32_t n_kept = keep_best(value, 0, n, n_wanted);
    if (of_candidates) normalize(v, value, n, length);
    return n_kept;
}

static void keep_block(const struct context_view *v, struct context_plan *p, uint32_t layer,
                       uint32_t doc, uint32_t block)
{
    const struct samkv_param *set = v->param;
    set_block(v, p->resident + (size_t)layer * v->n_page, doc, block);
    if (set->recompute && (set->hot == HOT_ALL || is_hot(v, doc, layer, block)))
        mark_hot(v, p, layer, doc, block);
}

/* Keeps the blocks that still have a score, in these layers. */
static void keep_scored(const struct context_view *v, struct context_plan *p, struct span layers)
{
    for (uint32_t d = 0; d < v->n_doc; d++)
        for (uint32_t b = 0; b < n_block(v, d); b++)
            for (uint32_t layer = layers.begin; layer < layers.end; layer++)
                if (p->spare[first_score(v, d) + b] > -INFINITY) keep_block(v, p, layer, d, b);
}

/* choose=read: keeps the middle blocks with the most attention from the question, in all layers. */
static void choose_read(const struct context_view *v, struct context_plan *p)
{
    const struct samkv_param *set = v->param;
    const size_t n_tok = (size_t)v->n_page * PAGE_TOK;
    uint32_t n_middle_blocks = 0;
    for (uint32_t d = 0; d < v->n_doc; d++) {
        float *value = p->spare + first_score(v, d);
        n_middle_blocks += n_middle(v, d);
        for (uint32_t b = 0; b < n_block(v, d); b++) {
            const size_t begin = (size_t)(v->doc[d].begin + b * PAGES) * PAGE_TOK;
            value[b] = is_end(v, d, b) ? -INFINITY : 0;
            for (uint32_t layer = 0; layer < v->n_layer && !is_end(v, d, b); layer++)
                for (size_t t = begin; t < begin + CONTEXT_BLOCK; t++)
                    value[b] += v->mass[layer * n_tok + t];
        }
    }
    keep_best(p->spare, 0, first_score(v, v->n_doc), (uint32_t)ceil(set->blocks * n_middle_blocks));
    keep_scored(v, p, (struct span){0, v->n_layer});
}

/* Selects the blocks for these layers together: of all documents' candidates the share 1 /
 * documents with the highest scores. */
static void choose(const struct context_view *v, struct context_plan *p, struct span layers,
                   const uint32_t *n_wanted)
{
    const struct samkv_param *set = v->param;
    uint32_t n_kept = 0, n_middle_blocks = 0;
    for (uint32_t d = 0; d < v->n_doc; d++) {
        n_kept += sum_scores(v, p, d, layers, n_wanted[d]);
        n_middle_blocks += n_middle(v, d);
    }
    const uint32_t n_counted = set->divide_all ? n_middle_blocks : n_kept;
    keep_best(p->spare, 0, first_score(v, v->n_doc), (n_counted + v->n_doc - 1) / v->n_doc);
    keep_scored(v, p, layers);
}

/* choose=asked, the paper's selection: candidates of each document, then the filter over all. */
static void choose_asked(const struct context_view *v, struct context_plan *p)
{
    const struct samkv_param *set = v->param;
    uint32_t n_wanted[CONTEXT_DOC_MAX];
    for (uint32_t d = 0; d < v->n_doc; d++)
        n_wanted[d] = candidate_count(v, p->spare + (size_t)v->n_page * PAGE_TOK, d);
    const uint32_t n_at_once = set->scope == SCOPE_LAYER ? 1 : v->n_layer;
    for (uint32_t layer = 0; layer < v->n_layer; layer += n_at_once)
        choose(v, p, (struct span){layer, layer + n_at_once}, n_wanted);
}

static void samkv_plan(const struct context_view *v, struct context_plan *p)
{
    const struct samkv_param *set = v->param;
    keep_ends(v, p);
    for (uint32_t layer = 0; layer < v->n_layer && set->recompute; layer++)
        for (uint32_t t = v->doc[0].begin * PAGE_TOK; t < v->n_page * PAGE_TOK; t++)
            if (p->resident[(size_t)layer * v->n_page + t / PAGE_TOK])
                context_mark(v, p, layer, t, t + 1);
    if (set->select && set->choose == CHOOSE_READ) choose_read(v, p);
    if (set->select && set->choose == CHOOSE_ASKED) choose_asked(v, p);
}

/* The layers whose attention choose=read sums: the same as auto's (context.h). */
static void samkv_reads(const struct context_view *v, uint32_t *first, uint32_t *end)
{
    const struct samkv_param *set = v->param;
    const bool any = set->select && set->choose == CHOOSE_READ;
    *first = any ? context_layer_at(v, CONTEXT_READ_FROM) : 0;
    *end = any ? context_layer_at(v, CONTEXT_READ_TO) : 0;
}

static uint32_t samkv_asks(const void *param)
{
    const struct samkv_param *set = param;
    return set->asks;
}

static enum context_fusion samkv_fuses(const void *param)
{
    const struct samkv_param *set = param;
    if (set->update == UPDATE_OVERWRITE) return CONTEXT_FUSION_NONE;
    return set->fuse_by == FUSE_HEAD ? CONTEXT_FUSION_HEAD : CONTEXT_FUSION_TOKEN;
}

static const struct method_context hooks = {.probe = samkv_probe,
                                            .asks = samkv_asks,
                                            .plan = samkv_plan,
                                            .reads = samkv_reads,
                                            .fuses = samkv_fuses};

static const sac_method_deviation deviations[] = {
    {"the question's query is compared with the mean keys of blocks",
     "the attention of the question's last token to a block, token by token, selects "
     "(choose=asked: as in the paper)",
     "a mean of 64 keys says little about the one token that answers, so more blocks would have to "
     "be kept; reading keys takes less time than recomputing the ends",
     "the answer's block ranked first of 48 in 11 of 15 questions, fifth at worst"},
    {"the number of blocks kept follows from an anchor",
     "it is such that with ten documents of 1,360 tokens 15 percent are kept (choose=asked: the "
     "anchor)",
     "the paper keeps 14.9 percent", NULL},
    {"in middle blocks, tokens that stand out are recomputed",
     "all of them are (hot=token: as in the paper)",
     "the answer stands there, and two percent more are computed", NULL},
    {"queries are compared with keys as they are",
     "the mean of the documents' last queries is subtracted first (centre=off: it is not)",
     "the paper finds cosines of -0.3 to 0.3 between queries; in a model whose queries have biases "
     "they are 0.96, and after centring -0.3 to 0.3",
     "median rank of the answer's block among 40: 13 without, 4 with it (asks=1)"},
    {"the question's query is the mean over its tokens",
     "it is that of its last token (asks=0: the mean)",
     "the last token is the one that looks for the answer",
     "median rank 8 with the mean, 4 with the last token"},
    {"the blocks that the anchor is compared with were recorded when the document was computed",
     "they are those that the question asks for most and least (between=noted: as in the paper)",
     "a block that gets much attention within its document is seldom what is asked for",
     "the anchor beat the recorded block in 65 of 72 cases, and no block was selected"},
    {"each layer keeps blocks of its own",
     "all layers keep the same, by the sums of their scores (scope=layer: each its own)",
     "an answer was found if its block was there in the upper two thirds of the layers, not if it "
     "was in the upper third alone",
     "the block was in half of the middle layers before; now it is in all or none"},
    {"the attention of all rows after a block tells which of its tokens matter",
     "at most 256 rows of a document, evenly spaced, do",
     "its cost does not grow with the square of the length", NULL},
    {"rows that deeper layers need see, of tokens that are not kept, only those rows",
     "they see the whole pages of these rows", "pages are the unit that is kept or not", NULL},
    {"the question's queries are those of the question", "those of all tokens after the documents",
     "the end of a chat's turn belongs to every question", NULL},
    {"the layers that determine how many blocks are found by a procedure for each model",
     "they are the last 14 percent by default (layers=)", "the share in the paper's three models",
     NULL},
};

const struct method samkv_method = {
    METHOD_CONTEXT(
        samkv,
        "ends of documents, and blocks that the question attends to, are kept and recomputed"),
    .paper = "Cao et al., Sparse Attention across Multiple-context KV Cache, AAAI 2026",
    .about = "Keeps the first block of each document, the last two, and the blocks in between to "
             "which the question attends most, about a seventh of all. What is kept is recomputed, "
             "so that documents have attended to each other's ends. The content of a middle block "
             "that is not selected cannot be found.",
    METHOD_DEVIATIONS(deviations),
    .context = &hooks,
};
