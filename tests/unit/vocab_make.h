/* vocab_make.h: builds GGUF bytes that hold a vocabulary and nothing else, for tests and fuzzing of
 * tokenizers. */
#ifndef SAC_TESTS_VOCAB_MAKE_H
#define SAC_TESTS_VOCAB_MAKE_H

#include "gguf_make.h"
#include "model/utf8.h"
#include "model/vocab.h"

#define VOCAB_TOKENS_MAX 512
#define VOCAB_MERGES_MAX 128
#define VOCAB_ID_ABSENT  UINT32_MAX

/* Kinds as the file numbers them. */
enum { T_NORMAL = 1, T_UNKNOWN, T_CONTROL, T_USER, T_UNUSED, T_BYTE };

struct vocab_token {
    char text[24];
    int32_t kind;
    float score;
};

struct vocab_make {
    const char *arch;        /* NULL: llama */
    const char *model, *pre; /* NULL: no key */
    struct vocab_token token[VOCAB_TOKENS_MAX];
    size_t n_token;
    const char *merge[VOCAB_MERGES_MAX];
    size_t n_merge;
    uint32_t bos, eos;                      /* VOCAB_ID_ABSENT: no key */
    int add_bos, add_eos, add_space_prefix; /* -1: no key */
};

static inline uint32_t vocab_add(struct vocab_make *v, const char *text, int32_t kind, float score)
{
    assert(v->n_token < VOCAB_TOKENS_MAX && strlen(text) < sizeof v->token[0].text);
    struct vocab_token *t = &v->token[v->n_token];
    memset(t, 0, sizeof *t);
    memcpy(t->text, text, strlen(text));
    t->kind = kind;
    t->score = score;
    return (uint32_t)v->n_token++;
}

/* A byte-level vocabulary: token i is byte i, then `merge` [n] and what they make. */
static inline void vocab_start_bpe(struct vocab_make *v, const char *const *merge, size_t n)
{
    *v = (struct vocab_make){.model = "gpt2",
                             .pre = "gpt-2",
                             .bos = VOCAB_ID_ABSENT,
                             .eos = VOCAB_ID_ABSENT,
                             .add_bos = -1,
                             .add_eos = -1,
                             .add_space_prefix = -1};
    char text[24];
    for (uint32_t b = 0; b < 256; b++) {
        text[utf8_put(text, vocab_byte_char((uint8_t)b))] = '\0';
        vocab_add(v, text, T_NORMAL, 0);
    }
    for (size_t i = 0; i < n; i++) {
        const char *const blank = strchr(merge[i] + 1, ' ');
        assert(v->n_merge < VOCAB_MERGES_MAX);
        v->merge[v->n_merge++] = merge[i];
        if (!blank) continue;
        const size_t n_left = (size_t)(blank - merge[i]);
        assert(strlen(merge[i]) < sizeof text);
        memcpy(text, merge[i], n_left);
        memcpy(text + n_left, blank + 1, strlen(blank + 1) + 1);
        vocab_add(v, text, T_NORMAL, 0);
    }
}

/* A SentencePiece vocabulary: <unk> <s> </s>, then the bytes: byte b is token 3 + b. */
static inline void vocab_start_spm(struct vocab_make *v)
{
    static const char hex[] = "0123456789ABCDEF";
    *v = (struct vocab_make){.model = "llama",
                             .bos = VOCAB_ID_ABSENT,
                             .eos = VOCAB_ID_ABSENT,
                             .add_bos = -1,
                             .add_eos = -1,
                             .add_space_prefix = -1};
    vocab_add(v, "<unk>", T_UNKNOWN, 0);
    vocab_add(v, "<s>", T_CONTROL, 0);
    vocab_add(v, "</s>", T_CONTROL, 0);
    for (uint32_t b = 0; b < 256; b++) {
        const char text[] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>', '\0'};
        vocab_add(v, text, T_BYTE, 0);
    }
}

static inline void vocab_put_str(struct make_out *o, const char *s)
{
    make_put_u64(o, strlen(s));
    make_put(o, s, strlen(s));
}

static inline void vocab_put_array(struct make_out *o, const char *name, uint32_t type, uint64_t n)
{
    vocab_put_str(o, name);
    make_put_u32(o, 9);
    make_put_u32(o, type);
    make_put_u64(o, n);
}

static inline void vocab_put_flag(struct make_out *o, const char *name, int value, uint64_t *n_key)
{
    if (value < 0) return;
    vocab_put_str(o, name);
    make_put_u32(o, 7);
    make_put(o, &(uint8_t){(uint8_t)value}, 1);
    ++*n_key;
}

static inline void vocab_put_id(struct make_out *o, const char *name, uint32_t id, uint64_t *n_key)
{
    if (id == VOCAB_ID_ABSENT) return;
    vocab_put_str(o, name);
    make_put_u32(o, 4);
    make_put_u32(o, id);
    ++*n_key;
}

static inline void vocab_put_text(struct make_out *o, const char *name, const char *s,
                                  uint64_t *n_key)
{
    if (!s) return;
    vocab_put_str(o, name);
    make_put_u32(o, 8);
    vocab_put_str(o, s);
    ++*n_key;
}

/* The keys of architecture and vocabulary; returns how many. */
static inline uint64_t vocab_put_keys(struct make_out *o, const struct vocab_make *v)
{
    uint64_t n_key = 0;
    vocab_put_text(o, "general.architecture", v->arch ? v->arch : "llama", &n_key);
    vocab_put_text(o, "tokenizer.ggml.model", v->model, &n_key);
    vocab_put_text(o, "tokenizer.ggml.pre", v->pre, &n_key);
    vocab_put_array(o, "tokenizer.ggml.tokens", 8, v->n_token);
    for (size_t i = 0; i < v->n_token; i++) vocab_put_str(o, v->token[i].text);
    vocab_put_array(o, "tokenizer.ggml.token_type", 5, v->n_token);
    for (size_t i = 0; i < v->n_token; i++) make_put(o, &v->token[i].kind, 4);
    vocab_put_array(o, "tokenizer.ggml.scores", 6, v->n_token);
    for (size_t i = 0; i < v->n_token; i++) make_put(o, &v->token[i].score, 4);
    vocab_put_array(o, "tokenizer.ggml.merges", 8, v->n_merge);
    for (size_t i = 0; i < v->n_merge; i++) vocab_put_str(o, v->merge[i]);
    n_key += 4;
    vocab_put_id(o, "tokenizer.ggml.bos_token_id", v->bos, &n_key);
    vocab_put_id(o, "tokenizer.ggml.eos_token_id", v->eos, &n_key);
    vocab_put_flag(o, "tokenizer.ggml.add_bos_token", v->add_bos, &n_key);
    vocab_put_flag(o, "tokenizer.ggml.add_eos_token", v->add_eos, &n_key);
    vocab_put_flag(o, "tokenizer.ggml.add_space_prefix", v->add_space_prefix, &n_key);
    return n_key;
}

static inline struct make_out vocab_bytes(const struct vocab_make *v)
{
    struct make_out o = {0};
    make_put(&o, "GGUF", 4);
    make_put_u32(&o, 3);
    make_put_u64(&o, 0);
    const size_t n_key_at = o.n;
    make_put_u64(&o, 0);
    const uint64_t n_key = vocab_put_keys(&o, v);
    memcpy(o.bytes + n_key_at, &n_key, sizeof n_key);
    while (o.n % 32) make_put(&o, "", 1);
    return o;
}

#endif
