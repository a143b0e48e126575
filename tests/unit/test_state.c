/* test_state.c: a sequence as bytes and back, on a tiny random model: what is kept, what is refused
 * and with which words, and that a refusal leaves nothing behind. That every method goes on with
 * the same choices is in tests/prop/prop_methods.c; any bytes at all are given by fuzz_state. */
#include "engine/engine.h"
#include "must.h"
#include "state_repair.h"
#include "tiny_rows.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

enum { N_PROMPT = 205, HEAD = STATE_HEAD };

static sac_model *model, *stranger;
static int32_t prompt[N_PROMPT];

static int open_models(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 1});
    stranger = tiny_open(&(struct tiny){.seed = 2});
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (i * 37 + i / 9) % TINY_VOCAB;
    return model && stranger ? 0 : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(stranger);
    return 0;
}

struct setting {
    const sac_model *model; /* NULL: the model */
    const char *decode, *prefill;
    uint32_t n_ctx, n_kv_tok, n_batch;
    sac_kv_type type;
    bool record;
};

static sac_engine *new_engine(const struct setting *s)
{
    sac_engine *e;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = s->n_ctx ? s->n_ctx : 512;
    p.n_seq_max = 2;
    p.n_threads = 1;
    if (s->n_batch) p.n_batch = s->n_batch;
    p.n_kv_tok = s->n_kv_tok;
    p.type_k = p.type_v = s->type;
    p.decode = &s->decode;
    p.n_decode = s->decode != NULL;
    p.prefill = &s->prefill;
    p.n_prefill = s->prefill != NULL;
    p.sparse_min_ctx = 0;
    p.record = s->record;
    must(sac_engine_create(&e, s->model ? s->model : model, &p, &err), &err);
    return e;
}

/* The logits of one more decode row of a fixed token. */
static void ask(sac_engine *e, sac_seq s, float *logits)
{
    compute_rows(e, s, &(int32_t){77}, 1, SAC_ROW_DECODE, logits);
}

struct saved {
    uint8_t *bytes;
    size_t n;
    float logits[TINY_VOCAB]; /* of what the saved sequence is asked next */
};

/* N_PROMPT tokens and two decode rows by an engine of this setting. */
static struct saved make_saved(const struct setting *s)
{
    struct saved out;
    sac_engine *e = new_engine(s);
    sac_seq seq;
    sac_error err;
    must(sac_seq_create(e, &seq, &err), &err);
    compute_rows(e, seq, prompt, N_PROMPT, SAC_ROW_PROMPT, out.logits);
    compute_rows(e, seq, prompt, 2, SAC_ROW_DECODE, out.logits);
    must(sac_seq_to_bytes(e, seq, &out.bytes, &out.n, &err), &err);
    ask(e, seq, out.logits);
    sac_engine_free(e);
    return out;
}

/* Refused with these words, and nothing of the engine is taken. */
static void expect_refusal(sac_engine *e, const uint8_t *bytes, size_t n, sac_status status,
                           const char *words)
{
    const sac_engine_stats before = sac_engine_get_stats(e);
    sac_seq seq = 99;
    sac_error err = {0};
    const sac_status got = sac_seq_from_bytes(e, bytes, n, &seq, &err);
    if (got != status || !strstr(err.msg, words))
        fail_msg("%s: %s; expected: %s", sac_status_name(got), err.msg, words);
    assert_int_equal(seq, 99);
    const sac_engine_stats after = sac_engine_get_stats(e);
    assert_int_equal(after.n_page_free, before.n_page_free);
    assert_int_equal(after.kv_bytes_used, before.kv_bytes_used);
}

static void expect_same(sac_engine *e, const struct saved *s)
{
    sac_seq seq;
    sac_error err;
    float logits[TINY_VOCAB];
    must(sac_seq_from_bytes(e, s->bytes, s->n, &seq, &err), &err);
    assert_memory_equal(sac_seq_tokens(e, seq), prompt, sizeof prompt);
    ask(e, seq, logits);
    assert_memory_equal(logits, s->logits, sizeof logits);
    sac_seq_remove(e, seq);
}

