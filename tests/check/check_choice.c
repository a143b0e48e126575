/* check_choice.c: choices of several slots (ops/lanes.h) as the CUDA library has them: visits as
 * the reference makes them, sums of pages, and rows of slots that become fewer launches as each
 * makes its part. */
#include "brief.h"
#include "lane_pages.h"

/* ---- Visits ---- */

enum { N_MEMBER = 2 };

static struct { /* rooms of the reference, and what comes back */
    float vote[N_MEMBER][N_VISIT];
    float weight[N_MEMBER][N_VISIT * GROUP * PAGE_TOK];
    float page_most[N_MEMBER][N_VISIT * GROUP], page_sum[N_MEMBER][N_VISIT * GROUP];
    double page_log[N_MEMBER][OP_VISIT_ROUND * GROUP];
    float block[N_MEMBER][(N_VISIT / OP_VISIT_BLOCK + 1) * GROUP * (DIM + 1)];
    float sum[(N_VISIT + 1) * GROUP];
    float value[N_MEMBER][GROUP * DIM], value_log[N_MEMBER][GROUP];
    float told[N_VISIT];
    uint32_t order[N_VISIT], spare[N_VISIT], mask[N_MEMBER][N_VISIT], got[N_VISIT];
    uint16_t own[2 * PAGE_TOK * DIM];
    struct op_visited state[N_MEMBER], after;
    struct op_lane_result result[N_MEMBER], got_result;
} s;

static struct op_lane_visit make_visit(uint32_t lane, int form, uint32_t n_page)
{
    return (struct op_lane_visit){.geom = &p.geom,
                                  .frames = {p.frames, NULL},
                                  .page = p.page,
                                  .own = (const uint8_t *)s.own,
                                  .n_own = 1 + 7 * (uint32_t)(form % 5),
                                  .n_page = n_page,
                                  .group = GROUP,
                                  .q = p.q[0],
                                  .scale = 0.1f,
                                  .softcap = form % 4 == 3 ? 6 : 0,
                                  .begin = n_page > 0,
                                  .end = n_page > 0 ? n_page - (uint32_t)form % 3 : 0,
                                  .vote = s.vote[lane],
                                  .order = s.order,
                                  .spare = s.spare,
                                  .told = s.told,
                                  .weight = s.weight[lane],
                                  .page_most = s.page_most[lane],
                                  .page_sum = s.page_sum[lane],
                                  .page_log = s.page_log[lane],
                                  .block = s.block[lane],
                                  .value = s.value[lane],
                                  .value_log = s.value_log[lane],
                                  .mask = s.mask[lane],
                                  .result = &s.result[lane],
                                  .state = &s.state[lane],
                                  .n_member = lane > 0   ? 0
                                              : form % 2 ? N_MEMBER
                                                         : 1,
                                  .mass = form % 3 == 0 ? 0.4 : 0.8,
                                  .step = 1 + (uint32_t)form % 4 * 2,
                                  .rest = (enum op_rest)(form / 2 % 3),
                                  .by_mean = form / 4 % 2,
                                  .until = UINT32_MAX};
}

/* The same on the device; its state is what memory held before. */
static struct op_lane_visit put_visit(const struct op_lane_visit *op)
{
    struct op_lane_visit there = *op;
    memset(&s.after, 0xff, sizeof s.after);
    there.frames.base = p.there;
    there.page = p.page_there;
    there.q = p.q_there;
    there.own = put(op->own, sizeof s.own);
    there.vote = put(op->vote, sizeof s.vote[0]);
    there.order = put(s.order, sizeof s.order);
    there.spare = put(s.order, sizeof s.order);
    there.told = put(s.told, sizeof s.told);
    there.sum = put(s.sum, sizeof s.sum);
    there.mask = put(op->mask, sizeof s.mask[0]);
    there.result = put(op->result, sizeof *op->result);
    there.state = put(&s.after, sizeof s.after);
    return there;
}

