/* test_lanes.c: what the engine hands to a decode method, and what it makes of the answer, by a
 * method that belongs to the test: it takes lfps' place behind the engine's back, notes what it is
 * shown, marks what it likes, and works out from the keys and values that it is handed what
 * attention must give then. Plain kernels on a made-up model, so that little is lost to rounding.
 */
#include "engine/engine.h"
#include "engine/past_queries.h"
#include "must.h"
#include "tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    GROUP = TINY_HEADS / TINY_KV_HEADS,
    WIDTH = GROUP * TINY_DIM,
    N_LANE = TINY_LAYERS * TINY_KV_HEADS,
    N_MAX = 512,
    N_SEQ = 2,
    N_PAST = 32 /* what lfps asks for */
};

/* What a lane knows of itself between two rows. */
struct own_state {
    uint32_t n_seen, n_cut, mark; /* mark: layer and head, plus 1 */
};

static struct {
    sac_engine *engine;
    sac_seq seq;                      /* whose rows are computed */
    bool dense_layer;                 /* the last layer reads everything */
    bool rest;                        /* gives entries for what is not read */
    bool attends;                     /* attends to what it marks itself */
    uint32_t n_see, n_select, n_mark; /* n_mark: tokens marked before the own page */
    uint32_t n_record;
    bool shown[N_SEQ][N_LANE][N_MAX];
    float q[N_SEQ][N_LANE][N_MAX][WIDTH]; /* of each row that was shown */
    double want[N_LANE][WIDTH];           /* outputs of the row at hand */
} spy;

static uint32_t lane_of(const struct method_lane *l)
{
    return l->layer * TINY_KV_HEADS + l->kv_head;
}

static void spy_see(const struct method_lane *l)
{
    struct own_state *s = l->state;
    const uint32_t i = lane_of(l);
    assert_true(s->mark == 0 || s->mark == i + 1); /* the state is this lane's */
    s->mark = i + 1;
    assert_int_equal(s->n_seen, l->pos);
    s->n_seen += l->n_row;
    spy.n_see++;
    for (uint32_t r = 0; r < l->n_row; r++) {
        assert_false(spy.shown[spy.seq][i][l->pos + r]);
        spy.shown[spy.seq][i][l->pos + r] = true;
        memcpy(spy.q[spy.seq][i][l->pos + r], l->q + r * l->q_stride, sizeof spy.q[0][0][0]);
    }
}

/* Queries of rows before this one, as the rows were shown. */
static void check_past(const struct method_lane *l)
{
    const struct method_past *p = &l->past;
    assert_int_equal(p->end, l->pos);
    assert_int_equal(p->n_slot, N_PAST);
    for (uint32_t row = p->begin; row < p->end; row++)
        assert_memory_equal(p->q + (size_t)(row % p->n_slot) * WIDTH,
                            spy.q[spy.seq][lane_of(l)][row], sizeof spy.q[0][0][0]);
}

/* What lanes read: pages and tokens that differ from lane to lane. */
static bool wants(const struct method_lane *l, uint32_t tok)
{
    const uint32_t page = tok / PAGE_TOK, i = lane_of(l);
    if (spy.dense_layer && l->layer == TINY_LAYERS - 1) return true;
    if (page % 3 == i % 3) return true;
    return page % 3 == (i + 1) % 3 && tok % (5 + i) == 0;
}

/* What attention would make of the wanted tokens before the own page, as an entry. */
static void attend_itself(const struct method_lane *l, struct method_pick *out)
{
    static float k[PAGE_TOK * TINY_DIM], v[PAGE_TOK * TINY_DIM];
    const struct page_geom *geom = l->shape->geom;
    double sum[GROUP] = {0}, value[GROUP][TINY_DIM] = {{0}};
    for (uint32_t t = 0; t < l->pos / PAGE_TOK * PAGE_TOK; t++) {
        const uint32_t i = t % PAGE_TOK;
        if (i == 0)
            page_read(k, v, geom, page_frame(geom, l->frames, l->page[t / PAGE_TOK]), PAGE_SEALED,
                      PAGE_TOK);
        for (uint32_t g = 0; g < GROUP && wants(l, t); g++) {
            double logit = 0;
            for (uint32_t c = 0; c < TINY_DIM; c++)
                logit += (double)l->q[g * TINY_DIM + c] * (double)k[i * TINY_DIM + c];
            const double weight = exp(logit * (double)l->scale);
            sum[g] += weight;
            for (uint32_t c = 0; c < TINY_DIM; c++)
                value[g][c] += weight * (double)v[i * TINY_DIM + c];
        }
    }
    for (uint32_t g = 0; g < GROUP; g++) {
        out->rest_log[g] = (float)log(sum[g]);
        for (uint32_t c = 0; c < TINY_DIM; c++)
            out->rest_value[g * TINY_DIM + c] = (float)(value[g][c] / sum[g]);
    }
    out->attended = true;
}

