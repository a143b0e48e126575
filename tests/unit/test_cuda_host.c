/* test_cuda_host.c: whole engines on the CUDA backend's own kernels, which grid.h runs thread by
 * thread on a CPU: the logits of the reference but for rounding, and the same bits in whatever
 * order threads run and in whatever company a sequence is. */
#include "device_bench.h"

#include <math.h>

enum { N_PROMPT = 140, N_STEP = 2, DIM = 64, COMPANY = 4 };

static sac_model *shallow, *deep;

static int open_models(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    shallow = tiny_open(&(struct tiny){.seed = 3, .n_layer = 1, .dim = DIM});
    deep = tiny_open(&(struct tiny){.seed = 4, .n_layer = 4, .dim = DIM});
    return open_pair(CUDA_HOST, DIM) == 0 && shallow && deep ? 0 : -1;
}

static int free_models(void **state)
{
    sac_model_free(shallow);
    sac_model_free(deep);
    return free_pair(state);
}

/* What an engine is asked for beside its device. */
struct wish {
    const sac_model *of;
    sac_kv_type type;
    const char *decode; /* NULL: dense */
    uint32_t company;   /* other sequences */
    float share;        /* of its memory; 0: the usual one */
};

static sac_engine_params params_of(const char *device, sac_kv_type type)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 256;
    p.n_seq_max = 1 + COMPANY;
    p.n_batch = 64;
    p.n_threads = 1;
    p.type_k = p.type_v = type;
    p.device = device;
    return p;
}

static sac_engine *new_engine(const struct wish *w, const char *device)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_engine_params p = params_of(device, w->type);
    p.device_share = w->share;
    p.decode = &w->decode;
    p.n_decode = w->decode ? 1 : 0;
    p.sparse_min_ctx = 1;
    must(sac_engine_create(&e, w->of, &p, &err), &err);
    return e;
}

/* Logits of the prompt's last row and of rows that answer it, the same tokens on any device. */
struct heard {
    uint32_t n;
    float logits[1 + N_STEP][TINY_VOCAB];
    sac_reads reads;
};

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    if (row->seq == 0) memcpy(h->logits[h->n++], row->logits, sizeof h->logits[0]);
}

static struct heard answer(const struct wish *w, const char *device)
{
    struct heard h = {0};
    sac_engine *e = new_engine(w, device);
    sac_error err;
    sac_seq seq, other[COMPANY];
    must(sac_seq_create(e, &seq, &err), &err);
    for (uint32_t i = 0; i < w->company; i++) must(sac_seq_create(e, &other[i], &err), &err);
    assert_int_equal(seq, 0);
    append(e, seq, prompt, N_PROMPT, SAC_ROW_PROMPT);
    for (uint32_t i = 0; i < w->company; i++)
        append(e, other[i], prompt + 5 + i, i == 0 ? 40 : 3, SAC_ROW_PROMPT);
    step_all(e, hear, &h);
    for (int32_t i = 0; i < N_STEP; i++) {
        const int32_t tok = i * 11 % TINY_VOCAB;
        append(e, seq, &tok, 1, SAC_ROW_DECODE);
        for (uint32_t k = 0; k < w->company; k++) append(e, other[k], &tok, 1, SAC_ROW_DECODE);
        step_all(e, hear, &h);
    }
    assert_int_equal(h.n, 1 + N_STEP);
    h.reads = sac_seq_take_reads(e, seq);
    sac_engine_free(e);
    return h;
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
        const struct wish w = {.of = i == 2 ? windowed : model, .type = type[i]};
        const struct heard want = answer(&w, "cpu"), got = answer(&w, "cuda");
        assert_near(&want, &got, most[i]);
    }
}

/* In as much shared memory as an RTX 30, 40 or 50 has, and an A100: blocks of fewer rows or warps,
 * and one tile or unit at a time. */
static void less_shared_memory_is_enough(void **state)
{
    (void)state;
    static const struct {
        uint32_t dim, window;
        sac_kv_type type;
    } of[] = {
        {128, 0, SAC_KV_Q8}, {256, 48, SAC_KV_F16}, {256, 0, SAC_KV_Q8}, {256, 0, SAC_KV_BF16}};
    for (int i = 0; i < 4; i++) {
        sac_model *m = tiny_open(
            &(struct tiny){.seed = 5, .n_layer = 2, .dim = of[i].dim, .window = of[i].window});
        struct wish w = {.of = m, .type = of[i].type};
        const struct heard want = answer(&w, "cpu");
        for (int small = 0; small < 2; small++) {
            setenv("SAC_HOST_SHARED", small ? "99" : "163", 1);
            w.company = 0;
            const struct heard alone = answer(&w, "cuda");
            w.company = COMPANY;
            const struct heard got = answer(&w, "cuda");
            unsetenv("SAC_HOST_SHARED");
            assert_near(&want, &alone, 3e-3);
            assert_memory_equal(alone.logits, got.logits, sizeof got.logits);
        }
        sac_model_free(m);
    }
}

