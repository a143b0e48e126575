/* compose.c: joins documents that were computed separately into one sequence: the public call. A
 * composer (methods/context.h) determines their positions, which pages are kept and which tokens
 * are recomputed. Here documents are checked and joined, the composer is called, dropped pages are
 * freed, and the result is counted. refresh.c recomputes.
 *
 * Invariants:
 *  1. Documents are sequences like others and are not changed: the new sequence shares their pages,
 *     and recomputed tokens go to pages of its own.
 *  2. If joining fails, the new sequence is removed. */
#include "base/mem.h"
#include "engine/doc_stats.h"
#include "engine/engine.h"
#include "engine/mass.h"
#include "engine/refresh.h"
#include "methods/context.h"

#include <string.h>

#define MASS_ROWS 32u /* at most the question's last 32 rows */

struct compose {
    sac_engine *e;
    const sac_compose_params *params;
    struct method_spec spec;
    const struct method_context *hooks;
    sac_seq seq;
    struct context_doc *doc; /* [n_doc] */
    int32_t *begin;          /* [n_doc] positions at which the documents begin, minus `shift` */
    int32_t shift;
    struct context_stats *stats;
    float *query, *mass;
    uint32_t *done; /* [n_page] tokens that earlier rounds have recomputed */
    struct context_view view;
    struct context_plan plan;
    sac_compose_report report;
};

/* ---- Documents ---- */

static sac_status check_doc(const struct compose *c, size_t i, sac_error *err)
{
    const sac_compose_params *p = c->params;
    const struct seq *s = engine_seq(c->e, p->doc[i], err),
                     *first = engine_seq(c->e, p->doc[0], err);
    if (!s || !first) return SAC_ERR_NOT_FOUND;
    if (s->n_done != s->n_all || s->n_done % PAGE_TOK || s->n_done <= p->n_head || s->has_gaps ||
        c->e->segments.n[p->doc[i]] > 0)
        return error_set(
            err, SAC_ERR_ARG,
            "sequence %u is no document: it must be computed, alone, in whole pages of "
            "%u tokens behind a head of %u",
            p->doc[i], PAGE_TOK, p->n_head);
    if (memcmp(s->tok, first->tok, p->n_head * sizeof *s->tok) != 0)
        return error_set(err, SAC_ERR_ARG,
                         "documents 1 and %zu were computed behind different heads: another system "
                         "message or chat template",
                         i + 1);
    return SAC_OK;
}

static enum context_question question_of(const struct compose *c)
{
    const struct method_context *hooks = c->spec.method->context;
    return hooks->question ? hooks->question(c->spec.param) : CONTEXT_QUESTION_NONE;
}

/* The engine's index of the decode method that the composer requires; SAC_METHODS_MAX: the engine
 * does not have it. */
static uint32_t find_decode(const struct compose *c)
{
    const struct method_spec_list *specs = &c->e->method_set[METHOD_SET_DECODE].specs;
    for (uint32_t i = 0; i < specs->n; i++)
        if (strcmp(specs->spec[i].method->name, c->spec.method->context->decode) == 0) return i;
    return SAC_METHODS_MAX;
}

/* Whether the engine has the decode methods that the composer and its caller need, and whether
 * these work with freed pages, at least while the question is computed. */
static sac_status check_method(const struct compose *c, sac_error *err)
{
    const struct method_context *hooks = c->spec.method->context;
    const struct method_spec_list *specs = &c->e->method_set[METHOD_SET_DECODE].specs;
    if (c->params->decode >= specs->n)
        return error_set(err, SAC_ERR_ARG, "there is no decode method %u: the engine has %u",
                         c->params->decode, specs->n);
    const struct method *decode = specs->spec[c->params->decode].method;
    if (hooks->decode && find_decode(c) == SAC_METHODS_MAX)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "context method %s needs decode method %s, which the engine does not have",
                         c->spec.method->name, hooks->decode);
    if (!hooks->computes_all) TRY(method_set_meets_documents(c->e, decode, err));
    if (!hooks->probe && question_of(c) == CONTEXT_QUESTION_NONE) return SAC_OK;
    if (c->e->params.record)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "context method %s gives pages back, which an engine that records reads "
                         "needs",
                         c->spec.method->name);
    if (decode->evicts)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "context method %s gives pages back, and so does decode method %s: they "
                         "cannot be used together",
                         c->spec.method->name, decode->name);
    return SAC_OK;
}

