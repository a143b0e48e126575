/* test_kv_host.c: keys and values in the machine's memory, attended to by the CPU, while a device
 * computes the linear parts of layers (params.kv_on_host). On the library that has no GPU, the bits
 * of a CPU with every kind of method, in batches, with forks, cuts, files, documents and a disk
 * below; what crosses, what a failure does; and on the CUDA kernels, which run on a CPU here, the
 * CPU's logits but for rounding. */
#include "compose_bench.h"

#include "saccade_machine.h"
#include "saccade_tier.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { N_PROMPT = 205, N_SEQ = 3 };

static sac_model *windowed, *wide; /* wide: heads that the kernels have */
static int32_t prompt[N_PROMPT];

static int open_models(void **state)
{
    windowed = tiny_open(&(struct tiny){.seed = 2, .window = 48, .n_layer = 6, .n_kv_head = 1});
    wide = tiny_open(&(struct tiny){.seed = 3, .n_layer = 7, .dim = 64});
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (i * 37 + i / 9) % TINY_VOCAB;
    setenv("SAC_CPU", "ref", 1);
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    return windowed && wide ? bench_open_model(state) : -1;
}

static int free_models(void **state)
{
    sac_model_free(windowed);
    sac_model_free(wide);
    return bench_free_model(state);
}

/* ---- Engines ---- */

/* What an engine is asked for beside who computes. */
struct wish {
    const sac_model *of; /* NULL: model */
    sac_kv_type type;
    const char *decode, *prefill; /* NULL: dense */
    uint32_t n_layer;             /* whose linear parts are a device's; 0: all, and the output */
    const struct sac_tier_params *tier;
    uint64_t n_kv_tok;
    bool record;
};

static sac_engine_params params_of(const struct wish *w)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 512;
    p.n_seq_max = N_SEQ;
    p.n_batch = 64;
    p.n_threads = 2;
    p.type_k = p.type_v = w->type;
    p.sparse_min_ctx = 1;
    p.decode = &w->decode;
    p.n_decode = w->decode != NULL;
    p.prefill = &w->prefill;
    p.n_prefill = w->prefill != NULL;
    p.tier = w->tier;
    p.n_kv_tok = w->n_kv_tok;
    p.record = w->record;
    return p;
}

static sac_engine *create(const struct wish *w, const sac_engine_params *p)
{
    sac_engine *e = NULL;
    sac_error err;
    must(sac_engine_create(&e, w->of ? w->of : model, p, &err), &err);
    return e;
}

static sac_engine *on_cpu(const struct wish *w)
{
    const sac_engine_params p = params_of(w);
    return create(w, &p);
}

static sac_engine *on_both(const struct wish *w)
{
    sac_engine_params p = params_of(w);
    p.device = "cuda";
    p.kv_on_host = true;
    p.n_device_layer = w->n_layer;
    sac_engine *e = create(w, &p);
    assert_int_equal(e->n_place, 2);
    return e;
}

/* ---- What came out ---- */

struct heard {
    uint32_t n;
    double sum;
    float last[N_SEQ][TINY_VOCAB];
};

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    h->n++;
    for (int i = 0; i < TINY_VOCAB; i++) h->sum += (double)row->logits[i] * (i % 7 + 1);
    memcpy(h->last[row->seq], row->logits, sizeof h->last[0]);
}

static void step_all(sac_engine *e, struct heard *h)
{
    uint32_t n = 1;
    sac_error err;
    while (n) must(sac_step(e, hear, h, &n, &err), &err);
    assert_int_equal(e->at, 0); /* or what is done between steps goes to the wrong memory */
}

static void append(sac_engine *e, sac_seq seq, const int32_t *tok, uint32_t n, sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, seq, tok, n, kind, SAC_WANT_LAST, &err), &err);
}

/* n rows of each of the sequences, together. */
static void decode(sac_engine *e, uint32_t seqs, int32_t n, struct heard *h)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t tok = i * 11 % TINY_VOCAB;
        for (sac_seq s = 0; s < N_SEQ; s++)
            if (seqs >> s & 1) append(e, s, &tok, 1, SAC_ROW_DECODE);
        step_all(e, h);
    }
}

