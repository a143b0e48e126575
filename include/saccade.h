/* saccade.h: the public C API of Saccade, a long-context LLM inference engine.
 *
 * Order of need: a model (`sac_model_load`), text and tokens (`sac_tokenize`, `sac_chat_apply`), an
 * engine that owns the KV pages (`sac_engine_create`), then either requests (`sac_submit`,
 * `sac_run`: prompt in, events out) or bare sequences (`sac_seq_append`, `sac_step`: tokens in,
 * logits out). Both may be mixed on one engine; sac_run gives nobody the logits of bare ones.
 *
 * Contract of every function, unless it says otherwise:
 *  - Pointers are not NULL. `err` may be NULL; when given it holds one line that names the file,
 *    key or value that was wrong. Outputs are written on SAC_OK only.
 *  - Strings are UTF-8; lengths are bytes. Token ids are int32_t, positions count from 0.
 *  - A model is immutable after load and may be shared by threads and engines; an engine belongs to
 *    one thread at a time. Nothing here is process-global but the methods that are registered.
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
    SAC_ERR_ARG,         /* an argument, flag or parameter value is out of its range */
    SAC_ERR_NOT_FOUND,   /* a file, key, tensor or id that should exist does not */
    SAC_ERR_FORMAT,      /* a file or text breaks its format */
    SAC_ERR_UNSUPPORTED, /* well formed, but of a kind that is not built in */
    SAC_ERR_IO,          /* the system refused to read or write */
    SAC_ERR_MEMORY,      /* memory could not be had; only at load and create */
    SAC_ERR_CONTEXT,     /* more tokens than the context or the KV pool holds */
    SAC_ERR_CANCELLED,   /* a callback asked to stop */
    SAC_ERR_BUSY,        /* all places are taken; later there will be one */
} sac_status;

typedef struct sac_error {
    char msg[512]; /* one line, NUL terminated, without a newline */
} sac_error;

SAC_API const char *sac_status_name(sac_status status);
SAC_API const char *sac_version(void);

/* Memory that the library returns to the caller ("owned") is given back here. */
SAC_API void sac_free(void *owned);

/* ---- Model ---- */

typedef struct sac_model sac_model;

/* Called between pieces of long work with the share done, 0 to 1; true asks to stop. */
typedef bool (*sac_progress_fn)(void *user, double share);

typedef enum sac_rope_scaling {
    SAC_ROPE_MODEL = 0, /* as the file says */
    SAC_ROPE_NONE,
    SAC_ROPE_LINEAR,
    SAC_ROPE_YARN,
} sac_rope_scaling;

typedef struct sac_model_params {
    uint32_t n_threads;     /* for loading; 0: one per CPU of the affinity mask */
    const char *pre;        /* pre-tokeniser instead of the file's, or NULL */
    sac_rope_scaling rope;  /* instead of the file's scaling */
    float rope_scale;       /* context factor of linear and YaRN; 0: the file's, if any */
    float rope_freq_base;   /* 0: the file's */
    uint32_t yarn_orig_ctx; /* context that the model was trained at; 0: the file's */
    bool screen; /* keep a short form of the output matrix beside it, where that is worth its
                    memory: sac_seq_use_top (default: true) */
    sac_progress_fn progress; /* or NULL */
    void *progress_user;
} sac_model_params;

typedef struct sac_model_info {
    const char *name, *arch, *file_type; /* owned by the model */
    uint32_t n_layer, n_embd, n_ff, n_head, n_kv_head, head_dim, n_vocab, n_ctx_train;
    uint32_t n_window_layer, window; /* layers that see `window` tokens only; 0: none */
    uint64_t n_params;
    uint64_t file_bytes;   /* all parts of the file */
    uint64_t weight_bytes; /* resident after load */
} sac_model_info;

SAC_API sac_model_params sac_model_params_default(void);
SAC_API SAC_NODISCARD sac_status sac_model_load(sac_model **out, const char *path,
                                                const sac_model_params *params, sac_error *err);
SAC_API void sac_model_free(sac_model *model);
SAC_API sac_model_info sac_model_get_info(const sac_model *model);

/* ---- Files: what a GGUF file holds, without loading a model ---- */

enum {
    SAC_FILE_JSON = 1, /* one JSON object instead of text for people */
    SAC_FILE_FULL = 2, /* long arrays (and, in text, long strings) are not shortened */
};

/* Describes keys and tensors of a file and all parts of a split model. `*out_text`: sac_free. */
SAC_API SAC_NODISCARD sac_status sac_file_describe(const char *path, unsigned flags,
                                                   char **out_text, sac_error *err);
/* Reads all of the file and reports counts if nothing is wrong: format and sizes as at load, and
 * every weight a finite number. Else `err` names what is wrong. */
SAC_API SAC_NODISCARD sac_status sac_file_check(const char *path, unsigned flags, char **out_text,
                                                sac_error *err);

/* ---- Text and tokens ---- */

enum {
    SAC_TOK_ADD_SPECIAL = 1,   /* put BOS (and EOS) where the model's file asks for them */
    SAC_TOK_PARSE_SPECIAL = 2, /* control tokens written in the text become their ids */
};

