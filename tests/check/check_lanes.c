/* check_lanes.c: the slots that choose (ops/lanes.h) as the CUDA library has them, against the
 * reference on the same numbers: marks, draws, lists and notes bit for bit, scores and shares but
 * for rounding. */
#include "brief.h"
#include "lane_pages.h"

#include "methods/box.h"
#include "methods/method_spec.h"

enum { N_LANE = 3, LARGEST = 40 };

static void assert_near(const float *want, const float *got, size_t n, double most)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)want[i] - (double)got[i]) <= most * (1 + fabs((double)want[i]))))
            fail_msg("number %zu: %.9g instead of %.9g", i, (double)got[i], (double)want[i]);
}

/* ---- Marks ---- */

static struct {
    float value[N_LANE][N_TOK];
    uint32_t spare[N_TOK], mask[N_LANE][N_PAGE], got[N_PAGE];
    struct op_lane_result result[N_LANE], after;
} t;

/* Many ties; negative and infinite ones. */
static void fill_values(uint64_t *seed)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, -1.0f, 1e-42f, 3e38f};
    for (uint32_t i = 0; i < N_LANE * N_TOK; i++) {
        const uint64_t x = random_next(seed);
        t.value[i / N_TOK][i % N_TOK] =
            x % 9 == 0 ? odd[1 + x / 9 % 7] : (float)(x / 9 % 90) - 20.0f;
    }
    for (uint32_t i = 0; i < N_LANE * N_PAGE; i++)
        t.mask[i / N_PAGE][i % N_PAGE] = random_next(seed) % 4 ? 0 : (uint32_t)random_next(seed);
    memset(t.result, 0, sizeof t.result);
}

static void take_as_the_reference(uint32_t item_tok, uint64_t *seed)
{
    struct op_lane_take want[N_LANE], op[N_LANE];
    fill_values(seed);
    for (uint32_t i = 0; i < N_LANE; i++) {
        const uint32_t n_page = i == 0 ? N_PAGE : 1 + (uint32_t)random_next(seed) % N_PAGE;
        const uint32_t begin = (uint32_t)random_next(seed) % 70;
        want[i] = (struct op_lane_take){.value = t.value[i],
                                        .n_page = n_page,
                                        .item_tok = item_tok,
                                        .begin = begin,
                                        .end = n_page * PAGE_TOK - (uint32_t)random_next(seed) % 32,
                                        .target = (uint32_t)random_next(seed) %
                                                  (n_page * PAGE_TOK / item_tok + 3),
                                        .spare = t.spare,
                                        .mask = t.mask[i],
                                        .result = &t.result[i]};
        op[i] = want[i];
        op[i].value = put(t.value[i], sizeof t.value[i]);
        op[i].mask = put(t.mask[i], sizeof t.mask[i]);
        op[i].result = put(&t.result[i], sizeof t.result[i]);
    }
    ref.lanes.take(NULL, &ref, want, N_LANE);
    assert_int_equal(api->lane_take(device, op, N_LANE), SAC_OK);
    for (uint32_t i = 0; i < N_LANE; i++) {
        get(t.got, op[i].mask, sizeof t.got);
        get(&t.after, op[i].result, sizeof t.after);
        assert_memory_equal(t.mask[i], t.got, sizeof t.got);
        assert_memory_equal(&t.result[i], &t.after, sizeof t.after);
    }
    give_all();
}

static void the_best_are_the_same(void **state)
{
    (void)state;
    uint64_t seed = 1;
    const uint32_t item_tok[] = {1, PAGE_TOK / 2, PAGE_TOK};
    for (uint32_t i = 0; i < 12 / brief_by(4); i++) take_as_the_reference(item_tok[i % 3], &seed);
}

static void ends_are_the_same(void **state)
{
    (void)state;
    uint64_t seed = 2;
    fill_values(&seed);
    const uint32_t begin[N_LANE] = {0, 37, 64}, end[N_LANE] = {N_TOK, N_TOK - 65, 32};
    for (uint32_t i = 0; i < N_LANE; i++) {
        struct op_lane_ends op = {
            .mask = t.mask[i], .n_page = N_PAGE, .begin = begin[i], .end = end[i]};
        struct op_lane_ends there = op;
        there.mask = put(t.mask[i], sizeof t.mask[i]);
        ref.lanes.ends(NULL, &ref, &op, 1);
        assert_int_equal(api->lane_ends(device, &there, 1), SAC_OK);
        get(t.got, there.mask, sizeof t.got);
        assert_memory_equal(t.mask[i], t.got, sizeof t.got);
    }
    give_all();
}

