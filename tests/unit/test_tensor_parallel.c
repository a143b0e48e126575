/* test_tensor_parallel.c: every layer on two GPUs or three at once (params.device_rows), by the
 * CUDA backend's own kernels and queues, which tests/cuda_host runs on a CPU. What comes of it is
 * what one GPU computes, but for the order of two sums a layer; and its bits do not depend on
 * chunks, on company in the batch, or on which GPU is ahead. */
#include "device_bench.h"

enum { DIM = 64, N_STEP = 3, N_CHUNK = 64, N_LONG = 3 * N_CHUNK + 9 };

/* Sums in another order differ in the last of 24 bits, and then some activations round to the other
 * of two neighbours of 11 bits. How far logits get by that is the model's affair (the norms of
 * Gemma with random weights make a hundred times of it), and the same as what all of a GPU's
 * rounding makes in comparison with the CPU's, whose activations have 24 bits. So that is the
 * measure: */
#define NEAR 0.5 /* of that distance, over all rows; a third at most has been seen */

static sac_model *odd, *wide; /* of 3 KV heads; the second with channels for three, too */

static int open_models(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    setenv("SAC_HOST_DEVICES", "3", 1);
    odd = tiny_open(&(struct tiny){.seed = 5, .n_head = 6, .n_kv_head = 3, .dim = DIM});
    wide =
        tiny_open(&(struct tiny){.seed = 6, .n_head = 6, .n_kv_head = 3, .dim = DIM, .n_ff = 96});
    return open_pair(CUDA_HOST, DIM) == 0 && odd && wide ? 0 : -1;
}

static int free_models(void **state)
{
    sac_model_free(odd);
    sac_model_free(wide);
    return free_pair(state);
}

static const char *const decode[] = {"full", "quest:budget=32,dense=0,sink=0,recent=0",
                                     "psa:mass=0.5,order=box,step=2,recent=0",
                                     "lfps:budget=14,past=9"};
static const char *const prefill[] = {"auto:mass=0.8,rows=16,last=0,most=1,recent=32",
                                      "critiprefill"};

/* What an engine is asked for beside its devices. */
struct wish {
    const sac_model *of;
    sac_kv_type type;
    uint32_t decode_i;
    const char *const *plans; /* by this prefill method; NULL: dense */
    uint32_t n_chunk;         /* 0: N_CHUNK */
    uint64_t n_fast;          /* bytes of the GPUs for pages; 0: all are there */
    bool alone;               /* one sequence in place of three */
    bool paced;               /* with a target of the time between tokens: no step ahead */
};

static sac_engine_params params_of(const struct wish *w, const char *device)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 512;
    p.n_seq_max = 3;
    p.n_batch = w->n_chunk ? w->n_chunk : N_CHUNK;
    p.n_threads = 1;
    p.type_k = p.type_v = w->type;
    p.device = device;
    p.device_rows = strchr(device, ',') != NULL;
    p.decode = decode + w->decode_i;
    p.n_decode = 1;
    p.prefill = w->plans;
    p.n_prefill = w->plans ? 1 : 0;
    p.sparse_min_ctx = 1;
    return p;
}

struct heard {
    uint32_t n, n_ahead;                  /* rows; steps that were described ahead */
    float logits[1 + N_STEP][TINY_VOCAB]; /* of the first sequence */
    sac_reads reads;
};

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    if (row->seq != 0) return;
    assert_true(h->n < 1 + N_STEP);
    memcpy(h->logits[h->n++], row->logits, sizeof h->logits[0]);
}

/* A prompt in chunks that nobody waits for, with or without another sequence, which is cut and goes
 * on, and a fork of the first. */
