/* check_sample.c: the slot that plans prompt rows (ops/plans.h) as the CUDA library has it. What it
 * takes is held against the survey slot of the reference on the same sampled rows; its lists, bit
 * by bit, against those that plan.c makes of the same marks; audited masses against exact ones. */
#include "cuda_lib.h"

#include "base/mem.h"
#include "methods/plan.h"
#include "ops/survey.h"

#include <math.h>
#include <string.h>

enum { N_KV = 2, GROUP = 2, N_HEAD = N_KV * GROUP };
enum { POS = 600, END = 1167, TILE_TOK = OP_SAMPLE_TILE };
enum { N_WORD = 40, N_TOK_MAX = 800, N_RANGE_MAX = 40 };
enum { QUERIES_SMALL = 176 }; /* of heads of 256 channels, that the smallest GPU has room for */
#include "prompt_rows.h"

/* What came of a call beside its lists. */
static uint32_t got_mask[N_LIST][N_WORD];
static uint8_t got_weight[N_LIST][N_WORD * PAGE_TOK];
static float got_logw[N_LIST * N_TOK_MAX];

static struct op_sample make_op(void)
{
    return (struct op_sample){.rows = make_rows(),
                              .lists = make_lists(),
                              .n_query = 32,
                              .least = 0.004f,
                              .spread = 0.3f,
                              .seed = 5,
                              .n_recent = 1,
                              .most = 9,
                              .dense_from = END,
                              .audit = 1,
                              .audit_step = 1,
                              .audit_row = 37,
                              .n_word = N_WORD};
}

/* Runs it with memory of the device, which holds anything. false: it is refused, as more queries of
 * such heads than a block of this GPU has room for. */
static bool try_run(const struct op_sample *op)
{
    sac_error err;
    struct op_sample there = *op;
    put_call(&there.rows, &there.lists);
    there.lists.logw = put_any(sizeof got_logw);
    there.mask = put_any(sizeof got_mask);
    there.weight = put_any(sizeof got_weight);
    there.query = put_any((size_t)N_LIST * op->n_query * p.geom.head_dim * sizeof *there.query);
    there.start = put_any(N_LIST * op->n_query * sizeof *there.start);
    if (api->sample(device, &there) != SAC_OK) {
        assert_int_equal(api->wait(device, &err), SAC_ERR_UNSUPPORTED);
        assert_true(p.geom.head_dim == 256 && op->n_query > QUERIES_SMALL);
        return false;
    }
    get(got_mask, there.mask, sizeof got_mask);
    get(got_weight, there.weight, sizeof got_weight);
    get(got_logw, there.lists.logw, sizeof got_logw);
    get_lists(&there.lists);
    return true;
}

static void run(const struct op_sample *op)
{
    assert_true(try_run(op));
}

/* ---- What is taken ---- */

/* Rows of a tile, counted from POS. */
static struct attn_range rows_of(uint32_t tile)
{
    const uint32_t first = (TILE0 + tile) * TILE_TOK,
                   end = first + TILE_TOK < END ? first + TILE_TOK : END;
    return (struct attn_range){first > POS ? first - POS : 0, end - POS};
}

/* The reference's answer for one KV head; its queries and their own sums are made here. */
static void survey(struct op_survey *op, const struct op_sample *of, uint32_t kv_head)
{
    const uint32_t d = p.geom.head_dim, n_query = of->n_query;
    float *q = (float *)(uintptr_t)op->q, *lse = (float *)(uintptr_t)op->lse;
    for (uint32_t i = 0; i < N_TILE * GROUP * n_query; i++) {
        const uint32_t tile = i / n_query / GROUP, head = kv_head * GROUP + i / n_query % GROUP;
        const struct attn_range rows = rows_of(tile);
        const uint32_t end = (rows.end - rows.begin) * (i % n_query + 1) / n_query;
        const uint32_t row = rows.begin + (end ? end - 1 : 0);
        double sum = 0;
        for (uint32_t t = (TILE0 + tile) * TILE_TOK; t <= POS + row; t++)
            sum += exp(dot(query(row, head), key(kv_head, t)));
        lse[i] = (float)log(sum);
        for (uint32_t c = 0; c < d; c++) q[(size_t)i * d + c] = SCALE * query(row, head)[c];
    }
    op->least = of->least;
    op->spread = of->spread;
    op->seed = of->seed + kv_head;
    assert_true(ref.survey(NULL, op));
}

