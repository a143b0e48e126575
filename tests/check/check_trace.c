/* check_trace.c: the slot that chooses columns and diagonals for prompt rows (ops/plans.h) as the
 * CUDA library has it. Attention is summed here in f64; a line whose sum lies near that of the last
 * one taken may be on either side, and a list must hold what all lines above that border ask for,
 * and nothing that lines below it do. The greedy rule is followed line by line, with attention
 * rounded as it is there. */
#include "brief.h"
#include "cuda_lib.h"

#include "methods/lines.h"
#include "methods/plan.h"
#include "ops/survey.h"

#include <math.h>
#include <string.h>

enum { N_KV = 2, GROUP = 2, N_HEAD = N_KV * GROUP };
enum { POS = 900, END = 1255, TILE_TOK = 64 };
enum { N_ROW_MAX = 80, N_WORD = END / PAGE_TOK + 1, N_TOK_MAX = 700, N_RANGE_MAX = 30 };
enum { COLUMN, SLASH, KINDS };
#include "prompt_rows.h"

/* A call and what its host arrays hold. */
struct call {
    struct op_trace op;
    uint32_t choose[N_ROW_MAX], judge[N_ROW_MAX];
    struct op_trace_size size[OP_TRACE_SIZES * N_HEAD];
};

/* The last rows choose: so many that a block has not room for all. */
static void make_call(struct call *c)
{
    *c = (struct call){.op = {.rows = make_rows(),
                              .lists = make_lists(),
                              .choose = {.n = 70, .at = c->choose},
                              .judge = {.at = c->judge},
                              .n_size = 1,
                              .size = c->size,
                              .sink = 3,
                              .band = 5}};
    for (uint32_t i = 0; i < c->op.choose.n; i++) c->choose[i] = END - c->op.choose.n + i;
    for (uint32_t h = 0; h < N_HEAD; h++)
        c->size[h] = (struct op_trace_size){OP_TRACE_LINES, 30 + 5 * h, 12 + h};
}

/* Runs it with memory of the device, which holds anything. */
static void run(const struct call *c)
{
    struct op_trace there = c->op;
    put_call(&there.rows, &there.lists);
    there.room = put_any(op_trace_bytes(N_HEAD, N_ROW_MAX, END));
    assert_int_equal(api->trace(device, &there), SAC_OK);
    get_lists(&there.lists);
}

/* ---- The same here ---- */

/* Attention of one head's rows, and its sums along lines. */
static struct {
    double p[N_ROW_MAX][END], sum[KINDS][END];
} a;

static void attend(const struct call *c, const struct op_trace_rows *rows, uint32_t head)
{
    memset(&a, 0, sizeof a);
    for (uint32_t i = 0; i < rows->n; i++) {
        double all = 0;
        for (uint32_t t = 0; t <= rows->at[i]; t++) {
            double x = dot(query(rows->at[i] - POS, head), key(head / GROUP, t));
            if (c->op.softcap > 0) x = (double)c->op.softcap * tanh(x / (double)c->op.softcap);
            all += a.p[i][t] = exp(x);
        }
        for (uint32_t t = 0; t <= rows->at[i]; t++) {
            a.p[i][t] /= all;
            a.sum[COLUMN][t] += a.p[i][t];
            a.sum[SLASH][rows->at[i] - t] += a.p[i][t];
        }
    }
}

/* Lines that are taken for certain, and those that may be. */
struct borders {
    bool taken[2][KINDS][END];
    uint32_t n[2];
};

/* After attend by the rows that choose. Attention is rounded to 8 bits and sums are of many, so
 * they are known to a thousandth. */
static void draw_borders(struct borders *b, const struct call *c, const struct op_trace_size *size)
{
    static double rank[END], sorted[END];
    memset(b, 0, sizeof *b);
    for (int k = 0; k < KINDS; k++) {
        const uint32_t first = k == COLUMN ? c->op.sink : c->op.band;
        const uint32_t n = k == COLUMN ? size->n_column : size->n_slash;
        for (uint32_t x = 0; x < END; x++) rank[x] = x < first ? INFINITY : a.sum[k][x];
        memcpy(sorted, rank, sizeof rank);
        qsort(sorted, END, sizeof sorted[0], descending);
        const double last = sorted[n - 1];
        for (uint32_t x = 0; x < END; x++) {
            b->n[0] += b->taken[0][k][x] = isinf(last) ? x < n : rank[x] > last * 1.002;
            b->n[1] += b->taken[1][k][x] = isinf(last) ? x < n : rank[x] >= last * 0.998;
        }
    }
}