/* Two prompts in chunks, answers together and alone, a fork; unless a method has dropped tokens,
 * a cut and more of a prompt; and a sequence that goes away and comes back. */
static struct heard live(sac_engine *e, bool cuts)
{
    static struct heard h;
    sac_error err;
    sac_seq a, b, c;
    uint8_t *bytes;
    size_t n_bytes;
    h = (struct heard){0};
    must(sac_seq_create(e, &a, &err), &err);
    must(sac_seq_create(e, &b, &err), &err);
    append(e, a, prompt, N_PROMPT, SAC_ROW_PROMPT);
    append(e, b, prompt + 9, 77, SAC_ROW_PROMPT);
    step_all(e, &h);
    decode(e, 3, 20, &h);
    decode(e, 1, 14, &h);
    must(sac_seq_fork(e, a, &c, &err), &err);
    decode(e, 7, 5, &h);
    if (cuts) {
        must(sac_seq_truncate(e, a, 100, &err), &err); /* into a sealed page */
        append(e, a, prompt + 3, 40, SAC_ROW_PROMPT);
        append(e, b, prompt, 33, SAC_ROW_PROMPT);
        decode(e, 4, 3, &h); /* beside prompts */
    }
    must(sac_seq_to_bytes(e, a, &bytes, &n_bytes, &err), &err);
    sac_seq_remove(e, a);
    must(sac_seq_from_bytes(e, bytes, n_bytes, &a, &err), &err);
    sac_free(bytes);
    decode(e, 7, 8, &h);
    return h;
}

static void check_same(const struct wish *w, bool cuts)
{
    sac_engine *cpu = on_cpu(w), *both = on_both(w);
    const struct heard want = live(cpu, cuts), got = live(both, cuts);
    const char *what = w->decode ? w->decode : w->prefill ? w->prefill : "dense";
    const sac_reads *reads = &cpu->stats.reads;
    if (memcmp(reads, &both->stats.reads, sizeof *reads) != 0) fail_msg("%s: other reads", what);
    assert_int_equal(want.n, got.n);
    if (want.sum != got.sum || memcmp(want.last, got.last, sizeof want.last) != 0)
        fail_msg("%s: other bits", what);
    sac_engine_free(cpu);
    sac_engine_free(both);
}

static void a_cpu_attends_with_the_same_bits(void **state)
{
    (void)state;
    check_same(&(struct wish){.type = SAC_KV_F16}, true);
    check_same(&(struct wish){.type = SAC_KV_Q8}, true);
    check_same(&(struct wish){.of = windowed, .type = SAC_KV_BF16}, true);
}

/* However many layers have their linear part on the device, of all but the output, too. */
static void linear_parts_in_part_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= N_LAYER + 1; n++)
        check_same(&(struct wish){.type = n % 2 ? SAC_KV_Q8 : SAC_KV_F16, .n_layer = n}, true);
    check_same(&(struct wish){.of = windowed, .type = SAC_KV_F16, .n_layer = 4}, true);
}

/* Those that a GPU has and those that it has not, who keep tables, drop tokens, or add what stands
 * for the rest. */
static void all_methods_run_there(void **state)
{
    (void)state;
    static const char *const kept[] = {"lfps:budget=20",       "magicpig",
                                       "auto:mass=0.5,most=1", "psa:mass=0.4",
                                       "quest:budget=32",      "sparq",
                                       "loopserve:budget=20"},
                             *const dropping[] = {"snapkv:budget=48", "h2o:budget=64"},
                             *const prefill[] = {"critiprefill", "minference", "sparge"};
    for (size_t i = 0; i < sizeof kept / sizeof kept[0]; i++)
        check_same(&(struct wish){.type = i % 2 ? SAC_KV_Q8 : SAC_KV_F16, .decode = kept[i]}, true);
    for (size_t i = 0; i < sizeof dropping / sizeof dropping[0]; i++)
        check_same(&(struct wish){.decode = dropping[i], .n_layer = (uint32_t)i * 2}, false);
    for (size_t i = 0; i < sizeof prefill / sizeof prefill[0]; i++)
        check_same(&(struct wish){.prefill = prefill[i], .n_layer = (uint32_t)i}, true);
}