static void live(struct heard *h, const struct wish *w, const char *device)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_seq a, b = 0, fork = 0;
    int32_t tok[N_LONG];
    sac_engine_params p = params_of(w, device);
    const struct sac_tier_params tier = {.fast_bytes = w->n_fast};
    if (w->n_fast) p.tier = &tier;
    memset(h, 0, sizeof *h);
    for (int32_t i = 0; i < N_LONG; i++) tok[i] = (i * i / 7 + i * 37 + i / 9) % TINY_VOCAB;
    must(sac_engine_create(&e, w->of, &p, &err), &err);
    if (w->paced) must(sac_engine_set_tbt_target(e, 1e6f, &err), &err);
    must(sac_seq_create(e, &a, &err), &err);
    append(e, a, tok, N_LONG, SAC_ROW_PROMPT);
    if (!w->alone) {
        must(sac_seq_create(e, &b, &err), &err);
        append(e, b, tok + 5, 70, SAC_ROW_PROMPT);
    }
    step_all(e, hear, h);
    if (!w->alone) {
        must(sac_seq_fork(e, a, &fork, &err), &err);
        must(sac_seq_truncate(e, b, 41, &err), &err);
    }
    for (int32_t i = 0; i < N_STEP; i++) {
        const int32_t next[3] = {i * 11 % TINY_VOCAB, i + 3, i * 5 + 1};
        append(e, a, &next[0], 1, SAC_ROW_DECODE);
        if (!w->alone) {
            append(e, b, &next[1], 1, SAC_ROW_DECODE);
            append(e, fork, &next[2], 1, SAC_ROW_DECODE);
        }
        step_all(e, hear, h);
        h->n_ahead += e->ahead.is_taken;
    }
    if (!w->alone) sac_seq_remove(e, b);
    h->reads = sac_engine_get_stats(e).reads;
    sac_engine_free(e);
    assert_int_equal(h->n, 1 + N_STEP);
}

/* Of all rows' logits, squared. */
static double distance(const struct heard *a, const struct heard *b)
{
    double sum = 0;
    for (uint32_t i = 0; i < a->n; i++)
        for (int t = 0; t < TINY_VOCAB; t++) {
            const double d = (double)a->logits[i][t] - (double)b->logits[i][t];
            sum += d * d;
        }
    return sum;
}

static void check_like_one(const struct wish *w, const char *many)
{
    static struct heard exact, one, got;
    live(&exact, w, "cpu");
    live(&one, w, "cuda:2");
    live(&got, w, many);
    const double apart = distance(&one, &got), usual = distance(&one, &exact);
    if (!(apart < NEAR * NEAR * usual)) fail_msg("%g apart, rounding makes %g", apart, usual);
    if (w->decode_i == 0 && !w->plans)
        assert_memory_equal(&one.reads, &got.reads, sizeof one.reads);
    assert_int_equal(one.reads.n_select, got.reads.n_select);
    assert_int_equal(one.reads.n_plan, got.reads.n_plan);
    assert_int_equal(one.reads.n_decode_tok, got.reads.n_decode_tok);
}

static void check_bits(const struct wish *a, const struct wish *b, const char *device)
{
    static struct heard want, got;
    live(&want, a, device);
    live(&got, b, device);
    assert_memory_equal(want.logits, got.logits, sizeof want.logits);
}

/* Heads, channels, and sums behind which a norm stands (Gemma). */
static void shares_add_up_to_one_device(void **state)
{
    (void)state;
    check_like_one(&(struct wish){.of = model, .type = SAC_KV_F16}, "cuda:0,cuda:1");
    check_like_one(&(struct wish){.of = windowed, .type = SAC_KV_Q8}, "cuda:1,cuda:0");
}

static void heads_may_not_divide(void **state)
{
    (void)state;
    check_like_one(&(struct wish){.of = odd, .type = SAC_KV_Q8}, "cuda:0,cuda:1");
}

static void three_add_up(void **state)
{
    (void)state;
    check_like_one(&(struct wish){.of = wide, .type = SAC_KV_F16}, "cuda:0,cuda:1,cuda:2");
}

static void methods_choose_for_the_heads_of_a_share(void **state)
{
    (void)state;
    check_like_one(&(struct wish){.of = odd, .type = SAC_KV_Q8, .decode_i = 1}, "cuda:0,cuda:1");
    check_like_one(&(struct wish){.of = model, .type = SAC_KV_F16, .decode_i = 2, .plans = prefill},
                   "cuda:0,cuda:1");
    check_like_one(&(struct wish){.of = model, .type = SAC_KV_Q8, .plans = prefill + 1},
                   "cuda:0,cuda:1");
    check_like_one(&(struct wish){.of = model, .type = SAC_KV_F16, .decode_i = 3}, "cuda:0,cuda:1");
}

