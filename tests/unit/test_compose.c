/* test_compose.c: documents that were computed alone, joined: what composers leave equal to an
 * ordinary prompt and to each other, what they compute again, and that nothing of a document
 * changes. On a tiny model of random weights, in f16 unless it says otherwise. */
#include "compose_bench.h"
#include "engine/mass.h"
#include "spec_make.h"

static sac_model *windows, *flat;

static int open_models(void **state)
{
    bench_open_model(state);
    windows = tiny_open(&(struct tiny){.seed = 4, .n_layer = 6, .window = 48});
    flat = tiny_open(&(struct tiny){.seed = 5, .n_layer = 1});
    return model && windows && flat ? 0 : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(windows);
    sac_model_free(flat);
    return 0;
}

static const char *const methods[] = {"recompute",
                                      "reuse",
                                      "epic",
                                      "cacheblend",
                                      "cacheblend:ratio=1",
                                      "cacheblend:ratio=0.4,ratio_end=0.1",
                                      "samkv:update=overwrite",
                                      "auto",
                                      "promptcache"};
#define N_METHOD (sizeof methods / sizeof methods[0])

static void one_document_is_an_ordinary_prompt(void **state)
{
    (void)state;
    const struct setting settings[] = {
        {.type = SAC_KV_F16}, {.type = SAC_KV_Q8}, {.model = windows}, {.no_head = true}};
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        const struct bench b = open_bench(&settings[s], false);
        float wanted[2][TINY_VOCAB], got[2][TINY_VOCAB];
        sac_seq seq;
        sac_error err;
        must(sac_seq_fork(b.e, b.doc[0], &seq, &err), &err);
        ask(&b, seq, wanted);
        sac_seq_remove(b.e, seq);
        for (size_t i = 0; i < N_METHOD; i++) {
            answer(&b, methods[i], 1, got);
            /* A q8 page of which a part is computed again is rounded again. */
            const bool same = settings[s].type == SAC_KV_F16 ? !memcmp(got, wanted, sizeof got)
                                                             : distance(got, wanted) < 0.03;
            if (!same)
                fail_msg("%s in setting %zu: off by %g", methods[i], s, distance(got, wanted));
        }
        sac_engine_free(b.e);
    }
}

static void check_whole(const struct bench *b, const char *spec, float wanted[2][TINY_VOCAB],
                        double most)
{
    float got[2][TINY_VOCAB];
    answer(b, spec, N_DOC, got);
    if (distance(got, wanted) > most)
        fail_msg("%s, type %d: off by %g", spec, (int)b->e->params.type_k, distance(got, wanted));
}

/* Keys are rounded at other positions, so not to the last bit. */
static void all_computed_again_is_the_whole_prompt(void **state)
{
    (void)state;
    const struct setting settings[] = {
        {.type = SAC_KV_F16}, {.type = SAC_KV_Q8}, {.model = windows}, {.no_head = true}};
    /* samkv: documents of which nothing lies between first and last blocks. */
    const char *const more[] = {"epic:k=0,k_tail=1000", "cacheblend:ratio=1,by=v",
                                "samkv:update=overwrite"};
    const struct method *m;
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        const struct bench b = open_bench(&settings[s], false);
        float wanted[2][TINY_VOCAB], got[2][TINY_VOCAB];
        answer(&b, "recompute", N_DOC, wanted);
        answer(&b, "reuse", N_DOC, got);
        const double most = s == 1 ? 0.02 : 0.004;
        if (distance(got, wanted) < 5 * most)
            fail_msg("setting %zu: reuse is off by %g only", s, distance(got, wanted));
        for (size_t i = 0; (m = method_at(i)); i++) {
            char spec[SPEC_MAKE_BYTES];
            if (!m->context || !m->facts.whole) continue;
            snprintf(spec, sizeof spec, "%s:%s", m->name, m->facts.whole);
            check_whole(&b, spec, wanted, most);
        }
        for (size_t i = 0; i < sizeof more / sizeof more[0]; i++)
            check_whole(&b, more[i], wanted, most);
        sac_engine_free(b.e);
    }
}

