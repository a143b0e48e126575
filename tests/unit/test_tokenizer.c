/* Tokenizers on small vocabularies of their own, against slow and plain versions of what they must
 * do: merging, placing special tokens, decoding streams. Real models follow in
 * test_tokenizer_golden.c. */
#include "vocab_make.h"

#include "base/mem.h"
#include "model/pretok.h"
#include "model/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define ALL      (SAC_TOK_ADD_SPECIAL | SAC_TOK_PARSE_SPECIAL)

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

static sac_status create(struct tokenizer **out, const struct vocab_make *v, const char *pre,
                         sac_error *err)
{
    struct make_out o = vocab_bytes(v);
    struct gguf *g = NULL;
    sac_status status = gguf_open_memory(&g, o.bytes, o.n, err);
    if (status == SAC_OK)
        status = tokenizer_create(out, g, &(struct tokenizer_rules){.pre = pre}, err);
    gguf_close(g);
    free(o.bytes);
    return status;
}

static struct tokenizer *create_ok(const struct vocab_make *v)
{
    struct tokenizer *t = NULL;
    sac_error err = {0};
    if (create(&t, v, NULL, &err) != SAC_OK) fail_msg("%s", err.msg);
    return t;
}

static void create_fails(const struct vocab_make *v, const char *pre, sac_status want,
                         const char *says)
{
    struct tokenizer *t = NULL;
    sac_error err = {0};
    assert_int_equal(create(&t, v, pre, &err), want);
    assert_null(t);
    if (!strstr(err.msg, says)) fail_msg("'%s' does not say '%s'", err.msg, says);
}

/* Encodes and compares with `want` [n_want]. */
static void expect_ids(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                       const int32_t *want, size_t n_want)
{
    int32_t *id = NULL;
    size_t n_id = 0;
    sac_error err = {0};
    if (tokenizer_encode(t, text, n, flags, &id, &n_id, &err) != SAC_OK) fail_msg("%s", err.msg);
    bool same = n_id == n_want;
    for (size_t i = 0; same && i < n_id; i++) same = id[i] == want[i];
    if (!same) {
        for (size_t i = 0; i < n_id; i++) print_error("%d ", id[i]);
        print_error("\nis not\n");
        for (size_t i = 0; i < n_want; i++) print_error("%d ", want[i]);
        fail_msg("\nfor '%.*s'", (int)n, text);
    }
    mem_free(id);
}

#define EXPECT(t, text, flags, ...)                                                                \
    expect_ids(t, text, sizeof(text) - 1, flags, (const int32_t[]){__VA_ARGS__},                   \
               COUNT(((const int32_t[]){__VA_ARGS__})))

/* ---- Byte-level BPE ---- */

/* Ranks fight: "ab" before "bc", "aa" anywhere, doubles of doubles. Ids are 256 + rank. */
static const char *const merges[] = {"a b",   "b c",   "a a",     "aa aa", "ab c", "c ab", "Ġ a",
                                     "Ġa ab", "bc bc", "aaaa aa", "c c",   "cc c", "b ab"};

/* Merges by looking for the best pair from the start each time. Symbols are texts. */
static size_t merge_slowly(const struct tokenizer *t, const char *word, size_t n, int32_t *out)
{
    char(*symbol)[64] = calloc(n, sizeof *symbol);
    assert_non_null(symbol);
    for (size_t i = 0; i < n; i++)
        symbol[i][utf8_put(symbol[i], vocab_byte_char((uint8_t)word[i]))] = '\0';
    for (;;) {
        size_t best = COUNT(merges), at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            char pair[130];
            snprintf(pair, sizeof pair, "%s %s", symbol[i], symbol[i + 1]);
            for (size_t rank = 0; rank < best; rank++) {
                if (strcmp(pair, merges[rank]) == 0) best = rank, at = i;
            }
        }
        if (best == COUNT(merges)) break;
        const size_t n_left = strlen(symbol[at]), n_right = strlen(symbol[at + 1]);
        assert_true(n_left + n_right < sizeof *symbol);
        memcpy(symbol[at] + n_left, symbol[at + 1], n_right + 1);
        memmove(symbol + at + 1, symbol + at + 2, (n - at - 2) * sizeof *symbol);
        n--;
    }
    for (size_t i = 0; i < n; i++) out[i] = tokenizer_find(t, symbol[i], strlen(symbol[i]));
    free(symbol);
    return n;
}

