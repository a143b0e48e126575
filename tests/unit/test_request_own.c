/* test_request_own.c: what belongs to a request and to nobody else, on a small engine: its
 * counters, which add up to the engine's whatever else is in the batch, its tokens, and how sparse
 * its attention is. */
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_REQUEST = 6, N_PROMPT = 330, N_TOK = 12, N_TOK_MAX = 100, N_CTX = 512 };

static const char *const decode_methods[] = {"full", "quest:budget=64", "psa_cert",
                                             "h2o:budget=96"};
static const char *const prefill_methods[] = {"dense", "auto", "xattention"};

struct answer {
    int32_t tok[N_TOK_MAX];
    uint32_t n_tok;
    sac_finish finish;
    sac_timings timings;
    sac_reads reads;
    uint32_t n_record, n_record_row; /* of decode rows; of those that no later one repeats */
    uint32_t pos, n_tok_seen, n_tok_read;
};

static bool collect(void *user, const sac_event *e)
{
    struct answer *a = user;
    if (e->kind == SAC_EVENT_TOKEN) a->tok[a->n_tok++] = e->tok;
    if (e->kind == SAC_EVENT_DONE) {
        a->finish = e->finish;
        a->timings = e->timings;
        a->reads = e->reads;
    }
    return false;
}

static void on_read(void *user, const sac_read_record *r)
{
    struct answer *a = user;
    assert_int_equal(r->kind, SAC_ROW_DECODE);
    assert_true(r->mass > 0 && r->mass < 1.0001f && r->tok_mass);
    a->n_record++;
    if (r->pos > a->pos) a->n_record_row++;
    a->pos = r->pos;
    a->n_tok_seen += r->n_tok_seen;
    a->n_tok_read += r->n_tok_read;
}

static sac_engine *make_engine(const sac_model *model, uint32_t n_seq, uint64_t n_kv_tok)
{
    sac_engine *e = NULL;
    sac_error err = {0};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = N_CTX;
    p.n_seq_max = n_seq;
    p.n_batch = 128;
    p.n_kv_tok = n_kv_tok;
    p.n_threads = 1;
    p.sparse_min_ctx = 64;
    p.decode = decode_methods;
    p.n_decode = sizeof decode_methods / sizeof decode_methods[0];
    p.prefill = prefill_methods;
    p.n_prefill = sizeof prefill_methods / sizeof prefill_methods[0];
    p.watch = true;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

/* The i-th of some requests that have nothing in common. */
static sac_request request_of(uint32_t i)
{
    static int32_t prompt[N_REQUEST][N_PROMPT];
    sac_request r = sac_request_default();
    for (uint32_t t = 0; t < N_PROMPT; t++)
        prompt[i][t] = (int32_t)((t * t * 7 + i * 31 + t) % 256);
    r.prompt = prompt[i];
    r.n_prompt = N_PROMPT - 41 * i;
    r.n_decode_row = 1 + i;
    r.sampling.temp = i % 2 ? 0.9f : 0;
    r.sampling.seed = i;
    r.max_tokens = N_TOK;
    r.ignore_eos = true;
    r.decode = i % (sizeof decode_methods / sizeof decode_methods[0]);
    r.prefill = i % (sizeof prefill_methods / sizeof prefill_methods[0]);
    r.on_event = collect;
    return r;
}

static void submit(sac_engine *e, sac_request r, struct answer *out)
{
    uint64_t id;
    sac_error err = {0};
    *out = (struct answer){0};
    r.user = out;
    must(sac_submit(e, &r, &id, &err), &err);
}

static void run_all(sac_engine *e)
{
    sac_error err = {0};
    for (uint32_t n_active = 1; n_active;) must(sac_run(e, &n_active, &err), &err);
}

static void alone(const sac_model *model, struct answer out[N_REQUEST])
{
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        sac_engine *e = make_engine(model, 1, 0);
        submit(e, request_of(i), &out[i]);
        run_all(e);
        assert_int_equal(out[i].n_tok, N_TOK);
        sac_engine_free(e);
    }
}

/* ---- Counters ---- */

