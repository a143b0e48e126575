/* shape.c: see the header. Every form becomes GBNF, and that a machine (src/grammar); what is too
 * large or cannot be expressed is refused with the words of those that look at it. */
#include "serve/shape.h"

#include "base/mem.h"
#include "grammar/gbnf.h"
#include "grammar/matcher.h"
#include "grammar/schema.h"

#include <string.h>

/* ---- Reading ---- */

static sac_status set_grammar(struct ask *a, const struct strbuf *gbnf,
                              const struct gbnf_limits *limits, const struct ask_rules *rules,
                              struct refusal *ref)
{
    sac_error err = {0};
    struct program *program = NULL;
    if (gbnf->failed) return refusal_set(ref, REFUSAL_UNAVAILABLE, NULL, "out of memory");
    sac_status status = gbnf_parse(&program, gbnf->data, gbnf->n, limits, &err);
    if (status == SAC_OK) status = machine_create(&a->machine, program, rules->trie, &err);
    if (status == SAC_ERR_CONTEXT) status = SAC_ERR_ARG; /* too large a grammar is the client's */
    return status == SAC_OK ? SAC_OK : refusal_of(ref, status, "grammar", err.msg);
}

/* Appends rules for a schema under the name `root`. */
static sac_status add_schema(struct strbuf *gbnf, const char *root, const cJSON *schema,
                             struct refusal *ref)
{
    struct strbuf text = {0};
    sac_error err = {0};
    sac_status status = SAC_OK;
    if (schema)
        json_print(&text, cJSON_Duplicate(schema, true));
    else
        strbuf_adds(&text, SCHEMA_ANY_OBJECT);
    if (text.failed)
        status = refusal_set(ref, REFUSAL_UNAVAILABLE, NULL, "out of memory");
    else if ((status = schema_gbnf(gbnf, root, text.data, text.n, &err)) != SAC_OK)
        status = refusal_of(ref, status, "json_schema", err.msg);
    strbuf_deinit(&text);
    return status;
}

static sac_status set_schema(struct ask *a, const cJSON *schema, const struct ask_rules *rules,
                             struct refusal *ref)
{
    struct strbuf gbnf = {0};
    sac_status status = add_schema(&gbnf, "root", schema, ref);
    if (status == SAC_OK) status = set_grammar(a, &gbnf, &gbnf_limits_made, rules, ref);
    strbuf_deinit(&gbnf);
    return status;
}

/* {"type": "json_schema", "json_schema": {"schema": {...}}}, or json_object, which llama.cpp lets
 * have a schema too. */
static sac_status read_format(struct ask *a, const cJSON *format, const struct ask_rules *rules,
                              struct refusal *ref)
{
    const cJSON *inner = json_get(format, "json_schema"), *schema = json_get(inner, "schema");
    if (json_says(format, "type", "text")) return SAC_OK;
    if (json_says(format, "type", "json_object"))
        return set_schema(a, json_get(format, "schema"), rules, ref);
    if (!json_says(format, "type", "json_schema"))
        return refusal_set(ref, REFUSAL_REQUEST, "response_format",
                           "the type of 'response_format' is not text, json_object or json_schema");
    if (!schema)
        return refusal_set(ref, REFUSAL_REQUEST, "response_format",
                           "'response_format' has no json_schema.schema");
    return set_schema(a, schema, rules, ref);
}

sac_status shape_read(struct ask *a, const cJSON *body, const struct ask_rules *rules,
                      struct refusal *ref)
{
    const cJSON *format = json_get(body, "response_format"), *schema;
    const char *grammar = NULL;
    TRY(ask_text(body, "grammar", &grammar, ref));
    schema = json_get(body, "json_schema");
    const int n_form = (format && !json_says(format, "type", "text")) + (grammar != NULL) +
                       (schema != NULL) + (a->machine != NULL);
    if (n_form > 1)
        return refusal_set(ref, REFUSAL_REQUEST, "response_format",
                           "an answer has one form: 'response_format', 'json_schema', 'grammar' or "
                           "a call that 'tool_choice' demands");
    if (format) return read_format(a, format, rules, ref);
    if (schema) return set_schema(a, schema, rules, ref);
    if (!grammar) return SAC_OK;
    const struct strbuf text = {.data = (char *)(uintptr_t)grammar, .n = strlen(grammar)};
    return set_grammar(a, &text, &gbnf_limits_given, rules, ref);
}

