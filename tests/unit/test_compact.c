/* test_compact.c: decode methods over joined documents of which pages were given back: they choose
 * as if the pages that are left were all there ever was. */
#include "compose_bench.h"
#include "spec_make.h"

/* First and last blocks, as they were computed. */
#define ENDS "samkv:select=off,recompute=off"

static void attach(const struct bench *b, sac_seq to, uint32_t d, uint32_t first, uint32_t n_tok,
                   uint32_t at)
{
    sac_error err;
    must(segment_attach(b->e, to,
                        &(struct segment_source){.seq = b->doc[d],
                                                 .first = first,
                                                 .n_tok = n_tok,
                                                 .offset = (int32_t)at - (int32_t)first},
                        &err),
         &err);
}

/* What ENDS keeps, attached piece by piece; every piece as far from the question as there. */
static sac_seq join_ends(const struct bench *b)
{
    uint32_t n_all = 0, at = 0;
    sac_seq s;
    sac_error err;
    must(sac_seq_create(b->e, &s, &err), &err);
    for (uint32_t d = 0; d < N_DOC; d++) n_all += 4 * n_text[d] - 3 * 64;
    attach(b, s, 0, 0, N_HEAD, 0 - n_all);
    for (uint32_t d = 0; d < N_DOC; d++) {
        const uint32_t n = 4 * n_text[d];
        attach(b, s, d, N_HEAD, 64, N_HEAD + at - n_all);
        attach(b, s, d, N_HEAD + n - 2 * 64, 2 * 64, N_HEAD + at + n - 2 * 64 - n_all);
        at += n;
    }
    return s;
}

/* Rounding of queries that stand elsewhere; a method may choose other tokens for that. */
static double limit_of(const struct method *m)
{
    /* They choose by coordinates of the rotated query, which are others elsewhere. */
    const bool differs = strcmp(m->name, "sparq") == 0 || strcmp(m->name, "magicpig") == 0;
    return differs ? 1 : 5e-3;
}

static void check_method(const struct method *m, const char *spec, sac_kv_type type)
{
    float wanted[2][TINY_VOCAB], got[2][TINY_VOCAB];
    const struct bench b =
        open_bench(&(struct setting){.is_long = true, .decode = spec, .type = type}, false);
    const sac_seq twin = join_ends(&b);
    assert_int_equal(sac_seq_length(b.e, twin, NULL), N_HEAD + 3 * 3 * 64);
    ask(&b, twin, wanted);
    sac_seq_remove(b.e, twin);
    answer(&b, ENDS, N_DOC, got);
    if (!(distance(got, wanted) < limit_of(m)))
        fail_msg("%s, type %d: off by %g", spec, (int)type, distance(got, wanted));
    sac_engine_free(b.e);
}

static bool is_possible(const struct method *m)
{
    return strcmp(m->kind, "decode") == 0 && !m->evicts && (!m->decode || m->meets_segments);
}

static void methods_choose_among_what_is_left(void **state)
{
    (void)state;
    const struct method *m;
    for (size_t i = 0; (m = method_at(i)); i++) {
        char spec[SPEC_MAKE_BYTES];
        if (!is_possible(m) || !method_tested(m)) continue;
        spec_make_part(spec, m, 96);
        /* A ring of rows that pages do not fill. */
        if (strcmp(m->name, "infllm") == 0) strcat(spec, ",window=7");
        check_method(m, m->decode ? spec : m->name, SAC_KV_F16);
        if (strcmp(m->name, "auto") == 0) check_method(m, spec, SAC_KV_Q8);
    }
}

/* Layers keep different blocks, and methods that learn from rows of the past are among those that
 * are asked: the same answer from a fork, from what was saved, when it has been cut, and whatever
 * the threads are. */
static void it_lives_as_any_sequence(void **state)
{
    (void)state;
    const char *const decode[] = {"infllm:budget=96,sink=16,recent=16,block=32",
                                  "quest:budget=96,dense=0", "lfps:budget=96"};
    for (int i = 0; i < 3; i++) {
        float wanted[2][TINY_VOCAB], got[2][TINY_VOCAB];
        for (uint32_t n_threads = 1; n_threads <= 2; n_threads++) {
            const struct bench b = open_bench(
                &(struct setting){.is_long = true, .decode = decode[i], .n_threads = n_threads},
                false);
            sac_error err;
            sac_seq fork, loaded;
            uint8_t *bytes;
            size_t n;
            const sac_seq seq = compose(&b, "samkv:all_above=on,update=overwrite", N_DOC, NULL);
            must(sac_seq_to_bytes(b.e, seq, &bytes, &n, &err), &err);
            must(sac_seq_fork(b.e, seq, &fork, &err), &err);
            const uint32_t n_tok = sac_seq_length(b.e, seq, NULL);
            ask(&b, seq, got);
            if (n_threads == 1) memcpy(wanted, got, sizeof got);
            assert_memory_equal(got, wanted, sizeof got);
            must(sac_seq_truncate(b.e, seq, n_tok, &err), &err);
            ask(&b, seq, got);
            assert_memory_equal(got, wanted, sizeof got);
            ask(&b, fork, got);
            assert_memory_equal(got, wanted, sizeof got);
            sac_seq_remove(b.e, seq);
            sac_seq_remove(b.e, b.doc[0]);
            must(sac_seq_from_bytes(b.e, bytes, n, &loaded, &err), &err);
            ask(&b, loaded, got);
            assert_memory_equal(got, wanted, sizeof got);
            sac_free(bytes);
            sac_engine_free(b.e);
        }
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    sac_error err;
    sac_engine *plain;
    sac_seq loaded;
    uint8_t *bytes;
    size_t n;
    const struct bench b = open_bench(&(struct setting){.is_long = true}, false);
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 4 * N_CTX;
    p.n_threads = 1;
    must(sac_engine_create(&plain, model, &p, &err), &err);
    const sac_seq seq = compose(&b, ENDS, N_DOC, NULL);
    must(sac_seq_to_bytes(b.e, seq, &bytes, &n, &err), &err);
    assert_int_equal(sac_seq_from_bytes(plain, bytes, n, &loaded, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "'compose'"));
    /* A page of one head is gone, in a file whose sums are right. */
    pool_drop(&b.e->pool, seq, 1, 0, 1);
    sac_free(bytes);
    must(sac_seq_to_bytes(b.e, seq, &bytes, &n, &err), &err);
    assert_int_equal(sac_seq_from_bytes(b.e, bytes, n, &loaded, &err), SAC_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "where none can be"));
    sac_free(bytes);
    sac_engine_free(plain);
    sac_engine_free(b.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_choose_among_what_is_left),
        cmocka_unit_test(it_lives_as_any_sequence),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, bench_open_model, bench_free_model);
}
