/* test_reading.c: recordings come back as they were put, a full ring loses the oldest, and broken
 * files are refused with the field. */
#include "eval/reading.c"
#include "must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static const struct reading_shape shape = {3, 4, 2, 64, 32};
static const char *const methods[] = {"full", "streaming:window=64"};
static const struct reading_names names = {"tiny", methods, 2};
static char path[] = P_tmpdir "/test_reading_XXXXXX";

#define PAGES_MAX 40u

struct example {
    uint32_t page[PAGES_MAX];
    float mass[PAGES_MAX];
    sac_read_record record;
};

/* A record that differs from others of another `i` in every field. */
static void make(struct example *x, uint32_t i)
{
    const uint32_t n_page = i % PAGES_MAX + 1;
    uint32_t n_read = 0;
    for (uint32_t p = 0; p < n_page; p++) {
        x->mass[p] = 1.0f / (float)(1u << (p % 12 + 1));
        if (p % 3 == i % 3 || p + 1 == n_page) x->page[n_read++] = p;
    }
    x->record = (sac_read_record){.seq = i + 5,
                                  .kind = i % 2 ? SAC_ROW_DECODE : SAC_ROW_PROMPT,
                                  .pos = (n_page - 1) * 32,
                                  .n_row = i % 2 ? 1 : 1 + i % 32,
                                  .layer = i % 3,
                                  .kv_head = i / 2 % 2,
                                  .n_page = n_page,
                                  .n_page_read = n_read,
                                  .n_tok_seen = (n_page - 1) * 31,
                                  .n_tok_read = (n_page - 1) * (i % 30),
                                  .page = x->page,
                                  .page_mass = x->mass,
                                  .mass = 0.25f + (float)i,
                                  .out_err = 1e-3f * (float)i,
                                  .k_bytes = 1000000000000u + i,
                                  .v_bytes = 77 + i,
                                  .side_bytes = 3 * i,
                                  .select_us = 0.5f * (float)i,
                                  .attend_us = 2.5f * (float)i};
}

static void same(const struct reading_record *r, const sac_read_record *want)
{
    assert_int_equal(r->seq, want->seq);
    assert_int_equal(r->kind, want->kind);
    assert_int_equal(r->pos, want->pos);
    assert_int_equal(r->n_row, want->n_row);
    assert_int_equal(r->layer, want->layer);
    assert_int_equal(r->kv_head, want->kv_head);
    assert_int_equal(r->n_page, want->n_page);
    assert_int_equal(r->n_page_read, want->n_page_read);
    assert_int_equal(r->n_tok_seen, want->n_tok_seen);
    assert_int_equal(r->n_tok_read, want->n_tok_read);
    assert_true(r->mass == want->mass && r->out_err == want->out_err);
    assert_int_equal(r->k_bytes, want->k_bytes);
    assert_int_equal(r->v_bytes, want->v_bytes);
    assert_int_equal(r->side_bytes, want->side_bytes);
    assert_true(r->select_us == want->select_us && r->attend_us == want->attend_us);
    uint32_t next = 0;
    for (uint32_t p = 0; p < r->n_page; p++) {
        const bool is_read = next < want->n_page_read && want->page[next] == p;
        assert_int_equal(reading_page_read(r, p), is_read);
        next += is_read;
        assert_true(reading_page_mass(r, p) == want->page_mass[p]); /* powers of two */
    }
}

/* Writes records [0, n), flushing behind each `every`-th. */
static uint64_t write_file(uint32_t n, uint32_t every, size_t ring_bytes)
{
    struct reading_writer w;
    sac_error err;
    must(reading_open(&w, path, &shape, &names, ring_bytes, &err), &err);
    for (uint32_t i = 0; i < n; i++) {
        struct example x;
        make(&x, i);
        w.method_i = i % 2;
        w.sample_i = 10 * i;
        reading_put(&w, &x.record);
        if (i % every == every - 1) must(reading_flush(&w, &err), &err);
    }
    const uint64_t n_dropped = w.ring.n_dropped;
    must(reading_close(&w, &err), &err);
    must(reading_close(&w, &err), &err); /* a second time does nothing */
    return n_dropped;
}

