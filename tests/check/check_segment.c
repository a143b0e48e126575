/* check_segment.c: attention over pages whose keys wait for a turned query: rows of both kinds,
 * that read everything or what they are told to, under every instruction set. Oracle:
 * attn_problem.h's brute force, which turns the query for each page, in double. */
#include "attn_problem.h"
#include "brief.h"

#define ROT_MAX 64

enum { N_SEGMENT = 5 };

/* Segments that end inside and at the borders of panels and chunks; the second turns nothing. */
struct turns {
    struct segment_view view[N_SEGMENT];
    float cos[N_SEGMENT][ROT_MAX], sin[N_SEGMENT][ROT_MAX];
};

static void turns_make(struct turns *t, struct sequence *s, struct segment_rope rope)
{
    static const uint32_t end[N_SEGMENT] = {3, 4, 9, 32, 37};
    for (uint32_t i = 0; i < N_SEGMENT; i++) {
        t->view[i] = (struct segment_view){end[i], t->cos[i], t->sin[i]};
        for (uint32_t c = 0; c < rope.n_rot / 2; c++) {
            const double angle = (300.0 * i - 777) * pow(10000, -2.0 * c / rope.n_rot);
            t->cos[i][c] = (float)cos(angle);
            t->sin[i][c] = (float)sin(angle);
        }
    }
    t->view[1].cos = t->view[1].sin = NULL;
    s->segment = t->view;
    s->n_segment = N_SEGMENT;
    s->rope = rope;
}

enum { FIRST_ROW = 37 * PAGE_TOK + 7, N_TOK = FIRST_ROW + 70 };

struct setting {
    uint32_t d, group, n_rot;
    bool interleaved;
    sac_kv_type type;
    uint32_t window;
    float softcap;
};

static const struct setting settings[] = {
    {64, 3, 64, false, SAC_KV_F16, 0, 0},     {64, 1, 64, true, SAC_KV_Q8, 0, 0},
    {128, 4, 96, false, SAC_KV_Q8, 0, 20},    {96, 2, 40, true, SAC_KV_BF16, 0, 0},
    {64, 2, 64, false, SAC_KV_F16, 1000, 20}, {64, 2, 64, true, SAC_KV_Q8, 700, 0},
};