/* Few keys lie so near a border that rounding decides. */
static void assert_takes_alike(const struct op_sample *op, uint32_t kv_head)
{
    static uint32_t mask[N_TILE * GROUP][N_WORD], n_taken_ref[N_TILE * GROUP];
    static uint8_t weight[N_TILE * GROUP][N_WORD * PAGE_TOK];
    const uint32_t d = p.geom.head_dim,
                   n_page[N_TILE] = {TILE0 * TILE_PAGES, (TILE0 + 1) * TILE_PAGES};
    const uint32_t n_query = op->n_query;
    const size_t n = (size_t)N_TILE * GROUP * n_query;
    const size_t scratch = ops_survey_scratch(N_TILE, GROUP, n_query, d);
    const size_t room = ops_survey_room(n_query, d);
    struct op_survey want = {.ops = &ref,
                             .geom = &p.geom,
                             .frames = {.base = p.frames},
                             .page = p.frame[kv_head],
                             .n_page = n_page,
                             .n_set = N_TILE,
                             .n_part = GROUP,
                             .n_query = n_query,
                             .q = mem_alloc(n * d * sizeof(float)),
                             .lse = mem_alloc(n * sizeof(float)),
                             .mask = mask[0],
                             .n_word = N_WORD,
                             .weight = weight[0],
                             .n_taken = n_taken_ref,
                             .scratch = mem_map(scratch),
                             .room = mem_map(room)};
    survey(&want, op, kv_head);
    uint32_t n_all = 0, n_off = 0, n_far = 0;
    for (uint32_t i = 0; i < N_TILE * GROUP; i++) {
        const uint32_t list = i / GROUP * N_HEAD + kv_head * GROUP + i % GROUP;
        for (uint32_t t = 0; t < n_page[i / GROUP] * PAGE_TOK; t++) {
            const bool a = mask[i][t / 32] >> t % 32 & 1, b = got_mask[list][t / 32] >> t % 32 & 1;
            n_all += a;
            n_off += a != b;
            n_far += a && b && abs((int)weight[i][t] - (int)got_weight[list][t]) > 1;
        }
    }
    assert_true(n_all > 100 && n_off * 100 <= n_all * 3 && n_far == 0);
    mem_free((void *)(uintptr_t)want.q);
    mem_free((void *)(uintptr_t)want.lse);
    mem_unmap(want.scratch, scratch);
    mem_unmap(want.room, room);
}

/* ---- Lists ---- */

static struct {
    struct plan plan[N_KV];
    uint32_t mask[N_KV][N_TILE * GROUP][N_WORD];
    uint8_t weight[N_KV][N_TILE * GROUP][N_WORD * PAGE_TOK], dense[N_KV][N_TILE * GROUP];
    struct attn_range range[N_LIST * N_RANGE_MAX];
    uint32_t tok[N_LIST * N_TOK_MAX], range_ptr[N_LIST + 1], tok_ptr[N_LIST + 1];
    float logw[N_LIST * N_TOK_MAX];
    struct plan_lists lists;
} w;

/* Plans of the marks that came back, and what is read in any case. */
static void compile(const struct op_sample *op)
{
    struct plan_stats stats = {0};
    memset(&w, 0, sizeof w);
    for (uint32_t h = 0; h < N_KV; h++) {
        struct plan *plan = &w.plan[h];
        *plan = (struct plan){.pos = POS,
                              .end = END,
                              .tile_tok = TILE_TOK,
                              .tile0 = TILE0,
                              .n_tile = N_TILE,
                              .n_part = GROUP,
                              .n_word = N_WORD,
                              .mask = w.mask[h][0],
                              .weight = w.weight[h][0],
                              .list_dense = w.dense[h]};
        for (uint32_t i = 0; i < N_TILE * GROUP; i++) {
            const uint32_t list = i / GROUP * N_HEAD + h * GROUP + i % GROUP;
            const uint32_t n = plan_tile_tok(plan, i / GROUP);
            memcpy(w.mask[h][i], got_mask[list], sizeof w.mask[h][i]);
            memcpy(w.weight[h][i], got_weight[list], sizeof w.weight[h][i]);
            plan_range(plan, i / GROUP, i % GROUP, 0, PAGE_TOK);
            plan_range(plan, i / GROUP, i % GROUP, n - op->n_recent * PAGE_TOK, n);
        }
    }
    w.lists = (struct plan_lists){.tok_max = op->lists.tok_max,
                                  .range_max = op->lists.range_max,
                                  .range = w.range,
                                  .tok = w.tok,
                                  .tok_logw = w.logw,
                                  .range_ptr = w.range_ptr,
                                  .tok_ptr = w.tok_ptr};
    plan_compile(&w.lists, w.plan, N_KV, &stats, NULL);
}

static void assert_lists_alike(const struct op_sample *op)
{
    uint32_t n_over = 0;
    compile(op);
    for (uint32_t i = 0; i < N_LIST; i++) {
        const struct attn_list *made = &got.made[i];
        const struct attn_range *range = w.range + w.range_ptr[i];
        const uint32_t n_range = w.range_ptr[i + 1] - w.range_ptr[i],
                       n = (TILE0 + i / N_HEAD) * TILE_TOK;
        const uint32_t n_tok = w.tok_ptr[i + 1] - w.tok_ptr[i];
        uint32_t n_before = n_tok;
        for (uint32_t r = 0; r < n_range; r++)
            n_before += ((range[r].end < n / 32 ? range[r].end : n / 32) - range[r].begin) * 32;
        assert_int_equal(made->why, w.dense[i % N_HEAD / GROUP][i / N_HEAD * GROUP + i % GROUP]);
        n_over += made->why == PLAN_OVERFLOW;
        assert_int_equal(made->n_range, n_range);
        assert_int_equal(made->n_tok, n_tok);
        assert_int_equal(made->n_before, n_before);
        assert_memory_equal(got.range[i], range, n_range * sizeof *range);
        assert_memory_equal(got.tok + i * op->lists.tok_max, w.tok + w.tok_ptr[i],
                            n_tok * sizeof *w.tok);
        assert_memory_equal(got_logw + i * op->lists.tok_max, w.logw + w.tok_ptr[i],
                            n_tok * sizeof *w.logw);
    }
    assert_true((n_over > 0) == (op->lists.tok_max < N_TOK_MAX));
}

