/* test_device_docs.c: documents that a device joins: the bits of a CPU where the library's memory
 * is out of the program's reach and its kernels are the CPU's, and the answers of a CPU but for
 * rounding on the CUDA kernels themselves (SAC_CHECK_CUDA names a library for a GPU, else they run
 * on a CPU). Documents are noted, stored and loaded there, too; what is refused is named. */
#include "compose_bench.h"
#include "store_dir.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sac_model *wide, *windowed;

static int open_models(void **state)
{
    wide = tiny_open(&(struct tiny){.seed = 1, .n_layer = 2, .dim = 64});
    windowed = tiny_open(&(struct tiny){.seed = 2, .window = 48, .n_layer = N_LAYER});
    setenv("SAC_CPU", "ref", 1);
    return wide && windowed ? bench_open_model(state) : -1;
}

static int free_models(void **state)
{
    sac_model_free(wide);
    sac_model_free(windowed);
    return bench_free_model(state);
}

/* Every composer with what it asks a device for: nothing, whole chunks, rows that are scattered,
 * changes, mixtures, gaps in prompt and decode rows, what a question reads. */
static const char *const methods[] = {
    "recompute",
    "reuse",
    "reuse:align=off",
    "reuse:query=last",
    "promptcache:one_place=on",
    "epic:k=5",
    "cacheblend:ratio=0.4",
    "cacheblend:ratio=0.6,ratio_end=0.2",
    "auto:most=0.3",
    "auto:most=0.3,rounds=2",
    "samkv:choose=read,blocks=0.3",
    "samkv:choose=read,blocks=0.3,update=overwrite",
    "samkv:choose=asked",
};
enum { N_METHOD = sizeof methods / sizeof methods[0] };

struct heard {
    float logits[2][TINY_VOCAB];
    sac_compose_report report;
    sac_reads reads;
};

static struct heard hear(const struct bench *b, const char *method)
{
    struct heard h = {0};
    const sac_seq seq = compose(b, method, N_DOC, &h.report);
    ask(b, seq, h.logits);
    h.reads = sac_seq_take_reads(b->e, seq);
    sac_seq_remove(b->e, seq);
    return h;
}

static void same_work(const struct heard *want, const struct heard *got, const char *method)
{
    const sac_compose_report *w = &want->report, *g = &got->report;
    const bool same = w->n_row == g->n_row && w->bytes == g->bytes && w->n_tok == g->n_tok &&
                      w->resident_share == g->resident_share &&
                      want->reads.n_tok_read == got->reads.n_tok_read &&
                      want->reads.attend_bytes_read == got->reads.attend_bytes_read;
    if (!same)
        fail_msg("%s: %llu and %llu rows, %g and %g of the pages, %llu and %llu tokens read",
                 method, (unsigned long long)w->n_row, (unsigned long long)g->n_row,
                 w->resident_share, g->resident_share, (unsigned long long)want->reads.n_tok_read,
                 (unsigned long long)got->reads.n_tok_read);
}

static void same_bits(struct setting s)
{
    const struct bench cpu = open_bench(&s, false);
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    s.device = "cuda";
    const struct bench away = open_bench(&s, false);
    for (size_t i = 0; i < N_METHOD; i++) {
        if (s.model && strstr(methods[i], "promptcache")) continue; /* moves documents */
        if (s.model && strstr(methods[i], "reuse:")) continue;
        if (s.is_long && !strstr(methods[i], "samkv")) continue; /* who gives pages back then */
        const struct heard want = hear(&cpu, methods[i]), got = hear(&away, methods[i]);
        same_work(&want, &got, methods[i]);
        if (memcmp(want.logits, got.logits, sizeof want.logits) != 0)
            fail_msg("%s: other bits, of type %d", methods[i], (int)s.type);
    }
    sac_engine_free(cpu.e);
    sac_engine_free(away.e);
}

