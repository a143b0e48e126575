/* vocab.c: reads and checks the vocabulary of a GGUF file.
 *
 * The file is hostile: every id is compared with the number of tokens, every array with its
 * required length, and scores must be numbers. Some defects that other programs tolerate are errors
 * here: a special id outside the vocabulary is an error that names its key.
 *
 * Files name only one or two ids that end a generation, so, as in llama.cpp (the peer), tokens with
 * certain texts do so too, and count as control tokens whatever the file says. */
#include "model/vocab.h"

#include "base/mem.h"
#include "model/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Kinds of tokens by their number in the file. */
enum file_kind {
    FILE_NORMAL = 1,
    FILE_UNKNOWN,
    FILE_CONTROL,
    FILE_USER,
    FILE_UNUSED,
    FILE_BYTE,
};

static const char *const eog_texts[] = {
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\xef\xbd\x9c"
    "end\xe2\x96\x81of\xe2\x96\x81sentence\xef\xbd\x9c>",
    "[e~[",
};

/* Tokens of fill-in-the-middle: the id of the key, otherwise the first of the texts that exists. */
struct fim_token {
    const char *key, *old_key; /* old_key may be NULL */
    bool eog;
    const char *text[8];
};

static const struct fim_token fim_tokens[] = {
    {"fim_pre_token_id",
     "prefix_token_id",
     false,
     {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "begin\xef\xbd\x9c>",
      "<PRE>", "\xe2\x96\x81<PRE>", "<|code_prefix|>", "<|prefix|>"}},
    {"fim_suf_token_id",
     "suffix_token_id",
     false,
     {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81hole\xef\xbd\x9c>",
      "<SUF>", "\xe2\x96\x81<SUF>", "<|code_suffix|>", "<|suffix|>"}},
    {"fim_mid_token_id",
     "middle_token_id",
     false,
     {"<|fim_middle|>", "<fim-middle>", "<fim_middle>",
      "<\xef\xbd\x9c"
      "fim\xe2\x96\x81"
      "end\xef\xbd\x9c>",
      "<MID>", "\xe2\x96\x81<MID>", "<|code_middle|>", "<|middle|>"}},
    {"fim_pad_token_id", NULL, true, {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
    {"fim_rep_token_id",
     NULL,
     true,
     {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
    {"fim_sep_token_id", NULL, true, {"<|file_sep|>"}},
};

static int32_t find_text(const struct vocab *v, const char *s)
{
    return vocab_find(v, s, strlen(s));
}

/* An array of the file with at least one element per token, or NULL if it is optional and
 * absent. */
static sac_status token_array(const struct gguf_key **out, const struct gguf *g, const char *name,
                              const struct vocab *v, sac_error *err)
{
    *out = gguf_key_find(g, name);
    if (*out && (!(*out)->is_array || (*out)->n < v->n_tok))
        return error_set(err, SAC_ERR_FORMAT, "%s: %s has %llu elements, the vocabulary %u tokens",
                         gguf_path(g), name, (unsigned long long)(*out)->n, v->n_tok);
    return SAC_OK;
}

static sac_status read_texts(struct vocab *v, const struct gguf *g, sac_error *err)
{
    static const char name[] = "tokenizer.ggml.tokens";
    const struct gguf_key *const key = gguf_key_find(g, name);
    if (!key) return error_set(err, SAC_ERR_NOT_FOUND, "%s: no key %s", gguf_path(g), name);
    if (!key->is_array || key->type != GGUF_STRING || key->n == 0 || key->n > INT32_MAX / 2)
        return error_set(err, SAC_ERR_FORMAT, "%s: %s is no list of tokens", gguf_path(g), name);
    v->n_tok = (uint32_t)key->n;
    bool ok = strtab_reserve(&v->text, v->n_tok, 1);
    size_t at = 0;
    for (uint32_t i = 0; ok && i < v->n_tok; i++) {
        struct gguf_str s;
        TRY(gguf_key_next_str(key, &at, &s, err));
        ok = strtab_add(&v->text, s.s, s.n, s.n > 0);
    }
    return ok ? SAC_OK
              : error_set(err, SAC_ERR_MEMORY, "%s: no memory for %u tokens", gguf_path(g),
                          v->n_tok);
}

static sac_status read_kinds(struct vocab *v, const struct gguf *g, sac_error *err)
{
    static const uint8_t kind_of[] = {
        [FILE_NORMAL] = VOCAB_NORMAL,
        [FILE_UNKNOWN] = VOCAB_UNKNOWN,
        [FILE_CONTROL] = VOCAB_CONTROL,
        [FILE_USER] = VOCAB_USER,
        [FILE_UNUSED] = 0,
        [FILE_BYTE] = VOCAB_BYTE,
    };
    const struct gguf_key *key;
    TRY(token_array(&key, g, "tokenizer.ggml.token_type", v, err));
    v->kind = mem_alloc(v->n_tok);
    if (!v->kind) return error_set(err, SAC_ERR_MEMORY, "no memory for the kinds of tokens");
    memset(v->kind, VOCAB_NORMAL, v->n_tok);
    for (uint32_t i = 0; key && i < v->n_tok; i++) {
        int32_t kind;
        TRY(gguf_key_i32(key, i, &kind, err));
        v->kind[i] = kind >= 0 && (size_t)kind < sizeof kind_of ? kind_of[kind] : 0;
    }
    return SAC_OK;
}

static sac_status read_scores(struct vocab *v, const struct gguf *g, sac_error *err)
{
    static const char name[] = "tokenizer.ggml.scores";
    if (v->spelling != VOCAB_SPM) return SAC_OK;
    const struct gguf_key *key;
    TRY(token_array(&key, g, name, v, err));
    v->score = mem_calloc(v->n_tok, sizeof *v->score);
    if (!v->score) return error_set(err, SAC_ERR_MEMORY, "no memory for the scores of tokens");
    for (uint32_t i = 0; key && i < v->n_tok; i++) {
        TRY(gguf_key_f32(key, i, &v->score[i], err));
        if (isnan(v->score[i]))
            return error_set(err, SAC_ERR_FORMAT, "%s: %s: element %u is not a number",
                             gguf_path(g), name, i);
    }
    return SAC_OK;
}

/* Reads the id of tokenizer.ggml.<name>, if the file has it. */
static sac_status read_id(const struct vocab *v, const struct gguf *g, const char *name,
                          int32_t *inout, sac_error *err)
{
    char key[64];
    const int n = snprintf(key, sizeof key, "tokenizer.ggml.%s", name);
    assert(n > 0 && (size_t)n < sizeof key);
    (void)n;
    if (!gguf_key_find(g, key)) return SAC_OK;
    uint32_t id;
    TRY(gguf_get_u32(g, key, &id, err));
    if (id >= v->n_tok)
        return error_set(err, SAC_ERR_FORMAT, "%s: %s is %u, the vocabulary has %u tokens",
                         gguf_path(g), key, id, v->n_tok);
    *inout = (int32_t)id;
    return SAC_OK;
}

static sac_status read_flag(const struct gguf *g, const char *key, bool *inout, sac_error *err)
{
    return gguf_key_find(g, key) ? gguf_get_bool(g, key, inout, err) : SAC_OK;
}

static void mark_eog(struct vocab *v, int32_t id)
{
    if (id != VOCAB_NO_TOKEN) v->kind[id] |= VOCAB_EOG;
}

static sac_status read_fim(struct vocab *v, const struct gguf *g, sac_error *err)
{
    for (size_t i = 0; i < sizeof fim_tokens / sizeof *fim_tokens; i++) {
        const struct fim_token *const fim = &fim_tokens[i];
        int32_t id = VOCAB_NO_TOKEN;
        TRY(read_id(v, g, fim->key, &id, err));
        if (fim->old_key) TRY(read_id(v, g, fim->old_key, &id, err));
        if (id == VOCAB_NO_TOKEN) {
            for (size_t j = 0; j < 8 && fim->text[j] && id == VOCAB_NO_TOKEN; j++)
                id = find_text(v, fim->text[j]);
            if (id != VOCAB_NO_TOKEN) v->kind[id] |= VOCAB_CONTROL;
        }
        if (fim->eog) mark_eog(v, id);
    }
    return SAC_OK;
}

static bool is_eog_text(const struct vocab *v, const char *s)
{
    const int32_t id = find_text(v, s);
    return id != VOCAB_NO_TOKEN && (v->kind[id] & VOCAB_EOG);
}

/* Models in which a text that usually ends a generation has another meaning. */
static void correct_eog(struct vocab *v)
{
    static const char *const shown[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        const int32_t id = find_text(v, shown[i]);
        if (id != VOCAB_NO_TOKEN) v->kind[id] = VOCAB_USER | (v->kind[id] & VOCAB_EOG);
    }
    /* Where turns end by return, call or flush, <|end|> only ends one message of several. */
    const bool calls = is_eog_text(v, "<|call|>") || is_eog_text(v, "<|calls|>");
    if (calls && (is_eog_text(v, "<|return|>") || is_eog_text(v, "<|flush|>")) &&
        is_eog_text(v, "<|end|>"))
        v->kind[find_text(v, "<|end|>")] = VOCAB_USER;
    if (is_eog_text(v, "</s>") &&
        (is_eog_text(v, "<|tool_response>") || is_eog_text(v, "<|plamo:eos|>")))
        v->kind[find_text(v, "</s>")] = VOCAB_NORMAL;
}

static sac_status read_special(struct vocab *v, const struct gguf *g,
                               const struct vocab_defaults *d, sac_error *err)
{
    int32_t eot = VOCAB_NO_TOKEN, eom = VOCAB_NO_TOKEN;
    v->bos = d->bos < (int32_t)v->n_tok ? d->bos : VOCAB_NO_TOKEN;
    v->eos = d->eos < (int32_t)v->n_tok ? d->eos : VOCAB_NO_TOKEN;
    v->unk = d->unk < (int32_t)v->n_tok ? d->unk : VOCAB_NO_TOKEN;
    TRY(read_id(v, g, "bos_token_id", &v->bos, err));
    TRY(read_id(v, g, "eos_token_id", &v->eos, err));
    TRY(read_id(v, g, "eot_token_id", &eot, err));
    TRY(read_id(v, g, "eom_token_id", &eom, err));
    TRY(read_id(v, g, "unknown_token_id", &v->unk, err));
    TRY(read_fim(v, g, err));
    for (size_t i = 0; i < sizeof eog_texts / sizeof *eog_texts; i++) {
        const int32_t id = find_text(v, eog_texts[i]);
        if (id != VOCAB_NO_TOKEN) v->kind[id] |= VOCAB_CONTROL | VOCAB_EOG;
    }
    mark_eog(v, v->eos);
    mark_eog(v, eot);
    mark_eog(v, eom);
    correct_eog(v);

    v->add_bos = d->add_bos;
    v->add_space_prefix = d->add_space_prefix;
    TRY(read_flag(g, "tokenizer.ggml.add_bos_token", &v->add_bos, err));
    TRY(read_flag(g, "tokenizer.ggml.add_eos_token", &v->add_eos, err));
    TRY(read_flag(g, "tokenizer.ggml.add_space_prefix", &v->add_space_prefix, err));
    const bool lacks_bos = v->add_bos && v->bos == VOCAB_NO_TOKEN;
    if (lacks_bos || (v->add_eos && v->eos == VOCAB_NO_TOKEN))
        return error_set(err, SAC_ERR_FORMAT, "%s: tokenizer.ggml.add_%s_token without a %s token",
                         gguf_path(g), lacks_bos ? "bos" : "eos", lacks_bos ? "BOS" : "EOS");
    return SAC_OK;
}

/* ---- Pieces ---- */

/* GPT-2's alphabet: printable Latin-1 characters represent themselves; the other 68 bytes are
 * U+0100 and up. */
static bool stands_for_itself(uint32_t byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
}

uint32_t vocab_byte_char(uint8_t byte)
{
    if (stands_for_itself(byte)) return byte;
    uint32_t n_before = 0;
    for (uint32_t b = 0; b < byte; b++) n_before += !stands_for_itself(b);
    return 0x100 + n_before;
}

/* Decodes a byte-level text; characters outside the alphabet are copied. */
static size_t decode_byte_level(char *out, const char *s, size_t n, const uint8_t byte_of[0x144])
{
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        size_t step = utf8_get_loose(s + i, n - i, &cp);
        if (step && cp < 0x144 && (byte_of[cp] || cp == vocab_byte_char(0))) {
            out[done++] = (char)byte_of[cp];
        } else {
            if (step == 0) step = 1;
            memcpy(out + done, s + i, step);
            done += step;
        }
        i += step;
    }
    return done;
}

static size_t decode_spm(char *out, const char *s, size_t n)
{
    size_t done = 0;
    for (size_t i = 0; i < n; i++) {
        const bool blank = n - i >= 3 && memcmp(s + i, "\xe2\x96\x81", 3) == 0;
        out[done++] = blank ? ' ' : s[i];
        if (blank) i += 2;
    }
    return done;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The byte of a text <0xNN>; -1 for other texts. */
static int byte_of_text(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>') return -1;
    const int hi = hex_digit(s[3]), lo = hex_digit(s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* Pieces are never longer than texts, so one block of that size holds them. */
static sac_status make_pieces(struct vocab *v, sac_error *err)
{
    uint8_t byte_of[0x144] = {0};
    for (uint32_t b = 0; b < 256; b++) byte_of[vocab_byte_char((uint8_t)b)] = (uint8_t)b;
    v->piece = mem_alloc(v->text.end[v->n_tok - 1]);
    v->piece_end = mem_alloc(v->n_tok * sizeof *v->piece_end);
    if (!v->piece || !v->piece_end)
        return error_set(err, SAC_ERR_MEMORY, "no memory for the pieces of %u tokens", v->n_tok);
    size_t at = 0;
    for (uint32_t i = 0; i < v->n_tok; i++) {
        size_t n;
        const char *const s = strtab_get(&v->text, i, &n);
        const int byte = v->kind[i] & VOCAB_BYTE ? byte_of_text(s, n) : -1;
        if (byte >= 0) {
            v->piece[at++] = (char)byte;
        } else if (v->kind[i] & (VOCAB_CONTROL | VOCAB_UNKNOWN | VOCAB_USER | VOCAB_BYTE)) {
            memcpy(v->piece + at, s, n);
            at += n;
        } else if (v->kind[i] & VOCAB_NORMAL) {
            at += v->spelling == VOCAB_SPM ? decode_spm(v->piece + at, s, n)
                                           : decode_byte_level(v->piece + at, s, n, byte_of);
        }
        v->piece_end[i] = (uint32_t)at;
    }
    assert(at <= v->text.end[v->n_tok - 1]);
    return SAC_OK;
}

sac_status vocab_init(struct vocab *v, const struct gguf *g, const struct vocab_defaults *d,
                      sac_error *err)
{
    v->spelling = d->spelling;
    TRY(read_texts(v, g, err));
    TRY(read_kinds(v, g, err));
    TRY(read_scores(v, g, err));
    TRY(read_special(v, g, d, err));
    return make_pieces(v, err);
}

void vocab_deinit(struct vocab *v)
{
    strtab_deinit(&v->text);
    mem_free(v->kind);
    mem_free(v->score);
    mem_free(v->piece);
    mem_free(v->piece_end);
    *v = (struct vocab){0};
}
