/* tokenizer.h: text to token ids and back, as the model's file defines it: byte-level BPE with a
 * pre-tokeniser (`gpt2`) and SentencePiece-style merging by score (`llama`). Immutable after
 * create; any number of threads may use one tokenizer. */
#ifndef SAC_MODEL_TOKENIZER_H
#define SAC_MODEL_TOKENIZER_H

#include "model/gguf.h"

struct tokenizer;

/* What the file does not say, or what overrides it. */
struct tokenizer_rules {
    const char *pre; /* names a pre-tokeniser that overrides the file's, or NULL */
    /* In a `llama` vocabulary, tokens of chat turns strip the white space after them. */
    bool turns_strip;
};

/* An unknown `pre` or `tokenizer.ggml.model` is SAC_ERR_UNSUPPORTED; the message lists known ones.
 * Nothing of `g` is kept. */
sac_status tokenizer_create(struct tokenizer **out, const struct gguf *g,
                            const struct tokenizer_rules *rules, sac_error *err);
void tokenizer_destroy(struct tokenizer *t);

uint32_t tokenizer_n_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1: none */
int32_t tokenizer_eos(const struct tokenizer *t);
bool tokenizer_is_eog(const struct tokenizer *t, int32_t tok);
bool tokenizer_is_control(const struct tokenizer *t, int32_t tok);
/* The id of the token with this exact text, -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n);

/* `flags` as SAC_TOK_*. Any bytes are valid input. `*out_tok` is owned by the caller (mem_free). */
sac_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, unsigned flags,
                            int32_t **out_tok, size_t *out_n, sac_error *err);
/* Guards text from outside that goes into a template: puts a mark inside each control token that it
 * spells (and inside what could become one where texts meet), and doubles marks of its own. Writes
 * to `out`, unless that is NULL, and returns the length, which is `n` if nothing was changed, and
 * at most TOKENIZER_GUARD_GROWTH times as long. A control token of one character has no inside. */
#define TOKENIZER_GUARD_GROWTH 4u
size_t tokenizer_guard(const struct tokenizer *t, const char *text, size_t n, char *out);
/* Encodes text with guarded parts: control tokens become their ids, except marked ones, which stay
 * text; BOS occurs exactly once if the file asks for it. `text` is overwritten. */
sac_status tokenizer_encode_guarded(const struct tokenizer *t, char *text, size_t n,
                                    int32_t **out_tok, size_t *out_n, sac_error *err);
/* Bytes of one token as they appear in text (byte-level symbols decoded, SPM spaces restored);
 * "" for ids out of range and, unless `special`, for control tokens. */
const char *tokenizer_piece(const struct tokenizer *t, int32_t tok, bool special,
                            size_t *out_bytes);

/* Streaming decode: keeps the bytes of a UTF-8 character that is not complete yet. */
struct utf8_stream {
    char held[4];
    uint32_t n_held;
};
/* Feeds bytes; writes to `out` [n + 4] what is certain: whole characters, and invalid bytes as
 * U+FFFD (so `out` must have room for 3 * (n + 4)). Returns bytes written. */
size_t utf8_stream_push(struct utf8_stream *s, const char *bytes, size_t n, char *out);
size_t utf8_stream_flush(struct utf8_stream *s, char *out); /* the rest, as U+FFFD */

#endif
