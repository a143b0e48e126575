/* json.c: see the header. The walk knows only what it needs in order to count: strings, brackets
 * and commas. cJSON decides whether the text is valid JSON. */
#include "serve/json.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 256u /* bound for all limits: the walk keeps a counter per level */

struct walk {
    const char *s;
    size_t n, at;
    struct json_limits limits;
    uint32_t depth, n_value;
    uint32_t n_member[DEPTH_MAX]; /* members seen, per level */
    sac_error *err;
};

/* ---- Memory ---- */

struct json_block {
    struct json_block *next, **link; /* `link` points to the pointer to this; NULL: not in a pool */
};
_Static_assert(sizeof(struct json_block) % _Alignof(max_align_t) == 0, "what follows is aligned");

/* cJSON's allocation hooks are global and take no context, so the pool belongs to the thread. */
static _Thread_local struct json_pool *current;

static void fail_pool(void)
{
    if (current) current->failed = true;
}

static void *alloc_block(size_t bytes)
{
    struct json_block *b = mem_alloc(sizeof *b + bytes);
    if (!b) {
        fail_pool();
        return NULL;
    }
    *b = (struct json_block){0};
    if (current) {
        b->next = current->first;
        b->link = &current->first;
        if (b->next) b->next->link = &b->next;
        current->first = b;
    }
    return b + 1;
}

static void free_block(void *p)
{
    struct json_block *b = p;
    if (!b) return;
    b--;
    if (b->link) {
        *b->link = b->next;
        if (b->next) b->next->link = b->link;
    }
    mem_free(b);
}

void json_install(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){alloc_block, free_block});
}

void json_enter(struct json_pool *pool)
{
    assert(!current);
    current = pool;
}

void json_leave(void)
{
    current = NULL;
}

void json_pool_deinit(struct json_pool *pool)
{
    while (pool->first) {
        struct json_block *next = pool->first->next;
        mem_free(pool->first);
        pool->first = next;
    }
}

/* ---- Reading ---- */

struct json_limits json_limits_default(void)
{
    /* Enough for a prompt of a million token ids (64 MB) and for a schema of 1,024 properties. */
    return (struct json_limits){.depth = 64, .values = 1u << 20, .members = 2048};
}

static bool is_continuation(unsigned char c)
{
    return (c & 0xc0u) == 0x80u;
}

size_t json_utf8_bytes(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    if (n == 0) return 0;
    if (u[0] < 0x80) return 1;
    if (n >= 2 && u[0] >= 0xc2 && u[0] <= 0xdf && is_continuation(u[1])) return 2;
    if (n >= 3 && (u[0] & 0xf0u) == 0xe0u && is_continuation(u[1]) && is_continuation(u[2])) {
        /* Refuses overlong forms and surrogates. */
        if ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] > 0x9f)) return 0;
        return 3;
    }
    if (n >= 4 && u[0] >= 0xf0 && u[0] <= 0xf4 && is_continuation(u[1]) && is_continuation(u[2]) &&
        is_continuation(u[3])) {
        if ((u[0] == 0xf0 && u[1] < 0x90) || (u[0] == 0xf4 && u[1] > 0x8f)) return 0;
        return 4;
    }
    return 0;
}

/* From after the opening quote to after the closing one. */
static sac_status walk_string(struct walk *w)
{
    while (w->at < w->n && w->s[w->at] != '"') {
        const char *s = w->s + w->at;
        const size_t left = w->n - w->at, bytes = json_utf8_bytes(s, left);
        if (bytes == 0 || *s == 0)
            return error_set(w->err, SAC_ERR_FORMAT, "byte %zu of the body is no UTF-8 text",
                             w->at);
        if (*s == '\\' && left >= 6 && memcmp(s, "\\u0000", 6) == 0)
            return error_set(w->err, SAC_ERR_FORMAT, "byte %zu of the body: a text holds U+0000",
                             w->at);
        w->at += *s == '\\' && left > 1 ? 2 : bytes;
    }
    w->at++;
    return SAC_OK;
}

static sac_status walk_open(struct walk *w)
{
    if (++w->depth > w->limits.depth || w->depth >= DEPTH_MAX)
        return error_set(w->err, SAC_ERR_ARG, "the JSON is nested deeper than %u levels",
                         w->limits.depth);
    w->n_member[w->depth] = 0;
    w->n_value++;
    return SAC_OK;
}

static sac_status walk_mark(struct walk *w, char c)
{
    if (c == '[' || c == '{') return walk_open(w);
    if (c == ']' || c == '}') {
        if (w->depth == 0)
            return error_set(w->err, SAC_ERR_FORMAT, "the body is no JSON at byte %zu", w->at);
        w->depth--;
    }
    if (c == ',') w->n_value++;
    /* Only colons count as members, so that arrays may be longer. */
    if (c == ':' && ++w->n_member[w->depth] > w->limits.members)
        return error_set(w->err, SAC_ERR_ARG, "a JSON object has more than %u members",
                         w->limits.members);
    if (w->n_value > w->limits.values)
        return error_set(w->err, SAC_ERR_ARG, "the JSON has more than %u values", w->limits.values);
    return SAC_OK;
}

