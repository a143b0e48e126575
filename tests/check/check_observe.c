/* check_observe.c: the slots of votes and kept choices (ops/observe.h) as the CUDA library has
 * them, against plain loops: what rows look at but for rounding, what is kept and the past bit for
 * bit. Rooms hold NaNs before, and so does what a row does not see. */
#include "cuda_lib.h"

#include "base/half.h"
#include "base/mem.h"
#include "ops/lanes.h"
#include "random_rows.h"

#include <math.h>
#include <string.h>

enum { N_LANE = 3, N_PAGE = 9, N_FRAME = 30, N_TOK = (N_PAGE + 1) * PAGE_TOK, DIM = 64, GROUP = 3 };
enum { N_SLOT = 43, WIDTH = GROUP * DIM };

static struct {
    struct page_geom geom;
    uint8_t *frames;
    uint32_t page[N_LANE][N_PAGE];
    uint16_t own[N_LANE][2 * PAGE_TOK * DIM];
    float q[N_LANE][WIDTH], past[N_LANE][N_SLOT][WIDTH];
    uint32_t pos[N_LANE], row0[N_LANE];
    float scale, softcap;
} p;

static uint16_t half_of(float x)
{
    return p.geom.type_k == SAC_KV_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}

/* Lanes of different lengths; behind a lane's own row its own page holds NaNs. */
static void make_lanes(sac_kv_type type, uint64_t *seed)
{
    static const uint32_t pos[N_LANE] = {N_PAGE * PAGE_TOK + 30, 5 * PAGE_TOK, 70};
    static const uint32_t n_row[N_LANE] = {32, 7, 1};
    uint16_t tail[2 * PAGE_TOK * DIM];
    p.geom = (struct page_geom){
        .n_layer = 1, .n_kv_head = 1, .head_dim = DIM, .type_k = type, .type_v = type};
    page_geom_init(&p.geom);
    p.frames = mem_calloc(N_FRAME, p.geom.bytes);
    for (uint32_t i = 0; i < N_FRAME; i++) {
        const uint8_t *from = (const uint8_t *)tail;
        uint8_t *to = p.frames + i * p.geom.bytes;
        for (uint32_t k = 0; k < 2 * PAGE_TOK * DIM; k++)
            tail[k] = half_of(3 * random_unit(seed) - 1.5f + (float)(k % DIM) / 20);
        ref.seal(NULL,
                 &(struct op_seal){.geom = &p.geom, .n_page = 1, .tail = &from, .sealed = &to});
    }
    for (uint32_t l = 0; l < N_LANE; l++) {
        p.pos[l] = pos[l];
        p.row0[l] = pos[l] + 1 - n_row[l];
        for (uint32_t i = 0; i < N_PAGE; i++) p.page[l][i] = (l * N_PAGE + i * 7) % N_FRAME;
        for (uint32_t k = 0; k < 2 * PAGE_TOK * DIM; k++)
            p.own[l][k] = k / DIM % PAGE_TOK <= pos[l] % PAGE_TOK
                              ? half_of(3 * random_unit(seed) - 1.5f)
                              : half_of(NAN);
        for (uint32_t i = 0; i < WIDTH; i++) p.q[l][i] = 2 * random_unit(seed) - 1;
        for (uint32_t i = 0; i < N_SLOT * WIDTH; i++) p.past[l][i / WIDTH][i % WIDTH] = NAN;
        for (uint32_t row = p.row0[l]; row < pos[l]; row++)
            for (uint32_t i = 0; i < WIDTH; i++)
                p.past[l][row % N_SLOT][i] = 2 * random_unit(seed) - 1;
    }
}

/* The key of a token of a lane, as attention reads it. */
static void key_of(float key[DIM], uint32_t lane, uint32_t tok)
{
    static float k[PAGE_TOK * DIM];
    const uint32_t page = tok / PAGE_TOK;
    if (page == p.pos[lane] / PAGE_TOK)
        page_read(k, NULL, &p.geom, (const uint8_t *)p.own[lane], PAGE_TAIL, PAGE_TOK);
    else
        page_read(k, NULL, &p.geom, p.frames + p.page[lane][page] * p.geom.bytes, PAGE_SEALED,
                  PAGE_TOK);
    memcpy(key, k + (size_t)(tok % PAGE_TOK) * DIM, DIM * sizeof *key);
}

static bool is_gone(uint32_t lane, uint32_t tok)
{
    const uint32_t page = tok / PAGE_TOK;
    return page < p.pos[lane] / PAGE_TOK && p.page[lane][page] == PAGE_NONE;
}