/* Encodes `n_bytes` of `text`. `*out_tok` is the caller's (sac_free). Any bytes will do. */
SAC_API SAC_NODISCARD sac_status sac_tokenize(const sac_model *model, const char *text,
                                              size_t n_bytes, unsigned flags, int32_t **out_tok,
                                              size_t *out_n, sac_error *err);
/* The bytes of one token (owned by the model, not NUL terminated), "" for an id out of range and,
 * unless `special`, for control tokens. A piece may end inside a UTF-8 character. */
SAC_API const char *sac_token_piece(const sac_model *model, int32_t tok, bool special,
                                    size_t *out_bytes);
/* Decodes tokens to text; `*out_text` is owned by the caller, NUL terminated. */
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
} sac_chat_params;

/* Renders messages with the chat template; `*out_text` is owned by the caller. Templates are
 * hostile input: steps, depth and output are limited. */
SAC_API SAC_NODISCARD sac_status sac_chat_apply(const sac_model *model, const sac_message *msgs,
                                                size_t n_msg, const sac_chat_params *params,
                                                char **out_text, sac_error *err);
/* Renders as sac_chat_apply does and encodes what comes out, BOS included where the model wants
 * one. Control tokens of the template become their ids. Those that messages or tools spell out stay
 * text: no document and no user can end a turn. `*out_tok` is owned by the caller. */
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
#define SAC_METHODS_MAX 32u /* methods of one kind that an engine takes */
#define SAC_PAGE_TOK    32u /* tokens of a page of keys and values, which texts share whole */

typedef struct sac_engine_params {
    uint32_t n_ctx;     /* tokens that one sequence may hold; 0: the model's training context */
    uint32_t n_seq_max; /* sequences alive at once */
    uint64_t n_kv_tok;  /* tokens in the shared page pool; 0: n_ctx * n_seq_max */
    uint32_t n_batch;   /* rows of one step, at most; prefill methods have room for one more of each
                           other sequence. 0: 512 to 2,048, by threads, device and any_chunk */
    uint32_t n_threads; /* 0: one per CPU of the affinity mask */
    sac_kv_type type_k, type_v; /* both of one kind: 16-bit types may be mixed, q8 goes with q8 */
    const char *const *decode;  /* [n_decode] of decode rows, "NAME:key=value,..."; none: "full" */
    uint32_t n_decode;          /* at most SAC_METHODS_MAX */
    const char *const
        *prefill;            /* [n_prefill] the same for prompt rows; none: "dense". All copied */
    uint32_t n_prefill;      /* at most SAC_METHODS_MAX */
    uint32_t sparse_min_ctx; /* rows at positions below it read everything */
    uint32_t n_request_max;  /* that wait or run: then sac_submit says SAC_ERR_BUSY; 0: any */
    float tbt_target_ms; /* time between tokens: a step with decode rows takes no more prompt rows
                            than this leaves time for; 0: as many as n_batch. A few rows at times if
                            these take too long, or a planning method's chunk. No result changes */
    bool compose;        /* plan the memory of sac_compose */
    bool record, watch;  /* the same of sac_engine_set_recorder, of sac_request.on_read */
    bool learn; /* prefill methods with a table of heads learn it from prompts, read densely */
    /* Pages of dense prompts are kept in an index by their content, as long as there is room, and
     * used again by any sequence whose prompt begins alike: the same bits, and less to compute.
     * Not with `record` or `learn`, which want to see all rows. Default: off. */
    bool prefix_cache;
    const char *device; /* "cpu" or NULL; "cuda", "cuda:N"; "cuda:0,cuda:1" (docs/gpu.md). Copied */
    const float *device_split; /* [n_device_split] shares of the layers; NULL: by free memory */
    bool device_rows; /* each of several GPUs computes a share of every layer: some of its heads */
    uint32_t n_device_split, n_device_layer; /* its layers, the last; 0, or more: all, and output */
    bool kv_on_host; /* keys and values are in the machine's memory, and the CPU attends to them */
    float device_share; /* of a GPU's free memory that may be taken, for f16 weights last; 0: 0.9 */
    const struct sac_tier_params *tier; /* saccade_tier.h; NULL: all pages are in memory */
} sac_engine_params;

SAC_API sac_engine_params sac_engine_params_default(void);
/* Plans and takes all memory that steps will use; a step allocates nothing. */
SAC_API SAC_NODISCARD sac_status sac_engine_create(sac_engine **out, const sac_model *model,
                                                   const sac_engine_params *params, sac_error *err);
SAC_API void sac_engine_free(sac_engine *engine);
/* The parameters in force, defaults filled in. */
SAC_API sac_engine_params sac_engine_get_params(const sac_engine *engine);

/* What rows have read, and what came of their methods' choices: of all rows of an engine, or of a
 * request. Those of an engine's requests and of its other sequences add up to the engine's. */