/* Creates the new sequence. Its method is set before documents are attached, because some methods
 * are refused afterwards. */
static sac_status begin_seq(struct compose *c, sac_error *err)
{
    TRY(sac_seq_create(c->e, &c->seq, err));
    return sac_seq_use_decode(c->e, c->seq, c->params->decode, err); /* check_method allows it */
}

static sac_status check(const struct compose *c, sac_error *err)
{
    const sac_compose_params *p = c->params;
    uint64_t n_tok = p->n_head;
    if (!c->e->params.compose)
        return error_set(err, SAC_ERR_ARG, "the engine was created without 'compose'");
    if (p->n_doc == 0) return error_set(err, SAC_ERR_ARG, "there are no documents to join");
    if (p->n_doc > SEGMENT_MAX)
        return error_set(err, SAC_ERR_ARG, "%zu documents: at most %u can be joined", p->n_doc,
                         SEGMENT_MAX);
    if (p->n_head % PAGE_TOK)
        return error_set(err, SAC_ERR_ARG, "a head of %u tokens: it must fill pages of %u",
                         p->n_head, PAGE_TOK);
    if (c->e->batch.n_row_max < PAGE_TOK)
        return error_set(err, SAC_ERR_ARG, "a batch of %u rows: joining documents needs %u",
                         c->e->batch.n_row_max, PAGE_TOK);
    TRY(check_method(c, err));
    for (size_t i = 0; i < p->n_doc; i++) {
        TRY(check_doc(c, i, err));
        n_tok += c->e->seqs[p->doc[i]].n_done - p->n_head;
    }
    if (n_tok > repeat_context(c->e))
        return error_set(err, SAC_ERR_CONTEXT,
                         "the %zu documents have %llu tokens together, the context holds %u",
                         p->n_doc, (unsigned long long)n_tok, repeat_context(c->e));
    return SAC_OK;
}

/* Finds the range of pages of each document in the new sequence. */
static void count_pages(struct compose *c)
{
    uint32_t n = c->params->n_head / PAGE_TOK;
    for (size_t i = 0; i < c->params->n_doc; i++) {
        const uint32_t n_tok = c->e->seqs[c->params->doc[i]].n_done - c->params->n_head;
        c->doc[i] = (struct context_doc){n, n + n_tok / PAGE_TOK};
        n = c->doc[i].end;
    }
    c->view.n_page = n;
}

/* A sliding window is counted in tokens, so the documents must be at consecutive positions. */
static sac_status check_window(const struct compose *c, sac_error *err)
{
    bool is_moved = question_of(c) == CONTEXT_QUESTION_APART || c->shift != 0;
    for (uint32_t i = 0; i < c->view.n_doc; i++)
        is_moved = is_moved || c->begin[i] != (int32_t)(c->doc[i].begin * PAGE_TOK);
    const struct config *config = &c->e->model->config;
    if (!is_moved || config->window == 0 || config->swa_pattern == 0) return SAC_OK;
    return error_set(
        err, SAC_ERR_UNSUPPORTED,
        "context method %s moves documents: %s has layers that see a window of tokens, "
        "for which they must stand behind each other",
        c->spec.method->name, c->e->model->name);
}

/* Determines the documents' positions so that what follows them is at the position of its index.
 * Two documents may have the same positions or disjoint ones, but must not overlap partly. */
static sac_status place(struct compose *c, sac_error *err)
{
    int32_t end = (int32_t)(c->view.n_page * PAGE_TOK);
    for (uint32_t i = 0; i < c->view.n_doc; i++)
        c->begin[i] = (int32_t)(c->doc[i].begin * PAGE_TOK);
    if (c->hooks->place) c->hooks->place(&c->view, c->begin, &end);
    for (uint32_t i = 0; i < c->view.n_doc; i++) {
        const int32_t n_tok = (int32_t)((c->doc[i].end - c->doc[i].begin) * PAGE_TOK);
        const int32_t behind = i + 1 < c->view.n_doc ? c->begin[i + 1] : end;
        const int32_t next = behind == c->begin[i] ? end : behind;
        if (next - c->begin[i] < n_tok)
            return error_set(err, SAC_ERR_ARG,
                             "document %u has %d tokens: the place that context method %s gives it "
                             "has %d",
                             i + 1, n_tok, c->spec.method->name, next - c->begin[i]);
    }
    c->shift = (int32_t)(c->view.n_page * PAGE_TOK) - end;
    return check_window(c, err);
}

