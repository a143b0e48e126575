/* check_plan.c: attention that is told what to read: pages and single tokens for a decode row, page
 * ranges and tokens for each tile of prompt rows. Oracle: attn_problem.h's brute force over the
 * same keys; and to name everything must give the bits of dense attention. */
#include "attn_problem.h"
#include "brief.h"

/* ---- Decode rows ---- */

/* The selection of a row at `pos` for two KV heads, and what it adds to each key's score. */
struct selection {
    uint32_t page[400], page_ptr[3];
    uint32_t tok[4000], tok_ptr[3];
    float logw[4000];
    double add[2][2100];
};

/* Some pages, and of the others some tokens, alone and in short rows. */
static void selection_draw(struct selection *s, uint32_t pos, bool weighted, uint64_t seed)
{
    const uint32_t own = pos / PAGE_TOK;
    memset(s, 0, sizeof *s);
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t *n_page = &s->page_ptr[h + 1], *n_tok = &s->tok_ptr[h + 1];
        *n_page = s->page_ptr[h];
        *n_tok = s->tok_ptr[h];
        for (uint32_t i = 0; i < own; i++) {
            const bool whole = rng_next(&seed) % 8 == 0;
            if (whole) s->page[(*n_page)++] = i;
            for (uint32_t j = i * PAGE_TOK; j < (i + 1) * PAGE_TOK; j++) {
                const bool some = !whole && (j % 50 < 5 || rng_next(&seed) % 9 == 0);
                const float logw = weighted ? rng_float(&seed) * 3 : 0;
                s->add[h][j] = some || whole ? 0 : -INFINITY;
                if (!some) continue;
                s->add[h][j] = (double)logw;
                s->logw[*n_tok] = logw;
                s->tok[(*n_tok)++] = j;
            }
        }
    }
}

static void check_tokens(const struct fixture *f, struct problem *p, const struct selection *sel,
                         bool weighted)
{
    const uint32_t pos = p->row0;
    struct exact want = {.out = mem_calloc(p->width, sizeof *want.out),
                         .lse = mem_calloc(p->n_head, sizeof *want.lse)};
    for (uint32_t h = 0; h < 2; h++) exact_row(p, pos, h, sel->add[h], &want, 0);
    struct attn_run run = sequence_run(p->seq, 0, pos, 1, ROW_DECODE);
    run.select = sel->page;
    run.select_ptr = sel->page_ptr;
    run.select_tok = sel->tok;
    run.select_tok_ptr = sel->tok_ptr;
    if (weighted) run.select_logw = sel->logw;
    for (size_t i = 0; i < N_ISA; i++) {
        const struct isa *isa = &f->isa[i];
        if (!isa->name) continue;
        struct result one = result_make(p), five = result_make(p);
        attend(&isa->ops, f->pool[0], p, &run, 1, &one);
        compare(p, isa->name, &one, &want, "tokens");
        attend(&isa->ops, f->pool[2], p, &run, 1, &five);
        same_bits(&one, &five, isa->name, "number of workers (tokens)");
        result_free(&one);
        result_free(&five);
    }
    exact_free(&want);
}

static void test_tokens(void **state)
{
    const struct fixture *f = *state;
    const uint32_t dims[] = {64, 96, 128};
    struct selection *sel = mem_alloc(sizeof *sel);
    for (uint32_t t = 0; t < 3 * N_TYPE; t++) {
        const uint32_t pos = 1800 + 50 * (t % 4), type = t % N_TYPE;
        const struct page_geom g = geom_of(2, dims[t / N_TYPE], types[type][0], types[type][1]);
        struct sequence s = sequence_make(f, g, pos + 1, t);
        struct problem p = problem_make(&s, t % 2 ? 3 : 7, pos, t);
        p.window = t % 4 == 1 ? 700 : 0;
        p.softcap = t % 4 == 2 ? 20.0f : 0;
        for (int weighted = 0; weighted < 2; weighted++) {
            selection_draw(sel, pos, weighted, t);
            check_tokens(f, &p, sel, weighted);
        }
        mem_free(p.q);
        sequence_deinit(&s);
    }
    mem_free(sel);
}

