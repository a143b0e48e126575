/* test_composers.c: what single composers say of themselves: where prompt caches put documents,
 * what a question is computed over; and any of them at their limits. */
#include "compose_bench.h"
#include "methods/context.h"
#include "methods/method_spec.h"

static const struct setting whole = {0}, infllm = {.decode = "infllm:budget=100%"};

/* ---- Places ---- */

static void places_without_gaps_are_reuse(void **state)
{
    (void)state;
    const struct bench b = open_bench(&whole, false);
    float wanted[2][TINY_VOCAB], got[2][TINY_VOCAB];
    answer(&b, "reuse", N_DOC, wanted);
    answer(&b, "promptcache", N_DOC, got);
    assert_memory_equal(got, wanted, sizeof got);
    answer(&b, "reuse:align=off", N_DOC, wanted);
    answer(&b, "promptcache:one_place=on", N_DOC, got);
    assert_true(distance(got, wanted) > 0.01); /* the question stands elsewhere */
    sac_engine_free(b.e);
}

/* A place of 160 tokens for a document of 96: as if the question stood 64 tokens farther away. */
static void a_place_is_as_long_as_it_says(void **state)
{
    (void)state;
    const struct bench b = open_bench(&whole, false);
    float wanted[2][TINY_VOCAB], got[2][TINY_VOCAB], apart[2][TINY_VOCAB];
    sac_seq twin;
    sac_error err;
    must(sac_seq_create(b.e, &twin, &err), &err);
    const struct segment_source far = {b.doc[0], 0, N_HEAD + 96, -64};
    must(segment_attach(b.e, twin, &far, &err), &err);
    ask(&b, twin, wanted);
    answer(&b, "promptcache:slot=160", 1, got);
    assert_memory_equal(got, wanted, sizeof got);
    answer(&b, "promptcache", 1, apart);
    assert_true(distance(apart, wanted) > 0.01);
    sac_engine_free(b.e);
}

static void order_of_documents_in_one_place_is_no_matter(void **state)
{
    (void)state;
    struct bench b = open_bench(&whole, false);
    float one[2][TINY_VOCAB], other[2][TINY_VOCAB];
    const struct bench turned = {b.e, {b.doc[2], b.doc[0], b.doc[1]}, b.n_head};
    answer(&b, "promptcache:one_place=on", N_DOC, one);
    answer(&turned, "promptcache:one_place=on", N_DOC, other);
    assert_true(distance(one, other) < 1e-3);
    answer(&b, "promptcache", N_DOC, one);
    answer(&turned, "promptcache", N_DOC, other);
    assert_true(distance(one, other) > 0.01);
    sac_engine_free(b.e);
}

/* ---- The question ---- */

/* Values of the question's tokens but the last, which lie in the sequence's tail. */
static void read_tail(const struct bench *b, sac_seq seq, uint32_t layer, float *v)
{
    const struct page_geom *g = &b->e->pool.geom;
    for (uint32_t h = 0; h < g->n_kv_head; h++)
        page_read(NULL, v + (size_t)h * (N_QUESTION - 1) * g->head_dim, g,
                  pool_tail(&b->e->pool, seq, layer) + h * g->tail_bytes, PAGE_TAIL,
                  N_QUESTION - 1);
}

static double tail_distance(const struct bench *b, sac_seq one, sac_seq other)
{
    enum { N = TINY_KV_HEADS * (N_QUESTION - 1) * TINY_DIM };
    static float x[N], y[N];
    double off = 0, all = 0;
    for (uint32_t layer = 0; layer < N_LAYER; layer++) {
        read_tail(b, one, layer, x);
        read_tail(b, other, layer, y);
        for (int i = 0; i < N; i++) {
            off += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
            all += (double)y[i] * (double)y[i];
        }
    }
    return sqrt(off / all);
}

/* The question but its last token behind pages of documents, attached by hand: [n][first, tokens,
 * position at which the first stands, less that of the question]. */
static sac_seq ask_by_hand(const struct bench *b, const int32_t (*piece)[4], uint32_t n)
{
    sac_seq s;
    sac_error err;
    int32_t question[N_QUESTION], n_all = 0;
    for (uint32_t i = 0; i < N_QUESTION; i++) question[i] = token_of(7, i);
    for (uint32_t i = 0; i < n; i++) n_all += piece[i][2];
    must(sac_seq_create(b->e, &s, &err), &err);
    for (uint32_t i = 0; i < n; i++) {
        const struct segment_source from = {b->doc[piece[i][0]], (uint32_t)piece[i][1],
                                            (uint32_t)piece[i][2],
                                            n_all + piece[i][3] - piece[i][1]};
        must(segment_attach(b->e, s, &from, &err), &err);
    }
    compute(b->e, s, question, N_QUESTION - 1, NULL, NULL);
    return s;
}

