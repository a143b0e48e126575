/* test_device.c: an engine whose memory is a device's, by the library of tests/device that has
 * none: the same bits as on the CPU for prompts in chunks, batches, forks, cuts and saved
 * sequences, with memory that the program cannot reach. */
#include "device_bench.h"

#include "kv/mirror.h"

#include <math.h>

enum { N_STEP = 40 };

static int open_models(void **state)
{
    (void)state;
    return open_pair(FAKE_CUDA, 0);
}

/* What an engine is asked for beside its device. */
struct wish {
    const sac_model *of;
    sac_kv_type type;
    const char *prefill; /* a method for prompts, or NULL */
    uint32_t n_layer;    /* of the device; 0: all */
    uint32_t n_threads;  /* 0: 2 */
    const char *devices; /* NULL: the one that is named elsewhere */
    float split[4];      /* their shares, as many as are not 0 */
};

static uint32_t count_shares(const float *split)
{
    uint32_t n = 0;
    while (n < 4 && split[n] > 0) n++;
    return n;
}

static sac_engine *wished_engine(const struct wish *w, const char *device)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_engine_params p = device_params(device, w->type);
    p.prefill = &w->prefill;
    p.n_prefill = w->prefill ? 1 : 0;
    p.n_device_layer = device ? w->n_layer : 0;
    if (device && w->devices) p.device = w->devices;
    p.device_split = w->split;
    p.n_device_split = device ? count_shares(w->split) : 0;
    if (w->n_threads) p.n_threads = w->n_threads;
    p.sparse_min_ctx = 1;
    must(sac_engine_create(&e, w->of, &p, &err), &err);
    return e;
}

static sac_engine *new_engine(const sac_model *of, const char *device, sac_kv_type type)
{
    return wished_engine(&(struct wish){.of = of, .type = type}, device);
}

/* ---- What came out ---- */

struct heard {
    uint32_t n;
    double sum;
    float last[3][TINY_VOCAB]; /* by sequence */
    uint32_t n_top[3];         /* tokens that the last row has named */
};

/* All that are not -INFINITY, in their order. */
static void check_names(const sac_row *row)
{
    uint32_t n = 0;
    for (int32_t i = 0; i < TINY_VOCAB && row->top; i++)
        if (row->logits[i] > -INFINITY) assert_int_equal(row->top[n++], i);
    assert_int_equal(n, row->n_top);
}

static void hear(void *user, const sac_row *row)
{
    struct heard *h = user;
    h->n++;
    for (int i = 0; i < TINY_VOCAB; i++) h->sum += (double)row->logits[i] * (i % 7 + 1);
    memcpy(h->last[row->seq], row->logits, sizeof h->last[0]);
    h->n_top[row->seq] = row->n_top;
    check_names(row);
}

static int32_t best(const float *logits)
{
    int32_t b = 0;
    for (int32_t i = 1; i < TINY_VOCAB; i++) b = logits[i] > logits[b] ? i : b;
    return b;
}