static void add(sac_reads *to, const sac_reads *one)
{
    to->n_prompt_tok += one->n_prompt_tok;
    to->n_decode_tok += one->n_decode_tok;
    to->kv_bytes_read += one->kv_bytes_read;
    to->attend_bytes_read += one->attend_bytes_read;
    to->choose_bytes_read += one->choose_bytes_read;
    to->build_bytes_read += one->build_bytes_read;
    to->dense_bytes += one->dense_bytes;
    to->n_select += one->n_select;
    to->n_select_dense += one->n_select_dense;
    to->n_select_proved += one->n_select_proved;
    to->n_page_dropped += one->n_page_dropped;
    to->n_tok_seen += one->n_tok_seen;
    to->n_tok_read += one->n_tok_read;
    to->n_tok_chosen += one->n_tok_chosen;
    to->n_cell += one->n_cell;
    to->n_cell_read += one->n_cell_read;
    to->n_plan += one->n_plan;
    to->n_plan_dense += one->n_plan_dense;
    to->n_plan_mass += one->n_plan_mass;
}

static void same_counts(sac_reads a, sac_reads b)
{
    /* Sums of fractions depend on the order. */
    assert_true(a.mass_proved - b.mass_proved < 1e-6 && b.mass_proved - a.mass_proved < 1e-6);
    assert_true(a.plan_mass - b.plan_mass < 1e-6 && b.plan_mass - a.plan_mass < 1e-6);
    assert_true(a.out_bound - b.out_bound < 1e-6 * (1 + a.out_bound));
    assert_true(b.out_bound - a.out_bound < 1e-6 * (1 + a.out_bound));
    a.mass_proved = a.plan_mass = a.out_bound = 0;
    b.mass_proved = b.plan_mass = b.out_bound = 0;
    assert_memory_equal(&a, &b, sizeof a);
}

/* A request reads the same alone and among others; those of all add up to the engine's. */
static void reads_are_the_requests_own(void **state)
{
    const sac_model *model = *state;
    struct answer lone[N_REQUEST], crowd[N_REQUEST];
    sac_engine *e = make_engine(model, N_REQUEST, 0);
    sac_reads sum = {0};
    alone(model, lone);
    for (uint32_t i = 0; i < N_REQUEST; i++) submit(e, request_of(i), &crowd[i]);
    run_all(e);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        assert_memory_equal(crowd[i].tok, lone[i].tok, sizeof lone[i].tok);
        /* Where a chunk of a prompt ends within a page, that page is read once more. */
        lone[i].reads.kv_bytes_read = crowd[i].reads.kv_bytes_read;
        same_counts(crowd[i].reads, lone[i].reads);
        add(&sum, &crowd[i].reads);
        sum.mass_proved += crowd[i].reads.mass_proved;
        sum.plan_mass += crowd[i].reads.plan_mass;
        sum.out_bound += crowd[i].reads.out_bound;
        if (crowd[i].reads.out_bound_max > sum.out_bound_max)
            sum.out_bound_max = crowd[i].reads.out_bound_max;
    }
    assert_true(sum.n_select > 0 && sum.n_plan > 0 && sum.n_select_proved > 0);
    assert_true(sum.choose_bytes_read > 0 && sum.n_page_dropped > 0);
    same_counts(sum, sac_engine_get_stats(e).reads);
    sac_engine_free(e);
}

/* Rows that are computed again count again, and the last event tells how often that was. */
static void a_request_that_gives_way_counts_all_its_rows(void **state)
{
    const sac_model *model = *state;
    struct answer answer[2];
    sac_engine *e = make_engine(model, 2, N_CTX - 32);
    sac_reads sum = {0};
    for (uint32_t i = 0; i < 2; i++) {
        sac_request r = request_of(0);
        r.n_prompt = 200; /* room for both prompts, not for both answers */
        r.max_tokens = N_TOK_MAX;
        submit(e, r, &answer[i]);
    }
    run_all(e);
    assert_memory_equal(answer[0].tok, answer[1].tok, sizeof answer[0].tok);
    assert_int_equal(answer[0].timings.n_preempted, 0);
    assert_int_equal(answer[1].timings.n_preempted, 1);
    assert_int_equal(answer[1].reads.n_prompt_tok, 2 * 199);
    for (uint32_t i = 0; i < 2; i++) add(&sum, &answer[i].reads);
    const sac_reads all = sac_engine_get_stats(e).reads;
    assert_int_equal(sum.n_decode_tok, all.n_decode_tok);
    assert_int_equal(sum.n_prompt_tok, all.n_prompt_tok);
    assert_int_equal(sum.kv_bytes_read, all.kv_bytes_read);
    sac_engine_free(e);
}

/* ---- Records ---- */

/* Who watches sees each decode row of its own request once in each layer and KV head, what was read
 * is what the request counts, and tokens are those that come without. */
