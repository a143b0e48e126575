/* fidelity.c: see the header.
 *
 * One engine serves the reference and the subjects if model and KV type are the same: the prompt is
 * computed once and forked. Otherwise a second engine replaces the first, and the reference's
 * results are kept: its log-probabilities, page masses and attention outputs.
 *
 * A row's result depends on the row alone, so full attention compared with itself is exactly 0 in
 * every figure. mass and out_err compare a layer with dense attention over the layer's own inputs,
 * so they show what a method leaves out but not the effect of another model; overlap and drift
 * compare with the reference's run and show all effects of earlier layers and rows as well. */
#include "eval/fidelity.h"

#include "base/mem.h"
#include "base/workers.h"
#include "eval/choices.h"
#include "eval/logprob.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLACK_TOK 128u /* tokens of the pages that a fork does not share, rounded up */
#define N_TOP     5u

struct totals {
    struct fidelity_attention sum;
    uint64_t n, bytes, bytes_reference;
    uint64_t n_proof, n_broken;
    uint64_t n_tok_seen, n_tok_read;
};

struct work {
    const struct fidelity_params *p;
    sac_engine *engine;
    uint32_t first; /* position of the first scored token */
    uint32_t n_layer, n_head, n_kv_head, head_dim, n_vocab, n_page;
    bool is_reference;
    uint32_t subject_i, prefill_i; /* prefill_i: of the current prompt */
    /* Results of the reference. */
    float *logp;       /* [n_score, n_vocab] */
    float *mass;       /* [n_score, n_layer, n_kv_head, n_page], at a record's first row */
    float *out;        /* [n_score, n_layer, n_head, head_dim] */
    uint64_t *bytes;   /* [n_score, n_layer, n_kv_head] */
    double *nll_dense; /* [n_score] */
    /* Results of the current run. */
    double *kl, *nll, *top1, *top5, *time_us; /* [n_score] */
    struct totals *totals;                    /* [n_layer] */
    uint64_t n_step, n_step_all;              /* rows computed and to compute, for the progress */
};

/* ---- Distributions ---- */

/* The indices of the largest entries, in descending order; of equal ones, the first. */
static void find_top(const float *logp, uint32_t n, uint32_t top[N_TOP])
{
    uint32_t n_top = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (n_top == N_TOP && !(logp[i] > logp[top[N_TOP - 1]])) continue;
        uint32_t at = n_top < N_TOP ? n_top++ : N_TOP - 1;
        for (; at > 0 && logp[i] > logp[top[at - 1]]; at--) top[at] = top[at - 1];
        top[at] = i;
    }
}

static void on_row(void *user, const sac_row *row)
{
    struct work *w = user;
    const uint32_t i = row->pos - w->first;
    const int32_t next = w->p->tok[row->pos + 1];
    float *reference = w->logp + (size_t)i * w->n_vocab;
    uint32_t top[N_TOP], top_reference[N_TOP], n_same = 0;
    assert(row->pos >= w->first && i < w->p->n_score && w->n_vocab >= N_TOP);
    (void)logprob_from_logits(row->logits, w->n_vocab);
    if (w->is_reference) {
        memcpy(reference, row->logits, w->n_vocab * sizeof *reference);
        w->nll_dense[i] = -(double)reference[next];
        return;
    }
    find_top(row->logits, w->n_vocab, top);
    find_top(reference, w->n_vocab, top_reference);
    for (uint32_t a = 0; a < N_TOP; a++)
        for (uint32_t b = 0; b < N_TOP; b++) n_same += top[a] == top_reference[b];
    /* Rounding can make a divergence of 0 slightly negative. */
    w->kl[i] = fmax(0, logprob_kl(reference, row->logits, w->n_vocab));
    w->nll[i] = -(double)row->logits[next];
    w->top1[i] = top[0] == top_reference[0];
    w->top5[i] = (double)n_same / N_TOP;
}

/* ---- Attention ---- */

static void keep_reference(struct work *w, const sac_read_record *r, size_t place, float *out)
{
    memcpy(w->mass + place * w->n_page, r->page_mass, r->n_page * sizeof *w->mass);
    w->bytes[place] = r->k_bytes + r->v_bytes;
    for (uint32_t row = 0; row < r->n_row; row++)
        memcpy(out + (size_t)row * w->n_layer * w->n_head * w->head_dim,
               r->out + row * r->out_stride, (size_t)r->n_query * w->head_dim * sizeof *out);
}

