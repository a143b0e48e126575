/* test_load.c: the parts of `bench serve` that need no server: arrivals against the process that
 * they are drawn from, streams cut at every byte, statistics against numbers done by hand. */
#include "app/load_plan.c"
#include "app/load_report.c"
#include "app/load_stream.c"
#include "must.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct load_params params(uint32_t n_chat)
{
    return (struct load_params){.seed = 7,
                                .n_chat = n_chat,
                                .n_turn = 1,
                                .rate = 10,
                                .burstiness = 1,
                                .n_input = 3,
                                .n_output = 5,
                                .n_prefix = 1};
}

/* Mean and squared coefficient of variation of the gaps: 1/rate, and 1/burstiness for gamma. */
static void measure_gaps(const struct load_params *p, double *mean, double *scv)
{
    struct load_plan plan;
    sac_error err;
    double sum = 0, squares = 0, before = 0;
    must(load_plan_make(&plan, p, &err), &err);
    for (size_t i = 0; i < plan.n; i++) {
        const double gap = plan.request[i].arrival_s - before;
        assert_true(gap >= 0);
        sum += gap;
        squares += gap * gap;
        before = plan.request[i].arrival_s;
    }
    *mean = sum / (double)plan.n;
    *scv = squares / (double)plan.n / (*mean * *mean) - 1;
    load_plan_deinit(&plan);
}

static void test_arrivals(void **state)
{
    (void)state;
    struct load_params p = params(20000);
    for (double burstiness = 0.5; burstiness <= 8; burstiness *= 4) {
        double mean, scv;
        p.burstiness = burstiness;
        measure_gaps(&p, &mean, &scv);
        assert_float_equal(mean, 0.1, 1e-9);
        assert_true(fabs(scv * burstiness - 1) < 0.1);
    }
    p.rate = 0;
    struct load_plan plan;
    sac_error err;
    must(load_plan_make(&plan, &p, &err), &err);
    assert_true(plan.request[plan.n - 1].arrival_s == 0);
    load_plan_deinit(&plan);
}

static void test_lengths(void **state)
{
    (void)state;
    struct load_params p = params(2000);
    struct load_plan plan;
    sac_error err;
    uint32_t low = UINT32_MAX, high = 0;
    p.n_output = 100;
    p.range_ratio = 0.25;
    must(load_plan_make(&plan, &p, &err), &err);
    for (size_t i = 0; i < plan.n; i++) {
        const uint32_t n = plan.request[i].n_output;
        if (n < low) low = n;
        if (n > high) high = n;
    }
    assert_int_equal(low, 75);
    assert_int_equal(high, 125);
    load_plan_deinit(&plan);
}

/* A text of one long word, or of one byte, ends, too. */
static void test_odd_texts(void **state)
{
    (void)state;
    static const char *const texts[] = {"x", " ", "aaaaaaaaaaaaaaaa", "a b", "\xC3\xA4 \xC3\xA4"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct load_params p = params(20);
        struct load_plan plan;
        sac_error err;
        p.text = texts[i];
        p.n_text = strlen(texts[i]);
        p.bytes_per_tok = 4;
        must(load_plan_make(&plan, &p, &err), &err);
        for (size_t k = 0; k < plan.n; k++) assert_true(strlen(plan.request[k].text) >= 12);
        load_plan_deinit(&plan);
    }
}

static const char stream[] =
    ": ping\n\n"
    "data: {\"choices\": [{\"delta\": {\"role\": \"assistant\", \"content\": \"\"}}]}\n\n"
    "data: {\"choices\": [{\"delta\": {\"content\": \"a\\nb\"}}]}\r\n\r\n"
    "event: x\ndata: {\"choices\": [{\"text\": \"c\"}], \"usage\": null}\n\n"
    "data: {\"choices\": [{\"delta\": {\"reasoning_content\": \"d\"}}]}\n\n"
    "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"stop\"}]}\n\n"
    "data:{\"choices\": [], \"usage\": {\"prompt_tokens\": 9, \"completion_tokens\": 3,"
    " \"prompt_tokens_details\": {\"cached_tokens\": 4}}}\n\n"
    "data: [DONE]\n\n";

static void free_sample(struct load_sample *sample)
{
    mem_free(sample->error);
    mem_free(sample->itl_s);
}

