/* check_pooled.c: the slot that takes whole blocks for prompt rows, by columns and diagonals of the
 * last rows' attention or by pooled scores (ops/plans.h, OP_TRACE_POOLED), as the CUDA library has
 * it. All is computed here in f64; what lies near a border may be on either side of it, and a list
 * must hold what is certain, and nothing beyond what may be. */
#include "brief.h"
#include "cuda_lib.h"

#include "methods/plan.h"

#include <math.h>
#include <string.h>

enum { N_KV = 2, GROUP = 2, N_HEAD = N_KV * GROUP };
enum { POS = 1093, END = 1510, TILE_TOK = OP_TRACE_BLOCK, N_ROW = TILE_TOK };
enum { N_RANGE_MAX = END / TILE_TOK + 1, N_TOK_MAX = 1 };
enum { COLUMN, SLASH, KINDS };
#include "prompt_rows.h"

#define WITHIN 3e-3 /* sums are of attention in 8 bits */

static uint32_t observed[N_ROW];

static struct op_trace make_op(float tau, double mass)
{
    for (uint32_t i = 0; i < N_ROW; i++) observed[i] = END - N_ROW + i;
    return (struct op_trace){.rows = make_rows(),
                             .lists = make_lists(),
                             .rule = OP_TRACE_POOLED,
                             .choose = {.n = N_ROW, .at = observed},
                             .mass = mass,
                             .tau = tau,
                             .least = 1};
}

/* Runs it with memory of the device, which holds anything. */
static void run(const struct op_trace *op)
{
    struct op_trace there = *op;
    put_call(&there.rows, &there.lists);
    there.room = put_any(op_trace_bytes(N_HEAD, N_ROW, END));
    there.pool = put_any(op_trace_pool_bytes(&p.geom, N_HEAD, END - POS, END));
    assert_int_equal(api->trace(device, &there), SAC_OK);
    get_lists(&there.lists);
}

/* ---- The same here ---- */

/* Attention of a head's observed rows along lines, and by blocks. */
static struct {
    double line[KINDS][END], block[KINDS][N_BLOCK];
} a;

static void attend(uint32_t head)
{
    static double x[END];
    memset(&a, 0, sizeof a);
    for (uint32_t i = 0; i < N_ROW; i++) {
        double all = 0;
        for (uint32_t t = 0; t <= observed[i]; t++)
            all += x[t] = exp(dot(query(observed[i] - POS, head), key(head / GROUP, t)));
        for (uint32_t t = 0; t <= observed[i]; t++) {
            a.line[COLUMN][t] += x[t] / all / N_ROW;
            a.line[SLASH][observed[i] - t] += x[t] / all / N_ROW;
        }
    }
    for (int k = 0; k < KINDS; k++)
        for (uint32_t t = 0; t < END; t++) a.block[k][t / TILE_TOK] += a.line[k][t];
}

/* Softmax over the first n blocks of the mean of rows [row0, row1). */
static void pool(double share[N_BLOCK], uint32_t head, uint32_t row0, uint32_t row1, uint32_t n)
{
    double all = 0;
    memset(share, 0, N_BLOCK * sizeof *share);
    for (uint32_t b = 0; b < n; b++) {
        const uint32_t end = (b + 1) * TILE_TOK < END ? (b + 1) * TILE_TOK : END;
        double sum = 0;
        for (uint32_t c = 0; c < p.geom.head_dim; c++) {
            double q = 0, k = 0;
            for (uint32_t r = row0; r < row1; r++) q += (double)query(r, head)[c];
            for (uint32_t t = b * TILE_TOK; t < end; t++) k += (double)key(head / GROUP, t)[c];
            sum += q / (row1 - row0) * k / (end - b * TILE_TOK);
        }
        all += share[b] = exp(sum * (double)SCALE);
    }
    for (uint32_t b = 0; b < n; b++) share[b] /= all;
}

static double distance(uint32_t head)
{
    double share[N_BLOCK], sum = 0;
    pool(share, head, END - POS - N_ROW, END - POS, N_BLOCK);
    for (uint32_t b = 0; b < N_BLOCK; b++) {
        const double x = share[b], y = a.block[COLUMN][b], m = (x + y) / 2;
        sum += (x * log(x / m) + y * log(y / m)) / 2;
    }
    return sqrt(fmax(sum, 0));
}