/* |output - reference| / |reference|, over all rows and query heads of a record. */
static double output_distance(const struct work *w, const sac_read_record *r, const float *out)
{
    double off = 0, norm = 0;
    for (uint32_t row = 0; row < r->n_row; row++) {
        const float *is = r->out + row * r->out_stride;
        const float *was = out + (size_t)row * w->n_layer * w->n_head * w->head_dim;
        for (size_t k = 0; k < (size_t)r->n_query * w->head_dim; k++) {
            const double d = (double)is[k] - (double)was[k];
            off += d * d;
            norm += (double)was[k] * (double)was[k];
        }
    }
    return norm > 0 ? sqrt(off / norm) : off > 0 ? INFINITY : 0;
}

static void count_proof(struct totals *t, const sac_read_record *r)
{
    t->n_proof++;
    t->n_broken += !((double)r->mass >= (double)r->mass_proved - 1e-6 &&
                     (double)r->out_left <= (double)r->out_bound + 1e-6);
    t->sum.mass_proved += (double)r->mass_proved;
    t->sum.out_bound += (double)r->out_bound;
}

static void on_record(void *user, const sac_read_record *r)
{
    struct work *w = user;
    const size_t i = r->pos - w->first,
                 place = (i * w->n_layer + r->layer) * w->n_kv_head + r->kv_head;
    float *out =
        w->out + ((i * w->n_layer + r->layer) * w->n_head + (size_t)r->kv_head * r->n_query) *
                     (size_t)w->head_dim;
    assert(r->pos >= w->first && i + r->n_row <= w->p->n_score && r->n_page <= w->n_page);
    if (w->is_reference) {
        keep_reference(w, r, place, out);
        return;
    }
    struct totals *t = &w->totals[r->layer];
    double overlap = 0;
    for (uint32_t p = 0; p < r->n_page; p++)
        overlap += fmin((double)r->page_mass[p], (double)w->mass[place * w->n_page + p]);
    t->n++;
    t->sum.mass += (double)r->mass;
    t->sum.out_err += (double)r->out_err;
    t->sum.out_left += (double)r->out_left;
    t->sum.overlap += overlap;
    t->sum.drift += output_distance(w, r, out);
    t->bytes += r->k_bytes + r->v_bytes + r->side_bytes;
    t->bytes_reference += w->bytes[place];
    t->sum.page_share += (double)r->n_page_read / r->n_page;
    t->n_tok_seen += r->n_tok_seen;
    t->n_tok_read += r->n_tok_read;
    if (r->mass_proved > 0) count_proof(t, r);
    if (w->p->recording) reading_put(w->p->recording, r);
}

/* ---- Results ---- */

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double mean(const double *x, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i];
    return sum / n;
}

/* A quantile of ascending values, interpolated linearly. */
static double quantile(const double *x, uint32_t n, double share)
{
    const double at = share * (n - 1);
    const uint32_t i = (uint32_t)at, next = i + 1 < n ? i + 1 : i;
    return x[i] + (x[next] - x[i]) * (at - i);
}

static struct fidelity_attention attention_means(const struct totals *t)
{
    const double n = (double)t->n, n_proof = t->n_proof ? (double)t->n_proof : 1;
    return (struct fidelity_attention){
        .mass = t->sum.mass / n,
        .out_err = t->sum.out_err / n,
        .out_left = t->sum.out_left / n,
        .overlap = t->sum.overlap / n,
        .drift = t->sum.drift / n,
        .byte_ratio = (double)t->bytes / (double)t->bytes_reference,
        .page_share = t->sum.page_share / n,
        .mass_proved = t->sum.mass_proved / n_proof,
        .out_bound = t->sum.out_bound / n_proof,
    };
}

static void add_totals(struct totals *to, const struct totals *from)
{
    to->n += from->n;
    to->sum.mass += from->sum.mass;
    to->sum.out_err += from->sum.out_err;
    to->sum.out_left += from->sum.out_left;
    to->sum.overlap += from->sum.overlap;
    to->sum.drift += from->sum.drift;
    to->bytes += from->bytes;
    to->bytes_reference += from->bytes_reference;
    to->sum.page_share += from->sum.page_share;
    to->sum.mass_proved += from->sum.mass_proved;
    to->sum.out_bound += from->sum.out_bound;
    to->n_proof += from->n_proof;
    to->n_broken += from->n_broken;
    to->n_tok_seen += from->n_tok_seen;
    to->n_tok_read += from->n_tok_read;
}

