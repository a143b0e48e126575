/* test_pattern.c: MInference's table of heads: what is learnt of heads made for a pattern, what a
 * plan makes of it, and a word about every line that is wrong. */
#include "methods/prefill/pattern.h"
#include "ops/plans.h"
#include "plan_make.h"

enum { N = 4096, G = MAKE_GROUP, D = MAKE_DIM, N_HEAD = 4 * G };

static struct make m;
static struct pattern_head heads[N_HEAD];

/* Head 0 likes each third key of all; head 1 the keys just before its own. */
static void open_heads(const char *spec)
{
    make_open(&m, SAC_KV_F16, N, 3);
    for (uint32_t t = 0; t < N; t++)
        for (uint32_t c = 0; c < D; c++) {
            const double angle = 2 * M_PI * t / 8192;
            const float turn[2] = {(float)cos(angle), (float)sin(angle)};
            m.k[t * D + c] = c < 2 ? 10 * turn[c] : c == 2 ? (t % 3 == 0 ? 4.0f : 0) : 0;
            m.q[(t * G + 0) * D + c] = c == 2 ? 30.0f : 0;
            m.q[(t * G + 1) * D + c] = c < 2 ? 4000 * turn[c] : 0;
        }
    make_method(&m, spec, N);
    memset(heads, 0, sizeof heads);
    m.table = heads;
}

static const struct method_table *table_hooks(void)
{
    return m.spec.method->prefill->table;
}

static void the_pattern_that_fits_is_learnt(void **state)
{
    (void)state;
    struct strbuf text = {0};
    sac_error err;
    uint16_t own[PAGE_TOK * D];
    open_heads("minference");
    assert_true(table_hooks()->bytes(&m.shape) == sizeof heads);
    for (uint32_t layer = 0; layer < 4; layer++) {
        assert_int_equal(table_hooks()->write(heads, &m.shape, &text, &err), SAC_ERR_CONTEXT);
        strbuf_reset(&text);
        const struct method_lane begin = make_lane(&m, layer, 0, 2400, own);
        table_hooks()->learn(&begin, heads); /* too early: nothing is learnt */
        assert_true(!(heads[layer * G].n_row > 0));
        const struct method_lane lane = make_lane(&m, layer, 0, N, own);
        table_hooks()->learn(&lane, heads);
    }
    for (uint32_t i = 0; i < N_HEAD; i++)
        for (uint32_t j = 0; j < PATTERN_CANDIDATES; j++)
            assert_true(heads[i].mass[j] > 0 && heads[i].mass[j] <= 1.0001 * heads[i].n_row);
    assert_int_equal(table_hooks()->write(heads, &m.shape, &text, &err), SAC_OK);
    memset(heads, 0, sizeof heads);
    if (table_hooks()->read(heads, &m.shape, text.data, &err) != SAC_OK) fail_msg("%s", err.msg);
    for (uint32_t i = 0; i < N_HEAD; i += G) {
        assert_int_equal(heads[i].pattern.family, PATTERN_LINES);
        assert_int_equal(heads[i].pattern.a, 3500);
        assert_true(heads[i + 1].pattern.a <= 100); /* the band is what counts */
    }
    strbuf_deinit(&text);
    make_close(&m);
}

static void a_table_gives_each_head_its_plan(void **state)
{
    (void)state;
    sac_error err;
    struct strbuf text = {0};
    open_heads("minference:table=some.txt");
    strbuf_adds(&text, "saccade minference 1\n# by hand\n\nmodel made up\nlayers 4 heads 2\n");
    for (uint32_t i = 0; i < 4; i++)
        strbuf_addf(&text, "%u 1 lines 40 100 # a remark\n%u 0 ends 64 640\n", i, i);
    if (table_hooks()->read(heads, &m.shape, text.data, &err) != SAC_OK) fail_msg("%s", err.msg);
    make_plan(&m, 2, N - 512, N);
    assert_int_equal(m.plan.dense, PLAN_SPARSE);
    const uint32_t tile = 3, t0 = plan_tile_tok(&m.plan, tile);
    for (uint32_t c = 0; c < t0; c++)
        assert_int_equal(plan_has(&m.plan, tile, 0, c), c < 64 || c + 640 > t0);
    for (uint32_t c = 0; c < 30; c++) assert_true(plan_has(&m.plan, tile, 1, c));
    assert_false(plan_has(&m.plan, tile, 1, t0 - 1000));
    strbuf_deinit(&text);
    make_close(&m);
}

