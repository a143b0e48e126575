/* saccade.h: the public C API of Saccade, a long-context LLM inference engine.
 *
 * Order of use: load a model (`sac_model_load`), convert text to tokens (`sac_tokenize`,
 * `sac_chat_apply`), create an engine (`sac_engine_create`), which owns the KV pages, then use
 * either requests (`sac_submit`, `sac_run`: prompt in, events out) or bare sequences
 * (`sac_seq_append`, `sac_step`: tokens in, logits out). One engine can do both.
 *
 * Contract of every function, unless it says otherwise:
 *  - Pointers are not NULL. `err` may be NULL; otherwise it gets one line that names the file, key
 *    or value that was wrong. Outputs are written on SAC_OK only.
 *  - Strings are UTF-8; lengths are bytes. Token ids are int32_t, positions count from 0.
 *  - A model is immutable after load and may be shared by threads and engines. An engine belongs to
 *    one thread at a time. Nothing is process-global except registered methods.
 *  - A `*_free` accepts NULL. An engine must be freed before its model. */
#ifndef SACCADE_H
#define SACCADE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SAC_VERSION_MAJOR 0
#define SAC_VERSION_MINOR 1
#define SAC_VERSION_PATCH 0

#if defined(__GNUC__)
#define SAC_API       __attribute__((visibility("default")))
#define SAC_NODISCARD __attribute__((warn_unused_result))
#else
#define SAC_API
#define SAC_NODISCARD
#endif

/* ---- Status ---- */

typedef enum sac_status {
    SAC_OK = 0,
    SAC_ERR_ARG,         /* an argument, flag or parameter value is out of range */
    SAC_ERR_NOT_FOUND,   /* a file, key, tensor or id that should exist does not */
    SAC_ERR_FORMAT,      /* a file or text breaks its format */
    SAC_ERR_UNSUPPORTED, /* well formed, but of a kind that is not built in */
    SAC_ERR_IO,          /* the system refused a read or write */
    SAC_ERR_MEMORY,      /* out of memory; only at load and create */
    SAC_ERR_CONTEXT,     /* more tokens than the context or the KV pool holds */
    SAC_ERR_CANCELLED,   /* a callback requested a stop */
    SAC_ERR_BUSY,        /* all places are taken; try again later */
} sac_status;

typedef struct sac_error {
    char msg[512]; /* one line, NUL terminated, without a newline */
} sac_error;

SAC_API const char *sac_status_name(sac_status status);
SAC_API const char *sac_version(void);

/* Frees memory that the library returned to the caller ("owned"). */
SAC_API void sac_free(void *owned);

/* ---- Model ---- */

typedef struct sac_model sac_model;

/* Called between pieces of long work with the share done, 0 to 1; true requests a stop. */
typedef bool (*sac_progress_fn)(void *user, double share);

typedef enum sac_rope_scaling {
    SAC_ROPE_MODEL = 0, /* as in the file */
    SAC_ROPE_NONE,
    SAC_ROPE_LINEAR,
    SAC_ROPE_YARN,
} sac_rope_scaling;

typedef struct sac_model_params {
    uint32_t n_threads;     /* for loading; 0: one per CPU of the affinity mask */
    const char *pre;        /* pre-tokenizer instead of the file's, or NULL */
    sac_rope_scaling rope;  /* instead of the file's scaling */
    float rope_scale;       /* context factor of linear and YaRN; 0: the file's, if any */
    float rope_freq_base;   /* 0: the file's */
    uint32_t yarn_orig_ctx; /* trained context length; 0: the file's */
    bool screen; /* keep a compact form of the output matrix beside it, where that is worth its
                    memory: sac_seq_use_top (default: true) */
    sac_progress_fn progress; /* or NULL */
    void *progress_user;
} sac_model_params;

typedef struct sac_model_info { /* n_ff: with experts, the channels that one token goes through */
    const char *name, *arch, *file_type; /* owned by the model */
    uint32_t n_layer, n_embd, n_ff, n_head, n_kv_head, head_dim, n_vocab, n_ctx_train;
    uint32_t n_window_layer, window; /* layers with a sliding window of `window` tokens; 0: none */
    uint64_t n_params;
    uint64_t file_bytes;   /* all parts of the file */
    uint64_t weight_bytes; /* resident after loading */
} sac_model_info;

SAC_API sac_model_params sac_model_params_default(void);
SAC_API SAC_NODISCARD sac_status sac_model_load(sac_model **out, const char *path,
                                                const sac_model_params *params, sac_error *err);
SAC_API void sac_model_free(sac_model *model);
SAC_API sac_model_info sac_model_get_info(const sac_model *model);

/* ---- Files: what a GGUF file contains, without loading a model ---- */

enum {
    SAC_FILE_JSON = 1, /* one JSON object instead of readable text */
    SAC_FILE_FULL = 2, /* long arrays (and, in text, long strings) are not shortened */
};

/* Describes keys and tensors of a file and of all parts of a split model. `*out_text`: sac_free. */
SAC_API SAC_NODISCARD sac_status sac_file_describe(const char *path, unsigned flags,
                                                   char **out_text, sac_error *err);
/* Reads the whole file and reports counts if nothing is wrong: format and sizes are checked as at
 * load, and every weight must be finite. Otherwise `err` says what is wrong. */
SAC_API SAC_NODISCARD sac_status sac_file_check(const char *path, unsigned flags, char **out_text,
                                                sac_error *err);

/* ---- Text and tokens ---- */

enum {
    SAC_TOK_ADD_SPECIAL = 1,   /* add BOS (and EOS) where the model's file asks for it */
    SAC_TOK_PARSE_SPECIAL = 2, /* control tokens written in the text become their ids */
};

/* Encodes `n_bytes` of `text`. The caller owns `*out_tok` (sac_free). Any bytes are accepted. */
SAC_API SAC_NODISCARD sac_status sac_tokenize(const sac_model *model, const char *text,
                                              size_t n_bytes, unsigned flags, int32_t **out_tok,
                                              size_t *out_n, sac_error *err);
