/* prompt.c: see the header. A raw prompt is its writer's own template: it may spell control tokens,
 * the BOS that files ask for included, and so a second one is not put before it. */
#include "app/prompt.h"

#include "base/input.h"
#include "base/mem.h"

#include <string.h>

/* The BOS that the tokenizer puts before any text, -1 if it puts none. */
static sac_status wanted_bos(const sac_model *model, int32_t *out, sac_error *err)
{
    int32_t *tok = NULL;
    size_t n = 0;
    TRY(sac_tokenize(model, "", 0, SAC_TOK_ADD_SPECIAL, &tok, &n, err));
    const int32_t bos = sac_token_bos(model);
    *out = n > 0 && bos >= 0 && tok[0] == bos ? bos : -1;
    sac_free(tok);
    return SAC_OK;
}

sac_status prompt_tokens(const sac_model *model, const char *text, size_t n_bytes,
                         int32_t **out_tok, size_t *out_n, sac_error *err)
{
    int32_t bos;
    TRY(wanted_bos(model, &bos, err));
    int32_t *tok = NULL;
    size_t n = 0;
    TRY(sac_tokenize(model, text, n_bytes, SAC_TOK_PARSE_SPECIAL, &tok, &n, err));
    *out_tok = tok;
    *out_n = n;
    if (bos < 0 || (n > 0 && tok[0] == bos)) return SAC_OK;
    int32_t *with_bos = mem_alloc((n + 1) * sizeof *with_bos);
    if (with_bos) {
        with_bos[0] = bos;
        if (n) memcpy(with_bos + 1, tok, n * sizeof *tok);
    }
    sac_free(tok);
    if (!with_bos) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu tokens", n);
    *out_tok = with_bos;
    *out_n = n + 1;
    return SAC_OK;
}

sac_status prompt_chat(const sac_model *model, const sac_message *msgs, size_t n_msg,
                       const char *chat_template, int32_t **out_tok, size_t *out_n, sac_error *err)
{
    const sac_chat_params params = {.chat_template = chat_template, .add_generation_prompt = true};
    return sac_chat_tokens(model, msgs, n_msg, &params, out_tok, out_n, err);
}

sac_status prompt_template(const char **out, const char *name_or_text, const char *file,
                           struct strbuf *buf, sac_error *err)
{
    *out = name_or_text;
    if (!file) return SAC_OK;
    TRY(input_read(buf, file, err));
    strbuf_add(buf, "", 0); /* an empty file is an empty template, not none */
    *out = buf->data;
    return SAC_OK;
}
