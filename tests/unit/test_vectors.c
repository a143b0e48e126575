/* test_vectors.c: the worked numbers of the papers and of their specification, and small cases
 * whose result can be written down: which pages and tokens decode methods read when every logit is
 * known. Nothing here is computed by the code that is tested. */
#include "logit_bench.h"

static struct lane_bench b;

/* ---- Boxes: Quest's and ArkVale's scores, held between pages of a known score ---- */

struct worked {
    const float *key; /* [n][n_channel] */
    uint32_t n, n_channel;
    const float *q;     /* [n_channel] */
    float above, below; /* the page's score */
};

/* Page 1 holds the worked keys again and again, pages 2 and 3 flat ones of a score a little above
 * and below: best first they are 2, 1, 3. */
static void expect_between(const char *method, const struct worked *w)
{
    static const uint32_t order[] = {2, 1, 3};
    for (uint32_t n_page = 1; n_page <= 3; n_page++) {
        char spec[96];
        snprintf(spec, sizeof spec, "%s,budget=%u,sink=0,recent=0", method, n_page * PAGE_TOK + 1);
        lb_open(&b, SAC_KV_F16, spec, 1);
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            for (uint32_t t = 0; t < PAGE_TOK; t++) {
                b.k[h][t][0] = -100 * (w->q[0] > 0 ? 1 : -1); /* page 0 is worse than all */
                memcpy(b.k[h][PAGE_TOK + t], w->key + t % w->n * w->n_channel,
                       w->n_channel * sizeof *w->key);
                b.k[h][2 * PAGE_TOK + t][0] = w->above / w->q[0];
                b.k[h][3 * PAGE_TOK + t][0] = w->below / w->q[0];
            }
            for (uint32_t g = 0; g < LB_GROUP; g++)
                for (uint32_t c = 0; c < w->n_channel; c++) b.q[h][g * LB_DIM + c] = 8 * w->q[c];
        }
        lb_seal(&b);
        lb_row(&b, 4 * PAGE_TOK, false);
        for (uint32_t h = 0; h < LB_HEADS; h++) expect_pages(&b, h, order, n_page);
        lb_close(&b);
    }
}

static const float arkvale_key[] = {1, 0, 2, -1, 3, -2, 0, -1, 2, 1, 1, 3, 2, -1, 1, 1};
static const float arkvale_q[] = {1, -1, 0.5f, 2};

/* The centre is (2, -0.5, 1, 1), the mean distance from it (0.5, 1, 0.5, 1.5): 9.75. */
static void arkvales_page_scores_9_75(void **state)
{
    (void)state;
    const struct worked w = {arkvale_key, 4, 4, arkvale_q, 9.78125f, 9.71875f};
    expect_between("arkvale:dense=0", &w);
    expect_between("arkvale:dense=0,reduce=raw", &w);
}

/* The same keys in a box that holds them all: 12. And the example of Quest's paper: 39. */
static void quests_pages_score_12_and_39(void **state)
{
    (void)state;
    static const float corner[] = {4, 3, 4, 3, 3, 2, 1, 3, -3, -4, -1, -1, -1, -4, -4, -4};
    static const float q[] = {-1, 1, 3, 0, 1, 0, -3, 2};
    const struct worked twelve = {arkvale_key, 4, 4, arkvale_q, 12.0625f, 11.9375f};
    const struct worked paper = {corner, 2, 8, q, 39.125f, 38.875f};
    expect_between("quest:dense=0,page=32", &twelve);
    expect_between("quest:dense=0,page=32", &paper);
}

/* The widths decide between pages of one centre, for arkvale by the mean distance from it. */
static void wide_boxes_come_first(void **state)
{
    (void)state;
    static const char *const spec[] = {"arkvale:budget=33,dense=0,sink=0,recent=0",
                                       "quest:budget=33,dense=0,sink=0,recent=0,page=32"};
    for (uint32_t i = 0; i < 2; i++) {
        logit_open(&b, spec[i]);
        logit_page(&b, 1, 16, 1, -1);
        logit_page(&b, 2, 16, 4, -4);
        logit_page(&b, 3, PAGE_TOK, 2, 2);
        lb_seal(&b);
        lb_row(&b, 4 * PAGE_TOK, false);
        EXPECT_PAGES(&b, 0, 2);
        lb_close(&b);
    }
}