static void nothing_computed_again_is_reuse(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.type = SAC_KV_Q8}, false);
    float wanted[2][TINY_VOCAB], got[2][TINY_VOCAB];
    sac_compose_report report;
    answer(&b, "reuse", N_DOC, wanted);
    const sac_seq seq = compose(&b, "epic:k=0", N_DOC, &report);
    ask(&b, seq, got);
    assert_memory_equal(got, wanted, sizeof got);
    assert_int_equal(report.n_row, 0);
    assert_int_equal(report.bytes, 0);
    answer(&b, "samkv:recompute=off", N_DOC, got); /* all blocks are ends */
    assert_memory_equal(got, wanted, sizeof got);
    answer(&b, "reuse:align=off", N_DOC, got);
    assert_true(distance(got, wanted) > 0.01);
    sac_engine_free(b.e);
    const struct bench longer = open_bench(&(struct setting){.is_long = true}, false);
    answer(&longer, "reuse", N_DOC, wanted);
    answer(&longer, "samkv:blocks=1,recompute=off", N_DOC, got);
    assert_memory_equal(got, wanted, sizeof got);
    sac_engine_free(longer.e);
}

/* Without a token to compute above the two layers that tell what has changed, the layers above stay
 * the documents' own. So does the first, whose keys and values follow from the tokens. */
static void layers_that_do_not_change_stay_shared(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){0}, false);
    const sac_seq seq = compose(&b, "cacheblend:ratio=0", N_DOC, NULL);
    for (uint32_t layer = 0; layer < N_LAYER; layer++)
        for (uint32_t d = 0, page = N_HEAD / PAGE_TOK; d < N_DOC; d++)
            for (uint32_t p = 0; p < n_text[d] / PAGE_TOK; p++, page++) {
                const page_id own = pool_table(&b.e->pool, seq, layer)[page];
                const page_id *stored = pool_table(&b.e->pool, b.doc[d], layer);
                assert_int_equal(own == stored[N_HEAD / PAGE_TOK + p], layer != 1);
            }
    sac_engine_free(b.e);
}

static void shares_are_the_methods_own(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.type = SAC_KV_F16}, false);
    const double n = 96 + 128 + 64;
    const struct {
        const char *method;
        double rows; /* of all layers */
    } cases[] = {
        {"recompute", N_LAYER * n},
        {"reuse", 0},
        {"epic:k=16", N_LAYER * 2 * 16.0},
        {"epic:k=100", N_LAYER * (100.0 + 64)},
        {"epic:k=3,k_tail=5", N_LAYER * 2 * 8.0},
        {"cacheblend:ratio=0.25", 2 * n + (N_LAYER - 2) * floor(0.25 * n)},
        {"cacheblend:ratio=0", 2 * n},
        {"auto:most=0.1,layers=1,rounds=1", N_LAYER * floor(0.1 * n)},
        {"auto:most=0.1,layers=0.5,rounds=1", N_LAYER / 2 * floor(0.1 * n)},
        {"auto:most=0.1,layers=1,rounds=2", N_LAYER * 2 * floor(0.05 * n)},
        {"auto:most=1,layers=0", 0},
        {"auto:most=1,layers=1,rounds=2", N_LAYER * (128.0 + 64)}, /* no token twice */
        {"auto:mass=0", 0},
        {"auto:most=1,layers=1,rounds=1", N_LAYER * (128.0 + 64)},
        {"cacheblend:ratio=0.5,ratio_end=0.25", 2 * n + floor(0.5 * n) + floor(0.375 * n)},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sac_compose_report report;
        const sac_seq seq = compose(&b, cases[i].method, N_DOC, &report);
        assert_int_equal(report.n_tok, n);
        if ((double)report.n_row != cases[i].rows)
            fail_msg("%s: %llu rows, not %g", cases[i].method, (unsigned long long)report.n_row,
                     cases[i].rows);
        assert_true(fabs(report.recomputed_share - cases[i].rows / (n * N_LAYER)) < 1e-12);
        assert_true(report.resident_share == 1);
        sac_seq_remove(b.e, seq);
    }
    sac_engine_free(b.e);
}

/* Page of a sequence, all heads, in the form in which it lies in the pool. */
static const uint8_t *page_of(const struct bench *b, sac_seq seq, uint32_t layer, uint32_t page)
{
    return pool_page(&b->e->pool, pool_table(&b->e->pool, seq, layer)[page]);
}

