/* reply.h: an answer becoming text: what has arrived so far, and what all APIs report in the same
 * way (usage, timings, probabilities). An API is a `struct dialect`: how it reads a request, and
 * how it writes a stream or a whole answer. For HTTP threads only, one at a time. */
#ifndef SAC_SERVE_REPLY_H
#define SAC_SERVE_REPLY_H

#include "serve/answer.h"

struct reply;

struct dialect {
    const char *id_prefix; /* "chatcmpl-" */
    bool anthropic;        /* errors are in Anthropic's format */
    sac_status (*read)(struct api_request *a, const cJSON *body,
                       const struct api_request_rules *rules, struct api_error *error);
    /* Stores data of a piece that `whole` needs besides the text; may be NULL. */
    void (*keep)(struct reply *r, const struct answer_piece *p);
    /* Streams: the beginning, each piece (after reply_take), and the end. The first and the last
     * may be NULL. */
    void (*open)(struct reply *r, struct strbuf *out);
    void (*piece)(struct reply *r, const struct answer_piece *p, struct strbuf *out);
    void (*close)(struct reply *r, struct strbuf *out);
    /* Writes the complete answer. */
    void (*whole)(struct reply *r, struct strbuf *out);
};

struct reply_call {
    char id[48];
    char name[TOOL_PARSER_NAME_MAX];
    struct strbuf args; /* JSON text of the arguments so far */
    bool shown;         /* reply_next_calls has reported the call, */
    size_t n_shown;     /* and this many bytes of `args` */
};

struct reply_choice {
    struct strbuf text; /* without tool calls */
    cJSON *logprobs;    /* owned; a list in the dialect's format, or NULL */
    cJSON *token_ids;   /* owned; or NULL */
    uint32_t n_tok, n_prompt;
    struct tool_parser *tools; /* owned; NULL: no tools */
    struct reply_call *call;   /* owned, [n_call] */
    uint32_t n_call;
    bool no_memory; /* for a tool call */
    size_t n_shown; /* bytes of `text` returned by reply_next */
    bool done;
    sac_finish finish;
    int stop_i;
    int32_t tok; /* the last token */
    sac_timings timings;
};

struct reply {
    const struct dialect *dialect;
    const struct answer *answer;           /* borrowed */
    const struct api_request *request;     /* &answer->request */
    const struct api_request_rules *rules; /* borrowed */
    const char *model_name;                /* borrowed */
    char id[48];
    int64_t created;             /* seconds since 1970 */
    struct reply_choice *choice; /* owned, [n_choice] */
    uint32_t n_choice, n_done;
    struct api_error failed; /* kind NONE: no failure */
    uint32_t n_event;        /* event counter for dialects that number events */
};

sac_status reply_init(struct reply *r, const struct dialect *dialect, const struct answer *a,
                      const struct api_request_rules *rules, const char *model_name);
void reply_deinit(struct reply *r);

/* Processes a piece. `failed` is set if a choice fails or the server cancels it. */
void reply_take(struct reply *r, const struct answer_piece *p);

/* The part of a choice's text that was not returned yet. Text that is or may become a tool call is
 * held back. */
void reply_next(struct reply *r, uint32_t choice_i, const char **out_text, size_t *out_n);

/* Writes "data: {...}\n\n", after "event: NAME\n" if `event` is not NULL; takes ownership of
 * `value`. */
void reply_event(struct strbuf *out, const char *event, cJSON *value);

/* All calls, as OpenAI's list. */
cJSON *reply_calls(const struct reply_choice *c);
/* New parts of calls since the last call, as a list of OpenAI's deltas; NULL: none. */
cJSON *reply_next_calls(struct reply *r, uint32_t choice_i);
cJSON *reply_usage(const struct reply *r);
/* How much attention read, summed over all answers. */
cJSON *reply_sparse(const struct reply *r);
/* The response of GET /v1/attention/ID. Call it once, after all answers have ended. */
cJSON *reply_attention(struct reply *r);
cJSON *reply_timings(const sac_timings *t);
/* {"total", "cache", "processed"}, as in llama.cpp. */
cJSON *reply_progress(const struct answer_piece *p);
/* "stop", "length" (the last call may be incomplete) or "tool_calls". */
const char *reply_finish(const struct reply_choice *c);
/* Adds "stop_reason": the request's stop string or stop token that ended the choice, if any. */
void reply_add_stop(const struct reply *r, const struct reply_choice *c, cJSON *choice);
/* A token's text, and its bytes as a list: it may hold a part of a character. */
cJSON *reply_token_text(const struct reply *r, int32_t tok);
cJSON *reply_token_bytes(const struct reply *r, int32_t tok);
/* An object with the members that all responses share. */
cJSON *reply_object(const struct reply *r, const char *object);
/* Tokens of prompts and answers over all choices. `disk` is a part of `cached`, which is a part of
 * `prompt`. */
struct reply_count {
    uint32_t prompt, cached, disk, predicted;
};
struct reply_count reply_counts(const struct reply *r);
void reply_random_id(char out[48], const char *prefix);

#endif