/* The bytes of one token (owned by the model, not NUL terminated); "" for an id out of range and,
 * unless `special`, for control tokens. A piece may end inside a UTF-8 character. */
SAC_API const char *sac_token_piece(const sac_model *model, int32_t tok, bool special,
                                    size_t *out_bytes);
/* Decodes tokens to text; the caller owns `*out_text`, which is NUL terminated. */
SAC_API SAC_NODISCARD sac_status sac_detokenize(const sac_model *model, const int32_t *tok,
                                                size_t n, bool special, char **out_text,
                                                size_t *out_bytes, sac_error *err);
SAC_API bool sac_token_is_eog(const sac_model *model, int32_t tok); /* ends a generation */
SAC_API int32_t sac_token_bos(const sac_model *model);              /* -1: the model has none */

typedef struct sac_message {
    const char *role;       /* "system", "user", "assistant", "tool" */
    const char *content;    /* may be NULL for an assistant message that only calls tools */
    const char *extra_json; /* further fields as one JSON object (tool_calls, name, ...), or NULL */
} sac_message;

typedef struct sac_chat_params {
    const char *chat_template; /* template text or a built-in's name; NULL: the model's own */
    const char *tools_json;    /* JSON array of tool definitions, or NULL */
    const char *vars_json;     /* further template variables as a JSON object, or NULL */
    bool add_generation_prompt;
    bool continue_last; /* the answer's turn is open and begins with the last message's text */
} sac_chat_params;

/* Renders messages with the chat template; the caller owns `*out_text`. Templates are untrusted
 * input: steps, depth and output are limited. */
SAC_API SAC_NODISCARD sac_status sac_chat_apply(const sac_model *model, const sac_message *msgs,
                                                size_t n_msg, const sac_chat_params *params,
                                                char **out_text, sac_error *err);
/* Renders like sac_chat_apply and encodes the result, with BOS where the model wants one. Control
 * tokens of the template become their ids. Those spelled out in messages or tools stay text, so no
 * document and no user can end a turn. The caller owns `*out_tok`. */
SAC_API SAC_NODISCARD sac_status sac_chat_tokens(const sac_model *model, const sac_message *msgs,
                                                 size_t n_msg, const sac_chat_params *params,
                                                 int32_t **out_tok, size_t *out_n, sac_error *err);

/* ---- Engine ---- */

typedef struct sac_engine sac_engine;

typedef enum sac_kv_type {
    SAC_KV_F16 = 0,
    SAC_KV_BF16,
    SAC_KV_Q8, /* sealed pages: K int8 with one (min, step) per channel, V int8 in blocks along d */
} sac_kv_type;
SAC_API const char *sac_kv_type_name(sac_kv_type type); /* "f16", "bf16", "q8" */
#define SAC_METHODS_MAX 32u /* methods of one kind per engine, at most */
#define SAC_PAGE_TOK    32u /* tokens of a KV page; texts share whole pages */

typedef struct sac_engine_params {
    uint32_t n_ctx;     /* maximum tokens of one sequence; 0: the model's trained context */
    uint32_t n_seq_max; /* sequences alive at once */
    uint64_t n_kv_tok;  /* tokens in the shared page pool; 0: n_ctx * n_seq_max */
    uint32_t n_batch;   /* rows of one step, at most; prefill methods have room for one more of each
                           other sequence. 0: 512 to 2,048, by threads, device and any_chunk */
    uint32_t n_threads; /* 0: one per CPU of the affinity mask */
    sac_kv_type type_k, type_v; /* 16-bit types may be mixed; q8 requires q8 for both */
    const char *const *decode;  /* [n_decode] decode methods, "NAME:key=value,..."; none: "full" */
    uint32_t n_decode;          /* at most SAC_METHODS_MAX */
    const char *const *prefill; /* [n_prefill] prefill methods; none: "dense". All are copied */
    uint32_t n_prefill;         /* at most SAC_METHODS_MAX */
    uint32_t sparse_min_ctx;    /* rows at positions below it use dense attention */
    uint32_t n_request_max; /* waiting or running; then sac_submit returns SAC_ERR_BUSY; 0: any */
    float tbt_target_ms; /* target time between tokens: a step with decode rows takes no more prompt
                            rows than fit in it; 0: as many as n_batch. A few rows at times if these
                            take too long, or a planning method's chunk. No result changes */
    bool compose;        /* plan memory for sac_compose */
    bool record, watch;  /* the same for sac_engine_set_recorder, for sac_request.on_read */
    bool learn; /* prefill methods with a table of heads learn it from prompts, read densely */
    /* Keeps pages of dense prompts in an index by content while there is room. Any sequence whose
     * prompt starts with the same tokens reuses them, with the same bits and less computation. Not
     * with `record` or `learn`, which must see all rows. Default: off. */
    bool prefix_cache;
    const char *device; /* "cpu" or NULL; "cuda", "cuda:N"; "cuda:0,cuda:1" (docs/gpu.md). Copied */
    const float *device_split; /* [n_device_split] shares of the layers; NULL: by free memory */
    bool device_rows; /* each of several GPUs computes a share of every layer: some of its heads */
    uint32_t n_device_split, n_device_layer; /* its layers, the last; 0, or more: all, and output */
    bool kv_on_host;    /* keys and values are in host memory, and the CPU computes attention */
    float device_share; /* share of a GPU's free memory to use, f16 weights coming last; 0: 0.9 */
    const struct sac_tier_params *tier; /* saccade_tier.h; NULL: all pages are in memory */
} sac_engine_params;

SAC_API sac_engine_params sac_engine_params_default(void);
/* Plans and allocates all memory that steps will use; a step allocates nothing. */
SAC_API SAC_NODISCARD sac_status sac_engine_create(sac_engine **out, const sac_model *model,
                                                   const sac_engine_params *params, sac_error *err);