typedef struct sac_reads {
    uint64_t n_prompt_tok, n_decode_tok; /* rows computed so far, by kind */
    uint64_t n_reused_tok, n_disk_tok;   /* prompt tokens that the index had; of these, the disk */
    uint64_t kv_bytes_read; /* K and V read by attention so far; for prompt rows once a tile */
    /* Of decode rows: what was read, in bytes of the cache lines of 64 that were touched. Each walk
     * over data counts its lines once, and two walks over the same data count twice, whatever a
     * cache holds. Not counted: weights, queries, what a step has made itself (scores), and words
     * that stand for a page (tables, masks). docs/fairness.md has the whole rule.
     *  attend: keys and values that attention read, in all layers; part of kv_bytes_read;
     *  choose: what methods read to choose for the row at hand: side data, keys, tables;
     *  build:  what they read for more rows than one: tables, votes, coordinates, means;
     *  dense:  what attention would have read had everything been read. */
    uint64_t attend_bytes_read, choose_bytes_read, build_bytes_read, dense_bytes;
    uint64_t n_select;        /* choices made: one per decode row, layer and KV head that asked */
    uint64_t n_select_dense;  /* of these: everything was read */
    uint64_t n_select_nan;    /* of these: because of a NaN or infinity in a query or key */
    uint64_t n_bypass;        /* query heads of choices that read little, the rest being guessed */
    uint64_t n_select_proved; /* of these: came with a proof of the softmax mass that is read */
    double mass_proved;       /* sum of the shares that were proved */
    /* Of the same choices, bounds of |output - dense output| / |output| that follow, rounding of
     * the arithmetic aside, 1 for an output of zeros: their sum and the largest. */
    double out_bound, out_bound_max;
    uint64_t n_page_dropped;         /* given back by methods that evict */
    uint64_t n_tok_seen, n_tok_read; /* by decode rows: tokens before the own page; those read */
    uint64_t n_tok_chosen; /* of these: by score, not in any case; none where all were read */
    /* Prompt rows in layers without a window: pairs of a row and a key that it may see, over all
     * query heads, and those of them that were computed. */
    uint64_t n_cell, n_cell_read;
    uint64_t n_plan;       /* lists made: one per tile of rows, layer and KV head (or query head) */
    uint64_t n_plan_dense; /* of these: everything is read */
    uint64_t n_plan_past;  /* of these: because the method cannot go on from earlier tokens */
    uint64_t n_plan_nan;   /* of these: because of a NaN or infinity in a query or key */
    uint64_t n_plan_overflow; /* of these: because of too many single tokens */
    double plan_mass;         /* sum of estimates of the softmax mass kept, by methods that know */
    uint64_t n_plan_mass;     /* estimates in it */
} sac_reads;

/* Why no more pages of a prompt were taken from the index (sac_engine_params.prefix_cache). */
typedef enum sac_reuse_end {
    SAC_REUSE_OFF = 0, /* there is no index */
    SAC_REUSE_ALL,     /* everything that may be taken was there; a last part is always computed */
    SAC_REUSE_SHORT,   /* the prompt has no more than a page */
    SAC_REUSE_NEW,     /* no text with this beginning, of this salt, is there (any more) */
    SAC_REUSE_DIFFERS, /* one is, but goes on otherwise */
    SAC_REUSE_METHOD,  /* a prefill method plans: what is computed depends on the whole prompt */
    SAC_REUSE_QUERIES, /* a decode method of the engine wants the queries of as many last rows */
    SAC_REUSE_LOGITS,  /* logits are wanted of prompt rows, which are computed for that */
    SAC_REUSE_PAST,    /* it begins inside a page, or behind what was answered, loaded or dropped */
    SAC_REUSE_ENDS,
} sac_reuse_end;

/* The same in words. */
SAC_API const char *sac_reuse_end_text(sac_reuse_end end);

typedef struct sac_engine_stats {
    uint64_t n_step;
    sac_reads reads;         /* of all rows */
    uint64_t kv_bytes;       /* the pool and the tails, as planned */
    uint64_t kv_bytes_used;  /* in pages that some sequence holds, and tails */
    uint64_t kv_bytes_kept;  /* in those that are kept for others: free if room is needed */
    uint64_t scratch_bytes;  /* planned for steps */
    uint64_t side_bytes;     /* planned for side data and state of methods */
    uint64_t n_cell_skipped; /* of reads.n_cell_read: too small to add their values (sparge:skip) */
    uint64_t weight_bytes_read;
    uint64_t n_logit, n_logit_computed;    /* logits that rows wanted, all or the largest of a
                                              vocabulary; those computed in full */
    uint64_t linear_us, attn_us, other_us; /* wall time of steps, by stage */
    uint64_t select_us, plan_us; /* of attn_us: decode methods choosing, prefill methods planning */
    uint32_t n_request_waiting, n_request_running;
    uint64_t n_preempted;                     /* times that a request gave its pages to others */
    uint64_t n_page, n_page_free, page_bytes; /* free: those that are kept, too */
    uint64_t n_reuse_end[SAC_REUSE_ENDS]; /* prompts that asked the index, by what ended it; tokens
                                             are in reads.n_reused_tok */
    uint64_t n_reuse_evicted;             /* page indices that left the index for want of room */
    const char *isa;                      /* the op table in use: "ref", "avx2", "avx512", "amx" */
} sac_engine_stats;

SAC_API sac_engine_stats sac_engine_get_stats(const sac_engine *engine);

/* ---- Sequences: tokens in, logits out ---- */

typedef uint32_t sac_seq;
#define SAC_SEQ_NONE UINT32_MAX

