/* samkv.c: a small part of each document is kept, chosen for each layer by the question, and nearly
 * all that is kept is computed again: SamKV (AAAI 2026).
 *
 * Of a document the first block (64 tokens) and the last two stay. The question's queries, made
 * over those alone, are turned towards what the other documents' ends ask about (a bias by cosine)
 * and choose among the blocks between. How many: by where the anchor, the mean of what stays, lies
 * between the block that keeps most attention and the one that gets least. Of all candidates of a
 * layer one in so many stays as there are documents. First and last blocks are computed again in
 * all layers, of the others tokens that stand out by three sigma.
 *
 * The paper leaves open, here: queries and keys are compared before rotation; the mean query is one
 * vector of all heads; the blocks' scores are divided by the query's length before documents are
 * compared; middle blocks without selection are not kept; the last seventh of the layers say how
 * many blocks. */
#include "methods/context.h"

#include <math.h>

enum { UPDATE_FUSION, UPDATE_OVERWRITE };
enum { N_INI = 1, N_LOC = 2, PAGES = CONTEXT_BLOCK / PAGE_TOK };

#define PARAMS(P)                                                                                  \
    P(CHOICE, update, "fusion", "fusion|overwrite",                                                \
      "fusion: what is computed again is mixed with what was, by their cosine")                    \
    P(FLAG, select, "on", "middle blocks are chosen; off: none is kept")                           \
    P(FLAG, bias, "on", "the question's query is turned by the other documents' last queries")     \
    P(FLAG, recompute, "on", "what is kept is computed again")                                     \
    P(FLAG, all_above, "off",                                                                      \
      "where every block beats the anchor, all are candidates; off: none, "                        \
      "as the paper's formula says")
METHOD_PARAMS(samkv, PARAMS)

static uint32_t n_block(const struct context_view *v, uint32_t doc)
{
    return (v->doc[doc].end - v->doc[doc].begin + PAGES - 1) / PAGES;
}

/* Blocks between the first and the last two. */
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