/* What is searched for are the sizes of lines: a head that reads the ends does so with any, and on
 * a device, too. */
static void an_a_shape_of_a_table_is_not_searched(void **state)
{
    (void)state;
    enum { LAYER = 2, TOK = 9000 };
    struct op_trace_size size[OP_TRACE_SIZES * G];
    uint32_t row[2][64];
    uint16_t own[PAGE_TOK * D];
    open_heads("minference:table=some.txt,sizes=search");
    for (uint32_t i = 0; i < N_HEAD; i++)
        heads[i].pattern = i % G ? (struct pattern){PATTERN_LINES, 40, 100}
                                 : (struct pattern){PATTERN_ENDS, 64, 640};
    struct method_lane lane = make_lane(&m, LAYER, N - 512, N, own);
    struct op_trace op = {
        .rows = {.n_head = G}, .choose = {.at = row[0]}, .judge = {.at = row[1]}, .size = size};
    lane.pos = TOK - lane.n_row;
    m.spec.method->prefill->trace(&lane, TOK, &op);
    assert_int_equal(op.why, PLAN_SPARSE);
    assert_int_equal(op.n_size, OP_TRACE_SIZES);
    for (uint32_t i = 0; i < op.n_size; i++) {
        assert_int_equal(size[i * G].family, OP_TRACE_ENDS);
        assert_int_equal(size[i * G].n_column, 64);
        assert_int_equal(size[i * G].n_slash, 640);
        assert_int_equal(size[i * G + 1].family, OP_TRACE_LINES);
    }
    make_close(&m);
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
#define HEAD "saccade minference 1\nmodel made up\nlayers 4 heads 2\n"
    static const struct {
        const char *text, *word;
    } bad[] = {
        {"", "line 0"},
        {"saccade minference 2\n", "line 1"},
        {"saccade minference 1\nlayers 4 heads 2\n", "line 2: 'model NAME'"},
        {"saccade minference 1\nmodel other\n", "model 'other', this is 'made up'"},
        {"saccade minference 1\nmodel made up\nlayers 4\n", "line 3: 'layers N heads N'"},
        {"saccade minference 1\nmodel made up\nlayers 4 heads 3\n", "4 layers of 3 heads"},
        {HEAD "0 0 lines 40\n", "line 4: '0 0 lines 40'"},
        {HEAD "0 0 lines 0 10\n", "line 4"},
        {HEAD "0 0 blocks 8 8\n", "line 4"},
        {HEAD "0 0 lines 40 10 10\n", "line 4"},
        {HEAD "0 2 lines 40 10\n", "no head 2 in layer 0"},
        {HEAD "4 0 lines 40 10\n", "no head 0 in layer 4"},
        {HEAD "0 0 lines 40 10\n0 0 ends 4 10\n", "line 5: layer 0, head 0 is there twice"},
        {HEAD "0 0 lines 40 10\n", "no line for layer 0, head 1"},
    };
    open_heads("minference:table=some.txt");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        sac_error err = {0};
        memset(heads, 0, sizeof heads);
        assert_int_not_equal(table_hooks()->read(heads, &m.shape, bad[i].text, &err), SAC_OK);
        if (!strstr(err.msg, bad[i].word)) fail_msg("'%s' lacks '%s'", err.msg, bad[i].word);
    }
    make_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pattern_that_fits_is_learnt),
        cmocka_unit_test(a_table_gives_each_head_its_plan),
        cmocka_unit_test(an_a_shape_of_a_table_is_not_searched),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
