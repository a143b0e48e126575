/* test_experts.c: mixtures of experts. Which experts a row goes through, with ties, NaN and experts
 * that nobody chooses; products and sums against plain loops; and that neither other rows, nor
 * threads, nor chunks change a row's bits. */
#include "ops/experts.h"

#include "../check/random_rows.h"
#include "base/mem.h"
#include "tiny_rows.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* ---- Routes ---- */

enum { EXPERTS = 6, ROWS = 200 };

/* Of rows with a stride that is not their width. */
struct routed {
    uint32_t expert[ROWS * EXPERTS], pair[ROWS * EXPERTS], row[ROWS * EXPERTS], first[EXPERTS + 1];
    float share[ROWS * EXPERTS];
};

static struct experts_route route_of(struct routed *to, const float *logit, uint32_t n_row,
                                     uint32_t n_used)
{
    return (struct experts_route){.logit = logit,
                                  .logit_stride = EXPERTS + 1,
                                  .n_row = n_row,
                                  .n_expert = EXPERTS,
                                  .n_used = n_used,
                                  .scale = 1,
                                  .expert = to->expert,
                                  .share = to->share,
                                  .pair = to->pair,
                                  .row = to->row,
                                  .first = to->first};
}

static void expect_chosen(const float logit[EXPERTS], uint32_t n_used, const uint32_t *expected)
{
    struct routed r;
    float padded[EXPERTS + 1] = {[EXPERTS] = INFINITY}; /* of somebody else */
    memcpy(padded, logit, EXPERTS * sizeof *logit);
    const struct experts_route op = route_of(&r, padded, 1, n_used);
    experts_route(NULL, &op);
    for (uint32_t k = 0; k < n_used; k++) assert_int_equal(r.expert[k], expected[k]);
}

static void test_choice(void **state)
{
    (void)state;
    const float nan = NAN, inf = INFINITY;
    expect_chosen((float[]){0, 5, 1, 4, 2, 3}, 3, (uint32_t[]){1, 3, 5});
    expect_chosen((float[]){0, 5, 1, 4, 2, 3}, 1, (uint32_t[]){1});
    expect_chosen((float[]){0, 5, 1, 4, 2, 3}, 6, (uint32_t[]){0, 1, 2, 3, 4, 5});
    /* Of equal ones the first, also of the two zeros. */
    expect_chosen((float[]){1, 2, 1, 2, 1, 2}, 2, (uint32_t[]){1, 3});
    expect_chosen((float[]){1, 2, 1, 2, 1, 2}, 4, (uint32_t[]){0, 1, 3, 5});
    expect_chosen((float[]){-0.0f, 0.0f, 0.0f, -0.0f, -1, -1}, 3, (uint32_t[]){0, 1, 2});
    expect_chosen((float[]){7, 7, 7, 7, 7, 7}, 3, (uint32_t[]){0, 1, 2});
    /* NaN comes last, and then in order. */
    expect_chosen((float[]){nan, -9, nan, -inf, 1, nan}, 3, (uint32_t[]){1, 3, 4});
    expect_chosen((float[]){nan, -9, nan, -inf, 1, nan}, 4, (uint32_t[]){0, 1, 3, 4});
    expect_chosen((float[]){nan, nan, nan, nan, nan, nan}, 2, (uint32_t[]){0, 1});
    expect_chosen((float[]){-inf, -inf, -inf, -inf, -inf, inf}, 2, (uint32_t[]){0, 5});
}

static void test_shares(void **state)
{
    (void)state;
    struct routed r;
    const float logit[EXPERTS + 1] = {1, 3, -2, 2, 0, 2.5f, 100};
    double all = 0, chosen = 0;
    for (int i = 0; i < EXPERTS; i++) all += exp((double)logit[i]);
    const int best[3] = {1, 3, 5};
    for (int k = 0; k < 3; k++) chosen += exp((double)logit[best[k]]);
    struct experts_route op = route_of(&r, logit, 1, 3);
    experts_route(NULL, &op);
    for (int k = 0; k < 3; k++)
        assert_true(fabs((double)r.share[k] - exp((double)logit[best[k]]) / all) < 1e-6);
    op.norm = true;
    op.scale = 2.5f;
    experts_route(NULL, &op);
    for (int k = 0; k < 3; k++)
        assert_true(fabs((double)r.share[k] - 2.5 * exp((double)logit[best[k]]) / chosen) < 1e-6);
    /* Large ones do not overflow; a NaN that is not chosen is told all the same. */
    const float large[EXPERTS + 1] = {1e30f, -1e30f, 3e38f, 0, 0, 0, 0};
    op.logit = large;
    experts_route(NULL, &op);
    assert_float_equal(r.share[0], 0, 0);
    assert_float_equal(r.share[1], 2.5, 0);
    assert_float_equal(r.share[2], 0, 0);
    const float bad[EXPERTS + 1] = {5, 4, 3, 2, 1, NAN, 0};
    op.logit = bad;
    experts_route(NULL, &op);
    for (int k = 0; k < 3; k++) assert_true(isnan(r.share[k]));
}