/* What lines hold of the attention at hand. */
static double held(const bool line[KINDS][END], const struct op_trace_rows *rows)
{
    double sum = 0;
    for (uint32_t i = 0; i < rows->n; i++)
        for (uint32_t t = 0; t <= rows->at[i]; t++)
            if (line[COLUMN][t] || line[SLASH][rows->at[i] - t]) sum += a.p[i][t];
    return sum / rows->n;
}

/* Words of marks of a tile, as methods make them. */
static void mark(uint32_t *mask, const bool line[KINDS][END], uint32_t tile)
{
    static uint32_t col[N_WORD], band[N_WORD + TILE_PAGES];
    struct lines lines = {.n_word = N_WORD, .tile_tok = TILE_TOK, .col = col, .band = band};
    lines_clear(&lines);
    for (uint32_t x = 0; x < END; x++) {
        if (line[COLUMN][x]) lines_take_col(&lines, x);
        if (line[SLASH][x]) lines_take_slash(&lines, x);
    }
    memset(mask, 0, N_WORD * sizeof *mask);
    lines_mark(mask, &lines, (TILE0 + tile) * TILE_TOK);
}

/* What a list names before its tile, as marks; every token once. */
static void read_list(uint32_t *mask, uint32_t list)
{
    const struct attn_list *made = &got.made[list];
    const uint32_t n_page = (TILE0 + list / N_HEAD) * TILE_PAGES;
    uint32_t n = 0;
    memset(mask, 0, N_WORD * sizeof *mask);
    assert_true(made->n_range >= 1 && made->n_range <= N_RANGE_MAX && made->n_tok <= N_TOK_MAX);
    for (uint32_t i = 0; i < made->n_range; i++) {
        const struct attn_range r = got.range[list][i];
        assert_true(r.begin < r.end && (i == 0 || got.range[list][i - 1].end < r.begin));
        for (uint32_t page = r.begin; page < r.end && page < n_page; page++) mask[page] = ~0u;
    }
    assert_int_equal(got.range[list][made->n_range - 1].end, n_page + TILE_PAGES);
    for (uint32_t i = 0; i < made->n_tok; i++) {
        const uint32_t t = got.tok[list * N_TOK_MAX + i];
        assert_true(t < n_page * PAGE_TOK && (i == 0 || got.tok[list * N_TOK_MAX + i - 1] < t));
        assert_false(mask[t / PAGE_TOK] >> t % PAGE_TOK & 1);
        mask[t / PAGE_TOK] |= 1u << t % PAGE_TOK;
    }
    for (uint32_t i = 0; i < n_page; i++) n += (uint32_t)__builtin_popcount(mask[i]);
    assert_int_equal(made->n_before, n);
}

static uint32_t whole_or(uint32_t word)
{
    return __builtin_popcount(word) >= 24 ? ~0u : word;
}

static void assert_lists_between(const struct borders *b, uint32_t head)
{
    uint32_t least[N_WORD], most[N_WORD], is[N_WORD];
    for (uint32_t tile = 0; tile < N_TILE; tile++) {
        const uint32_t list = tile * N_HEAD + head;
        assert_int_equal(got.made[list].why, PLAN_SPARSE);
        mark(least, b->taken[0], tile);
        mark(most, b->taken[1], tile);
        read_list(is, list);
        for (uint32_t i = 0; i < N_WORD; i++) {
            assert_int_equal(whole_or(least[i]) & ~is[i], 0);
            assert_int_equal(is[i] & ~whole_or(most[i]), 0);
        }
    }
}

/* The mass of a head's lines is told once, with its first tile. */
static void assert_mass(uint32_t head, const struct borders *b, const struct op_trace_rows *rows)
{
    const double mass = (double)got.made[head].mass;
    assert_true(mass > held(b->taken[0], rows) - 2e-3 && mass < held(b->taken[1], rows) + 2e-3);
    for (uint32_t tile = 1; tile < N_TILE; tile++)
        assert_true(got.made[tile * N_HEAD + head].mass < 0);
}

