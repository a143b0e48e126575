/* test_gguf_bad.c: one row per way in which a GGUF file can be wrong. Each gives a status and a
 * message that names the key, tensor or value. Rows differ from a good file in one thing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf_make.h"

#include "model/gguf.h"
#include "model/gguf_parse.h"
#include "ops/quant.h"

#include <stdio.h>

struct bad_case {
    const char *what;
    sac_status status;
    const char *says; /* part of the message */
    struct make_file file;
};

/* Names without their quotes, so that messages can be checked for them. */
#define ARCH                                                                                       \
    {                                                                                              \
        "general.architecture", .type = GGUF_STRING, VALUE("\5\0\0\0\0\0\0\0llama")                \
    }
#define KEY(...)    .key = {ARCH, {"k.bad", __VA_ARGS__}}
#define ALIGN(...)  .key = {{"general.alignment", __VA_ARGS__}}
#define TENSOR(...) .tensor = {{"t.good", .n_dim = 4, .ne = {8, 1, 1, 1}}, {__VA_ARGS__}}
#define DATA        .n_data = 64 + 256

static const struct bad_case header_cases[] = {
    {"no bytes", SAC_ERR_FORMAT, "header: the file ends at byte 0 inside the magic", {.n_cut = 24}},
    {"half a magic", SAC_ERR_FORMAT, "ends at byte 2 inside the magic", {.n_cut = 22}},
    {"another magic",
     SAC_ERR_FORMAT,
     "not a GGUF file (first bytes 47 47 4d 4c)",
     {.magic = "GGML"}},
    {"cut in the version", SAC_ERR_FORMAT, "inside the version", {.n_cut = 17}},
    {"cut in the first count", SAC_ERR_FORMAT, "inside the number of tensors", {.n_cut = 9}},
    {"cut in the second count", SAC_ERR_FORMAT, "inside the number of keys", {.n_cut = 1}},
    {"version 1", SAC_ERR_UNSUPPORTED, "version 1 is not supported, only 2 and 3", {.version = 1}},
    {"version 4", SAC_ERR_UNSUPPORTED, "version 4 is not", {.version = 4}},
    {"other byte order",
     SAC_ERR_UNSUPPORTED,
     "version 3 is not supported in big-endian form",
     {.version = 0x03000000}},
    {"more keys than bytes", SAC_ERR_FORMAT, "9 keys are claimed in 0 bytes", {.n_key_claim = 9}},
    {"key limit", SAC_ERR_FORMAT, "65537 keys are claimed", {.n_key_claim = 65537}},
    {"2^63 keys", SAC_ERR_FORMAT, "9223372036854775808 keys", {.n_key_claim = 1ull << 63}},
    {"more tensors than bytes",
     SAC_ERR_FORMAT,
     "1 tensors are claimed in 0",
     {.n_tensor_claim = 1}},
    {"tensor limit", SAC_ERR_FORMAT, "1048577 tensors", {.n_tensor_claim = (1 << 20) + 1}},
    {"2^64 - 1 tensors",
     SAC_ERR_FORMAT,
     "18446744073709551615 tensors",
     {.n_tensor_claim = UINT64_MAX}},
};

static const char long_name[65537] = {[0 ... 65535] = 'n'};

