/* test_samkv.c: the readings of SamKV: which blocks stay, by statistics that are made by hand and
 * by a tiny model's, what is computed again, and documents of any length. */
#include "compose_bench.h"
#include "methods/context.h"
#include "methods/method_spec.h"

/* As the paper's formulas say; no block between is asked for then. */
#define WRITTEN "samkv:choose=asked,hot=token,asks=0,centre=off,between=noted,"

static void readings_differ_where_they_say(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.is_long = true}, false);
    const double n = 4 * (96 + 128 + 64), n_end = 3 * 3 * 64, n_middle = (3 + 5 + 1) * 64;
    const struct {
        const char *spec;
        double kept, rows; /* of a layer, in the mean; negative: any */
    } cases[] = {
        {WRITTEN "all_above=on,least=100", n_end + n_middle / 3, n_end},
        {WRITTEN "least=1", n_end + 64, n_end},
        {WRITTEN "least=2,divide_all=on", n_end + n_middle / 3, n_end},
        {WRITTEN "least=2", n_end + 2 * 64, n_end}, /* 2 + 2 + 1 candidates */
        {WRITTEN "least=2,compare=spread", n_end + 2 * 64, n_end},
        {WRITTEN "least=2,compare=range", n_end + 2 * 64, n_end},
        {WRITTEN "least=2,compare=softmax", n_end + 2 * 64, n_end},
        {WRITTEN "least=2,bias_by=head", n_end + 2 * 64, n_end},
        {"samkv:choose=read,blocks=0.1", n_end + 64, n_end + 64},
        {"samkv:choose=read,blocks=0.5,hot=token", n_end + 5 * 64, n_end},
        {"samkv:choose=read,blocks=0.5,hot=all", n_end + 5 * 64, n_end + 5 * 64},
        {"samkv:choose=read,blocks=1,hot=all", n, n},
        {"samkv:choose=read,blocks=0", n_end, n_end},
        {"samkv:choose=asked,layers=1,anchor=blocks,guard=on", -1, -1},
        {"samkv:choose=asked,fuse_by=head,hot=block", -1, -1},
        {"samkv:select=off,recompute=off", n_end, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sac_compose_report r;
        float logits[2][TINY_VOCAB];
        const sac_seq seq = compose(&b, cases[i].spec, N_DOC, &r);
        const double kept = r.resident_share * n, rows = r.recomputed_share * n;
        if (cases[i].kept >= 0 && fabs(kept - cases[i].kept) > 1e-6)
            fail_msg("%s keeps %g tokens, not %g", cases[i].spec, kept, cases[i].kept);
        if (cases[i].rows >= 0 && fabs(rows - cases[i].rows) > 1e-6)
            fail_msg("%s computes %g rows, not %g", cases[i].spec, rows, cases[i].rows);
        assert_true(kept >= n_end && kept <= n && rows <= kept);
        ask(&b, seq, logits);
        for (int t = 0; t < TINY_VOCAB; t++) assert_true(isfinite(logits[1][t]));
        sac_seq_remove(b.e, seq);
    }
    sac_engine_free(b.e);
}

/* Two documents of eight blocks, two layers of one head: statistics by hand. All queries have
 * COMMON in the first channel, as a model's biases make them; the question asks for the second
 * channel. */
enum { DIM = 4, N_BLOCK = 8, N_LAYERS = 2, N_HAND = 2, COMMON = 100 };
enum { N_HAND_PAGE = N_HAND * 2 * N_BLOCK, N_HAND_TOK = N_HAND_PAGE * PAGE_TOK };
/* Which blocks of a document stay, a bit each. */
enum { ENDS = 1 | 1 << 6 | 1 << 7, ANSWER = ENDS | 1 << 3, OTHER = ENDS | 1 << 4 };
enum { SHARED = ENDS | 1 << 5 };

