/* check_recall.c: the slots that remember what earlier steps looked at (ops/recall.h) as the CUDA
 * library has them, against the method's own code on the host: over an answer the same candidates
 * are read, tables and guesses agree but for rounding, and power sums are those of the entries. */
#include "../unit/lane_bench.h"
#include "brief.h"
#include "cuda_lib.h"
#include "methods/decode/lfps.c"
#include "methods/decode/lfps_device.c"

enum { FIRST = 1003, N_STEP = 40, BRIEF_FIRST = 1023, N_BRIEF = 2 }; /* over a page's end */

static struct lane_bench b;

/* The same sequence there. */
static struct {
    struct ops ops;
    struct lfps_state head[LB_HEADS];
    uint8_t *pool, *tail, *scratch[LB_HEADS], *state[LB_HEADS];
    uint32_t *page[LB_HEADS], *mask[LB_HEADS];
    float *q[LB_HEADS], *past[LB_HEADS], *rest_log[LB_HEADS], *rest_value[LB_HEADS];
    struct op_lane_result *result;
    struct page_lines lines;
    size_t scratch_bytes;
    /* What came of a step. */
    struct method_pick pick[LB_HEADS];
    uint32_t got_mask[LB_HEADS][LB_PAGES];
    struct op_lane_result got[LB_HEADS];
} there;

static void lanes_begin(struct workers *pool, const struct op_lane_begin *op, uint32_t n)
{
    (void)pool;
    assert_int_equal(api->lane_begin(device, op, n), SAC_OK);
}

static void lanes_observe(struct workers *pool, const struct op_lane_observe *op, uint32_t n)
{
    (void)pool;
    assert_int_equal(api->lane_observe(device, op, n), SAC_OK);
}

static void lanes_settle(struct workers *pool, const struct op_lane_settle *op, uint32_t n)
{
    (void)pool;
    assert_int_equal(api->lane_settle(device, op, n), SAC_OK);
}

static void lanes_recall(struct workers *pool, const struct op_lane_recall *op, uint32_t n)
{
    (void)pool;
    assert_int_equal(api->lane_recall(device, op, n), SAC_OK);
}

static void lanes_ends(struct workers *pool, const struct ops *ops, const struct op_lane_ends *op,
                       uint32_t n)
{
    (void)pool;
    (void)ops;
    assert_int_equal(api->lane_ends(device, op, n), SAC_OK);
}

/* Rooms there hold NaNs before. */
static void *take_nans(size_t n)
{
    uint8_t *nans = malloc(n);
    memset(nans, 0xff, n);
    void *p = put(nans, n);
    free(nans);
    return p;
}

static void open_there(void)
{
    memset(&there, 0, sizeof there);
    there.ops = b.ops;
    there.ops.lanes.begin = lanes_begin;
    there.ops.lanes.observe = lanes_observe;
    there.ops.lanes.settle = lanes_settle;
    there.ops.lanes.recall = lanes_recall;
    there.ops.lanes.ends = lanes_ends;
    page_lines_init(&there.lines, &b.geom);
    there.scratch_bytes = lfps_device_bytes(&b.shape, b.spec.param);
    there.pool = put(b.pool, b.pool_bytes);
    there.tail = put(b.tail, b.tail_bytes);
    there.result = take_nans(LB_HEADS * sizeof *there.result);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        there.scratch[h] = take_nans(there.scratch_bytes);
        there.state[h] = take_nans(b.state_stride);
        there.page[h] = put(b.page[h], sizeof b.page[h]);
        there.mask[h] = take_nans(sizeof b.mask[h]);
        there.q[h] = take_nans(sizeof b.q[h]);
        there.past[h] = take_nans(sizeof b.past[h]);
        there.rest_log[h] = take_nans(sizeof b.rest_log[h]);
        there.rest_value[h] = take_nans(sizeof b.rest_value[h]);
    }
}