static void a_question_apart_reads_the_head_alone(void **state)
{
    (void)state;
    const struct bench b = open_bench(&whole, false), other = open_bench(&whole, true);
    const int32_t head[][4] = {{0, 0, N_HEAD, -N_HEAD}};
    const sac_seq seq = compose(&b, "reuse:query=last", N_DOC, NULL);
    const sac_seq changed = compose(&other, "reuse:query=last", N_DOC, NULL);
    const uint32_t n_all = N_HEAD + 96 + 128 + 64;
    const int32_t last = token_of(7, N_QUESTION - 1);
    float logits[2][TINY_VOCAB], full[2][TINY_VOCAB];
    assert_int_equal(sac_seq_length(b.e, seq, NULL), n_all + N_QUESTION - 1);
    assert_false(b.e->seqs[seq].has_gaps);
    const sac_seq twin = ask_by_hand(&b, head, 1);
    assert_true(tail_distance(&b, seq, twin) < 2e-3);
    sac_seq_remove(b.e, twin);
    /* Whatever stands in a document, the same bits; but the last token reads it. */
    for (uint32_t layer = 0; layer < N_LAYER; layer++)
        assert_memory_equal(pool_tail(&b.e->pool, seq, layer),
                            pool_tail(&other.e->pool, changed, layer), 64);
    compute(b.e, seq, &last, 1, catch_row, logits[0]);
    compute(other.e, changed, &last, 1, catch_row, logits[1]);
    assert_memory_not_equal(logits[0], logits[1], sizeof logits[0]);
    answer(&b, "reuse", N_DOC, full);
    memcpy(full[1], full[0], sizeof full[0]);
    memcpy(logits[1], logits[0], sizeof logits[0]);
    assert_true(distance(logits, full) > 0.001);
    sac_engine_free(b.e);
    sac_engine_free(other.e);
}

static void retrieval_reads_what_it_is_told_to(void **state)
{
    (void)state;
    const struct bench b = open_bench(&infllm, false);
    float wanted[2][TINY_VOCAB], got[2][TINY_VOCAB];
    const int32_t n = 96 + 128 + 64;
    const int32_t ends[][4] = {
        {0, 0, N_HEAD + 64, -N_HEAD - n}, {1, N_HEAD + 96, 32, -96}, {2, N_HEAD, 64, -64}};
    sac_seq seq = compose(&b, "infllm:sink=40,recent=70,blocks=0", N_DOC, NULL);
    const sac_seq twin = ask_by_hand(&b, ends, 3);
    assert_true(tail_distance(&b, seq, twin) < 2e-3);
    sac_seq_remove(b.e, twin);
    /* All blocks: as if nobody chose. */
    int32_t last = token_of(7, N_QUESTION - 1);
    sac_seq_remove(b.e, seq);
    seq = compose(&b, "infllm:blocks=100", N_DOC, NULL);
    assert_false(b.e->seqs[seq].has_gaps);
    compute(b.e, seq, &last, 1, catch_row, got[0]);
    sac_seq_remove(b.e, seq);
    answer(&b, "reuse", N_DOC, wanted);
    assert_memory_equal(got[0], wanted[0], sizeof got[0]);
    /* Some: those between count. */
    seq = compose(&b, "infllm:sink=32,recent=32,blocks=2", N_DOC, NULL);
    compute(b.e, seq, &last, 1, catch_row, got[0]);
    assert_memory_not_equal(got[0], wanted[0], sizeof got[0]);
    sac_engine_free(b.e);
}

/* ---- All ---- */

static bool count_tokens(void *user, const sac_event *event)
{
    *(uint32_t *)user += event->kind == SAC_EVENT_TOKEN;
    return false;
}

/* Computing the question to join documents takes no row from those that are being answered. */
static void requests_lose_nothing_to_a_question(void **state)
{
    (void)state;
    static const char *const methods[] = {"infllm:blocks=2", "reuse:query=last"};
    const struct setting s = {.decode = "infllm:budget=100%", .n_seq_more = 1};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        const struct bench b = open_bench(&s, false);
        const int32_t tok[] = {5, 6, 7};
        uint32_t n_tok = 0, n_active = 1;
        uint64_t id;
        sac_error err;
        sac_request r = sac_request_default();
        r.prompt = tok;
        r.n_prompt = 3;
        r.max_tokens = 6;
        r.ignore_eos = true;
        r.on_event = count_tokens;
        r.user = &n_tok;
        must(sac_submit(b.e, &r, &id, &err), &err);
        for (uint32_t step = 0; step < 9 && n_active; step++) {
            must(sac_run(b.e, &n_active, &err), &err);
            if (step == 2) compose(&b, methods[i], 2, NULL);
        }
        assert_int_equal(n_tok, 6);
        assert_int_equal(n_active, 0);
        sac_engine_free(b.e);
    }
}

