/* embed.c: see the header. Texts are computed in their order, some of them at a time, with rows of
 * a prompt and dense attention: a vector depends on its text alone, whatever else is in a step. A
 * text for which there are no pages gives way and is computed again from its start. */
#include "serve/embed.h"

#include "base/mem.h"
#include "base/minmax.h"

#include <assert.h>
#include <math.h>
#include <string.h>

struct text {
    sac_seq seq;
    uint32_t i; /* index of the input */
    size_t n_queued;
};

struct embed {
    sac_engine *engine;
    const struct api_request *request;
    uint32_t n_embd, n_chunk, dense;
    size_t *at;                   /* owned, [n_input]: index of the input's first vector in `out` */
    float *out;                   /* owned, [embed_count, n_embd] */
    double *sum;                  /* owned, [EMBED_SEQS, n_embd]: sums for means */
    struct text text[EMBED_SEQS]; /* [n] in the order of inputs */
    uint32_t n, n_next, n_done;   /* texts in progress, next input, finished inputs */
};

static size_t count_of(const struct api_request *request, uint32_t i)
{
    return request->pooling == API_REQUEST_POOLING_NONE ? request->input[i].n : 1;
}

size_t embed_count(const struct api_request *request)
{
    size_t n = 0;
    for (uint32_t i = 0; i < request->n_input; i++) n += count_of(request, i);
    return n;
}

/* ---- Pooling ---- */

static void take_mean(struct embed *m, uint32_t text_i, const sac_row *row, float *out)
{
    double *sum = m->sum + (size_t)text_i * m->n_embd;
    const size_t n = m->request->input[m->text[text_i].i].n;
    for (uint32_t d = 0; d < m->n_embd; d++) {
        sum[d] = (row->pos ? sum[d] : 0) + (double)row->state[d];
        if (row->pos + 1 == n) out[d] = (float)(sum[d] / (double)n);
    }
}

static void on_row(void *user, const sac_row *row)
{
    struct embed *m = user;
    uint32_t i = 0;
    while (i < m->n && m->text[i].seq != row->seq) i++;
    assert(i < m->n && row->state);
    const uint32_t input = m->text[i].i;
    const enum api_request_pooling pooling = m->request->pooling;
    const bool is_last = row->pos + 1 == m->request->input[input].n;
    float *out = m->out + m->at[input] * m->n_embd;
    if (pooling == API_REQUEST_POOLING_MEAN) take_mean(m, i, row, out);
    if (pooling == API_REQUEST_POOLING_NONE) out += (size_t)row->pos * m->n_embd;
    if (pooling == API_REQUEST_POOLING_NONE ||
        (pooling == API_REQUEST_POOLING_CLS && row->pos == 0) ||
        (pooling == API_REQUEST_POOLING_LAST && is_last))
        memcpy(out, row->state, m->n_embd * sizeof *out);
}

/* Scales the vector to length 1. */
static void normalise(float *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (uint32_t i = 0; i < n && sum > 0; i++) x[i] = (float)((double)x[i] / sqrt(sum));
}

/* ---- Steps ---- */

static void drop_text(struct embed *m, uint32_t i)
{
    sac_seq_remove(m->engine, m->text[i].seq);
    m->n--;
    memmove(m->text + i, m->text + i + 1, (m->n - i) * sizeof *m->text);
    /* Sums are indexed like `text`. */
    if (m->sum)
        memmove(m->sum + (size_t)i * m->n_embd, m->sum + (size_t)(i + 1) * m->n_embd,
                (size_t)(m->n - i) * m->n_embd * sizeof *m->sum);
}

/* Appends up to a chunk of tokens to the texts in progress, and starts new texts while sequences
 * are free. */
static sac_status queue_tokens(struct embed *m, sac_error *err)
{
    size_t room = m->n_chunk;
    for (uint32_t i = 0; room > 0 && i < EMBED_SEQS; i++) {
        if (i == m->n) {
            struct text *t = &m->text[i];
            if (m->n_next == m->request->n_input) return SAC_OK;
            *t = (struct text){.i = m->n_next};
            const sac_status status = sac_seq_create(m->engine, &t->seq, err);
            if (status != SAC_OK) return i > 0 ? SAC_OK : status;
            m->n++;
            m->n_next++;
            TRY(sac_seq_use_prefill(m->engine, t->seq, m->dense, err));
        }
        struct text *t = &m->text[i];
        const struct api_request_input *input = &m->request->input[t->i];
        const size_t n = input->n - t->n_queued < room ? input->n - t->n_queued : room;
        TRY(sac_seq_append(m->engine, t->seq, input->tok + t->n_queued, n, SAC_ROW_PROMPT,
                           SAC_WANT_STATES, err));
        t->n_queued += n;
        room -= n;
    }
    return SAC_OK;
}

static uint32_t count_pending(const struct embed *m)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t pending;
        (void)sac_seq_length(m->engine, m->text[i].seq, &pending);
        n += pending;
    }
    return n;
}

