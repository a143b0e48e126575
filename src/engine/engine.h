/* engine.h: the engine's state, visible only to the files of this folder.
 *
 * One step: sched_pick fills `batch` from the pending tokens (policy, no tensors); layer_run
 * computes it (tensors, no policy); the engine commits and returns logits. All memory is one block
 * laid out by plan_memory in engine.c; a step allocates nothing (design D9). */
#ifndef SAC_ENGINE_ENGINE_H
#define SAC_ENGINE_ENGINE_H

#include "engine/admit.h"
#include "engine/ahead.h"
#include "engine/attend.h"
#include "engine/compact.h"
#include "engine/decode.h"
#include "engine/evict.h"
#include "engine/logits.h"
#include "engine/method_set.h"
#include "engine/model.h"
#include "engine/pace.h"
#include "engine/past_queries.h"
#include "engine/place.h"
#include "engine/prefill.h"
#include "engine/reads.h"
#include "engine/record.h"
#include "engine/repeat.h"
#include "engine/reuse.h"
#include "engine/segment.h"
#include "engine/seq_params.h"
#include "engine/side.h"
#include "engine/tensor_parallel.h"
#include "kv/pool.h"
#include "ops/backend.h"

#include "saccade_machine.h"

/* Flags of a token: its row's kind, and what is wanted of it: logits, or the hidden state after the
 * last norm. */
enum { TOK_DECODE = 1, TOK_WANT = 2, TOK_STATE = 4 };

struct doc_stats;
struct doc_stats_watch;
struct request_list;
struct resident;

/* One sequence: tokens [0, n_done) are in the KV pages, [n_done, n_all) are pending. */
struct seq {
    bool alive;
    uint32_t n_done, n_all;
    uint32_t method_i[METHOD_SET_KINDS]; /* methods of its decode rows and of its prompt rows */
    struct seq_params params;            /* settings that differ from the engine's */
    uint32_t n_top;                      /* largest logits that its rows return; 0: all logits */
    /* Only tokens whose bit is set are wanted of these; NULL: all are. Borrowed */
    const uint64_t *mask;
    uint32_t n_queued;       /* its prompt rows that the last sched_pick could have taken */
    struct doc_stats *stats; /* owned; of a document, or NULL (doc_stats.h) */
    bool has_gaps;           /* pages were freed by its decode method or by joining */
    bool broken;             /* one of its pages could not be read or stored: see `why` */
    sac_error why;
    struct admit_seq admit; /* whether its decode rows wait, and why */
    uint64_t token_us;      /* when its last decode row was computed (pace.h); 0: never */
    uint64_t ticket;        /* queue position of its oldest pending token */
    int32_t priority;       /* priority of its prompt rows: higher ones come first */
    sac_reads reads;        /* of its rows since the last sac_seq_take_reads */
    sac_read_fn on_read;    /* receives records of its decode rows, or NULL */
    void *read_user;
    struct reuse_seq reuse;
    int32_t *tok;   /* [n_ctx] */
    uint8_t *flags; /* [n_ctx] TOK_* */
};

/* Consecutive rows of one sequence: a decode row, or a prompt chunk. */
struct batch_run {
    uint32_t row0, n_row; /* rows of the batch */
    uint32_t pos0;        /* position of the first */
    uint32_t seq_i;
    enum row_kind kind;
    sac_reads reads; /* of the layers that are done */
};

/* Rows of one step: decode rows first, one run each, then the runs of prompt chunks. */
struct batch {
    /* Maximum of any step: params.n_batch, and what whole chunks need in addition */
    uint32_t n_row_max;
    uint32_t n_row, n_decode, n_run;
    int32_t *tok;          /* [n_row_max] */
    uint32_t *pos;         /* [n_row_max] */
    uint32_t *seq_i;       /* [n_row_max] */
    uint8_t *want;         /* [n_row_max] TOK_WANT, TOK_STATE, or 0 */
    struct batch_run *run; /* [n_row_max] */
};