/* Attention over what is wanted and the own page, with the entries for the rest. */
static void work_out(const struct method_lane *l, const float *rest_log, const float *rest_value)
{
    static float k[N_MAX * TINY_DIM], v[N_MAX * TINY_DIM];
    const struct page_geom *geom = l->shape->geom;
    const uint32_t n_page = l->pos / PAGE_TOK;
    for (uint32_t p = 0; p <= n_page; p++) {
        const uint8_t *bytes = p < n_page ? page_frame(geom, l->frames, l->page[p]) : l->own;
        const size_t at = (size_t)p * PAGE_TOK * TINY_DIM;
        page_read(k + at, v + at, geom, bytes, p < n_page ? PAGE_SEALED : PAGE_TAIL,
                  p < n_page ? PAGE_TOK : l->pos % PAGE_TOK + 1);
    }
    for (uint32_t g = 0; g < GROUP; g++) {
        double sum = 0, *out = &spy.want[lane_of(l)][g * TINY_DIM];
        memset(out, 0, TINY_DIM * sizeof *out);
        for (uint32_t t = 0; t <= l->pos; t++) {
            double logit = 0;
            if (t / PAGE_TOK < n_page && !wants(l, t)) continue;
            for (uint32_t c = 0; c < TINY_DIM; c++)
                logit += (double)l->q[g * TINY_DIM + c] * (double)k[t * TINY_DIM + c];
            const double weight = exp(logit * (double)l->scale);
            sum += weight;
            for (uint32_t c = 0; c < TINY_DIM; c++) out[c] += weight * (double)v[t * TINY_DIM + c];
        }
        const double rest = rest_log ? exp((double)rest_log[g]) : 0;
        for (uint32_t c = 0; c < TINY_DIM && rest_log; c++)
            out[c] += rest * (double)rest_value[g * TINY_DIM + c];
        for (uint32_t c = 0; c < TINY_DIM; c++) out[c] /= sum + rest;
    }
}

static void spy_select(const struct method_lane *l, struct method_pick *out)
{
    const struct own_state *s = l->state;
    const uint32_t i = lane_of(l);
    assert_int_equal(l->n_row, 1);
    assert_int_equal(s->n_seen, l->pos + 1);
    assert_int_equal(s->mark, i + 1);
    assert_true(fabsf(l->scale * sqrtf(TINY_DIM) - 1) < 1e-6f);
    assert_memory_equal(l->q, spy.q[spy.seq][i][l->pos], sizeof spy.q[0][0][0]);
    for (uint32_t h = 0; h < TINY_KV_HEADS; h++) { /* the layer's other lanes have seen the row */
        const struct own_state *other = (const void *)(l->layer_state + h * l->state_stride);
        assert_int_equal(other->n_seen, l->pos + 1);
        assert_int_equal(other->mark, l->layer * TINY_KV_HEADS + h + 1);
    }
    check_past(l);
    spy.n_select++;
    out->dense = spy.dense_layer && l->layer == TINY_LAYERS - 1;
    const uint32_t n_far = l->pos / PAGE_TOK * PAGE_TOK;
    for (uint32_t t = 0; t < n_far && !out->dense; t++)
        if (wants(l, t)) out->mask[t / PAGE_TOK] |= 1u << t % PAGE_TOK;
    for (uint32_t t = 0; t < n_far; t++) spy.n_mark += wants(l, t);
    const bool rest = spy.rest && !out->dense;
    for (uint32_t g = 0; g < GROUP && rest; g++) {
        assert_true(out->rest_log[g] == -INFINITY);
        out->rest_log[g] = 2.0f + 0.5f * (float)(i * GROUP + g);
    }
    for (uint32_t c = 0; c < GROUP * TINY_DIM && rest; c++)
        out->rest_value[c] = (float)(i + 1) * 0.1f * (float)c;
    if (spy.attends && !out->dense) attend_itself(l, out);
    work_out(l, rest ? out->rest_log : NULL, out->rest_value);
}

static void spy_cut(void *state, const struct method_shape *shape, const void *param,
                    uint32_t n_tok)
{
    struct own_state *s = state;
    (void)shape;
    (void)param;
    assert_true(n_tok < s->n_seen);
    s->n_seen = n_tok;
    s->n_cut++;
}