/* The pool has no free page: queued tokens are dropped, and if several texts are in progress, the
 * last one is restarted later. Running answers may free pages; if there are none, the text is too
 * long. */
static sac_status requeue(struct embed *m, sac_status status, sac_error *err)
{
    const sac_engine_stats stats = sac_engine_get_stats(m->engine);
    if (status != SAC_ERR_CONTEXT) return status;
    if (m->n == 1 && stats.n_request_running + stats.n_request_waiting == 0) return status;
    for (uint32_t i = 0; i < m->n; i++) {
        struct text *t = &m->text[i];
        t->n_queued = sac_seq_length(m->engine, t->seq, NULL);
        TRY(sac_seq_truncate(m->engine, t->seq, (uint32_t)t->n_queued, err));
    }
    if (m->n == 1) return SAC_OK;
    m->n_next = m->text[m->n - 1].i;
    drop_text(m, m->n - 1);
    return SAC_OK;
}

static void finish_texts(struct embed *m)
{
    for (uint32_t i = 0; i < m->n;) {
        const uint32_t input = m->text[i].i;
        if (sac_seq_length(m->engine, m->text[i].seq, NULL) < m->request->input[input].n) {
            i++;
            continue;
        }
        drop_text(m, i);
        m->n_done++;
        if (m->request->normalised) normalise(m->out + m->at[input] * m->n_embd, m->n_embd);
    }
}

/* No rows are left pending between calls of `progress`: steps for other requests would compute them
 * and drop their hidden states. */
static sac_status run(struct embed *m, struct doc_library_wait wait, sac_error *err)
{
    while (m->n_done < m->request->n_input) {
        TRY(queue_tokens(m, err));
        while (count_pending(m) > 0) {
            const sac_status status = sac_step(m->engine, on_row, m, NULL, err);
            if (status != SAC_OK) TRY(requeue(m, status, err));
        }
        finish_texts(m);
        if (wait.progress(wait.user, (double)m->n_done / m->request->n_input))
            return error_set(err, SAC_ERR_CANCELLED, "nobody waits for it");
    }
    return SAC_OK;
}

/* ---- Entry points ---- */

/* With a target for the time between tokens, chunks are small, because answers wait for them. */
#define CHUNK_TIMED (2 * SAC_PAGE_TOK)

static sac_status begin(struct embed *m, sac_error *err)
{
    const sac_engine_params p = sac_engine_get_params(m->engine);
    const size_t n_sum =
        m->request->pooling == API_REQUEST_POOLING_MEAN ? (size_t)EMBED_SEQS * m->n_embd : 0;
    m->n_chunk = p.tbt_target_ms > 0 ? min_u32(CHUNK_TIMED, p.n_batch) : p.n_batch;
    while (m->dense < p.n_prefill && strcmp(p.prefill[m->dense], "dense") != 0) m->dense++;
    assert(m->dense < p.n_prefill); /* servers always have it */
    m->at = mem_calloc(m->request->n_input, sizeof *m->at);
    m->out = mem_alloc(embed_count(m->request) * m->n_embd * sizeof *m->out);
    m->sum = n_sum ? mem_alloc(n_sum * sizeof *m->sum) : NULL;
    if (!m->at || !m->out || (n_sum && !m->sum))
        return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu vectors",
                         embed_count(m->request));
    for (uint32_t i = 1; i < m->request->n_input; i++)
        m->at[i] = m->at[i - 1] + count_of(m->request, i - 1);
    return SAC_OK;
}

static sac_status check_finite(const struct embed *m, sac_error *err)
{
    for (size_t i = 0; i < embed_count(m->request) * m->n_embd; i++)
        if (!isfinite(m->out[i]))
            return error_set(err, SAC_ERR_IO, "the model computed a NaN or an infinity");
    return SAC_OK;
}

sac_status embed_check(sac_engine *engine, sac_error *err)
{
    const int32_t tok = 0;
    sac_seq seq;
    TRY(sac_seq_create(engine, &seq, err));
    const sac_status status =
        sac_seq_append(engine, seq, &tok, 1, SAC_ROW_PROMPT, SAC_WANT_STATES, err);
    sac_seq_remove(engine, seq);
    return status;
}

sac_status embed_work(sac_engine *engine, const struct api_request *request,
                      struct doc_library_wait wait, struct strbuf *out, sac_error *err)
{
    struct embed m = {.engine = engine, .request = request, .n_embd = request->n_embd};
    sac_status status = begin(&m, err);
    if (status == SAC_OK) status = run(&m, wait, err);
    if (status == SAC_OK) status = check_finite(&m, err);
    if (status == SAC_OK)
        strbuf_add(out, (const char *)m.out, embed_count(request) * m.n_embd * sizeof *m.out);
    for (uint32_t i = 0; i < m.n; i++) sac_seq_remove(engine, m.text[i].seq);
    mem_free(m.at);
    mem_free(m.out);
    mem_free(m.sum);
    return status;
}