/* Heads vote by their softmax over the pages, not by sums of scores: two sure heads that differ get
 * a page each before what is second for both. Raw scores, summed over the heads, prefer the
 * compromise: 10, -40, and -50 or less. */
static void heads_vote_by_shares(void **state)
{
    (void)state;
    static const char *const spec[] = {"arkvale:budget=65,dense=0,sink=0,recent=0",
                                       "arkvale:budget=65,dense=0,sink=0,recent=0,reduce=raw"};
    for (uint32_t i = 0; i < 2; i++) {
        logit_open(&b, spec[i]);
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            logit_set(&b, 0, PAGE_TOK + t, 10);
            logit_set(&b, 1, 2 * PAGE_TOK + t, 20);
            logit_both(&b, 3 * PAGE_TOK + t, 5);
            logit_set(&b, 1, 4 * PAGE_TOK + t, 8);
        }
        lb_seal(&b);
        lb_row(&b, 5 * PAGE_TOK, false);
        if (i == 0)
            EXPECT_PAGES(&b, 0, 1, 2);
        else
            EXPECT_PAGES(&b, 0, 2, 3);
        lb_close(&b);
    }
}

/* ---- PSA ---- */

/* One token of logit 1 in the own page, nothing in the sink page, pages 1 to 4 by their tokens. */
static void open_psa(const char *spec)
{
    static const float block[4][2] = {{3, 2}, {2.5f, 0}, {0, 0}, {-1, -1}};
    logit_open(&b, spec);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t t = 0; t < 2; t++) logit_both(&b, (1 + i) * PAGE_TOK + t, block[i][t]);
    logit_both(&b, 5 * PAGE_TOK, 1);
}

/* Algorithm 1 on the specification's blocks: coverage 0.268103, 0.621955, 0.957784, then 1. */
static void psa_stops_at_the_worked_coverage(void **state)
{
    (void)state;
    static const struct {
        double mass;
        uint32_t n_page;
    } stop[] = {{0.26805, 1}, {0.26815, 2}, {0.6219, 2}, {0.6220, 3}, {0.95773, 3}, {0.95783, 4}};
    static const uint32_t order[] = {0, 1, 2, 3, 4};
    for (size_t i = 0; i < sizeof stop / sizeof stop[0]; i++) {
        char spec[96];
        snprintf(spec, sizeof spec, "psa:stop=min,order=box,rest=min,mass=%.5f,recent=0",
                 stop[i].mass);
        open_psa(spec);
        lb_seal(&b);
        lb_row(&b, 5 * PAGE_TOK, false);
        for (uint32_t h = 0; h < LB_HEADS; h++) expect_pages(&b, h, order, 1 + stop[i].n_page);
        lb_close(&b);
    }
}

/* A second query head whose mass lies flat over all pages has seen 98/131 of it behind the third:
 * they go on together. */
static void psa_waits_for_its_last_head(void **state)
{
    (void)state;
    for (uint32_t flat = 0; flat < LB_GROUP; flat++) {
        open_psa("psa:stop=min,order=box,rest=min,mass=0.9,recent=0");
        for (uint32_t t = PAGE_TOK; t < 5 * PAGE_TOK; t++) logit_set(&b, flat, t, 0);
        lb_seal(&b);
        lb_row(&b, 5 * PAGE_TOK, false);
        EXPECT_PAGES(&b, 0, 0, 1, 2, 3, 4);
        lb_close(&b);
    }
}

/* Page 1 promises most (one token at 5, the others as far below 0) and holds e^5; page 2 holds
 * 32 e^4.5, page 3 holds 32 and page 4 32/e; e^1 is the row's own. */