/* No row sees what stands behind it: the last token of all changes nothing before its page. */
static void rows_see_what_stands_before_them(void **state)
{
    (void)state;
    const char *const frozen[] = {"epic:k=20", "epic:k=1000", "epic:k=3,k_tail=7",
                                  "cacheblend:ratio=1"};
    const struct setting s = {.type = SAC_KV_F16};
    const struct bench one = open_bench(&s, false), other = open_bench(&s, true);
    const uint32_t n_page = (N_HEAD + 96 + 128 + 64) / PAGE_TOK;
    for (size_t i = 0; i < sizeof frozen / sizeof frozen[0]; i++) {
        const sac_seq a = compose(&one, frozen[i], N_DOC, NULL),
                      b = compose(&other, frozen[i], N_DOC, NULL);
        for (uint32_t layer = 0; layer < N_LAYER; layer++)
            for (uint32_t p = 0; p + 1 < n_page; p++)
                if (memcmp(page_of(&one, a, layer, p), page_of(&other, b, layer, p),
                           one.e->pool.geom.bytes) != 0)
                    fail_msg("%s: page %u of layer %u differs", frozen[i], p, layer);
        assert_memory_not_equal(page_of(&one, a, 1, n_page - 1), page_of(&other, b, 1, n_page - 1),
                                one.e->pool.geom.bytes);
        sac_seq_remove(one.e, a);
        sac_seq_remove(other.e, b);
    }
    sac_engine_free(one.e);
    sac_engine_free(other.e);
}

static void documents_stay_as_they_are(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.type = SAC_KV_Q8}, false);
    uint8_t *before[N_DOC], *after;
    size_t n, m;
    sac_error err;
    float logits[2][TINY_VOCAB];
    const uint64_t n_free = sac_engine_get_stats(b.e).n_page_free;
    for (int d = 0; d < N_DOC; d++)
        must(sac_seq_to_bytes(b.e, b.doc[d], &before[d], &n, &err), &err);
    for (size_t i = 0; i < 100 + N_METHOD; i++) answer(&b, methods[i % N_METHOD], N_DOC, logits);
    assert_int_equal(sac_engine_get_stats(b.e).n_page_free, n_free);
    for (int d = 0; d < N_DOC; d++) {
        must(sac_seq_to_bytes(b.e, b.doc[d], &after, &m, &err), &err);
        assert_memory_equal(after, before[d], m);
        sac_free(after);
        sac_free(before[d]);
    }
    const sac_seq seq = compose(&b, "reuse", N_DOC, NULL);
    assert_int_equal(sac_engine_get_stats(b.e).n_page_free, n_free); /* not a page is copied */
    sac_seq_remove(b.e, seq);
    sac_engine_free(b.e);
}

static void results_do_not_depend_on_threads_and_batches(void **state)
{
    (void)state;
    const struct setting settings[] = {
        {.n_threads = 1}, {.n_threads = 2}, {.n_batch = 64}, {.n_batch = 100, .n_threads = 2}};
    float wanted[N_METHOD][2][TINY_VOCAB], got[2][TINY_VOCAB];
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
        const struct bench b = open_bench(&settings[s], false);
        for (size_t i = 0; i < N_METHOD; i++) {
            answer(&b, methods[i], N_DOC, s == 0 ? wanted[i] : got);
            if (s > 0 && memcmp(got, wanted[i], sizeof got) != 0)
                fail_msg("%s in setting %zu: off by %g", methods[i], s, distance(got, wanted[i]));
        }
        sac_engine_free(b.e);
    }
}

/* Ends of documents stay, and as many blocks between in each layer; ends are computed again. */
static void samkv_keeps_ends_and_what_is_asked_for(void **state)
{
    (void)state;
    const char *const specs[] = {"samkv:choose=asked,hot=token",
                                 "samkv:choose=asked,hot=token,all_above=on", "samkv:select=off",
                                 "samkv:choose=asked,hot=token,bias=off,all_above=on",
                                 "samkv:choose=asked,recompute=off"};
    const struct setting settings[] = {{.is_long = true},
                                       {.is_long = true, .n_threads = 2, .n_batch = 64}};
    static float wanted[5][2][TINY_VOCAB], got[2][TINY_VOCAB];
    const double n = 4 * (96 + 128 + 64), n_end = 3 * 3 * 64;
    for (size_t s = 0; s < 2; s++) {
        const struct bench b = open_bench(&settings[s], false);
        const uint64_t n_free = sac_engine_get_stats(b.e).n_page_free;
        for (size_t i = 0; i < 5; i++) {
            sac_compose_report r;
            const sac_seq seq = compose(&b, specs[i], N_DOC, &r);
            const double kept = r.resident_share * n - n_end;
            assert_true(i == 2 ? kept == 0 : kept >= 0 && fmod(kept, 64) == 0);
            if (i == 1 || i == 3) assert_true(kept > 0);
            assert_int_equal(r.n_row, i == 4 ? 0 : N_LAYER * n_end);
            for (uint32_t layer = 0; layer < N_LAYER; layer++) {
                const page_id *table = pool_table(&b.e->pool, seq, layer);
                double there = 0;
                for (uint32_t p = 1; p < 1 + n / PAGE_TOK; p++) there += table[p] != PAGE_NONE;
                assert_true(there * PAGE_TOK == kept + n_end);
            }
            ask(&b, seq, s == 0 ? wanted[i] : got);
            if (s > 0) assert_memory_equal(got, wanted[i], sizeof got);
            sac_seq_remove(b.e, seq);
            assert_int_equal(sac_engine_get_stats(b.e).n_page_free, n_free);
        }
        sac_engine_free(b.e);
    }
}

