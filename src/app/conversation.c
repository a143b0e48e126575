/* conversation.c: see the header. A file may come from anywhere: it is checked turn by turn, and
 * what is wrong is named by its place. Fields that other programs add are passed over; content that
 * is not one string (images, tool calls) is refused, because it would be lost. */
#include "app/conversation.h"

#include "base/input.h"
#include "base/mem.h"
#include "base/textfile.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

void conversation_drop_last(struct conversation *c)
{
    assert(c->n_turn > 0);
    mem_free(c->turns[--c->n_turn].text);
}

void conversation_drop_turns(struct conversation *c)
{
    while (c->n_turn) conversation_drop_last(c);
}

void conversation_deinit(struct conversation *c)
{
    conversation_drop_turns(c);
    mem_free(c->turns);
    mem_free(c->system);
    *c = (struct conversation){0};
}

sac_status conversation_add(struct conversation *c, const char *role, const char *text, size_t n,
                            sac_error *err)
{
    if (c->n_turn == c->turn_room) {
        const size_t room = c->turn_room ? 2 * c->turn_room : 16;
        struct turn *grown = mem_realloc(c->turns, room * sizeof *grown);
        if (!grown) return error_set(err, SAC_ERR_MEMORY, "out of memory for the conversation");
        c->turns = grown;
        c->turn_room = room;
    }
    char *copy = mem_strndup(n ? text : "", n);
    if (!copy) return error_set(err, SAC_ERR_MEMORY, "out of memory for the conversation");
    c->turns[c->n_turn++] = (struct turn){.role = role, .text = copy};
    return SAC_OK;
}

/* ---- Saving ---- */

static void add_message(cJSON *list, const char *role, const char *content)
{
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "role", role);
    cJSON_AddStringToObject(message, "content", content);
    cJSON_AddItemToArray(list, message);
}

static void add_json(struct strbuf *out, const struct conversation *c)
{
    cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "messages");
    if (c->system) add_message(list, "system", c->system);
    for (size_t i = 0; i < c->n_turn; i++) add_message(list, c->turns[i].role, c->turns[i].text);
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

/* Takes message `i`; what its role may be follows from those before. */
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
    TRY(conversation_add(c, want, text, strlen(text), err));
    /* A file does not say where a document ends. */
    c->turns[c->n_turn - 1].n_document = strlen(text);
    return SAC_OK;
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
