/* tokenizer_spm.c: SentencePiece-style BPE: one symbol per character, merges by the score of the
 * resulting token, bytes for what is not a token.
 *
 * Merging is defined over a whole text. It is nevertheless done word by word where the result is
 * the same: a cut before U+2581 is safe if no token has U+2581 after the character on its left,
 * because merges only produce tokens. `glued` knows, by the last byte of that character, whether
 * such a token exists.
 *
 * Characters are cut by their lead byte alone, as in llama.cpp (the peer), so a stray lead byte
 * takes up to three followers with it; nothing is repaired, and invalid UTF-8 is reproduced byte
 * for byte. */
#include "base/half.h"
#include "base/mem.h"
#include "model/tokenizer_kind.h"
#include "model/utf8.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char blank[3] = {'\xe2', '\x96', '\x81'};

static bool is_blank(const char *s, size_t n)
{
    return n == sizeof blank && memcmp(s, blank, sizeof blank) == 0;
}

/* Maps scores to numbers of the reverse order; +0 and -0 are equal. */
static uint32_t key_of_score(float score)
{
    const uint32_t u = float_bits(score + 0.0f);
    const uint32_t rising = u & 0x80000000u ? ~u : u | 0x80000000u;
    return ~rising;
}

static void note_glue(struct spm *s, const char *text, size_t n)
{
    for (size_t i = 1; i + sizeof blank <= n; i++) {
        if (is_blank(text + i, sizeof blank) && !(i >= 3 && is_blank(text + i - 3, 3)))
            s->glued[(uint8_t)text[i - 1]] = true;
    }
}

sac_status tokenizer_spm_init(struct spm *s, const struct vocab *v, const struct gguf *g,
                              sac_error *err)
{
    s->vocab = v;
    s->key = mem_alloc(v->n_tok * sizeof *s->key);
    if (!s->key) return error_set(err, SAC_ERR_MEMORY, "no memory for the order of tokens");
    for (uint32_t i = 0; i < v->n_tok; i++) {
        size_t n;
        const char *const text = strtab_get(&v->text, i, &n);
        s->key[i] = key_of_score(v->score[i]);
        note_glue(s, text, n);
    }
    for (int b = 0; b < 256; b++) {
        char text[8];
        const int n = snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        const char c = (char)b;
        s->byte_id[b] = vocab_find(v, text, (size_t)n);
        if (s->byte_id[b] == VOCAB_NO_TOKEN) s->byte_id[b] = vocab_find(v, &c, 1);
        if (s->byte_id[b] == VOCAB_NO_TOKEN) s->byte_id[b] = v->unk;
        if (s->byte_id[b] == VOCAB_NO_TOKEN)
            return error_set(
                err, SAC_ERR_FORMAT,
                "%s: the vocabulary has neither a token for byte 0x%02X nor an unknown "
                "token",
                gguf_path(g), (unsigned)b);
    }
    return SAC_OK;
}

void tokenizer_spm_deinit(struct spm *s)
{
    mem_free(s->key);
    *s = (struct spm){0};
}

/* ---- Encoding ---- */

struct run {
    const struct spm *spm;
    const char *word; /* offsets of symbols are relative to it */
};

static uint32_t find_pair(const void *ctx, const struct merge_symbol *left,
                          const struct merge_symbol *right, uint32_t *out_id)
{
    const struct run *const r = ctx;
    assert(left->at + left->n == right->at);
    const int32_t tok = vocab_find(r->spm->vocab, r->word + left->at, left->n + right->n);
    if (tok == VOCAB_NO_TOKEN) return MERGE_NONE;
    *out_id = (uint32_t)tok;
    return r->spm->key[tok];
}

static void put_symbol(const struct run *r, struct encode *e, const struct merge_symbol *s)
{
    const int32_t tok =
        s->id != STRTAB_NONE ? (int32_t)s->id : vocab_find(r->spm->vocab, r->word + s->at, s->n);
    if (tok != VOCAB_NO_TOKEN) {
        encode_put(e, tok);
        return;
    }
    for (uint32_t i = 0; i < s->n; i++) encode_put(e, r->spm->byte_id[(uint8_t)r->word[s->at + i]]);
}

static void encode_word(struct run *r, struct encode *e, const char *word, size_t n)
{
    uint64_t hash;
    if (encode_repeat(e, word, n, &hash)) return;
    const size_t id_at = e->n;
    r->word = word;
    merge_clear(&e->merge);
    for (size_t i = 0, step; i < n; i += step) {
        step = utf8_lead_bytes(word[i]);
        if (step > n - i) step = n - i;
        const struct merge_symbol c = {.at = (uint32_t)i, .n = (uint32_t)step, .id = STRTAB_NONE};
        merge_add(&e->merge, c);
    }
    merge_run(&e->merge);
    e->failed |= e->merge.failed;
    if (e->failed) return;
    for (size_t i = 0; i < e->merge.n; i++) put_symbol(r, e, &e->merge.symbol[i]);
    encode_remember(e, word, n, hash, id_at);
}

/* Cuts an escaped part into words at the blanks where that is safe. */
static void encode_part(struct run *r, struct encode *e, const char *s, size_t n)
{
    size_t start = 0;
    bool after_blank = true; /* or at the start: no cut */
    for (size_t i = 0, step; i < n; i += step) {
        step = utf8_lead_bytes(s[i]);
        if (step > n - i) step = n - i;
        const bool here = is_blank(s + i, step);
        if (here && !after_blank && !r->spm->glued[(uint8_t)s[i - 1]]) {
            encode_word(r, e, s + start, i - start);
            start = i;
        }
        after_blank = here;
    }
    if (n > start) encode_word(r, e, s + start, n - start);
}

/* Writes the text with its blanks as U+2581. */
static size_t escape(char *out, const char *s, size_t n)
{
    size_t done = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == ' ') {
            memcpy(out + done, blank, sizeof blank);
            done += sizeof blank;
        } else {
            out[done++] = s[i];
        }
    }
    return done;
}

sac_status tokenizer_spm_encode(const struct spm *s, struct encode *e, const char *text,
                                const struct special_parts *parts, sac_error *err)
{
    struct run r = {.spm = s};
    e->merge.pair = find_pair;
    e->merge.ctx = &r;
    size_t bytes = 0; /* of all parts, escaped */
    for (size_t i = 0; i < parts->n; i++) {
        const struct special_part p = parts->part[i];
        bytes += p.n + sizeof blank;
        for (size_t j = 0; j < p.n; j++) bytes += text[p.at + j] == ' ' ? 2 : 0;
    }
    char *const escaped = mem_alloc(bytes);
    if (!escaped) return error_set(err, SAC_ERR_MEMORY, "no memory for %zu bytes of text", bytes);
    size_t at = 0;
    bool prefix = s->vocab->add_space_prefix; /* at the start and after special tokens */
    for (size_t i = 0; i < parts->n && !e->failed; i++) {
        const struct special_part p = parts->part[i];
        if (p.tok != VOCAB_NO_TOKEN) {
            encode_put(e, p.tok);
            prefix = s->vocab->add_space_prefix;
            continue;
        }
        size_t n = prefix ? escape(escaped + at, " ", 1) : 0;
        n += escape(escaped + at + n, text + p.at, p.n);
        encode_part(&r, e, escaped + at, n);
        at += n;
        prefix = false;
    }
    assert(at <= bytes);
    mem_free(escaped);
    return SAC_OK;
}
