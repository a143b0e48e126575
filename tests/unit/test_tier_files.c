/* test_tier_files.c: the files below an engine's memory. A state that was saved is read from its
 * own file, page by page, and is the same as if all were loaded. A page that is lost, or is not
 * what was written, ends the sequence that reads it, by name, and no other. */
#include "tier_bench.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

/* ---- Saved states ---- */

static const char *state_path(void)
{
    static char path[80];
    snprintf(path, sizeof path, P_tmpdir "/saccade-tier-state-%d", (int)getpid());
    return path;
}

/* A file of N_PROMPT tokens, as an engine without tiers saves it; returns its length. */
static off_t save_state(const struct method *m, const char *spec, sac_kv_type type)
{
    sac_error err;
    sac_seq s;
    struct stat st;
    float logits[TINY_VOCAB];
    sac_engine *e = open_engine(m, spec, &(struct way){.n_thread = 1, .type = type});
    must(sac_seq_create(e, &s, &err), &err);
    compute(e, s, N_PROMPT, SAC_ROW_PROMPT, logits);
    must(sac_seq_save(e, s, state_path(), &err), &err);
    sac_engine_free(e);
    assert_int_equal(stat(state_path(), &st), 0);
    return st.st_size;
}

/* Pages of others come and go: the next ones to be taken do not follow each other as those of a
 * file do. */
static void stir(sac_engine *e)
{
    float logits[TINY_VOCAB];
    sac_error err;
    sac_seq s;
    must(sac_seq_create(e, &s, &err), &err);
    compute(e, s, N_PROMPT, SAC_ROW_PROMPT, logits);
    sac_seq_remove(e, s);
}

/* What a loaded state gives: of decode rows, a cut within a page, a prompt and a fork; and its
 * bytes at the end. */
static void live_loaded(sac_engine *e, sac_seq s, float logits[4][TINY_VOCAB], uint8_t **bytes,
                        size_t *n)
{
    sac_error err;
    sac_seq fork;
    compute(e, s, 3, SAC_ROW_DECODE, logits[0]);
    must(sac_seq_fork(e, s, &fork, &err), &err);
    must(sac_seq_truncate(e, fork, 150, &err), &err);
    compute(e, fork, 20, SAC_ROW_PROMPT, logits[1]);
    compute(e, s, N_MORE, SAC_ROW_PROMPT, logits[2]);
    sac_seq_remove(e, fork);
    compute(e, s, 2, SAC_ROW_DECODE, logits[3]);
    must(sac_seq_to_bytes(e, s, bytes, n, &err), &err);
}

/* With tiers a state is the same as without, whether its file is there meanwhile or not. */
static void a_state_that_is_opened_is_the_one_that_is_read(void **state)
{
    (void)state;
    static const char *const specs[] = {"dense", "quest:budget=64,dense=0", "h2o:budget=96",
                                        "auto:mass=0.3,recent=0,most=1"};
    static float read[4][TINY_VOCAB], opened[4][TINY_VOCAB];
    for (int i = 0; i < 8; i++) {
        char name[8] = {0};
        const char *spec = specs[i / 2];
        struct way way = {.n_thread = 1, .type = i % 2 ? SAC_KV_Q8 : SAC_KV_F16};
        memcpy(name, spec, strcspn(spec, ":"));
        const struct method *m = method_find("decode", name);
        uint8_t *bytes[2];
        size_t n[2];
        sac_error err;
        sac_seq s;
        save_state(m, spec, way.type);
        for (int k = 0; k < 2; k++) {
            way.tiers = k;
            sac_engine *e = open_engine(m, spec, &way);
            stir(e);
            must(sac_seq_load(e, state_path(), &s, &err), &err);
            if (k) unlink(state_path());
            live_loaded(e, s, k ? opened : read, &bytes[k], &n[k]);
            if (k) tier_settle(&e->tier);
            if (k) assert_true(tier_check(&e->tier));
            sac_engine_free(e);
        }
        assert_memory_equal(read, opened, sizeof read);
        assert_int_equal(n[0], n[1]);
        assert_memory_equal(bytes[0], bytes[1], n[0]);
        sac_free(bytes[0]);
        sac_free(bytes[1]);
    }
}

