/* tool_parser.c: see the header.
 *
 * `held` contains undecided text, beginning with the marker of a call. In TEXT, everything is
 * emitted except an end that may become a marker. After a marker, each state looks at `held` and
 * decides: wait for more, continue, or this is no call; in the last case the marker's first byte is
 * emitted as text and the search continues behind it. */
#include "grammar/tool_parser.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "grammar/tool_parser_scan.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <string.h>

#define MARKERS_MAX 3u

enum state {
    TEXT,
    OPENED, /* after a marker */
    OBJECT, /* inside the JSON of a call */
    ARGS,   /* inside the arguments of a call whose name came before them */
    CLOSED, /* after the JSON */
    FENCE,  /* inside a fenced block, or a list of calls */
    CODE,   /* inside code that extends to the end of the answer */
};

/* What a state concludes from `held`. */
enum verdict { WAIT, GO_ON, NO_CALL };

struct tool_parser {
    enum tool_parser_family family;
    tool_parser_fn fn;
    void *user;
    char *const *offered; /* borrowed, [n_offered]; NULL: all names */
    uint32_t n_offered;
    struct strbuf held; /* owned */
    enum state state;
    size_t body;      /* start of the call's own text in `held` */
    bool marked;      /* `held` begins with a marker */
    bool in_list;     /* Mistral: inside [ ] */
    bool started;     /* text other than blanks, or a call, has been sent */
    bool finished;    /* the answer is complete */
    bool behind_call; /* only blanks followed the last call */
    bool began;       /* TOOL_PARSER_BEGIN of the current call was sent */
    size_t sent;      /* bytes of the arguments already sent */
    struct tool_parser_scan scan;
    char name[TOOL_PARSER_NAME_MAX];
    uint32_t n_call;
};

static const char *const markers[][MARKERS_MAX] = {
    [TOOL_PARSER_HERMES] = {"<tool_call>", "```json"},
    [TOOL_PARSER_LLAMA3] = {"<|python_tag|>"},
    [TOOL_PARSER_MISTRAL] = {"[TOOL_CALLS]"},
    [TOOL_PARSER_GEMMA] = {"```tool_code", "```tool_call", "```json"},
};

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t blanks(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && is_blank(s[i])) i++;
    return i;
}

static bool is_offered(const struct tool_parser *t, const char *name)
{
    for (uint32_t i = 0; i < t->n_offered; i++)
        if (strcmp(t->offered[i], name) == 0) return true;
    return !t->offered;
}

/* ---- Events ---- */

static void send(struct tool_parser *t, enum tool_parser_kind kind, const char *text, size_t n)
{
    const struct tool_parser_event event = {
        .kind = kind, .index = t->n_call, .name = t->name, .text = text, .n = n};
    t->fn(t->user, &event);
}

static void drop(struct tool_parser *t, size_t n)
{
    assert(n <= t->held.n);
    memmove(t->held.data, t->held.data + n, t->held.n - n + 1);
    t->held.n -= n;
}

/* Sends the first n bytes as text. */
static void send_text(struct tool_parser *t, size_t n)
{
    if (n == 0) return;
    send(t, TOOL_PARSER_TEXT, t->held.data, n);
    t->started |= blanks(t->held.data, n) < n;
    t->behind_call = false;
    drop(t, n);
}

static void begin_call(struct tool_parser *t)
{
    t->began = t->started = true;
    t->sent = 0;
    send(t, TOOL_PARSER_BEGIN, "", 0);
}

static void end_call(struct tool_parser *t)
{
    send(t, TOOL_PARSER_END, "", 0);
    t->n_call++;
    t->began = false;
    t->behind_call = true;
}

static void send_call(struct tool_parser *t, const char *args)
{
    begin_call(t);
    send(t, TOOL_PARSER_ARGS, args, strlen(args));
    end_call(t);
}

/* ---- Complete tool calls ---- */

/* The arguments of a call as JSON text (cJSON_free); NULL: invalid. Some models write them as a
 * string that contains JSON, or omit empty ones. */
static char *print_args(const cJSON *call)
{
    const cJSON *args = cJSON_GetObjectItemCaseSensitive(call, "arguments");
    if (!args) args = cJSON_GetObjectItemCaseSensitive(call, "parameters");
    cJSON *const inner = !args                  ? cJSON_CreateObject()
                         : cJSON_IsString(args) ? cJSON_Parse(args->valuestring)
                                                : NULL;
    char *text = NULL;
    if (cJSON_IsObject(inner ? inner : args)) text = cJSON_PrintUnformatted(inner ? inner : args);
    cJSON_Delete(inner);
    return text;
}

