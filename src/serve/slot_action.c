/* slot_action.c: POST /slots/ID?action=save|restore|erase, with llama.cpp's bodies and answers. The
 * path's ID and the query's action come as members `id_slot` and `action` of the body. */
#include "serve/dialects.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define FILE_BYTES 200u

/* Both come from the URL, as strings. */
static sac_status read_id(struct api_request *a, const cJSON *body,
                          const struct api_request_rules *rules, struct api_error *error)
{
    const char *id = "";
    TRY(api_request_text(body, "id_slot", &id, error));
    const size_t n_digit = strspn(id, "0123456789");
    const bool is_number = n_digit > 0 && n_digit < 6 && !id[n_digit];
    a->slot = is_number ? (uint32_t)strtoul(id, NULL, 10) : UINT32_MAX;
    if (a->slot < rules->n_slot) return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, "id_slot", "slot '%.20s': there are 0 to %u", id,
                         rules->n_slot - 1);
}

static sac_status read_action(struct api_request *a, const cJSON *body, struct api_error *error)
{
    static const char *const name[] = {"save", "restore", "erase"};
    for (size_t i = 0; i < sizeof name / sizeof name[0]; i++) {
        if (!json_says(body, "action", name[i])) continue;
        a->work = (enum api_request_work)(API_REQUEST_SLOT_SAVE + i);
        return SAC_OK;
    }
    return api_error_set(error, API_ERROR_REQUEST, "action",
                         "'action' in the query is none of save, restore and erase");
}

/* Only plain file names: no path, no hidden file, and no suffix used for drafts. */
static bool is_plain(const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n > FILE_BYTES || *name == '.') return false;
    if (n > 5 && strcmp(name + n - 5, ".part") == 0) return false;
    for (const char *c = name; *c; c++)
        if (*c == '/' || *c == '\\' || (unsigned char)*c < 32 || *c == 127) return false;
    return true;
}

static sac_status read_file(struct api_request *a, const cJSON *body, struct api_error *error)
{
    const char *name = NULL;
    if (a->work == API_REQUEST_SLOT_ERASE) return SAC_OK;
    TRY(api_request_text(body, "filename", &name, error));
    if (!name) return api_error_set(error, API_ERROR_REQUEST, "filename", "'filename' is missing");
    if (!is_plain(name))
        return api_error_set(
            error, API_ERROR_REQUEST, "filename",
            "'filename' must be a name of 1 to %u bytes without '/', '\\' and "
            "control characters, which does not begin with '.' or end with '.part'",
            FILE_BYTES);
    a->slot_file = mem_strdup(name);
    return a->slot_file ? SAC_OK : api_error_no_memory(error);
}

static sac_status read_request(struct api_request *a, const cJSON *body,
                               const struct api_request_rules *rules, struct api_error *error)
{
    a->n = 1;
    if (!rules->n_slot)
        return api_error_set(error, API_ERROR_UNSUPPORTED, NULL,
                             "this server has no folder for slots: start it with --slot-save-path");
    TRY(read_id(a, body, rules, error));
    TRY(read_action(a, body, error));
    TRY(api_request_salt(a, body, error));
    return read_file(a, body, error);
}

static void write_whole(struct reply *r, struct strbuf *out)
{
    strbuf_add(out, r->choice[0].text.data, r->choice[0].text.n);
}

const struct dialect slot_action_dialect = {
    .id_prefix = "slot-", .read = read_request, .whole = write_whole};