/* How a row is computed. Kind is a property of the row and never of the batch, so that results do
 * not depend on what else is in a step. */
typedef enum sac_row_kind {
    SAC_ROW_PROMPT = 0, /* wide kernels: many rows at once */
    SAC_ROW_DECODE,     /* narrow kernels: one row of a sequence per step */
} sac_row_kind;

typedef enum sac_want { SAC_WANT_NONE = 0, SAC_WANT_LAST, SAC_WANT_ALL } sac_want;

SAC_API SAC_NODISCARD sac_status sac_seq_create(sac_engine *engine, sac_seq *out, sac_error *err);
/* A new sequence with the same tokens. Sealed pages are shared, the unsealed tail is copied. The
 * source must have no pending tokens. */
SAC_API SAC_NODISCARD sac_status sac_seq_fork(sac_engine *engine, sac_seq src, sac_seq *out,
                                              sac_error *err);
/* Keeps the first `n_tok` tokens, pending ones counted. Cutting into a sealed q8 page keeps the
 * rounded values of its first tokens. */
SAC_API SAC_NODISCARD sac_status sac_seq_truncate(sac_engine *engine, sac_seq seq, uint32_t n_tok,
                                                  sac_error *err);
SAC_API void sac_seq_remove(sac_engine *engine, sac_seq seq);
/* From the next step on, decode rows of the sequence use the engine's method `decode_i`, an index
 * of `params.decode`. A new sequence uses 0, a fork what its source uses. What another method had
 * learnt of the sequence is forgotten; one that has dropped tokens for good cannot be left. */
SAC_API SAC_NODISCARD sac_status sac_seq_use_decode(sac_engine *engine, sac_seq seq,
                                                    uint32_t decode_i, sac_error *err);
/* The same for its prompt rows, an index of `params.prefill`. */
SAC_API SAC_NODISCARD sac_status sac_seq_use_prefill(sac_engine *engine, sac_seq seq,
                                                     uint32_t prefill_i, sac_error *err);
/* Pages of an empty sequence are found by others of the same salt only, and it finds theirs: one
 * salt a tenant, and none learns from timings what others have asked. NULL, as when new: "". */
SAC_API SAC_NODISCARD sac_status sac_seq_use_salt(sac_engine *engine, sac_seq seq, const char *salt,
                                                  sac_error *err);
/* How sparse attention is, where that is not as the engine was created. Zeros: as there. */
typedef struct sac_sparse {
    float mass;         /* the methods' parameter `mass`: share of the attention to keep */
    const char *budget; /* the methods' parameter `budget`: "1024" tokens, or "5%" of the context */
    uint32_t min_ctx;   /* rows at positions below it read everything; 1: no row for that reason */
    bool dense;         /* all rows read everything, with the bits of dense attention */
} sac_sparse;

/* From the next step on, rows of the sequence read so; a fork's as its source's. Mass and budget go
 * to those of its two methods that have such a parameter. SAC_ERR_ARG, with the method's name, if
 * none has it, or if the engine has not planned as much memory as the value needs. What a method
 * had learnt with other values is forgotten; one that has dropped tokens for good keeps its values.
 * A change of methods takes mass and budget back. */
SAC_API SAC_NODISCARD sac_status sac_seq_use_sparse(sac_engine *engine, sac_seq seq,
                                                    const sac_sparse *sparse, sac_error *err);
/* Rows of the sequence give the exact logits of at least the `n_top` largest, all ties with the
 * last of them included, and -INFINITY for the rest; 0, as for a new sequence: all. A fork uses
 * what its source uses. This spares generation most of the output matrix: what a short form of it
 * shows to lie below is not computed, and no logit that is given differs. Requests do so themselves
 * where their sampling needs no more. */
SAC_API SAC_NODISCARD sac_status sac_seq_use_top(sac_engine *engine, sac_seq seq, uint32_t n_top,
                                                 sac_error *err);
/* Tokens computed; `*out_pending` (or NULL) gets those appended and not yet computed. */
SAC_API uint32_t sac_seq_length(const sac_engine *engine, sac_seq seq, uint32_t *out_pending);
/* The tokens of a sequence, those computed and behind them the pending ones; owned by the engine,
 * valid until the sequence changes. NULL: there is no such sequence. */
SAC_API const int32_t *sac_seq_tokens(const sac_engine *engine, sac_seq seq);
/* What its rows have read since this was asked last, but for what is a request's. */
SAC_API sac_reads sac_seq_take_reads(sac_engine *engine, sac_seq seq);

/* Queues tokens behind those the sequence has. SAC_ERR_CONTEXT, with both counts in `err`, if they
 * do not fit the context; nothing is queued then. */
SAC_API SAC_NODISCARD sac_status sac_seq_append(sac_engine *engine, sac_seq seq, const int32_t *tok,
                                                size_t n, sac_row_kind kind, sac_want want,
                                                sac_error *err);

/* One row's logits, valid during the callback only; `logits` is [n_vocab] and may be changed. Where
 * few are known (sac_seq_use_top), `top` may name their tokens, ascending; others are -INFINITY. */