/* The lanes of the bench's row, with its queries and past, as the engine has them there. */
static void point_there(struct method_lane lane[LB_HEADS])
{
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        api->up(device, there.q[h], b.q[h], sizeof b.q[h]);
        api->up(device, there.past[h], b.past[h], sizeof b.past[h]);
        lane[h] = b.lane[h];
        lane[h].ops = &there.ops;
        lane[h].q = there.q[h];
        lane[h].past.q = there.past[h];
        lane[h].frames.base = there.pool;
        lane[h].id = b.page[h];
        lane[h].page = there.page[h];
        lane[h].own = there.tail + (b.lane[h].own - b.tail);
        lane[h].state = &there.head[h];
        lane[h].device_state = there.state[h];
        lane[h].scratch = there.scratch[h];
        lane[h].lines = &there.lines;
        there.pick[h] = (struct method_pick){.mask = there.mask[h],
                                             .rest_log = there.rest_log[h],
                                             .rest_value = there.rest_value[h]};
    }
}

/* A decode row there; n_lane of its lanes in a call. */
static void choose_there(uint32_t pos, uint32_t n_lane)
{
    struct method_lane lane[LB_HEADS];
    uint32_t target[LB_HEADS];
    union op_lane list[LB_HEADS];
    lb_point(&b, pos, false);
    point_there(lane);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        const struct op_lane_begin begin = {
            .mask = there.mask[h], .n_page = pos / PAGE_TOK, .result = there.result + h};
        lanes_begin(NULL, &begin, 1);
    }
    for (uint32_t h = 0; h < LB_HEADS; h += n_lane)
        batch_choose(b.spec.method->decode, &(struct method_batch){.ops = &there.ops,
                                                                   .n = n_lane,
                                                                   .lane = lane + h,
                                                                   .pick = there.pick + h,
                                                                   .result = there.result + h,
                                                                   .on_device = true,
                                                                   .target = target,
                                                                   .list = list});
    get(there.got, there.result, sizeof there.got);
    for (uint32_t h = 0; h < LB_HEADS; h++) get(there.got_mask[h], there.mask[h], sizeof b.mask[h]);
}

/* ---- Against the host ---- */

static struct parts parts_of(uint8_t *state)
{
    struct parts p;
    lfps_table_state(&p, &b.shape, lfps_rule_of(&b.shape, b.spec.param).n_table, state);
    return p;
}

static void assert_moments(const struct op_moments *m, const float *x, uint32_t n)
{
    double s[4] = {0};
    for (uint32_t i = 0; i < n; i++) {
        double y = 1;
        for (int k = 0; k < 4; k++) s[k] += y *= (double)x[i];
    }
    for (int k = 0; k < 4; k++)
        if (!(fabs(m->s[k] - s[k]) <= 1e-9 * (1 + fabs(s[k]))))
            fail_msg("power %d: %.15g instead of %.15g", k + 1, m->s[k], s[k]);
}

static void assert_near(double want, double got, double most)
{
    if (!(fabs(want - got) <= most * (1 + fabs(want)))) fail_msg("%.9g instead of %.9g", got, want);
}

/* All that is kept of a lane. */
static void assert_states(uint32_t h, uint32_t pos)
{
    uint8_t *bytes = aligned_alloc(64, (b.state_stride + 63) / 64 * 64);
    get(bytes, there.state[h], b.state_stride);
    const struct parts want = parts_of(lb_state(&b, b.layer, h)), got = parts_of(bytes);
    assert_int_equal(want.state->n_learnt, there.head[h].n_learnt);
    assert_int_equal(want.state->n_mean, there.head[h].n_mean);
    for (uint32_t i = 0; i < want.memory.n_table; i++) {
        const struct op_pair *of = &want.memory.pair[i], *is = &got.memory.pair[i];
        assert_near((double)of->unit, (double)is->unit, 1e-5);
        for (int sla = 0; sla < 2; sla++) {
            const float *x = lfps_table_row(&want, i, sla, pos),
                        *y = lfps_table_row(&got, i, sla, pos);
            for (uint32_t t = 0; t <= pos; t++) assert_near((double)x[t], (double)y[t], 1e-3);
            assert_moments(sla ? &is->sla : &is->ver, y, pos + 1);
        }
    }
    for (uint32_t c = 0; c < LB_DIM; c++) {
        assert_near(want.memory.key_sum[c], got.memory.key_sum[c], 1e-9);
        assert_near(want.memory.value_sum[c], got.memory.value_sum[c], 1e-9);
    }
    for (uint32_t g = 0; g < LB_GROUP; g++)
        assert_near((double)want.memory.spread[g], (double)got.memory.spread[g], 1e-5);
    free(bytes);
}