/* The mean query and the mean key are those before rotation: as of a row at position 0. */
static void notes_are_what_they_say(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.is_long = true}, false);
    const struct doc_stats *n = b.e->seqs[b.doc[0]].stats;
    assert_int_equal(n->n_tok, 4 * 96);
    assert_int_equal(n->n_block, 6);
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        const struct context_stats stats = doc_stats_layer(b.e, n, layer);
        for (uint32_t block = 0; block < n->n_block; block++) {
            assert_true(stats.token[block] >= 64 * block && stats.token[block] < 64 * block + 64);
            assert_true(stats.mass[block] >= 0 && stats.mass[block] <= 1);
            assert_true(isfinite(stats.slope[block]));
        }
    }
    /* In layer 0 neither depends on where a token stands: the same text behind a longer head. */
    int32_t tok[2 * N_HEAD + 4 * 96];
    struct doc_stats_watch watch;
    sac_error err;
    sac_seq seq;
    for (uint32_t i = 0; i < 2 * N_HEAD; i++) tok[i] = token_of(9, i);
    for (uint32_t i = 0; i < 4 * 96; i++) tok[2 * N_HEAD + i] = token_of(0, i);
    must(sac_seq_create(b.e, &seq, &err), &err);
    must(doc_stats_begin(&watch, b.e, seq, 2 * N_HEAD, 4 * 96, &err), &err);
    compute(b.e, seq, tok, 2 * N_HEAD + 4 * 96, NULL, NULL);
    must(doc_stats_make(&watch, b.e, &err), &err);
    doc_stats_end(&watch, b.e);
    const struct context_stats x = doc_stats_layer(b.e, n, 0),
                               y = doc_stats_layer(b.e, b.e->seqs[seq].stats, 0);
    for (size_t i = 0; i < TINY_HEADS * TINY_DIM; i++)
        assert_true(fabsf(x.query[i] - y.query[i]) < 1e-4f);
    for (size_t i = 0; i < (n->n_block + 1) * TINY_KV_HEADS * TINY_DIM; i++)
        assert_true(fabsf(x.key[i] - y.key[i]) < 2e-3f);
    sac_engine_free(b.e);
}

/* Mean attention over heads that the kept rows of a text pay its tokens [n_sample, n_tok], in
 * doubles over keys as they lie. */
static void dense_look(const sac_engine *e, const struct doc_stats_watch *w, uint32_t layer,
                       double *look)
{
    static float key[N_CTX * TINY_DIM];
    static double share[N_CTX];
    const uint32_t n_tok = w->end - w->first;
    sac_error err;
    memset(look, 0, (size_t)w->n_sample * n_tok * sizeof *look);
    for (uint32_t h = 0; h < TINY_HEADS; h++) {
        const page_id *table = pool_table(&e->pool, w->seq_i, layer) +
                               h / (TINY_HEADS / TINY_KV_HEADS) * (size_t)e->pool.max_page;
        must(pool_read(&e->pool, table, w->end / PAGE_TOK, key, NULL, &err), &err);
        for (uint32_t s = 0; s < w->n_sample; s++) {
            const float *q =
                w->sample + ((size_t)(layer * w->n_sample + s) * TINY_HEADS + h) * TINY_DIM;
            const uint32_t n = w->first + s * w->every + 1;
            double all = 0;
            for (uint32_t t = 0; t < n; t++) {
                double dot = 0;
                for (uint32_t i = 0; i < TINY_DIM; i++)
                    dot += (double)q[i] * (double)key[t * TINY_DIM + i];
                all += share[t] = exp(dot * (double)e->model->config.attn_scale);
            }
            for (uint32_t t = w->first; t < n; t++)
                look[s * n_tok + t - w->first] += share[t] / all / TINY_HEADS;
        }
    }
}

/* The exponent a of what rows pay a token, y = c x^-a over their distance: by the covariance of
 * logarithms. */
static double dense_slope(const struct doc_stats_watch *w, const double *look, uint32_t from,
                          uint32_t token)
{
    const uint32_t n_tok = w->end - w->first, n = w->n_sample - from;
    double mean_x = 0, mean_y = 0, xy = 0, xx = 0;
    for (uint32_t s = from; s < w->n_sample; s++) {
        mean_x += log((double)(s * w->every - token)) / n;
        mean_y += log(look[s * n_tok + token]) / n;
    }
    for (uint32_t s = from; s < w->n_sample; s++) {
        const double x = log((double)(s * w->every - token)) - mean_x;
        xy += x * (log(look[s * n_tok + token]) - mean_y);
        xx += x * x;
    }
    return -xy / xx;
}