/* Every pair is once in the list of its expert, rows ascending, and the lists are all there is. */
static void expect_lists(const struct experts_route *op)
{
    assert_int_equal(op->first[0], 0);
    assert_int_equal(op->first[op->n_expert], op->n_row * op->n_used);
    for (uint32_t i = 0; i < op->n_expert; i++)
        for (uint32_t p = op->first[i]; p < op->first[i + 1]; p++) {
            uint32_t k = 0;
            const uint32_t *of_row = op->expert + op->row[p] * op->n_used;
            while (k < op->n_used && of_row[k] != i) k++;
            assert_true(k < op->n_used);
            assert_int_equal(op->pair[op->row[p] * op->n_used + k], p);
            assert_true(p == op->first[i] || op->row[p] > op->row[p - 1]);
        }
}

static void test_lists(void **state)
{
    (void)state;
    static struct routed r;
    static float logit[ROWS * (EXPERTS + 1)];
    uint64_t random = 3;
    struct workers *pool;
    sac_error err;
    must(workers_create(&pool, 3, &err), &err);
    for (uint32_t i = 0; i < ROWS * (EXPERTS + 1); i++) logit[i] = random_gauss(&random);
    for (uint32_t i = 0; i < ROWS; i++) logit[i * (EXPERTS + 1) + 2] = -50; /* nobody's */
    struct experts_route op = route_of(&r, logit, ROWS, 3);
    experts_route(pool, &op);
    expect_lists(&op);
    assert_int_equal(r.first[2], r.first[3]);
    assert_true(r.first[1] < r.first[2]);
    for (uint32_t i = 0; i < ROWS; i++) logit[i * (EXPERTS + 1) + 4] = 50; /* everybody's */
    op.n_used = 1;
    experts_route(pool, &op);
    expect_lists(&op);
    assert_int_equal(r.first[5] - r.first[4], ROWS);
    workers_destroy(pool);
}

/* ---- Products ---- */

enum { EMBD = 96, FF = 160, BAD_ROW = 1000 /* one of its router logits is NaN */ };

struct product {
    struct ops ops;
    struct workers *pool;
    struct weight gate, up, down;
    float *x, *hidden, *out, *y, *share;
    uint32_t *expert, *pair, *row, *first;
    uint8_t *block;
    size_t bytes;
};

static void pack(struct weight *w, uint8_t **at, enum quant_type type, uint32_t n_out,
                 uint32_t n_in, uint64_t *random)
{
    const size_t bytes = n_out * quant_row_bytes(type, n_in);
    uint8_t *rows = malloc(bytes);
    assert_non_null(rows);
    random_rows(rows, type, (size_t)n_out * n_in, random);
    weight_init(w, type, n_out, n_in);
    w->data = *at;
    *at += weight_bytes(w);
    weight_pack(NULL, w, rows);
    free(rows);
}

static void make_product(struct product *p, const char *isa, uint32_t n_thread,
                         enum quant_type type)
{
    sac_error err;
    uint64_t random = 17;
    memset(p, 0, sizeof *p);
    must(ops_init_isa(&p->ops, isa, &err), &err);
    must(workers_create(&p->pool, n_thread, &err), &err);
    p->bytes = (size_t)64 << 20;
    p->block = mem_map(p->bytes);
    assert_non_null(p->block);
    uint8_t *at = p->block;
    pack(&p->gate, &at, type, EXPERTS * FF, EMBD, &random);
    pack(&p->up, &at, type, EXPERTS * FF, EMBD, &random);
    pack(&p->down, &at, type, EXPERTS * EMBD, FF, &random);
    struct arena a = {.base = at, .capacity = p->bytes - (size_t)(at - p->block)};
    p->x = arena_take(&a, (size_t)ROWS * EMBD, sizeof(float));
    p->y = arena_take(&a, (size_t)ROWS * EMBD, sizeof(float));
    p->hidden = arena_take(&a, (size_t)ROWS * EXPERTS * FF, sizeof(float));
    p->out = arena_take(&a, (size_t)ROWS * EXPERTS * EMBD, sizeof(float));
    p->share = arena_take(&a, ROWS * EXPERTS, sizeof(float));
    p->expert = arena_take(&a, ROWS * EXPERTS, sizeof(uint32_t));
    p->pair = arena_take(&a, ROWS * EXPERTS, sizeof(uint32_t));
    p->row = arena_take(&a, ROWS * EXPERTS, sizeof(uint32_t));
    p->first = arena_take(&a, EXPERTS + 1, sizeof(uint32_t));
}

