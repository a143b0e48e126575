/* allowed_tokens.c: see the header. A bad word is represented by the tokens that the tokenizer
 * makes of it, with and without a blank before it: the last token must not follow the others. The
 * same text in other tokens is possible. */
#include "serve/allowed_tokens.h"

#include "base/mem.h"

#include <string.h>

struct bad_word {
    int32_t tok[ALLOWED_TOKENS_WORD_TOK];
    size_t n;
};

struct allowed_tokens {
    size_t n_mask;
    uint64_t *allowed;    /* owned, [n_mask] */
    struct bad_word *bad; /* owned, [n_bad] */
    size_t n_bad;
};

void allowed_tokens_free(struct allowed_tokens *b)
{
    if (!b) return;
    mem_free(b->allowed);
    mem_free(b->bad);
    mem_free(b);
}

static sac_status read_allowed(struct allowed_tokens *b, const cJSON *list, int32_t max,
                               struct api_error *error)
{
    static const char name[] = "allowed_token_ids";
    const cJSON *item;
    int32_t tok;
    if (!cJSON_IsArray(list))
        return api_error_set(error, API_ERROR_REQUEST, name, "'%s' is not a list of token ids",
                             name);
    cJSON_ArrayForEach(item, list)
    {
        if (!json_index(item, max, &tok))
            return api_error_set(error, API_ERROR_REQUEST, name,
                                 "'%s' holds something that is no token id: allowed is 0 to %d",
                                 name, max);
        b->allowed[tok / 64] |= 1ull << tok % 64;
    }
    return SAC_OK;
}

static sac_status add_spelling(struct allowed_tokens *b, const char *text, const sac_model *model,
                               struct api_error *error)
{
    int32_t *tok;
    size_t n;
    sac_error err = {0};
    const sac_status status = sac_tokenize(model, text, strlen(text), 0, &tok, &n, &err);
    if (status != SAC_OK) return api_error_of(error, status, "bad_words", err.msg);
    if (n > 0 && n <= ALLOWED_TOKENS_WORD_TOK) {
        struct bad_word *word = &b->bad[b->n_bad++];
        memcpy(word->tok, tok, n * sizeof *tok);
        word->n = n;
    }
    sac_free(tok);
    if (n > 0 && n <= ALLOWED_TOKENS_WORD_TOK) return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, "bad_words",
                         "'bad_words' holds a text of %zu tokens: allowed is 1 to %u", n,
                         ALLOWED_TOKENS_WORD_TOK);
}

static sac_status read_bad(struct allowed_tokens *b, const cJSON *list, const sac_model *model,
                           struct api_error *error)
{
    const int n = cJSON_GetArraySize(list);
    const cJSON *item;
    if (!cJSON_IsArray(list) || n > (int)ALLOWED_TOKENS_WORDS_MAX)
        return api_error_set(error, API_ERROR_REQUEST, "bad_words",
                             "'bad_words' is not a list of at most %u texts",
                             ALLOWED_TOKENS_WORDS_MAX);
    b->bad = mem_calloc(2 * (size_t)n, sizeof *b->bad);
    if (!b->bad) return api_error_no_memory(error);
    cJSON_ArrayForEach(item, list)
    {
        const char *text = cJSON_IsString(item) ? item->valuestring : "";
        struct strbuf behind_blank = {0};
        text += strspn(text, " ");
        if (!*text)
            return api_error_set(error, API_ERROR_REQUEST, "bad_words",
                                 "'bad_words' holds something that is not a text, or an empty one");
        strbuf_addf(&behind_blank, " %s", text);
        sac_status status = behind_blank.failed ? api_error_no_memory(error) : SAC_OK;
        if (status == SAC_OK) status = add_spelling(b, text, model, error);
        if (status == SAC_OK) status = add_spelling(b, behind_blank.data, model, error);
        strbuf_deinit(&behind_blank);
        TRY(status);
    }
    return SAC_OK;
}

/* An empty list is treated like a missing field. */
static const cJSON *get_list(const cJSON *body, const char *name)
{
    const cJSON *list = json_get(body, name);
    return cJSON_IsArray(list) && !list->child ? NULL : list;
}

sac_status allowed_tokens_read(struct allowed_tokens **out, const cJSON *body,
                               const sac_model *model, struct api_error *error)
{
    const cJSON *allowed = get_list(body, "allowed_token_ids"), *bad = get_list(body, "bad_words");
    const uint32_t n_vocab = sac_model_get_info(model).n_vocab;
    *out = NULL;
    if (!allowed && !bad) return SAC_OK;
    struct allowed_tokens *b = mem_calloc(1, sizeof *b);
    if (!b) return api_error_no_memory(error);
    b->n_mask = ((size_t)n_vocab + 63) / 64;
    b->allowed = mem_calloc(b->n_mask, sizeof *b->allowed);
    sac_status status = b->allowed ? SAC_OK : api_error_no_memory(error);
    if (status == SAC_OK && allowed) status = read_allowed(b, allowed, (int32_t)n_vocab - 1, error);
    if (status == SAC_OK && !allowed) memset(b->allowed, 0xff, b->n_mask * sizeof *b->allowed);
    if (status == SAC_OK && bad) status = read_bad(b, bad, model, error);
    if (status == SAC_OK)
        *out = b;
    else
        allowed_tokens_free(b);
    return status;
}

size_t allowed_tokens_mask_words(const struct allowed_tokens *b)
{
    return b->n_mask;
}

void allowed_tokens_apply(const struct allowed_tokens *b, const int32_t *said, size_t n_said,
                          uint64_t *mask)
{
    for (size_t i = 0; i < b->n_mask; i++) mask[i] &= b->allowed[i];
    for (size_t i = 0; i < b->n_bad; i++) {
        const struct bad_word *word = &b->bad[i];
        const size_t n = word->n - 1; /* tokens before the last one */
        if (n > n_said || memcmp(said + n_said - n, word->tok, n * sizeof *said) != 0) continue;
        mask[word->tok[n] / 64] &= ~(1ull << word->tok[n] % 64);
    }
}
