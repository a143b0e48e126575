/* test_repeat.c: sequences that the model repeats before they go on: they are afterwards what they
 * were, and nobody else notices. What a method learns from it is in test_kvzip.c. */
#include "engine/engine.h"

#include "must.h"
#include "tiny_model.h"

#include <string.h>

enum { N_PROMPT = 300, N_CTX = 512 };

static sac_model *models[2]; /* the second has windows */

static int open_models(void **state)
{
    (void)state;
    models[0] = tiny_open(&(struct tiny){.seed = 3});
    models[1] = tiny_open(&(struct tiny){.seed = 4, .n_layer = 6, .window = 48});
    return models[0] && models[1] ? 0 : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(models[0]);
    sac_model_free(models[1]);
    return 0;
}

static sac_engine *open_engine(const sac_model *model, sac_engine_params p, const char *decode)
{
    sac_engine *e;
    sac_error err;
    p.n_ctx = N_CTX;
    p.n_batch = 64;
    p.n_threads = 1;
    p.sparse_min_ctx = 1;
    p.decode = &decode;
    p.n_decode = 1;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

struct rows {
    uint32_t n;
    float logits[TINY_VOCAB]; /* of the last one */
};

static void on_row(void *user, const sac_row *row)
{
    struct rows *r = user;
    r->n++;
    memcpy(r->logits, row->logits, sizeof r->logits);
}

static void append(sac_engine *e, sac_seq s, uint32_t n, sac_row_kind kind)
{
    int32_t tok[N_CTX];
    sac_error err;
    for (uint32_t i = 0; i < n; i++) tok[i] = (int32_t)(i * 37 % 200 + 1);
    const sac_want want = kind == SAC_ROW_PROMPT ? SAC_WANT_LAST : SAC_WANT_ALL;
    must(sac_seq_append(e, s, tok, n, kind, want, &err), &err);
}

static void run_all(sac_engine *e, struct rows *r)
{
    uint32_t done = 1;
    sac_error err;
    while (done) must(sac_step(e, on_row, r, &done, &err), &err);
}

static sac_seq prompted(sac_engine *e, uint32_t n)
{
    sac_seq s;
    sac_error err;
    struct rows r;
    must(sac_seq_create(e, &s, &err), &err);
    append(e, s, n, SAC_ROW_PROMPT);
    run_all(e, &r);
    return s;
}

static void a_sequence_is_what_it_was(void **state)
{
    (void)state;
    static uint8_t tail[1 << 20];
    for (int q8 = 0; q8 < 2; q8++)
        for (int m = 0; m < 2; m++) {
            const sac_kv_type type = q8 ? SAC_KV_Q8 : SAC_KV_F16;
            sac_engine *e = open_engine(
                models[m], (sac_engine_params){.n_seq_max = 1, .type_k = type, .type_v = type},
                "kvzip:budget=100,repeat=192");
            sac_error err;
            const sac_seq s = prompted(e, N_PROMPT);
            append(e, s, 5, SAC_ROW_DECODE);
            const size_t n_tail = pool_pages_per_index(&e->pool) * e->pool.geom.tail_bytes;
            const uint32_t n_free = e->pool.n_free;
            const uint64_t n_row = e->stats.reads.n_prompt_tok;
            assert_true(n_tail <= sizeof tail);
            memcpy(tail, pool_tail(&e->pool, s, 0), n_tail);
            assert_true(repeat_is_due(e, s));
            must(repeat_run(e, &err), &err);
            assert_false(repeat_is_due(e, s));
            assert_memory_equal(tail, pool_tail(&e->pool, s, 0), n_tail);
            assert_int_equal(e->pool.n_free, n_free);
            uint32_t pending;
            assert_int_equal(sac_seq_length(e, s, &pending), N_PROMPT);
            assert_int_equal(pending, 5);
            for (uint32_t i = 0; i < N_PROMPT + 5; i++)
                assert_int_equal(sac_seq_tokens(e, s)[i],
                                 (i < N_PROMPT ? i : i - N_PROMPT) * 37 % 200 + 1);
            /* All tokens but the first four, and two instructions with what leads to the second. */
            const uint64_t n_more = e->stats.reads.n_prompt_tok - n_row;
            assert_int_equal(n_more, N_PROMPT - 4 + e->repeat.n_text[0] + e->repeat.n_text[1] + 8);
            struct rows r = {0};
            run_all(e, &r);
            assert_int_equal(r.n, 5);
            assert_int_equal(e->stats.reads.n_prompt_tok, n_row + n_more); /* once */
            sac_engine_free(e);
        }
}

/* The rows come as they are said to: instruction, what leads to the piece, the piece. */
static void pieces_come_in_order(void **state)
{
    (void)state;
    sac_engine *e =
        open_engine(models[0], (sac_engine_params){.n_seq_max = 1}, "kvzip:budget=100,repeat=192");
    const sac_seq s = prompted(e, N_PROMPT);
    append(e, s, 1, SAC_ROW_DECODE);
    sac_error err;
    must(repeat_run(e, &err), &err);
    /* What the last piece has left in the memory behind the sequence's tokens. */
    const int32_t *tok = e->seqs[s].tok, *rows = tok + N_PROMPT;
    const uint32_t n_text = (uint32_t)e->repeat.n_text[1], n_piece = N_PROMPT - 196;
    assert_memory_equal(rows + 1, e->repeat.text[1] + 1, (n_text - 1) * sizeof *tok);
    assert_memory_equal(rows + n_text, tok + 196 - 8, (8 + n_piece) * sizeof *tok);
    sac_engine_free(e);
}

/* The context is what was asked for, and one that is full is repeated, too. */
static void the_context_is_all_a_sequences_own(void **state)
{
    (void)state;
    sac_engine *e =
        open_engine(models[0], (sac_engine_params){.n_seq_max = 1}, "kvzip:budget=100,repeat=2000");
    sac_error err;
    struct rows r = {0};
    assert_int_equal(sac_engine_get_params(e).n_ctx, N_CTX);
    assert_int_equal(sac_engine_get_params(e).n_kv_tok, N_CTX);
    const sac_seq s = prompted(e, N_CTX - 2);
    append(e, s, 2, SAC_ROW_DECODE);
    const int32_t one = 1;
    assert_int_equal(sac_seq_append(e, s, &one, 1, SAC_ROW_DECODE, SAC_WANT_ALL, &err),
                     SAC_ERR_CONTEXT);
    assert_non_null(strstr(err.msg, "holds 512 and the context is 512"));
    run_all(e, &r);
    assert_int_equal(r.n, 2);
    assert_true(e->stats.reads.n_prompt_tok > 2 * (N_CTX - 10));
    sac_engine_free(e);
}

/* Where others hold the pages that it takes, a sequence waits for them. */
static void without_pages_a_sequence_waits(void **state)
{
    (void)state;
    sac_engine *e =
        open_engine(models[0], (sac_engine_params){.n_seq_max = 3, .n_kv_tok = 2 * N_PROMPT},
                    "kvzip:budget=100,repeat=192");
    const sac_seq a = prompted(e, N_PROMPT), b = prompted(e, N_PROMPT), c = prompted(e, 200);
    sac_error err;
    uint32_t n;
    struct rows r = {0};
    append(e, a, 1, SAC_ROW_DECODE);
    assert_int_equal(sac_step(e, on_row, &r, &n, &err), SAC_ERR_CONTEXT);
    assert_int_equal(r.n, 0);
    sac_seq_remove(e, b);
    sac_seq_remove(e, c);
    run_all(e, &r);
    assert_int_equal(r.n, 1);
    sac_engine_free(e);
}

/* The rows of one sequence are not taken for another's prompt, nor is a prompt that has them. */
static void prompts_that_share_pages_are_repeated_each(void **state)
{
    (void)state;
    struct rows r[2] = {0};
    sac_engine *e =
        open_engine(models[0], (sac_engine_params){.n_seq_max = 2, .prefix_cache = true},
                    "kvzip:budget=100,repeat=192");
    uint64_t n_row[2];
    sac_seq seq[2];
    for (int i = 0; i < 2; i++) { /* whole pages: the index could go on with the rows */
        const sac_seq s = seq[i] = prompted(e, 288);
        const uint64_t before = e->stats.reads.n_prompt_tok;
        append(e, s, 3, SAC_ROW_DECODE);
        run_all(e, &r[i]);
        n_row[i] = e->stats.reads.n_prompt_tok - before;
    }
    assert_true(e->stats.reads.n_reused_tok >= 256);
    assert_int_equal(n_row[0], n_row[1]);
    assert_memory_equal(r[0].logits, r[1].logits, sizeof r[0].logits);
    for (int i = 0; i < 2; i++) sac_seq_remove(e, seq[i]);
    assert_int_equal(sac_engine_get_stats(e).kv_bytes_kept,
                     288 / 32 * pool_pages_per_index(&e->pool) * e->pool.geom.bytes);
    sac_engine_free(e);
}

/* A second prompt is repeated with what is left of the first. */
static void each_prompt_is_repeated(void **state)
{
    (void)state;
    struct rows r = {0};
    sac_engine *e =
        open_engine(models[1], (sac_engine_params){.n_seq_max = 1}, "kvzip:budget=50%,repeat=192");
    const sac_seq s = prompted(e, N_PROMPT);
    append(e, s, 2, SAC_ROW_DECODE);
    run_all(e, &r);
    append(e, s, 40, SAC_ROW_PROMPT);
    run_all(e, &r);
    const uint64_t before = e->stats.reads.n_prompt_tok;
    append(e, s, 2, SAC_ROW_DECODE);
    run_all(e, &r);
    assert_true(e->stats.reads.n_prompt_tok - before >= N_PROMPT + 42 - 4);
    for (uint32_t i = 0; i < TINY_VOCAB; i++) assert_true(r.logits[i] - r.logits[i] == 0);
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_is_what_it_was),
        cmocka_unit_test(pieces_come_in_order),
        cmocka_unit_test(the_context_is_all_a_sequences_own),
        cmocka_unit_test(without_pages_a_sequence_waits),
        cmocka_unit_test(prompts_that_share_pages_are_repeated_each),
        cmocka_unit_test(each_prompt_is_repeated),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