static void the_file_is_the_bytes_and_goes_on(void **state)
{
    (void)state;
    char path[64], part[80];
    sac_error err;
    sac_seq seq, loaded;
    uint8_t *bytes;
    size_t n;
    float want[TINY_VOCAB], got[TINY_VOCAB];
    sac_state_info info;
    struct stat st;
    snprintf(path, sizeof path, "%s/saccade-state-%d", P_tmpdir, (int)getpid());
    snprintf(part, sizeof part, "%s.part", path);
    sac_engine *e = new_engine(&(struct setting){.decode = "quest:budget=64,dense=0"});
    must(sac_seq_create(e, &seq, &err), &err);
    compute_rows(e, seq, prompt, N_PROMPT, SAC_ROW_PROMPT, want);
    must(sac_seq_save(e, seq, path, &err), &err);
    must(sac_seq_save(e, seq, path, &err), &err); /* over an older one */
    must(sac_seq_to_bytes(e, seq, &bytes, &n, &err), &err);
    uint8_t *file = malloc(n + 1);
    FILE *f = fopen(path, "rb");
    assert_true(f && fread(file, 1, n + 1, f) == n);
    fclose(f);
    assert_memory_equal(file, bytes, n);
    must(sac_state_get_info(&info, path, &err), &err);
    assert_int_equal(info.n_tok, N_PROMPT);
    assert_int_equal(info.n_ctx, 512);
    assert_int_equal(info.bytes, n);
    assert_string_equal(info.decode, "quest:budget=64,dense=0");
    assert_string_equal(info.prefill, "dense");
    must(sac_seq_load(e, path, &loaded, &err), &err);
    ask(e, seq, want);
    ask(e, loaded, got);
    assert_memory_equal(want, got, sizeof want);
    unlink(path);
    assert_true(stat(part, &st) != 0);
    assert_int_equal(sac_seq_load(e, path, &loaded, &err), SAC_ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, path));
    assert_int_equal(sac_seq_load(e, P_tmpdir, &loaded, &err), SAC_ERR_IO);
    assert_int_equal(sac_seq_save(e, seq, P_tmpdir "/no-such-folder/x", &err), SAC_ERR_IO);
    /* A pipe, or a device, is not replaced by a file. */
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(sac_seq_save(e, seq, path, &err), SAC_ERR_IO);
    assert_non_null(strstr(err.msg, "not a regular file"));
    assert_int_equal(stat(path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_true(stat(part, &st) != 0);
    unlink(path);
    sac_free(bytes);
    free(file);
    sac_engine_free(e);
}

/* Every length, around a page's end and at it: an empty sequence too. */
static void any_length_can_be_saved(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {0, 1, 31, 32, 33, 64, 100};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        sac_engine *e = new_engine(&(struct setting){.decode = "lfps:budget=20"});
        sac_seq seq, loaded;
        sac_error err;
        uint8_t *bytes, *again;
        size_t n, n_again;
        float want[TINY_VOCAB], got[TINY_VOCAB];
        must(sac_seq_create(e, &seq, &err), &err);
        if (lengths[i]) compute_rows(e, seq, prompt, lengths[i], SAC_ROW_PROMPT, want);
        must(sac_seq_to_bytes(e, seq, &bytes, &n, &err), &err);
        must(sac_seq_from_bytes(e, bytes, n, &loaded, &err), &err);
        must(sac_seq_to_bytes(e, loaded, &again, &n_again, &err), &err);
        assert_int_equal(n, n_again);
        assert_memory_equal(bytes, again, n);
        ask(e, seq, want);
        ask(e, loaded, got);
        assert_memory_equal(want, got, sizeof want);
        sac_free(bytes);
        sac_free(again);
        sac_engine_free(e);
    }
}

/* What is in a tail behind the sequence's tokens is another's. */
static void nothing_of_others_is_saved(void **state)
{
    (void)state;
    sac_engine *e = new_engine(&(struct setting){.decode = "snapkv:budget=64"});
    struct saved fresh, used;
    float logits[TINY_VOCAB];
    sac_error err;
    sac_seq seq;
    for (int i = 0; i < 2; i++) {
        struct saved *s = i ? &used : &fresh;
        must(sac_seq_create(e, &seq, &err), &err);
        if (i) compute_rows(e, seq, prompt + 50, 63, SAC_ROW_PROMPT, logits);
        if (i) sac_seq_remove(e, seq);
        if (i) must(sac_seq_create(e, &seq, &err), &err);
        compute_rows(e, seq, prompt, 40, SAC_ROW_PROMPT, logits);
        must(sac_seq_to_bytes(e, seq, &s->bytes, &s->n, &err), &err);
        sac_seq_remove(e, seq);
    }
    assert_int_equal(fresh.n, used.n);
    assert_memory_equal(fresh.bytes, used.bytes, used.n);
    sac_free(fresh.bytes);
    sac_free(used.bytes);
    sac_engine_free(e);
}