static sac_status attach(struct compose *c, sac_error *err)
{
    const int32_t n_head = (int32_t)c->params->n_head;
    const struct segment_source head = {c->params->doc[0], 0, c->params->n_head, c->shift};
    TRY(segment_attach(c->e, c->seq, &head, err));
    for (size_t i = 0; i < c->params->n_doc; i++) {
        const struct segment_source from = {.seq = c->params->doc[i],
                                            .first = c->params->n_head,
                                            .n_tok = (c->doc[i].end - c->doc[i].begin) * PAGE_TOK,
                                            .offset = c->begin[i] - n_head + c->shift};
        TRY(segment_attach(c->e, c->seq, &from, err));
    }
    return SAC_OK;
}

/* ---- Without stored documents ---- */

static sac_status compute_all(struct compose *c, sac_error *err)
{
    sac_engine *e = c->e;
    const uint64_t start = clock_us();
    for (size_t i = 0; i < c->params->n_doc; i++) {
        const uint32_t first = i == 0 ? 0 : c->params->n_head;
        const struct seq *doc = &e->seqs[c->params->doc[i]];
        TRY(sac_seq_append(e, c->seq, doc->tok + first, doc->n_done - first, SAC_ROW_PROMPT,
                           SAC_WANT_NONE, err));
    }
    TRY(engine_run_only(e, c->seq, c->params->progress, c->params->user, err));
    c->report.refresh_ms = (double)(clock_us() - start) * 1e-3;
    c->report.n_row = (uint64_t)context_tokens(&c->view) * c->view.n_layer;
    return SAC_OK;
}

/* ---- With stored documents ---- */

static bool stays(const struct compose *c, uint32_t layer, uint32_t page)
{
    return page < c->params->n_head / PAGE_TOK ||
           config_layer_is_local(&c->e->model->config, layer) ||
           c->plan.resident[(size_t)layer * c->view.n_page + page];
}

/* Frees the pages of a layer that are not kept; with `all`, also those that hold tokens which
 * deeper layers recompute. */
static void drop_pages(struct compose *c, bool all)
{
    struct seq *s = &c->e->seqs[c->seq];
    const uint32_t n_page = c->view.n_page, n_layer = c->view.n_layer;
    for (uint32_t page = 0; page < n_page; page++) {
        bool is_needed = false; /* by a deeper layer */
        for (uint32_t layer = n_layer; layer-- > 0;) {
            const bool is_row = c->plan.refresh[(size_t)layer * n_page + page] != 0;
            if (!stays(c, layer, page) && (all || !(is_needed || is_row))) {
                for (uint32_t h = 0; h < c->e->pool.geom.n_kv_head; h++)
                    pool_drop(&c->e->pool, c->seq, layer, h, page);
                s->has_gaps = true;
            }
            is_needed = is_needed || is_row;
        }
    }
}

static sac_status plan_masks(struct compose *c, sac_error *err)
{
    const size_t n = (size_t)c->view.n_layer * c->view.n_page;
    c->plan.refresh = mem_calloc(n, sizeof *c->plan.refresh);
    c->plan.resident = mem_alloc(n * sizeof *c->plan.resident);
    c->plan.spare = mem_alloc(
        (2 * (size_t)c->view.n_page * PAGE_TOK + 4 * config_q_width(&c->e->model->config)) *
        sizeof *c->plan.spare);
    c->view.done = c->done = mem_calloc(c->view.n_page, sizeof *c->done);
    if (!c->plan.refresh || !c->plan.resident || !c->plan.spare || !c->done)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the plan of %u documents",
                         c->view.n_doc);
    memset(c->plan.resident, 1, n);
    return SAC_OK;
}

/* ---- The question's attention ---- */

static sac_status collect_notes(struct compose *c, sac_error *err)
{
    const uint32_t n_layer = c->view.n_layer;
    struct context_stats *stats = mem_calloc((size_t)c->view.n_doc * n_layer, sizeof *stats);
    if (!stats) return error_set(err, SAC_ERR_MEMORY, "out of memory for statistics");
    c->view.stats = c->stats = stats;
    for (uint32_t d = 0; d < c->view.n_doc; d++) {
        const struct doc_stats *n = c->e->seqs[c->params->doc[d]].stats;
        if (!n || n->n_tok != (c->doc[d].end - c->doc[d].begin) * PAGE_TOK)
            return error_set(err, SAC_ERR_ARG,
                             "context method %s needs what was noted of document %u when it was "
                             "computed: it is not there",
                             c->spec.method->name, d + 1);
        for (uint32_t l = 0; l < n_layer; l++)
            stats[(size_t)d * n_layer + l] = doc_stats_layer(c->e, n, l);
    }
    return SAC_OK;
}