typedef struct sac_row {
    sac_seq seq;
    uint32_t pos, n_top;
    int32_t tok;
    float *logits;
    const int32_t *top; /* [n_top], or NULL */
} sac_row;
typedef void (*sac_row_fn)(void *user, const sac_row *row);

/* Computes one batch of pending rows: decode rows of all sequences first, then prompt chunks in
 * the order they were queued; those of requests are left to sac_run. `*out_n` (or NULL) gets the
 * rows computed, 0 when nothing pends. SAC_ERR_CONTEXT when the shared pool has no page for any
 * pending row: nothing is lost, remove or truncate a sequence and step again. */
SAC_API SAC_NODISCARD sac_status sac_step(sac_engine *engine, sac_row_fn on_row, void *user,
                                          uint32_t *out_n, sac_error *err);

/* ---- Sequences on disk: a long text is computed once and asked many times ---- */

/* A state is what an engine knows of a sequence: its tokens, keys and values, and what its methods
 * have learnt of it. Loaded, it goes on with the very bits with which the saved one would have.
 * Samplers are not a part of it. The format is this version's own and little-endian; a state
 * belongs to one model, with one kind of position scaling, and to one KV type.
 *
 * Saves a sequence that has no pending tokens. The file is there whole, or as it was before. */
SAC_API SAC_NODISCARD sac_status sac_seq_save(sac_engine *engine, sac_seq seq, const char *path,
                                              sac_error *err);
/* A new sequence from a file, which may come from anywhere: what is cut short, damaged, another
 * model's or not to be used by this engine is refused, and the reason told. The sequence uses the
 * engine's methods of the specifications that it was saved with. Where the engine has none such, it
 * uses method 0, which has learnt nothing of it yet; that is refused if tokens were dropped, or if
 * the method learns from queries that the state does not hold. */
SAC_API SAC_NODISCARD sac_status sac_seq_load(sac_engine *engine, const char *path, sac_seq *out,
                                              sac_error *err);
/* The same in memory; `*out` [*out_n] is owned by the caller (sac_free). */
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

/* What the head of a state's file says, before there is an engine for it. */
SAC_API SAC_NODISCARD sac_status sac_state_get_info(sac_state_info *out, const char *path,
                                                    sac_error *err);

/* ---- Documents: texts that are computed once and named in many prompts ---- */

/* A store is a folder of documents, each with its tokens, keys and values, computed alone behind
 * the tokens that a prompt begins with (its `head`: BOS, a chat's first lines). Head and text are
 * each filled up with newlines to whole pages, which prompts share. Programs may share a store; a
 * process opens a folder once at a time. A document belongs to one model, kind of position scaling
 * and KV type, where its name is unique. It is on the disk whole or not. */
typedef struct sac_docs sac_docs;

typedef struct sac_docs_params {
    const char *salt; /* documents of another salt are not seen, nor shared; NULL: none */
    bool only_read;   /* change nothing; a folder that may not be written is only read anyway */
} sac_docs_params;

typedef struct sac_doc {
    char name[256], model[64], tags[128];
    char id[65];       /* SHA-256 of model, KV type, prefill method, salt and tokens, in hex */
    uint64_t model_id; /* equal for models that give a token the same keys and values */
    sac_kv_type type_k, type_v;
    uint32_t n_tok, n_head;         /* tokens, and those of them that are its head; filled up */
    uint64_t bytes;                 /* of its file */
    int64_t created, used, expires; /* seconds since 1970; expires 0: never */
    bool pinned;                    /* sac_docs_collect makes no room by removing it */
} sac_doc;

typedef struct sac_doc_source {
    const char *name;    /* without commas and control characters, 200 bytes at most */
    const char *tags;    /* for people and scripts, or NULL; 127 bytes at most */
    const int32_t *head; /* [n_head] what the prompt begins with; there may be none */
    size_t n_head;
    const int32_t *tok; /* [n_tok] the text, at least a token */
    size_t n_tok;
    int64_t seconds; /* to live; 0: for ever */
    bool pin;
    sac_progress_fn progress; /* or NULL; true gives up, and nothing is stored */
    void *user;
} sac_doc_source;

SAC_API SAC_NODISCARD sac_status sac_docs_open(sac_docs **out, const char *dir,
                                               const sac_docs_params *params, sac_error *err);
SAC_API void sac_docs_close(sac_docs *docs);
/* From now on as if it had been opened with this salt. */
SAC_API SAC_NODISCARD sac_status sac_docs_use_salt(sac_docs *d, const char *salt, sac_error *err);
/* Computes a document in a free sequence, with prefill method 0, and stores it under its name; one
 * that is there is not computed again. Others' tokens wait, unless `progress` calls sac_run. */
SAC_API SAC_NODISCARD sac_status sac_doc_add(sac_docs *docs, sac_engine *engine,
                                             const sac_doc_source *source, sac_doc *out,
                                             bool *out_was_there, sac_error *err);
/* All documents; `*out` [*out_n] is owned by the caller (sac_free). */
SAC_API SAC_NODISCARD sac_status sac_doc_list(sac_docs *docs, sac_doc **out, size_t *out_n,
                                              sac_error *err);
/* The document of this name that an engine of the model with these parameters could use. */
SAC_API SAC_NODISCARD sac_status sac_doc_find(sac_docs *docs, const sac_model *model,
                                              const sac_engine_params *params, const char *name,
                                              sac_doc *out, sac_error *err);