static void bits_depend_on_no_chunk_and_no_company(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        const struct wish w = {.of = model, .type = SAC_KV_Q8, .decode_i = 3 * i};
        struct wish other = w;
        other.alone = true;
        other.n_chunk = 48;
        check_bits(&w, &other, "cuda:0,cuda:1");
    }
}

/* Chunks of more rows than go within a sum: their parts are copied. */
static void bits_depend_on_no_way_of_a_sum(void **state)
{
    (void)state;
    static struct heard want, got;
    const struct wish w = {.of = wide, .type = SAC_KV_F16, .alone = true};
    struct wish many = w;
    many.n_chunk = N_LONG;
    check_bits(&w, &many, "cuda:2,cuda:0,cuda:1");
    live(&want, &w, "cuda:0,cuda:1,cuda:2");
    setenv("SAC_HOST_PEERS", "0", 1);
    live(&got, &w, "cuda:0,cuda:1,cuda:2");
    unsetenv("SAC_HOST_PEERS");
    assert_memory_equal(want.logits, got.logits, sizeof want.logits);
    const struct wish normed = {.of = windowed, .type = SAC_KV_F16, .alone = true};
    many = normed;
    many.n_chunk = N_LONG;
    check_bits(&normed, &many, "cuda:0,cuda:1");
}

/* The GPUs wait for each other, whoever is ahead. */
static void bits_depend_on_no_order(void **state)
{
    (void)state;
    static struct heard want, got;
    const struct wish w = {.of = wide, .type = SAC_KV_F16, .alone = true};
    live(&want, &w, "cuda:0,cuda:1,cuda:2");
    live(&got, &w, "cuda:0,cuda:1,cuda:2");
    assert_memory_equal(want.logits, got.logits, sizeof want.logits);
    setenv("SAC_GRID_ORDER", "backward", 1);
    live(&got, &w, "cuda:0,cuda:1,cuda:2");
    unsetenv("SAC_GRID_ORDER");
    assert_memory_equal(want.logits, got.logits, sizeof want.logits);
}

/* Each share has frames of its own over pages in the machine's memory. */
static void pages_may_lie_below_each_share(void **state)
{
    (void)state;
    const struct wish w = {.of = model, .type = SAC_KV_Q8};
    struct wish below = w;
    below.n_fast = 256 << 10;
    check_bits(&w, &below, "cuda:0,cuda:1");
}

static uint32_t count_graphs(const struct wish *w, const char *device)
{
    static struct heard h;
    const uint32_t before = graphs_started(CUDA_HOST); /* loaded by the tests before */
    live(&h, w, device);
    return graphs_started(CUDA_HOST) - before;
}

/* A step of decode rows is one graph on each; where parts are copied, a row of them, which end
 * where sums do. */
static void steps_are_graphs(void **state)
{
    (void)state;
    const struct wish w = {.of = model, .type = SAC_KV_F16, .alone = true, .paced = true};
    const uint32_t one = count_graphs(&w, "cuda:0");
    assert_true(one > 0);
    assert_int_equal(count_graphs(&w, "cuda:0,cuda:1"), 2 * one);
    setenv("SAC_HOST_PEERS", "0", 1);
    const uint32_t copied = count_graphs(&w, "cuda:0,cuda:1");
    unsetenv("SAC_HOST_PEERS");
    assert_true(copied >= 2 * 2 * TINY_LAYERS * one);
}

/* All GPUs have the next step before its tokens are known, with the numbers of its sums; but not
 * where sums are copies. */