/* Of each block, by the rows behind it alone: the token that they look at most, how much, and how
 * that falls with distance. */
static void rows_behind_a_block_tell_its_token(void **state)
{
    (void)state;
    enum { N_TOK = 4 * 96 };
    static double look[N_TOK * N_TOK];
    const struct bench b = open_bench(&(struct setting){.is_long = true}, false);
    int32_t tok[N_HEAD + N_TOK];
    struct doc_stats_watch w;
    sac_error err;
    sac_seq seq;
    for (uint32_t i = 0; i < N_HEAD + N_TOK; i++) tok[i] = token_of(i < N_HEAD ? 9 : 1, i);
    must(sac_seq_create(b.e, &seq, &err), &err);
    must(doc_stats_begin(&w, b.e, seq, N_HEAD, N_TOK, &err), &err);
    compute(b.e, seq, tok, N_HEAD + N_TOK, NULL, NULL);
    must(doc_stats_make(&w, b.e, &err), &err);
    assert_true(w.every == 2 && w.n_sample == N_TOK / 2);
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        const struct context_stats stats = doc_stats_layer(b.e, b.e->seqs[seq].stats, layer);
        dense_look(b.e, &w, layer, look);
        for (uint32_t block = 0; block + 1 < N_TOK / CONTEXT_BLOCK; block++) {
            const uint32_t from = (block + 1) * CONTEXT_BLOCK / w.every;
            const uint32_t token = (uint32_t)stats.token[block];
            double mean[CONTEXT_BLOCK] = {0}, most = 0;
            for (uint32_t t = 0; t < CONTEXT_BLOCK; t++) {
                for (uint32_t s = from; s < w.n_sample; s++)
                    mean[t] += look[s * N_TOK + block * CONTEXT_BLOCK + t] / (w.n_sample - from);
                most = fmax(most, mean[t]);
            }
            assert_true(token / CONTEXT_BLOCK == block);
            assert_true(mean[token % CONTEXT_BLOCK] > most * (1 - 1e-3)); /* or as good as that */
            assert_true(fabs((double)stats.mass[block] - most) < 1e-3 * most);
            const double slope = dense_slope(&w, look, from, token);
            if (fabs((double)stats.slope[block] - slope) > 1e-3 * (1 + fabs(slope)))
                fail_msg("layer %u, block %u: %g, not %g", layer, block, (double)stats.slope[block],
                         slope);
        }
    }
    doc_stats_end(&w, b.e);
    sac_engine_free(b.e);
}

/* Softmax shares over keys as they lie, summed over rows and heads, in doubles; rows count the less
 * the farther they are from the end. */
static void late_shares(const sac_engine *e, const struct doc_stats_watch *w, uint32_t n_page,
                        double *out)
{
    static float key[N_CTX * TINY_DIM];
    static double share[N_CTX];
    const uint32_t n = n_page * PAGE_TOK;
    sac_error err;
    for (uint32_t h = 0; h < TINY_HEADS; h++) {
        const page_id *table = pool_table(&e->pool, w->seq_i, 0) +
                               h / (TINY_HEADS / TINY_KV_HEADS) * (size_t)e->pool.max_page;
        must(pool_read(&e->pool, table, n_page, key, NULL, &err), &err);
        for (uint32_t s = 0; s < w->n_sample; s++) {
            const float *q = w->sample + (s * TINY_HEADS + h) * TINY_DIM;
            double all = 0;
            for (uint32_t t = 0; t < n; t++) {
                double dot = 0;
                for (uint32_t i = 0; i < TINY_DIM; i++)
                    dot += (double)q[i] * (double)key[t * TINY_DIM + i];
                all += share[t] = exp(dot * (double)e->model->config.attn_scale);
            }
            for (uint32_t t = 0; t < n; t++) out[t] += share[t] / all / (w->n_sample - s);
        }
    }
}

/* A question's masses over a sequence, of a model with one layer; they are what its keys, where no
 * segment turns them, say. */
