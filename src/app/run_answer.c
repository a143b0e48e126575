/* run_answer.c: the engine of `saccade run`, the sequence of its prompt, and the answer.
 *
 * What is computed before the request, documents that are saved or the prompt under --show-reading,
 * is computed by read_to and counted as a part of the answer's times. */
#include "app/interrupt.h"
#include "app/progress.h"
#include "app/run.h"
#include "app/setup_sampling.h"
#include "base/workers.h"

#include "saccade.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Computes the prompt up to token n. */
static sac_status read_to(struct run *r, size_t n, sac_error *err)
{
    const sac_seq seq = r->gen.request.seq;
    const size_t begin = sac_seq_length(r->engine, seq, NULL);
    const uint64_t start_us = clock_us();
    uint32_t pending = 1;
    struct progress bar;
    if (begin >= n) return SAC_OK;
    TRY(sac_seq_append(r->engine, seq, r->tok + begin, n - begin, SAC_ROW_PROMPT, SAC_WANT_NONE,
                       err));
    progress_begin(&bar, "reading");
    sac_status status = SAC_OK;
    while (status == SAC_OK && pending) {
        status = sac_step(r->engine, NULL, NULL, NULL, err);
        const uint32_t done = sac_seq_length(r->engine, seq, &pending);
        progress_update(&bar, (double)done / (double)n);
        if (interrupt_pending()) status = error_set(err, SAC_ERR_CANCELLED, "interrupted");
    }
    progress_end(&bar);
    r->ahead_ms += (double)(clock_us() - start_us) * 1e-3;
    return status;
}

static sac_status join_documents(struct run *r, sac_error *err)
{
    const uint64_t start_us = clock_us();
    sac_seq *seq = &r->gen.request.seq;
    const struct joined_prompt prompt = {.head = r->head,
                                         .n_head = r->n_head,
                                         .question = r->tok + r->joined.n_tok,
                                         .n_question = r->n_tok - r->joined.n_tok};
    TRY(joined_make(&r->joined, r->engine, &prompt, seq, err));
    r->n_loaded = sac_seq_length(r->engine, *seq, NULL);
    assert(r->n_loaded >= r->joined.n_tok); /* more if the method has computed the question */
    memcpy(r->tok, sac_seq_tokens(r->engine, *seq), r->n_loaded * sizeof *r->tok);
    r->ahead_ms += (double)(clock_us() - start_us) * 1e-3;
    return SAC_OK;
}

/* Creates the answer's sequence, or loads the saved one if the prompt continues it. It outlives the
 * request, so that its pages can be counted. */
static sac_status open_seq(struct run *r, sac_error *err)
{
    sac_seq *seq = &r->gen.request.seq;
    uint32_t n_same = 0;
    if (r->opt.docs) return join_documents(r, err);
    if (!r->opt.load_state) return sac_seq_create(r->engine, seq, err);
    TRY(sac_seq_load(r->engine, r->opt.load_state, seq, err));
    r->n_loaded = sac_seq_length(r->engine, *seq, NULL);
    const int32_t *held = sac_seq_tokens(r->engine, *seq);
    while (n_same < r->n_loaded && n_same < r->n_tok && held[n_same] == r->tok[n_same]) n_same++;
    if (n_same < r->n_loaded || n_same == r->n_tok)
        return error_set(err, SAC_ERR_ARG,
                         "%s holds %u tokens, and this prompt of %zu goes on from %u of them: "
                         "documents, system message and template must be those it was saved with",
                         r->opt.load_state, r->n_loaded, r->n_tok, n_same);
    return SAC_OK;
}

static sac_status save_documents(struct run *r, sac_error *err)
{
    sac_state_info info;
    TRY(read_to(r, r->n_shared, err));
    TRY(sac_seq_save(r->engine, r->gen.request.seq, r->opt.save_state, err));
    TRY(sac_state_get_info(&info, r->opt.save_state, err));
    if (!r->opt.quiet)
        fprintf(stderr, "saved    %6u tokens to %s, %llu bytes\n", info.n_tok, r->opt.save_state,
                (unsigned long long)info.bytes);
    return SAC_OK;
}

