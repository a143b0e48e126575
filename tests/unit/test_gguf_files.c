/* test_gguf_files.c: GGUF on the disk. Files that cannot be opened, models cut into parts, what
 * sac_file_describe and sac_file_check say, and a real model truncated at 200 places. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf_make.h"
#include "model_open.h"

#include "base/mem.h"
#include "model/gguf.h"
#include "ops/quant.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[256]; /* of this run, removed at its end */

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/saccade-gguf-XXXXXX", P_tmpdir);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    DIR *dir = opendir(folder);
    if (!dir) return -1;
    for (const struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
    return rmdir(folder);
}

static const char *path_of(const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", folder, name);
    return path;
}

static void write_bytes(const char *name, const void *bytes, size_t n)
{
    char path[512];
    FILE *f = fopen(path_of(name, path), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void write_file(const char *name, const struct make_file *f)
{
    struct make_out bytes = make_bytes(f);
    write_bytes(name, bytes.bytes, bytes.n);
    free(bytes.bytes);
}

/* Opening `name` must fail with `status` and a message that names the file and `says`. */
static void expect_refusal(const char *name, sac_status status, const char *says)
{
    char path[512];
    struct gguf *g = NULL;
    sac_error err = {0};
    const sac_status got = gguf_open(&g, path_of(name, path), &err);
    if (got != status || g || !strstr(err.msg, says) || !strstr(err.msg, folder))
        fail_msg("%s: status %s, message '%s', not '%s'", name, sac_status_name(got), err.msg,
                 says);
}

/* ---- One file ---- */

static void test_not_a_file(void **state)
{
    (void)state;
    char path[512];
    expect_refusal("absent.gguf", SAC_ERR_NOT_FOUND, "absent.gguf: No such file");
    expect_refusal("", SAC_ERR_IO, "not a regular file");
    write_bytes("empty.gguf", "", 0);
    expect_refusal("empty.gguf", SAC_ERR_FORMAT, "empty.gguf: the file is empty");
    write_bytes("text.gguf", "Once upon a time", 16);
    expect_refusal("text.gguf", SAC_ERR_FORMAT, "text.gguf: header: not a GGUF file");
    assert_int_equal(mkfifo(path_of("fifo.gguf", path), 0600), 0);
    expect_refusal("fifo.gguf", SAC_ERR_IO, "fifo.gguf: not a regular file");
    if (geteuid() != 0) { /* root may read anything */
        write_file("secret.gguf", &make_good);
        assert_int_equal(chmod(path_of("secret.gguf", path), 0), 0);
        expect_refusal("secret.gguf", SAC_ERR_IO, "secret.gguf: Permission denied");
    }
}

static void test_good_file(void **state)
{
    (void)state;
    char path[512];
    struct gguf *g = NULL;
    write_file("good.gguf", &make_good);
    assert_int_equal(gguf_open(&g, path_of("good.gguf", path), NULL), SAC_OK);
    assert_string_equal(gguf_path(g), path);
    assert_string_equal(gguf_part_path(g, 0), path);
    for (size_t i = 0; i < gguf_n_tensor(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t first = t->data[0];
        gguf_tensor_release(g, t);
        assert_int_equal(t->data[0], first); /* released pages come back from the file */
    }
    gguf_close(g);
}

/* ---- Parts ---- */

/* Part `i` of 3 with one tensor "pI"; part 0 holds the model's keys. */
static struct make_file part(int i)
{
    static const char *const numbers[] = {"\0\0", "\1\0", "\2\0"}, *const names[] = {"p0", "p1",
                                                                                     "p2"};
    struct make_file f = {.key = {{"split.no", .type = GGUF_U16, .value = numbers[i], .n_value = 2},
                                  {"split.count", .type = GGUF_U16, VALUE("\3\0")},
                                  {"split.tensors.count", .type = GGUF_I32, VALUE("\3\0\0\0")}},
                          .tensor = {{names[i], .n_dim = 1, .ne = {8}}},
                          .n_data = 32};
    if (i == 0) f.key[3] = (struct make_key){"k.first", .type = GGUF_U8, VALUE("\7")};
    if (i == 1) f.key[3] = (struct make_key){"k.second", .type = GGUF_U8, VALUE("\7")};
    return f;
}

static void write_parts(const char *stem)
{
    for (int i = 0; i < 3; i++) {
        char name[64];
        const struct make_file f = part(i);
        snprintf(name, sizeof name, "%s-%05d-of-00003.gguf", stem, i + 1);
        write_file(name, &f);
    }
}

static void test_parts(void **state)
{
    (void)state;
    write_parts("whole");
    for (int i = 0; i < 3; i++) { /* any part opens the model */
        char name[64], path[512];
        struct gguf *g = NULL;
        sac_error err = {0};
        snprintf(name, sizeof name, "whole-%05d-of-00003.gguf", i + 1);
        if (gguf_open(&g, path_of(name, path), &err) != SAC_OK) fail_msg("%s", err.msg);
        assert_int_equal(gguf_n_part(g), 3);
        assert_int_equal(gguf_n_tensor(g), 3);
        assert_non_null(strstr(gguf_path(g), "whole-00001-of-00003.gguf"));
        assert_non_null(strstr(gguf_part_path(g, 2), "whole-00003-of-00003.gguf"));
        assert_non_null(gguf_key_find(g, "k.first"));
        assert_null(gguf_key_find(g, "k.second"));
        const struct gguf_tensor *t = gguf_tensor_find(g, "p2");
        assert_non_null(t);
        assert_int_equal(t->part_i, 2);
        assert_ptr_equal(gguf_tensor_at(g, 2), t);
        struct stat st;
        uint64_t bytes = 0;
        for (uint32_t p = 0; p < 3; p++) {
            assert_int_equal(stat(gguf_part_path(g, p), &st), 0);
            bytes += (uint64_t)st.st_size;
        }
        assert_int_equal(gguf_file_bytes(g), bytes);
        gguf_close(g);
    }
}

static void test_bad_parts(void **state)
{
    (void)state;
    char from[512], to[512];
    struct make_file f = part(1);
    write_file("single.gguf", &f);
    expect_refusal("single.gguf", SAC_ERR_FORMAT,
                   "part 2 of 3 by its split.no and split.count, so its name must end in "
                   "-00002-of-00003.gguf");
    write_file("x", &f); /* a name shorter than the suffix */
    expect_refusal("x", SAC_ERR_FORMAT, "its name must end in");

    write_parts("hole");
    assert_int_equal(unlink(path_of("hole-00003-of-00003.gguf", to)), 0);
    expect_refusal("hole-00001-of-00003.gguf", SAC_ERR_NOT_FOUND,
                   "hole-00003-of-00003.gguf: No such file");
    expect_refusal("hole-00002-of-00003.gguf", SAC_ERR_NOT_FOUND, "hole-00003-of-00003.gguf");

    write_parts("swap");
    assert_int_equal(
        rename(path_of("swap-00003-of-00003.gguf", from), path_of("swap-00002-of-00003.gguf", to)),
        0);
    expect_refusal("swap-00001-of-00003.gguf", SAC_ERR_FORMAT,
                   "swap-00002-of-00003.gguf: part 3 of 3 by its keys, part 2 of 3 by its name");

    write_parts("twin");
    f = part(2);
    f.tensor[0].name = "p0";
    write_file("twin-00003-of-00003.gguf", &f);
    expect_refusal("twin-00001-of-00003.gguf", SAC_ERR_FORMAT,
                   "twin-00003-of-00003.gguf: tensor 'p0' is there twice");

    write_parts("count");
    f = part(0);
    f.key[2].value = "\4\0\0\0";
    write_file("count-00001-of-00003.gguf", &f);
    expect_refusal("count-00002-of-00003.gguf", SAC_ERR_FORMAT,
                   "key 'split.tensors.count' is 4, but the 3 parts hold 3 tensors");

    write_parts("torn");
    f = part(1);
    f.n_cut = 1;
    write_file("torn-00002-of-00003.gguf", &f);
    expect_refusal("torn-00001-of-00003.gguf", SAC_ERR_FORMAT,
                   "torn-00002-of-00003.gguf: tensor 'p1'");
}

static void test_no_memory(void **state)
{
    (void)state;
    char path[512];
    uint64_t n = 0;
    write_parts("poor");
    path_of("poor-00002-of-00003.gguf", path);
    for (sac_status status = SAC_ERR_MEMORY; status != SAC_OK;) {
        struct gguf *g = NULL;
        mem_fail_after(++n);
        status = gguf_open(&g, path, NULL);
        mem_fail_after(0);
        if (status != SAC_OK) assert_int_equal(status, SAC_ERR_MEMORY);
        gguf_close(g);
        assert_true(n < 1000);
    }
    assert_true(n > 20);
    n = 0;
    for (sac_status status = SAC_ERR_MEMORY; status != SAC_OK;) {
        char *text = NULL;
        mem_fail_after(++n);
        status = sac_file_describe(path, SAC_FILE_JSON, &text, NULL);
        mem_fail_after(0);
        if (status != SAC_OK) assert_int_equal(status, SAC_ERR_MEMORY);
        sac_free(text);
        assert_true(n < 1000);
    }
}

/* ---- Description and check ---- */

static char *describe(const char *name, unsigned flags)
{
    char path[512], *text = NULL;
    sac_error err = {0};
    if (sac_file_describe(path_of(name, path), flags, &text, &err) != SAC_OK)
        fail_msg("%s", err.msg);
    return text;
}

static void expect_text(const char *text, const char *part_of_it)
{
    if (!strstr(text, part_of_it)) fail_msg("no '%s' in:\n%s", part_of_it, text);
}

static void test_describe(void **state)
{
    (void)state;
    const struct make_file f = {
        .key = {{"general.architecture", .type = GGUF_STRING, VALUE("\5\0\0\0\0\0\0\0llama")},
                {"k.hostile", .type = GGUF_STRING,
                 VALUE("\x0b\0\0\0\0\0\0\0\x1b[2J\"\\\n\xff\xc2\x9b\x7f")},
                {"k.nan", .type = GGUF_F32, VALUE("\0\0\xc0\x7f")},
                {"k.most", .type = GGUF_U64, VALUE("\xff\xff\xff\xff\xff\xff\xff\xff")},
                {"k.list", .type = GGUF_ARRAY,
                 VALUE("\0\0\0\0\x08\0\0\0\0\0\0\0\1\2\3\4\5\6\7\x08")}},
        .tensor = {{"t", .n_dim = 2, .ne = {32, 2}, .type = QUANT_Q8_0}},
        .n_data = 68};
    write_file("show.gguf", &f);
    char *text = describe("show.gguf", 0);
    expect_text(text, "\"\\u001b[2J\\\"\\\\\\n\\ufffd\\u009b\\u007f\"");
    expect_text(text, "u8[8]        [1, 2, 3, 4, 5, 6, ...]\n");
    expect_text(text, "nan\n");
    expect_text(text, "Q8_0   32 x 2");
    for (const char *c = text; *c; c++) assert_true(*c == '\n' || (*c >= 0x20 && *c != 0x7f));
    sac_free(text);
    text = describe("show.gguf", SAC_FILE_JSON);
    expect_text(text, "\"type\": \"f32\", \"array\": false, \"n\": 1, \"value\": null}");
    expect_text(text, "\"value\": 18446744073709551615}");
    expect_text(text, "\"n\": 8, \"value\": [1, 2, 3, 4, 5, 6]}");
    sac_free(text);
    text = describe("show.gguf", SAC_FILE_JSON | SAC_FILE_FULL);
    expect_text(text, "\"value\": [1, 2, 3, 4, 5, 6, 7, 8]}");
    sac_free(text);
}

static void test_check(void **state)
{
    (void)state;
    char path[512], *text = NULL;
    sac_error err = {0};
    write_file("check.gguf", &make_good);
    if (sac_file_check(path_of("check.gguf", path), 0, &text, &err) != SAC_OK)
        fail_msg("%s", err.msg);
    expect_text(text, "check.gguf: ok: version 3, alignment 32, 16 keys, 5 tensors, 664 elements");
    sac_free(text);

    /* Element 5 of b.q4_0's row 1 becomes infinite with its block's scale. */
    struct make_out bytes = make_bytes(&make_good);
    memcpy(bytes.bytes + bytes.n - make_good.n_data + 64 + 3 * 18, "\0\x7c", 2);
    write_bytes("inf.gguf", bytes.bytes, bytes.n);
    free(bytes.bytes);
    text = NULL;
    assert_int_equal(sac_file_check(path_of("inf.gguf", path), 0, &text, &err), SAC_ERR_FORMAT);
    assert_null(text);
    expect_text(err.msg, "tensor 'b.q4_0' (Q4_0): 32 of 128 values are not finite, the first in "
                         "row 1, column 32");

    struct make_file f = make_good;
    f.key[0].name = "general.archiTecture";
    write_file("nameless.gguf", &f);
    assert_int_equal(sac_file_check(path_of("nameless.gguf", path), 0, &text, &err),
                     SAC_ERR_NOT_FOUND);
    expect_text(err.msg, "key 'general.architecture' is missing");
}

/* ---- A real model, cut ---- */

static uint8_t *read_model(size_t *out_n)
{
    char path[4096];
    FILE *f = fopen(model_path(path, MODEL_NAME), "rb");
    struct stat st;
    if (!f) {
        print_message("%s is absent: make model NAME=smollm2-135m\n", path);
        skip();
    }
    assert_int_equal(fstat(fileno(f), &st), 0);
    *out_n = (size_t)st.st_size;
    uint8_t *bytes = malloc(*out_n);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *out_n, f), *out_n);
    fclose(f);
    return bytes;
}

static void test_truncations(void **state)
{
    (void)state;
    size_t n;
    uint8_t *bytes = read_model(&n);
    struct gguf *g = NULL;
    assert_int_equal(gguf_open_memory(&g, bytes, n, NULL), SAC_OK);
    const struct gguf_tensor *first = gguf_tensor_at(g, 0);
    const size_t n_header = (size_t)gguf_tensor_offset(g, first);
    gguf_close(g);
    for (size_t i = 0; i < 200; i++) {
        /* Half of the places in the header, where nearly everything is decided. */
        const size_t cut =
            i < 100 ? n_header * i / 100 : n_header + (n - n_header) * (i - 100) / 100;
        /* Headers are copied to their exact size, so that AddressSanitizer sees their end. */
        uint8_t *exact = i < 100 ? malloc(cut ? cut : 1) : bytes;
        assert_non_null(exact);
        if (i < 100) memcpy(exact, bytes, cut);
        sac_error err = {0};
        g = NULL;
        assert_int_equal(gguf_open_memory(&g, exact, cut, &err), SAC_ERR_FORMAT);
        assert_null(g);
        assert_memory_equal(err.msg, "memory: ", 8);
        if (i < 100) free(exact);
    }
    free(bytes);
}

/* What is asked for in place of the file's scaling of positions. */
static void test_overrides(void **state)
{
    (void)state;
    static const struct {
        int rope;
        float scale, base;
        const char *says;
    } wrong[] = {
        {SAC_ROPE_YARN + 1, 0, 0, "unknown scaling 4"},
        {-1, 0, 0, "unknown scaling -1"},
        {SAC_ROPE_NONE, 4, 0, "a rope scale of 4 requires linear or yarn"},
        {SAC_ROPE_YARN, 0, 0, "by yarn needs a rope scale"},
        {SAC_ROPE_LINEAR, 0, 0, "by linear needs a rope scale"},
        {SAC_ROPE_YARN, 1e5F, 0, "rope scale 100000 is out of range"},
        {SAC_ROPE_MODEL, NAN, 0, "rope scale nan is out of range"},
        {SAC_ROPE_MODEL, 0, 0.5F, "rope frequency base 0.5 is out of range"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char path[4096];
        sac_model *model = NULL;
        sac_error err = {0};
        sac_model_params params = sac_model_params_default();
        params.rope = (sac_rope_scaling)wrong[i].rope;
        params.rope_scale = wrong[i].scale;
        params.rope_freq_base = wrong[i].base;
        assert_int_equal(sac_model_load(&model, model_path(path, MODEL_NAME), &params, &err),
                         SAC_ERR_ARG);
        expect_text(err.msg, wrong[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_a_file), cmocka_unit_test(test_good_file),
        cmocka_unit_test(test_parts),      cmocka_unit_test(test_bad_parts),
        cmocka_unit_test(test_no_memory),  cmocka_unit_test(test_describe),
        cmocka_unit_test(test_check),      cmocka_unit_test(test_truncations),
        cmocka_unit_test(test_overrides),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
