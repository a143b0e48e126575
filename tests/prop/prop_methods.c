/* prop_methods.c: what every decode method promises, checked on models of several shapes for each
 * method in the list, whatever it is: dense when its budget covers the context, the same
 * answer alone, in a crowd, with two threads, after a fork and when it was saved and loaded, reads
 * counted, nothing allocated in a step. What a single choice looks like is in
 * tests/unit/test_choose.c. */
#include "../unit/must.h"
#include "../unit/spec_make.h"
#include "base/mem.h"
#include "saccade.h"
#include "shapes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cut at the border of a page is possible whatever was given back. */
enum { N_PROMPT = 420, N_CUT = 256, N_DECODE = 4, N_VOCAB_MAX = 65536 };

static uint32_t n_vocab;
static int32_t prompt[N_PROMPT];

static const char text[] =
    "The eye does not glide along a line of print. It jumps, rests, and jumps again; what lies "
    "between two places of rest is never seen sharply, and yet the reader misses nothing. ";

static int load_model(void **state)
{
    (void)state;
    sac_error err;
    if (open_shape() != 0) return -1;
    n_vocab = sac_model_get_info(model).n_vocab;
    int32_t *tok;
    size_t n;
    if (n_vocab > N_VOCAB_MAX ||
        sac_tokenize(model, text, strlen(text), 0, &tok, &n, &err) != SAC_OK)
        return -1;
    /* The text again and again, with numbers of its own between: near and far both matter. */
    for (size_t i = 0; i < N_PROMPT; i++)
        prompt[i] = i % 37 == 5 ? (int32_t)((100 + i) % n_vocab) : tok[i % n];
    sac_free(tok);
    return 0;
}

/* A part of a context of some hundred tokens. */
enum { BUDGET = 96 };

struct setting {
    const char *spec;
    uint32_t n_seq, n_batch, n_threads;
    sac_kv_type type;
};

static sac_engine *new_engine(const struct setting *s)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 512;
    p.n_seq_max = s->n_seq ? s->n_seq : 1;
    p.n_batch = s->n_batch ? s->n_batch : 512;
    p.n_threads = s->n_threads ? s->n_threads : 1;
    p.type_k = p.type_v = s->type;
    p.decode = &s->spec;
    p.n_decode = 1;
    p.sparse_min_ctx = 0;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

struct answer {
    sac_seq seq;
    int32_t tok[N_DECODE];
    float logits[N_VOCAB_MAX];
};

static void catch_row(void *user, const sac_row *row)
{
    struct answer *a = user;
    if (row->seq == a->seq) memcpy(a->logits, row->logits, n_vocab * sizeof *a->logits);
}

static void append(sac_engine *e, sac_seq s, const int32_t *tok, size_t n, sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, s, tok, n, kind, SAC_WANT_LAST, &err), &err);
}

static void run_all(sac_engine *e, struct answer *a)
{
    uint32_t n = 1;
    sac_error err;
    while (n) must(sac_step(e, catch_row, a, &n, &err), &err);
}

static int32_t argmax(const float *x)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n_vocab; i++)
        if (x[i] > x[best]) best = i;
    return (int32_t)best;
}

/* Greedy tokens [from, to) of an answer whose prompt has been computed. */
static void go_on(sac_engine *e, struct answer *a, int from, int to)
{
    for (int i = from; i < to; i++) {
        a->tok[i] = argmax(a->logits);
        append(e, a->seq, &a->tok[i], 1, SAC_ROW_DECODE);
        run_all(e, a);
    }
}

static void start(sac_engine *e, struct answer *a, size_t n_prompt)
{
    sac_error err;
    must(sac_seq_create(e, &a->seq, &err), &err);
    append(e, a->seq, prompt, n_prompt, SAC_ROW_PROMPT);
    run_all(e, a);
}

static void same_answer(const char *what, const struct answer *a, const struct answer *b)
{
    if (memcmp(a->tok, b->tok, sizeof a->tok) != 0) fail_msg("%s: other tokens", what);
    if (memcmp(a->logits, b->logits, n_vocab * sizeof *a->logits) != 0)
        fail_msg("%s: other logits", what);
}

static void answer_alone(struct answer *out, const struct setting *s, size_t n_prompt)
{
    sac_engine *e = new_engine(s);
    start(e, out, n_prompt);
    go_on(e, out, 0, N_DECODE);
    sac_engine_free(e);
}

#define EACH_METHOD(m)                                                                             \
    const struct method *m;                                                                        \
    for (size_t i_ = 0; (m = method_at(i_)); i_++)                                                 \
        if (m->decode && method_tested(m))

