/* test_plan.c: marks of prefill plans against a token-exact mask, the lists that attention gets of
 * them, and what every prefill method in the list promises of its plan, whatever it chooses. */
#include "plan_make.h"

#include <math.h>
#include <stdio.h>

enum { TOK_MAX = 2400, PARTS = 2, HEADS = 2 };

/* Lists of one run, with room for everything unless a test says otherwise. */
struct lists {
    struct plan_lists out;
    struct plan_stats stats;
};

static void lists_open(struct lists *l, uint32_t n_list, uint32_t range_max, uint32_t tok_max)
{
    memset(l, 0, sizeof *l);
    l->out = (struct plan_lists){.tok_max = tok_max, .range_max = range_max};
    l->out.range = calloc((size_t)n_list * range_max, sizeof *l->out.range);
    l->out.tok = calloc((size_t)n_list * tok_max, sizeof *l->out.tok);
    l->out.tok_logw = calloc((size_t)n_list * tok_max, sizeof *l->out.tok_logw);
    l->out.range_ptr = calloc(n_list + 1, sizeof *l->out.range_ptr);
    l->out.tok_ptr = calloc(n_list + 1, sizeof *l->out.tok_ptr);
}

static void lists_close(struct lists *l)
{
    free(l->out.range);
    free(l->out.tok);
    free(l->out.tok_logw);
    free(l->out.range_ptr);
    free(l->out.tok_ptr);
}

/* How often list i reads each token before `end`: ranges and tokens counted, order checked. */
static void count_reads(uint8_t *n_read, const struct lists *l, uint32_t i, uint32_t end)
{
    const struct attn_plan *p = &l->out.plan;
    memset(n_read, 0, end);
    for (uint32_t r = p->range_ptr[i]; r < p->range_ptr[i + 1]; r++) {
        assert_true(p->range[r].begin < p->range[r].end);
        assert_true(r == p->range_ptr[i] || p->range[r].begin > p->range[r - 1].end);
        for (uint32_t t = p->range[r].begin * PAGE_TOK; t < p->range[r].end * PAGE_TOK; t++)
            if (t < end) n_read[t]++;
    }
    for (uint32_t k = p->tok_ptr[i]; p->tok && k < p->tok_ptr[i + 1]; k++) {
        assert_true(k == p->tok_ptr[i] || p->tok[k] > p->tok[k - 1]);
        assert_true(p->tok[k] < end);
        n_read[p->tok[k]]++;
    }
}

/* Single tokens of list i count as the plan says, which has that list at `weight`. */
static void check_weights(const struct lists *l, uint32_t i, const uint8_t *weight)
{
    const struct attn_plan *p = &l->out.plan;
    for (uint32_t k = p->tok_ptr[i]; p->tok && k < p->tok_ptr[i + 1]; k++) {
        const double times = exp2((double)weight[p->tok[k]] / PLAN_OCTAVE);
        assert_true(fabs(exp((double)p->tok_logw[k]) / times - 1) < 1e-5);
    }
}

/* What lists must be: all that is marked and the tile's own tokens, once, and little else. */
static void check_lists(const struct lists *l, const struct plan *plans, uint32_t n_head)
{
    static uint8_t n_read[TOK_MAX + 1024];
    uint64_t n_cell = 0, n_cell_read = 0;
    const uint32_t n_part = plans->n_part;
    for (uint32_t i = 0; i < plans->n_tile * n_head * n_part; i++) {
        const struct plan *p = &plans[i / n_part % n_head];
        const uint32_t tile = i / n_part / n_head, part = i % n_part;
        const uint32_t first = plan_tile_tok(p, tile), end = first + p->tile_tok;
        uint32_t n_before = 0;
        count_reads(n_read, l, i, end);
        if (p->weight)
            check_weights(l, i, p->weight + (plan_mask(p, tile, part) - p->mask) * PAGE_TOK);
        else
            assert_null(l->out.plan.tok_logw);
        for (uint32_t t = 0; t < end; t++) {
            assert_true(n_read[t] <= 1);
            if (plan_has(p, tile, part, t)) assert_int_equal(n_read[t], 1);
            if (t < first) n_before += n_read[t];
        }
        for (uint32_t t = first; t < end; t++) assert_int_equal(n_read[t], 1);
        for (uint32_t r = plan_row0(p, tile); r < plan_row_end(p, tile); r++) {
            n_cell += p->pos + r + 1;
            n_cell_read += n_before + p->pos + r - first + 1;
        }
    }
    assert_int_equal(l->stats.n_cell, n_cell);
    assert_int_equal(l->stats.n_cell_read, n_cell_read);
    assert_int_equal(l->stats.n_list, plans->n_tile * n_head * n_part);
}

