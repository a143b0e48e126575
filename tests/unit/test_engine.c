/* test_engine.c: what the engine promises about sequences, on a tiny model, and where kernels of
 * weights have a part in it on a real one (smollm2-135m) too. Comparisons are bit for bit: a row's
 * result depends on the row alone (design D7). */
#include "base/mem.h"
#include "engine/engine.h"
#include "model_open.h"
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_PROMPT 101 /* three pages and a tail */
#define N_DECODE 40  /* crosses a page border */

static sac_model *model;
static uint32_t n_vocab, n_prompt, n_decode;
static int32_t prompt[512];

static const char text[] =
    "The eye does not glide along a line of print. It jumps, rests, and jumps again; what lies "
    "between two places of rest is never seen sharply, and yet the reader misses nothing. A page "
    "of a novel takes some thirty such jumps, a page of law many more, because the reader goes "
    "back "
    "to the words on which the meaning hangs. Nobody teaches a child to do this. The hand that "
    "wrote the sentence moved at one speed over every letter, and the eye that reads it spends its "
    "time where it pays. Old scribes knew it when they set the first letter of a chapter in red. "
    "Numbers, names and the word `not` are looked at longest, and articles hardly at all.";

static int read_prompt(void)
{
    sac_error err;
    if (!model) return -1;
    n_vocab = sac_model_get_info(model).n_vocab;
    int32_t *tok;
    size_t n;
    if (sac_tokenize(model, text, strlen(text), 0, &tok, &n, &err) != SAC_OK || n < N_PROMPT)
        return -1;
    memcpy(prompt, tok, N_PROMPT * sizeof *tok);
    sac_free(tok);
    return 0;
}

static int load_tiny(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 2});
    n_prompt = N_PROMPT;
    n_decode = N_DECODE;
    return read_prompt();
}

static int load_real(void **state)
{
    (void)state;
    model = model_open();
    n_prompt = 40;
    n_decode = 3;
    return read_prompt();
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static sac_engine *new_engine(sac_engine_params p)
{
    sac_engine *e;
    sac_error err;
    if (p.n_ctx == 0) p.n_ctx = 256;
    if (p.n_seq_max == 0) p.n_seq_max = 1;
    if (p.n_threads == 0) p.n_threads = 1; /* tests run side by side */
    if (sac_engine_create(&e, model, &p, &err) != SAC_OK) fail_msg("%s", err.msg);
    return e;
}

/* Keeps the last logits of one sequence. */
struct catch
{
    sac_seq seq;
    uint32_t n_seen;
    float *logits; /* [n_vocab] */
};

static void catch_row(void *user, const sac_row *row)
{
    struct catch *c = user;
    if (row->seq != c->seq) return;
    memcpy(c->logits, row->logits, n_vocab * sizeof *c->logits);
    c->n_seen++;
}

static int32_t argmax(const float *x)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n_vocab; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

static void append(sac_engine *e, sac_seq s, const int32_t *tok, size_t n, sac_row_kind kind,
                   sac_want want)
{
    sac_error err;
    must(sac_seq_append(e, s, tok, n, kind, want, &err), &err);
}

static void run_all(sac_engine *e, struct catch *c)
{
    uint32_t n = 1;
    sac_error err;
    while (n) must(sac_step(e, catch_row, c, &n, &err), &err);
}

/* Prompt and greedy answer of one sequence; `out` gets the tokens, `logits` those of the last. */
static void answer(sac_engine *e, sac_seq s, size_t n, int32_t out[N_DECODE], float *logits)
{
    struct catch c = {.seq = s, .logits = logits};
    append(e, s, prompt, n, SAC_ROW_PROMPT, SAC_WANT_LAST);
    run_all(e, &c);
    for (int i = 0; i < (int)n_decode; i++) {
        out[i] = argmax(logits);
        append(e, s, &out[i], 1, SAC_ROW_DECODE, SAC_WANT_LAST);
        run_all(e, &c);
    }
    assert_int_equal(c.n_seen, 1 + n_decode);
}

struct result {
    int32_t tok[N_DECODE];
    float *logits;
};

static struct result answer_alone(sac_engine_params p)
{
    struct result r = {.logits = malloc(n_vocab * sizeof(float))};
    sac_engine *e = new_engine(p);
    sac_seq s;
    sac_error err;
    must(sac_seq_create(e, &s, &err), &err);
    answer(e, s, n_prompt, r.tok, r.logits);
    sac_engine_free(e);
    return r;
}

static void same_result(const struct result *a, const struct result *b)
{
    assert_memory_equal(a->tok, b->tok, sizeof a->tok);
    assert_memory_equal(a->logits, b->logits, n_vocab * sizeof(float));
}

static void chunk_and_threads(sac_kv_type type)
{
    const struct {
        uint32_t n_batch, n_threads;
    } cases[] = {{1, 1}, {7, 2}, {33, 1}, {512, 2}};
    sac_engine_params p = {.type_k = type, .type_v = type};
    const struct result whole = answer_alone(p);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        p.n_batch = cases[i].n_batch;
        p.n_threads = cases[i].n_threads;
        const struct result other = answer_alone(p);
        same_result(&whole, &other);
        free(other.logits);
    }
    free(whole.logits);
}

