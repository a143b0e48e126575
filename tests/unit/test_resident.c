/* test_resident.c: documents that were loaded stay in the engine's pages: the next one who loads
 * them gets the same pages, with the same answers; they go when room is wanted, the oldest first,
 * and are read anew when their files have changed. */
#include "engine/doc_stats.h"
#include "engine/engine.h"
#include "engine/resident.h"
#include "must.h"
#include "tiny_rows.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "store_dir.h"

enum { N_TEXT = 96, N_CTX = 512 };

static sac_model *model;
static sac_docs *docs;
static const char *const name[] = {"a", "b", "c"};

static sac_engine *new_engine(bool compose, const char *decode)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = N_CTX;
    p.n_seq_max = 4;
    p.n_kv_tok = N_CTX;
    p.n_threads = 1;
    p.compose = compose;
    if (decode) {
        p.decode = &decode;
        p.n_decode = 1;
    }
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

/* A store of three documents. */
static int open_store(void **state)
{
    (void)state;
    sac_error err;
    model = tiny_open(&(struct tiny){.seed = 1});
    if (!model) return -1;
    make_dir();
    must(sac_docs_open(&docs, dir, &(sac_docs_params){0}, &err), &err);
    sac_engine *e = new_engine(false, NULL);
    for (int d = 0; d < 3; d++) {
        int32_t tok[N_TEXT];
        sac_doc doc;
        bool found;
        for (int i = 0; i < N_TEXT; i++) tok[i] = (i * 37 + d * 101 + i / 9) % TINY_VOCAB;
        const sac_doc_source source = {.name = name[d], .tok = tok, .n_tok = N_TEXT};
        must(sac_doc_add(docs, e, &source, &doc, &found, &err), &err);
    }
    sac_engine_free(e);
    return 0;
}

static int close_store(void **state)
{
    (void)state;
    sac_docs_close(docs);
    remove_dir();
    sac_model_free(model);
    return 0;
}

static sac_seq load(sac_engine *e, int d)
{
    sac_seq seq;
    sac_doc doc;
    sac_error err;
    must(sac_doc_load(docs, e, name[d], &seq, &doc, &err), &err);
    return seq;
}

/* The first page of a document, and nobody holds it any more. */
static page_id load_and_let(sac_engine *e, int d)
{
    const sac_seq seq = load(e, d);
    const page_id id = pool_table(&e->pool, seq, 0)[0];
    sac_seq_remove(e, seq);
    return id;
}

static uint64_t pages_used(const sac_engine *e)
{
    const sac_engine_stats s = sac_engine_get_stats(e);
    return s.n_page - s.n_page_free;
}

static void ask(sac_engine *e, sac_seq s, float *logits)
{
    static const int32_t tok[] = {3, 1, 4, 1, 5};
    compute_rows(e, s, tok, 5, SAC_ROW_PROMPT, logits);
}

static void the_next_one_gets_the_same_pages(void **state)
{
    (void)state;
    sac_engine *e = new_engine(true, NULL);
    float from_file[TINY_VOCAB], again[TINY_VOCAB];
    const sac_seq first = load(e, 0);
    const uint32_t n_page = e->seqs[first].n_done / PAGE_TOK;
    const size_t n_lane = pool_pages_per_index(&e->pool), n_float = e->seqs[first].stats->n_float;
    page_id page[64];
    float last = e->seqs[first].stats->value[n_float - 1];
    assert_true(n_page * n_lane <= 64);
    for (size_t lane = 0; lane < n_lane; lane++)
        memcpy(page + lane * n_page, pool_table(&e->pool, first, 0) + lane * e->pool.max_page,
               n_page * sizeof *page);
    ask(e, first, from_file);
    sac_seq_remove(e, first);
    assert_int_equal(pages_used(e), 0); /* what is kept counts as free */
    assert_int_equal(sac_engine_get_stats(e).kv_bytes_kept, n_page * n_lane * e->pool.geom.bytes);
    const sac_seq second = load(e, 0), third = load(e, 0);
    for (size_t lane = 0; lane < n_lane; lane++)
        assert_memory_equal(pool_table(&e->pool, third, 0) + lane * e->pool.max_page,
                            page + lane * n_page, n_page * sizeof *page);
    assert_int_equal(pages_used(e), n_page * n_lane); /* once for both */
    assert_int_equal(e->seqs[third].stats->n_float, n_float);
    assert_true(e->seqs[third].stats->value[n_float - 1] == last);
    ask(e, second, again);
    assert_memory_equal(again, from_file, sizeof again);
    uint32_t n_tok[4] = {0};
    for (uint32_t i = 0; i < 4; i++) n_tok[i] = e->seqs[i].n_done;
    assert_true(pool_check(&e->pool, n_tok));
    sac_docs_forget(e); /* sequences keep what they have */
    ask(e, third, again);
    assert_memory_equal(again, from_file, sizeof again);
    sac_seq_remove(e, second);
    sac_seq_remove(e, third);
    assert_int_equal(sac_engine_get_stats(e).kv_bytes_kept, 0);
    sac_engine_free(e);
}