/* Prompts by matrices that lie there in f16 and by packed ones, where there is no room for these.
 */
static void matrices_in_f16_give_the_same_bits(void **state)
{
    (void)state;
    struct wish w = {.of = model, .type = SAC_KV_F16};
    const struct heard want = answer(&w, "cuda");
    sac_engine *e = new_engine(&w, "cuda");
    const struct place *p = &e->place[0];
    assert_true(p->plain_bytes > 0);
    w.share = (float)((double)(p->copy.block_bytes + p->block_bytes + 1024) /
                      (double)p->backend.bytes_free);
    sac_engine_free(e);
    e = new_engine(&w, "cuda");
    assert_int_equal(e->place[0].plain_bytes, 0);
    sac_engine_free(e);
    const struct heard got = answer(&w, "cuda");
    assert_memory_equal(want.logits, got.logits, sizeof want.logits);
}

static void order_of_threads_and_company_do_not_show(void **state)
{
    (void)state;
    static const char *const decode[] = {"auto:mass=0.5,most=1,recent=32",
                                         "lfps:budget=12,past=9,guard=on"};
    for (int i = 0; i < 2; i++) {
        struct wish w = {.of = model, .type = SAC_KV_Q8, .decode = decode[i]};
        const struct heard want = answer(&w, "cuda");
        w.company = COMPANY; /* more rows than blocks pack by themselves */
        setenv("SAC_GRID_ORDER", "backward", 1);
        const struct heard got = answer(&w, "cuda");
        unsetenv("SAC_GRID_ORDER");
        assert_memory_equal(want.logits, got.logits, sizeof want.logits);
        assert_memory_equal(&want.reads, &got.reads, sizeof want.reads);
    }
}

/* The first step of a shape is issued, the second becomes a graph, and all that follow start it:
 * with lists that the device makes, too, whose counts come down with the logits. Steps but the
 * first are described ahead, in turns in either half of the ring. */
static void repeated_steps_are_one_graph(void **state)
{
    (void)state;
    const char *const decode[] = {NULL, "auto:mass=0.5,most=1,recent=0"};
    for (int i = 0; i < 2; i++) {
        const struct wish w = {.of = model, .type = SAC_KV_F16, .decode = decode[i]};
        struct heard h = {0};
        sac_engine *e = new_engine(&w, "cuda");
        sac_error err;
        sac_seq seq;
        must(sac_seq_create(e, &seq, &err), &err);
        append(e, seq, prompt, 40, SAC_ROW_PROMPT);
        step_all(e, hear, &h);
        const uint32_t before = graphs_started(CUDA_HOST);
        for (int32_t tok = 0; tok < 6; tok++) {
            append(e, seq, &tok, 1, SAC_ROW_DECODE);
            h.n = 0;
            step_all(e, hear, &h);
        }
        assert_int_equal(graphs_started(CUDA_HOST) - before, 3);
        sac_engine_free(e);
    }
}

/* The step behind one that fills a page is a graph as the one before it was, though more is there
 * to choose from. */
static void a_graph_lasts_while_pages_fill(void **state)
{
    (void)state;
    const char *const decode[] = {"auto:mass=0.5,most=1,recent=0", "quest:budget=64,dense=0",
                                  "psa:mass=0.5", "loopserve:budget=64,every=64,first=1",
                                  "lfps:budget=64"};
    for (int i = 0; i < 5; i++) {
        const struct wish w = {.of = model, .type = SAC_KV_F16, .decode = decode[i]};
        struct heard h = {0};
        sac_engine *e = new_engine(&w, "cuda");
        sac_error err;
        sac_seq seq;
        must(sac_seq_create(e, &seq, &err), &err);
        append(e, seq, prompt, 6 * PAGE_TOK - 4, SAC_ROW_PROMPT);
        step_all(e, hear, &h);
        uint32_t before = 0;
        for (int32_t tok = 0; tok < 8; tok++) { /* the fourth one fills the page */
            if (tok == 4) before = graphs_started(CUDA_HOST);
            append(e, seq, &tok, 1, SAC_ROW_DECODE);
            h.n = 0;
            step_all(e, hear, &h);
        }
        assert_int_equal(graphs_started(CUDA_HOST) - before, 4);
        sac_engine_free(e);
    }
}

