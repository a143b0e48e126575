/* test_reuse.c: pages of prompts that are found by their content: a hit gives the bits that
 * computing would have given, texts are held once, salts keep tenants apart, and every miss has a
 * reason. */
#include "engine/engine.h"
#include "must.h"
#include "spec_make.h"
#include "tiny_model.h"

#include "saccade_machine.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_SHARED = 8 * PAGE_TOK + 5, N_OWN = 70, N_PROMPT = N_SHARED + N_OWN, N_ANSWER = 3 };

static sac_model *model, *windowed;
static int32_t text[2048];

static int open_model(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 5});
    windowed = tiny_open(&(struct tiny){.seed = 6, .n_layer = 7, .n_kv_head = 1, .window = 70});
    for (int i = 0; i < 2048; i++) text[i] = (i * 37 + i / 9 * 5) % TINY_VOCAB;
    return model && windowed ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(windowed);
    return 0;
}

struct setting {
    const char *decode, *prefill;
    sac_kv_type type;
    uint32_t n_seq, n_batch, n_kv_tok;
    bool off, record, window;
};

static sac_engine *new_engine(const struct setting *s)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    assert_false(p.prefix_cache);
    p.n_ctx = 1024;
    p.n_seq_max = s->n_seq ? s->n_seq : 2;
    p.n_threads = 1;
    if (s->n_batch) p.n_batch = s->n_batch;
    p.n_kv_tok = s->n_kv_tok;
    p.type_k = p.type_v = s->type;
    p.decode = &s->decode;
    p.n_decode = s->decode != NULL;
    p.prefill = &s->prefill;
    p.n_prefill = s->prefill != NULL;
    p.sparse_min_ctx = 0;
    p.prefix_cache = !s->off;
    p.record = s->record;
    must(sac_engine_create(&e, s->window ? windowed : model, &p, &err), &err);
    return e;
}

static bool is_whole(const sac_engine *e)
{
    uint32_t n_tok[16];
    assert_true(e->params.n_seq_max <= 16);
    for (uint32_t i = 0; i < e->params.n_seq_max; i++) n_tok[i] = e->seqs[i].n_done;
    return pool_check(&e->pool, n_tok);
}

struct lasts {
    float of[16][TINY_VOCAB]; /* of the last row of each sequence */
};

static void catch_row(void *user, const sac_row *row)
{
    struct lasts *l = user;
    memcpy(l->of[row->seq], row->logits, sizeof l->of[0]);
}

static void run(sac_engine *e, struct lasts *l)
{
    sac_error err;
    uint32_t n_row = 1;
    while (n_row) must(sac_step(e, catch_row, l, &n_row, &err), &err);
}

static void append(sac_engine *e, sac_seq s, const int32_t *tok, size_t n, sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, s, tok, n, kind, SAC_WANT_LAST, &err), &err);
}

static sac_seq create(sac_engine *e)
{
    sac_error err;
    sac_seq s;
    must(sac_seq_create(e, &s, &err), &err);
    return s;
}

