/* tokenizer.c: ties vocabulary, special tokens and the two kinds of tokenizers together.
 *
 * Encoding: the text is cut at special tokens (special.c), what is between is encoded by kind
 * (tokenizer_bpe.c, tokenizer_spm.c), BOS and EOS are put around. All scratch belongs to the call,
 * so threads share a tokenizer freely. There is no normalisation (NFC, lower case): no model of the
 * supported kinds asks for it. Blanks beside special tokens are kept (no LSTRIP or RSTRIP). */
#include "model/tokenizer.h"

#include "base/mem.h"
#include "model/tokenizer_kind.h"

#include <assert.h>
#include <string.h>

struct tokenizer {
    struct vocab vocab;
    struct bpe bpe; /* one of the two, by vocab.spelling */
    struct spm spm;
    struct special user;  /* tokens that are found in any text */
    struct special named; /* those and control tokens, for SAC_TOK_PARSE_SPECIAL */
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
        .bos = traits.no_bos ? VOCAB_NO_TOKEN : 11, /* GPT-2 files of old gave no ids */
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

static sac_status init_spm(struct tokenizer *t, const struct gguf *g, const char *pre,
                           sac_error *err)
{
    if (pre)
        return error_set(err, SAC_ERR_ARG,
                         "pre-tokeniser '%s': the tokenizer of %s is of kind 'llama' and has none",
                         pre, gguf_path(g));
    const struct vocab_defaults d = {
        .spelling = VOCAB_SPM,
        .bos = 1,
        .eos = 2,
        .unk = 0,
        .add_bos = true,
        .add_space_prefix = true,
    };
    TRY(vocab_init(&t->vocab, g, &d, err));
    return tokenizer_spm_init(&t->spm, &t->vocab, g, err);
}

static sac_status init(struct tokenizer *t, const struct gguf *g, const char *pre, sac_error *err)
{
    struct gguf_str model;
    TRY(gguf_get_str(g, "tokenizer.ggml.model", &model, err));
    if (model.n == 4 && memcmp(model.s, "gpt2", 4) == 0) {
        TRY(init_bpe(t, g, pre, err));
    } else if (model.n == 5 && memcmp(model.s, "llama", 5) == 0) {
        TRY(init_spm(t, g, pre, err));
    } else {
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "%s: tokenizer.ggml.model '%.*s' is not known; known are gpt2 llama",
                         gguf_path(g), (int)(model.n < 64 ? model.n : 64), model.s);
    }
    const unsigned hidden = VOCAB_CONTROL | VOCAB_UNKNOWN;
    TRY(special_init(&t->user, &t->vocab, VOCAB_USER, hidden, err));
    return special_init(&t->named, &t->vocab, VOCAB_USER | hidden, 0, err);
}

sac_status tokenizer_create(struct tokenizer **out, const struct gguf *g, const char *pre,
                            sac_error *err)
{
    struct tokenizer *const t = mem_calloc(1, sizeof *t);
    if (!t) return error_set(err, SAC_ERR_MEMORY, "no memory for a tokenizer");
    const sac_status status = init(t, g, pre, err);
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

/* Encodes what stands between BOS and EOS. */
static sac_status encode_parts(const struct tokenizer *t, struct encode *e, const char *text,
                               size_t n, unsigned flags, sac_error *err)
{
    struct special_parts parts = {0};
    const struct special *const special = flags & SAC_TOK_PARSE_SPECIAL ? &t->named : &t->user;
    sac_status status = special_cut(special, text, n, &parts, err);
    if (status == SAC_OK)
        status = t->vocab.spelling == VOCAB_SPM
                     ? tokenizer_spm_encode(&t->spm, e, text, &parts, err)
                     : tokenizer_bpe_encode(&t->bpe, e, text, &parts, err);
    mem_free(parts.part);
    return status;
}

sac_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                            int32_t **out_tok, size_t *out_n, sac_error *err)
{
    if (n > TOKENIZER_TEXT_MAX)
        return error_set(err, SAC_ERR_ARG,
                         "a text of %zu bytes: at most %zu can be encoded at once", n,
                         TOKENIZER_TEXT_MAX);
    struct encode e = {0};
    encode_init(&e, n);
    if (t->vocab.add_bos && (flags & SAC_TOK_ADD_SPECIAL)) encode_put(&e, t->vocab.bos);
    sac_status status = encode_parts(t, &e, text, n, flags, err);
    if (t->vocab.add_eos && (flags & SAC_TOK_ADD_SPECIAL)) encode_put(&e, t->vocab.eos);
    if (status == SAC_OK && !e.id && !e.failed) { /* an empty text is a list, too */
        e.id = mem_alloc(0);
        e.failed = !e.id;
    }
    if (status == SAC_OK && e.failed)
        status = error_set(err, SAC_ERR_MEMORY, "no memory for the tokens of %zu bytes", n);
    if (status == SAC_OK) {
        *out_tok = e.id;
        *out_n = e.n;
        e.id = NULL;
    }
    encode_deinit(&e);
    return status;
}
