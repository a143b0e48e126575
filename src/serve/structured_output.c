/* structured_output.c: see the header. Every form is compiled to GBNF, and that to an automaton
 * (src/grammar); a form that is too large or cannot be expressed is refused with the message of the
 * compiler. */
#include "serve/structured_output.h"

#include "base/mem.h"
#include "grammar/gbnf.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"
#include "grammar/tool_grammar.h"

#include <string.h>

/* ---- Reading ---- */

/* Converts a compiler error to one of the API: a grammar that is too large is the client's fault.
 */
static sac_status refuse(struct api_error *error, sac_status status, const char *param,
                         const sac_error *err)
{
    if (status == SAC_OK) return SAC_OK;
    return api_error_of(error, status == SAC_ERR_CONTEXT ? SAC_ERR_ARG : status, param, err->msg);
}

static sac_status set_grammar(struct api_request *a, const struct strbuf *gbnf,
                              const struct gbnf_limits *limits,
                              const struct api_request_rules *rules, struct api_error *error)
{
    /* For schemas, errors do not mention the grammar they are compiled to. */
    const char *param = limits == &gbnf_limits_made ? "json_schema" : "grammar";
    sac_error err = {0};
    struct program *program = NULL;
    if (gbnf->failed) return api_error_no_memory(error);
    sac_status status = gbnf_parse(&program, gbnf->data, gbnf->n, limits, &err);
    if (status == SAC_OK) status = automaton_create(&a->automaton, program, rules->trie, &err);
    return refuse(error, status, param, &err);
}

static sac_status add_schema(struct strbuf *gbnf, const cJSON *schema, struct api_error *error)
{
    struct strbuf text = {0};
    sac_error err = {0};
    sac_status status = SAC_OK;
    if (schema)
        json_print(&text, cJSON_Duplicate(schema, true));
    else
        strbuf_adds(&text, SCHEMA_ANY_OBJECT);
    if (text.failed)
        status = api_error_no_memory(error);
    else
        status =
            refuse(error, schema_gbnf(gbnf, "root", text.data, text.n, &err), "json_schema", &err);
    strbuf_deinit(&text);
    return status;
}

static sac_status set_schema(struct api_request *a, const cJSON *schema,
                             const struct api_request_rules *rules, struct api_error *error)
{
    struct strbuf gbnf = {0};
    sac_status status = add_schema(&gbnf, schema, error);
    if (status == SAC_OK) status = set_grammar(a, &gbnf, &gbnf_limits_made, rules, error);
    strbuf_deinit(&gbnf);
    return status;
}

/* {"type": "json_schema", "json_schema": {"schema": {...}}}, or json_object, to which llama.cpp
 * allows a schema, too. */
static sac_status read_format(struct api_request *a, const cJSON *format,
                              const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *inner = json_get(format, "json_schema"), *schema = json_get(inner, "schema");
    if (json_says(format, "type", "text")) return SAC_OK;
    if (json_says(format, "type", "json_object"))
        return set_schema(a, json_get(format, "schema"), rules, error);
    if (!json_says(format, "type", "json_schema"))
        return api_error_set(
            error, API_ERROR_REQUEST, "response_format",
            "the type of 'response_format' is not text, json_object or json_schema");
    if (!schema)
        return api_error_set(error, API_ERROR_REQUEST, "response_format",
                             "'response_format' has no json_schema.schema");
    return set_schema(a, schema, rules, error);
}

sac_status structured_output_read(struct api_request *a, const cJSON *body,
                                  const struct api_request_rules *rules, struct api_error *error)
{
    const cJSON *format = json_get(body, "response_format"), *schema;
    const char *grammar = NULL;
    TRY(api_request_text(body, "grammar", &grammar, error));
    schema = json_get(body, "json_schema");
    const int n_form = (format && !json_says(format, "type", "text")) + (grammar != NULL) +
                       (schema != NULL) + (a->automaton != NULL);
    if (n_form > 1)
        return api_error_set(
            error, API_ERROR_REQUEST, "response_format",
            "an answer has one form: 'response_format', 'json_schema', 'grammar' or "
            "a call that 'tool_choice' demands");
    if (format) return read_format(a, format, rules, error);
    if (schema) return set_schema(a, schema, rules, error);
    if (!grammar) return SAC_OK;
    const struct strbuf text = {.data = (char *)(uintptr_t)grammar, .n = strlen(grammar)};
    return set_grammar(a, &text, &gbnf_limits_given, rules, error);
}