static void read_of(const struct bench *b, const char *method, float *mass)
{
    static double wanted[N_CTX];
    const uint32_t n_page = (N_HEAD + 96 + 128 + 64) / PAGE_TOK;
    static float query[TINY_HEADS * TINY_DIM], sample[N_QUESTION * TINY_HEADS * TINY_DIM];
    const sac_seq seq = compose(b, method, N_DOC, NULL);
    struct doc_stats_watch w = {.seq_i = seq,
                                .query = query,
                                .first = n_page * PAGE_TOK,
                                .every = 1,
                                .n_sample = N_QUESTION,
                                .sample = sample};
    int32_t question[N_QUESTION];
    sac_error err;
    for (uint32_t i = 0; i < N_QUESTION; i++) question[i] = token_of(7, i);
    b->e->watch = &w;
    compute(b->e, seq, question, N_QUESTION, NULL, NULL);
    b->e->watch = NULL;
    const struct mass_job job = {.watch = &w, .n_page = n_page, .first = 0, .end = 1};
    must(mass_read(b->e, &job, mass, &err), &err);
    memset(wanted, 0, sizeof wanted);
    late_shares(b->e, &w, n_page, wanted);
    for (uint32_t t = 0; t < n_page * PAGE_TOK && strcmp(method, "recompute") == 0; t++)
        assert_true(fabs((double)mass[t] - wanted[t]) < 1e-5 + 1e-4 * wanted[t]);
    sac_seq_remove(b->e, seq);
}

/* What an eighth of the tokens has, those that `by` [n] says are read most. */
static double mass_of_best(const float *by, const float *mass, uint32_t n)
{
    double sum = 0;
    for (uint32_t t = 0; t < n; t++) {
        uint32_t n_above = 0;
        for (uint32_t i = 0; i < n; i++) n_above += by[i] > by[t];
        sum += n_above < n / 8 ? (double)mass[t] : 0;
    }
    return sum;
}

/* Keys of a first layer follow from their tokens: a question reads joined documents as it reads one
 * prompt, if it meets their keys where they stand. */
static void what_a_question_reads_is_seen_through_turns(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.model = flat}, false);
    static float joined[N_CTX], whole[N_CTX];
    const uint32_t n = N_HEAD + 96 + 128 + 64;
    double sum = 0, apart = 0;
    read_of(&b, "reuse", joined);
    read_of(&b, "recompute", whole);
    for (uint32_t t = 0; t < n; t++) {
        sum += (double)whole[t];
        if (fabsf(joined[t] - whole[t]) > 2e-3f + 0.01f * whole[t])
            fail_msg("token %u: %g, not %g", t, (double)joined[t], (double)whole[t]);
    }
    double weights = 0; /* of rows; the shares of each add up to one */
    for (uint32_t i = 1; i <= N_QUESTION; i++) weights += 1.0 / i;
    assert_true(fabs(sum - TINY_HEADS * weights) < 1e-3);
    read_of(&b, "reuse:align=off", joined);
    for (uint32_t t = 0; t < n; t++) apart += fabs((double)joined[t] - (double)whole[t]);
    assert_true(apart > 0.1);
    sac_engine_free(b.e);
    /* Two bits of a key choose nearly as well. */
    const struct bench q8 = open_bench(&(struct setting){.model = flat, .type = SAC_KV_Q8}, false);
    read_of(&q8, "reuse", joined);
    const double best = mass_of_best(whole, whole, n), chosen = mass_of_best(joined, whole, n);
    if (best > 0.9 * sum || chosen < 0.75 * best) fail_msg("%g of %g, %g", chosen, best, sum);
    sac_engine_free(q8.e);
}

/* A larger share of what is read is more rows, up to the most that there may be. */
static void more_mass_is_more_rows(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.is_long = true}, false);
    const char *const specs[] = {"auto:mass=0.02,most=1,rounds=1", "auto:mass=0.2,most=1,rounds=1",
                                 "auto:mass=0.7,most=1,rounds=1", "auto:mass=1,most=1,rounds=1"};
    uint64_t before = 0;
    for (int i = 0; i < 4; i++) {
        sac_compose_report r;
        sac_seq_remove(b.e, compose(&b, specs[i], N_DOC, &r));
        assert_true(r.n_row > before);
        before = r.n_row;
    }
    sac_engine_free(b.e);
}

/* Values of what was computed again are the prompt's own, those of documents that have read nothing
 * before them are not, the first layer's are in any case. */
