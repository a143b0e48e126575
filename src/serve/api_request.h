/* api_request.h: what a client asks for, in one form for all routes: prompts as tokens, sampling,
 * limits, and what the answer should contain. Every number has a range and every list a maximum
 * length; a value beyond it is refused with the field's name. Fields that no route knows are
 * ignored, as OpenAI's server does.
 *
 * A zeroed `struct api_request` is empty; api_request_deinit frees its content. Texts are copies.
 */
#ifndef SAC_SERVE_API_REQUEST_H
#define SAC_SERVE_API_REQUEST_H

#include "eval/passages.h"
#include "grammar/automaton.h"
#include "grammar/tool_parser.h"
#include "serve/allowed_tokens.h"
#include "serve/api_error.h"
#include "serve/json.h"

#include <stdbool.h>
#include <stdint.h>

#define API_REQUEST_STOP_MAX   16u
#define API_REQUEST_STOP_BYTES 256u
#define API_REQUEST_SALT_BYTES 256u
#define API_REQUEST_N_MAX      8u
#define API_REQUEST_PROMPT_MAX 32u
#define API_REQUEST_BIAS_MAX   1024u
#define API_REQUEST_TOP_MAX    20u
#define API_REQUEST_STOP_TOK   256u /* stop token ids */
#define API_REQUEST_DOC_MAX    64u

/* How the hidden states of a text's tokens become an embedding. */
enum api_request_pooling {
    API_REQUEST_POOLING_OFF = 0, /* no embeddings */
    API_REQUEST_POOLING_MEAN,
    API_REQUEST_POOLING_LAST, /* the last token's */
    API_REQUEST_POOLING_CLS,  /* the first token's */
    API_REQUEST_POOLING_NONE, /* one vector per token */
};

/* What requests are checked against. Set once before the first request, then read by all
 * threads. */
struct api_request_rules {
    const sac_model *model;
    sac_engine_params engine;         /* the engine's parameters in force */
    sac_sampling sampling;            /* defaults */
    const char *chat_template;        /* NULL: the model's */
    const struct trie *trie;          /* the vocabulary, for grammars */
    uint32_t n_prompt_max;            /* maximum tokens of a prompt; 0: the context length */
    uint32_t n_predict_max;           /* maximum tokens of an answer; 0: up to the context length */
    uint32_t n_doc_max;               /* maximum documents of a prompt; 0: no store */
    enum api_request_pooling pooling; /* for embeddings */
    uint32_t n_slot;                  /* slots that can be saved; 0: no folder is configured */
};

struct api_request_prompt {
    int32_t *tok; /* owned (sac_free), [n] */
    size_t n;
    char *text;               /* owned; the prompt to echo, or NULL */
    struct passages passages; /* owned; passages of the messages, if attention is recorded */
};

/* How much of the recorded attention is kept. */
enum api_request_attention {
    API_REQUEST_ATTENTION_NONE = 0,
    API_REQUEST_ATTENTION_ANSWER,
    API_REQUEST_ATTENTION_TOKENS
};

/* The kind of work: generate an answer, manage documents or slots, or compute embeddings. */
enum api_request_work {
    API_REQUEST_ANSWER = 0,
    API_REQUEST_DOC_ADD,
    API_REQUEST_DOC_LIST,
    API_REQUEST_DOC_REMOVE,
    API_REQUEST_SLOT_SAVE,
    API_REQUEST_SLOT_RESTORE,
    API_REQUEST_SLOT_ERASE,
    API_REQUEST_EMBED
};

/* A text to embed. */
struct api_request_input {
    int32_t *tok; /* owned (sac_free), [n], at least one */
    size_t n;
};

/* A document to add, or (only `name`) to remove. All owned. */
struct api_request_document {
    char *name, *tags;
    int32_t *head, *tok; /* owned (sac_free), [n_head], [n_tok] */
    size_t n_head, n_tok;
    uint32_t seconds; /* time to live; 0: unlimited */
    bool pin;
};

