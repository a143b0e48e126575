/* fuzz_tokenizer.c: any bytes as text, on a small vocabulary of either kind whose file is damaged
 * at a few places. Creating and encoding give a status, with a message unless it is SAC_OK; ids are
 * tokens, pieces lie in their place, streams are valid UTF-8, and valid text comes back from an
 * undamaged byte-level vocabulary. A guarded text has no control tokens.
 *
 * Input: kind and flags, pre-tokeniser, number of damages, these (place of 16 bits, a byte to put
 * there), text. */
#include "../unit/vocab_make.h"

#include "base/mem.h"
#include "model/pretok.h"
#include "model/tokenizer.h"
#include "model/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define U "\xe2\x96\x81"

static void make_vocabulary(struct vocab_make *v, bool is_spm, const char *pre)
{
    static const char *const merges[] = {"a b", "b c",   "a a", "aa aa", "ab c",
                                         "Ġ a", "Ġa ab", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ",
                                         "à ¤", "ä ½",   "1 2", "12 3",  "' s"};
    static const char *const pieces[] = {U,    U U,       "a",        "b", U "a",
                                         "ab", "a" U "b", "\xc3\xa4", "aa"};
    if (is_spm) {
        vocab_start_spm(v);
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
            vocab_add(v, pieces[i], T_NORMAL, -(float)(i % 5));
    } else {
        vocab_start_bpe(v, merges, sizeof merges / sizeof *merges);
        v->pre = pre;
        v->bos = 0;
    }
    vocab_add(v, "<|im_end|>", T_CONTROL, 0);
    vocab_add(v, "[X]", T_USER, 0);
    vocab_add(v, "X]<", T_USER, 0);
    vocab_add(v, "\n\n", T_USER, 0);
}

/* A name from the table of pre-tokenisers, the first of row `i`. */
static const char *pre_name(size_t i, char *buf, size_t bytes)
{
    size_t n_row = 0;
    while (pretok_name_at(n_row)) n_row++;
    const char *const names = pretok_name_at(i % n_row);
    const size_t length = strcspn(names, " ");
    if (length >= bytes) abort();
    memcpy(buf, names, length);
    buf[length] = '\0';
    return buf;
}

static void check_ids(const struct tokenizer *t, const int32_t *id, size_t n_id, const char *whole,
                      size_t n_whole)
{
    struct utf8_stream stream = {0};
    size_t at = 0;
    for (size_t i = 0; i < n_id; i++) {
        if (id[i] < 0 || (uint32_t)id[i] >= tokenizer_n_vocab(t)) abort();
        size_t n;
        const char *piece = tokenizer_piece(t, id[i], true, &n);
        char *out = malloc(3 * (n + 4));
        if (!out) abort();
        const size_t n_out = utf8_stream_push(&stream, piece, n, out);
        if (utf8_valid_prefix(out, n_out) != n_out) abort();
        free(out);
        if (whole && (n > n_whole - at || memcmp(whole + at, piece, n) != 0)) abort();
        at += n;
    }
    if (whole && at != n_whole) abort();
}

static void encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                   bool must_come_back)
{
    int32_t *id = NULL;
    size_t n_id = 0;
    sac_error err = {0};
    if (tokenizer_encode(t, text, n, flags, &id, &n_id, &err) != SAC_OK) {
        if (err.msg[0] == '\0') abort();
        return;
    }
    check_ids(t, id, n_id, must_come_back ? text : NULL, n);
    mem_free(id);
}

/* What a template would get and give back has the ids of a text without control tokens. */
static void encode_guarded(const struct tokenizer *t, const char *text, size_t n)
{
    int32_t *plain = NULL, *guarded = NULL;
    size_t n_plain = 0, n_guarded = 0;
    char *copy = malloc(TOKENIZER_GUARD_GROWTH * n + 1);
    if (!copy) abort();
    const size_t n_copy = tokenizer_guard(t, text, n, copy);
    if (n_copy < n || n_copy > TOKENIZER_GUARD_GROWTH * n) abort();
    if (tokenizer_encode_guarded(t, copy, n_copy, &guarded, &n_guarded, NULL) != SAC_OK ||
        tokenizer_encode(t, text, n, SAC_TOK_ADD_SPECIAL, &plain, &n_plain, NULL) != SAC_OK)
        abort();
    if (n_plain != n_guarded || memcmp(plain, guarded, n_plain * sizeof *plain) != 0) abort();
    mem_free(plain);
    mem_free(guarded);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 3) return 0;
    const bool is_spm = data[0] & 1;
    const unsigned flags = data[0] >> 1 & 3;
    const size_t n_damage = data[2];
    char name[64];
    struct vocab_make v;
    make_vocabulary(&v, is_spm, pre_name(data[1], name, sizeof name));
    struct make_out o = vocab_bytes(&v);
    size_t at = 3;
    for (size_t i = 0; i < n_damage && at + 3 <= n; i++, at += 3)
        o.bytes[((size_t)data[at] | (size_t)data[at + 1] << 8) % o.n] = data[at + 2];
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    sac_error err = {0};
    sac_status status = gguf_open_memory(&g, o.bytes, o.n, &err);
    if (status == SAC_OK) status = tokenizer_create(&t, g, &(struct tokenizer_rules){0}, &err);
    gguf_close(g); /* a tokenizer keeps nothing of it */
    free(o.bytes);
    if (status == SAC_OK) {
        const char *text = (const char *)data + at;
        const bool whole = !is_spm && n_damage == 0 && !(flags & SAC_TOK_ADD_SPECIAL);
        encode(t, text, n - at, flags, whole && utf8_valid_prefix(text, n - at) == n - at);
        if (n_damage == 0) encode_guarded(t, text, n - at);
    } else if (err.msg[0] == '\0') {
        abort();
    }
    tokenizer_destroy(t);
    return 0;
}
