/* test_devices.c: layers on several GPUs, by the CUDA backend's own kernels and queues, which
 * tests/cuda_host runs on a CPU: the bits of one GPU, whoever of them comes first, with steps under
 * way, graphs, and methods of both kinds. The devices reach no memory but their own. */
#include "device_bench.h"

enum { DIM = 64, N_STEP = 3, N_SEQ = 3, N_CHUNK = 64, N_LONG = 3 * N_CHUNK + 9 };

static sac_model *deep;

static int open_models(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    setenv("SAC_HOST_DEVICES", "3", 1);
    deep = tiny_open(&(struct tiny){.seed = 4, .n_layer = 4, .dim = DIM});
    return open_pair(CUDA_HOST, DIM) == 0 && deep ? 0 : -1;
}

static int free_models(void **state)
{
    sac_model_free(deep);
    return free_pair(state);
}

static const char *const decode[] = {"full", "auto:mass=0.5,most=1,recent=32",
                                     "quest:budget=32,dense=0,sink=0,recent=0",
                                     "psa:mass=0.5,order=box,step=2,recent=0"};
static const char *const prefill[] = {"auto:mass=0.8,rows=16,last=0,most=1,recent=32"};

/* What an engine is asked for beside its devices. */
struct wish {
    const sac_model *of;
    sac_kv_type type;
    uint32_t decode_i;
    bool plans;       /* by prefill[0] */
    uint32_t n_layer; /* of the devices; 0: all */
    uint32_t n_step;  /* answers of each sequence */
};

static sac_engine *new_engine(const struct wish *w, const char *device)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 512;
    p.n_seq_max = N_SEQ;
    p.n_batch = N_CHUNK;
    p.n_threads = 1;
    p.type_k = p.type_v = w->type;
    p.device = device;
    p.n_device_layer = w->n_layer;
    p.decode = decode + w->decode_i;
    p.n_decode = 1;
    p.prefill = prefill;
    p.n_prefill = w->plans ? 1 : 0;
    p.sparse_min_ctx = 1;
    must(sac_engine_create(&e, w->of, &p, &err), &err);
    return e;
}

struct heard {
    uint32_t n;
    float logits[2 + N_SEQ * 8][TINY_VOCAB];
    sac_reads reads;
};

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    assert_true(h->n < sizeof h->logits / sizeof h->logits[0]);
    memcpy(h->logits[h->n++], row->logits, sizeof h->logits[0]);
}

/* A prompt in chunks that nobody waits for, another one, a fork, and rows of all in one batch. */
static void live(struct heard *h, const struct wish *w, const char *device)
{
    sac_engine *e = new_engine(w, device);
    sac_error err;
    sac_seq a, b, fork;
    int32_t tok[N_LONG];
    memset(h, 0, sizeof *h);
    for (int32_t i = 0; i < N_LONG; i++) tok[i] = (i * i / 7 + i * 37 + i / 9) % TINY_VOCAB;
    must(sac_seq_create(e, &a, &err), &err);
    must(sac_seq_create(e, &b, &err), &err);
    append(e, a, tok, N_LONG, SAC_ROW_PROMPT);
    append(e, b, tok + 5, 70, SAC_ROW_PROMPT);
    step_all(e, hear, h);
    must(sac_seq_fork(e, a, &fork, &err), &err);
    for (int32_t i = 0; i < (int32_t)w->n_step; i++) {
        const int32_t next[N_SEQ] = {i * 11 % TINY_VOCAB, i + 3, i * 5 + 1};
        append(e, a, &next[0], 1, SAC_ROW_DECODE);
        append(e, b, &next[1], 1, SAC_ROW_DECODE);
        append(e, fork, &next[2], 1, SAC_ROW_DECODE);
        step_all(e, hear, h);
    }
    h->reads = e->stats.reads;
    sac_engine_free(e);
}

static void check_same(const struct wish *w, const char *one, const char *many)
{
    static struct heard want, got;
    live(&want, w, one);
    live(&got, w, many);
    assert_int_equal(want.n, 2 + N_SEQ * w->n_step);
    assert_int_equal(got.n, want.n);
    assert_memory_equal(want.logits, got.logits, sizeof want.logits);
    assert_memory_equal(&want.reads, &got.reads, sizeof want.reads);
}

static void several_give_the_bits_of_one(void **state)
{
    (void)state;
    check_same(&(struct wish){.of = deep, .type = SAC_KV_F16, .n_step = N_STEP}, "cuda:2",
               "cuda:0,cuda:1");
    check_same(&(struct wish){.of = windowed, .type = SAC_KV_Q8, .n_step = 1}, "cuda",
               "cuda:2,cuda:0,cuda:1");
}

/* What one device does not wait for is not done yet, in whatever order they get on. */
static void devices_wait_for_each_other(void **state)
{
    (void)state;
    const struct wish w = {.of = model, .type = SAC_KV_F16, .n_step = 2};
    check_same(&w, "cuda:1", "cuda:1,cuda:0");
    setenv("SAC_GRID_ORDER", "backward", 1);
    check_same(&w, "cuda:1", "cuda:1,cuda:0");
    unsetenv("SAC_GRID_ORDER");
}

static void methods_choose_where_the_layer_is(void **state)
{
    (void)state;
    for (uint32_t i = 1; i < sizeof decode / sizeof decode[0]; i++)
        check_same(&(struct wish){.of = i == 2 ? deep : model,
                                  .type = i % 2 ? SAC_KV_Q8 : SAC_KV_F16,
                                  .decode_i = i,
                                  .plans = i == 1,
                                  .n_step = N_STEP},
                   "cuda:0", i == 2 ? "cuda:0,cuda:1,cuda:2" : "cuda:1,cuda:0");
}

/* The first layer is the CPU's, the others are two devices'. */
static void a_cpu_comes_before_them(void **state)
{
    (void)state;
    check_same(&(struct wish){.of = deep,
                              .type = SAC_KV_Q8,
                              .decode_i = 1,
                              .plans = true,
                              .n_layer = 3,
                              .n_step = N_STEP},
               "cuda:0", "cuda:0,cuda:2");
}

/* A step of decode rows is a graph on each of them. */
static void each_has_graphs_of_its_own(void **state)
{
    (void)state;
    static struct heard h;
    const struct wish w = {.of = model, .type = SAC_KV_F16, .n_step = 6};
    const uint32_t before = graphs_started(CUDA_HOST); /* loaded by the tests before */
    live(&h, &w, "cuda:0");
    const uint32_t one = graphs_started(CUDA_HOST) - before;
    live(&h, &w, "cuda:0,cuda:1");
    const uint32_t two = graphs_started(CUDA_HOST) - before - one;
    assert_true(one > 0 && two >= 2 * one);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_give_the_bits_of_one),
        cmocka_unit_test(devices_wait_for_each_other),
        cmocka_unit_test(methods_choose_where_the_layer_is),
        cmocka_unit_test(a_cpu_comes_before_them),
        cmocka_unit_test(each_has_graphs_of_its_own),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
