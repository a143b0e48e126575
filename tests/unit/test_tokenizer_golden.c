/* Tokenizers of real models on the hard cases: the ids that llama.cpp gives (tests/golden/tokens,
 * written by tests/truth/test_tokenizer.py), round trips, and streams of pieces. Models that are
 * not fetched are skipped; smollm2-135m always is there in CI. */
#include "base/mem.h"
#include "base/strbuf.h"
#include "model/tokenizer.h"
#include "model/utf8.h"
#include "model_open.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ALL (SAC_TOK_ADD_SPECIAL | SAC_TOK_PARSE_SPECIAL)

/* Tests start in the root of the source tree. False: there is no such file. */
static bool read_file(struct strbuf *out, const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    char chunk[4096];
    for (size_t n; (n = fread(chunk, 1, sizeof chunk, f)) > 0;) strbuf_add(out, chunk, n);
    fclose(f);
    assert_false(out->failed);
    return true;
}

static struct strbuf hard_cases(void)
{
    struct strbuf text = {0};
    assert_true(read_file(&text, "tests/truth/hard_cases.txt"));
    assert_true(text.n > 3000);
    return text;
}

static struct tokenizer *load(const char *model)
{
    char path[4096];
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    sac_error err = {0};
    const sac_status status = gguf_open(&g, model_path(path, model), &err);
    if (status == SAC_ERR_NOT_FOUND) {
        print_message("%s is not fetched\n", path);
        skip();
    }
    if (status != SAC_OK || tokenizer_create(&t, g, &(struct tokenizer_rules){0}, &err) != SAC_OK)
        fail_msg("%s", err.msg);
    gguf_close(g);
    return t;
}

static int32_t *encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                       size_t *out_n)
{
    int32_t *id = NULL;
    sac_error err = {0};
    if (tokenizer_encode(t, text, n, flags, &id, out_n, &err) != SAC_OK) fail_msg("%s", err.msg);
    return id;
}

/* Holds the ids against a golden file "[1, 2, ...]". */
static void expect_golden(const struct tokenizer *t, const char *name, unsigned flags)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/tokens/%s.ids", name);
    struct strbuf want = {0}, text = hard_cases();
    assert_true(read_file(&want, path));
    size_t n, i = 0;
    int32_t *id = encode(t, text.data, text.n, flags, &n);
    char *at = want.data + 1; /* behind the bracket */
    for (char *end; *at && *at != ']'; at = end + strspn(end, ", "), i++) {
        const long v = strtol(at, &end, 10);
        assert_ptr_not_equal(end, at);
        if (i >= n || id[i] != v)
            fail_msg("%s: token %zu is %d, not %ld", name, i, i < n ? id[i] : -1, v);
    }
    assert_int_equal(i, n);
    assert_true(n > 1000);
    mem_free(id);
    strbuf_deinit(&want);
    strbuf_deinit(&text);
}

/* SentencePiece writes blanks as U+2581, so that one comes back as a blank. */
static void blanks_for_u2581(struct strbuf *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->n; i++) {
        const bool is_mark = text->n - i >= 3 && memcmp(text->data + i, "\xe2\x96\x81", 3) == 0;
        text->data[n++] = is_mark ? ' ' : text->data[i];
        i += is_mark ? 2 : 0;
    }
    text->n = n;
}

/* What is valid comes back byte for byte, whole and as a stream of whole characters. */
static void expect_round_trip(const struct tokenizer *t, bool is_spm)
{
    struct strbuf text = hard_cases(), bytes = {0}, stream = {0};
    if (is_spm) blanks_for_u2581(&text);
    const size_t valid = utf8_valid_prefix(text.data, text.n);
    assert_true(valid > 3000);
    size_t n;
    int32_t *id = encode(t, text.data, valid, SAC_TOK_PARSE_SPECIAL, &n);
    struct utf8_stream s = {0};
    char out[3 * (256 + 4)];
    for (size_t i = 0; i < n; i++) {
        size_t n_piece;
        const char *piece = tokenizer_piece(t, id[i], true, &n_piece);
        strbuf_add(&bytes, piece, n_piece);
        for (size_t at = 0; at < n_piece; at += 256) {
            const size_t step = n_piece - at < 256 ? n_piece - at : 256;
            const size_t n_out = utf8_stream_push(&s, piece + at, step, out);
            assert_int_equal(utf8_valid_prefix(out, n_out), n_out);
            strbuf_add(&stream, out, n_out);
        }
    }
    assert_int_equal(utf8_stream_flush(&s, out), 0);
    assert_int_equal(bytes.n, valid);
    assert_memory_equal(bytes.data, text.data, valid);
    assert_int_equal(stream.n, valid);
    assert_memory_equal(stream.data, text.data, valid);
    mem_free(id);
    strbuf_deinit(&text);
    strbuf_deinit(&bytes);
    strbuf_deinit(&stream);
}

static void check_model(const char *model, const char *golden)
{
    struct tokenizer *t = load(model);
    char plain[128];
    snprintf(plain, sizeof plain, "%s.plain", golden);
    expect_golden(t, golden, ALL);
    expect_golden(t, plain, 0);
    expect_round_trip(t, strncmp(model, "gemma", 5) == 0);
    tokenizer_destroy(t);
}

static void smollm2(void **state)
{
    (void)state;
    check_model("smollm2-135m", "smollm2-135m");
}

static void qwen2_small(void **state)
{
    (void)state;
    check_model("qwen2.5-coder-0.5b", "qwen2.5-coder-0.5b");
}

static void qwen2_large(void **state) /* one vocabulary for all sizes */
{
    (void)state;
    check_model("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b");
}

static void gemma3(void **state)
{
    (void)state;
    check_model("gemma-3-270m", "gemma-3-270m");
}

static void expect_eog(const char *model, const char *const *text, size_t n)
{
    struct tokenizer *t = load(model);
    size_t n_eog = 0;
    for (size_t i = 0; i < n; i++) {
        const int32_t id = tokenizer_find(t, text[i], strlen(text[i]));
        if (!tokenizer_is_eog(t, id)) fail_msg("%s does not end a generation", text[i]);
    }
    for (uint32_t i = 0; i < tokenizer_n_vocab(t); i++) n_eog += tokenizer_is_eog(t, (int32_t)i);
    assert_int_equal(n_eog, n);
    tokenizer_destroy(t);
}

/* The lists are what llama.cpp prints when it loads the files. */
static void ends_of_smollm2(void **state)
{
    (void)state;
    expect_eog("smollm2-135m", (const char *const[]){"<|endoftext|>", "<|im_end|>", "<reponame>"},
               3);
}

static void ends_of_qwen2(void **state)
{
    (void)state;
    expect_eog("qwen2.5-coder-0.5b",
               (const char *const[]){"<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>",
                                     "<|file_sep|>", "</s>"},
               6);
}

static void ends_of_gemma3(void **state)
{
    (void)state;
    expect_eog("gemma-3-270m", (const char *const[]){"<eos>", "<end_of_turn>", "</s>"}, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2),         cmocka_unit_test(qwen2_small),
        cmocka_unit_test(qwen2_large),     cmocka_unit_test(gemma3),
        cmocka_unit_test(ends_of_smollm2), cmocka_unit_test(ends_of_qwen2),
        cmocka_unit_test(ends_of_gemma3),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
