/* test_loopserve.c: the greedy choice of lines against its definition cell by cell, against taking
 * one line at a time, and against the bounds that the paper prints. */
#include "methods/prefill/loopserve.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { N = 1500, ROWS = 64 };

static uint64_t seed;
static struct ops ops;

static double unit(void) /* 0 to 1 */
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) * 0x1p-53;
}

static uint32_t draw(uint32_t n)
{
    return (uint32_t)(unit() * n);
}

struct problem {
    float *p; /* [ROWS, N] what bf16 holds */
    uint16_t *cell;
    uint32_t at[ROWS];
    uint8_t *memory;
    struct greedy g;
};

/* Attention of sampled rows, from weights of a few lines, of the diagonal and of noise. */
static void fill_attention(struct problem *x, uint32_t n_line, double noise)
{
    static double slash[N], column[N];
    memset(slash, 0, sizeof slash);
    memset(column, 0, sizeof column);
    for (uint32_t i = 0; i < n_line; i++) {
        slash[draw(N)] += unit();
        column[draw(N)] += unit();
    }
    slash[0] += 1;
    column[0] += 1;
    for (uint32_t i = 0; i < ROWS; i++) {
        double sum = 0;
        float *row = x->p + (size_t)i * N;
        for (uint32_t c = 0; c <= x->at[i]; c++) {
            row[c] = (float)(slash[x->at[i] - c] + column[c] + noise * unit() / (x->at[i] + 1));
            sum += (double)row[c];
        }
        for (uint32_t c = 0; c <= x->at[i]; c++) row[c] = (float)((double)row[c] / sum);
    }
}

static void problem_open(struct problem *x, uint32_t pos0, uint32_t n_line, double noise)
{
    struct arena a = {0};
    x->p = calloc((size_t)ROWS * N, sizeof(float));
    x->cell = calloc(ROWS * (N + ROWS_PANEL), sizeof *x->cell);
    for (uint32_t i = 0; i < ROWS; i++) {
        const uint32_t first = pos0 ? pos0 : ROWS, span = N - first;
        x->at[i] = first + span * i / ROWS + draw(span / ROWS);
    }
    x->at[ROWS - 1] = N - 1;
    fill_attention(x, n_line, noise);
    x->g = (struct greedy){
        .ops = &ops, .n = N, .pos0 = pos0, .n_row = ROWS, .at = x->at, .p = x->cell};
    greedy_make(&x->g, N, &a);
    a = (struct arena){.base = aligned_alloc(64, a.used), .capacity = a.used};
    x->memory = a.base;
    greedy_make(&x->g, N, &a);
}

static void problem_close(struct problem *x)
{
    free(x->p);
    free(x->cell);
    free(x->memory);
}

static void begin(struct problem *x)
{
    struct greedy *g = &x->g;
    greedy_clear(g);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t c = 0; c <= x->at[i]; c++) {
            uint16_t *cell = &x->cell[rows_cell(ROWS, i, c)];
            *cell = f32_to_bf16(x->p[(size_t)i * N + c]);
            x->p[(size_t)i * N + c] = bf16_to_f32(*cell);
        }
    for (uint32_t i = 0; i < ROWS; i++)
        lines_add(g->left[COLUMN], g->key[SLASH], N, x->p + (size_t)i * N, x->at[i]);
    greedy_begin(g);
}

static bool run_from(struct problem *x, double mass, uint32_t forced, const struct kept *kept)
{
    x->g.goal = mass * ROWS;
    begin(x);
    take_first(&x->g, SLASH, forced, kept);
    take_first(&x->g, COLUMN, forced, kept);
    return greedy_run(&x->g, 0.7f);
}

static bool run(struct problem *x, double mass, uint32_t forced)
{
    return run_from(x, mass, forced, &(struct kept){0});
}

/* Attention of the sample in the chosen lines, cell by cell, and cells of all rows in them. */
static double covered_by_cells(const struct problem *x)
{
    double sum = 0;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t c = 0; c <= x->at[i]; c++)
            if (x->g.taken[COLUMN][c] || x->g.taken[SLASH][x->at[i] - c])
                sum += (double)x->p[(size_t)i * N + c];
    return sum;
}

static uint64_t area_by_cells(const struct problem *x)
{
    uint64_t n = 0;
    for (uint32_t r = x->g.pos0; r < N; r++)
        for (uint32_t c = 0; c <= r; c++) n += x->g.taken[COLUMN][c] || x->g.taken[SLASH][r - c];
    return n;
}

