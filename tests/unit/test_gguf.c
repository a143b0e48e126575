/* test_gguf.c: what a GGUF file may be. A good file is read to the last value; every malformed one
 * gives its status and a message that names the culprit; every prefix of a good file is refused;
 * every allocation may fail; random damage never gets past the checks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf_make.h"

#include "../fuzz/gguf_walk.h"
#include "base/mem.h"
#include "model/gguf_parse.h"

#include <math.h>
#include <stdio.h>

/* ---- A good file ---- */

static struct gguf *open_good(struct make_out *out_bytes)
{
    struct gguf *g = NULL;
    sac_error err = {0};
    *out_bytes = make_bytes(&make_good);
    const sac_status status = gguf_open_memory(&g, out_bytes->bytes, out_bytes->n, &err);
    if (status != SAC_OK) fail_msg("%s", err.msg);
    return g;
}

static void test_tables(void **state)
{
    (void)state;
    struct make_out bytes;
    struct gguf *g = open_good(&bytes);
    assert_int_equal(gguf_version(g), 3);
    assert_int_equal(gguf_alignment(g), 32);
    assert_int_equal(gguf_file_bytes(g), bytes.n);
    assert_int_equal(gguf_n_part(g), 1);
    assert_int_equal(gguf_n_key(g), 16);
    assert_int_equal(gguf_n_tensor(g), 5);
    assert_string_equal(gguf_path(g), "memory");
    assert_null(gguf_key_find(g, "t.u9"));
    assert_null(gguf_key_find(g, ""));
    assert_null(gguf_tensor_find(g, "a.f3"));
    const struct gguf_tensor *t = gguf_tensor_find(g, "d.f16");
    assert_non_null(t);
    assert_int_equal(t->type, QUANT_F16);
    assert_int_equal(t->n_dim, 4);
    assert_int_equal(t->ne[1], 3);
    assert_int_equal(t->bytes, 24);
    t = gguf_tensor_find(g, "b.q4_0");
    assert_int_equal(t->ne[2], 1);
    assert_int_equal(t->ne[3], 1);
    assert_int_equal(t->bytes, 4 * 18);
    assert_int_equal(gguf_tensor_offset(g, t), bytes.n - make_good.n_data + 64);
    assert_ptr_equal(t->data, bytes.bytes + gguf_tensor_offset(g, t));
    gguf_tensor_release(g, t); /* advice must not touch borrowed memory */
    assert_int_equal(t->data[1], 65 * 7 % 60);
    walk_gguf(g);
    gguf_close(g);
    gguf_close(NULL);
    free(bytes.bytes);
}

static void test_version_2(void **state)
{
    (void)state;
    struct make_file f = make_good;
    f.version = 2;
    struct make_out bytes = make_bytes(&f);
    struct gguf *g = NULL;
    assert_int_equal(gguf_open_memory(&g, bytes.bytes, bytes.n, NULL), SAC_OK);
    assert_int_equal(gguf_version(g), 2);
    gguf_close(g);
    free(bytes.bytes);
}

static void test_alignments(void **state)
{
    (void)state;
    for (uint32_t a = GGUF_ALIGNMENT_MIN; a <= GGUF_ALIGNMENT_MAX; a *= 2) {
        char value[4];
        memcpy(value, &a, 4);
        const struct make_file f = {
            .key = {{"general.alignment", .type = GGUF_U32, .value = value, .n_value = 4}},
            .tensor = {{"x", .n_dim = 1, .ne = {1}}, {"y", .n_dim = 1, .ne = {2}, .offset = a}},
            .alignment = a,
            .n_data = a + 8};
        struct make_out bytes = make_bytes(&f);
        struct gguf *g = NULL;
        assert_int_equal(gguf_open_memory(&g, bytes.bytes, bytes.n, NULL), SAC_OK);
        assert_int_equal(gguf_alignment(g), a);
        assert_int_equal(gguf_tensor_offset(g, gguf_tensor_find(g, "x")) % a, 0);
        assert_ptr_equal(gguf_tensor_find(g, "y")->data + 8, bytes.bytes + bytes.n);
        gguf_close(g);
        free(bytes.bytes);
    }
}