static bool send_object(struct tool_parser *t, const cJSON *call)
{
    const cJSON *const inner = cJSON_GetObjectItemCaseSensitive(call, "function");
    if (cJSON_IsObject(inner)) call = inner; /* OpenAI's format */
    const char *const name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(call, "name"));
    if (!name || !name[0] || strlen(name) >= sizeof t->name || !is_offered(t, name)) return false;
    char *const args = print_args(call);
    if (!args) return false;
    memcpy(t->name, name, strlen(name) + 1);
    send_call(t, args);
    cJSON_free(args);
    return true;
}

/* A complete JSON text: an object, or a list of objects. */
static bool send_json(struct tool_parser *t, const char *text, size_t n)
{
    cJSON *const value = cJSON_ParseWithLength(text, n);
    bool any = send_object(t, value);
    if (cJSON_IsArray(value))
        for (const cJSON *item = value->child; item; item = item->next) any |= send_object(t, item);
    cJSON_Delete(value);
    return any;
}

/* Python calls, one after the other, possibly in a list or inside print(). */
static bool send_python(struct tool_parser *t, const char *text, size_t n)
{
    struct strbuf args = {0};
    bool any = false;
    for (size_t at = 0, used = 0; at < n; at += used) {
        at += blanks(text + at, n - at);
        if (at < n && strchr("[],);", text[at])) {
            used = 1;
            continue;
        }
        if (n - at > 6 && memcmp(text + at, "print(", 6) == 0) {
            used = 6;
            continue;
        }
        /* The text is followed by a byte that ends words. */
        if (at == n ||
            tool_parser_scan_python(text + at, n - at, t->name, sizeof t->name, &args, &used) !=
                TOOL_PARSER_SCAN_DONE ||
            !is_offered(t, t->name))
            break;
        send_call(t, args.data);
        any = true;
    }
    strbuf_deinit(&args);
    return any;
}

/* ---- States ---- */

static enum verdict in_state(struct tool_parser *t, enum state state, size_t body)
{
    t->state = state;
    t->body = body;
    t->scan = (struct tool_parser_scan){0};
    return GO_ON;
}

/* After a marker: determines the kind of call. */
static enum verdict look_opened(struct tool_parser *t)
{
    const size_t at = t->body + blanks(t->held.data + t->body, t->held.n - t->body);
    if (t->marked && t->held.data[0] == '`') return in_state(t, FENCE, t->body);
    if (at == t->held.n) return t->finished ? NO_CALL : WAIT;
    const char c = t->held.data[at];
    if (t->family == TOOL_PARSER_MISTRAL && c == '[' && !t->in_list) {
        t->in_list = true;
        t->body = at + 1;
        return GO_ON;
    }
    if (c == '{') return in_state(t, OBJECT, at);
    if (t->family == TOOL_PARSER_LLAMA3) return in_state(t, CODE, at);
    if (t->family != TOOL_PARSER_MISTRAL || t->in_list) return NO_CALL;
    /* NAME[ARGS]{...}, or NAME{...} */
    const char *const name = t->held.data + at, *const brace = memchr(name, '{', t->held.n - at);
    const size_t n = brace ? (size_t)(brace - name) : t->held.n - at;
    const char *const mark = memchr(name, '[', n);
    const size_t n_name = mark ? (size_t)(mark - name) : n;
    if (n_name >= sizeof t->name || n_name == 0) return NO_CALL;
    if (!brace) return t->finished ? NO_CALL : WAIT;
    memcpy(t->name, name, n_name);
    t->name[n_name] = '\0';
    return is_offered(t, t->name) ? in_state(t, ARGS, at + n) : NO_CALL;
}

static void send_args(struct tool_parser *t, size_t begin, size_t end)
{
    if (begin + t->sent >= end) return;
    send(t, TOOL_PARSER_ARGS, t->held.data + begin + t->sent, end - begin - t->sent);
    t->sent = end - begin;
}

/* Sends the parts of the object that have arrived, once its name and the beginning of the arguments
 * are known. */
static void stream_object(struct tool_parser *t)
{
    const struct tool_parser_scan *const s = &t->scan;
    const char *const text = t->held.data + t->body;
    if (!t->began && s->name_end && s->args && text[s->args] == '{' &&
        tool_parser_scan_name(t->name, sizeof t->name, text + s->name, s->name_end - s->name) &&
        is_offered(t, t->name))
        begin_call(t);
    if (t->began) send_args(t, t->body + s->args, t->body + (s->args_end ? s->args_end : s->at));
}

/* Ends the current call. */
static enum verdict close_call(struct tool_parser *t)
{
    end_call(t);
    drop(t, t->body + t->scan.at);
    return in_state(t, CLOSED, 0);
}