/* Rows of one sequence are the same bits alone and beside another's. */
static void company_changes_nothing(void **state)
{
    (void)state;
    const char *const specs[] = {"reuse", "epic", "cacheblend",
                                 "samkv", "auto", "promptcache:slot=512"};
    const struct bench b = open_bench(&(struct setting){.is_long = true}, false);
    static float wanted[TINY_VOCAB], got[TINY_VOCAB];
    int32_t question[N_QUESTION];
    sac_error err;
    for (uint32_t i = 0; i < N_QUESTION; i++) question[i] = token_of(7, i);
    for (size_t i = 0; i + 1 < sizeof specs / sizeof specs[0]; i++) {
        sac_seq seq = compose(&b, specs[i], N_DOC, NULL);
        uint32_t n_row = 1;
        compute(b.e, seq, question, N_QUESTION, catch_row, wanted);
        sac_seq_remove(b.e, seq);
        seq = compose(&b, specs[i], N_DOC, NULL);
        const sac_seq beside = compose(&b, specs[i + 1], 1, NULL);
        must(sac_seq_append(b.e, beside, question, 7, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
        must(sac_seq_append(b.e, seq, question, N_QUESTION, SAC_ROW_PROMPT, SAC_WANT_LAST, &err),
             &err);
        while (n_row) must(sac_step(b.e, catch_row, got, &n_row, &err), &err);
        if (memcmp(got, wanted, sizeof got) != 0) fail_msg("%s beside %s", specs[i], specs[i + 1]);
        sac_seq_remove(b.e, seq);
        sac_seq_remove(b.e, beside);
    }
    sac_engine_free(b.e);
}

/* A question of one token about a document of `n_tok` tokens, the same one `n_doc` times. */
static void ask_of_many(const struct bench *b, const struct method *m, size_t n_doc, size_t n_tok)
{
    sac_seq many[64], seq;
    sac_error err;
    sac_compose_report r;
    float logits[TINY_VOCAB];
    const int32_t token = token_of(7, 0);
    for (size_t i = 0; i < n_doc; i++) many[i] = b->doc[2];
    const sac_compose_params p = {.method = m->name,
                                  .doc = many,
                                  .n_doc = n_doc,
                                  .n_head = N_HEAD,
                                  .question = &token,
                                  .n_question = 1};
    must(sac_compose(b->e, &p, &seq, &r, &err), &err);
    assert_int_equal(r.n_tok, n_doc * n_tok);
    assert_int_equal(sac_seq_length(b->e, seq, NULL), N_HEAD + n_doc * n_tok);
    compute(b->e, seq, &token, 1, catch_row, logits);
    for (int t = 0; t < TINY_VOCAB; t++) assert_true(isfinite(logits[t]));
    sac_seq_remove(b->e, seq);
}

static void limits_are_no_matter(void **state)
{
    (void)state;
    const struct method *m;
    struct setting s = {.is_long = true, .decode = "infllm"};
    const struct bench few = open_bench(&s, false);
    s = (struct setting){.decode = "infllm", .n_ctx_more = 64 * 64};
    const struct bench many = open_bench(&s, false);
    for (size_t i = 0; (m = method_at(i)); i++) {
        if (!m->context) continue;
        ask_of_many(&few, m, 1, 4 * 64);
        ask_of_many(&few, m, 7, 4 * 64);
        ask_of_many(&many, m, 64, 64);
    }
    sac_engine_free(few.e);
    sac_engine_free(many.e);
}

/* ---- What is computed again ---- */

enum { READ_PAGES = 4, READ_TOK = READ_PAGES * PAGE_TOK, READ_DOC = 2 * PAGE_TOK };

/* The tokens of the second of two documents that auto computes again where the question reads of it
 * so much, a bit each. */
static uint64_t chosen_of(const char *text, const float *read)
{
    static float mass[2][READ_TOK], spare[2 * READ_TOK];
    uint32_t done[READ_PAGES] = {0}, refresh[2 * READ_PAGES] = {0};
    bool resident[2 * READ_PAGES];
    const struct context_doc doc[] = {{0, READ_PAGES / 2}, {READ_PAGES / 2, READ_PAGES}};
    struct method_spec spec;
    sac_error err;
    memcpy(mass[0] + READ_DOC, read, READ_DOC * sizeof *read);
    mass[0][READ_DOC - 1] = 100; /* the end of the first one */
    must(method_spec_parse(&spec, "context", text, &err), &err);
    const struct context_view view = {.param = spec.param,
                                      .n_layer = 2,
                                      .n_page = READ_PAGES,
                                      .n_doc = 2,
                                      .doc = doc,
                                      .mass = mass[0],
                                      .done = done};
    struct context_plan plan = {refresh, resident, spare};
    spec.method->context->plan(&view, &plan);
    assert_memory_equal(refresh, refresh + READ_PAGES, sizeof refresh / 2);
    assert_true(refresh[0] == 0 && refresh[1] == 0);
    return refresh[2] | (uint64_t)refresh[3] << 32;
}

static uint64_t bits(uint32_t first, uint32_t n)
{
    return (((uint64_t)1 << n) - 1) << first;
}

/* What stands beside a token that is read much goes before another that is read little; nothing of
 * it crosses from document to document. */
static void neighbours_of_what_is_read_are_chosen(void **state)
{
    (void)state;
    float read[READ_DOC] = {0};
    read[20] = 9;
    read[40] = 4;
    read[50] = 3;
    /* 3 of 128 tokens, 5 of them */
    assert_int_equal(chosen_of("auto:most=0.024,layers=1,reach=0", read),
                     bits(20, 1) | bits(40, 1) | bits(50, 1));
    assert_int_equal(chosen_of("auto:most=0.024,layers=1,reach=1", read), bits(19, 3));
    assert_int_equal(chosen_of("auto:most=0.04,layers=1,reach=1", read),
                     bits(19, 3) | bits(40, 1) | bits(50, 1));
    /* The halves, three quarters and quarters of four tokens: 6.75, 4.5, 2.25. */
    assert_int_equal(chosen_of("auto:most=0.04,layers=1,reach=3", read), bits(18, 5));
}

static void refuse(const struct bench *b, const char *method, size_t n_question, const char *words)
{
    const int32_t token = 1;
    const sac_compose_params p = {.method = method,
                                  .doc = b->doc,
                                  .n_doc = N_DOC,
                                  .n_head = N_HEAD,
                                  .question = &token,
                                  .n_question = n_question};
    sac_error err = {0};
    sac_seq seq;
    if (sac_compose(b->e, &p, &seq, NULL, &err) == SAC_OK || !strstr(err.msg, words))
        fail_msg("%s: %s; expected: %s", method, err.msg, words);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    sac_model *windows = tiny_open(&(struct tiny){.seed = 4, .n_layer = 6, .window = 48});
    const struct bench b = open_bench(&whole, false);
    const uint64_t used = sac_engine_get_stats(b.e).kv_bytes_used;
    refuse(&b, "promptcache:slot=96", 1, "document 2 has 128 tokens");
    refuse(&b, "promptcache:slot=90", 1, "document 1 has 96 tokens");
    refuse(&b, "promptcache:slot=90,one_place=on", 1, "document 1 has 96 tokens: the place");
    refuse(&b, "promptcache:slot=9000000", 1, "slot=9000000");
    refuse(&b, "reuse:query=last", 0, "needs a question");
    refuse(&b, "infllm", 1, "needs decode method infllm, which");
    assert_int_equal(sac_engine_get_stats(b.e).kv_bytes_used, used);
    sac_engine_free(b.e);
    const struct bench w = open_bench(&(struct setting){.model = windows}, false);
    refuse(&w, "promptcache:slot=200", 1, "a window of tokens");
    refuse(&w, "reuse:query=last", 1, "a window of tokens");
    refuse(&w, "reuse:align=off", 1, "a window of tokens");
    sac_engine_free(w.e);
    sac_model_free(windows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_without_gaps_are_reuse),
        cmocka_unit_test(a_place_is_as_long_as_it_says),
        cmocka_unit_test(order_of_documents_in_one_place_is_no_matter),
        cmocka_unit_test(a_question_apart_reads_the_head_alone),
        cmocka_unit_test(retrieval_reads_what_it_is_told_to),
        cmocka_unit_test(requests_lose_nothing_to_a_question),
        cmocka_unit_test(company_changes_nothing),
        cmocka_unit_test(limits_are_no_matter),
        cmocka_unit_test(neighbours_of_what_is_read_are_chosen),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, bench_open_model, bench_free_model);
}
