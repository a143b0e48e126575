/* reply.c: see the header. */
#include "serve/reply.h"

#include "base/hex.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

void reply_random_id(char out[48], const char *prefix)
{
    unsigned char raw[12] = {0};
    const int n = snprintf(out, 48, "%.16s", prefix);
    /* Uniqueness is enough: an id grants no access. */
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw) raw[0] = 1;
    hex_print(out + n, raw, sizeof raw);
}

/* ---- Tool calls ---- */

static void begin_call(struct reply_choice *c, const char *name)
{
    struct reply_call *call = mem_realloc(c->call, (c->n_call + 1) * sizeof *call);
    c->no_memory |= !call;
    if (!call) return;
    c->call = call;
    call += c->n_call++;
    *call = (struct reply_call){0};
    reply_random_id(call->id, "call_");
    snprintf(call->name, sizeof call->name, "%s", name);
}

static void on_tool_event(void *user, const struct tool_parser_event *e)
{
    struct reply_choice *c = user;
    if (e->kind == TOOL_PARSER_TEXT) strbuf_add(&c->text, e->text, e->n);
    if (e->kind == TOOL_PARSER_BEGIN) begin_call(c, e->name);
    if (e->kind == TOOL_PARSER_ARGS && !c->no_memory) {
        struct strbuf *args = &c->call[c->n_call - 1].args;
        strbuf_add(args, e->text, e->n);
        c->no_memory |= args->failed;
    }
}

