/* load_client.c: sends a plan's requests on schedule and measures the responses.
 *
 * One thread and libcurl's multi interface. A request is sent at its scheduled time, whatever the
 * state of earlier ones (open loop), unless --max-concurrency holds it back; later turns of a chat
 * follow the previous answer. A request's clock starts when it is sent. Proxies from the
 * environment are not used, because they would be measured, too.
 *
 * Invariant: a flight exists from sending to its end; the past of a chat exists as long as the
 * run. */
#include "app/load.h"

#include "app/interrupt.h"
#include "app/progress.h"

#include "base/mem.h"
#include "base/workers.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

/* Limits how much of an error response is kept. */
#define REFUSAL_BYTES 4096u
#define WAIT_MS       200

struct client;

struct flight {
    struct client *client;
    size_t request_i;
    CURL *easy;
    char *body;
    uint64_t start_us;
    struct load_stream stream;
    struct strbuf refusal; /* body of a response other than 200 */
    bool no_memory;
};

/* A later turn that is not due yet. */
struct follow {
    size_t request_i;
    uint64_t due_us;
};

struct client {
    const struct load_target *target;
    const struct load_plan *plan;
    struct load_run *run;
    CURLM *multi;
    struct curl_slist *header;
    char *url;
    cJSON **past; /* [n_chat] messages, or one text; NULL before the first turn */
    size_t n_chat, n_turn;
    struct flight *flight; /* [plan->n], one per request; used while it is in flight */
    struct follow *follow; /* [plan->n], a queue with ascending due times */
    size_t follow_head, follow_tail, first_i; /* first_i: the next chat to start */
    size_t n_running, n_ended;
    uint64_t start_us;
};

/* ---- One request's body ---- */

/* Appends this turn's text to the history of its chat. */
static bool extend_past(struct client *c, const struct load_request *q)
{
    cJSON **past = &c->past[q->chat_i];
    if (c->target->backend == LOAD_CHAT) {
        if (!*past) *past = cJSON_CreateArray();
        cJSON *message = cJSON_CreateObject();
        return cJSON_AddStringToObject(message, "role", "user") &&
               cJSON_AddStringToObject(message, "content", q->text) &&
               cJSON_AddItemToArray(*past, message);
    }
    struct strbuf text = {0};
    if (*past) strbuf_addf(&text, "%s\n", (*past)->valuestring);
    strbuf_adds(&text, q->text);
    cJSON_Delete(*past);
    *past = text.failed ? NULL : cJSON_CreateString(text.data);
    strbuf_deinit(&text);
    return *past;
}

/* Appends the answer to the history. */
static bool note_answer(struct client *c, const struct load_request *q, const char *answer)
{
    cJSON **past = &c->past[q->chat_i];
    if (c->target->backend == LOAD_CHAT) {
        cJSON *message = cJSON_CreateObject();
        return cJSON_AddStringToObject(message, "role", "assistant") &&
               cJSON_AddStringToObject(message, "content", answer) &&
               cJSON_AddItemToArray(*past, message);
    }
    struct strbuf text = {0};
    strbuf_addf(&text, "%s%s", (*past)->valuestring, answer);
    cJSON_Delete(*past);
    *past = text.failed ? NULL : cJSON_CreateString(text.data);
    strbuf_deinit(&text);
    return *past;
}

static bool add_extra(cJSON *body, const char *extra)
{
    cJSON *object = cJSON_Parse(extra);
    bool ok = object;
    while (ok && object->child) {
        cJSON *member = cJSON_DetachItemViaPointer(object, object->child);
        cJSON_DeleteItemFromObjectCaseSensitive(body, member->string);
        ok = cJSON_AddItemToObject(body, member->string, member);
    }
    cJSON_Delete(object);
    return ok;
}

/* NULL: out of memory. */
static char *make_body(const struct client *c, const struct load_request *q)
{
    const struct load_target *t = c->target;
    cJSON *body = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(body, "model", t->model) &&
              cJSON_AddItemReferenceToObject(body, t->backend == LOAD_CHAT ? "messages" : "prompt",
                                             c->past[q->chat_i]) &&
              cJSON_AddNumberToObject(body, "max_tokens", q->n_output) &&
              cJSON_AddNumberToObject(body, "temperature", t->temperature) &&
              cJSON_AddTrueToObject(body, "stream");
    cJSON *options = cJSON_AddObjectToObject(body, "stream_options");
    ok = ok && cJSON_AddTrueToObject(options, "include_usage");
    if (t->ignore_eos) ok = ok && cJSON_AddTrueToObject(body, "ignore_eos");
    if (t->extra_body) ok = ok && add_extra(body, t->extra_body);
    char *text = ok ? cJSON_PrintUnformatted(body) : NULL;
    cJSON_Delete(body);
    return text;
}