/* ---- Elsewhere ---- */

/* Between a CPU, a GPU that has everything, and both together, each way. */
static void saved_sequences_go_everywhere(void **state)
{
    (void)state;
    const struct wish w = {.type = SAC_KV_Q8};
    sac_engine_params p = params_of(&w);
    p.device = "cuda";
    sac_engine *e[3] = {on_cpu(&w), create(&w, &p), on_both(&w)};
    for (int from = 0; from < 3; from++)
        for (int to = 0; to < 3; to++) {
            static struct heard want, got;
            sac_error err;
            sac_seq a, b;
            uint8_t *bytes;
            size_t n;
            if (from == to || (from != 2 && to != 2)) continue;
            must(sac_seq_create(e[from], &a, &err), &err);
            append(e[from], a, prompt, 150, SAC_ROW_PROMPT);
            step_all(e[from], &want);
            must(sac_seq_to_bytes(e[from], a, &bytes, &n, &err), &err);
            must(sac_seq_from_bytes(e[to], bytes, n, &b, &err), &err);
            sac_free(bytes);
            assert_true(a == 0 && b == 0);
            decode(e[from], 1, 9, &want);
            decode(e[to], 1, 9, &got);
            assert_memory_equal(want.last[0], got.last[0], sizeof want.last[0]);
            sac_seq_remove(e[from], a);
            sac_seq_remove(e[to], b);
        }
    for (int i = 0; i < 3; i++) sac_engine_free(e[i]);
}

/* Pages are the CPU's, and so is what is below them. */
static void a_disk_below_changes_nothing(void **state)
{
    (void)state;
    char path[256];
    snprintf(path, sizeof path, P_tmpdir "/saccade-kv-host-%d", (int)getpid());
    const struct sac_tier_params tier = {
        .file = path, .fast_bytes = 160u << 10, .file_bytes = 64u << 20};
    static const char *const decode[] = {NULL, "quest:budget=32", "lfps:budget=20"};
    for (size_t i = 0; i < sizeof decode / sizeof decode[0]; i++) {
        struct wish w = {.type = SAC_KV_F16, .decode = decode[i]};
        sac_engine *cpu = on_cpu(&w);
        w.tier = &tier;
        sac_engine *both = on_both(&w);
        const struct heard want = live(cpu, true), got = live(both, true);
        assert_true(sac_tier_get_stats(both).n_fetch > 0);
        assert_true(want.sum == got.sum);
        assert_memory_equal(want.last, got.last, sizeof want.last);
        sac_engine_free(cpu);
        sac_engine_free(both);
    }
    unlink(path);
}

static void documents_are_joined_there(void **state)
{
    (void)state;
    static const char *const methods[] = {"recompute",     "reuse",
                                          "epic:k=5",      "cacheblend:ratio=0.4",
                                          "auto:most=0.3", "samkv:choose=asked"};
    struct setting s = {.type = SAC_KV_Q8, .decode = "quest:budget=64", .n_batch = 64};
    const struct bench cpu = open_bench(&s, false);
    s.device = "cuda";
    s.kv_on_host = true;
    const struct bench both = open_bench(&s, false);
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        float want[2][TINY_VOCAB], got[2][TINY_VOCAB];
        const uint64_t before = both.e->stats.weight_bytes_read;
        answer(&cpu, methods[i], N_DOC, want);
        answer(&both, methods[i], N_DOC, got);
        assert_true(both.e->stats.weight_bytes_read > before);
        if (memcmp(want, got, sizeof want) != 0) fail_msg("%s: other bits", methods[i]);
        assert_int_equal(both.e->at, 0);
    }
    sac_engine_free(cpu.e);
    sac_engine_free(both.e);
}

static void count_record(void *user, const sac_read_record *r)
{
    *(double *)user += r->layer + 1;
}