/* Of the best of some values: what is taken for certain ([0]) and what may be ([1]). */
static void count_share(uint32_t n_best[2], const double *value, uint32_t n, double mass)
{
    static double sorted[N_BLOCK * N_TILE + END];
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) total += sorted[i] = value[i];
    qsort(sorted, n, sizeof sorted[0], descending);
    n_best[0] = n_best[1] = 1;
    for (uint32_t i = 0; i < n; i++) {
        sum += sorted[i];
        if (sum < mass * total * (1 - WITHIN)) n_best[0] = i + 2;
        if (sum < mass * total * (1 + WITHIN)) n_best[1] = i + 2 < n ? i + 2 : n;
    }
}

static void draw_border(bool *in[2], const double *value, uint32_t n, const uint32_t n_best[2])
{
    static double sorted[N_BLOCK * N_TILE];
    memcpy(sorted, value, n * sizeof *value);
    qsort(sorted, n, sizeof sorted[0], descending);
    const double last = sorted[(n_best[1] < n ? n_best[1] : n) - 1];
    const double next = n_best[0] < n ? sorted[n_best[0]] : 0;
    for (uint32_t i = 0; i < n; i++) {
        in[0][i] = value[i] > next * (1 + WITHIN);
        in[1][i] = value[i] > last * (1 - WITHIN);
    }
}

struct borders {
    bool line[2][KINDS][N_BLOCK], share[2][N_TILE][N_BLOCK];
};

/* Every list of a head holds what it must; returns how many blocks are not read. */
static uint32_t assert_lists_between(const struct borders *b, uint32_t head)
{
    bool is_read[N_BLOCK];
    uint32_t n_left = 0;
    for (uint32_t tile = 0; tile < N_TILE; tile++) {
        const uint32_t own = TILE0 + tile;
        assert_int_equal(got.made[tile * N_HEAD + head].why, PLAN_SPARSE);
        assert_true(got.made[tile * N_HEAD + head].mass < 0);
        read_blocks(is_read, tile * N_HEAD + head);
        for (uint32_t i = 0; i <= own; i++) {
            bool asked[2];
            for (int may = 0; may < 2; may++)
                asked[may] = i == 0 || i == own || b->line[may][COLUMN][i] ||
                             b->line[may][SLASH][own - i] || b->share[may][tile][i];
            assert_true(is_read[i] ? asked[1] : !asked[0]);
            n_left += !is_read[i];
        }
    }
    return n_left;
}

static void draw_lines(struct borders *b, const uint32_t n_best[KINDS][2])
{
    for (int k = 0; k < KINDS; k++) {
        bool *in[2] = {b->line[0][k], b->line[1][k]};
        draw_border(in, a.block[k], N_BLOCK, n_best[k]);
    }
}

static void lines_say_how_many_blocks(void **state)
{
    static const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_Q8, SAC_KV_F16};
    static const uint32_t dim[] = {64, 128, 256};
    uint64_t seed = 11;
    uint32_t n_left = 0;
    (void)state;
    for (int i = 0; i < 3; i++) {
        make_sequence(type[i], dim[i], &seed);
        const struct op_trace op = make_op(0, i == 1 ? 0.3 : 0.45);
        run(&op);
        for (uint32_t head = 0; head < N_HEAD; head++) {
            static struct borders b;
            uint32_t n[KINDS][2];
            memset(&b, 0, sizeof b);
            attend(head);
            for (int k = 0; k < KINDS; k++) {
                count_share(n[k], a.line[k], END, op.mass);
                for (int may = 0; may < 2; may++) n[k][may] = n[k][may] / TILE_TOK + 1;
            }
            draw_lines(&b, (const uint32_t(*)[2])n);
            n_left += assert_lists_between(&b, head);
        }
        free_sequence();
    }
    assert_true(n_left > 3 * N_LIST);
}