static void assert_rest(uint32_t h, bool is)
{
    float rest_log[LB_GROUP], value[LB_GROUP * LB_DIM];
    get(rest_log, there.rest_log[h], sizeof rest_log);
    get(value, there.rest_value[h], sizeof value);
    for (uint32_t g = 0; g < LB_GROUP; g++) {
        if (!is) assert_true(rest_log[g] == -INFINITY && b.rest_log[h][g] == -INFINITY);
        if (is) assert_near((double)b.rest_log[h][g], (double)rest_log[g], 1e-5);
        for (uint32_t c = 0; c < LB_DIM && is; c++)
            assert_near((double)b.rest_value[h][g * LB_DIM + c], (double)value[g * LB_DIM + c],
                        1e-6);
    }
}

/* Bits that are read by one of the two alone. */
static uint32_t compare_step(uint32_t pos)
{
    uint32_t n_off = 0;
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        const bool rests = b.pick[h].n_bypass == LB_GROUP;
        assert_false(b.pick[h].dense || there.pick[h].dense || there.got[h].n_bad);
        assert_int_equal(b.pick[h].n_bypass, there.got[h].n_bypass);
        assert_rest(h, rests);
        for (uint32_t p = 0; p < pos / PAGE_TOK; p++)
            n_off += (uint32_t)__builtin_popcount(b.mask[h][p] ^ there.got_mask[h][p]);
        if (n_off == 0) assert_int_equal(b.pick[h].n_chosen, there.got[h].n_chosen);
        assert_true(rests || there.got[h].n_line_scored > 0);
    }
    return n_off;
}

static void begin_answer(sac_kv_type type, const char *spec, uint32_t first)
{
    lb_open(&b, type, spec, 5);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    open_there();
    for (uint32_t pos = first - LB_PAST; pos < first; pos++) {
        lb_random_query(&b, 3);
        lb_row(&b, pos, true);
    }
}

static void end_answer(void)
{
    give_all();
    lb_close(&b);
}

/* An answer on both. What is near a threshold may be on either side of it. */
static void check_answer(sac_kv_type type, const char *spec)
{
    const uint32_t first = is_brief() ? BRIEF_FIRST : FIRST, n_step = is_brief() ? N_BRIEF : N_STEP;
    uint32_t n_off = 0, n_read = 0;
    begin_answer(type, spec, first);
    for (uint32_t pos = first; pos < first + n_step; pos++) {
        lb_random_query(&b, 3);
        choose_there(pos, pos % 2 ? LB_HEADS : 1);
        lb_row(&b, pos, false);
        n_off += compare_step(pos);
        for (uint32_t h = 0; h < LB_HEADS; h++) n_read += lb_count(&b, h);
        if (n_off == 0 && (pos - first) % (n_step - 1) % 23 == 0)
            for (uint32_t h = 0; h < LB_HEADS; h++) assert_states(h, pos);
    }
    if (n_off * 1000 > n_read) fail_msg("%s: %u of %u tokens differ", spec, n_off, n_read);
    end_answer();
}