/* ---- One request ---- */

static double seconds_since(uint64_t us)
{
    return (double)(clock_us() - us) * 1e-6;
}

static size_t on_data(char *data, size_t size, size_t n, void *user)
{
    struct flight *f = user;
    const double now_s = seconds_since(f->start_us);
    long code = 0;
    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200) {
        const size_t room = REFUSAL_BYTES - f->refusal.n;
        strbuf_add(&f->refusal, data, size * n < room ? size * n : room);
        return size * n;
    }
    struct load_sample *sample = &f->client->run->sample[f->request_i];
    f->no_memory = !load_stream_take(&f->stream, sample, data, size * n, now_s);
    return f->no_memory ? 0 : size * n;
}

static CURL *make_easy(const struct client *c, struct flight *f)
{
    CURL *easy = curl_easy_init();
    if (!easy) return NULL;
    curl_easy_setopt(easy, CURLOPT_URL, c->url);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, c->header);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, f->body);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(f->body));
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, f);
    curl_easy_setopt(easy, CURLOPT_PRIVATE, f);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT, (long)c->target->timeout_s);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    return easy;
}

static sac_status send_request(struct client *c, size_t request_i, sac_error *err)
{
    struct flight *f = &c->flight[request_i];
    const struct load_request *q = &c->plan->request[request_i];
    *f = (struct flight){.client = c, .request_i = request_i};
    if (extend_past(c, q)) f->body = make_body(c, q);
    if (f->body) f->easy = make_easy(c, f);
    if (!f->easy) return error_set(err, SAC_ERR_MEMORY, "no memory for request %zu", request_i);
    f->start_us = clock_us();
    c->run->sample[request_i].start_s = (double)(f->start_us - c->start_us) * 1e-6;
    if (curl_multi_add_handle(c->multi, f->easy) != CURLM_OK)
        return error_set(err, SAC_ERR_IO, "libcurl takes no more requests");
    if (++c->n_running > c->run->n_running_most) c->run->n_running_most = (uint32_t)c->n_running;
    return SAC_OK;
}

static void free_flight(struct client *c, struct flight *f)
{
    if (f->easy) {
        curl_multi_remove_handle(c->multi, f->easy);
        curl_easy_cleanup(f->easy);
    }
    cJSON_free(f->body);
    load_stream_deinit(&f->stream);
    strbuf_deinit(&f->refusal);
    *f = (struct flight){0};
}

/* "HTTP 429: the queue is full", with the response's message if there is one. */
static char *refusal_text(long code, const struct strbuf *body)
{
    struct strbuf text = {0};
    cJSON *json = cJSON_Parse(body->data ? body->data : "");
    const cJSON *error = cJSON_GetObjectItemCaseSensitive(json, "error");
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(error, "message");
    strbuf_addf(&text, "HTTP %ld: %.200s", code,
                cJSON_IsString(message) ? message->valuestring
                : body->data            ? body->data
                                        : "no body");
    cJSON_Delete(json);
    return strbuf_detach(&text, NULL);
}

/* Schedules the chat's next turn; a chat ends after a failed turn. */
static sac_status follow_up(struct client *c, const struct flight *f, sac_error *err)
{
    const struct load_request *q = &c->plan->request[f->request_i];
    const struct load_sample *sample = &c->run->sample[f->request_i];
    const size_t n_left = c->n_turn - 1 - q->turn_i;
    if (!sample->is_done) c->n_ended += n_left;
    if (!sample->is_done || !n_left) return SAC_OK;
    if (!note_answer(c, q, f->stream.text.data))
        return error_set(err, SAC_ERR_MEMORY, "no memory for a chat's past");
    const uint64_t think_us = (uint64_t)(c->target->think_s * 1e6);
    c->follow[c->follow_tail++] = (struct follow){f->request_i + 1, clock_us() + think_us};
    return SAC_OK;
}

static sac_status end_request(struct client *c, struct flight *f, CURLcode result, sac_error *err)
{
    struct load_sample *sample = &c->run->sample[f->request_i];
    long code = 0;
    curl_easy_getinfo(f->easy, CURLINFO_RESPONSE_CODE, &code);
    if (f->no_memory) return error_set(err, SAC_ERR_MEMORY, "no memory for an answer");
    if (result != CURLE_OK)
        sample->error = mem_strdup(curl_easy_strerror(result));
    else if (code != 200)
        sample->error = refusal_text(code, &f->refusal);
    else
        load_stream_end(&f->stream, sample);
    c->n_running--;
    c->n_ended++;
    const sac_status status = follow_up(c, f, err);
    free_flight(c, f);
    return status;
}