SAC_API void sac_engine_free(sac_engine *engine);
/* The parameters in effect, with defaults filled in. */
SAC_API sac_engine_params sac_engine_get_params(const sac_engine *engine);

/* What rows have read, and the results of their methods' selections: for all rows of an engine, or
 * of a request. Those of an engine's requests and of its other sequences add up to the engine's. */
typedef struct sac_reads {
    uint64_t n_prompt_tok, n_decode_tok; /* rows computed so far, by kind */
    uint64_t n_reused_tok, n_disk_tok;   /* prompt tokens found in the index; of these, on disk */
    uint64_t kv_bytes_read; /* K and V read by attention so far; for prompt rows once a tile */
    /* For decode rows: bytes read, in touched cache lines of 64 bytes. Each pass over data counts
     * its lines once, and two passes over the same data count twice, whatever a cache holds. Not
     * counted: weights, queries, results of the step itself (scores), and words that represent a
     * page (tables, masks). docs/fairness.md has the full rule.
     *  attend: keys and values read by attention in all layers; part of kv_bytes_read;
     *  choose: what methods read to select for the current row: side data, keys, tables;
     *  build:  what they read for more than one row: tables, votes, coordinates, means;
     *  dense:  what dense attention would have read. */
    uint64_t attend_bytes_read, choose_bytes_read, build_bytes_read, dense_bytes;
    uint64_t n_select;        /* selections: one per decode row, layer and KV head that asked */
    uint64_t n_select_dense;  /* of these: everything was read */
    uint64_t n_select_nan;    /* of these: because of a NaN or infinity in a query or key */
    uint64_t n_bypass;        /* query heads of selections that read little, the rest estimated */
    uint64_t n_select_proved; /* of these: came with a proof of the softmax mass read */
    double mass_proved;       /* sum of the shares proved */
    /* For the same selections, resulting bounds of |output - dense output| / |output|, without
     * rounding errors of the arithmetic, 1 for a zero output: their sum and the largest. */
    double out_bound, out_bound_max;
    uint64_t n_page_dropped;         /* freed by methods that evict */
    uint64_t n_tok_seen, n_tok_read; /* by decode rows: tokens before the own page; those read */
    uint64_t n_tok_chosen; /* of these: by score, not always read; none where all were read */
    /* Prompt rows in layers without a window: pairs of a row and a key that it may see, over all
     * query heads, and the pairs computed. */
    uint64_t n_cell, n_cell_read;
    uint64_t n_plan;       /* lists made: one per tile of rows, layer and KV head (or query head) */
    uint64_t n_plan_dense; /* of these: everything is read */
    uint64_t n_plan_past;  /* of these: because the method cannot continue from earlier tokens */
    uint64_t n_plan_nan;   /* of these: because of a NaN or infinity in a query or key */
    uint64_t n_plan_overflow; /* of these: because of too many single tokens */
    double plan_mass;     /* sum of the estimated softmax mass kept, by methods that estimate it */
    uint64_t n_plan_mass; /* estimates in that sum */
} sac_reads;

/* Why no more pages of a prompt were taken from the index (sac_engine_params.prefix_cache). */
typedef enum sac_reuse_end {
    SAC_REUSE_OFF = 0, /* there is no index */
    SAC_REUSE_ALL,     /* everything that may be taken was there; a last part is always computed */
    SAC_REUSE_SHORT,   /* the prompt is no longer than a page */
    SAC_REUSE_NEW,     /* no text with this prefix and salt is there (any more) */
    SAC_REUSE_DIFFERS, /* one is, but continues differently */
    SAC_REUSE_METHOD,  /* a prefill method plans, so results depend on the whole prompt */
    SAC_REUSE_QUERIES, /* a decode method of the engine needs the queries of this many last rows */
    SAC_REUSE_LOGITS,  /* logits of prompt rows were requested, which must be computed for that */
    SAC_REUSE_PAST,    /* it starts inside a page, or after answered, loaded or evicted tokens */
    SAC_REUSE_ENDS,
} sac_reuse_end;

SAC_API const char *sac_reuse_end_text(sac_reuse_end end); /* the same in words */

typedef struct sac_engine_stats {
    uint64_t n_step;
    sac_reads reads;         /* of all rows */
    uint64_t kv_bytes;       /* the pool and the tails, as planned */
    uint64_t kv_bytes_used;  /* in pages held by sequences, and tails */
    uint64_t kv_bytes_kept;  /* in pages kept for reuse; freed if room is needed */
    uint64_t scratch_bytes;  /* planned for steps */
    uint64_t side_bytes;     /* planned for side data and state of methods */
    uint64_t n_cell_skipped; /* of reads.n_cell_read: too small to add their values (sparge:skip) */
    uint64_t weight_bytes_read;
    uint64_t n_logit, n_logit_computed;    /* logits that rows requested; those computed in full */
    uint64_t linear_us, attn_us, other_us; /* wall time of steps, by stage */
    uint64_t select_us, plan_us; /* of attn_us: selection by decode methods, planning of prefill */
    uint32_t n_request_waiting, n_request_running;
    uint64_t n_preempted;                     /* times that a request gave its pages to others */
    uint64_t n_page, n_page_free, page_bytes; /* free: including those kept for reuse */
    uint64_t n_reuse_end[SAC_REUSE_ENDS];     /* prompts looked up in the index, by what ended
                                                 the match; tokens are in reads.n_reused_tok */
    uint64_t n_reuse_evicted; /* page indices evicted from the index for lack of room */
    const char *isa;          /* the op table in use: "ref", "avx2", "avx512", "amx" */
} sac_engine_stats;

SAC_API sac_engine_stats sac_engine_get_stats(const sac_engine *engine);

/* ---- Sequences: tokens in, logits out ---- */