static double score_of(const float *q, const float *key)
{
    double sum = 0;
    for (uint32_t c = 0; c < DIM; c++) sum += (double)q[c] * (double)key[c];
    sum *= (double)p.scale;
    return p.softcap > 0 ? (double)p.softcap * tanh(sum / (double)p.softcap) : sum;
}

static void plain_sums(double *sum, double *slash, uint32_t lane)
{
    static float key[N_TOK][DIM];
    static double e[N_TOK];
    const uint32_t n = p.pos[lane] + 1;
    for (uint32_t t = 0; t < n; t++) {
        if (!is_gone(lane, t)) key_of(key[t], lane, t);
        sum[t] = slash[t] = 0;
    }
    for (uint32_t row = p.row0[lane]; row < n; row++) {
        const float *q = row == p.pos[lane] ? p.q[lane] : p.past[lane][row % N_SLOT];
        for (uint32_t g = 0; g < GROUP; g++, q += DIM) {
            double all = 0;
            for (uint32_t t = 0; t <= row; t++)
                all += e[t] = is_gone(lane, t) ? 0 : exp(score_of(q, key[t]));
            for (uint32_t t = 0; t <= row; t++) {
                sum[t] += e[t] / all;
                slash[p.pos[lane] - (row - t)] += e[t] / all;
            }
        }
    }
}

static struct op_lane_observe put_lane(uint32_t l, const struct page_frames *frames)
{
    static float nan_room[N_TOK];
    const size_t n_spare = op_observe_spare(N_PAGE, GROUP);
    const struct op_lane_result none = {0};
    float *spare = malloc(n_spare * sizeof *spare);
    memset(spare, 0xff, n_spare * sizeof *spare);
    memset(nan_room, 0xff, sizeof nan_room);
    const struct op_lane_observe op = {.keys = {&p.geom, *frames, put(p.page[l], sizeof p.page[l]),
                                                put(p.own[l], sizeof p.own[l])},
                                       .rows = {put(p.q[l], sizeof p.q[l]),
                                                put(p.past[l], sizeof p.past[l]), N_SLOT, p.pos[l],
                                                GROUP, WIDTH},
                                       .row0 = p.row0[l],
                                       .n_row = p.pos[l] + 1 - p.row0[l],
                                       .scale = p.scale,
                                       .softcap = p.softcap,
                                       .spare = put(spare, n_spare * sizeof *spare),
                                       .sum = put(nan_room, sizeof nan_room),
                                       .slash = l == 1 ? NULL : put(nan_room, sizeof nan_room),
                                       .begin = 3 * l,
                                       .end = l == 2 ? UINT32_MAX : p.row0[l],
                                       .result = put(&none, sizeof none)};
    free(spare);
    return op;
}

static void assert_sums(const double *want, const float *got, uint32_t lane,
                        const struct attn_range *open)
{
    const uint32_t pos = p.pos[lane];
    for (uint32_t t = 0; t < (pos / PAGE_TOK + 1) * PAGE_TOK; t++) {
        const double sum = t > pos ? 0 : want[t];
        if (t < open->begin || t >= open->end)
            assert_true(got[t] == -INFINITY);
        else if (!(fabs((double)got[t] - sum) <= 2e-5 * (1e-3 + sum)))
            fail_msg("lane %u, token %u: %.9g instead of %.9g", lane, t, (double)got[t], sum);
    }
}

/* In one call, and, `halves`, in two that add up. */
static void check_sums(bool halves)
{
    static float got[N_TOK];
    static double sum[N_TOK], slash[N_TOK];
    const struct page_frames frames = {.base = put(p.frames, N_FRAME * p.geom.bytes)};
    struct op_lane_observe op[N_LANE], first[N_LANE];
    for (uint32_t l = 0; l < N_LANE; l++) {
        op[l] = first[l] = put_lane(l, &frames);
        if (!halves) continue;
        first[l].n_row = (op[l].n_row + 1) / 2;
        op[l].row0 += first[l].n_row;
        op[l].n_row -= first[l].n_row;
        op[l].adds = true;
    }
    if (halves) assert_int_equal(api->lane_observe(device, first, N_LANE), SAC_OK);
    /* The last lane has one row, and none is left. */
    assert_int_equal(api->lane_observe(device, op, halves ? N_LANE - 1 : N_LANE), SAC_OK);
    for (uint32_t l = 0; l < N_LANE; l++) {
        struct op_lane_result result;
        get(&result, op[l].result, sizeof result);
        assert_int_equal(result.n_bad, 0);
        plain_sums(sum, slash, l);
        get(got, op[l].sum, sizeof got);
        assert_sums(sum, got, l, &(struct attn_range){op[l].begin, op[l].end});
        if (!op[l].slash) continue;
        get(got, op[l].slash, sizeof got);
        assert_sums(slash, got, l, &(struct attn_range){0, op[l].end});
    }
    give_all();
}