static sac_status sum_up(struct work *w, struct fidelity_row *out, sac_error *err)
{
    const uint32_t n = w->p->n_score;
    struct totals all = {0};
    out->layer = mem_calloc(w->n_layer, sizeof *out->layer);
    if (!out->layer) return error_set(err, SAC_ERR_MEMORY, "no memory for %u layers", w->n_layer);
    out->n_layer = w->n_layer;
    for (uint32_t l = 0; l < w->n_layer; l++) {
        out->layer[l] = attention_means(&w->totals[l]);
        add_totals(&all, &w->totals[l]);
    }
    out->all = attention_means(&all);
    out->n_proof = all.n_proof;
    out->n_broken = all.n_broken;
    out->share_read = all.n_tok_seen ? (double)all.n_tok_read / (double)all.n_tok_seen : 1;
    out->kl_mean = mean(w->kl, n);
    qsort(w->kl, n, sizeof *w->kl, rising);
    out->kl_median = quantile(w->kl, n, 0.5);
    out->kl_p90 = quantile(w->kl, n, 0.9);
    out->kl_p99 = quantile(w->kl, n, 0.99);
    out->kl_max = w->kl[n - 1];
    out->top1 = mean(w->top1, n);
    out->top5 = mean(w->top5, n);
    out->ppl = exp(mean(w->nll, n));
    out->ppl_dense = exp(mean(w->nll_dense, n));
    return SAC_OK;
}

/* ---- Runs ---- */

/* Reports n more rows as done; SAC_ERR_CANCELLED if the caller stops. */
static sac_status advance(struct work *w, uint32_t n, sac_error *err)
{
    w->n_step += n;
    if (w->p->stop && w->p->stop(w->p->user, (double)w->n_step / (double)w->n_step_all))
        return error_set(err, SAC_ERR_CANCELLED, "stopped");
    return SAC_OK;
}

/* Computes all pending rows. */
static sac_status drain(struct work *w, sac_error *err)
{
    for (;;) {
        uint32_t n = 0;
        TRY(sac_step(w->engine, on_row, w, &n, err));
        if (n == 0) return SAC_OK;
        if (w->p->recording) TRY(reading_flush(w->p->recording, err));
        TRY(advance(w, n, err));
    }
}

static void ignore_row(void *user, const sac_row *row)
{
    (void)user;
    (void)row;
}

/* Computes the scored tokens on a fork of the prompt. */
static sac_status score(struct work *w, sac_seq base, uint32_t decode_i, sac_error *err)
{
    sac_seq s;
    const sac_row_kind kind = w->p->prompt_form ? SAC_ROW_PROMPT : SAC_ROW_DECODE;
    memset(w->totals, 0, w->n_layer * sizeof *w->totals);
    TRY(sac_seq_fork(w->engine, base, &s, err));
    sac_status status;
    TRY_FAIL(sac_seq_use_decode(w->engine, s, decode_i, err));
    TRY_FAIL(
        sac_seq_append(w->engine, s, w->p->tok + w->first, w->p->n_score, kind, SAC_WANT_ALL, err));
    TRY_FAIL(sac_engine_set_recorder(w->engine, on_record, w, err));
    status = drain(w, err);
fail:
    if (sac_engine_set_recorder(w->engine, NULL, NULL, NULL) != SAC_OK)
        assert(!"switching off cannot fail");
    sac_seq_remove(w->engine, s);
    return status;
}

/* The median time of a step without recording: computes the scored tokens one by one, on a fork of
 * the prompt. The first step is not counted, unless it is the only one, because it may build what
 * later steps use. */
static sac_status time_steps(struct work *w, sac_seq base, uint32_t decode_i, double *out_us,
                             sac_error *err)
{
    const uint32_t n = w->p->n_score;
    uint32_t n_done;
    sac_seq s;
    TRY(sac_seq_fork(w->engine, base, &s, err));
    sac_status status;
    TRY_FAIL(sac_seq_use_decode(w->engine, s, decode_i, err));
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t begin = clock_us();
        TRY_FAIL(sac_seq_append(w->engine, s, w->p->tok + w->first + i, 1, SAC_ROW_DECODE,
                                SAC_WANT_LAST, err));
        TRY_FAIL(sac_step(w->engine, ignore_row, NULL, &n_done, err));
        w->time_us[i] = (double)(clock_us() - begin);
        TRY_FAIL(advance(w, n_done, err));
    }
    const uint32_t n_warm = n > 1;
    qsort(w->time_us + n_warm, n - n_warm, sizeof *w->time_us, rising);
    *out_us = quantile(w->time_us + n_warm, n - n_warm, 0.5);