typedef uint32_t sac_seq;
#define SAC_SEQ_NONE UINT32_MAX

/* How a row is computed. The kind is a property of the row, never of the batch, so that results do
 * not depend on what else is in a step. */
typedef enum sac_row_kind {
    SAC_ROW_PROMPT = 0, /* wide kernels: many rows at once */
    SAC_ROW_DECODE,     /* narrow kernels: one row of a sequence per step */
} sac_row_kind;

typedef enum sac_want { SAC_WANT_NONE = 0, SAC_WANT_LAST, SAC_WANT_ALL, SAC_WANT_STATES } sac_want;

SAC_API SAC_NODISCARD sac_status sac_seq_create(sac_engine *engine, sac_seq *out, sac_error *err);
/* A new sequence with the same tokens. Sealed pages are shared, the unsealed tail is copied. The
 * source must have no pending tokens. */
SAC_API SAC_NODISCARD sac_status sac_seq_fork(sac_engine *engine, sac_seq src, sac_seq *out,
                                              sac_error *err);
/* Keeps the first `n_tok` tokens, counting pending ones. Cutting into a sealed q8 page keeps the
 * rounded values of its first tokens. */
SAC_API SAC_NODISCARD sac_status sac_seq_truncate(sac_engine *engine, sac_seq seq, uint32_t n_tok,
                                                  sac_error *err);
SAC_API void sac_seq_remove(sac_engine *engine, sac_seq seq);
/* From the next step on, decode rows of the sequence use the engine's method `decode_i`, an index
 * into `params.decode`. A new sequence uses 0, a fork its source's. What another method had learned
 * is discarded; one that has evicted tokens cannot be replaced. */
SAC_API SAC_NODISCARD sac_status sac_seq_use_decode(sac_engine *engine, sac_seq seq,
                                                    uint32_t decode_i, sac_error *err);
/* The same for its prompt rows, an index into `params.prefill`. */
SAC_API SAC_NODISCARD sac_status sac_seq_use_prefill(sac_engine *engine, sac_seq seq,
                                                     uint32_t prefill_i, sac_error *err);
/* Pages of an empty sequence are found only by others of the same salt, and it finds only theirs:
 * with one salt per tenant, timings tell none what others asked. NULL, the default: "". */
SAC_API SAC_NODISCARD sac_status sac_seq_use_salt(sac_engine *engine, sac_seq seq, const char *salt,
                                                  sac_error *err);
/* Settings of sparse attention that differ from those of the engine. Zeros: the engine's. */
typedef struct sac_sparse {
    float mass;         /* the methods' parameter `mass`: share of the attention to keep */
    const char *budget; /* the methods' parameter `budget`: "1024" tokens, or "5%" of the context */
    uint32_t min_ctx;   /* dense attention at positions below it; 1: no row for that reason */
    bool dense;         /* all rows use dense attention, with its bits */
} sac_sparse;

/* From the next step on, rows of the sequence use these settings; a fork inherits them. Mass and
 * budget apply to those of its two methods that have such a parameter. SAC_ERR_ARG, with the
 * method's name, if none has it, or if the value needs more memory than the engine has planned.
 * What a method had learned with other values is discarded; one that has evicted tokens keeps its
 * values. A change of methods resets mass and budget. */
SAC_API SAC_NODISCARD sac_status sac_seq_use_sparse(sac_engine *engine, sac_seq seq,
                                                    const sac_sparse *sparse, sac_error *err);
/* Rows of the sequence return the exact logits of at least the `n_top` largest, including all ties
 * with the last of them, and -INFINITY for the rest; 0, the default: all. A fork inherits this. It
 * spares generation most of the output matrix: logits that a compact form of it shows to be smaller
 * are not computed, and returned logits do not differ. Requests do this themselves if their
 * sampling needs no more. */
SAC_API SAC_NODISCARD sac_status sac_seq_use_top(sac_engine *engine, sac_seq seq, uint32_t n_top,
                                                 sac_error *err);
/* Tokens computed; `*out_pending` (or NULL) gets the number appended but not yet computed. */
SAC_API uint32_t sac_seq_length(const sac_engine *engine, sac_seq seq, uint32_t *out_pending);
/* The tokens of a sequence, computed ones followed by pending ones; owned by the engine, valid
 * until the sequence changes. NULL: there is no such sequence. */
SAC_API const int32_t *sac_seq_tokens(const sac_engine *engine, sac_seq seq);
/* What its rows have read since the last call, except for rows of requests. */
SAC_API sac_reads sac_seq_take_reads(sac_engine *engine, sac_seq seq);

/* Queues tokens after those of the sequence. SAC_ERR_CONTEXT, with both counts in `err`, if they do
 * not fit the context; then nothing is queued. SAC_WANT_STATES: all rows return their hidden states
 * behind the final norm instead of logits; SAC_ERR_UNSUPPORTED if a GPU computes that. */
SAC_API SAC_NODISCARD sac_status sac_seq_append(sac_engine *engine, sac_seq seq, const int32_t *tok,
                                                size_t n, sac_row_kind kind, sac_want want,
                                                sac_error *err);

/* One row's logits, valid only during the callback; `logits` is [n_vocab] and may be changed. If
 * few are known (sac_seq_use_top), `top` may list their tokens, ascending; others are -INFINITY. */
typedef struct sac_row {
    sac_seq seq;
    uint32_t pos, n_top;
    int32_t tok;
    float *logits;
    const int32_t *top; /* [n_top], or NULL */
    const float *state; /* [n_embd] of SAC_WANT_STATES; else NULL, and `logits` is not */
} sac_row;
typedef void (*sac_row_fn)(void *user, const sac_row *row);

/* Computes one batch of pending rows: decode rows of all sequences first, then prompt chunks in
 * queue order; rows of requests are left to sac_run. `*out_n` (or NULL) gets the number of rows
 * computed, 0 if none is pending. SAC_ERR_CONTEXT if the shared pool has no page for any pending
 * row: nothing is lost, remove or truncate a sequence and step again. */
