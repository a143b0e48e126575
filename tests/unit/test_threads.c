/* test_threads.c: answers and counters of every method are the same, bit for bit, for any number of
 * threads: fewer than lanes (a layer has two), as many, and so many that lanes are cut in parts. */
#include "must.h"
#include "spec_make.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPT = 1250, N_LONG = 3200, N_TOK = 6 };

struct answer {
    int32_t tok[N_TOK];
    float logprob[N_TOK];
    uint32_t n_tok;
    sac_reads reads;
};

static bool collect(void *user, const sac_event *e)
{
    struct answer *a = user;
    if (e->kind == SAC_EVENT_TOKEN) {
        a->tok[a->n_tok] = e->tok;
        a->logprob[a->n_tok++] = e->logprob;
    }
    if (e->kind == SAC_EVENT_DONE) a->reads = e->reads;
    return false;
}

static bool ignore(void *user, const sac_event *e)
{
    (void)user;
    (void)e;
    return false;
}

struct question {
    const sac_model *model;
    const char *spec;
    bool decodes, beside;         /* beside: another request is in every batch */
    uint32_t n_threads, n_prompt; /* n_prompt 0: N_PROMPT */
};

static void ask(struct answer *out, const struct question *q)
{
    static int32_t prompt[N_LONG], other[N_LONG];
    const uint32_t n_prompt = q->n_prompt ? q->n_prompt : N_PROMPT;
    sac_engine *e = NULL;
    sac_error err = {0};
    uint64_t id;
    sac_engine_params p = sac_engine_params_default();
    sac_request r = sac_request_default();
    for (uint32_t t = 0; t < n_prompt; t++) prompt[t] = (int32_t)((t * t * 7 + t) % 256);
    for (uint32_t t = 0; t < n_prompt; t++) other[t] = (int32_t)((t * t * 3 + 5 * t) % 251);
    p.n_ctx = n_prompt + 50;
    p.n_batch = 640; /* tiles of several lengths, and a chunk that ends within one */
    p.n_threads = q->n_threads;
    p.n_seq_max = 1 + q->beside;
    p.sparse_min_ctx = 64;
    *(q->decodes ? &p.decode : &p.prefill) = &q->spec;
    *(q->decodes ? &p.n_decode : &p.n_prefill) = 1;
    must(sac_engine_create(&e, q->model, &p, &err), &err);
    memset(out, 0, sizeof *out);
    r.prompt = other;
    r.n_prompt = n_prompt - 70;
    r.sampling.temp = 0;
    r.max_tokens = 4 * N_TOK; /* it is there until the end */
    r.ignore_eos = true;
    r.on_event = ignore;
    if (q->beside) must(sac_submit(e, &r, &id, &err), &err);
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.max_tokens = N_TOK;
    r.n_probs = 1;
    r.on_event = collect;
    r.user = out;
    must(sac_submit(e, &r, &id, &err), &err);
    for (uint32_t n_active = 1; n_active;) must(sac_run(e, &n_active, &err), &err);
    assert_int_equal(out->n_tok, N_TOK);
    sac_engine_free(e);
}

/* The reads of one thread; 3 threads are more than the lanes of a layer, 8 than what they are cut
 * into. */
static sac_reads same_for_any_threads(struct question q)
{
    struct answer one, many;
    q.n_threads = 1;
    ask(&one, &q);
    for (uint32_t k = 0; k < 2; k++) {
        q.n_threads = (uint32_t[]){3, 8}[k];
        ask(&many, &q);
        if (memcmp(&many, &one, sizeof one) != 0)
            print_error("%s, %u threads\n", q.spec, q.n_threads);
        assert_memory_equal(&many, &one, sizeof one);
    }
    return one.reads;
}

static void threads_change_nothing(void **state)
{
    sac_model *model = tiny_open(&(struct tiny){.seed = 5});
    const struct method *m;
    uint32_t n_planned = 0;
    (void)state;
    assert_non_null(model);
    for (size_t i = 0; (m = method_at(i)) != NULL; i++) {
        char part[SPEC_MAKE_BYTES]; /* what reads everything has nothing to choose wrongly */
        const bool decodes = strcmp(m->kind, "decode") == 0;
        if (!decodes && strcmp(m->kind, "prefill") != 0) continue;
        spec_make_part(part, m, 96);
        const sac_reads reads = same_for_any_threads(
            (struct question){.model = model, .spec = part, .decodes = decodes});
        n_planned += m->prefill && m->prefill->any_chunk && reads.n_plan_mass > 0;
    }
    assert_true(n_planned > 0); /* estimates were summed up in parts */
    sac_model_free(model);
}

/* Heads that choose together are in one batch, whoever asks. */
static void threads_part_no_joined_heads(void **state)
{
    static const char *const specs[] = {"psa:mass=0.5,scope=layer",
                                        "psa:mass=0.5,scope=layer,stop=min,order=box"};
    sac_model *model = tiny_open(&(struct tiny){.seed = 5});
    (void)state;
    assert_non_null(model);
    for (uint32_t i = 0; i < 2; i++) {
        struct question q = {.model = model, .spec = specs[i], .decodes = true};
        const sac_reads reads = same_for_any_threads(q);
        assert_true(reads.n_tok_read > 0 && reads.n_tok_read < reads.n_tok_seen);
        q.beside = true;
        const sac_reads beside = same_for_any_threads(q);
        assert_int_equal(beside.n_tok_read, reads.n_tok_read); /* rows are teams of their own */
    }
    sac_model_free(model);
}

/* Four lanes for three workers: the last one, which is long, is cut for all of them. */
static void lanes_that_are_left_are_cut(void **state)
{
    static const char *const specs[] = {"psa:mass=0.5", "auto:mass=0.5,most=1",
                                        "quest:dense=0,budget=160"};
    sac_model *model = tiny_open(&(struct tiny){.seed = 5});
    (void)state;
    assert_non_null(model);
    for (uint32_t i = 0; i < 3; i++) {
        const struct question q = {
            .model = model, .spec = specs[i], .decodes = true, .beside = true, .n_prompt = N_LONG};
        const sac_reads reads = same_for_any_threads(q);
        assert_true(reads.n_tok_read > 0 && reads.n_tok_read < reads.n_tok_seen);
    }
    sac_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_change_nothing),
                                       cmocka_unit_test(threads_part_no_joined_heads),
                                       cmocka_unit_test(lanes_that_are_left_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