/* The common text and `own`, which differs from sequence to sequence. */
static void append_prompt(sac_engine *e, sac_seq s, uint32_t own)
{
    sac_error err;
    must(sac_seq_append(e, s, text, N_SHARED, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    append(e, s, text + 1000 + 7 * own, N_OWN, SAC_ROW_PROMPT);
}

/* All pages of a sequence of n tokens. */
static uint64_t pages_of(const sac_engine *e, uint32_t n)
{
    return (uint64_t)(n / PAGE_TOK) * pool_pages_per_index(&e->pool);
}

/* A prompt and its answer in a fresh sequence, which stays. */
static sac_seq answer(sac_engine *e, uint32_t own, struct lasts *l)
{
    const sac_seq s = create(e);
    append_prompt(e, s, own);
    run(e, l);
    for (int i = 0; i < N_ANSWER; i++) append(e, s, text + 7 + i, 1, SAC_ROW_DECODE);
    run(e, l);
    return s;
}

static void eight_sequences_hold_a_text_once(void **state)
{
    (void)state;
    enum { N = 8 };
    static struct lasts got, want;
    /* One after the other; and all in one step, where each computes what none has yet. */
    for (int together = 0; together < 2; together++) {
        const struct setting on = {.n_seq = N,
                                   .window = together,
                                   .type = together ? SAC_KV_Q8 : SAC_KV_F16,
                                   .n_batch = together ? 4096 : 100};
        struct setting off = on;
        off.off = true;
        sac_engine *e = new_engine(&on), *plain = new_engine(&off);
        for (uint32_t i = 0; i < N; i++) {
            append_prompt(e, create(e), i);
            append_prompt(plain, create(plain), i);
            if (together) continue;
            run(e, &got);
            run(plain, &want);
        }
        run(e, &got);
        run(plain, &want);
        assert_memory_equal(got.of, want.of, N * sizeof got.of[0]);
        const sac_engine_stats s = sac_engine_get_stats(e), t = sac_engine_get_stats(plain);
        const uint64_t shared = pages_of(e, N_SHARED), all = pages_of(e, N_PROMPT);
        assert_int_equal(s.n_page - s.n_page_free, shared + N * (all - shared));
        assert_int_equal(t.n_page - t.n_page_free, N * all);
        assert_int_equal(s.reads.n_reused_tok,
                         together ? 0 : (N - 1) * (N_SHARED / PAGE_TOK * PAGE_TOK));
        assert_int_equal(s.reads.n_prompt_tok + s.reads.n_reused_tok, N * N_PROMPT);
        assert_int_equal(t.reads.n_reused_tok, 0);
        assert_true(is_whole(e));
        for (uint32_t i = 0; i < N; i++) sac_seq_remove(e, i);
        assert_int_equal(sac_engine_get_stats(e).n_page_free, s.n_page);
        assert_int_equal(sac_engine_get_stats(e).kv_bytes_used, 0);
        assert_int_equal(sac_engine_get_stats(e).kv_bytes_kept,
                         (shared + N * (all - shared)) * s.page_bytes);
        assert_true(is_whole(e));
        sac_engine_free(e);
        sac_engine_free(plain);
    }
}

/* Whatever a method learns from a prompt: it is the same where the prompt was found. */
static void every_decode_method_answers_alike(void **state)
{
    (void)state;
    static struct lasts got, want;
    const struct method *m;
    uint32_t n_hit = 0;
    for (size_t i = 0; (m = method_at(i)); i++) {
        char spec[SPEC_MAKE_BYTES];
        if (strcmp(m->kind, "decode") != 0) continue;
        spec_make_part(spec, m, 96);
        const struct setting on = {.decode = spec, .type = i % 2 ? SAC_KV_Q8 : SAC_KV_F16};
        struct setting off = on;
        off.off = true;
        sac_engine *e = new_engine(&on), *plain = new_engine(&off);
        sac_seq_remove(e, answer(e, 0, &got));
        const sac_seq s = answer(e, 1, &got);
        (void)answer(plain, 1, &want);
        if (memcmp(got.of[s], want.of[0], sizeof want.of[0]) != 0)
            fail_msg("%s: another answer behind pages that were found", spec);
        const uint64_t n = sac_engine_get_stats(e).reads.n_reused_tok;
        const bool wants_all = e->past.n_slot + PAGE_TOK > N_PROMPT;
        assert_int_equal(e->seqs[s].reuse.end,
                         n ? (n == 8 * PAGE_TOK ? SAC_REUSE_DIFFERS : SAC_REUSE_ALL)
                           : SAC_REUSE_QUERIES);
        assert_true((n > 0) != wants_all);
        n_hit += n > 0;
        assert_true(is_whole(e));
        sac_engine_free(e);
        sac_engine_free(plain);
    }
    assert_true(n_hit > 10);
}

static void salts_never_share(void **state)
{
    (void)state;
    static struct lasts l;
    sac_engine *e = new_engine(&(struct setting){.n_seq = 8});
    const char *const salts[] = {"tenant a", "tenant b", "", NULL, "tenant a", "tenant"};
    const uint32_t n_page = N_SHARED / PAGE_TOK;
    const uint64_t hit[] = {0, 0, 0, n_page * PAGE_TOK, n_page * PAGE_TOK, 0};
    for (uint32_t i = 0; i < 6; i++) {
        sac_error err;
        const sac_seq s = create(e);
        const uint64_t before = sac_engine_get_stats(e).reads.n_reused_tok;
        must(sac_seq_use_salt(e, s, salts[i], &err), &err);
        append_prompt(e, s, i);
        run(e, &l);
        assert_int_equal(sac_engine_get_stats(e).reads.n_reused_tok - before, hit[i]);
        assert_int_equal(e->seqs[s].reuse.end, hit[i] ? SAC_REUSE_DIFFERS : SAC_REUSE_NEW);
        assert_int_equal(sac_seq_use_salt(e, s, "late", &err), SAC_ERR_ARG);
        assert_non_null(strstr(err.msg, "a salt is for an empty one"));
        /* Tables of different salts name no page together. */
        for (uint32_t j = 0; j < i; j++) {
            const bool same = strcmp(salts[i] ? salts[i] : "", salts[j] ? salts[j] : "") == 0;
            assert_int_equal(pool_table(&e->pool, i, 0)[0] == pool_table(&e->pool, j, 0)[0], same);
        }
    }
    assert_int_equal(sac_seq_use_salt(e, 7, "x", NULL), SAC_ERR_NOT_FOUND);
    sac_engine_free(e);
}

static sac_seq ask(sac_engine *e, const char *salt, uint32_t n_prompt, struct lasts *l)
{
    sac_error err;
    const sac_seq s = create(e);
    must(sac_seq_use_salt(e, s, salt, &err), &err);
    must(sac_seq_append(e, s, text, n_prompt, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    append(e, s, text + n_prompt, 1, SAC_ROW_DECODE);
    run(e, l);
    return s;
}

/* Where decode rows follow, no row of a prompt need be computed whose pages are there. */
static void a_prompt_of_whole_pages_is_found_whole(void **state)
{
    (void)state;
    enum { N = 6 * PAGE_TOK };
    static struct lasts l;
    const char *const decode = "psa";
    sac_engine *e = new_engine(&(struct setting){.decode = decode, .type = SAC_KV_Q8});
    const sac_seq a = ask(e, NULL, N, &l);
    const uint64_t before = sac_engine_get_stats(e).reads.n_prompt_tok;
    const sac_seq b = ask(e, NULL, N, &l);
    assert_int_equal(before, N);
    assert_int_equal(sac_engine_get_stats(e).reads.n_prompt_tok, N);
    assert_int_equal(e->seqs[b].reuse.end, SAC_REUSE_ALL);
    assert_int_equal(e->seqs[b].n_done, N + 1);
    assert_memory_equal(l.of[a], l.of[b], sizeof l.of[0]);
    assert_true(is_whole(e));
    sac_engine_free(e);
}

/* Copies have pages of their own, and the same answers. */
static void copies_share_nothing(void **state)
{
    (void)state;
    enum { N = 5 * PAGE_TOK };
    static struct lasts l;
    const char *const decode[] = {"arkvale:budget=64", NULL};
    for (int i = 0; i < 2; i++) {
        size_t n;
        sac_error err;
        sac_engine *e = new_engine(&(struct setting){.decode = decode[i], .type = SAC_KV_Q8});
        must(sac_cache_copy(e, text, N + 1, "copy", &n, &err), &err);
        assert_int_equal(n, 0); /* nobody has computed it */
        const sac_seq a = ask(e, NULL, N, &l);
        must(sac_cache_copy(e, text, N + 1, "copy", &n, &err), &err);
        assert_int_equal(n, N);
        must(sac_cache_copy(e, text, N + 1, "copy", &n, &err), &err); /* once more: no harm */
        assert_int_equal(n, N);
        const sac_seq b = ask(e, "copy", N, &l);
        assert_int_equal(sac_engine_get_stats(e).reads.n_prompt_tok, N);
        assert_memory_equal(l.of[a], l.of[b], sizeof l.of[0]);
        for (uint32_t p = 0; p < N / PAGE_TOK; p++)
            assert_int_not_equal(pool_table(&e->pool, a, 0)[p], pool_table(&e->pool, b, 0)[p]);
        assert_true(is_whole(e));
        sac_engine_free(e);
    }
    sac_error err;
    size_t n;
    sac_engine *off = new_engine(&(struct setting){.off = true});
    assert_int_equal(sac_cache_copy(off, text, N, "copy", &n, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "prefix_cache"));
    sac_engine_free(off);
}

/* A key that is the same by chance, or by attack, is no hit. */
static void tokens_are_compared(void **state)
{
    (void)state;
    static struct lasts l;
    sac_engine *e = new_engine(&(struct setting){0});
    const sac_seq s = answer(e, 0, &l);
    const uint32_t last = e->seqs[s].reuse.node;
    const struct prefix_node *n = &e->reuse.index.node[last];
    const int32_t *tok = e->seqs[s].tok + (N_PROMPT / PAGE_TOK - 1) * PAGE_TOK;
    int32_t other[PAGE_TOK];
    memcpy(other, tok, sizeof other);
    assert_int_equal(prefix_find(&e->reuse.index, n->parent, n->key, tok), last);
    assert_int_equal(prefix_find(&e->reuse.index, last, n->key, tok), PREFIX_NONE);
    other[PAGE_TOK - 1] ^= 1;
    assert_int_equal(prefix_find(&e->reuse.index, n->parent, n->key, other), PREFIX_NONE);
    sac_engine_free(e);
}

static sac_reuse_end end_of(sac_engine *e, sac_seq s)
{
    static struct lasts l;
    const sac_engine_stats before = sac_engine_get_stats(e);
    run(e, &l);
    const sac_engine_stats after = sac_engine_get_stats(e);
    const sac_reuse_end end = e->seqs[s].reuse.end;
    uint64_t n = 0;
    for (int i = 0; i < SAC_REUSE_ENDS; i++) n += after.n_reuse_end[i] - before.n_reuse_end[i];
    assert_int_equal(n, 1);
    assert_int_equal(after.n_reuse_end[end] - before.n_reuse_end[end], 1);
    assert_true(strlen(sac_reuse_end_text(end)) > 10);
    return end;
}

static void every_miss_has_a_reason(void **state)
{
    (void)state;
    static struct lasts l;
    sac_error err;
    sac_engine *e = new_engine(&(struct setting){0});
    sac_seq s = create(e);
    append(e, s, text, PAGE_TOK, SAC_ROW_PROMPT);
    assert_int_equal(end_of(e, s), SAC_REUSE_SHORT);
    sac_seq_remove(e, s);
    append(e, s = create(e), text + 1, 3 * PAGE_TOK, SAC_ROW_PROMPT);
    assert_int_equal(end_of(e, s), SAC_REUSE_NEW);
    sac_seq_remove(e, s);
    /* The last page would leave no row to compute. */
    append(e, s = create(e), text + 1, 3 * PAGE_TOK, SAC_ROW_PROMPT);
    assert_int_equal(end_of(e, s), SAC_REUSE_ALL);
    assert_int_equal(e->seqs[s].reads.n_reused_tok, 2 * PAGE_TOK);
    /* Inside a page; behind an answer; with all logits. */
    append(e, s, text, 5, SAC_ROW_DECODE);
    run(e, &l);
    append(e, s, text, 3 * PAGE_TOK, SAC_ROW_PROMPT);
    assert_int_equal(end_of(e, s), SAC_REUSE_PAST);
    sac_seq_remove(e, s);
    s = create(e);
    must(sac_seq_append(e, s, text + 1, 2 * PAGE_TOK, SAC_ROW_PROMPT, SAC_WANT_ALL, &err), &err);
    assert_int_equal(end_of(e, s), SAC_REUSE_LOGITS);
    sac_engine_free(e);

    e = new_engine(&(struct setting){.off = true});
    append(e, s = create(e), text, 3 * PAGE_TOK, SAC_ROW_PROMPT);
    assert_int_equal(end_of(e, s), SAC_REUSE_OFF);
    sac_engine_free(e);
    e = new_engine(&(struct setting){.record = true});
    append(e, s = create(e), text, 3 * PAGE_TOK, SAC_ROW_PROMPT);
    assert_int_equal(end_of(e, s), SAC_REUSE_OFF);
    sac_engine_free(e);
    e = new_engine(&(struct setting){.prefill = "a-shape"});
    append(e, s = create(e), text, 3 * PAGE_TOK, SAC_ROW_PROMPT);
    assert_int_equal(end_of(e, s), SAC_REUSE_METHOD);
    assert_int_equal(e->reuse.index.n_used, 0);
    sac_engine_free(e);
    assert_string_equal(sac_reuse_end_text((sac_reuse_end)99), "unknown");
}

/* A text that was cut is known up to the cut, and pages that an answer has filled are not. */
static void what_was_cut_or_answered_is_not_found(void **state)
{
    (void)state;
    static struct lasts l, want;
    sac_error err;
    const struct setting q8 = {.type = SAC_KV_Q8, .n_seq = 3};
    struct setting off = q8;
    off.off = true;
    sac_engine *e = new_engine(&q8), *plain = new_engine(&off);
    sac_seq fork, s = create(e);
    append(e, s, text, 4 * PAGE_TOK, SAC_ROW_PROMPT);
    run(e, &l);
    assert_int_equal(e->seqs[s].reuse.n_page, 4);
    must(sac_seq_fork(e, s, &fork, &err), &err);
    /* Page 2 is cut: its first tokens are what rounding has left of them. */
    must(sac_seq_truncate(e, s, 2 * PAGE_TOK + 9, &err), &err);
    assert_int_equal(e->seqs[s].reuse.n_page, 2);
    append(e, s, text + 2 * PAGE_TOK + 9, 3 * PAGE_TOK, SAC_ROW_PROMPT);
    run(e, &l);
    assert_int_equal(e->seqs[s].reuse.n_page, 2);
    append(e, fork, text + 4 * PAGE_TOK, 2 * PAGE_TOK, SAC_ROW_DECODE);
    append(e, fork, text + 6 * PAGE_TOK, 2 * PAGE_TOK, SAC_ROW_PROMPT);
    run(e, &l);
    assert_int_equal(e->seqs[fork].reuse.n_page, 4);
    assert_int_equal(e->reuse.index.n_used, 4);
    sac_seq_remove(e, s);
    sac_seq_remove(e, fork);
    s = create(e);
    append(e, s, text, 8 * PAGE_TOK + 3, SAC_ROW_PROMPT);
    run(e, &l);
    assert_int_equal(e->seqs[s].reads.n_reused_tok, 4 * PAGE_TOK);
    append(plain, create(plain), text, 8 * PAGE_TOK + 3, SAC_ROW_PROMPT);
    run(plain, &want);
    assert_memory_equal(l.of[s], want.of[0], sizeof want.of[0]);
    /* At the border of a page it goes on. */
    must(sac_seq_truncate(e, s, 3 * PAGE_TOK, &err), &err);
    append(e, s, text + 3 * PAGE_TOK, 5 * PAGE_TOK + 3, SAC_ROW_PROMPT);
    run(e, &l);
    assert_memory_equal(l.of[s], want.of[0], sizeof want.of[0]);
    assert_int_equal(e->seqs[s].reads.n_reused_tok, 9 * PAGE_TOK);
    assert_true(is_whole(e));
    sac_engine_free(e);
    sac_engine_free(plain);
}

/* Pages are kept while nobody wants the room, and go from the ends of the oldest texts. */
static void leaves_go_when_room_is_needed(void **state)
{
    (void)state;
    static struct lasts l;
    sac_engine *e = new_engine(&(struct setting){.n_kv_tok = 12 * PAGE_TOK});
    sac_seq s;
    for (int i = 0; i < 2; i++) { /* two texts of 5 pages; the first one is asked again */
        append(e, s = create(e), text + 500 * i, 5 * PAGE_TOK + 1, SAC_ROW_PROMPT);
        run(e, &l);
        sac_seq_remove(e, s);
    }
    append(e, s = create(e), text, 5 * PAGE_TOK + 1, SAC_ROW_PROMPT);
    run(e, &l);
    assert_int_equal(e->seqs[s].reads.n_reused_tok, 5 * PAGE_TOK);
    sac_seq_remove(e, s);
    assert_int_equal(sac_engine_get_stats(e).n_page_free, e->pool.n_page);
    /* Four more: two are free, two come from the end of the second text. */
    append(e, s = create(e), text + 1000, 4 * PAGE_TOK + 1, SAC_ROW_PROMPT);
    run(e, &l);
    assert_int_equal(sac_engine_get_stats(e).n_reuse_evicted, 2);
    sac_seq_remove(e, s);
    append(e, s = create(e), text + 500, 5 * PAGE_TOK + 1, SAC_ROW_PROMPT);
    sac_error err;
    must(sac_step(e, catch_row, &l, NULL, &err), &err);
    assert_int_equal(e->seqs[s].reads.n_reused_tok, 3 * PAGE_TOK);
    run(e, &l);
    sac_seq_remove(e, s);
    /* All of the pool for one: everything goes, and a full pool is still an error. */
    append(e, s = create(e), text + 3, 12 * PAGE_TOK + 1, SAC_ROW_PROMPT);
    run(e, &l);
    assert_int_equal(sac_engine_get_stats(e).n_page_free, 0);
    assert_true(is_whole(e));
    append(e, s, text, PAGE_TOK, SAC_ROW_PROMPT);
    sac_status status = SAC_OK;
    uint32_t n = 1;
    while (status == SAC_OK && n) status = sac_step(e, catch_row, &l, &n, &err);
    assert_int_equal(status, SAC_ERR_CONTEXT);
    sac_engine_free(e);
}

/* What a method drops of a sequence the index gives back when it is needed, though other heads of
 * the sequence still hold pages of the same tokens. */
static void dropped_pages_make_room(void **state)
{
    (void)state;
    static struct lasts got, want;
    const struct setting on = {.decode = "raas:budget=96,prompt=age", .n_kv_tok = 12 * PAGE_TOK};
    struct setting off = on;
    off.off = true;
    sac_engine *e[2] = {new_engine(&on), new_engine(&off)};
    for (int i = 1; i >= 0; i--) {
        append(e[i], create(e[i]), text, 11 * PAGE_TOK + 1, SAC_ROW_PROMPT);
        for (int t = 0; t < 6 * (int)PAGE_TOK; t++) {
            run(e[i], i ? &want : &got);
            append(e[i], 0, text + t, 1, SAC_ROW_DECODE);
        }
        run(e[i], i ? &want : &got);
        assert_true(sac_engine_get_stats(e[i]).reads.n_page_dropped > 0);
        assert_true(is_whole(e[i]));
    }
    assert_true(sac_engine_get_stats(e[0]).n_reuse_evicted > 0);
    assert_memory_equal(got.of[0], want.of[0], sizeof got.of[0]);
    for (int i = 0; i < 2; i++) sac_engine_free(e[i]);
}

/* ---- Requests ---- */

struct log {
    sac_event done;
    int32_t tok[8];
    uint32_t n;
};

static bool on_event(void *user, const sac_event *event)
{
    struct log *log = user;
    if (event->kind == SAC_EVENT_TOKEN && log->n < 8) log->tok[log->n++] = event->tok;
    if (event->kind == SAC_EVENT_DONE) log->done = *event;
    return false;
}

static void submit(sac_engine *e, struct log *log, const char *salt)
{
    sac_request r = sac_request_default();
    sac_error err;
    uint64_t id;
    *log = (struct log){.n = 0};
    r.prompt = text;
    r.n_prompt = 4 * PAGE_TOK + 9;
    r.max_tokens = 5;
    r.ignore_eos = true;
    r.sampling.temp = 0;
    r.cache_salt = salt;
    r.on_event = on_event;
    r.user = log;
    must(sac_submit(e, &r, &id, &err), &err);
}

static void run_requests(sac_engine *e)
{
    sac_error err;
    uint32_t n = 1;
    while (n) must(sac_run(e, &n, &err), &err);
}

static void requests_tell_what_was_found(void **state)
{
    (void)state;
    sac_engine *e = new_engine(&(struct setting){0});
    struct log first, second, other;
    sac_error err;
    submit(e, &first, "a");
    run_requests(e);
    submit(e, &second, "a");
    run_requests(e);
    submit(e, &other, "b");
    run_requests(e);
    assert_int_equal(first.done.timings.n_reused, 0);
    assert_int_equal(first.done.timings.reuse_end, SAC_REUSE_NEW);
    assert_int_equal(second.done.timings.n_reused, 4 * PAGE_TOK);
    assert_int_equal(second.done.timings.n_cached, 4 * PAGE_TOK);
    assert_int_equal(second.done.timings.n_prompt, 4 * PAGE_TOK + 9);
    assert_int_equal(second.done.timings.reuse_end, SAC_REUSE_ALL);
    assert_int_equal(second.done.reads.n_prompt_tok, 8); /* the last one is a decode row */
    assert_int_equal(other.done.timings.n_reused, 0);
    assert_int_equal(second.n, 5);
    assert_memory_equal(first.tok, second.tok, sizeof first.tok);
    assert_memory_equal(first.tok, other.tok, sizeof first.tok);
    sac_request r = sac_request_default();
    uint64_t id;
    r.seq = create(e);
    r.prompt = text;
    r.n_prompt = 3;
    r.on_event = on_event;
    r.cache_salt = "a";
    assert_int_equal(sac_submit(e, &r, &id, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "cache_salt is for a fresh one"));
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(eight_sequences_hold_a_text_once),
        cmocka_unit_test(every_decode_method_answers_alike),
        cmocka_unit_test(salts_never_share),
        cmocka_unit_test(a_prompt_of_whole_pages_is_found_whole),
        cmocka_unit_test(copies_share_nothing),
        cmocka_unit_test(tokens_are_compared),
        cmocka_unit_test(every_miss_has_a_reason),
        cmocka_unit_test(what_was_cut_or_answered_is_not_found),
        cmocka_unit_test(leaves_go_when_room_is_needed),
        cmocka_unit_test(dropped_pages_make_room),
        cmocka_unit_test(requests_tell_what_was_found),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