static void recorders_and_noise_work_there(void **state)
{
    (void)state;
    const struct wish w = {.decode = "quest:budget=32", .record = true}, plain = {0};
    double sum[2] = {0};
    for (int i = 0; i < 2; i++) {
        static struct heard h;
        sac_error err;
        sac_seq s;
        sac_engine *e = i ? on_both(&w) : on_cpu(&w);
        must(sac_engine_set_recorder(e, count_record, &sum[i], &err), &err);
        must(sac_seq_create(e, &s, &err), &err);
        append(e, s, prompt, 90, SAC_ROW_PROMPT);
        step_all(e, &h);
        decode(e, 1, 2, &h);
        sac_engine_free(e);
        e = i ? on_both(&plain) : on_cpu(&plain);
        must(sac_seq_create(e, &s, &err), &err);
        must(sac_seq_append_noise(e, s, prompt, N_PROMPT, 7, &err), &err);
        decode(e, 1, 2, &h);
        for (int k = 0; k < TINY_VOCAB; k++) sum[i] += (double)h.last[0][k];
        sac_engine_free(e);
    }
    assert_true(sum[0] == sum[1] && sum[0] != 0);
}

/* ---- What it takes ---- */

static uint64_t count_of(const char *library, const char *name)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    const uint32_t *n = handle ? dlsym(handle, name) : NULL;
    if (!n) fail_msg("no count %s", name);
    dlclose(handle); /* the engine has loaded it for good */
    return *n;
}

/* Of a decode row cross: its hidden state and two rows of angles up, in each layer one copy down
 * and one up, and the logits; all that comes down goes to pinned memory, in which no page is. */
static void little_crosses(void **state)
{
    (void)state;
    static struct heard h;
    uint64_t held[2];
    for (uint32_t k = 0; k < 2; k++) {
        sac_error err;
        sac_seq s;
        sac_engine *e = on_both(&(struct wish){.n_kv_tok = k ? 100 * 512 : 0});
        must(sac_seq_create(e, &s, &err), &err);
        append(e, s, prompt, 90, SAC_ROW_PROMPT);
        step_all(e, &h);
        const uint64_t before = count_of(FAKE_CUDA, "fake_n_copy");
        decode(e, 1, 1, &h);
        assert_int_equal(count_of(FAKE_CUDA, "fake_n_copy") - before, 3 + 2 * N_LAYER + 1);
        assert_int_equal(count_of(FAKE_CUDA, "fake_n_unpinned"), 0);
        assert_true(pool_own_end(&e->pool) > e->pool.part[0].tails);
        assert_int_equal(count_of(FAKE_CUDA, "fake_n_pinned"),
                         e->block + e->block_bytes - pool_own_end(&e->pool));
        assert_true(pool_own_end(&e->pool) <= (uint8_t *)e->pool.tables);
        held[k] = e->place[1].block_bytes;
        sac_engine_free(e);
    }
    assert_int_equal(held[0], held[1]); /* no page is the device's */
}

/* At whichever wait of a step it fails, in the middle of a layer, too: it is told once, nothing is
 * handed out, and the next step is right. */
static void a_failure_is_told_once(void **state)
{
    (void)state;
    sac_engine *e = on_both(&(struct wish){.type = SAC_KV_F16});
    sac_error err;
    sac_status status = SAC_ERR_IO;
    uint32_t at = 0;
    while (status != SAC_OK) {
        static struct heard h;
        char text[16];
        sac_seq s;
        h = (struct heard){0};
        must(sac_seq_create(e, &s, &err), &err);
        append(e, s, prompt, 20, SAC_ROW_PROMPT);
        snprintf(text, sizeof text, "%u", ++at);
        setenv("SACCADE_FAKE_BREAK", text, 1);
        uint32_t n;
        status = sac_step(e, hear, &h, &n, &err);
        unsetenv("SACCADE_FAKE_BREAK");
        assert_int_equal(e->at, 0);
        assert_int_equal(h.n, at > N_LAYER + 1); /* the last wait is behind the row */
        if (status != SAC_OK) assert_non_null(strstr(err.msg, "it is broken"));
        sac_seq_remove(e, s);
        must(sac_step(e, hear, &h, &n, &err), &err);
    }
    assert_int_equal(at, N_LAYER + 3);
    sac_engine_free(e);
}