/* A text as a literal of GBNF. */
static void add_literal(struct strbuf *gbnf, const char *text)
{
    strbuf_add(gbnf, "\"", 1);
    for (const char *c = text; *c; c++) {
        if (*c == '"' || *c == '\\') strbuf_add(gbnf, "\\", 1);
        if (*c == '\n')
            strbuf_adds(gbnf, "\\n");
        else
            strbuf_add(gbnf, c, 1);
    }
    strbuf_add(gbnf, "\"", 1);
}

/* A rule `callI` for a tool, in the form of Hermes, which toolcall.c reads from any model. */
static sac_status add_call(struct strbuf *gbnf, const cJSON *tool, uint32_t i, struct refusal *ref)
{
    const cJSON *function = json_get(tool, "function"), *name = json_get(function, "name");
    struct strbuf head = {0}, args = {0};
    cJSON *quoted = json_text(name->valuestring, strlen(name->valuestring));
    strbuf_adds(&head, "<tool_call>\n{\"name\": ");
    json_print(&head, quoted);
    strbuf_adds(&head, ", \"arguments\": ");
    strbuf_addf(&args, "args%u", i);
    if (head.failed || args.failed) gbnf->failed = true;
    strbuf_addf(gbnf, "call%u ::= ", i);
    if (!gbnf->failed) add_literal(gbnf, head.data);
    strbuf_addf(gbnf, " args%u \"}\\n</tool_call>\"\n", i);
    sac_status status = SAC_OK;
    if (gbnf->failed)
        status = refusal_set(ref, REFUSAL_UNAVAILABLE, NULL, "out of memory");
    else
        status = add_schema(gbnf, args.data, json_get(function, "parameters"), ref);
    strbuf_deinit(&head);
    strbuf_deinit(&args);
    return status;
}

sac_status shape_call(struct ask *a, const cJSON *tools, const char *only,
                      const struct ask_rules *rules, struct refusal *ref)
{
    struct strbuf gbnf = {0};
    const cJSON *tool;
    uint32_t i = 0, n = 0;
    sac_status status = SAC_OK;
    strbuf_adds(&gbnf, "root ::= ");
    for (i = 0; i < a->n_tool; i++)
        if (!only || strcmp(a->tool[i], only) == 0)
            strbuf_addf(&gbnf, n++ ? " | call%u" : "call%u", i);
    strbuf_add(&gbnf, "\n", 1);
    i = 0;
    cJSON_ArrayForEach(tool, tools)
    {
        if (status == SAC_OK && (!only || strcmp(a->tool[i], only) == 0))
            status = add_call(&gbnf, tool, i, ref);
        i++;
    }
    if (status == SAC_OK && n == 0)
        status = refusal_set(ref, REFUSAL_REQUEST, "tool_choice",
                             "'tool_choice' names no tool of 'tools'");
    if (status == SAC_OK) status = set_grammar(a, &gbnf, &gbnf_limits_made, rules, ref);
    strbuf_deinit(&gbnf);
    return status;
}

/* ---- Following ---- */

struct shape_text {
    struct matcher *matcher; /* owned */
    uint64_t *mask;          /* owned, [n_word]: a copy, for the machine's is gone when another of
                                its texts asks */
    size_t n_word;
};

sac_status shape_text_create(struct shape_text **out, struct machine *machine, sac_error *err)
{
    struct shape_text *t = mem_calloc(1, sizeof *t);
    if (!t) return error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
    t->n_word = machine->mask_words;
    t->mask = mem_calloc(t->n_word, sizeof *t->mask);
    const sac_status status = t->mask
                                  ? matcher_create(&t->matcher, machine, err)
                                  : error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
    if (status == SAC_OK)
        *out = t;
    else
        shape_text_free(t);
    return status;
}

void shape_text_free(struct shape_text *t)
{
    if (!t) return;
    if (t->matcher) matcher_free(t->matcher);
    mem_free(t->mask);
    mem_free(t);
}

/* An empty mask, where the grammar's limits are reached, ends the request with an error. */
static const uint64_t *mask_of_text(void *user)
{
    struct shape_text *t = user;
    const uint64_t *mask;
    if (matcher_mask(t->matcher, &mask, NULL) == SAC_OK)
        memcpy(t->mask, mask, t->n_word * sizeof *mask);
    else
        memset(t->mask, 0, t->n_word * sizeof *mask);
    return t->mask;
}

static void text_goes_on(void *user, int32_t tok)
{
    struct shape_text *t = user;
    /* The mask allowed it; where a limit is reached on the way, the next mask is empty. */
    const sac_status status = matcher_accept(t->matcher, tok, NULL);
    (void)status;
}

sac_guide shape_text_guide(struct shape_text *t)
{
    return (sac_guide){.mask = mask_of_text, .chosen = text_goes_on, .user = t};
}
