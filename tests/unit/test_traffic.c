/* test_traffic.c: bytes of decode rows as the engine counts them, against a walk over the places
 * that a page's tokens have by the description in ops/page.h. A single token counts the lines that
 * its key and its value touch, and no line counts twice in a page. */
#include "eval/traffic.h"
#include "must.h"
#include "ops/page_lines.h"
#include "tiny_model.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { LINE = 64, N_PROMPT = 300, N_ROW = 5 };

/* A page as an array of lines, each touched or not. */
struct touched {
    bool line[2 * PAGE_TOK * 512 * 4 / LINE];
    size_t n;
};

static void touch(struct touched *t, size_t at, size_t n)
{
    for (size_t i = at / LINE; i < (at + n + LINE - 1) / LINE; i++) {
        t->n += !t->line[i];
        t->line[i] = true;
    }
}

/* One part of a page, a row for each token; returns where the next begins. */
static size_t touch_rows(struct touched *t, size_t at, size_t row, uint32_t mask)
{
    for (uint32_t i = 0; i < PAGE_TOK; i++)
        if (mask >> i & 1) touch(t, at + i * row, row);
    return (at + PAGE_TOK * row + LINE - 1) / LINE * LINE;
}

static size_t key_lines(uint32_t d, bool q8, uint32_t mask)
{
    struct touched t = {.n = 0};
    size_t at = 0;
    if (mask == 0) return 0;
    if (!q8) {
        touch_rows(&t, 0, 2 * d, mask);
        return t.n;
    }
    for (int part = 0; part < 2; part++) { /* min and step of the channels */
        touch(&t, at, 2 * d);
        at += 2 * d;
    }
    at = touch_rows(&t, at, d / 4, mask);
    touch_rows(&t, at, d * 3 / 4, mask);
    return t.n;
}

static size_t value_lines(uint32_t d, bool q8, uint32_t mask)
{
    struct touched t = {.n = 0};
    size_t at = 0;
    if (q8) at = touch_rows(&t, at, d / 32 * 2, mask);
    touch_rows(&t, at, q8 ? d : 2 * d, mask);
    return t.n;
}