/* With ties; of some forms most are 0, and more pages are visited than have others, or all but one
 * are much alike. */
static float make_vote(int form, uint32_t page, uint32_t x)
{
    if (form % 5 == 4 && x >= 40) return 0;
    if (form % 5 == 3) return page == 7 ? 1e-30f : 1 + (float)x / 16384;
    return (float)(x % 40) / 64;
}

static void make_votes(int form, uint64_t *seed)
{
    for (uint32_t i = 0; i < N_MEMBER * N_VISIT; i++)
        s.vote[i / N_VISIT][i % N_VISIT] =
            make_vote(form, i % N_VISIT, (uint32_t)(random_next(seed) % 320));
}

static void visit_as_the_reference(int form, uint32_t n_page, bool bad, uint64_t *seed)
{
    struct op_lane_visit op[N_MEMBER], there[N_MEMBER];
    const uint32_t n = form % 2 ? N_MEMBER : 1;
    memset(&s, 0, sizeof s);
    make_votes(form, seed);
    for (uint32_t i = 0; i < 2 * PAGE_TOK * DIM; i++) {
        const float x = random_unit(seed);
        s.own[i] = p.geom.type_k == SAC_KV_BF16 ? f32_to_bf16(x) : f32_to_f16(x);
    }
    for (uint32_t i = 0; i < n; i++) {
        op[i] = make_visit(i, form, n_page);
        there[i] = put_visit(&op[i]);
    }
    ref.lanes.visit(NULL, &ref, op, n);
    assert_int_equal(api->lane_visit(device, there, n), SAC_OK);
    for (uint32_t i = 0; i < n; i++) {
        get(s.got, there[i].mask, sizeof s.got);
        get(&s.got_result, there[i].result, sizeof s.got_result);
        assert_int_equal(s.got_result.n_bad > 0, bad);
        assert_int_equal(s.result[i].n_bad > 0, bad);
        if (bad) continue;
        assert_memory_equal(s.mask[i], s.got, sizeof s.got);
        assert_int_equal(s.result[i].n_chosen, s.got_result.n_chosen);
        assert_int_equal(s.result[i].n_visit, s.got_result.n_visit);
    }
}

static void visits_are_the_same(void **state)
{
    (void)state;
    const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    uint64_t seed = 8;
    uint32_t n_partial = 0;
    for (int form = 0; form < 24; form += (int)brief_by(11)) {
        make_pages(N_VISIT, type[form % 3], false, &seed);
        visit_as_the_reference(form, N_VISIT, false, &seed);
        n_partial += s.result[0].n_visit < N_VISIT;
        give_all();
    }
    assert_true(n_partial >= 12 / brief_by(11));
    make_pages(N_VISIT, SAC_KV_F16, false, &seed);
    setenv("SAC_GRID_ORDER", "backward", 1); /* shared memory has what the visits before left */
    visit_as_the_reference(1, 0, false, &seed);
    unsetenv("SAC_GRID_ORDER");
    give_all();
    make_pages(N_VISIT, SAC_KV_Q8, true, &seed); /* the page with a NaN is visited first */
    p.page[0] = 5;
    p.page_there = put(p.page, sizeof p.page);
    visit_as_the_reference(0, N_VISIT, true, &seed);
    give_all();
}

/* ---- Sums of pages ---- */

