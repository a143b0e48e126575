/* test_pieces.c: the choice of a lane over a long context is cut into pieces for several workers,
 * and is the same bits for any number of them, alone and beside a shorter lane. */
#include "base/half.h"
#include "base/mem.h"
#include "methods/batch.h"
#include "methods/method_spec.h"
#include "methods/pick.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* Pieces are 64 or 128 pages: the last one is short. */
enum { DIM = 64, GROUP = 3, N_PAGE = 300, N_TOK = N_PAGE * 32, N_SHORT = 70, N_LANE = 2 };

static uint64_t seed = 7;

static float unit(void) /* -1 to 1 */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(uint32_t)(seed >> 33) / 1073741824.0f - 1.0f;
}

struct choice {
    uint32_t mask[N_PAGE], tok[N_TOK];
    float logw[N_TOK];
    float rest_log[GROUP], rest_value[GROUP * DIM];
    bool dense, not_finite;
    uint32_t n_tok, n_chosen;
};

static struct bench {
    struct page_geom geom;
    struct method_shape shape;
    struct ops ops;
    uint8_t *pool, *own;
    page_id page[N_PAGE];
    float q[GROUP * DIM], cos[DIM / 2], sin[DIM / 2];
    struct segment_view segment;
} b;

static void open_pages(sac_kv_type type)
{
    sac_error err;
    struct workers *one;
    b.geom = (struct page_geom){
        .n_layer = 1, .n_kv_head = 1, .head_dim = DIM, .type_k = type, .type_v = type};
    page_geom_init(&b.geom);
    b.shape = (struct method_shape){
        .geom = &b.geom, .group = GROUP, .n_ctx = N_TOK + 32, .rope = {.n_rot = DIM}};
    assert_int_equal(ops_init(&b.ops, &err), SAC_OK);
    assert_int_equal(workers_create(&one, 1, &err), SAC_OK);
    b.pool = mem_map(N_PAGE * b.geom.bytes);
    b.own = mem_map(b.geom.tail_bytes);
    for (uint32_t p = 0; p < N_PAGE; p++) {
        const uint8_t *tail = b.own;
        b.page[p] = (p * 7 + 3) % N_PAGE;
        uint8_t *sealed = b.pool + b.page[p] * b.geom.bytes;
        for (uint32_t i = 0; i < 2 * PAGE_TOK * DIM; i++)
            ((uint16_t *)(void *)b.own)[i] = f32_to_f16(unit() + (p % 29 == 0 ? 0.3f : 0));
        b.ops.seal(
            one, &(struct op_seal){.geom = &b.geom, .n_page = 1, .tail = &tail, .sealed = &sealed});
    }
    for (uint32_t i = 0; i < GROUP * DIM; i++) b.q[i] = 2 * unit();
    for (uint32_t i = 0; i < DIM / 2; i++) {
        b.cos[i] = cosf(0.1f * (float)i);
        b.sin[i] = sinf(0.1f * (float)i);
    }
    b.segment = (struct segment_view){.end = 100, .cos = b.cos, .sin = b.sin};
    workers_destroy(one);
}

static void close_pages(void)
{
    mem_unmap(b.pool, N_PAGE * b.geom.bytes);
    mem_unmap(b.own, b.geom.tail_bytes);
}

static struct method_lane make_lane(const struct method_spec *spec, uint32_t n_page, bool turned)
{
    return (struct method_lane){.shape = &b.shape,
                                .param = spec->param,
                                .ops = &b.ops,
                                .layer = 5,
                                .pos = n_page * PAGE_TOK + 9,
                                .n_row = 1,
                                .q = b.q,
                                .q_stride = GROUP * DIM,
                                .scale = 0.125f,
                                .segment = turned ? &b.segment : NULL,
                                .n_segment = turned,
                                .frames = {.base = b.pool},
                                .cards = {.base = b.pool, .stride = b.geom.bytes},
                                .page = b.page,
                                .n_sealed = n_page,
                                .own = b.own};
}