static sac_status offer_tools(struct reply_choice *c, const struct api_request *a)
{
    if (a->n_tool == 0) return SAC_OK;
    TRY(tool_parser_create(&c->tools, a->tool_family, on_tool_event, c, NULL));
    tool_parser_offer(c->tools, a->tool, a->n_tool);
    return SAC_OK;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void take_text(struct reply *r, struct reply_choice *c, const struct answer_piece *p)
{
    sac_status status = SAC_OK;
    if (!c->tools)
        strbuf_add(&c->text, p->text, p->n_text);
    else
        status = tool_parser_feed(c->tools, p->text, p->n_text, NULL);
    if (c->tools && p->kind == ANSWER_DONE && status == SAC_OK)
        status = tool_parser_finish(c->tools, NULL);
    if (status != SAC_OK || c->no_memory || c->text.failed) (void)api_error_no_memory(&r->failed);
    /* White space between text and tool calls is dropped. */
    if (p->kind == ANSWER_DONE && c->n_call)
        while (c->text.n && is_blank(c->text.data[c->text.n - 1])) c->text.n--;
}

/* ---- An answer ---- */

sac_status reply_init(struct reply *r, const struct dialect *dialect, const struct answer *a,
                      const struct api_request_rules *rules, const char *model_name)
{
    *r = (struct reply){.dialect = dialect,
                        .answer = a,
                        .request = &a->request,
                        .rules = rules,
                        .model_name = model_name,
                        .created = (int64_t)time(NULL),
                        .n_choice = a->n_choice};
    reply_random_id(r->id, dialect->id_prefix);
    r->choice = mem_calloc(r->n_choice, sizeof *r->choice);
    if (!r->choice) return SAC_ERR_MEMORY;
    for (uint32_t i = 0; i < r->n_choice; i++) {
        struct reply_choice *c = &r->choice[i];
        c->stop_i = -1;
        c->n_prompt = (uint32_t)a->request.prompt[i / a->request.n].n;
        if (a->request.token_ids) c->token_ids = cJSON_CreateArray();
        TRY(offer_tools(c, &a->request));
    }
    return SAC_OK;
}

void reply_deinit(struct reply *r)
{
    for (uint32_t i = 0; r->choice && i < r->n_choice; i++) {
        strbuf_deinit(&r->choice[i].text);
        tool_parser_free(r->choice[i].tools);
        for (uint32_t k = 0; k < r->choice[i].n_call; k++)
            strbuf_deinit(&r->choice[i].call[k].args);
        mem_free(r->choice[i].call);
        cJSON_Delete(r->choice[i].logprobs);
        cJSON_Delete(r->choice[i].token_ids);
    }
    mem_free(r->choice);
    *r = (struct reply){0};
}

static void take_end(struct reply *r, struct reply_choice *c, const struct answer_piece *p)
{
    char why[512];
    c->done = true;
    c->finish = p->finish;
    c->stop_i = p->stop_i;
    c->timings = p->timings;
    if (r->request->n_doc && p->timings.n_prompt)
        c->n_prompt = p->timings.n_cached + p->timings.n_prompt; /* including documents */
    r->n_done++;
    if (p->finish == SAC_FINISH_CANCELLED)
        (void)api_error_set(&r->failed, API_ERROR_UNAVAILABLE, NULL, "the server is shutting down");
    if (p->finish == SAC_FINISH_ERROR) {
        snprintf(why, sizeof why, "%.*s", (int)p->n_text, p->text);
        const bool no_document = p->status == SAC_ERR_NOT_FOUND;
        const char *param = r->request->n_doc       ? "documents"
                            : r->request->slot_file ? "filename"
                                                    : "name";
        (void)api_error_of(&r->failed, p->status, no_document ? param : NULL, why);
        if (no_document) r->failed.kind = API_ERROR_NOT_FOUND;
        if (r->failed.kind == API_ERROR_CONTEXT) {
            r->failed.n_prompt_tokens = c->n_prompt;
            r->failed.n_ctx = r->rules->engine.n_ctx;
        }
    }
}

void reply_take(struct reply *r, const struct answer_piece *p)
{
    struct reply_choice *c = &r->choice[p->choice_i];
    if (p->kind == ANSWER_TOKEN) {
        c->n_tok++;
        c->tok = p->tok;
        if (c->token_ids) cJSON_AddItemToArray(c->token_ids, cJSON_CreateNumber(p->tok));
    }
    if (p->kind == ANSWER_TOKEN || (p->kind == ANSWER_DONE && p->finish != SAC_FINISH_ERROR))
        take_text(r, c, p);
    if (p->kind == ANSWER_DONE) take_end(r, c, p);
}

void reply_next(struct reply *r, uint32_t choice_i, const char **out_text, size_t *out_n)
{
    struct reply_choice *c = &r->choice[choice_i];
    const char *text = c->text.data ? c->text.data : "";
    size_t n = c->text.n;
    /* White space is held back, because a tool call may follow. */
    while (c->tools && !c->done && n > c->n_shown && is_blank(text[n - 1])) n--;
    *out_text = text + c->n_shown;
    *out_n = n - c->n_shown;
    c->n_shown = n;
}

void reply_event(struct strbuf *out, const char *event, cJSON *value)
{
    if (event) strbuf_addf(out, "event: %s\n", event);
    strbuf_adds(out, "data: ");
    json_print(out, value);
    strbuf_adds(out, "\n\n");
}

cJSON *reply_calls(const struct reply_choice *c)
{
    cJSON *list = cJSON_CreateArray();
    for (uint32_t i = 0; i < c->n_call; i++) {
        const struct reply_call *call = &c->call[i];
        cJSON *o = cJSON_CreateObject(), *function;
        cJSON_AddStringToObject(o, "id", call->id);
        cJSON_AddStringToObject(o, "type", "function");
        function = cJSON_AddObjectToObject(o, "function");
        cJSON_AddStringToObject(function, "name", call->name);
        json_add_text(function, "arguments", call->args.data, call->args.n);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

/* The first delta of a call has its id and name. */
static cJSON *call_delta(struct reply_call *call, uint32_t i)
{
    cJSON *o = cJSON_CreateObject(), *function;
    cJSON_AddNumberToObject(o, "index", i);
    if (!call->shown) {
        cJSON_AddStringToObject(o, "id", call->id);
        cJSON_AddStringToObject(o, "type", "function");
    }
    function = cJSON_AddObjectToObject(o, "function");
    if (!call->shown) cJSON_AddStringToObject(function, "name", call->name);
    json_add_text(function, "arguments", call->args.data + call->n_shown,
                  call->args.n - call->n_shown);
    call->shown = true;
    call->n_shown = call->args.n;
    return o;
}

cJSON *reply_next_calls(struct reply *r, uint32_t choice_i)
{
    struct reply_choice *c = &r->choice[choice_i];
    cJSON *list = NULL;
    for (uint32_t i = 0; i < c->n_call; i++) {
        if (c->call[i].n_shown == c->call[i].args.n) continue;
        if (!list) list = cJSON_CreateArray();
        cJSON_AddItemToArray(list, call_delta(&c->call[i], i));
    }
    return list;
}

struct reply_count reply_counts(const struct reply *r)
{
    struct reply_count n = {0};
    for (uint32_t i = 0; i < r->n_choice; i++) {
        n.predicted += r->choice[i].n_tok;
        /* A prompt counts once, whatever the number of its answers. */
        if (i % r->request->n) continue;
        n.prompt += r->choice[i].n_prompt;
        n.cached += r->choice[i].timings.n_cached;
        n.disk += r->choice[i].timings.n_disk;
    }
    return n;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole ? (double)part / (double)whole : 1;
}

/* The result of joining the documents. */
static cJSON *reply_joined(const struct reply *r)
{
    const sac_compose_report *j = &r->answer->joined;
    cJSON *o = cJSON_CreateObject(), *names;
    if (r->request->context) cJSON_AddStringToObject(o, "method", r->request->context);
    names = cJSON_AddArrayToObject(o, "documents");
    for (uint32_t i = 0; i < r->request->n_doc; i++)
        cJSON_AddItemToArray(names,
                             json_text(r->request->doc_name[i], strlen(r->request->doc_name[i])));
    cJSON_AddNumberToObject(o, "tokens", j->n_tok);
    cJSON_AddNumberToObject(o, "resident_share", j->resident_share);
    cJSON_AddNumberToObject(o, "recomputed_share", j->recomputed_share);
    cJSON_AddNumberToObject(o, "ms", j->join_ms + j->probe_ms + j->refresh_ms);
    return o;
}

cJSON *reply_sparse(const struct reply *r)
{
    sac_reads sum = {0};
    cJSON *o = cJSON_CreateObject();
    for (uint32_t i = 0; i < r->n_choice; i++) {
        const sac_reads *c = &r->answer->choice[i].reads;
        if (!r->choice[i].done) continue; /* still written by the engine's thread */
        sum.n_tok_seen += c->n_tok_seen;
        sum.n_tok_read += c->n_tok_read;
        sum.n_cell += c->n_cell;
        sum.n_cell_read += c->n_cell_read;
        sum.attend_bytes_read += c->attend_bytes_read;
        sum.dense_bytes += c->dense_bytes;
        sum.n_select_proved += c->n_select_proved;
        sum.mass_proved += c->mass_proved;
    }
    cJSON_AddStringToObject(o, "decode", r->rules->engine.decode[r->request->decode]);
    cJSON_AddStringToObject(o, "prefill", r->rules->engine.prefill[r->request->prefill]);
    cJSON_AddNumberToObject(o, "kept_share", share(sum.n_tok_read, sum.n_tok_seen));
    cJSON_AddNumberToObject(o, "prompt_share", share(sum.n_cell_read, sum.n_cell));
    cJSON_AddNumberToObject(o, "bytes_read", (double)sum.attend_bytes_read);
    cJSON_AddNumberToObject(o, "bytes_dense", (double)sum.dense_bytes);
    if (sum.n_select_proved)
        cJSON_AddNumberToObject(o, "mass_proved", sum.mass_proved / (double)sum.n_select_proved);
    if (r->request->n_doc && r->choice[0].done)
        cJSON_AddItemToObject(o, "context", reply_joined(r));
    /* Of several answers only the first is reported. */
    const struct reading *reading = r->answer->choice[0].reading;
    cJSON *audit =
        r->request->audit && reading && r->choice[0].done ? reading_sums_json(reading) : NULL;
    if (audit) cJSON_AddItemToObject(o, "audit", audit);
    return o;
}

cJSON *reply_usage(const struct reply *r)
{
    const struct reply_count n = reply_counts(r);
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "prompt_tokens", n.prompt);
    cJSON_AddNumberToObject(o, "completion_tokens", n.predicted);
    cJSON_AddNumberToObject(o, "total_tokens", (double)n.prompt + n.predicted);
    cJSON *details = cJSON_AddObjectToObject(o, "prompt_tokens_details");
    cJSON_AddNumberToObject(details, "cached_tokens", n.cached);
    cJSON_AddNumberToObject(details, "disk_tokens", n.disk);
    if (r->choice[0].done)
        cJSON_AddStringToObject(details, "cache_end",
                                sac_reuse_end_text(r->choice[0].timings.reuse_end));
    cJSON_AddItemToObject(o, "sparse", reply_sparse(r));
    return o;
}

static cJSON *attention_of(struct reply *r, uint32_t i)
{
    struct answer_choice *c = &r->answer->choice[i];
    const sac_reads *reads = &c->reads;
    cJSON *o = cJSON_CreateObject(), *sums;
    cJSON_AddNumberToObject(o, "index", i);
    cJSON_AddNumberToObject(o, "prompt_tokens", r->choice[i].n_prompt);
    cJSON_AddNumberToObject(o, "completion_tokens", r->choice[i].n_tok);
    cJSON_AddStringToObject(o, "decode", r->rules->engine.decode[r->request->decode]);
    cJSON_AddStringToObject(o, "prefill", r->rules->engine.prefill[r->request->prefill]);
    cJSON_AddNumberToObject(o, "kept_share", share(reads->n_tok_read, reads->n_tok_seen));
    cJSON_AddNumberToObject(o, "bytes_read", (double)reads->attend_bytes_read);
    cJSON_AddNumberToObject(o, "bytes_dense", (double)reads->dense_bytes);
    if (!c->reading) return o;
    sums = reading_sums_json(c->reading);
    if (sums) cJSON_AddItemToObject(o, "dense", sums);
    const struct reading_names names = {.role = r->request->role,
                                        .n_role = r->request->n_role,
                                        .document = (const char *const *)r->request->doc_name,
                                        .n_document = r->request->n_doc,
                                        .n_before = r->request->n_before};
    reading_json(c->reading, r->rules->model, &names, o);
    return o;
}

cJSON *reply_attention(struct reply *r)
{
    cJSON *o = reply_object(r, "attention"), *list = cJSON_AddArrayToObject(o, "answers");
    for (uint32_t i = 0; i < r->n_choice; i++) cJSON_AddItemToArray(list, attention_of(r, i));
    return o;
}

cJSON *reply_timings(const sac_timings *t)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "cache_n", t->n_cached);
    cJSON_AddNumberToObject(o, "prompt_n", t->n_prompt - t->n_reused); /* tokens computed */
    cJSON_AddNumberToObject(o, "prompt_ms", t->prompt_ms);
    cJSON_AddNumberToObject(o, "prompt_per_second", t->prompt_per_s);
    cJSON_AddNumberToObject(o, "predicted_n", t->n_predicted);
    cJSON_AddNumberToObject(o, "predicted_ms", t->predicted_ms);
    cJSON_AddNumberToObject(o, "predicted_per_second", t->predicted_per_s);
    return o;
}