static void it_counts_every_cell_once(void **state)
{
    (void)state;
    for (uint64_t k = 0; k < 12; k++) {
        static const double mass[] = {0.5, 0.8, 0.955, 0.99};
        struct problem x;
        seed = k + 1;
        problem_open(&x, k % 3 == 0 ? 0 : k % 3 == 1 ? 1200 : N - ROWS - 1, 40, 0.3);
        assert_true(run(&x, mass[k % 4], k % 2 ? 16 : 0));
        assert_true(x.g.covered >= mass[k % 4] * ROWS);
        assert_true(fabs(covered_by_cells(&x) - x.g.covered) < 1e-4 * ROWS);
        assert_true(area_by_cells(&x) == x.g.n_cell);
        for (uint32_t i = 0; i < N; i++)
            for (int j = 0; j < KINDS; j++) assert_true(x.g.taken[j][i] || x.g.left[j][i] > -1e-4f);
        problem_close(&x);
    }
}

static void take_one(struct greedy *g, enum kind k, uint32_t line)
{
    take(g, k, line);
    lower(g, k, &line, 1);
}

/* One line at a time, the best by key; the rounds should be nearly as good. */
static uint64_t strict_area(struct problem *x, double mass)
{
    struct greedy *g = &x->g;
    g->goal = mass * ROWS;
    begin(x);
    while (g->covered < g->goal) {
        uint32_t best[KINDS] = {0, 0};
        for (int k = 0; k < KINDS; k++) {
            make_keys(g, (enum kind)k);
            for (uint32_t i = 0; i < N; i++)
                if (g->key[k][i] > g->key[k][best[k]]) best[k] = i;
        }
        take_one(g, g->key[SLASH][best[SLASH]] >= g->key[COLUMN][best[COLUMN]] ? SLASH : COLUMN,
                 best[g->key[SLASH][best[SLASH]] >= g->key[COLUMN][best[COLUMN]] ? SLASH : COLUMN]);
    }
    return area_by_cells(x);
}

static int by_weight(const void *a, const void *b)
{
    return by_key(a, b);
}

static float largest_entry(const struct problem *x, enum kind k, uint32_t line)
{
    float most = 0;
    for (uint32_t i = 0; i < ROWS; i++)
        if (x->at[i] >= line)
            most = fmaxf(most, x->p[(size_t)i * N + (k == SLASH ? x->at[i] - line : line)]);
    return most;
}

/* Algorithm 2 as printed, but with gains of at least 0 and an exact test of the end. */
static uint64_t guarded_area(struct problem *x, double mass)
{
    static struct ranked order[KINDS][N];
    struct greedy *g = &x->g;
    float overlap[KINDS] = {0, 0};
    uint32_t n[KINDS] = {0, 0};
    g->goal = mass * ROWS;
    begin(x);
    for (int k = 0; k < KINDS; k++) {
        for (uint32_t i = 0; i < N; i++) order[k][i] = (struct ranked){g->left[k][i], i};
        qsort(order[k], N, sizeof order[k][0], by_weight);
    }
    while (g->covered < g->goal) {
        float gain[KINDS];
        for (int k = 0; k < KINDS; k++) {
            const struct ranked *next = &order[k][n[k]];
            const float length = (float)cells(g, next->line) - (float)n[!k];
            gain[k] = n[k] < N ? fmaxf(next->key - overlap[!k], 0) / fmaxf(length, 1) : -1;
        }
        const enum kind k = gain[SLASH] >= gain[COLUMN] ? SLASH : COLUMN;
        overlap[k] += largest_entry(x, k, order[k][n[k]].line);
        take_one(g, k, order[k][n[k]++].line);
    }
    return area_by_cells(x);
}

static void rounds_are_nearly_as_good_as_single_steps(void **state)
{
    (void)state;
    for (uint64_t k = 0; k < 4; k++) {
        struct problem x;
        seed = 100 + k;
        problem_open(&x, k % 2 ? 1200 : 0, 40, 0.05);
        assert_true(run(&x, 0.9, 0));
        const double rounds = (double)area_by_cells(&x);
        const double strict = (double)strict_area(&x, 0.9), guarded = (double)guarded_area(&x, 0.9);
        assert_true(rounds <= 1.05 * strict);
        assert_true(rounds < guarded);
        problem_close(&x);
    }
}