/* ---- Draws ---- */

/* Ties, and logits that are no numbers. */
static void the_largest_are_the_same(void **state)
{
    (void)state;
    enum { N_ROW = 3, N = 2 * OP_TOP_PIECE + 700, STRIDE = N + 4 };
    static float x[N_ROW * STRIDE];
    static struct op_top_item want[N_ROW * LARGEST], got[N_ROW * LARGEST];
    uint64_t seed = 5;
    for (uint32_t i = 0; i < N_ROW * STRIDE; i++) {
        const uint32_t kind = random_next(&seed) % 50;
        x[i] = i % STRIDE >= N ? 1e9f : kind == 0 ? NAN : kind == 1 ? -INFINITY : (float)(kind / 4);
    }
    const uint32_t k[] = {1, 2, LARGEST};
    for (uint32_t i = 0; i < 3; i++) {
        struct op_top op = {
            .x = x, .stride = STRIDE, .n_row = N_ROW, .n = N, .k = k[i], .out = want};
        ref.top(NULL, &op);
        op.x = put(x, sizeof x);
        op.spare = put(x, N_ROW * op_top_room(N, k[i]) * sizeof *op.spare);
        op.out = put(got, sizeof got);
        assert_int_equal(api->top(device, &op), SAC_OK);
        get(got, op.out, sizeof got);
        assert_memory_equal(want, got, N_ROW * k[i] * sizeof *want);
        give_all();
    }
}

static void draws_are_the_same(void **state)
{
    (void)state;
    enum { N_DRAW = 3 * OP_DRAW_ITEMS + 300 }; /* pieces of all kinds */
    static struct {
        float share[N_DRAW], logw[N_DRAW], got_logw[N_DRAW];
        uint32_t item[N_DRAW], got[N_DRAW];
    } d;
    uint64_t seed = 3;
    for (uint32_t k = 0; k < 8; k++) {
        const uint32_t n = k == 0 ? 0 : k == 1 ? 5 : N_DRAW - 1500 * k;
        double sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += (double)(d.share[i] = expf(4 * (random_unit(&seed) + random_unit(&seed))));
        for (uint32_t i = 0; i < n; i++) d.share[i] /= (float)sum;
        struct op_lane_result result = {0}, after = {0};
        struct op_draw_piece piece[OP_DRAW_PIECES(N_DRAW)];
        struct op_draw_state state_of;
        struct op_lane_draw op = {.at = {.value = d.share,
                                         .n = n,
                                         .first = 32,
                                         .variance = k % 2 ? 1e-4 : 2e-3,
                                         .item = d.item,
                                         .logw = d.logw},
                                  .n_more = 64,
                                  .most = k % 3 ? 1e9 : 65,
                                  .piece = piece,
                                  .state = &state_of,
                                  .result = &result};
        struct op_lane_draw there = op;
        there.at.value = put(d.share, sizeof d.share);
        there.at.item = put(d.item, sizeof d.item);
        there.at.logw = put(d.logw, sizeof d.logw);
        there.piece = put(piece, sizeof piece);
        there.state = put(&state_of, sizeof state_of);
        there.result = put(&after, sizeof after);
        ref.lanes.draw(NULL, &ref, &op, 1);
        assert_int_equal(api->lane_draw(device, &there, 1), SAC_OK);
        get(&after, there.result, sizeof after);
        get(d.got, there.at.item, sizeof d.got);
        get(d.got_logw, there.at.logw, sizeof d.got_logw);
        assert_memory_equal(&result, &after, sizeof after);
        assert_memory_equal(d.item, d.got, result.n_tok * sizeof d.item[0]);
        assert_near(d.logw, d.got_logw, result.n_tok, 1e-6);
        give_all();
    }
}

/* ---- Votes, sums ---- */

static void sums_are_the_same(struct op_lane_fold fold, const float *there)
{
    static float sum[N_TOK], got[N_TOK];
    fold.out = sum;
    ref.lanes.fold(NULL, &ref, &fold, 1);
    fold.in = there;
    fold.out = put(sum, sizeof sum);
    assert_int_equal(api->lane_fold(device, &fold, 1), SAC_OK);
    get(got, fold.out, sizeof got);
    assert_near(sum, got, fold.n, 1e-5);
}

