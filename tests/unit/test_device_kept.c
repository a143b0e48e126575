/* test_device_kept.c: methods that keep what they have chosen, on the CUDA backend's own kernels,
 * which run on a CPU: over a life of turns, forks, cuts and saved sequences they read what they
 * read on the host, as many tokens and bytes, wherever a sequence has been before. */
#include "device_bench.h"

#include <inttypes.h>

enum { DIM = 64, N_CTX = 256, N_METHOD = 2 };

/* Two methods at a time, and how many tokens their prompts have. */
struct life {
    const char *method[N_METHOD];
    uint32_t n_prompt;
    sac_kv_type type;
    uint32_t min_ctx;
    sac_model *const *of; /* NULL: `model` */
    bool by_heads;        /* heads choose apart, so a tie changes what they read together */
};

/* Of a model whose votes lie apart: a GPU rounds what is between the layers of a prompt to 16 bits,
 * and of votes that are alike another token may win. */
static sac_model *apart;

static const struct life kept = {{"loopserve:budget=20,every=4,first=2",
                                  "loopserve:budget=16,every=6,first=6,warm=lines,sink=0"},
                                 69,
                                 SAC_KV_F16,
                                 1,
                                 &apart,
                                 false};

static const struct life recalled = {{"lfps:budget=14,past=9,decay=0.6",
                                      "lfps:budget=10%,heads=group,guard=on,refresh=5,bypass=0.1"},
                                     69,
                                     SAC_KV_F16,
                                     1,
                                     &apart,
                                     true};

static sac_model *bad, *one_head;

/* Methods that drop most of a prompt, and with it pages. */
static const struct life dropped = {
    {"snapkv:budget=14,window=8,kernel=3", "adakv:budget=14,window=4,pool=max,kernel=3"},
    131,
    SAC_KV_F16,
    1,
    &apart,
    false};

enum { BAD_TOK = 2 };

/* The key of one token in the last layer is infinite, in one of its heads. */
static void spoil_key(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in)
{
    (void)user;
    if (strcmp(name, "token_embd.weight") == 0)
        for (uint32_t t = 0; t < n_out; t++) x[t * n_in] = t == BAD_TOK ? 8 : 0;
    if (strstr(name, "attn_output.weight") || strstr(name, "ffn_down.weight"))
        memset(x, 0, n_in * sizeof *x);
    if (strcmp(name, "blk.1.attn_k.weight") == 0) x[0] = 1e5f;
}

static int open_models(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    bad = tiny_open(&(struct tiny){.seed = 3, .edit = spoil_key, .dim = DIM});
    apart = tiny_open(&(struct tiny){.seed = 6, .dim = DIM});
    one_head = tiny_open(&(struct tiny){.seed = 4, .n_kv_head = 1, .dim = DIM});
    return open_pair(CUDA_HOST, DIM) || !bad || !apart || !one_head;
}

static int free_models(void **state)
{
    sac_model_free(bad);
    sac_model_free(apart);
    sac_model_free(one_head);
    return free_pair(state);
}

