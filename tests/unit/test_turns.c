/* test_turns.c: a second prompt, behind an answer: methods that learn from a prompt learn from that
 * one too. The first asks for token FIRST, the second for token SECOND, which came with it. */
#include "lane_bench.h"

static struct lane_bench b;

enum { FIRST = 100, SECOND = 690, N_PROMPT = 600, N_ANSWER = 20, N_AGAIN = 140, MOST = 140 };

static void ask_for(uint32_t tok)
{
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t i = 0; i < LB_GROUP * LB_DIM; i++) b.q[h][i] = 2 * b.k[h][tok][i % LB_DIM];
}

static void open_turns(const char *spec)
{
    lb_open(&b, SAC_KV_F16, spec, 1);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++)
            for (uint32_t c = 0; c < LB_DIM; c++) b.k[h][t][c] = lb_unit(&b) > 0 ? 1 : -1;
    lb_seal(&b);
}

/* Rows [from, to) that all ask for one token. */
static void rows(uint32_t from, uint32_t to, uint32_t tok, bool is_prompt)
{
    for (uint32_t pos = from; pos < to; pos++) {
        ask_for(tok);
        lb_row(&b, pos, is_prompt);
    }
}

static void a_second_prompt_is_learnt_from(void **state)
{
    (void)state;
    static const char *const spec[] = {"snapkv:budget=80",
                                       "adakv:budget=80",
                                       "pyramidkv:budget=80",
                                       "h2o:budget=80",
                                       "lfps:budget=30",
                                       "lfps:budget=30,heads=group",
                                       "loopserve:budget=40,warm=snapkv,first=40",
                                       "loopserve:budget=40,warm=lines,first=40"};
    for (size_t i = 0; i < sizeof spec / sizeof spec[0]; i++) {
        open_turns(spec[i]);
        rows(N_PROMPT - LB_PAST, N_PROMPT, FIRST, true);
        rows(N_PROMPT, N_PROMPT + N_ANSWER, FIRST, false);
        for (uint32_t h = 0; h < LB_HEADS; h++)
            if (!lb_reads(&b, h, FIRST)) fail_msg("%s misses the first prompt's token", spec[i]);
        const uint32_t begin = N_PROMPT + N_ANSWER, end = begin + N_AGAIN;
        rows(begin, end, SECOND, true);
        rows(end, end + 3, SECOND, false);
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            if (!lb_reads(&b, h, SECOND)) fail_msg("%s misses the second prompt's token", spec[i]);
            if (lb_count(&b, h) > MOST) fail_msg("%s reads %u tokens", spec[i], lb_count(&b, h));
        }
        lb_close(&b);
    }
}

/* LoopServe counts the tokens of an answer from its prompt on: behind the second it begins anew. */
static void answers_are_counted_anew(void **state)
{
    (void)state;
    open_turns("loopserve:budget=40,stagger=off");
    rows(N_PROMPT - LB_PAST, N_PROMPT, FIRST, true);
    for (uint32_t turn = 0; turn < 2; turn++) {
        const uint32_t begin = N_PROMPT + turn * (N_ANSWER + N_AGAIN);
        for (uint32_t i = 0; i < N_ANSWER; i++) {
            rows(begin + i, begin + i + 1, FIRST, false);
            assert_int_equal(b.pick[0].dense, i + 1 < 16);
        }
        if (turn == 0) rows(begin + N_ANSWER, begin + N_ANSWER + N_AGAIN, SECOND, true);
    }
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_prompt_is_learnt_from),
        cmocka_unit_test(answers_are_counted_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