static bool is_kept(const sac_engine *e, page_id id)
{
    return e->pool.holds[id] > 0;
}

/* 512 tokens of room, 288 of them in three documents: whoever comes has it all. */
static void the_oldest_goes_when_room_is_wanted(void **state)
{
    (void)state;
    sac_engine *e = new_engine(true, NULL);
    const page_id a = load_and_let(e, 0), b = load_and_let(e, 1), c = load_and_let(e, 2);
    int32_t tok[N_CTX] = {0};
    sac_seq seq;
    sac_error err;
    uint32_t n_row = 1;
    assert_int_equal(load_and_let(e, 0), a); /* so b is the oldest */
    must(sac_seq_create(e, &seq, &err), &err);
    must(sac_seq_append(e, seq, tok, 288, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    float logits[TINY_VOCAB];
    while (n_row) must(sac_step(e, catch_row, logits, &n_row, &err), &err);
    assert_true(is_kept(e, a));
    assert_false(is_kept(e, b));
    assert_true(is_kept(e, c));
    must(sac_seq_append(e, seq, tok, N_CTX - 288, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    for (n_row = 1; n_row;) must(sac_step(e, catch_row, logits, &n_row, &err), &err);
    assert_int_equal(sac_engine_get_stats(e).kv_bytes_kept, 0);
    sac_seq_remove(e, seq);
    load_and_let(e, 1);
    assert_true(sac_engine_get_stats(e).kv_bytes_kept > 0);
    sac_engine_free(e);
}

/* Pages that a sequence holds give no room, so the document behind them stays. */
static void what_is_in_use_stays(void **state)
{
    (void)state;
    sac_engine *e = new_engine(true, NULL);
    const sac_seq held = load(e, 0);
    load_and_let(e, 1);
    assert_true(resident_oldest(e) < UINT64_MAX);
    resident_drop_oldest(e);
    assert_true(resident_oldest(e) == UINT64_MAX);
    assert_true(is_kept(e, pool_table(&e->pool, held, 0)[0]));
    sac_seq_remove(e, held);
    assert_true(resident_oldest(e) < UINT64_MAX);
    sac_engine_free(e);
}

static void touch(const char *path)
{
    const struct timespec when[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, path, when, 0), 0);
}

/* As long as before, at another time. */
static void alter(const char *path)
{
    flip_bit(path);
    const struct timespec when[2] = {{.tv_sec = 2000}, {.tv_sec = 2000}};
    assert_int_equal(utimensat(AT_FDCWD, path, when, 0), 0);
}

static void cut_short(const char *path)
{
    assert_int_equal(truncate(path, 4000), 0);
}

static void take_away(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void a_file_that_has_changed_is_read_anew(void **state)
{
    (void)state;
    sac_engine *e = new_engine(true, NULL);
    sac_seq seq;
    sac_doc doc;
    sac_error err;
    load_and_let(e, 0);
    const uint64_t kept = sac_engine_get_stats(e).kv_bytes_kept;
    change_documents(touch);
    const sac_seq held = load(e, 0); /* as it was read anew, it is kept once */
    assert_int_equal(load_and_let(e, 0), pool_table(&e->pool, held, 0)[0]);
    sac_seq_remove(e, held);
    assert_int_equal(sac_engine_get_stats(e).kv_bytes_kept, kept);
    change_documents(alter);
    assert_int_equal(sac_doc_load(docs, e, name[0], &seq, &doc, &err), SAC_ERR_FORMAT);
    change_documents(cut_short);
    assert_int_equal(sac_doc_load(docs, e, name[0], &seq, &doc, &err), SAC_ERR_FORMAT);
    change_documents(take_away);
    assert_int_equal(sac_doc_load(docs, e, name[0], &seq, &doc, &err), SAC_ERR_NOT_FOUND);
    sac_engine_free(e);
}

/* Who joins nothing, or learns from queries that are not kept, reads the file each time. */
static void some_engines_keep_nothing(void **state)
{
    (void)state;
    sac_engine *one = new_engine(false, NULL), *other = new_engine(true, "snapkv");
    load_and_let(one, 0);
    load_and_let(other, 0);
    assert_int_equal(sac_engine_get_stats(one).kv_bytes_kept, 0);
    assert_int_equal(sac_engine_get_stats(other).kv_bytes_kept, 0);
    sac_engine_free(one);
    sac_engine_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_next_one_gets_the_same_pages),
        cmocka_unit_test(the_oldest_goes_when_room_is_wanted),
        cmocka_unit_test(what_is_in_use_stays),
        cmocka_unit_test(some_engines_keep_nothing),
        cmocka_unit_test(a_file_that_has_changed_is_read_anew), /* the last: no file is left */
    };
    return cmocka_run_group_tests(tests, open_store, close_store);
}