/* ---- Marks ---- */

struct marks { /* a plan and the same by tokens */
    struct plan plan;
    bool want[40][PARTS][TOK_MAX];
};

static void marks_open(struct marks *m, uint32_t pos, uint32_t end, uint32_t tile_tok)
{
    memset(m, 0, sizeof *m);
    struct plan *p = &m->plan;
    *p = (struct plan){.pos = pos, .end = end, .tile_tok = tile_tok, .n_part = PARTS};
    p->tile0 = pos / tile_tok;
    p->n_tile = (end - 1) / tile_tok + 1 - p->tile0;
    p->n_word = (end - 1) / tile_tok * tile_tok / PAGE_TOK;
    assert_true(p->n_tile <= 40);
    p->mask = calloc((size_t)p->n_tile * PARTS * p->n_word, sizeof *p->mask);
    p->list_dense = calloc((size_t)p->n_tile * PARTS, 1);
}

static void marks_close(struct marks *m)
{
    free(m->plan.mask);
    free(m->plan.list_dense);
}

static void want(struct marks *m, uint32_t tile, uint32_t part, int64_t begin, int64_t end)
{
    for (int64_t t = begin < 0 ? 0 : begin; t < end && t < plan_tile_tok(&m->plan, tile); t++)
        m->want[tile][part][t] = true;
}

static void mark_some(struct marks *m, uint64_t *seed)
{
    struct plan *p = &m->plan;
    const uint32_t tile = (uint32_t)((make_unit(seed) + 1) * 500) % p->n_tile;
    const uint32_t part = (uint32_t)((make_unit(seed) + 1) * 500) % PARTS;
    const uint32_t a = (uint32_t)((make_unit(seed) + 1) / 2 * (float)p->end);
    const uint32_t n = (uint32_t)((make_unit(seed) + 1) * 60);
    switch ((uint32_t)((make_unit(seed) + 1) * 500) % 3) {
    case 0:
        plan_token(p, tile, part, a);
        want(m, tile, part, a, a + 1);
        return;
    case 1:
        plan_range(p, tile, part, a, a + n);
        want(m, tile, part, a, a + n);
        return;
    default:
        plan_ends(p, tile, part, n, 3 * n);
        want(m, tile, part, 0, n);
        for (uint32_t r = 0; r < p->tile_tok; r++) {
            const int64_t row = (int64_t)plan_tile_tok(p, tile) + r;
            want(m, tile, part, row + 1 - 3 * (int64_t)n, row + 1);
        }
    }
}