/* ---- Typed reads ---- */

#define ABSENT 1e300 /* the value does not fit the type */

static const struct {
    const char *name;
    double u32, i32, f32; /* what a read gives, or ABSENT */
} reads[] = {
    {"t.u8", 255, 255, 255},
    {"t.i8", ABSENT, -1, -1},
    {"t.u16", 65535, 65535, 65535},
    {"t.i16", ABSENT, -2, -2},
    {"t.u32", 4294967295.0, ABSENT, 4294967296.0},
    {"t.i32", ABSENT, -3, -3},
    {"t.f32", ABSENT, ABSENT, -10},
    {"t.bool", ABSENT, ABSENT, ABSENT},
    {"t.u64", ABSENT, ABSENT, 18446744073709551616.0},
    {"t.i64", ABSENT, -4, -4},
    {"t.f64", ABSENT, ABSENT, 1.5},
    {"general.architecture", ABSENT, ABSENT, ABSENT},
};

static void check_read(const char *name, const sac_error *err, sac_status status, double value,
                       double want)
{
    if (want != ABSENT) {
        assert_int_equal(status, SAC_OK);
        assert_true(value == want);
        return;
    }
    assert_int_equal(status, SAC_ERR_FORMAT);
    if (!strstr(err->msg, name)) fail_msg("'%s' does not name %s", err->msg, name);
}

static void test_scalars(void **state)
{
    (void)state;
    struct make_out bytes;
    struct gguf *g = open_good(&bytes);
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        uint32_t u = 0;
        int32_t v = 0;
        float f = 0;
        sac_error err = {0};
        const char *name = reads[i].name;
        sac_status status = gguf_get_u32(g, name, &u, &err);
        check_read(name, &err, status, u, reads[i].u32);
        status = gguf_key_i32(gguf_key_find(g, name), 0, &v, &err);
        check_read(name, &err, status, v, reads[i].i32);
        status = gguf_get_f32(g, name, &f, &err);
        check_read(name, &err, status, (double)f, reads[i].f32);
    }
    sac_error err;
    bool b = false;
    struct gguf_str s;
    uint32_t u;
    assert_int_equal(gguf_get_bool(g, "t.bool", &b, &err), SAC_OK);
    assert_true(b);
    assert_int_equal(gguf_get_bool(g, "t.u8", &b, &err), SAC_ERR_FORMAT);
    assert_string_equal(err.msg, "memory: key 't.u8' has type u8, not bool");
    assert_int_equal(gguf_get_str(g, "general.architecture", &s, &err), SAC_OK);
    assert_int_equal(s.n, 5);
    assert_memory_equal(s.s, "llama", 5);
    assert_int_equal(gguf_get_str(g, "t.f64", &s, &err), SAC_ERR_FORMAT);
    assert_string_equal(err.msg, "memory: key 't.f64': the value is 1.5 of type f64, not a string");
    assert_int_equal(gguf_get_u32(g, "t.gone", &u, &err), SAC_ERR_NOT_FOUND);
    assert_string_equal(err.msg, "memory: key 't.gone' is missing");
    assert_int_equal(gguf_get_u32(g, "t.i32s", &u, &err), SAC_ERR_FORMAT);
    assert_string_equal(err.msg, "memory: key 't.i32s' is an array of 2 i32, not one value");
    gguf_close(g);
    free(bytes.bytes);
}

