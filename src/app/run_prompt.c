/* run_prompt.c: the prompt of `saccade run`: its text, its tokens, and what is to be known of these
 * before there is an engine. Other questions to the same documents are encoded, too: how far they
 * agree with this one is where the documents end. */
#include "app/run.h"
#include "app/source.h"
#include "base/mem.h"
#include "eval/prompt.h"

#include "saccade.h"

#include <stdio.h>
#include <string.h>

static sac_status add_question(struct strbuf *text, const struct run_options *opt,
                               const char *question, sac_error *err)
{
    if (opt->files.n && !opt->raw) strbuf_adds(text, "\n\n");
    strbuf_adds(text, question);
    return text->failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for the prompt") : SAC_OK;
}

static sac_status encode_text(const struct run *r, const struct strbuf *text, int32_t **out_tok,
                              size_t *out_n, sac_error *err)
{
    const struct prompt_form form = {r->opt.system, r->chat_template, r->opt.raw};
    return prompt_form_tokens(r->model, &form, text, out_tok, out_n, err);
}

static sac_status encode_other(const void *arg, const char *question, int32_t **out_tok,
                               size_t *out_n, sac_error *err)
{
    const struct run *r = arg;
    struct strbuf text = {0};
    strbuf_add(&text, r->text.data, r->document_bytes);
    sac_status status = add_question(&text, &r->opt, question, err);
    if (status == SAC_OK) status = encode_text(r, &text, out_tok, out_n, err);
    strbuf_deinit(&text);
    return status;
}

/* Determines how many tokens do not depend on the question. */
static sac_status find_question(struct run *r, sac_error *err)
{
    const struct question_text text = {encode_other, r};
    return question_find(&r->n_document, r->tok, r->n_tok, &text, err);
}

/* Determines the tokens shared with other questions, including one that begins with a digit, which
 * may change the tokens before it. Rounded down to whole pages, so that a saved sequence never has
 * to be cut. */
static sac_status find_shared(struct run *r, sac_error *err)
{
    const struct question_text text = {encode_other, r};
    r->n_shared = r->n_document < r->n_tok ? r->n_document : r->n_tok - 1;
    TRY(question_alike(&r->n_shared, r->tok, &text, "1", err));
    r->n_shared -= r->n_shared % SAC_PAGE_TOK;
    if (r->n_shared == 0)
        return error_set(err, SAC_ERR_ARG,
                         "option '--save-state': documents of less than %u tokens are not worth a "
                         "file",
                         SAC_PAGE_TOK);
    return SAC_OK;
}

/* Stored documents are inserted between the prompt's head and the user's text. Their tokens become
 * known when they are joined. */
static sac_status make_room(struct run *r, sac_error *err)
{
    const struct prompt_form form = {r->opt.system, r->chat_template, r->opt.raw};
    const sac_engine_params params = setup_engine_params(&r->setup, 0, 1);
    TRY(joined_find(&r->joined, r->opt.docs, r->model, &params, err));
    TRY(prompt_head(r->model, &form, &r->head, &r->n_head, err));
    if (r->n_head > r->n_tok ||
        (r->n_head > 0 && memcmp(r->tok, r->head, r->n_head * sizeof *r->head) != 0))
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "the chat template puts something before the user's text that depends on "
                         "it: documents cannot stand there");
    const size_t n_text = r->n_tok - r->n_head, n_joined = r->joined.n_tok;
    int32_t *tok = mem_calloc(n_joined + n_text, sizeof *tok);
    if (!tok) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu tokens", n_joined);
    memcpy(tok + n_joined, r->tok + r->n_head, n_text * sizeof *tok);
    sac_free(r->tok);
    r->tok = tok;
    r->n_tok = n_joined + n_text;
    r->n_document = n_joined + (r->n_document > r->n_head ? r->n_document - r->n_head : 0);
    return SAC_OK;
}

/* The default context is what this prompt and answer need, since planning the maximum of
 * long-context models would waste memory. Saved states allow for longer prompts, and loading one
 * keeps its context. */
static sac_status plan_context(struct run *r, sac_error *err)
{
    const uint32_t trained = sac_model_get_info(r->model).n_ctx_train;
    sac_state_info state = {.n_ctx = trained};
    if (r->opt.load_state) TRY(sac_state_get_info(&state, r->opt.load_state, err));
    const uint64_t most = r->setup.n_ctx ? r->setup.n_ctx : state.n_ctx;
    const bool is_fixed = r->setup.n_ctx || r->opt.save_state || r->opt.load_state;
    if (r->n_tok == 0) return error_set(err, SAC_ERR_ARG, "the prompt is empty");
    if (r->n_tok > most) {
        char hint[128];
        if (r->n_tok <= trained)
            snprintf(hint, sizeof hint, ": a larger -c, or none, has room for it");
        else
            snprintf(
                hint, sizeof hint,
                "; the model was made for %u: --rope-scaling yarn --rope-scale %zu stretches it",
                trained, (r->n_tok + trained - 1) / trained);
        return error_set(err, SAC_ERR_CONTEXT,
                         "the prompt has %zu tokens, the context holds %llu%s", r->n_tok,
                         (unsigned long long)most, hint);
    }
    r->n_ctx = (uint32_t)most;
    if (!is_fixed && r->opt.n_predict >= 0) {
        const uint64_t need = (uint64_t)r->n_tok + (uint64_t)r->opt.n_predict;
        if (need < most) r->n_ctx = (uint32_t)need;
    }
    return SAC_OK;
}

sac_status run_prompt_read(struct run *r, sac_error *err)
{
    for (size_t i = 0; i < r->opt.files.n; i++) {
        if (i > 0) strbuf_adds(&r->text, RUN_BETWEEN_FILES);
        const size_t begin = r->text.n;
        TRY(source_read(&r->text, r->opt.files.item[i], r->opt.raw || r->opt.as_is, err));
        r->file_bytes[i] = r->text.n - begin;
    }
    r->document_bytes = r->text.n;
    if (r->opt.prompt) TRY(add_question(&r->text, &r->opt, r->opt.prompt, err));
    /* A template wraps even an empty message, and a model can continue from BOS alone. */
    if (r->text.n == 0 && !r->opt.raw) return error_set(err, SAC_ERR_ARG, "the prompt is empty");
    return SAC_OK;
}

sac_status run_prompt_encode(struct run *r, sac_error *err)
{
    TRY(prompt_template(&r->chat_template, r->opt.template_name, r->opt.template_file,
                        &r->template_text, err));
    TRY(encode_text(r, &r->text, &r->tok, &r->n_tok, err));
    if (r->opt.save_state || r->rows.all) TRY(find_question(r, err));
    if (r->opt.docs) TRY(make_room(r, err));
    TRY(plan_context(r, err));
    return r->opt.save_state ? find_shared(r, err) : SAC_OK;
}