SAC_API SAC_NODISCARD sac_status sac_step(sac_engine *engine, sac_row_fn on_row, void *user,
                                          uint32_t *out_n, sac_error *err);

/* ---- Sequences on disk: compute a long text once, ask about it many times ---- */

/* A state is everything that an engine knows about a sequence: its tokens, keys and values, and
 * what its methods have learned about it. A loaded sequence continues with the same bits as the
 * saved one. Samplers are not part of it. The format is specific to this version and little-endian;
 * a state belongs to one model, one kind of position scaling, and one KV type.
 *
 * Saves a sequence without pending tokens. The file is written completely, or left as it was. */
SAC_API SAC_NODISCARD sac_status sac_seq_save(sac_engine *engine, sac_seq seq, const char *path,
                                              sac_error *err);
/* Creates a sequence from a file, which may come from anywhere: truncated or damaged files, and
 * those of another model or unusable by this engine, are rejected with the reason. The sequence
 * uses the engine's methods with the specifications that it was saved with. If the engine has none
 * such, it uses method 0, which starts without learned state; that is rejected if tokens were
 * evicted, or if the method learns from queries that the state does not contain. */
SAC_API SAC_NODISCARD sac_status sac_seq_load(sac_engine *engine, const char *path, sac_seq *out,
                                              sac_error *err);
/* The same in memory; the caller owns `*out` [*out_n] (sac_free). */
SAC_API SAC_NODISCARD sac_status sac_seq_to_bytes(sac_engine *engine, sac_seq seq, uint8_t **out,
                                                  size_t *out_n, sac_error *err);
SAC_API SAC_NODISCARD sac_status sac_seq_from_bytes(sac_engine *engine, const uint8_t *bytes,
                                                    size_t n, sac_seq *out, sac_error *err);

typedef struct sac_state_info {
    uint32_t n_tok;
    uint32_t n_ctx; /* of the engine that saved it */
    sac_kv_type type_k, type_v;
    uint64_t bytes;
    char decode[256], prefill[256]; /* methods, "NAME:key=value,..." */
} sac_state_info;

/* Reads the header of a state's file, before there is an engine for it. */
SAC_API SAC_NODISCARD sac_status sac_state_get_info(sac_state_info *out, const char *path,
                                                    sac_error *err);

/* ---- Documents: texts that are computed once and used in many prompts ---- */

/* A store is a folder of documents, each with its tokens, keys and values, computed alone after the
 * tokens with which a prompt begins (its `head`: BOS, the first lines of a chat). Head and text are
 * each padded with newlines to whole pages, which prompts share. Programs may share a store; a
 * process opens a folder once at a time. A document belongs to one model, kind of position scaling
 * and KV type, within which its name is unique. It is completely on disk, or not at all. */
typedef struct sac_docs sac_docs;

typedef struct sac_docs_params {
    const char *salt; /* documents of another salt are neither visible nor shared; NULL: none */
    bool only_read;   /* change nothing; automatic if the folder is not writable */
} sac_docs_params;

typedef struct sac_doc {
    char name[256], model[64], tags[128];
    char id[65];       /* SHA-256 of model, KV type, prefill method, salt and tokens, in hex */
    uint64_t model_id; /* equal for models that compute the same keys and values for a token */
    sac_kv_type type_k, type_v;
    uint32_t n_tok, n_head; /* tokens, including its head; tokens of the head; both padded */
    uint64_t bytes;         /* of its file */
    int64_t created, used, expires; /* seconds since 1970; expires 0: never */
    bool pinned;                    /* sac_docs_collect does not remove it to make room */
} sac_doc;

typedef struct sac_doc_source {
    const char *name;    /* no commas, control characters or outer blanks; 200 bytes at most */
    const char *tags;    /* for people and scripts, or NULL; 127 bytes at most */
    const int32_t *head; /* [n_head] what the prompt begins with; there may be none */
    size_t n_head;
    const int32_t *tok; /* [n_tok] the text, at least a token */
    size_t n_tok;
    int64_t seconds; /* lifetime; 0: unlimited */
    bool pin;
    sac_progress_fn progress; /* or NULL; true cancels, and nothing is stored */
    void *user;
} sac_doc_source;

SAC_API SAC_NODISCARD sac_status sac_docs_open(sac_docs **out, const char *dir,
                                               const sac_docs_params *params, sac_error *err);
SAC_API void sac_docs_close(sac_docs *docs);
/* Continues as if opened with this salt. */
SAC_API SAC_NODISCARD sac_status sac_docs_use_salt(sac_docs *d, const char *salt, sac_error *err);
/* Computes a document in a free sequence, with prefill method 0, and stores it under its name; an
 * existing one is not computed again. Other sequences wait, unless `progress` calls sac_run. */
SAC_API SAC_NODISCARD sac_status sac_doc_add(sac_docs *docs, sac_engine *engine,
                                             const sac_doc_source *source, sac_doc *out,
                                             bool *out_was_there, sac_error *err);
/* All documents; the caller owns `*out` [*out_n] (sac_free). */
SAC_API SAC_NODISCARD sac_status sac_doc_list(sac_docs *docs, sac_doc **out, size_t *out_n,
                                              sac_error *err);
/* The document of this name that an engine of the model with these parameters could use. */
SAC_API SAC_NODISCARD sac_status sac_doc_find(sac_docs *docs, const sac_model *model,
                                              const sac_engine_params *params, const char *name,
                                              sac_doc *out, sac_error *err);
/* A new sequence that contains the document and its head. An engine with `compose` keeps the pages
 * for the next call while there is room. The file is untrusted input. */
SAC_API SAC_NODISCARD sac_status sac_doc_load(sac_docs *docs, sac_engine *engine, const char *name,
                                              sac_seq *out, sac_doc *out_doc, sac_error *err);