static void bpe_merges_like_the_definition(void **state)
{
    (void)state;
    struct vocab_make v;
    vocab_start_bpe(&v, merges, COUNT(merges));
    struct tokenizer *t = create_ok(&v);
    uint32_t seed = 7;
    for (size_t round = 0; round < 3000; round++) {
        char word[120];
        int32_t want[120];
        /* Lengths on both sides of the switch to the heap; one word only: letters. */
        const size_t n = 1 + next_random(&seed) % sizeof word;
        for (size_t i = 0; i < n; i++) word[i] = "aaabbc"[next_random(&seed) % 6];
        expect_ids(t, word, n, 0, want, merge_slowly(t, word, n, want));
    }
    tokenizer_destroy(t);
}

static void bpe_equal_ranks_go_left_first(void **state)
{
    (void)state;
    struct vocab_make v;
    vocab_start_bpe(&v, merges, COUNT(merges));
    struct tokenizer *t = create_ok(&v);
    EXPECT(t, "aaa", 0, 258, 'a');
    EXPECT(t, "aaaaaaa", 0, 265, 'a');
    EXPECT(t, "abc aab", 0, 260, 263);
    tokenizer_destroy(t);
}

/* Long words must not take a time that grows with their square. A megabyte takes 0.3 s; were it
 * quadratic, hours. */
static void bpe_long_words_end(void **state)
{
    (void)state;
    struct vocab_make v;
    vocab_start_bpe(&v, merges, COUNT(merges));
    struct tokenizer *t = create_ok(&v);
    const size_t n = (size_t)1 << 20;
    char *text = malloc(n);
    assert_non_null(text);
    for (size_t kind = 0; kind < 4; kind++) {
        memset(text, " a\n\x80"[kind], n);
        int32_t *id = NULL;
        size_t n_id = 0;
        assert_int_equal(tokenizer_encode(t, text, n, 0, &id, &n_id, NULL), SAC_OK);
        assert_true(n_id >= n / 6);
        mem_free(id);
    }
    free(text);
    tokenizer_destroy(t);
}

static void bpe_repairs_what_is_not_utf8(void **state)
{
    (void)state;
    struct vocab_make v;
    vocab_start_bpe(&v, merges, COUNT(merges));
    struct tokenizer *t = create_ok(&v);
    /* Each byte that cannot be decoded becomes U+FFFD, an overlong form its shortest. */
    EXPECT(t, "\x80", 0, 0xef, 0xbf, 0xbd);
    EXPECT(t, "\xe4\xbd", 0, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd);
    EXPECT(t, "\xc0\x80", 0, 0);
    EXPECT(t,
           "\xc1\xa1"
           "b",
           0, 256);
    EXPECT(t, "\xed\xa0\x80", 0, 0xed, 0xa0, 0x80); /* surrogates stay */
    EXPECT(t, "\xf4\x90\x80\x80", 0, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd, 0xef,
           0xbf, 0xbd);
    EXPECT(t, "a\0b", 0, 'a', 0, 'b');
    tokenizer_destroy(t);
}

static void bpe_whole_words_may_go_first(void **state)
{
    (void)state;
    struct vocab_make v;
    vocab_start_bpe(&v, merges, COUNT(merges));
    const int32_t word = (int32_t)vocab_add(&v, "cab", T_NORMAL, 0);
    struct tokenizer *t = create_ok(&v);
    EXPECT(t, "cab", 0, 261); /* the merge's result is found first */
    tokenizer_destroy(t);
    vocab_start_bpe(&v, merges, COUNT(merges));
    v.bos = 0;
    vocab_add(&v, "Ġxyz", T_NORMAL, 0);
    t = create_ok(&v);
    EXPECT(t, "q xyz", 0, 'q', ' ', 'x', 'y', 'z');
    tokenizer_destroy(t);
    v.pre = "llama-bpe";
    t = create_ok(&v);
    EXPECT(t, "q xyz", 0, 'q', word);
    EXPECT(t, "q", ALL, 0, 'q'); /* this name adds BOS where the file is silent */
    tokenizer_destroy(t);
}