sac_status structured_output_force_call(struct api_request *a, const char *tools, const char *only,
                                        const struct api_request_rules *rules,
                                        struct api_error *error)
{
    const struct tool_grammar set = {.family = a->tool_family,
                                     .choice = only ? TOOL_GRAMMAR_NAMED : TOOL_GRAMMAR_REQUIRED,
                                     .tools_json = tools,
                                     .name = only,
                                     .trie = rules->trie};
    sac_error err = {0};
    struct program *program = NULL;
    sac_status status = tool_grammar_compile(&program, &set, &err);
    if (status == SAC_ERR_NOT_FOUND)
        return api_error_set(error, API_ERROR_REQUEST, "tool_choice",
                             "'tool_choice' names no tool of 'tools'");
    if (status == SAC_OK) status = automaton_create(&a->automaton, program, rules->trie, &err);
    return refuse(error, status, "tools", &err);
}

/* ---- Constraining an answer ---- */

struct structured_output {
    struct matcher *matcher;               /* owned; NULL: no grammar */
    const struct allowed_tokens *allowed;  /* borrowed; NULL: none */
    int32_t said[ALLOWED_TOKENS_WORD_TOK]; /* [n_said]: last tokens of the text, for `allowed` */
    size_t n_said;
    uint64_t *mask; /* owned, [n_word]: a copy, because the automaton reuses its own */
    size_t n_word;
    sac_status status; /* of the last mask, which is empty after an error */
    sac_error err;     /* the reason */
};

sac_status structured_output_create(struct structured_output **out, struct automaton *automaton,
                                    const struct allowed_tokens *allowed, sac_error *err)
{
    struct structured_output *t = mem_calloc(1, sizeof *t);
    if (!t) return error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
    t->allowed = allowed;
    t->n_word = automaton ? automaton->mask_words : allowed_tokens_mask_words(allowed);
    t->mask = mem_calloc(t->n_word, sizeof *t->mask);
    sac_status status =
        t->mask ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
    if (status == SAC_OK && automaton) status = matcher_create(&t->matcher, automaton, err);
    if (status == SAC_OK)
        *out = t;
    else
        structured_output_free(t);
    return status;
}

void structured_output_free(struct structured_output *t)
{
    if (!t) return;
    if (t->matcher) matcher_free(t->matcher);
    mem_free(t->mask);
    mem_free(t);
}

/* If the grammar reaches its limits, the mask is empty, which ends the request with an error. */
static const uint64_t *compute_mask(void *user)
{
    struct structured_output *t = user;
    const size_t bytes = t->n_word * sizeof *t->mask;
    const uint64_t *mask = NULL;
    if (t->matcher) t->status = matcher_mask(t->matcher, &mask, &t->err);
    if (mask && t->status == SAC_OK)
        memcpy(t->mask, mask, bytes);
    else
        memset(t->mask, t->status == SAC_OK ? 0xff : 0, bytes);
    if (t->allowed) allowed_tokens_apply(t->allowed, t->said, t->n_said, t->mask);
    return t->mask;
}

static void accept_token(void *user, int32_t tok)
{
    struct structured_output *t = user;
    if (t->n_said == ALLOWED_TOKENS_WORD_TOK)
        memmove(t->said, t->said + 1, --t->n_said * sizeof *t->said);
    t->said[t->n_said++] = tok;
    if (!t->matcher) return;
    /* The mask allowed the token. If a limit is reached here, the next mask is empty. */
    const sac_status status = matcher_accept(t->matcher, tok, NULL);
    (void)status;
}

sac_status structured_output_status(const struct structured_output *t, const char **out_why)
{
    if (t && t->status != SAC_OK) *out_why = t->err.msg;
    return t ? t->status : SAC_OK;
}

sac_guide structured_output_guide(struct structured_output *t)
{
    return (sac_guide){.mask = compute_mask, .chosen = accept_token, .user = t};
}
