/* test_offload.c: pages offloaded to host memory, on the CUDA backend's own kernels, which grid.h
 * runs on a CPU: however few frames the device has, the bits are those of one that holds all, and
 * what is said of hits and fetches fits together. `make check-cuda` runs it on a GPU. */
#include "../check/brief.h"
#include "device_bench.h"

enum { N_PROMPT = 95, N_STEP = 2, DIM = 64, N_TEXT = 130 };

/* A GPU's library that `make check-cuda` names. */
static const char *real_library(void)
{
    const char *path = getenv("SAC_CHECK_CUDA");
    return path && *path ? path : NULL;
}

static int open_models(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    return open_pair(real_library() ? real_library() : CUDA_HOST, DIM);
}

/* Pages are read whole, by score, by single tokens, by visits, and where only keys say which. */
static const char *const methods[] = {
    "full",
    "auto:mass=0.5,most=1,recent=40",
    "quest:budget=32,dense=0,sink=0,recent=0",
    "psa:mass=0.5,order=box,recent=0",
    "streaming:budget=40",
    "topk:budget=20",
    "arkvale:budget=64,dense=0,sink=0,recent=0",
};
enum { N_METHOD = sizeof methods / sizeof methods[0], FULL = 0, AUTO = 1, PSA = 3, STREAMING = 4 };

static size_t page_bytes(sac_kv_type type)
{
    struct page_geom g = {
        .n_layer = 2, .n_kv_head = 2, .head_dim = DIM, .type_k = type, .type_v = type};
    page_geom_init(&g);
    return g.bytes;
}

static sac_engine_params params_of(sac_kv_type type)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 256;
    p.n_seq_max = 1 + N_METHOD;
    p.n_batch = 64;
    p.n_threads = 1;
    p.type_k = p.type_v = type;
    p.device = "cuda";
    p.decode = methods;
    p.n_decode = N_METHOD;
    p.sparse_min_ctx = 1;
    return p;
}

/* The device has `n_frame` frames; 0: as many as there are pages, and no offloading. */
static sac_engine *new_engine_of(const sac_model *of, const sac_engine_params *params,
                                 uint32_t n_frame)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_engine_params p = *params;
    const struct sac_tier_params tier = {.fast_bytes = n_frame * page_bytes(p.type_k)};
    if (n_frame) p.tier = &tier;
    must(sac_engine_create(&e, of, &p, &err), &err);
    return e;
}

static sac_engine *new_engine(const sac_model *of, sac_kv_type type, uint32_t n_frame)
{
    const sac_engine_params p = params_of(type);
    return new_engine_of(of, &p, n_frame);
}

/* Frames for new pages of a step, and n for each KV head. */
static uint32_t frames_of(uint32_t n)
{
    return (64 / PAGE_TOK + 1 + N_METHOD) * 2 + 2 * n;
}

enum { LEAST = 2 };

struct heard {
    uint32_t n;
    double sum;
    float last[1 + N_METHOD][TINY_VOCAB];
    sac_reads reads[1 + N_METHOD];
};

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    h->n++;
    for (int i = 0; i < TINY_VOCAB; i++) h->sum += (double)row->logits[i] * (i % 7 + 1);
    memcpy(h->last[row->seq], row->logits, sizeof h->last[0]);
}

static void decode(sac_engine *e, const sac_seq *seq, uint32_t n_seq, uint32_t n, struct heard *h)
{
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < n_seq; k++) {
            const int32_t tok = (int32_t)(i * 11 + k) % TINY_VOCAB;
            append(e, seq[k], &tok, 1, SAC_ROW_DECODE);
        }
        step_all(e, hear, h);
    }
}

/* A prompt, and its forks, one for each method, which seal a page while they answer. */
static void live(sac_engine *e, uint32_t n_fork, struct heard *h)
{
    sac_error err;
    sac_seq seq[1 + N_METHOD];
    memset(h, 0, sizeof *h);
    must(sac_seq_create(e, &seq[0], &err), &err);
    append(e, seq[0], prompt, N_PROMPT, SAC_ROW_PROMPT);
    step_all(e, hear, h);
    for (uint32_t i = 0; i < n_fork; i++) {
        must(sac_seq_fork(e, seq[0], &seq[1 + i], &err), &err);
        must(sac_seq_use_decode(e, seq[1 + i], i, &err), &err);
    }
    decode(e, seq + 1, n_fork, N_STEP, h);
    must(sac_seq_truncate(e, seq[0], 50, &err), &err); /* into a sealed page */
    append(e, seq[0], prompt + 7, 20, SAC_ROW_PROMPT);
    decode(e, seq + 1, n_fork, 1, h); /* beside prompt rows */
    for (uint32_t i = 0; i <= n_fork; i++) h->reads[i] = sac_seq_take_reads(e, seq[i]);
}