static void votes_are_the_same(void **state)
{
    (void)state;
    static float score[GROUP][N_TOK], vote[N_TOK], got[N_TOK];
    float lse[GROUP], got_lse[GROUP];
    uint64_t seed = 4;
    for (int bad = 0; bad < 3; bad++) {
        for (uint32_t i = 0; i < GROUP * N_TOK; i++)
            score[i / N_TOK][i % N_TOK] = 30 * random_unit(&seed) - 9;
        if (bad) score[1][77] = bad == 1 ? NAN : INFINITY;
        struct op_lane_result result = {0}, after = {0};
        struct op_lane_vote op = {.at = {.score = score[0],
                                         .score_stride = N_TOK,
                                         .n = N_TOK - 5,
                                         .group = GROUP,
                                         .vote = vote,
                                         .lse = lse},
                                  .result = &result};
        struct op_lane_vote there = op;
        there.at.score = put(score, sizeof score);
        there.at.vote = put(vote, sizeof vote);
        there.at.lse = put(lse, sizeof lse);
        there.result = put(&after, sizeof after);
        /* Of pages, and of query heads: more of these than one worker takes at a time. */
        const struct op_lane_fold pages = {
            .in = score[0], .n = N_PAGE, .n_part = PAGE_TOK, .step = PAGE_TOK, .part_step = 1};
        const struct op_lane_fold heads = {
            .in = score[0], .n = N_TOK - 5, .n_part = GROUP, .step = 1, .part_step = N_TOK};
        ref.lanes.vote(NULL, &ref, &op, 1);
        assert_int_equal(api->lane_vote(device, &there, 1), SAC_OK);
        get(&after, there.result, sizeof after);
        assert_int_equal(result.n_bad > 0, after.n_bad > 0);
        if (!bad) {
            get(got, there.at.vote, sizeof got);
            get(got_lse, there.at.lse, sizeof got_lse);
            assert_near(vote, got, N_TOK - 5, 1e-7);
            assert_near(lse, got_lse, GROUP, 1e-5);
            sums_are_the_same(pages, there.at.score);
            sums_are_the_same(heads, there.at.score);
        }
        give_all();
    }
}

/* ---- Pages ---- */

static void logits_are_the_same(void **state)
{
    (void)state;
    static float want[GROUP][N_TOK], got[GROUP][N_TOK];
    uint64_t seed = 5;
    const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    for (int i = 0; i < 3; i++) {
        make_pages(N_PAGE, type[i], false, &seed);
        const struct op_lane_logits op = {
            .keys = {.geom = &p.geom, .frames = {p.frames, NULL}, .page = p.page, .n_page = N_PAGE},
            .group = GROUP,
            .q = p.q[0],
            .scale = 0.2f,
            .softcap = i == 1 ? 5 : 0,
            .out = want[0],
            .out_stride = N_TOK};
        struct op_lane_logits there = op;
        there.keys.frames.base = p.there;
        there.keys.page = p.page_there;
        there.q = p.q_there;
        there.out = put(want, sizeof want);
        ref.lanes.logits(NULL, &ref, &op, 1);
        assert_int_equal(api->lane_logits(device, &there, 1), SAC_OK);
        get(got, there.out, sizeof got);
        assert_near(want[0], got[0], GROUP * N_TOK, 1e-5);
        give_all();
    }
}

/* ---- Notes and scores ---- */

/* The notes of a method, made by both; 0 bytes: it has none of such pages. */
static size_t check_notes(const char *name, const char *params, uint8_t *side, void **out_there)
{
    const struct method_decode *hooks = method_find("decode", name)->decode;
    const struct method_shape shape = {.geom = &p.geom, .group = GROUP, .n_ctx = N_TOK};
    struct method_spec spec;
    sac_error err;
    float k[PAGE_TOK * DIM];
    must(method_spec_parse(&spec, "decode", params, &err), &err);
    const size_t bytes = method_hook_bytes(hooks->side_bytes, &shape, spec.param);
    uint8_t *got = calloc(N_PAGE, bytes + 1);
    assert_true(got && bytes <= 4096);
    memset(side, 0, N_PAGE * bytes);
    *out_there = put(side, N_PAGE * bytes + 1);
    for (uint32_t i = 0; i < N_PAGE && bytes; i++) {
        page_read(k, NULL, &p.geom, p.frames + i * p.geom.bytes, PAGE_SEALED, PAGE_TOK);
        hooks->seal(side + i * bytes, &shape, spec.param, k);
    }
    if (bytes) {
        const struct op_note op = {.kind = hooks->note(&shape, spec.param),
                                   .geom = &p.geom,
                                   .frames = {p.there, NULL},
                                   .frame = p.page, /* all of them, in any order */
                                   .n_page = N_PAGE,
                                   .side = *out_there,
                                   .stride = bytes};
        assert_int_equal(api->note(device, &op), SAC_OK);
        get(got, *out_there, N_PAGE * bytes);
        for (size_t i = 0; i < N_PAGE * bytes; i++)
            if (side[i] != got[i])
                fail_msg("%s, byte %zu of page %zu", params, i % bytes, i / bytes);
    }
    free(got);
    return bytes;
}

