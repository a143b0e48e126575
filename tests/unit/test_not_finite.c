/* test_not_finite.c: a key or query that is infinite or NaN, end to end: the head that meets it
 * reads everything and is counted, for every method, and the others go on as they were.
 *
 * Tiny models whose last layer goes wrong in one place: one token's key of KV head 0 overflows to
 * infinity, with a sign that takes all its weight from it, so that dense attention stays finite; or
 * the queries of KV head 1 are NaN; or one of them is infinite, that token's. */
#include "must.h"
#include "spec_make.h"
#include "tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum {
    BAD_TOK = 200, /* the token whose key overflows */
    N_PROMPT = 600,
    BAD_POS = 170, /* in the second half of a step, and none that auto samples */
    N_DECODE = 3,
    LAST = TINY_LAYERS - 1,
    SLOW = TINY_DIM - 2, /* channels of the pair that hardly turns: its sign stays */
    N_LANE = TINY_LAYERS * TINY_KV_HEADS,
};

static sac_model *bad_key, *bad_query, *bad_row;
static int32_t prompt[N_PROMPT];

static bool is_last(const char *name, const char *what)
{
    char full[40];
    snprintf(full, sizeof full, "blk.%d.%s", LAST, what);
    return strcmp(name, full) == 0;
}

/* Channel 0 of the embedding marks the bad token; nothing else writes it. */
static void mark_token(const char *name, float *x, uint32_t n_out, uint32_t n_in)
{
    if (strcmp(name, "token_embd.weight") == 0)
        for (uint32_t t = 0; t < n_out; t++) x[t * n_in] = t == BAD_TOK ? 8 : 0;
    if (strstr(name, "attn_output.weight") || strstr(name, "ffn_down.weight"))
        memset(x, 0, n_in * sizeof *x);
}

static void spoil_key(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in)
{
    (void)user;
    mark_token(name, x, n_out, n_in);
    if (is_last(name, "attn_k.weight")) {
        memset(x + SLOW * n_in, 0, 2 * n_in * sizeof *x);
        x[SLOW * n_in] = 1e5f; /* times some 5: beyond what 16 bits hold */
    }
    if (is_last(name, "attn_k.bias")) x[SLOW] = x[SLOW + 1] = 0;
    for (uint32_t h = 0; h < TINY_HEADS / TINY_KV_HEADS; h++) {
        if (is_last(name, "attn_q.weight"))
            memset(x + (h * TINY_DIM + SLOW) * n_in, 0, 2 * n_in * sizeof *x);
        if (is_last(name, "attn_q.bias")) {
            x[h * TINY_DIM + SLOW] = -3;
            x[h * TINY_DIM + SLOW + 1] = 0;
        }
    }
}

static void spoil_query(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in)
{
    (void)user;
    (void)n_out;
    if (is_last(name, "attn_q.bias")) x[n_in - 1] = NAN;
}

static void spoil_row(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in)
{
    (void)user;
    mark_token(name, x, n_out, n_in);
    if (is_last(name, "attn_q.weight")) x[(size_t)(n_out - 1) * n_in] = 3e38f; /* times some 5 */
}

static int open_models(void **state)
{
    (void)state;
    bad_key = tiny_open(&(struct tiny){.seed = 5, .edit = spoil_key});
    bad_query = tiny_open(&(struct tiny){.seed = 5, .edit = spoil_query});
    bad_row = tiny_open(&(struct tiny){.seed = 5, .edit = spoil_row});
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (i * 37 + i / 9) % BAD_TOK;
    prompt[BAD_POS] = BAD_TOK;
    return bad_key && bad_query && bad_row ? 0 : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(bad_key);
    sac_model_free(bad_query);
    sac_model_free(bad_row);
    return 0;
}

/* What the recorder saw of each lane of the last layer, in rows that can see the bad token. */
struct seen {
    uint32_t n[TINY_KV_HEADS], n_whole[TINY_KV_HEADS];
    float logits[TINY_VOCAB];
};

static void on_read(void *user, const sac_read_record *r)
{
    struct seen *s = user;
    if (r->layer != LAST || r->n_page <= BAD_POS / 32 + 1) return;
    const bool lacks_tokens = r->mass < 1 - 1e-6f; /* the mass of NaN is NaN */
    s->n[r->kv_head]++;
    s->n_whole[r->kv_head] += r->n_page_read == r->n_page && !lacks_tokens;
}

static void on_row(void *user, const sac_row *row)
{
    struct seen *s = user;
    memcpy(s->logits, row->logits, sizeof s->logits);
}

static void compute(sac_engine *e, sac_seq seq, size_t n, sac_row_kind kind, struct seen *out)
{
    sac_error err;
    uint32_t n_row = 1;
    must(sac_seq_append(e, seq, prompt, n, kind, SAC_WANT_LAST, &err), &err);
    while (n_row) must(sac_step(e, on_row, out, &n_row, &err), &err);
}