static void values_are_compared_layer_by_layer(void **state)
{
    (void)state;
    double apart[N_LAYER], same[N_LAYER];
    const struct bench b = open_bench(&(struct setting){0}, false);
    sac_error err;
    const uint32_t n_tok = N_HEAD + n_text[0] + n_text[1];
    const sac_seq exact = compose(&b, "recompute", 2, NULL), reuse = compose(&b, "reuse", 2, NULL);
    must(sac_seq_compare(b.e, exact, exact, n_tok, same, &err), &err);
    must(sac_seq_compare(b.e, reuse, exact, n_tok, apart, &err), &err);
    for (uint32_t l = 0; l < N_LAYER; l++) assert_true(same[l] == 0);
    assert_true(apart[0] < 1e-3);
    assert_true(apart[1] > 0.01 && apart[N_LAYER - 1] > 0.01 && apart[N_LAYER - 1] < 2);
    /* The first document has lost nothing. */
    must(sac_seq_compare(b.e, reuse, exact, N_HEAD + n_text[0], apart, &err), &err);
    for (uint32_t l = 0; l < N_LAYER; l++) assert_true(apart[l] < 1e-3);
    assert_int_equal(sac_seq_compare(b.e, reuse, exact, n_tok - 1, apart, &err), SAC_ERR_ARG);
    assert_int_equal(sac_seq_compare(b.e, reuse, exact, n_tok + 32, apart, &err), SAC_ERR_ARG);
    assert_int_equal(sac_seq_compare(b.e, b.doc[1], exact, n_tok, apart, &err), SAC_ERR_ARG);
    sac_engine_free(b.e);
}

static uint64_t pages_used(const sac_engine *e)
{
    const sac_engine_stats s = sac_engine_get_stats(e);
    return s.n_page - s.n_page_free;
}

/* However many prompts name the same documents, these are there once; each prompt has the pages
 * that were computed again for it, and those of its question. */
static void many_prompts_hold_the_documents_once(void **state)
{
    (void)state;
    enum { N_PROMPT = 8 };
    struct bench b = open_bench(&(struct setting){.n_seq_more = N_PROMPT}, false);
    const uint64_t documents = pages_used(b.e);
    sac_seq seq[N_PROMPT];
    uint64_t own = 0;
    float logits[2][TINY_VOCAB];
    for (int i = 0; i < N_PROMPT; i++) {
        sac_compose_report report;
        seq[i] = compose(&b, i % 2 ? "epic:k=32" : "reuse", N_DOC, &report);
        own += report.bytes / sac_engine_get_stats(b.e).page_bytes;
        assert_int_equal(report.bytes > 0, i % 2);
        assert_int_equal(pages_used(b.e), documents + own);
    }
    for (int d = 0; d < N_DOC; d++) sac_seq_remove(b.e, b.doc[d]); /* prompts hold them now */
    assert_true(pages_used(b.e) <= documents + own);
    for (int i = 0; i < N_PROMPT; i++) ask(&b, seq[i], logits); /* 12 rows: in the tail */
    assert_true(pages_used(b.e) <= documents + own);
    for (int i = 0; i < N_PROMPT; i++) sac_seq_remove(b.e, seq[i]);
    assert_int_equal(pages_used(b.e), 0);
    sac_engine_free(b.e);
}

/* Joining fills tables: no key or value is copied, and it takes less than a millisecond. */
static void twenty_documents_are_joined_without_a_copy(void **state)
{
    (void)state;
    enum { N_JOINED = 20, N_TRY = 20 };
    const uint32_t n_tok = N_JOINED * n_text[1];
    const struct bench b = open_bench(&(struct setting){.n_ctx_more = n_tok}, false);
    const struct pool *pool = &b.e->pool;
    sac_seq doc[N_JOINED];
    sac_error err;
    sac_compose_report report;
    const sac_compose_params p = {
        .method = "reuse", .doc = doc, .n_doc = N_JOINED, .n_head = N_HEAD};
    const uint64_t n_free = sac_engine_get_stats(b.e).n_page_free;
    double least_ms = INFINITY; /* others may take the processor */
    for (int i = 0; i < N_JOINED; i++) doc[i] = b.doc[1];
    for (int i = 0; i < N_TRY; i++) {
        sac_seq seq;
        must(sac_compose(b.e, &p, &seq, &report, &err), &err);
        assert_int_equal(sac_seq_length(b.e, seq, NULL), N_HEAD + n_tok);
        assert_int_equal(report.bytes, 0);
        assert_int_equal(sac_engine_get_stats(b.e).n_page_free, n_free);
        for (uint32_t layer = 0; layer < N_LAYER; layer++)
            for (uint32_t page = 0; page < n_tok / PAGE_TOK; page++)
                assert_int_equal(
                    pool_table(pool, seq, layer)[N_HEAD / PAGE_TOK + page],
                    pool_table(pool, b.doc[1],
                               layer)[(N_HEAD + page * PAGE_TOK % n_text[1]) / PAGE_TOK]);
        least_ms = fmin(least_ms, report.join_ms);
        sac_seq_remove(b.e, seq);
    }
    assert_true(least_ms < 1);
    sac_engine_free(b.e);
}