static void a_request_sees_what_it_reads(void **state)
{
    const sac_model *model = *state;
    struct answer lone[N_REQUEST], crowd[N_REQUEST];
    sac_engine *e = make_engine(model, N_REQUEST, 0);
    const sac_model_info m = sac_model_get_info(model);
    alone(model, lone);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        sac_request r = request_of(i);
        if (i < 3) r.on_read = on_read;
        submit(e, r, &crowd[i]);
    }
    run_all(e);
    for (uint32_t i = 0; i < N_REQUEST; i++) {
        const uint32_t n_row = i < 3 ? N_TOK - 1 + 1 + i : 0;
        assert_memory_equal(crowd[i].tok, lone[i].tok, sizeof lone[i].tok);
        assert_int_equal(crowd[i].n_record_row, n_row);
        assert_int_equal(crowd[i].n_record, n_row * m.n_layer * m.n_kv_head);
        if (i >= 3) continue;
        assert_int_equal(crowd[i].n_tok_seen, crowd[i].reads.n_tok_seen);
        assert_int_equal(crowd[i].n_tok_read, crowd[i].reads.n_tok_read);
    }
    sac_engine_free(e);
}

/* What was dropped cannot be compared with: the rows before that are told of, and no later one. */
static void dropped_tokens_end_the_records(void **state)
{
    sac_engine *e = make_engine(*state, 1, 0);
    struct answer a;
    sac_request r = request_of(0);
    r.decode = 3;
    r.n_decode_row = 100;
    r.on_read = on_read;
    submit(e, r, &a);
    run_all(e);
    assert_true(a.reads.n_page_dropped > 0);
    assert_true(a.n_record_row > 0 && a.n_record_row < 100);
    sac_engine_free(e);
}

static void records_must_be_planned(void **state)
{
    sac_engine *e = NULL;
    sac_error err = {0};
    uint64_t id;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = N_CTX;
    p.n_seq_max = p.n_threads = 1;
    must(sac_engine_create(&e, *state, &p, &err), &err);
    sac_request r = request_of(0);
    r.on_read = on_read;
    assert_int_equal(sac_submit(e, &r, &id, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "watch"));
    sac_engine_free(e);
}

/* A sequence of the caller whose past no one could compute again: pages given back, tokens read
 * under another budget, a second turn. It gives way and goes on with the same bits. */
static void a_callers_sequence_goes_on_from_where_it_was(void **state)
{
    const sac_model *model = *state;
    struct answer want[4], got[4], other;
    for (int way = 0; way < 2; way++) {
        sac_engine *e = make_engine(model, 2, way ? N_CTX - 32 : 0);
        for (uint32_t method = 0; method < 4; method++) {
            sac_request r = request_of(method);
            struct answer *out = way ? &got[method] : &want[method];
            sac_error err = {0};
            r.decode = method;
            r.n_prompt = 120;
            r.max_tokens = 10;
            r.n_decode_row = 60;
            must(sac_seq_create(e, &r.seq, &err), &err);
            submit(e, r, out);
            run_all(e);
            if (method == 1) r.sparse.budget = "48";
            r.n_prompt = 60;
            r.n_decode_row = 5;
            r.max_tokens = N_TOK_MAX;
            sac_request rival = request_of(0);
            rival.n_prompt = 200;
            rival.max_tokens = N_TOK_MAX;
            if (way) submit(e, rival, &other);
            submit(e, r, out);
            run_all(e);
            if (way) assert_int_equal(out->timings.n_preempted, 1);
            assert_int_equal(out->n_tok, N_TOK_MAX);
            sac_seq_remove(e, r.seq);
        }
        sac_engine_free(e);
    }
    for (uint32_t method = 0; method < 4; method++) {
        assert_memory_equal(got[method].tok, want[method].tok, sizeof got[method].tok);
        got[method].reads.kv_bytes_read = want[method].reads.kv_bytes_read;
        same_counts(got[method].reads, want[method].reads);
    }
    assert_true(want[3].reads.n_page_dropped > 0);
}

/* On a sequence of the caller a request counts its own rows, not those before. */
static void a_second_turn_counts_from_zero(void **state)
{
    const sac_model *model = *state;
    struct answer turn[2];
    sac_error err = {0};
    sac_engine *e = make_engine(model, 1, 0);
    sac_request r = request_of(0);
    must(sac_seq_create(e, &r.seq, &err), &err);
    for (int i = 0; i < 2; i++) {
        submit(e, r, &turn[i]);
        run_all(e);
        r.n_prompt = 40;
    }
    assert_int_equal(turn[0].reads.n_prompt_tok, N_PROMPT - 1);
    assert_int_equal(turn[1].reads.n_prompt_tok, 39);
    assert_int_equal(turn[1].reads.n_decode_tok, N_TOK);
    assert_int_equal(turn[1].timings.n_cached, N_PROMPT + N_TOK - 1);
    assert_true(turn[1].timings.queue_ms >= 0);
    sac_engine_free(e);
}