fail:
    sac_seq_remove(w->engine, s);
    return status;
}

/* Computes the prompt in a new sequence by one of the prefill methods. */
static sac_status read_prompt(struct work *w, uint32_t prefill_i, sac_seq *out_base, sac_error *err)
{
    w->prefill_i = prefill_i;
    TRY(sac_seq_create(w->engine, out_base, err));
    TRY(sac_seq_use_prefill(w->engine, *out_base, prefill_i, err));
    TRY(sac_seq_append(w->engine, *out_base, w->p->tok, w->first, SAC_ROW_PROMPT, SAC_WANT_NONE,
                       err));
    return drain(w, err);
}

static sac_status begin(struct work *w, const sac_model *model, const sac_engine_params *params,
                        uint32_t prefill_i, sac_seq *out_base, sac_error *err)
{
    sac_engine_free(w->engine);
    w->engine = NULL;
    TRY(sac_engine_create(&w->engine, model, params, err));
    return read_prompt(w, prefill_i, out_base, err);
}

static sac_status score_subject(struct work *w, sac_seq base, struct fidelity_row *out,
                                sac_error *err)
{
    const struct subjects *subjects = w->p->subjects;
    const char *decode = subjects->decode[subjects->item[w->subject_i].decode_i];
    const sac_reads before = sac_engine_get_stats(w->engine).reads;
    if (w->p->recording) w->p->recording->method_i = w->subject_i;
    TRY(score(w, base, subjects->item[w->subject_i].decode_i, err));
    const sac_reads after = sac_engine_get_stats(w->engine).reads;
    const uint64_t n_seen = after.n_tok_seen - before.n_tok_seen;
    const uint64_t n_select = after.n_select - before.n_select;
    const double n_head = (double)n_select * w->n_head / w->n_kv_head;
    out->bypass = n_select ? (double)(after.n_bypass - before.n_bypass) / n_head : 0;
    out->chosen = choices_mean(&before, &after, choices_are_made(decode));
    out->traffic = traffic_between(&before, &after);
    TRY(sum_up(w, out, err));
    out->us_per_token = NAN;
    if (w->p->timed)
        TRY(time_steps(w, base, subjects->item[w->subject_i].decode_i, &out->us_per_token, err));
    /* The counters are those of decode rows; prompt rows are counted by their records. */
    if (n_seen) out->share_read = (double)(after.n_tok_read - before.n_tok_read) / (double)n_seen;
    return SAC_OK;
}

/* Copies a list of methods, and appends `name` if it is not in the list. */
static sac_status list_methods(const char *list[SAC_METHODS_MAX], uint32_t *n,
                               const char *const *from, uint32_t n_from, const char *name,
                               uint32_t *out_i, sac_error *err)
{
    for (*n = 0; *n < n_from; (*n)++) list[*n] = from[*n];
    if (!name) return SAC_OK;
    for (*out_i = 0; *out_i < *n && strcmp(list[*out_i], name) != 0;) ++*out_i;
    if (*out_i == SAC_METHODS_MAX)
        return error_set(err, SAC_ERR_ARG, "more than %u methods beside %s", *out_i - 1, name);
    if (*out_i == *n) list[(*n)++] = name;
    return SAC_OK;
}

/* Scores each subject on the prompt as its own prefill method has computed it; `*base` is the
 * current prompt's sequence. */
static sac_status score_all(struct work *w, sac_seq *base, struct fidelity_row *out, sac_error *err)
{
    for (w->subject_i = 0; w->subject_i < w->p->subjects->n; w->subject_i++) {
        const uint32_t prefill_i = w->p->subjects->item[w->subject_i].prefill_i;
        if (prefill_i != w->prefill_i) {
            sac_seq_remove(w->engine, *base);
            TRY(read_prompt(w, prefill_i, base, err));
        }
        TRY(score_subject(w, *base, &out[w->subject_i], err));
    }
    return SAC_OK;
}