/* `fast`: bytes of frames; 0: all pages have one. */
static sac_engine *new_engine(const struct life *life, const char *device, size_t fast)
{
    sac_engine *e = NULL;
    sac_error err;
    const struct sac_tier_params tier = {.fast_bytes = fast};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = N_CTX;
    p.n_seq_max = 2 * N_METHOD;
    p.n_batch = 64;
    p.n_threads = 1;
    p.type_k = p.type_v = life->type;
    p.device = device;
    p.decode = life->method;
    p.n_decode = N_METHOD;
    p.sparse_min_ctx = life->min_ctx;
    if (fast) p.tier = &tier;
    must(sac_engine_create(&e, life->of ? *life->of : model, &p, &err), &err);
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
static void live(const struct life *life, sac_engine *e, sac_engine *other, struct heard *h)
{
    const uint32_t n_prompt = life->n_prompt;
    sac_error err;
    sac_seq seq[2 * N_METHOD];
    memset(h, 0, sizeof *h);
    for (uint32_t i = 0; i < N_METHOD; i++) {
        must(sac_seq_create(e, &seq[i], &err), &err);
        must(sac_seq_use_decode(e, seq[i], i, &err), &err);
        read_text(e, seq[i], i, n_prompt, h);
    }
    answer(e, seq, N_METHOD, 7, h);
    for (uint32_t i = 0; i < N_METHOD; i++)
        must(sac_seq_fork(e, seq[i], &seq[N_METHOD + i], &err), &err);
    answer(e, seq + 1, 2 * N_METHOD - 1, 2, h);
    must(sac_seq_truncate(e, seq[0], n_prompt + 3, &err), &err);
    answer(e, seq, N_METHOD, 3, h);
    read_text(e, seq[2], 50, 20, h);
    answer(e, seq, 2 * N_METHOD, 3, h);
    /* They come back in each other's place. */
    for (uint32_t i = 0; i < N_METHOD; i++) seq[i] = move(other, e, seq[i]);
    for (uint32_t i = N_METHOD; i-- > 0;) seq[i] = move(e, other, seq[i]);
    answer(e, seq, 2 * N_METHOD, 3, h);
}

static void assert_about(uint64_t want, uint64_t got)
{
    if (!(fabs((double)want - (double)got) <= 0.02 * (double)want))
        fail_msg("%" PRIu64 " tokens instead of %" PRIu64, got, want);
}

/* As many tokens by as many reads; which they are may differ where votes are alike. */
static void assert_counts(const struct life *life, const sac_reads *want, const sac_reads *got)
{
    assert_int_equal(want->n_select, got->n_select);
    assert_int_equal(want->n_select_dense, got->n_select_dense);
    assert_int_equal(want->n_bypass, got->n_bypass);
    assert_int_equal(want->n_page_dropped, got->n_page_dropped);
    if (life->by_heads) {
        assert_about(want->n_tok_read, got->n_tok_read);
        assert_about(want->n_tok_chosen, got->n_tok_chosen);
        return;
    }
    assert_int_equal(want->choose_bytes_read, got->choose_bytes_read);
    assert_int_equal(want->build_bytes_read, got->build_bytes_read);
    assert_int_equal(want->n_tok_read, got->n_tok_read);
    assert_int_equal(want->n_tok_chosen, got->n_tok_chosen);
}

/* All rows, and most of them nearly the same. */
static void compare(const struct life *life, const struct heard *want, const struct heard *got)
{
    uint32_t n_off = 0;
    assert_int_equal(want->n, got->n);
    for (uint32_t i = 0; i < want->n; i++) {
        n_off += !(divergence(want->logits[i], got->logits[i]) < 1e-3);
        assert_counts(life, &want->reads[i], &got->reads[i]);
    }
    if (n_off * 10 > want->n) fail_msg("%u of %u rows differ", n_off, want->n);
    const sac_reads *r = &want->reads[want->n - 1];
    assert_true(r->n_select > r->n_select_dense && r->n_tok_chosen > 0);
}

/* The device has few frames, so votes read keys where they lie. */
static uint64_t check_life(const struct life *life)
{
    static struct heard want, got;
    sac_engine *cpu = new_engine(life, "cpu", 0), *other = new_engine(life, "cpu", 0);
    const struct page_geom *g = &cpu->pool.geom;
    sac_engine *cuda = new_engine(life, "cuda", 15 * g->n_layer * g->bytes);
    live(life, cpu, other, &want);
    live(life, cuda, other, &got);
    compare(life, &want, &got);
    assert_int_equal(cpu->pool.n_free, cuda->pool.n_free);
    sac_engine_free(cpu);
    sac_engine_free(cuda);
    sac_engine_free(other);
    return want.reads[want.n - 1].n_page_dropped;
}

static void a_life_reads_what_it_reads_on_the_host(void **state)
{
    (void)state;
    assert_int_equal(check_life(&kept), 0);
    assert_int_equal(check_life(&recalled), 0);
}

static void what_is_dropped_is_what_the_host_drops(void **state)
{
    (void)state;
    assert_true(check_life(&dropped) > 0);
}

/* ---- Short lives ---- */

enum turn { TURN_NONE, TURN_CUT, TURN_BAD };

/* Prompts and rows that drop most of them; then a cut to before the context that methods choose in,
 * or a second prompt whose vote fails in one head. */
static sac_reads live_on(const struct life *life, const char *device, enum turn turn,
                         struct heard *h)
{
    const int32_t bad_tok = BAD_TOK;
    sac_error err;
    sac_engine *e = new_engine(life, device, 0);
    sac_seq seq[N_METHOD];
    memset(h, 0, sizeof *h);
    for (uint32_t i = 0; i < N_METHOD; i++) {
        must(sac_seq_create(e, &seq[i], &err), &err);
        must(sac_seq_use_decode(e, seq[i], i, &err), &err);
        read_text(e, seq[i], 0, life->n_prompt, h);
    }
    answer(e, seq, N_METHOD, 2, h);
    for (uint32_t i = 0; i < N_METHOD; i++) {
        assert_true(e->seqs[seq[i]].has_gaps);
        if (turn == TURN_CUT) must(sac_seq_truncate(e, seq[i], 96, &err), &err);
        if (turn == TURN_BAD) append(e, seq[i], &bad_tok, 1, SAC_ROW_PROMPT);
    }
    answer(e, seq, N_METHOD, 2, h);
    const sac_reads reads = e->stats.reads;
    assert_int_equal(reads.n_select_nan, turn == TURN_BAD ? 2 * N_METHOD : 0);
    sac_engine_free(e);
    return reads;
}

static void check_short(const struct life *life, enum turn turn)
{
    static struct heard want, got;
    const sac_reads reads = live_on(life, "cpu", turn, &want);
    const sac_reads away = live_on(life, "cuda", turn, &got);
    assert_memory_equal(&reads, &away, sizeof reads);
    for (uint32_t k = 0; k < want.n && turn != TURN_BAD; k++)
        assert_true(divergence(want.logits[k], got.logits[k]) < 1e-3);
}

static void windows_and_heads_are_the_models(void **state)
{
    (void)state;
    const struct life wide = {{"snapkv:budget=6%,window=5", "adakv:budget=9,window=4"},
                              131,
                              SAC_KV_F16,
                              1,
                              &windowed,
                              false};
    const struct life one = {
        {"pyramidkv:budget=14,window=40,beta=2", "chunkkv:budget=16,window=6,chunk=8"},
        101,
        SAC_KV_Q8,
        1,
        &one_head,
        false};
    check_short(&wide, TURN_NONE);
    check_short(&one, TURN_NONE);
}

/* Where a lane reads everything, that is what has not been dropped. */
static void all_is_what_is_left(void **state)
{
    (void)state;
    const struct life late = {
        {"snapkv:budget=14,window=8", "snapkv:budget=9"}, 131, SAC_KV_F16, 120, NULL, false};
    const struct life spoilt = {
        {"snapkv:budget=14,window=8", "adakv:budget=14,window=8"}, 131, SAC_KV_F16, 1, &bad, false};
    check_short(&late, TURN_CUT);
    check_short(&spoilt, TURN_BAD);
}

/* The rooms of a device are planned for its own code: what a request may set is no more there than
 * on the host. */
static void budgets_and_masses_may_be_set(void **state)
{
    (void)state;
    static const char *const prefill[] = {"auto:mass=0.8", "loopserve:mass=0.9"};
    static const char *const decode[] = {"snapkv:budget=14,window=8", "loopserve:budget=16"};
    const sac_sparse sparse = {.mass = 0.5f, .budget = "20"};
    for (uint32_t i = 0; i < N_METHOD; i++) {
        sac_engine *e = NULL;
        sac_error err;
        sac_seq seq;
        sac_engine_params p = sac_engine_params_default();
        p.n_ctx = N_CTX;
        p.n_threads = 1;
        p.device = "cuda";
        p.decode = &decode[i];
        p.prefill = &prefill[i];
        p.n_decode = p.n_prefill = 1;
        must(sac_engine_create(&e, model, &p, &err), &err);
        must(sac_seq_create(e, &seq, &err), &err);
        must(sac_seq_use_sparse(e, seq, &sparse, &err), &err);
        sac_engine_free(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_life_reads_what_it_reads_on_the_host),
        cmocka_unit_test(what_is_dropped_is_what_the_host_drops),
        cmocka_unit_test(windows_and_heads_are_the_models),
        cmocka_unit_test(all_is_what_is_left),
        cmocka_unit_test(budgets_and_masses_may_be_set),
    };
    return cmocka_run_group_tests(tests, open_models, free_models);
}