/* ---- The loop ---- */

/* The next request and its due time; false: none. */
static bool next_due(const struct client *c, size_t *out_i, uint64_t *out_us)
{
    const bool has_first = c->first_i < c->plan->n, has_follow = c->follow_head < c->follow_tail;
    uint64_t first_us = UINT64_MAX, follow_us = UINT64_MAX;
    if (has_first)
        first_us = c->start_us + (uint64_t)(c->plan->request[c->first_i].arrival_s * 1e6);
    if (has_follow) follow_us = c->follow[c->follow_head].due_us;
    *out_us = first_us < follow_us ? first_us : follow_us;
    *out_i = first_us < follow_us ? c->first_i
             : has_follow         ? c->follow[c->follow_head].request_i
                                  : 0;
    return has_first || has_follow;
}

/* Sends what is due; `*out_wait_ms`: time to the next request, limited so that Ctrl-C is
 * noticed. */
static sac_status send_due(struct client *c, int *out_wait_ms, sac_error *err)
{
    const uint32_t most = c->target->n_running_max;
    size_t i;
    uint64_t due_us;
    *out_wait_ms = WAIT_MS;
    while ((!most || c->n_running < most) && next_due(c, &i, &due_us)) {
        const uint64_t now_us = clock_us();
        if (due_us > now_us) {
            const uint64_t wait_ms = (due_us - now_us) / 1000;
            if (wait_ms < WAIT_MS) *out_wait_ms = (int)wait_ms;
            return SAC_OK;
        }
        if (i == c->first_i)
            c->first_i += c->n_turn;
        else
            c->follow_head++;
        TRY(send_request(c, i, err));
    }
    return SAC_OK;
}

static sac_status take_ended(struct client *c, sac_error *err)
{
    int n_left;
    for (CURLMsg *m = curl_multi_info_read(c->multi, &n_left); m;
         m = curl_multi_info_read(c->multi, &n_left)) {
        void *f = NULL;
        const CURLcode result = m->data.result;
        if (m->msg != CURLMSG_DONE) continue;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &f);
        TRY(end_request(c, f, result, err));
    }
    return SAC_OK;
}

static sac_status run_all(struct client *c, sac_error *err)
{
    struct progress bar;
    sac_status status = SAC_OK;
    progress_begin(&bar, "requests");
    c->start_us = clock_us();
    while (status == SAC_OK && c->n_ended < c->plan->n) {
        int n_running, wait_ms;
        if (interrupt_pending()) status = SAC_ERR_CANCELLED;
        if (status == SAC_OK) status = send_due(c, &wait_ms, err);
        if (status == SAC_OK && (curl_multi_perform(c->multi, &n_running) != CURLM_OK ||
                                 curl_multi_poll(c->multi, NULL, 0, wait_ms, NULL) != CURLM_OK))
            status = error_set(err, SAC_ERR_IO, "libcurl cannot wait for answers");
        if (status == SAC_OK) status = take_ended(c, err);
        progress_update(&bar, (double)c->n_ended / (double)c->plan->n);
    }
    c->run->duration_s = seconds_since(c->start_us);
    progress_end(&bar);
    return status;
}

/* ---- Public functions ---- */

static struct curl_slist *make_header(const struct load_target *t)
{
    struct strbuf key = {0};
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    /* Otherwise libcurl sends "Expect: 100-continue" for long bodies, and waits. */
    list = curl_slist_append(list, "Expect:");
    strbuf_addf(&key, "Authorization: Bearer %s", t->api_key ? t->api_key : "");
    if (t->api_key && !key.failed) list = curl_slist_append(list, key.data);
    strbuf_deinit(&key);
    return list;
}

static char *make_url(const struct load_target *t, const char *path)
{
    struct strbuf url = {0};
    size_t n = strlen(t->base_url);
    while (n && t->base_url[n - 1] == '/') n--;
    if (n > 3 && memcmp(t->base_url + n - 3, "/v1", 3) == 0) n -= 3; /* as clients' base_url has */
    strbuf_add(&url, t->base_url, n);
    strbuf_adds(&url, path);
    return strbuf_detach(&url, NULL);
}