/* A new sequence that has read the document and its head. An engine with `compose` keeps the pages
 * for the next call while there is room. The file is hostile input. */
SAC_API SAC_NODISCARD sac_status sac_doc_load(sac_docs *docs, sac_engine *engine, const char *name,
                                              sac_seq *out, sac_doc *out_doc, sac_error *err);
SAC_API void sac_docs_forget(sac_engine *engine); /* they are read anew */
/* Reads the file and says what is wrong with it. */
SAC_API SAC_NODISCARD sac_status sac_doc_verify(sac_docs *docs, const sac_doc *doc, sac_error *err);
SAC_API SAC_NODISCARD sac_status sac_doc_remove(sac_docs *docs, const sac_doc *doc, sac_error *err);

typedef struct sac_compose_params {
    const char *method; /* of kind "context", "NAME:key=value,..." */
    const sac_seq *doc; /* [n_doc] from sac_doc_load, in the order in which they will stand */
    size_t n_doc;
    uint32_t n_head, decode; /* of every document; as in sac_seq_use_decode, of the new sequence */
    const int32_t *question; /* [n_question] what will be appended, for methods that choose by it */
    size_t n_question;
    sac_progress_fn progress; /* or NULL */
    void *user;
} sac_compose_params;

typedef struct sac_compose_report {
    uint32_t n_tok, decode; /* of the documents, without the head; the method that is used now */
    uint64_t n_row;         /* pairs of a token and a layer that were computed again */
    /* Of all pairs of a document's token and a layer: those that are there to be read, and those
     * that were computed again. */
    double resident_share, recomputed_share;
    uint64_t bytes; /* of pages that are the new sequence's own */
    /* Sharing pages; asking with the question; computing again. */
    double join_ms, probe_ms, refresh_ms;
} sac_compose_report;

/* A new sequence: the head, then the documents behind each other. Their pages are shared, not
 * copied; queries turn to meet keys of other positions. What the method computes again goes to
 * pages of the sequence's own, and the documents stay as they are. A question is appended to it as
 * to any sequence. The engine must have been created with `compose`. `report` may be NULL. Of
 * pending tokens and of `progress` sac_doc_add tells. */
SAC_API SAC_NODISCARD sac_status sac_compose(sac_engine *engine, const sac_compose_params *params,
                                             sac_seq *out, sac_compose_report *report,
                                             sac_error *err);
/* Of the first whole pages of two sequences: |values - exact| / |exact|, or NAN, of each layer. */
SAC_API SAC_NODISCARD sac_status sac_seq_compare(const sac_engine *engine, sac_seq seq,
                                                 sac_seq exact, uint32_t n_tok, double *out,
                                                 sac_error *err);

typedef struct sac_docs_freed {
    uint32_t n_expired, n_evicted; /* documents: over their time; the longest unused */
    uint32_t n_lost, n_stray;      /* names without a file; files without a name */
    uint64_t bytes;
} sac_docs_freed;
/* Removes what has expired or was left by killed processes; then, while the files have more than
 * `bytes_max` bytes (0: any number), the documents unused for the longest time, to the minute. */
SAC_API SAC_NODISCARD sac_status sac_docs_collect(sac_docs *docs, uint64_t bytes_max,
                                                  sac_docs_freed *out, sac_error *err);

/* ---- Recording: what attention read, and what it should have read ---- */

/* Attention of one layer and KV head, for one decode row or for a tile of prompt rows: those of a
 * step whose positions lie in one page. Page i holds positions SAC_PAGE_TOK i and up. The reference
 * is exact dense attention of the same queries over the same stored keys and values (within the
 * window of a layer that has one), computed beside the method and not in its times. */
typedef struct sac_read_record {
    sac_seq seq;
    sac_row_kind kind;
    uint32_t pos, n_row; /* the first row's position; rows of the tile, 1 for decode */
    uint32_t layer, kv_head;
    uint32_t n_page, n_page_read; /* pages up to the rows' own; pages read, in whole or in part */
    /* Tokens of pages before the own one: those that dense attention would have read for the rows,
     * and those that were read, for any of the query heads. */
    uint32_t n_tok_seen, n_tok_read;
    const uint32_t *page;   /* [n_page_read] ascending; the own page is always among them */
    const float *page_mass; /* [n_page] dense softmax mass, mean over rows and query heads */
    float mass;             /* dense softmax mass of the tokens read */
    float mass_proved;      /* what the method has proved of it for every head; 0: nothing */
    /* Relative to the exact output over the tokens that were read: how far the reference is from
     * it, and how far at most by what was proved. Kernels' rounding is not in them. */
    float out_left, out_bound;
    float out_err; /* |output - reference| / |reference|, of all rows and query heads */
    /* Read, a page once for all rows and query heads, in whole cache lines; side: by the method of
     * a decode row, to choose and to build (sac_engine_stats). */
    uint64_t k_bytes, v_bytes, side_bytes;
    float select_us, attend_us; /* this record's part of the layer's wall time, by bytes */
    const float *out; /* the method's output: row r at out + r * out_stride, [n_query, head_dim] */
    size_t out_stride;
    uint32_t n_query;      /* query heads of this KV head */
    const float *tok_mass; /* [pos + 1] page_mass token by token; NULL unless n_row is 1 */
} sac_read_record;
/* Pointers are valid during the call only. It must not call the engine. */
typedef void (*sac_read_fn)(void *user, const sac_read_record *record);