static void everything_is_read(void **state)
{
    const struct fixture *f = *state;
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const struct setting *x = &settings[i];
        struct sequence s = sequence_make(f, geom_of(2, x->d, x->type, x->type), N_TOK, i);
        struct problem p = problem_make(&s, x->group, FIRST_ROW, i);
        struct turns turns;
        turns_make(&turns, &s, (struct segment_rope){x->n_rot, x->interleaved});
        p.window = x->window;
        p.softcap = x->softcap;
        check_all(f, &p, "segments");
        for (size_t j = 1; j < N_ISA; j++) {
            const struct isa *isa = &f->isa[j];
            if (!isa->name || is_brief()) continue;
            struct result whole = result_make(&p), cut = result_make(&p);
            attend_chunked(&isa->ops, f->pool[0], &p, p.n_row, &whole);
            attend_chunked(&isa->ops, f->pool[2], &p, 33, &cut);
            same_bits(&whole, &cut, isa->name, "chunk");
            attend_chunked(&isa->ops, f->pool[0], &p, 0, &whole);
            attend_chunked(&isa->ops, f->pool[2], &p, 0, &cut);
            same_bits(&whole, &cut, isa->name, "number of workers");
            result_free(&whole);
            result_free(&cut);
        }
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

/* Every third page whole, of the next one some tokens: for both KV heads. */
struct told {
    uint32_t page[2 * FIRST_ROW / PAGE_TOK], page_ptr[3];
    struct attn_range range[2 * FIRST_ROW / PAGE_TOK];
    uint32_t tok[2 * FIRST_ROW], tok_ptr[3];
    double add[N_TOK];
};

static void told_make(struct told *t)
{
    uint32_t n_page = 0, n_tok = 0;
    for (uint32_t j = 0; j < N_TOK; j++) t->add[j] = 0;
    for (uint32_t h = 0; h < 2; h++) {
        t->page_ptr[h] = n_page;
        t->tok_ptr[h] = n_tok;
        for (uint32_t i = 0; i < FIRST_ROW / PAGE_TOK; i++) {
            t->range[n_page] = (struct attn_range){i, i + 1};
            if (i % 3 == 0) t->page[n_page++] = i;
            for (uint32_t j = i * PAGE_TOK; j < (i + 1) * PAGE_TOK && i % 3; j++) {
                const bool some = i % 3 == 1 && j % 5 < 2;
                t->add[j] = some ? 0 : -INFINITY;
                if (some) t->tok[n_tok++] = j;
            }
        }
    }
    t->page_ptr[2] = n_page;
    t->tok_ptr[2] = n_tok;
}

static void what_is_told_is_read(void **state)
{
    const struct fixture *f = *state;
    struct told *told = mem_alloc(sizeof *told);
    told_make(told);
    const struct attn_plan plan = {.tile_tok = 4096,
                                   .range = told->range,
                                   .range_ptr = told->page_ptr,
                                   .tok = told->tok,
                                   .tok_ptr = told->tok_ptr};
    for (size_t i = 0; i < 4; i++) {
        const struct setting *x = &settings[i];
        struct sequence s = sequence_make(f, geom_of(2, x->d, x->type, x->type), FIRST_ROW + 1, i);
        struct problem p = problem_make(&s, x->group, FIRST_ROW, i);
        struct turns turns;
        turns_make(&turns, &s, (struct segment_rope){x->n_rot, x->interleaved});
        p.softcap = x->softcap;
        struct exact want = {.out = mem_calloc(p.width, sizeof *want.out),
                             .lse = mem_calloc(p.n_head, sizeof *want.lse)};
        for (uint32_t h = 0; h < 2; h++) exact_row(&p, FIRST_ROW, h, told->add, &want, 0);
        for (size_t j = 0; j < N_ISA; j++) {
            const struct isa *isa = &f->isa[j];
            if (!isa->name) continue;
            struct result r = result_make(&p);
            struct attn_run run = sequence_run(&s, 0, FIRST_ROW, 1, ROW_DECODE);
            run.select = told->page;
            run.select_ptr = told->page_ptr;
            run.select_tok = told->tok;
            run.select_tok_ptr = told->tok_ptr;
            attend(&isa->ops, f->pool[1], &p, &run, 1, &r);
            compare(&p, isa->name, &r, &want, "selection");
            run = sequence_run(&s, 0, FIRST_ROW, 1, ROW_PROMPT);
            run.plan = &plan;
            attend(&isa->ops, f->pool[1], &p, &run, 1, &r);
            compare(&p, isa->name, &r, &want, "plan");
            result_free(&r);
        }
        exact_free(&want);
        mem_free(p.q);
        sequence_deinit(&s);
    }
    mem_free(told);
}

/* ---- Runs that share tiles ---- */

enum { N_SCATTERED = 75, SICK_PAGE = 12, LATE_PAGE = 9 };

/* Rows here and there of a sequence, as runs: in a page, in neighbouring ones, far apart. */
struct scattered {
    struct turns early, late; /* as rows before and from LATE_PAGE on meet the segments */
    struct attn_plan gaps;
    struct attn_run run[N_SCATTERED];
    uint32_t n_run;
};

static void scattered_make(struct scattered *x, struct sequence *s, const struct setting *set)
{
    static const uint32_t step[] = {1, 1, 3, 17, 40, 1, 1, 1, 1, 33, 2, 70, 1, 5};
    turns_make(&x->late, s, (struct segment_rope){set->n_rot, set->interleaved});
    x->early = x->late;
    for (uint32_t i = 0; i < N_SEGMENT; i++) {
        x->early.view[i].cos = i % 2 ? x->early.cos[0] : NULL;
        x->early.view[i].sin = i % 2 ? x->early.sin[0] : NULL;
    }
    x->n_run = 0;
    for (uint32_t row = 0, pos = 37; row < N_SCATTERED; row++) {
        const uint32_t page = pos / PAGE_TOK;
        struct attn_run *last = x->n_run ? &x->run[x->n_run - 1] : NULL;
        assert_true(pos < s->n_tok);
        if (last && last->pos0 + last->n_row == pos && last->pos0 / PAGE_TOK == page) {
            last->n_row++;
        } else {
            struct attn_run run = sequence_run(s, row, pos, 1, ROW_PROMPT);
            run.segment = page < LATE_PAGE ? x->early.view : x->late.view;
            run.n_segment = 0;
            while (run.n_segment < N_SEGMENT && run.segment[run.n_segment].end <= page)
                run.n_segment++;
            run.plan = x->gaps.range ? &x->gaps : NULL;
            run.joins = x->n_run > 0;
            x->run[x->n_run++] = run;
        }
        pos += step[row % (sizeof step / sizeof step[0])];
    }
}

/* Values of one page are no numbers: of those who do not see it, nobody must notice. */
static void make_sick(struct sequence *s)
{
    const struct page_geom *g = &s->geom;
    for (uint32_t h = 0; h < g->n_kv_head; h++) {
        uint8_t *page = s->pool + (size_t)s->table[h * s->n_page + SICK_PAGE] * g->bytes;
        if (g->type_k == SAC_KV_Q8)
            memset(page + g->v_scale, 0xff, (size_t)PAGE_TOK * g->head_dim / PAGE_VBLOCK * 2);
        else
            memset(page + g->v, 0xff, (size_t)PAGE_TOK * g->head_dim * 2);
    }
}

/* Together and each run alone: the same bits, and no numbers where a row sees the sick page. */
static void attend_both(const struct isa *isa, struct workers *pool, const struct problem *p,
                        const struct scattered *x)
{
    struct result together = result_make(p), alone = result_make(p);
    attend(&isa->ops, pool, p, x->run, x->n_run, &together);
    for (uint32_t i = 0; i < x->n_run; i++) attend(&isa->ops, pool, p, &x->run[i], 1, &alone);
    for (uint32_t i = 0; i < x->n_run; i++)
        for (uint32_t r = x->run[i].row0; r < x->run[i].row0 + x->run[i].n_row; r++) {
            const float *a = together.out + r * p->width, *b = alone.out + r * p->width;
            const size_t page = x->run[i].pos0 / PAGE_TOK;
            const bool sees = page > SICK_PAGE && !x->gaps.range &&
                              (!p->window || (page - SICK_PAGE - 1) * PAGE_TOK < p->window / 2);
            if (sees)
                assert_true(isnan(a[0]) && isnan(b[0]));
            else if (!isnan(b[0]) && memcmp(a, b, p->width * sizeof *a) != 0)
                fail_msg("%s: row %u at %u has other bits beside others", isa->name, r,
                         x->run[i].pos0);
            else
                assert_int_equal(isnan(a[0]), isnan(b[0]));
        }
    result_free(&together);
    result_free(&alone);
}

static void rows_that_share_tiles_are_as_alone(void **state)
{
    const struct fixture *f = *state;
    struct attn_range range[2 * N_TOK / PAGE_TOK];
    uint32_t ptr[3] = {0};
    for (uint32_t h = 0, n = 0; h < 2; h++) {
        for (uint32_t i = h; i < N_TOK / PAGE_TOK; i += 5)
            if (i > SICK_PAGE || i + 3 <= SICK_PAGE) range[n++] = (struct attn_range){i, i + 3};
        ptr[h + 1] = n;
    }
    for (size_t i = 0; i < 2 * sizeof settings / sizeof settings[0]; i++) {
        const struct setting *set = &settings[i / 2];
        const bool has_gaps = i % 2;
        if (has_gaps && set->window > 0) continue;
        struct sequence s = sequence_make(f, geom_of(2, set->d, set->type, set->type), N_TOK, i);
        struct problem p = problem_make(&s, i == 0 ? 7 : set->group, N_TOK - N_SCATTERED, i);
        struct scattered x;
        x.gaps = (struct attn_plan){
            .tile_tok = 4096, .range = has_gaps ? range : NULL, .range_ptr = ptr};
        scattered_make(&x, &s, set);
        make_sick(&s);
        p.window = set->window;
        p.softcap = set->softcap;
        for (size_t j = 0; j + 1 < N_ISA; j++)
            if (f->isa[j].name) attend_both(&f->isa[j], f->pool[i % 3], &p, &x);
        mem_free(p.q);
        sequence_deinit(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_is_read),
        cmocka_unit_test(what_is_told_is_read),
        cmocka_unit_test(rows_that_share_tiles_are_as_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