/* Nothing of a page is read before a row wants it, and then its bytes behind the card alone. */
static void opening_a_state_reads_no_page(void **state)
{
    (void)state;
    const struct method *m = method_find("decode", "streaming");
    const char *spec = "streaming:sink=32,budget=64";
    for (int q8 = 0; q8 < 2; q8++) {
        const sac_kv_type type = q8 ? SAC_KV_Q8 : SAC_KV_F16;
        float logits[TINY_VOCAB];
        sac_error err;
        sac_seq s;
        const off_t all = save_state(m, spec, type);
        sac_engine *e = open_engine(
            m, spec, &(struct way){.tiers = true, .no_ahead = true, .n_thread = 1, .type = type});
        must(sac_seq_load(e, state_path(), &s, &err), &err);
        assert_int_equal(sac_tier_get_stats(e).bytes_fetched, 0);
        compute(e, s, 1, SAC_ROW_DECODE, logits);
        const sac_tier_stats t = sac_tier_get_stats(e);
        const size_t body = page_bytes(type) - e->tier.card_bytes;
        assert_int_equal(t.bytes_fetched, t.n_fetch * body);
        assert_true(t.n_fetch > 0 && t.n_fetch <= 3u * TINY_LAYERS * TINY_KV_HEADS);
        assert_true((off_t)t.bytes_fetched * 2 < all);
        assert_int_equal(t.bytes_written, 0);
        sac_engine_free(e);
        unlink(state_path());
    }
}

/* ---- Faults ---- */

/* Of pages that the disk has as well none stays in memory. */
static void forget_clean(sac_engine *e)
{
    for (uint32_t f = 0; f < e->tier.n_frame; f++)
        if (e->tier.frame[f].state == TIER_CLEAN) tier_evict(&e->tier, f);
}

/* The file of an engine's tier, past the cache of nobody: it has no name. */
static int reopen(const sac_engine *e)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", disk_fd(e->tier.disk, &(struct disk_io){0}));
    const int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    return fd;
}

/* Two sequences with pages of their own, of which only some are in memory. The one that will live
 * is computed first, so that its pages lie before the other's in the file whatever was written
 * when. */
static sac_engine *two_sequences(sac_seq s[2], const char *method, const char *spec)
{
    sac_error err;
    float logits[TINY_VOCAB];
    const struct method *m = method ? method_find("decode", method) : NULL;
    sac_engine *e =
        open_engine(m, spec, &(struct way){.tiers = true, .no_ahead = true, .n_thread = 1});
    for (int i = 0; i < 2; i++) must(sac_seq_create(e, &s[i], &err), &err);
    compute(e, s[1], 40, SAC_ROW_PROMPT, logits);
    compute(e, s[0], N_PROMPT, SAC_ROW_PROMPT, logits);
    tier_settle(&e->tier);
    return e;
}