/* Sums of shares that are asked for behind them are made without them, of what is rounded less. */
static void page_sums_are_those_of_their_shares(void **state)
{
    (void)state;
    static float share[N_TOK], sum[N_PAGE];
    uint64_t seed = 13;
    make_pages(N_PAGE, SAC_KV_Q8, false, &seed);
    const struct op_lane_shares shares = {
        .at = {.base = p.there,
               .stride = p.geom.bytes,
               .min_at = p.geom.k_min,
               .step_at = p.geom.k_step,
               .hi2_at = p.geom.k_hi2,
               .page = p.page_there,
               .n_page = N_PAGE,
               .head_dim = DIM,
               .group = GROUP,
               .q = p.q_there,
               .scale = 0.1f,
               .share = put_any(sizeof share),
               .e = put_any(GROUP * sizeof share)},
        .lse = put_any(GROUP * sizeof(float)),
        .sum = put_any(OP_LANE_PIECES(N_PAGE) * GROUP * sizeof(float)),
        .result = put_any(sizeof(struct op_lane_result))};
    const struct op_lane_fold fold = {.in = shares.at.share,
                                      .n = N_PAGE,
                                      .n_part = PAGE_TOK,
                                      .step = PAGE_TOK,
                                      .part_step = 1,
                                      .out = put_any(sizeof sum)};
    assert_int_equal(api->lane_shares(device, &shares, 1), SAC_OK);
    assert_int_equal(api->lane_fold(device, &fold, 1), SAC_OK);
    get(share, shares.at.share, sizeof share);
    get(sum, fold.out, sizeof sum);
    for (uint32_t i = 0; i < N_TOK; i++) assert_true(isnan(share[i])); /* as memory was */
    assert_int_equal(api->lane_shares(device, &shares, 1), SAC_OK);
    get(share, shares.at.share, sizeof share);
    for (uint32_t i = 0; i < N_PAGE; i++) {
        float want = 0;
        for (uint32_t k = 0; k < PAGE_TOK; k++) want += share[i * PAGE_TOK + k];
        assert_true(want > 0 && fabsf(sum[i] / want - 1) < 0.03f);
    }
    give_all();
    free_pages();
}

/* ---- Lists ---- */

enum { LISTED_TOK = N_VISIT * PAGE_TOK };

struct listed_lane { /* what a lane's list needs there, and what comes back */
    struct op_lane_result result;
    struct attn_count count;
    uint32_t mask[N_VISIT], page[N_VISIT], tok[LISTED_TOK];
};

static struct op_lane_list make_list(struct listed_lane *there, uint32_t n_page,
                                     const struct page_lines *lines)
{
    return (struct op_lane_list){.mask = there->mask,
                                 .n_page = n_page,
                                 .result = &there->result,
                                 .lines = lines,
                                 .page = there->page,
                                 .tok = there->tok,
                                 .count = &there->count};
}

static void assert_same_list(const struct listed_lane *a, const struct listed_lane *b,
                             uint32_t n_page)
{
    const struct attn_count *n = &a->count;
    assert_memory_equal(n, &b->count, sizeof *n);
    assert_memory_equal(&a->result, &b->result, sizeof a->result);
    assert_memory_equal(a->mask, b->mask, n_page * sizeof a->mask[0]);
    if (n->dense) return;
    assert_memory_equal(a->page, b->page, n->n_page * sizeof a->page[0]);
    assert_memory_equal(a->tok, b->tok, n->n_tok * sizeof a->tok[0]);
}

/* ---- A draw from scores to lists ---- */

enum { N_DRAWN = 4, WIDE = 6 }; /* heads: more than a draw looks at together */

/* Rooms of shares of up to N_VISIT pages. */
struct shared_lane {
    _Alignas(64) float share[LISTED_TOK];
    float e[WIDE * LISTED_TOK], lse[WIDE], sum[OP_LANE_PIECES(N_VISIT) * WIDE];
};

static struct op_lane_shares make_shares(struct shared_lane *to, uint32_t n_page, uint32_t group,
                                         const float *q, float scale, struct op_lane_result *result)
{
    return (struct op_lane_shares){.at = {.base = p.there,
                                          .stride = p.geom.bytes,
                                          .min_at = p.geom.k_min,
                                          .step_at = p.geom.k_step,
                                          .hi2_at = p.geom.k_hi2,
                                          .page = p.page_there,
                                          .n_page = n_page,
                                          .head_dim = DIM,
                                          .group = group,
                                          .q = q,
                                          .scale = scale,
                                          .share = to->share,
                                          .e = to->e},
                                   .lse = to->lse,
                                   .sum = to->sum,
                                   .result = result};
}

