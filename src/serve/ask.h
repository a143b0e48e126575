/* ask.h: what a client asks for, in one form for all routes: prompts as tokens, sampling, limits,
 * and what the answer should contain. Every number has a range and every list a maximum length; a
 * value beyond it is refused with the field's name. Fields that no route knows are ignored, as
 * OpenAI's server does.
 *
 * A zeroed `struct ask` is empty; ask_deinit frees its content. Texts are copies. */
#ifndef SAC_SERVE_ASK_H
#define SAC_SERVE_ASK_H

#include "eval/passages.h"
#include "grammar/machine.h"
#include "grammar/toolstream.h"
#include "serve/allowed_tokens.h"
#include "serve/api_error.h"
#include "serve/json.h"

#include <stdbool.h>
#include <stdint.h>

#define ASK_STOP_MAX   16u
#define ASK_STOP_BYTES 256u
#define ASK_SALT_BYTES 256u
#define ASK_N_MAX      8u
#define ASK_PROMPT_MAX 32u
#define ASK_BIAS_MAX   1024u
#define ASK_TOP_MAX    20u
#define ASK_STOP_TOK   256u /* stop token ids */
#define ASK_DOC_MAX    64u

/* How the hidden states of a text's tokens become an embedding. */
enum ask_pooling {
    ASK_POOLING_OFF = 0, /* no embeddings */
    ASK_POOLING_MEAN,
    ASK_POOLING_LAST, /* the last token's */
    ASK_POOLING_CLS,  /* the first token's */
    ASK_POOLING_NONE, /* one vector per token */
};

/* What requests are checked against. Set once before the first request, then read by all
 * threads. */
struct ask_rules {
    const sac_model *model;
    sac_engine_params engine;  /* the engine's parameters in force */
    sac_sampling sampling;     /* defaults */
    const char *chat_template; /* NULL: the model's */
    const struct trie *trie;   /* the vocabulary, for grammars */
    uint32_t n_prompt_max;     /* maximum tokens of a prompt; 0: the context length */
    uint32_t n_predict_max;    /* maximum tokens of an answer; 0: up to the context length */
    uint32_t n_doc_max;        /* maximum documents of a prompt; 0: no store */
    enum ask_pooling pooling;  /* for embeddings */
    uint32_t n_slot;           /* slots that can be saved; 0: no folder is configured */
};

struct ask_prompt {
    int32_t *tok; /* owned (sac_free), [n] */
    size_t n;
    char *text;               /* owned; the prompt to echo, or NULL */
    struct passages passages; /* owned; passages of the messages, if attention is recorded */
};

/* How much of the recorded attention is kept. */
enum ask_attention { ASK_ATTENTION_NONE = 0, ASK_ATTENTION_ANSWER, ASK_ATTENTION_TOKENS };

/* The kind of work: generate an answer, manage documents or slots, or compute embeddings. */
enum ask_work {
    ASK_ANSWER = 0,
    ASK_DOC_ADD,
    ASK_DOC_LIST,
    ASK_DOC_REMOVE,
    ASK_SLOT_SAVE,
    ASK_SLOT_RESTORE,
    ASK_SLOT_ERASE,
    ASK_EMBED
};

/* A text to embed. */
struct ask_input {
    int32_t *tok; /* owned (sac_free), [n], at least one */
    size_t n;
};

/* A document to add, or (only `name`) to remove. All owned. */
struct ask_document {
    char *name, *tags;
    int32_t *head, *tok; /* owned (sac_free), [n_head], [n_tok] */
    size_t n_head, n_tok;
    uint32_t seconds; /* time to live; 0: unlimited */
    bool pin;
};