static sac_status run(struct work *w, struct fidelity_row *out, sac_error *err)
{
    const struct fidelity_params *p = w->p;
    const struct subjects *subjects = p->subjects;
    const char *decode[SAC_METHODS_MAX] = {0}, *prefill[SAC_METHODS_MAX] = {0};
    const bool same =
        p->model == p->other && p->engine.type_k == SAC_KV_F16 && p->engine.type_v == SAC_KV_F16;
    sac_engine_params params = p->engine;
    sac_seq base;
    uint32_t full_i = 0, dense_i = 0;
    params.n_ctx = p->ctx;
    params.n_seq_max = 2;
    params.n_kv_tok = (uint64_t)p->ctx + SLACK_TOK;
    params.record = true;
    params.decode = decode;
    params.prefill = prefill;
    /* The reference's methods come after the subjects', unless they are among them. */
    TRY(list_methods(decode, &params.n_decode, subjects->decode, subjects->n_decode,
                     same ? "full" : NULL, &full_i, err));
    TRY(list_methods(prefill, &params.n_prefill, subjects->prefill, subjects->n_prefill,
                     same ? "dense" : NULL, &dense_i, err));
    w->n_step_all = (uint64_t)(subjects->n * (p->timed ? 2 : 1) + 1) * p->n_score +
                    (uint64_t)(subjects->n_prefill + (same ? 0 : 1)) * w->first;
    sac_engine_params reference = params;
    reference.type_k = reference.type_v = SAC_KV_F16;
    if (!same) reference.n_decode = reference.n_prefill = 0;
    TRY(begin(w, p->model, &reference, dense_i, &base, err));
    w->is_reference = true;
    TRY(score(w, base, full_i, err));
    w->is_reference = false;
    if (!same) TRY(begin(w, p->other, &params, subjects->item[0].prefill_i, &base, err));
    return score_all(w, &base, out, err);
}

static bool same_shape(const sac_model_info *a, const sac_model_info *b)
{
    return a->n_layer == b->n_layer && a->n_head == b->n_head && a->n_kv_head == b->n_kv_head &&
           a->head_dim == b->head_dim && a->n_vocab == b->n_vocab;
}

static sac_status allocate(struct work *w, sac_error *err)
{
    const size_t n = w->p->n_score, n_record = n * w->n_layer * w->n_kv_head;
    w->logp = mem_calloc(n * w->n_vocab, sizeof *w->logp);
    w->mass = mem_calloc(n_record * w->n_page, sizeof *w->mass);
    w->out = mem_calloc(n * w->n_layer * w->n_head * w->head_dim, sizeof *w->out);
    w->bytes = mem_calloc(n_record, sizeof *w->bytes);
    w->nll_dense = mem_calloc(6 * n, sizeof *w->nll_dense);
    w->totals = mem_calloc(w->n_layer, sizeof *w->totals);
    if (!w->logp || !w->mass || !w->out || !w->bytes || !w->nll_dense || !w->totals)
        return error_set(err, SAC_ERR_MEMORY, "no memory to keep the reference of %zu tokens", n);
    w->kl = w->nll_dense + n;
    w->nll = w->nll_dense + 2 * n;
    w->top1 = w->nll_dense + 3 * n;
    w->top5 = w->nll_dense + 4 * n;
    w->time_us = w->nll_dense + 5 * n;
    return SAC_OK;
}

sac_status fidelity_run(struct fidelity_row *out, const struct fidelity_params *p, sac_error *err)
{
    const sac_model_info info = sac_model_get_info(p->model), other = sac_model_get_info(p->other);
    struct work w = {
        .p = p,
        .first = p->ctx - p->n_score,
        .n_layer = info.n_layer,
        .n_head = info.n_head,
        .n_kv_head = info.n_kv_head,
        .head_dim = info.head_dim,
        .n_vocab = info.n_vocab,
        .n_page = p->ctx / SAC_PAGE_TOK + 1,
    };
    assert(p->n_score > 0 && p->n_score < p->ctx);
    if (!same_shape(&info, &other))
        return error_set(err, SAC_ERR_ARG,
                         "the models %s and %s differ in layers, heads or vocabulary", info.name,
                         other.name);
    sac_status status = allocate(&w, err);
    if (status == SAC_OK) status = run(&w, out, err);
    sac_engine_free(w.engine);
    mem_free(w.logp);
    mem_free(w.mass);
    mem_free(w.out);
    mem_free(w.bytes);
    mem_free(w.nll_dense);
    mem_free(w.totals);
    return status;
}

void fidelity_deinit(struct fidelity_row *row)
{
    mem_free(row->layer);
    *row = (struct fidelity_row){0};
}