/* The prompt and N_DECODE rows; `out` tells what rows of the method's kind have read. */
static sac_engine_stats run_on(const sac_model *model, const struct method *m, uint32_t n_threads,
                               struct seen *out)
{
    char spec[SPEC_MAKE_BYTES];
    const char *const list[] = {spec};
    const bool is_decode = strcmp(m->kind, "decode") == 0;
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e;
    sac_error err;
    sac_seq seq;
    spec_make_part(spec, m, 40);
    memset(out, 0, sizeof *out);
    p.n_ctx = 1024;
    p.n_threads = n_threads;
    p.n_batch = 256;
    p.sparse_min_ctx = 0;
    p.record = true;
    p.decode = p.prefill = list;
    p.n_decode = is_decode;
    p.n_prefill = !is_decode;
    must(sac_engine_create(&e, model, &p, &err), &err);
    must(sac_seq_create(e, &seq, &err), &err);
    if (!is_decode) must(sac_engine_set_recorder(e, on_read, out, &err), &err);
    compute(e, seq, N_PROMPT, SAC_ROW_PROMPT, out);
    must(sac_engine_set_recorder(e, is_decode ? on_read : NULL, out, &err), &err);
    compute(e, seq, N_DECODE, SAC_ROW_DECODE, out);
    const sac_engine_stats stats = sac_engine_get_stats(e);
    sac_engine_free(e);
    return stats;
}

static sac_engine_stats run(const sac_model *model, const struct method *m, struct seen *out)
{
    return run_on(model, m, 1, out);
}

static bool all_finite(const struct seen *s)
{
    for (int i = 0; i < TINY_VOCAB; i++)
        if (!isfinite(s->logits[i])) return false;
    return true;
}

#define EACH_METHOD(m, kind)                                                                       \
    const struct method *m;                                                                        \
    for (size_t i_ = 0; (m = method_at(i_)); i_++)                                                 \
        if (m->kind && method_tested(m))

static void an_infinite_key_makes_its_head_dense(void **state)
{
    (void)state;
    EACH_METHOD(m, decode)
    {
        struct seen seen;
        const sac_engine_stats s = run(bad_key, m, &seen);
        if (!all_finite(&seen)) fail_msg("%s: logits are not finite", m->name);
        assert_int_equal(seen.n[0], N_DECODE);
        if (m->facts.blind) {
            assert_int_equal(s.reads.n_select_nan, 0);
            continue;
        }
        if (s.reads.n_select_nan != N_DECODE || seen.n_whole[0] != N_DECODE)
            fail_msg("%s: %llu of %d rows are counted, %u are whole", m->name,
                     (unsigned long long)s.reads.n_select_nan, N_DECODE, seen.n_whole[0]);
        if (seen.n_whole[1] == N_DECODE && !m->facts.reads_all)
            fail_msg("%s: the other head is dense, too", m->name);
        assert_int_equal(s.reads.n_select, N_DECODE * N_LANE);
    }
}

static void a_query_that_is_nan_makes_its_head_dense(void **state)
{
    (void)state;
    EACH_METHOD(m, decode)
    {
        struct seen seen;
        const sac_engine_stats s = run(bad_query, m, &seen);
        assert_int_equal(seen.n[1], N_DECODE);
        if (s.reads.n_select_nan != N_DECODE || seen.n_whole[1] != N_DECODE)
            fail_msg("%s: %llu of %d rows are counted, %u are whole", m->name,
                     (unsigned long long)s.reads.n_select_nan, N_DECODE, seen.n_whole[1]);
        if (seen.n_whole[0] == N_DECODE && !m->facts.reads_all)
            fail_msg("%s: the other head is dense, too", m->name);
    }
}

/* The same for prompts. What a list of such a lane reads is everything. */
static void prompts_are_guarded_too(void **state)
{
    (void)state;
    EACH_METHOD(m, prefill)
    {
        struct seen seen;
        sac_engine_stats s = run(bad_query, m, &seen);
        if (s.reads.n_plan == 0 || s.reads.n_plan != N_LANE * s.reads.n_plan_nan)
            fail_msg("%s: %llu of %llu lists are counted for a NaN", m->name,
                     (unsigned long long)s.reads.n_plan_nan, (unsigned long long)s.reads.n_plan);
        assert_true(seen.n[1] > 0 && seen.n_whole[1] == seen.n[1]);
        s = run(bad_key, m, &seen);
        if (!all_finite(&seen)) fail_msg("%s: logits are not finite", m->name);
        if (m->facts.blind) {
            assert_int_equal(s.reads.n_plan_nan, 0);
            continue;
        }
        if (s.reads.n_plan_nan == 0) fail_msg("%s: an infinite key goes by unseen", m->name);
        print_message("%-12s %3u of %3u tiles of the bad head are whole, %3u of the other\n",
                      m->name, seen.n_whole[0], seen.n[0], seen.n_whole[1]);
        assert_true(seen.n_whole[0] > 0);
    }
}

/* Tiles that are planned apart look at queries of their own, and one that is not finite makes all
 * tiles of its chunk dense, as if they had been planned together. */
static void a_query_is_found_by_any_threads(void **state)
{
    (void)state;
    EACH_METHOD(m, prefill)
    {
        struct seen seen;
        const uint64_t n = run_on(bad_row, m, 1, &seen).reads.n_plan_nan;
        assert_true(n > 0);
        assert_int_equal(run_on(bad_row, m, 8, &seen).reads.n_plan_nan, n);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_infinite_key_makes_its_head_dense),
        cmocka_unit_test(a_query_that_is_nan_makes_its_head_dense),
        cmocka_unit_test(prompts_are_guarded_too),
        cmocka_unit_test(a_query_is_found_by_any_threads),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