static void planted_lines_are_found(void **state)
{
    (void)state;
    struct problem x;
    seed = 7;
    problem_open(&x, 1200, 0, 0);
    static const uint32_t slash[] = {0, 3, 500}, column[] = {0, 77, 800};
    memset(x.p, 0, (size_t)ROWS * N * sizeof(float));
    for (uint32_t i = 0; i < ROWS; i++) {
        float *row = x.p + (size_t)i * N;
        for (uint32_t c = 0; c <= x.at[i]; c++) row[c] = 0.01f / (float)(x.at[i] + 1);
        for (int j = 0; j < 3; j++) {
            row[column[j]] += 0.165f;
            row[x.at[i] - slash[j]] += 0.165f;
        }
    }
    assert_true(run(&x, 0.985, 0));
    /* Lines that end in the corner have few cells, and one of them is in the last row: they may be
     * taken for what another line is worth. */
    for (uint32_t i = 0; i < N - 10; i++) {
        assert_int_equal(x.g.taken[SLASH][i], i == 0 || i == 3 || i == 500);
        assert_int_equal(x.g.taken[COLUMN][i], i == 0 || i == 77 || i == 800);
    }
    problem_close(&x);
}

/* A second turn with the lines of the first takes them, counts them once and adds what it needs. */
static void kept_lines_are_taken_first(void **state)
{
    (void)state;
    static uint32_t bits[KINDS][(N + 31) / 32];
    const struct kept kept = {{bits[SLASH], bits[COLUMN]}, (N + 31) / 32};
    struct problem x;
    seed = 12;
    problem_open(&x, 700, 40, 0.3);
    assert_true(run(&x, 0.7, 4));
    for (int k = 0; k < KINDS; k++)
        for (uint32_t i = 0; i < N; i++) bits[k][i / 32] |= (uint32_t)x.g.taken[k][i] << i % 32;
    problem_close(&x);
    problem_open(&x, 1200, 40, 0.3);
    assert_true(run_from(&x, 0.9, 4, &kept));
    assert_true(fabs(covered_by_cells(&x) - x.g.covered) < 1e-4 * ROWS);
    assert_true(area_by_cells(&x) == x.g.n_cell);
    for (int k = 0; k < KINDS; k++)
        for (uint32_t i = 0; i < N; i++)
            assert_true(x.g.taken[k][i] || !(bits[k][i / 32] >> i % 32 & 1));
    problem_close(&x);
}

/* Through the method: the lines of one layer and head, of no other, less columns that were cut. */
static void lines_are_kept_by_layer_and_head(void **state)
{
    (void)state;
    const struct page_geom geom = {.n_layer = 3, .n_kv_head = 1, .head_dim = 64};
    const struct method_shape shape = {.geom = &geom, .group = 2, .n_ctx = 200};
    struct loopserve_param set = {.mass = 0};
    assert_int_equal(loop_state_bytes(&shape, &set), 0);
    set.keep = true;
    const size_t bytes = loop_state_bytes(&shape, &set), n = 7;
    assert_int_equal(bytes, 3 * 2 * 2 * n * 4);
    uint32_t *bits = calloc(1, bytes);
    const struct method_lane lane = {.shape = &shape, .param = &set, .layer = 1, .state = bits};
    const struct kept kept = kept_of(&lane, 1);
    assert_ptr_equal(kept.line[SLASH], bits + (1 * 2 + 1) * 2 * n);
    assert_ptr_equal(kept.line[COLUMN], kept.line[SLASH] + n);
    memset(bits, 0xff, bytes);
    loop_cut(bits, &shape, &set, 70);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(is_kept(&kept, COLUMN, i), i < 70);
        assert_true(is_kept(&kept, SLASH, i));
    }
    free(bits);
}

static void flat_attention_takes_all_or_says_no(void **state)
{
    (void)state;
    struct problem x;
    seed = 8;
    problem_open(&x, 0, 0, 0);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t c = 0; c <= x.at[i]; c++) x.p[(size_t)i * N + c] = 1 / (float)(x.at[i] + 1);
    if (run(&x, 0.955, 0)) assert_true((double)x.g.n_cell > 0.6 * N * (N + 1) / 2);
    assert_false(run(&x, 1.01, 0)); /* more than there is */
    problem_close(&x);
}

int main(void)
{
    ops_init_isa(&ops, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_counts_every_cell_once),
        cmocka_unit_test(rounds_are_nearly_as_good_as_single_steps),
        cmocka_unit_test(planted_lines_are_found),
        cmocka_unit_test(kept_lines_are_taken_first),
        cmocka_unit_test(lines_are_kept_by_layer_and_head),
        cmocka_unit_test(flat_attention_takes_all_or_says_no),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
