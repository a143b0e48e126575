/* test_device_kept.c: methods that keep what they have chosen, on the CUDA backend's own kernels,
 * which run on a CPU: over a life of turns, forks, cuts and saved sequences they read what they
 * read on the host, as many tokens and bytes, wherever a sequence has been before. */
#include "device_bench.h"

enum { DIM = 64, N_PROMPT = 69, N_CTX = 256 };

static const char *const methods[] = {
    "loopserve:budget=20,every=4,first=2",
    "loopserve:budget=16,every=6,first=6,warm=lines,sink=0",
};
enum { N_METHOD = sizeof methods / sizeof methods[0] };

static int open_models(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    return open_pair(CUDA_HOST, DIM);
}

/* `fast`: bytes of frames; 0: all pages have one. */
static sac_engine *new_engine(const char *device, size_t fast)
{
    sac_engine *e = NULL;
    sac_error err;
    const struct sac_tier_params tier = {.fast_bytes = fast};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = N_CTX;
    p.n_seq_max = 2 * N_METHOD;
    p.n_batch = 64;
    p.n_threads = 1;
    p.type_k = p.type_v = SAC_KV_F16;
    p.device = device;
    p.decode = methods;
    p.n_decode = N_METHOD;
    p.sparse_min_ctx = 1;
    if (fast) p.tier = &tier;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

/* ---- What came out ---- */

struct heard {
    uint32_t n;
    float logits[300][TINY_VOCAB];
    sac_reads reads[300]; /* of all sequences, after each step */
};

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    assert_true(h->n < 300);
    memcpy(h->logits[h->n++], row->logits, sizeof h->logits[0]);
}

static void read_text(sac_engine *e, sac_seq seq, uint32_t from, uint32_t n, struct heard *h)
{
    append(e, seq, prompt + from, n, SAC_ROW_PROMPT);
    step_all(e, hear, h);
}

/* Tokens that do not hang on logits, of the sequences that are there. */
static void answer(sac_engine *e, const sac_seq *seq, uint32_t n_seq, int32_t n, struct heard *h)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t tok = i * 11 % TINY_VOCAB;
        for (uint32_t k = 0; k < n_seq; k++) append(e, seq[k], &tok, 1, SAC_ROW_DECODE);
        step_all(e, hear, h);
        h->reads[h->n - 1] = e->stats.reads;
    }
}

static sac_seq move(sac_engine *to, sac_engine *from, sac_seq seq)
{
    sac_error err;
    uint8_t *bytes;
    size_t n;
    must(sac_seq_to_bytes(from, seq, &bytes, &n, &err), &err);
    sac_seq_remove(from, seq);
    must(sac_seq_from_bytes(to, bytes, n, &seq, &err), &err);
    sac_free(bytes);
    return seq;
}

/* Two sequences of either method: an answer, a fork, a cut into what was chosen, a second turn, and
 * a way through a file. */
static void live(sac_engine *e, sac_engine *other, struct heard *h)
{
    sac_error err;
    sac_seq seq[2 * N_METHOD];
    memset(h, 0, sizeof *h);
    for (uint32_t i = 0; i < N_METHOD; i++) {
        must(sac_seq_create(e, &seq[i], &err), &err);
        must(sac_seq_use_decode(e, seq[i], i, &err), &err);
        read_text(e, seq[i], i, N_PROMPT, h);
    }
    answer(e, seq, N_METHOD, 7, h);
    for (uint32_t i = 0; i < N_METHOD; i++)
        must(sac_seq_fork(e, seq[i], &seq[N_METHOD + i], &err), &err);
    answer(e, seq + 1, 2 * N_METHOD - 1, 2, h);
    must(sac_seq_truncate(e, seq[0], N_PROMPT + 3, &err), &err);
    answer(e, seq, N_METHOD, 3, h);
    read_text(e, seq[2], 50, 20, h);
    answer(e, seq, 2 * N_METHOD, 3, h);
    for (uint32_t i = 0; i < N_METHOD; i++) {
        seq[i] = move(other, e, seq[i]);
        seq[i] = move(e, other, seq[i]);
    }
    answer(e, seq, 2 * N_METHOD, 3, h);
}

/* As many tokens by as many reads; which they are may differ where votes are alike. */
static void assert_counts(const sac_reads *want, const sac_reads *got)
{
    assert_int_equal(want->n_select, got->n_select);
    assert_int_equal(want->n_select_dense, got->n_select_dense);
    assert_int_equal(want->choose_bytes_read, got->choose_bytes_read);
    assert_int_equal(want->build_bytes_read, got->build_bytes_read);
    assert_int_equal(want->n_tok_read, got->n_tok_read);
    assert_int_equal(want->n_tok_chosen, got->n_tok_chosen);
}

/* All rows, and most of them nearly the same. */
static void compare(const struct heard *want, const struct heard *got)
{
    uint32_t n_off = 0;
    assert_int_equal(want->n, got->n);
    for (uint32_t i = 0; i < want->n; i++) {
        n_off += !(divergence(want->logits[i], got->logits[i]) < 1e-3);
        assert_counts(&want->reads[i], &got->reads[i]);
    }
    if (n_off * 10 > want->n) fail_msg("%u of %u rows differ", n_off, want->n);
    const sac_reads *r = &want->reads[want->n - 1];
    assert_true(r->n_select > r->n_select_dense && r->n_tok_chosen > 0);
}

static size_t page_bytes(void)
{
    struct page_geom g = {
        .n_layer = 2, .n_kv_head = 2, .head_dim = DIM, .type_k = SAC_KV_F16, .type_v = SAC_KV_F16};
    page_geom_init(&g);
    return g.bytes;
}

/* The device has few frames, so votes read keys where they lie. */
static void a_life_reads_what_it_reads_on_the_host(void **state)
{
    (void)state;
    static struct heard want, got;
    sac_engine *cpu = new_engine("cpu", 0), *other = new_engine("cpu", 0);
    sac_engine *cuda = new_engine("cuda", 30 * page_bytes());
    live(cpu, other, &want);
    live(cuda, other, &got);
    compare(&want, &got);
    sac_engine_free(cpu);
    sac_engine_free(cuda);
    sac_engine_free(other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_life_reads_what_it_reads_on_the_host),
    };
    return cmocka_run_group_tests(tests, open_models, free_pair);
}