static void bpe_merges_that_make_no_token_end_as_bytes(void **state)
{
    (void)state;
    struct vocab_make v;
    static const char *const odd[] = {"x y", "nomerge", " z", "xy ", "é é", "x y"};
    vocab_start_bpe(&v, odd, 0);
    for (size_t i = 0; i < COUNT(odd); i++) v.merge[v.n_merge++] = odd[i];
    struct tokenizer *t = create_ok(&v);
    EXPECT(t, "xyx", 0, 'x', 'y', 'x');
    EXPECT(t, "\xe9\xe9", 0, 0xef, 0xbf, 0xbd, 0xef, 0xbf, 0xbd);
    tokenizer_destroy(t);
}

static void every_pre_tokeniser_covers_the_text(void **state)
{
    (void)state;
    static const char text[] = "It's 12345 o'clock,\r\n\n  \t x\xe4\xb8\xad\xe6\x96\x87"
                               "\xe2\x80\x83"
                               "ab  \xcc\x81"
                               "Ab1é!?  ";
    struct vocab_make v;
    vocab_start_bpe(&v, merges, 0);
    v.bos = 0;
    int32_t want[sizeof text];
    for (size_t i = 0; i < sizeof text - 1; i++) want[i] = (uint8_t)text[i];
    size_t n_name = 0;
    for (size_t i = 0; pretok_name_at(i); i++) {
        char names[256];
        assert_true(strlen(pretok_name_at(i)) < sizeof names);
        strcpy(names, pretok_name_at(i));
        for (char *rest, *name = strtok_r(names, " ", &rest); name;
             name = strtok_r(NULL, " ", &rest), n_name++) {
            struct tokenizer *t = NULL;
            sac_error err = {0};
            if (create(&t, &v, name, &err) != SAC_OK) fail_msg("%s: %s", name, err.msg);
            expect_ids(t, text, sizeof text - 1, 0, want, sizeof text - 1);
            tokenizer_destroy(t);
        }
    }
    assert_true(n_name > 50);
}

/* ---- SentencePiece-style BPE ---- */

#define U "\xe2\x96\x81"
static const struct {
    const char *text;
    float score;
} pieces[] = {{U, -1},       {"a", -2},    {"b", -3},         {"c", -4},
              {"ab", -5},    {"bc", -5},   {U "a", -6},       {U U, -7},
              {"aa", -8},    {U "ab", -9}, {"c" U, -5},       {"c" U "a", -4},
              {U U U U, -3}, {"aab", -10}, {"\xc3\xa4", -11}, {"a\xc3\xa4", -12}};
#define SPM_FIRST (3 + 256) /* id of pieces[0] */

static void start_pieces(struct vocab_make *v)
{
    vocab_start_spm(v);
    for (size_t i = 0; i < COUNT(pieces); i++)
        vocab_add(v, pieces[i].text, T_NORMAL, pieces[i].score);
}

static int find_piece(const char *s, size_t n)
{
    for (size_t i = 0; i < COUNT(pieces); i++) {
        if (strlen(pieces[i].text) == n && memcmp(pieces[i].text, s, n) == 0) return (int)i;
    }
    return -1;
}

/* Merges the whole text at once: the highest score, the leftmost of equals. */
static size_t spm_slowly(const char *text, size_t n, int32_t *out)
{
    size_t start[400], n_symbol = 0; /* symbol i is [start[i], start[i + 1]) */
    for (size_t at = 0; at < n; n_symbol++) {
        start[n_symbol] = at;
        at += utf8_lead_bytes(text[at]);
        if (at > n) at = n;
    }
    start[n_symbol] = n;
    for (;;) {
        int best = -1;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n_symbol; i++) {
            const int p = find_piece(text + start[i], start[i + 2] - start[i]);
            if (p >= 0 && (best < 0 || pieces[p].score > pieces[best].score)) best = p, at = i;
        }
        if (best < 0) break;
        memmove(start + at + 1, start + at + 2, (n_symbol - at - 1) * sizeof *start);
        n_symbol--;
    }
    size_t n_out = 0;
    for (size_t i = 0; i < n_symbol; i++) {
        const int p = find_piece(text + start[i], start[i + 1] - start[i]);
        if (p >= 0) out[n_out++] = SPM_FIRST + p;
        for (size_t j = start[i]; p < 0 && j < start[i + 1]; j++)
            out[n_out++] = 3 + (uint8_t)text[j];
    }
    return n_out;
}

