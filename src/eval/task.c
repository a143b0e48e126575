/* task.c: see the header.
 *
 * Fitting builds whole samples, because only the tokenizer knows how many tokens a template, a
 * needle or a boundary between two words takes. A try takes milliseconds, a prefill seconds.
 *
 * The result is the largest size that was tried and fitted. Token counts are not strictly monotone
 * in the size if every size draws anew, so the very largest may be missed, by less than the scatter
 * of one unit. */
#include "eval/task.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "eval/question.h"

#include <assert.h>
#include <string.h>

void task_sample_deinit(struct task_sample *s)
{
    for (uint32_t i = 0; i < s->n_turn; i++) {
        mem_free(s->turn[i].user);
        mem_free(s->turn[i].prefix);
        strlist_deinit(&s->turn[i].expected);
    }
    strlist_deinit(&s->classes);
    *s = (struct task_sample){0};
}

struct task_turn *task_add_turn(struct task_sample *s)
{
    assert(s->n_turn < TASK_TURN_MAX);
    return &s->turn[s->n_turn++];
}

struct task_text task_text_of(const sac_model *model)
{
    const sac_message hello = {.role = "user", .content = "Hello"};
    const sac_chat_params params = {.add_generation_prompt = true};
    char *text = NULL;
    const bool has_template = sac_chat_apply(model, &hello, 1, &params, &text, NULL) == SAC_OK;
    sac_free(text);
    return (struct task_text){.model = model, .raw = !has_template};
}

/* ---- To tokens ---- */

/* Turns as plain text: the question, its answer, a blank line. */
static void render_raw(struct strbuf *out, const struct task_sample *s, uint32_t turn,
                       const char *const *answer)
{
    for (uint32_t i = 0; i <= turn; i++) {
        strbuf_adds(out, s->turn[i].user);
        if (s->turn[i].prefix) strbuf_addf(out, " %s", s->turn[i].prefix);
        if (i < turn) strbuf_addf(out, "%s\n\n", answer[i]);
    }
}

/* Appends n_more tokens to `tok` (owned, replaced). */
static sac_status append_tokens(int32_t **tok, size_t *n, const int32_t *more, size_t n_more,
                                sac_error *err)
{
    int32_t *all = mem_alloc((*n + n_more) * sizeof *all);
    if (!all) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu tokens", *n + n_more);
    if (*n) memcpy(all, *tok, *n * sizeof *all);
    if (n_more) memcpy(all + *n, more, n_more * sizeof *all);
    sac_free(*tok);
    *tok = all;
    *n += n_more;
    return SAC_OK;
}

static sac_status encode_chat(const struct task_text *t, const struct task_sample *s, uint32_t turn,
                              const char *const *answer, int32_t **out_tok, size_t *out_n,
                              sac_error *err)
{
    const sac_chat_params params = {.chat_template = t->chat_template,
                                    .add_generation_prompt = true};
    const char *prefix = s->turn[turn].prefix;
    sac_message msg[2 * TASK_TURN_MAX];
    struct strbuf said[TASK_TURN_MAX] = {0};
    int32_t *tok = NULL, *more = NULL;
    size_t n_msg = 0, n = 0, n_more = 0;
    sac_status status = SAC_OK;
    for (uint32_t i = 0; i < turn; i++) {
        if (s->turn[i].prefix) strbuf_adds(&said[i], s->turn[i].prefix);
        strbuf_adds(&said[i], answer[i]);
        if (said[i].failed) status = error_set(err, SAC_ERR_MEMORY, "out of memory for a prompt");
        msg[n_msg++] = (sac_message){.role = "user", .content = s->turn[i].user};
        msg[n_msg++] = (sac_message){.role = "assistant", .content = said[i].data};
    }
    msg[n_msg++] = (sac_message){.role = "user", .content = s->turn[turn].user};
    if (status == SAC_OK) status = sac_chat_tokens(t->model, msg, n_msg, &params, &tok, &n, err);
    if (status == SAC_OK && prefix) {
        status = sac_tokenize(t->model, prefix, strlen(prefix), 0, &more, &n_more, err);
        if (status == SAC_OK) status = append_tokens(&tok, &n, more, n_more, err);
        sac_free(more);
    }
    for (uint32_t i = 0; i < turn; i++) strbuf_deinit(&said[i]);
    if (status != SAC_OK) {
        sac_free(tok);
        return status;
    }
    *out_tok = tok;
    *out_n = n;
    return SAC_OK;
}

/* The text as it is, after the BOS that the model wants; an EOS that a file wants after a text has
 * no place in a prompt. */