/* Adds what was computed before the request to the answer's times. */
static void count_ahead(struct run *r)
{
    sac_timings *t = &r->gen.timings;
    t->n_cached = r->n_loaded;
    t->n_prompt = (uint32_t)r->n_tok - r->n_loaded;
    t->prompt_ms += r->ahead_ms;
    t->prompt_per_s = t->prompt_ms > 0 ? 1e3 * t->n_prompt / t->prompt_ms : 0;
    r->gen.ttft_ms += r->ahead_ms;
}

/* With --show-reading, the prompt except its decode rows is computed before the request without
 * recording: that would take long, and report what the prompt read instead of the answer. */
static sac_status read_and_record(struct run *r, size_t n, sac_error *err)
{
    struct passages_document document[READING_DOCS_MAX];
    const char *at = r->text.data;
    if (r->opt.docs) TRY(reading_docs_add_joined(&r->reading, &r->joined, r->model, r->tok, err));
    for (size_t i = 0; i < r->opt.files.n; i++) {
        reading_docs_add(&r->reading, r->opt.files.item[i], at, r->file_bytes[i]);
        at += r->file_bytes[i] + strlen(RUN_BETWEEN_FILES);
    }
    reading_docs_list(&r->reading, document);
    const struct passages_prompt prompt = {r->model, r->tok,       r->n_tok,
                                           document, r->reading.n, false};
    TRY(read_to(r, n, err));
    return passages_begin(&r->passages, r->engine, &prompt, err);
}

bool run_answer_is_wanted(const struct run *r)
{
    return r->opt.prompt || !r->opt.save_state;
}

sac_status run_answer(struct run *r, sac_error *err)
{
    struct generation *g = &r->gen;
    sac_engine_params params = setup_engine_params(&r->setup, r->n_ctx, 1);
    params.record = r->opt.show_reading;
    if (r->opt.docs) joined_plan(&r->joined, &params, r->n_ctx);
    g->request = sac_request_default();
    TRY(setup_sampling_params(&r->sampling, &g->request.sampling, r->bias, err));
    TRY(sac_engine_create(&r->engine, r->model, &params, err));
    TRY(setup_check_memory(RUN_COMMAND, r->engine, err));
    setup_warn_of_context(RUN_COMMAND, r->model, r->n_ctx); /* not for a prompt that is refused */
    params = sac_engine_get_params(r->engine);
    r->rows = question_in_force(r->rows, params.prefill[0], params.decode[0]);
    TRY(open_seq(r, err));
    if (r->opt.save_state) TRY(save_documents(r, err));
    if (!run_answer_is_wanted(r)) return SAC_OK;
    const size_t n_wide = question_rows_begin(&r->rows, r->n_tok, r->n_document);
    if (r->opt.show_reading) TRY(read_and_record(r, n_wide, err));
    const uint32_t n_held = sac_seq_length(r->engine, g->request.seq, NULL);
    r->rows.n = (uint32_t)(r->n_tok - (n_wide > n_held ? n_wide : n_held));
    g->engine = r->engine;
    g->model = r->model;
    g->request.prompt = r->tok + n_held;
    g->request.n_prompt = r->n_tok - n_held;
    g->request.n_decode_row = r->rows.n;
    g->request.max_tokens = r->opt.n_predict < 0 ? 0 : (uint32_t)r->opt.n_predict;
    g->request.stop = r->opt.stop.item;
    g->request.n_stop = r->opt.stop.n;
    g->request.ignore_eos = r->opt.ignore_eos;
    g->stream = r->opt.format == RUN_TEXT;
    g->want_probs = r->opt.format == RUN_JSON && r->opt.n_probs > 0;
    g->request.n_probs = g->want_probs ? r->opt.n_probs : 0;
    TRY(structure_open(&r->structure, r->model, err));
    TRY(structure_begin(&r->structure, &g->request, err));
    const sac_status status = generation_run(g, err);
    if (status != SAC_OK) structure_explain(&r->structure, err);
    TRY(status);
    count_ahead(r);
    return r->opt.show_reading ? passages_finish(&r->passages, r->engine, err) : SAC_OK;
}