/* From the next step on `fn` gets a record for every decode row and prompt tile, layer and KV head,
 * in this order: by layer, then by row, then by KV head. NULL switches it off. Results do not
 * change; steps take longer. SAC_ERR_ARG if the engine was created without `record`. */
SAC_API SAC_NODISCARD sac_status sac_engine_set_recorder(sac_engine *engine, sac_read_fn fn,
                                                         void *user, sac_error *err);

/* ---- Tables of heads: what a prefill method knows of a model beforehand ---- */

/* What the method `prefill_i` has learnt of the prompts so far, in the form of the file that its
 * parameter of type SAC_PARAM_FILE names. `*out_text` is owned by the caller (sac_free).
 * SAC_ERR_ARG if the engine was created without `learn`, or the method has no table;
 * SAC_ERR_CONTEXT if the prompts were too short to learn from. */
SAC_API SAC_NODISCARD sac_status sac_engine_get_table(const sac_engine *engine, uint32_t prefill_i,
                                                      char **out_text, sac_error *err);

/* ---- Sampling ---- */

typedef struct sac_logit_bias {
    int32_t tok;
    float bias; /* -INFINITY bans the token */
} sac_logit_bias;

typedef struct sac_sampling {
    float temp;                 /* <= 0: greedy */
    int32_t top_k;              /* <= 0: off */
    float top_p;                /* >= 1: off */
    float min_p;                /* <= 0: off */
    float typical_p;            /* >= 1: off */
    float repeat_penalty;       /* 1: off */
    float frequency_penalty;    /* 0: off */
    float presence_penalty;     /* 0: off */
    int32_t repeat_last_n;      /* tokens that penalties look back at; 0: off, -1: all */
    float dry_multiplier;       /* 0: off. A token that goes on with what was said before loses */
    float dry_base;             /*   multiplier * base^(n - dry_allowed_length), n the tokens */
    int32_t dry_allowed_length; /* that are alike, if they are so many */
    int32_t dry_last_n;         /* tokens that it looks back at, 1 to 4194304 */
    const char *const *dry_breaker; /* [n_dry_breaker], copied: texts that end what is alike */
    size_t n_dry_breaker;
    float xtc_probability; /* 0: off; how often all but the least likely of the tokens with */
    float xtc_threshold;   /*   this probability or more are left out */
    int32_t mirostat;      /* 0: off; 1 or 2, in the place of top_k to xtc */
    float mirostat_tau;    /* the surprise that it steers to, in bits */
    float mirostat_eta;    /* how fast */
    uint64_t seed;
    const sac_logit_bias *logit_bias; /* [n_logit_bias], copied */
    size_t n_logit_bias;
} sac_sampling;

typedef struct sac_prob {
    int32_t tok;
    float logprob; /* of the model, before the sampler changed it */
} sac_prob;

typedef struct sac_sampler sac_sampler;
SAC_API sac_sampling sac_sampling_default(void);
SAC_API SAC_NODISCARD sac_status sac_sampler_create(sac_sampler **out, const sac_model *model,
                                                    const sac_sampling *params, sac_error *err);
SAC_API void sac_sampler_free(sac_sampler *sampler);
/* Tells the sampler of a token in the text (prompt or chosen), for the penalties. */
SAC_API void sac_sampler_accept(sac_sampler *sampler, int32_t tok);
/* Chooses a token from `logits` [n_vocab], which is overwritten. Does not accept it. The `n_probs`
 * likeliest tokens by the model go to `out_probs` when n_probs > 0, likeliest first; entries beyond
 * the vocabulary get token -1. A NaN counts as -INFINITY. -1: all are, so none can be chosen. */
SAC_API int32_t sac_sampler_sample(sac_sampler *sampler, float *logits, sac_prob *out_probs,
                                   uint32_t n_probs);
/* The same of a row's logits: where these are few, it does not look at the others. */
SAC_API int32_t sac_sampler_sample_row(sac_sampler *sampler, const sac_row *row);

/* ---- Requests: prompt in, events out ---- */

typedef enum sac_event_kind {
    SAC_EVENT_PROMPT, /* a part of the prompt was computed: n_prompt_done of n_prompt */
    SAC_EVENT_TOKEN,  /* a token was chosen */
    SAC_EVENT_DONE,   /* the request has ended; the last event of a request */
} sac_event_kind;

typedef enum sac_finish {
    SAC_FINISH_NONE = 0,
    SAC_FINISH_STOP,      /* an end-of-generation token or a stop string */
    SAC_FINISH_LENGTH,    /* max_tokens or the context's end */
    SAC_FINISH_CANCELLED, /* sac_cancel, or the callback returned true */
    SAC_FINISH_ERROR,     /* see `error` */
} sac_finish;