static void test_arrays(void **state)
{
    (void)state;
    struct make_out bytes;
    struct gguf *g = open_good(&bytes);
    sac_error err;
    const struct gguf_key *k = gguf_key_find(g, "t.i32s");
    uint32_t u = 0;
    int32_t v = 0;
    assert_true(k->is_array && k->n == 2 && k->bytes == 8);
    assert_int_equal(gguf_key_i32(k, 0, &v, &err), SAC_OK);
    assert_int_equal(v, -1);
    assert_int_equal(gguf_key_u32(k, 1, &u, &err), SAC_OK);
    assert_int_equal(u, 7);
    assert_int_equal(gguf_key_u32(k, 0, &u, &err), SAC_ERR_FORMAT);
    assert_string_equal(err.msg, "key 't.i32s': element 0 is -1 of type i32, not an integer in "
                                 "0..4294967295");
    assert_int_equal(gguf_key_u32(k, 2, &u, &err), SAC_ERR_FORMAT);
    assert_string_equal(err.msg, "key 't.i32s': element 2 is needed, there are only 2");
    static const char *const want[] = {"a", "", "\xc3\xa4"};
    struct gguf_str s;
    size_t at = 0;
    k = gguf_key_find(g, "t.strs");
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(gguf_key_next_str(k, &at, &s, &err), SAC_OK);
        assert_int_equal(s.n, strlen(want[i]));
        assert_memory_equal(s.s, want[i], s.n);
    }
    assert_int_equal(gguf_key_next_str(k, &at, &s, &err), SAC_ERR_FORMAT);
    at = 0;
    assert_int_equal(gguf_key_next_str(gguf_key_find(g, "t.none"), &at, &s, &err), SAC_ERR_FORMAT);
    gguf_close(g);
    free(bytes.bytes);
}

static void test_number_text(void **state)
{
    (void)state;
    static const struct {
        float f;
        const char *text;
    } cases[] = {
        {0.1f, "0.1"}, {1e-5f, "1e-05"},  {16777217.0f, "16777216"}, {1.10554159f, "1.1055416"},
        {-0.0f, "-0"}, {INFINITY, "inf"}, {-INFINITY, "-inf"}};
    char text[GGUF_KEY_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct gguf_key k = {"x", GGUF_F32, false, 1, (const uint8_t *)&cases[i].f, 4};
        gguf_key_format(&k, 0, text);
        assert_string_equal(text, cases[i].text);
    }
    const double d = 0.1;
    const struct gguf_key k = {"x", GGUF_F64, false, 1, (const uint8_t *)&d, 8};
    gguf_key_format(&k, 0, text);
    assert_string_equal(text, "0.1");
    const double big = 1e39; /* beyond f32 */
    const struct gguf_key k_big = {"x", GGUF_F64, false, 1, (const uint8_t *)&big, 8};
    float f;
    assert_int_equal(gguf_key_f32(&k_big, 0, &f, NULL), SAC_ERR_FORMAT);
}

/* ---- Damage ---- */

static void test_every_prefix(void **state)
{
    (void)state;
    struct make_out all = make_bytes(&make_good);
    for (size_t n = 0; n < all.n; n++) {
        struct make_file f = make_good;
        f.n_cut = all.n - n;
        struct make_out bytes = make_bytes(&f);
        struct gguf *g = NULL;
        sac_error err = {0};
        assert_int_equal(gguf_open_memory(&g, bytes.bytes, bytes.n, &err), SAC_ERR_FORMAT);
        assert_null(g);
        assert_memory_equal(err.msg, "memory: ", 8);
        free(bytes.bytes);
    }
    free(all.bytes);
}

