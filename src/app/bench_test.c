/* bench_test.c: one test on one engine: fill the depth, repeat, count.
 *
 * The depth is filled once and kept in sequences of its own, one for all that decode together or
 * one for each. Each repetition works on forks, which share the pages of their base, and removes
 * them. Prompt tokens are random, because speed does not depend on their meaning; with noise in
 * place of keys and values they are not even computed. Generated tokens are the top-1 tokens,
 * because the number of logits that must be computed to find them (--top-k) depends on how sure the
 * model is. The first repetition is short and not counted: it wakes threads and touches memory. */
#include "app/bench.h"

#include "app/interrupt.h"
#include "app/progress.h"

#include "base/mem.h"
#include "base/minmax.h"
#include "base/workers.h"

#include <assert.h>
#include <stdio.h>

#define WARM_PROMPT 512u
#define WARM_STEPS  2u

struct rep {
    struct bench_rig *rig;
    const struct bench_test *test;
    struct progress *bar;
    uint32_t i, n; /* current and total repetitions, for the progress bar */
    sac_seq *seq;  /* [test->n_seq] */
    int32_t *next; /* [test->n_seq] the next token */
};

/* The base from which sequence `s` of a test is forked. */
static uint32_t base_of(const struct bench_rig *rig, uint32_t s)
{
    return rig->n_base > 1 ? s : 0;
}

/* A token id for a position: BOS first if the model has it, then ids spread over the vocabulary,
 * different for each base. */
static int32_t made_up_token(const struct bench_rig *rig, uint32_t base, uint32_t pos)
{
    const int32_t bos = sac_token_bos(rig->model);
    if (pos == 0 && bos >= 0) return bos;
    const uint32_t x = pos * 2654435761u + base * 2246822519u;
    return (int32_t)(x % sac_model_get_info(rig->model).n_vocab);
}

static void ignore_row(void *user, const sac_row *row)
{
    (void)user;
    (void)row;
}

static void take_likeliest(void *user, const sac_row *row)
{
    const struct rep *r = user;
    for (uint32_t s = 0; s < r->test->n_seq; s++)
        if (r->seq[s] == row->seq) r->next[s] = sac_sampler_sample_row(r->rig->sampler, row);
}

/* Queues made-up prompt tokens of a base up to position `end`. */
static sac_status append(const struct bench_rig *rig, uint32_t base, sac_seq seq, uint32_t end,
                         sac_error *err)
{
    uint32_t n_pending = 0;
    uint32_t pos = sac_seq_length(rig->engine, seq, &n_pending) + n_pending;
    while (pos < end) {
        int32_t tok[256];
        size_t n = 0;
        while (n < sizeof tok / sizeof tok[0] && pos < end)
            tok[n++] = made_up_token(rig, base, pos++);
        const sac_want want = pos == end ? SAC_WANT_LAST : SAC_WANT_NONE;
        TRY(sac_seq_append(rig->engine, seq, tok, n, SAC_ROW_PROMPT, want, err));
    }
    return SAC_OK;
}

/* Computes all pending prompt rows; the bar advances from `from` to `to`. */
static sac_status compute(const struct bench_rig *rig, struct progress *bar, uint32_t n_all,
                          double from, double to, sac_error *err)
{
    for (uint32_t n_done = 0, n; n_done < n_all; n_done += n) {
        if (interrupt_pending()) return SAC_ERR_CANCELLED;
        TRY(sac_step(rig->engine, ignore_row, NULL, &n, err));
        assert(n > 0);
        progress_update(bar, from + (to - from) * (n_done + n) / n_all);
    }
    return SAC_OK;
}

/* Fills a base with noise up to position `end`. */
static sac_status append_noise(const struct bench_rig *rig, uint32_t base, struct progress *bar,
                               uint32_t end, sac_error *err)
{
    const sac_seq seq = rig->base[base].seq;
    const uint32_t first = sac_seq_length(rig->engine, seq, NULL);
    for (uint32_t pos = first; pos < end;) {
        int32_t tok[256];
        size_t n = 0;
        if (interrupt_pending()) return SAC_ERR_CANCELLED;
        while (n < sizeof tok / sizeof tok[0] && pos < end)
            tok[n++] = made_up_token(rig, base, pos++);
        TRY(sac_seq_append_noise(rig->engine, seq, tok, n, 1 + base, err));
        progress_update(bar, (double)(pos - first) / (end - first));
    }
    return SAC_OK;
}