static const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_Q8};

static void a_budget_for_all_gives_the_dense_bits(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 31, 32, 33, N_PROMPT};
    static struct answer dense, sparse;
    for (size_t t = 0; t < 2; t++)
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            answer_alone(&dense, &(struct setting){.spec = "full", .type = types[t]}, lengths[l]);
            EACH_METHOD(m)
            {
                char spec[SPEC_MAKE_BYTES];
                spec_make_whole(spec, m);
                answer_alone(&sparse, &(struct setting){.spec = spec, .type = types[t]},
                             lengths[l]);
                same_answer(spec, &sparse, &dense);
            }
        }
}

static void short_contexts_give_the_dense_bits(void **state)
{
    (void)state;
    static struct answer dense, sparse;
    answer_alone(&dense, &(struct setting){.spec = "full"}, N_PROMPT);
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        const char *const list[] = {spec};
        sac_engine_params p = sac_engine_params_default();
        sac_engine *e;
        sac_error err;
        p.n_ctx = 512;
        p.n_threads = 1;
        p.decode = list;
        p.n_decode = 1;
        p.sparse_min_ctx = N_PROMPT + N_DECODE + 1;
        must(sac_engine_create(&e, model, &p, &err), &err);
        start(e, &sparse, N_PROMPT);
        go_on(e, &sparse, 0, N_DECODE);
        assert_int_equal(sac_engine_get_stats(e).reads.n_select, 0);
        sac_engine_free(e);
        same_answer(spec, &sparse, &dense);
    }
}

/* The same choice in small batches, beside others, by a fork, and, on one shape, with two threads:
 * they cost much where tests run side by side. */
static void an_answer_does_not_depend_on_anything_else(void **state)
{
    (void)state;
    static struct answer alone, crowd, fork;
    for (size_t t = 0; t < 2; t++) {
        EACH_METHOD(m)
        {
            char spec[SPEC_MAKE_BYTES];
            spec_make_part(spec, m, BUDGET);
            answer_alone(&alone, &(struct setting){.spec = spec, .type = types[t]}, N_PROMPT);
            sac_engine *e =
                new_engine(&(struct setting){.spec = spec,
                                             .type = types[t],
                                             .n_seq = 4,
                                             .n_batch = 40,
                                             .n_threads = t || model_shape != shapes ? 1 : 2});
            sac_seq other[2];
            sac_error err;
            for (size_t i = 0; i < 2; i++) {
                must(sac_seq_create(e, &other[i], &err), &err);
                append(e, other[i], prompt + i, 40 + 60 * i, SAC_ROW_PROMPT);
                append(e, other[i], prompt, 3, SAC_ROW_DECODE);
            }
            start(e, &crowd, N_PROMPT);
            const uint64_t n_alloc = mem_count();
            append(e, other[0], prompt, N_DECODE, SAC_ROW_DECODE);
            go_on(e, &crowd, 0, 2);
            must(sac_seq_fork(e, crowd.seq, &fork.seq, &err), &err);
            memcpy(fork.logits, crowd.logits, sizeof fork.logits);
            memcpy(fork.tok, crowd.tok, sizeof fork.tok);
            go_on(e, &crowd, 2, N_DECODE);
            go_on(e, &fork, 2, N_DECODE);
            assert_int_equal(mem_count(), n_alloc);
            same_answer(spec, &crowd, &alone);
            same_answer(spec, &fork, &alone);
            sac_engine_free(e);
        }
    }
}

/* A sequence that was cut and got the same tokens again answers as one that never was. Where tokens
 * were dropped they stay so, and it only has to go on. */
static void a_cut_sequence_goes_on(void **state)
{
    (void)state;
    static struct answer cut, never;
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        sac_error err;
        sac_engine *e = new_engine(&(struct setting){.spec = spec});
        start(e, &cut, N_PROMPT);
        go_on(e, &cut, 0, 2);
        must(sac_seq_truncate(e, cut.seq, N_CUT, &err), &err);
        append(e, cut.seq, prompt + N_CUT, N_PROMPT - N_CUT, SAC_ROW_PROMPT);
        run_all(e, &cut);
        go_on(e, &cut, 0, N_DECODE);
        sac_engine_free(e);
        for (uint32_t i = 0; i < n_vocab; i++) assert_true(cut.logits[i] - cut.logits[i] == 0);
        if (m->evicts) continue;
        answer_alone(&never, &(struct setting){.spec = spec}, N_PROMPT);
        same_answer(spec, &cut, &never);
    }
}