/* How many of the question's last tokens represent it. */
static uint32_t count_asking(const struct compose *c)
{
    const uint32_t n = c->hooks->asks ? c->hooks->asks(c->spec.param) : 0;
    const uint32_t n_question = (uint32_t)c->params->n_question;
    return n > 0 && n < n_question ? n : n_question;
}

/* Computes the question's rows over the pages that the composer's probe keeps; their keys and
 * values are removed afterwards. */
static sac_status run_probe(struct compose *c, struct doc_stats_watch *w, sac_error *err)
{
    sac_engine *e = c->e;
    const uint32_t n_done = e->seqs[c->seq].n_done;
    uint32_t pending = 1;
    w->seq_i = c->seq;
    w->end = n_done + (uint32_t)c->params->n_question;
    w->begin = w->end - count_asking(c);
    e->watch = w;
    TRY(sac_seq_append(e, c->seq, c->params->question, c->params->n_question, SAC_ROW_PROMPT,
                       SAC_WANT_NONE, err));
    while (pending) {
        TRY(engine_step_only(e, c->seq, err));
        sac_seq_length(e, c->seq, &pending);
    }
    const size_t n = (size_t)c->view.n_layer * config_q_width(&e->model->config);
    for (size_t i = 0; i < n; i++) w->query[i] /= (float)count_asking(c);
    return doc_stats_check(w, err);
}

/* Queries before rotation, averaged over the rows that represent the question. The sequence is
 * created again afterwards. */
static sac_status probe_queries(struct compose *c, sac_error *err)
{
    const size_t n = (size_t)c->view.n_layer * config_q_width(&c->e->model->config);
    struct doc_stats_watch w = {.query = mem_calloc(n, sizeof(float))};
    c->query = w.query;
    c->view.query = w.query;
    if (!w.query) return error_set(err, SAC_ERR_MEMORY, "out of memory for a question's queries");
    drop_pages(c, true);
    const sac_status status = run_probe(c, &w, err);
    c->e->watch = NULL;
    TRY(status);
    sac_seq_remove(c->e, c->seq);
    TRY(begin_seq(c, err));
    return attach(c, err);
}

static sac_status probe(struct compose *c, sac_error *err)
{
    if (c->params->n_question == 0)
        return error_set(err, SAC_ERR_ARG, "context method %s needs a question",
                         c->spec.method->name);
    TRY(collect_notes(c, err));
    if (c->hooks->probe(&c->view, &c->plan)) TRY(probe_queries(c, err));
    memset(c->plan.resident, 1, (size_t)c->view.n_layer * c->view.n_page);
    return SAC_OK;
}

/* Whether one of the layers [layer, end) has full attention. */
static bool has_global(const struct compose *c, uint32_t layer, uint32_t end)
{
    while (layer < end && config_layer_is_local(&c->e->model->config, layer)) layer++;
    return layer < end;
}

/* The question's attention to all documents as they are stored, in layers [first, end). */
static sac_status read_layers(struct compose *c, uint32_t first, uint32_t end, sac_error *err)
{
    const size_t n = (size_t)c->view.n_layer * config_q_width(&c->e->model->config);
    const uint32_t n_asking = count_asking(c) < MASS_ROWS ? count_asking(c) : MASS_ROWS;
    struct doc_stats_watch w = {.first = c->e->seqs[c->seq].n_done +
                                         (uint32_t)c->params->n_question - n_asking,
                                .every = 1,
                                .n_sample = n_asking};
    if (n_asking == 0)
        return error_set(err, SAC_ERR_ARG, "context method %s needs a question",
                         c->spec.method->name);
    mem_free(c->mass); /* from the previous round */
    c->view.mass = c->mass =
        mem_alloc((size_t)c->view.n_layer * c->view.n_page * PAGE_TOK * sizeof *c->mass);
    w.query = mem_calloc(n, sizeof *w.query);
    w.sample = mem_calloc(n * w.n_sample, sizeof *w.sample);
    sac_status status = c->mass && w.query && w.sample
                            ? run_probe(c, &w, err)
                            : error_set(err, SAC_ERR_MEMORY, "out of memory for a question");
    c->e->watch = NULL;
    struct mass_job job = {.watch = &w, .n_page = c->view.n_page, .first = first, .end = end};
    if (!has_global(c, job.first, job.end)) {
        job.first = 0;
        job.end = c->view.n_layer;
    }
    if (status == SAC_OK) status = mass_read(c->e, &job, c->mass, err);
    if (status == SAC_OK) status = sac_seq_truncate(c->e, c->seq, c->view.n_page * PAGE_TOK, err);
    mem_free(w.query);
    mem_free(w.sample);
    return status;
}

