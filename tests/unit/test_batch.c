/* test_batch.c: requests on a real small model (smollm2-135m): the tokens of a request are the same
 * alone, beside others, for every batch size, and in a pool so small that requests give way. */
#include "base/mem.h"
#include "model_open.h"
#include "saccade.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_REQUEST = 9, N_TOK = 24, N_TEXT = 2048 };

static sac_model *model;

static const char *const prompts[N_REQUEST] = {
    "The eye does not glide along a line of print. It jumps, rests, and jumps again;",
    "Once upon a time",
    "int main(void)\n{\n",
    "The capital of France is",
    "A page of a novel takes some thirty such jumps, a page of law many more, because the reader "
    "goes "
    "back to the words on which the meaning hangs. Nobody teaches a child to do this. The hand "
    "that "
    "wrote the sentence moved at one speed over every letter, and",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,\n",
    "Water boils at",
    "Old scribes knew it when they set the first letter of a chapter in red. Numbers, names",
};

struct answer {
    int32_t tok[N_TOK];
    uint32_t n_tok;
    char text[N_TEXT];
    size_t n_text;
    sac_finish finish;
};

static int load_model(void **state)
{
    (void)state;
    model = model_open();
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static bool collect(void *user, const sac_event *e)
{
    struct answer *a = user;
    assert_true(a->n_text + e->text_bytes < N_TEXT);
    memcpy(a->text + a->n_text, e->text, e->text_bytes);
    a->n_text += e->text_bytes;
    if (e->kind == SAC_EVENT_TOKEN) a->tok[a->n_tok++] = e->tok;
    if (e->kind == SAC_EVENT_DONE) a->finish = e->finish;
    return false;
}

static void submit(sac_engine *e, int i, struct answer *out)
{
    int32_t *tok;
    size_t n;
    uint64_t id;
    sac_error err = {0};
    assert_int_equal(sac_tokenize(model, prompts[i], strlen(prompts[i]), 0, &tok, &n, &err),
                     SAC_OK);
    sac_request r = sac_request_default();
    r.prompt = tok;
    r.n_prompt = n;
    r.max_tokens = N_TOK;
    r.ignore_eos = true;
    r.sampling.temp = i % 3 ? 0.9f : 0; /* some greedy, some drawn */
    r.sampling.seed = (uint64_t)i;
    r.sampling.repeat_penalty = 1.1f;
    r.on_event = collect;
    r.user = out;
    if (sac_submit(e, &r, &id, &err) != SAC_OK) fail_msg("%s", err.msg);
    sac_free(tok);
}

static sac_engine *make_engine(uint32_t n_seq, uint32_t n_batch, uint64_t n_kv_tok,
                               uint32_t threads)
{
    sac_engine *e = NULL;
    sac_error err = {0};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 160;
    p.n_seq_max = n_seq;
    p.n_batch = n_batch;
    p.n_kv_tok = n_kv_tok;
    p.n_threads = threads;
    if (sac_engine_create(&e, model, &p, &err) != SAC_OK) fail_msg("%s", err.msg);
    return e;
}

static void run_all(sac_engine *e)
{
    uint32_t n_active = 1;
    const uint64_t before = mem_count();
    while (n_active) assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    assert_int_equal(mem_count(), before); /* a step allocates nothing */
    const sac_engine_stats s = sac_engine_get_stats(e);
    assert_int_equal(s.n_page_free, s.n_page);
}

static void tokens_do_not_depend_on_others(void **state)
{
    (void)state;
    static struct answer alone[N_REQUEST], crowd[N_REQUEST];
    for (int i = 0; i < N_REQUEST; i++) {
        sac_engine *e = make_engine(1, 512, 0, 1);
        submit(e, i, &alone[i]);
        run_all(e);
        assert_int_equal(alone[i].n_tok, N_TOK);
        assert_int_equal(alone[i].finish, SAC_FINISH_LENGTH);
        sac_engine_free(e);
    }
    const struct {
        uint32_t n_seq, n_batch, threads;
        uint64_t n_kv_tok; /* 0: enough for all */
    } ways[] = {{9, 512, 2, 0}, {9, 16, 1, 0}, {9, 512, 1, 160}};
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        sac_engine *e =
            make_engine(ways[w].n_seq, ways[w].n_batch, ways[w].n_kv_tok, ways[w].threads);
        memset(crowd, 0, sizeof crowd);
        for (int i = 0; i < N_REQUEST; i++) submit(e, i, &crowd[i]);
        run_all(e);
        for (int i = 0; i < N_REQUEST; i++) {
            assert_memory_equal(crowd[i].tok, alone[i].tok, sizeof alone[i].tok);
            assert_string_equal(crowd[i].text, alone[i].text);
        }
        sac_engine_free(e);
    }
}