static enum verdict look_object(struct tool_parser *t)
{
    tool_parser_scan_json(&t->scan, t->held.data + t->body, t->held.n - t->body);
    if (t->scan.state != TOOL_PARSER_SCAN_BAD) stream_object(t);
    if (t->scan.state == TOOL_PARSER_SCAN_MORE && !t->finished) return WAIT;
    if (t->began) return close_call(t);
    if (t->scan.state != TOOL_PARSER_SCAN_DONE || !send_json(t, t->held.data + t->body, t->scan.at))
        return NO_CALL;
    drop(t, t->body + t->scan.at);
    return in_state(t, CLOSED, 0);
}

static enum verdict look_args(struct tool_parser *t)
{
    tool_parser_scan_json(&t->scan, t->held.data + t->body, t->held.n - t->body);
    if (t->scan.state == TOOL_PARSER_SCAN_BAD && !t->began) return NO_CALL;
    if (!t->began) begin_call(t);
    send_args(t, t->body, t->body + t->scan.at);
    if (t->scan.state == TOOL_PARSER_SCAN_MORE && !t->finished) return WAIT;
    return close_call(t);
}

static enum verdict to_text(struct tool_parser *t, size_t n)
{
    drop(t, n);
    t->in_list = t->marked = false;
    return in_state(t, TEXT, 0);
}

/* After a call: the end of its frame, or the next call in it. */
static enum verdict look_closed(struct tool_parser *t)
{
    static const char hermes_end[] = "</tool_call>";
    const size_t at = blanks(t->held.data, t->held.n), left = t->held.n - at;
    const char *const text = t->held.data + at;
    if (left == 0) return t->finished ? to_text(t, at) : WAIT;
    if (t->family == TOOL_PARSER_HERMES) {
        const size_t n = sizeof hermes_end - 1;
        if (left < n && memcmp(text, hermes_end, left) == 0 && !t->finished) return WAIT;
        return to_text(t, left >= n && memcmp(text, hermes_end, n) == 0 ? at + n : 0);
    }
    const bool between =
        t->in_list ? text[0] == ','
                   : t->family == TOOL_PARSER_LLAMA3 && (text[0] == ';' || text[0] == ',');
    if (between) {
        drop(t, at + 1);
        t->marked = false;
        return in_state(t, OPENED, 0);
    }
    if (t->in_list) return to_text(t, text[0] == ']' ? at + 1 : 0);
    return to_text(t, 0);
}

/* A fenced block up to its end, or a list up to its ']'. */
static enum verdict look_fence(struct tool_parser *t)
{
    const char *const text = t->held.data + t->body, *end = strstr(text, t->marked ? "```" : "]");
    if (!end && !t->finished) return WAIT;
    const size_t n = end ? (size_t)(end - text) + !t->marked : t->held.n - t->body;
    const size_t skip = blanks(text, n);
    if (!send_json(t, text + skip, n - skip) && !send_python(t, text + skip, n - skip))
        return NO_CALL;
    return to_text(t, t->body + n + (end && t->marked ? 3 : 0));
}

/* Llama's python tag without JSON: a call, or code for a tool. */
static enum verdict look_code(struct tool_parser *t)
{
    const char *const code = t->held.data + t->body;
    if (!t->finished) return WAIT;
    if (!send_python(t, code, t->held.n - t->body)) {
        if (!is_offered(t, "python")) return NO_CALL;
        cJSON *const args = cJSON_CreateObject();
        cJSON_AddStringToObject(args, "code", code);
        char *const text = cJSON_PrintUnformatted(args);
        cJSON_Delete(args);
        if (!text) return NO_CALL;
        memcpy(t->name, "python", sizeof "python");
        send_call(t, text);
        cJSON_free(text);
    }
    return to_text(t, t->held.n);
}

/* The first marker, or the beginning of one at the end of the text; returns its length, 0: none. */
static size_t find_marker(const struct tool_parser *t, size_t *out_at)
{
    for (size_t at = 0; at < t->held.n; at++)
        for (size_t i = 0; i < MARKERS_MAX && markers[t->family][i]; i++) {
            const char *const marker = markers[t->family][i];
            const size_t n = strlen(marker), left = t->held.n - at;
            if (memcmp(t->held.data + at, marker, left < n ? left : n) != 0) continue;
            *out_at = at;
            return left < n ? left : n;
        }
    *out_at = t->held.n;
    return 0;
}

static bool is_marker(const struct tool_parser *t, size_t at, size_t n)
{
    for (size_t i = 0; i < MARKERS_MAX && markers[t->family][i]; i++)
        if (strlen(markers[t->family][i]) == n &&
            memcmp(t->held.data + at, markers[t->family][i], n) == 0)
            return true;
    return false;
}

/* Whether a marker, or the beginning of one, is at `at`. */
static bool is_beginning(const struct tool_parser *t, size_t at)
{
    for (size_t i = 0; i < MARKERS_MAX && markers[t->family][i]; i++) {
        const size_t n = strlen(markers[t->family][i]), left = t->held.n - at;
        if (memcmp(t->held.data + at, markers[t->family][i], left < n ? left : n) == 0) return true;
    }
    return false;
}