static void marks_are_those_of_the_definition(void **state)
{
    (void)state;
    struct marks *m = malloc(2 * sizeof *m);
    uint8_t *weight = malloc((size_t)40 * PARTS * TOK_MAX);
    uint64_t seed = 11;
    for (size_t i = 0; i < (size_t)40 * PARTS * TOK_MAX; i++) weight[i] = (uint8_t)(i * 7 % 73);
    for (uint32_t i = 0; i < 200; i++) {
        const uint32_t tile_tok = PAGE_TOK << i % 4;
        const uint32_t pos = i % 3 ? i * 7 : 0, end = pos + 1 + i * 41 % 900;
        struct plan plans[HEADS];
        struct lists l;
        for (uint32_t h = 0; h < HEADS; h++) {
            marks_open(&m[h], pos, end, tile_tok);
            for (uint32_t k = 0; k < i % 23; k++) mark_some(&m[h], &seed);
            plans[h] = m[h].plan;
            if (i % 2) plans[h].weight = weight;
            for (uint32_t t = 0; t < plans[h].n_tile; t++)
                for (uint32_t part = 0; part < PARTS; part++)
                    for (uint32_t c = 0; c < plan_tile_tok(&plans[h], t); c++)
                        assert_int_equal(plan_has(&plans[h], t, part, c), m[h].want[t][part][c]);
        }
        lists_open(&l, plans[0].n_tile * HEADS * PARTS, 100, TOK_MAX);
        plan_compile(&l.out, plans, HEADS, &l.stats, NULL);
        check_lists(&l, plans, HEADS);
        lists_close(&l);
        for (uint32_t h = 0; h < HEADS; h++) marks_close(&m[h]);
    }
    free(weight);
    free(m);
}

static void reasons_are_counted(void **state)
{
    (void)state;
    struct marks *m = malloc(sizeof *m);
    struct lists l;
    marks_open(m, 512, 640, 64);
    plan_tile_dense(&m->plan, 0, 1, PLAN_NO_GAIN);
    for (uint32_t t = 0; t < 400; t += 2)
        plan_token(&m->plan, 1, 0, t); /* more than there is room */
    lists_open(&l, 4, 8, 100);
    plan_compile(&l.out, &m->plan, 1, &l.stats, NULL);
    assert_int_equal(l.stats.n_dense[PLAN_NO_GAIN], 1);
    assert_int_equal(l.stats.n_dense[PLAN_OVERFLOW], 1);
    check_lists(&l, &m->plan, 1);
    lists_close(&l);
    for (uint32_t p = 0; p < 16; p += 2) plan_range(&m->plan, 0, 0, p * 32, p * 32 + 32);
    lists_open(&l, 4, 8, 100); /* as many ranges as there is room for, own pages included: 9 */
    memset(&l.stats, 0, sizeof l.stats);
    plan_compile(&l.out, &m->plan, 1, &l.stats, NULL);
    assert_int_equal(l.stats.n_dense[PLAN_OVERFLOW], 2);
    plan_dense(&m->plan, PLAN_NAN);
    memset(&l.stats, 0, sizeof l.stats);
    plan_compile(&l.out, &m->plan, 1, &l.stats, NULL);
    assert_int_equal(l.stats.n_dense[PLAN_NAN], 4);
    assert_int_equal(l.stats.n_cell_read, l.stats.n_cell);
    assert_null(l.out.plan.tok);
    lists_close(&l);
    marks_close(m);
    free(m);
}

/* ---- Methods ---- */

/* Chunks of a sequence of n tokens with past, for every method with its defaults. */
static void every_methods_plan_is_sound(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 63, 64, 65, 700, 1500};
    const struct method *method;
    for (size_t i = 0; (method = method_at(i)); i++) {
        if (!method->prefill) continue;
        for (size_t n = 0; n < sizeof lengths / sizeof lengths[0]; n++) {
            struct make m;
            struct lists l;
            make_open(&m, n % 2 ? SAC_KV_Q8 : SAC_KV_F16, lengths[n], n);
            make_method(&m, method->name, 512);
            for (uint32_t pos = 0, end; pos < m.n_tok; pos = end) {
                end = m.n_tok < (pos / 512 + 1) * 512 ? m.n_tok : (pos / 512 + 1) * 512;
                if (method->prefill->needs_past_zero && pos > 0) break;
                make_plan(&m, 2, pos, end);
                lists_open(&l, m.plan.n_tile * m.plan.n_part, TOK_MAX, TOK_MAX);
                plan_compile(&l.out, &m.plan, 1, &l.stats, NULL);
                check_lists(&l, &m.plan, 1);
                lists_close(&l);
            }
            make_close(&m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_those_of_the_definition),
        cmocka_unit_test(reasons_are_counted),
        cmocka_unit_test(every_methods_plan_is_sound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