static void lines_are_the_best(void **state)
{
    static const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_Q8, SAC_KV_F16, SAC_KV_Q8};
    static const uint32_t dim[] = {64, 64, 128, 256};
    static struct borders b;
    uint64_t seed = 3;
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct call c;
        make_sequence(type[i], dim[i], &seed);
        make_call(&c);
        if (i == 1) c.op.softcap = 2;
        if (i == 2) c.op.band = 40; /* more than are taken */
        if (i == 2) c.op.choose.n = 16;
        run(&c);
        for (uint32_t head = 0; head < N_HEAD; head++) {
            attend(&c, &c.op.choose, head);
            draw_borders(&b, &c, &c.size[head]);
            const uint32_t n = c.size[head].n_column + c.size[head].n_slash;
            assert_true(b.n[0] <= n && b.n[1] >= n && b.n[1] - b.n[0] <= 6);
            assert_lists_between(&b, head);
            assert_mass(head, &b, &c.op.choose);
        }
        free_sequence();
    }
}

/* Of several patterns the one whose lines other rows look at most. */
static void patterns_are_judged(void **state)
{
    static struct borders b[3];
    uint64_t seed = 6;
    struct call c;
    (void)state;
    make_sequence(SAC_KV_F16, 64, &seed);
    make_call(&c);
    c.op.n_size = 3;
    c.op.judge.n = 33;
    for (uint32_t i = 0; i < c.op.judge.n; i++) c.judge[i] = POS + (END - POS) * (i + 1) / 33 - 1;
    for (uint32_t i = 0; i < 3 * N_HEAD; i++)
        c.size[i] = (struct op_trace_size){OP_TRACE_LINES, i % 3 == 1 ? 60 : 7, i % 3 ? 10 : 50};
    run(&c);
    for (uint32_t head = 0; head < N_HEAD; head++) {
        uint32_t best = 0;
        double mass[3];
        attend(&c, &c.op.choose, head);
        for (uint32_t i = 0; i < 3; i++) draw_borders(&b[i], &c, &c.size[i * N_HEAD + head]);
        attend(&c, &c.op.judge, head);
        for (uint32_t i = 0; i < 3; i++) {
            mass[i] = held(b[i].taken[1], &c.op.judge);
            if (mass[i] > mass[best]) best = i;
        }
        assert_lists_between(&b[best], head);
        assert_mass(head, &b[best], &c.op.judge);
    }
    free_sequence();
}

static void ends_are_those_of_plans(void **state)
{
    uint64_t seed = 8;
    struct call c;
    uint32_t mask[N_WORD], is[N_WORD];
    uint8_t dense[N_TILE] = {0};
    (void)state;
    make_sequence(SAC_KV_F16, 64, &seed);
    make_call(&c);
    c.size[2] = (struct op_trace_size){OP_TRACE_ENDS, 37, 200};
    c.size[3] = (struct op_trace_size){OP_TRACE_ENDS, 5, 1};
    run(&c);
    for (uint32_t i = 2 * N_TILE; i < 4 * N_TILE; i++) {
        struct plan plan = {.pos = POS,
                            .end = END,
                            .tile_tok = TILE_TOK,
                            .tile0 = TILE0,
                            .n_tile = 1,
                            .n_part = 1,
                            .n_word = N_WORD,
                            .mask = mask,
                            .list_dense = dense};
        const uint32_t tile = i % N_TILE, head = i / N_TILE;
        plan.tile0 += tile;
        memset(mask, 0, sizeof mask);
        plan_ends(&plan, 0, 0, c.size[head].n_column, c.size[head].n_slash);
        read_list(is, tile * N_HEAD + head);
        for (uint32_t w = 0; w < N_WORD; w++) assert_int_equal(is[w], whole_or(mask[w]));
        assert_true(got.made[tile * N_HEAD + head].mass < 0);
    }
    free_sequence();
}

/* ---- Lines taken in rounds ---- */

static struct {
    bool taken[KINDS][END];
    double left[KINDS][END], key[KINDS][END], covered;
    uint64_t n_cell;
} greedy;

static uint32_t cells_of(uint32_t line)
{
    return END - (line > POS ? line : POS);
}