static void notes_are_the_same(void **state)
{
    (void)state;
    static uint8_t side[N_PAGE * 4096];
    static const char *const name[] = {"quest", "quest", "arkvale", "auto"};
    static const char *const params[] = {"quest:page=16", "quest:page=32", "arkvale", "auto"};
    const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    uint64_t seed = 6;
    void *there;
    size_t n_note = 0;
    for (int i = 0; i < 6; i++) {
        make_pages(N_PAGE, type[i % 3], i > 2, &seed);
        for (int m = 0; m < 4; m++) n_note += check_notes(name[m], params[m], side, &there) > 0;
        give_all();
    }
    assert_int_equal(n_note, 2 * (4 + 4 + 2)); /* q8 pages hold two of the four */
}

/* A block has eight of the lanes, most of whose boxes are the same. */
static void boxes_are_the_same(void **state)
{
    (void)state;
    enum { MANY = 120, EIGHTH = MANY / 8, OTHER = 40 };
    static uint8_t side[N_PAGE * 4096];
    static float want[GROUP][2 * N_PAGE], got[GROUP][2 * N_PAGE];
    static float alone[GROUP][2 * N_PAGE];
    float qa[GROUP * DIM], qb[GROUP * DIM];
    uint32_t other[N_PAGE];
    uint64_t seed = 7;
    void *there;
    for (int mean = 0; mean < 2; mean++) {
        make_pages(N_PAGE, SAC_KV_F16, false, &seed);
        const size_t bytes = mean ? check_notes("arkvale", "arkvale", side, &there)
                                  : check_notes("quest", "quest", side, &there);
        const struct op_lane_boxes op = {.at = {.base = side,
                                                .stride = bytes,
                                                .b_at = 2 * DIM,
                                                .page = p.page,
                                                .n_page = N_PAGE,
                                                .head_dim = DIM,
                                                .group = GROUP,
                                                .qa = qa,
                                                .qb = qb,
                                                .out = want[0],
                                                .out_stride = 2 * N_PAGE},
                                         .n_box = mean ? 1 : 2,
                                         .box_at = 4 * DIM,
                                         .box_out = N_PAGE,
                                         .q = p.q[0],
                                         .scale = 0.3f,
                                         .mean = mean,
                                         .unit = 1};
        struct op_lane_boxes away[MANY];
        memset(want, 0, sizeof want);
        memset(got, 0, sizeof got);
        ref.lanes.boxes(NULL, &ref, &op, 1);
        for (uint32_t i = 0; i < N_PAGE; i++) other[i] = p.page[i < OTHER ? i : N_PAGE - 1 - i];
        const uint32_t *other_there = put(other, sizeof other);
        for (uint32_t i = 0; i < MANY; i++) {
            away[i] = op;
            away[i].at.base = there;
            away[i].at.page = i == 5 + 3 * EIGHTH ? other_there : p.page_there;
            away[i].at.n_page = i == 7 + 7 * EIGHTH ? N_PAGE - 9 : N_PAGE;
            away[i].at.out = put(got, sizeof got);
            away[i].q = p.q_there;
            away[i].scale = 0.3f - 0.002f * (float)i;
        }
        assert_int_equal(api->lane_boxes(device, away, MANY), SAC_OK);
        get(got, away[0].at.out, sizeof got);
        assert_near(want[0], got[0], GROUP * 2 * N_PAGE, 1e-5);
        /* The third and the sixth lane of a block have heads in two tiles. */
        const uint32_t some[] = {0,
                                 5,
                                 5 + 2 * EIGHTH,
                                 5 + 3 * EIGHTH,
                                 5 + 7 * EIGHTH,
                                 7 + EIGHTH,
                                 7 + 5 * EIGHTH,
                                 7 + 7 * EIGHTH,
                                 MANY - 1};
        for (uint32_t k = 0; k < sizeof some / sizeof some[0]; k++) {
            get(got, away[some[k]].at.out, sizeof got);
            assert_int_equal(api->lane_boxes(device, away + some[k], 1), SAC_OK);
            get(alone, away[some[k]].at.out, sizeof alone);
            assert_memory_equal(got, alone, sizeof got);
        }
        give_all();
    }
}

