/* test_threads.c: answers and counters of every method are the same, bit for bit, for any number of
 * threads: fewer than lanes (a layer has two), as many, and so many that lanes are cut in parts. */
#include "method_spec.h"
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPT = 1250, N_TOK = 6 };

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

static void ask(struct answer *out, const sac_model *model, const struct method *m,
                uint32_t n_threads)
{
    static int32_t prompt[N_PROMPT];
    sac_engine *e = NULL;
    sac_error err = {0};
    uint64_t id;
    char part[METHOD_SPEC_BYTES]; /* what reads everything has nothing to choose wrongly */
    const char *spec = part;
    sac_engine_params p = sac_engine_params_default();
    sac_request r = sac_request_default();
    for (uint32_t t = 0; t < N_PROMPT; t++) prompt[t] = (int32_t)((t * t * 7 + t) % 256);
    p.n_ctx = 1300;
    p.n_batch = 640; /* tiles of several lengths, and a chunk that ends within one */
    p.n_threads = n_threads;
    p.sparse_min_ctx = 64;
    method_spec_part(part, m, 96);
    *(strcmp(m->kind, "decode") == 0 ? &p.decode : &p.prefill) = &spec;
    *(strcmp(m->kind, "decode") == 0 ? &p.n_decode : &p.n_prefill) = 1;
    must(sac_engine_create(&e, model, &p, &err), &err);
    memset(out, 0, sizeof *out);
    r.prompt = prompt;
    r.n_prompt = N_PROMPT;
    r.sampling.temp = 0;
    r.max_tokens = N_TOK;
    r.ignore_eos = true;
    r.n_probs = 1;
    r.on_event = collect;
    r.user = out;
    must(sac_submit(e, &r, &id, &err), &err);
    for (uint32_t n_active = 1; n_active;) must(sac_run(e, &n_active, &err), &err);
    assert_int_equal(out->n_tok, N_TOK);
    sac_engine_free(e);
}

static void threads_change_nothing(void **state)
{
    sac_model *model = tiny_open(&(struct tiny){.seed = 5});
    const struct method *m;
    uint32_t n_planned = 0;
    (void)state;
    assert_non_null(model);
    for (size_t i = 0; (m = method_at(i)) != NULL; i++) {
        struct answer one, many;
        if (strcmp(m->kind, "decode") != 0 && strcmp(m->kind, "prefill") != 0) continue;
        ask(&one, model, m, 1);
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t n = (uint32_t[]){3, 8}[k];
            ask(&many, model, m, n);
            if (memcmp(&many, &one, sizeof one) != 0)
                print_error("%s %s, %u threads\n", m->kind, m->name, n);
            assert_memory_equal(&many, &one, sizeof one);
        }
        n_planned += m->prefill && m->prefill->any_chunk && one.reads.n_plan_mass > 0;
    }
    assert_true(n_planned > 0); /* estimates were summed up in parts */
    sac_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