/* Forks inherit the decode method of their base. */
static sac_status fill_base(struct bench_rig *rig, uint32_t i, uint32_t depth, uint32_t method,
                            sac_error *err)
{
    struct bench_base *b = &rig->base[i];
    if (b->seq == SAC_SEQ_NONE) TRY(sac_seq_create(rig->engine, &b->seq, err));
    if (b->method != method) TRY(sac_seq_use_decode(rig->engine, b->seq, method, err));
    b->method = method;
    const uint32_t had = sac_seq_length(rig->engine, b->seq, NULL);
    if (had > depth) return sac_seq_truncate(rig->engine, b->seq, depth, err);
    struct progress bar;
    progress_begin(&bar, "filling");
    sac_status status = SAC_OK;
    if (rig->fills_noise) {
        status = append_noise(rig, i, &bar, depth, err);
    } else {
        status = append(rig, i, b->seq, depth, err);
        if (status == SAC_OK) status = compute(rig, &bar, depth - had, 0, 1, err);
    }
    progress_end(&bar);
    return status;
}

static sac_status fill_depth(struct bench_rig *rig, const struct bench_test *test, sac_error *err)
{
    for (uint32_t i = 0; i <= base_of(rig, test->n_seq - 1); i++)
        TRY(fill_base(rig, i, test->depth, test->method, err));
    return SAC_OK;
}

/* ---- One repetition ---- */

static struct bench_phase phase_between(const sac_engine_stats *a, const sac_engine_stats *b,
                                        uint64_t us)
{
    return (struct bench_phase){
        .seconds = (double)us * 1e-6,
        .linear_us = (double)(b->linear_us - a->linear_us),
        .attn_us = (double)(b->attn_us - a->attn_us),
        .other_us = (double)(b->other_us - a->other_us),
        .weight_bytes = (double)(b->weight_bytes_read - a->weight_bytes_read),
        .kv_bytes = (double)(b->reads.kv_bytes_read - a->reads.kv_bytes_read +
                             b->reads.choose_bytes_read - a->reads.choose_bytes_read +
                             b->reads.build_bytes_read - a->reads.build_bytes_read),
        .dense_bytes = (double)(b->reads.dense_bytes - a->reads.dense_bytes),
        .n_tok_seen = (double)(b->reads.n_tok_seen - a->reads.n_tok_seen),
        .n_tok_read = (double)(b->reads.n_tok_read - a->reads.n_tok_read),
        .n_cell = (double)(b->reads.n_cell - a->reads.n_cell),
        .n_cell_read = (double)(b->reads.n_cell_read - a->reads.n_cell_read),
        .plan_us = (double)(b->plan_us - a->plan_us),
    };
}

static sac_status run_prompt(const struct rep *r, uint32_t n_prompt, sac_error *err)
{
    const struct bench_test *t = r->test;
    const double from = (double)r->i / r->n, to = (r->i + (t->n_gen ? 0.5 : 1)) / r->n;
    for (uint32_t s = 0; s < t->n_seq; s++)
        TRY(append(r->rig, base_of(r->rig, s), r->seq[s], t->depth + n_prompt, err));
    return compute(r->rig, r->bar, t->n_seq * n_prompt, from, to, err);
}

static sac_status run_decode(struct rep *r, uint32_t first, uint32_t n_gen, sac_error *err)
{
    const struct bench_test *t = r->test;
    sac_engine *e = r->rig->engine;
    for (uint32_t s = 0; s < t->n_seq; s++)
        r->next[s] = made_up_token(r->rig, base_of(r->rig, s), first);
    for (uint32_t i = 0; i < n_gen; i++) {
        const double part = (double)i / n_gen;
        if (interrupt_pending()) return SAC_ERR_CANCELLED;
        for (uint32_t s = 0; s < t->n_seq; s++)
            TRY(sac_seq_append(e, r->seq[s], &r->next[s], 1, SAC_ROW_DECODE, SAC_WANT_LAST, err));
        TRY(sac_step(e, take_likeliest, r, NULL, err));
        progress_update(r->bar, (r->i + (t->n_prompt ? 0.5 + part / 2 : part)) / r->n);
    }
    return SAC_OK;
}