static void on_record(void *user, const sac_read_record *r)
{
    (void)user;
    if (r->kind != SAC_ROW_DECODE) return;
    const double *want = spy.want[r->layer * TINY_KV_HEADS + r->kv_head];
    double off = 0, norm = 0;
    for (uint32_t c = 0; c < WIDTH; c++) {
        off += pow((double)r->out[c] - want[c], 2);
        norm += want[c] * want[c];
    }
    spy.n_record++;
    if (!(sqrt(off / norm) < 1e-4))
        fail_msg("layer %u, head %u: the output is %g off", r->layer, r->kv_head, sqrt(off / norm));
}

/* ---- An engine that asks the spy ---- */

static sac_model *model;
static struct method_decode spy_hooks;
static struct method spy_method;
static struct method_spec spy_spec;

static int load_model(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    model = tiny_open(&(struct tiny){.seed = 1});
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static void open_engine(uint32_t n_batch, uint32_t min_ctx)
{
    static const char *const spec = "lfps";
    sac_engine_params p = sac_engine_params_default();
    sac_error err;
    memset(&spy, 0, sizeof spy);
    p.n_ctx = N_MAX;
    p.n_seq_max = N_SEQ;
    p.n_batch = n_batch;
    p.n_threads = 1;
    p.decode = &spec;
    p.n_decode = 1;
    p.sparse_min_ctx = min_ctx;
    p.record = true;
    must(sac_engine_create(&spy.engine, model, &p, &err), &err);
    struct method_set_entry *m = &spy.engine->method_set[METHOD_SET_DECODE].method[0];
    spy_hooks = *m->spec->method->decode;
    spy_hooks.see = spy_see;
    spy_hooks.choose = spy_hooks.select_lanes = NULL;
    spy_hooks.select = spy_select;
    spy_hooks.cut = spy_cut;
    spy_method = *m->spec->method;
    spy_method.decode = &spy_hooks;
    spy_spec = *m->spec;
    spy_spec.method = &spy_method;
    m->spec = &spy_spec;
    m->hooks.cut = spy_cut;
    must(sac_engine_set_recorder(spy.engine, on_record, NULL, &err), &err);
    must(sac_seq_create(spy.engine, &spy.seq, &err), &err);
}

static void feed(uint32_t n, sac_row_kind kind)
{
    sac_error err;
    uint32_t n_done = 1;
    const uint32_t at = sac_seq_length(spy.engine, spy.seq, NULL);
    int32_t tok[N_MAX];
    for (uint32_t i = 0; i < n; i++) tok[i] = (int32_t)((at + i) * 37 % 199 + spy.seq);
    must(sac_seq_append(spy.engine, spy.seq, tok, n, kind, SAC_WANT_NONE, &err), &err);
    while (n_done) must(sac_step(spy.engine, NULL, NULL, &n_done, &err), &err);
}

/* ---- Tests ---- */

/* Prompts are shown too, in whatever chunks, a second one like the first, and each row once; only
 * decode rows are asked about. */
static void rows_are_shown_once_and_queries_kept(void **state)
{
    (void)state;
    static const uint32_t n_batch[] = {512, 40, 7};
    for (size_t i = 0; i < sizeof n_batch / sizeof n_batch[0]; i++) {
        open_engine(n_batch[i], 0);
        feed(133, SAC_ROW_PROMPT);
        assert_int_equal(spy.n_select, 0);
        feed(40, SAC_ROW_DECODE);
        feed(50, SAC_ROW_PROMPT);
        feed(5, SAC_ROW_DECODE);
        assert_int_equal(spy.n_select, 45 * N_LANE);
        for (uint32_t l = 0; l < N_LANE; l++)
            for (uint32_t t = 0; t < N_MAX; t++)
                assert_int_equal(spy.shown[spy.seq][l][t], t < 133 + 40 + 50 + 5);
        sac_engine_free(spy.engine);
    }
}

/* Pages, single tokens and the entries of each head are what attention reads, in every layer. */
static void answers_are_read_as_they_are_marked(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        open_engine(64, 0);
        spy.rest = i == 1;
        spy.attends = i == 2;
        feed(200, SAC_ROW_PROMPT);
        const sac_engine_stats before = sac_engine_get_stats(spy.engine);
        feed(30, SAC_ROW_DECODE);
        const sac_engine_stats after = sac_engine_get_stats(spy.engine);
        assert_int_equal(spy.n_record, 30 * N_LANE);
        assert_int_equal(after.reads.n_select - before.reads.n_select, 30 * N_LANE);
        assert_int_equal(after.reads.n_select_dense - before.reads.n_select_dense, 0);
        assert_int_equal(after.reads.n_tok_read - before.reads.n_tok_read, spy.n_mark);
        /* 200 to 229: 24 rows with six full pages before them, six with seven. */
        assert_int_equal(after.reads.n_tok_seen - before.reads.n_tok_seen,
                         N_LANE * 32 * (24 * 6 + 6 * 7));
        sac_engine_free(spy.engine);
    }
}

