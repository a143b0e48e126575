/* test_record.c: what the recorder says of attention, on a real small model (smollm2-135m): masses
 * against the attention op's own sums, errors against its known roundings, bytes against counts by
 * hand; and that recording changes nothing. */
#include "base/mem.h"
#include "engine/engine.h"
#include "model_open.h"
#include "must.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define N_PROMPT 101u /* three pages and five tokens */
#define N_HEAD   9u
#define N_KV     3u
#define N_LAYER  30u
#define DIM      64u
#define PAGES    24u

static sac_model *model;
static uint32_t n_vocab;
static int32_t prompt[PAGES * PAGE_TOK];

static int load_model(void **state)
{
    (void)state;
    model = model_open();
    if (!model) return -1;
    const sac_model_info info = sac_model_get_info(model);
    n_vocab = info.n_vocab;
    /* Words of all sorts: neighbours that differ give attention something to choose. */
    for (uint32_t i = 0; i < PAGES * PAGE_TOK; i++)
        prompt[i] = (int32_t)(i * 7919u % 40000u + 500u);
    return info.n_layer == N_LAYER && info.n_kv_head == N_KV && info.n_head == N_HEAD ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static sac_engine *new_engine(sac_engine_params p)
{
    sac_engine *e;
    sac_error err;
    p.n_ctx = PAGES * PAGE_TOK;
    p.n_seq_max = 2;
    if (p.n_batch == 0) p.n_batch = 512;
    p.n_threads = 1; /* tests run side by side */
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

/* ---- What a run records ---- */

struct kept {
    sac_read_record r; /* without its pointers */
    uint32_t page[PAGES];
    float mass[PAGES];
    float tok_sum[PAGES]; /* of tok_mass, if it is there */
    bool has_tok;
};

struct kept_list {
    struct kept item[4096];
    size_t n;
};

static void keep(void *user, const sac_read_record *r)
{
    struct kept_list *list = user;
    struct kept *k = &list->item[list->n++];
    assert_true(list->n <= sizeof list->item / sizeof list->item[0] && r->n_page <= PAGES);
    k->r = *r;
    memcpy(k->page, r->page, r->n_page_read * sizeof *k->page);
    memcpy(k->mass, r->page_mass, r->n_page * sizeof *k->mass);
    memset(k->tok_sum, 0, sizeof k->tok_sum);
    k->has_tok = r->tok_mass != NULL;
    for (uint32_t t = 0; k->has_tok && t <= r->pos; t++) k->tok_sum[t / PAGE_TOK] += r->tok_mass[t];
}

static void keep_logits(void *user, const sac_row *row)
{
    memcpy(user, row->logits, n_vocab * sizeof(float));
}

/* Appends and computes `n` tokens of the prompt from the sequence's end. */
static void feed(sac_engine *e, sac_seq s, uint32_t n, sac_row_kind kind, float *logits)
{
    sac_error err;
    uint32_t done = 1;
    const uint32_t at = sac_seq_length(e, s, NULL);
    must(sac_seq_append(e, s, prompt + at, n, kind, logits ? SAC_WANT_LAST : SAC_WANT_NONE, &err),
         &err);
    while (done) must(sac_step(e, logits ? keep_logits : NULL, logits, &done, &err), &err);
}

/* A sequence with `n` tokens, none of them recorded. */
static sac_seq start(sac_engine *e, uint32_t n)
{
    sac_seq s;
    sac_error err;
    must(sac_seq_create(e, &s, &err), &err);
    feed(e, s, n, SAC_ROW_PROMPT, NULL);
    return s;
}

static void record_into(sac_engine *e, struct kept_list *list)
{
    sac_error err;
    list->n = 0;
    must(sac_engine_set_recorder(e, keep, list, &err), &err);
}

/* ---- Tests ---- */

static void full_attention_reads_all_of_the_mass(void **state)
{
    (void)state;
    struct kept_list *list = malloc(sizeof *list);
    const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    for (size_t c = 0; c < sizeof types / sizeof types[0]; c++) {
        double worst[2] = {0};
        sac_engine *e =
            new_engine((sac_engine_params){.record = true, .type_k = types[c], .type_v = types[c]});
        /* Kernels compute in f32, but for AMX and AVX-512, which multiply 16-bit numbers. */
        const char *isa = sac_engine_get_stats(e).isa;
        const bool halves = strcmp(isa, "amx") == 0 || strcmp(isa, "avx512") == 0;
        const double most = halves ? 5e-2 : 1e-5;
        const sac_seq s = start(e, 70);
        record_into(e, list);
        feed(e, s, 80, SAC_ROW_PROMPT, NULL); /* 70 to 149: three tiles */
        feed(e, s, 3, SAC_ROW_DECODE, NULL);
        assert_int_equal(list->n, N_LAYER * N_KV * (3 + 3));
        for (size_t i = 0; i < list->n; i++) {
            const struct kept *k = &list->item[i];
            double sum = 0;
            for (uint32_t p = 0; p < k->r.n_page; p++) sum += (double)k->mass[p];
            assert_true(fabs((double)k->r.mass - 1) < 1e-5 && fabs(sum - 1) < 1e-5);
            assert_int_equal(k->r.n_page, k->r.pos / PAGE_TOK + 1);
            assert_int_equal(k->r.n_page_read, k->r.n_page);
            for (uint32_t p = 0; p < k->r.n_page; p++) assert_int_equal(k->page[p], p);
            assert_int_equal(k->r.side_bytes, 0);
            assert_int_equal(k->has_tok, k->r.n_row == 1);
            for (uint32_t p = 0; p < k->r.n_page && k->has_tok; p++)
                assert_true(fabs((double)(k->tok_sum[p] - k->mass[p])) < 1e-5);
            double *w = &worst[k->r.kind == SAC_ROW_DECODE];
            *w = (double)k->r.out_err > *w ? (double)k->r.out_err : *w;
        }
        print_message("type %d: largest relative error of the output, prompt %.2g, decode %.2g\n",
                      (int)types[c], worst[0], worst[1]);
        for (int kind = 0; kind < 2; kind++) assert_true(worst[kind] > 0 && worst[kind] < most);
        sac_engine_free(e);
    }
    free(list);
}

static void records_come_in_order(void **state)
{
    (void)state;
    struct kept_list *list = malloc(sizeof *list);
    sac_engine *e = new_engine((sac_engine_params){.record = true, .n_batch = 64});
    const sac_seq s = start(e, 40), other = start(e, 10);
    sac_error err;
    record_into(e, list);
    /* One step: a decode row of the first, rows 10 to 72 of the other in three tiles. */
    must(sac_seq_append(e, other, prompt + 10, 63, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    must(sac_seq_append(e, s, prompt + 40, 1, SAC_ROW_DECODE, SAC_WANT_NONE, &err), &err);
    must(sac_step(e, NULL, NULL, NULL, &err), &err);
    const struct {
        sac_seq seq;
        uint32_t pos, n_row;
    } want[] = {{s, 40, 1}, {other, 10, 22}, {other, 32, 32}, {other, 64, 9}};
    assert_int_equal(list->n, N_LAYER * N_KV * 4);
    for (uint32_t i = 0; i < list->n; i++) {
        const sac_read_record *r = &list->item[i].r;
        const uint32_t tile = i / N_KV % 4;
        assert_int_equal(r->layer, i / N_KV / 4);
        assert_int_equal(r->kv_head, i % N_KV);
        assert_int_equal(r->seq, want[tile].seq);
        assert_int_equal(r->pos, want[tile].pos);
        assert_int_equal(r->n_row, want[tile].n_row);
        assert_int_equal(r->kind, tile == 0 ? SAC_ROW_DECODE : SAC_ROW_PROMPT);
        assert_int_equal(r->n_query, N_HEAD / N_KV);
    }
    sac_engine_free(e);
    free(list);
}

/* Token 100 of a sequence: pages 0 to 2 are sealed, five tokens are in the own page. */
static void bytes_are_those_counted_by_hand(void **state)
{
    (void)state;
    struct kept_list *list = malloc(sizeof *list);
    const struct {
        const char *decode;
        sac_kv_type type;
        uint64_t k, v, prompt_k, prompt_v;
    } cases[] = {
        /* 101 tokens of 64 channels of 2 bytes; the prompt's first tile: 32 tokens. */
        {"full", SAC_KV_F16, 101 * 64 * 2, 101 * 64 * 2, 32 * 64 * 2, 32 * 64 * 2},
        /* Keys of two pages in a form of the method's own: 39 channels of 2 bytes. */
        {"think", SAC_KV_F16, 64 * 39 * 2 + 37 * 64 * 2, 101 * 64 * 2, 32 * 64 * 2, 32 * 64 * 2},
        /* Three pages of 32 tokens of 64 bytes; K with 64 minima and 64 steps of 2 bytes each, V
         * with 2 scales of 2 bytes for each token; five tokens of 2-byte channels. */
        {"full", SAC_KV_Q8, 3 * (32 * 64 + 64 * 2 * 2) + 5 * 64 * 2,
         3 * 32 * (64 + 2 * 2) + 5 * 64 * 2, 32 * 64 * 2, 32 * 64 * 2},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        sac_engine *e = new_engine((sac_engine_params){.record = true,
                                                       .type_k = cases[c].type,
                                                       .type_v = cases[c].type,
                                                       .sparse_min_ctx = 1,
                                                       .decode = &cases[c].decode,
                                                       .n_decode = 1});
        sac_seq s;
        sac_error err;
        must(sac_seq_create(e, &s, &err), &err);
        record_into(e, list);
        feed(e, s, N_PROMPT - 1, SAC_ROW_PROMPT, NULL);
        assert_int_equal(list->item[0].r.k_bytes, cases[c].prompt_k);
        assert_int_equal(list->item[0].r.v_bytes, cases[c].prompt_v);
        list->n = 0;
        feed(e, s, 1, SAC_ROW_DECODE, NULL);
        assert_int_equal(list->n, N_LAYER * N_KV);
        for (size_t i = 0; i < list->n; i++) {
            assert_int_equal(list->item[i].r.k_bytes, cases[c].k);
            assert_int_equal(list->item[i].r.v_bytes, cases[c].v);
        }
        sac_engine_free(e);
    }
    free(list);
}

/* log of the sum of exp(score) of the last layer's decode row over the pages in `select` and the
 * own one, or over all, by the attention op. */
static void kernel_lse(sac_engine *e, const uint32_t *select, const uint32_t *select_ptr,
                       float lse[N_HEAD])
{
    struct attn_run run = e->attend.run[0];
    const struct config *c = &e->model->config;
    float out[N_HEAD * DIM];
    run.select = select;
    run.select_ptr = select_ptr;
    e->ops.attn(e->workers, &(struct op_attn){.geom = &e->pool.geom,
                                              .frames = pool_frames(&e->pool, 0),
                                              .n_head = c->n_head,
                                              .q = e->scratch.qkv,
                                              .q_stride = (N_HEAD + 2 * N_KV) * DIM,
                                              .out = out,
                                              .out_stride = N_HEAD * DIM,
                                              .lse = lse,
                                              .scale = c->attn_scale,
                                              .n_run = 1,
                                              .run = &run,
                                              .scratch = e->scratch.attn_ops,
                                              .scratch_bytes = e->scratch.attn_bytes});
}

static const float *sort_by; /* of the comparison below; one thread */

static int heavier_first(const void *a, const void *b)
{
    const float x = sort_by[*(const uint32_t *)a], y = sort_by[*(const uint32_t *)b];
    return (x < y) - (x > y);
}

static int rising(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The k heaviest of the pages before the own one, rising. */
static void top_pages(const struct kept *k, uint32_t n, uint32_t *out)
{
    uint32_t all[PAGES];
    for (uint32_t p = 0; p + 1 < k->r.n_page; p++) all[p] = p;
    sort_by = k->mass;
    qsort(all, k->r.n_page - 1, sizeof *all, heavier_first);
    memcpy(out, all, n * sizeof *out);
    qsort(out, n, sizeof *out, rising);
}

/* An engine of plain C, which no kernel is more exact than, with a sequence that a faster one has
 * read. */
static sac_engine *new_plain_engine(sac_seq *s, uint32_t n)
{
    const char *isa = getenv("SAC_CPU");
    sac_engine *fast = new_engine((sac_engine_params){0});
    const sac_seq from = start(fast, n);
    uint8_t *bytes;
    size_t n_byte;
    sac_error err;
    setenv("SAC_CPU", "ref", 1);
    sac_engine *e = new_engine((sac_engine_params){.record = true});
    if (isa)
        setenv("SAC_CPU", isa, 1);
    else
        unsetenv("SAC_CPU");
    must(sac_seq_to_bytes(fast, from, &bytes, &n_byte, &err), &err);
    must(sac_seq_from_bytes(e, bytes, n_byte, s, &err), &err);
    sac_free(bytes);
    sac_engine_free(fast);
    return e;
}

/* The op sums in its own order and precision and knows nothing of the recorder: the share of its
 * sum that the heaviest pages give must be the mass that the recorder gave them, and rise with
 * them. */
static void masses_are_those_of_the_kernel(void **state)
{
    (void)state;
    struct kept_list *list = malloc(sizeof *list);
    sac_seq s;
    sac_engine *e = new_plain_engine(&s, 401);
    float all[N_HEAD], part[N_HEAD];
    record_into(e, list);
    feed(e, s, 1, SAC_ROW_DECODE, NULL); /* position 401, in page 12 */
    const struct kept *last = &list->item[(N_LAYER - 1) * N_KV];
    assert_int_equal(last[0].r.n_page, 13);
    kernel_lse(e, NULL, NULL, all);
    double before[N_KV] = {0};
    for (uint32_t n = 0; n <= 12; n++) {
        uint32_t select[N_KV * PAGES], ptr[N_KV + 1] = {0};
        for (uint32_t h = 0; h < N_KV; h++) {
            top_pages(&last[h], n, select + h * n);
            ptr[h + 1] = ptr[h] + n;
        }
        kernel_lse(e, select, ptr, part);
        for (uint32_t h = 0; h < N_KV; h++) {
            double mass = 0, want = (double)last[h].mass[12];
            for (uint32_t i = ptr[h]; i < ptr[h + 1]; i++) want += (double)last[h].mass[select[i]];
            for (uint32_t q = 3 * h; q < 3 * h + 3; q++)
                mass += exp((double)part[q] - (double)all[q]) / 3;
            assert_true(fabs(mass - want) < 1e-5);
            assert_true(mass > before[h]);
            before[h] = mass;
        }
    }
    for (uint32_t h = 0; h < N_KV; h++) assert_true(fabs(before[h] - 1) < 1e-5);
    sac_engine_free(e);
    free(list);
}

static void recording_does_not_change_the_logits(void **state)
{
    (void)state;
    struct kept_list *list = malloc(sizeof *list);
    float *plain = malloc(n_vocab * sizeof(float)), *seen = malloc(n_vocab * sizeof(float));
    for (int type = SAC_KV_F16; type <= SAC_KV_Q8; type += 2) {
        const sac_engine_params p = {.type_k = (sac_kv_type)type, .type_v = (sac_kv_type)type};
        sac_engine_params with = p;
        with.record = true;
        sac_engine *a = new_engine(p), *b = new_engine(with);
        const sac_seq s = start(a, 60), t = start(b, 60);
        record_into(b, list);
        feed(a, s, 40, SAC_ROW_PROMPT, plain);
        feed(b, t, 40, SAC_ROW_PROMPT, seen);
        assert_memory_equal(plain, seen, n_vocab * sizeof(float));
        feed(a, s, 9, SAC_ROW_DECODE, plain);
        feed(b, t, 9, SAC_ROW_DECODE, seen);
        assert_memory_equal(plain, seen, n_vocab * sizeof(float));
        assert_true(list->n > 0);
        assert_int_equal(sac_engine_get_stats(a).reads.kv_bytes_read,
                         sac_engine_get_stats(b).reads.kv_bytes_read);
        sac_engine_free(a);
        sac_engine_free(b);
    }
    free(plain);
    free(seen);
    free(list);
}

/* What tokens stand for by their weights is not left out: the error that leaving out has made is
 * all of the error, but for roundings, and for the norms that the two are relative to, the exact
 * output's and that of what was read. Taken for bare tokens they would tell 0.3 less or more. */
static void weights_are_part_of_what_was_read(void **state)
{
    (void)state;
    struct kept_list *list = malloc(sizeof *list);
    const char *const prefill[] = {"auto:mass=0.9,last=0,recent=0,most=1"};
    sac_engine *e =
        new_engine((sac_engine_params){.record = true, .prefill = prefill, .n_prefill = 1});
    double worst = 0, left = 0;
    const sac_seq s = start(e, OP_SAMPLE_TILE);
    record_into(e, list);
    feed(e, s, 256, SAC_ROW_PROMPT, NULL);
    for (size_t i = 0; i < list->n; i++) {
        const sac_read_record *r = &list->item[i].r;
        worst = fmax(worst, fabs((double)r->out_err - (double)r->out_left));
        left = fmax(left, (double)r->out_left);
    }
    print_message("left out: an error of at most %.3f, told within %.1e\n", left, worst);
    assert_true(left > 0.2 && worst < 0.1);
    sac_engine_free(e);
    free(list);
}

static void memory_is_planned(void **state)
{
    (void)state;
    struct kept_list *list = malloc(sizeof *list);
    sac_error err;
    sac_engine *plain = new_engine((sac_engine_params){0});
    sac_engine *e = new_engine((sac_engine_params){.record = true});
    assert_int_equal(sac_engine_set_recorder(plain, keep, list, &err), SAC_ERR_ARG);
    must(sac_engine_set_recorder(plain, NULL, NULL, &err), &err);
    assert_true(sac_engine_get_stats(e).scratch_bytes > sac_engine_get_stats(plain).scratch_bytes);
    const sac_seq s = start(e, 50);
    record_into(e, list);
    const uint64_t before = mem_count();
    mem_fail_after(1);
    feed(e, s, 50, SAC_ROW_PROMPT, NULL);
    feed(e, s, 1, SAC_ROW_DECODE, NULL);
    mem_fail_after(0);
    assert_int_equal(mem_count(), before);
    const size_t n = list->n;
    assert_true(n > 0);
    must(sac_engine_set_recorder(e, NULL, NULL, &err), &err);
    feed(e, s, 1, SAC_ROW_DECODE, NULL);
    assert_int_equal(list->n, n);
    sac_engine_free(plain);
    sac_engine_free(e);
    free(list);
}

/* Records and the engine's counters see the same rows from two sides. */
static void tokens_are_counted_in_lists_of_tokens(void **state)
{
    (void)state;
    struct kept_list *list = malloc(sizeof *list);
    const char *const methods[] = {"full", "quest:budget=64", "h2o:budget=40"};
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        sac_engine *e =
            new_engine((sac_engine_params){.record = true, .decode = &methods[m], .n_decode = 1});
        const sac_seq s = start(e, 300);
        const sac_reads before = sac_engine_get_stats(e).reads;
        uint64_t n_seen = 0, n_read = 0;
        record_into(e, list);
        feed(e, s, 3, SAC_ROW_DECODE, NULL);
        const sac_reads after = sac_engine_get_stats(e).reads;
        for (size_t i = 0; i < list->n; i++) {
            n_seen += list->item[i].r.n_tok_seen;
            n_read += list->item[i].r.n_tok_read;
        }
        assert_int_equal(n_seen, after.n_tok_seen - before.n_tok_seen);
        assert_int_equal(n_read, after.n_tok_read - before.n_tok_read);
        assert_true(m == 0 ? n_read == n_seen : n_read < n_seen);
        sac_engine_free(e);
    }
    free(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_attention_reads_all_of_the_mass),
        cmocka_unit_test(records_come_in_order),
        cmocka_unit_test(bytes_are_those_counted_by_hand),
        cmocka_unit_test(masses_are_those_of_the_kernel),
        cmocka_unit_test(recording_does_not_change_the_logits),
        cmocka_unit_test(weights_are_part_of_what_was_read),
        cmocka_unit_test(tokens_are_counted_in_lists_of_tokens),
        cmocka_unit_test(memory_is_planned),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
