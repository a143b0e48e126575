/* upload.c: see the header. libmicrohttpd parses forms, src/text extracts text from files. A file's
 * name becomes the document's name and is never used as a path of this machine. */
#include "serve/upload.h"

#include "base/mem.h"
#include "text/extract.h"

#include <string.h>
#include <strings.h>

#define FORM_BUFFER 8192u
#define FIELD_BYTES 4096u /* of a field other than the file */
#define FIELDS_MAX  64u   /* of a form, because lookups are linear */

struct form {
    struct strbuf file;
    cJSON *fields;
    uint32_t text_max;
    uint32_t n_field;
    bool has_file, too_long;
};

static const char *content_type(struct MHD_Connection *connection)
{
    const char *type = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, "Content-Type");
    return type ? type : "";
}

static bool is_form(struct MHD_Connection *connection)
{
    return strncasecmp(content_type(connection), "multipart/form-data", 19) == 0;
}

bool upload_is_file(struct MHD_Connection *connection)
{
    const char *type = content_type(connection);
    if (!*type || strncasecmp(type, "application/json", 16) == 0) return false;
    /* curl sends this type by default, for JSON as well as for a file with a name in the query. */
    if (strncasecmp(type, "application/x-www-form-urlencoded", 33) != 0) return true;
    return MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "name") != NULL;
}

/* The file name without folders, which browsers may send. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void set_text(cJSON *fields, const char *name, const char *text, size_t n)
{
    if (json_get(fields, name)) return;
    json_add_text(fields, name, text, n);
}

static enum MHD_Result on_part(void *user, enum MHD_ValueKind kind, const char *key,
                               const char *filename, const char *type, const char *encoding,
                               const char *data, uint64_t at, size_t n)
{
    struct form *form = user;
    (void)kind;
    (void)type;
    (void)encoding;
    if (filename || (key && strcmp(key, "file") == 0)) {
        form->has_file = true;
        if (filename && at == 0) set_text(form->fields, "filename", filename, strlen(filename));
        strbuf_add(&form->file, data, n);
        return MHD_YES;
    }
    if (!key) return MHD_YES; /* a part without a name is not a field */
    form->n_field += at == 0;
    form->too_long |= at + n > FIELD_BYTES || form->n_field > FIELDS_MAX;
    const cJSON *old = at ? json_get(form->fields, key) : NULL;
    struct strbuf whole = {0};
    if (old) strbuf_adds(&whole, old->valuestring);
    strbuf_add(&whole, data, form->too_long ? 0 : n);
    cJSON_DeleteItemFromObjectCaseSensitive(form->fields, key);
    set_text(form->fields, key, whole.data, whole.n);
    strbuf_deinit(&whole);
    return form->too_long ? MHD_NO : MHD_YES;
}

static sac_status read_form(struct form *form, struct MHD_Connection *connection,
                            const struct strbuf *body, struct api_error *error)
{
    struct MHD_PostProcessor *parser =
        MHD_create_post_processor(connection, FORM_BUFFER, on_part, form);
    enum MHD_Result result = MHD_NO;
    if (parser) {
        result = MHD_post_process(parser, body->data ? body->data : "", body->n);
        if (MHD_destroy_post_processor(parser) != MHD_YES) result = MHD_NO;
    }
    if (result == MHD_YES && form->has_file) return SAC_OK;
    return api_error_set(error, API_ERROR_REQUEST, "file",
                         form->too_long ? "the form has too many fields, or one that is too long"
                                        : "the body is no form with a 'file'");
}

static void replace_text(cJSON *fields, const char *name, const char *text, size_t n)
{
    cJSON_DeleteItemFromObjectCaseSensitive(fields, name);
    json_add_text(fields, name, text, n);
}

static sac_status set_file(struct form *form, const char *name, const struct strbuf *file,
                           struct api_error *error)
{
    struct strbuf text = {0};
    sac_error err = {0};
    struct extract_info info = {0};
    sac_status status = extract_bytes(&text, name, file, &info, &err);
    if (status != SAC_OK) {
        status = api_error_of(error, status, "file", err.msg);
    } else if (text.n > form->text_max) {
        /* A small packed file may hold hundreds of megabytes, of which several copies are made. */
        status = api_error_set(error, API_ERROR_LARGE, "file",
                               "the file holds %zu bytes of text, the server takes %u", text.n,
                               form->text_max);
    } else {
        replace_text(form->fields, "text", text.data ? text.data : "", text.n);
        replace_text(form->fields, "format", info.format, strlen(info.format));
        replace_text(form->fields, "encoding", info.encoding, strlen(info.encoding));
    }
    strbuf_deinit(&text);
    return status;
}

/* Converts flags from strings, the only type in forms. */
static void set_flags(cJSON *fields)
{
    static const char *const flags[] = {"pin", "raw", "stream"};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (json_says(fields, flags[i], "true") || json_says(fields, flags[i], "1"))
            cJSON_ReplaceItemInObjectCaseSensitive(fields, flags[i], cJSON_CreateTrue());
}

/* The unescaped "name" of the query; NULL: none. */
static sac_status query_name(char **out, struct MHD_Connection *connection, struct api_error *error)
{
    const char *given = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "name");
    *out = given ? mem_strdup(given) : NULL;
    if (*out) (void)MHD_http_unescape(*out);
    return given && !*out ? api_error_no_memory(error) : SAC_OK;
}

sac_status upload_read(cJSON **out, struct MHD_Connection *connection, const struct strbuf *body,
                       uint32_t text_max, struct api_error *error)
{
    struct form form = {.fields = cJSON_CreateObject(), .text_max = text_max};
    const bool has_form = is_form(connection);
    char *query;
    sac_status status = query_name(&query, connection, error);
    if (status == SAC_OK && !form.fields) status = api_error_no_memory(error);
    if (status == SAC_OK && has_form) status = read_form(&form, connection, body, error);
    const cJSON *filename = json_get(form.fields, "filename");
    const char *name = query ? query : filename ? base_name(filename->valuestring) : "the file";
    if (status == SAC_OK && (query || filename)) set_text(form.fields, "name", name, strlen(name));
    if (status == SAC_OK) status = set_file(&form, name, has_form ? &form.file : body, error);
    /* Callers rely on this member, which is missing after a failed allocation. */
    if (status == SAC_OK && !json_get(form.fields, "text")) status = api_error_no_memory(error);
    mem_free(query);
    strbuf_deinit(&form.file);
    set_flags(form.fields);
    if (status == SAC_OK)
        *out = form.fields;
    else
        cJSON_Delete(form.fields);
    return status;
}