/* Layers of a method that chooses now and then do so in different steps: two rows take turns. */
static void rows_that_take_turns_are_graphs(void **state)
{
    (void)state;
    const struct wish w = {
        .of = model, .type = SAC_KV_F16, .decode = "loopserve:budget=8,every=2,first=1"};
    struct heard h = {0};
    sac_engine *e = new_engine(&w, "cuda");
    sac_error err;
    sac_seq seq;
    must(sac_seq_create(e, &seq, &err), &err);
    append(e, seq, prompt, 40, SAC_ROW_PROMPT);
    step_all(e, hear, &h);
    const uint32_t before = graphs_started(CUDA_HOST);
    for (int32_t tok = 0; tok < 8; tok++) { /* the first three rows are new */
        append(e, seq, &tok, 1, SAC_ROW_DECODE);
        h.n = 0;
        step_all(e, hear, &h);
    }
    assert_int_equal(graphs_started(CUDA_HOST) - before, 5);
    sac_engine_free(e);
}

/* ---- Methods ---- */

static const char *const methods[] = {
    "streaming:budget=40",
    "topk:budget=20",
    "topk:unit=page,budget=32",
    "quest:budget=16,dense=0,sink=0,recent=0",
    "quest:budget=16,dense=0,sink=0,recent=0,heads=query",
    "quest:budget=32,dense=1,sink=0,recent=0,page=32",
    "arkvale:budget=32,dense=0,sink=0,recent=0",
    "arkvale:budget=32,dense=0,sink=0,recent=0,reduce=raw",
    "psa:mass=0.3,recent=0",
    "psa:mass=0.5,order=box,step=2,recent=0",
    "psa:mass=0.4,order=box,stop=min,recent=0",
    "psa:mass=0.5,order=box,rest=last,scope=layer,recent=0",
    "psa:mass=0.5,order=box,rest=vote,recent=0",
    "auto:mass=0.5,most=1,recent=0",
    "auto:mass=0.95,most=0.1",
    "loopserve:budget=20,warm=snapkv,every=4,first=1,stagger=off",
    "loopserve:budget=24,every=40,first=2,sink=0",
    "lfps:budget=12,past=20",
    "lfps:budget=10%,heads=group,guard=on,refresh=2,sink=6",
    "lfps:budget=12,bypass=0",
};
/* Those before the last five keep nothing that a device has. */
enum { N_METHOD = sizeof methods / sizeof methods[0], N_IN_PART = N_METHOD - 5 };

/* Two rows of a sequence for each method, all in one batch. */
struct chosen {
    uint32_t n[N_METHOD];
    float logits[N_METHOD][2][TINY_VOCAB];
    sac_reads reads[N_METHOD];
};

static void hear_chosen(void *user, const sac_row *row)
{
    struct chosen *h = user;
    if (row->seq > 0)
        memcpy(h->logits[row->seq - 1][h->n[row->seq - 1]++], row->logits, sizeof h->logits[0][0]);
}

/* The pages go out and come back, and are noted again. */
static void reload(sac_engine *e, sac_seq seq)
{
    sac_error err;
    uint8_t *bytes;
    size_t n;
    sac_seq loaded;
    must(sac_seq_to_bytes(e, seq, &bytes, &n, &err), &err);
    sac_seq_remove(e, seq);
    must(sac_seq_from_bytes(e, bytes, n, &loaded, &err), &err);
    assert_int_equal(loaded, seq);
    sac_free(bytes);
}