static void records_come_back(void **state)
{
    (void)state;
    const struct {
        uint32_t n, every;
        size_t ring_bytes;
    } cases[] = {{0, 1, 4096}, {1, 1, 4096}, {300, 1, 200}, {300, 7, 4000}, {300, 1000, 1 << 20}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct reading r;
        struct reading_record rec;
        sac_error err;
        bool more;
        assert_int_equal(write_file(cases[c].n, cases[c].every, cases[c].ring_bytes), 0);
        must(reading_load(&r, path, &err), &err);
        assert_memory_equal(&r.shape, &shape, sizeof shape);
        assert_string_equal(r.model, "tiny");
        assert_int_equal(r.n_method, 2);
        assert_string_equal(r.method[1], methods[1]);
        for (int round = 0; round < 2; round++, reading_rewind(&r)) {
            for (uint32_t i = 0; i < cases[c].n; i++) {
                struct example x;
                make(&x, i);
                must(reading_next(&r, &rec, &more, &err), &err);
                assert_true(more);
                same(&rec, &x.record);
                assert_int_equal(rec.method_i, i % 2);
                assert_int_equal(rec.sample_i, 10 * i);
            }
            must(reading_next(&r, &rec, &more, &err), &err);
            assert_false(more);
        }
        reading_deinit(&r);
    }
}

static void a_full_ring_keeps_the_last(void **state)
{
    (void)state;
    struct reading r;
    struct reading_record rec;
    struct example x;
    sac_error err;
    bool more;
    const uint64_t n_dropped = write_file(300, 1000, 4000);
    assert_in_range(n_dropped, 200, 299);
    must(reading_load(&r, path, &err), &err);
    for (uint32_t i = (uint32_t)n_dropped; i < 300; i++) {
        make(&x, i);
        must(reading_next(&r, &rec, &more, &err), &err);
        assert_true(more);
        same(&rec, &x.record);
    }
    must(reading_next(&r, &rec, &more, &err), &err);
    assert_false(more);
    reading_deinit(&r);
    assert_int_equal(write_file(PAGES_MAX, 1000, 83), PAGES_MAX - 1); /* room for one page only */
}

/* All bytes of the file of `n` records. */
static uint8_t *file_bytes(uint32_t n, size_t *out_n)
{
    (void)write_file(n, 1, 4096);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    uint8_t *data = malloc(1 << 16);
    *out_n = fread(data, 1, 1 << 16, f);
    fclose(f);
    return data;
}

/* Walks all of a file: SAC_OK, or what the header or a record is refused with. */
static sac_status walk(const uint8_t *data, size_t n, uint32_t *out_n, sac_error *err)
{
    struct reading r;
    struct reading_record rec;
    bool more = true;
    *out_n = 0;
    sac_status status = reading_parse(&r, data, n, "a file", err);
    while (status == SAC_OK && more) {
        status = reading_next(&r, &rec, &more, err);
        if (status == SAC_OK && more) ++*out_n;
    }
    reading_deinit(&r);
    return status;
}

static void a_cut_file_gives_what_is_whole(void **state)
{
    (void)state;
    size_t n;
    uint32_t n_good;
    sac_error err;
    uint8_t *data = file_bytes(5, &n);
    uint32_t whole = 0, refused = 0;
    for (size_t cut = 0; cut <= n; cut++) {
        uint8_t *exact = malloc(cut ? cut : 1); /* so that a read behind the end is seen */
        memcpy(exact, data, cut);
        if (walk(exact, cut, &n_good, &err) == SAC_OK)
            whole++;
        else
            refused++;
        free(exact);
    }
    assert_int_equal(whole, 6); /* behind the header and behind each record */
    assert_int_equal(refused, n + 1 - 6);
    assert_int_equal(walk(data, n - 1, &n_good, &err), SAC_ERR_FORMAT);
    assert_int_equal(n_good, 4);
    free(data);
}