SAC_API void sac_docs_forget(sac_engine *engine); /* they will be read again */
/* Reads the whole file and reports what is wrong with it. */
SAC_API SAC_NODISCARD sac_status sac_doc_verify(sac_docs *docs, const sac_doc *doc, sac_error *err);
SAC_API SAC_NODISCARD sac_status sac_doc_remove(sac_docs *docs, const sac_doc *doc, sac_error *err);

typedef struct sac_compose_params {
    const char *method; /* of kind "context", "NAME:key=value,..." */
    const sac_seq *doc; /* [n_doc] from sac_doc_load, in their order in the prompt */
    size_t n_doc;
    uint32_t n_head, decode; /* of every document; as in sac_seq_use_decode, of the new sequence */
    const int32_t *question; /* [n_question] what will be appended, for methods that select by it */
    size_t n_question;
    sac_progress_fn progress; /* or NULL */
    void *user;
} sac_compose_params;

typedef struct sac_compose_report {
    uint32_t n_tok, decode; /* of the documents, without the head; the method now in use */
    uint64_t n_row;         /* pairs of a token and a layer that were recomputed */
    /* Shares of all pairs of a document's token and a layer: those that can be read, and those that
     * were recomputed. */
    double resident_share, recomputed_share;
    uint64_t bytes; /* of pages owned by the new sequence */
    /* Sharing pages; probing with the question; recomputing. */
    double join_ms, probe_ms, refresh_ms;
} sac_compose_report;

/* Creates a sequence from the head followed by the documents. Their pages are shared, not copied;
 * queries are rotated to meet keys of other positions. What the method recomputes goes to pages of
 * the sequence's own, and the documents stay unchanged. A question is appended as to any sequence.
 * The engine must have been created with `compose`. `report` may be NULL. For pending tokens and
 * `progress` see sac_doc_add. */
SAC_API SAC_NODISCARD sac_status sac_compose(sac_engine *engine, const sac_compose_params *params,
                                             sac_seq *out, sac_compose_report *report,
                                             sac_error *err);
/* For the first whole pages of two sequences: |values - exact| / |exact|, or NAN, per layer. */
SAC_API SAC_NODISCARD sac_status sac_seq_compare(const sac_engine *engine, sac_seq seq,
                                                 sac_seq exact, uint32_t n_tok, double *out,
                                                 sac_error *err);

typedef struct sac_docs_freed {
    uint32_t n_expired, n_evicted; /* documents: expired; the least recently used */
    uint32_t n_lost, n_stray;      /* names without a file; files without a name */
    uint64_t bytes;
} sac_docs_freed;
/* Removes what has expired or was left by killed processes; then, while the files have more than
 * `bytes_max` bytes (0: no limit), the least recently used documents, to the minute. */
SAC_API SAC_NODISCARD sac_status sac_docs_collect(sac_docs *docs, uint64_t bytes_max,
                                                  sac_docs_freed *out, sac_error *err);

/* ---- Recording: what attention read, and what it should have read ---- */

/* Attention of one layer and KV head, for one decode row or for a tile of prompt rows: the rows of
 * a step whose positions are in one page. Page i holds positions from SAC_PAGE_TOK * i on. The
 * reference is exact dense attention of the same queries over the same stored keys and values
 * (within the window of a layer that has one), computed in addition and not included in times. */
typedef struct sac_read_record {
    sac_seq seq;
    sac_row_kind kind;
    uint32_t pos, n_row; /* the first row's position; rows of the tile, 1 for decode */
    uint32_t layer, kv_head;
    uint32_t n_page, n_page_read; /* pages up to the rows' own; pages read, fully or partly */
    /* Tokens of pages before the own one: those that dense attention would have read for the rows,
     * and those that were read, for any of the query heads. */
    uint32_t n_tok_seen, n_tok_read;
    const uint32_t *page;   /* [n_page_read] ascending; always includes the own page */
    const float *page_mass; /* [n_page] dense softmax mass, mean over rows and query heads */
    float mass;             /* dense softmax mass of the tokens read */
    float mass_proved;      /* the part of it that the method has proved for every head; 0: none */
    /* Relative to the exact output over the tokens that were read: the distance of the reference,
     * and its bound by the proof. Without rounding errors of kernels. */
    float out_left, out_bound;
    float out_err; /* |output - reference| / |reference|, of all rows and query heads */
    /* Read, a page once for all rows and query heads, in whole cache lines; side: by the method of
     * a decode row, to select and to build (sac_engine_stats). */
    uint64_t k_bytes, v_bytes, side_bytes;
    float select_us, attend_us; /* this record's part of the layer's wall time, by bytes */
    const float *out; /* the method's output: row r at out + r * out_stride, [n_query, head_dim] */
    size_t out_stride;
    uint32_t n_query;      /* query heads of this KV head */
    const float *tok_mass; /* [pos + 1] page_mass token by token; NULL unless n_row is 1 */
} sac_read_record;
/* Pointers are valid only during the call. It must not call the engine. */
typedef void (*sac_read_fn)(void *user, const sac_read_record *record);

/* From the next step on `fn` gets a record for every decode row and prompt tile, layer and KV head,
 * ordered by layer, then by row, then by KV head. NULL turns it off. Results do not change; steps
 * take longer. SAC_ERR_ARG if the engine was created without `record`. */
SAC_API SAC_NODISCARD sac_status sac_engine_set_recorder(sac_engine *engine, sac_read_fn fn,
                                                         void *user, sac_error *err);

/* ---- Tables of heads: what a prefill method knows about a model in advance ---- */

/* What the method `prefill_i` has learned from the prompts so far, in the format of the file named
 * by its parameter of type SAC_PARAM_FILE. The caller owns `*out_text` (sac_free). SAC_ERR_ARG if
 * the engine was created without `learn`, or the method has no table; SAC_ERR_CONTEXT if the
 * prompts were too short to learn from. */