static void test_stream_cut_anywhere(void **state)
{
    (void)state;
    for (size_t cut = 0; cut < sizeof stream; cut++) {
        struct load_stream s = {0};
        struct load_sample sample = {0};
        assert_true(load_stream_take(&s, &sample, stream, cut, 1));
        assert_true(load_stream_take(&s, &sample, stream + cut, sizeof stream - 1 - cut, 3));
        load_stream_end(&s, &sample);
        assert_true(sample.is_done && !sample.error);
        assert_string_equal(s.text.data, "a\nbcd");
        assert_int_equal(sample.n_itl, 2);
        assert_int_equal(sample.n_input, 9);
        assert_int_equal(sample.n_cached, 4);
        assert_int_equal(sample.n_output, 3);
        const double gaps = sample.itl_s[0] + sample.itl_s[1];
        assert_true(sample.e2el_s == sample.ttft_s + gaps);
        load_stream_deinit(&s);
        free_sample(&sample);
    }
}

static void test_bad_streams(void **state)
{
    (void)state;
    static const struct {
        const char *text, *error;
    } bad[] = {
        {"", "without [DONE]"},
        {"data: {\"choices\": [{\"text\": \"a\"}]}\n\n", "without [DONE]"},
        {"data: [1]\n\ndata: [DONE]\n\n", "not JSON"},
        {"data: {\"choices\": [{\"text\": \"a\"}]}\n\ndata: [DONE]\n\n", "no usage"},
        {"data: {\"choices\": 3, \"usage\": {}}\n\ndata: [DONE]\n\n", "no text"},
        {"data: {\"error\": {\"message\": \"full\"}}\n\ndata: [DONE]\n\n", "full"},
        {"data: {\"error\": \"bad\"}\n\n", "bad"},
        {"data: {\"error\": {}}\n\n", "without a message"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct load_stream s = {0};
        struct load_sample sample = {0};
        assert_true(load_stream_take(&s, &sample, bad[i].text, strlen(bad[i].text), 1));
        load_stream_end(&s, &sample);
        assert_false(sample.is_done);
        assert_non_null(strstr(sample.error, bad[i].error));
        load_stream_deinit(&s);
        free_sample(&sample);
    }
}

static void test_statistics(void **state)
{
    (void)state;
    double values[] = {0.004, 0.001, 0.003, 0.002};
    const struct load_stat s = load_stat_make(values, 4);
    assert_float_equal(s.mean, 2.5, 1e-9);
    assert_float_equal(s.median, 2.5, 1e-9);
    assert_float_equal(s.std, 1.118033988749895, 1e-9);
    assert_float_equal(s.p99, 3.97, 1e-9); /* numpy.percentile([1, 2, 3, 4], 99) */
    double one[] = {0.5};
    assert_float_equal(load_stat_make(one, 1).p99, 500, 1e-9);
    assert_true(load_stat_make(one, 0).mean == 0);
}

static void test_result(void **state)
{
    (void)state;
    double gaps[] = {0.1, 0.3}, long_gaps[] = {5, 5};
    char failed[] = "HTTP 429";
    struct load_sample sample[] = {
        {.is_done = true, .ttft_s = 1, .e2el_s = 1.4, .itl_s = gaps, .n_itl = 2, .n_output = 5},
        {.is_done = true, .ttft_s = 2, .e2el_s = 2, .n_output = 1, .n_input = 3},
        {.error = failed, .ttft_s = 9, .itl_s = long_gaps, .n_itl = 2, .n_output = 100},
        {0}, /* never sent */
    };
    const struct load_run run = {.sample = sample, .n = 4, .duration_s = 2};
    const struct load_goodput goodput = {.ttft_ms = 1500, .tpot_ms = 100};
    struct load_result r;
    sac_error err;
    must(load_result_make(&r, &run, &goodput, &err), &err);
    assert_int_equal(r.n_done, 2);
    assert_int_equal(r.n_failed, 1);
    assert_int_equal(r.n_good, 1);
    assert_int_equal(r.n_output, 6);
    assert_float_equal(r.ttft.mean, 1500, 1e-9);
    assert_float_equal(r.tpot.mean, 100, 1e-9); /* 0.4 s over 4 tokens; one token has none */
    assert_float_equal(r.itl.mean, 200, 1e-9);
    assert_float_equal(r.e2el.median, 1700, 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arrivals),    cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_odd_texts),   cmocka_unit_test(test_stream_cut_anywhere),
        cmocka_unit_test(test_bad_streams), cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
