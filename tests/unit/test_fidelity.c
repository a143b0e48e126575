/* test_fidelity.c: the figures of fidelity_run against the same ones worked out here in double,
 * from logits and records of two runs of an engine; on a made-up model whose methods do harm. */
#include "eval/fidelity.h"
#include "must.h"
#include "tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    CTX = 260,
    N_SCORE = 20,
    FIRST = CTX - N_SCORE,
    N_LANE = TINY_LAYERS * TINY_KV_HEADS,
    N_PAGE = CTX / 32 + 1,
    N_OUT = TINY_HEADS / TINY_KV_HEADS * TINY_DIM
};

/* What one run says and does. */
struct seen {
    double logp[N_SCORE][TINY_VOCAB];
    double mass[N_SCORE][N_LANE], out_err[N_SCORE][N_LANE], out_left[N_SCORE][N_LANE];
    double page_mass[N_SCORE][N_LANE][N_PAGE], out[N_SCORE][N_LANE][N_OUT];
    double bytes[N_SCORE][N_LANE], side[N_SCORE][N_LANE], page_share[N_SCORE][N_LANE];
    double share_read;
};

static sac_model *model;
static int32_t tok[CTX + 1];
static struct seen dense, sparse;

static int load_model(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    for (uint32_t i = 0; i <= CTX; i++) tok[i] = (int32_t)(i * i * 31 % 251);
    model = tiny_open(&(struct tiny){.seed = 5});
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static void on_row(void *user, const sac_row *row)
{
    struct seen *s = user;
    double sum = 0;
    for (uint32_t i = 0; i < TINY_VOCAB; i++) sum += exp((double)row->logits[i]);
    for (uint32_t i = 0; i < TINY_VOCAB; i++)
        s->logp[row->pos - FIRST][i] = (double)row->logits[i] - log(sum);
}

static void on_record(void *user, const sac_read_record *r)
{
    struct seen *s = user;
    const uint32_t i = r->pos - FIRST, lane = r->layer * TINY_KV_HEADS + r->kv_head;
    s->mass[i][lane] = (double)r->mass;
    s->out_err[i][lane] = (double)r->out_err;
    s->out_left[i][lane] = (double)r->out_left;
    s->bytes[i][lane] = (double)(r->k_bytes + r->v_bytes);
    s->side[i][lane] = (double)r->side_bytes;
    s->page_share[i][lane] = (double)r->n_page_read / r->n_page;
    for (uint32_t p = 0; p < r->n_page; p++) s->page_mass[i][lane][p] = (double)r->page_mass[p];
    for (uint32_t c = 0; c < N_OUT; c++) s->out[i][lane][c] = (double)r->out[c];
}

static sac_engine_params engine_params(const char *const *decode)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = CTX;
    p.n_threads = 1;
    p.decode = decode;
    p.n_decode = 1;
    p.sparse_min_ctx = 0;
    p.record = true;
    return p;
}

/* The last tokens one by one behind a dense prompt. */
static void run(struct seen *s, const char *decode)
{
    const sac_engine_params p = engine_params(&decode);
    sac_engine *e;
    sac_seq seq;
    sac_error err;
    uint32_t n = 1;
    memset(s, 0, sizeof *s);
    must(sac_engine_create(&e, model, &p, &err), &err);
    must(sac_seq_create(e, &seq, &err), &err);
    must(sac_seq_append(e, seq, tok, FIRST, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    while (n) must(sac_step(e, NULL, NULL, &n, &err), &err);
    must(sac_engine_set_recorder(e, on_record, s, &err), &err);
    const sac_engine_stats before = sac_engine_get_stats(e);
    must(sac_seq_append(e, seq, tok + FIRST, N_SCORE, SAC_ROW_DECODE, SAC_WANT_ALL, &err), &err);
    for (n = 1; n;) must(sac_step(e, on_row, s, &n, &err), &err);
    const sac_engine_stats after = sac_engine_get_stats(e);
    s->share_read = (double)(after.reads.n_tok_read - before.reads.n_tok_read) /
                    (double)(after.reads.n_tok_seen - before.reads.n_tok_seen);
    sac_engine_free(e);
}

static void is_near(const char *what, double is, double want)
{
    if (!(fabs(is - want) <= 2e-5 * (1 + fabs(want)))) fail_msg("%s is %g, not %g", what, is, want);
}

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How many tokens are likelier than one, of equals the first. */
static uint32_t rank_of(const double *logp, uint32_t at)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < TINY_VOCAB; i++)
        n += logp[i] > logp[at] || (logp[i] == logp[at] && i < at);
    return n;
}

