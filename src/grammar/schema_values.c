/* schema_values.c: see the header. While a text is read, each alternative that it may still become
 * is a stack of the automaton, and those are limited (AUTOMATON_STACKS_MAX). So many values are
 * written as a tree: what they begin with in common stands once, and as many ways are open as there
 * are different next characters. */
#include "grammar/schema_values.h"

#include "base/mem.h"
#include "grammar/schema_check.h"

#include <stdlib.h>
#include <string.h>

#define FLAT_MAX  64u /* up to this number of values are written as plain alternatives */
#define DEPTH_MAX 32u /* of the tree; GBNF's parentheses nest up to GBNF_DEPTH_MAX */

struct values {
    char **text; /* owned, [n], as JSON texts */
    size_t n;
};

static void deinit(struct values *v)
{
    for (size_t i = 0; i < v->n; i++) cJSON_free(v->text[i]);
    mem_free(v->text);
}

static sac_status check_beside(const struct schema_writer *w, const cJSON *schema)
{
    const cJSON *const constant = schema_writer_get(schema, "const");
    const cJSON *const list = schema_writer_get(schema, "enum");
    for (const cJSON *k = schema->child; k; k = k->next)
        if (!schema_check_is_annotation(k->string) && k != constant && k != list &&
            strcmp(k->string, "type") != 0)
            return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED, "'%s' beside '%s'", k->string,
                                        list ? "enum" : "const");
    if (list && !cJSON_IsArray(list))
        return schema_writer_refuse(w, SAC_ERR_FORMAT, "'enum' is a list of values");
    return SAC_OK;
}

static sac_status collect(struct schema_writer *w, const cJSON *schema, struct values *out)
{
    const cJSON *const constant = schema_writer_get(schema, "const");
    const cJSON *const list = schema_writer_get(schema, "enum"), *item;
    out->text = mem_calloc(list ? (size_t)cJSON_GetArraySize(list) + 1 : 1, sizeof *out->text);
    if (!out->text) return schema_writer_no_memory(w);
    for (item = list ? list->child : constant; item; item = list ? item->next : NULL) {
        if (list && constant && !cJSON_Compare(item, constant, true)) continue;
        if (!schema_check_fits(w, schema, item)) continue;
        char *text = cJSON_PrintUnformatted(item);
        if (!text) return schema_writer_no_memory(w);
        out->text[out->n++] = text;
    }
    if (out->n) return SAC_OK;
    return schema_writer_refuse(w, SAC_ERR_UNSUPPORTED,
                                "no value of 'enum' and 'const' is allowed");
}

/* ---- The tree ---- */

static int compare(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_unique(struct values *v)
{
    size_t n = 0;
    qsort(v->text, v->n, sizeof *v->text, compare);
    for (size_t i = 0; i < v->n; i++) {
        if (n && strcmp(v->text[n - 1], v->text[i]) == 0)
            cJSON_free(v->text[i]);
        else
            v->text[n++] = v->text[i];
    }
    v->n = n;
}

/* Length of the common prefix, in whole characters. */
static size_t count_common(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && a[n] == b[n]) n++;
    while (n > 0 && (((unsigned char)a[n] & 0xc0) == 0x80 || ((unsigned char)b[n] & 0xc0) == 0x80))
        n--;
    return n;
}

/* Writes the rest of sorted texts [n] that share their first `at` bytes. */
static void write_tree(struct strbuf *body, char *const *text, size_t n, size_t at, uint32_t depth)
{
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && count_common(text[i], text[end]) > at;) end++;
        if (i) strbuf_adds(body, "| ");
        if (end == i + 1) {
            schema_writer_literal(body, text[i] + at, strlen(text[i]) - at);
        } else if (depth == DEPTH_MAX) {
            schema_writer_literal(body, text[i] + at, strlen(text[i]) - at);
            end = i + 1;
        } else {
            const size_t common = count_common(text[i], text[end - 1]);
            schema_writer_literal(body, text[i] + at, common - at);
            strbuf_adds(body, "( ");
            write_tree(body, text + i, end - i, common, depth + 1);
            strbuf_adds(body, ") ");
        }
    }
}

sac_status schema_values_write(struct schema_writer *w, const cJSON *schema, struct strbuf *body)
{
    struct values v = {0};
    TRY(check_beside(w, schema));
    const sac_status status = collect(w, schema, &v);
    if (status == SAC_OK && v.n > FLAT_MAX) {
        sort_unique(&v);
        write_tree(body, v.text, v.n, 0, 0);
    } else if (status == SAC_OK) {
        for (size_t i = 0; i < v.n; i++) {
            if (i) strbuf_adds(body, "| ");
            schema_writer_literal(body, v.text[i], strlen(v.text[i]));
        }
    }
    deinit(&v);
    return status;
}