struct drawn_lane {
    struct listed_lane list;
    struct op_draw_state state;
    struct op_draw_piece piece[OP_DRAW_PIECES(LISTED_TOK)];
    struct shared_lane shared;
    float logw[LISTED_TOK];
};

/* All slots of a draw: pieces of all kinds, a lane that wants too much, one whose query is no
 * number and one that has nothing to draw from. `apart`: none of them is noted when the next one
 * comes. */
static void draw_lists(struct drawn_lane *got, bool apart, uint32_t group, const float *q,
                       const float *bad_q)
{
    struct op_lane_begin begin[N_DRAWN];
    struct op_lane_shares shares[N_DRAWN];
    struct op_lane_ends ends[N_DRAWN];
    struct op_lane_draw draw[N_DRAWN];
    struct op_lane_list list[N_DRAWN];
    struct drawn_lane *there = put(got, N_DRAWN * sizeof *got);
    struct page_lines lines;
    page_lines_init(&lines, &p.geom);
    for (uint32_t i = 0; i < N_DRAWN; i++) {
        struct drawn_lane *l = &there[i];
        const uint32_t n_page = i == 3 ? 2 : N_VISIT - 300 * i, n_open = n_page * PAGE_TOK - 64;
        begin[i] = (struct op_lane_begin){l->list.mask, n_page, &l->list.result, &l->list.count};
        shares[i] = make_shares(&l->shared, n_page, group, i == 2 ? bad_q : q,
                                i == 0 ? 0.15f : 0.05f, &l->list.result);
        ends[i] = (struct op_lane_ends){l->list.mask, n_page, 32, n_page * PAGE_TOK - 32};
        draw[i] = (struct op_lane_draw){
            .at = {l->shared.share + 32, n_open, 32, 1e-3, l->list.tok, l->logw},
            .n_more = 64,
            .most = i == 1 ? 100 : 1e9,
            .piece = l->piece,
            .state = &l->state,
            .result = &l->list.result};
        list[i] = make_list(&l->list, n_page, &lines);
        list[i].weighs = true;
    }
    assert_int_equal(api->lane_begin(device, begin, N_DRAWN), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_shares(device, shares, N_DRAWN), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_ends(device, ends, N_DRAWN), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_draw(device, draw, N_DRAWN), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_list(device, list, N_DRAWN), SAC_OK);
    get(got, there, N_DRAWN * sizeof *got);
}

/* What the row of slots makes in fewer launches is what each makes by itself. */
static void group_is_listed_the_same(uint32_t group, const float *q, const float *bad_q)
{
    static struct drawn_lane apart[N_DRAWN], row[N_DRAWN];
    memset(apart, 0xff, sizeof apart);
    memset(row, 0xff, sizeof row);
    draw_lists(apart, true, group, q, bad_q);
    draw_lists(row, false, group, q, bad_q);
    for (uint32_t i = 0; i < N_DRAWN; i++) {
        const struct attn_count *a = &apart[i].list.count;
        struct attn_count *b = &row[i].list.count;
        const uint32_t n_page = i == 3 ? 2 : N_VISIT - 300 * i;
        assert_true(i > 0 || b->n_line_tok > 0);   /* it was one launch */
        if (!b->dense) b->n_line += b->n_line_tok; /* told with the others where it is apart */
        b->n_line_tok = a->n_line_tok;
        assert_same_list(&apart[i].list, &row[i].list, n_page);
        assert_int_equal(a->dense, i == 1 || i == 2);
        assert_int_equal(a->not_finite, i == 2);
        if (a->dense) continue;
        assert_true(i == 3 ? a->n_tok == 0 : a->n_tok > 100);
        assert_memory_equal(apart[i].logw, row[i].logw, a->n_tok * sizeof row[i].logw[0]);
    }
}