/* Cells of a line in the run's rows that taken lines of the other kind have. */
static uint32_t crossings_of(int kind, uint32_t line)
{
    uint32_t n = 0;
    for (uint32_t row = line > POS ? line : POS; row < END; row++)
        n += greedy.taken[!kind][row - line];
    return n;
}

static double make_keys(int kind)
{
    double best = 0;
    for (uint32_t x = 0; x < END; x++) {
        const uint32_t n = cells_of(x) - crossings_of(kind, x);
        greedy.key[kind][x] = greedy.taken[kind][x] ? 0 : greedy.left[kind][x] / (n ? n : 1);
        best = fmax(best, greedy.key[kind][x]);
    }
    return best;
}

/* Takes lines that crossings do not tell apart: those of one kind. */
static void take(const struct op_trace_rows *rows, int kind, uint32_t x)
{
    greedy.covered += greedy.left[kind][x];
    greedy.n_cell += cells_of(x) - crossings_of(kind, x);
    greedy.taken[kind][x] = true;
    greedy.key[kind][x] = 0;
    for (uint32_t i = 0; i < rows->n; i++)
        if (rows->at[i] >= x)
            greedy.left[!kind][rows->at[i] - x] -= a.p[i][kind == SLASH ? rows->at[i] - x : x];
}

static double take_round(const struct op_trace_rows *rows, int kind, double least, double goal)
{
    double best = 0;
    while (greedy.covered < goal) {
        uint32_t x = 0;
        for (uint32_t i = 1; i < END; i++)
            if (greedy.key[kind][i] > greedy.key[kind][x]) x = i;
        if (greedy.key[kind][x] < least) break;
        take(rows, kind, x);
    }
    for (uint32_t x = 0; x < END; x++) best = fmax(best, greedy.key[kind][x]);
    return best;
}

/* Returns the rounds that it took, 0: it has come to no end; heads [head, head + n_head) together,
 * after which `a` is their sum. */
static uint32_t run_greedy(const struct call *c, uint32_t head, uint32_t n_head)
{
    static double sum[N_ROW_MAX][END];
    const struct op_trace_rows *rows = &c->op.choose;
    double total = 0, column;
    uint32_t n_round = 0;
    memset(sum, 0, sizeof sum);
    memset(&greedy, 0, sizeof greedy);
    for (uint32_t h = head; h < head + n_head; h++) {
        attend(c, rows, h);
        for (uint32_t i = 0; i < rows->n; i++)
            for (uint32_t t = 0; t < END; t++)
                sum[i][t] += (double)bf16_to_f32(f32_to_bf16((float)a.p[i][t]));
    }
    for (uint32_t i = 0; i < rows->n; i++)
        for (uint32_t t = 0; t <= rows->at[i]; t++) {
            total += a.p[i][t] = (double)bf16_to_f32(f32_to_bf16((float)sum[i][t]));
            greedy.left[COLUMN][t] += a.p[i][t];
            greedy.left[SLASH][rows->at[i] - t] += a.p[i][t];
        }
    const double goal = c->op.mass * total;
    for (uint32_t x = 0; x < c->op.band; x++) take(rows, SLASH, x);
    for (uint32_t x = 0; x < c->op.sink; x++) take(rows, COLUMN, x);
    for (column = make_keys(COLUMN); greedy.covered < goal; n_round++) {
        const double least = (double)c->op.beta * fmax(column, make_keys(SLASH));
        if (!(least > 0)) return 0;
        take_round(rows, SLASH, least, goal);
        make_keys(COLUMN);
        column = take_round(rows, COLUMN, least, goal);
    }
    greedy.covered /= total;
    return n_round;
}

/* Rows from all over the run. */
static void make_greedy_call(struct call *c, bool by_group)
{
    make_call(c);
    c->op.rule = OP_TRACE_GREEDY;
    c->op.mass = is_brief() ? 0.25 : 0.4;
    c->op.beta = is_brief() ? 0.6f : 0.8f;
    c->op.most = (double)END * (END - POS);
    c->op.by_group = by_group;
    for (uint32_t i = 0; i < c->op.choose.n; i++) c->choose[i] = POS + 7 + i * 5;
}