/* ---- Parameters ---- */

/* The answer of request 0 on an engine with one method of each kind. */
static struct answer ask(const sac_model *model, const char *decode, const char *prefill,
                         uint32_t min_ctx, const sac_sparse *sparse)
{
    struct answer answer;
    sac_engine *e = NULL;
    sac_error err = {0};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = N_CTX;
    p.n_batch = 128;
    p.n_threads = 1;
    p.sparse_min_ctx = min_ctx;
    p.decode = &decode;
    p.prefill = &prefill;
    p.n_decode = p.n_prefill = 1;
    must(sac_engine_create(&e, model, &p, &err), &err);
    sac_request r = request_of(0);
    r.n_decode_row = 40;
    if (sparse) r.sparse = *sparse;
    submit(e, r, &answer);
    run_all(e);
    assert_int_equal(answer.n_tok, N_TOK);
    sac_engine_free(e);
    return answer;
}

static void same_answer(const struct answer *a, const struct answer *b)
{
    assert_memory_equal(a->tok, b->tok, sizeof a->tok);
    same_counts(a->reads, b->reads);
}

static bool has_param(const sac_method_info *m, const char *key)
{
    for (size_t i = 0; i < m->n_param; i++)
        if (strcmp(m->param[i].key, key) == 0) return true;
    return false;
}

/* A request that sets mass or budget reads what it would on an engine that was created so, whatever
 * the method: what pages know of themselves does not hang on either. */
static void a_request_sets_mass_and_budget(void **state)
{
    static const struct {
        const char *key, *value;
        sac_sparse sparse;
    } settings[] = {{"mass", "mass=0.5", {.mass = 0.5f}},
                    {"budget", "budget=70", {.budget = "70"}}};
    uint32_t n_tried = 0, n_differs = 0;
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++)
        for (size_t k = 0; k < 2; k++) {
            char set[64];
            const bool decodes = strcmp(m.kind, "decode") == 0;
            if (!decodes && strcmp(m.kind, "prefill") != 0) continue;
            if (!has_param(&m, settings[k].key)) continue;
            snprintf(set, sizeof set, "%s:%s", m.name, settings[k].value);
            const char *decode = decodes ? m.name : "full", *prefill = decodes ? "dense" : m.name;
            const struct answer want =
                ask(*state, decodes ? set : decode, decodes ? prefill : set, 64, NULL);
            const struct answer plain = ask(*state, decode, prefill, 64, NULL);
            const struct answer own = ask(*state, decode, prefill, 64, &settings[k].sparse);
            same_answer(&own, &want);
            n_tried++;
            n_differs += memcmp(&want.reads, &plain.reads, sizeof want.reads) != 0;
        }
    assert_true(n_tried > 15 && n_differs > n_tried / 2);
}

static void a_request_sets_how_short_is_short(void **state)
{
    for (uint32_t min_ctx = 1; min_ctx < 1000; min_ctx += 250) {
        const sac_sparse sparse = {.min_ctx = min_ctx};
        const struct answer want = ask(*state, "snapkv:budget=40", "xattention", min_ctx, NULL);
        const struct answer own = ask(*state, "snapkv:budget=40", "xattention", 300, &sparse);
        same_answer(&own, &want);
    }
}

static void a_request_may_read_everything(void **state)
{
    static const char *const methods[][2] = {
        {"quest:budget=32", "xattention:mass=0.3"}, {"h2o:budget=40", "dense"}, {"lfps", "auto"}};
    const struct answer want = ask(*state, "full", "dense", 1, NULL);
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        const struct answer own =
            ask(*state, methods[i][0], methods[i][1], 1, &(sac_sparse){.dense = true});
        assert_memory_equal(own.tok, want.tok, sizeof own.tok);
        assert_int_equal(own.reads.attend_bytes_read, own.reads.dense_bytes);
        assert_int_equal(own.reads.n_cell_read, own.reads.n_cell);
        assert_int_equal(own.reads.n_page_dropped, 0);
    }
}