static const struct bad_case key_cases[] = {
    {"empty name",
     SAC_ERR_FORMAT,
     "key 1: the name is empty",
     {.key = {ARCH, {"", .type = GGUF_U32, VALUE("\0\0\0\0")}}}},
    {"long name",
     SAC_ERR_FORMAT,
     "key 1: the name has 65536 bytes, at most 65535",
     {.key = {ARCH, {long_name, .type = GGUF_U32, VALUE("\0\0\0\0")}}}},
    {"NUL in a name",
     SAC_ERR_FORMAT,
     "key 1: the name 'a' holds a NUL",
     {.key = {ARCH, {"a\0b", .n_name = 3, .type = GGUF_U32, VALUE("\0\0\0\0")}}}},
    {"name beyond the file",
     SAC_ERR_FORMAT,
     "key 1: the file ends at byte",
     {.key = {ARCH, {"a", .n_name = 1ull << 62, .type = GGUF_U32, VALUE("\0\0\0\0")}}}},
    {"name of 2^64 - 1",
     SAC_ERR_FORMAT,
     "inside its name (18446744073709551615 bytes",
     {.key = {ARCH, {"a", .n_name = UINT64_MAX, .type = GGUF_U32, VALUE("\0\0\0\0")}}}},
    {"twice",
     SAC_ERR_FORMAT,
     "'k.bad' is there twice",
     {.key = {{"k.bad", .type = GGUF_BOOL, VALUE("\1")},
              ARCH,
              {"k.bad", .type = GGUF_BOOL, VALUE("\1")}}}},
    {"unknown type",
     SAC_ERR_FORMAT,
     "key 'k.bad': value type 13 is unknown",
     {KEY(.type = 13, VALUE("\0\0\0\0"))}},
    {"type 2^32 - 1",
     SAC_ERR_FORMAT,
     "key 'k.bad': value type 4294967295 is unknown",
     {KEY(.type = UINT32_MAX, VALUE("\0\0\0\0"))}},
    {"no type", SAC_ERR_FORMAT, "key 'k.bad': the file ends at byte", {KEY(.type = 0), .n_cut = 2}},
    {"no value",
     SAC_ERR_FORMAT,
     "key 'k.bad': 1 values of type u64 are claimed, the file has 0",
     {KEY(.type = GGUF_U64)}},
    {"half a value",
     SAC_ERR_FORMAT,
     "key 'k.bad': 1 values of type i32",
     {KEY(.type = GGUF_I32, VALUE("\0\0\0"))}},
    {"bool of 2",
     SAC_ERR_FORMAT,
     "key 'k.bad': value 2 is not a bool",
     {KEY(.type = GGUF_BOOL, VALUE("\2"))}},
    {"bool of 7 in an array",
     SAC_ERR_FORMAT,
     "key 'k.bad': value 7 is not a bool",
     {KEY(.type = GGUF_ARRAY, VALUE("\7\0\0\0\3\0\0\0\0\0\0\0\1\0\7"))}},
    {"array of arrays",
     SAC_ERR_UNSUPPORTED,
     "key 'k.bad': arrays of arrays are not supported",
     {KEY(.type = GGUF_ARRAY, VALUE("\x09\0\0\0\1\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0\0\0\0\0"))}},
    {"unknown element type",
     SAC_ERR_FORMAT,
     "key 'k.bad': value type 77 is unknown",
     {KEY(.type = GGUF_ARRAY, VALUE("\x4d\0\0\0\1\0\0\0\0\0\0\0"))}},
    {"array without length",
     SAC_ERR_FORMAT,
     "key 'k.bad': the file ends at byte",
     {KEY(.type = GGUF_ARRAY, VALUE("\4\0\0\0\1\0\0\0"))}},
    {"array beyond the file",
     SAC_ERR_FORMAT,
     "key 'k.bad': 3 values of type u32 are claimed",
     {KEY(.type = GGUF_ARRAY, VALUE("\4\0\0\0\3\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0"))}},
    {"size of an array wraps to 0",
     SAC_ERR_FORMAT,
     "2305843009213693952 values of type u64",
     {KEY(.type = GGUF_ARRAY, VALUE("\x0a\0\0\0\0\0\0\0\0\0\0\x20"))}},
    {"2^64 - 1 bytes",
     SAC_ERR_FORMAT,
     "18446744073709551615 values of type u8",
     {KEY(.type = GGUF_ARRAY, VALUE("\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"))}},
    {"2^40 strings",
     SAC_ERR_FORMAT,
     "key 'k.bad': the file ends at byte",
     {KEY(.type = GGUF_ARRAY, VALUE("\x08\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0"))}},
    {"string beyond the file",
     SAC_ERR_FORMAT,
     "inside a string (5 bytes",
     {KEY(.type = GGUF_STRING, VALUE("\5\0\0\0\0\0\0\0four"))}},
    {"string of 2^63",
     SAC_ERR_FORMAT,
     "inside a string (9223372036854775808 bytes",
     {KEY(.type = GGUF_STRING, VALUE("\0\0\0\0\0\0\0\x80"))}},
};