static void check_distribution(const struct fidelity_row *row)
{
    double kl[N_SCORE], mean = 0, backwards = 0, top1 = 0, top5 = 0, nll = 0, nll_dense = 0;
    for (uint32_t i = 0; i < N_SCORE; i++) {
        kl[i] = 0;
        for (uint32_t v = 0; v < TINY_VOCAB; v++) {
            const double p = dense.logp[i][v], q = sparse.logp[i][v];
            kl[i] += exp(p) * (p - q);
            backwards += exp(q) * (q - p) / N_SCORE;
            const uint32_t a = rank_of(dense.logp[i], v), b = rank_of(sparse.logp[i], v);
            top1 += (a == 0 && b == 0) / (double)N_SCORE;
            top5 += (a < 5 && b < 5) / (5.0 * N_SCORE);
        }
        mean += kl[i] / N_SCORE;
        nll -= sparse.logp[i][tok[FIRST + i + 1]] / N_SCORE;
        nll_dense -= dense.logp[i][tok[FIRST + i + 1]] / N_SCORE;
    }
    assert_true(mean > 1e-3 &&
                fabs(mean - backwards) > 1e-2 * mean); /* there is something to tell */
    qsort(kl, N_SCORE, sizeof *kl, rising);
    is_near("kl_mean", row->kl_mean, mean);
    is_near("kl_median", row->kl_median, (kl[9] + kl[10]) / 2);
    is_near("kl_p90", row->kl_p90, kl[17] + 0.1 * (kl[18] - kl[17]));  /* at 17.1 of 0 to 19 */
    is_near("kl_p99", row->kl_p99, kl[18] + 0.81 * (kl[19] - kl[18])); /* at 18.81 */
    is_near("kl_max", row->kl_max, kl[19]);
    is_near("top1", row->top1, top1);
    is_near("top5", row->top5, top5);
    is_near("ppl", row->ppl, exp(nll));
    is_near("ppl_dense", row->ppl_dense, exp(nll_dense));
    is_near("share_read", row->share_read, sparse.share_read);
}

static void check_attention(const struct fidelity_attention *is, uint32_t lane0, uint32_t n_lane)
{
    const double n = (double)N_SCORE * n_lane;
    double mass = 0, out_err = 0, out_left = 0, pages = 0, overlap = 0, drift = 0;
    double bytes = 0, bytes_dense = 0;
    for (uint32_t i = 0; i < N_SCORE; i++)
        for (uint32_t l = lane0; l < lane0 + n_lane; l++) {
            double off = 0, norm = 0;
            mass += sparse.mass[i][l] / n;
            out_err += sparse.out_err[i][l] / n;
            out_left += sparse.out_left[i][l] / n;
            pages += sparse.page_share[i][l] / n;
            bytes += sparse.bytes[i][l] + sparse.side[i][l];
            bytes_dense += dense.bytes[i][l];
            for (uint32_t p = 0; p < N_PAGE; p++)
                overlap += fmin(sparse.page_mass[i][l][p], dense.page_mass[i][l][p]) / n;
            for (uint32_t c = 0; c < N_OUT; c++) {
                off += pow(sparse.out[i][l][c] - dense.out[i][l][c], 2);
                norm += pow(dense.out[i][l][c], 2);
            }
            drift += sqrt(off / norm) / n;
        }
    assert_true(mass < 0.99 && drift > 1e-3);
    is_near("mass", is->mass, mass);
    is_near("out_err", is->out_err, out_err);
    is_near("out_left", is->out_left, out_left);
    is_near("page_share", is->page_share, pages);
    is_near("overlap", is->overlap, overlap);
    is_near("drift", is->drift, drift);
    is_near("byte_ratio", is->byte_ratio, bytes / bytes_dense);
}

static void figures_are_those_of_two_runs(void **state)
{
    (void)state;
    static const char *const method[] = {"streaming:budget=60,sink=4",
                                         "topk:budget=8,sink=0,recent=0"};
    run(&dense, "full");
    for (size_t i = 0; i < sizeof method / sizeof method[0]; i++) {
        struct subjects subjects;
        struct fidelity_row row = {0};
        sac_error err;
        must(subjects_parse(&subjects, method[i], &err), &err);
        const struct fidelity_params params = {.model = model,
                                               .other = model,
                                               .engine = engine_params(NULL),
                                               .subjects = &subjects,
                                               .tok = tok,
                                               .ctx = CTX,
                                               .n_score = N_SCORE};
        struct fidelity_params p = params;
        p.engine.n_decode = 0;
        run(&sparse, method[i]);
        must(fidelity_run(&row, &p, &err), &err);
        check_distribution(&row);
        check_attention(&row.all, 0, N_LANE);
        assert_int_equal(row.n_layer, TINY_LAYERS);
        for (uint32_t l = 0; l < TINY_LAYERS; l++)
            check_attention(&row.layer[l], l * TINY_KV_HEADS, TINY_KV_HEADS);
        fidelity_deinit(&row);
        subjects_deinit(&subjects);
    }
}

/* Full attention against itself is 0 in every figure, exactly. */
static void nothing_is_lost_by_full_attention(void **state)
{
    (void)state;
    struct subjects subjects;
    struct fidelity_row row = {0};
    sac_error err;
    must(subjects_parse(&subjects, "full", &err), &err);
    struct fidelity_params p = {.model = model,
                                .other = model,
                                .engine = engine_params(NULL),
                                .subjects = &subjects,
                                .tok = tok,
                                .ctx = CTX,
                                .n_score = N_SCORE};
    p.engine.n_decode = 0;
    must(fidelity_run(&row, &p, &err), &err);
    assert_true(row.kl_max == 0 && row.top1 == 1 && row.top5 == 1 && row.share_read == 1);
    assert_true(row.ppl == row.ppl_dense && row.all.drift == 0 && row.all.byte_ratio == 1);
    fidelity_deinit(&row);
    subjects_deinit(&subjects);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_two_runs),
        cmocka_unit_test(nothing_is_lost_by_full_attention),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