/* Phi-3's tokenizer: the line break that a template puts behind <|user|> is no token, nor is the
 * white space of what follows. */
static void turns_of_phi3_take_white_space(void **state)
{
    (void)state;
    struct vocab_make v;
    sac_error err = {0};
    start_pieces(&v);
    const int32_t user = (int32_t)vocab_add(&v, "<|user|>", T_USER, 0);
    const int32_t end = (int32_t)vocab_add(&v, "<|end|>", T_CONTROL, 0);
    const int32_t end_of_text = (int32_t)vocab_add(&v, "<|endoftext|>", T_CONTROL, 0);
    const int32_t blank = SPM_FIRST, a = SPM_FIRST + 1, blank_a = SPM_FIRST + 6, line = 3 + '\n';
    struct make_out o = vocab_bytes(&v);
    for (int strips = 0; strips < 2; strips++) {
        struct tokenizer *t = NULL;
        struct gguf *g = NULL;
        const struct tokenizer_rules rules = {.turns_strip = strips};
        if (gguf_open_memory(&g, o.bytes, o.n, &err) != SAC_OK ||
            tokenizer_create(&t, g, &rules, &err) != SAC_OK)
            fail_msg("%s", err.msg);
        gguf_close(g);
        if (strips) {
            EXPECT(t, "<|user|>\r\n\t a<|end|>\v\f\n", SAC_TOK_PARSE_SPECIAL, user, blank_a, end);
            EXPECT(t, "<|user|> \n<|end|>", SAC_TOK_PARSE_SPECIAL, user, end);
            EXPECT(t, "</s>\na", SAC_TOK_PARSE_SPECIAL, 2, blank_a);
            EXPECT(t, "<|user|>\na", 0, user, blank_a); /* as in any text */
        } else {
            EXPECT(t, "<|user|>\na", SAC_TOK_PARSE_SPECIAL, user, blank, line, a);
        }
        /* Before a token nothing is dropped, nor behind these. */
        EXPECT(t, "a\n<|end|>", SAC_TOK_PARSE_SPECIAL, blank_a, line, end);
        EXPECT(t, "<|endoftext|>\na", SAC_TOK_PARSE_SPECIAL, end_of_text, blank, line, a);
        EXPECT(t, "<s>\na", SAC_TOK_PARSE_SPECIAL, 1, blank, line, a);
        tokenizer_destroy(t);
    }
    free(o.bytes);
}

/* Words are cut apart where no token reaches over the cut; "c" U forbids one of the cuts. */
static void spm_merges_like_the_definition(void **state)
{
    (void)state;
    struct vocab_make v;
    start_pieces(&v);
    v.add_space_prefix = 0;
    struct tokenizer *t = create_ok(&v);
    uint32_t seed = 9;
    for (size_t round = 0; round < 4000; round++) {
        static const char *const part[] = {" ",        " ",    "a",    "a", "b", "c",
                                           "\xc3\xa4", "\xe2", "\x81", U,   "z", "\xf0"};
        char text[120], escaped[360];
        int32_t want[360];
        size_t n = 0, n_escaped = 0;
        const size_t n_part = 1 + next_random(&seed) % (round % 2 ? 12 : 38);
        for (size_t i = 0; i < n_part; i++) {
            const char *const p = part[next_random(&seed) % COUNT(part)];
            memcpy(text + n, p, strlen(p));
            n += strlen(p);
        }
        for (size_t i = 0; i < n; i++) {
            const char *const p = text[i] == ' ' ? U : (const char[]){text[i], '\0'};
            memcpy(escaped + n_escaped, p, strlen(p));
            n_escaped += strlen(p);
        }
        expect_ids(t, text, n, 0, want, spm_slowly(escaped, n_escaped, want));
    }
    tokenizer_destroy(t);
}

