/* tokenizer.c: combines vocabulary, special tokens and the two kinds of tokenizers.
 *
 * Encoding: the text is cut at special tokens (special.c), the text between them is encoded by kind
 * (tokenizer_bpe.c, tokenizer_spm.c), and BOS and EOS are added. All scratch belongs to the call,
 * so threads can share a tokenizer. Text for a template is guarded before rendering and encoded
 * after it: what a document spells out never becomes a control token. There is no normalisation
 * (NFC, lower case), because no model of the supported kinds asks for it. White space beside
 * special tokens is kept (no LSTRIP or RSTRIP), except after those of Phi-3, whose original
 * tokenizer drops it there. */
#include "model/tokenizer.h"

#include "base/mem.h"
#include "model/tokenizer_kind.h"
#include "model/utf8.h"

#include <assert.h>
#include <string.h>

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe; /* one of the two, by vocab.spelling */
    struct spm spm;
    struct special user;    /* tokens that are found in any text */
    struct special named;   /* the same and control tokens, for SAC_TOK_PARSE_SPECIAL */
    struct special control; /* tokens that tokenizer_guard keeps from being spelled */
};

/* Chooses the pre-tokeniser: the caller's, else the file's. */
static sac_status create_pretok(struct pretok **out, const struct gguf *g, const char *pre,
                                sac_error *err)
{
    static const char name[] = "tokenizer.ggml.pre";
    if (pre) return pretok_create(out, pre, strlen(pre), "override", err);
    if (!gguf_key_find(g, name))
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "%s: no key %s: how words are cut is not known, and the text would be "
                         "encoded wrongly; name the pre-tokeniser yourself ('default' if unsure)",
                         gguf_path(g), name);
    struct gguf_str s;
    TRY(gguf_get_str(g, name, &s, err));
    const sac_status status = pretok_create(out, s.s, s.n, name, err);
    return status == SAC_OK ? status : error_prefix(err, status, "%s", gguf_path(g));
}

static sac_status init_bpe(struct tokenizer *t, const struct gguf *g, const char *pre,
                           sac_error *err)
{
    struct pretok *pretok;
    TRY(create_pretok(&pretok, g, pre, err));
    const struct pretok_traits traits = pretok_get_traits(pretok);
    const struct vocab_defaults d = {
        .spelling = VOCAB_BYTE_LEVEL,
        .bos = traits.no_bos ? VOCAB_NO_TOKEN : 11, /* old GPT-2 files have no ids */
        .eos = 11,
        .unk = VOCAB_NO_TOKEN,
        .add_bos = traits.add_bos,
    };
    const sac_status status = vocab_init(&t->vocab, g, &d, err);
    if (status != SAC_OK) {
        pretok_destroy(pretok);
        return status;
    }
    return tokenizer_bpe_init(&t->bpe, &t->vocab, g, pretok, err);
}

/* Tokens after which Phi-3's original tokenizer drops white space: all but <unk>, <s> and
 * <|endoftext|>. */
static void mark_stripping(struct vocab *v)
{
    static const char end_of_text[] = "<|endoftext|>";
    const int32_t end = vocab_find(v, end_of_text, sizeof end_of_text - 1);
    for (int32_t i = 0; i < (int32_t)v->n_tok; i++)
        if ((v->kind[i] & (VOCAB_CONTROL | VOCAB_USER)) && i != v->bos && i != v->unk && i != end)
            v->kind[i] |= VOCAB_STRIPS;
}

static sac_status init_spm(struct tokenizer *t, const struct gguf *g,
                           const struct tokenizer_rules *rules, sac_error *err)
{
    if (rules->pre)
        return error_set(err, SAC_ERR_ARG,
                         "pre-tokeniser '%s': the tokenizer of %s is of kind 'llama' and has none",
                         rules->pre, gguf_path(g));
    const struct vocab_defaults d = {
        .spelling = VOCAB_SPM,
        .bos = 1,
        .eos = 2,
        .unk = 0,
        .add_bos = true,
        .add_space_prefix = true,
    };
    TRY(vocab_init(&t->vocab, g, &d, err));
    if (rules->turns_strip) mark_stripping(&t->vocab);
    return tokenizer_spm_init(&t->spm, &t->vocab, g, err);
}

