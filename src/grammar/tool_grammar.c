/* tool_grammar.c: see the header. The parameters of each tool are a separate schema, so references
 * within them stay there.
 *
 * Free text before a call (TOOL_GRAMMAR_AUTO) is text that does not contain the marker: rule free-k
 * is the state in which the last k characters are the first k of the marker, as in the algorithm of
 * Knuth, Morris and Pratt ("Fast pattern matching in strings", 1977); after the whole marker only
 * calls may follow. */
#include "grammar/tool_grammar.h"

#include "base/mem.h"
#include "grammar/gbnf.h"
#include "grammar/schema.h"
#include "grammar/schema_writer.h"

#include <stdio.h>
#include <string.h>

struct frame {
    const char *marker;      /* text that begins calls; NULL: none */
    const char *open;        /* GBNF of the text before the first call, */
    const char *between;     /* between calls (NULL: only one call), */
    const char *close;       /* and after the last one */
    const char *name, *args; /* the texts before a call's name and before its arguments */
};

static const struct frame frames[] = {
    [TOOL_PARSER_HERMES] = {"<tool_call>", "\"\\n\"", "\"\\n</tool_call>\\n<tool_call>\\n\"",
                            "\"\\n</tool_call>\"", "{\"name\": ", ", \"arguments\": "},
    [TOOL_PARSER_LLAMA3] = {NULL, "\"\"", NULL, "\"\"", "{\"name\": ", ", \"parameters\": "},
    [TOOL_PARSER_MISTRAL] = {"[TOOL_CALLS]", "\" \"? \"[\"", "\", \"", "\"]\"",
                             "{\"name\": ", ", \"arguments\": "},
    [TOOL_PARSER_GEMMA] = {"```tool_code", "\"\\n\"", "\"\\n```\\n```tool_code\\n\"", "\"\\n```\"",
                           "{\"name\": ", ", \"parameters\": "},
};

/* ---- Tools ---- */

static const cJSON *function_of(const cJSON *tool)
{
    const cJSON *const inner = cJSON_GetObjectItemCaseSensitive(tool, "function");
    return inner ? inner : tool;
}

static const char *name_of(const cJSON *tool)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(function_of(tool), "name"));
}

static sac_status write_tool(struct strbuf *out, const struct frame *f, const cJSON *tool,
                             unsigned index, sac_error *err)
{
    const char *const name = name_of(tool);
    const cJSON *const schema = cJSON_GetObjectItemCaseSensitive(function_of(tool), "parameters");
    const cJSON quoted = {.type = cJSON_String, .valuestring = (char *)(uintptr_t)name};
    char root[24];
    if (!name || !name[0] || strlen(name) >= TOOL_PARSER_NAME_MAX)
        return error_set(err, SAC_ERR_FORMAT, "tools: tool %u has no 'name' of 1 to %u characters",
                         index, TOOL_PARSER_NAME_MAX - 1);
    char *const json = schema ? cJSON_PrintUnformatted(schema) : mem_strdup(SCHEMA_ANY_OBJECT);
    char *const text = cJSON_PrintUnformatted(&quoted);
    sac_status status = SAC_ERR_MEMORY;
    snprintf(root, sizeof root, "args%u", index);
    if (json && text) {
        strbuf_addf(out, "tool%u ::= ", index);
        schema_writer_literal(out, f->name, strlen(f->name));
        schema_writer_literal(out, text, strlen(text));
        schema_writer_literal(out, f->args, strlen(f->args));
        strbuf_addf(out, "%s \"}\"\n", root);
        status = schema_gbnf(out, root, json, strlen(json), err);
        if (status != SAC_OK) status = error_prefix(err, status, "tool '%.64s'", name);
    } else {
        status = error_set(err, status, "out of memory for a list of tools");
    }
    cJSON_free(text);
    if (schema)
        cJSON_free(json);
    else
        mem_free(json);
    return status;
}