static sac_status read_mass(struct compose *c, sac_error *err)
{
    uint32_t first = 0, end = 0;
    if (c->hooks->reads) c->hooks->reads(&c->view, &first, &end);
    return first < end ? read_layers(c, first, end, err) : SAC_OK;
}

/* ---- The question, if the composer determines what it sees ---- */

/* Hides the pages of documents that the question must not see. */
static void hide_pages(struct compose *c)
{
    const bool all = question_of(c) == CONTEXT_QUESTION_APART;
    const uint32_t n_kv_head = c->e->pool.geom.n_kv_head;
    for (uint32_t layer = 0; layer < c->view.n_layer; layer++)
        for (uint32_t p = c->doc[0].begin; p < c->view.n_page; p++)
            for (uint32_t h = 0; h < n_kv_head && (all || !stays(c, layer, p)); h++)
                pool_drop(&c->e->pool, c->seq, layer, h, p);
    c->e->seqs[c->seq].has_gaps = true;
}

static void show_pages(struct compose *c)
{
    struct pool *pool = &c->e->pool;
    for (uint32_t d = 0; d < c->view.n_doc; d++)
        for (uint32_t p = c->doc[d].begin; p < c->doc[d].end; p++) {
            const struct pool_place to = {c->seq, p},
                                    from = {c->params->doc[d],
                                            c->params->n_head / PAGE_TOK + p - c->doc[d].begin};
            for (uint32_t lane = 0; lane < pool_pages_per_index(pool); lane++)
                if (pool_entry(pool, to, lane) == PAGE_NONE)
                    pool_put(pool, to, lane, pool_entry(pool, from, lane));
        }
    c->e->seqs[c->seq].has_gaps = false;
}

static sac_status compute_question(struct compose *c, sac_error *err)
{
    uint32_t pending = (uint32_t)c->params->n_question - 1;
    TRY(sac_seq_append(c->e, c->seq, c->params->question, pending, SAC_ROW_PROMPT, SAC_WANT_NONE,
                       err));
    while (pending) {
        TRY(engine_step_only(c->e, c->seq, err));
        sac_seq_length(c->e, c->seq, &pending);
    }
    return SAC_OK;
}

/* Computes the question's rows over the pages that the composer lets it see. With
 * CONTEXT_QUESTION_APART it sees no document, and its positions directly follow the head's. */
static sac_status ask(struct compose *c, sac_error *err)
{
    sac_engine *e = c->e;
    struct segment list[SEGMENT_MAX];
    const uint32_t n = e->segments.n[c->seq], n_head = c->params->n_head;
    const struct segment head = {n_head / PAGE_TOK, (int32_t)(c->view.n_page * PAGE_TOK - n_head)};
    if (c->params->n_question == 0)
        return error_set(err, SAC_ERR_ARG, "context method %s needs a question",
                         c->spec.method->name);
    memcpy(list, segment_list(e, c->seq), n * sizeof *list);
    hide_pages(c);
    if (question_of(c) == CONTEXT_QUESTION_APART) {
        segment_reset(e, c->seq);
        segment_restore(e, c->seq, &head, n_head > 0);
    }
    TRY(compute_question(c, err));
    segment_reset(e, c->seq);
    segment_restore(e, c->seq, list, n);
    show_pages(c);
    method_set_jump(e, c->seq);
    return SAC_OK;
}

/* Recomputes what the plan names, and frees what it does not keep. */
static sac_status refresh(struct compose *c, sac_error *err)
{
    struct refresh_done done;
    const struct refresh_job job = {.seq_i = c->seq,
                                    .view = &c->view,
                                    .plan = &c->plan,
                                    .hooks = c->hooks,
                                    .fusion = c->hooks->fuses ? c->hooks->fuses(c->spec.param)
                                                              : CONTEXT_FUSION_NONE};
    drop_pages(c, false);
    TRY(refresh_run(c->e, &job, &done, err));
    drop_pages(c, true);
    c->report.n_row += done.n_row;
    c->report.bytes += done.n_page_own * c->e->pool.geom.bytes;
    return SAC_OK;
}