/* The rest of an answer, a second prompt and an answer to that. */
static void finish(sac_engine *e, struct answer *a)
{
    go_on(e, a, 2, N_DECODE);
    append(e, a->seq, prompt + 7, 70, SAC_ROW_PROMPT);
    run_all(e, a);
    go_on(e, a, 0, N_DECODE);
}

/* A saved sequence goes on in another engine, and beside the one that it was saved from, with the
 * same bits by the same choices. */
static void a_saved_sequence_goes_on(void **state)
{
    (void)state;
    static struct answer a, other, beside;
    size_t n_method = 0;
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        const struct setting setting = {.spec = spec, .type = types[n_method++ % 2], .n_seq = 2};
        sac_engine *e = new_engine(&setting), *f = new_engine(&setting);
        sac_error err;
        uint8_t *bytes;
        size_t n;
        start(e, &a, N_PROMPT);
        go_on(e, &a, 0, 2);
        must(sac_seq_to_bytes(e, a.seq, &bytes, &n, &err), &err);
        memcpy(&other, &a, sizeof a);
        memcpy(&beside, &a, sizeof a);
        must(sac_seq_from_bytes(f, bytes, n, &other.seq, &err), &err);
        must(sac_seq_from_bytes(e, bytes, n, &beside.seq, &err), &err);
        assert_int_equal(sac_seq_length(f, other.seq, NULL), N_PROMPT + 2);
        const sac_engine_stats e0 = sac_engine_get_stats(e);
        finish(e, &a);
        const sac_engine_stats e1 = sac_engine_get_stats(e), f1 = sac_engine_get_stats(f);
        finish(f, &other);
        const sac_engine_stats f2 = sac_engine_get_stats(f);
        finish(e, &beside);
        same_answer(spec, &a, &other);
        same_answer(spec, &a, &beside);
        assert_int_equal(f2.reads.n_tok_read - f1.reads.n_tok_read,
                         e1.reads.n_tok_read - e0.reads.n_tok_read);
        assert_int_equal(f2.reads.choose_bytes_read - f1.reads.choose_bytes_read,
                         e1.reads.choose_bytes_read - e0.reads.choose_bytes_read);
        assert_int_equal(f2.reads.build_bytes_read - f1.reads.build_bytes_read,
                         e1.reads.build_bytes_read - e0.reads.build_bytes_read);
        assert_int_equal(f2.reads.n_select_dense - f1.reads.n_select_dense,
                         e1.reads.n_select_dense - e0.reads.n_select_dense);
        sac_free(bytes);
        sac_engine_free(e);
        sac_engine_free(f);
    }
}

/* Layers that methods are asked about: those without a window. */
static uint32_t layers_asked(void)
{
    uint32_t n = sac_model_get_info(model).n_layer;
    return model_shape->tiny.window ? n / 6 : n;
}

static void reads_are_counted_and_fewer(void **state)
{
    (void)state;
    static struct answer a;
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        spec_make_part(spec, m, BUDGET);
        sac_engine *e = new_engine(&(struct setting){.spec = spec});
        start(e, &a, N_PROMPT);
        const sac_engine_stats before = sac_engine_get_stats(e);
        go_on(e, &a, 0, N_DECODE);
        const sac_engine_stats s = sac_engine_get_stats(e);
        const sac_model_info info = sac_model_get_info(model);
        assert_int_equal(s.reads.n_select, (uint64_t)N_DECODE * layers_asked() * info.n_kv_head);
        assert_int_equal(s.reads.n_select_nan, 0);
        const uint64_t n_seen = s.reads.n_tok_seen - before.reads.n_tok_seen,
                       n_read = s.reads.n_tok_read - before.reads.n_tok_read;
        print_message(
            "%-12s reads %4.1f %% of %d tokens, dense in %4.1f %% of its choices, %.0f side "
            "bytes a choice\n",
            m->name, 100.0 * (double)n_read / (double)n_seen, N_PROMPT,
            100.0 * (double)s.reads.n_select_dense / (double)s.reads.n_select,
            (double)(s.reads.choose_bytes_read + s.reads.build_bytes_read) /
                (double)s.reads.n_select);
        if (m->facts.reads_all) {
            assert_int_equal(n_read, n_seen);
            assert_true(s.reads.attend_bytes_read - before.reads.attend_bytes_read <
                        s.reads.dense_bytes - before.reads.dense_bytes);
        } else if (n_read >= n_seen) {
            fail_msg("%s reads everything", spec);
        }
        sac_engine_free(e);
    }
}

static uint32_t free_pages(const sac_engine *e)
{
    return (uint32_t)sac_engine_get_stats(e).n_page_free;
}