static void open_rest(const char *spec)
{
    logit_open(&b, spec);
    logit_page(&b, 1, 1, 5, -5);
    logit_page(&b, 2, PAGE_TOK, 4.5f, 0);
    logit_page(&b, 3, PAGE_TOK, 0, 0);
    logit_page(&b, 4, PAGE_TOK, -1, 0);
    logit_both(&b, 5 * PAGE_TOK, 1);
    lb_seal(&b);
    lb_row(&b, 5 * PAGE_TOK, false);
}

/* What stands for a page not seen: the least of those seen, or the mean of the last step's. */
static void psa_guesses_the_rest(void **state)
{
    (void)state;
    /* Behind page 2: 1 / (1 + 2 e^5 / 3031.6) = 0.911 by the least, 0.345 by the last. */
    open_rest("psa:stop=min,order=box,rest=min,mass=0.90,recent=0");
    EXPECT_PAGES(&b, 0, 0, 1, 2);
    lb_close(&b);
    open_rest("psa:stop=min,order=box,rest=min,mass=0.92,recent=0");
    EXPECT_PAGES(&b, 0, 0, 1, 2, 3);
    lb_close(&b);
    open_rest("psa:stop=min,order=box,mass=0.34,rest=last,recent=0");
    EXPECT_PAGES(&b, 0, 0, 1, 2);
    lb_close(&b);
    open_rest("psa:stop=min,order=box,mass=0.35,rest=last,recent=0");
    EXPECT_PAGES(&b, 0, 0, 1, 2, 3);
    lb_close(&b);
    /* Steps of two pages, whose mean is 1515: 1 / (1 + 2 * 1515 / 3033) = 0.5004. */
    open_rest("psa:stop=min,order=box,mass=0.49,rest=last,step=2,recent=0");
    EXPECT_PAGES(&b, 0, 0, 1, 2);
    lb_close(&b);
    open_rest("psa:stop=min,order=box,mass=0.51,rest=last,step=2,recent=0");
    EXPECT_PAGES(&b, 0, 0, 1, 2, 3, 4);
    lb_close(&b);
}

/* What must be read counts for what is seen and not for the least page: the newest page, of nearly
 * no mass, does not end the visit. */
static void psas_own_pages_do_not_end_it(void **state)
{
    (void)state;
    open_psa("psa:stop=min,order=box,rest=min,mass=0.9,recent=32");
    for (uint32_t t = 0; t < PAGE_TOK; t++) logit_both(&b, 5 * PAGE_TOK + t, LOGIT_NONE);
    logit_both(&b, 6 * PAGE_TOK, 1);
    lb_seal(&b);
    lb_row(&b, 6 * PAGE_TOK, false);
    EXPECT_PAGES(&b, 0, 0, 1, 2, 3, 5);
    lb_close(&b);
}

/* ---- Tokens ---- */

/* Head 0 has ten tokens at 10, head 1 four, both a few that are less than alpha behind and many
 * that are more: as many are read as heads want in the mean. */
static void infinigen_counts_those_near_the_best(void **state)
{
    (void)state;
    logit_open(&b, "infinigen:budget=50%,alpha=5,rank=1,dense=0");
    for (uint32_t t = 0; t < 8; t++) logit_set(&b, 0, 40 + t, 10);
    for (uint32_t t = 0; t < 2; t++) logit_set(&b, 0, 60 + t, 5.5f);
    for (uint32_t t = 0; t < 40; t++) logit_set(&b, 0, 200 + t, 4.5f);
    for (uint32_t t = 0; t < 3; t++) logit_set(&b, 1, 100 + t, 10);
    logit_set(&b, 1, 110, 6);
    for (uint32_t t = 0; t < 40; t++) logit_set(&b, 1, 300 + t, 4);
    lb_seal(&b);
    lb_row(&b, 20 * PAGE_TOK, false);
    /* Of head 1 three hold a share of 1/3, of head 0 eight hold 1/8: the best seven. */
    EXPECT_TOKENS(&b, 0, 100, 101, 102, 40, 41, 42, 43);
    lb_close(&b);
}