static void joined_documents_have_the_cpus_bits(void **state)
{
    (void)state;
    same_bits((struct setting){.type = SAC_KV_F16, .n_batch = 64});
    same_bits((struct setting){.type = SAC_KV_Q8});
    same_bits((struct setting){.model = windowed, .type = SAC_KV_BF16});
    same_bits((struct setting){.is_long = true});
}

/* ---- Stored ---- */

/* Those of the bench, computed by its engine, with their statistics. */
static void store_all(sac_docs *docs, const struct bench *b)
{
    static const char *const name[N_DOC] = {"a", "b", "c"};
    for (uint32_t d = 0; d < N_DOC; d++) {
        const int32_t *tok = sac_seq_tokens(b->e, b->doc[d]);
        const sac_doc_source source = {.name = name[d],
                                       .head = tok,
                                       .n_head = N_HEAD,
                                       .tok = tok + N_HEAD,
                                       .n_tok = n_text[d]};
        sac_doc doc;
        sac_error err;
        bool found;
        must(sac_doc_add(docs, b->e, &source, &doc, &found, &err), &err);
        assert_false(found);
    }
}

static struct bench load_all(sac_docs *docs, const struct bench *b)
{
    static const char *const name[N_DOC] = {"a", "b", "c"};
    struct bench loaded = {.e = b->e, .n_head = b->n_head};
    for (uint32_t d = 0; d < N_DOC; d++) {
        sac_doc doc;
        sac_error err;
        must(sac_doc_load(docs, b->e, name[d], &loaded.doc[d], &doc, &err), &err);
    }
    return loaded;
}

/* Documents that one has stored the other loads, and what is joined of them is the same. */
static void stored_documents_go_from_one_to_the_other(void **state)
{
    (void)state;
    const char *method = "samkv:choose=asked"; /* which needs statistics */
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    struct setting s = {.type = SAC_KV_F16, .n_seq_more = N_DOC};
    const struct bench cpu = open_bench(&s, false);
    s.device = "cuda";
    const struct bench away = open_bench(&s, false);
    const struct heard want = hear(&cpu, method);
    for (int way = 0; way < 2; way++) {
        sac_docs *docs;
        sac_error err;
        make_dir();
        must(sac_docs_open(&docs, dir, &(sac_docs_params){0}, &err), &err);
        store_all(docs, way ? &cpu : &away);
        const struct bench loaded = load_all(docs, way ? &away : &cpu);
        const struct heard got = hear(&loaded, method);
        same_work(&want, &got, method);
        assert_memory_equal(got.logits, want.logits, sizeof got.logits);
        sac_docs_close(docs);
        remove_dir();
    }
    sac_engine_free(cpu.e);
    sac_engine_free(away.e);
}

/* Since the last call. */
static uint32_t count_copies(void)
{
    static uint32_t before;
    void *library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_NOLOAD);
    const uint32_t *n = library ? dlsym(library, "fake_n_copy") : NULL;
    if (!n) fail_msg("no count of copies");
    const uint32_t since = *n - before;
    before = *n;
    dlclose(library); /* the engine has loaded it for good */
    return since;
}

/* Each copy takes a device a while, however small it is: a document of 40 or 80 pages comes and
 * goes in a few, and one that is on the device needs none. */
static void pages_are_copied_many_at_a_time(void **state)
{
    (void)state;
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    for (sac_kv_type type = SAC_KV_F16; type <= SAC_KV_Q8; type += SAC_KV_Q8 - SAC_KV_F16) {
        struct bench b = open_bench(
            &(struct setting){.type = type, .n_seq_more = N_DOC, .device = "cuda"}, false);
        sac_docs *docs;
        sac_error err;
        make_dir();
        must(sac_docs_open(&docs, dir, &(sac_docs_params){0}, &err), &err);
        store_all(docs, &b);
        count_copies();
        const struct bench first = load_all(docs, &b);
        assert_in_range(count_copies(), N_DOC, 2 * N_DOC); /* cards and bodies of q8 */
        for (uint32_t d = 0; d < N_DOC; d++) {
            double apart[N_LAYER];
            const uint32_t n_tok = b.e->seqs[b.doc[d]].n_done;
            must(sac_seq_compare(b.e, first.doc[d], b.doc[d], n_tok, apart, &err), &err);
            for (uint32_t l = 0; l < N_LAYER; l++) assert_true(apart[l] == 0);
            sac_seq_remove(b.e, first.doc[d]);
        }
        assert_in_range(count_copies(), 1, 4 * N_DOC * N_LAYER * TINY_KV_HEADS);
        load_all(docs, &b);
        assert_int_equal(count_copies(), 0);
        sac_docs_close(docs);
        remove_dir();
        sac_engine_free(b.e);
    }
}