struct scene {
    const sac_model *of;
    sac_kv_type type;
    uint32_t n_layer, n_fork;
    uint32_t n_frame; /* of a KV head */
};

static sac_tier_stats live_with(const struct scene *s, uint32_t n_frame, struct heard *h)
{
    sac_engine *e = new_engine(s->of, s->type, n_frame);
    live(e, s->n_fork, h);
    const sac_tier_stats stats = sac_tier_get_stats(e);
    uint64_t n_hit = 0, n_fetch = 0, hit, fetch;
    for (uint32_t l = 0; l < s->n_layer; l++) {
        sac_tier_get_layer(e, l, &hit, &fetch);
        n_hit += hit;
        n_fetch += fetch;
    }
    assert_int_equal(stats.n_hit, n_hit);
    assert_int_equal(stats.n_fetch, n_fetch);
    sac_engine_free(e);
    return stats;
}

static void few_frames_give_the_same_bits(void **state)
{
    (void)state;
    static struct heard want, got;
    const struct scene scene[] = {{model, SAC_KV_F16, 2, N_METHOD, LEAST},
                                  {model, SAC_KV_F16, 2, N_METHOD, 7},
                                  {model, SAC_KV_Q8, 2, 4, 10},
                                  {windowed, SAC_KV_BF16, 6, 1, LEAST}};
    for (uint32_t i = 0; i < 4; i += brief_by(3)) {
        const sac_tier_stats none = live_with(&scene[i], 0, &want);
        const sac_tier_stats some = live_with(&scene[i], frames_of(scene[i].n_frame), &got);
        assert_null(none.backend);
        assert_int_equal(want.n, got.n);
        assert_memory_equal(want.last, got.last, sizeof want.last);
        assert_true(want.sum == got.sum);
        assert_memory_equal(want.reads, got.reads, sizeof want.reads);
        assert_true(some.n_hit > 0 && some.n_fetch > 0);
        assert_true(some.bytes_fetched > 0 && some.bytes_written > 0);
    }
}

/* What a layer's rows have asked for since the last call. */
static void asked(const sac_engine *e, uint32_t layer, uint64_t *out_hit, uint64_t *out_fetch)
{
    static uint64_t hit[2], fetch[2];
    const uint64_t had[] = {hit[layer], fetch[layer]};
    sac_tier_get_layer(e, layer, &hit[layer], &fetch[layer]);
    *out_hit = hit[layer] - had[0];
    *out_fetch = fetch[layer] - had[1];
}

/* Pages of N_TEXT tokens, those of the last layer that stay where they were sealed, steps. */
enum { N_PAGE = 4, N_HEAD = 2, N_LAYER = 2, N_STAY = 2, N = 3 };

static sac_seq begin_text(sac_engine *e, uint32_t from, struct heard *h)
{
    sac_error err;
    sac_seq seq;
    must(sac_seq_create(e, &seq, &err), &err);
    append(e, seq, prompt + from, N_TEXT, SAC_ROW_PROMPT);
    step_all(e, hear, h);
    return seq;
}

/* The same sequence again and again: what it reads has come once, or where a head lacks one frame,
 * one page of each layer comes and goes in the same place and the others stay. */
static void what_is_read_again_has_a_frame(void **state)
{
    (void)state;
    static struct heard h;
    for (uint32_t few = is_brief(); few < 2; few++) {
        sac_engine *e = new_engine(model, SAC_KV_F16, frames_of(N_LAYER * N_PAGE - N_STAY - few));
        sac_error err;
        const sac_seq seq = begin_text(e, 0, &h);
        uint64_t hit, fetch;
        decode(e, &seq, 1, 2, &h);
        const uint64_t bytes = sac_tier_get_stats(e).bytes_fetched;
        asked(e, 0, &hit, &fetch);
        decode(e, &seq, 1, N, &h);
        asked(e, 0, &hit, &fetch);
        assert_int_equal(fetch, N * N_HEAD * few);
        assert_int_equal(hit, N * N_HEAD * (N_PAGE - few));
        assert_int_equal(sac_tier_get_stats(e).bytes_fetched - bytes,
                         N * N_LAYER * N_HEAD * few * page_bytes(SAC_KV_F16));
        must(sac_seq_use_decode(e, seq, STREAMING, &err), &err);
        decode(e, &seq, 1, 1, &h);
        asked(e, 0, &hit, &fetch);
        assert_int_equal(hit, N_HEAD * (2 - few));
        assert_int_equal(fetch, N_HEAD * few);
        sac_engine_free(e);
    }
}