/* "call ::= tool0 | tool1 ..." of all tools, or of one. */
static sac_status write_tools(struct strbuf *out, const struct tool_grammar *set,
                              const cJSON *tools, sac_error *err)
{
    struct strbuf call = {0};
    const cJSON *tool;
    unsigned index = 0, n = 0;
    sac_status status = SAC_OK;
    cJSON_ArrayForEach(tool, tools)
    {
        const char *const name = name_of(tool);
        const bool wanted =
            set->choice != TOOL_GRAMMAR_NAMED || (name && strcmp(name, set->name) == 0);
        if (wanted && index >= TOOL_GRAMMAR_TOOLS_MAX)
            status = error_set(err, SAC_ERR_CONTEXT, "tools: more than %u", TOOL_GRAMMAR_TOOLS_MAX);
        if (wanted && status == SAC_OK)
            status = write_tool(out, &frames[set->family], tool, index, err);
        if (status != SAC_OK) break;
        if (wanted) strbuf_addf(&call, "%s tool%u ", n++ ? "|" : "", index);
        index++;
    }
    if (status == SAC_OK && n == 0)
        status =
            set->choice == TOOL_GRAMMAR_NAMED
                ? error_set(err, SAC_ERR_NOT_FOUND, "tools: there is no tool '%.64s'", set->name)
                : error_set(err, SAC_ERR_ARG, "tools: the list is empty");
    if (status == SAC_OK) strbuf_addf(out, "call ::= %s\n", call.data);
    out->failed |= call.failed;
    strbuf_deinit(&call);
    return status;
}

/* ---- Free text ---- */

/* How many characters of the marker match if `next` follows its first k (as in
 * Knuth-Morris-Pratt). */
static size_t matched_after(const char *marker, size_t k, char next)
{
    for (size_t n = k + 1; n > 0; n--)
        if (marker[n - 1] == next && memcmp(marker, marker + k + 1 - n, n - 1) == 0) return n;
    return 0;
}

static void add_class_char(struct strbuf *out, char c)
{
    strbuf_addf(out, "\\x%02x", (unsigned char)c);
}

/* Rule free-k: the text ends, or continues with any character. */
static void write_free_rule(struct strbuf *out, const char *marker, size_t k)
{
    const size_t n = strlen(marker);
    struct strbuf others = {0};
    strbuf_addf(out, "free-%zu ::= (", k);
    for (size_t i = 0; i < n; i++) {
        if (memchr(marker, marker[i], i)) continue; /* a repeated character */
        const size_t next = matched_after(marker, k, marker[i]);
        add_class_char(&others, marker[i]);
        strbuf_adds(out, "[");
        add_class_char(out, marker[i]);
        strbuf_addf(out, next == n ? "] calls | " : "] free-%zu | ", next);
    }
    strbuf_add(&others, "", 0);
    strbuf_addf(out, "[^%s] free-0)?\n", others.data ? others.data : "");
    out->failed |= others.failed;
    strbuf_deinit(&others);
}

static void write_free(struct strbuf *out, const struct frame *f, bool is_control)
{
    if (!f->marker) {
        /* Llama: the whole answer is a call, or none is made. */
        strbuf_adds(out, "root ::= calls | ([^{] .*)?\n");
    } else if (is_control) {
        strbuf_addf(out, "root ::= .* (<<%s>> calls)?\n", f->marker);
    } else {
        strbuf_adds(out, "root ::= free-0\n");
        for (size_t k = 0; k < strlen(f->marker); k++) write_free_rule(out, f->marker, k);
    }
}

static void write_frame(struct strbuf *out, const struct tool_grammar *set)
{
    const struct frame *const f = &frames[set->family];
    const bool is_control = f->marker && set->trie && trie_has_control(set->trie, f->marker);
    if (set->choice == TOOL_GRAMMAR_AUTO) {
        write_free(out, f, is_control);
    } else {
        strbuf_adds(out, "root ::= ");
        if (is_control)
            strbuf_addf(out, "<<%s>> ", f->marker);
        else if (f->marker)
            schema_writer_literal(out, f->marker, strlen(f->marker));
        strbuf_adds(out, "calls\n");
    }
    strbuf_addf(out, "calls ::= %s call ", f->open);
    if (set->parallel && f->between && set->choice != TOOL_GRAMMAR_NAMED)
        strbuf_addf(out, "(%s call)* ", f->between);
    strbuf_addf(out, "%s\n", f->close);
}

sac_status tool_grammar_gbnf(struct strbuf *out, const struct tool_grammar *set, sac_error *err)
{
    cJSON *const tools = cJSON_Parse(set->tools_json);
    sac_status status;
    if (cJSON_IsArray(tools)) {
        write_frame(out, set);
        status = write_tools(out, set, tools, err);
    } else {
        status = error_set(err, SAC_ERR_FORMAT, "tools: not a list in JSON");
    }
    cJSON_Delete(tools);
    if (status == SAC_OK && out->failed)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a list of tools");
    return status;
}

sac_status tool_grammar_compile(struct program **out, const struct tool_grammar *set,
                                sac_error *err)
{
    struct strbuf gbnf = {0};
    sac_status status = tool_grammar_gbnf(&gbnf, set, err);
    if (status == SAC_OK) status = gbnf_parse(out, gbnf.data, gbnf.n, &gbnf_limits_made, err);
    strbuf_deinit(&gbnf);
    return status;
}