/* Records the recomputed tokens, and clears the plan for the next round. */
static void end_round(struct compose *c)
{
    const size_t n_page = c->view.n_page;
    for (size_t i = 0; i < c->view.n_layer * n_page; i++) c->done[i % n_page] |= c->plan.refresh[i];
    memset(c->plan.refresh, 0, c->view.n_layer * n_page * sizeof *c->plan.refresh);
}

static sac_status run_rounds(struct compose *c, sac_error *err)
{
    const uint32_t n = c->hooks->rounds ? c->hooks->rounds(c->spec.param) : 1;
    for (uint32_t round = 0; round < n; round++) {
        uint64_t start = clock_us();
        if (round > 0) end_round(c);
        TRY(read_mass(c, err));
        c->report.probe_ms += (double)(clock_us() - start) * 1e-3;
        start = clock_us();
        if (c->hooks->plan) c->hooks->plan(&c->view, &c->plan);
        TRY(question_of(c) == CONTEXT_QUESTION_NONE ? refresh(c, err) : ask(c, err));
        c->report.refresh_ms += (double)(clock_us() - start) * 1e-3;
    }
    return SAC_OK;
}

static sac_status join(struct compose *c, sac_error *err)
{
    uint64_t start = clock_us();
    TRY(attach(c, err));
    c->report.join_ms = (double)(clock_us() - start) * 1e-3;
    start = clock_us();
    TRY(plan_masks(c, err));
    if (c->hooks->probe) TRY(probe(c, err));
    c->report.probe_ms = (double)(clock_us() - start) * 1e-3;
    return run_rounds(c, err);
}

/* Tokens that are present, summed over all layers. */
static uint64_t count_resident(const struct compose *c)
{
    uint64_t n = 0;
    for (uint32_t layer = 0; layer < c->view.n_layer; layer++) {
        const page_id *table = pool_table(&c->e->pool, c->seq, layer);
        for (uint32_t p = c->params->n_head / PAGE_TOK; p < c->view.n_page; p++)
            n += table[p] != PAGE_NONE ? PAGE_TOK : 0;
    }
    return n;
}

static sac_status run(struct compose *c, sac_error *err)
{
    const sac_engine *e = c->e;
    c->hooks = c->spec.method->context;
    c->doc = mem_calloc(c->params->n_doc, sizeof *c->doc);
    c->begin = mem_calloc(c->params->n_doc, sizeof *c->begin);
    if (!c->doc || !c->begin)
        return error_set(err, SAC_ERR_MEMORY, "out of memory to join documents");
    c->view = (struct context_view){.shape = &e->shape,
                                    .param = c->spec.param,
                                    .n_layer = e->pool.geom.n_layer,
                                    .n_doc = (uint32_t)c->params->n_doc,
                                    .doc = c->doc,
                                    .n_head = e->model->config.n_head};
    count_pages(c);
    TRY(place(c, err));
    TRY(c->hooks->computes_all ? compute_all(c, err) : join(c, err));
    if (c->hooks->decode) TRY(sac_seq_use_decode(c->e, c->seq, find_decode(c), err));
    const double all = (double)context_tokens(&c->view) * c->view.n_layer;
    c->report.decode = c->e->seqs[c->seq].method_i[METHOD_SET_DECODE];
    c->report.n_tok = context_tokens(&c->view);
    c->report.resident_share = (double)count_resident(c) / all;
    c->report.recomputed_share = (double)c->report.n_row / all;
    return SAC_OK;
}

sac_status sac_compose(sac_engine *e, const sac_compose_params *params, sac_seq *out,
                       sac_compose_report *report, sac_error *err)
{
    struct compose c = {.e = e, .params = params};
    TRY(method_spec_parse(&c.spec, "context", params->method, err));
    TRY(check(&c, err));
    TRY(begin_seq(&c, err));
    const sac_status status = run(&c, err);
    mem_free(c.doc);
    mem_free(c.begin);
    mem_free(c.stats);
    mem_free(c.query);
    mem_free(c.mass);
    mem_free(c.done);
    mem_free(c.plan.refresh);
    mem_free(c.plan.resident);
    mem_free(c.plan.spare);
    if (status != SAC_OK) {
        sac_seq_remove(e, c.seq);
        return status;
    }
    *out = c.seq;
    if (report) *report = c.report;
    return SAC_OK;
}
