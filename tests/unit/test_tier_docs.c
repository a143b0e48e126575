/* test_tier_docs.c: stored documents above a disk. Their pages stay in their files until a row
 * reads them, every composer joins them as it does in memory, and the answers have the same bits,
 * with memory for fewer pages than one layer of the joined text has. */
#include "compose_bench.h"
#include "engine/docfile.h"
#include "spec_make.h"

#include <sys/stat.h>
#include <unistd.h>

enum { N_FRAME = 40 };

static void name_file(char path[80], const char *what, uint32_t i)
{
    snprintf(path, 80, P_tmpdir "/saccade-%s-%d-%u", what, (int)getpid(), i);
}

static size_t page_bytes(sac_kv_type type)
{
    struct page_geom g = {
        .n_layer = 1, .n_kv_head = 1, .head_dim = TINY_DIM, .type_k = type, .type_v = type};
    page_geom_init(&g);
    return g.bytes;
}

/* Writes the documents of a bench; returns the bytes of all files. */
static uint64_t write_docs(const struct bench *b)
{
    uint64_t bytes = 0;
    for (uint32_t d = 0; d < N_DOC; d++) {
        char path[80];
        sac_error err;
        struct stat st;
        name_file(path, "doc", d);
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        must(docfile_write(b->e, b->doc[d], f, path, &err), &err);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(stat(path, &st), 0);
        bytes += (uint64_t)st.st_size;
    }
    return bytes;
}

static struct bench open_tiered(sac_kv_type type, uint32_t n_threads)
{
    struct bench b = {.n_head = N_HEAD};
    sac_error err;
    char scratch[80];
    sac_engine_params p = sac_engine_params_default();
    name_file(scratch, "scratch", 0);
    const struct sac_tier_params tier = {
        .file = scratch, .file_bytes = 1u << 26, .fast_bytes = N_FRAME * page_bytes(type)};
    p.n_ctx = 4 * N_CTX;
    p.n_seq_max = N_DOC + 2;
    p.n_batch = 64;
    p.n_threads = n_threads;
    p.type_k = p.type_v = type;
    p.compose = true;
    p.sparse_min_ctx = 0;
    p.tier = &tier;
    must(sac_engine_create(&b.e, model, &p, &err), &err);
    for (uint32_t d = 0; d < N_DOC; d++) {
        char path[80];
        name_file(path, "doc", d);
        must(docfile_load(b.e, path, 4 * n_text[d], &b.doc[d], &err), &err);
    }
    return b;
}

static void documents_are_joined_above_a_disk(void **state)
{
    (void)state;
    for (uint32_t q8 = 0; q8 < 2; q8++) {
        const sac_kv_type type = q8 ? SAC_KV_Q8 : SAC_KV_BF16;
        const struct bench resident =
            open_bench(&(struct setting){.type = type, .n_batch = 64, .is_long = true}, false);
        const uint64_t all = write_docs(&resident);
        const struct bench tiered = open_tiered(type, 1 + q8);
        assert_int_equal(sac_tier_get_stats(tiered.e).bytes_fetched, 0);
        const struct method *m;
        for (size_t i = 0; (m = method_at(i)); i++) {
            float want[2][TINY_VOCAB], got[2][TINY_VOCAB];
            if (strcmp(m->kind, "context") != 0) continue;
            if (strcmp(m->name, "infllm") == 0) continue; /* wants a decode method of its own */
            answer(&resident, m->name, N_DOC, want);
            answer(&tiered, m->name, N_DOC, got);
            if (memcmp(want, got, sizeof want) != 0)
                fail_msg("%s, type %d: another answer with tiers", m->name, type);
        }
        tier_settle(&tiered.e->tier);
        assert_true(tier_check(&tiered.e->tier));
        assert_int_equal(tiered.e->tier.n_pinned, 0);
        assert_true(sac_tier_get_stats(tiered.e).bytes_fetched > all / 2);
        sac_engine_free(resident.e);
        sac_engine_free(tiered.e);
    }
}

/* A document that is changed while others read it ends the answer that needs it, by name. */
static void a_document_that_changes_is_named(void **state)
{
    (void)state;
    const struct bench resident =
        open_bench(&(struct setting){.type = SAC_KV_BF16, .n_batch = 64, .is_long = true}, false);
    float logits[2][TINY_VOCAB];
    char path[80];
    write_docs(&resident);
    const struct bench tiered = open_tiered(SAC_KV_BF16, 1);
    name_file(path, "doc", 1);
    assert_int_equal(truncate(path, 40000), 0);
    const sac_seq seq = compose(&tiered, "reuse", N_DOC, NULL);
    sac_error err;
    uint32_t n_row = 1;
    int32_t question[N_QUESTION] = {0};
    must(sac_seq_append(tiered.e, seq, question, N_QUESTION, SAC_ROW_PROMPT, SAC_WANT_LAST, &err),
         &err);
    assert_int_equal(sac_step(tiered.e, NULL, NULL, &n_row, &err), SAC_ERR_IO);
    if (!strstr(err.msg, path)) fail_msg("'%s' does not say '%s'", err.msg, path);
    sac_seq_remove(tiered.e, seq);
    /* The others are whole. */
    const struct bench rest = {
        .e = tiered.e, .doc = {tiered.doc[0], tiered.doc[2]}, .n_head = N_HEAD};
    answer(&rest, "reuse", 2, logits);
    sac_engine_free(resident.e);
    sac_engine_free(tiered.e);
}

static int remove_files(void **state)
{
    for (uint32_t d = 0; d < N_DOC; d++) {
        char path[80];
        name_file(path, "doc", d);
        unlink(path);
    }
    return bench_free_model(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_joined_above_a_disk),
        cmocka_unit_test(a_document_that_changes_is_named),
    };
    return cmocka_run_group_tests(tests, bench_open_model, remove_files);
}