static const struct bad_case align_cases[] = {
    {"alignment 0",
     SAC_ERR_FORMAT,
     "key 'general.alignment': 0 is not a power of two in 8..1048576",
     {ALIGN(.type = GGUF_U32, VALUE("\0\0\0\0"))}},
    {"alignment 4",
     SAC_ERR_FORMAT,
     "'general.alignment': 4 is not a power",
     {ALIGN(.type = GGUF_U32, VALUE("\4\0\0\0"))}},
    {"alignment 24",
     SAC_ERR_FORMAT,
     "'general.alignment': 24 is not a power",
     {ALIGN(.type = GGUF_U32, VALUE("\x18\0\0\0"))}},
    {"alignment 2^31",
     SAC_ERR_FORMAT,
     "'general.alignment': 2147483648 is not a power",
     {ALIGN(.type = GGUF_U32, VALUE("\0\0\0\x80"))}},
    {"alignment -32",
     SAC_ERR_FORMAT,
     "'general.alignment': the value is -32 of type i32",
     {ALIGN(.type = GGUF_I32, VALUE("\xe0\xff\xff\xff"))}},
    {"alignment as text",
     SAC_ERR_FORMAT,
     "'general.alignment': the value is str",
     {ALIGN(.type = GGUF_STRING, VALUE("\2\0\0\0\0\0\0\x00"
                                       "32"))}},
    {"alignment as an array",
     SAC_ERR_FORMAT,
     "'general.alignment': it is an array",
     {ALIGN(.type = GGUF_ARRAY, VALUE("\4\0\0\0\1\0\0\0\0\0\0\0\x20\0\0\0"))}},
    {"split.no beyond split.count",
     SAC_ERR_FORMAT,
     "'split.no' is 2, but split.count is 2",
     {.key = {{"split.no", .type = GGUF_U16, VALUE("\2\0")},
              {"split.count", .type = GGUF_U16, VALUE("\2\0")}}}},
    {"a part alone",
     SAC_ERR_UNSUPPORTED,
     "'split.count' is 2, only whole models open from memory",
     {.key = {{"split.count", .type = GGUF_U16, VALUE("\2\0")}}}},
    {"65535 parts",
     SAC_ERR_FORMAT,
     "'split.count' is 65535, at most 1024",
     {.key = {{"split.count", .type = GGUF_U16, VALUE("\xff\xff")}}}},
    {"split.count as f32",
     SAC_ERR_FORMAT,
     "key 'split.count': the value is 2 of type f32",
     {.key = {{"split.count", .type = GGUF_F32, VALUE("\0\0\0\x40")}}}},
    {"split.count as an array",
     SAC_ERR_FORMAT,
     "key 'split.count' is an array",
     {.key = {{"split.count", .type = GGUF_ARRAY, VALUE("\0\0\0\0\1\0\0\0\0\0\0\0\2")}}}},
};