/* The first layer reads everything, the second one two pages at most, and not always the same. */
static void a_layer_that_reads_more_has_more_frames(void **state)
{
    (void)state;
    static struct heard h;
    static const char *const whole_first[] = {"quest:budget=32,dense=1,sink=0,recent=0"};
    sac_engine_params p = params_of(SAC_KV_F16);
    p.decode = whole_first;
    p.n_decode = 1;
    sac_engine *e = new_engine_of(model, &p, frames_of(N_PAGE + 1));
    const sac_seq seq = begin_text(e, 0, &h);
    uint64_t hit, fetch;
    decode(e, &seq, 1, 2, &h);
    asked(e, 0, &hit, &fetch);
    decode(e, &seq, 1, N, &h);
    asked(e, 0, &hit, &fetch);
    assert_int_equal(hit, N * N_HEAD * N_PAGE);
    assert_int_equal(fetch, 0);
    sac_engine_free(e);
}

/* What is visited, and perhaps not read, is in frames afterwards, where pages of another sequence
 * have been. */
static void what_is_visited_has_a_frame(void **state)
{
    (void)state;
    static struct heard h;
    sac_engine *e = new_engine(model, SAC_KV_F16, frames_of(N_LAYER * N_PAGE));
    sac_error err;
    const sac_seq before = begin_text(e, 9, &h), seq = begin_text(e, 0, &h);
    uint64_t hit, fetch;
    decode(e, &before, 1, 2, &h);
    must(sac_seq_use_decode(e, seq, PSA, &err), &err);
    for (uint32_t l = 0; l < N_LAYER; l++) asked(e, l, &hit, &fetch);
    decode(e, &seq, 1, N, &h);
    for (uint32_t l = 0; l < N_LAYER; l++) {
        asked(e, l, &hit, &fetch);
        assert_true(hit + fetch < N * N_HEAD * N_PAGE); /* it has not read everything */
    }
    must(sac_seq_use_decode(e, seq, FULL, &err), &err);
    decode(e, &seq, 1, 1, &h);
    for (uint32_t l = 0; l < N_LAYER; l++) {
        asked(e, l, &hit, &fetch);
        assert_int_equal(hit, N_HEAD * N_PAGE);
        assert_int_equal(fetch, 0);
    }
    sac_engine_free(e);
}

/* Two sequences in turns, where there is room for neither: pages of one give way to the other's. */
static void what_is_not_read_gives_way(void **state)
{
    (void)state;
    static struct heard heard[2];
    for (uint32_t few = 0; few < 2; few++) {
        sac_engine *e = new_engine(model, SAC_KV_F16, few ? frames_of(4) : 0);
        sac_error err;
        sac_seq seq[2];
        memset(&heard[few], 0, sizeof heard[few]);
        for (int i = 0; i < 2; i++) {
            must(sac_seq_create(e, &seq[i], &err), &err);
            append(e, seq[i], prompt + 9 * i, 66, SAC_ROW_PROMPT);
            step_all(e, hear, &heard[few]);
        }
        for (int i = 0; i < 4; i++) decode(e, &seq[i % 2], 1, 1, &heard[few]);
        sac_engine_free(e);
    }
    assert_memory_equal(&heard[0], &heard[1], sizeof heard[0]);
}