/* A head's shares are of its own softmax, and every head counts the same. */
static void tokens_are_chosen_by_mean_shares(void **state)
{
    (void)state;
    static const char *const spec[] = {
        "topk:budget=4,sink=0,recent=0", "tokenselect:budget=4,sink=0,recent=0",
        "sparq:budget=4,rank=64,recent=0", "loki:budget=4,rank=1,recent=0"};
    for (size_t i = 0; i < sizeof spec / sizeof spec[0]; i++) {
        logit_open(&b, spec[i]);
        for (uint32_t t = 0; t < 3; t++) logit_set(&b, 0, 40 + t, 20); /* 1/3 of head 0 each */
        logit_set(&b, 1, 100, 1);  /* e / (e + 1 + e^-1) of head 1: 0.665 */
        logit_set(&b, 1, 101, 0);  /* 0.245 */
        logit_set(&b, 1, 102, -1); /* 0.090 */
        lb_seal(&b);
        lb_row(&b, 20 * PAGE_TOK, false);
        EXPECT_TOKENS(&b, 0, 100, 40, 41, 42);
        lb_close(&b);
    }
}

/* Equal scores: the first tokens win, whatever the method. */
static void of_equals_the_first_are_read(void **state)
{
    (void)state;
    logit_open(&b, "topk:budget=6,sink=0,recent=0");
    for (uint32_t t = 300; t < 500; t += 3) logit_both(&b, t, 2);
    lb_seal(&b);
    lb_row(&b, 20 * PAGE_TOK, false);
    EXPECT_TOKENS(&b, 0, 300, 303, 306, 309, 312, 315);
    lb_close(&b);
    logit_open(&b, "topk:budget=65,unit=page");
    for (uint32_t p = 7; p < 12; p++) logit_page(&b, p, PAGE_TOK, 2, 2);
    lb_seal(&b);
    lb_row(&b, 20 * PAGE_TOK, false);
    EXPECT_PAGES(&b, 0, 7, 8);
    lb_close(&b);
}

/* Sinks and the newest tokens are those that the parameters say. */
static void ends_are_read_as_told(void **state)
{
    (void)state;
    logit_open(&b, "streaming:budget=40,sink=3");
    lb_seal(&b);
    lb_row(&b, 20 * PAGE_TOK, false); /* 37 newest, itself counted: 604 to 640 */
    for (uint32_t t = 0; t < 20 * PAGE_TOK; t++)
        assert_int_equal(lb_reads(&b, 0, t), t < 3 || t >= 604);
    lb_close(&b);
    logit_open(&b, "topk:budget=40,sink=3,recent=20");
    for (uint32_t t = 100; t < 200; t++) logit_both(&b, t, 5);
    lb_seal(&b);
    lb_row(&b, 20 * PAGE_TOK, false);
    for (uint32_t t = 0; t < 20 * PAGE_TOK; t++)
        assert_int_equal(lb_reads(&b, 0, t), t < 3 || t >= 621 || (t >= 100 && t < 140));
    lb_close(&b);
}

/* A softcap of 5 makes 20 and 10 of head 0 nearly equal, and takes from head 1's best by raising
 * all others: of two tokens the second is head 0's then, and head 1's without it. */
static void softcaps_bend_the_shares(void **state)
{
    (void)state;
    for (int capped = 0; capped < 2; capped++) {
        logit_open(&b, "topk:budget=2,sink=0,recent=0");
        logit_set(&b, 0, 40, 20);
        logit_set(&b, 0, 41, 10);
        for (uint32_t t = 0; t < 3; t++) logit_set(&b, 1, 100 + t, 1 - (float)t);
        lb_seal(&b);
        lb_point(&b, 20 * PAGE_TOK, false);
        b.lane[0].softcap = capped ? 5 : 0;
        b.pick[0] = (struct method_pick){.mask = b.mask[0]};
        choose_one(b.spec.method->decode, &b.lane[0], &b.pick[0]);
        if (capped)
            EXPECT_TOKENS(&b, 0, 40, 41);
        else
            EXPECT_TOKENS(&b, 0, 40, 100);
        lb_close(&b);
    }
}