static void test_pages(void **state)
{
    const struct fixture *f = *state;
    for (size_t t = 0; t < 3; t++) {
        struct sequence s = sequence_make(f, geom_of(2, 64, types[t][0], types[t][1]), 2100, t);
        struct problem p = problem_make(&s, 4, s.n_tok - 1, t);
        const uint32_t pos = s.n_tok - 1, own = pos / PAGE_TOK;
        uint32_t select[200], ptr[3] = {0};
        double add[2][2100];
        uint64_t seed = t;
        for (uint32_t h = 0; h < 2; h++) {
            ptr[h + 1] = ptr[h];
            for (uint32_t i = 0; i < own; i++) {
                const bool some = rng_next(&seed) % (h ? 2 : 5) == 0;
                if (some) select[ptr[h + 1]++] = i;
                for (uint32_t j = 0; j < PAGE_TOK; j++)
                    add[h][i * PAGE_TOK + j] = some ? 0 : -INFINITY;
            }
            for (uint32_t j = own * PAGE_TOK; j <= pos; j++) add[h][j] = 0;
        }
        struct exact want = {.out = mem_calloc(p.width, sizeof *want.out),
                             .lse = mem_calloc(p.n_head, sizeof *want.lse)};
        for (uint32_t h = 0; h < 2; h++) exact_row(&p, pos, h, add[h], &want, 0);
        uint32_t all[200], all_ptr[3];
        for (uint32_t i = 0; i < 2 * own; i++) all[i] = i % own;
        for (uint32_t h = 0; h < 3; h++) all_ptr[h] = h * own;
        const uint32_t none_ptr[3] = {0};
        for (size_t i = 0; i < N_ISA; i++) {
            const struct isa *isa = &f->isa[i];
            if (!isa->name) continue;
            struct result some = result_make(&p), dense = result_make(&p), full = result_make(&p);
            struct attn_run run = sequence_run(&s, 0, pos, 1, ROW_DECODE);
            attend(&isa->ops, f->pool[1], &p, &run, 1, &dense);
            run.select = select;
            run.select_ptr = ptr;
            attend(&isa->ops, f->pool[1], &p, &run, 1, &some);
            compare(&p, isa->name, &some, &want, "select");
            run.select = all;
            run.select_ptr = all_ptr;
            attend(&isa->ops, f->pool[1], &p, &run, 1, &full);
            same_bits(&dense, &full, isa->name, "naming all pages");
            run.select_ptr = none_ptr; /* the own page alone */
            attend(&isa->ops, f->pool[1], &p, &run, 1, &full);
            for (size_t j = 0; j < full.n_out; j++) assert_true(isfinite(full.out[j]));
            result_free(&some);
            result_free(&dense);
            result_free(&full);
        }
        exact_free(&want);
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

/* ---- Prompt rows ---- */

#define TILE_MAX 32
#define LANE_MAX 8 /* lists of a tile */

/* A plan for all tiles of a sequence, two KV heads; what is planned for a tile is also in `add`. */
struct planned {
    struct attn_plan plan;
    uint32_t n_lane;
    struct attn_range range[TILE_MAX * LANE_MAX * 64];
    uint32_t range_ptr[TILE_MAX * LANE_MAX + 1];
    uint32_t tok[TILE_MAX * LANE_MAX * 400], tok_ptr[TILE_MAX * LANE_MAX + 1];
    float tok_logw[TILE_MAX * LANE_MAX * 400];
    float add[TILE_MAX * LANE_MAX][1024]; /* to the score of a token, -INFINITY: it is not read */
};

/* `share` of 8 of the pages, in ranges, and some of the other tokens; or all pages if share is 8.
 * Ranges may touch, and reach behind the page of a tile's first row. A list for each of n_head
 * query heads, or (0) for the two KV heads. */
static void planned_draw(struct planned *p, const struct problem *problem, uint32_t tile_tok,
                         uint32_t share, bool by_head, uint64_t seed)
{
    const uint32_t n_tok = problem->seq->n_tok;
    memset(p, 0, sizeof *p);
    p->n_lane = by_head ? problem->n_head : 2;
    p->plan = (struct attn_plan){.tile_tok = tile_tok,
                                 .by_head = by_head,
                                 .range = p->range,
                                 .range_ptr = p->range_ptr,
                                 .tok = share < 8 ? p->tok : NULL,
                                 .tok_ptr = p->tok_ptr,
                                 .tok_logw = seed % 2 ? p->tok_logw : NULL};
    const uint32_t n_tile = (n_tok + tile_tok - 1) / tile_tok;
    assert_true(n_tile <= TILE_MAX && n_tok <= 1024 && p->n_lane <= LANE_MAX);
    for (uint32_t list = 0; list < p->n_lane * n_tile; list++) {
        const uint32_t page0 = list / p->n_lane * tile_tok / PAGE_TOK,
                       page1 = page0 + tile_tok / PAGE_TOK;
        uint32_t n_range = p->range_ptr[list], n = p->tok_ptr[list];
        for (uint32_t i = 0; i < page1; i++) {
            const bool whole = rng_next(&seed) % 8 < share, join = rng_next(&seed) % 4 != 0;
            for (uint32_t j = i * PAGE_TOK; j < (i + 1) * PAGE_TOK && j < n_tok; j++) {
                const bool some = !whole && i < page0 && rng_next(&seed) % 5 == 0 && share < 8;
                const float logw = p->plan.tok_logw ? rng_float(&seed) * 6 : 0;
                p->add[list][j] = whole ? 0 : some ? logw : -INFINITY;
                if (!some) continue;
                p->tok_logw[n] = logw;
                p->tok[n++] = j;
            }
            if (!whole) continue;
            if (join && n_range > p->range_ptr[list] && p->range[n_range - 1].end == i)
                p->range[n_range - 1].end = i + 1;
            else
                p->range[n_range++] = (struct attn_range){i, i + 1};
        }
        p->range_ptr[list + 1] = n_range;
        p->tok_ptr[list + 1] = n;
    }
}

/* Rows in chunks of `chunk`, each with its part of the plan. */
static void attend_planned(const struct ops *ops, struct workers *pool, const struct problem *p,
                           const struct planned *pl, uint32_t chunk, struct result *r)
{
    for (uint32_t i = 0; i < p->n_row; i += chunk) {
        const uint32_t n = p->n_row - i < chunk ? p->n_row - i : chunk, pos = p->row0 + i;
        struct attn_plan plan = pl->plan;
        plan.range_ptr += pos / plan.tile_tok * pl->n_lane;
        plan.tok_ptr += pos / plan.tile_tok * pl->n_lane;
        struct attn_run run = sequence_run(p->seq, i, pos, n, ROW_PROMPT);
        run.plan = &plan;
        attend(ops, pool, p, &run, 1, r);
    }
}

/* Row i for the query heads of a lane, whose list is `read`: the brute force computes all heads of
 * a KV head with one mask, of which those of the lane are kept. */
static void exact_lane(const struct problem *p, uint32_t i, uint32_t head, uint32_t n_head,
                       const float *read, struct exact *out)
{
    const uint32_t pos = p->row0 + i, own = pos / PAGE_TOK * PAGE_TOK;
    const uint32_t group = p->n_head / p->seq->geom.n_kv_head, d = p->seq->geom.head_dim;
    double add[1024];
    for (uint32_t j = 0; j <= pos; j++) add[j] = j >= own ? 0 : (double)read[j];
    struct exact one = {.out = mem_calloc(p->width, sizeof *one.out),
                        .lse = mem_calloc(p->n_head, sizeof *one.lse)};
    exact_row(p, pos, head / group, add, &one, 0);
    memcpy(out->out + i * p->width + (size_t)head * d, one.out + (size_t)head * d,
           (size_t)n_head * d * sizeof *one.out);
    memcpy(out->lse + (size_t)i * p->n_head + head, one.lse + head, n_head * sizeof *one.lse);
    out->abs = fmax(out->abs, one.abs);
    out->vmax = fmax(out->vmax, one.vmax);
    exact_free(&one);
}

static void check_planned(const struct fixture *f, const struct problem *p,
                          const struct planned *pl)
{
    struct exact want = {.out = mem_calloc(p->n_row * p->width, sizeof *want.out),
                         .lse = mem_calloc((size_t)p->n_row * p->n_head, sizeof *want.lse)};
    const uint32_t n_share = p->n_head / pl->n_lane; /* heads of a list */
    for (uint32_t i = 0; i < p->n_row; i++)
        for (uint32_t h = 0; h < pl->n_lane; h++) {
            const uint32_t tile = (p->row0 + i) / pl->plan.tile_tok;
            exact_lane(p, i, h * n_share, n_share, pl->add[tile * pl->n_lane + h], &want);
        }
    for (size_t i = 0; i < N_ISA; i++) {
        const struct isa *isa = &f->isa[i];
        if (!isa->name) continue;
        struct result whole = result_make(p), cut = result_make(p);
        attend_planned(&isa->ops, f->pool[0], p, pl, p->n_row, &whole);
        compare(p, isa->name, &whole, &want, "plan");
        attend_planned(&isa->ops, f->pool[2], p, pl, 77, &cut);
        same_bits(&whole, &cut, isa->name, "chunks of planned rows");
        result_free(&whole);
        result_free(&cut);
    }
    exact_free(&want);
}

static void test_plans(void **state)
{
    const struct fixture *f = *state;
    const uint32_t tile_tok[] = {32, 64, 96, 128, 256}, dims[] = {64, 128, 160};
    struct planned *pl = mem_alloc(sizeof *pl);
    for (uint32_t t = 0; t < 5; t++)
        for (uint32_t i = 0; i < 5; i++) {
            const struct page_geom g = geom_of(2, dims[(t + i) % 3], types[t][0], types[t][1]);
            struct sequence s = sequence_make(f, g, i == 0 ? 200 : 700, t);
            struct problem p = problem_make(&s, 1 + (t + i) % 4, i == 0 ? 0 : 555, t);
            for (int by_head = is_brief(); by_head < 2; by_head++) {
                planned_draw(pl, &p, tile_tok[i], 1 + 2 * (t % 3), by_head, t * 5 + i);
                check_planned(f, &p, pl);
            }
            mem_free(p.q);
            sequence_deinit(&s);
        }
    mem_free(pl);
}

static void test_full_plan(void **state)
{
    const struct fixture *f = *state;
    const uint32_t tile_tok[] = {32, 64, 96, 128, 256};
    struct planned *pl = mem_alloc(sizeof *pl);
    for (uint32_t t = 0; t < 5; t++) {
        const struct page_geom g = geom_of(2, t % 2 ? 128 : 64, types[t][0], types[t][1]);
        struct sequence s = sequence_make(f, g, 640, t);
        struct problem p = problem_make(&s, 2, 100, t);
        for (uint32_t i = 0; i < 5; i += brief_by(4)) {
            planned_draw(pl, &p, tile_tok[i], 8, i % 2, i);
            for (size_t j = 0; j < N_ISA; j++) {
                const struct isa *isa = &f->isa[j];
                if (!isa->name) continue;
                struct result dense = result_make(&p), full = result_make(&p);
                attend_chunked(&isa->ops, f->pool[1], &p, 400, &dense);
                attend_planned(&isa->ops, f->pool[1], &p, pl, 400, &full);
                same_bits(&dense, &full, isa->name, "planning all pages");
                result_free(&dense);
                result_free(&full);
            }
        }
        mem_free(p.q);
        sequence_deinit(&s);
    }
    mem_free(pl);
}

/* The same of a context of several stretches. */
static void test_full_plan_of_stretches(void **state)
{
    const struct fixture *f = *state;
    const uint32_t tile_tok = 256, n_tok = 4700, n_list = (n_tok + tile_tok - 1) / tile_tok * 2;
    struct planned *pl = mem_calloc(1, sizeof *pl);
    pl->n_lane = 2;
    pl->plan = (struct attn_plan){.tile_tok = tile_tok,
                                  .range = pl->range,
                                  .range_ptr = pl->range_ptr,
                                  .tok_ptr = pl->tok_ptr};
    for (uint32_t i = 0; i < n_list; i++) {
        pl->range[i] = (struct attn_range){0, (i / 2 + 1) * tile_tok / PAGE_TOK};
        pl->range_ptr[i + 1] = i + 1;
    }
    for (uint32_t t = 0; t < 3; t++) {
        struct sequence s = sequence_make(f, geom_of(2, 64, types[t][0], types[t][1]), n_tok, t);
        struct problem p = problem_make(&s, 2, 4040, t);
        for (size_t j = 0; j < N_ISA; j++) {
            const struct isa *isa = &f->isa[j];
            if (!isa->name) continue;
            struct result dense = result_make(&p), full = result_make(&p);
            attend_chunked(&isa->ops, f->pool[2], &p, 100, &dense);
            attend_planned(&isa->ops, f->pool[0], &p, pl, 400, &full);
            same_bits(&dense, &full, isa->name, "planning all pages of several stretches");
            result_free(&dense);
            result_free(&full);
        }
        mem_free(p.q);
        sequence_deinit(&s);
    }
    mem_free(pl);
}

/* ---- Small weights left out ---- */

/* Equal scores: whatever comes behind the first group has less than 1e9 times what is there, so
 * only that and the own page's group count. Their values are 1, all others 1000. */
static void test_skip_leaves_out_groups(void **state)
{
    const struct fixture *f = *state;
    enum { N = 800, ROW0 = 768, KEPT = 256, TILE = 64 };
    static uint32_t tok[2 * ROW0];
    for (uint32_t t = 0; t < 2 * N_TYPE; t++) {
        const struct page_geom g = geom_of(2, 64, types[t / 2][0], types[t / 2][1]);
        const bool by_token = t % 2; /* gathered, or in pages */
        struct sequence s;
        sequence_init(&s, g, N);
        for (size_t i = 0; i < (size_t)N * 2 * 64; i++)
            s.v[i] = i / 128 < KEPT || i / 128 >= ROW0 ? 1 : 1000;
        sequence_store(&s, f->pool[0], &f->isa[0].ops);
        struct problem p = problem_make(&s, 2, ROW0, t);
        for (uint32_t i = 0; i < 2 * ROW0; i++) tok[i] = i % ROW0;
        const struct attn_range range[2] = {{by_token ? ROW0 / PAGE_TOK : 0, N / PAGE_TOK},
                                            {by_token ? ROW0 / PAGE_TOK : 0, N / PAGE_TOK}};
        const uint32_t range_ptr[3] = {0, 1, 2}, tok_ptr[3] = {0, ROW0, 2 * ROW0};
        const struct attn_plan plan = {.tile_tok = TILE,
                                       .range = range,
                                       .range_ptr = range_ptr,
                                       .tok = by_token ? tok : NULL,
                                       .tok_ptr = tok_ptr,
                                       .skip = 1e9f};
        for (size_t i = 0; i < N_ISA; i++) {
            if (!isa_skips(&f->isa[i])) continue;
            struct result r = result_make(&p);
            struct attn_run run = sequence_run(&s, 0, ROW0, N - ROW0, ROW_PROMPT);
            run.plan = &plan;
            attend(&f->isa[i].ops, f->pool[1], &p, &run, 1, &r);
            for (size_t j = 0; j < r.n_out; j++)
                if (!(fabsf(r.out[j] - 1) < 2e-3f))
                    fail_msg("%s: value %g of a group left out", f->isa[i].name, (double)r.out[j]);
            const uint64_t n_query = (uint64_t)p.n_row * p.n_head, n = r.n_skip / n_query;
            assert_int_equal(r.n_skip, n * n_query);
            assert_true(n >= ROW0 - KEPT && n < ROW0);
            result_free(&r);
        }
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

/* What is left out is bounded, counted, and each row's own affair. */
static void test_skip_is_bounded(void **state)
{
    const struct fixture *f = *state;
    const float skip = 1e-3f;
    struct planned *pl = mem_alloc(sizeof *pl);
    for (uint32_t t = 0; t < N_TYPE; t++) {
        struct sequence s = sequence_make(f, geom_of(2, 64, types[t][0], types[t][1]), 1000, t);
        struct problem p = problem_make(&s, 2, 555, t);
        for (size_t i = 0; i < p.n_row * p.width; i++) p.q[i] *= 3;
        planned_draw(pl, &p, 64, 6, t % 2, t);
        for (size_t i = 0; i < N_ISA; i++) {
            const struct isa *isa = &f->isa[i];
            if (!isa_skips(isa)) continue;
            struct result all = result_make(&p), some = result_make(&p), cut = result_make(&p);
            pl->plan.skip = 0;
            attend_planned(&isa->ops, f->pool[0], &p, pl, p.n_row, &all);
            assert_int_equal(all.n_skip, 0);
            pl->plan.skip = skip;
            attend_planned(&isa->ops, f->pool[0], &p, pl, p.n_row, &some);
            attend_planned(&isa->ops, f->pool[2], &p, pl, 77, &cut);
            same_bits(&some, &cut, isa->name, "chunks of rows that leave out");
            assert_int_equal(some.n_skip, cut.n_skip);
            assert_true(some.n_skip > 0);
            /* at most 1000 / PAGE_TOK groups, a share below `skip` each; |v| is below 3 */
            for (size_t j = 0; j < all.n_out; j++)
                assert_true(fabsf(some.out[j] - all.out[j]) < 2 * 3 * skip * (1000 / PAGE_TOK));
            for (size_t j = 0; j < all.n_lse; j++)
                assert_true(some.lse[j] > all.lse[j] - 2 * skip * (1000 / PAGE_TOK) &&
                            some.lse[j] < all.lse[j] + 1e-3f);
            result_free(&all);
            result_free(&some);
            result_free(&cut);
        }
        mem_free(p.q);
        sequence_deinit(&s);
    }
    mem_free(pl);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_full_plan),
        cmocka_unit_test(test_full_plan_of_stretches),
        cmocka_unit_test(test_skip_leaves_out_groups),
        cmocka_unit_test(test_skip_is_bounded),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