/* Sequence 0 has lost what it reads; 1 goes on; 0 can be removed and its place used again. */
static void must_lose_first(sac_engine *e, const sac_seq s[2], const char *why)
{
    static float logits[2][TINY_VOCAB];
    sac_error err;
    memset(logits, 0, sizeof logits);
    for (int i = 0; i < 2; i++)
        must(sac_seq_append(e, s[i], text, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
    assert_int_equal(sac_step(e, catch_rows, logits, NULL, &err), SAC_ERR_IO);
    assert_non_null(strstr(err.msg, "sequence 0 has lost pages: page "));
    if (!strstr(err.msg, why)) fail_msg("'%s' does not say '%s'", err.msg, why);
    for (int i = 0; i < TINY_VOCAB; i++) assert_true(logits[0][i] == 0);
    assert_true(logits[1][0] != 0 || logits[1][1] != 0);
    assert_int_equal(sac_seq_append(e, s[0], text, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err),
                     SAC_ERR_IO);
    compute(e, s[1], 2, SAC_ROW_DECODE, logits[1]);
    sac_seq fresh;
    sac_seq_remove(e, s[0]);
    must(sac_seq_create(e, &fresh, &err), &err);
    tier_settle(&e->tier);
    assert_true(tier_check(&e->tier));
    assert_true(sac_tier_get_stats(e).n_failed > 0);
    sac_engine_free(e);
}

/* With a method, it is what finds it. */
static void find_flipped_bits(const char *method, const char *spec)
{
    sac_seq s[2];
    sac_engine *e = two_sequences(s, method, spec);
    const int fd = reopen(e);
    const size_t slot = disk_slot_bytes(e->tier.disk);
    const page_id *table = pool_table(&e->pool, s[0], 1);
    for (uint32_t i = 0; i < N_PROMPT / PAGE_TOK; i++) {
        uint8_t byte;
        const off_t at = (off_t)(table[i] * slot + 100 * i);
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 4;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
    /* What is in memory is right; all of it leaves. */
    forget_clean(e);
    must_lose_first(e, s, "read back unchanged from");
}

static void a_flipped_bit_is_found(void **state)
{
    (void)state;
    find_flipped_bits(NULL, NULL);
    find_flipped_bits("psa", "psa:mass=0.9");
    find_flipped_bits("psa", "psa:mass=0.9,scope=layer");
}

static void a_file_that_shrinks_is_found(void **state)
{
    (void)state;
    sac_seq s[2];
    sac_engine *e = two_sequences(s, NULL, NULL);
    const int fd = reopen(e);
    const page_id *table = pool_table(&e->pool, s[0], 0), *kept = pool_table(&e->pool, s[1], 0);
    page_id first = table[0];
    for (uint32_t lane = 1; lane < TINY_LAYERS * TINY_KV_HEADS; lane++)
        if (table[lane * e->pool.max_page] < first) first = table[lane * e->pool.max_page];
    for (uint32_t lane = 0; lane < TINY_LAYERS * TINY_KV_HEADS; lane++)
        assert_true(kept[lane * e->pool.max_page] < first);
    /* Nothing of either is in memory, and the file ends where sequence 0 begins. */
    forget_clean(e);
    assert_int_equal(ftruncate(fd, (off_t)(first * disk_slot_bytes(e->tier.disk) + 512)), 0);
    close(fd);
    must_lose_first(e, s, "its bytes are missing");
}

/* A row that streams names the page that it lacks; the other sequence goes on. */
static void a_wide_row_that_loses_a_page_is_told(void **state)
{
    (void)state;
    static int32_t wide[N_WIDE];
    sac_seq s[2];
    sac_error err;
    float logits[TINY_VOCAB];
    uint32_t n_row = 1;
    sac_engine *e =
        open_engine(NULL, NULL, &(struct way){.n_ctx = 1408, .tiers = true, .n_thread = 2});
    for (int i = 0; i < 2; i++) must(sac_seq_create(e, &s[i], &err), &err);
    compute(e, s[1], 40, SAC_ROW_PROMPT, logits);
    must(sac_seq_append(e, s[0], wide, N_WIDE, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    while (n_row) must(sac_step(e, NULL, NULL, &n_row, &err), &err);
    tier_settle(&e->tier);
    forget_clean(e);
    const int fd = reopen(e);
    const page_id lost = pool_table(&e->pool, s[0], 1)[N_WIDE / PAGE_TOK / 2];
    assert_int_equal(pwrite(fd, "saccade", 7, (off_t)(lost * disk_slot_bytes(e->tier.disk) + 50)),
                     7);
    close(fd);
    must_lose_first(e, s, "read back unchanged from");
}

/* Who comes with the text finds n_reused tokens of it, and has the logits of an engine that holds
 * all pages in memory. */
static void must_compute_all(sac_engine *e, uint64_t n_reused)
{
    static float want[TINY_VOCAB], got[TINY_VOCAB];
    sac_engine *resident = open_engine(NULL, NULL, &(struct way){.n_thread = 1});
    const uint64_t n_before = sac_engine_get_stats(e).reads.n_reused_tok;
    sac_error err;
    sac_seq s;
    must(sac_seq_create(resident, &s, &err), &err);
    compute(resident, s, N_PROMPT, SAC_ROW_PROMPT, want);
    sac_engine_free(resident);
    must(sac_seq_create(e, &s, &err), &err);
    compute(e, s, N_PROMPT, SAC_ROW_PROMPT, got);
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(sac_engine_get_stats(e).reads.n_reused_tok - n_before, n_reused);
    sac_seq_remove(e, s);
}

/* Texts are kept for others. */
static const struct way keeping = {
    .n_thread = 1, .tiers = true, .no_ahead = true, .keeps_prefixes = true};

/* Of a text that is kept for others a page is lost: who reads it ends, what it has computed without
 * it is nobody else's, and who comes with the text again has it computed again. */
static void a_text_with_a_lost_page_is_computed_again(void **state)
{
    enum { N_LOST = 3 * PAGE_TOK };
    float got[TINY_VOCAB];
    sac_seq s, other;
    sac_error err;
    (void)state;
    sac_engine *e = open_engine(NULL, NULL, &keeping);
    must(sac_seq_create(e, &s, &err), &err);
    compute(e, s, N_LOST, SAC_ROW_PROMPT, got);
    must(sac_seq_create(e, &other, &err), &err);
    compute(e, other, N_LOST, SAC_ROW_PROMPT, got);
    tier_settle(&e->tier);
    const int fd = reopen(e);
    const off_t at = (off_t)(pool_table(&e->pool, s, 1)[1] * disk_slot_bytes(e->tier.disk));
    assert_int_equal(pwrite(fd, "saccade", 7, at), 7);
    close(fd);
    forget_clean(e);
    must(
        sac_seq_append(e, s, text + N_LOST, N_PROMPT - N_LOST, SAC_ROW_PROMPT, SAC_WANT_LAST, &err),
        &err);
    assert_int_equal(sac_step(e, catch_row, got, NULL, &err), SAC_ERR_IO);
    sac_seq_remove(e, s);
    must_compute_all(e, 0);
    must_compute_all(e, (N_PROMPT - 1) / PAGE_TOK * PAGE_TOK);
    /* Who had it before still has the pages of then, and is known by no others. */
    must(sac_seq_truncate(e, other, 2 * PAGE_TOK, &err), &err);
    const struct reuse_seq *r = &e->seqs[other].reuse;
    assert_true(r->n_page == 0 ||
                prefix_is_at(&e->reuse.index, r->node, (struct pool_place){other, r->n_page - 1}));
    sac_engine_free(e);
}

/* A full disk: memory has room for the pages of one layer of a text and not for those of the next.
 * Whoever comes with the text when the disk has room again computes all of it. */
static void what_could_not_be_kept_is_nobodys(void **state)
{
    enum { N_OTHER = (N_FRAME / (TINY_LAYERS * TINY_KV_HEADS) - 1) * PAGE_TOK };
    float got[TINY_VOCAB];
    sac_seq s, other;
    sac_error err;
    (void)state;
    sac_engine *e = open_engine(NULL, NULL, &keeping);
    const int at = disk_fd(e->tier.disk, &(struct disk_io){0}), disk = dup(at),
              full = open("/dev/full", O_RDWR);
    assert_true(disk >= 0 && full >= 0 && dup2(full, at) == at);
    must(sac_seq_create(e, &other, &err), &err);
    must(sac_seq_append(e, other, text + 40, N_OTHER, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    for (uint32_t n = 1; n;) must(sac_step(e, NULL, NULL, &n, &err), &err);
    must(sac_seq_create(e, &s, &err), &err);
    must(sac_seq_append(e, s, text, 2 * PAGE_TOK, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    assert_int_equal(sac_step(e, catch_row, got, NULL, &err), SAC_ERR_IO);
    assert_int_equal(dup2(disk, at), at);
    sac_seq_remove(e, s);
    sac_seq_remove(e, other);
    must_compute_all(e, 0);
    sac_engine_free(e);
    close(disk);
    close(full);
}

/* A state that was changed, or cut, behind the back of who has opened it. */
static void a_state_that_changes_is_found(void **state)
{
    (void)state;
    for (int cut = 0; cut < 2; cut++) {
        float logits[TINY_VOCAB];
        sac_error err;
        sac_seq s[2];
        const off_t all = save_state(NULL, NULL, SAC_KV_F16);
        sac_engine *e = open_engine(NULL, NULL, &(struct way){.tiers = true, .n_thread = 1});
        must(sac_seq_load(e, state_path(), &s[0], &err), &err);
        must(sac_seq_create(e, &s[1], &err), &err);
        compute(e, s[1], 40, SAC_ROW_PROMPT, logits);
        const int fd = open(state_path(), O_RDWR);
        assert_int_equal(pwrite(fd, "saccade", 7, all - 700), 7);
        if (cut) assert_int_equal(ftruncate(fd, all - 300), 0);
        close(fd);
        must_lose_first(e, s, cut ? "its bytes are missing" : state_path());
        unlink(state_path());
    }
}

static bool keep_event(void *user, const sac_event *event)
{
    sac_error *why = user;
    if (event->kind == SAC_EVENT_DONE && event->error)
        snprintf(why->msg, sizeof why->msg, "%s", event->error);
    return false;
}

/* A method that looks at all keys of a head holds them at once: a request that needs more pages for
 * that than memory holds ends and says what would help. */
static void too_little_memory_is_told(void **state)
{
    (void)state;
    static int32_t long_text[N_WIDE];
    sac_engine *e = open_engine(method_find("decode", "topk"), "topk:budget=64",
                                &(struct way){.n_ctx = 1408, .tiers = true, .n_thread = 1});
    sac_error err, why = {0};
    for (int i = 0; i < N_WIDE; i++) long_text[i] = i % TINY_VOCAB;
    uint64_t id;
    sac_request r = sac_request_default();
    r.prompt = long_text;
    r.n_prompt = N_WIDE;
    r.max_tokens = 4;
    r.on_event = keep_event;
    r.user = &why;
    must(sac_submit(e, &r, &id, &err), &err);
    for (uint32_t n = 1; n;) must(sac_run(e, &n, &err), &err);
    assert_non_null(strstr(why.msg, "more pages are needed at once than the 32 that fit"));
    sac_engine_free(e);
}

static void bad_settings_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *disk;
        uint64_t disk_bytes, fast;
        const char *why;
    } bad[] = {
        {NULL, 0, 1 << 20, "no file for the others"},
        {"/nowhere/pages", 1 << 24, 1 << 20, "cannot create /nowhere/pages"},
        {scratch_path(), 1 << 24, 0, "say how much memory is above it"},
        {scratch_path(), 1 << 24, 4096, "at least"},
        {scratch_path(), 1 << 12, 1 << 20, "all pages need"},
        {"/dev/null", 1 << 24, 1 << 20, "is there already"},
        {"/proc/self/exe", 1 << 24, 1 << 20, "cannot create"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        sac_engine_params p = sac_engine_params_default();
        sac_engine *e = NULL;
        sac_error err = {0};
        p.n_ctx = 512;
        p.n_batch = 64;
        p.n_threads = 1;
        p.tier = &(struct sac_tier_params){
            .file = bad[i].disk, .file_bytes = bad[i].disk_bytes, .fast_bytes = bad[i].fast};
        assert_int_not_equal(sac_engine_create(&e, model, &p, &err), SAC_OK);
        if (!strstr(err.msg, bad[i].why)) fail_msg("'%s' does not say '%s'", err.msg, bad[i].why);
    }
    assert_int_equal(access(scratch_path(), F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_state_that_is_opened_is_the_one_that_is_read),
        cmocka_unit_test(opening_a_state_reads_no_page),
        cmocka_unit_test(a_wide_row_that_loses_a_page_is_told),
        cmocka_unit_test(a_text_with_a_lost_page_is_computed_again),
        cmocka_unit_test(what_could_not_be_kept_is_nobodys),
        cmocka_unit_test(a_state_that_changes_is_found),
        cmocka_unit_test(a_flipped_bit_is_found),
        cmocka_unit_test(a_file_that_shrinks_is_found),
        cmocka_unit_test(too_little_memory_is_told),
        cmocka_unit_test(bad_settings_are_refused),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