cJSON *reply_progress(const struct answer_piece *p)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "total", p->n_prompt);
    cJSON_AddNumberToObject(o, "cache", p->timings.n_cached);
    cJSON_AddNumberToObject(o, "processed", p->n_prompt_done);
    return o;
}

const char *reply_finish(const struct reply_choice *c)
{
    if (c->finish == SAC_FINISH_LENGTH) return "length";
    return c->n_call ? "tool_calls" : "stop";
}

void reply_add_stop(const struct reply *r, const struct reply_choice *c, cJSON *choice)
{
    if (c->stop_i >= 0) cJSON_AddStringToObject(choice, "stop_reason", r->request->stop[c->stop_i]);
    if (c->stop_i >= 0 || c->finish != SAC_FINISH_STOP || sac_token_is_eog(r->rules->model, c->tok))
        return;
    for (uint32_t i = 0; i < r->request->n_stop_tok; i++)
        if (r->request->stop_tok[i] == c->tok) {
            cJSON_AddNumberToObject(choice, "stop_reason", c->tok);
            return;
        }
}

cJSON *reply_token_text(const struct reply *r, int32_t tok)
{
    size_t n;
    const char *piece = sac_token_piece(r->rules->model, tok, true, &n);
    return json_text(piece, n);
}

cJSON *reply_token_bytes(const struct reply *r, int32_t tok)
{
    size_t n;
    const char *piece = sac_token_piece(r->rules->model, tok, true, &n);
    cJSON *bytes = cJSON_CreateArray();
    for (size_t i = 0; i < n; i++)
        cJSON_AddItemToArray(bytes, cJSON_CreateNumber((unsigned char)piece[i]));
    return bytes;
}

cJSON *reply_object(const struct reply *r, const char *object)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "id", r->id);
    cJSON_AddStringToObject(o, "object", object);
    cJSON_AddNumberToObject(o, "created", (double)r->created);
    cJSON_AddStringToObject(o, "model", r->model_name);
    char fingerprint[32];
    snprintf(fingerprint, sizeof fingerprint, "saccade-%.16s", sac_version());
    cJSON_AddStringToObject(o, "system_fingerprint", fingerprint);
    return o;
}