struct api_request {
    enum api_request_work work;
    struct api_request_document document;
    uint32_t slot;                   /* the slot to save, restore or erase, or the one to use for */
    bool names_slot;                 /* the answer if names_slot */
    char *slot_file;                 /* owned: file name without a path, or NULL */
    struct api_request_input *input; /* owned, [n_input]: texts to embed */
    uint32_t n_input, n_embd;
    enum api_request_pooling pooling;
    bool normalised, base64;
    char *doc_name[API_REQUEST_DOC_MAX]; /* owned; documents placed after the first n_head tokens of
                                            the */
    uint32_t n_doc; /* prompt and joined by the method `context` (NULL: the default) */
    size_t n_head;
    char *context;
    struct api_request_prompt prompt[API_REQUEST_PROMPT_MAX];
    uint32_t n_prompt;
    uint32_t n; /* answers per prompt */
    sac_sampling sampling;
    sac_logit_bias *bias; /* owned; `sampling` refers to it */
    uint32_t max_tokens;  /* 0: up to the context length */
    uint32_t min_tokens;
    uint32_t n_prompt_kept; /* longer prompts are truncated to their last tokens; 0: they are not */
    bool is_cut;            /* a prompt was truncated */
    char *stop[API_REQUEST_STOP_MAX];
    uint32_t n_stop;
    int32_t *stop_tok; /* owned, [n_stop_tok]: tokens that end an answer */
    uint32_t n_stop_tok;
    bool keep_stop; /* the stop string stays in the text */
    char
        *breaker[API_REQUEST_STOP_MAX]; /* owned; DRY sequence breakers; n_breaker 0: the default */
    uint32_t n_breaker;
    char **tool; /* owned, [n_tool]: names of the tools that may be called */
    uint32_t n_tool;
    enum tool_parser_family tool_family; /* the model's syntax of tool calls */
    struct automaton *automaton;         /* owned: compiled grammar of the answer, or NULL */
    struct allowed_tokens *allowed;      /* owned; NULL: all */
    int32_t priority;
    uint32_t decode, prefill; /* indices of the engine's methods */
    bool names_decode;        /* else the context method or the default decides */
    sac_sparse sparse;        /* zeros: the engine's defaults; owns its `budget` */
    char *cache_salt;         /* owned; prompts share pages only within one salt. NULL: "" */
    enum api_request_attention attention;
    const char **role; /* owned, [n_role]: roles of the messages, for `attention` */
    uint32_t n_role;
    char **said;     /* owned, [n_said]: texts around the documents, located when these */
    uint32_t n_said; /* are joined; the first n_before precede the documents */
    uint32_t n_before;
    bool audit; /* compare with dense attention and report the difference */
    bool logprobs;
    uint32_t n_top; /* alternatives reported per token */
    bool stream, include_usage, progress, token_ids, echo, ignore_eos, timings;
};

void api_request_deinit(struct api_request *a);

/* Reads the fields that all generating routes share from the object `o`. */
sac_status api_request_read(struct api_request *a, const cJSON *o,
                            const struct api_request_rules *rules, struct api_error *error);
/* Adds a prompt after checking its ids and length. Takes ownership of `tok`, also on failure. */
sac_status api_request_add_prompt(struct api_request *a, int32_t *tok, size_t n,
                                  const struct api_request_rules *rules, struct api_error *error);
/* If the request names documents: checks that the last prompt begins with the text that precedes
 * them, and stores its length in n_head. `system` is the text of the system message or NULL; `raw`:
 * the prompt uses no chat template. */
sac_status api_request_find_head(struct api_request *a, const char *system, bool raw,
                                 const struct api_request_rules *rules, struct api_error *error);
/* If attention is recorded: locates `text` [n_text] in the last prompt. With documents the prompt
 * is not complete yet, so the texts are stored for later. */
sac_status api_request_find_passages(struct api_request *a, const struct passages_document *text,
                                     size_t n_text, const struct api_request_rules *rules,
                                     struct api_error *error);

/* ---- Single fields: SAC_OK and `*out` unchanged where the field is missing or null ---- */

sac_status api_request_bool(const cJSON *o, const char *name, bool *out, struct api_error *error);
sac_status api_request_u32(const cJSON *o, const char *name, uint32_t min, uint32_t max,
                           uint32_t *out, struct api_error *error);
/* `*out` is borrowed from the JSON value. */
sac_status api_request_text(const cJSON *o, const char *name, const char **out,
                            struct api_error *error);
/* "cache_salt" */
sac_status api_request_salt(struct api_request *a, const cJSON *o, struct api_error *error);
/* "stop", or the field `name`: a string or a list of strings. */
sac_status api_request_stop(struct api_request *a, const cJSON *o, const char *name,
                            struct api_error *error);

#endif
