/* prop_prefill.c: what every prefill method promises, checked on a real small model (smollm2-135m)
 * for each method in the list: the dense bits below sparse_min_ctx; the same answer alone, in a
 * crowd, with two threads and, where it says so, in chunks of another size; what it left out is
 * counted; nothing is allocated in a step. Plans alone are in tests/unit/test_plan.c. */
#include "base/mem.h"
#include "methods/method.h"
#include "saccade.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_PROMPT = 600, N_CTX = 640, N_VOCAB_MAX = 65536 };

static sac_model *model;
static uint32_t n_vocab;
static int32_t prompt[N_PROMPT];

static int load_model(void **state)
{
    (void)state;
    char path[4096];
    const char *dir = getenv("SACCADE_MODELS"), *cache = getenv("XDG_CACHE_HOME");
    const sac_model_params params = sac_model_params_default();
    sac_error err;
    if (dir)
        snprintf(path, sizeof path, "%s/smollm2-135m.gguf", dir);
    else if (cache)
        snprintf(path, sizeof path, "%s/saccade/models/smollm2-135m.gguf", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/saccade/models/smollm2-135m.gguf", getenv("HOME"));
    if (sac_model_load(&model, path, &params, &err) != SAC_OK) {
        fprintf(stderr, "%s (make model NAME=smollm2-135m)\n", err.msg);
        return -1;
    }
    n_vocab = sac_model_get_info(model).n_vocab;
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = (int32_t)(i % 41 == 7 ? 300 + i : 500 + 37 * (i % 29));
    return n_vocab > N_VOCAB_MAX ? -1 : 0;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static void must(sac_status status, const sac_error *err)
{
    if (status != SAC_OK) fail_msg("%s", err->msg);
}

struct setting {
    const char *spec;
    uint32_t n_seq, n_batch, n_threads, min_ctx;
    sac_kv_type type;
};

static sac_engine *new_engine(const struct setting *s)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = N_CTX;
    p.n_seq_max = s->n_seq ? s->n_seq : 1;
    p.n_batch = s->n_batch ? s->n_batch : 256;
    p.n_threads = s->n_threads ? s->n_threads : 1;
    p.type_k = p.type_v = s->type;
    p.prefill = &s->spec;
    p.n_prefill = 1;
    p.sparse_min_ctx = s->min_ctx;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

struct answer {
    sac_seq seq;
    float logits[N_VOCAB_MAX]; /* of the prompt's last token */
};

static void catch_row(void *user, const sac_row *row)
{
    struct answer *a = user;
    if (row->seq == a->seq) memcpy(a->logits, row->logits, n_vocab * sizeof *a->logits);
}

static void append(sac_engine *e, sac_seq s, size_t n, sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, s, prompt, n, kind, SAC_WANT_LAST, &err), &err);
}

static void run_all(sac_engine *e, struct answer *a)
{
    uint32_t n = 1;
    sac_error err;
    while (n) must(sac_step(e, catch_row, a, &n, &err), &err);
}

static sac_engine_stats answer_alone(struct answer *out, const struct setting *s, size_t n)
{
    sac_error err;
    sac_engine *e = new_engine(s);
    must(sac_seq_create(e, &out->seq, &err), &err);
    append(e, out->seq, n, SAC_ROW_PROMPT);
    const uint64_t n_alloc = mem_count();
    run_all(e, out);
    assert_int_equal(mem_count(), n_alloc);
    const sac_engine_stats stats = sac_engine_get_stats(e);
    sac_engine_free(e);
    return stats;
}

static void same(const char *what, const char *spec, const struct answer *a, const struct answer *b)
{
    if (memcmp(a->logits, b->logits, n_vocab * sizeof *a->logits) != 0)
        fail_msg("%s: other logits %s", spec, what);
}

#define EACH_METHOD(m)                                                                             \
    const struct method *m;                                                                        \
    for (size_t i_ = 0; (m = method_at(i_)); i_++)                                                 \
        if (m->prefill)

static void short_prompts_give_the_dense_bits(void **state)
{
    (void)state;
    static struct answer dense, sparse;
    static const size_t lengths[] = {1, 63, 64, 65, 300};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        answer_alone(&dense, &(struct setting){.spec = "dense"}, lengths[l]);
        EACH_METHOD(m)
        {
            const struct setting s = {.spec = m->name, .min_ctx = 300};
            const sac_engine_stats stats = answer_alone(&sparse, &s, lengths[l]);
            assert_int_equal(stats.n_plan, 0);
            assert_int_equal(stats.n_cell_read, stats.n_cell);
            same("though the prompt is short", m->name, &sparse, &dense);
        }
    }
}