/* `n_layer`: of the device; 0: all. */
static void run_methods(struct chosen *h, const char *device, sac_kv_type type, uint32_t n_layer)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_seq prompted, fork;
    sac_engine_params p = params_of(device, type);
    const uint32_t n_method = n_layer ? N_IN_PART : N_METHOD;
    p.decode = methods;
    p.n_decode = n_method;
    p.sparse_min_ctx = 1;
    p.n_seq_max = 1 + n_method;
    p.n_device_layer = n_layer;
    memset(h, 0, sizeof *h);
    must(sac_engine_create(&e, model, &p, &err), &err);
    must(sac_seq_create(e, &prompted, &err), &err);
    append(e, prompted, prompt, N_PROMPT, SAC_ROW_PROMPT);
    step_all(e, hear_chosen, h);
    if (n_layer) reload(e, prompted);
    for (uint32_t i = 0; i < n_method; i++) {
        must(sac_seq_fork(e, prompted, &fork, &err), &err);
        assert_int_equal(fork, 1 + i);
        must(sac_seq_use_decode(e, fork, i, &err), &err);
        for (int32_t tok = 3; tok < 5; tok++) append(e, fork, &tok, 1, SAC_ROW_DECODE);
    }
    step_all(e, hear_chosen, h);
    for (uint32_t i = 0; i < n_method; i++) h->reads[i] = sac_seq_take_reads(e, 1 + i);
    sac_engine_free(e);
}

/* Keys that differ in their last bits move a few draws. */
static void assert_draws_alike(const sac_reads *want, const sac_reads *got)
{
    assert_int_equal(want->n_select, got->n_select);
    assert_int_equal(want->n_select_dense, got->n_select_dense);
    assert_int_equal(want->choose_bytes_read, got->choose_bytes_read);
    const double n = (double)want->n_tok_read;
    assert_true(fabs((double)got->n_tok_read - n) <= 0.03 * n);
    assert_true(fabs((double)got->n_tok_chosen - (double)want->n_tok_chosen) <= 0.03 * n);
}

/* A device's visit reads keys once more than attention does, a host's reads keys of its last
 * round for nothing. Shares by first planes are rough on a CPU, so pages of nearly the same may
 * come in another order; as many are visited. */
static void assert_visits_alike(const sac_reads *want, const sac_reads *got)
{
    assert_int_equal(want->n_select, got->n_select);
    assert_int_equal(want->n_select_dense, got->n_select_dense);
    assert_int_equal(want->choose_bytes_read, got->choose_bytes_read);
    assert_int_equal(want->n_tok_read, got->n_tok_read);
    assert_int_equal(want->n_tok_chosen, got->n_tok_chosen);
    assert_true(got->kv_bytes_read >= want->kv_bytes_read);
}

/* A device reads tables once where a host reads them twice. Heads choose apart, and keys that
 * differ in their last bits make one of them take another token here and there. */
static void assert_recalls_alike(const sac_reads *want, const sac_reads *got)
{
    const double n = (double)want->n_tok_read;
    assert_int_equal(want->n_select, got->n_select);
    assert_int_equal(want->n_select_dense, got->n_select_dense);
    assert_int_equal(want->n_bypass, got->n_bypass);
    assert_true(fabs((double)got->n_tok_read - n) <= 0.02 * n);
    assert_true(fabs((double)got->n_tok_chosen - (double)want->n_tok_chosen) <= 0.02 * n);
    assert_true(got->choose_bytes_read > 0 && got->choose_bytes_read <= want->choose_bytes_read);
}

/* How far the logits of a method may be from those of the host. Of `auto` with a mass of a half a
 * few dozen tokens are drawn, by shares that a device has of 8 bits: of which one is another now
 * and then, and each weighs as much as all that it was drawn for. */
static double most_of(const char *method)
{
    if (strncmp(method, "psa", 3) == 0 && !strstr(method, "order=box")) return 1;
    return strncmp(method, "auto", 4) == 0 ? 0.05 : 1e-3;
}

/* What is read is the same to the byte, and so is what is said of it. */
static void assert_chosen_alike(const struct chosen *want, const struct chosen *got, uint32_t i)
{
    const bool draws = strncmp(methods[i], "auto", 4) == 0;
    const bool visits = strncmp(methods[i], "psa", 3) == 0;
    const bool recalls = strncmp(methods[i], "lfps", 4) == 0;
    assert_int_equal(got->n[i], 2);
    for (int k = 0; k < 2; k++)
        assert_true(divergence(want->logits[i][k], got->logits[i][k]) < most_of(methods[i]));
    if (draws)
        assert_draws_alike(&want->reads[i], &got->reads[i]);
    else if (visits)
        assert_visits_alike(&want->reads[i], &got->reads[i]);
    else if (recalls)
        assert_recalls_alike(&want->reads[i], &got->reads[i]);
    else
        assert_memory_equal(&want->reads[i], &got->reads[i], sizeof want->reads[i]);
}

static struct chosen want_chosen, got_chosen;

