/* test_score.c: scores against their definitions, on cases computed by hand; the figures of Rouge-L
 * and of the edit similarity are also what the packages rouge 1.0.1 and rapidfuzz give. */
#include "eval/rng.h"
#include "eval/score.h"
#include "eval/summary.h"
#include "eval/words.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* The score of `answer` against references that '|' parts. */
static double score(enum metric metric, const char *answer, const char *expected)
{
    struct strlist list = {0};
    double out = -1;
    for (const char *at = expected;; at++) {
        const size_t n = strcspn(at, "|");
        strlist_addn(&list, at, n);
        at += n;
        if (!*at) break;
    }
    const struct score_args args = {.metric = metric, .answer = answer, .expected = &list};
    assert_int_equal(score_answer(&out, &args, NULL), SAC_OK);
    strlist_deinit(&list);
    return out;
}

#define SCORE(metric, answer, expected, want)                                                      \
    assert_true(fabs(score(metric, answer, expected) - (want)) < 1e-6)

static void ruler_matches_strings(void **state)
{
    (void)state;
    SCORE(METRIC_ALL_MATCH, "it is 123 and ABC", "123|abc|999|7", 0.5);
    SCORE(METRIC_ALL_MATCH, "", "123", 0);
    SCORE(METRIC_ANY_MATCH, "it is 123", "999|123", 1);
    SCORE(METRIC_ANY_MATCH, "it is 12", "999|123", 0);
}

static void exact_and_f1_normalise(void **state)
{
    (void)state;
    SCORE(METRIC_EXACT, " The  Cat.", "cat", 1);
    SCORE(METRIC_EXACT, "the cats", "cat", 0);
    /* {quick, fox} of 2 and {quick, brown, fox} of 3: 2 * 2 / (2 + 3). */
    SCORE(METRIC_F1, "the quick fox", "a quick brown fox!", 0.8);
    SCORE(METRIC_F1, "x x y", "x y y", 2.0 * 2 / 6); /* a multiset: one x, one y */
    SCORE(METRIC_F1, "something else", "wrong|something", 2.0 / 3);
    SCORE(METRIC_F1, "the", "an", 1); /* both empty */
    SCORE(METRIC_F1, "the", "word", 0);
}

static void rouge_l_is_the_packages(void **state)
{
    (void)state;
    /* LCS "the cat mat": 3 of 4 distinct words each. F = 2 * 9/16 / (6/4 + 1e-8). */
    SCORE(METRIC_ROUGE_L, "the cat on mat", "the cat sat mat", 0.75);
    /* As sets: "a b" of the answer's {a b} and the reference's {a b c}. */
    SCORE(METRIC_ROUGE_L, "a b a b", "a b c", 2 * (1.0 * 2 / 3) / (1 + 2.0 / 3));
    /* The union over sentences: "c1" gives w1 w2, "c2" gives w1 w3 w5; 4 of 5, of 9 in the answer.
     * This is the example of the working note on ROUGE. */
    SCORE(METRIC_ROUGE_L, "w1 w2 w6 w7 w8. w1 w3 w8 w9 w5.", "w1 w2 w3 w4 w5",
          2 * (0.8 * 0.5) / (0.8 + 0.5));
    SCORE(METRIC_ROUGE_L, "", "a b", 0);
    SCORE(METRIC_ROUGE_L, "a b", "a b", 1);
}

static void loopserve_counts_recall(void **state)
{
    (void)state;
    SCORE(METRIC_ROUGE_L_RECALL, "a x b y c", "a b c d", 0.75);
    SCORE(METRIC_ROUGE_L_RECALL, "c b a", "a b c d", 0.25);
    SCORE(METRIC_ROUGE_L_RECALL, "", "a", 0);
}

static void longbench_counts_numbers(void **state)
{
    (void)state;
    SCORE(METRIC_COUNT, "There are 7, no 8, no 7", "7", 2.0 / 3);
    SCORE(METRIC_COUNT, "seven", "7", 0);
    SCORE(METRIC_COUNT, "77", "7", 0);
    SCORE(METRIC_RETRIEVAL, "Paragraph 12", "Paragraph 12", 1);
    SCORE(METRIC_RETRIEVAL, "Paragraph 1 or 12", "Paragraph 12", 0.5);
}

static void classes_inside_the_true_one_do_not_count(void **state)
{
    (void)state;
    struct strlist classes = {0}, truth = {0};
    double out;
    strlist_add(&classes, "Food");
    strlist_add(&classes, "Sea Food");
    strlist_add(&classes, "Animal");
    strlist_add(&truth, "Sea Food");
    struct score_args args = {.metric = METRIC_CLASSIFICATION,
                              .answer = "It is Sea Food",
                              .expected = &truth,
                              .classes = &classes};
    assert_int_equal(score_answer(&out, &args, NULL), SAC_OK);
    assert_true(out == 1);
    args.answer = "Sea Food or Animal";
    assert_int_equal(score_answer(&out, &args, NULL), SAC_OK);
    assert_true(out == 0.5);
    args.answer = "Food";
    assert_int_equal(score_answer(&out, &args, NULL), SAC_OK);
    assert_true(out == 0);
    strlist_deinit(&classes);
    strlist_deinit(&truth);
}