/* Of one row of the second tile. */
static void assert_masses_alike(const struct op_sample *op)
{
    const struct attn_range rows = rows_of(1);
    const uint32_t row = rows.begin + op->audit_row % (rows.end - rows.begin);
    for (uint32_t head = 0; head < N_HEAD; head++) {
        double all = 0, kept = 0;
        for (uint32_t t = 0; t <= POS + row; t++) {
            const double e = exp(dot(query(row, head), key(head / GROUP, t)));
            all += e;
            if (plan_has(&w.plan[head / GROUP], 1, head % GROUP, t)) kept += e;
        }
        assert_true(got.made[head].mass < 0);
        assert_true(fabs((double)got.made[N_HEAD + head].mass - kept / all) < 2e-3);
        assert_true(p.geom.head_dim > 64 || op->least < 0.001f || kept / all < 0.99);
    }
}

static void plans_are_the_references(void **state)
{
    static const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_Q8,  SAC_KV_BF16, SAC_KV_F16,
                                       SAC_KV_Q8,  SAC_KV_F16, SAC_KV_Q8,   SAC_KV_F16};
    static const uint32_t dim[] = {64, 64, 128, 128, 256, 128, 128, 128};
    /* Warpgroups take by parts of 64, four of which are a warpgroup's; of sets with more than one
     * part a block has no room for all. */
    static const uint32_t n_query[] = {64, 32, 64, 128, 256, 192, 64, 256};
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < 8; i++) {
        make_sequence(type[i], dim[i], &seed);
        struct op_sample op = make_op();
        op.n_query = n_query[i];
        if (i == 1) op.least = 0.0005f;    /* many keys */
        if (i > 1) op.least = 0.008f;      /* fewer */
        if (i == 2) op.lists.tok_max = 20; /* some lists have no room */
        if (!try_run(&op)) {
            op.n_query = QUERIES_SMALL;
            run(&op);
        }
        if (type[i] != SAC_KV_BF16) /* whose queries have 8 bits */
            for (uint32_t h = 0; h < N_KV; h++) assert_takes_alike(&op, h);
        assert_lists_alike(&op);
        if (type[i] != SAC_KV_BF16) assert_masses_alike(&op);
        free_sequence();
    }
}

/* cuda_host as a GPU that has no room for the queries of a tile's rows: it says so, and goes on. */
static void too_many_queries_are_refused(void **state)
{
    uint64_t seed = 6;
    close_library(state);
    setenv("SAC_HOST_SHARED", "99", 1);
    assert_int_equal(open_library(state), 0);
    make_sequence(SAC_KV_F16, 256, &seed);
    struct op_sample op = make_op();
    op.n_query = 256;
    assert_true(!try_run(&op) || getenv("SAC_CHECK_CUDA"));
    op.n_query = QUERIES_SMALL;
    run(&op);
    free_sequence();
    close_library(state);
    unsetenv("SAC_HOST_SHARED");
    assert_int_equal(open_library(state), 0);
}

/* ---- Lists that read everything ---- */

static void what_reads_everything_says_why(void **state)
{
    (void)state;
    uint64_t seed = 4;
    make_sequence(SAC_KV_F16, 64, &seed);
    struct op_sample op = make_op();
    op.rows.dense_to = 2 * TILE_TOK;
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) assert_reason(i, i < N_HEAD ? PLAN_SHORT : PLAN_SPARSE);
    op = make_op();
    op.dense_from = END - 1;
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) assert_reason(i, i < N_HEAD ? PLAN_SPARSE : PLAN_LAYER);
    op = make_op();
    op.most = 0.05;
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) assert_reason(i, PLAN_NO_GAIN);
    op = make_op();
    op.dense = true;
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) assert_reason(i, PLAN_LAYER);
    /* A bad key of one KV head, before the tiles, which no score tells. */
    for (uint32_t i = 0; i < (END - POS) * N_HEAD; i++) p.q[i * 64 + 5] = -1;
    break_key(0x7c00);
    op = make_op();
    run(&op);
    assert_broken_is_told();
    free_sequence();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_the_references),
        cmocka_unit_test(too_many_queries_are_refused),
        cmocka_unit_test(what_reads_everything_says_why),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
