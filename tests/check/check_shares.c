/* check_shares.c: shares of tokens by planes as the CUDA library has them (op_lane_shares), for
 * heads of all sizes and groups: as the reference makes them, and bit for bit the same whether
 * sequences read the same pages together, pages of their own, or one is alone. */
#include "cuda_lib.h"

#include "base/half.h"
#include "random_rows.h"

#include <math.h>

enum {
    N_PAGE = 227, /* the last piece has fewer than others */
    N_TOK = N_PAGE * PAGE_TOK,
    N_LANE = 16,
    DIM = 256,
    GROUP = 17,
    N_FRAME = 2 * N_PAGE /* twice the same */
};

static struct {
    struct page_geom geom;
    uint8_t *frames;
    void *there;
    uint32_t page[2][N_PAGE]; /* the one frames, and the others */
    void *page_there[2];
    float q[N_LANE][GROUP * DIM];
} p;

/* Pages of random keys, each in two frames. */
static void make_pages(uint32_t dim, uint32_t group, uint64_t *seed)
{
    p.geom = (struct page_geom){
        .n_layer = 1, .n_kv_head = 1, .head_dim = dim, .type_k = SAC_KV_Q8, .type_v = SAC_KV_Q8};
    page_geom_init(&p.geom);
    p.frames = calloc(N_FRAME, p.geom.bytes);
    uint16_t *tail = malloc(p.geom.tail_bytes);
    assert_true(p.frames && tail);
    for (uint32_t i = 0; i < N_PAGE; i++) {
        for (uint32_t k = 0; k < 2 * PAGE_TOK * dim; k++)
            tail[k] = f32_to_f16(3 * random_unit(seed) - 1.5f + (float)(k % dim) / 40);
        const uint8_t *from = (const uint8_t *)tail;
        uint8_t *to = p.frames + 2 * i * p.geom.bytes;
        ref.seal(NULL,
                 &(struct op_seal){.geom = &p.geom, .n_page = 1, .tail = &from, .sealed = &to});
        memcpy(to + p.geom.bytes, to, p.geom.bytes);
        for (uint32_t k = 0; k < 2; k++) p.page[k][i] = (i * 29 + 11) % N_PAGE * 2 + k;
    }
    for (uint32_t i = 0; i < N_LANE * group * dim; i++)
        p.q[i / (group * dim)][i % (group * dim)] = 2 * random_unit(seed) - 1;
    p.there = put(p.frames, N_FRAME * p.geom.bytes);
    for (uint32_t k = 0; k < 2; k++) p.page_there[k] = put(p.page[k], sizeof p.page[k]);
    free(tail);
}

static void put_lanes(struct op_lane_shares lane[N_LANE], uint32_t dim, uint32_t group)
{
    for (uint32_t i = 0; i < N_LANE; i++) {
        lane[i] =
            (struct op_lane_shares){.at = {.base = p.there,
                                           .stride = p.geom.bytes,
                                           .min_at = p.geom.k_min,
                                           .step_at = p.geom.k_step,
                                           .hi2_at = p.geom.k_hi2,
                                           .page = p.page_there[0],
                                           .n_page = i == 3 ? N_PAGE - 20 : N_PAGE,
                                           .head_dim = dim,
                                           .group = group,
                                           .q = put(p.q[i], group * dim * sizeof(float)),
                                           .scale = 1 / sqrtf((float)dim),
                                           .share = put_any(N_TOK * sizeof(float)),
                                           .e = put_any(group * N_TOK * sizeof(float))},
                                    .lse = put_any(group * sizeof(float)),
                                    .sum = put_any(OP_LANE_PIECES(N_PAGE) * group * sizeof(float)),
                                    .result = put_any(sizeof(struct op_lane_result))};
    }
}

/* What lies between the passes, and the shares. */
static void get_lane(uint8_t *to, const struct op_lane_shares *lane)
{
    const struct op_share_planes *at = &lane->at;
    const size_t n_e = at->group * at->n_page * (PAGE_TOK + 2 * sizeof(float));
    const size_t n_sum = at->group * ((at->n_page + 7) / 8) * sizeof(float);
    get(to, at->e, n_e);
    get(to + n_e, lane->sum, n_sum);
    get(to + n_e + n_sum, at->share, at->n_page * PAGE_TOK * sizeof(float));
}

static void check_reference(const struct op_lane_shares *away, const float *q)
{
    static float share[N_TOK], got[N_TOK], e[GROUP * N_TOK], turned[GROUP * DIM], lse[GROUP];
    static float sum[OP_LANE_PIECES(N_PAGE) * GROUP];
    _Alignas(64) static uint8_t frame[OPS_SHARE_FRAME];
    struct op_lane_result result = {0};
    struct op_lane_shares op = *away;
    op.at.base = p.frames, op.at.page = p.page[0], op.at.q = q;
    op.at.share = share, op.at.e = e, op.at.frame = frame;
    op.turned = turned, op.lse = lse, op.sum = sum, op.result = &result;
    ref.lanes.shares(NULL, &ref, &op, 1);
    get(got, away->at.share, sizeof got);
    for (uint32_t i = 0; i < N_TOK; i++)
        assert_true(fabsf(got[i] / share[i] - 1) < 0.066f); /* powers are of eight bits */
}

/* All together on the same frames, then lanes of a block on different ones, and some alone. */
static void check_shape(uint32_t dim, uint32_t group, uint64_t *seed)
{
    const size_t n_float = group * (2 * N_PAGE + OP_LANE_PIECES(N_PAGE)) + N_TOK;
    const size_t room = group * N_TOK + n_float * sizeof(float);
    uint8_t *want = calloc(N_LANE, room), *got = calloc(1, room);
    struct op_lane_shares lane[N_LANE];
    assert_true(want && got);
    make_pages(dim, group, seed);
    put_lanes(lane, dim, group);
    assert_int_equal(api->lane_shares(device, lane, N_LANE), SAC_OK);
    for (uint32_t i = 0; i < N_LANE; i++) get_lane(want + i * room, &lane[i]);
    check_reference(&lane[0], p.q[0]);
    for (uint32_t i = 0; i < N_LANE; i++) lane[i].at.page = p.page_there[(i / 4 + i / 8) % 2];
    assert_int_equal(api->lane_shares(device, lane, N_LANE), SAC_OK);
    for (uint32_t i = 0; i < N_LANE; i++) {
        memset(got, 0, room);
        get_lane(got, &lane[i]);
        assert_memory_equal(got, want + i * room, room);
    }
    for (uint32_t i = 0; i < N_LANE; i += 5) {
        assert_int_equal(api->lane_shares(device, &lane[i], 1), SAC_OK);
        memset(got, 0, room);
        get_lane(got, &lane[i]);
        assert_memory_equal(got, want + i * room, room);
    }
    give_all();
    free(p.frames);
    free(want);
    free(got);
}

static void shares_are_the_same_of_whoever_is_there(void **state)
{
    (void)state;
    const struct {
        uint32_t dim, group;
    } shape[] = {{128, 4}, {128, 1}, {128, 5}, {128, 8}, {64, 3},
                 {64, 7},  {64, 17}, {256, 2}, {256, 12}};
    uint64_t seed = 31;
    for (uint32_t i = 0; i < sizeof shape / sizeof shape[0]; i++)
        check_shape(shape[i].dim, shape[i].group, &seed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_the_same_of_whoever_is_there),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