SAC_API SAC_NODISCARD sac_status sac_engine_get_table(const sac_engine *engine, uint32_t prefill_i,
                                                      char **out_text, sac_error *err);

/* ---- Sampling ---- */

typedef struct sac_logit_bias {
    int32_t tok;
    float bias; /* -INFINITY bans the token */
} sac_logit_bias;

typedef struct sac_sampling {
    float temp;              /* <= 0: greedy */
    int32_t top_k;           /* <= 0: off */
    float top_p;             /* >= 1: off */
    float min_p;             /* <= 0: off */
    float typical_p;         /* >= 1: off */
    float repeat_penalty;    /* 1: off */
    float frequency_penalty; /* 0: off */
    float presence_penalty;  /* 0: off */
    int32_t repeat_last_n;   /* tokens that penalties look back at; 0: off, -1: all */
    float dry_multiplier;    /* 0: off. The penalty of a token that continues a repetition of n */
    float dry_base;          /* tokens: multiplier * base^(n - dry_allowed_length), */
    int32_t dry_allowed_length;     /* if n is at least this */
    int32_t dry_last_n;             /* tokens to look back at, 1 to 4194304 */
    const char *const *dry_breaker; /* [n_dry_breaker], copied: texts at which a repetition ends */
    size_t n_dry_breaker;
    float xtc_probability; /* 0: off; how often the tokens with this probability */
    float xtc_threshold;   /* or more are removed, except the least likely of them */
    int32_t mirostat;      /* 0: off; 1 or 2, instead of top_k to xtc */
    float mirostat_tau;    /* target surprise in bits */
    float mirostat_eta;    /* learning rate */
    uint64_t seed;
    const sac_logit_bias *logit_bias; /* [n_logit_bias], copied */
    size_t n_logit_bias;
} sac_sampling;

typedef struct sac_prob {
    int32_t tok;
    float logprob; /* from the model, before the sampler changed it */
} sac_prob;

typedef struct sac_sampler sac_sampler;
SAC_API sac_sampling sac_sampling_default(void);
SAC_API SAC_NODISCARD sac_status sac_sampler_create(sac_sampler **out, const sac_model *model,
                                                    const sac_sampling *params, sac_error *err);
SAC_API void sac_sampler_free(sac_sampler *sampler);
/* Tells the sampler about a token of the text (prompt or sampled), for the penalties. */
SAC_API void sac_sampler_accept(sac_sampler *sampler, int32_t tok);
/* Samples a token from `logits` [n_vocab], which is overwritten; does not accept it. If n_probs >
 * 0, `out_probs` gets the likeliest tokens by the model, in descending order; entries beyond the
 * vocabulary get token -1. A NaN counts as -INFINITY. -1: all are, so none can be sampled. */
SAC_API int32_t sac_sampler_sample(sac_sampler *sampler, float *logits, sac_prob *out_probs,
                                   uint32_t n_probs);
/* The same for a row's logits: where few are known, it does not examine the others. */
SAC_API int32_t sac_sampler_sample_row(sac_sampler *sampler, const sac_row *row);

/* ---- Requests: prompt in, events out ---- */

typedef enum sac_event_kind {
    SAC_EVENT_PROMPT, /* part of the prompt was computed: n_prompt_done of n_prompt */
    SAC_EVENT_TOKEN,  /* a token was sampled */
    SAC_EVENT_DONE,   /* the request has ended; the last event of a request */
} sac_event_kind;

typedef enum sac_finish {
    SAC_FINISH_NONE = 0,
    SAC_FINISH_STOP,      /* an end-of-generation token, a stop token or a stop string */
    SAC_FINISH_LENGTH,    /* max_tokens or the end of the context */
    SAC_FINISH_CANCELLED, /* sac_cancel, or the callback returned true */
    SAC_FINISH_ERROR,     /* see `error` */
} sac_finish;

typedef struct sac_timings {
    /* Tokens. Cached: those of a continued sequence, and those of the prompt that came from the
     * index, n_reused; of these, n_disk were read from disk. */
    uint32_t n_cached, n_reused, n_disk, n_prompt, n_predicted;
    sac_reuse_end reuse_end;  /* why no more were reused */
    uint32_t n_preempted;     /* times that the request gave its pages to others */
    double queue_ms, held_ms; /* from sac_submit to computing; then, waiting to decode (tiers) */
    double prompt_ms, predicted_ms;       /* prompt: from there to the first token */
    double prompt_per_s, predicted_per_s; /* tokens per second, of those computed */
} sac_timings;

typedef struct sac_event {
    sac_event_kind kind;
    uint64_t request_id;
    sac_seq seq;
    uint32_t n_prompt, n_prompt_done;
    int32_t tok;
    float logprob;    /* of `tok`, by the model; only when the request asks for n_probs > 0 */
    const char *text; /* complete UTF-8 characters that are now certain, maybe none; stop strings
                         and possible beginnings of them are held back */
    size_t text_bytes;
    const sac_prob *probs; /* [n_probs] */
    uint32_t n_probs;
    sac_finish finish;
    sac_status status;        /* of SAC_FINISH_ERROR, whose words are in `error` */
    const char *stop, *error; /* stop: the stop string that matched, or NULL */
    sac_timings timings;      /* SAC_EVENT_TOKEN: so far; SAC_EVENT_DONE */
    sac_reads reads;          /* SAC_EVENT_DONE: of the request's rows, including recomputed ones */
} sac_event;
/* Called by sac_run after a step; it may submit and cancel. True cancels the request; if another
 * thread is to stop it, return a flag that it sets. */
typedef bool (*sac_event_fn)(void *user, const sac_event *event);

/* Constrains a request's tokens in addition to its sampling, for example by a grammar. All
 * functions are called within sac_run and must not call the engine; NULL: not called. */