static void tokens_of_a_page_count_their_lines(void **state)
{
    (void)state;
    const uint32_t dim[] = {32, 64, 96, 128, 256, 512};
    const sac_kv_type type[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    uint32_t mask = 1;
    for (size_t i = 0; i < sizeof dim / sizeof dim[0]; i++)
        for (size_t k = 0; k < sizeof type / sizeof type[0]; k++) {
            const bool q8 = type[k] == SAC_KV_Q8;
            struct page_geom g = {.n_layer = 1,
                                  .n_kv_head = 1,
                                  .head_dim = dim[i],
                                  .type_k = type[k],
                                  .type_v = type[k]};
            struct page_lines l;
            page_geom_init(&g);
            page_lines_init(&l, &g);
            assert_int_equal(page_lines_keys(&l, 0) + page_lines_values(&l, 0), 0);
            assert_int_equal(page_lines_keys(&l, UINT32_MAX), page_all_keys(&g));
            assert_int_equal(page_lines_values(&l, UINT32_MAX), page_all_values(&g));
            assert_int_equal(page_all_keys(&g), LINE * key_lines(dim[i], q8, UINT32_MAX));
            for (int round = 0; round < 500; round++) {
                mask = mask * 1664525u + 1013904223u;
                /* Few tokens as well as many. */
                const uint32_t few = round % 3 ? mask & mask >> 7 & mask << 5 : 1u << mask % 32;
                assert_int_equal(page_lines_keys(&l, few), LINE * key_lines(dim[i], q8, few));
                assert_int_equal(page_lines_values(&l, few), LINE * value_lines(dim[i], q8, few));
            }
        }
}

/* ---- An engine ---- */

static void ignore_row(void *user, const sac_row *row)
{
    (void)user;
    (void)row;
}

static void feed(sac_engine *e, sac_seq s, uint32_t n, sac_row_kind kind)
{
    int32_t tok[N_PROMPT];
    uint32_t done = 1;
    sac_error err;
    for (uint32_t i = 0; i < n; i++) tok[i] = (int32_t)(i * 37 % 200 + 1);
    must(sac_seq_append(e, s, tok, n, kind, SAC_WANT_ALL, &err), &err);
    while (done) must(sac_step(e, ignore_row, NULL, &done, &err), &err);
}

/* Counters of N_ROW decode rows behind a prompt. */
static sac_reads rows_of(const sac_model *model, sac_kv_type type, const char *decode,
                         struct traffic *out)
{
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e;
    sac_error err;
    sac_seq s;
    p.n_ctx = 512;
    p.n_batch = 128;
    p.n_threads = 1;
    p.sparse_min_ctx = 1;
    p.type_k = p.type_v = type;
    p.decode = &decode;
    p.n_decode = 1;
    must(sac_engine_create(&e, model, &p, &err), &err);
    must(sac_seq_create(e, &s, &err), &err);
    feed(e, s, N_PROMPT, SAC_ROW_PROMPT);
    const sac_reads before = sac_engine_get_stats(e).reads;
    assert_int_equal(before.attend_bytes_read + before.choose_bytes_read + before.build_bytes_read +
                         before.dense_bytes,
                     0);
    feed(e, s, N_ROW, SAC_ROW_DECODE);
    const sac_reads after = sac_engine_get_stats(e).reads;
    *out = traffic_between(&before, &after);
    assert_int_equal(after.kv_bytes_read - before.kv_bytes_read, after.attend_bytes_read);
    sac_engine_free(e);
    return after;
}

/* What the row at `pos` reads of a KV head: from token `first` on, and the `n_sink` first ones. */
static size_t read_from(uint32_t pos, uint32_t first, uint32_t n_sink, bool q8)
{
    size_t n = (pos % 32 + 1) * TINY_DIM * 2 * 2;
    for (uint32_t p = 0; p < pos / 32; p++) {
        uint32_t mask = 0;
        for (uint32_t t = p * 32; t < p * 32 + 32; t++)
            mask |= (uint32_t)(t >= first || t < n_sink) << t % 32;
        n += LINE * (key_lines(TINY_DIM, q8, mask) + value_lines(TINY_DIM, q8, mask));
    }
    return n;
}

static void rows_count_what_they_read(void **state)
{
    (void)state;
    enum { BUDGET = 100, SINK = 4, LANES = TINY_LAYERS * TINY_KV_HEADS };
    sac_model *model = tiny_open(&(struct tiny){.seed = 3});
    assert_non_null(model);
    for (int q8 = 0; q8 < 2; q8++) {
        const sac_kv_type type = q8 ? SAC_KV_Q8 : SAC_KV_F16;
        size_t dense = 0, window = 0, keys = 0;
        struct traffic t;
        for (uint32_t pos = N_PROMPT; pos < N_PROMPT + N_ROW; pos++) {
            dense += LANES * read_from(pos, 0, 0, q8);
            window += LANES * read_from(pos, pos + 1 - (BUDGET - SINK), SINK, q8);
            keys += LANES * (pos / 32) * LINE * key_lines(TINY_DIM, q8, UINT32_MAX);
        }
        sac_reads s = rows_of(model, type, "full", &t);
        assert_int_equal(s.dense_bytes, dense);
        assert_int_equal(s.attend_bytes_read, dense);
        assert_int_equal(s.choose_bytes_read + s.build_bytes_read, 0);
        assert_true(t.share == 1 && t.rows == N_ROW && t.per_token == (double)dense / N_ROW);
        /* The window begins inside a page: single tokens. */
        s = rows_of(model, type, "streaming:budget=100,sink=4", &t);
        assert_int_equal(s.dense_bytes, dense);
        assert_int_equal(s.attend_bytes_read, window);
        assert_int_equal(s.choose_bytes_read + s.build_bytes_read, 0);
        assert_true(window < dense && t.share == (double)window / (double)dense);
        /* Eight pages have 20 of 32 channels of their keys packed; all values are read. */
        const size_t saved = 8 * (LINE * key_lines(TINY_DIM, q8, UINT32_MAX) - 32 * 20 * 2);
        s = rows_of(model, type, "think", &t);
        assert_int_equal(s.attend_bytes_read, dense - N_ROW * LANES * saved);
        assert_int_equal(s.choose_bytes_read, 0);
        s = rows_of(model, type, "topk:budget=50", &t);
        assert_int_equal(s.choose_bytes_read, keys);
        assert_true(t.choose == (double)keys / N_ROW && t.build == 0);
        assert_true(t.share == (double)(s.attend_bytes_read + keys) / (double)dense);
        /* Built once, and told over all rows. */
        s = rows_of(model, type, "loki:budget=50,rank=0.5", &t);
        const size_t once =
            2 * LANES * (N_PROMPT / 32) * LINE * key_lines(TINY_DIM, q8, UINT32_MAX);
        assert_int_equal(s.build_bytes_read, once);
        assert_true(t.build == (double)once / N_ROW);
        assert_true(t.per_token ==
                    (double)(s.attend_bytes_read + s.choose_bytes_read + once) / N_ROW);
    }
    sac_model_free(model);
}

/* Layers with a window read it whole, whatever the method, and nobody is asked there. */
static void windows_are_read_by_every_method(void **state)
{
    (void)state;
    enum { WINDOW = 64, LAYERS = 6 };
    sac_model *model = tiny_open(&(struct tiny){.seed = 4, .n_layer = LAYERS, .window = WINDOW});
    assert_non_null(model);
    struct traffic t;
    size_t local = 0, global = 0, keys = 0;
    for (uint32_t pos = N_PROMPT; pos < N_PROMPT + N_ROW; pos++) {
        local += TINY_KV_HEADS * read_from(pos, (pos - WINDOW + 1) / 32 * 32, 0, false);
        global += TINY_KV_HEADS * read_from(pos, 0, 0, false);
        keys += TINY_KV_HEADS * (pos / 32) * LINE * key_lines(TINY_DIM, false, UINT32_MAX);
    }
    const sac_reads s = rows_of(model, SAC_KV_F16, "topk:budget=50", &t);
    assert_int_equal(s.choose_bytes_read % keys, 0);
    const size_t n_global = s.choose_bytes_read / keys;
    assert_true(n_global > 0 && n_global < LAYERS);
    assert_int_equal(s.dense_bytes, n_global * global + (LAYERS - n_global) * local);
    assert_true(s.attend_bytes_read > (LAYERS - n_global) * local);
    assert_true(s.attend_bytes_read < s.dense_bytes);
    sac_model_free(model);
}

static void nothing_is_told_of_no_rows(void **state)
{
    (void)state;
    const sac_reads none = {0};
    struct traffic t = traffic_between(&none, &none);
    for (unsigned i = 0; i < TRAFFIC_FIELDS; i++) assert_true(isnan(*traffic_field(&t, i)));
}

/* Of ten pages asked for seven were there; 4 rows have fetched 4096 bytes in 20 us. Without a disk
 * nothing is told. */
static void tiers_are_told_for_a_row(void **state)
{
    const sac_tier_stats before = {.n_hit = 3, .n_fetch = 5, .bytes_fetched = 512, .wait_us = 80};
    sac_tier_stats after = {.n_hit = 10, .n_fetch = 8, .bytes_fetched = 4608, .wait_us = 100};
    const sac_reads none = {0}, reads = {.n_decode_tok = 4, .dense_bytes = 1};
    (void)state;
    for (int has_disk = 0; has_disk < 2; has_disk++) {
        struct traffic t = traffic_between(&none, &reads);
        after.backend = has_disk ? "threads" : NULL;
        traffic_add_tier(&t, &before, &after);
        cJSON *o = cJSON_CreateObject();
        traffic_json(o, &t);
        assert_int_equal(cJSON_HasObjectItem(o, "tier_hit_share"), has_disk);
        cJSON_Delete(o);
        if (!has_disk) continue;
        assert_true(fabs(t.hit_share - 0.7) < 1e-9);
        assert_true(fabs(t.fetched - 1024) < 1e-9 && fabs(t.wait_us - 5) < 1e-9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_of_a_page_count_their_lines),
        cmocka_unit_test(rows_count_what_they_read),
        cmocka_unit_test(windows_are_read_by_every_method),
        cmocka_unit_test(nothing_is_told_of_no_rows),
        cmocka_unit_test(tiers_are_told_for_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