static void spm_adds_its_prefix_and_bos(void **state)
{
    (void)state;
    struct vocab_make v;
    start_pieces(&v);
    struct tokenizer *t = create_ok(&v);
    const int32_t u = SPM_FIRST, ua = SPM_FIRST + 6;
    EXPECT(t, "a", ALL, 1, ua);
    EXPECT(t, "a", SAC_TOK_PARSE_SPECIAL, ua);
    EXPECT(t, "a<s>a", SAC_TOK_PARSE_SPECIAL, ua, 1, ua); /* again behind a special token */
    EXPECT(t, "<s>", 0, u, 3 + '<', 3 + 's', 3 + '>');
    expect_ids(t, "", 0, ALL, (const int32_t[]){1}, 1);
    expect_ids(t, "", 0, 0, NULL, 0);
    size_t n;
    assert_memory_equal(tokenizer_piece(t, ua, false, &n), " a", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(tokenizer_piece(t, 3 + 0xc3, false, &n), "\xc3", 1);
    assert_int_equal(n, 1);
    tokenizer_destroy(t);
    v.add_bos = 0;
    v.add_eos = 1;
    v.add_space_prefix = 0;
    t = create_ok(&v);
    EXPECT(t, "a", ALL, SPM_FIRST + 1, 2);
    tokenizer_destroy(t);
}

/* ---- Special tokens ---- */

/* Each token, from the longest, searched from left to right in what is not covered yet. */
static size_t cut_slowly(const char *const *special, size_t n_special, const char *text, size_t n,
                         int32_t *cover)
{
    for (size_t i = 0; i < n; i++) cover[i] = 0;
    int32_t n_placed = 0;
    for (size_t length = n; length > 0; length--) {
        for (size_t at = 0; at + length <= n; at++) {
            for (size_t k = 0; k < n_special; k++) {
                bool fits =
                    strlen(special[k]) == length && memcmp(text + at, special[k], length) == 0;
                for (size_t i = at; fits && i < at + length; i++) fits = cover[i] == 0;
                if (!fits) continue;
                n_placed++;
                for (size_t i = at; i < at + length; i++) cover[i] = n_placed;
            }
        }
    }
    return (size_t)n_placed;
}

static void special_tokens_are_placed_longest_first(void **state)
{
    (void)state;
    static const char *const special[] = {"a",  "ab",  "abc",  "bcd", "cdab",
                                          "dd", "ddd", "dddd", "ca"};
    struct vocab_make v;
    vocab_start_bpe(&v, merges, 0);
    for (size_t k = 0; k < COUNT(special); k++) {
        if (k) vocab_add(&v, special[k], T_USER, 0);
    }
    v.token['a'].kind = T_USER;
    struct tokenizer *t = create_ok(&v);
    uint32_t seed = 5;
    for (size_t round = 0; round < 4000; round++) {
        char text[40];
        int32_t cover[sizeof text], want[sizeof text];
        const size_t n = 1 + next_random(&seed) % sizeof text;
        for (size_t i = 0; i < n; i++) text[i] = "abcdd e"[next_random(&seed) % 7];
        cut_slowly(special, COUNT(special), text, n, cover);
        size_t n_want = 0;
        for (size_t i = 0; i < n;) {
            size_t length = 1;
            while (cover[i] && i + length < n && cover[i + length] == cover[i]) length++;
            want[n_want++] =
                tokenizer_find(t, text[i] == ' ' ? "Ġ" : text + i, text[i] == ' ' ? 2 : length);
            i += length;
        }
        expect_ids(t, text, n, 0, want, n_want);
    }
    tokenizer_destroy(t);
}

static void control_tokens_need_a_flag(void **state)
{
    (void)state;
    struct vocab_make v;
    vocab_start_bpe(&v, merges, 0);
    const int32_t end = (int32_t)vocab_add(&v, "<|im_end|>", T_NORMAL, 0);
    const int32_t user = (int32_t)vocab_add(&v, "[X]", T_USER, 0);
    const int32_t ctrl = (int32_t)vocab_add(&v, "<C>", T_CONTROL, 0);
    const int32_t pad = (int32_t)vocab_add(&v, "<|fim_pad|>", T_USER, 0);
    const int32_t unused = (int32_t)vocab_add(&v, "[U]", T_UNUSED, 0);
    v.eos = (uint32_t)ctrl;
    struct tokenizer *t = create_ok(&v);
    EXPECT(t, "<C>[X]", 0, '<', 'C', '>', user);
    EXPECT(t, "<C>[X]<|im_end|>", SAC_TOK_PARSE_SPECIAL, ctrl, user, end);
    EXPECT(t, "[X", SAC_TOK_PARSE_SPECIAL, '[', 'X');
    assert_true(tokenizer_is_control(t, end) && tokenizer_is_eog(t, end));
    assert_true(tokenizer_is_eog(t, ctrl) && tokenizer_eos(t) == ctrl);
    assert_true(tokenizer_is_eog(t, pad) && tokenizer_is_control(t, pad));
    assert_false(tokenizer_is_eog(t, user) || tokenizer_is_control(t, user));
    assert_false(tokenizer_is_eog(t, -1) || tokenizer_is_eog(t, 1 << 20));
    size_t n;
    assert_string_equal(tokenizer_piece(t, ctrl, false, &n), "");
    assert_int_equal(n, 0);
    assert_memory_equal(tokenizer_piece(t, ctrl, true, &n), "<C>", 3);
    assert_int_equal(n, 3);
    assert_memory_equal(tokenizer_piece(t, user, false, &n), "[X]", 3);
    tokenizer_piece(t, unused, true, &n);
    assert_int_equal(n, 0);
    tokenizer_piece(t, -1, true, &n);
    assert_int_equal(n, 0);
    assert_int_equal(tokenizer_n_vocab(t), v.n_token);
    tokenizer_destroy(t);
}

/* A token that ends one message does not end the answer where others end the turn. */
static void eog_depends_on_company(void **state)
{
    (void)state;
    struct vocab_make v;
    vocab_start_bpe(&v, merges, 0);
    const int32_t end = (int32_t)vocab_add(&v, "<|end|>", T_CONTROL, 0);
    struct tokenizer *t = create_ok(&v);
    assert_true(tokenizer_is_eog(t, end));
    tokenizer_destroy(t);
    const int32_t call = (int32_t)vocab_add(&v, "<|call|>", T_CONTROL, 0);
    vocab_add(&v, "<|return|>", T_CONTROL, 0);
    t = create_ok(&v);
    assert_false(tokenizer_is_eog(t, end) || tokenizer_is_control(t, end));
    assert_true(tokenizer_is_eog(t, call));
    tokenizer_destroy(t);
}

/* ---- Streams of pieces ---- */

#define R "\xef\xbf\xbd"
static void streams_keep_characters_whole(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"h\xc3\xa9 \xe4\xbd\xa0 \xf0\x9f\x91\x8d!", "h\xc3\xa9 \xe4\xbd\xa0 \xf0\x9f\x91\x8d!"},
        {"\x80x\xff", R "x" R},
        {"\xc3x", R "x"},
        {"\xe4\xbdx\xe4", R "x" R},
        {"\xf0\x9f\x91", R},
        {"\xc0\x80", R R},             /* overlong */
        {"\xe0\x80\x80", R R R},       /* overlong: the second byte already fails */
        {"\xed\xa0\x80", R R R},       /* surrogate */
        {"\xf4\x90\x80\x80", R R R R}, /* beyond U+10FFFF */
        {"\xf0\x9f\xc3\xa9", R "\xc3\xa9"},
        {"\xe4\xe4\xbd\xa0", R "\xe4\xbd\xa0"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const size_t n = strlen(cases[i].in);
        for (size_t cut = 0; cut <= n; cut++) { /* in two pushes, and byte by byte at cut 0 */
            struct utf8_stream s = {0};
            char out[128];
            size_t done = 0;
            for (size_t at = 0; at < n;) {
                const size_t step = cut == 0 ? 1 : at < cut ? cut - at : n - at;
                const size_t before = done;
                done += utf8_stream_push(&s, cases[i].in + at, step, out + done);
                assert_int_equal(utf8_valid_prefix(out + before, done - before), done - before);
                at += step;
            }
            done += utf8_stream_flush(&s, out + done);
            assert_int_equal(done, strlen(cases[i].out));
            assert_memory_equal(out, cases[i].out, done);
        }
    }
}