static void methods_choose_as_on_the_host(void **state)
{
    (void)state;
    const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_Q8};
    for (int t = 0; t < 2; t++) {
        run_methods(&want_chosen, "cpu", type[t], 0);
        run_methods(&got_chosen, "cuda", type[t], 0);
        for (uint32_t i = 0; i < N_METHOD; i++) assert_chosen_alike(&want_chosen, &got_chosen, i);
    }
}

/* The first layer is the CPU's, the last the device's. */
static void methods_choose_in_part_as_on_the_host(void **state)
{
    (void)state;
    run_methods(&want_chosen, "cpu", SAC_KV_F16, 0);
    run_methods(&got_chosen, "cuda", SAC_KV_F16, 1);
    for (uint32_t i = 0; i < N_IN_PART; i++) assert_chosen_alike(&want_chosen, &got_chosen, i);
}

/* The kernels that a decode row takes; methods choose in contexts of min_ctx and more. */
static uint32_t kernels_of(const sac_model *of, const char *decode, sac_kv_type type,
                           uint32_t min_ctx, struct heard *h)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_seq seq;
    sac_engine_params p = params_of("cuda", type);
    const int32_t tok = 7;
    p.decode = &decode;
    p.n_decode = 1;
    p.sparse_min_ctx = min_ctx;
    must(sac_engine_create(&e, of, &p, &err), &err);
    must(sac_seq_create(e, &seq, &err), &err);
    append(e, seq, prompt, N_PROMPT, SAC_ROW_PROMPT);
    step_all(e, hear, h);
    const uint32_t before = count_of(CUDA_HOST, "n_kernel_run");
    append(e, seq, &tok, 1, SAC_ROW_DECODE);
    step_all(e, hear, h);
    h->reads = sac_seq_take_reads(e, seq);
    sac_engine_free(e);
    return count_of(CUDA_HOST, "n_kernel_run") - before;
}

static void methods_cost_nothing_where_all_is_read(void **state)
{
    (void)state;
    static const char *const sparse[] = {"auto", "quest", "psa", "streaming"};
    struct heard want = {0};
    const uint32_t n = kernels_of(model, "full", SAC_KV_F16, N_PROMPT + 2, &want);
    for (int i = 0; i < 4; i++) {
        struct heard got = {0};
        assert_int_equal(kernels_of(model, sparse[i], SAC_KV_F16, N_PROMPT + 2, &got), n);
        assert_memory_equal(want.logits, got.logits, sizeof want.logits);
        assert_memory_equal(&want.reads, &got.reads, sizeof want.reads);
    }
}

/* Of a layer of a q8 cache. */
static uint32_t launches_of(const char *decode)
{
    struct heard h[2] = {0};
    const uint32_t n = deep->config.n_layer - shallow->config.n_layer;
    const uint32_t more = kernels_of(deep, decode, SAC_KV_Q8, 1, &h[0]) -
                          kernels_of(shallow, decode, SAC_KV_Q8, 1, &h[1]);
    assert_int_equal(more % n, 0);
    return more / n;
}

/* Queries, keys and values; attention, which turns and writes them; its output; the two of the FFN.
 * Where a method chooses, keys are written before; then psa has scores, an order whose votes are
 * made there, and visits, which list, and auto scores, a cut and what is taken. */
static void launches_of_a_layer_are_few(void **state)
{
    (void)state;
    assert_int_equal(launches_of("full"), 5);
    assert_int_equal(launches_of("psa:mass=0.3,recent=0"), 9);
    assert_int_equal(launches_of("auto:mass=0.5,most=1,recent=0"), 9);
}

/* ---- Prompts ---- */

static const char lines[] = "minference:columns=25,slashes=2,band=0,sink=0,sample=70";
static const char rounds[] = "loopserve:mass=0.3,slashes=1,columns=1,sample=16,most=1,beta=0.5";
static const char antidiagonals[] = "xattention:mass=0.5,stride=4";
static const char pooled[] = "flexprefill:mass=0.2,least=128,tau=2";
static const char blocks[] = "critiprefill:segment=64,dense=64,budget=64";

enum { N_LONG = 300, N_CHUNK = 256 + 32, N_TILES = OP_SAMPLE_TILE + 50 };
enum { FEW_FRAMES = 40, MORE_FRAMES = 56 }; /* of prompts of N_LONG and of N_TILES tokens */

/* What a prompt reads, and its last row's logits. */
struct planned {
    struct heard heard;
    sac_reads reads;
};