/* Removes the forks in any case. */
static sac_status run_forks(struct rep *r, uint32_t n_prompt, uint32_t n_gen,
                            struct bench_result *out, sac_error *err)
{
    sac_engine *e = r->rig->engine;
    const struct bench_test *t = r->test;
    for (uint32_t s = 0; s < t->n_seq; s++) {
        TRY(sac_seq_fork(e, r->rig->base[base_of(r->rig, s)].seq, &r->seq[s], err));
        TRY(sac_seq_use_prefill(e, r->seq[s], t->prefill, err));
        TRY(sac_seq_use_top(e, r->seq[s], t->n_top, err));
    }
    const sac_engine_stats start = sac_engine_get_stats(e);
    const uint64_t start_us = clock_us();
    TRY(run_prompt(r, n_prompt, err));
    const uint64_t middle_us = clock_us();
    const sac_engine_stats middle = sac_engine_get_stats(e);
    TRY(run_decode(r, t->depth + n_prompt, n_gen, err));
    const uint64_t end_us = clock_us();
    const sac_engine_stats end = sac_engine_get_stats(e);
    if (!out) return SAC_OK;
    out->prompt[out->n_rep] = phase_between(&start, &middle, middle_us - start_us);
    out->decode[out->n_rep] = phase_between(&middle, &end, end_us - middle_us);
    out->n_rep++;
    out->kv_bytes_used = end.kv_bytes_used;
    return SAC_OK;
}

static sac_status run_rep(struct rep *r, uint32_t n_prompt, uint32_t n_gen,
                          struct bench_result *out, sac_error *err)
{
    for (uint32_t s = 0; s < r->test->n_seq; s++) r->seq[s] = SAC_SEQ_NONE;
    const sac_status status = run_forks(r, n_prompt, n_gen, out, err);
    for (uint32_t s = 0; s < r->test->n_seq; s++)
        if (r->seq[s] != SAC_SEQ_NONE) sac_seq_remove(r->rig->engine, r->seq[s]);
    return status;
}

sac_status bench_rig_run(struct bench_rig *rig, const struct bench_test *test, uint32_t n_rep,
                         struct bench_result *out, sac_error *err)
{
    assert(n_rep >= 1 && n_rep <= BENCH_REPS_MAX && test->n_seq >= 1);
    *out = (struct bench_result){0};
    TRY(fill_depth(rig, test, err));
    struct progress bar;
    struct rep rep = {.rig = rig, .test = test, .bar = &bar, .n = n_rep};
    rep.seq = mem_calloc(test->n_seq, sizeof *rep.seq);
    rep.next = mem_calloc(test->n_seq, sizeof *rep.next);
    if (!rep.seq || !rep.next) {
        mem_free(rep.seq);
        mem_free(rep.next);
        return error_set(err, SAC_ERR_MEMORY, "no memory for %u sequences", test->n_seq);
    }
    char label[32];
    snprintf(label, sizeof label, "%s%u", test->n_gen ? "tg" : "pp",
             test->n_gen ? test->n_gen : test->n_prompt);
    progress_begin(&bar, label);
    sac_status status = run_rep(&rep, min_u32(test->n_prompt, WARM_PROMPT),
                                min_u32(test->n_gen, WARM_STEPS), NULL, err);
    out->tier_before = sac_tier_get_stats(rig->engine);
    for (; status == SAC_OK && rep.i < n_rep; rep.i++)
        status = run_rep(&rep, test->n_prompt, test->n_gen, out, err);
    out->tier_after = sac_tier_get_stats(rig->engine);
    progress_end(&bar);
    mem_free(rep.seq);
    mem_free(rep.next);
    return status;
}

sac_status bench_rig_open(struct bench_rig *rig, const sac_model *model, uint32_t n_base,
                          const sac_engine_params *params, sac_error *err)
{
    *rig = (struct bench_rig){.model = model, .n_base = n_base};
    rig->base = mem_calloc(n_base, sizeof *rig->base);
    if (!rig->base) return error_set(err, SAC_ERR_MEMORY, "no memory for %u sequences", n_base);
    for (uint32_t i = 0; i < n_base; i++) rig->base[i].seq = SAC_SEQ_NONE;
    sac_sampling greedy = sac_sampling_default();
    greedy.temp = 0;
    TRY(sac_sampler_create(&rig->sampler, model, &greedy, err));
    return sac_engine_create(&rig->engine, model, params, err);
}

void bench_rig_close(struct bench_rig *rig)
{
    sac_engine_free(rig->engine);
    sac_sampler_free(rig->sampler);
    mem_free(rig->base);
    rig->engine = NULL;
    rig->sampler = NULL;
    rig->base = NULL;
}