typedef struct sac_guide {
    /* The tokens that may come next: bit t % 64 of word t / 64 stands for token t, for the whole
     * vocabulary; NULL: any. Called once before each token, and read until it is sampled. If no
     * permitted token has a finite logit, the request ends with an error. */
    const uint64_t *(*mask)(void *user);
    /* May change logits [n_vocab] before anything else does; reported probabilities are those of
     * the changed logits. With it all logits are computed, which takes longer. */
    void (*logits)(void *user, float *logits, uint32_t n_vocab);
    /* Called with each sampled token, before its event. */
    void (*chosen)(void *user, int32_t tok);
    void *user;
} sac_guide;

#define SAC_DECODE_KEEP  UINT32_MAX
#define SAC_PREFILL_KEEP UINT32_MAX

typedef struct sac_request {
    sac_seq seq; /* continue this sequence, which must not be used otherwise until the end, and keep
                    it (all logits again then); SAC_SEQ_NONE: a new one, removed afterwards */
    const int32_t *prompt; /* [n_prompt], appended to the sequence; copied */
    size_t n_prompt;
    uint32_t n_decode_row; /* so many of the prompt's last tokens are decode rows, which the decode
                              method serves: 1 (the default; the first token's) to all of them */
    sac_sampling sampling;
    int32_t priority;        /* higher ones start first, even replacing running lower ones, and are
                                preempted last; among equals the older ones */
    uint32_t max_tokens;     /* 0: up to the end of the context */
    uint32_t min_tokens;     /* until there are as many, only its guide ends the answer */
    const char *const *stop; /* [n_stop], copied */
    const int32_t *stop_tok; /* [n_stop_tok], copied: tokens that end it as the model's ends do */
    size_t n_stop, n_stop_tok;
    bool ignore_eos, keep_stop; /* keep_stop: the text includes what stopped it */
    uint32_t decode; /* as in sac_seq_use_decode; SAC_DECODE_KEEP (the default): that of a continued
                        sequence, 0 for a new one */
    uint32_t prefill;       /* the same, as in sac_seq_use_prefill; SAC_PREFILL_KEEP */
    const char *cache_salt; /* of a new sequence, as in sac_seq_use_salt; copied. Else NULL */
    sac_sparse sparse;      /* of this request, as in sac_seq_use_sparse; copied */
    uint32_t n_probs;
    sac_guide guide; /* copied; NULLs: none */
    /* Gets this request's decode rows (`watch`) like sac_engine_set_recorder's function, again
     * where rows are recomputed, none where a method has evicted tokens; NULL: none. */
    sac_read_fn on_read;
    sac_event_fn on_event; /* required */
    void *user;            /* of both */
} sac_request;

SAC_API sac_request sac_request_default(void);
/* Queues a request; SAC_ERR_CONTEXT with both counts if the prompt does not fit. */
SAC_API SAC_NODISCARD sac_status sac_submit(sac_engine *engine, const sac_request *request,
                                            uint64_t *out_id, sac_error *err);
SAC_API void sac_cancel(sac_engine *engine, uint64_t request_id); /* in the next sac_run */
/* One step of all requests, without results of bare sequences; `*out_active`: unfinished ones. */
SAC_API SAC_NODISCARD sac_status sac_run(sac_engine *engine, uint32_t *out_active, sac_error *err);

/* ---- Attention methods ---- */

typedef enum sac_param_type {
    SAC_PARAM_INT = 0, /* a whole number */
    SAC_PARAM_FLOAT,
    SAC_PARAM_BUDGET, /* tokens to read ("1024"), or a share of the context ("5%") */
    SAC_PARAM_CHOICE, /* one of `choices` */
    SAC_PARAM_FILE,   /* a path without commas */
    SAC_PARAM_TOKENS, /* a whole number of tokens */
    SAC_PARAM_SHARE,  /* a number from 0 to 1 */
    SAC_PARAM_FLAG,   /* "off" or "on", as `choices` says */
} sac_param_type;

typedef struct sac_method_param {
    const char *key;
    sac_param_type type;
    const char *value;   /* the default, as one would type it */
    double min, max;     /* of numbers, inclusive; of a budget: of its tokens */
    const char *choices; /* "first|second" */
    const char *help;    /* a sentence without a full stop */
} sac_method_param;

/* A difference between a method and its paper. Texts have neither a full stop nor a '|'. */
typedef struct sac_method_deviation {
    const char *paper, *here, *why;
    const char *effect; /* if known; NULL: not measured */
} sac_method_deviation;

typedef struct sac_method_info {
    const char *kind;                      /* "prefill", "decode" or "context" */
    const char *name;                      /* as the command line spells it */
    const char *summary;                   /* one line */
    const char *paper;                     /* where it is described, or NULL */
    const char *about;                     /* a paragraph: what it can find and what not, or NULL */
    const sac_method_param *param;         /* [n_param] */
    const sac_method_deviation *deviation; /* [n_deviation] */
    size_t n_param, n_deviation;
    bool chooses; /* a decode method: selects some of what it reads by score (n_tok_chosen) */
    /* A decode method learns from the prompt's last rows, or holds all of it, so a question belongs
     * in it (sac_request.n_decode_row 1); a context method selects by it. */
    bool needs_question;
    bool any_chunk;     /* a prefill method: prompts may be split at any multiple of 256 rows */
    bool any_backend;   /* runs on any backend; else by code of the CPU, its own or its decode's */
    const char *decode; /* of a context method: the decode method that it requires, or NULL */
} sac_method_info;

/* The i-th method: built-in ones, then registered ones; false after the last. */
SAC_API bool sac_method_at(size_t i, sac_method_info *out);
/* Whether "NAME:key=value,..." names a method of this kind with valid parameters. */
SAC_API SAC_NODISCARD sac_status sac_method_check(const char *kind, const char *spec,
                                                  sac_error *err);

#ifdef __cplusplus
}
#endif
#endif