struct by_hand {
    float query[N_HAND][N_LAYERS][DIM], key[N_HAND][N_LAYERS][N_BLOCK][DIM], anchor[DIM];
    float mass[N_BLOCK], slope[N_BLOCK], token[N_BLOCK];
    float asked[N_LAYERS][DIM], read[N_LAYERS][N_HAND_TOK], spare[2 * N_HAND_TOK + 4 * DIM];
    uint32_t refresh[N_LAYERS * N_HAND_PAGE];
    bool resident[N_LAYERS * N_HAND_PAGE]; /* [layer, page] */
};

static struct by_hand hand;

/* Block 3 of the first document answers, though the second layer would take block 4; block 5 fits
 * what all queries share. */
static void note_by_hand(void)
{
    hand = (struct by_hand){.anchor = {0, 8}};
    for (int l = 0; l < N_LAYERS; l++) {
        for (int d = 0; d < N_HAND; d++) {
            hand.query[d][l][0] = COMMON;
            hand.query[d][l][2] = d ? -1 : 1;
        }
        hand.asked[l][0] = COMMON;
        hand.asked[l][1] = 2;
        hand.key[0][l][3][1] = l ? 9 : 14;
        hand.key[0][l][4][1] = l ? 10 : 2;
        hand.key[0][l][5][0] = 1;
    }
    for (int b = 0; b < N_BLOCK; b++) hand.slope[b] = hand.mass[b] = (float)(b == 2);
}

static uint32_t kept_of(uint32_t doc, uint32_t layer)
{
    uint32_t blocks = 0;
    for (uint32_t b = 0; b < N_BLOCK; b++)
        blocks |= (uint32_t)hand.resident[layer * N_HAND_PAGE + 2 * (doc * N_BLOCK + b)] << b;
    return blocks;
}

static void plan_by_hand(const char *text)
{
    struct method_spec spec;
    sac_error err;
    const struct page_geom geom = {.head_dim = DIM, .n_kv_head = 1, .n_layer = N_LAYERS};
    const struct method_shape shape = {.geom = &geom, .group = 1};
    const struct context_doc doc[] = {{0, 2 * N_BLOCK}, {2 * N_BLOCK, 4 * N_BLOCK}};
    struct context_stats stats[N_HAND][N_LAYERS];
    for (int d = 0; d < N_HAND; d++)
        for (int l = 0; l < N_LAYERS; l++)
            stats[d][l] = (struct context_stats){hand.query[d][l], hand.key[d][l][0], hand.anchor,
                                                 hand.mass,        hand.slope,        hand.token};
    must(method_spec_parse(&spec, "context", text, &err), &err);
    const struct context_view view = {.shape = &shape,
                                      .param = spec.param,
                                      .n_layer = N_LAYERS,
                                      .n_page = N_HAND_PAGE,
                                      .n_doc = N_HAND,
                                      .doc = doc,
                                      .stats = stats[0],
                                      .mass = hand.read[0],
                                      .query = hand.asked[0],
                                      .n_head = 1};
    struct context_plan plan = {hand.refresh, hand.resident, hand.spare};
    memset(hand.refresh, 0, sizeof hand.refresh);
    spec.method->context->plan(&view, &plan);
}

/* What stays of the first document in both layers. */
static void check_by_hand(const char *text, uint32_t first, uint32_t second)
{
    plan_by_hand(text);
    if (kept_of(0, 0) != first || kept_of(0, 1) != second)
        fail_msg("%s keeps %#x and %#x", text, kept_of(0, 0), kept_of(0, 1));
}

static void what_all_queries_share_chooses_nothing(void **state)
{
    (void)state;
    note_by_hand();
    /* In the last layer the anchor is a fifth of the way down: one block of five. */
    check_by_hand("samkv:choose=asked", ANSWER, ANSWER);
    check_by_hand("samkv:choose=asked,bias=off", ANSWER, ANSWER);
    check_by_hand("samkv:choose=asked,scope=layer", ANSWER, OTHER);
    check_by_hand("samkv:choose=asked,between=noted", ENDS, ENDS);
    check_by_hand("samkv:choose=asked,between=noted,least=1", ANSWER, ANSWER);
    check_by_hand("samkv:choose=asked,between=noted,least=1,centre=off", SHARED, SHARED);
}