static sac_status begin(struct client *c, sac_error *err)
{
    const struct load_plan *plan = c->plan;
    assert(plan->n);
    c->n_turn = plan->request[plan->n - 1].turn_i + 1u;
    c->n_chat = plan->n / c->n_turn;
    c->multi = curl_multi_init();
    c->header = make_header(c->target);
    c->url = make_url(c->target,
                      c->target->backend == LOAD_CHAT ? "/v1/chat/completions" : "/v1/completions");
    c->past = mem_calloc(c->n_chat, sizeof(cJSON *));
    c->flight = mem_calloc(plan->n, sizeof *c->flight);
    c->follow = mem_calloc(plan->n, sizeof *c->follow);
    *c->run = (struct load_run){.n = plan->n};
    c->run->sample = mem_calloc(plan->n, sizeof *c->run->sample);
    if (!c->multi || !c->header || !c->url || !c->past || !c->flight || !c->follow ||
        !c->run->sample)
        return error_set(err, SAC_ERR_MEMORY, "no memory for %zu requests", plan->n);
    /* As many connections as requests, so that none is closed and opened again. */
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, (long)plan->n);
    return SAC_OK;
}

static void end(struct client *c)
{
    for (size_t i = 0; c->flight && i < c->plan->n; i++) free_flight(c, &c->flight[i]);
    for (size_t i = 0; c->past && i < c->n_chat; i++) cJSON_Delete(c->past[i]);
    mem_free(c->past);
    mem_free(c->flight);
    mem_free(c->follow);
    mem_free(c->url);
    curl_slist_free_all(c->header);
    curl_multi_cleanup(c->multi);
}

sac_status load_client_run(struct load_run *out, const struct load_target *target,
                           const struct load_plan *plan, sac_error *err)
{
    struct client c = {.target = target, .plan = plan, .run = out};
    sac_status status = begin(&c, err);
    if (status == SAC_OK) status = run_all(&c, err);
    end(&c);
    return status;
}

void load_run_deinit(struct load_run *run)
{
    for (size_t i = 0; run->sample && i < run->n; i++) {
        mem_free(run->sample[i].error);
        mem_free(run->sample[i].itl_s);
    }
    mem_free(run->sample);
    *run = (struct load_run){0};
}

/* ---- The model's name ---- */

static size_t on_list(char *data, size_t size, size_t n, void *user)
{
    struct strbuf *list = user;
    strbuf_add(list, data, size * n);
    return list->failed || list->n > (1u << 20) ? 0 : size * n;
}

static sac_status read_name(char **out, const char *url, const char *list, sac_error *err)
{
    cJSON *json = cJSON_Parse(list);
    const cJSON *models = cJSON_GetObjectItemCaseSensitive(json, "data");
    const cJSON *id = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(models, 0), "id");
    sac_status status = SAC_OK;
    if (!cJSON_IsString(id))
        status = error_set(err, SAC_ERR_FORMAT, "%s names no model: give --model", url);
    else if (!(*out = mem_strdup(id->valuestring)))
        status = error_set(err, SAC_ERR_MEMORY, "no memory for a name");
    cJSON_Delete(json);
    return status;
}

static sac_status ask_list(struct strbuf *out, CURL *easy, const char *url, sac_error *err)
{
    long code = 0;
    curl_easy_setopt(easy, CURLOPT_URL, url);
    curl_easy_setopt(easy, CURLOPT_PROXY, "");
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_list);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, out);
    curl_easy_setopt(easy, CURLOPT_TIMEOUT, 30L);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    const CURLcode result = curl_easy_perform(easy);
    curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &code);
    if (result != CURLE_OK)
        return error_set(err, SAC_ERR_IO, "%s: %s", url, curl_easy_strerror(result));
    if (code != 200) return error_set(err, SAC_ERR_IO, "%s: HTTP %ld", url, code);
    return SAC_OK;
}

sac_status load_client_model(char **out, const struct load_target *target, sac_error *err)
{
    struct strbuf list = {0};
    CURL *easy = curl_easy_init();
    struct curl_slist *header = make_header(target);
    char *url = make_url(target, "/v1/models");
    sac_status status = SAC_OK;
    if (!easy || !header || !url) status = error_set(err, SAC_ERR_MEMORY, "no memory");
    if (status == SAC_OK) {
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER, header);
        status = ask_list(&list, easy, url, err);
    }
    if (status == SAC_OK) status = read_name(out, url, list.data ? list.data : "", err);
    curl_easy_cleanup(easy);
    curl_slist_free_all(header);
    mem_free(url);
    strbuf_deinit(&list);
    return status;
}
