/* template.c: messages, tools and variables into a template's scope, and the render's budgets.
 *
 * A template sees what the transformers library gives it: `messages`, `tools` (none if there are
 * none), `documents`, `add_generation_prompt`, `bos_token`, `eos_token`, and the caller's own
 * variables, which come last and so win. Budgets start at the TEMPLATE_* limits and grow with the
 * messages' size, so that a long document is no attack. Nothing of a render outlives it but its
 * text. */
#include "model/template.h"

#include "base/mem.h"
#include "model/jinja.h"
#include "model/tokenizer.h"

#include <stdio.h>

/* Bytes of a message may be copied several times before they are printed. */
#define MEMORY_PER_INPUT 16u

static sac_status set(struct jinja *j, struct jinja_dict *d, const char *key, struct jinja_value v)
{
    return jinja_dict_set(j, d, jinja_strz(key), v);
}

/* A string from a message. */
static sac_status input_text(struct jinja *j, const char *s, struct jinja_value *out)
{
    *out = jinja_strz(s);
    return jinja_text_guard(j, out);
}

/* Adds the members of the JSON object `json` to `d`. */
static sac_status set_json(struct jinja *j, struct jinja_dict *d, const char *json,
                           const char *what)
{
    struct jinja_value v;
    TRY(jinja_json_read(j, json, strlen(json), what, &v));
    if (v.kind != JINJA_DICT)
        return error_set(j->err, SAC_ERR_FORMAT, "%s: a JSON object was expected", what);
    for (uint32_t i = 0; i < v.dict->n; i++)
        TRY(jinja_dict_set(j, d, v.dict->pairs[i].key, v.dict->pairs[i].value));
    return SAC_OK;
}

static sac_status make_message(struct jinja *j, const struct template_input *in, size_t i,
                               struct jinja_value *out)
{
    const sac_message *m = &in->msgs[i];
    char what[64];
    snprintf(what, sizeof what, "extra fields of message %zu", i);
    TRY(jinja_dict_new(j, out));
    struct jinja_value role, content = jinja_none();
    TRY(input_text(j, m->role, &role));
    if (m->content) TRY(input_text(j, m->content, &content));
    TRY(set(j, out->dict, "role", role));
    TRY(set(j, out->dict, "content", content));
    return m->extra_json ? set_json(j, out->dict, m->extra_json, what) : SAC_OK;
}

static sac_status make_scope(struct jinja *j, const struct template_input *in,
                             struct jinja_scope *s)
{
    struct jinja_value messages, tools = jinja_none();
    TRY(jinja_list_new(j, &messages, JINJA_LIST));
    for (size_t i = 0; i < in->n_msg; i++) {
        struct jinja_value message;
        TRY(make_message(j, in, i, &message));
        TRY(jinja_list_push(j, messages.list, message));
    }
    if (in->tools_json)
        TRY(jinja_json_read(j, in->tools_json, strlen(in->tools_json), "tools", &tools));
    TRY(set(j, &s->vars, "messages", messages));
    TRY(set(j, &s->vars, "tools", tools));
    TRY(set(j, &s->vars, "documents", jinja_none()));
    TRY(set(j, &s->vars, "add_generation_prompt", jinja_bool(in->add_generation_prompt)));
    TRY(set(j, &s->vars, "bos_token", jinja_strz(in->bos)));
    TRY(set(j, &s->vars, "eos_token", jinja_strz(in->eos)));
    j->guard = NULL; /* variables are as trusted as the template */
    return in->vars_json ? set_json(j, &s->vars, in->vars_json, "template variables") : SAC_OK;
}

static size_t input_bytes(const struct template_input *in)
{
    size_t n =
        (in->tools_json ? strlen(in->tools_json) : 0) + (in->vars_json ? strlen(in->vars_json) : 0);
    for (size_t i = 0; i < in->n_msg; i++) {
        const sac_message *m = &in->msgs[i];
        n += strlen(m->role) + (m->content ? strlen(m->content) : 0) +
             (m->extra_json ? strlen(m->extra_json) : 0);
    }
    return n;
}

static sac_status render(struct jinja *j, const char *source, size_t n,
                         const struct template_input *in)
{
    struct jinja_token *tok;
    struct jinja_node *body;
    struct jinja_scope globals = {0}, scope = {.parent = &globals};
    TRY(make_scope(j, in, &globals));
    TRY(jinja_lex(j, source, n, &tok));
    TRY(jinja_parse(j, tok, &body));
    return jinja_eval(j, body, &scope);
}

sac_status template_render(const char *source, size_t n, const struct template_input *in,
                           char **out_text, sac_error *err)
{
    sac_error unread;
    const size_t input = input_bytes(in) * (in->guard ? TOKENIZER_GUARD_GROWTH : 1);
    if (n > JINJA_SOURCE_MAX)
        return error_set(err, SAC_ERR_FORMAT, "a chat template of %zu bytes, the limit is %zu", n,
                         JINJA_SOURCE_MAX);
    if (input > UINT32_MAX / MEMORY_PER_INPUT)
        return error_set(err, SAC_ERR_ARG, "messages of %zu bytes are too long for a template",
                         input);
    struct jinja j = {.pool.max = JINJA_MEMORY_MAX + MEMORY_PER_INPUT * input,
                      .out_max = TEMPLATE_OUTPUT_MAX + input,
                      .steps_left = TEMPLATE_STEPS_MAX + input,
                      .line = 1,
                      .now = in->now,
                      .guard = in->guard,
                      .err = err ? err : &unread};
    sac_status status = render(&j, source, n, in);
    if (status == SAC_OK) {
        char *text = strbuf_detach(&j.out, NULL);
        if (text)
            *out_text = text;
        else
            status = error_set(err, SAC_ERR_MEMORY, "no memory for a chat template's text");
    }
    jinja_free_all(&j);
    return status;
}