/* ---- Files that are wrong, memory that is short ---- */

static void wrong_vocabularies_are_named(void **state)
{
    (void)state;
    struct vocab_make v;
    vocab_start_bpe(&v, merges, COUNT(merges));
    create_fails(&v, "nonsense", SAC_ERR_UNSUPPORTED, "'nonsense' is not known; known are default");
    v.pre = "other";
    create_fails(&v, NULL, SAC_ERR_UNSUPPORTED, "tokenizer.ggml.pre: pre-tokeniser 'other'");
    v.pre = NULL;
    create_fails(&v, NULL, SAC_ERR_UNSUPPORTED, "no key tokenizer.ggml.pre");
    v.pre = "gpt-2";
    v.model = "bert";
    create_fails(&v, NULL, SAC_ERR_UNSUPPORTED, "'bert' is not known; known are gpt2 llama");
    v.model = NULL;
    create_fails(&v, NULL, SAC_ERR_NOT_FOUND, "tokenizer.ggml.model");
    v.model = "gpt2";
    v.eos = 100000;
    create_fails(&v, NULL, SAC_ERR_FORMAT, "tokenizer.ggml.eos_token_id is 100000");
    v.eos = VOCAB_ID_ABSENT;
    v.n_token = 4;
    v.add_bos = 1;
    create_fails(&v, NULL, SAC_ERR_FORMAT, "add_bos_token without a BOS");
    v.n_token = 0;
    create_fails(&v, NULL, SAC_ERR_FORMAT, "tokenizer.ggml.tokens");
    start_pieces(&v);
    create_fails(&v, "gpt-2", SAC_ERR_ARG, "has none");
    v.token[5].score = -__builtin_nanf("");
    create_fails(&v, NULL, SAC_ERR_FORMAT, "element 5 is not a number");
}