struct plan_wish {
    const sac_model *of;
    sac_kv_type type;
    const char *prefill;
    uint32_t n_tok;   /* of the prompt, N_TILES at most; 0: N_LONG */
    uint32_t company; /* other prompts */
    uint32_t n_layer; /* of the device; 0: all */
    size_t fast;      /* bytes of frames; 0: all pages have one */
    bool by_lines;    /* masses are those of whole lines: the last one may be another */
};

static void plan_prompt(struct planned *out, const struct plan_wish *w, const char *device)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_seq seq, other;
    int32_t tok[N_TILES];
    const uint32_t n_tok = w->n_tok ? w->n_tok : N_LONG;
    const struct sac_tier_params tier = {.fast_bytes = w->fast};
    sac_engine_params p = params_of(device, w->type);
    p.n_ctx = 640;
    p.n_batch = w->n_tok ? OP_SAMPLE_TILE + 32 : N_CHUNK;
    p.prefill = &w->prefill;
    p.n_prefill = 1;
    p.n_device_layer = w->n_layer;
    p.sparse_min_ctx = 1;
    if (w->fast) p.tier = &tier;
    memset(out, 0, sizeof *out);
    for (int32_t i = 0; i < N_TILES; i++) tok[i] = (i * i / 7 + i * 37 + i / 9) % TINY_VOCAB;
    must(sac_engine_create(&e, w->of, &p, &err), &err);
    must(sac_seq_create(e, &seq, &err), &err);
    append(e, seq, tok, n_tok, SAC_ROW_PROMPT);
    for (uint32_t i = 0; i < w->company; i++) {
        must(sac_seq_create(e, &other, &err), &err);
        append(e, other, tok + 3 + i, n_tok - 20, SAC_ROW_PROMPT);
    }
    step_all(e, hear, &out->heard);
    out->reads = sac_seq_take_reads(e, seq);
    sac_engine_free(e);
}

/* Keys at a border of what is taken may fall on either side of it, as check_sample says. */
static void assert_planned_alike(struct plan_wish wish)
{
    static struct planned want, got;
    const uint32_t n_layer = wish.n_layer;
    wish.n_layer = 0;
    plan_prompt(&want, &wish, "cpu");
    wish.n_layer = n_layer;
    plan_prompt(&got, &wish, "cuda");
    const sac_reads *w = &want.reads, *g = &got.reads;
    assert_true(divergence(want.heard.logits[0], got.heard.logits[0]) < 1e-3);
    assert_int_equal(w->n_cell, g->n_cell);
    assert_true(w->n_cell_read < w->n_cell);
    assert_true(fabs((double)w->n_cell_read - (double)g->n_cell_read) < 0.005 * (double)w->n_cell);
    assert_true(fabs((double)w->kv_bytes_read - (double)g->kv_bytes_read) <
                0.005 * (double)w->kv_bytes_read);
    assert_int_equal(w->n_plan, g->n_plan);
    assert_int_equal(w->n_plan_dense, g->n_plan_dense);
    assert_int_equal(w->n_plan_mass, g->n_plan_mass);
    assert_true(fabs(w->plan_mass - g->plan_mass) <=
                (wish.by_lines ? 2e-3 : 1e-3) * (double)w->n_plan_mass);
}

static const char sampled[] = "auto:mass=0.8,rows=16,last=0,most=1,recent=32";

static void plans_are_those_of_the_host(void **state)
{
    (void)state;
    assert_planned_alike((struct plan_wish){
        .of = shallow, .type = SAC_KV_F16, .prefill = sampled, .n_tok = N_TILES});
}

/* Some layers' plans are made here, those of the others there: all are counted. */
static void plans_in_part_are_those_of_the_host(void **state)
{
    (void)state;
    assert_planned_alike((struct plan_wish){
        .of = model, .type = SAC_KV_F16, .prefill = sampled, .n_tok = N_TILES, .n_layer = 1});
}

/* Blocks are as many as on the host, and the same: another choice moves what deeper layers make of
 * the rows by more than rounding, which a coded cache multiplies. */