static sac_status walk_all(struct walk *w)
{
    while (w->at < w->n) {
        const char c = w->s[w->at++];
        if ((unsigned char)c < 0x20 && !(c == '\n' || c == '\r' || c == '\t'))
            return error_set(w->err, SAC_ERR_FORMAT, "the body is no JSON at byte %zu", w->at - 1);
        if (c == '"') {
            TRY(walk_string(w));
        } else if (strchr("[]{},:", c)) {
            TRY(walk_mark(w, c));
        }
    }
    return SAC_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Returns a name that occurs twice in one object, or NULL. `name` is scratch space for the names of
 * the largest object. */
static const char *find_duplicate(const cJSON *value, const char **name)
{
    const cJSON *member;
    size_t n = 0;
    if (cJSON_IsObject(value)) {
        cJSON_ArrayForEach(member, value) name[n++] = member->string;
        qsort(name, n, sizeof *name, compare_names);
        for (size_t i = 1; i < n; i++)
            if (strcmp(name[i - 1], name[i]) == 0) return name[i];
    }
    cJSON_ArrayForEach(member, value)
    {
        const char *twice = member->child ? find_duplicate(member, name) : NULL;
        if (twice) return twice;
    }
    return NULL;
}

static sac_status check_names(const cJSON *value, const struct json_limits *limits, sac_error *err)
{
    const char **name = mem_calloc(limits->members + 1, sizeof *name);
    if (!name) fail_pool();
    if (!name) return error_set(err, SAC_ERR_MEMORY, "out of memory");
    const char *twice = find_duplicate(value, name);
    mem_free(name);
    if (!twice) return SAC_OK;
    return error_set(err, SAC_ERR_FORMAT, "'%.60s' stands twice in an object of the body", twice);
}

sac_status json_parse(cJSON **out, const char *text, size_t n, const struct json_limits *limits,
                      sac_error *err)
{
    struct walk w = {.s = text, .n = n, .limits = *limits, .err = err};
    const char *end = NULL;
    TRY(walk_all(&w));
    cJSON *value = cJSON_ParseWithLengthOpts(text, n, &end, false);
    if (!value && current && current->failed)
        return error_set(err, SAC_ERR_MEMORY, "out of memory");
    if (!value)
        return error_set(err, SAC_ERR_FORMAT, "the body is no JSON at byte %zu",
                         end ? (size_t)(end - text) : 0);
    while (end < text + n && strchr(" \t\r\n", *end) && *end) end++;
    if (end != text + n) {
        cJSON_Delete(value);
        return error_set(err, SAC_ERR_FORMAT, "the body goes on behind its JSON, at byte %zu",
                         (size_t)(end - text));
    }
    const sac_status status = check_names(value, limits, err);
    if (status != SAC_OK)
        cJSON_Delete(value);
    else
        *out = value;
    return status;
}

const cJSON *json_get(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(item) ? NULL : item;
}

bool json_index(const cJSON *value, int32_t max, int32_t *out)
{
    const double v = cJSON_IsNumber(value) ? value->valuedouble : -1;
    if (!(v >= 0 && v <= max && v == floor(v))) return false;
    *out = (int32_t)v;
    return true;
}

bool json_says(const cJSON *object, const char *name, const char *want)
{
    const cJSON *item = json_get(object, name);
    return cJSON_IsString(item) && strcmp(item->valuestring, want) == 0;
}

void json_copy(cJSON *to, const char *as, const cJSON *from, const char *name)
{
    const cJSON *item = json_get(from, name);
    if (item) cJSON_AddItemToObject(to, as, cJSON_Duplicate(item, true));
}

cJSON *json_text(const char *text, size_t n)
{
    struct strbuf clean = {0};
    for (size_t i = 0; i < n;) {
        const size_t bytes = text[i] ? json_utf8_bytes(text + i, n - i) : 0;
        strbuf_add(&clean, bytes ? text + i : "\xef\xbf\xbd", bytes ? bytes : 3);
        i += bytes ? bytes : 1;
    }
    strbuf_add(&clean, "", 0);
    if (clean.failed) fail_pool();
    cJSON *item = clean.failed ? NULL : cJSON_CreateString(clean.data);
    strbuf_deinit(&clean);
    return item;
}

cJSON *json_text_of(const struct strbuf *text)
{
    if (text->failed) fail_pool();
    return text->failed ? NULL : json_text(text->data, text->n);
}

void json_add_text(cJSON *object, const char *name, const char *text, size_t n)
{
    cJSON_AddItemToObject(object, name, json_text(text, n));
}

void json_print(struct strbuf *out, cJSON *value)
{
    char *text = value ? cJSON_PrintUnformatted(value) : NULL;
    if (text) strbuf_adds(out, text);
    if (!text || (current && current->failed)) out->failed = true;
    cJSON_free(text);
    cJSON_Delete(value);
}
