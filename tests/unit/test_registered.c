/* test_registered.c: decode methods that are given at run time: what they see, what is read of what
 * they ask for, and what is refused. */
#include "must.h"
#include "tiny_model.h"

#include "saccade_method.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_PROMPT = 400, N_PAGE = N_PROMPT / 32 };

static sac_model *model;

/* What `choose` asks for, and what it was shown. */
struct asked {
    uint32_t page[N_PAGE], n, n_call;
    sac_choice seen;
    bool ordered; /* every card's first row lies below its second */
};

static uint32_t choose(void *user, const sac_choice *c, uint32_t *out_page)
{
    struct asked *a = user;
    a->seen = *c;
    a->n_call++;
    a->ordered = c->n_card == 2;
    for (uint32_t p = 0; p < c->n_page && a->ordered; p++)
        for (uint32_t i = 0; i < c->head_dim; i++) {
            const float *card = c->card + (size_t)p * 2 * c->head_dim;
            a->ordered = a->ordered && isfinite(card[i]) && card[i] < card[c->head_dim + i];
        }
    memcpy(out_page, a->page, a->n * sizeof *out_page);
    return a->n;
}

static struct asked asked;

static int open_model(void **state)
{
    sac_error err;
    const sac_method_def def = {
        .name = "mine", .summary = "what is asked for", .choose = choose, .user = &asked};
    (void)state;
    must(sac_method_register(&def, &err), &err);
    model = tiny_open(&(struct tiny){.seed = 5, .n_layer = 1, .n_kv_head = 1});
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

/* Reads of one decode row behind N_PROMPT tokens. */
static sac_reads decode_row(const char *spec)
{
    sac_engine_params p = sac_engine_params_default();
    int32_t tok[N_PROMPT + 1];
    sac_engine *e;
    sac_error err;
    sac_seq s;
    uint32_t n_row = 1;
    for (int i = 0; i <= N_PROMPT; i++) tok[i] = (i * 37 + i / 9) % TINY_VOCAB;
    p.n_ctx = 1024;
    p.n_threads = 1;
    p.decode = &spec;
    p.n_decode = 1;
    p.sparse_min_ctx = 0;
    asked.n_call = 0;
    must(sac_engine_create(&e, model, &p, &err), &err);
    must(sac_seq_create(e, &s, &err), &err);
    must(sac_seq_append(e, s, tok, N_PROMPT, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    must(sac_seq_append(e, s, tok + N_PROMPT, 1, SAC_ROW_DECODE, SAC_WANT_NONE, &err), &err);
    while (n_row) must(sac_step(e, NULL, NULL, &n_row, &err), &err);
    const sac_reads reads = sac_engine_get_stats(e).reads;
    sac_engine_free(e);
    return reads;
}

static void ask_for(const uint32_t *page, uint32_t n)
{
    memcpy(asked.page, page, n * sizeof *page);
    asked.n = n;
}

static void test_reads_what_is_asked_for(void **state)
{
    (void)state;
    ask_for((const uint32_t[]){7, 3, 5}, 3);
    const sac_reads r = decode_row("mine:budget=64");
    assert_int_equal(asked.n_call, 1);
    assert_int_equal(asked.seen.n_page, N_PAGE);
    assert_int_equal(asked.seen.pos, N_PROMPT);
    assert_true(asked.ordered);
    assert_int_equal(r.n_tok_chosen, 64);         /* 7 and 3, the most wanted */
    assert_int_equal(r.n_tok_read, 64 + 32 + 32); /* and the first and the newest page */
    assert_true(r.choose_bytes_read >= N_PAGE * 2 * asked.seen.head_dim * sizeof(float));
}

static void test_ends_and_repeats_cost_nothing(void **state)
{
    (void)state;
    ask_for((const uint32_t[]){0, 6, 6, N_PAGE - 1, 2}, 5);
    const sac_reads r = decode_row("mine:budget=64");
    assert_int_equal(r.n_tok_chosen, 64); /* 6 and 2 */
    assert_int_equal(r.n_tok_read, 128);
    ask_for((const uint32_t[]){4}, 1);
    assert_int_equal(decode_row("mine:budget=256,sink=0,recent=0").n_tok_read, 32);
}

static void test_a_page_that_is_not_there_makes_it_dense(void **state)
{
    (void)state;
    ask_for((const uint32_t[]){1, N_PAGE}, 2);
    sac_reads r = decode_row("mine:budget=64");
    assert_int_equal(r.n_select_dense, 1);
    assert_int_equal(r.n_tok_read, r.n_tok_seen);
    ask_for((const uint32_t[]){1}, 1);
    r = decode_row("mine:budget=64,dense=1");
    assert_int_equal(asked.n_call, 0);
    assert_int_equal(r.n_select_dense, 1);
}

static void refuse(const sac_method_def *def, const char *why)
{
    sac_error err = {0};
    assert_int_equal(sac_method_register(def, &err), SAC_ERR_ARG);
    if (!strstr(err.msg, why)) fail_msg("'%s' does not say '%s'", err.msg, why);
}

static void test_refusals(void **state)
{
    char name[16];
    sac_error err;
    sac_method_info info;
    size_t n = 0;
    (void)state;
    refuse(&(sac_method_def){.name = "mine", .summary = "", .choose = choose}, "already");
    refuse(&(sac_method_def){.name = "quest", .summary = "", .choose = choose}, "already");
    refuse(&(sac_method_def){.name = "a:b", .summary = "", .choose = choose}, "no name");
    refuse(&(sac_method_def){.name = "none", .summary = ""}, "no function");
    refuse(&(sac_method_def){.name = "none", .summary = "", .choose = choose, .n_card = 3}, "rows");
    for (int i = 1; i < SAC_METHODS_REGISTERED_MAX; i++) {
        snprintf(name, sizeof name, "m%d", i);
        must(sac_method_register(
                 &(sac_method_def){.name = name, .summary = "", .choose = choose, .user = &asked},
                 &err),
             &err);
    }
    refuse(&(sac_method_def){.name = "more", .summary = "", .choose = choose}, "no more");
    while (sac_method_at(n, &info)) n++;
    assert_true(sac_method_at(n - 1, &info));
    assert_string_equal(info.name, "m7");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_is_asked_for),
        cmocka_unit_test(test_ends_and_repeats_cost_nothing),
        cmocka_unit_test(test_a_page_that_is_not_there_makes_it_dense),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
