/* conversation.c: see the header. A file may come from anywhere: it is checked turn by turn, and
 * errors name the place. Fields that other programs add are ignored; content that is not one string
 * (images, tool calls) is refused, because it would be lost. */
#include "app/conversation.h"

#include "base/input.h"
#include "base/mem.h"
#include "base/textfile.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static void turn_deinit(struct turn *t)
{
    for (size_t i = 0; i < t->n_document; i++) mem_free(t->document[i].name);
    mem_free(t->document);
    mem_free(t->text);
    *t = (struct turn){0};
}

void conversation_drop_last(struct conversation *c)
{
    assert(c->n_turn > 0);
    turn_deinit(&c->turns[--c->n_turn]);
}

void conversation_clear(struct conversation *c)
{
    while (c->n_turn) conversation_drop_last(c);
    turn_deinit(&c->next);
}

void conversation_deinit(struct conversation *c)
{
    conversation_clear(c);
    mem_free(c->turns);
    mem_free(c->system);
    *c = (struct conversation){0};
}

static sac_status no_memory(sac_error *err)
{
    return error_set(err, SAC_ERR_MEMORY, "out of memory for the conversation");
}

/* ---- Documents ---- */

size_t conversation_document_bytes(const struct turn *t)
{
    size_t n = 0;
    for (size_t i = 0; i < t->n_document; i++) n += t->document[i].n;
    return n;
}

/* Records that the next `n` bytes of the turn's text are a document. */
static sac_status name_document(struct turn *t, const char *name, size_t n, sac_error *err)
{
    struct conversation_document *grown =
        mem_realloc(t->document, (t->n_document + 1) * sizeof *grown);
    if (!grown) return no_memory(err);
    t->document = grown;
    char *copy = mem_strdup(name);
    if (!copy) return no_memory(err);
    t->document[t->n_document++] = (struct conversation_document){.name = copy, .n = n};
    return SAC_OK;
}

sac_status conversation_add_document(struct conversation *c, const char *name, const char *text,
                                     size_t n, sac_error *err)
{
    struct turn *t = &c->next;
    const size_t before = t->text ? strlen(t->text) : 0;
    char *grown = mem_realloc(t->text, before + n + 3);
    if (!grown) return no_memory(err);
    t->text = grown;
    if (n) memcpy(grown + before, text, n);
    memcpy(grown + before + n, "\n\n", 3);
    const sac_status status = name_document(t, name, n + 2, err);
    if (status != SAC_OK) grown[before] = 0;
    return status;
}

static bool remove_from(struct turn *t, const char *name)
{
    size_t i = t->n_document, at = 0;
    while (i > 0 && name && strcmp(t->document[i - 1].name, name) != 0) i--;
    if (i == 0) return false;
    const size_t n = t->document[--i].n;
    for (size_t k = 0; k < i; k++) at += t->document[k].n;
    memmove(t->text + at, t->text + at + n, strlen(t->text + at + n) + 1);
    mem_free(t->document[i].name);
    memmove(&t->document[i], &t->document[i + 1], (--t->n_document - i) * sizeof *t->document);
    return true;
}

bool conversation_remove_document(struct conversation *c, const char *name)
{
    if (remove_from(&c->next, name)) return true;
    for (size_t i = c->n_turn; i > 0; i--)
        if (remove_from(&c->turns[i - 1], name)) return true;
    return false;
}

/* ---- Turns ---- */

/* Makes room for one more turn. */
static sac_status reserve(struct conversation *c, sac_error *err)
{
    if (c->n_turn < c->turn_room) return SAC_OK;
    const size_t room = c->turn_room ? 2 * c->turn_room : 16;
    struct turn *grown = mem_realloc(c->turns, room * sizeof *grown);
    if (!grown) return no_memory(err);
    c->turns = grown;
    c->turn_room = room;
    return SAC_OK;
}

static sac_status add(struct conversation *c, const char *role, const char *text, size_t n,
                      sac_error *err)
{
    TRY(reserve(c, err));
    char *copy = mem_strndup(n ? text : "", n);
    if (!copy) return no_memory(err);
    c->turns[c->n_turn++] = (struct turn){.role = role, .text = copy};
    return SAC_OK;
}

sac_status conversation_ask(struct conversation *c, const char *question, sac_error *err)
{
    struct turn *t = &c->next;
    const size_t n = t->text ? strlen(t->text) : 0, n_question = strlen(question);
    TRY(reserve(c, err));
    char *grown = mem_realloc(t->text, n + n_question + 1);
    if (!grown) return no_memory(err);
    memcpy(grown + n, question, n_question + 1);
    t->text = grown;
    t->role = "user";
    c->turns[c->n_turn++] = *t;
    *t = (struct turn){0};
    return SAC_OK;
}

void conversation_unask(struct conversation *c)
{
    assert(c->n_turn % 2 == 1 && !c->next.text);
    c->next = c->turns[--c->n_turn];
    c->next.text[conversation_document_bytes(&c->next)] = 0;
}