/* Beside others with other settings, and behind them in the same place. */
static void settings_do_not_leak(void **state)
{
    static const sac_sparse settings[N_REQUEST] = {
        {.dense = true},   {.budget = "40"}, {.mass = 0.4f},
        {.budget = "50%"}, {.min_ctx = 250}, {.budget = "33", .min_ctx = 1}};
    struct answer lone[N_REQUEST], crowd[N_REQUEST];
    for (uint32_t n_seq = 1; n_seq <= N_REQUEST; n_seq += N_REQUEST - 1) {
        sac_engine *e = make_engine(*state, n_seq, 0);
        for (uint32_t i = 0; i < N_REQUEST; i++) {
            sac_request r = request_of(i);
            r.sparse = settings[i];
            submit(e, r, &crowd[i]);
            if (n_seq > 1) continue;
            sac_engine *own = make_engine(*state, 1, 0);
            submit(own, r, &lone[i]);
            run_all(own);
            sac_engine_free(own);
        }
        run_all(e);
        for (uint32_t i = 0; i < N_REQUEST; i++) {
            lone[i].reads.kv_bytes_read = crowd[i].reads.kv_bytes_read;
            same_answer(&crowd[i], &lone[i]);
        }
        sac_engine_free(e);
    }
}

static void bad_settings_are_named(void **state)
{
    static const struct {
        sac_sparse sparse;
        uint32_t decode;
        const char *words[2];
    } cases[] = {
        {{.mass = 0.5f}, 0, {"mass", "'full'"}},
        {{.budget = "10"}, 2, {"budget", "'psa_cert'"}},
        {{.mass = 1.5f}, 2, {"psa_cert", "mass=1.5"}},
        {{.mass = -1}, 2, {"psa_cert", "mass=-1"}},
        {{.budget = "-3"}, 1, {"quest", "budget=-3"}},
        {{.budget = ""}, 1, {"quest", "budget="}},
        {{.budget = "many"}, 1, {"quest", "budget=many"}},
        {{.budget = "9,by=key"}, 1, {"9,by=key", "no number"}},
        {{.budget = "11111111111111111111111111111111111111111111111"}, 1, {"47 bytes", "32"}},
    };
    sac_engine *e = make_engine(*state, 2, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sac_error err = {0};
        sac_request r = request_of(0);
        uint64_t id;
        r.sparse = cases[i].sparse;
        r.decode = cases[i].decode;
        for (int own = 0; own < 2; own++) {
            if (own == 1) must(sac_seq_create(e, &r.seq, &err), &err);
            assert_int_equal(sac_submit(e, &r, &id, &err), SAC_ERR_ARG);
            assert_non_null(strstr(err.msg, cases[i].words[0]));
            assert_non_null(strstr(err.msg, cases[i].words[1]));
        }
        sac_seq_remove(e, r.seq);
    }
    sac_engine_free(e);
}

/* What has dropped tokens under one budget cannot go on under another; the same one again is no
 * change, and a saved state names the one in force. */
static void a_setting_stays_with_dropped_tokens(void **state)
{
    struct answer turn;
    sac_error err = {0};
    uint64_t id;
    uint8_t *bytes;
    size_t n;
    sac_engine *e = make_engine(*state, 2, 0);
    sac_request r = request_of(0);
    sac_seq copy;
    r.decode = 3;
    r.n_decode_row = 100;
    r.sparse.budget = "70";
    must(sac_seq_create(e, &r.seq, &err), &err);
    submit(e, r, &turn);
    run_all(e);
    assert_true(turn.reads.n_page_dropped > 0);
    r.n_prompt = 20;
    r.n_decode_row = 1;
    submit(e, r, &turn);
    run_all(e);
    must(sac_seq_to_bytes(e, r.seq, &bytes, &n, &err), &err);
    assert_int_equal(sac_seq_from_bytes(e, bytes, n, &copy, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "h2o:budget=96,budget=70"));
    sac_free(bytes);
    r.sparse.budget = NULL;
    assert_int_equal(sac_submit(e, &r, &id, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "has dropped tokens"));
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_are_the_requests_own),
        cmocka_unit_test(a_request_that_gives_way_counts_all_its_rows),
        cmocka_unit_test(a_request_sees_what_it_reads),
        cmocka_unit_test(dropped_tokens_end_the_records),
        cmocka_unit_test(records_must_be_planned),
        cmocka_unit_test(a_callers_sequence_goes_on_from_where_it_was),
        cmocka_unit_test(a_second_turn_counts_from_zero),
        cmocka_unit_test(a_request_sets_mass_and_budget),
        cmocka_unit_test(a_request_sets_how_short_is_short),
        cmocka_unit_test(a_request_may_read_everything),
        cmocka_unit_test(settings_do_not_leak),
        cmocka_unit_test(bad_settings_are_named),
        cmocka_unit_test(a_setting_stays_with_dropped_tokens),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