static void votes_are_those_of_plain_loops(void **state)
{
    (void)state;
    uint64_t seed = 11;
    const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    for (int i = 0; i < 3; i++) {
        make_lanes(type[i], &seed);
        p.scale = 0.15f;
        p.softcap = i == 1 ? 3 : 0;
        check_sums(false);
        check_sums(true);
        p.page[0][0] = p.page[0][7] = p.page[1][4] = PAGE_NONE; /* given back */
        check_sums(false);
        mem_free(p.frames);
    }
}

/* A bad key is heard of if a row sees it; bad queries, too. */
static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    uint64_t seed = 12;
    make_lanes(SAC_KV_F16, &seed);
    p.scale = 0.15f;
    for (int bad = 0; bad < 3; bad++) {
        if (bad == 0) p.own[0][0] = half_of(NAN);
        if (bad == 1) p.past[1][(p.pos[1] - 1) % N_SLOT][WIDTH - 1] = INFINITY;
        if (bad == 2) p.q[2][0] = NAN;
        const struct page_frames frames = {.base = put(p.frames, N_FRAME * p.geom.bytes)};
        struct op_lane_observe op[N_LANE];
        for (uint32_t l = 0; l < N_LANE; l++) op[l] = put_lane(l, &frames);
        assert_int_equal(api->lane_observe(device, op, N_LANE), SAC_OK);
        for (int l = 0; l < N_LANE; l++) {
            struct op_lane_result result;
            get(&result, op[l].result, sizeof result);
            assert_int_equal(result.n_bad > 0, l <= bad);
        }
        give_all();
    }
    mem_free(p.frames);
}

/* ---- Kept choices ---- */

static void check_keep(uint32_t n_kept, uint32_t n_page, int made, uint64_t *seed)
{
    uint32_t kept[N_PAGE + 1], mask[N_PAGE + 1], got[N_PAGE + 1], n_chosen = 5;
    const uint32_t begin = 13, end = n_kept * PAGE_TOK - 50;
    const struct op_lane_result of = {.n_bad = made > 1}, before = {.n_chosen = 5};
    struct op_lane_result after;
    for (uint32_t i = 0; i <= N_PAGE; i++) {
        kept[i] = (uint32_t)random_next(seed);
        mask[i] = i % 3 ? 0 : 1u << i;
    }
    const struct op_lane_keep op = {.kept = put(kept, sizeof kept),
                                    .n_kept = n_kept,
                                    .begin = begin,
                                    .end = end,
                                    .made = made ? put(&of, sizeof of) : NULL,
                                    .mask = put(mask, sizeof mask),
                                    .n_page = n_page,
                                    .result = put(&before, sizeof before)};
    assert_int_equal(api->lane_keep(device, &op, 1), SAC_OK);
    for (uint32_t i = 0; i < n_kept; i++) {
        if (made > 1) kept[i] = UINT32_MAX;
        if (i < n_page) mask[i] |= kept[i];
        for (uint32_t t = 0; t < PAGE_TOK && i < n_page; t++)
            n_chosen += kept[i] >> t & 1 && i * PAGE_TOK + t >= begin && i * PAGE_TOK + t < end;
    }
    get(got, op.mask, sizeof got);
    assert_memory_equal(mask, got, sizeof got);
    get(got, op.kept, sizeof got);
    assert_memory_equal(kept, got, sizeof got);
    get(&after, op.result, sizeof after);
    assert_int_equal(after.n_chosen, n_chosen);
    assert_int_equal(after.n_bad > 0, made > 1);
    give_all();
}

static void what_is_kept_is_marked(void **state)
{
    (void)state;
    uint64_t seed = 13;
    for (int made = 0; made < 3; made++) {
        check_keep(N_PAGE, N_PAGE, made, &seed);
        check_keep(N_PAGE, N_PAGE - 1, made, &seed);
        check_keep(4, N_PAGE, made, &seed);
    }
}

static bool bit_of(const uint32_t *mask, uint32_t t)
{
    return mask[t / PAGE_TOK] >> t % PAGE_TOK & 1;
}