static void draws_are_listed_the_same(void **state)
{
    (void)state;
    const uint32_t group[] = {1, GROUP, WIDE};
    float q[WIDE * DIM], bad_q[WIDE * DIM] = {0};
    uint64_t seed = 11;
    make_pages(N_VISIT, SAC_KV_Q8, false, &seed);
    for (uint32_t i = 0; i < WIDE * DIM; i++) q[i] = 2 * random_unit(&seed) - 1;
    bad_q[3] = INFINITY;
    const float *q_there = put(q, sizeof q), *bad_there = put(bad_q, sizeof bad_q);
    for (uint32_t i = 0; i < sizeof group / sizeof group[0]; i++)
        group_is_listed_the_same(group[i], q_there, bad_there);
    give_all();
    free_pages();
}

/* ---- Visits by the shares of pages ---- */

struct visited_lane {
    struct op_lane_result result;
    struct attn_count count;
    struct op_visited state;
    struct shared_lane shared;
    float vote[N_VISIT], told[N_VISIT], sum[(N_VISIT + 1) * GROUP];
    uint32_t order[N_VISIT], spare[N_VISIT], mask[N_VISIT], page[N_VISIT];
};

enum { VISITING_MOST = 64 };

/* What the slots of such a choice are asked. */
static struct {
    struct op_lane_begin begin[VISITING_MOST];
    struct op_lane_shares shares[VISITING_MOST];
    struct op_lane_fold fold[VISITING_MOST];
    struct op_lane_visit visit[VISITING_MOST];
    struct op_lane_list list[VISITING_MOST];
    struct page_lines lines;
} v;

static void ask_visit(uint32_t i, struct visited_lane *l, uint32_t n_page, const float *q,
                      const uint16_t *own)
{
    v.begin[i] = (struct op_lane_begin){l->mask, n_page, &l->result, &l->count};
    v.shares[i] = make_shares(&l->shared, n_page, GROUP, q, 0.05f, &l->result);
    v.fold[i] = (struct op_lane_fold){.in = l->shared.share,
                                      .n = n_page,
                                      .n_part = PAGE_TOK,
                                      .step = PAGE_TOK,
                                      .part_step = 1,
                                      .out = l->vote};
    v.visit[i] = make_visit(0, 0, n_page);
    v.visit[i].frames = (struct page_frames){.base = p.there};
    v.visit[i].page = p.page_there;
    v.visit[i].own = (const uint8_t *)own;
    v.visit[i].q = p.q_there;
    v.visit[i].vote = l->vote;
    v.visit[i].order = l->order;
    v.visit[i].spare = l->spare;
    v.visit[i].told = l->told;
    v.visit[i].sum = l->sum;
    v.visit[i].mask = l->mask;
    v.visit[i].result = &l->result;
    v.visit[i].state = &l->state;
    v.visit[i].n_member = 1;
    v.list[i] = (struct op_lane_list){.mask = l->mask,
                                      .n_page = n_page,
                                      .result = &l->result,
                                      .lines = &v.lines,
                                      .page = l->page,
                                      .count = &l->count};
}

/* All slots of it: a lane of fewer pages, and one whose query is no number. `apart`: none of them
 * is noted when the next one comes. */
static void visit_shares(struct visited_lane *got, bool apart, enum op_rest rest,
                         const uint16_t *own, const float *bad_q)
{
    struct visited_lane *there = put(got, N_DRAWN * sizeof *got);
    page_lines_init(&v.lines, &p.geom);
    for (uint32_t i = 0; i < N_DRAWN; i++) {
        ask_visit(i, &there[i], N_VISIT - 300 * i, i == 2 ? bad_q : p.q_there, own);
        v.visit[i].rest = rest;
    }
    assert_int_equal(api->lane_begin(device, v.begin, N_DRAWN), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_shares(device, v.shares, N_DRAWN), SAC_OK);
    assert_int_equal(api->lane_fold(device, v.fold, N_DRAWN), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_visit(device, v.visit, N_DRAWN), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_list(device, v.list, N_DRAWN), SAC_OK);
    get(got, there, N_DRAWN * sizeof *got);
}

