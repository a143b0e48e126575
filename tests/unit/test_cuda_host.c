/* test_cuda_host.c: whole engines on the CUDA backend's own kernels, which grid.h runs thread by
 * thread on a CPU: the logits of the reference but for rounding, and the same bits in whatever
 * order threads run and in whatever company a sequence is. */
#include "engine/engine.h"
#include "must.h"
#include "tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_PROMPT = 75, N_STEP = 4, DIM = 64 };

static sac_model *model, *windowed;
static int32_t prompt[N_PROMPT];

static int open_models(void **state)
{
    (void)state;
    setenv("SACCADE_CUDA", CUDA_HOST, 1);
    setenv("SAC_CPU", "ref", 1);
    model = tiny_open(&(struct tiny){.seed = 1, .dim = DIM});
    windowed = tiny_open(&(struct tiny){.seed = 2, .window = 48, .n_layer = 6, .dim = DIM});
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (i * 37 + i / 9) % TINY_VOCAB;
    return model && windowed ? 0 : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(windowed);
    return 0;
}

static sac_engine *new_engine(const sac_model *of, const char *device, sac_kv_type type)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 256;
    p.n_seq_max = 2;
    p.n_batch = 64;
    p.n_threads = 1;
    p.type_k = p.type_v = type;
    p.device = device;
    must(sac_engine_create(&e, of, &p, &err), &err);
    return e;
}

/* Logits of the prompt's last row and of rows that answer it, the same tokens on any device. */
struct heard {
    uint32_t n;
    float logits[1 + N_STEP][TINY_VOCAB];
};

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    if (row->seq == 0) memcpy(h->logits[h->n++], row->logits, sizeof h->logits[0]);
}

static void append(sac_engine *e, sac_seq seq, const int32_t *tok, uint32_t n, sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, seq, tok, n, kind, SAC_WANT_LAST, &err), &err);
}

static void step_all(sac_engine *e, struct heard *h)
{
    uint32_t n = 1;
    sac_error err;
    while (n) must(sac_step(e, hear, h, &n, &err), &err);
}

/* The second sequence is company. */
static struct heard answer(const sac_model *of, const char *device, sac_kv_type type, bool company)
{
    struct heard h = {0};
    sac_engine *e = new_engine(of, device, type);
    sac_error err;
    sac_seq seq, other;
    must(sac_seq_create(e, &seq, &err), &err);
    must(sac_seq_create(e, &other, &err), &err);
    assert_int_equal(seq, 0);
    append(e, seq, prompt, N_PROMPT, SAC_ROW_PROMPT);
    if (company) append(e, other, prompt + 5, 40, SAC_ROW_PROMPT);
    step_all(e, &h);
    for (int32_t i = 0; i < N_STEP; i++) {
        const int32_t tok = i * 11 % TINY_VOCAB;
        append(e, seq, &tok, 1, SAC_ROW_DECODE);
        if (company) append(e, other, &tok, 1, SAC_ROW_DECODE);
        step_all(e, &h);
    }
    assert_int_equal(h.n, 1 + N_STEP);
    sac_engine_free(e);
    return h;
}

/* The divergence of one row's softmax from another's. */
static double divergence(const float *p, const float *q)
{
    double sum_p = 0, sum_q = 0, kl = 0;
    for (int i = 0; i < TINY_VOCAB; i++) sum_p += exp((double)p[i]), sum_q += exp((double)q[i]);
    for (int i = 0; i < TINY_VOCAB; i++) {
        const double a = (double)p[i] - log(sum_p), b = (double)q[i] - log(sum_q);
        kl += exp(a) * (a - b);
    }
    return kl;
}

static void assert_near(const struct heard *want, const struct heard *got, double most)
{
    for (uint32_t i = 0; i < want->n; i++) {
        const double kl = divergence(want->logits[i], got->logits[i]);
        if (!(kl < most)) fail_msg("row %u: the divergence is %g", i, kl);
    }
}

static void kernels_agree_with_the_reference(void **state)
{
    (void)state;
    const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_Q8, SAC_KV_BF16};
    const double most[] = {1e-4, 1e-3, 3e-3}; /* three times what rounding does at worst, or more */
    for (int i = 0; i < 3; i++) {
        const sac_model *of = i == 2 ? windowed : model;
        const struct heard want = answer(of, "cpu", type[i], false);
        const struct heard got = answer(of, "cuda", type[i], false);
        assert_near(&want, &got, most[i]);
    }
}

static void order_of_threads_and_company_do_not_show(void **state)
{
    (void)state;
    const struct heard want = answer(model, "cuda", SAC_KV_Q8, false);
    setenv("SAC_GRID_ORDER", "backward", 1);
    const struct heard got = answer(model, "cuda", SAC_KV_Q8, true);
    unsetenv("SAC_GRID_ORDER");
    assert_memory_equal(&want, &got, sizeof want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_the_reference),
        cmocka_unit_test(order_of_threads_and_company_do_not_show),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