static sac_status encode_raw(const struct task_text *t, const struct task_sample *s, uint32_t turn,
                             const char *const *answer, int32_t **out_tok, size_t *out_n,
                             sac_error *err)
{
    struct strbuf text = {0};
    int32_t *head = NULL, *tok = NULL;
    size_t n = 0, n_tok = 0;
    const int32_t bos = sac_token_bos(t->model);
    TRY(sac_tokenize(t->model, "", 0, SAC_TOK_ADD_SPECIAL, &head, &n, err));
    n = n > 0 && bos >= 0 && head[0] == bos; /* length of the part of the head that is kept */
    render_raw(&text, s, turn, answer);
    sac_status status = text.failed
                            ? error_set(err, SAC_ERR_MEMORY, "out of memory for a prompt")
                            : sac_tokenize(t->model, text.data, text.n, 0, &tok, &n_tok, err);
    if (status == SAC_OK) status = append_tokens(&head, &n, tok, n_tok, err);
    strbuf_deinit(&text);
    sac_free(tok);
    if (status != SAC_OK) {
        sac_free(head);
        return status;
    }
    *out_tok = head;
    *out_n = n;
    return SAC_OK;
}

sac_status task_encode(const struct task_text *t, const struct task_sample *s, uint32_t turn,
                       const char *const *answer, int32_t **out_tok, size_t *out_n, sac_error *err)
{
    assert(turn < s->n_turn);
    return t->raw || s->raw ? encode_raw(t, s, turn, answer, out_tok, out_n, err)
                            : encode_chat(t, s, turn, answer, out_tok, out_n, err);
}

/* ---- Where the question begins ---- */

struct other_question {
    const struct task_text *text;
    const struct task_prompt *prompt;
};

static sac_status encode_other(const void *arg, const char *question, int32_t **out_tok,
                               size_t *out_n, sac_error *err)
{
    const struct other_question *o = arg;
    const struct task_prompt *p = o->prompt;
    struct task_sample s = *p->sample; /* borrows all texts but one */
    struct task_turn *turn = &s.turn[p->turn];
    struct strbuf user = {0};
    strbuf_add(&user, turn->user, turn->question_at);
    strbuf_adds(&user, question);
    turn->user = user.data;
    const sac_status status =
        user.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for a prompt")
                    : task_encode(o->text, &s, p->turn, p->answer, out_tok, out_n, err);
    strbuf_deinit(&user);
    return status;
}

sac_status task_find_question(const struct task_text *t, const struct task_prompt *p, size_t *out,
                              sac_error *err)
{
    const struct other_question other = {t, p};
    const struct question_text text = {encode_other, &other};
    assert(p->sample->turn[p->turn].question_at <= strlen(p->sample->turn[p->turn].user));
    return question_find(out, p->tok, p->n_tok, &text, err);
}

sac_status task_length(const struct task_text *t, const struct task_sample *s, uint32_t *out_n,
                       sac_error *err)
{
    static const char *const nothing[TASK_TURN_MAX] = {"", "", "", "", "", "", "", ""};
    int32_t *tok = NULL;
    size_t n = 0;
    TRY(task_encode(t, s, s->n_turn - 1, nothing, &tok, &n, err));
    sac_free(tok);
    for (uint32_t i = 0; i < s->n_turn; i++) n += s->turn[i].new_tok;
    if (n > UINT32_MAX) return error_set(err, SAC_ERR_CONTEXT, "a sample of %zu tokens", n);
    *out_n = (uint32_t)n;
    return SAC_OK;
}

/* ---- To a length ---- */

/* Builds a sample of `size` and moves it to `*best` if it fits; otherwise frees it. */
static sac_status try_size(const struct task_text *t, const struct task_builder *b, uint32_t ctx,
                           uint32_t size, struct task_sample *best, bool *out_fits, sac_error *err)
{
    struct task_sample s = {0};
    uint32_t n = 0;
    sac_status status = b->build(b->arg, size, &s, err);
    if (status == SAC_OK) status = task_length(t, &s, &n, err);
    *out_fits = status == SAC_OK && n <= ctx;
    if (*out_fits) {
        task_sample_deinit(best);
        s.size = size;
        *best = s;
    } else {
        task_sample_deinit(&s);
    }
    return status;
}

sac_status task_fit(const struct task_text *t, const struct task_builder *b, uint32_t ctx,
                    struct task_sample *out, sac_error *err)
{
    struct task_sample best = {0};
    const uint32_t limit = b->size_max ? b->size_max : UINT32_MAX / 2;
    uint32_t low = b->size_min, high = b->size_min; /* low fits; high does not, once found */
    bool fits = false;
    sac_status status = SAC_OK;
    TRY_FAIL(try_size(t, b, ctx, low, &best, &fits, err));
    if (!fits) {
        status =
            error_set(err, SAC_ERR_CONTEXT, "%u tokens are too few for the smallest sample", ctx);
        goto fail;
    }
    while (fits && low < limit) {
        high = low < limit / 2 ? 2 * low + 1 : limit;
        TRY_FAIL(try_size(t, b, ctx, high, &best, &fits, err));
        if (fits) low = high;
    }
    while (!fits && high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        bool middle_fits = false;
        TRY_FAIL(try_size(t, b, ctx, middle, &best, &middle_fits, err));
        *(middle_fits ? &low : &high) = middle;
    }
    *out = best;
    return SAC_OK;
fail:
    task_sample_deinit(&best);
    return status;
}