static void chunks_and_threads_do_not_change_the_answer(void **state)
{
    (void)state;
    chunk_and_threads(SAC_KV_F16);
    chunk_and_threads(SAC_KV_Q8);
}

static void feed_others(sac_engine *e, const sac_seq *others, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const int32_t tok = prompt[(i * 13 + sac_seq_length(e, others[i], NULL)) % n_prompt];
        append(e, others[i], &tok, 1, i % 2 ? SAC_ROW_DECODE : SAC_ROW_PROMPT, SAC_WANT_LAST);
    }
}

static void other_sequences_do_not_change_the_answer(void **state)
{
    (void)state;
    const struct result alone = answer_alone((sac_engine_params){0});
    sac_engine *e = new_engine((sac_engine_params){.n_threads = 2, .n_seq_max = 9, .n_batch = 64});
    struct result r = {.logits = malloc(n_vocab * sizeof(float))};
    sac_seq s, others[8];
    sac_error err;
    for (int i = 0; i < 4; i++) must(sac_seq_create(e, &others[i], &err), &err);
    must(sac_seq_create(e, &s, &err), &err);
    for (int i = 4; i < 8; i++) must(sac_seq_create(e, &others[i], &err), &err);
    for (uint32_t i = 0; i < 8; i++)
        append(e, others[i], prompt + i, 20 + 3 * i, SAC_ROW_PROMPT, SAC_WANT_NONE);
    struct catch c = {.seq = s, .logits = r.logits};
    append(e, s, prompt, n_prompt, SAC_ROW_PROMPT, SAC_WANT_LAST);
    run_all(e, &c);
    for (int i = 0; i < (int)n_decode; i++) {
        r.tok[i] = argmax(r.logits);
        feed_others(e, others, 8);
        append(e, s, &r.tok[i], 1, SAC_ROW_DECODE, SAC_WANT_LAST);
        run_all(e, &c);
    }
    same_result(&alone, &r);
    free(alone.logits);
    free(r.logits);
    sac_engine_free(e);
}

static void forks_share_pages_and_go_their_own_way(void **state)
{
    (void)state;
    sac_engine *e = new_engine((sac_engine_params){.n_seq_max = 3});
    struct result a = {.logits = malloc(n_vocab * sizeof(float))};
    struct result b = {.logits = malloc(n_vocab * sizeof(float))};
    sac_seq base, left, right;
    sac_error err;
    must(sac_seq_create(e, &base, &err), &err);
    append(e, base, prompt, 70, SAC_ROW_PROMPT, SAC_WANT_NONE);
    assert_int_equal(sac_seq_fork(e, base, &left, &err), SAC_ERR_ARG); /* tokens pend */
    struct catch c = {.seq = base, .logits = a.logits};
    run_all(e, &c);
    const uint64_t n_free = sac_engine_get_stats(e).n_page_free;
    must(sac_seq_fork(e, base, &left, &err), &err);
    must(sac_seq_fork(e, base, &right, &err), &err);
    assert_int_equal(sac_engine_get_stats(e).n_page_free, n_free); /* shared */
    assert_int_equal(sac_seq_length(e, right, NULL), 70);
    c.seq = left;
    append(e, left, prompt + 5, 31, SAC_ROW_PROMPT, SAC_WANT_LAST); /* something else */
    run_all(e, &c);
    sac_seq_remove(e, base);
    c = (struct catch){.seq = right, .logits = a.logits};
    append(e, right, prompt + 70, N_PROMPT - 70, SAC_ROW_PROMPT, SAC_WANT_LAST);
    run_all(e, &c);
    const struct result alone = answer_alone((sac_engine_params){0});
    c = (struct catch){.seq = right, .logits = a.logits};
    for (int i = 0; i < N_DECODE; i++) {
        a.tok[i] = argmax(a.logits);
        append(e, right, &a.tok[i], 1, SAC_ROW_DECODE, SAC_WANT_LAST);
        run_all(e, &c);
    }
    same_result(&alone, &a);
    sac_seq_remove(e, left);
    sac_seq_remove(e, right);
    const sac_engine_stats stats = sac_engine_get_stats(e);
    assert_int_equal(stats.n_page_free, stats.n_page);
    free(alone.logits);
    free(a.logits);
    free(b.logits);
    sac_engine_free(e);
}