/* The choices of n lanes, of which the second is shorter. */
static void choose(struct choice *out, const struct method_spec *spec, uint8_t *side, uint32_t n,
                   bool turned, struct workers *workers)
{
    const struct method_decode *hooks = spec->method->decode;
    const size_t bytes = method_hook_bytes(hooks->scratch_bytes, &b.shape, spec->param) + 64;
    uint8_t *scratch = mem_map(n * bytes);
    struct method_lane lane[N_LANE];
    struct method_pick pick[N_LANE];
    struct op_lane_result result[N_LANE] = {{0}};
    union op_lane list[N_LANE];
    uint32_t target[N_LANE];
    memset(out, 0, n * sizeof *out);
    for (uint32_t i = 0; i < n; i++) {
        lane[i] = make_lane(spec, i ? N_SHORT : N_PAGE, turned);
        lane[i].scratch = scratch + i * bytes;
        lane[i].side = side;
        lane[i].side_stride = method_hook_bytes(hooks->side_bytes, &b.shape, spec->param);
        pick[i] = (struct method_pick){.mask = out[i].mask,
                                       .tok = out[i].tok,
                                       .logw = out[i].logw,
                                       .rest_log = out[i].rest_log,
                                       .rest_value = out[i].rest_value};
    }
    batch_choose(hooks, &(struct method_batch){.ops = &b.ops,
                                               .workers = workers,
                                               .n = n,
                                               .lane = lane,
                                               .pick = pick,
                                               .result = result,
                                               .target = target,
                                               .list = list});
    for (uint32_t i = 0; i < n; i++) {
        out[i].dense = pick[i].dense;
        out[i].not_finite = pick[i].not_finite;
        out[i].n_tok = pick[i].n_tok;
        out[i].n_chosen = pick[i].n_chosen;
        for (uint32_t t = pick[i].n_tok; t < N_TOK; t++) out[i].tok[t] = 0, out[i].logw[t] = 0;
    }
    mem_unmap(scratch, n * bytes);
}

static uint8_t *seal_side(const struct method_spec *spec)
{
    const struct method_decode *hooks = spec->method->decode;
    const size_t stride = method_hook_bytes(hooks->side_bytes, &b.shape, spec->param);
    uint8_t *side = mem_map(N_PAGE * stride + 64);
    float k[PAGE_TOK * DIM];
    for (uint32_t p = 0; p < N_PAGE && stride; p++) {
        page_read(k, NULL, &b.geom, b.pool + p * b.geom.bytes, PAGE_SEALED, PAGE_TOK);
        hooks->seal(side + p * stride, &b.shape, spec->param, k);
    }
    return side;
}

static void same_for_any_workers(const char *text)
{
    static struct choice one, some[N_LANE], shorter;
    static const uint32_t n_workers[] = {1, 2, 3, 8};
    sac_error err;
    struct method_spec spec;
    if (method_spec_parse(&spec, "decode", text, &err) != SAC_OK) fail_msg("%s", err.msg);
    uint8_t *side = seal_side(&spec);
    for (int turned = 0; turned < 2; turned++) {
        choose(&one, &spec, side, 1, turned, NULL);
        assert_false(one.dense);
        for (size_t k = 0; k < sizeof n_workers / sizeof n_workers[0]; k++) {
            struct workers *workers;
            assert_int_equal(workers_create(&workers, n_workers[k], &err), SAC_OK);
            choose(some, &spec, side, N_LANE, turned, workers);
            assert_memory_equal(&some[0], &one, sizeof one);
            if (k > 0) assert_memory_equal(&some[1], &shorter, sizeof shorter);
            shorter = some[1];
            workers_destroy(workers);
        }
    }
    mem_unmap(side,
              N_PAGE * method_hook_bytes(spec.method->decode->side_bytes, &b.shape, spec.param) +
                  64);
}

static void workers_change_no_choice(void **state)
{
    static const char *const specs[] = {"streaming:budget=300",
                                        "topk:budget=300",
                                        "topk:budget=300,unit=page",
                                        "quest:budget=300",
                                        "quest:budget=300,page=32",
                                        "quest:budget=300,heads=query",
                                        "arkvale:budget=300",
                                        "arkvale:budget=300,reduce=raw",
                                        "auto:mass=0.6,most=1",
                                        "auto:mass=0.6,most=1,draw=steady",
                                        "psa:mass=0.6",
                                        "psa:mass=0.6,order=box",
                                        "psa:mass=0.6,step=3,stop=min",
                                        "psa_cert:mass=0.6,by=shadow4"};
    static const sac_kv_type types[] = {SAC_KV_Q8, SAC_KV_F16};
    (void)state;
    for (size_t t = 0; t < 2; t++) {
        open_pages(types[t]);
        for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) same_for_any_workers(specs[i]);
        close_pages();
    }
}

/* A key that is not finite in the last piece makes the lane dense, for any number of workers. */
static void a_bad_key_is_seen_in_any_piece(void **state)
{
    (void)state;
    static struct choice c[N_LANE];
    struct method_spec spec;
    struct workers *workers;
    sac_error err;
    open_pages(SAC_KV_Q8);
    ((uint16_t *)(void *)(b.pool + b.page[N_PAGE - 5] * b.geom.bytes + b.geom.k_min))[3] = 0x7e00;
    assert_int_equal(method_spec_parse(&spec, "decode", "auto:mass=0.6,most=1", &err), SAC_OK);
    assert_int_equal(workers_create(&workers, 3, &err), SAC_OK);
    choose(c, &spec, NULL, N_LANE, false, workers);
    assert_true(c[0].dense && c[0].not_finite);
    assert_false(c[1].dense);
    workers_destroy(workers);
    close_pages();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(workers_change_no_choice),
                                       cmocka_unit_test(a_bad_key_is_seen_in_any_piece)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
