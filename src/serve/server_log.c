/* server_log.c: see the header. A line is written with one call, so that lines of several threads
 * do not mix. Paths and errors may quote what a client sent: control characters are removed. */
#include "serve/server_log.h"

#include "base/mem.h"
#include "serve/json.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define NAME_BYTES 64u /* names are compared up to this length */

struct server_log {
    struct server_log_options options;
    pthread_mutex_t lock; /* protects the members below */
    uint32_t n_name;
    char name[SERVER_LOG_NAMES_MAX][NAME_BYTES]; /* names seen so far */
};

sac_status server_log_create(struct server_log **out, const struct server_log_options *options,
                             sac_error *err)
{
    struct server_log *l = mem_calloc(1, sizeof *l);
    if (!l) return error_set(err, SAC_ERR_MEMORY, "out of memory for the log");
    l->options = *options;
    pthread_mutex_init(&l->lock, NULL);
    *out = l;
    return SAC_OK;
}

void server_log_destroy(struct server_log *l)
{
    if (l) pthread_mutex_destroy(&l->lock);
    mem_free(l);
}

static void add_time(struct strbuf *out)
{
    struct timespec now;
    struct tm utc;
    char text[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    strbuf_addf(out, "%s.%03ldZ", text, now.tv_nsec / 1000000);
}

static void add_printable(struct strbuf *out, const char *text, size_t n_max)
{
    for (size_t i = 0; text[i] && i < n_max; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f)
            strbuf_addf(out, "\\x%02x", c);
        else
            strbuf_add(out, text + i, 1);
    }
}

static void write_line(struct strbuf *line)
{
    strbuf_add(line, "\n", 1);
    if (!line->failed) fwrite(line->data, 1, line->n, stderr);
    strbuf_deinit(line);
}

static void add_string(cJSON *o, const char *name, const char *text)
{
    if (text) json_add_text(o, name, text, strlen(text));
}

static void request_json(struct strbuf *line, const struct server_log_entry *e)
{
    struct strbuf now = {0};
    cJSON *o = cJSON_CreateObject();
    add_time(&now);
    add_string(o, "time", now.data);
    add_string(o, "id", e->id);
    add_string(o, "client", e->client);
    add_string(o, "method", e->method);
    add_string(o, "path", e->path);
    cJSON_AddNumberToObject(o, "status", e->status);
    cJSON_AddNumberToObject(o, "ms", e->ms);
    if (e->key) {
        char key[8];
        snprintf(key, sizeof key, "%06llx", (unsigned long long)(e->key >> 40));
        add_string(o, "key", key);
    }
    if (e->n_choice) {
        cJSON_AddNumberToObject(o, "answers", e->n_choice);
        cJSON_AddNumberToObject(o, "prompt_tokens", e->n_prompt);
        cJSON_AddNumberToObject(o, "cached_tokens", e->n_cached);
        cJSON_AddNumberToObject(o, "disk_tokens", e->n_disk);
        cJSON_AddNumberToObject(o, "completion_tokens", e->n_predicted);
        add_string(o, "cache_end", e->reuse);
        cJSON_AddNumberToObject(o, "first_token_ms", e->first_ms);
    }
    add_string(o, "finish", e->finish);
    add_string(o, "error", e->error);
    add_string(o, "prompt", e->prompt);
    json_print(line, o);
    strbuf_deinit(&now);
}

static void request_text(struct strbuf *line, const struct server_log_entry *e)
{
    add_time(line);
    strbuf_addf(line, " %s %s %s ", e->id, e->client, e->method);
    add_printable(line, e->path, 200);
    strbuf_addf(line, " %u %.1f ms", e->status, e->ms);
    if (e->key) strbuf_addf(line, ", key %06llx", (unsigned long long)(e->key >> 40));
    if (e->n_choice) {
        strbuf_addf(line, ", %u + %u tokens (%u cached", e->n_prompt, e->n_predicted, e->n_cached);
        if (e->n_disk) strbuf_addf(line, ", %u of them from disk", e->n_disk);
        strbuf_addf(line, "), first after %.1f ms", e->first_ms);
    }
    if (e->reuse) strbuf_addf(line, ", cache: %s", e->reuse);
    if (e->finish) strbuf_addf(line, ", %s", e->finish);
    if (e->error) {
        strbuf_adds(line, ": ");
        add_printable(line, e->error, 300);
    }
    if (e->prompt) {
        strbuf_adds(line, ", prompt: ");
        add_printable(line, e->prompt, SIZE_MAX);
    }
}

void server_log_request(struct server_log *l, const struct server_log_entry *e)
{
    struct strbuf line = {0};
    if (l->options.quiet) return;
    if (l->options.json)
        request_json(&line, e);
    else
        request_text(&line, e);
    write_line(&line);
}

void server_log_message(struct server_log *l, const char *fmt, ...)
{
    struct strbuf line = {0};
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (l->options.json) {
        struct strbuf now = {0};
        cJSON *o = cJSON_CreateObject();
        add_time(&now);
        add_string(o, "time", now.data);
        add_string(o, "message", text);
        json_print(&line, o);
        strbuf_deinit(&now);
    } else {
        strbuf_adds(&line, "saccade serve: ");
        add_printable(&line, text, sizeof text);
    }
    write_line(&line);
}

bool server_log_is_new(struct server_log *l, const char *name)
{
    uint32_t i = 0;
    pthread_mutex_lock(&l->lock);
    while (i < l->n_name && strncmp(l->name[i], name, NAME_BYTES - 1) != 0) i++;
    const bool is_new = i == l->n_name && i < SERVER_LOG_NAMES_MAX && !l->options.quiet;
    if (is_new) snprintf(l->name[l->n_name++], NAME_BYTES, "%s", name);
    pthread_mutex_unlock(&l->lock);
    return is_new;
}