static void full_plans_give_the_dense_bits(void **state)
{
    (void)state;
    static struct answer dense, sparse;
    static const char *const specs[] = {"a-shape:window=4096",
                                        "tri-shape:sink=4,window=1,last=4096",
                                        "trianglemix:layer=1", "auto:mass=1"};
    answer_alone(&dense, &(struct setting){.spec = "dense"}, N_PROMPT);
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        const sac_engine_stats stats =
            answer_alone(&sparse, &(struct setting){.spec = specs[i]}, N_PROMPT);
        assert_true(stats.n_plan > 0);
        assert_int_equal(stats.n_cell_read, stats.n_cell);
        same("though everything is read", specs[i], &sparse, &dense);
    }
}

/* Alone; among others that decode and others that come first, with two threads; in other chunks. */
static void an_answer_does_not_depend_on_anything_else(void **state)
{
    (void)state;
    static struct answer alone, crowd;
    EACH_METHOD(m)
    {
        const struct setting s = {.spec = m->name, .type = SAC_KV_Q8};
        const struct setting crowded = {
            .spec = m->name, .type = SAC_KV_Q8, .n_seq = 4, .n_threads = 2};
        const sac_engine_stats stats = answer_alone(&alone, &s, N_PROMPT);
        sac_engine *e = new_engine(&crowded);
        sac_seq other[3];
        sac_error err;
        for (size_t i = 0; i < 3; i++) {
            must(sac_seq_create(e, &other[i], &err), &err);
            append(e, other[i], 10 + 90 * i, SAC_ROW_PROMPT);
            append(e, other[i], 2, SAC_ROW_DECODE);
        }
        must(sac_seq_create(e, &crowd.seq, &err), &err);
        append(e, crowd.seq, N_PROMPT, SAC_ROW_PROMPT);
        run_all(e, &crowd);
        sac_engine_free(e);
        same("among others", m->name, &crowd, &alone);
        print_message("%-12s computes %5.1f %% of the cells, dense in %llu of %llu lists\n",
                      m->name, 100.0 * (double)stats.n_cell_read / (double)stats.n_cell,
                      (unsigned long long)stats.n_plan_dense, (unsigned long long)stats.n_plan);
        assert_true(stats.n_plan > 0 && stats.n_cell_read <= stats.n_cell);
        assert_int_equal(stats.n_plan_nan, 0);
        if (m->prefill->needs_past_zero) assert_true(stats.n_plan_past > 0);
        if (!m->prefill->any_chunk) continue;
        const struct setting other_chunks = {.spec = m->name, .type = SAC_KV_Q8, .n_batch = 512};
        answer_alone(&crowd, &other_chunks, N_PROMPT);
        same("in chunks of 512", m->name, &crowd, &alone);
    }
}

static void a_method_is_chosen_by_sequence(void **state)
{
    (void)state;
    static struct answer dense, shape, a;
    static const char *const specs[] = {"dense", "a-shape:sink=4,window=64"};
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e;
    sac_error err;
    answer_alone(&dense, &(struct setting){.spec = specs[0]}, N_PROMPT);
    answer_alone(&shape, &(struct setting){.spec = specs[1]}, N_PROMPT);
    assert_memory_not_equal(dense.logits, shape.logits, n_vocab * sizeof *dense.logits);
    p.n_ctx = N_CTX;
    p.n_seq_max = 2;
    p.n_batch = 256;
    p.n_threads = 1;
    p.prefill = specs;
    p.n_prefill = 2;
    p.sparse_min_ctx = 0;
    must(sac_engine_create(&e, model, &p, &err), &err);
    for (uint32_t i = 0; i < 2; i++) {
        must(sac_seq_create(e, &a.seq, &err), &err);
        must(sac_seq_use_prefill(e, a.seq, i, &err), &err);
        append(e, a.seq, N_PROMPT, SAC_ROW_PROMPT);
        run_all(e, &a);
        same("as one of two methods", specs[i], &a, i ? &shape : &dense);
    }
    assert_int_equal(sac_seq_use_prefill(e, a.seq, 2, &err), SAC_ERR_ARG);
    assert_int_equal(sac_seq_use_prefill(e, 7, 0, &err), SAC_ERR_NOT_FOUND);
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_prompts_give_the_dense_bits),
        cmocka_unit_test(full_plans_give_the_dense_bits),
        cmocka_unit_test(an_answer_does_not_depend_on_anything_else),
        cmocka_unit_test(a_method_is_chosen_by_sequence),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