/* A sequence of one engine goes on in another, where pages of one that has gone are in frames. */
static void move_to_used_places(const sac_engine_params *params)
{
    static struct heard h, want, got;
    sac_engine *all = new_engine_of(model, params, 0);
    sac_engine *few = new_engine_of(model, params, frames_of(6));
    sac_error err;
    sac_seq a, b, c;
    uint8_t *bytes;
    size_t n;
    must(sac_seq_create(few, &a, &err), &err);
    append(few, a, prompt + 20, 40, SAC_ROW_PROMPT);
    step_all(few, hear, &h);
    decode(few, &a, 1, 1, &h);
    sac_seq_remove(few, a);
    must(sac_seq_create(all, &a, &err), &err);
    append(all, a, prompt, 94, SAC_ROW_PROMPT);
    step_all(all, hear, &h);
    must(sac_seq_to_bytes(all, a, &bytes, &n, &err), &err);
    must(sac_seq_from_bytes(few, bytes, n, &b, &err), &err);
    sac_free(bytes);
    for (uint32_t m = 0; m < params->n_decode; m += 3) {
        want = got = (struct heard){0};
        must(sac_seq_use_decode(all, a, m, &err), &err);
        must(sac_seq_use_decode(few, b, m, &err), &err);
        decode(all, &a, 1, 1, &want);
        decode(few, &b, 1, 1, &got);
        assert_memory_equal(want.last[a], got.last[b], sizeof want.last[a]);
    }
    must(sac_seq_to_bytes(few, b, &bytes, &n, &err), &err); /* and back */
    must(sac_seq_from_bytes(all, bytes, n, &c, &err), &err);
    sac_free(bytes);
    want = got = (struct heard){0};
    decode(few, &b, 1, 2, &want);
    decode(all, &c, 1, 2, &got);
    assert_memory_equal(want.last[b], got.last[c], sizeof want.last[b]);
    sac_engine_free(all);
    sac_engine_free(few);
}

/* With notes of pages, and by cards alone. */
static void places_are_used_again(void **state)
{
    (void)state;
    sac_engine_params p = params_of(SAC_KV_Q8);
    move_to_used_places(&p);
    p.decode = &methods[AUTO];
    p.n_decode = 1;
    move_to_used_places(&p);
}

static void steps_that_fetch_are_one_graph(void **state)
{
    (void)state;
    if (real_library()) skip(); /* it does not count */
    static struct heard h;
    sac_engine *e = new_engine(model, SAC_KV_F16, frames_of(LEAST));
    sac_error err;
    sac_seq seq;
    must(sac_seq_create(e, &seq, &err), &err);
    must(sac_seq_use_decode(e, seq, AUTO, &err), &err);
    append(e, seq, prompt, 70, SAC_ROW_PROMPT);
    step_all(e, hear, &h);
    const uint32_t before = graphs_started(CUDA_HOST);
    decode(e, &seq, 1, 4, &h);
    assert_int_equal(graphs_started(CUDA_HOST) - before, 3);
    sac_engine_free(e);
}

static void refuse(const struct sac_tier_params *tier, sac_status status, const char *words)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_engine_params p = params_of(SAC_KV_F16);
    p.tier = tier;
    assert_int_equal(sac_engine_create(&e, model, &p, &err), status);
    assert_null(e);
    if (!strstr(err.msg, words)) fail_msg("'%s' does not say '%s'", err.msg, words);
}

static void wrong_offload_parameters_are_named(void **state)
{
    (void)state;
    const size_t page = page_bytes(SAC_KV_F16);
    struct sac_tier_params tier = {.file = "/nonexistent/pages", .fast_bytes = 1000 * page};
    refuse(&tier, SAC_ERR_UNSUPPORTED, "leave the file out");
    tier = (struct sac_tier_params){.fast_bytes = 0};
    refuse(&tier, SAC_ERR_ARG, "say how much");
    tier = (struct sac_tier_params){.fast_bytes = (frames_of(LEAST) - 1) * page};
    refuse(&tier, SAC_ERR_ARG, "at least");
    tier = (struct sac_tier_params){.fast_bytes = 1000 * page, .policy = SAC_TIER_LRU};
    refuse(&tier, SAC_ERR_UNSUPPORTED, "policy");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_frames_give_the_same_bits),
        cmocka_unit_test(what_is_read_again_has_a_frame),
        cmocka_unit_test(a_layer_that_reads_more_has_more_frames),
        cmocka_unit_test(what_is_visited_has_a_frame),
        cmocka_unit_test(what_is_not_read_gives_way),
        cmocka_unit_test(places_are_used_again),
        cmocka_unit_test(steps_that_fetch_are_one_graph),
        cmocka_unit_test(wrong_offload_parameters_are_named),
    };
    return cmocka_run_group_tests(tests, open_models, free_pair);
}