static void steps_are_described_ahead(void **state)
{
    (void)state;
    static struct heard want, got;
    for (int i = 0; i < 2; i++) {
        struct wish w = {.of = i ? wide : model, .type = SAC_KV_F16, .alone = i, .paced = true};
        const char *const device = i ? "cuda:0,cuda:1,cuda:2" : "cuda:0,cuda:1";
        live(&want, &w, device);
        w.paced = false;
        live(&got, &w, device);
        assert_memory_equal(want.logits, got.logits, sizeof want.logits);
        assert_memory_equal(&want.reads, &got.reads, sizeof want.reads);
        assert_int_equal(want.n_ahead, 0);
        assert_int_equal(got.n_ahead, N_STEP - 1);
        setenv("SAC_HOST_PEERS", "0", 1);
        live(&got, &w, device);
        unsetenv("SAC_HOST_PEERS");
        assert_int_equal(got.n_ahead, 0);
    }
}

/* Who waits for a GPU that has fallen silent says so, and ends. */
static void a_lost_device_is_named(void **state)
{
    (void)state;
    sac_engine *e = NULL;
    sac_error err;
    sac_seq seq;
    uint32_t n;
    const int32_t tok[4] = {1, 2, 3, 4};
    const struct wish w = {.of = wide, .type = SAC_KV_F16};
    const sac_engine_params p = params_of(&w, "cuda:0,cuda:1,cuda:2");
    must(sac_engine_create(&e, w.of, &p, &err), &err);
    must(sac_seq_create(e, &seq, &err), &err);
    append(e, seq, tok, 4, SAC_ROW_PROMPT);
    step_all(e, NULL, NULL);
    append(e, seq, tok, 1, SAC_ROW_DECODE);
    setenv("SAC_HOST_LOST", "2", 1);
    assert_int_equal(sac_step(e, NULL, NULL, &n, &err), SAC_ERR_IO);
    unsetenv("SAC_HOST_LOST");
    assert_string_equal(err.msg, "GPU 0: no part of a sum has come from GPU 2 for 10 s");
    sac_engine_free(e);
}

/* What is nobody's share is the first one's. */
static void a_bias_is_added_once(void **state)
{
    (void)state;
    const struct config *c = &model->config;
    const float bias[TINY_EMBD] = {1, 2, 3};
    struct layer_weights layer[TINY_LAYERS];
    struct weights all = model->weights;
    sac_error err;
    memcpy(layer, all.layer, sizeof layer);
    for (uint32_t l = 0; l < TINY_LAYERS; l++) layer[l].bo = bias;
    all.layer = layer;
    for (uint32_t i = 0; i < 2; i++) {
        struct weights_shard s;
        struct weights cut;
        must(weights_shard_of(&s, &all, c, i, 2, &err), &err);
        must(weights_shard_copy(&cut, &all, c, &s, &err), &err);
        assert_int_equal(cut.output.data != NULL, i == 0);
        assert_int_equal(cut.layer[1].bo != NULL, i == 0);
        if (i == 0) assert_memory_equal(cut.layer[1].bo, bias, sizeof bias);
        weights_deinit(&cut);
    }
}

/* The cut follows the heads, and their blocks may be larger. */
static void a_cut_through_a_block_is_refused(void **state)
{
    (void)state;
    struct config c = model->config;
    struct layer_weights layer[TINY_LAYERS];
    struct weights all = model->weights;
    struct weights_shard s;
    sac_error err;
    memcpy(layer, all.layer, sizeof layer);
    all.layer = layer;
    c.n_head = 8;
    c.n_kv_head = 4;
    weight_init(&layer[1].wo, QUANT_Q4_K, TINY_EMBD, 8 * DIM);
    must(weights_shard_of(&s, &all, &c, 1, 2, &err), &err);
    assert_int_equal(s.kv0, 2);
    assert_int_equal(weights_shard_of(&s, &all, &c, 0, 3, &err), SAC_ERR_UNSUPPORTED);
    assert_string_equal(err.msg,
                        "blk.1.attn_output.weight (Q4_K) has blocks of 256 inputs, and "
                        "shares of its 8 heads for 3 GPUs (-sm row) end inside one: 2 GPUs "
                        "fit, or use -sm layer");
    c.n_head = 4;
    c.n_kv_head = 2;
    weight_init(&layer[1].wo, QUANT_Q4_K, TINY_EMBD, 4 * DIM);
    assert_int_equal(weights_shard_of(&s, &all, &c, 0, 2, &err), SAC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "end inside one: blocks of 32 (Q8_0) fit"));
}