static void truncation_goes_back_exactly(void **state)
{
    (void)state;
    const uint32_t cuts[] = {100, 96, 64, 37, 1, 0};
    const struct result alone = answer_alone((sac_engine_params){0});
    sac_engine *e = new_engine((sac_engine_params){0});
    struct result r = {.logits = malloc(n_vocab * sizeof(float))};
    sac_seq s;
    sac_error err;
    must(sac_seq_create(e, &s, &err), &err);
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        struct catch c = {.seq = s, .logits = r.logits};
        const uint32_t have = sac_seq_length(e, s, NULL);
        append(e, s, prompt + have, N_PROMPT - have, SAC_ROW_PROMPT, SAC_WANT_LAST);
        run_all(e, &c);
        assert_int_equal(argmax(r.logits), alone.tok[0]);
        append(e, s, prompt, 50, SAC_ROW_PROMPT, SAC_WANT_NONE);
        run_all(e, &c);
        must(sac_seq_truncate(e, s, cuts[i], &err), &err);
        assert_int_equal(sac_seq_length(e, s, NULL), cuts[i]);
    }
    answer(e, s, N_PROMPT, r.tok, r.logits);
    same_result(&alone, &r);
    free(alone.logits);
    free(r.logits);
    sac_engine_free(e);
}

static void a_step_allocates_nothing(void **state)
{
    (void)state;
    sac_engine *e = new_engine((sac_engine_params){.n_seq_max = 2});
    float *logits = malloc(n_vocab * sizeof(float));
    struct catch c = {.logits = logits};
    sac_seq s;
    sac_error err;
    must(sac_seq_create(e, &s, &err), &err);
    c.seq = s;
    const uint64_t before = mem_count();
    mem_fail_after(1);
    append(e, s, prompt, N_PROMPT, SAC_ROW_PROMPT, SAC_WANT_ALL);
    run_all(e, &c);
    append(e, s, prompt, 1, SAC_ROW_DECODE, SAC_WANT_LAST);
    run_all(e, &c);
    sac_seq copy;
    must(sac_seq_fork(e, s, &copy, &err), &err);
    must(sac_seq_truncate(e, copy, 33, &err), &err);
    sac_seq_remove(e, copy);
    mem_fail_after(0);
    assert_int_equal(mem_count(), before);
    assert_int_equal(c.n_seen, N_PROMPT + 1);
    free(logits);
    sac_engine_free(e);
}

static void create_survives_every_failed_allocation(void **state)
{
    (void)state;
    const sac_engine_params p = {.n_ctx = 64, .n_seq_max = 1, .n_batch = 16, .n_threads = 2};
    sac_status status = SAC_ERR_MEMORY;
    uint64_t n = 0;
    while (status != SAC_OK) {
        sac_engine *e = NULL;
        sac_error err;
        mem_fail_after(++n);
        status = sac_engine_create(&e, model, &p, &err);
        mem_fail_after(0);
        if (status == SAC_OK)
            sac_engine_free(e);
        else
            assert_int_equal(status, SAC_ERR_MEMORY);
        assert_true(n < 100);
    }
    assert_true(n > 3);
}

static void a_step_takes_more_rows_with_more_threads(void **state)
{
    (void)state;
    static const struct {
        const char *prefill;
        uint32_t n_thread, n_batch, want;
    } t[] = {{"dense", 1, 0, 512},        {"dense", 5, 0, 512}, /* whole tiles of 512 rows */
             {"dense", 6, 0, 1024},       {"dense", 40, 0, 2048},     {"dense", 40, 16, 16},
             {"auto", 6, 0, 1024},        {"minference", 40, 0, 512}, /* its plans depend on where
                                                                        chunks end */
             {"minference", 40, 768, 768}};
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        sac_engine *e = new_engine((sac_engine_params){.n_threads = t[i].n_thread,
                                                       .n_batch = t[i].n_batch,
                                                       .prefill = &t[i].prefill,
                                                       .n_prefill = 1});
        assert_int_equal(sac_engine_get_params(e).n_batch, t[i].want);
        sac_engine_free(e);
    }
}