static sac_status init(struct tokenizer *t, const struct gguf *g,
                       const struct tokenizer_rules *rules, sac_error *err)
{
    struct gguf_str model;
    TRY(gguf_get_str(g, "tokenizer.ggml.model", &model, err));
    if (model.n == 4 && memcmp(model.s, "gpt2", 4) == 0) {
        TRY(init_bpe(t, g, rules->pre, err));
    } else if (model.n == 5 && memcmp(model.s, "llama", 5) == 0) {
        TRY(init_spm(t, g, rules, err));
    } else {
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "%s: tokenizer.ggml.model '%.*s' is not known; known are gpt2 llama",
                         gguf_path(g), (int)(model.n < 64 ? model.n : 64), model.s);
    }
    const unsigned hidden = VOCAB_CONTROL | VOCAB_UNKNOWN;
    TRY(special_init(&t->user, &t->vocab, VOCAB_USER, hidden, err));
    TRY(special_init(&t->control, &t->vocab, hidden, 0, err));
    return special_init(&t->named, &t->vocab, VOCAB_USER | hidden, 0, err);
}

sac_status tokenizer_create(struct tokenizer **out, const struct gguf *g,
                            const struct tokenizer_rules *rules, sac_error *err)
{
    struct tokenizer *const t = mem_calloc(1, sizeof *t);
    if (!t) return error_set(err, SAC_ERR_MEMORY, "no memory for a tokenizer");
    const sac_status status = init(t, g, rules, err);
    if (status != SAC_OK) {
        tokenizer_destroy(t);
        return status;
    }
    *out = t;
    return SAC_OK;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t) return;
    special_deinit(&t->user);
    special_deinit(&t->named);
    special_deinit(&t->control);
    tokenizer_bpe_deinit(&t->bpe);
    tokenizer_spm_deinit(&t->spm);
    vocab_deinit(&t->vocab);
    mem_free(t);
}

static bool in_vocab(const struct tokenizer *t, int32_t tok)
{
    return tok >= 0 && (uint32_t)tok < t->vocab.n_tok;
}

uint32_t tokenizer_n_vocab(const struct tokenizer *t)
{
    return t->vocab.n_tok;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->vocab.bos;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->vocab.eos;
}

bool tokenizer_is_eog(const struct tokenizer *t, int32_t tok)
{
    return in_vocab(t, tok) && (t->vocab.kind[tok] & VOCAB_EOG);
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t tok)
{
    return in_vocab(t, tok) && (t->vocab.kind[tok] & VOCAB_CONTROL);
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n)
{
    return vocab_find(&t->vocab, text, n);
}

const char *tokenizer_piece(const struct tokenizer *t, int32_t tok, bool special, size_t *out_bytes)
{
    *out_bytes = 0;
    if (!in_vocab(t, tok)) return "";
    if (!special && (t->vocab.kind[tok] & (VOCAB_CONTROL | VOCAB_UNKNOWN))) return "";
    const uint32_t at = tok ? t->vocab.piece_end[tok - 1] : 0;
    *out_bytes = t->vocab.piece_end[tok] - at;
    return t->vocab.piece + at;
}

/* ---- Guarded text ---- */

/* U+FDD0 is a noncharacter: valid UTF-8 that texts do not contain, so templates pass it on. */
static const char mark[] = "\xef\xb7\x90";
#define N_MARK (sizeof mark - 1)

static bool is_mark(const char *s, size_t n)
{
    return n >= N_MARK && memcmp(s, mark, N_MARK) == 0;
}

static size_t put(char *out, size_t at, const char *s, size_t n)
{
    if (out) memcpy(out + at, s, n);
    return at + n;
}

size_t tokenizer_guard(const struct tokenizer *t, const char *text, size_t n, char *out)
{
    size_t n_out = 0;
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        size_t n_char = utf8_get_loose(text + at, n - at, &cp);
        if (n_char == 0) n_char = 1; /* an invalid byte must not hide what follows it */
        const bool marked =
            is_mark(text + at, n - at) || special_meets(&t->control, text + at, n - at);
        n_out = put(out, n_out, text + at, n_char);
        if (marked) n_out = put(out, n_out, mark, N_MARK);
        at += n_char;
    }
    return n_out;
}