static void blocks_are_those_of_the_host(void **state)
{
    (void)state;
    static struct planned want, got;
    static const char *const spec[] = {
        blocks, "critiprefill:segment=128,dense=0,budget=30%,block=64,fuse=0.75,scores=paper"};
    for (uint32_t i = 0; i < sizeof spec / sizeof spec[0]; i++) {
        const struct plan_wish wish = {
            .of = deep, .type = i % 2 ? SAC_KV_Q8 : SAC_KV_F16, .prefill = spec[i]};
        plan_prompt(&want, &wish, "cpu");
        plan_prompt(&got, &wish, "cuda");
        assert_true(divergence(want.heard.logits[0], got.heard.logits[0]) < (i % 2 ? 0.02 : 1e-3));
        assert_true(want.reads.n_cell_read < want.reads.n_cell);
        assert_memory_equal(&want.reads, &got.reads, sizeof want.reads);
    }
}

/* In both halves of the layers, as the host makes those of the first. */
static void assert_all_planned_alike(const char *const *spec, uint32_t n, bool by_lines)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t n_layer = 0; n_layer < 2; n_layer++)
            assert_planned_alike((struct plan_wish){.of = n_layer ? model : shallow,
                                                    .type = i % 2 ? SAC_KV_Q8 : SAC_KV_F16,
                                                    .prefill = spec[i],
                                                    .n_layer = n_layer,
                                                    .by_lines = by_lines});
}

/* Lines are those of the host but where two hold so much alike that rounding decides. */
static void lines_are_those_of_the_host(void **state)
{
    (void)state;
    static const char *const spec[] = {
        lines,
        "minference:columns=50,slashes=2,band=2,sink=0,sample=16",
        "loopserve:mass=0.3,slashes=2,columns=2,sample=64,heads=group,most=1",
        rounds,
    };
    assert_all_planned_alike(spec, sizeof spec / sizeof spec[0], true);
}

/* Blocks are those of the host. */
static void antidiagonals_are_those_of_the_host(void **state)
{
    (void)state;
    static const char *const spec[] = {antidiagonals, "xattention:mass=0.51",
                                       "xattention:mass=0.52,stride=8"};
    assert_all_planned_alike(spec, sizeof spec / sizeof spec[0], false);
}

/* Heads go by lines, or by pooled scores. */
static void pooled_blocks_are_those_of_the_host(void **state)
{
    (void)state;
    static const char *const spec[] = {"flexprefill:mass=0.1,least=128,tau=0", pooled,
                                       "flexprefill:mass=0.3,least=128,tau=0.02"};
    assert_all_planned_alike(spec, sizeof spec / sizeof spec[0], false);
}

static void assert_same_plan(const struct planned *want, const struct planned *got)
{
    assert_memory_equal(want->heard.logits[0], got->heard.logits[0], sizeof want->heard.logits[0]);
    assert_memory_equal(&want->reads, &got->reads, sizeof want->reads);
}

static void plans_do_not_show_their_company(void **state)
{
    (void)state;
    static struct planned want, got;
    struct plan_wish wish[] = {{.of = shallow,
                                .type = SAC_KV_Q8,
                                .prefill = "auto:mass=0.8,rows=16,last=16,most=1,recent=32",
                                .n_tok = N_TILES},
                               {.of = model, .type = SAC_KV_F16, .prefill = blocks},
                               {.of = model, .type = SAC_KV_F16, .prefill = lines},
                               {.of = model, .type = SAC_KV_F16, .prefill = rounds},
                               {.of = model, .type = SAC_KV_Q8, .prefill = antidiagonals},
                               {.of = model, .type = SAC_KV_Q8, .prefill = pooled}};
    for (size_t i = 0; i < sizeof wish / sizeof wish[0]; i++) {
        plan_prompt(&want, &wish[i], "cuda");
        wish[i].company = 1;
        setenv("SAC_GRID_ORDER", "backward", 1);
        plan_prompt(&got, &wish[i], "cuda");
        unsetenv("SAC_GRID_ORDER");
        assert_same_plan(&want, &got);
    }
}

/* Lists that name everything are made and read there, too, and give the bits of none. */
static void a_plan_of_everything_is_dense(void **state)
{
    (void)state;
    static struct planned want, got;
    struct plan_wish wish = {.of = shallow, .type = SAC_KV_F16, .prefill = "dense"};
    plan_prompt(&want, &wish, "cuda");
    static const char *const whole[] = {"auto:mass=1", "minference", "loopserve:mass=1",
                                        "xattention:mass=1", "flexprefill:mass=1"};
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++) {
        wish.prefill = whole[i];
        plan_prompt(&got, &wish, "cuda");
        assert_memory_equal(want.heard.logits[0], got.heard.logits[0], sizeof want.heard.logits[0]);
        assert_int_equal(got.reads.n_cell_read, want.reads.n_cell);
        assert_true(got.reads.n_plan > 0 && got.reads.n_plan == got.reads.n_plan_dense);
    }
}