static void expect(sac_status got, const sac_error *err, sac_status status, const char *words)
{
    if (got != status || !strstr(err->msg, words))
        fail_msg("%s: %s; expected: %s", sac_status_name(got), err->msg, words);
}

/* A first method that cannot choose among texts is no matter to who names another. */
static void the_method_that_is_named_is_the_sequence_s(void **state)
{
    (void)state;
    const struct setting setting = {.decode = "kascade", .also_decode = "quest"};
    const char *const methods_of_probes[] = {"reuse", "auto"};
    const struct bench b = open_bench(&setting, false);
    sac_error err;
    sac_seq seq;
    sac_compose_report report;
    for (int i = 0; i < 2; i++) {
        sac_compose_params p = {.method = methods_of_probes[i],
                                .doc = b.doc,
                                .n_doc = N_DOC,
                                .n_head = N_HEAD,
                                .question = (int32_t[]){1, 2, 3},
                                .n_question = 3};
        expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_UNSUPPORTED, "kascade");
        p.decode = 1;
        must(sac_compose(b.e, &p, &seq, &report, &err), &err);
        assert_int_equal(report.decode, 1);
        sac_seq_remove(b.e, seq);
        p.decode = 2;
        expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_ARG, "the engine has 2");
    }
    sac_engine_free(b.e);
}

static void what_is_no_document_is_refused(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.type = SAC_KV_F16}, false);
    sac_error err;
    sac_seq seq, odd;
    sac_compose_params p = {.method = "reuse", .doc = b.doc, .n_doc = N_DOC, .n_head = N_HEAD};
    const uint64_t used = sac_engine_get_stats(b.e).kv_bytes_used;
    p.method = "blend";
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_ARG, "blend");
    p.method = "epic:k=-1";
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_ARG, "k=-1");
    p.method = "reuse";
    p.n_doc = 0;
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_ARG, "no documents");
    p.n_doc = N_DOC;
    p.n_head = 64;
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_ARG, "different heads");
    p.n_head = 20;
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_ARG, "20 tokens");
    p.n_head = N_HEAD;
    p.doc = &(sac_seq){77};
    p.n_doc = 1;
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_NOT_FOUND, "77");
    p.doc = (sac_seq[]){0, 0, 0, 0, 0, 0};
    p.n_doc = 6;
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_CONTEXT, "608 tokens");
    p.doc = b.doc;
    p.n_doc = N_DOC;
    p.method = "samkv";
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_ARG, "needs a question");
    const struct bench sparse = open_bench(&(struct setting){.decode = "snapkv"}, false);
    expect(sac_compose(sparse.e, &p, &seq, NULL, &err), &err, SAC_ERR_UNSUPPORTED, "snapkv");
    sac_engine_free(sparse.e);
    p.method = "reuse";
    must(sac_seq_create(b.e, &odd, &err), &err);
    compute(b.e, odd, (int32_t[]){1, 2, 3}, 3, NULL, NULL);
    p.doc = &odd;
    p.n_doc = 1;
    expect(sac_compose(b.e, &p, &seq, NULL, &err), &err, SAC_ERR_ARG, "no document");
    sac_seq_remove(b.e, odd);
    assert_int_equal(sac_engine_get_stats(b.e).kv_bytes_used, used);
    sac_engine_free(b.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_document_is_an_ordinary_prompt),
        cmocka_unit_test(all_computed_again_is_the_whole_prompt),
        cmocka_unit_test(nothing_computed_again_is_reuse),
        cmocka_unit_test(layers_that_do_not_change_stay_shared),
        cmocka_unit_test(shares_are_the_methods_own),
        cmocka_unit_test(rows_see_what_stands_before_them),
        cmocka_unit_test(documents_stay_as_they_are),
        cmocka_unit_test(results_do_not_depend_on_threads_and_batches),
        cmocka_unit_test(samkv_keeps_ends_and_what_is_asked_for),
        cmocka_unit_test(notes_are_what_they_say),
        cmocka_unit_test(rows_behind_a_block_tell_its_token),
        cmocka_unit_test(what_a_question_reads_is_seen_through_turns),
        cmocka_unit_test(more_mass_is_more_rows),
        cmocka_unit_test(values_are_compared_layer_by_layer),
        cmocka_unit_test(many_prompts_hold_the_documents_once),
        cmocka_unit_test(twenty_documents_are_joined_without_a_copy),
        cmocka_unit_test(the_method_that_is_named_is_the_sequence_s),
        cmocka_unit_test(what_is_no_document_is_refused),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
