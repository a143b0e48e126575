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
#include "serve/bounds.h"
#include "serve/json.h"
#include "serve/refusal.h"

#include <stdbool.h>
#include <stdint.h>

#define ASK_STOP_MAX   16u
#define ASK_STOP_BYTES 256u
#define ASK_SALT_BYTES 256u
#define ASK_N_MAX      8u
#define ASK_PROMPT_MAX 32u
#define ASK_BIAS_MAX   1024u
#define ASK_TOP_MAX    20u
#define ASK_STOP_TOK   256u /* stop tokens */
#define ASK_DOC_MAX    64u

/* What becomes of the hidden states of a text's tokens. */
enum ask_pooling {
    ASK_POOLING_OFF = 0, /* no vectors are made */
    ASK_POOLING_MEAN,
    ASK_POOLING_LAST, /* the last token's */
    ASK_POOLING_CLS,  /* the first's */
    ASK_POOLING_NONE, /* all of them */
};

/* What requests are read against; set once before the first of them, read by all threads. */
struct ask_rules {
    const sac_model *model;
    sac_engine_params engine;  /* in force */
    sac_sampling sampling;     /* where a request says nothing */
    const char *chat_template; /* NULL: the model's own */
    const struct trie *trie;   /* of the model's vocabulary, for grammars */
    uint32_t n_prompt_max;     /* tokens of a prompt; 0: the context's */
    uint32_t n_predict_max;    /* tokens of an answer; 0: up to the context's end */
    uint32_t n_doc_max;        /* documents in a prompt; 0: there is no store */
    enum ask_pooling pooling;  /* of embeddings */
    uint32_t n_slot;           /* that can be saved; 0: there is no folder for them */
};

struct ask_prompt {
    int32_t *tok; /* owned (sac_free), [n] */
    size_t n;
    char *text;               /* owned; of a completion that echoes it, else NULL */
    struct passages passages; /* owned; of its messages, where the answer's reading is kept */
};

/* What is kept of what the answer read. */
enum ask_attention { ASK_ATTENTION_NONE = 0, ASK_ATTENTION_ANSWER, ASK_ATTENTION_TOKENS };

/* What is asked for: an answer, or something of the store of documents or of a slot, or vectors. */
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

/* A text that becomes a vector. */
struct ask_input {
    int32_t *tok; /* owned (sac_free), [n], at least one */
    size_t n;
};

/* A document to add, or (its name alone) to remove. All owned. */
struct ask_document {
    char *name, *tags;
    int32_t *head, *tok; /* [n_head], [n_tok] sac_free */
    size_t n_head, n_tok;
    uint32_t seconds; /* to live; 0: for ever */
    bool pin;
};

struct ask {
    enum ask_work work;
    struct ask_document document;
    uint32_t slot;           /* of the work, or where the answer is remembered, if it */
    bool names_slot;         /*   says so */
    char *slot_file;         /* owned: a name without a path; of the work, or NULL */
    struct ask_input *input; /* owned, [n_input]: texts that become vectors */
    uint32_t n_input, n_embd;
    enum ask_pooling pooling;
    bool normalised, base64;
    char *doc_name[ASK_DOC_MAX]; /* documents that stand behind the first n_head tokens of the */
    uint32_t n_doc;              /*   prompt, joined by the method `context` (NULL: the server's) */
    size_t n_head;
    char *context;
    struct ask_prompt prompt[ASK_PROMPT_MAX];
    uint32_t n_prompt;
    uint32_t n; /* answers to each prompt */
    sac_sampling sampling;
    sac_logit_bias *bias; /* owned; sampling points at it */
    uint32_t max_tokens;  /* 0: up to the context's end */
    uint32_t min_tokens;
    uint32_t n_prompt_kept; /* of a longer prompt the last so many tokens are read; 0: all */
    bool is_cut;            /* there was such a one */
    char *stop[ASK_STOP_MAX];
    uint32_t n_stop;
    int32_t *stop_tok; /* owned, [n_stop_tok]: tokens that end an answer */
    uint32_t n_stop_tok;
    bool keep_stop;              /* the text shows what ended it */
    char *breaker[ASK_STOP_MAX]; /* of DRY; n_breaker 0: the server's */
    uint32_t n_breaker;
    char **tool; /* owned, [n_tool]: names of tools that the answer may call */
    uint32_t n_tool;
    enum toolstream_family tool_family; /* how the model writes calls of them */
    struct machine *machine;            /* owned: the form that answers must have, or NULL */
    struct bounds *bounds;              /* owned: tokens that they may hold, or NULL: all */
    int32_t priority;
    uint32_t decode, prefill; /* indices of the engine's methods */
    bool names_decode;        /* or it is the context method's, or the first */
    sac_sparse sparse;        /* zeros: as the engine was created; its budget is owned here */
    char *cache_salt;         /* owned; only prompts of the same share pages. NULL: "" */
    enum ask_attention attention;
    const char **role; /* owned, [n_role] of the messages, for that */
    uint32_t n_role;
    char **said;     /* owned, [n_said] texts around the documents, which are found when these */
    uint32_t n_said; /*   are joined; n_before of them stand before the documents */
    uint32_t n_before;
    bool audit; /* what it read is held against dense attention, and told of */
    bool logprobs;
    uint32_t n_top; /* likeliest tokens shown beside each */
    bool stream, include_usage, progress, token_ids, echo, ignore_eos, timings;
};

void ask_deinit(struct ask *a);

/* All fields that routes share, from the body `o`, which is an object. */
sac_status ask_read(struct ask *a, const cJSON *o, const struct ask_rules *rules,
                    struct refusal *ref);
/* Adds a prompt whose tokens now belong to `a` (freed if it is refused): its ids and its length
 * are checked. */
sac_status ask_add_prompt(struct ask *a, int32_t *tok, size_t n, const struct ask_rules *rules,
                          struct refusal *ref);
/* With documents: they stand behind the last prompt's head, which is checked and noted. `system`
 * (or NULL) is the first message's text; `raw`: there is no template. */
sac_status ask_find_head(struct ask *a, const char *system, bool raw, const struct ask_rules *rules,
                         struct refusal *ref);
/* Finds the texts [n_text] in the last prompt, if the answer's reading is kept. With documents the
 * prompt is not whole yet: the texts are noted. */
sac_status ask_find_passages(struct ask *a, const struct passages_document *text, size_t n_text,
                             const struct ask_rules *rules, struct refusal *ref);

/* ---- Single fields: SAC_OK and `*out` unchanged where the field is missing or null ---- */

sac_status ask_bool(const cJSON *o, const char *name, bool *out, struct refusal *ref);
sac_status ask_u32(const cJSON *o, const char *name, uint32_t min, uint32_t max, uint32_t *out,
                   struct refusal *ref);
/* NULL or the text, which the JSON owns. */
sac_status ask_text(const cJSON *o, const char *name, const char **out, struct refusal *ref);
/* "cache_salt" */
sac_status ask_salt(struct ask *a, const cJSON *o, struct refusal *ref);
/* "stop": a text or a list of texts. `name` is the field's. */
sac_status ask_stop(struct ask *a, const cJSON *o, const char *name, struct refusal *ref);

#endif