static void free_product(struct product *p)
{
    workers_destroy(p->pool);
    mem_unmap(p->block, p->bytes);
}

/* Logits of row r, the same wherever it is; most rows want expert 1. */
static void put_row(struct product *p, float *logit, uint32_t at, uint32_t r)
{
    uint64_t random = 100 + r;
    for (uint32_t i = 0; i < EMBD; i++) p->x[(size_t)at * EMBD + i] = random_gauss(&random);
    for (uint32_t i = 0; i < EXPERTS; i++) logit[at * (EXPERTS + 1) + i] = random_gauss(&random);
    if (r % 8) logit[at * (EXPERTS + 1) + 1] += 9;
    if (r == BAD_ROW) logit[at * (EXPERTS + 1) + 2] = NAN;
    for (uint32_t i = 0; i < EMBD; i++) p->y[(size_t)at * EMBD + i] = random_gauss(&random);
}

static void run_product(struct product *p, const uint32_t *rows, uint32_t n_row, enum row_kind kind)
{
    static float logit[ROWS * (EXPERTS + 1)];
    for (uint32_t i = 0; i < n_row; i++) put_row(p, logit, i, rows[i]);
    experts_route(p->pool, &(struct experts_route){.logit = logit,
                                                   .logit_stride = EXPERTS + 1,
                                                   .n_row = n_row,
                                                   .n_expert = EXPERTS,
                                                   .n_used = 2,
                                                   .norm = true,
                                                   .scale = 1,
                                                   .expert = p->expert,
                                                   .share = p->share,
                                                   .pair = p->pair,
                                                   .row = p->row,
                                                   .first = p->first});
    struct experts_multiply op = {.ops = &p->ops,
                                  .x = p->x,
                                  .n_row = n_row,
                                  .n_embd = EMBD,
                                  .n_ff = FF,
                                  .n_expert = EXPERTS,
                                  .n_used = 2,
                                  .kind = kind,
                                  .glu = LINEAR_GLU_SILU,
                                  .gate = &p->gate,
                                  .up = &p->up,
                                  .down = &p->down,
                                  .row = p->row,
                                  .first = p->first,
                                  .hidden = p->hidden,
                                  .out = p->out};
    op.scratch_bytes = experts_scratch(&p->ops, workers_count(p->pool), &op);
    op.scratch = mem_map(op.scratch_bytes);
    assert_non_null(op.scratch);
    experts_multiply(p->pool, &op);
    mem_unmap(op.scratch, op.scratch_bytes);
    experts_mix(p->pool, &(struct experts_mix){.y = p->y,
                                               .n_row = n_row,
                                               .n_embd = EMBD,
                                               .n_used = 2,
                                               .share = p->share,
                                               .pair = p->pair,
                                               .out = p->out});
}

static void plain_times(double *y, const struct weight *w, uint32_t first, uint32_t n,
                        const double *x)
{
    float row[FF > EMBD ? FF : EMBD];
    for (uint32_t o = 0; o < n; o++) {
        weight_unpack_row(row, w, first + o);
        y[o] = 0;
        for (uint32_t i = 0; i < w->n_in; i++) y[o] += (double)row[i] * x[i];
    }
}