struct ask {
    enum ask_work work;
    struct ask_document document;
    uint32_t slot;           /* the slot to save, restore or erase, or the one to use for */
    bool names_slot;         /* the answer if names_slot */
    char *slot_file;         /* owned: file name without a path, or NULL */
    struct ask_input *input; /* owned, [n_input]: texts to embed */
    uint32_t n_input, n_embd;
    enum ask_pooling pooling;
    bool normalised, base64;
    char *doc_name[ASK_DOC_MAX]; /* owned; documents placed after the first n_head tokens of the */
    uint32_t n_doc;              /* prompt and joined by the method `context` (NULL: the default) */
    size_t n_head;
    char *context;
    struct ask_prompt prompt[ASK_PROMPT_MAX];
    uint32_t n_prompt;
    uint32_t n; /* answers per prompt */
    sac_sampling sampling;
    sac_logit_bias *bias; /* owned; `sampling` refers to it */
    uint32_t max_tokens;  /* 0: up to the context length */
    uint32_t min_tokens;
    uint32_t n_prompt_kept; /* longer prompts are truncated to their last tokens; 0: they are not */
    bool is_cut;            /* a prompt was truncated */
    char *stop[ASK_STOP_MAX];
    uint32_t n_stop;
    int32_t *stop_tok; /* owned, [n_stop_tok]: tokens that end an answer */
    uint32_t n_stop_tok;
    bool keep_stop;              /* the stop string stays in the text */
    char *breaker[ASK_STOP_MAX]; /* owned; DRY sequence breakers; n_breaker 0: the default */
    uint32_t n_breaker;
    char **tool; /* owned, [n_tool]: names of the tools that may be called */
    uint32_t n_tool;
    enum toolstream_family tool_family; /* the model's syntax of tool calls */
    struct machine *machine;            /* owned: compiled grammar of the answer, or NULL */
    struct allowed_tokens *allowed;     /* owned; NULL: all */
    int32_t priority;
    uint32_t decode, prefill; /* indices of the engine's methods */
    bool names_decode;        /* else the context method or the default decides */
    sac_sparse sparse;        /* zeros: the engine's defaults; owns its `budget` */
    char *cache_salt;         /* owned; prompts share pages only within one salt. NULL: "" */
    enum ask_attention attention;
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

void ask_deinit(struct ask *a);

/* Reads the fields that all generating routes share from the object `o`. */
sac_status ask_read(struct ask *a, const cJSON *o, const struct ask_rules *rules,
                    struct api_error *error);
/* Adds a prompt after checking its ids and length. Takes ownership of `tok`, also on failure. */
sac_status ask_add_prompt(struct ask *a, int32_t *tok, size_t n, const struct ask_rules *rules,
                          struct api_error *error);
/* If the request names documents: checks that the last prompt begins with the text that precedes
 * them, and stores its length in n_head. `system` is the text of the system message or NULL; `raw`:
 * the prompt uses no chat template. */
sac_status ask_find_head(struct ask *a, const char *system, bool raw, const struct ask_rules *rules,
                         struct api_error *error);
/* If attention is recorded: locates `text` [n_text] in the last prompt. With documents the prompt
 * is not complete yet, so the texts are stored for later. */
sac_status ask_find_passages(struct ask *a, const struct passages_document *text, size_t n_text,
                             const struct ask_rules *rules, struct api_error *error);

/* ---- Single fields: SAC_OK and `*out` unchanged where the field is missing or null ---- */

sac_status ask_bool(const cJSON *o, const char *name, bool *out, struct api_error *error);
sac_status ask_u32(const cJSON *o, const char *name, uint32_t min, uint32_t max, uint32_t *out,
                   struct api_error *error);
/* `*out` is borrowed from the JSON value. */
sac_status ask_text(const cJSON *o, const char *name, const char **out, struct api_error *error);
/* "cache_salt" */
sac_status ask_salt(struct ask *a, const cJSON *o, struct api_error *error);
/* "stop", or the field `name`: a string or a list of strings. */
sac_status ask_stop(struct ask *a, const cJSON *o, const char *name, struct api_error *error);

#endif