static void damage_is_found(void **state)
{
    (void)state;
    const struct setting setting = {.decode = "h2o:budget=64"};
    struct saved s = make_saved(&setting);
    sac_engine *e = new_engine(&setting);
    uint64_t random = 1;
    expect_same(e, &s);
    for (size_t n = 0; n < s.n; n += n < HEAD ? 1 : 997)
        expect_refusal(e, s.bytes, n, SAC_ERR_FORMAT, n < HEAD ? "no saved sequence" : "cut short");
    uint8_t *longer = malloc(s.n + 1);
    memcpy(longer, s.bytes, s.n);
    longer[s.n] = 0;
    expect_refusal(e, longer, s.n + 1, SAC_ERR_FORMAT, "too long");
    free(longer);
    for (int i = 0; i < 400; i++) { /* a bit somewhere behind magic and version */
        random = random * 6364136223846793005u + 1442695040888963407u;
        const size_t room = i % 2 ? HEAD : s.n, at = 16 + (random >> 33) % (room - 16);
        s.bytes[at] ^= (uint8_t)(1u << (random >> 29 & 7));
        expect_refusal(e, s.bytes, s.n, SAC_ERR_FORMAT, "damaged");
        s.bytes[at] ^= (uint8_t)(1u << (random >> 29 & 7));
    }
    s.bytes[0] ^= 1;
    expect_refusal(e, s.bytes, s.n, SAC_ERR_FORMAT, "no saved sequence");
    s.bytes[0] ^= 1;
    s.bytes[8] = 9;
    expect_refusal(e, s.bytes, s.n, SAC_ERR_UNSUPPORTED, "format version 9");
    s.bytes[8] = 3;
    expect_same(e, &s);
    sac_free(s.bytes);
    sac_engine_free(e);
}

/* Bytes whose checksums are right and that say what cannot be. */
static void lies_are_found(void **state)
{
    (void)state;
    const struct setting setting = {.decode = "raas:budget=96,prompt=age"};
    const struct saved good = make_saved(&setting);
    sac_engine *e = new_engine(&setting);
    static const struct {
        size_t at;
        uint32_t value;
        sac_status status;
        const char *words;
    } lies[] = {
        {48, 7, SAC_ERR_FORMAT, "makes no sense"},            /* type_k */
        {60, 600, SAC_ERR_CONTEXT, "holds 600 tokens"},       /* n_tok */
        {60, 300, SAC_ERR_FORMAT, "damaged"},                 /* more than follows */
        {60, 100, SAC_ERR_FORMAT, "damaged"},                 /* fewer */
        {64, 500, SAC_ERR_FORMAT, "makes no sense"},          /* n_past */
        {68, 2, SAC_ERR_FORMAT, "makes no sense"},            /* has_gaps */
        {68, 0, SAC_ERR_FORMAT, "damaged"},                   /* gaps denied */
        {72, 0, SAC_ERR_ARG, "another build"},                /* decode_bytes */
        {HEAD, 256, SAC_ERR_FORMAT, "tokens that the model"}, /* the first token */
        {HEAD, UINT32_MAX, SAC_ERR_FORMAT, "tokens that the model"},
        {HEAD + 4 * (N_PROMPT + 2), 0xffffff05, SAC_ERR_FORMAT, "neither there nor not"},
    };
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct saved bad = {.bytes = malloc(good.n), .n = good.n};
        memcpy(bad.bytes, good.bytes, good.n);
        memcpy(bad.bytes + lies[i].at, &lies[i].value, 4);
        state_repair(bad.bytes, good.bytes, bad.n);
        expect_refusal(e, bad.bytes, bad.n, lies[i].status, lies[i].words);
        free(bad.bytes);
    }
    /* A page that is missing while the method believes that it is there. */
    struct saved bad = {.bytes = malloc(good.n), .n = good.n};
    memcpy(bad.bytes, good.bytes, good.n);
    /* The last lane's state, before the checksums of pages. */
    uint64_t n_page;
    memcpy(&n_page, good.bytes + HEAD - 24, sizeof n_page);
    memset(bad.bytes + state_page_at(good.bytes) - 8 * (n_page + 1) - 128, 0, 128);
    state_repair(bad.bytes, good.bytes, bad.n);
    expect_refusal(e, bad.bytes, bad.n, SAC_ERR_FORMAT, "decode method had learnt");
    expect_same(e, &good);
    free(bad.bytes);
    sac_free(good.bytes);
    sac_engine_free(e);
}