/* Whoever makes the votes, the same pages are visited in the same order, if in other rounds. */
static void assert_visits_by_shares(enum op_rest rest, const uint16_t *own, const float *bad_q)
{
    static struct visited_lane apart[N_DRAWN], row[N_DRAWN];
    memset(apart, 0xff, sizeof apart);
    memset(row, 0xff, sizeof row);
    visit_shares(apart, true, rest, own, bad_q);
    visit_shares(row, false, rest, own, bad_q);
    for (uint32_t i = 0; i < N_DRAWN; i++) {
        const uint32_t n_page = N_VISIT - 300 * i;
        assert_memory_equal(apart[i].order, row[i].order, n_page * sizeof row[i].order[0]);
        assert_memory_equal(apart[i].mask, row[i].mask, n_page * sizeof row[i].mask[0]);
        apart[i].count.n_line += row[i].result.n_line - apart[i].result.n_line;
        apart[i].result.n_line = row[i].result.n_line;
        assert_memory_equal(&apart[i].result, &row[i].result, sizeof row[i].result);
        assert_memory_equal(&apart[i].count, &row[i].count, sizeof row[i].count);
        assert_int_equal(row[i].count.dense, i == 2);
        assert_int_equal(row[i].count.n_page, i == 2 ? n_page : row[i].result.n_visit);
        if (i != 2) assert_memory_equal(apart[i].page, row[i].page, row[i].result.n_visit * 4);
        assert_int_equal(row[i].result.n_bad > 0, i == 2);
        assert_true(row[i].result.n_visit > 0 || i == 2);
        assert_memory_equal(apart[i].vote, row[i].vote, n_page * sizeof row[i].vote[0]);
        if (rest == OP_REST_VOTE)
            assert_memory_equal(apart[i].told, row[i].told, n_page * sizeof row[i].told[0]);
    }
}

static void visits_by_shares_are_the_same(void **state)
{
    (void)state;
    float bad_q[GROUP * DIM] = {0};
    uint64_t seed = 23;
    make_pages(N_VISIT, SAC_KV_Q8, false, &seed);
    bad_q[DIM + 3] = INFINITY;
    const float *bad_there = put(bad_q, sizeof bad_q);
    for (uint32_t i = 0; i < sizeof s.own / sizeof s.own[0]; i++) s.own[i] = 0x3000;
    const uint16_t *own_there = put(s.own, sizeof s.own);
    assert_visits_by_shares(OP_REST_LEAST, own_there, bad_there);
    assert_visits_by_shares(OP_REST_VOTE, own_there, bad_there);
    give_all();
    free_pages();
}

/* Pages whose keys were read for a lane of many, whose own page has tokens that are `by` as long as
 * the queries. */
static uint32_t count_read(struct visited_lane *there, uint32_t n_page, float by)
{
    static struct visited_lane got;
    for (uint32_t i = 0; i < GROUP * DIM; i++) s.own[i] = f32_to_f16(by * p.q[i / DIM][i % DIM]);
    const uint16_t *own = put(s.own, sizeof s.own);
    for (uint32_t i = 0; i < VISITING_MOST; i++) {
        ask_visit(i, &there[i], n_page, p.q_there, own);
        v.visit[i].n_own = GROUP;
        v.visit[i].mass = 0.95;
    }
    assert_int_equal(api->lane_begin(device, v.begin, VISITING_MOST), SAC_OK);
    assert_int_equal(api->lane_shares(device, v.shares, VISITING_MOST), SAC_OK);
    assert_int_equal(api->lane_fold(device, v.fold, VISITING_MOST), SAC_OK);
    assert_int_equal(api->lane_visit(device, v.visit, VISITING_MOST), SAC_OK);
    get(&got, &there[VISITING_MOST - 1], sizeof got);
    assert_true(got.result.n_visit > 0 && got.result.n_visit <= n_page);
    return got.result.n_line / (uint32_t)(p.geom.v_scale / 64);
}