/* What an evicting method drops is free for others, a fork keeps its own, another turn goes on, and
 * what would need the dropped tokens is refused. */
static void evicting_methods_give_pages_back(void **state)
{
    (void)state;
    static struct answer a, fork;
    EACH_METHOD(m)
    {
        char spec[SPEC_MAKE_BYTES];
        if (!m->evicts) continue;
        spec_make_part(spec, m, 32); /* so little that whole pages go, wherever its tokens are */
        const char *const specs[] = {spec, "full"};
        sac_engine_params p = sac_engine_params_default();
        sac_engine *e;
        sac_error err;
        p.n_ctx = 512;
        p.n_seq_max = 2;
        p.n_threads = 1;
        p.decode = specs;
        p.n_decode = 2;
        p.sparse_min_ctx = 0;
        must(sac_engine_create(&e, model, &p, &err), &err);
        const uint32_t all = free_pages(e);
        start(e, &a, N_PROMPT);
        const uint32_t before = free_pages(e);
        must(sac_seq_fork(e, a.seq, &fork.seq, &err), &err);
        memcpy(fork.logits, a.logits, sizeof fork.logits);
        go_on(e, &a, 0, 1);
        assert_int_equal(free_pages(e), before); /* the fork still holds them */
        const uint64_t n_dropped = sac_engine_get_stats(e).reads.n_page_dropped;
        if (n_dropped == 0) fail_msg("%s gives no page back", spec);
        go_on(e, &fork, 0, 1);
        assert_true(free_pages(e) >= before + n_dropped);
        assert_int_equal(a.tok[0], fork.tok[0]);
        print_message("%-12s gives back %.1f %% of the pages of %d tokens\n", m->name,
                      100.0 * (double)n_dropped / (double)(all - before), N_PROMPT);
        assert_int_equal(sac_seq_use_decode(e, a.seq, 1, &err), SAC_ERR_ARG);
        append(e, a.seq, prompt, 70, SAC_ROW_PROMPT);
        run_all(e, &a);
        go_on(e, &a, 0, N_DECODE);
        for (uint32_t i = 0; i < n_vocab; i++) assert_true(a.logits[i] - a.logits[i] == 0);
        sac_seq_remove(e, a.seq);
        sac_seq_remove(e, fork.seq);
        assert_int_equal(free_pages(e), all);
        sac_engine_free(e);
    }
}

static void a_method_is_chosen_by_sequence(void **state)
{
    (void)state;
    static struct answer full, streaming, a;
    const char *const specs[] = {"full", "streaming:budget=40"};
    answer_alone(&full, &(struct setting){.spec = specs[0]}, N_PROMPT);
    answer_alone(&streaming, &(struct setting){.spec = specs[1]}, N_PROMPT);
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e;
    sac_error err;
    p.n_ctx = 512;
    p.n_seq_max = 3;
    p.n_threads = 1;
    p.decode = specs;
    p.n_decode = 2;
    p.sparse_min_ctx = 0;
    must(sac_engine_create(&e, model, &p, &err), &err);
    start(e, &a, N_PROMPT);
    must(sac_seq_use_decode(e, a.seq, 1, &err), &err);
    const sac_seq first = a.seq;
    struct answer *fork = malloc(sizeof *fork);
    memcpy(fork, &a, sizeof *fork);
    must(sac_seq_fork(e, first, &fork->seq, &err), &err);
    go_on(e, fork, 0, N_DECODE);
    same_answer("a fork inherits", fork, &streaming);
    free(fork);
    must(sac_seq_use_decode(e, first, 0, &err), &err);
    go_on(e, &a, 0, N_DECODE);
    same_answer("chosen anew", &a, &full);
    assert_int_equal(sac_seq_use_decode(e, first, 2, &err), SAC_ERR_ARG);
    assert_int_equal(sac_seq_use_decode(e, 2, 0, &err), SAC_ERR_NOT_FOUND);
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_budget_for_all_gives_the_dense_bits),
        cmocka_unit_test(short_contexts_give_the_dense_bits),
        cmocka_unit_test(an_answer_does_not_depend_on_anything_else),
        cmocka_unit_test(a_cut_sequence_goes_on),
        cmocka_unit_test(a_saved_sequence_goes_on),
        cmocka_unit_test(reads_are_counted_and_fewer),
        cmocka_unit_test(evicting_methods_give_pages_back),
        cmocka_unit_test(a_method_is_chosen_by_sequence),
    };
    RUN_ON_SHAPES(tests, load_model);
}