static void check_lines(uint32_t n_line, uint32_t by, int made, uint64_t *seed)
{
    uint32_t kept[2][N_PAGE], chosen[2 * N_PAGE], mask[N_PAGE], want[N_PAGE], got[N_PAGE];
    const struct op_lane_result of = {.n_bad = made > 1}, before = {.n_chosen = 2};
    struct op_lane_result after;
    uint32_t n_chosen = 2;
    for (uint32_t i = 0; i < N_PAGE; i++) {
        kept[0][i] = (uint32_t)random_next(seed) & (uint32_t)random_next(seed);
        kept[1][i] = (uint32_t)random_next(seed) & (uint32_t)random_next(seed);
        mask[i] = want[i] = 3u << i;
    }
    for (uint32_t i = 0; i < 2 * N_PAGE; i++) chosen[i] = (uint32_t)random_next(seed);
    const struct op_lane_lines op = {.column = put(kept[0], sizeof kept[0]),
                                     .slash = put(kept[1], sizeof kept[1]),
                                     .taken = put(chosen, sizeof chosen),
                                     .made = made ? put(&of, sizeof of) : NULL,
                                     .n_line = n_line,
                                     .by = by,
                                     .mask = put(mask, sizeof mask),
                                     .n_page = N_PAGE,
                                     .result = put(&before, sizeof before)};
    assert_int_equal(api->lane_lines(device, &op, 1), SAC_OK);
    for (uint32_t i = 0; i < 2 * n_line && made; i++)
        kept[i / n_line][i % n_line] = made > 1 ? UINT32_MAX : chosen[i];
    for (uint32_t t = 0; t < N_PAGE * PAGE_TOK; t++) {
        const uint32_t n = n_line * PAGE_TOK;
        const bool is =
            (t < n && bit_of(kept[0], t)) || (t >= by && t - by < n && bit_of(kept[1], t - by));
        n_chosen += is && !bit_of(mask, t);
        want[t / PAGE_TOK] |= (uint32_t)is << t % PAGE_TOK;
    }
    get(got, op.mask, sizeof got);
    assert_memory_equal(want, got, sizeof got);
    for (int i = 0; i < 2; i++) {
        get(got, i ? op.slash : op.column, sizeof got);
        assert_memory_equal(kept[i], got, sizeof got);
    }
    get(&after, op.result, sizeof after);
    assert_int_equal(after.n_chosen, n_chosen);
    assert_int_equal(after.n_bad > 0, made > 1);
    give_all();
}

static void lines_move_with_the_row(void **state)
{
    (void)state;
    uint64_t seed = 14;
    const uint32_t by[] = {0, 1, 31, 32, 70};
    for (int made = 0; made < 3; made++)
        for (int i = 0; i < 5; i++) check_lines(N_PAGE - (uint32_t)i, by[i], made, &seed);
}

/* ---- The past ---- */

static void rows_go_to_their_slots(void **state)
{
    (void)state;
    enum { N_ROW = 6, SLOTS = 5, STRIDE = WIDTH + 8 };
    static float q[N_ROW * STRIDE], want[2][SLOTS * WIDTH], got[SLOTS * WIDTH];
    const uint32_t row0[] = {8, 3}, n_row[] = {SLOTS, 2};
    struct op_past op[2];
    for (uint32_t i = 0; i < N_ROW * STRIDE; i++) q[i] = (float)i;
    float *there = put(q, sizeof q);
    for (uint32_t k = 0; k < 2; k++) {
        memset(want[k], 0xff, sizeof want[k]);
        op[k] = (struct op_past){.q = there + k * STRIDE,
                                 .q_stride = STRIDE,
                                 .past = put(want[k], sizeof want[k]),
                                 .n_slot = SLOTS,
                                 .width = WIDTH,
                                 .row0 = row0[k],
                                 .n_row = n_row[k]};
        for (uint32_t i = 0; i < n_row[k]; i++)
            memcpy(want[k] + (row0[k] + i) % SLOTS * WIDTH, q + (k + i) * STRIDE,
                   WIDTH * sizeof *q);
    }
    assert_int_equal(api->past(device, op, 2), SAC_OK);
    for (uint32_t k = 0; k < 2; k++) {
        get(got, op[k].past, sizeof got);
        assert_memory_equal(want[k], got, sizeof got);
    }
    give_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(votes_are_those_of_plain_loops),
        cmocka_unit_test(what_is_not_finite_is_told),
        cmocka_unit_test(what_is_kept_is_marked),
        cmocka_unit_test(lines_move_with_the_row),
        cmocka_unit_test(rows_go_to_their_slots),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