/* More chunks than are counted together, behind a sequence that left in the middle of its own. */
static void chunks_under_way_are_counted(void **state)
{
    (void)state;
    enum { N_TOK = 64 * (PREFILL_STEPS + 2) };
    static struct heard h;
    static int32_t tok[N_TOK];
    const char *prefill = "auto:mass=0.8,rows=16,last=0,most=1,recent=32";
    sac_engine *e = NULL;
    sac_error err;
    sac_seq seq;
    uint32_t n;
    sac_engine_params p = params_of("cuda", SAC_KV_F16);
    p.n_ctx = N_TOK;
    p.prefill = &prefill;
    p.n_prefill = 1;
    p.sparse_min_ctx = 1;
    for (int32_t i = 0; i < N_TOK; i++) tok[i] = (i * i / 7 + i * 37) % TINY_VOCAB;
    must(sac_engine_create(&e, shallow, &p, &err), &err);
    must(sac_seq_create(e, &seq, &err), &err);
    append(e, seq, tok, N_TOK, SAC_ROW_PROMPT);
    must(sac_step(e, hear, &h, &n, &err), &err);
    assert_true(e->runs_on && e->prefill.device.n_step == 1);
    sac_seq_remove(e, seq);
    assert_false(e->runs_on);
    must(sac_seq_create(e, &seq, &err), &err);
    append(e, seq, tok, N_TOK, SAC_ROW_PROMPT);
    step_all(e, hear, &h);
    const uint64_t n_cell = (uint64_t)N_TOK * (N_TOK + 1) / 2 * shallow->config.n_head;
    assert_int_equal(sac_seq_take_reads(e, seq).n_cell, n_cell);
    sac_engine_free(e);
}

/* The second layer takes the frames of the first one's pages, which are surveyed where they lie. */
static void plans_reach_pages_below(void **state)
{
    (void)state;
    static struct planned want, got;
    struct plan_wish wish[] = {{.of = model,
                                .type = SAC_KV_F16,
                                .prefill = "auto:mass=0.8,rows=16,last=0,most=1,recent=32",
                                .n_tok = N_TILES},
                               {.of = model, .type = SAC_KV_Q8, .prefill = blocks},
                               {.of = model, .type = SAC_KV_F16, .prefill = lines},
                               {.of = model, .type = SAC_KV_F16, .prefill = antidiagonals},
                               {.of = model, .type = SAC_KV_F16, .prefill = pooled}};
    for (size_t i = 0; i < sizeof wish / sizeof wish[0]; i++) {
        plan_prompt(&want, &wish[i], "cuda");
        const size_t n_frame = wish[i].n_tok ? MORE_FRAMES : FEW_FRAMES;
        wish[i].fast = n_frame * PAGE_TOK * DIM * 4;
        plan_prompt(&got, &wish[i], "cuda");
        assert_same_plan(&want, &got);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_the_reference),
        cmocka_unit_test(less_shared_memory_is_enough),
        cmocka_unit_test(methods_choose_as_on_the_host),
        cmocka_unit_test(methods_choose_in_part_as_on_the_host),
        cmocka_unit_test(methods_cost_nothing_where_all_is_read),
        cmocka_unit_test(launches_of_a_layer_are_few),
        cmocka_unit_test(matrices_in_f16_give_the_same_bits),
        cmocka_unit_test(order_of_threads_and_company_do_not_show),
        cmocka_unit_test(plans_are_those_of_the_host),
        cmocka_unit_test(plans_in_part_are_those_of_the_host),
        cmocka_unit_test(blocks_are_those_of_the_host),
        cmocka_unit_test(lines_are_those_of_the_host),
        cmocka_unit_test(antidiagonals_are_those_of_the_host),
        cmocka_unit_test(pooled_blocks_are_those_of_the_host),
        cmocka_unit_test(plans_do_not_show_their_company),
        cmocka_unit_test(a_plan_of_everything_is_dense),
        cmocka_unit_test(chunks_under_way_are_counted),
        cmocka_unit_test(plans_reach_pages_below),
        cmocka_unit_test(repeated_steps_are_one_graph),
        cmocka_unit_test(rows_that_take_turns_are_graphs),
        cmocka_unit_test(a_graph_lasts_while_pages_fill),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