/* The same where tokens of documents are computed again. */
static void a_failure_ends_the_joining(void **state)
{
    (void)state;
    const struct bench b = open_bench(&(struct setting){.device = "cuda", .kv_on_host = true}, 0);
    const uint64_t n_free = sac_engine_get_stats(b.e).n_page_free;
    sac_status status = SAC_ERR_IO;
    uint32_t at = 0;
    while (status != SAC_OK) {
        char text[16];
        int32_t question[N_QUESTION] = {0};
        sac_seq seq;
        sac_error err;
        snprintf(text, sizeof text, "%u", ++at);
        setenv("SACCADE_FAKE_BREAK", text, 1);
        status = sac_compose(b.e,
                             &(sac_compose_params){.method = "epic:k=5",
                                                   .doc = b.doc,
                                                   .n_doc = N_DOC,
                                                   .n_head = N_HEAD,
                                                   .question = question,
                                                   .n_question = N_QUESTION},
                             &seq, NULL, &err);
        unsetenv("SACCADE_FAKE_BREAK");
        assert_int_equal(b.e->at, 0);
        if (status == SAC_OK) break;
        assert_int_equal(status, SAC_ERR_IO);
        assert_non_null(strstr(err.msg, "it is broken"));
        assert_int_equal(sac_engine_get_stats(b.e).n_page_free, n_free);
    }
    assert_true(at > N_LAYER);
    sac_engine_free(b.e);
}

static void no_gpu_is_named(void **state)
{
    (void)state;
    const struct wish w = {0};
    sac_engine_params p = params_of(&w);
    sac_engine *e = NULL;
    sac_error err;
    p.kv_on_host = true;
    assert_int_equal(sac_engine_create(&e, model, &p, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "(--kv-device host) beside no GPU"));
}

/* ---- The kernels ---- */

/* Rows between two waits come again in each step of as many sequences, one for each layer and one
 * more: the first such step issues them, the second makes graphs of them, and all that follow start
 * these, while steps of one, two and three sequences take turns. */
static void kernels_agree_and_their_rows_are_graphs(void **state)
{
    (void)state;
    const struct wish w = {.of = wide, .type = SAC_KV_F16};
    static struct heard want, got;
    uint64_t n_graph = 0;
    setenv("SACCADE_CUDA", CUDA_HOST, 1);
    for (int i = 0; i < 2; i++) {
        struct heard *h = i ? &got : &want;
        sac_engine *e = i ? on_both(&w) : on_cpu(&w);
        sac_error err;
        sac_seq s;
        for (uint32_t k = 0; k < N_SEQ; k++) {
            must(sac_seq_create(e, &s, &err), &err);
            append(e, s, prompt, 60, SAC_ROW_PROMPT);
        }
        step_all(e, h);
        if (i) n_graph = count_of(CUDA_HOST, "n_graph_started");
        for (int turn = 0; turn < 3; turn++)
            for (uint32_t seqs = 1; seqs < 8; seqs = 2 * seqs + 1) decode(e, seqs, 1, h);
        if (i) n_graph = count_of(CUDA_HOST, "n_graph_started") - n_graph;
        sac_engine_free(e);
    }
    assert_int_equal(n_graph, 2 * N_SEQ * (wide->config.n_layer + 1));
    double off = 0, size = 0;
    for (int k = 0; k < TINY_VOCAB; k++) {
        off += fabs((double)want.last[0][k] - (double)got.last[0][k]);
        size += fabs((double)want.last[0][k]);
    }
    if (!(off < 0.02 * size)) fail_msg("logits are off by %g of %g", off, size);
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cpu_attends_with_the_same_bits),
        cmocka_unit_test(linear_parts_in_part_give_the_same_bits),
        cmocka_unit_test(all_methods_run_there),
        cmocka_unit_test(saved_sequences_go_everywhere),
        cmocka_unit_test(a_disk_below_changes_nothing),
        cmocka_unit_test(documents_are_joined_there),
        cmocka_unit_test(recorders_and_noise_work_there),
        cmocka_unit_test(little_crosses),
        cmocka_unit_test(a_failure_is_told_once),
        cmocka_unit_test(a_failure_ends_the_joining),
        cmocka_unit_test(no_gpu_is_named),
        cmocka_unit_test(kernels_agree_and_their_rows_are_graphs),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