/* The channel of the largest query component scores, whatever its sign: -4 times -16 / 8 there
 * against 5 times 8 / 8. */
static void sparqs_channels_are_the_largest(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "sparq:budget=1,rank=1,recent=0", 1);
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        b.k[h][70][0] = 5;
        b.k[h][90][2] = -4;
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            b.q[h][g * LB_DIM] = 8;
            b.q[h][g * LB_DIM + 2] = -16;
        }
    }
    lb_seal(&b);
    lb_row(&b, 10 * PAGE_TOK, false);
    EXPECT_TOKENS(&b, 0, 90);
    lb_close(&b);
}

/* A block stands for itself by the mean of its two tokens that are looked at most: 8, 9 and 6.5. */
static void infllms_blocks_score_by_their_representatives(void **state)
{
    (void)state;
    static const float pair[3][2] = {{10, 6}, {9, 9}, {11, 2}};
    logit_open(&b, "infllm:budget=32,sink=0,recent=32,block=32,repr=2,window=4");
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t t = 0; t < 2; t++) logit_both(&b, (1 + i) * PAGE_TOK + 5 + t, pair[i][t]);
    lb_seal(&b);
    for (uint32_t pos = 6 * PAGE_TOK - 4; pos < 6 * PAGE_TOK; pos++) lb_row(&b, pos, true);
    lb_row(&b, 6 * PAGE_TOK, false);
    EXPECT_PAGES(&b, 0, 2, 5);
    lb_close(&b);
}

/* A head is a retrieval head when more than `gate` of the attention of the prompt's last rows lies
 * between sinks and recent tokens: here e^x of e^x + 1, 0.269 or 0.182. */
static void duos_gate_is_a_share(void **state)
{
    (void)state;
    for (int far = 0; far < 2; far++) {
        logit_open(&b, "duo:gate=0.2,sink=4,recent=32,window=4");
        logit_both(&b, 2, 0);
        logit_both(&b, 100, far ? -1.0f : -1.5f);
        lb_seal(&b);
        for (uint32_t pos = 6 * PAGE_TOK - 4; pos < 6 * PAGE_TOK; pos++) lb_row(&b, pos, true);
        lb_row(&b, 6 * PAGE_TOK, false);
        assert_int_equal(b.pick[0].dense, far);
        for (uint32_t t = 0; t < 6 * PAGE_TOK && !far; t++) /* 32 newest, itself counted */
            assert_int_equal(lb_reads(&b, 0, t), t < 4 || t >= 161);
        lb_close(&b);
    }
}

/* Pages that no row has wanted go, the oldest first; with prompt=keep those of the prompt stay. */
static void raas_drops_the_oldest(void **state)
{
    (void)state;
    static const char *const spec[] = {"raas:budget=97,prompt=age", "raas:budget=97"};
    for (uint32_t i = 0; i < 2; i++) {
        logit_open(&b, spec[i]);
        logit_page(&b, 0, PAGE_TOK, 5, 0);
        logit_page(&b, 2, PAGE_TOK, 5, 0);
        lb_seal(&b);
        lb_row(&b, 5 * PAGE_TOK, false); /* pages 1, 3, 4 bear the marks of when they came */
        if (i == 0)
            EXPECT_PAGES(&b, 0, 0, 2, 4);
        else
            assert_true(b.pick[0].dense);
        lb_close(&b);
    }
}

/* Four live: the two newest, and of the others the two that have had most. Rows 31 and 32 give
 * tokens 5, 9 and 20 the shares 4/7, 2/7 and 1/7: 20 goes first. Row 33 looks at token 32 alone,
 * which has had 1 of each head then, more than the 4/7 of token 9: that goes when 32 is no more
 * among the newest. */