/* A prompt in two requests on one sequence is answered as in one: penalties see all of it. */
static void penalties_see_the_whole_sequence(void **state)
{
    (void)state;
    struct answer answer[3] = {0};
    sac_engine *e = make_engine(2, 512, 0, 1);
    int32_t *tok;
    size_t n;
    uint64_t id;
    assert_int_equal(sac_tokenize(model, prompts[0], strlen(prompts[0]), 0, &tok, &n, NULL),
                     SAC_OK);
    sac_request r = sac_request_default();
    r.sampling.temp = 0;
    r.sampling.presence_penalty = 50; /* what was there is never said again */
    r.sampling.repeat_last_n = -1;
    r.ignore_eos = true;
    r.on_event = collect;
    /* All at once on a sequence of its own; then all but the last token, and that one. */
    for (size_t i = 0; i < 3; i++) {
        r.prompt = i == 2 ? tok + n - 1 : tok;
        r.n_prompt = i == 0 ? n : i == 1 ? n - 1 : 1;
        r.n_decode_row = i == 0 ? 2 : 1;   /* the last of each of the two requests */
        r.max_tokens = i == 1 ? 1 : N_TOK; /* a last token is chosen, and not computed */
        r.user = &answer[i];
        if (i == 1) assert_int_equal(sac_seq_create(e, &r.seq, NULL), SAC_OK);
        assert_int_equal(sac_submit(e, &r, &id, NULL), SAC_OK);
        for (uint32_t n_active = 1; n_active;)
            assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    }
    assert_int_equal(answer[0].n_tok, N_TOK);
    assert_memory_equal(answer[2].tok, answer[0].tok, sizeof answer[0].tok);
    sac_free(tok);
    sac_engine_free(e);
}

static void count_row(void *user, const sac_row *row)
{
    (void)row;
    ++*(uint32_t *)user;
}

/* A caller's own steps compute its sequences, and take no row from a request that runs. */
static void steps_between_are_the_callers(void **state)
{
    (void)state;
    static struct answer alone, among;
    sac_engine *e = make_engine(2, 512, 0, 1);
    submit(e, 0, &alone);
    run_all(e);
    submit(e, 0, &among);
    sac_seq own;
    assert_int_equal(sac_seq_create(e, &own, NULL), SAC_OK);
    for (uint32_t n_active = 1, n_row = 0, n_heard = 0, i = 0; n_active; i++) {
        assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
        const int32_t tok = 100 + (int32_t)i;
        assert_int_equal(sac_seq_append(e, own, &tok, 1, SAC_ROW_DECODE, SAC_WANT_LAST, NULL),
                         SAC_OK);
        assert_int_equal(sac_step(e, count_row, &n_heard, &n_row, NULL), SAC_OK);
        assert_int_equal(n_row, 1);
        assert_int_equal(n_heard, i + 1);
        assert_int_equal(sac_step(e, count_row, &n_heard, &n_row, NULL), SAC_OK);
        assert_int_equal(n_row, 0);
    }
    assert_memory_equal(among.tok, alone.tok, sizeof alone.tok);
    sac_engine_free(e);
}

static void run_some(sac_engine *e, uint32_t n_most)
{
    uint32_t n_active = 1;
    while (n_active && n_most--) assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    assert_int_equal(n_active, 0);
}

/* What a request drives is not its caller's to change; what is removed ends it. */
static void sequences_of_requests_are_theirs(void **state)
{
    (void)state;
    static struct answer answer;
    const int32_t tok[] = {1, 2, 3, 4};
    uint64_t id;
    uint32_t n_active;
    sac_seq other;
    sac_error err = {0};
    sac_engine *e = make_engine(2, 512, 0, 1);
    sac_request r = sac_request_default();
    r.prompt = tok;
    r.n_prompt = 4;
    r.max_tokens = N_TOK;
    r.ignore_eos = true;
    r.on_event = collect;
    r.user = &answer;
    assert_int_equal(sac_seq_create(e, &r.seq, NULL), SAC_OK);
    assert_int_equal(sac_submit(e, &r, &id, NULL), SAC_OK);
    assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    assert_int_equal(sac_seq_append(e, r.seq, tok, 4, SAC_ROW_PROMPT, SAC_WANT_ALL, &err),
                     SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "in use by a request"));
    assert_int_equal(sac_seq_truncate(e, r.seq, 2, NULL), SAC_ERR_ARG);
    run_some(e, N_TOK);
    assert_int_equal(answer.n_tok, N_TOK);
    assert_int_equal(sac_seq_truncate(e, r.seq, 2, NULL), SAC_OK);
    for (int again = 0; again < 2; again++) {
        answer = (struct answer){0};
        assert_int_equal(sac_submit(e, &r, &id, NULL), SAC_OK);
        assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
        sac_seq_remove(e, r.seq);
        other = r.seq + 1;
        if (again) { /* its number is another's by then */
            assert_int_equal(sac_seq_create(e, &other, NULL), SAC_OK);
            assert_int_equal(other, r.seq);
            assert_int_equal(sac_seq_append(e, other, tok, 4, SAC_ROW_PROMPT, SAC_WANT_LAST, NULL),
                             SAC_OK);
        }
        run_some(e, 2);
        assert_int_equal(answer.finish, SAC_FINISH_ERROR);
        uint32_t pending;
        sac_seq_length(e, other, &pending);
        assert_int_equal(pending, again ? 4 : 0);
        if (!again) assert_int_equal(sac_seq_create(e, &r.seq, NULL), SAC_OK);
    }
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_between_are_the_callers),
        cmocka_unit_test(sequences_of_requests_are_theirs),
        cmocka_unit_test(tokens_do_not_depend_on_others),
        cmocka_unit_test(penalties_see_the_whole_sequence),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