/* Where the own page has nearly everything, few pages are looked at, and no first round of more. */
static void a_first_round_follows_the_own_page(void **state)
{
    (void)state;
    enum { PAGES = 300 };
    uint64_t seed = 29;
    make_pages(N_VISIT, SAC_KV_Q8, false, &seed);
    struct visited_lane *there = put_any(VISITING_MOST * sizeof *there);
    assert_true(count_read(there, PAGES, 1) > PAGES / 2);
    assert_true(count_read(there, PAGES, 15) < PAGES / 4);
    give_all();
    free_pages();
}

/* ---- The best, from votes to lists ---- */

enum { N_BEST = 3, N_HALF = 2 * N_PAGE };

struct best_lane {
    struct listed_lane list;
    float score[GROUP][N_HALF], vote[N_HALF], lse[GROUP];
};

/* All slots of a choice of halves of pages; a score of the last lane is no number. */
static void list_best(struct best_lane *got, bool apart)
{
    struct op_lane_vote vote[N_BEST];
    struct op_lane_ends ends[N_BEST];
    struct op_lane_take take[N_BEST];
    struct op_lane_list list[N_BEST];
    struct best_lane *there = put(got, N_BEST * sizeof *got);
    struct page_lines lines;
    page_lines_init(&lines, &p.geom);
    for (uint32_t i = 0; i < N_BEST; i++) {
        struct best_lane *l = &there[i];
        const uint32_t n_page = N_PAGE - 10 * i;
        vote[i] = (struct op_lane_vote){{l->score[0], N_HALF, 2 * n_page, GROUP, l->vote, l->lse},
                                        &l->list.result};
        ends[i] = (struct op_lane_ends){l->list.mask, n_page, 32, n_page * PAGE_TOK - 64};
        take[i] = (struct op_lane_take){.value = l->vote,
                                        .n_page = n_page,
                                        .item_tok = PAGE_TOK / 2,
                                        .begin = 32,
                                        .end = n_page * PAGE_TOK - 64,
                                        .target = 25,
                                        .mask = l->list.mask,
                                        .result = &l->list.result};
        list[i] = make_list(&l->list, n_page, &lines);
    }
    assert_int_equal(api->lane_vote(device, vote, N_BEST), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_ends(device, ends, N_BEST), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_take(device, take, N_BEST), SAC_OK);
    if (apart) get(got, there, sizeof *got);
    assert_int_equal(api->lane_list(device, list, N_BEST), SAC_OK);
    get(got, there, N_BEST * sizeof *got);
}

static void the_best_are_listed_the_same(void **state)
{
    (void)state;
    static struct best_lane apart[N_BEST], row[N_BEST];
    uint64_t seed = 12;
    make_pages(N_PAGE, SAC_KV_F16, false, &seed);
    for (uint32_t i = 0; i < N_BEST * GROUP * N_HALF; i++)
        apart[i / (GROUP * N_HALF)].score[i / N_HALF % GROUP][i % N_HALF] =
            (float)(random_next(&seed) % 30) / 4;
    apart[N_BEST - 1].score[1][40] = NAN;
    memcpy(row, apart, sizeof row);
    list_best(apart, true);
    list_best(row, false);
    for (uint32_t i = 0; i < N_BEST; i++) {
        const struct attn_count *a = &apart[i].list.count;
        assert_same_list(&apart[i].list, &row[i].list, N_PAGE);
        assert_int_equal(a->dense, i == N_BEST - 1);
        if (a->dense) continue;
        assert_int_equal(a->n_chosen, 25 * PAGE_TOK / 2);
        assert_true(a->n_page >= 3 && a->n_tok > 0);
    }
    give_all();
    free_pages();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visits_are_the_same),
        cmocka_unit_test(page_sums_are_those_of_their_shares),
        cmocka_unit_test(draws_are_listed_the_same),
        cmocka_unit_test(visits_by_shares_are_the_same),
        cmocka_unit_test(a_first_round_follows_the_own_page),
        cmocka_unit_test(the_best_are_listed_the_same),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