static void code_is_compared_by_its_first_line(void **state)
{
    (void)state;
    double out;
    /* LCS "abd" of "abcd" and "abde": 2 * 3 / 8. */
    assert_int_equal(score_edit_similarity(&out, "abcd", "abde", NULL), SAC_OK);
    assert_true(out == 0.75);
    assert_int_equal(score_edit_similarity(&out, "abc", "xbz", NULL), SAC_OK);
    assert_true(out == 0.33); /* whole percent */
    SCORE(METRIC_CODE, "\n# a comment\n```\nreturn 1\nmore", "return 1", 1);
    SCORE(METRIC_CODE, "// all\n// comments", "return 1", 0);
    char answer[] = "\n\nfirst\nsecond";
    score_keep_first_line(answer);
    assert_string_equal(answer, "first");
}

static void names_go_both_ways(void **state)
{
    (void)state;
    for (unsigned i = 0; i < METRIC_N; i++)
        assert_int_equal(score_metric_find(score_metric_name((enum metric)i)), i);
    assert_int_equal(score_metric_find("beauty"), METRIC_N);
}

static void numbers_are_splitmix64(void **state)
{
    (void)state;
    /* The first outputs for state 0, as its authors' reference code prints them. */
    struct rng r = {0};
    assert_true(rng_next(&r) == UINT64_C(0xE220A8397B1DCDAF));
    assert_true(rng_next(&r) == UINT64_C(0x6E789E6AA1B965F4));
    uint32_t drawn[10], count[6] = {0};
    for (int i = 0; i < 6000; i++) count[rng_below(&r, 6)]++;
    for (int i = 0; i < 6; i++) assert_in_range(count[i], 850, 1150);
    for (int k = 0; k < 100; k++) {
        rng_sample_sorted(&r, drawn, 10, 12);
        for (int i = 1; i < 10; i++) assert_true(drawn[i - 1] < drawn[i]);
        assert_true(drawn[9] < 12);
    }
    struct rng a = rng_stream("vt", 4096, 42, 0), b = rng_stream("vt", 4096, 42, 1);
    assert_true(rng_next(&a) != rng_next(&b));
}

static void words_are_enough_and_distinct(void **state)
{
    (void)state;
    assert_true(words_n_adjective() >= 200 && words_n_noun() >= 800 && words_n_verb() >= 300);
    for (uint32_t i = 0; i < words_n_noun(); i++)
        for (uint32_t j = 0; j < i; j++)
            assert_string_not_equal(words_noun(i, NULL), words_noun(j, NULL));
}

static void bootstrap_holds_the_mean(void **state)
{
    (void)state;
    struct summary_mean m;
    const double same[] = {0.5, 0.5, 0.5},
                 half[] = {0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
    assert_int_equal(summary_bootstrap(&m, same, 3, 1, NULL), SAC_OK);
    assert_true(m.mean == 0.5 && m.low == 0.5 && m.high == 0.5 && m.n == 3);
    assert_int_equal(summary_bootstrap(&m, half, 16, 1, NULL), SAC_OK);
    /* The mean of 16 coins has a standard deviation of 1/8: 95 % lie within 0.245. */
    assert_true(m.mean == 0.5 && fabs(m.low - 0.255) < 0.07 && fabs(m.high - 0.745) < 0.07);
    assert_int_equal(summary_bootstrap(&m, half + 1, 1, 1, NULL), SAC_OK);
    assert_true(m.mean == 1 && m.n == 1 && isnan(m.low)); /* one sample has no interval */
    assert_int_equal(summary_bootstrap(&m, half, 0, 1, NULL), SAC_OK);
    assert_true(isnan(m.mean));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ruler_matches_strings),
        cmocka_unit_test(exact_and_f1_normalise),
        cmocka_unit_test(rouge_l_is_the_packages),
        cmocka_unit_test(loopserve_counts_recall),
        cmocka_unit_test(longbench_counts_numbers),
        cmocka_unit_test(classes_inside_the_true_one_do_not_count),
        cmocka_unit_test(code_is_compared_by_its_first_line),
        cmocka_unit_test(names_go_both_ways),
        cmocka_unit_test(numbers_are_splitmix64),
        cmocka_unit_test(words_are_enough_and_distinct),
        cmocka_unit_test(bootstrap_holds_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