/* The shares of a lane are those that it has by itself, whoever has how many pages and is with it.
 */
static void is_as_alone(const struct op_lane_shares *away)
{
    static float got[N_TOK], alone[N_TOK];
    const size_t bytes = away->at.n_page * PAGE_TOK * sizeof *got;
    get(got, away->at.share, bytes);
    assert_int_equal(api->lane_shares(device, away, 1), SAC_OK);
    get(alone, away->at.share, bytes);
    assert_memory_equal(got, alone, bytes);
}

enum { MANY = 40, HALF = MANY / 2, OTHER = 40 };

/* Lanes as those of sequences which have all pages in common, the first, or no more than they have.
 */
static void put_shares(struct op_lane_shares away[MANY], const struct op_lane_shares *op)
{
    static const float nothing[GROUP * N_TOK];
    uint32_t other[N_PAGE];
    float turned_q[GROUP][DIM];
    for (uint32_t i = 0; i < N_PAGE; i++) other[i] = p.page[i < OTHER ? i : N_PAGE - 1 - i];
    for (uint32_t i = 0; i < GROUP * DIM; i++) turned_q[i / DIM][i % DIM] = -p.q[i / DIM][i % DIM];
    const uint32_t *other_there = put(other, sizeof other);
    const float *q_there = put(turned_q, sizeof turned_q);
    for (uint32_t i = 0; i < MANY; i++) {
        away[i] = *op;
        away[i].at.base = p.there;
        away[i].at.page = i == HALF + 5 ? other_there : p.page_there;
        away[i].at.n_page = i == HALF + 7 ? N_PAGE - 20 : N_PAGE;
        away[i].at.q = i < HALF ? p.q_there : q_there;
        away[i].at.share = put(nothing, N_TOK * sizeof(float));
        away[i].at.e = put(nothing, sizeof nothing);
        away[i].sum = put(nothing, OP_LANE_PIECES(N_PAGE) * GROUP * sizeof(float));
        away[i].lse = put(nothing, GROUP * sizeof(float));
        away[i].result = put(nothing, sizeof *away[i].result);
    }
}

static void shares_are_the_same(void **state)
{
    (void)state;
    static float share[N_TOK], got[N_TOK], e[GROUP][N_TOK];
    float sum[OP_LANE_PIECES(N_PAGE) * GROUP], lse[GROUP], turned[GROUP * DIM];
    _Alignas(64) static uint8_t frame[OPS_SHARE_FRAME];
    uint64_t seed = 8;
    for (int bad = 0; bad < 2; bad++) {
        make_pages(N_PAGE, SAC_KV_Q8, bad, &seed);
        struct op_lane_result result = {0}, after = {0};
        const struct op_lane_shares op = {.at = {.base = p.frames,
                                                 .stride = p.geom.bytes,
                                                 .min_at = p.geom.k_min,
                                                 .step_at = p.geom.k_step,
                                                 .hi2_at = p.geom.k_hi2,
                                                 .page = p.page,
                                                 .n_page = N_PAGE,
                                                 .head_dim = DIM,
                                                 .group = GROUP,
                                                 .q = p.q[0],
                                                 .scale = 0.1f,
                                                 .share = share,
                                                 .e = e[0],
                                                 .frame = frame},
                                          .turned = turned,
                                          .lse = lse,
                                          .sum = sum,
                                          .result = &result};
        struct op_lane_shares away[MANY];
        put_shares(away, &op);
        ref.lanes.shares(NULL, &ref, &op, 1);
        assert_int_equal(api->lane_shares(device, away, MANY), SAC_OK);
        get(&after, away[0].result, sizeof after);
        assert_int_equal(result.n_bad > 0, bad);
        assert_int_equal(after.n_bad > 0, bad);
        get(got, away[0].at.share, sizeof got);
        double all = 0;
        for (uint32_t i = 0; i < N_TOK && !bad; i++) {
            assert_true(fabsf(got[i] / share[i] - 1) < 0.066f); /* powers are of eight bits */
            all += (double)got[i];
        }
        assert_true(bad || fabs(all - 1) < 0.01); /* and their rounding is to either side */
        const uint32_t some[] = {0, 5, HALF + 5, 7, HALF + 7, MANY - 1};
        for (uint32_t k = 0; k < sizeof some / sizeof some[0] && !bad; k++)
            is_as_alone(&away[some[k]]);
        give_all();
    }
    free_pages();
}