/* What row i of a run must give, by plain loops over the choice that was made. */
static void plain_row(double y[EMBD], const struct product *p, uint32_t r, uint32_t i)
{
    static float logit[EXPERTS + 1];
    static struct product one;
    static float x_row[EMBD], y_row[EMBD];
    double x[EMBD], gate[FF], up[FF], part[EMBD];
    one.x = x_row;
    one.y = y_row;
    put_row(&one, logit, 0, r);
    for (uint32_t c = 0; c < EMBD; c++) x[c] = (double)x_row[c];
    for (uint32_t c = 0; c < EMBD; c++) y[c] = (double)y_row[c];
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t expert = p->expert[2 * i + k];
        plain_times(gate, &p->gate, expert * FF, FF, x);
        plain_times(up, &p->up, expert * FF, FF, x);
        for (uint32_t c = 0; c < FF; c++) gate[c] = gate[c] / (1 + exp(-gate[c])) * up[c];
        plain_times(part, &p->down, expert * EMBD, EMBD, gate);
        for (uint32_t c = 0; c < EMBD; c++) y[c] += (double)p->share[2 * i + k] * part[c];
    }
}

static const char *const isas[] = {"ref", "avx2", "avx512", "amx", "neon"};

static void test_products(void **state)
{
    (void)state;
    uint32_t rows[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) rows[i] = i;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        struct product p;
        sac_error err;
        if (ops_init_isa(&p.ops, isas[i], &err) != SAC_OK) continue;
        for (int kind = 0; kind < 2; kind++) {
            make_product(&p, isas[i], 2, QUANT_Q8_0);
            run_product(&p, rows, ROWS, (enum row_kind)kind);
            double y[EMBD], worst = 0, size = 0;
            for (uint32_t r = 0; r < ROWS; r += 7) {
                plain_row(y, &p, r, r);
                for (uint32_t c = 0; c < EMBD; c++) {
                    worst = fmax(worst, fabs(y[c] - (double)p.y[r * EMBD + c]));
                    size = fmax(size, fabs(y[c]));
                }
            }
            assert_true(size > 1);
            assert_true(worst < 1e-2 * size); /* bf16 has 8 bits */
            assert_true(strcmp(isas[i], "ref") != 0 || worst < 1e-5 * size);
            free_product(&p);
        }
    }
}

/* A row alone with one thread, and in the middle of others with three. */
static void test_bits_of_a_row(void **state)
{
    (void)state;
    static float alone[EMBD];
    uint32_t rows[ROWS];
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        struct product one, many;
        sac_error err;
        if (ops_init_isa(&one.ops, isas[i], &err) != SAC_OK) continue;
        for (int kind = 0; kind < 2; kind++) {
            make_product(&one, isas[i], 1, QUANT_Q5_0);
            make_product(&many, isas[i], 3, QUANT_Q5_0);
            for (uint32_t n = 2; n <= ROWS; n += 66) {
                for (uint32_t r = 0; r < n; r++) rows[r] = (r * 5 + n) % 101;
                run_product(&many, rows, n, (enum row_kind)kind);
                for (uint32_t r = 0; r < n; r += n / 2) {
                    run_product(&one, &rows[r], 1, (enum row_kind)kind);
                    memcpy(alone, one.y, sizeof alone);
                    assert_memory_equal(alone, many.y + (size_t)r * EMBD, sizeof alone);
                }
            }
            free_product(&one);
            free_product(&many);
        }
    }
}

static void test_a_bad_row_is_alone(void **state)
{
    (void)state;
    static float good[4 * EMBD];
    struct product p;
    make_product(&p, "ref", 2, QUANT_Q8_0);
    run_product(&p, (uint32_t[]){1, 2, 3, 4}, 4, ROW_PROMPT);
    memcpy(good, p.y, sizeof good);
    run_product(&p, (uint32_t[]){1, 2, BAD_ROW, 4}, 4, ROW_PROMPT);
    for (uint32_t c = 0; c < EMBD; c++) assert_true(isnan(p.y[2 * EMBD + c]));
    assert_memory_equal(p.y, good, 2 * EMBD * sizeof *good);
    assert_memory_equal(p.y + (size_t)3 * EMBD, good + (size_t)3 * EMBD, EMBD * sizeof *good);
    free_product(&p);
}

/* ---- Whole models ---- */

enum { PROMPT = 150 };

/* What another sequence computes in the steps that are compared. */
enum beside { NOTHING, PROMPT_ROWS, DECODE_ROWS };