static void bad_fields_are_named(void **state)
{
    (void)state;
    const size_t body = 40 + 4 + 4 + 4 + 4 + 4 + 19; /* header with the names above */
    const struct {
        size_t at;
        uint8_t value;
        const char *word;
    } cases[] = {
        {0, 'X', "SACREAD"},
        {8, 1, "version"},
        {12, 1, "byte order"},
        {18, 2, "n_layer"},
        {20, 0, "n_head"},
        {24, 0, "n_kv_head"},
        {29, 0xff, NULL},
        {32, 0, "page_tok"},
        {36, 65, "n_method"},
        {42, 9, "a name"},
        {body, 1, "length"},
        {body + 4, 2, "method"},
        {body + 6, 2, "kind"},
        {body + 7, 33, "n_row"},
        {body + 7, 0, "n_row"},
        {body + 16, 32, "n_page"},
        {body + 19, 0xff, "n_page"},
        {body + 20, 3, "layer"},
        {body + 22, 2, "kv_head"},
        {body + 24, 2, "length"},
        {body + 27, 0xff, "n_page"},
        {body + 28, 9, "n_page_read"},
        {body + 73, 1, "n_tok_seen"},
        {body + 79, 1, "n_tok_read"},
        {body + 80, 0xff, "n_page_read"},
        {body + 80, 2, "n_page_read"},
    };
    size_t n;
    uint32_t n_good;
    uint8_t *data = file_bytes(1, &n);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sac_error err = {0};
        const uint8_t kept = data[cases[i].at];
        data[cases[i].at] = cases[i].value;
        const sac_status status = walk(data, n, &n_good, &err);
        data[cases[i].at] = kept;
        if (!cases[i].word) { /* any head_dim will do */
            assert_int_equal(status, SAC_OK);
            continue;
        }
        assert_int_equal(status, SAC_ERR_FORMAT);
        if (!strstr(err.msg, cases[i].word) || !strstr(err.msg, "a file"))
            fail_msg("byte %zu: %s", cases[i].at, err.msg);
    }
    sac_error err;
    must(walk(data, n, &n_good, &err), &err);
    free(data);
}

static void what_the_system_refuses_is_told(void **state)
{
    (void)state;
    struct reading_writer w;
    struct reading r;
    struct example x;
    sac_error err;
    assert_int_equal(reading_load(&r, "/no/such/file", &err), SAC_ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "/no/such/file"));
    reading_deinit(&r);
    assert_int_equal(reading_load(&r, "/", &err), SAC_ERR_IO);
    reading_deinit(&r);
    assert_int_equal(reading_open(&w, "/no/such/folder/file", &shape, &names, 4096, &err),
                     SAC_ERR_IO);
    must(reading_open(&w, "/dev/full", &shape, &names, 1 << 20, &err), &err);
    make(&x, 39);
    for (int i = 0; i < 1000; i++) reading_put(&w, &x.record);
    assert_int_equal(reading_flush(&w, &err), SAC_ERR_IO);
    assert_non_null(strstr(err.msg, "/dev/full"));
    assert_int_equal(reading_close(&w, &err), SAC_ERR_IO);
}

static void memory_that_is_not_there_is_told(void **state)
{
    (void)state;
    sac_error err;
    sac_status status = SAC_ERR_MEMORY;
    (void)write_file(2, 1, 4096);
    for (uint64_t n = 1; status != SAC_OK; n++) {
        struct reading r;
        struct reading_writer w;
        mem_fail_after(n);
        status = reading_load(&r, path, &err);
        mem_fail_after(0);
        reading_deinit(&r);
        assert_true(status == SAC_OK || status == SAC_ERR_MEMORY);
        if (n > 2) continue;
        mem_fail_after(n);
        assert_int_equal(reading_open(&w, path, &shape, &names, 4096, &err), SAC_ERR_MEMORY);
        mem_fail_after(0);
        (void)write_file(2, 1, 4096);
    }
}

static int make_path(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_back),
        cmocka_unit_test(a_full_ring_keeps_the_last),
        cmocka_unit_test(a_cut_file_gives_what_is_whole),
        cmocka_unit_test(bad_fields_are_named),
        cmocka_unit_test(what_the_system_refuses_is_told),
        cmocka_unit_test(memory_that_is_not_there_is_told),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