sac_status conversation_answer(struct conversation *c, const char *text, size_t n, sac_error *err)
{
    return add(c, "assistant", text, n, err);
}

/* ---- Saving ---- */

static cJSON *add_message(cJSON *list, const char *role, const char *content)
{
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddStringToObject(message, "content", content);
    cJSON_AddItemToArray(list, message);
    return message;
}

static void add_documents(cJSON *message, const struct turn *t)
{
    cJSON *list = cJSON_AddArrayToObject(message, "documents");
    for (size_t i = 0; i < t->n_document; i++) {
        cJSON *document = cJSON_CreateObject();
        cJSON_AddStringToObject(document, "name", t->document[i].name);
        cJSON_AddNumberToObject(document, "bytes", (double)t->document[i].n);
        cJSON_AddItemToArray(list, document);
    }
}

static void add_json(struct strbuf *out, const struct conversation *c)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "messages");
    if (c->system) (void)add_message(list, "system", c->system);
    for (size_t i = 0; i < c->n_turn; i++) {
        cJSON *message = add_message(list, c->turns[i].role, c->turns[i].text);
        if (c->turns[i].n_document) add_documents(message, &c->turns[i]);
    }
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    if (text)
        strbuf_addf(out, "%s\n", text);
    else
        out->failed = true;
    cJSON_free(text);
}

sac_status conversation_save(const struct conversation *c, const char *path, sac_error *err)
{
    struct strbuf part = {0}, text = {0};
    sac_status status = SAC_OK;
    TRY(textfile_replaceable(path, err));
    strbuf_addf(&part, "%s.part", path);
    add_json(&text, c);
    if (part.failed || text.failed) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for %s", path);
    } else {
        status = textfile_write(part.data, text.data, text.n, err);
        if (status == SAC_OK && rename(part.data, path) != 0)
            status = error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
        if (status != SAC_OK) remove(part.data);
    }
    strbuf_deinit(&text);
    strbuf_deinit(&part);
    return status;
}

/* ---- Loading ---- */

/* Document boundaries in the file are accepted as far as they fit the text. */
static sac_status take_documents(struct turn *t, const cJSON *list, sac_error *err)
{
    const cJSON *item;
    size_t left = strlen(t->text);
    cJSON_ArrayForEach(item, list)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "name"));
        const double bytes = cJSON_GetNumberValue(cJSON_GetObjectItemCaseSensitive(item, "bytes"));
        if (!name || !(bytes >= 2 && bytes <= (double)left))
            return error_set(err, SAC_ERR_FORMAT, "documents do not fit the content");
        left -= (size_t)bytes;
        TRY(name_document(t, name, (size_t)bytes, err));
    }
    return SAC_OK;
}

/* Adds message `i`; the previous ones determine which role it may have. */
static sac_status take_message(struct conversation *c, const cJSON *message, size_t i,
                               sac_error *err)
{
    const char *role = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "role"));
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, "content"));
    const char *want = c->n_turn % 2 ? "assistant" : "user";
    if (!role || !text)
        return error_set(err, SAC_ERR_FORMAT, "message %zu: role and content must be strings", i);
    if (i == 0 && strcmp(role, "system") == 0) {
        c->system = mem_strdup(text);
        return c->system ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "out of memory");
    }
    if (strcmp(role, want) != 0)
        return error_set(err, SAC_ERR_FORMAT, "message %zu: role '%s', expected '%s'", i, role,
                         want);
    TRY(add(c, want, text, strlen(text), err));
    const sac_status status = take_documents(
        &c->turns[c->n_turn - 1], cJSON_GetObjectItemCaseSensitive(message, "documents"), err);
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "message %zu", i);
}

static sac_status take_messages(struct conversation *c, const cJSON *list, sac_error *err)
{
    size_t i = 0;
    const cJSON *message;
    if (!cJSON_IsArray(list))
        return error_set(err, SAC_ERR_FORMAT, "no list 'messages': not a conversation");
    cJSON_ArrayForEach(message, list) TRY(take_message(c, message, i++, err));
    if (c->n_turn % 2)
        return error_set(err, SAC_ERR_FORMAT, "the last of %zu messages is no answer", i);
    return SAC_OK;
}

sac_status conversation_load(struct conversation *c, const char *path, sac_error *err)
{
    struct strbuf text = {0};
    struct conversation loaded = {0};
    cJSON *root = NULL;
    sac_status status = input_read(&text, path, err);
    if (status == SAC_OK) {
        root = cJSON_ParseWithLength(text.data, text.n);
        status = take_messages(&loaded, cJSON_GetObjectItemCaseSensitive(root, "messages"), err);
        if (status != SAC_OK) status = error_prefix(err, status, "%s", path);
    }
    cJSON_Delete(root);
    strbuf_deinit(&text);
    if (status == SAC_OK) {
        conversation_deinit(c);
        *c = loaded;
    } else {
        conversation_deinit(&loaded);
    }
    return status;
}