static const struct bad_case tensor_cases[] = {
    {"empty name",
     SAC_ERR_FORMAT,
     "tensor 1: the name is empty",
     {TENSOR("", .n_dim = 1, .ne = {8}, .offset = 32), DATA}},
    {"name of 65 bytes",
     SAC_ERR_FORMAT,
     "tensor 1: the name has 65 bytes, at most 64",
     {TENSOR(long_name + 65536 - 65, .n_dim = 1, .ne = {8}, .offset = 32), DATA}},
    {"NUL in a name",
     SAC_ERR_FORMAT,
     "tensor 1: the name 'a' holds a NUL",
     {TENSOR("a\0b", .n_name = 3, .n_dim = 1, .ne = {8}, .offset = 32), DATA}},
    {"twice",
     SAC_ERR_FORMAT,
     "tensor 't.good' is there twice",
     {TENSOR("t.good", .n_dim = 1, .ne = {8}, .offset = 32), DATA}},
    {"rank 0", SAC_ERR_FORMAT, "tensor 't.bad': rank 0 is not in 1..4", {TENSOR("t.bad"), DATA}},
    {"rank 5",
     SAC_ERR_FORMAT,
     "tensor 't.bad': rank 5",
     {TENSOR("t.bad", .n_dim = 5, .ne = {1, 1, 1, 1, 1}, .offset = 32), DATA}},
    {"rank 2^32 - 1",
     SAC_ERR_FORMAT,
     "tensor 't.bad': rank 4294967295",
     {TENSOR("t.bad", .n_dim = UINT32_MAX, .ne = {1}, .offset = 32), DATA}},
    {"empty dimension",
     SAC_ERR_FORMAT,
     "tensor 't.bad': dimension 1 is 0",
     {TENSOR("t.bad", .n_dim = 2, .ne = {8, 0}, .offset = 32), DATA}},
    {"elements wrap to 0",
     SAC_ERR_FORMAT,
     "tensor 't.bad': dimension 1 is 4294967296: the number",
     {TENSOR("t.bad", .n_dim = 2, .ne = {1ull << 32, 1ull << 32}, .offset = 32), DATA}},
    {"elements beyond 2^63",
     SAC_ERR_FORMAT,
     "dimension 0 is 9223372036854775808: the number",
     {TENSOR("t.bad", .n_dim = 1, .ne = {1ull << 63}, .offset = 32), DATA}},
    {"elements wrap over 4 dimensions",
     SAC_ERR_FORMAT,
     "tensor 't.bad': dimension 3 is 65536",
     {TENSOR("t.bad", .n_dim = 4, .ne = {65536, 65536, 65536, 65536}, .offset = 32), DATA}},
    {"bytes wrap",
     SAC_ERR_FORMAT,
     "tensor 't.bad': its data (F32) exceeds the",
     {TENSOR("t.bad", .n_dim = 1, .ne = {1ull << 62}, .offset = 32), DATA}},
    {"more bytes than the file",
     SAC_ERR_FORMAT,
     "tensor 't.bad': its data (F16) exceeds the",
     {TENSOR("t.bad", .n_dim = 2, .ne = {4096, 4096}, .type = QUANT_F16, .offset = 32), DATA}},
    {"unknown type",
     SAC_ERR_FORMAT,
     "tensor 't.bad': tensor type 42 is unknown",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}, .type = 42, .offset = 32), DATA}},
    {"type 2^32 - 1",
     SAC_ERR_FORMAT,
     "tensor 't.bad': tensor type 4294967295 is unknown",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}, .type = UINT32_MAX, .offset = 32), DATA}},
    {"IQ2_XXS",
     SAC_ERR_UNSUPPORTED,
     "tensor 't.bad': tensor type IQ2_XXS is not supported",
     {TENSOR("t.bad", .n_dim = 1, .ne = {256}, .type = 16, .offset = 32), DATA}},
    {"MXFP4",
     SAC_ERR_UNSUPPORTED,
     "tensor 't.bad': tensor type MXFP4 is not supported",
     {TENSOR("t.bad", .n_dim = 1, .ne = {32}, .type = 39, .offset = 32), DATA}},
    {"withdrawn type",
     SAC_ERR_UNSUPPORTED,
     "tensor 't.bad': tensor type Q4_0_4_4 is not",
     {TENSOR("t.bad", .n_dim = 1, .ne = {32}, .type = 31, .offset = 32), DATA}},
    {"part of a block",
     SAC_ERR_FORMAT,
     "rows of 33 elements are not whole blocks of 32 (Q4_0)",
     {TENSOR("t.bad", .n_dim = 1, .ne = {33}, .type = QUANT_Q4_0, .offset = 32), DATA}},
    {"part of a super-block",
     SAC_ERR_FORMAT,
     "rows of 128 elements are not whole blocks of 256",
     {TENSOR("t.bad", .n_dim = 2, .ne = {128, 2}, .type = QUANT_Q4_K, .offset = 32), DATA}},
    {"odd offset",
     SAC_ERR_FORMAT,
     "tensor 't.bad': offset 33 is not a multiple of 32",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}, .offset = 33), DATA}},
    {"offset beyond the data",
     SAC_ERR_FORMAT,
     "tensor 't.bad': 32 bytes at offset 4096 pass the end",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}, .offset = 4096), DATA}},
    {"offset + size wraps",
     SAC_ERR_FORMAT,
     "32 bytes at offset 18446744073709551584 pass the end",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}, .offset = UINT64_MAX - 31), DATA}},
    {"one byte too few",
     SAC_ERR_FORMAT,
     "tensor 't.bad': 32 bytes at offset 288 pass the end",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}, .offset = 288), DATA, .n_cut = 1}},
    {"same place",
     SAC_ERR_FORMAT,
     "tensor 't.bad': its data at offset 0 overlaps that of 't.good'",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}, .offset = 0), DATA}},
    {"overlap in falling order",
     SAC_ERR_FORMAT,
     "tensor 't.low': its data at offset 64 overlaps",
     {.tensor = {{"t.low", .n_dim = 1, .ne = {8}, .offset = 64},
                 {"t.bad", .n_dim = 1, .ne = {16}, .offset = 32}},
      DATA}},
    {"no rank",
     SAC_ERR_FORMAT,
     "tensor 't.bad': the file ends at byte",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}), .n_cut = 21}},
    {"no dimension",
     SAC_ERR_FORMAT,
     "inside its dimensions",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}), .n_cut = 13}},
    {"no type",
     SAC_ERR_FORMAT,
     "inside its type",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}), .n_cut = 9}},
    {"no offset",
     SAC_ERR_FORMAT,
     "inside its offset",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}), .n_cut = 1}},
    {"no padding",
     SAC_ERR_FORMAT,
     "tensor data: the file ends at byte",
     {TENSOR("t.bad", .n_dim = 1, .ne = {8}, .offset = 32)}},
};