/* ---- What goes wrong ---- */

static sac_status try_compose(const struct bench *b, const char *method, sac_seq *seq,
                              sac_error *err)
{
    int32_t question[N_QUESTION];
    for (uint32_t i = 0; i < N_QUESTION; i++) question[i] = token_of(7, i);
    return sac_compose(b->e,
                       &(sac_compose_params){.method = method,
                                             .doc = b->doc,
                                             .n_doc = N_DOC,
                                             .n_head = N_HEAD,
                                             .question = question,
                                             .n_question = N_QUESTION},
                       seq, NULL, err);
}

/* At whichever wait it fails, the call fails, nothing is left of it, and the next one is right. */
static void a_failure_ends_the_joining(void **state)
{
    (void)state;
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    const struct bench b = open_bench(&(struct setting){.device = "cuda"}, false);
    const char *method = "auto:most=0.3";
    const struct heard want = hear(&b, method);
    const uint64_t n_free = sac_engine_get_stats(b.e).n_page_free;
    sac_status status = SAC_ERR_IO;
    uint32_t at = 0;
    while (status != SAC_OK) {
        char text[16];
        sac_seq seq;
        sac_error err;
        snprintf(text, sizeof text, "%u", ++at);
        setenv("SACCADE_FAKE_BREAK", text, 1);
        status = try_compose(&b, method, &seq, &err);
        unsetenv("SACCADE_FAKE_BREAK");
        if (status == SAC_OK) {
            sac_seq_remove(b.e, seq);
            break;
        }
        assert_int_equal(status, SAC_ERR_IO);
        assert_non_null(strstr(err.msg, "it is broken"));
        assert_int_equal(sac_engine_get_stats(b.e).n_page_free, n_free);
    }
    assert_true(at > 5);
    const struct heard got = hear(&b, method);
    assert_memory_equal(got.logits, want.logits, sizeof got.logits);
    sac_engine_free(b.e);
}

/* Choosing is refused before anything is joined, of one document without an offset, too. */
static void decode_methods_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const tried[] = {"reuse", "samkv:choose=read,blocks=0.3"};
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    const struct bench b =
        open_bench(&(struct setting){.decode = "streaming", .device = "cuda"}, false);
    for (size_t i = 0; i < 2; i++) {
        sac_seq seq;
        sac_error err;
        assert_int_equal(try_compose(&b, tried[i], &seq, &err), SAC_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "decode method streaming does not choose among joined"));
    }
    sac_engine_free(b.e);
}

/* What is said of context methods is what comes of them. */
static void composers_run_where_they_say(void **state)
{
    (void)state;
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    const struct bench b = open_bench(&(struct setting){.device = "cuda"}, false);
    uint32_t n_refused = 0;
    sac_method_info m;
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        sac_seq seq;
        sac_error err;
        if (strcmp(m.kind, "context") != 0) continue;
        const sac_status status = try_compose(&b, m.name, &seq, &err);
        if ((status == SAC_OK) != m.any_backend) fail_msg("%s: status %d", m.name, (int)status);
        if (status == SAC_OK)
            sac_seq_remove(b.e, seq);
        else
            n_refused++;
    }
    assert_int_equal(n_refused, 1);
    sac_engine_free(b.e);
}

/* Documents cannot be joined where a device has a part of the layers, but a joined sequence can
 * come there as bytes. */