static void refuse(sac_engine_params p, const sac_model *of, const char *words)
{
    sac_engine *e = NULL;
    sac_error err;
    assert_int_not_equal(sac_engine_create(&e, of, &p, &err), SAC_OK);
    if (!strstr(err.msg, words)) fail_msg("'%s' does not say '%s'", err.msg, words);
}

static void what_does_not_run_is_named(void **state)
{
    (void)state;
    const struct wish w = {.of = model, .type = SAC_KV_Q8};
    const char *evicts = "snapkv";
    const float split[2] = {1, 1};
    sac_engine_params p = params_of(&w, "cuda:0,cuda:1,cuda:2");
    refuse(p, model, "3 GPUs for shares of 2 KV heads (-sm row): each has one at least, so name 2");
    refuse(p, odd, "ffn_down.weight has 2 blocks of 32 inputs, and 3 GPUs (-sm row) each want one");
    p = params_of(&w, "cuda:0,cuda:0");
    refuse(p, model, "'cuda:0,cuda:0' names GPU 0 twice");
    p = params_of(&w, "cuda:0,cpu");
    refuse(p, model, "the CPU has no share");
    p = params_of(&w, "cuda:0");
    p.device_rows = true;
    refuse(p, model, "(-sm row) on 'cuda:0': name several GPUs");
    p = params_of(&w, "cuda:0,cuda:1");
    p.device_split = split;
    p.n_device_split = 2;
    refuse(p, model, "-ts says which layers");
    p = params_of(&w, "cuda:0,cuda:1");
    p.n_device_layer = 1;
    refuse(p, model, "-ngl says which layers");
    p = params_of(&w, "cuda:0,cuda:1");
    p.kv_on_host = true;
    refuse(p, model, "--kv-device host says which layers");
    p = params_of(&w, "cuda:0,cuda:1");
    p.compose = true;
    refuse(p, model, "joining of documents does not run with every layer on 2 GPUs (-sm row)");
    p = params_of(&w, "cuda:0,cuda:1");
    p.decode = &evicts;
    refuse(p, model, "'snapkv' does not run with every layer on 2 GPUs (-sm row)");
    const char *table = "minference";
    p = params_of(&w, "cuda:0,cuda:1");
    p.prefill = &table;
    p.n_prefill = 1;
    refuse(p, model, "'minference' does not run with every layer on 2 GPUs (-sm row)");
}

/* Half of the heads alone would be lost. */
static void no_share_is_saved_alone(void **state)
{
    (void)state;
    sac_engine *e = NULL;
    sac_error err;
    sac_seq seq;
    uint8_t *bytes;
    size_t n;
    const sac_engine_params p =
        params_of(&(struct wish){.of = model, .type = SAC_KV_Q8}, "cuda:0,cuda:1");
    must(sac_engine_create(&e, model, &p, &err), &err);
    assert_string_equal(sac_engine_get_params(e).device, "cuda:0,cuda:1");
    must(sac_seq_create(e, &seq, &err), &err);
    assert_int_equal(sac_seq_to_bytes(e, seq, &bytes, &n, &err), SAC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "saving of a sequence does not run with every layer on 2"));
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_add_up_to_one_device),
        cmocka_unit_test(heads_may_not_divide),
        cmocka_unit_test(three_add_up),
        cmocka_unit_test(methods_choose_for_the_heads_of_a_share),
        cmocka_unit_test(bits_depend_on_no_chunk_and_no_company),
        cmocka_unit_test(bits_depend_on_no_way_of_a_sum),
        cmocka_unit_test(bits_depend_on_no_order),
        cmocka_unit_test(pages_may_lie_below_each_share),
        cmocka_unit_test(steps_are_graphs),
        cmocka_unit_test(steps_are_described_ahead),
        cmocka_unit_test(a_lost_device_is_named),
        cmocka_unit_test(a_bias_is_added_once),
        cmocka_unit_test(a_cut_through_a_block_is_refused),
        cmocka_unit_test(what_does_not_run_is_named),
        cmocka_unit_test(no_share_is_saved_alone),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
