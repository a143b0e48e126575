/* reply.h: an answer becoming text: what has arrived so far, and what all APIs report in the same
 * way (usage, timings, probabilities). An API is a `struct dialect`: how it reads a request, and
 * how it writes a stream or a whole answer. For HTTP threads only, one at a time. */
#ifndef SAC_SERVE_REPLY_H
#define SAC_SERVE_REPLY_H

#include "serve/answer.h"

struct reply;

struct dialect {
    const char *id_prefix; /* "chatcmpl-" */
    bool anthropic;        /* errors in that API's shape */
    sac_status (*read)(struct ask *a, const cJSON *body, const struct ask_rules *rules,
                       struct refusal *ref);
    /* What a whole answer needs of a piece beside its text; may be NULL. */
    void (*keep)(struct reply *r, const struct answer_piece *p);
    /* A stream: what opens it, what a piece comes to (already taken by reply_take), what ends it;
     * the first and the last may be NULL. */
    void (*open)(struct reply *r, struct strbuf *out);
    void (*piece)(struct reply *r, const struct answer_piece *p, struct strbuf *out);
    void (*close)(struct reply *r, struct strbuf *out);
    /* All of it at once. */
    void (*whole)(struct reply *r, struct strbuf *out);
};

struct reply_call {
    char id[48];
    char name[TOOLSTREAM_NAME_MAX];
    struct strbuf args; /* the text of a JSON object, as far as it has come */
    bool shown;         /* reply_next_calls has told of it, */
    size_t n_shown;     /* and given these bytes of `args` */
};

struct reply_choice {
    struct strbuf text; /* without the calls */
    cJSON *logprobs;    /* owned; a list in the dialect's own form, or NULL */
    cJSON *token_ids;   /* owned; or NULL */
    uint32_t n_tok, n_prompt;
    struct toolstream *tools; /* owned; NULL: no tools are offered */
    struct reply_call *call;  /* owned, [n_call] */
    uint32_t n_call;
    bool no_memory; /* for a call */
    size_t n_shown; /* bytes of `text` that reply_next has given */
    bool done;
    sac_finish finish;
    int stop_i;
    int32_t tok; /* the last one */
    sac_timings timings;
};

struct reply {
    const struct dialect *dialect;
    const struct answer *answer;   /* borrowed */
    const struct ask *ask;         /* the answer's */
    const struct ask_rules *rules; /* borrowed */
    const char *model_name;        /* borrowed */
    char id[48];
    int64_t created;             /* seconds since 1970 */
    struct reply_choice *choice; /* owned, [n_choice] */
    uint32_t n_choice, n_done;
    struct refusal failed; /* kind NONE: nothing has */
    uint32_t n_event;      /* for dialects that number them */
};

sac_status reply_init(struct reply *r, const struct dialect *dialect, const struct answer *a,
                      const struct ask_rules *rules, const char *model_name);
void reply_deinit(struct reply *r);

/* Takes note of a piece. A choice that failed, or was cancelled by the server, sets `failed`. */
void reply_take(struct reply *r, const struct answer_piece *p);

/* Of a choice's text, what can be shown now and was not: all that came, but for what is, or may
 * become, a call of a tool. */
void reply_next(struct reply *r, uint32_t choice_i, const char **out_text, size_t *out_n);

/* "data: {...}\n\n"; takes over the value. `event` (or NULL) names it: "event: NAME\n" before. */
void reply_event(struct strbuf *out, const char *event, cJSON *value);

/* The calls as OpenAI's list. */
cJSON *reply_calls(const struct reply_choice *c);
/* What came of calls since the last time, as a list of OpenAI's deltas; NULL: nothing. */
cJSON *reply_next_calls(struct reply *r, uint32_t choice_i);
cJSON *reply_usage(const struct reply *r);
/* What attention read of what it could have read, over all answers. */
cJSON *reply_sparse(const struct reply *r);
/* What GET /v1/attention/ID tells of the answers, which have ended; once. */
cJSON *reply_attention(struct reply *r);
cJSON *reply_timings(const sac_timings *t);
/* {"total", "cache", "processed"} as llama.cpp has it. */
cJSON *reply_progress(const struct answer_piece *p);
/* "stop", "length" (a last call may be cut), "tool_calls". */
const char *reply_finish(const struct reply_choice *c);
/* Adds "stop_reason" to the choice's JSON: the stop string or the stop token that ended it, if it
 * was one of the request's. */
void reply_add_stop(const struct reply *r, const struct reply_choice *c, cJSON *choice);
/* The text of a token, and its bytes as a list, since it may be a part of a character. */
cJSON *reply_token_text(const struct reply *r, int32_t tok);
cJSON *reply_token_bytes(const struct reply *r, int32_t tok);
/* The first member of all objects. */
cJSON *reply_object(const struct reply *r, const char *object);
/* Tokens read and made, over all choices; of those read, how many were cached, and of these how
 * many came from the disk. */
struct reply_count {
    uint32_t prompt, cached, disk, predicted;
};
struct reply_count reply_counts(const struct reply *r);
void reply_random_id(char out[48], const char *prefix);

#endif
