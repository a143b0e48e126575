/* auto.c: the tokens to which the question attends are recomputed.
 *
 * CacheBlend recomputes what the other documents have changed most, and nothing attends to most of
 * that. Here the question's rows are computed once over the stored documents, and the tokens to
 * which they attend most are recomputed, so that what is read is right. The first document has
 * nothing missing before it and is left as it is.
 *
 * Decided by measurement (docs/performance/stored_documents.md): the weight of a token is its share
 * of attention in the middle layers, where a question looks for its answer, with more weight for
 * later rows (engine/mass.h). Neighbours of an attended token count in part, too, because its keys
 * and values depend on them. The layers above those, where nothing attends to what would be
 * changed, leave all tokens as they are. The question may read more than once: over documents that
 * have not attended to each other it reads wrong places, too, so a part is selected first, and the
 * rest by what it reads after that part is recomputed. */
#include "methods/context.h"

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "1", "share of the question's attention whose tokens are recomputed")           \
    P(SHARE, most, "0.07", "largest share of the documents' tokens that is recomputed")            \
    P(SHARE, layers, "0.85", "share of the layers, the first ones, in which they are recomputed")  \
    P(TOKENS, reach, "1", 0, 1024,                                                                 \
      "neighbours on either side that count in part what a token counts; 0: none")                 \
    P(COUNT, rounds, "1", 1, 8,                                                                    \
      "how often the question reads and selects; later passes read the recomputed tokens")
METHOD_PARAMS(auto, PARAMS)

static void auto_reads(const struct context_view *v, uint32_t *first, uint32_t *end)
{
    *first = context_layer_at(v, CONTEXT_READ_FROM);
    *end = context_layer_at(v, CONTEXT_READ_TO);
}

/* Keys and values of a token depend on its neighbours, so these should be recomputed with it: adds
 * to each token the attention of tokens of its document within `reach`, decreasing with the
 * distance. */
static void spread(const struct context_view *v, uint32_t reach, float *sum, float *spare)
{
    for (uint32_t d = 0; d < v->n_doc; d++) {
        const uint32_t begin = v->doc[d].begin * PAGE_TOK, end = v->doc[d].end * PAGE_TOK;
        memcpy(spare, sum + begin, (end - begin) * sizeof *spare);
        for (uint32_t t = begin; t < end; t++)
            for (uint32_t far = 1; far <= reach; far++) {
                const float part = 1 - (float)far / (float)(reach + 1);
                sum[t] += t >= begin + far ? part * spare[t - begin - far] : 0;
                sum[t] += t + far < end ? part * spare[t - begin + far] : 0;
            }
    }
}

static void auto_plan(const struct context_view *v, struct context_plan *p)
{
    const struct auto_param *set = v->param;
    const size_t n_tok = (size_t)v->n_page * PAGE_TOK;
    const uint32_t n_layer = context_layer_at(v, set->layers);
    uint32_t *word = context_refresh(v, p, 0);
    float *sum = p->spare + n_tok;
    memset(sum, 0, n_tok * sizeof *sum);
    for (uint32_t layer = 0; layer < v->n_layer; layer++)
        for (size_t t = 0; t < n_tok; t++) sum[t] += v->mass[layer * n_tok + t];
    spread(v, set->reach, sum, p->spare);
    for (uint32_t i = 1; i < v->n_doc; i++)
        context_mark(v, p, 0, v->doc[i].begin * PAGE_TOK, v->doc[i].end * PAGE_TOK);
    for (uint32_t i = 0; i < v->n_page; i++) word[i] &= ~v->done[i];
    const uint32_t n = context_count_share(v, word, sum, set->mass, p->spare);
    const double share = n_layer > 0 ? set->most / set->rounds : 0;
    const uint32_t most = (uint32_t)(share * context_tokens(v));
    context_keep_best(v, word, sum, n < most ? n : most, p->spare);
    for (uint32_t layer = 1; layer < n_layer; layer++)
        memcpy(context_refresh(v, p, layer), word, v->n_page * sizeof *word);
}

static uint32_t auto_rounds(const void *param)
{
    const struct auto_param *set = param;
    return set->rounds;
}

static const struct method_context hooks = {
    .plan = auto_plan, .reads = auto_reads, .rounds = auto_rounds};

const struct method auto_context_method = {
    METHOD_CONTEXT(auto, "the tokens that the question attends to are recomputed"),
    .about = "The question reads the documents as they were computed, and the tokens to which it "
             "attends most are recomputed. Six percent of the work goes where an answer comes "
             "from, whatever else the documents would attend to in each other. It needs the "
             "question before the documents are joined. With mass below 1 it recomputes only as "
             "many tokens as hold that share of the question's attention, if they are fewer; most "
             "limits the share of tokens recomputed.",
    .facts = {.whole = "most=1,layers=1,rounds=1"},
    .context = &hooks,
};