typedef struct sac_timings {
    /* Tokens. Cached: those of a continued sequence, and those of the prompt that were taken from
     * the index and not computed, n_reused; of these, n_disk were read from a disk. */
    uint32_t n_cached, n_reused, n_disk, n_prompt, n_predicted;
    sac_reuse_end reuse_end;  /* why no more were taken */
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
    const char *text; /* whole UTF-8 characters that became certain, maybe none; stop strings and
                         what may become one are held back */
    size_t text_bytes;
    const sac_prob *probs; /* [n_probs] */
    uint32_t n_probs;
    sac_finish finish;
    const char *stop;    /* the stop string that matched, or NULL */
    sac_timings timings; /* SAC_EVENT_TOKEN: so far; SAC_EVENT_DONE */
    sac_reads reads;     /* SAC_EVENT_DONE: of the request's rows, again computed ones included */
    const char *error;
} sac_event;
/* True cancels the request. */
typedef bool (*sac_event_fn)(void *user, const sac_event *event);

/* What steers a request's choices beside its sampling, a grammar say. All of it is called from
 * within sac_run and must not call the engine; NULL: not asked. */
typedef struct sac_guide {
    /* The tokens that may be chosen next: bit t % 64 of word t / 64 is that of token t, for the
     * whole vocabulary; NULL: any. Asked for once before each token, and read until it is chosen.
     * Where no token that is left has a finite logit, the request ends with an error. */
    const uint64_t *(*mask)(void *user);
    /* May change logits [n_vocab] before anything else does; probabilities that are reported are
     * those of the changed ones. With it all logits are computed, which takes longer. */
    void (*logits)(void *user, float *logits, uint32_t n_vocab);
    /* Hears each token that was chosen, before its event. */
    void (*chosen)(void *user, int32_t tok);
    void *user;
} sac_guide;

#define SAC_DECODE_KEEP  UINT32_MAX
#define SAC_PREFILL_KEEP UINT32_MAX

typedef struct sac_request {
    sac_seq seq;           /* continue this sequence, which is nobody else's until the end, and keep
                              it (all logits again then); SAC_SEQ_NONE: a fresh one, then removed */
    const int32_t *prompt; /* [n_prompt], appended to the sequence; copied */
    size_t n_prompt;
    uint32_t n_decode_row; /* of the prompt's last tokens, so many are decode rows, which the decode
                              method serves; at least 1 (the default): the row that chooses the
                              first token. More than n_prompt: the whole prompt */
    sac_sampling sampling;
    int32_t priority; /* higher ones begin first, even in the place of running lower ones, and give
                         way last; among equals the older ones */
    uint32_t max_tokens;     /* 0: up to the context's end */
    const char *const *stop; /* [n_stop], copied */
    size_t n_stop;
    bool ignore_eos;
    uint32_t decode;  /* as in sac_seq_use_decode; SAC_DECODE_KEEP (the default): what a continued
                         sequence uses, 0 for a fresh one */
    uint32_t prefill; /* the same, as in sac_seq_use_prefill; SAC_PREFILL_KEEP */
    const char *cache_salt; /* as in sac_seq_use_salt, for a fresh sequence; copied. A continued one
                               keeps its own: NULL */
    sac_sparse sparse;      /* of this request, as in sac_seq_use_sparse; copied */
    uint32_t n_probs;
    sac_guide guide; /* copied; NULLs: none */
    /* Gets records of this request's decode rows as sac_engine_set_recorder's function does, again
     * where rows are computed again, and none where a method has dropped tokens; NULL: none. The
     * engine must have been created with `watch`. */
    sac_read_fn on_read;
    sac_event_fn on_event;
    void *user; /* of both */
} sac_request;

SAC_API sac_request sac_request_default(void);
/* Queues a request; SAC_ERR_CONTEXT with both counts when the prompt does not fit. */
SAC_API SAC_NODISCARD sac_status sac_submit(sac_engine *engine, const sac_request *request,
                                            uint64_t *out_id, sac_error *err);
SAC_API void sac_cancel(sac_engine *engine, uint64_t request_id);
/* One step for all requests; `*out_active` gets the number that are not done. */
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

/* Where a method is not what its paper describes. Texts have neither a full stop nor a '|'. */
typedef struct sac_method_deviation {
    const char *paper, *here, *why;
    const char *effect; /* as far as it is known; NULL: not measured */
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
    bool chooses; /* a decode method: by scores, some of what it reads (n_tok_chosen) */
    /* A decode method learns from the prompt's last rows, or holds all of it, so a question belongs
     * among them (sac_request.n_decode_row 1); a context method chooses by the question. */
    bool needs_question;
    bool any_chunk;   /* a prefill method: prompts may be cut at any multiple of 256 rows */
    bool any_backend; /* it runs on any backend; else by code of the CPU, its own or its decode's */
    const char *decode; /* of a context method: the decode method that it needs, or NULL */
} sac_method_info;

/* The i-th method, built in or, behind those, registered; false behind the last. */
SAC_API bool sac_method_at(size_t i, sac_method_info *out);
/* Whether "NAME:key=value,..." names a method of this kind with parameters that it has. */
SAC_API SAC_NODISCARD sac_status sac_method_check(const char *kind, const char *spec,
                                                  sac_error *err);

#ifdef __cplusplus
}
#endif
#endif