static void check_case(const struct bad_case *c)
{
    struct make_out bytes = make_bytes(&c->file);
    struct gguf *g = NULL;
    sac_error err = {0};
    const sac_status status = gguf_open_memory(&g, bytes.bytes, bytes.n, &err);
    if (status != c->status || g || !strstr(err.msg, c->says))
        fail_msg("%s: status %s, message '%s', not %s and '%s'", c->what, sac_status_name(status),
                 err.msg, sac_status_name(c->status), c->says);
    assert_memory_equal(err.msg, "memory: ", 8);
    /* Without a place for the message the status is the same. */
    assert_int_equal(gguf_open_memory(&g, bytes.bytes, bytes.n, NULL), status);
    free(bytes.bytes);
}

static void check_cases(const struct bad_case *cases, size_t n)
{
    for (size_t i = 0; i < n; i++) check_case(&cases[i]);
    print_message("%zu cases\n", n);
}

static void test_header(void **state)
{
    (void)state;
    check_cases(header_cases, sizeof header_cases / sizeof *header_cases);
}

static void test_keys(void **state)
{
    (void)state;
    check_cases(key_cases, sizeof key_cases / sizeof *key_cases);
}

static void test_known_keys(void **state)
{
    (void)state;
    check_cases(align_cases, sizeof align_cases / sizeof *align_cases);
}

static void test_tensors(void **state)
{
    (void)state;
    check_cases(tensor_cases, sizeof tensor_cases / sizeof *tensor_cases);
}

/* The good neighbours of the rows above: what is just allowed. */
static void test_just_right(void **state)
{
    (void)state;
    static const struct make_file files[] = {
        {.version = 3}, /* no keys, no tensors */
        {.key = {{long_name + 1, .type = GGUF_U8, VALUE("\0")}}},
        {TENSOR(long_name + 65536 - 64, .n_dim = 1, .ne = {8}, .offset = 32), DATA},
        {TENSOR("t.last", .n_dim = 1, .ne = {8}, .offset = 288), DATA},
        {.tensor = {{"t.high", .n_dim = 1, .ne = {8}, .offset = 32},
                    {"t.low", .n_dim = 4, .ne = {8, 1, 1, 1}, .offset = 0}},
         .n_data = 64},
        {.key = {{"split.count", .type = GGUF_U16, VALUE("\0\0")}}}, /* as merge tools leave it */
        {.key = {{"general.alignment", .type = GGUF_U64, VALUE("\x08\0\0\0\0\0\0\0")}}},
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct make_out bytes = make_bytes(&files[i]);
        struct gguf *g = NULL;
        sac_error err = {0};
        if (gguf_open_memory(&g, bytes.bytes, bytes.n, &err) != SAC_OK)
            fail_msg("file %zu: %s", i, err.msg);
        gguf_close(g);
        free(bytes.bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header),     cmocka_unit_test(test_keys),
        cmocka_unit_test(test_known_keys), cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_just_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