static void h2o_drops_who_has_had_the_least(void **state)
{
    (void)state;
    logit_open(&b, "h2o:budget=4,heavy=0.5,window=2");
    logit_both(&b, 5, 1.386719f);
    logit_both(&b, 9, 0.693359f);
    logit_both(&b, 20, 0);
    for (uint32_t h = 0; h < LB_HEADS; h++) b.k[h][32][2] = 20;
    lb_seal(&b);
    lb_row(&b, 31, true);
    lb_row(&b, 32, true);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            b.q[h][g * LB_DIM + g] = 0;
            b.q[h][g * LB_DIM + 2] = 8;
        }
    lb_row(&b, 33, false);
    EXPECT_TOKENS(&b, 0, 5, 9);
    lb_row(&b, 34, false);
    EXPECT_TOKENS(&b, 0, 5);
    lb_close(&b);
}

/* The entry that psa hands over is attention over the pages that it has marked. */
static void expect_attention(uint32_t pos)
{
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            double sum = 0, value[LB_DIM] = {0};
            for (uint32_t t = 0; t < pos / PAGE_TOK * PAGE_TOK; t++) {
                if (!b.mask[h][t / PAGE_TOK]) continue;
                const double w = exp(lb_logit(&b, b.q[h] + g * LB_DIM, h, t));
                sum += w;
                for (uint32_t c = 0; c < LB_DIM; c++) value[c] += w * (double)b.v[h][t][c];
            }
            assert_true(b.pick[h].attended);
            assert_true(fabs((double)b.rest_log[h][g] - log(sum)) < 1e-5);
            for (uint32_t c = 0; c < LB_DIM; c++)
                assert_true(fabs((double)b.rest_value[h][g * LB_DIM + c] - value[c] / sum) < 1e-5);
        }
}

static void psa_keeps_what_attention_would_make(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        lb_open(&b, type ? SAC_KV_Q8 : SAC_KV_F16, "psa:stop=min,order=box,rest=min,mass=0.7", 51);
        lb_random_keys(&b, 2);
        lb_seal(&b);
        lb_random_query(&b, 3);
        lb_row(&b, 1000, false);
        for (uint32_t h = 0; h < LB_HEADS; h++) assert_true(b.pick[h].n_chosen > 0);
        expect_attention(1000);
        lb_close(&b);
    }
}

/* A row whose own page holds all of the attention, e^900 times that of the others, has seen enough
 * with one page beside those that are read in any case, and these keep their own scale. */
static void psas_pages_may_be_far_below_the_own(void **state)
{
    (void)state;
    open_psa("psa:stop=min,order=box,rest=min,mass=0.9,recent=32");
    logit_both(&b, 5 * PAGE_TOK, 900);
    lb_seal(&b);
    lb_row(&b, 5 * PAGE_TOK, false);
    EXPECT_PAGES(&b, 0, 0, 1, 4);
    expect_attention(5 * PAGE_TOK);
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arkvales_page_scores_9_75),
        cmocka_unit_test(quests_pages_score_12_and_39),
        cmocka_unit_test(wide_boxes_come_first),
        cmocka_unit_test(heads_vote_by_shares),
        cmocka_unit_test(psa_keeps_what_attention_would_make),
        cmocka_unit_test(psas_pages_may_be_far_below_the_own),
        cmocka_unit_test(psa_stops_at_the_worked_coverage),
        cmocka_unit_test(psa_waits_for_its_last_head),
        cmocka_unit_test(psa_guesses_the_rest),
        cmocka_unit_test(psas_own_pages_do_not_end_it),
        cmocka_unit_test(infinigen_counts_those_near_the_best),
        cmocka_unit_test(tokens_are_chosen_by_mean_shares),
        cmocka_unit_test(of_equals_the_first_are_read),
        cmocka_unit_test(ends_are_read_as_told),
        cmocka_unit_test(softcaps_bend_the_shares),
        cmocka_unit_test(sparqs_channels_are_the_largest),
        cmocka_unit_test(infllms_blocks_score_by_their_representatives),
        cmocka_unit_test(duos_gate_is_a_share),
        cmocka_unit_test(raas_drops_the_oldest),
        cmocka_unit_test(h2o_drops_who_has_had_the_least),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