/* A layer that says so reads everything, whatever the one before it has read. */
static void a_dense_layer_reads_everything(void **state)
{
    (void)state;
    open_engine(64, 0);
    spy.dense_layer = spy.rest = true;
    feed(200, SAC_ROW_PROMPT);
    const sac_engine_stats before = sac_engine_get_stats(spy.engine);
    feed(10, SAC_ROW_DECODE);
    const sac_engine_stats after = sac_engine_get_stats(spy.engine);
    assert_int_equal(spy.n_record, 10 * N_LANE);
    assert_int_equal(after.reads.n_select_dense - before.reads.n_select_dense, 10 * TINY_KV_HEADS);
    assert_int_equal(after.reads.n_tok_read - before.reads.n_tok_read, spy.n_mark);
    sac_engine_free(spy.engine);
}

/* Rows of a context that is shorter than sparse_min_ctx are shown and not asked about. */
static void short_contexts_are_not_asked_about(void **state)
{
    (void)state;
    open_engine(64, 150);
    sac_error err;
    must(sac_engine_set_recorder(spy.engine, NULL, NULL, &err), &err);
    feed(140, SAC_ROW_PROMPT);
    feed(9, SAC_ROW_DECODE); /* contexts of 141 to 149 tokens */
    assert_int_equal(spy.n_select, 0);
    feed(1, SAC_ROW_DECODE);
    assert_int_equal(spy.n_select, N_LANE);
    sac_engine_free(spy.engine);
}

/* A fork has its parent's states and queries, and both go on with their own. */
static void forks_have_states_and_queries_of_their_own(void **state)
{
    (void)state;
    sac_error err;
    sac_seq fork;
    open_engine(64, 0);
    feed(150, SAC_ROW_PROMPT);
    const sac_seq first = spy.seq;
    must(sac_seq_fork(spy.engine, first, &fork, &err), &err);
    memcpy(spy.q[fork], spy.q[first], sizeof spy.q[0]);
    for (int i = 0; i < 3; i++) {
        spy.seq = first;
        feed(4, SAC_ROW_DECODE);
        spy.seq = fork; /* other tokens: 37 t + 1 */
        feed(5, SAC_ROW_DECODE);
    }
    assert_int_equal(spy.n_select, 27 * N_LANE);
    sac_engine_free(spy.engine);
}

/* A cut reaches every lane's state; queries of rows that were overwritten since are not offered. */
static void cuts_reach_states_and_queries(void **state)
{
    (void)state;
    sac_error err;
    open_engine(64, 0);
    feed(150, SAC_ROW_PROMPT);
    feed(10, SAC_ROW_DECODE);
    must(sac_seq_truncate(spy.engine, spy.seq, 140, &err), &err);
    for (uint32_t i = 0; i < N_LANE; i++) {
        const struct own_state *s =
            (const void *)method_set_state(spy.engine, METHOD_SET_DECODE, spy.seq, i);
        assert_true(s->n_cut == 1 && s->n_seen == 140);
        memset(&spy.shown[spy.seq][i][140], 0, N_MAX - 140);
    }
    /* 32 are kept of 160: 128 to 139 are left. */
    assert_int_equal(past_queries_begin(spy.engine, spy.seq, 140), 128);
    feed(3, SAC_ROW_DECODE);
    assert_int_equal(past_queries_begin(spy.engine, spy.seq, 143), 128);
    feed(40, SAC_ROW_DECODE);
    assert_int_equal(past_queries_begin(spy.engine, spy.seq, 183), 183 - N_PAST);
    sac_engine_free(spy.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_shown_once_and_queries_kept),
        cmocka_unit_test(answers_are_read_as_they_are_marked),
        cmocka_unit_test(a_dense_layer_reads_everything),
        cmocka_unit_test(short_contexts_are_not_asked_about),
        cmocka_unit_test(forks_have_states_and_queries_of_their_own),
        cmocka_unit_test(cuts_reach_states_and_queries),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
