/* load_stream.c: an answer's events as they arrive: times of its pieces, its text, its usage.
 *
 * A piece is an event that contains text. An event with only a role or a finish reason is not a
 * piece, so a server that opens a stream before it computes does not appear fast. */
#include "app/load.h"

#include "base/mem.h"

#include <cjson/cJSON.h>
#include <string.h>

static bool note_gap(struct load_sample *sample, double seconds)
{
    if (sample->n_itl == sample->itl_capacity) {
        const size_t capacity = sample->itl_capacity ? 2 * sample->itl_capacity : 64;
        double *grown = mem_realloc(sample->itl_s, capacity * sizeof *grown);
        if (!grown) return false;
        sample->itl_s = grown;
        sample->itl_capacity = capacity;
    }
    sample->itl_s[sample->n_itl++] = seconds;
    return true;
}

static bool take_piece(struct load_stream *s, struct load_sample *sample, const char *text,
                       double now_s)
{
    bool ok = true;
    if (!s->has_piece)
        sample->ttft_s = now_s;
    else
        ok = note_gap(sample, now_s - s->last_s);
    s->has_piece = true;
    s->last_s = sample->e2el_s = now_s;
    strbuf_adds(&s->text, text);
    return ok && !s->text.failed;
}

static uint32_t count_of(const cJSON *object, const char *name)
{
    const cJSON *number = cJSON_GetObjectItemCaseSensitive(object, name);
    const bool is_count =
        cJSON_IsNumber(number) && number->valuedouble >= 0 && number->valuedouble <= UINT32_MAX;
    return is_count ? (uint32_t)number->valuedouble : 0;
}

/* The last usage counts: some servers send it with every event. */
static void take_usage(struct load_stream *s, struct load_sample *sample, const cJSON *event)
{
    const cJSON *usage = cJSON_GetObjectItemCaseSensitive(event, "usage");
    if (!cJSON_IsObject(usage)) return;
    s->has_usage = true;
    sample->n_input = count_of(usage, "prompt_tokens");
    sample->n_output = count_of(usage, "completion_tokens");
    sample->n_cached =
        count_of(cJSON_GetObjectItemCaseSensitive(usage, "prompt_tokens_details"), "cached_tokens");
}

/* The message of `{"error": {"message"}}` or `{"error": "..."}`. */
static const char *message_of(const cJSON *event)
{
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(event, "error");
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(error, "message");
    if (!error || cJSON_IsNull(error)) return NULL;
    if (cJSON_IsString(message)) return message->valuestring;
    return cJSON_IsString(error) ? error->valuestring : "an error without a message";
}

/* The text of an event; reasoning counts as text. */
static const char *text_of(const cJSON *event)
{
    const cJSON *choices = cJSON_GetObjectItemCaseSensitive(event, "choices");
    const cJSON *choice = cJSON_GetArrayItem(choices, 0);
    const cJSON *delta = cJSON_GetObjectItemCaseSensitive(choice, "delta");
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(choice, "text");
    if (!cJSON_IsString(text)) text = cJSON_GetObjectItemCaseSensitive(delta, "content");
    if (!cJSON_IsString(text)) text = cJSON_GetObjectItemCaseSensitive(delta, "reasoning_content");
    return cJSON_IsString(text) && text->valuestring[0] ? text->valuestring : NULL;
}

static bool take_event(struct load_stream *s, struct load_sample *sample, const char *json,
                       double now_s)
{
    cJSON *event = cJSON_Parse(json);
    bool ok = true;
    if (!cJSON_IsObject(event)) {
        s->is_broken = true;
    } else if (message_of(event)) {
        strbuf_reset(&s->error);
        strbuf_adds(&s->error, message_of(event));
    } else {
        const char *text = text_of(event);
        if (text) ok = take_piece(s, sample, text, now_s);
        take_usage(s, sample, event);
    }
    cJSON_Delete(event);
    return ok;
}

static bool take_line(struct load_stream *s, struct load_sample *sample, double now_s)
{
    char *line = s->rest.data ? s->rest.data : (char *)"";
    const size_t n = s->rest.n;
    if (n && line[n - 1] == '\r') line[n - 1] = 0;
    if (strncmp(line, "data:", 5) != 0) return true; /* a comment, event name or blank line */
    const char *data = line + 5 + (line[5] == ' ');
    if (strcmp(data, "[DONE]") != 0) return take_event(s, sample, data, now_s);
    s->is_done = true;
    return true;
}

bool load_stream_take(struct load_stream *s, struct load_sample *sample, const char *data, size_t n,
                      double now_s)
{
    for (size_t at = 0; at < n;) {
        const char *end = memchr(data + at, '\n', n - at);
        const size_t n_line = end ? (size_t)(end - data) - at : n - at;
        strbuf_add(&s->rest, data + at, n_line);
        if (s->rest.failed) return false;
        if (end && !take_line(s, sample, now_s)) return false;
        if (end) strbuf_reset(&s->rest);
        at += n_line + (end != NULL);
    }
    return true;
}

void load_stream_end(struct load_stream *s, struct load_sample *sample)
{
    const char *why = NULL;
    if (s->error.n)
        why = s->error.data;
    else if (s->is_broken)
        why = "an event of the stream is not JSON";
    else if (!s->is_done)
        why = "the stream ended without [DONE]";
    else if (!s->has_usage)
        why = "the stream told no usage, though stream_options.include_usage asked for it";
    else if (!s->has_piece)
        why = "the answer has no text";
    sample->is_done = !why;
    if (why) sample->error = mem_strdup(why);
}

void load_stream_deinit(struct load_stream *s)
{
    strbuf_deinit(&s->rest);
    strbuf_deinit(&s->text);
    strbuf_deinit(&s->error);
}