static void joined_bytes_go_on_in_part(void **state)
{
    (void)state;
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    const struct bench b = open_bench(&(struct setting){.type = SAC_KV_Q8}, false);
    sac_engine_params p = sac_engine_get_params(b.e);
    struct bench part = {0};
    sac_compose_report report;
    sac_error err;
    float want[2][TINY_VOCAB], got[2][TINY_VOCAB];
    sac_seq seq = compose(&b, "reuse", N_DOC, &report), there;
    uint8_t *bytes;
    size_t n;
    p.device = "cuda";
    p.n_device_layer = 1;
    p.compose = false;
    must(sac_engine_create(&part.e, model, &p, &err), &err);
    must(sac_seq_to_bytes(b.e, seq, &bytes, &n, &err), &err);
    must(sac_seq_from_bytes(part.e, bytes, n, &there, &err), &err);
    assert_true(part.e->segments.n[there] > 0);
    ask(&b, seq, want);
    ask(&part, there, got);
    assert_memory_equal(got, want, sizeof got);
    sac_free(bytes);
    sac_engine_free(part.e);
    sac_engine_free(b.e);
}

/* A joined sequence that comes as bytes is refused likewise, where a part of the layers is a
 * device's, too. */
static void joined_bytes_are_refused_by_name(void **state)
{
    (void)state;
    setenv("SACCADE_CUDA", FAKE_CUDA, 1);
    const struct bench b = open_bench(&(struct setting){.decode = "streaming"}, false);
    sac_compose_report report;
    sac_error err;
    sac_seq seq = compose(&b, "reuse", N_DOC, &report);
    uint8_t *bytes;
    size_t n;
    must(sac_seq_to_bytes(b.e, seq, &bytes, &n, &err), &err);
    for (uint32_t n_layer = 0; n_layer < 2; n_layer++) {
        sac_engine_params p = sac_engine_get_params(b.e);
        sac_engine *e;
        p.device = "cuda";
        p.n_device_layer = n_layer;
        p.compose = false;
        must(sac_engine_create(&e, model, &p, &err), &err);
        assert_int_equal(sac_seq_from_bytes(e, bytes, n, &seq, &err), SAC_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "decode method streaming does not choose among joined"));
        sac_engine_free(e);
    }
    sac_free(bytes);
    sac_engine_free(b.e);
}

/* ---- The kernels ---- */

static void kernels_answer_as_the_cpu_does(void **state)
{
    (void)state;
    static const char *const method[] = {"auto:most=0.3", "samkv:choose=read,blocks=0.3"};
    const char *library = getenv("SAC_CHECK_CUDA");
    struct setting s = {.model = wide, .type = SAC_KV_F16};
    const struct bench cpu = open_bench(&s, false);
    setenv("SACCADE_CUDA", library ? library : CUDA_HOST, 1);
    s.device = "cuda";
    const struct bench away = open_bench(&s, false);
    for (size_t i = 0; i < sizeof method / sizeof method[0]; i++) {
        struct heard want = hear(&cpu, method[i]), got = hear(&away, method[i]);
        same_work(&want, &got, method[i]);
        const double off = distance(got.logits, want.logits);
        if (!(off < 0.01)) fail_msg("%s: %g from the CPU's answer", method[i], off);
    }
    sac_engine_free(cpu.e);
    sac_engine_free(away.e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(joined_documents_have_the_cpus_bits),
        cmocka_unit_test(stored_documents_go_from_one_to_the_other),
        cmocka_unit_test(pages_are_copied_many_at_a_time),
        cmocka_unit_test(a_failure_ends_the_joining),
        cmocka_unit_test(decode_methods_are_refused_by_name),
        cmocka_unit_test(composers_run_where_they_say),
        cmocka_unit_test(joined_bytes_go_on_in_part),
        cmocka_unit_test(joined_bytes_are_refused_by_name),
        cmocka_unit_test(kernels_answer_as_the_cpu_does),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