static void run_model(const sac_model *model, uint32_t n_batch, uint32_t n_threads,
                      enum beside beside, float logits[2][TINY_VOCAB])
{
    sac_engine *e;
    sac_seq s, other;
    sac_error err;
    int32_t tok[PROMPT + 1], more[PROMPT];
    float ignored[TINY_VOCAB];
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 256;
    p.n_seq_max = 2;
    p.n_batch = n_batch;
    p.n_threads = n_threads;
    for (int32_t i = 0; i <= PROMPT; i++) tok[i] = i * i * 7 % 256;
    for (int32_t i = 0; i < PROMPT; i++) more[i] = i * 11 % 256;
    must(sac_engine_create(&e, model, &p, &err), &err);
    must(sac_seq_create(e, &other, &err), &err);
    if (beside) compute_rows(e, other, more, 40, SAC_ROW_PROMPT, ignored);
    must(sac_seq_create(e, &s, &err), &err);
    const sac_row_kind kind = beside == DECODE_ROWS ? SAC_ROW_DECODE : SAC_ROW_PROMPT;
    const size_t n_more = beside == DECODE_ROWS ? 1 : 90;
    if (beside) must(sac_seq_append(e, other, more, n_more, kind, SAC_WANT_NONE, &err), &err);
    compute_rows(e, s, tok, PROMPT, SAC_ROW_PROMPT, logits[0]);
    if (beside) must(sac_seq_append(e, other, more, n_more, kind, SAC_WANT_NONE, &err), &err);
    compute_rows(e, s, tok + PROMPT, 1, SAC_ROW_DECODE, logits[1]);
    sac_engine_free(e);
}

static void test_model_bits(void **state)
{
    static const struct {
        uint32_t n_batch, n_threads;
        enum beside beside;
    } run[] = {{32, 1, NOTHING},     {64, 3, NOTHING},      {256, 2, PROMPT_ROWS},
               {64, 1, PROMPT_ROWS}, {256, 1, DECODE_ROWS}, {64, 2, DECODE_ROWS}};
    static float first[2][TINY_VOCAB], other[2][TINY_VOCAB];
    run_model(*state, 256, 1, NOTHING, first);
    assert_true(isfinite(first[0][0]) && isfinite(first[1][0]));
    for (size_t i = 0; i < sizeof run / sizeof run[0]; i++) {
        run_model(*state, run[i].n_batch, run[i].n_threads, run[i].beside, other);
        assert_memory_equal(first, other, sizeof first);
    }
}

/* The bytes of a decode step: the dense weights, and those of the row's experts alone. */
static void test_bytes_read(void **state)
{
    sac_engine *e;
    sac_seq s;
    sac_error err;
    float logits[TINY_VOCAB];
    const int32_t tok[2] = {1, 2};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 64;
    p.n_threads = 1;
    must(sac_engine_create(&e, *state, &p, &err), &err);
    must(sac_seq_create(e, &s, &err), &err);
    compute_rows(e, s, tok, 1, SAC_ROW_DECODE, logits);
    const uint64_t before = sac_engine_get_stats(e).weight_bytes_read;
    compute_rows(e, s, tok + 1, 1, SAC_ROW_DECODE, logits);
    const uint64_t read = sac_engine_get_stats(e).weight_bytes_read - before;
    struct weight w;
    uint64_t expert = 0, all = sac_model_get_info(*state).weight_bytes;
    weight_init(&w, QUANT_F32, TINY_EXPERT_FF, TINY_EMBD);
    expert += 2 * weight_bytes(&w);
    weight_init(&w, QUANT_F32, TINY_EMBD, TINY_EXPERT_FF);
    expert += weight_bytes(&w);
    /* Beside the experts: vectors, which are not counted, and paddings. */
    const uint64_t most = all - TINY_LAYERS * (8 - TINY_EXPERTS_USED) * expert;
    assert_true(read <= most);
    assert_true(read > most - 8192);
    sac_engine_free(e);
}

static int open_mixture(void **state)
{
    *state = tiny_open(&(struct tiny){.seed = 5, .n_expert = 8});
    return *state ? 0 : -1;
}

int main(void)
{
    const struct CMUnitTest ops[] = {
        cmocka_unit_test(test_choice),        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_lists),         cmocka_unit_test(test_products),
        cmocka_unit_test(test_bits_of_a_row), cmocka_unit_test(test_a_bad_row_is_alone),
    };
    const struct CMUnitTest models[] = {
        cmocka_unit_test(test_model_bits),
        cmocka_unit_test(test_bytes_read),
    };
    return cmocka_run_group_tests(ops, NULL, NULL) +
           cmocka_run_group_tests(models, open_mixture, tiny_teardown);
}