/* ---- Lists ---- */

/* One lane's list against a plain loop; some tokens are listed before, as by a draw. */
static void check_list(uint32_t n_before, bool dense, uint64_t *seed)
{
    static uint32_t mask[N_PAGE], page[N_PAGE], tok[N_TOK], got_page[N_PAGE], got_tok[N_TOK];
    struct op_lane_result result = {.n_tok = n_before, .n_chosen = 9, .n_bad = dense};
    struct attn_count count = {0};
    struct page_lines lines;
    uint32_t n_page = 0, n_tok = n_before;
    uint64_t bytes = 0;
    make_pages(N_PAGE, SAC_KV_Q8, false, seed);
    page_lines_init(&lines, &p.geom);
    for (uint32_t i = 0; i < N_PAGE; i++) {
        const uint64_t x = random_next(seed);
        mask[i] = x % 3 == 0 ? UINT32_MAX : x % 3 == 1 || n_before ? 0 : (uint32_t)(x >> 20);
    }
    for (uint32_t i = 0; i < n_before; i++) tok[i] = 7 * i;
    for (uint32_t i = 0; i < n_before && !dense; i++) { /* a page's tokens together */
        uint32_t word = 0;
        const uint32_t first = tok[i] / PAGE_TOK;
        for (; i < n_before && tok[i] / PAGE_TOK == first; i++) word |= 1u << tok[i] % PAGE_TOK;
        i--;
        bytes += page_lines_keys(&lines, word) + page_lines_values(&lines, word);
    }
    struct op_lane_list op = {.mask = put(mask, sizeof mask),
                              .n_page = N_PAGE,
                              .weighs = n_before > 0,
                              .result = put(&result, sizeof result),
                              .lines = &lines,
                              .page = put(page, sizeof page),
                              .tok = put(tok, sizeof tok),
                              .count = put(&count, sizeof count)};
    for (uint32_t i = 0; i < N_PAGE; i++) {
        const uint32_t word = dense ? UINT32_MAX : mask[i];
        bytes += page_lines_keys(&lines, word) + page_lines_values(&lines, word);
        if (word == UINT32_MAX) page[n_page++] = i;
        for (uint32_t b = 0; b < PAGE_TOK && word != UINT32_MAX; b++)
            if (word >> b & 1) tok[n_tok++] = i * PAGE_TOK + b;
    }
    assert_int_equal(api->lane_list(device, &op, 1), SAC_OK);
    get(&count, op.count, sizeof count);
    get(got_page, op.page, sizeof got_page);
    get(got_tok, op.tok, sizeof got_tok);
    assert_int_equal(count.dense, dense);
    assert_int_equal(count.not_finite, dense);
    assert_int_equal(count.n_chosen, dense ? 0 : 9);
    assert_int_equal(count.n_page, n_page);
    assert_int_equal(count.n_tok, dense ? 0 : n_tok);
    assert_int_equal(64 * (uint64_t)count.n_line, bytes);
    if (!dense) assert_memory_equal(page, got_page, n_page * sizeof *page);
    if (!dense) assert_memory_equal(tok, got_tok, n_tok * sizeof *tok);
    give_all();
}

static void lists_hold_what_is_marked(void **state)
{
    (void)state;
    uint64_t seed = 9;
    check_list(0, false, &seed);
    check_list(100, false, &seed);
    check_list(100, true, &seed);
    check_list(0, true, &seed);
    free_pages();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_are_the_same),    cmocka_unit_test(ends_are_the_same),
        cmocka_unit_test(the_largest_are_the_same), cmocka_unit_test(draws_are_the_same),
        cmocka_unit_test(votes_are_the_same),       cmocka_unit_test(logits_are_the_same),
        cmocka_unit_test(notes_are_the_same),       cmocka_unit_test(boxes_are_the_same),
        cmocka_unit_test(shares_are_the_same),      cmocka_unit_test(lists_hold_what_is_marked),
    };
    return cmocka_run_group_tests(tests, open_library, close_library);
}