/* With the n-th allocation failing, n = 1, 2, ..., creating and encoding report it and lose
 * nothing, until n is beyond all of them. */
static void memory_may_run_out(void **state)
{
    (void)state;
    static const char text[] =
        "abcabc <|im_end|>\xff [X] aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    for (int kind = 0; kind < 2; kind++) {
        struct vocab_make v;
        if (kind) {
            start_pieces(&v);
        } else {
            vocab_start_bpe(&v, merges, COUNT(merges));
            v.pre = "llama-bpe";
            v.bos = 0;
        }
        vocab_add(&v, "<|im_end|>", T_CONTROL, 0);
        vocab_add(&v, "[X]", T_USER, 0);
        vocab_add(&v, "X]", T_USER, 0);
        struct make_out o = vocab_bytes(&v);
        struct gguf *g = NULL;
        assert_int_equal(gguf_open_memory(&g, o.bytes, o.n, NULL), SAC_OK);
        uint64_t n = 1;
        for (bool whole = false; !whole; n++) {
            struct tokenizer *t = NULL;
            int32_t *id = NULL;
            size_t n_id;
            sac_error err = {0};
            mem_fail_after(n);
            sac_status status = tokenizer_create(&t, g, &(struct tokenizer_rules){0}, &err);
            if (status == SAC_OK)
                status = tokenizer_encode(t, text, sizeof text - 1, ALL, &id, &n_id, &err);
            mem_fail_after(0);
            whole = status == SAC_OK;
            if (!whole && (status != SAC_ERR_MEMORY || id)) fail_msg("%d: %s", status, err.msg);
            mem_free(id);
            tokenizer_destroy(t);
            assert_true(n < 1000);
        }
        assert_true(n > 20);
        gguf_close(g);
        free(o.bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bpe_merges_like_the_definition),
        cmocka_unit_test(bpe_equal_ranks_go_left_first),
        cmocka_unit_test(bpe_long_words_end),
        cmocka_unit_test(bpe_repairs_what_is_not_utf8),
        cmocka_unit_test(bpe_whole_words_may_go_first),
        cmocka_unit_test(bpe_merges_that_make_no_token_end_as_bytes),
        cmocka_unit_test(every_pre_tokeniser_covers_the_text),
        cmocka_unit_test(spm_merges_like_the_definition),
        cmocka_unit_test(turns_of_phi3_take_white_space),
        cmocka_unit_test(spm_adds_its_prefix_and_bos),
        cmocka_unit_test(special_tokens_are_placed_longest_first),
        cmocka_unit_test(control_tokens_need_a_flag),
        cmocka_unit_test(eog_depends_on_company),
        cmocka_unit_test(streams_keep_characters_whole),
        cmocka_unit_test(wrong_vocabularies_are_named),
        cmocka_unit_test(memory_may_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