static void pooled_scores_choose_for_each_tile(void **state)
{
    uint64_t seed = 12;
    uint32_t n_left = 0;
    (void)state;
    for (int i = 0; i < 2; i++) {
        static const uint32_t one[KINDS][2] = {{1, 1}, {1, 1}};
        make_sequence(i ? SAC_KV_BF16 : SAC_KV_Q8, 64, &seed);
        const struct op_trace op = make_op(2, 0.4);
        run(&op);
        for (uint32_t head = 0; head < N_HEAD; head++) {
            static struct borders b;
            double share[N_TILE][N_BLOCK];
            uint32_t n[2];
            attend(head);
            draw_lines(&b, one);
            for (uint32_t t = 0; t < N_TILE; t++) {
                const uint32_t first = (TILE0 + t) * TILE_TOK, end = first + TILE_TOK;
                pool(share[t], head, first > POS ? first - POS : 0, (end < END ? end : END) - POS,
                     TILE0 + t + 1);
            }
            count_share(n, share[0], N_TILE * N_BLOCK, op.mass);
            bool *in[2] = {b.share[0][0], b.share[1][0]};
            draw_border(in, share[0], N_TILE * N_BLOCK, n);
            n_left += assert_lists_between(&b, head);
        }
        free_sequence();
    }
    assert_true(n_left > 2 * N_LIST);
}

/* The observed rows of a head look one way, and those before them do not. */
static void turn_observed(uint64_t *seed)
{
    const uint32_t d = p.geom.head_dim;
    float way[N_HEAD * 64];
    assert_int_equal(d, 64);
    for (uint32_t c = 0; c < N_HEAD * d; c++) way[c] = 3 * random_unit(seed);
    for (uint32_t r = END - POS - N_ROW; r < END - POS; r++)
        for (uint32_t c = 0; c < N_HEAD * d; c++) p.q[(size_t)r * N_HEAD * d + c] += way[c];
}

/* A head goes by lines where tau is a little less than its distance, and by pooled scores, as with
 * tau = 2, where it is a little more. */
static void tau_divides_heads(void **state)
{
    static struct attn_range by[2][N_LIST][N_RANGE_MAX];
    uint64_t seed = 13;
    (void)state;
    make_sequence(SAC_KV_F16, 64, &seed);
    turn_observed(&seed);
    struct op_trace op = make_op(0, 0.3);
    for (uint32_t is_pooled = 0; is_pooled < 2; is_pooled++) {
        op.tau = is_pooled ? 2 : 0;
        run(&op);
        memcpy(by[is_pooled], got.range, sizeof got.range);
    }
    assert_memory_not_equal(by[0], by[1], sizeof by[0]);
    for (uint32_t head = 0; head < N_HEAD; head += brief_by(N_HEAD)) {
        attend(head);
        const double far = distance(head);
        for (uint32_t is_pooled = 0; is_pooled < 2; is_pooled++) {
            op.tau = (float)(far * (is_pooled ? 1.02 : 0.98));
            run(&op);
            for (uint32_t i = head; i < N_LIST; i += N_HEAD)
                assert_memory_equal(got.range[i], by[is_pooled][i], sizeof got.range[i]);
        }
    }
    free_sequence();
}

static void what_reads_everything_says_why(void **state)
{
    uint64_t seed = 4;
    (void)state;
    make_sequence(SAC_KV_F16, 64, &seed);
    struct op_trace op = make_op(0.1f, 0.3);
    op.rows.dense_to = (TILE0 + 1) * TILE_TOK;
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) assert_reason(i, i < N_HEAD ? PLAN_SHORT : PLAN_SPARSE);
    op = make_op(0, 0); /* no share at all: one block of columns, and one of diagonals */
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) {
        const uint32_t own = TILE0 + i / N_HEAD;
        assert_int_equal(got.made[i].why, PLAN_SPARSE);
        assert_true(got.made[i].n_before <= 3 * TILE_TOK && own > 3);
    }
    op.why = PLAN_LAYER;
    run(&op);
    for (uint32_t i = 0; i < N_LIST; i++) assert_reason(i, PLAN_LAYER);
    op = make_op(0.1f, 0.3);
    break_key(0x7e00);
    run(&op);
    assert_broken_is_told();
    free_sequence();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_say_how_many_blocks),
        cmocka_unit_test(pooled_scores_choose_for_each_tile),
        cmocka_unit_test(tau_divides_heads),
        cmocka_unit_test(what_reads_everything_says_why),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