/* Runs it and follows all heads; returns the fewest rounds that any took. */
static uint32_t assert_lines_of_rounds(const struct call *c)
{
    const uint32_t n_head = c->op.by_group ? GROUP : 1;
    uint32_t mask[N_WORD], is[N_WORD], n_round = 0, least = ~0u;
    run(c);
    for (uint32_t list = 0; list < N_LIST; list++) {
        const uint32_t tile = list % N_TILE, head = list / N_TILE, at = tile * N_HEAD + head;
        if (tile == 0) n_round = run_greedy(c, head / n_head * n_head, n_head);
        least = n_round < least ? n_round : least;
        assert_int_equal(got.made[at].why, PLAN_SPARSE);
        mark(mask, (const bool(*)[END])greedy.taken, tile);
        read_list(is, at);
        for (uint32_t w = 0; w < N_WORD; w++) assert_int_equal(is[w], whole_or(mask[w]));
        if (tile == 0)
            assert_true(fabs((double)got.made[at].mass - greedy.covered) < 1e-3);
        else
            assert_true(got.made[at].mass < 0);
    }
    return least;
}

static void lines_are_taken_in_rounds(void **state)
{
    uint64_t seed = 21;
    (void)state;
    for (uint32_t by_group = is_brief(); by_group < 2; by_group++) {
        struct call c;
        make_sequence(by_group ? SAC_KV_F16 : SAC_KV_Q8, 64, &seed);
        for (uint32_t i = 0; i < (END - POS) * N_HEAD * 64; i++) /* rounded as it is there */
            p.q[i] = f16_to_f32(f32_to_f16(2 * p.q[i]));
        make_greedy_call(&c, by_group);
        assert_true(assert_lines_of_rounds(&c) > (is_brief() ? 1 : 3));
        if (is_brief()) {
            free_sequence();
            continue;
        }
        /* One cell less, and a head has no gain. */
        run_greedy(&c, 0, by_group ? GROUP : 1);
        c.op.most = (double)(greedy.n_cell - 1);
        run(&c);
        assert_int_equal(got.made[0].why, PLAN_NO_GAIN);
        assert_true(fabs((double)got.made[0].mass - 1) < 1e-6);
        c.op.most = (double)greedy.n_cell;
        run(&c);
        assert_int_equal(got.made[0].why, PLAN_SPARSE);
        /* Many rounds of few lines. */
        c.op.most = (double)END * (END - POS);
        c.op.beta = 0.985f;
        assert_true(assert_lines_of_rounds(&c) > 24);
        free_sequence();
    }
}

/* Rows that look at all keys alike: lines of one length hold the same, and the first are taken. */
static void first_ones_of_equal_lines_are_taken(void **state)
{
    uint64_t seed = 22;
    struct call c;
    (void)state;
    if (is_brief()) return;
    make_sequence(SAC_KV_F16, 64, &seed);
    memset(p.q, 0, (END - POS) * N_HEAD * 64 * sizeof *p.q);
    make_greedy_call(&c, false);
    assert_true(assert_lines_of_rounds(&c) > 0);
    free_sequence();
}

/* ---- Lists that read everything ---- */

static void what_reads_everything_says_why(void **state)
{
    uint64_t seed = 4;
    struct call c;
    (void)state;
    make_sequence(SAC_KV_F16, 64, &seed);
    make_call(&c);
    c.op.rows.dense_to = (TILE0 + 2) * TILE_TOK;
    c.size[1].family = OP_TRACE_ALL;
    run(&c);
    for (uint32_t i = 0; i < N_LIST; i++)
        assert_reason(i, i < 2 * N_HEAD || i % N_HEAD == 1 ? PLAN_SHORT : PLAN_SPARSE);
    make_call(&c);
    c.op.lists.tok_max = 3;
    run(&c);
    for (uint32_t i = 0; i < N_LIST; i++) assert_reason(i, PLAN_OVERFLOW);
    make_call(&c);
    c.op.why = PLAN_LAYER;
    run(&c);
    for (uint32_t i = 0; i < N_LIST; i++) assert_reason(i, PLAN_LAYER);
    break_key(0x7e00);
    make_call(&c);
    run(&c);
    assert_broken_is_told();
    free_sequence();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_the_best),
        cmocka_unit_test(patterns_are_judged),
        cmocka_unit_test(ends_are_those_of_plans),
        cmocka_unit_test(lines_are_taken_in_rounds),
        cmocka_unit_test(first_ones_of_equal_lines_are_taken),
        cmocka_unit_test(what_reads_everything_says_why),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