struct sac_engine {
    const sac_model *model; /* borrowed */
    sac_engine_params params;
    struct place place[PLACES_MAX]; /* devices, and the layers that they compute */
    uint32_t n_place, at;   /* number of places; the one whose fields the following are (place.h) */
    struct backend backend; /* borrowed */
    struct ops ops;         /* the backend's */
    const struct weights *weights;
    struct scratch scratch;
    struct tensor_parallel tp; /* the shares of every layer, if several GPUs compute it */
    struct workers *workers;   /* owned */
    struct pool pool;
    struct sac_tier_params tier_params;
    struct tier tier;       /* below the pool, if params.tier is set and the host attends */
    struct offload offload; /* the same if a device attends */
    struct seq *seqs;       /* [n_seq_max] */
    struct batch batch;
    struct ahead ahead;
    struct logits logits;
    struct method_shape shape; /* what methods are told about model and engine */
    struct method_set method_set[METHOD_SET_KINDS]; /* by enum method_set_kind */
    struct decode decode;
    struct prefill prefill;
    struct past_queries past;
    struct evict evict;
    struct compact compact;
    struct segments segments;
    struct reuse reuse;
    struct resident *residents; /* owned, a list (resident.h) */
    struct attend attend;
    struct side side;
    struct repeat repeat;
    struct record record;
    struct rope_table rope[2]; /* RoPE of global layers; of local layers */
    sac_seq only;   /* only this sequence's rows are computed; SAC_SEQ_NONE: all, except */
    bool only_free; /* those of sequences that requests drive */
    struct doc_stats_watch *watch; /* borrowed; receives the queries of a sequence, or NULL */
    bool runs_on; /* a device may still be computing steps that the host has completed */
    uint64_t next_ticket;
    sac_clock_fn clock; /* or NULL */
    void *clock_user;
    struct pace pace;
    struct admit admit;
    sac_engine_stats stats;
    struct request_list *requests; /* owned */
    uint8_t *block;                /* owned, [block_bytes]: all of the above arrays */
    size_t block_bytes;
    char device_name[16 * DEVICES_MAX]; /* what params.device points at */
    char isa[24 * PLACES_MAX];          /* of all places */
};

/* Fills in all fields of an engine that has its parameters and model. */
sac_status engine_create(sac_engine *e, sac_error *err);
/* For request.c. */
struct request_list *engine_requests(sac_engine *e);
const sac_model *engine_model(const sac_engine *e);
/* Time of the clock set by sac_engine_use_clock, or of the machine's. */
uint64_t engine_now(const sac_engine *e);

/* Until the next call, only tokens whose bit is set are wanted among the largest logits that
 * sac_seq_use_top requests; NULL: all. Other logits may or may not be returned. */
void engine_use_mask(sac_engine *e, sac_seq id, const uint64_t *mask);

/* From the next step on `fn` receives records of the sequence's decode rows; NULL: none. */
void engine_use_reader(sac_engine *e, sac_seq id, sac_read_fn fn, void *user);

/* Prompt rows of sequences with a higher priority come first. A new sequence has 0. */
void engine_use_priority(sac_engine *e, sac_seq id, int32_t priority);

/* Whether a sequence that uses these methods accepts these settings. */
sac_status engine_check_sparse(const sac_engine *e, uint32_t decode_i, uint32_t prefill_i,
                               const sac_sparse *sparse, sac_error *err);

/* sac_step for all rows, including those of requests, whose logits only the requests may
 * receive. */
sac_status engine_step(sac_engine *e, sac_row_fn on_row, void *user, uint32_t *out_n,
                       sac_error *err);
/* Like the public calls, but also while a request drives the sequence. */
sac_status engine_append(sac_engine *e, sac_seq id, const int32_t *tok, size_t n, sac_row_kind kind,
                         sac_want want, sac_error *err);
sac_status engine_truncate(sac_engine *e, sac_seq id, uint32_t n_tok, sac_error *err);
/* One step with this sequence's rows only. */
sac_status engine_step_only(sac_engine *e, sac_seq id, sac_error *err);
/* Computes all pending tokens of a sequence, in steps of its own or, while others wait for tokens,
 * in steps that `progress` runs. `progress`, which may be NULL, gets the share done before each
 * step; true cancels: SAC_ERR_CANCELLED. */
sac_status engine_run_only(sac_engine *e, sac_seq id, sac_progress_fn progress, void *user,
                           sac_error *err);
/* A run of the step has lost a page: its sequence returns no logits and accepts no more tokens. */
void engine_break(sac_engine *e, uint32_t run_i, sac_status status);
static inline bool engine_is_broken(const sac_engine *e, uint32_t run_i)
{
    return e->seqs[e->batch.run[run_i].seq_i].broken;
}
/* Why the sequence is broken; NULL: it is not. */
const char *engine_why_broken(const sac_engine *e, sac_seq id);
/* An error with a message if it is. */
sac_status engine_check_whole(const struct seq *s, sac_seq id, sac_error *err);

/* The sequence, or NULL with a message. */
struct seq *engine_seq(const sac_engine *e, sac_seq id, sac_error *err);
/* Every token is in the vocabulary. */
sac_status engine_check_tokens(const sac_engine *e, const int32_t *tok, size_t n, sac_error *err);
#endif
