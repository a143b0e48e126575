/* infllm.c: documents are one long context, of which the question and every new token read the
 * blocks that match them: Multi-InfLLM, SamKV's retrieval baseline, from InfLLM (Xiao et al.,
 * NeurIPS 2024).
 *
 * Nothing is recomputed or freed. The question is computed over the first tokens, the most recent
 * ones and, in each layer, the blocks whose mean keys have the largest products with its mean
 * query, which comes from a first pass over first and most recent tokens alone. Its last token, and
 * each new one, select for themselves, by the decode method infllm. */
#include "methods/context.h"

#include <math.h>

enum { PAGES = CONTEXT_BLOCK / PAGE_TOK };

#define PARAMS(P)                                                                                  \
    P(TOKENS, sink, "128", 0, 1 << 24, "first tokens of the documents, read by the question")      \
    P(TOKENS, recent, "0", 0, 1 << 24,                                                             \
      "last tokens of the documents, read by the question; 0: 128 per document")                   \
    P(COUNT, blocks, "32", 0, 1 << 18, "blocks of 64 tokens that it selects in each layer")
METHOD_PARAMS(infllm, PARAMS)

/* Pages for n_tok tokens, at most `most`. */
static uint32_t whole_pages(uint32_t n_tok, uint32_t most)
{
    const uint32_t n = n_tok / PAGE_TOK + (n_tok % PAGE_TOK > 0);
    return n < most ? n : most;
}

static bool infllm_probe(const struct context_view *v, struct context_plan *p)
{
    const struct infllm_param *set = v->param;
    const uint32_t first = v->doc[0].begin, n_page = v->n_page - first;
    const uint32_t n_sink = whole_pages(set->sink, n_page);
    const uint32_t n_recent = whole_pages(set->recent ? set->recent : 128 * v->n_doc, n_page);
    for (uint32_t layer = 0; layer < v->n_layer; layer++) {
        bool *resident = p->resident + (size_t)layer * v->n_page;
        for (uint32_t i = 0; i < n_page; i++)
            resident[first + i] = i < n_sink || i >= n_page - n_recent;
    }
    return true;
}

/* Dot products of the question's mean query with the mean keys of a document's blocks. */
static void score_blocks(const struct context_view *v, uint32_t doc, uint32_t layer, float *value)
{
    const struct page_geom *g = v->shape->geom;
    const struct context_stats *stats = &v->stats[(size_t)doc * v->n_layer + layer];
    const float *query = v->query + (size_t)layer * v->n_head * g->head_dim;
    for (uint32_t b = 0; b < (v->doc[doc].end - v->doc[doc].begin + PAGES - 1) / PAGES; b++) {
        const float *key = stats->key + (size_t)b * g->n_kv_head * g->head_dim;
        double sum = 0;
        for (uint32_t h = 0; h < v->n_head; h++)
            for (uint32_t i = 0; i < g->head_dim; i++)
                sum += (double)query[h * g->head_dim + i] *
                       (double)key[h / v->shape->group * g->head_dim + i];
        value[b] = (float)sum;
    }
}

/* Keeps the `blocks` blocks with the highest scores in a layer. */
static void choose_in_layer(const struct context_view *v, struct context_plan *p, uint32_t layer)
{
    const struct infllm_param *set = v->param;
    bool *resident = p->resident + (size_t)layer * v->n_page;
    float *value = p->spare; /* of blocks, in the order of the documents */
    uint32_t n = 0;
    for (uint32_t d = 0; d < v->n_doc; d++) {
        score_blocks(v, d, layer, value + n);
        n += (v->doc[d].end - v->doc[d].begin + PAGES - 1) / PAGES;
    }
    for (uint32_t left = set->blocks < n ? set->blocks : n; left > 0; left--) {
        uint32_t best = 0, at = 0;
        for (uint32_t i = 1; i < n; i++) best = value[i] > value[best] ? i : best;
        value[best] = -INFINITY;
        for (uint32_t d = 0; d < v->n_doc; d++)
            for (uint32_t page = v->doc[d].begin; page < v->doc[d].end; page += PAGES, at++)
                for (uint32_t i = page; at == best && i < page + PAGES && i < v->doc[d].end; i++)
                    resident[i] = true;
    }
}

static void infllm_plan(const struct context_view *v, struct context_plan *p)
{
    infllm_probe(v, p);
    for (uint32_t layer = 0; layer < v->n_layer; layer++) choose_in_layer(v, p, layer);
}

static enum context_question infllm_question(const void *param)
{
    (void)param;
    return CONTEXT_QUESTION_HERE;
}

static const struct method_context hooks = {
    .probe = infllm_probe, .plan = infllm_plan, .question = infllm_question, .decode = "infllm"};

static const sac_method_deviation deviations[] = {
    {"distant keys are not rotated and all lie at one distance",
     "keys keep the positions of their documents", "the cache holds rotated keys", NULL},
    {"for the question a block of 128 tokens is represented by its four most attended tokens",
     "a block of 64 by the mean of its keys; new tokens select as the decode method infllm does",
     "means are what is stored of a document", NULL},
    {"a window of 4,096 tokens", "128 per document by default (recent=)",
     "the paper's window is as long as several documents", NULL},
};

const struct method context_infllm_method = {
    METHOD_CONTEXT(infllm, "documents are one context in which every row selects its blocks"),
    .paper =
        "Xiao et al., InfLLM: Training-Free Long-Context Extrapolation for LLMs with an Efficient "
        "Context Memory, arXiv 2402.04617",
    .about = "Joins documents as they were computed and reads parts of them: the question reads "
             "the blocks that match its mean query, every new token those that match its own. It "
             "requires the decode method infllm. Nothing is evicted, so what one token does not "
             "select the next can still find.",
    METHOD_DEVIATIONS(deviations),
    .context = &hooks,
};