static void test_string_limit(void **state)
{
    (void)state;
    static const uint64_t n_values[] = {GGUF_STRINGS_MAX - 8, GGUF_STRINGS_MAX - 7};
    for (size_t i = 0; i < 2; i++) { /* the key's name has 8 bytes too */
        const size_t n = n_values[i] + 8;
        char *value = calloc(n, 1);
        assert_non_null(value);
        memcpy(value, &n_values[i], 8);
        const struct make_file f = {
            .key = {{"a.string", .type = GGUF_STRING, .value = value, .n_value = n}}};
        struct make_out bytes = make_bytes(&f);
        struct gguf *g = NULL;
        sac_error err = {0};
        const sac_status status = gguf_open_memory(&g, bytes.bytes, bytes.n, &err);
        assert_int_equal(status, i == 0 ? SAC_OK : SAC_ERR_FORMAT);
        if (i == 1) assert_non_null(strstr(err.msg, "key 'a.string': the strings of the file"));
        gguf_close(g);
        free(bytes.bytes);
        free(value);
    }
}

static void test_no_memory(void **state)
{
    (void)state;
    struct make_out bytes = make_bytes(&make_good);
    uint64_t n = 0;
    for (sac_status status = SAC_ERR_MEMORY; status != SAC_OK;) {
        struct gguf *g = NULL;
        sac_error err = {0};
        mem_fail_after(++n);
        status = gguf_open_memory(&g, bytes.bytes, bytes.n, &err);
        mem_fail_after(0);
        if (status != SAC_OK) {
            assert_int_equal(status, SAC_ERR_MEMORY);
            assert_null(g);
            assert_non_null(strstr(err.msg, "memory"));
        }
        gguf_close(g);
        assert_true(n < 1000);
    }
    /* One for each name, table and index: 21 names, 9 blocks. */
    assert_int_equal(n, 21 + 9 + 1);
    free(bytes.bytes);
}

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/* Overwrites 1, 2, 4 or 8 bytes with a value of the kind that breaks arithmetic. */
static void mutate(uint8_t *bytes, size_t n, uint64_t *seed)
{
    static const uint64_t odd[] = {0,
                                   1,
                                   2,
                                   3,
                                   8,
                                   9,
                                   31,
                                   32,
                                   255,
                                   256,
                                   0x7fffffff,
                                   0x80000000,
                                   0xffffffff,
                                   1ull << 32,
                                   1ull << 61,
                                   INT64_MAX,
                                   1ull << 63,
                                   UINT64_MAX,
                                   UINT64_MAX - 31};
    const size_t width = (size_t)1 << next_random(seed) % 4;
    const size_t at = next_random(seed) % (n - width + 1);
    uint64_t value = odd[next_random(seed) % (sizeof odd / sizeof *odd)];
    if (next_random(seed) % 2) value = next_random(seed);
    memcpy(bytes + at, &value, width);
}

static void test_mutations(void **state)
{
    (void)state;
    struct make_out good = make_bytes(&make_good);
    uint8_t *bytes = malloc(good.n);
    assert_non_null(bytes);
    uint64_t seed = 0x5acade, n_open = 0, n_refused = 0;
    for (uint32_t i = 0; i < 10000; i++) {
        struct gguf *g = NULL;
        sac_error err = {0};
        memcpy(bytes, good.bytes, good.n);
        for (uint64_t j = next_random(&seed) % 4 + 1; j > 0; j--) mutate(bytes, good.n, &seed);
        if (gguf_open_memory(&g, bytes, good.n, &err) == SAC_OK) {
            walk_gguf(g);
            gguf_close(g);
            n_open++;
        } else {
            assert_null(g);
            assert_memory_equal(err.msg, "memory: ", 8);
            n_refused++;
        }
    }
    /* Both ways must be common, or the test would look at one side only. */
    print_message("%llu opened, %llu refused\n", (unsigned long long)n_open,
                  (unsigned long long)n_refused);
    assert_true(n_open > 1000 && n_refused > 1000);
    free(bytes);
    free(good.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),       cmocka_unit_test(test_version_2),
        cmocka_unit_test(test_alignments),   cmocka_unit_test(test_scalars),
        cmocka_unit_test(test_arrays),       cmocka_unit_test(test_number_text),
        cmocka_unit_test(test_every_prefix), cmocka_unit_test(test_string_limit),
        cmocka_unit_test(test_no_memory),    cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
