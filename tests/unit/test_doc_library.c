/* test_doc_library.c: what a client hears when the server's own files fail: the document by its
 * name, never where it is kept. */
#include "base/mem.h"
#include "engine/engine.h"
#include "must.h"
#include "serve/doc_library.h"
#include "tiny_model.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "store_dir.h"

enum { N_TEXT = 100, N_LONG = 1300, N_HEAD = 10 };

struct bench {
    sac_model *model;
    sac_engine *engine;
    struct server_log *log;
    struct doc_library *library;
};

/* With memory for few pages above a file where `tier` is one. */
static void open_library_above(struct bench *b, const struct sac_tier_params *tier)
{
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = tier ? 2 * N_LONG : 256;
    p.n_batch = 64;
    p.tier = tier;
    p.n_seq_max = 2;
    p.n_threads = 1;
    p.compose = true;
    make_dir();
    b->model = tiny_open(&(struct tiny){.seed = 1});
    must(sac_engine_create(&b->engine, b->model, &p, &err), &err);
    must(server_log_create(&b->log, &(struct server_log_options){.quiet = true}, &err), &err);
    const struct doc_library_options options = {.model = b->model, .log = b->log, .dir = dir};
    must(doc_library_open(&b->library, b->engine, &options, &err), &err);
}

static void open_library(struct bench *b)
{
    open_library_above(b, NULL);
}

static void close_library(struct bench *b)
{
    doc_library_close(b->library);
    server_log_destroy(b->log);
    sac_engine_free(b->engine);
    sac_model_free(b->model);
    remove_dir();
}

static sac_status work_on(struct bench *b, enum api_request_work what, const char *name,
                          uint32_t n_tok, struct doc_library_wait wait, sac_error *err)
{
    int32_t tok[N_LONG], head[N_HEAD] = {0};
    char called[16];
    struct strbuf out = {0};
    for (int i = 0; i < N_LONG; i++) tok[i] = i % TINY_VOCAB;
    snprintf(called, sizeof called, "%s", name);
    const struct api_request request = {
        .work = what,
        .document = {.name = called, .head = head, .n_head = N_HEAD, .tok = tok, .n_tok = n_tok}};
    const sac_status status = doc_library_work(b->library, &request, 0, wait, &out, err);
    strbuf_deinit(&out);
    return status;
}

static sac_status work(struct bench *b, enum api_request_work what, const char *name,
                       sac_error *err)
{
    return work_on(b, what, name, N_TEXT, (struct doc_library_wait){0}, err);
}

static sac_status join(struct bench *b, const char *name, sac_error *err)
{
    char called[16];
    struct doc_library_joined joined;
    snprintf(called, sizeof called, "%s", name);
    const struct api_request request = {.doc_name = {called}, .n_doc = 1};
    return doc_library_join(b->library, &request, 0, (struct doc_library_wait){0}, &joined, err);
}

static void expect(sac_status got, sac_status wanted, const sac_error *err, const char *name)
{
    if (got != wanted || !strstr(err->msg, name) || strstr(err->msg, dir))
        fail_msg("%s: %s", sac_status_name(got), err->msg);
}

static void lose(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void a_spoilt_document_is_told_by_its_name(void **state)
{
    struct bench b;
    sac_error err;
    (void)state;
    open_library(&b);
    must(work(&b, API_REQUEST_DOC_ADD, "letter", &err), &err);
    change_documents(flip_bit);
    expect(join(&b, "letter", &err), SAC_ERR_IO, &err, "'letter'");
    change_documents(lose);
    expect(join(&b, "letter", &err), SAC_ERR_IO, &err, "'letter'");
    close_library(&b);
}

static void no_document_is_told_by_its_name(void **state)
{
    struct bench b;
    sac_error err;
    (void)state;
    open_library(&b);
    expect(join(&b, "none", &err), SAC_ERR_NOT_FOUND, &err, "'none'");
    expect(work(&b, API_REQUEST_DOC_REMOVE, "none", &err), SAC_ERR_NOT_FOUND, &err, "'none'");
    close_library(&b);
}

/* The folder is gone, so nothing can be written into it. */
static void a_store_that_fails_is_told_without_its_place(void **state)
{
    struct bench b;
    sac_error err;
    (void)state;
    open_library(&b);
    remove_dir();
    expect(work(&b, API_REQUEST_DOC_ADD, "letter", &err), SAC_ERR_IO, &err,
           "'letter' cannot be added");
    assert_int_equal(mkdir(dir, 0700), 0);
    close_library(&b);
}

/* Empties the file below the engine's pages when half of a document is computed. */
static bool empty_pages(void *user, double share)
{
    const sac_engine *e = user;
    char path[64];
    if (share < 0.5) return false;
    snprintf(path, sizeof path, "/proc/self/fd/%d", disk_fd(e->tier.disk, &(struct disk_io){0}));
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, 0), 0);
    close(fd);
    return false;
}

/* The store is whole: what failed is told, and no cause that may be another. */
static void a_disk_of_pages_that_fails_is_not_called_the_store(void **state)
{
    struct bench b;
    sac_error err;
    char pages[80];
    (void)state;
    snprintf(pages, sizeof pages, P_tmpdir "/saccade-pages-%d", (int)getpid());
    const struct sac_tier_params tier = {
        .file = pages, .file_bytes = 1u << 24, .fast_bytes = 1u << 19};
    open_library_above(&b, &tier);
    const struct doc_library_wait wait = {.progress = empty_pages, .user = b.engine};
    const sac_status got = work_on(&b, API_REQUEST_DOC_ADD, "letter", N_LONG, wait, &err);
    expect(got, SAC_ERR_IO, &err, "document 'letter' cannot be added: the server's log");
    if (strstr(err.msg, pages)) fail_msg("%s", err.msg);
    must(work(&b, API_REQUEST_DOC_ADD, "note", &err), &err);
    close_library(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_spoilt_document_is_told_by_its_name),
        cmocka_unit_test(no_document_is_told_by_its_name),
        cmocka_unit_test(a_store_that_fails_is_told_without_its_place),
        cmocka_unit_test(a_disk_of_pages_that_fails_is_not_called_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
