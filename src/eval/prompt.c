/* prompt.c: see the header. A raw prompt is its writer's own template: it may spell control tokens,
 * including the BOS that a file asks for, in which case no second BOS is added. */
#include "eval/prompt.h"

#include "base/input.h"
#include "base/mem.h"

#include <string.h>

/* The BOS that the tokenizer puts before a text; -1 if it adds none. */
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

sac_status prompt_form_tokens(const sac_model *model, const struct prompt_form *form,
                              const struct strbuf *text, int32_t **out_tok, size_t *out_n,
                              sac_error *err)
{
    if (form->raw) return prompt_tokens(model, text->data, text->n, out_tok, out_n, err);
    if (strlen(text->data) != text->n)
        return error_set(err, SAC_ERR_FORMAT,
                         "the prompt holds a zero byte, which a chat message cannot: --raw "
                         "takes it");
    sac_message msgs[2];
    size_t n = 0;
    if (form->system) msgs[n++] = (sac_message){.role = "system", .content = form->system};
    msgs[n++] = (sac_message){.role = "user", .content = text->data};
    const sac_status status = prompt_chat(model, msgs, n, form->chat_template, out_tok, out_n, err);
    if (status != SAC_ERR_NOT_FOUND || !err) return status;
    const sac_error why = *err;
    return error_set(err, status, "%.400s (--chat-template NAME), or go without one (--raw)",
                     why.msg);
}

static sac_status form_letter(const sac_model *model, const struct prompt_form *form,
                              const char *letter, int32_t **out_tok, size_t *out_n, sac_error *err)
{
    struct strbuf text = {0};
    strbuf_adds(&text, letter);
    const sac_status status = text.failed
                                  ? error_set(err, SAC_ERR_MEMORY, "out of memory for a prompt")
                                  : prompt_form_tokens(model, form, &text, out_tok, out_n, err);
    strbuf_deinit(&text);
    return status;
}

/* The tokens that prompts with different texts have in common at their start. */
sac_status prompt_head(const sac_model *model, const struct prompt_form *form, int32_t **out_tok,
                       size_t *out_n, sac_error *err)
{
    int32_t *a = NULL, *b = NULL;
    size_t n_a = 0, n_b = 0, n = 0;
    TRY(form_letter(model, form, "A", &a, &n_a, err));
    const sac_status status = form_letter(model, form, "1", &b, &n_b, err);
    while (n < n_a && n < n_b && a[n] == b[n]) n++;
    sac_free(b);
    if (status != SAC_OK) {
        sac_free(a);
        return status;
    }
    *out_tok = a;
    *out_n = n;
    return SAC_OK;
}

sac_status prompt_template(const char **out, const char *name_or_text, const char *file,
                           struct strbuf *buf, sac_error *err)
{
    *out = name_or_text;
    if (!file) return SAC_OK;
    TRY(input_read(buf, file, err));
    strbuf_add(buf, "", 0); /* an empty file is an empty template */
    *out = buf->data;
    return SAC_OK;
}