static void engines_that_do_not_fit_are_named(void **state)
{
    (void)state;
    const struct {
        struct setting from, to;
        sac_status status;
        const char *words;
    } cases[] = {
        {{0}, {.model = stranger}, SAC_ERR_ARG, "another model"},
        {{0}, {.type = SAC_KV_Q8}, SAC_ERR_ARG, "keys in f16 and values in f16, this engine q8"},
        {{0}, {.n_ctx = 200}, SAC_ERR_CONTEXT, "holds 207 tokens, the context 200"},
        {{0}, {.n_kv_tok = 128}, SAC_ERR_CONTEXT, "no room for 207 tokens"},
        {{.decode = "h2o:budget=64"}, {0}, SAC_ERR_ARG, "decode method h2o:budget=64 has dropped"},
        {{.decode = "h2o:budget=64"},
         {.decode = "h2o:budget=64", .record = true},
         SAC_ERR_ARG,
         "records reads"},
        {{.decode = "lfps:budget=20"},
         {.decode = "lfps:budget=20", .n_ctx = 544},
         SAC_ERR_ARG,
         "a context of 512 tokens"},
        {{0}, {.decode = "snapkv:budget=64"}, SAC_ERR_ARG, "queries of 0 rows: snapkv:budget=64 "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct saved s = make_saved(&cases[i].from);
        sac_engine *e = new_engine(&cases[i].to);
        expect_refusal(e, s.bytes, s.n, cases[i].status, cases[i].words);
        sac_free(s.bytes);
        sac_engine_free(e);
    }
}

/* Methods that know no more than the sequence go on with any state that has all tokens. */
static void other_methods_go_on_where_they_can(void **state)
{
    (void)state;
    struct saved dense = make_saved(&(struct setting){0});
    struct saved lfps = make_saved(&(struct setting){.decode = "lfps:budget=20"});
    sac_engine *e = new_engine(&(struct setting){.decode = "quest:budget=64,dense=0"});
    sac_engine *full = new_engine(&(struct setting){.n_ctx = 1000});
    sac_error err;
    sac_seq seq, whole;
    float want[TINY_VOCAB], got[TINY_VOCAB];
    must(sac_seq_from_bytes(e, dense.bytes, dense.n, &seq, &err), &err);
    must(sac_seq_create(e, &whole, &err), &err);
    compute_rows(e, whole, prompt, N_PROMPT, SAC_ROW_PROMPT, want);
    /* The two rows behind the prompt were dense in the saved sequence: only with them, too, are the
     * keys the same. */
    must(sac_seq_truncate(e, seq, N_PROMPT, &err), &err);
    ask(e, whole, want);
    ask(e, seq, got);
    assert_memory_equal(want, got, sizeof want);
    /* What lfps had learnt is let go, and its context does not matter then. */
    must(sac_seq_from_bytes(full, lfps.bytes, lfps.n, &seq, &err), &err);
    ask(full, seq, got);
    for (int i = 0; i < TINY_VOCAB; i++) assert_true(got[i] - got[i] == 0);
    sac_free(dense.bytes);
    sac_free(lfps.bytes);
    sac_engine_free(e);
    sac_engine_free(full);
}

static void pending_tokens_and_strangers_are_refused(void **state)
{
    (void)state;
    sac_engine *e = new_engine(&(struct setting){0});
    sac_seq seq;
    sac_error err;
    uint8_t *bytes;
    size_t n;
    assert_int_equal(sac_seq_to_bytes(e, 1, &bytes, &n, &err), SAC_ERR_NOT_FOUND);
    must(sac_seq_create(e, &seq, &err), &err);
    must(sac_seq_append(e, seq, prompt, 3, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    assert_int_equal(sac_seq_to_bytes(e, seq, &bytes, &n, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "3 pending tokens"));
    assert_null(sac_seq_tokens(e, 1));
    sac_engine_free(e);
}

/* Gaps are loaded page by page, so that a pool which has room for what is left is enough. */
static void an_evicted_sequence_needs_the_room_of_what_is_left(void **state)
{
    (void)state;
    struct setting setting = {.decode = "duo:gate=1,sink=4,recent=40"};
    struct saved s = make_saved(&setting);
    setting.n_kv_tok = 224; /* one page more than 207 tokens fill */
    sac_engine *e = new_engine(&setting);
    sac_seq seq[2];
    sac_error err;
    const uint64_t all = sac_engine_get_stats(e).n_page_free;
    must(sac_seq_from_bytes(e, s.bytes, s.n, &seq[0], &err), &err);
    const uint64_t held = all - sac_engine_get_stats(e).n_page_free;
    assert_true(held < all / 2);
    must(sac_seq_from_bytes(e, s.bytes, s.n, &seq[1], &err), &err);
    assert_int_equal(all - sac_engine_get_stats(e).n_page_free, 2 * held);
    sac_seq_remove(e, seq[0]);
    sac_seq_remove(e, seq[1]);
    assert_int_equal(sac_engine_get_stats(e).n_page_free, all);
    sac_free(s.bytes);
    sac_engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_is_the_bytes_and_goes_on),
        cmocka_unit_test(any_length_can_be_saved),
        cmocka_unit_test(nothing_of_others_is_saved),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(lies_are_found),
        cmocka_unit_test(engines_that_do_not_fit_are_named),
        cmocka_unit_test(other_methods_go_on_where_they_can),
        cmocka_unit_test(pending_tokens_and_strangers_are_refused),
        cmocka_unit_test(an_evicted_sequence_needs_the_room_of_what_is_left),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