/* First and last blocks, in all layers. */
static void samkv_probe(const struct context_view *v, struct context_plan *p)
{
    memset(p->resident, 0, (size_t)v->n_layer * v->n_page * sizeof *p->resident);
    for (uint32_t layer = 0; layer < v->n_layer; layer++)
        for (uint32_t d = 0; d < v->n_doc; d++)
            for (uint32_t b = 0; b < n_block(v, d); b++)
                if (is_end(v, d, b)) set_block(v, p->resident + (size_t)layer * v->n_page, d, b);
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

/* Inner product of queries of all heads with the keys that they share. */
static double score(const struct context_view *v, const float *query, const float *key)
{
    const size_t d = v->shape->geom->head_dim;
    double sum = 0;
    for (uint32_t h = 0; h < v->n_head; h++)
        sum += dot(query + h * d, key + h / v->shape->group * d, d);
    return sum;
}

static const struct context_note *note_of(const struct context_view *v, uint32_t doc,
                                          uint32_t layer)
{
    return &v->note[(size_t)doc * v->n_layer + layer];
}

static const float *block_key(const struct context_view *v, uint32_t doc, uint32_t layer,
                              uint32_t block)
{
    const struct page_geom *g = v->shape->geom;
    return note_of(v, doc, layer)->key + (size_t)block * g->n_kv_head * g->head_dim;
}

/* Equation 1: the question's query as one document is asked. */
static void query_for(const struct context_view *v, float *out, uint32_t doc, uint32_t layer)
{
    const struct samkv_param *set = v->param;
    const size_t n = width(v);
    const float *query = v->query + (size_t)layer * n;
    const double length = sqrt(dot(query, query, n));
    memcpy(out, query, n * sizeof *out);
    for (uint32_t j = 0; j < v->n_doc && set->bias; j++) {
        const float *other = note_of(v, j, layer)->query;
        const double far = length * sqrt(dot(other, other, n));
        if (j == doc || !(far > 0)) continue;
        const double weight = fabs(dot(query, other, n)) / far / (v->n_doc - 1);
        for (size_t i = 0; i < n; i++) out[i] += (float)(weight * (double)other[i]);
    }
}

/* ---- How many blocks (equations 2 and 3) ---- */

static double share_in_layer(const struct context_view *v, const float *query, uint32_t doc,
                             uint32_t layer)
{
    const struct samkv_param *set = v->param;
    const struct context_note *note = note_of(v, doc, layer);
    uint32_t most = N_INI, least = N_INI;
    for (uint32_t b = N_INI; b < N_INI + n_middle(v, doc); b++) {
        if (note->slope[b] < note->slope[most]) most = b;
        if (note->mass[b] < note->mass[least]) least = b;
    }
    const double high = score(v, query, block_key(v, doc, layer, most));
    const double low = score(v, query, block_key(v, doc, layer, least));
    const double anchor = score(v, query, note->anchor);
    if (set->all_above && anchor <= low) return 1;
    return low < anchor && anchor <= high ? (high - anchor) / (high - low) : 0;
}

static uint32_t n_candidate(const struct context_view *v, float *query, uint32_t doc)
{
    const uint32_t n_last = v->n_layer < 7 ? 1 : (v->n_layer * 14 + 50) / 100;
    double sum = 0;
    if (n_middle(v, doc) == 0) return 0;
    for (uint32_t layer = v->n_layer - n_last; layer < v->n_layer; layer++) {
        query_for(v, query, doc, layer);
        sum += share_in_layer(v, query, doc, layer);
    }
    return (uint32_t)ceil(sum / n_last * n_middle(v, doc));
}

/* ---- Which ---- */

/* The place in `score` [n_block of all] of a document's blocks. */
static uint32_t first_score(const struct context_view *v, uint32_t doc)
{
    uint32_t n = 0;
    for (uint32_t d = 0; d < doc; d++) n += n_block(v, d);
    return n;
}

/* Keeps the n best of [begin, end) and makes the others -INFINITY; the first of equal ones. */
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

/* A token of a middle block that decays slower than those of the others by three sigma. */
static bool is_hot(const struct context_view *v, uint32_t doc, uint32_t layer, uint32_t block)
{
    const struct context_note *note = note_of(v, doc, layer);
    const uint32_t n = n_middle(v, doc);
    double sum = 0, squares = 0;
    for (uint32_t b = N_INI; b < N_INI + n; b++) {
        sum += (double)note->slope[b];
        squares += (double)note->slope[b] * (double)note->slope[b];
    }
    const double mean = sum / n, variance = squares / n - mean * mean;
    return (double)note->slope[block] < mean - 3 * sqrt(variance > 0 ? variance : 0);
}

static void choose_in_layer(const struct context_view *v, struct context_plan *p, uint32_t layer,
                            const uint32_t *n_wanted)
{
    const struct samkv_param *set = v->param;
    float *value = p->spare, *query = p->spare + (size_t)v->n_page * PAGE_TOK;
    bool *resident = p->resident + (size_t)layer * v->n_page;
    const uint32_t n_all = first_score(v, v->n_doc);
    uint32_t n_kept = 0;
    for (uint32_t d = 0; d < v->n_doc; d++) {
        const uint32_t first = first_score(v, d);
        query_for(v, query, d, layer);
        const double length = sqrt(dot(query, query, width(v)));
        for (uint32_t b = 0; b < n_block(v, d); b++)
            value[first + b] = is_end(v, d, b)
                                   ? -INFINITY
                                   : (float)(score(v, query, block_key(v, d, layer, b)) /
                                             (length > 0 ? length : 1));
        n_kept += keep_best(value, first, first + n_block(v, d), n_wanted[d]);
    }
    keep_best(value, 0, n_all, (n_kept + v->n_doc - 1) / v->n_doc);
    for (uint32_t d = 0; d < v->n_doc; d++)
        for (uint32_t b = 0; b < n_block(v, d); b++) {
            if (!(value[first_score(v, d) + b] > -INFINITY)) continue;
            set_block(v, resident, d, b);
            const uint32_t token =
                v->doc[d].begin * PAGE_TOK + (uint32_t)note_of(v, d, layer)->token[b];
            if (set->recompute && is_hot(v, d, layer, b))
                context_mark(v, p, layer, token, token + 1);
        }
}

static void samkv_plan(const struct context_view *v, struct context_plan *p)
{
    const struct samkv_param *set = v->param;
    uint32_t n_wanted[CONTEXT_DOC_MAX];
    samkv_probe(v, p);
    for (uint32_t layer = 0; layer < v->n_layer && set->recompute; layer++)
        for (uint32_t t = v->doc[0].begin * PAGE_TOK; t < v->n_page * PAGE_TOK; t++)
            if (p->resident[(size_t)layer * v->n_page + t / PAGE_TOK])
                context_mark(v, p, layer, t, t + 1);
    if (!set->select) return;
    for (uint32_t d = 0; d < v->n_doc; d++)
        n_wanted[d] = n_candidate(v, p->spare + (size_t)v->n_page * PAGE_TOK, d);
    for (uint32_t layer = 0; layer < v->n_layer; layer++) choose_in_layer(v, p, layer, n_wanted);
}

static bool samkv_fuses(const void *param)
{
    const struct samkv_param *set = param;
    return set->update == UPDATE_FUSION;
}

static const struct method_context hooks = {
    .probe = samkv_probe, .plan = samkv_plan, .fuses = samkv_fuses};

static const sac_method_deviation deviations[] = {
    {"attention of all rows behind a block tells which of its tokens matters",
     "at most 256 rows of a document, evenly spaced, tell it",
     "its cost does not grow with the square of the length", NULL},
    {"rows that deeper layers need see, of tokens that are not kept, those rows alone",
     "they see the whole pages of these rows", "pages are what can be there or not", NULL},
    {"the question's queries are those of the question", "those of all tokens behind the documents",
     "the end of a chat's turn belongs to every question", NULL},
    {"layers that tell how many blocks are found by a procedure for each model",
     "they are the last 14 percent", "that is what the paper's three models have", NULL},
};

const struct method samkv_method = {
    .kind = "context",
    .name = "samkv",
    .summary = "ends of documents and blocks that the question chooses, computed again",
    .paper = "Cao et al., Sparse Attention across Multiple-context KV Cache, AAAI 2026",
    .about =
        "Keeps the first block of each document, the last two, and in each layer those blocks "
        "between that the question asks for, about a seventh of all; computes nearly all that "
        "is kept again, so that documents have read each other's ends. What stands in a middle "
        "block that is not chosen cannot be found.",
    .params = &samkv_params,
    .deviation = deviations,
    .n_deviation = sizeof deviations / sizeof deviations[0],
    .context = &hooks,
};