/* A document is asked for what the other one's end asks for, not its own. */
static void the_bias_is_of_other_documents(void **state)
{
    (void)state;
    note_by_hand();
    const char *const spec = "samkv:choose=asked,centre=off,between=noted,least=1";
    for (int l = 0; l < N_LAYERS; l++) {
        hand.asked[l][0] = 0;
        hand.query[0][l][0] = hand.query[0][l][2] = 0;
        hand.query[0][l][1] = hand.query[0][l][3] = COMMON;
        hand.key[0][l][2][3] = 20; /* more than block 3 has for the question alone */
        memset(hand.query[1][l], 0, sizeof hand.query[1][l]);
    }
    check_by_hand(spec, ANSWER, ANSWER);
    for (int l = 0; l < N_LAYERS; l++)
        memcpy(hand.query[1][l], hand.query[0][l], sizeof hand.query[1][l]);
    check_by_hand(spec, ENDS | 1 << 2, ENDS | 1 << 2);
}

/* Equations 2 and 3, of one document: the share of middle blocks that are candidates is where the
 * anchor lies between the best block and the worst, never below 0 or above 1, and then the mean of
 * layers. The anchor scores 8. */
static void the_share_is_where_the_anchor_lies(void **state)
{
    (void)state;
    static const struct {
        float score[N_LAYERS][2]; /* of the worst block and the best, others evenly between */
        uint32_t n, n_all_above; /* of five blocks: as written, and where all may beat the anchor */
    } cases[] = {
        {{{0, 16}, {0, 16}}, 3, 3},       /* half of 5, and up */
        {{{7, 9}, {4, 24}}, 4, 4},        /* 0.5 and 0.8 */
        {{{0, 8}, {0, 8}}, 0, 0},         /* the anchor is the best */
        {{{0, 8.5f}, {0, 8.5f}}, 1, 1},   /* just below the best */
        {{{7.5f, 16}, {7.5f, 16}}, 5, 5}, /* just above the worst */
        {{{8, 16}, {8, 16}}, 0, 5},       /* no better than the worst */
        {{{0, 16}, {0, 2}}, 2, 2},        /* above all in one layer: 0, not -3 */
        {{{0, 16}, {10, 12}}, 2, 4},      /* below all in one layer: 0 or 1, not 2 */
        {{{5, 5}, {5, 5}}, 0, 0},         /* nothing to lie between */
        {{{9, 9}, {9, 9}}, 0, 5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hand = (struct by_hand){.anchor = {0, 8}};
        for (int l = 0; l < N_LAYERS; l++) {
            const float low = cases[i].score[l][0], high = cases[i].score[l][1];
            hand.asked[l][1] = 1;
            for (int b = 0; b < 5; b++)
                hand.key[0][l][1 + b][1] = low + (high - low) * (float)b / 4;
        }
        /* Of all documents' blocks half may stay, which are as many as this one has. */
        plan_by_hand("samkv:choose=asked,layers=1,divide_all=on");
        const int n = __builtin_popcount(kept_of(0, 0) & ~(uint32_t)ENDS);
        plan_by_hand("samkv:choose=asked,layers=1,divide_all=on,all_above=on");
        const int n_all_above = __builtin_popcount(kept_of(0, 0) & ~(uint32_t)ENDS);
        if (n != (int)cases[i].n || n_all_above != (int)cases[i].n_all_above)
            fail_msg("case %zu: %d blocks, and %d", i, n, n_all_above);
    }
}

/* Documents in another order keep the same blocks. */
static void order_chooses_nothing(void **state)
{
    (void)state;
    note_by_hand();
    for (int l = 0; l < N_LAYERS; l++) hand.key[1][l][2][1] = 3;
    for (int with = 0; with < 2; with++) {
        const char *const spec =
            with ? "samkv:choose=asked,least=2,divide_all=on" : "samkv:choose=asked,least=2";
        uint32_t kept[N_HAND];
        struct by_hand turned;
        plan_by_hand(spec);
        for (uint32_t d = 0; d < N_HAND; d++) kept[d] = kept_of(d, 0);
        assert_int_equal(kept[0] & ANSWER, ANSWER);
        turned = hand;
        for (int d = 0; d < N_HAND; d++) {
            memcpy(hand.query[d], turned.query[1 - d], sizeof hand.query[d]);
            memcpy(hand.key[d], turned.key[1 - d], sizeof hand.key[d]);
        }
        plan_by_hand(spec);
        for (uint32_t d = 0; d < N_HAND; d++) assert_int_equal(kept_of(d, 0), kept[1 - d]);
        hand = turned;
    }
}

/* Blocks stay in all layers by what the question reads of all their tokens, in all documents
 * together; ends stay in any case, and what stays is computed again as `hot` says. */
static void what_the_question_reads_stays(void **state)
{
    (void)state;
    note_by_hand();
    const uint32_t rows = 2 * PAGE_TOK;
    for (uint32_t t = 0; t < rows; t++) {
        hand.read[1][1 * rows + t] = 0.5f;                 /* of the first document's block 1 */
        hand.read[0][(N_BLOCK + 4) * rows + t] = 0.75f;    /* of the second one's block 4 */
        hand.read[0][(N_BLOCK + 7) * rows + t] = 9;        /* of its end */
        hand.read[t % 2][4 * rows + t] = t < 8 ? 3 : 0.1f; /* much, of few tokens */
    }
    check_by_hand("samkv:choose=read,blocks=0.1", ENDS, ENDS);
    assert_int_equal(kept_of(1, 0), OTHER);
    check_by_hand("samkv:choose=read,blocks=0.2", ENDS | 1 << 1, ENDS | 1 << 1);
    check_by_hand("samkv:choose=read,blocks=0.21", OTHER | 1 << 1, OTHER | 1 << 1);
    assert_int_equal(kept_of(1, 1), OTHER);
    const uint32_t *word = hand.refresh + (N_BLOCK + 4) * 2; /* of the first layer */
    plan_by_hand("samkv:choose=read,blocks=0.1,hot=token");
    assert_int_equal(word[0] | word[1], 0);
    plan_by_hand("samkv:choose=read,blocks=0.1,hot=all");
    assert_int_equal(word[0] & word[1], UINT32_MAX);
    plan_by_hand("samkv:choose=read,blocks=0.1,hot=all,recompute=off");
    assert_int_equal(word[0] | word[1] | hand.refresh[0], 0);
    check_by_hand("samkv:choose=read,select=off", ENDS, ENDS);
}

/* The first block and the last two, of which the last may be short, never twice. */
static void short_documents_are_ends(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_page, first, end; /* pages that do not stay */
    } cases[] = {{1, 0, 0}, {2, 0, 0}, {3, 0, 0}, {6, 0, 0}, {7, 2, 4}, {8, 2, 4}, {9, 2, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct method_spec spec;
        sac_error err;
        const uint32_t n_page = cases[i].n_page;
        const struct page_geom geom = {.head_dim = DIM, .n_kv_head = 1, .n_layer = N_LAYERS};
        const struct method_shape shape = {.geom = &geom, .group = 1};
        const struct context_doc doc = {0, n_page};
        must(method_spec_parse(&spec, "context", "samkv:select=off", &err), &err);
        const struct context_view view = {.shape = &shape,
                                          .param = spec.param,
                                          .n_layer = N_LAYERS,
                                          .n_page = n_page,
                                          .n_doc = 1,
                                          .doc = &doc,
                                          .n_head = 1};
        struct context_plan plan = {hand.refresh, hand.resident, hand.spare};
        memset(hand.refresh, 0, sizeof hand.refresh);
        spec.method->context->plan(&view, &plan);
        for (uint32_t p = 0; p < N_LAYERS * n_page; p++) {
            const bool stays = p % n_page < cases[i].first || p % n_page >= cases[i].end;
            if (hand.resident[p] != stays || hand.refresh[p] != (stays ? UINT32_MAX : 0))
                fail_msg("page %u of %u", p % n_page, n_page);
        }
    }
}

/* By mean keys or by what is read. */
static void as_many_ask_as_are_told_to(void **state)
{
    (void)state;
    const char *const specs[] = {"samkv:choose=asked,between=noted,least=1",
                                 "samkv:choose=read,blocks=0.4"};
    const struct bench b = open_bench(&(struct setting){.is_long = true}, false);
    static float all[2][TINY_VOCAB], got[2][TINY_VOCAB];
    for (int i = 0; i < 2; i++) {
        static const uint32_t asks[] = {0, N_QUESTION, 1000, 1};
        for (int k = 0; k < 4; k++) {
            char spec[80];
            snprintf(spec, sizeof spec, "%s,asks=%u", specs[i], asks[k]);
            answer(&b, spec, N_DOC, k ? got : all);
            if (k && !memcmp(got, all, sizeof got) != (k < 3)) fail_msg("%s", spec);
        }
    }
    sac_engine_free(b.e);
}

/* Pages that stay when a question of these two tokens asks, a bit each. */
static uint64_t kept_for(const struct bench *b, int32_t first, int32_t last)
{
    const int32_t question[] = {first, last};
    const sac_compose_params p = {.method = "samkv:choose=read,blocks=0.2,asks=1",
                                  .doc = b->doc,
                                  .n_doc = N_DOC,
                                  .n_head = N_HEAD,
                                  .question = question,
                                  .n_question = 2};
    sac_seq seq;
    sac_error err;
    uint64_t pages = 0;
    must(sac_compose(b->e, &p, &seq, NULL, &err), &err);
    for (uint32_t i = 0; i < 1 + 4 * (96 + 128 + 64) / PAGE_TOK; i++)
        pages |= (uint64_t)(pool_table(&b->e->pool, seq, 0)[i] != PAGE_NONE) << i;
    sac_seq_remove(b->e, seq);
    return pages;
}

/* In a model of one layer a token's query follows from the token alone. */
static void the_last_token_reads(void **state)
{
    (void)state;
    sac_model *flat = tiny_open(&(struct tiny){.seed = 5, .n_layer = 1});
    const struct bench b = open_bench(&(struct setting){.model = flat, .is_long = true}, false);
    int n_other = 0;
    for (int32_t t = 0; t < 8; t++) {
        assert_int_equal(kept_for(&b, 0, t), kept_for(&b, 9 + t, t));
        n_other += kept_for(&b, 0, t) != kept_for(&b, 0, 9 + t);
    }
    assert_true(n_other > 0);
    sac_engine_free(b.e);
    sac_model_free(flat);
}

/* What is mixed lies between what was and what is new; a cosine for each head is another one. */
static void mixing_lies_between_old_and_new(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){0}, false);
    static float none[2][TINY_VOCAB], token[2][TINY_VOCAB], head[2][TINY_VOCAB], all[2][TINY_VOCAB];
    answer(&b, "samkv:recompute=off", N_DOC, none);
    answer(&b, "samkv", N_DOC, token);
    answer(&b, "samkv:fuse_by=head", N_DOC, head);
    answer(&b, "samkv:update=overwrite", N_DOC, all);
    const double way = distance(none, all);
    assert_true(distance(token, all) < way && distance(token, none) < way);
    assert_true(distance(head, all) < way && distance(head, none) < way);
    assert_true(distance(head, token) > 1e-4);
    sac_engine_free(b.e);
}

