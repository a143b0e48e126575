/* check_ahead.c: prompt rows of heads of 128 channels, which the CUDA library multiplies a tile of
 * keys ahead of its values, on the library that runs on a CPU: tiles of pages, of single tokens with
 * weights and of own pages, turned queries, and values that are not finite. Oracle: attn_problem.h.
 * What check_attn, check_plan and check_segment ask with SAC_CHECK_CUDA, in small. */
#include "attn_problem.h"

enum { D = 128, GROUP = 3, N_ROW = 20, FIRST = 8 * PAGE_TOK + 21, N_TOK = FIRST + N_ROW };

static const sac_kv_type halves[] = {SAC_KV_F16, SAC_KV_BF16};

static const struct isa *cuda_of(const struct fixture *f)
{
    const struct isa *isa = &f->isa[N_ISA - 1];
    assert_non_null(isa->name);
    return isa;
}

/* Rows of the run `run` against the brute force, and the same bits by themselves. */
static void check_run(const struct fixture *f, const struct problem *p, const struct attn_run *run,
                      const struct exact *want, const char *what)
{
    const struct isa *cuda = cuda_of(f);
    struct result whole = result_make(p), apart = result_make(p);
    attend(&cuda->ops, f->pool[0], p, run, 1, &whole);
    compare(p, cuda->name, &whole, want, what);
    for (uint32_t row = 0; row < N_ROW; row += 13) {
        struct attn_run some = *run;
        const uint32_t n = N_ROW - row < 13 ? N_ROW - row : 13;
        const struct attn_run place = sequence_run(p->seq, row, FIRST + row, n, ROW_PROMPT);
        some.row0 = place.row0, some.n_row = n, some.pos0 = place.pos0;
        some.own0 = place.own0, some.own = place.own;
        attend(&cuda->ops, f->pool[0], p, &some, 1, &apart);
    }
    same_bits(&whole, &apart, cuda->name, what);
    result_free(&whole);
    result_free(&apart);
}

static void pages_are_multiplied_ahead(void **state)
{
    const struct fixture *f = *state;
    for (size_t t = 0; t < 2; t++) {
        struct sequence s = sequence_make(f, geom_of(1, D, halves[t], halves[t]), N_TOK, t);
        struct problem p = problem_make(&s, GROUP, FIRST, t);
        struct exact want = exact_make(&p);
        const struct attn_run run = sequence_run(&s, 0, FIRST, N_ROW, ROW_PROMPT);
        check_run(f, &p, &run, &want, "pages");
        exact_free(&want);
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

/* Queries are turned anew in the middle, and back. */
static void queries_turn_on_the_way(void **state)
{
    const struct fixture *f = *state;
    float cos_of[D / 2], sin_of[D / 2];
    const struct segment_view segment[] = {{3, NULL, NULL}, {6, cos_of, sin_of}};
    struct sequence s = sequence_make(f, geom_of(1, D, SAC_KV_F16, SAC_KV_F16), N_TOK, 3);
    struct problem p = problem_make(&s, GROUP, FIRST, 3);
    for (uint32_t c = 0; c < D / 2; c++) cos_of[c] = cosf((float)c), sin_of[c] = sinf((float)c);
    s.segment = segment;
    s.n_segment = 2;
    s.rope = (struct segment_rope){.n_rot = D};
    struct exact want = exact_make(&p);
    const struct attn_run run = sequence_run(&s, 0, FIRST, N_ROW, ROW_PROMPT);
    check_run(f, &p, &run, &want, "turned");
    exact_free(&want);
    mem_free(p.q);
    sequence_deinit(&s);
}

/* Two pages whole, then tokens of the others, enough for two tiles of which one is not full. */
static void tokens_count_by_their_weights(void **state)
{
    const struct fixture *f = *state;
    const struct attn_range range[] = {{0, 1}, {5, 6}, {8, 10}};
    const uint32_t range_ptr[] = {0, 3}, tile = FIRST / 64 * 64;
    uint32_t tok[FIRST], tok_ptr[] = {0, 0};
    float logw[FIRST];
    double add[N_TOK];
    for (uint32_t i = 0; i < N_TOK; i++) {
        const uint32_t page = i / PAGE_TOK;
        add[i] = page == 0 || page == 5 || page >= 8 ? 0 : -INFINITY;
        if (add[i] == 0 || i % 2 == 0 || i >= tile) continue;
        logw[tok_ptr[1]] = (float)(i % 7) * 0.3f;
        add[i] = (double)logw[tok_ptr[1]];
        tok[tok_ptr[1]++] = i;
    }
    assert_true(tok_ptr[1] > 64 && tok_ptr[1] % 64 > 0);
    const struct attn_plan plan = {.tile_tok = 64,
                                   .range = range,
                                   .range_ptr = range_ptr,
                                   .tok = tok,
                                   .tok_ptr = tok_ptr,
                                   .tok_logw = logw};
    for (size_t t = 0; t < 2; t++) {
        struct sequence s = sequence_make(f, geom_of(1, D, halves[t], halves[t]), N_TOK, 5 + t);
        struct problem p = problem_make(&s, GROUP, FIRST, 5 + t);
        struct exact want = {.out = mem_calloc(N_ROW * p.width, sizeof *want.out),
                             .lse = mem_calloc((size_t)N_ROW * p.n_head, sizeof *want.lse)};
        for (uint32_t i = 0; i < N_ROW; i++) exact_row(&p, FIRST + i, 0, add, &want, i);
        struct attn_run run = sequence_run(&s, 0, FIRST, N_ROW, ROW_PROMPT);
        run.plan = &plan;
        check_run(f, &p, &run, &want, "tokens");
        exact_free(&want);
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

/* A value that is not finite is nothing to rows before it, and makes those that see it NaN. */
static void rows_before_a_bad_value_do_not_change(void **state)
{
    const struct fixture *f = *state;
    const struct isa *cuda = cuda_of(f);
    const uint32_t bad = 14; /* row */
    struct sequence s = sequence_make(f, geom_of(1, D, SAC_KV_F16, SAC_KV_F16), N_TOK, 7);
    struct problem p = problem_make(&s, GROUP, FIRST, 7);
    struct result clean = result_make(&p), dirty = result_make(&p);
    attend_chunked(&cuda->ops, f->pool[0], &p, N_ROW, &clean);
    s.v[(FIRST + bad) * D + 70] = INFINITY;
    sequence_store(&s, f->pool[0], &f->isa[0].ops);
    attend_chunked(&cuda->ops, f->pool[0], &p, N_ROW, &dirty);
    assert_memory_equal(clean.out, dirty.out, bad * p.width * sizeof *clean.out);
    for (size_t i = bad * p.width; i < N_ROW * p.width; i++) assert_true(isnan(dirty.out[i]));
    result_free(&clean);
    result_free(&dirty);
    mem_free(p.q);
    sequence_deinit(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_multiplied_ahead),
        cmocka_unit_test(queries_turn_on_the_way),
        cmocka_unit_test(tokens_count_by_their_weights),
        cmocka_unit_test(rows_before_a_bad_value_do_not_change),
    };
    setenv("SAC_CHECK_CUDA", CUDA_HOST, 0);
    return cmocka_run_group_tests(tests, setup, teardown);
}