static void generate(sac_engine *e, sac_seq seq, int n, struct heard *h)
{
    sac_error err;
    for (int i = 0; i < n; i++) {
        const int32_t tok = best(h->last[seq]);
        must(sac_seq_append(e, seq, &tok, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
        step_all(e, hear, h);
    }
}

/* A life of sequences: two prompts in chunks, answers, a fork, cuts, a saved one. */
static struct heard live(sac_engine *e)
{
    static struct heard h;
    sac_error err;
    sac_seq a, b, c;
    uint8_t *bytes;
    size_t n_bytes;
    h = (struct heard){0};
    must(sac_seq_create(e, &a, &err), &err);
    must(sac_seq_create(e, &b, &err), &err);
    must(sac_seq_append(e, a, prompt, N_DEVICE_PROMPT, SAC_ROW_PROMPT, SAC_WANT_ALL, &err), &err);
    must(sac_seq_append(e, b, prompt + 9, 77, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    step_all(e, hear, &h);
    generate(e, a, N_STEP, &h);
    generate(e, b, 3, &h);
    must(sac_seq_fork(e, a, &c, &err), &err);
    memcpy(h.last[c], h.last[a], sizeof h.last[a]);
    generate(e, c, 5, &h);
    must(sac_seq_truncate(e, a, 100, &err), &err); /* into a sealed page */
    must(sac_seq_append(e, a, prompt + 3, 40, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    step_all(e, hear, &h);
    generate(e, c, 30, &h); /* pages that both have had are still there */
    must(sac_seq_to_bytes(e, a, &bytes, &n_bytes, &err), &err);
    sac_seq_remove(e, a);
    must(sac_seq_append(e, b, prompt, 33, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    step_all(e, hear, &h);
    must(sac_seq_from_bytes(e, bytes, n_bytes, &a, &err), &err);
    sac_free(bytes);
    generate(e, a, 8, &h);
    return h;
}

/* Places of the engine with devices. */
static uint32_t count_places(const struct wish *w)
{
    uint32_t n = w->n_layer > 0 && w->n_layer <= w->of->config.n_layer ? 2 : 1;
    for (const char *c = w->devices ? w->devices : ""; *c; c++) n += *c == ',';
    return n;
}

static void check_same(const struct wish *w)
{
    sac_engine *cpu = wished_engine(w, NULL);
    sac_engine *fake = wished_engine(w, "cuda:0");
    const struct heard wanted = live(cpu), got = live(fake);
    const sac_reads *reads = &cpu->stats.reads;
    assert_memory_equal(reads, &fake->stats.reads, sizeof *reads);
    assert_true(!w->prefill || reads->n_cell_read < reads->n_cell);
    assert_int_equal(fake->n_place, count_places(w));
    assert_int_equal(wanted.n, got.n);
    assert_true(wanted.sum == got.sum);
    assert_memory_equal(wanted.last, got.last, sizeof wanted.last);
    sac_engine_free(cpu);
    sac_engine_free(fake);
}

static void a_device_gives_the_same_bits(void **state)
{
    (void)state;
    check_same(&(struct wish){.of = model, .type = SAC_KV_F16});
    check_same(&(struct wish){.of = model, .type = SAC_KV_Q8});
    check_same(&(struct wish){.of = windowed, .type = SAC_KV_BF16});
}

/* A fork's tables are there before its first step, copied on the device. */
static void a_fork_has_its_tables_at_once(void **state)
{
    (void)state;
    sac_error err;
    sac_seq a, b;
    page_id id;
    sac_engine *e = wished_engine(&(struct wish){.of = model, .type = SAC_KV_F16}, "cuda:0");
    must(sac_seq_create(e, &a, &err), &err);
    must(sac_seq_append(e, a, prompt, N_DEVICE_PROMPT, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    struct heard h = {0};
    step_all(e, hear, &h);
    generate(e, a, 2, &h);
    must(sac_seq_fork(e, a, &b, &err), &err);
    const struct pool *p = &e->pool;
    assert_int_equal(p->mirrored[b], N_DEVICE_PROMPT / PAGE_TOK);
    for (uint32_t lane = 0; lane < pool_pages_per_index(p); lane++)
        for (uint32_t i = 0; i < p->mirrored[b]; i++) {
            const uint32_t *there = mirror_of(p, b, 0) + lane * p->max_page + i;
            backend_down(p->part[0].device, &id, there, sizeof id);
            must(backend_wait(p->part[0].device, &err), &err);
            assert_int_equal(id, p->frame_of[pool_table(p, b, 0)[lane * p->max_page + i]]);
        }
    sac_engine_free(e);
}

/* However many layers are the device's: of all but the output, of more than there are, too. */
static void layers_in_part_give_the_same_bits(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++)
        check_same(&(struct wish){
            .of = model, .type = n == 2 ? SAC_KV_F16 : SAC_KV_Q8, .n_layer = n, .n_threads = n});
    for (uint32_t n = 1; n < 7; n += 2)
        check_same(&(struct wish){
            .of = windowed, .type = SAC_KV_BF16, .n_layer = n, .n_threads = 1 + n / 3});
    check_same(&(struct wish){.of = windowed,
                              .type = SAC_KV_F16,
                              .prefill = "trianglemix:sink=4,window=40,last=16,layer=0.5",
                              .n_layer = 4});
}

/* In any order of the devices, with any shares, and behind layers of the CPU. */
struct states {
    float *x; /* [n_row, n_embd] */
    uint32_t n_row, n_embd;
};
static void keep_state(void *user, const sac_row *row)
{
    struct states *s = user;
    memcpy(s->x + (size_t)s->n_row++ * s->n_embd, row->state, s->n_embd * sizeof *s->x);
}

static void read_states(sac_engine *e, struct states *out)
{
    enum { N = 100 };
    int32_t tok[N] = {5, 3, 4, 7};
    uint32_t n = 1;
    sac_seq seq;
    sac_error err;
    *out = (struct states){.n_embd = sac_model_get_info(model).n_embd};
    out->x = calloc(N * (size_t)out->n_embd, sizeof *out->x);
    must(sac_seq_create(e, &seq, &err), &err);
    must(sac_seq_append(e, seq, tok, N, SAC_ROW_PROMPT, SAC_WANT_STATES, &err), &err);
    while (n) must(sac_step(e, keep_state, out, &n, &err), &err);
    sac_engine_free(e);
}

static void states_come_from_the_host_alone(void **state)
{
    (void)state;
    struct states host, part;
    const int32_t tok = 1;
    sac_seq seq;
    sac_error err;
    read_states(new_engine(model, NULL, SAC_KV_F16), &host);
    read_states(wished_engine(&(struct wish){.of = model, .n_layer = 1}, "cuda"), &part);
    assert_memory_equal(host.x, part.x, host.n_row * host.n_embd * sizeof *host.x);
    sac_engine *e = new_engine(model, "cuda", SAC_KV_F16);
    must(sac_seq_create(e, &seq, &err), &err);
    assert_int_equal(sac_seq_append(e, seq, &tok, 1, SAC_ROW_PROMPT, SAC_WANT_STATES, &err),
                     SAC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.msg, "by a CPU only: cuda"));
    sac_engine_free(e);
    free(host.x), free(part.x);
}

static void layers_on_several_give_the_same_bits(void **state)
{
    (void)state;
    setenv("SACCADE_FAKE_DEVICES", "3", 1);
    check_same(&(struct wish){.of = model, .type = SAC_KV_F16, .devices = "cuda:0,cuda:1"});
    check_same(&(struct wish){
        .of = windowed, .type = SAC_KV_Q8, .devices = "cuda:2,cuda,cuda:1", .split = {1, 3, 2}});
    check_same(&(struct wish){
        .of = windowed, .type = SAC_KV_BF16, .devices = "cuda:1,cuda:2", .n_layer = 5});
    check_same(&(struct wish){.of = windowed,
                              .type = SAC_KV_F16,
                              .prefill = "trianglemix:sink=4,window=40,last=16,layer=0.5",
                              .devices = "cuda:1,cuda:0",
                              .n_layer = 6});
    unsetenv("SACCADE_FAKE_DEVICES");
}

/* Behind each other, by shares or free memory, and one layer at least; the last has the output. */
static void layers_are_divided_by_shares(void **state)
{
    (void)state;
    static const struct {
        float split[4];
        const char *mib;
        uint32_t n_host, end[3];
    } wanted[] = {{{0}, "4096", 0, {2, 4, 6}},           {{0}, "1024,4096,1024", 0, {1, 5, 6}},
                  {{1, 1, 4}, "4096", 0, {1, 2, 6}},     {{9, 0.1f, 0.1f}, "4096", 0, {4, 5, 6}},
                  {{0.01f, 0.01f, 1}, "", 0, {1, 2, 6}}, {{3, 1, 1}, "4096", 1, {4, 5, 6}}};
    setenv("SACCADE_FAKE_DEVICES", "3", 1);
    for (size_t k = 0; k < sizeof wanted / sizeof wanted[0]; k++) {
        struct wish w = {.of = windowed, .devices = "cuda:0,cuda:1,cuda:2"};
        memcpy(w.split, wanted[k].split, sizeof w.split);
        w.n_layer = wanted[k].n_host ? 6 - wanted[k].n_host : 0;
        setenv("SACCADE_FAKE_MIB", wanted[k].mib, 1);
        sac_engine *e = wished_engine(&w, "cuda");
        size_t weights = 0;
        const struct place *p = &e->place[wanted[k].n_host];
        for (int i = 0; i < 3; i++) {
            assert_int_equal(p[i].end, wanted[k].end[i]);
            assert_int_equal(p[i].layer0, i ? p[i - 1].end : wanted[k].n_host);
            weights += p[i].copy.block_bytes;
        }
        assert_true(wanted[k].n_host || weights == windowed->weights.block_bytes);
        sac_engine_free(e);
    }
    unsetenv("SACCADE_FAKE_MIB");
    sac_engine *e = wished_engine(
        &(struct wish){.of = windowed, .devices = "cuda:2,cuda:0", .split = {1, 2}}, "cuda");
    assert_string_equal(sac_engine_get_stats(e).isa, "2:cuda:2+4:cuda:0");
    assert_string_equal(sac_engine_get_params(e).device, "cuda:2,cuda:0");
    sac_engine_free(e);
    unsetenv("SACCADE_FAKE_DEVICES");
}

static void plans_by_place_are_the_hosts(void **state)
{
    (void)state;
    check_same(
        &(struct wish){.of = model, .type = SAC_KV_F16, .prefill = "a-shape:sink=4,window=40"});
    check_same(&(struct wish){
        .of = model, .type = SAC_KV_Q8, .prefill = "tri-shape:sink=9,window=40,last=16"});
    check_same(&(struct wish){.of = windowed,
                              .type = SAC_KV_F16,
                              .prefill = "trianglemix:sink=4,window=40,last=16,layer=0.2"});
}

/* Rows of a step that want the largest logits, and one that wants all, step by step in turns. As
 * many more come as tokens are ruled out, and all if these are many. */
static void the_largest_logits_come_alone(void **state)
{
    (void)state;
    static struct heard want, got;
    static uint64_t few[TINY_VOCAB / 64 + 1], many[TINY_VOCAB / 64 + 1];
    for (uint32_t i = 0; i < TINY_VOCAB; i++) {
        few[i / 64] |= (uint64_t)(i % 100 != 3) << i % 64;
        many[i / 64] |= (uint64_t)(i < 5) << i % 64;
    }
    const uint32_t n_few = (TINY_VOCAB - 4) / 100 + 1;
    sac_engine *e[2] = {new_engine(model, "cpu", SAC_KV_F16),
                        new_engine(model, "cuda", SAC_KV_F16)};
    struct heard *h[2] = {&want, &got};
    for (uint32_t k = 0; k < 5; k++) {
        const uint32_t n_top[3] = {k % 3 ? k : 0, k, k < 3 ? 0 : 2};
        const uint32_t n_down[3] = {n_top[0], k == 3 ? k + n_few : k,
                                    k < 4 ? n_top[2] : 0}; /* 0: all */
        for (int d = 0; d < 2; d++) {
            sac_error err;
            for (sac_seq seq = 0, created; seq < 3; seq++) {
                if (k == 0) must(sac_seq_create(e[d], &created, &err), &err);
                must(sac_seq_use_top(e[d], seq, d == 0 ? 0 : n_top[seq], &err), &err);
                engine_use_mask(e[d], seq,
                                seq == 1 && k == 3   ? few
                                : seq == 2 && k == 4 ? many
                                                     : NULL);
                must(sac_seq_append(e[d], seq, prompt + seq * 7 + k, 1 + (k == 0) * seq,
                                    SAC_ROW_DECODE, SAC_WANT_LAST, &err),
                     &err);
            }
            step_all(e[d], hear, h[d]);
        }
        for (sac_seq seq = 0; seq < 3; seq++) {
            uint32_t n_more = 0;
            for (int32_t i = 0; i < TINY_VOCAB; i++) {
                uint32_t n_before = 0;
                const float *all = want.last[seq];
                for (int32_t j = 0; j < TINY_VOCAB; j++)
                    n_before += all[j] > all[i] || (all[j] == all[i] && j < i);
                const bool comes = n_down[seq] == 0 || n_before < n_down[seq];
                assert_true(got.last[seq][i] == (comes ? all[i] : -INFINITY));
                n_more += comes;
            }
            assert_int_equal(n_more, n_down[seq] ? n_down[seq] : TINY_VOCAB);
            assert_int_equal(got.n_top[seq], n_down[seq]);
        }
    }
    sac_engine_free(e[0]);
    sac_engine_free(e[1]);
}

static void a_saved_sequence_goes_from_one_to_the_other(void **state)
{
    (void)state;
    sac_error err;
    static const char *const device[] = {"cpu", "cuda", "cuda:2,cuda:1", "cuda:0,cuda:2,cuda:1"};
    setenv("SACCADE_FAKE_DEVICES", "3", 1);
    for (int way = 0; way < 16; way++) {
        sac_engine *from = new_engine(windowed, device[way % 4], SAC_KV_Q8);
        sac_engine *to = new_engine(windowed, device[way / 4], SAC_KV_Q8);
        static struct heard h, g;
        sac_seq a, b;
        uint8_t *bytes;
        size_t n;
        must(sac_seq_create(from, &a, &err), &err);
        must(sac_seq_append(from, a, prompt, 150, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
        step_all(from, hear, &h);
        must(sac_seq_to_bytes(from, a, &bytes, &n, &err), &err);
        must(sac_seq_from_bytes(to, bytes, n, &b, &err), &err);
        sac_free(bytes);
        memcpy(g.last[b], h.last[a], sizeof h.last[a]);
        generate(from, a, 12, &h);
        generate(to, b, 12, &g);
        assert_memory_equal(h.last[a], g.last[b], sizeof h.last[a]);
        sac_engine_free(from);
        sac_engine_free(to);
    }
    unsetenv("SACCADE_FAKE_DEVICES");
}

/* Whichever it is of several. */
static void a_failure_of_one_of_them_ends_the_step(void **state)
{
    (void)state;
    static struct heard h;
    setenv("SACCADE_FAKE_DEVICES", "3", 1);
    for (int broken = 0; broken < 2; broken++) {
        sac_engine *e =
            wished_engine(&(struct wish){.of = model, .devices = "cuda:0,cuda:1"}, "cuda");
        sac_error err;
        sac_seq a;
        uint32_t n;
        h = (struct heard){0};
        must(sac_seq_create(e, &a, &err), &err);
        must(sac_seq_append(e, a, prompt, 10, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
        setenv("SACCADE_FAKE_BROKEN", "2", 1);
        setenv("SACCADE_FAKE_BROKEN_DEVICE", broken ? "1" : "0", 1);
        assert_int_equal(sac_step(e, hear, &h, &n, &err), SAC_ERR_IO);
        assert_non_null(strstr(err.msg, broken ? "GPU 1: it is broken" : "GPU 0: it is broken"));
        unsetenv("SACCADE_FAKE_BROKEN");
        unsetenv("SACCADE_FAKE_BROKEN_DEVICE");
        assert_int_equal(h.n, 0);
        sac_engine_free(e);
    }
    unsetenv("SACCADE_FAKE_DEVICES");
}

/* The same of those that have shares of each layer; the next step hears nothing of it. */
static void a_failure_of_a_share_ends_the_step(void **state)
{
    (void)state;
    static struct heard h;
    setenv("SACCADE_FAKE_DEVICES", "2", 1);
    for (int broken = 0; broken < 2; broken++) {
        sac_engine_params p = device_params("cuda:0,cuda:1", SAC_KV_Q8);
        sac_engine *e = NULL;
        sac_error err;
        sac_seq a;
        uint32_t n;
        h = (struct heard){0};
        p.device_rows = true;
        must(sac_engine_create(&e, model, &p, &err), &err);
        setenv("SACCADE_FAKE_BROKEN", "2", 1);
        setenv("SACCADE_FAKE_BROKEN_DEVICE", broken ? "1" : "0", 1);
        for (int step = 0; step < 2; step++) {
            must(sac_seq_create(e, &a, &err), &err);
            must(sac_seq_append(e, a, prompt, 10, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
            const sac_status status = sac_step(e, hear, &h, &n, &err);
            assert_int_equal(status, step == 0 ? SAC_ERR_IO : SAC_OK);
            if (step == 0)
                assert_non_null(strstr(err.msg, broken ? "GPU 1: it is broken" : "GPU 0: it is"));
            assert_int_equal(h.n, step);
            unsetenv("SACCADE_FAKE_BROKEN");
            unsetenv("SACCADE_FAKE_BROKEN_DEVICE");
        }
        sac_engine_free(e);
    }
    unsetenv("SACCADE_FAKE_DEVICES");
}

/* The first is told, and no step behind it hears of the other. */
static void failures_of_all_end_one_step(void **state)
{
    (void)state;
    static struct heard h;
    setenv("SACCADE_FAKE_DEVICES", "2", 1);
    sac_engine *e = wished_engine(&(struct wish){.of = model, .devices = "cuda:0,cuda:1"}, "cuda");
    sac_error err;
    sac_seq a;
    uint32_t n;
    h = (struct heard){0};
    setenv("SACCADE_FAKE_BROKEN", "2", 1);
    setenv("SACCADE_FAKE_BROKEN_DEVICE", "all", 1);
    for (int step = 0; step < 2; step++) {
        must(sac_seq_create(e, &a, &err), &err);
        must(sac_seq_append(e, a, prompt, 10, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
        const sac_status status = sac_step(e, hear, &h, &n, &err);
        assert_int_equal(status, step == 0 ? SAC_ERR_IO : SAC_OK);
        if (step == 0) assert_non_null(strstr(err.msg, "GPU 0: it is broken"));
        sac_seq_remove(e, a);
    }
    unsetenv("SACCADE_FAKE_BROKEN");
    unsetenv("SACCADE_FAKE_BROKEN_DEVICE");
    unsetenv("SACCADE_FAKE_DEVICES");
    sac_engine_free(e);
}

/* The GPU has the weights and pages of its own layers alone. */
static void a_part_takes_less_memory(void **state)
{
    (void)state;
    size_t weights[3], block[3];
    for (uint32_t n = 1; n <= 3; n++) {
        sac_engine *e = wished_engine(&(struct wish){.of = windowed, .n_layer = 2 * n}, "cuda");
        assert_int_equal(e->n_place, 2);
        weights[n - 1] = e->place[1].copy.block_bytes;
        block[n - 1] = e->place[1].block_bytes;
        sac_engine_free(e);
    }
    assert_true(weights[1] == 2 * weights[0] && weights[2] == 3 * weights[0]);
    assert_true(block[0] < block[1] && block[1] - block[0] == block[2] - block[1]);
    assert_true(weights[2] < windowed->weights.block_bytes);
}

/* As many of the first layers as the share has room for are there in f16, too, or none. */
static void what_memory_is_left_has_matrices_in_f16(void **state)
{
    (void)state;
    sac_error err;
    sac_engine_params p = device_params("cuda", SAC_KV_Q8);
    sac_engine *e = new_engine(windowed, "cuda", SAC_KV_Q8);
    const struct place *all = &e->place[0];
    const uint32_t n_layer = windowed->config.n_layer;
    const double free = (double)all->backend.bytes_free;
    const size_t plain = all->plain_bytes, other = all->copy.block_bytes + all->block_bytes;
    const struct layer_weights *l = &e->weights->layer[n_layer - 1];
    assert_ptr_equal(l->up.plain, (uint8_t *)l->gate.plain + weight_plain_bytes(&l->gate));
    assert_ptr_equal((uint8_t *)l->down.plain + weight_plain_bytes(&l->down),
                     (uint8_t *)all->plain + plain);
    sac_engine_free(e);
    for (uint32_t n = 0; n < n_layer; n += 2) {
        p.device_share = (float)(((double)other + (double)plain * (n + 0.5) / n_layer) / free);
        const uint32_t before = count_of(FAKE_CUDA, "fake_n_unpacked");
        must(sac_engine_create(&e, windowed, &p, &err), &err);
        assert_int_equal(count_of(FAKE_CUDA, "fake_n_unpacked") - before, 7 * n);
        assert_int_equal(e->place[0].plain_bytes, plain / n_layer * n);
        for (uint32_t i = 0; i < n_layer; i++)
            assert_true((e->weights->layer[i].wq.plain != NULL) == (i < n));
        sac_engine_free(e);
    }
}

static void a_failure_ends_the_step(void **state)
{
    (void)state;
    static struct heard h;
    sac_engine *e = new_engine(model, "cuda", SAC_KV_F16);
    sac_error err;
    sac_seq a;
    uint32_t n;
    must(sac_seq_create(e, &a, &err), &err);
    must(sac_seq_append(e, a, prompt, 10, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    setenv("SACCADE_FAKE_BROKEN", "2", 1); /* the first was that of the weights */
    assert_int_equal(sac_step(e, hear, &h, &n, &err), SAC_ERR_IO);
    unsetenv("SACCADE_FAKE_BROKEN");
    assert_non_null(strstr(err.msg, "it is broken"));
    sac_engine_free(e);
}

/* The rows' way back is waited for before anything is made of them. */
static void a_failure_in_part_ends_the_step(void **state)
{
    (void)state;
    static struct heard h;
    sac_engine *e = wished_engine(&(struct wish){.of = model, .n_layer = 1}, "cuda");
    sac_error err;
    sac_seq a;
    uint32_t n;
    h = (struct heard){0};
    must(sac_seq_create(e, &a, &err), &err);
    must(sac_seq_append(e, a, prompt, 10, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    setenv("SACCADE_FAKE_BROKEN", "2", 1);
    assert_int_equal(sac_step(e, hear, &h, &n, &err), SAC_ERR_IO);
    unsetenv("SACCADE_FAKE_BROKEN");
    assert_int_equal(h.n, 0);
    sac_engine_free(e);
}

/* The host goes on to describe chunks while the device computes, up to the one that is asked for:
 * a failure is told there. */
static void chunks_of_a_prompt_are_not_waited_for(void **state)
{
    (void)state;
    static struct heard h;
    sac_engine *e = new_engine(model, "cuda", SAC_KV_F16);
    const uint32_t n_batch = sac_engine_get_params(e).n_batch;
    sac_error err;
    sac_seq a;
    uint32_t n, n_done = 0;
    must(sac_seq_create(e, &a, &err), &err);
    must(sac_seq_append(e, a, prompt, N_DEVICE_PROMPT, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    setenv("SACCADE_FAKE_BROKEN", "2", 1);
    while (N_DEVICE_PROMPT - n_done > n_batch) {
        must(sac_step(e, hear, &h, &n, &err), &err);
        n_done += n;
    }
    assert_true(n_done > n_batch);
    assert_int_equal(sac_step(e, hear, &h, &n, &err), SAC_ERR_IO);
    unsetenv("SACCADE_FAKE_BROKEN");
    sac_engine_free(e);
}

/* Choices of a chunk cost a GPU the same for few rows. */
static void chunks_of_plans_are_long(void **state)
{
    static const char *const spec[] = {"loopserve", "minference", "flexprefill", "xattention"};
    (void)state;
    for (uint32_t i = 0; i < 2 * sizeof spec / sizeof spec[0]; i++) {
        sac_engine *e = NULL;
        sac_error err;
        sac_engine_params p = device_params(i % 2 ? "cuda" : "cpu", SAC_KV_F16);
        p.n_batch = 0;
        p.prefill = &spec[i / 2];
        p.n_prefill = 1;
        must(sac_engine_create(&e, model, &p, &err), &err);
        assert_int_equal(sac_engine_get_params(e).n_batch, i % 2 ? 2048 : 512);
        sac_engine_free(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_gives_the_same_bits),
        cmocka_unit_test(a_fork_has_its_tables_at_once),
        cmocka_unit_test(layers_in_part_give_the_same_bits),
        cmocka_unit_test(states_come_from_the_host_alone),
        cmocka_unit_test(layers_on_several_give_the_same_bits),
        cmocka_unit_test(layers_are_divided_by_shares),
        cmocka_unit_test(plans_by_place_are_the_hosts),
        cmocka_unit_test(the_largest_logits_come_alone),
        cmocka_unit_test(a_saved_sequence_goes_from_one_to_the_other),
        cmocka_unit_test(a_failure_of_one_of_them_ends_the_step),
        cmocka_unit_test(a_failure_of_a_share_ends_the_step),
        cmocka_unit_test(failures_of_all_end_one_step),
        cmocka_unit_test(a_part_takes_less_memory),
        cmocka_unit_test(what_memory_is_left_has_matrices_in_f16),
        cmocka_unit_test(a_failure_ends_the_step),
        cmocka_unit_test(a_failure_in_part_ends_the_step),
        cmocka_unit_test(chunks_of_a_prompt_are_not_waited_for),
        cmocka_unit_test(chunks_of_plans_are_long),
    };
    return cmocka_run_group_tests(tests, open_models, free_pair);
}