/* Values [n_page, KV heads, PAGE_TOK, TINY_DIM] of the second document in a layer. */
static void read_values(const struct bench *b, const char *spec, uint32_t layer, float *v)
{
    const uint32_t n_page = n_text[1] / PAGE_TOK, first = (N_HEAD + n_text[0]) / PAGE_TOK;
    const sac_seq seq = compose(b, spec, N_DOC, NULL);
    sac_error err;
    for (uint32_t p = 0; p < n_page; p++)
        for (uint32_t h = 0; h < TINY_KV_HEADS; h++)
            must(pool_read(&b->e->pool,
                           pool_table(&b->e->pool, seq, layer) + h * (size_t)b->e->pool.max_page +
                               first + p,
                           1, NULL, v + (p * TINY_KV_HEADS + h) * PAGE_TOK * TINY_DIM, &err),
                 &err);
    sac_seq_remove(b->e, seq);
}

/* Equation 4. Keys and values of the first layer follow from the tokens, so that the second layer
 * computes the same whatever becomes of them: what is mixed there is known. */
static void the_cosine_says_how_much_is_new(void **state)
{
    (void)state;
    enum { N_FLOAT = 128 * TINY_KV_HEADS * TINY_DIM, HEAD = PAGE_TOK * TINY_DIM };
    static float was[N_FLOAT], new[N_FLOAT], by_token[N_FLOAT], by_head[N_FLOAT];
    const struct bench b = open_bench(&(struct setting){0}, false);
    double moved = 0;
    read_values(&b, "samkv:recompute=off", 1, was);
    read_values(&b, "samkv:update=overwrite", 1, new);
    read_values(&b, "samkv:fuse_by=token", 1, by_token);
    read_values(&b, "samkv:fuse_by=head", 1, by_head);
    for (uint32_t t = 0; t < n_text[1]; t++) {
        const uint32_t first = t / PAGE_TOK * TINY_KV_HEADS * HEAD + t % PAGE_TOK * TINY_DIM;
        double xy[TINY_KV_HEADS + 1] = {0}, xx[TINY_KV_HEADS + 1] = {0},
                                  yy[TINY_KV_HEADS + 1] = {0};
        for (uint32_t i = 0; i < TINY_KV_HEADS * TINY_DIM; i++) {
            const uint32_t h = i / TINY_DIM, at = first + h * HEAD + i % TINY_DIM;
            for (uint32_t k = h; k <= TINY_KV_HEADS; k += TINY_KV_HEADS - h) {
                xy[k] += (double)new[at] * (double)was[at];
                xx[k] += (double)new[at] * (double)new[at];
                yy[k] += (double)was[at] * (double)was[at];
            }
        }
        for (uint32_t i = 0; i < TINY_KV_HEADS * TINY_DIM; i++) {
            const uint32_t h = i / TINY_DIM, at = first + h * HEAD + i % TINY_DIM;
            const double change = (double)new[at] - (double)was[at];
            const double token =
                fmax(0, xy[TINY_KV_HEADS] / sqrt(xx[TINY_KV_HEADS] * yy[TINY_KV_HEADS]));
            const double head = fmax(0, xy[h] / sqrt(xx[h] * yy[h]));
            assert_true(fabs((double)by_token[at] - (double)was[at] - token * change) < 3e-3);
            assert_true(fabs((double)by_head[at] - (double)was[at] - head * change) < 3e-3);
            moved = fmax(moved, (1 - token) * fabs(change));
        }
    }
    assert_true(moved > 0.03);
    sac_engine_free(b.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(readings_differ_where_they_say),
        cmocka_unit_test(what_all_queries_share_chooses_nothing),
        cmocka_unit_test(the_bias_is_of_other_documents),
        cmocka_unit_test(the_share_is_where_the_anchor_lies),
        cmocka_unit_test(order_chooses_nothing),
        cmocka_unit_test(what_the_question_reads_stays),
        cmocka_unit_test(short_documents_are_ends),
        cmocka_unit_test(as_many_ask_as_are_told_to),
        cmocka_unit_test(the_last_token_reads),
        cmocka_unit_test(mixing_lies_between_old_and_new),
        cmocka_unit_test(the_cosine_says_how_much_is_new),
    };
    return cmocka_run_group_tests(tests, bench_open_model, bench_free_model);
}