static void an_answer_reads_what_the_host_reads(void **state)
{
    (void)state;
    if (!is_brief()) check_answer(SAC_KV_F16, "lfps:budget=40,bypass=1");
    check_answer(SAC_KV_Q8, "lfps:budget=5%,heads=group,past=40,sink=7,bypass=1,decay=0.9");
    check_answer(SAC_KV_BF16, "lfps:budget=40,bypass=1,refresh=3,past=1");
}

/* Heads that have no say, of one table or of all; what stands for the rest then. */
static void heads_on_the_sinks_have_no_say(void **state)
{
    (void)state;
    check_answer(SAC_KV_F16, "lfps:budget=40,bypass=0.003");
    if (is_brief()) return;
    check_answer(SAC_KV_F16, "lfps:budget=40,heads=group,bypass=0.003");
    check_answer(SAC_KV_Q8, "lfps:budget=40,bypass=0");
}

/* Candidates that hold less than the rest is guessed to become all tokens. */
static void guarded_candidates_widen(void **state)
{
    (void)state;
    check_answer(SAC_KV_F16, "lfps:budget=40,guard=on,a=10,bypass=0.01");
}

static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    begin_answer(SAC_KV_F16, "lfps:budget=40", FIRST);
    b.past[1][(FIRST - 3) % LB_PAST][5] = INFINITY;
    lb_random_query(&b, 3);
    choose_there(FIRST, LB_HEADS);
    assert_true(!there.got[0].n_bad && there.got[1].n_bad);
    b.past[1][(FIRST - 3) % LB_PAST][5] = 0;
    choose_there(FIRST + 1, LB_HEADS); /* what was learnt stays */
    assert_true(!there.got[0].n_bad && there.got[1].n_bad);
    b.q[0][LB_DIM + 1] = NAN;
    choose_there(FIRST + 2, LB_HEADS);
    assert_true(there.got[0].n_bad);
    b.q[0][LB_DIM + 1] = 1;
    choose_there(FIRST + 3, LB_HEADS); /* tables have not taken it in */
    assert_false(there.got[0].n_bad);
    end_answer();
}

/* ---- What stands for the rest ---- */

static void the_rest_joins_the_output(void **state)
{
    (void)state;
    enum { GROUP = 3, DIM = 96 };
    float out[GROUP * DIM], want[GROUP * DIM], value[GROUP * DIM], got[GROUP * DIM];
    const float lse[GROUP] = {2, -1, 0.5f}, rest[GROUP] = {1, -INFINITY, 3};
    for (uint32_t i = 0; i < GROUP * DIM; i++) {
        out[i] = (float)(i % 13) - 4;
        value[i] = (float)(i % 7) + 1;
    }
    for (uint32_t bad = 0; bad < 2; bad++) {
        const struct op_lane_result result = {.n_bad = bad};
        const struct op_lane_rest op = {.out = put(out, sizeof out),
                                        .lse = put(lse, sizeof lse),
                                        .log = put(rest, sizeof rest),
                                        .value = put(value, sizeof value),
                                        .group = GROUP,
                                        .head_dim = DIM,
                                        .result = put(&result, sizeof result)};
        assert_int_equal(api->lane_rest(device, &op, 1), SAC_OK);
        for (uint32_t i = 0; i < GROUP * DIM; i++) {
            const double a = exp((double)lse[i / DIM]), e = bad ? 0 : exp((double)rest[i / DIM]);
            want[i] = (float)((a * (double)out[i] + e * (double)value[i]) / (a + e));
        }
        get(got, op.out, sizeof got);
        for (uint32_t i = 0; i < GROUP * DIM; i++)
            assert_near((double)want[i], (double)got[i], 1e-5);
        give_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_reads_what_the_host_reads),
        cmocka_unit_test(heads_on_the_sinks_have_no_say),
        cmocka_unit_test(guarded_candidates_widen),
        cmocka_unit_test(what_is_not_finite_is_told),
        cmocka_unit_test(the_rest_joins_the_output),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