static void too_many_tokens_are_refused_with_both_counts(void **state)
{
    (void)state;
    sac_engine *e = new_engine((sac_engine_params){.n_ctx = 64});
    sac_seq s, other;
    sac_error err;
    must(sac_seq_create(e, &s, &err), &err);
    assert_int_equal(sac_seq_create(e, &other, &err), SAC_ERR_CONTEXT);
    append(e, s, prompt, 60, SAC_ROW_PROMPT, SAC_WANT_NONE);
    assert_int_equal(sac_seq_append(e, s, prompt, 5, SAC_ROW_PROMPT, SAC_WANT_NONE, &err),
                     SAC_ERR_CONTEXT);
    assert_non_null(strstr(err.msg, "60"));
    assert_non_null(strstr(err.msg, "64"));
    uint32_t pending;
    assert_int_equal(sac_seq_length(e, s, &pending), 0);
    assert_int_equal(pending, 60);
    append(e, s, prompt, 4, SAC_ROW_PROMPT, SAC_WANT_NONE); /* just fits */
    const int32_t bad[] = {3, -1}, high[] = {(int32_t)n_vocab};
    must(sac_seq_truncate(e, s, 10, &err), &err);
    assert_int_equal(sac_seq_append(e, s, bad, 2, SAC_ROW_PROMPT, SAC_WANT_NONE, &err),
                     SAC_ERR_ARG);
    assert_int_equal(sac_seq_append(e, s, high, 1, SAC_ROW_PROMPT, SAC_WANT_NONE, &err),
                     SAC_ERR_ARG);
    assert_int_equal(sac_seq_truncate(e, s, 11, &err), SAC_ERR_ARG);
    assert_int_equal(sac_seq_truncate(e, 7, 0, &err), SAC_ERR_NOT_FOUND);
    sac_engine_free(e);
}

static void a_full_pool_stalls_and_loses_nothing(void **state)
{
    (void)state;
    sac_engine *e = new_engine((sac_engine_params){.n_seq_max = 2, .n_kv_tok = 96});
    float *logits = malloc(n_vocab * sizeof(float));
    struct catch c = {.logits = logits};
    sac_seq a, b;
    sac_error err;
    uint32_t n = 1;
    must(sac_seq_create(e, &a, &err), &err);
    must(sac_seq_create(e, &b, &err), &err);
    append(e, a, prompt, 70, SAC_ROW_PROMPT, SAC_WANT_NONE);
    append(e, b, prompt, N_PROMPT, SAC_ROW_PROMPT, SAC_WANT_LAST);
    sac_status status = SAC_OK;
    while (status == SAC_OK && n) status = sac_step(e, catch_row, &c, &n, &err);
    assert_int_equal(status, SAC_ERR_CONTEXT);
    assert_int_equal(sac_seq_length(e, b, NULL), 63); /* one page and all but one row of the next */
    sac_seq_remove(e, a);
    c = (struct catch){.seq = b, .logits = logits};
    run_all(e, &c);
    const struct result alone = answer_alone((sac_engine_params){0});
    assert_int_equal(argmax(logits), alone.tok[0]);
    free(alone.logits);
    free(logits);
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest real[] = {
        cmocka_unit_test(chunks_and_threads_do_not_change_the_answer),
        cmocka_unit_test(other_sequences_do_not_change_the_answer),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_threads_do_not_change_the_answer),
        cmocka_unit_test(other_sequences_do_not_change_the_answer),
        cmocka_unit_test(forks_share_pages_and_go_their_own_way),
        cmocka_unit_test(truncation_goes_back_exactly),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(create_survives_every_failed_allocation),
        cmocka_unit_test(a_step_takes_more_rows_with_more_threads),
        cmocka_unit_test(too_many_tokens_are_refused_with_both_counts),
        cmocka_unit_test(a_full_pool_stalls_and_loses_nothing),
    };
    return cmocka_run_group_tests_name("tiny", tests, load_tiny, free_model) +
           cmocka_run_group_tests_name(MODEL_NAME, real, load_real, free_model);
}