/* An answer may begin with a call without a marker, or (Gemma, Mistral) with a list of calls. */
static bool begins_bare(struct tool_parser *t, enum verdict *out)
{
    const bool lists = t->family == TOOL_PARSER_MISTRAL || t->family == TOOL_PARSER_GEMMA;
    const size_t at = blanks(t->held.data, t->held.n);
    if (t->started) return false;
    if (at == t->held.n) {
        *out = WAIT;
        return !t->finished;
    }
    const char c = t->held.data[at];
    if (c != '{' && !(c == '[' && lists)) return false;
    if (c == '[' && t->family == TOOL_PARSER_MISTRAL && is_beginning(t, at)) return false;
    t->marked = false;
    *out = in_state(t, c == '{' ? OBJECT : t->family == TOOL_PARSER_GEMMA ? FENCE : OPENED, at);
    return true;
}

static enum verdict look_text(struct tool_parser *t)
{
    enum verdict bare;
    size_t at;
    if (begins_bare(t, &bare)) return bare;
    const size_t n = find_marker(t, &at);
    const bool is_whole = n > 0 && is_marker(t, at, n);
    if (t->behind_call && blanks(t->held.data, at) == at) {
        /* Blanks between calls, and after the last one, are not text. */
        if (!is_whole && !t->finished) return WAIT;
        if (is_whole || n == 0) {
            drop(t, at);
            at = 0;
        }
    }
    send_text(t, at);
    if (n == 0) return WAIT;
    if (!is_whole) {
        if (t->finished) send_text(t, n);
        return WAIT;
    }
    t->marked = true;
    return in_state(t, OPENED, n);
}

static enum verdict look(struct tool_parser *t)
{
    switch (t->state) {
    case TEXT: return look_text(t);
    case OPENED: return look_opened(t);
    case OBJECT: return look_object(t);
    case ARGS: return look_args(t);
    case CLOSED: return look_closed(t);
    case FENCE: return look_fence(t);
    case CODE: break;
    }
    return look_code(t);
}

static void run(struct tool_parser *t)
{
    while (t->held.n > 0 || t->state == CODE) {
        enum verdict verdict = look(t);
        if (verdict == WAIT && t->held.n > TOOL_PARSER_BYTES_MAX && t->state != TEXT)
            verdict = t->began ? close_call(t) : NO_CALL;
        if (verdict == WAIT) return;
        if (verdict == GO_ON) continue;
        t->started = true;
        send_text(t, t->held.n > 0);
        (void)to_text(t, 0);
    }
}

/* ---- Public functions ---- */

static bool has_token(const struct trie *trie, const char *name)
{
    const size_t n = strlen(name);
    if (trie_has_control(trie, name)) return true;
    for (uint32_t i = 0; i < trie->n_tok; i++) {
        uint32_t bytes;
        const char *const at = trie_bytes(trie, (int32_t)i, &bytes);
        if (bytes == n && memcmp(at, name, n) == 0) return true;
    }
    return false;
}

enum tool_parser_family tool_parser_of_vocabulary(const struct trie *trie)
{
    if (has_token(trie, "[TOOL_CALLS]")) return TOOL_PARSER_MISTRAL;
    if (has_token(trie, "<|python_tag|>")) return TOOL_PARSER_LLAMA3;
    if (has_token(trie, "<start_of_turn>")) return TOOL_PARSER_GEMMA;
    return TOOL_PARSER_HERMES;
}

sac_status tool_parser_create(struct tool_parser **out, enum tool_parser_family family,
                              tool_parser_fn fn, void *user, sac_error *err)
{
    struct tool_parser *const t = mem_calloc(1, sizeof *t);
    if (!t) return error_set(err, SAC_ERR_MEMORY, "out of memory for calls of tools");
    t->family = family;
    t->fn = fn;
    t->user = user;
    *out = t;
    return SAC_OK;
}

void tool_parser_offer(struct tool_parser *t, char *const *name, uint32_t n)
{
    t->offered = name;
    t->n_offered = n;
}

void tool_parser_free(struct tool_parser *t)
{
    if (!t) return;
    strbuf_deinit(&t->held);
    mem_free(t);
}

sac_status tool_parser_feed(struct tool_parser *t, const char *text, size_t n, sac_error *err)
{
    strbuf_add(&t->held, text, n);
    if (t->held.failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for calls of tools");
    run(t);
    return SAC_OK;
}

sac_status tool_parser_finish(struct tool_parser *t, sac_error *err)
{
    t->finished = true;
    TRY(tool_parser_feed(t, "", 0, err));
    assert(t->held.n == 0);
    return SAC_OK;
}

uint32_t tool_parser_count(const struct tool_parser *t)
{
    return t->n_call;
}