/* Undoes the guard in the text of `parts`, in place: two marks become one, single ones and parts
 * that become empty are removed. */
static void drop_marks(char *text, struct special_parts *parts)
{
    size_t n_part = 0, to = 0;
    for (size_t i = 0; i < parts->n; i++) {
        struct special_part part = parts->part[i];
        const size_t end = (size_t)part.at + part.n, start = to;
        for (size_t at = part.at; at < end;) {
            if (is_mark(text + at, end - at)) {
                at += N_MARK;
                if (!is_mark(text + at, end - at)) continue;
                memmove(text + to, mark, N_MARK);
                at += N_MARK;
                to += N_MARK;
            } else {
                text[to++] = text[at++];
            }
        }
        part.at = (uint32_t)start;
        part.n = (uint32_t)(to - start);
        if (part.n) parts->part[n_part++] = part;
    }
    parts->n = n_part;
}

/* ---- Encoding ---- */

static sac_status encode_parts(const struct tokenizer *t, struct encode *e, const char *text,
                               const struct special_parts *parts, sac_error *err)
{
    return t->vocab.spelling == VOCAB_SPM ? tokenizer_spm_encode(&t->spm, e, text, parts, err)
                                          : tokenizer_bpe_encode(&t->bpe, e, text, parts, err);
}

static sac_status check_length(size_t n, sac_error *err)
{
    if (n <= TOKENIZER_TEXT_MAX) return SAC_OK;
    return error_set(err, SAC_ERR_ARG, "a text of %zu bytes: at most %zu can be encoded at once", n,
                     TOKENIZER_TEXT_MAX);
}

/* Returns the ids if encoding has succeeded; frees everything else. */
static sac_status finish(struct encode *e, size_t n_text, sac_status status, int32_t **out_tok,
                         size_t *out_n, sac_error *err)
{
    if (status == SAC_OK && !e->id && !e->failed) { /* an empty text also gives a list */
        e->id = mem_alloc(0);
        e->failed = !e->id;
    }
    if (status == SAC_OK && e->failed)
        status = error_set(err, SAC_ERR_MEMORY, "no memory for the tokens of %zu bytes", n_text);
    if (status == SAC_OK) {
        *out_tok = e->id;
        *out_n = e->n;
        e->id = NULL;
    }
    encode_deinit(e);
    return status;
}

sac_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                            int32_t **out_tok, size_t *out_n, sac_error *err)
{
    TRY(check_length(n, err));
    struct encode e = {0};
    struct special_parts parts = {0};
    encode_init(&e, n);
    if (t->vocab.add_bos && (flags & SAC_TOK_ADD_SPECIAL)) encode_put(&e, t->vocab.bos);
    const bool parse = flags & SAC_TOK_PARSE_SPECIAL;
    sac_status status = special_cut(parse ? &t->named : &t->user, text, n, &parts, err);
    if (status == SAC_OK) status = encode_parts(t, &e, text, &parts, err);
    if (t->vocab.add_eos && (flags & SAC_TOK_ADD_SPECIAL)) encode_put(&e, t->vocab.eos);
    mem_free(parts.part);
    return finish(&e, n, status, out_tok, out_n, err);
}

sac_status tokenizer_encode_guarded(const struct tokenizer *t, char *text, size_t n,
                                    int32_t **out_tok, size_t *out_n, sac_error *err)
{
    TRY(check_length(n, err));
    struct encode e = {0};
    struct special_parts parts = {0};
    encode_init(&e, n);
    sac_status status = special_cut(&t->named, text, n, &parts, err);
    if (status == SAC_OK) {
        drop_marks(text, &parts);
        const bool has_bos = parts.n && parts.part[0].tok == t->vocab.bos;
        if (t->vocab.add_bos && !has_bos) encode_put(&e, t->vocab.bos);
        status = encode_parts(t, &e, text, &parts, err);
    }
    mem_free(parts.part);
    return finish(&e, n, status, out_tok, out_n, err);
}
